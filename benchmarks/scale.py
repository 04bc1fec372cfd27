"""Time and memory of releases as tables grow: `python -m benchmarks.scale --help`."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq

from benchmarks.engines import loaded
from benchmarks.processes import FOLDER
from benchmarks.timing import table
from discreet.engines.duckdb import DuckDBEngine
from discreet.engines.opening import open_engine
from discreet.errors import DiscreetError, InvariantViolated
from discreet.head_request import HeadRequest
from discreet.mechanisms.auto import Auto
from discreet.mechanisms.base import Request
from discreet.noise import SystemBits
from discreet.release.keys import RecordedPairs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ENGINES = ("duckdb", "spark", "clickhouse", "trino")
SIZES = (1_000_000, 10_000_000)
ANSWERS = {"release": None, "top": 100}
"""Values of k."""

_MEMORY = "4g"
_TICKS = os.sysconf("SC_CLK_TCK")


def run() -> list[str]:
    """Release and top 100 of tables of R rows, R / 10 users and R / 10 items; exponents between sizes of CPU time."""
    return measured(ENGINES, SIZES)


def measured(engines: Sequence[str], sizes: Sequence[int], answers: Sequence[str] = tuple(ANSWERS)) -> list[str]:
    """Return a table of seconds, CPU seconds and peak memory, for each engine, answer of `ANSWERS` and size."""
    rows = []
    for engine in engines:
        found: dict[tuple[str, int], dict[str, Any]] = {}
        for size in sizes:
            with _opened(engine, size) as (url, server):
                for answer in answers:
                    found[answer, size] = _in_process(url, answer, server)
                    print(engine, f"{size:,}", answer, found[answer, size], file=sys.stderr, flush=True)
        for answer in answers:
            before = None
            for size in sizes:
                seen = found[answer, size]
                rows.append([engine, answer, f"{size:,}", *_cells(seen, before, size)])
                before = (size, seen["cpu"], seen["by"]) if "cpu" in seen else None
    headings = ["engine", "answer", "rows", "by", "items", "seconds", "CPU", "exponent", "this process", "its engine"]
    return table([*headings, "tasks", "shuffled"], rows)


def _cells(seen: dict[str, Any], before: tuple[int, float, str] | None, size: int) -> list[str]:
    if "error" in seen:
        return [seen["error"], *[""] * 8]
    alike = before is not None and before[2] == seen["by"]
    exponent = (
        "" if before is None or not alike else f"{math.log(seen['cpu'] / before[1]) / math.log(size / before[0]):.2f}"
    )
    memory = ["" if seen[name] is None else f"{seen[name]:,.0f} MiB" for name in ("mib", "engine_mib")]
    spark = [f"{seen['tasks']:,}", f"{seen['shuffled']:,.0f} MiB"] if "tasks" in seen else ["", ""]
    times = [f"{seen['seconds']:.1f} s", f"{seen['cpu']:.1f} s"]
    return [seen["by"], f"{seen['items']:,}", *times, exponent, *memory, *spark]


def made_growing(rows: int) -> Path:
    """Generate ten rows for each of R / 10 users: half of them of popular items, half of any of R / 10 items."""
    path = FOLDER / f"growing-{rows}.parquet"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part, items = path.with_suffix(".part"), rows // 10
    with duckdb.connect() as connection:
        connection.execute("SET memory_limit = '2GB'; SET preserve_insertion_order = false; SELECT setseed(0.5)")
        connection.execute(
            f"COPY (SELECT CAST(range * 7919 % {items} AS BIGINT) AS user_id, 'item ' || CAST(CASE WHEN random() < 0.5 "
            f"THEN exp(random() * {math.log(items)}) ELSE random() * {items} END AS BIGINT) AS item "
            f"FROM range({rows})) TO '{part}' (FORMAT parquet)"
        )
    part.rename(path)
    return path


@contextlib.contextmanager
def _opened(engine: str, size: int) -> Iterator[tuple[str, int | None]]:
    """Yield the URL of the table in *engine*, and the process of its server."""
    path = made_growing(size)
    if engine in {"duckdb", "spark"}:
        yield (str(path) if engine == "duckdb" else f"spark://local?path={path}"), None
        return
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        place = Path(folder) / engine
        with loaded(engine, place, pq.read_table(path)) as url:
            named = f"{url}{'&' if '?' in url else '?'}table=engagements"
            yield (
                named + ("&scratch=scratch.default" if engine == "trino" else ""),
                int((place / f"{engine}.pid").read_text()),
            )


def _in_process(url: str, answer: str, server: int | None) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scale", "--child", url, answer, str(server or "")]
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"--driver-memory {_MEMORY} pyspark-shell"}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=False, text=True)
    if done.returncode:
        return {"error": f"ended with {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _child(url: str, answer: str, server: str) -> None:
    """Answer once and print the measurements."""
    mechanism = Auto.at_epsilon(Fraction(1), Fraction(1, 10**9), Request(ANSWERS[answer], 10_000))
    if mechanism is None:
        raise InvariantViolated("epsilon 1 is enough for a release")
    request = HeadRequest("user_id", ("item",), mechanism.head_limit)
    engine = open_engine(url)
    engine.check(request)
    if isinstance(engine, DuckDBEngine):
        engine._database.execute(f"SET memory_limit = '{_MEMORY}B'")
    processes = [int(server)] if server else _children(os.getpid())
    for process in processes:
        Path(f"/proc/{process}/clear_refs").write_text("5")  # its peak memory begins anew
    used, start = _cpu([os.getpid(), *processes]), time.perf_counter()
    try:
        with RecordedPairs(engine, request) as pairs:
            outcome = mechanism.release(pairs, SystemBits())
            pairs.labels(outcome.positions)
    except DiscreetError as error:
        print(json.dumps({"error": str(error)}))
        os._exit(0)
    seconds = time.perf_counter() - start
    found = {
        "by": outcome.chosen,
        "items": len(outcome.positions),
        "seconds": seconds,
        "cpu": _cpu([os.getpid(), *processes]) - used,
        "mib": _peak(os.getpid()),
        "engine_mib": sum(map(_peak, processes)) if processes else None,
    }
    print(json.dumps(found | _shuffled(url)), flush=True)
    engine.close()


def _shuffled(url: str) -> dict[str, float]:
    """Return the number of tasks of all stages of Spark in this process, and the MiB that they shuffled."""
    if not url.startswith("spark:"):
        return {}
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    no_quantiles = context._gateway.new_array(context._jvm.double, 0)
    stages = context._jsc.sc().statusStore().stageList(None, False, False, no_quantiles, None).iterator()
    tasks = shuffled = 0
    while stages.hasNext():
        stage = stages.next()
        if stage.status().toString() == "COMPLETE":
            tasks, shuffled = tasks + stage.numTasks(), shuffled + stage.shuffleWriteBytes()
    return {"tasks": tasks, "shuffled": shuffled / 2**20}


def _children(process: int) -> list[int]:
    """Return the descendants of *process*."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [found for child in children for found in (child, *_children(child))]


def _cpu(processes: list[int]) -> float:
    """Return the CPU seconds of *processes* so far."""
    stats = (Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split() for process in processes)
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / _TICKS


def _peak(process: int) -> float:
    """Return the peak of the resident memory of *process*, in MiB; 0 if it has ended."""
    peak = Path(f"/proc/{process}/status").read_text().partition("VmHWM:")[2]
    return int(peak.split()[0]) / 1024 if peak else 0.0


def main() -> None:
    """Measure the engines and sizes that are named on the command line."""
    if sys.argv[1:2] == ["--child"]:
        _child(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("engines", nargs="*", metavar="ENGINE", default=list(ENGINES))
    parser.add_argument("--rows", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--answers", nargs="*", choices=list(ANSWERS), default=list(ANSWERS))
    given = parser.parse_args()
    print("\n".join(measured(given.engines, given.rows, given.answers)))
    for size in given.rows:
        if size > max(SIZES):
            (FOLDER / f"growing-{size}.parquet").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
