"""`discreet advise`: choose privacy parameters by the attacks that they should withstand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet.cli.output import Progress, check_plot
from discreet.errors import InputError

if TYPE_CHECKING:
    from discreet.accounting.advice import Advice, Use

_QUESTIONS = {
    "period_days": "How many days can the same data be queried?",
    "queries_per_day": "How many queries a day?",
    "results_per_query": "How many results does a query return?",
    "tolerance": "How close an estimate reveals a count?",
}


@click.command()
@click.option("--period-days", type=int, metavar="N", help="How long the same data can be queried.")
@click.option("--queries-per-day", type=int, metavar="N", help="Queries of one analyst.")
@click.option("--results-per-query", type=int, metavar="N", help="Items in a release, each with a count.")
@click.option("--tolerance", type=float, metavar="X", help="An estimate this close to a count reveals it.")
@click.option("--noise", type=click.Choice(["gaussian", "laplace"]), default="gaussian", show_default=True)
@click.option(
    "--averaging-chance",
    type=float,
    default=0.12,
    show_default=True,
    help="Chance that averaging may have.",
)
@click.option(
    "--leak-chance",
    type=float,
    default=1e-8,
    show_default=True,
    help="Chance that an item of one user shows.",
)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--plot", metavar="FILE", help="Draw epsilon against the information budget: .png, .svg or .pdf.")
@click.option("--force", is_flag=True, help="Overwrite the picture.")
def advise(form: str, plot: str | None, *, force: bool, **asked: Any) -> None:
    """Choose parameters for a budget service by the attacks that they should withstand.

    Prompts for the period, queries a day, results a query and tolerance, unless they are given. Follows section 8.3 of
    LinkedIn's Audience Engagements API: averaging, differencing, and items of a single user.
    """
    from discreet.accounting import advice

    if plot is not None:
        check_plot(Path(plot), force=force)
    found = advice.advise(_use(asked))
    if plot is not None:
        from discreet.release.plot import draw_advice

        with Progress("drawing", shown=True) as progress:
            draw_advice(found, Path(plot), progress)
    click.echo(json.dumps(as_dict(found), indent=2) if form == "json" else as_text(found))


def _use(asked: dict[str, Any]) -> Use:
    """Return the use, and prompt for what was not given.

    Raises:
        InputError: there is no terminal.
    """
    from discreet.accounting.advice import Use

    missing = [name for name in _QUESTIONS if asked[name] is None]
    if missing and not sys.stdin.isatty():
        raise InputError(f"--{missing[0].replace('_', '-')} is missing, and there is no terminal to prompt on")
    for name in missing:
        kind, default = (float, 0.5) if name == "tolerance" else (int, None)
        asked[name] = click.prompt(_QUESTIONS[name], type=kind, default=default, err=True)
    return Use(**asked)


def as_dict(advice: Advice) -> dict[str, Any]:
    """Return advice as plain values."""
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
