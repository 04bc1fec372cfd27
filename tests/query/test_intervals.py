"""Intervals of differences, ratios and other expressions of answers: they cover, and what has none says so."""

from __future__ import annotations

import math
from fractions import Fraction

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from discreet.errors import SQLError
from discreet.query.answers import BIAS, HIGH, LOW, NOISE, SHARED, VALUE
from discreet.query.intervals import Ratio, interval_sql, read_ratio, sum_sql
from discreet.query.parse_tree import parse_statement
from discreet.query.statement import split_statement
from discreet.release.postprocess import compute_outer

SAMPLES = 20_000
HALF_WIDTH = {"gaussian": 1.959964, "laplace": math.log(20)}
"""The half width of a 95 % interval, in units of the scale of the noise."""


def read(text):
    """Return an expression of the columns a, b and c as a ratio."""
    node = parse_statement(f"SELECT {text}", arithmetic=True)["node"]["select_list"][0]
    return read_ratio(node, lambda part: part["column_names"][0] if part["type"] == "COLUMN_REF" else None)


def sampled(text, truth, scales, noise, key):
    """Return the share of samples whose interval has the true value or is missing, and the share that have one."""
    random = np.random.default_rng(key)
    columns = {}
    for name, value, scale in zip("abc", truth, scales, strict=False):
        drawn = value + getattr(random, {"gaussian": "normal"}.get(noise, noise))(0, scale, SAMPLES)
        half = HALF_WIDTH[noise] * scale
        # As released: the lower end of a count is never below 0, though the noisy count may be.
        columns |= {name: drawn, f"{name}_low": np.maximum(drawn - half, 0), f"{name}_high": drawn + half}
    low, high = interval_sql(read(text), {name: (name, f"{name}_low", f"{name}_high") for name in "abc"[: len(truth)]})
    with duckdb.connect() as database:
        database.register("answers", pa.table(columns))
        at = f"SELECT {truth[0]}::DOUBLE AS a, {truth[1]}::DOUBLE AS b"
        ((true,),) = database.sql(f"SELECT {text} FROM ({at})").fetchall()
        found = database.sql(f"SELECT {low} AS low, {high} AS high FROM answers").fetchnumpy()
    low, high = (np.ma.filled(found[end].astype(float), math.nan) for end in ("low", "high"))
    there = ~np.isnan(low)
    covers = (low - 1e-9 * abs(true) <= true) & (true <= high + 1e-9 * abs(true))
    return np.mean(covers | ~there), np.mean(there)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize(
    ("text", "truth", "scales"),
    [
        ("a - b", (1000, 900), (10, 10)),
        ("a - b", (5, 3), (10, 10)),
        ("a - b", (0, 400), (10, 3)),
        ("a + b", (1000, 900), (3, 40)),
        ("a + a + b", (1000, 900), (10, 5)),
        ("3 * a - 0.5 * b + 7", (1000, 900), (3, 40)),
        ("a / 2", (1000, 900), (30, 1)),
        ("a / b", (1000, 900), (10, 10)),
        ("100.0 * a / b - 100", (300, 900), (10, 40)),
        ("a / b", (1000, 50), (10, 20)),
        ("a / b", (40, 15), (10, 10)),
        ("a / b", (0, 0), (10, 10)),
        ("a / (a + b)", (500, 900), (30, 10)),
        ("(a - b) / b", (1000, 900), (10, 30)),
        ("(a - b) / (a + b)", (1000, 900), (60, 30)),
    ],
)
def test_the_interval_of_an_expression_covers(noise, text, truth, scales):
    """At least 95 % of 20,000 samples with fixed keys, less three standard errors; counting none as all numbers."""
    truth = truth if truth != (0, 0) or "/" not in text else (1e-9, 1e-9)
    covered, _ = sampled(text, truth, scales, noise, 5)
    assert covered >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / SAMPLES)


@pytest.mark.parametrize(
    ("text", "truth", "scales"), [("a - b", (1000, 900), (10, 20)), ("a / b", (1000, 900), (10, 20))]
)
def test_the_interval_is_no_wider_than_it_must_be(text, truth, scales):
    """With Gaussian noise, 95 % of the samples are covered, not more."""
    covered, there = sampled(text, truth, scales, "gaussian", 7)
    assert abs(covered - 0.95) < 0.005
    assert there == 1


def test_a_ratio_by_noise_has_no_interval():
    """Where the divisor may be 0, no interval is right."""
    _, there = sampled("a / b", (1000, 1e-9), (10, 10), "gaussian", 9)
    assert there < 0.06


@pytest.mark.parametrize(
    ("text", "above", "below"),
    [
        ("a", {"a": 1}, {"": 1}),
        ("-a", {"a": -1}, {"": 1}),
        ("a - a", {"a": 0}, {"": 1}),
        ("2 * (a - 3) / 4", {"a": Fraction(1, 2), "": Fraction(-3, 2)}, {"": 1}),
        ("CAST(a AS DOUBLE) / NULLIF(b, 0)", {"a": 1}, {"b": 1}),
        ("1 - a / b", {"b": 1, "a": -1}, {"b": 1}),
        ("a / b - b / b", {"a": 1, "b": -1}, {"b": 1}),
        ("1e2 * a", {"a": 100}, {"": 1}),
    ],
)
def test_linear_forms_and_ratios_are_read(text, above, below):
    """With exact coefficients."""
    found = read(text)
    assert isinstance(found, Ratio)
    assert {name: x for name, x in found.above.items() if name or x} == above
    assert dict(found.below) == below


@pytest.mark.parametrize(
    "text",
    ["a * b", "a / b / c", "a / b + a / c", "abs(a)", "a % 2", "a / 0", "CAST(a AS INTEGER)", "nullif(a, 3)",
     "sqrt(a)", "a ** 2", "CASE WHEN a > 1 THEN a END", "coalesce(a, 0)", "'x'", "1e2000 * a"],
)  # fmt: skip
def test_other_expressions_have_no_interval(text):
    """Products, other ratios and functions."""
    assert read(text) is None


PARTS = {BIAS: [0.0, 0.0], NOISE: [10.0, 10.0], SHARED: [0.0, 0.0]}
TABLES = {
    "q1": pa.table({"c": ["x", "y"], VALUE: [100, 50], LOW: [90, 40], HIGH: [110, 60]} | PARTS),
    "q2": pa.table({"c": ["x", "y"], VALUE: [10, 20], LOW: [5, 15], HIGH: [15, 25]} | PARTS),
}


def computed(sql):
    """Return the marks and the first row of a statement over the answers above."""
    statement = split_statement(sql)
    table = compute_outer(statement.outer, {leaf.name: TABLES[leaf.name] for leaf in statement.leaves}).table
    return statement.marks, list(table.to_pylist()[0].values()) if len(table) else []


def test_ends_of_expressions_of_aggregates():
    """They are computed from the answers of one SELECT; an aggregate that is written in two ways is one answer."""
    marks, row = computed(
        "SELECT c, COUNT(*) - SUM(m) AS d, LOW(COUNT(*) - SUM(m)), HIGH(COUNT(*) - SUM(m)), "
        "ROUND(COUNT(*) / 3, 1) AS t, LOW(ROUND(COUNT(*) / 3, 1)) AS l FROM t GROUP BY c ORDER BY c"
    )
    assert row == ["x", 90, pytest.approx(90 - math.hypot(10, 5)), pytest.approx(90 + math.hypot(10, 5)), 33.3, 30.0]
    assert marks == (None, (2, 3), None, None, "none", None)
    _, row = computed("SELECT c, HIGH(SUM(m) + SUM(t.m)), SUM(m) FROM t GROUP BY c ORDER BY c")
    assert row[1] == 220, "twice the same answer has twice its error, not the root of two times"


def test_ends_of_columns_of_subqueries():
    """Differences between filters: through WITH, joins and subqueries, also of ratios."""
    marks, row = computed(
        "WITH a AS (SELECT c, COUNT(*) AS n FROM t WHERE d < 3 GROUP BY c), "
        "b AS (SELECT c, COUNT(*) AS n FROM t GROUP BY c) SELECT c, a.n - b.n AS d, LOW(a.n - b.n) AS low, "
        "HIGH(a.n - b.n) AS high, a.n / b.n AS r FROM a JOIN b USING (c) ORDER BY c"
    )
    assert row[1:4] == [90, pytest.approx(90 - math.hypot(10, 5)), pytest.approx(90 + math.hypot(10, 5))]
    assert marks == (None, (2, 3), None, None, "none")
    marks, row = computed(
        "SELECT share * 100, LOW(share * 100), HIGH(share * 100) FROM (SELECT c, n / 4 AS share FROM "
        "(SELECT c, COUNT(*) AS n FROM t GROUP BY c)) ORDER BY c"
    )
    assert row == [2500, 2250, 2750]
    assert marks == ((1, 2), None, None)


@pytest.mark.parametrize(
    ("sql", "marks"),
    [
        ("SELECT c, COUNT(*) FROM t GROUP BY c", (None, "none")),
        ("SELECT c, upper(c), 3, COUNT(*) AS n, n / 2 AS h FROM t GROUP BY c", (None, None, None, "none", "none")),
        ("SELECT n, l, h FROM (SELECT COUNT(*) n, LOW(COUNT(*)) l, HIGH(COUNT(*)) h FROM t)", ((1, 2), None, None)),
        ("SELECT * FROM (SELECT c, COUNT(*) AS n FROM t GROUP BY c)", (None, "none")),
        ("SELECT n * 100 / SUM(n) OVER () FROM (SELECT c, COUNT(*) AS n FROM t GROUP BY c)", ("none",)),
        ("SELECT c, rank() OVER (ORDER BY COUNT(*)) FROM t GROUP BY c", (None, "none")),
        ("SELECT max(n), count(*) FROM (SELECT c, COUNT(*) AS n FROM t GROUP BY c)", ("none", "none")),
        ("SELECT c, COUNT(*), (SELECT COUNT(*) FROM t) FROM t GROUP BY c", (None, "none", "none")),
        ("SELECT c, n FROM (SELECT c, COUNT(*) AS n FROM t GROUP BY c) UNION SELECT 'all', 7", (None, "none")),
        ("SELECT a.n, b.l, b.h FROM (SELECT COUNT(*) n FROM t) a, (SELECT LOW(COUNT(*)) l, HIGH(COUNT(*)) h FROM t) b",
         ("none", None, None)),
        ("SELECT x FROM (SELECT COUNT(*) AS n FROM t) AS a(x)", ("none",)),
        ("SELECT 1", (None,)),
    ],
)  # fmt: skip
def test_columns_without_an_interval_are_marked(sql, marks):
    """Labels and constants have no noise; what is not known to have an interval in the result is marked."""
    assert split_statement(sql).marks == marks


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT LOW(COUNT(*) * SUM(m)) FROM t",
        "SELECT LOW(3) FROM t",
        "SELECT LOW(c), COUNT(*) FROM t GROUP BY c",
        "SELECT LOW(COUNT(*) - MEDIAN(m)) FROM t",
        "WITH a AS (SELECT COUNT(*) AS n FROM t) SELECT LOW(x.n + y.n) FROM a x, a y",
        "SELECT LOW(a.n + b.n) FROM (SELECT COUNT(*) AS n FROM t) a, (SELECT COUNT(*) AS n FROM t) b",
        "SELECT LOW(n) FROM (SELECT DISTINCT COUNT(*) AS n FROM t)",
        "SELECT LOW(n) FROM (SELECT COUNT(*) AS n FROM t UNION SELECT 3)",
        "SELECT LOW(n) FROM (SELECT max(n) AS n FROM (SELECT c, COUNT(*) AS n FROM t GROUP BY c))",
        "SELECT * EXCLUDE (m), LOW(n) FROM (SELECT COUNT(*) AS n, SUM(m) AS m FROM t)",
        "WITH a AS (SELECT COUNT(*) AS n FROM t) SELECT LOW(n) AS n FROM a UNION ALL SELECT COLUMNS(*) FROM a",
    ],
)
def test_ends_of_other_expressions_are_refused(sql):
    """Products, columns without noise, two columns of one answer, columns that are counted or made distinct again."""
    with pytest.raises(SQLError, match="LOW"):
        split_statement(sql)


CELLS = "(SELECT c, d, COUNT(*) AS n, SUM(m) AS m FROM t GROUP BY c, d) AS x"


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT c, LOW(SUM(n)), HIGH(SUM(x.n)) FROM {CELLS} WHERE d > 3 GROUP BY c HAVING SUM(n) > 5 LIMIT 3",
        f"SELECT LOW(SUM(n) FILTER (WHERE c = 'x')) FROM {CELLS}",
        f"SELECT LOW(SUM(n) / SUM(m)), HIGH(ROUND(100 * SUM(n))) FROM {CELLS}",
        f"SELECT LOW(s - 3) FROM (SELECT SUM(n) AS s FROM {CELLS})",
        f"SELECT LOW(SUM(k)) FROM (SELECT c, n AS k FROM {CELLS} WHERE d > 3)",
        "SELECT LOW(SUM(n)) FROM (SELECT c, COUNT(*) AS n FROM t GROUP BY ROLLUP(c)) WHERE c IS NOT NULL",
        f"SELECT c, d, LOW(SUM(n)) FROM {CELLS} GROUP BY ROLLUP(c, 2)",
        f"SELECT upper(c) AS g, LOW(SUM(n)) FROM {CELLS} GROUP BY g",
    ],
)
def test_sums_over_rows_of_answers_have_ends(sql):
    """Grouped and filtered by labels, through subqueries and UNION ALL, in expressions of other answers."""
    assert "sqrt" in split_statement(sql).outer


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT LOW(SUM(n)) FROM {CELLS} WHERE n > 5",
        f"SELECT LOW(SUM(n)) FROM {CELLS} WHERE c IN (SELECT c FROM {CELLS})",
        f"SELECT LOW(SUM(n) FILTER (WHERE m > 5)) FROM {CELLS}",
        f"SELECT m, LOW(SUM(n)) FROM {CELLS} GROUP BY m",
        f"SELECT m AS k, LOW(SUM(n)) FROM {CELLS} GROUP BY 1",
        f"SELECT 'x' AS n, LOW(SUM(n)) FROM {CELLS} GROUP BY n",
        f"SELECT c, LOW(SUM(n)) FROM {CELLS} GROUP BY ALL",
        f"SELECT LOW(SUM(n) - SUM(n) FILTER (WHERE c = 'x')) FROM {CELLS}",
        f"SELECT LOW(SUM(n / 2)) FROM {CELLS}",
        f"SELECT LOW(SUM(DISTINCT n)) FROM {CELLS}",
        f"SELECT LOW(SUM(n) OVER ()) FROM {CELLS}",
        f"SELECT LOW(SUM(x.n)) FROM {CELLS} JOIN (SELECT 1 AS one) AS y ON TRUE",
        f"SELECT LOW(SUM(n)) FROM (SELECT n FROM {CELLS} ORDER BY n LIMIT 5)",
        f"SELECT LOW(SUM(n)) FROM (SELECT n FROM {CELLS} WHERE m > 3)",
        f"SELECT LOW(SUM(n)) FROM (SELECT n FROM {CELLS} QUALIFY ROW_NUMBER() OVER (ORDER BY n) < 3)",
        f"SELECT LOW(SUM(n)) FROM (SELECT n FROM {CELLS} UNION ALL SELECT n FROM {CELLS})",
        f"SELECT LOW(SUM(n)) FROM (SELECT x.n FROM {CELLS} CROSS JOIN (SELECT 1 AS one) AS y)",
        "SELECT LOW(SUM(n)) FROM (SELECT c, COUNT(*) AS n FROM t GROUP BY c HAVING COUNT(*) > 5)",
        "SELECT LOW(SUM(n)) FROM (SELECT c, COUNT(*) AS n FROM t GROUP BY c ORDER BY n DESC LIMIT 5)",
        "SELECT LOW(SUM(n)) FROM (SELECT c, AVG(m) AS n FROM t GROUP BY c)",
        "SELECT LOW(SUM(n)) FROM (SELECT c, ROUND(COUNT(*)) AS n FROM t GROUP BY c)",
    ],
)
def test_sums_over_rows_that_noise_selects_or_repeats_have_no_ends(sql):
    """Rows with the largest noise would make the sum too large; a row that is there twice has twice its error."""
    with pytest.raises(SQLError, match="LOW takes"):
        split_statement(sql)


@pytest.mark.parametrize("bias", [0.0, 3.0])
def test_errors_in_one_direction_add_up_over_the_sums_of_an_expression(bias):
    """Without them, independent errors add up in squares; the sums of a row are sums of two rows here."""
    sql = f"SELECT SUM(n) - 2 * SUM(m) AS d, LOW(SUM(n) - 2 * SUM(m)), HIGH(SUM(n) - 2 * SUM(m)) FROM {CELLS}"
    statement = split_statement(sql)
    of_row = {"c": ["x", "y"], "d": [1, 1], VALUE: [50, 50], LOW: [40, 40], HIGH: [60, 60], SHARED: [0.36, 0.36]}
    answer = pa.table(of_row | {BIAS: [bias] * 2, NOISE: [10 - bias] * 2})
    table = compute_outer(statement.outer, {leaf.name: answer for leaf in statement.leaves}).table
    (row,) = table.to_pylist()
    one = 2 * bias + (10 - bias) * math.sqrt(2 * 0.64 + (1.081 * 2 * 0.6) ** 2)
    half = math.hypot(one, 2 * one) * (math.sqrt(2) if bias else 1)
    assert list(row.values()) == [-100, pytest.approx(-100 - half), pytest.approx(-100 + half)]


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_sums_with_shared_laplace_noise_are_covered(share):
    """A sum of 30 rows is mostly the noise that they share; its tail is longer than that of the noise of one."""
    random = np.random.default_rng(11)
    apart, common = (random.laplace(0, math.sqrt(part / 2), (SAMPLES, n)) for part, n in ((1 - share, 30), (share, 1)))
    half = np.quantile(np.abs(random.laplace(0, math.sqrt((1 - share) / 2), 10**6)
                              + random.laplace(0, math.sqrt(share / 2), 10**6)), 0.95)  # fmt: skip
    rows = pa.table({"run": np.repeat(np.arange(SAMPLES), 30), VALUE: (apart + common).ravel()})
    cells = (f'"{VALUE}"', "0", "0", "0", f"{half}", f"{share}")
    _, low, high, _ = sum_sql(cells, "")
    with duckdb.connect() as database:
        database.register("rows", rows)
        sql = f"SELECT avg((low <= 0 AND 0 <= high)::DOUBLE) FROM (SELECT {low} AS low, {high} AS high FROM rows GROUP BY run)"  # noqa: E501
        ((covered,),) = database.execute(sql).fetchall()
    assert 0.95 <= covered < 0.96
