"""Whether the process lives (/healthz), and whether it can answer questions (/readyz); nobody needs a key for these.

What is told are names of checks and fixed words: nothing about data, accounts or places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from discreet.errors import DiscreetError
from discreet.service.auth.gate import run_in_thread
from discreet.wire.administration import Alive, Readiness

if TYPE_CHECKING:
    from discreet.service.parts import Parts

Word: TypeAlias = Literal["ok", "none", "stale", "unavailable", "apart", "empty"]
"""How a check went: well; nothing to check; well, but too long ago; not at all; clocks differ; nothing is there."""

UPKEEP_SECONDS = 35.0
"""How long ago the upkeep, and with it the witness, may have succeeded: three times in a row they may fail."""


def checks_of(parts: Parts) -> dict[str, Word]:
    """Every check by name, in the order in which things depend on each other; may wait for the store."""
    upkeep = parts.upkeep
    return {
        "catalog": "ok" if parts.warehouse.catalog.datasets else "empty",
        "store": _store(parts),
        "upkeep": "ok" if upkeep.age_seconds <= UPKEEP_SECONDS else "stale",
        "witness": _witness(parts),
        "clock": "ok" if upkeep.clocks_agree else "apart",
        "shares": "none" if parts.peers is None else "unavailable" if parts.peers.behind else "ok",
    }


def health_router(parts: Parts) -> APIRouter:
    """The two routes."""
    router = APIRouter(tags=["health"])

    @router.get("/healthz", response_model=Alive)
    async def alive() -> Alive:
        """Whether the process lives: if this is not answered, start it anew."""
        return Alive(status="ok")

    @router.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness}})
    async def ready() -> JSONResponse:
        """Whether questions can be answered: if not, send them elsewhere."""
        checks = await run_in_thread(checks_of, parts)
        fine = all(word in {"ok", "none"} for word in checks.values())
        told = Readiness(status="ready" if fine else "unready", checks=dict(checks))
        return JSONResponse(told.model_dump(), 200 if fine else 503)

    return router


def _store(parts: Parts) -> Word:
    try:
        parts.manager.store.records_version()
    except DiscreetError:
        return "unavailable"
    return "ok"


def _witness(parts: Parts) -> Word:
    if not parts.upkeep.witnessed:
        return "none"
    return "ok" if parts.upkeep.sealed_seconds <= UPKEEP_SECONDS else "stale"
