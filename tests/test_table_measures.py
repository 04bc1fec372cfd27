"""Sums, averages, periods, bins and quantiles of one table, and plans of its queries."""

from __future__ import annotations

import datetime
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import discreet
from discreet.errors import InputError, UnknownColumn
from discreet.noise import KeyedBits

START = datetime.datetime(2026, 1, 1)
USERS = 3000


def _rows():
    """Return rows: each user reads a for 10 minutes on 1 January and, if even, b for 30.50 on the 2nd."""
    rows = [(user, "a", 10, "10.00", 0) for user in range(USERS)]
    rows += [(user, "b", 30, "30.50", 24) for user in range(0, USERS, 2)]
    users, items, minutes, prices, hours = zip(*rows, strict=True)
    return pa.table(
        {
            "user": users,
            "item": items,
            "minutes": minutes,
            "price": pa.array(prices).cast(pa.decimal128(9, 2)),
            "read_at": [START + datetime.timedelta(hours=hour) for hour in hours],
        }
    )


ROWS = _rows()


def _bits(context="measures"):
    return KeyedBits(bytes(32), context)


@pytest.fixture
def table():
    """Return the table above."""
    return discreet.scan(ROWS, user="user")


def test_sums_and_averages_of_the_items_with_the_most_users(table):
    """Each with its error, and sums of decimals in their own unit."""
    sums = table.top("item", 2, sum="minutes", bound=50, epsilon=10, bits=_bits())
    assert [(row["item"], round(row["sum"], -3)) for row in sums] == [("a", 30_000), ("b", 45_000)]
    prices = table.top("item", 2, sum="PRICE", bound=("0", "50.5"), epsilon=10, bits=_bits()).to_arrow()
    assert prices.schema.field("sum").type == pa.decimal128(38, 2)
    assert [round(float(value), -3) for value in prices["sum"].to_pylist()] == [30_000, 46_000]
    averages = table.top("item", 2, average="minutes", bound=50, rows_per_group=2, epsilon=20, bits=_bits())
    assert [round(row["average"]) for row in averages] == [10, 30]
    assert [round(row["count"], -2) for row in averages] == [3000, 1500]


def test_an_average_is_of_rows_and_its_clipped_rows_have_less_weight():
    """Half of the users have one row of 10, half three of 40, and more than two rows or 60 have less weight."""
    rows = [(user, 10) for user in range(4000)] + [(user, 40) for user in range(4000, 8000) for _ in range(3)]
    rows += [(user, None) for user in range(8000, 9000)]
    table = discreet.scan(pa.table(dict(zip(("user", "x"), zip(*rows, strict=True), strict=True))), user="user")
    for bound, most, average, number in ((120, 3, 32.5, 16), (120, 2, 30, 12), (60, 3, 28, 10), (30, 5, 20, 8)):
        (row,) = table.release(average="x", bound=bound, rows_per_group=most, epsilon=20, bits=_bits())
        assert row["average"] == pytest.approx(average, rel=0.01)
        assert row["count"] == pytest.approx(1000 * number, rel=0.02)
        assert row["low"] <= row["average"] <= row["high"]


def test_a_quantile_is_of_rows_or_of_users():
    """Most rows are of a few users; each is one release, and what cannot be answered is not charged."""
    rows = [(user, 5) for user in range(4000)] + [(user, 25) for user in range(4000, 6000) for _ in range(4)]
    table = discreet.scan(pa.table(dict(zip(("user", "x"), zip(*rows, strict=True), strict=True))), user="user")
    bins = {"domain": range(0, 40, 10), "epsilon": 20}
    assert table.quantile("x:10", 0.5, rows_per_group=5, bits=_bits(), **bins) == (20, 20, 20)
    assert table.quantile("x:10", 0.5, per="user", bits=_bits(), **bins) == (0, 0, 0)
    budget = discreet.Budget(epsilon=30, delta="1e-6")
    for options, message in (
        ({}, "rows_per_group"),
        ({"per": "row"}, "rows_per_group"),
        ({"per": "day"}, "per row or per user"),
        ({"per": "user", "rows_per_group": 5}, "counts users, not rows"),
        ({"per": "user", "domain": None}, "all listed as the domain"),
        ({"per": "user", "mechanism": "head"}, "all listed as the domain"),
    ):
        with pytest.raises(InputError, match=message):
            table.quantile("x:10", 0.5, budget=budget, **{**bins, **options})
    assert budget.spent == discreet.Cost()


def test_a_bound_clips_each_users_sum(table):
    """The sum of minutes is 75,000; with at most 20 of each user it is 45,000."""
    (total,) = table.release(sum="minutes", bound=20, epsilon=10, bits=_bits())
    assert round(total["sum"], -3) == 45_000
    (users,) = table.release(epsilon=10, bits=_bits())
    assert abs(users["count"] - USERS) < 10


def test_periods_and_bins_are_items(table):
    """The label is the start, in a column named as it was asked for."""
    days = table.release("read_at:day", epsilon=4, bits=_bits())
    assert {row["read_at:day"]: round(row["count"], -2) for row in days} == {
        datetime.date(2026, 1, 1): 3000,
        datetime.date(2026, 1, 2): 1500,
    }
    both = table.release(["item", "minutes:20"], epsilon=4, bits=_bits())
    assert [(row["item"], row["minutes:20"]) for row in both] == [("a", 0), ("b", 20)]


def test_quantiles_are_computed_from_listed_bins(table):
    """Two thirds of the bins' users read 10 minutes, and so the median is in their bin; nothing is charged again."""
    bins = {"domain": range(0, 60, 10), "epsilon": 4}
    value, low, high = table.release("minutes", bits=_bits(), **bins).quantile(0.5)  # of clipped users
    assert low <= value == 10 <= high
    histogram = table.release("minutes:10", bits=_bits(), **bins)
    assert histogram.quantile(0.5) == (10, 10, 10)
    assert histogram.quantile("0.9") == (30, 30, 30)
    empty = table.where("minutes > 100").release("minutes:10", domain=[0], epsilon=4, bits=_bits("x7"))
    assert empty.quantile(0.5) in {(None, None, None), (0, 0, 0)}


@pytest.mark.parametrize("share", [0, 1, "x", -1, "1e-12"])
def test_the_share_of_a_quantile_is_checked(table, share):
    """Above 0, below 1, and a number."""
    histogram = table.release("minutes:10", domain=[0, 10], bits=_bits())
    with pytest.raises(InputError, match="share of a quantile"):
        histogram.quantile(share)


def test_quantiles_need_all_labels_of_one_ordered_column(table):
    """Bins that were left out would move the quantile."""
    refused = [
        table.release("minutes:10", bits=_bits()),
        table.top("minutes:10", 1, domain=[0, 10, 20], bits=_bits()),
        table.top("minutes:10", 1, domain=[0, 10, 20], groups_per_user=2, bits=_bits()),
        table.release("item", domain=["a", "b"], bits=_bits()),
        table.release(bits=_bits()),
        table.release("minutes:10", domain=[0, 10], sum="minutes", bound=9, bits=_bits()),
    ]
    for release in refused:
        with pytest.raises(InputError, match="quantiles are of releases of one column"):
            release.quantile(0.5)


@pytest.mark.parametrize(
    ("item", "options", "message"),
    [
        ("item", {"sum": "minutes"}, "a sum needs a bound"),
        ("item", {"bound": 3}, "a bound goes with a sum or an average"),
        ("item", {"sum": "minutes", "average": "price", "bound": 3}, "not several of them"),
        ("item", {"sum": "minutes", "bound": 3, "rows_per_group": 2}, "not several of them"),
        ("item", {"sum": "minutes", "bound": (1, 2, 3)}, "a number, or a pair"),
        ("item", {"sum": "minutes", "bound": "x"}, "the bound of a sum must be a finite number"),
        ("item", {"sum": "minutes", "bound": (3, 1)}, "must not be above its upper bound"),
        ("item", {"sum": "minutes", "bound": 0.5}, "whole numbers, in units of the column's last digit"),
        ("item", {"sum": "item", "bound": 3}, "cannot be summed"),
        ("item", {"sum": 3, "bound": 3}, "the name of a column to sum must be text"),
        (
            "item",
            {"average": "minutes", "bound": 3, "rows_per_group": 2, "counts": False},
            "an average has no labels without numbers",
        ),
        ("item", {"average": "minutes", "bound": 3}, "an average of rows needs rows_per_group"),
        ("item:day", {}, "which holds text"),
        ("minutes:0", {}, "the width of bins"),
        ("user:10", {}, "cannot be both the user and an item"),
        ((), {"domain": [1]}, "a domain lists items, and a total has none"),
    ],
)
def test_measures_that_do_not_go_together_are_refused(table, item, options, message):
    """One sentence each, before anything is read."""
    with pytest.raises(InputError, match=message):
        table.plan(item, 2 if item else None, **options)


def test_unknown_columns_of_measures_are_named(table):
    """The nearest column is shown."""
    with pytest.raises(UnknownColumn, match=r"there is no column to sum .minute.; did you mean"):
        table.plan("item", 2, sum="minute", bound=3)
    with pytest.raises(UnknownColumn, match="there is no item column 'read'"):
        table.plan("read:day")
    with pytest.raises(InputError, match="'third' in 'minutes:third' is no period"):
        table.plan("minutes:third")


def test_a_column_with_the_name_of_a_period_is_that_column():
    """An existing column comes first."""
    rows = pa.table({"u": range(2000), "x:day": ["a"] * 2000, "x": [START] * 2000})
    (row,) = discreet.scan(rows, user="u").release("x:day", epsilon=4, bits=_bits())
    assert row["x:day"] == "a"


def test_columns_of_csv_files_are_summed_after_a_cast(tmp_path):
    """Without one the sentence says so."""
    path = tmp_path / "t.csv"
    path.write_text("user,minutes\n" + "".join(f"{user},10\n" for user in range(1000)))
    with pytest.raises(InputError, match=r"CSV files do; cast it to decimal\(18,2\) or integer: .* cast={'"):
        discreet.scan(path, user="user").release(sum="minutes", bound=10)
    (total,) = discreet.scan(path, user="user", cast={"minutes": "integer"}).release(
        sum="minutes", bound=10, epsilon=10, bits=_bits()
    )
    assert round(total["sum"], -3) == 10_000


def test_float_ids_of_pandas_need_a_cast():
    """The sentence says which; the user column is checked when the frame is scanned."""
    frame = pd.DataFrame({"user": np.arange(2000.0), "item": 7.0})
    frame.loc[0, "user"] = np.nan
    with pytest.raises(InputError, match=r"by cast= \(--cast user=integer\)$"):
        discreet.scan(frame, user="user")
    with pytest.raises(InputError, match="can be cast to integer or text only"):
        discreet.scan(frame, user="user", cast={"user": "decimal(9,1)"})
    table = discreet.scan(frame, user="user", cast={"user": "integer", "item": "integer"})
    (row,) = table.release("item", epsilon=8, bits=_bits())
    assert row["item"] == 7
    assert abs(row["count"] - 1999) < 20


def test_a_plan_is_that_of_the_query(table):
    """It reads no row and says what the query will cost; the same arguments, and a k for a top."""
    planned = table.plan("item", 2, sum="price", bound=50, epsilon=2)
    release = table.top("item", 2, sum="price", bound=50, epsilon=2, bits=_bits())
    assert (planned.query, planned.mechanism.name) == (release.query, release.mechanism)
    assert release.charged.within(planned.worst_cost)
    assert table.plan("item").query.k is None
    budget = discreet.Budget(epsilon=1, delta="1e-6")
    assert table.plan("item", 2, budget=budget).query.options.delta == Fraction(1, 10**8)
    assert budget.spent == discreet.Cost()


def test_a_table_shows_its_source_user_and_filter(table, tmp_path):
    """On one line, also of several files; no row."""
    assert repr(table) == "<Table of the pyarrow Table, with users in 'user'>"
    filtered = table.where("item = 'a' AND minutes > 3")
    assert repr(filtered) == "<Table of the pyarrow Table, with users in 'user' where item = 'a' AND minutes > 3>"
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("u,x\n1,2\n")
    several = discreet.scan(str(tmp_path / "*.csv"), user="u", cast={"x": "integer"})
    assert "a.csv, " in repr(several)
    assert "\n" not in repr(several)


@pytest.mark.parametrize("text", ["x > 'abc'", "x <= '100'", "NOT x >= '1'", "y = 1 OR x < 'z'"])
def test_text_has_no_order_in_a_column_without_a_type(tmp_path, text):
    """As text, 20 is above 100: the constant should have no quotes, or the column a type."""
    path = tmp_path / "t.csv"
    path.write_text("u,x,y\n1,2,3\n")
    with pytest.raises(discreet.WhereError, match="takes a number without quotes, or a date"):
        discreet.scan(path, user="u").where(text)
    discreet.scan(path, user="u", cast={"x": "text"}).where(text)


@pytest.mark.parametrize("text", ["x > 1", "x >= '2026-01-01'", "x LIKE 'a%'", "x LIKE '%'", "x = 'abc'", "x <> '1'"])
def test_other_comparisons_of_columns_without_a_type_are_allowed(tmp_path, text):
    """Numbers, dates, patterns, and equality with text."""
    path = tmp_path / "t.csv"
    path.write_text("u,x,y\n1,2,3\n")
    discreet.scan(path, user="u").where(text).plan("y")
