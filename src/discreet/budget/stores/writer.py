"""One writer, a queue, and one commit for whoever waits.

SQLite lets one transaction write at a time. Threads that fight for it starve each other (measured: 1 operation against
5,531), and each pays its own flush to disk. Here they wait in line: the writer takes all that stand there, runs each in
a savepoint, commits once, and only then tells each what became of it.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from discreet.budget.errors import StoreUnavailable
from discreet.errors import DiscreetError

if TYPE_CHECKING:
    from collections.abc import Callable

    from discreet.budget.stores.sqlite_books import SQLiteBooks

Answer = TypeVar("Answer")

TOGETHER_MOST = 256
"""Operations in one commit."""

_CANNOT = "the budget store cannot write now, so nothing was answered and it is not known what was charged"


class _Job:
    """An operation that somebody waits for."""

    __slots__ = ("answer", "done", "error", "work")

    def __init__(self, work: Callable[[SQLiteBooks], Any]) -> None:
        self.work = work
        self.answer: Any = None
        self.error: BaseException | None = None
        self.done = threading.Lock()  # cheaper than an Event; the writer releases it
        self.done.acquire()


class Writer:
    """Runs operations one after the other, in the order they came, on a thread of its own.

    Args:
        books: of the connection, which nobody else writes on.
        step: called with the name of each step, for fault tests.
    """

    def __init__(self, books: SQLiteBooks, step: Callable[[str], None]) -> None:
        self._books, self._step = books, step
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._open = True
        self._gate = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="budget writer", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[SQLiteBooks], Answer]) -> Answer:
        """Run *work* in a transaction and return what it returns, once that is durable.

        Raises:
            StoreUnavailable: the database could not write, or the writer is closed.
            DiscreetError: as *work* raises; it has changed nothing then.
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
        """Finish what is under way; nothing is taken on after that."""
        with self._gate:
            self._open = False
            self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        going = True
        while going:
            jobs = []
            first = self._jobs.get()
            going = first is not None
            if first is not None:
                jobs.append(first)
            while going and len(jobs) < TOGETHER_MOST:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                going = job is not None
                if job is not None:
                    jobs.append(job)
            if jobs:
                self._commit(jobs)
            for job in jobs:
                job.done.release()

    def _commit(self, jobs: list[_Job]) -> None:
        """Run *jobs* in one transaction."""
        db = self._books.db
        try:
            self._step("begin")
            db.execute("BEGIN IMMEDIATE")
            before = db.total_changes()
            for job in jobs:
                self._try(job)
            if db.total_changes() != before:  # who only reads, such as a free replay, waits for no disk
                self._books.record_seen()
            self._step("commit")
            db.execute("COMMIT")
            self._step("committed")
        except BaseException as error:  # noqa: BLE001 - whatever it was, nobody may believe that anything happened
            self._undo(jobs, error)

    def _try(self, job: _Job) -> None:
        """Run one job in a savepoint; what it raises on purpose undoes it alone."""
        books = self._books
        head = books.head
        books.db.execute("SAVEPOINT job")
        books.tick()
        try:
            job.answer = job.work(books)
            books.flush()
        except DiscreetError as error:
            job.error = error
            books.db.execute("ROLLBACK TO job")
            books.head = head
        books.db.execute("RELEASE job")

    def _undo(self, jobs: list[_Job], error: BaseException) -> None:
        """Nothing of the transaction happened: say so to all who wait."""
        for job in jobs:
            job.error = StoreUnavailable(_CANNOT)
            job.error.__cause__ = error
        try:
            if self._books.db.in_transaction:
                self._books.db.execute("ROLLBACK")
            self._books.load()
        except (apsw.Error, OSError):
            self._stop()
        if isinstance(error, apsw.IOError):
            self._stop()  # after a flush that failed, the next one may succeed without having flushed

    def _stop(self) -> None:
        """Nothing is sure any more: take on nothing until somebody opens the store again."""
        with self._gate:
            self._open = False
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                job.error = StoreUnavailable(_CANNOT)
                job.done.release()
        self._jobs.put(None)
