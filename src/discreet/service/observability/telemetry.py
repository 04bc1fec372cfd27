"""What the service measures: metrics for Prometheus, and spans of requests for OpenTelemetry.

Most metrics are derived from logged events: `Metrics` is a log that counts events, in a registry of its own. Values of
labels come from short lists and are never an account, dataset or user, because /metrics needs no key.

    with tracer.span("request", request_id, parent=headers.get("traceparent")):
        with tracer.span("plan", request_id, account):
            ...

A span has a step, the id of the request, the account, and the type of an exception. OpenTelemetry is imported only if
the settings enable traces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from discreet._version import __version__
from discreet.errors import InputError, InvariantViolated, how_to_install
from discreet.service.observability.logging import (
    AdminChanged,
    CatalogRead,
    DatasetAvailable,
    DatasetUnavailable,
    Denied,
    Event,
    Failed,
    Forfeited,
    IssuerFetched,
    LeasesExpired,
    LibraryLogged,
    Refused,
    Released,
    Requested,
    ShareMoved,
    SourceReplaced,
    Started,
    Stopped,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanProcessor  # type: ignore[attr-defined]

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
