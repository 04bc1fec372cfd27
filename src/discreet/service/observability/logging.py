"""The log of the service: one line for each event, and nothing that is not an event.

    log = CombinedLog(StructuredLog(sys.stdout, "json", clock), metrics)
    log.event(Released(request_id, ...))

There is no method that takes a text. What the events are, and why, is in `discreet.service.observability.events`.
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

import structlog

from discreet.errors import InvariantViolated
from discreet.service.observability.events import Event, Failed, Forfeited, LibraryLogged, describe_exception

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime


_Read: TypeAlias = "Callable[[Event], tuple[Any, ...]]"

_PLAIN = frozenset((str, int, float, bool, type(None)))
_JSON = json.JSONEncoder(ensure_ascii=False, check_circular=False)
_NO_EVENT: tuple[tuple[str, ...], _Read] = ((), lambda _: ())


def _fields(kind: type) -> tuple[tuple[str, ...], _Read]:
    names = tuple(field.name for field in dataclasses.fields(kind))
    if len(names) == 1:
        return names, lambda event: (getattr(event, names[0]),)
    return names, operator.attrgetter(*names)


_FIELDS: Mapping[type, tuple[tuple[str, ...], _Read]] = {kind: _fields(kind) for kind in get_args(Event)}
"""Names of the fields of each kind of event, and how to read them all: events are told with every request."""


class Log(Protocol):
    """Where events go."""

    def event(self, event: Event) -> None:
        """Tell *event*."""
        ...


class NullLog:
    """Tells nobody."""

    def event(self, event: Event) -> None:
        """Check that *event* is one, as other logs do."""
        fields_of(event)


class CombinedLog:
    """Tells several.

    Args:
        logs: them, in this order.
    """

    def __init__(self, *logs: Log) -> None:
        self._logs = logs

    def event(self, event: Event) -> None:
        """Tell *event* to all."""
        for log in self._logs:
            log.event(event)


class StructuredLog:
    """One line for each event, as JSON for machines or in columns for people.

    A line that cannot be written is lost, and nothing else is: what must not be lost is in the ledger.

    Args:
        stream: where lines go.
        form: "json" or "console".
        clock: the time, with its zone.
    """

    def __init__(self, stream: TextIO, form: Literal["json", "console"], clock: Callable[[], datetime]) -> None:
        # By themselves, so that nothing depends on structlog's global settings.
        self._write = structlog.WriteLogger(stream).msg
        self._render = _JSON.encode if form == "json" else _columns(stream)
        self._clock = clock

    def event(self, event: Event) -> None:
        """Write *event*."""
        fields, moment = fields_of(event), self._clock().isoformat(timespec="milliseconds")
        line = {"time": moment, "event": name_of(event), "level": level_of(event), **fields}
        with contextlib.suppress(OSError, ValueError):  # ValueError: the stream was closed
            self._write(self._render(line))


def fields_of(event: Event) -> dict[str, Any]:
    """The fields of *event* that say something, as plain values.

    Raises:
        InvariantViolated: it is no event, or a field holds something that is not plain.
    """
    names, read = _FIELDS.get(type(event), _NO_EVENT)
    if not names:
        raise InvariantViolated("only events of the service may be logged")
    found = {}
    for name, value in zip(names, read(event), strict=True):
        if type(value) is tuple:
            if not _PLAIN.issuperset(map(type, value)):
                raise InvariantViolated("only plain values of an event may be logged")
            if value:
                found[name] = list(value)
        elif type(value) not in _PLAIN:
            raise InvariantViolated("only plain values of an event may be logged")
        elif value is not None:
            found[name] = value
    return found


def name_of(event: Event) -> str:
    """Return the name of *event* in the log: "released", "share_moved"."""
    return EVENT_NAMES[type(event)]


def level_of(event: Event) -> Literal["debug", "info", "warning", "error", "critical"]:
    """How bad it is."""
    if type(event) is LibraryLogged:
        return event.level
    return _LEVELS.get(type(event), "info")


EVENT_NAMES = {kind: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower() for kind in get_args(Event)}
_LEVELS: Mapping[type, Literal["error", "warning"]] = {Failed: "error", Forfeited: "warning"}


def _columns(stream: TextIO) -> Callable[[dict[str, Any]], str]:
    renderer = structlog.dev.ConsoleRenderer(
        colors=stream.isatty(),
        repr_native_str=True,  # a name cannot begin a line of its own
        exception_formatter=structlog.dev.plain_traceback,  # never asked; the default would show locals
        timestamp_key="time",
        sort_keys=False,
    )
    return lambda line: renderer(None, line["level"], line)


_PYTHON_LEVELS: dict[int, Literal["debug", "info", "warning", "error", "critical"]] = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
}


class _EventHandler(logging.Handler):
    """Takes records of Python's logging."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        raised = record.exc_info[1] if record.exc_info else None
        error, frames = (None, ()) if raised is None else describe_exception(raised)
        self._log.event(
            LibraryLogged(
                record.name,
                _PYTHON_LEVELS.get(record.levelno, "warning"),
                f"{record.filename}:{record.lineno}",
                error,
                frames,
            )
        )


@contextlib.contextmanager
def capture_library_logs(log: Log) -> Iterator[None]:
    """While it is entered, take all that libraries log and Python prints to *log*, for the whole process.

    Loggers keep nothing of their own: handlers that they have are put aside, so that nothing is written twice. It is
    for the process that serves, as its outermost step.
    """
    root, ear = logging.getLogger(), _EventHandler(log)
    loggers = [root, *(found for found in root.manager.loggerDict.values() if isinstance(found, logging.Logger))]
    before = [(logger, logger.handlers[:], logger.propagate) for logger in loggers]
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning
    for logger in loggers:
        logger.handlers, logger.propagate = [], True
    root.addHandler(ear)
    sys.excepthook = lambda _kind, error, _trace: log.event(Failed.of(error, "process"))
    threading.excepthook = lambda args: _tell(log, args.exc_value, "thread")
    sys.unraisablehook = lambda args: _tell(log, args.exc_value, "cleaning up")
    warnings.showwarning = _warned(log)
    try:
        yield
    finally:
        for logger, handlers, propagate in before:
            logger.handlers, logger.propagate = handlers, propagate
        root.removeHandler(ear)
        sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning = hooks


def _tell(log: Log, error: BaseException | None, where: str) -> None:
    if error is not None:
        log.event(Failed.of(error, where))


def _warned(log: Log) -> Any:  # noqa: ANN401 - as warnings.showwarning
    def show(_message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
        log.event(LibraryLogged("warnings", "warning", f"{Path(filename).name}:{lineno}", category.__name__))

    return show
