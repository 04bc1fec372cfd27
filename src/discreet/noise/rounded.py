"""Gaussian noise rounded to integers: exact, vectorised, with a separate variance for every draw.

round(N(0, sigma^2)) added to an integer is that integer plus N(0, sigma^2), rounded: post-processing of the Gaussian
mechanism. So all theorems about the Gaussian mechanism hold without a correction, also with a different variance for
every value: its exact (epsilon, delta) curve, mu-GDP, rho = s^2 / 2 sigma^2, Gaussian tails up to 1/2.
The discrete Gaussian (`discreet.noise.distributions`) has the same zCDP, but no exact curve.

|N(0, 1)| is a standard exponential variate Y that is accepted if a second one exceeds (Y - 1)^2 / 2 (Devroye 1986,
section II.3.2): three of four are accepted. Acceptance and rounding are decided by intervals, and where intervals
overlap, by further bits and exact fractions.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from discreet.errors import InvariantViolated
from discreet.noise.bits import Bits
from discreet.noise.distributions import MAX_SCALE, Exponentials, check_scale

_ULPS = 2.0**-48
_SMALL = 16.0
"""Nearly all exponential variates are smaller."""

_BLOCK = 2**20
"""Proposals that are drawn at once."""


def rounded_gaussian(
    bits: Bits, label: str, numerator: int, precisions: NDArray[np.int64], known_bits: int = 64
) -> NDArray[np.int64]:
    """Draw one N(0, numerator / precision), rounded to the nearest whole number, for each of *precisions*.

    Args:
        label: prefix of the labels of all bits drawn.
        precisions: denominators of the variances, at least 1, shape (n,); numerator / precision is at most 2^80.

    Raises:
        InputError: a variance is above 2^80.
    """
    return RoundedGaussians(bits, label, numerator, len(precisions), known_bits).draw(precisions)


class RoundedGaussians:
    """*n* draws of `rounded_gaussian`, some at a time, in memory for one block of proposals.

    However they are divided, the values are those of one call: proposals and signs are numbered from the first draw on.

    Args:
        n: the number of all draws; the number of proposals depends on it.
    """

    def __init__(self, bits: Bits, label: str, numerator: int, n: int, known_bits: int = 64) -> None:
        self._bits = bits
        self._label = label
        self._numerator = numerator
        self._known = known_bits
        self._missing = n
        self._batch = -1
        self._size = 0
        self._tried = 0
        self._accepted = np.zeros(0, dtype=np.intp)  # of the block, without those that were returned
        self._left = np.zeros(0, dtype=np.uint8)
        self._sign_words = 0

    def draw(self, precisions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the next draws, one for each of *precisions*.

        Raises:
            InputError: a variance is above 2^80.
            InvariantViolated: these are more than all draws.
        """
        m = len(precisions)
        if m > self._missing:
            raise InvariantViolated("more noise was asked for than was announced")
        if m:
            check_scale(Fraction(self._numerator, int(precisions.min())), MAX_SCALE**2)
        drawn = np.zeros(m, dtype=np.int64)
        done = 0
        while done < m:
            if not len(self._accepted):
                self._propose()
            part = self._accepted[: m - done]
            self._accepted = self._accepted[m - done :]
            values = self._values[part]
            drawn[done : done + len(part)] = _scaled(self._sizes, values, part, self._numerator, precisions[done:])
            done += len(part)
            self._missing -= len(part)
        return np.where(self._signs(m), drawn, -drawn)

    def _propose(self) -> None:
        """Draw the next block of proposals; at the end of a batch, begin one for the draws that are still missing."""
        if self._tried == self._size:
            self._batch += 1
            self._size = self._missing + self._missing // 2 + 16
            self._tried = 0
        n = min(_BLOCK, self._size - self._tried)
        self._sizes, tests = (
            Exponentials(self._bits, f"{self._label}/{self._batch}/{name}", n, self._known, self._tried)
            for name in ("size", "test")
        )
        self._tried += n
        self._values, accepted = accepted_proposals(self._sizes, tests)
        self._accepted = np.flatnonzero(accepted)

    def _signs(self, m: int) -> NDArray[np.uint8]:
        if words := (m - len(self._left) + 63) // 64:
            more = self._bits.uint64(f"{self._label}/sign", words, self._sign_words)
            self._sign_words += words
            self._left = np.concatenate([self._left, np.unpackbits(more.view(np.uint8), bitorder="little")])
        signs = self._left[:m]
        self._left = self._left[m:]
        return signs


def accepted_proposals(sizes: Exponentials, tests: Exponentials) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return approximate values of *sizes*, and a mask of the variates with E > (Y - 1)^2 / 2, decided exactly."""
    size = sizes.values()
    test = tests.values()
    hurdle = (size - 1) ** 2 / 2
    gap = test - hurdle
    accepted = gap > 0
    # Nearly all values are small, and their gaps larger than all that errors of such values can change.
    (error,) = sizes.radius(np.array([_SMALL])) + tests.radius(np.array([_SMALL]))
    close = ~(np.abs(gap) > (_SMALL + error) * error + _ULPS * _SMALL**2) | (np.maximum(size, test) > _SMALL)
    for i in np.flatnonzero(close).tolist():
        accepted[i] = _exactly_accepted(sizes, tests, i)
    return size, accepted


def _exactly_accepted(sizes: Exponentials, tests: Exponentials, i: int) -> bool:
    depth = 1
    while True:
        low, high = sizes.bounds(i, depth)
        least, most = tests.bounds(i, depth)
        if high is not None:
            hurdles = sorted([(low - 1) ** 2 / 2, (high - 1) ** 2 / 2])
            if least > hurdles[1]:
                return True
            if most is not None and most < (Fraction(0) if low <= 1 <= high else hurdles[0]):
                return False
        depth += 1


def _scaled(
    sizes: Exponentials,
    values: NDArray[np.float64],
    which: NDArray[np.intp],
    numerator: int,
    precisions: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return floor(Y sqrt(numerator / precision) + 1/2), exactly, for the variates with the indices *which*.

    Args:
        values: approximate values of these variates.
    """
    error = sizes.radius(values)
    sigma = np.sqrt(float(numerator) / precisions[: len(which)])
    scaled = values * sigma
    error = error * sigma + _ULPS * (scaled + 1)
    least = np.floor(scaled + 0.5 - error)
    unsure = np.flatnonzero(~(least == np.floor(scaled + 0.5 + error)))
    least[unsure] = 0
    result = least.astype(np.int64)
    for place in unsure.tolist():
        result[place] = _exactly_scaled(sizes, int(which[place]), Fraction(numerator, int(precisions[place])))
    return result


def _exactly_scaled(sizes: Exponentials, i: int, variance: Fraction) -> int:
    depth = 1
    while True:
        low, high = sizes.bounds(i, depth)
        if high is not None and (rounded := rounded_root(low**2 * variance)) == rounded_root(high**2 * variance):
            return rounded
        depth += 1


def rounded_root(square: Fraction) -> int:
    """Return floor(sqrt(square) + 1/2)."""
    return (math.isqrt(math.floor(4 * square)) + 1) // 2
