"""Rows of the tables as values, and the text form of amounts, which do not fit 64 bits."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from discreet.budget import rules
from discreet.budget.errors import ReleaseDamaged
from discreet.budget.ledger import Head, account_of
from discreet.budget.model import Account, AccountHold, Amount, Period, Reservation, State, StoredRelease, Tally
from discreet.budget.rules import stops_counting_us
from discreet.budget.sharing.escrow import Incoming, Outgoing
from discreet.values import Cost

LAST = 2**63 - 1
"""The largest number of a row: above all that are in use."""

_FIELDS_OF_A_HOLD = 6


# ------------------------------------------------------------------------------------------------------ text


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
        for n in range(0, len(fields), _FIELDS_OF_A_HOLD)
    )


@functools.lru_cache(maxsize=1024)  # queries of one kind have one worst case
def cost_of(amount: Amount) -> Cost:
    """Return *amount* as a cost."""
    return amount.cost


# ------------------------------------------------------------------------------------------------------ rows


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
