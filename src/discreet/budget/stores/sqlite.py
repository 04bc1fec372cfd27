"""Budgets in a file of SQLite's: one process, one writer, every answer after its commit is on disk."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from discreet.budget.errors import StoreUnavailable
from discreet.budget.ledger import Head, Line
from discreet.budget.periods import GUARD_US
from discreet.budget.stores import acts, events, place, sqlite_view
from discreet.budget.stores.rows import terms_of
from discreet.budget.stores.sqlite_rows import all_of
from discreet.budget.stores.sqlite_schema import migrate
from discreet.budget.stores.sqlite_shares import SQLiteShareBooks, SQLiteShares
from discreet.budget.stores.transactions import LAST, Transactions, check_page
from discreet.budget.stores.writer import Writer
from discreet.errors import DiscreetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from discreet.budget.ledger_replay import Verified
    from discreet.budget.model import Account, Balance, Paid, Reservation, StoredRelease
    from discreet.budget.stores.sqlite_books import SQLiteBooks
    from discreet.budget.stores.transactions import Work

Answer = TypeVar("Answer")

_LINES_AT_ONCE = 10_000


def _no_step(name: str) -> None:
    """What happens at a step of a store that is not tested for faults."""


class SQLiteStore(Transactions):
    """A `discreet.budget.store.BudgetStore` in a file.

    WAL with synchronous=FULL: what was answered survives a power cut. One process has the file at a time, and inside
    it any number of threads; writes are committed together (`writer`), reads use a connection of their own.

    Args:
        path: of the file, on a disk of this machine; it is made if it is missing, as are `-wal`, `-shm` and `.lock`
            beside it. None for a store in memory, which is gone when it is closed.
        clock: the time of day in whole microseconds since 1970 UTC: the "clock of the database".
        step: called with the name of each step of a transaction, so that tests can break it off there.
        guard_us: how far the clock may run ahead of the last time seen.

    Raises:
        StoreUnavailable: the file cannot be had, see `place`, or has a newer schema than this program knows.
        LedgerBroken: it has an older schema, and its ledger cannot be trusted.
    """

    def __init__(
        self,
        path: Path | str | None,
        clock: Callable[[], int],
        step: Callable[[str], None] = _no_step,
        guard_us: int = GUARD_US,
    ) -> None:
        place.check_library(apsw.sqlite_lib_version())
        self._clock, self._guard_us = clock, guard_us
        self._lock: apsw.Connection | None = None
        self._path = None if path is None else Path(path)
        if self._path is not None:
            place.check_disk(self._path)
            self._lock = place.lock(self._path)
        try:
            db = self._opened()
            migrate(db)
            self._reader = None if self._path is None else apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
        except (apsw.Error, DiscreetError) as error:
            if self._lock is not None:
                self._lock.close()
            if isinstance(error, DiscreetError):
                raise
            raise StoreUnavailable("the file of the budget store cannot be opened") from error
        ((self._id,),) = all_of(db, "SELECT value FROM meta WHERE name = 'id'")
        self._db = db
        self._reading = threading.Lock()
        self._writer = Writer(SQLiteShareBooks(db, clock, step, guard_us), step)

    @classmethod
    def in_memory(cls, clock: Callable[[], int], guard_us: int = GUARD_US) -> SQLiteStore:
        """A store for tests, which nothing survives."""
        return cls(None, clock, guard_us=guard_us)

    @property
    def id(self) -> str:
        """See `BudgetStore.id`."""
        return str(self._id)

    @property
    def shares(self) -> SQLiteShares:
        """Moves of shares between data centres; see `discreet.budget.escrow.transfers.ShareStore`."""
        return SQLiteShares(self.id, self._writer.run, self._read)

    def expire(self) -> int:
        """See `BudgetStore.expire`; up to a thousand in a transaction."""
        ended = 0
        while found := self._writer.run(_expire):
            ended += found
        return ended

    def refresh(self) -> int:
        """See `BudgetStore.refresh`."""
        return self._writer.run(_refresh)

    def heartbeat(self) -> None:
        """See `BudgetStore.heartbeat`."""
        self._writer.run(lambda books: books.record_seen())

    def path(self, account: str) -> tuple[Account, ...]:
        """See `BudgetStore.path`."""
        return self._read(lambda db: sqlite_view.path(db, account))

    def account(self, name: str) -> Account:
        """See `BudgetStore.account`."""
        return self.path(name)[0]

    def accounts(self) -> list[Account]:
        """See `BudgetStore.accounts`."""
        rows = self._rows("SELECT settings FROM accounts ORDER BY id")
        return [terms_of(settings).account for (settings,) in rows]

    def balance(self, account: str) -> Balance:
        """See `BudgetStore.balance`."""
        raw_us = self._clock()
        return self._read(lambda db: sqlite_view.balance(db, account, raw_us, self._guard_us))

    def reservation(self, reservation: str) -> Reservation | None:
        """See `BudgetStore.reservation`."""
        return self._read(lambda db: sqlite_view.reservation(db, reservation))

    def release(self, release_key: bytes) -> StoredRelease | None:
        """See `BudgetStore.release`."""
        return self._read(lambda db: sqlite_view.release(db, release_key))

    def entitled(self, account: str, release_key: bytes) -> bool:
        """See `BudgetStore.entitled`."""
        query = "SELECT 1 FROM entitlements WHERE account = ? AND release_key = ?"
        return bool(self._rows(query, (account, release_key)))

    def history(self, account: str, before: int | None = None, most: int = 50) -> list[Paid]:
        """See `BudgetStore.history`."""
        check_page(most)
        return self._read(lambda db: sqlite_view.history(db, account, LAST if before is None else before, most))

    def record(self, kind: str, name: str) -> str | None:
        """See `BudgetStore.record`."""
        rows = self._rows("SELECT text FROM records WHERE kind = ? AND name = ?", (kind, name))
        return rows[0][0] if rows else None

    def records(self, kind: str) -> list[tuple[str, str]]:
        """See `BudgetStore.records`."""
        return self._rows("SELECT name, text FROM records WHERE kind = ? ORDER BY name", (kind,))

    def records_version(self) -> int:
        """See `BudgetStore.records_version`."""
        ((version,),) = self._rows("SELECT value FROM meta WHERE name = 'records'")
        return int(version)

    def heads(self) -> tuple[Head, ...]:
        """See `BudgetStore.heads`."""
        query = "SELECT seq, hash FROM ledger ORDER BY seq DESC LIMIT 1"
        return tuple(Head(0, *row) for row in self._rows(query))

    def lines(self, chain: int = 0, after: int = 0, most: int | None = None) -> Iterator[Line]:
        """See `BudgetStore.lines`."""
        left = -1 if most is None else most
        query = "SELECT seq, body, hash FROM ledger WHERE seq > ? ORDER BY seq LIMIT ?"
        while chain == 0 and left:
            at_once = _LINES_AT_ONCE if left < 0 else min(left, _LINES_AT_ONCE)
            rows = self._rows(query, (after, at_once))
            for seq, body, hash_ in rows:
                yield Line(0, seq, body, hash_)
            if len(rows) < at_once:
                return
            after = rows[-1][0]
            left -= len(rows) if left > 0 else 0

    def verify(self) -> Verified:
        """See `BudgetStore.verify`."""
        if self._path is None:
            return self._writer.run(lambda books: sqlite_view.verify(books.db))
        reader = apsw.Connection(str(self._path), apsw.SQLITE_OPEN_READONLY)
        try:
            reader.execute("BEGIN")  # one reading of everything, while others go on writing
            return sqlite_view.verify(reader)
        finally:
            reader.close()

    def close(self) -> None:
        """See `BudgetStore.close`."""
        self._writer.close()
        with self._reading:
            for db in (self._reader, self._db, self._lock):
                if db is not None:
                    db.close()

    def _write(self, work: Work[Answer], *, repeat: bool) -> Answer:  # noqa: ARG002 - nobody is ever left in doubt
        return self._writer.run(work)

    def _rows(self, query: str, values: tuple[str | bytes | int, ...] = ()) -> list[tuple[Any, ...]]:
        return self._read(lambda db: all_of(db, query, values))

    def _read(self, query: Callable[[apsw.Connection], Answer]) -> Answer:
        """Read what is committed."""
        if self._reader is None:
            return self._writer.run(lambda books: query(books.db))
        try:
            with self._reading:
                return query(self._reader)
        except (apsw.Error, apsw.ConnectionClosedError) as error:
            raise StoreUnavailable("the budget store cannot be read now") from error

    def _opened(self) -> apsw.Connection:
        db = apsw.Connection(":memory:" if self._path is None else str(self._path))
        db.set_busy_timeout(5_000)  # for our own reading connection
        if self._path is not None:
            ((mode,),) = all_of(db, "PRAGMA journal_mode = WAL")
            if mode != "wal":
                raise StoreUnavailable("this file system has no shared memory for SQLite's write-ahead log")
        db.execute("PRAGMA synchronous = FULL; PRAGMA fullfsync = ON; PRAGMA foreign_keys = ON")
        return db


def _expire(books: SQLiteBooks) -> int:
    """End those that are dead, one after the other."""
    names = books.dead()
    for name in names:
        events.expire(books, name)
        books.flush()
    return len(names)


def _refresh(books: SQLiteBooks) -> int:
    """Open the buckets that are due, one after the other."""
    names = books.due()
    for name in names:
        acts.refresh(books, name)
        books.flush()
    return len(names)
