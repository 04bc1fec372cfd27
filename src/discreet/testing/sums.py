"""Exact audits of released sums: what labels, counts and sums tell together about one user."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from discreet.errors import InputError
from discreet.mechanisms import KnownGumbel, KnownLaplace, UnknownGumbel, UnknownLaplace
from discreet.mechanisms.base import count_noise
from discreet.mechanisms.sums import ListedSums
from discreet.testing.audit import ROUNDING, distribution, moved_noise, together, values_divergence

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from numpy.typing import NDArray

    from discreet.mechanisms.sums import RankedSums
    from discreet.noise import Noise
    from discreet.values import ExactHead

Step: TypeAlias = "tuple[Noise, Mapping[str, int], Mapping[str, int]]"
"""Noise, and by label what it is added to on one head and on the other."""


def sums_divergence(mechanism: RankedSums | ListedSums, head: ExactHead, neighbour: ExactHead, epsilon: float) -> float:
    """Return delta at *epsilon*, both directions, of all that *mechanism* releases, with everything its proof reveals.

    The noise of values had no part in finding the items, so given the labels all values are independent, and those that
    did not move tell nothing. Averages follow from counts and sums.

    Args:
        mechanism: sums of a whole listed domain, of what a Gumbel mechanism returns (with its counts, if it releases
            any), or of all that is above the threshold of a Laplace mechanism.
        head: with labels and sums, as from `head_of`.
        neighbour: likewise.
        epsilon: at least 0.

    Raises:
        InputError: the k largest of a Laplace mechanism, since its audit shows all values, and so would show all sums.
    """
    noise = mechanism.sum_noise()
    steps: list[Step] = [(noise, _by_label(head, head.sums), _by_label(neighbour, neighbour.sums))]
    if isinstance(mechanism, ListedSums):
        certain: Mapping[Hashable, float] = {(0, head.labels, False): 1.0}
        return _divergence(certain, certain, steps, epsilon)
    ranking = mechanism.ranking
    if isinstance(ranking, KnownLaplace | UnknownLaplace) and ranking.k is None:
        return values_divergence(ranking, head, neighbour, epsilon, noise)
    if not isinstance(ranking, KnownGumbel | UnknownGumbel):
        raise InputError(f"the outcomes of {mechanism.name} with a k are not enumerated")
    if ranking.counts is not None:
        counted = count_noise(ranking.counts, ranking.epsilon, ranking.rows_per_group)
        steps.append((counted, _by_label(head, head.counts), _by_label(neighbour, neighbour.counts)))
    return _divergence(distribution(ranking, head), distribution(ranking, neighbour), steps, epsilon)


def _by_label(head: ExactHead, values: NDArray[np.int64] | None) -> Mapping[str, int]:
    if values is None:
        raise InputError("an audit of sums needs heads with sums")
    return dict(zip(head.labels, values.tolist(), strict=True))


def _divergence(
    one: Mapping[Hashable, float], other: Mapping[Hashable, float], steps: list[Step], epsilon: float
) -> float:
    """The divergence, both directions, of outcomes (cut-off, labels, reached) with noisy values beside the labels."""
    beside: dict[frozenset[str], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
    factor = math.exp(epsilon)
    one_head, other_head = (values.keys() for values in steps[0][1:])
    there = here = ROUNDING
    for outcome in {**one, **other}:
        labels = frozenset(outcome[1])  # type: ignore[index]
        if labels not in beside:
            common = sorted(labels & one_head & other_head)
            beside[labels] = _joint((noise, b[i] - a[i]) for noise, a, b in steps for i in common)
        p, q = one.get(outcome, 0.0) * beside[labels][0], other.get(outcome, 0.0) * beside[labels][1]
        here += float(np.maximum(p - factor * q, 0).sum())
        there += float(np.maximum(q - factor * p, 0).sum())
    return max(here, there)


def _joint(moves: Iterable[tuple[Noise, int]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Independent noises around 0, and around where each moved to, by likelihood ratio."""
    one = other = np.ones(1)
    for noise, moved in moves:
        if moved:
            before, after = moved_noise(noise, moved)
            one, other = together(np.outer(one, before), np.outer(other, after))
    return one, other
