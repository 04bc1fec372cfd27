"""Exact audit of KnownGumb: every outcome, on all neighbouring pairs of small histograms."""

from __future__ import annotations

from fractions import Fraction

import pytest

from discreet.mechanisms import KnownGumbel
from tests.mechanisms.neighbours import distributions, pairs, shapes
from tests.mechanisms.test_unknown_gumbel_exact import assert_peels

pytestmark = pytest.mark.exact


@pytest.mark.parametrize("tau", [1, 2])
@pytest.mark.parametrize("epsilon", [Fraction(1, 2), Fraction(3)])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_known_gumbel_is_private(k, epsilon, tau):
    """It is k epsilon-DP and k epsilon^2/8-zCDP without lost mass; items without users are included."""
    mechanism = KnownGumbel(k, 4 if tau == 1 else 3, epsilon, tau, None)
    assert mechanism.direct_epsilon() == k * epsilon
    assert mechanism.worst_cost().rho == k * epsilon**2 / 8
    of = distributions(mechanism, known_domain=True)
    for one, other in pairs(shapes(4 if tau == 1 else 3, 2), tau):
        assert_peels(of(one), of(other), k, float(epsilon))
