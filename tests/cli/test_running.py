"""`discreet running`: a stream of a catalog from its plan to an answer, and its refusals."""

from __future__ import annotations

import csv
import datetime
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from discreet.cli import main

CATALOG = """
[datasets.reads]
source = "reads.parquet"
user = "reader"
columns.article.type = "text"
columns.article.group = true
{retention}

[datasets.reads.running.by_article]
items = ["article"]
where = "country = 'DE'"
column = "day"
first = "2026-01-05"
periods = {periods}
{bound}
epsilon = 4
answers = "by_article.parquet"
"""

LATE = 'column = "loaded"\nfirst = "2026-01-05"\nperiods = 7\nepsilon = 1\nanswers = "late.parquet"\n'


@pytest.fixture
def run(tmp_path, capsys):
    """Return a function that runs `discreet running` in a folder with a catalog, and returns exit code and output."""
    n = 9_000
    first = datetime.date(2026, 1, 5)
    table = pa.table(
        {
            "reader": np.arange(n) % 4_000,
            "article": [f"a{k * k % 5}" for k in range(n)],
            "country": ["DE", "FR", "DE"] * (n // 3),
            "day": [first + datetime.timedelta(k % 7) for k in range(n)],
        }
    )
    pq.write_table(table, tmp_path / "reads.parquet")
    (tmp_path / "noise.key").write_bytes(b"thirty-two bytes of a public key")
    (tmp_path / "noise.key").chmod(0o600)

    def call(what, *arguments, periods=7, retention="", bound="groups_per_user = 2", more=""):
        text = CATALOG.format(periods=periods, retention=retention, bound=bound) + more
        (tmp_path / "catalog.toml").write_text(text)
        key = ("--key", str(tmp_path / "noise.key")) if what == "refresh" else ()
        with pytest.raises(SystemExit) as ended:
            main(["running", what, str(tmp_path / "catalog.toml"), *arguments, *key])
        printed = capsys.readouterr()
        return ended.value.code, printed.out + printed.err

    return call


def test_the_plan_names_the_middle_whose_noise_is_the_largest(run):
    """The standard error and the smallest item of the first and the last period alone would promise less noise."""
    code, text = run("plan", "by_article", periods=90)
    assert code == 0
    for label in ("standard error", "smallest item"):
        (line,) = (line for line in text.splitlines() if line.startswith(label))
        first, middle, last = (float(number) for number in re.findall(r"[\d.]+", line))
        assert first < last < middle


def test_a_stream_from_its_plan_to_its_answers(run, tmp_path):
    """Plan, begin and refresh, the same again, and what is shown."""
    code, text = run("plan", "by_article")
    assert code == 0
    assert "7 by day, 2026-01-05 to 2026-01-11" in text
    assert "the first 2 items of each user" in text
    assert not (tmp_path / "by_article.parquet").exists()
    assert run("refresh", "--begin", "--period", "2026-01-06") == (0, "by_article: 3 items\n")
    assert run("refresh", "by_article") == (0, "by_article: 3 items\n")
    held = (tmp_path / "by_article.parquet").read_bytes()
    assert run("refresh", "--begin") == (0, "by_article: 3 items\n")
    assert (tmp_path / "by_article.parquet").read_bytes() == held
    code, text = run("show", "by_article", "--format", "csv")
    assert code == 0
    rows = list(csv.DictReader(text.splitlines()))
    assert {row["article"] for row in rows} == {"a0", "a1", "a4"}
    assert 3_900 < sum(int(row["count"]) for row in rows) < 4_100  # of 4,000 readers, each with one article
    assert set(rows[0]) == {"article", "count", "std_error", "low", "high"}
    code, text = run("show", "by_article", "--period", "2026-01-06")
    assert code == 0
    shown = [line.split() for line in text.splitlines() if line.split()[0] in {"a0", "a1", "a4"}]
    assert len(shown) == 3
    assert all(len(cells[2]) <= 4 for cells in shown)  # of its standard error


def test_a_stream_that_is_corrected_says_which_share_is_kept(run):
    """Without groups_per_user: the plan names both bounds, a refresh the share; a pilot may choose other bounds."""
    code, text = run("plan", "by_article", bound="")
    assert "in a service some 40,000 items, then the stream ends" in text
    assert code == 0
    assert "the first 10 items that are not listed, and 10 listed of each user; counts are corrected" in text
    assert run("refresh", "--begin", bound="") == (
        0,
        "by_article: 3 items; 100% of users' pairs with listed items are kept\n",
    )
    code, text = run("plan", "by_article", bound='pilot = "2025-12-29"')
    assert code == 0
    assert "unless the pilot chooses others" in text
    code, text = run("plan", "by_article", bound='pilot = "2025-12-30"')
    assert (code, "begins at 2025-12-29 00:00:00 at the latest" in text) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("refresh",), {}, "begin the stream, with begin() or --begin; if they were lost, it has ended"),
        (("refresh", "none"), {}, "there is no stream 'none'; the catalog declares by_article"),
        (("refresh", "--begin", "--period", "2026-02-01"), {}, "declared for the periods 2026-01-05 to 2026-01-11"),
        (
            ("refresh", "--begin", "--period", "2036-01-01"),
            {"periods": 3_653},
            "is complete at 2036-01-02 01:00:00 UTC",
        ),
        (("plan", "by_article"), {"retention": "retention_days = 6"}, "rows would vanish during it"),
        (("plan", "by_article"), {"retention": "min_users = 50"}, "would show items that min_users leaves out"),
        (
            ("plan", "by_article"),
            {"retention": 'columns.article.pattern = "a[0-9]+"'},
            "would show items that the pattern of 'article' leaves out",
        ),
        (("show", "by_article"), {}, "there are no answers in by_article.parquet"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(run, tmp_path, arguments, options, message):
    """A lost file, an unknown stream, undeclared periods, rows that vanish, items that must not be shown."""
    code, text = run(*arguments, **options)
    assert code == 2
    assert message in text
    assert "Traceback" not in text
    assert not (tmp_path / "by_article.parquet").exists()


@pytest.fixture
def three(run):
    """Return a function that runs `discreet running` with three streams, of which by_two and by_three were begun."""
    text = CATALOG.format(periods=7, retention="", bound="groups_per_user = 2")
    table = text[text.index("[datasets.reads.running") :]
    more = "".join(table.replace("by_article", name) for name in ("by_two", "by_three"))
    assert run("refresh", "--begin", "by_two", "by_three", "--period", "2026-01-06", more=more)[0] == 0
    return lambda *arguments: run(*arguments, more=more)


def test_a_stream_without_a_file_keeps_no_other_from_its_refresh(three):
    """It is left out and named, unless it was asked for by its name; --begin begins it."""
    code, text = three("refresh")
    assert (code, text.count(" items\n")) == (0, 2)
    assert "note: without a file: by_article; --begin begins those that were never begun" in text
    code, text = three("refresh", "by_article", "by_two")
    assert code == 2
    assert text.startswith("by_two: 3 items\ndiscreet: by_article: there are no answers in by_article.parquet: begin")
    assert three("refresh", "--begin") == (0, "by_article: 3 items\nby_two: 3 items\nby_three: 3 items\n")


def test_a_stream_that_is_refused_keeps_no_other_from_its_refresh(three, tmp_path):
    """Each failure is a sentence with the name of the stream, and the exit code is 2."""
    (tmp_path / "by_two.parquet").write_bytes(b"no Parquet file")
    code, text = three("refresh", "none", "by_two", "by_three")
    assert code == 2
    assert text.startswith("by_three: 3 items\ndiscreet: none: there is no stream 'none'")
    assert "\ndiscreet: by_two: by_two.parquet does not hold the answers of a stream" in text


def test_the_check_of_a_catalog_finds_a_stream_that_can_never_run(run, tmp_path, capsys):
    """Its column is missing: what `running plan` refuses, `catalog check` reports in the same words."""
    code, _ = run("plan", "by_article", more='\n[datasets.reads.running.late]\nitems = ["article"]\n' + LATE)
    assert code == 0
    with pytest.raises(SystemExit) as ended:
        main(["catalog", "check", str(tmp_path / "catalog.toml")])
    assert ended.value.code == 2
    printed = capsys.readouterr().out
    assert "ok       datasets.reads.running.by_article\n" in printed
    assert "mistake  datasets.reads.running.late: there is no column of arrival 'loaded'" in printed


def test_a_declaration_that_was_made_longer_is_refused(run):
    """The noise and the price follow from the number of periods."""
    assert run("refresh", "--begin")[0] == 0
    code, text = run("refresh", periods=14)
    assert code == 2
    assert "declared with periods = 7, not 14" in text
