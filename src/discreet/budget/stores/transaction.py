"""A writing transaction of a store: one read that takes the locks, the decisions, one write; and the rows it changes.

Methods of `BudgetStore` and `ShareStore` decide, for both databases. A transaction begins with one of the `begin`
methods, which locks the accounts that it names, the one to be charged first; `flush` writes everything that changed.
Nothing is written before `flush`, so that a transaction needs only two round trips to PostgreSQL.

Rows are values here, parsed from their columns. Amounts do not fit 64 bits, so that the database has them as text.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from discreet.budget import rules
from discreet.budget.errors import ClockError, ReleaseDamaged, UnknownAccount
from discreet.budget.ledger import Entry, Head, Line, account_of, canonical, head_of, next_line, settings_text
from discreet.budget.model import (
    EMPTY,
    Account,
    AccountHold,
    Amount,
    Claim,
    Fingerprint,
    InFlight,
    Period,
    Reservation,
    State,
    StoredRelease,
    Tally,
)
from discreet.budget.rules import (
    NEVER_US,
    SECOND_US,
    Clock,
    bucket_end,
    check_period,
    still_counts,
    stops_counting_us,
)
from discreet.budget.sharing.escrow import Incoming, Outgoing
from discreet.budget.stores import statements
from discreet.errors import InvariantViolated
from discreet.values import Cost

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")

LAST = 2**63 - 1
"""The largest number of a row: above all that are in use."""

_SEEN_EVERY_US = SECOND_US  # written rarely: transactions would wait for each other at the one row that holds it

_META = 4  # numbers of columns, see `statements`
_ACCOUNT = 10
_RESERVATION = 9
_RELEASE = 5

_HOLD = 6  # the number of the fields of a hold


# ------------------------------------------------------------------------------------------ amounts as text


def amount_text(amount: Amount) -> str:
    """Return *amount* as it is stored: rho and delta in quanta, as text."""
    return f"{amount.rho} {amount.delta}"


def amount_of(text: str) -> Amount:
    """Parse an amount that `amount_text` wrote."""
    rho, delta = text.split(" ")
    return Amount(int(rho), int(delta))


def tally_text(tally: Tally) -> str:
    """Return *tally* as it is stored: its four amounts, as text."""
    used = tally.used
    held = tally.held
    forfeited = tally.forfeited
    refunded = tally.refunded
    return (
        f"{used.rho} {used.delta} {held.rho} {held.delta} "
        f"{forfeited.rho} {forfeited.delta} {refunded.rho} {refunded.delta}"
    )


@functools.lru_cache(maxsize=1024)  # the closed buckets of busy accounts are read often
def tally_of(text: str) -> Tally:
    """Parse a tally that `tally_text` wrote."""
    a, b, c, d, e, f, g, h = map(int, text.split(" "))
    return Tally(Amount(a, b), Amount(c, d), Amount(e, f), Amount(g, h))


def holds_text(holds: Sequence[AccountHold]) -> str:
    """Return *holds* as they are stored: text with tabs, which no account name has."""
    return "\t".join(
        f"{hold.account}\t{hold.bucket}\t{hold.amount.rho}\t{hold.amount.delta}\t{hold.funded.rho}\t{hold.funded.delta}"
        for hold in holds
    )


def holds_of(text: str) -> tuple[AccountHold, ...]:
    """Parse holds that `holds_text` wrote."""
    fields = text.split("\t")
    return tuple(
        AccountHold(
            fields[n],
            int(fields[n + 1]),
            Amount(int(fields[n + 2]), int(fields[n + 3])),
            Amount(int(fields[n + 4]), int(fields[n + 5])),
        )
        for n in range(0, len(fields), _HOLD)
    )


@functools.lru_cache(maxsize=1024)  # queries of one kind have one worst case
def cost_of(amount: Amount) -> Cost:
    """Return *amount* as a cost."""
    return amount.cost


# ---------------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class Terms:
    """The parsed settings of an account."""

    account: Account
    limit: Amount
    enforced: bool
    period: Period


@functools.lru_cache(maxsize=4096)
def terms_of(settings: str) -> Terms:
    """Parse the settings of an account."""
    account = account_of(settings)
    return Terms(account, Amount.of(account.limit), account.enforced, account.period)


@dataclass(slots=True)
class Bucket:
    """A closed bucket of an account; *counting* is True while its charges count against the limit."""

    number: int
    end_us: int
    counting: bool
    tally: Tally


@dataclass(slots=True)
class AccountRow:
    """An account as a transaction reads and changes it.

    Args:
        bucket: number of the open bucket.
        end_us: when the open bucket ends.
        tally: the sums of the open bucket.
        older: the sums over the closed buckets that still count.
        failures: timestamps of the last failed runs, which count towards a suspension, oldest first.
        head: the end of its own chain of the ledger; None if its lines are in the store's chain.
        paid: True if it has paid for the release in question.
        changed: True if the row has to be written.
        closed: all closed buckets, oldest first; None until they are read.
        touched: the closed buckets that have to be written, by number.
        read: the columns as they were read, without the tally and the head.
    """

    id: str
    settings: str
    bucket: int
    end_us: int
    tally: Tally
    older: Tally
    failures: tuple[int, ...] = ()
    head: Head | None = None
    paid: bool = False
    changed: bool = False
    closed: list[Bucket] | None = None
    touched: dict[int, Bucket] = field(default_factory=dict)
    read: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        self.read = self._rest

    @property
    def only_tally(self) -> bool:
        """True if only the tally and the head changed, which is the usual case."""
        return self.read == self._rest

    @property
    def _rest(self) -> tuple[object, ...]:
        return self.settings, self.bucket, self.end_us, self.older, self.failures

    @property
    def terms(self) -> Terms:
        """The parsed settings."""
        return terms_of(self.settings)

    @property
    def spent(self) -> Amount:
        """The amount used, held or forfeited in all buckets that still count."""
        return self.tally.total + self.older.total

    @property
    def left(self) -> Amount:
        """The limit less the amount spent; negative if the account is overdrawn."""
        return self.terms.limit - self.spent

    def suspended_until_us(self, now_us: int) -> int | None:
        """Return when the suspension of the account ends, or None; an account in observe mode is never suspended."""
        return rules.suspended_until_us(self.failures, now_us) if self.terms.enforced else None

    def resets_us(self, closed: Iterable[Bucket], now_us: int) -> int | None:
        """Return when the first charge, in *closed* or the open bucket, stops counting; None if none ever does."""
        for bucket in closed:
            if bucket.counting and bucket.tally.total:
                return stops_counting_us(self.terms.period, bucket.end_us, now_us)
        return stops_counting_us(self.terms.period, self.end_us, now_us) if self.tally.total else None


def account_row(columns: Sequence[Any]) -> AccountRow:
    """Parse the columns `statements.ACCOUNT`."""
    name, settings, bucket, end_us, tally, older, failures, chain, seq, hash_ = columns
    times = tuple(map(int, failures.split(" "))) if failures else ()
    head = Head(chain, seq, hash_) if chain else None
    return AccountRow(name, settings, bucket, end_us, tally_of(tally), tally_of(older), times, head)


@dataclass(frozen=True, slots=True)
class ReservationRow:
    """A reservation as it is stored; *charged* is None until it is settled."""

    id: str
    account: str
    release_key: bytes
    worst: Amount
    holds: tuple[AccountHold, ...]
    state: State
    lease_until_us: int
    lease_ms: int
    charged: Amount | None = None

    @property
    def reservation(self) -> Reservation:
        """The reservation as `BudgetStore` returns it."""
        return Reservation(
            self.id, self.account, self.release_key, cost_of(self.worst), self.holds, self.state, self.lease_until_us
        )


def reservation_row(columns: Sequence[Any]) -> ReservationRow | None:
    """Parse the columns `statements.RESERVATION`; return None if they are NULL from an outer join."""
    name, account, release_key, worst, holds, state, until_us, lease_ms, charged = columns
    if name is None:
        return None
    paid = None if charged is None else amount_of(charged)
    return ReservationRow(
        name, account, release_key, amount_of(worst), holds_of(holds), State(state), until_us, lease_ms, paid
    )


def release_row(columns: Sequence[Any]) -> StoredRelease | None:
    """Parse the columns `statements.RELEASE`; return None if they are NULL from an outer join.

    Raises:
        ReleaseDamaged: the result is not the one that was stored.
    """
    release_key, result, cost, time_us, digest = columns
    if release_key is None:
        return None
    if digest not in {None, hashlib.sha256(result).digest()}:  # None: by a process of the version before
        raise ReleaseDamaged(release_key)
    return StoredRelease(release_key, result, cost_of(amount_of(cost)), time_us)


@dataclass(frozen=True, slots=True)
class KeyRow:
    """An idempotency key that was used before.

    Args:
        digest: a digest of the request that came with it.
        answered: the release of its last request, if that is not the claim's and the account has paid for it.
    """

    digest: bytes
    answered: StoredRelease | None = None


@dataclass(frozen=True, slots=True)
class ForfeitRow:
    """The amount that an account forfeited for a release, charged in *bucket*; later rows have higher numbers."""

    account: str
    number: int
    bucket: int
    amount: Amount


def outgoing_of(columns: Sequence[Any]) -> Outgoing:
    """Parse the columns number, given, pending, sent_us and version of a row of shares."""
    number, sent, pending, sent_us, version = columns
    return Outgoing(number, amount_of(sent), None if pending is None else amount_of(pending), sent_us, version)


def incoming_of(columns: Sequence[Any]) -> Incoming:
    """Parse the columns taken_number, taken and received of a row of shares."""
    number, accepted, received = columns
    return Incoming(number, bool(accepted), amount_of(received))


# ---------------------------------------------------------------------------------------------- transactions


class StoreConnection(Protocol):
    """A connection to a database, with the statements of `statements`."""

    @property
    def serial(self) -> bool:
        """True if transactions run one after the other, so that all lines can go into one chain without a lock."""
        ...

    def query(self, *queries: tuple[str, Sequence[Any]]) -> list[list[Any]]:
        """Return the rows of each query, in one round trip; the first queries of a transaction begin it."""
        ...

    def stream(self, statement: str) -> Iterator[Any]:
        """Yield the rows of *statement* without holding all of them in memory."""
        ...

    def is_damaged(self) -> bool:
        """Return True if the database finds a damaged page, or an index that contradicts its table."""
        ...

    def write(self, writes: Sequence[tuple[str, Sequence[Any]]]) -> None:
        """Execute *writes*, of which no two change the same row; the caller commits."""
        ...

    def write_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute *statement* with the values of each row; the caller commits."""
        ...


class Database(Protocol):
    """Runs work on a database: a `BudgetStore`, or an object that uses one."""

    def write(self, work: Callable[[Transaction], Answer], operation: str) -> Answer:
        """Run *work* in a transaction, as `BudgetStore.write` does."""
        ...

    def read(self, work: Callable[[StoreConnection], Answer], operation: str) -> Answer:
        """Run *work* on the committed state, as `BudgetStore.read` does."""
        ...


AnyDatabase = TypeVar("AnyDatabase", bound=Database)


def writes(
    method: Callable[Concatenate[AnyDatabase, Transaction, Arguments], Answer],
) -> Callable[Concatenate[AnyDatabase, Arguments], Answer]:
    """Return *method* without its transaction: a call runs it in a new one, and returns once that is committed."""
    operation = method.__name__.lstrip("_")

    @functools.wraps(method)
    def call(self: AnyDatabase, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        return self.write(lambda transaction: method(self, transaction, *arguments, **named), operation)

    return call


def reads(
    method: Callable[Concatenate[AnyDatabase, StoreConnection, Arguments], Answer],
) -> Callable[Concatenate[AnyDatabase, Arguments], Answer]:
    """Return *method* without its connection: a call runs it on the committed state."""
    operation = method.__name__.lstrip("_")

    @functools.wraps(method)
    def call(self: AnyDatabase, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        return self.read(lambda db: method(self, db, *arguments, **named), operation)

    return call


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """The rows from which a claim is decided.

    Args:
        path: the account and its parents; empty if there is no such account.
        known: the reservation with the id of the claim, if there is one.
        key: the claim's idempotency key, if it was used before.
        in_flight: the account's reservation under way with that idempotency key or release key, if there is one.
        release: the stored release, if there is one.
        forfeits: True if an account on the path has a forfeit for the release.
    """

    path: list[AccountRow]
    known: ReservationRow | None
    key: KeyRow | None
    in_flight: InFlight | None
    release: StoredRelease | None
    forfeits: bool


@dataclass(frozen=True, slots=True)
class EventFacts:
    """The rows from which an event of a reservation is decided.

    Args:
        path: the accounts on its path; for `statements.START` only the first.
        row: the reservation, if there is one.
        release: the stored release, if the event needs it and there is one.
        head_digest: the digest stored under the fingerprint's head key, if any.
    """

    path: list[AccountRow]
    row: ReservationRow | None
    release: StoredRelease | None = None
    head_digest: bytes | None = None


class Transaction:
    """A writing transaction.

    Args:
        db: a connection that only this transaction uses.
        seen_us: the latest time that this process has seen.
        guard_us: how far the clock may run ahead of the last time seen.
        step: called with the name of each step, so that fault tests can interrupt there.

    Attributes:
        clock: the clock of the database, once the transaction has begun.
        repeatable: False if the transaction must not be repeated when it is unknown whether it was committed.
        flushed: True once something was written, so that an error has to roll back.
    """

    def __init__(self, db: StoreConnection, seen_us: int, guard_us: int, step: Callable[[str], None]) -> None:
        self.db = db
        self.clock = Clock(seen_us, seen_us, guard_us)
        self.repeatable = True
        self.flushed = False
        self._seen_us = seen_us
        self._guard_us = guard_us
        self._step = step
        self._recorded_us = seen_us  # the last time seen that the database has stored
        self._accounts: list[AccountRow] = []
        self._head: Head | None = None  # of chain 0, if it may be extended
        self._store_changed = False
        self._records_changed = 0
        self._lines: list[Line] = []
        self._writes: list[tuple[str, Sequence[Any]]] = []

    # ------------------------------------------------------------------------------------------------ beginning

    def begin_claim(self, claim: Claim) -> ClaimFacts:
        """Lock the path of the claim's account, and read the rows that decide the claim."""
        statement = statements.CLAIM
        key_values = claim.account, claim.release_key
        values: tuple[Any, ...] = (*key_values, claim.release_key, claim.reservation, *key_values)
        if claim.key is not None:
            statement = statements.CLAIM_WITH_KEY
            values = (*values, claim.account, claim.key, claim.release_key)
        locked, (facts,) = self.db.query((statements.LOCK_PATH, (claim.account,)), (statement, values))
        path = self._load(locked)
        meta, (forfeits,), release_columns, reservation, same, key = _split(facts, _META, 1, _RELEASE, _RESERVATION, 2)
        self._read_meta(meta)
        release = release_row(release_columns)
        self._mark_paid(path, release)
        keyed = None
        under_way = [same]
        if key and key[0] is not None:
            digest, *with_key = key
            under_way.append(with_key[:2])
            keyed = KeyRow(digest, release_row(with_key[2:]))
        in_flight = next((InFlight(*columns) for columns in under_way if columns[0] is not None), None)
        return ClaimFacts(path, reservation_row(reservation), keyed, in_flight, release, bool(forfeits))

    def begin_event(self, statement: str, reservation: str) -> EventFacts:
        """Lock the reservation, with its account (`statements.START`) or the whole path (`statements.END`)."""
        path, row, _ = self._lock_reservation(statement, (reservation,))
        return EventFacts(path, row)

    def begin_settle(self, reservation: str, fingerprint: Fingerprint | None) -> EventFacts:
        """Lock the reservation and its path; read its release and the digest of the head, if they are stored."""
        head_key = None if fingerprint is None else fingerprint.head_key
        path, row, rest = self._lock_reservation(statements.SETTLE, (head_key, reservation))
        if row is None:
            return EventFacts([], None)
        release = release_row(rest[:_RELEASE])
        self._mark_paid(path, release)
        return EventFacts(path, row, release, rest[_RELEASE])

    def begin_creation(self, account: Account) -> tuple[int, bool]:
        """Prepare a new account; return the number of its ledger chain, and whether the name is taken.

        Raises:
            UnknownAccount: the parent does not exist.
        """
        (facts,) = self._rows(statements.CREATION, (account.id, account.parent))
        meta, (chain, account_row, parent) = _split(facts, _META)
        self._read_meta(meta)
        if account.parent is not None and parent is None:
            raise UnknownAccount(account.parent)
        return chain, account_row is not None

    def begin_account(self, account: str) -> AccountRow:
        """Lock an account, or raise `UnknownAccount`."""
        locked, (meta,) = self.db.query((statements.LOCK_ACCOUNT, (account,)), (statements.NOW, ()))
        self._read_meta(meta)
        if not locked:
            raise UnknownAccount(account)
        return self._load(locked)[0]

    def begin_store(self) -> None:
        """Lock the store's own row: the last time seen, the head of chain 0 and the number of changed records."""
        _, (meta,) = self.db.query((statements.LOCK_META, ()), (statements.NOW, ()))
        self._read_meta(meta, locked=True)
        self._store_changed = True

    # ------------------------------------------------------------------------------------------------ reading

    def closed_buckets(self, account: AccountRow) -> list[Bucket]:
        """Return all closed buckets of an account, oldest first."""
        if account.closed is None:
            rows = self._rows(statements.CLOSED_BUCKETS, (account.id,))
            account.closed = [Bucket(number, end_us, bool(on), tally_of(tally)) for number, end_us, on, tally in rows]
        return account.closed

    def forfeits(self, account: str, release_key: bytes) -> list[ForfeitRow]:
        """Return the forfeits of the accounts on a path for a release, oldest first."""
        rows = self._rows(statements.FORFEITS, (account, release_key))
        return [ForfeitRow(name, number, bucket, amount_of(text)) for name, number, bucket, text in rows]

    def action_digest(self, action: str) -> bytes | None:
        """Return the digest stored for the action with that id, or None."""
        rows = self._rows(statements.ACTION_DIGEST, (action,))
        return rows[0][0] if rows else None

    def due(self) -> list[str]:
        """Return the names of the accounts whose open bucket is over."""
        self._read_meta(self._rows(statements.NOW)[0])
        return [name for (name,) in self._rows(statements.DUE, (max(self.clock.raw_us, self.clock.seen_us),))]

    def expired(self) -> list[str]:
        """Return the ids of the reservations whose lease is over, earliest first; at most 1,000."""
        self._read_meta(self._rows(statements.NOW)[0])
        return [name for (name,) in self._rows(statements.EXPIRED, (self.clock.now_us,))]

    def has_account(self, account: str) -> bool:
        """Return True if there is an account of that name."""
        return bool(self._rows(statements.HAS_ACCOUNT, (account,)))

    def outgoing(self, account: str, peer: str) -> Outgoing:
        """Return the amounts that a locked account has sent to the store *peer*."""
        rows = self._rows(statements.SENT, (account, peer))
        return outgoing_of(rows[0]) if rows else Outgoing()

    def incoming(self, account: str, peer: str) -> Incoming:
        """Return the amounts that an account, which is locked or missing, has received from the store *peer*."""
        rows = self._rows(statements.RECEIVED, (account, peer))
        return incoming_of(rows[0]) if rows else Incoming()

    # ------------------------------------------------------------------------------------------------ accounts

    def change(self, account: AccountRow, bucket: int, change: Tally, changes: list[tuple[str, int, Tally]]) -> None:
        """Apply *change* to a bucket, open or closed, and append it to *changes*, for the ledger."""
        changes.append((account.id, bucket, change))
        account.changed = True
        if bucket == account.bucket:
            account.tally += change
            return
        closed = next(candidate for candidate in self.closed_buckets(account) if candidate.number == bucket)
        closed.tally += change
        account.touched[bucket] = closed
        if closed.counting:
            account.older += change

    def resets_us(self, account: AccountRow) -> int | None:
        """Return when the first charge of *account* stops counting."""
        return account.resets_us(self.closed_buckets(account), self.clock.now_us)

    def advance(self, account: AccountRow) -> bool:
        """Open the next bucket if the open one is over; return True if it was."""
        if account.end_us == NEVER_US or not self.clock.has_passed(account.end_us):
            return False
        self.open_bucket(account, account.end_us, "refresh", {})
        return True

    def open_bucket(self, account: AccountRow, closed_at_us: int, kind: str, detail: dict[str, Any]) -> None:
        """Close the open bucket and open the next, with a ledger line; update which closed buckets still count."""
        now_us = self.clock.now_us
        period = account.terms.period
        closed = self.closed_buckets(account)
        last = Bucket(account.bucket, closed_at_us, True, account.tally)
        account.touched[last.number] = last
        closed.append(last)
        account.older = EMPTY
        for bucket in closed:
            counting = still_counts(period, bucket.end_us, now_us)
            if counting:
                account.older += bucket.tally
            if counting != bucket.counting:
                bucket.counting = counting
                account.touched[bucket.number] = bucket
        account.bucket = account.bucket + 1
        account.end_us = bucket_end(period, now_us)
        account.tally = EMPTY
        account.changed = True
        self.append(account, kind, detail=buckets_detail(account, detail))

    # ------------------------------------------------------------------------------------------------ writing

    def append(
        self,
        account: AccountRow | None,
        kind: str,
        reservation: str | None = None,
        detail: str = "{}",
        changes: Sequence[tuple[str, int, Tally]] = (),
    ) -> None:
        """Append a line to the chain of *account*, or to the store's chain if the account has none."""
        head = self._head if account is None or account.head is None else account.head
        if head is None:
            raise InvariantViolated("a line is added to a chain that is not locked")
        line = next_line(head, Entry(self.clock.now_us, kind, reservation, detail, changes))
        self._lines.append(line)
        if account is not None and account.head is not None:
            account.head = head_of(line)
            account.changed = True
        else:
            self._head = head_of(line)
            self._store_changed = True

    def add_account(self, account: Account, chain: int, detail: dict[str, Any]) -> None:
        """Write a new account, and the line that creates it."""
        check_period(account.period)
        end_us = bucket_end(account.period, self.clock.now_us)
        empty = Head.empty(chain) if chain else None
        row = AccountRow(account.id, settings_text(account), 0, end_us, EMPTY, EMPTY, head=empty)
        self.append(row, "create", detail=buckets_detail(row, detail))
        head = row.head or Head(0, 0, b"")
        tallies = (tally_text(row.tally), tally_text(row.older))
        values = (row.id, row.settings, row.bucket, row.end_us, *tallies, "")
        self._writes.append((statements.ADD_ACCOUNT, (*values, head.chain, head.seq, head.hash)))
        self._writes.append((statements.ADD_PATH, (row.id, row.id, row.id, account.parent)))

    def change_settings(self, row: AccountRow, account: Account, detail: dict[str, Any]) -> None:
        """Replace the settings of *row* by those of *account*, with a ledger line.

        Raises:
            ClockError: the period changes, and the clock ran ahead.
        """
        before = row.terms.account
        check_period(account.period)
        row.settings = settings_text(account)
        row.changed = True
        if account.period != before.period:
            if self.clock.ahead:
                raise ClockError
            # The open bucket ends early, and its end is the first microsecond that does not belong to it.
            self.open_bucket(row, min(row.end_us, self.clock.now_us + 1), "alter", detail)
            return
        self.append(row, "alter", detail=buckets_detail(row, detail))

    def add_reservation(self, row: ReservationRow) -> None:
        """Write a new reservation."""
        values = (row.id, row.account, row.release_key, amount_text(row.worst), holds_text(row.holds))
        rest = (row.state.value, row.lease_until_us, row.lease_ms)
        self._writes.append((statements.ADD_RESERVATION, (*values, *rest)))

    def update_reservation(
        self, reservation: str, state: State, lease_until_us: int | None = None, charged: Amount | None = None
    ) -> None:
        """Write the new state of a reservation; arguments that are None leave their columns unchanged."""
        text = None if charged is None else amount_text(charged)
        self._writes.append((statements.SAVE_RESERVATION, (state.value, lease_until_us, text, reservation)))

    def remember_key(self, claim: Claim) -> None:
        """Store the claim's idempotency key, if it has one."""
        if claim.key is not None:
            values = (claim.account, claim.key, claim.digest, claim.reservation, claim.release_key)
            self._writes.append((statements.SAVE_KEY, (*values, self.clock.now_us)))

    def add_release(self, release: StoredRelease) -> None:
        """Write a stored release."""
        cost = amount_text(Amount.of(release.cost))
        digest = hashlib.sha256(release.result).digest()
        values = (release.release_key, release.result, cost, release.time_us, digest)
        self._writes.append((statements.ADD_RELEASE, values))

    def add_fingerprint(self, fingerprint: Fingerprint) -> None:
        """Write the digest of an engine's result."""
        self._writes.append((statements.ADD_FINGERPRINT, (fingerprint.head_key, fingerprint.digest)))

    def entitle(self, accounts: Sequence[str], release_key: bytes) -> None:
        """Write that *accounts* have paid for a release."""
        for account in accounts:
            self._writes.append((statements.ADD_ENTITLEMENT, (account, release_key, self.clock.now_us)))

    def add_forfeit(self, hold: AccountHold, release_key: bytes, amount: Amount) -> None:
        """Write the amount that an account forfeited for a release, in the bucket of *hold*."""
        self._writes.append((statements.ADD_FORFEIT, (hold.account, release_key, hold.bucket, amount_text(amount))))

    def drop_forfeit(self, row: ForfeitRow) -> None:
        """Delete a forfeit, which has paid for a retry."""
        self._writes.append((statements.DROP_FORFEIT, (row.number,)))

    def add_action(self, action: str, digest: bytes) -> None:
        """Store the id of an action. If two transactions store it at once, one fails, is repeated, and finds it."""
        self._writes.append((statements.ADD_ACTION, (action, digest)))

    def put_record(self, kind: str, name: str, text: str | None) -> None:
        """Write or remove a record, and count the change."""
        if text is None:
            self._writes.append((statements.DROP_RECORD, (kind, name)))
        else:
            self._writes.append((statements.SAVE_RECORD, (kind, name, text)))
        self._records_changed = 1

    def put_outgoing(self, account: str, peer: str, outgoing: Outgoing) -> None:
        """Write the amounts that the account has sent to the store *peer*."""
        pending = None if outgoing.pending is None else amount_text(outgoing.pending)
        values = (account, peer, outgoing.number, amount_text(outgoing.given), pending)
        self._writes.append((statements.SAVE_SENT, (*values, outgoing.sent_us, outgoing.version)))

    def put_incoming(self, account: str, peer: str, incoming: Incoming) -> None:
        """Write the amounts that the account has received from the store *peer*."""
        values = (account, peer, incoming.number, incoming.taken, amount_text(incoming.received))
        self._writes.append((statements.SAVE_RECEIVED, values))

    def trust_clock(self) -> None:
        """Accept the database's time, however far it ran ahead."""
        self.clock = Clock(self.clock.raw_us, max(self.clock.raw_us, self.clock.seen_us), self._guard_us)

    def flush(self) -> None:
        """Write all changes since the last call; the caller commits."""
        self._step("decided")
        for account in self._accounts:
            if not account.changed:
                continue
            head = account.head or Head(0, 0, b"")
            tally = tally_text(account.tally)
            if account.only_tally:
                self._writes.append((statements.SAVE_TALLY, (head.seq, head.hash, tally, account.id)))
            else:
                failures = " ".join(map(str, account.failures))
                rest = (account.settings, account.bucket, account.end_us, tally_text(account.older), failures)
                self._writes.append((statements.SAVE_ACCOUNT, (head.seq, head.hash, tally, *rest, account.id)))
            for bucket in account.touched.values():
                values = (account.id, bucket.number, bucket.end_us, bucket.counting, tally_text(bucket.tally))
                self._writes.append((statements.SAVE_BUCKET, values))
        self._writes += [(statements.ADD_LINE, (line.chain, line.seq, line.body, line.hash)) for line in self._lines]
        if self._store_changed and self._head is not None:
            meta = (self._head.seq, self._head.hash, self.clock.now_us, self._records_changed)
            self._writes.append((statements.SAVE_META, meta))
        elif self._writes and self.clock.now_us >= self._recorded_us + _SEEN_EVERY_US:
            self._writes.append((statements.SAVE_SEEN, (self.clock.now_us,)))
        if self._writes:
            self.db.write(self._writes)
            self.flushed = True
        self._accounts = []
        self._lines = []
        self._writes = []
        self._store_changed = False
        self._records_changed = 0

    # ------------------------------------------------------------------------------------------------ inside

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        (rows,) = self.db.query((statement, values))
        return rows

    def _lock_reservation(
        self, statement: str, values: Sequence[Any]
    ) -> tuple[list[AccountRow], ReservationRow | None, Sequence[Any]]:
        """Lock a reservation and accounts of its path; return the accounts, the reservation and the other columns."""
        rows = self._rows(statement, values)
        if not rows:
            return [], None, ()
        path = self._load([row[_META : _META + _ACCOUNT] for row in rows])
        meta, _, row, rest = _split(rows[0], _META, _ACCOUNT, _RESERVATION)
        self._read_meta(meta)
        return path, reservation_row(row), rest

    def _load(self, rows: list[Any]) -> list[AccountRow]:
        """Load the rows of locked accounts; `flush` writes those that change."""
        self._accounts = [account_row(row) for row in rows]
        return self._accounts

    def _read_meta(self, meta: Sequence[Any], *, locked: bool = False) -> None:
        """Read the clock, and the head of the store's chain if nothing else can extend it."""
        raw_us, self._recorded_us, seq, hash_ = meta
        self.clock = Clock(raw_us, max(self._recorded_us, self._seen_us), self._guard_us)
        if locked or self.db.serial:
            self._head = Head(0, seq, hash_)
        self._step("locked")

    def _mark_paid(self, path: list[AccountRow], release: StoredRelease | None) -> None:
        """Mark the accounts on the path that have paid for the release."""
        if release is not None and path:
            paid = {name for (name,) in self._rows(statements.PAID, (path[0].id, release.release_key))}
            for account in path:
                account.paid = account.id in paid


def buckets_detail(account: AccountRow, detail: dict[str, Any]) -> str:
    """Return the detail of a ledger line that creates or alters an account, or opens its next bucket."""
    own = {"account": json.loads(account.settings), "bucket": account.bucket, "end_us": account.end_us}
    return canonical(detail | own)


def _split(row: Sequence[Any], *lengths: int) -> list[Sequence[Any]]:
    """Split a row into parts of *lengths* columns each, and the remaining columns."""
    ends = [0, *itertools.accumulate(lengths), len(row)]
    return [row[begin:end] for begin, end in itertools.pairwise(ends)]
