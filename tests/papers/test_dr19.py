"""The experiments of Durfee & Rogers 2019 run on small tables and agree with independent calculations."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

from discreet.accounting.bounds import bounded_range
from discreet.accounting.convert import limit_for
from papers.experiment import Setting
from papers.experiments import dr19_figure_1, dr19_lemma_3_1, dr19_pay_what_you_get
from papers.tables import Tables
from tests.papers.checks import page_of

# ratios at k = 25, 50, 100 by an independent script; None where it was not computed
RATIOS = {
    0.005: (1.2840, 1.3683, 1.4154),
    0.01: (1.3625, 1.4345, 1.4699),
    0.025: (1.3924, 1.4919, 1.5157),
    0.05: (1.4299, 1.4968, 1.5497),
    0.1: (1.4219, 1.4979, 1.5244),
    0.25: (1.3555, 1.4286, 1.4342),
    0.5: (None, 1.3014, 1.3013),
    1.0: (None, 1.0695, 1.0889),
}


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """Return a setting of made-up tables only."""
    return Setting(Tables(tmp_path_factory.mktemp("no tables")), smoke=True)


@pytest.mark.parametrize(
    "experiment", [m.EXPERIMENT for m in (dr19_figure_1, dr19_lemma_3_1, dr19_pay_what_you_get)], ids=lambda e: e.name
)
def test_an_experiment_runs_on_made_up_tables(experiment, setting, tmp_path):
    """Rows of equal keys, a picture, a page; finished cells are read back."""
    page_of(experiment, setting, tmp_path)


@pytest.mark.parametrize("epsilon", RATIOS)
def test_figure_1_has_the_ratios_of_an_independent_computation(epsilon, setting):
    """All eight curves at k = 25, 50 and 100, to four digits."""
    rows = dr19_figure_1.measure(setting, {"epsilon": epsilon, "most": 100})
    assert [row["k"] for row in rows] == list(range(1, 101))
    for k, ratio in zip((25, 50, 100), RATIOS[epsilon], strict=True):
        if ratio is not None:
            assert rows[k - 1]["ratio"] == pytest.approx(ratio, abs=6e-5)


def test_figure_1_reads_the_optimum_at_the_largest_delta_below_a_millionth(setting):
    """At k = 30, epsilon = 1/4: delta_i of Lemma 4.5 in exact binomials; the next lattice point is beyond 1e-6."""
    k, epsilon = 30, 0.25

    def delta(i):
        terms = (
            math.comb(k, j) * (math.exp((k - j) * epsilon) - math.exp((k - 2 * i + j) * epsilon)) for j in range(i)
        )
        return math.fsum(terms) / (1 + math.exp(epsilon)) ** k

    i = max(i for i in range(k // 2 + 1) if delta(i) <= 1e-6)
    row = dr19_figure_1.measure(setting, {"epsilon": epsilon, "most": k})[-1]
    assert row["optimal_dp"] == pytest.approx((k - 2 * i) * epsilon)
    assert row["delta"] == pytest.approx(delta(i), rel=1e-6)
    lemma = k * epsilon**2 / 2 + math.sqrt(k * epsilon**2 * -math.log(delta(i)) / 2)
    assert row["lemma_4_4"] == pytest.approx(lemma, rel=1e-6)


def test_completeness_of_two_levels_agrees_with_quadrature():
    """Chance that k Gumbel variates, shifted by epsilon times the gap, all exceed that of the threshold."""
    k, cutoff, epsilon, gap = 3, 30, 0.5, 50
    rival = math.log(cutoff / float(dr19_lemma_3_1.DELTA)) + epsilon
    x = np.linspace(-5, 60, 400_001)
    above = -np.expm1(-np.exp(-(x - epsilon * gap)))
    density = np.exp(-(x - rival) - np.exp(-(x - rival)))
    expected = float(np.trapezoid(above**k * density, x))
    assert 0.1 < expected < 0.9
    assert dr19_lemma_3_1.exact_completeness(k, cutoff, epsilon, gap) == pytest.approx(expected, rel=1e-6)


@pytest.mark.statistical
def test_releases_of_two_levels_are_complete_as_often_as_computed(setting):
    """600 releases at a gap where completeness is in doubt."""
    cell = {"part": "completeness", "table": "two levels", "made_up": True, "k": 10, "epsilon": 0.02, "excess": -4.0}
    (row,) = dr19_lemma_3_1.measure(setting, cell | {"trials": 600})
    assert 0.2 < row["exact"] < 0.8
    assert row["complete"] == pytest.approx(row["exact"], abs=4 * math.sqrt(0.25 / 600))


@pytest.mark.parametrize("k", [1, 10, 50])
def test_the_gap_of_lemma_3_1_is_enough_and_much_less_is_not(k):
    """At the gap k items come with probability 1 - beta; ten noise scales below hardly ever."""
    cutoff, epsilon = 10 * k, 0.1
    needed = math.ceil(dr19_lemma_3_1.needed_gap(k, cutoff, epsilon))
    complete = dr19_lemma_3_1.exact_completeness
    assert complete(k, cutoff, epsilon, needed) >= 1 - dr19_lemma_3_1.BETA
    assert complete(k, cutoff, epsilon, needed - 100) < 0.05


def test_accuracy_holds_with_room_on_a_made_up_table(setting):
    """No release beyond alpha, and some are short: the measure is not blind."""
    cell = {"part": "accuracy", "table": "linkedin-articles", "made_up": True, "k": 50, "epsilon": 0.05, "trials": 60}
    (row,) = dr19_lemma_3_1.measure(setting, cell | {"excess": None})
    assert row["beyond_alpha"] == 0
    assert 0 < row["shortfall_95"] < row["alpha"] == pytest.approx(math.log(50 * 500 / 0.05) / 0.05)


def test_charging_what_is_returned_answers_more_queries_than_charging_the_worst_case(setting):
    """Charging the worst case answers as many queries as k peels fit into the limit."""
    cell = {"table": "linkedin-articles", "made_up": True, "k": 25, "trials": 2}
    rows = dr19_pay_what_you_get.measure(setting, cell)
    limit = limit_for(8.0, Fraction(1, 10**8))
    for returned, worst in zip(rows[::2], rows[1::2], strict=True):
        assert worst["queries"] == limit.rho // (25 * Fraction(1, 100) / 8)
        assert returned["queries"] > worst["queries"]
        assert returned["items"] > worst["items"]
        # One unit is paid for each item and threshold reached; less than a full answer is left over.
        units = returned["items"] + returned["queries"] - returned["complete"]
        assert 0 <= limit.rho / (Fraction(1, 100) / 8) - units < 25


def test_lemma_45_is_read_as_figure_1_reads_it():
    """Durfee & Rogers 2019, Lemma 4.5, summed as printed, and the ratios of their Figure 1."""
    printed = {0: 0.0, 1: 0.0948951119, 2: 0.3600322521}
    for i, delta in printed.items():
        found = dr19_figure_1.optimal_dp_lattice(4, 0.5, delta + 1e-9)
        assert found == (pytest.approx((4 - 2 * i) * 0.5), pytest.approx(delta, rel=1e-8))
    figure = {
        (25, 0.005): 1.2840,
        (50, 0.01): 1.4345,
        (100, 0.05): 1.5497,
        (50, 0.25): 1.4286,
        (100, 1.0): 1.0889,
    }
    for (k, epsilon), ratio in figure.items():
        total, delta = dr19_figure_1.optimal_dp_lattice(k, epsilon, 1e-6)
        i = round((k - total / epsilon) / 2)
        with mp.workdps(40):
            e = mp.mpf(epsilon)
            truth = (
                sum(
                    mp.binomial(k, part) * (mp.exp((k - part) * e) - mp.exp((k - 2 * i + part) * e))
                    for part in range(i)
                )
                / (1 + mp.exp(e)) ** k
            )
        assert delta == pytest.approx(float(truth), rel=3e-9)
        assert delta <= 1e-6
        assert total / bounded_range([epsilon] * k, delta) == pytest.approx(ratio, abs=5e-5)
