"""HTTP/1.1 as uvicorn speaks it, with bounds on headers, on the time to send a request, and on connections.

uvicorn itself reads headers of any size, waits for half a request for ever, and accepts connections until the process
has no file descriptors left. No key is needed for any of these.
"""

from __future__ import annotations

import http
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from discreet.wire.problems import PROBLEM_TYPE

if TYPE_CHECKING:
    import asyncio
    from asyncio.events import TimerHandle
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a client may use before it has sent a whole request.

    Args:
        connections: open at once, of all clients.
        header_bytes: of the request line and the headers together.
        header_seconds: from the start of a request to the end of its headers.
        body_seconds: from the end of the headers to the end of the body.
    """

    connections: int = 500
    header_bytes: int = 32_768
    header_seconds: float = 10.0
    body_seconds: float = 30.0


class BoundedProtocol(HttpToolsProtocol):
    """A connection of a client."""

    def __init__(self, *, bounds: Bounds, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._bounds, self._timer = bounds, None
        self._header_bytes: int | None = 0  # of the request whose headers are being read; None outside of headers

    _timer: TimerHandle | None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Refuse a connection above the bound, and begin the time for its headers."""
        super().connection_made(transport)
        if len(self.connections) > self._bounds.connections:
            self._refuse(503, "there are too many connections; try again later")
        else:
            self._start_timer(self._bounds.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of headers before they are parsed."""
        while data and not self.transport.is_closing():
            # Headers are parsed piece by piece, so that no more of them is kept than allowed.
            most = len(data) if self._header_bytes is None else self._bounds.header_bytes - self._header_bytes
            if most <= 0:
                self._refuse(431, f"the request line and the headers have at most {self._bounds.header_bytes:,} bytes")
                return
            piece, data = data[:most], data[most:]
            if self._header_bytes is not None:
                self._header_bytes += len(piece)
            super().data_received(piece)

    def on_message_begin(self) -> None:
        """Begin to count the headers of a request."""
        self._header_bytes = self._header_bytes or 0
        self._start_timer(self._bounds.header_seconds)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Begin the time for the body."""
        self._header_bytes = None
        self._start_timer(self._bounds.body_seconds)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop the timer."""
        self._header_bytes = 0
        self._stop_timer()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's own words
        """Respond with problem details."""
        self._refuse(400, "this is no HTTP/1.1 request")

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        if getattr(self.cycle, "response_started", False):
            self.transport.close()
        else:
            self._refuse(408, "the request was not sent in time")

    def _refuse(self, status: int, detail: str) -> None:
        """Answer with a problem that the application does not know of, and close the connection."""
        title = http.HTTPStatus(status).phrase
        body = json.dumps({"type": "about:blank", "title": title, "status": status, "detail": detail}).encode()
        head = (
            f"HTTP/1.1 {status} {title}\r\nContent-Type: {PROBLEM_TYPE}\r\nContent-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def bounded(bounds: Bounds) -> Callable[..., BoundedProtocol]:
    """Return what makes the protocol of each connection, as uvicorn's option `http`."""
    return lambda **uvicorn: BoundedProtocol(bounds=bounds, **uvicorn)
