"""What goes to a service and what comes back."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from discreet.client.problems import read_problem
from discreet.client.waiting import Attempt, read_retry_after

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from discreet.wire.problems import Problem


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
