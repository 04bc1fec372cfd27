"""The experiments of Rogers 2024 run on small made-up tables."""

from __future__ import annotations

import numpy as np
import pytest

from papers.baselines import Counted
from papers.experiment import Setting
from papers.experiments import (
    pcr_figures,
    pcr_pages,
    pcr_table_1,
    pcr_trials,
)
from papers.tables import Tables
from papers.user_items import UserItems
from tests.papers.checks import page_of

FIGURES = pcr_figures.FIGURES


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """Return a setting of made-up tables only."""
    return Setting(Tables(tmp_path_factory.mktemp("no tables")), smoke=True)


@pytest.mark.parametrize("experiment", [pcr_table_1.EXPERIMENT, *FIGURES], ids=lambda e: e.name)
def test_an_experiment_runs_on_made_up_tables(experiment, setting, tmp_path):
    """Rows of equal keys, a picture, a page; finished cells are read back."""
    _, text = page_of(experiment, setting, tmp_path)
    assert "(made up" in text


def test_a_cell_gives_the_same_rows_again(setting):
    """All randomness comes from the cell; other cells of the same table have other randomness."""
    cells = [cell for cell in FIGURES[2].cells(setting) if cell["family"] in ("Plume 95", pcr_trials.OURS)]
    assert len(cells) == 2
    for cell in cells:
        rows = pcr_trials.measure(setting, cell)
        assert rows == pcr_trials.measure(setting, cell)
        assert rows != pcr_trials.measure(setting, cell | {"trials": 3})


def test_a_figure_has_all_methods_at_all_epsilons(setting):
    """Two variants of ours and six of Plume."""
    rows = [row for cell in FIGURES[0].cells(setting) for row in pcr_trials.measure(setting, cell)]
    methods = {*pcr_pages.STYLES, *pcr_pages.NOT_DRAWN}
    assert {(row["method"], row["epsilon"]) for row in rows} == {(m, e) for m in methods for e in (1.0, 4.0)}
    assert {row["first_bound"] for row in rows if "Plume" in row["method"]} == {1.0}


def test_full_runs_use_available_real_tables(tmp_path):
    """And none that are not; an official file of the paper's own table comes before the nearest ones."""
    (tmp_path / "movielens-1m.parquet").touch()
    full = Setting(Tables(tmp_path, official={"pcr-movielens": tmp_path / "ratings.csv"}))
    names = [cell["table"] for cell in FIGURES[4].cells(full)]
    assert list(dict.fromkeys(names)) == ["pcr-movielens/4", "pcr-movielens", "movielens-1m"]
    assert {cell["table"] for cell in FIGURES[3].cells(full)} == {"pcr-wikipedia/4"}


def test_a_summary_counts_what_is_beyond_the_target():
    """Exactly ten per cent is within; shares are of all results, and empty releases do not count."""
    truth = np.array([100, 50])
    releases = [
        Counted(np.array([0, 1]), np.array([110.0, 56.0]), np.ones(2), (3, 2)),
        Counted(np.array([1]), np.array([50.0]), np.ones(1), (3, 4)),
        Counted(np.array([], dtype=np.int64), np.array([]), np.array([]), (3, 0)),
    ]
    row = pcr_trials.summary("m", 1.0, releases, truth)
    assert (row["returned"], row["beyond"], row["accurate"]) == (1.0, 1 / 3, 2 / 3)
    assert row["returned_sd"] == 1.0
    assert row["beyond_sd"] == pytest.approx(np.std([0.5, 0], ddof=1))
    assert (row["first_bound"], row["second_bound"]) == (3.0, 2.0)
    nothing = pcr_trials.summary("m", 1.0, releases[2:] * 2, truth)
    assert (nothing["returned"], nothing["beyond"], nothing["beyond_sd"]) == (0.0, None, None)


def test_the_first_users_keep_their_items():
    """Items that only later users have are removed, and the others are renumbered in order."""
    table = UserItems("t", np.array([0, 0, 1, 2, 2]), np.array([5, 1, 5, 0, 1]))
    first = pcr_trials.first_users(table, 2)
    assert (first.name, first.users.tolist(), first.items.tolist()) == ("t, first 2", [0, 0, 1], [1, 0, 1])


def rows_with(accurate):
    """Return rows of all methods on one table at two epsilons, with the given (accurate, returned) by method."""
    return [
        {
            "table": "t",
            "made_up": True,
            "users": 1234,
            "method": method,
            "epsilon": epsilon,
            "accurate": accurate.get(method, (5.0, 10.0))[0],
            "returned": accurate.get(method, (5.0, 10.0))[1],
            "beyond": 1 - accurate.get(method, (5.0, 10.0))[0] / accurate.get(method, (5.0, 10.0))[1],
            "first_bound": 7.0,
            "second_bound": 6.0,
        }
        for method in (*pcr_pages.STYLES, *pcr_pages.NOT_DRAWN)
        for epsilon in (1.0, 4.0)
    ]


def test_the_text_follows_the_rows():
    """Who wins, by how much, and what is beyond, all from the numbers."""
    better = pcr_pages.describe(rows_with({pcr_trials.OURS: (9.0, 10.0)}), "Nothing.")
    assert "Ours has more within 10 % than Plume with a threshold at ε = 1 and 4, at either percentile." in better
    assert "80 % more than PCR as published" in better
    assert "of whose results 50 % are beyond 10 %, of ours 10 %." in better
    mixed = {pcr_trials.OURS: (6.0, 6.0), "Plume 99, threshold": (7.0, 7.0)}
    worse = pcr_pages.describe(rows_with(mixed), "Nothing.")
    assert "at ε = 1 and 4 (95th percentile), at no ε (99th), and at no ε (the best" in worse
