"""`discreet running`: users so far of every item, refreshed period by period."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from discreet.errors import DiscreetError, InputError
from discreet.secrets import read_secret


@click.group()
def running() -> None:
    """Refresh users so far of every item, day by day."""


@running.command()
@click.argument("catalog")
@click.argument("name")
def plan(catalog: str, name: str) -> None:
    """Show the price and the noise of a stream.

    CATALOG declares the stream NAME. No row is read.
    """
    from discreet.budget.model import MAX_RECORD_LENGTH
    from discreet.mechanisms.running import RunningCounts
    from discreet.warehouse import connect

    with connect(catalog) as warehouse:
        declared = warehouse.running_counter(name).declaration
    mechanism = declared.mechanism()
    last = declared.periods
    counted = f"the first {mechanism.groups_per_user:,} items of each user"
    if isinstance(mechanism, RunningCounts):
        listing = counting = mechanism
    else:
        listing = mechanism.listing
        counting = mechanism.published
        chosen = ", unless the pilot chooses others" if declared.pilot is not None else ""
        unlisted = f"the first {listing.groups_per_user:,} items that are not listed"
        listed = f"{mechanism.groups_per_user:,} listed of each user{chosen}"
        counted = f"{unlisted}, and {listed}; counts are corrected for others"
    days = 1, (last + 1) // 2, last
    errors = [f"{counting.std_errors(day, [1])[0]:.3g}" for day in days]
    smallest = [f"{mechanism.smallest(day):,}" for day in days]
    lines = {
        "periods": f"{last:,} by {declared.each}, {declared.name(1)} to {declared.name(last)}",
        "guarantee": f"epsilon = {declared.epsilon:g}, delta = {float(declared.delta):g}, for all periods together",
        "cost": f"{mechanism.worst_cost()}, once, when it begins",
        "standard error": f"{errors[0]} in the first period, {errors[1]} in the middle, {errors[2]} in the last",
        "smallest item": (
            f"about {smallest[0]} users in the first period, {smallest[1]} in the middle, {smallest[2]} in the last"
        ),
        "counted": counted,
    }
    if mechanism is not counting:
        most = MAX_RECORD_LENGTH // 25  # a label of some length and its noisy number have about 25 characters
        lines["listed"] = f"in a service some {most:,} items, then the stream ends; without a limit in a file"
    for label, text in lines.items():
        click.echo(f"{label:<15} {text}")


@running.command()
@click.argument("catalog")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--key", required=True, metavar="FILE", help="The key of the noise: 32 random bytes, kept for ever.")
@click.option("--begin", is_flag=True, help="Begin streams that have no file yet, at their whole price.")
@click.option("--period", metavar="TIME", help="The period to answer; by default the last complete one.")
@click.option("--erased", is_flag=True, help="All rows of some users were erased, and nothing else has changed.")
@click.pass_context
def refresh(
    context: click.Context,
    catalog: str,
    names: tuple[str, ...],
    key: str,
    period: str | None,
    *,
    begin: bool,
    erased: bool,
) -> None:
    """Answer the last complete period; a second time, change nothing.

    CATALOG declares the streams; without a NAME, all that have a file are refreshed, or begun with --begin. A service
    refreshes those with an account. A stream that cannot be refreshed does not keep others from it.
    """
    from discreet.warehouse import connect

    secret = read_secret(Path(key), "noise key")
    with connect(catalog) as warehouse:
        declared = warehouse.catalog.streams.items()
        files = {name: stream.answers for name, (_, stream) in declared if stream.answers is not None}
        if not names and not files:
            raise InputError("the catalog declares no running counts with a file; add [datasets.DATASET.running.NAME]")
        absent = [] if names or begin else [name for name, answers in files.items() if not Path(answers).exists()]
        if absent and len(absent) < len(files):  # if all are, each says what to do
            click.echo(
                f"note: without a file: {', '.join(absent)}; --begin begins those that were never begun", err=True
            )
            files = {name: answers for name, answers in files.items() if name not in absent}
        codes = set()
        for name in names or files:
            try:
                stream = warehouse.running(name, secret)
                if begin and not stream.has_begun:
                    stream.due(period)
                    stream.begin()
                release = stream.refresh(period, erased=erased)
                share = stream.kept_share(period)
            except DiscreetError as error:
                click.echo(f"discreet: {name}: {error}", err=True)
                codes.add(2 if isinstance(error, InputError) else 3)
                continue
            suffix = "" if share is None else f"; {share:.0%} of users' pairs with listed items are kept"
            click.echo(f"{name}: {len(release):,} items{suffix}")
    context.exit(min(codes, default=0))


@running.command()
@click.argument("catalog")
@click.argument("name")
@click.option("--period", metavar="TIME", help="The period to show; by default the last answered one.")
@click.option("--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True)
def show(catalog: str, name: str, period: str | None, form: str) -> None:
    """Print an answered period of a stream.

    CATALOG declares the stream NAME. Nothing is computed: the answer is in the file of the stream.
    """
    from discreet.cli.output import Output
    from discreet.warehouse import connect

    settings: dict[str, Any] = {"form": form, "output": None, "plot": None, "force": False, "quiet": True}
    with connect(catalog) as warehouse:
        rows = warehouse.running(name).show(period).to_arrow()
    if form == "table":
        place = rows.column_names.index("std_error")
        errors = [float(f"{error:.3g}") for error in rows.column(place).to_pylist()]
        rows = rows.set_column(place, "std_error", [errors])
    Output.of(settings).write_rows(rows)
