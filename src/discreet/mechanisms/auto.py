"""The default release: two rounds, or the head where few users have many items (docs/mechanisms/auto.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from discreet.accounting.calibrate import floor_bits
from discreet.accounting.gaussian import mu_gaussian, rho_of_branch
from discreet.mechanisms.base import Expectation, Request
from discreet.mechanisms.select_verify import SelectVerify
from discreet.mechanisms.two_round import COST_UNIT, TwoRound
from discreet.values import LARGEST_BASKET, WEIGHT_UNIT, Cost, ExactHead, Outcome, float_below

if TYPE_CHECKING:
    from discreet.noise import Bits
    from discreet.values import UserItemPairs

USERS_PER_NOISE = 90
"""Two rounds need so many users for each user of noise in the first: with fewer, the head has more accurate counts."""

HEAD_LOST = Fraction(1, 5)
"""Share of delta that the head's labels may lose."""

TWO_ROUND_SHARE = Fraction(24, 25)
"""Share of delta that the two rounds may use; what one branch leaves pays for the other's worse outcomes."""


@dataclass(frozen=True, slots=True)
class Auto:
    """Measure how many items users have, and release by two rounds or from the head, whichever is better then.

    The choice depends on one noisy histogram, which the two rounds need anyway.

    Args:
        two_round: one branch, with the histogram.
        head: the other branch, without it.
        epsilon: of the exact (epsilon, delta) theorem, if both were chosen by it.
        delta: likewise; 0 if not.
    """

    two_round: TwoRound
    head: SelectVerify
    epsilon: Fraction | None = None
    delta: Fraction = Fraction(0)

    name: ClassVar[str] = "auto"
    lossless: ClassVar[bool] = False

    @classmethod
    def within(cls, limit: Cost, request: Request) -> Self:
        """Return the instance whose branches may spend *limit* each, with the histogram."""
        two_round = TwoRound.within(limit, request)
        rest = Cost.at_most(limit.rho - _histogram_rho(two_round), limit.delta)
        return cls(two_round, SelectVerify.within(rest, request))

    @classmethod
    def at(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:
        """Return the instance that is (epsilon, delta)-DP by docs/mechanisms/two_round.md, Theorem 2.

        None for noise that is not Gaussian, and where epsilon leaves nothing for the head.
        """
        if request.noise != "gaussian":
            return None
        two_round = TwoRound.within(Cost(Fraction(1), delta), request)
        mu = floor_bits(Fraction(mu_gaussian(float(epsilon), float_below(delta * TWO_ROUND_SHARE))))
        two_round = replace(two_round, mu=mu)
        rho = rho_of_branch(
            float(epsilon),
            float_below(delta),
            float(mu),
            math.sqrt(2 * _histogram_rho(two_round)),
            float(two_round.lost) * (1 + 1e-12),
            float(delta * HEAD_LOST) * (1 + 1e-12),
        )
        if rho == 0:
            return None
        head = SelectVerify.within(Cost.at_most(floor_bits(Fraction(rho)), delta * HEAD_LOST), request)
        return cls(two_round, head, epsilon, delta)

    @classmethod
    def by_step(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:  # noqa: ARG003 - it has none
        """Return None: its steps have prices of their own."""
        return None

    def worst_cost(self) -> Cost:
        """Return the larger of what the branches may cost, with the histogram."""
        two_round, head = self.two_round.worst_cost(), self.head.worst_cost()
        rho = max(two_round.rho, head.rho + _histogram_rho(self.two_round))
        return Cost(rho, max(two_round.delta, head.delta, self.delta))

    def direct_epsilon(self) -> Fraction | None:
        """Return epsilon of the exact theorem, if the branches were chosen by it."""
        return self.epsilon

    @property
    def head_limit(self) -> int:
        """How many items of the head the other branch needs."""
        return self.head.head_limit

    def expectation(self) -> Expectation:
        """Return what holds whichever branch is chosen."""
        branches = (self.two_round.expectation(), self.head.expectation())
        errors = [branch.std_error_least for branch in branches if branch.std_error_least is not None]
        counts = [branch.smallest_count for branch in branches if branch.smallest_count is not None]
        return Expectation(min(errors, default=None), None, min(counts))

    def release(self, pairs: UserItemPairs, bits: Bits) -> Outcome:
        """Release; the outcome's positions are numbers of items, and it says which branch was chosen."""
        sizes = self.two_round.measure_sizes(pairs, bits)
        measured = f"about {sizes.users:,.0f} users, and noise of {sizes.scale:,.1f} users per item in the first round"
        if sizes.scale * USERS_PER_NOISE <= max(sizes.users, 1):
            outcome = self.two_round.release_after(sizes, pairs, bits)
            return replace(
                outcome, chosen=self.two_round.name, why=f"many users for the number of items they have: {measured}"
            )
        outcome = self._release_head(pairs, bits)
        return replace(outcome, chosen=self.head.name, why=f"few users for the number of items they have: {measured}")

    def _release_head(self, pairs: UserItemPairs, bits: Bits) -> Outcome:
        """Release from the exact counts: with a limit that nobody reaches, sums are counts."""
        counts = pairs.weighted_sums(float(LARGEST_BASKET)) // (WEIGHT_UNIT - 1)
        order = np.argsort(-counts, kind="stable")[: self.head_limit + 1]
        outcome = self.head.release(ExactHead(counts[order], self.head_limit), bits)
        cost = outcome.cost + Cost(_histogram_rho(self.two_round))
        return replace(outcome, positions=order[outcome.positions], cost=cost)


def _histogram_rho(two_round: TwoRound) -> Fraction:
    return Fraction(two_round.budget.histogram, 2 * COST_UNIT)
