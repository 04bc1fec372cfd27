"""`discreet query`, `rehearse` and `budget`: the analysts' commands for a budget service."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from discreet.cli.options import (
    connection_options,
    file_options,
    given_options,
    no_counts_option,
    options_of,
    plot_option,
    service_query_options,
)
from discreet.cli.output import Output
from discreet.errors import InputError

if TYPE_CHECKING:
    from discreet.client import Answer, Client
    from discreet.query.query import Options
    from discreet.wire.queries import BudgetReport, Estimate, Expected, ParentBudget, Spend


_Command = TypeVar("_Command", bound="Callable[..., Any]")

service_options = options_of(
    connection_options,
    click.option(
        "--timeout",
        type=float,
        default=300.0,
        show_default=True,
        metavar="SECONDS",
        help="Timeout of all attempts together.",
    ),
)
_delivery_options = options_of(
    click.option("--force", is_flag=True, help="Overwrite files."),
    click.option("--quiet", "-q", is_flag=True, help="Print no notes."),
)


@click.command()
@service_options
@click.option("--sql", required=True, metavar="TEXT", help="The query as a SELECT, or a whole statement.")
@service_query_options
@no_counts_option
@click.option("--estimate", is_flag=True, help="Show what it would cost; nothing is read or charged.")
@click.option("--intervals", is_flag=True, help="Add columns with the ends of intervals to a whole statement.")
@file_options
@plot_option
@_delivery_options
def query(sql: str, *, estimate: bool, intervals: bool, **options: Any) -> None:
    """Query a budget service.

    The service sets defaults for missing options. The key is in a file or in DISCREET_KEY, never on the command line,
    where other users could see it. A request that fails in transit is sent again, and charged once.

    SQL other than one query in the grammar of docs/sql.md is sent as a whole statement: each SELECT directly over a
    dataset is charged, and the rest is computed from the answers.
    """
    from discreet.query.sql import is_select

    price = given_options(options)
    if not is_select(sql):
        _run_statement(sql, price, options, estimate=estimate, intervals=intervals)
        return
    if estimate:
        if options["form"] not in {None, "table", "json"}:
            raise InputError("an estimate is printed as table or json")
        with _open_client(options) as client:
            cost = client.estimate(sql, **price)
        click.echo(json.dumps(cost.model_dump(), indent=2) if options["form"] == "json" else estimate_as_text(cost))
        for note in () if options["quiet"] else cost.notes:
            click.echo(f"note: {note}", err=True)
        return
    output = Output.of(options)
    output.check(counts=not options["no_counts"])
    with _open_client(options) as client, _interruptible():
        answer = client.answer(sql, **price)
    output.write(answer.release)
    if not output.quiet:
        click.echo("\n".join(notes(answer)), err=True)


@click.command()
@service_options
@click.option("--dataset", metavar="NAME", help="The dataset whose made-up rows are shown.")
@click.option("--sql", metavar="TEXT", help="Or a statement, which is computed from made-up rows.")
@click.option("--rows", type=click.IntRange(1, 10_000), help="Number of made-up rows to show.  [default: 100]")
@service_query_options
@file_options
@_delivery_options
def rehearse(dataset: str | None, sql: str | None, rows: int | None, **options: Any) -> None:
    """Compute a statement from made-up rows, or show such rows.

    The rows are generated from the columns, types and listed labels of the catalog alone. No data is read and nothing
    is charged. The result of a statement has a column made_up. The other options are those of discreet query.
    """
    price = given_options(options)
    if (dataset is None) == (sql is None):
        raise InputError("a rehearsal needs either --dataset or --sql" + ("" if dataset is None else ", not both"))
    if sql is not None and rows is not None:
        raise InputError("--rows goes with --dataset; the rows of a statement are limited by its LIMIT")
    if dataset is not None and price:
        raise InputError("the options of a query go with --sql")
    output = Output.of({**options, "plot": None})
    output.check(counts=False)
    with _open_client(options) as client:
        if dataset is not None:
            output.write_rows(client.sample(dataset, rows or 100))
        else:
            computed = client.sql(sql or "", rehearse=True, **price)
            output.write_rows(computed.table, computed.no_interval)
    if not output.quiet:
        click.echo("made-up rows: only columns, types and listed labels are those of the dataset", err=True)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Exit after Ctrl-C with a note about the charge."""
    try:
        yield
    except KeyboardInterrupt:
        charged = "if the service was reading data, the worst case is charged, and pays for the same query again"
        click.echo(f"discreet: interrupted; {charged}", err=True)
        sys.exit(130)


def _run_statement(sql: str, price: Options, options: dict[str, Any], *, estimate: bool, intervals: bool) -> None:
    """Write the rows of a statement, or with *estimate* its worst cost."""
    output = Output.of(options)
    output.check(counts=False)
    with _open_client(options) as client:
        if estimate:
            priced = client.estimate_sql(sql, **price)
            costs = ((query.sql, query.estimate) for query in priced.queries)
            lines = [
                f"{text}: {'free' if cost is None or cost.paid else _spend(cost.worst_cost)}" for text, cost in costs
            ]
            fits = "it fits" if priced.fits else "it does not fit"
            lines.append(f"at most {_spend(priced.worst_cost)} together: {fits}")
            click.echo(json.dumps(priced.model_dump(), indent=2) if output.form == "json" else "\n".join(lines))
            return
        with _interruptible():
            rows = client.sql(sql, intervals=intervals, **price)
    output.write_rows(rows.table, rows.no_interval)
    if not output.quiet:
        for note in dict.fromkeys(query.note for query in rows.queries if query.note is not None):
            click.echo(f"note: {note}", err=True)
        for query in rows.queries:
            charged = f"rho = {query.charged.rho:.3g}, delta = {query.charged.delta:.3g}"
            click.echo(f"{query.status}, charged {charged}: {query.sql}", err=True)
        if rows.no_interval:
            hint = "" if intervals else "; --intervals adds those that there are"
            click.echo(f"no interval: {', '.join(rows.no_interval)}{hint}", err=True)


def _spend(cost: Spend) -> str:
    return f"rho = {cost.rho:.4g}, delta = {cost.delta:.4g}"


def _open_client(options: dict[str, Any]) -> Client:
    """Return a client with the URL and the key of the options; print a note if the key would be sent unencrypted.

    Raises:
        InputError: the URL is malformed, or there is no key.
    """
    from discreet.client import Client

    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if options.get("quiet") else "always")
        return Client(options["url"], key_file=options["key_file"], timeout=options["timeout"])


def notes(answer: Answer) -> list[str]:
    """Return the notes about the charge."""
    charged = answer.charged
    if charged.rho or charged.delta:
        lines = [f"charged rho = {float(charged.rho):.3g}, delta = {float(charged.delta):.3g}"]
    else:
        lines = ["charged nothing" + (": it was paid for before" if answer.replayed else "")]
    if answer.mode == "observe":
        lines.append("the account is only observed, so nothing is guaranteed for all releases together")
    return lines


def expected_lines(expected: Expected) -> dict[str, str]:
    """Return the lines of a plan or an estimate about errors and smallest counts, the likely ranges first.

    The first line names the mechanisms of these ranges, or the number of labels or items that the errors are for.
    """
    lines = {"standard error": "no counts are released", "smallest count": "any: every listed item can appear"}
    prefix = "probably " if expected.likely else ""
    if errors := expected.error_ranges():
        names = [part.name for part in expected.likely]
        if names:
            branches = (names[0], " or ".join(filter(None, [", ".join(names[1:-1]), names[-1]])))
            errors = [f"{branch}: {error}" for branch, error in zip(branches, errors, strict=False)]
        basis = "" if expected.basis is None else f" for {expected.basis}"
        lines["standard error"] = prefix + "; otherwise ".join(errors) + basis
        if expected.max_half_width is not None:
            lines["standard error"] += f"; 95 % intervals are ± {expected.interval_ranges()[0]}"
    if counts := expected.count_ranges():
        lines["smallest count"] = (prefix or "about ") + "; otherwise ".join(counts)
        lines["smallest count"] += ", more if many items are nearly as large"
    return lines


def estimate_as_text(estimate: Estimate) -> str:
    """Return an estimate as text, with the names of `discreet plan`."""
    cost = estimate.worst_cost
    privacy = estimate.privacy
    expected = estimate.expected
    units = "" if estimate.information is None else f" ({estimate.information:,} units, {estimate.calls or 0:,} calls)"
    lines = {
        "mechanism": estimate.mechanism,
        "guarantee": f"epsilon = {privacy.epsilon:.4g}, delta = {privacy.delta:.3g} for every {privacy.unit}",
        "worst cost": f"{_spend(cost)}{units}",
    }
    lines |= expected_lines(expected)
    shown = [f"{name:<16}{text}" for name, text in lines.items()]
    if estimate.paid:
        return "\n".join([*shown, f"{'budget':<16}it was paid for before and is free"])
    for account in estimate.accounts:
        left = (
            f"would have {_spend(account.left_after)} left"
            if account.fits
            else f"refuses it: {_spend(account.left)} are left"
        )
        shown.append(f"{'budget':<16}{account.account} {left}")
    if estimate.queries_left and estimate.runs_out:
        queries = "query" if estimate.queries_left == 1 else "queries"
        shown.append(
            f"{'':<16}enough for about {estimate.queries_left:,} such {queries}; {estimate.runs_out} runs out first"
        )
    return "\n".join(shown)


_WIDTH = 30


@click.command()
@service_options
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--quiet", "-q", is_flag=True, help="Print no notes.")
def budget(form: str, **options: Any) -> None:
    """Show the balance of the account of a key.

    Also shows the balances of its parents, which are charged too. In the bars, # is charged and = is held for queries
    that are being answered.
    """
    with _open_client(options) as client:
        report = client.budget()
    click.echo(json.dumps(report.model_dump(), indent=2) if form == "json" else budget_as_text(report))


def budget_as_text(report: BudgetReport) -> str:
    """Return an account and its parents as text."""
    from discreet.wire.queries import percent

    period = report.period
    named = {"sliding": f"in any {period.days or 0:,} days", "calendar": f"each {period.unit} in {period.zone}"}
    share = f"{percent(report.left.left_of(report.limit))} left, "
    lines = [f"{report.account}  {'' if report.units else share}{named.get(period.kind, 'for all time')}"]
    if report.units is not None:
        for name, part in (("information", report.units.information), ("calls", report.units.calls)):
            lines.append(_line(name, bar(part.spent, 0, part.limit), f"{part.left:,} of {part.limit:,}"))
    else:
        for name in ("rho", "delta"):
            used, held, limit = (getattr(part, name) for part in (report.used, report.held, report.limit))
            spent = used + getattr(report.forfeited, name)
            lines.append(_line(name, bar(spent, held, limit), _left(report, name)))
    lines.append(
        f"  one answer  can have an epsilon of up to {report.epsilon_left:.4g} "
        f"(delta = {report.conversion_delta:.3g} and what answers may lose)"
    )
    if report.forfeited.rho or report.forfeited.delta:
        lines.append(f"  forfeited   {_spend(report.forfeited)}: pays for the same query again")
    if report.suspended_until is not None:
        lines.append(f"  suspended   until {_utc_minute(report.suspended_until)}: too many runs failed")
    if report.suspended_by_officer is not None:
        lines.append(f"  suspended   by a privacy officer: account {report.suspended_by_officer}")
    for stream in report.running:
        shown = f"{stream.name} of {stream.account}, epsilon {stream.epsilon:.4g}"
        lines.append(f"  besides     running counts {shown}: not covered by the numbers of this account")
    lines += _closing(report.mode, report.resets_at)
    for parent in report.parents:
        lines += ["", f"{parent.account}  {percent(parent.left.left_of(parent.limit))} left, shared with others"]
        for name in ("rho", "delta"):
            limit = getattr(parent.limit, name)
            remaining = getattr(parent.left, name)
            lines.append(_line(name, bar(limit - remaining, 0, limit), _left(parent, name)))
        lines += _closing(parent.mode, parent.resets_at)
    return "\n".join(lines)


def _left(of: BudgetReport | ParentBudget, name: str) -> str:
    left: Spend = of.left
    return f"{getattr(left, name):.4g} of {getattr(of.limit, name):.4g}"


def _line(name: str, drawn: str, left: str) -> str:
    return f"  {name:<12}{drawn}  {left} left"


def _closing(mode: str, resets_at: str | None) -> list[str]:
    lines = [] if resets_at is None else [f"  resets      some comes back at {_utc_minute(resets_at)}"]
    return lines if mode == "enforce" else [*lines, "  observed    nothing is refused, so nothing is guaranteed"]


def bar(charged: float, held: float, limit: float) -> str:
    """Draw a bar of the spent part of a limit, "[####==....]", rounded up so that free space is never overstated.

    Args:
        limit: at least 0; a limit of 0 is spent.
    """
    if limit <= 0:
        return f"[{'#' * _WIDTH}]"
    full = min(math.ceil(charged / limit * _WIDTH), _WIDTH)
    filled = max(min(math.ceil((charged + held) / limit * _WIDTH), _WIDTH), full)
    return f"[{'#' * full}{'=' * (filled - full)}{'.' * (_WIDTH - filled)}]"


def _utc_minute(text: str) -> str:
    """Format a time in ISO 8601 to the minute, in UTC."""
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return text
