"""Routes, sessions, templates and security headers of the web page.

A page is a method decorated with `page`. It calls the corresponding handler of the API, so that no rule is implemented
twice, and renders problems of the API as HTML.

A session is an encrypted cookie: the service stores nothing about it. All replicas derive the same key for it from the
noise secret, so each reads the cookies of the others. The cookie holds the API key or token, which is checked on every
request, so revoking the key ends its sessions.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import inspect
import json
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit

from cryptography.fernet import Fernet, InvalidToken
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from discreet.errors import DiscreetError, InputError
from discreet.service.api.operation import Call
from discreet.service.auth.gate import Identity, read_bytes, run_in_thread
from discreet.service.auth.oidc import PendingLogin
from discreet.service.middleware import context_of, problem_of_request
from discreet.service.pages import charts, text
from discreet.service.problems import NotFound, Unauthorized
from discreet.service.settings import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from starlette.requests import Request

    from discreet.service.auth.gate import Gate, Role
    from discreet.service.auth.oidc import OidcLogin
    from discreet.wire.problems import Problem

COOKIE = "discreet_session"
LOGIN_COOKIE = "discreet_login"
IDLE_SECONDS = 30 * 60
"""The idle timeout of a session."""

LIFETIME_SECONDS = 12 * 60 * 60
"""The maximum lifetime of a session."""

ISSUER_LIFETIME_SECONDS = 60 * 60
"""The maximum lifetime of a session from an issuer login, after which changed roles apply."""

LOGIN_SECONDS = 10 * 60
"""The timeout of a login at the issuer."""


@dataclass(frozen=True, slots=True, repr=False)
class Session:
    """A session; without a token or a caller, it only protects the login form against CSRF.

    Args:
        token: an API key, or a token of the issuer; empty before the login.
        csrf: the CSRF token that every form of the session must return.
        began: the start of the session, in seconds since 1970.
        caller: the identity from a login at the issuer; None for sessions with a token.
    """

    token: str
    csrf: str
    began: int
    caller: Identity | None = None


class Sessions:
    """Starts sessions, and reads and writes the cookies of sessions and of pending logins.

    Args:
        key: the encryption key of the cookies, 32 secret bytes.
    """

    def __init__(self, key: bytes, clock: Callable[[], datetime], random: Callable[[int], bytes]) -> None:
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
        self._clock, self._random = clock, random

    def start(self, token: str = "", caller: Identity | None = None) -> Session:
        """Return a new session."""
        return Session(token, self._random(16).hex(), self._now, caller)

    def write(self, session: Session) -> str:
        """Return the cookie of a session, valid for `IDLE_SECONDS` from now."""
        who = session.caller
        caller = None if who is None else [who.actor, who.account, sorted(who.roles)]
        return self._encrypt(COOKIE, [session.token, session.csrf, session.began, caller])

    def read(self, cookie: str | None) -> Session | None:
        """Return the session in a cookie, or None if the session has expired or the cookie is not valid."""
        found = self._decrypt(COOKIE, cookie, IDLE_SECONDS)
        if found is None:
            return None
        token, csrf, began, who = found
        lifetime = LIFETIME_SECONDS if who is None else ISSUER_LIFETIME_SECONDS
        if self._now - began >= lifetime:
            return None
        return Session(token, csrf, began, None if who is None else Identity(who[0], who[1], frozenset(who[2])))

    def write_login(self, pending: PendingLogin) -> str:
        """Return the cookie of a pending login, valid for `LOGIN_SECONDS` from now."""
        return self._encrypt(LOGIN_COOKIE, list(astuple(pending)))

    def read_login(self, cookie: str | None) -> PendingLogin | None:
        """Return the pending login in a cookie, or None if the login has expired or the cookie is not valid."""
        found = self._decrypt(LOGIN_COOKIE, cookie, LOGIN_SECONDS)
        return None if found is None else PendingLogin(*found)

    def _encrypt(self, name: str, values: list[Any]) -> str:
        return self._fernet.encrypt_at_time(json.dumps([name, *values]).encode(), self._now).decode()

    def _decrypt(self, name: str, cookie: str | None, seconds: int) -> list[Any] | None:
        """Return the values in a cookie that `_encrypt` wrote for *name*, or None if it has expired or is not valid."""
        try:
            found = json.loads(self._fernet.decrypt_at_time((cookie or "").encode(), seconds, self._now))
        except InvalidToken:
            return None
        return found[1:] if found[0] == name else None

    @property
    def _now(self) -> int:
        return int(self._clock().timestamp())


_HERE = Path(__file__).parent
_FORM = "application/x-www-form-urlencoded"
_TOKEN_LONGEST = 2_800
"""The maximum length of a token whose encryption fits into a cookie, in characters."""

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Cookie",
}
"""Security headers of every page."""

Handler = TypeVar("Handler", bound="Callable[..., Any]")


@dataclass(slots=True)
class Visit:
    """A request for a page.

    Args:
        request: the request; its body has been read.
        caller: the authenticated caller; None on pages without a login.
        form: the fields of a form that was posted.
    """

    request: Request
    session: Session
    caller: Identity | None
    form: Mapping[str, list[str]] = field(default_factory=dict)

    def call(self, **parameters: Any) -> Call:
        """Return the argument of an API handler, with *parameters* and the caller of this page."""
        if self.caller is None:
            raise Unauthorized("missing")
        return Call(self.request, self.caller, {"Idempotency-Key": self.field("key") or None, **parameters})

    def field(self, name: str, default: str = "") -> str:
        """Return a field of the form, or of the query string of a GET, without surrounding white space."""
        if self.request.method == "POST":
            return self.form.get(name, [default])[-1].strip()
        return self.request.query_params.get(name, default).strip()

    def fields(self, name: str) -> list[str]:
        """Return all nonempty values of a field."""
        found = self.form.get(name, []) if self.request.method == "POST" else self.request.query_params.getlist(name)
        return [value for value in found if value]


def page(method: str, path: str, *, role: Role | None = None, login: bool = True) -> Callable[[Handler], Handler]:
    """Declare the decorated method as the handler of a page; a plain function runs in a thread.

    Args:
        role: the role that the caller needs, or None if any role is allowed.
        login: False for a page without login.
    """

    def declare(handler: Handler) -> Handler:
        handler.page = method, path, role, login  # type: ignore[attr-defined]
        return handler

    return declare


class Site:
    """Routes, sessions and templates that all pages share.

    Args:
        login: logins at the OpenID issuer; None if the settings have no client id.
        has_issuer: True if tokens of an OpenID issuer are accepted beside API keys.
    """

    def __init__(self, gate: Gate, sessions: Sessions, login: OidcLogin | None, *, has_issuer: bool) -> None:
        self._gate, self._sessions, self._login, self._has_issuer = gate, sessions, login, has_issuer
        self._assets = _read_assets()
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update({**text.FILTERS, "steps": charts.steps})
        self._templates.globals["asset"] = self._asset_url

    def routes(self, *pages: object) -> list[Route]:
        """Return the routes of all methods of *pages* and of the site itself."""
        found = [Route("/assets/{name}", self._asset)]
        for each in (self, *pages):
            for name in vars(type(each)):
                handler = getattr(each, name)
                if hasattr(handler, "page"):
                    method, path, role, login = handler.page
                    found.append(Route(path, self._endpoint(handler, role, login=login), methods=[method]))
        return found

    def render(self, visit: Visit, template: str, status: int = 200, **values: Any) -> Response:
        """Render a template as the response to *visit*."""
        html = self._templates.get_template(template).render(
            caller=visit.caller, csrf=visit.session.csrf, path=visit.request.url.path, **values
        )
        return HTMLResponse(html, status, dict(HEADERS))

    def redirect(self, visit: Visit, path: str) -> Response:
        """Return the redirect to a page of the site after a form was posted."""
        if visit.request.headers.get("HX-Request"):
            return Response(status_code=204, headers={"HX-Redirect": path})
        return RedirectResponse(path, 303)

    def problem(self, visit: Visit, error: Exception) -> Problem:
        """Return the problem of *error*, to be shown in the form that caused it.

        Raises:
            Exception: *error* itself, if it is a bug or ends the session.
        """
        if not isinstance(error, DiscreetError) or isinstance(error, Unauthorized):
            raise error
        found = problem_of_request(visit.request.scope, error)
        if found.status >= 500 and found.slug == "internal":
            raise error
        return found

    # ---------------------------------------------------------------------------------------------- login

    @page("GET", "/login", login=False)
    async def show_login(self, visit: Visit) -> Response:
        """Show the form for an API key."""
        return self._login_form(visit)

    @page("POST", "/login", login=False)
    async def log_in(self, visit: Visit) -> Response:
        """Start a session with an API key, or a token of the issuer."""
        token = visit.field("token")
        if not _is_private(visit.request):
            return self._login_form(visit, "keys are only accepted over HTTPS, or on this machine itself")
        if len(token) > _TOKEN_LONGEST:
            return self._login_form(visit, "this token is too long for a cookie; use an API key")
        try:
            await self._gate.identify(visit.request, f"Bearer {token}")
        except Unauthorized:
            return self._login_form(visit, "this is not a valid key: it may be mistyped, expired or revoked")
        visit.session = self._sessions.start(token)
        return RedirectResponse(_local_path(visit.field("next")), 303)

    @page("GET", "/login/issuer", login=False)
    async def begin_login(self, visit: Visit) -> Response:
        """Redirect to the login page of the issuer."""
        if self._login is None:
            raise NotFound
        if not _is_private(visit.request):
            return self._login_form(visit, "logins need HTTPS, or this machine itself")
        back = f"{str(visit.request.base_url).rstrip('/')}/login/callback"
        url, pending = await run_in_thread(self._login.begin, back, _local_path(visit.field("next")))
        response = RedirectResponse(url, 303, {"Referrer-Policy": "no-referrer"})
        # Lax, because the issuer sends the browser back from another site; the session's own cookie stays strict.
        response.set_cookie(
            LOGIN_COOKIE,
            self._sessions.write_login(pending),
            LOGIN_SECONDS,
            path="/login",
            httponly=True,
            samesite="lax",
            secure=visit.request.url.scheme == "https",
        )
        return response

    @page("GET", "/login/callback", login=False)
    async def complete_login(self, visit: Visit) -> Response:
        """Handle the redirect from the issuer: start a session, or show the login form again."""
        pending = self._sessions.read_login(visit.request.cookies.get(LOGIN_COOKIE))
        if self._login is None or pending is None:
            return self._login_form(visit, "the login took too long, or began in another browser: begin it again")
        try:
            caller = await run_in_thread(self._login.complete, pending, dict(visit.request.query_params))
        except Unauthorized as error:
            self._gate.deny(visit.request, error)
            response = self._login_form(visit, f"{self._login.host} did not log you in", pending.next)
        else:
            visit.session = self._sessions.start(caller=self._gate.admit(visit.request, caller))
            response = self.render(visit, "redirect.html", url=pending.next)
        response.delete_cookie(LOGIN_COOKIE, path="/login")
        return response

    @page("POST", "/logout", login=False)
    async def log_out(self, visit: Visit) -> Response:
        """End the session."""
        visit.session = self._sessions.start()
        return RedirectResponse("/login", 303)

    @page("GET", "/")
    async def home(self, visit: Visit) -> Response:
        """Redirect to the start page for the caller's role."""
        roles = visit.call().caller.roles
        first = "/ask" if "analyst" in roles else "/officer" if "officer" in roles else "/officer/keys"
        return RedirectResponse(first, 303)

    def _login_form(self, visit: Visit, wrong: str | None = None, next_: str | None = None) -> Response:
        return self.render(
            visit,
            "login.html",
            200 if wrong is None else 401,
            next=_local_path(visit.field("next")) if next_ is None else next_,
            wrong=wrong,
            issuer=None if self._login is None else self._login.host,
            has_issuer=self._has_issuer,
            private=_is_private(visit.request),
        )

    # ---------------------------------------------------------------------------------------------- requests

    def _endpoint(self, handler: Callable[[Visit], Any], role: Role | None, *, login: bool) -> Callable[[Request], Any]:
        in_loop = inspect.iscoroutinefunction(handler)

        async def endpoint(request: Request) -> Response:
            session = self._sessions.read(request.cookies.get(COOKIE))
            visit = Visit(request, session or self._sessions.start(), None)
            context_of(request.scope).page = lambda problem: self.render(
                visit, "problem.html", problem.status, problem=problem
            )
            if request.method == "POST":
                body = await read_bytes(request, _FORM, self._gate.body_most_bytes)
                visit.form = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
            if login:
                if _is_cross_site_link(request, session):
                    return self.render(visit, "redirect.html", url=_path_of(request))
                try:
                    if visit.session.caller is not None:
                        visit.caller = self._gate.admit(request, visit.session.caller)
                    else:
                        visit.caller = await self._gate.identify(request, f"Bearer {visit.session.token}")
                except Unauthorized:
                    return self._set_session_cookie(
                        visit, self.redirect(visit, f"/login?{urlencode({'next': _return_to(request)})}")
                    )
                if role is not None:
                    visit.caller.require(role)
            if request.method == "POST" and not hmac.compare_digest(
                visit.session.csrf.encode(), visit.field("csrf").encode()
            ):
                raise InvalidCsrfToken
            answer = await handler(visit) if in_loop else await run_in_thread(handler, visit)
            return self._set_session_cookie(visit, answer)

        return endpoint

    def _set_session_cookie(self, visit: Visit, response: Response) -> Response:
        """Renew the session cookie on every page, which extends its idle timeout."""
        secure = visit.request.url.scheme == "https"
        response.set_cookie(
            COOKIE, self._sessions.write(visit.session), httponly=True, samesite="strict", secure=secure
        )
        return response

    # ---------------------------------------------------------------------------------------------- assets

    def _asset_url(self, name: str) -> str | None:
        """Return the URL of an asset, which changes with its content; None if the asset does not exist."""
        found = self._assets.get(name)
        return None if found is None else f"/assets/{name}?v={found.version}"

    async def _asset(self, request: Request) -> Response:
        found = self._assets.get(request.path_params["name"])
        if found is None:
            return Response(status_code=404)
        headers = {
            "Cache-Control": "public, max-age=31536000, immutable",
            "Vary": "Accept-Encoding",
            "X-Content-Type-Options": "nosniff",
        }
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(found.compressed, headers={**headers, "Content-Encoding": "gzip"}, media_type=found.type)
        return Response(found.content, headers=headers, media_type=found.type)


class InvalidCsrfToken(InputError):
    """A form was posted without the CSRF token of the session: from another site, or before the session began."""

    def __init__(self) -> None:
        super().__init__(
            "the form is older than your session; nothing was done: go back, reload the page and try again"
        )


@dataclass(frozen=True, slots=True)
class _Asset:
    content: bytes
    compressed: bytes
    type: str
    version: str


def _read_assets() -> dict[str, _Asset]:
    """Return all assets by name: those of this project, and third-party ones copied by `make assets`."""
    types = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    found = {}
    for path in sorted((_HERE / "assets").rglob("*")):
        if path.suffix in types:
            content = path.read_bytes()
            version = hashlib.sha256(content).hexdigest()[:12]
            found[path.name] = _Asset(content, gzip.compress(content, mtime=0), types[path.suffix], version)
    return found


def _is_private(request: Request) -> bool:
    """Return True if the request is sent over https or to this machine."""
    return request.url.scheme == "https" or is_loopback(request.url.hostname)


def _is_cross_site_link(request: Request, session: Session | None) -> bool:
    """Return True if a link on another site led here: the browser omits the strict cookie until a reload."""
    return session is None and request.method == "GET" and request.headers.get("sec-fetch-site") == "cross-site"


def _path_of(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _return_to(request: Request) -> str:
    """Return the path of the page to show after a login: this page, or the page with the posted form."""
    if request.method == "GET" and not request.headers.get("HX-Request"):
        return _path_of(request)
    shown = urlsplit(request.headers.get("HX-Current-URL") or request.headers.get("referer", ""))
    return _local_path(shown.path + (f"?{shown.query}" if shown.query else ""))


def _local_path(path: str) -> str:
    """Return *path* if it is a path on this site, otherwise "/", to prevent open redirects."""
    local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if local else "/"
