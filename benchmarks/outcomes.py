"""Check that no row decides whether there is an answer: all DuckDB types at their extremes, in random requests."""

from __future__ import annotations

import contextlib
import csv
import os
import random
import tempfile
import time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from discreet.engines.duckdb import DuckDBEngine
from discreet.testing.outcomes import check_outcomes, select

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


SOURCES: Mapping[str, Callable[[Path, bool], DuckDBEngine]] = {
    "database": _database,
    "arrow": _arrow,
    "parquet": _parquet,
    "csv": _csv,
}
"""For each kind of source, a function that opens an engine on a table with or without a user of extreme rows."""


def run() -> Iterator[str]:
    """Requests with the same outcome with and without the rows of one user (DISCREET_FUZZ_SECONDS, 60 by default)."""
    seconds = float(os.environ.get("DISCREET_FUZZ_SECONDS", "60")) / len(SOURCES)
    yield "| source | seed | requests | outcomes that differ |"
    yield "| --- | --- | --- | --- |"
    for name, open_source in SOURCES.items():
        seed = int.from_bytes(os.urandom(4), "big")
        rng = random.Random(seed)  # noqa: S311 - of test data
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            engines = [
                stack.enter_context(contextlib.closing(open_source(Path(folder), extremes)))
                for extremes in (True, False)
            ]
            end, requests = time.monotonic() + seconds, 0
            while time.monotonic() < end:
                check_outcomes(*engines, rng, 20)
                requests += 20
        yield f"| {name} | {seed} | {requests:,} | 0 |"
