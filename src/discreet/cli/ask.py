"""`discreet top` and `discreet release`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import click

from discreet.cli.dataset import catalog_options, select_of
from discreet.cli.delivery import Delivery, Progress
from discreet.cli.options import (
    k_option,
    mechanism_option,
    question_of,
    read_key,
    relative_error_option,
    require_columns,
    shared_options,
)
from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from discreet.release import NoiseKey, Release
    from discreet.table import Table


@click.command()
@shared_options
@catalog_options
@k_option
@mechanism_option("auto|gumbel|laplace|stable")
def top(**options: Any) -> None:
    """The K items that most users have, with private counts.

    SOURCE is a path or glob of Parquet or CSV files, a DuckDB file, the URL of an engine such as
    postgresql://reader@host/database, or a dataset of --catalog. Fewer than K items are returned where the rest does
    not stand out from the noise.
    """
    _ask("top", options)


@click.command()
@shared_options
@catalog_options
@relative_error_option
@mechanism_option("pcr|laplace")
def release(**options: Any) -> None:
    """As many accurate counts as the guarantee allows, the largest first.

    SOURCE is a path or glob of Parquet or CSV files, a DuckDB file, the URL of an engine such as
    postgresql://reader@host/database, or a dataset of --catalog.
    """
    _ask("release", options)


def _ask(method: str, options: dict[str, Any]) -> None:
    delivery = Delivery.of(options)
    if options["catalog"] is not None:
        ask = _of_catalog(method, options)
    elif options["sql"] is not None:
        raise InputError("a statement needs a catalog, which says what may be asked; give --catalog too")
    else:
        ask = _of_source(method, options)
    delivery.check(counts=not options.get("no_counts", False))
    with warnings.catch_warnings(), Progress("counting", shown=not delivery.quiet) as progress:
        warnings.simplefilter("ignore" if delivery.quiet else "always")
        answer = ask(progress)
    delivery.deliver(answer)


def _of_source(method: str, options: dict[str, Any]) -> Callable[[Progress], Release]:
    """The question about a source, ready to be asked."""
    from discreet.table import scan

    require_columns(options)
    question = question_of(dict(options))
    if method == "top" and question["k"] is None:
        question["k"] = 10

    def ask(progress: Progress) -> Release:
        table = scan(options["source"], user=options["user"], table=options["table"])
        if options["where"] is not None:
            table = table.where(options["where"])
        bits = _noise_key(options, table)
        release: Release = getattr(table, method)(**question, bits=bits, force=options["force"], progress=progress)
        return release

    return ask


def _of_catalog(method: str, options: dict[str, Any]) -> Callable[[Progress], Release]:
    """The question about a dataset, ready to be asked."""
    from discreet.warehouse import connect

    select = select_of(method, options)

    def ask(progress: Progress) -> Release:
        with connect(options["catalog"]) as warehouse:
            return warehouse.query(
                select,
                epsilon=options["epsilon"],
                delta=options["delta"],
                relative_error=options.get("relative_error", "0.1"),
                counts=not options["no_counts"],
                mechanism=options["mechanism"],
                noise=options["noise"],
                head_limit=options["head_limit"],
                key=None if options["key"] is None else read_key(options["key"], quiet=options["quiet"]),
                force=options["force"],
                progress=progress,
            )

    return ask


def _noise_key(options: dict[str, Any], table: Table) -> NoiseKey | None:
    from discreet.release import NoiseKey

    if options["key"] is None:
        if options["data_version"] is not None:
            raise InputError("a data version says something only with a key; give --key too")
        return None
    secret = read_key(options["key"], quiet=options["quiet"])
    version = table.data_version if options["data_version"] is None else options["data_version"]
    if version is None:
        raise InputError("a key needs --data-version here: the source is not made of files")
    return NoiseKey(secret, version)
