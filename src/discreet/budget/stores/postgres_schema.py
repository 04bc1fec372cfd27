"""The tables of the PostgreSQL store, as numbered migrations. One that was ever released is never changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from discreet.budget.errors import StoreUnavailable
from discreet.budget.ledger import Head
from discreet.budget.stores.postgres_rows import failures_array
from discreet.budget.stores.postgres_view import lines_of

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
    """
    -- number: rises with every release that the account pays for; what was paid for before has the release's own time.
    -- No index: it would cost every question more than a history, which is seldom read
    ALTER TABLE budget_entitlements ADD COLUMN number bigint, ADD COLUMN time_us bigint;
    UPDATE budget_entitlements e SET number = old.number, time_us = old.time_us FROM (
        SELECT p.account, p.release_key, r.time_us,
            row_number() OVER (PARTITION BY p.account ORDER BY r.time_us, p.release_key) AS number
        FROM budget_entitlements p JOIN budget_releases r USING (release_key)
    ) AS old WHERE old.account = e.account AND old.release_key = e.release_key;
    CREATE SEQUENCE budget_paid OWNED BY budget_entitlements.number;
    SELECT setval('budget_paid', (SELECT coalesce(max(number), 0) + 1 FROM budget_entitlements), false);
    ALTER TABLE budget_entitlements
        ALTER COLUMN number SET NOT NULL, ALTER COLUMN number SET DEFAULT nextval('budget_paid'),
        ALTER COLUMN time_us SET NOT NULL;

    -- when the account's last failures were that count towards a suspension
    ALTER TABLE budget_accounts ADD COLUMN failures bigint[] NOT NULL DEFAULT '{}';

    CREATE TABLE budget_records (
        kind text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, text text NOT NULL, PRIMARY KEY (kind, name)
    );
    ALTER TABLE budget_meta ADD COLUMN records bigint NOT NULL DEFAULT 0; -- how often they were changed

    -- digest: of what was done, so that nobody does something else with the same id
    CREATE TABLE budget_acts (id text COLLATE "C" PRIMARY KEY, digest bytea NOT NULL);

    CREATE TABLE budget_fingerprints (head_key bytea PRIMARY KEY, digest bytea NOT NULL);
    """,
    """
    -- peer: id of another data centre's store; pending: of the last transfer, until its receipt is heard
    CREATE TABLE budget_shares_given (
        account text COLLATE "C" NOT NULL, peer text COLLATE "C" NOT NULL, number bigint NOT NULL,
        given numeric[] NOT NULL, pending numeric[], sent_us bigint NOT NULL, version bigint NOT NULL,
        PRIMARY KEY (account, peer)
    );
    CREATE INDEX budget_shares_pending ON budget_shares_given (peer) WHERE pending IS NOT NULL;
    CREATE TABLE budget_shares_taken (
        account text COLLATE "C" NOT NULL, peer text COLLATE "C" NOT NULL, number bigint NOT NULL,
        taken boolean NOT NULL, received numeric[] NOT NULL, PRIMARY KEY (account, peer)
    );
    """,
    """
    -- of the last claim that came with the key; NULL for those from before
    ALTER TABLE budget_keys ADD COLUMN release_key bytea;
    """,
)

_FAILURES_SINCE = 2  # before, only the ledger says when runs failed

_LOCK = 0x64697363_72656574
"""Of the advisory lock under which one process at a time migrates."""


def migrate(db: psycopg.Connection[Any], migrations: tuple[str, ...] = MIGRATIONS) -> str:
    """Bring the schema to the newest version, in one transaction; another process that does so is waited for.

    Returns:
        the store's own name.

    Raises:
        StoreUnavailable: the schema is newer than this program.
        LedgerBroken: it is older, and its ledger cannot be trusted.
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
        if 0 < version < _FAILURES_SINCE:
            for account, failures in lines_of(db).failures.items():
                values = (failures_array(failures), account)
                db.execute("UPDATE budget_accounts SET failures = %s::bigint[] WHERE id = %s", values)
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
