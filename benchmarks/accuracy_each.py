"""The items of each segment by auto, heads and races, on the packages of a Debian index."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.timing import table as markdown
from discreet.accounting.convert import limit_for
from discreet.errors import InvariantViolated
from discreet.mechanisms import Each, EachAuto, Request, SelectVerify, UnknownGumbel
from discreet.mechanisms.auto import Auto
from discreet.testing.pairs import ArraySegments
from papers.experiment import trial_bits

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

DELTA = Fraction(1, 10**8)
EPSILONS = (0.5, 1.0, 2.0, 4.0)
SEGMENTS = 20
HEAD_LIMIT = 1_000
TOP = (1, 3, 10)
TRIALS = 6


def shares(index: Path) -> list[str]:
    """Return the shares of the k largest items of each of 20 sections that are released with a count within 10 %.

    Users are packages; an item is a package's maintainer, or each package that it depends on.

    Args:
        index: a Packages file of Debian, uncompressed.
    """
    lines = []
    for name, field in (("maintainers", "Maintainer"), ("dependencies", "Depends")):
        rows = read(index.read_text(errors="replace"), field)
        pairs = ArraySegments(*rows)
        head = pairs.head(HEAD_LIMIT)
        of = pairs.segments(np.arange(pairs.count_items()))
        for k in TOP:
            order = np.lexsort((-pairs.counts, of))
            starts = np.searchsorted(of[order], of[order])
            largest = order[np.arange(len(order)) - starts < k]
            cells = [
                " / ".join(
                    f"{_share(pairs, source, mechanism, largest, (name, k, epsilon)):.2f}"
                    for mechanism, source in (
                        (_race(epsilon, k), head),
                        (_heads(epsilon, k), head),
                        (_auto(epsilon, k), pairs),
                    )
                )
                for epsilon in EPSILONS
            ]
            lines.append([f"{k} largest {name}", *cells])
    return markdown(["of each section", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)], lines)


def read(text: str, field: str) -> tuple[Ints, Ints, Ints]:
    """Return the package, the section and the item of each row, as numbers, for the sections with the most packages."""
    rows = []
    for package, block in enumerate(text.split("\n\n")):
        section = re.search(r"^Section: (.*)$", block, re.MULTILINE)
        value = re.search(rf"^{field}: (.*)$", block, re.MULTILINE)
        if section is not None and value is not None:
            items = (
                [value[1]] if field == "Maintainer" else [part.split()[0] for part in re.split(r", | \| ", value[1])]
            )
            rows += [(package, section[1], item) for item in items]
    packages, sections, items = (np.array(column) for column in zip(*rows, strict=True))
    names, counts = np.unique(sections, return_counts=True)
    kept = np.isin(sections, names[np.argsort(-counts)[:SEGMENTS]])
    numbered = (np.unique(column[kept], return_inverse=True)[1] for column in (sections, items))
    return (packages[kept], *numbered)


def _race(epsilon: float, k: int) -> Each:
    return Each(UnknownGumbel.within_cost(limit_for(epsilon, DELTA), Request(k, HEAD_LIMIT)), SEGMENTS)


def _heads(epsilon: float, k: int) -> Each:
    return Each(SelectVerify.within_cost(limit_for(epsilon, DELTA), Request(k, HEAD_LIMIT)), SEGMENTS)


def _auto(epsilon: float, k: int) -> EachAuto:
    auto = Auto.at_epsilon(Fraction(epsilon), DELTA, Request(None, HEAD_LIMIT))
    if auto is None:
        raise InvariantViolated("every epsilon measured here is large enough")
    return EachAuto.of(auto, SEGMENTS, k)


def _share(
    pairs: ArraySegments, source: object, mechanism: Each | EachAuto, largest: Ints, name: tuple[object, ...]
) -> float:
    """Return the mean share of the *largest* pairs that are released with a count within 10 %."""
    within = 0
    for trial in range(TRIALS):
        bits = trial_bits("each", {"cell": repr((*name, type(mechanism).__name__, mechanism.name))}, trial)
        outcome = mechanism.release(source, bits)  # type: ignore[arg-type]
        if outcome.counts is None:
            raise InvariantViolated("counts were requested")
        items = outcome.positions
        if isinstance(mechanism, Each) or outcome.chosen == mechanism.head.name:
            items = np.searchsorted(pairs.places(), pairs.head(HEAD_LIMIT).labels[items])
        error = np.abs(outcome.counts - pairs.counts[items]) / pairs.counts[items]
        within += int((np.isin(items, largest) & (error <= 0.1)).sum())
    return within / TRIALS / len(largest)
