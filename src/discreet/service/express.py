"""The shortest way through the service: a question that was answered before, wholly from memory.

It takes a request only if all that its answer depends on is in memory and fresh: who asks, what she may see, the
answer, the version of the data, how her account stands. It decides nothing: whatever is not so plain, and every
refusal, is left to the usual way (`routes`), which gets the request as if nobody had looked at it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.errors import DiscreetError
from discreet.service.negotiation import wanted_form
from discreet.service.observability.events import Requested, on_grid

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from discreet.service.auth.gate import Gate
    from discreet.service.parts import Parts
    from discreet.service.replays import Fields, Kept, Replays, Standings, UsedKeys

PATH = "/v1/query"
_PLAIN = {b"application/json", b"application/json; charset=utf-8"}


class Express:
    """Answers from memory, or not at all.

    Args:
        parts: of the service.
        gate: where requests come in the usual way.
        replays: the answers.
        standings: how accounts stand.
        keys: idempotency keys that were used.
    """

    def __init__(self, parts: Parts, gate: Gate, replays: Replays, standings: Standings, keys: UsedKeys) -> None:
        self._parts, self._gate = parts, gate
        self._replays, self._standings, self._keys = replays, standings, keys
        self._most = parts.settings.service.body_most_bytes
        self._grid_ms = parts.settings.service.release_grid_ms

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Answer a request.

        Returns:
            None if it was answered; otherwise where the usual way receives it from, from its beginning.
        """
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST" or scope["query_string"]:
            return receive
        began, headers = self._parts.monotonic(), dict(scope["headers"])
        if len(headers) < len(scope["headers"]) or headers.get(b"content-type") not in _PLAIN:
            return receive  # a header came twice
        if b"content-encoding" in headers or not 0 < _length(headers) <= self._most:
            return receive
        message = await receive()
        if message["type"] != "http.request" or message.get("more_body", False):
            return _again(message, receive)
        try:
            found = self._found(headers, message["body"])
        except DiscreetError:  # nobody, too fast, no such form: the usual way says so
            found = None
        if found is None:
            return _again(message, receive)
        await self._send(send, began, *found)
        return None

    def _found(self, headers: dict[bytes, bytes], body: bytes) -> tuple[Kept, Fields, str, str] | None:
        """The answer, how the account stands, the actor and the account; None if any of it is not in memory."""
        authorization, accept, key = (
            None if name not in headers else headers[name].decode("latin-1")
            for name in (b"authorization", b"accept", b"idempotency-key")
        )
        asker = self._parts.keyring.cached(authorization)
        if asker is None or asker.account is None or "analyst" not in asker.roles:
            return None
        catalog, standing = self._parts.grants.cached(asker.account), self._standings.recall(asker.account)
        kept = self._replays.recall((asker.account, body, wanted_form(accept)), catalog)
        if kept is None or standing is None or not self._keys.allow(asker.account, key, body):
            return None
        if not self._keys.fits(asker.account, key, kept.id):
            return None
        self._gate.rates.take(asker.actor)
        self._keys.note(asker.account, key, body, kept.id)
        return kept, standing, asker.actor, asker.account

    async def _send(self, send: Send, began: float, kept: Kept, standing: Fields, actor: str, account: str) -> None:
        request_id = self._parts.ids()
        headers = [*kept.headers, *standing, (b"x-request-id", request_id.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": kept.body})
        took = on_grid(self._parts.monotonic() - began, self._grid_ms)
        self._parts.log.event(
            Requested(request_id, f"POST {PATH}", 200, took, actor, account, None, kept.id, kept.mechanism)
        )


def _length(headers: dict[bytes, bytes]) -> int:
    """How long the body is by its own word; 0 if it does not say."""
    announced = headers.get(b"content-length", b"0")
    return int(announced) if announced.isdigit() else 0


def _again(message: Message, receive: Receive) -> Receive:
    """A way to receive *message* once more, and then what comes."""
    first = [message]

    async def received() -> Message:
        return first.pop() if first else await receive()

    return received
