"""Anchored select-then-verify: as many accurate counts as a head allows (docs/mechanisms/select_verify.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.convert import floor_bits, floor_sqrt
from discreet.accounting.privacy_filter import PrivacyFilter
from discreet.mechanisms.anchored import rounded_up
from discreet.mechanisms.base import INTERVAL, Expectation, Likely, Request, ZCDPOnly, require_gaussian
from discreet.noise import Bits, Race, Rival, rounded_gaussian
from discreet.noise.distributions import MAX_SCALE, check_scale
from discreet.values import Cost, ExactHead, Outcome

RACES = 500
"""The largest number of races; each may lose delta / RACES."""

PLACES = 256
"""The largest number of items that a race finds."""

FIRST = 1000
"""The first race's epsilon is this many times smaller than that of a single step that costs the whole budget."""

FASTEST = Fraction(3, 20)
"""The largest relative growth of epsilon from one race to the next."""

GROWTH = 0.5
"""epsilon grows by this share over the root of the number of found items, so a race finds about that root more."""

ANCHOR_SHARE = Fraction(3, 100)
"""Share of rho for the noise that all first counts share."""

TAIL_SHARE = Fraction(1, 40)
"""Share of rho for the noisy count below the cut."""

FIRST_ERROR = 0.09
"""The standard error of a first count, relative to the count that is likely to win."""

ERRORS = 1.63
"""The relative error in standard errors of the likely winner's second count; it sets the budget for second counts."""

CROWDED = 7
"""Probable ratio of the smallest released count to the least possible one, at most: other items use up the budget."""

PRECISION_UNIT = 2**40
"""Second counts have variance PRECISION_UNIT / n for integers n, in half counts."""

MAX_HALVED = 2**60
"""Larger counts are reduced to this, so that twice a count and its noise fit int64."""


@dataclass(frozen=True, slots=True)
class SelectVerify(ZCDPOnly):
    """Find items by races and noisy counts that verify them, then spend the rest of the budget on second counts.

    Race by race, with epsilon growing, all slots of the head compete: its items, and a blank for every slot that is
    not above the cut. The winner is counted with Gaussian noise; if that count is far above the noisy count below the
    cut, item and count are released and the race continues; otherwise, or if a blank wins, it ends. So one
    Gaussian counts the item and protects its label. All first counts share a part of their noise, the anchor, which
    makes each of them four times cheaper (Lebeda 2024).

    Once a share of the budget is spent, the labels are final. The rest is spent on a second count of each item, with
    noise that fits the first counts of all items.

    Args:
        limit: budget of the run.
        head_limit: kbar, the cut-off.
        relative_error: target relative error of a count, above 0 and below 1.
        rows_per_group: tau.
        counts: False to return labels only.
        k: number of items, or None for all that are found.
    """

    limit: Cost
    head_limit: int
    relative_error: Fraction
    rows_per_group: int = 1
    counts: bool = True
    k: int | None = None

    name: ClassVar[str] = "head"
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_scale(self._level(self._first_epsilon()).variance, MAX_SCALE**2)  # no other noise is as wide

    @classmethod
    def within_cost(cls, limit: Cost, request: Request) -> Self:
        require_gaussian(request, "the head mechanism")
        return cls(
            limit,
            request.head_limit,
            request.relative_error,
            request.sensitivity.rows_per_group,
            request.counts,
            request.k,
        )

    def worst_cost(self) -> Cost:
        return self.limit

    def direct_epsilon(self) -> Fraction | None:
        return None

    def expectation(self) -> Expectation:
        """Return the largest error, of a first count in the first race, and the least, of a single item found last."""
        budget = self._start()
        epsilon = self._first_epsilon()
        first = last = self._level(epsilon)
        rho = budget.remaining.rho * (1 - self._kept(first, 0, 0))
        for _ in range(RACES):
            level = self._level(epsilon)
            if (rho := rho - level.step.rho) < 0:
                break
            last = level
            epsilon = _grown(epsilon, 0, 0)
        threshold = self.rows_per_group + math.ceil(last.above)
        if not self.counts:
            return Expectation(None, None, threshold, likely=(self._likely(threshold),))
        left = float(2 * budget.remaining.rho / self.rows_per_group**2)
        least = 1 / (1 / last.variance + left) + 1 / (1 / self._anchor() + left / 2)
        most = math.sqrt(first.variance + self._anchor()) / 2
        return Expectation(math.sqrt(least) / 2, most, threshold, likely=(self._likely(threshold),))

    def _likely(self, threshold: int) -> Likely:
        """Return the probable range: the noise of second counts fits the relative error, from the threshold on."""
        if not self.counts:
            return Likely(self.name, None, None, None, threshold, CROWDED * threshold)
        share = float(self.relative_error)
        return Likely(self.name, share / 2 * threshold, None, share, threshold, CROWDED * threshold)

    def release(self, head: ExactHead, bits: Bits) -> Outcome:
        """Release; the outcome's cost is the spent budget."""
        budget = self._start()
        counts = np.minimum(head.counts, MAX_HALVED)  # one user moves them no further; can be doubled
        tail = int(counts[self.head_limit]) if len(counts) > self.head_limit else 0
        items = self._find(counts[: self.head_limit], tail, budget, bits)
        if self.counts and len(items.positions):
            items = self._measure_again(items, counts[items.positions], budget, bits)
        return self._outcome(items, budget.spent)

    def _find(self, counts: NDArray[np.int64], tail: int, budget: PrivacyFilter, bits: Bits) -> _Found:
        """Run the races, and return the found items with their first counts."""
        tau = self.rows_per_group
        anchor = int(_half_counts(bits, "anchor", self._anchor(), 1)[0])
        noisy_tail = 2 * tail + anchor + int(_half_counts(bits, "tail", self._tail(), 1)[0])
        alive = np.flatnonzero(counts > tail)
        blanks = self.head_limit - len(alive)
        total = budget.remaining.rho
        epsilon = self._first_epsilon()
        items = _Found.nothing(float(self._anchor()) / 4)
        lost = self._lost()
        for number in range(RACES):
            level = self._level(epsilon)
            affordable = int(
                (budget.remaining.rho - total * self._kept(level, noisy_tail / 2, len(items.positions)))
                / level.step.rho
            )
            if affordable <= 0 or len(items.positions) == self.head_limit:
                break
            budget.spend(lost)
            order, reached = self._race(counts[alive], tail, blanks, level).run(bits, f"race/{number}", PLACES)
            noise = _half_counts(bits, f"counts/{number}", level.variance, len(order))
            doubled = 2 * counts[alive[order]] + anchor + noise
            verified = doubled - noisy_tail > 2 * tau + level.margin
            passed = len(order) if verified.all() else int(verified.argmin())
            steps = passed + (passed < len(order) or reached)  # the step that ends the race is paid like any other
            paid = min(steps, affordable)
            budget.spend(level.step * paid)
            passed = min(passed, paid)
            items = items.with_items(alive[order[:passed]], doubled[:passed] / 2, float(level.variance) / 4)
            if paid < steps:
                break
            alive = np.delete(alive, order[:passed])
            if passed < PLACES:
                epsilon = _grown(epsilon, passed, len(items.positions))
        return items

    def _race(self, counts: NDArray[np.int64], tail: int, blanks: int, level: _Level) -> Race:
        """Return the race among *counts* and blanks, whose count is that below the cut."""
        return Race(counts, level.epsilon / self.rows_per_group, Rival(tail, Fraction(blanks)) if blanks else None)

    def _measure_again(self, items: _Found, counts: NDArray[np.int64], budget: PrivacyFilter, bits: Bits) -> _Found:
        """Spend the rest of the budget on a second anchor and on second counts whose variance grows with the counts.

        Args:
            items: the found items, with first counts.
            counts: exact counts of these items, shape (n,).
            budget: the filter to charge.
        """
        tau = self.rows_per_group
        total = min(math.floor(2 * budget.remaining.rho / tau**2 * PRECISION_UNIT), MAX_HALVED)
        common = min(int(total / (1 + math.sqrt(len(counts)))), PRECISION_UNIT)
        sizes = np.maximum(items.estimates(self._log_factor()), 1)
        precisions = _spread(total - common, PRECISION_UNIT / (4 * items.variances), sizes)
        again = np.flatnonzero(precisions)
        if common == 0 or len(again) == 0:
            return items
        budget.spend(Cost(Fraction(tau**2 * (common + int(precisions.sum())), 2 * PRECISION_UNIT)))
        anchor = rounded_gaussian(bits, "second anchor", PRECISION_UNIT, np.array([common]))
        noise = rounded_gaussian(bits, "second counts", PRECISION_UNIT, precisions[again])
        second = (2 * counts[again] + anchor + noise) / 2
        return items.with_second(again, second, PRECISION_UNIT / (4 * precisions[again]), PRECISION_UNIT / (4 * common))

    def _start(self) -> PrivacyFilter:
        """Return the budget after payment of anchor and tail."""
        budget = PrivacyFilter(self.limit)
        budget.spend(Cost(self.rows_per_group**2 * (1 / self._anchor() + 1 / self._tail()) / 2))
        return budget

    def _kept(self, level: _Level, noisy_tail: float, released: int) -> Fraction:
        """Return the share of the budget to keep for second counts, 0 if only labels are released.

        An item with h users, d more than the cut, costs (ln(kbar)^2 + 1 / FIRST_ERROR^2) / 8d^2 with its label and its
        first count, and its second count costs the rest up to (ERRORS / relative error)^2 / 8h^2, to which the anchor
        adds a share of one over the root of the number of items.

        Args:
            level: the level of the next race.
            noisy_tail: the noisy count below the cut.
            released: number of items found.
        """
        if not self.counts:
            return Fraction(0)
        above = (1 + max(noisy_tail, 0) / level.above) ** 2
        first_precision = above * (self._log_factor() ** 2 + FIRST_ERROR**-2)
        precision = (ERRORS / float(self.relative_error)) ** 2 * (1 + 1 / math.sqrt(max(released, 1)))
        rest = max(0.0, precision - above * FIRST_ERROR**-2)
        return Fraction(math.ceil(2**30 * rest / (first_precision + rest)), 2**30)

    def _anchor(self) -> Fraction:
        """Return the variance of the first anchor, in half counts."""
        return rounded_up(self.rows_per_group**2 / (2 * ANCHOR_SHARE * self.limit.rho))

    def _tail(self) -> Fraction:
        """Return the variance of the tail's own noise, in half counts."""
        return rounded_up(self.rows_per_group**2 / (2 * TAIL_SHARE * self.limit.rho))

    def _lost(self) -> Cost:
        """Return the probability mass that a race may lose."""
        return Cost.at_most(0, self.limit.delta / RACES)

    def _log_factor(self) -> float:
        return math.log1p(self.head_limit)

    def _first_epsilon(self) -> Fraction:
        return floor_sqrt(8 * self.limit.rho) / FIRST

    def _level(self, epsilon: Fraction) -> _Level:
        """Return the level of *epsilon*, whose parameters are all public."""
        tau = self.rows_per_group
        above = tau * self._log_factor() / float(epsilon)
        variance = rounded_up(Fraction(2 * FIRST_ERROR * above) ** 2)
        # The noise of count and tail exceeds this radius with probability at most delta / RACES, for every epsilon.
        radius = math.sqrt(-2 * math.log(self._lost().delta))
        margin = math.ceil(radius * math.sqrt(variance + self._tail()) * (1 + 1e-12))
        return _Level(epsilon, variance, margin, Cost(epsilon**2 / 8 + tau**2 / (2 * variance)), above)

    def _outcome(self, items: _Found, cost: Cost) -> Outcome:
        estimates = items.estimates(self._log_factor())
        largest = np.argsort(-estimates, kind="stable")[: self.k]
        positions = items.positions[largest]
        estimates = estimates[largest]
        stds = np.sqrt(items.variances + items.common)[largest]
        complete = len(positions) == self.k
        if not self.counts:
            return Outcome(positions, ordered=True, complete=complete, cost=cost)
        counts = np.rint(estimates).astype(np.int64)
        low = np.maximum(np.floor(estimates - INTERVAL * stds), 0).astype(np.int64)
        high = np.maximum(np.ceil(estimates + INTERVAL * stds), 0).astype(np.int64)
        return Outcome(positions, counts, stds, low, high, ordered=True, complete=complete, cost=cost)


@dataclass(frozen=True, slots=True)
class _Level:
    """The parameters of a race and its first counts.

    Args:
        epsilon: epsilon of a step of the race.
        variance: variance of a first count's own noise, in half counts.
        margin: the least excess of a count over the noisy tail plus tau, in half counts.
        step: cost of a step.
        above: distance from the cut at which an item is as likely to win as all items and blanks next to the cut.
    """

    epsilon: Fraction
    variance: Fraction
    margin: int
    step: Cost
    above: float


@dataclass(frozen=True, slots=True)
class _Found:
    """Items in the order in which they were found.

    Args:
        positions: rows of the head, shape (n,).
        measured: noisy counts, shape (n,).
        variances: variances of the counts' own noise, shape (n,).
        common: variance of the noise that all counts share.
    """

    positions: NDArray[np.int64]
    measured: NDArray[np.float64]
    variances: NDArray[np.float64]
    common: float

    @classmethod
    def nothing(cls, common: float) -> Self:
        return cls(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), common)

    def with_items(self, positions: NDArray[np.int64], measured: NDArray[np.float64], variance: float) -> Self:
        return replace(
            self,
            positions=np.append(self.positions, positions),
            measured=np.append(self.measured, measured),
            variances=np.append(self.variances, np.full(len(positions), variance)),
        )

    def with_second(
        self, again: NDArray[np.int64], second: NDArray[np.float64], variances: NDArray[np.float64], common: float
    ) -> Self:
        """Average first counts with the second counts of the items *again*, which have another anchor.

        The mean difference of first and second counts is nearly that of the anchors, so each count is corrected by its
        anchor's share of it.
        """
        own = self.variances.copy()
        weights = 1 / (own[again] + variances)
        difference = float((weights * (second - self.measured[again])).sum() / weights.sum())
        common_of_second = common + 1 / float(weights.sum())
        share = self.common / (self.common + common_of_second)
        measured = self.measured + difference * share
        second = second - difference * common / (self.common + common_of_second)
        precisions = 1 / own[again] + 1 / variances
        measured[again] = (measured[again] / own[again] + second / variances) / precisions
        own[again] = 1 / precisions
        return replace(self, measured=measured, variances=own, common=common_of_second * share)

    def estimates(self, log_factor: float) -> NDArray[np.float64]:
        """Average each count with an estimate from its rank, because races nearly order items by their counts.

        The relative error of the falling fit is about 1.28 / *log_factor*, that of a race.
        """
        pools = falling_pools(self.measured, 1 / self.variances)
        fit = np.repeat([mean for mean, _, _ in pools], [size for _, _, size in pools])
        precision = 1 / (1.41 / log_factor * np.maximum(fit, 1)) ** 2
        mixed: NDArray[np.float64] = (self.measured / self.variances + fit * precision) / (
            1 / self.variances + precision
        )
        return mixed


def _half_counts(bits: Bits, label: str, variance: Fraction, n: int) -> NDArray[np.int64]:
    return rounded_gaussian(bits, label, variance.numerator, np.full(n, variance.denominator))


def _grown(epsilon: Fraction, passed: int, released: int) -> Fraction:
    """Return the next race's epsilon after a race that found *passed* of the *released* items."""
    share = min(FASTEST, Fraction(GROWTH / math.sqrt(released))) if passed else FASTEST
    return floor_bits(epsilon * (1 + share))


def _spread(total: int, precisions: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return precisions to add, *total* at most, after which those added to are inversely proportional to the sizes.

    Args:
        total: in the unit of the precisions.
        precisions: present precisions, shape (n,).
        sizes: above 0, shape (n,).
    """
    sized_precisions = precisions * sizes
    order = np.argsort(sized_precisions, kind="stable")
    levels = (total + np.cumsum(precisions[order])) / np.cumsum(1 / sizes[order])
    # The first level is at least what its item holds, except for rounding, which the factor covers.
    level = levels[np.flatnonzero(levels * (1 + 1e-12) >= sized_precisions[order])[-1]]
    added = np.clip(level / sizes - precisions, 0, PRECISION_UNIT).astype(np.int64)
    # Rounding must not spend more than *total*, because a refusal at this point would reveal data.
    affordable: NDArray[np.int64] = np.minimum(added, np.maximum(total - (np.cumsum(added) - added), 0))
    return affordable


def falling_pools(values: NDArray[np.float64], weights: NDArray[np.float64]) -> list[tuple[float, float, int]]:
    """Return the non-increasing weighted least-squares fit of *values*, as pools of neighbours.

    Args:
        values: shape (n,).
        weights: above 0, shape (n,).

    Returns:
        the mean, total weight and size of each pool, in order (pool adjacent violators).
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean = value
        total = weight
        size = 1
        while pools and pools[-1][0] < mean:
            other, more, n = pools.pop()
            mean = (mean * total + other * more) / (total + more)
            total = total + more
            size = size + n
        pools.append((mean, total, size))
    return pools
