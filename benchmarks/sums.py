"""Accuracy of sums with a privately chosen bound, compared with declared bounds, and of averages."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import numpy as np

import discreet
from benchmarks.timing import table
from discreet.accounting.convert import limit_for
from discreet.engines.duckdb import DuckDBEngine
from discreet.head_request import HeadRequest, SumBounds
from discreet.mechanisms import Request
from discreet.mechanisms.sums import UnknownGumbelSums
from discreet.noise import KeyedBits
from discreet.release.keys import RecordedPairs
from discreet.service.init_project import CATALOG, write_reads
from discreet.values import ExactHead
from papers.tables import REAL, Tables

if TYPE_CHECKING:
    from collections.abc import Iterator

DELTA = Fraction(1, 10**8)
EPSILONS = (1.0, 4.0)
ITEMS = (10, 30)
RUNS = 8
HEAD_LIMIT = 1_000
AVERAGE_RUNS = 40
ARTICLES = "GROUP BY article ORDER BY COUNT(DISTINCT reader) DESC LIMIT 3"
AVERAGED = [("'all rows'", ""), ("country", "GROUP BY country"), ("article", ARTICLES)]
"""Labels of averages, with the end of the statement."""
DECLARED = [(*averaged, 20, bound) for bound in ("500", "500, private_bound = true") for averaged in AVERAGED]
DECLARED += [("article", ARTICLES, 3, "100")]
"""These with the declared `rows_per_group` and bound of sums."""

USERS = 30_000
HIGH = 1_000_000
SHAPES = {
    "light": "1 + CAST(floor(5 * random()) AS INTEGER)",
    "heavy": "CAST(least(ceil(20 / power(random(), 1 / 1.3)), 1000000) AS INTEGER)",
    "mixed": "CAST(least(ceil(30 * w * -ln(random())), 1000000) AS INTEGER)",
}
"""Values of generated tables: 1 to 5; a Pareto tail of index 1.3; users whose sums differ by a factor of hundreds."""


def _tables(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield names, and files with columns who, item and x."""
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
            yield name, path
        if Tables().has("lastfm-plays"):
            path = folder / "lastfm.parquet"
            real = REAL / "lastfm-plays.parquet"
            connection.execute(f"COPY (SELECT user_id AS who, item, plays AS x FROM '{real}') TO '{path}'")
            yield "lastfm-plays", path


class Shares(NamedTuple):
    """What the releases of a cell say of the sums or averages of the top k, compared with the truth without clipping.

    Args:
        error: median relative error.
        share: values within 10 %, of k.
        covered: values within their intervals, of those released; nan without any.
        bound: median of the bounds.
    """

    error: float
    share: float
    covered: float
    bound: int


def _released(
    engine: DuckDBEngine, truth: dict[Any, float], epsilon: float, k: int, summed: SumBounds, head: ExactHead | None
) -> Shares:
    mechanism = UnknownGumbelSums.within_cost(
        limit_for(epsilon, DELTA), Request(k, HEAD_LIMIT, counts=False, summed=summed)
    )
    sent = HeadRequest("who", ("item",), HEAD_LIMIT, summed=summed)
    errors: list[float] = []
    covered: list[bool] = []
    bounds = []
    for run in range(RUNS):
        bits = KeyedBits(b"sums of the benchmark, 32 bytes.", (run, epsilon.hex()))
        with RecordedPairs(engine, sent) as recorded:
            outcome = mechanism.release(recorded if head is None else head, bits)
            labels = recorded.labels(outcome.positions) if head is None else head.labels.take(outcome.positions)
        found = outcome.measured
        true = np.array([truth[item] for item in labels.column("item").to_pylist()])
        if found is not None and len(true):
            errors += (np.abs(found.values - true) / true).tolist()
            covered += ((found.low <= true) & (true <= found.high)).tolist()
            bounds.append(int(summed.high) if found.clipping is None else found.clipping.bound)
    if not errors:
        return Shares(np.inf, 0.0, np.nan, 0)
    within = sum(error <= 0.1 for error in errors) / (RUNS * k)
    return Shares(float(np.median(errors)), within, float(np.mean(covered)), int(np.median(bounds)))


def averages() -> list[str]:
    """The averages of rows in the data of `discreet init` at epsilon 1: relative errors and coverage, by the labels."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as connection:
        reads = Path(folder) / "reads.parquet"
        write_reads(reads)
        catalog = Path(folder) / "catalog.toml"
        for label, tail, most_rows, high in DECLARED:
            declared = CATALOG.replace("rows_per_group = 20", f"rows_per_group = {most_rows}")
            catalog.write_text(declared.replace("high = 500, private_bound = true", f"high = {high}"))
            exact = dict(connection.execute(f"SELECT {label}, avg(minutes) FROM '{reads}' GROUP BY 1").fetchall())
            text = f"SELECT {label}, AVG(minutes), LOW(AVG(minutes)), HIGH(AVG(minutes)) FROM reads {tail}"
            errors = []
            covered = []
            with discreet.connect(catalog) as warehouse:
                for run in range(AVERAGE_RUNS):
                    released = warehouse.sql(text, epsilon=1.0, key=hashlib.sha256(f"{text} {run}".encode()).digest())
                    columns = (column.to_pylist() for column in released.table.columns)
                    for item, value, low, high_end in zip(*columns, strict=True):
                        errors.append(abs(float(value) / exact[item] - 1))
                        covered.append(float(low) <= exact[item] <= float(high_end))
            middle, most = np.quantile(errors, [0.5, 0.95])
            within = np.mean(np.array(errors) <= 0.05)
            rows.append(
                [
                    label.strip("'"),
                    str(most_rows),
                    high.replace(", private_bound = true", ", private"),
                    f"{middle:.1%}",
                    f"{most:.1%}",
                    f"{within:.0%}",
                    f"{np.mean(covered):.1%}",
                ]
            )
    return table(["average by", "τ", "high", "median error", "95 % of errors up to", "within 5 %", "covered"], rows)


def _truth(head: ExactHead) -> dict[Any, float]:
    values = head.counts if head.sums is None else head.sums
    values = values if head.rows is None else values / head.rows
    return dict(zip(head.labels.column("item").to_pylist(), values.tolist(), strict=True))


def run() -> list[str]:
    """Sums and averages of the top k by UnkGumb, delta 1e-8: median error, share of k within 10 %, bound.

    Of the private bound also the coverage of the intervals. The best declared bound is seen afterwards.
    """
    released = []
    with tempfile.TemporaryDirectory() as folder:
        for name, path in _tables(Path(folder)):
            engine = DuckDBEngine(str(path))
            for measure, rows in (("sum", None), ("average", 1)):
                private = SumBounds(0, HIGH, private=True, column="x", rows=rows)
                declared = [replace(private, private=False, high=-(-HIGH // 2**n)) for n in range(20)]
                heads = [engine.head(HeadRequest("who", ("item",), HEAD_LIMIT, summed=summed)) for summed in declared]
                truth = _truth(heads[0])
                for k in ITEMS:
                    for epsilon in EPSILONS:
                        chosen = _released(engine, truth, epsilon, k, private, None)
                        fixed = [
                            _released(engine, truth, epsilon, k, summed, head)
                            for summed, head in zip(declared, heads, strict=True)
                        ]
                        released.append(
                            [measure, name, str(k), f"{epsilon:g}", f"{chosen.covered:.2f}"]
                            + [f"{e:.3f} ({s:.0%}) {b:,}" for e, s, _, b in (chosen, min(fixed), fixed[0])]
                        )
    return table(
        ["of", "table", "k", "epsilon", "covered", "private bound", "best bound, seen afterwards", "declared"], released
    )
