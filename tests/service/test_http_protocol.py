"""Limits for clients without a key: headers, time and connections, tested over sockets."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import pytest
import uvicorn

from discreet.service.server import Bounds, bounded

WHOLE = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"


async def echo(_, receive, send):
    """Return the body of the request."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def serving(bounds):
    """Run a server and yield a function that connects to it."""
    config = uvicorn.Config(
        echo, http=bounded(bounds), access_log=False, log_config=None, lifespan="off", ws="none", server_header=False
    )
    server, listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield lambda: socket.create_connection(listener.getsockname(), timeout=30)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="module")
def connect():
    """Return a server with timeouts longer than a test, and low limits."""
    with serving(Bounds(connections=8, header_bytes=1_000, header_seconds=60, body_seconds=60)) as made:
        yield made


def to_the_end(connection):
    """Read until the server closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65_536):
            received += part
    return received


def problem(received):
    """Return the status and the problem of a response."""
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    reply = json.loads(body)
    assert int(head.split()[1]) == reply["status"]
    return reply["status"]


def test_headers_beyond_the_bound_are_refused_before_they_are_kept(connect):
    """431 for one long field, many short ones, or a long path."""
    for sent in (
        b"GET / HTTP/1.1\r\nx: " + b"a" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 9_000,
        b"GET /" + b"a" * 9_000,
    ):
        with connect() as connection:
            connection.sendall(sent)
            assert problem(to_the_end(connection)) == 431


def test_a_body_in_the_packet_of_the_headers_does_not_count_as_header(connect):
    """The limit counts headers only, also if one packet holds both, and for each request of a connection."""
    body = b"b" * 50_000
    with connect() as connection:
        for _ in range(3):
            connection.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 50000\r\n\r\n" + body)
            received = b""
            while not received.endswith(body):
                received += connection.recv(65_536)
            assert received.startswith(b"HTTP/1.1 200")


def test_bytes_that_are_not_http_get_a_problem(connect):
    """The response is a problem like every other refusal."""
    with connect() as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert problem(to_the_end(connection)) == 400


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST / HT", b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhe", WHOLE + b"POST / HTTP/1.1\r\n"],
    ids=["nothing", "half the headers", "half the body", "half the second request"],
)
def test_an_incomplete_request_times_out(sent):
    """408, and the connection is closed."""
    with serving(Bounds(header_seconds=0.5, body_seconds=0.5)) as connect, connect() as connection:
        connection.sendall(sent)
        received = to_the_end(connection)
        assert received.count(b"HTTP/1.1 200") == sent.count(b"hello")
        assert b"HTTP/1.1 408" in received or sent.startswith(WHOLE)


def test_connections_beyond_the_limit_are_refused_and_the_others_served():
    """503: file descriptors remain for open connections and for the store."""
    with serving(Bounds(connections=3, header_seconds=60)) as connect, contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect()) for _ in range(3)]
        held[0].sendall(WHOLE)  # a response shows that all three were accepted before
        assert held[0].recv(65_536).startswith(b"HTTP/1.1 200")
        with connect() as connection:
            assert problem(to_the_end(connection)) == 503
        held[1].sendall(WHOLE)
        assert held[1].recv(65_536).startswith(b"HTTP/1.1 200")
        held[2].shutdown(socket.SHUT_WR)
        assert to_the_end(held[2]) == b""
        with connect() as connection:
            connection.sendall(WHOLE)
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
