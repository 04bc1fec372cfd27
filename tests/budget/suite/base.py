"""Accounts, claims and a clock for tests of stores, and the base class of the suites."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from discreet.budget.model import Account, AdminAction, Claim, Forever, Replay, Reservation
from discreet.budget.rules import DAY_US, SECOND_US
from discreet.values import Cost

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from discreet.budget.model import Mode, Period
    from discreet.budget.stores.store import BudgetStore

NOON_US = 1_760_011_200 * SECOND_US
"""2025-10-09 12:00 UTC, a Thursday."""

ACT = AdminAction("suite", "a test")
"""Actor of administrative actions."""

UNIT = Cost(Fraction(1, 1000), Fraction(1, 10**9))
"""A cost of which all limits are multiples."""

TOTAL = Fraction(1, 100)
"""Total delta of the accounts."""


class FakeClock:
    """A clock that only `advance` moves."""

    def __init__(self, now_us: int = NOON_US) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        """Return the time in microseconds since 1970 UTC."""
        return self.now_us

    def advance(self, days: float = 0, seconds: float = 0) -> None:
        """Move the time forward, or back if negative."""
        self.now_us += round(days * DAY_US) + round(seconds * SECOND_US)


def key_of(name: str) -> bytes:
    """Return a release key for *name*."""
    return hashlib.sha256(name.encode()).digest()


def account(name: str, units: int = 10, parent: str | None = None, period: Period = Forever()) -> Account:  # noqa: B008
    """Return an account with a limit of *units* times `UNIT`."""
    return Account(name, UNIT * units, TOTAL, parent, period)


def claim(name: str, who: str = "ann", release: str | None = None, worst: Cost = UNIT * 3, **rest: Any) -> Claim:
    """Return a claim; its release is its name by default."""
    return Claim(name, who, key_of(release or name), worst, **rest)


def spend(store: BudgetStore, wish: Claim, actual: Cost = UNIT, result: bytes = b"answer") -> Cost:
    """Reserve, start and settle, and return what was charged."""
    admitted = store.reserve(wish)
    if isinstance(admitted, Replay):
        return admitted.charged
    assert isinstance(admitted, Reservation), admitted
    store.start(admitted.id)
    return store.settle(admitted.id, actual, result).charged


def units(store: BudgetStore, name: str) -> tuple[Fraction | int, ...]:
    """Return used, held and forfeited of an account, in units of `UNIT`."""
    balance = store.balance(name)
    for part in (balance.used, balance.held, balance.forfeited):
        assert part.rho / UNIT.rho == part.delta / UNIT.delta
    return balance.used.rho / UNIT.rho, balance.held.rho / UNIT.rho, balance.forfeited.rho / UNIT.rho


def set_limit(store: BudgetStore, name: str, limit: Cost, delta: Fraction, action: AdminAction) -> None:
    """Set the limit and total delta of an account, for all data centres if it is split over them."""
    store.alter(store.account(name).with_limit(limit, delta), action)


def set_mode(store: BudgetStore, name: str, mode: Mode, action: AdminAction) -> None:
    """Set whether an account refuses or only observes."""
    store.alter(dataclasses.replace(store.account(name), mode=mode), action)


def set_period(store: BudgetStore, name: str, period: Period, action: AdminAction) -> None:
    """Set the period of an account."""
    store.alter(dataclasses.replace(store.account(name), period=period), action)


class Suite:
    """Base of the suites; a subclass opens the store."""

    def opened(self, clock: FakeClock) -> AbstractContextManager[BudgetStore]:
        """Open an empty store that reads *clock*, and close it at the end."""
        raise NotImplementedError

    @contextlib.contextmanager
    def accounts(self, period: Period = Forever(), limit: int = 10) -> Iterator[tuple[BudgetStore, FakeClock]]:  # noqa: B008
        """Open a store with ann and bob of one organisation with one dataset, and verify it at the end."""
        clock = FakeClock()
        with self.opened(clock) as store:
            store.create(account("data", 1_000, period=period), ACT)
            store.create(account("org", 2 * limit, "data", period), ACT)
            for name in ("ann", "bob"):
                store.create(account(name, limit, "org", period), ACT)
            yield store, clock
            store.verify()
