"""The heads of 50 segments in one statement, compared with a statement for each segment."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from benchmarks.timing import table
from discreet.engines.duckdb import DuckDBEngine, DuckDBStatement
from discreet.head_request import Comparison, Constant, HeadRequest, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, USERS, COUNTRIES = 5_000_000, 500_000, 50
_ROUNDS = 3
_SEED = b"s" * 32


class _NotEnforced(DuckDBStatement):
    """A statement that counts a user in every segment, to see what a single segment of each user costs."""

    def rows(self) -> str:
        return self._listed_rows()


def run() -> list[str]:
    """Heads of 50 countries of Zipf sizes, 5 million rows, 500,000 users, 1 % of them with two countries, on DuckDB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reads.parquet"
        _write(path)
        engine = DuckDBEngine(str(path))
        names = pa.array([f"C{n:02d}" for n in range(COUNTRIES)])
        each = HeadRequest(
            "member", ("country", "article"), 1_000, each=("country",), segments=pa.table({"country": names})
        )
        alone = [
            dataclasses.replace(
                HeadRequest("member", ("article",), 1_000),
                where=Comparison("country", "=", Constant(Kind.TEXT, name)),
            )
            for name in names.to_pylist()
        ]

        def without() -> None:
            with engine._connection() as connection:
                statement = engine._prepared(connection, each, _SEED)
                statement.__class__ = _NotEnforced
                engine._run(connection, statement, None)

        measured: dict[str, Callable[[], object]] = {
            f"{COUNTRIES} statements": lambda: [engine.head(request) for request in alone],
            "one statement": lambda: engine.head(each, seed=_SEED),
            "one statement, nothing enforced": without,
        }
        seconds = {name: min(_timed(work) for _ in range(_ROUNDS)) for name, work in measured.items()}
    first = next(iter(seconds.values()))
    rows = [[name, f"{took:.2f}", f"{first / took:.1f}"] for name, took in seconds.items()]
    return table(["", "s", "times as fast"], rows)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _write(path: Path) -> None:
    database = duckdb.connect()
    database.execute("SELECT setseed(0.5)")
    database.execute(f"""
        CREATE TABLE sizes AS
          SELECT i AS c, sum(1 / (i + 1)) OVER (ORDER BY i) / sum(1 / (i + 1)) OVER () AS above
          FROM range({COUNTRIES}) r(i);
        CREATE TABLE members AS
          SELECT u AS member, c, CASE WHEN random() < 0.01 THEN floor(random() * {COUNTRIES})::INT END AS other
          FROM (SELECT u, random() AS x FROM range({USERS}) r(u)) ASOF JOIN sizes ON x <= above;
        COPY (
          SELECT member,
                 'C' || lpad((CASE WHEN random() < 0.5 THEN c ELSE coalesce(other, c) END)::VARCHAR, 2, '0') AS country,
                 'article ' || floor(20000 * pow(random(), 3))::INT AS article
          FROM (SELECT floor({USERS} * random())::BIGINT AS member FROM range({ROWS})) JOIN members USING (member)
        ) TO '{path}'
    """)
