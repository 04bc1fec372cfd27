"""Write files whole or not at all, and format values and tables as text, HTML and plain values."""

from __future__ import annotations

import datetime
import decimal
import html
import importlib
import os
import tempfile
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    import pyarrow as pa
    from numpy.typing import NDArray

    from discreet.accounting.guarantee import Guarantee
    from discreet.query.query import Query

_RIGHT = frozenset({"rank", "count", "sum", "average", "std_error", "95 % interval"})
"""Columns that are aligned to the right."""


def require(library: str, wanted: str) -> ModuleType:
    """Import and return an optional *library*.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module(library)
    except ImportError:
        extra = "plots" if library == "matplotlib" else library
        raise InputError(f"{wanted} needs {library}; install it with: pip install 'discreet[{extra}]'") from None


def write_whole(path: str | Path, write: Callable[[Path], None]) -> None:
    """Write a file with *write* beside *path*, then move it there, so that no incomplete file is ever visible.

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
    """Write *text* as UTF-8, whole or not at all."""

    def write(part: Path) -> None:
        part.write_bytes(text.encode())

    write_whole(path, write)


def arrow_array(values: NDArray[Any]) -> pa.Array:
    """Return numbers as an Arrow array without pa.array(), which imports pandas where it is installed."""
    import pyarrow as pa

    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column as Python values, or as text where Python has none, such as days before the year 1."""
    import pyarrow as pa

    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError, ImportError):
        return list(column.cast(pa.string()).to_pylist())


def plain_value(value: Any) -> Any:  # noqa: ANN401 - whatever a label may be
    """Return a label as JSON has it: dates and times in ISO 8601, decimals exactly, as text."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case datetime.date() | datetime.datetime() | datetime.time():
            return value.isoformat()
        case decimal.Decimal():
            return str(value)
        case _:
            return str(value)


def privacy_to_dict(guarantee: Guarantee) -> dict[str, Any]:
    """Return a guarantee as plain values."""
    return {
        "unit": guarantee.unit,
        "neighbours": guarantee.neighbours,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "rho": guarantee.rho,
        "computational": guarantee.computational,
    }


def query_to_dict(query: Query) -> dict[str, Any]:
    """Return a query as plain values."""
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


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for terminals: columns as wide as their widest cell, numbers to the right."""
    table = [[shortened(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(map(_width, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = []
        for cell, width, heading in zip(row, widths, headings, strict=True):
            pad = " " * (width - _width(cell))
            cells.append(pad + cell if heading in _RIGHT else cell + pad)
        lines.append("  ".join(cells).rstrip())
    return "\n".join([*lines, ""])


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> str:
    """Return a table for notebooks, with a note below."""
    heading = "".join(f"<th>{html.escape(text)}</th>" for text in headings)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table><p>{html.escape(note)}</p>"


def shortened(cell: str, most: int = 60) -> str:
    """Return at most *most* characters of *cell*, none of which moves a cursor."""
    printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cell)
    return printable if len(printable) <= most else printable[: most - 1] + "…"


def _width(text: str) -> int:
    """Return the width on a terminal: two for wide characters, none for combining ones."""
    return sum(
        0 if unicodedata.category(c) in {"Mn", "Me"} else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
