"""Columns of files and frames that are read as another type: no value may change, and all is checked at opening."""

from __future__ import annotations

import datetime
from decimal import Decimal

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from discreet.engines.duckdb import DuckDBEngine
from discreet.engines.opening import open_engine
from discreet.errors import InputError, UnknownColumn
from discreet.head_request import HeadRequest, Kind

REFUSED = "it holds a value that has no equal one of that type"


def column(values, **parts):
    """Return the kind and the labels, with missing ones, of a column x of a source, which is cast."""
    engine = open_engine(values, **parts)
    request = HeadRequest("u", ("x",), 100, keep_missing=True)
    found = engine.head(request).labels.column("x").to_pylist()
    return engine.columns()["x"], sorted(found, key=lambda label: (label is not None, label))


def csv_of(path, values):
    """Write a CSV file with the columns u and x, whose values are text."""
    path.write_text("u,x\n" + "".join(f"{place},{value}\n" for place, value in enumerate(values)))
    return path


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, lambda values: pa.table(values)])  # noqa: PLW0108
def test_floats_that_are_whole_numbers_are_integers_after_a_cast(frame):
    """As pandas holds ids with gaps: NaN and missing values stay missing."""
    values = frame({"u": [1, 2, 3, 4], "x": np.array([1.0, 2.0, -3.0, np.nan])})
    assert column(values, cast={"X": "integer"}) == (Kind.INTEGER, [None, -3, 1, 2])


@pytest.mark.parametrize(("type_", "largest"), [(np.float64, 2**53 - 1), (np.float32, 2**24 - 1)])
def test_the_largest_floats_that_are_one_whole_number_each_are_cast(type_, largest):
    """The next one is refused; NaN is missing in either size."""
    values = pa.table({"u": [1, 2, 3], "x": np.array([largest, -largest, np.nan], dtype=type_)})
    assert column(values, cast={"x": "integer"}) == (Kind.INTEGER, [None, -largest, largest])


def test_columns_are_cast_together_and_each_type_is_another_source(tmp_path):
    """Keyed noise depends on the name of the source, in which the new types are."""
    path = csv_of(tmp_path / "t.csv", ["7", "8"])
    engine = open_engine(path, cast={"x": "integer", "u": "decimal(3,1)"})
    assert engine.columns() == {"u": Kind.DECIMAL, "x": Kind.INTEGER}
    names = {open_engine(path, cast={"x": type_}).name for type_ in ("integer", "decimal(5,0)", "decimal(5,1)", "text")}
    assert len(names) == 4


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (np.array([1.0, 1.5]), "integer"),
        (np.array([1.0, np.inf]), "integer"),
        (np.array([2.0**53]), "integer"),
        (np.array([2.0**24], dtype=np.float32), "integer"),
        (np.array([1.239]), "decimal(18,2)"),
        (np.array([1e17]), "decimal(18,2)"),
        (np.array([2**62]), "decimal(18,2)"),
        (np.array(["2026-01-01T00:00:01"], dtype="datetime64[us]"), "date"),
    ],
)
def test_a_value_without_an_equal_one_is_refused_at_opening(values, type_):
    """Of a frame and of a Parquet file; also floats so large that two whole numbers are one of them."""
    with pytest.raises(InputError, match=REFUSED):
        open_engine(pa.table({"u": range(len(values)), "x": values}), cast={"x": type_})


def test_a_parquet_file_is_cast_as_it_is_read(tmp_path):
    """The file stays as it is, and its fingerprint is that of the file."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"u": [1, 2], "x": [19.99, 0.5]}), path)
    assert column(path, cast={"x": "decimal(6,2)"}) == (Kind.DECIMAL, [Decimal("0.50"), Decimal("19.99")])
    engine = open_engine(path, cast={"x": "decimal(6,2)"})
    assert (engine.scale("x"), engine.data_version()) == (2, open_engine(path).data_version())
    assert engine.name != open_engine(path).name, "keyed noise must differ: filters compare the column differently"


@pytest.mark.parametrize(
    ("written", "type_", "kind", "labels"),
    [
        (["7", "-3", ""], "integer", Kind.INTEGER, [None, -3, 7]),
        (["1.5", "-0.25"], "decimal(9,2)", Kind.DECIMAL, [Decimal("-0.25"), Decimal("1.50")]),
        (["7"], "decimal(1,0)", Kind.DECIMAL, [Decimal(7)]),
        (["0.25"], "decimal(2,2)", Kind.DECIMAL, [Decimal("0.25")]),
        (["9" * 38], "decimal(38,0)", Kind.DECIMAL, [Decimal("9" * 38)]),
        (["true", "FALSE"], "boolean", Kind.BOOLEAN, [False, True]),
        (["2026-02-28"], "date", Kind.DATE, [datetime.date(2026, 2, 28)]),
        (["2026-02-28 12:30"], "timestamp", Kind.TIMESTAMP, [datetime.datetime(2026, 2, 28, 12, 30)]),
        (["b", "a"], "text", Kind.TEXT, ["a", "b"]),
    ],
)
def test_text_of_csv_files_is_cast(tmp_path, written, type_, kind, labels):
    """An empty field stays missing, and the other columns stay without a type."""
    path = csv_of(tmp_path / "t.csv", written)
    assert column(path, cast={"x": type_}) == (kind, labels)
    assert open_engine(path, cast={"x": type_}).columns()["u"] is Kind.UNTYPED


@pytest.mark.parametrize(
    ("written", "type_"),
    [
        ("1.5", "integer"),
        ("007", "integer"),
        ("1e3", "integer"),
        (" 7", "integer"),
        ("9223372036854775808", "integer"),
        ("1.239", "decimal(9,2)"),
        ("12345678", "decimal(9,2)"),
        ("x", "decimal(9,2)"),
        ("1", "boolean"),
        ("2026-02-30", "date"),
        ("28.2.2026", "date"),
        ("2026-02-28 12:30:00+01", "timestamp"),
    ],
)
def test_text_that_is_not_of_the_type_is_refused(tmp_path, written, type_):
    """DuckDB would round 1.5, and make one user of 7 and 007."""
    path = csv_of(tmp_path / "t.csv", ["", written])
    with pytest.raises(InputError, match=REFUSED):
        open_engine(path, cast={"x": type_})


@pytest.mark.parametrize(
    ("cast", "message"),
    [
        ({"x": "int"}, "is cast to text, integer, decimal"),
        ({"x": "decimal"}, "is cast to text, integer, decimal"),
        ({"x": "decimal(39,2)"}, "is cast to text, integer, decimal"),
        ({"x": "decimal(2,3)"}, "is cast to text, integer, decimal"),
        ({"x": "VARCHAR); DROP TABLE t; --"}, "is cast to text, integer, decimal"),
        ({"x": None}, "is cast to text, integer, decimal"),
    ],
)
def test_only_known_types_are_cast_to(cast, message):
    """Each mistake is one sentence."""
    with pytest.raises(InputError, match=message):
        open_engine(pa.table({"u": [1], "x": [1]}), cast=cast)


def test_other_mistakes_of_casts_are_one_sentence():
    """A column that does not exist, a type that has no cast, and an engine that is no file."""
    with pytest.raises(UnknownColumn, match="there is no column to cast 'y'; the columns are 'u', 'x'"):
        open_engine(pa.table({"u": [1], "x": [1]}), cast={"y": "text"})
    with pytest.raises(InputError, match="cannot be cast"):
        open_engine(pa.table({"u": [1], "x": [[1]]}), cast={"x": "date"})
    with pytest.raises(InputError, match="cast others in a view"):
        open_engine("postgresql://reader@localhost/db?table=t", cast={"x": "text"})


def test_a_changed_file_is_refused_after_a_cast(tmp_path):
    """What is read is what was checked."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"u": [1], "x": [1.0]}), path)
    engine = DuckDBEngine(path, cast={"x": "integer"})
    pq.write_table(pa.table({"u": [1], "x": [1.5]}), path)
    assert engine.has_changed()


def test_a_column_of_a_duckdb_table_is_cast(tmp_path):
    """As of any file."""
    with duckdb.connect(str(tmp_path / "t.db")) as database:
        database.execute("CREATE TABLE t AS SELECT 1 AS u, 2::DOUBLE AS x")
    assert column(tmp_path / "t.db", cast={"x": "integer"}) == (Kind.INTEGER, [2])
