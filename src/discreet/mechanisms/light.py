"""One round of weighted sums with Laplace noise, where users have few items (docs/mechanisms/light.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np

from discreet.accounting.laplace import epsilon_of_laplace, rho_laplace
from discreet.mechanisms.base import Expectation, Likely, Request
from discreet.mechanisms.two_round import Floats, Sizes
from discreet.noise import Bits, DiscreteLaplace
from discreet.values import CAPPED_BASKET, MAX_BASKET, WEIGHT_UNIT, CappedSums, Cost, Outcome

CAPS = (1, 2, 3, 4, 5, 6)
"""Candidate caps, in items per user."""

SPLIT = np.array([2, 3, 4, 5, 6, 7, 8, MAX_BASKET])
"""Bounds of a histogram that splits the bins of the first one up to 4 and 8 items, which caps from 3 on need."""

MAX_HIDDEN = 1.0
"""The largest `Cap.hidden`, per relative error."""

MAX_STRAY = 3.5
"""With a cap from 2 on, the largest `Sizes.stray`: users with many items may stand out though those with fewer do
not."""

GAIN = 1.3
"""A cap of c items is possible if epsilon is at least GAIN * sqrt(c) times the mu of two rounds: in a shared budget of
small rho, Laplace noise is no better than Gaussian noise."""

MAX_SPREAD = 1.2
"""The largest root mean square of the share that a cap may remove from users, per relative error."""

UNEVEN = 0.5
"""The assumed variation of the loss between items, relative to its root mean square over users."""

PRECISE = 0.85
"""The largest standard error of a released count, relative to the count, per relative error."""

TAILS = math.log(10)
"""The smallest released count is this number of noise scales, times one over the relative error: there, the noise
exceeds the relative error with probability 1/10."""

LAPLACE_INTERVAL = math.log(20) / math.sqrt(2)
"""Half width of a 95 % interval of Laplace noise, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Cap:
    """A bound on what a user contributes, in items, and the estimated loss by it.

    Args:
        items: c; the weights of a user of n items are min(1, c / n), and 0 above `CAPPED_BASKET` c items.
        kept: share of the counts that the cap keeps.
        spread: root mean square of the share that the cap removes from users.
        unseen: standard error of the share that the cap removes from an item, beyond the mean, if the noise of the
            histogram hides users with many items.
        hidden: the same if it hides as many as is likely, and not as many as it may.
    """

    items: int
    kept: float
    spread: float
    unseen: float
    hidden: float = 0.0

    @property
    def why(self) -> str:
        """The reason for one round in one sentence."""
        items = "one item" if self.items == 1 else f"up to {self.items} items"
        return f"most users have {items}: about {self.kept:.0%} of the counts are kept with a cap there"


@dataclass(frozen=True, slots=True)
class Light:
    """Add up weights that are at most *c* items per user, for every item, and add Laplace noise to the sums.

    It is a branch of `discreet.mechanisms.auto.Auto`, which measures how many items users have and chooses *c*.

    Args:
        epsilon: the sums are epsilon-DP but for the mass *lost*.
        lost: largest probability that an item that only one user has is released.
        relative_error: target relative error of a count, above 0 and below 1.
        counts: False to return labels only.
        k: number of items, or None for as many accurate counts as possible.
    """

    epsilon: Fraction
    lost: Fraction
    relative_error: Fraction
    counts: bool = True
    k: int | None = None

    @classmethod
    def within_cost(cls, limit: Cost, request: Request) -> Self:
        """Return the instance that may spend *limit*."""
        epsilon = epsilon_of_laplace(limit.rho, CAPS[0] * WEIGHT_UNIT)
        return cls(epsilon, limit.delta, request.relative_error, request.counts, request.k)

    def worst_cost(self) -> Cost:
        """Return the cost of every release."""
        return Cost(rho_laplace(self.epsilon, CAPS[0] * WEIGHT_UNIT), self.lost)

    def expectation(self) -> Expectation:
        """Return the error and the smallest released count with the smallest cap; a larger one raises both."""
        share = float(self.relative_error)
        most_lost = min(MAX_SPREAD * share, 0.95)
        smallest = [self._threshold(cap) / WEIGHT_UNIT for cap in (CAPS[0], CAPS[-1])]
        if self.k is None:
            scales = [float(self._noise(cap).scale) / WEIGHT_UNIT for cap in (CAPS[0], CAPS[-1])]
            smallest = [max(least, TAILS * scale / share) for least, scale in zip(smallest, scales, strict=True)]
        counts = (math.ceil(smallest[0]), math.ceil(smallest[1] / (1 - most_lost)))
        if not self.counts:
            return Expectation(
                None, None, counts[0], likely=(Likely("light", None, None, None, *counts, LAPLACE_INTERVAL),)
            )
        least = self._noise(CAPS[0]).std / WEIGHT_UNIT
        relative = PRECISE * share
        if self.k is not None:  # the largest sums above the threshold are returned whatever their error is
            noise = max(self._noise(cap).std / self._threshold(cap) for cap in CAPS)
            relative = math.hypot(noise, UNEVEN * MAX_SPREAD * share) / (1 - most_lost)
        return Expectation(
            least, None, counts[0], likely=(Likely("light", least, None, relative, *counts, LAPLACE_INTERVAL),)
        )

    def possible(self, mu: float) -> list[int]:
        """Return the caps with less noise than two rounds of *mu*, whatever the histogram."""

        def gain(items: int) -> float:
            if items <= 2 or self.k is not None:
                return GAIN
            # The threshold of labels, which two rounds hardly need, leaves out counts precise enough for a large error.
            least = TAILS * float(self._noise(items).scale) / float(self.relative_error)
            return GAIN * max(1.0, self._threshold(items) / least)

        return [items for items in CAPS if float(self.epsilon) >= gain(items) * mu * math.sqrt(items)]

    def cap(
        self, sizes: Sizes, mu: float, split: Floats | None = None, *, most_hidden: float = MAX_HIDDEN
    ) -> Cap | None:
        """Return the cap with the least noise, or None if two rounds are better than any.

        Args:
            sizes: the noisy histogram of users by their number of items.
            mu: of the two rounds.
            split: the noisy numbers of users with 3, 4, ..., 8 items; without it, only caps of 1 and 2 are considered.
            most_hidden: the largest `Cap.hidden`, per relative error.
        """
        most = CAPS[-1] if split is not None else 2
        if sizes.stray > MAX_STRAY:
            most = 1
        share = float(self.relative_error)
        caps = [measured(items, sizes, split) for items in self.possible(mu) if items <= most]
        possible = [cap for cap in caps if cap.spread <= MAX_SPREAD * share and cap.hidden <= most_hidden * share]
        return min(possible, key=lambda cap: cap.items / cap.kept, default=None)

    def may_have_cap(self, sizes: Sizes, mu: float) -> bool:
        """Return whether a cap is possible if users have as few items as the bins of *sizes* allow."""
        return self.cap(sizes, mu, np.array([1.0, 0.0, 1.0, 0.0, 0.0, 0.0])) is not None

    def release(self, cap: Cap, pairs: CappedSums, bits: Bits) -> Outcome:
        """Release; the outcome's positions are item numbers."""
        noise = self._noise(cap.items)
        threshold = self._threshold(cap.items)
        items = np.zeros(0, dtype=np.int64)
        noisy = np.zeros(0, dtype=np.int64)
        number = 0
        for sums in pairs.capped_sums(cap.items):
            values = sums + noise.draw(bits, "capped", len(sums), number)
            # An item whose users all have the weight 0 is left out: one user may have more of them than the threshold
            # allows for.
            passed = np.flatnonzero((values >= threshold) & (sums > 0))
            items = np.append(items, number + passed)
            noisy = np.append(noisy, values[passed])
            number += len(sums)
        estimates = noisy / (WEIGHT_UNIT * cap.kept)
        std = np.hypot(noise.std / (WEIGHT_UNIT * cap.kept), UNEVEN * cap.spread * estimates)
        released = np.ones(len(items), dtype=np.bool_)
        if self.k is None:
            target = float(self.relative_error) * estimates
            released = (std <= PRECISE * target) & (TAILS * float(noise.scale) <= WEIGHT_UNIT * cap.kept * target)
        counts = np.rint(estimates).astype(np.int64)
        order = np.flatnonzero(released)
        order = order[np.argsort(-counts[order], kind="stable")[: self.k]]
        items = items[order]
        counts = counts[order]
        std = std[order]
        cost = self.worst_cost()
        complete = len(items) == self.k
        if not self.counts:
            return Outcome(items, ordered=True, complete=complete, cost=cost)
        low = np.maximum(np.floor(counts - LAPLACE_INTERVAL * std), 0).astype(np.int64)
        above = np.hypot(noise.std / (WEIGHT_UNIT * cap.kept), cap.unseen * counts)
        high = np.ceil(counts + LAPLACE_INTERVAL * above).astype(np.int64)
        return Outcome(items, counts, std, low, high, ordered=True, complete=complete, cost=cost)

    def _noise(self, cap: int) -> DiscreteLaplace:
        """Return the noise of a sum, in units of 1 / `WEIGHT_UNIT`; a user's weights add up to less than *cap*."""
        return DiscreteLaplace(cap * WEIGHT_UNIT / self.epsilon)

    def _threshold(self, cap: int) -> int:
        """Return the least released sum, in units of 1 / `WEIGHT_UNIT`.

        Of a user with n items that no other user has, each passes with probability at most e^((w - threshold) / b) / 2,
        where w = min(1, c / n). n times this is largest at n = c or at n = `CAPPED_BASKET` c, the most items of a user
        with a weight above 0.
        """
        scale = float(self._noise(cap).scale)
        few = WEIGHT_UNIT + math.ceil(scale * math.log(cap / (2 * self.lost)) * (1 + 1e-12))
        many = math.ceil(scale * math.log(CAPPED_BASKET * cap / (2 * self.lost)) * (1 + 1e-12))
        return max(few, WEIGHT_UNIT // CAPPED_BASKET + 1 + many)


def measured(items: int, sizes: Sizes, split: Floats | None = None) -> Cap:
    """Return the cap at *items* with its loss, estimated from the noisy histograms.

    Args:
        items: the cap.
        sizes: the noisy histogram of users by their number of items.
        split: noisy numbers of users with 3, 4, ..., 8 items, which split two of its bins; shape (6,).
    """
    n = mean_sizes(len(sizes.by_size))
    by_size = sizes.by_size
    with_tail = sizes.continued
    likely = sizes.likely
    if split is not None:
        n = np.concatenate([np.arange(1.0, 9.0), n[4:]])
        by_size = _divided(by_size, split)
        with_tail = _divided(with_tail, split)
        likely = _divided(likely, split)
    lost = 1 - np.where(n > CAPPED_BASKET * items, 0, np.minimum(1, items / n))
    if sizes.users <= 0:
        return Cap(items, 1.0, math.inf, 0.0)
    _, _, hidden = loss_of_users(lost, n, by_size, likely)
    return Cap(items, *loss_of_users(lost, n, by_size, with_tail), hidden)


def mean_sizes(bins: int) -> Floats:
    """Return the number of items of a typical user of each bin of 1, 2, 3 to 4, 5 to 8, ... items."""
    return np.concatenate([[1.0, 2.0], 2.0 ** (np.arange(2, bins) - 0.5)])


def loss_of_users(lost: Floats, n: Floats, users: Floats, tail: Floats) -> tuple[float, float, float]:
    """Return `kept`, `spread` and `unseen` of a `Cap` if the share *lost* is removed from users of *n* items.

    The loss of an item is a mean over its users, so users count in proportion to their number of items.

    Args:
        lost: per bin of the histogram, from 0 to 1, shape (m,).
        n: number of items of a user in each bin, shape (m,).
        users: the histogram, at least one user, shape (m,).
        tail: the same, with a tail that the noise may hide.
    """

    def loss(users: Floats) -> tuple[float, float]:
        """Return the mean of the loss, and its root mean square."""
        mass = users * n / (users @ n)
        return float(lost @ mass), math.sqrt(float(lost**2 @ mass))

    (mean, spread), (mean_with_tail, spread_with_tail) = loss(users), loss(tail)
    kept_share = max(1 - mean, 0.05)
    return kept_share, spread, math.hypot(UNEVEN * spread_with_tail, mean_with_tail - mean) / kept_share


def _divided(users: Floats, split: Floats) -> Floats:
    """Return a histogram with its bins of 3 to 4 and of 5 to 8 items divided into one for each number of items.

    Args:
        users: in bins of 1, 2, 3 to 4, 5 to 8, ... items.
        split: the noisy numbers of users with 3, 4, ..., 8 items, in proportion to which bins are divided.
    """
    parts = np.maximum(split, 1e-9)  # noise may be below 0
    three_to_four = users[2] * parts[:2] / parts[:2].sum()
    five_to_eight = users[3] * parts[2:] / parts[2:].sum()
    return np.concatenate([users[:2], three_to_four, five_to_eight, users[4:]])
