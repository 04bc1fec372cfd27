"""Requests, replies, and whether and when to send a request again. No I/O."""

from __future__ import annotations

import email.utils
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from discreet.client.errors import read_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from discreet.wire.problems import Problem


FIRST_SECONDS = 0.25
"""The pause after the first failure; each one more is twice as long."""

LONGEST_SECONDS = 30.0
"""The longest pause that the client chooses by itself."""

_TRANSIENT = frozenset({502, 503, 504})
_FREE = frozenset({"engine-unavailable", "store-unavailable"})
"""Problems with one of those that cost nothing, because no data was asked. All others have a person decide."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one attempt ended.

    Args:
        status: of HTTP, or None if no whole answer came.
        problem: the slug of the problem that was answered, or None.
        retry_after: seconds that the service asks to wait, or None.
        final: True if no answer came, and none would.
    """

    status: int | None
    problem: str | None = None
    retry_after: float | None = None
    final: bool = False

    @property
    def waits(self) -> bool:
        """True if the service only asks for patience: nothing failed."""
        return self.status == 429 or (self.status == 409 and self.problem == "in-flight")

    @property
    def failed(self) -> bool:
        """True if asking again may help: no answer came, or something on the way or behind is away."""
        if self.status is None:
            return not self.final
        return self.status in _TRANSIENT and (self.problem is None or self.problem in _FREE)


def pause_before_next(attempt: Attempt, failures: int, waits: int, retries: int, chance: float) -> float | None:
    """Seconds to wait before the next attempt, or None if there is none.

    Args:
        attempt: how the last one ended.
        failures: how many failed, with that one.
        waits: how many asked for patience, with that one.
        retries: how many failures are forgiven.
        chance: from 0 to 1, so that clients that failed together do not come back together.
    """
    if not attempt.waits and not (attempt.failed and failures <= retries):
        return None
    doublings = (waits if attempt.waits else failures) - 1
    own = min(FIRST_SECONDS * 2.0 ** min(doublings, 20), LONGEST_SECONDS)
    if attempt.retry_after is None:
        return own * (0.5 + chance / 2)
    return attempt.retry_after + min(own, 1.0) * chance  # never earlier than we were asked to


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of the header Retry-After, or None if it says nothing that can be used.

    A date is held against the date of the answer itself, so that no clock has to be right.
    """
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit() and len(value) <= 9:
        return float(value)
    try:
        then, now = (email.utils.parsedate_to_datetime(text) for text in (value, headers.get("date", "")))
        return max((then - now).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a client needs of the world.

    Args:
        clock: seconds that only rise.
        sleep: waits so many seconds.
        chance: a random number from 0 to 1.
        ids: makes idempotency keys, unique for ever.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = secrets.SystemRandom().random
    ids: Callable[[], str] = lambda: secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent, the same in every attempt.

    Args:
        method: of HTTP.
        path: below the URL of the service, such as "/v1/query".
        body: JSON, or None.
        headers: beside those of every request.
        parameters: of the URL.
    """

    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer.

    Args:
        status: of HTTP.
        headers: their names in lower case.
        body: all of it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def problem(self) -> Problem | None:
        """What it says instead of what was asked, or None."""
        return None if self.status == 200 else read_problem(self.headers, self.body)

    @property
    def retry_after(self) -> float | None:
        """Seconds that it asks to wait, or None."""
        return read_retry_after(self.headers)

    @property
    def attempt(self) -> Attempt:
        """What matters for asking again."""
        problem = self.problem
        return Attempt(self.status, None if problem is None else problem.slug, self.retry_after)


@dataclass(frozen=True, slots=True)
class Silence:
    """No whole answer.

    Args:
        sentence: why.
        final: True if asking again cannot help.
    """

    sentence: str
    final: bool

    @property
    def attempt(self) -> Attempt:
        """What matters for asking again."""
        return Attempt(None, final=self.final)
