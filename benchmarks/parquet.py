"""What it costs to disable DuckDB's optimizers that use the statistics in Parquet files: CPU seconds of processes."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import duckdb

import discreet
from benchmarks.budget import FOLDER
from benchmarks.timing import processes_in_turns, table
from discreet.engines import duckdb_source

ROWS = int(os.environ.get("DISCREET_ROWS", "4000000"))
ROUNDS = 3
_PAIRS = f"""
SELECT DISTINCT hash(i, 1) % 400_000 AS reader,
    CAST(250_000 * pow((hash(i, 2) % 1_000_000) / 1e6, 3) AS BIGINT) AS page,
    CAST(hash(reader, page) % 360 AS INTEGER) AS day
FROM range({ROWS}) AS t(i) ORDER BY day"""
CASES: dict[str, str | None] = {
    "head": None,
    "two rounds": None,
    "head, half of the rows": "day < 180",
    "head, a 360th of the rows": "day = 90",
}
"""The filter of each case."""


def run() -> list[str]:
    """Return a table of the median CPU seconds of three processes each, which alternate."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        path = Path(folder) / "reads.parquet"
        duckdb.execute(f"COPY ({_PAIRS}) TO '{path}' (FORMAT parquet)")
        ((pairs,),) = duckdb.execute(f"SELECT count(*) FROM '{path}'").fetchall()
        rows = []
        for case in CASES:
            words = [sys.executable, "-m", "benchmarks.parquet", str(path), case]
            disabled, enabled = processes_in_turns([[*words, "disabled"], [*words, "enabled"]], ROUNDS)
            ratio = disabled.cpu / enabled.cpu
            rows.append([case, f"{disabled.cpu:.2f}", f"{enabled.cpu:.2f}", f"{ratio:.2f}"])
    return [f"{pairs:,} distinct pairs, sorted by day", *table(["what", "disabled", "enabled", "ratio"], rows)]


def main() -> None:
    """Release once, in a process that `run` measures."""
    path, case, optimizers = sys.argv[1:]
    if optimizers == "enabled":
        duckdb_source._OPTIMIZERS = ""
    reads = discreet.scan(path, user="reader")
    if case == "two rounds":
        reads.release("page", epsilon=1, delta=1e-8)
    else:
        kept = reads if CASES[case] is None else reads.where(CASES[case])
        kept.top("page", k=100, epsilon=1, delta=1e-8)


if __name__ == "__main__":
    main()
