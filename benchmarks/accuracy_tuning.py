"""Why the constants of the default release are what they are: `python -m benchmarks.accuracy_tuning`.

Seven constants of `two_round.Tuning` are moved both ways on the tables of `accuracy_page.SET_ON`, not on the
others. Then `top` by `auto` and by a race alone, for small k, on the same tables: from which k on is `auto` better?
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
from papers.experiment import trial_bits
from papers.tables import REAL, Tables

from benchmarks.accuracy import DELTA, EPSILONS
from benchmarks.accuracy_page import FEW, SET_ON, geometric_mean
from benchmarks.timing import table as markdown
from discreet.accounting.convert import limit_for
from discreet.errors import InvariantViolated
from discreet.mechanisms import Request, UnknownGumbel
from discreet.mechanisms.auto import Auto
from discreet.mechanisms.two_round import TUNING
from discreet.testing.pairs import ArrayPairs
from discreet.values import ExactHead

if TYPE_CHECKING:
    from collections.abc import Mapping

    from papers.user_items import UserItems

    from discreet.values import Outcome

MOVED: Mapping[str, tuple[float, float]] = {
    "first_share": (0.15, 0.25),
    "mass_kept": (0.4, 0.6),
    "clipping": (0.4, 0.6),
    "noise": (0.42, 0.54),
    "precise": (0.75, 0.95),
    "power": (0.65, 0.85),
    "uneven_second": (0.5, 0.9),
}
TRIALS = 2
TRIALS_OF_TOP = 6
SIZES = (3, 4, 5, 6, 8, 10)


def constants(tables: Tables) -> list[str]:
    """Counts within 10 % by each constant's neighbours, relative to those by the constants, and shares beyond."""
    found: dict[tuple[str, float], list[tuple[float, float]]] = {}
    settings = [("none", 0.0), *((name, value) for name, values in MOVED.items() for value in values)]
    for name, epsilon in itertools.product(SET_ON, EPSILONS):
        table = tables.real(name)
        pairs, auto = ArrayPairs(table.users, table.items), _auto(epsilon, Request(None, 10_000))
        for moved, value in settings:
            tuning = TUNING if moved == "none" else replace(TUNING, **{moved: value})  # type: ignore[arg-type]
            release = replace(auto, two_round=replace(auto.two_round, tuning=tuning)).release
            within = released = 0
            for trial in range(TRIALS):
                outcome = release(pairs, trial_bits("tuning", {"table": name, "epsilon": epsilon}, trial))
                within, released = within + _within(outcome, table), released + len(outcome.positions)
            found.setdefault((moved, value), []).append((within / TRIALS, released / TRIALS))
    lines = []
    for (moved, value), cells in found.items():
        ratios = [(here + 1) / (base + 1) for (here, _), (base, _) in zip(cells, found["none", 0.0], strict=True)]
        beyond = [1 - within / released for within, released in cells if released >= FEW]
        shares = [f"{np.mean(beyond):.1%}", f"{sum(share > 0.1 for share in beyond)} of {len(beyond)}"]
        lines.append([moved, f"{value:g}", f"{geometric_mean(ratios):.3f}", *shares, f"{max(beyond):.0%}"])
    return markdown(["constant", "moved to", "counts within 10 %", "beyond", "over 10 % beyond", "worst"], lines)


def top(tables: Tables) -> list[str]:
    """The share of the k largest items that is returned with a count within 10 %: the mean over tables and epsilons."""
    lines = []
    pairs = {name: ArrayPairs(tables.real(name).users, tables.real(name).items) for name in SET_ON}
    for k in SIZES:
        shares = []
        for name, epsilon in itertools.product(SET_ON, EPSILONS[:-1]):
            table, request = tables.real(name), Request(k, 1_000)
            order = np.argsort(-table.counts, kind="stable")
            head, least = ExactHead(table.counts[order[:1_001]], 1_000), int(table.counts[order[k - 1]])
            race = UnknownGumbel.within(limit_for(epsilon, DELTA), request)
            for trial in range(TRIALS_OF_TOP):
                cell = {"table": name, "epsilon": epsilon, "k": k}
                auto = _auto(epsilon, request).release(pairs[name], trial_bits("top", cell, trial))
                raced = race.release(head, trial_bits("top by race", cell, trial))
                raced = replace(raced, positions=order[raced.positions])
                shares.append([_within(outcome, table, least) / k for outcome in (auto, raced)])
        lines.append([str(k), *(f"{share:.3f}" for share in np.mean(shares, axis=0))])
    return markdown(["k", "auto", "unknown-gumbel"], lines)


def _auto(epsilon: float, request: Request) -> Auto:
    auto = Auto.at(Fraction(epsilon), DELTA, request)
    if auto is None:
        raise InvariantViolated("every epsilon measured here is large enough")
    return auto


def _within(outcome: Outcome, table: UserItems, least: float = -math.inf) -> int:
    """How many counts of items with *least* users or more are within 10 %."""
    true = table.counts[outcome.positions]
    if outcome.counts is None:
        raise InvariantViolated("counts were asked for")
    return int(((np.abs(outcome.counts - true) <= true / 10) & (true >= least)).sum())


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=REAL, help="The folder of the real tables.")
def main(*, data: Path) -> None:
    """Print both tables; about ten minutes."""
    tables = Tables(real=data)
    print("\n".join([*constants(tables), "", *top(tables)]))


if __name__ == "__main__":
    main()
