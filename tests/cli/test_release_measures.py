"""`discreet top` and `release` of a file: sums, averages, periods, bins, quantiles, and columns that are cast."""

from __future__ import annotations

import csv
import io
import json

import pytest

USERS = 2000
ONE = ("--rows-per-group", 1)


@pytest.fixture
def visits(tmp_path):
    """Return a CSV file: user u reads a for u % 40 minutes on 1 January, and pays 2.50 for it."""
    rows = [f"{user},a,{user % 40},2.50,2026-01-01 10:{user % 60:02}:00" for user in range(USERS)]
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(["user,item,minutes,price,read_at", *rows]) + "\n")
    return path


@pytest.fixture
def asked(run, visits):
    """Run a command on that file and return its rows."""

    def asked(command, *arguments):
        ran = run(command, visits, "--user", "user", "--epsilon", 20, "--format", "csv", *arguments)
        assert ran.code == 0, ran.err
        return list(csv.DictReader(io.StringIO(ran.out)))

    return asked


def test_sums_and_averages(asked):
    """The mean is 19.5 minutes and 2.50; a bound clips, and a pair of bounds has a lower one."""
    (row,) = asked("top", "--item", "item", "-k", 1, "--sum", "minutes", "--bound", 40, "--cast", "minutes=integer")
    assert round(int(row["sum"]), -3) == 39_000
    (row,) = asked("release", "--average", "minutes", "--bound", "0,40", *ONE, "--cast", "minutes=integer")
    assert abs(float(row["average"]) - 19.5) < 0.5
    cast = ["--cast", "price=decimal(9,2)"]
    (row,) = asked("release", "--sum", "price", "--bound=-2.5,2.5", *cast)
    assert round(float(row["sum"]), -2) == 5_000
    (row,) = asked("release", "--sum", "price", "--bound", "1.5", *cast)
    assert round(float(row["sum"]), -2) == 3_000


def test_periods_of_a_range(asked):
    """All days of the range are released, those without rows too; dates of weeks and months are their first days."""
    rows = asked("release", "--item", "read_at:day", "--range", "2025-12-31,2026-01-02")
    assert {row["read_at:day"]: round(int(row["count"]), -2) for row in rows} == {
        "2025-12-31": 0,
        "2026-01-01": USERS,
        "2026-01-02": 0,
    }
    rows = asked("release", "--item", "read_at:hour", "--range", "2026-01-01T09:00,2026-01-01T10:00")
    assert [round(int(row["count"]), -2) for row in rows] == [0, USERS]  # in their order
    (row,) = asked("release", "--item", "read_at:month")
    assert row["read_at:month"] == "2026-01-01"


def test_quantiles_of_bins(asked):
    """A user is in one bin: the median of 0 to 39 is in the bin of 10 and 9 in 10 are up to that of 30."""
    rows = asked("release", "--item", "minutes:10", "--range", "0,30", "--quantile", "0.45", "--quantile", "0.9", *ONE)
    assert [(row["quantile"], row["minutes:10"], row["low"], row["high"]) for row in rows] == [
        ("0.45", "10", "10", "10"),
        ("0.9", "30", "30", "30"),
    ]
    rows = asked(
        "release", "--item", "minutes", "--range", "0,39", "--cast", "minutes=integer", "--quantile", "0.5", *ONE
    )
    assert 18 <= int(rows[0]["minutes"]) <= 21


def test_a_plan_of_a_sum_opens_the_file(run, visits):
    """Its error is in the unit of the column, and the type of the column is checked."""
    arguments = [visits, "--user", "user", "--average", "price", "--bound", 5, "--rows-per-group", 2]
    ran = run("plan", *arguments, "--cast", "price=decimal(9,2)", "--format", "json")
    assert 0 < json.loads(ran.out)["sum_std_error"] < 50
    shown = run("plan", *arguments, "--cast", "price=decimal(9,2)").out
    basis = "an average of n rows, divided by n; 0.86 to 1 times that for averages up to 2.5"
    assert f" for {basis}\n" in shown
    arguments[-3:] = ["9999.99", "--rows-per-group", 100_000]  # noise of differences that cannot be sampled
    assert (
        "; 1 to 1.42 times that for averages up to 0.1\n" in run("plan", *arguments, "--cast", "price=decimal(9,2)").out
    )
    ran = run("plan", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "column 'price' holds text, because CSV files do; cast it to decimal(18,2) or integer: --cast 'pr" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sum", "minutes"], "a sum needs a bound, such as --bound 100: "),
        (["--bound", "3"], "a bound goes with a sum or an average"),
        (["--sum", "minutes", "--bound", "1,2,3"], "the bound of a sum is a number, or a pair"),
        (["--sum", "minutes", "--bound", "x"], "the bound of a sum must be a finite number, not 'x'"),
        (["--cast", "minutes"], "--cast takes a column and a type"),
        (["--cast", "=integer"], "--cast takes a column and a type"),
        (["--cast", "minutes=float"], "a column is cast to text, integer"),
        (["--cast", "item=integer"], "it holds a value that has no equal one of that type"),
        (["--item", "minutes:10", "--range", "30"], "--range takes a first and a last item"),
        (["--item", "minutes:10", "--range", "3,x"], "--range takes a first and a last item"),
        (["--item", "minutes:10", "--range", "30,0"], "--range lists from 1 to 1,000,000 items"),
        (["--item", "minutes:10", "--range", "0,99999999999"], "--range lists from 1 to 1,000,000 items"),
        (["--range", "0,30"], "--range lists the items of one --item"),
        (["--item", "minutes:10", "--quantile", "0.5"], "--quantile goes with --range"),
        (
            ["--item", "minutes:10", "--range", "0,9", "--quantile", "0.5"],
            "--quantile is of rows: give --rows-per-group",
        ),
        (
            ["--item", "minutes:10", "--range", "0,9", "--rows-per-group", "1", "--quantile", "2"],
            "the share of a quantile is above 0",
        ),
        (["--where", "price > 'abc'"], "takes a number without quotes"),
    ],
)
def test_mistakes_are_one_sentence(run, visits, arguments, message):
    """Exit code 2 and nothing on standard output."""
    ran = run("release", visits, "--user", "user", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1
