"""The tables of the SQLite store, as numbered migrations. One that was ever released is never changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.budget.errors import StoreUnavailable
from discreet.budget.stores.sqlite_rows import all_of

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
)


def migrate(db: apsw.Connection, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """Bring the database to the newest schema, in one transaction.

    Raises:
        StoreUnavailable: its schema is newer than this program.
    """
    ((version,),) = all_of(db, "PRAGMA user_version")
    if version > len(migrations):
        raise StoreUnavailable(f"the store has schema {version}, but this program knows only up to {len(migrations)}")
    with db:
        for statements in migrations[version:]:
            db.execute(statements)
        db.execute(f"PRAGMA user_version = {len(migrations)}")
