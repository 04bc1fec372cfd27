"""Noise of which all values share a part (docs/noise.md, and docs/mechanisms/two_round.md for weighted values)."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.convert import ceil_sqrt, floor_sqrt
from discreet.noise import Bits, DiscreteLaplace, rounded_gaussian
from discreet.noise.distributions import MAX_SCALE, check_scale, laplace_difference_tail, smallest_margin

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SharedNoise:
    """Noise (X_j + R) / 2 of values j, rounded to whole numbers: an X_j for each value and one R for all, Gaussian.

    A user moves each value v_j by low..high, where low is at most 0 and high at least 0. 2 v_j + X_j + R follows from
    2 v_j - (low + high) N + X_j and (low + high) N + R, where N is the number of users. One user moves these by
    high - low and |low + high| at most, whichever values the user has. So n values cost
    ((high - low)^2 n / var X + (low + high)^2 / var R) / 2 (Lebeda 2024; docs/noise.md#shared-noise).

    Args:
        apart: the variance of each X_j, above 0.
        shared: the variance of R, above 0.
    """

    apart: Fraction
    shared: Fraction

    def __post_init__(self) -> None:
        check_scale(max(self.apart, self.shared), MAX_SCALE**2)

    @classmethod
    def of(cls, n: int, precision: Fraction, low: int = 0, high: int = 1) -> Self:
        """Return the least noise at which *n* values cost *precision* / 2 at most; low + high is not 0."""
        root = floor_sqrt(Fraction(n))
        width = high - low
        common = abs(low + high)
        unit = (width * n + common * root) / precision
        return cls(rounded_up(width * unit), rounded_up(common * unit / root))

    @classmethod
    def instead(cls, n: int, moved: int, variance: Fraction, low: int, high: int) -> Self | None:
        """Return noise for *n* values that costs what independent Gaussian noise does, or None if it is not smaller.

        low + high is not 0.

        Args:
            moved: the number of values that one user moves, for the price of independent noise.
            variance: that of independent noise.
        """
        most = max(-low, high)
        noise = cls.of(n, moved * most**2 / variance, low, high)
        return noise if noise.std < math.sqrt(variance) else None

    @property
    def std(self) -> float:
        """The standard deviation of the noise of one value."""
        return math.sqrt((self.apart + self.shared) / 4 + Fraction(1, 6))  # 1/6 is the variance of the rounding

    @property
    def shared_std(self) -> float:
        """The standard deviation of the part that all values share; the covariance of two values is its square."""
        return math.sqrt(self.shared + Fraction(1, 12)) / 2

    def half_width(self, miss: float = 0.05) -> int:
        """Return a w, nearly the smallest, with Pr[|noise| > w] <= *miss*."""
        # Rounding moves the noise by less than 1, so that noise of w + 1 or more is a Gaussian of more than w.
        return math.ceil(-statistics.NormalDist().inv_cdf(miss / 2) * math.sqrt((self.apart + self.shared) / 4))

    def rho(self, n: int, low: int = 0, high: int = 1) -> Fraction:
        """Return the zCDP cost of *n* values that one user moves by *low* to *high*."""
        return ((high - low) ** 2 * n / self.apart + (low + high) ** 2 / self.shared) / 2

    def twice(self, bits: Bits, label: str, anchor: str, n: int) -> Ints:
        """Draw X_j + R for *n* values, with bits of the labels *label* and *anchor*."""
        apart = rounded_gaussian(bits, label, self.apart.numerator, np.full(n, self.apart.denominator))
        return apart + rounded_gaussian(bits, anchor, self.shared.numerator, np.array([self.shared.denominator]))

    def draw(self, bits: Bits, label: str, n: int) -> Ints:
        """Draw the noise of *n* values.

        Halves are rounded up or down by a coin that does not depend on the value, so that the noise has the mean 0 and
        its sum with the value follows from 2 v_j + X_j + R.
        """
        coins = np.unpackbits(bits.uint64(f"{label}/coin", -(-n // 64)).view(np.uint8), bitorder="little")[:n]
        return (self.twice(bits, label, f"{label}/anchor", n) + coins) // 2


@dataclass(frozen=True, slots=True)
class SharedLaplace(SharedNoise):
    """The same noise with discrete Laplace X_j and R, for pure privacy.

    n values are epsilon-DP with epsilon = (high - low) n / apart + |low + high| / shared.

    Args:
        apart: the scale of each X_j, above 0.
        shared: the scale of R, above 0.
    """

    @classmethod
    def of(cls, n: int, precision: Fraction, low: int = 0, high: int = 1) -> Self:
        """Return the least noise at which *n* values are *precision*-DP; low + high is not 0."""
        width = (high - low) * n
        common = abs(low + high)
        # The least sum of squared scales has shared / apart = (common / width)^(1/3); below it by 2^-20 at most.
        ratio = Fraction(_cube_root(2**60 * common // width), 2**20)
        apart = rounded_up((width + common / ratio) / precision)
        return cls(apart, rounded_up(ratio * apart))

    @classmethod
    def instead(cls, n: int, moved: int, variance: Fraction, low: int, high: int) -> Self | None:
        """Return noise whose epsilon and rho are at most those of independent noise, or None if it is not smaller.

        low + high is not 0.

        Args:
            moved: the number of values that one user moves, for the price of independent noise.
            variance: the square of the scale of independent noise.
        """
        most = max(-low, high)
        scale = floor_sqrt(variance)
        noise = cls.of(n, moved * most / ceil_sqrt(variance), low, high)
        excess = ceil_sqrt(max(Fraction(1), noise.rho(n, low, high) * 2 * variance / (moved * most**2)))
        noise = cls(rounded_up(noise.apart * excess), rounded_up(noise.shared * excess))
        return noise if noise.std < DiscreteLaplace(scale).std else None

    @property
    def std(self) -> float:
        """The standard deviation of the noise of one value, rounded up: half counts are odd in half of the draws."""
        return math.hypot(DiscreteLaplace(self.apart).std, DiscreteLaplace(self.shared).std, math.sqrt(0.5)) / 2

    @property
    def shared_std(self) -> float:
        """The standard deviation of the part that all values share; the covariance of two values is its square."""
        return DiscreteLaplace(self.shared).std / 2

    def half_width(self, miss: float = 0.05) -> int:
        """Return the smallest w with Pr[|noise| > w] <= *miss*."""

        # By the coin, noise of w + 1 is X_j + R of 2 w + 2 or more, or in half of the cases of 2 w + 1.
        def beyond(width: int) -> float:
            least = 2 * width + 1
            return sum(laplace_difference_tail(self.apart, self.shared, n) for n in (least, least + 1))

        return smallest_margin(beyond, Fraction(miss))

    def rho(self, n: int, low: int = 0, high: int = 1) -> Fraction:
        """Return the zCDP cost of *n* values that one user moves by *low* to *high*."""
        return (((high - low) / self.apart) ** 2 * n + (Fraction(low + high) / self.shared) ** 2) / 2

    def epsilon(self, n: int, low: int = 0, high: int = 1) -> Fraction:
        """Return epsilon of *n* values that one user moves by *low* to *high*."""
        return (high - low) * n / self.apart + abs(low + high) / self.shared

    def twice(self, bits: Bits, label: str, anchor: str, n: int) -> Ints:
        """Draw X_j + R for *n* values, with bits of the labels *label* and *anchor*."""
        apart = DiscreteLaplace(self.apart).draw(bits, label, n)
        return apart + DiscreteLaplace(self.shared).draw(bits, anchor, 1)


def rounded_up(value: Fraction) -> Fraction:
    """Round up to a multiple of 1/1024, alike on every machine."""
    return Fraction(math.ceil(value * 1024), 1024)


def _cube_root(number: int) -> int:
    """Return the cube root of a number of at least 0, rounded down."""
    low = 0
    high = 1 << (number.bit_length() // 3 + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**3 <= number else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class Anchored:
    """The noise of anchored counts: of 2 c_j - N for each of the m largest items, and of N, the number of users.

    A user moves each of these m + 1 values by 1, whichever items the user has. Half of the sum of the first and the
    last is an estimate of c_j. At a cost of b, with v_j the weight of item j and S_k the sum of v_j^-k over the m
    items, 2 c_j - N gets the variance c v_j and N the variance c / sqrt(S_2), where c = (S_1 + sqrt(S_2)) / b. That of
    the estimate is c (v_j + 1 / sqrt(S_2)) / 4: for equal weights about a fourth of that of m plain counts.

    Args:
        weights: v_j, above 0, of the items in the order in which they are counted, shape (n,).
        sums: S_1 of the m largest items, for every m, shape (n,).
        roots: the root of S_2, likewise.
    """

    weights: Floats
    sums: Floats
    roots: Floats

    @classmethod
    def of(cls, weights: Floats) -> Self:
        """Return the noise for items with these *weights*."""
        return cls(weights, np.cumsum(1 / weights), np.sqrt(np.cumsum(weights**-2.0)))

    def variances(self, m: int, cost: float) -> Floats:
        """Return the variances of the *m* estimates at a *cost* in units of mu^2, shape (m,)."""
        shared = 1 / self.roots[m - 1]
        spread: Floats = (self.sums[m - 1] + self.roots[m - 1]) * (self.weights[:m] + shared) / (4 * cost)
        return spread

    def last_variances(self, cost: float) -> Floats:
        """Return the variance of item m if the m largest items are counted, for every m, shape (n,)."""
        spread: Floats = (self.sums + self.roots) * (self.weights + 1 / self.roots) / (4 * cost)
        return spread

    def cost_of(self, m: int, variances: Floats) -> float:
        """Return the least cost at which none of the *m* estimates has more than its variance of *variances*."""
        return float((self.variances(m, 1.0) / variances[:m]).max())

    def costs(self, m: int, total: int) -> tuple[Ints, int] | None:
        """Return the cost of each of *m* values and of N, whole numbers of at least 1 whose sum is *total*.

        Returns:
            None if there are none.
        """
        unit = total / float(self.sums[m - 1] + self.roots[m - 1])
        costs = np.floor(unit / self.weights[:m]).astype(np.int64)
        left = total - int(costs.sum())  # not a second rounded share, so that the sum is exact
        return None if left < 1 or costs.min() < 1 else (costs, left)
