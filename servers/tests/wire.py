"""A TCP proxy to a server, which tests can cut."""

from __future__ import annotations

import contextlib
import socket
import threading

from discreet.engines.opening import parse_url


class Wire:
    """A TCP proxy to the server of *url* whose connections can be cut; new ones are accepted until it is closed."""

    def __init__(self, url, port=0):
        self._far = parse_url(url).port
        self._near = socket.create_server(("127.0.0.1", port))
        self._ends = []
        self.url = url.replace(f":{self._far}", f":{self._near.getsockname()[1]}")
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """Close all connections."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        """Close all connections and accept no more."""
        self._near.shutdown(socket.SHUT_RDWR)
        self._near.close()
        self.cut()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                ends = (self._near.accept()[0], socket.create_connection(("127.0.0.1", self._far)))
                self._ends += ends
                for pair in (ends, ends[::-1]):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    @staticmethod
    def _pass(source, target):
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)
