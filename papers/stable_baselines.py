"""Top Stable and the Gumbel method it was compared with: as published, as its authors ran them, and corrected.

They run many trials at once in numpy's floating point, and are for comparison only. Published errors are reproduced on
purpose; docstrings say where.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

THRESHOLD_SHARE = 0.37
"""p1: the share of epsilon that the threshold's noise gets (Carvalho et al. 2020, section 6)."""


@dataclass(frozen=True)
class Metrics:
    """The quality of a selection of k items, for each trial.

    Args:
        proportion: P, the share of the true top k that was returned, shape (trials,).
        proportion_run: P as the authors' public code computes it: rank k + 1 is a hit too.
        relative_sum: S, the sum of the returned items' counts divided by that of the true top k.
    """

    proportion: NDArray[np.float64]
    proportion_run: NDArray[np.float64]
    relative_sum: NDArray[np.float64]


def padded(counts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return the first *length* counts, followed by zeros."""
    out = np.zeros(length, dtype=np.int64)
    out[: min(len(counts), length)] = counts[:length]
    return out


def metrics_of_ranks(counts: NDArray[np.int64], k: int, chosen: NDArray[np.bool_]) -> Metrics:
    """Return the metrics of arbitrary selections.

    Args:
        counts: descending, shape (m,) with m > k.
        k: how many were requested.
        chosen: bool of shape (trials, m): which ranks each trial returned.
    """
    return Metrics(
        chosen[:, :k].sum(axis=1) / k,
        chosen[:, : k + 1].sum(axis=1) / k,
        chosen @ counts / counts[:k].sum(),
    )


def metrics_of_sizes(counts: NDArray[np.int64], k: int, sizes: NDArray[np.int64]) -> Metrics:
    """Return the metrics of selections of the ranks 1..size, size at most k."""
    sums = np.concatenate(([0], np.cumsum(padded(counts, k))))
    return Metrics(sizes / k, sizes / k, sums[sizes] / sums[k])


def unstable_mass(delta_q: float, c: float) -> float:
    """Return delta_max of Carvalho et al. 2020, Lemma 3.1: the chance that an unstable gap passes; c is not 1."""
    power = delta_q**c
    return (2 * power + delta_q - c * (power + 2 * delta_q)) / (4 * (1 - c))


def published_threshold(epsilon: float, delta: float, k: int) -> tuple[float, float]:
    """Return (delta_q, T) of Carvalho et al. 2020, Algorithm 3, kbar = k: the largest delta_q that delta / k allows."""
    gap_rate = (1 - THRESHOLD_SHARE) * epsilon / 2
    c = THRESHOLD_SHARE * epsilon / gap_rate
    log = _bisect(lambda x: unstable_mass(math.exp(x), c) <= delta / k, math.log(delta / k) - 5, 0.0)
    return math.exp(log), -log / gap_rate


def threshold_as_run(epsilon: float, delta: float, k: int) -> tuple[float, float]:
    """Return (delta_q, T) as the authors' public code finds them: delta_q falls from delta in steps of one per cent."""
    exact, _ = published_threshold(epsilon, delta, k)
    delta_q = delta * 0.99 ** max(math.ceil(math.log(exact / delta) / math.log(0.99)), 0)
    return delta_q, -math.log(delta_q) * 2 / ((1 - THRESHOLD_SHARE) * epsilon)


def stable_sizes(
    counts: NDArray[np.int64],
    k: int,
    epsilon: float,
    delta: float,
    trials: int,
    rng: np.random.Generator,
    *,
    rule: Literal["published", "as run"] = "published",
) -> NDArray[np.int64]:
    """Return how many of the first ranks Top Stable returns (eps_EM = 0, kbar = k), shape (trials,).

    Args:
        counts: descending.
        k: the most.
        epsilon: of the release.
        delta: of the release.
        trials: the number of trials.
        rng: randomness.
        rule: "published" tests the gap between ranks i and i + 1 and returns ranks 1..i. "as run", the authors' public
            code, tests that between ranks i + 1 and i + 2: NOT private, rank i + 1 may tie with what it returns.
    """
    shift = 0 if rule == "published" else 1
    near = padded(counts, k + 2)
    gaps = np.maximum(near[shift : k + shift] - near[1 + shift : k + 1 + shift] - 1, 0)
    _, threshold = (published_threshold if rule == "published" else threshold_as_run)(epsilon, delta, k)
    bars = threshold + rng.laplace(0, 1 / (THRESHOLD_SHARE * epsilon), (trials, 1))
    noisy = gaps + rng.laplace(0, 2 / ((1 - THRESHOLD_SHARE) * epsilon), (trials, k))
    return largest_passed(noisy > bars)


def discrete_stable_sizes(
    gaps: NDArray[np.int64], threshold: int, bar_scale: float, gap_scale: float, trials: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the sizes of our TopStable with numpy's discrete Laplace noise, the difference of two geometrics."""

    def laplace(scale: float, shape: tuple[int, int]) -> NDArray[np.int64]:
        p = -math.expm1(-1 / scale)
        return rng.geometric(p, shape) - rng.geometric(p, shape)

    bars = threshold + laplace(bar_scale, (trials, 1))
    return largest_passed(gaps + laplace(gap_scale, (trials, len(gaps))) > bars)


def largest_passed(passed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the largest 1-based index that is True in each row, or 0."""
    k = passed.shape[1]
    return np.where(passed.any(axis=1), k - np.argmax(passed[:, ::-1], axis=1), 0).astype(np.int64)


def theorem1_epsilon(epsilon: float, rounds: int, delta: float) -> float:
    """Return epsilon of *rounds* peels of the exponential mechanism (Durfee & Rogers 2019, Theorem 1)."""
    log = math.log(1 / delta)
    return min(
        rounds * epsilon,
        rounds * epsilon * math.tanh(epsilon / 2) + epsilon * math.sqrt(2 * rounds * log),
        rounds * epsilon**2 / 2 + epsilon * math.sqrt(rounds * log / 2),
    )


def theorem1_epsilon_per_round(epsilon: float, rounds: int, delta: float) -> float:
    """Return the largest epsilon of one peel with `theorem1_epsilon` at most *epsilon*."""
    return _bisect(lambda x: theorem1_epsilon(x, rounds, delta) <= epsilon, 0.0, epsilon)


def epsilon_per_round_as_run(epsilon: float, rounds: int, delta: float) -> float:
    """Return epsilon of one peel as the authors' code finds it: on a grid of 0.0001 from epsilon / rounds up."""
    steps = (theorem1_epsilon_per_round(epsilon, rounds, delta) - epsilon / rounds) / 1e-4
    return epsilon / rounds + math.floor(steps + 1e-9) * 1e-4


def cutoff_probabilities(
    counts: NDArray[np.int64], k: int, epsilon: float, delta: float, rule: Literal["as run", "right"]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the cut-offs that may be chosen, and their probabilities.

    Args:
        counts: descending.
        k: the least cut-off.
        epsilon: of the choice.
        delta: of the threshold.
        rule: "right": k..5k, in proportion to exp(-epsilon threshold), the lowest threshold is the likeliest. "as run":
            the authors' public code: k..5k-1, in proportion to exp(+epsilon threshold), the HIGHEST is the likeliest;
            and the threshold there takes the count of the cut-off's own rank for that of the next.
    """
    if rule == "right":
        cutoffs, sign, offset = np.arange(k, 5 * k + 1), -1, 0
    else:
        cutoffs, sign, offset = np.arange(k, 5 * k), 1, -1
    exponents = sign * (epsilon * padded(counts, 5 * k + 1)[cutoffs + offset] + np.log(cutoffs / delta))
    weights = np.exp(exponents - exponents.max())
    return cutoffs, weights / weights.sum()


def gumbel_sets(
    counts: NDArray[np.int64],
    k: int,
    cutoffs: NDArray[np.int64],
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    strict: bool,
) -> NDArray[np.bool_]:
    """Return which ranks the Gumbel method returns with each trial's cut-off, shape (trials, 5k + 1).

    Args:
        counts: descending.
        k: the most items.
        cutoffs: int64 of shape (trials,).
        epsilon: of one peel.
        delta: of the threshold.
        rng: randomness.
        strict: True to leave out items that tie with the cut (needed for a threshold with ln(cutoff / delta)).
    """
    near = padded(counts, 5 * k + 1)
    trials, below = len(cutoffs), near[cutoffs]
    keys = near + rng.gumbel(0, 1 / epsilon, (trials, len(near)))
    keys[np.arange(len(near)) >= cutoffs[:, None]] = -np.inf
    if strict:
        keys[near <= below[:, None]] = -np.inf
    rivals = below + 1 + np.log(cutoffs / delta) / epsilon + rng.gumbel(0, 1 / epsilon, trials)
    kth = np.partition(keys, len(near) - k, axis=1)[:, len(near) - k]
    return (keys >= kth[:, None]) & (keys > rivals[:, None])


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the largest point of [low, high] at which *holds*; it must hold at low, and nowhere beyond that point."""
    if holds(high):
        return high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
