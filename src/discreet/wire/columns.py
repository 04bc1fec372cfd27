"""Columns of a release between Arrow and JSON, without losing anything on the way.

    text, integer, unsigned, decimal(p,s), boolean, date, timestamp, float

A moment of a zone is timestamp(zone); one of other than microseconds is timestamp[unit]. JSON holds dates and moments
as ISO 8601, decimals as text, missing labels as null.
"""

from __future__ import annotations

import decimal
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike, NDArray

_NAMES = {
    pa.int64(): "integer",
    pa.uint64(): "unsigned",
    pa.float64(): "float",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.string(): "text",
}
_TYPES = {name: type_ for type_, name in _NAMES.items()}
_TEXT = {pa.large_string(), pa.string_view()}
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_MOMENT = re.compile(r"timestamp(?:\[(s|ms|ns)\])?(?:\((.+)\))?")
_BEYOND = re.compile(r"<value out of range: (-?\d+)>")
"""What Arrow writes for a date that no calendar of its own holds."""


def type_name(type_: pa.DataType) -> str:
    """What the type of a column is called.

    Raises:
        InputError: releases have no such columns.
    """
    if pa.types.is_decimal128(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        unit = "" if type_.unit == "us" else f"[{type_.unit}]"
        return f"timestamp{unit}" + (f"({type_.tz})" if type_.tz else "")
    if type_ in _TEXT:
        return "text"
    if type_ not in _NAMES:
        raise InputError("an item column holds something that the service cannot answer; its owner has to cast it")
    return _NAMES[type_]


def type_named(name: str) -> pa.DataType:
    """The type that is called so.

    Raises:
        InputError: none is.
    """
    if name in _TYPES:
        return _TYPES[name]
    if found := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(found[1]), int(found[2]))
    if found := _MOMENT.fullmatch(name):
        return pa.timestamp(found[1] or "us", found[2])
    raise InputError("there is no such type of a column")


def to_column(values: Sequence[Any], name: str) -> pa.Array:
    """A column of plain values, as JSON has them.

    Args:
        values: None for a missing one.
        name: of the type.
    """
    type_ = type_named(name)
    if pa.types.is_decimal(type_):
        return pa.array([None if value is None else decimal.Decimal(value) for value in values], type_)
    if pa.types.is_date(type_):
        return pa.array([_moment(value, "D") for value in values], pa.int32()).view(type_)
    if pa.types.is_timestamp(type_):
        return pa.array([_moment(value, type_.unit) for value in values], pa.int64()).view(type_)
    return pa.array(values, type_)


def numbers(column: pa.Array | None, kind: DTypeLike) -> NDArray[Any] | None:
    """A column as numbers; None if there is none."""
    return None if column is None else np.array(column.to_pylist(), dtype=kind)


def _moment(text: str | None, unit: str) -> int | None:
    """Days, or units of time, since 1970; also before the year 1 and after 9999, where Python has none."""
    if text is None:
        return None
    if found := _BEYOND.fullmatch(text):
        return int(found[1])
    plain = text.replace(" ", "T").removesuffix("Z").removesuffix("+00:00")
    return int(np.array(plain, f"datetime64[{unit}]").astype(np.int64))
