"""The statements for Pinot count correctly although Pinot stores missing values as ordinary ones."""

from __future__ import annotations

import datetime
import math

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.engines.pinot_cluster import PinotColumn, columns_of
from discreet.engines.pinot_statement import MAX_LISTED, MAX_LISTED_TUPLES, PinotStatement, kind_of
from discreet.engines.sql import quoted
from discreet.errors import InputError
from discreet.head_request import Comparison, Constant, Derived, HeadRequest, IsNull, Kind, Membership, Not
from discreet.query.predicates import bind_where
from discreet.query.sql import parse_where
from discreet.testing.engines import predicates, reference_head, start_of

WORDS = ["", "B", "a", "b'", '"', "é", "ﬀ", "😀", "NULL", "null"]
COLUMNS = {
    "who": PinotColumn(Kind.TEXT, "STRING", nullable=True, stored="?!"),
    "word": PinotColumn(Kind.TEXT, "STRING", nullable=True, stored="(missing)"),
    "size": PinotColumn(Kind.INTEGER, "LONG", nullable=True, stored="-5"),
    "small": PinotColumn(Kind.INTEGER, "INT", nullable=True, stored="-2147483648"),
    "at": PinotColumn(Kind.TIMESTAMP, "TIMESTAMP", nullable=True, stored="0"),
    "open": PinotColumn(Kind.BOOLEAN, "BOOLEAN", nullable=False, stored=None),
    "share": PinotColumn(Kind.FLOAT, "DOUBLE", nullable=True, stored="-Infinity"),
}
DERIVED = [
    Derived("start", "at", "hour"),
    Derived("start", "at", "day"),
    Derived("start", "at", "week"),
    Derived("start", "at", "month"),
    Derived("start", "size", 7),
    Derived("start", "small", 3),
    Derived("start", "share", 4),
]
KINDS = {name: column.kind for name, column in COLUMNS.items() if name != "small"}
POOLS = {
    "who": ["ann", "bob", "cy"],
    "word": WORDS,
    "size": [-(2**63), -7, 0, 1, 7, 2**53 + 1, 2**63 - 1],
    "small": [-7, 0, 7, 2**31 - 1],
    "at": [datetime.datetime(1960, 1, 1, 1, 2, 3, 4000), datetime.datetime(2024, 2, 29)],
    "open": [False, True],
    "share": [-0.5, -0.0, 0.0, 0.1, 7.0, 1e300],
}
TYPES = {"at": pa.timestamp("us"), "size": pa.int64(), "small": pa.int64(), "open": pa.bool_(), "share": pa.float64()}


def rows_with_missing_values():
    """Return 150 rows of few values."""
    draw = np.random.default_rng(3)
    columns = {}
    for name, values in POOLS.items():
        pool = [None, *values] if COLUMNS[name].nullable else values
        columns[name] = pa.array([pool[n] for n in draw.integers(0, len(pool), 150)], TYPES.get(name, pa.string()))
    return pa.table(columns)


ROWS = rows_with_missing_values()


@pytest.fixture(scope="module")
def stand_in():
    """Return DuckDB with the rows as Pinot stores them: no missing values, timestamps in milliseconds."""
    connection = duckdb.connect()
    connection.execute("CREATE MACRO toUtf8(words) AS encode(words)")
    connection.execute(
        "CREATE MACRO DATETRUNC(period, ms, unit) AS epoch_ms(CAST(date_trunc(period, epoch_ms(ms)) AS TIMESTAMP))"
    )
    connection.register("given", ROWS)
    stored = ", ".join(
        f"coalesce({'epoch_ms' if name == 'at' else ''}({quoted(name)}), {_stored(column)}) AS {quoted(name)}"
        for name, column in COLUMNS.items()
    )
    connection.execute(f'CREATE TABLE "t_OFFLINE" AS SELECT {stored} FROM given')
    yield connection
    connection.close()


def _stored(column):
    if column.stored is None:
        return "NULL"
    return column.stored if column.kind in {Kind.INTEGER, Kind.TIMESTAMP} else f"'{column.stored}'"


def counted(connection, request, listed=None):
    """Return the head of a statement as plain values."""
    text = PinotStatement(request, "t_OFFLINE", COLUMNS, listed).write()
    rows = [] if text is None else connection.execute(text).fetchall()
    makers = [MAKERS.get(kind_of(item, request, COLUMNS), lambda value: value) for item in request.items]
    return [(tuple(make(v) for v, make in zip(row, makers, strict=False)), row[-1]) for row in rows]


def _moment(milliseconds):
    return datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=milliseconds)


MAKERS = {Kind.TIMESTAMP: _moment, Kind.DATE: lambda milliseconds: _moment(milliseconds).date()}


@settings(max_examples=120, derandomize=True, deadline=None, database=None)
@given(data=st.data())
def test_random_filters_count_as_if_values_were_missing(stand_in, data):
    """SQL's three-valued logic holds on a store without missing values."""
    items = data.draw(st.lists(st.sampled_from(["word", "size", "at", "open"]), min_size=1, max_size=3, unique=True))
    derived = data.draw(st.lists(st.sampled_from(DERIVED), max_size=1).map(tuple))
    items += [made.name for made in derived]
    limit = data.draw(st.sampled_from([1, 5, 1000]))
    where = data.draw(st.none() | predicates(KINDS | {made.name: made.kind for made in derived}))
    request = HeadRequest("who", tuple(items), limit, where, derived=derived)
    try:
        rows = counted(stand_in, request)
    except InputError as error:
        assert "UTF-16" in str(error)  # noqa: PT017 - a refusal is as good as a head
    else:
        assert rows == [(labels[: len(items)], count) for labels, count in reference_head(ROWS, request)]


def test_the_default_null_value_is_missing(stand_in):
    """Only the default null value is missing; neither it nor its negation is equal to anything."""
    stored = {"word": Constant(Kind.TEXT, "(missing)"), "size": Constant(Kind.INTEGER, "-5")}
    for name, constant in stored.items():
        for where in (Comparison(name, "=", constant), Membership(name, (constant,))):
            assert counted(stand_in, HeadRequest("who", ("at",), 1000, where)) == []
            others = HeadRequest("who", ("at",), 1000, Not(where))
            assert counted(stand_in, others) == reference_head(ROWS, others)


@pytest.mark.parametrize(
    ("where", "asked"),
    [
        ("word = 'a'", False),
        ("word IN ('a', 'b')", False),
        ("word IN ('a', '(missing)')", True),
        ("word <> 'a'", True),
        ("word < 'a'", True),
        ("size >= -4", False),
        ("size >= -5", True),
        ("NOT size <= -5", False),
        ("NOT size IN (1, 2)", True),
    ],
)
def test_a_filter_tests_for_missing_values_only_where_they_could_pass(where, asked):
    """Conditions cost time for each row, and the default null value fails most of them anyway."""
    request = HeadRequest("who", ("small",), 2, bind_where(parse_where(where), KINDS))
    text = PinotStatement(request, "t_OFFLINE", COLUMNS).write()
    assert asked == any(check in text for check in ("\"word\" <> '(missing)'", '"size" <> -5'))


def test_the_statement_has_its_count_and_order():
    """The count has no alias, text is ordered by bytes, timestamps are milliseconds, and the limit is one more."""
    where = Not(Membership("word", (Constant(Kind.TEXT, "it's"), Constant(Kind.TEXT, "ﬀ"))))
    statement = PinotStatement(HeadRequest("who", ("word", "at"), 7, where), "t_OFFLINE", COLUMNS)
    assert statement.write() == (
        'SELECT "word", CAST("at" AS LONG), COUNT(DISTINCT "who") FROM "t_OFFLINE" '
        """WHERE ("who" <> '?!' AND "word" <> '(missing)' AND "at" <> 0 """
        """AND ("at" >= -62135596800000 AND "at" <= 253402300799999) AND """
        """("word" <> '(missing)' AND "word" NOT IN ('it''s', 'ﬀ'))) """
        'GROUP BY "word", CAST("at" AS LONG) '
        'ORDER BY COUNT(DISTINCT "who") DESC, toUtf8("word") ASC, CAST("at" AS LONG) ASC LIMIT 8'
    )
    assert statement.names == ["word", "cast(at,'LONG')", "distinctcount(who)"]
    assert statement.types == ["STRING", "LONG", "INT"]


def test_all_rows_are_one_count():
    """A request without items has no groups and no order."""
    statement = PinotStatement(HeadRequest("who", (), 1), "t_OFFLINE", COLUMNS)
    assert statement.write() == """SELECT COUNT(DISTINCT "who") FROM "t_OFFLINE" WHERE ("who" <> '?!')"""


def test_names_are_quoted():
    """Column names may have any characters."""
    columns = dict.fromkeys(('a"b', "c d"), COLUMNS["word"])
    text = PinotStatement(HeadRequest('a"b', ("c d",), 1), 't"_OFFLINE', columns).write()
    assert text.startswith('SELECT "c d", COUNT(DISTINCT "a""b") FROM "t""_OFFLINE" WHERE ("a""b" <>')


@pytest.mark.parametrize("sign", ["=", "<>", "<", "<=", ">", ">="])
@pytest.mark.parametrize("value", [-(2**31), 2**31 - 1, 2**31, -(2**31) - 1, 2**63, 10**37, "0.5", "-7.25"])
def test_constants_that_a_column_cannot_hold_are_never_sent(stand_in, sign, value):
    """Pinot would wrap such constants, so comparisons with 32-bit columns are decided here."""
    kind = Kind.DECIMAL if isinstance(value, str) else Kind.INTEGER
    where = Comparison("small", sign, Constant(kind, str(value)))
    for filter_ in (where, Not(where)):
        request = HeadRequest("who", ("word",), 1000, filter_)
        assert counted(stand_in, request) == reference_head(ROWS, request)


@pytest.mark.parametrize("type_", ["FLOAT", "DOUBLE"])
def test_floating_point_columns_compare_with_doubles(type_):
    """Includes 32-bit columns, constants outside their range, zeros of both signs, and NaN."""
    values = [-math.inf, -3.4e38, -0.5, -0.0, 0.0, 0.1, 0.5, 16777216.0, 3.4e38, math.inf, math.nan]
    stored = np.array(values, dtype=np.float32 if type_ == "FLOAT" else np.float64)
    columns = {
        "who": PinotColumn(Kind.INTEGER, "LONG", nullable=False, stored=None),
        "x": PinotColumn(Kind.FLOAT, type_, nullable=True, stored="-Infinity"),
    }
    numbers = [float(value) for value in stored]
    with duckdb.connect() as connection:
        connection.register("given", pa.table({"who": range(len(values)), "x": pa.array(stored)}))
        connection.execute("CREATE TABLE t AS SELECT * FROM given")
        for text in ("0", "0.1", "0.5", "-0.5", "16777217", "1" + "0" * 37, "-" + "9" * 37, "0." + "0" * 35 + "1"):
            constant, present = float(text), [n for n in numbers if not math.isnan(n) and n != -math.inf]
            for sign, right in (
                ("=", [n for n in present if n == constant]),
                ("<>", [n for n in present if n != constant]),
                ("<", [n for n in present if n < constant]),
                ("<=", [n for n in present if n <= constant]),
                (">", [n for n in present if n > constant]),
                (">=", [n for n in present if n >= constant]),
            ):
                where = Comparison("x", sign, Constant(Kind.DECIMAL, text))
                written = PinotStatement(HeadRequest("who", (), 1, where), "t", columns).write()
                found = 0 if written is None else connection.execute(written).fetchone()[0]
                assert found == len(right), (sign, text)
        for where, count in ((IsNull("x"), 2), (Not(IsNull("x")), len(values) - 2)):
            written = PinotStatement(HeadRequest("who", (), 1, where), "t", columns).write()
            assert connection.execute(written).fetchone()[0] == count


def test_unsatisfiable_filters_are_detected_without_a_query():
    """Conditions that every row passes are omitted."""
    columns = columns_of({"dimensionFieldSpecs": [{"name": "x", "dataType": "INT", "notNull": True}]}, "t")
    kinds = {"x": Kind.INTEGER}

    def written(text):
        where = bind_where(parse_where(text), kinds)
        return PinotStatement(HeadRequest("x", (), 1, where), "t", columns).write()

    for text in ("x IS NULL", "x = 0.5", "x > 3000000000", "x IN (0.5, 3000000000)", "x = 1 AND x IS NULL"):
        assert written(text) is None, text
        assert (
            written(f"NOT ({text}) OR x = 0.5")
            in {
                'SELECT COUNT(DISTINCT "x") FROM "t"',
                'SELECT COUNT(DISTINCT "x") FROM "t" WHERE (("x" <> 1))',
            }
            or text == "x = 1 AND x IS NULL"
        )


@pytest.mark.parametrize("text", ["''", "a''b", "'''", "''''"])
def test_text_with_two_adjacent_quotes_is_refused(text):
    """Pinot turns two adjacent quotes into one, in filters and in domains."""
    where = Comparison("word", "=", Constant(Kind.TEXT, text))
    listed = pa.table({"i0": [text]})
    for request, domain in (
        (HeadRequest("who", ("word",), 1, where), None),
        (HeadRequest("who", ("word",), 1), listed),
    ):
        with pytest.raises(InputError, match="two single quotes"):
            PinotStatement(request, "t", COLUMNS, domain).write()


@pytest.mark.parametrize(("text", "allowed"), [("\ud7ff", True), ("\ue000", False), ("ﬀ", False), ("a😀", False)])
def test_text_is_compared_in_order_only_below_the_surrogates(text, allowed):
    """Above them UTF-16 and UTF-8 order differently; equality is the same everywhere."""
    for sign in ("<", "<=", ">", ">=", "=", "<>"):
        request = HeadRequest("who", ("word",), 1, Comparison("word", sign, Constant(Kind.TEXT, text)))
        if allowed or sign in {"=", "<>"}:
            assert text in PinotStatement(request, "t", COLUMNS).write()
        else:
            with pytest.raises(InputError, match="UTF-16"):
                PinotStatement(request, "t", COLUMNS).write()


def test_only_listed_items_are_queried(stand_in):
    """One column is an IN list and several are tuples; values that a column cannot hold are not sent."""
    for listed in (
        pa.table({"i0": WORDS}),
        pa.table({"i0": ["B", "B", "a"], "i1": [7, 0, 2**53 + 1]}),
    ):
        items = ("word", "size")[: listed.num_columns]
        domain = listed.rename_columns(list(items))
        request = HeadRequest("who", items, len(listed), domain=domain)
        right = [row for row in reference_head(ROWS, request) if row[1]]
        assert counted(stand_in, request, listed) == right
    for made in DERIVED:
        starts = [start for start in {start_of(value, made.each) for value in POOLS[made.column]} if start is not None]
        kind = {Kind.INTEGER: pa.int64(), Kind.DATE: pa.date32(), Kind.TIMESTAMP: pa.timestamp("us")}[made.kind]
        listed = pa.table({"word": ["B"] * len(starts), made.name: pa.array(starts, kind)})
        for items in ((made.name,), ("word", made.name)):
            request = HeadRequest("who", items, len(listed), domain=listed.select(items), derived=(made,))
            right = [row for row in reference_head(ROWS, request) if row[1]]
            assert counted(stand_in, request, listed.select(items)) == right
    moments = pa.array([1, 86_400_000_000], pa.int64()).cast(pa.timestamp("us"))
    text = PinotStatement(HeadRequest("who", ("at",), 2), "t", COLUMNS, pa.table({"i0": moments})).write()
    assert '"at" IN (86400000)' in text
    numbers = pa.table({"i0": pa.array([5, 2**31], pa.int64())})
    assert '"small" IN (5)' in PinotStatement(HeadRequest("who", ("small",), 2), "t", COLUMNS, numbers).write()


@pytest.mark.parametrize(("columns", "most"), [(1, MAX_LISTED), (2, MAX_LISTED_TUPLES)])
def test_more_listed_items_than_pinot_can_parse_are_refused(columns, most):
    """Pinot parses a long list recursively."""
    items = ("size", "small")[:columns]
    for rows in (most, most + 1):
        listed = pa.table({f"i{n}": pa.array(range(rows), pa.int64()) for n in range(columns)})
        request = HeadRequest("who", items, rows)
        if rows > most:
            with pytest.raises(InputError, match=f"{most:,}"):
                PinotStatement(request, "t", COLUMNS, listed)
        else:
            assert PinotStatement(request, "t", COLUMNS, listed).write()
