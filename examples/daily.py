"""Compare four ways to publish numbers of four weeks that cost as much: by page and day, daily, so far, and by day.

The log is generated, and the noise key is public, as in `examples/demo.py`: every run prints the same numbers, but for
running counts, whose streams have ids of their own.
`python examples/daily.py docs/images/daily.png` draws the picture of the documentation again.
"""

from __future__ import annotations

import datetime
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import matplotlib as mpl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.dates import DateFormatter
from matplotlib.figure import Figure

import discreet

VISITORS, PAGES, DAYS = 40_000, 600, 28
FIRST = datetime.date(2026, 6, 1)
EPSILON, DELTA = 4.0, "1e-8"
ROOT = Path(__file__).resolve().parent.parent
LOG = Path("build/demo/visits.parquet")  # from the root
PICTURE = Path("build/demo/daily.png")
SHOWN = "page 3"
EACH_DAY = [FIRST + datetime.timedelta(n) for n in range(DAYS)]
SHOWN_DAYS = [EACH_DAY[n - 1] for n in (7, 14, DAYS)]
KEY = discreet.NoiseKey(b"a public key protects nobody: it is for demonstrations only", "daily-1")


def make_log(path: Path) -> None:
    """Write the log: visitor, page, day. Most visitors come on few of the days, and see one page or two."""
    random = np.random.default_rng(20262)
    visits = 1 + random.geometric(1 / 2.5, VISITORS)
    visitor = np.repeat(np.arange(VISITORS), visits)
    weekly = 1 + 0.6 * np.cos(2 * np.pi * np.arange(DAYS) / 7)
    day = random.choice(DAYS, len(visitor), p=weekly / weekly.sum())
    popularity = 1 / (np.arange(PAGES) + 3.0)
    page = random.choice(PAGES, len(visitor), p=popularity / popularity.sum())
    path.parent.mkdir(parents=True, exist_ok=True)
    days = np.datetime64(FIRST) + day
    pq.write_table(pa.table({"visitor": visitor, "page": [f"page {n}" for n in page], "day": days}), path)


def running_counts(table: discreet.Table) -> dict[datetime.date, discreet.Release]:
    """Refresh a stream on each day, and return the visitors so far of each page on some of them."""
    with tempfile.TemporaryDirectory() as folder:
        stream = table.running(
            "page",
            column="day",
            first=str(FIRST),
            periods=DAYS,
            epsilon=EPSILON,
            delta=DELTA,
            secret=KEY.secret,
            answers=Path(folder) / "visitors.parquet",
            clock=lambda: datetime.datetime(2026, 7, 1, tzinfo=datetime.UTC),
        )
        stream.begin()
        for day in EACH_DAY:
            stream.refresh(str(day))
        return {day: stream.show(str(day)) for day in SHOWN_DAYS}


def print_way(way: str, items: list[tuple[dict[str, Any], int]]) -> None:
    """Print how many released counts are near the true ones, and the median of their standard errors."""
    within = sum(abs(item["count"] - true) <= 0.1 * true for item, true in items)
    error = statistics.median(item["std_error"] for item, _ in items)
    print(f"{way:<28}{len(items):>6,} counts, {within:>6,} of them within 10 %, standard error {error:>5.1f}")


def main(picture: Path = PICTURE) -> None:
    """Print the accurate counts of both ways, and draw the days of one page in *picture*."""
    os.chdir(ROOT)
    make_log(LOG)
    rows = duckdb.sql(f"SELECT page, day, count(DISTINCT visitor) FROM '{LOG}' GROUP BY page, day").fetchall()
    truth = {(page, day): count for page, day, count in rows}
    table = discreet.scan(LOG, user="visitor")

    budget = discreet.Budget(EPSILON, DELTA)
    once = table.release(["page", "day"], epsilon=EPSILON, delta=DELTA, budget=budget, bits=KEY)

    budget = discreet.Budget(EPSILON, DELTA)
    limit = table.plan("page", epsilon=EPSILON, delta=DELTA, budget=budget).one_of(DAYS).query.options
    daily = {}
    for day in EACH_DAY:
        of_day = table.where(f"day = '{day}'")
        release = of_day.release("page", epsilon=limit.epsilon, delta=limit.delta, budget=budget, bits=KEY)
        daily |= {(item["page"], day): item for item in release.to_dict()["items"]}

    ways = {
        "one release of (page, day)": {
            (item["page"], datetime.date.fromisoformat(item["day"])): item for item in once.to_dict()["items"]
        },
        f"{DAYS} daily releases": daily,
    }
    print(f"{len(truth):,} pairs of a page and a day; epsilon = {EPSILON:g}, delta = {DELTA} for all {DAYS} days")
    for way, items in ways.items():
        print_way(way, [(item, truth[pair]) for pair, item in items.items()])
    so_far = dict(duckdb.sql(f"SELECT page, count(DISTINCT visitor) FROM '{LOG}' GROUP BY page").fetchall())
    running = running_counts(table)
    print_way("running counts, last day", [(item, so_far[item["page"]]) for item in running[SHOWN_DAYS[-1]]])
    for day, release in running.items():
        for item in (item for item in release if item["page"] == SHOWN):
            print(f"  {SHOWN} until {day:%-d %B}: {item['count']:,} visitors ({item['low']:,} to {item['high']:,})")
    active = dict(duckdb.sql(f"SELECT day, count(DISTINCT visitor) FROM '{LOG}' GROUP BY day").fetchall())
    site = table.release("day", domain=sorted(active), epsilon=EPSILON, delta=DELTA, bits=KEY)
    print_way("visitors of each day", [(item, active[item["day"]]) for item in site])

    mpl.rcParams["font.size"] = 9
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(EACH_DAY, [truth.get((SHOWN, day), 0) for day in EACH_DAY], color="#22303c", lw=1, label="truth")
    for (way, items), color, shift in zip(ways.items(), ("#4c8dae", "#c2542d"), (-0.15, 0.15), strict=True):
        found = [(day, items[SHOWN, day]) for day in EACH_DAY if (SHOWN, day) in items]
        places = [datetime.datetime.combine(day, datetime.time()) + datetime.timedelta(shift) for day, _ in found]
        counts = np.array([item["count"] for _, item in found])
        ends = np.array([[item["low"], item["high"]] for _, item in found]).reshape(-1, 2)
        spread = np.abs(ends.T - counts)
        label = f"{way}: {len(found)} {'day' if len(found) == 1 else 'days'}"
        axes.errorbar(places, counts, yerr=spread, fmt="o", ms=3.5, lw=1, color=color, label=label)
    axes.xaxis.set_major_formatter(DateFormatter("%-d %b"))
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"visitors of {SHOWN}")
    axes.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    axes.spines[["top", "right"]].set_visible(False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110, metadata={"Software": None})
    print(f"picture: {picture}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
