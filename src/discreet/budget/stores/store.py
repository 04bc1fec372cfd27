"""`BudgetStore`, the base class of the stores: everything but how a transaction runs on a database."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from discreet.budget.errors import ClockError, UnknownAccount
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

    Each method is one transaction: wholly done and durable when it returns, or not done. A method that raises has
    changed nothing. A method whose answer was lost, as by a broken connection at COMMIT, may be called again: a claim
    is known by the id of its reservation, an event by the state that it leads to, an action by its id if it has one,
    and what is repeated changes nothing. An action with the id of a different one raises `KeyReused`.

    The rules are pure (`rules`, `periods`); accounts on a path are locked from the account that is charged upward.
    Every change appends a line to the ledger in its own transaction. Time is the database's (`periods.Clock`).

    Every method but `close` raises `StoreUnavailable` when the database cannot be reached or cannot write. Methods that
    name an account raise `UnknownAccount` if there is none, and `ClockError` if they would open a bucket of it while
    the clock is ahead further than the guard allows.

    Args:
        guard_us: how far the clock may run ahead of the last time seen.
    """

    def __init__(self, guard_us: int = GUARD_US) -> None:
        self._guard_us = guard_us
        self._seen_us = 0  # the latest time that this process has seen

    @property
    @abstractmethod
    def id(self) -> str:
        """The id of the store, random, made when it was created; a copy has the same, a new store another."""

    @abstractmethod
    def write(self, work: Callable[[Transaction], Answer], *, repeat: bool) -> Answer:
        """Run *work* in a transaction and return what it returns, once that is durable.

        Args:
            repeat: True if it may be done again when it is not known whether it was committed.
        """

    @abstractmethod
    def read(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what *work* reads of the committed state."""

    @abstractmethod
    def close(self) -> None:
        """Finish what is under way and close the database; calls after that raise `StoreUnavailable`."""

    @abstractmethod
    def _snapshot(self, work: Callable[[Connection], Answer]) -> Answer:
        """Return what *work* reads, all of it in one state of the database; it may take long."""

    @property
    def shares(self) -> ShareStore:
        """The shares of budgets that are split over data centres."""
        return ShareStore(self)

    # ---------------------------------------------------------------------------------------------- claims

    def reserve(self, claim: Claim) -> Admission:
        """Hold the worst case on every account of the path, or answer from what is stored.

        In this order:

        1. the reservation's id is known: as the first time (`Reservation` in its present state, or `Replay`);
        2. the idempotency key is known with another digest: `KeyReused`;
        3. a reservation of the account with that idempotency key or that release key is HELD or RUNNING: `InFlight`;
        4. the account has paid for the release that the idempotency key came with last, even where that is not the
           claim's: `Replay`, charged nothing;
        5. the account has paid for the release: `Replay`, charged nothing;
        6. the account enforces, and too many of its runs failed lately (`rules.suspended_until_us`):
           `Suspension`, with a ledger line;
        7. an account on the path cannot hold the worst case: `Refusal`, with a ledger line;
        8. the release is stored: `Replay`, the account charged what it cost (step 7 requires room for the worst
           case, so that a refusal reveals nothing about a release not yet paid for), shared accounts that paid before
           nothing;
        9. `Reservation`, HELD. What an account forfeited for this release key, in a bucket that still counts, pays
           first. An account that has paid for this release key holds nothing.

        Raises:
            KeyReused: see step 2.
        """
        return self.write(lambda transaction: operations.reserve(transaction, claim), repeat=True)

    def start(self, reservation: str) -> Reservation:
        """Change HELD to RUNNING: from here on the data may be queried. The lease begins again.

        Raises:
            LeaseLost: it has ended, or its lease is over.
        """
        return self.write(lambda transaction: operations.start(transaction, reservation), repeat=True)

    def settle(self, reservation: str, actual: Cost, result: bytes, fingerprint: Fingerprint | None = None) -> Settled:
        """Change RUNNING to SETTLED: charge the actual cost, free the rest, store the bytes; all in one transaction.

        The fingerprint is stored, too, by its head key, and is never returned. If the release was stored meanwhile, its
        bytes and its cost count, not the caller's; an account that has paid for the release pays nothing. Charges go to
        the buckets of the reservation. Only the bytes that it returned may be sent to the
        caller, and only after it returned.

        Raises:
            LeaseLost: the reservation has ended: the answer must be dropped.
            DataChanged: the head key is known with another digest; nothing changed, and the caller forfeits.
            InvariantViolated: the actual cost is above the worst case, or it was never started; nothing changed.
        """
        amount = Amount.of(actual)
        return self.write(
            lambda transaction: operations.settle(transaction, reservation, amount, result, fingerprint), repeat=True
        )

    def void(self, reservation: str) -> None:
        """Change HELD to VOID: no data was queried. What a forfeit paid goes back to it, the rest is free.

        Raises:
            LeaseLost: it has ended otherwise.
            InvariantViolated: it is RUNNING: data may have been queried, so that it can only be forfeited.
        """
        self.write(lambda transaction: operations.end(transaction, reservation, Event.VOID), repeat=True)

    def forfeit(self, reservation: str) -> None:
        """Change RUNNING to FORFEIT: what is held stays charged, and pays for a retry of the same release key only.

        It counts towards a suspension of the account; a RUNNING reservation that expires or is lost does not.

        Raises:
            LeaseLost: it has ended otherwise.
            InvariantViolated: it was never started.
        """
        self.write(lambda transaction: operations.end(transaction, reservation, Event.FORFEIT), repeat=True)

    def lose(self, reservation: str) -> None:
        """End an open reservation whose client has gone, HELD as VOID and RUNNING as FORFEIT.

        It does not count towards a suspension: the client decided, not the data. One that has ended stays as it is.
        """
        self.write(lambda transaction: operations.lose(transaction, reservation), repeat=True)

    def expire(self) -> int:
        """End all reservations whose lease is over, HELD as VOID and RUNNING as FORFEIT.

        Returns:
            how many.
        """
        ended, found = 0, 1
        while found:
            names = self.write(lambda transaction: transaction.expired(), repeat=True)
            found = sum(self.write(partial(operations.expire, reservation=name), repeat=True) for name in names)
            ended += found
        return ended

    def recover(self) -> int:
        """End all open reservations of processes that have ended, HELD as VOID and RUNNING as FORFEIT.

        They do not count towards a suspension: a crash is not the analyst's fault. Call it before the first claim.

        Returns:
            how many ended.
        """
        names = [name for (name,) in self._rows(statements.LOST)]
        return sum(self.write(partial(operations.lose, reservation=name), repeat=True) for name in names)

    # ---------------------------------------------------------------------------------------------- accounts and time

    def create(self, account: Account, action: AdminAction) -> None:
        """Create an account; its parent must exist.

        Raises:
            InputError: there is one of that name already, or no such parent.
        """
        self._act(lambda transaction: operations.create(transaction, account, action), action)

    def alter(self, account: Account, action: AdminAction, before: Account | None = None) -> None:
        """Change limit, delta, period, mode or units. A limit below what is spent is legal: nothing is left then.

        *before* is the account as it was read: writing it back must not undo a change that was made meanwhile.

        If the period changes, its open bucket closes now and one of the new period opens; all buckets ever charged are
        looked at again, so that every charge counts that the new period counts.

        Raises:
            InputError: another parent.
            AccountChanged: it is not as *before* any more; nothing changed.
        """
        self._act(lambda transaction: operations.alter(transaction, account, action, self.id, before), action)

    def charge(self, account: str, cost: Cost, action: AdminAction) -> None:
        """Charge an account by hand, in its open bucket, whatever its limit."""
        self._act(lambda transaction: operations.charge(transaction, account, cost, action), action)

    def refund(self, account: str, cost: Cost, action: AdminAction) -> None:
        """Give back charges of releases, oldest bucket first.

        Raises:
            InputError: more than is used, or more than `rules.REFUND_SHARE` of the limit with what was refunded before
                in buckets that count.
        """
        self._act(lambda transaction: operations.refund(transaction, account, cost, action), action)

    def lift(self, account: str, action: AdminAction) -> None:
        """End a suspension: past failures count towards none any more. Charges stay."""
        self._act(lambda transaction: operations.lift(transaction, account, action), action)

    def refresh(self) -> int:
        """Open the buckets of all accounts whose period has moved on; `reserve` does so for its own path.

        Returns:
            how many.
        """
        names = self.write(lambda transaction: transaction.due(), repeat=True)
        return sum(self.write(partial(operations.refresh, account=name), repeat=True) for name in names)

    def heartbeat(self) -> None:
        """Record the time of the database as seen, unless it ran ahead further than the guard; no ledger line."""
        self.write(lambda transaction: transaction.begin_store(), repeat=True)

    def confirm_clock(self, action: AdminAction) -> None:
        """Take the time of the database as right, however far it ran ahead."""
        self._act(lambda transaction: operations.confirm_clock(transaction, action), action)

    def note(self, action: AdminAction, detail: Mapping[str, str]) -> None:
        """Append an action that changes no balance, such as a key that was made; never a secret.

        Raises:
            InputError: something in *detail* is no text.
        """
        self._act(lambda transaction: operations.note(transaction, action, detail), action)

    # ---------------------------------------------------------------------------------------------- records

    def put_record(self, kind: str, name: str, text: str | None, action: AdminAction) -> None:
        """Store a text beside the budgets, such as the hash of an API key or a grant, replacing the one before.

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
        """Return name and text of all records of a kind, by name (by code point)."""
        return [(name, text) for name, text in self._rows(statements.RECORDS, (kind,))]

    def records_version(self) -> int:
        """Return how often records were put or removed, by which a process knows when to read them again."""
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
        """Return a stored release, or None, without a check who paid for it (see `entitled`)."""
        rows = self._rows(statements.GET_RELEASE, (release_key,))
        return release_row(rows[0]) if rows else None

    def entitled(self, account: str, release_key: bytes) -> bool:
        """Return True if the account has paid for the release."""
        return bool(self._rows(statements.ENTITLED, (account, release_key)))

    def history(self, account: str, before: int | None = None, most: int = 50) -> list[PaidRelease]:
        """Return what the account paid for, newest first.

        Args:
            before: the number of the last one of the page before; None for the first page.
            most: at most so many, from 1 to 1,000.

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
        """Yield the lines of a chain in order, from the one after *after*, at most *most*."""
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
            archived: the lines that were removed, each by chain and number. With all of them the ledger is checked from
                its first line; without, from the base that stands for them.

        Raises:
            LedgerBroken: a line was changed, moved, removed or added, or a balance, a reservation, a stored release,
                who paid for it, a forfeit, a suspension, a record or the id of an action is not as the lines say.
        """
        return self._snapshot(partial(verify, archived=archived))

    def check_old(self, before_us: int) -> None:
        """Raise `InputError` if *before_us* is in the last 24 hours, of which no lines can be removed."""
        self.read(partial(pruning.check_old, before_us=before_us))

    def cut(self, before_us: int, heads: Sequence[Head], archive: Callable[[Iterable[Line]], object]) -> Cut:
        """Verify the ledger, and give its lines before *before_us* to *archive*, see `BudgetManager.prune`.

        Args:
            heads: the heads of a checkpoint; their lines stay, and that of chain 0 is not older than *before_us*.
            archive: writes the lines durably before it returns; it is called again if the connection was lost.

        Raises:
            InputError: *before_us* is in the last 24 hours.
            LedgerBroken: as `verify`.
        """
        return self._snapshot(partial(pruning.cut, before_us=before_us, heads=heads, archive=archive))

    def prune(self, cut: Cut, action: AdminAction) -> None:
        """Remove the lines of a cut, the idempotency keys and the ended reservations that are as old, with a line.

        Raises:
            InputError: lines were removed since the cut.
        """
        self.write(lambda transaction: pruning.prune(transaction, cut, action), repeat=False)

    # ---------------------------------------------------------------------------------------------- inside

    def _act(self, work: Callable[[Transaction], None], action: AdminAction) -> None:
        """Run an action; one with an id may be repeated."""
        self.write(work, repeat=action.id is not None)

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return self.read(lambda db: db.query((statement, values)))[0]


def _open_bucket(row: AccountRow, closed: list[Bucket], clock: Clock) -> None:
    """Change *row* and *closed* as the next transaction will, if the next bucket is due to open."""
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
