"""The tables of the budget stores, once for SQLite and PostgreSQL; `statements` says what the words mean.

Amounts are text, whole quanta between spaces, because they do not fit 64 bits: see `rows`.
"""

from __future__ import annotations

VERSION = 5
"""Of the tables below. A store with another version is refused."""

CREATE = """
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

-- owner: the instance of the service that runs the query
CREATE TABLE budget_reservations (
    id {text} PRIMARY KEY, account {text} NOT NULL, release_key {bytes} NOT NULL, worst text NOT NULL,
    holds text NOT NULL, state text NOT NULL, lease_until_us bigint NOT NULL, lease_ms bigint NOT NULL, charged text,
    owner text
) {mostly_full};
CREATE INDEX budget_leases ON budget_reservations (lease_until_us) WHERE state IN ('held', 'running');

-- idempotency keys; reservation, release_key: of the last claim that came with the key
CREATE TABLE budget_keys (
    account {text} NOT NULL, key {text} NOT NULL, digest {bytes} NOT NULL, reservation {text} NOT NULL,
    release_key {bytes} NOT NULL, PRIMARY KEY (account, key)
) {by_key};

CREATE TABLE budget_releases (
    release_key {bytes} PRIMARY KEY, result {bytes} NOT NULL, cost text NOT NULL, time_us bigint NOT NULL
);

-- number: rises with every release that the account pays for.
-- No index on it: it would cost every question more than a history, which is seldom read
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

CREATE TABLE budget_records (
    kind {text} NOT NULL, name {text} NOT NULL, text text NOT NULL, PRIMARY KEY (kind, name)
) {by_key};

-- digest: of what an action with that id did
CREATE TABLE budget_actions (id {text} PRIMARY KEY, digest {bytes} NOT NULL) {by_key};

CREATE TABLE budget_fingerprints (head_key {bytes} PRIMARY KEY, digest {bytes} NOT NULL) {by_key};

-- what an account gave to another data centre's store (number, given, pending, sent_us, version) and took from it
-- (taken_number, taken, received); see escrow.protocol.Outgoing and Incoming
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

ADD_META = """
INSERT INTO budget_meta (id, version, seen_us, seq, hash, records)
VALUES ({random_id}, ?, budget_now_us(), 0, ?, 0)"""


def other_version(version: int) -> str:
    """Return the message for a store with another version than `VERSION`."""
    return f"the store has schema {version}, and this program works with schema {VERSION} only"
