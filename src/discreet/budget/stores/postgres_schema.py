"""The tables of the PostgreSQL store, as numbered migrations. One that was ever released is never changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from discreet.budget.errors import StoreUnavailable
from discreet.budget.ledger import Head

if TYPE_CHECKING:
    import psycopg

MIGRATIONS = (
    """
    -- the one clock; in microseconds since 1970
    CREATE FUNCTION budget_now_us() RETURNS bigint LANGUAGE sql VOLATILE
        AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

    -- one row; seq and hash are the end of chain 0, where acts stand that belong to no account
    CREATE TABLE budget_meta (
        id text NOT NULL, version int NOT NULL, seen_us bigint NOT NULL, seq bigint NOT NULL, hash bytea NOT NULL
    );
    CREATE UNIQUE INDEX budget_meta_one ON budget_meta ((true));
    CREATE SEQUENCE budget_chains;

    -- path: its own name, then those of its parents; depth: how many those are
    -- seq, hash: the end of its chain. tally: the open bucket; older: the sum of the closed ones that count
    -- (rho and delta of what is used, held, forfeited, refunded, in quanta)
    CREATE TABLE budget_accounts (
        id text COLLATE "C" PRIMARY KEY, path text[] COLLATE "C" NOT NULL, depth int NOT NULL, settings text NOT NULL,
        chain bigint NOT NULL UNIQUE, seq bigint NOT NULL, hash bytea NOT NULL,
        bucket bigint NOT NULL, end_us bigint NOT NULL, tally numeric[] NOT NULL, older numeric[] NOT NULL,
        CHECK (cardinality(tally) = 8 AND 0 <= ALL (tally)), CHECK (cardinality(older) = 8 AND 0 <= ALL (older))
    ) WITH (fillfactor = 50);

    -- closed buckets; they are kept, because another period may count them again
    CREATE TABLE budget_buckets (
        account text COLLATE "C" NOT NULL, bucket bigint NOT NULL, end_us bigint NOT NULL, counting boolean NOT NULL,
        tally numeric[] NOT NULL, PRIMARY KEY (account, bucket), CHECK (cardinality(tally) = 8 AND 0 <= ALL (tally))
    );

    CREATE TABLE budget_reservations (
        id text COLLATE "C" PRIMARY KEY, account text COLLATE "C" NOT NULL, release_key bytea NOT NULL,
        worst numeric[] NOT NULL, holds text NOT NULL, state text NOT NULL, lease_until_us bigint NOT NULL,
        lease_ms bigint NOT NULL, charged numeric[]
    ) WITH (fillfactor = 70);
    CREATE INDEX budget_leases ON budget_reservations (lease_until_us) WHERE state IN ('held', 'running');

    CREATE TABLE budget_keys (
        account text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL, digest bytea NOT NULL,
        reservation text COLLATE "C" NOT NULL, PRIMARY KEY (account, key)
    );

    CREATE TABLE budget_releases (
        release_key bytea PRIMARY KEY, result bytea NOT NULL, cost numeric[] NOT NULL, time_us bigint NOT NULL
    );

    CREATE TABLE budget_entitlements (
        account text COLLATE "C" NOT NULL, release_key bytea NOT NULL, PRIMARY KEY (account, release_key)
    );

    CREATE TABLE budget_forfeits (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account text COLLATE "C" NOT NULL,
        release_key bytea NOT NULL, bucket bigint NOT NULL, amount numeric[] NOT NULL
    );
    CREATE INDEX budget_forfeits_of ON budget_forfeits (account, release_key);

    CREATE TABLE budget_ledger (
        chain bigint, seq bigint, body text NOT NULL, hash bytea NOT NULL, PRIMARY KEY (chain, seq)
    );
    """,
)

_LOCK = 0x64697363_72656574
"""Of the advisory lock under which one process at a time migrates."""


def migrate(db: psycopg.Connection[Any], migrations: tuple[str, ...] = MIGRATIONS) -> str:
    """Bring the schema to the newest version, in one transaction; another process that does so is waited for.

    Returns:
        the store's own name.

    Raises:
        StoreUnavailable: the schema is newer than this program.
    """
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        version = 0
        if _one(db, "SELECT to_regclass('budget_meta')") is not None:
            version = _one(db, "SELECT version FROM budget_meta")
        if version > len(migrations):
            raise StoreUnavailable(
                f"the store has schema {version}, but this program knows only up to {len(migrations)}"
            )
        for statements in migrations[version:]:
            db.execute(statements, prepare=False)  # several at once
        if version == 0:
            db.execute(
                "INSERT INTO budget_meta VALUES (replace(gen_random_uuid()::text, '-', ''), 0, budget_now_us(), 0, %s)",
                (Head.empty().hash,),
            )
        if version < len(migrations):
            db.execute("UPDATE budget_meta SET version = %s", (len(migrations),))
        return str(_one(db, "SELECT id FROM budget_meta"))


def _one(db: psycopg.Connection[Any], query: str) -> Any:  # noqa: ANN401 - whatever the column holds
    """The only column of the only row."""
    row = db.execute(query).fetchone()
    return None if row is None else row[0]
