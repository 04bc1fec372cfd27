"""Draft a catalog for a table from its columns and types. No row is read, and the draft permits no queries."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import PurePath
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from discreet.catalog.fields import secret_in
from discreet.catalog.loader import write_key, write_text
from discreet.catalog.model import KINDS
from discreet.errors import InputError, UnknownColumn
from discreet.head_request import Kind
from discreet.secrets import read_variable

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEAD = """\
# What analysts may query. Nothing yet: remove the # before what you allow.
# Then run: discreet catalog check FILE
"""
_DATASET = """\
#groups_per_user = 50     # at most 50 random groups of a user count: less noise
#rows_per_group = 5       # allows COUNT(*): at most 5 rows of a user count in a group
#missing_labels = "keep"  # rows without a label are a group of their own; otherwise they are left out
#data_version = "1"       # which state of the data it is: change it whenever the data changes
#retention_days = 30      # after how many days rows are gone

# One table for each column that may be queried. The others do not exist for analysts.
"""
_CSV = "# CSV files hold text. To have numbers or dates, cast the columns in a view: SELECT ... FROM source\n"
_SUM = (
    "#sum = { low = 0, high = 100 }  # each user's sum for an item is clipped to this: choose without looking at rows"
)
_NUMBERS = {Kind.INTEGER, Kind.DECIMAL}
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
        InputError: there is no such table, it has no such user column, or the URL holds a password.
        EngineError: the engine cannot be reached.
    """
    from discreet.engines.opening import open_engine

    if secret_in(source):
        raise InputError("the source must be a path, or a URL without a password; name a variable with --password-env")
    given = source
    if "://" in source and not source.startswith("duckdb:"):
        source, table = _without_table(source, table)
    # A URL that names its data completely, such as spark://local?path=..., is a source like a path.
    in_engine = "://" in source and not source.startswith("duckdb:") and not (table is None and password_env is None)
    password = read_variable(password_env, environment)
    with closing(open_engine(given, table=table, password=password)) as engine:
        columns = engine.columns()
        sums = {}
        for column, kind in columns.items():
            if kind in _NUMBERS:
                try:
                    engine.check_sum(column)
                    sums[column] = _SUM
                except InputError as error:
                    sums[column] = f"# no sum: {error}"
    if user not in columns:
        raise UnknownColumn(user, columns, "user column")
    parts = [_HEAD]
    if in_engine:
        variable = "" if password_env is None else f"password_env = {write_text(password_env)}\n"
        parts.append(f"[engines.warehouse]\nurl = {write_text(source)}\n{variable}")
    where = 'engine = "warehouse"' if in_engine else f"source = {write_text(source)}"
    if table is not None:
        word = table.rpartition(".")[2]
    else:  # the name of the file without its ending, or the last segment of the URL
        place, _, options = source.partition("?")
        word = PurePath(dict(parse_qsl(options)).get("path", place)).stem
    word = re.sub(r"\W+", "_", word, flags=re.ASCII).strip("_")
    # the name of a dataset begins with a letter
    name = ("datasets", word if word[:1].isalpha() else f"data_{word}".rstrip("_"))
    named = "" if table is None else f"table = {write_text(table)}\n"
    parts.append(f"[{write_key(*name)}]\n{where}\n{named}user = {write_text(user)}\n{_DATASET}")
    parts += [_CSV] if Kind.UNTYPED in columns.values() else []
    for column, kind in columns.items():
        parts += [_column((*name, "columns", column), kind, sums.get(column))] if column != user else []
    return "\n".join(parts)


def _without_table(url: str, table: str | None) -> tuple[str, str | None]:
    """Return a URL without its option table, and the table: *table*, or by default that option's value."""
    place, _, options = url.partition("?")
    kept = [option for option in options.split("&") if option and not option.startswith("table=")]
    named = dict(parse_qsl(options)).get("table")
    return "?".join(part for part in (place, "&".join(kept)) if part), table or named


def _column(place: tuple[str, ...], kind: Kind, summed: str | None) -> str:
    if kind is Kind.OTHER:
        return f"# {write_text(place[-1])} has a type that cannot be queried; cast it in a view.\n"
    settings = [f"#[{write_key(*place)}]", f'#type = "{_TYPES[kind]}"']
    settings += [] if kind is Kind.FLOAT else ["#group = true"]
    settings += ["#filter = true"]
    settings += [] if summed is None else [summed]
    return "\n".join(settings) + "\n"
