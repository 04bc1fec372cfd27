"""What may be told of an exception: types and lines of our own code, but not its words, which may hold data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

CAUSES_MOST = 10
"""Causes of an exception that are told, with itself."""

_SOURCE = Path(__file__).resolve().parent.parent


def told_of(error: BaseException) -> tuple[str, tuple[str, ...]]:
    """What may be told of an exception: the names of its type and those of its causes, and lines of our own code."""
    names: list[str] = []
    frames: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(names) < CAUSES_MOST:
        names.append(type(cause).__name__)
        frames += frames_of(cause.__traceback__)
        cause = cause.__cause__
    return " from ".join(names), tuple(frames)


def frames_of(trace: TracebackType | None) -> tuple[str, ...]:
    """File and line of our own code on the way to an exception, the outermost first; no code, no values."""
    frames = []
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path.is_relative_to(_SOURCE):
            frames.append(f"{path.relative_to(_SOURCE).as_posix()}:{trace.tb_lineno}")
        trace = trace.tb_next
    return tuple(frames)
