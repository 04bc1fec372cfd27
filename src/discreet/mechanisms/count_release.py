"""PCR, Private Count Release: as many accurate counts as the budget allows (docs/mechanisms/count_release.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.convert import floor_sqrt
from discreet.accounting.privacy_filter import PrivacyFilter
from discreet.errors import InputError
from discreet.mechanisms.base import Expectation, Request, ZCDPOnly, require_gaussian
from discreet.mechanisms.unknown_gumbel import UnknownGumbel
from discreet.noise import Bits, DiscreteGaussian, Race
from discreet.values import Cost, ExactHead, Outcome

MAX_CALLS = 2_000
"""Each try for the next item may lose delta / MAX_CALLS, so that none fits after MAX_CALLS tries. Public, fixed."""

LADDER = 2**12
"""The first epsilon is this many times smaller than that of a single peel that costs the whole budget."""

CONFIDENCE = 1.645
"""A count at the threshold stays within the relative error with probability 90 % (the paper: any constant)."""


@dataclass(frozen=True, slots=True)
class CountRelease(ZCDPOnly):
    """Release items one by one until the budget is spent: find an item at the least epsilon, then count it.

    UnkGumb with k = 1 is tried with a small epsilon that doubles after every failure; the item found gets a Gaussian
    count whose sigma follows from the relative error and the threshold it passed, and leaves the race (Rogers 2024,
    Algorithm 2, under the filter of its Theorem 5). No contribution bound is needed: one user may touch every count.

    Tries at one epsilon are successive peels of one Gumbel race, so each level runs one race and walks down its order
    for as long as the filter admits the next step: the same distribution as fresh noise for every try, with the
    threshold's log factor of the level's beginning.

    Args:
        limit: budget of the run, which usually spends nearly all of its rho.
        head_limit: kbar, the cut-off.
        relative_error: target relative error of a count, above 0 and below 1.
        rows_per_group: tau.
        counts: False to return labels only, on which the whole budget is then spent.
    """

    limit: Cost
    head_limit: int
    relative_error: Fraction
    rows_per_group: int = 1
    counts: bool = True

    name: ClassVar[str] = "pcr"
    lossless: ClassVar[bool] = False

    @classmethod
    def within_cost(cls, limit: Cost, request: Request) -> Self:
        if request.k is not None:
            raise InputError("the pcr mechanism releases as many counts as it can, not a top k")
        require_gaussian(request, "the pcr mechanism")
        return cls(
            limit,
            request.head_limit,
            request.relative_error,
            request.sensitivity.rows_per_group,
            request.counts,
        )

    def worst_cost(self) -> Cost:
        return self.limit

    def direct_epsilon(self) -> Fraction | None:
        return None

    def expectation(self) -> Expectation:
        """Return the errors of the first level, and of the last affordable one if no other level found an item."""
        first = last = epsilon = self._max_epsilon() / LADDER
        spent = Cost()
        while ((peeled := spent + self._peel_cost(epsilon)) + self._count_cost(epsilon)).within(self.limit):
            last = epsilon
            spent = peeled
            epsilon *= 2
        least, most = (self._count_noise(last).std, self._count_noise(first).std) if self.counts else (None, None)
        return Expectation(least, most, math.ceil(self._smallest_count(last)))

    def release(self, head: ExactHead, bits: Bits) -> Outcome:
        run = _Run(PrivacyFilter(self.limit), alive=np.arange(min(len(head.counts), self.head_limit)))
        epsilon = self._max_epsilon() / LADDER
        level = 0
        while run.released < self.head_limit and run.budget.admits(self._peel_cost(epsilon)):
            order, reached = self._race(head, run, epsilon).run(bits, f"race/{level}", MAX_CALLS)
            paid = self._pay(run, epsilon, len(order), reached)
            positions = run.alive[order[:paid]]
            noise = self._count_noise(epsilon)
            run.positions.append(positions)
            run.noises += [noise] * paid
            if self.counts:
                run.counts.append(head.counts[positions] + noise.draw(bits, f"counts/{level}", paid))
            if paid < len(order) or not reached:
                break
            run.alive = np.delete(run.alive, order)
            epsilon = 2 * epsilon
            level = level + 1
        return self._outcome(run)

    def _pay(self, run: _Run, epsilon: Fraction, items: int, reached: bool) -> int:
        """Spend budget on the items of one level in order, then on the threshold; return the number of paid items."""
        peel = self._peel_cost(epsilon)
        count = self._count_cost(epsilon)
        for paid in range(items):
            if not run.budget.admits(peel):
                return paid
            run.budget.spend(peel)
            if not run.budget.admits(count):
                return paid
            run.budget.spend(count)
            run.released += 1
        if reached and run.released < self.head_limit and run.budget.admits(peel):
            run.budget.spend(peel)
        return items

    def _race(self, head: ExactHead, run: _Run, epsilon: Fraction) -> Race:
        """Return UnkGumb's race among the items not yet released; the histogram shrinks by the released ones."""
        cutoff = self.head_limit - run.released
        rest = ExactHead(np.append(head.counts[run.alive], head.counts[self.head_limit :]), cutoff)
        return UnknownGumbel(1, cutoff, epsilon, self._mass_per_try(), self.rows_per_group).race(rest, cutoff)

    def _outcome(self, run: _Run) -> Outcome:
        """Return all items that were found, with their counts if those were requested."""
        nothing = np.zeros(0, dtype=np.int64)
        positions = np.concatenate([nothing, *run.positions])
        counts = None
        stds = None
        low = None
        high = None
        if self.counts:
            counts = np.concatenate([nothing, *run.counts])
            stds = np.array([noise.std for noise in run.noises])
            widths = np.array([noise.half_width() for noise in run.noises], dtype=np.int64)
            low = np.maximum(counts - widths, 0)
            high = np.maximum(counts + widths, 0)
        return Outcome(positions, counts, stds, low, high, ordered=True, complete=False, cost=run.budget.spent)

    def _max_epsilon(self) -> Fraction:
        """Return the epsilon of a single peel that costs the whole rho."""
        return floor_sqrt(8 * self.limit.rho)

    def _mass_per_try(self) -> Fraction:
        return self.limit.delta / MAX_CALLS

    def _peel_cost(self, epsilon: Fraction) -> Cost:
        return Cost(epsilon**2 / 8, self._mass_per_try())

    def _count_cost(self, epsilon: Fraction) -> Cost:
        return Cost(self._count_noise(epsilon).rho(self.rows_per_group)) if self.counts else Cost()

    def _smallest_count(self, epsilon: Fraction) -> float:
        """Return the count at which an item passes the threshold with probability 1/2 when the head's tail is empty."""
        return self.rows_per_group * (1 + math.log(self.head_limit / self._mass_per_try()) / float(epsilon))

    def _count_noise(self, epsilon: Fraction) -> DiscreteGaussian:
        """Return noise with sigma = relative error * threshold / confidence, rounded to 1/1024 on every machine."""
        sigma = float(self.relative_error) * self._smallest_count(epsilon) / CONFIDENCE
        return DiscreteGaussian(Fraction(math.ceil(sigma * 1024), 1024) ** 2)


@dataclass(slots=True)
class _Run:
    """The state of a run; noises has one entry for each released item."""

    budget: PrivacyFilter
    alive: NDArray[np.int64]
    released: int = 0
    positions: list[NDArray[np.int64]] = field(default_factory=list)
    counts: list[NDArray[np.int64]] = field(default_factory=list)
    noises: list[DiscreteGaussian] = field(default_factory=list)
