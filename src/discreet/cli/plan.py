"""`discreet plan`: what an answer would cost and how well it would count, without reading the data."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import click

from discreet.cli.options import mechanism_option, question_of, relative_error_option, require_columns, shared_options
from discreet.errors import InputError

if TYPE_CHECKING:
    from discreet.query.plan import Plan


@click.command()
@shared_options
@click.option("-k", "k", type=int, help="Plan a top K; without it, a release.")
@relative_error_option
@mechanism_option("auto|gumbel|laplace|stable|pcr")
def plan(**options: Any) -> None:
    """What `top` (with -k) or `release` (without) would do with the same arguments.

    Says the mechanism, the worst-case cost, the standard error to expect and the smallest count that can appear.
    SOURCE is not opened, so its columns are taken on trust.
    """
    from discreet.query.plan import make_plan
    from discreet.query.where import parse_where
    from discreet.table import question

    if options["form"] not in {None, "table", "json"}:
        raise InputError("a plan is printed as table or json")
    require_columns(options)
    query = question(options["user"], **question_of(options))
    if options["where"] is not None:
        query = dataclasses.replace(query, where=parse_where(options["where"]))
    made = make_plan(query, force=options["force"])
    click.echo(json.dumps(as_dict(made), indent=2) if options["form"] == "json" else as_text(made))
    for note in () if options["quiet"] else made.notes:
        click.echo(f"note: {note}", err=True)


def as_dict(plan: Plan) -> dict[str, Any]:
    """A plan as plain values: mechanism, privacy, worst_cost, std_error, smallest_count, reads, query."""
    from discreet.release.export import privacy_to_dict, query_to_dict
    from discreet.values import float_above

    expected = plan.expectation
    return {
        "mechanism": plan.mechanism.name,
        "privacy": privacy_to_dict(plan.guarantee),
        "worst_cost": {"rho": float_above(plan.worst_cost.rho), "delta": float_above(plan.worst_cost.delta)},
        "std_error": {"least": expected.std_error_least, "most": expected.std_error_most},
        "smallest_count": expected.smallest_count,
        "reads": plan.request.limit + 1,
        "query": query_to_dict(plan.query),
    }


def as_text(plan: Plan) -> str:
    """A plan for people."""
    expected, cost = plan.expectation, plan.worst_cost
    lines = {
        "mechanism": plan.mechanism.name,
        "guarantee": str(plan.guarantee),
        "worst cost": f"rho = {float(cost.rho):.4g}, delta = {float(cost.delta):.4g}",
        "standard error": "no counts are released",
        "smallest count": "any: every listed item can appear",
        "reads": f"the {plan.request.limit + 1:,} largest counts, no others",
    }
    if expected.std_error_least is not None and expected.std_error_most is not None:
        least, most = f"{expected.std_error_least:,.3g}", f"{expected.std_error_most:,.3g}"
        lines["standard error"] = least if least == most else f"{least} (small counts) to {most} (large counts)"
    if expected.smallest_count is not None:
        lines["smallest count"] = f"about {expected.smallest_count:,}, more if many items are nearly as large"
    return "\n".join(f"{name:<16}{text}" for name, text in lines.items())
