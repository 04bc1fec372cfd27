"""Open all components of the service and connect them to an ASGI application: the composition root."""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import anyio
import httpx
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route

from discreet.budget.manager import BudgetManager
from discreet.budget.model import LEASE_MOST_MS
from discreet.catalog.engine_pool import read_password
from discreet.catalog.loader import load_catalog
from discreet.errors import InputError
from discreet.release.keys import DerivedKeys
from discreet.service.api.admin import AdminAPI
from discreet.service.api.health import HealthAPI
from discreet.service.api.openapi import OpenAPI
from discreet.service.api.operation import operations_of, routes_of
from discreet.service.api.query import QueryAPI
from discreet.service.auth.api_keys import ApiKeys, Authenticator, key_file_of
from discreet.service.auth.gate import Gate
from discreet.service.auth.grants import KEY, Grants, RecordCache
from discreet.service.auth.oidc import Issuer, OidcLogin
from discreet.service.maintenance import Maintenance
from discreet.service.middleware import RequestMiddleware, problem_response
from discreet.service.observability.logging import CombinedLog, StructuredLog
from discreet.service.observability.metrics import Metrics
from discreet.service.observability.traces import open_tracer
from discreet.service.pages.analyst import AnalystPages
from discreet.service.pages.officer import OfficerPages
from discreet.service.pages.site import Sessions, Site
from discreet.service.peers import open_peers, peer_routes
from discreet.service.queries import Queries, ReplayCache
from discreet.service.statements import Statements
from discreet.service.stores import checkpointer_of, noise_secret, open_store, utc_now
from discreet.warehouse import Warehouse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from datetime import datetime

    from starlette.requests import Request

    from discreet.catalog.model import Catalog
    from discreet.service.observability.logging import Log
    from discreet.service.observability.traces import Tracer
    from discreet.service.peers import Peers
    from discreet.service.settings import Settings

_LEASE_SPARE_MS = 60_000


def random_id() -> str:
    """Return a new id: 32 hexadecimal digits."""
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Runtime:
    """The clock, the randomness and the ids of the service; tests replace them.

    Args:
        clock: returns the current time, with a time zone.
        monotonic: returns monotonic seconds, for rates and durations.
        pause: waits for a number of seconds in the event loop.
        new_id: returns a new unique id: 1 to 200 letters, digits, - and _.
        random: returns a number of random bytes, such as `secrets.token_bytes`.
    """

    clock: Callable[[], datetime] = utc_now
    monotonic: Callable[[], float] = time.monotonic
    pause: Callable[[float], Awaitable[None]] = anyio.sleep
    new_id: Callable[[], str] = random_id
    random: Callable[[int], bytes] = secrets.token_bytes


_MACHINE = Runtime()


@dataclass(frozen=True, slots=True)
class Service:
    """An open service.

    Args:
        peers: exchanges budget shares with other data centres; None if there are none.
    """

    app: Starlette
    maintenance: Maintenance
    peers: Peers | None
    manager: BudgetManager
    warehouse: Warehouse
    authenticator: Authenticator
    grants: Grants
    log: Log
    metrics: Metrics


@contextlib.contextmanager
def open_service(
    settings: Settings,
    environment: Mapping[str, str],
    stream: TextIO = sys.stdout,
    runtime: Runtime = _MACHINE,
    tracer: Tracer | None = None,
) -> Iterator[Service]:
    """Open a service until the context ends.

    Args:
        runtime: the clock, ids and randomness of the service.
        tracer: the destination of spans, in place of the one in the settings.

    Raises:
        InputError: a secret, the catalog or the store cannot be used, or the store has no API key.
        StoreUnavailable: the store cannot be opened, or another process has it open.
        StoreBehind: the store is older than its last checkpoint, or has lines and no checkpoint.
        LedgerBroken: the store contradicts its checkpoints.
    """
    clock, metrics = runtime.clock, Metrics(runtime.monotonic)
    log = CombinedLog(StructuredLog(stream, settings.logs.format, clock), metrics)
    keys = DerivedKeys(noise_secret(settings.noise, environment))
    checkpointer = checkpointer_of(settings.checkpoints)
    catalog = load_catalog(settings.service.catalog)
    with contextlib.ExitStack() as stack:
        if tracer is None:
            tracer = open_tracer(None if settings.traces is None else settings.traces.endpoint)
            stack.callback(tracer.close)
        store = stack.enter_context(contextlib.closing(open_store(settings.store, environment, clock)))
        store.timed = metrics.timed
        manager = BudgetManager(
            store,
            runtime.new_id,
            _lease_ms(catalog),
            checkpointer=checkpointer,
            computational=True,
        )
        store.recover()
        records, issuer, login = RecordCache(manager.store, clock), None, None
        if settings.oidc is not None:
            issuer = Issuer(settings.oidc, stack.enter_context(httpx.Client()), clock, log)
            if settings.oidc.client_id is not None:
                secret = read_password(settings.oidc.client_secret_env, environment)
                login = OidcLogin(issuer, settings.oidc, secret, runtime.random)
        elif not manager.store.records(KEY):
            raise InputError("the store has no API key; discreet init creates the first ones")
        peers = None
        if settings.datacentre is not None:
            peers = stack.enter_context(contextlib.closing(open_peers(settings.datacentre, store, environment, log)))
        authenticator = Authenticator(records, clock, issuer)
        api_keys = ApiKeys(
            manager.store,
            records,
            authenticator,
            clock,
            runtime.random,
            None if settings.store.file is None else key_file_of(settings.store.file),
        )
        maintenance = Maintenance(
            manager, api_keys, metrics, log, clock, runtime.monotonic, has_checkpoints=checkpointer is not None
        )
        warehouse = stack.enter_context(Warehouse(catalog, clock, environment))
        grants = Grants(catalog, records, manager.store)
        gate = Gate(authenticator, settings.service, runtime.monotonic, log)
        queries = Queries(
            manager,
            warehouse,
            settings,
            keys,
            log,
            tracer,
            runtime.random,
            refused=(lambda _: None) if peers is None else peers.refused,
        )
        query_api = QueryAPI(
            gate,
            queries,
            Statements(queries, manager, warehouse, settings),
            ReplayCache(clock),
            manager,
            grants,
            warehouse,
            settings,
            runtime.monotonic,
            runtime.pause,
        )
        admin_api = AdminAPI(manager, records, api_keys, catalog, settings, log, clock)
        apis = query_api, admin_api, HealthAPI(catalog, manager.store, maintenance, peers)
        documented = OpenAPI([declared for api in apis for declared, _ in operations_of(api)])
        site = Site(gate, Sessions(keys.sessions, clock, runtime.random), login, has_issuer=issuer is not None)
        pages = (
            AnalystPages(site, query_api, settings, runtime),
            OfficerPages(site, admin_api, manager, catalog, runtime),
        )
        routes = [
            *routes_of(gate, *apis, documented),
            *site.routes(*pages),
            *([] if peers is None else peer_routes(peers)),
        ]
        if settings.service.metrics_port is None:
            routes.append(_metrics_route(metrics))
        app = create_app(routes, runtime, tracer, log, settings.service.release_grid_ms)
        yield Service(app, maintenance, peers, manager, warehouse, authenticator, grants, log, metrics)


def create_app(routes: list[Route], runtime: Runtime, tracer: Tracer, log: Log, grid_ms: int) -> Starlette:
    """Return the ASGI application of *routes*, with the middleware around them.

    Args:
        grid_ms: logged durations are rounded up to multiples of it, in milliseconds.
    """
    middleware = Middleware(
        RequestMiddleware,
        new_id=runtime.new_id,
        monotonic=runtime.monotonic,
        tracer=tracer,
        log=log,
        grid_ms=grid_ms,
    )
    app = Starlette(routes=routes, middleware=[middleware], exception_handlers={HTTPException: _routing_problem})
    app.router.redirect_slashes = False
    return app


async def _routing_problem(request: Request, error: Exception) -> Response:
    return problem_response(request.scope, error)


def _metrics_route(metrics: Metrics) -> Route:
    async def show(_: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return Route("/metrics", show)


def _lease_ms(catalog: Catalog) -> int:
    """Return the lease of a run in milliseconds: a minute more than the longest engine timeout, up to the maximum."""
    longest = max((engine.timeout_seconds for engine in catalog.engines.values()), default=60)
    return min(1_000 * longest + _LEASE_SPARE_MS, LEASE_MOST_MS)
