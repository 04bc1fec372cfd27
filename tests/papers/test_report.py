"""Pages of results: one section an experiment, in the order of the report."""

from __future__ import annotations

import csv

import pytest
from click.testing import CliRunner

import papers.__main__
from papers.experiment import Setting
from papers.experiments import EXPERIMENTS
from papers.report import PAGES, PAPERS, WORK, write_results
from papers.tables import Tables

ROW = {"table": "t", "users": None, "items": 3}


def test_writing_an_experiment_again_replaces_its_section_and_keeps_the_others_in_order(tmp_path, monkeypatch):
    """A page is its own source: no second copy of its sections is kept."""
    later, earlier = EXPERIMENTS["ts-tables-2-3"], EXPERIMENTS["ts-table-1"]
    for experiment, content in [(later, "later"), (earlier, "earlier, once"), (earlier, "earlier, again")]:
        for name, value in {"describe": lambda _, content=content: content, "draw": lambda _: _Picture()}.items():
            monkeypatch.setitem(experiment.__dict__, name, value)
        write_results(experiment, [ROW], tmp_path)
    text = (tmp_path / "ts.md").read_text()
    assert text.startswith(f"# {PAPERS['ts']}\n\n## {earlier.title}\n")
    assert "earlier, once" not in text
    assert text.index("earlier, again") < text.index(f"\n\n## {later.title}\n") < text.index("later")


def test_the_page_about_parameters_has_the_numbers_of_its_experiment(tmp_path):
    """Its mechanisms are named, so a new default mechanism neither changes nor breaks the page."""
    experiment = EXPERIMENTS["parameters-accuracy"]
    setting = Setting(Tables(tmp_path))
    (row,) = experiment.measure(setting, experiment.cells(setting)[3])
    with (PAGES / "parameters-accuracy.csv").open(newline="") as file:
        assert {key: str(value) for key, value in row.items()} == list(csv.DictReader(file))[3]


class _Picture:
    def savefig(self, *_, **__):
        """Save nothing, because only the text is tested."""


@pytest.mark.parametrize(("options", "folder"), [([], WORK / "pages"), (["--update-docs"], PAGES)])
def test_committed_pages_are_written_only_when_that_is_asked_for(monkeypatch, options, folder):
    """A run without the real tables has fewer rows than the committed pages."""
    written = []
    monkeypatch.setattr(papers.__main__, "run", lambda *_: [ROW])
    monkeypatch.setattr(papers.__main__, "write_results", lambda _, __, pages: written.append(pages))
    result = CliRunner().invoke(papers.__main__.main, ["ts-table-1", *options])
    assert result.exit_code == 0
    assert written == [folder]
