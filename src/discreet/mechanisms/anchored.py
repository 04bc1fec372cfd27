"""Noise for the counts of the largest items, of which all share a part (docs/mechanisms/two_round.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Anchored:
    """The noise of anchored counts: of 2 c_j - N for each of the m largest items, and of N, the number of users.

    A user moves each of these m + 1 values by 1, whichever items the user has. Half of the sum of the first and the
    last is an estimate of c_j. At a cost of b, with v_j the weight of item j and S_k the sum of v_j^-k over the m
    items, 2 c_j - N gets the variance c v_j and N the variance c / sqrt(S_2), where c = (S_1 + sqrt(S_2)) / b. That of
    the estimate is c (v_j + 1 / sqrt(S_2)) / 4: for equal weights about a fourth of that of m plain counts.

    Args:
        weights: v_j, descending, above 0, shape (n,).
        sums: S_1 of the m largest items, for every m, shape (n,).
        roots: the root of S_2, likewise.
    """

    weights: Floats
    sums: Floats
    roots: Floats

    @classmethod
    def of(cls, sizes: Floats, power: float) -> Self:
        """Return the noise for items of about *sizes* users, descending, whose variance grows with size^*power*."""
        weights = sizes**power
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
