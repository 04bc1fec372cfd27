"""The two routes for other data centres, opened by their shared key and by nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from discreet.errors import InputError
from discreet.service.auth.gate import read_json, run_in_thread
from discreet.service.middleware import context_of
from discreet.wire.peers import BODY_MOST_BYTES, Requests, Transfers
from discreet.wire.problems import read_body

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from starlette.requests import Request

    from discreet.service.peers.sync import Peers


def peer_routes(peers: Peers) -> list[Route]:
    """Return the routes that answer other data centres; they are not part of the documented API."""

    def route(path: str, kind: type[Any], handle: Callable[[Any], Any]) -> Route:
        async def answer(request: Request) -> Response:
            peers.authenticate(request.headers.get("authorization"))
            context_of(request.scope).actor = "peer"
            if request.scope["query_string"]:
                raise InputError("there are no parameters here")
            message = read_body(kind, await read_json(request, BODY_MOST_BYTES))
            reply = await run_in_thread(handle, message)
            return Response(reply.model_dump_json(), media_type="application/json")

        return Route(path, answer, methods=["POST"])

    return [
        route("/v1/peer/requests", Requests, peers.requests),
        route("/v1/peer/transfers", Transfers, peers.transfers),
    ]
