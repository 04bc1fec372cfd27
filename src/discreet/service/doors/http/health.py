"""Liveness (/healthz), readiness (/readyz) and metrics (/metrics), without authentication.

The response holds only names of checks and fixed words: nothing about data, accounts or addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from starlette.responses import Response

from discreet.budget.stores.store import BudgetStore
from discreet.catalog.model import Catalog
from discreet.errors import DiscreetError
from discreet.service.doors.http.operation import Operation
from discreet.service.maintenance import Maintenance
from discreet.service.peers import Peers
from discreet.wire.administration import Alive, Readiness

Word: TypeAlias = Literal["ok", "none", "stale", "unavailable", "apart", "empty"]
"""The outcome of a check: passed, not configured, too old, failed, clocks differ, no datasets."""

MAINTENANCE_SECONDS = 35.0
"""The maximum age of the last successful maintenance and of the last checkpoint: three failed runs."""


class HealthAPI:
    """Liveness and readiness."""

    def __init__(
        self, catalog: Callable[[], Catalog], store: BudgetStore, maintenance: Maintenance, peers: Peers | None
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._maintenance = maintenance
        self._peers = peers

    @Operation("GET", "/healthz", role=None, answer=Alive)
    async def alive(self) -> Alive:
        """Respond while the process is alive; restart it if there is no response."""
        return Alive(status="ok")

    @Operation("GET", "/readyz", role=None, answer=Readiness, other_answers={503: Readiness})
    def ready(self) -> Response:
        """Return whether the service can answer queries; with status 503, route requests to another instance."""
        checks = self.checks()
        fine = all(word in {"ok", "none"} for word in checks.values())
        answer = Readiness(status="ready" if fine else "unready", checks=dict(checks))
        return Response(answer.model_dump_json(), 200 if fine else 503, media_type="application/json")

    def checks(self) -> dict[str, Word]:
        """Return the outcome of each check by name, each after those it depends on; may wait for the store."""
        maintenance = self._maintenance
        peers = self._peers
        checkpoints: Word = "none"
        if maintenance.has_checkpoints:
            checkpoints = "ok" if maintenance.checkpoint_seconds <= MAINTENANCE_SECONDS else "stale"
        return {
            "catalog": "ok" if self._catalog().datasets else "empty",
            "store": self._check_store(),
            "maintenance": "ok" if maintenance.age_seconds <= MAINTENANCE_SECONDS else "stale",
            "checkpoints": checkpoints,
            "clock": "ok" if maintenance.clocks_agree else "apart",
            "shares": "none" if peers is None else "unavailable" if peers.behind else "ok",
        }

    def _check_store(self) -> Word:
        try:
            self._store.records_version()
        except DiscreetError:
            return "unavailable"
        return "ok" if self._store.writable else "unavailable"  # until maintenance can write again
