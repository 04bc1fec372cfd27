"""TopStable: an unordered set, at a price that does not depend on k (docs/mechanisms/top_stable.md)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.convert import floor_sqrt
from discreet.errors import InputError
from discreet.mechanisms.base import Expectation, Request, WithoutSteps, require_k, shuffled
from discreet.noise import Bits, DiscreteLaplace
from discreet.noise.distributions import laplace_difference_tail, smallest_margin
from discreet.values import Cost, ExactHead, Outcome

THRESHOLD_SHARE = Fraction(37, 100)
"""p1, the share of epsilon for the threshold's noise; the gaps get the rest (Carvalho et al. 2020, section 5)."""


@dataclass(frozen=True, slots=True)
class TopStable(WithoutSteps):
    """The set of the first i items, for the largest i <= k whose gap to the next item cannot be due to one user.

    For i = k, ..., 1: stop at the first with max(h_(i) - h_(i+1) - tau, 0) + Lap(2 tau / epsilon_2) above
    T + Lap(tau / epsilon_1), and return the items of ranks 1..i, shuffled (Carvalho et al. 2020, Algorithm 3, without
    its optional final exponential mechanism). (epsilon, delta)-DP. Noise is discrete; T is the least integer with
    Pr[Lap - Lap > T] <= delta / k, by the exact discrete tail (the paper's bound, its Lemma 3.1, is 7-9 % loose).

    Args:
        k: largest size of the set (the paper's kbar).
        epsilon: epsilon of the whole release.
        delta: delta of the whole release.
        rows_per_group: tau.
    """

    k: int
    epsilon: Fraction
    delta: Fraction
    rows_per_group: int = 1

    name: ClassVar[str] = "top-stable"
    lossless: ClassVar[bool] = False

    @classmethod
    def within_cost(cls, limit: Cost, request: Request) -> Self:
        """Return the instance with epsilon^2 / 2 = rho."""
        return cls._make(floor_sqrt(2 * limit.rho), limit.delta, request)

    @classmethod
    def at_epsilon(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:
        """Return the instance that spends all of epsilon and delta; its theorem covers both."""
        return cls._make(epsilon, delta, request)

    @classmethod
    def _make(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self:
        if request.counts:
            raise InputError("the stable mechanism returns a set without counts; request labels only (counts=False)")
        return cls(require_k(request, cls.name), epsilon, delta, request.sensitivity.rows_per_group)

    @property
    def head_limit(self) -> int:
        return self.k

    def worst_cost(self) -> Cost:
        """Return (epsilon^2 / 2, delta), for it is (epsilon, delta)-DP."""
        return Cost(self.epsilon**2 / 2, self.delta)

    def direct_epsilon(self) -> Fraction | None:
        return self.epsilon

    def expectation(self) -> Expectation:
        """Return the gap that an item must exceed, which is its count if no item is below it."""
        return Expectation(smallest_count=self.threshold() + self.rows_per_group)

    def release(self, head: ExactHead, bits: Bits) -> Outcome:
        gaps = self.gaps(head)
        bar = self.threshold() + int(self.threshold_noise().draw(bits, "threshold", 1)[0])
        passed = np.flatnonzero(gaps + self.gap_noise().draw(bits, "gaps", self.k) > bar)
        size = min(int(passed[-1]) + 1 if len(passed) else 0, int(np.count_nonzero(head.counts[: self.k])))
        shown = shuffled(size, bits, "shuffle")  # the order of the head would reveal the order of the counts
        return Outcome(shown, ordered=False, complete=size == self.k, cost=self.worst_cost())

    def gaps(self, head: ExactHead) -> NDArray[np.int64]:
        """Return max(h_(i) - h_(i+1) - tau, 0) for i = 1..k, shape (k,)."""
        counts = np.zeros(self.k + 1, dtype=np.int64)
        stored = head.counts[: self.k + 1]
        counts[: len(stored)] = stored
        gaps: NDArray[np.int64] = np.maximum(counts[:-1] - counts[1:] - self.rows_per_group, 0)
        return gaps

    def threshold_noise(self) -> DiscreteLaplace:
        """Return the noise of the threshold, drawn once."""
        return DiscreteLaplace(self.rows_per_group / (THRESHOLD_SHARE * self.epsilon))

    def gap_noise(self) -> DiscreteLaplace:
        """Return the noise of each gap."""
        return DiscreteLaplace(2 * self.rows_per_group / ((1 - THRESHOLD_SHARE) * self.epsilon))

    def threshold(self) -> int:
        """Return T, the least integer that (gap noise - threshold noise) exceeds with probability at most delta / k."""
        gap = self.gap_noise().scale
        bar = self.threshold_noise().scale
        return smallest_margin(lambda m: laplace_difference_tail(gap, bar, m + 1), self.delta / self.k)
