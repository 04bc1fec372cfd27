"""Exact audits of KnownLap: the noisy values, on all neighbouring pairs, and their price."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from discreet.mechanisms import KnownLaplace
from discreet.mechanisms.base import noise_of
from discreet.testing.audit import pmf, radius, renyi
from tests.mechanisms.neighbours import LEEWAY, pairs, shapes, values_delta_of

pytestmark = pytest.mark.exact


@pytest.mark.parametrize(("groups", "tau"), [(1, 1), (2, 1), (4, 1), (1, 3), (2, 2)])
@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(4)])
def test_known_laplace_is_private(groups, tau, scale):
    """Laplace counts of a whole domain are Delta tau / b-DP, and not less: the bound is attained."""
    mechanism = KnownLaplace(None, 4, groups, scale, tau, "laplace", independent=True)
    epsilon = float(mechanism.direct_epsilon())
    assert epsilon == groups * tau / scale
    found, where = values_delta_of(mechanism, epsilon, pairs(shapes(4, 1), tau, groups))
    assert found <= LEEWAY, where
    assert values_delta_of(mechanism, epsilon - 0.01, pairs(shapes(4, 1), tau, groups))[0] > 1e-6


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(2), Fraction(7)])
@pytest.mark.parametrize("tau", [1, 3])
def test_noise_on_a_count_costs_its_stated_zcdp(name, scale, tau):
    """Rényi divergence of one moved count is at most alpha tau^2 / 2 s^2; counts are independent, so costs add."""
    mechanism = KnownLaplace(None, 5, 2, scale, tau, name)
    assert mechanism.worst_cost().rho == pytest.approx(2 * tau**2 / (2 * scale**2), rel=1e-15)
    noise = noise_of(name, scale)
    z = np.arange(-3 * radius(noise), 3 * radius(noise) + 1)
    one, other = (dict(enumerate(pmf(noise, z - moved).tolist())) for moved in (0, tau))
    for alpha in (1.01, 1.5, 2, 5, 10):
        rho = renyi(one, other, alpha) / alpha
        assert rho <= float(mechanism.worst_cost().rho) / 2 + LEEWAY
        if name == "gaussian" and scale >= 2:
            assert rho == pytest.approx(tau**2 / (2 * scale**2), rel=1e-6)  # the Gaussian wastes nothing
        assert math.isfinite(rho)
