"""Rogers 2024, Figure 2. Words of Reddit users, the first 341 only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from papers.experiment import Experiment
from papers.experiments import pcr_pages, pcr_trials

if TYPE_CHECKING:
    from collections.abc import Sequence

    from papers.experiment import Row, Setting

PAPER_SAYS = (
    "on 341 users PCR returns more than Plume with a threshold, with about a tenth of the results beyond the "
    "target, and the percentile hardly matters."
)


def cells(setting: Setting) -> list[Row]:
    """The paper's table made up, and the nearest real one."""
    return pcr_trials.cells(setting, "pcr-reddit-small", ["reddit-posts-words"], users=341)


def say(rows: Sequence[Row]) -> str:
    """What the figure shows."""
    return pcr_pages.say(rows, PAPER_SAYS)


EXPERIMENT = Experiment(
    name="pcr-figure-2",
    paper="pcr",
    title="Figure 2: Reddit, the small sample",
    source="Rogers 2024, section 4, Figure 2",
    cells=cells,
    measure=pcr_trials.measure,
    draw=pcr_pages.draw,
    say=say,
)
