"""UnkGumb: the top k of an unknown domain, in order, at most (docs/mechanisms/unknown_gumbel.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np

from discreet.accounting.convert import epsilon_per_unit
from discreet.errors import InputError
from discreet.mechanisms.anchored import SharedNoise
from discreet.mechanisms.base import (
    INTERVAL,
    Expectation,
    NoiseName,
    Request,
    count_noise,
    counted_outcome,
    noisy_outcome,
    priced_counts,
    require_k,
)
from discreet.noise import Bits, Race, Rival
from discreet.values import Cost, ExactHead, Outcome

MAX_HALVED = 2**60
"""Larger counts are reduced to this, so that twice a count and its noise fit int64."""


@dataclass(frozen=True, slots=True)
class UnknownGumbel:
    """A Gumbel race between the items above the cut-off and a threshold that a single user can hardly pass.

    With T the count at rank cutoff + 1, the items with counts strictly above T race against a rival of weight
    exp(epsilon (T + tau) / tau) * cutoff / delta; those that come before it are returned, at most k (Durfee & Rogers
    2019, Algorithm 1; LinkedIn 2021, Algorithm 4, with three corrections: see the page).

    PAY WHAT YOU GET: epsilon^2 / 8 for every item returned and for the threshold if it was reached, as much again for
    every count, once more for an optimised cut-off; delta once.

    Args:
        k: largest number of items.
        head_limit: dbar, at least k; the cut-off itself unless it is optimised.
        epsilon: epsilon of a peel, of a count, and of the choice of the cut-off.
        delta: probability mass that one release may lose, above 0 and below 1.
        rows_per_group: tau.
        counts: noise of the counts, or None for labels only.
        optimise_cutoff: True to choose the cut-off in k..head_limit by the exponential mechanism.
    """

    k: int
    head_limit: int
    epsilon: Fraction
    delta: Fraction
    rows_per_group: int = 1
    counts: NoiseName | None = "gaussian"
    optimise_cutoff: bool = False

    name: ClassVar[str] = "unknown-gumbel"
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.head_limit:
            raise InputError(f"k must be from 1 to the head limit, {self.head_limit:,}, not {self.k:,}")

    @classmethod
    def within_cost(cls, limit: Cost, request: Request) -> Self:
        return cls._make(request, epsilon_per_unit(limit.rho, cls.units(request, Fraction(1))), limit.delta)

    @classmethod
    def at_epsilon(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:
        """Return the instance by basic composition, with Laplace counts at half a peel's epsilon; None for Gaussian."""
        if request.count_noise == "gaussian":
            return None
        return cls._make(request, epsilon / cls.units(request, Fraction(1, 2)), delta)

    @classmethod
    def by_step(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:
        """Return the instance with k peels, k counts and, if it is optimised, the choice of the cut-off."""
        return cls._make(request, epsilon, delta)

    @classmethod
    def units(cls, request: Request, per_value: Fraction) -> Fraction:
        k = require_k(request, cls.name)
        return Fraction(k + request.optimise_cutoff) + (k * per_value if request.counts else 0)

    @classmethod
    def _make(cls, request: Request, epsilon: Fraction, delta: Fraction) -> Self:
        return cls(
            require_k(request, cls.name),
            request.head_limit,
            epsilon,
            delta,
            request.sensitivity.rows_per_group,
            request.count_noise,
            request.optimise_cutoff,
        )

    def worst_cost(self) -> Cost:
        """Return the cost of k peels, of k counts if released, and of the cut-off if it is optimised."""
        return self._cost(returned=self.k, reached=False)

    def direct_epsilon(self) -> Fraction | None:
        if self.counts == "gaussian":
            return None
        counts = Fraction(0) if self.counts is None else Fraction(self.k, 2)
        return self.epsilon * (self.k + counts + self.optimise_cutoff)

    def expectation(self) -> Expectation:
        """Return the threshold, rounded up, for an empty tail and a cut-off at the head limit."""
        noise = None if self.counts is None else count_noise(self.counts, self.epsilon, self.rows_per_group)
        scale = self.rows_per_group / self.epsilon
        smallest = math.ceil(self.rows_per_group + scale * math.log(self.head_limit / self._mass()))
        return priced_counts(noise, smallest)

    def release(self, head: ExactHead, bits: Bits) -> Outcome:
        cutoff = self.head_limit
        if self.optimise_cutoff:
            chosen, _ = self.cutoff_race(head).run(bits, "cutoff", 1)
            cutoff = self.k + int(chosen[0])
        positions, reached = self.race(head, cutoff).run(bits, "race", self.k)
        noise = None if self.counts is None else count_noise(self.counts, self.epsilon, self.rows_per_group)
        complete = len(positions) == self.k
        return noisy_outcome(head, positions, noise, bits, complete, self._cost(len(positions), reached))

    def value_scale(self, moved: int) -> Fraction:
        return 2 * moved / self.epsilon

    def race(self, head: ExactHead, cutoff: int) -> Race:
        """Return the race for *cutoff*, by the strict rule: items tied with the cut do not compete."""
        below = head.count_at(cutoff + 1)
        contenders = head.counts[:cutoff]
        contenders = contenders[: np.searchsorted(-contenders, -below, side="left")]
        rival = Rival(below + self.rows_per_group, cutoff / self._mass())
        return Race(contenders, self.epsilon / self.rows_per_group, rival)

    def cutoff_race(self, head: ExactHead) -> Race:
        """Return the race between the cut-offs k..head_limit, which favours low thresholds."""
        cutoffs = np.arange(self.k, self.head_limit + 1, dtype=np.int64)
        below = np.zeros(len(cutoffs), dtype=np.int64)
        stored = head.counts[self.k :]
        below[: len(stored)] = stored
        return Race(-below, self.epsilon / self.rows_per_group, divisors=cutoffs)

    def _mass(self) -> Fraction:
        """Return delta, or less where the proof requires delta <= e^epsilon (1 - e^(-epsilon/tau))."""
        epsilon = float(self.epsilon)
        most = -math.exp(min(epsilon, 700)) * math.expm1(-epsilon / self.rows_per_group)  # far above 1 at 700
        return min(self.delta, Fraction(most * (1 - 1e-9)))

    def _cost(self, returned: int, reached: bool) -> Cost:
        units = returned + reached + (0 if self.counts is None else returned) + self.optimise_cutoff
        return Cost(units * self.epsilon**2 / 8, self.delta)


class AnchoredGumbel(UnknownGumbel):
    """The race of `UnknownGumbel`, with `SharedNoise` of the counts; a user has each item once.

    k counts have the standard deviation (1 + sqrt(k)) / 2 sqrt(k) of noise of their own at the same cost
    (docs/mechanisms/auto.md).
    """

    def expectation(self) -> Expectation:
        """Return what that of `UnknownGumbel` says, with the error of anchored counts."""
        expected = super().expectation()
        if self.counts is None:
            return expected
        return replace(expected, min_std_error=self.std_error, max_std_error=self.std_error)

    @property
    def std_error(self) -> float:
        """The standard error of every count."""
        noise = self._noise()
        return math.sqrt(noise.apart + noise.shared) / 2

    def release(self, head: ExactHead, bits: Bits) -> Outcome:
        positions, reached = self.race(head, self.head_limit).run(bits, "race", self.k)
        m = len(positions)
        complete = m == self.k
        cost = self._cost(m, reached)
        if self.counts is None:
            return Outcome(positions, ordered=True, complete=complete, cost=cost)
        noise = self._noise()
        doubled = 2 * np.minimum(head.counts[positions], MAX_HALVED) + noise.twice(bits, "counts", "anchor", m)
        width = math.ceil(INTERVAL * self.std_error)
        outcome = counted_outcome(positions, doubled // 2, self.std_error, width, complete=complete, cost=cost)
        return replace(outcome, shared_error=noise.shared_std)

    def _noise(self) -> SharedNoise:
        """Return the noise with which k counts cost at most k epsilon^2 / 8."""
        return SharedNoise.of(self.k, self.k * self.epsilon**2 / 4)

    def _cost(self, returned: int, reached: bool) -> Cost:
        cost = Cost((returned + reached) * self.epsilon**2 / 8, self.delta)
        if self.counts is None or not returned:
            return cost
        return cost + Cost(self._noise().rho(returned))
