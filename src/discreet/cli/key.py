"""`discreet key`: secrets in files, and a key for an administrator who lost hers."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path

import click

from discreet.cli.serve import require_service
from discreet.errors import InputError


@click.group()
def key() -> None:
    """Secrets of the service."""


@key.command()
@click.argument("file")
@click.option("--force", is_flag=True, help="Replace a key that is there; it is put aside, not lost.")
def new(file: str, *, force: bool) -> None:
    """Write a new secret of 32 random bytes.

    FILE is for noise (discreet top --key, noise.key_file) or for signing (witness.signing_key_file). Nobody but you can
    read it. A key that is there already is never overwritten: with --force it gets another name.
    """
    from discreet.service.secrets import write_secret

    path = Path(file)
    if os.path.lexists(path):
        if not force:
            raise InputError(f"{file!r} exists; --force puts it aside and makes another")
        aside = path.with_name(f"{path.name}.{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
        if os.path.lexists(aside):
            raise InputError(f"{str(aside)!r} exists, so {file!r} cannot be put aside")
        path.rename(aside)
        click.echo(f"note: the key that was there is {aside.name} now", err=True)
    write_secret(path, secrets.token_bytes(32))


@key.command()
@click.option("--config", default="discreet.toml", show_default=True, metavar="FILE", help="Settings of the service.")
@click.option("--reason", required=True, help="Why; it is kept in the ledger.")
def admin(config: str, reason: str) -> None:
    """Make an API key for an administrator.

    For when the last one is lost: whoever has the store may. An SQLite store must not be served meanwhile. Prints the
    key, which is kept nowhere.
    """
    require_service()
    from discreet.budget.manager import BudgetManager
    from discreet.budget.model import AdminAction
    from discreet.service.init_project import make_key
    from discreet.service.settings import load_settings
    from discreet.service.stores import checkpointer_of, open_store, utc_now

    settings = load_settings(config)
    with contextlib.closing(open_store(settings.store, os.environ, utc_now)) as store:
        manager = BudgetManager(store, lambda: secrets.token_hex(16), checkpointer=checkpointer_of(settings.witness))
        now_us = time.time_ns() // 1_000
        click.echo(make_key(manager, "admin", None, now_us, secrets.token_bytes, AdminAction("discreet", reason)))
        manager.maintain()
