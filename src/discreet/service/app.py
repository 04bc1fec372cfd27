"""Open all components of the service and connect them to an ASGI application: the composition root."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TextIO

import httpx
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Lifespan

from discreet.budget.manager import BudgetManager
from discreet.budget.stores.store import BudgetStore
from discreet.catalog.engine_pool import open_dataset
from discreet.catalog.loader import load_with_digest
from discreet.catalog.model import Catalog
from discreet.engines.base import Engine
from discreet.engines.duckdb import DuckDBEngine
from discreet.errors import InputError
from discreet.release.keys import DerivedKeys
from discreet.secrets import read_variable
from discreet.service.answering.pool import StatementPool
from discreet.service.answering.queries import Queries, ReplayCache
from discreet.service.answering.running import Streams
from discreet.service.answering.saved_tables import SavedTables
from discreet.service.answering.statements import Statements
from discreet.service.auth.access import KEY, Authenticator, Grants, RecordCache
from discreet.service.auth.api_keys import ApiKeys, key_file_of
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
from discreet.service.middleware import Gate, RequestMiddleware, problem_response
from discreet.service.observability import CombinedLog, Failed, Log, Metrics, StructuredLog, Tracer, open_tracer
from discreet.service.officer.activity import ActivityReader
from discreet.service.officer.admin import AdminAPI
from discreet.service.officer.pages import TEMPLATES, OfficerPages
from discreet.service.peers import Peers, open_peers, peer_routes
from discreet.service.runtime import Runtime
from discreet.service.settings import Settings
from discreet.service.stores import check_noise_key, checkpointer_of, noise_secret, open_store
from discreet.warehouse import Warehouse

_MACHINE = Runtime()


@dataclass(frozen=True, slots=True)
class Service:
    """An open service.

    Args:
        peers: exchanges budget shares with other data centres; None if there are none.
    """

    app: Starlette
    maintenance: Maintenance
    streams: Streams
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
def open_service(
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
    metrics = Metrics(runtime.monotonic)
    log = CombinedLog(StructuredLog(stream, settings.logs.format, runtime.clock), metrics)
    keys = DerivedKeys(noise_secret(settings.noise, environment))
    checkpointer = checkpointer_of(settings.checkpoints)
    digest, catalog = load_with_digest(settings.service.catalog)
    with contextlib.ExitStack() as stack:
        if tracer is None:
            tracer = open_tracer(None if settings.traces is None else settings.traces.endpoint)
            stack.callback(tracer.close)
        store = stack.enter_context(contextlib.closing(open_store(settings.store, environment, runtime.clock)))
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
        access = _open_access(settings, environment, store, runtime, log, stack)
        peers = None
        if settings.datacentre is not None:
            peers = stack.enter_context(contextlib.closing(open_peers(settings.datacentre, store, environment, log)))
        opener = partial(open_bounded, settings.service.max_dataset_memory)
        warehouse = stack.enter_context(Warehouse(catalog, runtime.clock, environment, opener))
        catalog_file = CatalogFile(settings.service.catalog, digest, warehouse, manager, log)
        streams = Streams(
            manager, warehouse, keys.running, runtime.clock, lambda error: log.event(Failed.of(error, "running counts"))
        )
        maintenance = Maintenance(
            manager=manager,
            warehouse=warehouse,
            catalog=catalog_file,
            keys=access.api_keys,
            metrics=metrics,
            log=log,
            clock=runtime.clock,
            monotonic=runtime.monotonic,
            has_checkpoints=checkpointer is not None,
            update_index=ActivityReader(store, {}).index.update,
            refresh_running=streams.refresh,
        )
        maintenance.refresh_sources()  # before any request: from now on only maintenance opens sources
        grants = Grants(warehouse, access.records, store)
        if pool is None:
            pool = stack.enter_context(contextlib.closing(StatementPool(settings.service.max_statement_workers)))
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
            gate=access.gate,
            queries=queries,
            statements=Statements(queries, manager, warehouse, settings, pool, SavedTables(store)),
            tables=SavedTables(store),
            cache=ReplayCache(runtime.clock, warehouse.unavailable),
            manager=manager,
            grants=grants,
            warehouse=warehouse,
            settings=settings,
            monotonic=runtime.monotonic,
            pause=runtime.pause,
        )
        admin_api = AdminAPI(
            manager=manager,
            records=access.records,
            keys=access.api_keys,
            catalog=catalog_file,
            settings=settings,
            log=log,
            clock=runtime.clock,
            streams=streams,
        )
        apis = query_api, admin_api, HealthAPI(lambda: warehouse.catalog, store, maintenance, peers)
        site = Site(
            gate=access.gate,
            sessions=Sessions(keys.sessions, runtime.clock, runtime.random),
            store=store,
            records=access.records,
            login=access.login,
            warehouse=warehouse,
            templates=[TEMPLATES],
            has_issuer=access.has_issuer,
        )
        routes = [
            *routes_of(
                partial(api_endpoint, access.gate),
                *apis,
                OpenAPI([declared for api in apis for declared, _ in operations_of(api)]),
            ),
            *site.routes(
                AnalystPages(site, query_api, store, settings, runtime),
                OfficerPages(site, admin_api, manager, warehouse, runtime),
            ),
        ]
        if peers is not None:
            routes += peer_routes(peers)
        if settings.service.trino:
            trino = TrinoProtocol(
                gate=access.gate,
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
        lifespan = None
        if settings.mcp is not None:
            agents = AgentDoor(access.gate, settings.mcp, keys.agents)
            routes.append(agents.route)
            lifespan = agents.lifespan
        app = create_app(routes, runtime, tracer, log, settings.service.release_grid_ms, lifespan)
        app.router.default = site.missing
        yield Service(
            app=app,
            maintenance=maintenance,
            streams=streams,
            peers=peers,
            manager=manager,
            admin_api=admin_api,
            warehouse=warehouse,
            catalog=catalog_file,
            authenticator=access.authenticator,
            grants=grants,
            log=log,
            metrics=metrics,
        )


def open_bounded(mib: int | None, catalog: Catalog, name: str, environment: Mapping[str, str]) -> Engine:
    """Open the engine of a dataset as `open_dataset`, and bound DuckDB's memory for it, unless *mib* is None.

    Raises:
        InputError, EngineError: as `open_dataset`; or rows that are in memory take more than *mib*.
    """
    engine = open_dataset(catalog, name, environment)
    if mib is not None and isinstance(engine, DuckDBEngine):
        try:
            engine.limit_memory(mib)
        except InputError:
            engine.close()
            raise
    return engine


@dataclass(frozen=True, slots=True)
class _Access:
    """What decides who may call the service, and keeps keys and grants."""

    records: RecordCache
    authenticator: Authenticator
    api_keys: ApiKeys
    gate: Gate
    login: OidcLogin | None
    has_issuer: bool


def _open_access(
    settings: Settings,
    environment: Mapping[str, str],
    store: BudgetStore,
    runtime: Runtime,
    log: Log,
    stack: contextlib.ExitStack,
) -> _Access:
    """Open what authorizes requests; raise `InputError` if the store has no API key and there is no other login."""
    records = RecordCache(store, runtime.clock)
    issuer = None
    login = None
    oidc = settings.oidc
    if oidc is not None:
        issuer = Issuer(oidc, stack.enter_context(httpx.Client()), runtime.clock, log)
        if oidc.client_id is not None:
            login = OidcLogin(issuer, oidc, read_variable(oidc.client_secret_env, environment), runtime.random)
    elif not store.records(KEY):
        raise InputError("the store has no API key; discreet init creates the first ones")
    authenticator = Authenticator(records, runtime.clock, issuer)
    api_keys = ApiKeys(
        store=store,
        records=records,
        authenticator=authenticator,
        clock=runtime.clock,
        random=runtime.random,
        key_file=None if settings.store.file is None else key_file_of(settings.store.file),
    )
    gate = Gate(authenticator, settings.service, runtime.monotonic, log)
    return _Access(records, authenticator, api_keys, gate, login, issuer is not None)


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
