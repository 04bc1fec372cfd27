"""How an account stands when nobody writes: its balance as the next transaction would find it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.budget.errors import ClockError
from discreet.budget.fixed_point import EMPTY
from discreet.budget.model import Balance
from discreet.budget.periods import NEVER_US, bucket_end, counts
from discreet.budget.stores.rows import Bucket

if TYPE_CHECKING:
    from discreet.budget.periods import Clock
    from discreet.budget.stores.rows import Page


def balance_of(page: Page, closed: list[Bucket], clock: Clock, as_of: int) -> Balance:
    """See `BudgetStore.balance`.

    Args:
        page: the account, which is changed.
        closed: its closed buckets that count, oldest first; changed likewise.
        clock: the database's.
        as_of: sequence number of the last ledger line.
    """
    _turn(page, closed, clock)
    total = page.tally + page.older
    return Balance(
        page.terms.account,
        total.used.cost,
        total.held.cost,
        total.forfeited.cost,
        page.resets_us(closed, clock.now_us),
        clock.now_us,
        as_of,
        page.suspended_until_us(clock.now_us),
    )


def _turn(page: Page, closed: list[Bucket], clock: Clock) -> None:
    """Put *page* and *closed* as they will be if the next bucket is due to open."""
    if page.end_us == NEVER_US:
        return
    try:
        due = clock.opening(page.end_us)
    except ClockError:
        return
    if not due:
        return
    period, now_us = page.terms.period, clock.now_us
    closed.append(Bucket(page.bucket, page.end_us, True, page.tally))
    closed[:] = [each for each in closed if counts(period, each.end_us, now_us)]
    page.bucket, page.end_us, page.tally, page.older = page.bucket + 1, bucket_end(period, now_us), EMPTY, EMPTY
    for bucket in closed:
        page.older += bucket.tally
