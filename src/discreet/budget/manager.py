"""The budget manager: queries reserve, run and settle, and no account is overspent.

    admission = manager.reserve(account, release_key, worst)     # or Replay: return its release, nothing else happens
    store.start(admission.id)                                    # from here the data may be queried
    ...                                                          # the engine, the noise
    settled = store.settle(admission.id, actual, result)         # return settled.release.result, not result

The paper's three calls (Rogers et al. 2021, section 4.2): checkBudget is `Balance.admits`, updateBudget is `reserve`
with `settle`, getBudget is `get`. With check, run, update in sequence, concurrent queries pass the check together; here
the worst case is reserved first, and the actual cost is charged afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

from discreet.accounting.bounds import SystemBound, linkedin_system
from discreet.accounting.convert import Guarantee, epsilon_simple, epsilon_tight, guarantee_of
from discreet.budget.errors import AccountSuspended, BudgetRefused, LedgerBroken, StoreBehind, StoreUnavailable
from discreet.budget.memory import Hold
from discreet.budget.model import (
    Account,
    AdminAction,
    Balance,
    Claim,
    Fingerprint,
    InFlight,
    Refusal,
    Replay,
    Reservation,
    Settled,
    Suspension,
)
from discreet.budget.rules import limits_per_window
from discreet.values import Cost, float_above, float_below

if TYPE_CHECKING:
    from discreet.budget.checkpoints import Checkpoint, Checkpointer
    from discreet.budget.ledger import Line
    from discreet.budget.ledger_replay import LedgerTotals
    from discreet.budget.stores.store import BudgetStore


class BudgetManager:
    """Reserves from, maintains and prunes a store of budgets. Callers use the store directly for all else.

    Methods raise `StoreUnavailable` when the store cannot be reached or cannot write: then no answer may be returned.

    Args:
        ids: returns a new id of a reservation, unique for ever, such as a random 128-bit number in hexadecimal.
        lease_ms: the time after which a reservation expires unless an event ends or renews it, from 1 to a day; longer
            than a query may run.
        checkpointer: compares the store with signed checkpoints; None if there are none.
        computational: True if noise is keyed, so that the guarantee rests on cryptography.

    Attributes:
        lease_ms: the argument; may be changed.

    Raises:
        StoreBehind: the store is older than its last checkpoint, or has lines and no checkpoint.
        LedgerBroken: the store's lines differ from the checkpoint.
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
            if checkpointer.file.latest() is None:
                checkpointer.begin(store)  # while the ledger is empty, so that later a missing file is noticed
        self.store = store
        self._ids = ids
        self.lease_ms = lease_ms
        self._checkpointer = checkpointer
        self._computational = computational

    def reserve(
        self,
        account: str,
        release_key: bytes,
        worst: Cost,
        key: str | None = None,
        digest: bytes = b"",
        question: str = "",
    ) -> Reservation | Replay | InFlight:
        """Hold the worst case on the account and all its parents, or return a stored release.

        Args:
            worst: the most that the answer can cost.
            key: the caller's idempotency key, or None.
            digest: a digest of the request that came with the key.
            question: what is asked, for the ledger: canonical JSON without the constants of filters, or empty.

        Raises:
            BudgetRefused: an account on the path cannot hold it; nothing was held.
            AccountSuspended: too many runs of the account failed lately, or an officer suspended it or one above it.
            KeyReused: the key was used with another request before.
            ClockError: a bucket would open, and the clock ran ahead.
            UnknownAccount: the account does not exist.
        """
        claim = Claim(self._ids(), account, release_key, worst, key, digest, self.lease_ms, question)
        admission = self.store.reserve(claim)
        if isinstance(admission, Refusal):
            raise BudgetRefused(admission)
        if isinstance(admission, Suspension):
            raise AccountSuspended(admission.account, admission.until_us)
        return admission

    def get(self, account: str) -> Report:
        """Return the balance and the guarantee of the account."""
        return report(self.store.balance(account), self._computational)

    def last_checkpoint(self) -> Checkpoint | None:
        """Return the last signed checkpoint, or None if there is none."""
        return None if self._checkpointer is None else self._checkpointer.file.latest()

    def path(self, account: str) -> list[Report]:
        """Return the reports of the account and its parents, that account first."""
        return [self.get(member.id) for member in self.store.path(account)]

    def maintain(self) -> int:
        """Record the time, end reservations whose lease is over, write a checkpoint; call it every ten seconds or so.

        If the database was replaced by an older copy, all claims and events fail until it has the lines of its last
        checkpoint again.

        Returns:
            the number of reservations that ended.

        Raises:
            StoreBehind: the store lost lines of the last checkpoint.
            LedgerBroken: the store has other lines in their place.
        """
        try:
            if self._checkpointer is not None:
                self._checkpointer.check(self.store)  # first: a ledger that lost lines must not be extended
            self.store.heartbeat()
            ended = self.store.expire()
            if self._checkpointer is not None:
                self._checkpointer.write(self.store)
        except (StoreBehind, LedgerBroken):
            self.store.behind = True
            raise
        self.store.behind = False
        return ended

    def verify(self) -> LedgerTotals:
        """Check the ledger, all tables against it, and the store against its last checkpoint.

        Raises:
            LedgerBroken: the ledger or a table was changed.
            StoreBehind: lines are missing at the end.
        """
        verified = self.store.verify()
        if self._checkpointer is not None:
            self._checkpointer.check(self.store)
        return verified

    def prune(self, before_us: int, action: AdminAction, archive: Callable[[Iterable[Line]], object]) -> int:
        """Verify the ledger, write its lines before *before_us* to *archive*, and remove them.

        Balances stay in the store, with a base of sums over the removed lines, from which `verify` starts. The last
        checkpoint stays verifiable. Idempotency keys and ended reservations older than *before_us* are removed, too. A
        crash leaves all lines in place, or none of them.

        Args:
            before_us: at least 24 hours ago.
            archive: writes the lines durably before it returns; it is called again if the connection was lost.

        Returns:
            the number of removed lines.

        Raises:
            InputError: *before_us* is later, or other lines were removed at the same time.
            LedgerBroken, StoreBehind: `verify` failed; nothing was removed.
        """
        self.store.check_old(before_us)
        self.store.note(action, {"what": "prune the ledger"})  # a newer line, also in chain 0, than all lines to remove
        cut = self.store.cut(before_us, self.store.heads(), archive)
        if self._checkpointer is not None:
            self._checkpointer.write(self.store)  # so that the lines of the last checkpoint are kept
        if cut.lines:
            self.store.prune(cut, action)
        return cut.lines


StoredAnswer: TypeAlias = Settled | Replay | InFlight


class StoredBudget:
    """Charges one query to an account and its parents. Its methods raise the errors of those of `BudgetStore`.

    Args:
        reserve: `BudgetManager.reserve` of *store*, with all arguments but the worst case.

    Attributes:
        reservation: the id of the reservation, once there is one.
        forfeited: True once the reservation was forfeited.
        lost: True if the store failed or (set by the caller) the client disconnected: what ends now is charged, but
            it is no failed run, which could lead to a suspension, because the data cannot have caused it.
    """

    def __init__(self, store: BudgetStore, reserve: Callable[[Cost], Reservation | Replay | InFlight]) -> None:
        self._store = store
        self._reserve = reserve
        self.reservation: str | None = None
        self.forfeited = self.lost = False
        self._uncertain = False  # True if `start` raised, and may have been committed

    def reserve(self, cost: Cost) -> Hold | StoredAnswer:
        """Hold *cost*, or return the stored answer, or the reservation under way for the same request."""
        admitted = self._reserve(cost)
        if isinstance(admitted, Replay | InFlight):
            return admitted
        self.reservation = admitted.id
        return Hold(cost, admitted.id)

    def start(self, hold: Hold) -> None:
        """Record that the data will be read now."""
        try:
            self._store.start(hold.id)
        except (StoreUnavailable, StoreBehind):
            self.lost = self._uncertain = True
            raise

    def settle(self, hold: Hold, cost: Cost, result: bytes, fingerprint: Fingerprint | None = None) -> StoredAnswer:
        """Charge *cost* and store *result*; return it, or the release that another query stored first."""
        try:
            return self._store.settle(hold.id, cost, result, fingerprint)
        except (StoreUnavailable, StoreBehind):
            self.lost = True
            raise

    def void(self, hold: Hold) -> None:
        """Free the held amount; if it is not known whether the run started, it is forfeited if it did."""
        (self._store.lose if self._uncertain else self._store.void)(hold.id)

    def forfeit(self, hold: Hold) -> None:
        """Charge the whole held amount, which pays for a retry of the same query."""
        self.forfeited = True  # even if the store fails now: the reservation is then forfeited when its lease ends
        (self._store.lose if self.lost else self._store.forfeit)(hold.id)


@dataclass(frozen=True, slots=True)
class Report:
    """The balance of an account, with its epsilon and its guarantee.

    Args:
        balance: the exact balance.
        epsilon_spent: epsilon of the amount spent, by the tight formula at `conversion`.
        epsilon_left: epsilon of one release that uses the whole remaining amount, by the same formula; rounded down.
        conversion: the delta of both epsilons, to which the deltas of the releases are added.
        guarantee: the guarantee of all releases in any window as long as the period; None for accounts in observe mode,
            and for limits with a delta of 1 or more.
        published: the same by the paper's Theorem 2, if the limit is that of the account's units and was not exceeded.
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
    account = balance.account
    spent = balance.spent
    left = epsilon_tight(float_below(balance.remaining.rho), float_above(account.conversion))
    return Report(
        balance,
        account.epsilon_of(spent.rho),
        left * (1 - 1e-9),
        float_below(account.conversion),
        guarantee(account, spent, computational),
        published(account, spent),
    )


def guarantee(account: Account, spent: Cost, computational: bool = False) -> Guarantee | None:
    """Return the guarantee of all releases of *account* in any window as long as its period, or None if there is none.

    A calendar period is counted twice: a window can overlap two periods. Charges beyond the limit (it was lowered, or
    charged by hand) are included. For an account split over data centres the guarantee covers all of them, but charges
    beyond the share of another data centre are reported only there.
    """
    if not account.enforced:
        return None
    cost = guaranteed_cost(account, spent)
    delta = account.conversion + cost.delta
    return None if delta >= 1 else guarantee_of(cost, delta, computational=computational)


def guaranteed_cost(account: Account, spent: Cost) -> Cost:
    """Return the most that all releases in any window as long as the period of an enforced account cost together."""
    over = Cost(max(spent.rho - account.limit.rho, Fraction(0)), max(spent.delta - account.limit.delta, Fraction(0)))
    return limits_per_window(account.period) * (account.total_limit + over)


def published(account: Account, spent: Cost) -> SystemBound | None:
    """Return the guarantee by Theorem 2 of Rogers et al. 2021, for accounts with the limit of their units.

    Lemma 2.1's alternative for few steps, the sum of their epsilons, is not used: Gaussian noise has no epsilon.
    """
    units = account.units
    if units is None or not account.enforced or account.total_limit != units.limit or not spent.within(account.limit):
        return None
    if units.information == 0:
        return None
    times = limits_per_window(account.period)
    epsilon_per = float_above(units.epsilon_per)
    information = times * units.information
    calls = times * units.calls
    bound = linkedin_system(information, calls, epsilon_per, units.delta_per, account.conversion)
    rho = float_above(information * units.epsilon_per**2 / 8)
    return replace(bound, epsilon=epsilon_simple(rho, float_below(account.conversion)))
