"""Rows of the tables as values, and the text in which a store keeps amounts that do not fit 64 bits."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from discreet.budget import rules
from discreet.budget.escrow import Incoming, Outgoing
from discreet.budget.ledger import Head, account_of
from discreet.budget.model import AccountHold, Amount, Reservation, State, StoredRelease, Tally
from discreet.budget.periods import stops_counting_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from discreet.budget.model import Account, Period
    from discreet.values import Cost

LAST = 2**63 - 1
"""Above every number of a row."""

_FIELDS_OF_A_HOLD = 6


# ------------------------------------------------------------------------------------------------------ text


def amount_text(amount: Amount) -> str:
    """Return *amount* as a store keeps it."""
    return f"{amount.rho} {amount.delta}"


def amount_of(text: str) -> Amount:
    """Return the amount that `amount_text` wrote."""
    rho, delta = text.split(" ")
    return Amount(int(rho), int(delta))


def tally_text(tally: Tally) -> str:
    """Return *tally* as a store keeps it: four amounts."""
    used, held, forfeited, refunded = tally.used, tally.held, tally.forfeited, tally.refunded
    return (
        f"{used.rho} {used.delta} {held.rho} {held.delta} "
        f"{forfeited.rho} {forfeited.delta} {refunded.rho} {refunded.delta}"
    )


@functools.lru_cache(maxsize=1024)  # the older buckets of busy accounts are read again and again
def tally_of(text: str) -> Tally:
    """Return the tally that `tally_text` wrote."""
    a, b, c, d, e, f, g, h = map(int, text.split(" "))
    return Tally(Amount(a, b), Amount(c, d), Amount(e, f), Amount(g, h))


def holds_text(holds: Sequence[AccountHold]) -> str:
    """Return *holds* as a store keeps them; no account name has a tab."""
    return "\t".join(
        f"{hold.account}\t{hold.bucket}\t{hold.amount.rho}\t{hold.amount.delta}\t{hold.funded.rho}\t{hold.funded.delta}"
        for hold in holds
    )


def holds_of(text: str) -> tuple[AccountHold, ...]:
    """Return the holds that `holds_text` wrote."""
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
    """What the settings of an account say, parsed once."""

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
    """A closed bucket of an account."""

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
        tally: what the open bucket holds.
        older: the sum of the closed buckets that count.
        failures: when the last runs failed that count towards a suspension, oldest first.
        head: the end of its own chain of the ledger; None if its lines are in the store's chain.
        paid: True if it has paid for the release in question.
        changed: True if the row has to be written.
        closed: all closed buckets, oldest first; None if they were not read.
        touched: the closed buckets that have to be written, by number.
        read: what was read, without the tally and the head.
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
        """True if nothing but the tally and the head changed, which is the usual case."""
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
        """What counts against the limit."""
        return self.tally.total + self.older.total

    @property
    def left(self) -> Amount:
        """What the limit leaves; negative if more is spent."""
        return self.terms.limit - self.spent

    def suspended_until_us(self, now_us: int) -> int | None:
        """Return until when all claims are refused, or None; an account that only observes refuses nothing."""
        return rules.suspended_until_us(self.failures, now_us) if self.terms.enforced else None

    def resets_us(self, closed: Iterable[Bucket], now_us: int) -> int | None:
        """Return when the first charge, in *closed* or the open bucket, stops counting; None if none will."""
        for bucket in closed:
            if bucket.counting and bucket.tally.total:
                return stops_counting_us(self.terms.period, bucket.end_us, now_us)
        return stops_counting_us(self.terms.period, self.end_us, now_us) if self.tally.total else None


def account_row(columns: Sequence[Any]) -> AccountRow:
    """Return the columns `statements.ACCOUNT` as a value."""
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
    """Return the columns `statements.RESERVATION` as a value; None if an outer join found none."""
    name, account, release_key, worst, holds, state, until_us, lease_ms, charged = columns
    if name is None:
        return None
    paid = None if charged is None else amount_of(charged)
    return ReservationRow(
        name, account, release_key, amount_of(worst), holds_of(holds), State(state), until_us, lease_ms, paid
    )


def release_row(columns: Sequence[Any]) -> StoredRelease | None:
    """Return the columns `statements.RELEASE` as a value; None if an outer join found none."""
    release_key, result, cost, time_us = columns
    return None if release_key is None else StoredRelease(release_key, result, cost_of(amount_of(cost)), time_us)


@dataclass(frozen=True, slots=True)
class KeyRow:
    """An idempotency key that was used before.

    Args:
        digest: a digest of the request that came with it.
        answered: the release that it came with last, if that is not the claim's and the account has paid for it.
    """

    digest: bytes
    answered: StoredRelease | None = None


@dataclass(frozen=True, slots=True)
class ForfeitRow:
    """What an account forfeited for a release, charged in *bucket*; a later row has a higher number."""

    account: str
    number: int
    bucket: int
    amount: Amount


def outgoing_of(columns: Sequence[Any]) -> Outgoing:
    """Return number, given, pending, sent_us and version of a row of shares."""
    number, given, pending, sent_us, version = columns
    return Outgoing(number, amount_of(given), None if pending is None else amount_of(pending), sent_us, version)


def incoming_of(columns: Sequence[Any]) -> Incoming:
    """Return taken_number, taken and received of a row of shares."""
    number, taken, received = columns
    return Incoming(number, bool(taken), amount_of(received))
