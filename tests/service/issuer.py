"""An OpenID issuer for tests: a server that publishes its keys, signs tokens, and logs one user in."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

KEYS = {
    "RS256": RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"}),
    "ES256": ECKey.generate_key("P-256", {"kid": "ec", "use": "sig"}),
    "EdDSA": OKPKey.generate_key("Ed25519", {"kid": "ed", "use": "sig"}),
}

OIDC = '[oidc]\nissuer = "{url}"\naudience = "discreet"\naccount_claim = "account"\nclient_id = "page"\n'
"""The settings of a service with an issuer, whose login page its own leads to."""

_ENDPOINTS = {"authorization": "authorize", "token": "token"}


class Everything(JWSRegistry):
    """Signs with any algorithm and header, including those that must be refused."""

    def check_header(self, header):
        """Accept any key."""

    def get_alg(self, name):
        """Return the algorithm without its warning."""
        return self.algorithms[name]


class TestIssuer:
    """Listens on a free port until it is closed; its responses can be changed."""

    __test__ = False

    def __init__(self, host: str = "127.0.0.1") -> None:
        issuer = self
        self.asked: list[str] = []
        self.keys = list(KEYS.values())
        self.status = 200
        self.extra: dict[str, object] = {}
        self.body: bytes | None = None
        self.secret: str | None = None
        self.clock = lambda: datetime.now(UTC)
        self.claims: dict[str, object] = {}
        self._codes: dict[str, dict[str, str]] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                issuer.asked.append(self.path)
                if urlsplit(self.path).path.endswith("/authorize"):
                    self.send_response(302)
                    self.send_header("Location", issuer.authorize(dict(parse_qsl(urlsplit(self.path).query))))
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                else:
                    self._answer(issuer.status, issuer.body or json.dumps(issuer.document(self.path)).encode())

            def do_POST(self):
                form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
                granted = issuer.grant(form, self.headers.get("Authorization"))
                refused = {"error": "invalid_grant"}
                self._answer(400 if granted is None else 200, json.dumps(granted or refused).encode())

            def _answer(self, status, body):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://{host}:{self._server.server_port}/realms/work"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def document(self, path: str) -> dict[str, object]:
        """Answer a GET request."""
        if path.endswith("/.well-known/openid-configuration"):
            endpoints = {f"{name}_endpoint": f"{self.url}/{path}" for name, path in _ENDPOINTS.items()}
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **endpoints, **self.extra}
        return dict(KeySet(self.keys).as_dict(private=False))

    def authorize(self, asked: dict[str, str]) -> str:
        """Return where the browser goes once its user has logged in, which happens at once."""
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe()
        self._codes[code] = asked
        back = {"code": code, "state": asked["state"], "iss": self.url}
        return f"{asked['redirect_uri']}?{urlencode(back)}"

    def grant(self, form: dict[str, str], authorization: str | None) -> dict[str, str] | None:
        """Return the tokens for a code that was not used before, or None for what RFC 6749 and RFC 7636 refuse."""
        asked = self._codes.pop(form.get("code", ""), {})
        verifier = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        fits = base64.urlsafe_b64encode(verifier).decode().rstrip("=") == asked.get("code_challenge")
        if self.secret is None:
            known = form.get("client_id") == asked.get("client_id")
        else:
            pair = f"{asked.get('client_id')}:{self.secret}".encode()
            known = authorization == f"Basic {base64.b64encode(pair).decode()}"
        if not (fits and known and form.get("redirect_uri") == asked.get("redirect_uri")):
            return None
        claims = {"aud": asked["client_id"], "nonce": asked["nonce"]} | self.claims
        return {"token_type": "Bearer", "access_token": "opaque", "id_token": self.token(self.clock, **claims)}

    def token(self, clock, key=None, alg="RS256", header=None, **claims) -> str:
        """Return a token valid for an hour; *claims* are added, None removes one."""
        now = int(clock().timestamp())
        payload = {"iss": self.url, "aud": "discreet", "sub": "ann", "iat": now, "exp": now + 3600} | claims
        key = key or KEYS[alg]
        head = {"alg": alg} | ({"kid": key.kid} if key.kid else {}) | (header or {})
        payload = {name: value for name, value in payload.items() if value is not None}
        return jwt.encode(head, payload, key, registry=Everything(strict_check_header=False))

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
