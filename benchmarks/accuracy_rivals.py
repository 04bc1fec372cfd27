"""The errors of the largest counts, and rivals with the best settings: `python -m benchmarks.accuracy_rivals`.

`--largest` measures the errors of the ten and the hundred largest counts and the bias of all that are released. The
default compares the counts within 10 % with those of four other methods, each with the settings that are best by the
truth in every cell, and finds tables on which `auto` loses. Both print the tables of docs/accuracy.md.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import TYPE_CHECKING

import click
import numpy as np

from benchmarks.accuracy import CONFIDENCE, DELTA, EPSILONS, HEAD_LIMIT, PERCENTILES, SMALL
from benchmarks.accuracy_page import geometric_mean
from benchmarks.timing import table as markdown
from discreet.accounting.convert import limit_for
from discreet.accounting.gaussian import mu_gaussian
from discreet.errors import InvariantViolated
from discreet.mechanisms import Request, SelectVerify
from discreet.mechanisms.auto import Auto
from discreet.testing.pairs import ArrayPairs
from discreet.values import ExactHead
from papers.baselines import Counted, bounding_mask, non_private_percentile, one_pass, two_passes, weighted_selection
from papers.experiment import trial_bits, trial_seed
from papers.tables import Tables
from papers.user_items import UserItems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from discreet.values import Outcome

TARGET = 0.1
TRIALS = 2
SHARES = (0.1, 0.3, 0.5)
"""Shares of mu^2 for the selection that a rival with two passes tries."""

FRACTIONS = (1, 0.5, 0.25, 0.125, 0.0625)
"""Shares of the selected items, the largest, that correlated noise is tried on: its error grows with their number."""

RIVALS = {
    "Laplace": "one pass, every user bounded, Laplace noise and a threshold",
    "Gaussian": "the same with Gaussian noise",
    "weighted": "weighted Gaussian selection; users bounded again, and counted",
    "correlated": "weighted Gaussian selection; counts without a bound, of which all share a part of their noise",
}


def losing() -> dict[str, UserItems]:
    """Return made-up tables on which another method or another branch is better."""
    rng = np.random.default_rng(33)

    def drawn(users: int, each: tuple[int, int], weights: NDArray[np.float64], name: str) -> UserItems:
        sizes = rng.integers(each[0], each[1], users, endpoint=True)
        pairs = np.repeat(np.arange(users), sizes) * len(weights)
        pairs = np.unique(pairs + rng.choice(len(weights), len(pairs), p=weights / weights.sum()))
        items = np.unique(pairs % len(weights), return_inverse=True)[1]
        return UserItems(name, pairs // len(weights), items.astype(np.int64))

    ranks = np.arange(1, 30_001)
    return {
        "2 to 4 items": drawn(100_000, (2, 4), 1 / ranks, "2 to 4 items (made up)"),
        "2 to 6 items": drawn(100_000, (2, 6), 1 / ranks, "2 to 6 items (made up)"),
        "flat counts": drawn(100_000, (1, 10), np.ones(4_000), "flat counts (made up)"),
        "500 users": drawn(500, (1, 5), 1 / ranks[:100], "500 users (made up)"),
    }


def released(table: UserItems, epsilon: float, trial: int, *, head: bool = False) -> tuple[Outcome, NDArray[np.int64]]:
    """Return a release by `auto`, or from the head, and the numbers of its items."""
    request = Request(None, HEAD_LIMIT)
    bits = trial_bits("rivals", {"table": table.name, "epsilon": epsilon}, trial)
    if not head:
        auto = Auto.at_epsilon(Fraction(epsilon), DELTA, request)
        if auto is None:
            raise InvariantViolated("every epsilon measured here is large enough")
        outcome = auto.release(ArrayPairs(table.users, table.items), bits)
        return outcome, outcome.positions
    order = np.argsort(-table.counts, kind="stable")[: HEAD_LIMIT + 1]
    mechanism = SelectVerify.within_cost(limit_for(epsilon, DELTA), request)
    outcome = mechanism.release(ExactHead(table.counts[order], HEAD_LIMIT), bits)
    return outcome, order[outcome.positions]


def largest(tables: Tables) -> list[str]:
    """Errors of the largest released counts and the bias of all, by `auto` / by the head."""
    rows = []
    for name in SMALL:
        if not tables.has(name):
            continue
        table = tables.real(name)
        for epsilon in (1.0, 4.0):
            columns = []
            for head in (False, True):
                errors = []
                for trial in range(TRIALS):
                    outcome, items = released(table, epsilon, trial, head=head)
                    if outcome.counts is None:
                        raise InvariantViolated("counts were requested")
                    order = np.argsort(-table.counts[items], kind="stable")
                    errors.append((outcome.counts / table.counts[items] - 1)[order])
                root = [math.sqrt(np.mean(np.concatenate([each[:n] for each in errors]) ** 2)) for n in (10, 100)]
                columns.append([*root, float(np.mean(np.concatenate([each[:10] for each in errors])))])
                columns[-1].append(float(np.mean(np.concatenate(errors))))
            shown = [f"{100 * ours:.2g}% / {100 * theirs:.2g}%" for ours, theirs in zip(*columns, strict=True)]
            rows.append([name, f"{epsilon:g}", *shown])
    return markdown(["table", "ε", "ten largest", "hundred largest", "bias of ten", "bias of all"], rows)


def candidates(table: UserItems, epsilon: float) -> Iterator[tuple[str, Counted]]:
    """Yield the releases of all rivals at all their settings, with the names of the rivals."""
    lost = float(DELTA / 2)
    mu = mu_gaussian(epsilon, lost)
    for percent in PERCENTILES:
        rng = np.random.default_rng(trial_seed("rivals", {"table": table.name, "percent": percent}, 0))
        most = non_private_percentile(table.contributions, percent)
        kept = bounding_mask(table.users, most, rng)
        for laplace in (True, False):
            scale = most / epsilon if laplace else math.sqrt(most) / mu
            lost_alone = float(DELTA) if laplace else lost
            yield "Laplace" if laplace else "Gaussian", one_pass(table, kept, most, scale, lost_alone, rng, laplace)
        for share in SHARES:
            selected = weighted_selection(table, kept, most, 1 / (mu * math.sqrt(share)), lost, rng)
            left = mu * math.sqrt(1 - share)
            yield "weighted", two_passes(table, selected, left, percent, rng)
            for fraction in FRACTIONS:
                part = selected[: math.ceil(fraction * len(selected))]
                sigma = (math.sqrt(len(part)) + 1) / (2 * left)
                noise = sigma * rng.standard_normal(len(part))  # what all share does not change counts within 10 %
                yield "correlated", Counted(part, table.counts[part] + noise, np.full(len(part), sigma))


def within(items: NDArray[np.int64], counts: NDArray[np.float64], truth: NDArray[np.int64]) -> int:
    """Return how many counts are within the target."""
    return int((np.abs(counts - truth[items]) <= TARGET * truth[items]).sum())


def rivals(tables: Tables) -> list[str]:
    """Counts within 10 % by `auto`, and by each rival at its best settings by the truth."""
    named: dict[str, Callable[[], UserItems]] = {
        name: lambda n=name: tables.real(n) for name in SMALL if tables.has(name)
    }
    named |= {name: lambda t=table: t for name, table in losing().items()}
    rows = []
    ratios = []
    for (name, load), epsilon in itertools.product(named.items(), EPSILONS[1::2]):
        table = load()
        best = dict.fromkeys(RIVALS, 0)
        for rival, found in candidates(table, epsilon):
            cut = found.above(CONFIDENCE / TARGET * found.sigma.max(initial=0))
            best[rival] = max(best[rival], within(cut.items, cut.counts, table.counts))
        ours = []
        for trial in range(TRIALS):
            outcome, items = released(table, epsilon, trial)
            if outcome.counts is None:
                raise InvariantViolated("counts were requested")
            ours.append(within(items, outcome.counts.astype(np.float64), table.counts))
        mean = float(np.mean(ours))
        ratio = (mean + 1) / (max(best.values()) + 1)
        if tables.has(name):
            ratios.append(ratio)
        made_up = "" if tables.has(name) else "made up, "
        rows.append(
            [
                f"{made_up}{name}",
                f"{epsilon:g}",
                *(f"{count:,}" for count in best.values()),
                f"**{mean:,.0f}**",
                f"{ratio:.2f}",
            ]
        )
    lines = markdown(["table", "ε", *RIVALS, "**release**", "ratio"], rows)
    if ratios:
        lines += ["", f"Geometric mean over the real tables: {geometric_mean(ratios):.2f}"]
    return lines


@click.command()
@click.option("--largest", "only_largest", is_flag=True, help="Errors of the largest counts, and bias.")
def main(*, only_largest: bool) -> None:
    """Print the tables of docs/accuracy.md about the largest counts and about tuned rivals."""
    print("\n".join((largest if only_largest else rivals)(Tables())))


if __name__ == "__main__":
    main()
