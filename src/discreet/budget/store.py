"""What a store of budgets does. Each method is one transaction: wholly done and durable when it returns, or not done.

Rules that hold for every store, whatever it is made of:

- The rule is `discreet.budget.rules`, pure; a store fetches what it needs, asks it, and writes what it says, with the
  accounts on the path locked from the asking account upward (analyst, organisation, dataset).
- Amounts are exact integers of any size (`discreet.budget.fixed_point`).
- Every change appends one ledger line in its own transaction; `discreet.budget.ledger` says what it holds.
- Time is the database's, through `discreet.budget.periods.Clock`: what goes back is taken as the latest seen.
- Whoever does not hear the answer of a method (a broken connection at COMMIT) may call it again: a claim is known by
  its reservation's name, an event by the state that it leads to. What is repeated changes nothing.
  An act is known by its id, if it has one: with an id that the ledger has it changes nothing, and raises `KeyReused` if
  it is another act than before.
- A method that raises has changed nothing.

`tests.budget.suite.BudgetStoreSuite` tests a store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from discreet.budget.model import InFlight, Refusal, Replay, Reservation, Suspension

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from discreet.budget.ledger import Head, Line
    from discreet.budget.ledger_replay import Verified
    from discreet.budget.model import Account, AdminAction, Balance, Claim, Fingerprint, Paid, Settled, StoredRelease
    from discreet.values import Cost

Admission: TypeAlias = Reservation | Replay | InFlight | Refusal | Suspension
"""What a store answers to a claim."""


class BudgetStore(Protocol):
    """Keeps accounts, reservations, stored releases and the ledger.

    Every method but `close` raises `StoreUnavailable` when the database cannot be asked or cannot write. Methods that
    name an account raise `UnknownAccount` if there is none.
    """

    @property
    def id(self) -> str:
        """The store's own name, random, made when it was; a copy has the same, a new store another."""
        ...

    # ---------------------------------------------------------------------------------------------- claims

    def reserve(self, claim: Claim) -> Admission:
        """Hold the worst case on every account of the path, or answer from what is there.

        In this order:

        1. the reservation's name is known: as the first time (`Reservation` in its present state, or `Replay`);
        2. the idempotency key is known with another digest: `KeyReused`; with the same: `InFlight` while its
           reservation is HELD or RUNNING, and `Replay`, charged nothing, if the account has paid for the release that
           it came with last, even where that is not the claim's; otherwise go on;
        3. the asking account has paid for the release: `Replay`, charged nothing;
        4. the asking account enforces, and too many of its runs failed lately (`rules.suspended_until`): `Suspension`,
           with a ledger line;
        5. an account on the path cannot hold the worst case: `Refusal`, with a ledger line;
        6. the release is stored: `Replay`, the asking account charged what it cost (step 5 asked for the worst case, so
           that a refusal tells nothing about a release not yet paid for), shared accounts that paid before nothing;
        7. `Reservation`, HELD. What an account forfeited for this release key, in a bucket that still counts, pays
           first. An account that has paid for this release key holds nothing.

        Raises:
            KeyReused: see step 2.
            ClockError: a period would begin, and the clock ran ahead further than the guard allows.
        """
        ...

    def start(self, reservation: str) -> Reservation:
        """HELD to RUNNING: from here the data may be asked. The lease begins again.

        Raises:
            LeaseLost: it has ended, or its lease is over.
        """
        ...

    def settle(self, reservation: str, actual: Cost, result: bytes, fingerprint: Fingerprint | None = None) -> Settled:
        """RUNNING to SETTLED: charge the actual cost, free the rest, keep the bytes; all in one transaction.

        The fingerprint is kept too, by its head key, and shown to nobody. If the release was stored meanwhile, its
        bytes and its cost count, not the caller's; an account that has paid for the release pays nothing. Charges go to
        the buckets of the reservation. After it returns, and not before, may the bytes leave; those that it returned,
        not others.

        Raises:
            LeaseLost: the reservation was taken: the answer must be dropped.
            DataChanged: the head key is known with another digest; nothing changed, and the caller forfeits.
            InvariantViolated: the actual cost is above the worst case, or it was never started; nothing changed.
        """
        ...

    def void(self, reservation: str) -> None:
        """HELD to VOID: no data was asked. What a forfeit paid goes back to it, the rest is free.

        Raises:
            LeaseLost: it has ended otherwise.
            InvariantViolated: it is RUNNING: data may have been asked, so that it can only be forfeited.
        """
        ...

    def forfeit(self, reservation: str) -> None:
        """RUNNING to FORFEIT: what is held stays charged, and pays for a retry of the same release key only.

        It counts towards a suspension of the asking account, as does a RUNNING reservation that expires.

        Raises:
            LeaseLost: it has ended otherwise.
            InvariantViolated: it was never started.
        """
        ...

    def expire(self) -> int:
        """End all reservations whose lease is over, HELD as VOID and RUNNING as FORFEIT.

        Returns:
            how many.
        """
        ...

    # ---------------------------------------------------------------------------------------------- accounts and time

    def create(self, account: Account, act: AdminAction) -> None:
        """Open an account; its parent exists.

        Raises:
            InputError: there is one of that name already, or no such parent.
        """
        ...

    def alter(self, account: Account, act: AdminAction, before: Account | None = None) -> None:
        """Change limit, delta, period, mode or units. A limit below what is spent is legal: nothing is left then.

        What was read before and is written back would undo what somebody else changed meanwhile: *before* says what
        was read.

        If the period changes, its open bucket closes now and one of the new period opens; all buckets ever charged are
        looked at again, so that no change makes charges stop counting that the new period counts.

        Raises:
            InputError: another parent.
            AccountChanged: it is not as *before* any more; nothing changed.
            ClockError: as `reserve`, if the period changes.
        """
        ...

    def charge(self, account: str, cost: Cost, act: AdminAction) -> None:
        """Charge an account by hand, in its open bucket, whatever its limit.

        Raises:
            ClockError: as `reserve`.
        """
        ...

    def refund(self, account: str, cost: Cost, act: AdminAction) -> None:
        """Give back charges of releases, oldest bucket first.

        Raises:
            InputError: more than is used, or more than `rules.REFUND_SHARE` of the limit with what was refunded before
                in buckets that count.
            ClockError: as `reserve`.
        """
        ...

    def lift(self, account: str, act: AdminAction) -> None:
        """End a suspension: what failed until now counts no more towards one. Charges stay."""
        ...

    def refresh(self) -> int:
        """Open the buckets of all accounts whose period has moved on; `reserve` does so for its own path.

        Returns:
            how many.

        Raises:
            ClockError: as `reserve`.
        """
        ...

    def heartbeat(self) -> None:
        """Record the time of the database as seen, unless it ran ahead further than the guard; no ledger line."""
        ...

    def confirm_clock(self, act: AdminAction) -> None:
        """Take the time of the database as right, however far it ran ahead."""
        ...

    def note(self, act: AdminAction, detail: Mapping[str, str]) -> None:
        """Append an administrative act that changes no balance, such as a key that was made. Never a secret.

        Raises:
            InputError: something in *detail* is no text.
        """
        ...

    # ---------------------------------------------------------------------------------------------- records

    def put_record(self, kind: str, name: str, text: str | None, act: AdminAction) -> None:
        """Keep a text beside the budgets, such as the hash of an API key or a grant, in the place of the one before.

        The ledger line is a `note` that holds kind, name and the SHA-256 of the text, never the text.

        Args:
            kind: of record, up to 200 printable characters without white space.
            name: unique among its kind, up to 2,000 characters that print, or tabs.
            text: canonical JSON (`settings.canonical`), up to 1,000,000 characters; None removes the record.
            act: who and why.

        Raises:
            InputError: a value outside its range.
        """
        ...

    def record(self, kind: str, name: str) -> str | None:
        """The text that is kept, or None."""
        ...

    def records(self, kind: str) -> list[tuple[str, str]]:
        """Name and text of all records of a kind, by name (by code point)."""
        ...

    def records_version(self) -> int:
        """How often records were put or removed: a cheap read that tells a process to read them again."""
        ...

    # ---------------------------------------------------------------------------------------------- reading

    def path(self, account: str) -> tuple[Account, ...]:
        """The account and its parents, that account first."""
        ...

    def account(self, name: str) -> Account:
        """The account of that name."""
        ...

    def accounts(self) -> list[Account]:
        """All accounts, by name."""
        ...

    def balance(self, account: str) -> Balance:
        """How the account stands at the time of the database; writes nothing."""
        ...

    def reservation(self, reservation: str) -> Reservation | None:
        """A reservation by its name."""
        ...

    def release(self, release_key: bytes) -> StoredRelease | None:
        """A stored release, whoever paid for it: for the service itself, not for an account (see `entitled`)."""
        ...

    def entitled(self, account: str, release_key: bytes) -> bool:
        """True if the account has paid for the release."""
        ...

    def history(self, account: str, before: int | None = None, most: int = 50) -> list[Paid]:
        """What the account paid for, newest first.

        Args:
            account: whose.
            before: the number of the last one of the page before; None for the first page.
            most: at most so many, from 1 to 1,000.

        Raises:
            InputError: *most* is outside its range.
        """
        ...

    # ---------------------------------------------------------------------------------------------- the ledger

    def heads(self) -> tuple[Head, ...]:
        """The last line of every chain that has one, by chain."""
        ...

    def lines(self, chain: int = 0, after: int = 0, most: int | None = None) -> Iterator[Line]:
        """Lines of a chain in order, from the one after *after*, at most *most*."""
        ...

    def verify(self) -> Verified:
        """Check the whole ledger and everything that is kept against it, in one consistent reading.

        Raises:
            LedgerBroken: a line was changed, moved, removed or added, or a balance, a reservation, a stored release,
                who paid for it, a forfeit, a suspension, a record or the id of an act is not as the lines say.
        """
        ...

    def close(self) -> None:
        """Finish what is under way and let go of the database; calls after that raise `StoreUnavailable`."""
        ...
