"""Generate a reading log of a million rows, release private counts from it, and draw them. Run it with: make demo.

The log is generated, so the true counts may be printed beside the released ones: never do this with real data. The
noise key below is public for the same reason: every run in one place prints the same numbers.
`python examples/demo.py docs/images/demo.png` draws the picture of the documentation again.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import discreet

if TYPE_CHECKING:
    from collections.abc import Mapping

ROWS = 1_000_000
READERS = 60_000
ROOT = Path(__file__).resolve().parent.parent
LOG = Path("build/demo/reads.parquet")  # from the root
PICTURE = Path("build/demo/counts.png")
PUBLIC_KEY = discreet.NoiseKey(b"a public key protects nobody: it is for demonstrations only", "demo-1")

MANNERS = ["How to", "Why we", "When to", "What it takes to", "A beginner's guide to", "When not to", "Ten ways to"]
VERBS = ["mend", "bake", "paint", "grow", "trade", "tame", "count", "sail", "share", "brew", "weave", "hide", "map"]
THINGS = ["bread", "gardens", "clocks", "boats", "bees", "letters", "kites", "maps", "secrets", "wool", "rivers", "tea"]
PLACES = ["at home", "by the sea", "in winter", "with friends", "before dawn"]


def make_log(path: Path) -> None:
    """Write the log: reader, article, day. Both articles and readers are heavy-tailed."""
    random = np.random.default_rng(20191)
    titles = np.array([f"{m} {v} {t} {p}" for m in MANNERS for v in VERBS for t in THINGS for p in PLACES])
    random.shuffle(titles)
    popularity = 1.0 / (np.arange(len(titles)) + 6.0)
    eagerness = random.lognormal(0.0, 1.4, READERS)
    readers = random.choice(READERS, size=ROWS, p=eagerness / eagerness.sum())
    articles = random.choice(len(titles), size=ROWS, p=popularity / popularity.sum())
    days = np.datetime64("2025-01-01") + random.integers(0, 90, ROWS)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"reader": readers, "article": titles[articles], "day": days}), path)


def true_counts(path: Path) -> dict[str, int]:
    """Return distinct readers of every article."""
    rows = duckdb.sql(f"SELECT article, count(DISTINCT reader) FROM '{path}' GROUP BY article").fetchall()
    return dict(rows)


def compare(release: discreet.Release, truth: Mapping[str, int], shown: int) -> None:
    """Print the first items with their true counts, and the accuracy of all of them."""
    items = release.to_dict()["items"]
    print(f"{'article':<46}{'count':>8}{'95 % interval':>18}{'truth':>8}{'error':>8}")
    for item in items[:shown]:
        error = item["count"] - truth[item["article"]]
        interval = f"{item['low']:,} to {item['high']:,}"
        print(f"{item['article']:<46}{item['count']:>8,}{interval:>18}{truth[item['article']]:>8,}{error:>+8,}")
    errors = [abs(item["count"] - truth[item["article"]]) / truth[item["article"]] for item in items]
    covered = sum(item["low"] <= truth[item["article"]] <= item["high"] for item in items)
    print(
        f"... {len(items)} items by {release.mechanism} in {release.seconds:.2f} s; {covered} intervals hold the truth"
    )
    print(f"median error {np.median(errors):.1%}; {sum(e <= 0.1 for e in errors)} items within 10 %\n")


def main(picture: Path = PICTURE) -> None:
    """Generate the log, release counts from it twice, and draw the second release in *picture*."""
    start = time.perf_counter()
    os.chdir(ROOT)
    make_log(LOG)
    truth = true_counts(LOG)
    print(f"a reading log of {ROWS:,} rows by {READERS:,} readers: {LOG}")
    print(f"it names {len(truth):,} articles: no list of them and no bound on what a reader reads was declared\n")

    table = discreet.scan(LOG, user="reader")
    print('table.top("article", k=10, epsilon=1.0, delta=1e-8)')
    compare(table.top("article", k=10, epsilon=1.0, delta=1e-8, bits=PUBLIC_KEY), truth, 10)
    print('table.release("article", epsilon=4.0, delta=1e-8)')
    release = table.release("article", epsilon=4.0, delta=1e-8, bits=PUBLIC_KEY)
    compare(release, truth, 5)

    picture.parent.mkdir(parents=True, exist_ok=True)
    release.plot(picture, most=30)
    print(f"picture: {picture}; all in {time.perf_counter() - start:.1f} s")
    print("\nThe web page, with data of its own:")
    print("  .venv/bin/discreet init build/service && .venv/bin/discreet serve build/service/discreet.toml")
    print("then open http://127.0.0.1:8080 and log in with the analyst's key, or the officer's")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
