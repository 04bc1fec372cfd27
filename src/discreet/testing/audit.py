"""Audits: how much a mechanism's outcomes reveal about one user, on heads small enough to enumerate all outcomes.

*Exact*: the public structure of a mechanism (its races, gaps, margins and noise) determines the probability of every
outcome, and two such distributions the hockey-stick divergence, which is at most delta at epsilon if and only if the
pair is (epsilon, delta)-indistinguishable. An outcome here has at least the published information: it includes the
cut-off, whether the threshold was reached, and the threshold's value. Outcomes have labels, not ranks, as for analysts.

*Statistical*: many releases on two neighbouring heads give a lower confidence bound for delta at epsilon, which tests
the code that samples.

Probabilities are floats with relative errors far below 1e-13; divergences are rounded up by `ROUNDING`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from discreet.errors import InputError
from discreet.mechanisms import KnownGumbel, KnownLaplace, Mechanism, TopStable, UnknownGumbel, UnknownLaplace
from discreet.mechanisms.anchored import SharedNoise
from discreet.mechanisms.base import noise_of
from discreet.noise import DiscreteLaplace, KeyedBits, Noise, Race
from discreet.values import ExactHead, Outcome

Distribution: TypeAlias = "Mapping[Hashable, float]"
"""Probabilities by outcome. They may sum to less than 1; the missing mass is treated as a privacy loss."""

ROUNDING = 1e-12
"""An upper bound of the floating-point errors of a divergence."""

_TAIL_LAPLACE = 37  # in scales: less than 1e-16 of the noise's mass is outside
_TAIL_GAUSSIAN = 9


def hockey_stick(one: Distribution, other: Distribution, epsilon: float) -> float:
    """Return delta at *epsilon* in one direction, the sum of max(one - e^epsilon * other, 0), rounded up.

    Args:
        one: the distribution P of the divergence of P from Q.
        other: the distribution Q.
        epsilon: at least 0.
    """
    factor = math.exp(min(epsilon, 700.0))  # exp(710) overflows; a smaller epsilon only raises the result
    missing = max(0.0, 1 - math.fsum(one.values()))
    above = [over for o, p in one.items() if (over := p - factor * other.get(o, 0.0)) > 0]
    return math.fsum(above) + missing + ROUNDING


def divergence(one: Distribution, other: Distribution, epsilon: float) -> float:
    """Return the larger `hockey_stick` of the two directions: delta at *epsilon* of the pair."""
    return max(hockey_stick(one, other, epsilon), hockey_stick(other, one, epsilon))


def renyi(one: Distribution, other: Distribution, alpha: float) -> float:
    """Return the Rényi divergence of order *alpha* in one direction, which rho-zCDP bounds by alpha * rho.

    Args:
        one: probabilities that sum to 1.
        other: probabilities that sum to 1.
        alpha: above 1; infinity gives the logarithm of the largest ratio.

    Returns:
        infinity if *one* can have an outcome that *other* cannot.
    """
    masses = [(p, other.get(outcome, 0.0)) for outcome, p in one.items() if p > 0]
    if any(q <= 0 for _, q in masses):
        return math.inf
    losses = [math.log(p / q) for p, q in masses]
    most = max(losses)
    if math.isinf(alpha):
        return most
    # Scaled by the largest loss, because exp((alpha - 1) * loss) overflows.
    scaled = [p * math.exp((alpha - 1) * (loss - most)) for (p, _), loss in zip(masses, losses, strict=True)]
    return most + math.log(math.fsum(scaled)) / (alpha - 1)


def head_of(
    counts: Mapping[str, int],
    limit: int,
    *,
    known_domain: bool = False,
    sums: Mapping[str, int] | None = None,
    rows: Mapping[str, int] | None = None,
) -> ExactHead:
    """Return the head of a histogram, as from an engine: descending counts, ties by label, at most limit + 1 items.

    Args:
        counts: counts by label, none negative. Without *known_domain*, items of count 0 are left out.
        limit: dbar.
        known_domain: True to keep items of count 0.
        sums: sums by label, or None.
        rows: numbers of rows of averages by label, or None.
    """
    items = sorted((-count, label) for label, count in counts.items() if count > 0 or known_domain)[: limit + 1]
    labels = tuple(label for _, label in items)
    values = None if sums is None else np.array([sums[label] for label in labels], dtype=np.int64)
    sizes = None if rows is None else np.array([rows[label] for label in labels], dtype=np.int64)
    return ExactHead(np.array([-count for count, _ in items], dtype=np.int64), limit, labels, values, rows=sizes)


def race_distribution(race: Race, limit: int) -> dict[tuple[tuple[int, ...], bool], float]:
    """Return the distribution of `Race.run`: the first *limit* items before the rival, and whether it was reached."""
    rival = len(race.scores)
    scores = [int(score) for score in race.scores] + ([] if race.rival is None else [race.rival.score])
    if not scores:
        return {((), False): 1.0}
    factors: list[int | Fraction] = [1] * rival if race.divisors is None else [int(d) for d in race.divisors]
    logs = [float(race.scale * (score - max(scores))) for score in scores]
    for i, divisor in enumerate(factors):
        logs[i] -= math.log(divisor)
    if race.rival is not None:
        logs[rival] += math.log(race.rival.factor.numerator) - math.log(race.rival.factor.denominator)
    weights = [math.exp(log - max(logs)) for log in logs]
    probabilities: dict[tuple[tuple[int, ...], bool], float] = {}

    def walk(order: tuple[int, ...], rest: list[int], probability: float) -> None:
        if len(order) == limit or not rest:
            probabilities[order, False] = probability
            return
        # The smallest of independent exponential variables with these rates is i with probability weights[i] / total.
        total = math.fsum(weights[i] for i in rest)
        for i in rest:
            reached = probability * weights[i] / total
            if i == rival:
                probabilities[order, True] = reached
            else:
                walk((*order, i), [j for j in rest if j != i], reached)

    walk((), list(range(len(weights))), 1.0)
    return probabilities


def distribution(mechanism: Mechanism, head: ExactHead) -> dict[Hashable, float]:
    """Return the distribution of the labels that *mechanism* releases, with everything else its proof reveals.

    Counts that a Gumbel mechanism releases are a step of their own, after the labels, and not part of this.

    Args:
        mechanism: KnownGumbel or UnknownGumbel: outcomes are (cut-off, labels in order, whether the threshold was
            reached); TopStable: outcomes are sets of labels.
        head: with labels, as from `head_of`; the number of outcomes grows like n^k.

    Raises:
        InputError: another mechanism; see `values_divergence`.
    """
    if isinstance(mechanism, KnownGumbel):
        return _labelled(head, [(0, 1.0, race_distribution(mechanism.race(head), mechanism.k))])
    if isinstance(mechanism, UnknownGumbel):
        cutoffs = {mechanism.head_limit: 1.0}
        if mechanism.optimise_cutoff:
            chosen = race_distribution(mechanism.cutoff_race(head), 1)
            cutoffs = {mechanism.k + order[0]: p for (order, _), p in chosen.items()}
        return _labelled(
            head,
            [(c, p, race_distribution(mechanism.race(head, c), mechanism.k)) for c, p in cutoffs.items()],
        )
    if isinstance(mechanism, TopStable):
        return _stable(mechanism, head)
    raise InputError(f"the outcomes of {mechanism.name} are not enumerated")


def _labelled(
    head: ExactHead, parts: list[tuple[int, float, dict[tuple[tuple[int, ...], bool], float]]]
) -> dict[Hashable, float]:
    labels = head.labels
    return {
        (cutoff, tuple(labels[i] for i in order), reached): share * p
        for cutoff, share, orders in parts
        for (order, reached), p in orders.items()
    }


def _stable(mechanism: TopStable, head: ExactHead) -> dict[Hashable, float]:
    noise = mechanism.threshold_noise()
    bar = np.arange(-radius(noise), radius(noise) + 1)
    undecided = pmf(noise, bar)  # Pr[threshold noise is bar[i], and no gap so far was above the threshold]
    probabilities: dict[Hashable, float] = {frozenset(): 0.0}
    bar += mechanism.threshold()
    for i, gap in reversed(list(enumerate(mechanism.gaps(head).tolist()))):  # as the mechanism: from the last rank up
        passes = _laplace_tail(mechanism.gap_noise(), bar - gap + 1)
        fails = _laplace_tail(mechanism.gap_noise(), gap - bar)
        stored = min(i + 1, int(np.count_nonzero(head.counts)))
        result = frozenset(head.labels[:stored])
        probabilities[result] = probabilities.get(result, 0.0) + float((undecided * passes).sum())
        undecided = undecided * fails
    probabilities[frozenset()] += float(undecided.sum())
    return probabilities


def _laplace_tail(noise: DiscreteLaplace, least: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return Pr[noise >= least]."""
    decay = math.exp(-1 / float(noise.scale))
    far = decay ** np.where(least > 0, least, 1 - least) / (1 + decay)
    return np.where(least > 0, far, 1 - far)


def radius(noise: Noise) -> int:
    """Return a radius around 0 that contains all but 1e-16 of the noise's mass."""
    return math.ceil(_TAIL_LAPLACE * noise.scale if isinstance(noise, DiscreteLaplace) else _TAIL_GAUSSIAN * noise.std)


def pmf(noise: Noise, values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the probabilities of *values*, for discrete Laplace and discrete Gaussian noise."""
    if isinstance(noise, DiscreteLaplace):
        rate = float(1 / noise.scale)
        return np.exp(-rate * np.abs(values)) * math.tanh(rate / 2)

    return np.exp(-0.5 * (values / noise.std) ** 2) / _gaussian_total(noise.std, 5 * radius(noise))


@lru_cache(maxsize=256)
def _gaussian_total(std: float, reach: int) -> float:
    return math.fsum(np.exp(-0.5 * (np.arange(-reach, reach + 1) / std) ** 2))


def moved_noise(noise: Noise, moved: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the distributions of *noise* around 0 and around *moved*; runs of equal likelihood ratios are merged."""
    reach = radius(noise)
    values = np.arange(min(moved, 0) - reach, max(moved, 0) + reach + 1)
    one = pmf(noise, values)
    other = pmf(noise, values - moved)
    return merge_equal_ratios(one, other)


def merge_equal_ratios(
    one: NDArray[np.float64], other: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Merge outcomes with equal likelihood ratios in two distributions, which leaves every divergence unchanged.

    Args:
        one: probabilities above 0, of any shape.
        other: probabilities above 0 of the same outcomes.
    """
    logs = (np.log(one) - np.log(other)).ravel()
    order = np.argsort(logs)
    starts = np.flatnonzero(np.diff(logs[order], prepend=-np.inf) > 1e-11)
    return np.add.reduceat(one.ravel()[order], starts), np.add.reduceat(other.ravel()[order], starts)


def values_divergence(
    mechanism: KnownLaplace | UnknownLaplace,
    head: ExactHead,
    neighbour: ExactHead,
    epsilon: float,
    sums: Noise | None = None,
) -> float:
    """Return delta at *epsilon*, in both directions, of the noisy threshold and of all noisy values above it.

    The values are independent conditionally on the threshold, so items with equal counts in both heads carry no
    information and are left out, and adjacent values with the same likelihood ratio are merged. The only approximation
    is that noise outside `radius` is treated as a privacy loss. The number of outcomes is exponential in the
    number of items that differ.

    Args:
        mechanism: a KnownLaplace (whose threshold is below everything) or an UnknownLaplace, with any k.
        head: with labels, as from `head_of`.
        neighbour: the head of a neighbouring table.
        epsilon: at least 0.
        sums: noise of the sums of the items above the threshold, which are also released; None for no sums.

    Raises:
        InputError: the values share a part of their noise.
    """
    if isinstance(mechanism, KnownLaplace) and isinstance(mechanism.count_noise(), SharedNoise):
        raise InputError("the values share a part of their noise, and the audit covers independent noise only")
    noise = noise_of(mechanism.noise, mechanism.scale)
    values = _stored(mechanism, head)
    neighbour_values = _stored(mechanism, neighbour)
    centres = [count for count, _ in (*values.values(), *neighbour_values.values())]
    if isinstance(mechanism, UnknownLaplace):
        lift = mechanism.rows_per_group + mechanism.margin()
        bottoms = [h.count_at(mechanism.head_limit + 1) + lift for h in (head, neighbour)]
        centres += bottoms
        grid = np.arange(min(centres) - radius(noise), max(centres) + radius(noise) + 1)
        bars = grid
        p, q = (pmf(noise, bars - bottom)[:, None] for bottom in bottoms)
    else:
        grid = np.arange(min(centres) - radius(noise), max(centres) + radius(noise) + 1)
        bars = grid[:1] - 1
        p = q = np.ones((1, 1))
    for label in values.keys() | neighbour_values.keys():
        (one, one_sum), (two, two_sum) = values.get(label, (None, 0)), neighbour_values.get(label, (None, 0))
        if (one, one_sum) != (two, two_sum):
            cells_p, cells_q = _cells(noise, grid, bars, one, two)
            if sums is not None and one is not None and two is not None:
                # each released value is split by the noisy sums
                split = [
                    np.concatenate((cells[:, :1], (cells[:, 1:, None] * part).reshape(len(cells), -1)), axis=1)
                    for cells, part in zip((cells_p, cells_q), moved_noise(sums, two_sum - one_sum), strict=True)
                ]
                cells_p, cells_q = split
            p = (p[:, :, None] * cells_p[:, None, :]).reshape(len(bars), -1)
            q = (q[:, :, None] * cells_q[:, None, :]).reshape(len(bars), -1)
    factor = math.exp(epsilon)
    deltas = [float(np.maximum(a - factor * b, 0).sum()) + max(0.0, 1 - float(a.sum())) for a, b in ((p, q), (q, p))]
    return max(deltas) + ROUNDING


def _stored(mechanism: KnownLaplace | UnknownLaplace, head: ExactHead) -> dict[str, tuple[int, int]]:
    """Return the counts that get noise, and their sums (0 if there are none), by label."""
    counts = head.counts[: mechanism.head_limit].tolist()
    sums = np.zeros_like(head.counts) if head.sums is None else head.sums
    items = zip(head.labels, counts, sums.tolist(), strict=False)
    return {label: (count, total) for label, count, total in items if count > 0 or isinstance(mechanism, KnownLaplace)}


def _cells(
    noise: Noise, grid: NDArray[np.int64], bars: NDArray[np.int64], one: int | None, other: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return one item's outcomes at each threshold on both heads: not above it, then values merged by likelihood ratio.

    A count of None is an item outside the head, which is never released.
    """
    edges = grid[[0, -1]] + [0, 1]
    if one is not None and other is not None:
        logs = np.log(pmf(noise, grid - one)) - np.log(pmf(noise, grid - other))
        edges = np.concatenate((grid[:1], grid[1:][np.abs(np.diff(logs)) > 1e-11], grid[-1:] + 1))

    def shown(count: int | None) -> NDArray[np.float64]:
        if count is None:
            cells = np.zeros((len(bars), len(edges)))
            cells[:, 0] = 1
            return cells
        below = np.concatenate(([0.0], np.cumsum(pmf(noise, grid - count))))  # Pr[value < grid[0] + index]
        places = np.maximum(edges[None, :], bars[:, None] + 1) - grid[0]
        at_edges = below[np.minimum(places, len(grid))]
        return np.concatenate((below[np.clip(bars + 1 - grid[0], 0, None)][:, None], np.diff(at_edges, axis=1)), axis=1)

    return shown(one), shown(other)


def released(labels: tuple[str, ...], outcome: Outcome) -> Hashable:
    """Return the visible part of an outcome: the labels, in order if the outcome is ordered, and the counts, if any."""
    seen = tuple(labels[i] for i in outcome.positions)
    if outcome.counts is not None:
        return tuple(zip(seen, outcome.counts.tolist(), strict=True))
    return seen if outcome.ordered else frozenset(seen)


def sample(
    mechanism: Mechanism,
    head: ExactHead,
    trials: int,
    secret: bytes,
    view: Callable[[tuple[str, ...], Outcome], Hashable] = released,
) -> list[Hashable]:
    """Return *trials* independent releases, mapped by *view* and determined by *secret*.

    Args:
        secret: at least 32 bytes.
        view: maps the labels of the head and an outcome to the compared value.
    """
    return [view(head.labels, mechanism.release(head, KeyedBits(secret, trial))) for trial in range(trials)]


def statistical_audit(one: Iterable[Hashable], other: Iterable[Hashable], epsilon: float, miss: float = 1e-6) -> float:
    """Return a lower bound for delta at *epsilon* in both directions, from samples on two neighbouring heads.

    One half of each sample chooses the outcomes that look likelier than e^epsilon times under the other head; the other
    half bounds their probabilities (Clopper & Pearson 1934).

    Args:
        one: independent views of releases on one head, as from `sample`.
        other: independent views on its neighbour, with another secret.
        epsilon: at least 0.
        miss: largest probability that the bound exceeds the true delta.

    Returns:
        the bound, 0 without evidence. A bound above the claimed delta disproves the claim.
    """
    samples = [list(one), list(other)]
    halves = [(Counter(s[: len(s) // 2]), Counter(s[len(s) // 2 :])) for s in samples]
    factor = math.exp(epsilon)
    bounds = [0.0]
    for (choose_p, test_p), (choose_q, test_q) in (halves, halves[::-1]):
        scale = factor * choose_p.total() / max(choose_q.total(), 1)
        event = [outcome for outcome, n in choose_p.items() if n > scale * choose_q[outcome]]
        least, _ = binomial_bounds(sum(test_p[o] for o in event), test_p.total(), miss / 4)
        _, most = binomial_bounds(sum(test_q[o] for o in event), test_q.total(), miss / 4)
        bounds.append(least - factor * most)
    return max(bounds)


def binomial_bounds(successes: int, trials: int, miss: float) -> tuple[float, float]:
    """Return exact one-sided bounds of a probability (Clopper & Pearson 1934); each fails with at most *miss*.

    Args:
        successes: from 0 to *trials*.
        trials: at least 0.
        miss: above 0, below 1/2.
    """
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, trials + 1)))))
    choose = logs[-1] - logs - logs[::-1]

    def least(n: int) -> float:
        """Return the largest p with Pr[X >= n] <= miss, rounded down."""
        if n == 0:
            return 0.0
        x = np.arange(n, trials + 1)
        low = 0.0
        high = 1.0
        for _ in range(50):
            p = (low + high) / 2
            tail = np.exp(choose[n:] + x * math.log(p) + (trials - x) * math.log1p(-p)).sum()
            low, high = (p, high) if tail <= miss else (low, p)
        return low * (1 - 1e-9)

    return least(successes), 1 - least(trials - successes)
