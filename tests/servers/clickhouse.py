"""ClickHouse's engine (chdb) in a separate process behind a minimal HTTP interface.

No registry has a current ClickHouse server, but PyPI has its engine as a library. The HTTP layer here runs one
statement at a time; accounts, row policies and cancellation are not tested.
"""

from __future__ import annotations

import sys
import tempfile
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.feather

from tests.servers import process

if TYPE_CHECKING:
    from typing import Any

DATABASE = "library"
_OURS = {"wait_end_of_query", "database", "default_format", "cancel_http_readonly_queries_on_client_close"}
_OURS |= {"session_id", "session_timeout", "session_check"}  # chdb has one session


def start(folder: Path) -> str:
    """Start a new server and return the URL of its database.

    Args:
        folder: a new folder for all its state.
    """
    port = process.free_port()
    command = [sys.executable, "-m", "tests.servers.clickhouse", str(folder / "data"), str(port)]

    def ready() -> bool:
        with urlopen(f"http://127.0.0.1:{port}/ping", timeout=5) as answer:
            return bool(answer.read() == b"Ok.\n")

    env = {"PYTHONPATH": ":".join(part for part in [str(Path(__file__).parents[2]), *sys.path] if part)}
    process.start(folder, "clickhouse", command, ready, env=env)
    return f"clickhouse://default@127.0.0.1:{port}/{DATABASE}?temporary=true"


def stop(folder: Path) -> None:
    """Stop the server that was started in *folder*."""
    process.stop(folder, "clickhouse")


def load(url: str, table: pa.Table, name: str | None = None, folder: Path = Path("/tmp")) -> str:  # noqa: S108
    """Load *table* into the database and return the name of its table."""
    name = name or f"t{uuid.uuid4().hex}"
    file = folder / f"{name}.arrow"
    pa.feather.write_feather(table, str(file), compression="uncompressed")
    try:
        source = f"file('{file}', 'Arrow')"
        run(url, f"CREATE TABLE {DATABASE}.{name} ENGINE = MergeTree ORDER BY tuple() AS SELECT * FROM {source}")
    finally:
        file.unlink()
    return name


def run(url: str, statement: str) -> bytes:
    """Run a statement and return the response body."""
    place = urlsplit(url)
    request = Request(f"http://{place.hostname}:{place.port}/", statement.encode())
    with urlopen(request, timeout=60) as answer:  # noqa: S310
        return bytes(answer.read())


class _Handler(BaseHTTPRequestHandler):
    """Runs statements as ClickHouse's HTTP interface does."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # as ClickHouse does; otherwise a body waits 40 ms for the ACK of its headers
    session: Any
    lock = Lock()
    settings: dict[str, str] = {}  # noqa: RUF012 - settings of the one session

    def do_GET(self) -> None:
        """Respond to /ping."""
        self._send(200, b"Ok.\n")

    def do_POST(self) -> None:
        """Run the statement in the body with the settings in the query."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        query = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        if "query" not in query:
            self._run(body.decode(), query)
            return
        with tempfile.NamedTemporaryFile() as file:  # chdb takes no rows beside a statement
            file.write(body)
            file.flush()
            insert, _, form = query.pop("query").partition(" FORMAT ")
            self._run(f"{insert} SELECT * FROM file('{file.name}', '{form}')", query)

    def _run(self, statement: str, query: dict[str, str]) -> None:
        with self.lock:
            try:
                for name in sorted(self.settings.keys() - query.keys()):
                    self.session.query(f"SET {name} = DEFAULT")
                    del self.settings[name]
                for name in sorted(query.keys() - _OURS):
                    if self.settings.get(name) != query[name]:
                        self.session.query(f"SET {name} = '{query[name]}'")
                        self.settings[name] = query[name]
                if statement.startswith("SET "):
                    self.settings.clear()
                answer = self.session.query(statement, query.get("default_format", "TabSeparated")).bytes()
            except RuntimeError as error:
                found = str(error).partition("Code: ")[2].partition(".")[0]
                self._send(500, str(error).encode(), {"X-ClickHouse-Exception-Code": found})
                return
        self._send(200, answer)

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ((headers or {}) | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _serve(folder: str, port: int) -> None:
    from chdb.session import Session

    _Handler.session = Session(folder)
    _Handler.session.query(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
    _Handler.session.query(f"USE {DATABASE}")
    ThreadingHTTPServer(("127.0.0.1", port), _Handler).serve_forever()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
