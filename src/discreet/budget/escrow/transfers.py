"""What stores hold of budgets that are split over them, and whether it adds up. Pure, but for the port `ShareStore`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from discreet.budget.errors import LedgerBroken
from discreet.budget.escrow.protocol import Incoming, Outgoing
from discreet.budget.fixed_point import NOTHING, Amount
from discreet.budget.store import BudgetStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from discreet.budget.escrow.protocol import Receipt, Transfer
    from discreet.budget.escrow.rebalance import Ask
    from discreet.budget.model import Account


@dataclass(frozen=True, slots=True)
class Holding:
    """An account as a store has it, with all that it gave to other stores and took from them.

    Args:
        account: with its share, or without one if it was never split.
        spent: what counts against its limit; what has stopped counting since somebody asked last may still be in it.
        outgoing: by the id of the other store.
        incoming: likewise.
    """

    account: Account
    spent: Amount
    outgoing: Mapping[str, Outgoing] = field(default_factory=dict)
    incoming: Mapping[str, Incoming] = field(default_factory=dict)

    @property
    def limit(self) -> Amount:
        """What may be spent here."""
        return Amount.of(self.account.limit)

    @property
    def total(self) -> Amount:
        """What may be spent in all data centres."""
        return Amount.of(self.account.share.total if self.account.share else self.account.limit)

    @property
    def left(self) -> Amount:
        """What may still be spent here; negative if it is overdrawn."""
        return self.limit - self.spent


class ShareStore(Protocol):
    """How a store moves shares. Each method is one transaction; whoever does not hear its answer may ask it again.

    Every method raises `StoreUnavailable` when the database cannot be asked or cannot write.
    `tests.budget.share_suite.ShareStoreSuite` tests a store.
    """

    @property
    def id(self) -> str:
        """The store's own name, as `BudgetStore.id`."""
        ...

    def give(self, peer: str, ask: Ask, need: Amount) -> Transfer | None:
        """Give *peer* a part of the share of the account that it asks for, if `rebalance.gift` says so.

        Args:
            peer: id of its store.
            ask: what it says of itself.
            need: of this data centre, see `rebalance.gift`.

        Returns:
            the transfer that is pending now, be it this one or an older one; None if nothing is.

        Raises:
            UnknownAccount: there is none.
            ClockError: a period would begin, and the clock ran ahead.
        """
        ...

    def introduce(self, peer: str, account: str, centres: int) -> Transfer | None:
        """Tell *peer* of an account that was made here: its first share, or later only its settings.

        Args:
            peer: id of its store.
            account: made here.
            centres: how many data centres there are, this one among them.

        Returns:
            as `give`; None also if it knows all there is to know.

        Raises:
            UnknownAccount: there is none.
            ClockError: as `give`.
        """
        ...

    def receive(self, transfer: Transfer) -> Receipt | None:
        """Take a transfer, or decline it, once: see `escrow.judge`.

        Returns:
            what was decided, now or before; None if it is too early to decide.

        Raises:
            InputError: it is for another store.
            StoreBehind: this store has forgotten what it took before.
            ClockError: as `give`.
        """
        ...

    def hear(self, receipt: Receipt) -> None:
        """Forget the transfer that *receipt* is about; if it was declined its amount comes back.

        Raises:
            StoreBehind: this store has forgotten what it gave.
        """
        ...

    def pending(self, peer: str, most: int) -> list[Transfer]:
        """Transfers to *peer* whose receipts were not heard, those of parents first; at most *most*."""
        ...

    def unknown(self, peer: str, most: int) -> list[str]:
        """Accounts made here that *peer* has to be introduced to, parents first; at most *most*."""
        ...

    def holdings(self, after: str = "", most: int | None = None) -> list[Holding]:
        """All accounts by name, from the one after *after*, at most *most*."""
        ...


class SplitStore(BudgetStore, Protocol):
    """A store of budgets whose shares can move."""

    @property
    def shares(self) -> ShareStore:
        """How they do."""
        ...


def in_flight(stores: Mapping[str, Holding]) -> Amount:
    """What left one store and has not arrived in another, of one account.

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

    While shares move, what was read of one store may be older than what was read of another: stop them, or ask again.

    Args:
        stores: all holdings of each, by the store's id; with the home of every account.

    Raises:
        LedgerBroken: they add up to something else.
    """
    accounts = defaultdict[tuple[str, str], dict[str, Holding]](dict)
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
