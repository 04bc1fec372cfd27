"""Carvalho et al. 2020, Table 1: the tables of check-ins, published and made up, and the nearest real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from papers.experiment import Experiment
from papers.experiments import ts_trials

if TYPE_CHECKING:
    from collections.abc import Sequence

    from papers.experiment import Row, Setting

PERCENTS = (50, 99, 100)
PUBLISHED = {
    "ts-gowalla": ("Gowalla", 107_092, 1_280_968, 0.49, 2, 24, 2931),
    "ts-brightkite": ("BrightKite", 51_406, 772_966, 0.87, 1, 7, 3204),
    "ts-foursquare": ("Foursquare", 2_293, 100_191, 0.60, 1, 28, 1274),
}
"""Users, elements, share of elements of count 1, and percentiles of the counts."""
KEYS = ("table", "made_up", "users", "elements", "ones", "p50", "p99", "p100", "gap_10", "gap_50")
RANKS = 100


def cells(setting: Setting) -> list[Row]:
    """Return a cell for each table of the other experiments."""
    return ts_trials.tables(setting, ts_trials.MADE_UP, ts_trials.REAL)


def measure(setting: Setting, cell: Row) -> list[Row]:
    """Return the statistics and largest counts of one table; those published precede a made-up one's."""
    table = setting.table(cell)
    counts = table.counts
    statistics: list[float | int] = [table.number_of_users, len(counts), float(np.mean(counts == 1))]
    statistics += [int(np.percentile(counts, percent, method="inverted_cdf")) for percent in PERCENTS]
    largest = [int(count) for count in table.head[: RANKS + 1]]
    gaps = [largest[k - 1] - largest[k] for k in (10, 50)]
    row: Row = dict(zip(KEYS, [table.name, cell["made_up"], *statistics, *gaps], strict=True))
    rows = [row | {"largest": " ".join(map(str, largest[:RANKS]))}]
    if cell["made_up"]:
        name, *published = PUBLISHED[str(cell["table"])]
        values = [f"{name} (published)", None, *published, None, None]
        rows.insert(0, dict(zip(KEYS, values, strict=True)) | {"largest": ""})
    return rows


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the largest counts of each table, which are all that the methods read."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for row in (row for row in rows if row["made_up"] is not None):
        counts = [int(count) for count in str(row["largest"]).split()]
        axes.plot(range(1, len(counts) + 1), counts, "--" if row["made_up"] else "-", label=str(row["table"]))
    axes.set(xlabel="rank", ylabel="users of the item", xscale="log", yscale="log")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return figure


def describe(rows: Sequence[Row]) -> str:
    """Describe the tables, and what made-up ones can and cannot show."""
    lines = [
        "| | users | elements | of count 1 | 50 % | 99 % | 100 % | h(10) - h(11) | h(50) - h(51) |",
        "| --- |" + " ---: |" * 8,
    ]
    for row in rows:
        cells = [
            f"{100 * float(row[key] or 0):.0f} %" if key == "ones" else "" if row[key] is None else f"{row[key]:,}"
            for key in KEYS[2:]
        ]
        lines.append(f"| {row['table']} | {' | '.join(cells)} |")
    return (
        "\n".join(lines)
        + "\n\nThe paper's tables are not available here. The made-up ones have their published numbers. The plot "
        "shows the largest counts, on whose differences Top Stable depends: the paper publishes only the first, so the "
        "gaps of a made-up table are random, and only the shape of the paper's results can be expected. The real "
        "gowalla and foursquare are other extracts of the same services. For Foursquare, the user numbers of two "
        "cities overlap in the file, so the published n, and δ = 1/n with it, are off."
    )


EXPERIMENT = Experiment(
    name="ts-table-1",
    paper="ts",
    title="Table 1: the tables",
    source="Carvalho et al. 2020, section 6, Table 1",
    cells=cells,
    measure=measure,
    draw=draw,
    describe=describe,
)
