"""Discrete Laplace and discrete Gaussian noise: exact, vectorised, of rational scale.

A geometric variate is floor(b E) with E standard exponential: Pr[floor(b E) >= n] = e^(-n/b). The difference of two is
discrete Laplace. The discrete Gaussian accepts discrete Laplace proposals (Canonne, Kamath & Steinke 2020, Algorithm 3)
by comparing a further exponential variate with a rational number. floor and comparison are decided by intervals, and
where intervals are not conclusive, by further bits and exact fractions.

Each distribution provides its cost (zCDP of adding it to integers), its standard deviation and its tail bounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from discreet.errors import InputError
from discreet.noise.bits import Bits
from discreet.noise.gumbel import Exponentials

MAX_SCALE = 2**40
"""Noise wider than this could leave the int64 range next to a large count."""

_ULPS = 2.0**-48


class Noise(Protocol):
    """Integer noise, symmetric around 0, independent between draws."""

    @property
    def std(self) -> float:
        """The standard deviation in counts (an upper bound, tight except for scales far below 1)."""
        ...

    def draw(self, bits: Bits, label: str, n: int) -> NDArray[np.int64]:
        """Draw *n* values; *label* is the prefix of the labels of all bits drawn."""
        ...

    def rho(self, sensitivity: int = 1) -> Fraction:
        """Return the zCDP cost of adding this noise to one count that a user moves by at most *sensitivity*."""
        ...

    def half_width(self, miss: float = 0.05) -> int:
        """Return a w, nearly the smallest, with Pr[|noise| > w] <= *miss*."""
        ...

    def difference_margin(self, probability: Fraction) -> int:
        """Return an m, nearly the smallest and never too small, with Pr[X - Y > m] <= *probability*.

        X and Y are two independent draws.
        """
        ...


@dataclass(frozen=True, slots=True)
class DiscreteLaplace:
    """Pr[z] proportional to e^(-|z| / scale), on all integers.

    Args:
        scale: b, rational, above 0 and at most 2^40. On a count of sensitivity s it is (s/b)-DP.
    """

    scale: Fraction

    def __post_init__(self) -> None:
        check_scale(self.scale)

    @property
    def std(self) -> float:
        """The standard deviation, sqrt(2 q) / (1 - q) with q = e^(-1/b)."""
        decay = float(1 / self.scale)
        return math.sqrt(2 * math.exp(-decay)) / -math.expm1(-decay)

    def draw(self, bits: Bits, label: str, n: int, first: int = 0) -> NDArray[np.int64]:
        """Draw *n* values, the first of which has the number *first*; those before it were drawn before."""
        return _laplace(bits, label, n, self.scale, first)

    def rho(self, sensitivity: int = 1) -> Fraction:
        """Return (s/b)^2 / 2, for it is (s/b)-DP (Bun & Steinke 2016, Proposition 1.4)."""
        return (sensitivity / self.scale) ** 2 / 2

    def half_width(self, miss: float = 0.05) -> int:
        # Pr[|z| > w] = 2 q^(w+1) / (1 + q)
        decay = float(1 / self.scale)
        return max(0, math.ceil(math.log(2 / (miss * (1 + math.exp(-decay)))) / decay - 1))

    def difference_margin(self, probability: Fraction) -> int:
        # the closed form of the tail is in docs/mechanisms/unknown_laplace.md
        return smallest_margin(lambda m: laplace_difference_tail(self.scale, self.scale, m + 1), probability)


@dataclass(frozen=True, slots=True)
class DiscreteGaussian:
    """Pr[z] proportional to e^(-z^2 / 2 variance), on all integers.

    Args:
        variance: sigma^2, rational, above 0 and at most 2^80.
    """

    variance: Fraction

    def __post_init__(self) -> None:
        check_scale(self.variance, MAX_SCALE**2)

    @property
    def std(self) -> float:
        """Sigma, which the true standard deviation does not exceed (Canonne et al. 2020, Corollary 9)."""
        return math.sqrt(self.variance)

    def draw(self, bits: Bits, label: str, n: int) -> NDArray[np.int64]:
        """Draw batches of proposals until *n* are accepted."""
        scale = Fraction(math.isqrt(math.floor(self.variance)) + 1)
        accepted: list[NDArray[np.int64]] = []
        missing = n
        batch = 0
        while missing > 0:
            size = missing + missing // 2 + 16
            proposals = _laplace(bits, f"{label}/{batch}/proposal", size, scale)
            tests = Exponentials(bits, f"{label}/{batch}/test", size)
            accepted.append(proposals[_accepted(proposals, tests, self.variance, scale)][:missing])
            missing -= len(accepted[-1])
            batch += 1
        return np.concatenate(accepted) if accepted else np.zeros(0, dtype=np.int64)

    def rho(self, sensitivity: int = 1) -> Fraction:
        """Return s^2 / 2 sigma^2 (Canonne et al. 2020, Theorem 14)."""
        return sensitivity**2 / (2 * self.variance)

    def half_width(self, miss: float = 0.05) -> int:
        # Pr[|Z| >= w + 1] <= Pr[|N| >= w] (Canonne et al. 2020, Theorem 26)
        return math.ceil(-statistics.NormalDist().inv_cdf(miss / 2) * self.std)

    def difference_margin(self, probability: Fraction) -> int:
        # X - Y is sub-Gaussian of variance 2 sigma^2
        return math.ceil(math.sqrt(4 * self.variance * -math.log(probability)) * (1 + 1e-12))


def check_scale(scale: Fraction, largest: int = MAX_SCALE) -> None:
    """Raise `InputError` if *scale* (or variance) is above *largest*, where draws would be too wide."""
    if not 0 < scale <= largest:
        raise InputError("the noise would have to be wider than 2^40 counts; epsilon is too small for an answer")


def _laplace(bits: Bits, label: str, n: int, scale: Fraction, first: int = 0) -> NDArray[np.int64]:
    up = _geometric(Exponentials(bits, f"{label}/up", n, first=first), scale)
    return up - _geometric(Exponentials(bits, f"{label}/down", n, first=first), scale)


def _geometric(variates: Exponentials, scale: Fraction) -> NDArray[np.int64]:
    """Return floor(scale * E), exactly."""
    values = variates.values()
    factor = float(scale)
    radius = variates.radius(values) * factor + _ULPS * values * factor
    least = np.floor(values * factor - radius)
    unsure = np.flatnonzero(least != np.floor(values * factor + radius))
    least[unsure] = 0
    result = np.maximum(least, 0).astype(np.int64)
    for i in unsure.tolist():
        result[i] = _exact_floor(variates, i, scale)
    return result


def _exact_floor(variates: Exponentials, i: int, scale: Fraction) -> int:
    depth = 1
    while True:
        least, most = variates.bounds(i, depth)
        if most is not None and math.floor(least * scale) == math.floor(most * scale):
            return math.floor(least * scale)
        depth += 1


def _accepted(
    proposals: NDArray[np.int64], tests: Exponentials, variance: Fraction, scale: Fraction
) -> NDArray[np.bool_]:
    """Return a mask of the proposals with E > (|Y| - sigma^2 / t)^2 / (2 sigma^2), decided exactly."""
    centre = float(variance / scale)
    spread = 2 * float(variance)
    size = np.abs(proposals).astype(np.float64)
    # With r = | |Y| - sigma^2/t | / sigma, sizes are below (r + 2) sigma: rounding moves the hurdle, r^2 / 2, by less
    # than (3 r^2 + 2 r) 2^-53.
    hurdle = (size - centre) ** 2 / spread
    values = tests.values()
    gap = values - hurdle
    accepted = gap > 0
    for i in np.flatnonzero(np.abs(gap) <= tests.radius(values) + _ULPS * (1 + hurdle)).tolist():
        accepted[i] = _exceeds(tests, i, (abs(int(proposals[i])) - variance / scale) ** 2 / (2 * variance))
    return accepted


def _exceeds(variates: Exponentials, i: int, hurdle: Fraction) -> bool:
    depth = 1
    while True:
        least, most = variates.bounds(i, depth)
        if least > hurdle:
            return True
        if most is not None and most < hurdle:
            return False
        depth += 1


@lru_cache(maxsize=4096)
def laplace_difference_tail(scale: Fraction, other: Fraction, n: int) -> float:
    """Return Pr[X - Y >= n] for n >= 0, with X and Y independent discrete Laplace of the two scales.

    With p = e^(-1/scale) and r = e^(-1/other) the convolution of p^|x| and r^|y| has a closed form (docs/noise.md),
    written here without differences of nearly equal numbers. Rounded up by far more than its floating-point error.
    """
    wide = max(scale, other)
    narrow = min(scale, other)
    a = float(1 / wide)
    b = float(1 / narrow)
    apart = float(1 / narrow - 1 / wide)
    p = math.exp(-a)
    r = math.exp(-b)
    one_p = -math.expm1(-a)
    one_r = -math.expm1(-b)
    ratio_product = p * r / -math.expm1(-a - b)
    steps = math.expm1(-n * apart) / math.expm1(-apart) if apart else n
    beside = ratio_product * (math.exp(-b * n) / one_r + math.exp(-a * n) / one_p)
    between = math.exp(-a * n) * (steps * one_r + math.exp(-apart * n)) / (one_p * one_r)
    return one_p / (1 + p) * one_r / (1 + r) * (beside + between) * (1 + 1e-9)


def smallest_margin(tail: Callable[[int], float], probability: Fraction) -> int:
    """Return the smallest m >= 0 with tail(m) <= *probability*, for a decreasing *tail*."""
    high = 1
    while tail(high) > probability:
        high *= 2
    low = -1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if tail(middle) <= probability else (middle, high)
    return high
