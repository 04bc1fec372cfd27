"""The shares that stores hold of split budgets, and whether they add up. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from discreet.budget.errors import LedgerBroken
from discreet.budget.escrow.protocol import Incoming, Outgoing
from discreet.budget.fixed_point import NOTHING, Amount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from discreet.budget.model import Account


@dataclass(frozen=True, slots=True)
class Holding:
    """An account in a store, with what it gave to other stores and took from them.

    Args:
        account: with its share, or without one if it was never split.
        spent: what counts against its limit, as of the last transaction of the account.
        outgoing: by the id of the other store.
        incoming: by the id of the other store.
    """

    account: Account
    spent: Amount
    outgoing: dict[str, Outgoing] = field(default_factory=dict)
    incoming: dict[str, Incoming] = field(default_factory=dict)

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
