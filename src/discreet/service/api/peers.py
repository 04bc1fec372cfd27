"""The two routes for other data centres; their key opens these and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.requests import Request  # noqa: TC002 - FastAPI reads it
from starlette.responses import Response

from discreet.service.api.query import RawRoute, refuse_parameters
from discreet.service.auth.gate import read_json, run_in_thread
from discreet.service.middleware import context_of
from discreet.wire.peers import BODY_MOST_BYTES, Requests, Transfers
from discreet.wire.problems import read_body

if TYPE_CHECKING:
    from pydantic import BaseModel

    from discreet.service.parts import Parts


def peers_router(parts: Parts) -> APIRouter:
    """Both of them, of a service that has peers."""
    router, peers = APIRouter(route_class=RawRoute), parts.peers

    async def read(request: Request) -> bytes:
        peers.admit(request.headers.get("authorization"))
        context_of(request.scope).actor = "peer"
        refuse_parameters(request, set())
        return await read_json(request, BODY_MOST_BYTES)

    @router.post("/v1/peer/requests", include_in_schema=False)
    async def requests(request: Request) -> Response:
        """Another data centre is short of shares."""
        message = read_body(Requests, await read(request))
        return _json(await run_in_thread(peers.requests, message))

    @router.post("/v1/peer/transfers", include_in_schema=False)
    async def transfers(request: Request) -> Response:
        """Another data centre sends shares and receipts."""
        message = read_body(Transfers, await read(request))
        return _json(await run_in_thread(peers.transfers, message))

    return router


def _json(message: BaseModel) -> Response:
    return Response(message.model_dump_json(), media_type="application/json")
