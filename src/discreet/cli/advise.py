"""`discreet advise` and `convert`: choose privacy parameters that withstand given attacks; convert them."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from discreet.cli.output import Progress, check_plot
from discreet.errors import InputError
from discreet.values import NoiseName

if TYPE_CHECKING:
    from discreet.accounting.advice import Advice

_QUESTIONS = {
    "period_days": "How many days can the same data be queried?",
    "queries_per_day": "How many queries a day?",
    "results_per_query": "How many results does a query return?",
    "tolerance": "How close to a count is an estimate that reveals it?",
}


@click.command()
@click.option("--period-days", type=int, metavar="N", help="Number of days for which the same data can be queried.")
@click.option("--queries-per-day", type=int, metavar="N", help="Queries of one analyst.")
@click.option("--results-per-query", type=int, metavar="N", help="Items in a release, each with a count.")
@click.option("--tolerance", type=float, metavar="X", help="Distance from a count within which an estimate reveals it.")
@click.option("--noise", type=click.Choice(get_args(NoiseName)), default="gaussian", show_default=True)
@click.option(
    "--averaging-chance",
    type=float,
    default=0.12,
    show_default=True,
    help="Largest probability that averaging reveals a count.",
)
@click.option(
    "--leak-chance",
    type=float,
    default=1e-8,
    show_default=True,
    help="Largest probability that an item of a single user is released.",
)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--plot", metavar="FILE", help="Draw epsilon against the information budget: .png, .svg or .pdf.")
@click.option("--force", is_flag=True, help="Overwrite the picture.")
def advise(form: str, plot: str | None, *, force: bool, **answers: Any) -> None:
    """Choose parameters that withstand typical attacks.

    Prompts for the period, queries a day, results a query and tolerance if they are missing. Follows section 8.3 of
    LinkedIn's Audience Engagements API: averaging, differencing, and items of a single user.
    """
    from discreet.accounting import advice

    if plot is not None:
        check_plot(Path(plot), force=force)
    missing = [name for name in _QUESTIONS if answers[name] is None]
    if missing and not sys.stdin.isatty():
        raise InputError(f"--{missing[0].replace('_', '-')} is missing, and there is no terminal to prompt on")
    for name in missing:
        kind, default = (float, 0.5) if name == "tolerance" else (int, None)
        answers[name] = click.prompt(_QUESTIONS[name], type=kind, default=default, err=True)
    advice_found = advice.advise(advice.Workload(**answers))
    if plot is not None:
        from discreet.release.plot import draw_advice

        with Progress("drawing", shown=True) as progress:
            draw_advice(advice_found, Path(plot), progress)
    click.echo(json.dumps(as_dict(advice_found), indent=2) if form == "json" else as_text(advice_found))


def as_dict(advice: Advice) -> dict[str, Any]:
    """Return advice as JSON values."""
    from discreet.release.result import privacy_to_dict

    return {
        "epsilon_per": float(advice.epsilon_per),
        "information": advice.information,
        "calls": advice.calls,
        "delta_per": float(advice.delta_per),
        "privacy": privacy_to_dict(advice.guarantee),
        "reasons": {reason.parameter: reason.sentence for reason in advice.reasons},
    }


def as_text(advice: Advice) -> str:
    """Return advice as text: each parameter with its reason."""
    values = {
        "epsilon_per": f"{float(advice.epsilon_per):g}",
        "information": f"{advice.information:,} steps",
        "calls": f"{advice.calls:,}",
        "delta_per": f"{float(advice.delta_per):g}",
        "guarantee": f"epsilon = {advice.guarantee.epsilon:.4g}, delta = {advice.guarantee.delta:.3g}",
    }
    return "\n".join(
        f"{reason.parameter:<14}{values[reason.parameter]}\n{'':14}{reason.sentence}" for reason in advice.reasons
    )


@click.command()
@click.option("--epsilon", type=float, metavar="FLOAT", help="Epsilon of the guarantee.")
@click.option("--delta", metavar="FLOAT", help="Delta of the guarantee: the part that the conversion takes.")
@click.option("--rho", metavar="FLOAT", help="rho of zCDP.")
@click.option("--information", type=int, metavar="K", help="Units of information (k*).")
@click.option("--calls", type=int, metavar="L", help="Calls over an unknown domain (l*).")
@click.option("--epsilon-per", metavar="FLOAT", help="Epsilon of one unit of information.")
@click.option("--delta-per", metavar="FLOAT", help="Delta of one call.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def convert(
    epsilon: float | None,
    delta: str | None,
    rho: str | None,
    information: int | None,
    calls: int | None,
    epsilon_per: str | None,
    delta_per: str | None,
    form: str,
) -> None:
    """Convert between (epsilon, delta), rho and LinkedIn's units.

    Give two of --rho, --epsilon and --delta to get the third (with --epsilon-per, the units of information too). Or
    give a budget in units: --information, --epsilon-per and --delta, optionally --calls and --delta-per.

    epsilon and rho follow the tight formula, epsilon_simple and rho_simple the simple one; all are rounded to the safe
    side.
    """
    from discreet.accounting.convert import delta_tight, epsilon_simple, epsilon_tight, rho_simple, rho_tight
    from discreet.values import exact

    exact_values = {
        name: None if text is None else exact(text, f"--{name}")
        for name, text in (("delta", delta), ("rho", rho), ("epsilon-per", epsilon_per), ("delta-per", delta_per))
    }
    if information is not None or calls is not None:
        values = _from_units(information or 0, calls or 0, exact_values, rho=rho, epsilon=epsilon)
    elif exact_values["rho"] is not None and (epsilon is None) != (delta is None):
        exact_rho = float(exact_values["rho"])
        if epsilon is not None:
            values = {"rho": exact_rho, "epsilon": epsilon, "delta": delta_tight(exact_rho, epsilon)}
        else:
            lost = float(exact_values["delta"] or 0)
            values = {"rho": exact_rho, "epsilon_simple": epsilon_simple(exact_rho, lost)}
            values |= {"epsilon": epsilon_tight(exact_rho, lost), "delta": lost}
    elif epsilon is not None and exact_values["delta"] is not None and rho is None:
        lost = float(exact_values["delta"])
        per = exact_values["epsilon-per"]
        exact_rho = rho_tight(epsilon, lost)
        values = {"epsilon": epsilon, "delta": lost, "rho_simple": rho_simple(epsilon, lost), "rho": exact_rho}
        if per is not None and per <= 0:
            raise InputError("epsilon per unit must be above 0")
        values |= {} if per is None else {"information": int(exact_rho / (per**2 / 8))}
    else:
        raise InputError("give two of --rho, --epsilon and --delta, or --information with --epsilon-per and --delta")
    if form == "json":
        click.echo(json.dumps(values))
    else:
        click.echo("\n".join(f"{name:<16}{value:.8g}" for name, value in values.items()))


def _from_units(
    information: int, calls: int, exact_values: dict[str, Fraction | None], *, rho: str | None, epsilon: float | None
) -> dict[str, float]:
    from discreet.accounting.convert import cost_of_units, epsilon_simple, epsilon_tight
    from discreet.values import float_above, float_below

    per = exact_values["epsilon-per"]
    delta = exact_values["delta"]
    if rho is not None or epsilon is not None:
        raise InputError("units determine rho and epsilon; leave --rho and --epsilon out")
    if per is None or delta is None:
        raise InputError("units need --epsilon-per and --delta")
    if calls and exact_values["delta-per"] is None:
        raise InputError("calls need --delta-per")
    cost = cost_of_units(information, calls, per, exact_values["delta-per"] or delta * 0)
    exact_rho = float_above(cost.rho)
    spent = float_below(delta)
    return {
        "rho": exact_rho,
        "epsilon_simple": epsilon_simple(exact_rho, spent),
        "epsilon": epsilon_tight(exact_rho, spent),
        "delta": float_above(cost.delta + delta),
    }
