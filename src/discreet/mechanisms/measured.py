"""Turn noisy sums into released sums with intervals, or into averages: quotients of a sum and a count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from discreet.values import Measured

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.mechanisms.base import Magnitude
    from discreet.noise import Noise

MISS = 0.05
"""How often a 95 % interval fails."""


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Noisy values and how far they may be from the true ones.

    Args:
        values: int64, shape (m,).
        std: standard deviation of the noise in each.
        width: half the width of an interval around each.
    """

    values: NDArray[np.int64]
    std: float
    width: int

    @classmethod
    def of(cls, values: NDArray[np.int64], noise: Noise, miss: float) -> Self:
        """Return the values with *noise* in them, and intervals that fail with probability *miss* at most."""
        return cls(values, noise.std, noise.half_width(miss))


def measured_sums(noisy: NDArray[np.int64], noise: Noise, summed: Magnitude) -> Measured:
    """Return the sums with plain intervals, since their noise selected nothing.

    Intervals end at 0 where all that users add has one sign; the sums themselves stay unbiased.

    Args:
        noisy: the sums with their noise, shape (m,).
        summed: what bounds each user's sum.
    """
    width = noise.half_width(MISS)
    low, high = noisy - width, noisy + width
    if summed.low >= 0:
        low, high = np.maximum(low, 0), np.maximum(high, 0)
    elif summed.high <= 0:
        low, high = np.minimum(low, 0), np.minimum(high, 0)
    return Measured("sum", noisy, np.full(len(noisy), noise.std), low, high)


def averages(sums: Uncertain, counts: Uncertain, summed: Magnitude) -> Measured:
    """Return noisy sums divided by noisy counts.

    A count below 1 is taken for 1, since an item without users has no average. What leaves [low, high] is moved to
    its nearer end, since every user's sum is in there and so is their average. An interval reaches from the least to
    the greatest quotient of a sum and a count within their intervals, so it fails only if one of these does.

    Args:
        sums: of each user's clipped sum.
        summed: what bounds each user's sum.

    Returns:
        Standard errors are those of a quotient to the first order, and high - low at most.
    """
    least, most = sums.values - sums.width, sums.values + sums.width
    few, users, many = (np.maximum(counts.values + shift, 1) for shift in (-counts.width, 0, counts.width))
    centre = np.clip(sums.values / users, summed.low, summed.high)
    return Measured(
        "average",
        centre,
        np.minimum(np.sqrt(sums.std**2 + (centre * counts.std) ** 2) / users, summed.high - summed.low),
        np.clip(least / np.where(least < 0, few, many), summed.low, summed.high),
        np.clip(most / np.where(most < 0, many, few), summed.low, summed.high),
    )
