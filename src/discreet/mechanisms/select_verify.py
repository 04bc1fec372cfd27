"""Anchored select-then-verify: as many accurate counts as a head allows (docs/mechanisms/select_verify.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from discreet.accounting.convert import floor_bits, floor_sqrt
from discreet.accounting.odometer import PrivacyFilter
from discreet.mechanisms.base import Expectation, Request, require_gaussian
from discreet.noise import Race, Rival, rounded_gaussian
from discreet.noise.discrete import LARGEST_SCALE, check_scale
from discreet.values import Cost, ExactHead, Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.noise import Bits

RACES = 500
"""There are at most so many races, and each may lose delta / RACES."""

PLACES = 256
"""A race finds at most so many items."""

FIRST = 1000
"""The first race has this part of the largest epsilon that the whole budget could pay for one step."""

FASTEST = Fraction(3, 20)
"""epsilon grows by this share at most from one race to the next."""

GROWTH = 0.5
"""It grows by this share over the root of the number of items found: a race then finds about as many as that root."""

ANCHOR_SHARE = Fraction(3, 100)
"""Share of rho for the noise that all first counts have in common."""

TAIL_SHARE = Fraction(1, 40)
"""Share of rho for the noisy count below the cut."""

FIRST_ERROR = 0.09
"""The standard error of a first count, relative to the count that is likely to win."""

ERRORS = 1.63
"""So much budget is kept that the relative error is this many standard errors of the likely winner's second count."""

INTERVAL = 1.96

PRECISION_UNIT = 2**40
"""Second counts have variance PRECISION_UNIT / n for whole numbers n, in half counts."""

LARGEST_HALVED = 2**60
"""Counts are taken for this if they are larger, so that twice a count and its noise fit an int64."""


@dataclass(frozen=True, slots=True)
class SelectVerify:
    """Find items by races and noisy counts that verify them, then measure what was found with what is left.

    Race by race, with epsilon growing, all slots of the head compete: its items, and a blank for every slot that is
    not above the cut. The winner is counted with Gaussian noise; if that count is far above the noisy count below the
    cut, item and count are released and the race goes on, otherwise it ends, as it does when a blank wins. So one
    Gaussian counts the item and protects its label. All first counts share a part of their noise, the anchor, which
    makes each of them four times cheaper (Lebeda 2024).

    When a share of the budget is spent, the labels are known. Everything else goes to a second count of each, with
    noise that fits what is known of it by then and of all others.

    Args:
        limit: what the run may spend.
        head_limit: kbar, the cut-off.
        relative_error: what a count should stay within, above 0 and below 1.
        rows_per_group: tau.
        counts: False to return labels only.
        k: how many items, or None for all that are found.
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
        first = self._level(self._first_epsilon())
        for variance in (self._anchor(), self._tail(), first.variance):  # the widest: later it depends on what is found
            check_scale(variance, LARGEST_SCALE**2)

    @classmethod
    def within(cls, limit: Cost, request: Request) -> Self:
        require_gaussian(request, "the head mechanism")
        return cls(
            limit,
            request.head_limit,
            request.relative_error,
            request.sensitivity.rows_per_group,
            request.counts,
            request.k,
        )

    @classmethod
    def at(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:  # noqa: ARG003 - it has none
        """Return None: its steps are added up in zCDP only."""
        return None

    @classmethod
    def by_step(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:  # noqa: ARG003 - it has none
        """Return None: its steps grow from race to race."""
        return None

    def worst_cost(self) -> Cost:
        return self.limit

    def direct_epsilon(self) -> Fraction | None:
        return None

    def expectation(self) -> Expectation:
        """Return the errors of a first count of the first race, and of an item that is found last and alone."""
        budget, epsilon = self._start(), self._first_epsilon()
        first = last = self._level(epsilon)
        rho = budget.remaining.rho * (1 - self._kept(first, 0, 0))
        for _ in range(RACES):
            level = self._level(epsilon)
            if (rho := rho - level.step.rho) < 0:
                break
            last, epsilon = level, _grown(epsilon, 0, 0)
        threshold = self.rows_per_group + math.ceil(last.above)
        if not self.counts:
            return Expectation(None, None, threshold)
        left = float(2 * budget.remaining.rho / self.rows_per_group**2)
        least = 1 / (1 / last.variance + left) + 1 / (1 / self._anchor() + left / 2)
        return Expectation(math.sqrt(least) / 2, math.sqrt(first.variance + self._anchor()) / 2, threshold)

    def release(self, head: ExactHead, bits: Bits) -> Outcome:
        """Release; the outcome's cost is what was spent."""
        budget = self._start()
        counts = np.minimum(head.counts, LARGEST_HALVED)  # moves no further than the counts, and can be doubled
        tail = int(counts[self.head_limit]) if len(counts) > self.head_limit else 0
        found = self._find(counts[: self.head_limit], tail, budget, bits)
        if self.counts and len(found.positions):
            found = self._measure_again(found, counts[found.positions], budget, bits)
        return self._outcome(found, budget.spent)

    def _find(self, counts: NDArray[np.int64], tail: int, budget: PrivacyFilter, bits: Bits) -> _Found:
        """Return the items that races find, with first counts."""
        tau = self.rows_per_group
        anchor = int(_half_counts(bits, "anchor", self._anchor(), 1)[0])
        noisy_tail = 2 * tail + anchor + int(_half_counts(bits, "tail", self._tail(), 1)[0])
        alive = np.flatnonzero(counts > tail)
        blanks = self.head_limit - len(alive)
        total = budget.remaining.rho
        epsilon, found, lost = self._first_epsilon(), _Found.nothing(float(self._anchor()) / 4), self._lost()
        for number in range(RACES):
            level = self._level(epsilon)
            affordable = int(
                (budget.remaining.rho - total * self._kept(level, noisy_tail / 2, len(found.positions)))
                / level.step.rho
            )
            if affordable <= 0 or len(found.positions) == self.head_limit:
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
            found = found.with_items(alive[order[:passed]], doubled[:passed] / 2, float(level.variance) / 4)
            if paid < steps:
                break
            alive = np.delete(alive, order[:passed])
            if passed < PLACES:
                epsilon = _grown(epsilon, passed, len(found.positions))
        return found

    def _race(self, counts: NDArray[np.int64], tail: int, blanks: int, level: _Level) -> Race:
        """Return the race among *counts* and blanks, which have the count below the cut."""
        return Race(counts, level.epsilon / self.rows_per_group, Rival(tail, Fraction(blanks)) if blanks else None)

    def _measure_again(self, found: _Found, counts: NDArray[np.int64], budget: PrivacyFilter, bits: Bits) -> _Found:
        """Spend what is left: on a second anchor, and on second counts whose variance grows with the counts.

        Args:
            found: what was found, with first counts.
            counts: exact ones, shape (n,).
            budget: is charged.
            bits: source of randomness.
        """
        tau = self.rows_per_group
        total = min(math.floor(2 * budget.remaining.rho / tau**2 * PRECISION_UNIT), LARGEST_HALVED)
        common = min(int(total / (1 + math.sqrt(len(counts)))), PRECISION_UNIT)
        sizes = np.maximum(found.estimates(self._log_factor()), 1)
        precisions = _spread(total - common, PRECISION_UNIT / (4 * found.variances), sizes)
        again = np.flatnonzero(precisions)
        if common == 0 or len(again) == 0:
            return found
        budget.spend(Cost(Fraction(tau**2 * (common + int(precisions.sum())), 2 * PRECISION_UNIT)))
        anchor = rounded_gaussian(bits, "second anchor", PRECISION_UNIT, np.array([common]))
        noise = rounded_gaussian(bits, "second counts", PRECISION_UNIT, precisions[again])
        second = (2 * counts[again] + anchor + noise) / 2
        return found.with_second(again, second, PRECISION_UNIT / (4 * precisions[again]), PRECISION_UNIT / (4 * common))

    def _start(self) -> PrivacyFilter:
        """Return the budget, after anchor and tail."""
        budget = PrivacyFilter(self.limit)
        budget.spend(Cost(self.rows_per_group**2 * (1 / self._anchor() + 1 / self._tail()) / 2))
        return budget

    def _kept(self, level: _Level, noisy_tail: float, released: int) -> Fraction:
        """Return the share of the budget that is kept for second counts: nothing if labels alone are wanted.

        An item with h users, d more than the cut, costs (ln(kbar)^2 + 1 / FIRST_ERROR^2) / 8d^2 with its label and its
        first count, and what is missing to (ERRORS / relative error)^2 / 8h^2 later, where the anchor adds one over
        the root of the number of items to it.

        Args:
            level: of the race that may still begin.
            noisy_tail: the noisy count below the cut.
            released: how many items were found.
        """
        if not self.counts:
            return Fraction(0)
        above = (1 + max(noisy_tail, 0) / level.above) ** 2
        found = above * (self._log_factor() ** 2 + FIRST_ERROR**-2)
        wanted = (ERRORS / float(self.relative_error)) ** 2 * (1 + 1 / math.sqrt(max(released, 1)))
        rest = max(0.0, wanted - above * FIRST_ERROR**-2)
        return Fraction(math.ceil(2**30 * rest / (found + rest)), 2**30)

    def _anchor(self) -> Fraction:
        """Return the variance of the first anchor in half counts."""
        return _rounded_up(self.rows_per_group**2 / (2 * ANCHOR_SHARE * self.limit.rho))

    def _tail(self) -> Fraction:
        """Return the variance of the tail's own noise in half counts."""
        return _rounded_up(self.rows_per_group**2 / (2 * TAIL_SHARE * self.limit.rho))

    def _lost(self) -> Cost:
        """Return the mass that a race may lose."""
        return Cost.at_most(0, self.limit.delta / RACES)

    def _log_factor(self) -> float:
        return math.log1p(self.head_limit)

    def _first_epsilon(self) -> Fraction:
        return floor_sqrt(8 * self.limit.rho) / FIRST

    def _level(self, epsilon: Fraction) -> _Level:
        """Return the level of *epsilon*: all its parameters are public."""
        tau = self.rows_per_group
        above = tau * self._log_factor() / float(epsilon)
        variance = _rounded_up(Fraction(2 * FIRST_ERROR * above) ** 2)
        # Noise of both that is farther out than this has a probability of delta / RACES, however epsilon was chosen.
        radius = math.sqrt(-2 * math.log(self._lost().delta))
        margin = math.ceil(radius * math.sqrt(variance + self._tail()) * (1 + 1e-12))
        return _Level(epsilon, variance, margin, Cost(epsilon**2 / 8 + tau**2 / (2 * variance)), above)

    def _outcome(self, found: _Found, cost: Cost) -> Outcome:
        estimates = found.estimates(self._log_factor())
        largest = np.argsort(-estimates, kind="stable")[: self.k]
        positions, estimates = found.positions[largest], estimates[largest]
        stds = np.sqrt(found.variances + found.common)[largest]
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
        epsilon: of a step of the race.
        variance: of a first count's own noise, in half counts.
        margin: what a count must be above the noisy tail beside tau, in half counts.
        step: cost of a step.
        above: how far above the cut an item is as likely to win as all that are next to the cut.
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
        variances: of their own noise, shape (n,).
        common: variance of the noise that all have in common.
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
        """Average with second counts, of the items *again*, which have another anchor.

        The mean difference of both counts is the difference of the anchors, nearly: each count is corrected by its
        anchor's share of that.
        """
        own = self.variances.copy()
        weights = 1 / (own[again] + variances)
        difference = float((weights * (second - self.measured[again])).sum() / weights.sum())
        known = common + 1 / float(weights.sum())
        share = self.common / (self.common + known)
        measured = self.measured + difference * share
        second = second - difference * common / (self.common + known)
        precisions = 1 / own[again] + 1 / variances
        measured[again] = (measured[again] / own[again] + second / variances) / precisions
        own[again] = 1 / precisions
        return replace(self, measured=measured, variances=own, common=known * share)

    def estimates(self, log_factor: float) -> NDArray[np.float64]:
        """Average each count with what its place in the order says: races nearly order items by their counts.

        The falling fit of the counts is off by about 1.28 / *log_factor* of itself, the error of a race.
        """
        pools = falling_pools(self.measured, 1 / self.variances)
        fit = np.repeat([mean for mean, _, _ in pools], [size for _, _, size in pools])
        precision = 1 / (1.41 / log_factor * np.maximum(fit, 1)) ** 2
        mixed: NDArray[np.float64] = (self.measured / self.variances + fit * precision) / (
            1 / self.variances + precision
        )
        return mixed


def _rounded_up(variance: Fraction) -> Fraction:
    """Round up to a multiple of 1/1024, alike on every machine."""
    return Fraction(math.ceil(variance * 1024), 1024)


def _half_counts(bits: Bits, label: str, variance: Fraction, n: int) -> NDArray[np.int64]:
    return rounded_gaussian(bits, label, variance.numerator, np.full(n, variance.denominator))


def _grown(epsilon: Fraction, passed: int, released: int) -> Fraction:
    """Return the epsilon of the race after one in which *passed* of all *released* items were found."""
    share = min(FASTEST, Fraction(GROWTH / math.sqrt(released))) if passed else FASTEST
    return floor_bits(epsilon * (1 + share))


def _spread(total: int, precisions: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return precisions to add, *total* at most, so that each is one number over its size, or has none added.

    Args:
        total: in the unit of the precisions.
        precisions: what there is already, shape (n,).
        sizes: above 0, shape (n,).
    """
    held = precisions * sizes
    order = np.argsort(held, kind="stable")
    levels = (total + np.cumsum(precisions[order])) / np.cumsum(1 / sizes[order])
    # The first level is above what its item has, but for rounding, which the factor allows for.
    level = levels[np.flatnonzero(levels * (1 + 1e-12) >= held[order])[-1]]
    added = np.clip(level / sizes - precisions, 0, PRECISION_UNIT).astype(np.int64)
    # However the sums above were rounded, no more is spent than there is: refusing it now would reveal something.
    affordable: NDArray[np.int64] = np.minimum(added, np.maximum(total - (np.cumsum(added) - added), 0))
    return affordable


def falling_pools(values: NDArray[np.float64], weights: NDArray[np.float64]) -> list[tuple[float, float, int]]:
    """Return the weighted least-squares fit of *values* that never rises, as pools of neighbours.

    Args:
        values: shape (n,).
        weights: above 0, shape (n,).

    Returns:
        for each pool its mean, its total weight and its size, in order (pool adjacent violators).
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, size = value, weight, 1
        while pools and pools[-1][0] < mean:
            other, more, n = pools.pop()
            mean, total, size = (mean * total + other * more) / (total + more), total + more, size + n
        pools.append((mean, total, size))
    return pools
