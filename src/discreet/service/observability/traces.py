"""Spans of requests for OpenTelemetry, if the settings name an endpoint.

    with tracer.span("request", SpanAttributes(request_id, route="POST /v1/query"), parent=headers.get("traceparent")):
        with tracer.span("engine", SpanAttributes(request_id, dataset="reads")):
            ...

`SpanAttributes` lists what a span may contain. Of an exception only the type's name is recorded. OpenTelemetry is
imported only if the settings ask for traces.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from discreet._version import __version__
from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from opentelemetry.sdk.trace.export import SpanProcessor  # type: ignore[attr-defined]

Step: TypeAlias = Literal["request", "plan", "reserve", "queue", "engine", "noise", "settle", "encode"]
"""The steps of a request that have spans."""

Steps: TypeAlias = "Callable[[Step], AbstractContextManager[None]]"
"""Opens the span of a step of one request; see `spans_of`."""


@dataclass(frozen=True, slots=True)
class SpanAttributes:
    """What a span may contain.

    Args:
        route: the method and the template of the path.
    """

    request_id: str
    route: str | None = None
    account: str | None = None
    dataset: str | None = None
    mechanism: str | None = None
    reservation: str | None = None


class Tracer(Protocol):
    """Where spans go."""

    def span(self, step: Step, facts: SpanAttributes, parent: str | None = None) -> AbstractContextManager[None]:
        """Return a context with a span around a step; spans within are its children.

        Args:
            step: what is done.
            parent: the request's header `traceparent`, for the outermost span.
        """
        ...

    def close(self) -> None:
        """Send the remaining spans."""
        ...


class NullTracer:
    """Discard all spans."""

    def span(self, step: Step, facts: SpanAttributes, parent: str | None = None) -> AbstractContextManager[None]:  # noqa: ARG002
        return contextlib.nullcontext()

    def close(self) -> None:
        """Do nothing."""


class OpenTelemetryTracer:
    """Send spans to OpenTelemetry, through a provider of its own."""

    def __init__(self, processor: SpanProcessor) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        # Made from this alone: detectors would add the process's arguments and environment.
        about = Resource({"service.name": "discreet", "service.version": __version__})
        self._provider = TracerProvider(resource=about, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("discreet", __version__)

    @contextlib.contextmanager
    def span(self, step: Step, facts: SpanAttributes, parent: str | None = None) -> Iterator[None]:
        from opentelemetry.trace import StatusCode

        # What OpenTelemetry records of an exception by itself is its text and its stack.
        with self._tracer.start_as_current_span(
            step,
            context=_context(parent),
            attributes=_attributes(facts),
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
        raise InputError("traces need OpenTelemetry; install it with: pip install 'discreet[traces]'") from None
    return OpenTelemetryTracer(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))


def spans_of(tracer: Tracer, facts: SpanAttributes) -> Steps:
    """Return what opens spans with the same attributes."""
    return lambda step: tracer.span(step, facts)


def _attributes(facts: SpanAttributes) -> dict[str, str]:
    fields = {field.name: getattr(facts, field.name) for field in dataclasses.fields(facts)}
    return {f"discreet.{name}": value for name, value in fields.items() if value is not None}


def _context(parent: str | None) -> Any:  # noqa: ANN401 - OpenTelemetry's
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if parent is None:
        return None
    # The numbers of the trace only: `tracestate` is whatever the sender likes.
    return TraceContextTextMapPropagator().extract({"traceparent": parent})
