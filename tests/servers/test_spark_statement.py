"""The exact statements that are sent to Spark, and its column types."""

from __future__ import annotations

import datetime
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest

from discreet.engines.spark import SparkStatement, column_of
from discreet.engines.sql import NumberType
from discreet.head_request import And, Comparison, Constant, HeadRequest, IsNull, Kind, Membership, Not, Or, SumBounds

HOSTILE = "x` OR ? ${y} -- '\""
COLUMNS = {
    "who": column_of("string"),
    "word": column_of("string", "varchar(9)"),
    "size": column_of("int"),
    "price": column_of("decimal(9,2)"),
    "day": column_of("date"),
    "at": column_of("timestamp_ntz"),
    "then": column_of("timestamp"),
    "open": column_of("boolean"),
    "share": column_of("float"),
    HOSTILE: column_of("string"),
}
WORD = "make_valid_utf8(`word`)"


def statement(*items, seed=b"", **parts):
    """Return a statement over COLUMNS."""
    return SparkStatement(HeadRequest("who", items, 10, **parts), COLUMNS, seed)


def condition(where):
    """Return a filter in Spark's SQL and its bound parameters."""
    written = statement("word", where=where)
    return written.filtered(where), written.parameters


def test_distinct_users_are_counted_by_their_bytes():
    """The simplest statement counts users as they are, also those that are not UTF-8."""
    assert statement("word").write() == (
        f"SELECT i0, count(DISTINCT u) AS n FROM (SELECT {WORD} AS i0, `who` AS u FROM __discreet_rows "
        "WHERE `who` IS NOT NULL AND `word` IS NOT NULL) AS r "
        "GROUP BY i0 ORDER BY n DESC, i0 ASC NULLS FIRST LIMIT 11"
    )


def test_one_total_has_no_labels():
    """A total is one row without labels."""
    assert statement().write() == (
        "SELECT count(DISTINCT u) AS n FROM (SELECT `who` AS u FROM __discreet_rows WHERE `who` IS NOT NULL) AS r"
    )


def test_the_items_a_user_keeps_are_ordered_by_a_digest_of_canonical_text():
    """The digest's text is the same in every engine; timestamps always have six fractional digits."""
    written = statement("at", "price", groups_per_user=3, seed=b"\x0f").write()
    framed = "".join(
        f" || coalesce(CAST(octet_length({text}) AS STRING) || ':' || "
        f"CASE WHEN octet_length({text}) > 10000 THEN md5({text}) ELSE {text} END, '-')"
        for text in ("CAST(u AS STRING)", "date_format(i0, 'yyyy-MM-dd HH:mm:ss.SSSSSS')", "CAST(i1 AS STRING)")
    )
    assert f"PARTITION BY u ORDER BY md5('0f'{framed}), i0 ASC NULLS FIRST, i1 ASC NULLS FIRST)" in written
    assert "place <= 3" in written


def test_sums_are_clipped_per_user_in_whole_units():
    """Sums are in decimals of 38 digits, which cannot overflow."""
    written = statement("day", summed=SumBounds(Fraction(-1, 2), Fraction(7), 2, column="price")).write()
    assert "CAST(CAST(`price` AS DECIMAL(20, 2)) * CAST(100 AS DECIMAL(3, 0)) AS DECIMAL(38, 0)) AS x" in written
    assert "sum(greatest(least(coalesce(s, 0), 700), -50))" in written


def test_timestamps_are_labels_without_a_zone():
    """Timestamps with a zone are converted to UTC; those outside Python's calendar are missing."""
    written = statement("at", "then").write()
    first, last = (f"CAST('{text}' AS TIMESTAMP_NTZ)" for text in ("0001-01-01", "9999-12-31 23:59:59.999999"))
    at, then = "`at`", "CAST(`then` AS TIMESTAMP_NTZ)"
    assert f"SELECT {at} AS i0, {then} AS i1" in written
    present = [f"({moment} BETWEEN {first} AND {last})" for moment in (at, then)]
    assert f"WHERE `who` IS NOT NULL AND {' AND '.join(present)}" in written


def test_listed_items_come_in_the_types_of_labels():
    """Listed items have an explicit schema, since an empty list has no types to infer."""
    listed = pa.table({"word": ["a"], "at": [datetime.datetime(2024, 1, 1)], "size": [1], "price": ["1.00"]})
    written = statement("word", "at", "size", "price", domain=listed)
    assert written.listed_schema() == "i0 STRING, i1 TIMESTAMP_NTZ, i2 BIGINT, i3 decimal(9,2)"
    assert written.write().count("__discreet_listed") == 2
    assert "FROM __discreet_listed LEFT JOIN (" in written.write()


@pytest.mark.parametrize(
    ("where", "written", "bound"),
    [
        (Comparison("word", "<", Constant(Kind.TEXT, "it's \\")), "(`word` < ?)", ["it's \\"]),
        (Comparison("size", "=", Constant(Kind.INTEGER, "7")), "(`size` = CAST(? AS int))", ["7"]),
        (Comparison("size", "<", Constant(Kind.INTEGER, str(2**40))), "(`size` = `size`)", []),
        (Comparison("price", ">", Constant(Kind.DECIMAL, "0.105")), "(`price` > CAST(? AS decimal(9,2)))", ["0.10"]),
        (Comparison("open", "=", Constant(Kind.BOOLEAN, "true")), "(`open` = CAST(? AS BOOLEAN))", ["true"]),
        (Comparison("day", "<>", Constant(Kind.DATE, "2024-02-29")), "(`day` <> CAST(? AS DATE))", ["2024-02-29"]),
        (
            Comparison("at", ">=", Constant(Kind.TIMESTAMP, "2024-02-29 01:02:03.000004")),
            "(`at` >= CAST(? AS TIMESTAMP_NTZ))",
            ["2024-02-29 01:02:03.000004"],
        ),
        (
            Comparison("then", "<=", Constant(Kind.DATE, "2024-02-29")),
            "(CAST(`then` AS TIMESTAMP_NTZ) <= CAST(? AS DATE))",
            ["2024-02-29"],
        ),
        (
            Membership("share", (Constant(Kind.DECIMAL, "0.1"),)),
            "(nullif(`share`, CAST('NaN' AS DOUBLE)) IN (CAST(? AS DOUBLE)))",
            ["0.1"],
        ),
        (IsNull("then"), "(CAST(`then` AS TIMESTAMP_NTZ) IS NULL)", []),
    ],
)
def test_constants_are_bound_and_cast_to_the_column(where, written, bound):
    """Numeric constants are cast to the column's type, so that none makes rows fail."""
    assert condition(where) == (written, bound)


def test_names_are_quoted_and_constants_bound():
    """Backticks in names are doubled, and bound constants are not in the statement."""
    where = And((Not(IsNull(HOSTILE)), Or((Comparison(HOSTILE, "=", Constant(Kind.TEXT, "'; DROP")), IsNull("day")))))
    written = SparkStatement(HeadRequest(HOSTILE, ("word",), 10, where), COLUMNS)
    text = written.write()
    name = "`x`` OR ? ${y} -- '\"`"
    assert f"((NOT ({name} IS NULL)) AND (({name} = ?) OR (`day` IS NULL)))" in text
    assert written.parameters == ["'; DROP"]
    assert "DROP" not in text


@pytest.mark.parametrize(
    ("type_", "declared", "kind"),
    [
        ("string", "", Kind.TEXT),
        ("string", "varchar(3)", Kind.TEXT),
        ("string", "char(3)", Kind.OTHER),
        ("char(3)", "", Kind.OTHER),
        ("varchar(3)", "", Kind.TEXT),
        ("string collate UTF8_LCASE", "", Kind.OTHER),
        ("string collate UNICODE", "", Kind.OTHER),
        ("tinyint", "", Kind.INTEGER),
        ("decimal(38,38)", "", Kind.DECIMAL),
        ("float", "", Kind.FLOAT),
        ("timestamp", "", Kind.TIMESTAMP),
        ("binary", "", Kind.OTHER),
        ("void", "", Kind.OTHER),
        ("array<int>", "", Kind.OTHER),
        ("struct<date:date>", "", Kind.OTHER),
        ("interval day to second", "", Kind.OTHER),
        ("time(6)", "", Kind.OTHER),
    ],
)
def test_text_is_text_only_where_it_is_compared_by_bytes(type_, declared, kind):
    """Padded or collated text is OTHER, because it merges different labels."""
    assert column_of(type_, declared).kind is kind


@pytest.mark.parametrize(("name", "bits"), [("tinyint", 8), ("smallint", 16), ("int", 32), ("bigint", 64)])
def test_integer_types_have_exact_bounds(name, bits):
    """Integer types have their exact inclusive bounds."""
    assert column_of(name).number == NumberType(name, Fraction(-(2 ** (bits - 1))), Fraction(2 ** (bits - 1) - 1))


@pytest.mark.parametrize(("digits", "scale"), [(9, 2), (38, 0), (38, 38), (1, 0)])
def test_decimal_bounds_follow_from_digits_and_scale(digits, scale):
    """Decimal bounds follow from digits and scale, and listed decimals have Arrow's type of that size."""
    column = column_of(f"decimal({digits},{scale})")
    most = Fraction(Decimal((0, (9,) * digits, -scale)))
    assert column.number == NumberType(f"decimal({digits},{scale})", -most, most, scale)
    columns = {"who": COLUMNS["who"], "item": column}
    domain = pa.table({"item": pa.array([], pa.decimal128(digits, scale))})
    listed = SparkStatement(HeadRequest("who", ("item",), 1, domain=domain), columns).items_listed
    assert listed.schema.types == [pa.decimal128(digits, scale)]


def test_labels_have_arrows_types():
    """Labels have the same Arrow types as DuckDB's."""
    items = ("word", "size", "day", "at", "then", "open")
    moment = pa.timestamp("us")
    types = [pa.string(), pa.int64(), pa.date32(), moment, moment, pa.bool_()]
    domain = pa.table({item: pa.array([], type_) for item, type_ in zip(items, types, strict=True)})
    assert statement(*items, domain=domain).items_listed.schema.types == types
