"""Releases by pair queries on servers, compared with the exact head of the same engine."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow.parquet as pq

from benchmarks.engines import loaded
from benchmarks.processes import made_table
from benchmarks.timing import in_turns, table
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
_ROUNDS = 3


def run() -> list[str]:
    """Releases from 2 million generated rows, 400,000 users, on servers: seconds, and ratios to the head by hand."""
    releases, steps = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in SERVERS:
            release, parts = server(name, Path(folder) / name)
            releases.append([name, *release])
            steps.append([name, *(f"{parts.get(step, 0):.2f}" for step in _STEPS)])
            print(*releases[-1], *steps[-1][1:], file=sys.stderr, flush=True)
    headings = ["", "head by hand, s", "`engine.head`", "`top`, k = 100", "two rounds"]
    return [*table(headings, releases), "", *table(["seconds of", *_STEPS], steps)]


def server(name: str, folder: Path) -> tuple[list[str], dict[str, float]]:
    """Return a row of the table of releases, and the seconds of each step of two rounds."""
    held = pq.read_table(made_table(ROWS))
    held = held.set_column(0, "user_id", held.column("user_id").cast("int64"))
    parts: dict[str, list[float]] = defaultdict(list)
    with (
        loaded(name, folder, held) as url,
        contextlib.closing(
            cast("SqlEngine[Any, Any]", open_engine(url + _SCRATCH.get(name, ""), table="engagements"))
        ) as engine,
    ):
        runs: list[Callable[[], object]] = [
            lambda: engine.fetch(_HEAD),
            lambda: engine.head(_REQUEST),
            lambda: _top(engine),
            lambda: _two_rounds(engine, parts),
        ]
        by_hand, *ours = in_turns(runs, _ROUNDS)
    seconds = {step: sorted(taken)[len(taken) // 2] for step, taken in parts.items()}
    return [f"{by_hand:.2f}", *(f"{taken:.2f} s, {taken / by_hand:.1f}x" for taken in ours)], seconds


def _top(engine: SqlEngine[Any, Any]) -> None:
    mechanism = Auto.at_epsilon(_EPSILON, _DELTA, Request(100, _LIMIT))
    if mechanism is None:
        raise InvariantViolated("epsilon 1 is enough for a top k")
    with RecordedPairs(engine, _REQUEST) as pairs:
        pairs.labels(mechanism.release(pairs, SystemBits()).positions)


def _two_rounds(engine: SqlEngine[Any, Any], parts: dict[str, list[float]]) -> None:
    mechanism = TwoRound.at_epsilon(_EPSILON, _DELTA, Request(None, _LIMIT))
    if mechanism is None:
        raise InvariantViolated("Gaussian noise has an exact theorem")
    start = time.perf_counter()
    with engine.pairs(_REQUEST) as pairs:
        parts[_STEPS[0]].append(time.perf_counter() - start)
        timed = _Timed(pairs, parts)
        timed.labels(mechanism.release(cast("Any", timed), SystemBits()).positions)


_STEPS = ("writing pairs", "users_by_size", "weighted_sums", "users_by_scale", "clipping", "clipped_sums", "labels")
"""Steps of two rounds: clipping is the second users_by_scale, at one scale."""


class _Timed:
    """The pairs of an engine, whose queries are timed."""

    def __init__(self, pairs: Any, parts: dict[str, list[float]]) -> None:
        self._pairs, self._parts = pairs, parts
        self._scaled = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        step = "clipping" if name == "users_by_scale" and self._scaled else name
        self._scaled = self._scaled or name == "users_by_scale"

        def query(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = getattr(self._pairs, name)(*arguments)
            if name == "weighted_sums":  # which come in batches
                result = list(result)
            self._parts[step].append(time.perf_counter() - start)
            return result

        return query
