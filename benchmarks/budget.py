"""The budget manager compared with its bare database, and the time to verify a ledger."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import queue
import shutil
import tempfile
import threading
import time
from fractions import Fraction
from pathlib import Path

import apsw

from benchmarks.timing import in_turns, table
from discreet.budget.ledger import Entry, Head, canonical, head_of, next_line, settings_text
from discreet.budget.ledger_replay import replay
from discreet.budget.manager import BudgetManager
from discreet.budget.model import Account, AdminAction, Amount, Tally
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.values import Cost

THREADS = 8
PAIRS = 125  # of each thread
LINES = 300_000
RESULT = bytes(2_000)
WORST, ACTUAL = Cost(Fraction(2, 1000), Fraction(1, 10**10)), Cost(Fraction(1, 1000), Fraction(1, 10**10))
FOLDER = Path(__file__).resolve().parent.parent / "build" / "benchmarks"


@contextlib.contextmanager
def _folder():
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=FOLDER))
    yield folder
    shutil.rmtree(folder)


def in_threads(work):
    """Run *work* concurrently, once with the number of each thread."""
    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Raw:
    """Two transactions with the rows of a reservation and a settlement in plain SQLite: no rules, no hash chain.

    Args:
        folder: folder of the database.
        together: True to commit waiting writes together on one thread; False for a connection and a commit per thread.
    """

    def __init__(self, folder, together):
        self.path, self.together = str(folder / f"raw-{together}.db"), together
        self.db = self._connection()
        self.db.execute("""
            CREATE TABLE accounts (id TEXT PRIMARY KEY, tally TEXT) WITHOUT ROWID;
            CREATE TABLE reservations (id TEXT PRIMARY KEY, state TEXT, holds TEXT) WITHOUT ROWID;
            CREATE TABLE releases (key BLOB PRIMARY KEY, result BLOB);
            CREATE TABLE entitlements (account TEXT, key BLOB, PRIMARY KEY (account, key)) WITHOUT ROWID;
            CREATE TABLE ledger (seq INTEGER PRIMARY KEY, body TEXT, hash BLOB);
        """)
        for name in ("data", "org", *(f"a{n}" for n in range(THREADS))):
            self.db.execute("INSERT INTO accounts VALUES (?, ?)", (name, "0 0 0 0 0 0 0 0"))
        self.jobs = queue.SimpleQueue()
        self.count = itertools.count()
        self.commits = 0

    def _connection(self):
        db = apsw.Connection(self.path)
        db.set_busy_timeout(60_000)
        db.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL").fetchall()
        return db

    def run(self):
        """Run all pairs of all threads."""
        start = next(self.count) * PAIRS
        writer = threading.Thread(target=self._write)
        if self.together:
            writer.start()
        in_threads(lambda n: self._ask(n, start))
        if self.together:
            self.jobs.put(None)
            writer.join()

    def _ask(self, n, start):
        db = None if self.together else self._connection()
        for i in range(start, start + PAIRS):
            for work in (_raw_reserve, _raw_settle):
                if db is None:
                    done = threading.Lock()
                    done.acquire()
                    self.jobs.put((work, n, i, done))
                    done.acquire()
                else:
                    db.execute("BEGIN IMMEDIATE")
                    work(db, n, i)
                    db.execute("COMMIT")

    def _write(self):
        waiting = []
        while True:
            waiting.append(self.jobs.get())
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.append(self.jobs.get_nowait())
            self.db.execute("BEGIN IMMEDIATE")
            for work, n, i, _ in filter(None, waiting):
                work(self.db, n, i)
            self.db.execute("COMMIT")
            for job in filter(None, waiting):
                job[3].release()
            if None in waiting:
                return
            waiting.clear()


def _raw_reserve(db, n, i):
    accounts = (f"a{n}", "org", "data")
    for account in accounts:
        db.execute("SELECT tally FROM accounts WHERE id = ?", (account,)).fetchone()
        db.execute("UPDATE accounts SET tally = ? WHERE id = ?", (f"{i} 0 0 0 0 0 0 0", account))
    db.execute("INSERT INTO reservations VALUES (?, 'held', ?)", (f"r{n}-{i}", "x" * 120))
    db.execute("INSERT INTO ledger (body, hash) VALUES (?, ?)", ("x" * 250, bytes(32)))


def _raw_settle(db, n, i):
    key = hashlib.sha256(b"%d %d" % (n, i)).digest()
    db.execute("SELECT holds FROM reservations WHERE id = ?", (f"r{n}-{i}",)).fetchone()
    db.execute("INSERT INTO releases VALUES (?, ?)", (key, RESULT))
    for account in (f"a{n}", "org", "data"):
        db.execute("SELECT tally FROM accounts WHERE id = ?", (account,)).fetchone()
        db.execute("UPDATE accounts SET tally = ? WHERE id = ?", (f"{i} 0 0 0 0 0 0 0", account))
        db.execute("INSERT INTO entitlements VALUES (?, ?)", (account, key))
    db.execute("UPDATE reservations SET state = 'settled' WHERE id = ?", (f"r{n}-{i}",))
    db.execute("INSERT INTO ledger (body, hash) VALUES (?, ?)", ("x" * 350, bytes(32)))


class Ours:
    """The manager on a store; with *started*, also the third transaction of every query."""

    def __init__(self, store, started):
        self.store = store
        numbers = itertools.count()
        self.manager = BudgetManager(self.store, lambda: f"r{next(numbers):030x}")
        self.started, self.count = started, itertools.count()
        large, act = Cost(Fraction(10**6), Fraction(1, 10)), AdminAction("bench", "a benchmark")
        for name, parent in (("data", None), ("org", "data"), *((f"a{n}", "org") for n in range(THREADS))):
            self.manager.store.create(Account(name, large, Fraction(1, 2), parent), act)

    def run(self):
        """Run all pairs of all threads."""
        start = next(self.count) * PAIRS
        in_threads(lambda n: self._ask(n, start))

    def _ask(self, n, start):
        for i in range(start, start + PAIRS):
            held = self.manager.reserve(f"a{n}", hashlib.sha256(b"%d %d" % (n, i)).digest(), WORST)
            if self.started:
                self.manager.store.start(held.id)
                self.manager.store.settle(held.id, ACTUAL, RESULT)
            else:
                self.manager.store.void(held.id)


def run() -> list[str]:
    """Reservations on three levels, 8 threads, every commit on disk; raw: the same rows without rules."""
    with _folder() as folder:
        alone, together = _Raw(folder, together=False), _Raw(folder, together=True)
        clock = lambda: time.time_ns() // 1000  # noqa: E731 - it is passed twice
        pairs, full = (Ours(SQLiteStore(folder / f"{n}.db", clock), started=bool(n)) for n in range(2))
        seconds = in_turns([alone.run, together.run, pairs.run, full.run], 3)
        for store in (pairs.store, full.store):
            store.verify()
            store.close()
    rates = [THREADS * PAIRS / taken for taken in seconds]
    floor, _, pair_rate, full_rate = rates
    rows = [
        [name, f"{rate:,.0f}", f"{rate / floor:.2f}x"]
        for name, rate in zip(
            [
                "raw: two transactions, a connection each",
                "raw: two transactions, committed together",
                "reserve + void",
                "reserve + start + settle",
            ],
            rates,
            strict=True,
        )
    ]
    rows.append(["as transactions", f"{2 * pair_rate:,.0f}, {3 * full_rate:,.0f}", ""])
    return [*table(["of 8 threads", "a second", "of raw"], rows), "", *_ledger()]


def _ledger() -> list[str]:
    head, made = Head.empty(), []
    held, used = Tally(held=Amount.of(WORST)), Tally(used=Amount.of(ACTUAL), held=-Amount.of(WORST))
    entries = [
        Entry(1, "create", detail=canonical({"account": {}, "bucket": 0, "end_us": 2**62}).replace("{}", settings))
        for settings in (settings_text(Account(n, WORST, Fraction(1, 2))) for n in ("ann", "org", "data"))
    ]
    for n in range(LINES // 3):
        detail = {"by": "ann", "release": f"{n:064x}"}
        for kind, change in (("reserve", held), ("start", None), ("settle", used)):
            changes = [(name, 0, change) for name in ("ann", "org", "data")] if change else []
            text = canonical(detail | {"result": "ab" * 32} if kind == "settle" else detail)
            entries.append(Entry(1, kind, f"{n:032x}", text, changes))
    for entry in entries:
        made.append(next_line(head, entry))
        head = head_of(made[-1])
    (taken,) = in_turns([lambda: replay([(0, made)])], 3)
    rate = len(made) / taken
    return table(["ledger", "lines a second", "10 million"], [["verify", f"{rate:,.0f}", f"{1e7 / rate:.0f} s"]])
