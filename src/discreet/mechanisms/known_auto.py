"""A count of every listed item, by noise that fits how many of them users have (docs/mechanisms/known_auto.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np

from discreet.accounting.convert import floor_bits
from discreet.accounting.gaussian import epsilon_of_branch, mu_gaussian, rho_after_second_test
from discreet.accounting.laplace import epsilon_of_laplace, rho_laplace
from discreet.errors import InputError
from discreet.mechanisms.anchored import SharedLaplace, SharedNoise
from discreet.mechanisms.base import (
    INTERVAL,
    UNNAMED,
    Expectation,
    Likely,
    Request,
    WithoutSteps,
    descending,
    require_gaussian,
)
from discreet.mechanisms.light import LAPLACE_INTERVAL, UNEVEN, loss_of_users
from discreet.mechanisms.two_round import (
    COST_UNIT,
    SECOND_EVIDENCE,
    USERS_PER_SECOND_HISTOGRAM,
    Floats,
    Ints,
    add_noise,
    are_few,
    continued,
    most_second,
    second_epsilon,
)
from discreet.noise import Bits, DiscreteLaplace
from discreet.noise.bits import PrefixedBits
from discreet.values import CAPPED_BASKET, MAX_BASKET, WEIGHT_UNIT, Cost, ListedPairs, Outcome, float_below

CAPS = (1, 2, 3, 4, 6)
"""Candidate caps of Laplace sums, in items per user."""

HISTOGRAM_SHARE = Fraction(1, 125)
"""Share of mu^2 for the histogram."""

GAUSSIAN_SHARE = Fraction(24, 25)
"""Share of delta for the histogram with Gaussian sums; the remainder covers worse outcomes of Laplace sums."""

EVIDENCE = 4.0
"""Standard errors above 0 that a bin of the histogram must be to be used."""

HIDDEN = 3.0
"""How many times `Way.unseen` may be what noise hides in a table of few users."""

LARGEST_LOSS = 0.9
"""The largest standard error by clipping, relative to the count, per relative error."""

TYPICAL_SIZE = 0.5
"""Noise and loss are compared for an item of this share of the mean size: most items are smaller than the mean."""

LEAST_TOTAL = 2_000
"""Below this mu^2, in units of 1 / `COST_UNIT`, nothing is measured: a share of it would be rounded too coarsely."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to count, with the error that the histogram predicts.

    Args:
        name: "capped", "scaled" or "shared".
        limit: the cap in items; the root of the sum of a user's squared weights; or infinity.
        noise: standard deviation of the noise of a count.
        kept: share of the counts that clipping keeps.
        spread: root mean square of the share that clipping removes from users.
        unseen: standard error of what clipping removes from an item beyond the mean, relative to the count, if the
            noise of the histogram hides users with many items.
        again: epsilon of the second histogram, 0 without one.
    """

    name: str
    limit: float
    noise: float
    kept: float = 1.0
    spread: float = 0.0
    unseen: float = 0.0
    again: Fraction = Fraction(0)

    @property
    def why(self) -> str:
        """The reason for the way in one sentence."""
        if self.name == "shared":
            return "users have so many of the listed items, or are so few, that counts without clipping are best"
        most = f"up to {self.limit:,.0f}" if self.name == "capped" else f"up to about {self.limit**2:,.0f}"
        return (
            f"most users have {most} of the listed items: about {self.kept:.0%} of the counts are kept with a cap there"
        )

    @property
    def loss(self) -> float:
        """The predicted standard error by clipping, relative to a count."""
        return UNEVEN * self.spread / self.kept


@dataclass(frozen=True, slots=True)
class KnownAuto(WithoutSteps):
    """Count every listed item with Laplace noise and a cap, with Gaussian noise and scaled users, or without clipping.

    A noisy histogram of users by their number of listed items decides. All of a user's items have the weight
    min(1, c / n) and Laplace noise; or min(1, l / sqrt(n)) and Gaussian noise; or users count in full, and all counts
    share a part of their noise, Laplace for few items. The least error of an item of average size is chosen. There is
    no threshold.

    Args:
        domain_size: d, the number of listed items.
        mu: the histogram and Gaussian sums are mu-GDP together.
        pure: epsilon of Laplace sums alone.
        relative_error: target relative error of a count, above 0 and below 1.
        epsilon: epsilon of the exact (epsilon, delta) theorem, if it determined mu.
        delta: delta of that theorem; 0 without it.
        second: rho of Gaussian sums after a second histogram.
    """

    domain_size: int
    mu: Fraction
    pure: Fraction
    relative_error: Fraction
    epsilon: Fraction | None = None
    delta: Fraction = Fraction(0)
    second: Fraction = field(default=Fraction(0), metadata=UNNAMED)

    name: ClassVar[str] = "known-auto"
    lossless: ClassVar[bool] = True

    @classmethod
    def within_cost(cls, limit: Cost, request: Request) -> Self:
        """Return the instance of which each way may spend *limit*, with the histogram before it."""
        _check(request)
        mu = floor_bits(Fraction(math.sqrt(2 * limit.rho) * (1 - 1e-12)))
        rest = limit.rho - Fraction(_histogram(mu), 2 * COST_UNIT)
        pure = epsilon_of_laplace(rest, WEIGHT_UNIT)
        second = floor_bits(rest - rho_laplace(most_second(pure), 1))
        return cls(request.head_limit, mu, pure, request.relative_error, second=second)

    @classmethod
    def at_epsilon(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:
        """Return the instance that is (epsilon, delta)-DP by docs/mechanisms/two_round.md, Theorem 2.

        Returns None for noise that is not Gaussian, and if epsilon leaves no budget for Laplace sums.
        """
        if request.noise != "gaussian":
            return None
        _check(request)
        mu = floor_bits(Fraction(mu_gaussian(float(epsilon), float_below(delta * GAUSSIAN_SHARE))))
        test = math.sqrt(_histogram(mu) / COST_UNIT) * (1 + 1e-12)
        if test == 0:
            return None
        pure = epsilon_of_branch(float(epsilon), float_below(delta), float(mu), test, 0.0, 0.0, 0.0, 0.0)
        if pure == 0:
            return None
        most = float(most_second(Fraction(pure))) * (1 + 1e-12)
        second = rho_after_second_test(
            float(epsilon), float_below(delta), float(mu), test, 0.0, 0.0, 0.0, pure, 0.0, most
        )
        return cls(
            request.head_limit,
            mu,
            floor_bits(Fraction(pure)),
            request.relative_error,
            epsilon,
            delta,
            floor_bits(Fraction(second)),
        )

    @property
    def head_limit(self) -> int:
        """The number of listed items."""
        return self.domain_size

    def worst_cost(self) -> Cost:
        """Return the largest cost of a way, with the histogram."""
        laplace = rho_laplace(self.pure, WEIGHT_UNIT)
        second = rho_laplace(most_second(self.pure), 1) + self.second
        return Cost(max(self.mu**2 / 2, self._measuring + max(laplace, second)), self.delta)

    def direct_epsilon(self) -> Fraction | None:
        """Return epsilon of the exact theorem, if it determined mu."""
        return self.epsilon

    def expectation(self) -> Expectation:
        """Return the range of errors of each way: clipping is taken if its error is less than without clipping.

        A second histogram leaves less for the counts, and the more it takes the fewer users there are.
        """
        shared = self.shared_noise()
        most = shared.std
        noises = {"shared": most}
        if _histogram(self.mu):
            noises |= {"scaled": self._scaled(1.0), "capped": self._capped(1)}
            if self.second:
                most = self.shared_noise(most_second(self.pure)).std
        lost = LARGEST_LOSS * float(self.relative_error)
        of_shared = LAPLACE_INTERVAL if isinstance(shared, SharedLaplace) else INTERVAL
        intervals = {"shared": of_shared, "scaled": INTERVAL, "capped": LAPLACE_INTERVAL}
        likely = [
            Likely(name, noise, most, None if name == "shared" else lost, 0, 0, intervals[name])
            for name, noise in noises.items()
            if noise <= most
        ]
        return Expectation(min(noises.values()), likely=tuple(likely))

    def release(self, pairs: ListedPairs, bits: Bits) -> Outcome:
        """Release; the outcome's positions are rows of the domain."""
        way = self._choose(pairs, bits)
        if way.again:
            bits = PrefixedBits(bits, 2)  # apart from those of the same way without a second histogram
        places = pairs.places()
        sums = np.zeros(self.domain_size, dtype=np.int64)
        shared_error = None
        is_laplace = way.name == "capped"
        if way.name == "shared":
            noise = self.shared_noise(way.again)
            sums[places] = np.concatenate([sums[:0], *pairs.weighted_sums(float(MAX_BASKET))]) // (WEIGHT_UNIT - 1)
            estimates = (sums + noise.draw(bits, "counts", len(sums))).astype(np.float64)
            shared_error = noise.shared_std
            is_laplace = isinstance(noise, SharedLaplace)
        elif way.name == "scaled":
            budget = self._sums(way.again)
            precision = math.ceil(budget / way.limit**2)
            limit = math.sqrt(budget / precision) * (1 - 1e-15)
            sums[places] = np.concatenate([sums[:0], *pairs.weighted_sums(limit)])
            noisy = add_noise(sums, WEIGHT_UNIT, np.full(len(sums), precision), bits, "scaled")
            estimates = noisy / (WEIGHT_UNIT * way.kept)
        else:
            cap = int(way.limit)
            sums[places] = np.concatenate([sums[:0], *pairs.capped_sums(cap)])
            noisy = sums + self._laplace(cap, way.again).draw(bits, "capped", len(sums))
            estimates = noisy / (WEIGHT_UNIT * way.kept)
        quantile = LAPLACE_INTERVAL if is_laplace else INTERVAL
        laplace = rho_laplace(self.pure - way.again, WEIGHT_UNIT)
        second = rho_laplace(way.again, 1) if way.again else 0
        cost = Cost(self._measuring + second + (laplace if is_laplace else self._precision(way.again) / 2))
        counts = np.rint(estimates).astype(np.int64)
        order = descending(counts, bits)
        counts = counts[order]
        positive = np.maximum(counts, 0)
        std = np.hypot(way.noise, way.loss * positive)
        above = np.hypot(way.noise, way.unseen * positive)
        low = np.maximum(np.floor(counts - quantile * std), 0).astype(np.int64)
        high = np.maximum(np.ceil(counts + quantile * np.maximum(std, above)), 0).astype(np.int64)
        return Outcome(
            order,
            counts,
            std,
            low,
            high,
            ordered=True,
            complete=True,
            cost=cost,
            chosen=way.name,
            why=way.why,
            shared_error=shared_error,
        )

    def _choose(self, pairs: ListedPairs, bits: Bits) -> Way:
        """Return the way with the least predicted error."""
        unclipped = Way("shared", math.inf, self.shared_noise().std)
        histogram = _histogram(self.mu)
        if not histogram:
            return unclipped
        last = 2 ** np.arange((self.domain_size - 1).bit_length() + 1)
        users = pairs.users_by_size(last)
        noisy = add_noise(users, 1, np.full(len(last), histogram), bits, "sizes").astype(np.float64)
        std = math.sqrt(COST_UNIT / histogram)
        by_size = continued(noisy, std, EVIDENCE, 0.0)
        few = are_few(by_size, std, USERS_PER_SECOND_HISTOGRAM)
        way = self._least(noisy, std, EVIDENCE, last, HIDDEN if few else 0.0)
        if not few or way.name == "shared" or not self.second:
            return way
        # Of few users noise may hide those with most of the pairs, and clipping by this histogram takes most of them.
        epsilon = second_epsilon(self.pure, float(by_size.sum()))
        noise = DiscreteLaplace(1 / epsilon)
        noisy = (users + noise.draw(bits, "sizes again", len(last))).astype(np.float64)
        return self._least(noisy, noise.std, SECOND_EVIDENCE, last, 1.0, epsilon)

    def _least(
        self,
        noisy: Floats,
        std: float,
        evidence: float,
        last: Ints,
        hidden: float,
        again: Fraction = Fraction(0),
    ) -> Way:
        """Return the way with the least error that a noisy histogram predicts.

        Args:
            noisy: users by their number of listed items, shape (n,).
            std: standard error of each bin.
            evidence: standard errors above 0 that a bin must be to be used.
            last: the largest number of items of each bin, shape (n,).
            hidden: how many times what noise hides counts in the choice, and if above 1, in intervals.
            again: epsilon of the second histogram, 0 for the first.
        """
        unclipped = Way("shared", math.inf, self.shared_noise(again).std, again=again)
        by_size = continued(noisy, std, evidence, 0.0)
        if by_size.sum() == 0:
            return unclipped
        tail = continued(noisy, std, evidence, 1.0)
        n = np.sqrt((last // 2 + 1.0) * np.minimum(last, self.domain_size))
        ways = [unclipped]
        for cap in CAPS:
            if cap <= self.domain_size:
                weights = np.where(n > CAPPED_BASKET * cap, 0, np.minimum(1, cap / n))
                ways.append(_way("capped", cap, self._capped(cap, again), 1 - weights, n, by_size, tail))
        for limit in 2.0 ** (np.arange(4 * math.ceil(math.log2(self.domain_size)) + 1) / 8):
            weights = np.minimum(1, limit / np.sqrt(n))
            ways.append(_way("scaled", limit, self._scaled(limit, again), 1 - weights, n, by_size, tail))
        size = TYPICAL_SIZE * float(by_size @ n) / self.domain_size
        lost = LARGEST_LOSS * float(self.relative_error)
        ways = [replace(way, unseen=max(hidden, 1.0) * way.unseen, again=again) for way in ways if way.loss <= lost]
        if hidden:
            return min(ways, key=lambda way: math.hypot(way.noise, max(way.loss, way.unseen) * size))
        return min(ways, key=lambda way: math.hypot(way.noise, way.loss * size))

    @property
    def _measuring(self) -> Fraction:
        """The rho of the histogram."""
        return Fraction(_histogram(self.mu), 2 * COST_UNIT)

    def _precision(self, again: Fraction) -> Fraction:
        """Return twice the rho of Gaussian sums, after a second histogram if *again* is not 0."""
        return 2 * self.second if again else self.mu**2 - 2 * self._measuring

    def _sums(self, again: Fraction) -> int:
        """Return the cost of a user in Gaussian sums, in units of 1 / `COST_UNIT`."""
        return math.floor(self._precision(again) * COST_UNIT)

    def shared_noise(self, again: Fraction = Fraction(0)) -> SharedNoise:
        """Return the least noise of counts without clipping: Laplace, at the price of capped sums, for few items.

        Args:
            again: epsilon of the second histogram, 0 without one, as of the other noises.
        """
        gaussian = SharedNoise.of(self.domain_size, self._precision(again))
        if not _histogram(self.mu):
            return gaussian
        laplace = SharedLaplace.of(self.domain_size, self.pure - again)
        is_paid = laplace.rho(self.domain_size) <= rho_laplace(self.pure - again, WEIGHT_UNIT)
        return laplace if is_paid and laplace.std < gaussian.std else gaussian

    def _scaled(self, limit: float, again: Fraction = Fraction(0)) -> float:
        """Return the standard deviation of the noise of scaled sums, in users."""
        return limit * math.sqrt(COST_UNIT / self._sums(again))

    def _capped(self, cap: int, again: Fraction = Fraction(0)) -> float:
        """Return the standard deviation of the noise of capped sums, in users."""
        return self._laplace(cap, again).std / WEIGHT_UNIT

    def _laplace(self, cap: int, again: Fraction) -> DiscreteLaplace:
        """Return the noise of capped sums, in units of 1 / `WEIGHT_UNIT`; weights of a user add up to below *cap*."""
        return DiscreteLaplace(cap * WEIGHT_UNIT / (self.pure - again))


def _way(name: str, limit: float, noise: float, lost: Floats, n: Floats, users: Floats, tail: Floats) -> Way:
    """Return a way that removes the share *lost* from users of *n* items, estimated from the histogram."""
    kept_share, spread, unseen = loss_of_users(lost, n, users, tail)
    return Way(name, limit, noise / kept_share, kept_share, spread, unseen)


def _histogram(mu: Fraction) -> int:
    """Return the cost of the histogram in units of 1 / `COST_UNIT`; 0 if mu is too small for one."""
    total = math.floor(mu**2 * COST_UNIT)
    return int(total * HISTOGRAM_SHARE) if total >= LEAST_TOTAL else 0


def _check(request: Request) -> None:
    if not request.known_domain:
        raise InputError("known-auto counts listed items; list them, or leave the mechanism out")
    if request.sensitivity.rows_per_group != 1 or request.sensitivity.groups_per_user is not None:
        raise InputError("known-auto counts distinct users and needs no bound; leave the bounds out")
    if request.summed is not None or not request.counts or request.k is not None:
        raise InputError("known-auto counts the users of all listed items; it adds up no column and ranks none")
    require_gaussian(request, "known-auto")
