"""Spans: durations of steps, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from discreet.errors import EngineError
from discreet.service.observability import NullTracer, OpenTelemetryTracer, open_tracer

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exported():
    """Return a tracer, and the spans that it exports."""
    exporter = InMemorySpanExporter()
    tracer = OpenTelemetryTracer(SimpleSpanProcessor(exporter))
    yield tracer, exporter.get_finished_spans
    tracer.close()


def test_spans_are_nested_and_have_their_attributes(exported):
    """One trace for a request, with its steps as children."""
    tracer, spans = exported
    with (
        tracer.span("request", "r1"),
        tracer.span("engine", "r1", "ann@sales"),
    ):
        pass
    engine, request = spans()
    assert (engine.name, request.name) == ("engine", "request")
    assert engine.parent.span_id == request.context.span_id
    assert dict(engine.attributes) == {"discreet.request_id": "r1", "discreet.account": "ann@sales"}
    assert dict(request.attributes) == {"discreet.request_id": "r1"}


def test_a_failed_span_has_only_the_type_of_the_error(exported):
    """T17: no event with its message, no stack."""
    tracer, spans = exported
    with pytest.raises(EngineError), tracer.span("engine", "r1"):
        raise EngineError("the engine said 7777777")
    (span,) = spans()
    assert dict(span.attributes) == {"discreet.request_id": "r1", "error.type": "EngineError"}
    assert (span.status.is_ok, span.status.description, span.events) == (False, None, ())
    assert "7777777" not in span.to_json()


@pytest.mark.parametrize("parent", [None, PARENT, "", "7777777", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\0" * 55])
def test_a_request_continues_the_trace_of_a_valid_header(exported, parent):
    """By ids in the form of the standard; anything else begins a new trace."""
    tracer, spans = exported
    with tracer.span("request", "r1", parent=parent):
        pass
    (span,) = spans()
    joined = f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert joined == (parent == PARENT)
    assert (span.parent is not None) == joined
    assert span.context.trace_state == {}


def test_a_span_has_no_attributes_of_the_process(exported):
    """Neither arguments nor environment: the resource is not detected from the process."""
    tracer, spans = exported
    with tracer.span("plan", "r1"):
        pass
    assert set(spans()[0].resource.attributes) == {"service.name", "service.version"}


def test_all_spans_and_events_of_a_query_have_the_id_of_its_response(exported, services):
    """So that a report of a user leads to what the service did."""
    tracer, spans = exported
    service = services(tracer=tracer)
    reply = service.ask()
    ids = {"request": [reply.headers["x-request-id"]]}
    ids["spans"] = sorted({span.attributes["discreet.request_id"] for span in spans()})
    ids["released"] = [event["request_id"] for event in service.events("released")]
    assert {span.name for span in spans()} >= {"plan", "reserve", "engine", "settle"}
    assert ids["request"] == ids["spans"] == ids["released"]


def test_without_an_endpoint_nothing_is_traced():
    """Without an endpoint the steps run without spans."""
    tracer = open_tracer(None)
    assert isinstance(tracer, NullTracer)
    with tracer.span("request", "r1", parent=PARENT):
        pass
    tracer.close()


def test_with_an_endpoint_spans_are_sent():
    """By OTLP over HTTP; an endpoint that does not answer has no effect on the service."""
    tracer = open_tracer("http://localhost:9/v1/traces")
    assert isinstance(tracer, OpenTelemetryTracer)
    tracer._provider.force_flush(1)  # nothing was recorded, so nothing is exported
    tracer.close()


def test_opentelemetry_is_imported_only_if_configured():
    """OpenTelemetry is an optional dependency."""
    script = (
        "import sys\nfrom discreet.service.observability import open_tracer\nopen_tracer(None)\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
