"""What libraries log, and what Python prints when something fails unheard: told as events, without their words.

A web server logs the exceptions of an application with their text, and Python prints those of threads. Either may hold
what an engine said about data.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from discreet.service.events import Failed, Overheard
from discreet.service.frames import told_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from discreet.service.logs import Log

_LEVELS: dict[int, Literal["debug", "info", "warning", "error", "critical"]] = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
}


class _Ear(logging.Handler):
    """Takes records of Python's logging."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        raised = record.exc_info[1] if record.exc_info else None
        error, frames = (None, ()) if raised is None else told_of(raised)
        self._log.event(
            Overheard(
                record.name,
                _LEVELS.get(record.levelno, "warning"),
                f"{record.filename}:{record.lineno}",
                error,
                frames,
            )
        )


@contextlib.contextmanager
def overhear(log: Log) -> Iterator[None]:
    """While it is entered, take all that libraries log and Python prints to *log*, for the whole process.

    Loggers keep nothing of their own: handlers that they have are put aside, so that nothing is written twice. It is
    for the process that serves, as its outermost step.
    """
    root, ear = logging.getLogger(), _Ear(log)
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
        log.event(Overheard("warnings", "warning", f"{Path(filename).name}:{lineno}", category.__name__))

    return show
