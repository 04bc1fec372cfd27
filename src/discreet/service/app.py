"""The application: all routes, with the reception around them. Nothing is opened here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request  # noqa: TC002 - FastAPI reads it
from starlette.responses import Response

from discreet._version import __version__
from discreet.service.api.admin import admin_router
from discreet.service.api.health import health_router
from discreet.service.api.openapi import schema_of
from discreet.service.api.openapi_admin import ROUTES as ADMINISTRATION
from discreet.service.api.peers import peers_router
from discreet.service.auth.gate import Gate
from discreet.service.express import Express
from discreet.service.middleware import RequestMiddleware, problem_response
from discreet.service.replays import Replays, Standings, UsedKeys
from discreet.service.routes import Analysts, RawRoute

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from discreet.service.parts import Parts


class Application(FastAPI):
    """The routes, and the short way around them.

    Args:
        express: the short way.
    """

    def __init__(self, express: Express) -> None:
        super().__init__(title="Discreet", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
        self._express = express

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        received = await self._express.answer(scope, receive, send)
        if received is not None:
            await super().__call__(scope, received, send)

    def openapi(self) -> dict[str, Any]:
        """What the API says about itself."""
        return schema_of(self, ADMINISTRATION)


def create_app(parts: Parts) -> FastAPI:
    """The service as an ASGI application.

    Args:
        parts: all that it needs, opened; whoever opened them closes them.
    """
    gate, replays, standings, keys = Gate(parts), Replays(parts.clock), Standings(parts.monotonic), UsedKeys()
    app = Application(Express(parts, gate, replays, standings, keys))
    app.state.gate = gate
    Analysts(parts, gate, replays, standings, keys).add_to(app)
    if parts.settings.service.metrics_port is None:
        app.router.add_api_route(
            "/metrics", _metrics(parts), route_class_override=RawRoute, include_in_schema=False, response_model=None
        )
    app.include_router(admin_router(parts))
    app.include_router(health_router(parts))
    if parts.peers is not None:
        app.include_router(peers_router(parts))
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _refused)
    app.add_middleware(RequestMiddleware, parts=parts)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    """What the framework refuses, in the one shape of problems."""
    return problem_response(request.scope, error)


def _metrics(parts: Parts) -> Callable[[Request], Awaitable[Response]]:
    async def metrics(_: Request) -> Response:
        return Response(parts.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return metrics
