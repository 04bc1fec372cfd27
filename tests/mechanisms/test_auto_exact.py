"""Exact audit of `auto` for a top k: the gap, then the race from the head alone, or the histogram and a branch.

The gap's noise and the race's outcomes are enumerated on small neighbouring tables. After a gap that is too small, the
rest is bounded by its share of Theorem 2: the histogram of sizes, then the worse of two rounds and the head.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from scipy import special, stats

from discreet.mechanisms import Request, auto
from discreet.mechanisms.auto import Auto
from discreet.mechanisms.two_round import COST_UNIT, most_second
from discreet.noise import KeyedBits
from discreet.testing.audit import distribution, head_of
from discreet.testing.pairs import ArrayPairs

from .neighbours import named, neighbours

pytestmark = pytest.mark.exact


def gap_of(mechanism, counts, monkeypatch):
    """Return the exact gap, the precision of its noise and the least gap for the race, as `release` computes them."""
    seen = []
    monkeypatch.setattr(auto, "add_noise", lambda *given: seen.append(given[2]) or given[0])
    exact, needed = mechanism._gap(mechanism.race, head_of(named(counts), mechanism.head_limit), None)
    return exact, int(seen[0][0]), needed


def rest_of(mechanism):
    """Return the bound on delta, at a level of epsilon, of all that follows a gap that is too small for the race."""
    two_round, head = mechanism.two_round, mechanism.head
    number = int(two_round.mu**2 * COST_UNIT / 494)  # what follows the histogram, before a branch
    histogram = math.sqrt((two_round.budget.histogram + number) / COST_UNIT)
    mu = math.sqrt(float(two_round.mu) ** 2 - two_round.budget.histogram / COST_UNIT)
    orders = 1 + np.exp(np.linspace(-3, 8, 200))
    edges = np.arange(-9, 9.01, 0.1)
    masses, losses = np.diff(stats.norm.cdf(edges)), histogram**2 / 2 + histogram * (edges[:-1] + 0.05)

    def curve(level):
        return special.ndtr(mu / 2 - level / mu) - np.exp(level + special.log_ndtr(-mu / 2 - level / mu))

    def zcdp(level):
        exponent = (orders - 1) * (orders * float(head.limit.rho) - level[:, None])
        return np.exp(np.minimum(0, (exponent + orders * np.log1p(-1 / orders) - np.log(orders - 1)).min(axis=1)))

    @cache
    def bound(level):
        levels = level - losses
        one, other = curve(levels) + float(two_round.lost), zcdp(levels) + float(head.limit.delta)
        return float(masses @ np.minimum(1, np.maximum(one, other)))

    return bound


def rest_with_second_test(mechanism):
    """Return a bound on delta, at a level of epsilon, of the histogram, a second test, and a race that pays for it.

    The second test is epsilon-DP for the epsilon of a second histogram at most, and so is the count of items above a
    cap: the worst loss of such a test is that of randomized response.
    """
    two_round, race = mechanism.two_round, mechanism.second_race.worst_cost()
    number = int(two_round.mu**2 * COST_UNIT / 494)
    histogram = math.sqrt((two_round.budget.histogram + number) / COST_UNIT)
    again = float(most_second(mechanism.light.epsilon))
    orders = 1 + np.exp(np.linspace(-3, 8, 200))
    edges = np.arange(-9, 9.01, 0.1)
    masses, losses = np.diff(stats.norm.cdf(edges)), histogram**2 / 2 + histogram * (edges[:-1] + 0.05)

    def zcdp(level):
        exponent = (orders - 1) * (orders * float(race.rho) - level[:, None])
        return np.exp(np.minimum(0, (exponent + orders * np.log1p(-1 / orders) - np.log(orders - 1)).min(axis=1)))

    def bound(level):
        of_test = ((again, special.expit(again)), (-again, special.expit(-again)))
        total = sum(mass * np.minimum(1, zcdp(level - losses - loss) + float(race.delta)) for loss, mass in of_test)
        return float(masses @ total)

    return bound


def rounded(std):
    """Return the probabilities of a Gaussian that is rounded to whole numbers, from -9 standard deviations to 9."""
    edges = np.arange(-math.ceil(9 * std), math.ceil(9 * std) + 1) - 0.5
    return np.diff(stats.norm.cdf(edges, scale=std))


def race_of(mechanism, counts, other):
    """Return the probabilities of everything that the race releases on two neighbours, in one order."""
    heads = [head_of(named(c), mechanism.head_limit) for c in (counts, other)]
    one, two = (distribution(mechanism.race, head) for head in heads)
    cells = []
    for outcome in one.keys() | two.keys():
        p, q = np.array([one.get(outcome, 0.0)]), np.array([two.get(outcome, 0.0)])
        if mechanism.race.counts is not None and outcome[1]:
            # Anchored counts are a function of these: a user moves each by 1, whichever items the user has.
            noise = mechanism.race._noise()
            for variance in (*[noise.apart] * len(outcome[1]), noise.shared):
                law = rounded(math.sqrt(variance))
                p, q = np.outer(p, law[:-1]).ravel(), np.outer(q, law[1:]).ravel()
        cells.append((p, q))
    return tuple(np.concatenate(side) for side in zip(*cells, strict=True))


def delta_of(mechanism, epsilon, rest, counts, other, monkeypatch):
    """Return delta at *epsilon* of the whole run between two neighbours, in both directions."""
    gaps, (precision, _), (needed, _) = zip(*(gap_of(mechanism, c, monkeypatch) for c in (counts, other)), strict=True)
    std = math.sqrt(COST_UNIT / precision)
    values = np.arange(min(gaps) - math.ceil(9 * std), max(gaps) + math.ceil(9 * std))
    laws = [np.diff(stats.norm.cdf(np.append(values, values[-1] + 1) - 0.5, gap, std)) for gap in gaps]
    raced = race_of(mechanism, counts, other)
    enough = values >= needed
    found = []
    for (p, q), (r, s) in ((laws, raced), (laws[::-1], raced[::-1])):
        by_race = np.maximum(np.outer(p[enough], r) - math.exp(epsilon) * np.outer(q[enough], s), 0).sum()
        levels = np.round(epsilon - np.log(p[~enough] / q[~enough]), 3).tolist()
        found.append(by_race + p[~enough] @ [rest(level) for level in levels])
    return max(found)


CASES = [
    (1, Fraction(1, 100), Request(1, 2)),
    (2, Fraction(1, 1000), Request(1, 3)),
    (2, Fraction(1, 1000), Request(2, 3, counts=False)),
]


def worst_delta(mechanism, epsilon, monkeypatch):
    """Return the largest delta of neighbours whose gaps are far below, around and above the least gap for the race."""
    needed, rest = gap_of(mechanism, (0,) * 3, monkeypatch)[2], rest_of(mechanism)
    tables = [(2, 1, 0), *((needed * share // 100,) * mechanism.race.k for share in (60, 100, 140))]
    return max(
        delta_of(mechanism, epsilon, rest, counts, other, monkeypatch)
        for start in tables
        for counts in {(start + tail)[:4] for tail in ((0, 0, 0), (9, 9, 9), (needed, 3, 0))}
        for other in neighbours(counts)
    )


@pytest.mark.parametrize(("epsilon", "delta", "request_"), CASES)
def test_gap_race_and_what_follows_a_small_gap_are_private_together(epsilon, delta, request_, monkeypatch):
    """Theorem 2 with the histogram after the gap: (epsilon, delta)-DP, and no more than a fiftieth of delta unused."""
    found = worst_delta(Auto.at_epsilon(Fraction(epsilon), delta, request_), epsilon, monkeypatch)
    assert 0.98 * delta < found <= delta


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1, Fraction(1, 10**8)), (4, Fraction(1, 10**8)), (1, Fraction(1, 100))]
)
@pytest.mark.parametrize("k", [1, 10])
def test_a_race_after_a_second_test_is_private_with_all_tests(epsilon, delta, k):
    """It pays for the second histogram, or for the count of items above a cap; a race that does not costs too much."""
    mechanism = Auto.at_epsilon(Fraction(epsilon), delta, Request(k, 1000))
    gap = auto._share_precision(mechanism.two_round, auto.GAP_SHARE) / COST_UNIT
    edges = np.arange(-9, 9.01, 0.1)
    masses, losses = np.diff(stats.norm.cdf(edges)), gap / 2 + math.sqrt(gap) * (edges[:-1] + 0.05)

    def whole(mechanism):
        rest = rest_with_second_test(mechanism)
        return masses @ [rest(level) for level in epsilon - losses]

    assert 0.3 * delta < whole(mechanism) <= delta  # the other branches have the rest
    assert whole(replace(mechanism, second_race=mechanism.race)) > delta


def _unpaid(mechanism):
    """Return two rounds that also spend what the gap costs."""
    return replace(mechanism, two_round=replace(mechanism.two_round, mu=mechanism.two_round.mu / Fraction(994, 1000)))


def _fast(mechanism):
    """Return a race with twice its epsilon."""
    return replace(mechanism, race=replace(mechanism.race, epsilon=2 * mechanism.race.epsilon))


@pytest.mark.parametrize("planted", [_unpaid, _fast])
@pytest.mark.parametrize(("epsilon", "delta", "request_"), CASES[1:])
def test_planted_branches_that_spend_too_much_are_detected(planted, epsilon, delta, request_, monkeypatch):
    """The audit sees a gap that nothing pays for, and a race above its budget."""
    mechanism = planted(Auto.at_epsilon(Fraction(epsilon), delta, request_))
    assert worst_delta(mechanism, epsilon, monkeypatch) > delta


def test_a_gap_with_half_its_variance_is_detected(monkeypatch):
    """Planted: the gap's noise is drawn with twice the precision that its share pays for."""
    precise = auto._share_precision
    monkeypatch.setattr(auto, "_share_precision", lambda branch, share: 2 * precise(branch, share))
    epsilon, delta, request_ = CASES[0]
    mechanism = Auto.at_epsilon(Fraction(epsilon), delta, request_)
    assert worst_delta(mechanism, epsilon, monkeypatch) <= delta  # paid for
    monkeypatch.setattr(auto, "_share_precision", precise)
    mechanism = Auto.at_epsilon(Fraction(epsilon), delta, request_)
    monkeypatch.setattr(auto, "_share_precision", lambda branch, share: 8 * precise(branch, share))
    assert worst_delta(mechanism, epsilon, monkeypatch) > delta


class HeadAlone(ArrayPairs):
    """Pairs of which the head can be read, but nothing else."""

    def __getattribute__(self, name):
        assert name not in ("users_by_size", "weighted_sums", "users_by_scale", "clipped_sums"), "a query of the pairs"
        return super().__getattribute__(name)


class Recorded(KeyedBits):
    """Bits that record for what they are drawn, in order."""

    def __init__(self):
        super().__init__(bytes(32), "auto")
        self.drawn = []

    def uint64(self, label, n, start=0):
        self.drawn += [step for step in [label.split("/")[0]] if step not in self.drawn]
        return super().uint64(label, n, start)


def test_the_race_reads_the_head_and_nothing_else():
    """Where count k stands out, no pairs are queried, no sizes are measured, and positions are rows of the head."""
    sizes = [8000, 9000, 3, 2]
    pairs, bits = (
        HeadAlone(np.concatenate([np.arange(size) for size in sizes]), np.repeat(np.arange(4), sizes)),
        Recorded(),
    )
    outcome = Auto.at_epsilon(Fraction(1), Fraction(1, 10**8), Request(2, 3)).release(pairs, bits)
    assert (outcome.chosen, bits.drawn) == ("unknown-gumbel", ["gap", "race", "counts", "anchor"])
    assert outcome.positions.tolist() == [0, 1]
    assert pairs.head(3).labels[outcome.positions].tolist() == [1, 0]


def test_sizes_are_measured_after_a_gap_that_is_too_small():
    """Then what follows is the release without a k, after the gap."""
    bits = Recorded()
    outcome = Auto.at_epsilon(Fraction(1), Fraction(1, 10**8), Request(2, 3)).release(
        ArrayPairs([1, 2, 3], [0, 0, 1]), bits
    )
    assert outcome.chosen == "head"
    assert bits.drawn[:3] == ["gap", "sizes", "anchor"]


def test_a_race_is_charged_with_both_tests():
    """The histogram that the race does not need is charged, so that Theorem 2 holds with the numbers of one order."""
    sizes = [9000, 8000, 3]
    pairs = HeadAlone(np.concatenate([np.arange(size) for size in sizes]), np.repeat([0, 1, 2], sizes))
    mechanism = Auto.at_epsilon(Fraction(1), Fraction(1, 10**8), Request(2, 3))
    outcome = mechanism.release(pairs, KeyedBits(bytes(32), "auto"))
    whole = mechanism.two_round.mu**2 / Fraction(494, 500)  # of the two rounds and the tests
    histogram = Fraction(mechanism.two_round.budget.histogram, COST_UNIT)
    tests = (whole / 100 + whole / 500 + histogram) / 2
    race = mechanism.race.worst_cost().rho
    assert 0 <= race + tests - outcome.cost.rho < Fraction(1, 10**11)
