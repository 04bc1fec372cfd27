"""The whole command compared with the engine alone."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.timing import Process, process_runs, processes_in_turns, table
from discreet.engines.opening import open_engine
from discreet.errors import InvariantViolated
from discreet.head_request import HeadRequest
from discreet.mechanisms import Request
from discreet.mechanisms.auto import Auto
from discreet.noise import SystemBits

ROWS = 10_000_000
FOLDER = Path(__file__).resolve().parent.parent / "build" / "benchmarks"


def made_table(rows: int = ROWS) -> Path:
    """Generate rows of users and items, both heavy-tailed, with duplicates; there are a fifth as many users as rows."""
    path = FOLDER / f"pairs-{rows}.parquet"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    duckdb.sql("SELECT setseed(0.5)")
    duckdb.sql(
        f"COPY (SELECT CAST({rows // 5} * pow(random(), 2) AS INTEGER) AS user_id, "
        f"'item ' || CAST(exp(random() * 13) AS INTEGER) AS item FROM range({rows})) TO '{part}' (FORMAT parquet)"
    )
    part.rename(path)
    return path


def made_baskets(users: int = 500_000, items: int = 1_000_000) -> Path:
    """Generate distinct pairs: 10 items per user in the median and 200 at the 99th percentile, items by Zipf's law."""
    path = FOLDER / f"baskets-{users}.parquet"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20240607)
    sizes = np.clip(np.rint(rng.lognormal(math.log(10), math.log(20) / 2.3263, users)), 1, 20_000).astype(np.int64)
    shares = np.cumsum(np.arange(1, items + 1) ** -1.05)
    drawn = np.searchsorted(shares, rng.random(sizes.sum()) * shares[-1])
    pairs = np.unique(np.repeat(np.arange(users), sizes) * items + drawn)
    owner, item = np.divmod(rng.permutation(pairs), items)
    names = rng.permutation(items)
    labels = pa.array([f"item{number:07d}" for number in names.tolist()]).take(pa.array(item))
    part = path.with_suffix(".part")
    pq.write_table(pa.table({"user_id": owner, "item": labels}), part, compression="zstd")
    part.rename(path)
    return path


def made_singles(users: int, rows: int = ROWS) -> Path:
    """Generate rows of users who have one item each, in as many rows as the others."""
    path = FOLDER / f"singles-{users}-{rows}.parquet"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    item = "'item ' || CAST(exp((hash(user_id) % 1000003) / 1000003 * 13) AS INTEGER) AS item"
    duckdb.sql(
        f"COPY (SELECT user_id, {item} FROM (SELECT CAST(range * 7919 % {users} AS INTEGER) AS user_id "
        f"FROM range({rows}))) TO '{part}' (FORMAT parquet)"
    )
    part.rename(path)
    return path


def made_named() -> Path:
    """Generate the pairs of `made_baskets` with users that are named by text."""
    path = FOLDER / "baskets-named.parquet"
    if path.exists():
        return path
    part = path.with_suffix(".part")
    named = f"SELECT 'reader ' || user_id AS user_id, item FROM '{made_baskets()}'"
    duckdb.sql(f"COPY ({named}) TO '{part}' (FORMAT parquet, COMPRESSION zstd)")
    part.rename(path)
    return path


def release_cost() -> list[str]:
    """A release and DuckDB's exact head: whole processes, wall and CPU, and parts of the first; medians of pairs."""
    rows = []
    for title, made in (
        ("one item a user", made_singles(ROWS)),
        ("one item a user, in five rows", made_singles(ROWS // 5)),
        ("few items a user", made_table()),
        ("many items a user, no duplicates", made_baskets()),
        ("the same, users named by text", made_named()),
    ):
        floor = [sys.executable, "-c", f'import duckdb; duckdb.sql("{_head(made)}").to_arrow_table()']
        release = [sys.executable, "-m", "discreet", "release", str(made), "--user", "user_id", "--item", "item"]
        runs = process_runs([release, floor], 3)
        wall = [(ours.seconds, engine.seconds) for ours, engine in zip(*runs, strict=True)]
        processes = [(ours.cpu, engine.cpu) for ours, engine in zip(*runs, strict=True)]
        chosen, queries = _queries(made, 3)
        parts = {"wall": wall, "CPU": processes, "CPU of queries": queries, "CPU of opening": _openings(made, 3)}
        for part, pairs in parts.items():
            ratio = statistics.median(ours / engine for ours, engine in pairs)
            times = [f"{statistics.median(each):.2f} s" for each in zip(*pairs, strict=True)]
            rows.append([title, chosen, part, *times, f"{ratio:.2f}x"])
    return table(["table", "release by", "seconds", "release", "DuckDB's exact head", "ratio"], rows)


def top_cost() -> list[str]:
    """CPU time of a top k by `auto`, which may query pairs, and by a race, which reads the head: whole processes."""
    rows = []
    for title, made in (
        ("one item a user", made_singles(ROWS // 5, ROWS // 5)),
        ("few items a user", made_table(ROWS // 5)),
        ("many items a user", made_baskets(100_000, 200_000)),
    ):
        for k in (10, 100):
            command = [sys.executable, "-m", "discreet", "top", str(made), "--user", "user_id", "--item", "item"]
            command += ["-k", str(k), "--mechanism"]
            runs = process_runs([[*command, "auto"], [*command, "gumbel"]], 3)
            pairs = [(auto.cpu, race.cpu) for auto, race in zip(*runs, strict=True)]
            times = [f"{statistics.median(each):.2f} s" for each in zip(*pairs, strict=True)]
            ratio = statistics.median(auto / race for auto, race in pairs)
            shown = subprocess.run([*command, "auto", "--format", "json"], capture_output=True, check=True).stdout
            chosen = json.loads(shown)["chosen"]
            rows.append([title, str(k), chosen, *times, f"{ratio:.2f}x"])
    return table(["table", "k", "auto chose", "auto", "race", "ratio"], rows)


def _queries(made: Path, rounds: int) -> tuple[str, list[tuple[float, float]]]:
    """Return the branch of `auto`, and CPU seconds of its release by pair queries and of the head, in turns."""
    mechanism = Auto.at_epsilon(Fraction(1), Fraction(1, 10**8), Request(None, 10_000))
    if mechanism is None:
        raise InvariantViolated("epsilon 1 is enough for a release")
    taken, chosen = [], ""
    with contextlib.closing(open_engine(str(made))) as engine:
        for counted in range(rounds + 1):
            start = time.process_time()
            with engine.pairs(HeadRequest("user_id", ("item",), 10_000)) as pairs:
                outcome = mechanism.release(pairs, SystemBits())
                pairs.labels(outcome.positions)
            between = time.process_time()
            duckdb.sql(_head(made)).to_arrow_table()
            chosen = outcome.chosen or ""
            if counted:
                taken.append((between - start, time.process_time() - between))
    return chosen, taken


def _openings(made: Path, rounds: int) -> list[tuple[float, float]]:
    """Return CPU seconds of opening a file, which checks its values, and of the head, in turns."""
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        open_engine(str(made)).close()
        between = time.process_time()
        duckdb.sql(_head(made)).to_arrow_table()
        taken.append((between - start, time.process_time() - between))
    return taken


def _head(made: Path) -> str:
    return f"SELECT item, count(DISTINCT user_id) AS n FROM '{made}' GROUP BY item ORDER BY n DESC, item LIMIT 10001"


def run() -> list[str]:
    """Whole processes in turns, wall and CPU, on generated rows: `discreet` against DuckDB's exact head alone."""
    python, rows = sys.executable, []
    # Tables are generated in another process, because timed processes inherit the peak memory of this one.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as maker:
        small, large = maker.submit(made_table, 2_000_000).result(), maker.submit(made_table).result()
        baskets = maker.submit(made_baskets).result()
    asked = {
        "DuckDB's exact head alone": [],
        "discreet top": ["top"],
        "discreet release --mechanism pcr": ["release", "--mechanism", "pcr"],
        "discreet release": ["release"],
    }
    for made, users in ((small, 400_000), (large, 2_000_000), (baskets, 500_000)):
        size = f"{pq.read_metadata(made).num_rows:,} rows, {users:,} users"
        floor = [python, "-c", f'import duckdb; duckdb.sql("{_head(made)}").to_arrow_table()']
        source = [str(made), "--user", "user_id", "--item", "item"]
        commands = [
            [python, "-m", "discreet", method[0], *source, *method[1:]] if method else floor
            for method in asked.values()
        ]
        taken = processes_in_turns(commands, 5)
        for name, process in zip(asked, taken, strict=True):
            rows.append(_compared(f"{name}, {size}", process, taken[0]))
    started = {
        "python -c pass": ["-c", "pass"],
        "import duckdb, pyarrow": ["-c", "import duckdb, pyarrow"],
        "import discreet": ["-c", "import discreet"],
        "import discreet.table": ["-c", "import discreet.table"],
        "discreet --help": ["-m", "discreet", "--help"],
    }
    taken = processes_in_turns([[python, *command] for command in started.values()], 11)
    rows += [_compared(name, process, taken[1]) for name, process in zip(started, taken, strict=True)]
    return table(["process", "wall", "of the floor", "CPU", "of the floor", "peak memory"], rows)


def _compared(name: str, process: Process, floor: Process) -> list[str]:
    return [
        name,
        f"{process.seconds:.2f} s",
        f"{process.seconds / floor.seconds:.2f}x",
        f"{process.cpu:.2f} s",
        f"{process.cpu / floor.cpu:.2f}x",
        f"{process.mib:.0f} MiB",
    ]
