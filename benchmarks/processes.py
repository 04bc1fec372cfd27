"""The whole command compared with the engine alone."""

from __future__ import annotations

import math
import multiprocessing
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.timing import process_runs, processes_in_turns, table

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


def one_round() -> list[str]:
    """CPU time of a release by one round, users with one item each, and of DuckDB's exact head, in pairs of runs."""
    made = made_singles(ROWS // 5)
    head = f"SELECT item, count(DISTINCT user_id) AS n FROM '{made}' GROUP BY item ORDER BY n DESC, item LIMIT 10001"
    floor = [sys.executable, "-c", f'import duckdb; duckdb.sql("{head}").to_arrow_table()']
    release = [sys.executable, "-m", "discreet", "release", str(made), "--user", "user_id", "--item", "item"]
    ours, engine = process_runs([release, floor], 3)
    ratio = statistics.median(a.cpu / b.cpu for a, b in zip(ours, engine, strict=True))
    times = [f"{statistics.median(run.cpu for run in runs):.2f} s" for runs in (ours, engine)]
    headings = ["one item a user", "discreet release, CPU", "DuckDB's exact head, CPU", "median ratio of pairs"]
    return table(headings, [[f"{ROWS:,} rows, {ROWS // 5:,} users", *times, f"{ratio:.2f}x"]])


def run() -> list[str]:
    """Whole processes in turns, on generated rows: `discreet release` against DuckDB's exact head alone."""
    python, rows = sys.executable, []
    # Tables are generated in another process, because timed processes inherit the peak memory of this one.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as maker:
        small, large = maker.submit(made_table, 2_000_000).result(), maker.submit(made_table).result()
        baskets = maker.submit(made_baskets).result()
    for made, users in ((small, 400_000), (large, 2_000_000), (baskets, 500_000)):
        size = f"{pq.read_metadata(made).num_rows:,} rows, {users:,} users"
        head = (
            f"SELECT item, count(DISTINCT user_id) AS n FROM '{made}' GROUP BY item ORDER BY n DESC, item LIMIT 10001"
        )
        floor = [python, "-c", f'import duckdb; duckdb.sql("{head}").to_arrow_table()']
        release = [python, "-m", "discreet", "release", str(made), "--user", "user_id", "--item", "item"]
        release += ["--epsilon", "1"]
        ours, engine = processes_in_turns([release, floor], 5)
        rows += [
            [f"discreet release, {size}", f"{ours.seconds:.2f} s", f"{ours.mib:.0f} MiB"],
            [f"DuckDB's exact head alone, {size}", f"{engine.seconds:.2f} s", f"{engine.mib:.0f} MiB"],
            ["ratio", f"{ours.seconds / engine.seconds:.2f}x", f"{ours.mib / engine.mib:.2f}x"],
        ]
    bare, imported, helped = processes_in_turns(
        [[python, "-c", "pass"], [python, "-c", "import discreet"], [python, "-m", "discreet", "--help"]], 11
    )
    rows += [
        ["python -c pass", f"{1e3 * bare.seconds:.0f} ms", ""],
        ["import discreet, beyond that", f"{1e3 * (imported.seconds - bare.seconds):.0f} ms", ""],
        ["discreet --help", f"{1e3 * helped.seconds:.0f} ms", ""],
    ]
    return table(["process", "time", "peak memory"], rows)
