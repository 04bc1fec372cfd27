"""All histograms over a few labels, their neighbours, and the pair with the largest divergence."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from discreet.mechanisms import KnownLaplace
from discreet.testing.audit import distribution, divergence, head_of, values_divergence
from discreet.testing.mechanisms import sums_divergence
from discreet.values import ExactHead

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Mapping

    from discreet.head_request import SumBounds
    from discreet.mechanisms import Mechanism, UnknownLaplace
    from discreet.mechanisms.sums import ListedSums, RankedSums

Counts = tuple[int, ...]

LABELS = "abcde"
LEEWAY = 1e-11
"""More than the rounding that the audit adds, less than anything that matters."""


def histograms(labels: int, largest: int) -> Iterator[Counts]:
    """Return all histograms of counts 0..largest; position i is the count of label i."""
    return itertools.product(range(largest + 1), repeat=labels)


def shapes(labels: int, largest: int) -> Iterator[Counts]:
    """Return one histogram for each multiset of counts: enough where labels do not break ties."""
    return itertools.combinations_with_replacement(range(largest, -1, -1), labels)


def neighbours(counts: Counts, tau: int = 1, groups: int | None = None) -> Iterator[Counts]:
    """Return all histograms with one user more, who adds up to *tau* to each of at most *groups* counts."""
    for added in itertools.product(range(tau + 1), repeat=len(counts)):
        if 0 < sum(a > 0 for a in added) <= (groups or len(counts)):
            yield tuple(c + a for c, a in zip(counts, added, strict=True))


def users(labels: int, summed: SumBounds, tau: int = 1, groups: int | None = None) -> Iterator[tuple[Counts, Counts]]:
    """Return all possible users: what one adds to each count, up to *tau*, and to the sum of each owned item."""
    absent = [(0, 0)]
    low, high = summed.units
    present = itertools.product(range(1, tau + 1), range(low, high + 1))
    for user in itertools.product([*absent, *present], repeat=labels):
        if 0 < sum(count > 0 for count, _ in user) <= (groups or labels):
            counts, sums = zip(*user, strict=True)
            yield counts, sums


def pairs(start: Iterator[Counts], tau: int = 1, groups: int | None = None) -> Iterator[tuple[Counts, Counts]]:
    """Return every histogram of *start* with every neighbour."""
    return ((counts, more) for counts in start for more in neighbours(counts, tau, groups))


def named(counts: Counts) -> dict[str, int]:
    """Return the counts by label."""
    return dict(zip(LABELS, counts, strict=False))


def worst(
    between: Callable[[Counts, Counts], float], candidates: Iterator[tuple[Counts, Counts]]
) -> tuple[float, tuple[Counts, Counts]]:
    """Return the largest value of *between* and the pair that has it."""
    value, pair = max((between(*pair), pair) for pair in candidates)
    return value, pair


def distributions(mechanism: Mechanism, known_domain: bool = False) -> Callable[[Counts], dict]:
    """Return the exact distribution of the labels that *mechanism* releases on a histogram, cached."""
    return cache(
        lambda counts: distribution(mechanism, head_of(named(counts), mechanism.head_limit, known_domain=known_domain))
    )


def delta_of(
    mechanism: Mechanism, epsilon: float, candidates: Iterator[tuple[Counts, Counts]], known_domain: bool = False
) -> tuple[float, tuple[Counts, Counts]]:
    """Return the exact delta of the labels at *epsilon* over all pairs and directions, and the pair that attains it."""
    of = distributions(mechanism, known_domain)
    return worst(lambda one, other: divergence(of(one), of(other), epsilon), candidates)


def capped(delta: float, epsilon: float, tau: int) -> float:
    """Return the mass that UnkGumb may use: delta, or e^epsilon (1 - e^(-epsilon/tau)) if that is less."""
    return min(delta, math.exp(epsilon) - math.exp(epsilon - epsilon / tau))


def values_delta_of(
    mechanism: KnownLaplace | UnknownLaplace, epsilon: float, candidates: Iterator[tuple[Counts, Counts]]
) -> tuple[float, tuple[Counts, Counts]]:
    """Return the exact delta of threshold, labels and values at *epsilon*; pairs that differ alike count once."""
    known = isinstance(mechanism, KnownLaplace)

    @cache
    def between(one: tuple, other: tuple) -> float:
        heads = [ExactHead(np.array(c, dtype=np.int64), mechanism.head_limit, labels) for labels, c in (one, other)]
        return values_divergence(mechanism, *heads, epsilon)

    def of_heads(one: Counts, other: Counts) -> float:
        heads = [head_of(named(counts), mechanism.head_limit, known_domain=known) for counts in (one, other)]
        return between(*((head.labels, tuple(head.counts.tolist())) for head in heads))

    return worst(of_heads, candidates)


def sums_delta_of(
    mechanism: RankedSums | ListedSums,
    epsilon: float,
    start: Iterator[Counts],
    summed: SumBounds,
    groups: int | None = None,
    *,
    known_domain: bool = False,
    tau: int = 1,
) -> tuple[float, tuple[Counts, Counts, Counts]]:
    """Return the exact delta of counts and sums at *epsilon*, and the pair that attains it.

    Over every histogram of *start* and every user; those who differ in the signs of their sums count once.
    """
    limit = mechanism.head_limit

    @cache
    def between(before: Counts, added: Counts, moved: Counts) -> float:
        after = tuple(map(sum, zip(before, added, strict=True)))
        one, other = ((before, [7] * len(before)), (after, [7 + m for m in moved]))
        heads = [head_of(named(c), limit, known_domain=known_domain, sums=named(s)) for c, s in (one, other)]
        return sums_divergence(mechanism, *heads, epsilon)

    return max(
        (between(before, added, tuple(map(abs, moved))), (before, added, moved))
        for before in start
        for added, moved in users(len(before), summed, tau, groups)
    )


def fit(sampled: Collection[Hashable], expected: Mapping[Hashable, float]) -> float:
    """Return the p-value of a chi-square test that *sampled* follows *expected*; 0 if an outcome is impossible.

    Outcomes expected fewer than five times are taken together.
    """
    seen = Counter(sampled)
    if not seen.keys() <= expected.keys():
        return 0.0
    often = [outcome for outcome, p in expected.items() if p * len(sampled) >= 5]
    cells = [(seen[outcome], expected[outcome] * len(sampled)) for outcome in often]
    cells.append((len(sampled) - sum(n for n, _ in cells), len(sampled) - sum(e for _, e in cells)))
    statistic = sum((n - e) ** 2 / e for n, e in cells if e > 0.5)
    return float(stats.chi2.sf(statistic, len(cells) - 1))
