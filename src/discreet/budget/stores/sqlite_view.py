"""What is read from the SQLite store without writing."""

# ruff: noqa: S608 - statements are put together here, from constants; values are bound

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from discreet.budget.errors import UnknownAccount
from discreet.budget.ledger import Line
from discreet.budget.ledger_replay import check_holdings
from discreet.budget.ledger_replay import verify as verify_lines
from discreet.budget.model import Paid
from discreet.budget.periods import Clock
from discreet.budget.stores import audit
from discreet.budget.stores.rows import Bucket, holds_of, terms_of
from discreet.budget.stores.sqlite_rows import (
    ACCOUNT,
    KEPT,
    RELEASE,
    all_of,
    amount_of,
    kept_of,
    one_of,
    page_of,
    release_of,
    tally_of,
)
from discreet.budget.stores.sqlite_shares import holdings
from discreet.budget.stores.standing import balance_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import apsw

    from discreet.budget.ledger_replay import Verified
    from discreet.budget.model import Account, Balance, Reservation, StoredRelease

_HISTORY = """
SELECT e.number, e.paid_us, r.release_key, r.result, r.cost, r.time_us
FROM (
    SELECT number, time_us AS paid_us, release_key FROM entitlements WHERE account = ? AND number < ?
    ORDER BY number DESC LIMIT ?
) AS e JOIN releases r USING (release_key) ORDER BY e.number DESC
"""


def path(db: apsw.Connection, account: str) -> tuple[Account, ...]:
    """See `BudgetStore.path`."""
    found: list[Account] = []
    name: str | None = account
    while name is not None:
        row = one_of(db, "SELECT settings FROM accounts WHERE id = ?", (name,))
        if row is None:
            raise UnknownAccount(name)
        found.append(terms_of(row[0]).account)
        name = found[-1].parent
    return tuple(found)


def balance(db: apsw.Connection, account: str, raw_us: int, guard_us: int) -> Balance:
    """See `BudgetStore.balance`."""
    with db:
        row = one_of(db, f"SELECT {ACCOUNT} FROM accounts WHERE id = ?", (account,))
        ((seen_us,),) = all_of(db, "SELECT value FROM meta WHERE name = 'seen_us'")
        ((as_of,),) = all_of(db, "SELECT coalesce(max(seq), 0) FROM ledger")
        query = "SELECT bucket, end_us, tally FROM buckets WHERE account = ? AND counting ORDER BY bucket"
        closed = [Bucket(number, end, True, tally_of(text)) for number, end, text in all_of(db, query, (account,))]
    if row is None:
        raise UnknownAccount(account)
    return balance_of(page_of(row), closed, Clock(raw_us, seen_us, guard_us), as_of)


def reservation(db: apsw.Connection, name: str) -> Reservation | None:
    """See `BudgetStore.reservation`."""
    row = one_of(db, f"SELECT {KEPT} FROM reservations WHERE id = ?", (name,))
    return None if row is None else kept_of(row).reservation


def release(db: apsw.Connection, release_key: bytes) -> StoredRelease | None:
    """See `BudgetStore.release`."""
    row = one_of(db, f"SELECT {RELEASE} FROM releases WHERE release_key = ?", (release_key,))
    return None if row is None else release_of(row)


def history(db: apsw.Connection, account: str, before: int, most: int) -> list[Paid]:
    """See `BudgetStore.history`."""
    rows = all_of(db, _HISTORY, (account, before, most))
    if not rows and one_of(db, "SELECT 1 FROM accounts WHERE id = ?", (account,)) is None:
        raise UnknownAccount(account)
    found = ((number, time_us, release_of(row)) for number, time_us, *row in rows)
    return [Paid(number, release, release.cost, time_us) for number, time_us, release in found]


def verify(db: apsw.Connection) -> Verified:
    """See `BudgetStore.verify`; in one reading transaction."""
    said = lines_of(db)
    ((records_version,),) = all_of(db, "SELECT value FROM meta WHERE name = 'records'")
    tables = audit.Tables(
        [page_of(row) for row in _rows(db, f"SELECT {ACCOUNT} FROM accounts")],
        ((a, n, tally_of(text)) for a, n, text in _rows(db, "SELECT account, bucket, tally FROM buckets")),
        (
            (name, state, holds_of(holds))
            for name, state, holds in _rows(
                db, "SELECT id, state, holds FROM reservations WHERE state IN ('held', 'running')"
            )
        ),
        (
            (key, hashlib.sha256(result).digest(), amount_of(cost))
            for key, result, cost in _rows(db, "SELECT release_key, result, cost FROM releases")
        ),
        _rows(db, "SELECT account, release_key FROM entitlements"),
        (
            (account, bucket, key, amount_of(amount))
            for account, bucket, key, amount in _rows(db, "SELECT account, bucket, release_key, amount FROM forfeits")
        ),
        _rows(db, "SELECT kind, name, text FROM records"),
        records_version,
        _rows(db, "SELECT id, digest FROM acts"),
    )
    audit.check(said, tables)
    ((store,),) = all_of(db, "SELECT value FROM meta WHERE name = 'id'")
    check_holdings(store, holdings(db), said.moves)
    return said


def lines_of(db: apsw.Connection) -> Verified:
    """What the ledger says."""
    rows = _rows(db, "SELECT seq, body, hash FROM ledger ORDER BY seq")
    return verify_lines([(0, (Line(0, seq, body, hash_) for seq, body, hash_ in rows))])


def _rows(db: apsw.Connection, query: str) -> Iterable[Any]:
    """Rows as they are asked for."""
    return db.execute(query)
