"""The budget manager: many people, many machines, nobody overspends.

    admission = manager.reserve(account, release_key, worst)     # or Replay: answer it, nothing else happens
    manager.start(admission.id)                                  # from here the data may be asked
    ...                                                          # the engine, the noise
    settled = manager.settle(admission.id, actual, result)       # answer settled.release.result, not result

The paper's three calls (Rogers et al. 2021, section 4.2): checkBudget is `check`, updateBudget is `reserve` with
`settle`, getBudget is `get`. Checking, running and updating, one after the other, lets queries race past each other;
here the worst case is reserved before, and pays for what was returned after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.budget.errors import BudgetRefused, LedgerBroken, StoreBehind, Suspended
from discreet.budget.model import Claim, Refusal, Suspension
from discreet.budget.report import report

if TYPE_CHECKING:
    from collections.abc import Callable

    from discreet.budget.checkpoints import Checkpointer
    from discreet.budget.ledger_replay import Verified
    from discreet.budget.model import (
        Fingerprint,
        InFlight,
        Replay,
        Reservation,
        Settled,
    )
    from discreet.budget.report import Report
    from discreet.budget.stores.store import BudgetStore
    from discreet.values import Cost


class BudgetManager:
    """Budgets in a store.

    Methods raise `StoreUnavailable` when the store cannot be asked or cannot write: then no answer may leave. Other
    errors are those of the store's method of the same name.

    Args:
        store: where they are.
        ids: makes new names for reservations, unique for ever, such as random 128-bit numbers in hexadecimal.
        lease_ms: how long a reservation lives if nothing happens to it, from 1 to a day; longer than a query may run.
        checkpointer: holds the store against its witness; None if there is no witness.
        computational: True if noise is keyed, so that what is guaranteed rests on cryptography.

    Raises:
        StoreBehind: the store is older than its witness says.
        LedgerBroken: what was witnessed is not what the store holds.
    """

    def __init__(
        self,
        store: BudgetStore,
        ids: Callable[[], str],
        lease_ms: int = 60_000,
        checkpointer: Checkpointer | None = None,
        *,
        computational: bool = False,
    ) -> None:
        if checkpointer is not None:
            checkpointer.check(store)
        self.store, self._ids, self._lease_ms = store, ids, lease_ms
        self._checkpointer, self._computational = checkpointer, computational
        self._behind = False  # its witness, so that it must not serve

    # ---------------------------------------------------------------------------------------------- questions

    def check(self, account: str, worst: Cost) -> Refusal | None:
        """Whether a claim would fit now: advice, which the next moment may prove wrong; it holds nothing.

        A suspension is not looked at: `get` tells of it (`Balance.suspended_until_us`).
        """
        for member in self.store.path(account):
            balance = self.store.balance(member.id)
            left = balance.remaining
            short = (worst.rho > left.rho and worst.rho > 0) or (worst.delta > left.delta and worst.delta > 0)
            if member.enforced and short:
                return Refusal(member.id, worst, left, balance.resets_at_us)
        return None

    def reserve(
        self, account: str, release_key: bytes, worst: Cost, key: str | None = None, digest: bytes = b""
    ) -> Reservation | Replay | InFlight:
        """Hold the worst case on the account and all its parents, or answer from what is stored.

        Args:
            account: who asks.
            release_key: see `Claim`.
            worst: the most that the answer can cost.
            key: the caller's idempotency key.
            digest: of the request that came with it.

        Raises:
            BudgetRefused: an account on the path falls short; nothing was held.
            Suspended: too many runs of the account failed lately.
            KeyReused: the key came with another request before.
            ClockError: a period would begin, and the clock ran ahead.
            UnknownAccount: there is none.
        """
        self._check_whole()
        claim = Claim(self._ids(), account, release_key, worst, key, digest, self._lease_ms)
        admission = self.store.reserve(claim)
        if isinstance(admission, Refusal):
            raise BudgetRefused(admission)
        if isinstance(admission, Suspension):
            raise Suspended(admission.account, admission.until_us)
        return admission

    def start(self, reservation: str) -> Reservation:
        """Say that the data will be asked now: from here on a failure is paid for.

        Raises:
            LeaseLost: the reservation has ended; ask again.
        """
        self._check_whole()
        return self.store.start(reservation)

    def settle(self, reservation: str, actual: Cost, result: bytes, fingerprint: Fingerprint | None = None) -> Settled:
        """Charge what the answer cost, free the rest and keep the answer.

        Args:
            reservation: its name.
            actual: what the answer cost, at most the worst case.
            result: the answer's bytes.
            fingerprint: of what the engine returned, or None if the data has no version.

        Returns:
            the answer to give: the stored one, which is another's if somebody was faster.

        Raises:
            LeaseLost: the reservation was taken; drop the answer.
            DataChanged: the engine returned something else for this version of the data before; drop the answer, and
                forfeit.
        """
        self._check_whole()
        return self.store.settle(reservation, actual, result, fingerprint)

    def void(self, reservation: str) -> None:
        """Give up a reservation whose data was not asked; what it held is free."""
        self.store.void(reservation)

    def forfeit(self, reservation: str) -> None:
        """Give up a run that failed: its worst case stays charged, and pays for a retry of the same release."""
        self.store.forfeit(reservation)

    # ---------------------------------------------------------------------------------------------- accounts

    def get(self, account: str) -> Report:
        """How the account stands."""
        return report(self.store.balance(account), self._computational)

    # ---------------------------------------------------------------------------------------------- upkeep

    def maintain(self) -> int:
        """What has to happen now and then, say every ten seconds: note the time, end dead reservations, seal.

        If the database was put back under us, by a restore or by promoting a replica that lagged, nothing is answered
        from here on until it is what its witness knows again.

        Returns:
            how many reservations were dead.

        Raises:
            StoreBehind: the store lost lines that were witnessed.
            LedgerBroken: it has others in their place.
        """
        try:
            if self._checkpointer is not None:
                self._checkpointer.check(self.store)  # first, so that nothing is added to a ledger that lost lines
            self.store.heartbeat()
            ended = self.store.expire()
            if self._checkpointer is not None:
                self._checkpointer.write(self.store)
        except (StoreBehind, LedgerBroken):
            self._behind = True
            raise
        self._behind = False
        return ended

    def verify(self) -> Verified:
        """Check the ledger, all balances against it, and the store against its witness.

        Raises:
            LedgerBroken: something was changed.
            StoreBehind: lines are missing at the end.
        """
        verified = self.store.verify()
        if self._checkpointer is not None:
            self._checkpointer.check(self.store)
        return verified

    def _check_whole(self) -> None:
        """Raise if the store was last found to be other than its witness says."""
        if self._behind:
            raise StoreBehind("the store is not what its witness knows, so nothing is answered from it")
