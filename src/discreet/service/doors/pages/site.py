"""Routes, sessions, templates and security headers of the web page.

A page is a method decorated with `Operation`. It calls the corresponding handler of the API, so that no rule is
implemented twice, and renders problems of the API as HTML.

A session is an encrypted cookie. All replicas derive the same key for it from the noise secret, so each reads the
cookies of the others. The cookie holds the API key or token, which is checked on every request, so revoking the key
ends its sessions. It also holds how often its caller had logged out before: the store counts the logouts of a caller,
so that a logout ends all sessions of the caller within a second, in all processes, also those with a copied cookie.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import hmac
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from cryptography.fernet import Fernet, InvalidToken
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from discreet.budget.model import AdminAction
from discreet.budget.stores.store import BudgetStore
from discreet.catalog.model import Catalog
from discreet.errors import DiscreetError, InputError, NotFound
from discreet.secrets import is_local
from discreet.service.auth.access import LOGOUT, RecordCache
from discreet.service.auth.identity import Identity
from discreet.service.auth.oidc import OidcLogin, PendingLogin
from discreet.service.doors.http.operation import IDEMPOTENCY_KEY, Call, Operation, Parameter, routes_of
from discreet.service.doors.pages import charts, text
from discreet.service.doors.pages.disclosure import DISCLOSURE_FORMS, STYLE_HASH
from discreet.service.middleware import (
    Gate,
    check_role,
    context_of,
    is_failure,
    problem_of_request,
    read_bytes,
    run_in_thread,
)
from discreet.service.problems import KeyRefused
from discreet.warehouse import Warehouse
from discreet.wire.disclosure import Disclosure
from discreet.wire.problems import Problem

COOKIE = "discreet_session"
LOGIN_COOKIE = "discreet_login"
IDLE_SECONDS = 30 * 60
"""The idle timeout of a session."""

LIFETIME_SECONDS = 12 * 60 * 60
"""The maximum lifetime of a session."""

ISSUER_LIFETIME_SECONDS = 60 * 60
"""The maximum lifetime of a session from an issuer login, after which changed roles apply."""

ENDED: Mapping[str, str] = {
    "idle": "you were logged out after 30 minutes without a request",
    "lifetime": "you were logged out, because a session ends after 12 hours, or an hour after a login at the issuer",
    "revoked": "you were logged out, because your key was revoked; ask a privacy officer or an admin for another one",
    "expired": "you were logged out, because your key has expired; ask a privacy officer or an admin for another one",
    "logout": "you were logged out by a logout in another browser",
    "token": "you were logged out, because your token is not valid any more",
}
"""Reasons for the end of a session. Only its own browser gets one: its cookie proves that it was logged in."""

LOGIN_SECONDS = 10 * 60
"""The timeout of a login at the issuer."""


@dataclass(frozen=True, slots=True, repr=False)
class Session:
    """A session; without a token or a caller, it only protects the login form against CSRF.

    Args:
        token: an API key, or a token of the issuer; empty before the login.
        csrf: the CSRF token that every form of the session must return.
        began: the start of the session, in seconds since 1970.
        logouts: the number of logouts of the caller before the session.
        caller: the identity from a login at the issuer; None for sessions with a token.
    """

    token: str
    csrf: str
    began: int
    logouts: int = 0
    caller: Identity | None = None


class Sessions:
    """Starts sessions, and reads and writes the cookies of sessions and of pending logins.

    Args:
        key: the encryption key of the cookies, 32 secret bytes.
    """

    def __init__(self, key: bytes, clock: Callable[[], datetime], random: Callable[[int], bytes]) -> None:
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
        self._clock = clock
        self._random = random

    def start(self, token: str = "", logouts: int = 0, caller: Identity | None = None) -> Session:
        """Return a new session."""
        return Session(token, self._random(16).hex(), self._now, logouts, caller)

    def write(self, session: Session) -> str:
        """Return the cookie of a session, valid for `IDLE_SECONDS` from now."""
        who = session.caller
        caller = None if who is None else [who.actor, who.account, sorted(who.roles)]
        return self._encrypt(COOKIE, [session.token, session.csrf, session.began, session.logouts, caller])

    def read(self, cookie: str | None) -> Session | None:
        """Return the session in a cookie, or None if the session has expired or the cookie is not valid."""
        values = self._decrypt(COOKIE, cookie, IDLE_SECONDS)
        if values is None:
            return None
        token, csrf, began, logouts, who = values
        lifetime = LIFETIME_SECONDS if who is None else ISSUER_LIFETIME_SECONDS
        if self._now - began >= lifetime:
            return None
        caller = None if who is None else Identity(who[0], who[1], frozenset(who[2]))
        return Session(token, csrf, began, logouts, caller)

    def why_ended(self, cookie: str | None) -> str | None:
        """Return the reason, of `ENDED`, why a cookie that `read` refuses is over; None if it proves no login."""
        try:
            name, *values = json.loads(self._fernet.decrypt((cookie or "").encode()))
        except InvalidToken:
            return None
        if name != COOKIE or not (values[0] or values[4]):
            return None
        lifetime = LIFETIME_SECONDS if values[4] is None else ISSUER_LIFETIME_SECONDS
        return "lifetime" if self._now - values[2] >= lifetime else "idle"

    def write_login(self, pending: PendingLogin) -> str:
        """Return the cookie of a pending login, valid for `LOGIN_SECONDS` from now."""
        return self._encrypt(LOGIN_COOKIE, list(astuple(pending)))

    def read_login(self, cookie: str | None) -> PendingLogin | None:
        """Return the pending login in a cookie, or None if the login has expired or the cookie is not valid."""
        values = self._decrypt(LOGIN_COOKIE, cookie, LOGIN_SECONDS)
        return None if values is None else PendingLogin(*values)

    def _encrypt(self, name: str, values: list[Any]) -> str:
        return self._fernet.encrypt_at_time(json.dumps([name, *values]).encode(), self._now).decode()

    def _decrypt(self, name: str, cookie: str | None, seconds: int) -> list[Any] | None:
        """Return the values in a cookie that `_encrypt` wrote for *name*, or None if it has expired or is not valid."""
        try:
            values = json.loads(self._fernet.decrypt_at_time((cookie or "").encode(), seconds, self._now))
        except InvalidToken:
            return None
        return values[1:] if values[0] == name else None

    @property
    def _now(self) -> int:
        return int(self._clock().timestamp())


_HERE = Path(__file__).parent
_FORM = "application/x-www-form-urlencoded"
_MAX_TOKEN_LENGTH = 2_800
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

KEY = replace(IDEMPOTENCY_KEY, name="key", location="form")
"""The idempotency key of a form that changes something; it is a hidden field, new with every page."""

_FREE_TEXT: Mapping[str, Any] = {"type": "string"}


def fields(*names: str, many: bool = False) -> tuple[Parameter, ...]:
    """Declare fields of a form with any text, which the API reads."""
    return tuple(Parameter(name, "form", _FREE_TEXT, "Any text.", many=many) for name in names)


def number_field(name: str, description: str, least: float, most: float, default: float | None = None) -> Parameter:
    """Declare a field of a form with a number, which is whole if *least* is an int."""
    kind = "integer" if isinstance(least, int) else "number"
    schema = {"type": kind, "minimum": least, "maximum": most, "default": default}
    return Parameter(name, "form", schema, description)


@dataclass(slots=True)
class Visit:
    """A request for a page.

    Args:
        request: the request; its body has been read.
        declared: the parameters of the page, by name; no others can be read.
        caller: the authenticated caller; None on pages without a login.
        form: the fields of a form that was posted.
    """

    request: Request
    declared: Mapping[str, Parameter]
    session: Session
    caller: Identity | None = None
    form: Mapping[str, list[str]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - as `Parameter.read`
        """Return the value of a parameter, for which an empty field is none; errors as `Parameter.read`."""
        return self.declared[name].read([value for value in self._found(name) if value])

    def text(self, name: str) -> str:
        """Return the text of a parameter as it was typed, to be shown in the form again; empty if there is none."""
        return (self._found(name) or [""])[-1]

    def texts(self, name: str) -> list[str]:
        """Return all values of a parameter as they were typed, with empty ones."""
        return self._found(name)

    def call(self, **parameters: Any) -> Call:
        """Return the argument of an API handler, with *parameters* and the caller of this page."""
        if self.caller is None:
            raise KeyRefused("missing")
        key = self["key"] if "key" in self.declared else None
        return Call(self.request, self.caller, {"Idempotency-Key": key, **parameters})

    def _found(self, name: str) -> list[str]:
        declared = self.declared[name]
        if declared.location == "path":
            return [self.request.path_params[name]]
        if declared.location == "form" and self.request.method == "POST":
            values = self.form.get(name, [])
        else:
            values = self.request.query_params.getlist(name)
        return [value.strip() for value in values]


class Site:
    """Routes, sessions and templates that all pages share.

    Args:
        login: logins at the OpenID issuer; None if the settings have no client id.
        warehouse: its catalog names columns in titles.
        templates: folders of templates beside those of this package.
        has_issuer: True if tokens of an OpenID issuer are accepted beside API keys.
    """

    def __init__(
        self,
        gate: Gate,
        sessions: Sessions,
        store: BudgetStore,
        records: RecordCache,
        login: OidcLogin | None,
        warehouse: Warehouse,
        templates: Sequence[Path],
        *,
        has_issuer: bool,
    ) -> None:
        self._gate = gate
        self._sessions = sessions
        self._store = store
        self._records = records
        self._login = login
        self._has_issuer = has_issuer
        self._assets: dict[str, _Asset] = {}
        types = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
        for path in sorted((_HERE / "assets").iterdir()):
            content = path.read_bytes()
            version = hashlib.sha256(content).hexdigest()[:12]
            asset = _Asset(content, gzip.compress(content, mtime=0), types[path.suffix], version)
            self._assets[path.name] = asset
        self._templates = text.open_templates(*templates)
        self._warehouse = warehouse
        titles = {"title_of": partial(text.title_of, named=self.named), "asked": partial(text.asked, named=self.named)}
        self._templates.filters.update({**titles, "steps": charts.steps})
        self._templates.globals["asset"] = self._asset_url

    @property
    def catalog(self) -> Catalog:
        """Return the present catalog."""
        return self._warehouse.catalog

    def named(self, dataset: str, column: str) -> str:
        """Return the name of a column for people."""
        return text.name_of(self.catalog, dataset, column)

    def routes(self, *pages: object) -> list[Route]:
        """Return the routes of all methods of *pages* and of the site itself."""
        return [Route("/assets/{name}", self._asset), *routes_of(self._endpoint, self, *pages)]

    def render(self, visit: Visit, template: str, status: int = 200, **values: Any) -> Response:
        """Render a template as the response to *visit*."""
        html = self._templates.get_template(template).render(
            caller=visit.caller, csrf=visit.session.csrf, path=visit.request.url.path, **values
        )
        return HTMLResponse(html, status, dict(HEADERS))

    async def missing(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI
        """Raise HTTPException for a path that no route has; a browser gets a page, other clients JSON."""
        request = Request(scope)
        if "text/html" in request.headers.get("accept", ""):
            visit = Visit(request, {}, self._sessions.start())
            context_of(scope).page = lambda problem: self.render(visit, "problem.html", problem.status, problem=problem)
        raise HTTPException(404)

    def problem(self, visit: Visit, error: Exception) -> Problem:
        """Return the problem of *error*, to be shown in the form that caused it.

        Raises:
            Exception: *error* itself, if it is a bug or ends the session.
        """
        if not isinstance(error, DiscreetError) or isinstance(error, KeyRefused):
            raise error
        problem = problem_of_request(visit.request.scope, error)
        if is_failure(error, problem.slug):
            raise error
        return problem

    # ---------------------------------------------------------------------------------------------- login

    @Operation("GET", "/login", role=None, parameters=fields("next", "ended"))
    async def show_login(self, visit: Visit) -> Response:
        """Show the form for an API key."""
        return self._login_form(visit, ended=ENDED.get(visit.text("ended")))

    @Operation("POST", "/login", role=None, parameters=fields("token", "next"))
    async def log_in(self, visit: Visit) -> Response:
        """Start a session with an API key, or a token of the issuer."""
        token = visit.text("token")
        if not _is_private(visit.request):
            return self._login_form(visit, "keys are only accepted over HTTPS, or on this machine itself")
        if len(token) > _MAX_TOKEN_LENGTH:
            return self._login_form(visit, "this token is too long for a cookie; use an API key")
        try:
            caller = await self._gate.identify(visit.request, f"Bearer {token}")
        except KeyRefused:
            return self._login_form(visit, "this is not a valid key: it may be mistyped, expired or revoked")
        visit.session = self._sessions.start(token, await run_in_thread(self._count_logouts, caller))
        return RedirectResponse(_local_path(visit.text("next")), 303)

    @Operation("GET", "/login/issuer", role=None, parameters=fields("next"))
    async def begin_login(self, visit: Visit) -> Response:
        """Redirect to the login page of the issuer."""
        if self._login is None:
            raise NotFound
        if not _is_private(visit.request):
            return self._login_form(visit, "logins need HTTPS, or this machine itself")
        back = f"{str(visit.request.base_url).rstrip('/')}/login/callback"
        url, pending = await run_in_thread(self._login.begin, back, _local_path(visit.text("next")))
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

    @Operation("GET", "/login/callback", role=None, parameters=fields("state", "code", "iss", "next"))
    async def complete_login(self, visit: Visit) -> Response:
        """Handle the redirect from the issuer: start a session, or show the login form again."""
        pending = self._sessions.read_login(_cookie_of(visit.request, LOGIN_COOKIE))
        if self._login is None or pending is None:
            return self._login_form(visit, "the login took too long, or began in another browser: begin it again")
        try:
            answer = {name: value for name in ("state", "code", "iss") if (value := visit[name]) is not None}
            caller = await run_in_thread(self._login.complete, pending, answer)
        except KeyRefused as error:
            self._gate.deny(visit.request, error)
            response = self._login_form(visit, f"{self._login.host} did not log you in", pending.next)
        else:
            self._gate.admit(visit.request, caller)
            logouts = await run_in_thread(self._count_logouts, caller)
            visit.session = self._sessions.start(logouts=logouts, caller=caller)
            response = self.render(visit, "redirect.html", url=pending.next)
        response.delete_cookie(LOGIN_COOKIE, path="/login")
        return response

    @Operation("POST", "/logout", role=None)
    async def log_out(self, visit: Visit) -> Response:
        """End all sessions of the caller."""
        with contextlib.suppress(KeyRefused):  # no session, or one that has ended
            caller = await self._identify(visit)
            await run_in_thread(self._end_sessions, caller)
        visit.session = self._sessions.start()
        return RedirectResponse("/login", 303)

    @Operation("GET", "/", role="any")
    async def home(self, visit: Visit) -> Response:
        """Redirect to the start page for the caller's role."""
        roles = visit.call().caller.roles
        first = "/ask" if "analyst" in roles else "/officer" if "officer" in roles else "/officer/keys"
        return RedirectResponse(first, 303)

    def _login_form(
        self, visit: Visit, wrong: str | None = None, next_: str | None = None, ended: str | None = None
    ) -> Response:
        return self.render(
            visit,
            "login.html",
            200 if wrong is None else 401,
            next=_local_path(visit.text("next")) if next_ is None else next_,
            wrong=wrong,
            ended=ended,
            issuer=None if self._login is None else self._login.host,
            has_issuer=self._has_issuer,
            private=_is_private(visit.request),
        )

    # ---------------------------------------------------------------------------------------------- requests

    def _endpoint(self, declared: Operation, handler: Callable[[Visit], Any]) -> ASGIApp:
        """Return the ASGI app of a page: it reads the session, responds, and renews the cookie."""
        parameters = {parameter.name: parameter for parameter in declared.parameters}
        in_loop = inspect.iscoroutinefunction(handler)

        async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive, send)
            session = self._sessions.read(_cookie_of(request, COOKIE))
            visit = Visit(request, parameters, session or self._sessions.start())
            context_of(scope).page = lambda problem: self.render(visit, "problem.html", problem.status, problem=problem)
            response = await self._respond(visit, declared, handler, in_loop=in_loop, has_session=session is not None)
            # Renewed on every page, which extends its idle timeout.
            cookie = self._sessions.write(visit.session)
            secure = visit.request.url.scheme == "https"
            response.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", secure=secure)
            await response(scope, receive, send)

        return endpoint

    async def _respond(
        self, visit: Visit, declared: Operation, handler: Callable[[Visit], Any], *, in_loop: bool, has_session: bool
    ) -> Response:
        """Return the response of a handler, or a redirection to the login; check the role and the token of a form."""
        request = visit.request
        if request.method == "POST":
            body = await read_bytes(request, _FORM, self._gate.max_body_bytes)
            visit.form = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
        if declared.role is not None:
            # After a click on another site the browser omits the strict cookie until the page is loaded again.
            if not has_session and request.method == "GET" and request.headers.get("sec-fetch-site") == "cross-site":
                return self.render(visit, "redirect.html", url=_path_of(request))
            try:
                visit.caller = await self._identify(visit)
            except KeyRefused as error:
                reason = self._why_ended(visit, error)
                ended = {} if reason is None else {"ended": reason}
                following = _path_of(request)
                if request.method != "GET":  # the page with the form
                    shown = urlsplit(request.headers.get("referer", ""))
                    following = _local_path(shown.path + (f"?{shown.query}" if shown.query else ""))
                return RedirectResponse(f"/login?{urlencode({'next': following, **ended})}", 303)
            check_role(visit.caller, declared.role)
        if request.method == "POST":
            sent = visit.form.get("csrf", [""])[-1]
            if not hmac.compare_digest(visit.session.csrf.encode(), sent.encode()):
                raise InvalidCsrfToken
        response: Response = await handler(visit) if in_loop else await run_in_thread(handler, visit)
        return response

    async def _identify(self, visit: Visit) -> Identity:
        """Return the caller of a session; raise `KeyRefused` if there is none, or if it has logged out since."""
        if visit.session.caller is not None:
            caller = self._gate.admit(visit.request, visit.session.caller)
        else:
            caller = await self._gate.identify(visit.request, f"Bearer {visit.session.token}")
        records = self._records.cached()
        if records is None:
            records = await run_in_thread(self._records.read)
        if visit.session.logouts < int(records.logouts.get(caller.actor, "0")):
            raise KeyRefused("expired")
        return caller

    def _why_ended(self, visit: Visit, error: KeyRefused) -> str | None:
        """Return the reason, of `ENDED`, why a visit is not logged in any more; None if it never was."""
        session = visit.session
        if not session.token and session.caller is None:
            return self._sessions.why_ended(_cookie_of(visit.request, COOKIE))
        if error.reason == "expired":
            return "logout" if error.key_id is None else "expired"
        return "revoked" if error.reason == "unknown" else "token"

    def _count_logouts(self, caller: Identity) -> int:
        return int(self._store.record(LOGOUT, caller.actor) or "0")

    def _end_sessions(self, caller: Identity) -> None:
        text = str(self._count_logouts(caller) + 1)
        self._store.put_record(LOGOUT, caller.actor, text, AdminAction(caller.actor, "logged out of the web page"))
        self._records.invalidate()

    # ---------------------------------------------------------------------------------------------- assets

    def _asset_url(self, name: str) -> str:
        """Return the URL of an asset, which changes with its content."""
        return f"/assets/{name}?v={self._assets[name].version}"

    async def _asset(self, request: Request) -> Response:
        asset = self._assets.get(request.path_params["name"])
        if asset is None:
            return Response(status_code=404)
        headers = {
            "Cache-Control": "public, max-age=31536000, immutable",
            "Vary": "Accept-Encoding",
            "X-Content-Type-Options": "nosniff",
        }
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(asset.compressed, headers={**headers, "Content-Encoding": "gzip"}, media_type=asset.type)
        return Response(asset.content, headers=headers, media_type=asset.type)


def show_disclosure(disclosure: Disclosure, form: str) -> Response:
    """Return a disclosure as a page, or as a file: "json", or "yaml" for the entry of the registry.

    Raises:
        NotFound: there is no such form.
        InputError: the settings lack what the entry needs.
    """
    if form not in DISCLOSURE_FORMS:
        raise NotFound
    content = DISCLOSURE_FORMS[form](disclosure)
    if form == "html":
        policy = HEADERS["Content-Security-Policy"].replace("style-src 'self'", f"style-src {STYLE_HASH}")
        return HTMLResponse(content, headers={**HEADERS, "Content-Security-Policy": policy})
    name = re.sub(r"[^a-z0-9]+", "-", disclosure.subject.lower())[:60]
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="disclosure-{name}.{form}"'}
    return Response(content, headers=headers, media_type=f"application/{form}")


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


def _is_private(request: Request) -> bool:
    """Return True if the request is sent over https or to this machine."""
    return request.url.scheme == "https" or is_local(request.url.hostname)


def _cookie_of(request: Request, name: str) -> str | None:
    """Return the cookie of a name, which holds no quote itself, or None.

    `Request.cookies` unquotes all that were sent, in quadratic time before Python 3.11.10 and 3.12.6.
    """
    pairs = (pair.strip().partition("=") for pair in request.headers.get("cookie", "").split(";"))
    return {own: value.strip('"') for own, _, value in pairs}.get(name)


def _path_of(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _local_path(path: str) -> str:
    """Return *path* if it is a path on this site, otherwise "/", to prevent open redirects."""
    local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if local else "/"
