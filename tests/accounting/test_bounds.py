"""Published bounds against sums over all outcomes, fifty digits, and the papers' own numbers."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from discreet.accounting import bounds

steps = st.integers(1, 60)
epsilons = st.floats(1e-3, 3.0)
deltas = st.floats(-20, -1).map(lambda exponent: 10.0**exponent)


def hockey_stick(pairs, total):
    """Return the exact delta at *total* of the independent steps given by their (P, Q) outcome probabilities."""
    delta = 0.0
    for outcome in itertools.product(*[list(zip(p, q, strict=True)) for p, q in pairs]):
        likely, other = (math.prod(side) for side in zip(*outcome, strict=True))
        delta += max(likely - math.exp(total) * other, 0.0)
    return delta


def two_point(epsilon, t):
    """Return the bounded-range step with losses t and t - epsilon: ((P), (Q))."""
    high = math.expm1(t - epsilon) / math.expm1(-epsilon)
    return (high, 1 - high), (high * math.exp(-t), 1 - high * math.exp(-t))


def exact_responses(k, truths, total):
    """Return KOV's delta for k randomised responses over 2^k outcomes; *truths* and *total* are e to the epsilons."""
    delta = Fraction(0)
    for outcome in itertools.product((0, 1), repeat=k):
        lies = sum(outcome)
        delta += max(truths ** (k - lies) - total * truths**lies, Fraction(0))
    return delta / (1 + truths) ** k


def test_the_papers_budget_has_the_papers_epsilon_under_each_bound():
    """3,000 steps of 0.15 at 1e-9: basic, advanced, Lemma 4.4, Lemma 2.1 and both zCDP conversions."""
    many = [0.15] * 3000
    assert bounds.basic(many) == pytest.approx(450, rel=1e-11)
    assert bounds.advanced(many, 1e-9) == pytest.approx(86.5795908, rel=1e-8)
    assert bounds.bounded_range(many, 1e-9) == pytest.approx(60.1963650, rel=1e-8)
    assert bounds.linkedin(3000, 0.15, 1e-9) == pytest.approx(34.8838650, rel=1e-8)
    assert bounds.zcdp_tight(many, 1e-9) == pytest.approx(33.7818468, rel=1e-8)
    assert bounds.linkedin(6000, 0.15, 1e-9) == pytest.approx(54.2758, abs=5e-5)


def test_theorem_2_gives_the_published_pair_and_the_smaller_delta():
    """LinkedIn's (34.9, 7e-9), where l* delta + delta' = 4e-9 holds too; both are rounded up."""
    found = bounds.linkedin_system(3000, 30, 0.15, Fraction("1e-10"), Fraction("1e-9"))
    assert round(found.epsilon, 1) == 34.9
    assert Fraction("7e-9") <= Fraction(found.delta_published) < Fraction("7.00000000000001e-9")
    assert Fraction("4e-9") <= Fraction(found.delta) < Fraction("4.00000000000001e-9")
    without_calls = bounds.linkedin_system(3000, 0, 0.15, Fraction("1e-10"), Fraction("1e-9"))
    assert without_calls.delta == without_calls.delta_published == pytest.approx(1e-9, rel=1e-15)


@given(st.lists(epsilons, min_size=1, max_size=12), deltas)
@example([0.1, 0.2] * 150, 1e-9)
@settings(max_examples=50)
def test_closed_forms_are_the_papers_formulas_rounded_up(each, delta):
    """Theorem 3 and Lemma 4.4 for unequal steps, and Lemma 2.1, at fifty digits: never below, hardly above."""
    with mp.workdps(50):
        exact = [mp.mpf(e) for e in each]
        log = -mp.log(mp.mpf(delta))
        total, squares = sum(exact), sum(e**2 for e in exact)
        drift = sum(e * (mp.exp(e) - 1) / (mp.exp(e) + 1) for e in exact)
        theorem_3 = min(total, drift + mp.sqrt(2 * squares * log))
        lemma_44 = min(theorem_3, squares / 2 + mp.sqrt(squares * log / 2))
        k, one = len(each), exact[0]
        lemma_21 = min(k * one, k * one**2 / 8 + one * mp.sqrt(k * log / 2))
        for found, truth in (
            (bounds.basic(each), total),
            (bounds.advanced(each, delta), theorem_3),
            (bounds.bounded_range(each, delta), lemma_44),
            (bounds.linkedin(k, each[0], delta), lemma_21),
        ):
            assert truth <= found <= truth * (1 + mp.mpf("3e-12"))


@pytest.mark.parametrize("k", [1, 2, 5, 9])
@pytest.mark.parametrize("total", [Fraction(1), Fraction(4, 3), Fraction(5), Fraction(200)])
def test_optimal_composition_is_the_sum_over_all_outcomes(k, total):
    """KOV with e^epsilon = 2, enumerated in fractions: rounded up, by no more than its slack."""
    truth = exact_responses(k, Fraction(2), total)
    found = Fraction(bounds.optimal_dp_delta(k, math.log(2), math.log(total)))
    assert truth <= found + Fraction(1, 10**17)
    assert found <= truth * (1 + Fraction(3, 10**9)) + Fraction(1, 10**15)


@pytest.mark.parametrize(("k", "epsilon", "total"), [(1000, 0.1, 19.3), (10_000, 0.02, 9.0), (10_000, 0.15, 201.0)])
def test_optimal_composition_is_exact_for_thousands_of_steps(k, epsilon, total):
    """KOV's sum in forty digits, up to k = 10,000."""
    with mp.workdps(40):
        e, t = mp.mpf(epsilon), mp.mpf(total)
        lies, weight, truth = 0, mp.mpf(1), mp.mpf(0)
        while (k - 2 * lies) * e > t:
            truth += weight * (1 - mp.exp(t - (k - 2 * lies) * e))
            weight *= mp.mpf(k - lies) / (lies + 1) * mp.exp(-e)
            lies += 1
        truth /= (1 + mp.exp(-e)) ** k
        assert truth <= mp.mpf(bounds.optimal_dp_delta(k, epsilon, total)) <= truth * (1 + mp.mpf("2e-9"))


@pytest.mark.parametrize("k", [5, 10, 25, 40])
@pytest.mark.parametrize("epsilon", [0.1, 1 / 3, 0.7])
def test_delta_is_above_0_below_the_sum_of_the_epsilons(k, epsilon):
    """Also at the float next to it, where only the outcome without a lie loses more."""
    total = float(k * Fraction(epsilon))
    if Fraction(total) >= k * Fraction(epsilon):
        total = math.nextafter(total, 0.0)
    with mp.workdps(50):
        truth = -mp.expm1(mp.mpf(total) - k * mp.mpf(epsilon)) / (1 + mp.exp(-mp.mpf(epsilon))) ** k
        assert 0 < truth <= mp.mpf(bounds.optimal_dp_delta(k, epsilon, total))


@pytest.mark.parametrize(
    ("optimum", "delta_of"),
    [(bounds.optimal_dp, bounds.optimal_dp_delta), (bounds.nonadaptive_br, bounds.nonadaptive_br_delta)],
)
@pytest.mark.parametrize(
    ("k", "epsilon", "delta"),
    [(3, 1e-4, 1e-5), (5, 0.05, 1e-2), (100, 0.1, 1e-6), (7, 50.0, 1e-9), (1000, 0.5, 1e-12)],
)
def test_optima_invert_themselves(optimum, delta_of, k, epsilon, delta):
    """The least epsilon for a delta satisfies it, and a slightly smaller one does not."""
    found = optimum(k, epsilon, delta)
    assert delta_of(k, epsilon, found) <= delta < delta_of(k, epsilon, found * (1 - 1e-8))


@pytest.mark.parametrize("optimum", [bounds.optimal_dp, bounds.nonadaptive_br])
def test_at_a_delta_of_nothing_the_epsilons_add_rounded_up(optimum):
    """By more than the rounding error of a product; 1e-280 is the least delta that buys anything."""
    for k, epsilon in ((1, 0.1), (5, 0.1), (3, 1 / 3), (10_000, 0.7)):
        exact = k * Fraction(epsilon)
        for delta in (0.0, 9.9e-281, *([1e-270] if k < 10 else [])):
            assert exact <= Fraction(optimum(k, epsilon, delta)) <= exact * (1 + Fraction(2, 10**12))
    assert optimum(2000, 0.5, 1e-280) < 0.99 * 1000 < optimum(2000, 0.5, 9.9e-281)


def test_optimal_composition_has_its_reference_value():
    """A hundred steps of 0.1."""
    assert bounds.optimal_dp(100, 0.1, 1e-6) == pytest.approx(4.774568, abs=1e-6)


@pytest.mark.parametrize(("k", "total"), [(2, 0.3), (2, 1.1), (3, 0.0), (3, 0.7), (3, 2.0)])
def test_no_unequal_bounded_range_steps_are_worse_than_the_equal_ones(k, total):
    """Dong, Durfee & Rogers 2020: every combination of t on a grid, all 2^k outcomes; the optimum is met closely."""
    epsilon = 0.9
    grid = np.linspace(0, epsilon, 37)
    worst = max(
        hockey_stick([two_point(epsilon, t) for t in ts], total)
        for ts in itertools.combinations_with_replacement(grid, k)
    )
    found = bounds.nonadaptive_br_delta(k, epsilon, total)
    assert worst <= found <= worst * 1.01


@pytest.mark.parametrize(
    ("k", "epsilon", "total"),
    [(20, 0.3, 0.5), (20, 0.3, 1.0), (20, 0.3, 2.0), (12, 1.0, 0.0), (12, 1.0, 0.7), (40, 2.0, 9.0)],
)
def test_the_nonadaptive_optimum_is_the_largest_over_a_dense_scan_of_t(k, epsilon, total):
    """A scan of equal t by the whole binomial sum, also where most outcomes exceed the total."""
    worst = 0.0
    for t in np.linspace(0, epsilon, 4001)[1:-1]:
        (high, low), _ = two_point(epsilon, t)
        worst = max(
            worst,
            sum(
                math.comb(k, i) * high ** (k - i) * low**i * max(-math.expm1(total - (k * t - i * epsilon)), 0.0)
                for i in range(k + 1)
            ),
        )
    assert worst <= bounds.nonadaptive_br_delta(k, epsilon, total) <= worst * (1 + 1e-5)


def test_the_nonadaptive_optimum_has_its_reference_values():
    """Twenty steps of 0.3 at three totals."""
    for total, delta in ((0.5, 0.1128745065), (1.0, 0.0329834221), (2.0, 7.047028e-4)):
        assert bounds.nonadaptive_br_delta(20, 0.3, total) == pytest.approx(delta, rel=1e-6)


def test_the_nonadaptive_optimum_of_many_steps_has_its_reference_values():
    """Small and large k."""
    for k, epsilon, delta, reference in (
        (10, 0.5, 1e-6, 3.5691),
        (100, 0.1, 1e-6, 2.2460),
        (3000, 0.15, 1e-9, 32.4357),
    ):
        assert bounds.nonadaptive_br(k, epsilon, delta) == pytest.approx(reference, abs=6e-5)


@given(steps, epsilons, deltas)
@settings(max_examples=40)
def test_bounds_are_in_the_order_that_theory_gives(k, epsilon, delta):
    """Sharper theorems never give larger epsilons, and steps of a narrower class are never worse."""
    many = [epsilon] * k
    slack = 1 + 1e-9
    assert bounds.advanced(many, delta) <= bounds.basic(many)
    assert bounds.bounded_range(many, delta) <= bounds.advanced(many, delta)
    assert bounds.optimal_dp(k, epsilon, delta) <= bounds.advanced(many, delta) * slack
    assert bounds.linkedin(k, epsilon, delta) <= bounds.bounded_range(many, delta) * slack
    assert bounds.zcdp_tight(many, delta) <= bounds.linkedin(k, epsilon, delta) * slack
    ranged = bounds.nonadaptive_br(k, epsilon, delta)
    assert ranged <= bounds.zcdp_tight(many, delta) * slack
    assert ranged <= bounds.optimal_dp(k, epsilon, delta) * slack
    assert bounds.optimal_dp(k, epsilon / 2, delta) <= ranged * slack


@given(steps, epsilons, deltas, st.floats(1.05, 3.0))
@settings(max_examples=20)
def test_epsilon_grows_with_steps_and_falls_with_delta(k, epsilon, delta, factor):
    """Monotone in k, in each step's epsilon, and in delta."""
    for bound in (
        bounds.linkedin,
        bounds.optimal_dp,
        bounds.nonadaptive_br,
        lambda k, e, d: bounds.zcdp_tight([e] * k, d),
    ):
        here = bound(k, epsilon, delta) * (1 - 1e-9)
        assert here <= bound(k + 1, epsilon, delta)
        assert here <= bound(k, epsilon * factor, delta)
        assert here <= bound(k, epsilon, delta / factor)


def test_without_delta_only_the_sum_of_the_epsilons_is_claimed():
    """At delta = 0, and where masses would underflow, every bound that allows it is basic composition."""
    for delta in (0.0, 1e-300):
        assert bounds.advanced([0.3, 0.4], delta) == pytest.approx(0.7)
        assert bounds.linkedin(7, 0.1, delta) == pytest.approx(0.7)
        assert bounds.optimal_dp(7, 0.1, delta) == pytest.approx(0.7)
        assert bounds.nonadaptive_br(7, 0.1, delta) == pytest.approx(0.7)


def test_a_delta_that_covers_everything_needs_no_epsilon():
    """When delta is at least the total variation the least epsilon is 0, and no delta exceeds 1."""
    assert bounds.optimal_dp(3, 0.01, 0.5) == 0.0
    assert bounds.nonadaptive_br(3, 0.01, 0.5) == 0.0
    assert bounds.optimal_dp_delta(10_000, 3.0, 0.0) == 1.0
    assert 0.9999 < bounds.nonadaptive_br_delta(10_000, 3.0, 0.0) <= 1.0
    assert bounds.nonadaptive_br_delta(10, 0.5, 5.0) == 0.0
