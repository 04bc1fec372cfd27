"""Between the rows of the PostgreSQL store and values. Amounts are arrays of exact numerics, sent and read as text."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from discreet.budget.amount import Amount, Tally
from discreet.budget.ledger import Head
from discreet.budget.model import StoredRelease
from discreet.budget.periods import stops_us
from discreet.budget.states import State
from discreet.budget.stores.sqlite_rows import Kept, cost_of, holds_of, terms_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from discreet.budget.stores.sqlite_rows import Terms

ACCOUNT = "a.id, a.settings, a.chain, a.seq, a.hash, a.bucket, a.end_us, a.tally::text, a.older::text"
"""The columns of `page_of`."""

KEPT = "r.id, r.account, r.release_key, r.worst::text, r.holds, r.state, r.lease_until_us, r.lease_ms, r.charged::text"
"""The columns of `kept_of`."""

RELEASE = "s.release_key, s.result, s.cost::text, s.time_us"
"""The columns of `release_of`."""


@dataclass(slots=True)
class Bucket:
    """A closed bucket of an account."""

    number: int
    end_us: int
    counting: bool
    tally: Tally


@dataclass(slots=True)
class Page:
    """An account's row, while it is worked on.

    Args:
        id: its name.
        settings: as text.
        head: the end of its chain.
        bucket: number of the open bucket.
        end_us: when that ends.
        tally: what it holds.
        older: what the closed buckets hold that count.
        changed: True if the row has to be written.
        closed: all closed buckets, oldest first, or None if nobody has looked yet.
        touched: the closed buckets that have to be written, by number.
    """

    id: str
    settings: str
    head: Head
    bucket: int
    end_us: int
    tally: Tally
    older: Tally
    changed: bool = False
    closed: list[Bucket] | None = None
    touched: dict[int, Bucket] = field(default_factory=dict)

    @property
    def terms(self) -> Terms:
        """Its settings."""
        return terms_of(self.settings)

    @property
    def spent(self) -> Amount:
        """What counts against its limit."""
        return self.tally.total + self.older.total

    def resets_us(self, closed: Iterable[Bucket], now_us: int) -> int | None:
        """When the first charge stops counting, of *closed* or the open bucket; None if never, or if there is none."""
        for bucket in closed:
            if bucket.counting and bucket.tally.total:
                return stops_us(self.terms.period, bucket.end_us, now_us)
        return stops_us(self.terms.period, self.end_us, now_us) if self.tally.total else None


def amount_array(amount: Amount) -> str:
    """*amount* as an array."""
    return f"{{{amount.rho},{amount.delta}}}"


def amount_of(text: str) -> Amount:
    """Back from `amount_array`."""
    rho, delta = text[1:-1].split(",")
    return Amount(int(rho), int(delta))


def tally_array(tally: Tally) -> str:
    """*tally* as an array."""
    used, held, forfeited, refunded = tally.used, tally.held, tally.forfeited, tally.refunded
    return (
        f"{{{used.rho},{used.delta},{held.rho},{held.delta},"
        f"{forfeited.rho},{forfeited.delta},{refunded.rho},{refunded.delta}}}"
    )


@functools.lru_cache(maxsize=1024)  # the older buckets of busy accounts are read again and again
def tally_of(text: str) -> Tally:
    """Back from `tally_array`."""
    a, b, c, d, e, f, g, h = map(int, text[1:-1].split(","))
    return Tally(Amount(a, b), Amount(c, d), Amount(e, f), Amount(g, h))


def page_of(row: Sequence[Any]) -> Page:
    """A row of `ACCOUNT`."""
    name, settings, chain, seq, hash_, bucket, end_us, tally, older = row
    return Page(name, settings, Head(chain, seq, hash_), bucket, end_us, tally_of(tally), tally_of(older))


def kept_of(row: Sequence[Any]) -> Kept | None:
    """A row of `KEPT`; None if all of it is missing."""
    name, account, release_key, worst, holds, state, until_us, lease_ms, charged = row
    if name is None:
        return None
    paid = None if charged is None else amount_of(charged)
    return Kept(name, account, release_key, amount_of(worst), holds_of(holds), State(state), until_us, lease_ms, paid)


def release_of(row: Sequence[Any]) -> StoredRelease | None:
    """A row of `RELEASE`; None if all of it is missing."""
    release_key, result, cost, time_us = row
    return None if release_key is None else StoredRelease(release_key, result, cost_of(amount_of(cost)), time_us)
