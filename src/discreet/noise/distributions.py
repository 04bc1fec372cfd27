"""Exact distributions from uniform bits: the exponential, the Gumbel race, discrete Laplace and discrete Gaussian.

Noise is integer and of rational scale. All of it is drawn from exponential variates, which are known up to an interval:
floating point decides almost always, and where intervals are not conclusive, further bits and exact fractions do.

**The Gumbel race** is the exponential mechanism on integer scores, in order. Competitor i has the key
scale * score_i + ln(factor_i) + G_i with G_i independent standard Gumbel. The order of the keys is the order of
peeling: first the winner of the exponential mechanism with weights factor_i * exp(scale * score_i), then the winner
among the remaining competitors, and so on (Plackett-Luce; Durfee & Rogers 2019, section 4). Keys are only compared,
never rounded.

**Discrete noise**: a geometric variate is floor(b E) with E standard exponential: Pr[floor(b E) >= n] = e^(-n/b). The
difference of two is discrete Laplace. The discrete Gaussian accepts discrete Laplace proposals (Canonne, Kamath &
Steinke 2020, Algorithm 3) by comparing a further exponential variate with a rational number. Each distribution provides
its cost (zCDP of adding it to integers), its standard deviation and its tail bounds.
"""

from __future__ import annotations

import decimal
import functools
import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from discreet.errors import InputError
from discreet.noise.bits import Bits


def log_bounds(value: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Return a lower and an upper bound of ln(*value*), less than 10**(2 - *digits*) (1 + |ln(value)|) apart.

    `decimal` rounds ln correctly, so that the true value lies between the two neighbours of its result. Used only where
    64 bits could not decide: rarely, so clarity beats speed here.

    Args:
        value: above 0.
        digits: significant decimal digits of the computation.
    """
    down = decimal.Context(digits, decimal.ROUND_FLOOR)
    up = decimal.Context(digits, decimal.ROUND_CEILING)
    # Next to 1 the logarithm may round to 0: a larger Emin keeps its neighbours from having a billion digits.
    beside = decimal.Context(digits, Emin=-8 * digits)
    numerator = decimal.Decimal(value.numerator)
    denominator = decimal.Decimal(value.denominator)
    low = down.divide(numerator, denominator).ln(beside).next_minus(beside)
    high = up.divide(numerator, denominator).ln(beside).next_plus(beside)
    return Fraction(low), Fraction(high)


# numpy promises its logarithms to 4 units in the last place, 2^-50 relative. All bounds here allow twice that and more.
_ULPS = 2.0**-49
_WIDE_ULPS = 2.0**-48
"""The same for keys, hurdles and products, which are rounded more than once."""


class Exponentials:
    """A vector of n independent standard exponential variates; 64 bits are known of each, more are drawn when needed.

    A variate is E = -ln W with W a uniform real in (0, 1), whose first bits are drawn at once and further bits only if
    they matter. Every further word of variate i has its own label: if floating point is conclusive on one machine and
    not on another, no other draw changes, and the decisions, being exact, are the same everywhere.

    Args:
        label: label of the first words; further words are labelled "label/index/depth".
        known_bits: the number of bits known at first; fewer than 64 only to force refinements in tests.
        first: the number of the first variate; those before it were drawn before.
    """

    def __init__(self, bits: Bits, label: str, n: int, known_bits: int = 64, first: int = 0) -> None:
        self._bits = bits
        self._label = label
        self._known = known_bits
        self._first = first
        self._words = bits.uint64(label, n, first)
        if known_bits < 64:
            self._words = self._words >> np.uint64(64 - known_bits) << np.uint64(64 - known_bits)
        self._step = 2.0 ** (64 - known_bits)
        self._more: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._words)

    def values(self) -> NDArray[np.float64]:
        """Return approximate values, shape (n,)."""
        # In place, and by way of int64 (numpy converts uint64 ten times slower): being exact must not cost time.
        uniform = (self._words >> np.uint64(1)).view(np.int64).astype(np.float64)
        uniform += max(self._step / 4, 0.5)
        uniform *= 2.0**-63
        np.log(uniform, out=uniform)
        np.negative(uniform, out=uniform)
        return uniform

    def radius(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return error bounds of some of `values`; they are infinite where almost no bits are known.

        W lies in [r, r + step] / 2^64, and `values` uses a point v of it that is less than step from both ends. If step
        is at most v / 16, the error is at most 16/15 step / v + 2^-52, relative to W.
        """
        relative = np.exp(values) * (self._step * 2.0**-64)  # step / v
        spread = 2 * relative
        spread[relative > 1 / 16] = np.inf
        bounds: NDArray[np.float64] = spread + _ULPS * (1 + values)
        return bounds

    def irregular(self, values: NDArray[np.float64]) -> NDArray[np.intp]:
        """Return a mask of `values` whose relative error may exceed 2^-19 (one in a billion does)."""
        return np.flatnonzero(
            (values < max(2.0**-30, 2.0 ** (21 - self._known)))
            | (self._words < np.uint64(min(2**30 << (64 - self._known), 2**64 - 1)))
        )

    def gumbel_bounds(self, index: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Enclose the standard Gumbel variates -ln E of the variates *index*, at full relative precision.

        Large Gumbel variates come from W next to 1, where 1 - W is known with a small relative error.
        """
        words = self._words[index]
        step = np.uint64(1 << (64 - self._known))
        complement = ~words + np.uint64(1)  # 2^64 - r; 0 means 2^64, where r is 0
        near_one = words >= np.uint64(2**63)
        with np.errstate(divide="ignore"):
            most = np.where(
                near_one,
                -np.log1p(-(complement.astype(np.float64) * 2.0**-64)),
                -np.log(words.astype(np.float64) * 2.0**-64),
            )
            least = np.where(
                near_one,
                -np.log1p(-((complement - step).astype(np.float64) * 2.0**-64)),
                -np.log((words.astype(np.float64) + self._step) * 2.0**-64),
            )
            low = -np.log(most)
            high = -np.log(np.maximum(least, 0.0))
            margin = 4 * _ULPS
            low -= margin * (1 + np.abs(low))
            high += margin * (1 + np.abs(high))
        return low, high

    def bounds(self, i: int, depth: int) -> tuple[Fraction, Fraction | None]:
        """Return bounds of variate *i* of these from *depth* further words; the upper one is None while W may be 0."""
        words = self._more.setdefault(i, [])
        while len(words) < depth:
            words.append(self._further(i, len(words) + 1))
        bits = self._known + 64 * depth
        value = int(self._words[i]) >> (64 - self._known)
        for word in words[:depth]:
            value = value << 64 | word
        digits = bits // 3 + 20
        least = -log_bounds(Fraction(value + 1, 1 << bits), digits)[1]
        most = -log_bounds(Fraction(value, 1 << bits), digits)[0] if value else None
        return max(least, Fraction(0)), most

    def _further(self, i: int, number: int) -> int:
        """Draw further word *number*, from 1 on, of variate *i* of these."""
        return int(self._bits.uint64(f"{self._label}/{self._first + i}/{number}", 1)[0])


@dataclass(frozen=True, slots=True)
class Rival:
    """A competitor that ends the race: the threshold.

    Args:
        score: integer part of its score, in counts.
        factor: the factor of its weight, above 0.
    """

    score: int
    factor: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True)
class Race:
    """A race between items and, optionally, a rival.

    Args:
        scores: int64 scores of shape (n,), absolute values at most 2^62.
        scale: the increase of the exponent per count (epsilon / tau), above 0.
        rival: the competitor that ends the race, or None.
        divisors: int64 of shape (n,), the divisor of each item's weight, or None for 1.
    """

    scores: NDArray[np.int64]
    scale: Fraction
    rival: Rival | None = None
    divisors: NDArray[np.int64] | None = None

    def run(self, bits: Bits, label: str, limit: int, known_bits: int = 64) -> tuple[NDArray[np.int64], bool]:
        """Return the first *limit* items that come before the rival, in order, and whether the rival was reached.

        Args:
            label: prefix of the labels of all bits drawn.
            limit: the most items to return, at least 1.
        """
        n = len(self.scores)
        if n == 0:
            return np.zeros(0, dtype=np.int64), self.rival is not None
        noise = Exponentials(bits, label, n + (self.rival is not None), known_bits)
        places = _first_places(self, noise, limit)
        reached = np.flatnonzero(places == n)
        return (places[: reached[0]], True) if len(reached) else (places, False)

    def exponents(self) -> NDArray[np.float64]:
        """Return approximate scale * (score - best item's) + ln(factor) of all competitors, the rival last.

        Differences of scores are exact, so the error is at most 2^-50 of the absolute value and of ln(factor).
        """
        rival = self.rival
        best = int(self.scores.max())
        base = (self.scores - best).astype(np.float64)
        base *= float(self.scale)
        if self.divisors is not None:
            base -= np.log(self.divisors.astype(np.float64))
        if rival is None:
            return base
        return np.append(base, float(self.scale * (rival.score - best)) + _log(rival.factor))

    def exact_exponent(self, i: int, digits: int) -> tuple[Fraction, Fraction]:
        """Enclose scale * score + ln(factor) of competitor *i*, the rival having the last index."""
        if self.rival is not None and i == len(self.scores):
            score = self.rival.score
            factor = self.rival.factor
        else:
            score = int(self.scores[i])
            factor = Fraction(1) if self.divisors is None else Fraction(1, int(self.divisors[i]))
        low, high = log_bounds(factor, digits)
        return self.scale * score + low, self.scale * score + high


def _log(value: Fraction) -> float:
    """Return ln(*value*), even outside the range of floats, with an error of at most 2^-51 (1 + |ln|)."""
    shift = value.numerator.bit_length() - value.denominator.bit_length()
    return math.log(value / Fraction(2) ** shift) + shift * math.log(2)


def _first_places(race: Race, noise: Exponentials, limit: int) -> NDArray[np.int64]:
    """Return the indices of the first *limit* competitors, in order; after the rival the order is undecided."""
    base = race.exponents()
    contenders = _contenders(base, noise, limit)
    low, high = noise.gumbel_bounds(contenders)
    exponents = base[contenders]
    margin = _WIDE_ULPS * (np.abs(exponents) + 64)
    low = low + exponents - margin
    high = high + exponents + margin

    # Any initial order is correct: places are fixed only where the intervals make the order certain.
    start = np.argsort(-np.where(np.isfinite(high), np.maximum(low, -1e300) + high, np.inf), kind="stable")
    contenders = contenders[start]
    low = low[start]
    high = high[start]
    behind = np.maximum.accumulate(high[::-1])[::-1]
    certain = np.flatnonzero(np.minimum.accumulate(low)[:-1] > behind[1:]) + 1
    edges = np.concatenate(([0], certain, [len(contenders)]))

    rival = len(race.scores)
    for first, last in itertools.pairwise(edges):
        if first >= limit:
            break
        if last - first > 1:
            group = sorted(contenders[first:last].tolist(), key=functools.cmp_to_key(_exact_order(race, noise)))
            contenders[first:last] = group
        if race.rival is not None and rival in contenders[first:last]:
            break
    return contenders[:limit].astype(np.int64)


def _contenders(base: NDArray[np.float64], noise: Exponentials, limit: int) -> NDArray[np.intp]:
    """Return all competitors that could be among the first *limit*, and perhaps a few more."""
    values = noise.values()
    irregular = noise.irregular(values)
    with np.errstate(divide="ignore"):
        keys = np.log(values, out=values)
    np.subtract(base, keys, out=keys)
    keys[irregular] = -np.inf
    if limit < len(keys):
        last = float(np.partition(keys, len(keys) - limit)[len(keys) - limit])
        # A regular key is off by less than 2^-18 + 2^-46 (|key| + 100); twice two such errors, generously.
        cut = last - 2.0**-14 - 2.0**-42 * abs(last)
        keep = keys >= cut
        keep[irregular] = True
        return np.flatnonzero(keep)
    return np.arange(len(keys))


def _exact_order(race: Race, noise: Exponentials) -> Callable[[int, int], int]:
    """Return an exact comparison of two competitors' keys for sorting; it draws bits until it can decide."""

    def key(i: int, depth: int) -> tuple[Fraction, Fraction] | None:
        least, most = noise.bounds(i, depth)
        if not least or most is None:
            return None
        digits = 40 + 20 * depth
        low, high = race.exact_exponent(i, digits)
        return low - log_bounds(most, digits)[1], high - log_bounds(least, digits)[0]

    def compare(i: int, j: int) -> int:
        depth = 1
        while True:
            one = key(i, depth)
            other = key(j, depth)
            if one and other and one[0] > other[1]:
                return -1
            if one and other and other[0] > one[1]:
                return 1
            depth += 1

    return compare


MAX_SCALE = 2**40
"""Noise wider than this could leave the int64 range next to a large count."""


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
    radius = variates.radius(values) * factor + _WIDE_ULPS * values * factor
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
    for i in np.flatnonzero(np.abs(gap) <= tests.radius(values) + _WIDE_ULPS * (1 + hurdle)).tolist():
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


@functools.lru_cache(maxsize=4096)
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
