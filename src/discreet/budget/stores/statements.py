"""All SQL of the budget stores, tables and statements, once for SQLite and PostgreSQL.

Values are bound to `?`. A `{word}` marks text that differs between the databases; `for_sqlite` and `for_postgres` fill
it in. Both have the functions budget_now_us() and sha256(): PostgreSQL as a function of the schema and built in, SQLite
registered with the connection. Amounts are text, whole quanta between spaces, because they do not fit 64 bits (`rows`).

PostgreSQL locks the accounts of a path from the account to its root, so that transactions that hold a row wait only for
rows nearer the root. Locked rows are read as the previous transaction left them; all other rows are read by a second
statement, which in READ COMMITTED sees all that was committed before it.
"""

# ruff: noqa: S608 - statements are put together from constants; values are bound

from __future__ import annotations

import functools

VERSION = 8
"""The version of the schema. A store of the version before is upgraded when it is opened; others are refused."""

_INDEX = """
-- an index of the ledger, see ledger_index: events by the time, the chain and the number of their first line.
-- lines: the numbers of all. reservation: NULL once it has ended.
-- rho and delta are in two parts each, so that sums fit 64 bits
CREATE TABLE budget_events (
    time_us bigint NOT NULL, chain bigint NOT NULL, seq bigint NOT NULL, kind {text} NOT NULL, account {text},
    dataset {text}, subject {text}, reservation {text}, lines text NOT NULL, question bigint,
    rho_high bigint NOT NULL, rho_low bigint NOT NULL, delta_high bigint NOT NULL, delta_low bigint NOT NULL,
    PRIMARY KEY (time_us, chain, seq)
) {by_key};
CREATE INDEX budget_events_of ON budget_events (account, time_us, chain, seq);
CREATE INDEX budget_events_about ON budget_events (subject, time_us) WHERE subject IS NOT NULL;
CREATE INDEX budget_events_open ON budget_events (chain) WHERE reservation IS NOT NULL;
-- sums of the events that have ended, by the day of their first line; account and dataset may be '', question 0
CREATE TABLE budget_totals (
    day bigint NOT NULL, account {text} NOT NULL, dataset {text} NOT NULL, kind {text} NOT NULL,
    question bigint NOT NULL, events bigint NOT NULL, rho_high bigint NOT NULL, rho_low bigint NOT NULL,
    delta_high bigint NOT NULL, delta_low bigint NOT NULL, PRIMARY KEY (day, account, dataset, kind, question)
) {by_key};
CREATE TABLE budget_questions (id bigint PRIMARY KEY, text text NOT NULL);
CREATE TABLE budget_spending (
    account {text} NOT NULL, day bigint NOT NULL, amount text NOT NULL, PRIMARY KEY (day, account)
) {by_key};
-- the last line of each chain that is indexed
CREATE TABLE budget_indexed (chain bigint PRIMARY KEY, seq bigint NOT NULL);
"""

CREATE = (
    """
{functions}

-- one row. seen_us: the latest time that a transaction took for right. seq, hash: the head of the ledger's chain 0.
-- records: how often they were changed
CREATE TABLE budget_meta (
    id {text} NOT NULL, version bigint NOT NULL, seen_us bigint NOT NULL, seq bigint NOT NULL, hash {bytes} NOT NULL,
    records bigint NOT NULL
);

-- tally: the open bucket; older: the sum of the closed ones that count (rho and delta of what is used, held, forfeited,
-- refunded). failures: when the last runs failed that count towards a suspension.
-- chain: of its lines in the ledger, with the head (seq, hash); 0 if they are in the store's own chain
CREATE TABLE budget_accounts (
    id {text} PRIMARY KEY, settings text NOT NULL, bucket bigint NOT NULL, end_us bigint NOT NULL,
    tally text NOT NULL CHECK (tally NOT LIKE '%-%'), older text NOT NULL CHECK (older NOT LIKE '%-%'),
    failures text NOT NULL, chain bigint NOT NULL, seq bigint NOT NULL, hash {bytes} NOT NULL
) {half_full};
CREATE UNIQUE INDEX budget_chain_of ON budget_accounts (chain) WHERE chain > 0;

-- the account itself (place 0), its parent (1), and so on
CREATE TABLE budget_paths (
    account {text} NOT NULL, place bigint NOT NULL, member {text} NOT NULL, PRIMARY KEY (account, place)
) {by_key};

-- closed buckets; they are kept, because another period may count them again
CREATE TABLE budget_buckets (
    account {text} NOT NULL, bucket bigint NOT NULL, end_us bigint NOT NULL, counting boolean NOT NULL,
    tally text NOT NULL CHECK (tally NOT LIKE '%-%'), PRIMARY KEY (account, bucket)
) {by_key};

-- session: of the process that runs the query, which has an advisory lock of that name; NULL where one process has all
CREATE TABLE budget_reservations (
    id {text} PRIMARY KEY, account {text} NOT NULL, release_key {bytes} NOT NULL, worst text NOT NULL,
    holds text NOT NULL, state text NOT NULL, lease_until_us bigint NOT NULL, lease_ms bigint NOT NULL, charged text,
    session text
) {mostly_full};
CREATE INDEX budget_leases ON budget_reservations (lease_until_us) WHERE state IN ('held', 'running');
CREATE UNIQUE INDEX budget_open ON budget_reservations (account, release_key) WHERE state IN ('held', 'running');

-- idempotency keys; reservation, release_key, time_us: of the last claim that came with the key
CREATE TABLE budget_keys (
    account {text} NOT NULL, key {text} NOT NULL, digest {bytes} NOT NULL, reservation {text} NOT NULL,
    release_key {bytes} NOT NULL, time_us bigint NOT NULL, PRIMARY KEY (account, key)
) {by_key};

-- digest: the SHA-256 of the result when it was stored
CREATE TABLE budget_releases (
    release_key {bytes} PRIMARY KEY, result {bytes} NOT NULL, cost text NOT NULL, time_us bigint NOT NULL,
    digest {bytes}
);

-- number: rises with every release that the account pays for.
-- No index on it: it would cost every query more than a history, which is seldom read
CREATE TABLE budget_entitlements (
    account {text} NOT NULL, release_key {bytes} NOT NULL, number bigint NOT NULL, time_us bigint NOT NULL,
    PRIMARY KEY (account, release_key)
) {by_key};

-- what pays for a retry
CREATE TABLE budget_forfeits (
    number {serial_key}, account {text} NOT NULL, release_key {bytes} NOT NULL, bucket bigint NOT NULL,
    amount text NOT NULL
);
CREATE INDEX budget_forfeits_of ON budget_forfeits (account, release_key);

CREATE TABLE budget_ledger (
    chain bigint NOT NULL, seq bigint NOT NULL, body text NOT NULL, hash {bytes} NOT NULL, PRIMARY KEY (chain, seq)
) {by_key};

-- what stands for lines that were removed, see ledger_replay; empty if none were
CREATE TABLE budget_base (place bigint PRIMARY KEY, text text NOT NULL);

CREATE TABLE budget_records (
    kind {text} NOT NULL, name {text} NOT NULL, text text NOT NULL, PRIMARY KEY (kind, name)
) {by_key};

-- digest: of what an action with that id did
CREATE TABLE budget_actions (id {text} PRIMARY KEY, digest {bytes} NOT NULL) {by_key};

CREATE TABLE budget_fingerprints (head_key {bytes} PRIMARY KEY, digest {bytes} NOT NULL) {by_key};

-- what an account gave to another data centre's store (number, given, pending, sent_us, version) and took from it
-- (taken_number, taken, received); see escrow.Outgoing and escrow.Incoming
CREATE TABLE budget_shares (
    account {text} NOT NULL, peer {text} NOT NULL,
    number bigint NOT NULL DEFAULT 0, given text NOT NULL DEFAULT '0 0', pending text,
    sent_us bigint NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0,
    taken_number bigint NOT NULL DEFAULT 0, taken boolean NOT NULL DEFAULT true,
    received text NOT NULL DEFAULT '0 0',
    PRIMARY KEY (account, peer)
) {by_key};
CREATE INDEX budget_shares_pending ON budget_shares (peer) WHERE pending IS NOT NULL;
"""
    + _INDEX
)

UPGRADE = f"""
{_INDEX}
ALTER TABLE budget_releases ADD COLUMN digest {{bytes}};
UPDATE budget_releases SET digest = sha256(result);
UPDATE budget_meta SET version = 8;
"""
"""Change the schema of the version before to `VERSION`."""

READ_AS_UPGRADED = """
CREATE TEMP VIEW budget_meta AS SELECT id, 8 AS version, seen_us, seq, hash, records FROM main.budget_meta;
CREATE TEMP VIEW budget_releases AS
    SELECT release_key, result, cost, time_us, NULL AS digest FROM main.budget_releases;
"""
"""Let statements of this version read an SQLite file of the version before, which is not changed."""

ADD_META = """
INSERT INTO budget_meta (id, version, seen_us, seq, hash, records)
VALUES ({random_id}, ?, budget_now_us(), 0, ?, 0)"""


def other_version(version: int) -> str:
    """Return the error message for a store whose schema is not `VERSION`."""
    return f"the store has schema {version}, and this program works with schemas {VERSION - 1} and {VERSION} only"


SQLITE = {
    "bytes": "BLOB",
    "text": "TEXT",
    "serial_key": "INTEGER PRIMARY KEY",
    "by_key": "WITHOUT ROWID",
    "half_full": "WITHOUT ROWID",
    "mostly_full": "WITHOUT ROWID",
    "functions": "",
    "random_id": "lower(hex(randomblob(16)))",
    "lock_account": "",
    "lock_reservation": "",
    "lock_meta": "",
    "unless_locked": "",
    "next_chain": "0",
    "next_paid": "(SELECT seq + 1 FROM budget_meta)",  # unique: an account pays for a release once, in one line
    "session": "NULL",
    "session_ended": "true",  # one process has the file: open reservations are of an earlier process
    "greatest": "max",
    "settings_json": "a.settings",
    "without_timeout": "NULL",
    "any_text": "(SELECT value FROM json_each(?))",
    "any_number": "(SELECT value FROM json_each(?))",
    "any_key": "(SELECT unhex(value) FROM json_each(?))",
}

POSTGRES = {
    "bytes": "bytea",
    "text": 'text COLLATE "C"',
    "serial_key": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "by_key": "",
    "half_full": "WITH (fillfactor = 50)",
    "mostly_full": "WITH (fillfactor = 70)",
    "functions": """
CREATE FUNCTION budget_now_us() RETURNS bigint LANGUAGE sql VOLATILE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;
CREATE SEQUENCE budget_chains;
CREATE SEQUENCE budget_paid;
""",
    "random_id": "replace(gen_random_uuid()::text, '-', '')",
    "lock_account": "FOR NO KEY UPDATE OF a",
    "lock_reservation": "FOR NO KEY UPDATE OF a, r",
    "lock_meta": "FOR NO KEY UPDATE",
    "unless_locked": "WHERE id IN (SELECT id FROM budget_meta FOR NO KEY UPDATE SKIP LOCKED)",
    "next_chain": "nextval('budget_chains')",
    "next_paid": "nextval('budget_paid')",
    "session": "current_setting('discreet.session')",
    "session_ended": """r.session IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND l.classid || ' ' || l.objid = r.session
    )""",
    "greatest": "greatest",
    "settings_json": "a.settings::json",
    "any_text": "(SELECT json_array_elements_text(CAST(%s AS json)))",
    "any_number": "(SELECT CAST(json_array_elements_text(CAST(%s AS json)) AS bigint))",
    "any_key": "(SELECT decode(json_array_elements_text(CAST(%s AS json)), 'hex'))",
    "without_timeout": "set_config('statement_timeout', '0', true)",
}


@functools.lru_cache(maxsize=1024)
def for_sqlite(statement: str) -> str:
    """Return *statement* in the SQL of SQLite."""
    return statement.format_map(SQLITE)


@functools.lru_cache(maxsize=1024)
def for_postgres(statement: str) -> str:
    """Return *statement* in the SQL of PostgreSQL, with psycopg's placeholders."""
    return statement.replace("?", "%s").format_map(POSTGRES)


# ------------------------------------------------------------------------------------------------------ columns

META = "budget_now_us(), m.seen_us, m.seq, m.hash"
"""The clock, the last time seen, the head of chain 0."""

ACCOUNT = "a.id, a.settings, a.bucket, a.end_us, a.tally, a.older, a.failures, a.chain, a.seq, a.hash"
"""The columns of `rows.account_row`."""

RESERVATION = "r.id, r.account, r.release_key, r.worst, r.holds, r.state, r.lease_until_us, r.lease_ms, r.charged"
"""The columns of `rows.reservation_row`."""

RELEASE = "s.release_key, s.result, s.cost, s.time_us, s.digest"
"""The columns of `rows.release_row`."""

_SENT = "number, given, pending, sent_us, version"
_RECEIVED = "taken_number, taken, received"

# ------------------------------------------------------------------------------------------------------ locks

LOCK_ACCOUNT = f"SELECT {ACCOUNT} FROM budget_accounts a WHERE a.id = ? {{lock_account}}"

LOCK_PATH = f"""
SELECT {ACCOUNT} FROM budget_paths p JOIN budget_accounts a ON a.id = p.member
WHERE p.account = ? ORDER BY p.place {{lock_account}}"""

LOCK_META = "SELECT seq FROM budget_meta {lock_meta}"

_LOCK_RESERVATION = f"""
SELECT {META}, {ACCOUNT}, {RESERVATION} {{}}
FROM budget_reservations r {{}} CROSS JOIN budget_meta m
WHERE r.id = ? {{}}"""

_ON_PATH = "JOIN budget_paths p ON p.account = r.account JOIN budget_accounts a ON a.id = p.member"

START = _LOCK_RESERVATION.format("", "JOIN budget_accounts a ON a.id = r.account", "{lock_reservation}")
"""Lock a reservation and its account."""

END = _LOCK_RESERVATION.format("", _ON_PATH, "ORDER BY p.place {lock_reservation}")
"""Lock a reservation and the path of its account."""

SETTLE = _LOCK_RESERVATION.format(
    f", {RELEASE}, (SELECT f.digest FROM budget_fingerprints f WHERE f.head_key = ?)",
    f"{_ON_PATH} LEFT JOIN budget_releases s ON s.release_key = r.release_key",
    "ORDER BY p.place {lock_reservation}",
)
"""Lock the same rows, and read the release and the digest of the head as they were before the locks. If another
transaction has stored them since, the insert fails and the transaction is repeated."""

# ------------------------------------------------------------------------------------------------------ facts

NOW = f"SELECT {META} FROM budget_meta m"

_CLAIM = f"""
SELECT {META}, EXISTS (
    SELECT 1 FROM budget_paths p JOIN budget_forfeits f ON f.account = p.member
    WHERE p.account = ? AND f.release_key = ?
), {RELEASE}, {RESERVATION}, u.id, coalesce(u.lease_until_us, 0) {{}}
FROM budget_meta m
LEFT JOIN budget_releases s ON s.release_key = ?
LEFT JOIN budget_reservations r ON r.id = ?
LEFT JOIN budget_reservations u ON u.account = ? AND u.release_key = ? AND u.state IN ('held', 'running') {{}}"""

CLAIM = _CLAIM.format("", "")
"""Read whether the path has a forfeit for the release, the release, the reservation of that id, and the account's
reservation under way for the release."""

CLAIM_WITH_KEY = _CLAIM.format(
    f", k.digest, w.id, coalesce(w.lease_until_us, 0), {RELEASE.replace('s.', 'o.')}",
    "LEFT JOIN budget_keys k ON k.account = ? AND k.key = ? "
    "LEFT JOIN budget_reservations w ON w.id = k.reservation AND w.state IN ('held', 'running') "
    "LEFT JOIN budget_entitlements e ON e.account = k.account AND e.release_key = k.release_key "
    "LEFT JOIN budget_releases o ON o.release_key = e.release_key AND o.release_key <> ?",
)
"""Read the same, and for the idempotency key its reservation under way and the other release that it paid for."""

CREATION = f"""
SELECT {META}, {{next_chain}}, a.id, p.id
FROM budget_meta m LEFT JOIN budget_accounts a ON a.id = ? LEFT JOIN budget_accounts p ON p.id = ?"""

PAID = """
SELECT p.member FROM budget_paths p JOIN budget_entitlements e ON e.account = p.member
WHERE p.account = ? AND e.release_key = ?"""

CLOSED_BUCKETS = "SELECT bucket, end_us, counting, tally FROM budget_buckets WHERE account = ? ORDER BY bucket"

FORFEITS = """
SELECT f.account, f.number, f.bucket, f.amount FROM budget_paths p JOIN budget_forfeits f ON f.account = p.member
WHERE p.account = ? AND f.release_key = ? ORDER BY f.number"""

ACTION_DIGEST = "SELECT digest FROM budget_actions WHERE id = ?"

DUE = "SELECT id FROM budget_accounts WHERE end_us <= ? ORDER BY id"

EXPIRED = """
SELECT id FROM budget_reservations WHERE state IN ('held', 'running') AND lease_until_us <= ?
ORDER BY lease_until_us, id LIMIT 1000"""

LOST = """
SELECT r.id FROM budget_reservations r WHERE r.state IN ('held', 'running') AND {session_ended}
ORDER BY r.lease_until_us, r.id"""
"""Find the open reservations of processes that have ended."""

# ------------------------------------------------------------------------------------------------------ writes

SAVE_TALLY = "UPDATE budget_accounts SET seq = ?, hash = ?, tally = ? WHERE id = ?"

SAVE_ACCOUNT = """
UPDATE budget_accounts SET seq = ?, hash = ?, tally = ?, settings = ?, bucket = ?, end_us = ?, older = ?, failures = ?
WHERE id = ?"""

SAVE_BUCKET = """
INSERT INTO budget_buckets (account, bucket, end_us, counting, tally) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (account, bucket) DO UPDATE SET counting = excluded.counting, tally = excluded.tally"""

SAVE_META = "UPDATE budget_meta SET seq = ?, hash = ?, seen_us = {greatest}(seen_us, ?), records = records + ?"

SAVE_SEEN = "UPDATE budget_meta SET seen_us = {greatest}(seen_us, ?) {unless_locked}"

ADD_LINE = "INSERT INTO budget_ledger (chain, seq, body, hash) VALUES (?, ?, ?, ?)"

ADD_ACCOUNT = """
INSERT INTO budget_accounts (id, settings, bucket, end_us, tally, older, failures, chain, seq, hash)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

ADD_PATH = """
INSERT INTO budget_paths (account, place, member)
SELECT CAST(? AS text), 0, CAST(? AS text)
UNION ALL SELECT CAST(? AS text), p.place + 1, p.member FROM budget_paths p WHERE p.account = ?"""

ADD_RESERVATION = """
INSERT INTO budget_reservations (id, account, release_key, worst, holds, state, lease_until_us, lease_ms, session)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, {session})"""

SAVE_RESERVATION = """
UPDATE budget_reservations SET state = ?, lease_until_us = coalesce(CAST(? AS bigint), lease_until_us),
    charged = coalesce(CAST(? AS text), charged)
WHERE id = ?"""

SAVE_KEY = """
INSERT INTO budget_keys (account, key, digest, reservation, release_key, time_us) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (account, key) DO UPDATE SET
    reservation = excluded.reservation, release_key = excluded.release_key, time_us = excluded.time_us"""

ADD_RELEASE = "INSERT INTO budget_releases (release_key, result, cost, time_us, digest) VALUES (?, ?, ?, ?, ?)"

ADD_FINGERPRINT = "INSERT INTO budget_fingerprints (head_key, digest) VALUES (?, ?)"

ADD_ENTITLEMENT = """
INSERT INTO budget_entitlements (account, release_key, number, time_us) VALUES (?, ?, {next_paid}, ?)"""

ADD_FORFEIT = "INSERT INTO budget_forfeits (account, release_key, bucket, amount) VALUES (?, ?, ?, ?)"

DROP_FORFEIT = "DELETE FROM budget_forfeits WHERE number = ?"

ADD_ACTION = "INSERT INTO budget_actions (id, digest) VALUES (?, ?)"

SAVE_RECORD = """
INSERT INTO budget_records (kind, name, text) VALUES (?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET text = excluded.text"""

DROP_RECORD = "DELETE FROM budget_records WHERE kind = ? AND name = ?"

# ------------------------------------------------------------------------------------------------------ reads

STORE_ID = "SELECT id FROM budget_meta"

PATH = """
SELECT a.settings FROM budget_paths p JOIN budget_accounts a ON a.id = p.member WHERE p.account = ? ORDER BY p.place"""

ACCOUNTS = "SELECT settings FROM budget_accounts ORDER BY id"

BALANCE = f"""
SELECT {META}, {ACCOUNT}, b.bucket, b.end_us, b.tally
FROM budget_accounts a CROSS JOIN budget_meta m LEFT JOIN budget_buckets b ON b.account = a.id AND b.counting
WHERE a.id = ? ORDER BY b.bucket"""

GET_RESERVATION = f"SELECT {RESERVATION} FROM budget_reservations r WHERE r.id = ?"

GET_RELEASE = f"SELECT {RELEASE} FROM budget_releases s WHERE s.release_key = ?"

GET_RELEASES = f"SELECT {RELEASE} FROM budget_releases s WHERE s.release_key IN {{any_key}}"

ENTITLED = "SELECT 1 FROM budget_entitlements WHERE account = ? AND release_key = ?"

HISTORY = f"""
SELECT e.number, e.paid_us, {RELEASE}
FROM (
    SELECT number, time_us AS paid_us, release_key FROM budget_entitlements WHERE account = ? AND number < ?
    ORDER BY number DESC LIMIT ?
) AS e JOIN budget_releases s ON s.release_key = e.release_key ORDER BY e.number DESC"""

RECORD = "SELECT text FROM budget_records WHERE kind = ? AND name = ?"

RECORDS = "SELECT name, text FROM budget_records WHERE kind = ? ORDER BY name"

RECORDS_OF = "SELECT name, text FROM budget_records WHERE kind = ? AND name > ? AND name < ? ORDER BY name"

RECORDS_VERSION = "SELECT records FROM budget_meta"

_HEADS = "SELECT chain, seq, hash FROM budget_accounts WHERE chain > 0 UNION ALL SELECT 0, seq, hash FROM budget_meta"

HEADS = f"""
SELECT l.chain, l.seq, l.hash FROM ({_HEADS}) AS h CROSS JOIN budget_ledger l
WHERE l.chain = h.chain AND l.seq = h.seq ORDER BY h.chain"""
"""Read the last line of each chain from the ledger. SQLite reads the tables of a CROSS JOIN in their order; those of a
JOIN in that of the chains, and so the whole ledger."""

LINES = "SELECT chain, seq, body, hash FROM budget_ledger WHERE chain = ? AND seq > ? ORDER BY seq LIMIT ?"

LINES_AT = "SELECT chain, seq, body, hash FROM budget_ledger WHERE chain = ? AND seq IN {any_number}"

# ------------------------------------------------------------------------------------------------------ index

EVENTS = """
SELECT time_us, chain, lines FROM budget_events WHERE TRUE ORDER BY time_us DESC, chain DESC, seq DESC LIMIT ?"""

_TOTALS = """
SELECT time_us / 86400000000 AS day, coalesce(account, '') AS account, coalesce(dataset, '') AS dataset, kind,
    coalesce(question, 0) AS question, count(*) AS events, sum(rho_high) AS rho_high, sum(rho_low) AS rho_low,
    sum(delta_high) AS delta_high, sum(delta_low) AS delta_low
FROM budget_events WHERE {}
GROUP BY time_us / 86400000000, coalesce(account, ''), coalesce(dataset, ''), kind, coalesce(question, 0)"""

TOTALS = f"""
SELECT account, kind, question, sum(events), sum(rho_high), sum(rho_low), sum(delta_high), sum(delta_low)
FROM (SELECT * FROM budget_totals UNION ALL {_TOTALS.format("reservation IS NOT NULL")}) AS t
WHERE TRUE GROUP BY account, kind, question"""
"""Read totals; the open events are few."""

ADD_TOTAL = """
INSERT INTO budget_totals
    (day, account, dataset, kind, question, events, rho_high, rho_low, delta_high, delta_low)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (day, account, dataset, kind, question) DO UPDATE SET events = budget_totals.events + excluded.events,
    rho_high = budget_totals.rho_high + excluded.rho_high, rho_low = budget_totals.rho_low + excluded.rho_low,
    delta_high = budget_totals.delta_high + excluded.delta_high,
    delta_low = budget_totals.delta_low + excluded.delta_low"""

DROP_TOTALS = "DELETE FROM budget_totals WHERE day <= ?"

ADD_TOTALS = f"""
INSERT INTO budget_totals (day, account, dataset, kind, question, events, rho_high, rho_low, delta_high, delta_low)
{_TOTALS.format("reservation IS NULL AND time_us / 86400000000 <= ?")}"""
"""Write the totals of the events up to a day, from which some were removed."""

QUESTIONS = "SELECT id, text FROM budget_questions"

SPENDING = "SELECT account, day, amount FROM budget_spending WHERE day >= ?"

INDEXED = "SELECT chain, seq FROM budget_indexed"

OPEN_EVENTS = "SELECT reservation, lines FROM budget_events WHERE chain = ? AND reservation IS NOT NULL"

FIRST_LINES = f"""
SELECT l.body FROM ({_HEADS}) AS h CROSS JOIN budget_ledger l WHERE l.chain = h.chain
    AND l.seq = (SELECT min(f.seq) FROM budget_ledger f WHERE f.chain = h.chain) AND l.seq > 1"""

SAVE_EVENT = """
INSERT INTO budget_events (time_us, chain, seq, kind, account, dataset, subject, reservation, lines, question,
    rho_high, rho_low, delta_high, delta_low)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (time_us, chain, seq) DO UPDATE SET kind = excluded.kind, account = excluded.account,
    dataset = excluded.dataset, reservation = excluded.reservation, lines = excluded.lines,
    question = excluded.question, rho_high = excluded.rho_high, rho_low = excluded.rho_low,
    delta_high = excluded.delta_high, delta_low = excluded.delta_low"""

ADD_QUESTION = "INSERT INTO budget_questions (id, text) VALUES (?, ?) ON CONFLICT (id) DO NOTHING"

SAVE_SPENDING = """
INSERT INTO budget_spending (account, day, amount) VALUES (?, ?, ?)
ON CONFLICT (day, account) DO UPDATE SET amount = excluded.amount"""

SAVE_INDEXED = """
INSERT INTO budget_indexed (chain, seq) VALUES (?, ?) ON CONFLICT (chain) DO UPDATE SET seq = excluded.seq"""

EMPTY_INDEX = tuple(f"DELETE FROM budget_{table}" for table in ("events", "totals", "questions", "spending", "indexed"))

DROP_EVENTS = """
DELETE FROM budget_events WHERE time_us < ? AND NOT EXISTS (
    SELECT 1 FROM budget_ledger l WHERE l.chain = budget_events.chain AND l.seq = budget_events.seq
)"""

DROP_SPENDING = "DELETE FROM budget_spending WHERE day < ?"

# ------------------------------------------------------------------------------------------------------ pruning

BASE = "SELECT text FROM budget_base ORDER BY place"

BASE_BEGIN = "SELECT text FROM budget_base WHERE place = 0"

WITHOUT_TIMEOUT = "SELECT {without_timeout}"
"""Let the statements of this transaction take as long as they need."""

DROP_BASE = "DELETE FROM budget_base"

ADD_BASE = "INSERT INTO budget_base (place, text) VALUES (?, ?)"

DROP_LINES = "DELETE FROM budget_ledger WHERE chain = ? AND seq <= ?"

DROP_KEYS = "DELETE FROM budget_keys WHERE time_us < ?"

DROP_ENDED = """
DELETE FROM budget_reservations WHERE state NOT IN ('held', 'running') AND lease_until_us < ?"""

# ------------------------------------------------------------------------------------------------------ verification

NEXT_HEADS = f"SELECT chain, seq, hash FROM ({_HEADS}) AS h WHERE seq > 0 ORDER BY chain"
"""Read the head of each chain that has lines, as accounts and store hold it."""

ALL_LINES = "SELECT chain, seq, body, hash FROM budget_ledger ORDER BY chain, seq"

ALL_ACCOUNTS = f"SELECT {ACCOUNT} FROM budget_accounts a"

ALL_PATHS = "SELECT account, member FROM budget_paths ORDER BY account, place"

ALL_BUCKETS = "SELECT account, bucket, tally FROM budget_buckets"

OPEN_RESERVATIONS = "SELECT id, state, holds FROM budget_reservations WHERE state IN ('held', 'running')"

ALL_RELEASES = "SELECT release_key, sha256(result), cost, digest FROM budget_releases"

ALL_ENTITLEMENTS = "SELECT account, release_key FROM budget_entitlements"

ALL_FORFEITS = "SELECT account, bucket, release_key, amount FROM budget_forfeits"

ALL_RECORDS = "SELECT kind, name, text FROM budget_records"

ALL_ACTIONS = "SELECT id, digest FROM budget_actions"

# ------------------------------------------------------------------------------------------------------ shares

HAS_ACCOUNT = "SELECT 1 FROM budget_accounts WHERE id = ?"

SENT = f"SELECT {_SENT} FROM budget_shares WHERE account = ? AND peer = ?"

RECEIVED = f"SELECT {_RECEIVED} FROM budget_shares WHERE account = ? AND peer = ?"

SAVE_SENT = """
INSERT INTO budget_shares (account, peer, number, given, pending, sent_us, version) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (account, peer) DO UPDATE SET number = excluded.number, given = excluded.given,
    pending = excluded.pending, sent_us = excluded.sent_us, version = excluded.version"""

SAVE_RECEIVED = """
INSERT INTO budget_shares (account, peer, taken_number, taken, received) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (account, peer) DO UPDATE SET taken_number = excluded.taken_number, taken = excluded.taken,
    received = excluded.received"""

_DEPTH = "(SELECT max(p.place) FROM budget_paths p WHERE p.account = a.id)"

PENDING = f"""
SELECT number, given, pending, sent_us, version, a.settings
FROM budget_shares g JOIN budget_accounts a ON a.id = g.account
WHERE g.peer = ? AND g.pending IS NOT NULL ORDER BY {_DEPTH}, a.id LIMIT ?"""

UNANNOUNCED = f"""
SELECT a.id FROM budget_accounts a LEFT JOIN budget_shares g ON g.account = a.id AND g.peer = ?
WHERE coalesce({{settings_json}} -> 'share' ->> 2, ?) = ? AND (
    coalesce(g.number, 0) = 0
    OR (g.pending IS NULL AND g.version < CAST({{settings_json}} -> 'share' ->> 3 AS bigint))
) ORDER BY {_DEPTH}, a.id LIMIT ?"""

HOLDINGS = f"""
SELECT a.id, a.settings, a.tally, a.older, g.peer, {_SENT}, {_RECEIVED}
FROM budget_accounts a LEFT JOIN budget_shares g ON g.account = a.id
WHERE a.id IN (SELECT id FROM budget_accounts WHERE id > ? ORDER BY id LIMIT ?) ORDER BY a.id, g.peer"""
