"""What operators see of the service: its log, metrics for Prometheus, and spans of requests for OpenTelemetry.

    log = CombinedLog(StructuredLog(sys.stdout, "json", clock), metrics)
    log.event(Released(request_id, ...))

An event is one of the frozen dataclasses here, and one line of the log; most metrics count events, too. The fields of
events are an allow-list: names chosen by officers, numbers that are public or differentially private, and codes of the
service. There is no field for a message, a statement, a label, a row, a true count, a key or an engine's message, so
that none of these can be logged by mistake. Values of labels of metrics come from short lists and are never an account,
dataset or user, because /metrics needs no key.

    with tracer.span("request", request_id, parent=headers.get("traceparent")):
        with tracer.span("plan", request_id, account):
            ...

A span has a step, the id of the request, the account, and the type of an exception. OpenTelemetry is imported only if
the settings enable traces.
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
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TextIO, TypeAlias, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from discreet._version import __version__
from discreet.errors import InputError, InvariantViolated, how_to_install
from discreet.service.problems import DenialReason, describe_exception

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanProcessor  # type: ignore[attr-defined]

    from discreet.wire.administration import StoreKind


Cause: TypeAlias = Literal["engine", "timeout", "client-gone", "data-changed", "lease-lost", "internal"]
"""The reason for the forfeit of a run."""

Level: TypeAlias = Literal["debug", "info", "warning", "error", "critical"]


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


# ------------------------------------------------------------------------------------------------ metrics

MAX_LABELS = 100
"""The maximum of values of a label; further values are counted as "other"."""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_STORE_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)

_COUNTED: Mapping[type[Event], tuple[str, str, list[str]]] = {
    Refused: ("refusals", "Queries refused because of a budget.", ["kind"]),
    Forfeited: ("forfeits", "Runs that failed after the data was queried.", ["cause"]),
    Denied: ("denials", "Requests without a valid key or token.", ["reason"]),
    AdminChanged: ("admin_changes", "Changes by officers and administrators.", ["route"]),
    Failed: ("failures", "Unexpected exceptions.", []),
    LibraryLogged: ("library_logs", "Warnings and errors that libraries logged.", ["level"]),
    ShareMoved: ("shares_moved", "Shares of budgets between data centres.", ["step"]),
    DatasetUnavailable: ("datasets_unavailable", "Datasets that became unavailable.", []),
    DatasetAvailable: ("datasets_available", "Datasets that became available again.", []),
    SourceReplaced: ("sources_replaced", "Sources replaced under the same declared version of the data.", []),
    CatalogRead: ("catalogs_read", "Catalogs that were read again and served.", []),
    IssuerFetched: ("identity_fetches", "Requests to the OpenID issuer.", ["what", "outcome"]),
}
"""Counters of events: name, description, and the fields of the event that are labels."""


class Metrics:
    """Count events, and measure the store.

    Args:
        clock: returns monotonic seconds, such as `time.monotonic`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.registry = CollectorRegistry()
        self._labels: dict[str, set[str]] = {}
        self._children: dict[tuple[str, ...], Any] = {}
        counters = [
            *_COUNTED.values(),
            ("requests", "Requests answered.", ["route", "status"]),
            ("problems", "Requests answered with a problem.", ["problem"]),
            ("releases", "Releases answered, by source.", ["source", "mechanism"]),
            ("charged_rho", "rho charged to the accounts of queries.", []),
            ("charged_delta", "delta charged to the accounts of queries.", []),
            ("expired_reservations", "Reservations ended because their lease was over.", []),
        ]
        self._counters = {
            name: Counter(f"discreet_{name}", text, labels, registry=self.registry) for name, text, labels in counters
        }
        self._requests = self._histogram("request_seconds", "Time to answer, on the grid.", "route", _SECONDS)
        self._store = self._histogram("store_seconds", "Time of the budget store.", "operation", _STORE_SECONDS)
        self._ledger = Gauge("discreet_ledger_lines", "Lines of the ledger.", registry=self.registry)
        self._maintained_at = clock()
        age = Gauge("discreet_maintenance_age_seconds", "Since maintenance last succeeded.", registry=self.registry)
        age.set_function(lambda: self._clock() - self._maintained_at)  # grows even if the thread has ended
        Gauge("discreet_info", "What runs.", ["version"], registry=self.registry).labels(__version__).set(1)

    def event(self, event: Event) -> None:
        """Count *event*."""
        match event:
            case Requested():
                self._count("requests", event.route, str(event.status))
                self._child(("request_seconds", event.route), self._requests).observe(event.milliseconds / 1000)
                if event.problem is not None:
                    self._count("problems", event.problem)
                if event.release is not None and event.mechanism is not None:  # no `Released` is logged for the cache
                    self._count("releases", "memory", event.mechanism)
            case Released():
                self._count("releases", event.source, event.mechanism)
                self._counters["charged_rho"].inc(event.rho)
                self._counters["charged_delta"].inc(event.delta)
            case LeasesExpired():
                self._counters["expired_reservations"].inc(event.ended)
            case Started() | Stopped():
                pass
            case _:
                if type(event) not in _COUNTED:
                    raise InvariantViolated("only events of the service are counted")
                name, _, labels = _COUNTED[type(event)]
                self._count(name, *(getattr(event, label) for label in labels))

    def maintained(self, ledger_lines: int) -> None:
        """Record that maintenance succeeded just now."""
        self._maintained_at = self._clock()
        self._ledger.set(ledger_lines)

    @contextlib.contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        """Measure the time of an operation of the store, whether it succeeds or not (`BudgetStore.timed`)."""
        began = self._clock()
        try:
            yield
        finally:
            self._child(("store_seconds", operation), self._store).observe(self._clock() - began)

    def text(self) -> bytes:
        """Return all metrics in the format of Prometheus."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, text: str, label: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"discreet_{name}", text, [label], registry=self.registry, buckets=buckets)

    def _count(self, name: str, *labels: str) -> None:
        self._child((name, *labels), self._counters[name]).inc()

    def _child(self, names: tuple[str, ...], metric: Counter | Histogram) -> Any:  # noqa: ANN401 - as the metric
        """Return the series with the labels *names*; values beyond `MAX_LABELS` become "other", to bound memory."""
        series = self._children.get(names)
        if series is None:
            name, *labels = names
            bounded = [self._bounded(f"{name} {place}", label) for place, label in enumerate(labels)]
            series = metric.labels(*bounded) if bounded else metric
            if bounded == labels:  # a label that became "other" is not kept: there is no bound on their number
                self._children[names] = series
        return series

    def _bounded(self, kind: str, value: str) -> str:
        if type(value) is not str:
            raise InvariantViolated("only plain values of an event are counted")
        values = self._labels.setdefault(kind, set())
        if value not in values and len(values) >= MAX_LABELS:
            return "other"
        values.add(value)
        return value


# ------------------------------------------------------------------------------------------------ traces

Step: TypeAlias = Literal["request", "plan", "reserve", "queue", "engine", "noise", "settle", "encode"]
"""The steps of a request that have spans."""


class Tracer(Protocol):
    """A destination of spans."""

    def span(
        self, step: Step, request_id: str, account: str | None = None, parent: str | None = None
    ) -> AbstractContextManager[None]:
        """Return a context with a span of *step*; spans opened within it are its children.

        Args:
            parent: the request's header `traceparent`, for the outermost span.
        """
        ...

    def close(self) -> None:
        """Send the remaining spans."""
        ...


class NullTracer:
    """Discard all spans."""

    def span(
        self,
        step: Step,  # noqa: ARG002
        request_id: str,  # noqa: ARG002
        account: str | None = None,  # noqa: ARG002
        parent: str | None = None,  # noqa: ARG002
    ) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def close(self) -> None:
        """Do nothing."""


class OpenTelemetryTracer:
    """Send spans to OpenTelemetry, through a separate provider."""

    def __init__(self, processor: SpanProcessor) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        # No resource detectors: they would add the process's arguments and environment.
        resource = Resource({"service.name": "discreet", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("discreet", __version__)

    @contextlib.contextmanager
    def span(
        self, step: Step, request_id: str, account: str | None = None, parent: str | None = None
    ) -> Iterator[None]:
        from opentelemetry.trace import StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # Only the ids of the trace: the header `tracestate` is arbitrary text of the client.
        context = None if parent is None else TraceContextTextMapPropagator().extract({"traceparent": parent})
        attributes = {"discreet.request_id": request_id} | ({} if account is None else {"discreet.account": account})
        # By default OpenTelemetry would record the text and the stack of an exception, which may hold data.
        with self._tracer.start_as_current_span(
            step,
            context=context,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(StatusCode.ERROR)
                raise

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()


def open_tracer(endpoint: str | None) -> Tracer:
    """Return a tracer that sends spans to *endpoint*, or discards them if it is None.

    Args:
        endpoint: the URL of a collector that takes OTLP over HTTP, such as "http://localhost:4318/v1/traces".

    Raises:
        InputError: OpenTelemetry is not installed.
    """
    if endpoint is None:
        return NullTracer()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise InputError(f"traces need OpenTelemetry; {how_to_install('traces')}") from None
    return OpenTelemetryTracer(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
