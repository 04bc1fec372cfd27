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
from discreet.release.keys import DerivedKeys
from discreet.service.api.admin import admin_router
from discreet.service.api.health import health_router
from discreet.service.api.openapi import schema_of
from discreet.service.api.openapi_admin import ROUTES as ADMINISTRATION
from discreet.service.api.peers import peers_router
from discreet.service.api.query import QueryAPI, RawRoute
from discreet.service.auth.gate import Gate
from discreet.service.middleware import RequestMiddleware, problem_response
from discreet.service.queries import Queries
from discreet.service.replay_cache import ReplayCache

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from discreet.service.parts import Parts


class Application(FastAPI):
    """The routes, and the description of all of them."""

    def __init__(self) -> None:
        super().__init__(title="Discreet", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)

    def openapi(self) -> dict[str, Any]:
        """What the API says about itself."""
        return schema_of(self, ADMINISTRATION)


def create_app(parts: Parts) -> FastAPI:
    """The service as an ASGI application.

    Args:
        parts: all that it needs, opened; whoever opened them closes them.
    """
    gate, app = Gate(parts), Application()
    app.state.gate = gate
    queries = Queries(
        parts.manager,
        parts.warehouse,
        parts.settings,
        DerivedKeys(parts.secret),
        parts.log,
        parts.tracer,
        parts.random,
        refused=(lambda _: None) if parts.peers is None else parts.peers.refused,
    )
    cache = ReplayCache(parts.clock)
    QueryAPI(gate, queries, cache, parts.manager, parts.grants, parts.warehouse, parts.monotonic, parts.pause).add_to(
        app
    )
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
