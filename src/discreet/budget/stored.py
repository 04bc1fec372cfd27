"""A stored account as the budget that one query is charged to."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from discreet.budget.memory import Hold
from discreet.budget.model import InFlight, Replay, Settled

if TYPE_CHECKING:
    from discreet.budget.manager import BudgetManager
    from discreet.budget.model import Fingerprint
    from discreet.values import Cost

StoredAnswer: TypeAlias = Settled | Replay | InFlight


class StoredBudget:
    """Charges one query to an account and its parents. Its methods raise what those of `BudgetManager` raise.

    Args:
        manager: of the accounts.
        account: that is charged.
        release_key: names the answer.
        key: the caller's idempotency key, or None.
        digest: of the request that came with the key.

    Attributes:
        reservation: of the account, once there is one.
        forfeited: True once the reservation was forfeited.
    """

    def __init__(
        self, manager: BudgetManager, account: str, release_key: bytes, key: str | None = None, digest: bytes = b""
    ) -> None:
        self._manager, self._account, self._release_key = manager, account, release_key
        self._key, self._digest = key, digest
        self.reservation: str | None = None
        self.forfeited = False

    def reserve(self, cost: Cost) -> Hold | StoredAnswer:
        """Hold *cost*, or return the stored answer, or the reservation with the same idempotency key."""
        admitted = self._manager.reserve(self._account, self._release_key, cost, self._key, self._digest)
        if isinstance(admitted, Replay | InFlight):
            return admitted
        self.reservation = admitted.id
        return Hold(cost, admitted.id)

    def start(self, hold: Hold) -> None:
        """Record that the data will be read now."""
        self._manager.start(hold.id)

    def settle(self, hold: Hold, cost: Cost, result: bytes, fingerprint: Fingerprint | None = None) -> StoredAnswer:
        """Charge *cost* and store *result*, or return the answer that was stored meanwhile."""
        return self._manager.settle(hold.id, cost, result, fingerprint)

    def void(self, hold: Hold) -> None:
        """Free all that was held."""
        self._manager.void(hold.id)

    def forfeit(self, hold: Hold) -> None:
        """Charge all that was held; it pays for the same query again."""
        self.forfeited = True  # even if the store fails now: the lease forfeits it then
        self._manager.forfeit(hold.id)
