"""LinkedIn 2021, Table 2: privacy parameters of deployments. LinkedIn's row is computed, the others are quoted."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from discreet.accounting.adaptive import adaptive_epsilon
from discreet.accounting.bounds import linkedin_system, zcdp_tight
from papers.experiment import Experiment
from papers.linkedin_published import DEPLOYMENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from papers.experiment import Row, Setting

NAME = "linkedin-table-2"
INFORMATION, CALLS, EPSILON, DELTA, CONVERSION = 3000, 30, 0.15, Fraction(1, 10**10), Fraction(1, 10**9)
PUBLISHED_EPSILON, PUBLISHED_DELTA = 34.9, 7e-9
QUOTED = (769.0, 240.0, 120.0, 82.2, 79.2, None)
"""Epsilon a month, as the paper has it, in the order of `DEPLOYMENTS`."""

THEOREM, TIGHT, BEST, TWICE = (
    "Theorem 2 as published",
    "tight conversion, masses add",
    "optimum for adaptive bounded-range steps",
    "two calendar months in one window of 30 days",
)


def cells(setting: Setting) -> list[Row]:
    """Return a cell for the quoted rows, and one for each accounting of LinkedIn's row."""
    accountings = (THEOREM, TIGHT, TWICE) if setting.smoke else (THEOREM, TIGHT, BEST, TWICE)
    return [{"accounting": accounting} for accounting in ("quoted", *accountings)]


def measure(_: Setting, cell: Row) -> list[Row]:
    """Return rows of the table."""
    if cell["accounting"] == "quoted":
        return [
            {
                "use_case": deployment.name,
                "accounting": "basic composition",
                "model": "local" if deployment.local else "global",
                "epsilon": float(deployment.epsilon),
                "epsilon_day": _float(deployment.epsilon_of(1)),
                "epsilon_month": _float(deployment.epsilon_of(30)),
                "delta_month": None if deployment.reports_per_day is None else 0.0,
                "published_month": published,
            }
            for deployment, published in zip(DEPLOYMENTS, QUOTED, strict=True)
        ]
    times = 2 if cell["accounting"] == TWICE else 1
    system = linkedin_system(times * INFORMATION, times * CALLS, EPSILON, DELTA, CONVERSION)
    epsilon, delta = system.epsilon, system.delta_published
    if cell["accounting"] == TIGHT:
        epsilon, delta = zcdp_tight([EPSILON] * INFORMATION, float(CONVERSION)), system.delta
    elif cell["accounting"] == BEST:
        epsilon, delta = adaptive_epsilon(INFORMATION, EPSILON, float(CONVERSION)), system.delta
    row: Row = {"use_case": "LinkedIn - Audience Engagements API", "accounting": cell["accounting"], "model": "global"}
    row |= {"epsilon": EPSILON, "epsilon_day": None, "epsilon_month": epsilon, "delta_month": delta}
    return [row | {"published_month": PUBLISHED_EPSILON if cell["accounting"] == THEOREM else None}]


def _float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def draw(rows: Sequence[Row]) -> Figure:
    """Draw epsilon per month on a logarithmic axis, LinkedIn's in another colour."""
    shown = [row for row in rows if row["epsilon_month"] is not None][::-1]
    names = [f"{row['use_case']}\n{row['model']}, {row['accounting']}" for row in shown]
    epsilons = [float(row["epsilon_month"] or 0) for row in shown]
    figure = Figure(figsize=(10, 0.45 * len(shown) + 1), layout="constrained")
    axes = figure.subplots()
    colours = ["tab:orange" if str(row["use_case"]).startswith("LinkedIn") else "tab:grey" for row in shown]
    axes.bar_label(axes.barh(names, epsilons, color=colours), [f"{e:.3g}" for e in epsilons], padding=3, fontsize=8)
    axes.set(xscale="log", xlabel="ε a month", xlim=(10, 2000))
    axes.tick_params(axis="y", labelsize=8)
    return figure


def describe(rows: Sequence[Row]) -> str:
    """Describe the table, and how LinkedIn's row is computed."""
    lines = [
        "| use case | model | accounting | ε of an answer | a day | a month | paper | δ a month |",
        "| --- | --- | --- |" + " ---: |" * 5,
    ]
    for row in rows:
        numbers = (row[key] for key in ("epsilon", "epsilon_day", "epsilon_month", "published_month", "delta_month"))
        shown = " | ".join("" if number is None else f"{number:.4g}" for number in numbers)
        lines.append(f"| {row['use_case']} | {row['model']} | {row['accounting']} | {shown} |")
    own = [row for row in rows if str(row["use_case"]).startswith("LinkedIn")]
    by_accounting = {row["accounting"]: f"({row['epsilon_month']:.2f}, {row['delta_month']:.2g})" for row in own}
    return (
        "\n".join(lines) + "\n\n"
        "The first rows quote what the paper collected from the deployments' own publications (its references 3, 4, 5, "
        "26 and footnotes), added up; for mobility reports an answer has ε 0.11 or 0.22, for assistive AI "
        "δ = 1e-7 and no number of answers. Local and global models make different trust assumptions: their numbers "
        f"are not comparable. LinkedIn's row is k* = {INFORMATION}, l* = {CALLS}, ε_per = {EPSILON}, "
        f"δ = {float(DELTA):g}, δ′ = {float(CONVERSION):g}. The paper has "
        f"({PUBLISHED_EPSILON}, {PUBLISHED_DELTA:g}); Theorem 2 gives "
        f"{by_accounting[THEOREM]}. The same noise gives a better guarantee: {by_accounting[TIGHT]} by the tight "
        "conversion, with lost masses added once, not twice"
        + (f", and {by_accounting[BEST]} by the exact optimum" if BEST in by_accounting else "")
        + ". It also gives a worse one: budgets are refreshed by the calendar while rows stay for 30 days, so one row "
        f"may be queried under two budgets, which makes {by_accounting[TWICE]}."
    )


EXPERIMENT = Experiment(
    NAME,
    "linkedin",
    "Table 2: parameters of deployments",
    "Rogers et al. 2021, section 8.4, Table 2",
    cells,
    measure,
    draw,
    describe,
)
