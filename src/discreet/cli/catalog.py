"""`discreet catalog` and `convert`: check catalogs, and convert privacy parameters."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

from discreet.errors import InputError

if TYPE_CHECKING:
    from fractions import Fraction

    from discreet.catalog.loader import Finding


@click.group()
def catalog() -> None:
    """Check and write catalogs, in which the data owner declares what analysts may query."""


@catalog.command()
@click.argument("file")
@click.argument("datasets", nargs=-1, metavar="[DATASET]...")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.pass_context
def check(context: click.Context, file: str, datasets: tuple[str, ...], form: str) -> None:
    """Compare a catalog with its tables.

    FILE is the catalog; without a DATASET, all of its datasets are checked. Prints a line for everything that was
    checked, and no data. Exit code 2 if there is a mistake.
    """
    found = _findings(file, datasets)
    if form == "json":
        click.echo(
            json.dumps([{"place": f.place, "ok": f.mistake is None, "mistake": f.mistake} for f in found], indent=2)
        )
    else:
        for finding in found:
            place = "" if finding.place else f"{file}: "
            click.echo(f"{'mistake' if finding.mistake else 'ok':<9}{place}{finding}")
    context.exit(2 if any(finding.mistake for finding in found) else 0)


def _findings(file: str, datasets: tuple[str, ...]) -> list[Finding]:
    from discreet.catalog.checks import check
    from discreet.catalog.loader import CatalogError, load_catalog

    try:
        loaded = load_catalog(file)
    except CatalogError as error:
        return list(error.mistakes)
    return check(loaded, datasets, environment=os.environ)


@catalog.command()
def schema() -> None:
    """Print the JSON schema of catalogs.

    With it, editors complete and check TOML files.
    """
    from discreet.catalog.loader import schema_of
    from discreet.catalog.model import Catalog

    click.echo(json.dumps(schema_of(Catalog), indent=2))


@catalog.command()
@click.argument("source")
@click.option("--user", required=True, metavar="COL", help="The column that identifies the user of a row.")
@click.option("--table", metavar="NAME", help="Which table of an engine, or of a DuckDB file.")
@click.option("--password-env", metavar="NAME", help="The environment variable that holds the engine's password.")
def init(source: str, user: str, table: str | None, password_env: str | None) -> None:
    """Print a draft of a catalog for a table.

    SOURCE is a path or pattern of files, a DuckDB file, or the URL of an engine. The draft follows from the columns and
    their types; no row is read, and nothing is allowed until you edit it.
    """
    from discreet.catalog.draft import draft_catalog

    click.echo(draft_catalog(source, user, environment=os.environ, table=table, password_env=password_env), nl=False)


@click.command()
@click.option("--epsilon", type=float, metavar="FLOAT", help="Of an (epsilon, delta) guarantee.")
@click.option("--delta", metavar="FLOAT", help="Of an (epsilon, delta) guarantee: the part spent on converting.")
@click.option("--rho", metavar="FLOAT", help="Of rho-zCDP.")
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
    """Convert between (epsilon, delta), rho and the units of LinkedIn's API.

    Give two of --rho, --epsilon and --delta to get the third (with --epsilon-per, the units of information too). Or
    give a budget in units: --information, --epsilon-per and --delta, optionally --calls and --delta-per.

    epsilon and rho follow the tight formula, epsilon_simple and rho_simple the simple one; all are rounded to the safe
    side.
    """
    given = {
        name: None if text is None else _number(text, name)
        for name, text in (("delta", delta), ("rho", rho), ("epsilon-per", epsilon_per), ("delta-per", delta_per))
    }
    if information is not None or calls is not None:
        found = _from_units(information or 0, calls or 0, given, rho=rho, epsilon=epsilon)
    elif rho is not None and (epsilon is None) != (delta is None):
        found = _from_rho(given, epsilon)
    elif epsilon is not None and given["delta"] is not None and rho is None:
        found = _from_epsilon(epsilon, given["delta"], given["epsilon-per"])
    else:
        raise InputError("give two of --rho, --epsilon and --delta, or --information with --epsilon-per and --delta")
    if form == "json":
        click.echo(json.dumps(found))
    else:
        click.echo("\n".join(f"{name:<16}{value:.8g}" for name, value in found.items()))


def _from_units(
    information: int, calls: int, given: dict[str, Fraction | None], *, rho: str | None, epsilon: float | None
) -> dict[str, float]:
    from discreet.accounting.convert import cost_of_units, epsilon_simple, epsilon_tight
    from discreet.values import float_above, float_below

    per, delta = given["epsilon-per"], given["delta"]
    if rho is not None or epsilon is not None:
        raise InputError("units determine rho and epsilon; leave --rho and --epsilon out")
    if per is None or delta is None:
        raise InputError("units need --epsilon-per and --delta")
    if calls and given["delta-per"] is None:
        raise InputError("calls need --delta-per")
    cost = cost_of_units(information, calls, per, given["delta-per"] or delta * 0)
    exact_rho, spent = float_above(cost.rho), float_below(delta)
    return {
        "rho": exact_rho,
        "epsilon_simple": epsilon_simple(exact_rho, spent),
        "epsilon": epsilon_tight(exact_rho, spent),
        "delta": float_above(cost.delta + delta),
    }


def _from_rho(given: dict[str, Fraction | None], epsilon: float | None) -> dict[str, float]:
    from discreet.accounting.convert import delta_tight, epsilon_simple, epsilon_tight

    rho = float(given["rho"] or 0)
    if epsilon is not None:
        return {"rho": rho, "epsilon": epsilon, "delta": delta_tight(rho, epsilon)}
    delta = float(given["delta"] or 0)
    return {
        "rho": rho,
        "epsilon_simple": epsilon_simple(rho, delta),
        "epsilon": epsilon_tight(rho, delta),
        "delta": delta,
    }


def _from_epsilon(epsilon: float, delta: Fraction, per: Fraction | None) -> dict[str, float]:
    from discreet.accounting.convert import rho_simple, rho_tight

    rho = rho_tight(epsilon, float(delta))
    found = {"epsilon": epsilon, "delta": float(delta), "rho_simple": rho_simple(epsilon, float(delta)), "rho": rho}
    if per is not None:
        if per <= 0:
            raise InputError("epsilon per unit must be above 0")
        found["information"] = int(rho / (per**2 / 8))
    return found


def _number(text: str, name: str) -> Fraction:
    from discreet.values import exact

    return exact(text, f"--{name}")
