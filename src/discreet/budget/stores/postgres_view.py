"""What is read from the PostgreSQL store without writing."""

# ruff: noqa: S608 - statements are put together here, from constants; values are bound

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from discreet.budget.errors import LedgerBroken, UnknownAccount
from discreet.budget.ledger import Line
from discreet.budget.ledger_replay import check_holdings
from discreet.budget.ledger_replay import verify as verify_lines
from discreet.budget.model import Paid
from discreet.budget.periods import Clock
from discreet.budget.stores import audit
from discreet.budget.stores.postgres_rows import ACCOUNT, RELEASE, amount_of, page_of, release_of, tally_of
from discreet.budget.stores.postgres_shares import holdings
from discreet.budget.stores.rows import Bucket, holds_of
from discreet.budget.stores.standing import balance_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import psycopg

    from discreet.budget.ledger_replay import Verified
    from discreet.budget.model import Balance

_BALANCE = f"""
SELECT {ACCOUNT}, budget_now_us(), m.seen_us, a.seq, b.bucket, b.end_us, b.tally::text
FROM budget_accounts a CROSS JOIN budget_meta m LEFT JOIN budget_buckets b ON b.account = a.id AND b.counting
WHERE a.id = %s ORDER BY b.bucket
"""

_HISTORY = f"""
SELECT e.number, e.paid_us, {RELEASE}
FROM (
    SELECT number, time_us AS paid_us, release_key FROM budget_entitlements WHERE account = %s AND number < %s
    ORDER BY number DESC LIMIT %s
) AS e JOIN budget_releases s USING (release_key) ORDER BY e.number DESC
"""

_HEADS = "SELECT chain, seq, hash FROM budget_accounts UNION ALL SELECT 0, seq, hash FROM budget_meta"

HEADS = f"SELECT chain, seq, hash FROM ({_HEADS}) AS h WHERE seq > 0 ORDER BY chain"
"""The end of every chain that has a line, by chain."""

_ROWS_AT_ONCE = 10_000


def balance(db: psycopg.Connection[Any], account: str, seen_us: int, guard_us: int) -> Balance:
    """See `BudgetStore.balance`."""
    rows = db.execute(_BALANCE, (account,)).fetchall()
    if not rows:
        raise UnknownAccount(account)
    raw_us, recorded_us, as_of = rows[0][7:10]
    closed = [Bucket(row[10], row[11], True, tally_of(row[12])) for row in rows if row[10] is not None]
    clock = Clock(raw_us, max(recorded_us, seen_us), guard_us)
    return balance_of(page_of(rows[0][:7]), closed, clock, as_of)


def history(db: psycopg.Connection[Any], account: str, before: int, most: int) -> list[Paid]:
    """See `BudgetStore.history`."""
    rows = db.execute(_HISTORY, (account, before, most)).fetchall()
    if not rows and not db.execute("SELECT 1 FROM budget_accounts WHERE id = %s", (account,)).fetchall():
        raise UnknownAccount(account)
    found = ((number, time_us, release_of(row)) for number, time_us, *row in rows)
    return [Paid(number, release, release.cost, time_us) for number, time_us, release in found if release is not None]


def verify(db: psycopg.Connection[Any]) -> Verified:
    """See `BudgetStore.verify`; *db* is in a transaction that sees one state of the tables."""
    said = lines_of(db)
    heads = tuple((head.chain, head.seq, head.hash) for head in said.heads)
    if heads != tuple(db.execute(HEADS).fetchall()):
        raise LedgerBroken("a chain does not end where its account says")
    accounts, paths = [], {}
    for path, *row in db.execute(f"SELECT a.path, {ACCOUNT} FROM budget_accounts a"):
        accounts.append(page_of(row))
        paths[accounts[-1].id] = accounts[-1].terms.account.parent, path
    if any(path != [name, *(paths[parent][1] if parent else ())] for name, (parent, path) in paths.items()):
        raise LedgerBroken("the path of an account is not that of its parents")
    ((records_version,),) = db.execute("SELECT records FROM budget_meta")
    tables = audit.Tables(
        accounts,
        ((a, n, tally_of(text)) for a, n, text in _rows(db, "SELECT account, bucket, tally::text FROM budget_buckets")),
        (
            (name, state, holds_of(holds))
            for name, state, holds in _rows(
                db, "SELECT id, state, holds FROM budget_reservations WHERE state IN ('held', 'running')"
            )
        ),
        (
            (key, digest, amount_of(cost))
            for key, digest, cost in _rows(db, "SELECT release_key, sha256(result), cost::text FROM budget_releases")
        ),
        _rows(db, "SELECT account, release_key FROM budget_entitlements"),
        (
            (account, bucket, key, amount_of(amount))
            for account, bucket, key, amount in _rows(
                db, "SELECT account, bucket, release_key, amount::text FROM budget_forfeits"
            )
        ),
        _rows(db, "SELECT kind, name, text FROM budget_records"),
        records_version,
        _rows(db, "SELECT id, digest FROM budget_acts"),
    )
    audit.check(said, tables)
    ((store,),) = db.execute("SELECT id FROM budget_meta")
    check_holdings(store, holdings(db), said.moves)
    return said


def lines_of(db: psycopg.Connection[Any]) -> Verified:
    """What the ledger says; in a transaction."""
    return verify_lines(_chains(db))


def _chains(db: psycopg.Connection[Any]) -> Iterator[tuple[int, Iterator[Line]]]:
    """All lines, by chain."""
    lines = itertools.starmap(Line, _rows(db, "SELECT chain, seq, body, hash FROM budget_ledger ORDER BY chain, seq"))
    return itertools.groupby(lines, lambda line: line.chain)


def _rows(db: psycopg.Connection[Any], query: str) -> Iterable[Any]:
    """Rows as they are asked for, in a transaction."""
    with db.cursor("rows", binary=True) as cursor:
        cursor.itersize = _ROWS_AT_ONCE
        cursor.execute(query)
        yield from cursor
