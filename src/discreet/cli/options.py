"""Click options that several commands share."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

import click

from discreet.errors import InputError
from discreet.values import MechanismChoice, NoiseName, number

if TYPE_CHECKING:
    from discreet.query.query import Options, Select
    from discreet.table import RowOptions


_Command = TypeVar("_Command", bound="Callable[..., Any]")


def options_of(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds *options* to a command, which shows them in this order."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


class TableCommand(click.Command):
    """A command on a table: messages of the library name its options in place of the parameters of Python."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as in click
        """Run the command; a message of the library about a table, not of a catalog, names options."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            if ctx.params["catalog"] is None:  # a catalog has settings with the names of parameters
                error.args = (self._with_options(str(error)), *error.args[1:])
            raise

    def _with_options(self, message: str) -> str:
        flags = {parameter.name: parameter.opts[0] for parameter in self.params if isinstance(parameter, click.Option)}

        def flag(written: re.Match[str]) -> str:
            name, value, text = written.groups()
            if value == "False":
                name = f"no_{name}"
            if name not in flags or (value is None and "_" not in name):
                return written[0]
            text = value if value is not None and value.isdecimal() else text
            return flags[name] if text is None else f"{flags[name]} {text}"

        # Neither names in quotes, which are those of the user, nor parts of names.
        return re.sub(r"(?<![\w'\"-])(\w+)(?:=(True|False|'([^']*)'|\d+))?(?![\w'\"])", flag, message)


connection_options = options_of(
    click.option("--url", required=True, envvar="DISCREET_URL", show_envvar=True, help="URL of the service."),
    click.option("--key-file", metavar="FILE", help="File with the API key.  [default: the variable DISCREET_KEY]"),
)
config_option = click.option(
    "--config", default="discreet.toml", show_default=True, metavar="FILE", help="Settings of the service."
)
reason_option = click.option("--reason", required=True, help="Recorded in the ledger.")
file_options = options_of(
    click.option("--format", "form", type=click.Choice(["table", "csv", "json", "parquet"]), help="[default: table]"),
    click.option("--output", metavar="FILE", help="Write to FILE; .csv, .json or .parquet chooses the format."),
)
plot_option = click.option("--plot", metavar="FILE", help="Plot the counts too: .png, .svg or .pdf.")
no_counts_option = click.option(
    "--no-counts", is_flag=True, help="Release labels without counts; all of epsilon is spent on finding them."
)
epsilon_per_option = click.option(
    "--epsilon-per", metavar="FLOAT", help="Epsilon of one unit of information, such as LinkedIn's 0.15, not --epsilon."
)


class Epsilon(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A number, with a hint if it has a decimal comma or a percent sign."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401, ARG002 - as in click
        """Return the number, or raise `InputError`."""
        return number(value, "epsilon")


def _price(epsilon: str | None = None, delta: str | None = None) -> Callable[[_Command], _Command]:
    """Return the options of a price with these defaults; None for those of a service."""
    shown = epsilon is not None
    return options_of(
        click.option(
            "--epsilon",
            type=Epsilon(),
            default=epsilon,
            show_default=shown,
            help="Epsilon of the answer; a smaller one protects more.",
        ),
        click.option(
            "--delta",
            default=delta,
            show_default=shown,
            metavar="FLOAT",
            help="Delta of the answer; choose it far below 1 / users.",
        ),
    )


def relative_error_option(default: str | None = None) -> Callable[[_Command], _Command]:
    """Return the option --relative-error; None for the default of a service."""
    return click.option(
        "--relative-error",
        default=default,
        show_default=default is not None,
        metavar="FLOAT",
        help="Relative error that most counts stay within, without -k and LIMIT.",
    )


_mechanism = options_of(
    click.option(
        "--mechanism",
        type=click.Choice(get_args(MechanismChoice)),
        help="Name of the mechanism; by default the best for the other options.",
    ),
    click.option(
        "--noise",
        type=click.Choice(get_args(NoiseName)),
        help="Kind of noise; by default the one with the smaller error.",
    ),
    click.option("--head-limit", type=int, metavar="N", help="Number of items to read from the engine."),
)
service_query_options = options_of(
    _price(),
    epsilon_per_option,
    click.option("--information", type=int, metavar="N", help="Maximum number of units of information, without LIMIT."),
    relative_error_option(),
    _mechanism,
)
shared_options = options_of(
    click.argument("source"),
    click.option("--user", metavar="COL", help="The column that identifies the user of a row."),
    click.option(
        "--item",
        "item",
        multiple=True,
        metavar="COL",
        help="The column of the items, or its period or bin, as in read_at:day or minutes:10; may be repeated.",
    ),
    click.option(
        "--each", "each", multiple=True, metavar="COL", help="Release the items of each label, for the price of one."
    ),
    click.option("--segments", metavar="FILE", help="With --each: all its labels, in a CSV or Parquet file."),
    click.option("--table", metavar="NAME", help="The table, in a DuckDB file or an engine."),
    click.option(
        "--cast",
        multiple=True,
        metavar="COL=TYPE",
        help="Read a column of files as text, integer, decimal(18,2), boolean, date or timestamp; may be repeated.",
    ),
    click.option("--where", metavar="EXPR", help="Filter of the rows, such as \"country = 'IN' AND year >= 2024\"."),
    _price("1.0", "1e-8"),
    click.option("--groups-per-user", type=int, metavar="N", help="Keep N random items of each user."),
    click.option(
        "--rows-per-group",
        type=int,
        metavar="T",
        help="Count rows, at most T per user and item, instead of distinct users.  [default: 1]",
    ),
    click.option("--domain", metavar="FILE", help="All possible items: CSV or Parquet with the item columns."),
    click.option(
        "--range", "between", metavar="FIRST,LAST", help="All possible items: numbers, bins, dates or periods from..to."
    ),
    click.option("--sum", metavar="COL", help="Release the sum of a column for each item. Needs --bound."),
    click.option(
        "--average",
        metavar="COL",
        help="Release the average of a column over rows for each item. Needs --bound and --rows-per-group.",
    ),
    click.option(
        "--bound",
        metavar="[LOW,]HIGH",
        help="Clip each user's sum for an item to LOW and HIGH; choose them without looking at the rows.  "
        "[default LOW: 0]",
    ),
    _mechanism,
    no_counts_option,
    click.option("--force", is_flag=True, help="Overwrite files; allow epsilon above 100."),
    click.option(
        "--key",
        metavar="FILE",
        help="File with a secret of 32 bytes or more, for repeatable results.",
    ),
    click.option(
        "--data-version",
        metavar="TEXT",
        help="With --key: a public version of the data.  [default: paths and times of the files]",
    ),
    file_options,
    plot_option,
    click.option("--quiet", "-q", is_flag=True, help="Print no notes and no progress."),
)
quantile_option = click.option(
    "--quantile",
    "quantiles",
    multiple=True,
    metavar="SHARE",
    help="Compute this quantile, such as 0.5, from the counts of all items of --range; may be repeated.",
)
k_option = click.option("-k", "k", type=int, help="Maximum number of items.  [default: 10]")


def today() -> str:
    """Return the date in UTC, which current_date is in filters and statements, as YYYY-MM-DD."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def given_options(options: dict[str, Any]) -> Options:
    """Return the options of a query among those of a command, without those that were not given."""
    from discreet.query.query import Options

    values = {name: options[name] for name in Options.__annotations__ if options.get(name) is not None}
    return cast("Options", values | ({"counts": False} if options.get("no_counts") else {}))


def row_options(options: dict[str, Any], *, total: bool) -> RowOptions:
    """Return the options of a query of a table among those of a command.

    Args:
        total: True if --item may be missing, for one number of all rows.

    Raises:
        InputError: --user or --item is missing, or --bound or --range is malformed.
    """
    if options["user"] is None:
        raise InputError("--user COL is missing: the column that identifies the user")
    if not options["item"] and not total:
        raise InputError("--item COL is missing: the column that names the item")
    names = ("groups_per_user", "sum", "average", "domain", "each", "segments")
    row_values: dict[str, Any] = {name: options[name] for name in names}
    row_values["rows_per_group"] = options["rows_per_group"]
    if options["bound"] is not None:
        ends = options["bound"].split(",")
        row_values["bound"] = ends[0] if len(ends) == 1 else tuple(ends)
    if options["between"] is not None:
        if options["domain"] is not None or len(options["item"]) != 1:
            raise InputError("--range lists the items of one --item, in place of --domain")
        row_values["domain"] = _labels_between(options["between"], options["item"][0])
    return cast("RowOptions", row_values | given_options(options))


def _labels_between(text: str, item: str) -> list[Any]:
    """Return the labels of --range: whole numbers, dates, or the starts of the bins or periods that *item* names."""
    import itertools

    from discreet.catalog.model import MAX_DOMAIN_SIZE, starts_between
    from discreet.head_request import Period

    period: Any = item.rpartition(":")[2]
    ends: list[Any] = text.split(",")
    try:
        if period == "hour":
            ends = [datetime.datetime.fromisoformat(end) for end in ends]
        elif period in get_args(Period) or "-" in text[1:].replace(",-", ","):  # not the sign of a number
            ends = [datetime.date.fromisoformat(end) for end in ends]
            period = period if period in get_args(Period) else "day"
        else:
            ends = [int(end) for end in ends]
            period = int(period) if period.isdecimal() and ":" in item else 1
        first, last = ends
    except ValueError:
        raise InputError("--range takes a first and a last item: 0,600 or 2026-01-01,2026-01-31") from None
    labels = list(itertools.islice(starts_between(first, last, period), MAX_DOMAIN_SIZE + 1))
    if not 1 <= len(labels) <= MAX_DOMAIN_SIZE:
        raise InputError(f"--range lists from 1 to {MAX_DOMAIN_SIZE:,} items, from a first to a last one")
    return labels


def cast_option(options: dict[str, Any]) -> dict[str, str]:
    """Return the types of --cast, by column.

    Raises:
        InputError: one is malformed.
    """
    pairs = [text.rpartition("=")[::2] for text in options["cast"]]
    if not all(column and type_ for column, type_ in pairs):
        raise InputError("--cast takes a column and a type: --cast minutes=integer")
    return dict(pairs)


catalog_options = options_of(
    click.option("--catalog", metavar="FILE", help="Query a dataset of this catalog; SOURCE is its name."),
    click.option("--sql", metavar="TEXT", help="The query as a SELECT. Needs --catalog."),
)
_DECLARED = ("user", "table", "cast", "groups_per_user", "domain", "segments", "range", "bound", "data_version")
"""Options that are not allowed with a catalog, which declares them itself."""


def select_of(method: str, options: dict[str, Any]) -> Select:
    """Return the query of a dataset of a catalog, from --sql or from --item, --where and -k.

    Args:
        method: "top", "release", or "plan" for either.

    Raises:
        InputError: an option conflicts with the catalog or the statement, or the statement is about another dataset or
            for the other command.
    """
    for name in _DECLARED:
        if options["between" if name == "range" else name]:
            raise InputError(f"the catalog decides --{name.replace('_', '-')}; leave it out")
    if options["rows_per_group"] is not None:
        raise InputError("the catalog decides --rows-per-group; count rows with --sql and COUNT(*)")
    return _select_from_options(method, options) if options["sql"] is None else _select_from_statement(method, options)


def _select_from_options(method: str, options: dict[str, Any]) -> Select:
    from discreet.catalog.loader import load_catalog
    from discreet.query.query import Measure, Select
    from discreet.query.sql import parse_where

    if not options["item"]:
        raise InputError("give --item COL, or a statement with --sql")
    catalog = load_catalog(options["catalog"])
    _, dataset = catalog.find(options["source"])
    where = None if options["where"] is None else parse_where(options["where"], today())
    if options["sum"] is not None and options["average"] is not None:
        raise InputError("a query has a sum or an average, not both")
    measure = Measure("users", dataset.user)
    if options["sum"] is not None:
        measure = Measure("sum", options["sum"])
    elif options["average"] is not None:
        measure = Measure("average", options["average"])
    k = 10 if method == "top" and options["k"] is None else options.get("k")
    return Select(options["source"], options["item"], measure, where, k, options["each"])


def _select_from_statement(method: str, options: dict[str, Any]) -> Select:
    from discreet.query.sql import parse_select

    for name, flag in (
        ("item", "--item"),
        ("each", "--each"),
        ("where", "--where"),
        ("sum", "--sum"),
        ("average", "--average"),
        ("k", "-k"),
    ):
        if options.get(name):
            raise InputError(f"the statement decides {flag}; leave it out")
    select = parse_select(options["sql"], today())
    if select.dataset.casefold() != options["source"].casefold():
        raise InputError(f"the statement queries {select.dataset!r}, not {options['source']!r}")
    limit = "QUALIFY ... <= number" if select.each else "LIMIT"
    if method == "top" and select.items and select.k is None:
        raise InputError(f"a statement without {limit} needs discreet release")
    if method == "release" and select.k is not None:
        raise InputError(f"a statement with {limit} needs discreet top")
    return select
