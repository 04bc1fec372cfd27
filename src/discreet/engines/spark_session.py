"""Asking Spark, in this process or at a Spark Connect server: each question in a session of its own."""

from __future__ import annotations

import atexit
import contextlib
import threading
import uuid
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped, import-not-found, unused-ignore]
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from discreet.engines.running import run
from discreet.engines.spark_driver import driver, unwarned
from discreet.errors import EngineError, InexactHead

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Iterator

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from discreet.engines.url import Url

_Result = TypeVar("_Result")

FAILURES = (PySparkException, Py4JError, pa.ArrowException, OSError)
"""What Spark raises; its texts may hold data."""

_PINNED = {
    # Files that cannot be read, or that are gone, are errors and not fewer rows.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreInvalidPartitionPaths": "false",
    # What overflows is an error and not another number; decimals are written without exponents.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # Tables may spell a column otherwise than their files do; told apart by case, it would be empty.
    "spark.sql.caseSensitive": "false",
    # Names and text are what they are: Spark writes bound constants into the statement, and reads it again.
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}
_REFUSED = ("spark.files.ignoreCorruptFiles", "spark.files.ignoreMissingFiles")
"""What would leave rows out and cannot be set for a session; of all of Spark, for tables in Hive's formats."""

_CANCEL_SECONDS = 0.2
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


class Question:
    """One question to Spark, in a session of its own: it sees the data as they are now, under settings of ours.

    Args:
        url: where Spark is.
        password: the token of a Spark Connect server, or None.
    """

    def __init__(self, url: Url, password: str | None) -> None:
        self._url = url
        self._password = password
        self._ended = threading.Event()

    def ask(
        self,
        work: Callable[[SparkSession], _Result],
        *,
        seconds: float | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> _Result:
        """What *work* returns.

        Raises:
            EngineError: Spark cannot be reached, cannot be set as it must be, or took too long.
            PySparkException: or another of `FAILURES`: whatever fails in *work*.
        """
        return run(lambda: self._answer(work), self._cancel, seconds=seconds, progress=progress, share=self._share)

    def _answer(self, work: Callable[[SparkSession], _Result]) -> _Result:
        with _silence():
            try:
                session = self._opened()
                _pin(session)
                return work(session)
            finally:
                self._ended.set()
                self._close()

    def _cancel(self) -> None:
        """Interrupt until it ends: what has not reached Spark yet is not there to be interrupted."""
        while not self._ended.wait(_CANCEL_SECONDS):
            with contextlib.suppress(*FAILURES):
                self._interrupt()

    def _opened(self) -> SparkSession:
        raise NotImplementedError

    def _interrupt(self) -> None:
        raise NotImplementedError

    def _share(self) -> float:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


class DriverQuestion(Question):
    """A question to Spark whose driver is this process: local, or of a standalone cluster."""

    _context: SparkContext

    def ask(
        self,
        work: Callable[[SparkSession], _Result],
        *,
        seconds: float | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> _Result:
        """See `Question.ask`; the time that Spark takes to start is not counted."""
        # In a thread, too: Spark would make Ctrl-C in the main thread its own.
        self._context = run(lambda: driver(self._url), lambda: None)
        self._group = f"discreet-{uuid.uuid4()}"
        return super().ask(work, seconds=seconds, progress=progress)

    def _opened(self) -> SparkSession:
        from pyspark.sql import SparkSession

        self._context.setJobGroup(self._group, "discreet")
        return SparkSession(self._context).newSession()

    def _interrupt(self) -> None:
        self._context.cancelJobGroup(self._group)

    def _share(self) -> float:
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        known = [stage for stage in stages if stage is not None]
        return _ratio((stage.numCompletedTasks, stage.numTasks) for stage in known)

    def _close(self) -> None:
        """The session goes with its last name; Spark stays for other questions."""


class ServerQuestion(Question):
    """A question to a Spark Connect server."""

    _session: Any = None
    _done = 0.0

    def _opened(self) -> SparkSession:
        with unwarned():
            from pyspark.sql.connect.session import SparkSession

        self._session = SparkSession(connect_url(self._url, self._password))
        # A connection that is lost is an error at once; left to itself, Spark tries for ten minutes.
        self._session.client.set_retry_policies([])
        self._session.registerProgressHandler(self._note)
        opened: Any = self._session
        return opened  # type: ignore[no-any-return, unused-ignore]

    def _note(self, *, stages: Any, **_: Any) -> None:  # noqa: ANN401 - what Spark hands out
        self._done = _ratio((stage.num_completed_tasks, stage.num_tasks) for stage in stages or ())

    def _interrupt(self) -> None:
        if self._session is not None:
            self._session.interruptAll()

    def _share(self) -> float:
        return self._done

    def _close(self) -> None:
        if self._session is not None:
            self._session.stop()
            # Spark would keep what it knows of the session until the process ends.
            atexit.unregister(getattr(self._session.client, "_on_exit", None))  # type: ignore[arg-type, unused-ignore]


def _ratio(stages: Iterable[tuple[int, int]]) -> float:
    """The share of the tasks that are done."""
    known = list(stages)
    return sum(done for done, _ in known) / max(sum(tasks for _, tasks in known), 1)


def condition_of(error: Exception) -> str:
    """A word for what went wrong that holds no data: Spark's name of the error, the state of the call, or its class."""
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    status = getattr(error, "getGrpcStatusCode", None)
    if condition is None and status is not None and status().name not in {"UNKNOWN", "INTERNAL"}:
        return str(status().name)
    return condition or type(error).__name__


def _pin(session: SparkSession) -> None:
    try:
        for name, value in _PINNED.items():
            if session.conf.get(name) != value:
                session.sql(f"SET {name}={value}")  # not conf.set(), which warns of what is deprecated
    except PySparkException as error:
        if error.getCondition() is None:  # nothing was said about the setting
            raise
        raise EngineError(f"Spark does not let {name} be {value}, without which no head is exact") from None
    for name in _REFUSED:
        if session.conf.get(name, "false") != "false":
            raise InexactHead(f"Spark leaves out rows without a word while {name} is on; switch it off")


def connect_url(url: Url, password: str | None) -> str:
    """Where a Spark Connect server is, as Spark writes it."""
    host = f"[{url.host}]" if ":" in url.host else url.host
    given = {"user_id": url.user, "token": password, "use_ssl": url.options.get("ssl")}
    parameters = [f"{name}={quote(value, safe='')}" for name, value in given.items() if value is not None]
    return f"sc://{host}:{url.port or 15002}/" + "".join(f";{parameter}" for parameter in parameters)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep from the screen what Spark says of errors in this thread: it may hold data."""
    thread = threading.get_ident()

    def heard(record: logging.LogRecord) -> bool:
        return record.thread != thread

    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(heard)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(heard)
