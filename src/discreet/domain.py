"""Items listed in advance, from whatever a user lists them in."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.errors import InputError, UnknownColumn

if TYPE_CHECKING:
    import pyarrow as pa


def listed(domain: Any, items: tuple[str, ...]) -> pa.Table:  # noqa: ANN401 - lists, Arrow tables and paths
    """The listed items as an Arrow table with the item columns.

    Args:
        domain: a list of labels (tuples for several columns), an Arrow table, or a path of a CSV or Parquet file with a
            column for each item column. Labels in CSV files are text; the engine reads them as the type of the column.
        items: the item columns.

    Raises:
        InputError: it cannot be read, is empty, lacks a column, or does not fit the item columns.
    """
    import pyarrow as pa

    if isinstance(domain, str | Path):
        domain = _read(Path(domain), items)
    table = _columns(domain, items) if isinstance(domain, pa.Table) else _rows(domain, items)
    if table.num_rows == 0:
        raise InputError("the domain is empty; leave it out to release items nobody listed")
    return table


def _read(path: Path, items: tuple[str, ...]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    if not path.is_file():
        raise InputError(f"there is no domain file {str(path)!r}")
    try:
        with path.open("rb") as file:
            if file.read(4) == b"PAR1":
                return pa.parquet.read_table(path)
        as_text = pa.csv.ConvertOptions(column_types=dict.fromkeys(items, pa.string()), strings_can_be_null=False)
        return pa.csv.read_csv(path, convert_options=as_text)
    except (pa.ArrowInvalid, OSError):
        raise InputError(f"the domain file {str(path)!r} can be read neither as Parquet nor as CSV") from None


def _columns(domain: pa.Table, items: tuple[str, ...]) -> pa.Table:
    for item in items:
        if domain.column_names.count(item) != 1:
            raise UnknownColumn(item, domain.column_names, "column of the domain")
    return domain.select(list(items))


def _rows(domain: Any, items: tuple[str, ...]) -> pa.Table:  # noqa: ANN401 - whatever was passed
    import pyarrow as pa

    if hasattr(domain, "columns"):  # a frame is no list of its column names
        raise InputError("the domain must be an Arrow table, not another frame; use its to_arrow()")
    rows = list(domain) if isinstance(domain, Iterable) and not isinstance(domain, bytes) else None
    if rows is None:
        raise InputError("the domain must be a list of labels, an Arrow table, or a path")
    if len(items) > 1 and not all(isinstance(row, tuple | list) and len(row) == len(items) for row in rows):
        raise InputError(f"the domain must list tuples of {len(items)} labels")
    parts = [rows] if len(items) == 1 else [[row[n] for row in rows] for n in range(len(items))]
    try:
        return pa.table(dict(zip(items, map(pa.array, parts), strict=True)))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError):
        raise InputError("the domain must list labels of one type") from None
