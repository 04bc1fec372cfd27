"""Items listed in advance, held to the types of the labels, for engines that cannot be asked to do it.

DuckDB casts them, in memory, so that a label means the same whatever the engine that counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from discreet.engines.sql import quoted
from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIRST, _LAST = "'0001-01-01'", "'9999-12-31 23:59:59.999999'"


def typed_domain(domain: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """The listed items in the types of the labels.

    Args:
        domain: as it was given, with the item columns; its labels may be text that reads as the type.
        types: of the labels, for each item column in the order of the request: string, int64, decimal128, bool,
            date32 or timestamp[us].

    Returns:
        the same rows, with columns i0, i1, ... of those types.

    Raises:
        InputError: a label is missing, or not a value of its column's type that is written as one; an item is listed
            twice; or a date or moment is outside the years 1 to 9999.
    """
    with duckdb.connect() as connection:
        try:
            return _typed(connection, domain, types)
        except duckdb.Error:
            raise InputError("the domain lists labels of another type than their column") from None


def _typed(connection: duckdb.DuckDBPyConnection, domain: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    connection.execute("SET TimeZone = 'UTC'")
    labels = pa.schema(list(types.items())).empty_table()
    connection.register("domain", domain)
    connection.register("labels", labels)
    given, wanted = (dict(_types(connection, name)) for name in ("domain", "labels"))
    casts, wrong = [], []
    for n, (column, type_) in enumerate(types.items()):
        cast = f"TRY_CAST({quoted(column)} AS {wanted[column]})"
        casts.append(f"{cast} AS i{n}")
        wrong.append(f"{cast} IS NULL")
        # A label that changes on the way there and back (1.5 as a whole number, '07') is not of that type.
        wrong.append(f"TRY_CAST({cast} AS {given[column]}) IS DISTINCT FROM {quoted(column)}")
        if pa.types.is_temporal(type_):  # what no calendar of Python's holds
            wrong.append(f"{cast} NOT BETWEEN CAST({_FIRST} AS {wanted[column]}) AND CAST({_LAST} AS {wanted[column]})")
    if connection.execute(f"SELECT 1 FROM domain WHERE {' OR '.join(wrong)} LIMIT 1").fetchall():
        raise InputError("the domain lists a label that is missing or not of the type of its column")
    listed = connection.sql(f"SELECT {', '.join(casts)} FROM domain").to_arrow_table()
    if len(listed.group_by(listed.column_names).aggregate([])) < len(listed):
        raise InputError("the domain lists an item twice")
    return listed


def _types(connection: duckdb.DuckDBPyConnection, relation: str) -> list[tuple[str, str]]:
    return [(name, type_) for name, type_, *_ in connection.execute(f"DESCRIBE {relation}").fetchall()]
