"""Whole statements, split into queries and post-processing: joins, limits, and refusals before they are bound."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from discreet.catalog.model import Catalog, Column, Dataset
from discreet.errors import SQLError
from discreet.query.answers import HIGH, LOW, NUMBERS, VALUE
from discreet.query.statement import split_statement
from discreet.release.postprocess import compute_outer


def test_answers_of_one_select_are_joined_by_their_labels():
    """Items that noise leaves out of one answer stay; a missing label is a label; LOW and HIGH are of one aggregate."""
    statement = split_statement("SELECT c, COUNT(*), SUM(m), LOW(COUNT(*)), HIGH(SUM(m)) FROM t GROUP BY c ORDER BY c")
    assert [leaf.select.measure.kind for leaf in statement.leaves] == ["rows", "sum"]
    parts = {number: [0.0, 0.0] for number in NUMBERS[3:]}
    tables = {
        "q1": pa.table({"c": ["a", None], VALUE: [5, 7], LOW: [4, 6], HIGH: [6, 8]} | parts),
        "q2": pa.table({"c": [None, "b"], VALUE: [1, 2], LOW: [-1, 0], HIGH: [3, 4]} | parts),
    }
    found = [tuple(row.values()) for row in compute_outer(statement.outer, tables).table.to_pylist()]
    assert found == [("a", 5, None, 4, None), ("b", None, 2, None, 4), (None, 7, 1, 6, 3)]


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("SUM(m) / COUNT(*)", "(sum(m) / count_star())"),
        ("ROUND(100 * COUNT(DISTINCT u), 1)", "round((100 * count(DISTINCT u)), 1)"),
        ("COUNT(*) > 9", "(count_star() > 9)"),
        ("CAST(HIGH(COUNT(*)) AS DOUBLE)", "CAST(high(count_star()) AS DOUBLE)"),
    ],
)
def test_a_column_without_a_name_has_the_one_of_duckdb(expression, name):
    """It is made of what the user wrote, and not of the names of columns of answers."""
    statement = split_statement(f"SELECT c, {expression} FROM t GROUP BY c")
    columns = {"c": ["a"], VALUE: [5], LOW: [4], HIGH: [6]} | {number: [0.0] for number in NUMBERS[3:]}
    tables = {leaf.name: pa.table(columns) for leaf in statement.leaves}
    assert compute_outer(statement.outer, tables).table.column_names == ["c", name]


def selected(sql: str) -> list[str]:
    """Return the columns of a statement with intervals; its queries and first columns are those without them."""
    both = [split_statement(sql, intervals=intervals) for intervals in (True, False)]
    assert both[0].leaves == both[1].leaves
    columns, first = (each.outer.partition(" FROM ")[0].removeprefix("SELECT ").split(", ") for each in both)
    assert columns[: len(first)] == first
    return columns


def test_intervals_follow_the_other_columns_and_are_named_after_their_aggregates():
    """ORDER BY 2 means the same column as without them, and no query is added."""
    assert selected("SELECT c, COUNT(*) AS n FROM t GROUP BY c ORDER BY 2 DESC LIMIT 3") == [
        "c",
        *(f'"{VALUE}" AS n', f'"{LOW}" AS n_low', f'"{HIGH}" AS n_high'),
    ]
    assert [column.split()[-1] for column in selected("SELECT COUNT(DISTINCT u), AVG(m) FROM t")] == [
        *("count", "average", "count_low", "count_high", "average_low", "average_high"),
    ]


def test_intervals_that_are_selected_already_are_not_added_again():
    """The name that the statement gives them stays."""
    columns = selected("SELECT COUNT(*) AS n, LOW(COUNT(*)) AS least FROM t")
    assert [column.split()[-1] for column in columns] == ["n", "least", "n_high"]


COUNTS = "(SELECT c, COUNT(*) AS n, COUNT(DISTINCT u) AS r FROM t GROUP BY c)"


@pytest.mark.parametrize(
    ("before", "expression", "source"),
    [
        ("", "100 - COUNT(*)", "t"),
        ("", "ROUND(SUM(m) / COUNT(*), 1)", "t GROUP BY c HAVING COUNT(*) > 9"),
        ("", "n - r", COUNTS),
        (f"WITH a AS {COUNTS}, b AS {COUNTS.replace('FROM t', 'FROM s')} ", "a.n / b.n", "a JOIN b USING (c)"),
    ],
)
def test_intervals_of_computed_columns_are_those_of_low_and_high(before, expression, source):
    """Differences, ratios and multiples of answers, also of columns of subqueries and WITH."""
    ends = "".join(f", {end}({expression}) AS Share_{end.lower()}" for end in ("LOW", "HIGH"))
    added = split_statement(f"{before}SELECT {expression} AS Share FROM {source}", intervals=True)
    assert added == split_statement(f"{before}SELECT {expression} AS Share{ends} FROM {source}")
    assert added.marks == ((1, 2), None, None)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DISTINCT COUNT(*) AS n FROM t GROUP BY c",
        "WITH a AS (SELECT c, COUNT(*) AS n FROM t GROUP BY c) SELECT COUNT(*) FROM a",
        "SELECT COUNT(*) AS n FROM t UNION ALL SELECT COUNT(*) FROM t",
        "SELECT COUNT(*) FROM information_schema.tables",
        f"SELECT n * r AS p, sqrt(n) AS s, n + 1 FROM {COUNTS}",
        f"SELECT n FROM {COUNTS} GROUP BY n",
        f"SELECT * EXCLUDE (r) FROM {COUNTS}",
        f"SELECT COLUMNS(*) FROM {COUNTS}",
        f"SELECT n FROM (SELECT * FROM {COUNTS} AS a JOIN {COUNTS} AS b USING (c))",
        f"SELECT a.n AS x, b.n AS y FROM {COUNTS} AS a NATURAL JOIN {COUNTS.replace('FROM t', 'FROM s')} AS b",
    ],
)
def test_columns_that_low_and_high_do_not_take_have_no_interval(sql):
    """More columns could also give DISTINCT more rows, and * and natural joins other columns."""
    assert split_statement(sql, intervals=True) == split_statement(sql)


@pytest.mark.parametrize(
    ("star", "named"),
    [
        (f"SELECT * FROM {COUNTS}", f"SELECT c, n, r FROM {COUNTS}"),
        (f"SELECT n / r AS x FROM (SELECT * FROM {COUNTS})", f"SELECT n / r AS x FROM (SELECT c, n, r FROM {COUNTS})"),
        (
            f"WITH A AS {COUNTS} SELECT * FROM A ORDER BY 2 DESC",
            f"WITH A AS {COUNTS} SELECT c, n, r FROM A ORDER BY 2 DESC",
        ),
        (
            'SELECT *, LOW("N x") FROM (SELECT COUNT(*) AS "N x" FROM t)',
            'SELECT "N x", LOW("N x") FROM (SELECT COUNT(*) AS "N x" FROM t)',
        ),
    ],
)
@pytest.mark.parametrize("intervals", [False, True])
def test_a_star_over_known_columns_stands_for_their_names(star, named, intervals):
    """So it does not select the columns that carry ends of intervals, and has intervals itself."""
    assert split_statement(star, intervals=intervals) == split_statement(named, intervals=intervals)


def test_ends_of_intervals_take_no_name_to_which_the_statement_refers():
    """ORDER BY n_low means the same column as before."""
    sql = "SELECT n FROM (SELECT COUNT(*) AS n, SUM(m) AS n_low FROM t GROUP BY c) ORDER BY n_low"
    assert [column.split()[-1] for column in selected(sql)] == ["n", "n_high"]


def test_an_error_has_its_place_in_the_statement_that_was_written():
    """The aggregate that its intervals repeat is reported where it stands."""
    messages = []
    for intervals in (False, True):
        with pytest.raises(SQLError) as refused:
            split_statement("SELECT c, COUNT(DISTINCT u, v) FROM t GROUP BY c", intervals=intervals)
        messages.append((str(refused.value), refused.value.position))
    assert messages[0] == messages[1]


def test_limit_is_k_of_a_single_aggregate_only():
    """The largest items by one aggregate are not those by another."""
    top = "SELECT c, COUNT(*) AS n{} FROM t GROUP BY c ORDER BY n DESC LIMIT 3"
    assert [leaf.select.k for leaf in split_statement(top.format("")).leaves] == [3]
    assert [leaf.select.k for leaf in split_statement(top.format(", SUM(m)")).leaves] == [None, None]
    sums = "SELECT c, SUM(m){} FROM t GROUP BY c ORDER BY COUNT(DISTINCT u) DESC LIMIT 3"
    assert [leaf.select.k for leaf in split_statement(sums.format("")).leaves] == [3]
    assert [leaf.select.k for leaf in split_statement(sums.format(", AVG(m)")).leaves] == [None] * 3


DOUBLING = "WITH c0 AS (SELECT 1 x), {} SELECT * FROM c{}"


def doubled(times, columns):
    """Return a statement that has twice as many columns or SELECTs with each name of WITH."""
    named = [f"c{n} AS (SELECT {columns} FROM c{n - 1} a, c{n - 1} b)" for n in range(1, times)]
    return DOUBLING.format(", ".join(named), times - 1)


@pytest.mark.parametrize("columns", ["*", "a.*, b.*", "COLUMNS(*)"])
def test_columns_are_limited_before_a_statement_is_bound(columns):
    """Those that * stands for count, through names of WITH, subqueries, joins and set operations."""
    split_statement(doubled(6, columns))
    with pytest.raises(SQLError, match="200 columns at most"):
        split_statement(doubled(300, columns))


def test_selects_are_limited_before_a_statement_is_bound():
    """A name of WITH counts wherever it is used."""
    split_statement(doubled(9, "a.x"))
    with pytest.raises(SQLError, match="at most 1,000 SELECTs"):
        split_statement(doubled(60, "a.x"))
    with pytest.raises(SQLError, match="200 columns at most"):
        split_statement("SELECT " + ", ".join(["1"] * 201))
    with pytest.raises(SQLError, match="200 columns at most"):
        split_statement("SELECT a, COUNT(*) FROM t GROUP BY " + ", ".join(f"a{n}" for n in range(201)))
    nested = "SELECT 1 AS x"
    for _ in range(25):
        nested = f"SELECT * FROM ({nested}) UNION BY NAME SELECT 2 AS x"
    split_statement(nested)


@pytest.mark.parametrize(
    "sets",
    [
        f"CUBE ({', '.join(f'a{n}' for n in range(13))})",
        "rollup(a, b, c)" + ", Cube (a, b)" * 6,
        f"GROUPING  SETS ({', '.join(['()'] * 4097)})",
    ],
)
def test_many_sets_of_groups_do_not_reach_the_parser(sets, monkeypatch):
    """It writes each of them out: fifteen columns are 32,767 sets, in every SELECT of a statement."""
    monkeypatch.setattr("discreet.query.parse_tree._connection", None)
    with pytest.raises(SQLError, match="at most 20 sets"):
        split_statement(f"SELECT 1 FROM (SELECT 1) GROUP BY {sets}")


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("SELECT COUNT(*) FROM t GROUP BY CUBE(a, b, c, d, e)", "at most 20 sets"),
        (
            "SELECT SUM(n) FROM (SELECT a, COUNT(*) AS n FROM t GROUP BY a) AS x GROUP BY CUBE(a, 1, 2, 3, 4)",
            "at most 20",
        ),
        ("SELECT COUNT(*), SUM(a), AVG(a), COUNT(DISTINCT u), SUM(b), SUM(c) FROM t GROUP BY CUBE(a, b)", "20 queries"),
        ("SELECT a, COUNT(*), RANK() OVER (ORDER BY a) FROM t GROUP BY ROLLUP(a)", "need a subquery"),
        ("SELECT a, COUNT(*) FROM t GROUP BY ROLLUP(a) ORDER BY COUNT(DISTINCT u)", "takes what is selected"),
        ("SELECT a, COUNT(*), GROUPING(c) FROM t GROUP BY ROLLUP(a)", "GROUPING takes columns"),
        ("SELECT a, COUNT(*) FROM t GROUP BY ROLLUP(a, upper(b))", "may be grouped by"),
        ("SELECT a FROM t GROUP BY ROLLUP(a)", "rows are never shown"),
        ("SELECT a, b, COUNT(*) FROM t GROUP BY ROLLUP(a)", "not in GROUP BY"),
    ],
)
def test_sets_of_groups_that_are_no_queries_are_refused(statement, why):
    """Before anything is asked."""
    with pytest.raises(SQLError, match=why):
        split_statement(statement)


_SHAPES = """
SELECT a, b, COUNT(DISTINCT u) AS n, GROUPING(a, b) AS g FROM t GROUP BY ROLLUP(a, b)
SELECT a, upper(a) AS up, year(d) AS y, COUNT(*) FROM t GROUP BY CUBE(a, d) ORDER BY COUNT(*), 1, 3 LIMIT 9 OFFSET 1
SELECT COALESCE(a, '') AS c, b, 2 * COUNT(*), SUM(b) FROM t GROUP BY GROUPING SETS ((a, b), b, ()) HAVING SUM(b) > 9
SELECT b, COUNT(*), GROUPING(b) FROM t WHERE a = 'x' GROUP BY a, ROLLUP(1), () ORDER BY GROUPING(b), b NULLS LAST
SELECT b, a, COUNT(*) FILTER (WHERE b = 1), COUNT(DISTINCT u) FROM t AS s GROUP BY ROLLUP((s.a, s.b), d) ORDER BY s.b
SELECT DISTINCT GROUPING(b, a) AS g, a IS NULL AS no_a FROM t GROUP BY CUBE(a, t.b) HAVING COUNT(*) > 0
WITH w AS (SELECT a, b, COUNT(*) AS n FROM t GROUP BY CUBE(a, b)) SELECT a, SUM(n), MAX(b) FROM w GROUP BY ROLLUP(a)
SELECT a, b, (SELECT COUNT(*) FROM t), COUNT(*) FROM t GROUP BY GROUPING SETS ((a), (b), (a))
"""


@pytest.mark.parametrize("statement", [line for line in _SHAPES.split("\n") if line])
def test_sets_of_groups_are_those_of_duckdb(statement):
    """The same rows, columns, types and missing labels, over the true answers to its queries."""
    catalog = Catalog.model_construct(
        datasets={
            "t": Dataset.model_construct(
                user="u",
                rows_per_group=9,
                columns={
                    name: Column.model_construct(type=type_, of=None, each=None, group=True, domain=None)
                    for name, type_ in (("a", "text"), ("b", "integer"), ("d", "date"))
                },
            )
        }
    )
    database = duckdb.connect()
    database.execute("CREATE SCHEMA answers")
    database.execute(
        "CREATE TABLE t AS SELECT i % 7 AS u, CASE i % 3 WHEN 0 THEN 'x' WHEN 1 THEN 'y' END AS a, i % 4 AS b, "
        "DATE '2024-12-30' + CAST(i % 5 AS INTEGER) AS d FROM range(40) AS r(i)"
    )
    split = split_statement(statement, catalog)
    for leaf in split.leaves:
        answer = database.sql(leaf.sql)
        labels = "".join(f"{column}, " for column in answer.columns[:-1])
        aggregate = f'#{len(answer.columns)} AS "{VALUE}", '
        others = ", ".join(f'0 AS "{number}"' for number in NUMBERS[1:])
        answer.project(labels + aggregate + others).create(f"answers.{leaf.name}")
    found, expected = database.sql(split.outer), database.sql(statement)
    assert found.types == expected.types
    names = zip(found.columns, expected.columns, strict=True)
    assert all(name == wanted for name, wanted in names if "(" not in wanted)
    assert sorted(map(repr, found.fetchall())) == sorted(map(repr, expected.fetchall()))
