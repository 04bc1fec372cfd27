"""Operations of the API and of the web page: a decorator on each handler declares its route, checks and documentation.

    @Operation("POST", "/v1/admin/accounts", role="officer", body=NewAccount, answer=AccountDetail, status=201)
    def create_account(self, call: Call, body: NewAccount) -> AccountDetail: ...

    routes = routes_of(partial(api_endpoint, gate), AdminAPI(...))

A request is authorized, then its parameters are read, then its body; a handler gets only declared parameters.
The docstring of a handler of the API is the summary and the description in the OpenAPI document.

Answers are JSON, CSV, Arrow or Parquet, as the header Accept prefers; headers hold the charge and the budget.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, TypeVar

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from discreet.budget.model import AdminAction, Balance, Calendar, Sliding
from discreet.errors import InputError, InvariantViolated
from discreet.service.auth.identity import Identity, Needed
from discreet.service.middleware import Gate, read_bytes, run_in_thread
from discreet.service.problems import NotAcceptable, RoleRefused
from discreet.values import Cost, notation
from discreet.wire import document
from discreet.wire.document import Form
from discreet.wire.problems import Slug
from discreet.wire.queries import read_body, spend_above

Handler = TypeVar("Handler", bound="Callable[..., Any]")

_EVERY: tuple[Slug, ...] = (
    "unauthorized",
    "forbidden",
    "out-of-range",
    "too-many-requests",
    "internal",
    "store-unavailable",
)
_BODY: tuple[Slug, ...] = ("malformed", "too-large", "unsupported-media-type")


_INTEGER = re.compile(r"[0-9]{1,19}")
_NUMBER = re.compile(r"-?(?:[0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operation, validated by the JSON schema that documents it.

    Args:
        location: "path", "query", "header", or "form": a field of a posted form, or of the query string of a GET.
        schema: a JSON schema of type integer or number (minimum, maximum, default) or string (minLength, maxLength,
            pattern).
        description: text for the OpenAPI document.
        required: True if requests without the parameter are refused.
        many: True if the parameter may be given several times; its value is a list.
    """

    name: str
    location: Literal["path", "query", "header", "form"]
    schema: Mapping[str, Any]
    description: str
    required: bool = False
    many: bool = False

    def read(self, texts: list[str]) -> Any:  # noqa: ANN401 - int, float or str, by the schema, or a list of them
        """Return the value of the parameter in a request, or its default.

        Args:
            texts: all values of the parameter in the request.

        Raises:
            InputError: there are several values, a required one is missing, or the schema does not allow the value.
        """
        if not texts and not self.required:
            return [] if self.many else self.schema.get("default")
        values = [self._value(text) for text in texts]
        if None not in values and (self.many or len(values) == 1):
            return values if self.many else values[0]
        least = self.schema.get("minimum")
        most = self.schema.get("maximum")
        match self.schema["type"]:
            case "integer":
                allowed = f"a whole number from {least} to {most:,}"
            case "number":
                allowed = f"a number from {least:g} to {most:g}"
            case _:
                allowed = self.description[0].lower() + self.description[1:].rstrip(".")
        if self.location == "form":
            raise InputError(f"{self.name} must be {allowed}{notation(texts[0]) if texts else ''}")
        raise InputError(f"the parameter {self.name} must be given once: {allowed}")

    def _value(self, text: str) -> int | float | str | None:
        """Return the value in *text*; None if the schema does not allow it."""
        match self.schema["type"]:
            # Their form is checked before they are converted, because int and float take more: other scripts, 1_000.
            case "integer" if _INTEGER.fullmatch(text):
                value: int | float = int(text)
            case "number" if _NUMBER.fullmatch(text):
                value = float(text)
            case "string":
                fits = self.schema.get("minLength", 0) <= len(text) <= self.schema.get("maxLength", len(text))
                return text if fits and re.fullmatch(self.schema.get("pattern", "(?s:.*)"), text) else None
            case _:
                return None
        return value if self.schema["minimum"] <= value <= self.schema["maximum"] else None


def integer(name: str, description: str, *, least: int, most: int = 2**63 - 1, default: int | None = None) -> Parameter:
    """Declare an integer parameter in the query string."""
    schema: dict[str, Any] = {"type": "integer", "minimum": least, "maximum": most}
    return Parameter(name, "query", schema if default is None else {**schema, "default": default}, description)


def text(name: str, description: str) -> Parameter:
    """Declare an optional text parameter in the query string."""
    return Parameter(name, "query", {"type": "string"}, description)


def in_path(name: str, description: str) -> Parameter:
    """Declare a path parameter."""
    return Parameter(name, "path", {"type": "string", "minLength": 1}, description, required=True)


IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    "header",
    {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "[!-~]+"},
    "From 1 to 200 printable ASCII characters without white space that name the request: sent again with the same "
    "body, it is carried out once.",
)


@dataclass(frozen=True, slots=True)
class Operation:
    """A decorator that declares a method as the handler of an operation of the API, or of a page.

    A plain function runs in a thread; a coroutine function runs in the event loop and must not block it.
    The handler returns a model, None (answered with 204) or a complete response.

    Args:
        path: the path, with parameters in braces; ":path" lets one contain slashes.
        role: the role that the caller needs, or "any"; None for an operation without authentication.
        body: the model of the JSON body, which the handler gets as its second argument.
        raw: True to give the handler the body's bytes instead.
        contents: schemas of the response by media type, for responses other than a model as JSON.
        problems: kinds of problems beside those that the other arguments imply.
        other_answers: models of the responses with other statuses, except problems.
        name: the handler's name; set by the decorator, as are summary and description, from the handler's docstring.
    """

    method: str
    path: str
    _: KW_ONLY
    role: Needed | None
    body: type[BaseModel] | None = None
    raw: bool = False
    answer: type[BaseModel] | None = None
    contents: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    parameters: tuple[Parameter, ...] = ()
    problems: tuple[Slug, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    other_answers: Mapping[int, type[BaseModel]] = field(default_factory=dict)
    name: str = ""
    summary: str = ""
    description: str = ""

    def __call__(self, handler: Handler) -> Handler:
        summary, _, description = inspect.getdoc(handler).partition("\n\n")  # type: ignore[union-attr]  # all have docstrings
        summary = summary.rstrip(".")
        description = " ".join(description.split()) or f"{summary}."
        if self.role is not None:
            description = f"{description} Requires the role {self.role}."
        handler.operation = replace(  # type: ignore[attr-defined]
            self, name=handler.__name__, summary=summary, description=description
        )
        return handler

    @property
    def all_problems(self) -> tuple[Slug, ...]:
        """Return all kinds of problems that the operation may return."""
        slugs: list[Slug] = [*_EVERY] if self.role is not None else []
        slugs += _BODY if self.body is not None else ()
        slugs += ["not-found"] if any(parameter.location == "path" for parameter in self.parameters) else []
        slugs += ["key-reused"] if IDEMPOTENCY_KEY in self.parameters else []
        return tuple(dict.fromkeys([*slugs, *self.problems]))


@dataclass(frozen=True, slots=True)
class Call:
    """An authorized request to an operation, with its parameters.

    Args:
        request: the request; its body has been read if the operation has one.
        caller: the authenticated sender.
        parameters: values by name; None for an absent parameter without a default.
    """

    request: Request
    caller: Identity
    parameters: Mapping[str, Any]

    @property
    def account(self) -> str:
        """Return the account that the caller's queries are charged to, or raise `RoleRefused`."""
        if self.caller.account is None:  # a token with the role analyst, and without the claim that names an account
            raise RoleRefused("analyst")
        return self.caller.account

    def action(self, reason: str) -> AdminAction:
        """Return the author, reason and id of an administrative change by the caller, for the ledger."""
        return AdminAction(self.caller.actor, reason, self.parameters["Idempotency-Key"], self.caller.label)


def operations_of(handlers: object) -> list[tuple[Operation, Callable[..., Any]]]:
    """Return the declared operations of *handlers* with the methods that handle them."""
    methods = [getattr(handlers, name) for name in vars(type(handlers))]
    return [(method.operation, method) for method in methods if hasattr(method, "operation")]


def routes_of(endpoint: Callable[[Operation, Callable[..., Any]], ASGIApp], *handlers: object) -> list[Route]:
    """Return the routes of all operations of *handlers*, grouped by path, in the order of declaration.

    Args:
        endpoint: returns the application that answers an operation by calling its handler: `api_endpoint` of a gate, or
            that of the pages.
    """
    by_path: dict[str, dict[str, ASGIApp]] = {}
    for owner in handlers:
        for declared, handler in operations_of(owner):
            by_path.setdefault(declared.path, {})[declared.method] = endpoint(declared, handler)
    return [_Route(path, _by_method(endpoints)) for path, endpoints in by_path.items()]


class _Route(Route):
    """A route whose fixed last segment must follow a literal slash in the URL: accounts/x%2Fcharge is an account."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        last = self.path.rpartition("/")[2]
        written = scope.get("raw_path")
        if "{" not in last and written is not None and not written.endswith(f"/{last}".encode()):
            return Match.NONE, {}
        return super().matches(scope)


def _by_method(endpoints: Mapping[str, ASGIApp]) -> ASGIApp:
    """Return an ASGI application that dispatches by method; the router would try less specific paths before a 405."""
    allowed = sorted({*endpoints, "HEAD"} if "GET" in endpoints else endpoints)

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = endpoints.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if endpoint is None:
            raise HTTPException(405, headers={"Allow": ", ".join(allowed)})
        await endpoint(scope, receive, send)

    return _Raw(dispatch)


class _Raw:
    """An ASGI application as an object: Starlette would call a function with a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def api_endpoint(gate: Gate, declared: Operation, handler: Callable[..., Any]) -> ASGIApp:
    """Return the application of an operation of the API: it reads the caller from a header, and responds with JSON."""
    in_loop = inspect.iscoroutinefunction(handler)

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        arguments: list[Any] = []
        if declared.role is not None:
            caller = await gate.authorize(request, declared.role)
            arguments.append(Call(request, caller, _parameters(request, declared.parameters)))
        if declared.body is not None:
            content = await read_bytes(request, "application/json", gate.max_body_bytes)
            arguments.append(content if declared.raw else read_body(declared.body, content))
        answer = await handler(*arguments) if in_loop else await run_in_thread(handler, *arguments)
        match answer:
            case Response():
                response = answer
            case None:
                response = Response(status_code=204)
            case BaseModel():
                response = Response(answer.model_dump_json(), declared.status, media_type="application/json")
            case _:
                raise InvariantViolated("a handler returns a model, a response or nothing")
        await response(scope, receive, send)

    return endpoint


def _parameters(request: Request, declared: Iterable[Parameter]) -> dict[str, Any]:
    """Return the values of all declared parameters.

    Raises:
        InputError: a value is not valid, or the query string has undeclared parameters.
    """
    values: dict[str, Any] = {}
    in_query: set[str] = set()
    for parameter in declared:
        match parameter.location:
            case "path":
                values[parameter.name] = request.path_params[parameter.name]
            case "header":
                values[parameter.name] = parameter.read(request.headers.getlist(parameter.name))
            case "query":
                in_query.add(parameter.name)
                values[parameter.name] = parameter.read(request.query_params.getlist(parameter.name))
    if request.scope["query_string"] and not request.query_params.keys() <= in_query:
        allowed = f"are {' and '.join(sorted(in_query))}" if in_query else "none"
        raise InputError(f"the URL has a parameter that does not exist here; the parameters {allowed}")
    return values


MEDIA_TYPES: Mapping[Form, str] = {
    "json": "application/json",
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}
"""The media type of each form, in order of preference."""

_CONTENT_TYPES: Mapping[Form, str] = {**MEDIA_TYPES, "csv": "text/csv; charset=utf-8; header=present"}


def negotiate(accept: str | None) -> Form:
    """Return the form that a header Accept prefers.

    Args:
        accept: the value of the header (RFC 9110, section 12.5.1), or None if the request has none.

    Raises:
        NotAcceptable: the header allows none of the forms.
    """
    if accept is None or accept == "*/*" or accept == MEDIA_TYPES["json"]:
        return "json"
    ranges: dict[str, float] = {}
    for part in filter(str.strip, accept.split(",")):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        pairs = (parameter.partition("=") for parameter in parameters)
        weight = next((value.strip() for name, _, value in pairs if name.strip().lower() == "q"), "1")
        digits = weight.replace(".", "", 1)
        valid = digits.isascii() and digits.isdigit() and len(weight) <= 5
        ranges[media.lower()] = min(float(weight), 1.0) if valid else 0.0  # a malformed weight is 0
    weighed = {}
    for form, media in MEDIA_TYPES.items():
        matching = (media, f"{media.partition('/')[0]}/*", "*/*")  # the most specific one decides
        weighed[form] = next((ranges[name] for name in matching if name in ranges), 0.0)
    best = max(weighed, key=lambda form: weighed[form])  # on a tie, the first
    if ranges and not weighed[best]:
        raise NotAcceptable(tuple(MEDIA_TYPES.values()))
    return best


def represent(stored: bytes, form: Form) -> bytes:
    """Convert the stored document of a release to *form*."""
    return stored if form == "json" else document.write_table(document.decode(stored).to_arrow(), form)


def content_headers(form: Form) -> dict[str, str]:
    """Return the content headers of a response in *form*, which depends on the header Accept."""
    return {"Content-Type": _CONTENT_TYPES[form], "Vary": "Accept"}


_SECONDS = {"day": 86_400, "week": 604_800, "month": 2_678_400}


def charged_header(cost: Cost) -> str:
    """Return the value of the header Discreet-Charged."""
    spend = spend_above(cost)
    return f"rho={spend.rho!r}, delta={spend.delta!r}"


def budget_headers(balance: Balance) -> tuple[tuple[str, str], ...]:
    """Return the headers with the balance of an account: its mode, and its budget as a rate limit.

    RateLimit-Policy and RateLimit follow draft-ietf-httpapi-ratelimit-headers-11. Their quotas are whole numbers: units
    of an account that has units, otherwise thousandths of rho and 1e-12 of delta; limits and remaining budgets are
    rounded down.
    """
    account = balance.account
    now_us = balance.time_us
    limit = balance.account.limit
    rest = balance.remaining
    window = None
    match account.period:
        case Sliding(days):
            window = days * 86_400
        case Calendar(unit, _):
            window = _SECONDS[unit]
    reset = None if balance.resets_at_us is None else max(math.ceil((balance.resets_at_us - now_us) / 1_000_000), 0)
    if account.units is None:
        quotas = [
            ("rho", math.floor(limit.rho * 1000), math.floor(rest.rho * 1000)),
            ("delta", math.floor(limit.delta * 10**12), math.floor(rest.delta * 10**12)),
        ]
    else:
        most = account.units.rounded_down(limit)
        remaining = account.units.rounded_down(rest)
        quotas = [("information", most.information, remaining.information), ("calls", most.calls, remaining.calls)]
    every = "" if window is None else f";w={window}"
    until = "" if reset is None else f";t={reset}"
    policies = ", ".join(f'"{name}";q={quota}{every}' for name, quota, _ in quotas)
    limits = ", ".join(f'"{name}";r={left}{until}' for name, _, left in quotas)
    return ("Discreet-Mode", account.mode), ("RateLimit-Policy", policies), ("RateLimit", limits)
