"""Opens all that the service is made of, and serves until it is told to stop: the composition root."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import time
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, TextIO, cast

import anyio
import httpx
import uvicorn
from prometheus_client import start_http_server

from discreet._version import __version__
from discreet.budget.checkpoints import CheckpointFile
from discreet.budget.manager import BudgetManager
from discreet.budget.model import LEASE_MOST_MS
from discreet.catalog.loader import load_catalog
from discreet.errors import DiscreetError, InputError
from discreet.service.app import create_app
from discreet.service.auth.api_keys import ApiKeys, Authenticator
from discreet.service.auth.grants import Grants
from discreet.service.auth.oidc import Issuer
from discreet.service.auth.records import KEY, RecordCache
from discreet.service.maintenance import Maintenance, MaintenanceStatus, TimedCheckpointer
from discreet.service.observability.events import Started, Stopped
from discreet.service.observability.logging import CombinedLog, StructuredLog, capture_library_logs
from discreet.service.observability.metrics import Metrics
from discreet.service.observability.traces import open_tracer
from discreet.service.parts import Parts
from discreet.service.peers.sync import open_peers
from discreet.service.secrets import noise_secret, signing_key
from discreet.service.settings import load_settings
from discreet.service.stores import open_store, utc_now
from discreet.warehouse import Warehouse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime
    from multiprocessing.context import SpawnProcess

    from discreet.catalog.model import Catalog
    from discreet.service.settings import Settings, WitnessSettings


_KEEP_ALIVE_SECONDS = 75  # longer than proxies keep a connection that they may still use
_LEASE_SPARE_MS = 60_000


@contextlib.contextmanager
def open_service(
    settings: Settings,
    environment: Mapping[str, str],
    stream: TextIO = sys.stdout,
    clock: Callable[[], datetime] = utc_now,
) -> Iterator[Parts]:
    """All that the service is made of, until the context ends.

    Args:
        settings: what it runs with.
        environment: the variables in which secrets are.
        stream: where the log goes.
        clock: the time with its zone.

    Raises:
        InputError: a secret, the catalog or the store cannot be used as it is, or nobody has a key.
        StoreUnavailable: the store cannot be opened, or another process has it.
        StoreBehind: the store is older than its witness says.
        LedgerBroken: what was witnessed is not what the store holds.
    """
    metrics = Metrics(time.monotonic)
    log = CombinedLog(StructuredLog(stream, settings.logs.format, clock), metrics)
    secret, marks = noise_secret(settings.noise, environment), MaintenanceStatus()
    checkpointer = None if settings.witness is None else _checkpointer(settings.witness, marks)
    catalog = load_catalog(settings.service.catalog)
    with contextlib.ExitStack() as stack:
        tracer = open_tracer(None if settings.traces is None else settings.traces.endpoint)
        stack.callback(tracer.close)
        store = stack.enter_context(contextlib.closing(open_store(settings.store, environment, clock)))
        manager = BudgetManager(
            metrics.timed(store), _name, _lease_ms(catalog), checkpointer=checkpointer, computational=True
        )
        registry, tokens = RecordCache(manager.store, clock), None
        if settings.oidc is not None:
            tokens = Issuer(settings.oidc, stack.enter_context(httpx.Client()), clock, log)
        elif not manager.store.records(KEY):
            raise InputError("nobody has a key to this service: discreet init makes the first")
        keyring = Authenticator(registry, clock, tokens)
        locksmith = ApiKeys(manager, registry, keyring, clock, secrets.token_bytes)
        peers = None
        if settings.datacentre is not None:
            opened = open_peers(settings.datacentre, store, environment, log)
            peers = stack.enter_context(contextlib.closing(opened))
        yield Parts(
            manager=manager,
            warehouse=stack.enter_context(Warehouse(catalog, clock, environment)),
            keyring=keyring,
            grants=Grants(catalog, registry, manager.store),
            registry=registry,
            settings=settings,
            secret=secret,
            clock=clock,
            monotonic=time.monotonic,
            pause=anyio.sleep,
            ids=_name,
            random=secrets.token_bytes,
            log=log,
            metrics=metrics,
            tracer=tracer,
            upkeep=Maintenance(
                manager, locksmith, metrics, log, clock, time.monotonic, marks, witnessed=checkpointer is not None
            ),
            peers=peers,
        )


def serve(
    settings: Settings,
    environment: Mapping[str, str],
    announce: Callable[[str], None],
    listener: socket.socket | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT: then take no more questions, and finish those under way.

    Args:
        settings: what to run with.
        environment: the variables in which secrets are.
        announce: is told the URL, once whoever connects is answered.
        listener: where to listen, in place of what the settings say.

    Raises:
        InputError: the port cannot be had; and as `open_service`, whose other errors it raises too.
    """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(listener or listen(settings)))
        parts = stack.enter_context(open_service(settings, environment))
        stack.enter_context(capture_library_logs(parts.log))
        stack.enter_context(_metrics_shown(settings, parts))
        server = uvicorn.Server(_configuration(settings, parts))
        # uvicorn sends itself the signal once more when it is done with it: nobody is to die of that
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        parts.upkeep.once()
        stack.callback(parts.upkeep.last)
        stack.enter_context(parts.upkeep.going_on())
        if parts.peers is not None:
            stack.enter_context(parts.peers.going_on())
        host, port = listener.getsockname()[:2]
        datasets = len(parts.warehouse.catalog.datasets)
        parts.log.event(Started(__version__, host, port, settings.store.kind, datasets))
        announce(url_of(listener))
        try:
            server.run(sockets=[listener])
        except BaseException:
            parts.log.event(Stopped("failed"))
            raise
        parts.log.event(Stopped())


def listen(settings: Settings) -> socket.socket:
    """A socket where the settings say.

    Raises:
        InputError: there is no such address here, or the port is taken.
    """
    host, port = settings.service.host, settings.service.port
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2_048)
    except OSError as error:
        wrong = (error.strerror or "it cannot be had").lower()
        raise InputError(f"the service cannot listen at {host}, port {port}: {wrong}") from None


def url_of(listener: socket.socket) -> str:
    """Where whoever is on this machine finds the service."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _checkpointer(witness: WitnessSettings, marks: MaintenanceStatus) -> TimedCheckpointer:
    return TimedCheckpointer(CheckpointFile(witness.file), signing_key(witness.signing_key_file), marks, time.monotonic)


def _name() -> str:
    return secrets.token_hex(16)


def _lease_ms(catalog: Catalog) -> int:
    """How long a run may take: longer than any engine may."""
    longest = max((engine.timeout_seconds for engine in catalog.engines.values()), default=60)
    return min(1_000 * longest + _LEASE_SPARE_MS, LEASE_MOST_MS)


def _configuration(settings: Settings, parts: Parts) -> uvicorn.Config:
    service = settings.service
    return uvicorn.Config(
        create_app(parts),
        access_log=False,
        log_config=None,
        server_header=False,
        ws="none",
        proxy_headers=bool(service.trusted_proxies),
        forwarded_allow_ips=list(service.trusted_proxies),
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=service.shutdown_seconds,
    )


@contextlib.contextmanager
def _metrics_shown(settings: Settings, parts: Parts) -> Iterator[None]:
    """/metrics on a port of its own, if the settings name one."""
    port = settings.service.metrics_port
    if port is None:
        yield
        return
    try:
        server, thread = start_http_server(port, settings.service.host, cast("Metrics", parts.metrics).registry)
    except OSError as error:
        wrong = (error.strerror or "it cannot be had").lower()
        raise InputError(f"the service cannot show its metrics at port {port}: {wrong}") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class WorkerDied(DiscreetError):
    """A process of the service ended by itself; the others were stopped."""


def serve_many(
    path: str,
    overrides: Mapping[str, Any],
    settings: Settings,
    environment: Mapping[str, str],
    announce: Callable[[str], None],
) -> None:
    """Serve in as many processes as the settings say, until SIGTERM or SIGINT.

    If one of them ends by itself, all do: whoever watches over the service starts it anew.

    Args:
        path: of the settings file, which each process reads.
        overrides: settings in place of the file's.
        settings: the same as this process read them.
        environment: the variables in which secrets are.
        announce: is told the URL.

    Raises:
        WorkerDied: a process ended by itself.
        DiscreetError: as `open_service`.
    """
    context = multiprocessing.get_context("spawn")
    with contextlib.closing(listen(settings)) as listener:
        with open_service(settings, environment):  # what is wrong is told once, and schemas are made by one
            pass
        workers = [
            context.Process(target=_work, args=(path, dict(overrides), listener), name=f"worker {n + 1}")
            for n in range(settings.service.workers)
        ]
        asked: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: _pass_on(asked, workers, number))
        for worker in workers:
            worker.start()
        announce(url_of(listener))
        wait([worker.sentinel for worker in workers])
        died = not asked
        _pass_on(asked, workers, signal.SIGTERM)
        for worker in workers:
            worker.join()
    if died:
        raise WorkerDied("a process of the service ended by itself, so the others were stopped; its log says more")


def _pass_on(asked: list[int], workers: list[SpawnProcess], number: int) -> None:
    asked.append(number)
    for worker in workers:
        if worker.is_alive():
            worker.terminate()


def _work(path: str, overrides: dict[str, Any], listener: socket.socket) -> None:
    """What each process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which passes it on once
    try:
        serve(load_settings(path, overrides), os.environ, lambda _: None, listener)
    except DiscreetError as error:
        sys.stderr.write(f"discreet: {error}\n")
        sys.exit(3)
