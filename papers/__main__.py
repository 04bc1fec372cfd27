"""Run the experiments named, or all of them, and write the pages."""

from __future__ import annotations

import time

import click

from papers.experiment import Setting
from papers.experiments import EXPERIMENTS
from papers.report import run, write_pages, write_results
from papers.tables import Tables


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(sorted(EXPERIMENTS)))
@click.option("--smoke", is_flag=True, help="The least that shows it works; writes no pages.")
def main(names: tuple[str, ...], *, smoke: bool) -> None:
    """Regenerate tables and figures of the papers; what was finished before is not run again."""
    setting = Setting(Tables(), smoke=smoke)
    start = time.monotonic()
    for name in names or EXPERIMENTS:
        rows = run(EXPERIMENTS[name], setting)
        if not smoke:
            write_results(EXPERIMENTS[name], rows)
    if not smoke:
        write_pages(EXPERIMENTS.values())
    click.echo(f"all in {time.monotonic() - start:.0f} s", err=True)


if __name__ == "__main__":
    main()
