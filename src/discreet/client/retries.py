"""Requests, replies, and when to send a request again. No I/O.

Retrying is safe because every query carries an Idempotency-Key and is repeated with the same one: the service answers
and charges it once. It is not always useful: a run that failed after data was read is charged, and five of them in a
day suspend the account, so the client leaves those to its caller.
"""

from __future__ import annotations

import email.utils
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

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
"""Problems with such a status that cost nothing, because no data was read."""


def pause_before_next(reply: Reply | NoReply, failures: int, waits: int, retries: int, chance: float) -> float | None:
    """Return the seconds to wait before the next attempt, or None if there is none.

    Args:
        reply: the reply to the last attempt.
        waits: attempts after which the service required the client to wait.
        retries: failures after which the client gives up.
        chance: a random number from 0 to 1, so that clients that failed together do not retry together.
    """
    if not reply.waits and not (reply.failed and failures <= retries):
        return None
    doublings = (waits if reply.waits else failures) - 1
    own = min(FIRST_SECONDS * 2.0 ** min(doublings, 20), LONGEST_SECONDS)
    if reply.retry_after is None:
        return own * (0.5 + chance / 2)
    return reply.retry_after + min(own, 1.0) * chance  # never earlier than requested


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of the header Retry-After, or None if it is absent or malformed.

    A date is compared with the date of the reply itself, so that the clocks need not agree.
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
class Runtime:
    """Clock, sleep and randomness of a client.

    Args:
        clock: monotonic, in seconds.
        sleep: waits so many seconds.
        chance: returns a random number from 0 to 1.
        ids: returns a new idempotency key, unique for ever.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = secrets.SystemRandom().random
    ids: Callable[[], str] = lambda: secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Request:
    """A request, the same in every attempt.

    Args:
        path: below the URL of the service, such as "/v1/query".
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
class Reply:
    """A complete reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def problem(self) -> Problem | None:
        """The problem that it holds, or None."""
        return None if self.status == 200 else read_problem(self.headers, self.body)

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait by the header Retry-After, or None."""
        return read_retry_after(self.headers)

    @property
    def waits(self) -> bool:
        """True if nothing failed and the service requires the client to wait."""
        return self.status == 429 or (self.status == 409 and self._slug == "in-flight")

    @property
    def failed(self) -> bool:
        """True if the attempt failed and a retry may succeed."""
        return self.status in _TRANSIENT and (self._slug is None or self._slug in _FREE)

    @property
    def _slug(self) -> str | None:
        return None if self.problem is None else self.problem.slug


@dataclass(frozen=True, slots=True)
class NoReply:
    """No complete reply.

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
