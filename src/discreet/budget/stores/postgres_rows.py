"""Between the rows of the PostgreSQL store and values. Amounts are arrays of exact numerics, sent and read as text."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from discreet.budget.fixed_point import Amount, Tally
from discreet.budget.ledger import Head
from discreet.budget.model import State, StoredRelease
from discreet.budget.stores.rows import Kept, Page, cost_of, holds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

ACCOUNT = "a.id, a.settings, a.bucket, a.end_us, a.tally::text, a.older::text, a.failures::text"
"""The columns of `page_of`."""

HEAD = "a.chain, a.seq, a.hash"
"""The columns of `Head`, of the chain of an account."""

KEPT = "r.id, r.account, r.release_key, r.worst::text, r.holds, r.state, r.lease_until_us, r.lease_ms, r.charged::text"
"""The columns of `kept_of`."""

RELEASE = "s.release_key, s.result, s.cost::text, s.time_us"
"""The columns of `release_of`."""


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


def failures_array(failures: Sequence[int]) -> str:
    """*failures* as an array."""
    return f"{{{','.join(map(str, failures))}}}"


def page_of(row: Sequence[Any]) -> Page:
    """A row of `ACCOUNT`."""
    name, settings, bucket, end_us, tally, older, failures = row
    times = () if failures == "{}" else tuple(map(int, failures[1:-1].split(",")))
    return Page(name, settings, bucket, end_us, tally_of(tally), tally_of(older), times)


def head_of(row: Sequence[Any]) -> Head:
    """A row of `HEAD`."""
    chain, seq, hash_ = row
    return Head(chain, seq, hash_)


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
