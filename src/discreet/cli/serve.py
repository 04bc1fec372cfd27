"""`discreet init`, `serve` and `key`: set up and run a budget service."""

from __future__ import annotations

import json
import os
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet.cli.options import config_option, reason_option
from discreet.errors import InputError, how_to_install

if TYPE_CHECKING:
    from discreet.service.settings import Store


def require_service() -> None:
    """Raise `InputError` if a library of the service is missing."""
    try:
        import httpx
        import jinja2
        import joserfc
        import prometheus_client
        import sqlglot
        import starlette
        import uvicorn
    except ImportError as error:
        raise InputError(f"the service needs {error.name}; {how_to_install('service')}") from None
    del httpx, jinja2, joserfc, prometheus_client, sqlglot, starlette, uvicorn


@click.command()
@click.argument("settings", default="discreet.toml", metavar="[SETTINGS]")
@click.option("--host", metavar="ADDRESS", help="Address to listen at, instead of that of SETTINGS.")
@click.option("--port", type=int, metavar="N", help="Port, instead of that of SETTINGS; 0 for any free one.")
@click.option("--workers", type=int, metavar="N", help="Processes; more than one need a PostgreSQL store.")
@click.option(
    "--without-proxy",
    is_flag=True,
    default=None,
    help="Listen outside of this machine without a proxy: without TLS, and without limits of connections, headers and "
    "slow clients.",
)
@click.option("--schema", is_flag=True, help="Print the JSON schema of settings files and exit.")
def serve(settings: str, *, schema: bool, **overrides: Any) -> None:
    """Serve private answers over HTTP.

    SETTINGS is a TOML file, by default discreet.toml; discreet init writes one. The log goes to standard output.
    SIGTERM and Ctrl-C stop the service: it accepts no more queries and finishes those in progress.
    """
    require_service()
    from discreet.service.settings import load_settings, settings_schema

    if schema:
        click.echo(json.dumps(settings_schema(), indent=2))
        return
    overrides = {name: value for name, value in overrides.items() if value is not None}
    loaded = load_settings(settings, overrides)
    if loaded.service.workers > 1:
        from discreet.service.server import serve_many

        serve_many(settings, overrides, loaded, os.environ, _announce)
    else:
        from discreet.service.server import serve as serve_one

        serve_one(loaded, os.environ, _announce)


def _announce(url: str) -> None:
    click.echo(f"discreet serves at {url}", err=True)


_INSTRUCTIONS = """\
The settings, secrets and budgets are in {folder}.

These API keys are shown once and stored nowhere.
  admin    {admin}   creates API keys
  officer  {officer}   creates accounts, sets limits, grants data
  analyst  {analyst}   queries, as ann@example

Start the service:
  discreet serve {settings}

Open http://127.0.0.1:8080 in a browser and log in with one of the keys, or query it in another terminal:
  export DISCREET_URL=http://127.0.0.1:8080 DISCREET_KEY={analyst}
  discreet query --sql "{query}"
  discreet budget
  curl -s $DISCREET_URL/v1/query -H "Authorization: Bearer $DISCREET_KEY" -H "Content-Type: application/json" \\
    -d '{{"sql": "{query}"}}'"""


@click.command()
@click.argument("folder", default=".", metavar="[FOLDER]")
@click.option("--catalog", metavar="FILE", help="Serve this catalog, which stays where it is, instead of example data.")
@click.option("--store", metavar="URL", help="Keep budgets in this empty PostgreSQL database, instead of a file.")
@click.option("--password-env", metavar="NAME", help="The environment variable that holds its password.")
@click.option("--force", is_flag=True, help="Replace existing files; the old ones are renamed.")
def init(folder: str, *, catalog: str | None, store: str | None, password_env: str | None, force: bool) -> None:
    """Set up a budget service.

    Writes settings, a catalog with an example table, the keys for noise and checkpoints, and a store with first
    accounts to FOLDER (by default the current one), and prints the first API keys, which are stored nowhere. Then
    discreet serve works. Either everything is written or nothing.
    """
    require_service()
    from discreet.service.init_project import create_project

    project = create_project(
        Path(folder),
        catalog=None if catalog is None else Path(catalog),
        store=parse_store(store or "sqlite:budget.db", password_env),
        force=force,
        environment=os.environ,
    )
    shown: dict[str, object] = {
        "folder": project.settings.parent.resolve(),
        "settings": project.settings,
        "query": project.query or "SELECT ...",
    }
    click.echo(_INSTRUCTIONS.format_map(shown | {str(role): key for role, key in project.keys.items()}))


def parse_store(url: str, password_env: str | None) -> Store:
    """Parse the URL of a store from the command line, or raise `InputError`."""
    from pydantic import ValidationError

    from discreet.catalog.loader import validation_errors
    from discreet.service.settings import Store

    try:
        return Store.model_validate({"url": url, "password_env": password_env}, context=Path.cwd())
    except ValidationError as error:
        wrong = validation_errors(error)[0]
    raise InputError(f"--{wrong.place.replace('url', 'store').replace('_', '-')} {wrong.mistake}")


@click.group()
def key() -> None:
    """Create secrets and API keys of the service."""


@key.command()
@click.argument("file")
@click.option("--force", is_flag=True, help="Replace an existing key; the old one is renamed.")
def new(file: str, *, force: bool) -> None:
    """Write a new secret of 32 random bytes.

    FILE is for noise (discreet top --key, noise.key_file) or for checkpoints (signing_key_file). Only you can read
    it. An existing key is never overwritten: with --force it is renamed.
    """
    from discreet.secrets import write_secret

    path = Path(file)
    if os.path.lexists(path):
        if not force:
            raise InputError(f"{file!r} exists; --force renames it and writes a new one")
        aside = path.with_name(f"{path.name}.{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
        if os.path.lexists(aside):
            raise InputError(f"{str(aside)!r} exists, so {file!r} cannot be renamed")
        path.rename(aside)
        click.echo(f"note: the existing key was renamed to {aside.name}", err=True)
    write_secret(path, secrets.token_bytes(32))


@key.command()
@config_option
@reason_option
def accept(config: str, reason: str) -> None:
    """Accept another noise key.

    A service does not start with another noise key than that of the releases in its store, because the same query would
    be a new one, and charged again. Running counts that go on end with it. If the store is SQLite, stop the service
    first.
    """
    require_service()
    from discreet.budget.model import AdminAction
    from discreet.release.keys import DerivedKeys
    from discreet.service.answering.running import ended_with
    from discreet.service.settings import load_settings
    from discreet.service.stores import accept_noise_key, noise_secret, open_manager

    settings = load_settings(config)
    keys = DerivedKeys(noise_secret(settings.noise, os.environ))
    with open_manager(settings, os.environ) as manager:
        accept_noise_key(manager.store, keys, AdminAction("discreet", reason))
        ended = ended_with(manager.store, keys.running)
        manager.maintain()
    click.echo("accepted: the same query is a new one from now on, with other noise, and is charged")
    if ended:
        click.echo(
            f"running counts end with another key: {', '.join(ended)}; what they answered stays, and they go on if the "
            "key with which they began is accepted again"
        )


@key.command()
@config_option
@reason_option
def admin(config: str, reason: str) -> None:
    """Create an API key for an administrator.

    Use it if the last one was lost; access to the store is enough. A service that has the SQLite store open accepts the
    key within ten seconds. Prints the key, which is stored nowhere.
    """
    require_service()
    from discreet.budget.errors import StoreInUse
    from discreet.budget.model import AdminAction
    from discreet.service.auth.access import KEY
    from discreet.service.auth.api_keys import write_key_file
    from discreet.service.init_project import make_key
    from discreet.service.settings import load_settings
    from discreet.service.stores import open_manager

    settings = load_settings(config)
    action = AdminAction("discreet", reason)
    issued, record = make_key("admin", None, time.time_ns() // 1_000, secrets.token_bytes)
    try:
        with open_manager(settings, os.environ) as manager:
            manager.store.put_record(KEY, issued.id, record.text, action, record.shown)
            manager.maintain()
    except StoreInUse:  # one process may open an SQLite store, so the service itself has to add the key
        if settings.store.file is None:
            raise
        write_key_file(settings.store.file, issued, record, reason)
        click.echo("note: the service that is running accepts it within ten seconds", err=True)
    click.echo(issued.text)
