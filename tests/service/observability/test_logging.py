"""The log holds its events and nothing else."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import re
import sys
import threading
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import pytest

from discreet.errors import InputError, InvariantViolated
from discreet.service.observability import (
    EVENT_NAMES,
    AdminChanged,
    CombinedLog,
    Event,
    Failed,
    Forfeited,
    LibraryLogged,
    Released,
    Requested,
    StructuredLog,
    capture_library_logs,
    on_grid,
)
from tests.service.observability.test_telemetry_metrics import EVENTS

NOW = datetime(2026, 11, 20, 4, 5, 6, 789_000, UTC)

ALLOWED = {
    "request_id",
    "route",
    "status",
    "milliseconds",
    "actor",
    "account",
    "problem",
    "dataset",
    "mechanism",
    "release",
    "reservation",
    "rho",
    "delta",
    "source",
    "kind",
    "short",
    "cause",
    "reason",
    "key_id",
    "client",
    "subject",
    "where",
    "error",
    "frames",
    "level",
    "place",
    "ended",
    "transfer",
    "peer",
    "step",
    "what",
    "outcome",
    "version",
    "host",
    "port",
    "store",
    "datasets",
}
"""All fields of events; they have public values only."""


class RecordingLog:
    """A log that keeps events in a list."""

    def __init__(self):
        self.events = []

    def event(self, event):
        """Keep the event."""
        self.events.append(event)


def written(event, form="json"):
    """Return the line of *event*."""
    stream = io.StringIO()
    StructuredLog(stream, form, lambda: NOW).event(event)
    return stream.getvalue()


def test_the_fields_of_all_events_are_the_allowed_ones():
    """T17: a new field needs a change here; none can hold a message, a statement, a label or a count."""
    fields = {field.name for type_ in get_args(Event) for field in dataclasses.fields(type_)}
    assert fields == ALLOWED


def test_every_event_is_frozen():
    """A handler cannot change a logged event."""
    assert all(type_.__dataclass_params__.frozen for type_ in get_args(Event))


def test_an_event_is_one_line_of_json():
    """The name, the time of the clock, the level and the fields that are set."""
    line = written(Requested("r1", "POST /v1/query", 200, 50, "key:ab", "ann@sales"))
    assert line.endswith("}\n")
    assert line.count("\n") == 1
    assert line.startswith('{"time": "2026-11-20T04:05:06.789+00:00", "event": "requested", "level": "info", ')
    assert json.loads(line) == {
        "time": "2026-11-20T04:05:06.789+00:00",
        "event": "requested",
        "level": "info",
        "request_id": "r1",
        "route": "POST /v1/query",
        "status": 200,
        "milliseconds": 50,
        "actor": "key:ab",
        "account": "ann@sales",
    }


@pytest.mark.parametrize("event", [event for event, _, _ in EVENTS], ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("form", ["json", "console"])
def test_every_kind_of_event_is_one_line(event, form):
    """Every event is one line with its name and all its fields."""
    line = written(event, form)
    assert line.count("\n") == 1
    values = {name: getattr(event, name) for name in (field.name for field in dataclasses.fields(event))}
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    values = {name: value for name, value in values.items() if value is not None and value != []}
    assert EVENT_NAMES[type(event)] in line
    assert all(str(value).strip("[]") in line for value in values.values() if not isinstance(value, list))
    if form == "json":
        assert {name: json.loads(line)[name] for name in values} == values


def test_there_is_an_example_of_every_kind_of_event():
    """The test above depends on it."""
    assert {type(event) for event, _, _ in EVENTS} == set(get_args(Event))


@pytest.mark.parametrize("form", ["json", "console"])
def test_control_characters_in_names_are_escaped(form):
    """Control characters are escaped, so that a terminal is safe, too."""
    line = written(AdminChanged("r1", "key:ab", "POST /v1/admin/keys", 'x"\n{"event": "released"}\x1b[2J\u2028'), form)
    assert line.count("\n") == 1
    assert "\x1b[2J" not in line


def test_the_console_format_has_the_same_fields():
    """The console format shows the fields in columns."""
    line = written(Forfeited("r1", "ann@sales", "reads", "timeout"), "console")
    assert all(part in line for part in ("04:05:06", "warning", "forfeited", "ann@sales", "reads", "timeout"))


@dataclasses.dataclass(frozen=True)
class NotAnEvent:
    """Not an event, but with the attributes of one."""

    request_id: str
    head: object


@dataclasses.dataclass(frozen=True)
class ExtendedEvent(Requested):
    """An event with an additional field."""

    true_count: int = 7_777_777


@pytest.mark.parametrize(
    "event",
    [
        "a sentence with 7777777 in it",
        {"event": "requested", "count": 7_777_777},
        NotAnEvent("r1", [7_777_777]),
        ExtendedEvent("r1", "GET /", 200, 1),
        AdminChanged("r1", "key:ab", "POST /", InputError("7777777")),
        Failed("POST /", "KeyError", ([7_777_777],)),
    ],
)
def test_other_objects_than_events_are_refused_and_not_shown(event):
    """By type: no text, mapping, other dataclass, or field with more than plain values."""
    log = StructuredLog(io.StringIO(), "json", lambda: NOW)
    with pytest.raises(InvariantViolated) as caught:
        log.event(event)
    assert "7777777" not in str(caught.value)


def _engine_with_data_in_its_message():
    number = 7_777_777
    raise InputError(f"the engine counted {number} rows of user-magdalena")


def test_a_failure_is_logged_with_its_type_and_our_own_lines_only():
    """T16, T17: neither its message, nor values of variables, nor lines of other packages are logged."""
    with pytest.raises(InputError) as caught:
        on_grid_of_a_fault()
    failed = Failed.of(caught.value, "POST /v1/query", "r1")
    line = written(failed)
    assert failed.error == "InputError"
    assert failed.frames
    assert all(frame.startswith("values.py:") for frame in failed.frames)
    assert json.loads(line)["frames"] == list(failed.frames)
    assert "magdalena" not in line


def test_a_failure_names_its_causes():
    """The outermost first, with our lines of each; without messages, and for chains of any length."""
    cause = None
    for number in range(50):
        error = ValueError(f"7777777 rows {number}")
        error.__cause__ = cause
        cause = error
    failed = Failed.of(KeyError("7777777"), "upkeep")
    assert failed.error == "KeyError"
    try:
        try:
            on_grid_of_a_fault()
        except InputError as found:
            raise KeyError("7777777") from found
    except KeyError as found:
        failed = Failed.of(found, "upkeep")
    assert failed.error == "KeyError from InputError"
    assert [frame.partition(":")[0] for frame in failed.frames] == ["values.py"]
    assert Failed.of(cause, "upkeep").error.count("ValueError") == 10
    assert "7777777" not in repr(failed)


def on_grid_of_a_fault():
    """Raise from within the package, with a message that holds data."""
    from discreet.values import exact

    exact("user-magdalena", "7777777")


def test_every_event_reaches_every_log():
    """Events reach every log in the order of the calls."""
    first, second = RecordingLog(), RecordingLog()
    event = Requested("r1", "GET /", 200, 1)
    CombinedLog(first, second).event(event)
    assert first.events == second.events == [event]


class FullStream(io.StringIO):
    """A stream on a full disk."""

    def write(self, _text):
        """Raise the error of a full disk."""
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("broken", ["full", "closed"])
def test_a_log_that_cannot_be_written_stops_no_request(broken):
    """Essential facts are in the ledger."""
    stream = FullStream() if broken == "full" else io.StringIO()
    log = StructuredLog(stream, "json", lambda: NOW)
    if broken == "closed":
        stream.close()
    log.event(Requested("r1", "GET /", 200, 1))


@pytest.mark.parametrize(
    ("seconds", "grid", "milliseconds"),
    [(0.0, 50, 0), (0.0001, 50, 50), (0.05, 50, 50), (0.0501, 50, 100), (0.0123, 0, 13), (-1.0, 50, 0)],
)
def test_durations_are_logged_on_the_grid(seconds, grid, milliseconds):
    """T7: rounded up, so that the log is no finer than the responses."""
    assert on_grid(seconds, grid) == milliseconds


def test_log_records_of_libraries_are_logged_without_their_message():
    """T17: a web server logs exceptions with their message; only place and type are kept."""
    kept = RecordingLog()
    logger = logging.getLogger("uvicorn.error")
    with capture_library_logs(kept):
        logger.info("Started with %s", 7_777_777)
        try:
            _engine_with_data_in_its_message()
        except InputError:
            logger.exception("Exception in ASGI application: 7777777")
    (body,) = kept.events
    assert body == LibraryLogged("uvicorn.error", "error", body.place, "InputError", ())
    assert body.place.startswith("test_logging.py:")


def test_uncaught_exceptions_and_warnings_are_logged(capfd):
    """Exceptions of threads and destructors, and warnings: nothing reaches standard error."""

    class RaisesInDestructor:
        def __del__(self):
            raise InputError("7777777")

    kept = RecordingLog()
    with capture_library_logs(kept):
        thread = threading.Thread(target=_engine_with_data_in_its_message)
        thread.start()
        thread.join()
        RaisesInDestructor()
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("7777777 rows", UserWarning, stacklevel=1)
        sys.excepthook(InputError, InputError("7777777"), None)
    assert [getattr(event, "where", "warnings") for event in kept.events] == [
        "thread",
        "cleanup",
        "warnings",
        "process",
    ]
    assert "7777777" not in repr(kept.events)
    assert capfd.readouterr() == ("", "")


def test_handlers_and_hooks_are_restored():
    """Handlers, propagation and hooks are restored."""
    logger = logging.getLogger("tests.overheard")
    handler = logging.NullHandler()
    logger.addHandler(handler)
    logger.propagate = False
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning
    try:
        with capture_library_logs(RecordingLog()):
            assert logger.handlers == []
        assert (logger.handlers, logger.propagate) == ([handler], False)
        assert (sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning) == hooks
    finally:
        logger.removeHandler(handler)


def test_an_answer_is_logged_with_its_cost():
    """The cost is that of the ledger, not a number of the data."""
    line = json.loads(
        written(Released("r1", "ann@sales", "reads", "unknown-gumbel", "ab" * 32, 0.0161, 5e-9, "engine", "res1"))
    )
    assert (line["rho"], line["delta"], line["reservation"]) == (0.0161, 5e-9, "res1")


def test_the_page_names_every_event():
    """Each has a row of the table, or is named in one."""
    page = (Path(__file__).resolve().parents[3] / "docs/service/observability.md").read_text()
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))))
    assert set(EVENT_NAMES.values()) <= named
