"""Conversions between zCDP and (epsilon, delta) compared with an independent minimisation at 50 digits."""

from __future__ import annotations

import functools
import itertools
import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.accounting.convert import delta_tight, epsilon_simple, epsilon_tight, rho_simple, rho_tight
from discreet.errors import InputError

MP = mpmath.mp.clone()
MP.dps = 50

RHOS = [1e-15, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 0.01, 0.1, 0.5, 1.0, 8.4375, 100.0, 1e4, 1e7]
DELTAS = [1e-300, 1e-20, 5e-9, 1e-5, 0.1]
EPSILONS = [1e-6, 1e-4, 0.01, 0.1, 0.5, 1.0, 4.0, 8.0, 34.9, 1000.0]

rhos = st.floats(1e-6, 1e6)
deltas = st.floats(1e-100, 0.5)


def least(function):
    """Return the minimum over alpha - 1 = e^u of a unimodal function of u, to 25 digits, by golden sections."""
    low, high, share = MP.mpf(-400), MP.mpf(800), (MP.sqrt(5) - 1) / 2
    left, right = high - share * (high - low), low + share * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(80):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - share * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + share * (high - low)
            at_right = function(right)
    return min(at_left, at_right)


def offset(u, delta):
    """Return what the tight bound adds to alpha rho: ln(1/(alpha delta))/(alpha-1) + ln(1-1/alpha)."""
    above = MP.exp(u)
    return (-MP.log(delta) - MP.log1p(above)) / above - MP.log1p(1 / above)


@functools.cache
def true_epsilon(rho, delta):
    """Return the minimum of the tight formula."""
    rho, delta = MP.mpf(rho), MP.mpf(delta)
    return max(MP.mpf(0), least(lambda u: (1 + MP.exp(u)) * rho + offset(u, delta)))


@functools.cache
def true_rho(epsilon, delta):
    """Return the largest rho for which some alpha gives *epsilon*."""
    epsilon, delta = MP.mpf(epsilon), MP.mpf(delta)
    return -least(lambda u: (offset(u, delta) - epsilon) / (1 + MP.exp(u)))


@functools.cache
def true_delta(rho, epsilon):
    """Return the least delta of the tight formula, at most 1."""
    rho, epsilon = MP.mpf(rho), MP.mpf(epsilon)

    def log_delta(u):
        above = MP.exp(u)
        return above * ((1 + above) * rho - epsilon - MP.log1p(1 / above)) - MP.log1p(above)

    return min(MP.mpf(1), MP.exp(least(log_delta)))


def test_linkedins_example_is_reproduced():
    """With k* = 3000 units of .15 and delta' = 1e-9: 34.8839 as published (34.9), 33.7818 by the tight formula."""
    rho = 3000 * 0.15**2 / 8
    assert epsilon_simple(rho, 1e-9) == pytest.approx(34.8839, abs=5e-5)
    assert epsilon_tight(rho, 1e-9) == pytest.approx(33.7818, abs=5e-5)
    assert epsilon_tight(rho, 4e-9) == pytest.approx(32.8606, abs=5e-5)
    assert epsilon_simple(2 * rho, 1e-9) == pytest.approx(54.2758, abs=5e-5)


@pytest.mark.parametrize(
    ("epsilon", "simple", "tight"),
    [
        (0.5, 0.0032278, 0.0043708),
        (1.0, 0.0127482, 0.0164684),
        (2.0, 0.0497478, 0.0613760),
        (4.0, 0.1898762, 0.2240203),
        (8.0, 0.6974882, 0.7888512),
    ],
)
def test_the_table_of_affordable_rho_is_reproduced(epsilon, simple, tight):
    """Reference values at delta' = 5e-9, to seven decimals."""
    assert rho_simple(epsilon, 5e-9) == pytest.approx(simple, abs=5.1e-8)
    assert rho_tight(epsilon, 5e-9) == pytest.approx(tight, abs=5.1e-8)


@pytest.mark.parametrize(
    ("rho", "delta", "tight", "simple"),
    [
        (0.01, 1e-8, 0.752326, 0.868386),
        (0.1, 1e-8, 2.538432, 2.814456),
        (1.0, 1e-8, 8.977218, 9.583864),
        (0.1, 1e-5, 1.914239, 2.245966),
        (10.0, 1e-10, 39.227757, 40.348543),
    ],
)
def test_the_table_of_epsilons_is_reproduced(rho, delta, tight, simple):
    """Reference values to six decimals."""
    assert epsilon_tight(rho, delta) == pytest.approx(tight, abs=5.1e-7)
    assert epsilon_simple(rho, delta) == pytest.approx(simple, abs=5.1e-7)


def test_the_published_delta_is_reproduced():
    """Rho 0.5 at epsilon 4 has delta 1.957954e-4."""
    assert delta_tight(0.5, 4.0) == pytest.approx(1.957954e-4, rel=1e-6)


@pytest.mark.parametrize("rho", RHOS)
def test_epsilon_is_never_below_the_true_minimum_and_hardly_above(rho):
    """Epsilon is rounded up by a relative 1e-12, also where it is tiny."""
    for delta in DELTAS:
        truth = true_epsilon(rho, delta)
        found = epsilon_tight(rho, delta)
        assert found >= truth, (rho, delta)
        assert found <= truth * (1 + 1e-11), (rho, delta)


@pytest.mark.parametrize(("rho", "delta"), [(4e10, 0.1), (8e-37, 1e-300)])
def test_the_best_order_is_found_at_either_end_of_the_search(rho, delta):
    """The logarithms of alpha - 1 are near -11.7 and 44.8 there, where the simple formula is above the minimum."""
    truth = true_epsilon(rho, delta)
    assert truth <= epsilon_tight(rho, delta) <= truth * (1 + 1e-11) < epsilon_simple(rho, delta)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_rho_is_never_above_the_true_maximum_and_hardly_below(epsilon):
    """Rho is rounded down by three relative 1e-12, also where epsilon is tiny."""
    for delta in DELTAS:
        truth = true_rho(epsilon, delta)
        assert rho_tight(epsilon, delta) <= truth, (epsilon, delta)
        assert rho_tight(epsilon, delta) >= truth * (1 - 3.5e-12), (epsilon, delta)


@pytest.mark.parametrize("rho", [1e-4, 0.01, 0.5, 10.0, 1000.0])
def test_delta_is_never_below_the_true_minimum_and_hardly_above(rho):
    """Delta is rounded up by a relative 1e-9, to at most 1."""
    for epsilon in [0.0, *EPSILONS]:
        truth = true_delta(rho, epsilon)
        if truth > 1e-300:
            assert truth <= delta_tight(rho, epsilon) <= truth * (1 + 1e-8), (rho, epsilon)


@pytest.mark.parametrize("rho", [1e3, 1e8, 1e9, 1e12, 1e300])
def test_delta_is_at_most_1_for_any_rho(rho):
    """Also where every order gives a number too large for a float."""
    assert delta_tight(rho, 0.0) == delta_tight(rho, 1.0) == 1


def test_delta_is_never_zero_for_a_positive_rho():
    """A delta too small for a float is rounded up, so that no pure differential privacy is claimed."""
    assert delta_tight(1e-12, 1.0) > 0
    assert delta_tight(1e-3, 10.0) > 0


def test_simple_conversions_are_their_formulas_on_the_safe_side():
    """Epsilon is rounded up by a relative 1e-12, and rho down by three."""
    for delta in DELTAS:
        log = -MP.log(MP.mpf(delta))
        for rho in RHOS:
            truth = MP.mpf(rho) + 2 * MP.sqrt(MP.mpf(rho) * log)
            assert truth <= epsilon_simple(rho, delta) <= truth * (1 + 1.5e-12)
        for epsilon in EPSILONS:
            truth = (MP.sqrt(log + MP.mpf(epsilon)) - MP.sqrt(log)) ** 2
            assert truth * (1 - 3.5e-12) <= rho_simple(epsilon, delta) <= truth


@pytest.mark.parametrize(
    ("there", "back"), [(rho_tight, epsilon_tight), (rho_simple, epsilon_simple)], ids=["tight", "simple"]
)
def test_the_rho_of_an_epsilon_costs_at_most_that_epsilon(there, back):
    """Rho is the largest whose epsilon is at most the given one, in the floats that are compared."""
    for epsilon, delta in itertools.product(EPSILONS, DELTAS):
        assert back(there(epsilon, delta), delta) <= epsilon, (epsilon, delta)


@given(rhos, deltas)
def test_the_tight_conversion_is_never_worse_than_the_simple_one(rho, delta):
    """Holds for epsilon, rho and delta."""
    assert 0 <= epsilon_tight(rho, delta) <= epsilon_simple(rho, delta)
    epsilon = epsilon_simple(rho, delta)
    assert rho_tight(epsilon, delta) >= rho_simple(epsilon, delta)
    assert delta_tight(rho, epsilon) <= delta * (1 + 1e-6)


@given(rhos, deltas, st.floats(1.000001, 100))
def test_more_rho_costs_more_and_more_delta_costs_less(rho, delta, factor):
    """Both formulas are monotone in both arguments."""
    for epsilon in (epsilon_tight, epsilon_simple):
        assert epsilon(rho, delta) <= epsilon(rho * factor, delta)
        assert epsilon(rho, delta) >= epsilon(rho, min(delta * factor, 0.9))


@given(st.floats(1e-3, 1e3), deltas, st.floats(1.000001, 100))
def test_more_epsilon_or_delta_buys_more_rho(epsilon, delta, factor):
    """Both formulas are monotone in both arguments, strictly in epsilon."""
    for rho in (rho_tight, rho_simple):
        assert rho(epsilon, delta) < rho(epsilon * factor, delta)
        assert rho(epsilon, delta) <= rho(epsilon, min(delta * factor, 0.9))


@given(rhos, deltas)
def test_rho_and_epsilon_are_inverse_to_each_other(rho, delta):
    """Conversion there and back agrees to a relative 1e-6 where epsilon is not clipped at 0."""
    epsilon = epsilon_tight(rho, delta)
    if epsilon > 1e-3:
        assert rho_tight(epsilon, delta) == pytest.approx(rho, rel=1e-6)
        assert epsilon_tight(rho, max(delta_tight(rho, epsilon), 1e-320)) == pytest.approx(epsilon, rel=1e-6)


def test_no_rho_costs_nothing():
    """A rho of 0 has epsilon 0 and delta 0."""
    assert epsilon_simple(0, 1e-9) == epsilon_tight(0, 1e-9) == delta_tight(0, 0) == 0


def test_a_small_rho_costs_no_epsilon_at_a_large_delta():
    """The minimum of the tight formula is negative there, and is clipped at 0."""
    assert epsilon_tight(1e-6, 0.1) == 0.0
    assert true_epsilon(1e-6, 0.1) == 0


@pytest.mark.parametrize("rho", [5e-324, 1e-300, 1e-30, 1e8, 1e15, 1e300])
@pytest.mark.parametrize("delta", [5e-324, 1e-300, 0.5, 1 - 2**-53])
def test_extreme_values_are_bounded_by_the_simple_formula(rho, delta):
    """Where the minimum cannot be found exactly the bound is still valid and finite."""
    epsilon = epsilon_tight(rho, delta)
    assert 0 <= epsilon <= epsilon_simple(rho, delta) < math.inf
    assert epsilon >= true_epsilon(rho, delta) * (1 - MP.mpf(10) ** -30)


@pytest.mark.parametrize("epsilon", [1e-300, 1e-30, 1e12, 1e300])
@pytest.mark.parametrize("delta", [5e-324, 1e-9, 1 - 2**-53])
def test_extreme_epsilons_buy_at_least_what_the_simple_formula_says(epsilon, delta):
    """The rho is finite, and at most epsilon unless delta is large."""
    rho = rho_tight(epsilon, delta)
    assert rho_simple(epsilon, delta) <= rho < math.inf
    assert 0 <= delta_tight(1.0, epsilon) <= 1


@pytest.mark.parametrize("rho", [-1e-300, -1.0, math.inf, -math.inf, math.nan])
def test_a_rho_outside_its_range_is_refused(rho):
    """Negative and infinite values and NaN are refused."""
    for call in (lambda: epsilon_simple(rho, 0.1), lambda: epsilon_tight(rho, 0.1), lambda: delta_tight(rho, 1)):
        with pytest.raises(InputError, match="rho must be at least 0 and finite"):
            call()


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 1.5, math.inf, math.nan])
def test_a_delta_outside_its_range_is_refused(delta):
    """A delta of 0 or 1 is refused too."""
    for convert in (epsilon_simple, epsilon_tight, rho_simple, rho_tight):
        with pytest.raises(InputError, match="delta must be above 0 and below 1"):
            convert(1.0, delta)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_an_epsilon_outside_its_range_is_refused(epsilon):
    """Zero buys nothing, but is allowed for `delta_tight`."""
    for convert in (rho_simple, rho_tight):
        with pytest.raises(InputError, match="epsilon must be above 0 and finite"):
            convert(epsilon, 0.1)
    if epsilon != 0:
        with pytest.raises(InputError, match="epsilon must be at least 0 and finite"):
            delta_tight(1.0, epsilon)
