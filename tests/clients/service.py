"""Run a service over made-up data, and record the statements that it receives."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import uvicorn

from discreet.cli.serve import parse_store
from discreet.service.app import open_service
from discreet.service.init_project import create_project
from discreet.service.settings import load_settings
from tests.certificates import write_certificate
from tests.service.deployment import Engines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CATALOG = """
[datasets.reads]
description = "Which reader read which article; made up."
source = "reads.parquet"
user = "reader"
data_version = "1"

[datasets.reads.columns]
article = { type = "text", group = true, filter = true }
country = { type = "text", group = true, filter = true, domain = ["BR", "DE", "IN", "KE", "US"] }
at = { type = "timestamp", filter = true }
day = { type = "date", of = "at", each = "day", group = true, filter = true, domain = { first = 2026-01-01, last = 2026-01-31 } }
week = { type = "date", of = "at", each = "week", group = true, filter = true, domain = { first = 2025-12-29, last = 2026-01-26 } }
minutes = { type = "integer", sum = { low = 0, high = 500 } }
"""  # noqa: E501 - an inline table of TOML has one line

COUNTRIES = ("BR", "DE", "IN", "KE", "US")
_READERS, _ROWS, _ARTICLES = 6_000, 60_000, 200


@dataclass
class Recorded:
    """A service with a record of its requests.

    Attributes:
        url: of the service, on this machine.
        tls_url: of the same service over TLS, with the certificate `certificate`.
        key: of the analyst ann@example.
        statements: the statements that it received over the Trino client protocol.
        log: of the service.
        engines: hooks of its engines.
    """

    url: str
    tls_url: str
    certificate: Path
    key: str
    log: io.StringIO
    engines: Engines
    statements: list[str] = field(default_factory=list)
    _read: int = 0

    @property
    def address(self) -> str:
        """Return a URL for SQLAlchemy, over TLS, which needs `arguments` too."""
        return f"trino://ann:{self.key}@{self.tls_url.removeprefix('https://')}/discreet/main"

    def arguments(self, **properties: object) -> dict[str, Any]:
        """Return the arguments of a connection over TLS to a port other than 443, with session properties."""
        sent = {name: str(value) for name, value in properties.items()}
        return {"http_scheme": "https", "verify": str(self.certificate), "session_properties": sent}

    def take(self) -> list[str]:
        """Return the statements since the last call."""
        taken, self.statements = self.statements, []
        return taken

    def charged(self) -> tuple[int, int]:
        """Return how many queries were answered since the last call: by the engine, and from the store."""
        lines = self.log.getvalue()[self._read :].splitlines()
        self._read = len(self.log.getvalue())
        origins = [event["source"] for event in map(json.loads, lines) if event["event"] == "released"]
        return origins.count("engine"), origins.count("store")


def write_reads(path: Path) -> None:
    """Write a reading log of January 2026: 60,000 rows of 6,000 readers in five countries."""
    random = np.random.default_rng(2026)
    readers = random.integers(0, _READERS, _ROWS)
    popularity = 1.0 / (np.arange(_ARTICLES) + 3.0)
    articles = random.choice(_ARTICLES, size=_ROWS, p=popularity / popularity.sum())
    days = random.choice(31, size=_ROWS, p=(weight := 2.0 + np.sin(np.arange(31) / 31 * 12)) / weight.sum())
    seconds = days * 86_400 + random.integers(0, 86_400, _ROWS)
    table = {
        "reader": readers,
        "article": np.array([f"article-{n:03}" for n in range(1, _ARTICLES + 1)])[articles],
        "country": np.array(COUNTRIES)[readers % len(COUNTRIES)],
        "at": np.datetime64("2026-01-01T00:00:00", "us") + seconds.astype("timedelta64[s]"),
        "minutes": random.integers(1, 45, _ROWS),
    }
    pq.write_table(pa.table(table), path)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Recorded]:
    """Set up a service in *folder* and run it until the context ends."""
    write_reads(folder / "reads.parquet")
    (folder / "catalog.toml").write_text(CATALOG)
    store = parse_store("sqlite:budget.db", None)
    project = create_project(
        folder / "project",
        catalog=folder / "catalog.toml",
        store=store,
    )
    certificate, key = write_certificate(folder)
    with contextlib.ExitStack() as stack:
        log = io.StringIO()
        service = stack.enter_context(open_service(load_settings(project.settings), {}, log))
        listeners = [stack.enter_context(contextlib.closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(2)]
        places = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
        urls, key_ = (f"http://{places[0]}", f"https://{places[1]}"), project.keys["analyst"]
        recorded = Recorded(*urls, certificate, key_, log, Engines(service.warehouse))
        for listener, tls in zip(listeners, ({}, {"ssl_certfile": certificate, "ssl_keyfile": key}), strict=True):
            app = _recording(service.app, recorded)
            server = uvicorn.Server(uvicorn.Config(app, access_log=False, log_config=None, **tls))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            stack.callback(thread.join)
            stack.callback(setattr, server, "should_exit", True)
        yield recorded


def _recording(app: Any, recorded: Recorded) -> Any:
    """Return an ASGI application that keeps the statements of POST /v1/statement."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") != "/v1/statement":
            await app(scope, receive, send)
            return
        asked: list[bytes] = []

        async def received() -> Any:
            message = await receive()
            asked.append(message.get("body", b""))
            return message

        await app(scope, received, send)
        recorded.statements.append(b"".join(asked).decode())

    return application
