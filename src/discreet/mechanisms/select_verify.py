"""Anchored select-then-verify: as many accurate counts as a head allows (docs/mechanisms/select_verify.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from discreet.accounting.convert import floor_bits, floor_sqrt
from discreet.accounting.gaussian import normal_quantile
from discreet.accounting.odometer import PrivacyFilter
from discreet.mechanisms.base import Expectation, Request, require_gaussian
from discreet.noise import Race, Rival, rounded_gaussian
from discreet.values import Cost, ExactHead, Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.noise import Bits

LEVELS = 50
"""Each level may lose delta / LEVELS; the last one's epsilon is what the whole budget could buy for one step."""

RATIO = Fraction(23, 20)
"""epsilon grows by this from one level to the next."""

ANCHOR_SHARE = Fraction(1, 10)
"""Share of rho for the noise that all counts have in common: with less, it is most of the error of short releases."""

TAIL_SHARE = Fraction(1, 100)
"""Share of rho for the noisy count below the cut."""

NOISE_PER_ERROR = Fraction(4)
"""The noise of a count is this times the relative error, as a share of the widest noise that still verifies."""

PASSES = 1.6
"""The widest noise lets a count at the threshold of its level pass the verification by so many standard deviations."""

INTERVAL = 1.96

LARGEST_HALVED = 2**60
"""Counts are taken for this if they are larger, so that twice a count and its noise fit an int64."""


@dataclass(frozen=True, slots=True)
class SelectVerify:
    """Find items by races whose threshold alone would not protect labels; what their noisy counts verify is released.

    Level by level, with epsilon growing, items race against a low threshold (UnkGumb's, with a mass of about epsilon
    in place of delta). The item that comes next is counted with Gaussian noise; if that count is far above the noisy
    count below the cut, item and count are released, otherwise the level ends, as it does when the threshold comes
    next. So one Gaussian measures the count and protects the label. All counts share a part of their noise, the
    anchor, which makes each of them four times cheaper (Lebeda 2024).

    Every step costs epsilon^2/8 for the race and tau^2/8 sigma^2 for the count; anchor and tail are paid at the start.

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
        """Return None: its steps grow from level to level."""
        return None

    def worst_cost(self) -> Cost:
        return self.limit

    def direct_epsilon(self) -> Fraction | None:
        return None

    def expectation(self) -> Expectation:
        """Return the errors of the first level and of the last that can pay for one item, if none was found before."""
        levels = self._levels()
        last, spent = levels[0], self._start().budget.spent
        for level in levels:
            if not (spent := spent + level.step + self._lost()).within(self.limit):
                break
            last = level
        least, most = (self._std_error(last), self._std_error(levels[0])) if self.counts else (None, None)
        return Expectation(least, most, math.ceil(last.threshold))

    def release(self, head: ExactHead, bits: Bits) -> Outcome:
        """Release; the outcome's cost is what was spent."""
        run, tau = self._start(), self.rows_per_group
        counts = np.minimum(head.counts, LARGEST_HALVED)  # moves no further than the counts, and can be doubled
        tail = int(counts[self.head_limit]) if len(counts) > self.head_limit else 0
        anchor = int(_half_counts(bits, "anchor", self._anchor(), 1)[0])
        noisy_tail = 2 * tail + anchor + int(_half_counts(bits, "tail", self._tail(), 1)[0])
        alive = np.flatnonzero(counts[: self.head_limit] > tail)
        for number, level in enumerate(self._levels()):
            if run.released == self.head_limit or not run.budget.admits(level.step + self._lost()):
                break
            run.budget.spend(self._lost())
            race = self._race(counts[alive], tail, level)
            order, reached = race.run(bits, f"race/{number}", self.head_limit - run.released)
            noise = _half_counts(bits, f"counts/{number}", level.variance, len(order))
            doubled = 2 * counts[alive[order]] + anchor + noise
            verified = doubled - noisy_tail > 2 * tau + level.margin
            found = len(order) if verified.all() else int(verified.argmin())
            steps = found + (found < len(order) or reached)  # the step that ends the level is paid like any other
            paid = run.pay(level, steps)
            found = min(found, paid)
            run.found(alive[order[:found]], doubled[:found], level)
            if paid < steps:
                break
            alive = np.delete(alive, order[:found])
        return self._outcome(run)

    def _race(self, counts: NDArray[np.int64], tail: int, level: _Level) -> Race:
        """Return the race among *counts* against a level's threshold."""
        tau = self.rows_per_group
        return Race(counts, level.epsilon / tau, Rival(tail + tau, self.head_limit / level.mass))

    def _start(self) -> _Run:
        run = _Run(PrivacyFilter(self.limit))
        run.budget.spend(Cost(self.rows_per_group**2 * (1 / self._anchor() + 1 / self._tail()) / 2))
        return run

    def _anchor(self) -> Fraction:
        """Return the variance of the anchor in half counts."""
        return _rounded_up(self.rows_per_group**2 / (2 * ANCHOR_SHARE * self.limit.rho))

    def _tail(self) -> Fraction:
        """Return the variance of the tail's own noise in half counts."""
        return _rounded_up(self.rows_per_group**2 / (2 * TAIL_SHARE * self.limit.rho))

    def _lost(self) -> Cost:
        """Return the mass that a level may lose."""
        return Cost.at_most(0, self.limit.delta / LEVELS)

    def _levels(self) -> list[_Level]:
        last = floor_sqrt(8 * self.limit.rho)
        return [self._level(last / RATIO**steps) for steps in reversed(range(LEVELS))]

    def _level(self, epsilon: Fraction) -> _Level:
        """Return the level of *epsilon*: all its parameters are public."""
        tau = self.rows_per_group
        step = float(epsilon)
        mass = floor_bits(min(Fraction(-math.exp(step) * math.expm1(-step / tau) * (1 - 1e-12)), Fraction(1)))
        lost = float(self._lost().delta * (1 + mass) / mass) * (1 - 1e-12)
        z = normal_quantile(min(lost, 0.5))
        log_factor = math.log(self.head_limit / mass)
        widest = tau * log_factor / step / (z + PASSES)
        sigma = widest * min(1.0, float(NOISE_PER_ERROR * self.relative_error))
        variance = _rounded_up(Fraction(2 * sigma) ** 2)
        margin = math.ceil(z * math.sqrt(variance + self._tail()) * (1 + 1e-12))
        cost = Cost(epsilon**2 / 8 + tau**2 / (2 * variance))
        return _Level(epsilon, mass, variance, margin, cost, tau * (1 + log_factor / step), log_factor)

    def _std_error(self, level: _Level) -> float:
        return math.sqrt(level.variance + self._anchor()) / 2

    def _outcome(self, run: _Run) -> Outcome:
        positions = np.concatenate([np.zeros(0, np.int64), *run.positions_found])
        measured, sigma, factor = (
            np.concatenate([np.zeros(0), *parts]) for parts in (run.measured, run.sigma, run.log_factor)
        )
        estimates = _mixed(measured, sigma, factor)
        stds = np.sqrt(sigma**2 + float(self._anchor()) / 4)
        if self.k is not None:
            largest = np.argsort(-estimates, kind="stable")[: self.k]
            positions, estimates, stds = positions[largest], estimates[largest], stds[largest]
        complete, cost = len(positions) == self.k, run.budget.spent
        if not self.counts:
            return Outcome(positions, ordered=True, complete=complete, cost=cost)
        counts = np.rint(estimates).astype(np.int64)
        low = np.maximum(np.floor(estimates - INTERVAL * stds), 0).astype(np.int64)
        high = np.maximum(np.ceil(estimates + INTERVAL * stds), 0).astype(np.int64)
        return Outcome(positions, counts, stds, low, high, ordered=True, complete=complete, cost=cost)


@dataclass(frozen=True, slots=True)
class _Level:
    """One level's parameters.

    Args:
        epsilon: of a step of the race.
        mass: eta, the weight of items that a neighbour's head may lack, relative to the threshold's.
        variance: of a count's own noise, in half counts.
        margin: what a count must be above the noisy tail beside tau, in half counts.
        step: cost of a step.
        threshold: the count that an item needs for an even chance in the race, when the head's tail is empty.
        log_factor: ln(kbar / eta).
    """

    epsilon: Fraction
    mass: Fraction
    variance: Fraction
    margin: int
    step: Cost
    threshold: float
    log_factor: float


@dataclass(slots=True)
class _Run:
    """How far a run has come; the lists hold one array per level."""

    budget: PrivacyFilter
    positions_found: list[NDArray[np.int64]] = field(default_factory=list)
    measured: list[NDArray[np.float64]] = field(default_factory=list)
    sigma: list[NDArray[np.float64]] = field(default_factory=list)
    log_factor: list[NDArray[np.float64]] = field(default_factory=list)
    released: int = 0

    def pay(self, level: _Level, steps: int) -> int:
        """Pay for *steps* steps, or as many as the budget admits; returns how many."""
        left = self.budget.remaining.rho
        paid = min(steps, int(left / level.step.rho))
        self.budget.spend(level.step * paid)
        return paid

    def found(self, positions: NDArray[np.int64], doubled: NDArray[np.int64], level: _Level) -> None:
        """Add what a level found."""
        self.positions_found.append(positions)
        self.released += len(positions)
        self.measured.append(doubled / 2)
        self.sigma.append(np.full(len(positions), math.sqrt(level.variance) / 2))
        self.log_factor.append(np.full(len(positions), level.log_factor))


def _rounded_up(variance: Fraction) -> Fraction:
    """Round up to a multiple of 1/1024, alike on every machine."""
    return Fraction(math.ceil(variance * 1024), 1024)


def _half_counts(bits: Bits, label: str, variance: Fraction, n: int) -> NDArray[np.int64]:
    return rounded_gaussian(bits, label, variance.numerator, np.full(n, variance.denominator))


def _mixed(
    measured: NDArray[np.float64], sigma: NDArray[np.float64], factor: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Average each count with what its place in the order says: the race nearly orders items by their counts.

    The falling fit of the counts is off by about 1.28/L of itself, L the logarithmic factor of the level's race.
    """
    pools = falling_pools(measured, 1 / sigma**2)
    fit = np.repeat([mean for mean, _, _ in pools], [size for _, _, size in pools])
    precision = 1 / (1.41 / factor * np.maximum(fit, 1)) ** 2
    mixed: NDArray[np.float64] = (measured / sigma**2 + fit * precision) / (1 / sigma**2 + precision)
    return mixed


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
