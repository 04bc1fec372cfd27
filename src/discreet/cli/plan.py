"""`discreet plan`: what an answer would cost and how well it would count, without reading the data."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import click

from discreet.cli.dataset import catalog_options, select_of
from discreet.cli.options import mechanism_option, question_of, relative_error_option, require_columns, shared_options
from discreet.errors import InputError

if TYPE_CHECKING:
    from discreet.query.planning import Plan
    from discreet.query.pricing import PerUnit


@click.command()
@shared_options
@catalog_options
@click.option("-k", "k", type=int, help="Plan a top K; without it, a release.")
@click.option("--epsilon-per", metavar="FLOAT", help="Price each unit, as LinkedIn does (0.15), not the question.")
@click.option("--delta-per", default="1e-10", show_default=True, metavar="FLOAT", help="With --epsilon-per: of a call.")
@click.option(
    "--information", type=int, default=100, show_default=True, metavar="N", help="With it: the most units of a release."
)
@relative_error_option
@mechanism_option("auto|gumbel|laplace|stable|pcr")
@click.pass_context
def plan(context: click.Context, /, **options: Any) -> None:
    """What `top` (with -k) or `release` (without) would do with the same arguments.

    Says the mechanism, the worst-case cost, the standard error to expect and the smallest count that can appear.
    SOURCE is not opened, so its columns are taken on trust; or it is a dataset of --catalog, of which no row is read.
    """
    if options["form"] not in {None, "table", "json"}:
        raise InputError("a plan is printed as table or json")
    per = _price(context, options)
    if options["catalog"] is not None:
        made = _of_catalog(options, per)
    elif options["sql"] is not None:
        raise InputError("a statement needs a catalog, which says what may be asked; give --catalog too")
    else:
        made = _of_source(options, per)
    click.echo(json.dumps(as_dict(made), indent=2) if options["form"] == "json" else as_text(made))
    for note in () if options["quiet"] else made.notes:
        click.echo(f"note: {note}", err=True)


def _price(context: click.Context, options: dict[str, Any]) -> PerUnit | None:
    from discreet.query.pricing import PerUnit

    epsilon, delta, information = (options.pop(name) for name in ("epsilon_per", "delta_per", "information"))
    if epsilon is None:
        return None
    for name in ("epsilon", "delta"):
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise InputError(f"a question has a price per unit, or an epsilon and a delta; leave --{name} out")
    return PerUnit(epsilon, delta, information)


def _of_source(options: dict[str, Any], per: PerUnit | None) -> Plan:
    from discreet.query.planning import make_plan
    from discreet.query.sql import parse_where
    from discreet.table import question

    require_columns(options)
    query = question(options["user"], **question_of(options))
    if options["where"] is not None:
        query = dataclasses.replace(query, where=parse_where(options["where"]))
    return make_plan(query, force=options["force"], per=per)


def _of_catalog(options: dict[str, Any], per: PerUnit | None) -> Plan:
    from discreet.warehouse import connect

    with connect(options["catalog"]) as warehouse:
        return warehouse.plan(
            select_of("plan", options),
            epsilon=None if per else options["epsilon"],
            delta=None if per else options["delta"],
            per=per,
            relative_error=options["relative_error"],
            counts=not options["no_counts"],
            mechanism=options["mechanism"],
            noise=options["noise"],
            head_limit=options["head_limit"],
            force=options["force"],
        )


def as_dict(plan: Plan) -> dict[str, Any]:
    """A plan as plain values.

    Its keys are mechanism, privacy, worst_cost, units, std_error, sum_std_error, smallest_count, reads, query.
    """
    from discreet.release.export import privacy_to_dict, query_to_dict
    from discreet.values import float_above

    expected, units = plan.expectation, plan.worst_units
    return {
        "mechanism": plan.mechanism.name,
        "privacy": privacy_to_dict(plan.guarantee),
        "worst_cost": {"rho": float_above(plan.worst_cost.rho), "delta": float_above(plan.worst_cost.delta)},
        "units": None if units is None else {"information": units.information, "calls": units.calls},
        "std_error": {"least": expected.std_error_least, "most": expected.std_error_most},
        "sum_std_error": _sum_error(plan),
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
        "units": "" if plan.worst_units is None else str(plan.worst_units),
        "standard error": "no counts are released",
        "error of a sum": "",
        "smallest count": "any: every listed item can appear",
        "reads": f"the {plan.request.limit + 1:,} largest counts, no others",
    }
    if expected.std_error_least is not None and expected.std_error_most is not None:
        least, most = f"{expected.std_error_least:,.3g}", f"{expected.std_error_most:,.3g}"
        lines["standard error"] = least if least == most else f"{least} (small counts) to {most} (large counts)"
    error = _sum_error(plan)
    if error is not None:
        lines["error of a sum"] = f"{error:,.3g}"
    if expected.smallest_count is not None:
        lines["smallest count"] = f"about {expected.smallest_count:,}, more if many items are nearly as large"
    return "\n".join(f"{name:<16}{text}" for name, text in lines.items() if text)


def _sum_error(plan: Plan) -> float | None:
    """The standard error of a sum, in the column's own units, or None without sums."""
    error, summed = plan.expectation.sum_std_error, plan.query.summed
    return None if error is None or summed is None else error / 10**summed.scale
