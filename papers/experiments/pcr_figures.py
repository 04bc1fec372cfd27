"""Rogers 2024, Figures 1 to 5: results of PCR and Plume against epsilon, one figure for each table."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from papers.experiment import Experiment
from papers.experiments import pcr_pages, pcr_trials

if TYPE_CHECKING:
    from collections.abc import Sequence


def figure(
    number: int, title: str, made_up: str, real: Sequence[str], paper_says: str, users: int | None = None
) -> Experiment:
    """Return the experiment of one figure: the paper's table made up, and the nearest real ones.

    Args:
        number: of the figure in the paper.
        title: what the figure is about.
        made_up: see `pcr_trials.cells`.
        real: see `pcr_trials.cells`.
        paper_says: the paper's own reading of the figure.
        users: see `pcr_trials.cells`.
    """
    return Experiment(
        name=f"pcr-figure-{number}",
        paper="pcr",
        title=f"Figure {number}: {title}",
        source=f"Rogers 2024, section 4, Figure {number}",
        cells=partial(pcr_trials.cells, made_up=made_up, real=real, users=users),
        measure=pcr_trials.measure,
        draw=pcr_pages.draw,
        describe=partial(pcr_pages.describe, paper_says=paper_says),
    )


FIGURES = (
    figure(
        1,
        "Finance, one item a user",
        "pcr-finance",
        ["reddit-posts-domain"],
        "where everybody has one item, Plume returns many more results than PCR, and hardly any of either are beyond "
        "the target. Nothing is cut off by a bound of 1, and all counts together cost as much as one.",
    ),
    figure(
        2,
        "Reddit, the small sample",
        "pcr-reddit-small",
        ["reddit-posts-words"],
        "on 341 users PCR returns more than Plume with a threshold, with about a tenth of the results beyond the "
        "target, and the percentile hardly matters.",
        users=341,
    ),
    figure(
        3,
        "Reddit, all of it",
        "pcr-reddit",
        ["reddit-posts-words"],
        "without a threshold Plume returns far more; with one, almost half of its results are beyond the target when "
        "the bound is the 95th percentile and almost none when it is the 99th; PCR returns as many accurate results "
        "when ε is small.",
    ),
    figure(
        4,
        "Wikipedia",
        "pcr-wikipedia/4",
        ["imdb-words", "kjv-verses"],
        "PCR returns fewer results than Plume with a threshold, but nearly all are within the target, while with the "
        "95th percentile more than a tenth of Plume's are not.",
    ),
    figure(
        5,
        "MovieLens",
        "pcr-movielens/4",
        ["movielens-1m"],
        "people rate many films, so PCR returns more results than Plume with a threshold, and fewer of them are "
        "beyond the target, at both percentiles.",
    ),
)
"""Figures 1 to 5, in order."""
