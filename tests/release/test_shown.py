"""Items that the catalog does not let be shown: decided by noisy counts and labels, after the release."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import discreet
from discreet.errors import InputError
from discreet.release.answer import matching, shown
from discreet.release.tables import guarded
from discreet.values import Cost, Measured, Outcome
from tests.queries import query_of

CATALOG = """
[datasets.d]
source = "d.parquet"
user = "reader"
rows_per_group = 2
min_users = {min_users}
columns.article = {{ type = "text", group = true, pattern = "[a-z]+" }}
columns.minutes = {{ type = "integer", sum = {{ low = 0, high = 9 }} }}
columns.year = {{ type = "integer", group = true, domain = [1, 2, 3] }}
"""


def outcome_of(low, **parts):
    """Return an outcome whose intervals begin at *low*."""
    low = np.array(low, dtype=np.int64)
    arrays = {"counts": low + 10, "std_errors": np.full(len(low), 5.0), "low": low, "high": low + 20}
    return Outcome(np.arange(len(low)), **arrays, ordered=True, complete=True, cost=Cost(), **parts)


@pytest.fixture
def warehouse(tmp_path):
    """Return a function that opens a catalog over articles with 900, 110 and 20 readers, and a label in capitals."""
    sizes = {"tides": 900, "moss": 110, "owls": 20, "CALL ME": 900}
    rows = [(reader, article) for article, n in sizes.items() for reader in range(n)]
    table = {
        "reader": [reader for reader, _ in rows],
        "article": [article for _, article in rows],
        "minutes": [1] * len(rows),
        "year": [1 + (article == "moss") for _, article in rows],
    }
    pyarrow.parquet.write_table(pa.table(table), tmp_path / "d.parquet")

    def opened(min_users):
        (tmp_path / "catalog.toml").write_text(CATALOG.format(min_users=min_users))
        return discreet.connect(tmp_path / "catalog.toml")

    return opened


def test_an_item_is_shown_from_the_lower_end_of_its_interval_on():
    """min_users times the rows of one user; all arrays lose the same items, and nothing is added to the cost."""
    query = dataclasses.replace(query_of("reader", ("article",)), min_users=50)
    measured = Measured("sum", *(np.arange(3) for _ in range(4)))
    labels, kept = shown(query, pa.table({"article": ["a", "b", "c"]}), outcome_of([50, 49, 80], measured=measured))
    assert labels.column("article").to_pylist() == ["a", "c"]
    assert (kept.low.tolist(), kept.counts.tolist(), kept.positions.tolist()) == ([50, 80], [60, 90], [0, 2])
    assert kept.measured.values.tolist() == [0, 2]
    assert (kept.complete, kept.cost) == (False, Cost())


def test_with_nothing_to_leave_out_the_outcome_is_the_same_object():
    """No query pays for a feature that its catalog does not use."""
    outcome = outcome_of([50, 49])
    labels = pa.table({"article": ["a", "b"]})
    assert shown(query_of("reader", ("article",)), labels, outcome) == (labels, outcome)


@given(st.lists(st.none() | st.text(max_size=6), min_size=1, max_size=6))
def test_a_pattern_is_about_the_whole_label(texts):
    """A line break does not end a label, and a missing label matches."""
    found = matching(pa.chunked_array([pa.array(texts, pa.string())]), "[a-z]{1,3}|x y")
    wanted = [
        text is None or text == "x y" or (1 <= len(text) <= 3 and all("a" <= one <= "z" for one in text))
        for text in texts
    ]
    assert found.tolist() == wanted


def test_small_items_and_labels_of_another_form_are_not_shown(warehouse):
    """Through a catalog, for users and for rows, which count up to twice."""
    with warehouse(60) as found:
        users = found.query("SELECT article, COUNT(DISTINCT reader) FROM d GROUP BY article", epsilon=8.0)
        assert set(users.labels.column("article").to_pylist()) == {"tides", "moss"}
        rows = found.query("SELECT article, COUNT(*) FROM d GROUP BY article", epsilon=8.0)
        assert set(rows.labels.column("article").to_pylist()) == {"tides"}
        total = found.query("SELECT COUNT(DISTINCT reader) FROM d")
        assert len(total) == 1
        inner = "SELECT article, COUNT(DISTINCT reader) AS c FROM d GROUP BY article"
        assert found.sql(f"SELECT COUNT(*) AS n FROM ({inner})", epsilon=8.0).table.to_pylist() == [{"n": 2}]


@pytest.mark.parametrize(
    ("sql", "options"),
    [
        ("SELECT article, SUM(minutes) FROM d GROUP BY article", {}),
        ("SELECT article, AVG(minutes) FROM d GROUP BY article", {}),
        ("SELECT article, COUNT(DISTINCT reader) FROM d GROUP BY article LIMIT 2", {"counts": False}),
    ],
)
def test_what_has_no_counts_of_users_is_refused(warehouse, sql, options):
    """The noisy count decides, so there must be one."""
    with warehouse(40) as found, pytest.raises(InputError, match="ask for COUNT"):
        found.plan(sql, **options)


def test_quantiles_are_refused_where_labels_may_be_missing(warehouse):
    """They would be those of the labels that are left."""
    with warehouse(40) as found, pytest.raises(InputError, match="does not let all of them be shown"):
        found.sql("SELECT MEDIAN(year) FROM d")


def test_no_exact_count_decides(warehouse):
    """An item of 110 users is shown or not by its noise, while its count does not change."""
    sizes = set()
    with warehouse(5) as d:
        sql = "SELECT year, COUNT(DISTINCT reader) FROM d GROUP BY year"
        for n in range(150):  # the rarer size comes in about one of six: all are equal once in 10^12 runs
            release = d.query(sql, epsilon=0.05, delta=1e-6, key=bytes([n]) * 32)
            assert (release.low >= 5).all()
            sizes.add(len(release))
            if len(sizes) > 1:
                break
    assert len(sizes) > 1


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        *((text, f"'{text}") for text in ("=1+1", "+1", "-1", "@x", "\t=1")),
        *((text, text) for text in ("a=1", "", None)),
    ],
)
def test_a_label_cannot_compute_in_a_spreadsheet(text, cell):
    """Texts that begin like a formula get an apostrophe; negative numbers stay numbers."""
    table = pa.table({"label": pa.array([text], pa.string()), "n": [-5]})
    assert guarded(table).to_pylist() == [{"label": cell, "n": -5}]
