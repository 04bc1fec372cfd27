"""Run experiments, resume interrupted ones, and write their results into pages of the documentation."""

from __future__ import annotations

import csv
import hashlib
import inspect
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from papers import generators
from papers.experiment import cell_key
from papers.experiments import EXPERIMENTS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from papers.experiment import Experiment, Row, Setting

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "papers"
PAGES = ROOT / "docs" / "papers"
PAPERS = {
    "dr19": "Durfee & Rogers 2019: practical top-k selection, pay what you get",
    "linkedin": "Rogers et al. 2021: LinkedIn's Audience Engagements API",
    "pcr": "Rogers 2024: Private Count Release",
    "ts": "Carvalho et al. 2020: Top Stable",
    "parameters": "Choosing parameters: the curves",
}


def run(experiment: Experiment, setting: Setting, work: Path = WORK) -> list[Row]:
    """Return all rows of *experiment*; finished cells are read back if no source file they depend on has changed.

    Args:
        experiment: the experiment to run.
        setting: its tables, and whether it is a smoke run.
        work: the folder of finished cells.
    """
    makers = sorted(_source_files(inspect.getmodule(experiment.measure)) | {Path(generators.__file__)})
    version = hashlib.sha256(b"".join(file.read_bytes() for file in makers)).hexdigest()[:12]
    folder = work / experiment.name / (f"{version}-smoke" if setting.smoke else version)
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with click.progressbar(experiment.cells(setting), label=f"{experiment.name:<24}", file=sys.stderr) as bar:
        for cell in bar:
            done = folder / f"{hashlib.sha256(cell_key(cell).encode()).hexdigest()[:16]}.json"
            if not done.exists():
                part = done.with_suffix(".part")
                part.write_text(json.dumps(experiment.measure(setting, cell)))
                part.replace(done)
            rows += json.loads(done.read_text())
    return rows


def _source_files(module: ModuleType | None, found: set[Path] | None = None) -> set[Path]:
    """Return the files of *module* and of all our modules that it takes names from, directly or not."""
    found = set() if found is None else found
    if (
        module is None
        or not module.__name__.startswith(("papers", "benchmarks", "discreet", "__main__"))
        or not module.__file__
    ):
        return found
    file = Path(module.__file__)
    if file not in found:
        found.add(file)
        for value in list(vars(module).values()):
            _source_files(value if inspect.ismodule(value) else inspect.getmodule(value), found)
    return found


def write_results(experiment: Experiment, rows: Sequence[Row], pages: Path) -> None:
    """Write the rows as CSV and the figure as PNG, and put the section of *experiment* into its paper's page."""
    pages.mkdir(parents=True, exist_ok=True)
    with (pages / f"{experiment.name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    figure = experiment.draw(rows)
    figure.savefig(pages / f"{experiment.name}.png", dpi=110, metadata={"Software": None})
    _write_section(
        experiment,
        f"*{experiment.source}*\n\n![{experiment.title}]({experiment.name}.png)\n\n"
        f"{experiment.describe(rows).strip()}\n\n"
        f"[The numbers]({experiment.name}.csv), by `python -m papers {experiment.name}`.\n",
        pages / f"{experiment.paper}.md",
    )


def _write_section(experiment: Experiment, text: str, page: Path) -> None:
    """Replace one section of *page*, or add it at its place in the order of `EXPERIMENTS`."""
    sections: dict[str, str] = {}
    if page.exists():
        for section in page.read_text().split("\n## ")[1:]:
            title, _, rest = section.partition("\n")
            sections[title] = rest.strip("\n") + "\n"
    sections[experiment.title] = text
    order = [other.title for other in EXPERIMENTS.values() if other.title in sections]
    parts = [f"## {title}\n\n{sections[title]}" for title in order]
    page.write_text("\n".join([f"# {PAPERS[experiment.paper]}\n", *parts]))
