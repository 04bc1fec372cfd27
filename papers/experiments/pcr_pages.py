"""Figures and texts shared by the experiments for Rogers 2024, Figures 1 to 5."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from papers.experiments.pcr_trials import OURS, PUBLISHED, TARGET, tenth, thresholded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from papers.experiment import Row

STYLES = {
    OURS: ("tab:blue", "-"),
    PUBLISHED: ("tab:blue", ":"),
    "Plume 95": ("tab:orange", "-"),
    thresholded("Plume 95"): ("tab:orange", "--"),
    "Plume 99": ("tab:green", "-"),
    thresholded("Plume 99"): ("tab:green", "--"),
}
NOT_DRAWN = (tenth("Plume 95"), tenth("Plume 99"))


def draw(rows: Sequence[Row]) -> Figure:
    """Draw for each table the results returned, and the share of them beyond the target, against epsilon."""
    tables = list(dict.fromkeys(str(row["table"]) for row in rows))
    figure = Figure(figsize=(10.5, 3.2 * len(tables) + 0.7), layout="constrained")
    grid = figure.subplots(len(tables), 2, squeeze=False)
    for (left, right), table in zip(grid, tables, strict=True):
        for method, (colour, line) in STYLES.items():
            own = rows_of(rows, table, method)
            _line(left, own, "returned", method, colour, line)
            _line(right, own, "beyond", method, colour, line)
        if min(float(row["returned"] or 0) for row in rows if row["table"] == table) < 1:
            left.set_yscale("symlog", linthresh=1)
            left.set_ylim(bottom=0)
        else:
            left.set_yscale("log")
        left.set(title=table, ylabel="results returned")
        right.axhline(TARGET, color="grey", linewidth=0.8)
        right.set(title=table, ylabel="share beyond 10 % relative error", ylim=(-0.02, 1.02))
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            epsilons = sorted({float(row["epsilon"] or 0) for row in rows})
            axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
            axes.set(xlabel="ε", xlim=(epsilons[0] / 1.1, epsilons[-1] * 1.1))
            axes.grid(alpha=0.3)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _line(axes: Axes, rows: Sequence[Row], key: str, label: str, colour: str, line: str) -> None:
    shown = [row for row in rows if row[key] is not None]
    x = [row["epsilon"] for row in shown]
    y = [float(row[key] or 0) for row in shown]
    sd = [float(row[f"{key}_sd"] or 0) for row in shown]
    axes.plot(x, y, line, color=colour, label=label, marker=".", linewidth=2 if label == OURS else 1.2)
    low, high = zip(*[(a - b, a + b) for a, b in zip(y, sd, strict=True)], strict=True) if y else ((), ())
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def rows_of(rows: Sequence[Row], table: str, method: str) -> list[Row]:
    """Return the rows of one method on one table, by epsilon."""
    own = [row for row in rows if row["table"] == table and row["method"] == method]
    return sorted(own, key=lambda row: float(row["epsilon"] or 0))


def describe(rows: Sequence[Row], paper_says: str) -> str:
    """Describe the paper's reading of the figure, then for each table how methods compare."""
    tables = list(dict.fromkeys(str(row["table"]) for row in rows))
    parts = [f"The paper: {paper_says}"]
    for table in tables:
        users = int(rows_of(rows, table, OURS)[0]["users"] or 0)
        parts.append(f"**{table}**, {users:,} users. {_comparison(rows, table)}")
    return "\n\n".join(parts)


def _comparison(rows: Sequence[Row], table: str) -> str:
    """Describe which method has more results within the target, and what bounding does to the counts."""
    ours = rows_of(rows, table, OURS)
    epsilons = [row["epsilon"] for row in ours]
    mine = [float(row["accurate"] or 0) for row in ours]
    theirs = {
        method: [float(row["accurate"] or 0) for row in rows_of(rows, table, method)]
        for method in (thresholded("Plume 95"), thresholded("Plume 99"), *NOT_DRAWN)
    }
    best = [max(values) for values in zip(*theirs.values(), strict=True)]

    def beats(others: Sequence[float]) -> str:
        return in_words([epsilon for epsilon, a, b in zip(epsilons, mine, others, strict=True) if a > b])

    at95, at99, at_best = (beats(values) for values in (*(theirs[thresholded(f"Plume {n}")] for n in (95, 99)), best))
    which = f"{at95} (95th percentile), {at99} (99th), and {at_best} (the best variant, known afterwards)"
    if at95 == at99 == at_best:
        which = f"{at95}, at either percentile"
    text = [f"Ours has more within 10 % than Plume with a threshold {which}."]
    published = [float(row["accurate"] or 0) for row in rows_of(rows, table, PUBLISHED)]
    if sum(published):
        change = 100 * (sum(mine) / sum(published) - 1)
        text.append(
            f"Over all ε it has {abs(change):.0f} % {'more' if change >= 0 else 'fewer'} than PCR as published, of "
            f"whose results {_overall(rows, table, PUBLISHED):.0f} % are beyond 10 %, of ours "
            f"{_overall(rows, table, OURS):.0f} %."
        )
    bounds = [(float(r["first_bound"] or 0), float(r["second_bound"] or 0)) for r in rows_of(rows, table, "Plume 95")]
    text.append(
        f"Plume's 95th percentile is {bounds[0][0]:.0f} of all items, and {bounds[0][1]:.0f} "
        f"(ε = {ours[0]['epsilon']:g}) to {bounds[-1][1]:.0f} (ε = {ours[-1]['epsilon']:g}) of those found; above its "
        f"threshold {_overall(rows, table, thresholded('Plume 95')):.0f} % are beyond 10 %, "
        f"{_overall(rows, table, thresholded('Plume 99')):.0f} % with the 99th."
    )
    return " ".join(text)


def _overall(rows: Sequence[Row], table: str, method: str) -> float:
    """Return the percentage of a method's results that are beyond the target; 0 if there are none."""
    own = rows_of(rows, table, method)
    returned = sum(float(row["returned"] or 0) for row in own)
    accurate = sum(float(row["accurate"] or 0) for row in own)
    return 100 * (returned - accurate) / returned if returned else 0.0


def in_words(epsilons: Sequence[object]) -> str:
    """Return a list of epsilons in words."""
    if not epsilons:
        return "at no ε"
    *rest, last = [f"{epsilon:g}" for epsilon in epsilons]
    return f"at ε = {', '.join(rest)} and {last}" if rest else f"at ε = {last}"
