"""Exact audits of TopStable: the probability of every set, on all neighbouring pairs of small histograms."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from discreet.mechanisms import TopStable
from discreet.testing.audit import divergence
from discreet.values import ExactHead

from .draws import release
from .neighbours import LEEWAY, delta_of, distributions, histograms, pairs

pytestmark = pytest.mark.exact

PRICES = [(Fraction(1), Fraction(1, 20)), (Fraction(4), Fraction(1, 100)), (Fraction(3), Fraction(1, 2))]


@pytest.mark.parametrize("tau", [1, 2])
@pytest.mark.parametrize(("epsilon", "delta"), PRICES)
@pytest.mark.parametrize("k", [1, 2, 3, 4, 6])
def test_top_stable_is_private(k, epsilon, delta, tau):
    """Theorem 3.2 of the paper, with discrete noise, tau, and the threshold of the exact tail: (epsilon, delta)-DP."""
    mechanism = TopStable(k, epsilon, delta, tau)
    assert mechanism.direct_epsilon() == epsilon
    assert mechanism.worst_cost().delta == delta
    assert mechanism.worst_cost().rho == epsilon**2 / 2
    found, where = delta_of(mechanism, float(epsilon), pairs(histograms(4 if tau == 1 else 3, 3), tau))
    assert found <= float(delta) + LEEWAY, where
    assert found > float(delta) / 8


@pytest.mark.parametrize("k", [1, 3])
def test_top_stable_is_private_among_large_counts(k):
    """Gaps near the threshold, where a set is as likely as not: every neighbour of heads with one wide gap."""
    mechanism = TopStable(k, Fraction(1), Fraction(1, 20))
    wide = mechanism.threshold() + 1
    second = wide if k > 1 else 0
    of = distributions(mechanism)
    tops = [(wide + a, second + b, c, d) for a in (0, 1, 2) for b in (0, 1) for c in (0, 1, 2) for d in (0, 1)]
    shown = 0.0
    for one, other in pairs(iter(tops)):
        assert divergence(of(one), of(other), 1.0) <= 0.05 + LEEWAY
        shown = max(shown, 1 - of(one)[frozenset()])
    assert shown > 0.3


def test_gaps_are_those_of_counts_that_floats_cannot_tell_apart():
    """They are integers from the counts to the comparison."""
    head = ExactHead(np.array([2**61 + 9, 2**61 + 4, 2**61 + 3, 2**61]), 3)
    assert TopStable(3, Fraction(1), Fraction(1, 20), 2).gaps(head).tolist() == [3, 0, 1]


@pytest.mark.parametrize("tau", [1, 3])
def test_the_set_ends_at_the_last_noisy_gap_above_the_noisy_threshold(tau):
    """Computed again from what was drawn; items that no user has are never in it."""
    mechanism, sizes = TopStable(4, Fraction(1), Fraction(1, 20), tau), set()
    middle = mechanism.threshold()
    heads = [[0], [3], [middle], [middle] * 2, [middle + 9, 9, 1, 0, 0], [9 * middle - 2 * i for i in range(5)]]
    heads += [[(9 - i) * (middle + tau) for i in range(n)] for n in (1, 4, 5)]
    for counts in heads:
        head = ExactHead(np.array(counts), 4)
        for run in range(12):
            outcome, draws = release(mechanism, head, run)
            gaps = [head.count_at(i) - head.count_at(i + 1) - tau for i in (1, 2, 3, 4)]
            noisy = np.maximum(gaps, 0) + draws.added["gaps"].values
            passed = np.flatnonzero(noisy > middle + draws.added["threshold"].values[0])
            size = min(max(passed, default=-1) + 1, sum(count > 0 for count in counts[:4]))
            assert sorted(outcome.positions.tolist()) == list(range(size))
            assert outcome.complete == (size == 4)
            assert outcome.ordered is False
            sizes.add(size)
    assert sizes == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(("epsilon", "delta", "k"), [(1, Fraction(1, 20), 1), (2, Fraction(1, 5), 2)])
def test_a_top_stable_threshold_one_lower_is_rejected_for_one_item(epsilon, delta, k):
    """The audit can fail: the least threshold by the exact tail is nearly the least that is private."""

    class Low(TopStable):
        def threshold(self):
            return TopStable.threshold(self) - k

    assert delta_of(Low(k, Fraction(epsilon), delta), epsilon, pairs(histograms(3, 2)))[0] > delta
