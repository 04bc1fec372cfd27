"""What is read from the PostgreSQL store without writing: balances, and the ledger against all tables."""

# ruff: noqa: S608 - statements are put together here, from constants; values are bound

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from discreet.budget.amount import EMPTY, Tally
from discreet.budget.errors import ClockError, LedgerBroken, UnknownAccount
from discreet.budget.ledger import Line
from discreet.budget.ledger import verify as verify_lines
from discreet.budget.model import Balance
from discreet.budget.periods import NEVER_US, Clock, bucket_end, counts
from discreet.budget.stores.postgres_rows import ACCOUNT, Bucket, page_of, tally_of
from discreet.budget.stores.sqlite_rows import holds_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from discreet.budget.ledger import Verified
    from discreet.budget.stores.postgres_rows import Page

_BALANCE = f"""
SELECT {ACCOUNT}, budget_now_us(), m.seen_us, b.bucket, b.end_us, b.tally::text
FROM budget_accounts a CROSS JOIN budget_meta m LEFT JOIN budget_buckets b ON b.account = a.id AND b.counting
WHERE a.id = %s ORDER BY b.bucket
"""

_HEADS = "SELECT chain, seq, hash FROM budget_accounts UNION ALL SELECT 0, seq, hash FROM budget_meta"

HEADS = f"SELECT chain, seq, hash FROM ({_HEADS}) AS h WHERE seq > 0 ORDER BY chain"
"""The end of every chain that has a line, by chain."""

_LINES_AT_ONCE = 10_000


def balance(db: psycopg.Connection[Any], account: str, seen_us: int, guard_us: int) -> Balance:
    """See `BudgetStore.balance`."""
    rows = db.execute(_BALANCE, (account,)).fetchall()
    if not rows:
        raise UnknownAccount(account)
    page, raw_us, recorded_us = page_of(rows[0][:9]), rows[0][9], rows[0][10]
    clock = Clock(raw_us, max(recorded_us, seen_us), guard_us)
    closed = [Bucket(row[11], row[12], True, tally_of(row[13])) for row in rows if row[11] is not None]
    as_of = page.head.seq
    _turn(page, closed, clock)
    total = page.tally + page.older
    resets_us = page.resets_us(closed, clock.now_us)
    used, held, forfeited = total.used.cost, total.held.cost, total.forfeited.cost
    return Balance(page.terms.account, used, held, forfeited, resets_us, clock.now_us, as_of)


def verify(db: psycopg.Connection[Any]) -> Verified:
    """See `BudgetStore.verify`; *db* is in a transaction that sees one state of the tables."""
    verified = verify_lines(_chains(db))
    heads = tuple((head.chain, head.seq, head.hash) for head in verified.heads)
    if heads != tuple(db.execute(HEADS).fetchall()):
        raise LedgerBroken("a chain does not end where its account says")
    tallies: dict[tuple[str, int], Tally] = {}
    for account, bucket, text in db.execute("SELECT account, bucket, tally::text FROM budget_buckets"):
        tallies[account, bucket] = tally_of(text)
    said, paths = {}, {}
    for path, *row in db.execute(f"SELECT a.path, {ACCOUNT} FROM budget_accounts a"):
        page = page_of(row)
        tallies[page.id, page.bucket] = page.tally
        said[page.id] = (page.settings, page.bucket, page.end_us)
        paths[page.id] = page.terms.account.parent, path
        if page.id not in verified.courses or verified.in_force(page.id) != page.tally + page.older:
            raise LedgerBroken(f"the balance of account {page.id!r} is not what its lines add up to")
    if said != {name: (course.settings, course.bucket, course.end_us) for name, course in verified.courses.items()}:
        raise LedgerBroken("an account is not as the ledger says")
    if any(path != [name, *(paths[parent][1] if parent else ())] for name, (parent, path) in paths.items()):
        raise LedgerBroken("the path of an account is not that of its parents")
    if {where: tally for where, tally in tallies.items() if tally} != verified.tallies:
        raise LedgerBroken("a bucket does not hold what its lines add up to")
    _check_reservations(db, verified, tallies)
    return verified


def _chains(db: psycopg.Connection[Any]) -> Iterator[tuple[int, Iterator[Line]]]:
    """All lines, by chain."""
    with db.cursor("ledger", binary=True) as cursor:
        cursor.itersize = _LINES_AT_ONCE
        cursor.execute("SELECT chain, seq, body, hash FROM budget_ledger ORDER BY chain, seq")
        lines = itertools.starmap(Line, cursor)
        yield from itertools.groupby(lines, lambda line: line.chain)


def _check_reservations(db: psycopg.Connection[Any], verified: Verified, tallies: dict[tuple[str, int], Tally]) -> None:
    """What is held is what open reservations hold, and those are the open ones of the ledger."""
    states, held = {}, dict.fromkeys(tallies, EMPTY)
    for name, state, holds in db.execute(
        "SELECT id, state, holds FROM budget_reservations WHERE state IN ('held', 'running')"
    ):
        states[name] = state
        for hold in holds_of(holds):
            where = hold.account, hold.bucket
            held[where] = held.get(where, EMPTY) + Tally(held=hold.amount)
    if states != {name: state.value for name, state in verified.running.items()}:
        raise LedgerBroken("a reservation is not as the ledger says")
    if any(tallies.get(where, EMPTY).held != part.held for where, part in held.items()):
        raise LedgerBroken("an account holds what no reservation holds")


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
