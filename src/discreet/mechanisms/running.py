"""Running counts: users of every item so far, on each of many days, for one price (docs/running-counts.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from discreet.accounting.gaussian import mu_gaussian, normal_quantile
from discreet.errors import InputError, InvariantViolated
from discreet.head_request import MAX_RUNNING_GROUPS, MAX_RUNNING_PERIODS
from discreet.mechanisms.base import INTERVAL, counted_outcome
from discreet.noise.correlated import squared_sums
from discreet.values import Cost, ExactHead, Outcome, float_below

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from discreet.noise import CorrelatedGaussians


@dataclass(frozen=True, slots=True)
class RunningCounts:
    """The number of users so far of every item that has enough of them, on each of the days 1..T.

    A user counts for the first C items that the user had, in the order of days. On day t, with noise
    Z = `CorrelatedGaussians` of variance sigma^2, an item of h users is listed, with its day, if h >= m and
    h + Z >= m + ceil(z sigma sqrt(gamma_t) + 1/2), where m = ceil(sigma). From its day on, h + Z is published on every
    day. sigma^2 >= C gamma_T / mu^2, and Pr[N(0, 1) > z] <= beta / (C T).

    All that is published costs rho = mu^2 / 2 and loses beta; it satisfies (epsilon, beta + curve of mu at epsilon).

    Args:
        periods: T, the number of days.
        groups_per_user: C.
        variance: sigma^2, a multiple of 1/1024.
        quantile: z, a multiple of 1/1024.
        rho: mu^2 / 2.
        mass: beta.
    """

    periods: int
    groups_per_user: int
    variance: Fraction
    quantile: Fraction
    rho: Fraction
    mass: Fraction

    name: ClassVar[str] = "running"

    @classmethod
    def of(cls, periods: int, groups_per_user: int, epsilon: float, delta: Fraction) -> Self:
        """Return the stream that is (*epsilon*, *delta*)-differentially private; half of *delta* is beta.

        Raises:
            InputError: a number is out of range.
        """
        if not 1 <= periods <= MAX_RUNNING_PERIODS:
            raise InputError(f"a stream has from 1 to {MAX_RUNNING_PERIODS:,} periods, not {periods:,}")
        if not 1 <= groups_per_user <= MAX_RUNNING_GROUPS:
            raise InputError(
                f"groups_per_user is from 1 to {MAX_RUNNING_GROUPS:,} for running counts, not {groups_per_user:,}"
            )
        mass = delta / 2
        square = Fraction(mu_gaussian(epsilon, float_below(delta - mass))) ** 2
        variance = groups_per_user * Fraction(squared_sums(periods)[-1]) / square
        quantile = normal_quantile(float_below(mass / (groups_per_user * periods)))
        return cls(periods, groups_per_user, _rounded_up(variance), _rounded_up(Fraction(quantile)), square / 2, mass)

    def worst_cost(self) -> Cost:
        """Return the cost of the whole stream, which is charged when it begins."""
        return Cost(self.rho, self.mass)

    @property
    def least(self) -> int:
        """M: items with fewer users are not listed, whatever their noise, so that engines need not return them."""
        return math.isqrt(math.ceil(self.variance) - 1) + 1

    def std_error(self, day: int) -> float:
        """Return the standard deviation of the noise on *day*, from 1 on."""
        return math.sqrt(float(self.variance) * float(squared_sums(day)[-1]) + 1 / 12)  # 1/12: rounding

    def half_width(self, day: int) -> int:
        """Return half of the width of a 95 % interval of a count on *day*, from 1 on."""
        return math.ceil(INTERVAL * self.std_error(day))

    def threshold(self, day: int) -> int:
        """Return the least noisy count with which an item is listed on *day*, from 1 on."""
        std = math.sqrt(float(self.variance) * float(squared_sums(day)[-1])) * (1 + 1e-12)
        return self.least + math.ceil(float(self.quantile) * std * (1 + 1e-12) + 0.5)

    def release(
        self, head: ExactHead, listed: NDArray[np.bool_], names: Sequence[bytes], day: int, noise: CorrelatedGaussians
    ) -> Outcome:
        """Return the counts of the listed items, and of those that are listed now; its cost is 0.

        Args:
            head: the users so far of each item; every listed one, and all others with at least m.
            listed: True for the items that were listed on earlier days, shape (n,).
            names: injective encodings of the labels of all items.
            day: from 1 to T, after all days that were answered.

        Raises:
            InvariantViolated: the stream has no such day, or its noise is of another stream.
        """
        if not 1 <= day <= self.periods or noise.variance != self.variance:
            raise InvariantViolated("the noise of a day belongs to its stream")
        noisy = head.counts + noise.draw(names, day)
        shown = np.flatnonzero(listed | ((head.counts >= self.least) & (noisy >= self.threshold(day))))
        # Not by position in the head, which would reveal the order of the true counts where noisy ones are equal.
        order = np.array(sorted(shown.tolist(), key=lambda i: (-noisy[i], names[i])), dtype=np.int64)
        width = self.half_width(day)
        return counted_outcome(order, noisy[order], self.std_error(day), width, complete=False, cost=Cost())


def _rounded_up(value: Fraction) -> Fraction:
    """Round up to a multiple of 1/1024, alike on every machine."""
    return Fraction(math.ceil(value * 1024), 1024)
