"""Checks of an experiment run on a small made-up table, and of sampled frequencies."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from papers.report import run, write_results

FAR = 5
"""Standard errors by which a frequency is too far from its probability."""


def page_of(experiment, setting, folder):
    """Run an experiment and return its rows and page text, after the checks that every experiment must pass."""
    rows = run(experiment, setting, folder / "work")
    assert rows
    assert all(row.keys() == rows[0].keys() for row in rows)
    write_results(experiment, rows, folder)
    figure = experiment.draw(rows)
    assert isinstance(figure, Figure)
    assert all(axes.get_ylabel() or axes.get_xlabel() for axes in figure.axes)
    text = (folder / f"{experiment.paper}.md").read_text()
    assert experiment.title in text
    assert (folder / f"{experiment.name}.png").stat().st_size > 5000
    assert run(experiment, setting, folder / "work") == rows
    return rows, text


def far_from(frequencies, probabilities, trials):
    """Return whether a frequency is more than `FAR` standard errors from its probability."""
    keys = frequencies.keys() | probabilities.keys()
    gaps = {key: abs(frequencies.get(key, 0) / trials - probabilities.get(key, 0)) for key in keys}
    return any(gap > FAR * math.sqrt((probabilities.get(key, 0) + 1 / trials) / trials) for key, gap in gaps.items())
