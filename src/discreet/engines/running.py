"""Running a count in a thread, so that Ctrl-C, a deadline or whoever asked can stop it at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Waiting
from typing import TYPE_CHECKING, TypeVar

from discreet.errors import EngineTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")
_POLL_SECONDS = 0.1


def run(
    work: Callable[[], _Result],
    cancel: Callable[[], None],
    *,
    seconds: float | None = None,
    progress: Callable[[float], None] | None = None,
    share: Callable[[], float] = lambda: 0.0,
) -> _Result:
    """What *work* returns, or raises.

    Args:
        work: runs in a thread of its own.
        cancel: makes it stop soon; called if anything else ends the wait, and waited for.
        seconds: how long it may take, or None.
        progress: called every tenth of a second; whatever it raises stops the work.
        share: how much is done, from 0 to 1.

    Raises:
        EngineTimeout: it took too long.
    """
    end = None if seconds is None else time.monotonic() + seconds
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        try:
            while True:
                left = _POLL_SECONDS if end is None else min(_POLL_SECONDS, max(end - time.monotonic(), 0))
                try:
                    return future.result(timeout=left)
                except Waiting:
                    if future.done():  # the work itself ran into a time limit
                        raise
                if end is not None and time.monotonic() >= end:
                    raise EngineTimeout(f"the engine did not answer within {seconds:g} seconds")
                if progress is not None:
                    progress(min(max(share(), 0.0), 1.0))
        finally:
            if not future.done():
                cancel()
