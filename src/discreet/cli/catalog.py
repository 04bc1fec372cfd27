"""`discreet catalog`: check and draft catalogs."""

from __future__ import annotations

import json
import os
from functools import partial

import click


@click.group()
def catalog() -> None:
    """Draft and check catalogs of the permitted queries."""


@catalog.command()
@click.argument("file")
@click.argument("datasets", nargs=-1, metavar="[DATASET]...")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.pass_context
def check(context: click.Context, file: str, datasets: tuple[str, ...], form: str) -> None:
    """Compare a catalog with its tables.

    FILE is the catalog; without a DATASET, all of its datasets are checked. Prints a line for each check, notes about
    queries that will be refused, and no data. Exit code 2 if there is a mistake.
    """
    from discreet.catalog import checks
    from discreet.catalog.loader import CatalogError, load_catalog
    from discreet.release.declaration import check_in

    try:
        declared = load_catalog(file)
        findings = checks.check(declared, datasets, environment=os.environ, check_stream=partial(check_in, declared))
    except CatalogError as error:  # each mistake of the file is a line like those of checks
        findings = list(error.mistakes)
    if form == "json":
        click.echo(
            json.dumps(
                [{"place": f.place, "ok": f.mistake is None, "mistake": f.mistake, "note": f.note} for f in findings],
                indent=2,
            )
        )
    else:
        for finding in findings:
            place = "" if finding.place else f"{file}: "
            click.echo(f"{'mistake' if finding.mistake else 'ok':<9}{place}{finding}")
            if finding.note is not None:
                click.echo(f"{'note':<9}{finding.place}: {finding.note}")
    context.exit(2 if any(finding.mistake for finding in findings) else 0)


@catalog.command()
def schema() -> None:
    """Print the JSON schema of catalogs.

    With it, editors complete and check TOML files.
    """
    from discreet.catalog.loader import schema_of
    from discreet.catalog.model import Catalog

    click.echo(json.dumps(schema_of(Catalog), indent=2))


@catalog.command()
@click.argument("source")
@click.option("--user", required=True, metavar="COL", help="The column that identifies the user of a row.")
@click.option("--table", metavar="NAME", help="The table, of an engine or of a DuckDB file with several.")
@click.option("--password-env", metavar="NAME", help="The environment variable that holds the engine's password.")
def init(source: str, user: str, table: str | None, password_env: str | None) -> None:
    """Print a draft of a catalog for a table.

    SOURCE is a path or pattern of files, a DuckDB file, or the URL of an engine. The draft follows from the columns and
    their types; no row is read, and nothing is allowed until you edit it.
    """
    from discreet.catalog.draft import draft_catalog

    click.echo(draft_catalog(source, user, environment=os.environ, table=table, password_env=password_env), nl=False)
