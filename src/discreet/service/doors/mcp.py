"""The tools for agents over HTTP: streamable HTTP of the Model Context Protocol, without sessions.

A request is authorized like one of the API. The tools then send requests to the API of the same process with the same
key, so that an agent can do what its account can, and is limited, charged and logged like any client. No worker keeps
anything between requests: any worker of any replica can answer the next one.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast

import httpx
from starlette.applications import Starlette
from starlette.requests import Request as HTTPRequest
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from discreet.client.errors import error_of
from discreet.client.retries import HttpReply, HttpRequest
from discreet.errors import InputError, InvariantViolated, how_to_install
from discreet.service.middleware import Gate, context_of, read_stream
from discreet.service.settings import Mcp

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from discreet.mcp.server import Call

PATH = "/mcp"


class AgentDoor:
    """The ASGI application of the tools.

    Args:
        key: 32 bytes that encrypt the state that a client holds while a person is asked; equal in all workers.

    Raises:
        InputError: the SDK of the protocol is not installed.
    """

    def __init__(self, gate: Gate, settings: Mcp, key: bytes) -> None:
        try:
            from mcp.server.mcpserver import RequestStateSecurity
            from mcp.server.transport_security import TransportSecuritySettings

            from discreet.mcp.server import AgentServer
        except ImportError:
            raise InputError(f"the section mcp needs the SDK of the protocol; {how_to_install('mcp')}") from None
        self._gate = gate

        def actor(context: ServerRequestContext[Any, HTTPRequest]) -> str | None:
            return None if context.request is None else context_of(context.request.scope).actor

        # The state belongs to the caller: another account cannot use the consent that was given to this one.
        state = RequestStateSecurity(keys=[key], bind_principal=actor)
        self._server = AgentServer(_send, settings.max_unasked_share, state)
        self._server.streamable_http_app(
            json_response=True,
            stateless_http=True,
            max_request_body_size=gate.max_body_bytes,
            # A page in a browser that was led here by a forged name has no key to send.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )

    @property
    def route(self) -> Route:
        """The route; there are no streams to GET and no sessions to DELETE."""
        return Route(PATH, self, methods=["POST"])

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Serve requests until the context ends."""
        async with self._server.session_manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a holder of an analyst's key.

        Raises:
            DiscreetError: the errors of `Gate.authorize` and `read_stream`.
        """
        request = HTTPRequest(scope, receive, send)
        await self._gate.authorize(request, "analyst")
        # Here, because the SDK answers and logs a client that leaves as a failure of the server.
        body = await read_stream(request, self._gate.max_body_bytes)
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return messages.pop() if messages else await receive()

        await self._server.session_manager.handle_request(scope, receive_again, send)


async def _send(call: Call, request: HttpRequest) -> HttpReply:
    """Send a request of a tool to the API of this process, with the key of the tool's caller."""
    outer = cast("HTTPRequest", call.request_context.request)
    transport = httpx.ASGITransport(outer.app, raise_app_exceptions=False, client=outer.scope["client"])
    headers = {**request.headers, "Authorization": outer.headers["authorization"]}
    url = httpx.URL(f"http://discreet{request.path}", params=request.parameters)
    sent = httpx.Request(request.method, url, headers=headers, content=request.body or b"")
    response = await transport.handle_async_request(sent)
    reply = HttpReply(response.status_code, dict(response.headers), await response.aread())
    if reply.status == 200:
        return reply
    problem = reply.problem
    if problem is None:
        raise InvariantViolated("the API answers with 200 or with a problem")
    raise error_of(problem, reply.retry_after)
