"""What the service is made of, as its composition root hands it over. Clocks and secrets are only here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from discreet.budget.manager import BudgetManager
    from discreet.catalog.model import Catalog
    from discreet.service.auth.identity import Identity
    from discreet.service.observability.logging import Log
    from discreet.service.observability.traces import Tracer
    from discreet.service.settings import Settings
    from discreet.warehouse import Warehouse


class Authenticator(Protocol):
    """Tells who asks; see `discreet.service.auth.api_keys.Authenticator`."""

    def cached(self, header: str | None) -> Identity | None:
        """Whose header it is, from memory alone; None if memory does not know.

        Raises:
            Unauthorized: nobody's.
        """
        ...

    def authenticate(self, header: str | None) -> Identity:
        """Whose header it is; may wait for the store or an issuer of tokens.

        Raises:
            Unauthorized: nobody's.
        """
        ...


class Grants(Protocol):
    """Tells who may ask about what; see `discreet.service.auth.grants.Grants`."""

    def cached(self, account: str) -> Catalog | None:
        """What *account* may ask about, from memory alone; None if memory does not know."""
        ...

    def catalog_for(self, account: str) -> Catalog:
        """What *account* may ask about: the same object as long as nothing changes. May wait for the store."""
        ...


class Metrics(Protocol):
    """Counts what happens; see `discreet.service.observability.metrics.Metrics`."""

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class Parts:
    """All that the service needs; `discreet.service.server` opens it.

    Args:
        manager: the budgets.
        warehouse: all datasets and their engines; nobody is shown more of them than `grants` says.
        keyring: tells who asks.
        grants: tells who may ask about what.
        registry: where keys and grants are kept, from memory; see `discreet.service.auth.records.RecordCache`.
        settings: what the service runs with.
        secret: at least 32 random bytes, from which keys are derived for noise, for the names of answers and for
            fingerprints of the data. Whoever holds it can remove the noise.
        clock: the time with its zone.
        monotonic: seconds that only rise, for rates and durations.
        pause: waits so many seconds, in the event loop.
        ids: makes names for requests, unique for ever: 1 to 200 letters, digits and -_.
        random: gives so many random bytes of the operating system.
        log: where events go.
        metrics: counts events.
        tracer: where spans go.
        upkeep: see `discreet.service.maintenance`.
        peers: other data centres, or None if there are none; see `discreet.service.peers.sync`.
    """

    manager: BudgetManager
    warehouse: Warehouse
    keyring: Authenticator
    grants: Grants
    registry: Any
    settings: Settings
    secret: bytes
    clock: Callable[[], datetime]
    monotonic: Callable[[], float]
    pause: Callable[[float], Awaitable[None]]
    ids: Callable[[], str]
    random: Callable[[int], bytes]
    log: Log
    metrics: Metrics
    tracer: Tracer
    upkeep: Any = None
    peers: Any = None

    def __repr__(self) -> str:
        return "Parts(...)"
