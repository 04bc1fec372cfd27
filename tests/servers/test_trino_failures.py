"""Trino's failures give one clear sentence, and no abandoned query goes on running."""

from __future__ import annotations

import contextlib
import socketserver
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from discreet.engines.trino import TrinoEngine
from discreet.errors import EngineError, EngineUnreachable, InexactHead, InputError
from discreet.head_request import Comparison, Constant, HeadRequest, Kind, Membership
from discreet.testing.engines import rows_of
from tests.servers import process
from tests.servers import trino as trino_server
from tests.servers.proxies import Proxy
from tests.servers.table import loaded

REQUEST = HeadRequest("who", ("item",), 10)
ENDLESS = (
    "SELECT a.n AS who, '{}' AS item FROM {} AS a(n), {} AS b(n), {} AS c(n), {} AS d(n) WHERE a.n * d.n > b.n + c.n"
)
THOUSANDS = "UNNEST(sequence(1, 10000))"


@pytest.fixture(scope="module")
def url(server):
    """Return the URL of the running Trino server, without a table."""
    return server("trino")


@pytest.fixture
def table(url):
    """Return the name of a new table with one user and one item."""
    with loaded(trino_server, url, pa.table({"who": [1], "item": ["secret"]})) as name:
        yield name


@pytest.fixture
def opened(url):
    """Return a function that opens engines, which are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda source=url, **parts: stack.enter_context(contextlib.closing(TrinoEngine(source, **parts)))


@pytest.fixture
def endless(request):
    """Return a view whose count would take years, and a marker to find its queries by."""
    mark = f"mark of {request.node.name}"
    return ENDLESS.format(mark, *[THOUSANDS] * 4), mark


def _ended(url, mark):
    """Wait until all counts of a view have ended, and return their error codes."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        counts = f"query LIKE '%{mark}%DESC%' AND user = 'reader'"
        rows = trino_server.execute(url, f"SELECT state, error_code FROM system.runtime.queries WHERE {counts}")
        if rows and all(state in {"FINISHED", "FAILED"} for state, _ in rows):
            return [error for _, error in rows]
    raise AssertionError("a count goes on without us")


def _one_sentence(error, *parts):
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 300
    for part in parts:
        assert part in message
    for hidden in ("secret", trino_server.PASSWORD, "line 1:"):
        assert hidden not in message
        assert hidden not in repr(error.value)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__ or error.value.__context__ is None


def test_a_timeout_ends_the_query_on_the_server(opened, endless, url):
    """A timeout ends the query on the server, which knows the limit itself; the engine remains usable."""
    view, mark = endless
    engine = opened(view=view, timeout_seconds=5)
    engine.columns()
    with pytest.raises(EngineError) as error:
        engine.head(REQUEST)
    _one_sentence(error, "the engine did not answer within 5 seconds")
    assert _ended(url, mark)[0] in {"EXCEEDED_TIME_LIMIT", "USER_CANCELED"}
    limit = engine.fetch("SHOW SESSION LIKE 'query_max_run_time'").to_pylist()[0]
    assert (limit["Value"], engine.fetch("SELECT 1 AS x")["x"].to_pylist()) == ("5.000s", [1])


@pytest.mark.parametrize("calls", [1, 12])
def test_an_exception_from_progress_cancels_the_query_on_the_server(opened, endless, url, calls):
    """An exception from the progress callback, on the first call or later, cancels the query on the server."""
    view, mark = endless
    engine = opened(view=view)
    engine.columns()
    shares, threads = [], set(threading.enumerate())

    def progress(share):
        shares.append(share)
        if len(shares) == calls:
            raise ValueError("stop")

    with pytest.raises(ValueError, match=r"^stop$"):
        engine.head(REQUEST, progress=progress)
    assert _ended(url, mark) == ["USER_CANCELED"]
    assert all(0 <= share <= 1 for share in shares)
    assert engine.fetch("SELECT 1 AS x")["x"].to_pylist() == [1]
    assert set(threading.enumerate()) <= threads  # other engines' clients may have threads


def test_scratch_tables_are_dropped_after_failures(opened, endless, url):
    """Scratch tables are dropped after cancellation while they are written and after an error in use."""
    scratch = f"{url}?scratch=scratch.default"

    def stop(_):
        raise ValueError("stop")

    with pytest.raises(ValueError, match=r"^stop$"), opened(scratch, view=endless[0]).pairs(REQUEST, progress=stop):
        pass
    engine = opened(scratch, view="SELECT 1 AS who, 'secret' AS item")
    with pytest.raises(TypeError), engine.pairs(REQUEST) as pairs:
        pairs.weighted_sums(None)
    latest = time.monotonic() + 60  # on a loaded machine, they are dropped after the error
    while (left := trino_server.execute(url, "SHOW TABLES FROM scratch.default")) and time.monotonic() < latest:
        time.sleep(0.1)
    assert left == []


def test_concurrent_queries_get_their_own_results(opened):
    """Concurrent queries on one engine each get their own result."""
    engine = opened(view="SELECT n AS who, CAST(n % 7 AS integer) AS item FROM UNNEST(sequence(1, 100)) AS t(n)")
    wheres = [Comparison("item", "=", Constant(Kind.INTEGER, str(n))) for n in range(7)]
    with ThreadPoolExecutor(4) as pool:
        heads = list(pool.map(lambda where: rows_of(engine, HeadRequest("who", ("item",), 5, where)), wheres))
    assert [label for ((label,), _), *_ in heads] == list(range(7))


def test_a_lost_connection_is_reopened(opened, table, url):
    """A socket that died while idle is reopened silently; an unreachable server is an error until it is back."""
    target = int(url.partition("@")[2].partition("/")[0].partition(":")[2])
    port = process.free_port()
    engine = opened(url.replace(f":{target}", f":{port}"), table=table)
    head = [(("secret",), 1)]
    with contextlib.closing(Proxy(url, port)) as proxy:
        assert rows_of(engine, REQUEST) == head
        proxy.cut()
        assert rows_of(engine, REQUEST) == head
    with pytest.raises(EngineError) as error:
        engine.head(REQUEST)
    _one_sentence(error, f"Trino cannot be reached at trino://reader@127.0.0.1:{port}")
    with contextlib.closing(Proxy(url, port)):
        assert rows_of(engine, REQUEST) == head


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {} VALUES (2, 'b')",
        "DELETE FROM {}",
        "DROP TABLE {}",
        "CREATE TABLE other AS SELECT * FROM {}",
        "CREATE VIEW other AS SELECT * FROM {}",
        "CALL system.runtime.kill_query('20240101_000000_00000_aaaaa', '{}')",
        "SET SESSION memory.x = '{}'",
        "SELECT * FROM system.runtime.nodes WHERE node_id = '{}'",
    ],
)
def test_the_documented_account_can_only_read(opened, table, statement):
    """Statements that the documented access rules do not allow are denied and leave the table unchanged."""
    engine = opened(table=table)
    with pytest.raises(EngineError) as error:
        engine.fetch(statement.format(table))
    _one_sentence(error, "Trino")
    assert rows_of(engine, REQUEST) == [(("secret",), 1)]


def test_a_table_without_select_privilege_is_refused(opened, url):
    """A missing SELECT privilege is reported with the user's name."""
    trino_server.execute(url, "CREATE TABLE IF NOT EXISTS hidden AS SELECT 1 AS who, 'secret' AS item")
    with pytest.raises(EngineError) as error:
        opened(table="hidden").head(REQUEST)
    _one_sentence(error, "Trino does not let reader read")


def test_a_user_without_access_to_system_metadata_gets_no_head(opened, table, monkeypatch):
    """If system.metadata.catalogs is not readable, nothing proves that the connector counts exactly."""
    monkeypatch.setattr("discreet.engines.trino._CATALOGS", "SELECT * FROM system.runtime.nodes")
    with pytest.raises(InexactHead) as error:
        opened(table=table).columns()
    _one_sentence(error, "the connector of catalog 'memory'", "system.metadata.catalogs must be readable")


@pytest.mark.parametrize(
    ("path", "parts", "expected"),
    [
        ("memory/default", {}, "name a table; the tables of"),
        ("memory/default", {"table": "no'such"}, "there is no such table; the tables of"),
        ("memory/default", {"view": "SELECT * FROM nosuch"}, "the view names a table that"),
        ("memory/nosuch", {"table": "t"}, "is not a catalog with a schema"),
        ("memory/nosuch", {}, "is not a catalog with a schema"),
        ("nosuch/default", {"table": "t"}, "is not a catalog with a schema"),
        ("memory/default", {"table": "t", "view": "SELECT 1"}, "a table or a view, not both"),
        ("memory/default?table=t", {"view": "SELECT 1"}, "a table or a view, not both"),
        ("memory/default", {"table": "t", "password": "x"}, "over TLS only; add https=true"),
    ],
)
def test_missing_tables_are_refused(opened, table, url, path, parts, expected):
    """The message lists the tables that exist, where it can."""
    with pytest.raises(InputError) as error:
        opened(url.replace("memory/default", path), **parts).columns()
    _one_sentence(error, expected)
    assert ("the tables of" in expected) == (repr(table) in str(error.value))


@pytest.mark.usefixtures("table")
def test_the_list_of_tables_is_truncated(opened, url, monkeypatch):
    """The list of tables is truncated, since a warehouse has thousands."""
    monkeypatch.setattr("discreet.engines.base.NAMES_SHOWN", 1)
    trino_server.load(url, pa.table({"who": [1]}), "a_first")
    try:
        with pytest.raises(InputError, match=r"are 'a_first' and others$"):
            opened()
    finally:
        trino_server.execute(url, "DROP TABLE a_first")


def test_a_host_that_is_not_trino_is_an_engine_error(opened, table):
    """A closed port, an unknown host and a server that is not Trino are each reported as such."""
    with _Web(("127.0.0.1", 0), _Answer) as other:
        threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01}).start()
        places = {
            f"127.0.0.1:{process.free_port()}": "cannot be reached",
            "no.such.host.invalid:8080": "cannot be reached",
            f"127.0.0.1:{other.server_address[1]}": "is not Trino",
        }
        try:
            for place, expected in places.items():
                with pytest.raises(EngineUnreachable) as error:
                    opened(f"trino://reader@{place}/memory/default?table={table}").columns()
                _one_sentence(error, expected, place)
        finally:
            other.shutdown()


class _Web(socketserver.TCPServer):
    """A server that is not Trino."""


class _Answer(socketserver.StreamRequestHandler):
    def handle(self):
        """Respond to every request with a body that must not appear in a message."""
        received = b""
        while not received.endswith(b"\r\n\r\n"):
            received += self.request.recv(1)
        self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 17\r\nConnection: close\r\n\r\n{"secret": "x"}\r\n')


def test_passwords_are_sent_to_trusted_servers_only(opened, table, url, tmp_path, monkeypatch):
    """The right password is accepted; a wrong or missing one and an untrusted certificate each have their own error."""
    ((port, certificate),) = trino_server.execute(url, "SELECT port, certificate FROM tls")
    (tmp_path / "trusted.pem").write_text(certificate)
    secure = f"trino://reader@127.0.0.1:{port}/memory/default?table={table}&https=true"
    with pytest.raises(EngineError) as error:
        opened(secure, password=trino_server.PASSWORD).columns()
    _one_sentence(error, "no certificate that is trusted here")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "trusted.pem"))
    engine = opened(secure, password=trino_server.PASSWORD)
    assert rows_of(engine, REQUEST) == [(("secret",), 1)]
    in_url = opened(secure.replace("reader@", "reader:open%20sesame@"))
    assert rows_of(in_url, REQUEST) == [(("secret",), 1)]
    assert engine.name == in_url.name == f"trino://reader@127.0.0.1:{port}/memory/default, table {table}"
    for password in ("wrong", None):
        with pytest.raises(EngineError) as error:
            opened(secure, password=password).columns()
        _one_sentence(error, "does not accept the user and the password")


def test_messages_hold_no_data(opened, table):
    """Messages name the kind of failure, while Trino's own text quotes the value that caused it."""
    engine = opened(view=f"SELECT who, CAST(item AS bigint) AS item FROM {table}")
    assert list(engine.columns()) == ["who", "item"]
    with pytest.raises(EngineError) as error:
        engine.head(REQUEST)
    _one_sentence(error, "INVALID_CAST_ARGUMENT")


def test_a_statement_longer_than_trino_takes_is_refused(opened, table):
    """A statement above Trino's length limit is refused before it is sent; one just below is answered."""
    engine = opened(table=table)
    for size, fits in ((990_000, True), (1_000_000, False)):
        where = Membership("item", (Constant(Kind.TEXT, "x" * size), Constant(Kind.TEXT, "secret")))
        domain = pa.table({"item": ["x" * size, "secret"]})
        for request in (HeadRequest("who", ("item",), 2, where), HeadRequest("who", ("item",), 2, domain=domain)):
            if fits:
                assert rows_of(engine, request)[0] == (("secret",), 1)
            else:
                with pytest.raises(InputError) as error:
                    engine.head(request)
                _one_sentence(error, "1,000,000 characters at most")
