"""Spans: where time went, and nothing else."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from discreet.errors import EngineError
from discreet.service.observability.traces import NullTracer, OpenTelemetryTracer, SpanAttributes, open_tracer, spans_of

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exported():
    """A tracer, and what it exports."""
    exporter = InMemorySpanExporter()
    tracer = OpenTelemetryTracer(SimpleSpanProcessor(exporter))
    yield tracer, exporter.get_finished_spans
    tracer.close()


def test_spans_nest_and_say_their_facts(exported):
    """One trace for a request, the steps as children."""
    tracer, spans = exported
    with (
        tracer.span("request", SpanAttributes("r1", route="POST /v1/query")),
        tracer.span("engine", SpanAttributes("r1", dataset="d")),
    ):
        pass
    engine, request = spans()
    assert (engine.name, request.name) == ("engine", "request")
    assert engine.parent.span_id == request.context.span_id
    assert dict(engine.attributes) == {"discreet.request_id": "r1", "discreet.dataset": "d"}
    assert dict(request.attributes) == {"discreet.request_id": "r1", "discreet.route": "POST /v1/query"}


def test_a_failure_is_noted_by_its_type_only(exported):
    """T17: no event with its text, no stack."""
    tracer, spans = exported
    with pytest.raises(EngineError), tracer.span("engine", SpanAttributes("r1")):
        raise EngineError("the engine said 7777777")
    (span,) = spans()
    assert dict(span.attributes) == {"discreet.request_id": "r1", "error.type": "EngineError"}
    assert (span.status.is_ok, span.status.description, span.events) == (False, None, ())
    assert "7777777" not in span.to_json()


@pytest.mark.parametrize("parent", [None, PARENT, "", "7777777", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\0" * 55])
def test_a_request_joins_the_trace_of_its_sender_if_that_is_one(exported, parent):
    """By numbers in the form of the standard; anything else begins a trace of its own."""
    tracer, spans = exported
    with tracer.span("request", SpanAttributes("r1"), parent=parent):
        pass
    (span,) = spans()
    joined = f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert joined == (parent == PARENT)
    assert (span.parent is not None) == joined
    assert span.context.trace_state == {}


def test_the_facts_are_those_of_events():
    """The same allow-list as the log's."""
    from tests.service.test_logs import ALLOWED

    assert {field.name for field in dataclasses.fields(SpanAttributes)} <= ALLOWED


def test_a_span_holds_nothing_about_the_process(exported):
    """Neither arguments nor environment: a resource made by hand."""
    tracer, spans = exported
    with tracer.span("plan", SpanAttributes("r1")):
        pass
    assert set(spans()[0].resource.attributes) == {"service.name", "service.version"}


def test_steps_can_be_passed_to_code_without_a_tracer(exported):
    """The facts go with them."""
    tracer, spans = exported
    with spans_of(tracer, SpanAttributes("r1", dataset="reads"))("settle"):
        pass
    assert spans()[0].attributes["discreet.dataset"] == "reads"


def test_without_an_endpoint_nothing_is_traced():
    """And steps still work."""
    tracer = open_tracer(None)
    assert isinstance(tracer, NullTracer)
    with tracer.span("request", SpanAttributes("r1"), parent=PARENT):
        pass
    tracer.close()


def test_with_an_endpoint_spans_are_sent():
    """By OTLP over HTTP; to what does not answer, the service does not mind."""
    tracer = open_tracer("http://localhost:9/v1/traces")
    assert isinstance(tracer, OpenTelemetryTracer)
    tracer._provider.force_flush(1)  # nothing was recorded, so nothing is tried
    tracer.close()


def test_opentelemetry_is_not_imported_unless_wanted():
    """It is optional."""
    script = (
        "import sys\nfrom discreet.service.observability.traces import open_tracer\nopen_tracer(None)\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
