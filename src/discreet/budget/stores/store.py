"""`BudgetStore`, the base class of the stores: everything but how a transaction runs on a database.

Methods marked `writes` are one transaction each, which their callers do not pass; those marked `reads` see the
committed state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from discreet.budget import rules
from discreet.budget.errors import (
    AccountChanged,
    ClockError,
    DataChanged,
    KeyReused,
    LeaseLost,
    ReleaseDamaged,
    StoreBehind,
    StoreUnavailable,
    UnknownAccount,
)
from discreet.budget.ledger import Head, Line, canonical, settings_text
from discreet.budget.ledger_replay import LedgerTotals
from discreet.budget.model import (
    EMPTY,
    NOTHING,
    Account,
    AccountHold,
    AdminAction,
    Admission,
    Amount,
    Balance,
    Claim,
    Fingerprint,
    PaidRelease,
    Refusal,
    Replay,
    Reservation,
    Settled,
    State,
    StoredRelease,
    Suspension,
    Tally,
    check_record,
)
from discreet.budget.rules import GUARD_US, NEVER_US, TERMINAL, Clock, Event, requested, still_counts, transition
from discreet.budget.sharing import escrow
from discreet.budget.sharing.transfers import ShareStore
from discreet.budget.stores import pruning, statements
from discreet.budget.stores.pruning import Cut
from discreet.budget.stores.transaction import (
    LAST,
    AccountRow,
    Bucket,
    ClaimFacts,
    ForfeitRow,
    ReservationRow,
    StoreConnection,
    Transaction,
    account_row,
    amount_of,
    cost_of,
    reads,
    release_row,
    reservation_row,
    tally_of,
    terms_of,
    writes,
)
from discreet.budget.stores.verify import verify
from discreet.errors import DiscreetError, InputError, InvariantViolated
from discreet.values import Cost

Answer = TypeVar("Answer")

MAX_HISTORY_PAGE = 1_000
"""Releases on a page of a history."""

LINES_AT_ONCE = 10_000


def no_step(name: str) -> None:
    """Do nothing at a step of a transaction: only fault tests interrupt there."""


class BudgetStore(ABC):
    """Store accounts, reservations, releases and the ledger.

    Each method is one transaction: atomic, and durable when it returns. A method that raises has changed nothing. A
    method whose result was lost, for example with the connection at COMMIT, may be called again: claims are identified
    by the id of the reservation, events by the state that they lead to, actions by their id if they have one, and a
    repeated call changes nothing. An action with the id of a different one raises `KeyReused`.

    The rules are pure (`rules`); accounts on a path are locked from the account that is charged to the root.
    Every change appends a line to the ledger in the same transaction. Timestamps come from the database's clock
    (`rules.Clock`).

    Every method but `close` raises `StoreUnavailable` when the database cannot be reached or cannot write. Methods with
    the name of an account raise `UnknownAccount` if it does not exist, and `ClockError` if they would open a bucket of
    it while the clock is further ahead than the guard allows.

    Args:
        guard_us: how far the clock may run ahead of the last time seen.

    Attributes:
        writable: False from the first transaction that could not be written until a `heartbeat` is.
        behind: True while the store contradicts its checkpoints (`BudgetManager.maintain`): `reserve`, `start` and
            `settle` raise `StoreBehind`.
        timed: called with the name of each operation, it returns a context around the work, to measure its time.
    """

    def __init__(self, guard_us: int = GUARD_US) -> None:
        self._guard_us = guard_us
        self._seen_us = 0  # the latest time that this process has seen
        self.writable = True
        self.behind = False
        self.timed: Callable[[str], AbstractContextManager[None]] = lambda _: contextlib.nullcontext()

    @property
    @abstractmethod
    def id(self) -> str:
        """The random id of the store, generated when it was created; a copy of the store has the same id."""

    def write(self, work: Callable[[Transaction], Answer], operation: str) -> Answer:
        """Run *work* in a transaction and return its result once the commit is durable.

        Args:
            operation: the name of the operation, for its time.
        """
        with self.timed(operation):
            try:
                return self._write(work)
            except StoreUnavailable:
                self.writable = False
                raise

    def read(self, work: Callable[[StoreConnection], Answer], operation: str) -> Answer:
        """Run *work*, which reads the committed state, and return its result.

        Args:
            operation: the name of the operation, for its time.
        """
        with self.timed(operation):
            return self._read(work)

    @abstractmethod
    def close(self) -> None:
        """Finish running operations and close the database; later calls raise `StoreUnavailable`."""

    @abstractmethod
    def _write(self, work: Callable[[Transaction], Answer]) -> Answer:
        """Run *work* in a transaction; repeat it if it is unknown whether it was committed and it is `repeatable`."""

    @abstractmethod
    def _read(self, work: Callable[[StoreConnection], Answer]) -> Answer:
        """Run *work* on a connection that sees the committed state."""

    @abstractmethod
    def _snapshot(self, work: Callable[[StoreConnection], Answer]) -> Answer:
        """Run *work*, which may take long, on one snapshot of the database and return its result."""

    def together(self, work: Callable[[BudgetStore], Answer], *, dry_run: bool = False) -> Answer:
        """Run *work*, which changes several things, as one transaction: everything is changed, or nothing.

        Args:
            work: calls methods of the store that it gets, those that change accounts before those that put records, so
                that transactions lock in one order. It is called again if a connection is lost.
            dry_run: True to change nothing.

        Returns:
            what *work* returns.

        Raises:
            DiscreetError: an error of *work*; nothing changed.
        """

        def run(transaction: Transaction) -> Answer:
            answer = work(_Within(self, transaction, self._guard_us))
            if dry_run:
                raise _DryRun(answer)
            return answer

        try:
            return self.write(run, "together")
        except _DryRun as done:
            return done.answer  # type: ignore[no-any-return]

    @property
    def shares(self) -> ShareStore:
        """The shares of budgets that are split over data centres."""
        return ShareStore(self, self.id)

    # ---------------------------------------------------------------------------------------------- claims

    @writes
    def reserve(self, transaction: Transaction, claim: Claim) -> Admission:
        """Hold the worst case on every account of the path, or return a stored release.

        In this order:

        1. the reservation's id is known: the first answer again (`Reservation` in its present state, or `Replay`);
        2. the idempotency key is known with another digest: `KeyReused`;
        3. a reservation of the account with that idempotency key or that release key is HELD or RUNNING: `InFlight`;
        4. the account has paid for the release of the last request with the idempotency key, even if that is not the
           claim's: `Replay`, charged nothing;
        5. the account has paid for the release: `Replay`, charged nothing;
        6. an officer suspended an account on the path, or the account enforces and too many of its runs failed lately
           (`rules.suspended_until_us`): `Suspension`, with a ledger line;
        7. an account on the path cannot hold the worst case: `Refusal`, with a ledger line;
        8. the release is stored: `Replay`; its cost is charged to the accounts on the path that have not paid for it
           (step 7 requires room for the worst case, so that a refusal reveals nothing about a release not yet paid
           for);
        9. `Reservation`, HELD. A forfeit of the account for this release key, in a bucket that still counts, pays
           first. An account that has paid for this release key holds nothing.

        Raises:
            KeyReused: see step 2.
        """
        self._check_not_behind()
        facts = transaction.begin_claim(claim)
        if facts.known is not None:
            return _answer_repeated_claim(claim, facts.known, facts.release)
        if facts.key is not None and facts.key.digest != claim.digest:
            raise KeyReused
        if facts.in_flight is not None:
            return facts.in_flight
        if facts.key is not None and facts.key.answered is not None:
            # the same request has another release key now, for example because the data has a new version
            return Replay(facts.key.answered, Cost())
        if not facts.path:
            raise UnknownAccount(claim.account)
        account = facts.path[0]
        if account.paid:
            transaction.remember_key(claim)
            return Replay(_require_release(facts.release), Cost())
        officers = next((row.id for row in facts.path if row.terms.account.suspended), None)
        until_us = account.suspended_until_us(transaction.clock.now_us) if officers is None else None
        if officers is not None or until_us is not None:
            why = {"suspended_until_us": str(until_us)} if officers is None else {"suspended": officers}
            _refuse(transaction, claim, account, why)
            return Suspension(officers or account.id, until_us)
        return _admit(transaction, claim, facts)

    @writes
    def start(self, transaction: Transaction, reservation: str) -> Reservation:
        """Change HELD to RUNNING: from here on the data may be queried. The lease begins again.

        Raises:
            LeaseLost: the reservation has ended, or its lease is over.
        """
        self._check_not_behind()
        facts = transaction.begin_event(statements.START, reservation)
        row = _require(facts.row)
        after = requested(row.state, Event.START)
        if after is row.state:
            return row.reservation
        if row.lease_until_us <= transaction.clock.now_us:
            raise LeaseLost
        until_us = transaction.clock.now_us + row.lease_ms * 1000
        transaction.update_reservation(reservation, after, lease_until_us=until_us)
        transaction.append(facts.path[0], "start", reservation)
        return Reservation(row.id, row.account, row.release_key, cost_of(row.worst), row.holds, after, until_us)

    @writes
    def settle(
        self,
        transaction: Transaction,
        reservation: str,
        actual: Cost,
        result: bytes,
        fingerprint: Fingerprint | None = None,
    ) -> Settled:
        """Change RUNNING to SETTLED: charge the actual cost, free the rest, store the bytes; all in one transaction.

        The fingerprint is stored, too, by its head key, and is never returned. If the release was stored meanwhile, its
        bytes and its cost replace the caller's; an account that has paid for the release pays nothing. Charges go to
        the buckets of the reservation. Send only the returned bytes to the client, and only after this method returned.

        Raises:
            LeaseLost: the reservation has ended: the result must be dropped.
            DataChanged: another digest is stored under the head key; nothing changed, and the caller has to forfeit.
            InvariantViolated: the actual cost is above the worst case, or the reservation was never started; nothing
                changed.
        """
        # If two transactions store the same release at once, the insert of the second one fails; it is repeated, and
        # finds the release of the first one.
        self._check_not_behind()
        facts = transaction.begin_settle(reservation, fingerprint)
        amount = Amount.of(actual)
        row = _require(facts.row)
        path = facts.path
        release = facts.release
        if requested(row.state, Event.SETTLE) is row.state:
            return Settled(_require_release(release), cost_of(row.charged or NOTHING))
        if not amount.within(row.worst):
            raise InvariantViolated("an answer cost more than its worst case")
        if fingerprint is not None:
            _check_fingerprint(transaction, fingerprint, facts.head_digest)
        if release is None:
            release = StoredRelease(row.release_key, result, cost_of(amount), transaction.clock.now_us)
            transaction.add_release(release)
        cost = Amount.of(release.cost)
        changes = list[tuple[str, int, Tally]]()
        for account, hold in zip(path, row.holds, strict=True):
            transaction.change(account, hold.bucket, rules.settled(hold, cost, account.paid), changes)
        charged = changes[0][2].used
        transaction.entitle([account.id for account in path if not account.paid], row.release_key)
        transaction.update_reservation(reservation, State.SETTLED, charged=charged)
        detail = _reservation_detail(row.account, row.release_key, release.result)
        transaction.append(path[0], "settle", reservation, detail, changes)
        return Settled(release, cost_of(charged))

    @writes
    def void(self, transaction: Transaction, reservation: str) -> None:
        """Change HELD to VOID: no data was queried. Amounts that came out of a forfeit return to it; the rest is free.

        Raises:
            LeaseLost: the reservation has ended in another state.
            InvariantViolated: it is RUNNING: data may have been queried, so that it can only be forfeited.
        """
        _end(transaction, reservation, Event.VOID)

    @writes
    def forfeit(self, transaction: Transaction, reservation: str) -> None:
        """Change RUNNING to FORFEIT: the held amount stays charged, and pays for a retry of the same release key only.

        It counts towards a suspension of the account; a RUNNING reservation that expires or is lost does not.

        Raises:
            LeaseLost: the reservation has ended in another state.
            InvariantViolated: the reservation was never started.
        """
        _end(transaction, reservation, Event.FORFEIT)

    @writes
    def lose(self, transaction: Transaction, reservation: str) -> bool:
        """End an open reservation whose client disconnected or whose store failed: HELD as VOID, RUNNING as FORFEIT.

        This does not count towards a suspension, because the data did not cause it. An ended reservation stays as it
        is.

        Returns:
            True if the reservation was open.
        """
        facts = transaction.begin_event(statements.END, reservation)
        row = _require(facts.row)
        if row.state in TERMINAL:
            return False
        _end_reservation(transaction, facts.path, row, transition(row.state, Event.LOSE), Event.LOSE)
        return True

    def expire(self) -> int:
        """End all reservations whose lease is over: HELD as VOID, RUNNING as FORFEIT.

        Returns:
            the number of reservations that ended.
        """
        ended = 0
        while number := sum(map(self._expire_one, self.write(lambda transaction: transaction.expired(), "expired"))):
            ended += number
        return ended

    @writes
    def _expire_one(self, transaction: Transaction, reservation: str) -> bool:
        """End a reservation if its lease is over; return True if it was."""
        facts = transaction.begin_event(statements.END, reservation)
        row = _require(facts.row)
        if row.state in TERMINAL or row.lease_until_us > transaction.clock.now_us:
            return False  # it was ended or prolonged in between
        _end_reservation(transaction, facts.path, row, transition(row.state, Event.EXPIRE), Event.EXPIRE)
        return True

    def recover(self) -> int:
        """End all open reservations of processes that have ended: HELD as VOID, RUNNING as FORFEIT.

        They do not count towards a suspension: a crash is not the analyst's fault. Call it before the first claim.

        Returns:
            the number of reservations that ended.
        """
        lost = self.read(lambda db: _rows(db, statements.LOST), "lost")
        return sum(self.lose(name) for (name,) in lost)

    # ---------------------------------------------------------------------------------------------- accounts and time

    @writes
    def create(self, transaction: Transaction, account: Account, action: AdminAction) -> None:
        """Create an account; its parent must exist.

        Raises:
            InputError: the name is taken, or the parent does not exist.
        """
        (chain, exists), settings = transaction.begin_creation(account), settings_text(account)
        detail = _record_action(transaction, action, "create", settings)
        if detail is None:
            return
        if exists:
            raise InputError(f"there is an account {account.id!r} already")
        if account.share is not None:
            raise InputError(
                "a new account is not split over data centres; it is made in one, and shares go to the others"
            )
        transaction.add_account(account, chain, detail)

    @writes
    def alter(
        self, transaction: Transaction, account: Account, action: AdminAction, before: Account | None = None
    ) -> None:
        """Change limit, delta, period, mode or units. A limit below the amount spent is allowed and leaves nothing.

        *before* is the account as the caller read it: the new settings must not undo a concurrent change.

        If the period changes, the open bucket closes now and one of the new period opens; for all closed buckets it is
        decided again whether they count, by the new period.

        Raises:
            InputError: the parent differs, or the account is split over data centres and cannot be altered like this.
            AccountChanged: the account differs from *before*; nothing changed.
        """
        row = transaction.begin_account(account.id)
        settings = settings_text(account)
        detail = _record_action(transaction, action, "alter", settings)
        if detail is None:
            return
        now = row.terms.account
        if before is not None and before != now:
            raise AccountChanged
        if account.parent != now.parent:
            raise InputError("the parent of an account never changes")
        if now.share is not None:
            transaction.advance(row)
        transaction.change_settings(row, escrow.altered(now, account, row.spent, self.id), detail)

    @writes
    def charge(self, transaction: Transaction, account: str, cost: Cost, action: AdminAction) -> None:
        """Charge an account by hand, in its open bucket, whatever its limit."""
        row = transaction.begin_account(account)
        amount = Amount.of(cost)
        detail = _record_action(transaction, action, "charge", account, f"{amount.rho} {amount.delta}")
        if detail is None:
            return
        transaction.advance(row)
        changes: list[tuple[str, int, Tally]] = []
        transaction.change(row, row.bucket, Tally(used=amount), changes)
        transaction.append(row, "charge", detail=canonical(detail), changes=changes)

    @writes
    def refund(self, transaction: Transaction, account: str, cost: Cost, action: AdminAction) -> None:
        """Refund charges of releases, oldest bucket first.

        Raises:
            InputError: more than is used, or, with earlier refunds in buckets that still count, more than
                `rules.REFUND_SHARE` of the limit.
        """
        row = transaction.begin_account(account)
        amount = Amount.of(cost)
        detail = _record_action(transaction, action, "refund", account, f"{amount.rho} {amount.delta}")
        if detail is None:
            return
        transaction.advance(row)
        rules.check_refund(row.terms.limit, row.tally + row.older, amount)
        closed = transaction.closed_buckets(row)
        buckets = [(bucket.number, bucket.tally.used) for bucket in closed if bucket.counting]
        changes: list[tuple[str, int, Tally]] = []
        for number, part in rules.refunded([*buckets, (row.bucket, row.tally.used)], amount):
            transaction.change(row, number, Tally(used=-part), changes)
        transaction.change(row, row.bucket, Tally(refunded=amount), changes)
        transaction.append(row, "refund", detail=canonical(detail), changes=changes)

    @writes
    def lift(self, transaction: Transaction, account: str, action: AdminAction) -> None:
        """End a suspension: an officer's, and that for failures, which no longer count towards one. Charges stay.

        Raises:
            InputError: an officer suspended the account in another data centre, where alone that can be lifted.
        """
        row = transaction.begin_account(account)
        detail = _record_action(transaction, action, "lift", account)
        if detail is None:
            return
        row.failures = ()
        row.changed = True
        transaction.append(row, "lift", detail=canonical(detail | {"account": account}))
        now = row.terms.account
        if now.suspended:  # a line of its own, without the id of the action, which is in the ledger once
            changed = escrow.altered(now, dataclasses.replace(now, suspended=False), row.spent, self.id)
            detail.pop("action", None)
            transaction.change_settings(row, changed, detail)

    @writes
    def suspend(self, transaction: Transaction, account: str, action: AdminAction) -> None:
        """Refuse the queries of an account and of all below it, until `lift`.

        Raises:
            InputError: the account was made in another data centre, where alone it can be altered.
        """
        row = transaction.begin_account(account)
        detail = _record_action(transaction, action, "suspend", account)
        if detail is not None:
            now = row.terms.account
            changed = escrow.altered(now, dataclasses.replace(now, suspended=True), row.spent, self.id)
            transaction.change_settings(row, changed, detail)

    def refresh(self) -> int:
        """Open the next bucket of all accounts whose open bucket is over; `reserve` does so for its own path.

        Returns:
            the number of buckets that were opened.
        """
        due = self.write(lambda transaction: transaction.due(), "due")
        return sum(map(self._refresh_one, due))

    @writes
    def _refresh_one(self, transaction: Transaction, account: str) -> bool:
        return transaction.advance(transaction.begin_account(account))

    def heartbeat(self) -> None:
        """Record the time of the database as seen, unless it is further ahead than the guard allows; no ledger line."""
        self.write(lambda transaction: transaction.begin_store(), "beat")
        self.writable = True  # here only: other transactions, such as replays, may succeed because they write nothing

    @writes
    def confirm_clock(self, transaction: Transaction, action: AdminAction) -> None:
        """Accept the time of the database, however far it ran ahead."""
        transaction.begin_store()
        detail = _record_action(transaction, action, "clock")
        if detail is not None:
            before_us = transaction.clock.seen_us
            transaction.trust_clock()
            transaction.append(None, "clock", detail=canonical(detail | {"seen_us": str(before_us)}))

    @writes
    def note(self, transaction: Transaction, action: AdminAction, detail: Mapping[str, str]) -> None:
        """Append an action that changes no balance, such as the creation of a key; never a secret.

        Raises:
            InputError: a value of *detail* is not text.
        """
        if not all(isinstance(value, str) for value in detail.values()):  # others are reserved: an action, a record
            raise InputError("a note holds text only")
        transaction.begin_store()
        recorded = _record_action(transaction, action, "note", canonical(detail))
        if recorded is not None:
            transaction.append(None, "note", detail=canonical(dict(detail) | recorded))

    # ---------------------------------------------------------------------------------------------- records

    def put_record(
        self,
        kind: str,
        name: str,
        text: str | None,
        action: AdminAction,
        shown: Mapping[str, Any] | None = None,
    ) -> None:
        """Store a text beside the budgets, such as the hash of an API key or a grant, or replace it.

        Args:
            text: canonical JSON (`ledger.canonical`), up to 1,000,000 characters; None removes the record.
            kind, name, action, shown: as in `change_record`.

        Raises:
            InputError: a value outside its range.
        """
        check_record(kind, name, text)
        self.change_record(kind, name, lambda _: text, action, shown, always=True)

    @writes
    def change_record(
        self,
        transaction: Transaction,
        kind: str,
        name: str,
        change: Callable[[str | None], str | None],
        action: AdminAction,
        shown: Mapping[str, Any] | None = None,
        *,
        always: bool = False,
    ) -> None:
        """Replace the text of a record by what *change* makes of it; no other change of a record is lost.

        The ledger line is a `note` that holds kind, name and the SHA-256 of the text, never the text.

        Args:
            kind: the kind of record, up to 200 printable characters without white space.
            name: unique among its kind, up to 2,000 characters that print, or tabs.
            change: returns the new text from the present one, None for no record; it is called in the transaction, and
                what it raises changes nothing.
            shown: what of the record the line shows too, as JSON, such as the columns of a grant; never a secret.
            always: True to write a line also if the text stays the same.

        Raises:
            InputError: a value outside its range.
        """
        transaction.begin_store()
        rows = _rows(transaction.db, statements.RECORD, kind, name)
        before = rows[0][0] if rows else None
        text = change(before)
        if text == before and not always:
            return
        check_record(kind, name, text)
        digest = None if text is None else hashlib.sha256(text.encode()).hexdigest()
        detail = _record_action(transaction, action, "record", kind, name, digest or "")
        if detail is not None:
            transaction.put_record(kind, name, text)
            record = {"kind": kind, "name": name, "sha256": digest}
            more = {} if shown is None else {"shown": dict(shown)}
            transaction.append(None, "note", detail=canonical(detail | {"record": record} | more))

    @reads
    def record(self, db: StoreConnection, kind: str, name: str) -> str | None:
        """Return the text of a record, or None."""
        rows = _rows(db, statements.RECORD, kind, name)
        return rows[0][0] if rows else None

    @reads
    def records(self, db: StoreConnection, kind: str) -> list[tuple[str, str]]:
        """Return name and text of all records of a kind, ordered by the code points of the names."""
        return [(name, text) for name, text in _rows(db, statements.RECORDS, kind)]

    @reads
    def records_of(self, db: StoreConnection, kind: str, account: str) -> list[tuple[str, str]]:
        """Return what follows *account* and a tab in the names of records of a kind, and their texts, ordered."""
        begin = f"{account}\t"
        rows = _rows(db, statements.RECORDS_OF, kind, begin, f"{account}\n")
        return [(name.removeprefix(begin), text) for name, text in rows]

    @reads
    def records_version(self, db: StoreConnection) -> int:
        """Return the number of changes of records so far, so that a process can detect when to read them again."""
        ((version,),) = _rows(db, statements.RECORDS_VERSION)
        return int(version)

    # ---------------------------------------------------------------------------------------------- reading

    @reads
    def path(self, db: StoreConnection, account: str) -> tuple[Account, ...]:
        """Return the account and its parents, that account first."""
        rows = _rows(db, statements.PATH, account)
        if not rows:
            raise UnknownAccount(account)
        return tuple(terms_of(settings).account for (settings,) in rows)

    def account(self, name: str) -> Account:
        """Return the account of that name."""
        return self.path(name)[0]

    @reads
    def accounts(self, db: StoreConnection) -> list[Account]:
        """Return all accounts, by name."""
        return [terms_of(settings).account for (settings,) in _rows(db, statements.ACCOUNTS)]

    @reads
    def balance(self, db: StoreConnection, account: str) -> Balance:
        """Return the balance at the time of the database; nothing is written."""
        rows = _rows(db, statements.BALANCE, account)
        if not rows:
            raise UnknownAccount(account)
        # Behind columns that are the same in all rows, each row has a bucket, or NULL if the account has none.
        raw_us, recorded_us, seq, _ = rows[0][:4]
        row = account_row(rows[0][4:14])
        buckets = [columns[14:] for columns in rows if columns[14] is not None]
        closed = [Bucket(number, end_us, True, tally_of(tally)) for number, end_us, tally in buckets]
        clock = Clock(raw_us, max(recorded_us, self._seen_us), self._guard_us)
        _open_bucket(row, closed, clock)
        total = row.tally + row.older
        return Balance(
            row.terms.account,
            total.used.cost,
            total.held.cost,
            total.forfeited.cost,
            row.resets_us(closed, clock.now_us),
            clock.now_us,
            row.head.seq if row.head else seq,
            row.suspended_until_us(clock.now_us),
        )

    @reads
    def reservation(self, db: StoreConnection, reservation: str) -> Reservation | None:
        """Return a reservation, or None."""
        rows = _rows(db, statements.GET_RESERVATION, reservation)
        row = reservation_row(rows[0]) if rows else None
        return None if row is None else row.reservation

    @reads
    def release(self, db: StoreConnection, release_key: bytes) -> StoredRelease | None:
        """Return a stored release, or None, without checking which accounts have paid for it (see `entitled`)."""
        rows = _rows(db, statements.GET_RELEASE, release_key)
        return release_row(rows[0]) if rows else None

    @reads
    def releases(self, db: StoreConnection, release_keys: Iterable[bytes]) -> list[StoredRelease]:
        """Return those of these stored releases that exist and are not damaged, in any order."""
        releases = []
        for row in _rows(db, statements.GET_RELEASES, json.dumps([key.hex() for key in release_keys])):
            with contextlib.suppress(ReleaseDamaged):
                releases.append(release_row(row))
        return [release for release in releases if release is not None]

    @reads
    def entitled(self, db: StoreConnection, account: str, release_key: bytes) -> bool:
        """Return True if the account has paid for the release."""
        return bool(_rows(db, statements.ENTITLED, account, release_key))

    @reads
    def history(
        self, db: StoreConnection, account: str, before: int | None = None, most: int = 50
    ) -> list[PaidRelease]:
        """Return the releases that the account has paid for, newest first.

        Args:
            before: the number of the last release of the previous page; None for the first page.
            most: the size of a page, from 1 to 1,000.

        Raises:
            InputError: *most* is outside its range.
        """
        if not 1 <= most <= MAX_HISTORY_PAGE:
            raise InputError(f"a page of a history has from 1 to {MAX_HISTORY_PAGE:,} releases, not {most}")
        values = (account, LAST if before is None else before, most)
        rows, exists = db.query((statements.HISTORY, values), (statements.HAS_ACCOUNT, (account,)))
        if not exists:
            raise UnknownAccount(account)
        page = []
        for number, time_us, *columns in rows:
            release_key, _, cost, *_ = columns
            try:
                release = release_row(columns)
            except ReleaseDamaged:
                release = None
            page.append(PaidRelease(number, release_key, release, cost_of(amount_of(cost)), time_us))
        return page

    # ---------------------------------------------------------------------------------------------- the ledger

    @reads
    def heads(self, db: StoreConnection) -> tuple[Head, ...]:
        """Return the last line of every chain that has one, by chain."""
        return tuple(itertools.starmap(Head, _rows(db, statements.HEADS)))

    def lines(self, chain: int = 0, after: int = 0, most: int | None = None) -> Iterator[Line]:
        """Yield at most *most* lines of a chain in order, starting after the line number *after*."""
        left = LAST if most is None else most
        while left > 0:
            page = self._page(chain, after, min(left, LINES_AT_ONCE))
            yield from page
            if len(page) < LINES_AT_ONCE:
                return
            after = page[-1].seq
            left = left - len(page)

    @reads
    def _page(self, db: StoreConnection, chain: int, after: int, most: int) -> list[Line]:
        return [Line(*row) for row in _rows(db, statements.LINES, chain, after, most)]

    def verify(self, archived: Sequence[Iterable[Line]] = ()) -> LedgerTotals:
        """Check the whole ledger and all tables against it, in one snapshot.

        Args:
            archived: all removed lines, each sequence ordered by chain and number, to check the ledger from its first
                line; empty to start from the base that replaced them.

        Raises:
            LedgerBroken: a line was changed, moved, removed or added, or a balance, a reservation, a stored release,
                an entitlement, a forfeit, a suspension, a record or the id of an action contradicts the lines.
        """
        with self.timed("verify"):
            return self._snapshot(partial(verify, archived=archived))

    @reads
    def check_old(self, db: StoreConnection, before_us: int) -> None:
        """Raise `InputError` if *before_us* is in the last 24 hours, whose lines cannot be removed."""
        pruning.check_old(db, before_us)

    def cut(self, before_us: int, heads: Sequence[Head], archive: Callable[[Iterable[Line]], object]) -> Cut:
        """Verify the ledger, and pass its lines before *before_us* to *archive*; see `BudgetManager.prune`.

        Args:
            heads: the heads of a checkpoint, whose lines are kept; that of chain 0 is not older than *before_us*.
            archive: writes the lines durably before it returns; it is called again if the connection was lost.

        Raises:
            InputError: *before_us* is in the last 24 hours.
            LedgerBroken: `verify` failed.
        """
        with self.timed("cut"):
            return self._snapshot(partial(pruning.cut, before_us=before_us, heads=heads, archive=archive))

    @writes
    def prune(self, transaction: Transaction, cut: Cut, action: AdminAction) -> None:
        """Remove the lines of a cut, and idempotency keys and ended reservations older than it, with a ledger line.

        Raises:
            InputError: lines were removed since the cut.
        """
        pruning.prune(transaction, cut, action)

    def _check_not_behind(self) -> None:
        if self.behind:
            raise StoreBehind("the store is not that of its last checkpoint, so nothing is answered from it")


class _DryRun(DiscreetError):
    """Rolls back a transaction that would have been committed."""

    def __init__(self, answer: Any) -> None:  # noqa: ANN401 - of any work
        super().__init__("nothing was changed")
        self.answer = answer


class _Within(BudgetStore):
    """A store whose methods are parts of one transaction of another store."""

    def __init__(self, outer: BudgetStore, transaction: Transaction, guard_us: int) -> None:
        super().__init__(guard_us)
        self._outer = outer
        self._transaction = transaction
        self.behind = outer.behind

    @property
    def id(self) -> str:
        return self._outer.id

    def close(self) -> None:
        """Do nothing: the other store is open."""

    def _write(self, work: Callable[[Transaction], Answer]) -> Answer:
        answer = work(self._transaction)
        self._transaction.flush()  # so that the next part reads it
        return answer

    def _read(self, work: Callable[[StoreConnection], Answer]) -> Answer:
        return work(self._transaction.db)

    def _snapshot(self, work: Callable[[StoreConnection], Answer]) -> Answer:
        return self._read(work)


def _answer_repeated_claim(claim: Claim, row: ReservationRow, release: StoredRelease | None) -> Admission:
    """Answer a claim that was sent before."""
    if (row.account, row.release_key, row.worst) != (claim.account, claim.release_key, Amount.of(claim.worst)):
        raise InvariantViolated("the id of a reservation is used once")
    if row.state is State.SETTLED:
        return Replay(_require_release(release), Cost())
    if row.state in {State.VOID, State.FORFEIT}:
        raise LeaseLost
    return row.reservation


def _admit(transaction: Transaction, claim: Claim, facts: ClaimFacts) -> Admission:
    """Answer a claim that has to be paid for."""
    path = facts.path
    for account in path:
        transaction.advance(account)
    forfeits = _newest_forfeits(transaction, path, claim.release_key) if facts.forfeits else {}
    states = []
    for account in path:
        terms = account.terms
        forfeit = forfeits.get(account.id)
        funded = NOTHING if forfeit is None else forfeit.amount
        states.append(
            rules.AccountState(
                account.id, terms.limit, terms.enforced, account.bucket, account.spent, account.paid, funded
            )
        )
    holds = rules.admit(states, Amount.of(claim.worst))
    if isinstance(holds, rules.Shortfall):
        needed = {"rho": str(holds.needed.rho), "delta": str(holds.needed.delta)}
        _refuse(transaction, claim, path[0], {"short": holds.account} | needed)
        short = next(account for account in path if account.id == holds.account)
        return Refusal(short.id, holds.needed.cost, holds.remaining.cost, transaction.resets_us(short))
    changes: list[tuple[str, int, Tally]] = []
    for account in path:  # what pays for a retry is no longer forfeited
        if account.id in forfeits:
            forfeit = forfeits[account.id]
            transaction.drop_forfeit(forfeit)
            transaction.change(account, forfeit.bucket, Tally(forfeited=-forfeit.amount), changes)
    transaction.remember_key(claim)
    if facts.release is not None:
        cost = Amount.of(facts.release.cost)
        before = len(changes)
        for account, hold in zip(path, holds, strict=True):
            charge = rules.held(hold) + rules.settled(hold, cost, account.paid)
            transaction.change(account, hold.bucket, charge, changes)
        transaction.entitle([account.id for account in path if not account.paid], claim.release_key)
        detail = _reservation_detail(claim.account, claim.release_key, facts.release.result)
        transaction.append(path[0], "replay", claim.reservation, detail, changes)
        return Replay(facts.release, changes[before][2].used.cost)
    return _make_reservation(transaction, claim, path, holds, changes)


def _refuse(transaction: Transaction, claim: Claim, account: AccountRow, why: Mapping[str, str]) -> None:
    """Append the line of a refused claim."""
    question = {"question": json.loads(claim.question)} if claim.question else {}
    transaction.append(account, "refuse", claim.reservation, canonical({"by": claim.account, **why, **question}))


def _newest_forfeits(transaction: Transaction, path: list[AccountRow], release_key: bytes) -> dict[str, ForfeitRow]:
    """Return the newest forfeit in a bucket that still counts, for each account that has not paid."""
    rows = transaction.forfeits(path[0].id, release_key)
    forfeits: dict[str, ForfeitRow] = {}
    for account in path:
        own = [row for row in rows if row.account == account.id and not account.paid]
        closed = transaction.closed_buckets(account) if own else []
        counting = {account.bucket} | {bucket.number for bucket in closed if bucket.counting}
        for row in own:
            if row.bucket in counting:
                forfeits[account.id] = row
    return forfeits


def _make_reservation(
    transaction: Transaction,
    claim: Claim,
    path: list[AccountRow],
    holds: tuple[AccountHold, ...],
    changes: list[tuple[str, int, Tally]],
) -> Reservation:
    """Make a new reservation."""
    until_us = transaction.clock.now_us + claim.lease_ms * 1000
    worst = Amount.of(claim.worst)
    row = ReservationRow(
        claim.reservation, claim.account, claim.release_key, worst, holds, State.HELD, until_us, claim.lease_ms
    )
    transaction.add_reservation(row)
    for account, hold in zip(path, holds, strict=True):
        transaction.change(account, hold.bucket, rules.held(hold), changes)
    transaction.append(
        path[0],
        "reserve",
        claim.reservation,
        _reservation_detail(claim.account, claim.release_key, question=claim.question),
        changes,
    )
    return row.reservation


def _end(transaction: Transaction, reservation: str, event: Event) -> None:
    """Void or forfeit a reservation."""
    facts = transaction.begin_event(statements.END, reservation)
    row = _require(facts.row)
    after = requested(row.state, event)
    if after is not row.state:
        _end_reservation(transaction, facts.path, row, after, event)


def _end_reservation(
    transaction: Transaction, path: list[AccountRow], row: ReservationRow, after: State, event: Event
) -> None:
    """End a reservation as VOID or FORFEIT."""
    changes: list[tuple[str, int, Tally]] = []
    for account, hold in zip(path, row.holds, strict=True):
        ended = rules.ended(hold, after)
        transaction.change(account, hold.bucket, ended, changes)
        if ended.forfeited:
            transaction.add_forfeit(hold, row.release_key, ended.forfeited)
    if event is Event.FORFEIT:
        path[0].failures = rules.failed(path[0].failures, transaction.clock.now_us)
    transaction.update_reservation(row.id, after)
    transaction.append(path[0], event.value, row.id, _reservation_detail(row.account, row.release_key), changes)


def _check_fingerprint(transaction: Transaction, fingerprint: Fingerprint, stored: bytes | None) -> None:
    """Store the digest of an engine's result, or compare it with the stored one."""
    if stored is None:
        transaction.add_fingerprint(fingerprint)
    elif stored != fingerprint.digest:
        raise DataChanged


def _require(row: ReservationRow | None) -> ReservationRow:
    if row is None:
        raise LeaseLost
    return row


def _require_release(release: StoredRelease | None) -> StoredRelease:
    if release is None:
        raise InvariantViolated("a release that was paid for is not stored")
    return release


def _reservation_detail(account: str, release_key: bytes, result: bytes | None = None, question: str = "") -> str:
    """Return the detail of a ledger line about a reservation: canonical JSON, formatted by hand for speed."""
    part = f',"question":{question}' if question else ""
    end = "" if result is None else f',"result":"{hashlib.sha256(result).hexdigest()}"'
    return f'{{"by":{json.dumps(account)}{part},"release":"{release_key.hex()}"{end}}}'


def _record_action(transaction: Transaction, action: AdminAction, *what: str) -> dict[str, object] | None:
    """Return the ledger detail of an action, or None if the same action was done before.

    Raises:
        KeyReused: another action has its id.
    """
    detail: dict[str, object] = {"actor": action.actor, "reason": action.reason}
    name = {"name": action.name} if action.name else {}  # not part of the digest, which identifies who did what
    if action.id is None:
        transaction.repeatable = False
        return detail | name
    digest = hashlib.sha256(canonical(detail | {"what": what}).encode()).digest()
    earlier = transaction.action_digest(action.id)
    if earlier is None:
        transaction.add_action(action.id, digest)
        return detail | name | {"action": {"id": action.id, "sha256": digest.hex()}}
    if earlier != digest:
        raise KeyReused
    return None


def _rows(db: StoreConnection, statement: str, *values: Any) -> list[Any]:
    return db.query((statement, values))[0]


def _open_bucket(row: AccountRow, closed: list[Bucket], clock: Clock) -> None:
    """Make *row* and *closed* those of the next bucket, as far as a balance shows them, if the open one is over."""
    if row.end_us == NEVER_US:
        return
    try:
        due = clock.has_passed(row.end_us)
    except ClockError:
        return
    if not due:
        return
    period = row.terms.period
    now_us = clock.now_us
    closed.append(Bucket(row.bucket, row.end_us, True, row.tally))
    closed[:] = [bucket for bucket in closed if still_counts(period, bucket.end_us, now_us)]
    row.tally = EMPTY
    row.older = EMPTY
    for bucket in closed:
        row.older += bucket.tally
