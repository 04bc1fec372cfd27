"""`BudgetStore`, the base class of the stores: everything but how a transaction runs on a database."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from discreet.budget.errors import ClockError, StoreUnavailable, UnknownAccount
from discreet.budget.ledger import Head, Line
from discreet.budget.model import EMPTY, Amount, Balance, PaidRelease, check_record
from discreet.budget.periods import GUARD_US, NEVER_US, Clock, bucket_end, still_counts
from discreet.budget.rules import Event
from discreet.budget.stores import operations, pruning, statements
from discreet.budget.stores.rows import LAST, Bucket, account_row, release_row, reservation_row, tally_of, terms_of
from discreet.budget.stores.transfers import ShareStore
from discreet.budget.stores.verify import verify
from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from discreet.budget.ledger_replay import LedgerTotals
    from discreet.budget.model import (
        Account,
        AdminAction,
        Admission,
        Claim,
        Fingerprint,
        Reservation,
        Settled,
        StoredRelease,
    )
    from discreet.budget.stores.pruning import Cut
    from discreet.budget.stores.rows import AccountRow
    from discreet.budget.stores.transaction import Connection, Transaction
    from discreet.values import Cost

Answer = TypeVar("Answer")

HISTORY_PAGE_MOST = 1_000
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

    The rules are pure (`rules`, `periods`); accounts on a path are locked from the account that is charged to the root.
    Every change appends a line to the ledger in the same transaction. Timestamps come from the database's clock
    (`periods.Clock`).

    Every method but `close` raises `StoreUnavailable` when the database cannot be reached or cannot write. Methods with
    the name of an account raise `UnknownAccount` if it does not exist, and `ClockError` if they would open a bucket of
    it while the clock is further ahead than the guard allows.

    Args:
        guard_us: how far the clock may run ahead of the last time seen.

    Attributes:
        writable: False from the first transaction that could not be written until a `heartbeat` is.
    """

    def __init__(self, guard_us: int = GUARD_US) -> None:
        self._guard_us = guard_us
        self._seen_us = 0  # the latest time that this process has seen
        self.writable = True

    @property
    @abstractmethod
    def id(self) -> str:
        """The random id of the store, generated when it was created; a copy of the store has the same id."""

    def write(self, work: Callable[[Transaction], Answer], *, repeat: bool) -> Answer:
        """Run *work* in a transaction and return its result once the commit is durable.

        Args:
            repeat: True if *work* may be repeated when it is unknown whether it was committed.
        """
        try:
            return self._write(work, repeat=repeat)
        except StoreUnavailable:
            self.writable = False
            raise

    @abstractmethod
    def _write(self, work: Callable[[Transaction], Answer], *, repeat: bool) -> Answer:
        """Run *work* as `write` does."""

    @abstractmethod
    def read(self, work: Callable[[Connection], Answer]) -> Answer:
        """Run *work*, which reads the committed state, and return its result."""

    @abstractmethod
    def close(self) -> None:
        """Finish running operations and close the database; later calls raise `StoreUnavailable`."""

    @abstractmethod
    def _snapshot(self, work: Callable[[Connection], Answer]) -> Answer:
        """Run *work*, which may take long, on one snapshot of the database and return its result."""

    @property
    def shares(self) -> ShareStore:
        """The shares of budgets that are split over data centres."""
        return ShareStore(self)

    # ---------------------------------------------------------------------------------------------- claims

    def reserve(self, claim: Claim) -> Admission:
        """Hold the worst case on every account of the path, or return a stored release.

        In this order:

        1. the reservation's id is known: the first answer again (`Reservation` in its present state, or `Replay`);
        2. the idempotency key is known with another digest: `KeyReused`;
        3. a reservation of the account with that idempotency key or that release key is HELD or RUNNING: `InFlight`;
        4. the account has paid for the release of the last request with the idempotency key, even if that is not the
           claim's: `Replay`, charged nothing;
        5. the account has paid for the release: `Replay`, charged nothing;
        6. the account enforces, and too many of its runs failed lately (`rules.suspended_until_us`):
           `Suspension`, with a ledger line;
        7. an account on the path cannot hold the worst case: `Refusal`, with a ledger line;
        8. the release is stored: `Replay`; its cost is charged to the accounts on the path that have not paid for it
           (step 7 requires room for the worst case, so that a refusal reveals nothing about a release not yet paid
           for);
        9. `Reservation`, HELD. A forfeit of the account for this release key, in a bucket that still counts, pays
           first. An account that has paid for this release key holds nothing.

        Raises:
            KeyReused: see step 2.
        """
        return self.write(lambda transaction: operations.reserve(transaction, claim), repeat=True)

    def start(self, reservation: str) -> Reservation:
        """Change HELD to RUNNING: from here on the data may be queried. The lease begins again.

        Raises:
            LeaseLost: the reservation has ended, or its lease is over.
        """
        return self.write(lambda transaction: operations.start(transaction, reservation), repeat=True)

    def settle(self, reservation: str, actual: Cost, result: bytes, fingerprint: Fingerprint | None = None) -> Settled:
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
        amount = Amount.of(actual)
        return self.write(
            lambda transaction: operations.settle(transaction, reservation, amount, result, fingerprint), repeat=True
        )

    def void(self, reservation: str) -> None:
        """Change HELD to VOID: no data was queried. Amounts that came out of a forfeit return to it; the rest is free.

        Raises:
            LeaseLost: the reservation has ended in another state.
            InvariantViolated: it is RUNNING: data may have been queried, so that it can only be forfeited.
        """
        self.write(lambda transaction: operations.end(transaction, reservation, Event.VOID), repeat=True)

    def forfeit(self, reservation: str) -> None:
        """Change RUNNING to FORFEIT: the held amount stays charged, and pays for a retry of the same release key only.

        It counts towards a suspension of the account; a RUNNING reservation that expires or is lost does not.

        Raises:
            LeaseLost: the reservation has ended in another state.
            InvariantViolated: the reservation was never started.
        """
        self.write(lambda transaction: operations.end(transaction, reservation, Event.FORFEIT), repeat=True)

    def lose(self, reservation: str) -> None:
        """End an open reservation whose client disconnected: HELD as VOID, RUNNING as FORFEIT.

        This does not count towards a suspension, because the data did not cause it. An ended reservation stays as it
        is.
        """
        self.write(lambda transaction: operations.lose(transaction, reservation), repeat=True)

    def expire(self) -> int:
        """End all reservations whose lease is over: HELD as VOID, RUNNING as FORFEIT.

        Returns:
            the number of reservations that ended.
        """
        ended, found = 0, 1
        while found:
            names = self.write(lambda transaction: transaction.expired(), repeat=True)
            found = sum(self.write(partial(operations.expire, reservation=name), repeat=True) for name in names)
            ended += found
        return ended

    def recover(self) -> int:
        """End all open reservations of processes that have ended: HELD as VOID, RUNNING as FORFEIT.

        They do not count towards a suspension: a crash is not the analyst's fault. Call it before the first claim.

        Returns:
            the number of reservations that ended.
        """
        names = [name for (name,) in self._rows(statements.LOST)]
        return sum(self.write(partial(operations.lose, reservation=name), repeat=True) for name in names)

    # ---------------------------------------------------------------------------------------------- accounts and time

    def create(self, account: Account, action: AdminAction) -> None:
        """Create an account; its parent must exist.

        Raises:
            InputError: the name is taken, or the parent does not exist.
        """
        self._act(lambda transaction: operations.create(transaction, account, action), action)

    def alter(self, account: Account, action: AdminAction, before: Account | None = None) -> None:
        """Change limit, delta, period, mode or units. A limit below the amount spent is allowed and leaves nothing.

        *before* is the account as the caller read it: the new settings must not undo a concurrent change.

        If the period changes, the open bucket closes now and one of the new period opens; for all closed buckets it is
        decided again whether they count, by the new period.

        Raises:
            InputError: the parent differs, or the account is split over data centres and cannot be altered like this.
            AccountChanged: the account differs from *before*; nothing changed.
        """
        self._act(lambda transaction: operations.alter(transaction, account, action, self.id, before), action)

    def charge(self, account: str, cost: Cost, action: AdminAction) -> None:
        """Charge an account by hand, in its open bucket, whatever its limit."""
        self._act(lambda transaction: operations.charge(transaction, account, cost, action), action)

    def refund(self, account: str, cost: Cost, action: AdminAction) -> None:
        """Refund charges of releases, oldest bucket first.

        Raises:
            InputError: more than is used, or, with earlier refunds in buckets that still count, more than
                `rules.REFUND_SHARE` of the limit.
        """
        self._act(lambda transaction: operations.refund(transaction, account, cost, action), action)

    def lift(self, account: str, action: AdminAction) -> None:
        """End a suspension: past failures no longer count towards one. Charges stay."""
        self._act(lambda transaction: operations.lift(transaction, account, action), action)

    def refresh(self) -> int:
        """Open the next bucket of all accounts whose open bucket is over; `reserve` does so for its own path.

        Returns:
            the number of buckets that were opened.
        """
        names = self.write(lambda transaction: transaction.due(), repeat=True)
        return sum(self.write(partial(operations.refresh, account=name), repeat=True) for name in names)

    def heartbeat(self) -> None:
        """Record the time of the database as seen, unless it is further ahead than the guard allows; no ledger line."""
        self.write(lambda transaction: transaction.begin_store(), repeat=True)
        self.writable = True  # here only: other transactions, such as replays, may succeed because they write nothing

    def confirm_clock(self, action: AdminAction) -> None:
        """Accept the time of the database, however far it ran ahead."""
        self._act(lambda transaction: operations.confirm_clock(transaction, action), action)

    def note(self, action: AdminAction, detail: Mapping[str, str]) -> None:
        """Append an action that changes no balance, such as the creation of a key; never a secret.

        Raises:
            InputError: a value of *detail* is not text.
        """
        self._act(lambda transaction: operations.note(transaction, action, detail), action)

    # ---------------------------------------------------------------------------------------------- records

    def put_record(self, kind: str, name: str, text: str | None, action: AdminAction) -> None:
        """Store a text beside the budgets, such as the hash of an API key or a grant, or replace it.

        The ledger line is a `note` that holds kind, name and the SHA-256 of the text, never the text.

        Args:
            kind: the kind of record, up to 200 printable characters without white space.
            name: unique among its kind, up to 2,000 characters that print, or tabs.
            text: canonical JSON (`ledger.canonical`), up to 1,000,000 characters; None removes the record.

        Raises:
            InputError: a value outside its range.
        """
        check_record(kind, name, text)
        self._act(lambda transaction: operations.put_record(transaction, kind, name, text, action), action)

    def record(self, kind: str, name: str) -> str | None:
        """Return the text of a record, or None."""
        rows = self._rows(statements.RECORD, (kind, name))
        return rows[0][0] if rows else None

    def records(self, kind: str) -> list[tuple[str, str]]:
        """Return name and text of all records of a kind, ordered by the code points of the names."""
        return [(name, text) for name, text in self._rows(statements.RECORDS, (kind,))]

    def records_version(self) -> int:
        """Return the number of changes of records so far, so that a process can detect when to read them again."""
        ((version,),) = self._rows(statements.RECORDS_VERSION)
        return int(version)

    # ---------------------------------------------------------------------------------------------- reading

    def path(self, account: str) -> tuple[Account, ...]:
        """Return the account and its parents, that account first."""
        rows = self._rows(statements.PATH, (account,))
        if not rows:
            raise UnknownAccount(account)
        return tuple(terms_of(settings).account for (settings,) in rows)

    def account(self, name: str) -> Account:
        """Return the account of that name."""
        return self.path(name)[0]

    def accounts(self) -> list[Account]:
        """Return all accounts, by name."""
        return [terms_of(settings).account for (settings,) in self._rows(statements.ACCOUNTS)]

    def balance(self, account: str) -> Balance:
        """Return the balance at the time of the database; nothing is written."""
        rows = self._rows(statements.BALANCE, (account,))
        if not rows:
            raise UnknownAccount(account)
        raw_us, recorded_us, seq, _ = rows[0][:4]
        row = account_row(rows[0][4:14])
        closed = [Bucket(each[14], each[15], True, tally_of(each[16])) for each in rows if each[14] is not None]
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

    def reservation(self, reservation: str) -> Reservation | None:
        """Return a reservation, or None."""
        rows = self._rows(statements.GET_RESERVATION, (reservation,))
        row = reservation_row(rows[0]) if rows else None
        return None if row is None else row.reservation

    def release(self, release_key: bytes) -> StoredRelease | None:
        """Return a stored release, or None, without checking which accounts have paid for it (see `entitled`)."""
        rows = self._rows(statements.GET_RELEASE, (release_key,))
        return release_row(rows[0]) if rows else None

    def entitled(self, account: str, release_key: bytes) -> bool:
        """Return True if the account has paid for the release."""
        return bool(self._rows(statements.ENTITLED, (account, release_key)))

    def history(self, account: str, before: int | None = None, most: int = 50) -> list[PaidRelease]:
        """Return the releases that the account has paid for, newest first.

        Args:
            before: the number of the last release of the previous page; None for the first page.
            most: the size of a page, from 1 to 1,000.

        Raises:
            InputError: *most* is outside its range.
        """
        if not 1 <= most <= HISTORY_PAGE_MOST:
            raise InputError(f"a page of a history has from 1 to {HISTORY_PAGE_MOST:,} releases, not {most}")
        values = (account, LAST if before is None else before, most)
        rows, known = self.read(lambda db: db.query((statements.HISTORY, values), (statements.HAS_ACCOUNT, (account,))))
        if not known:
            raise UnknownAccount(account)
        found = ((number, time_us, release_row(columns)) for number, time_us, *columns in rows)
        return [
            PaidRelease(number, release, release.cost, time_us)
            for number, time_us, release in found
            if release is not None
        ]

    # ---------------------------------------------------------------------------------------------- the ledger

    def heads(self) -> tuple[Head, ...]:
        """Return the last line of every chain that has one, by chain."""
        return tuple(itertools.starmap(Head, self._rows(statements.HEADS)))

    def lines(self, chain: int = 0, after: int = 0, most: int | None = None) -> Iterator[Line]:
        """Yield at most *most* lines of a chain in order, starting after the line number *after*."""
        left = LAST if most is None else most
        while left > 0:
            page = [Line(*row) for row in self._rows(statements.LINES, (chain, after, min(left, LINES_AT_ONCE)))]
            yield from page
            if len(page) < LINES_AT_ONCE:
                return
            after, left = page[-1].seq, left - len(page)

    def verify(self, archived: Sequence[Iterable[Line]] = ()) -> LedgerTotals:
        """Check the whole ledger and all tables against it, in one snapshot.

        Args:
            archived: all removed lines, each sequence ordered by chain and number, to check the ledger from its first
                line; empty to start from the base that replaced them.

        Raises:
            LedgerBroken: a line was changed, moved, removed or added, or a balance, a reservation, a stored release,
                an entitlement, a forfeit, a suspension, a record or the id of an action contradicts the lines.
        """
        return self._snapshot(partial(verify, archived=archived))

    def check_old(self, before_us: int) -> None:
        """Raise `InputError` if *before_us* is in the last 24 hours, whose lines cannot be removed."""
        self.read(partial(pruning.check_old, before_us=before_us))

    def cut(self, before_us: int, heads: Sequence[Head], archive: Callable[[Iterable[Line]], object]) -> Cut:
        """Verify the ledger, and pass its lines before *before_us* to *archive*; see `BudgetManager.prune`.

        Args:
            heads: the heads of a checkpoint, whose lines are kept; that of chain 0 is not older than *before_us*.
            archive: writes the lines durably before it returns; it is called again if the connection was lost.

        Raises:
            InputError: *before_us* is in the last 24 hours.
            LedgerBroken: `verify` failed.
        """
        return self._snapshot(partial(pruning.cut, before_us=before_us, heads=heads, archive=archive))

    def prune(self, cut: Cut, action: AdminAction) -> None:
        """Remove the lines of a cut, and idempotency keys and ended reservations older than it, with a ledger line.

        Raises:
            InputError: lines were removed since the cut.
        """
        self.write(lambda transaction: pruning.prune(transaction, cut, action), repeat=False)

    # ---------------------------------------------------------------------------------------------- inside

    def _act(self, work: Callable[[Transaction], None], action: AdminAction) -> None:
        """Run an action in a transaction, which may be repeated if the action has an id."""
        self.write(work, repeat=action.id is not None)

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return self.read(lambda db: db.query((statement, values)))[0]


def _open_bucket(row: AccountRow, closed: list[Bucket], clock: Clock) -> None:
    """Open the next bucket in *row* and *closed*, without writing it, if the open one is over."""
    if row.end_us == NEVER_US:
        return
    try:
        due = clock.has_passed(row.end_us)
    except ClockError:
        return
    if not due:
        return
    period, now_us = row.terms.period, clock.now_us
    closed.append(Bucket(row.bucket, row.end_us, True, row.tally))
    closed[:] = [bucket for bucket in closed if still_counts(period, bucket.end_us, now_us)]
    row.bucket, row.end_us, row.tally, row.older = row.bucket + 1, bucket_end(period, now_us), EMPTY, EMPTY
    for bucket in closed:
        row.older += bucket.tally
