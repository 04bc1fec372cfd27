"""Gaussian differential privacy compared with mpmath, reference values and an independent integral."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from discreet.accounting.convert import delta_tight, rho_tight
from discreet.accounting.gaussian import delta_gaussian, mu_gaussian, normal_quantile, normal_tail, rho_of_branch
from discreet.errors import InputError


def curve(mu, epsilon):
    """Return delta of mu-GDP at 60 digits."""
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.1, 1.0, 8.0, 100.0, 900.0])
@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.1, 1.0, 9.0, 40.0])
def test_delta_is_never_below_the_exact_curve_and_hardly_above(mu, epsilon):
    """Balle & Wang 2018, Theorem 8, rounded up."""
    exact, found = curve(mu, epsilon), delta_gaussian(mu, epsilon)
    assert exact <= found
    if epsilon < 900:  # there, one of the two tails is too small for a float, and counts as 0
        assert found <= exact * (1 + 1e-6) + 1e-14


@pytest.mark.parametrize(
    ("epsilon", "rho"), [(0.5, 0.0048888), (1, 0.0183371), (2, 0.0679913), (4, 0.2466159), (8, 0.8614947)]
)
def test_published_rho_of_the_gaussian_curve(epsilon, rho):
    """Reference values at delta = 5e-9; 8 to 12 % above what the zCDP conversion allows."""
    found = mu_gaussian(epsilon, 5e-9) ** 2 / 2
    assert found == pytest.approx(rho, abs=6e-8)
    assert 1.07 < found / rho_tight(epsilon, 5e-9) < 1.13


@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 5.0, 100.0, 1000.0])
@pytest.mark.parametrize("delta", [1e-20, 1e-8, 0.3])
def test_mu_is_the_largest_whose_delta_is_allowed(epsilon, delta):
    """Mu is rounded down, by a negligible amount."""
    mu = mu_gaussian(epsilon, delta)
    assert delta_gaussian(mu, epsilon) <= delta < delta_gaussian(mu * (1 + 1e-9), epsilon)


def test_a_mu_outside_the_range_is_refused():
    """The error is one sentence."""
    for epsilon, delta in ((0, 0.1), (math.inf, 0.1), (1, 0), (1, 1)):
        with pytest.raises(InputError):
            mu_gaussian(epsilon, delta)


@pytest.mark.parametrize("probability", [0.5, 1e-3, 5e-18, 1e-40])
def test_the_normal_quantile_errs_upwards(probability):
    """Its tail is at most the requested probability."""
    z = normal_quantile(probability)
    assert mpmath.ncdf(-mpmath.mpf(z)) <= probability
    assert normal_tail(z * (1 - 1e-8) - 1e-8) > probability


def branch_delta(epsilon, mu, test, rho, lost, lost_other):
    """Return E max(delta of one branch, delta of the other) over the loss of the test, by scipy's quadrature."""
    rest = math.sqrt(mu**2 - test**2)

    def zcdp(level):
        if level > 0:
            return delta_tight(rho, level)
        orders = 1 + np.exp(np.linspace(-3, 12, 3000))
        return min(1, np.exp((orders - 1) * (orders * rho - level)).min())

    def term(x):
        level = epsilon - test**2 / 2 - test * x
        gauss = float(curve(rest, level)) + lost
        return max(gauss, zcdp(level) + lost_other) * stats.norm.pdf(x)

    return integrate.quad(term, -9, 9, limit=200, epsabs=1e-14)[0]


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_rho_of_a_branch_uses_up_delta(epsilon):
    """Theorem 2 of docs/mechanisms/two_round.md: the whole is within delta, and with 1 % more rho it is not."""
    mu = mu_gaussian(epsilon, 0.96e-8)
    test = math.sqrt(0.008) * mu
    rho = rho_of_branch(epsilon, 1e-8, mu, test, 1e-11, 2e-9)
    assert branch_delta(epsilon, mu, test, rho, 1e-11, 2e-9) <= 1e-8
    assert branch_delta(epsilon, mu, test, rho * 1.01, 1e-11, 2e-9) > 1e-8


def test_a_branch_that_cannot_be_paid_for_gets_nothing():
    """The mechanism of the test alone uses all of delta."""
    assert rho_of_branch(1.0, 1e-8, mu_gaussian(1.0, 1e-8), 0.01, 1e-11, 2e-9) == 0
