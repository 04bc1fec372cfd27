"""TCP proxies between a client and a server, whose connections tests cut."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from urllib.parse import urlsplit

from discreet.engines.url import parse_url


class Proxy:
    """A TCP proxy to the server of *url*, whose connections can be cut, and which accepts new ones until it is closed.

    While it is stalled, it accepts connections and data, and forwards nothing.
    """

    def __init__(self, url, port=0):
        self._far = parse_url(url).port
        self._near = socket.create_server(("127.0.0.1", port))
        self._ends = []
        self._flows = threading.Event()
        self._flows.set()
        self.url = url.replace(f":{self._far}", f":{self._near.getsockname()[1]}")
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self):
        """Forward nothing from now on, as a network that drops packets."""
        self._flows.clear()

    def cut(self):
        """Close all connections."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        """Close all connections and accept no more."""
        with contextlib.suppress(OSError):  # it is closed already
            self._near.shutdown(socket.SHUT_RDWR)
        self._near.close()
        self.cut()
        self._flows.set()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                ends = (self._near.accept()[0], socket.create_connection(("127.0.0.1", self._far)))
                self._ends += ends
                for pair in (ends, ends[::-1]):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source, target):
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(65_536):
                self._flows.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


class SwitchedProxy:
    """A TCP proxy that closes its connections, and each new one at once, while it is cut.

    Args:
        server: host and port of the server.

    Attributes:
        port: the proxy's own port.
        cut: True to close all connections, False to forward again.
    """

    def __init__(self, server):
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cut = False
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        """Stop forwarding and close the listener."""
        self.cut = True
        self._listener.close()

    def _loses(self, response):
        """Return True to close the connection in place of sending *response*."""
        del response
        return False

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client):
        with client, contextlib.suppress(OSError), socket.create_connection(self._server) as server:
            while not self.cut:
                for ready in select.select([client, server], [], [], 0.02)[0]:
                    data = ready.recv(65_536)
                    if not data or self.cut or (ready is server and self._loses(data)):
                        return
                    (server if ready is client else client).sendall(data)


class LostCommitProxy(SwitchedProxy):
    """A proxy that closes the connection in place of the response to the next COMMIT, which the server has made."""

    def __init__(self, url):
        parts = urlsplit(url)
        self.armed, self.dropped = False, 0
        super().__init__((parts.hostname, parts.port))
        self.url = url.replace(f":{parts.port}", f":{self.port}")

    def _loses(self, response):
        if not (self.armed and b"COMMIT\0" in response):
            return False
        self.armed, self.dropped = False, self.dropped + 1
        return True
