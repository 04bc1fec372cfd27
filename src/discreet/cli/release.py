"""`discreet top`, `release` and `plan`: query a table or a catalog in this process."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet.cli.options import (
    TableCommand,
    cast_option,
    catalog_options,
    epsilon_per_option,
    given_options,
    k_option,
    quantile_option,
    relative_error_option,
    row_options,
    select_of,
    shared_options,
    today,
)
from discreet.cli.output import Output, Progress, notes
from discreet.errors import InputError
from discreet.secrets import read_secret

if TYPE_CHECKING:
    from discreet.query.planning import Plan
    from discreet.query.pricing import PerUnit
    from discreet.release import Release


@click.command(cls=TableCommand)
@shared_options
@catalog_options
@k_option
def top(**options: Any) -> None:
    """Release the K items with the most users, with private counts.

    SOURCE is a path or glob of Parquet or CSV files, a DuckDB file, the URL of an engine such as
    postgresql://reader@host/database, or a dataset of --catalog. Fewer than K items are released if the
    others do not stand out from the noise.
    """
    _answer("top", options)


@click.command(cls=TableCommand)
@shared_options
@catalog_options
@relative_error_option("0.1")
@quantile_option
def release(**options: Any) -> None:
    """Release as many accurate counts as the guarantee allows.

    The largest come first; dates, periods and bins are in their order. Without --item, one number of all rows is
    released.

    SOURCE is a path or glob of Parquet or CSV files, a DuckDB file, the URL of an engine such as
    postgresql://reader@host/database, or a dataset of --catalog.
    """
    _answer("release", options)


def _answer(method: str, options: dict[str, Any]) -> None:
    output = Output.of(options)
    if options["catalog"] is not None:
        run = _query_catalog(method, options)
    elif options["sql"] is not None:
        raise InputError("a statement needs a catalog, which declares what may be queried; give --catalog too")
    else:
        run = _query_source(method, options)
    output.check(counts=not options.get("no_counts", False))
    shares = options.get("quantiles", ())
    if shares and (options["catalog"] is not None or options["between"] is None or output.plot is not None):
        raise InputError(
            "--quantile goes with --range, without --plot; with a catalog, select QUANTILE(...) with --sql"
        )
    if shares and options["rows_per_group"] is None:
        raise InputError(
            "--quantile is of rows: give --rows-per-group, the most rows of a user in a bin that count; 1 counts users"
        )
    with warnings.catch_warnings(), Progress("counting", shown=not output.quiet) as progress:
        warnings.simplefilter("ignore" if output.quiet else "always")
        answer = run(progress)
    if not shares:
        output.write(answer)
        return
    import pyarrow as pa

    quantiles = [answer.quantile(share) for share in shares]
    names = ("quantile", answer.query.request.items[0], "low", "high")
    rows = [(share, *ends) for share, ends in zip(shares, quantiles, strict=True)]
    output.write_rows(pa.table(dict(zip(names, map(pa.array, zip(*rows, strict=True)), strict=True))))
    if not output.quiet:
        click.echo("\n".join(notes(answer)), err=True)


def _query_source(method: str, options: dict[str, Any]) -> Callable[[Progress], Release]:
    """Return a function that queries SOURCE and shows its progress."""
    from discreet.query.planning import unclipped
    from discreet.release import NoiseKey
    from discreet.table import scan

    parameters = row_options(options, total=method == "release")
    if options.get("quantiles"):
        parameters["mechanism"] = unclipped(parameters.get("mechanism"))
    k = 10 if method == "top" and options["k"] is None else options.get("k")
    cast = cast_option(options)

    def run(progress: Progress) -> Release:
        table = scan(options["source"], user=options["user"], table=options["table"], cast=cast)
        if options["where"] is not None:
            table = table.where(options["where"])
        bits = None
        force = options["force"]
        if options["key"] is not None:
            secret = read_secret(Path(options["key"]), "noise key")
            version = table.data_version if options["data_version"] is None else options["data_version"]
            if version is None:
                raise InputError("a key needs --data-version here: the source is not made of files")
            bits = NoiseKey(secret, version)
        elif options["data_version"] is not None:
            raise InputError("--data-version has no effect without --key; give a key too")
        if k is None:
            return table.release(options["item"], bits=bits, force=force, progress=progress, **parameters)
        return table.top(options["item"], k, bits=bits, force=force, progress=progress, **parameters)

    return run


def _query_catalog(method: str, options: dict[str, Any]) -> Callable[[Progress], Release]:
    """Return a function that queries a dataset of the catalog and shows its progress."""
    from discreet.warehouse import connect

    select = select_of(method, options)

    def run(progress: Progress) -> Release:
        with connect(options["catalog"]) as warehouse:
            answer = warehouse.query(
                select,
                key=None if options["key"] is None else read_secret(Path(options["key"]), "noise key"),
                force=options["force"],
                progress=progress,
                **given_options(options),
            )
            return answer if options["sql"] is not None else answer.in_order()

    return run


@click.command(cls=TableCommand)
@shared_options
@catalog_options
@click.option("-k", "k", type=int, help="Plan a top K; without it, a release.")
@epsilon_per_option
@click.option(
    "--delta-per", default="1e-10", show_default=True, metavar="FLOAT", help="With --epsilon-per: delta of a call."
)
@click.option(
    "--information",
    type=int,
    default=100,
    show_default=True,
    metavar="N",
    help="With --epsilon-per: maximum number of units of a release.",
)
@relative_error_option("0.1")
@click.option("--releases", type=int, metavar="N", help="Also show one of N daily releases that cost as much together.")
@click.pass_context
def plan(context: click.Context, /, **options: Any) -> None:
    """Show the plan of `top` (with -k) or `release` (without).

    Takes the same arguments. Shows the mechanism, the worst-case cost, the expected standard error and the smallest
    count that can appear.
    SOURCE is not opened, so its columns are not checked, except for sums and filters on the items, whose error
    depends on the types of the columns. With --catalog, no row of the dataset is read.
    """
    from discreet.query.pricing import PerUnit
    from discreet.warehouse import connect

    if options["form"] not in {None, "table", "json"}:
        raise InputError("a plan is printed as table or json")
    per: PerUnit | None = None
    epsilon, delta, information = (options.pop(name) for name in ("epsilon_per", "delta_per", "information"))
    if epsilon is not None:
        for name in ("epsilon", "delta"):
            if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
                raise InputError(f"a query has a price per unit, or an epsilon and a delta; leave --{name} out")
            del options[name]
        per = PerUnit(epsilon, delta, information)
    if options["catalog"] is not None:
        with connect(options["catalog"]) as warehouse:
            plan = warehouse.plan(select_of("plan", options), per=per, force=options["force"], **given_options(options))
    elif options["sql"] is not None:
        raise InputError("a statement needs a catalog, which declares what may be queried; give --catalog too")
    else:
        plan = _plan_source(options, per)
    number = options["releases"]
    one = None if number is None else plan.one_of(number)
    if options["form"] == "json":
        shown = _plan_as_dict(plan) | ({} if one is None else {"releases": number, "each": _plan_as_dict(one)})
        click.echo(json.dumps(shown, indent=2))
    else:
        click.echo(_plan_as_text(plan))
    if one is not None and options["form"] != "json":
        click.echo(f"\none of {number:,} releases that cost as much together\n{_plan_as_text(one)}")
    for note in () if options["quiet"] else plan.notes:
        click.echo(f"note: {note}", err=True)


def _plan_source(options: dict[str, Any], per: PerUnit | None) -> Plan:
    from discreet.engines.opening import source_fingerprint
    from discreet.query.planning import make_plan
    from discreet.query.predicates import columns_of
    from discreet.query.sql import parse_where
    from discreet.table import scan, table_query

    parameters = row_options(options, total=options["k"] is None)
    cast = cast_option(options)
    where = None if options["where"] is None else parse_where(options["where"], today())
    listed = bool(options["item"]) and where is not None and columns_of(where) >= set(options["item"])
    if per is None and (listed or options["sum"] is not None or options["average"] is not None):
        table = scan(options["source"], user=options["user"], table=options["table"], cast=cast)
        table = table if options["where"] is None else table.where(options["where"])
        return table.plan(options["item"], options["k"], force=options["force"], **parameters)
    if "://" not in options["source"] and not options["quiet"]:
        try:
            source_fingerprint(options["source"])
        except (InputError, OSError) as error:
            click.echo(f"note: {error}; the plan does not depend on it", err=True)
    query = table_query(options["user"], options["item"], options["k"], where, **parameters)
    query = dataclasses.replace(query, options=dataclasses.replace(query.options, per=per))
    return make_plan(query, force=options["force"])


def _plan_as_dict(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON values.

    Its keys are mechanism, privacy, worst_cost, units, std_error, sum_std_error, smallest_count, likely, basis,
    half_width, reads, query.
    """
    from discreet.release.result import privacy_to_dict, query_to_dict
    from discreet.values import float_above

    expected = plan.expectation
    units = plan.worst_units
    return {
        "mechanism": plan.mechanism.name,
        "privacy": privacy_to_dict(plan.guarantee),
        "worst_cost": {"rho": float_above(plan.worst_cost.rho), "delta": float_above(plan.worst_cost.delta)},
        "units": None if units is None else {"information": units.information, "calls": units.calls},
        "std_error": {"least": expected.min_std_error, "most": expected.max_std_error},
        "sum_std_error": plan.sum_std_error,
        "smallest_count": expected.smallest_count,
        "likely": [dataclasses.asdict(part) for part in expected.likely],
        "basis": plan.error_basis,
        "half_width": {"least": expected.min_half_width, "most": expected.max_half_width},
        "reads": "pairs" if plan.reads_pairs else plan.request.limit + 1,
        "query": query_to_dict(plan.query),
    }


def _plan_as_text(plan: Plan) -> str:
    """Return a plan as text."""
    from discreet.cli.query import expected_lines
    from discreet.wire.queries import Expected

    expected = expected_lines(Expected.of(plan))
    cost = plan.worst_cost
    lines = {
        "mechanism": plan.mechanism.name,
        "guarantee": str(plan.guarantee),
        "worst cost": f"rho = {float(cost.rho):.4g}, delta = {float(cost.delta):.4g}",
        "units": "" if plan.worst_units is None else str(plan.worst_units),
        "standard error": expected["standard error"],
        "error of a sum": "",
        "smallest count": expected["smallest count"],
        "reads": f"the {plan.request.limit + 1:,} largest counts, no others",
        "segments": "",
    }
    if plan.request.segments is not None:
        number = len(plan.request.segments)
        columns = " and ".join(plan.request.each)
        lines["reads"] = f"the {plan.request.limit + 1:,} largest counts of each segment, no others"
        lines["segments"] = f"{number:,} of {columns}, all for the price of one; each user counts in one of them"
    if plan.reads_pairs:
        sums = "noisy counts of users, and weighted sums over users, of all items"
        lines["reads"] = sums
        if plan.request.segments is not None:
            lines["reads"] = f"{sums}; or the {plan.request.limit + 1:,} largest counts of each segment as well"
            lines["segments"] += ", unless one round is chosen"
        elif plan.query.k is not None and plan.request.limit > 0:  # without a head limit no head is read first
            counts = f"the {plan.request.limit + 1:,} largest counts"
            lines["reads"] = f"{counts}; if count {plan.query.k:,} does not stand out, also {sums}"
    error = plan.sum_std_error
    if error is not None:
        summed = plan.query.request.summed
        note = " at most: its bound is chosen privately" if summed is not None and summed.private else ""
        if summed is not None and summed.rows is not None:
            note = f" for {plan.error_basis}"
        lines["error of a sum"] = f"{error:,.3g}{note}"
    return "\n".join(f"{name:<16}{text}" for name, text in lines.items() if text)
