"""Transfers between the stores of a split budget, and the check that the shares add up."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING

from discreet.budget.errors import LedgerBroken
from discreet.budget.model import NOTHING, Amount, Forever
from discreet.budget.sharing.escrow import Incoming, ShareRequest
from discreet.values import Cost
from tests.budget.suite.base import ACT, UNIT, FakeClock, account

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from fractions import Fraction

    from discreet.budget.model import Period
    from discreet.budget.sharing.escrow import Holding, Receipt, Transfer
    from discreet.budget.stores.store import BudgetStore

ONE = Amount.of(UNIT)
"""The amount of which all shares are multiples."""

PLENTY = 1_000


def in_flight(stores: Mapping[str, Holding]) -> Amount:
    """Return what left one store and has not arrived in another, of one account.

    Args:
        stores: by their ids. What goes to a store that is not among them is in flight.
    """
    flying = NOTHING
    for name, holding in stores.items():
        for peer, out in holding.outgoing.items():
            other = stores[peer].incoming.get(name, Incoming()) if peer in stores else Incoming()
            arrived = other.number >= out.number and other.taken
            flying += NOTHING if out.pending is None or arrived else out.pending
    return flying


def check_whole(stores: Mapping[str, Sequence[Holding]]) -> None:
    """Raise unless the shares of every account add up to its total, in all stores of an installation at rest.

    While shares move, stores are read at different times: stop transfers first, or read again.

    Args:
        stores: all holdings of each, by the store's id; with the home of every account.

    Raises:
        LedgerBroken: they add up to something else.
    """
    accounts: defaultdict[tuple[str, str], dict[str, Holding]] = defaultdict(dict)
    for store, holdings in stores.items():
        for holding in holdings:
            if holding.account.share is not None:
                accounts[holding.account.id, holding.account.share.home][store] = holding
    for (name, home), parts in accounts.items():
        if home not in parts:
            raise LedgerBroken(f"account {name!r} is split, and the store that it was made in is not here")
        total = in_flight(parts)
        for part in parts.values():
            total += part.limit
        if total != parts[home].total:
            raise LedgerBroken(f"the shares of account {name!r} do not add up to its total")


def carry(donor: BudgetStore, recipient: BudgetStore) -> list[Receipt]:
    """Deliver the pending transfers and their receipts, and return the receipts."""
    receipts = []
    for transfer in donor.shares.pending(recipient.id, PLENTY):
        receipt = recipient.shares.receive(transfer)
        if receipt is not None:
            receipts.append(receipt)
            donor.shares.acknowledge(receipt)
    return receipts


def announce(home: BudgetStore, *others: BudgetStore) -> None:
    """Send the accounts made at home, and changes to them, to the other stores."""
    for other in others:
        for name in home.shares.unannounced(other.id, PLENTY):
            home.shares.announce(other.id, name, 1 + len(others))
        carry(home, other)


def asks(store: BudgetStore, name: str = "ann", need: Amount = NOTHING) -> ShareRequest:
    """Return the request the store would send."""
    return ShareRequest(name, holding(store, name).left, need)


def moved(donor: BudgetStore, recipient: BudgetStore, name: str = "ann") -> Transfer:
    """Return a transfer that was requested and is not delivered yet."""
    transfer = donor.shares.grant(recipient.id, asks(recipient, name), NOTHING)
    assert transfer is not None
    return transfer


def holding(store: BudgetStore, name: str = "ann") -> Holding:
    """Return an account with the amounts it sent and received."""
    return next(each for each in store.shares.holdings() if each.account.id == name)


def limits(stores: Sequence[BudgetStore], name: str = "ann") -> list[Fraction | int]:
    """Return the account's share in each store, in units of `UNIT`; 0 where it has none."""
    found = [[a.limit for a in store.accounts() if a.id == name] or [Cost()] for store in stores]
    return [limit.rho / UNIT.rho for (limit,) in found]


def add_up(stores: Sequence[BudgetStore]) -> None:
    """Check I8: the shares of every account sum to its total, and no store has spent more than its share."""
    whole = {store.id: store.shares.holdings() for store in stores}
    check_whole(whole)
    for holdings in whole.values():
        for each in holdings:
            assert each.spent.within(each.limit), each
    for store in stores:
        store.verify()


class ShareSuite:
    """Base of the suites; a subclass opens the stores."""

    def opened(self, clock: FakeClock) -> AbstractContextManager[BudgetStore]:
        """Open an empty store that reads *clock*, and close it at the end; several are open at a time."""
        raise NotImplementedError

    @contextlib.contextmanager
    def centres(
        self,
        number: int = 2,
        period: Period = Forever(),  # noqa: B008
    ) -> Iterator[tuple[list[BudgetStore], list[FakeClock]]]:
        """Open stores; the first has the accounts ann with 12 units and its organisation with 24."""
        clocks = [FakeClock() for _ in range(number)]
        with contextlib.ExitStack() as stack:
            stores = [stack.enter_context(self.opened(clock)) for clock in clocks]
            stores[0].create(account("org", 24, period=period), ACT)
            stores[0].create(account("ann", 12, "org", period), ACT)
            yield stores, clocks
            add_up(stores)
