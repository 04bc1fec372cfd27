"""The clock, the ids and the randomness that the service runs with; tests replace them."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def utc_now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


def random_id() -> str:
    """Return a new id: 32 hexadecimal digits."""
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the service takes from the machine besides its settings and its store.

    Args:
        clock: returns the time with its zone.
        monotonic: returns seconds that only rise, for rates and durations.
        pause: waits so many seconds in the event loop.
        new_id: returns an id that is unique for ever: 1 to 200 letters, digits, - and _.
        random: returns so many random bytes, such as `secrets.token_bytes`.
    """

    clock: Callable[[], datetime] = utc_now
    monotonic: Callable[[], float] = time.monotonic
    pause: Callable[[float], Awaitable[None]] = anyio.sleep
    new_id: Callable[[], str] = random_id
    random: Callable[[int], bytes] = secrets.token_bytes
