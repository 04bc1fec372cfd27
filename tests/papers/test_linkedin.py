"""The experiments of LinkedIn 2021 run on small tables and agree with independent calculations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from papers.experiment import Setting
from papers.experiments import (
    linkedin_audiences,
    linkedin_figure_3,
    linkedin_figure_4,
    linkedin_figure_5,
    linkedin_section_8_3,
    linkedin_table_2,
)
from papers.tables import Tables
from tests.papers.checks import page_of

MODULES = (linkedin_figure_3, linkedin_figure_4, linkedin_figure_5, linkedin_section_8_3, linkedin_table_2)


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """Return a setting of made-up tables only."""
    return Setting(Tables(tmp_path_factory.mktemp("no tables")), smoke=True)


@pytest.mark.parametrize("experiment", [m.EXPERIMENT for m in MODULES], ids=lambda e: e.name)
def test_an_experiment_runs_on_made_up_tables(experiment, setting, tmp_path):
    """Rows of equal keys, a picture, a page; finished cells are read back."""
    page_of(experiment, setting, tmp_path)


def test_a_whole_audience_is_the_head_and_half_an_audience_about_half_of_it(setting):
    """Counts are thinned one by one and sorted again."""
    table = setting.tables.made_up("linkedin-articles")
    rng = np.random.default_rng(1)
    everybody = linkedin_audiences.audience(table, 1.0, 200, rng)
    assert np.array_equal(everybody.counts, linkedin_audiences.head_of(table, 200).counts)
    half = linkedin_audiences.audience(table, 0.5, 200, rng)
    assert len(half.counts) == 201
    assert half.counts.sum() == pytest.approx(everybody.counts.sum() / 2, rel=0.03)


def test_figure_3_returns_more_with_a_longer_head_and_a_larger_epsilon(setting):
    """Four neighbouring cells of the figure, in order."""
    cell = {"table": "linkedin-articles", "made_up": True, "trials": 40}
    mean = {
        (limit, epsilon): linkedin_figure_3.measure(setting, cell | {"head_limit": limit, "epsilon_per": epsilon})[0]
        for limit in (50, 200)
        for epsilon in (0.06, 0.12)
    }
    assert mean[50, 0.06]["mean"] + 3 < mean[200, 0.06]["mean"]
    assert mean[50, 0.06]["mean"] + 3 < mean[50, 0.12]["mean"]
    assert all(0 <= row["low"] <= row["high"] <= 50 for row in mean.values())
    assert any(row["low"] < row["high"] for row in mean.values())


def test_the_algorithm_as_printed_returns_everything_where_its_logarithm_vanishes():
    """With a head no longer than k the cut-off is the head limit: the threshold is minus infinity."""
    counts = np.arange(51, 0, -1, dtype=np.int64)
    rng = np.random.default_rng(1)
    assert (linkedin_figure_3.as_printed(counts, 50, 0.1, 20, rng) == 50).all()
    longer = np.append(counts + 10, np.full(100, 10, dtype=np.int64))
    assert (linkedin_figure_3.as_printed(longer, 150, 0.1, 20, rng) == 0).all()


def test_the_published_margin_of_unklap_solves_the_published_equation():
    """Delta = d/4 (e^(epsilon/2) + 1)(3 + ln(1/d)) for the d of the margin; 343.0508 at epsilon_per = 0.15."""
    margin = linkedin_figure_4.published_margin(0.15)
    solved = math.exp(-margin * 0.15 / 2)
    assert solved / 4 * (math.exp(0.075) + 1) * (3 - math.log(solved)) == pytest.approx(1e-10, rel=1e-9)
    assert margin == pytest.approx(343.0508, abs=1e-4)


def test_figure_4_returns_the_items_above_the_threshold(setting):
    """Shares fall from always to never around the rank at which the true count meets the threshold."""
    cell = {"table": "linkedin-titles", "made_up": True, "share": 1.0, "epsilon_per": 0.2, "trials": 20}
    rows = linkedin_figure_4.measure(setting, cell)
    assert [row["rank"] for row in rows] == list(range(1, linkedin_figure_4.SHOWN + 1))
    above = [row["share"] for row in rows if row["true"] > row["threshold"] + 150]
    below = [row["share"] for row in rows if row["true"] < row["threshold"] - 100]
    assert above
    assert below
    assert min(above) == 1
    assert max(below) == 0
    errors = [row["noisy"] - row["true"] for row in rows if row["noisy"] is not None]
    assert len(errors) > 50
    assert 5 < np.std(errors) < 25  # Laplace of scale 10 has 14.1


def test_the_share_beyond_a_budget_counts_analysts_from_their_first_day_beyond_it():
    """Three analysts; one never, one at once, one on day 5."""
    rows = [
        {"analyst": "a", "day": 0, "calls": 10},
        {"analyst": "b", "day": 0, "calls": 11},
        {"analyst": "b", "day": 7, "calls": 20},
        {"analyst": "c", "day": 0, "calls": 1},
        {"analyst": "c", "day": 5, "calls": 12},
    ]
    shares = linkedin_figure_5.share_beyond(rows, "calls", 10)
    assert shares == [1 / 3] * 5 + [2 / 3] * 25


def test_days_of_queries_follow_the_assumptions():
    """They begin on day 0, ascend within the month, and are a few for most analysts, many for some."""
    rng = np.random.default_rng(2)
    months = [linkedin_figure_5.days_of_queries(rng) for _ in range(3000)]
    assert all(days[0] == 0 and days == sorted(days) and days[-1] < 30 for days in months)
    numbers = np.array([len(days) for days in months])
    assert np.median(numbers) == 5
    assert np.mean(numbers > 30) == pytest.approx(0.042, abs=0.012)


def test_an_analyst_pays_two_units_an_item_and_one_for_the_cut_off_at_most(setting):
    """Asked: 2k + 1 units a call; paid: never more, never less than the cut-off and the threshold."""
    cell = {"table": "linkedin-articles", "made_up": True, "block": 3, "analysts": 4}
    rows = linkedin_figure_5.measure(setting, cell)
    assert len({row["analyst"] for row in rows}) == 4
    for row in rows:
        assert row["worst_case"] == row["calls"] * (2 * row["k"] + 1)
        assert 2 * row["calls"] <= row["information"] <= row["worst_case"]


def test_table_2_has_the_published_months_and_the_reference_values_for_linkedin(setting):
    """Quoted rows add up to the paper's months; LinkedIn's by independent computations of three accountings."""
    rows = [row for cell in linkedin_table_2.cells(setting) for row in linkedin_table_2.measure(setting, cell)]
    assert len(rows) == 9
    for row in rows:
        if row["published_month"] is not None:
            assert row["epsilon_month"] == pytest.approx(row["published_month"], rel=0.002)
    months = [(row["epsilon_month"], row["delta_month"]) for row in rows[-3:]]
    expected = [(34.8839, 7e-9), (33.7818, 4e-9), (54.2758, 1.3e-8)]
    for found, wanted in zip(months, expected, strict=True):
        assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.statistical
def test_section_8_3_reproduces_and_simulation_agrees(setting):
    """The paper's numbers to the digits that are printed, and each simulation within four standard errors."""
    section = linkedin_section_8_3
    rows = {
        row["number"]: row
        for cell in section.cells(setting)
        if cell["epsilon_per"] == section.EPSILON
        for row in section.measure(setting, cell)
    }
    formulas = {number: row["formula"] for number, row in rows.items()}
    assert formulas[section.AVERAGING] == pytest.approx(0.1155, abs=5e-5)
    assert formulas[section.CHANCE] == pytest.approx(0.0368056, abs=5e-8)
    assert formulas[section.ITEMS] == pytest.approx(738.2, abs=0.05)
    assert formulas[section.UNIQUE] == pytest.approx(387_278_081, abs=1)
    assert rows[section.ITEMS]["exact"] == 738
    for number in (section.AVERAGING, section.CHANCE, section.SEEN):
        row = rows[number]
        error = (row["exact"] * (1 - row["exact"]) / row["trials"]) ** 0.5
        # integer noise is 0 with probability tanh(epsilon / 8), 1.8 % more than the continuous chance
        assert row["simulated"] == pytest.approx(row["exact"], abs=4 * error + 0.02 * row["exact"])
