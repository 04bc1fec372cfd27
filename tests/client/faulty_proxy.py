"""A proxy that injects network faults, one a connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from .scripted_server import reply

Fault: TypeAlias = Literal["none", "leave", "drop", "cut", "away", "refuse"]
"""leave: the request is forwarded and the client's connection closed at once. drop: the connection is closed instead of
forwarding the response. cut: half of the response is forwarded. away: 503 with Retry-After, nothing is forwarded.
refuse: the connection is closed, nothing is forwarded."""


@dataclass
class FaultyProxy:
    """Forwards each request to a service over a new connection; the nth connection has the nth fault.

    Args:
        target: the URL of the service.
        faults: of the first requests; later ones have none.

    Attributes:
        forwarded: the responses of the service.
    """

    target: str
    faults: list[Fault] = field(default_factory=list)
    forwarded: list[bytes] = field(default_factory=list)

    def __post_init__(self):
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._count, self._lock, self._threads = 0, threading.Lock(), []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection):
        with connection, contextlib.suppress(OSError):
            request = _whole(connection)
            with self._lock:
                fault = self.faults[self._count] if self._count < len(self.faults) else "none"
                self._count += 1
            if fault == "away":
                connection.sendall(reply(503, b"later", "text/plain", retry_after=0))
            elif fault != "refuse":
                self._forward(connection, request, fault)

    def _forward(self, connection, request, fault):
        place = urlsplit(self.target)
        head, _, body = request.partition(b"\r\n\r\n")
        with socket.create_connection((place.hostname, place.port)) as service:
            if fault == "leave":
                connection.close()
            service.sendall(head + b"\r\nConnection: close\r\n\r\n" + body)
            answer = b"".join(iter(lambda: service.recv(65536), b""))
        with self._lock:
            self.forwarded.append(answer)
        if fault == "none":
            connection.sendall(answer)
        elif fault == "cut":
            connection.sendall(answer[: -len(answer.partition(b"\r\n\r\n")[2]) // 2])

    def close(self):
        """Stop the proxy."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._accepting.join(10)
        for thread in self._threads:
            thread.join(10)


def _whole(connection):
    """Read a request; its header Connection is left out."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536) or _disconnect()
    head, _, body = data.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    lengths = [int(line.partition(b":")[2]) for line in lines if line.lower().startswith(b"content-length:")]
    while len(body) < sum(lengths):
        body += connection.recv(65536) or _disconnect()
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _disconnect():
    raise ConnectionError
