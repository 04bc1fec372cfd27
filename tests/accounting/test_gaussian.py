"""Gaussian differential privacy compared with mpmath, reference values and an independent integral."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from discreet.accounting.convert import delta_tight, rho_tight
from discreet.accounting.gaussian import (
    _after_test,
    _delta_gaussian_at,
    _expected,
    _pure_branch,
    _zcdp_branch,
    delta_gaussian,
    epsilon_of_branch,
    mu_gaussian,
    normal_quantile,
    normal_tail,
    rho_after_second_test,
    rho_of_branch,
)
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
    assert exact <= found <= 1
    if epsilon < 900:  # there, one of the two tails is too small for a float, and counts as 0
        assert found <= exact * (1 + 1e-6) + 1e-14


@pytest.mark.parametrize(
    ("mu", "epsilon"), [(0.1, 1.0), (1.0, 0.5), (6.0, 18.0), (9.0, 0.5), (0.05, 0.05), (14.0, 0.1)]
)
def test_the_slack_of_delta_covers_rounded_arguments(mu, epsilon):
    """Arguments that are off by an ulp change the tails by a relative x^2 ulps, and the exponential by epsilon ulps."""
    first, second = normal_tail(epsilon / mu - mu / 2), math.exp(epsilon) * normal_tail(epsilon / mu + mu / 2)
    x = epsilon / mu + mu / 2
    ulps = (delta_gaussian(mu, epsilon) - (first - second)) / (2**-52 * (2 + x**2 + epsilon) * (first + second))
    assert 2 < ulps < 8


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
    epsilons, deltas = "epsilon must be above 0 and finite, not", "delta must be above 0 and below 1, not"
    for epsilon, delta, message in ((0, 0.1, epsilons), (math.inf, 0.1, epsilons), (1, 0, deltas), (1, 1, deltas)):
        with pytest.raises(InputError, match=rf"^{message} (0|inf|1)$"):
            mu_gaussian(epsilon, delta)


@pytest.mark.parametrize("probability", [0.5, 1e-3, 5e-18, 1e-40])
def test_the_normal_quantile_errs_upwards(probability):
    """Its tail is at most the requested probability."""
    z = normal_quantile(probability)
    assert mpmath.ncdf(-mpmath.mpf(z)) <= probability
    assert normal_tail(z) * (1 + 1e-9) <= probability  # for a machine whose erfc is less precise
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


@pytest.mark.parametrize(
    ("epsilon", "lost", "other"), [(0.5, 1e-11, 2e-9), (4, 2e-9, 1e-11), (0.01, 1e-11, 2e-9), (60, 1e-11, 2e-9)]
)
def test_rho_of_a_branch_uses_up_delta(epsilon, lost, other):
    """Theorem 2 of docs/mechanisms/two_round.md: the whole is within delta, and with 1 % more rho it is not."""
    mu = mu_gaussian(epsilon, 0.75e-8)
    test = math.sqrt(0.008) * mu
    rho = rho_of_branch(epsilon, 1e-8, mu, test, lost, other)
    assert branch_delta(epsilon, mu, test, rho, lost, other) <= 1e-8
    assert branch_delta(epsilon, mu, test, rho * 1.01, lost, other) > 1e-8


def test_a_branch_that_cannot_be_paid_for_gets_nothing():
    """The mechanism of the test alone uses all of delta."""
    assert rho_of_branch(1.0, 1e-8, mu_gaussian(1.0, 1e-8), 0.01, 1e-11, 2e-9) == 0


@pytest.mark.parametrize("mu", [1e-3, 0.05, 1.0, 40.0])
@pytest.mark.parametrize("epsilon", [-30.0, -1.0, -1e-4, 0.0, 0.5, 3.0])
def test_delta_at_any_loss_is_never_below_the_curve(mu, epsilon):
    """After a test, epsilon minus its loss may be negative; the curve is the same function there."""
    found = _delta_gaussian_at(mu, epsilon)
    if epsilon >= 0:
        assert found == delta_gaussian(mu, epsilon)
    assert curve(mu, epsilon) <= found <= min(1, curve(mu, epsilon) + 1e-14)


def test_a_test_is_cut_into_cells_that_count_at_their_upper_end():
    """The cells cover all losses but a tail of 1e-19; after a loss x, epsilon - x is left."""
    level, mass = _after_test(3.0, 0.5)
    edges = (3.0 - level - 0.5**2 / 2) / 0.5
    assert edges == pytest.approx(np.linspace(-9, 9, 361), abs=1e-9)
    assert mass == pytest.approx(np.diff([0, *stats.norm.cdf(np.linspace(-9, 9, 361))]), abs=1e-14)


def test_the_expectation_over_a_test_is_rounded_up():
    """Each cell counts the worse branch, at most 1, and what is beyond the cells counts 1."""
    tail = float(mpmath.ncdf(-9))
    assert 1 + 5e-10 < _expected(np.array([0.5, 0.25]), np.zeros(2), np.zeros(2)) / tail < 1 + 2e-9
    found = _expected(np.array([0.5, 0.25, 0.125]), np.array([0.2, 1.5, 0.4]), np.array([0.1, 0.3, 0.8]))
    assert 1 + 5e-10 < found / (0.5 * 0.2 + 0.25 + 0.125 * 0.8) < 1 + 2e-9


@pytest.mark.parametrize(("rho", "level"), [(1.0, 1.2), (0.01, 0.5), (0.5, 8.0), (1e-6, 0.005)])
def test_the_curve_of_a_zcdp_branch_is_close_to_the_tight_conversion(rho, level):
    """Any order gives a valid delta; the orders tried are dense enough from just above 1 on."""
    found = float(_zcdp_branch(np.array([level]))(rho)[0])
    assert delta_tight(rho, level) * (1 - 1e-6) <= found <= delta_tight(rho, level) * 1.01


def test_no_branch_counts_more_than_one():
    """A probability is at most 1, whatever the loss of the test was."""
    level = np.array([-50.0, -2.0, -0.5])
    assert _zcdp_branch(level)(5.0).tolist() == [1.0, 1.0, 1.0]
    assert (_pure_branch(0.1, level) <= 1).all()


def profile(level, epsilon):
    """Return delta at *level* of two outputs with probabilities p and 1 - p, p = e^epsilon / (1 + e^epsilon)."""
    yes = 1 / (1 + math.exp(-epsilon))
    return max(yes - math.exp(level) * (1 - yes), 0) + max((1 - yes) - math.exp(level) * yes, 0)


@pytest.mark.parametrize("epsilon", [0.1, 2.0])
def test_the_curve_of_a_pure_branch_is_that_of_randomized_response(epsilon):
    """At levels of any sign."""
    for level in (-5.0, -epsilon, -epsilon / 2, 0.0, epsilon / 2, epsilon, epsilon + 1):
        assert _pure_branch(epsilon, np.array([level]))[0] == pytest.approx(profile(level, epsilon), abs=1e-15)


def three_branches(epsilon, mu, test, losses, rho, pure, second=0.0, fourth=0.0):
    """Return E of the largest delta of the three branches of `Auto.at_epsilon`, each with its lost mass, by quadrature.

    With *second*, also of what follows a second test that is *second*-DP: rho *fourth*, or less of the third branch.
    """
    points = np.linspace(-8.5, 8.5, 4001)
    mass = stats.norm.pdf(points) * (points[1] - points[0])
    total = 0.0
    rest = math.sqrt(mu**2 - test**2)
    order = 1 + np.logspace(-2, 4, 400)

    def zcdp(rho, x):
        log = (order - 1) * (order * rho - x) + (order - 1) * np.log1p(-1 / order) - np.log(order)
        return math.exp(min(log.min(), 0))

    for weight, x in zip(mass, epsilon - (test**2 / 2 + test * points), strict=True):
        gaussian = delta_gaussian(rest, x) if x >= 0 else 1 - math.exp(x) * (1 - delta_gaussian(rest, -x))
        worst = max(np.add((gaussian, zcdp(rho, x), profile(x, pure)), losses))
        if second:
            worst = max(worst, zcdp(fourth, x - second) + losses[1], profile(x - second, pure - second) + losses[2])
        total += weight * worst
    return total


def branches_of(epsilon, delta):
    """Return mu, the test, the lost masses, rho and epsilon of branches with the shares of delta that `auto` gives."""
    mu = mu_gaussian(epsilon, 0.96 * delta)
    test = math.sqrt(0.008) * mu
    losses = (delta / 1000, delta / 5, 0.3 * delta)
    rho = rho_of_branch(epsilon, 0.995 * delta, mu, test, *losses[:2])
    return mu, test, losses, rho, epsilon_of_branch(epsilon, delta, mu, test, losses[0], rho, *losses[1:])


@pytest.mark.exact
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0, 4.0, 8.0])
def test_three_branches_after_a_test_stay_within_delta(epsilon):
    """An independent quadrature; the third gets 0.9 of epsilon."""
    delta = 1e-8
    mu, test, losses, rho, found = branches_of(epsilon, delta)
    assert 0.895 < found / epsilon < 0.92
    assert three_branches(epsilon, mu, test, losses, rho, found) <= delta
    assert three_branches(epsilon, mu, test, losses, rho, found + 0.02 * epsilon) > delta


@pytest.mark.exact
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_what_follows_a_second_test_stays_within_delta(epsilon):
    """An independent quadrature; an eighth of the third branch costs the fourth 20 to 25 % of rho."""
    delta = 1e-8
    mu, test, losses, rho, pure = branches_of(epsilon, delta)
    fourth = rho_after_second_test(epsilon, delta, mu, test, losses[0], rho, losses[1], pure, losses[2], pure / 8)
    assert 0.75 < fourth / rho < 0.8
    assert three_branches(epsilon, mu, test, losses, rho, pure, pure / 8, fourth) <= delta
    assert three_branches(epsilon, mu, test, losses, rho, pure, pure / 8, rho) > delta
    assert three_branches(epsilon, mu, test, losses, rho, pure, pure / 6, fourth) > delta


def test_a_fourth_branch_that_cannot_be_paid_for_gets_nothing():
    """The mass that it may lose is more than delta already."""
    mu = mu_gaussian(1.0, 0.9e-8)
    assert rho_after_second_test(1.0, 1e-8, mu, 0.1 * mu, 1e-11, 1e-3 * mu**2, 2e-8, 0.5, 1e-9, 0.1) == 0


@pytest.mark.exact
@pytest.mark.parametrize("losses", [(9e-3, 0, 0), (0, 9e-3, 0), (0, 0, 9e-3), (3e-3, 0, 0)])
def test_a_third_branch_uses_up_delta(losses):
    """Also where most of delta is a mass that one of the branches may lose; the cells of the test cost 1 % at most."""
    delta, mu, test, rho = 1e-2, 0.06, 0.05, 1e-4
    found = epsilon_of_branch(1.0, delta, mu, test, losses[0], rho, *losses[1:])
    assert three_branches(1.0, mu, test, losses, rho, found) <= delta
    assert three_branches(1.0, mu, test, losses, rho, found * 1.01) > delta


def test_a_third_branch_that_costs_next_to_nothing_gets_all_of_epsilon():
    """Epsilon of the whole run, to more digits than are charged."""
    for epsilon in (1e-4, 1.0, 20.0):
        assert epsilon_of_branch(epsilon, 0.5, 1e-5, 5e-6, 0, 1e-12, 0, 0) == pytest.approx(epsilon, rel=1e-11)


def test_a_third_branch_that_cannot_be_paid_for_gets_nothing():
    """The mass that it may lose is more than delta already."""
    mu = mu_gaussian(1.0, 0.9e-8)
    assert epsilon_of_branch(1.0, 1e-8, mu, 0.1 * mu, 1e-11, 1e-3 * mu**2, 1e-11, 2e-8) == 0
