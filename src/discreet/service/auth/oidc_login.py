"""Log browsers in at an OpenID issuer: the authorization code flow with PKCE (OpenID Connect Core 3.1, RFC 7636)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from discreet.service.problems import Unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from discreet.service.auth.gate import Identity
    from discreet.service.auth.oidc import Issuer
    from discreet.service.settings import Oidc


@dataclass(frozen=True, slots=True, repr=False)
class PendingLogin:
    """A login that the issuer has not answered; the browser keeps it, encrypted.

    Args:
        state: comes back with the issuer's answer, which otherwise belongs to another browser.
        nonce: comes back in the ID token, which otherwise is of another login.
        verifier: the issuer got its hash, and redeems the code only for a client that sends the verifier.
        redirect_uri: where the issuer sends the browser back.
        next: the page to show then.
    """

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    next: str


class OidcLogin:
    """Begins and completes logins.

    Args:
        settings: with a client id.
        secret: of the client; None for a public client, which PKCE alone protects.
        random: returns so many random bytes.
    """

    def __init__(self, issuer: Issuer, settings: Oidc, secret: str | None, random: Callable[[int], bytes]) -> None:
        self._issuer, self._secret, self._random = issuer, secret, random
        self._url, self._client_id, self._scope = settings.issuer, settings.client_id or "", settings.scope
        self.host = urlsplit(settings.issuer).hostname or ""

    def begin(self, redirect_uri: str, next_: str) -> tuple[str, PendingLogin]:
        """Return the URL at the issuer to send the browser to, and what the browser has to keep meanwhile.

        Raises:
            IssuerUnavailable: the issuer cannot be reached.
        """
        state, nonce, verifier = (_base64(self._random(32)) for _ in range(3))
        parameters = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": self._scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": _base64(hashlib.sha256(verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        place = self._issuer.endpoint("authorization_endpoint")
        url = f"{place}{'&' if urlsplit(place).query else '?'}{urlencode(parameters)}"
        return url, PendingLogin(state, nonce, verifier, redirect_uri, next_)

    def complete(self, pending: PendingLogin, answer: Mapping[str, str]) -> Identity:
        """Return who logged in.

        Args:
            answer: parameters that the issuer sent the browser back with.

        Raises:
            Unauthorized: the answer is of another login, or the issuer refused it.
            IssuerUnavailable: the issuer cannot be reached.
        """
        ours = hmac.compare_digest(answer.get("state", "").encode(), pending.state.encode())
        if not ours or "code" not in answer or answer.get("iss", self._url) != self._url:  # iss: RFC 9207
            raise Unauthorized("token")
        form = {
            "grant_type": "authorization_code",
            "code": answer["code"],
            "redirect_uri": pending.redirect_uri,
            "code_verifier": pending.verifier,
        }
        if self._secret is None:
            return self._issuer.redeem({**form, "client_id": self._client_id}, None, pending.nonce)
        client = quote(self._client_id, safe=""), quote(self._secret, safe="")  # RFC 6749, 2.3.1
        return self._issuer.redeem(form, client, pending.nonce)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
