"""An HTTP connection to an engine, for one request at a time, with little work on each request."""

from __future__ import annotations

import http.client
import selectors
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress

from discreet.errors import InputError

_CONNECT_SECONDS = 10.0


class HttpConnection:
    """A connection that opens at its first use, and reopens if the server closed it between two requests.

    It ignores environment variables such as those of proxies.

    Args:
        port: None for the default port of HTTP or HTTPS.
        tls: the TLS context; None for a connection without TLS.

    Attributes:
        opened: number of times it was opened.

    Raises:
        InputError: *host* has spaces or control characters.
    """

    def __init__(self, host: str, port: int | None, tls: ssl.SSLContext | None) -> None:
        try:
            self._http = (
                http.client.HTTPConnection(host, port)
                if tls is None
                else http.client.HTTPSConnection(host, port, context=tls)
            )
        except http.client.InvalidURL:
            raise InputError("the host in the URL is neither a name nor an address") from None
        self.opened = 0
        self._is_cut = False

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        seconds: float | None = None,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request as `request` does, and return the response with its body.

        Raises:
            ConnectionError: the server cannot be reached, or the connection ended before the response did.
        """
        response = self.request(method, path, body, headers, seconds=seconds)
        try:
            return response, response.read()
        except (OSError, http.client.HTTPException) as error:
            self._http.close()
            raise ConnectionError("the response ended early") from error

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        seconds: float | None = None,
    ) -> http.client.HTTPResponse:
        """Send a request and return the response, whose body must be read to its end before the next request.

        Args:
            path: path and query string.
            seconds: time limit while the server sends nothing, or None.

        Raises:
            ConnectionError: the server cannot be reached, or the connection ended before the response began.
        """
        try:
            self._open(seconds)
            self._http.request(method, path, body, headers or {})
            return self._http.getresponse()
        except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: the host is not a valid name
            self._http.close()
            raise ConnectionError("the request has no response") from error
        finally:
            self._is_cut = False

    def cut(self) -> None:
        """Abort the request of another thread; if none is in progress, its next one."""
        self._is_cut = True
        sock = self._http.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        self._http.close()

    def _open(self, seconds: float | None) -> None:
        """Connect, unless the connection is still open."""
        if self._http.sock is not None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._http.sock, selectors.EVENT_READ)
                if selector.select(0):  # readable without a pending request: the server closed it
                    self._http.close()
        if self._http.sock is None:
            self._http.timeout = _CONNECT_SECONDS
            self._http.connect()
            self.opened += 1
        self._http.sock.settimeout(seconds)
        if self._is_cut:
            raise ConnectionError("the connection was cut")
