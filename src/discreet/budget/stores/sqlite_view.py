"""What is read from the SQLite store without writing: balances, and the ledger against all tables."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

from discreet.budget.amount import EMPTY, Tally
from discreet.budget.errors import ClockError, LedgerBroken, UnknownAccount
from discreet.budget.ledger import Line
from discreet.budget.ledger import verify as verify_lines
from discreet.budget.model import Balance
from discreet.budget.periods import NEVER_US, Clock, bucket_end, counts
from discreet.budget.stores.sqlite_books import closed_buckets, page_of, resets_us
from discreet.budget.stores.sqlite_rows import all_of, holds_of, tally_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import apsw

    from discreet.budget.ledger import Verified
    from discreet.budget.stores.sqlite_books import Page


def balance(db: apsw.Connection, account: str, raw_us: int, guard_us: int) -> Balance:
    """See `BudgetStore.balance`."""
    with db:
        page = page_of(db, account)
        ((seen_us,),) = all_of(db, "SELECT value FROM meta WHERE name = 'seen_us'")
        ((as_of,),) = all_of(db, "SELECT coalesce(max(seq), 0) FROM ledger")
        closed = closed_buckets(db, account)
    if page is None:
        raise UnknownAccount(account)
    clock = Clock(raw_us, seen_us, guard_us)
    closed = _turned(page, closed, clock)
    total = functools.reduce(operator.add, (tally for _, _, tally in closed), page.tally)
    return Balance(
        page.terms.account,
        total.used.cost,
        total.held.cost,
        total.forfeited.cost,
        resets_us(page, closed, clock.now_us),
        clock.now_us,
        as_of,
    )


def verify(db: apsw.Connection) -> Verified:
    """See `BudgetStore.verify`; in one reading transaction."""
    rows: Iterable[tuple[Any, ...]] = db.execute("SELECT seq, body, hash FROM ledger ORDER BY seq")
    verified = verify_lines([(0, (Line(0, seq, body, hash_) for seq, body, hash_ in rows))])
    tallies: dict[tuple[str, int], Tally] = {}
    for account, bucket, text in all_of(db, "SELECT account, bucket, tally FROM buckets"):
        tallies[account, bucket] = tally_of(text)
    settings = {}
    for account, text, bucket, end_us, tally, older in all_of(
        db, "SELECT id, settings, bucket, end_us, tally, older FROM accounts"
    ):
        tallies[account, bucket] = tally_of(tally)
        settings[account] = (text, bucket, end_us)
        in_force = tally_of(tally) + tally_of(older)
        if account not in verified.courses or verified.in_force(account) != in_force:
            raise LedgerBroken(f"the balance of account {account!r} is not what its lines add up to")
    said = {name: (course.settings, course.bucket, course.end_us) for name, course in verified.courses.items()}
    if settings != said:
        raise LedgerBroken("an account is not as the ledger says")
    if {where: tally for where, tally in tallies.items() if tally} != verified.tallies:
        raise LedgerBroken("a bucket does not hold what its lines add up to")
    _check_reservations(db, verified, tallies)
    return verified


def _check_reservations(db: apsw.Connection, verified: Verified, tallies: dict[tuple[str, int], Tally]) -> None:
    """What is held is what open reservations hold, and those are the open ones of the ledger."""
    states, held = {}, dict.fromkeys(tallies, EMPTY)
    for name, state, holds in all_of(
        db, "SELECT id, state, holds FROM reservations WHERE state IN ('held', 'running')"
    ):
        states[name] = state
        for hold in holds_of(holds):
            where = hold.account, hold.bucket
            held[where] = held.get(where, EMPTY) + Tally(held=hold.amount)
    if states != {name: state.value for name, state in verified.running.items()}:
        raise LedgerBroken("a reservation is not as the ledger says")
    if any(tallies.get(where, EMPTY).held != part.held for where, part in held.items()):
        raise LedgerBroken("an account holds what no reservation holds")


def _turned(page: Page, closed: list[tuple[int, int, Tally]], clock: Clock) -> list[tuple[int, int, Tally]]:
    """The closed buckets that count, as if the next bucket had opened if it is due; *page* likewise."""
    if page.end_us == NEVER_US:
        return closed
    try:
        due = clock.opening(page.end_us)
    except ClockError:
        return closed
    if not due:
        return closed
    period, now_us = page.terms.period, clock.now_us
    closed = [*closed, (page.bucket, page.end_us, page.tally)]
    page.bucket, page.end_us, page.tally = page.bucket + 1, bucket_end(period, now_us), EMPTY
    return [row for row in closed if counts(period, row[1], now_us)]
