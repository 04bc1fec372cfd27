"""Send one request over HTTP, again as often as is safe and useful, until a deadline."""

from __future__ import annotations

import re
import ssl
import sys
import warnings
from typing import TYPE_CHECKING

import httpx

from discreet._version import __version__
from discreet.client.client import is_local
from discreet.client.errors import ServiceError, error_of
from discreet.client.retries import Reply, Silence, pause_before_next
from discreet.errors import InputError

if TYPE_CHECKING:
    from discreet.client.retries import Request, Surroundings


USER_AGENT = f"discreet/{__version__} python/{sys.version_info.major}.{sys.version_info.minor}"

_CONNECT_SECONDS = 10.0
_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+", re.IGNORECASE)  # what international names become, and numbers


class Exchange:
    """Sends requests to a service.

    Args:
        url: of the service.
        key: sent with every request, and shown nowhere.
        timeout: seconds for a request with all attempts and pauses.
        retries: how many failures of a request are forgiven.
        surroundings: what it needs of the world.
        transport: how to get there; by default over the network, with certificates verified.

    Raises:
        InputError: the URL is none, or a number is out of range.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout: float,
        retries: int,
        surroundings: Surroundings,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        parts = check_url(url)
        if not 0 < timeout <= 86_400:
            raise InputError("the timeout must be above 0 and at most 86,400 seconds")
        if not 0 <= retries <= 100:
            raise InputError("retries must be from 0 to 100")
        if parts.scheme == "http" and not is_local(parts.host):
            warnings.warn(f"the key travels in clear to {parts.host}; use https", stacklevel=4)
        self.url = url.rstrip("/")
        self._timeout, self._retries, self._surroundings = timeout, retries, surroundings
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}", "User-Agent": USER_AGENT},
            transport=transport,
            # A proxy of the environment sees what goes through it, unless that is encrypted.
            trust_env=parts.scheme == "https",
            follow_redirects=False,
        )

    def send(self, request: Request) -> Reply:
        """The answer to *request*, if it is what was asked for.

        Raises:
            DiscreetError: it is not; see `discreet.client.errors`.
        """
        world = self._surroundings
        deadline = world.clock() + self._timeout
        failures = waits = 0
        while True:
            reply = self._attempt(request, deadline)
            attempt = reply.attempt
            failures, waits = failures + attempt.failed, waits + attempt.waits
            pause = pause_before_next(attempt, failures, waits, self._retries, world.chance())
            if pause is None or world.clock() + pause >= deadline:
                return self._judged(reply)
            world.sleep(pause)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _attempt(self, request: Request, deadline: float) -> Reply | Silence:
        left = max(deadline - self._surroundings.clock(), 0.001)
        try:
            with self._http.stream(
                request.method,
                request.path,
                content=request.body,
                headers=dict(request.headers),
                params=dict(request.parameters),
                timeout=httpx.Timeout(left, connect=min(left, _CONNECT_SECONDS)),
            ) as response:
                parts = []
                for part in response.iter_bytes():
                    parts.append(part)
                    if self._surroundings.clock() >= deadline:
                        return self._late
                return Reply(response.status_code, dict(response.headers), b"".join(parts))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return self._silence(error)

    def _silence(self, error: Exception) -> Silence:
        """Why no answer came; httpx's own words would show what was sent."""
        if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout | httpx.PoolTimeout):
            return self._late
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return Silence(f"the certificate of {self.url} is not trusted on this machine", final=True)
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
            return Silence(f"{self.url} cannot be reached", final=False)
        return Silence(f"the connection to {self.url} broke before an answer came", final=False)

    @property
    def _late(self) -> Silence:
        return Silence(f"no answer came from {self.url} within {self._timeout:g} seconds", final=True)

    def _judged(self, reply: Reply | Silence) -> Reply:
        if isinstance(reply, Silence):
            raise ServiceError(reply.sentence)
        if reply.status == 200:
            return reply
        problem = reply.problem
        if problem is None:
            sentence = f"{self.url} answered with HTTP status {reply.status}, as no service of Discreet does"
            raise ServiceError(sentence, reply.status)
        raise error_of(problem, reply.retry_after)


def check_url(url: str) -> httpx.URL:
    """The parts of the URL of a service.

    Raises:
        InputError: it is none.
    """
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, TypeError):
        parts = httpx.URL("")
    place = _HOST.fullmatch(parts.raw_host.decode()) and (parts.port is None or 0 < parts.port < 65_536)
    if parts.scheme not in {"http", "https"} or not place or parts.userinfo or parts.query or parts.fragment:
        raise InputError("a service is named by a URL such as https://discreet.example.org")
    return parts
