"""Around every request: its name, its problems, and what is told of it. Nothing that fails gets past here.

An exception that went further would be printed with its text by the server, and that may hold data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.responses import Response

from discreet.service.observability.events import Failed, Requested, on_grid
from discreet.service.observability.traces import SpanAttributes
from discreet.service.problems import problem_of
from discreet.wire.problems import KINDS, PROBLEM_TYPE, problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from discreet.service.parts import Parts

KEY = "discreet.visit"
"""Where a request's scope holds its visit."""


@dataclass(slots=True)
class RequestContext:
    """What is known of a request so far.

    Args:
        request_id: its name.
        began: when it came, by the clock that only rises.
        actor: who sent it, once that is known.
        account: whose question it is, likewise.
        problem: the slug of the problem that was answered.
        status: that was answered; 0 if nothing was.
        release: the id of an answer that came from memory.
        mechanism: of such an answer.
    """

    request_id: str
    began: float
    actor: str | None = None
    account: str | None = None
    problem: str | None = None
    status: int = 0
    release: str | None = None
    mechanism: str | None = None


def context_of(scope: Scope) -> RequestContext:
    """The visit that a request is."""
    visit: RequestContext = scope[KEY]
    return visit


class RequestMiddleware:
    """Names, traces and tells each request, and answers its problem if it has one.

    Args:
        app: what answers it otherwise.
        parts: of the service.
    """

    def __init__(self, app: ASGIApp, parts: Parts) -> None:
        self._app, self._parts = app, parts
        self._grid_ms = parts.settings.service.release_grid_ms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = scope[KEY] = RequestContext(self._parts.ids(), self._parts.monotonic())

        async def sends(message: Message) -> None:
            if message["type"] == "http.response.start":
                visit.status = message["status"]
                headers = MutableHeaders(raw=message["headers"])
                headers["X-Request-Id"] = visit.request_id
                headers["Cache-Control"] = "no-store"
            await send(message)

        parent = dict(scope["headers"]).get(b"traceparent", b"").decode("latin-1") or None
        with self._parts.tracer.span("request", SpanAttributes(visit.request_id), parent):
            await self._answer(scope, receive, sends, visit)
        self._parts.log.event(self._told(scope, visit))

    async def _answer(self, scope: Scope, receive: Receive, send: Send, visit: RequestContext) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may print it
            response = problem_response(scope, error)
            if visit.problem == "internal":
                self._parts.log.event(Failed.of(error, _route(scope), visit.request_id))
            if not visit.status:
                await response(scope, receive, send)

    def _told(self, scope: Scope, visit: RequestContext) -> Requested:
        took = on_grid(self._parts.monotonic() - visit.began, self._grid_ms)
        return Requested(
            visit.request_id,
            _route(scope),
            visit.status,
            took,
            visit.actor,
            visit.account,
            visit.problem,
            visit.release,
            visit.mechanism,
        )


def problem_response(scope: Scope, error: Exception) -> Response:
    """The problem that *error* is, as it is answered."""
    visit, trouble = context_of(scope), problem_of(error)
    visit.problem = trouble.slug
    body = problem(trouble.slug, trouble.detail, visit.request_id, **trouble.more).to_bytes()
    return Response(body, KINDS[trouble.slug].status, dict(trouble.headers), PROBLEM_TYPE)


def _route(scope: Scope) -> str:
    """The method and the template of the path; nothing that the sender chose."""
    route = getattr(scope.get("route"), "path", None)
    return "other" if route is None else f"{scope['method']} {route}"
