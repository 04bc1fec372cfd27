"""Tune the constants of the default release: `python -m benchmarks.accuracy_tuning`.

Seven constants of `two_round.Tuning` are varied in both directions on the tables of `accuracy_page.SET_ON` only.
Then `top` by `auto` is compared with a race alone, for small k, on the same tables.

`--search` sets the seven constants on these tables alone, starting from the most conservative ones, and
compares them on the other tables with the constants that are used. `--head` does so for the constants of `head` and of
the choice of `auto`, and then swaps the halves.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import click
import numpy as np

from benchmarks.accuracy import DELTA, EPSILONS, HEAD_LIMIT, SMALL
from benchmarks.accuracy_page import FEW, SET_ON, geometric_mean
from benchmarks.timing import table as markdown
from discreet.accounting.convert import limit_for
from discreet.errors import InvariantViolated
from discreet.mechanisms import Request, SelectVerify, UnknownGumbel
from discreet.mechanisms.auto import USERS_PER_NOISE, Auto
from discreet.mechanisms.light import measured
from discreet.mechanisms.select_verify import ERRORS
from discreet.mechanisms.two_round import TUNING, Tuning
from discreet.testing.pairs import ArrayPairs
from discreet.values import ExactHead
from papers.experiment import trial_bits
from papers.tables import REAL, Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from discreet.noise import Bits
    from discreet.values import Outcome

    Found = NDArray[np.int64]

MOVED: Mapping[str, tuple[float, float]] = {
    "first_share": (0.15, 0.25),
    "mass_kept": (0.4, 0.6),
    "clipping": (0.4, 0.6),
    "noise": (0.42, 0.54),
    "precise": (0.75, 0.95),
    "power": (0.65, 0.85),
    "uneven_second": (0.5, 0.9),
}
GRIDS: Mapping[str, tuple[float, ...]] = {
    "first_share": (0.1, 0.15, 0.2, 0.25, 0.3),
    "mass_kept": (0.3, 0.4, 0.5, 0.6, 0.7),
    "clipping": (0.3, 0.4, 0.5, 0.6, 0.7),
    "noise": (0.36, 0.42, 0.48, 0.54, 0.6),
    "precise": (0.65, 0.75, 0.85, 0.95, 1.05),
    "power": (0.55, 0.65, 0.75, 0.85, 0.95),
    "uneven_second": (0.3, 0.5, 0.7, 0.9, 1.1),
}
ERRORS_GRID = tuple(n / 20 for n in range(28, 39))
MAX_BEYOND = 0.06
"""The largest mean share of released counts beyond 10 % that a search allows."""

FRACTION, MAX_BELOW = 0.9, 0.05
"""At most this share of cells may have less than this fraction of the head's counts."""

TRIALS = 2
TRIALS_OF_TOP = 6
TRIALS_OF_HEAD = 4
RELEASE = Request(None, HEAD_LIMIT)
ORACLE_EPSILONS = (0.5, 2.0, 8.0)
SIZES = (3, 4, 5, 6, 8, 10)


def constants(tables: Tables) -> list[str]:
    """Compare counts within 10 %, and shares beyond 10 %, of neighbouring constants with those of the current ones."""
    found: dict[tuple[str, float], list[tuple[float, float]]] = {}
    settings = [("none", 0.0), *((name, value) for name, values in MOVED.items() for value in values)]
    for name, epsilon in itertools.product(SET_ON, EPSILONS):
        table = tables.real(name)
        pairs, auto = _pairs(tables, [name])[name], _auto(epsilon, RELEASE)
        for moved, value in settings:
            tuning = TUNING if moved == "none" else replace(TUNING, **{moved: value})  # type: ignore[arg-type]
            release = replace(auto, two_round=replace(auto.two_round, tuning=tuning)).release
            within = released = 0
            for trial in range(TRIALS):
                outcome = release(pairs, trial_bits("tuning", {"table": name, "epsilon": epsilon}, trial))
                within, released = within + _within(outcome, table.counts), released + len(outcome.positions)
            found.setdefault((moved, value), []).append((within / TRIALS, released / TRIALS))
    lines = []
    for (moved, value), cells in found.items():
        ratios = [(here + 1) / (base + 1) for (here, _), (base, _) in zip(cells, found["none", 0.0], strict=True)]
        beyond = [1 - within / released for within, released in cells if released >= FEW]
        shares = [f"{np.mean(beyond):.1%}", f"{sum(share > 0.1 for share in beyond)} of {len(beyond)}"]
        lines.append([moved, f"{value:g}", f"{geometric_mean(ratios):.3f}", *shares, f"{max(beyond):.0%}"])
    return markdown(["constant", "moved to", "counts within 10 %", "beyond", "over 10 % beyond", "worst"], lines)


def search(tables: Tables) -> list[str]:
    """Set the constants on `SET_ON` alone, and compare their releases with those of the current constants.

    The search starts from the first value of each grid, and the last of `uneven_second`, which release few counts, few
    of them beyond 10 %. Each constant in turn moves by a step if that increases the counts within 10 % and leaves at
    most `MAX_BEYOND` of the released counts beyond 10 %, until none moves.
    """
    set_on = _pairs(tables, SET_ON)
    place = dict.fromkeys(GRIDS, 0) | {"uneven_second": len(GRIDS["uneven_second"]) - 1}
    best = _found(set_on, _tuning(place))
    moved = True
    while moved:
        moved = False
        for name, step in itertools.product(GRIDS, (1, -1)):
            other = place | {name: place[name] + step}
            if not 0 <= other[name] < len(GRIDS[name]):
                continue
            found = _found(set_on, _tuning(other))
            if _more(found, best) > 1 and _beyond(found) <= MAX_BEYOND:
                place, best, moved = other, found, True
                print(f"{name} = {GRIDS[name][place[name]]:g}: {_beyond(found):.1%} beyond", flush=True)
    lines = []
    others = _pairs(tables, [name for name in SMALL if name not in SET_ON and tables.has(name)])
    for title, half in {"tables they are set on": set_on, "other tables": others}.items():
        lines.append([title, *_compared(_found(half, TUNING), _found(half, _tuning(place)))])
    headings = ["", "counts within 10 %, relative to today's", "beyond, today's", "beyond"]
    return [str({name: GRIDS[name][n] for name, n in place.items()}), *markdown(headings, lines)]


def oracle(tables: Tables) -> list[str]:
    """Compare counts within 10 % by auto with those of the best of 24 settings, chosen on the truth for each cell.

    The settings are the constants of two rounds, 16 others, three of the head, and one round with caps of 1 to 8 items.
    One with over 10 % of its counts beyond 10 % is left out. Tables are those that no constant was set on.
    """
    grids = {"first_share": (0.12, 0.28), "clipping": (0.35, 0.65), "noise": (0.42, 0.56), "power": (0.6, 0.9)}
    moved = [dict(zip(grids, values, strict=True)) for values in itertools.product(*grids.values())]
    tunings = [TUNING, *(replace(TUNING, **values) for values in moved)]
    ratios: dict[float, list[float]] = {}
    names = [name for name in SMALL if name not in SET_ON and tables.has(name)]
    for name, epsilon in itertools.product(names, ORACLE_EPSILONS):
        truth, pairs, auto = tables.real(name).counts, _pairs(tables, [name])[name], _auto(epsilon, RELEASE)
        order = np.argsort(-truth, kind="stable")[: HEAD_LIMIT + 1]
        head = ExactHead(truth[order], HEAD_LIMIT)
        found = []
        for trial in range(TRIALS):
            cell = {"table": name, "epsilon": epsilon, "trial": trial}
            every_bits = (trial_bits("oracle", cell | {"setting": n}, trial) for n in itertools.count())
            outcomes = [auto.release(pairs, next(every_bits))]
            outcomes += [replace(auto.two_round, tuning=each).release(pairs, next(every_bits)) for each in tunings]
            for errors in (1.4, ERRORS, 1.9):
                with patch("discreet.mechanisms.select_verify.ERRORS", errors):
                    outcome = auto.head.release(head, next(every_bits))
                outcomes.append(replace(outcome, positions=order[outcome.positions]))
            sizes = auto.two_round.measure_sizes(pairs, next(every_bits))
            caps = [measured(items, sizes) for items in (1, 2, 4, 8)]
            outcomes += [auto.light.release(cap, pairs, next(every_bits)) for cap in caps]
            found.append([(_within(outcome, truth), len(outcome.positions)) for outcome in outcomes])
        (ours, _), *others = np.sum(found, axis=0).tolist()
        allowed = [within for within, released in others if released < FEW or within >= 0.9 * released]
        ratios.setdefault(epsilon, []).append((max([ours, *allowed]) + 1) / (ours + 1))
        print(name, epsilon, f"{ratios[epsilon][-1]:.2f}", flush=True)
    every = [ratio for each in ratios.values() for ratio in each]
    lines = [[f"{epsilon:g}", f"{geometric_mean(each):.2f}", f"{max(each):.2f}"] for epsilon, each in ratios.items()]
    lines.append(["all", f"{geometric_mean(every):.2f}", f"{max(every):.2f}"])
    return markdown(["ε", "best of 24 settings / auto", "largest"], lines)


def _tuning(place: Mapping[str, int]) -> Tuning:
    return replace(TUNING, **{name: GRIDS[name][n] for name, n in place.items()})  # type: ignore[arg-type]


def _found(tables: Mapping[str, ArrayPairs], tuning: Tuning) -> Found:
    """Release by two rounds with *tuning*, once for each table and three epsilons."""

    def release(pairs: ArrayPairs, epsilon: float, bits: Bits) -> Outcome:
        auto = _auto(epsilon, RELEASE)
        return replace(auto, two_round=replace(auto.two_round, tuning=tuning)).release(pairs, bits)

    return _released(tables, EPSILONS[::2], 1, release)


def _released(
    tables: Mapping[str, ArrayPairs],
    epsilons: Sequence[float],
    trials: int,
    release: Callable[[ArrayPairs, float, Bits], Outcome],
) -> Found:
    """Return the numbers of counts within 10 % and of all released counts, by table, epsilon and trial."""
    found = []
    for (name, pairs), epsilon, trial in itertools.product(tables.items(), epsilons, range(trials)):
        outcome = release(pairs, epsilon, _bits(name, epsilon, trial))
        found.append((_within(outcome, pairs.counts), len(outcome.positions)))
    return np.array(found)


def _more(found: Found, base: Found) -> float:
    """Return the geometric mean ratio of counts within 10 % to those of *base*, with one added to all numbers."""
    return math.exp(float(np.log((found[:, 0] + 1) / (base[:, 0] + 1)).mean()))


def _beyond(found: Found) -> float:
    """Return the mean share of counts beyond 10 % in the releases that are not too small."""
    large = found[found[:, 1] >= FEW]
    return float((1 - large[:, 0] / large[:, 1]).mean())


def _compared(today: Found, found: Found) -> list[str]:
    return [f"{_more(found, today):.3f}", f"{_beyond(today):.1%}", f"{_beyond(found):.1%}"]


def _bits(name: str, epsilon: float, trial: int) -> Bits:
    return trial_bits("search", {"table": name, "epsilon": epsilon}, trial)


def head_constants(tables: Tables) -> list[str]:
    """Choose `ERRORS` and `USERS_PER_NOISE` on each half of the tables, and compare them with the current on the other.

    `ERRORS` is the value of its grid with which `head` has the most counts within 10 % (geometric mean over tables,
    epsilons and trials), among those with which at most `MAX_BEYOND` of the released counts are beyond 10 %.
    `USERS_PER_NOISE` is the value with which `auto` has the most counts within 10 %, of those with which it has less
    than `FRACTION` of the head's on at most `MAX_BELOW` of tables and epsilons; and the value without that condition.
    """
    set_on = _pairs(tables, SET_ON)
    others = _pairs(tables, [name for name in SMALL if name not in SET_ON and tables.has(name)])
    lines, switch_lines = [], []
    branches = {"tables they are set on": Branches(set_on), "other tables": Branches(others)}
    for (title, half), other in zip(branches.items(), reversed(branches.values()), strict=True):
        errors = _choose_errors(half.tables)
        lines.append([title, f"{errors:g}", *_compared(_by_head(other.tables, ERRORS), _by_head(other.tables, errors))])
        for name, switch in half.best_switches().items():
            compared = _compared(other.switched(USERS_PER_NOISE), other.switched(switch))
            below = (f"{other.below(value):.0%}" for value in (USERS_PER_NOISE, switch))
            switch_lines.append([title, name, f"{switch:.0f}", *compared, *below])
    counts = ["counts on the other half", "beyond, today's", "beyond"]
    below_headings = ["below 0.9 of the head, today's", "below 0.9 of the head"]
    return [
        *markdown(["chosen on", "`ERRORS`", *counts], lines),
        "",
        *markdown(["chosen on", "by", "`USERS_PER_NOISE`", *counts, *below_headings], switch_lines),
    ]


def _choose_errors(tables: Mapping[str, ArrayPairs]) -> float:
    today = _by_head(tables, ERRORS)
    allowed = {}
    for errors in ERRORS_GRID:
        found = _by_head(tables, errors)
        more, beyond = _more(found, today), _beyond(found)
        print(f"ERRORS = {errors:g}: {more:.3f} of today's counts, {beyond:.1%} beyond", flush=True)
        if beyond <= MAX_BEYOND:
            allowed[errors] = more
    return max(allowed, key=lambda errors: allowed[errors])


def _by_head(tables: Mapping[str, ArrayPairs], errors: float) -> Found:
    def release(pairs: ArrayPairs, epsilon: float, bits: Bits) -> Outcome:
        order = np.argsort(-pairs.counts, kind="stable")[: RELEASE.head_limit + 1]
        head = ExactHead(pairs.counts[order], RELEASE.head_limit)
        outcome = SelectVerify.within_cost(limit_for(epsilon, DELTA), RELEASE).release(head, bits)
        return replace(outcome, positions=order[outcome.positions])

    with patch("discreet.mechanisms.select_verify.ERRORS", errors):
        return _released(tables, EPSILONS, TRIALS_OF_HEAD, release)


class Branches:
    """The releases of `auto` by the head and by two rounds, and the ratio of users to users of noise."""

    def __init__(self, tables: Mapping[str, ArrayPairs]) -> None:
        self.tables = tables
        self.heads = self._released(math.inf)
        self.rounds = self._released(0)
        sizes = [
            _auto(epsilon, RELEASE).two_round.measure_sizes(pairs, _bits(name, epsilon, trial))
            for (name, pairs), epsilon, trial in itertools.product(tables.items(), EPSILONS, range(TRIALS_OF_HEAD))
        ]
        self.users_per_noise = np.array([measured.users / measured.scale for measured in sizes])

    def _released(self, switch: float) -> Found:
        with patch("discreet.mechanisms.auto.USERS_PER_NOISE", switch):
            return _released(
                self.tables,
                EPSILONS,
                TRIALS_OF_HEAD,
                lambda pairs, epsilon, bits: _auto(epsilon, RELEASE).release(pairs, bits),
            )

    def switched(self, switch: float) -> Found:
        """Return the releases of `auto` if `USERS_PER_NOISE` is *switch*."""
        return np.where(self.users_per_noise[:, None] < switch, self.heads, self.rounds)

    def below(self, switch: float) -> float:
        """Return the share of tables and epsilons whose mean counts within 10 % are below `FRACTION` of the head's."""
        counts, heads = (
            found[:, 0].reshape(-1, TRIALS_OF_HEAD).mean(axis=1) + 1 for found in (self.switched(switch), self.heads)
        )
        return float((counts < FRACTION * heads).mean())

    def best_switches(self) -> dict[str, float]:
        """Return the best values with and without the condition; each is midway between the ratios of two releases."""
        ends = np.sort(self.users_per_noise)
        values = np.sqrt(ends[:-1] * ends[1:]).tolist()

        def more(value: float) -> float:
            return _more(self.switched(value), self.heads)

        few = [value for value in values if self.below(value) <= MAX_BELOW]
        return {"counts, few below the head": max(few, key=more), "counts alone": max(values, key=more)}


class _Queried(ArrayPairs):
    """Pairs that record whether they were queried: if only the head was, positions are rows of the head."""

    queried = False

    def users_by_size(self, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        self.queried = True
        return super().users_by_size(bounds)


def top(tables: Tables) -> list[str]:
    """Return the share of the k largest items returned with a count within 10 %: the mean over tables and epsilons."""
    lines = []
    pairs = {name: _Queried(tables.real(name).users, tables.real(name).items) for name in SET_ON}
    for k in SIZES:
        shares = []
        for name, epsilon in itertools.product(SET_ON, EPSILONS[:-1]):
            table, request = tables.real(name), Request(k, 1_000)
            order = np.argsort(-table.counts, kind="stable")
            head, least = ExactHead(table.counts[order[:1_001]], 1_000), int(table.counts[order[k - 1]])
            race = UnknownGumbel.within_cost(limit_for(epsilon, DELTA), request)
            for trial in range(TRIALS_OF_TOP):
                cell = {"table": name, "epsilon": epsilon, "k": k}
                pairs[name].queried = False
                auto = _auto(epsilon, request).release(pairs[name], trial_bits("top", cell, trial))
                raced = race.release(head, trial_bits("top by race", cell, trial))
                raced = replace(raced, positions=order[raced.positions])
                if not pairs[name].queried:
                    auto = replace(auto, positions=order[auto.positions])
                shares.append([_within(outcome, table.counts, least) / k for outcome in (auto, raced)])
        lines.append([str(k), *(f"{share:.3f}" for share in np.mean(shares, axis=0))])
    return markdown(["k", "auto", "unknown-gumbel"], lines)


def _auto(epsilon: float, request: Request) -> Auto:
    auto = Auto.at_epsilon(Fraction(epsilon), DELTA, request)
    if auto is None:
        raise InvariantViolated("every epsilon measured here is large enough")
    return auto


def _pairs(tables: Tables, names: Sequence[str]) -> dict[str, ArrayPairs]:
    return {name: ArrayPairs(tables.real(name).users, tables.real(name).items) for name in names}


def _within(outcome: Outcome, truth: NDArray[np.int64], least: float = -math.inf) -> int:
    """Return the number of counts within 10 % of items with *least* users or more."""
    true = truth[outcome.positions]
    if outcome.counts is None:
        raise InvariantViolated("counts were requested")
    return int(((np.abs(outcome.counts - true) <= true / 10) & (true >= least)).sum())


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=REAL, help="The folder of the real tables.")
@click.option("--search", "searches", is_flag=True, help="Set the constants of two rounds on half of the tables.")
@click.option("--head", "heads", is_flag=True, help="Choose the constants of head and auto on each half of the tables.")
@click.option("--oracle", "oracles", is_flag=True, help="Compare auto with the best settings on the truth.")
def main(*, data: Path, searches: bool, heads: bool, oracles: bool) -> None:
    """Print the two tables, the search, the choice or the comparison; each takes up to ten minutes."""
    tables = Tables(real=data)
    if oracles:
        print("\n".join(oracle(tables)))
    elif heads:
        print("\n".join(head_constants(tables)))
    else:
        print("\n".join(search(tables) if searches else [*constants(tables), "", *top(tables)]))


if __name__ == "__main__":
    main()
