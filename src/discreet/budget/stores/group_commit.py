"""One writer thread with a queue, and one commit for all operations that wait.

SQLite lets one transaction write at a time. Threads that compete for it starve each other (measured: 1 operation
against 5,531), and each pays its own flush to disk. Here they queue: the writer takes all waiting operations, runs each
in a savepoint, commits once, and only then returns their results.
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

    from discreet.budget.stores.transaction import Transaction

Answer = TypeVar("Answer")

TOGETHER_MOST = 256
"""Operations in one commit."""

_CANNOT = "the budget store cannot write now, so nothing was answered and it is not known what was charged"


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
    """Runs operations one after the other, in the order they came, on a thread of its own.

    Args:
        db: a connection on which nothing else writes.
        begin: makes the transaction of an operation on that connection.
        step: called with the name of each step, for fault tests.
    """

    def __init__(self, db: apsw.Connection, begin: Callable[[], Transaction], step: Callable[[str], None]) -> None:
        self._db, self._begin, self._step = db, begin, step
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._open = True
        self._gate = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="budget writer", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[Transaction], Answer]) -> Answer:
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
        """Finish what is under way; nothing is accepted after that."""
        with self._gate:
            self._open = False
            self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        going = True
        while going:
            jobs = []
            job = self._jobs.get()
            while job is not None:
                jobs.append(job)
                if len(jobs) == TOGETHER_MOST:
                    break
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
            going = job is not None
            if jobs:
                self._commit(jobs)
            for each in jobs:
                each.done.release()

    def _commit(self, jobs: list[_Job]) -> None:
        """Run *jobs* in one transaction."""
        try:
            self._step("begin")
            self._db.execute("BEGIN IMMEDIATE")
            for job in jobs:
                self._try(job)
            self._step("commit")
            self._db.execute("COMMIT")
            self._step("committed")
        except BaseException as error:  # noqa: BLE001 - whatever it was, no job may believe that it was done
            self._undo(jobs, error)

    def _try(self, job: _Job) -> None:
        """Run one job in a savepoint, which is rolled back alone if the job is refused."""
        self._db.execute("SAVEPOINT job")
        try:
            transaction = self._begin()
            job.answer = job.work(transaction)
            transaction.flush()
        except DiscreetError as error:
            job.error = error
            self._db.execute("ROLLBACK TO job")
        self._db.execute("RELEASE job")

    def _undo(self, jobs: list[_Job], error: BaseException) -> None:
        """Roll back, and report to all jobs that nothing is known to have happened."""
        for job in jobs:
            job.error = StoreUnavailable(_CANNOT)
            job.error.__cause__ = error
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except (apsw.Error, OSError):
            self._stop()
        if isinstance(error, apsw.IOError):
            self._stop()  # after a flush that failed, the next one may succeed without having flushed

    def _stop(self) -> None:
        """Accept nothing until the store is opened again: the state of the file is not certain any more."""
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
