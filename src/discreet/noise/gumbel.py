"""The Gumbel race: the exponential mechanism on integer scores, exactly, and in order.

Competitor i has the key scale * score_i + ln(factor_i) + G_i with G_i independent standard Gumbel. The order of the
keys is the order of peeling: first the winner of the exponential mechanism with weights factor_i * exp(scale *
score_i), then the winner among the others, and so on (Plackett-Luce; Durfee & Rogers 2019, section 4). Comparing keys
is all that is ever done with them, so they are never rounded: intervals in floating point decide almost always, and
where two intervals overlap, further bits and exact fractions do.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from discreet.noise.exponential import Exponentials
from discreet.noise.intervals import log_bounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from discreet.noise.bits import Bits

_ULPS = 2.0**-48


@dataclass(frozen=True, slots=True)
class Rival:
    """One competitor that ends the race: the threshold.

    Args:
        score: integer part of its score, in counts.
        factor: what its weight is multiplied by, above 0.
    """

    score: int
    factor: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True)
class Race:
    """A race between items and, if there is one, a rival.

    Args:
        scores: int64 scores of shape (n,), absolute values at most 2^62.
        scale: what one count is worth in the exponent (epsilon / tau), above 0.
        rival: the competitor that ends the race, or None.
        divisors: int64 of shape (n,), what each item's weight is divided by, or None for 1.
    """

    scores: NDArray[np.int64]
    scale: Fraction
    rival: Rival | None = None
    divisors: NDArray[np.int64] | None = None

    def run(self, bits: Bits, label: str, limit: int, known_bits: int = 64) -> tuple[NDArray[np.int64], bool]:
        """Run it: the first *limit* items that come before the rival, in order, and whether the rival was reached.

        Args:
            bits: source of randomness.
            label: what the draw is called.
            limit: how many places there are, at least 1.
            known_bits: see `Exponentials`.
        """
        n = len(self.scores)
        if n == 0:
            return np.zeros(0, dtype=np.int64), self.rival is not None
        noise = Exponentials(bits, label, n + (self.rival is not None), known_bits)
        places = _first_places(self, noise, limit)
        reached = np.flatnonzero(places == n)
        return (places[: reached[0]], True) if len(reached) else (places, False)

    def exponents(self) -> NDArray[np.float64]:
        """Return approximate scale * (score - best score) + ln(factor) of all competitors, the rival last.

        Differences of scores are exact, so the error is at most 2^-50 of the absolute value and of ln(factor).
        """
        rival = self.rival
        best = int(self.scores.max()) if rival is None else max(int(self.scores.max()), rival.score)
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
            score, factor = self.rival.score, self.rival.factor
        else:
            score = int(self.scores[i])
            factor = Fraction(1) if self.divisors is None else Fraction(1, int(self.divisors[i]))
        low, high = (Fraction(0), Fraction(0)) if factor == 1 else log_bounds(factor, digits)
        return self.scale * score + low, self.scale * score + high


def _log(value: Fraction) -> float:
    """ln(*value*), also of what is too large or too small for a float, off by 2^-51 of it and of 1 at most."""
    shift = value.numerator.bit_length() - value.denominator.bit_length()
    return math.log(value / Fraction(2) ** shift) + shift * math.log(2)


def _first_places(race: Race, noise: Exponentials, limit: int) -> NDArray[np.int64]:
    """Return the indices of the first *limit* competitors, in order; behind the rival the order is left undecided."""
    base = race.exponents()
    contenders = _contenders(base, noise, limit)
    low, high = noise.gumbel_bounds(contenders)
    exponents = base[contenders]
    margin = _ULPS * (np.abs(exponents) + 64)
    low = low + exponents - margin
    high = high + exponents + margin

    # Any order will do as a start: what matters is where an order by intervals is certain.
    start = np.argsort(-np.where(np.isfinite(high), np.nan_to_num(low, neginf=-1e300) + high, np.inf), kind="stable")
    contenders, low, high = contenders[start], low[start], high[start]
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
    """Return all that could take one of the first *limit* places, and perhaps a few more."""
    values = noise.values()
    irregular = noise.irregular(values)
    with np.errstate(divide="ignore"):
        keys = np.log(values, out=values)
    np.subtract(base, keys, out=keys)
    keys[irregular] = -np.inf
    if limit < len(keys):
        last = float(np.partition(keys, len(keys) - limit)[len(keys) - limit])
        # A regular key is off by less than 2^-18 + 2^-46 (|key| + 100); twice two such errors, generously.
        cut = last - 2.0**-14 - 2.0**-42 * abs(last) if math.isfinite(last) else -math.inf
        keep = keys >= cut
        keep[irregular] = True
        return np.flatnonzero(keep)
    return np.arange(len(keys))


def _exact_order(race: Race, noise: Exponentials) -> Callable[[int, int], int]:
    """A comparison for sorting: which of two competitors has the greater key. Draws further bits until it is sure."""

    def key(i: int, depth: int) -> tuple[Fraction, Fraction] | None:
        least, most = noise.bounds(i, depth)
        if not least or most is None:
            return None
        digits = 40 + 20 * depth
        low, high = race.exact_exponent(i, digits)
        return low - log_bounds(most, digits)[1], high - log_bounds(least, digits)[0]

    def compare(i: int, j: int) -> int:
        depth = 1
        while i != j:
            one, other = key(i, depth), key(j, depth)
            if one and other and one[0] > other[1]:
                return -1
            if one and other and other[0] > one[1]:
                return 1
            depth += 1
        return 0

    return compare
