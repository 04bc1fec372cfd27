"""Budgets in a file of SQLite's: one process, one writer, every answer after its commit is on disk."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import apsw

from discreet.budget.amount import Amount
from discreet.budget.errors import StoreUnavailable, UnknownAccount
from discreet.budget.ledger import Head, Line
from discreet.budget.periods import GUARD_US
from discreet.budget.states import Event
from discreet.budget.stores import place, sqlite_accounts, sqlite_claims, sqlite_view
from discreet.budget.stores.sqlite_books import Books, kept_of, release_of
from discreet.budget.stores.sqlite_rows import all_of, one_of, terms_of
from discreet.budget.stores.sqlite_schema import migrate
from discreet.budget.stores.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from discreet.budget.ledger import Verified
    from discreet.budget.model import Account, Act, Balance, Claim, Reservation, Settled, StoredRelease
    from discreet.budget.store import Admission
    from discreet.values import Cost

Answer = TypeVar("Answer")

_LINES_AT_ONCE = 10_000


def _no_step(name: str) -> None:
    """What happens at a step of a store that is not tested for faults."""


class SQLiteStore:
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
        except (apsw.Error, StoreUnavailable) as error:
            if self._lock is not None:
                self._lock.close()
            if isinstance(error, StoreUnavailable):
                raise
            raise StoreUnavailable("the file of the budget store cannot be opened") from error
        ((self._id,),) = all_of(db, "SELECT value FROM meta WHERE name = 'id'")
        self._db = db
        self._reading = threading.Lock()
        self._writer = Writer(Books(db, clock, step, guard_us), step)

    @classmethod
    def in_memory(cls, clock: Callable[[], int], guard_us: int = GUARD_US) -> SQLiteStore:
        """A store for tests, which nothing survives."""
        return cls(None, clock, guard_us=guard_us)

    @property
    def id(self) -> str:
        """See `BudgetStore.id`."""
        return str(self._id)

    def reserve(self, claim: Claim) -> Admission:
        """See `BudgetStore.reserve`."""
        return self._writer.run(lambda books: sqlite_claims.reserve(books, claim))

    def start(self, reservation: str) -> Reservation:
        """See `BudgetStore.start`."""
        return self._writer.run(lambda books: sqlite_claims.start(books, reservation))

    def settle(self, reservation: str, actual: Cost, result: bytes) -> Settled:
        """See `BudgetStore.settle`."""
        amount = Amount.of(actual)
        return self._writer.run(lambda books: sqlite_claims.settle(books, reservation, amount, result))

    def void(self, reservation: str) -> None:
        """See `BudgetStore.void`."""
        self._writer.run(lambda books: sqlite_claims.end(books, reservation, Event.VOID))

    def forfeit(self, reservation: str) -> None:
        """See `BudgetStore.forfeit`."""
        self._writer.run(lambda books: sqlite_claims.end(books, reservation, Event.FORFEIT))

    def expire(self) -> int:
        """See `BudgetStore.expire`."""
        ended = 0
        while found := self._writer.run(sqlite_claims.expire):
            ended += found
        return ended

    def create(self, account: Account, act: Act) -> None:
        """See `BudgetStore.create`."""
        self._writer.run(lambda books: sqlite_accounts.create(books, account, act))

    def alter(self, account: Account, act: Act) -> None:
        """See `BudgetStore.alter`."""
        self._writer.run(lambda books: sqlite_accounts.alter(books, account, act))

    def charge(self, account: str, cost: Cost, act: Act) -> None:
        """See `BudgetStore.charge`."""
        self._writer.run(lambda books: sqlite_accounts.charge(books, account, cost, act))

    def refund(self, account: str, cost: Cost, act: Act) -> None:
        """See `BudgetStore.refund`."""
        self._writer.run(lambda books: sqlite_accounts.refund(books, account, cost, act))

    def refresh(self) -> int:
        """See `BudgetStore.refresh`."""
        return self._writer.run(sqlite_accounts.refresh)

    def heartbeat(self) -> None:
        """See `BudgetStore.heartbeat`."""
        self._writer.run(lambda books: books.record_seen())

    def confirm_clock(self, act: Act) -> None:
        """See `BudgetStore.confirm_clock`."""
        self._writer.run(lambda books: sqlite_accounts.confirm_clock(books, act))

    def note(self, act: Act, detail: Mapping[str, str]) -> None:
        """See `BudgetStore.note`."""
        self._writer.run(lambda books: sqlite_accounts.note(books, act, detail))

    def path(self, account: str) -> tuple[Account, ...]:
        """See `BudgetStore.path`."""

        def climb(db: apsw.Connection) -> tuple[Account, ...]:
            found: list[Account] = []
            name: str | None = account
            while name is not None:
                row = one_of(db, "SELECT settings FROM accounts WHERE id = ?", (name,))
                if row is None:
                    raise UnknownAccount(name)
                found.append(terms_of(row[0]).account)
                name = found[-1].parent
            return tuple(found)

        return self._read(climb)

    def accounts(self) -> list[Account]:
        """See `BudgetStore.accounts`."""
        rows = self._read(lambda db: all_of(db, "SELECT settings FROM accounts ORDER BY id"))
        return [terms_of(settings).account for (settings,) in rows]

    def balance(self, account: str) -> Balance:
        """See `BudgetStore.balance`."""
        raw_us = self._clock()
        return self._read(lambda db: sqlite_view.balance(db, account, raw_us, self._guard_us))

    def reservation(self, reservation: str) -> Reservation | None:
        """See `BudgetStore.reservation`."""
        kept = self._read(lambda db: kept_of(db, reservation))
        return None if kept is None else kept.reservation

    def release(self, release_key: bytes) -> StoredRelease | None:
        """See `BudgetStore.release`."""
        return self._read(lambda db: release_of(db, release_key))

    def entitled(self, account: str, release_key: bytes) -> bool:
        """See `BudgetStore.entitled`."""
        query = "SELECT 1 FROM entitlements WHERE account = ? AND release_key = ?"
        return self._read(lambda db: one_of(db, query, (account, release_key)) is not None)

    def heads(self) -> tuple[Head, ...]:
        """See `BudgetStore.heads`."""
        query = "SELECT seq, hash FROM ledger ORDER BY seq DESC LIMIT 1"
        return tuple(Head(0, *row) for row in self._read(lambda db: all_of(db, query)))

    def lines(self, chain: int = 0, after: int = 0, most: int | None = None) -> Iterator[Line]:
        """See `BudgetStore.lines`."""
        left = -1 if most is None else most
        query = "SELECT seq, body, hash FROM ledger WHERE seq > ? ORDER BY seq LIMIT ?"
        while chain == 0 and left:
            at_once = _LINES_AT_ONCE if left < 0 else min(left, _LINES_AT_ONCE)
            rows = self._read(functools.partial(all_of, query=query, values=(after, at_once)))
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
