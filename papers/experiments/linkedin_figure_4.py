"""LinkedIn 2021, Figure 4: UnkLap for one item per user; which of the top 100 are returned, with which counts."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from discreet.mechanisms import UnknownLaplace
from papers.experiment import Experiment, trial_bits, trial_seed
from papers.experiments import linkedin_audiences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from papers.experiment import Row, Setting

NAME = "linkedin-figure-4"
K = 100
HEAD_LIMIT = 1000
DELTA = Fraction(1, 10**10)
EPSILONS = (0.1, 0.2)
TRIALS = 1000
SHOWN = 150
"""Ranks in the figure: the top 100, and some that are returned in their place."""


def cells(setting: Setting) -> list[Row]:
    """Return a cell for each table and epsilon_per; of the real table a random third of the users is kept."""
    tables: list[Row] = [{"table": "linkedin-titles", "made_up": True, "share": 1.0}]
    if setting.tables.has("reddit-posts-domain") and not setting.smoke:
        tables.append({"table": "reddit-posts-domain", "made_up": False, "share": 1 / 3})
    trials = 2 if setting.smoke else TRIALS
    return [table | {"epsilon_per": epsilon, "trials": trials} for table in tables for epsilon in EPSILONS]


def measure(setting: Setting, cell: Row) -> list[Row]:
    """Return for each rank how often it is returned, and its noisy count in the first trial."""
    table, trials = setting.table(cell), int(cell["trials"] or 0)
    rng = np.random.default_rng(trial_seed(NAME, {"table": table.name}))
    head = linkedin_audiences.audience(table, float(cell["share"] or 0), HEAD_LIMIT, rng)
    scale = 2 / Fraction(str(cell["epsilon_per"]))
    mechanism = UnknownLaplace(K, HEAD_LIMIT, 1, scale, DELTA, noise="laplace")
    returned = np.zeros(HEAD_LIMIT, dtype=np.int64)
    noisy: dict[int, int] = {}
    for trial in range(trials):
        outcome = mechanism.release(head, trial_bits(NAME, cell, trial))
        returned[outcome.positions] += 1
        if trial == 0 and outcome.counts is not None:
            noisy = dict(zip(outcome.positions.tolist(), outcome.counts.tolist(), strict=True))
    below = head.count_at(HEAD_LIMIT + 1) + 1
    name = table.name if cell["share"] == 1 else f"{table.name}, a random third of its users"
    fixed: Row = {"table": name, "epsilon_per": cell["epsilon_per"]}
    fixed |= {"threshold": below + mechanism.margin(), "published": below + published_margin(float(2 / scale))}
    return [
        fixed
        | {"rank": i + 1, "true": int(head.counts[i]), "noisy": noisy.get(i), "share": float(returned[i]) / trials}
        for i in range(SHOWN)
    ]


def published_margin(epsilon: float) -> float:
    """Return what Algorithm 3 adds to h_(dbar+1) + 1 for Delta = 1: 2 ln(1/d) / epsilon, d found by bisection.

    Args:
        epsilon: epsilon_per.
    """
    low, high = 1e-30, 1.0
    for _ in range(200):
        middle = math.sqrt(low * high)
        spent = middle / 4 * (math.exp(epsilon / 2) + 1) * (3 - math.log(middle))
        low, high = (middle, high) if spent <= DELTA else (low, middle)
    return -2 * math.log(low) / epsilon


def draw(rows: Sequence[Row]) -> Figure:
    """Draw true counts, noisy counts of one trial, and the share of trials in which each rank is returned."""
    panels = list(dict.fromkeys((str(row["table"]), float(row["epsilon_per"] or 0)) for row in rows))
    figure = Figure(figsize=(10, 2.8 * len(panels)), layout="constrained")
    for axes, (table, epsilon) in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        own = [row for row in rows if (row["table"], row["epsilon_per"]) == (table, epsilon)]
        ranks = [int(row["rank"] or 0) for row in own]
        axes.bar(ranks, [float(row["true"] or 0) for row in own], color="tab:red", alpha=0.5, label="true count")
        found = [(row["rank"], row["noisy"]) for row in own if row["noisy"] is not None]
        axes.plot(*zip(*found, strict=True), "x", color="tab:green", markersize=4, label="noisy count, one trial")
        axes.axhline(float(own[0]["threshold"] or 0), color="grey", linewidth=0.8, label="threshold before its noise")
        axes.set(yscale="log", xlabel="rank of the true count", ylabel="users", xlim=(0, SHOWN + 1))
        axes.set_title(f"{table}, ε_per = {epsilon:g}")
        right = axes.twinx()
        right.plot(ranks, [float(row["share"] or 0) for row in own], color="tab:blue", label="share of trials")
        right.set(ylabel="share of trials returned", ylim=(0, 1.03))
        handles = [pair for each in (axes, right) for pair in zip(*each.get_legend_handles_labels(), strict=True)]
        axes.legend(*zip(*handles, strict=True), loc="upper right", fontsize=8, ncols=2)
    return figure


def describe(rows: Sequence[Row]) -> str:
    """Describe how far down items are returned, and how far off their counts are."""
    lines = [
        "| table | ε_per | threshold | as published | items a release | always | in half the trials | r.m.s. error |",
        "| --- |" + " ---: |" * 7,
    ]
    for table, epsilon in dict.fromkeys((row["table"], row["epsilon_per"]) for row in rows):
        own = [row for row in rows if (row["table"], row["epsilon_per"]) == (table, epsilon)]
        shares = [float(row["share"] or 0) for row in own]
        always = next((i for i, share in enumerate(shares) if share < 1), len(shares))
        half = max((i + 1 for i, share in enumerate(shares) if share >= 0.5), default=0)
        errors = [float(row["noisy"] or 0) - float(row["true"] or 0) for row in own if row["noisy"] is not None]
        lines.append(
            f"| {table} | {epsilon:g} | {own[0]['threshold']} | {own[0]['published']:.1f} | {sum(shares):.1f} | "
            f"1 to {always} | to {half} | "
            f"{float(np.sqrt(np.mean(np.square(errors)))):.1f} |"
        )
    return (
        "\n".join(lines) + "\n\n"
        "Always, and in half the trials: the ranks that are returned that often. The error is that of the first "
        "trial's counts. As in the paper, items well above the threshold are always returned, items near it sometimes, "
        "and halving the noise returns many more. Items beyond rank 100 are returned when the noise raises them into "
        "the top 100. LinkedIn's job titles are not public; each user has one item in both tables here "
        "(Δ = 1). Noise is exact discrete Laplace of scale 2/ε_per, and the margin is the least integer that its exact "
        "tail allows. By default Discreet would use Gaussian noise, with a 29 % smaller standard error at the same "
        "cost."
    )


EXPERIMENT = Experiment(
    NAME,
    "linkedin",
    "Figure 4: which items are returned, and their counts",
    "Rogers et al. 2021, section 7, Figure 4: UnkLap, Δ = 1, d̄ = 1000, top 100, δ = 1e-10",
    cells,
    measure,
    draw,
    describe,
)
