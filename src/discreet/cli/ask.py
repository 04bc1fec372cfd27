"""`discreet top` and `discreet release`."""

from __future__ import annotations

import stat
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet.cli.delivery import Delivery, Progress
from discreet.cli.options import k_option, mechanism_option, question_of, relative_error_option, shared_options
from discreet.errors import InputError

if TYPE_CHECKING:
    from discreet.release import NoiseKey
    from discreet.table import Table


@click.command()
@shared_options
@k_option
@mechanism_option("auto|gumbel|laplace|stable")
def top(**options: Any) -> None:
    """The K items that most users have, with private counts.

    SOURCE is a path or glob of Parquet or CSV files, a DuckDB file, or duckdb:///FILE?table=NAME. Fewer than K items
    are returned where the rest does not stand out from the noise.
    """
    _ask("top", options)


@click.command()
@shared_options
@relative_error_option
@mechanism_option("pcr|laplace")
def release(**options: Any) -> None:
    """As many accurate counts as the guarantee allows, the largest first.

    SOURCE is a path or glob of Parquet or CSV files, a DuckDB file, or duckdb:///FILE?table=NAME.
    """
    _ask("release", options)


def _ask(method: str, options: dict[str, Any]) -> None:
    from discreet.table import scan

    question = question_of(options)
    delivery = Delivery.of(options)
    delivery.check(counts=question["counts"])
    table = scan(options["source"], user=options["user"], table=options["table"])
    if options["where"] is not None:
        table = table.where(options["where"])
    bits = _noise_key(options, table)
    with warnings.catch_warnings(), Progress("counting", shown=not delivery.quiet) as progress:
        warnings.simplefilter("ignore" if delivery.quiet else "always")
        answer = getattr(table, method)(**question, bits=bits, force=options["force"], progress=progress)
    delivery.deliver(answer)


def _noise_key(options: dict[str, Any], table: Table) -> NoiseKey | None:
    from discreet.release import NoiseKey

    if options["key"] is None:
        if options["data_version"] is not None:
            raise InputError("a data version says something only with a key; give --key too")
        return None
    path = Path(options["key"])
    try:
        secret = path.read_bytes()
        readable = path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    except OSError as error:
        reason = (error.strerror or "no access").lower()
        raise InputError(f"the key {options['key']!r} cannot be read: {reason}") from None
    if readable and not options["quiet"]:
        click.echo(f"note: others can read the key; chmod 600 {options['key']}", err=True)
    version = table.data_version if options["data_version"] is None else options["data_version"]
    if version is None:
        raise InputError("a key needs --data-version here: the source is not made of files")
    return NoiseKey(secret, version)
