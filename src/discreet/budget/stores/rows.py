"""Rows as the stores of this package work with them, whatever database they come from."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from discreet.budget import rules
from discreet.budget.fixed_point import Amount
from discreet.budget.ledger import account_of
from discreet.budget.model import Hold, Reservation
from discreet.budget.periods import stops_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from discreet.budget.fixed_point import Tally
    from discreet.budget.model import Account, Period, State, StoredRelease
    from discreet.values import Cost

_FIELDS_OF_A_HOLD = 6


@dataclass(frozen=True, slots=True)
class Terms:
    """What an account's settings say, read once."""

    account: Account
    limit: Amount
    enforced: bool
    period: Period


@functools.lru_cache(maxsize=4096)
def terms_of(settings: str) -> Terms:
    """The terms that are written as *settings*."""
    account = account_of(settings)
    return Terms(account, Amount.of(account.limit), account.enforced, account.period)


@functools.lru_cache(maxsize=1024)  # questions of one kind have one worst case
def cost_of(amount: Amount) -> Cost:
    """*amount* as a cost."""
    return amount.cost


@dataclass(slots=True)
class Bucket:
    """A closed bucket of an account."""

    number: int
    end_us: int
    counting: bool
    tally: Tally


@dataclass(slots=True)
class Page:
    """An account's row, while it is worked on.

    Args:
        id: its name.
        settings: as text.
        bucket: number of the open bucket.
        end_us: when that ends.
        tally: what it holds.
        older: what the closed buckets hold that count.
        failures: when its last runs failed that count towards a suspension, oldest first.
        paid: True if it has paid for the release in question.
        changed: True if the row has to be written.
        closed: all closed buckets, oldest first, or None if nobody has looked yet.
        touched: the closed buckets that have to be written, by number.
        read: what it was beside its open bucket.
    """

    id: str
    settings: str
    bucket: int
    end_us: int
    tally: Tally
    older: Tally
    failures: tuple[int, ...] = ()
    paid: bool = False
    changed: bool = False
    closed: list[Bucket] | None = None
    touched: dict[int, Bucket] = field(default_factory=dict)
    read: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        self.read = self._rest

    @property
    def only_tally(self) -> bool:
        """True if nothing but the open bucket changed, as nearly always."""
        return self.read == self._rest

    @property
    def _rest(self) -> tuple[object, ...]:
        return self.settings, self.bucket, self.end_us, self.older, self.failures

    @property
    def terms(self) -> Terms:
        """Its settings."""
        return terms_of(self.settings)

    @property
    def spent(self) -> Amount:
        """What counts against its limit."""
        return self.tally.total + self.older.total

    def suspended_until_us(self, now_us: int) -> int | None:
        """Until when it is refused whatever it asks, or None. Who only observes refuses nothing."""
        return rules.suspended_until_us(self.failures, now_us) if self.terms.enforced else None

    def resets_us(self, closed: Iterable[Bucket], now_us: int) -> int | None:
        """When the first charge stops counting, of *closed* or the open bucket; None if never, or if there is none."""
        for bucket in closed:
            if bucket.counting and bucket.tally.total:
                return stops_us(self.terms.period, bucket.end_us, now_us)
        return stops_us(self.terms.period, self.end_us, now_us) if self.tally.total else None


@dataclass(frozen=True, slots=True)
class Kept:
    """A reservation's row."""

    id: str
    account: str
    release_key: bytes
    worst: Amount
    holds: tuple[Hold, ...]
    state: State
    lease_until_us: int
    lease_ms: int
    charged: Amount | None = None

    @property
    def reservation(self) -> Reservation:
        """As callers see it."""
        return Reservation(
            self.id, self.account, self.release_key, cost_of(self.worst), self.holds, self.state, self.lease_until_us
        )


@dataclass(frozen=True, slots=True)
class Keyed:
    """An idempotency key that was used before.

    Args:
        digest: of the request that came with it.
        reservation: under way with it, or None.
        lease_until_us: of that.
        answered: what answered it, if that is another release than the claim's and the account has paid for it.
    """

    digest: bytes
    reservation: str | None
    lease_until_us: int
    answered: StoredRelease | None = None


@dataclass(frozen=True, slots=True)
class Fund:
    """What an account forfeited for a release.

    Args:
        number: of the row; a later one has a higher number.
        bucket: where it is charged.
        amount: how much.
    """

    number: int
    bucket: int
    amount: Amount


def holds_text(holds: Sequence[Hold]) -> str:
    """*holds* as a store keeps them; no name holds a tab."""
    return "\t".join(
        f"{hold.account}\t{hold.bucket}\t{hold.amount.rho}\t{hold.amount.delta}\t{hold.funded.rho}\t{hold.funded.delta}"
        for hold in holds
    )


def holds_of(text: str) -> tuple[Hold, ...]:
    """Back from `holds_text`."""
    fields = text.split("\t")
    return tuple(
        Hold(
            fields[n],
            int(fields[n + 1]),
            Amount(int(fields[n + 2]), int(fields[n + 3])),
            Amount(int(fields[n + 4]), int(fields[n + 5])),
        )
        for n in range(0, len(fields), _FIELDS_OF_A_HOLD)
    )
