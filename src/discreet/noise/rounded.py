"""Gaussian noise rounded to integers: exact, vectorised, with a separate variance for every draw.

round(N(0, sigma^2)) added to an integer is that integer plus N(0, sigma^2), rounded: post-processing of the Gaussian
mechanism. So all theorems about the Gaussian mechanism hold without a correction, also with a different variance for
every value: its exact (epsilon, delta) curve, mu-GDP, rho = s^2 / 2 sigma^2, Gaussian tails up to 1/2.
The discrete Gaussian (`discreet.noise.discrete`) has the same zCDP, but no exact curve.

|N(0, 1)| is a standard exponential variate Y that is accepted if a second one exceeds (Y - 1)^2 / 2 (Devroye 1986,
section II.3.2): three of four are accepted. Acceptance and rounding are decided by intervals, and where intervals
overlap, by further bits and exact fractions.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from discreet.noise.discrete import MAX_SCALE, check_scale
from discreet.noise.gumbel import Exponentials

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.noise.bits import Bits

_ULPS = 2.0**-48


def rounded_gaussian(
    bits: Bits, label: str, numerator: int, precisions: NDArray[np.int64], known_bits: int = 64
) -> NDArray[np.int64]:
    """Draw one N(0, numerator / precision), rounded to the nearest whole number, for each of *precisions*.

    Args:
        bits: source of randomness.
        label: prefix of the labels of all bits drawn.
        precisions: denominators of the variances, at least 1, shape (n,); numerator / precision is at most 2^80.

    Raises:
        InputError: a variance is above 2^80.
    """
    n = len(precisions)
    if n:
        check_scale(Fraction(numerator, int(precisions.min())), MAX_SCALE**2)
    drawn = np.zeros(n, dtype=np.int64)
    done, batch = 0, 0
    while done < n:
        size = (n - done) + (n - done) // 2 + 16
        sizes = Exponentials(bits, f"{label}/{batch}/size", size, known_bits)
        tests = Exponentials(bits, f"{label}/{batch}/test", size, known_bits)
        accepted = np.flatnonzero(_accepted(sizes, tests))[: n - done]
        drawn[done : done + len(accepted)] = _scaled(sizes, accepted, numerator, precisions[done:])
        done += len(accepted)
        batch += 1
    signs = np.unpackbits(bits.uint64(f"{label}/sign", (n + 63) // 64).view(np.uint8), count=n, bitorder="little")
    return np.where(signs, drawn, -drawn)


def _accepted(sizes: Exponentials, tests: Exponentials) -> NDArray[np.bool_]:
    """Return a mask of the variates with E > (Y - 1)^2 / 2, decided exactly."""
    size, test = sizes.values(), tests.values()
    error = sizes.radius(size)
    distance = np.abs(size - 1)
    hurdle = distance**2 / 2
    unsure = (distance + error) * error + tests.radius(test) + _ULPS * (hurdle + test)
    accepted = test > hurdle
    for i in np.flatnonzero(~(np.abs(test - hurdle) > unsure)).tolist():
        accepted[i] = _exactly_accepted(sizes, tests, i)
    return accepted


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
    sizes: Exponentials, which: NDArray[np.intp], numerator: int, precisions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return floor(Y sqrt(numerator / precision) + 1/2), exactly, for the variates with the indices *which*."""
    values = sizes.values()
    error = sizes.radius(values)[which]
    sigma = np.sqrt(float(numerator) / precisions[: len(which)])
    scaled = values[which] * sigma
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
        if high is not None and (rounded := _rounded_root(low**2 * variance)) == _rounded_root(high**2 * variance):
            return rounded
        depth += 1


def _rounded_root(square: Fraction) -> int:
    """Return floor(sqrt(square) + 1/2)."""
    return (math.isqrt(math.floor(4 * square)) + 1) // 2
