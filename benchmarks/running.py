"""Running counts of 28 days, compared with daily releases and with one release at the end."""

from __future__ import annotations

import datetime
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

import discreet
from benchmarks.timing import table
from discreet.noise import SystemBits

DAYS, USERS, PAGES, EPSILON = 28, 200_000, 5_000, 4.0
FIRST = datetime.date(2026, 12, 1)
SHOWN = (7, 14, 21, 28)


def run() -> list[str]:
    """Counts within 10 % of the users so far, 200,000 visitors of 5,000 pages, epsilon 4: mean of four days; last."""
    rows = []
    for name, most in (("one page a visitor", 1), ("3.4 pages a visitor", None)):
        visits = _visits(most)
        truth = {day: _exact(visits, day) for day in SHOWN}
        frame = discreet.scan(visits, user="who")
        daily = []
        for day in SHOWN:
            so_far = frame.where(f"day <= '{_date(day)}'")
            plan = so_far.plan("page", epsilon=EPSILON, delta="1e-8").one_of(DAYS)
            daily.append(so_far._answer(plan, None, SystemBits(), None))
        rows.append([name, "daily releases", *_good(daily, truth), ""])
        for cap in (1,) if most == 1 else (4, 8, 16):
            with tempfile.TemporaryDirectory() as folder:
                stream = frame.running(
                    "page",
                    column="day",
                    first=str(FIRST),
                    periods=DAYS,
                    groups_per_user=cap,
                    epsilon=EPSILON,
                    delta="1e-8",
                    secret=b"a public key for benchmarks only",
                    answers=Path(folder) / "answers.parquet",
                    clock=lambda: datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC),
                )
                stream.begin()
                answers = [stream.refresh(_date(day)) for day in SHOWN]
            kept = {day: _exact(visits, day, cap) for day in SHOWN}
            rows.append([name, f"running, groups_per_user = {cap}", *_good(answers, truth), _good(answers, kept)[0]])
        end = frame.release("page", epsilon=EPSILON, delta="1e-8")
        rows.append([name, "one release at the end", "", _good([end], {DAYS: truth[DAYS]})[1], ""])
    return table(["visitors", "", "mean of 4 days", "last day", "of what the cap keeps"], rows)


def _date(day: int) -> str:
    return str(FIRST + datetime.timedelta(day - 1))


def _visits(most: int | None) -> pa.Table:
    """Return visits of Zipf pages; visitors come once or a few times from a day on, a fiftieth of them far more."""
    rng = np.random.default_rng(3)
    sizes = 1 + rng.geometric(1 / 2.5, USERS)
    sizes[: USERS // 50] *= 15
    if most is not None:
        sizes[:] = most
    who = np.repeat(np.arange(USERS), sizes)
    weights = 1 / (np.arange(PAGES) + 3.0)
    page = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(len(who)))
    start = rng.integers(0, DAYS, USERS)
    day = np.minimum(DAYS - 1, start[who] + np.floor(rng.exponential(DAYS / 6, len(who)))).astype(np.int64)
    dates = (np.datetime64(FIRST) + day).astype("datetime64[D]")
    return pa.table({"who": who, "page": page, "day": pa.array(dates)})


def _exact(visits: pa.Table, day: int, cap: int = PAGES) -> dict[int, int]:
    """Return the users so far of each page; with a cap, of users who count for their first pages."""
    pairs = f"SELECT who, page, min(day) AS day FROM visits WHERE day <= DATE '{_date(day)}' GROUP BY ALL"
    place = "row_number() OVER (PARTITION BY who ORDER BY day, hash(page))"
    ranked = f"SELECT page FROM ({pairs}) QUALIFY {place} <= {cap}"
    counts = f"SELECT page, count(*) FROM ({ranked}) GROUP BY page"
    return dict(duckdb.from_arrow(visits).query("visits", counts).fetchall())


def _good(answers: list[discreet.Release], truth: dict[int, dict[int, int]]) -> tuple[str, str]:
    """Return the mean number of counts within 10 %, and that of the last answer."""
    numbers = []
    for release, exact in zip(answers, truth.values(), strict=True):
        rows = release.to_arrow().select(["page", "count"]).to_pylist()
        numbers.append(
            sum(abs(row["count"] - exact.get(row["page"], 0)) <= exact.get(row["page"], 0) / 10 for row in rows)
        )
    return f"{np.mean(numbers):.0f}", f"{numbers[-1]}"
