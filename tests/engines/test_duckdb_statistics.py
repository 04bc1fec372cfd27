"""Statistics decide no count: those in Parquet files, whatever wrote them, and those of DuckDB's own tables.

Each source is read with and without the rows of one more user, who may change every count by at most one. DuckDB's
optimizers have no stable names, so these tests, and not the names, show that those which trust statistics are disabled.
"""

from __future__ import annotations

import contextlib
import math
import struct
from decimal import Decimal

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from discreet.engines.duckdb import DuckDBEngine
from discreet.errors import InputError
from discreet.head_request import HeadRequest
from discreet.query.predicates import bind_where
from discreet.query.sql import parse_where
from discreet.testing.engines import rows_of
from tests.parquet_footers import (
    BINARY,
    BYTE,
    CONVERTED_TYPE,
    FALSE,
    I32,
    I64,
    LOGICAL_TYPE,
    MAX,
    NULL_COUNT,
    OLD_MAX,
    SCHEMA,
    STATISTICS,
    STRUCT,
    TRUE,
    change,
    chunks,
    make_old,
)

USERS = 3000
NAN_FILTERS = ["x > 1", "x < 1", "x <> 7", "x IS NULL", "x IS NOT NULL", "NOT x IN (1, 2)"]
TEXT_FILTERS = ["page = 'b'", "page IN ('b', 'z')", "page < 'c'", "page >= 'b' AND page <> 'c'", "NOT page = 'c'"]


def _by_pyarrow(table, path, rows):
    pq.write_table(table, path, row_group_size=rows)


def _by_polars(table, path, rows):
    pl.from_arrow(table).write_parquet(path, row_group_size=rows)


def _by_duckdb(table, path, rows):
    with duckdb.connect() as connection:
        connection.register("given", table)
        connection.execute(f"COPY given TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE {rows})")


WRITERS = {"pyarrow": _by_pyarrow, "polars": _by_polars, "duckdb": _by_duckdb}


def table_of(**columns):
    """Make a table with a user of each row and one item."""
    rows = len(next(iter(columns.values())))
    return pa.table({"user": [f"u{n:05}" for n in range(rows)], "item": ["i"] * rows, **columns})


@pytest.fixture
def counts(tmp_path, head):
    """Return a function that counts, by each filter, all rows of a table but the last and all of them, in files."""

    def count(table, filters, write, edit=None, **parts):
        items = ("page", "item") if "each" in parts else ("item",)
        found = {}
        for name, rows in (("without", len(table) - 1), ("with", len(table))):
            path = tmp_path / f"{name}.parquet"
            write(table.slice(0, rows), path, 2048)
            if edit is not None:
                edit(path)
            for where in filters:
                found.setdefault(where, []).append(sum(n for *_, n in head(path, *items, where=where, **parts)))
        return found

    return count


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("type_", [pa.float64(), pa.float32()], ids=str)
def test_nan_is_missing_in_files_whose_statistics_leave_it_out(counts, writer, type_):
    """Writers leave NaN out of bounds, and write none for NaN only; 0.0 of one user changes no filter of the others."""
    only = table_of(x=pa.array([math.nan] * USERS + [0.0], type_))
    late = table_of(x=pa.array([math.nan, 1.0] * 1024 + [None] * 40 + [0.0], type_))
    for table, missing in ((only, USERS), (late, 1024 + 40)):
        found = counts(table, NAN_FILTERS, WRITERS[writer])
        present = len(table) - 1 - missing
        assert found["x > 1"] == [0, 0]
        assert found["x IS NULL"] == [missing, missing]
        assert found["x IS NOT NULL"] == [present, present + 1]
        assert found["x < 1"] == [0, 1]
        assert found["x <> 7"] == [present, present + 1]
        assert found["NOT x IN (1, 2)"] == [0, 1]


@pytest.mark.parametrize("pages", [["b", "c", "é"], ["ab", "bz", "aé"]], ids=["reversed", "in order"])
def test_text_is_found_in_files_of_old_writers(counts, pages):
    """Signed bounds of text empty no row group, also where they are in order: `aé` lies below `ab` in signed bytes."""
    first, second, own = pages
    table = table_of(page=[first, second] * (USERS // 2) + [own])
    filters = [text.replace("'b'", f"'{first}'").replace("'c'", f"'{second}'") for text in TEXT_FILTERS]
    found = counts(table, filters, _by_pyarrow, make_old)
    half = USERS // 2
    assert found[filters[0]] == [half, half]
    assert found[filters[1]] == [half, half]
    for with_, without in found.values():
        assert 0 <= without - with_ <= 1


def test_segments_of_old_files_are_not_pruned(counts):
    """The join with the listed segments is pushed into the scan as bounds, in which `é` has a place, too."""
    table = table_of(page=["ab", "bz"] * (USERS // 2) + ["aé"])
    segments = pa.table({"page": ["ab"]})
    found = counts(table, [None], _by_pyarrow, make_old, each=("page",), segments=segments)
    assert found[None] == [USERS // 2, USERS // 2]


def _as_table(table, path):
    """Write a DuckDB file whose row groups are as small as they can be."""
    path.unlink(missing_ok=True)
    with duckdb.connect() as connection:
        connection.register("given", table)
        connection.execute(f"ATTACH '{path}' AS own (ROW_GROUP_SIZE 2048); CREATE TABLE own.t AS FROM given")
    return path


def _as_changed_table(table, path):
    """Write a DuckDB file that held more rows and other values: its statistics are those of both."""
    more = pa.concat_tables([table, table.slice(0, 1)])
    with duckdb.connect(str(_as_table(more, path))) as connection:
        connection.execute("UPDATE t SET item = 'j'; UPDATE t SET item = 'i'; CHECKPOINT")
        connection.execute("DELETE FROM t WHERE rowid = (SELECT max(rowid) FROM t); CHECKPOINT")
    return path


def _as_parquet(table, path):
    pq.write_table(table, path, row_group_size=2048)
    return path


OWN = {
    "frame": (lambda table, _: table, None),
    "view of a frame": (lambda table, _: table, "SELECT * FROM source"),
    "table": (_as_table, None),
    "changed table": (_as_changed_table, None),
    "view of a table": (_as_table, "SELECT * FROM t"),
    "view of a file": (_as_parquet, "SELECT * FROM source"),
}


@pytest.mark.parametrize("kind", OWN)
def test_one_user_moves_counts_of_frames_tables_and_views_by_one(tmp_path, kind):
    """NaN, and NULL, in row groups of their own, and text whose order signed bytes would change."""
    write, view = OWN[kind]
    x = [math.nan, 1.0] * 1024 + [None] * 40 + [0.0]
    page = ["b"] * 2048 + ["c"] * 40 + ["é"]
    table = table_of(x=x, page=page)
    found = {}
    for rows in (len(table) - 1, len(table)):
        with contextlib.closing(DuckDBEngine(write(table.slice(0, rows), tmp_path / "t.own"), view=view)) as opened:
            for where in [*NAN_FILTERS, *TEXT_FILTERS]:
                bound = bind_where(parse_where(where), opened.columns())
                count = sum(n for *_, n in rows_of(opened, HeadRequest("user", ("item",), 10, bound)))
                found.setdefault(where, []).append(count)
    expected = {
        "x > 1": (0, 0),
        "x < 1": (0, 1),
        "x <> 7": (1024, 1),
        "x IS NOT NULL": (1024, 1),
        "x IS NULL": (1064, 0),
    }
    expected |= {
        "NOT x IN (1, 2)": (0, 1),
        "page = 'b'": (2048, 0),
        "page < 'c'": (2048, 0),
        "NOT page = 'c'": (2048, 1),
    }
    expected |= {"page IN ('b', 'z')": (2048, 0), "page >= 'b' AND page <> 'c'": (2048, 1)}
    assert found == {where: [n, n + own] for where, (n, own) in expected.items()}


def claim(path, column, statistics):
    """Put fields into the statistics of a column."""

    def edit(footer):
        for name, metadata in chunks(footer):
            if name == column:
                metadata[STATISTICS][1].update(statistics)

    change(path, edit)


def test_bounds_that_are_too_low_hide_no_row(tmp_path, engine, head):
    """Bounds neither prune row groups, nor size a hash table, nor answer a MAX of the owner's."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"user": range(300), "item": [n % 200 for n in range(300)]}), path)
    low = (BINARY, struct.pack("<q", 3))
    for column in ("user", "item"):
        claim(path, column, {MAX: low, OLD_MAX: low})
    assert len(head(path)) == 200
    assert [sum(n for *_, n in head(path, where=where)) for where in ("user > 100", "item IN (150, 151)")] == [199, 2]
    assert engine(path).fetch("SELECT max(user) AS n FROM source").to_pylist() == [{"n": 299}]


def test_missing_values_that_are_not_declared_are_missing(tmp_path, head):
    """A count of NULLs that is too low neither removes a test for NULL nor makes bytes of them."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"user": list("abcdef"), "item": ["x", None, "x", None, "y", "x"]}), path)
    claim(path, "item", {NULL_COUNT: (I64, 0)})
    assert head(path) == [(("x",), 3), (("y",), 1)]
    assert head(path, "user", where="item IS NULL") == [(("b",), 1), (("d",), 1)]


def test_values_that_are_declared_missing_are_refused(tmp_path, engine):
    """DuckDB does not read a row group whose statistics say that all is NULL; one more row would bring it back."""
    path = tmp_path / "t.parquet"
    missing = pa.array([None] * 6, pa.string())
    pq.write_table(pa.table({"user": list("abcdef"), "item": ["x", None, "x", None, "y", "x"], "a.b": missing}), path)
    engine(path)
    claim(path, "item", {NULL_COUNT: (I64, 6)})
    with pytest.raises(
        InputError, match=r"^'.*t\.parquet' is malformed: its statistics say that column 'item' holds no values"
    ):
        engine(path)


@pytest.mark.parametrize(
    ("converted", "bits", "signed"), [(15, 8, True), (11, 8, False), (16, 16, True), (12, 16, False)]
)
@pytest.mark.parametrize("cast", [None, {"user": "text"}], ids=str)
def test_users_are_not_cut_to_a_narrower_type(tmp_path, converted, bits, signed, cast):
    """DuckDB cuts 257 to 1 in a column of 32 bits that is annotated to have 8: two users would be one."""
    path = tmp_path / "t.parquet"
    table = pa.table({"user": pa.array([1, 257, 65537], pa.int32()), "item": ["x"] * 3})
    pq.write_table(table, path, store_schema=False)

    def edit(footer):
        column = footer[SCHEMA][1][1][1]
        column[CONVERTED_TYPE] = (I32, converted)
        integer = {1: (BYTE, bits), 2: (TRUE if signed else FALSE, None)}
        column[LOGICAL_TYPE] = (STRUCT, {10: (STRUCT, integer)})

    change(path, edit)
    opened = DuckDBEngine(path, cast=cast)
    with pytest.raises(InputError, match="column 'user' has 8 or 16 bits"):
        opened.head(HeadRequest("user", ("item",), 10))
    with (
        pytest.raises(InputError, match="column 'user' has 8 or 16 bits"),
        opened.pairs(HeadRequest("user", ("item",), 1)),
    ):
        pass
    opened.close()


@pytest.mark.parametrize("as_integers", [True, False])
def test_decimals_that_exceed_their_type_are_refused(tmp_path, engine, as_integers):
    """DuckDB cuts 65537 to 1 in DECIMAL(4, 0); a sum of wider values than declared could overflow."""
    path = tmp_path / "t.parquet"
    values = pa.array([Decimal(1), Decimal(65537)], pa.decimal128(9, 0))
    table = pa.table({"user": values, "item": ["x"] * 2})
    pq.write_table(table, path, store_schema=False, store_decimal_as_integer=as_integers)
    engine(path)

    def edit(footer):
        column = footer[SCHEMA][1][1][1]
        column[8] = (I32, 4)  # the precision
        column[LOGICAL_TYPE] = (STRUCT, {5: (STRUCT, {1: (I32, 0), 2: (I32, 4)})})

    change(path, edit)
    with pytest.raises(InputError, match="cannot be read as the table it should be"):
        engine(path)
