"""The tables of the SQLite store, as numbered migrations. One that was ever released is never changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.budget.errors import StoreUnavailable
from discreet.budget.stores.sqlite_rows import all_of, failures_text
from discreet.budget.stores.sqlite_view import lines_of

if TYPE_CHECKING:
    import apsw

MIGRATIONS = (
    """
    CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
    INSERT INTO meta VALUES ('id', lower(hex(randomblob(16)))), ('seen_us', NULL);

    -- tally: the open bucket; older: the sum of the closed ones that count.
    -- Amounts are texts, because they do not fit 64 bits: see sqlite_rows.py
    CREATE TABLE accounts (
        id TEXT PRIMARY KEY, parent TEXT, settings TEXT NOT NULL, bucket INTEGER NOT NULL, end_us INTEGER NOT NULL,
        tally TEXT NOT NULL, older TEXT NOT NULL
    ) WITHOUT ROWID;

    -- closed buckets; they are kept, because another period may count them again
    CREATE TABLE buckets (
        account TEXT NOT NULL, bucket INTEGER NOT NULL, end_us INTEGER NOT NULL, counting INTEGER NOT NULL,
        tally TEXT NOT NULL, PRIMARY KEY (account, bucket)
    ) WITHOUT ROWID;

    CREATE TABLE reservations (
        id TEXT PRIMARY KEY, account TEXT NOT NULL, release_key BLOB NOT NULL, worst TEXT NOT NULL,
        holds TEXT NOT NULL, state TEXT NOT NULL, lease_until_us INTEGER NOT NULL, lease_ms INTEGER NOT NULL,
        charged TEXT
    ) WITHOUT ROWID;
    CREATE INDEX leases ON reservations (lease_until_us) WHERE state IN ('held', 'running');

    CREATE TABLE keys (
        account TEXT NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL, reservation TEXT,
        PRIMARY KEY (account, key)
    ) WITHOUT ROWID;

    CREATE TABLE releases (
        release_key BLOB PRIMARY KEY, result BLOB NOT NULL, cost TEXT NOT NULL, time_us INTEGER NOT NULL
    );

    CREATE TABLE entitlements (
        account TEXT NOT NULL, release_key BLOB NOT NULL, PRIMARY KEY (account, release_key)
    ) WITHOUT ROWID;

    CREATE TABLE forfeits (
        number INTEGER PRIMARY KEY, account TEXT NOT NULL, release_key BLOB NOT NULL, bucket INTEGER NOT NULL,
        amount TEXT NOT NULL
    );
    CREATE INDEX forfeits_of ON forfeits (account, release_key);

    CREATE TABLE ledger (seq INTEGER PRIMARY KEY, body TEXT NOT NULL, hash BLOB NOT NULL);
    """,
    """
    -- number: rises with every release that the account pays for; what was paid for before has the release's own time.
    -- No index: it would cost every question a fifth, and a history is seldom read
    ALTER TABLE entitlements ADD COLUMN number INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE entitlements ADD COLUMN time_us INTEGER NOT NULL DEFAULT 0;
    UPDATE entitlements SET (number, time_us) = (old.number, old.time_us) FROM (
        SELECT e.account, e.release_key, r.time_us,
            row_number() OVER (PARTITION BY e.account ORDER BY r.time_us, r.rowid) AS number
        FROM entitlements e JOIN releases r USING (release_key)
    ) AS old WHERE old.account = entitlements.account AND old.release_key = entitlements.release_key;

    -- when the account's last failures were that count towards a suspension
    ALTER TABLE accounts ADD COLUMN failures TEXT NOT NULL DEFAULT '';

    CREATE TABLE records (
        kind TEXT NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (kind, name)
    ) WITHOUT ROWID;
    INSERT INTO meta VALUES ('records', 0); -- how often they were changed

    -- digest: of what was done, so that nobody does something else with the same id
    CREATE TABLE acts (id TEXT PRIMARY KEY, digest BLOB NOT NULL) WITHOUT ROWID;

    CREATE TABLE fingerprints (head_key BLOB PRIMARY KEY, digest BLOB NOT NULL) WITHOUT ROWID;
    """,
    """
    -- peer: id of another data centre's store; pending: of the last transfer, until its receipt is heard
    CREATE TABLE shares_given (
        account TEXT NOT NULL, peer TEXT NOT NULL, number INTEGER NOT NULL, given TEXT NOT NULL, pending TEXT,
        sent_us INTEGER NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (account, peer)
    ) WITHOUT ROWID;
    CREATE INDEX shares_pending ON shares_given (peer) WHERE pending IS NOT NULL;
    CREATE TABLE shares_taken (
        account TEXT NOT NULL, peer TEXT NOT NULL, number INTEGER NOT NULL, taken INTEGER NOT NULL,
        received TEXT NOT NULL, PRIMARY KEY (account, peer)
    ) WITHOUT ROWID;
    """,
    """
    -- of the last claim that came with the key; NULL for those from before
    ALTER TABLE keys ADD COLUMN release_key BLOB;
    """,
)


_FAILURES_SINCE = 2  # before, only the ledger says when runs failed


def migrate(db: apsw.Connection, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """Bring the database to the newest schema, in one transaction.

    Raises:
        StoreUnavailable: its schema is newer than this program.
        LedgerBroken: it is older, and its ledger cannot be trusted.
    """
    ((version,),) = all_of(db, "PRAGMA user_version")
    if version > len(migrations):
        raise StoreUnavailable(f"the store has schema {version}, but this program knows only up to {len(migrations)}")
    with db:
        for statements in migrations[version:]:
            db.execute(statements)
        if 0 < version < _FAILURES_SINCE:
            for account, failures in lines_of(db).failures.items():
                db.execute("UPDATE accounts SET failures = ? WHERE id = ?", (failures_text(failures), account))
        db.execute(f"PRAGMA user_version = {len(migrations)}")
