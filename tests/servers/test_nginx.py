"""The service behind Debian's nginx with examples/deploy/nginx.conf: hostile clients stop no other client.

Attackers come from other loopback addresses than the client whose requests must be answered.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import ssl

import pytest

from discreet.client.errors import read_problem
from tests.servers import nginx
from tests.service.deployment import KNOWN, Deployment
from tests.service.faults.processes import serving

OTHER = "127.0.0.1"
ROUNDS = 3
"""Requests of the other client during an attack."""

GET = b"GET /openapi.json HTTP/1.1\r\nHost: private.example.org\r\n\r\n"
POST = b"POST /v1/query HTTP/1.1\r\nHost: private.example.org\r\nContent-Type: application/json\r\n"


class Front:
    """The address of nginx, and one key of the service behind it."""

    def __init__(self, folder, port, key):
        self._folder, self._port, self.key = folder, port, key
        self._context = nginx.client_context(folder)

    def log(self):
        """Return the log of requests."""
        return (self._folder / "discreet.log").read_text()

    def connect(self, source=OTHER, *, buffer=None):
        """Open a TLS connection from a loopback address, with a receive buffer of *buffer* bytes."""
        made = socket.socket()
        if buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        made.settimeout(40)
        made.bind((source, 0))
        made.connect((OTHER, self._port))
        return self._context.wrap_socket(made, server_hostname=nginx.NAME)

    def plain(self, source):
        """Open a TCP connection without TLS."""
        return socket.create_connection((OTHER, self._port), timeout=60, source_address=(source, 0))

    def request(self, begin, body=b"", source=OTHER):
        """Send a request on a new connection, and return the status and the whole response."""
        with self.connect(source) as connection:
            lines = begin + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
            connection.sendall(lines + body)
            received = to_the_end(connection)
            return int(received.split()[1]), received

    def others_are_answered(self):
        """Check that queries, prices, pages and readiness are answered on new connections of another address."""
        authorized = b"Authorization: Bearer %s\r\n" % self.key.encode()
        for _ in range(ROUNDS):
            for path in (b"query", b"estimate"):
                begin = POST.replace(b"query", path) + authorized
                status, received = self.request(begin, b'{"sql": "%s"}' % KNOWN.encode())
                assert status == 200, received
            assert self.request(b"GET /readyz HTTP/1.1\r\nHost: private.example.org\r\n")[0] == 200


def to_the_end(connection):
    """Read until the server closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while part := connection.recv(65_536):
            received += part
    return received


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    """Return nginx in front of a service that trusts it."""
    folder = tmp_path_factory.mktemp("nginx")
    deployment = Deployment(folder / "deployment", service='trusted_proxies = ["127.0.0.1"]\nmax_body_bytes = 65536')
    with serving(deployment) as service:
        port = nginx.start(folder / "nginx", service.url)
        try:
            yield Front(folder / "nginx", port, deployment.keys["ann"])
        finally:
            nginx.stop(folder / "nginx")


@pytest.fixture
def opened():
    """Close all connections of an attack at its end."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context


def attacker(number):
    """Return one of ten loopback addresses."""
    return f"127.0.1.{1 + number % 10}"


def test_the_service_knows_the_client_behind_the_proxy(front):
    """A login over TLS gets a cookie that only travels over TLS, and metrics stay inside."""
    begin = b"GET /login HTTP/1.1\r\nHost: private.example.org\r\n"
    status, received = front.request(begin)
    assert status == 200
    assert b"; secure" in received.lower()
    for path in (b"/metrics", b"/v1/peer/x"):
        assert front.request(begin.replace(b"/login", path))[0] == 404


def test_the_log_has_no_address_of_a_page_and_no_query(front):
    """An address stands for a statement, and a query may hold one."""
    authorized = b"Host: private.example.org\r\nAuthorization: Bearer %s\r\n" % front.key.encode()
    status, received = front.request(b"POST /v1/statement HTTP/1.1\r\n" + authorized, KNOWN.encode())
    assert status == 200
    path = re.search(rb'"nextUri": ?"https://private.example.org(/v1/statement/executing/[^"]+)"', received)[1]
    for target in (path, b"/ask?sql=SELECT+1"):
        front.request(b"GET %s HTTP/1.1\r\n" % target + authorized)
    logged = front.log()
    assert "GET /v1/statement/executing/..." in logged
    assert "GET /ask" in logged
    assert path.decode().split("/")[-2] not in logged
    assert "SELECT" not in logged


def test_slow_headers_bodies_and_readers_stop_no_other_client_and_are_ended(front, opened):
    """500 clients that send a few bytes of headers or of a body, or read nothing, are cut off after ten seconds."""
    authorized = b"Authorization: Bearer %s\r\n" % front.key.encode()
    slow = {
        "headers": POST[:40],
        "body": POST + authorized + b"Content-Length: 500\r\n\r\n{",
        "nothing": b"",
    }
    connections = {kind: [] for kind in slow}
    for kind, sent in slow.items():
        for number in range(165):
            connection = opened(front.connect(attacker(number)))
            connection.sendall(sent)
            connections[kind].append(connection)
    for number in range(5):  # a body that arrives byte by byte
        connection = opened(front.connect(attacker(number)))
        connection.sendall(POST + authorized + b"Content-Length: 64000\r\n\r\n")
        for _ in range(20):
            connection.send(b" ")
    unread = select.poll()
    for number in range(5):
        connection = opened(front.connect(f"127.0.3.{number + 1}", buffer=2_048))
        connection.sendall(GET * 100)
        unread.register(connection, select.POLLHUP | select.POLLERR)
    front.others_are_answered()
    ended = set()
    while len(ended) < 5:
        found = {each for each, _ in unread.poll(40_000)}
        assert found - ended, "the server resets a client that does not read"
        ended |= found
        for each in found:
            unread.unregister(each)
    for kind in ("headers", "body"):
        for connection in connections[kind]:
            received = to_the_end(connection)
            assert received == b"" or received.split()[1] in {b"408", b"429"}, kind
    front.others_are_answered()


@pytest.mark.parametrize("addresses", [1, 10])
def test_pipelined_requests_that_are_never_read_stop_no_other_client(front, opened, addresses):
    """500 connections send 100 requests for the largest document each, and read nothing."""
    connections = [opened(front.connect(attacker(number % addresses), buffer=2_048)) for number in range(500)]
    for number, connection in enumerate(connections):
        connection.setblocking(False)  # nginx stops reading from those that do not read
        with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError, ConnectionError):
            connection.send(GET * 100)
        if number % 250 == 249:
            front.others_are_answered()
    front.others_are_answered()


def test_ten_thousand_connections_in_turn_stop_no_other_client(front):
    """Some end before TLS, some within it, some before a request and some within one."""
    for number in range(10_000):
        source = attacker(number)
        if number % 50:
            with front.plain(source) as connection:
                connection.sendall(b"\x16\x03\x01\x02\x00" if number % 3 else b"")
        else:
            with front.connect(source) as connection:
                connection.sendall(GET if number % 100 else GET[:30])
        if number % 2_500 == 0:
            front.others_are_answered()
    front.others_are_answered()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: private.example.org\r\nx: " + b"a" * 1_000_000,
        b"GET / HTTP/1.1\r\nHost: private.example.org\r\n" + b"x: y\r\n" * 200_000,
        b"GET /" + b"a" * 1_000_000,
    ],
    ids=["a long field", "many fields", "a long path"],
)
def test_floods_of_headers_are_refused_at_the_proxy(front, opened, sent):
    """A megabyte of headers on each of 100 connections is refused after 32 kB, and others are answered."""
    connections = [opened(front.connect(attacker(number))) for number in range(100)]
    for number, connection in enumerate(connections):
        connection.settimeout(40)
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # closed while it was sent
            connection.sendall(sent)
        if number % 50 == 0:
            front.others_are_answered()
    for connection in connections:
        received = to_the_end(connection)
        assert received == b"" or received.split()[1] in {b"400", b"414", b"429"}
    front.others_are_answered()


@pytest.mark.parametrize(
    ("begin", "allowed", "refused", "source"),
    [
        (GET.replace(b"openapi.json", b"healthz"), b"200", b"429", "127.0.2.1"),
        (POST.replace(b"query", b"statement") + b"Content-Length: 0\r\n\r\n", b"401", b"503", "127.0.2.2"),
    ],
    ids=["of the service", "of Trino's protocol"],
)
def test_requests_above_the_rate_of_an_address_are_refused_and_no_others(
    front, opened, begin, allowed, refused, source
):
    """Nginx refuses them before the service is called, with the status after which their clients wait and ask again."""
    connections = [opened(front.connect(source)) for _ in range(120)]
    for connection in connections:
        connection.sendall(begin.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    front.others_are_answered()
    answers = [to_the_end(connection).partition(b"\r\n\r\n") for connection in connections]
    assert {head.split()[1] for head, _, _ in answers} == {allowed, refused}
    head, body = next((head, body) for head, _, body in answers if head.split()[1] == refused)
    assert b"Retry-After: 5" in head
    if refused == b"429":
        busy = read_problem({"content-type": re.search(rb"Content-Type: (.+?)\r\n", head)[1].decode()}, body)
        assert busy.slug == "too-many-requests"
    else:
        assert body == b"too many requests of this address; wait as long as the header Retry-After says"
