"""Choosing parameters: the epsilon that each bound guarantees for a budget of equal steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from discreet.accounting.adaptive import adaptive_epsilon
from discreet.release.plot import BOUNDS, epsilon_curves
from papers.experiment import Experiment
from papers.linkedin_published import linkedin_deployment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from papers.experiment import Row, Setting

NAME = "parameters-bounds"
EPSILON_PER, DELTA = 0.15, 1e-9
BUDGETS = (30, 100, 300, 600, 1_000, 1_500, 2_000, 2_500, 3_000, 4_000, 5_000, 6_000)
RETURNED_DELTA = 4e-9
"""What the paper's own total, 7e-9, leaves for the conversion if 30 calls lose 1e-10 each."""


def cells(setting: Setting) -> list[Row]:
    """Return a cell for each bound and budget, and the adaptive optimum at the delta that the paper counts twice."""
    budgets = BUDGETS[:3] if setting.smoke else BUDGETS
    found: list[Row] = [{"bound": bound, "information": k, "delta": DELTA} for bound in BOUNDS for k in budgets]
    return [*found, {"bound": "adaptive optimum", "information": budgets[-4:][0], "delta": RETURNED_DELTA}]


def measure(_: Setting, cell: Row) -> list[Row]:
    """Return epsilon; the adaptive optimum is computed finer than for the curves."""
    k, delta, bound = int(cell["information"] or 0), float(cell["delta"] or 0), str(cell["bound"])
    if bound == "adaptive optimum":
        return [cell | {"epsilon": adaptive_epsilon(k, EPSILON_PER, delta)}]
    return [cell | {"epsilon": BOUNDS[bound](k, EPSILON_PER, delta)}]


def draw(rows: Sequence[Row]) -> Figure:
    """Draw epsilon against the information budget."""
    budgets = sorted({int(row["information"] or 0) for row in rows})
    curves = {
        bound: [_epsilon(rows, bound, k) for k in budgets] for bound in dict.fromkeys(str(row["bound"]) for row in rows)
    }
    figure = Figure(figsize=(9, 5), layout="constrained")
    epsilon_curves(figure.add_subplot(), curves, budgets)
    return figure


def describe(rows: Sequence[Row]) -> str:
    """Describe what each bound gives for LinkedIn's own budget."""
    k = 3_000 if any(row["information"] == 3_000 for row in rows) else max(int(row["information"] or 0) for row in rows)
    lines = [f"| {bound} | {_epsilon(rows, bound, k):.2f} |" for bound in BOUNDS]
    returned = next(float(row["epsilon"] or 0) for row in rows if row["delta"] == RETURNED_DELTA)
    published = linkedin_deployment()
    return "\n".join(
        [
            f"A step is a peel or a noisy count of ε = {EPSILON_PER:g}; δ′ = {DELTA:g} pays for the composition.",
            f"At {k:,} steps:",
            "",
            "| bound | ε |",
            "| --- | --- |",
            *lines,
            "",
            f"LinkedIn's paper states ε = {published.epsilon:.1f} and δ = {published.delta_published:.0e} for 3,000",
            "steps and 30 calls. It counts the calls' δ twice; if the excess is used for the composition instead",
            f"(δ′ = {RETURNED_DELTA:g}), the adaptive optimum is {returned:.2f}, with the same noise. The optimum for",
            "steps fixed in advance is slightly smaller and does not hold for analysts who choose queries adaptively.",
            "All curves but the first three are for bounded-range steps, which peels and Laplace counts are;",
            "Gaussian counts are charged by zCDP.",
        ]
    )


def _epsilon(rows: Sequence[Row], bound: str, k: int) -> float:
    return next(
        float(row["epsilon"] or 0)
        for row in rows
        if row["bound"] == bound and row["information"] == k and row["delta"] == DELTA
    )


EXPERIMENT = Experiment(
    NAME,
    "parameters",
    "Epsilon against the information budget",
    "Durfee & Rogers 2019, section 4; Dong, Durfee & Rogers 2020; Rogers et al. 2021, section 6",
    cells,
    measure,
    draw,
    describe,
)
