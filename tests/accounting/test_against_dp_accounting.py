"""Our bounds compared with Google's dp_accounting, which convolves privacy loss distributions of fixed steps."""

from __future__ import annotations

import math

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import rdp_privacy_accountant

from discreet.accounting.bounds import optimal_dp, optimal_dp_delta, zcdp_tight
from discreet.accounting.convert import epsilon_tight
from tests.accounting.adaptive_delta import adaptive_delta

STEP = 1e-4


def both_sides(make, k):
    """Return the optimistic and the pessimistic distribution of k steps."""
    return [
        make(pessimistic_estimate=side, value_discretization_interval=STEP).self_compose(k) for side in (False, True)
    ]


@pytest.mark.parametrize(("k", "epsilon"), [(1, 1.0), (5, 0.5), (40, 0.1), (200, 0.05)])
def test_the_optimum_for_dp_steps_is_that_of_randomised_response(k, epsilon):
    """Kairouz, Oh & Viswanath 2015: nothing composes worse, so both libraries agree from both sides."""

    def make(**how):
        return pld.from_randomized_response(2 / (1 + math.exp(epsilon)), 2, **how)

    low, high = both_sides(make, k)
    for share in (0.05, 0.1, 0.3):  # their convolution knows nothing below 1e-15
        total = share * k * epsilon
        ours = optimal_dp_delta(k, epsilon, total)
        assert low.get_delta_for_epsilon(total) <= ours * (1 + 1e-6)
        assert ours <= high.get_delta_for_epsilon(total) * (1 + 1e-6)
    assert low.get_epsilon_for_delta(1e-6) - 1e-6 <= optimal_dp(k, epsilon, 1e-6)
    assert optimal_dp(k, epsilon, 1e-6) <= high.get_epsilon_for_delta(1e-6) + 1e-6


@pytest.mark.parametrize(("k", "epsilon"), [(10, 0.5), (100, 0.15)])
def test_the_adaptive_optimum_covers_laplace_counts(k, epsilon):
    """Laplace noise of scale 2 / epsilon is epsilon-bounded-range: its composition is below the optimum, not by far."""
    low, _ = both_sides(lambda **how: pld.from_laplace_mechanism(2 / epsilon, **how), k)
    for total in (0.1 * k * epsilon, 0.2 * k * epsilon):
        concrete, optimum = low.get_delta_for_epsilon(total), adaptive_delta(k, epsilon, total)
        assert concrete <= optimum
        assert optimum <= 100 * concrete


@pytest.mark.parametrize(("rho", "delta"), [(0.01, 1e-8), (0.5, 1e-6), (8.4375, 1e-9)])
def test_the_tight_conversion_covers_the_gaussian(rho, delta):
    """Gaussian noise of that rho is slightly better than the worst rho-zCDP mechanism: 32.46 beside 33.78."""
    low, high = both_sides(lambda **how: pld.from_gaussian_mechanism(1 / math.sqrt(2 * rho), **how), 1)
    assert high.get_epsilon_for_delta(delta) < epsilon_tight(rho, delta) < 1.15 * low.get_epsilon_for_delta(delta)


@pytest.mark.parametrize(("k", "epsilon", "delta"), [(3000, 0.15, 1e-9), (10, 0.5, 1e-6)])
def test_the_tight_conversion_is_theirs_on_finer_orders(k, epsilon, delta):
    """The same proposition (Canonne, Kamath & Steinke 2020) on a fixed list of orders is never below ours."""
    accountant = rdp_privacy_accountant.RdpAccountant()
    accountant.compose(dp_event.ZCDpEvent(k * epsilon**2 / 8))
    theirs = accountant.get_epsilon(delta)
    assert zcdp_tight([epsilon] * k, delta) <= theirs * (1 + 1e-9)
    assert theirs <= 1.01 * zcdp_tight([epsilon] * k, delta)
