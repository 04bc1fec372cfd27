"""Rogers 2024, Figure 1. Stock symbols of news items, and posts by linked domain: one item for each user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from papers.experiment import Experiment
from papers.experiments import pcr_pages, pcr_trials

if TYPE_CHECKING:
    from collections.abc import Sequence

    from papers.experiment import Row, Setting

PAPER_SAYS = (
    "where everybody has one item, Plume returns many more results than PCR, and hardly any of either are beyond "
    "the target. Nothing is cut off by a bound of 1, and all counts together cost as much as one."
)


def cells(setting: Setting) -> list[Row]:
    """The paper's table made up, and the nearest real one."""
    return pcr_trials.cells(setting, "pcr-finance", ["reddit-posts-domain"])


def say(rows: Sequence[Row]) -> str:
    """What the figure shows."""
    return pcr_pages.say(rows, PAPER_SAYS)


EXPERIMENT = Experiment(
    name="pcr-figure-1",
    paper="pcr",
    title="Figure 1: Finance, one item a user",
    source="Rogers 2024, section 4, Figure 1",
    cells=cells,
    measure=pcr_trials.measure,
    draw=pcr_pages.draw,
    say=say,
)
