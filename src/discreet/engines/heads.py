"""What goes into engines and comes out in the types of the labels: listed domains, and heads that are proven exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from discreet.engines.sql import quoted
from discreet.errors import InexactHead, InputError
from discreet.question import TOTAL
from discreet.values import ExactHead

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from discreet.question import HeadRequest

_FIRST, _LAST = "'0001-01-01'", "'9999-12-31 23:59:59.999999'"

_WRONG_LABEL = "the domain lists a label that is missing or not of the type of its column"


def exact_head(table: pa.Table, request: HeadRequest) -> ExactHead:
    """Return the head that an engine counted for *request*, once it is proven to be one.

    Args:
        table: labels in columns i0, i1, ..., counts in n (and sums in t, where wanted).
        request: what was sent.

    Raises:
        InexactHead: what came back cannot be the head: too long, out of order, a label twice, a count below 1.
    """
    labels = table.select([f"i{n}" for n in range(len(request.items))]).rename_columns(list(request.items))
    counts = int64_array(table.column("n"))
    sums = None if request.summed is None else int64_array(table.column("t"))
    if not request.items:
        labels = pa.table({TOTAL: ["all"]})
    if len(counts) != len(labels) or len(counts) > request.limit + 1:
        raise InexactHead("the engine answered with more rows than it was asked for")
    if request.items:
        _check_order(table, request)
    return ExactHead(counts, request.limit, labels, sums)


def _check_order(table: pa.Table, request: HeadRequest) -> None:
    names = [f"i{n}" for n in range(len(request.items))]
    ranked, keys = table, [("n", "descending")]
    for name in names:
        if table.column(name).null_count:  # missing labels come first: not present sorts before present
            ranked = ranked.append_column(f"{name} present", table.column(name).is_valid())
            keys.append((f"{name} present", "ascending"))
        keys.append((name, "ascending"))
    order = pc.sort_indices(ranked, sort_keys=keys)
    if not np.array_equal(np.from_dlpack(order), np.arange(len(table))):
        raise InexactHead("the engine answered in another order than it was asked for")
    if len(table) and table.column("n")[-1].as_py() < (1 if request.domain is None else 0):
        raise InexactHead("the engine answered with items that have no users")
    if len(table.group_by(names).aggregate([])) < len(table):
        raise InexactHead("the engine answered with an item twice")


def int64_array(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return a column of numbers as an array.

    Raises:
        InexactHead: one is missing.
    """
    if column.null_count:
        raise InexactHead("the engine answered with an item without a count")
    # Not to_numpy(), which imports pandas where it is installed: a quarter of a second.
    return np.array(np.from_dlpack(column.cast(pa.int64()).combine_chunks()), dtype=np.int64)


def typed_domain(domain: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Return the items of a listed domain in the types of the labels.

    DuckDB casts them, in memory, so that a label means the same whatever the engine that counts.

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
    try:
        listed = _as_given(domain, types)
        if listed is None:
            with duckdb.connect() as connection:
                listed = _cast_domain(connection, domain, types)
    except (duckdb.Error, pa.ArrowInvalid):
        raise InputError("the domain lists labels of another type than their column") from None
    if len(listed.group_by(listed.column_names).aggregate([])) < len(listed):
        raise InputError("the domain lists an item twice")
    return listed


def _as_given(domain: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table | None:
    """Return a domain whose labels have their types already, or None: opening DuckDB would take most of a query."""
    given = domain.select(list(types))
    if given.schema.types != list(types.values()) or any(map(pa.types.is_temporal, types.values())):
        return None
    given.validate(full=True)
    if any(column.null_count for column in given.columns):
        raise InputError(_WRONG_LABEL)
    return given.rename_columns([f"i{n}" for n in range(len(types))])


def _cast_domain(connection: duckdb.DuckDBPyConnection, domain: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    connection.execute("SET TimeZone = 'UTC'")
    labels = pa.schema(list(types.items())).empty_table()
    connection.register("domain", domain)
    connection.register("labels", labels)
    given, wanted = (dict(_column_types(connection, name)) for name in ("domain", "labels"))
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
        raise InputError(_WRONG_LABEL)
    return connection.sql(f"SELECT {', '.join(casts)} FROM domain").to_arrow_table()


def _column_types(connection: duckdb.DuckDBPyConnection, relation: str) -> list[tuple[str, str]]:
    return [(name, type_) for name, type_, *_ in connection.execute(f"DESCRIBE {relation}").fetchall()]
