"""A small world for tests of stores: accounts, claims, a clock that stands still until it is told otherwise."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from discreet.budget.model import Account, AdminAction, Claim, Forever, Replay, Reservation
from discreet.budget.periods import DAY_US, SECOND_US
from discreet.values import Cost

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from discreet.budget.model import Mode, Period
    from discreet.budget.stores.store import BudgetStore

NOON_US = 1_760_011_200 * SECOND_US
"""2025-10-09 12:00 UTC, a Thursday."""

ACT = AdminAction("suite", "a test")
"""Who does it all."""

UNIT = Cost(Fraction(1, 1000), Fraction(1, 10**9))
"""A cost; limits are multiples of it."""

TOTAL = Fraction(1, 100)
"""Total delta of the accounts."""


class FakeClock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self, now_us: int = NOON_US) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        """The time, in microseconds since 1970 UTC."""
        return self.now_us

    def go(self, days: float = 0, seconds: float = 0) -> None:
        """Move on, or back."""
        self.now_us += round(days * DAY_US) + round(seconds * SECOND_US)


def key_of(name: str) -> bytes:
    """A release key for *name*."""
    return hashlib.sha256(name.encode()).digest()


def account(name: str, units: int = 10, parent: str | None = None, period: Period = Forever()) -> Account:  # noqa: B008
    """An account with so many units of `UNIT`."""
    return Account(name, UNIT * units, TOTAL, parent, period)


def claim(name: str, who: str = "ann", release: str | None = None, worst: Cost = UNIT * 3, **rest: Any) -> Claim:
    """A claim; its release is its name unless given."""
    return Claim(name, who, key_of(release or name), worst, **rest)


def spend(store: BudgetStore, wish: Claim, actual: Cost = UNIT, result: bytes = b"answer") -> Cost:
    """Reserve, start and settle; what was charged."""
    admitted = store.reserve(wish)
    if isinstance(admitted, Replay):
        return admitted.charged
    assert isinstance(admitted, Reservation), admitted
    store.start(admitted.id)
    return store.settle(admitted.id, actual, result).charged


def units(store: BudgetStore, name: str) -> tuple[Fraction | int, ...]:
    """Used, held and forfeited of an account, in units of `UNIT`."""
    balance = store.balance(name)
    for part in (balance.used, balance.held, balance.forfeited):
        assert part.rho / UNIT.rho == part.delta / UNIT.delta
    return balance.used.rho / UNIT.rho, balance.held.rho / UNIT.rho, balance.forfeited.rho / UNIT.rho


def set_limit(store: BudgetStore, name: str, limit: Cost, delta: Fraction, action: AdminAction) -> None:
    """Give an account another limit and total delta; of all data centres if it is split over them."""
    store.alter(store.account(name).limited(limit, delta), action)


def set_mode(store: BudgetStore, name: str, mode: Mode, action: AdminAction) -> None:
    """Let an account refuse, or only observe it."""
    store.alter(dataclasses.replace(store.account(name), mode=mode), action)


def set_period(store: BudgetStore, name: str, period: Period, action: AdminAction) -> None:
    """Give an account another period."""
    store.alter(dataclasses.replace(store.account(name), period=period), action)


class Suite:
    """Where tests of a suite get their stores."""

    def opened(self, clock: FakeClock) -> AbstractContextManager[BudgetStore]:
        """A new, empty store that reads *clock*, and closes at the end."""
        raise NotImplementedError

    @contextlib.contextmanager
    def books(self, period: Period = Forever(), limit: int = 10) -> Iterator[tuple[BudgetStore, FakeClock]]:  # noqa: B008
        """A store with ann and bob of one organisation with one dataset; it verifies in the end."""
        clock = FakeClock()
        with self.opened(clock) as store:
            store.create(account("data", 1_000, period=period), ACT)
            store.create(account("org", 2 * limit, "data", period), ACT)
            for name in ("ann", "bob"):
                store.create(account(name, limit, "org", period), ACT)
            yield store, clock
            store.verify()
