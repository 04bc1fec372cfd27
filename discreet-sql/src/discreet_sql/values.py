"""Convert parameters to SQL literals, and cells of results to Python values."""

from __future__ import annotations

import datetime
import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from discreet_sql.errors import ProgrammingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Skips text, quoted names and comments: a question mark in them is not a parameter.
_PARAMETER = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|(?P<parameter>\?)""", re.DOTALL)


def bind(statement: str, parameters: Sequence[object]) -> str:
    """Return *statement* with its question marks replaced by literals.

    Raises:
        ProgrammingError: there are more or fewer parameters than question marks, or a value has no literal.
    """
    if isinstance(parameters, str | bytes | dict):
        raise ProgrammingError("parameters are a list or a tuple, one for each question mark")
    left = list(parameters)
    found = sum(match["parameter"] is not None for match in _PARAMETER.finditer(statement))
    if found != len(left):
        raise ProgrammingError(f"the statement has {found} parameters, and {len(left)} values were given")
    return _PARAMETER.sub(lambda match: match[0] if match["parameter"] is None else literal(left.pop(0)), statement)


def literal(value: object) -> str:
    """Return the SQL literal of *value*.

    Raises:
        ProgrammingError: *value* has no literal.
    """
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bool) or value is None:
        return {True: "TRUE", False: "FALSE", None: "NULL"}[value]
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float | Decimal) and math.isfinite(value):
        return f"{Decimal(repr(value)) if isinstance(value, float) else value:f}"
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return f"TIMESTAMP '{value.isoformat(' ')}'"
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return f"DATE '{value.isoformat()}'"
    raise ProgrammingError(
        f"a parameter is text, a finite number, a boolean, a date, a timestamp without time zone or None, "
        f"not {type(value).__name__}"
    )


class TypeGroup:
    """A type object of PEP 249; it is equal to the type code of each SQL type in its group."""

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)

    def __eq__(self, other: object) -> bool:
        return other is self or (isinstance(other, str) and base_type(other) in self._names)

    def __hash__(self) -> int:
        return hash(self._names)


STRING = TypeGroup("VARCHAR", "UUID", "JSON", "ENUM")
BINARY = TypeGroup("BLOB", "BIT")
NUMBER = TypeGroup(
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
    *("UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "BOOLEAN"),
)
DATETIME = TypeGroup("DATE", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "INTERVAL")
ROWID = TypeGroup()


def base_type(name: str) -> str:
    """Return the name of an SQL type without its parameters: DECIMAL for DECIMAL(18,2)."""
    return name.partition("(")[0].strip().upper()


def reader(name: str) -> Callable[[Any], Any]:
    """Return a function that converts cells of the SQL type *name* to Python values; None stays None."""
    convert = _READERS.get(base_type(name))
    return (lambda cell: cell) if convert is None else (lambda cell: None if cell is None else convert(cell))


def _timestamp(cell: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(cell.removesuffix("Z") + ("+00:00" if cell.endswith("Z") else ""))


_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"), int),
    **dict.fromkeys(("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"), int),
    **dict.fromkeys(("FLOAT", "DOUBLE"), float),
    "DECIMAL": lambda cell: Decimal(str(cell)),
    "DATE": datetime.date.fromisoformat,
    "TIME": datetime.time.fromisoformat,
    "TIMESTAMP": _timestamp,
    "TIMESTAMP WITH TIME ZONE": _timestamp,
}
