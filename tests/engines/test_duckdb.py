"""DuckDB passes the suite for engines, and counts exactly what only DuckDB can hold."""

from __future__ import annotations

import contextlib
import datetime
import tempfile
import uuid
from fractions import Fraction
from pathlib import Path
from typing import get_args

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from discreet.engines.duckdb import DuckDBEngine
from discreet.errors import InputError, UnknownColumn
from discreet.head_request import (
    Comparison,
    Constant,
    Derived,
    HeadRequest,
    IsNull,
    Kind,
    Membership,
    Not,
    Period,
    SumBounds,
)
from discreet.query.predicates import bind_where
from discreet.query.sql import parse_where
from discreet.testing.engines import EngineSuite, reference_head, rows_of


class TestDuckDB(EngineSuite):
    """Run the whole suite on Arrow tables."""

    @contextlib.contextmanager
    def opened(self, table):
        """See `EngineSuite.opened`."""
        with contextlib.closing(DuckDBEngine(table)) as engine:
            yield engine

    @contextlib.contextmanager
    def slow(self, timeout_seconds):
        """See `EngineSuite.slow`."""
        view = "SELECT range % 9 AS who, range % 7 AS item FROM range(1000000000000)"
        table = pa.table({"none": [0]})
        with contextlib.closing(DuckDBEngine(table, view=view, timeout_seconds=timeout_seconds)) as engine:
            yield engine

    @contextlib.contextmanager
    def dead(self):
        """See `EngineSuite.dead`."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "t.parquet"
            pyarrow.parquet.write_table(pa.table({"who": [1], "item": [1]}), path)
            with contextlib.closing(DuckDBEngine(path)) as engine:
                path.unlink()
                yield engine


@pytest.fixture
def database(tmp_path):
    """Return a function that runs statements in a new DuckDB file and returns its path."""

    def make(*statements):
        path = tmp_path / "made.db"
        with duckdb.connect(str(path)) as connection:
            for statement in statements:
                connection.execute(statement)
        return path

    return make


def test_counts_of_rows_exceed_two_to_the_31(database, head):
    """A user with 2.2 billion rows of one item counts for tau = 2^31 of them, and another user adds to it."""
    path = database(  # of truth values, which DuckDB counts ten times faster than numbers
        """CREATE VIEW rows AS SELECT TRUE AS "user", TRUE AS item FROM range(2_150_000_000)
           UNION ALL SELECT FALSE, TRUE FROM range(50_000_000)"""
    )
    assert head(path, rows_per_group=2**31) == [((True,), 2**31 + 50_000_000)]


@pytest.mark.parametrize("type_", ["int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64"])
def test_integers_of_every_width_are_labels_and_filters(head, engine, type_):
    """Integers are compared exactly with constants that their type cannot hold."""
    table = pa.table({"user": [1, 2, 3], "item": pa.array([100, 9, 100], type_)})
    assert engine(table).columns()["item"] is Kind.INTEGER
    assert head(table, where=f"item > -1 AND item < {10**37}") == [((100,), 2), ((9,), 1)]
    assert head(table, where="item IN (100, -5, 70000)") == [((100,), 2)]
    assert head(table, where="item >= 8.999999999999999999999999999999") == [((100,), 2), ((9,), 1)]


@pytest.mark.parametrize(
    ("type_", "values", "labels"),
    [
        ("HUGEINT", ["9", f"{2**127 - 1}", "10"], ["10", f"{2**127 - 1}", "9"]),
        ("UUID", [str(uuid.UUID(int=n)) for n in (2, 2**127)], [str(uuid.UUID(int=n)) for n in (2, 2**127)]),
        ("ENUM ('z', 'a')", ["z", "a"], ["a", "z"]),
    ],
)
def test_types_that_arrow_does_not_keep_apart_become_text(database, head, type_, values, labels):
    """Huge numbers, UUIDs and enumerations are released as text, and ties have the order of that text."""
    rows = ", ".join(f"({n}, '{value}'::{type_})" for n, value in enumerate(values))
    path = database(f'CREATE TABLE t AS SELECT * FROM (VALUES {rows}) AS rows("user", item)')
    assert head(path) == [((label,), 1) for label in labels]
    assert head(path, domain=pa.table({"item": [*labels, "0"]}), limit=4)[-1] == (("0",), 0)
    assert head(path, groups_per_user=1) == head(path)


@pytest.mark.parametrize("type_", [pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us", "UTC")])
def test_timestamps_of_every_unit_are_labels_and_filters(head, type_):
    """Timestamps keep their unit and zone."""
    at = datetime.datetime(2024, 5, 6, 7, 8, 9)
    table = pa.table({"user": [1, 2], "item": pa.array([at, None], type_)})
    ((label,), count), *rest = head(table, where="item > '2024-05-05' AND item < TIMESTAMP '2024-05-08 00:00:00'")
    assert (label.replace(tzinfo=None), count, rest) == (at, 1, [])


def test_dictionary_columns_are_their_values(head):
    """Arrow dictionaries are read by value, for any order of their codes."""
    codes = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, None]), pa.array(["z", "a"]))
    assert head(pa.table({"user": [1, 2, 3, 4], "item": codes})) == [(("z",), 2), (("a",), 1)]


def test_a_collation_of_the_table_merges_no_items(database, head):
    """Under a case-insensitive collation the label of a merged item would depend on the order of the rows."""
    path = database(
        'CREATE TABLE t ("user" INTEGER, item VARCHAR COLLATE NOCASE)',
        "INSERT INTO t VALUES (1, 'b'), (2, 'A'), (3, 'a')",
    )
    assert head(path) == [(("A",), 1), (("a",), 1), (("b",), 1)]


def test_a_collation_of_the_table_merges_no_users(database, head, engine):
    """Under a case-insensitive collation two users would be one, in counts and in pairs."""
    path = database(
        'CREATE TABLE t ("user" VARCHAR COLLATE NOCASE, item INTEGER)',
        "INSERT INTO t VALUES ('Ann', 1), ('ann', 1), ('ANN', 1), ('ann', 1), ('ben', 2)",
    )
    assert head(path) == [((1,), 3), ((2,), 1)]
    with engine(path).pairs(HeadRequest("user", ("item",), 10)) as pairs:
        assert pairs.users_by_size(np.array([1, 2])).tolist() == [4, 0]


@pytest.mark.parametrize("names", [["user", "Item", "item"], ["user", "item", "item"]])
def test_columns_that_differ_in_case_only_are_never_confused(engine, names):
    """DuckDB renames one of two such columns."""
    table = pa.table([[1, 2], ["no", "no"], ["yes", "yes"]], names)
    with pytest.raises(InputError, match="columns with the same name, or with names that differ in case only"):
        engine(table).columns()


@pytest.mark.parametrize(
    "type_", [pa.list_(pa.decimal128(5, 2)), pa.list_(pa.int32()), pa.struct([("a", pa.int32())]), pa.binary()]
)
def test_nested_columns_are_neither_users_nor_items(engine, type_):
    """Nested columns have the kind OTHER, even a list whose type begins like a number's."""
    table = pa.table({"user": [1], "item": pa.array([None], type_)})
    assert engine(table).columns()["item"] is Kind.OTHER


_OTHERS = {
    "BLOB": ["'a'", "'b'"],
    "BIT": ["'101'", "'0101'"],
    "INTERVAL": ["'1 month'", "'30 days'"],
    "INTEGER[]": ["[1]", "[2]"],
    "INTEGER[2]": ["[1, 2]", "[2, 2]"],
    "STRUCT(a INTEGER)": ["{a: 1}", "{a: 2}"],
    "MAP(INTEGER, INTEGER)": ["MAP {1: 2}", "MAP {1: 3}"],
    "UNION(a INTEGER, b VARCHAR)": ["1", "'1'"],
    "TIME": ["'12:00'", "'12:01'"],
    "TIMETZ": ["'12:00:00+00'", "'13:00:00+01'"],
    "JSON": ["'1'", "'2'"],
    "BIGNUM": ["1", "2"],
}


def test_columns_of_other_types_can_only_be_missing(database):
    """A head, pairs, a comparison and a sum of such a column are refused by one sentence, before a row is read."""
    names = [f"c{n}" for n in range(len(_OTHERS))]
    rows = [", ".join(f"CAST({values[n]} AS {type_})" for type_, values in _OTHERS.items()) for n in (0, 1)]
    values = f"(VALUES (1, {rows[0]}), (2, {rows[1]})) AS v(who, {', '.join(names)})"
    path = database(f"CREATE TABLE t AS SELECT * FROM {values}")
    constant = Constant(Kind.INTEGER, "1")
    with contextlib.closing(DuckDBEngine(path)) as engine:
        for name, type_ in zip(names, _OTHERS, strict=True):
            assert engine.columns()[name] is Kind.OTHER, type_
            refused = [
                HeadRequest(name, ("who",), 1),
                HeadRequest("who", (name,), 1),
                HeadRequest("who", (name,), 1, domain=pa.table({name: ["1"]})),
                HeadRequest("who", (), 1, Comparison(name, "=", constant)),
                HeadRequest("who", (), 1, Not(Membership(name, (constant,)))),
                HeadRequest("who", (), 1, summed=SumBounds(Fraction(0), Fraction(1), column=name)),
            ]
            for request in refused:
                for ask in (engine.check, engine.head):
                    with pytest.raises(InputError, match=f"^column '{name}' "):
                        ask(request)
            with pytest.raises(InputError, match=f"^column '{name}' "), engine.pairs(refused[1]):
                pass
            assert rows_of(engine, HeadRequest("who", (), 1, Not(IsNull(name)))) == [(("all",), 2)]


def test_a_timestamp_that_overflows_microseconds_is_missing(engine):
    """DuckDB converts every value to microseconds, also for IS NULL, and would fail on this one."""
    times = pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("ms", "UTC"))
    table = pa.table({"who": [1, 2], "at": times})
    assert rows_of(engine(table), HeadRequest("who", (), 1, IsNull("at"))) == [(("all",), 1)]


def test_a_column_that_is_missing_is_named(database):
    """A request for a column that the table does not have, in any place, is refused like in every interface."""
    path = database("CREATE TABLE t AS SELECT 1 AS who, 2 AS item")
    with contextlib.closing(DuckDBEngine(path)) as engine:
        for request in (
            HeadRequest("woh", ("item",), 1),
            HeadRequest("who", ("tiem",), 1),
            HeadRequest("who", (), 1, IsNull("tiem")),
            HeadRequest("who", (), 1, summed=SumBounds(Fraction(0), Fraction(1), column="tiem")),
            HeadRequest("who", ("start",), 1, derived=(Derived("start", "tiem", 7),)),
        ):
            with pytest.raises(UnknownColumn, match="did you mean"):
                engine.check(request)


@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
def test_nanoseconds_before_the_end_of_a_period_are_in_it(engine, zone):
    """DuckDB casts nanoseconds to the nearest microsecond, which may be in the next period."""
    edges = [datetime.datetime(1970, 1, 1), datetime.datetime(1969, 12, 1), datetime.datetime(2024, 1, 1)]
    microseconds = [(edge - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1) for edge in edges]
    apart = (-1001, -1000, -999, -501, -500, -1, 0, 1, 499, 500, 999)
    nanoseconds = [1000 * edge + size for edge in microseconds for size in apart]
    times = pa.array(nanoseconds, pa.int64()).cast(pa.timestamp("ns", zone))
    cut = pa.array([nanosecond // 1000 for nanosecond in nanoseconds], pa.int64()).cast(pa.timestamp("us"))
    derived = tuple(Derived(each, "at", each) for each in get_args(Period))
    for items in (("at",), get_args(Period)):
        request = HeadRequest("row", items, 99, derived=derived)
        expected = reference_head(pa.table({"row": range(len(cut)), "at": cut}), request)
        assert rows_of(engine(pa.table({"row": range(len(cut)), "at": times})), request) == expected


def test_files_have_a_version_and_frames_have_none(engine, database):
    """The version changes with the file and not with its contents."""
    path = database('CREATE TABLE t AS SELECT 1 AS "user", 2 AS item')
    versions = []
    for _ in range(2):
        with contextlib.closing(DuckDBEngine(path)) as opened:
            versions += [opened.data_version(), opened.data_version()]
        database("INSERT INTO t VALUES (2, 2)")
    assert versions[0] == versions[1] != versions[2] == versions[3]
    assert str(path) in versions[0]
    assert engine(pa.table({"user": [1]})).data_version() is None


def test_progress_grows_during_a_count(tmp_path, engine):
    """DuckDB reports progress only if its progress bar is enabled."""
    with duckdb.connect(str(tmp_path / "t.db")) as connection:
        connection.execute(
            'CREATE TABLE t AS SELECT hash(range) % 1000003 AS "user", range % 9973 AS item FROM range(8000000)'
        )
    shares = []
    engine(tmp_path / "t.db").head(HeadRequest("user", ("item",), 10), progress=shares.append)
    assert len({share for share in shares if 0 < share < 1}) > 1


def test_infinite_dates_are_missing(tmp_path, head):
    """Infinite dates and timestamps are no labels, since neither other engines nor calendars have them."""
    path = tmp_path / "times.db"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "CREATE TABLE t AS SELECT * FROM (VALUES (1, DATE '2024-01-01', TIMESTAMP '2024-01-01'), "
            "(2, 'infinity', '-infinity'), (3, '-infinity', 'infinity')) AS v(user, day, moment)"
        )
    assert head(path, "day") == [((datetime.date(2024, 1, 1),), 1)]
    assert head(path, "moment") == [((datetime.datetime(2024, 1, 1),), 1)]
    assert head(path, "day", keep_missing=True) == [((None,), 2), ((datetime.date(2024, 1, 1),), 1)]


def test_timestamps_with_a_zone_are_compared_in_utc(tmp_path, head, monkeypatch):
    """Two machines in different zones count the same rows."""
    monkeypatch.setenv("TZ", "America/New_York")
    path = tmp_path / "zones.db"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "CREATE TABLE t AS SELECT 1 AS user, 'a' AS item, TIMESTAMPTZ '2024-01-02 02:00:00+00' AS at"
        )
    assert head(path, where="\"at\" >= DATE '2024-01-02'") == [(("a",), 1)]
    assert head(path, where="\"at\" < DATE '2024-01-02'") == []


@pytest.mark.parametrize(
    "type_", ["DECIMAL(38, 2)", "DECIMAL(20, 19)", "DECIMAL(20, 20)", "DECIMAL(19, 18)", "HUGEINT", "DOUBLE", "VARCHAR"]
)
def test_only_numbers_that_cannot_overflow_are_summed(tmp_path, head, type_):
    """Types are refused by their range, because an overflow error would reveal a value."""
    path = tmp_path / "sums.db"
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TABLE t AS SELECT 1 AS user, 'a' AS item, CAST(0 AS {type_}) AS x")
    with pytest.raises(InputError, match="column 'x' cannot be summed"):
        head(path, summed=SumBounds(Fraction(0), Fraction(1), column="x"))


@pytest.mark.parametrize(
    ("type_", "extreme"),
    [("DECIMAL(20, 16)", "9999.9999999999999999"), ("DECIMAL(18, 18)", "0.999999999999999999"), ("UBIGINT", 2**64 - 1)],
)
def test_sums_of_extreme_values_do_not_overflow(tmp_path, head, type_, extreme):
    """Extreme values of the widest summable types cause no error, which would reveal them."""
    path = tmp_path / "sums.db"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            f"CREATE TABLE t AS SELECT range AS user, 'a' AS item, CAST('{extreme}' AS {type_}) AS x FROM range(9)"
        )
    scale = len(str(extreme).partition(".")[2])
    assert head(path, summed=SumBounds(Fraction(0), Fraction(1, 10**scale), scale, column="x")) == [(("a",), 9, 9)]


def test_sums_too_large_for_the_result_saturate(head):
    """Sums saturate at 2^62, so that no single user decides whether there is an answer."""
    table = pa.table({"user": range(5), "item": ["a"] * 5, "x": [2**63 - 1] * 5})
    for rows, total in ((1, 2**61), (2, 2**62), (5, 2**62)):
        assert head(table.slice(0, rows), summed=SumBounds(Fraction(0), Fraction(2**61), column="x")) == [
            (("a",), rows, total)
        ]
        negative = SumBounds(Fraction(-(2**62)), Fraction(-(2**61)), column="x")
        assert head(table.slice(0, rows), summed=negative) == [(("a",), rows, -total)]


def test_weighted_sums_too_large_for_the_result_saturate(head):
    """The product of a sum and its weight is no BIGINT from 2^55 on, and one user could have it."""
    table = pa.table({"user": range(3), "item": ["a"] * 3, "x": [2**62, 2**61, 1]})
    summed = SumBounds(Fraction(0), Fraction(2**62), private=True, column="x")
    assert head(table, summed=summed) == [(("a",), 3, 2**62)]


EXTREMES = ["9999-12-31", "0001-01-01", "infinity", "-infinity", "290000-12-31", "0044-03-15 (BC)", "1677-09-22"]


@pytest.mark.parametrize("type_", ["DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMPTZ"])
def test_no_timestamp_decides_whether_there_is_an_answer(tmp_path, type_):
    """Timestamps outside the years 1 to 9999 are missing, as in every engine, and cause no error."""
    path, no_filter = tmp_path / "times.db", '"{}" >= \'0001-01-02\' OR "{}" < \'9999-01-01\' OR "{}" IS NULL'
    casts = ", ".join(
        f"TRY_CAST(if(user = 1, '2024-02-29', '{text}') AS {type_}) AS at{n}" for n, text in enumerate(EXTREMES)
    )
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TABLE t AS SELECT user, {casts} FROM (VALUES (1), (2)) AS v(user)")
    with contextlib.closing(DuckDBEngine(path)) as engine:

        def counted(column, **parts):
            return sum(count for _, count in rows_of(engine, HeadRequest("user", (column,), 10, **parts)))

        for n, extreme in enumerate(EXTREMES):
            shown = 1 if extreme in {"infinity", "-infinity", "290000-12-31", "0044-03-15 (BC)"} else 2
            if type_ == "TIMESTAMP_NS" and extreme in {"9999-12-31", "0001-01-01"}:  # DuckDB has no such timestamp
                shown = 1
            where = bind_where(parse_where(no_filter.replace("{}", f"at{n}")), engine.columns())
            for groups in (None, 1):
                assert counted(f"at{n}", groups_per_user=groups) == shown, extreme
                assert counted(f"at{n}", groups_per_user=groups, where=where) == shown, extreme
                assert counted(f"at{n}", groups_per_user=groups, keep_missing=True) == 2, extreme
