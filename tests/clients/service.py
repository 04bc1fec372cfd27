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
        key: of the analyst ann@example.
        statements: the SQL statements that it received, each with its reply.
    """

    url: str
    key: str
    statements: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def address(self, **options: object) -> str:
        """Return the URL for `discreet_sql.connect` and SQLAlchemy."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"discreet://ann:{self.key}@{self.url.removeprefix('http://')}/?{query}"

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the statements since the last call."""
        taken, self.statements = self.statements, []
        return taken


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
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(open_service(load_settings(project.settings), {}, io.StringIO()))
        listener = stack.enter_context(contextlib.closing(socket.create_server(("127.0.0.1", 0))))
        recorded = Recorded(f"http://127.0.0.1:{listener.getsockname()[1]}", project.keys["analyst"])
        server = uvicorn.Server(uvicorn.Config(_recording(service.app, recorded), access_log=False, log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield recorded
        finally:
            server.should_exit = True
            thread.join()


def _recording(app: Any, recorded: Recorded) -> Any:
    """Return an ASGI application that keeps requests and replies of POST /v1/sql."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") != "/v1/sql":
            await app(scope, receive, send)
            return
        asked, replied = [], []

        async def received() -> Any:
            message = await receive()
            asked.append(message.get("body", b""))
            return message

        async def sent(message: Any) -> None:
            replied.append(message.get("body", b""))
            await send(message)

        await app(scope, received, sent)
        with contextlib.suppress(ValueError):  # an incomplete request
            recorded.statements.append((json.loads(b"".join(asked))["sql"], json.loads(b"".join(replied))))

    return application
