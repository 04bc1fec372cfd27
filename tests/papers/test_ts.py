"""The experiments of Carvalho et al. 2020 run on small made-up tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

from papers.experiment import Setting
from papers.experiments import ts_figure_1, ts_table_1, ts_tables_2_3, ts_trials
from papers.tables import Tables
from papers.user_items import UserItems
from tests.papers.checks import page_of

EXPERIMENTS = [m.EXPERIMENT for m in (ts_table_1, ts_tables_2_3, ts_figure_1)]


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """Return a setting of made-up tables only."""
    return Setting(Tables(tmp_path_factory.mktemp("no tables")), smoke=True)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)
def test_an_experiment_runs_on_made_up_tables(experiment, setting, tmp_path):
    """Rows of equal keys, a picture, a page; finished cells are read back."""
    _, text = page_of(experiment, setting, tmp_path)
    assert "Foursquare (made up)" in text


def made_of(counts, users):
    """Return a table with these counts."""
    items = np.repeat(np.arange(len(counts)), counts)
    owners = np.concatenate([np.arange(count) for count in counts] + [[users - 1]])
    order = np.argsort(owners, kind="stable")
    return UserItems("t", owners[order], np.append(items, len(counts))[order])


@pytest.mark.statistical
@pytest.mark.parametrize("method", [ts_trials.TS_OURS, ts_trials.GUMBEL_OURS])
def test_floats_agree_with_our_mechanisms(method):
    """P and S of 400 releases with exact noise and of 20,000 in floating point; a third of epsilon is seen."""
    counts = np.sort(np.random.default_rng(1).integers(0, 120, 60) + 200 // np.arange(1, 61))[::-1]
    table, k, epsilon = made_of(counts, 1000), 6, 0.9
    exact = ts_trials.by_mechanism(table, method, epsilon, k, 400, {"cell": 1})

    def distance(epsilon):
        floats = ts_trials.in_floats(table, method, epsilon, k, 20_000, np.random.default_rng(2))
        return max(
            abs(one.mean() - other.mean()) / math.sqrt(one.var() / len(one) + 1e-9)
            for one, other in (
                (exact.proportion, floats.proportion),
                (exact.proportion_run, floats.proportion_run),
                (exact.relative_sum, floats.relative_sum),
            )
        )

    assert 0.05 < exact.proportion.mean() < 0.95
    assert distance(epsilon) < 5
    assert distance(epsilon / 3) > 5


def test_our_mechanisms_have_the_guarantee_of_the_experiment():
    """(epsilon, 1/n)-DP by their own statement or by the tight conversion, and cut-offs up to 5k."""
    stable = ts_trials.mechanism(ts_trials.TS_OURS, 0.4, 10, 1000)
    assert (float(stable.direct_epsilon()), float(stable.worst_cost().delta)) == (0.4, 0.001)
    gumbel = ts_trials.mechanism(ts_trials.GUMBEL_OURS, 0.4, 10, 1000)
    assert (gumbel.head_limit, gumbel.counts, gumbel.optimise_cutoff) == (50, None, True)
    assert gumbel.worst_cost().delta < 1 / 1000


def test_all_methods_work_on_a_table_shorter_than_the_head_they_want():
    """Zeros stand behind the last item; nothing is returned that is not there."""
    table = made_of([50, 40, 3], 60)
    for method in ts_trials.METHODS:
        found = ts_trials.in_floats(table, method, 1.0, 7, 50, np.random.default_rng(3))
        assert (found.relative_sum <= 1).all(), method
        assert (found.proportion_run >= found.proportion).all(), method


@pytest.mark.parametrize(
    ("name", "epsilon", "k", "stable", "gumbel"),
    [
        ("gowalla", 0.4, 10, (0.52, 0.59), (1.00, 1.00)),
        ("gowalla", 1.0, 50, (0.26, 0.46), (0.84, 0.91)),
        ("movielens-1m", 0.4, 10, (0.40, 0.44), (0.97, 1.00)),
        ("foursquare", 1.0, 10, (0.70, 0.80), (0.96, 1.00)),
        ("retail", 0.4, 50, (0.35, 0.80), (0.71, 0.92)),
        ("online-retail", 1.0, 50, (0.08, 0.12), (0.42, 0.50)),
    ],
)
def test_real_tables_give_the_numbers_computed_elsewhere(name, epsilon, k, stable, gumbel):
    """P and S of the published rule and of the mended Gumbel method, by another program in 300 trials."""
    tables = Tables()
    if not tables.has(name):
        pytest.skip(f"{name} is not there")
    table = tables.real(name)
    for method, expected in ((ts_trials.TS_PUBLISHED, stable), (ts_trials.GUMBEL_CORRECTED, gumbel)):
        found = ts_trials.in_floats(table, method, epsilon, k, 1000, np.random.default_rng(4))
        assert found.proportion.mean() == pytest.approx(expected[0], abs=0.02)
        assert found.relative_sum.mean() == pytest.approx(expected[1], abs=0.02)


def test_the_published_numbers_cover_all_settings():
    """Three tables, two methods, nine settings, twice; all between 0 and 1."""
    for quoted in (ts_tables_2_3.PAPER_P, ts_tables_2_3.PAPER_S):
        assert {name for name, _ in quoted} == set(ts_trials.MADE_UP)
        assert all(set(by) == set(ts_trials.EPSILONS) for by in quoted.values())
        values = [v for by in quoted.values() for row in by.values() for v in row]
        assert len(values) == 54
        assert all(0 < v <= 1 for v in values)


def test_full_runs_use_available_real_tables(tmp_path):
    """And none that are not."""
    (tmp_path / "retail.parquet").touch()
    names = [cell["table"] for cell in ts_table_1.cells(Setting(Tables(tmp_path)))]
    assert names == [*ts_trials.MADE_UP, "retail"]


def rows_of(s):
    """Return rows of a panel at three k, with S by method."""
    return [
        {
            "panel": "d: very large k",
            "table": "t",
            "made_up": True,
            "epsilon": 1.0,
            "k": k,
            "method": method,
            "P": 0.5,
            "S": s.get(method, {}).get(k, 0.5),
            "S_error": 0.001,
        }
        for k in (10, 20, 30)
        for method in ts_trials.METHODS
    ]


def test_the_text_of_figure_1_follows_the_rows():
    """Who is ahead how often, and from which k on Top Stable is always ahead."""
    turn = ts_figure_1.describe(rows_of({ts_trials.TS_OURS: {10: 0.4, 20: 0.6, 30: 0.7}}))
    assert "Top Stable is ahead in 2 of the 3 cases that are decided, the Gumbel method in 1" in turn
    assert "ahead for good from k = 20 (t)" in turn
    assert "for good" not in ts_figure_1.describe(rows_of({ts_trials.TS_OURS: {30: 0.4}}))
