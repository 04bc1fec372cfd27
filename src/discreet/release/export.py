"""A release in other shapes. Files appear whole or not at all."""

from __future__ import annotations

import datetime
import decimal
import html
import importlib
import io
import json
import os
import tempfile
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.errors import InputError
from discreet.values import float_above

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import pyarrow as pa
    from numpy.typing import NDArray

    from discreet.accounting.guarantee import Guarantee
    from discreet.query.query import Query
    from discreet.release.result import Release

_OURS = ("rank", "count", "sum", "average", "std_error", "low", "high")


def require(library: str, wanted: str) -> ModuleType:
    """Import an optional *library*.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module(library)
    except ImportError:
        extra = "plots" if library == "matplotlib" else library
        raise InputError(f"{wanted} needs {library}; install it with: pip install 'discreet[{extra}]'") from None


def write_whole(path: str | Path, write: Callable[[Path], None]) -> None:
    """Let *write* write a file beside *path*, then move it there: nobody ever sees half a file.

    Raises:
        InputError: it cannot be written there.
    """
    target = Path(path)
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=target.suffix)
    except OSError as error:
        raise InputError(f"{str(target)!r} cannot be written: {(error.strerror or 'no access').lower()}") from None
    os.close(descriptor)
    try:
        write(Path(name))
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(target)
    except OSError as error:
        raise InputError(f"{str(target)!r} cannot be written: {(error.strerror or 'no access').lower()}") from None
    finally:
        Path(name).unlink(missing_ok=True)


def write_text(text: str, path: str | Path) -> None:
    """Write *text* as UTF-8, whole or not at all; see `write_whole`."""

    def write(part: Path) -> None:
        part.write_bytes(text.encode())

    write_whole(path, write)


def arrow_array(values: NDArray[Any]) -> pa.Array:
    """Numbers as an Arrow array, without pa.array(), which imports pandas where it is installed."""
    import pyarrow as pa

    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def to_arrow(release: Release) -> pa.Table:
    """See `Release.to_arrow`."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    if release.query.k is not None:
        ranks = np.arange(1, len(release) + 1)
        columns["rank"] = arrow_array(ranks) if release.ordered else pa.nulls(len(release), pa.int64())
    for name in release.labels.column_names:
        columns[_free_name(name, release.labels.column_names)] = release.labels.column(name)
    return pa.table(columns | shown_values(release))


def shown_values(release: Release) -> dict[str, pa.Array]:
    """The numbers beside the labels; std_error, low and high are of the sums or averages, where there are some."""
    numbers = {"count": release.counts, "std_error": release.std_errors, "low": release.low, "high": release.high}
    columns = {name: arrow_array(values) for name, values in numbers.items() if values is not None}
    measured = release.measured
    if measured is None:
        return columns
    scale = release.query.summed.scale if release.query.summed is not None else 0
    columns = {name: values for name, values in columns.items() if name == "count"}
    columns[measured.name] = _in_units(measured.values, scale)
    columns["std_error"] = _in_units(measured.std_errors, scale)
    columns["low"], columns["high"] = _in_units(measured.low, scale), _in_units(measured.high, scale)
    return columns


def _in_units(values: NDArray[Any], scale: int) -> pa.Array:
    """What was counted in units of a column's last digit, in the column's own: sums exactly."""
    import pyarrow as pa

    if not scale:
        return arrow_array(values)
    if values.dtype.kind == "f":
        return arrow_array(values / 10**scale)
    exact = [decimal.Decimal(value).scaleb(-scale) for value in values.tolist()]
    return pa.array(exact, pa.decimal128(38, scale))


def _free_name(name: str, items: list[str]) -> str:
    """*name*, with underscores behind it where it would collide with one of our columns."""
    while name in _OURS:
        name += "_"
        while name in items:
            name += "_"
    return name


def to_dict(release: Release) -> dict[str, Any]:
    """See `Release.to_dict`."""
    return {
        "items": [{name: _plain(value) for name, value in row.items()} for row in _rows(to_arrow(release))],
        "mechanism": release.mechanism,
        "chosen": release.chosen,
        "why": release.why,
        "complete": release.complete,
        "privacy": privacy_to_dict(release.guarantee),
        "charged": {"rho": float_above(release.charged.rho), "delta": float_above(release.charged.delta)},
        "query": query_to_dict(release.query),
        "seconds": round(release.seconds, 3),
    }


def privacy_to_dict(guarantee: Guarantee) -> dict[str, Any]:
    """A guarantee as plain values."""
    return {
        "unit": guarantee.unit,
        "neighbours": guarantee.neighbours,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "rho": guarantee.rho,
        "computational": guarantee.computational,
    }


def query_to_dict(query: Query) -> dict[str, Any]:
    """A question as plain values."""
    return {
        "user": query.user,
        "items": list(query.items),
        "k": query.k,
        "epsilon": query.epsilon,
        "delta": float(query.delta),
        "filtered": query.where is not None,
        "known_domain": query.known_domain,
        "groups_per_user": query.sensitivity.groups_per_user,
        "rows_per_user_and_item": query.sensitivity.rows_per_group,
        "relative_error": float(query.relative_error) if query.k is None else None,
        "counts": query.counts,
        "summed": None if query.summed is None else query.summed.column,
        "average": query.average,
    }


def to_json(release: Release, path: str | Path | None) -> str:
    """See `Release.to_json`."""
    text = json.dumps(to_dict(release), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    return _written(text, path)


def to_csv(release: Release, path: str | Path | None) -> str:
    """See `Release.to_csv`."""
    import pyarrow.csv

    buffer = io.BytesIO()
    pyarrow.csv.write_csv(to_arrow(release), buffer)
    return _written(buffer.getvalue().decode(), path)


def to_parquet(release: Release, path: str | Path) -> None:
    """See `Release.to_parquet`."""
    import pyarrow.parquet

    about = {key: value for key, value in to_dict(release).items() if key != "items"}
    table = to_arrow(release)
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), "discreet": json.dumps(about)})
    write_whole(path, lambda part: pyarrow.parquet.write_table(table, part))


def to_text(release: Release) -> str:
    """A table for terminals: the counts with their error bars."""
    rows = [_cells(row, release) for row in _rows(to_arrow(release))]
    lines = _aligned(_headings(release), rows)
    return "\n".join([*lines, ""]) if rows else "nothing stands out enough to be released\n"


def to_html(release: Release) -> str:
    """A table for notebooks."""
    heading = "".join(f"<th>{html.escape(text)}</th>" for text in _headings(release))
    rows = [_cells(row, release) for row in _rows(to_arrow(release))]
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    note = html.escape(f"{len(release)} items by {release.mechanism}; {release.guarantee}")
    return f"<table><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table><p>{note}</p>"


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """A column as Python's values; as text where Python has none, such as days before the year 1."""
    import pyarrow as pa

    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError, ImportError):
        return list(column.cast(pa.string()).to_pylist())


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    columns = [python_values(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _headings(release: Release) -> list[str]:
    names = to_arrow(release).column_names
    return [*(name for name in names if name not in {"low", "high"}), *(["95 % interval"] if "low" in names else [])]


def _cells(row: dict[str, Any], release: Release) -> list[str]:
    cells, numbers = [], shown_values(release)
    for name, value in row.items():
        if name in {"low", "high"}:
            continue
        if name == "std_error":
            cells.append(f"{value:.3g}")
        elif name in numbers:
            cells.append(_number(value))
        else:
            cells.append("" if value is None else str(_plain(value)))
    if "low" in row:
        cells.append(f"{_number(row['low'])} to {_number(row['high'])}")
    return cells


def _number(value: int | float | decimal.Decimal) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def _aligned(headings: list[str], rows: list[list[str]]) -> list[str]:
    """Columns as wide as their widest cell; numbers to the right."""
    table = [[shortened(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(map(_width, column)) for column in zip(*table, strict=True)]
    right = [name in {"rank", "count", "sum", "average", "std_error", "95 % interval"} for name in headings]
    lines = []
    for row in table:
        cells = []
        for cell, width, to_right in zip(row, widths, right, strict=True):
            pad = " " * (width - _width(cell))
            cells.append(pad + cell if to_right else cell + pad)
        lines.append("  ".join(cells).rstrip())
    return lines


def shortened(cell: str, most: int = 60) -> str:
    """*cell* for people: at most so many characters, none that moves a cursor."""
    printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cell)
    return printable if len(printable) <= most else printable[: most - 1] + "…"


def _width(text: str) -> int:
    """Cells of a terminal: two for wide characters, none for combining ones."""
    return sum(
        0 if unicodedata.category(c) in {"Mn", "Me"} else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a label may be
    """A label as JSON has it: dates and times in ISO 8601, decimals as text (exactly)."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case datetime.date() | datetime.datetime() | datetime.time():
            return value.isoformat()
        case decimal.Decimal():
            return str(value)
        case _:
            return str(value)


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        write_text(text, path)
    return text
