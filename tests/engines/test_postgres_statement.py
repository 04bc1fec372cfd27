"""The exact statements that are sent to PostgreSQL."""

from __future__ import annotations

import datetime
from fractions import Fraction

import pyarrow as pa
import pytest

pytest.importorskip("psycopg")

from discreet.engines.postgres import PostgresEngine, PostgresStatement, arrow_type
from discreet.engines.sql import EngineColumn, NumberType
from discreet.errors import InputError
from discreet.head_request import And, Comparison, Constant, HeadRequest, IsNull, Kind, Membership, Not, Or, SumBounds

_CENTS = NumberType("numeric(9,2)", Fraction(-999999999, 100), Fraction(999999999, 100), 2)
_COLUMNS = {
    "who": EngineColumn(Kind.TEXT, "uuid"),
    "word": EngineColumn(Kind.TEXT, "text"),
    "size": EngineColumn(Kind.INTEGER, "integer", NumberType("integer", Fraction(-(2**31)), Fraction(2**31 - 1))),
    "price": EngineColumn(Kind.DECIMAL, "numeric(9,2)", _CENTS),
    "day": EngineColumn(Kind.DATE, "date"),
    "at": EngineColumn(Kind.TIMESTAMP, "timestamp with time zone"),
    "open": EngineColumn(Kind.BOOLEAN, "boolean"),
    "share": EngineColumn(Kind.FLOAT, "real"),
    'x" OR $1 --': EngineColumn(Kind.TEXT, "text"),
}
_WORD = 'CAST("word" AS text) COLLATE "C"'
_WHO = 'CAST("who" AS text) COLLATE "C"'
_PRICE = """nullif("price", CAST('NaN' AS numeric))"""
_AT = "(\"at\" AT TIME ZONE 'UTC')"


def _statement(*items, seed=b"", **parts):
    return PostgresStatement(HeadRequest("who", items, 10, **parts), '"public"."reads"', _COLUMNS, seed)


def test_distinct_users_of_a_text_are_counted_by_bytes():
    """The simplest statement counts users by their bytes."""
    assert _statement("word").write() == (
        f"SELECT i0, count(DISTINCT u) AS n FROM (SELECT {_WORD} AS i0, {_WHO} AS u "
        f'FROM "public"."reads" WHERE {_WHO} IS NOT NULL AND {_WORD} IS NOT NULL) AS r '
        "GROUP BY i0 ORDER BY n DESC, i0 ASC NULLS FIRST LIMIT 11"
    )


def test_one_total_has_no_labels():
    """A total is one row without labels."""
    assert _statement().write() == (
        f'SELECT count(DISTINCT u) AS n FROM (SELECT {_WHO} AS u FROM "public"."reads" WHERE {_WHO} IS NOT NULL) AS r'
    )


def test_sums_have_no_bounds_before_they_are_clipped():
    """Sums are in units of the last digit, and NaN adds nothing."""
    summed = SumBounds(Fraction(-1, 2), Fraction(7), 2, column="price")
    assert _statement("size", summed=summed, keep_missing=True).write() == (
        "SELECT i0, CAST(coalesce(sum(least(c, 1)), 0) AS BIGINT) AS n, "
        "CAST(greatest(least(coalesce(sum(greatest(least(coalesce(s, 0), 700), -50)), 0), 4611686018427387904), "
        "-4611686018427387904) AS BIGINT) AS t FROM ("
        "SELECT i0, u, count(*) AS c, sum(x) AS s FROM ("
        f'SELECT CAST("size" AS BIGINT) AS i0, {_WHO} AS u, CAST({_PRICE} AS numeric) * 100 AS x '
        f'FROM "public"."reads" WHERE {_WHO} IS NOT NULL) AS r '
        "GROUP BY i0, u) AS p GROUP BY i0 ORDER BY n DESC, i0 ASC NULLS FIRST LIMIT 11"
    )


def test_the_items_a_user_keeps_are_ordered_by_a_digest_of_canonical_text():
    """The same text as in every engine, sorted by bytes."""
    written = _statement("at", "day", "open", groups_per_user=3, seed=b"\x0f").write()
    moment = "to_char(i0, 'YYYY-MM-DD HH24:MI:SS.US')"
    day = "to_char(i1, 'YYYY-MM-DD')"
    framed = "".join(
        f" || coalesce(CAST(octet_length({text}) AS text) || ':' || "
        f"CASE WHEN octet_length({text}) > 10000 THEN md5({text}) COLLATE \"C\" ELSE {text} END, '-')"
        for text in ("CAST(u AS text)", moment, day, "CAST(i2 AS text)")
    )
    assert f"ORDER BY md5('0f'{framed}) COLLATE \"C\", i0 ASC" in written
    assert "place <= 3" in written


def test_listed_labels_are_bound_before_the_constants():
    """Each column is one array of text, in the order of the items."""
    domain = pa.table(
        {"word": ["b", "'"], "day": [datetime.date(2024, 2, 29)] * 2, "at": ["2024-02-29 12:00:00+00"] * 2}
    )
    where = Comparison("size", "=", Constant(Kind.INTEGER, "7"))
    statement = _statement("word", "day", "at", domain=domain, where=where)
    written = statement.write()
    listed = (
        '(SELECT CAST(i0 AS text) COLLATE "C" AS i0, CAST(i1 AS date) AS i1, CAST(i2 AS timestamp) AS i2 '
        "FROM unnest(CAST($1 AS text[]), CAST($2 AS text[]), CAST($3 AS text[])) AS d(i0, i1, i2)) AS listed"
    )
    assert written.count(listed) == 2
    assert '("size" = CAST($4 AS integer))' in written
    assert statement.bound == [["b", "'"], ["2024-02-29"] * 2, ["2024-02-29 12:00:00.000000"] * 2, "7"]


@pytest.mark.parametrize(
    ("predicate", "written", "bound"),
    [
        (Comparison("word", "<", Constant(Kind.TEXT, "'")), f"({_WORD} < CAST($1 AS text))", ["'"]),
        (Comparison("word", "<", Constant(Kind.TEXT, "a\0b")), f"({_WORD} <= CAST($1 AS text))", ["a"]),
        (Comparison("word", ">=", Constant(Kind.TEXT, "\0")), f"({_WORD} > CAST($1 AS text))", [""]),
        (Comparison("word", "=", Constant(Kind.TEXT, "\0")), f"({_WORD} <> {_WORD})", []),
        (Not(Comparison("word", "<>", Constant(Kind.TEXT, "\0"))), f"(NOT ({_WORD} = {_WORD}))", []),
        (
            Membership("word", (Constant(Kind.TEXT, "a"), Constant(Kind.TEXT, "\0"), Constant(Kind.TEXT, "b"))),
            f"({_WORD} IN (CAST($1 AS text), CAST($2 AS text)))",
            ["a", "b"],
        ),
        (Comparison("size", "<", Constant(Kind.DECIMAL, "0.5")), '("size" <= CAST($1 AS integer))', ["0"]),
        (Comparison("size", "<", Constant(Kind.INTEGER, str(2**31))), '("size" = "size")', []),
        (Comparison("price", ">", Constant(Kind.DECIMAL, "0.5")), f"({_PRICE} > CAST($1 AS numeric(9,2)))", ["0.50"]),
        (Comparison("at", ">", Constant(Kind.DATE, "2024-02-29")), f"({_AT} > CAST($1 AS DATE))", ["2024-02-29"]),
        (Comparison("day", "=", Constant(Kind.DATE, "2024-02-29")), '("day" = CAST($1 AS DATE))', ["2024-02-29"]),
        (
            Or((Comparison("open", "=", Constant(Kind.BOOLEAN, "true")), IsNull("price"))),
            f'(("open" = CAST($1 AS BOOLEAN)) OR ({_PRICE} IS NULL))',
            ["true"],
        ),
        (
            Comparison("share", ">", Constant(Kind.DECIMAL, "0.1")),
            """(nullif("share", CAST('NaN' AS double precision)) > CAST($1 AS double precision))""",
            ["0.1"],
        ),
        (
            And(
                (
                    Comparison("size", "=", Constant(Kind.INTEGER, "7")),
                    Comparison("size", "=", Constant(Kind.INTEGER, "8")),
                )
            ),
            '(("size" = CAST($1 AS integer)) AND ("size" = CAST($2 AS integer)))',
            ["7", "8"],
        ),
        (IsNull('x" OR $1 --'), '(CAST("x"" OR $1 --" AS text) COLLATE "C" IS NULL)', []),
    ],
)
def test_filters_bind_constants_that_their_column_can_hold(predicate, written, bound):
    """Text is compared by bytes, timestamps are in UTC, NaN is missing, and names are quoted."""
    statement = _statement("size", where=predicate)
    assert f" AND {written}) AS r" in statement.write()
    assert statement.bound == bound


@pytest.mark.parametrize("name", _COLUMNS)
def test_labels_of_a_listed_domain_have_the_arrow_type_of_their_column(name):
    """Columns without such a type have no labels; floating-point numbers are only fetched."""
    types = dict(zip(_COLUMNS, ["string", "string", "int64", "decimal128(9, 2)", "date32[day]"], strict=False))
    types |= {"at": "timestamp[us, tz=UTC]", "open": "bool", "share": "double", 'x" OR $1 --': "string"}
    assert str(arrow_type(_COLUMNS[name])) == types[name]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://h/db?table=a&table=b", "not a URL"),
        ("postgresql://h:port/db?table=a", "not a URL"),
        ("postgresql://h/db?table=a&options=-c%20jit%3Don", "takes no option 'options'"),
    ],
)
def test_invalid_urls_are_refused_before_a_connection(url, message):
    """A URL cannot change settings of the server."""
    with pytest.raises(InputError, match=message):
        PostgresEngine(url)
