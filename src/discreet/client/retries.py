"""Requests, replies, and the rules for retries. No I/O.

Retrying is safe because every query carries an Idempotency-Key and is repeated with the same one: the service answers
and charges it once. A run that failed after data was read is not retried: each one is charged, and five in a day
suspend the account, so the caller has to decide.
"""

from __future__ import annotations

import email.utils
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from discreet.client.errors import read_problem
from discreet.wire.problems import KINDS, Problem

FIRST_SECONDS = 0.25
"""The pause after the first failure; it doubles with each further failure."""

MAX_SECONDS = 30.0
"""The longest pause if the service sends no Retry-After."""

_TRANSIENT = frozenset({502, 503, 504})


def pause_before_next(
    reply: HttpReply | NoReply, failures: int, waits: int, retries: int, chance: float
) -> float | None:
    """Return the seconds to wait before the next attempt, or None to stop.

    Args:
        reply: the reply to the last attempt.
        waits: number of replies so far that required the client to wait.
        retries: the largest number of failures that are retried.
        chance: a random number from 0 to 1, so that clients that failed together do not retry together.
    """
    if not reply.waits and not (reply.failed and failures <= retries):
        return None
    doublings = (waits if reply.waits else failures) - 1
    # The exponent is bounded because 2.0 ** 1024 overflows, and a wait has no maximum number of repetitions.
    own = min(FIRST_SECONDS * 2.0 ** min(doublings, 20), MAX_SECONDS)
    if reply.retry_after is None:
        return own * (0.5 + chance / 2)
    return reply.retry_after + min(own, 1.0) * chance  # never earlier than requested


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Parse the header Retry-After to seconds; None if it is absent or malformed.

    A date is compared with the header Date of the reply, so that the clocks need not agree.
    """
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit() and len(value) <= 9:  # isdigit() alone accepts "²"
        return float(value)
    try:
        # TypeError: one of the dates has the zone -0000, and the other has a zone, so they cannot be subtracted.
        then, now = (email.utils.parsedate_to_datetime(text) for text in (value, headers.get("date", "")))
        return max((then - now).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class RetryRuntime:
    """Clock, sleep and randomness of a client.

    Args:
        clock: monotonic, in seconds.
        sleep: waits the given number of seconds.
        chance: returns a random number from 0 to 1.
        ids: returns a new, globally unique idempotency key.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = secrets.SystemRandom().random
    ids: Callable[[], str] = lambda: secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request, the same in every attempt.

    Args:
        path: relative to the URL of the service, such as "/v1/query".
        body: JSON, or None.
        headers: headers in addition to those of every request.
        parameters: parameters of the query string.
    """

    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A complete reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def problem(self) -> Problem | None:
        """The problem in the reply, or None."""
        return None if self.status == 200 else read_problem(self.headers, self.body)

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait, from the header Retry-After, or None."""
        return read_retry_after(self.headers)

    @property
    def waits(self) -> bool:
        """True if the service requires the client to wait, which is not a failure."""
        return self.status == 429 or (self.status == 409 and self._is_free)

    @property
    def failed(self) -> bool:
        """True if the attempt failed and a retry may succeed."""
        # a proxy's own 502, 503 and 504 hold no problem
        return self.status in _TRANSIENT and (self.problem is None or self._is_free)

    @property
    def _is_free(self) -> bool:
        """True if the problem is one that a retry may solve without another charge."""
        kind = None if self.problem is None else KINDS.get(self.problem.slug)
        return kind is not None and kind.retry_after is not None


@dataclass(frozen=True, slots=True)
class NoReply:
    """The outcome of an attempt without a complete reply.

    Args:
        reason: one sentence.
        final: True if a retry cannot help.
    """

    reason: str
    final: bool
    waits: ClassVar[bool] = False
    retry_after: ClassVar[float | None] = None

    @property
    def failed(self) -> bool:
        """True if a retry may succeed."""
        return not self.final
