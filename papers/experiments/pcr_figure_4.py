"""Rogers 2024, Figure 4. Words of Wikipedia abstracts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from papers.experiment import Experiment
from papers.experiments import pcr_pages, pcr_trials

if TYPE_CHECKING:
    from collections.abc import Sequence

    from papers.experiment import Row, Setting

PAPER_SAYS = (
    "PCR returns fewer results than Plume with a threshold, but nearly all are within the target, while with the "
    "95th percentile more than a tenth of Plume's are not."
)


def cells(setting: Setting) -> list[Row]:
    """The paper's table made up, and the nearest real one."""
    return pcr_trials.cells(setting, "pcr-wikipedia/4", ["imdb-words", "kjv-verses"])


def say(rows: Sequence[Row]) -> str:
    """What the figure shows."""
    return pcr_pages.say(rows, PAPER_SAYS)


EXPERIMENT = Experiment(
    name="pcr-figure-4",
    paper="pcr",
    title="Figure 4: Wikipedia",
    source="Rogers 2024, section 4, Figure 4",
    cells=cells,
    measure=pcr_trials.measure,
    draw=pcr_pages.draw,
    say=say,
)
