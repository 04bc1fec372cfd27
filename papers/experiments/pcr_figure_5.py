"""Rogers 2024, Figure 5. Films by rating user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from papers.experiment import Experiment
from papers.experiments import pcr_pages, pcr_trials

if TYPE_CHECKING:
    from collections.abc import Sequence

    from papers.experiment import Row, Setting

PAPER_SAYS = (
    "people rate many films, so PCR returns more results than Plume with a threshold, and fewer of them are "
    "beyond the target, at both percentiles."
)


def cells(setting: Setting) -> list[Row]:
    """The paper's table made up, and the nearest real one."""
    return pcr_trials.cells(setting, "pcr-movielens/4", ["movielens-1m"])


def say(rows: Sequence[Row]) -> str:
    """What the figure shows."""
    return pcr_pages.say(rows, PAPER_SAYS)


EXPERIMENT = Experiment(
    name="pcr-figure-5",
    paper="pcr",
    title="Figure 5: MovieLens",
    source="Rogers 2024, section 4, Figure 5",
    cells=cells,
    measure=pcr_trials.measure,
    draw=pcr_pages.draw,
    say=say,
)
