"""Rogers 2024, Figure 3. Words of Reddit users."""

from __future__ import annotations

from typing import TYPE_CHECKING

from papers.experiment import Experiment
from papers.experiments import pcr_pages, pcr_trials

if TYPE_CHECKING:
    from collections.abc import Sequence

    from papers.experiment import Row, Setting

PAPER_SAYS = (
    "without a threshold Plume returns far more; with one, almost half of its results are beyond the target when "
    "the bound is the 95th percentile and almost none when it is the 99th; PCR returns as many accurate results "
    "when ε is small."
)


def cells(setting: Setting) -> list[Row]:
    """The paper's table made up, and the nearest real one."""
    return pcr_trials.cells(setting, "pcr-reddit", ["reddit-posts-words"])


def say(rows: Sequence[Row]) -> str:
    """What the figure shows."""
    return pcr_pages.say(rows, PAPER_SAYS)


EXPERIMENT = Experiment(
    name="pcr-figure-3",
    paper="pcr",
    title="Figure 3: Reddit, all of it",
    source="Rogers 2024, section 4, Figure 3",
    cells=cells,
    measure=pcr_trials.measure,
    draw=pcr_pages.draw,
    say=say,
)
