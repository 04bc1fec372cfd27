"""The HTTP requests of the Pinot engine to a fake cluster: settings, queries, timeouts."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from discreet.engines.pinot import PinotEngine
from discreet.errors import EngineError, EngineUnreachable, InexactHead, InputError
from discreet.head_request import HeadRequest

REQUEST = HeadRequest("user", ("item",), 2)
VERSIONS = {"0.11": "0.11.0", "1.4": "1.4.0", "1.5": "1.5.1"}
ANSWER = {
    "resultTable": {
        "dataSchema": {"columnNames": ["item", "distinctcount(user)"], "columnDataTypes": ["STRING", "INT"]},
        "rows": [["X", 4], ["a", 3], ["b", 3]],
    },
    "exceptions": [],
    "numServersQueried": 2,
    "numServersResponded": 2,
    "numSegmentsQueried": 2,
    "numSegmentsPrunedByBroker": 1,
    "numConsumingSegmentsQueried": 0,
    "numGroupsLimitReached": False,
    "numRowsResultSet": 3,
}
"""A good one, of 0.11."""

LATER = {"partialResult": False, "groupsTrimmed": False, "rlsFiltersApplied": False, "brokerId": "Broker_1"}
"""What good answers have from 1.4 on."""

SCHEMA = {
    "schemaName": "events",
    "dimensionFieldSpecs": [
        {"name": "user", "dataType": "LONG"},
        {"name": "item", "dataType": "STRING"},
        {"name": "size", "dataType": "INT"},
        {"name": "open", "dataType": "BOOLEAN", "notNull": True},
        {"name": "shut", "dataType": "BOOLEAN"},
        {"name": "tags", "dataType": "STRING", "singleValueField": False},
    ],
    "metricFieldSpecs": [{"name": "share", "dataType": "DOUBLE"}],
    "dateTimeFieldSpecs": [{"name": "at", "dataType": "TIMESTAMP", "format": "TIMESTAMP", "granularity": "1:DAYS"}],
}


class FakeCluster:
    """A controller and a broker with prepared responses.

    Attributes:
        paths: responses to GET by path: JSON, a status and text, or a function that returns one of them.
        answers: responses to queries, in order; the last one is repeated.
        queries: the received queries, in order.
        seen: method, path and Authorization of every request.
    """

    def __init__(self, version="0.11"):
        settings = {"pinot.broker.groupby.trim.threshold": "1000000000", "pinot.broker.instance.id": "Broker_1"}
        self.paths = {
            "/health": {},
            "/version": dict.fromkeys(("pinot-controller", "pinot-core"), f"{VERSIONS[version]}-1b4d6b6"),
            "/tables/events": {"OFFLINE": {"tableName": "events_OFFLINE"}},
            "/tables/events/schema": deepcopy(SCHEMA),
            "/appconfigs": {"pinotConfig": settings},
            "/segments/events?type=OFFLINE&excludeReplacedSegments=true": [{"OFFLINE": ["s1", "s2", "s3"]}],
        }
        self.answers = [deepcopy(ANSWER) | ({} if version == "0.11" else LATER)]
        self.queries, self.seen, self._sockets = [], [], []

    @contextlib.contextmanager
    def running(self):
        """Listen, and yield the port."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    @contextlib.contextmanager
    def opened(self, **parts):
        """Open an engine on its table."""
        with self.running() as port:
            engine = PinotEngine(url_at(port), **parts)
            try:
                yield engine
            finally:
                engine.close()

    def restart(self):
        """Close all connections."""
        while self._sockets:
            with contextlib.suppress(OSError):
                self._sockets.pop().shutdown(socket.SHUT_RDWR)

    def answer(self, text):
        """Return the response to a query."""
        self.queries.append(text)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def _handler(self):
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # headers and body in one packet

            def setup(self):
                super().setup()
                cluster._sockets.append(self.connection)

            def do_GET(self):
                answer = cluster.paths.get(self.path, (404, ""))
                self._say(answer() if callable(answer) else answer)

            def do_DELETE(self):
                self._say({})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = cluster.answer(body["sql"])
                self._say(answer() if callable(answer) else answer)

            def _say(self, answer):
                cluster.seen.append((self.command, self.path, self.headers["Authorization"]))
                status, text = answer if isinstance(answer, tuple) else (200, json.dumps(answer))
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(text.encode())
                    self.wfile.flush()

            def log_message(self, *_):
                pass

        return Handler


def url_at(port, **options):
    """Return the URL of its table."""
    rest = "".join(f"&{name}={value}" for name, value in options.items())
    return f"pinot://127.0.0.1:{port}?table=events&controller=http://127.0.0.1:{port}{rest}"


@pytest.fixture
def cluster():
    """Return a cluster of version 0.11 with a good response."""
    return FakeCluster()


def test_every_query_disables_trimming(cluster):
    """All options that make Pinot drop groups are set in the statement, where nothing overrides them."""
    with cluster.opened(timeout_seconds=7) as engine:
        engine.head(REQUEST)
    options, _, statement = cluster.queries[0].rpartition("; ")
    assert statement.startswith("SELECT")
    wanted = {
        "useMultistageEngine=false",
        "minSegmentGroupTrimSize=0",
        "minServerGroupTrimSize=0",
        "minBrokerGroupTrimSize=0",
        "groupTrimThreshold=0",
        "numGroupsLimit=20000000",
        "useStarTree=false",
        "enableNullHandling=false",
        "skipUnavailableServers=false",
        "ignoreMissingSegments=false",
        "serverReturnFinalResult=false",
        "serverReturnFinalResultKeyUnpartitioned=false",
        "timeoutMs=7000",
    }
    assert wanted <= {option.removeprefix("SET ") for option in options.split("; ")}


def test_settings_are_read_again_after_a_restart(cluster):
    """Settings and versions are read once for each connection, which a restart closes; a table's with every query."""
    with cluster.opened() as engine:
        engine.head(REQUEST)
        cluster.seen.clear()
        engine.head(REQUEST)
        assert {path for _, path, _ in cluster.seen}.isdisjoint({"/version", "/appconfigs"})
        cluster.paths["/appconfigs"]["pinotConfig"]["pinot.broker.use.approximate.function"] = "true"
        cluster.restart()
        with pytest.raises(InexactHead, match="approximat"):
            engine.head(REQUEST)
        cluster.paths["/appconfigs"]["pinotConfig"]["pinot.broker.use.approximate.function"] = "false"
        engine.head(REQUEST)
        cluster.paths["/version"] = {"pinot-controller": "1.6.0"}
        cluster.restart()
        with pytest.raises(InexactHead, match="version"):
            engine.head(REQUEST)


def test_a_head_under_a_lowered_limit_is_refused(cluster):
    """The first response after a restart is checked against the settings that the broker has now."""
    with cluster.opened() as engine:
        engine.head(REQUEST)
        cluster.paths["/appconfigs"]["pinotConfig"]["pinot.broker.query.response.limit"] = "2"
        cluster.restart()
        with pytest.raises(InexactHead, match=r"pinot\.broker\.query\.response\.limit"):
            engine.head(REQUEST)
    assert len(cluster.queries) == 2


def test_a_query_under_changed_settings_is_repeated(cluster):
    """Segments that were added meanwhile may be counted or not."""
    listed = "/segments/events?type=OFFLINE&excludeReplacedSegments=true"
    with cluster.opened() as engine:
        cluster.paths[listed] = [{"OFFLINE": ["s1", "s2", "s4"]}]
        engine.head(REQUEST)
        assert len(cluster.queries) == 2
        engine.head(REQUEST)
        assert len(cluster.queries) == 3


def test_a_cluster_whose_settings_keep_changing_is_refused(cluster):
    """The settings under which rows were counted are unknown."""
    numbers = itertools.count()
    with cluster.opened() as engine:
        cluster.paths["/segments/events?type=OFFLINE&excludeReplacedSegments=true"] = lambda: [
            {"OFFLINE": ["s1", "s2", f"s{next(numbers)} of many"]}
        ]
        with pytest.raises(EngineError, match="is being changed"):
            engine.head(REQUEST)


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ((401, "secret"), "does not accept"),
        ((403, "secret"), "does not accept"),
        ((500, "secret"), "HTTP status 500"),
        ((302, "secret"), "HTTP status 302"),
        ((200, "secret"), "not Pinot"),
        ((200, '["secret"]'), "not a broker"),
    ],
)
def test_an_invalid_response_is_an_engine_error_without_its_text(cluster, answer, match):
    """The text of a response may hold data."""
    cluster.answers = [answer]
    with cluster.opened() as engine, pytest.raises(EngineError, match=match) as caught:
        engine.head(REQUEST)
    assert "secret" not in str(caught.value)


def test_an_unreachable_cluster_is_an_engine_error():
    """Neither controller nor broker can be reached."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(EngineUnreachable, match="cannot be reached"):
            PinotEngine(url_at(taken.getsockname()[1]))


def test_a_timeout_cancels_the_query(cluster):
    """The broker lists its queries, and only the one with the mark of this request is cancelled."""
    done = threading.Event()

    def wait():
        done.wait(60)
        return deepcopy(ANSWER)

    cluster.answers = [wait]
    with cluster.opened(timeout_seconds=2) as engine:
        cluster.paths["/queries"] = lambda: {"7": "SELECT 1", "8": cluster.queries[0]}
        try:
            with pytest.raises(EngineError, match=r"within 2 seconds"):
                engine.head(REQUEST)
        finally:
            done.set()
        assert [path for method, path, _ in cluster.seen if method == "DELETE"] == ["/query/8"]
        cluster.answers = [deepcopy(ANSWER)]
        assert engine.head(REQUEST).counts.tolist() == [4, 3, 3]


def test_errors_of_a_cancellation_are_ignored(cluster):
    """The timeout is reported, whatever the broker responds to the cancellation."""
    done = threading.Event()
    cluster.answers = [lambda: done.wait(60) and {}]
    for queries in ((500, "disabled"), ["x"], {"a": "b"}, {"8": None}):
        cluster.paths["/queries"] = queries
        with cluster.opened(timeout_seconds=0.05) as engine, pytest.raises(EngineError, match="within"):
            engine.head(REQUEST)
    done.set()


def test_credentials_are_sent_to_broker_and_controller():
    """Every request has them in its header."""
    from discreet.engines.pinot_cluster import PinotClient, tls_of

    cluster = FakeCluster()
    with cluster.running() as port:
        url = f"http://127.0.0.1:{port}"
        client = PinotClient(url, url, ("ann", "open"), tls_of(url), None)
        client.controller.get("/version")
        client.broker.get("/appconfigs")
        client.run("SELECT 1")
        client.close()
    assert {account for _, _, account in cluster.seen} == {"Basic YW5uOm9wZW4="}


@pytest.mark.parametrize(
    ("url", "parts", "match"),
    [
        ("pinot://h?table=t", {}, "looks like"),
        ("pinot://?table=t&controller=http://c", {}, "looks like"),
        ("pinot://h%20h?table=t&controller=http://c", {}, "host"),
        ("pinot://h/path?table=t&controller=http://c", {}, "looks like"),
        ("pinot://h?controller=http://c", {}, "name a table"),
        ("pinot://h?table=t;x&controller=http://c", {}, "name a table"),
        ('pinot://h?table="t&controller=http://c', {}, "name a table"),
        ("pinot://h?table=t&controller=c:9000", {}, "controller"),
        ("pinot://h?table=t&controller=ftp://c", {}, "controller"),
        ("pinot://h?table=t&controller=http://u:p@c", {}, "controller"),
        ("pinot://h?table=t&controller=http://c%20c", {}, "controller"),
        ("pinot://h?table=t&controller=http://c:port", {}, "controller"),
        ("pinot://h?table=t&controller=http://c&limit=5", {}, "no option"),
        ("pinot://h?table=t&controller=http://c", {"view": "SELECT 1"}, "views"),
        ("pinot://u:pw@h?table=t&controller=https://c", {}, "TLS"),
        ("pinots://u@h?table=t&controller=http://c", {"password": "pw"}, "TLS"),
    ],
)
def test_invalid_urls_are_refused(url, parts, match):
    """No request is sent, and the message omits the password."""
    with pytest.raises(InputError, match=match) as caught:
        PinotEngine(url, **parts)
    assert "pw" not in str(caught.value)


def test_the_name_is_the_url_and_the_table(cluster):
    """The name omits the part after the question mark."""
    with cluster.running() as port:
        engine = PinotEngine(f"pinot://ann@127.0.0.1:{port}?controller=http://127.0.0.1:{port}", table="events")
        assert engine.name == f"pinot://ann@127.0.0.1:{port}, table events"
        engine.close()


def test_an_engine_is_checked_without_a_statement(cluster):
    """An unreachable engine is detected before a charge, and a new query costs no second statement."""
    with cluster.opened() as engine:
        engine.check(REQUEST)
        cluster.paths["/health"] = (503, "starting")
        with pytest.raises(EngineUnreachable, match="cannot be reached"):
            engine.check(REQUEST)
    with pytest.raises(EngineUnreachable, match="cannot be reached"):
        engine.check(REQUEST)
    assert cluster.queries == []
