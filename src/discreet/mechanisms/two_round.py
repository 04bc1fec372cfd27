"""The two-round release: counts with noise in proportion to their size (docs/mechanisms/two_round.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.convert import floor_bits
from discreet.accounting.gaussian import mu_gaussian, normal_quantile
from discreet.errors import InputError
from discreet.mechanisms.anchored import Anchored
from discreet.mechanisms.base import INTERVAL, Expectation, Likely, Request, WithoutSteps, require_gaussian
from discreet.mechanisms.select_verify import falling_pools
from discreet.noise import Bits, RoundedGaussians, rounded_gaussian
from discreet.values import MAX_BASKET, MAX_ITEM_COST, WEIGHT_UNIT, Cost, Outcome, UserItemPairs, float_below

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COST_UNIT = 2**40
"""mu^2 is spent in units of 1 / COST_UNIT: noise of precision c has variance COST_UNIT / c, and costs c s^2 units on a
value that one user moves by s."""

LEAST_BUDGET = 2_000
"""The smallest budget in these units, epsilon of about 0.0001; a smaller one would round shares of it too coarsely."""

SCALES = 18
"""Number of bins of the histograms of users by the scale of noise at which they fit; scales grow by sqrt(2)."""

CLIPPING_BINS = 26
"""Number of bins of the histogram of users by their size relative to the limit: from 2^-8 of it, by sqrt(2)."""

SURE = 8.0
"""Standard errors from which on a bin widens the second round's noise in full. At those that are needed for any effect
it has none yet, because a bin on the edge would halve the number of counts."""

GRID = 2.0 ** (np.arange(64 * SCALES) / 128)
"""Candidate scales of noise, relative to the least; their steps exceed the rounding differences of machines."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Public constants, chosen on tables that docs/accuracy.md names. None affects privacy.

    Args:
        first_share: share of mu^2 for the first round, after the histograms.
        histogram_share: share of mu^2 for each of the histograms of sizes, scales and clipping.
        rest_share: share of mu^2 for the histogram of the rest.
        mass_kept: least share of the first round's mass that clipping keeps.
        clipping: largest root mean square of the share that clipping removes from users in the second round, per
            relative error.
        noise: standard error of an item at the cut, relative to it, per relative error.
        most_noise: the largest such standard error, used if the first round is precise enough for a lower cut.
        known: a lowered cut is at least *known* / relative error standard errors of the first round.
        precise: largest standard error of a released item, relative to its count, per relative error.
        power: noise grows with an item's size to this power.
        least_evidence: standard errors that an item's first value must be above 0 to be measured again.
        uneven_first: variation of the loss by clipping between items in the first round, relative to their size.
        uneven_second: that variation in the second round, relative to the root mean square loss.
        evidence: standard errors above 0 that a bin of a histogram must be to be used.
        unseen: users just above the limit that the noise of a bin may hide, in its standard errors.
        lost: share of delta for the release of items that only one user has.
        head_share: largest share of the second round for the counts of the largest items.
        head_noise: largest standard error of these counts, relative to the count, per relative error.
        head_power: the variance of their noise grows with an item's size to this power.
        head_most: largest number of these items; for a top k, 2 k.
        rest_evidence: standard errors above 0 that a bin of the histogram of the rest must be for any to be used.
        alone_noise: the largest items are counted alone if the least of them then has at most this standard error,
            relative to the count, per relative error.
        alone_lost: and if no more other items are lost than this share of them.
        alone_clipping: weight of the loss by clipping beside noise, where they are.
        clipped_gain: for a top k, clipped sums are taken there only if they divide the mean square error by more than
            this, because on a long tail noise may hide users with many items.
        leading: for a top k, standard errors of the first round that an item may be below item k to be counted as well.
        top_share: `head_share` for a top k.
    """

    first_share: float = 0.2
    histogram_share: float = 0.008
    rest_share: float = 0.004
    mass_kept: float = 0.5
    clipping: float = 0.5
    noise: float = 0.48
    most_noise: float = 0.58
    known: float = 0.7
    precise: float = 0.85
    power: float = 0.75
    least_evidence: float = 1.5
    uneven_first: float = 0.25
    uneven_second: float = 0.7
    evidence: float = 4.0
    unseen: float = 2.0
    lost: Fraction = Fraction(1, 1000)
    head_share: float = 0.04
    head_noise: float = 0.15
    head_power: float = 0.5
    head_most: int = 1000
    rest_evidence: float = 4.5
    alone_noise: float = 0.58
    alone_lost: float = 0.03
    alone_clipping: float = 2.0
    clipped_gain: float = 3.0
    leading: float = 1.5
    top_share: float = 0.5


TUNING = Tuning()

GRADED = 0.2
"""People look at the largest counts first: of the items that are counted without clipping beside others, the variances
of this share, the largest, grow with the rank as well."""

MOST_GRADED = 20
"""The most items whose variances do, so that the others have hardly more noise for it."""

UNCLIPPED = 2**53
"""A bound on the cost of a user that no user reaches whose items cost 1."""

MANY_ITEMS = 225
"""Expectations are for users with at most about this number of items; noise grows with its root."""

THINNING = 1.3
"""The number of users is assumed to fall by at least this factor per bin of larger sizes."""

USERS_PER_HISTOGRAM = 75
"""The least ratio of users to the noise of a bin of the histogram at which two rounds may be chosen by it."""

USERS_PER_SECOND_HISTOGRAM = 100
"""The ratio of users to the noise of a bin of a second histogram, which is used where the first one has less."""

SECOND_SHARE = Fraction(1, 8)
"""The largest share of an epsilon for a second histogram."""

SECOND_EVIDENCE = 3.0
"""Standard errors above 0 that a bin of the second histogram must be to be used."""

APART = 5.0
"""Standard errors above what so falls from which on a bin counts as it was measured."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The largest cost of a user in the histograms and in the two rounds, in units of 1 / `COST_UNIT`.

    Args:
        histogram: in each of the histograms of sizes, scales and clipping.
        rest: in the histogram of the rest.
        first: in the first round.
        second: in the second round, with the counts of the largest items.
    """

    histogram: int
    rest: int
    first: int
    second: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """The result of the first histogram, of users by their number of items.

    Args:
        by_size: users per bin, made plausible by `believable`, shape (SCALES,).
        continued: the same, with a tail that the noise may hide (`continued`).
        scale: scale of the noise in the first round.
        kept: share of the first round's mass that clipping keeps.
        typical: number of items of a user whose sums fit *scale* exactly.
        users_per_noise: number of users over *scale*.
        continued_per_noise: the same with a tail that holds no more users than were measured there.
        stray: the most users that one bin or two adjacent ones beyond the last bin of *by_size* have, in standard
            errors.
        likely: *by_size* with the tail of *continued* in the size that fits what was measured best, at most whole.
    """

    by_size: Floats
    continued: Floats
    scale: float
    kept: float
    typical: float
    users_per_noise: float
    continued_per_noise: float
    stray: float
    likely: Floats

    @property
    def users(self) -> float:
        """The noisy number of users."""
        return float(self.by_size.sum())


@dataclass(frozen=True, slots=True)
class FirstRound:
    """The items whose first values are large enough for a second one.

    Args:
        items: their numbers, ascending, shape (m,).
        values: their noisy counts, shape (m,).
        std: standard error of each value.
        verified: True for items that almost certainly more than one user has, shape (m,).
    """

    items: Ints
    values: Floats
    std: float
    verified: NDArray[np.bool_]

    def above(self, least: float) -> tuple[Ints, Floats]:
        """Return the items whose value is at least *least*, and their values."""
        is_large = self.values >= least
        return self.items[is_large], self.values[is_large]

    def without(self, dropped: NDArray[np.bool_]) -> FirstRound:
        """Return the items that are not *dropped*."""
        stays = ~dropped
        return FirstRound(self.items[stays], self.values[stays], self.std, self.verified[stays])

    def largest(self) -> tuple[Ints, Floats]:
        """Return the places of the verified items by their values, descending, and these values."""
        places = np.flatnonzero(self.verified)
        places = places[np.argsort(-self.values[places], kind="stable")]
        return places, self.values[places]


@dataclass(frozen=True, slots=True)
class Counted:
    """Items with estimates of their counts.

    Args:
        items: their numbers, shape (m,).
        estimates: noisy counts, shape (m,).
        std: standard error of each, shape (m,).
        lost: the share that clipping may have removed from a count beyond the mean loss.
    """

    items: Ints
    estimates: Floats
    std: Floats
    lost: float = 0.0

    def where(self, chosen: NDArray[np.bool_]) -> Counted:
        """Return the items that are *chosen*."""
        return Counted(self.items[chosen], self.estimates[chosen], self.std[chosen], self.lost)


@dataclass(frozen=True, slots=True)
class ClippedAt:
    """A bound on a user's cost, relative to the most expensive item, and the estimated loss by it.

    Args:
        limit: the bound; users above it are clipped.
        mean: mean of the share that clipping removes from users.
        spread: root mean square of that share.
        beyond: what users whom noise hides would add to the mean.
    """

    limit: float
    mean: float = 0.0
    spread: float = 0.0
    beyond: float = 0.0


@dataclass(frozen=True, slots=True)
class TwoRound(WithoutSteps):
    """Two rounds of weighted sums: the first finds the large items, the second counts them with noise to match.

    It bounds not the number of a user's items but their total cost, where an item costs one over the variance of its
    noise; users above the bound are clipped by scaling all their items alike. Noisy histograms of users determine the
    scales of the noise and the loss by clipping. The largest items that the first round verifies are counted without
    clipping, where that costs few other counts; they alone are counted where hardly anything else could be. Which steps
    run depends on noisy values only.

    Args:
        mu: the whole release is mu-GDP but for the mass *lost*; a fraction, so that equal plans are equal.
        lost: largest probability that an item that only one user has is released.
        relative_error: target relative error of a count, above 0 and below 1.
        counts: False to return labels only.
        k: number of items, or None for as many accurate counts as possible.
        epsilon: epsilon of the exact (epsilon, delta) theorem, if it determined mu.
        delta: delta of that theorem; 0 without it.
        tuning: public constants.
    """

    mu: Fraction
    lost: Fraction
    relative_error: Fraction
    counts: bool = True
    k: int | None = None
    epsilon: Fraction | None = None
    delta: Fraction = Fraction(0)
    tuning: Tuning = TUNING

    name: ClassVar[str] = "two-round"
    lossless: ClassVar[bool] = False

    @classmethod
    def within_cost(cls, limit: Cost, request: Request) -> Self:
        """Return the instance that may spend *limit*: mu^2 / 2 of rho, and a thousandth of delta."""
        _check(request)
        mu = floor_bits(Fraction(math.sqrt(2 * limit.rho) * (1 - 1e-12)))
        return cls(mu, limit.delta * TUNING.lost, request.relative_error, request.counts, request.k)

    @classmethod
    def at_epsilon(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:
        """Return the instance that is (epsilon, delta)-DP by the exact Gaussian curve; None for other noise."""
        if request.noise != "gaussian":
            return None
        _check(request)
        lost = delta * TUNING.lost
        mu = floor_bits(Fraction(mu_gaussian(float(epsilon), float_below((delta - lost) / (1 - lost)))))
        return cls(mu, lost, request.relative_error, request.counts, request.k, epsilon, delta)

    @property
    def head_limit(self) -> int:
        """Return 0: no head is needed."""
        return 0

    def worst_cost(self) -> Cost:
        """Return the cost of every release."""
        return Cost(self.mu**2 / 2, max(self.lost, self.delta))

    def direct_epsilon(self) -> Fraction | None:
        """Return epsilon of the exact theorem, if it determined mu."""
        return self.epsilon

    def expectation(self) -> Expectation:
        """Return lower bounds of the error and of a released count; the actual values depend on the data."""
        budget = self.budget
        least = math.sqrt(COST_UNIT / (budget.first + budget.second))
        smallest = least / (self.tuning.precise * float(self.relative_error))
        if self.k is not None:
            smallest = 1 + self._evidence() * math.sqrt(COST_UNIT / budget.second)
        error = least if self.counts else None
        relative = self.tuning.precise * float(self.relative_error)
        if self.k is not None:  # verified items are returned whatever their error is
            relative = max(relative, 1 / self._evidence())
        most = math.ceil(smallest * math.sqrt(MANY_ITEMS))
        likely = Likely(self.name, error, None, relative if self.counts else None, math.ceil(smallest), most)
        return Expectation(error, None, math.ceil(smallest), likely=(likely,))

    @property
    def budget(self) -> StepCosts:
        """Return the largest cost of a user in each step."""
        total = math.floor(self.mu**2 * COST_UNIT)
        if total < LEAST_BUDGET:
            raise InputError("epsilon is too small for a two-round release; choose a larger one, or the head mechanism")
        histogram, rest = (int(total * share) for share in (self.tuning.histogram_share, self.tuning.rest_share))
        rounds = total - 3 * histogram - rest
        first = int(rounds * self.tuning.first_share)
        return StepCosts(histogram, rest, first, rounds - first)

    def release(self, pairs: UserItemPairs, bits: Bits) -> Outcome:
        """Release; the outcome's positions are item numbers."""
        return self.release_after(self.measure_sizes(pairs, bits), pairs, bits)

    def measure_sizes(self, pairs: UserItemPairs, bits: Bits) -> Sizes:
        """Count users by their number of items, with noise, and choose the scale of the first round's noise."""
        noisy = self._noisy_users(pairs.users_by_size(2 ** np.arange(SCALES)), bits, "sizes")
        by_size = self._believable(noisy)
        tail = self._continued(noisy)
        probable = continued(noisy, self.histogram_error, self.tuning.evidence, 0.0)
        least = math.sqrt(COST_UNIT / self.budget.first)
        scale, kept_share = self._first_scale(by_size)
        beyond, _ = self._first_scale(probable)
        users = float(by_size.sum())
        users_beyond = float(probable.sum())
        visible = np.flatnonzero(by_size > 0)
        unseen = noisy[visible[-1] + 1 if len(visible) else 0 :] / self.histogram_error
        stray = max(unseen.max(initial=0.0), ((unseen[1:] + unseen[:-1]) / math.sqrt(2)).max(initial=0.0))
        return Sizes(
            by_size,
            tail,
            least * scale,
            kept_share,
            scale**2,
            users / (least * scale),
            users_beyond / (least * beyond),
            float(stray),
            with_likely_tail(noisy, self.histogram_error, self.tuning.evidence),
        )

    @property
    def histogram_error(self) -> float:
        """The standard error of a bin of the histograms."""
        return math.sqrt(COST_UNIT / self.budget.histogram)

    def _first_scale(self, users: Floats) -> tuple[float, float]:
        """Return the scale of the first round's noise, relative to the least, and the share that clipping keeps."""
        mass = users * _centres(SCALES) ** 2
        if mass.sum() <= 0:
            return 1.0, 1.0
        share = (mass * np.minimum(1, GRID[:, None] / _centres(SCALES))).sum(axis=1) / mass.sum()
        chosen = int(np.searchsorted(share, self.tuning.mass_kept))  # the largest scale keeps all
        return float(GRID[chosen]), float(share[chosen])

    def release_after(self, sizes: Sizes, pairs: UserItemPairs, bits: Bits) -> Outcome:
        """Release after `measure_sizes`, whose cost is included in the outcome's cost."""
        tuning = self.tuning
        first = self._first_round(sizes, pairs, bits)
        power = self._power(sizes)
        places, values = first.largest()
        noise = Anchored.of(values**tuning.head_power)
        if self.k is not None and (leading := self._leading(values, sizes)):
            why = f"the {leading:,} items that may be among the {self.k:,} largest have the whole second round"
            return self._count_alone(first.items[places[:leading]], values[:leading], noise, power, why, pairs, bits)
        scale, spread = self._scale(first, power, pairs, bits)
        cut = self._cut(scale, first.std)
        alone = self._alone(values, noise, _usual_items(sizes.by_size))
        rest = int((values[alone:] >= cut).sum()) + self._rest(first, cut, pairs, bits)
        if alone and rest <= tuning.alone_lost * alone:
            have = "item has" if alone == 1 else f"{alone:,} items have"
            why = f"{have} the whole second round, as hardly any other is lost by it"
            return self._count_alone(first.items[places[:alone]], values[:alone], noise, power, why, pairs, bits)
        # The variance of a second count: its noise, as in `_scale`, and what clipping takes unevenly from items.
        second = (scale * (values / cut) ** power) ** 2 + (tuning.uneven_second * spread * values) ** 2
        costs = self._head_costs(values, noise, second, alone + rest)
        head = Counted(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
        spent = 0
        if costs is not None:
            head = self._count_anchored(first.items[places[: len(costs[0])]], *costs, pairs, bits)
            spent = int(costs[0].sum()) + costs[1]
        tail = first.without(np.isin(first.items, head.items))
        others = self._second_round(tail, scale, power, self.budget.second - spent, pairs, bits)
        m = len(head.items)
        largest = "largest is" if m == 1 else f"{m:,} largest are"
        counted = f"the {largest} counted without clipping" if m else None
        return self._outcome(head.where(self._precise(head)), others, why=counted)

    def _first_round(self, sizes: Sizes, pairs: UserItemPairs, bits: Bits) -> FirstRound:
        """Estimate every item roughly, and keep those that may be measured again."""
        precision = min(math.ceil(COST_UNIT / sizes.scale**2), self.budget.first)
        limit = math.sqrt(self.budget.first / precision) * (1 - 1e-15)
        std = math.sqrt(COST_UNIT / precision) / sizes.kept
        # The scale of the second round is not known yet: this is its cut at the least scale, the lowest one.
        least = self._least(self._cut(math.sqrt(COST_UNIT / self.budget.second), std), std)
        items = []
        values = []
        verified = []
        number = 0
        # A weight is at most 2^20 - 1, so a single user's items pass only if their noise exceeds the evidence.
        threshold = WEIGHT_UNIT + math.ceil(WEIGHT_UNIT * self._evidence() * math.sqrt(COST_UNIT / precision))
        sums = pairs.weighted_sums(limit)
        for noisy in add_noise_in_batches(sums, pairs.count_items(), WEIGHT_UNIT, precision, bits, "first"):
            rough = noisy / (WEIGHT_UNIT * sizes.kept)
            large = np.flatnonzero(rough >= least)
            items.append(number + large)
            values.append(rough[large])
            verified.append(noisy[large] >= threshold)
            number += len(rough)
        return FirstRound(
            np.concatenate([np.zeros(0, np.int64), *items]),
            np.concatenate([np.zeros(0), *values]),
            std,
            np.concatenate([np.zeros(0, np.bool_), *verified]),
        )

    def _scale(self, first: FirstRound, power: float, pairs: UserItemPairs, bits: Bits) -> tuple[float, float]:
        """Return the scale of an item's noise at the second round's cut, and the root mean square loss by clipping.

        At scale s the cut is t = s / noise, and an item of size e >= t has noise s (e/t)^power. An item's cost at scale
        s, s^-2(1-power) (e noise)^-2power, is split: the item's factor is its cost, the other is part of the bound.
        """
        least = math.sqrt(COST_UNIT / self.budget.second)
        items, values = first.above(self._least(least / self._noise(), first.std))
        size = values * self._noise() / least
        last = np.minimum(np.floor(2 * np.log2(size)), SCALES - 1).astype(np.int64)
        costs = np.ceil(COST_UNIT * size ** (-2 * power)).astype(np.int64)
        bounds = np.floor(COST_UNIT * 2.0 ** (np.arange(SCALES) * (1 - power))).astype(np.int64)
        users = self._believable(self._noisy_users(pairs.users_by_scale(items, last, costs, bounds), bits, "scales"))
        relative, spread = self._second_scale(users)
        return least * relative, spread

    def _second_scale(self, users: Floats) -> tuple[float, float]:
        """Return the second round's scale, relative to the least, and the root mean square loss by clipping.

        Args:
            users: numbers of users by the scale at which they fit, shape (SCALES,).
        """
        fits = _centres(SCALES)
        mass = users * fits**2
        if mass.sum() <= 0:
            return 1.0, 0.0
        lost = (mass * np.maximum(0, 1 - GRID[:, None] / fits) ** 2).sum(axis=1) / mass.sum()
        chosen = int((lost > self._clipping() ** 2).sum())  # at the largest scale nothing is lost
        return float(GRID[chosen]), math.sqrt(lost[chosen])

    def users_per_second_noise(self, sizes: Sizes) -> float:
        """Return the users over the second round's noise, if it had one scale and all items of users were measured."""
        relative, _ = self._second_scale(sizes.by_size)
        return sizes.users / (math.sqrt(COST_UNIT / self.budget.second) * relative)

    def _leading(self, values: Floats, sizes: Sizes) -> int:
        """Return how many of the largest items may be among the k largest; 0 if others may be that are not verified.

        Args:
            values: rough counts of the verified items, descending, shape (n,).
            sizes: the histogram of sizes.
        """
        if self.k is None or len(values) < self.k:
            return 0
        last = float(values[self.k - 1])
        if not self.leads(sizes, last):
            return 0
        # Clipping in the first round takes more from some items than from others.
        least = last - math.hypot(self.tuning.leading * sizes.scale / sizes.kept, self.tuning.uneven_first * last)
        return min(int((values >= least).sum()), 2 * self.k)

    def leads(self, sizes: Sizes, last: float) -> bool:
        """Return whether items far below the k-th are verified by the first round, if that has about *last* users."""
        std = sizes.scale / sizes.kept
        verified = 1 / sizes.kept + self._evidence() * std
        return self.k is not None and last - self.tuning.leading * std >= verified

    @property
    def leading_error(self) -> float:
        """The standard error of anchored counts of the k largest items and half as many that may be among them."""
        return (math.sqrt(1.5 * (self.k or 1)) + 1) / 2 * math.sqrt(COST_UNIT / self.budget.second)

    def _alone(self, values: Floats, noise: Anchored, usual: int) -> int:
        """Return how many of the largest items would be precise if only they were counted.

        Args:
            values: rough counts, descending, shape (n,).
            noise: of anchored counts of these items.
            usual: largest usual number of items of a user.
        """
        budget = self.budget.second / COST_UNIT
        before = np.concatenate([np.zeros(min(usual, len(values))), noise.sums[: max(len(values) - usual, 0)]])
        # A user of that many items has the most expensive ones at worst, which are the smallest.
        plain = (noise.sums - before) * noise.weights / budget
        std = np.sqrt(np.minimum(noise.last_variances(budget), plain))
        precise = np.flatnonzero(std <= self.tuning.alone_noise * float(self.relative_error) * values)
        return int(precise[-1]) + 1 if len(precise) else 0

    def _rest(self, first: FirstRound, cut: float, pairs: UserItemPairs, bits: Bits) -> float:
        """Estimate how many items above the cut have about that many users but are not verified.

        The number of candidates may depend on a single user's items, so it is not used. Over a user's candidates, the
        sum of cut / value is in one bin of a histogram; over all users, these sums add up to the cut for each item that
        has the users its value promises, and to nearly 0 for one that noise made a candidate.
        """
        items, values = first.without(first.verified).above(self._least(cut, first.std))
        unit = 2**20
        costs = np.maximum(np.ceil(unit * cut / values), 1).astype(np.int64)
        sums = 2.0 ** (np.arange(CLIPPING_BINS) / 2 - 4)
        bounds = np.floor(unit * sums).astype(np.int64)
        users = pairs.users_by_scale(items, np.full(len(items), CLIPPING_BINS - 1), costs, bounds)
        precision = self.budget.rest
        noisy = add_noise(users, 1, np.full(len(users), precision), bits, "rest").astype(np.float64)
        std = math.sqrt(COST_UNIT / precision)
        if noisy.max() < self.tuning.rest_evidence * std:
            return 0.0
        return float(believable(noisy, std, self.tuning.evidence) @ (sums * 2**-0.25)) / cut

    def _head_costs(self, values: Floats, noise: Anchored, second: Floats, others: float) -> tuple[Ints, int] | None:
        """Return the costs of counts of the largest items without clipping, as many as are worth them.

        Args:
            values: rough counts, descending, shape (n,).
            noise: of anchored counts of these items.
            second: variances that the second round would give them, shape (n,).
            others: number of counts that the whole second round would release.

        Returns:
            the costs of m values and of the number of users; None if no m is worth it.
        """
        tuning = self.tuning
        allowed = np.minimum((tuning.head_noise * float(self.relative_error) * values) ** 2, second)
        most = tuning.head_most if self.k is None else 2 * self.k
        largest = tuning.head_share
        if self.k is not None:  # no more than k counts can be lost
            others = min(others, self.k)
            largest = tuning.top_share
        for m in range(min(len(values), most), 0, -1):
            share = noise.cost_of(m, allowed) * COST_UNIT / self.budget.second
            # The others number as many as the budget is large, roughly: a precise count costs about one of them.
            if share <= largest and share * others <= m:
                rank = np.arange(1, m + 1)
                first = min(max(1, GRADED * m), MOST_GRADED)
                graded = Anchored.of(noise.weights[:m] * np.minimum(1, rank / first))
                costs = graded.costs(m, math.floor(share * self.budget.second))
                if costs is not None:
                    return costs
        return None

    def _count_anchored(self, items: Ints, costs: Ints, common: int, pairs: UserItemPairs, bits: Bits) -> Counted:
        """Count the users of *items* without clipping, at costs that add up to what one user may cost.

        Args:
            items: their numbers, in any order, shape (m,).
            costs: of twice the count less the number of users, for each item, shape (m,).
            common: of the number of users.
            pairs: the pairs, all of whose users are counted once: a count of other users would move by 2.
        """
        order = np.argsort(items)
        items = items[order]
        costs = costs[order]
        users = int(pairs.users_by_size(np.array([MAX_BASKET]))[0])
        counts = pairs.clipped_sums(items, np.ones_like(items), UNCLIPPED) // (WEIGHT_UNIT - 1)
        apart = add_noise((2 * counts - users) * WEIGHT_UNIT, WEIGHT_UNIT, costs, bits, "large")
        shared = add_noise(np.array([users * WEIGHT_UNIT]), WEIGHT_UNIT, np.array([common]), bits, "users")
        return Counted(items, (apart + shared) / (2 * WEIGHT_UNIT), np.sqrt(COST_UNIT / costs + COST_UNIT / common) / 2)

    def _count_alone(
        self, items: Ints, values: Floats, noise: Anchored, power: float, why: str, pairs: UserItemPairs, bits: Bits
    ) -> Outcome:
        """Spend the second round on the largest items, by anchored counts or clipped sums, whichever are more precise.

        Args:
            items: numbers of verified items, by size, shape (m,).
            values: their rough counts, descending, shape (m,).
            noise: of anchored counts of these items.
            power: the variance of clipped sums grows with an item's size to this power at most.
            why: why they are counted alone.
            pairs: the pairs.
        """
        m = len(items)
        budget = self.budget.second
        weights = values ** min(self.tuning.head_power, power)
        order = np.argsort(items)
        best, bound = self._least_clipping(items[order], values[order], weights[order], pairs, bits)
        costs = noise.costs(m, budget)
        gain = 1.0 if self.k is None else self.tuning.clipped_gain
        if costs is not None and np.mean(noise.variances(m, budget / COST_UNIT) / values**2) <= gain * best:
            counted = self._count_anchored(items, *costs, pairs, bits)
        else:
            counted = self._count_clipped(items[order], weights[order], bound, pairs, bits)
        chosen = self._precise(counted) if self.k is None else counted.estimates > 0
        return self._outcome(counted.where(chosen), why=why)

    def _least_clipping(
        self, items: Ints, values: Floats, weights: Floats, pairs: UserItemPairs, bits: Bits
    ) -> tuple[float, ClippedAt]:
        """Choose the bound on a user's cost in clipped sums, where an item costs one over its weight.

        Returns:
            the mean square relative error of the sums, and the bound.
        """
        # Costs are whole numbers, in units of 2^-20 of the most expensive item's; so are the bounds.
        costs = np.ceil(2**20 * weights.min() / weights).astype(np.int64)
        total = int(costs.sum())
        bounds = np.minimum(np.floor(2**20 * 2.0 ** (np.arange(CLIPPING_BINS) / 2)), total).astype(np.int64)
        bounds[-1] = total
        users = pairs.users_by_scale(items, np.full(len(items), CLIPPING_BINS - 1), costs, bounds)
        noisy = self._noisy_users(users, bits, "clipping")
        size = np.minimum(_centres(CLIPPING_BINS), bounds / 2**20)
        mass = self._believable(noisy) * size
        heavy = self._continued(noisy) * size
        error = float(np.mean(weights / weights.min() / values**2)) * COST_UNIT / self.budget.second
        best = math.inf
        chosen = ClippedAt(total / 2**20)
        for allowed in sorted(set(bounds.tolist())):
            at = ClippedAt(allowed / 2**20)
            if mass.sum() > 0:
                lost = np.where(bounds <= allowed, 0, 1 - np.sqrt(np.minimum(1, at.limit / size)))
                mean = float(lost @ mass / mass.sum())
                spread = math.sqrt(float(lost**2 @ mass / mass.sum()))
                at = ClippedAt(at.limit, mean, spread, max(float(lost @ heavy / heavy.sum()) - mean, 0.0))
            elif allowed < total:
                continue
            # A bound b admits noise of variance b * error; sums are divided by the share 1 - mean that clipping keeps.
            loss = self.tuning.alone_clipping * math.hypot(at.spread, at.beyond)
            if (square := at.limit * error / (1 - at.mean) ** 2 + loss**2) < best:
                best = square
                chosen = at
        return best, chosen

    def _count_clipped(self, items: Ints, weights: Floats, at: ClippedAt, pairs: UserItemPairs, bits: Bits) -> Counted:
        """Count *items*, ascending, with the whole second round, users clipped at a cost."""
        budget = self.budget.second
        precisions = np.floor(budget * weights.min() / (at.limit * weights)).astype(np.int64)
        precisions = np.clip(precisions, 1, min(budget, MAX_ITEM_COST))
        sums = pairs.clipped_sums(items, precisions, budget)
        noisy = add_noise(sums, WEIGHT_UNIT, precisions, bits, "second")
        estimates = noisy / (WEIGHT_UNIT * (1 - at.mean))
        uneven = self.tuning.uneven_second * at.spread
        std = np.hypot(np.sqrt(COST_UNIT / precisions) / (1 - at.mean), uneven * estimates)
        return Counted(items, estimates, std, math.hypot(uneven, at.beyond))

    def _second_round(
        self, first: FirstRound, scale: float, power: float, budget: int, pairs: UserItemPairs, bits: Bits
    ) -> Counted:
        """Measure the items above the cut, at a cost of *budget*, and return those that are large enough."""
        tuning = self.tuning
        cut = self._cut(scale, first.std)
        items, rough = first.above(self._least(cut, first.std))
        sigma = scale * (rough / cut) ** power
        wider, lost, spread, hidden = self._clipped(items, self._precisions(sigma, budget), budget, pairs, bits)
        precisions = self._precisions(sigma * wider, budget)
        sums = pairs.clipped_sums(items, precisions, budget)
        noisy = add_noise(sums, WEIGHT_UNIT, precisions, bits, "second")
        sigma = np.sqrt(COST_UNIT / precisions)

        second = noisy / (WEIGHT_UNIT * (1 - lost))
        first_variance = first.std**2 + (tuning.uneven_first * rough) ** 2
        second_variance = (sigma / (1 - lost)) ** 2 + (tuning.uneven_second * spread * second) ** 2
        std = 1 / np.sqrt(1 / first_variance + 1 / second_variance)
        mean = std**2 * (rough / first_variance + second / second_variance)
        # Small items outnumber large ones, so an uncertain estimate is more likely too high than too low.
        estimates = mean - std**2 / np.maximum(mean, 1e-9)

        threshold = WEIGHT_UNIT + np.ceil(WEIGHT_UNIT * self._evidence() * sigma).astype(np.int64)
        counted = Counted(items, estimates, std, hidden)
        verified = noisy >= threshold
        return counted.where(verified & self._precise(counted) if self.k is None else verified)

    def _precise(self, counted: Counted) -> NDArray[np.bool_]:
        """Return True for counts whose standard error is small enough for a release."""
        return counted.std <= self.tuning.precise * float(self.relative_error) * counted.estimates

    def _clipped(
        self, items: Ints, costs: Ints, budget: int, pairs: UserItemPairs, bits: Bits
    ) -> tuple[float, float, float, float]:
        """Return the factor that widens the second round's noise, and the loss by clipping.

        The loss is the mean and the root mean square of the share that clipping removes, and the share that it may have
        removed from a count beyond the mean: more from some items than from others, and from users whom noise hides.
        The histogram of scales shows where users fit, but not how fast their cost grows at smaller scales, so this
        one counts users by their cost at the chosen scale.
        """
        bounds = np.array([max(1, budget * 2**b >> 16) for b in range(CLIPPING_BINS)])
        users = pairs.users_by_scale(items, np.full(len(items), CLIPPING_BINS - 1), costs, bounds)
        std = self.histogram_error
        unseen = self.tuning.unseen * std
        noisy = self._noisy_users(users, bits, "clipping")
        sure = believable(noisy, std, self.tuning.evidence, SURE)
        wider, mean, spread, most_spread, beyond = _clipping_loss(
            sure, self._believable(noisy), self._continued(noisy), unseen, self._clipping()
        )
        return wider, mean, spread, math.hypot(self.tuning.uneven_second * most_spread, beyond)

    def _outcome(self, *parts: Counted, why: str | None = None) -> Outcome:
        """Return the outcome with all *parts*, or the k largest counts of them; *why* says how they were counted."""
        items = np.concatenate([part.items for part in parts])
        counts = np.rint(np.concatenate([part.estimates for part in parts])).astype(np.int64)
        std = np.concatenate([part.std for part in parts])
        lost = np.repeat([part.lost for part in parts], [len(part.items) for part in parts])
        order = np.argsort(-counts, kind="stable")[: self.k]
        items = items[order]
        counts = counts[order]
        std = std[order]
        lost = lost[order]
        cost = Cost(self.mu**2 / 2, self.lost)
        complete = len(items) == self.k
        if not self.counts:
            return Outcome(items, ordered=True, complete=complete, cost=cost, why=why)
        low = np.maximum(np.floor(counts - INTERVAL * std), 0).astype(np.int64)
        high = np.ceil(counts + INTERVAL * np.hypot(std, lost * counts)).astype(np.int64)
        return Outcome(items, counts, std, low, high, ordered=True, complete=complete, cost=cost, why=why)

    def _noisy_users(self, users: Ints, bits: Bits, label: str) -> Floats:
        """Return the histogram with noise in every bin."""
        return add_noise(users, 1, np.full(len(users), self.budget.histogram), bits, label).astype(np.float64)

    def _believable(self, noisy: Floats) -> Floats:
        return believable(noisy, self.histogram_error, self.tuning.evidence)

    def _continued(self, noisy: Floats) -> Floats:
        return continued(noisy, self.histogram_error, self.tuning.evidence, 1.0)

    def _precisions(self, sigma: Floats, budget: int) -> Ints:
        """Return the costs of items with noise of standard deviation *sigma*, at most *budget*, a user's largest cost.

        If rounding put a cost above that limit, users of one item would seem to be clipped.
        """
        return np.minimum(np.ceil(COST_UNIT / sigma**2), min(budget, MAX_ITEM_COST)).astype(np.int64)

    def _cut(self, scale: float, first_std: float) -> float:
        """Return the size of the smallest items of the second round at *scale*; it rises with the scale."""
        # If the first round is precise, few small items pass by chance, so the cut may be lower.
        highest = scale / self._noise()
        lowest = self.tuning.known / float(self.relative_error) * first_std
        return min(highest, max(highest * self.tuning.noise / self.tuning.most_noise, lowest))

    def _least(self, cut: float, first_std: float) -> float:
        """Return the least first value of an item that is measured again."""
        return max(cut, self.tuning.least_evidence * first_std)

    def _noise(self) -> float:
        """Return the relative standard error of an item at the cut."""
        return self.tuning.noise * float(self.relative_error)

    def _clipping(self) -> float:
        """Return the largest root mean square of the share that clipping may remove."""
        return self.tuning.clipping * float(self.relative_error)

    def _power(self, sizes: Sizes) -> float:
        """Return p such that an item's noise grows with its size to the power p; 0 where users have one item."""
        return self.tuning.power * min(1.0, math.log2(sizes.typical))

    def _evidence(self) -> float:
        """Return how many standard errors above one user's largest weight a value must be to verify its item.

        Half of the lost mass is for each round.
        """
        return normal_quantile(float_below(self.lost / (2 * MAX_BASKET)))


def add_noise(values: Ints, unit: int, precisions: Ints, bits: Bits, label: str) -> Ints:
    """Add rounded Gaussian noise of variance `COST_UNIT` / precision to values in units of 1 / *unit*."""
    return values + rounded_gaussian(bits, label, COST_UNIT * unit**2, precisions)


def add_noise_in_batches(
    batches: Iterable[Ints], n: int, unit: int, precision: int, bits: Bits, label: str
) -> Iterator[Ints]:
    """Add noise as `add_noise` does to *n* values of one precision that come in batches; the noise is the same."""
    noise = RoundedGaussians(bits, label, COST_UNIT * unit**2, n)
    for values in batches:
        yield values + noise.draw(np.full(len(values), precision))


def believable(noisy: Floats, std: float, evidence: float, sure: float = 0.0) -> Floats:
    """Return a noisy histogram made plausible: not negative, and falling beyond its bulk.

    From the last bin that holds a third of the largest one, bins are replaced by the best fit that falls by a factor of
    at least `THINNING` per bin, and by 0 where the fit is below *evidence* standard errors: noise in a far bin would
    otherwise pass for users with very many items. But a bin that is `APART` standard errors above this fit counts as it
    was measured: few users may have more items than most and fewer than some. All bins are 0 if none is significant.

    Args:
        noisy: users per bin, shape (n,).
        std: standard error of each bin.
        evidence: standard errors that the fit of a bin must exceed.
        sure: standard errors from which on a fit beyond the bulk counts in full; it grows from 0 at *evidence*.
    """
    if noisy.max() < 3 * std:
        return np.zeros(len(noisy))
    bulk = int(np.flatnonzero(noisy >= noisy.max() / 3)[-1])
    factor: Floats = THINNING ** np.arange(len(noisy) - bulk, dtype=np.float64)
    pools = falling_pools(noisy[bulk:] * factor, factor**-2.0)
    fit = np.array([mean if mean * math.sqrt(weight) > evidence * std else 0.0 for mean, weight, _ in pools])
    if sure > evidence:
        errors = fit * np.sqrt([weight for _, weight, _ in pools]) / std
        fit[1:] *= np.clip((errors[1:] - evidence) / (sure - evidence), 0, 1)
    result: Floats = np.maximum(noisy, 0)
    result[bulk:] = np.repeat(fit, [size for _, _, size in pools]) / factor
    return np.where(noisy - result >= APART * std, noisy, result)


def are_few(by_size: Floats, std: float, least: float = USERS_PER_HISTOGRAM, share: float = 0.5) -> bool:
    """Return whether noise may hide users who have most of the pairs: of few users, most of whom have one or two items.

    Args:
        by_size: users with 1, 2, 3 to 4, ... items, shape (n,).
        std: standard error of each bin.
        least: the least ratio of users to *std* that is not few.
        share: the largest share of users with one or two items that is not most.
    """
    users = float(by_size.sum())
    return users < least * std and float(by_size[:2].sum()) > share * users


def most_second(epsilon: Fraction) -> Fraction:
    """Return the largest epsilon of a second histogram, which is taken from *epsilon*, that of what follows it.

    Up to 1, its cost and that of Laplace sums with the rest of epsilon are at most that of the sums alone.
    """
    return min(epsilon * SECOND_SHARE, Fraction(1))


def second_epsilon(epsilon: Fraction, users: float) -> Fraction:
    """Return what a second histogram takes of *epsilon* for bins with noise of a hundredth of *users*, or more."""
    return min(most_second(epsilon), Fraction(USERS_PER_SECOND_HISTOGRAM * math.sqrt(2) / max(users, 1.0)))


def continued(noisy: Floats, std: float, evidence: float, beyond: float) -> Floats:
    """Return the histogram made plausible, with a tail beyond its last visible bin that the noise may hide.

    Where activity follows a power law, the bins of the few users who have most of the pairs are below the noise, and
    `believable` drops them. The tail falls as the visible part does beyond the bulk, holds at most two standard errors
    of users per bin, and all together at most what was measured there and *beyond* standard errors; its first bin holds
    at least what was measured.

    Args:
        noisy: users per bin, shape (n,).
        std: standard error of each bin.
        evidence: as for `believable`.
        beyond: 1 for an interval, which must hold if there are more; 0 for a choice, which should be right on average.
    """
    result = believable(noisy, std, evidence)
    visible = np.flatnonzero(result > 0)
    if not len(visible) or visible[-1] == len(noisy) - 1:
        return result
    last = int(visible[-1])
    bulk = min(int(np.flatnonzero(noisy >= noisy.max() / 3)[-1]), last)
    # With one visible bin, the next one is below three standard errors, or it would be visible.
    rate = (result[bulk] / result[last]) ** (1 / (last - bulk)) if last > bulk else result[bulk] / (3 * std)
    unseen = len(noisy) - last - 1
    tail = np.minimum(result[last] / max(rate, THINNING) ** np.arange(1, unseen + 1), 2 * std)
    measured = max(float(noisy[last + 1 :].sum()) + beyond * std * math.sqrt(unseen), 0.0)
    tail *= min(1.0, measured / float(tail.sum()))
    tail[0] = max(tail[0], noisy[last + 1])  # a bin that just fails to be visible
    result[last + 1 :] = np.where(tail < 1, 0, tail)
    return result


def with_likely_tail(noisy: Floats, std: float, evidence: float) -> Floats:
    """Return the histogram with the tail that `continued` adds, in the size that fits the noisy bins best.

    The bins count in proportion to the tail: the sum of all bins beyond it would be mostly noise.
    """
    result = believable(noisy, std, evidence)
    tail = continued(noisy, std, evidence, math.inf) - result
    size = float(noisy @ tail) / max(float(tail @ tail), 1e-9)
    return result + min(max(size, 0.0), 1.0) * tail


def _usual_items(by_size: Floats) -> int:
    """Return a number of items of a user such that users with more have 1 % of the pairs."""
    most = 2.0 ** np.arange(len(by_size))
    mass = by_size * most
    return int(most[np.searchsorted(np.cumsum(mass), 0.99 * mass.sum())]) if mass.sum() > 0 else 1


def _centres(bins: int) -> Floats:
    """Return the central scale of each bin, relative to the least; the first bin holds users at the least scale."""
    centres: Floats = 2.0 ** ((np.arange(bins) - 0.5) / 2)
    centres[0] = 1.0
    return centres


def _clipping_loss(
    sure: Floats, users: Floats, tail: Floats, unseen: float, allowed: float
) -> tuple[float, float, float, float, float]:
    """Return how much to widen the noise so that clipping removes at most *allowed*, and the loss that remains.

    Args:
        sure: numbers of users by size relative to the limit, fewer in bins that noise may have filled, shape
            (CLIPPING_BINS,).
        users: the same, with all users of these bins.
        tail: the same, with a tail that noise may hide (`continued`).
        unseen: number of users that the first bin above the limit may lack.
        allowed: largest root mean square of the share that clipping may remove.

    Returns:
        the factor by which to widen the noise, at most 2; the mean of the share that clipping then removes; the root
        mean square of that share, of *sure*; that of *users* with the unseen ones; and how much larger the mean is with
        the tail.
    """
    size = 2.0 ** ((np.arange(CLIPPING_BINS) - 16.5) / 2)
    mass, sure_mass, heavy = (counted * size**2 for counted in (users, sure, tail))
    if sure_mass.sum() <= 0:
        return 1.0, 0.0, 0.0, 2 * allowed, 0.0
    wider = GRID[GRID <= 2]
    lost = np.maximum(0, 1 - wider[:, None] / size)
    mean = lost @ mass / mass.sum()
    spread = np.sqrt(lost**2 @ sure_mass / sure_mass.sum())
    chosen = min(int((spread > allowed).sum()), len(wider) - 1)
    square = float(lost[chosen] ** 2 @ mass / mass.sum())
    above = size[17]
    most_spread = math.sqrt(square + unseen * (above - 1) ** 2 / mass.sum())
    mean_with_tail = float(lost[chosen] @ heavy / heavy.sum())
    most = min(float(mean[chosen]), 0.7)
    beyond = max(mean_with_tail - float(mean[chosen]), 0.0)
    return float(wider[chosen]), most, float(spread[chosen]), most_spread, beyond


def _check(request: Request) -> None:
    if request.known_domain:
        raise InputError("a two-round release finds the items itself; leave the domain out, or choose laplace")
    if request.sensitivity.rows_per_group != 1 or request.sensitivity.groups_per_user is not None:
        raise InputError("a two-round release counts distinct users and needs no bound; leave the bounds out")
    if request.summed is not None:
        raise InputError("a two-round release counts users; it adds up no column")
    require_gaussian(request, "a two-round release")
