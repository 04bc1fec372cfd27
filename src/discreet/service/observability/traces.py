"""Spans of requests for OpenTelemetry, if the settings name an endpoint.

    with tracer.span("request", request_id, parent=headers.get("traceparent")):
        with tracer.span("plan", request_id, account):
            ...

A span has a step, the id of the request, the account, and the type of an exception. OpenTelemetry is imported only if
the settings enable traces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from discreet._version import __version__
from discreet.errors import InputError, how_to_install

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanProcessor  # type: ignore[attr-defined]

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
