"""Open all components of the service and connect them to an ASGI application: the composition root."""

from __future__ import annotations

import contextlib
import math
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import httpx
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route

from discreet.budget.manager import BudgetManager
from discreet.catalog.loader import load_with_digest
from discreet.errors import InputError
from discreet.release.keys import DerivedKeys
from discreet.secrets import read_variable
from discreet.service.answering.pool import StatementPool
from discreet.service.answering.queries import Queries, ReplayCache
from discreet.service.answering.statements import Statements
from discreet.service.auth.api_keys import ApiKeys, Authenticator, key_file_of
from discreet.service.auth.gate import Gate
from discreet.service.auth.grants import KEY, Grants, RecordCache
from discreet.service.auth.oidc import Issuer, OidcLogin
from discreet.service.catalog_file import CatalogFile, lease_ms
from discreet.service.doors.http.health import HealthAPI
from discreet.service.doors.http.openapi import OpenAPI
from discreet.service.doors.http.operation import api_endpoint, operations_of, routes_of
from discreet.service.doors.http.query import QueryAPI
from discreet.service.doors.mcp import AgentDoor
from discreet.service.doors.pages.analyst import AnalystPages
from discreet.service.doors.pages.site import Sessions, Site
from discreet.service.doors.trino import TrinoProtocol
from discreet.service.maintenance import Maintenance
from discreet.service.middleware import RequestMiddleware, problem_response
from discreet.service.observability.logging import CombinedLog, StructuredLog
from discreet.service.observability.metrics import Metrics
from discreet.service.observability.traces import open_tracer
from discreet.service.officer.activity import ActivityReader
from discreet.service.officer.admin import AdminAPI
from discreet.service.officer.pages import TEMPLATES, OfficerPages
from discreet.service.peers import open_peers, peer_routes
from discreet.service.runtime import Runtime
from discreet.service.stores import check_noise_key, checkpointer_of, noise_secret, open_store
from discreet.warehouse import Warehouse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from starlette.requests import Request
    from starlette.types import Lifespan

    from discreet.service.observability.logging import Log
    from discreet.service.observability.traces import Tracer
    from discreet.service.peers import Peers
    from discreet.service.settings import Oidc, Settings

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
    admin_api: AdminAPI
    warehouse: Warehouse
    catalog: CatalogFile
    authenticator: Authenticator
    grants: Grants
    log: Log
    metrics: Metrics


@contextlib.contextmanager
def open_service(  # noqa: PLR0915 - the composition root connects everything
    settings: Settings,
    environment: Mapping[str, str],
    stream: TextIO = sys.stdout,
    runtime: Runtime = _MACHINE,
    tracer: Tracer | None = None,
    pool: StatementPool | None = None,
) -> Iterator[Service]:
    """Open a service until the context ends.

    Args:
        runtime: the clock, ids and randomness of the service.
        tracer: the destination of spans, in place of the one in the settings.
        pool: computes statements, in place of a new one; the caller closes it.

    Raises:
        InputError: a secret, the catalog or the store cannot be used, the store has no API key, or its releases were
            made with another noise key.
        StoreUnavailable: the store cannot be opened, or another process has it open.
        StoreBehind: the store is older than its last checkpoint, or has lines and no checkpoint.
        LedgerBroken: the store contradicts its checkpoints.
    """
    clock = runtime.clock
    metrics = Metrics(runtime.monotonic)
    log = CombinedLog(StructuredLog(stream, settings.logs.format, clock), metrics)
    keys = DerivedKeys(noise_secret(settings.noise, environment))
    checkpointer = checkpointer_of(settings.checkpoints)
    digest, catalog = load_with_digest(settings.service.catalog)
    with contextlib.ExitStack() as stack:
        if tracer is None:
            tracer = open_tracer(None if settings.traces is None else settings.traces.endpoint)
            stack.callback(tracer.close)
        store = stack.enter_context(contextlib.closing(open_store(settings.store, environment, clock)))
        store.timed = metrics.timed
        manager = BudgetManager(
            store,
            ids=runtime.new_id,
            lease_ms=lease_ms(catalog),
            checkpointer=checkpointer,
            computational=True,
        )
        check_noise_key(store, keys)
        store.recover()
        records = RecordCache(store, clock)
        issuer, login = _open_login(settings.oidc, environment, runtime, log, stack)
        if issuer is None and not store.records(KEY):
            raise InputError("the store has no API key; discreet init creates the first ones")
        peers = None
        if settings.datacentre is not None:
            peers = stack.enter_context(contextlib.closing(open_peers(settings.datacentre, store, environment, log)))
        authenticator = Authenticator(records, clock, issuer)
        api_keys = ApiKeys(
            store=store,
            records=records,
            authenticator=authenticator,
            clock=clock,
            random=runtime.random,
            key_file=None if settings.store.file is None else key_file_of(settings.store.file),
        )
        warehouse = stack.enter_context(Warehouse(catalog, clock, environment))
        catalog_file = CatalogFile(settings.service.catalog, digest, warehouse, manager, log)
        maintenance = Maintenance(
            manager=manager,
            warehouse=warehouse,
            catalog=catalog_file,
            keys=api_keys,
            metrics=metrics,
            log=log,
            clock=clock,
            monotonic=runtime.monotonic,
            has_checkpoints=checkpointer is not None,
            update_index=ActivityReader(store, {}).update,
        )
        maintenance.refresh_sources()  # before any request: from now on only maintenance opens sources
        grants = Grants(warehouse, records, store)
        if pool is None:
            pool = stack.enter_context(contextlib.closing(StatementPool(settings.service.max_statement_workers)))
        gate = Gate(authenticator, settings.service, runtime.monotonic, log)
        queries = Queries(
            manager=manager,
            warehouse=warehouse,
            settings=settings,
            keys=keys,
            log=log,
            tracer=tracer,
            random=runtime.random,
            refused=(lambda _: None) if peers is None else peers.refused,
        )
        query_api = QueryAPI(
            gate=gate,
            queries=queries,
            statements=Statements(queries, manager, warehouse, settings, pool),
            cache=ReplayCache(clock, warehouse.unavailable),
            manager=manager,
            grants=grants,
            warehouse=warehouse,
            settings=settings,
            monotonic=runtime.monotonic,
            pause=runtime.pause,
        )
        admin_api = AdminAPI(
            manager=manager,
            records=records,
            keys=api_keys,
            catalog=catalog_file,
            settings=settings,
            log=log,
            clock=clock,
        )
        apis = query_api, admin_api, HealthAPI(lambda: warehouse.catalog, store, maintenance, peers)
        documented = OpenAPI([declared for api in apis for declared, _ in operations_of(api)])
        site = Site(
            gate=gate,
            sessions=Sessions(keys.sessions, clock, runtime.random),
            store=store,
            records=records,
            login=login,
            warehouse=warehouse,
            templates=[TEMPLATES],
            has_issuer=issuer is not None,
        )
        pages = (
            AnalystPages(site, query_api, store, settings, runtime),
            OfficerPages(site, admin_api, manager, warehouse, runtime),
        )
        routes = [
            *routes_of(partial(api_endpoint, gate), *apis, documented),
            *site.routes(*pages),
            *([] if peers is None else peer_routes(peers)),
        ]
        if settings.service.trino:
            trino = TrinoProtocol(
                gate=gate,
                query_api=query_api,
                grants=grants,
                pool=pool,
                key=keys.pages,
                settings=settings,
                runtime=runtime,
                log=log,
            )
            stack.callback(trino.close)
            routes += trino.routes()
        if settings.service.metrics_port is None:
            routes.append(_metrics_route(metrics, runtime.monotonic))
        door = None if settings.mcp is None else AgentDoor(gate, settings.mcp, keys.agents)
        routes += [] if door is None else [door.route]
        lifespan = None if door is None else door.lifespan
        app = create_app(routes, runtime, tracer, log, settings.service.release_grid_ms, lifespan)
        app.router.default = site.missing
        yield Service(
            app=app,
            maintenance=maintenance,
            peers=peers,
            manager=manager,
            admin_api=admin_api,
            warehouse=warehouse,
            catalog=catalog_file,
            authenticator=authenticator,
            grants=grants,
            log=log,
            metrics=metrics,
        )


def _open_login(
    settings: Oidc | None, environment: Mapping[str, str], runtime: Runtime, log: Log, stack: contextlib.ExitStack
) -> tuple[Issuer | None, OidcLogin | None]:
    """Return the issuer of tokens, and the login of the page with it; None for what the settings do not declare."""
    if settings is None:
        return None, None
    issuer = Issuer(settings, stack.enter_context(httpx.Client()), runtime.clock, log)
    if settings.client_id is None:
        return issuer, None
    secret = read_variable(settings.client_secret_env, environment)
    return issuer, OidcLogin(issuer, settings, secret, runtime.random)


def create_app(
    routes: list[Route],
    runtime: Runtime,
    tracer: Tracer,
    log: Log,
    grid_ms: int,
    lifespan: Lifespan[Starlette] | None = None,
) -> Starlette:
    """Return the ASGI application of *routes*, with the middleware around them.

    Args:
        grid_ms: logged durations are rounded up to multiples of it, in milliseconds.
        lifespan: the context within which the application serves.
    """
    middleware = Middleware(
        RequestMiddleware,
        new_id=runtime.new_id,
        monotonic=runtime.monotonic,
        tracer=tracer,
        log=log,
        grid_ms=grid_ms,
    )

    async def respond(request: Request, error: Exception) -> Response:
        return problem_response(request.scope, error)

    handlers: dict[Any, Any] = {HTTPException: respond}
    app = Starlette(routes=routes, middleware=[middleware], exception_handlers=handlers, lifespan=lifespan)
    app.router.redirect_slashes = False
    return app


def _metrics_route(metrics: Metrics, monotonic: Callable[[], float]) -> Route:
    shown = -math.inf, b""

    async def show(_: Request) -> Response:
        # Anyone may ask, and an encoding takes tens of milliseconds of the event loop: at most one a second.
        nonlocal shown
        if monotonic() - shown[0] >= 1:
            shown = monotonic(), metrics.text()
        return Response(shown[1], media_type=CONTENT_TYPE_LATEST)

    return Route("/metrics", show)
