"""Published methods that count releases are compared with, in numpy's floating point.

They are for comparison only. Floating-point noise does not protect users, and the contribution bounds are read from the
data, as in the paper; no release may use any of this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from papers.user_items import UserItems

MAX_CALLS = 2_000
"""Tries of a Private Count Release; each may lose this share of the mass."""


@dataclass(frozen=True)
class Counted:
    """Released items with noisy counts.

    Args:
        items: int64 of shape (m,): numbers of items, or ranks in a head.
        counts: float64 of shape (m,).
        sigma: standard deviation of the noise in each count, shape (m,).
        bounds: the largest number of items of a user, at each bounding; empty without bounding.
    """

    items: NDArray[np.int64]
    counts: NDArray[np.float64]
    sigma: NDArray[np.float64]
    bounds: tuple[int, ...] = ()

    def above(self, threshold: float) -> Counted:
        """Return the items whose noisy count is at least *threshold*."""
        keep = self.counts >= threshold
        return Counted(self.items[keep], self.counts[keep], self.sigma[keep], self.bounds)


def non_private_percentile(contributions: NDArray[np.int64], percent: float) -> int:
    """Return the true percentile of the items per user, over users who have any; at least 1.

    NOT private: a real system would have to declare this bound or spend budget on it. The paper does neither, in
    favour of this baseline (Rogers 2024, section 4).
    """
    return int(np.percentile(contributions[contributions > 0], percent, method="inverted_cdf"))


def bounding_mask(users: NDArray[np.int64], most: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return a mask of the pairs that remain if every user keeps at most *most* random items.

    Args:
        users: int64 of shape (n,): the user of each pair.
        most: at least 1.
        rng: randomness.
    """
    excess = np.flatnonzero((np.bincount(users) > most)[users])
    keep = np.ones(len(users), dtype=np.bool_)
    if len(excess):
        shuffled = excess[np.argsort(users[excess] + rng.random(len(excess)))]
        of = users[shuffled]
        starts = np.flatnonzero(np.append(True, of[1:] != of[:-1]))
        lengths = np.diff(np.append(starts, len(of)))
        keep[shuffled] = np.arange(len(of)) - np.repeat(starts, lengths) < most
    return keep


def selection_threshold(sigma: float, most: int, delta: float) -> float:
    """Return 1 + sigma z: all items of one user, at most *most*, pass it with probability at most *delta*.

    Args:
        sigma: of the Gaussian noise.
        most: items of one user.
        delta: mass that may be lost.
    """
    each = -math.expm1(math.log1p(-delta) / most)
    return 1 - sigma * NormalDist().inv_cdf(each)


def plume(
    table: UserItems,
    limits: Sequence[tuple[float, float]],
    percent: float,
    rng: np.random.Generator,
    share: float = 0.1,
) -> list[Counted]:
    """Return the releases that Rogers 2024 calls naive (sections 1 and 4): two passes, after Plume (Amin et al. 2022).

    Every user keeps as many random items as the true *percent*-th percentile of the items per user. Gaussian noise on
    their counts and a threshold select the items. The table of all pairs with a selected item is bounded again, by its
    own percentile, and its counts get Gaussian noise. The released counts are those of the bounded table, so they are
    biased downwards.

    Args:
        table: all pairs.
        limits: (rho, delta) of each release; all are made from the same first bounding.
        percent: of the percentile.
        rng: randomness.
        share: of rho that is spent on the selection; delta is lost there.

    Returns:
        one release for each limit.
    """
    first = non_private_percentile(table.contributions, percent)
    once = np.bincount(table.items[bounding_mask(table.users, first, rng)], minlength=len(table.counts))
    stored = np.flatnonzero(once)
    releases = []
    for rho, delta in limits:
        sigma = math.sqrt(first / (2 * share * rho))
        noisy = once[stored] + sigma * rng.standard_normal(len(stored))
        found = np.zeros(len(once), dtype=np.bool_)
        found[stored[noisy > selection_threshold(sigma, first, delta)]] = True
        releases.append(_recount(table, found, (1 - share) * rho, percent, first, rng))
    return releases


def one_pass(
    table: UserItems,
    kept: NDArray[np.bool_],
    most: int,
    scale: float,
    delta: float,
    rng: np.random.Generator,
    laplace: bool,
) -> Counted:
    """Return the counts of bounded pairs with noise, of items above a threshold: one pass selects and counts.

    Args:
        table: all pairs.
        kept: mask of the pairs that bounding leaves.
        most: the bound on the items of a user.
        scale: b of Laplace noise, or sigma of Gaussian noise.
        delta: mass that may be lost.
        rng: randomness.
        laplace: True for Laplace noise.
    """
    counts = np.bincount(table.items[kept], minlength=len(table.counts))
    stored = np.flatnonzero(counts)
    noise = rng.laplace(0, 1, len(stored)) if laplace else rng.standard_normal(len(stored))
    threshold = 1 + scale * math.log(most / (2 * delta)) if laplace else selection_threshold(scale, most, delta)
    noisy = counts[stored] + scale * noise
    sigma = np.full(len(stored), scale * (math.log(10) / 1.645 if laplace else 1.0))  # equal tails of 1/10
    return Counted(stored, noisy, sigma).above(threshold)


def weighted_selection(
    table: UserItems, kept: NDArray[np.bool_], most: int, sigma: float, delta: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the items whose weighted sum passes a threshold, the largest sums first (Gopi et al. 2020, section 5).

    Every user gives each of the n items that bounding leaves a weight of 1 / sqrt(n).

    Args:
        table: all pairs.
        kept: mask of the pairs that bounding leaves.
        most: the bound on the items of a user.
        sigma: of the Gaussian noise.
        delta: mass that may be lost.
        rng: randomness.
    """
    users = table.users[kept]
    sums = np.bincount(table.items[kept], 1 / np.sqrt(np.bincount(users))[users], minlength=len(table.counts))
    stored = np.flatnonzero(sums)
    noisy = sums[stored] + sigma * rng.standard_normal(len(stored))
    sizes = np.unique(np.geomspace(1, most, 200).astype(np.int64))
    threshold = max(1 / math.sqrt(n) + selection_threshold(sigma, int(n), delta) - 1 for n in sizes)
    passed = np.flatnonzero(noisy > threshold)
    selected: NDArray[np.int64] = stored[passed[np.argsort(-noisy[passed], kind="stable")]]
    return selected


def two_passes(
    table: UserItems, selected: NDArray[np.int64], mu: float, percent: float, rng: np.random.Generator
) -> Counted:
    """Return bounded counts of *selected* items with Gaussian noise of *mu*-GDP, as the second pass of `plume`."""
    found = np.zeros(len(table.counts), dtype=np.bool_)
    found[selected] = True
    return _recount(table, found, mu**2 / 2, percent, 0, rng)


def _recount(
    table: UserItems, found: NDArray[np.bool_], rho: float, percent: float, first: int, rng: np.random.Generator
) -> Counted:
    """Bound contributions again on the items found, and count: the second pass."""
    items = np.flatnonzero(found)
    if not len(items):
        return Counted(items, np.zeros(0), np.zeros(0), (first, 0))
    pairs = found[table.items]
    users, kept = table.users[pairs], table.items[pairs]
    second = non_private_percentile(np.bincount(users), percent)
    counts = np.bincount(kept[bounding_mask(users, second, rng)], minlength=len(found))[items]
    sigma = math.sqrt(second / (2 * rho))
    noisy = counts + sigma * rng.standard_normal(len(items))
    return Counted(items, noisy, np.full(len(items), sigma), (first, second))


def published_count_release(
    head: NDArray[np.int64],
    limit: tuple[float, float],
    cutoff: int,
    rng: np.random.Generator,
    *,
    constant: float = 1.0,
    start: float | None = None,
    relative_error: float = 0.1,
) -> Counted:
    """Return a Private Count Release as printed (Rogers 2024, Algorithm 2), with one Gumbel race for each level.

    Args:
        head: counts in descending order, one more than *cutoff* if there are so many.
        limit: (rho, delta).
        cutoff: the paper's kbar.
        rng: randomness.
        constant: the count's sigma is relative_error / constant of the threshold; the paper leaves it open.
        start: epsilon of the first try; sqrt(8 rho) / 4096 if None. It doubles when nothing is found.
        relative_error: the target.
    """
    rho, delta = limit
    mass = delta / MAX_CALLS
    below = int(head[cutoff]) if len(head) > cutoff else 0
    alive = np.flatnonzero(head[:cutoff] > below)
    epsilon = math.sqrt(8 * rho) / 4096 if start is None else start
    left, calls = rho, 0
    ranks: list[NDArray[np.int64]] = []
    sigmas: list[float] = []
    while calls < MAX_CALLS and epsilon**2 / 8 <= left:
        threshold = 1 + math.log(cutoff / mass) / epsilon
        sigma = relative_error * threshold / constant
        keys = head[alive] + rng.gumbel(0, 1 / epsilon, len(alive))
        order = np.argsort(-keys)
        before = order[: np.count_nonzero(keys > below + threshold + rng.gumbel(0, 1 / epsilon))]
        each = epsilon**2 / 8 + 1 / (2 * sigma**2)
        paid = min(len(before), MAX_CALLS - calls, math.floor(left / each))
        ranks.append(alive[before[:paid]])
        sigmas += [sigma] * paid
        if paid < len(before):
            break
        left -= paid * each + epsilon**2 / 8
        calls += paid + 1
        alive = np.delete(alive, before)
        epsilon *= 2
    items = np.concatenate([np.zeros(0, dtype=np.int64), *ranks])
    sigma_of = np.array(sigmas)
    return Counted(items, head[items] + sigma_of * rng.standard_normal(len(items)), sigma_of)
