"""The exact statements that are sent to Trino, and how its rows are read."""

from __future__ import annotations

import contextlib
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest

pytest.importorskip("trino")

from discreet.engines.trino import TrinoEngine, TrinoStatement, arrow_table, column_of
from discreet.errors import InputError
from discreet.head_request import And, Comparison, Constant, HeadRequest, IsNull, Kind, Membership, Not, Or, SumBounds

_TYPES = {
    "who": "uuid",
    "word": "varchar(40)",
    "size": "integer",
    "price": "decimal(9, 2)",
    "day": "date",
    "at": "timestamp(3) with time zone",
    "since": "timestamp(9)",
    "open": "boolean",
    "share": "real",
    'x" OR ?--': "varchar",
}
_COLUMNS = {name: column_of(type_) for name, type_ in _TYPES.items()}
_WHO = 'CAST("who" AS VARCHAR)'
_AT = "CAST(\"at\" AT TIME ZONE 'UTC' AS TIMESTAMP(6))"
_AT_PRESENT = (
    f"({_AT} BETWEEN CAST('0001-01-01' AS TIMESTAMP(6)) AND CAST('9999-12-31 23:59:59.999999' AS TIMESTAMP(6)))"
)
_SHARE = 'CASE WHEN is_nan("share") THEN NULL ELSE "share" END'


def _statement(*items, seed=b"", view=None, **parts):
    relation = "shown" if view else '"hive"."web"."reads"'
    return TrinoStatement(HeadRequest("who", items, 10, **parts), relation, _COLUMNS, seed, view).write()


def test_distinct_users_are_counted():
    """The simplest statement; text needs no cast, since Trino compares it by bytes."""
    assert _statement("word") == (
        'SELECT i0, count(DISTINCT u) AS n FROM (SELECT "word" AS i0, "who" AS u FROM "hive"."web"."reads" '
        'WHERE "who" IS NOT NULL AND "word" IS NOT NULL) AS r '
        "GROUP BY i0 ORDER BY n DESC, i0 ASC NULLS FIRST LIMIT 11"
    )


def test_sums_of_users_are_clipped_in_whole_units():
    """Sums have a type that cannot overflow, and rows without a label are kept if requested."""
    summed = SumBounds(Fraction(-1, 2), Fraction(7), 2, column="price")
    assert _statement("at", summed=summed, keep_missing=True) == (
        "SELECT i0, CAST(coalesce(sum(least(c, 1)), 0) AS BIGINT) AS n, "
        "CAST(greatest(least(coalesce(sum(greatest(least(coalesce(s, 0), 700), -50)), 0), 4611686018427387904), "
        "-4611686018427387904) AS BIGINT) AS t "
        "FROM (SELECT i0, u, count(*) AS c, sum(x) AS s "
        f'FROM (SELECT CASE WHEN {_AT_PRESENT} THEN {_AT} END AS i0, "who" AS u, '
        'CAST(CAST("price" AS DECIMAL(20, 2)) * CAST(100 AS DECIMAL(3, 0)) AS DECIMAL(38, 0)) AS x '
        'FROM "hive"."web"."reads" WHERE "who" IS NOT NULL) AS r GROUP BY i0, u) AS p GROUP BY i0 '
        "ORDER BY n DESC, i0 ASC NULLS FIRST LIMIT 11"
    )


def test_the_items_a_user_keeps_depend_on_the_md5_of_their_text():
    """Lengths are in bytes of UTF-8, and digits are in lower case."""
    texts = ["CAST(u AS VARCHAR)", "CAST(i0 AS VARCHAR)"]
    sizes = [f"length(to_utf8({text}))" for text in texts]
    framed = "".join(
        f" || coalesce(CAST({size} AS VARCHAR) || ':' || "
        f"CASE WHEN {size} > 10000 THEN lower(to_hex(md5(to_utf8({text})))) ELSE {text} END, '-')"
        for text, size in zip(texts, sizes, strict=True)
    )
    assert f"ORDER BY lower(to_hex(md5(to_utf8('00ff'{framed})))), i0 ASC NULLS FIRST) AS place" in _statement(
        "word", groups_per_user=3, seed=b"\x00\xff"
    )


def test_listed_items_are_json_literals_with_the_types_of_labels():
    """There is one literal for each column; quotes are doubled for SQL after JSON has escaped its own."""
    domain = pa.table({"word": ["it's", '"\\\n'], "price": [Decimal("0.10"), Decimal("-7.00")], "open": [True, False]})
    assert _statement("word", "price", "open", domain=domain).startswith(
        "WITH listed AS (SELECT CAST(v0 AS VARCHAR) AS i0, CAST(v1 AS decimal(9, 2)) AS i1, CAST(v2 AS BOOLEAN) AS i2 "
        "FROM UNNEST("
        """CAST(json_parse('["it''s", "\\"\\\\\\n"]') AS ARRAY(VARCHAR)), """
        """CAST(json_parse('["0.10", "-7.00"]') AS ARRAY(VARCHAR)), """
        """CAST(json_parse('["True", "False"]') AS ARRAY(VARCHAR))) AS v(v0, v1, v2)) SELECT i0, i1, i2, """
    )
    assert "it's" not in _statement("word", domain=domain.select(["word"]))


def test_a_view_cannot_see_the_listed_items():
    """The view is the first common table expression, and ends on a line of its own."""
    written = _statement("word", view="SELECT 1 -- one", domain=pa.table({"word": ["a"]}))
    assert written.startswith("WITH shown AS (SELECT 1 -- one\n), listed AS (SELECT ")
    assert '"word" AS i0, ' in written.partition(" FROM shown WHERE ")[0]


@pytest.mark.parametrize(
    ("where", "written"),
    [
        (Comparison("word", "=", Constant(Kind.TEXT, "O'Neil ''; --")), """("word" = 'O''Neil ''''; --')"""),
        (Comparison('x" OR ?--', "<>", Constant(Kind.TEXT, "?\\")), """("x"" OR ?--" <> '?\\')"""),
        (Comparison("size", "<", Constant(Kind.DECIMAL, "7.5")), """("size" <= CAST('7' AS integer))"""),
        (Comparison("size", ">", Constant(Kind.INTEGER, "3000000000")), """("size" <> "size")"""),
        (Membership("price", (Constant(Kind.DECIMAL, "0.105"),)), """("price" <> "price")"""),
        (Comparison("price", ">=", Constant(Kind.INTEGER, "-1")), """("price" >= CAST('-1.00' AS decimal(9, 2)))"""),
        (Comparison("share", "<=", Constant(Kind.DECIMAL, "0.1")), f"({_SHARE} <= CAST('0.1' AS DOUBLE))"),
        (IsNull("share"), f"({_SHARE} IS NULL)"),
        (IsNull("since"), '("since" IS NULL)'),
        (Comparison("day", "=", Constant(Kind.DATE, "2024-02-29")), """("day" = CAST('2024-02-29' AS DATE))"""),
        (
            Comparison("at", "<", Constant(Kind.TIMESTAMP, "2024-02-29 01:02:03.000004")),
            f"({_AT} < CAST('2024-02-29 01:02:03.000004' AS TIMESTAMP(6)))",
        ),
        (Comparison("who", "=", Constant(Kind.TEXT, "ab")), f"({_WHO} = 'ab')"),
        (
            Not(Or((And((IsNull("day"), IsNull("word"))), Comparison("open", "=", Constant(Kind.BOOLEAN, "true"))))),
            """(NOT ((("day" IS NULL) AND ("word" IS NULL)) OR ("open" = CAST('true' AS BOOLEAN))))""",
        ),
    ],
)
def test_filters_hold_checked_literals(where, written):
    """Names have double quotes and text single ones, numbers fit their column, and NaN is missing."""
    assert f'"word" IS NOT NULL AND {written}) AS r' in _statement("word", where=where)


@pytest.mark.parametrize(
    ("type_", "least", "most", "scale"),
    [
        ("tinyint", -128, 127, 0),
        ("bigint", -(2**63), 2**63 - 1, 0),
        ("decimal(9, 2)", Fraction(-999999999, 100), Fraction(999999999, 100), 2),
        ("decimal(38,0)", 1 - 10**38, 10**38 - 1, 0),
    ],
)
def test_numbers_have_the_range_of_their_type(type_, least, most, scale):
    """Constants are fitted to the range of the column."""
    number = column_of(type_).number
    assert (number.least, number.most, number.scale) == (least, most, scale)


def test_rows_become_arrow_of_every_year():
    """Timestamps before 1970, decimals, NULLs and empty results are converted."""
    columns = [("d", "date"), ("at", "timestamp(3)"), ("n", "decimal(5, 3)"), ("x", "double"), ("t", "varchar(3)")]
    rows = [
        ["1969-12-31", "1969-12-31 23:59:59.999", "-0.001", "NaN", "a"],
        ["9999-12-31", "0001-01-01 00:00:00.000", None, "Infinity", None],
        ["1970-01-01", "1970-01-01 00:00:00.5", "12.345", 1.5, ""],
    ]
    table = arrow_table(rows, columns)
    assert table["d"].cast(pa.int32()).to_pylist() == [-1, 2_932_896, 0]
    assert table["at"].cast(pa.int64()).to_pylist() == [-1000, -719_162 * 86_400_000_000, 500_000]
    assert table["n"].to_pylist() == [Decimal("-0.001"), None, Decimal("12.345")]
    assert [str(x) for x in table["x"].to_pylist()] == ["nan", "inf", "1.5"]
    assert table["t"].to_pylist() == ["a", None, ""]
    assert arrow_table([], columns).schema == table.schema


@pytest.mark.parametrize(
    "url",
    [
        "trino://host/catalog/schema",
        "trino://user@/catalog/schema",
        "trino://user@host/catalog",
        "trino://user@host/catalog/schema/table",
        "trino://user@host/catalog/",
        "trino://user@host/catalog/schema?https=yes",
        "trino://user@host/catalog/schema?ssl=true",
        "trino://user@host/catalog/schema#table",
    ],
)
def test_invalid_urls_are_refused(url):
    """Nothing is guessed or left out."""
    with pytest.raises(InputError, match=r"trino://user@host|no option 'ssl'|not a URL"):
        TrinoEngine(url, table="t")


def test_a_name_shows_the_table_and_no_password():
    """The table and the password may come from the URL or from arguments."""
    word = "open sesame"
    for engine in (
        TrinoEngine("trino://me:open%20sesame@h/c/s?table=t&https=true"),
        TrinoEngine("trino://me@h/c/s?table=x&https=true", table="t", password=word),
    ):
        with contextlib.closing(engine):
            assert engine.name == "trino://me@h/c/s, table t"
            assert "sesame" not in repr(vars(engine))


@pytest.mark.parametrize("scratch", ["x", "a.b.c", ".", ""])
def test_a_scratch_schema_is_a_catalog_and_a_schema(scratch):
    """Any other name could be a place where the account must not create tables."""
    with pytest.raises(InputError, match=r"scratch=catalog\.schema"):
        TrinoEngine(f"trino://me@host/hive/web?table=t&scratch={scratch}")


def test_pair_queries_need_a_scratch_schema():
    """The URL alone decides, because a plan is made before anything is sent."""
    assert TrinoEngine("trino://me@host/hive/web?table=t&scratch=memory.default").has_pairs
    assert not TrinoEngine("trino://me@host/hive/web?table=t").has_pairs


def test_labels_are_joined_by_equalities_also_where_they_are_missing():
    """A join by IS NOT DISTINCT FROM would compare every pair with every item."""
    joined = "coalesce(CAST(a AS VARCHAR), '') = coalesce(CAST(b AS VARCHAR), '') AND (a IS NULL) = (b IS NULL)"
    assert TrinoStatement(HeadRequest("who", ("word",), 1), "t", _COLUMNS, b"", None).same("a", "b") == joined
