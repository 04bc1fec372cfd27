"""The default release: two rounds, or the head where few users have many items (docs/mechanisms/auto.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from discreet.accounting.convert import floor_bits
from discreet.accounting.gaussian import mu_gaussian, rho_of_branch
from discreet.mechanisms.base import Expectation, Request
from discreet.mechanisms.select_verify import SelectVerify
from discreet.mechanisms.two_round import COST_UNIT, TwoRound, add_noise
from discreet.mechanisms.unknown_gumbel import UnknownGumbel
from discreet.values import LARGEST_BASKET, WEIGHT_UNIT, Cost, ExactHead, Outcome, float_below

if TYPE_CHECKING:
    from discreet.noise import Bits
    from discreet.values import HeadAndPairs

USERS_PER_NOISE = 285
"""The least ratio of users to the first round's noise per item, in users, at which two rounds are chosen: below it,
the head mostly has more accurate counts (docs/accuracy.md)."""

BRANCH_LOST = Fraction(1, 5)
"""Share of delta for the labels of the head or the race."""

GAP_SHARE = Fraction(1, 100)
"""Share of mu^2 for the noisy gap between count k and the cut-off."""

TWO_ROUND_SHARE = Fraction(24, 25)
"""Share of delta that the two rounds may use; the remainder covers worse outcomes of the other branches."""


@dataclass(frozen=True, slots=True)
class Auto:
    """Measure how many items users have, then release by two rounds or from the head, whichever is more accurate.

    The choice depends on one noisy histogram, which the two rounds need anyway. For a top k there is a third branch,
    tried first because it needs the head only: a race for k places, which is complete and more precise where the k-th
    count is far enough above the cut-off.

    Args:
        two_round: the branch of two rounds; its budget includes the histogram.
        head: the branch of the head; its budget does not include the histogram.
        race: the branch for a top k, or None without a k; its budget is that of the head.
        epsilon: epsilon of the exact (epsilon, delta) theorem, if it determined the branches' budgets.
        delta: delta of that theorem; 0 without it.
    """

    two_round: TwoRound
    head: SelectVerify
    race: UnknownGumbel | None = None
    epsilon: Fraction | None = None
    delta: Fraction = Fraction(0)

    name: ClassVar[str] = "auto"
    lossless: ClassVar[bool] = False

    @classmethod
    def within(cls, limit: Cost, request: Request) -> Self:
        """Return the instance whose branches may spend *limit* each, with the histogram and the gap before them."""
        two_round = _two_round(limit, request)
        return cls._of(two_round, Cost.at_most(limit.rho - _tests(two_round), limit.delta), request)

    @classmethod
    def at(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:
        """Return the instance that is (epsilon, delta)-DP by docs/mechanisms/two_round.md, Theorem 2.

        Returns None for noise that is not Gaussian, and if epsilon leaves no budget for the other branches.
        """
        if request.noise != "gaussian":
            return None
        mu = mu_gaussian(float(epsilon), float_below(delta * TWO_ROUND_SHARE))
        two_round = _two_round(Cost.at_most(mu**2 / 2 * (1 - 1e-12), delta), request)
        rho = rho_of_branch(
            float(epsilon),
            float_below(delta),
            mu,
            math.sqrt(2 * _tests(two_round)) * (1 + 1e-12),
            float(two_round.lost) * (1 + 1e-12),
            float(delta * BRANCH_LOST) * (1 + 1e-12),
        )
        if rho == 0:
            return None
        rest = Cost.at_most(floor_bits(Fraction(rho)), delta * BRANCH_LOST)
        return replace(cls._of(two_round, rest, request), epsilon=epsilon, delta=delta)

    @classmethod
    def _of(cls, two_round: TwoRound, rest: Cost, request: Request) -> Self:
        race = None if request.k is None else UnknownGumbel.within(rest, request)
        return cls(two_round, SelectVerify.within(rest, request), race)

    @classmethod
    def by_step(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:  # noqa: ARG003 - always None
        """Return None: the costs of its steps do not derive from one epsilon."""
        return None

    def worst_cost(self) -> Cost:
        """Return the largest cost of a branch, with the histogram and the gap."""
        two_round, rest = self.two_round.worst_cost(), self.head.worst_cost()
        rho = max(two_round.rho + _gap_rho(self.two_round), rest.rho + _tests(self.two_round))
        return Cost(rho, max(two_round.delta, rest.delta, self.delta))

    def direct_epsilon(self) -> Fraction | None:
        """Return epsilon of the exact theorem, if it determined the branches' budgets."""
        return self.epsilon

    @property
    def head_limit(self) -> int:
        """The number of items that the branch of the head needs."""
        return self.head.head_limit

    def expectation(self) -> Expectation:
        """Return bounds that hold for both main branches."""
        branches = (self.two_round.expectation(), self.head.expectation())
        errors = [branch.std_error_least for branch in branches if branch.std_error_least is not None]
        counts = [branch.smallest_count for branch in branches if branch.smallest_count is not None]
        return Expectation(min(errors, default=None), None, min(counts))

    def release(self, pairs: HeadAndPairs, bits: Bits) -> Outcome:
        """Release; the outcome names the chosen branch. Its positions are rows of the head if the race is chosen."""
        if self.race is not None:
            head = pairs.head(self.head_limit)
            gap, needed = self._gap(self.race, head, bits)
            if gap >= needed:
                k = self.race.k
                why = f"count {k} is about {gap:,} above the cut-off; {needed:,} are enough to release all {k}"
                return self._from_head(self.race, head, bits, why)
        sizes = self.two_round.measure_sizes(pairs, bits)
        measured = f"about {sizes.users:,.0f} users, and noise of {sizes.scale:,.1f} users per item in the first round"
        if sizes.scale * USERS_PER_NOISE > max(sizes.users, 1):
            why = f"few users for the number of items they have: {measured}"
            # Exact counts are sums with a limit that no user reaches.
            counts = pairs.weighted_sums(float(LARGEST_BASKET)) // (WEIGHT_UNIT - 1)
            order = np.argsort(-counts, kind="stable")[: self.head_limit + 1]
            outcome = self._from_head(self.head, ExactHead(counts[order], self.head_limit), bits, why)
            return replace(outcome, positions=order[outcome.positions])
        outcome = self.two_round.release_after(sizes, pairs, bits)
        return replace(
            outcome,
            cost=outcome.cost + Cost(_gap_rho(self.two_round)),
            chosen=self.two_round.name,
            why=f"many users for the number of items they have: {measured}",
        )

    def _gap(self, race: UnknownGumbel, head: ExactHead, bits: Bits) -> tuple[int, int]:
        """Return the noisy gap between count k and the cut-off, and the least gap for a complete race.

        One user moves both counts by 0 or 1 in the same direction, so it moves their difference by at most 1.
        """
        precision = _gap_precision(self.two_round)
        exact = np.array([head.count_at(race.k) - head.count_at(self.head_limit + 1)])
        gap = add_noise(exact, 1, np.array([precision]), bits, "gap")
        threshold = race.expectation().smallest_count or 0
        needed = threshold + 3 / float(race.epsilon) + 1.5 * math.sqrt(COST_UNIT / precision)
        return int(gap[0]), math.ceil(needed)

    def _from_head(self, branch: SelectVerify | UnknownGumbel, head: ExactHead, bits: Bits, why: str) -> Outcome:
        """Return the outcome of *branch*, charged with both tests: Theorem 2 holds as if sizes were always measured."""
        outcome = branch.release(head, bits)
        cost = outcome.cost + Cost(_tests(self.two_round))
        return replace(outcome, cost=cost, chosen=branch.name, why=why)


def _two_round(limit: Cost, request: Request) -> TwoRound:
    share = Fraction(0) if request.k is None else GAP_SHARE
    return TwoRound.within(Cost.at_most(limit.rho * (1 - share), limit.delta), request)


def _gap_precision(branch: TwoRound) -> int:
    """Return the cost of the noisy gap, in units of 1 / `COST_UNIT`; 0 without a k."""
    return 0 if branch.k is None else int(branch.mu**2 * COST_UNIT * GAP_SHARE / (1 - GAP_SHARE))


def _gap_rho(branch: TwoRound) -> Fraction:
    return Fraction(_gap_precision(branch), 2 * COST_UNIT)


def _tests(branch: TwoRound) -> Fraction:
    """Return the rho of the histogram and of the gap."""
    return Fraction(branch.budget.histogram, 2 * COST_UNIT) + _gap_rho(branch)
