"""The log of the service: one line for each event, and nothing else.

    log = CombinedLog(StructuredLog(sys.stdout, "json", clock), metrics)
    log.event(Released(request_id, ...))

An event is one of the frozen dataclasses here. Their fields are an allow-list: names chosen by officers, numbers that
are public or differentially private, and codes of the service. There is no field for a message, a statement, a label,
a row, a true count, a key or an engine's message, so that none of these can be logged by mistake.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TextIO, TypeAlias, get_args

from discreet.errors import InvariantViolated
from discreet.service.problems import DenialReason, StatementFailed

if TYPE_CHECKING:
    from discreet.wire.administration import StoreKind


Cause: TypeAlias = Literal["engine", "timeout", "client-gone", "data-changed", "lease-lost", "internal"]
"""The reason for the forfeit of a run."""

Level: TypeAlias = Literal["debug", "info", "warning", "error", "critical"]

MAX_CAUSES = 10
"""The maximum of exceptions of a chain that are logged."""

_SOURCE = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class Requested:
    """A request was answered, with or without success.

    Args:
        route: the method and the path template, such as "GET /v1/datasets/{name}"; "other" if there is none.
        milliseconds: the duration, rounded up by `on_grid`, because finer timing depends on data.
        actor: the authenticated sender, or None if unknown.
        problem: the kind of problem in the response, or None.
        release: the id of an answer from the cache; `Released` logs all other answers.
        client: the address of the client, or the one that a trusted proxy reported.
    """

    request_id: str
    route: str
    status: int
    milliseconds: int
    actor: str | None = None
    account: str | None = None
    problem: str | None = None
    release: str | None = None
    mechanism: str | None = None
    client: str | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """An answer was computed, or found in the store.

    Args:
        rho: the charge for this request.
        source: "engine" if the answer was computed now; "store" or "memory" if it was replayed.
        reservation: the id of the reservation that paid for it, or None.
    """

    request_id: str
    account: str
    dataset: str
    mechanism: str
    release: str
    rho: float
    delta: float
    source: Literal["engine", "store", "memory"]
    reservation: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A query was refused before the data was queried.

    Args:
        short: the account or parent that cannot pay, or is suspended.
        rho: the worst-case cost of the query; 0 for a suspension.
    """

    request_id: str
    account: str
    kind: Literal["budget-short", "suspended"]
    short: str
    rho: float = 0.0
    delta: float = 0.0


@dataclass(frozen=True, slots=True)
class Forfeited:
    """A run failed after the data was queried; its worst case stays charged."""

    request_id: str
    account: str
    dataset: str
    cause: Cause
    reservation: str | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """A request had no valid key or token.

    Args:
        key_id: the id of a known key, such as an expired one; never text from an unknown client.
    """

    request_id: str
    reason: DenialReason
    key_id: str | None = None
    client: str | None = None


@dataclass(frozen=True, slots=True)
class AdminChanged:
    """An officer or admin changed something; the ledger holds the change and its reason.

    Args:
        subject: the name of the account, or the id of the key.
    """

    request_id: str
    actor: str
    route: str
    subject: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A bug, or an unforeseen failure. The text of the exception may hold data, so it is left out.

    Args:
        where: the route, or a component of the service such as "maintenance".
        error: the names of the types of the exception and its causes: "RunFailed from KeyError".
        frames: stack frames in the service's own code, the outermost first: "service/answering/queries.py:120".
    """

    where: str
    error: str
    frames: tuple[str, ...]
    request_id: str | None = None

    @classmethod
    def of(cls, error: BaseException, where: str, request_id: str | None = None) -> Self:
        """Return the event for *error*."""
        return cls(where, *describe_exception(error), request_id)


@dataclass(frozen=True, slots=True)
class LibraryLogged:
    """A library logged a message. Its text may hold data, so only the location is recorded.

    Args:
        source: the name of the logger, or "warnings".
        place: file and line, such as "server.py:84".
    """

    source: str
    level: Level
    place: str
    error: str | None = None
    frames: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeasesExpired:
    """Maintenance ended reservations whose lease had expired; *ended* is their number."""

    ended: int


@dataclass(frozen=True, slots=True)
class ShareMoved:
    """A budget share was sent to another data centre or received from it, or the data centre cannot be reached.

    Args:
        peer: the name of the other data centre.
    """

    transfer: str
    peer: str
    account: str
    step: Literal["sent", "received", "refused", "unreachable"]


@dataclass(frozen=True, slots=True)
class DatasetUnavailable:
    """A dataset cannot be opened, or failed its checks; the officers' page of the catalog shows the reason."""

    dataset: str


@dataclass(frozen=True, slots=True)
class DatasetAvailable:
    """A dataset that was unavailable passed its checks."""

    dataset: str


@dataclass(frozen=True, slots=True)
class SourceReplaced:
    """A source was replaced although the catalog states the same version of its data; it needs another one."""

    dataset: str


@dataclass(frozen=True, slots=True)
class CatalogRead:
    """The catalog file was read again, and is served from now on."""

    datasets: int


Fetched: TypeAlias = Literal["discovery", "keys", "token"]


@dataclass(frozen=True, slots=True)
class IssuerFetched:
    """The settings, the keys or a token of the OpenID issuer were fetched."""

    what: Fetched
    outcome: Literal["ok", "failed"]


@dataclass(frozen=True, slots=True)
class Started:
    """The service is ready."""

    version: str
    host: str
    port: int
    store: StoreKind
    datasets: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The service stopped."""

    reason: Literal["requested", "failed"] = "requested"


Event: TypeAlias = (
    Requested
    | Released
    | Refused
    | Forfeited
    | Denied
    | AdminChanged
    | Failed
    | LibraryLogged
    | LeasesExpired
    | ShareMoved
    | DatasetUnavailable
    | SourceReplaced
    | CatalogRead
    | DatasetAvailable
    | IssuerFetched
    | Started
    | Stopped
)
"""All kinds of events that can be logged."""


def on_grid(seconds: float, grid_ms: int) -> int:
    """Return a duration in milliseconds, rounded up to a multiple of *grid_ms*, or of 1 ms if *grid_ms* is 0."""
    step = max(grid_ms, 1)
    return math.ceil(max(seconds, 0.0) * 1000 / step) * step


def describe_exception(error: BaseException) -> tuple[str, tuple[str, ...]]:
    """Return the type names of *error* and its causes, and the stack frames in the service's own code."""
    names: list[str] = []
    frames: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(names) < MAX_CAUSES:  # causes may form a cycle
        names.append(type(cause).__name__)
        if isinstance(cause, StatementFailed):
            names += [cause.error] if cause.error else []
            frames += cause.frames
        trace = cause.__traceback__
        while trace is not None:
            path = Path(trace.tb_frame.f_code.co_filename)
            if path.is_relative_to(_SOURCE):  # other paths may hold names of users and customers
                frames.append(f"{path.relative_to(_SOURCE).as_posix()}:{trace.tb_lineno}")
            trace = trace.tb_next
        cause = cause.__cause__
    return " from ".join(names), tuple(frames)


EVENT_NAMES: Mapping[type, str] = {
    kind: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower() for kind in get_args(Event)
}
"""The name of each kind of event in the log: "released", "share_moved"."""

_LEVELS: Mapping[type, Level] = {
    Failed: "error",
    Forfeited: "warning",
    DatasetUnavailable: "warning",
    SourceReplaced: "warning",
}
_PLAIN = frozenset((str, int, float, bool, type(None)))
_JSON = json.JSONEncoder(ensure_ascii=False, check_circular=False)  # plain values have no cycles


class Log(Protocol):
    """A destination of events."""

    def event(self, event: Event) -> None:
        """Record *event*."""
        ...


class CombinedLog:
    """Pass events on to several logs, in order."""

    def __init__(self, *logs: Log) -> None:
        self._logs = logs

    def event(self, event: Event) -> None:
        for log in self._logs:
            log.event(event)


class StructuredLog:
    """Write one line for each event, as JSON or in readable columns.

    A line that cannot be written is lost without an error: the ledger holds all records that must not be lost.

    Args:
        form: "json" or "console".
    """

    def __init__(self, stream: TextIO, form: Literal["json", "console"], clock: Callable[[], datetime]) -> None:
        self._stream = stream
        self._clock = clock
        self._form = form

    def event(self, event: Event) -> None:
        fields = _fields_of(event)
        moment = self._clock().isoformat(timespec="milliseconds")
        level = event.level if type(event) is LibraryLogged else _LEVELS.get(type(event), "info")
        name = EVENT_NAMES[type(event)]
        if self._form == "json":
            line = _JSON.encode({"time": moment, "event": name, "level": level, **fields})
        else:  # repr escapes line breaks in values
            values = " ".join(f"{field}={value!r}" for field, value in fields.items())
            line = f"{moment} {level:8} {name:15} {values}".rstrip()
        with contextlib.suppress(OSError, ValueError):  # ValueError: the stream was closed
            self._stream.write(f"{line}\n")
            self._stream.flush()


def _fields_of(event: Event) -> dict[str, Any]:
    """Return the fields of *event* that are not empty, as plain values.

    Raises:
        InvariantViolated: it is no event, or a field holds an object that is not a plain value.
    """
    if type(event) not in EVENT_NAMES:
        raise InvariantViolated("only events of the service may be logged")
    fields = {}
    for name in type(event).__slots__:
        value = getattr(event, name)
        parts = value if type(value) is tuple else (value,)
        # By exact type: a subclass of str could be rendered as anything.
        if not _PLAIN.issuperset(map(type, parts)):
            raise InvariantViolated("only plain values of an event may be logged")
        if value is not None and value != ():
            fields[name] = list(value) if type(value) is tuple else value
    return fields


# ------------------------------------------------------------------------------------------------ other libraries

_PYTHON_LEVELS: Mapping[int, Level] = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
}


class _EventHandler(logging.Handler):
    """Convert records of Python's logging to events, without their text, which may hold data."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        raised = record.exc_info[1] if record.exc_info else None
        error, frames = (None, ()) if raised is None else describe_exception(raised)
        level = _PYTHON_LEVELS.get(record.levelno, "warning")
        place = f"{record.filename}:{record.lineno}"
        self._log.event(LibraryLogged(record.name, level, place, error, frames))


@contextlib.contextmanager
def capture_library_logs(log: Log) -> Iterator[None]:
    """Write log records of libraries and uncaught exceptions to *log* until the context ends, without their texts.

    The web server logs exceptions of the application, and Python prints those of threads; either text may hold a
    message of an engine with data. Existing handlers are removed, so that nothing is written twice. This affects the
    whole process, so it is the outermost context of a serving process.
    """
    root = logging.getLogger()
    handler = _EventHandler(log)
    loggers = [root, *(logger_ for logger_ in root.manager.loggerDict.values() if isinstance(logger_, logging.Logger))]
    before = [(logger, logger.handlers[:], logger.propagate) for logger in loggers]
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning
    for logger in loggers:
        logger.handlers = []
        logger.propagate = True
    root.addHandler(handler)

    def failed(error: BaseException | None, where: str) -> None:
        if error is not None:
            log.event(Failed.of(error, where))

    def warned(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:  # noqa: ARG001
        log.event(LibraryLogged("warnings", "warning", f"{Path(filename).name}:{lineno}", category.__name__))

    sys.excepthook = lambda _kind, error, _trace: failed(error, "process")
    threading.excepthook = lambda args: failed(args.exc_value, "thread")
    sys.unraisablehook = lambda args: failed(args.exc_value, "cleanup")
    warnings.showwarning = warned  # type: ignore[assignment]  # accepts all its arguments
    try:
        yield
    finally:
        for logger, handlers, propagate in before:
            logger.handlers = handlers
            logger.propagate = propagate
        root.removeHandler(handler)
        sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning = hooks
