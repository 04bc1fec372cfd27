"""Send requests over HTTP, with retries until a deadline."""

from __future__ import annotations

import re
import ssl
import sys
import warnings

import httpx

from discreet._version import __version__
from discreet.client.errors import ServiceError, error_of
from discreet.client.retries import HttpReply, HttpRequest, NoReply, RetryRuntime, pause_before_next
from discreet.errors import InputError
from discreet.secrets import is_local

USER_AGENT = f"discreet/{__version__} python/{sys.version_info.major}.{sys.version_info.minor}"

_CONNECT_SECONDS = 10.0
_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+", re.IGNORECASE)  # also internationalized names, and IP addresses


class Transport:
    """Sends requests to a service.

    Args:
        key: sent with every request, and never in a message.
        timeout: seconds for a request with all attempts and pauses.
        retries: number of retries after failed attempts of a request.
        runtime: clock, sleep and randomness.
        transport: a transport of httpx; by default the network, with certificates verified.

    Raises:
        InputError: the URL is malformed, or a number is out of range.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout: float,
        retries: int,
        runtime: RetryRuntime,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        parts = check_url(url)
        if not 0 < timeout <= 86_400:
            raise InputError("the timeout must be above 0 and at most 86,400 seconds")
        if not 0 <= retries <= 100:
            raise InputError("retries must be from 0 to 100")
        if parts.scheme == "http" and not is_local(parts.host):
            warnings.warn(f"the key is sent unencrypted to {parts.host}; use https", stacklevel=4)
        self.url = url.rstrip("/")
        self._timeout = timeout
        self._retries = retries
        self._runtime = runtime
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}", "User-Agent": USER_AGENT},
            transport=transport,
            # A proxy from the environment could read unencrypted requests.
            trust_env=parts.scheme == "https",
            follow_redirects=False,
        )

    def send(self, request: HttpRequest) -> HttpReply:
        """Send *request*, with retries, and return a reply with status 200, or 204 for DELETE.

        Raises:
            DiscreetError: there is no such reply; the error of its problem is raised, see `discreet.client.errors`.
        """
        runtime = self._runtime
        deadline = runtime.clock() + self._timeout
        failures = waits = 0
        while True:
            reply = self._attempt(request, deadline)
            failures = failures + reply.failed
            waits = waits + reply.waits
            pause = pause_before_next(reply, failures, waits, self._retries, runtime.chance())
            if pause is None or runtime.clock() + pause >= deadline:
                break
            runtime.sleep(pause)
        if isinstance(reply, NoReply):
            raise ServiceError(reply.reason)
        if reply.status == (204 if request.method == "DELETE" else 200):
            return reply
        problem = reply.problem
        if problem is None:
            reason = f"{self.url} replied with HTTP status {reply.status} and is not a Discreet service"
            raise ServiceError(reason, reply.status)
        raise error_of(problem, reply.retry_after)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _attempt(self, request: HttpRequest, deadline: float) -> HttpReply | NoReply:
        left = max(deadline - self._runtime.clock(), 0.001)
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
                    # httpx limits the pause before each part, not the whole reply
                    if self._runtime.clock() >= deadline:
                        return self._timed_out
                return HttpReply(response.status_code, dict(response.headers), b"".join(parts))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return self._no_reply(error)

    def _no_reply(self, error: Exception) -> NoReply:
        """Return the reason why there is no reply, without httpx's message, which could show parts of the request."""
        if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout | httpx.PoolTimeout):
            return self._timed_out
        # httpx wraps the error of the certificate several times, and has no class of its own for it
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return NoReply(f"the certificate of {self.url} is not trusted on this machine", final=True)
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
            return NoReply(f"{self.url} cannot be reached", final=False)
        return NoReply(f"the connection to {self.url} broke before a reply came", final=False)

    @property
    def _timed_out(self) -> NoReply:
        return NoReply(f"no reply came from {self.url} within {self._timeout:g} seconds", final=True)


def check_url(url: str) -> httpx.URL:
    """Parse the URL of a service, or raise `InputError`."""
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, TypeError):
        parts = httpx.URL("")
    place = _HOST.fullmatch(parts.raw_host.decode()) and (parts.port is None or 0 < parts.port < 65_536)
    if parts.scheme not in {"http", "https"} or not place or parts.userinfo or parts.query or parts.fragment:
        raise InputError("the URL of a service looks like https://discreet.example.org")
    return parts
