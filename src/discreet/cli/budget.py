"""`discreet budget`: how an account of a budget service stands."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from discreet.cli.query import open_client, service_options

if TYPE_CHECKING:
    from discreet.wire.problems import Spend
    from discreet.wire.questions import BudgetReport, ParentBudget

_WIDTH = 30


@click.command()
@service_options
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--quiet", "-q", is_flag=True, help="No notes.")
def budget(form: str, **options: Any) -> None:
    """What is left of the account that a key belongs to, and of those that are charged with it.

    In the bars, # is charged and = is held for questions under way.
    """
    with open_client(options) as client:
        report = client.budget()
    click.echo(json.dumps(report.model_dump(), indent=2) if form == "json" else as_text(report))


def as_text(report: BudgetReport) -> str:
    """An account and its parents, for people."""
    lines = [f"{report.account}  {_period(report)}", *_own_bars(report)]
    lines.append(
        f"  epsilon     {report.epsilon_spent:.4g} spent, {report.epsilon_left:.4g} left in one answer "
        f"(delta = {report.conversion_delta:.3g} and what answers may lose)"
    )
    if report.forfeited.rho or report.forfeited.delta:
        lost = report.forfeited
        lines.append(f"  forfeited   rho = {lost.rho:.4g}, delta = {lost.delta:.4g}: pays for asking the same again")
    if report.suspended_until is not None:
        lines.append(f"  suspended   until {moment(report.suspended_until)}: too many runs failed")
    lines += _closing(report.mode, report.resets_at)
    for parent in report.parents:
        lines += ["", f"{parent.account}  shared with others", *_shared_bars(parent)]
        lines += _closing(parent.mode, parent.resets_at)
    return "\n".join(lines)


def _period(report: BudgetReport) -> str:
    period = report.period
    match period.kind:
        case "sliding":
            return f"in any {period.days:,} days"
        case "calendar":
            return f"each {period.unit} in {period.zone}"
        case _:
            return "for all time"


def _own_bars(report: BudgetReport) -> list[str]:
    if report.units is not None:
        parts = {"information": report.units.information, "calls": report.units.calls}
        return [
            _line(name, bar(part.spent, 0, part.limit), f"{part.left:,} of {part.limit:,}")
            for name, part in parts.items()
        ]
    charged = {name: getattr(report.used, name) + getattr(report.forfeited, name) for name in ("rho", "delta")}
    return [
        _line(name, bar(spent, getattr(report.held, name), getattr(report.limit, name)), _left(report, name))
        for name, spent in charged.items()
    ]


def _shared_bars(parent: ParentBudget) -> list[str]:
    lines = []
    for name in ("rho", "delta"):
        limit, left = getattr(parent.limit, name), getattr(parent.left, name)
        lines.append(_line(name, bar(limit - left, 0, limit), _left(parent, name)))
    return lines


def _left(of: BudgetReport | ParentBudget, name: str) -> str:
    left: Spend = of.left
    return f"{getattr(left, name):.4g} of {getattr(of.limit, name):.4g}"


def _line(name: str, drawn: str, left: str) -> str:
    return f"  {name:<12}{drawn}  {left} left"


def _closing(mode: str, resets_at: str | None) -> list[str]:
    lines = [] if resets_at is None else [f"  resets      some comes back at {moment(resets_at)}"]
    return lines if mode == "enforce" else [*lines, "  observed    nothing is refused, so nothing is guaranteed"]


def bar(charged: float, held: float, limit: float) -> str:
    """How much is spent: "[####==....]".

    What is spent is rounded up, so that a bar with room has room.

    Args:
        charged: of the limit.
        held: likewise.
        limit: at least 0; of nothing, nothing is left.
    """
    if limit <= 0:
        return f"[{'#' * _WIDTH}]"
    full = min(math.ceil(charged / limit * _WIDTH), _WIDTH)
    taken = max(min(math.ceil((charged + held) / limit * _WIDTH), _WIDTH), full)
    return f"[{'#' * full}{'=' * (taken - full)}{'.' * (_WIDTH - taken)}]"


def moment(text: str) -> str:
    """A time for people: to the minute, in UTC."""
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return text
