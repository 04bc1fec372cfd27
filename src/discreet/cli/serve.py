"""`discreet serve`: the budget service over HTTP."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from discreet.errors import InputError


def require_service() -> None:
    """Refuse what needs the libraries of the service where they are missing.

    Raises:
        InputError: they are.
    """
    try:
        import fastapi
        import httpx
        import joserfc
        import prometheus_client
        import structlog
        import uvicorn
    except ImportError as error:
        raise InputError(
            f"the service needs {error.name}; install what it needs with: pip install 'discreet[service]'"
        ) from None
    del fastapi, httpx, joserfc, prometheus_client, structlog, uvicorn


@click.command()
@click.argument("settings", default="discreet.toml", metavar="[SETTINGS]")
@click.option("--host", metavar="ADDRESS", help="Where to listen, instead of what SETTINGS says.")
@click.option("--port", type=int, metavar="N", help="Likewise; 0 for any free port.")
@click.option("--workers", type=int, metavar="N", help="Processes; more than one need a PostgreSQL store.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of settings files, for editors, and stop.")
def serve(settings: str, *, schema: bool, **overrides: Any) -> None:
    """Serve private answers over HTTP.

    SETTINGS is a TOML file, discreet.toml if it is left out; discreet init writes one. The log goes to standard output.
    SIGTERM and Ctrl-C stop the service: it takes no more questions and finishes those under way.
    """
    require_service()
    from discreet.service.settings import load_settings, settings_schema

    if schema:
        click.echo(json.dumps(settings_schema(), indent=2))
        return
    given = {name: value for name, value in overrides.items() if value is not None}
    loaded = load_settings(settings, given)
    if loaded.service.workers > 1:
        from discreet.service.server import serve_many

        serve_many(settings, given, loaded, os.environ, _announce)
    else:
        from discreet.service.server import serve as serve_one

        serve_one(loaded, os.environ, _announce)


def _announce(url: str) -> None:
    click.echo(f"discreet serves at {url}", err=True)
