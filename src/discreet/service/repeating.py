"""What is done again and again beside the requests, in a thread of its own."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def repeating(work: Callable[[], None], seconds: float, name: str) -> Iterator[None]:
    """While it is entered, a thread does *work*, with so many seconds between; on leaving, what is under way ends.

    Args:
        work: raises nothing: a thread that ends does nothing any more.
        seconds: above 0.
        name: of the thread.
    """
    stop = threading.Event()

    def go_on() -> None:
        while not stop.wait(seconds):
            work()

    thread = threading.Thread(target=go_on, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
