"""Releases by pair queries on servers, compared with the exact head of the same engine."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections import defaultdict
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow.parquet as pq

from benchmarks.engines import loaded
from benchmarks.processes import made_table
from benchmarks.timing import table
from discreet.engines.opening import open_engine
from discreet.errors import InvariantViolated
from discreet.head_request import HeadRequest
from discreet.mechanisms.auto import Auto
from discreet.mechanisms.base import Request
from discreet.mechanisms.two_round import TwoRound
from discreet.noise import SystemBits
from discreet.release.keys import RecordedPairs

if TYPE_CHECKING:
    from collections.abc import Callable

    from discreet.engines.base import SqlEngine

ROWS = 2_000_000
SERVERS = ("clickhouse", "postgres", "trino", "spark")
_SCRATCH = {"trino": "?scratch=scratch.default"}
_EPSILON, _DELTA, _LIMIT = Fraction(1), Fraction(1, 10**8), 10_000
_HEAD = (
    "SELECT item, count(DISTINCT user_id) AS n FROM engagements WHERE item IS NOT NULL "
    f"GROUP BY item ORDER BY n DESC, item LIMIT {_LIMIT + 1}"
)
_REQUEST = HeadRequest("user_id", ("item",), _LIMIT)
_ROUNDS = 3  # the first warms up


def run() -> list[str]:
    """CPU seconds of servers for releases from 2 million generated rows of 400,000 users, beside the head by hand.

    The least of two runs, in turns after one that warms up: other processes change wall-clock times more.
    """
    releases, steps = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in SERVERS:
            release, parts = server(name, Path(folder) / name)
            releases.append([name, *release])
            steps.append([name, *(f"{parts.get(step, 0):.2f}" for step in _STEPS)])
            print(*releases[-1], *steps[-1][1:], file=sys.stderr, flush=True)
    headings = ["", "head by hand", "`engine.head`", "`top`, k = 100", "two rounds"]
    return [*table(headings, releases), "", *table(["step of two rounds", *_STEPS], steps)]


def server(name: str, folder: Path) -> tuple[list[str], dict[str, float]]:
    """Return a row of the table of releases, and the CPU seconds of each step of two rounds."""
    held = pq.read_table(made_table(ROWS))
    held = held.set_column(0, "user_id", held.column("user_id").cast("int64"))
    with (
        loaded(name, folder, held) as url,
        contextlib.closing(
            cast("SqlEngine[Any, Any]", open_engine(url + _SCRATCH.get(name, ""), table="engagements"))
        ) as engine,
    ):
        (pid,) = (int(file.read_text()) for file in folder.glob("*.pid"))
        clock = partial(_cpu_seconds, pid)
        parts: list[dict[str, float]] = []
        runs: list[Callable[[], object]] = [
            lambda: engine.fetch(_HEAD),
            lambda: engine.head(_REQUEST),
            lambda: _top(engine),
            lambda: parts.append(_two_rounds(engine, clock)),
        ]
        rounds = [[_elapsed(clock, run) for run in runs] for _ in range(_ROUNDS)]
    by_hand, *ours = map(min, zip(*rounds[1:], strict=True))
    least = {step: min(taken[step] for taken in parts[1:]) for step in _STEPS}
    return [f"{by_hand:.2f} s", *(f"{taken:.2f} s, {taken / by_hand:.1f}x" for taken in ours)], least


def _cpu_seconds(root: int) -> float:
    """Return the CPU seconds that a process and its descendants have used, those that have ended among them."""
    used, children = {}, defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            fields = (folder / "stat").read_text().rpartition(") ")[2].split()
            used[int(folder.name)] = sum(map(int, fields[11:15]))
            children[int(fields[1])].append(int(folder.name))
    total, left = 0, [root]
    while left:
        pid = left.pop()
        total += used.get(pid, 0)
        left += children[pid]
    return total / os.sysconf("SC_CLK_TCK")


def _elapsed(clock: Callable[[], float], work: Callable[[], object]) -> float:
    start = clock()
    work()
    return clock() - start


def _top(engine: SqlEngine[Any, Any]) -> None:
    mechanism = Auto.at_epsilon(_EPSILON, _DELTA, Request(100, _LIMIT))
    if mechanism is None:
        raise InvariantViolated("epsilon 1 is enough for a top k")
    with RecordedPairs(engine, _REQUEST) as pairs:
        pairs.labels(mechanism.release(pairs, SystemBits()).positions)


def _two_rounds(engine: SqlEngine[Any, Any], clock: Callable[[], float]) -> dict[str, float]:
    """Release by two rounds, and return the time of each step by *clock*."""
    mechanism = TwoRound.at_epsilon(_EPSILON, _DELTA, Request(None, _LIMIT))
    if mechanism is None:
        raise InvariantViolated("Gaussian noise has an exact theorem")
    start = clock()
    with engine.pairs(_REQUEST) as pairs:
        timed = _Timed(pairs, clock)
        timed.taken["writing pairs"] = clock() - start
        timed.labels(mechanism.release(cast("Any", timed), SystemBits()).positions)
    return timed.taken


_STEPS = ("writing pairs", "users_by_size", "weighted_sums", "users_by_scale", "clipping", "clipped_sums", "labels")
"""Steps of two rounds: clipping is users_by_scale from the second time on, at one scale."""


class _Timed:
    """The pairs of an engine, whose queries are timed by *clock*."""

    def __init__(self, pairs: Any, clock: Callable[[], float]) -> None:
        self.taken: dict[str, float] = {}
        self._pairs, self._clock = pairs, clock

    def __getattr__(self, name: str) -> Callable[..., Any]:
        step = "clipping" if name == "users_by_scale" and name in self.taken else name

        def query(*arguments: Any) -> Any:
            start = self._clock()
            result = getattr(self._pairs, name)(*arguments)
            if name == "weighted_sums":  # which come in batches
                result = list(result)
            self.taken[step] = self.taken.get(step, 0.0) + self._clock() - start
            return result

        return query
