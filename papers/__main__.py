"""Command line: run the named experiments, or all of them, and write their pages."""

from __future__ import annotations

import time
from pathlib import Path

import click

from papers.experiment import Setting
from papers.experiments import EXPERIMENTS
from papers.official import LOADERS
from papers.report import PAGES, WORK, run, write_results
from papers.tables import Tables


def parse_official(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, Path]:
    """Return the paths of official files by the name of their table, from texts "NAME=PATH"."""
    found: dict[str, Path] = {}
    for value in values:
        name, _, path = value.partition("=")
        if name not in LOADERS or not path or not Path(path).exists():
            raise click.BadParameter(
                f"{value!r} is not NAME=PATH with an existing path and one of {', '.join(LOADERS)}"
            )
        found[name] = Path(path)
    return found


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(sorted(EXPERIMENTS)))
@click.option(
    "--smoke", is_flag=True, help="Run a few cells and trials to check that everything works; writes no pages."
)
@click.option(
    "--update-docs",
    is_flag=True,
    help="Write into docs/papers, in place of build/papers/pages: without the real tables, pages there lose rows.",
)
@click.option(
    "--official",
    multiple=True,
    callback=parse_official,
    metavar="NAME=PATH",
    envvar="DISCREET_OFFICIAL",
    help="The official file of a paper's table (papers/official.py); also in DISCREET_OFFICIAL, separated by spaces.",
)
def main(names: tuple[str, ...], *, smoke: bool, update_docs: bool, official: dict[str, Path]) -> None:
    """Regenerate tables and figures of the papers; finished cells are read back, not run again."""
    setting = Setting(Tables(official=official), smoke=smoke)
    pages = PAGES if update_docs else WORK / "pages"
    start = time.monotonic()
    for name in names or EXPERIMENTS:
        rows = run(EXPERIMENTS[name], setting)
        if not smoke:
            write_results(EXPERIMENTS[name], rows, pages)
    click.echo(f"all in {time.monotonic() - start:.0f} s" + ("" if smoke else f", in {pages}"), err=True)


if __name__ == "__main__":
    main()
