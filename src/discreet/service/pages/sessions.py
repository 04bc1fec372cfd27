"""Sessions of the web page. A session is an encrypted cookie: the service stores nothing about it.

Every replica reads the cookies of the others, because they derive the same key from the secret of the noise. The cookie
holds the API key or token, which is checked on every request: revoking it ends its sessions.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography.fernet import Fernet, InvalidToken

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

COOKIE = "discreet_session"
IDLE_SECONDS = 30 * 60
"""Time without a request after which a session ends."""

LIFETIME_SECONDS = 12 * 60 * 60
"""Time after which a session ends in any case."""


@dataclass(frozen=True, slots=True, repr=False)
class Session:
    """A session; without a token, it only protects the form for logging in.

    Args:
        token: an API key, or a token of the issuer; empty before the login.
        csrf: text that every form of the session has to send back.
        began: when it began, in seconds since 1970.
    """

    token: str
    csrf: str
    began: int


class Sessions:
    """Start, read and write sessions.

    Args:
        key: 32 secret bytes.
        clock: the time.
        random: returns so many random bytes.
    """

    def __init__(self, key: bytes, clock: Callable[[], datetime], random: Callable[[int], bytes]) -> None:
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
        self._clock, self._random = clock, random

    def start(self, token: str = "") -> Session:
        """Return a new session."""
        return Session(token, self._random(16).hex(), self._now)

    def write(self, session: Session) -> str:
        """Return the value of the cookie, valid for `IDLE_SECONDS` from now."""
        text = json.dumps([session.token, session.csrf, session.began])
        return self._fernet.encrypt_at_time(text.encode(), self._now).decode()

    def read(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie, or None if it is over or not ours."""
        try:
            text = self._fernet.decrypt_at_time((cookie or "").encode(), IDLE_SECONDS, self._now)
        except InvalidToken:
            return None
        session = Session(*json.loads(text))
        return session if self._now - session.began < LIFETIME_SECONDS else None

    @property
    def _now(self) -> int:
        return int(self._clock().timestamp())
