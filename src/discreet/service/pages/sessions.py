"""Sessions of the web page. A session is an encrypted cookie: the service stores nothing about it.

Every replica reads the cookies of the others, because they derive the same key from the secret of the noise. The cookie
holds the API key or token, which is checked on every request: revoking it ends its sessions.
"""

from __future__ import annotations

import base64
import json
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from cryptography.fernet import Fernet, InvalidToken

from discreet.service.auth.gate import Identity
from discreet.service.auth.oidc_login import PendingLogin

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

COOKIE = "discreet_session"
LOGIN_COOKIE = "discreet_login"
IDLE_SECONDS = 30 * 60
"""Time without a request after which a session ends."""

LIFETIME_SECONDS = 12 * 60 * 60
"""Time after which a session ends in any case."""

ISSUER_LIFETIME_SECONDS = 60 * 60
"""The same for a session that began at the issuer of tokens, which is asked again for roles."""

LOGIN_SECONDS = 10 * 60
"""Time that a login at the issuer may take."""


@dataclass(frozen=True, slots=True, repr=False)
class Session:
    """A session; without a token or a caller, it only protects the form for logging in.

    Args:
        token: an API key, or a token of the issuer; empty before the login.
        csrf: text that every form of the session has to send back.
        began: when it began, in seconds since 1970.
        caller: who logged in at the issuer; None for all others.
    """

    token: str
    csrf: str
    began: int
    caller: Identity | None = None


class Sessions:
    """Start, read and write sessions, and logins that the issuer has not answered.

    Args:
        key: 32 secret bytes.
        clock: the time.
        random: returns so many random bytes.
    """

    def __init__(self, key: bytes, clock: Callable[[], datetime], random: Callable[[int], bytes]) -> None:
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
        self._clock, self._random = clock, random

    def start(self, token: str = "", caller: Identity | None = None) -> Session:
        """Return a new session."""
        return Session(token, self._random(16).hex(), self._now, caller)

    def write(self, session: Session) -> str:
        """Return the value of the cookie, valid for `IDLE_SECONDS` from now."""
        who = session.caller
        caller = None if who is None else [who.actor, who.account, sorted(who.roles)]
        return self._seal(COOKIE, [session.token, session.csrf, session.began, caller])

    def read(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie, or None if it is over or not ours."""
        found = self._open(COOKIE, cookie, IDLE_SECONDS)
        if found is None:
            return None
        token, csrf, began, who = found
        lifetime = LIFETIME_SECONDS if who is None else ISSUER_LIFETIME_SECONDS
        if self._now - began >= lifetime:
            return None
        return Session(token, csrf, began, None if who is None else Identity(who[0], who[1], frozenset(who[2])))

    def write_login(self, pending: PendingLogin) -> str:
        """Return the value of the cookie for a login, valid for `LOGIN_SECONDS` from now."""
        return self._seal(LOGIN_COOKIE, list(astuple(pending)))

    def read_login(self, cookie: str | None) -> PendingLogin | None:
        """Return the login of a cookie, or None if it took too long or the cookie is not ours."""
        found = self._open(LOGIN_COOKIE, cookie, LOGIN_SECONDS)
        return None if found is None else PendingLogin(*found)

    def _seal(self, name: str, values: list[Any]) -> str:
        return self._fernet.encrypt_at_time(json.dumps([name, *values]).encode(), self._now).decode()

    def _open(self, name: str, cookie: str | None, seconds: int) -> list[Any] | None:
        """Return what a cookie of that name holds."""
        try:
            found = json.loads(self._fernet.decrypt_at_time((cookie or "").encode(), seconds, self._now))
        except InvalidToken:
            return None
        return found[1:] if found[0] == name else None

    @property
    def _now(self) -> int:
        return int(self._clock().timestamp())
