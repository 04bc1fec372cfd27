"""How the Trino engine handles pages that a real server sends only in rare failures."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("trino")

from discreet.engines import trino
from discreet.engines.trino import TrinoEngine
from discreet.errors import EngineError, EngineUnreachable, InexactHead, InputError
from discreet.head_request import HeadRequest, Kind


class _Trino(ThreadingHTTPServer):
    """A server that answers each statement with prepared pages."""

    def __init__(self, pages):
        super().__init__(("127.0.0.1", 0), _Page)
        self.pages, self.statements, self.ended = pages, [], []
        self.starting = False
        self.may_answer = threading.Event()
        self.may_answer.set()

    def page(self, statement, number):
        """Return a page, with the address of the next one if there is one."""
        written = next(pages for words, pages in self.pages.items() if words in self.statements[statement])
        more = {"nextUri": f"http://127.0.0.1:{self.server_address[1]}/{statement}/{number + 1}"}
        page = {"id": str(statement), "stats": {}, "infoUri": "", **(more if number + 1 < len(written) else {})}
        return page | written[number]


class _Page(BaseHTTPRequestHandler):
    def do_POST(self):
        """Send the first page of a statement."""
        self.server.statements.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        assert self.server.may_answer.wait(60)
        self._send(len(self.server.statements) - 1, 0)

    def do_GET(self):
        """Send one of the following pages, or whether the server has started."""
        if self.path == "/v1/info":
            self._write({"starting": self.server.starting})
            return
        self._send(*map(int, self.path[1:].split("/")))

    def do_DELETE(self):
        """End a statement."""
        self.server.ended.append(self.path)
        self.send_response(204)
        self.end_headers()

    def _send(self, statement, number):
        self._write(self.server.page(statement, number))

    def _write(self, answer):
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Log nothing."""


def _columns(**types):
    signature = {"arguments": [{"kind": "LONG", "value": 9}]}
    return {"columns": [{"name": n, "type": t, "typeSignature": {"rawType": t} | signature} for n, t in types.items()]}


def _connected(connectors, read):
    plan = {"inputTableColumnInfos": [{"table": {"catalog": catalog}} for catalog in read]}
    return {
        "LIMIT 0": [_columns(who="bigint", item="varchar")],
        "EXPLAIN": [_columns(plan="varchar") | {"data": [[json.dumps(plan)]]}],
        "system.metadata.catalogs": [_columns(catalog_name="varchar", connector_name="varchar") | {"data": connectors}],
    }


@pytest.fixture
def engine_with():
    """Return a function that opens an engine on a server with prepared pages."""
    with contextlib.ExitStack() as stack:

        def answer(pages):
            server = stack.enter_context(_Trino(pages))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            url = f"trino://me@127.0.0.1:{server.server_address[1]}/c/s?table=t"
            return server, stack.enter_context(contextlib.closing(TrinoEngine(url)))

        yield answer


_HEAD = _columns(i0="varchar", n="bigint")
_FAILED = {"error": {"errorName": "WORKER_GONE", "errorType": "INTERNAL_ERROR", "message": "at row 'secret'"}}
_REQUEST = HeadRequest("who", ("item",), 10)


def test_a_head_is_read_to_the_last_page(engine_with):
    """Pages without rows in between do not end the result."""
    pages = [{}, _HEAD, _HEAD | {"data": [["a", 3]]}, _HEAD, _HEAD | {"data": [["b", 2], ["c", 1]]}, _HEAD]
    _, engine = engine_with({"count(DISTINCT u)": pages, **_connected([["c", "hive"]], ["c"])})
    head = engine.head(_REQUEST)
    assert (head.labels["item"].to_pylist(), head.counts.tolist()) == (["a", "b", "c"], [3, 2, 1])


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_failure_on_any_page_leaves_no_head(engine_with, place):
    """Earlier pages are dropped, and the server's message is not shown."""
    pages = [{}, _HEAD | {"data": [["a", 3]]}, _HEAD | {"data": [["b", 2]]}, _HEAD]
    pages[place] = pages[place] | _FAILED
    _, engine = engine_with({"count(DISTINCT u)": pages, **_connected([["c", "hive"]], ["c"])})
    with pytest.raises(EngineError, match=r"WORKER_GONE") as error:
        engine.head(_REQUEST)
    assert "secret" not in str(error.value)


def test_a_statement_above_the_servers_length_limit_is_an_input_error(engine_with):
    """A server may have a lower limit than Trino's default."""
    error = {"error": {"errorName": "QUERY_TEXT_TOO_LARGE", "errorType": "USER_ERROR", "message": ""}}
    _, engine = engine_with({"count(DISTINCT u)": [error], **_connected([["c", "hive"]], ["c"])})
    with pytest.raises(InputError, match="no statement of that length"):
        engine.head(_REQUEST)


def test_a_statement_cancelled_before_its_first_response_is_ended(engine_with, monkeypatch):
    """The server has the statement but has not responded: it is ended as soon as its address is known."""
    server, engine = engine_with({"count(DISTINCT u)": [{}, {}, {}, _HEAD], **_connected([["c", "hive"]], ["c"])})
    engine.columns()
    server.may_answer.clear()
    cancel = trino._Query.cancel

    def cancel_and_answer(question):
        cancel(question)
        server.may_answer.set()

    monkeypatch.setattr(trino._Query, "cancel", cancel_and_answer)

    def progress(_):
        if len(server.statements) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.head(_REQUEST, progress=progress)
    assert server.ended == ["/3/1"]


@pytest.mark.parametrize(
    ("connectors", "read", "expected"),
    [
        ([["c", "pinot"]], ["c"], "catalog 'c' counts in pinot"),
        ([["c", "hive"], ["p", "pinot"]], ["c", "p"], "catalog 'p' counts in pinot"),
        ([["d", "hive"]], ["c"], "the connector of catalog 'c'"),
        ([["c", None]], ["c"], "the connector of catalog 'c'"),
        ([["c", "hive"], ["p", "pinot"]], ["c"], None),
    ],
)
def test_tables_of_pinot_or_of_unknown_connectors_are_refused(engine_with, connectors, read, expected):
    """Pinot trims groups silently, and Trino lets it count; catalogs that are not read do not matter."""
    _, engine = engine_with(_connected(connectors, read))
    if expected is None:
        assert engine.columns() == {"who": Kind.INTEGER, "item": Kind.TEXT}
        return
    with pytest.raises(InexactHead, match=expected):
        engine.columns()


def test_an_engine_is_checked_without_a_statement(engine_with):
    """An unreachable engine is detected before a charge, and a new query costs no second statement."""
    server, engine = engine_with(_connected([["c", "hive"]], ["c"]))
    engine.columns()
    sent = len(server.statements)
    engine.check(_REQUEST)
    server.starting = True
    with pytest.raises(EngineUnreachable, match="still starting"):
        engine.check(_REQUEST)
    server.server_close()
    with pytest.raises(EngineUnreachable, match="cannot be reached"):
        TrinoEngine("trino://me@127.0.0.1:1/c/s", table="t").check(_REQUEST)
    assert len(server.statements) == sent
