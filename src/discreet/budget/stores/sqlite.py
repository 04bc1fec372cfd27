"""Budgets in an SQLite file: one process and one writing thread; results are returned after the commit is on disk."""

from __future__ import annotations

import contextlib
import hashlib
import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw

from discreet.budget.errors import StoreInUse, StoreUnavailable
from discreet.budget.ledger import Head, Line
from discreet.budget.ledger_replay import LedgerTotals
from discreet.budget.rules import GUARD_US
from discreet.budget.stores import statements
from discreet.budget.stores.statements import for_sqlite
from discreet.budget.stores.store import BudgetStore, no_step
from discreet.budget.stores.transaction import LAST, StoreConnection, Transaction
from discreet.budget.stores.verify import verify
from discreet.errors import DiscreetError

Answer = TypeVar("Answer")

MAX_JOBS = 256
"""The most operations in one commit."""

_CANNOT_WRITE = "the budget store cannot write now, so nothing was answered and it is not known what was charged"


class _Job:
    """An operation with its result, and a lock that is released when it is done (cheaper than an Event)."""

    __slots__ = ("answer", "done", "error", "work")

    def __init__(self, work: Callable[[Transaction], Any]) -> None:
        self.work = work
        self.answer: Any = None
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()


class Writer:
    """Runs operations one after the other on a thread of its own, with one commit for all that are queued.

    SQLite lets one transaction write at a time. Threads that compete for it starve each other (measured: 1 operation
    against 5,531), and each pays its own flush to disk. The writer takes all queued operations in order,
    runs each in a savepoint, commits once, and only then returns their results.

    Args:
        db: a connection on which nothing else writes.
        begin: returns a new transaction on that connection.
        step: called with the name of each step, for fault tests.

    Attributes:
        failed: True once the disk failed: nothing is written until the file is opened again.
    """

    def __init__(self, db: apsw.Connection, begin: Callable[[], Transaction], step: Callable[[str], None]) -> None:
        self._db = db
        self._begin = begin
        self._step = step
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._open = True
        self.failed = False
        self._gate = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="budget writer", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[Transaction], Answer]) -> Answer:
        """Run *work* in a transaction and return its result once the commit is durable.

        Raises:
            StoreUnavailable: the database could not write, or the writer is closed.
            DiscreetError: an error of *work*, whose changes are rolled back.
        """
        job = _Job(work)
        with self._gate:
            if not self._open:
                raise StoreUnavailable("the budget store is closed")
            self._jobs.put(job)
        job.done.acquire()
        if job.error is not None:
            raise job.error
        return job.answer  # type: ignore[no-any-return]

    def close(self) -> None:
        """Finish the queued operations; later ones are refused."""
        with self._gate:
            self._open = False
            self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        """Commit the jobs that wait, up to `MAX_JOBS` in a transaction, until `close` puts None behind the last one."""
        is_open = True
        while is_open:
            jobs = []
            job = self._jobs.get()
            while job is not None:
                jobs.append(job)
                if len(jobs) == MAX_JOBS:
                    break
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
            is_open = job is not None
            if jobs:
                self._commit(jobs)
            for finished in jobs:
                finished.done.release()

    def _commit(self, jobs: list[_Job]) -> None:
        """Run *jobs* in one transaction."""
        try:
            self._step("begin")
            self._db.execute("BEGIN IMMEDIATE")
            for job in jobs:
                self._db.execute("SAVEPOINT job")  # which is rolled back alone if the job is refused
                try:
                    transaction = self._begin()
                    job.answer = job.work(transaction)
                    transaction.flush()
                except DiscreetError as error:
                    job.error = error
                    self._db.execute("ROLLBACK TO job")
                self._db.execute("RELEASE job")
            self._step("commit")
            self._db.execute("COMMIT")
            self._step("committed")
        except BaseException as error:  # noqa: BLE001 - after any error no job may report success
            self._roll_back(jobs, error)

    def _roll_back(self, jobs: list[_Job], error: BaseException) -> None:
        """Roll back, and fail all jobs with `StoreUnavailable`."""
        for job in jobs:
            job.error = StoreUnavailable(_CANNOT_WRITE)
            job.error.__cause__ = error
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except (apsw.Error, OSError):
            self._stop()
        if isinstance(error, apsw.IOError):
            self._stop()  # after a failed fsync, the next one may succeed without having written

    def _stop(self) -> None:
        """Refuse all operations until the store is opened again, because the state of the file is uncertain."""
        with self._gate:
            self._open = False
            self.failed = True
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                job.error = StoreUnavailable(_CANNOT_WRITE)
                job.done.release()
        self._jobs.put(None)


MIN_SQLITE = (3, 51, 3)
"""Earlier releases of SQLite can lose commits when the write-ahead log is reset."""

_DAMAGED = "the file of the budget store cannot be read: it is damaged or no SQLite database; restore it from a backup"

_NETWORK = (
    "nfs", "cifs", "smb", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.glusterfs", "ceph",
    "glusterfs", "lustre", "afs", "beegfs", "gpfs", "ncpfs", "davfs", "fuse.davfs",
)  # fmt: skip

_MOUNTS = Path("/proc/self/mounts")  # without this file, network file systems are not detected

_TABLE = re.compile(r"budget_(\w+)")


class SQLiteConnection:
    """A `transaction.Connection` to SQLite.

    Args:
        step: called after each write with the name of its table, for fault tests.
    """

    serial = True

    def __init__(self, db: apsw.Connection, step: Callable[[str], None] = no_step) -> None:
        self._db = db
        self._step = step

    def query(self, *queries: tuple[str, Sequence[Any]]) -> list[list[Any]]:
        return [self._db.execute(for_sqlite(statement), values).fetchall() for statement, values in queries]

    def stream(self, statement: str) -> Iterator[Any]:
        return iter(self._db.cursor().execute(for_sqlite(statement)))

    def is_damaged(self) -> bool:
        return self._db.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]

    def write(self, writes: Sequence[tuple[str, Sequence[Any]]]) -> None:
        for statement, values in writes:
            self._db.execute(for_sqlite(statement), values)
            if self._step is not no_step:
                self._step(_TABLE.search(statement)[1])  # type: ignore[index]  # every statement names its table

    def write_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        self._db.executemany(for_sqlite(statement), rows)


class SQLiteStore(BudgetStore):
    """A `BudgetStore` in a file.

    WAL with synchronous=FULL: committed changes survive a power cut. One process opens the file at a time, with any
    number of threads; writes are committed together (`Writer`), reads use a connection of their own.

    Args:
        path: the file, on a local disk; it is created if it is missing, as are `-wal`, `-shm` and `.lock` beside it.
            None for a store in memory, which is lost when it is closed.
        clock: returns the time in whole microseconds since 1970 UTC: the "clock of the database".
        step: called with the name of each step of a transaction, so that fault tests can interrupt there.
        guard_us: how far the clock may run ahead of the last time seen.

    Raises:
        StoreUnavailable: the file cannot be opened, is used by another process, is on a network file system, or its
            schema is not that of this program.
    """

    def __init__(
        self,
        path: Path | str | None,
        clock: Callable[[], int],
        step: Callable[[str], None] = no_step,
        guard_us: int = GUARD_US,
    ) -> None:
        super().__init__(guard_us)
        check_library(apsw.sqlite_lib_version())
        self._clock = clock
        self._step = step
        self._path = None if path is None else Path(path)
        self._reading = threading.Lock()
        self._reader: apsw.Connection | None = None
        self._lock: apsw.Connection | None = None
        with _translate_errors(), contextlib.ExitStack() as stack:
            if self._path is not None:
                check_disk(self._path)
                self._lock = stack.enter_context(contextlib.closing(lock(self._path)))
            self._open()
            stack.pop_all()

    def _open(self) -> None:
        """Open the connections, and start a writer.

        If the log has changes that were not written to the file, the last process was killed, or the disk failed. Then
        the file is checked, and the changes are written again: those whose flush failed are not on disk, even if
        they can be read, and a later flush would not write them.
        """
        log = Path(f"{self._path}-wal")
        unclean = self._path is not None and log.exists() and log.stat().st_size > 0
        with contextlib.ExitStack() as stack:
            opened = apsw.Connection(":memory:" if self._path is None else str(self._path))
            db = stack.enter_context(contextlib.closing(opened))
            if db.readonly("main"):  # SQLite opens it all the same, and fails at the first write
                raise StoreUnavailable("the file of the budget store cannot be written")
            self._configure(db)
            db.set_busy_timeout(5_000)  # for the reading connection of this store
            if self._path is not None and db.execute("PRAGMA journal_mode = WAL").fetchall() != [("wal",)]:
                raise StoreUnavailable("this file system has no shared memory for SQLite's write-ahead log")
            db.execute("PRAGMA synchronous = FULL; PRAGMA fullfsync = ON")
            connection = SQLiteConnection(db, self._step)
            if unclean:
                if connection.is_damaged():
                    raise StoreUnavailable(_DAMAGED)
                ((busy, _, _),) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                if busy:
                    raise StoreUnavailable("another process reads the budget store; try again")
            if not db.execute("SELECT 1 FROM sqlite_master").fetchall():  # a new store
                with db:
                    db.execute(for_sqlite(statements.CREATE))
                    db.execute(for_sqlite(statements.ADD_META), (statements.VERSION, Head.empty().hash))
            elif _version(db)[0] == statements.VERSION - 1:
                with db:
                    db.execute(for_sqlite(statements.UPGRADE))
            self._id = _check_version(db)
            if self._path is not None:
                self._reader = apsw.Connection(str(self._path), apsw.SQLITE_OPEN_READONLY)
                self._configure(self._reader)
            stack.pop_all()
        self._db = db
        self._writer = Writer(
            db, lambda: Transaction(connection, self._seen_us, self._guard_us, self._step), self._step
        )

    @property
    def id(self) -> str:
        return self._id

    def _write(self, work: Callable[[Transaction], Answer]) -> Answer:
        answer, now_us = self._writer.run(lambda transaction: (work(transaction), transaction.clock.now_us))
        self._seen_us = max(self._seen_us, now_us)
        return answer

    def _read(self, work: Callable[[StoreConnection], Answer]) -> Answer:
        if self._reader is None:
            return self._writer.run(lambda transaction: work(transaction.db))
        with self._reading, _translate_errors():
            return work(SQLiteConnection(self._reader))

    def heartbeat(self) -> None:
        if self._writer.failed:  # the disk failed, and may be well again
            with self._reading, _translate_errors():
                before = self._reader, self._db
                self._open()
                _close(*before)
        super().heartbeat()

    def close(self) -> None:
        self._writer.close()
        with self._reading:
            _close(self._reader, self._db, self._lock)  # in this order: the lock protects the other two

    def _snapshot(self, work: Callable[[StoreConnection], Answer]) -> Answer:
        if self._path is None:
            return self._read(work)
        with _translate_errors(), contextlib.closing(apsw.Connection(str(self._path), apsw.SQLITE_OPEN_READONLY)) as db:
            self._configure(db)
            db.execute("BEGIN")  # one snapshot, while other connections continue to write
            return work(SQLiteConnection(db))

    def _configure(self, db: apsw.Connection) -> None:
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # without it each new value replans a join: 10 times as slow
        db.create_scalar_function("budget_now_us", lambda *_: self._clock(), 0)
        _register_sha256(db)


class LedgerFile:
    """A snapshot of a file of budgets, without a lock, so that a service can continue to write.

    Raises:
        StoreUnavailable: the file cannot be read, or its schema is not that of this program.
    """

    def __init__(self, path: Path) -> None:
        check_library(apsw.sqlite_lib_version())
        with _translate_errors():
            begin = "BEGIN; SELECT 1 FROM sqlite_master"  # one snapshot of the file
            try:
                self._db = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
                self._db.execute(begin)
            except (apsw.CantOpenError, apsw.ReadOnlyError):
                # A copy in a read-only folder: nothing changes it, so SQLite needs no files beside it.
                uri = f"{path.absolute().as_uri()}?immutable=1"
                self._db = apsw.Connection(uri, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
                self._db.execute(begin)
            _register_sha256(self._db)
            if _version(self._db)[0] == statements.VERSION - 1:
                self._db.execute(statements.READ_AS_UPGRADED)
            self._connection = SQLiteConnection(self._db)
            self.id = _check_version(self._db)

    def heads(self) -> tuple[Head, ...]:
        """Return the last line of every chain that has one, by chain."""
        with _translate_errors():
            return tuple(Head(*row) for row in self._connection.query((statements.HEADS, ()))[0])

    def lines(self, chain: int = 0, after: int = 0, most: int | None = None) -> Iterator[Line]:
        """Yield the lines of a chain in order, as `BudgetStore.lines` does."""
        values = chain, after, LAST if most is None else most
        with _translate_errors():
            for row in self._db.execute(for_sqlite(statements.LINES), values):
                yield Line(*row)

    def verify(self, archived: Sequence[Iterable[Line]] = ()) -> LedgerTotals:
        """Check the whole ledger and all tables against it, as `BudgetStore.verify` does."""
        with _translate_errors():
            return verify(self._connection, archived)

    def close(self) -> None:
        """Close the file."""
        self._db.close()


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate errors of a connection into `StoreUnavailable`, without SQLite's message, which may hold values."""
    try:
        yield
    except (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError) as error:
        raise StoreUnavailable(_DAMAGED) from error
    except apsw.Error as error:
        raise StoreUnavailable("the file of the budget store cannot be opened or read now") from error


def check_library(version: str) -> None:
    """Raise `StoreUnavailable` unless SQLite is new enough."""
    if tuple(map(int, version.split(".")))[:3] < MIN_SQLITE:
        raise StoreUnavailable(f"budgets need SQLite {'.'.join(map(str, MIN_SQLITE))} or newer, not {version}")


def check_disk(path: Path, mounts: Iterable[str] | None = None) -> None:
    """Raise `StoreUnavailable` if *path* is on a network file system: its locks and flushes are not reliable."""
    if mounts is None:
        mounts = _MOUNTS.read_text().splitlines() if _MOUNTS.exists() else []
    folder = path.resolve().parent
    kinds = {}
    for line in mounts:
        _, point, kind, *_ = line.split(" ")
        kinds[point.encode().decode("unicode_escape")] = kind
    nearest = max((point for point in kinds if folder.is_relative_to(point)), key=len, default=None)
    if nearest is not None and kinds[nearest].startswith(_NETWORK):
        raise StoreUnavailable("budgets cannot be kept on a network file system; use a disk of this machine")


def lock(path: Path) -> apsw.Connection:
    """Lock *path* for this process until the returned connection is closed, or the process ends.

    Raises:
        StoreUnavailable: another process has locked it, or the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            holder = stack.enter_context(contextlib.closing(apsw.Connection(str(path) + ".lock")))
            holder.execute("PRAGMA journal_mode = MEMORY")  # no journal file: the database of the lock is empty
            if holder.readonly("main"):
                raise apsw.ReadOnlyError  # on such a file the next statement would lock nothing
            holder.execute("BEGIN EXCLUSIVE")
        except apsw.BusyError:
            raise StoreInUse("another process has this budget store open; one process at a time") from None
        except apsw.Error as error:
            raise StoreUnavailable("the folder of the budget store cannot be written") from error
        stack.pop_all()
    return holder


def _close(*connections: apsw.Connection | None) -> None:
    """Close connections. That writes the log to the file; if it fails, nothing is lost: the next opening does it."""
    for db in connections:
        with contextlib.suppress(apsw.Error):
            if db is not None:
                db.close()


def _version(db: apsw.Connection) -> tuple[int, str]:
    """Return the version of the schema of a store, 0 if there is none, and the store's id."""
    try:
        ((version, store),) = db.execute("SELECT version, id FROM budget_meta").fetchall()
    except apsw.SQLError:
        return 0, ""
    return int(version), str(store)  # type: ignore[arg-type]  # as the schema says


def _check_version(db: apsw.Connection) -> str:
    """Return the store's id; raise `StoreUnavailable` if its schema is not that of this program."""
    version, store = _version(db)
    if version != statements.VERSION:
        raise StoreUnavailable(statements.other_version(version))
    return store


def _register_sha256(db: apsw.Connection) -> None:
    db.create_scalar_function("sha256", lambda *values: hashlib.sha256(values[0]).digest(), 1, deterministic=True)
