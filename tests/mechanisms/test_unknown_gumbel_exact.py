"""Exact audits of UnkGumb: every outcome, on all neighbouring pairs of small histograms."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from discreet.mechanisms import UnknownGumbel
from discreet.noise import DiscreteLaplace, Race, Rival
from discreet.testing.audit import head_of, pmf, race_distribution, radius, renyi

from .neighbours import LEEWAY, capped, delta_of, distributions, named, neighbours, pairs, shapes, worst

pytestmark = pytest.mark.exact

ALPHAS = (1.01, 2, 10, 200)
PRICES = [(Fraction(1, 2), Fraction(1, 20)), (Fraction(2), Fraction(1, 2)), (Fraction(1), Fraction(1, 10**6))]
SIZES = [(1, 1), (1, 3), (2, 2), (2, 4), (3, 3), (3, 5)]


@pytest.mark.parametrize("tau", [1, 2])
@pytest.mark.parametrize(("epsilon", "delta"), PRICES)
@pytest.mark.parametrize(("k", "cutoff"), SIZES)
def test_unknown_gumbel_is_private(k, cutoff, epsilon, delta, tau):
    """Theorem A: (k epsilon, delta/(1 + delta))-DP, with the end of the race in the outcome; and for k = 1 no less."""
    mechanism = UnknownGumbel(k, cutoff, epsilon, delta, tau, None)
    assert mechanism.direct_epsilon() == k * epsilon
    assert mechanism.worst_cost().delta == delta
    found, where = delta_of(mechanism, float(k * epsilon), pairs(shapes(5 if tau == 1 else 4, 3), tau))
    lost = capped(float(delta), float(epsilon), tau)
    assert found <= lost / (1 + lost) + LEEWAY, where
    if cutoff <= 4:
        assert found == pytest.approx(lost / (1 + lost), rel=1e-5)  # attained: no part of delta is wasted


@pytest.mark.parametrize("tau", [1, 2])
@pytest.mark.parametrize(("epsilon", "delta"), PRICES)
@pytest.mark.parametrize(("k", "limit"), [(1, 2), (1, 5), (2, 3), (2, 4), (3, 4)])
def test_unknown_gumbel_with_an_optimised_cutoff_is_private(k, limit, epsilon, delta, tau):
    """One more peel pays for the cut-off, even if the cut-off itself is published."""
    mechanism = UnknownGumbel(k, limit, epsilon, delta, tau, None, optimise_cutoff=True)
    assert mechanism.direct_epsilon() == (k + 1) * epsilon
    found, where = delta_of(mechanism, float((k + 1) * epsilon), pairs(shapes(5 if tau == 1 else 4, 3), tau))
    assert found <= float(delta) + LEEWAY, where


@pytest.mark.parametrize("tau", [1, 2, 3])
@pytest.mark.parametrize(("limit", "epsilon"), [(2, Fraction(1, 2)), (5, Fraction(2))])
def test_the_cutoff_alone_costs_one_peel(limit, epsilon, tau):
    """The choice of the cut-off is epsilon-bounded range: epsilon-DP, and alpha epsilon^2/8 in Renyi divergence."""
    mechanism = UnknownGumbel(1, limit, epsilon, Fraction(1, 20), tau, None, optimise_cutoff=True)

    @cache
    def chosen(counts):
        return race_distribution(mechanism.cutoff_race(head_of(named(counts), limit)), 1)

    for one, other in pairs(shapes(4 if tau == 1 else 3, 3), tau):
        assert_peels(chosen(one), chosen(other), 1, float(epsilon))


def assert_peels(p, q, k, epsilon):
    """Assert that *p* and *q* cost k peels at most, in both directions."""
    for one, other in ((p, q), (q, p)):
        assert renyi(one, other, math.inf) <= k * epsilon * (1 + 1e-12)
        for alpha in ALPHAS:
            assert renyi(one, other, alpha) <= alpha * k * epsilon**2 / 8 * (1 + 1e-9)


@pytest.mark.parametrize("tau", [1, 2, 3])
@pytest.mark.parametrize("delta", [Fraction(1, 20), Fraction(9, 10)])
@pytest.mark.parametrize(("k", "cutoff"), [(1, 2), (2, 3), (3, 4)])
def test_unknown_gumbel_is_approximately_zcdp(k, cutoff, delta, tau):
    """Theorem A itself: but for delta, the outcomes are those of a race among common items that costs k peels.

    The items that only one of the two heads has are put on the threshold's side: a race among the common items, whose
    rival also carries the weight of the others, is a part of the true outcomes that lacks delta at most, and these
    races satisfy k epsilon^2/8-zCDP.
    """
    _assert_theorem_a(UnknownGumbel(k, cutoff, Fraction(1, 2), delta, tau, None))


@pytest.mark.parametrize("tau", [2, 3])
def test_theorem_a_fails_without_the_condition_on_delta(tau):
    """Without its cap, delta = .9 at epsilon = .5 makes a threshold so low that a peel costs more than epsilon."""

    class Uncapped(UnknownGumbel):
        def _mass(self):
            return self.delta

    with pytest.raises(AssertionError):
        _assert_theorem_a(Uncapped(1, 2, Fraction(1, 2), Fraction(9, 10), tau, None))


def _assert_theorem_a(mechanism):
    tau, of = mechanism.rows_per_group, distributions(mechanism)
    for pair in pairs(shapes(4 if tau == 1 else 3, 3), tau):
        common = set.intersection(*(set(_contenders(mechanism, counts)) for counts in pair))
        races = []
        for counts in pair:
            race, share = _common_race(mechanism, counts, common)
            assert share >= 1 / (1 + float(mechanism.delta)) - LEEWAY
            truth = of(counts)
            assert all(truth[outcome] >= share * p - LEEWAY for outcome, p in race.items())
            races.append(race)
        assert_peels(*races, mechanism.k, float(mechanism.epsilon))


def _contenders(mechanism, counts):
    """Return the labels and scores of the race."""
    head = head_of(named(counts), mechanism.head_limit)
    scores = mechanism.race(head, mechanism.head_limit).scores.tolist()
    return dict(zip(head.labels, scores, strict=False))


def _common_race(mechanism, counts, common):
    """Return the outcomes of the race among *common* items, and its share of all outcomes."""
    head = head_of(named(counts), mechanism.head_limit)
    rival = mechanism.race(head, mechanism.head_limit).rival
    items = _contenders(mechanism, counts)
    scale = mechanism.epsilon / mechanism.rows_per_group
    others = sum(math.exp(scale * (score - rival.score)) for label, score in items.items() if label not in common)
    labels = [label for label in items if label in common]
    scores = np.array([items[label] for label in labels], dtype=np.int64)
    race = Race(scores, scale, Rival(rival.score, rival.factor + Fraction(others)))
    return {
        (mechanism.head_limit, tuple(labels[i] for i in order), reached): p
        for (order, reached), p in race_distribution(race, mechanism.k).items()
    }, float(rival.factor / (rival.factor + Fraction(others)))


@pytest.mark.parametrize("tau", [1, 2])
@pytest.mark.parametrize("epsilon", [Fraction(1, 2), Fraction(2)])
def test_laplace_counts_cost_half_a_peel_each(epsilon, tau):
    """UnkGumb with k = 2 and Laplace counts is (3 epsilon, delta)-DP, by the exact distribution of all outputs."""
    delta = Fraction(1, 20)
    mechanism = UnknownGumbel(2, 3, epsilon, delta, tau, "laplace")
    assert mechanism.direct_epsilon() == 3 * epsilon
    of, noise = distributions(mechanism), DiscreteLaplace(2 * tau / epsilon)
    shifted = [_shifted(noise, moved) for moved in range(tau + 1)]

    def between(one, other):
        return max(
            _with_counts(of, one, other, shifted, 3 * epsilon), _with_counts(of, other, one, shifted, 3 * epsilon)
        )

    found, where = worst(between, pairs(shapes(3, 2), tau))
    assert found <= float(delta) + LEEWAY, where


def _shifted(noise, moved):
    """Return noise around 0 and around *moved*, with values of equal likelihood ratio merged."""
    z = np.arange(-radius(noise), radius(noise) + 1 + moved)
    a, b = pmf(noise, z), pmf(noise, z - moved)
    _, kind = np.unique(np.round(np.log(a / b), 9), return_inverse=True)
    return np.bincount(kind, a), np.bincount(kind, b)


def _with_counts(of, one, other, shifted, epsilon):
    """Return the hockey-stick divergence of labels and noisy counts; unmoved counts do not matter."""
    p, q = of(one), of(other)
    moved = {label: abs(a - b) for label, a, b in zip("abcde", one, other, strict=False)}
    total = 0.0
    for outcome, mass in p.items():
        here, there = np.array([mass]), np.array([q.get(outcome, 0.0)])
        for label in outcome[1]:
            if moved[label]:
                a, b = shifted[moved[label]]
                here, there = np.outer(here, a).ravel(), np.outer(there, b).ravel()
        total += np.maximum(here - math.exp(epsilon) * there, 0).sum()
    return float(total)


def test_one_user_touches_any_number_of_counts_here():
    """Neighbours of five counts are the 31 sets of raised ones (80 for tau 2 and four counts)."""
    assert len(set(neighbours((3, 2, 1, 0, 0)))) == 31
    assert len(set(neighbours((3, 2, 1, 0), tau=2))) == 80
    assert len(set(neighbours((3, 2, 1, 0, 0), groups=2))) == 15
