"""The middleware around every request: its id, its log line, its span, and its problem if it fails.

No exception gets past it: the server would print its text, which may hold data.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.responses import Response

from discreet.service.observability.logging import Failed, Requested, on_grid
from discreet.service.problems import problem_of
from discreet.wire.problems import PROBLEM_TYPE, problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from discreet.service.observability.logging import Log
    from discreet.service.observability.traces import Tracer
    from discreet.wire.problems import Problem

KEY = "discreet.context"
"""The name of the context in the scope of a request."""


@dataclass(slots=True)
class RequestContext:
    """The context of a request, filled in while it is processed.

    Args:
        request_id: ours, unique for ever.
        began: when it arrived, in seconds that only rise.
        actor: who sent it, once that is known.
        problem: the kind of problem that was answered.
        status: the HTTP status of the response; 0 before.
        release: the id of an answer from the cache.
        page: makes an HTML page of a problem, for requests of the web page.
    """

    request_id: str
    began: float
    client: str | None = None
    actor: str | None = None
    account: str | None = None
    problem: str | None = None
    status: int = 0
    release: str | None = None
    mechanism: str | None = None
    page: Callable[[Problem], Response] | None = None


def context_of(scope: Scope) -> RequestContext:
    """Return the context of a request."""
    context: RequestContext = scope[KEY]
    return context


class RequestMiddleware:
    """Give each request an id, a span and a log line, and answer its problem if it has one.

    Args:
        grid_ms: durations are logged as multiples of so many milliseconds.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        new_id: Callable[[], str],
        monotonic: Callable[[], float],
        tracer: Tracer,
        log: Log,
        grid_ms: int,
    ) -> None:
        self._app, self._new_id, self._monotonic = app, new_id, monotonic
        self._tracer, self._log, self._grid_ms = tracer, log, grid_ms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = scope[KEY] = RequestContext(self._new_id(), self._monotonic(), _client_address(scope))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                headers = MutableHeaders(raw=message["headers"])
                headers["X-Request-Id"] = context.request_id
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        parent = dict(scope["headers"]).get(b"traceparent", b"").decode("latin-1") or None
        with self._tracer.span("request", context.request_id, parent=parent):
            await self._answer(scope, receive, send_with_headers, context)
        self._log.event(
            Requested(
                context.request_id,
                _route(scope),
                context.status,
                on_grid(self._monotonic() - context.began, self._grid_ms),
                context.actor,
                context.account,
                context.problem,
                context.release,
                context.mechanism,
                context.client,
            )
        )

    async def _answer(self, scope: Scope, receive: Receive, send: Send, context: RequestContext) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - the server would print it
            response = problem_response(scope, error)
            if context.problem == "internal":
                self._log.event(Failed.of(error, _route(scope), context.request_id))
            if not context.status:
                await response(scope, receive, send)


def problem_response(scope: Scope, error: Exception) -> Response:
    """Return the response to a request that raised *error*."""
    context, found = context_of(scope), problem_of_request(scope, error)
    headers = problem_of(error).headers
    if context.page is None:
        return Response(found.to_bytes(), found.status, dict(headers), PROBLEM_TYPE)
    response = context.page(found)
    response.headers.update(headers)
    return response


def problem_of_request(scope: Scope, error: Exception) -> Problem:
    """Return the problem of a request that raised *error*, and note its kind for the log."""
    context, answer = context_of(scope), problem_of(error)
    context.problem = answer.slug
    return problem(answer.slug, answer.detail, context.request_id, **answer.more)


def _client_address(scope: Scope) -> str | None:
    """Return the address of the client; None for what is no IP address, such as a name that a proxy passed on."""
    try:
        return str(ipaddress.ip_address((scope.get("client") or ("",))[0]))
    except ValueError:
        return None


def _route(scope: Scope) -> str:
    """Return the method and the path template of a request; nothing that its sender chose."""
    route = getattr(scope.get("route"), "path", None)
    return "other" if route is None else f"{scope['method']} {route}"
