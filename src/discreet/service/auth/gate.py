"""Authentication, roles, rate limits, and limits of concurrency and of body sizes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import anyio
from starlette.requests import ClientDisconnect, Request

from discreet.service.auth.api_keys import Authenticator
from discreet.service.auth.identity import Identity, Needed
from discreet.service.middleware import context_of
from discreet.service.observability.logging import Denied, Log
from discreet.service.problems import (
    ClientDisconnected,
    KeyRefused,
    RoleRefused,
    TooLarge,
    TooManyRequests,
    UnsupportedMediaType,
)
from discreet.service.settings import ServiceSettings

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

MAX_CALLERS = 10_000
"""The maximum of callers with a stored rate; the least active ones are evicted first."""


class RateLimiter:
    """Limit the requests of each caller by a token bucket that fills within a minute.

    Args:
        per_minute: tokens in a full bucket; 0 for no limit.
        clock: returns monotonic seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._max = float(per_minute)
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens at a time, and that time

    def take(self, name: str) -> None:
        """Take a token of the caller *name*.

        Raises:
            TooManyRequests: the bucket is empty; the error holds the seconds until the next token.
        """
        if not self._max:
            return
        now = self._clock()
        tokens = self._tokens(name, now)
        if tokens < 1:
            raise TooManyRequests((1 - tokens) * 60 / self._max)
        if name not in self._buckets and len(self._buckets) >= MAX_CALLERS:
            # Keep the half with the emptiest buckets: evicting a full one changes nothing.
            fullest = sorted(self._buckets, key=lambda name: self._tokens(name, now))
            self._buckets = {name: self._buckets[name] for name in fullest[: MAX_CALLERS // 2]}
        self._buckets[name] = tokens - 1, now

    def _tokens(self, name: str, now: float) -> float:
        tokens, counted = self._buckets.get(name, (self._max, now))
        return min(self._max, tokens + (now - counted) * self._max / 60)


class ConcurrencyLimit:
    """Limit concurrent queries, and the queries of one account to half of that limit.

    Args:
        most: the maximum of concurrent queries of all accounts, at least 1.
    """

    def __init__(self, most: int) -> None:
        self._max = most
        self._share = max(most // 2, 1)
        self._taken: dict[str, int] = {}
        self.threads = anyio.CapacityLimiter(most)

    @contextlib.contextmanager
    def slot(self, account: str) -> Iterator[None]:
        """Occupy a slot of *account* until the context ends; raise `TooManyRequests` if no slot is free."""
        mine = self._taken.get(account, 0)
        if mine >= self._share or sum(self._taken.values()) >= self._max:
            raise TooManyRequests(1)
        self._taken[account] = mine + 1
        try:
            yield
        finally:
            self._taken[account] -= 1
            if not self._taken[account]:
                del self._taken[account]


class Gate:
    """Authenticate, authorize and limit requests."""

    def __init__(
        self, authenticator: Authenticator, settings: ServiceSettings, monotonic: Callable[[], float], log: Log
    ) -> None:
        self._authenticator = authenticator
        self._log = log
        self._rates = RateLimiter(settings.requests_per_minute, monotonic)
        self.slots = ConcurrencyLimit(settings.max_concurrent_queries)
        self.max_body_bytes = settings.max_body_bytes

    async def authorize(self, request: Request, role: Needed) -> Identity:
        """Return the identity of the caller that sent *request*.

        Raises:
            KeyRefused: the request has no valid key or token.
            RoleRefused: the caller does not have *role*.
            TooManyRequests: the caller sends requests too fast.
            StoreUnavailable: keys cannot be read.
        """
        identity = await self.identify(request, request.headers.get("authorization"))
        check_role(identity, role)
        return identity

    async def identify(self, request: Request, header: str | None) -> Identity:
        """Return the identity in *header*, the value of a header Authorization; errors as in `authorize`."""
        try:
            identity = self._authenticator.cached(header)
            if identity is None:
                identity = await run_in_thread(self._authenticator.authenticate, header)
        except KeyRefused as error:
            self.deny(request, error)
            raise
        return self.admit(request, identity)

    def admit(self, request: Request, caller: Identity) -> Identity:
        """Return *caller*, the sender of *request*; raise `TooManyRequests` if its rate exceeds the limit."""
        context = context_of(request.scope)
        context.actor = caller.actor
        context.account = caller.account
        self._rates.take(caller.actor)
        return caller

    def deny(self, request: Request, error: KeyRefused) -> None:
        """Log that *request* was denied because of *error*."""
        context = context_of(request.scope)
        self._log.event(Denied(context.request_id, error.reason, error.key_id, context.client))


def check_role(caller: Identity, role: Needed) -> None:
    """Raise `RoleRefused` unless *caller* has *role*."""
    if role != "any" and role not in caller.roles:
        raise RoleRefused(role)


async def run_in_thread(
    work: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Result:
    """Run *work* in a thread, where it may block, and return its result."""
    return await anyio.to_thread.run_sync(lambda: work(*arguments, **named))


async def run_while_connected(
    request: Request, work: Callable[[Callable[[], bool]], Result], threads: anyio.CapacityLimiter
) -> Result:
    """Run *work* in a thread and return its result; *work* can check whether the client has disconnected.

    Args:
        work: its argument is a function that returns True once the connection is closed.
    """
    gone = threading.Event()
    failed: list[Exception] = []
    results: list[Result] = []

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            results.append(await anyio.to_thread.run_sync(work, gone.is_set, limiter=threads))
        except Exception as error:  # noqa: BLE001 - raised outside of the task group, which would wrap it
            failed.append(error)
        tasks.cancel_scope.cancel()
    if failed:
        raise failed[0]
    return results[0]


async def read_bytes(request: Request, media_type: str, most: int) -> bytes:
    """Return the body of a request.

    Args:
        most: the maximum size in bytes; a longer body is refused before it is read completely.

    Raises:
        UnsupportedMediaType: the content type is not *media_type*, or the content is encoded.
        TooLarge: the body is longer than *most*.
        ClientDisconnected: the client disconnected before the end of the body.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != media_type or request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType(media_type)
    return await read_stream(request, most)


async def read_stream(request: Request, most: int) -> bytes:
    """Return the body of a request of any media type; errors as in `read_bytes`."""
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and (len(announced) > len(str(most)) or int(announced) > most):
        raise TooLarge(most)
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise TooLarge(most)
    except ClientDisconnect:
        raise ClientDisconnected from None
    return bytes(body)
