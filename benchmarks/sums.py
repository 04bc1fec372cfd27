"""Accuracy of sums with a privately chosen bound, compared with declared bounds."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np

from benchmarks.timing import table
from discreet.accounting.convert import limit_for
from discreet.engines.duckdb import DuckDBEngine
from discreet.head_request import HeadRequest, SumBounds
from discreet.mechanisms import Request
from discreet.mechanisms.sums import UnknownGumbelSums
from discreet.noise import KeyedBits
from discreet.values import ExactHead
from papers.tables import REAL, Tables

if TYPE_CHECKING:
    from collections.abc import Iterator

DELTA = Fraction(1, 10**8)
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
ITEMS = (10, 30)
RUNS = 8
HEAD_LIMIT = 1_000
USERS = 30_000
SHAPES = {
    "light": "1 + CAST(floor(5 * random()) AS INTEGER)",
    "heavy": "CAST(least(ceil(20 / power(random(), 1 / 1.3)), 1000000) AS INTEGER)",
    "mixed": "CAST(least(ceil(30 * w * -ln(random())), 1000000) AS INTEGER)",
}
"""Values of generated tables: 1 to 5; a Pareto tail of index 1.3; users whose sums differ by a factor of hundreds."""


def _tables(folder: Path) -> Iterator[tuple[str, Path, int]]:
    """Yield names, files with columns who, item and x, and generous declared bounds."""
    with duckdb.connect() as connection:
        connection.execute("SELECT setseed(0.25)")
        connection.execute("SET threads = 1")
        connection.execute(
            "CREATE TABLE users AS SELECT i AS who, exp(2 * (random() + random() + random() - 1.5)) AS w, "
            f"1 + CAST(floor(-15 * ln(random())) AS INTEGER) AS n FROM range({USERS}) AS r(i)"
        )
        connection.execute(
            "CREATE TABLE pairs AS SELECT DISTINCT who, w, CAST(floor(exp(8 * random())) AS INTEGER) AS item "
            "FROM users, range(200) AS r(i) WHERE i < n"
        )
        for name, value in SHAPES.items():
            path = folder / f"{name}.parquet"
            connection.execute(f"COPY (SELECT who, item, {value} AS x FROM pairs) TO '{path}'")
            yield name, path, 1_000_000
        if Tables().has("lastfm-plays"):
            path = folder / "lastfm.parquet"
            real = REAL / "lastfm-plays.parquet"
            connection.execute(f"COPY (SELECT user_id AS who, item, plays AS x FROM '{real}') TO '{path}'")
            yield "lastfm-plays", path, 1_000_000


def _errors(head: ExactHead, request: Request, epsilon: float) -> tuple[float, float, int]:
    """Return the median relative error of a sum, the share within 10 %, and the median of the bounds."""
    mechanism = UnknownGumbelSums.within_cost(limit_for(epsilon, DELTA), request)
    found, bounds = [], []
    for run in range(RUNS):
        outcome = mechanism.release(head, KeyedBits(b"sums of the benchmark, 32 bytes.", (run, epsilon.hex())))
        if outcome.measured is not None and head.bounded is not None:
            true = head.bounded[outcome.positions, -1]
            found += (np.abs(outcome.measured.values - true) / true).tolist()
            clipping = outcome.measured.clipping
            bounds.append(mechanism.summed.most if clipping is None else clipping.bound)
    wanted = RUNS * (request.k or 0)
    if not found:
        return np.inf, 0.0, 0
    return float(np.median(found)), sum(error <= 0.1 for error in found) / wanted, int(np.median(bounds))


def _clipped(head: ExactHead, place: int) -> ExactHead:
    """Return the head with sums of bound number *place*, and the true sums beside them."""
    if head.bounded is None:
        return head
    return ExactHead(head.counts, head.limit, None, head.bounded[:, place], head.bounded, head.shares)


def measure(path: Path, high: int) -> tuple[ExactHead, tuple[int, ...]]:
    """Measure the head of a table, with sums at all bounds, and return it with the bounds."""
    summed = SumBounds(Fraction(0), Fraction(high), private=True, column="x")
    return DuckDBEngine(str(path)).head(HeadRequest("who", ("item",), HEAD_LIMIT, summed=summed)), summed.choices


def run() -> list[str]:
    """Median relative error of the top k's sums (and share of k within 10 %) of UnkGumb, delta 1e-8, by bound."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, path, high in _tables(Path(folder)):
            head, choices = measure(path, high)
            for k in ITEMS:
                for epsilon in EPSILONS:
                    private = SumBounds(0, high, private=True)
                    request = Request(k, HEAD_LIMIT, counts=False, summed=private)
                    error, share, bound = _errors(head, request, epsilon)
                    fixed = [
                        _errors(
                            _clipped(head, n), Request(k, HEAD_LIMIT, counts=False, summed=SumBounds(0, c)), epsilon
                        )
                        for n, c in enumerate(choices)
                    ]
                    best = min(fixed)
                    rows.append(
                        [name, str(k), f"{epsilon:g}"]
                        + [f"{e:.3f} ({s:.0%}) {b:,}" for e, s, b in ((error, share, bound), best, fixed[-1])]
                    )
    return table(["table", "k", "epsilon", "private bound", "best bound, seen afterwards", "declared bound"], rows)
