"""Sessions of Spark, in this process or at a Spark Connect server: one for each request."""

from __future__ import annotations

import atexit
import contextlib
import copy
import logging
import os
import shutil
import socket
import subprocess
import threading
import time
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped, import-not-found, unused-ignore]
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from discreet.engines.base import PATIENCE_SECONDS, run
from discreet.engines.url import Url
from discreet.errors import EngineError, EngineUnreachable, InexactHead

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_Result = TypeVar("_Result")

FAILURES = (PySparkException, Py4JError, pa.ArrowException, OSError)
"""The exceptions that Spark raises; their messages may hold data."""

_PINNED = {
    # Unreadable and missing files are errors; their rows are never left out.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreInvalidPartitionPaths": "false",
    # An overflow is an error and never wraps; decimals are written without exponents.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # If a table and its files spell a column in different case, a case-sensitive session would read NULLs.
    "spark.sql.caseSensitive": "false",
    # Names and text are taken literally: Spark writes bound constants into the statement, and parses it again.
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}
_REFUSED = ("spark.files.ignoreCorruptFiles", "spark.files.ignoreMissingFiles")
"""Global settings of Spark that leave out rows of Hive tables, and cannot be set for a session."""

_CANCEL_SECONDS = 1.0
_PLANNING_SECONDS = 30.0
"""Seconds that an interrupt waits for the first stage of a job; servers report stages every two seconds."""

_CONNECT_SECONDS = 10
_MASTER_PORT = 7077
_CONNECT_PORT = 15002
_DRIVER_MEMORY = "2g"
_starting = threading.Lock()  # a process has at most one Spark context
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def open_session(url: Url) -> SessionRun:
    """Return a session for *url*, in this process or at a Spark Connect server; it is not connected yet."""
    return ServerSession(url) if url.scheme == "sc" else DriverSession(url)


class SessionRun(ABC):
    """A new Spark session, which sees the current data and has the settings in `_PINNED`; `run` opens it.

    Attributes:
        frames: data frames that Spark keeps; released when the session ends, after the work that may still use them.
    """

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self._pinned: SparkSession | None = None
        self._ended = threading.Event()
        self._ended.set()

    def run(
        self,
        work: Callable[[SparkSession], _Result],
        *,
        seconds: float | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> _Result:
        """Run *work* on the session and return its result.

        Raises:
            EngineError: Spark cannot be reached, does not take a setting, or took too long.
            PySparkException: or another of `FAILURES`: any failure of *work*.
        """
        ended = self._ended = threading.Event()

        def answer() -> _Result:
            with silence():
                try:
                    if self._pinned is None:
                        opened = self._opened()
                        self._pin(opened)
                        self._pinned = opened
                    return work(self._pinned)
                finally:
                    ended.set()

        return run(
            answer,
            lambda: self._cancel(ended),
            seconds=seconds,
            progress=progress,
            share=self._share,
            patience=PATIENCE_SECONDS,
        )

    def close(self) -> None:
        """End the session; later, and without waiting, if its work did not end when it was cancelled."""
        self._pinned = None
        finish = threading.Thread(target=self._finish, daemon=True)
        finish.start()
        if self._ended.is_set():
            finish.join(_CONNECT_SECONDS)  # a stalled network could delay it forever

    def _finish(self) -> None:
        self._ended.wait()
        with silence():
            for frame in self.frames:
                with contextlib.suppress(*FAILURES):
                    frame.unpersist()
            with contextlib.suppress(*FAILURES):
                self._close()

    @abstractmethod
    def ping(self) -> None:
        """Raise `EngineUnreachable` unless Spark can be reached; no session is opened."""

    def _cancel(self, ended: threading.Event) -> None:
        """Interrupt repeatedly until the work ends: a job that has not reached Spark yet cannot be interrupted."""
        while not ended.is_set():
            with contextlib.suppress(*FAILURES):
                self._interrupt()
            ended.wait(_CANCEL_SECONDS)

    def _pin(self, session: SparkSession) -> None:
        """Set and check the session settings that exact counts need.

        Raises:
            EngineError: Spark does not take a setting.
            InexactHead: a global setting of Spark leaves out rows.
        """
        try:
            for name, value in _PINNED.items():
                if session.conf.get(name) != value:
                    session.sql(f"SET {name}={value}")  # conf.set() would warn about deprecated settings
        except PySparkException as error:
            if error.getCondition() is None:  # the error is not about the setting
                raise
            raise EngineError(f"Spark does not let {name} be {value}, without which no head is exact") from None
        for name in _REFUSED:
            if session.conf.get(name, "false") != "false":
                raise InexactHead(f"Spark leaves out rows silently while {name} is on; switch it off")

    @abstractmethod
    def _opened(self) -> SparkSession: ...

    @abstractmethod
    def _interrupt(self) -> None: ...

    @abstractmethod
    def _share(self) -> float: ...

    @abstractmethod
    def _close(self) -> None: ...


class DriverSession(SessionRun):
    """A session of a Spark driver in this process: local, or of a standalone cluster."""

    def __init__(self, url: Url) -> None:
        super().__init__()
        self._url = url
        self._group = f"discreet-{uuid.uuid4()}"
        self._context: SparkContext

    def ping(self) -> None:
        # Runs in a thread, because in the main thread Spark itself would handle Ctrl-C.
        self._context = run(lambda: _driver(self._url), lambda: None)

    def run(
        self,
        work: Callable[[SparkSession], _Result],
        *,
        seconds: float | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> _Result:
        self.ping()  # the time limit excludes the start of Spark

        def grouped(session: SparkSession) -> _Result:
            self._context.setJobGroup(self._group, "discreet")  # applies to this thread
            return work(session)

        return super().run(grouped, seconds=seconds, progress=progress)

    def _opened(self) -> SparkSession:
        from pyspark.sql import SparkSession

        return SparkSession(self._context).newSession()

    def _interrupt(self) -> None:
        self._context.cancelJobGroup(self._group)

    def _share(self) -> float:
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        started = [stage for stage in stages if stage is not None]
        return _ratio((stage.numCompletedTasks, stage.numTasks) for stage in started)

    def _close(self) -> None:
        """Do nothing: the session ends with its last reference, and other sessions still use the Spark context."""


class ServerSession(SessionRun):
    """A session of a Spark Connect server.

    Args:
        builder: how another session of PySpark is connected, if this one is to be connected alike.
    """

    def __init__(self, url: Url, builder: Any = None) -> None:  # noqa: ANN401 - a type of Spark Connect's
        super().__init__()
        self._url = url
        self._builder = builder
        self._session: Any = None
        self._done = 0.0
        self._is_counting = False

    def ping(self) -> None:
        _reach(self._url, _CONNECT_PORT)

    def _opened(self) -> SparkSession:
        with unwarned():
            from pyspark.sql.connect.session import SparkSession

        connection: Any = connect_url(self._url)
        if self._builder is not None:
            connection = copy.deepcopy(self._builder)
            connection._params.pop(connection.PARAM_SESSION_ID, None)
        self._session = SparkSession(connection)
        # A lost connection is an error at once; by default Spark retries for ten minutes.
        self._session.client.set_retry_policies([])
        self._session.registerProgressHandler(self._note)
        opened: Any = self._session
        return opened  # type: ignore[no-any-return, unused-ignore]

    def _pin(self, session: SparkSession) -> None:
        """Set and check all settings in two requests; one request per setting would take a third of a second."""
        from pyspark.sql.connect import proto

        client: Any = self._session.client
        pairs = [proto.KeyValue(key=name, value=value) for name, value in _PINNED.items()]
        usual = [(name, "") for name in _PINNED] + [(name, "false") for name in _REFUSED]
        try:
            client.config(proto.ConfigRequest.Operation(set=proto.ConfigRequest.Set(pairs=pairs)))
            pinned = client.get_config_with_defaults(*usual) == (*_PINNED.values(), *["false"] * len(_REFUSED))
        except PySparkException:
            pinned = False
        if not pinned:  # setting them one by one shows which one failed
            super()._pin(session)

    def _note(self, *, stages: Any, **_: Any) -> None:  # noqa: ANN401 - Spark's own type
        self._is_counting = any(not stage.done for stage in stages or ())
        self._done = _ratio((stage.num_completed_tasks, stage.num_tasks) for stage in stages or ())

    def _cancel(self, ended: threading.Event) -> None:
        """Interrupt once a job runs: while Spark plans, an interrupt ends the statement, but not the job after it."""
        self._is_counting = False
        end = time.monotonic() + _PLANNING_SECONDS
        while not self._is_counting and time.monotonic() < end and not ended.wait(_CANCEL_SECONDS / 10):
            pass
        super()._cancel(ended)

    def _interrupt(self) -> None:
        if self._session is not None:
            self._session.interruptAll()

    def _share(self) -> float:
        return self._done

    def _close(self) -> None:
        if self._session is not None:
            self._session.stop()
            # Spark would keep the session's state until the process ends.
            atexit.unregister(getattr(self._session.client, "_on_exit", None))  # type: ignore[arg-type, unused-ignore]


def _ratio(stages: Iterable[tuple[int, int]]) -> float:
    """Return the share of completed tasks; each stage is its completed and total tasks."""
    started = list(stages)
    return sum(done for done, _ in started) / max(sum(tasks for _, tasks in started), 1)


def condition_of(error: Exception) -> str:
    """Return a name for the error that holds no data: Spark's condition, the gRPC status, or the class."""
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    status = getattr(error, "getGrpcStatusCode", None)
    if condition is None and status is not None and status().name not in {"UNKNOWN", "INTERNAL"}:
        return str(status().name)
    return condition or type(error).__name__


def connect_url(url: Url) -> str:
    """Return the URL of a Spark Connect server in Spark's syntax; the password becomes the token."""
    host = f"[{url.host}]" if ":" in url.host else url.host
    settings = {"user_id": url.user, "token": url.password, "use_ssl": url.options.get("ssl")}
    parameters = [f"{name}={quote(value, safe='')}" for name, value in settings.items() if value is not None]
    return f"sc://{host}:{url.port or _CONNECT_PORT}/" + "".join(f";{parameter}" for parameter in parameters)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keep Spark from printing the errors of this thread, which may hold data."""
    thread = threading.get_ident()

    def is_other(record: logging.LogRecord) -> bool:
        return record.thread != thread

    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(is_other)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_other)


def _driver(url: Url) -> SparkContext:
    """Return the Spark context of this process, or start one, which runs until the process ends.

    Raises:
        EngineUnreachable: the cluster cannot be reached.
        EngineError: Spark does not start, or the running context belongs to another cluster.
    """
    from pyspark import SparkContext

    with _starting:
        running = SparkContext._active_spark_context
        gateway: Any = SparkContext._gateway
        process = getattr(gateway, "proc", None)
        if running is not None and process is not None and process.poll() is not None:
            # Spark's Java process was killed, but PySpark would still send requests to it.
            gateway._gateway_client.is_connected = False  # else py4j logs that it cannot delete objects there
            running._jsc = None  # type: ignore[assignment, unused-ignore]
            SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = running = None
        if running is None:
            return _started(url)
    if url.host == "local" or running.master == str(url):
        return running
    raise EngineError(f"this process runs Spark at {running.master} already, and there can be only one")


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """Silence warnings about new versions of pandas, which is not used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _started(url: Url) -> SparkContext:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    settings = {
        "spark.app.name": "discreet",
        "spark.master": "local[*]" if url.host == "local" else str(url),
        "spark.driver.memory": _DRIVER_MEMORY,
        "spark.ui.enabled": "false",
    }
    if url.host == "local":
        settings |= {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
    else:
        _reach(url, _MASTER_PORT)
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=f"{home}/bin" if home else None) is None:
        raise EngineError("Spark needs Java 17 or later, and there is none; install one, or set JAVA_HOME")
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    launch: Any = launch_gateway
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        gateway = None if SparkContext._gateway else launch(conf, silent)
        with unwarned():
            return SparkContext(conf=conf, gateway=gateway)
    except (PySparkException, Py4JError, OSError):
        raise EngineError(f"Spark does not start; it needs Java 17 or later and {_DRIVER_MEMORY} of memory") from None


def _reach(url: Url, default_port: int) -> None:
    """Connect to the port once and disconnect: Spark itself would try for a minute.

    Raises:
        EngineUnreachable: nothing accepts connections there.
    """
    try:
        socket.create_connection((url.host, url.port or default_port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        raise EngineUnreachable(f"no Spark answers at {url}; check the host and the port") from None
