"""The budget manager on PostgreSQL compared with plain writes of the same rows."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from benchmarks.budget import PAIRS, RESULT, THREADS, Ours, in_threads
from benchmarks.timing import in_turns, table
from discreet.budget.stores.postgres import PostgresStore
from tests.servers import postgres

TALLY = [0] * 8


class _Raw:
    """Two transactions with the rows of a reservation and a settlement: one locking and one writing statement each.

    Args:
        url: URL of a database.
    """

    def __init__(self, url):
        self.url, self.count = url, itertools.count()
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("""
                CREATE TABLE accounts (id text PRIMARY KEY, depth int, seq bigint, tally numeric[])
                    WITH (fillfactor = 50);
                CREATE TABLE reservations (id text PRIMARY KEY, state text, holds text) WITH (fillfactor = 70);
                CREATE TABLE releases (key bytea PRIMARY KEY, result bytea);
                CREATE TABLE entitlements (account text, key bytea, PRIMARY KEY (account, key));
                CREATE TABLE ledger (chain text, seq bigint, body text, hash bytea, PRIMARY KEY (chain, seq));
            """)
            names = [("data", 0), ("org", 1), *((f"a{n}", 2) for n in range(THREADS))]
            for name, depth in names:
                db.execute("INSERT INTO accounts VALUES (%s, %s, 0, %s)", (name, depth, TALLY))

    def run(self):
        """Run all pairs of all threads."""
        start = next(self.count) * PAIRS
        in_threads(lambda n: self._ask(n, start))

    def _ask(self, n, start):
        with psycopg.connect(self.url, prepare_threshold=0) as db:
            for i in range(start, start + PAIRS):
                self._write(db, n, _RESERVE, {"name": f"r{n}-{i}"})
                key = hashlib.sha256(b"%d %d" % (n, i)).digest()
                self._write(db, n, _SETTLE, {"name": f"r{n}-{i}", "key": key, "result": RESULT})

    def _write(self, db, n, statement, values):
        rows = db.execute(_LOCK, ([f"a{n}", "org", "data"],)).fetchall()
        tally = [rows[0][1] + 1, 0, 0, 0, 0, 0, 0, 0]
        same = {"path": [f"a{n}", "org", "data"], "tally": tally, "chain": f"a{n}", "seq": rows[0][1] + 1}
        db.execute(statement, values | same)
        db.commit()


_LOCK = "SELECT id, seq, tally FROM accounts WHERE id = ANY (%s) ORDER BY depth DESC FOR NO KEY UPDATE"
_SAVE = (
    "WITH a AS (UPDATE accounts SET seq = %(seq)s, tally = %(tally)s::numeric[] WHERE id = ANY (%(path)s::text[])), "
    "l AS (INSERT INTO ledger VALUES (%(chain)s, %(seq)s, repeat('x', 350), sha256('x')))"
)
_RESERVE = f"{_SAVE} INSERT INTO reservations VALUES (%(name)s, 'held', repeat('x', 120))"
_SETTLE = f"""{_SAVE},
    r AS (INSERT INTO releases VALUES (%(key)s, %(result)s)),
    e AS (INSERT INTO entitlements SELECT account, %(key)s FROM unnest(%(path)s::text[]) AS account)
    UPDATE reservations SET state = 'settled' WHERE id = %(name)s"""


@contextlib.contextmanager
def _database():
    """Create a database, as its owner, on the server of DISCREET_POSTGRES_URL or on one that is started here."""
    folder = Path(tempfile.mkdtemp())
    running = os.environ.get("DISCREET_POSTGRES_URL")
    url = running or postgres.start(folder)
    name = f"bench{os.getpid()}"
    with postgres.owner(url) as db:
        db.execute(f"CREATE DATABASE {name}")
    parts = urlsplit(url)
    place = parts._replace(netloc=f"{postgres.OWNER}:{postgres.OWNER}@{parts.hostname}:{parts.port}", path=f"/{name}")
    try:
        yield urlunsplit(place)
        with postgres.owner(url) as db:
            db.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        if not running:
            postgres.stop(folder)
        shutil.rmtree(folder, ignore_errors=True)


def run() -> list[str]:
    """Reservations on three levels, 8 threads, in PostgreSQL; raw: the same rows, locked and written without rules."""
    with _database() as url:
        raw, full = _Raw(url), Ours(PostgresStore(url), started=True)
        seconds = in_turns([raw.run, full.run], 5)
        full.store.verify()
        full.store.close()
    floor, rate = (THREADS * PAIRS / taken for taken in seconds)
    rows = [
        ["raw: two transactions", f"{floor:,.0f}", "1.00x"],
        ["reserve + start + settle", f"{rate:,.0f}", f"{rate / floor:.2f}x"],
    ]
    return table(["of 8 threads, PostgreSQL", "a second", "of raw"], rows)
