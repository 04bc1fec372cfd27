"""Running counts of 28 days, compared with daily releases and with one release at the end.

`python -m benchmarks.running [PERIODS]...` counts what is within 10 % on eight streams whose bounds a pilot chooses.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import discreet
from benchmarks.timing import table
from discreet.engines.duckdb import DuckDBEngine
from discreet.head_request import HeadRequest
from discreet.noise import SystemBits
from discreet.release.running import RunningStream
from papers.tables import REAL

DAYS, USERS, PAGES, EPSILON = 28, 200_000, 5_000, 4.0
FIRST = datetime.date(2026, 12, 1)
SHOWN = (7, 14, 21, 28)


def run() -> list[str]:
    """Counts within 10 % of the users so far, 200,000 visitors of 5,000 pages, epsilon 4: mean of four days; last."""
    rows = []
    for name, most in (("one page a visitor", 1), ("3.4 pages a visitor", None)):
        visited = dated(visits(DAYS, most))
        truth = {day: _exact(visited, day) for day in SHOWN}
        frame = discreet.scan(visited, user="who")
        daily = []
        for day in SHOWN:
            so_far = frame.where(f"day <= '{_date(day)}'")
            plan = so_far.plan("item", epsilon=EPSILON, delta="1e-8").one_of(DAYS)
            daily.append(so_far._answer(plan, None, SystemBits(), None))
        rows.append([name, "daily releases", *_good(daily, truth), ""])
        for cap in (1,) if most == 1 else (4, 8, 16):
            with begun(visited, DAYS, groups_per_user=cap) as stream:
                answers = [stream.refresh(_date(day)) for day in SHOWN]
            kept = {day: _exact(visited, day, cap) for day in SHOWN}
            rows.append([name, f"running, groups_per_user = {cap}", *_good(answers, truth), _good(answers, kept)[0]])
        end = frame.release("item", epsilon=EPSILON, delta="1e-8")
        rows.append([name, "one release at the end", "", _good([end], {DAYS: truth[DAYS]})[1], ""])
    return table(["visitors", "", "mean of 4 days", "last day", "of what the cap keeps"], rows)


@contextlib.contextmanager
def begun(rows: pa.Table, periods: int, **options: Any) -> Iterator[RunningStream]:
    """Begin a stream of the users so far in *rows*, by day."""
    with tempfile.TemporaryDirectory() as folder:
        stream = discreet.scan(rows, user="who").running(
            "item",
            column="day",
            first=str(FIRST),
            periods=periods,
            secret=b"a public key for benchmarks only",
            answers=Path(folder) / "answers.parquet",
            clock=lambda: datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC),
            **{"epsilon": EPSILON, **options},
        )
        stream.begin()
        yield stream


def _date(day: int) -> str:
    return str(FIRST + datetime.timedelta(day - 1))


def _exact(visits: pa.Table, day: int, cap: int = PAGES) -> dict[int, int]:
    """Return the users so far of each page; with a cap, of users who count for their first pages."""
    place = "row_number() OVER (PARTITION BY who ORDER BY day, hash(item))"
    ranked = f"SELECT item FROM visits WHERE day <= DATE '{_date(day)}' QUALIFY {place} <= {cap}"
    counts = f"SELECT item, count(*) FROM ({ranked}) GROUP BY item"
    return dict(duckdb.from_arrow(visits).query("visits", counts).fetchall())


def _good(answers: list[discreet.Release], truth: dict[int, dict[int, int]]) -> tuple[str, str]:
    """Return the mean number of counts within 10 %, and that of the last answer."""
    numbers = []
    for release, exact in zip(answers, truth.values(), strict=True):
        rows = release.to_arrow().select(["item", "count"]).to_pylist()
        numbers.append(
            sum(abs(row["count"] - exact.get(row["item"], 0)) <= exact.get(row["item"], 0) / 10 for row in rows)
        )
    return f"{np.mean(numbers):.0f}", f"{numbers[-1]}"


def visits(days: int, most: int | None = None) -> pa.Table:
    """Return Zipf pages that are always there; visitors come a few times, a fiftieth of them more, or *most* times."""
    rng = np.random.default_rng(3)
    sizes = 1 + rng.geometric(1 / 2.5, USERS)
    sizes[: USERS // 50] *= 15
    if most is not None:
        sizes[:] = most
    who = np.repeat(np.arange(USERS), sizes)
    weights = np.cumsum(1 / (np.arange(PAGES) + 3.0))
    item = np.searchsorted(weights / weights[-1], rng.random(len(who)))
    start = rng.integers(0, days, USERS)
    day = np.minimum(days - 1, start[who] + np.floor(rng.exponential(days / 6, len(who))))
    return first_visits(who, item, day)


def articles(days: int) -> pa.Table:
    """Return a news site: 20 new articles a day, read for a week, by readers who keep coming."""
    rng = np.random.default_rng(2)
    sizes = rng.poisson(rng.lognormal(np.log(0.05), 1.2, 100_000) * days)
    who = np.repeat(np.arange(len(sizes)), sizes)
    day = rng.integers(0, days, len(who))
    born = np.maximum(day - np.floor(rng.exponential(2.5, len(who))), 0)
    weights = np.cumsum(np.arange(1, 21) ** -0.8)
    return first_visits(who, born * 20 + np.searchsorted(weights / weights[-1], rng.random(len(who))), day)


def real(name: str, users: int | None = None) -> Callable[[int], pa.Table]:
    """Return real pairs with made-up days: each user is there for a random while, on a few days of it."""

    def stream(days: int) -> pa.Table:
        limit = "" if users is None else f"WHERE who < {users}"
        user = "dense_rank() OVER (ORDER BY CAST(user_id AS VARCHAR)) - 1 AS who"
        pairs = f"SELECT DISTINCT {user}, dense_rank() OVER (ORDER BY item) AS item FROM '{REAL / name}.parquet'"
        columns = duckdb.sql(f"SELECT * FROM ({pairs}) {limit} ORDER BY who, item").fetchnumpy()
        who, item = columns["who"].astype(np.int64), columns["item"].astype(np.int64)
        rng = np.random.default_rng(1)
        n = int(who.max()) + 1
        start = np.floor(days * rng.random(n) ** 1.3)
        span = np.minimum(days - start, 1 + np.floor(days * rng.beta(0.7, 1.5, n)))
        sessions = 1 + rng.poisson(np.sqrt(np.bincount(who)))
        session = np.floor(rng.random(len(who)) * sessions[who])
        return first_visits(who, item, start[who] + np.floor((session * 0.618034 + rng.random(n)[who]) % 1 * span[who]))

    return stream


STREAMS: dict[str, Callable[[int], pa.Table]] = {
    "visits": visits,
    "domains": real("reddit-posts-domain", 500_000),
    "articles": articles,
    "gowalla": real("gowalla"),
    "sports": real("amazon-sports"),
    "retail": real("retail"),
    "beauty": real("amazon-beauty"),
    "movielens": real("movielens-1m"),
}
"""Streams by name, from a number of days: one row per user and item, with the day from 0 on."""


def dated(pairs: pa.Table) -> pa.Table:
    """Return pairs with dates in place of numbers of days."""
    dates = np.datetime64(FIRST) + pairs.column("day").to_numpy()
    return pairs.set_column(2, "day", pa.array(dates.astype("datetime64[D]")))


def first_visits(who: np.ndarray, item: np.ndarray, day: np.ndarray) -> pa.Table:
    """Return the first day of each user and item."""
    table = pa.table({"who": who, "item": item.astype(np.int64), "day": day.astype(np.int64)})
    return duckdb.from_arrow(table).query("t", "SELECT who, item, min(day) AS day FROM t GROUP BY ALL").to_arrow_table()


def streams(periods: int, names: list[str]) -> list[str]:
    """Return counts within 10 % on streams that are refreshed daily: mean of four days; last day; shown on it.

    The pilot is the stream itself, a period earlier.
    """
    rows = []
    for name in names:
        stream = STREAMS[name](periods)
        who, item, day = (stream.column(column).to_numpy() for column in ("who", "item", "day"))
        both = dated(pa.table({"who": np.tile(who, 2), "item": np.tile(item, 2), "day": np.append(day - periods, day)}))
        shown = (periods // 4, periods // 2, 3 * periods // 4, periods)
        truth = {number: _exact(dated(stream), number) for number in shown}
        for epsilon in (1.0, 4.0):
            with begun(both, periods, pilot=_date(1 - periods), epsilon=epsilon) as counter:
                answers = [counter.refresh(_date(number)) for number in range(1, periods + 1)]
            good = _good([answers[number - 1] for number in shown], truth)
            row = [name, f"{epsilon:g}", *good, f"{len(answers[-1])}"]
            rows.append(row)
            print(periods, *row, file=sys.stderr, flush=True)  # it takes minutes
    return table(["stream", "epsilon", "mean of 4 days", "last day", "shown on it"], rows)


def scale() -> list[str]:
    """Refresh of the last of 365 days, with 10^6 items, 10^6 users and 5 * 10^6 rows, and heads of the same rows."""
    days, items = 365, 10**6
    rng = np.random.default_rng(4)
    weights = np.cumsum(1 / (np.arange(items) + 3.0))
    rows = 5 * 10**6
    day = rng.integers(0, days, rows)
    item = np.searchsorted(weights / weights[-1], rng.random(rows))
    visited = dated(pa.table({"who": rng.integers(0, 10**6, rows), "item": item, "day": day}))
    engine = DuckDBEngine(visited)
    results = []
    for name, groups in (("head", None), ("head of 10 items a user", 10)):
        request = HeadRequest("who", ("item",), 10_000, groups_per_user=groups)
        results.append((name, seconds(lambda request=request: engine.head(request, seed=bytes(32)))))
    for name, groups in (("refresh, groups_per_user = 10", 10), ("refresh, two levels", None)):
        with begun(visited, days, groups_per_user=groups) as stream:
            stream.refresh(_date(days - 1))
            results.append((name, seconds(lambda stream=stream: stream.refresh(_date(days)))))
    head = results[0][1]
    return table(["", "seconds", "heads"], [[name, f"{took:.1f}", f"{took / head:.1f}"] for name, took in results])


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds of processor time that *work* takes, of all threads."""
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    words = sys.argv[1:]
    for number in [int(word) for word in words if word.isdigit()] or [DAYS]:
        print(f"\n{number} days")
        print("\n".join(streams(number, [word for word in words if word in STREAMS] or list(STREAMS))), flush=True)
