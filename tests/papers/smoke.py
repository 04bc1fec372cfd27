"""Running an experiment small, on made-up tables, as far as its page."""

from __future__ import annotations

from matplotlib.figure import Figure
from papers.report import run, write_results


def page_of(experiment, setting, folder):
    """The rows and the page's text of a smoke run, after checking what every experiment owes."""
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
