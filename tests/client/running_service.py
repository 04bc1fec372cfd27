"""A service on a free local port, in a thread."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import socket
import threading
from typing import TYPE_CHECKING

import uvicorn

from discreet.service.app import open_service
from discreet.service.observability import capture_library_logs
from discreet.service.settings import load_settings
from tests.service.deployment import shared_pool

if TYPE_CHECKING:
    from pathlib import Path

    from discreet.service.observability import Tracer


class Gate:
    """Holds queries inside the engines until a test releases them.

    Attributes:
        open: while it is not set, queries wait and report progress.
        arrived: released when a query starts to wait.
        left: released when a query has ended.
        failing: raised by the next queries instead of counting.
    """

    def __init__(self, warehouse):
        self._versioned_reader, warehouse.versioned_reader = warehouse.versioned_reader, self.versioned_reader
        self.open, self.arrived, self.left = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)
        self.open.set()
        self.failing: Exception | None = None

    def versioned_reader(self, dataset, version):
        """Return the engine, held by the gate."""
        return _Gated(self._versioned_reader(dataset, version), self)


class _Gated:
    def __init__(self, engine, gate):
        self._engine, self._gate = engine, gate

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def head(self, request, *, seed=b"", progress=None):
        self._gate.arrived.release()
        try:
            while not self._gate.open.wait(0.01):
                if progress is not None:
                    progress(0.5)
            if self._gate.failing is not None:
                raise self._gate.failing
            return self._engine.head(request, seed=seed, progress=progress)
        finally:
            self._gate.left.release()


@dataclasses.dataclass
class Running:
    """A running service.

    Args:
        url: its base URL.
        opened: the service.
        gate: holds its queries.
        stream: its log.
    """

    url: str
    opened: object
    gate: Gate
    stream: io.StringIO

    def events(self, name):
        """Return the logged events of that name."""
        lines = map(json.loads, self.stream.getvalue().splitlines())
        return [line for line in lines if line["event"] == name]

    def spent(self, account):
        """Return the rho an account has used, forfeited and holds."""
        balance = self.opened.manager.get(account).balance
        return balance.used.rho, balance.forfeited.rho, balance.held.rho


@contextlib.contextmanager
def running(folder: Path, tracer: Tracer | None = None):
    """Run the service of a folder until the context ends, and verify its store then.

    Args:
        folder: of a `tests.service.deployment.Deployment`.
        tracer: receives the spans, instead of the one in the settings.
    """
    stream = io.StringIO()
    with contextlib.ExitStack() as stack:
        settings = load_settings(folder / "discreet.toml")
        parts = stack.enter_context(open_service(settings, {}, stream, tracer=tracer, pool=shared_pool()))
        stack.callback(parts.manager.verify)
        gate = Gate(parts.warehouse)
        stack.enter_context(capture_library_logs(parts.log))
        listener = stack.enter_context(contextlib.closing(socket.create_server(("127.0.0.1", 0), backlog=512)))
        server = uvicorn.Server(uvicorn.Config(parts.app, access_log=False, log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", parts, gate, stream)
        finally:
            gate.open.set()
            server.should_exit = True
            thread.join()
