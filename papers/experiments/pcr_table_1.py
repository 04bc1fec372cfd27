"""Rogers 2024, Table 1: the tables, made up and nearest real ones; and the settings of the five figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from papers.experiment import Experiment
from papers.experiments.pcr_trials import CONSTANT, CUTOFF, DELTA, TRIALS, first_users

if TYPE_CHECKING:
    from collections.abc import Sequence

    from papers.experiment import Row, Setting
    from papers.user_items import UserItems

PERCENTS = (50, 75, 95, 99)
PUBLISHED = {
    "Finance": (1_400_469, 6_193, 1, 1, 1, 1),
    "Reddit small sample": (341, 10_575, 23, 50, 128, 330),
    "Reddit full data": (223_388, 153_704, 23, 56, 194, 450),
    "Wikipedia": (245_103, 631_855, 84, 164, 390, 589),
    "MovieLens": (162_541, 59_047, 71, 162, 554, 1228),
}
"""Users, domain size, and percentiles of the items per user, as the paper has them."""
STAND_INS: dict[str, tuple[str, tuple[str, ...], int | None]] = {
    "Finance": ("pcr-finance", ("reddit-posts-domain",), None),
    "Reddit small sample": ("pcr-reddit-small", ("reddit-posts-words",), 341),
    "Reddit full data": ("pcr-reddit", ("reddit-posts-words",), None),
    "Wikipedia": ("pcr-wikipedia/4", ("imdb-words", "kjv-verses"), None),
    "MovieLens": ("pcr-movielens/4", ("movielens-1m",), None),
}
"""For each: the made-up table of the figures, the nearest real ones, and how many of their users."""


def cells(setting: Setting) -> list[Row]:
    """Return a cell for each table, the paper's own first."""
    found: list[Row] = []
    for paper, (made_up, real, users) in STAND_INS.items():
        name = made_up.partition("/")[0]
        smoke = f"{name}/100" if users is None else name
        found.append({"paper": paper, "table": smoke if setting.smoke else made_up, "made_up": True, "users": None})
        if not setting.smoke:
            found += [
                {"paper": paper, "table": table, "made_up": False, "users": None if table == name else users}
                for table in (name, *real)
                if setting.tables.has(table)
            ]
    return found


def measure(setting: Setting, cell: Row) -> list[Row]:
    """Return the statistics of one table; those published precede a made-up one's."""
    table = setting.table(cell)
    if cell["users"] is not None:
        table = first_users(table, int(cell["users"]))
    paper = str(cell["paper"])
    rows = [_statistics(paper, table, made_up=bool(cell["made_up"]))]
    if cell["made_up"]:
        users, domain, *percentiles = PUBLISHED[paper]
        published: Row = {"paper": paper, "table": "published", "made_up": None, "users": users, "domain": domain}
        published |= {f"p{percent}": value for percent, value in zip(PERCENTS, percentiles, strict=True)}
        rows.insert(0, published | {"pairs": None, "largest": None})
    return rows


def _statistics(paper: str, table: UserItems, *, made_up: bool) -> Row:
    percentiles = np.percentile(table.contributions, PERCENTS, method="inverted_cdf")
    row: Row = {"paper": paper, "table": table.name, "made_up": made_up}
    row |= {"users": table.number_of_users, "domain": len(table.counts)}
    row |= {f"p{percent}": int(value) for percent, value in zip(PERCENTS, percentiles, strict=True)}
    return row | {"pairs": len(table.users), "largest": int(table.head[0])}


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the percentiles of the items per user for each of the paper's tables."""
    figure = Figure(figsize=(14, 3.8), layout="constrained")
    for axes, paper in zip(figure.subplots(1, len(STAND_INS)), STAND_INS, strict=True):
        for row in (row for row in rows if row["paper"] == paper):
            values = [row[f"p{percent}"] for percent in PERCENTS]
            if row["made_up"] is None:
                axes.plot(values, "D", color="black", markersize=9, fillstyle="none", label="published")
            else:
                axes.plot(values, "o-" if row["made_up"] else "s--", markersize=4, linewidth=1.2, label=row["table"])
        axes.set_xticks(range(len(PERCENTS)), [f"{percent} %" for percent in PERCENTS])
        axes.set(title=paper, xlabel="percentile", yscale="log", ylim=(0.7, 2e4))
        axes.legend(fontsize=6.5, loc="upper left", frameon=False)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("items per user")
    return figure


def describe(rows: Sequence[Row]) -> str:
    """Describe the tables, the paper's inconsistencies, and the settings of the figures."""
    head = "".join(f" {percent} % |" for percent in PERCENTS)
    lines = [f"| | | users | domain |{head} pairs | largest count |", "| --- | --- |" + " ---: |" * 8]
    keys = ("users", "domain", *(f"p{percent}" for percent in PERCENTS), "pairs", "largest")
    for row in rows:
        numbers = "".join(" |" if row[key] is None else f" {int(row[key] or 0):,} |" for key in keys)
        lines.append(f"| {row['paper']} | {row['table']} |{numbers}")
    return "\n\n".join(("\n".join(lines), _inconsistencies(rows), _settings()))


def _inconsistencies(rows: Sequence[Row]) -> str:
    small = {
        row["made_up"]: row for row in rows if row["paper"] == "Reddit small sample" and row["table"] != "published"
    }
    fake = small[True]
    text = (
        "The paper's tables are not available here, so each is replaced by a table made up to match its published "
        "numbers (a fraction of the users where the name says so), and compared with the nearest real table. "
        "The heads of the made-up histograms, which the paper does not publish, follow Zipf's law. "
        "The paper is inconsistent: the small sample has 341 users in the table and 340 in the text, the full data "
        "223,388 and 223,338; the rows of Finance are those of another file than it names, and the ratings of "
        "MovieLens are in ratings.csv, not in "
        f"reviews.csv. The small sample's percentiles make about {int(fake['pairs'] or 0):,} pairs, "
        f"{int(fake['pairs'] or 0) / int(fake['domain'] or 1):.1f} for each of its items, so hardly any item can have "
        f"many users: the largest made-up count is {int(fake['largest'] or 0):,}."
    )
    if False in small:
        real = small[False]
        text += (
            f" As many users of the real table have {int(real['pairs'] or 0) / int(real['domain'] or 1):.1f} pairs for "
            f"each item and a largest count of {int(real['largest'] or 0):,}."
        )
    return text


def _settings() -> str:
    return (
        f"Settings of the figures. δ = {float(DELTA):.0e}, ε from 0.5 to 8, a target of 10 % relative error, "
        f"{TRIALS} trials; bands are one standard deviation. The copy of the paper that we read has lost most "
        "formulas, and with them its δ, its ε, the constants of PCR and the share of the budget that Plume spends on "
        "its selection: only shapes can be compared with the paper, not points. PCR (ours) is `CountRelease` under "
        f"the tight conversion, with a cut-off of {CUTOFF:,}; a count at the threshold stays within the target with "
        f"probability 90 % (constant {CONSTANT}). PCR (as published) uses the simple conversion and the constant 1; "
        "the paper does not fix the constant. Plume keeps a random subset of every user's items, as many as the true "
        "95th or 99th percentile, which is not private and, as in the paper, costs nothing; selects items by Gaussian "
        "noise and a threshold; bounds again on the items found; and adds Gaussian noise. It uses the tight conversion "
        "too, and spends half of ρ on the selection, or a tenth where stated. With a threshold, only noisy "
        f"counts above {CONSTANT} σ / 10 % are kept. Errors are relative to the true counts of the whole table, so "
        "what bounding removes is an error. Where Plume performs better here than in the paper, the likely reasons are "
        "its conversion, the same as ours, and a share of the budget and a threshold that suit it."
    )


EXPERIMENT = Experiment(
    name="pcr-table-1",
    paper="pcr",
    title="Table 1: the tables, and the settings of the figures",
    source="Rogers 2024, section 4, Table 1",
    cells=cells,
    measure=measure,
    draw=draw,
    describe=describe,
)
