"""The budget manager: queries reserve, run and settle, and no account is overspent.

    admission = manager.reserve(account, release_key, worst)     # or Replay: return its release, nothing else happens
    manager.start(admission.id)                                  # from here the data may be queried
    ...                                                          # the engine, the noise
    settled = manager.settle(admission.id, actual, result)       # return settled.release.result, not result

The paper's three calls (Rogers et al. 2021, section 4.2): checkBudget is `Balance.admits`, updateBudget is `reserve`
with `settle`, getBudget is `get`. With check, run, update in sequence, concurrent queries pass the check together; here
the worst case is reserved first, and what was returned is paid for afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

from discreet.accounting.bounds import SystemBound, linkedin_system
from discreet.accounting.convert import Guarantee, epsilon_simple, epsilon_tight, guarantee_of
from discreet.budget.errors import BudgetRefused, LedgerBroken, StoreBehind, Suspended
from discreet.budget.memory import Hold
from discreet.budget.model import Claim, InFlight, Refusal, Replay, Settled, Suspension
from discreet.budget.periods import limits_per_window
from discreet.values import Cost, float_above, float_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from discreet.budget.checkpoints import Checkpointer
    from discreet.budget.ledger import Line
    from discreet.budget.ledger_replay import LedgerTotals
    from discreet.budget.model import Account, AdminAction, Balance, Fingerprint, Reservation
    from discreet.budget.stores.store import BudgetStore


class BudgetManager:
    """Reserves, settles, maintains and prunes a store of budgets. For everything else callers use the store.

    Methods raise `StoreUnavailable` when the store cannot be reached or cannot write: then no answer may be returned.

    Args:
        ids: makes new ids of reservations, unique for ever, such as random 128-bit numbers in hexadecimal.
        lease_ms: how long a reservation lives if nothing happens to it, from 1 to a day; longer than a query may run.
        checkpointer: compares the store with signed checkpoints; None if there are none.
        computational: True if noise is keyed, so that the guarantee rests on cryptography.

    Raises:
        StoreBehind: the store is older than its last checkpoint.
        LedgerBroken: the store's lines are not those of the checkpoint.
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
        self._behind = False  # True if the store must not serve, because it is not that of its checkpoints

    def reserve(
        self, account: str, release_key: bytes, worst: Cost, key: str | None = None, digest: bytes = b""
    ) -> Reservation | Replay | InFlight:
        """Hold the worst case on the account and all its parents, or answer from what is stored.

        Args:
            worst: the most that the answer can cost.
            digest: a digest of the request that came with the key.

        Raises:
            BudgetRefused: an account on the path falls short; nothing was held.
            Suspended: too many runs of the account failed lately.
            KeyReused: the key came with another request before.
            ClockError: a period would begin, and the clock ran ahead.
            UnknownAccount: there is none.
        """
        self._check_not_behind()
        claim = Claim(self._ids(), account, release_key, worst, key, digest, self._lease_ms)
        admission = self.store.reserve(claim)
        if isinstance(admission, Refusal):
            raise BudgetRefused(admission)
        if isinstance(admission, Suspension):
            raise Suspended(admission.account, admission.until_us)
        return admission

    def start(self, reservation: str) -> Reservation:
        """Record that the data will be queried now: from here on a failure is charged.

        Raises:
            LeaseLost: the reservation has ended; reserve again.
        """
        self._check_not_behind()
        return self.store.start(reservation)

    def settle(self, reservation: str, actual: Cost, result: bytes, fingerprint: Fingerprint | None = None) -> Settled:
        """Charge what the answer cost, free the rest and store the answer.

        Args:
            actual: what the answer cost, at most the worst case.
            result: the answer's bytes.
            fingerprint: a digest of what the engine returned, or None if the data has no version.

        Returns:
            the answer to return to the caller: the stored one, which is another's if that was settled first.

        Raises:
            LeaseLost: the reservation has ended; drop the answer.
            DataChanged: the engine returned something else for this version of the data before; drop the answer, and
                forfeit.
        """
        self._check_not_behind()
        return self.store.settle(reservation, actual, result, fingerprint)

    def get(self, account: str) -> Report:
        """Return the balance of the account and what is guaranteed."""
        return report(self.store.balance(account), self._computational)

    def path(self, account: str) -> list[Report]:
        """Return the reports of the account and its parents, that account first."""
        return [self.get(member.id) for member in self.store.path(account)]

    def maintain(self) -> int:
        """Record the time, end reservations whose lease is over, write a checkpoint; call it every ten seconds or so.

        If the database was replaced by an older copy, nothing is answered from here on until it has the lines of its
        last checkpoint again.

        Returns:
            how many reservations ended.

        Raises:
            StoreBehind: the store lost lines that a checkpoint has.
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

    def verify(self) -> LedgerTotals:
        """Check the ledger, all tables against it, and the store against its last checkpoint.

        Raises:
            LedgerBroken: something was changed.
            StoreBehind: lines are missing at the end.
        """
        verified = self.store.verify()
        if self._checkpointer is not None:
            self._checkpointer.check(self.store)
        return verified

    def prune(self, before_us: int, action: AdminAction, archive: Callable[[Iterable[Line]], object]) -> int:
        """Verify the ledger, write its lines before *before_us* to *archive*, and remove them.

        Balances and all else that they add up to stay in the store, and `verify` starts from there. The last checkpoint
        stays verifiable. Idempotency keys and ended reservations that are as old are removed, too. A crash leaves all
        lines in place, or none of them.

        Args:
            before_us: at least 24 hours ago.
            archive: writes the lines durably before it returns; it is called again if the connection was lost.

        Returns:
            how many lines were removed.

        Raises:
            InputError: *before_us* is later, or other lines were removed at the same time.
            LedgerBroken, StoreBehind: as `verify`; nothing was removed.
        """
        self.store.check_old(before_us)
        self.store.note(action, {"what": "prune the ledger"})  # after all that is removed, also of chain 0
        cut = self.store.cut(before_us, self.store.heads(), archive)
        if self._checkpointer is not None:
            self._checkpointer.write(self.store)  # so that no line of the last checkpoint is removed
        if cut.lines:
            self.store.prune(cut, action)
        return cut.lines

    def _check_not_behind(self) -> None:
        if self._behind:
            raise StoreBehind("the store is not that of its last checkpoint, so nothing is answered from it")


StoredAnswer: TypeAlias = Settled | Replay | InFlight


class StoredBudget:
    """Charges one query to an account and its parents. Its methods raise what those of `BudgetManager` raise.

    Args:
        key: the caller's idempotency key, or None.
        digest: a digest of the request that came with the key.

    Attributes:
        reservation: the id of the reservation, once there is one.
        forfeited: True once the reservation was forfeited.
        abandoned: set to True before a failure that means that the client has gone.
    """

    def __init__(
        self, manager: BudgetManager, account: str, release_key: bytes, key: str | None = None, digest: bytes = b""
    ) -> None:
        self._manager, self._account, self._release_key = manager, account, release_key
        self._key, self._digest = key, digest
        self.reservation: str | None = None
        self.forfeited = self.abandoned = False

    def reserve(self, cost: Cost) -> Hold | StoredAnswer:
        """Hold *cost*, or return the stored answer, or the reservation under way for the same request."""
        admitted = self._manager.reserve(self._account, self._release_key, cost, self._key, self._digest)
        if isinstance(admitted, Replay | InFlight):
            return admitted
        self.reservation = admitted.id
        return Hold(cost, admitted.id)

    def start(self, hold: Hold) -> None:
        """Record that the data will be read now."""
        self._manager.start(hold.id)

    def settle(self, hold: Hold, cost: Cost, result: bytes, fingerprint: Fingerprint | None = None) -> StoredAnswer:
        """Charge *cost* and store *result*, or return the answer that another query stored first."""
        return self._manager.settle(hold.id, cost, result, fingerprint)

    def void(self, hold: Hold) -> None:
        """Free all that was held."""
        self._manager.store.void(hold.id)

    def forfeit(self, hold: Hold) -> None:
        """Charge all that was held; it pays for the same query again."""
        self.forfeited = True  # even if the store fails now: the lease forfeits it then
        store = self._manager.store
        (store.lose if self.abandoned else store.forfeit)(hold.id)


@dataclass(frozen=True, slots=True)
class Report:
    """The balance of an account, with its epsilon and its guarantee.

    Args:
        balance: exactly.
        epsilon_spent: epsilon of all that is spent, by the tight formula at `conversion`.
        epsilon_left: epsilon of one release that takes all that is left, by the same formula; rounded down.
        conversion: the delta of both; what releases may lose comes on top.
        guarantee: what holds for all releases in any window as long as the period, or None: observed accounts, and
            limits that promise nothing.
        published: the same by the paper's Theorem 2, if the limit is that of the account's units and was kept.
    """

    balance: Balance
    epsilon_spent: float
    epsilon_left: float
    conversion: float
    guarantee: Guarantee | None
    published: SystemBound | None


def report(balance: Balance, computational: bool = False) -> Report:
    """Return the report of *balance*.

    Args:
        computational: True if noise is keyed, so that the guarantee rests on cryptography.
    """
    account, spent = balance.account, balance.spent
    conversion = account.delta - account.total_limit.delta
    left = epsilon_tight(float_below(balance.remaining.rho), float_above(conversion))
    return Report(
        balance,
        epsilon_tight(float_above(spent.rho), float_below(conversion)),
        left * (1 - 1e-9),
        float_below(conversion),
        guarantee(account, spent, computational),
        published(account, spent),
    )


def guarantee(account: Account, spent: Cost, computational: bool = False) -> Guarantee | None:
    """Return what holds for all releases of *account* in any window as long as its period.

    A calendar period is counted twice: a window can hold the end of one and the beginning of the next. What was charged
    beyond the limit (it was lowered, or charged by hand) counts too. For an account that is split it covers all
    data centres; what was charged beyond the share of another one is reported there.
    """
    if not account.enforced:
        return None
    cost = limits_per_window(account.period) * (account.total_limit + _excess(account.limit, spent))
    delta = account.delta - account.total_limit.delta + cost.delta
    return None if delta >= 1 else guarantee_of(cost, delta, computational=computational)


def published(account: Account, spent: Cost) -> SystemBound | None:
    """Return the guarantee by Theorem 2 of Rogers et al. 2021, for accounts with the limit of their units.

    Without its shortcut for a handful of steps, the sum of their epsilons: Gaussian noise has no epsilon of its own.
    """
    units = account.units
    if units is None or not account.enforced or account.total_limit != units.limit or not spent.within(account.limit):
        return None
    if units.information == 0:
        return None
    times, conversion = limits_per_window(account.period), account.delta - account.total_limit.delta
    epsilon_per = float_above(units.epsilon_per)
    found = linkedin_system(times * units.information, times * units.calls, epsilon_per, units.delta_per, conversion)
    rho = float_above(times * units.information * units.epsilon_per**2 / 8)
    return replace(found, epsilon=epsilon_simple(rho, float_below(conversion)))


def _excess(limit: Cost, spent: Cost) -> Cost:
    return Cost(max(spent.rho - limit.rho, Fraction(0)), max(spent.delta - limit.delta, Fraction(0)))
