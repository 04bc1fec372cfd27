"""The log of the service: one line for each event, and nothing that is not an event.

    log = CombinedLog(StructuredLog(sys.stdout, "json", clock), metrics)
    log.event(Released(request_id, ...))

No method takes a text. `discreet.service.observability.events` lists the events, and says why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import operator
import re
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO, TypeAlias, get_args

from discreet.errors import InvariantViolated
from discreet.service.observability.events import Event, Failed, Forfeited, LibraryLogged, describe_exception

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

Level: TypeAlias = Literal["debug", "info", "warning", "error", "critical"]

EVENT_NAMES: Mapping[type, str] = {
    kind: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower() for kind in get_args(Event)
}
"""The name of each kind of event in the log: "released", "share_moved"."""

_LEVELS: Mapping[type, Level] = {Failed: "error", Forfeited: "warning"}
_PLAIN = frozenset((str, int, float, bool, type(None)))
_JSON = json.JSONEncoder(ensure_ascii=False, check_circular=False)


def _reader(kind: type) -> tuple[tuple[str, ...], Callable[[Event], tuple[Any, ...]]]:
    names = tuple(field.name for field in dataclasses.fields(kind))
    read = operator.attrgetter(*names)
    return names, read if len(names) > 1 else lambda event: (read(event),)


_READERS = {kind: _reader(kind) for kind in get_args(Event)}
"""Names of the fields of each kind of event, and a function that reads all of them: every request logs an event."""


class Log(Protocol):
    """Where events go."""

    def event(self, event: Event) -> None:
        """Record *event*."""
        ...


class NullLog:
    """Discards events."""

    def event(self, event: Event) -> None:
        fields_of(event)  # raises for what is no event, as other logs do


class CombinedLog:
    """Pass events on to several logs, in order."""

    def __init__(self, *logs: Log) -> None:
        self._logs = logs

    def event(self, event: Event) -> None:
        for log in self._logs:
            log.event(event)


class StructuredLog:
    """Write one line for each event, as JSON for machines or in columns for people.

    A line that cannot be written is lost without an error: what must not be lost is in the ledger.

    Args:
        stream: that lines are written to.
        form: "json" or "console".
        clock: the time, with its zone.
    """

    def __init__(self, stream: TextIO, form: Literal["json", "console"], clock: Callable[[], datetime]) -> None:
        self._stream, self._clock = stream, clock
        self._render = _JSON.encode if form == "json" else _columns

    def event(self, event: Event) -> None:
        fields, moment = fields_of(event), self._clock().isoformat(timespec="milliseconds")
        line = self._render({"time": moment, "event": EVENT_NAMES[type(event)], "level": _level(event), **fields})
        with contextlib.suppress(OSError, ValueError):  # ValueError: the stream was closed
            self._stream.write(f"{line}\n")
            self._stream.flush()


def fields_of(event: Event) -> dict[str, Any]:
    """Return the fields of *event* that are not empty, as plain values.

    Raises:
        InvariantViolated: it is no event, or a field holds something that is not plain.
    """
    if type(event) not in _READERS:
        raise InvariantViolated("only events of the service may be logged")
    names, read = _READERS[type(event)]
    found = {}
    for name, value in zip(names, read(event), strict=True):
        parts = value if type(value) is tuple else (value,)
        if not _PLAIN.issuperset(map(type, parts)):
            raise InvariantViolated("only plain values of an event may be logged")
        if value is not None and value != ():
            found[name] = list(value) if type(value) is tuple else value
    return found


def _level(event: Event) -> Level:
    return event.level if type(event) is LibraryLogged else _LEVELS.get(type(event), "info")


def _columns(line: dict[str, Any]) -> str:
    time, event, level, *rest = line.items()
    fields = " ".join(f"{name}={value!r}" for name, value in rest)  # repr: a value cannot begin a line of its own
    return f"{time[1]} {level[1]:8} {event[1]:15} {fields}".rstrip()


# ------------------------------------------------------------------------------------------------ other libraries

_PYTHON_LEVELS: Mapping[int, Level] = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
}


class _EventHandler(logging.Handler):
    """Turn records of Python's logging into events, without their text, which may hold data."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        raised = record.exc_info[1] if record.exc_info else None
        error, frames = (None, ()) if raised is None else describe_exception(raised)
        level, place = _PYTHON_LEVELS.get(record.levelno, "warning"), f"{record.filename}:{record.lineno}"
        self._log.event(LibraryLogged(record.name, level, place, error, frames))


@contextlib.contextmanager
def capture_library_logs(log: Log) -> Iterator[None]:
    """Write to *log*, until the context ends, what libraries log and Python prints of uncaught exceptions.

    Without their texts: a web server logs the exceptions of an application, and Python prints those of threads; either
    may hold what an engine said about data. Existing handlers are removed meanwhile, so that nothing is written twice.
    This is for the whole process, as the outermost step of the one that serves.
    """
    root, handler = logging.getLogger(), _EventHandler(log)
    loggers = [root, *(found for found in root.manager.loggerDict.values() if isinstance(found, logging.Logger))]
    before = [(logger, logger.handlers[:], logger.propagate) for logger in loggers]
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning
    for logger in loggers:
        logger.handlers, logger.propagate = [], True
    root.addHandler(handler)

    def failed(error: BaseException | None, where: str) -> None:
        if error is not None:
            log.event(Failed.of(error, where))

    def warned(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:  # noqa: ARG001
        log.event(LibraryLogged("warnings", "warning", f"{Path(filename).name}:{lineno}", category.__name__))

    sys.excepthook = lambda _kind, error, _trace: failed(error, "process")
    threading.excepthook = lambda args: failed(args.exc_value, "thread")
    sys.unraisablehook = lambda args: failed(args.exc_value, "cleanup")
    warnings.showwarning = warned  # type: ignore[assignment]  # it takes all that warnings gives it
    try:
        yield
    finally:
        for logger, handlers, propagate in before:
            logger.handlers, logger.propagate = handlers, propagate
        root.removeHandler(handler)
        sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning = hooks
