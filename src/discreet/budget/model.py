"""Amounts, accounts, claims, reservations, stored releases, balances: frozen values without rules.

Timestamps are whole microseconds since 1970-01-01 UTC, from the clock of the database.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Literal, TypeAlias

from discreet.accounting.convert import UnitCost, epsilon_tight, limit_for, units_of_cost
from discreet.errors import InputError
from discreet.values import DELTA_QUANTUM, RHO_QUANTUM, Cost, float_above, float_below, is_unicode

RHO_UNITS = RHO_QUANTUM.denominator
"""Units of rho in 1."""

DELTA_UNITS = DELTA_QUANTUM.denominator
"""Units of delta in 1."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A cost in whole quanta, of any sign and size; neither part fits an int64.

    Args:
        rho: in units of `RHO_QUANTUM`, 1e-18.
        delta: in units of `DELTA_QUANTUM`, 1e-27.
    """

    rho: int = 0
    delta: int = 0

    @classmethod
    def of(cls, cost: Cost) -> Amount:
        """Return *cost*, a multiple of the quanta, as an amount."""
        rho = cost.rho
        delta = cost.delta
        return cls(rho.numerator * (RHO_UNITS // rho.denominator), delta.numerator * (DELTA_UNITS // delta.denominator))

    @property
    def cost(self) -> Cost:
        """The amount as a cost.

        Raises:
            InputError: a part is negative.
        """
        return Cost(Fraction(self.rho, RHO_UNITS), Fraction(self.delta, DELTA_UNITS))

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.rho + other.rho, self.delta + other.delta)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.rho - other.rho, self.delta - other.delta)

    def __neg__(self) -> Amount:
        return Amount(-self.rho, -self.delta)

    def __bool__(self) -> bool:
        return bool(self.rho or self.delta)

    def within(self, limit: Amount) -> bool:
        """Return True if neither part is above *limit*."""
        return self.rho <= limit.rho and self.delta <= limit.delta

    def most(self, other: Amount) -> Amount:
        """Return the maximum of each part."""
        return Amount(max(self.rho, other.rho), max(self.delta, other.delta))

    def least(self, other: Amount) -> Amount:
        """Return the minimum of each part."""
        return Amount(min(self.rho, other.rho), min(self.delta, other.delta))


NOTHING = Amount()


@dataclass(frozen=True, slots=True)
class Tally:
    """The sums of a bucket of an account, or a change of them.

    Args:
        used: charged for releases and by hand.
        forfeited: charged for runs that failed after the data was queried; pays for a retry of the same release only.
        refunded: the sum of refunds, which is part of no balance and limited by the cap of refunds only.
    """

    used: Amount = NOTHING
    held: Amount = NOTHING
    forfeited: Amount = NOTHING
    refunded: Amount = NOTHING

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.used + other.used,
            self.held + other.held,
            self.forfeited + other.forfeited,
            self.refunded + other.refunded,
        )

    def __sub__(self, other: Tally) -> Tally:
        return Tally(
            self.used - other.used,
            self.held - other.held,
            self.forfeited - other.forfeited,
            self.refunded - other.refunded,
        )

    def __bool__(self) -> bool:
        return bool(self.used or self.held or self.forfeited or self.refunded)

    @property
    def total(self) -> Amount:
        """The sum that is charged to the limit: used, held and forfeited."""
        return self.used + self.held + self.forfeited


EMPTY = Tally()


MAX_NAME_LENGTH = 200
"""Characters of an account's name, an actor or a key."""

MAX_REASON_LENGTH = 2_000
"""Characters of a reason."""

MAX_RECORD_NAME_LENGTH = 2_000
"""Characters of a record's name."""

MAX_RECORD_LENGTH = 1_000_000
"""Characters of a record."""


def check_name(name: str, what: str) -> None:
    """Raise `InputError` unless *name* has from 1 to 200 printable characters and no white space."""
    if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable() or " " in name:
        raise InputError(f"{what} has up to {MAX_NAME_LENGTH} printable characters and no white space")


def _check_digest(digest: bytes, what: str) -> None:
    """Raise `InputError` unless *digest* has 16 to 64 bytes."""
    if not 16 <= len(digest) <= 64:
        raise InputError(f"{what} has from 16 to 64 bytes")


def check_record(kind: str, name: str, text: str | None) -> None:
    """Raise `InputError` unless a store can keep *text* under that name.

    Args:
        name: up to 2,000 characters that print, or tabs.
        text: up to 1,000,000 characters, without the character 0; None removes the record.
    """
    check_name(kind, "the kind of a record")
    if not 0 < len(name) <= MAX_RECORD_NAME_LENGTH or not name.replace("\t", "").isprintable():
        raise InputError(f"the name of a record has up to {MAX_RECORD_NAME_LENGTH:,} printable characters")
    if text is not None and (len(text) > MAX_RECORD_LENGTH or "\0" in text or not is_unicode(text)):
        raise InputError(f"a record has up to {MAX_RECORD_LENGTH:,} characters and not the character 0")


@dataclass(frozen=True, slots=True)
class Share:
    """Marks the limit of an account as a share of a total that is split over data centres; see `budget.sharing.escrow`.

    Args:
        total: the limit of all data centres together.
        home: id of the store in which the account was created; it can be altered only there.
        version: the version of all settings but the limit, from 1; the home increments it.
    """

    total: Cost
    home: str
    version: int

    def __post_init__(self) -> None:
        check_name(self.home, "the name of a store")
        if self.version < 1:
            raise InputError(f"the version of an account's settings is at least 1, not {self.version}")


@dataclass(frozen=True, slots=True)
class AdminAction:
    """The actor and the reason of an administrative change of an account or the store, for the ledger.

    Args:
        actor: up to 200 printable characters without white space.
        reason: up to 2,000 characters, not empty.
        id: unique for ever, or None. An action whose id is already in the ledger changes nothing, so that a client that
            did not receive the response may repeat it.
        name: the name of the actor for readers, such as the label of an API key; up to 200 printable characters, or
            empty.
    """

    actor: str
    reason: str
    id: str | None = None
    name: str = ""

    def __post_init__(self) -> None:
        check_name(self.actor, "an actor")
        if not self.reason.strip() or len(self.reason) > MAX_REASON_LENGTH:
            raise InputError(f"a reason has up to {MAX_REASON_LENGTH:,} characters and is not empty")
        if self.id is not None:
            check_name(self.id, "the id of an action")
        if len(self.name) > MAX_NAME_LENGTH or not self.name.isprintable():
            raise InputError(f"the name of an actor has up to {MAX_NAME_LENGTH} printable characters")


@dataclass(frozen=True, slots=True)
class Sliding:
    """Charges in any window of *days* days stay within the limit.

    Args:
        days: the retention time of the data, from 1 to 36,500.
    """

    days: int

    def __post_init__(self) -> None:
        if not 1 <= self.days <= 36_500:
            raise InputError(f"a sliding period has from 1 to 36,500 days, not {self.days}")


CalendarUnit: TypeAlias = Literal["month", "week", "day"]


@dataclass(frozen=True, slots=True)
class Calendar:
    """The limit is renewed every month, week (from Monday) or day of a time zone, as in the paper.

    Args:
        unit: "month", "week" or "day".
        zone: name of the time zone, such as "Europe/Berlin".
    """

    unit: CalendarUnit
    zone: str = "UTC"

    def __post_init__(self) -> None:
        if self.unit not in {"month", "week", "day"}:
            raise InputError(f"a calendar period is a month, a week or a day, not {self.unit!r}")


@dataclass(frozen=True, slots=True)
class Forever:
    """The limit is for all time."""


Period: TypeAlias = Sliding | Calendar | Forever
"""When charges stop counting."""

Mode: TypeAlias = Literal["observe", "enforce"]
"""observe: charge and never refuse, without a guarantee; enforce: refuse claims that exceed the limit."""


@dataclass(frozen=True, slots=True)
class Units:
    """The budget of an account in LinkedIn's units (Rogers et al. 2021, section 6).

    Args:
        epsilon_per: epsilon of one unit of information, above 0.
        delta_per: delta of one call over an unknown domain, at least 0, below 1.
        information: k*, units of information, at least 0.
        calls: l*, calls over unknown domains, at least 0.
    """

    epsilon_per: Fraction
    delta_per: Fraction
    information: int
    calls: int

    def __post_init__(self) -> None:
        if self.epsilon_per <= 0 or not 0 <= self.delta_per < 1:
            raise InputError("epsilon per unit must be above 0, delta per call at least 0 and below 1")
        if self.information < 0 or self.calls < 0:
            raise InputError("information and calls must not be negative")

    @property
    def limit(self) -> Cost:
        """The limit as a cost: rho = k* epsilon_per^2 / 8, delta = l* delta_per."""
        return Cost.at_most(self.information * self.epsilon_per**2 / 8, self.calls * self.delta_per)

    def rounded_up(self, cost: Cost) -> UnitCost:
        """Return the least units that cover *cost*; no calls if a call costs nothing."""
        if not self.delta_per:
            return units_of_cost(Cost(cost.rho), self.epsilon_per, Fraction(1, 2))
        return units_of_cost(cost, self.epsilon_per, self.delta_per)

    def rounded_down(self, cost: Cost) -> UnitCost:
        """Return the most units that fit into *cost*; no calls if a call costs nothing."""
        information = math.floor(cost.rho / (self.epsilon_per**2 / 8))
        return UnitCost(information, math.floor(cost.delta / self.delta_per) if self.delta_per else 0)


LINKEDIN = Units(Fraction(15, 100), Fraction(1, 10**10), 3_000, 30)
"""LinkedIn's budget: (34.9, 7e-9) a month by the paper's Theorem 2 at delta' = 1e-9."""

LINKEDIN_CONVERSION = Fraction(1, 10**9)
"""The delta' of `LINKEDIN`."""


@dataclass(frozen=True, slots=True)
class Account:
    """A named budget.

    Args:
        id: its name, unique in the store: up to 200 printable characters without white space.
        limit: the most that may be spent in a period.
        delta: of the (epsilon, delta) statement, above limit.delta and below 1; the difference to limit.delta pays for
            the conversion from rho.
        parent: the account that is charged too, such as the organisation of an analyst or the dataset of an
            organisation; None at the root. It never changes.
        mode: observe or enforce.
        units: the units in which balances are also shown, or None.
        share: set if the account is split over data centres; then the limit is the share of this data centre alone.
        suspended: True if an officer suspended it: queries of the account and of those below it are refused until an
            officer lifts that. Answers that were paid for are still replayed.

    Raises:
        InputError: a value outside its range.
    """

    id: str
    limit: Cost
    delta: Fraction
    parent: str | None = None
    period: Period = Forever()
    mode: Mode = "enforce"
    units: Units | None = None
    share: Share | None = None
    suspended: bool = False

    def __post_init__(self) -> None:
        check_name(self.id, "the name of an account")
        if self.parent is not None:
            check_name(self.parent, "the name of an account")
        if self.parent == self.id:
            raise InputError("an account cannot be its own parent")
        if self.mode not in {"observe", "enforce"}:
            raise InputError(f"a mode is observe or enforce, not {self.mode!r}")
        if not self.total_limit.delta < self.delta < 1:
            raise InputError("delta must be above the delta that may be lost, which leaves the rest to the conversion")

    @classmethod
    def of_epsilon(
        cls,
        id: str,  # noqa: A002 - as the field
        epsilon: float,
        delta: Fraction,
        parent: str | None = None,
        period: Period = Forever(),
    ) -> Account:
        """Return an account whose releases are (epsilon, delta)-DP together.

        Half of delta pays for the conversion, half may be lost by mechanisms (`accounting.convert.limit_for`).
        """
        return cls(id, limit_for(epsilon, delta), delta, parent, period)

    @classmethod
    def of_units(
        cls,
        id: str,  # noqa: A002 - as the field
        units: Units = LINKEDIN,
        conversion: Fraction = LINKEDIN_CONVERSION,
        parent: str | None = None,
        period: Period = Calendar("month"),
    ) -> Account:
        """Return an account in LinkedIn's units; *conversion* is Theorem 2's delta'."""
        return cls(id, units.limit, units.limit.delta + conversion, parent, period, units=units)

    @property
    def total_limit(self) -> Cost:
        """The limit of all data centres together."""
        return self.share.total if self.share else self.limit

    def with_limit(self, limit: Cost, delta: Fraction) -> Account:
        """Return the account with another limit (the total, if it is split over data centres) and another delta."""
        if self.share is None:
            return dataclasses.replace(self, limit=limit, delta=delta)
        return dataclasses.replace(self, share=dataclasses.replace(self.share, total=limit), delta=delta)

    @property
    def conversion(self) -> Fraction:
        """The part of delta that pays for the conversion to epsilon; the rest is for the deltas of the releases."""
        return self.delta - self.total_limit.delta

    def epsilon_of(self, rho: Fraction) -> float:
        """Return epsilon of *rho* at the delta of the conversion, by the tight formula, rounded up."""
        return _epsilon_tight(float_above(rho), float_below(self.conversion))

    @property
    def enforced(self) -> bool:
        """True if the account refuses claims that exceed the limit."""
        return self.mode == "enforce"


_epsilon_tight = functools.lru_cache(maxsize=4096)(epsilon_tight)  # costs of queries of one kind are equal


@dataclass(frozen=True, slots=True)
class Balance:
    """The balance of an account.

    Args:
        forfeited: charged for runs that failed.
        resets_at_us: when the first charge stops counting, or None if none ever does.
        time_us: the time of the database when the balance was read.
        as_of: sequence number of the last ledger line in the account's chain.
        suspended_until_us: the end of the account's suspension, or None.
    """

    account: Account
    used: Cost
    held: Cost
    forfeited: Cost
    resets_at_us: int | None
    time_us: int
    as_of: int
    suspended_until_us: int | None = None

    @property
    def spent(self) -> Cost:
        """The sum that is charged to the limit."""
        return self.used + self.held + self.forfeited

    @property
    def remaining(self) -> Cost:
        """The amount that a claim can still hold; zero if more is spent than the limit."""
        limit = self.account.limit
        spent = self.spent
        return Cost(max(limit.rho - spent.rho, Fraction(0)), max(limit.delta - spent.delta, Fraction(0)))

    def admits(self, worst: Cost) -> bool:
        """Return True if a claim of *worst* fits now, apart from suspensions and stored releases."""
        remaining = self.remaining
        fits = (worst.rho <= remaining.rho or worst.rho <= 0) and (worst.delta <= remaining.delta or worst.delta <= 0)
        return fits or not self.account.enforced


class State(Enum):
    """The state of a reservation."""

    HELD = "held"
    RUNNING = "running"
    SETTLED = "settled"
    VOID = "void"
    FORFEIT = "forfeit"


MAX_LEASE_MS = 24 * 3_600_000
"""The longest lease of a reservation: one day."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A request to hold the worst-case cost of a query.

    Args:
        reservation: a new id, unique for ever. A claim whose result was lost may be sent again: a store answers a known
            id as it did the first time.
        account: the account that pays; its parents pay, too.
        release_key: identifies the release: a keyed hash of the canonical query with all parameters, the mechanism and
            the version of the data; 16 to 64 bytes.
        worst: the most that the answer can cost; the same for the same release key.
        key: the caller's idempotency key, or None; each account has keys of its own.
        digest: a digest of the request that came with the key; up to 64 bytes.
        lease_ms: the time after which the reservation expires unless an event ends or renews it, from 1 to a day.
        question: what is asked, for the ledger: canonical JSON without the constants of filters, or empty.
    """

    reservation: str
    account: str
    release_key: bytes
    worst: Cost
    key: str | None = None
    digest: bytes = b""
    lease_ms: int = 60_000
    question: str = ""

    def __post_init__(self) -> None:
        check_name(self.reservation, "the id of a reservation")
        _check_digest(self.release_key, "a release key")
        if self.key is not None:
            check_name(self.key, "an idempotency key")
        if len(self.digest) > 64:
            raise InputError("a digest has at most 64 bytes")
        if not 1 <= self.lease_ms <= MAX_LEASE_MS:
            raise InputError(f"a lease lasts from 1 to {MAX_LEASE_MS:,} ms, not {self.lease_ms}")


@dataclass(frozen=True, slots=True)
class AccountHold:
    """The amount that a reservation holds in one account on its path.

    Args:
        bucket: the number of the account's bucket that is charged, now and at settlement.
        amount: the amount held; zero if the account has paid for the release already.
        funded: the part of it that came out of a forfeit, and returns to the forfeit if the reservation is voided.
    """

    account: str
    bucket: int
    amount: Amount
    funded: Amount = NOTHING


@dataclass(frozen=True, slots=True)
class Reservation:
    """A claim that was admitted.

    Args:
        holds: one for each account on the path, the claim's account first.
        lease_until_us: when it expires unless an event ends or renews it.
    """

    id: str
    account: str
    release_key: bytes
    worst: Cost
    holds: tuple[AccountHold, ...]
    state: State
    lease_until_us: int


@dataclass(frozen=True, slots=True)
class StoredRelease:
    """A stored answer with its cost: it is replayed, never computed again.

    Args:
        result: the exact bytes that were returned.
        cost: the cost charged to the first account that received it.
    """

    release_key: bytes
    result: bytes
    cost: Cost
    time_us: int


@dataclass(frozen=True, slots=True)
class Replay:
    """The answer to a claim whose release is stored.

    Args:
        charged: the cost charged to the claim's account now: zero if it had paid before.
    """

    release: StoredRelease
    charged: Cost


@dataclass(frozen=True, slots=True)
class Refusal:
    """An account on the path cannot hold the worst case; this depends on limits, charges and that worst case only.

    Args:
        account: the first account on the path that cannot hold it.
        needed: the worst case, less the forfeit of the same release.
        resets_at_us: when the first charge stops counting, or None if none ever does.
    """

    account: str
    needed: Cost
    remaining: Cost
    resets_at_us: int | None


@dataclass(frozen=True, slots=True)
class Suspension:
    """All claims of an account are refused: too many of its runs failed, or an officer suspended it.

    Args:
        account: the claim's account, or the first one above it that an officer suspended.
        until_us: the end of the suspension, unless it is lifted before; None if an officer suspended the account.
    """

    account: str
    until_us: int | None


@dataclass(frozen=True, slots=True)
class InFlight:
    """A reservation of the account with the same idempotency key or release key is under way: wait for it."""

    reservation: str
    lease_until_us: int


Admission: TypeAlias = Reservation | Replay | InFlight | Refusal | Suspension
"""How a store answers a claim."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A reservation that was settled.

    Args:
        release: the release to return; if another reservation was settled first, its release instead of the caller's.
    """

    release: StoredRelease
    charged: Cost


@dataclass(frozen=True, slots=True)
class PaidRelease:
    """A release that an account has paid for.

    Args:
        number: increases with every release that the account pays for; for paging only.
        release: the release; None if it is damaged.
    """

    number: int
    release_key: bytes
    release: StoredRelease | None
    charged: Cost
    time_us: int


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A digest of an engine's result, by which a store detects data that changes within one version.

    Args:
        head_key: a keyed hash of the request to the engine and the version of the data, 16 to 64 bytes.
        digest: a keyed hash of the result, 16 to 64 bytes.
    """

    head_key: bytes
    digest: bytes

    def __post_init__(self) -> None:
        _check_digest(self.head_key, "a head key")
        _check_digest(self.digest, "the digest of a head")
