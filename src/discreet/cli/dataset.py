"""Questions about a dataset of a catalog: in SQL, or by the options that are for sources too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from discreet.query.query import Select

_Command = TypeVar("_Command", bound="Callable[..., Any]")

_OPTIONS = (
    click.option("--catalog", metavar="FILE", help="Ask a dataset that this catalog declares; SOURCE is its name."),
    click.option("--sql", metavar="TEXT", help="The question as a SELECT. Needs --catalog."),
)
_DECLARED = ("user", "table", "groups_per_user", "domain", "data_version")
"""What a catalog says instead of the command line."""


def catalog_options(command: _Command) -> _Command:
    """Add the options that ask a dataset of a catalog."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def select_of(method: str, options: dict[str, Any]) -> Select:
    """The question about a dataset of a catalog, from --sql or from --item, --where and -k.

    Args:
        method: "top", "release", or "plan" for either.
        options: of the command.

    Raises:
        InputError: an option that the catalog or the statement decides, a statement about another dataset, or one that
            is for the other command.
    """
    for name in _DECLARED:
        if options[name] is not None:
            raise InputError(f"the catalog says what --{name.replace('_', '-')} would; leave it out")
    if options["rows_per_user_and_item"] != 1:
        raise InputError("the catalog says what --rows-per-user-and-item would; count rows with --sql and COUNT(*)")
    return _of_options(method, options) if options["sql"] is None else _of_statement(method, options)


def _of_options(method: str, options: dict[str, Any]) -> Select:
    from discreet.catalog.load import load_catalog
    from discreet.query.query import Measure, Select
    from discreet.query.sql import parse_where

    if not options["item"]:
        raise InputError("say what to count: --item COL, or a statement with --sql")
    catalog = load_catalog(options["catalog"])
    user = catalog.datasets[catalog.find(options["source"])].user
    where = None if options["where"] is None else parse_where(options["where"])
    k = 10 if method == "top" and options["k"] is None else options.get("k")
    return Select(options["source"], options["item"], Measure("users", user), where, k)


def _of_statement(method: str, options: dict[str, Any]) -> Select:
    from discreet.query.sql import parse_select

    for name, flag in (("item", "--item"), ("where", "--where"), ("k", "-k")):
        if options.get(name):
            raise InputError(f"the statement says what {flag} would; leave it out")
    select = parse_select(options["sql"])
    if select.dataset.casefold() != options["source"].casefold():
        raise InputError(f"the statement asks about {select.dataset!r}, and not about {options['source']!r}")
    if method == "top" and select.items and select.k is None:
        raise InputError("a statement without LIMIT asks for as many counts as can be had: discreet release")
    if method == "release" and select.k is not None:
        raise InputError("a statement with LIMIT asks for a top k: discreet top")
    return select
