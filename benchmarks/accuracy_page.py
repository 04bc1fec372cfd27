"""The generated part of docs/accuracy.md: a summary, a picture and tables of `benchmarks.accuracy`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from benchmarks.timing import table as markdown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from papers.experiment import Row

SET_ON = ("movielens-1m", "amazon-beauty", "citeulike", "lastfm-plays", "kjv-verses", "retail")
"""The half of the real tables on which constants are tuned (`benchmarks.accuracy_tuning`)."""

MADE_UP = {"linkedin-titles": "light", "linkedin-articles": "mixed", "pcr-movielens/16": "heavy"}
"""Tables that can be generated without a download, and descriptions of their users."""

EXTREME = {
    "one-item": "one item",
    "three-items": "three items",
    "steep": "steep",
    "pareto": "power law",
    "twenty-heavy": "twenty heavy users",
}
"""Generated tables that are extreme in how many items users have; they are in no mean of the others."""

IN_README = ("retail", "amazon-beauty", "movielens-1m", "reddit-posts-domain")
"""Tables in the README's picture: many users, many items each, few users, and one item a user."""

EXACT = "exact curve"
PEERS = {"opendp": "OpenDP", "pydp": "PyDP"}
LISTED = 2.1
"""Cells are listed if the head has less than this multiple of PCR's counts."""

FEW = 30
"""Cells with fewer released counts are too small to compare shares."""


class Cell:
    """The rows of all methods on one table at one epsilon and target."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.table, self.epsilon = str(rows[0]["table"]), float(rows[0]["epsilon"] or 0)
        self.by_method = {str(row["method"]): row for row in rows}
        self.ours = self.by_method["auto"]

    def value(self, method: str, name: str = "within") -> float:
        """Return a measurement, 0 if it is missing."""
        return float(self.by_method[method][name] or 0)

    def best_plume(self, *, exact: bool) -> str:
        """Return the variant of Plume with the most counts within the target, by the true data."""
        variants = [method for method in self.by_method if method.startswith("plume") and (EXACT in method) == exact]
        return max(variants, key=self.value)

    def ratio(self, *, head: bool = True, exact: bool = False) -> float:
        """Return the ratio of `auto`'s counts within the target to the best other method's, with one added to both.

        Args:
            head: True to include the head mechanism in the other methods.
            exact: True to include Plume with better accounting than its authors'.
        """
        others = [
            *(["head"] if head else []),
            "pcr",
            self.best_plume(exact=False),
            *([self.best_plume(exact=True)] if exact else []),
        ]
        return (self.value("auto") + 1) / (max(map(self.value, others)) + 1)


def cells_of(rows: Sequence[Row], target: float = 0.1) -> list[Cell]:
    """Return the rows of one target, by table and epsilon, without other libraries."""
    grouped: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        if row["target"] == target and str(row["method"]).partition(" ")[0] not in PEERS:
            grouped.setdefault((str(row["table"]), float(row["epsilon"] or 0)), []).append(row)
    cells = map(Cell, grouped.values())
    return sorted(cells, key=lambda cell: (cell.table in EXTREME, cell.table in MADE_UP))


def say(rows: Sequence[Row]) -> str:
    """Return the generated part of the page."""
    found = cells_of(rows)
    cells = [cell for cell in found if cell.table not in EXTREME]
    unseen = [cell for cell in cells if cell.table not in SET_ON]
    groups = {"all tables": cells, "tables the constants are set on": [c for c in cells if c not in unseen]}
    groups["other tables"] = unseen
    summary = [_summary(name, group) for name, group in groups.items() if group]
    summary += [
        _summary(f"all tables, {target:.0%}", [c for c in cells_of(rows, target) if c.table not in EXTREME])
        for target in sorted({float(row["target"] or 0) for row in rows} - {0.1})
    ]
    summary += [_summary("extreme tables", [c for c in found if c.table in EXTREME])] if cells != found else []
    headings = [
        "",
        "cells",
        "times PCR or Plume",
        "times the best other",
        "cells below 0.9",
        "with the exact curve",
        "beyond, mean",
        "cells with over 10 % beyond",
        "worst cell",
        "covered, worst table",
        "interval, ±",
    ]
    parts = [
        "\n".join(markdown(headings, summary)),
        "![Counts within 10 % by epsilon, for each table](images/accuracy.png)",
        "\n".join(_all_cells(found)),
        *_heads(cells),
        *_peers(rows),
    ]
    return "\n\n".join(parts) + "\n"


def _summary(name: str, cells: Sequence[Cell]) -> list[str]:
    ratios = [cell.ratio() for cell in cells]
    large = [cell.value("auto", "beyond") for cell in cells if cell.value("auto", "released") >= FEW]
    return [
        name,
        str(len(cells)),
        f"{geometric_mean([cell.ratio(head=False) for cell in cells]):.2f}",
        f"{geometric_mean(ratios):.2f}",
        str(sum(ratio < 0.9 for ratio in ratios)),
        f"{geometric_mean([cell.ratio(exact=True) for cell in cells]):.2f}",
        f"{sum(cell.value('auto', 'beyond') for cell in cells) / len(cells):.1%}",
        f"{sum(share > 0.1 for share in large)} of {len(large)}",
        f"{max(large, default=0):.0%}",
        f"{min(covered(cells, table) for table in {cell.table for cell in cells}):.1%}",
        f"{_half_width(cells):.1%}",
    ]


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def covered(cells: Sequence[Cell], table: str) -> float:
    """Return the share of a table's released counts whose interval holds the true count: the mean over epsilon."""
    shares = [cell.value("auto", "covered") for cell in cells if cell.table == table and cell.value("auto", "released")]
    return sum(shares) / len(shares) if shares else 1.0


def _half_width(cells: Sequence[Cell]) -> float:
    """Return half the length of an interval relative to its count, the mean over cells."""
    widths = [cell.value("auto", "half_width") for cell in cells if cell.value("auto", "released")]
    return sum(widths) / len(widths)


def _all_cells(cells: Sequence[Cell]) -> list[str]:
    """Return the counts of `auto` and of the best other method, a line for each table."""
    epsilons = sorted({cell.epsilon for cell in cells})
    lines = {cell.table: [_shown(cell.table), *[""] * len(epsilons)] for cell in cells}
    for cell in cells:
        best = max(cell.value(method) for method in ("head", "pcr", cell.best_plume(exact=False)))
        lines[cell.table][1 + epsilons.index(cell.epsilon)] = f"{cell.value('auto'):,.0f} / {best:,.0f}"
    return markdown(["table", *(f"ε = {epsilon:g}" for epsilon in epsilons)], list(lines.values()))


def _shown(table: str) -> str:
    made_up = MADE_UP | EXTREME
    return f"made up, {made_up[table]}" if table in made_up else table


def _counts(cell: Cell, method: str) -> str:
    """Return a table of counts within the target, and of the share of released counts that are not."""
    return f"{cell.value(method):,.0f} ({cell.value(method, 'beyond'):.0%})"


def _heads(cells: Sequence[Cell]) -> list[str]:
    """Compare the head with PCR, and where its ratio is lowest, with the upper bound for any head."""
    large = [cell for cell in cells if cell.value("pcr") >= 20]
    ratios = [cell.value("head") / cell.value("pcr") for cell in large]
    headings = ["table", "ε", "PCR", "head", "most from a head", "head / PCR", "most / PCR"]
    lines = []
    for cell, ratio in zip(large, ratios, strict=True):
        if ratio < LISTED and "bound" in cell.by_method:
            pcr, head, most = (cell.value(method) for method in ("pcr", "head", "bound"))
            numbers = [f"{pcr:,.0f}", f"{head:,.0f}", f"{most:,.0f}", f"{ratio:.2f}", f"{most / pcr:.2f}"]
            lines.append([_shown(cell.table), f"{cell.epsilon:g}", *numbers])
    twice = sum(ratio >= 2 for ratio in ratios)
    title = (
        f"The head has at least twice as many counts within 10 % as PCR in {twice} of the {len(large)} cells in which "
        f"PCR has 20 or more. Those in which it has less than {LISTED:g} times as many, "
        "beside the most that a head could have if counts are used as they were measured:"
    )
    return [title, "\n".join(markdown(headings, lines))] if lines else []


def _peers(rows: Sequence[Row]) -> list[str]:
    """Compare other libraries with `auto` at epsilon 1."""
    found = {
        (str(row["table"]), str(row["method"])): row for row in rows if row["target"] == 0.1 and row["epsilon"] == 1
    }
    methods = sorted({method for _, method in found if method.split()[0] in PEERS})
    if not methods:
        return []
    headings = ["table", *(f"{PEERS[m.split()[0]]}, {m.split()[1]} %" for m in methods), "**release**"]
    lines = []
    for name in dict.fromkeys(name for name, method in found if method in methods):
        shown = [Cell([found[name, method], found[name, "auto"]]) for method in methods]
        cells = [_counts(cell, method) for cell, method in zip(shown, methods, strict=True)]
        lines.append([_shown(name), *cells, _counts(shown[0], "auto")])
    title = "Other libraries at ε = 1, every user bounded to the true percentile of items per user:"
    return [title, "\n".join(markdown(headings, lines))]


def draw(rows: Sequence[Row]) -> Figure:
    """Draw counts within 10 % against epsilon, a panel for each table."""
    cells = cells_of(rows)
    tables = list(dict.fromkeys(cell.table for cell in cells))
    columns = min(4, len(tables))
    figure = Figure(figsize=(3.1 * columns, 2.5 * math.ceil(len(tables) / columns)), layout="constrained")
    styles = {
        "release": ("C1", "o-"),
        "head": ("C0", "s--"),
        "Plume, best percentile": ("C2", "^--"),
        "PCR": ("C7", "x:"),
    }
    for number, name in enumerate(tables):
        axes = figure.add_subplot(math.ceil(len(tables) / columns), columns, number + 1)
        mine = [cell for cell in cells if cell.table == name]
        for label, (colour, style) in styles.items():
            methods = {"release": "auto", "head": "head", "PCR": "pcr"}
            values = [cell.value(methods.get(label) or cell.best_plume(exact=False)) for cell in mine]
            axes.plot([cell.epsilon for cell in mine], values, style, color=colour, label=label, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_yscale("symlog", linthresh=10)
        axes.set_ylim(0, 2 * axes.get_ylim()[1])
        axes.set_xticks([cell.epsilon for cell in mine], [f"{cell.epsilon:g}" for cell in mine])
        axes.set_title(_shown(name), fontsize=9)
        if number % columns == 0:
            axes.set_ylabel("counts within 10 %", fontsize=8)
        if number >= len(tables) - columns:
            axes.set_xlabel("ε", fontsize=8)
        axes.tick_params(labelsize=7)
        if number == 0:
            axes.legend(fontsize=7)
    return figure
