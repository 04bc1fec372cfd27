"""The options that `top`, `release` and `plan` share, and the question they add up to."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

_Command = TypeVar("_Command", bound="Callable[..., Any]")

_SHARED = (
    click.argument("source"),
    click.option("--user", metavar="COL", help="The column that says whose a row is."),
    click.option("--item", "item", multiple=True, metavar="COL", help="The item's column; may be repeated."),
    click.option("--table", metavar="NAME", help="Which table of a DuckDB file or an engine."),
    click.option("--where", metavar="EXPR", help="Which rows count, e.g. \"country = 'IN' AND year >= 2024\"."),
    click.option("--epsilon", type=float, default=1.0, show_default=True, help="Privacy: smaller protects more."),
    click.option(
        "--delta", default="1e-8", show_default=True, metavar="FLOAT", help="Far below one over the number of users."
    ),
    click.option("--noise", type=click.Choice(["gaussian", "laplace"]), help="By default the one that errs less."),
    click.option("--groups-per-user", type=int, metavar="N", help="Keep N random items of each user."),
    click.option(
        "--rows-per-user-and-item",
        type=int,
        default=1,
        metavar="T",
        help="Count rows, at most T per user and item, instead of distinct users.",
    ),
    click.option("--domain", metavar="FILE", help="All items there can be: CSV or Parquet with the item columns."),
    click.option("--head-limit", type=int, metavar="N", help="How many items to read from the engine."),
    click.option("--no-counts", is_flag=True, help="Labels only: spends all of epsilon on finding them."),
    click.option("--force", is_flag=True, help="Overwrite files; allow epsilon above 100."),
)
_DELIVERY = (
    click.option("--key", metavar="FILE", help="Secret of 32 bytes or more: same question, same data, same answer."),
    click.option(
        "--data-version",
        metavar="TEXT",
        help="With --key: public name of the data's state.  [default: paths and times of the files]",
    ),
    click.option("--format", "form", type=click.Choice(["table", "csv", "json", "parquet"]), help="[default: table]"),
    click.option("--output", metavar="FILE", help="Write there instead; .csv, .json, .parquet say the format."),
    click.option("--plot", metavar="FILE", help="Draw the counts too: .png, .svg or .pdf."),
    click.option("--quiet", "-q", is_flag=True, help="No notes, no progress."),
)
k_option = click.option("-k", "k", type=int, help="How many items at most.  [default: 10]")
relative_error_option = click.option(
    "--relative-error", default="0.1", show_default=True, metavar="FLOAT", help="What most counts should stay within."
)


def mechanism_option(choices: str) -> Callable[[_Command], _Command]:
    """--mechanism; what is wrong with a choice, the planner says best."""
    return click.option("--mechanism", metavar=f"[{choices}]", help="By default what fits what was declared.")


def shared_options(command: _Command) -> _Command:
    """Add the question's options and those for what becomes of the answer."""
    for option in reversed(_SHARED + _DELIVERY):
        command = option(command)
    return command


def require_columns(options: dict[str, Any]) -> None:
    """Refuse a question about a source that names no user or no item.

    Raises:
        InputError: --user or --item is missing.
    """
    for name, what in (("user", "the column that says whose a row is"), ("item", "the column that names the item")):
        if not options[name]:
            raise InputError(f"say --{name} COL too: {what}")


def question_of(options: dict[str, Any]) -> dict[str, Any]:
    """The options that are parameters of `Table.top`, `Table.release` and `question`; taken out of *options*."""
    names = (
        "item",
        "epsilon",
        "delta",
        "noise",
        "groups_per_user",
        "rows_per_user_and_item",
        "domain",
        "head_limit",
        "mechanism",
    )
    asked = {name: options.pop(name) for name in names}
    return (
        asked
        | {name: options.pop(name) for name in ("k", "relative_error") if name in options}
        | {"counts": not options.pop("no_counts")}
    )


def read_key(path: str, *, quiet: bool) -> bytes:
    """The secret in a file; says so if others can read it.

    Raises:
        InputError: it cannot be read.
    """
    try:
        secret = Path(path).read_bytes()
        readable = Path(path).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    except OSError as error:
        raise InputError(f"the key {path!r} cannot be read: {(error.strerror or 'no access').lower()}") from None
    if readable and not quiet:
        click.echo(f"note: others can read the key; chmod 600 {path}", err=True)
    return secret
