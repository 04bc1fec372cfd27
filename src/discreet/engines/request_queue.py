"""A bounded queue before an engine: so many requests run at once, the others wait, and beyond that they are refused."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from discreet.errors import EngineBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WAITING_PER_CONNECTION = 4
_POLL_SECONDS = 0.1


class RequestQueue:
    """Slots of one engine, given out in the order of arrival. Usable from several threads.

    Args:
        connections: slots; four times as many requests may wait.
        seconds: how long a request may wait, or None.
    """

    def __init__(self, connections: int = 4, seconds: float | None = None) -> None:
        self._free = connections
        self._waiting_most = _WAITING_PER_CONNECTION * connections
        self._seconds = seconds
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    @contextmanager
    def slot(self, progress: Callable[[float], None] | None = None) -> Iterator[None]:
        """Wait for a slot, and occupy it until the context ends.

        Args:
            progress: called with 0 about ten times a second; whatever it raises ends the wait.

        Raises:
            EngineBusy: too many requests wait already, or this one waited too long.
        """
        self._wait(progress)
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()

    def _wait(self, progress: Callable[[float], None] | None) -> None:
        end = None if self._seconds is None else time.monotonic() + self._seconds
        ticket = object()
        with self._changed:
            if not self._free and len(self._waiting) >= self._waiting_most:
                raise EngineBusy(f"{self._waiting_most} queries wait for this engine already; try again later")
            self._waiting.append(ticket)
        try:
            while True:
                with self._changed:
                    if self._free and self._waiting[0] is ticket:
                        self._free -= 1
                        return
                    self._changed.wait(_POLL_SECONDS)
                if end is not None and time.monotonic() >= end:
                    raise EngineBusy(f"the engine was busy for {self._seconds:g} seconds; try again later")
                if progress is not None:
                    progress(0.0)
        finally:
            with self._changed:
                self._waiting.remove(ticket)
                self._changed.notify_all()
