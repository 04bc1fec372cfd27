"""Statements computed from released answers equal DuckDB's results from the rows if there is no noise."""

from __future__ import annotations

import contextlib
import random
import re

import duckdb
import pyarrow as pa
import pytest

from discreet.errors import InputError, SQLError
from discreet.query.answers import NUMBERS
from discreet.query.sql import parse_select
from discreet.query.statement import split_statement
from discreet.release import postprocess
from discreet.release.postprocess import check_outer, compute_outer

ROWS = """
    CREATE TABLE reads AS
    SELECT i % 97 AS reader, 'a' || (i * i) % 7 AS article, ['IN', 'US', NULL][1 + i % 3] AS country, i % 5 AS minutes,
           DATE '2026-01-01' + (i % 40)::INTEGER AS day
    FROM range(1000) t(i)
"""
STATEMENTS = """
SELECT article a, COUNT(*) n FROM reads GROUP BY a HAVING n > 140 ORDER BY a DESC;
SELECT upper(article), COUNT(DISTINCT reader) / 2, country IS NULL FROM reads r GROUP BY r.article, country
    ORDER BY 1, 2, 3;
SELECT r.country, SUM(minutes) + 1 AS s FROM reads AS r WHERE article <> 'a1' GROUP BY r.country ORDER BY s;
SELECT country, AVG(minutes) FROM reads GROUP BY 1 ORDER BY country NULLS FIRST OFFSET 1;
WITH q AS (SELECT article, COUNT(*) n FROM reads GROUP BY 1), t AS (SELECT SUM(n) s FROM q) SELECT article, n,
    n * 100 / s, RANK() OVER (ORDER BY n DESC) FROM q, t ORDER BY 1;
SELECT article, COUNT(*) AS n, SUM(COUNT(*)) OVER (ORDER BY article) FROM reads GROUP BY article ORDER BY
    article;
SELECT article, COUNT(*) n FROM reads GROUP BY article QUALIFY ROW_NUMBER() OVER (ORDER BY COUNT(*), article)
    < 3 ORDER BY article;
SELECT a.article, a.n - b.n FROM (SELECT article, COUNT(*) n FROM reads GROUP BY article) a LEFT JOIN (SELECT
    article, COUNT(*) n FROM reads WHERE country = 'IN' GROUP BY article) b USING (article) ORDER BY 1;
SELECT COUNT(*), MAX(n) FROM (SELECT article, country, COUNT(*) n FROM reads GROUP BY 1, 2) WHERE n > (SELECT
    AVG(n) FROM (SELECT article, country, COUNT(*) n FROM reads GROUP BY 1, 2));
SELECT 'all' AS k, COUNT(DISTINCT reader) v FROM reads UNION ALL SELECT 'IN', COUNT(DISTINCT reader) FROM
    reads WHERE country = 'IN' ORDER BY k;
SELECT CASE WHEN COUNT(*) > 10 THEN 'many' ELSE 'few' END, article FROM reads GROUP BY article ORDER BY 1, 2;
SELECT DISTINCT COUNT(*) > 142 FROM reads GROUP BY article ORDER BY 1;
WITH reads AS (SELECT article, COUNT(*) n FROM reads GROUP BY article) SELECT MIN(n) FROM reads;
SELECT date_trunc('month', day) m, MAX(n) FROM (SELECT day, COUNT(*) n FROM reads GROUP BY day) GROUP BY m
    ORDER BY m;
SELECT (SELECT COUNT(*) FROM reads) - (SELECT COUNT(*) FROM reads WHERE minutes > 2) AS rest;
SELECT article FROM reads WHERE minutes >= 1 GROUP BY article ORDER BY SUM(minutes) DESC, article LIMIT 2;
SELECT COALESCE(country, '?') c, COUNT(*) FROM reads GROUP BY country ORDER BY c;
SELECT country, COUNT(*) n, COUNT(DISTINCT reader) AS readers, SUM(minutes) / COUNT(*) FROM reads GROUP BY country
    HAVING SUM(minutes) > 1 ORDER BY readers DESC, n LIMIT 2;
SELECT COUNT(*) - COUNT(DISTINCT r.reader), AVG(minutes) + 2 * SUM(minutes), COUNT(*) FROM reads r WHERE minutes > 1;
SELECT article, country FROM reads GROUP BY 1, 2 QUALIFY RANK() OVER (PARTITION BY country ORDER BY COUNT(*),
    SUM(minutes), article) = 1 ORDER BY country;
SELECT 1 + 1, 'x' || 'y'
""".split(";\n")  # noqa: SIM905


@pytest.fixture(scope="module")
def rows():
    """Return a table that can be queried without noise."""
    with duckdb.connect() as connection:
        connection.execute(ROWS)
        yield connection


def answered(statement, rows):
    """Return what the outer statement computes from the exact answers of the queries."""
    tables = {}
    for leaf in statement.leaves:
        table = rows.sql(leaf.sql).to_arrow_table()
        value = table.column(table.num_columns - 1)
        names = table.column_names[:-1]
        if table.num_columns and leaf.select is not None:
            tables[leaf.name] = pa.table({**{name: table[name] for name in names}, **dict.fromkeys(NUMBERS, value)})
    return compute_outer(statement.outer, tables).table


@pytest.mark.parametrize("sql", STATEMENTS)
def test_without_noise_a_statement_has_the_result_of_duckdb(rows, sql):
    """Splitting a statement into queries does not change its meaning."""
    statement = split_statement(sql)
    for leaf in statement.leaves:
        if leaf.select is not None:
            assert parse_select(leaf.sql) == leaf.select
    found = [tuple(row.values()) for row in answered(statement, rows).to_pylist()]
    assert [tuple(map(float_of, row)) for row in found] == [
        tuple(map(float_of, row)) for row in rows.execute(sql).fetchall()
    ]


def float_of(value):
    """Return a number of any type as a float."""
    return float(value) if isinstance(value, int) or hasattr(value, "as_tuple") else value


def test_random_statements_have_the_result_of_duckdb(rows):
    """60 combinations of selected columns, aggregates, filters, groups and outer statements."""
    chosen = random.Random(1)  # noqa: S311 - a test
    for _ in range(60):
        columns = chosen.sample(["article", "country", "minutes", "day"], chosen.randint(0, 2))
        aggregate, other = chosen.sample(["COUNT(*)", "COUNT(DISTINCT reader)", "SUM(minutes)", "AVG(minutes)"], 2)
        where = chosen.choice(["", "WHERE article IN ('a1', 'a2')", "WHERE minutes > 1 AND NOT country = 'IN'"])
        group = f"GROUP BY {', '.join(columns)}" if columns else ""
        having = chosen.choice(["", f"HAVING {aggregate} > 3", f"HAVING {aggregate} % 2 = 0", f"HAVING {other} > 2"])
        selected = [
            *columns,
            chosen.choice([f"{aggregate} AS v", f"{aggregate} * 2 AS v", f"{aggregate} - {other} AS v"]),
        ]
        order = ", ".join(map(str, range(1, len(selected) + 1)))
        inner = f"SELECT {', '.join(selected)} FROM reads {where} {group} {having}"
        sql = chosen.choice(
            [
                f"{inner} ORDER BY {order}",
                f"{inner} ORDER BY {order} LIMIT 3 OFFSET 1",
                f"SELECT COUNT(*), MAX(v) FROM ({inner})",
                f"SELECT * FROM ({inner}) UNION SELECT * FROM ({inner}) ORDER BY {order}",
                f"WITH q AS ({inner}) SELECT q.*, SUM(v) OVER () AS total FROM q ORDER BY {order}",
            ]
        )
        statement = split_statement(sql)
        assert len(statement.leaves) == 1 + (other in inner)
        found = [tuple(map(float_of, row.values())) for row in answered(statement, rows).to_pylist()]
        assert found == [tuple(map(float_of, row)) for row in rows.execute(sql).fetchall()], sql


def _functions():
    with duckdb.connect() as connection:
        return connection.execute("SELECT DISTINCT function_name FROM duckdb_functions()").fetchall()


def test_an_outer_statement_can_call_only_listed_functions():
    """Every other function of DuckDB is refused, as a scalar and in FROM: files, settings, environment, own tables."""
    listed = 0
    for (name,) in _functions():
        quoted = '"' + name.replace('"', '""') + '"'
        if re.search("read|scan|glob|pragma|duckdb|range|query", name):
            with pytest.raises(SQLError):
                split_statement(f"SELECT * FROM (SELECT 1), {quoted}('x')")
        with contextlib.suppress(SQLError):
            split_statement(f"SELECT {quoted}('x', 1)")
            listed += 1
    assert 60 < listed < 160


HOSTILE = [
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM pragma_database_list()",
    "SELECT * FROM tables",
    "SELECT getenv('HOME')",
    "SELECT current_setting('memory_limit')",
    "SELECT 1; SELECT 2",
    "COPY (SELECT 1) TO '/tmp/x'",
    "ATTACH '/tmp/x.db'",
    "PRAGMA version",
    "SET threads = 2",
    "INSTALL httpfs",
    "CREATE TABLE t (a INT)",
    "WITH RECURSIVE r AS (SELECT 1 a UNION ALL SELECT a + 1 FROM r) SELECT * FROM r",
    "SELECT list_transform([1], x -> x)",
    "SELECT * FROM range(10)",
    "SELECT $1",
    "SELECT CAST('x' AS JSON)",
    "SELECT 'x'::BIT",
    "SHOW TABLES",
    "DESCRIBE SELECT 1",
    "SELECT * FROM answers.q1",
    "SELECT * FROM information_schema.schemata",
    "SELECT * FROM system.information_schema.tables",
    "SELECT " + "(" * 60 + "1" + ")" * 60,
    " UNION ALL ".join(["SELECT 1"] * 200),
]


@pytest.mark.parametrize("sql", HOSTILE)
def test_an_outer_statement_can_only_read_the_answers(sql):
    """Refused before planning; the name of another table is an unknown dataset."""
    try:
        leaves = split_statement(sql).leaves
    except SQLError:
        return
    assert [leaf.dataset for leaf in leaves] == ["answers.q1"]


@pytest.mark.parametrize("outer", [text for text in HOSTILE if any(word in text for word in ("/", "SET", "getenv"))])
def test_the_database_of_the_answers_reads_no_files_and_cannot_be_configured(outer):
    """The database is locked even for statements that the allow-list would permit."""
    with pytest.raises(InputError):
        compute_outer(outer, {})


def test_rows_and_time_are_limited(monkeypatch):
    """A cross join of answers exceeds the limit of rows or of time."""
    many = pa.table({"a": list(range(2_000))})
    with pytest.raises(InputError, match="100,000 rows"):
        compute_outer("SELECT x.a FROM answers.q1 x, answers.q1 y", {"q1": many})
    monkeypatch.setattr(postprocess, "MAX_SECONDS", 0.05)
    with pytest.raises(InputError, match="time"):
        compute_outer("SELECT SUM(x.a * y.a % (z.a + 1)) FROM answers.q1 x, answers.q1 y, answers.q1 z", {"q1": many})


def test_type_errors_are_found_before_the_queries_run():
    """The types of the answers suffice to check an outer statement."""
    check_outer("SELECT a FROM answers.q1", {"q1": {"a": "VARCHAR"}})
    for outer in ("SELECT b FROM answers.q1", "SELECT a + 1 FROM answers.q1"):
        with pytest.raises(SQLError):
            check_outer(outer, {"q1": {"a": "VARCHAR"}})


@pytest.mark.parametrize(
    ("value", "type_", "shown"),
    [
        (str(2**127), "UHUGEINT", str(2**127)),
        (str(2**128 - 1), "UHUGEINT", str(2**128 - 1)),
        (f"CAST('{2**127}0' AS BIGNUM)", "BIGNUM", f"{2**127}0"),
        ("[CAST(7 AS BIGNUM)]", "BIGNUM[]", "[7]"),
        (r"'\x80a'::BLOB", "BLOB", r"\x80a"),
        ("'0101'::BIT", "BIT", "0101"),
    ],
)
def test_values_that_arrow_does_not_have_are_exact_text(value, type_, shown):
    """In every form of a result; other columns, their order and their names stay."""
    result = compute_outer(f"SELECT 1 AS x, {value} AS x FROM range(2) t(i) ORDER BY i DESC", {})
    assert result.types == ("INTEGER", type_)
    assert result.table.to_pylist() == [{"x": 1, "x_1": shown}] * 2


@pytest.mark.parametrize("type_", ["BIGINT", "HUGEINT", "UHUGEINT", "BIGNUM", "DECIMAL(38,2)", "DOUBLE"])
def test_noisy_numbers_of_every_type_are_marked(type_):
    """Text is not a number, even if it was computed from one."""
    result = compute_outer(f"SELECT CAST(1 AS {type_}) AS n, 'a' AS t", {}, ["none", "none"])
    assert result.intervals[0] == "none"
    assert result.intervals[1] is None
