"""Exact audits of UnkLap: threshold and noisy values above it, on all neighbouring pairs."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from discreet.accounting.convert import delta_tight
from discreet.mechanisms import UnknownLaplace
from discreet.values import ExactHead

from .draws import release
from .neighbours import LEEWAY, histograms, pairs, values_delta_of

pytestmark = pytest.mark.exact

WIDE = [(1, 1, 3), (1, 3, 4), (2, 2, 4), (3, 1, 4), (2, 3, 3), (3, 3, 3)]
"""Groups per user, head limit, labels: ties are broken by label, so every labelling of the counts is tried."""


NOISE = [(1, Fraction(1, 100)), (3, Fraction(1, 20)), (Fraction(1, 2), Fraction(1, 5))]
"""Scale and delta."""


@pytest.mark.parametrize(
    ("groups", "limit", "labels", "scale", "delta", "tau"),
    [(*wide, *NOISE[(n + shift) % 3], tau) for n, wide in enumerate(WIDE) for shift, tau in ((0, 1), (1, 1), (2, 2))],
)
def test_unknown_laplace_is_private(groups, limit, labels, scale, delta, tau):
    """It is (Delta tau / b, delta)-DP, ties at the cut broken by label, with the noisy threshold in the outcome."""
    mechanism = UnknownLaplace(None, limit, groups, Fraction(scale) * tau, delta, tau, "laplace")
    assert mechanism.direct_epsilon() == groups / Fraction(scale)
    worlds = pairs(histograms(labels if tau == 1 else 3, 3 if groups * tau < 2 else 2), tau, groups)
    found, where = values_delta_of(mechanism, float(mechanism.direct_epsilon()), worlds)
    assert found <= float(delta) + LEEWAY, where
    assert found >= float(delta) / 20, "the audit sees no threshold at all"


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize(("groups", "limit", "tau"), [(1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 1, 1)])
def test_unknown_laplace_costs_its_stated_zcdp(groups, limit, tau, noise):
    """Approximate zCDP at Delta tau^2 / 2 s^2: delta at any epsilon is at most the lost mass and the conversion's."""
    mechanism = UnknownLaplace(None, limit, groups, Fraction(3, 2), Fraction(1, 20), tau, noise)
    rho = float(mechanism.worst_cost().rho)
    assert rho == pytest.approx(groups * tau**2 / 2 / 1.5**2)
    for epsilon in (rho, 3 * rho + 0.5, 3 * rho + 2.5):
        found, where = values_delta_of(mechanism, epsilon, pairs(histograms(3, 2), tau, groups))
        lost = 0.05
        assert found <= lost + (1 - lost) * delta_tight(rho, epsilon) + LEEWAY, where


def test_an_unknown_laplace_threshold_three_lower_is_rejected():
    """The audit can fail: it rejects a margin that is short by little more than the proof's spare factor of 2."""

    class Low(UnknownLaplace):
        def margin(self):
            return UnknownLaplace.margin(self) - 3

    sound, low = (made(None, 1, 1, Fraction(2), Fraction(1, 20), noise="laplace") for made in (UnknownLaplace, Low))
    for mechanism, accepted in ((sound, True), (low, False)):
        found, _ = values_delta_of(mechanism, 0.5, pairs(histograms(3, 2), 1, 1))
        assert (found <= 0.05 + LEEWAY) == accepted


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("tau", [1, 6])
def test_the_items_above_the_noisy_threshold_are_returned_and_no_others(tau, noise):
    """The threshold is the count below the cut, tau, the margin and noise; computed again from what was drawn."""
    mechanism, sizes = UnknownLaplace(None, 40, 2, Fraction(4), Fraction(1, 100), tau, noise), set()
    middle = 15 + tau + mechanism.margin()
    counts = np.array([*range(middle + 20, middle - 20, -1), 15])
    for run in range(20):
        outcome, draws = release(mechanism, ExactHead(counts, 40), run)
        bottom = middle + draws.added["threshold"].values[0]
        noisy = counts[:40] + draws.added["counts"].values
        assert sorted(outcome.positions.tolist()) == np.flatnonzero(noisy > bottom).tolist()
        assert outcome.counts.tolist() == noisy[outcome.positions].tolist()
        sizes.add(len(outcome.positions))
    assert len(sizes) > 5


def test_an_item_that_no_user_has_is_never_returned():
    """However low the threshold is, it gets no noise."""
    mechanism = UnknownLaplace(None, 5, 1, Fraction(9), Fraction(9, 10))
    for run in range(20):
        outcome, draws = release(mechanism, ExactHead(np.array([500, 0, 0, 0]), 5), run)
        assert outcome.positions.tolist() == [0]
        assert len(draws.added["counts"].values) == 1


def test_more_groups_than_declared_break_unknown_laplace():
    """Delta must be enforced: the audit rejects users of two items where one is declared."""
    mechanism = UnknownLaplace(None, 2, 1, Fraction(2), Fraction(1, 20), noise="laplace")
    assert values_delta_of(mechanism, 0.5, pairs(iter([(30, 30, 0)]), 1, 1))[0] <= 0.05
    assert values_delta_of(mechanism, 0.5, pairs(iter([(30, 30, 0)]), 1, 2))[0] > 0.05
