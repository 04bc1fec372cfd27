"""A server that sends prepared responses, one a connection, and records the requests."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, field


@dataclass
class Sent:
    """A request as it was received."""

    line: str
    headers: dict[str, str]
    body: bytes


def reply(status=200, body=b"{}", content_type="application/json", **headers):
    """Return the bytes of a response; underscores in names of headers stand for hyphens."""
    fields = {"Content-Type": content_type, "Content-Length": str(len(body)), "Connection": "close"}
    fields |= {name.replace("_", "-"): str(value) for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body


def problem(status, slug, detail="A sentence.", more="", **headers):
    """Return the bytes of a problem document."""
    body = (
        f'{{"type":"/problems/{slug}","title":"T","status":{status},"detail":"{detail}","request_id":"req7"{more}}}'
    ).encode()
    return reply(status, body, "application/problem+json", **headers)


DROP = b""
"""The connection is closed without a response."""


@dataclass
class ScriptedServer:
    """Sends the nth part of the script to the nth connection, and the last part to all that follow.

    A response is truncated by a part with fewer bytes than its Content-Length.
    """

    script: list[bytes]
    sent: list[Sent] = field(default_factory=list)

    def __post_init__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                self.sent.append(_read(connection))
                connection.sendall(self.script[min(len(self.sent), len(self.script)) - 1])

    def close(self):
        """Stop the server."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)


def _read(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536) or _disconnect()
    head, _, body = data.partition(b"\r\n\r\n")
    line, *rest = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (part.partition(":") for part in rest)}
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65536) or _disconnect()
    return Sent(line, headers, body)


def _disconnect():
    raise ConnectionError


@dataclass
class FakeRuntime:
    """A clock that only `sleep` advances, a constant random number and numbered ids."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)
    made: int = 0

    def clock(self):
        """Return the time in seconds."""
        return self.now

    def sleep(self, seconds):
        """Advance the clock."""
        self.slept.append(seconds)
        self.now += seconds

    def random(self):
        """Return the random number."""
        return 0.5

    def ids(self):
        """Return a new id."""
        self.made += 1
        return f"key-{self.made}"
