"""The clock, the randomness and the ids of the service."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import anyio

from discreet.service.stores import utc_now

random_id = partial(secrets.token_hex, 16)
"""Returns a new id: 32 hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The clock, the randomness and the ids of the service; tests replace them.

    Args:
        clock: returns the current time, with a time zone.
        monotonic: returns monotonic seconds, for rates and durations.
        pause: waits for a number of seconds in the event loop.
        new_id: returns a new unique id: 1 to 200 letters, digits, - and _.
        random: returns a number of random bytes, such as `secrets.token_bytes`.
    """

    clock: Callable[[], datetime] = utc_now
    monotonic: Callable[[], float] = time.monotonic
    pause: Callable[[float], Awaitable[None]] = anyio.sleep
    new_id: Callable[[], str] = random_id
    random: Callable[[int], bytes] = secrets.token_bytes
