"""LOW and HIGH of sums of an answer's rows cover the true sum, whichever mechanism counted them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from discreet.mechanisms import Auto, KnownAuto, KnownGumbel, KnownLaplace, Request, SelectVerify, UnknownLaplace
from discreet.mechanisms.unknown_gumbel import AnchoredGumbel
from discreet.noise import KeyedBits
from discreet.query.answers import NUMBERS
from discreet.query.intervals import interval_sql, read_ratio, sum_sql
from discreet.query.parse_tree import parse_statement
from discreet.testing.pairs import ArrayPairs
from discreet.values import Cost, ExactHead
from tests.release.builders import release_of

pytestmark = pytest.mark.statistical

SECRET = b"a secret for sums of the same cells"
DELTA = Fraction(1, 10**6)
RUNS = 200
CELLS = 24
EVERY = np.array([400 - 15 * cell for cell in range(CELLS)], dtype=np.int64)
EQUAL = np.full(CELLS, 50, dtype=np.int64)


def listed(most, n):
    """Return the pairs of 3,000 users who have from one to *most* of *n* cells, and the counts."""
    random = np.random.default_rng(most)
    baskets = [random.choice(n, random.integers(1, most + 1), replace=False) for _ in range(3_000)]
    users = np.repeat(np.arange(len(baskets)), [len(basket) for basket in baskets])
    pairs = ArrayPairs(users.tolist(), np.concatenate(baskets).tolist())
    return pairs, np.bincount(np.concatenate(baskets), minlength=n)


def head(mechanism, counts=EVERY):
    """Return a case of a mechanism that reads a head."""
    return mechanism, lambda: ExactHead(counts, mechanism.head_limit), counts


def auto(kind, most, n=CELLS, **about):
    """Return a case of a mechanism that chooses another, for users with up to *most* of *n* cells."""
    pairs, counts = listed(most, n)
    return kind.at_epsilon(Fraction(1), Fraction(1, 10**8), Request(None, n, **about)), lambda: pairs, counts


TENTH = Fraction(1, 10)
CASES = {
    "independent": lambda: head(KnownLaplace(None, CELLS, 1, Fraction(10))),
    "laplace noise": lambda: head(KnownLaplace(None, CELLS, 1, Fraction(10), noise="laplace")),
    "shared noise": lambda: head(KnownLaplace(None, CELLS, CELLS, Fraction(10))),
    "a race with shared noise": lambda: head(AnchoredGumbel(CELLS, CELLS, TENTH, DELTA, counts="gaussian")),
    "a race": lambda: head(KnownGumbel(CELLS, CELLS, TENTH, counts="gaussian")),
    "the largest of equal counts": lambda: head(KnownLaplace(3, CELLS, 1, Fraction(10)), EQUAL),
    "above a threshold": lambda: head(UnknownLaplace(None, CELLS, 1, Fraction(10), Fraction(1, 100)), EQUAL),
    "the head": lambda: head(SelectVerify(Cost(Fraction(1, 2), DELTA), CELLS, Fraction(1, 4))),
    "capped": lambda: auto(KnownAuto, 2, known_domain=True),
    "scaled": lambda: auto(KnownAuto, 16, 100, known_domain=True),
    "shared": lambda: auto(KnownAuto, CELLS, known_domain=True),
    "light": lambda: auto(Auto, 1, relative_error=Fraction(1, 4)),
    "two-round": lambda: auto(Auto, 9, relative_error=Fraction(1, 4)),
}
FEWER = 50
"""The number of runs of mechanisms whose errors are added up, which is far from exact."""


def cells_of(mechanism, source, counts, runs=RUNS, first=0):
    """Return the cells of all runs with their true counts, and how often each mechanism was chosen."""
    tables = []
    chosen = Counter()
    for run in range(runs):
        outcome = mechanism.release(source(), KeyedBits(SECRET, first + run))
        chosen[outcome.chosen or mechanism.name] += 1
        names = ("counts", "std_errors", "low", "high", "chosen", "shared_error", "complete")
        parts = {name: getattr(outcome, name) for name in names} | {"mechanism": mechanism.name}
        table = pa.table({"cell": pa.array(outcome.positions)})
        release = replace(release_of(table, k=getattr(mechanism, "k", None)), **parts)
        numbers = release.answer_table().append_column("exact", pa.array(counts[outcome.positions]))
        tables.append(numbers.append_column("run", pa.array([run] * len(numbers), pa.int64())))
    return pa.concat_tables(tables), chosen


def covered(cells, filters):
    """Return the shares of runs in which the sum over each of the filters is covered, and the mean half widths."""
    shares = []
    with duckdb.connect() as database:
        database.register("cells", cells)
        for rows in filters:
            total, low, high, _ = sum_sql(tuple(f'"{name}"' for name in NUMBERS), f" FILTER (WHERE {rows})")
            sql = f"""SELECT avg((low <= exact AND exact <= high)::DOUBLE), avg(high - total) / 2 + avg(total - low) / 2
                FROM (SELECT {total} AS total, {low} AS low, {high} AS high, sum(exact) FILTER (WHERE {rows}) AS exact
                FROM cells GROUP BY run) WHERE total IS NOT NULL"""
            shares.append(database.execute(sql).fetchone())
    return shares


@pytest.mark.parametrize("case", CASES)
def test_sums_of_cells_are_covered(case):
    """In 95 % of the runs with fixed keys, less three standard errors: all cells, a few and a single one."""
    mechanism, source, counts = CASES[case]()
    runs = FEWER if case in {"the head", "capped", "scaled", "light", "two-round"} else RUNS
    cells, chosen = cells_of(mechanism, source, counts, runs)
    if isinstance(mechanism, Auto | KnownAuto):
        assert chosen == {case: runs}
    for share, _ in covered(cells, ["true", "cell % 3 = 0", "cell < 2", "cell = 5"]):
        assert share is None or share >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / runs)


@pytest.mark.parametrize("case", ["independent", "above a threshold"])
def test_independent_noise_adds_up_in_squares_and_other_errors_add_up(case):
    """The half width of a sum is the root of the number of cells times that of one, or the number times that."""
    cells, _ = cells_of(*CASES[case](), runs=1)
    ((_, width),) = covered(cells, ["true"])
    half = pc.max(pc.add(cells["$noise"], cells["$bias"])).as_py()
    assert width == pytest.approx(half * (math.sqrt(CELLS) if case == "independent" else len(cells)))


@pytest.mark.parametrize(
    "cases",
    [
        ("independent", "laplace noise"),
        ("independent", "above a threshold"),
        ("light", "capped"),
        ("above a threshold", "the largest of equal counts"),
    ],
)
def test_expressions_of_sums_are_covered(cases):
    """Differences and ratios of sums over two releases, with errors in one direction or without."""
    runs = FEWER if "light" in cases else RUNS
    selects = []
    with duckdb.connect() as database:
        for number, (name, case) in enumerate(zip("ab", cases, strict=True)):
            cells, _ = cells_of(*CASES[case](), runs=runs, first=number * RUNS)
            database.register(f"cells_{name}", cells)
            parts = sum_sql(tuple(f'"{part}"' for part in NUMBERS), "")
            named = ", ".join(
                f"{sql} AS {name}{end}" for sql, end in zip(parts, ("", "_low", "_high", "_bias"), strict=True)
            )
            selects.append(f"(SELECT run, {named}, sum(exact) AS {name}_exact FROM cells_{name} GROUP BY run)")
        for text in ("a - b", "a + 2 * b", "a / b", "(a - b) / (a + b)"):
            node = parse_statement(f"SELECT {text}", arithmetic=True)["node"]["select_list"][0]
            ratio = read_ratio(node, lambda part: part["column_names"][0] if part["type"] == "COLUMN_REF" else None)
            columns = {name: (name, f"{name}_low", f"{name}_high") for name in "ab"}
            low, high = interval_sql(ratio, columns, ["a_bias", "b_bias"])
            exact = text.replace("a", "a_exact").replace("b", "b_exact")
            sql = f"SELECT avg(({low} <= {exact} AND {exact} <= {high})::DOUBLE) FROM {selects[0]} JOIN {selects[1]} USING (run)"  # noqa: E501
            ((share,),) = database.execute(sql).fetchall()
            assert share >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / runs), text
