"""A small OpenID issuer: a real server that publishes its keys and signs what it is told to."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

KEYS = {
    "RS256": RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"}),
    "ES256": ECKey.generate_key("P-256", {"kid": "ec", "use": "sig"}),
    "EdDSA": OKPKey.generate_key("Ed25519", {"kid": "ed", "use": "sig"}),
}


class Everything(JWSRegistry):
    """Signs with any algorithm and under any header, also those that nobody should take."""

    def check_header(self, header):
        """Fine."""

    def get_alg(self, name):
        """The algorithm, without a word about it."""
        return self.algorithms[name]


class TestIssuer:
    """Answers on a port of its own until it is closed. What it says can be changed."""

    __test__ = False

    def __init__(self) -> None:
        issuer = self
        self.asked: list[str] = []
        self.keys = list(KEYS.values())
        self.status = 200
        self.extra: dict[str, object] = {}
        self.body: bytes | None = None

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                issuer.asked.append(self.path)
                body = issuer.body or json.dumps(issuer.document(self.path)).encode()
                self.send_response(issuer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/realms/work"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def document(self, path: str) -> dict[str, object]:
        """What is there."""
        if path.endswith("/.well-known/openid-configuration"):
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **self.extra}
        return dict(KeySet(self.keys).as_dict(private=False))

    def token(self, clock, key=None, alg="RS256", header=None, **claims) -> str:
        """A token that is good for an hour; *claims* are added, None removes one."""
        now = int(clock().timestamp())
        said = {"iss": self.url, "aud": "discreet", "sub": "ann", "iat": now, "exp": now + 3600} | claims
        key = key or KEYS[alg]
        head = {"alg": alg} | ({"kid": key.kid} if key.kid else {}) | (header or {})
        said = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(head, said, key, registry=Everything(strict_check_header=False))

    def close(self) -> None:
        """Be away."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
