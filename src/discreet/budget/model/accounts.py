"""Accounts: who may spend how much, when it stops counting, and how an account stands."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, TypeAlias

from discreet.accounting.calibrate import limit_for
from discreet.budget.model.names import check_name
from discreet.errors import InputError
from discreet.values import Cost

if TYPE_CHECKING:
    from discreet.budget.model.shares import Share


@dataclass(frozen=True, slots=True)
class Sliding:
    """Charges in any window of *days* days stay within the limit.

    Args:
        days: how long the data is kept, from 1 to 36,500.
    """

    days: int

    def __post_init__(self) -> None:
        if not 1 <= self.days <= 36_500:
            raise InputError(f"a sliding period has from 1 to 36,500 days, not {self.days}")


@dataclass(frozen=True, slots=True)
class Calendar:
    """A new budget with every month, week (from Monday) or day of a time zone: the paper's way, see `periods.doubled`.

    Args:
        unit: "month", "week" or "day".
        zone: name of the time zone in which it begins, such as "Europe/Berlin".
    """

    unit: Literal["month", "week", "day"]
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
"""observe: charges and never refuses, and nothing is guaranteed; enforce: refuses what does not fit."""


@dataclass(frozen=True, slots=True)
class Units:
    """A budget in LinkedIn's units (Rogers et al. 2021, section 6).

    Args:
        epsilon_per: of one unit of information, above 0.
        delta_per: of one call over an unknown domain, at least 0, below 1.
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
        """What they are worth: k* epsilon_per^2 / 8 of rho, l* delta_per of delta."""
        return Cost.at_most(self.information * self.epsilon_per**2 / 8, self.calls * self.delta_per)


LINKEDIN = Units(Fraction(15, 100), Fraction(1, 10**10), 3_000, 30)
"""What LinkedIn launched with: (34.9, 7e-9) a month by the paper's Theorem 2 at delta' = 1e-9."""

LINKEDIN_CONVERSION = Fraction(1, 10**9)
"""The delta' that goes with it."""


@dataclass(frozen=True, slots=True)
class Account:
    """A budget with a name.

    Args:
        id: its name, unique in the store: up to 200 printable characters without white space.
        limit: what may be spent in a period.
        delta: of the (epsilon, delta) statement, above limit.delta and below 1; what is beyond limit.delta pays for the
            conversion from rho.
        parent: the account that is charged too, such as the organisation of an analyst or the dataset of an
            organisation; None at the end of the path. It never changes.
        period: when charges stop counting.
        mode: observe or enforce.
        units: for showing balances in LinkedIn's units; None if nobody wants that.
        share: set if the account is split over data centres: then the limit is that of this one alone.

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

    def __post_init__(self) -> None:
        check_name(self.id, "the name of an account")
        if self.parent is not None:
            check_name(self.parent, "the name of an account")
        if self.parent == self.id:
            raise InputError("an account cannot be its own parent")
        if self.mode not in {"observe", "enforce"}:
            raise InputError(f"a mode is observe or enforce, not {self.mode!r}")
        if not self.whole.delta < self.delta < 1:
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
        """An account whose releases are (epsilon, delta)-DP together.

        Half of delta pays for the conversion, half may be lost by mechanisms (`accounting.calibrate.limit_for`).
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
        """An account in LinkedIn's units; *conversion* is Theorem 2's delta', what the composition may fail by."""
        return cls(id, units.limit, units.limit.delta + conversion, parent, period, units=units)

    @property
    def whole(self) -> Cost:
        """What may be spent in a period in all data centres; in one alone, unless the account is split."""
        return self.share.total if self.share else self.limit

    def limited(self, limit: Cost, delta: Fraction) -> Account:
        """The account with another limit, of all data centres if it is split, and another total delta."""
        if self.share is None:
            return dataclasses.replace(self, limit=limit, delta=delta)
        return dataclasses.replace(self, share=dataclasses.replace(self.share, total=limit), delta=delta)

    @property
    def enforced(self) -> bool:
        """True if it refuses."""
        return self.mode == "enforce"


@dataclass(frozen=True, slots=True)
class Balance:
    """How an account stands.

    Args:
        account: whose.
        used: charged, of what counts now.
        held: reserved.
        forfeited: charged for runs that failed.
        resets_at_us: when some charge stops counting, or None if none will.
        time_us: of the database, when it was read.
        as_of: sequence number of the last ledger line before.
        suspended_until_us: until when it is refused whatever it asks, or None.
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
        """All that counts against the limit."""
        return self.used + self.held + self.forfeited

    @property
    def remaining(self) -> Cost:
        """What a claim may still hold; nothing if the limit was lowered below what is spent."""
        limit, spent = self.account.limit, self.spent
        return Cost(max(limit.rho - spent.rho, Fraction(0)), max(limit.delta - spent.delta, Fraction(0)))
