"""Draft a catalog for a table from its columns and types. No row is read, and the draft permits no queries."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import PurePath
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from discreet.catalog.fields import secret_in
from discreet.catalog.loader import write_key, write_text
from discreet.catalog.model import KINDS
from discreet.errors import InputError, UnknownColumn
from discreet.head_request import Derived, Kind, Period, naming_error
from discreet.secrets import read_variable

if TYPE_CHECKING:
    from discreet.engines.base import Engine

_HEAD = """\
# What analysts may query. Nothing yet: remove the # before what you allow.
# Then run: discreet catalog check FILE
"""
_DATASET = """\
#groups_per_user = 50     # at most 50 random groups of a user count: less noise
#rows_per_group = 5       # allows COUNT(*), AVG and quantiles: at most 5 rows of a user count in a group
#missing_labels = "keep"  # rows without a label are a group of their own; otherwise they are left out
#data_version = "1"       # which state of the data it is: change it whenever the data changes
#retention_days = 30      # after how many days rows are gone

# One table for each column that may be queried. The others do not exist for analysts.
"""
_CSV = "# CSV files hold text. To have numbers or dates, cast the columns in a view: SELECT ... FROM source\n"
_SUM = (
    "#sum = { low = 0, high = 1000, private_bound = true }  # a user's sum for an item is clipped to high: choose a "
    "generous one without looking at rows"
)
_ALLOWS_SUMS = (
    "#groups_per_user = 10  # at most 10 random labels of a user count; allows SUM by this column without LIMIT"
)
_BOUNDS = {
    **dict.fromkeys((Kind.TEXT, Kind.UNTYPED, Kind.INTEGER, Kind.BOOLEAN), _ALLOWS_SUMS),
    Kind.DATE: "#groups_per_user = 31  # at most 31 random days of a user count: less noise",
}
"""The bound on the labels of a user, by the kind of the column."""

_NUMBERS = {Kind.INTEGER, Kind.DECIMAL, Kind.FLOAT}
_PERIODS: Mapping[Kind, Mapping[Period, int]] = {
    Kind.TIMESTAMP: {"hour": 100, "day": 31, "week": 10, "month": 12},
    Kind.DATE: {"week": 10, "month": 12},
}
"""The periods that charts group by and how many of a user count, by the kind of the column; a date is a day itself."""

_TYPES = {kind: type_ for type_, kind in KINDS.items()} | {Kind.UNTYPED: "text"}


def draft_catalog(
    source: str,
    user: str,
    *,
    environment: Mapping[str, str],
    table: str | None = None,
    password_env: str | None = None,
) -> str:
    """Return a catalog for a table, as TOML. Settings are commented out until the data owner enables them.

    Args:
        source: a path or pattern of files, a DuckDB file, or the URL of an engine, like the source of `discreet.scan`.
        table: the table of an engine, or of a DuckDB file with several.
        password_env: the environment variable that holds the engine's password, if it needs one.

    Raises:
        InputError: there is no such table, it has no such user column or one that cannot name users, or the URL holds a
            password.
        EngineError: the engine cannot be reached.
    """
    from discreet.engines.opening import open_engine

    if secret_in(source):
        raise InputError("the source must be a path, or a URL without a password; name a variable with --password-env")
    address = source
    if "://" in source and not source.startswith("duckdb:"):
        place, _, options = source.partition("?")
        table = table or dict(parse_qsl(options)).get("table")
        others = [option for option in options.split("&") if option and not option.startswith("table=")]
        source = "?".join(part for part in (place, "&".join(others)) if part)
    # A URL that names its data completely, such as spark://local?path=..., is a source like a path.
    in_engine = "://" in source and not source.startswith("duckdb:") and not (table is None and password_env is None)
    password = read_variable(password_env, environment)
    with closing(open_engine(address, table=table, password=password)) as engine:
        columns = engine.columns()
        sums = {column: _sum(engine, column) for column, kind in columns.items() if kind in _NUMBERS}
    if user not in columns:
        raise UnknownColumn(user, columns, "user column")
    wrong = naming_error(user, columns[user], is_user=True)
    if wrong is not None:
        raise InputError(f"user {wrong}")
    parts = [_HEAD]
    if in_engine:
        variable = "" if password_env is None else f"password_env = {write_text(password_env)}\n"
        parts.append(f"[engines.warehouse]\nurl = {write_text(source)}\n{variable}")
        where = 'engine = "warehouse"'
    else:
        is_relative = "://" not in source and not PurePath(source).is_absolute()
        where = f"source = {write_text(source)}{'  # relative to the folder of this file' if is_relative else ''}"
    place, _, options = source.partition("?")
    # the dataset has the name of its table or file, or of the last segment of its URL, and begins with a letter
    word = PurePath(dict(parse_qsl(options)).get("path", place)).stem if table is None else table.rpartition(".")[2]
    word = re.sub(r"\W+", "_", word, flags=re.ASCII).strip("_")
    name = ("datasets", word if word[:1].isalpha() else f"data_{word}".rstrip("_"))
    named = "" if table is None else f"table = {write_text(table)}\n"
    parts.append(f"[{write_key(*name)}]\n{where}\n{named}user = {write_text(user)}\n{_DATASET}")
    parts += [_CSV] if Kind.UNTYPED in columns.values() else []
    names = {column.casefold() for column in columns}
    for column, kind in columns.items():
        if column != user:
            parts += _blocks((*name, "columns"), column, kind, sums.get(column), names)
    return "\n".join(parts)


def _sum(engine: Engine, column: str) -> str:
    """Return the setting of the sum of a column of numbers, or a comment that says why it has none."""
    try:
        engine.check_sum(column)
    except InputError as error:
        return f"# no sum: {error}"
    return _SUM


def _blocks(place: tuple[str, ...], column: str, kind: Kind, summed: str | None, names: set[str]) -> Iterator[str]:
    """Yield the table of a column, then those of its periods, whose names are none of *names*."""
    if kind is Kind.OTHER:
        yield f"# {write_text(column)} has a type that cannot be queried; cast it in a view.\n"
        return
    year = datetime.datetime.now(datetime.UTC).year
    listed = f"#domain = {{ first = {year}-01-01, last = {year}-12-31 }}  # all of them, with or without rows"
    settings = [f"#[{write_key(*place, column)}]", f'#type = "{_TYPES[kind]}"']
    settings += [] if kind is Kind.FLOAT else ["#group = true"]
    settings += [_BOUNDS[kind]] if kind in _BOUNDS else []
    settings += [listed] if kind is Kind.DATE else []
    settings += ["#filter = true"]
    settings += [] if summed is None else [summed]
    yield "\n".join(settings) + "\n"
    for period, most in _PERIODS.get(kind, {}).items():
        name = f"{column}_{period}"
        while name.casefold() in names:
            name += "_"
        names.add(name.casefold())
        kind_ = Derived(name, column, period).kind
        settings = [f"#[{write_key(*place, name)}]", f'#type = "{_TYPES[kind_]}"', f"#of = {write_text(column)}"]
        settings += [f'#each = "{period}"', "#group = true"]
        settings.append(f"#groups_per_user = {most}  # at most {most} random {period}s of a user count: less noise")
        settings += [listed] if kind_ is Kind.DATE else []  # a year has too many hours to release all of them
        yield "\n".join([*settings, "#filter = true\n"])
