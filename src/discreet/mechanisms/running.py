"""Running counts: users of every item so far, on each of many days, for one price (docs/running-counts.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.gaussian import mu_gaussian, normal_quantile
from discreet.errors import InputError, InvariantViolated
from discreet.head_request import MAX_RUNNING_GROUPS, MAX_RUNNING_PERIODS
from discreet.noise import CorrelatedGaussians
from discreet.noise.correlated import noise_variances, scales, squared_sums
from discreet.values import Cost, float_below


@dataclass(frozen=True, slots=True)
class RunningCounts:
    """The number of users so far of every item that has enough of them, on each of the days 1..T.

    A user counts for the first C items that the user had, in the order of days. On day t, with noise
    Z = `CorrelatedGaussians` of variance sigma^2, an item of h users is listed, with its day, if h >= m and
    h + Z >= m + ceil(z s_t + 1/2), where s_t^2 is the variance of Z before it is rounded, and m = ceil(s_1 / 2). From
    its day on, h + Z is published on every day. sigma^2 >= C / mu^2, and Pr[N(0, 1) > z] <= beta / (C T).

    All that is published costs rho = mu^2 / 2 and loses beta; it satisfies (epsilon, beta + curve of mu at epsilon).

    Args:
        periods: T, the number of days.
        groups_per_user: C.
        variance: sigma^2, a multiple of 1/1024.
        quantile: z, a multiple of 1/1024.
        least: m: items with fewer users are not listed, whatever their noise, so that engines need not return them. The
            theorem holds for every m from 1 on; a smaller one lists more, and takes longer.
        rho: mu^2 / 2.
        mass: beta.
    """

    periods: int
    groups_per_user: int
    variance: Fraction
    quantile: Fraction
    least: int
    rho: Fraction
    mass: Fraction

    name: ClassVar[str] = "running"

    @classmethod
    def within(cls, periods: int, groups_per_user: int, square: Fraction, mass: Fraction) -> Self:
        """Return the stream whose mu^2 is *square* and whose beta is *mass*.

        Raises:
            InputError: *groups_per_user* is out of range.
        """
        if not 1 <= groups_per_user <= MAX_RUNNING_GROUPS:
            raise InputError(
                f"groups_per_user is from 1 to {MAX_RUNNING_GROUPS:,} for running counts, not {groups_per_user:,}"
            )
        variance = _rounded_up(groups_per_user / square)
        quantile = _rounded_up(Fraction(normal_quantile(float_below(mass / (groups_per_user * periods)))))
        least = math.isqrt(math.ceil(variance * Fraction(scales(periods)[0]) ** 2 / 4) - 1) + 1
        return cls(periods, groups_per_user, variance, quantile, least, square / 2, mass)

    def worst_cost(self) -> Cost:
        """Return the cost of the whole stream, which is charged when it begins."""
        return Cost(self.rho, self.mass)

    def std_errors(self, day: int, first: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the standard deviations on *day* of noise that starts on the days *first*, from 1 on."""
        variances = noise_variances(self.periods, day)[np.asarray(first, dtype=np.int64) - 1]
        errors: NDArray[np.float64] = np.sqrt(float(self.variance) * variances + 1 / 12)  # 1/12: rounding
        return errors

    def smallest(self, day: int, _share: float = 1.0) -> int:
        """Return about the users with which an item is listed on *day*."""
        return self.threshold(day)

    def threshold(self, day: int) -> int:
        """Return the least noisy count with which an item is listed on *day*, from 1 on."""
        std = math.sqrt(float(self.variance) * float(noise_variances(self.periods, day)[0])) * (1 + 1e-12)
        return self.least + math.ceil(float(self.quantile) * std * (1 + 1e-12) + 0.5)

    def release(
        self,
        counts: NDArray[np.int64],
        listed: NDArray[np.bool_],
        names: Sequence[bytes],
        day: int,
        noise: CorrelatedGaussians,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the places of the listed items and of those that are listed now, and their counts, the largest first.

        Args:
            counts: the users so far of each item, shape (n,): of every listed one, and all others with at least m.
            listed: True for the items that were listed on earlier days, shape (n,).
            names: injective encodings of the labels of all items.
            day: from 1 to T, after all days that were answered.

        Raises:
            InvariantViolated: the stream has no such day, or its noise is of another stream.
        """
        if not 1 <= day <= self.periods or (noise.variance, noise.periods) != (self.variance, self.periods):
            raise InvariantViolated("the noise of a day belongs to its stream")
        noisy = counts + noise.draw(names, day)
        shown = np.flatnonzero(listed | ((counts >= self.least) & (noisy >= self.threshold(day))))
        # Not by position in the head, which would reveal the order of the true counts where noisy ones are equal.
        order = np.array(sorted(shown.tolist(), key=lambda i: (-noisy[i], names[i])), dtype=np.int64)
        return order, noisy[order]


# The parts of mu^2 for the pilot, the kept share, and the listing of items if others are counted.
_PILOT = Fraction(1, 100)
_PLACES = Fraction(3, 100)
_LISTING = Fraction(2, 5)

_STEPS = 8
"""The number of places of a user whose users are counted for the kept share."""

_DEFAULT_GROUPS = 10
_MOST_LISTED_GROUPS = 30
_FEW = 6
"""Users have few items if nine in ten have at most so many."""

_LEAST_SHARE = 0.25
_SMALLEST_SHARE = 0.02
_PRECISION = 0.085
_SHORTEST_WINDOW = 3
_SIGNIFICANT = 3.0
_SIGNIFICANT_IN_ONE_LEVEL = 1.5
"""Numbers of users by place are taken for 0 below so many standard errors.

In one level the kept share is that of all pairs so far, and not of the few that arrived in the last days.
"""


@lru_cache(1)
def pilot_places() -> tuple[int, ...]:
    """Return 1, 2, 3, ... and then about 10 % apart: the numbers of items of a user that a pilot tells apart."""
    places = [1]
    while places[-1] < MAX_RUNNING_GROUPS:
        places.append(min(max(places[-1] + 1, places[-1] * 11 // 10), MAX_RUNNING_GROUPS))
    return tuple(places)


@dataclass(frozen=True, slots=True)
class CorrectedCounts:
    """Running counts in one or two levels, corrected for the items that the bounds on users cut off.

    In two levels, *listing* lists items without their counts. Of the items that were not listed when a user had them,
    the user counts there for the first ones. Of the listed items the user counts in *counting* for the first ones, in
    the order in which the user had them and they were listed; its noise starts when an item is listed.

    The noisy numbers of users who have an item in the places C + 1, 2 C + 1, 4 C + 1, ... give the share of the pairs
    of listed items that is kept.

    Args:
        listing: lists items, and counts them if there is no second level.
        counting: the second level, which has no threshold.
        places_variance: of the numbers of users by place.
        rho: of all parts together, with the pilot's.
        pilot: the noisy numbers of users by `pilot_places`; empty without a pilot.
    """

    listing: RunningCounts
    counting: RunningCounts | None
    places_variance: Fraction
    rho: Fraction
    pilot: tuple[int, ...] = ()

    name: ClassVar[str] = "running"

    @classmethod
    def within(
        cls, periods: int, square: Fraction, mass: Fraction, *, has_pilot: bool, pilot: Sequence[int] = ()
    ) -> Self:
        """Return the stream whose mu^2 is *square* and whose beta is *mass*, with bounds that the pilot decides.

        Args:
            has_pilot: True if there is a pilot, which is paid even if its numbers are not known yet.
            pilot: the noisy numbers of users by `pilot_places`; without any, the bounds are 10 items in each level.
        """
        middle, most = (_quantile(pilot, share) for share in (Fraction(3, 4), Fraction(9, 10)))
        rest = square * (1 - _PLACES - (_PILOT if has_pilot else 0))
        variance = _rounded_up(_STEPS / (_PLACES * square))
        if most <= _FEW:
            listing = RunningCounts.within(periods, middle, rest, mass)
            return cls(listing, None, variance, square / 2, tuple(pilot))
        listing = RunningCounts.within(periods, min(middle, _MOST_LISTED_GROUPS), square * _LISTING, mass)
        counting = RunningCounts.within(periods, middle, rest - square * _LISTING, mass)
        return cls(listing, counting, variance, square / 2, tuple(pilot))

    @classmethod
    def pilot_variance(cls, square: Fraction) -> Fraction:
        """Return the variance of the numbers of a pilot: a user moves one of them by 1."""
        return _rounded_up(1 / (_PILOT * square))

    @property
    def published(self) -> RunningCounts:
        """The level whose counts are published."""
        return self.counting or self.listing

    @property
    def mass(self) -> Fraction:
        """Beta, all of which listing loses."""
        return self.listing.mass

    @property
    def least(self) -> int:
        """M of the level that lists items."""
        return self.listing.least

    @property
    def groups_per_user(self) -> int:
        """The most items that a user counts for."""
        return self.published.groups_per_user

    @property
    def places(self) -> tuple[int, ...]:
        """The places of a user by which the kept share is computed."""
        return tuple(self.groups_per_user * 2**step + 1 for step in range(_STEPS))

    @property
    def window(self) -> int:
        """The number of days whose arrivals decide the kept share of a day in two levels."""
        return max(_SHORTEST_WINDOW, self.listing.periods // 10)

    def worst_cost(self) -> Cost:
        """Return the cost of the whole stream, which is charged when it begins."""
        return Cost(self.rho, self.mass)

    def share(self, pairs: float, reached: NDArray[np.int64], earlier: tuple[float, list[int]] | None) -> float:
        """Return the share of pairs that is kept, of those that arrived after an earlier day; post-processing.

        Args:
            pairs: the sum of all noisy counts.
            reached: the noisy numbers of users by `places`.
            earlier: both on the earlier day; None for all pairs.
        """
        if earlier is None:
            earlier = 0.0, [0] * _STEPS
        pairs_before, reached_before = earlier
        more = max(pairs - pairs_before, 1.0)
        cut = max(self._cut_off(reached) - self._cut_off(np.array(reached_before)), 0.0)
        return max(more / (more + cut), _SMALLEST_SHARE)

    def _cut_off(self, reached: NDArray[np.int64]) -> float:
        """Return the number of pairs beyond the bound: in geometric progression between two places."""
        error = math.sqrt(float(self.places_variance)) * float(squared_sums(self.listing.periods)[-1])  # of any day
        significant = (_SIGNIFICANT_IN_ONE_LEVEL if self.counting is None else _SIGNIFICANT) * error
        users = np.minimum.accumulate(np.where(reached < significant, 0, reached))
        total = 0.0
        for step, (more, fewer) in enumerate(zip(users[:-1].tolist(), users[1:].tolist(), strict=True)):
            width = self.groups_per_user * 2**step
            if more > fewer > 0:
                total += (more - fewer) / -math.expm1(math.log(fewer / more) / width)
            else:
                total += width * (more if fewer else more / 2)
        return total

    def corrected(
        self, noisy: NDArray[np.int64], share: float, earlier: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], float]:
        """Return the corrected counts, and the share of all pairs so far that is kept; post-processing.

        Args:
            noisy: the noisy counts, shape (n,).
            share: the kept share of all pairs, or in two levels of those that arrived in the window.
            earlier: the last corrected counts and the last noisy counts, shape (2, n), 0 for new items.
        """
        counts = noisy / share if self.counting is None else earlier[0] + (noisy - earlier[1]) / share
        return counts, min(max(noisy.sum() / max(counts.sum(), 1.0), _SMALLEST_SHARE), 1.0)

    def precise(self, counts: NDArray[np.float64], errors: NDArray[np.float64], share: float) -> NDArray[np.bool_]:
        """Return True for the counts to show: nearly all of them are within 10 %."""
        return (errors <= _PRECISION * counts) & (share >= _LEAST_SHARE)

    def smallest(self, day: int, share: float = 1.0) -> int | None:
        """Return about the users with which an item that is listed on *day* is shown; None if none is."""
        since = 1 if self.counting is None else day  # in one level, noise starts with the stream
        error = float(self.published.std_errors(day, [since])[0]) / share
        return max(self.listing.threshold(day), math.ceil(error / _PRECISION)) if share >= _LEAST_SHARE else None


def _quantile(pilot: Sequence[int], share: Fraction) -> int:
    """Return the number of items that *share* of the users have at most; the default if there is no user."""
    sums = np.cumsum(pilot)
    if not len(sums) or sums[-1] <= 0:
        return _DEFAULT_GROUPS
    return pilot_places()[int(np.flatnonzero(sums >= share * int(sums[-1]))[0])]


def price(periods: int, epsilon: float, delta: Fraction) -> tuple[Fraction, Fraction]:
    """Return mu^2 and beta of a stream that is (*epsilon*, *delta*)-differentially private: half of *delta* is beta.

    Raises:
        InputError: a number is out of range.
    """
    if not 1 <= periods <= MAX_RUNNING_PERIODS:
        raise InputError(f"a stream has from 1 to {MAX_RUNNING_PERIODS:,} periods, not {periods:,}")
    mass = delta / 2
    return Fraction(mu_gaussian(epsilon, float_below(delta - mass))) ** 2, mass


def _rounded_up(value: Fraction) -> Fraction:
    """Round up to a multiple of 1/1024, alike on every machine."""
    return Fraction(math.ceil(value * 1024), 1024)
