"""Check bearer tokens of an OpenID issuer by the issuer's keys, and log browsers in there.

The issuer's settings and keys are fetched when a token has to be checked, and cached for an hour. If a token names an
unknown key they are fetched again, because issuers rotate keys; at most twice a minute, because anyone can send such a
token. While the issuer cannot be reached, the response is 503, not 401.

Browsers log in by the authorization code flow with PKCE (OpenID Connect Core 3.1, RFC 7636).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NoReturn
from urllib.parse import quote, urlencode, urlsplit

import httpx
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from discreet.budget.model import MAX_NAME_LENGTH
from discreet.service.auth.identity import Identity
from discreet.service.observability import Fetched, IssuerFetched, Log
from discreet.service.problems import IssuerUnavailable, KeyRefused
from discreet.service.settings import Oidc
from discreet.wire.administration import Role

ALGORITHMS = frozenset({"RS256", "ES256", "EdDSA", "Ed25519"})
"""Accepted signature algorithms. All are asymmetric, so that no public key can be used as a shared secret."""

LEEWAY_SECONDS = 30
"""The maximum clock skew between the issuer and the service."""

_REFUSALS = (400, 401)
"""Statuses with which an issuer refuses an authorization code (RFC 6749, 5.2)."""

_KEEP = timedelta(hours=1)
_REFETCH_AFTER = timedelta(seconds=30)
_RETRY_AFTER = timedelta(seconds=5)
_WAIT_SECONDS = 5.0
_MAX_DOCUMENT_BYTES = 1_000_000
_MAX_TOKEN_LENGTH = 16_384
_MAX_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class _Keys:
    fetched: datetime
    set: KeySet
    about: Mapping[str, Any]


class _Registry(JWSRegistry):
    """Accept `ALGORITHMS` only, and ignore unknown header fields, as RFC 7515 requires."""

    def __init__(self) -> None:
        super().__init__(algorithms=ALGORITHMS, strict_check_header=False)

    def get_alg(self, name: str) -> Any:  # noqa: ANN401 - the library does not export the class
        # Suppress the library's warning about "EdDSA": RFC 9864 only gives it a more precise name.
        return self.algorithms[name] if name in ALGORITHMS else super().get_alg(name)


class Issuer:
    """An OpenID issuer. Usable from several threads.

    Args:
        settings: the URL and audience of the issuer, and the claims with accounts and roles.
    """

    def __init__(self, settings: Oidc, client: httpx.Client, clock: Callable[[], datetime], log: Log) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock
        self._log = log
        self._lock = threading.Lock()
        self._keys: _Keys | None = None
        self._failed: datetime | None = None
        self._known: OrderedDict[bytes, tuple[float, Identity]] = OrderedDict()

    def cached(self, token: str) -> Identity | None:
        """Return the identity of *token* from memory, without blocking; None if it is not cached."""
        entry = self._known.get(_digest(token))
        if entry is None or not self._is_fresh(self._keys, _KEEP):
            return None
        return entry[1] if self._clock().timestamp() < entry[0] else None

    def authenticate(self, token: str) -> Identity:
        """Return the identity of *token*.

        Raises:
            KeyRefused: the token is not from the issuer for this service, or has expired.
            IssuerUnavailable: the issuer's keys are needed, and it cannot be reached.
        """
        cached = self.cached(token)
        if cached is not None:
            return cached
        if len(token) > _MAX_TOKEN_LENGTH:
            raise KeyRefused("token")
        claims = self._validated_claims(token, self._settings.audience)
        identity = _identity(claims, self._settings)
        with self._lock:
            self._known[_digest(token)] = claims["exp"], identity  # of any size
            while len(self._known) > _MAX_REMEMBERED:
                self._known.popitem(last=False)
        return identity

    def endpoint(self, name: Literal["authorization_endpoint", "token_endpoint"]) -> str:
        """Return the URL of an endpoint of the issuer.

        Raises:
            IssuerUnavailable: the issuer cannot be reached, or its settings have no such endpoint.
        """
        place = self._current_keys().about.get(name)
        if not isinstance(place, str) or not is_as_safe(place, self._settings.issuer):
            self._fail("discovery")
        return place

    def redeem(self, form: Mapping[str, str], client: tuple[str, str] | None, nonce: str) -> Identity:
        """Exchange the authorization code of a login for an ID token, and return the identity in it.

        Args:
            form: fields of the token request, with the code.
            client: the client id and secret; None for a public client.
            nonce: the nonce that the ID token must hold.

        Raises:
            KeyRefused: the issuer refuses the code, or the ID token is not for this client and login.
            IssuerUnavailable: the issuer cannot be reached.
        """
        answer = self._fetch_document("token", self.endpoint("token_endpoint"), form, client)
        token = answer.get("id_token")
        client_id = self._settings.client_id
        if not isinstance(token, str) or client_id is None:
            raise KeyRefused("token")
        claims = self._validated_claims(token, client_id)
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("nonce") != nonce or claims.get("azp", None if several else client_id) != client_id:
            raise KeyRefused("token")
        return _identity(claims, self._settings)

    def _validated_claims(self, token: str, audience: str) -> dict[str, Any]:
        """Return the claims of a token for *audience*; raise `KeyRefused` if it is not valid."""
        keys = self._current_keys()
        try:
            try:
                claims = jwt.decode(token, keys.set, registry=_Registry()).claims
            except InvalidKeyIdError:
                with self._lock:  # another thread may have fetched the keys again; anyone can send such a token
                    if self._keys is keys and not self._is_fresh(keys, _REFETCH_AFTER):
                        self._fetch_keys()
                    newer = self._keys or keys
                claims = jwt.decode(token, newer.set, registry=_Registry()).claims
            jwt.JWTClaimsRegistry(
                now=int(self._clock().timestamp()),
                leeway=LEEWAY_SECONDS,
                iss={"essential": True, "value": self._settings.issuer},
                aud={"essential": True, "value": audience},
                exp={"essential": True},
                sub={"essential": True},
            ).validate(claims)
        except (JoseError, ValueError, TypeError, KeyError, RecursionError):  # also for malformed tokens
            raise KeyRefused("token") from None
        return claims

    def _current_keys(self) -> _Keys:
        """Return the cached keys, or fetch them if they are more than an hour old."""
        with self._lock:
            return self._keys if self._is_fresh(self._keys, _KEEP) and self._keys else self._fetch_keys()

    def _is_fresh(self, keys: _Keys | None, age: timedelta) -> bool:
        return keys is not None and abs(self._clock() - keys.fetched) <= age

    def _fetch_keys(self) -> _Keys:
        """Request the metadata and the keys of the issuer, unless that failed a short time ago."""
        now = self._clock()
        if self._failed is not None and abs(now - self._failed) <= _RETRY_AFTER:
            raise IssuerUnavailable  # requests must not all wait for an issuer that does not respond
        try:
            metadata = self._fetch_document(
                "discovery", f"{self._settings.issuer.rstrip('/')}/.well-known/openid-configuration"
            )
            if metadata.get("issuer") != self._settings.issuer:
                self._fail("discovery")
            place = metadata.get("jwks_uri")
            if not isinstance(place, str) or not is_as_safe(place, self._settings.issuer):
                self._fail("discovery")
            document = self._fetch_document("keys", place)
            try:
                keys = KeySet.import_key_set(document)  # type: ignore[arg-type]  # raises if it is not valid
            except (JoseError, ValueError, TypeError, KeyError, AttributeError):
                self._fail("keys")
        except IssuerUnavailable:
            self._failed = now
            raise
        self._keys = _Keys(now, keys, metadata)
        self._failed = None
        self._known.clear()  # tokens signed by a key that was removed are invalid
        return self._keys

    def _fetch_document(
        self, what: Fetched, place: str, form: Mapping[str, str] | None = None, client: tuple[str, str] | None = None
    ) -> dict[str, Any]:
        """Request a JSON object from the issuer, with GET, or with POST if there is a form.

        Raises:
            KeyRefused: the issuer refuses the form.
            IssuerUnavailable: the issuer cannot be reached, or its response is not a JSON object.
        """
        method = "GET" if form is None else "POST"
        body = b""
        try:
            with self._client.stream(
                method, place, data=form, auth=client, timeout=_WAIT_SECONDS, follow_redirects=False
            ) as response:
                for part in response.iter_bytes():
                    body += part
                    if len(body) > _MAX_DOCUMENT_BYTES:
                        self._fail(what)
            if form is not None and response.status_code in _REFUSALS:
                raise KeyRefused("token")
            document = json.loads(body) if response.status_code == httpx.codes.OK else None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError):
            self._fail(what)
        if not isinstance(document, dict):
            self._fail(what)
        self._log.event(IssuerFetched(what, "ok"))
        return document

    def _fail(self, what: Fetched) -> NoReturn:
        self._log.event(IssuerFetched(what, "failed"))
        raise IssuerUnavailable from None


def _identity(claims: dict[str, Any], settings: Oidc) -> Identity:
    """Return the identity in the claims of a valid token."""
    account = _claim(claims, settings.account_claim)
    actor = f"oidc:{quote(claims['sub'], safe='@.-_')}"
    if len(actor) > MAX_NAME_LENGTH:
        actor = f"oidc:{_digest(claims['sub']).hex()}"
    roles: frozenset[Role] = frozenset({"analyst"})
    if settings.roles_claim is not None:
        said = _claim(claims, settings.roles_claim)
        names = said.split() if isinstance(said, str) else said if isinstance(said, list) else []
        roles = frozenset(settings.roles[name] for name in names if isinstance(name, str) and name in settings.roles)
    return Identity(actor, account if isinstance(account, str) and account else None, roles)


def _claim(claims: dict[str, Any], name: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return a claim by its name, or by a dotted path such as realm_access.roles."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def is_as_safe(place: str, issuer: str) -> bool:
    """Return True if a URL from the issuer uses HTTPS, or HTTP where the issuer's own URL does."""
    try:
        scheme = urlsplit(place).scheme
    except ValueError:
        return False
    return scheme == "https" or (scheme == "http" and urlsplit(issuer).scheme == "http")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True, repr=False)
class PendingLogin:
    """A login that waits for the issuer; the browser keeps it in an encrypted cookie.

    Args:
        state: must be in the redirect from the issuer; otherwise the redirect is for another browser.
        nonce: must be in the ID token; otherwise the token is of another login.
        verifier: the PKCE code verifier; the issuer has its hash and accepts the code only with the verifier.
        redirect_uri: the URL to which the issuer redirects the browser.
        next: the page to show after the login.
    """

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    next: str


class OidcLogin:
    """Begins and completes logins.

    Args:
        settings: the settings of the issuer, with a client id.
        secret: the client secret; None for a public client, which PKCE alone protects.
    """

    def __init__(self, issuer: Issuer, settings: Oidc, secret: str | None, random: Callable[[int], bytes]) -> None:
        self._issuer = issuer
        self._secret = secret
        self._random = random
        self._url = settings.issuer
        self._client_id = settings.client_id or ""
        self._scope = settings.scope
        self.host = urlsplit(settings.issuer).hostname or ""

    def begin(self, redirect_uri: str, next_: str) -> tuple[str, PendingLogin]:
        """Return the URL of the issuer's login page, and the pending login for the cookie.

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
        """Return the identity that logged in.

        Args:
            answer: query parameters of the redirect from the issuer.

        Raises:
            KeyRefused: the redirect is for another login, or the issuer refused the login.
            IssuerUnavailable: the issuer cannot be reached.
        """
        ours = hmac.compare_digest(answer.get("state", "").encode(), pending.state.encode())
        if not ours or "code" not in answer or answer.get("iss", self._url) != self._url:  # iss: RFC 9207
            raise KeyRefused("token")
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
