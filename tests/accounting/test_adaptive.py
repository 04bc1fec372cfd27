"""The adaptive optimum compared with closed forms, exhaustive recursion, real adversaries and Gaussian noise."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from discreet.accounting.adaptive import _Grid, _resolution, adaptive_epsilon
from discreet.accounting.bounds import linkedin, nonadaptive_br, nonadaptive_br_delta, optimal_dp, zcdp_tight
from discreet.accounting.convert import delta_tight, epsilon_tight
from tests.accounting.adaptive_delta import adaptive_delta, chord


def high_probability(epsilon, t):
    """Return the probability, on the first table, of the loss t of the two-point step with losses t and t - epsilon."""
    return np.expm1(t - epsilon) / math.expm1(-epsilon)


def one_step(epsilon, a):
    """Return V_1 in closed form: the supremum over t of the recursion's first step."""
    inside = (1 - np.exp((np.clip(a, -epsilon, epsilon) - epsilon) / 2)) ** 2 / -math.expm1(-epsilon)
    return np.where(a >= epsilon, 0.0, np.where(a <= -epsilon, -np.expm1(a), inside))


def two_steps(epsilon, a, choices):
    """Return V_2 from below, by trying that many t for each a (any shape)."""
    t = np.linspace(0, epsilon, choices)
    p = high_probability(epsilon, t)
    return np.max(
        p * one_step(epsilon, a[..., None] - t) + (1 - p) * one_step(epsilon, a[..., None] - t + epsilon), axis=-1
    )


def grid_adversary(k, epsilon, choices, total):
    """Delta of the best adversary whose t are multiples of epsilon / choices: the exact value, without interpolation.

    *total* must be a multiple of epsilon / choices too.
    """
    h = epsilon / choices
    a = np.arange(-k * choices, k * choices + 1) * h  # the only values that are reached from total, and more
    values = np.maximum(-np.expm1(a), 0.0)
    below, above = -np.expm1(a[0] - np.arange(choices, 0, -1) * h), np.zeros(choices)
    for _ in range(k):
        padded = np.concatenate([below, values, above])
        best = values.copy()
        for d in range(1, choices):
            p = high_probability(epsilon, d * h)
            shifted = padded[choices - d : choices - d + len(a)]
            best = np.maximum(best, p * shifted + (1 - p) * padded[2 * choices - d : 2 * choices - d + len(a)])
        values = best
    return float(values[k * choices + round(total / h)])


@pytest.mark.parametrize("resolution", [4, 17, 256])
@pytest.mark.parametrize("epsilon", [1e-4, 0.15, 2.0, 50.0])
def test_one_step_is_never_below_its_closed_form(epsilon, resolution):
    """V_1 is an upper bound up to the end of the range at any resolution, and close at a fine one."""
    for share in (0.0, 0.11, 0.5, 0.9, 0.97, 0.995, 0.99999):
        truth = float(one_step(epsilon, np.array(share * epsilon)))
        found = adaptive_delta(1, epsilon, share * epsilon, resolution)
        assert truth * (1 - 1e-12) <= found
        if resolution == 256 and epsilon < 50 and share < 0.98:
            assert found <= truth * 1.01
        assert adaptive_epsilon(1, epsilon, truth, resolution) >= share * epsilon * (1 - 1e-9)


@pytest.mark.parametrize("epsilon", [0.3, 1.5])
@pytest.mark.parametrize("share", [0.0, 0.35, 0.8, 0.97])
def test_two_and_three_steps_meet_the_exhaustive_recursion(epsilon, share):
    """The reference tries all adversaries on a fine grid of t, from the closed form of one step."""
    a = np.array(share * 2 * epsilon)
    truth = float(two_steps(epsilon, a, 20_001))
    assert truth <= adaptive_delta(2, epsilon, float(a)) <= truth * 1.01

    a = share * 3 * epsilon
    t = np.linspace(0, epsilon, 301)
    p = high_probability(epsilon, t)
    truth = float(np.max(p * two_steps(epsilon, a - t, 301) + (1 - p) * two_steps(epsilon, a - t + epsilon, 301)))
    assert truth <= adaptive_delta(3, epsilon, a) <= truth * 1.01


@pytest.mark.parametrize(("k", "epsilon", "total"), [(8, 0.5, 1.0), (8, 0.5, 3.0), (40, 0.1, 1.2), (100, 0.1, 2.25)])
def test_real_adversaries_come_close_and_never_exceed(k, epsilon, total):
    """An exact adversary on a coarse grid is within half a percent of the bound, from below."""
    found = adaptive_delta(k, epsilon, total)
    adversary = grid_adversary(k, epsilon, 40, total)
    assert adversary <= found <= adversary * 1.005


def test_adaptive_adversaries_beat_the_nonadaptive_optimum():
    """The cost of adaptivity: an adversary exceeds the nonadaptive optimum, and not this module's."""
    k, epsilon, total = 100, 0.1, 2.25
    adversary = grid_adversary(k, epsilon, 40, total)
    assert adversary > nonadaptive_br_delta(k, epsilon, total) * 1.01
    assert adversary <= adaptive_delta(k, epsilon, total)


@given(st.integers(1, 5), st.floats(0.05, 2.0), st.floats(0.0, 0.9), st.integers(0, 2**32))
@settings(max_examples=80)
def test_no_random_adaptive_sequence_with_smaller_steps_or_early_stops_exceeds_it(k, epsilon, share, seed):
    """Trees of bounded-range steps with three outcomes that depend on the answers; some smaller, some cut short."""
    rng = np.random.default_rng(seed)
    total = share * k * epsilon

    def delta_of(depth, p, q):
        if depth == k or rng.random() < 0.15:
            return max(p - math.exp(total) * q, 0.0)
        reach = epsilon * rng.choice([1.0, 1.0, 0.5])
        # any weights that move by at most reach, together, make a bounded-range step
        weights, moved = rng.random(3) + 1e-3, np.exp(rng.choice([0.0, 1.0, rng.random()], 3) * reach)
        first, second = weights / weights.sum(), weights * moved / (weights * moved).sum()
        return sum(delta_of(depth + 1, p * a, q * b) for a, b in zip(first, second, strict=True))

    assert delta_of(0, 1.0, 1.0) <= adaptive_delta(k, epsilon, total, 16) + 1e-15


@given(st.integers(1, 60), st.floats(0.02, 1.0), st.floats(-12, -1).map(lambda x: 10.0**x))
@settings(max_examples=25)
def test_the_optimum_is_between_the_nonadaptive_one_and_zcdp(k, epsilon, delta):
    """Adaptivity can only help the adversary; the optimum is below every other bound for such steps."""
    found = adaptive_epsilon(k, epsilon, delta, 64)
    assert nonadaptive_br(k, epsilon, delta) * (1 - 1e-9) <= found
    assert optimal_dp(k, epsilon / 2, delta) * (1 - 1e-9) <= found
    assert found <= zcdp_tight([epsilon] * k, delta) <= linkedin(k, epsilon, delta)


@given(st.integers(1, 40), st.floats(0.02, 2.0), st.floats(0.0, 0.95))
@settings(max_examples=20)
def test_a_finer_grid_is_never_above_a_coarser_one(k, epsilon, share):
    """Each result is an upper bound, so refining a grid (which keeps the old points) only lowers it."""
    total = share * k * epsilon
    coarse, middle, fine = (adaptive_delta(k, epsilon, total, resolution) for resolution in (8, 16, 64))
    assert fine <= middle * (1 + 1e-5)
    assert middle <= coarse * (1 + 1e-5)


@given(st.integers(1, 40), st.floats(0.02, 1.0), st.floats(-10, -1).map(lambda x: 10.0**x))
@settings(max_examples=20)
def test_epsilon_and_delta_invert_each_other_on_the_safe_side(k, epsilon, delta):
    """At the epsilon found for a delta, the delta found is that delta, up to the floor of the grid."""
    found = adaptive_epsilon(k, epsilon, delta, 32)
    back = adaptive_delta(k, epsilon, found, 32)
    assert back <= delta * (1 + 1e-5)
    if found > 0:
        assert adaptive_delta(k, epsilon, found * (1 - 1e-3), 32) > delta


@given(st.integers(1, 30), st.floats(0.02, 1.0), st.floats(-10, -1).map(lambda x: 10.0**x), st.floats(1.05, 2.0))
@settings(max_examples=15)
def test_more_or_larger_steps_or_less_delta_cost_more(k, epsilon, delta, factor):
    """Monotone in k, in each step's epsilon and in delta, up to the distance to the true optimum."""
    here = adaptive_epsilon(k, epsilon, delta, 64) * (1 - 5e-3)
    assert here <= adaptive_epsilon(k + 1, epsilon, delta, 64)
    assert here <= adaptive_epsilon(k, epsilon * factor, delta, 64)
    assert here <= adaptive_epsilon(k, epsilon, delta / factor, 64)


def test_reference_values_lie_within_their_certified_intervals():
    """Intervals found by an independent program: real adversaries below, an interpolating recursion above."""
    assert 2.2508 <= adaptive_epsilon(100, 0.1, 1e-6) <= 2.2511
    assert 3.5794 <= adaptive_epsilon(10, 0.5, 1e-6) <= 3.5800
    assert adaptive_epsilon(1000, 0.15, 1e-9, 16) == pytest.approx(16.5593, abs=5e-5)


def test_the_papers_budget_is_32_44_and_at_the_papers_own_delta_31_5():
    """3,000 steps of 0.15, where the paper reports 34.9: at delta' = 1e-9, and at 4e-9 (7e-9 less 30 calls' mass)."""
    found = adaptive_epsilon(3000, 0.15, 1e-9)
    assert 32.4383 <= found <= 32.4456
    assert round(found, 2) == 32.44
    assert 31.4868 <= adaptive_epsilon(3000, 0.15, 4e-9, 32) <= 31.5096


def test_gaussian_counts_are_not_covered():
    """The docstring's warning is needed: Gaussian noise of equal zCDP loses more than bounded-range steps can."""
    k, epsilon, total = 100, 0.1, 2.25
    mu = math.sqrt(2 * k * epsilon**2 / 8)
    gaussian = norm.cdf(mu / 2 - total / mu) - math.exp(total) * norm.cdf(-mu / 2 - total / mu)
    assert gaussian > adaptive_delta(k, epsilon, total)


def test_extremes_are_the_sum_of_the_epsilons_or_nothing():
    """At delta 0 the bound is the sum of the epsilons, at a large delta it is 0, and it is never above the sum."""
    assert adaptive_epsilon(7, 0.1, 0.0) == pytest.approx(0.7)
    assert adaptive_epsilon(7, 0.1, 1e-300) == pytest.approx(0.7)
    assert adaptive_epsilon(3, 0.01, 0.5) == 0.0
    assert adaptive_delta(7, 0.1, 0.71) == 0.0
    assert 0 < adaptive_delta(7, 0.1, 0.699) < 1e-9


@pytest.mark.parametrize(("k", "epsilon"), [(1, 0.1), (7, 0.1), (3, 1 / 3), (200, 50.0), (10_000, 1.0)])
def test_at_a_delta_of_nothing_the_epsilons_add_rounded_up(k, epsilon):
    """Up to the largest numbers that are accepted; by hardly more than the rounding error of a product."""
    exact = k * Fraction(epsilon)
    for delta in (0.0, 9.9e-281):
        found = adaptive_epsilon(k, epsilon, delta, 4096)
        assert exact <= Fraction(found) <= exact * (1 + Fraction(2, 10**15))
        assert adaptive_delta(k, epsilon, found, 4096) == 0


def test_delta_is_above_0_below_the_sum_of_the_epsilons():
    """Also at the float next to it."""
    assert adaptive_delta(1, 1.0, math.nextafter(1.0, 0.0), 4) > 0


def test_a_delta_of_1e_280_is_not_taken_as_0():
    """It is the least delta that buys anything."""
    assert adaptive_epsilon(500, 2.0, 1e-280, 16) < 0.99 * 1000 < adaptive_epsilon(500, 2.0, 9e-281, 16)


def on_a_grid(k, epsilon, resolution, tries):
    """Return V_k, approximated by chords, as a function: each supremum by that many t for each grid point."""
    h = epsilon / resolution
    points, t = np.arange((k + 1) * resolution) * h, np.linspace(0, epsilon, tries * resolution + 1)
    values = np.zeros(len(points))

    def chords(a):
        i = np.minimum(np.floor(np.abs(a) / h + 1e-9).astype(int), len(values) - 2)
        share = np.expm1(np.maximum(np.abs(a) - i * h, 0)) / math.expm1(h)
        found = values[i] + share * (values[i + 1] - values[i])
        return np.where(a < 0, -np.expm1(a) + np.exp(a) * found, found)

    p = high_probability(epsilon, t)
    for _ in range(k):
        a = points[:, None] - t
        values = np.max(p * chords(a) + (1 - p) * chords(a + epsilon), axis=1)
    return chords


@pytest.mark.parametrize("resolution", [4, 9, 32])
@pytest.mark.parametrize(("k", "epsilon"), [(1, 1.0), (2, 0.1), (3, 1.0), (4, 3.0), (12, 0.3)])
def test_each_step_is_the_supremum_over_all_t_of_the_chords(k, epsilon, resolution):
    """At grid points and between them: never below what 100 values of t per cell give, and hardly above."""
    reference = on_a_grid(k, epsilon, resolution, 100)
    for share in (0.0, 0.3 / resolution, 1 / resolution, 0.21, 0.5, 1.0, 1.37, 2.0, 0.8 * k, 0.93 * k):
        total = share * epsilon
        if share < 0.95 * k:
            truth = min(float(reference(np.array(total))), delta_tight(k * epsilon**2 / 8, total))
            found = adaptive_delta(k, epsilon, total, resolution)
            assert truth * (1 - 1e-9) <= found <= truth * (1 + 5e-4), (share, found / truth - 1)


@pytest.mark.parametrize("resolution", [256, 1024])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_the_stated_rounding_errors_are_added(resolution, share):
    """They are visible for a tiny epsilon; the epsilon of the delta found is that of the delta, so both are raised."""
    epsilon = 1e-9
    stated = resolution * 2.0**-48 / -math.expm1(-epsilon)
    truth = math.expm1((share - 1) * epsilon / 2) ** 2 / -math.expm1(-epsilon)
    found = adaptive_delta(1, epsilon, share * epsilon, resolution)
    assert found / truth - 1 == pytest.approx(stated, rel=0.1)
    assert adaptive_epsilon(1, epsilon, found, resolution) == pytest.approx(share * epsilon, rel=1e-6, abs=1e-15)


@pytest.mark.parametrize(("k", "epsilon", "total"), [(300, 0.05, 0.5), (300, 0.05, 3.0), (1000, 0.15, 16.5)])
def test_delta_of_many_steps_is_between_the_nonadaptive_one_and_zcdps(k, epsilon, total):
    """So the bound by zCDP, which it never exceeds, has the whole rho."""
    found = adaptive_delta(k, epsilon, total, 16)
    assert nonadaptive_br_delta(k, epsilon, total) <= found <= delta_tight(k * epsilon**2 / 8, total)


def test_the_coarsest_grid_is_not_above_zcdp():
    """Its own bound is above there, as each of many steps adds the distance to the chord."""
    assert adaptive_epsilon(1000, 0.002, 1e-150, 4) == zcdp_tight([0.002] * 1000, 1e-150)
    assert adaptive_delta(1000, 0.01, 3.0, 4) == delta_tight(1000 * 0.01**2 / 8, 3.0)


def test_many_large_steps_have_a_delta_of_1_at_small_totals():
    """Also where values are equal over many cells, so that no chord is above the others."""
    for k, epsilon, total in ((200, 3.0, 0.0), (100, 5.0, 1.0), (100, 50.0, 3500.0), (150, 50.0, 5000.0)):
        assert nonadaptive_br_delta(k, epsilon, total) <= adaptive_delta(k, epsilon, total, 4) <= 1


@pytest.mark.parametrize("epsilon", [1e-3, 1e-6, 1e-8])
def test_many_tiny_steps_lose_hardly_more_than_if_fixed_in_advance(epsilon):
    """Rounding errors, which grow as epsilon falls, stay below what choices after answers and the grid add."""
    fixed = nonadaptive_br_delta(100, epsilon, 5 * epsilon)
    assert fixed <= adaptive_delta(100, epsilon, 5 * epsilon, 64) <= fixed * 1.01


def test_the_grid_ends_where_values_reach_the_floor():
    """Not at the sum of the epsilons, five times further: the default resolution counts on it."""
    k, floor = 500, 1e-9
    grid = _Grid(0.1, 16)
    values = grid.values(k, floor)
    assert len(values) * grid.h < 2 * epsilon_tight(k * 0.1**2 / 8, floor)
    assert floor <= values[-1] <= floor * (1 + 1e-5)


def test_values_between_grid_points_are_chords_in_the_exponential_rounded_up():
    """At fifty digits, both ways; beyond the grid is the floor."""
    grid, values = _Grid(0.9, 5), np.array([0.5, 0.31, 0.2, 0.14, 1e-3, 1e-3, 1e-3])
    points = [i * grid.h for i in range(len(values))]
    with mp.workdps(50):
        x, v = [mp.exp(i * mp.mpf(grid.h)) for i in range(len(values))], [mp.mpf(value) for value in values]
        for a in (0.0, 0.05, *points[1:3], 2.4 * grid.h, 3.6 * grid.h, 4.5 * grid.h, 30.0, 1e4):
            i = min(math.floor(a / grid.h), len(values) - 2)
            exact = v[i] + (v[i + 1] - v[i]) * min((mp.exp(a) - x[i]) / (x[i + 1] - x[i]), 1)
            assert exact <= mp.mpf(chord(grid, values, a)) <= exact * (1 + mp.mpf("3e-12"))
        for delta in (0.45, 0.31, 0.3, 0.15, 0.13, 2e-3):
            i = int(np.argmax(values <= delta))
            exact = mp.log(x[i - 1] + (x[i] - x[i - 1]) * (v[i - 1] - delta) / (v[i - 1] - v[i]))
            assert exact <= mp.mpf(grid.crossing(values, delta)) <= exact * (1 + mp.mpf("3e-12"))
    assert grid.crossing(values, 0.5) == grid.crossing(values, 0.7) == 0


def test_a_total_beyond_the_grid_has_a_delta_below_the_floor():
    """Also where it is further away than an exponential of a float may be."""
    for k, epsilon, total in ((1000, 2.0, 1900.0), (2000, 1.0, 1800.0)):
        assert 0 < adaptive_delta(k, epsilon, total, 4) < 1e-280


@pytest.mark.parametrize(
    ("k", "epsilon", "floor"), [(900, 11.0, 1e-16), (3000, 0.15, 1e-15), (2000, 0.5, 1e-12), (1500, 0.02, 1e-200)]
)
def test_the_default_resolution_limits_grid_points_times_steps(k, epsilon, floor):
    """The grid ends where zCDP says that delta is below the floor, or at the sum of the epsilons."""
    resolution = _resolution(k, epsilon, floor)
    work = k * zcdp_tight([epsilon] * k, floor) / epsilon
    assert resolution <= 6.8e7 / work < resolution + 1


def test_the_default_resolution_is_from_16_to_256():
    """However many steps there are."""
    assert _resolution(1, 0.1, 1e-9) == _resolution(100, 1.0, 1e-9) == 256
    assert _resolution(10_000, 1.0, 1e-9) == _resolution(10_000, 0.3, 1e-250) == 16
