"""A small world for tests of split budgets: stores that tell each other, and whether it adds up."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from discreet.budget.escrow import Ask, check_whole
from discreet.budget.fixed_point import NOTHING, Amount
from discreet.budget.model import Forever
from discreet.values import Cost
from tests.budget.suite.world import ACT, UNIT, FakeClock, account

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from fractions import Fraction

    from discreet.budget.escrow import Holding, Receipt, Transfer
    from discreet.budget.model import Period
    from discreet.budget.stores.store import BudgetStore

ONE = Amount.of(UNIT)
"""Shares are multiples of it."""

PLENTY = 1_000


def carry(donor: BudgetStore, recipient: BudgetStore) -> list[Receipt]:
    """Deliver all that is pending, and the receipts."""
    receipts = []
    for transfer in donor.shares.pending(recipient.id, PLENTY):
        receipt = recipient.shares.receive(transfer)
        if receipt is not None:
            receipts.append(receipt)
            donor.shares.hear(receipt)
    return receipts


def introduce(home: BudgetStore, *others: BudgetStore) -> None:
    """Tell the others of all accounts that were made at home, or of what is new about them."""
    for other in others:
        for name in home.shares.unknown(other.id, PLENTY):
            home.shares.introduce(other.id, name, 1 + len(others))
        carry(home, other)


def asks(store: BudgetStore, name: str = "ann", need: Amount = NOTHING) -> Ask:
    """What the store would ask for."""
    return Ask(name, holding(store, name).left, need)


def moved(donor: BudgetStore, recipient: BudgetStore, name: str = "ann") -> Transfer:
    """A transfer for the asking, on its way."""
    transfer = donor.shares.give(recipient.id, asks(recipient, name), NOTHING)
    assert transfer is not None
    return transfer


def holding(store: BudgetStore, name: str = "ann") -> Holding:
    """An account, with all that was given and taken."""
    return next(each for each in store.shares.holdings() if each.account.id == name)


def limits(stores: Sequence[BudgetStore], name: str = "ann") -> list[Fraction | int]:
    """An account's share in each store, in units of `UNIT`; nothing where there is none."""
    found = [[a.limit for a in store.accounts() if a.id == name] or [Cost()] for store in stores]
    return [limit.rho / UNIT.rho for (limit,) in found]


def add_up(stores: Sequence[BudgetStore]) -> None:
    """I8: the shares of every account are its total, and nobody has spent more than a share."""
    whole = {store.id: store.shares.holdings() for store in stores}
    check_whole(whole)
    for holdings in whole.values():
        for each in holdings:
            assert each.spent.within(each.limit), each
    for store in stores:
        store.verify()


class ShareSuite:
    """Where tests of a suite get their stores."""

    def opened(self, clock: FakeClock) -> AbstractContextManager[BudgetStore]:
        """A new, empty store that reads *clock*, and closes at the end; several are open at a time."""
        raise NotImplementedError

    @contextlib.contextmanager
    def centres(
        self,
        number: int = 2,
        period: Period = Forever(),  # noqa: B008
    ) -> Iterator[tuple[list[BudgetStore], list[FakeClock]]]:
        """Some stores; the first has ann of an organisation, with 12 units for her and 24 for that."""
        clocks = [FakeClock() for _ in range(number)]
        with contextlib.ExitStack() as stack:
            stores = [stack.enter_context(self.opened(clock)) for clock in clocks]
            stores[0].create(account("org", 24, period=period), ACT)
            stores[0].create(account("ann", 12, "org", period), ACT)
            yield stores, clocks
            add_up(stores)
