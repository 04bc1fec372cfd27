"""Between the rows of the SQLite store and values. Amounts are texts, because they do not fit 64 bits."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from discreet.budget.fixed_point import Amount, Tally
from discreet.budget.model import State, StoredRelease
from discreet.budget.stores.rows import Kept, Page, cost_of, holds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

ACCOUNT = "id, settings, bucket, end_us, tally, older, failures"
"""The columns of `page_of`, of the table of accounts."""

KEPT = "id, account, release_key, worst, holds, state, lease_until_us, lease_ms, charged"
"""The columns of `kept_of`, of the table of reservations."""

RELEASE = "release_key, result, cost, time_us"
"""The columns of `release_of`, of the table of releases."""


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


def failures_text(failures: Sequence[int]) -> str:
    """*failures* as a store keeps them."""
    return " ".join(map(str, failures))


def page_of(row: Sequence[Any]) -> Page:
    """A row of `ACCOUNT`."""
    name, settings, bucket, end_us, tally, older, failures = row
    times = tuple(map(int, failures.split(" "))) if failures else ()
    return Page(name, settings, bucket, end_us, tally_of(tally), tally_of(older), times)


def kept_of(row: Sequence[Any]) -> Kept:
    """A row of `KEPT`."""
    name, account, release_key, worst, holds, state, until_us, lease_ms, charged = row
    paid = None if charged is None else amount_of(charged)
    return Kept(name, account, release_key, amount_of(worst), holds_of(holds), State(state), until_us, lease_ms, paid)


def release_of(row: Sequence[Any]) -> StoredRelease:
    """A row of `RELEASE`."""
    release_key, result, cost, time_us = row
    return StoredRelease(release_key, result, cost_of(amount_of(cost)), time_us)
