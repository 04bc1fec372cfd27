"""Choosing parameters: the number of items and their accuracy, for tables of several sizes."""

from __future__ import annotations

import statistics
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from discreet.query.planning import make_plan
from discreet.table import table_query
from discreet.values import ExactHead
from papers.experiment import Experiment, trial_bits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from discreet.values import MechanismChoice
    from papers.experiment import Row, Setting

NAME = "parameters-accuracy"
USERS = (10_000, 100_000, 1_000_000)
EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
K = 10
DELTA = Fraction(1, 10**8)


def cells(setting: Setting) -> list[Row]:
    """Return a cell for each table size and epsilon."""
    sizes, epsilons, trials = (USERS[:1], EPSILONS[3:5], 2) if setting.smoke else (USERS, EPSILONS, 15)
    return [{"users": users, "epsilon": epsilon, "trials": trials} for users in sizes for epsilon in epsilons]


def measure(_: Setting, cell: Row) -> list[Row]:
    """Return medians over the trials: items of a top k and of a release, and the errors of their counts."""
    counts = made_up_counts(int(cell["users"] or 0))
    found: Row = dict(cell)
    queries: tuple[tuple[str, int | None, MechanismChoice], ...] = (("top", K, "gumbel"), ("release", None, "pcr"))
    for kind, k, mechanism in queries:
        plan = make_plan(
            table_query("user", "item", k, epsilon=float(cell["epsilon"] or 0), delta=DELTA, mechanism=mechanism)
        )
        head = ExactHead(counts[: plan.mechanism.head_limit + 1], plan.mechanism.head_limit)
        items, errors = [], []
        for trial in range(int(cell["trials"] or 0)):
            outcome = plan.mechanism.release(head, trial_bits(f"{NAME} {kind}", cell, trial))
            truth = counts[outcome.positions]
            items.append(len(truth))
            if outcome.counts is not None:
                errors += (np.abs(outcome.counts - truth) / truth).tolist()
        found[f"{kind}_items"] = statistics.median(items)
        found[f"{kind}_error"] = statistics.median(errors) if errors else None
    return [found]


def made_up_counts(users: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return users of each item, descending: a tenth of all users have the first; it falls as 1 / (rank + 5)."""
    return (users * 0.6 / (np.arange(20_000) + 6)).astype(np.int64)


def draw(rows: Sequence[Row]) -> Figure:
    """Draw items on the left and errors on the right, against epsilon."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, users in enumerate(sorted({int(row["users"] or 0) for row in rows})):
        mine = [row for row in rows if row["users"] == users]
        for kind, line in (("release", "-"), ("top", "--")):
            label = f"{users:,} users, {'top 10' if kind == 'top' else 'release'}"
            style = {"linestyle": line, "color": f"C{place}", "label": label, "marker": "o", "markersize": 3}
            left.plot([row["epsilon"] for row in mine], [row[f"{kind}_items"] for row in mine], **style)
            some = [row for row in mine if row[f"{kind}_error"] is not None]
            right.plot(
                [row["epsilon"] for row in some], [100 * float(row[f"{kind}_error"] or 0) for row in some], **style
            )
    for axes, name in ((left, "items returned"), (right, "median error of the counts (%)")):
        axes.set_xscale("log")
        axes.set_xlabel("epsilon")
        axes.set_ylabel(name)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_formatter("{x:g}")
    left.set_yscale("symlog", linthresh=1)
    left.set_ylim(bottom=0)
    left.yaxis.set_major_formatter("{x:,.0f}")
    right.set_yscale("log")
    right.yaxis.set_major_formatter("{x:g}")
    right.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def describe(rows: Sequence[Row]) -> str:
    """Describe the medians as a table."""
    lines = []
    for row in rows:
        errors = [row[f"{kind}_error"] for kind in ("top", "release")]
        shown = ["" if error is None else f"{float(error):.1%}" for error in errors]
        lines.append(
            f"| {int(row['users'] or 0):,} | {row['epsilon']:g} | {row['top_items']:g} | {shown[0]} | "
            f"{row['release_items']:g} | {shown[1]} |"
        )
    return "\n".join(
        [
            "Before there is data: how many items a query returns, and how far its counts are off, for made-up",
            "tables in which a tenth of all users have the first item and the item of rank r has 0.6 users / (r + 5).",
            f"δ = {float(DELTA):g}; medians of {rows[0]['trials']} answers each.",
            "",
            "| users | ε | top 10: items | error | release: items | error |",
            "| --- | --- | --- | --- | --- | --- |",
            *lines,
        ]
    )


EXPERIMENT = Experiment(
    NAME,
    "parameters",
    "Items and errors against epsilon",
    "ours: UnkGumb (Rogers et al. 2021) for a top 10, PCR (Rogers 2024) for a release",
    cells,
    measure,
    draw,
    describe,
)
