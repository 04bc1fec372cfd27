"""Tables as text for terminals, and as HTML for notebooks."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_RIGHT = frozenset({"rank", "count", "sum", "average", "std_error", "95 % interval"})
"""Columns that are aligned to the right."""

_FORMULA = r"\A[=+\-@\t\r]"
"""How texts begin that a spreadsheet computes, in the syntax that re and Arrow share."""


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table for terminals: columns as wide as their widest cell, numbers right-aligned."""
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


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]], note: str, images: Sequence[str] = ()) -> str:
    """Format a table as HTML, with a note below; *images* is the HTML of a last column without a heading."""
    heading = "".join(f"<th>{html.escape(text)}</th>" for text in (*headings, *[""] * bool(images)))
    cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    if images:
        cells = [f"{row}<td>{image}</td>" for row, image in zip(cells, images, strict=True)]
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table><p>{html.escape(note)}</p>"


def shortened(cell: str, most: int = 60) -> str:
    """Return *cell* cut to *most* characters, with unprintable characters replaced."""
    printable = cell
    if not cell.isprintable():
        printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cell)
    return printable if len(printable) <= most else printable[: most - 1] + "…"


def _width(text: str) -> int:
    """Return the width of a text in terminal cells: two for wide characters, zero for combining ones."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(c) in {"Mn", "Me"} else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def guarded(table: pa.Table) -> pa.Table:
    """Return a table whose texts begin with an apostrophe where a spreadsheet would compute them as formulas.

    Those are texts that begin with =, +, -, @, a tab or a carriage return; numbers stay numbers.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for place, field in enumerate(table.schema):
        if (
            pa.types.is_string(field.type)
            or pa.types.is_large_string(field.type)
            or pa.types.is_string_view(field.type)
        ):
            texts = table.column(place).cast(pa.string())
            formula = pc.match_substring_regex(texts, _FORMULA).fill_null(fill_value=False)
            safe = pc.if_else(formula, pc.binary_join_element_wise("'", texts, ""), texts)
            table = table.set_column(place, field.name, safe)
    return table


def guarded_cell(cell: Any) -> Any:  # noqa: ANN401 - a text, a number or None
    """Return a cell with an apostrophe before it if it is a text that `guarded` would change."""
    return f"'{cell}" if isinstance(cell, str) and re.match(_FORMULA, cell) else cell
