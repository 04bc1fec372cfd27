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

import dataclasses
from typing import TYPE_CHECKING

from discreet.budget.errors import BudgetRefused, LedgerBroken, StoreBehind, Suspended
from discreet.budget.model import Claim, Refusal, Suspension
from discreet.budget.report import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from fractions import Fraction

    from discreet.budget.checkpoints import Notary
    from discreet.budget.ledger import Head, Line
    from discreet.budget.ledger_replay import Verified
    from discreet.budget.model import (
        Account,
        Act,
        Fingerprint,
        InFlight,
        Mode,
        Paid,
        Period,
        Replay,
        Reservation,
        Settled,
        StoredRelease,
    )
    from discreet.budget.report import Report
    from discreet.budget.store import BudgetStore
    from discreet.values import Cost


class BudgetManager:
    """Budgets in a store.

    Methods raise `StoreUnavailable` when the store cannot be asked or cannot write: then no answer may leave. Other
    errors are those of the store's method of the same name.

    Args:
        store: where they are.
        ids: makes new names for reservations, unique for ever, such as random 128-bit numbers in hexadecimal.
        lease_ms: how long a reservation lives if nothing happens to it, from 1 to a day; longer than a query may run.
        notary: holds the store against its witness; None if there is no witness.
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
        notary: Notary | None = None,
        *,
        computational: bool = False,
    ) -> None:
        if notary is not None:
            notary.check(store)
        self._store, self._ids, self._lease_ms = store, ids, lease_ms
        self._notary, self._computational = notary, computational
        self._behind = False  # its witness, so that it must not serve

    # ---------------------------------------------------------------------------------------------- questions

    def check(self, account: str, worst: Cost) -> Refusal | None:
        """Whether a claim would fit now: advice, which the next moment may prove wrong; it holds nothing.

        A suspension is not looked at: `get` tells of it (`Balance.suspended_until_us`).
        """
        for member in self._store.path(account):
            balance = self._store.balance(member.id)
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
        admission = self._store.reserve(claim)
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
        return self._store.start(reservation)

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
        return self._store.settle(reservation, actual, result, fingerprint)

    def void(self, reservation: str) -> None:
        """Give up a reservation whose data was not asked; what it held is free."""
        self._store.void(reservation)

    def forfeit(self, reservation: str) -> None:
        """Give up a run that failed: its worst case stays charged, and pays for a retry of the same release."""
        self._store.forfeit(reservation)

    # ---------------------------------------------------------------------------------------------- accounts

    def get(self, account: str) -> Report:
        """How the account stands."""
        return report(self._store.balance(account), self._computational)

    def create(self, account: Account, act: Act) -> None:
        """Open an account."""
        self._store.create(account, act)

    def account(self, name: str) -> Account:
        """The account of that name."""
        return self._store.path(name)[0]

    def path(self, account: str) -> tuple[Account, ...]:
        """The account and its parents, that account first."""
        return self._store.path(account)

    def accounts(self) -> list[Account]:
        """All accounts, by name."""
        return self._store.accounts()

    def alter(self, account: Account, act: Act, before: Account | None = None) -> None:
        """Change limit, delta, period, mode or units of the account of that name, if it still is as *before*."""
        self._store.alter(account, act, before)

    def set_limit(self, account: str, limit: Cost, delta: Fraction, act: Act) -> None:
        """Give an account another limit and total delta (see `Account`); below what is spent, nothing is left.

        Of an account that is split over data centres it is the limit of all of them.
        """
        self._store.alter(self.account(account).limited(limit, delta), act)

    def set_mode(self, account: str, mode: Mode, act: Act) -> None:
        """Let an account refuse, or only watch it."""
        self._store.alter(dataclasses.replace(self.account(account), mode=mode), act)

    def set_period(self, account: str, period: Period, act: Act) -> None:
        """Give an account another period; charges that it counts count, whenever they were made."""
        self._store.alter(dataclasses.replace(self.account(account), period=period), act)

    def charge(self, account: str, cost: Cost, act: Act) -> None:
        """Charge an account by hand, such as for an answer that was given some other way."""
        self._store.charge(account, cost, act)

    def refund(self, account: str, cost: Cost, act: Act) -> None:
        """Give back charges, up to a tenth of the limit in a period; the guarantee is the officer's word then."""
        self._store.refund(account, cost, act)

    def lift(self, account: str, act: Act) -> None:
        """End a suspension of an account before its time."""
        self._store.lift(account, act)

    def confirm_clock(self, act: Act) -> None:
        """Take the database's time as right, after it ran ahead."""
        self._store.confirm_clock(act)

    def note(self, act: Act, detail: Mapping[str, str]) -> None:
        """Put an act into the ledger that changes nothing here; never a secret."""
        self._store.note(act, detail)

    # ---------------------------------------------------------------------------------------------- what was answered

    def history(self, account: str, before: int | None = None, most: int = 50) -> list[Paid]:
        """What the account paid for, newest first: at most *most*, from after the number *before*."""
        return self._store.history(account, before, most)

    def release(self, release_key: bytes) -> StoredRelease | None:
        """A stored release, whoever paid for it: for the service itself, not for an account (see `entitled`)."""
        return self._store.release(release_key)

    def entitled(self, account: str, release_key: bytes) -> bool:
        """True if the account has paid for the release."""
        return self._store.entitled(account, release_key)

    # ---------------------------------------------------------------------------------------------- records

    def put_record(self, kind: str, name: str, text: str | None, act: Act) -> None:
        """Keep a text beside the budgets, or remove it; see `BudgetStore.put_record`."""
        self._store.put_record(kind, name, text, act)

    def record(self, kind: str, name: str) -> str | None:
        """The text that is kept, or None."""
        return self._store.record(kind, name)

    def records(self, kind: str) -> list[tuple[str, str]]:
        """Name and text of all records of a kind, by name."""
        return self._store.records(kind)

    def records_version(self) -> int:
        """Rises with every record that is put or removed."""
        return self._store.records_version()

    # ---------------------------------------------------------------------------------------------- the ledger

    def heads(self) -> tuple[Head, ...]:
        """The last line of every chain that has one, by chain."""
        return self._store.heads()

    def lines(self, chain: int = 0, after: int = 0, most: int | None = None) -> Iterator[Line]:
        """Lines of a chain in order, from the one after *after*, at most *most*."""
        return self._store.lines(chain, after, most)

    # ---------------------------------------------------------------------------------------------- upkeep

    def tend(self) -> int:
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
            if self._notary is not None:
                self._notary.check(self._store)  # first, so that nothing is added to a ledger that lost lines
            self._store.heartbeat()
            ended = self._store.expire()
            if self._notary is not None:
                self._notary.seal(self._store)
        except (StoreBehind, LedgerBroken):
            self._behind = True
            raise
        self._behind = False
        return ended

    def refresh(self) -> int:
        """Begin the new periods of all accounts; they begin by themselves when somebody asks.

        Returns:
            how many.
        """
        return self._store.refresh()

    def verify(self) -> Verified:
        """Check the ledger, all balances against it, and the store against its witness.

        Raises:
            LedgerBroken: something was changed.
            StoreBehind: lines are missing at the end.
        """
        verified = self._store.verify()
        if self._notary is not None:
            self._notary.check(self._store)
        return verified

    def _check_whole(self) -> None:
        """Raise if the store was last found to be other than its witness says."""
        if self._behind:
            raise StoreBehind("the store is not what its witness knows, so nothing is answered from it")
