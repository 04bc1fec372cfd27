"""`discreet init`: everything that a budget service needs to start."""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from discreet.cli.serve import require_service
from discreet.errors import InputError

if TYPE_CHECKING:
    from discreet.service.init_project import Project
    from discreet.service.settings import Store


@click.command()
@click.argument("folder", default=".", metavar="[FOLDER]")
@click.option("--catalog", metavar="FILE", help="Serve this catalog, instead of data that is made up.")
@click.option("--store", metavar="URL", help="Keep budgets in this empty PostgreSQL database, instead of a file.")
@click.option("--password-env", metavar="NAME", help="The environment variable that holds its password.")
@click.option("--force", is_flag=True, help="Put files aside that are there already.")
def init(folder: str, *, catalog: str | None, store: str | None, password_env: str | None, force: bool) -> None:
    """Start a budget service.

    Writes into FOLDER (here, if it is left out) settings, a catalog with a little table that is made up, the keys for
    noise and witness, and a store with first accounts, and prints the first API keys, which are kept nowhere. After
    that, discreet serve works. All of it is written, or nothing.
    """
    require_service()
    from discreet.service.init_project import found

    founded = found(
        Path(folder),
        catalog=None if catalog is None else Path(catalog),
        store=store_named(store or "sqlite:budget.db", password_env),
        force=force,
        environment=os.environ,
        clock=lambda: datetime.now(UTC),
        random=secrets.token_bytes,
    )
    click.echo(_told(founded))


def store_named(url: str, password_env: str | None) -> Store:
    """The store that the command line names.

    Raises:
        InputError: it cannot be one.
    """
    from pydantic import ValidationError

    from discreet.catalog.mistakes import mistakes_in
    from discreet.service.settings import Store

    try:
        return Store.model_validate({"url": url, "password_env": password_env}, context=Path.cwd())
    except ValidationError as error:
        wrong = mistakes_in(error)[0]
    raise InputError(f"--{wrong.place.replace('url', 'store').replace('_', '-')} {wrong.mistake}")


def _told(founded: Project) -> str:
    question = founded.question or "SELECT ..."
    keys = founded.keys
    return f"""\
These keys are shown now and never again; give each to whom it belongs.
  admin    {keys["admin"]}   makes keys
  officer  {keys["officer"]}   opens accounts, sets limits, grants data
  analyst  {keys["analyst"]}   asks, as ann@example

Start the service:
  discreet serve {founded.settings}

Ask, in another terminal:
  export DISCREET_URL=http://127.0.0.1:8080 DISCREET_KEY={keys["analyst"]}
  discreet query --sql "{question}"
  discreet budget
  curl -s $DISCREET_URL/v1/query -H "Authorization: Bearer $DISCREET_KEY" -H "Content-Type: application/json" \\
    -d '{{"sql": "{question}"}}'"""
