"""The heads of 50 segments in one statement, compared with a statement for each segment."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.engines import loaded
from benchmarks.timing import table
from discreet.engines.duckdb import DuckDBEngine
from discreet.engines.opening import open_engine
from discreet.head_request import Comparison, Constant, HeadRequest, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from discreet.engines.base import SqlEngine

ROWS, USERS, COUNTRIES = 5_000_000, 500_000, 50
SERVERS = ("postgres", "clickhouse", "trino", "spark")
_ROUNDS = 3
_SEED = b"s" * 32


def run() -> list[str]:
    """Heads of 50 countries of Zipf sizes, 5 million rows, 500,000 users, 1 % of them with two countries, on DuckDB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reads.parquet"
        _write(path, ROWS, USERS)
        engine = DuckDBEngine(str(path))
        each, alone = _requests()

        measured: dict[str, Callable[[], object]] = {
            f"{COUNTRIES} statements": lambda: [engine.head(request) for request in alone],
            "one statement": lambda: engine.head(each, seed=_SEED),
            "one statement, nothing enforced": lambda: _not_enforced(engine, each),
        }
        seconds = {name: min(_timed(work) for _ in range(_ROUNDS)) for name, work in measured.items()}
    first = next(iter(seconds.values()))
    rows = [[name, f"{took:.2f}", f"{first / took:.1f}"] for name, took in seconds.items()]
    return table(["", "s", "times as fast"], rows)


def servers() -> list[str]:
    """A fifth of the rows and users of `each`, on servers: the least of two runs of each form, in turns."""
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        for name in SERVERS:
            cells.append(server(name, Path(folder) / name))
            print(*cells[-1], file=sys.stderr, flush=True)
    return table(["", f"{COUNTRIES} statements, s", "one statement, s", "nothing enforced, s", "times as fast"], cells)


def server(name: str, folder: Path) -> list[str]:
    """Return the name of a server, the seconds of the three forms, and the ratio of the first two."""
    folder.mkdir(parents=True)
    _write(folder / "reads.parquet", ROWS // 5, USERS // 5)
    each, alone = _requests()
    with (
        loaded(name, folder / "server", pq.read_table(folder / "reads.parquet")) as url,
        contextlib.closing(cast("SqlEngine[Any, Any]", open_engine(url, table="engagements"))) as engine,
    ):
        engine.head(each, seed=_SEED)  # warms up, like the next
        engine.head(alone[0])
        forms: list[Callable[[], object]] = [
            lambda: [engine.head(request) for request in alone],
            lambda: engine.head(each, seed=_SEED),
            lambda: _not_enforced(engine, each),
        ]
        rounds = [[_timed(form) for form in forms] for _ in range(2)]
    apart, together, plain = map(min, zip(*rounds, strict=True))
    return [name, f"{apart:.1f}", f"{together:.1f}", f"{plain:.1f}", f"{apart / together:.1f}"]


def _not_enforced(engine: SqlEngine[Any, Any], request: HeadRequest) -> None:
    """Count a user in every segment, to see what a single segment of each user costs."""
    with engine._connection() as connection:
        statement = engine._prepared(connection, request, _SEED)
        statement.rows = statement._listed_rows
        engine._run(connection, statement, None)


def _requests() -> tuple[HeadRequest, list[HeadRequest]]:
    """Return the request of all segments, and one for each label."""
    names = [f"C{n:02d}" for n in range(COUNTRIES)]
    labels = pa.table({"country": names})
    each = HeadRequest("member", ("country", "article"), 1_000, each=("country",), segments=labels)
    alone = HeadRequest("member", ("article",), 1_000)
    wheres = [Comparison("country", "=", Constant(Kind.TEXT, name)) for name in names]
    return each, [dataclasses.replace(alone, where=where) for where in wheres]


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _write(path: Path, rows: int, users: int) -> None:
    database = duckdb.connect()
    database.execute("SELECT setseed(0.5)")
    database.execute(f"""
        CREATE TABLE sizes AS
          SELECT i AS c, sum(1 / (i + 1)) OVER (ORDER BY i) / sum(1 / (i + 1)) OVER () AS above
          FROM range({COUNTRIES}) r(i);
        CREATE TABLE members AS
          SELECT u AS member, c, CASE WHEN random() < 0.01 THEN floor(random() * {COUNTRIES})::INT END AS other
          FROM (SELECT u, random() AS x FROM range({users}) r(u)) ASOF JOIN sizes ON x <= above;
        COPY (
          SELECT member,
                 'C' || lpad((CASE WHEN random() < 0.5 THEN c ELSE coalesce(other, c) END)::VARCHAR, 2, '0') AS country,
                 'article ' || floor(20000 * pow(random(), 3))::INT AS article
          FROM (SELECT floor({users} * random())::BIGINT AS member FROM range({rows})) JOIN members USING (member)
        ) TO '{path}'
    """)
