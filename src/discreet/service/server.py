"""Serve the application in one process, or in several processes on one port."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any

import uvicorn
from prometheus_client import start_http_server
from starlette.types import ASGIApp

from discreet._version import __version__
from discreet.errors import DiscreetError, InputError
from discreet.secrets import read_secret
from discreet.service.app import open_service
from discreet.service.observability import Started, Stopped, capture_library_logs
from discreet.service.settings import Settings, load_settings

_KEEP_ALIVE_SECONDS = 75  # longer than proxies keep idle connections for reuse


def serve(
    settings: Settings,
    environment: Mapping[str, str],
    announce: Callable[[str], None],
    listener: socket.socket | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT: then accept no more requests, and finish those in progress.

    SIGHUP has the catalog read again.

    Args:
        announce: called with the URL once connections are accepted.
        listener: an open socket, instead of the address in the settings.

    Raises:
        InputError: the port cannot be bound.
        DiscreetError: as `open_service`.
    """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(listener or listen(settings)))
        service = stack.enter_context(open_service(settings, environment))
        stack.enter_context(capture_library_logs(service.log))
        if settings.service.metrics_port is not None:
            try:
                shown, thread = start_http_server(
                    settings.service.metrics_port, settings.service.host, service.metrics.registry
                )
            except OSError as error:
                wrong = (error.strerror or "it is not available").lower()
                raise InputError(
                    f"the service cannot show its metrics at port {settings.service.metrics_port}: {wrong}"
                ) from None
            stack.callback(thread.join)  # callbacks run from the last to the first
            stack.callback(shown.server_close)
            stack.callback(shown.shutdown)
        server = uvicorn.Server(_configuration(settings, service.app))
        # uvicorn raises the signal again after its shutdown, which must not kill the process
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        signal.signal(signal.SIGHUP, lambda *_: service.catalog.request())
        service.maintenance.once()
        stack.callback(service.maintenance.finish)
        stack.enter_context(service.maintenance.running())
        if service.peers is not None:
            stack.enter_context(service.peers.running())
        host, port = listener.getsockname()[:2]
        datasets = len(service.warehouse.catalog.datasets)
        service.log.event(Started(__version__, host, port, settings.store.kind, datasets))
        gc.freeze()  # or each full collection takes 0.06 seconds for the objects of libraries, which stay
        announce(url_of(listener, settings))
        try:
            server.run(sockets=[listener])
        except BaseException:
            service.log.event(Stopped("failed"))
            raise
        service.log.event(Stopped())


def listen(settings: Settings) -> socket.socket:
    """Return a listening socket at the address in the settings.

    Raises:
        InputError: the machine does not have the address, or the port is in use.
    """
    host = settings.service.host
    port = settings.service.port
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2_048)
    except OSError as error:
        wrong = (error.strerror or "it is not available").lower()
        raise InputError(f"the service cannot listen at {host}, port {port}: {wrong}") from None


def url_of(listener: socket.socket, settings: Settings) -> str:
    """Return the URL of a service at a listening socket."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if settings.service.tls_certificate is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _configuration(settings: Settings, app: ASGIApp) -> uvicorn.Config:
    service = settings.service
    if service.tls_certificate is not None and service.tls_key_file is not None:
        read_secret(service.tls_key_file, "key of the certificate")  # which others may not read
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                service.tls_certificate, service.tls_key_file, password=lambda: b""
            )
        except (OSError, ssl.SSLError):
            raise InputError(
                "tls_certificate and tls_key_file cannot be used: they must be a certificate chain and its key in PEM, "
                "without a password"
            ) from None
    return uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        server_header=False,
        ws="none",
        proxy_headers=bool(service.trusted_proxies),
        forwarded_allow_ips=list(service.trusted_proxies),
        ssl_certfile=service.tls_certificate,
        ssl_keyfile=service.tls_key_file,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=service.shutdown_seconds,
    )


class WorkerDied(DiscreetError):
    """A worker process ended by itself; the service stopped all workers."""


def serve_many(
    path: str,
    overrides: Mapping[str, Any],
    settings: Settings,
    environment: Mapping[str, str],
    announce: Callable[[str], None],
) -> None:
    """Serve in the number of worker processes in the settings, until SIGTERM or SIGINT.

    If a worker ends by itself, all are stopped, so that a supervisor restarts all of them.

    Args:
        path: the settings file, which each process reads.
        overrides: settings that replace those of the file.
        announce: called with the URL once the workers are started.

    Raises:
        WorkerDied: a worker process ended by itself.
        DiscreetError: as `open_service`.
    """
    context = multiprocessing.get_context("spawn")
    with contextlib.closing(listen(settings)) as listener:
        with open_service(settings, environment):  # errors are reported once, and one process creates the schema
            pass
        workers = [
            context.Process(target=_serve_worker, args=(path, dict(overrides), listener), name=f"worker {n + 1}")
            for n in range(settings.service.workers)
        ]
        signals: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: _stop_workers(signals, workers, number))
        signal.signal(signal.SIGHUP, lambda *_: _reload_workers(workers))
        for worker in workers:
            worker.start()
        announce(url_of(listener, settings))
        wait([worker.sentinel for worker in workers])
        died = not signals
        _stop_workers(signals, workers, signal.SIGTERM)
        for worker in workers:
            worker.join()
    if died:
        raise WorkerDied("a process of the service ended by itself, so the others were stopped; its log says more")


def _stop_workers(signals: list[int], workers: list[SpawnProcess], number: int) -> None:
    signals.append(number)
    for worker in workers:
        if worker.is_alive():
            worker.terminate()


def _reload_workers(workers: list[SpawnProcess]) -> None:
    """Have one worker read the catalog again; the others follow by the store."""
    alive = next((worker.pid for worker in workers if worker.is_alive()), None)
    if alive is not None:
        os.kill(alive, signal.SIGHUP)


def _serve_worker(path: str, overrides: dict[str, Any], listener: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which stops this process
    try:
        serve(load_settings(path, overrides), os.environ, lambda _: None, listener)
    except DiscreetError as error:
        sys.stderr.write(f"discreet: {error}\n")
        sys.exit(3)
