"""Check that no user decides whether there is an answer, or moves a count by more than one, in random requests."""

from __future__ import annotations

import contextlib
import csv
import datetime
import importlib.util
import math
import os
import random
import shutil
import sys
import tempfile
import time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from discreet.engines.duckdb import DuckDBEngine
from discreet.testing.outcomes import USER, check_outcomes, select
from tests.parquet_footers import make_old

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
_TIMES = ["'2024-02-29'", "'0001-01-01'", "'9999-12-31 23:59:59'", "'infinity'", "'-infinity'", "'0044-03-15 (BC)'"]
_FLOATS = ["'0.5'", "'nan'", "'inf'", "'-inf'", "'-0.0'", "'1e-45'", "'3e38'", "NULL"]
_TEXTS = ["'a'", "''", "repeat('x', 1048576)", "'a' || chr(0) || 'b'", "chr(1114111)", "'NaN'", "'a '", "NULL"]


def _decimals(digits: int, scale: int) -> list[str]:
    digit = f"0.{'0' * (scale - 1)}1" if scale else "1"
    most = f"{'9' * (digits - scale)}.{'9' * scale}"
    return ["0", f"'{most}'", f"'-{most}'", f"'{digit}'", "NULL"]


TYPES: Mapping[str, list[str]] = {
    **{name: ["7", f"'{-(2 ** (bits - 1))}'", f"'{2 ** (bits - 1) - 1}'", "NULL"] for name, bits in _INTEGERS.items()},
    **{f"U{name}": ["7", "0", f"'{2**bits - 1}'", "NULL"] for name, bits in _INTEGERS.items()},
    **{
        f"DECIMAL({digits}, {scale})": _decimals(digits, scale)
        for digits, scale in (
            (4, 1),
            (9, 2),
            (18, 3),
            (18, 18),
            (20, 0),
            (20, 16),
            (20, 19),
            (20, 20),
            (38, 0),
            (38, 38),
        )
    },
    "FLOAT": _FLOATS,
    "DOUBLE": [*_FLOATS, "'1.7e308'", "'5e-324'"],
    "VARCHAR": _TEXTS,
    "BLOB": ["'a'", "''", "NULL"],
    "UUID": ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "NULL"],
    "ENUM('a', '', '1')": ["'a'", "''", "'1'", "NULL"],
    "BOOLEAN": ["true", "false", "NULL"],
    "DATE": [*_TIMES, "'5877642-06-25 (BC)'", "'5881580-07-10'", "NULL"],
    "TIMESTAMP": [*_TIMES, "'290309-12-22 (BC) 00:00:00'", "'294247-01-10 04:00:54.775806'", "NULL"],
    "TIMESTAMP_S": [*_TIMES, "'290309-12-22 (BC) 00:00:00'", "'294247-01-10 04:00:54'", "NULL"],
    "TIMESTAMP_MS": [*_TIMES, "'290309-12-22 (BC) 00:00:00'", "'294247-01-10 04:00:54'", "NULL"],
    "TIMESTAMP_NS": ["'2024-02-29'", "'1677-09-22'", "'2262-04-11 23:47:16'", "'infinity'", "'-infinity'", "NULL"],
    "TIMESTAMPTZ": [*_TIMES, "'294247-01-10 04:00:54+00'", "NULL"],
    "TIME": ["'12:00:00'", "'00:00:00'", "'24:00:00'", "NULL"],
    "INTERVAL": ["'1 day'", "'2000000000 months'", "NULL"],
    "TIMESTAMPTZ_NS": ["'2024-02-29'", "'1677-09-22'", "'2262-04-11 23:47:16'", "'infinity'", "'-infinity'", "NULL"],
    "BIT": ["'1'", "'0101'", "repeat('1', 1000)", "NULL"],
    "JSON": ["'1'", "'null'", "'\"a\"'", "NULL"],
    "BIGNUM": ["1", "repeat('9', 1000)", "NULL"],
    "INTEGER[]": ["[1]", "[]", "[NULL]", "NULL"],
    "INTEGER[2]": ["[1, 2]", "[NULL, 2]", "NULL"],
    "STRUCT(a INTEGER)": ["{a: 1}", "{a: NULL}", "NULL"],
    "MAP(INTEGER, INTEGER)": ["MAP {1: 2}", "MAP {}", "NULL"],
    "UNION(a INTEGER, b VARCHAR)": ["1", "'1'", "NULL"],
}
"""DuckDB's types, with an ordinary value and extreme ones."""


def _database(folder: Path, extremes: bool) -> DuckDBEngine:
    path = folder / f"{extremes}.db"
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TABLE t AS {select(TYPES, extremes)}")
    return DuckDBEngine(path)


def _arrow_table(extremes: bool) -> pa.Table:
    """Return a table of Arrow's types with 64-bit extremes, some of which are outside every calendar."""
    integers = np.array([0, 2**63 - 1, -(2**63) + 1, 1, -1, 253_402_300_800, -62_135_596_801])
    rows = len(integers) if extremes else 1
    users = ["u1", "u2", "u3", *["z"] * (rows - 1)]
    columns = {"who": pa.array(users)}
    moments = [0, 0, 0, *integers[1:rows].tolist()]
    for unit in ("s", "ms", "us", "ns"):
        for zone in (None, "UTC", "America/New_York"):
            columns[f"{unit} {zone}"] = pa.array(moments, pa.timestamp(unit, zone))
    days = [min(max(moment, -(2**31)), 2**31 - 1) for moment in moments]
    columns["date32"] = pa.array(days, pa.int32()).cast(pa.date32())
    columns["decimal"] = pa.array([Decimal(0)] * 3 + [Decimal(10**20 - 1)] * (rows - 1), pa.decimal128(20, 0))
    columns["dictionary"] = pa.array(["a"] * 3 + ["", None, "é"] * 2).slice(0, len(users)).dictionary_encode()
    columns["large"] = pa.array(["a"] * 3 + ["\0", "x" * 2**20, None] * 2, pa.large_string()).slice(0, len(users))
    columns["uint64"] = pa.array([0] * 3 + [2**64 - 1] * (rows - 1), pa.uint64())
    columns["double"] = pa.array([0.0] * 3 + [float("nan"), float("inf"), -0.0] * 2).slice(0, len(users))
    return pa.table(columns)


def _arrow(folder: Path, extremes: bool) -> DuckDBEngine:
    del folder
    return DuckDBEngine(_arrow_table(extremes))


def _parquet(folder: Path, extremes: bool) -> DuckDBEngine:
    path = folder / f"{extremes}.parquet"
    table = _arrow_table(extremes)
    coarse = [name for name in table.column_names if name.startswith(("s ", "ms "))]  # refused when it is opened
    pq.write_table(table.drop_columns(coarse), path)
    return DuckDBEngine(path)


def _csv(folder: Path, extremes: bool) -> DuckDBEngine:
    path = folder / f"{extremes}.csv"
    texts = ["1", "", "9999-12-31", "-0001-01-01", "1e400", "nan", '"', "x\ny,z", "\0", "9" * 400, "infinity", "true"]
    rows = [("u1", "1", "1"), ("u2", "1", "1")]
    if extremes:
        rows += [("z", one, other) for one in texts for other in texts]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("who", "c0", "c1"), *rows])
    return DuckDBEngine(path)


_WRITTEN: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    "double": (pa.float64(), [*[math.nan] * 5, 0.0, -0.0, 0.5, 7.0, math.inf, -math.inf, None]),
    "float": (pa.float32(), [*[math.nan] * 3, 0.0, 7.0, -math.inf, None]),
    "text": (pa.string(), [*["a"] * 3, *["é"] * 2, "b", "z", "a\0", "", "NaN", "\U0010ffff", "x" * 1000, None]),
    "long": (pa.int64(), [0, 7, -1, 2**63 - 1, -(2**63), None]),
    "unsigned": (pa.uint32(), [0, 7, 2**31, 2**32 - 1, None]),
    "widest": (pa.uint64(), [0, 7, 2**63, 2**64 - 1, None]),
    "small": (pa.int8(), [0, 7, -128, 127, None]),
    "decimal": (pa.decimal128(9, 2), [Decimal("0.50"), Decimal("-7.25"), Decimal("9999999.99"), None]),
    "wide": (pa.decimal128(38, 2), [Decimal("0.50"), Decimal(10**35), Decimal(-(10**35)), None]),
    "flag": (pa.bool_(), [True, False, None]),
    "day": (pa.date32(), [datetime.date(2024, 2, 29), datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]),
    "time": (
        pa.timestamp("us"),
        [datetime.datetime(2024, 2, 29, 12), datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23), None],
    ),
}
"""For each column of `random_neighbours`, its type and values."""


def random_neighbours(rng: random.Random) -> tuple[pa.Table, pa.Table]:
    """Return a table of users and four columns, and the table without the rows of one user.

    A stretch of rows has few values of each column, so that there are row groups with only NaN, only NULL or one value.
    """
    stretches, length = rng.choice([1, 1, 2, 4]), rng.choice([1, 20, 1200])
    rows = stretches * length
    places = [rng.choice([0, rng.randrange(rows), rows]) for _ in range(rng.choice([1, 1, 3, 12]))]
    users = [f"u{rng.randrange(rows)}" for _ in range(rows)]
    for place in places:
        users.insert(place, _OWN)
    columns = {USER: pa.array(users)}
    for name in rng.sample([*_WRITTEN], 4):
        type_, values = _WRITTEN[name]
        drawn = [
            value
            for _ in range(stretches)
            for value in rng.choices(rng.sample(values, rng.choice([1, 1, 2, 3])), k=length)
        ]
        for place in places:
            drawn.insert(place, rng.choice(values))
        columns[name] = pa.array(drawn, type_)
    table = pa.table(columns)
    return table, table.filter(pc.not_equal(table[USER], _OWN))


def _by_pyarrow(table: pa.Table, path: Path, rows: int) -> None:
    pq.write_table(table, path, row_group_size=rows)


def _by_old_writer(table: pa.Table, path: Path, rows: int) -> None:
    pq.write_table(table, path, row_group_size=rows)
    make_old(path)


def _by_polars(table: pa.Table, path: Path, rows: int) -> None:
    frame: Any = pl.from_arrow(table)
    frame.write_parquet(path, row_group_size=rows)


def _by_duckdb(table: pa.Table, path: Path, rows: int) -> None:
    with duckdb.connect() as connection:
        connection.register("given", table)
        connection.execute(f"COPY given TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE {rows})")


def _by_fastparquet(table: pa.Table, path: Path, rows: int) -> None:
    import fastparquet  # type: ignore[import-not-found]

    # Pandas makes other types of columns with missing values, and fastparquet bytes of its objects.
    written = table.select([name for name in table.column_names if name in {USER, "double", "float", "text"}])
    fastparquet.write(str(path), written.to_pandas(), row_group_offsets=rows, object_encoding="utf8")


def _by_spark(table: pa.Table, path: Path, rows: int) -> None:
    from pyspark.sql import SparkSession

    # Spark has no unsigned integers.
    written = table.drop_columns([name for name in table.column_names if name in {"unsigned", "widest"}])
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    builder = SparkSession.builder.master("local[1]").config(map=settings)
    frame = builder.getOrCreate().createDataFrame(written).coalesce(1)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        frame.write.mode("overwrite").option("parquet.block.row.count.limit", str(rows)).parquet(folder)
        (part,) = Path(folder).glob("part-*.parquet")
        part.replace(path)


WRITERS: dict[str, Callable[[pa.Table, Path, int], None]] = {
    "pyarrow": _by_pyarrow,
    "old writers": _by_old_writer,
    "polars": _by_polars,
    "DuckDB": _by_duckdb,
}
"""For each writer of Parquet files, a function that writes a table in row groups of a number of rows."""

if importlib.util.find_spec("fastparquet"):
    WRITERS["fastparquet"] = _by_fastparquet
if importlib.util.find_spec("pyspark") and shutil.which("java"):
    WRITERS["Spark"] = _by_spark

Pair = tuple[DuckDBEngine, DuckDBEngine]
_OWN = "own"
"""The user whose rows only one of two tables has."""


def _extremes(opened: Callable[[Path, bool], DuckDBEngine]) -> Callable[[Path, random.Random], Pair]:
    return lambda folder, _: (opened(folder, True), opened(folder, False))


def _written(writer: str) -> Callable[[Path, random.Random], Pair]:
    def opened(folder: Path, rng: random.Random) -> Pair:
        rows = rng.choice([1, 20, 1200, 2048, 10_000])
        table, rest = random_neighbours(rng)
        engines = []
        for name, part in (("with", table), ("without", rest)):
            path = folder / f"{name}.parquet"
            WRITERS[writer](part, path, max(rows, len(part) // 50))
            engines.append(DuckDBEngine(path))
        return engines[0], engines[1]

    return opened


def _in_memory(folder: Path, rng: random.Random) -> Pair:
    del folder
    table, rest = random_neighbours(rng)
    return DuckDBEngine(table), DuckDBEngine(rest)


def _tables(folder: Path, rng: random.Random) -> Pair:
    engines = []
    for name, part in zip(("with", "without"), random_neighbours(rng), strict=True):
        path = folder / f"{name}.duckdb"
        path.unlink(missing_ok=True)
        with duckdb.connect(str(path)) as connection:
            connection.register("given", part)
            connection.execute("CREATE TABLE t AS FROM given")
        engines.append(DuckDBEngine(path))
    return engines[0], engines[1]


SOURCES: Mapping[str, Callable[[Path, random.Random], Pair]] = {
    "types in a DuckDB file": _extremes(_database),
    "types in Arrow": _extremes(_arrow),
    "types in Parquet": _extremes(_parquet),
    "CSV": _extremes(_csv),
    **{f"Parquet by {writer}": _written(writer) for writer in WRITERS},
    "Arrow": _in_memory,
    "a DuckDB file": _tables,
}
"""For each kind of source, a function that opens engines on a table with a user of extreme rows, and without."""


def check_source(source: str, rng: random.Random, requests: int) -> None:
    """Compare engines on new neighbouring tables of a source by random requests.

    Raises:
        AssertionError: as `check_outcomes`.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        engines = SOURCES[source](Path(folder), rng)
        for engine in engines:
            stack.callback(engine.close)
        check_outcomes(*engines, rng, requests)


def run() -> Iterator[str]:
    """Requests whose answers are neighbours with and without one user (DISCREET_FUZZ_SECONDS, 60 by default)."""
    seconds = float(os.environ.get("DISCREET_FUZZ_SECONDS", "60")) / len(SOURCES)
    yield "| source | seed | requests | differ by more |"
    yield "| --- | --- | --- | --- |"
    for name in SOURCES:
        first = seed = int.from_bytes(os.urandom(4), "big")
        end, requests = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            try:
                check_source(name, random.Random(seed), 20)  # noqa: S311 - of test data
            except AssertionError:
                print(f"{name}: seed {seed}", file=sys.stderr)
                raise
            requests += 20
            seed += 1
        yield f"| {name} | {first} | {requests:,} | 0 |"
