"""Costs as whole numbers of quanta, as the stores and the ledger keep them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from discreet.values import DELTA_QUANTUM, RHO_QUANTUM, Cost

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
        """Return *cost*, which is a multiple of the quanta."""
        rho, delta = cost.rho, cost.delta
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
        """Return the larger of the two, part by part."""
        return Amount(max(self.rho, other.rho), max(self.delta, other.delta))

    def least(self, other: Amount) -> Amount:
        """Return the smaller of the two, part by part."""
        return Amount(min(self.rho, other.rho), min(self.delta, other.delta))


NOTHING = Amount()


@dataclass(frozen=True, slots=True)
class Tally:
    """What a bucket of an account holds, or the change of it.

    Args:
        used: charged for releases and by hand.
        forfeited: charged for runs that failed after the data was queried; pays for a retry of the same release only.
        refunded: what was given back; counts in no balance, only against the cap of refunds.
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
        """What counts against the limit."""
        return self.used + self.held + self.forfeited


EMPTY = Tally()
