"""Between the rows of the SQLite store and values."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from discreet.budget.amount import Amount, Tally
from discreet.budget.model import Hold, Reservation
from discreet.budget.settings import account_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from discreet.budget.model import Account, Period
    from discreet.budget.states import State
    from discreet.values import Cost

_FIELDS_OF_A_HOLD = 6


@dataclass(frozen=True, slots=True)
class Terms:
    """What an account's settings say, read once."""

    account: Account
    limit: Amount
    enforced: bool
    period: Period


@functools.lru_cache(maxsize=4096)
def terms_of(settings: str) -> Terms:
    """The terms that are written as *settings*."""
    account = account_of(settings)
    return Terms(account, Amount.of(account.limit), account.enforced, account.period)


def all_of(db: apsw.Connection, query: str, values: tuple[str | bytes | int, ...] = ()) -> list[tuple[Any, ...]]:
    """All rows; our tables say what types their columns have."""
    return db.execute(query, values).fetchall()


def one_of(db: apsw.Connection, query: str, values: tuple[str | bytes | int, ...] = ()) -> tuple[Any, ...] | None:
    """The first row, if there is one."""
    return db.execute(query, values).fetchone()


def amount_text(amount: Amount) -> str:
    """*amount* as a store keeps it."""
    return f"{amount.rho} {amount.delta}"


def amount_of(text: str) -> Amount:
    """Back from `amount_text`."""
    rho, delta = text.split(" ")
    return Amount(int(rho), int(delta))


@functools.lru_cache(maxsize=1024)  # questions of one kind have one worst case
def cost_of(amount: Amount) -> Cost:
    """*amount* as a cost."""
    return amount.cost


def tally_text(tally: Tally) -> str:
    """*tally* as a store keeps it: four amounts."""
    used, held, forfeited, refunded = tally.used, tally.held, tally.forfeited, tally.refunded
    return (
        f"{used.rho} {used.delta} {held.rho} {held.delta} "
        f"{forfeited.rho} {forfeited.delta} {refunded.rho} {refunded.delta}"
    )


@functools.lru_cache(maxsize=1024)  # the older buckets of busy accounts are read again and again
def tally_of(text: str) -> Tally:
    """Back from `tally_text`."""
    a, b, c, d, e, f, g, h = map(int, text.split(" "))
    return Tally(Amount(a, b), Amount(c, d), Amount(e, f), Amount(g, h))


def holds_text(holds: Sequence[Hold]) -> str:
    """*holds* as a store keeps them; no name holds a tab."""
    return "\t".join(
        f"{hold.account}\t{hold.bucket}\t{hold.amount.rho}\t{hold.amount.delta}\t{hold.funded.rho}\t{hold.funded.delta}"
        for hold in holds
    )


def holds_of(text: str) -> tuple[Hold, ...]:
    """Back from `holds_text`."""
    fields = text.split("\t")
    return tuple(
        Hold(
            fields[n],
            int(fields[n + 1]),
            Amount(int(fields[n + 2]), int(fields[n + 3])),
            Amount(int(fields[n + 4]), int(fields[n + 5])),
        )
        for n in range(0, len(fields), _FIELDS_OF_A_HOLD)
    )


@dataclass(frozen=True, slots=True)
class Kept:
    """A row of the table of reservations."""

    id: str
    account: str
    release_key: bytes
    worst: Amount
    holds: tuple[Hold, ...]
    state: State
    lease_until_us: int
    lease_ms: int
    charged: Amount | None

    @property
    def reservation(self) -> Reservation:
        """As callers see it."""
        return Reservation(
            self.id, self.account, self.release_key, cost_of(self.worst), self.holds, self.state, self.lease_until_us
        )
