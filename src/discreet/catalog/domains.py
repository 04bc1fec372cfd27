"""Known domains: items listed in advance, in the catalog or by the caller."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.catalog.fields import OwnerQuery
from discreet.catalog.model import MAX_DOMAIN_SIZE, Dataset, LabelFile
from discreet.errors import InputError, UnknownColumn
from discreet.head_request import MAX_LISTED, Kind

if TYPE_CHECKING:
    import pyarrow as pa

    from discreet.engines.base import Engine


def known_domain(items: tuple[str, ...], labels: Mapping[str, pa.Array]) -> pa.Table | None:
    """Return every combination of the labels of item columns.

    Args:
        labels: the labels of each column that has a known domain, from `known_labels`.

    Returns:
        an Arrow table with a column for each of *items*. None without items, if an item has no known domain, or for
        more than `MAX_DOMAIN_SIZE` combinations: the domain is then treated as unknown, as private but less accurate.
    """
    import pyarrow as pa

    if not items or not labels.keys() >= set(items):
        return None
    total = math.prod(len(labels[item]) for item in items)
    if total > MAX_DOMAIN_SIZE:
        return None
    # As the digits of a number: the labels of the last column change with every row, those of the first most slowly.
    columns = {}
    repeated = total
    for item in items:
        column = labels[item]
        repeated //= len(column)
        places = [place for place in range(len(column)) for _ in range(repeated)] * (total // len(column) // repeated)
        columns[item] = column.take(pa.array(places, pa.int64()))
    return pa.table(columns)


def filtered_domain(
    items: tuple[str, ...], values: Mapping[str, list[Any]], kinds: Mapping[str, Kind], listed: Mapping[str, pa.Array]
) -> pa.Table | None:
    """Return every combination of labels that a filter leaves; None if it leaves no list of a column, or too many.

    Args:
        values: all values that the filter leaves, by column, as `discreet.query.canonical.listed_values` returns them.
        kinds: the kinds of these columns.
        listed: the labels that the catalog lists and the filter leaves, by item column; they come before *values*.
    """
    import pyarrow as pa

    from discreet.engines.base import LABEL_TYPES

    labels = dict(listed)
    for item in items:
        if item not in labels and item in values:
            written = pa.string() if kinds[item] in {Kind.DATE, Kind.TIMESTAMP} else None
            type_ = LABEL_TYPES.get(kinds[item], pa.string())
            labels[item] = pa.array(values[item], written or type_).cast(type_)
    if math.prod(len(labels[item]) for item in items if item in labels) > MAX_LISTED:
        return None
    return known_domain(items, labels)


def combined(segments: pa.Table, items: pa.Table) -> pa.Table:
    """Return the listed items of each listed segment, the segments in order, as columns of both tables.

    Raises:
        InputError: there are more than `MAX_DOMAIN_SIZE` combinations.
    """
    import pyarrow as pa

    if len(segments) * len(items) > MAX_DOMAIN_SIZE:
        raise InputError(
            f"{len(segments):,} segments with {len(items):,} listed items each are more than {MAX_DOMAIN_SIZE:,} "
            "combinations; list fewer segments or items, or leave the domain out"
        )

    first = pa.array([n for n in range(len(segments)) for _ in range(len(items))], pa.int64())
    second = pa.array([*range(len(items))] * len(segments), pa.int64())
    columns = (*segments.take(first).columns, *items.take(second).columns)
    return pa.table(list(columns), [*segments.column_names, *items.column_names])


def known_labels(dataset: Dataset, column: str, engine: Engine) -> pa.Array:
    """Return all labels of a column that has a known domain, without repetition.

    Raises:
        InputError: the labels cannot be read, there are none or too many, or one is missing or listed twice.
        EngineError: the engine failed.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    match dataset.columns[column].domain:
        case OwnerQuery(query=statement):
            answer = engine.fetch(statement)
            if answer.num_columns != 1:
                raise InputError(f"the query for the domain of column {column!r} must return one column")
            labels = answer.column(0)
        case LabelFile(file=path):
            labels = listed_items(path, (column,)).column(0)
        case declared:
            labels = listed_items(declared, (column,)).column(0)
    if not 1 <= len(labels) <= MAX_DOMAIN_SIZE:
        raise InputError(f"the domain of column {column!r} must have from 1 to {MAX_DOMAIN_SIZE:,} labels")
    if labels.null_count:
        raise InputError(f"the domain of column {column!r} holds a missing label")
    # Files and engines may encode text as dictionaries, views or large strings; all are labels of type text.
    if pa.types.is_dictionary(labels.type):
        labels = labels.cast(labels.type.value_type)
    if pa.types.is_large_string(labels.type) or pa.types.is_string_view(labels.type):
        labels = labels.cast(pa.string())
    labels = labels.combine_chunks()
    if pa.types.is_nested(labels.type) or pc.count_distinct(labels).as_py() < len(labels):
        raise InputError(f"the domain of column {column!r} holds a label twice, or values that are no labels")
    return labels


def listed_items(domain: Any, items: tuple[str, ...]) -> pa.Table:  # noqa: ANN401 - lists, Arrow tables and paths
    """Return listed items as an Arrow table with the item columns.

    Args:
        domain: a list of labels (tuples for several columns), an Arrow table, or a path of a CSV or Parquet file with a
            column for each item column. Labels in CSV files are text; the engine reads them as the type of the column.

    Raises:
        InputError: *domain* cannot be read, is empty, lacks a column, or does not fit the item columns.
    """
    import pyarrow as pa

    if isinstance(domain, str | Path):
        domain = _read(Path(domain), items)
    if isinstance(domain, pa.Table):
        for item in items:
            if domain.column_names.count(item) != 1:
                raise UnknownColumn(item, domain.column_names, "column of the domain")
        table = domain.select(list(items))
    else:
        if hasattr(domain, "columns"):  # iterating a frame gives its column names
            raise InputError("the domain must be an Arrow table, not another frame; use its to_arrow()")
        if not isinstance(domain, Iterable) or isinstance(domain, bytes | Mapping):
            hint = "; use list(...) of the keys or values of the dict" if isinstance(domain, Mapping) else ""
            raise InputError(f"the domain, or segments, must be a list of labels, an Arrow table, or a path{hint}")
        rows = list(domain)
        if len(items) > 1 and not all(isinstance(row, tuple | list) and len(row) == len(items) for row in rows):
            raise InputError(f"the domain must list tuples of {len(items)} labels")
        parts = [rows] if len(items) == 1 else [[row[n] for row in rows] for n in range(len(items))]
        try:
            table = pa.table(dict(zip(items, map(pa.array, parts), strict=True)))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError):
            raise InputError("the domain must list labels of one type") from None
    if table.num_rows == 0:
        raise InputError("the domain is empty; leave it out to release items that are not listed")
    return table


def _read(path: Path, items: tuple[str, ...]) -> pa.Table:
    """Return the table of a domain file, Parquet or CSV; labels of CSV are text."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    if not path.is_file():
        meant = "" if path.suffix else "; a domain is a CSV or Parquet file, or in Python a list of labels"
        raise InputError(f"there is no domain file {str(path)!r}{meant}")
    try:
        with path.open("rb") as file:
            if file.read(4) == b"PAR1":
                return pa.parquet.read_table(path)
        as_text = pa.csv.ConvertOptions(column_types=dict.fromkeys(items, pa.string()), strings_can_be_null=False)
        return pa.csv.read_csv(path, convert_options=as_text)
    except (pa.ArrowInvalid, OSError):
        raise InputError(f"the domain file {str(path)!r} can be read neither as Parquet nor as CSV") from None
