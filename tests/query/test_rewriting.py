"""Dates relative to today become constants before anything else is read, and counts of a CASE are filters."""

from __future__ import annotations

import datetime

import pytest

from discreet.errors import SQLError, WhereError
from discreet.query import parse_tree
from discreet.query.sql import is_select, parse_select, parse_where
from discreet.query.statement import split_statement

TODAY = "2026-03-31"


@pytest.mark.parametrize(
    ("date", "constant"),
    [
        ("current_date", "2026-03-31"),
        ("CURRENT_DATE", "2026-03-31"),
        ("today()", "2026-03-31"),
        ("current_date - INTERVAL '30' DAY", "2026-03-01"),
        ("current_date - interval 30 day", "2026-03-01"),
        ("current_date - interval '2 weeks'", "2026-03-17"),
        ("current_date - 30", "2026-03-01"),
        ("current_date - interval '1' month", "2026-02-28"),
        ("current_date - interval '25' month", "2024-02-29"),
        ("current_date - interval '1' quarter", "2025-12-31"),
        ("current_date - interval '1' year", "2025-03-31"),
        ("current_date - interval '1' month - interval '1' day", "2026-02-27"),
        ("date_trunc('week', current_date)", "2026-03-30"),
        ("date_trunc('month', current_date)", "2026-03-01"),
        ("date_trunc('quarter', current_date - 90)", "2025-10-01"),
        ("date_trunc('year', current_date)", "2026-01-01"),
        ("CAST(date_trunc('month', current_date) AS DATE)", "2026-03-01"),
        ("DATE '2024-03-31' - interval '1' month", "2024-02-29"),
        ("date_trunc('month', CAST('2024-03-31' AS DATE) - 31)", "2024-02-01"),
    ],
)
@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("day >= {}", "day >= {}"),
        ("{} > day", "day < {}"),
        ("day BETWEEN {} AND DATE '2027-01-01'", "day >= {} AND day <= DATE '2027-01-01'"),
        ("NOT (day IN (DATE '2020-01-01', {}) OR x = 1)", "NOT (day IN (DATE '2020-01-01', {}) OR x = 1)"),
    ],
)
def test_a_date_relative_to_today_is_its_constant(date, constant, text, plain):
    """The filter is the one that has the constant written out, wherever constants stand."""
    assert parse_where(text.format(date), TODAY) == parse_where(plain.format(f"DATE '{constant}'"))


@pytest.mark.parametrize("day", range(0, 800, 7))
def test_intervals_of_months_are_those_of_duckdb(day):
    """The reference is DuckDB, for every length of month."""
    import duckdb

    today = datetime.date(2023, 1, 1) + datetime.timedelta(day)
    for date in ("current_date - interval '{n}' month", "date_trunc('quarter', current_date - interval '{n}' year)"):
        text = date.format(n=day % 15)
        literal = text.replace("current_date", f"DATE '{today}'")
        expected = duckdb.sql(f"SELECT CAST({literal} AS DATE)").fetchall()[0][0]
        assert parse_where(f"d = {text}", today.isoformat()) == parse_where(f"d = DATE '{expected}'")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("day > now() - interval '1' day", "compare with current_date"),
        ("day > current_timestamp", "compare with current_date"),
        ("day > current_date - interval '3' hour", "today is current_date, current_date - INTERVAL"),
        ("day > current_date - interval '9999999' day", "today is current_date"),
        ("day > current_date - interval '999999' year", "today is current_date"),
        ("day > current_date - x", "today is current_date"),
        ("day > DATE '2024-13-01' - 30", "arithmetic is not allowed"),
        ("day > date_trunc('hour', current_date)", "functions are not allowed"),
        ("extract(dow FROM day) = 1", "a view of the data owner"),
        ("day + interval '30' day > current_date", "not allowed"),
        ("day - 30 > current_date", "arithmetic is not allowed"),
    ],
)
def test_other_dates_are_refused_with_the_form_that_is_taken(text, part):
    """The time of day would make every query a new one; a computed column is none of the table's."""
    with pytest.raises(WhereError) as error:
        parse_where(text, TODAY)
    assert part in str(error.value)


def test_many_dates_relative_to_today_are_parsed_with_the_statement_that_has_them(monkeypatch):
    """A statement of 20,000 characters has room for thousands of them, and parsing each alone took a second."""
    parse_where("day = today()", TODAY)
    serialized = []
    connection = parse_tree._connection()

    class Cursor:
        def cursor(self):
            serialized.append(1)
            return connection.cursor()

    monkeypatch.setattr(parse_tree, "_connection", Cursor)
    parse_where(f"day IN ({', '.join(f'current_date - {days}' for days in range(500))})", TODAY)
    assert len(serialized) == 1


def test_a_column_may_be_named_like_today():
    """Beside a constant, the name is that of a column."""
    assert parse_where('"current_date" > 5', TODAY) == parse_where('"current_date" > 5')
    assert parse_where('"current_date" > 5', TODAY).column == "current_date"


def test_without_a_clock_today_is_refused():
    """What has no date to go by refuses it; whether a text is one query does not depend on the date."""
    with pytest.raises(WhereError, match="today is current_date"):
        parse_where("day >= current_date - 30")
    assert is_select("SELECT COUNT(DISTINCT u) FROM t WHERE day >= current_date - 30")


COUNTED = "SELECT item, COUNT(DISTINCT user_id) AS n FROM t WHERE {} GROUP BY item ORDER BY n DESC LIMIT 5"


@pytest.mark.parametrize(
    "aggregate",
    [
        "COUNT(DISTINCT CASE WHEN c = 'IN' OR day >= current_date - 7 THEN user_id END)",
        "COUNT(DISTINCT CASE WHEN c = 'IN' OR day >= current_date - 7 THEN user_id ELSE NULL END)",
        "COUNT(DISTINCT user_id) FILTER (WHERE c = 'IN' OR day >= current_date - 7)",
    ],
)
def test_a_count_of_some_rows_is_the_query_with_that_filter(aggregate):
    """Beside a WHERE, by position, by name and written again in ORDER BY, alone and in a whole statement."""
    condition = "c = 'IN' OR day >= DATE '2026-03-24'"
    plain = parse_select(COUNTED.format(f"x = 1 AND ({condition})"))
    for order in ("n", "2", aggregate):
        text = f"SELECT item, {aggregate} AS n FROM t WHERE x = 1 GROUP BY item ORDER BY {order} DESC LIMIT 5"
        assert parse_select(text, TODAY) == plain
        (leaf,) = split_statement(text, today=TODAY).leaves
        assert leaf.select == plain
        assert parse_select(leaf.sql) == plain  # the text that is shown is the same query on another day
    assert parse_select(f"SELECT {aggregate} FROM t", TODAY) == parse_select(
        f"SELECT COUNT(DISTINCT user_id) FROM t WHERE {condition}"
    )


def test_several_filters_are_several_queries():
    """Each count has its own filter, and an interval of their difference takes both."""
    first, second = (f"COUNT(DISTINCT u) FILTER (WHERE c = '{c}')" for c in ("IN", "LK"))
    statement = split_statement(f"SELECT item, LOW({first} - {second}), {first} - {first} AS x FROM t GROUP BY item")
    assert [leaf.select.where for leaf in statement.leaves] == [parse_where("c = 'IN'"), parse_where("c = 'LK'")]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("SELECT a, COUNT(DISTINCT CASE WHEN c = 'IN' THEN u ELSE v END) FROM t GROUP BY a", "CASE is not allowed"),
        (
            "SELECT a, COUNT(DISTINCT u) FILTER (WHERE c = 'IN') FROM t GROUP BY a ORDER BY COUNT(DISTINCT u) DESC",
            "only the aggregate may be ordered by",
        ),
        ("SELECT a, COUNT(*) FILTER (WHERE COUNT(*) > 3) FROM t GROUP BY a", "functions are not allowed"),
    ],
)
def test_what_is_another_query_is_refused(text, part):
    """A CASE with another value counts other users; an order by all users is that of another query."""
    with pytest.raises((SQLError, WhereError)) as error:
        parse_select(text)
    assert part in str(error.value)


@pytest.mark.parametrize(
    ("group", "part"),
    [
        ("CASE WHEN c IN ('IN', 'LK') THEN 'south' ELSE 'other' END", "FILTER (WHERE column IN"),
        ("extract(dow FROM day)", "a view of the data owner"),
    ],
)
def test_grouping_by_an_expression_is_refused_with_the_form_that_is_taken(group, part):
    """Counts of distinct users of two labels do not add up."""
    with pytest.raises(SQLError) as error:
        split_statement(f"SELECT {group} AS g, COUNT(DISTINCT u) FROM t GROUP BY 1")
    assert part in str(error.value)
