"""A table's columns as Pinot's schema declares them, and what is stored where a value is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from discreet.errors import InputError, UnknownColumn
from discreet.question import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_KINDS = {
    "STRING": Kind.TEXT,
    "INT": Kind.INTEGER,
    "LONG": Kind.INTEGER,
    "BOOLEAN": Kind.BOOLEAN,
    "TIMESTAMP": Kind.TIMESTAMP,
    "FLOAT": Kind.FLOAT,
    "DOUBLE": Kind.FLOAT,
}
_STORED_IN_DIMENSIONS = {
    "STRING": "null",
    "INT": str(-(2**31)),
    "LONG": str(-(2**63)),
    "TIMESTAMP": "0",
    "FLOAT": "-Infinity",
    "DOUBLE": "-Infinity",
}
"""By Pinot's types, unless the schema says otherwise; BOOLEAN has no value to spare."""

_STORED_IN_METRICS = {"STRING": "null"}
"""The others store 0, which is as good a number as any."""


@dataclass(frozen=True, slots=True)
class PinotColumn:
    """A column.

    Args:
        kind: OTHER for lists and for types that are not read.
        type: Pinot's name of the type.
        nullable: False if the schema declares that no value is missing.
        stored: what is stored where a value is missing; None if that is a value like others.
    """

    kind: Kind
    type: str
    nullable: bool
    stored: str | None


def columns_of(schema: Mapping[str, Any], table: str) -> dict[str, PinotColumn]:
    """The columns of a schema, in its order.

    Args:
        schema: as the controller returns it.
        table: its name, without the type.
    """
    columns = {}
    for field, stored in _fields(schema):
        name, type_ = field["name"], field["dataType"]
        # Pinot reads table.column as the column of that name of the table.
        readable = field.get("singleValueField", True) is True and not name.startswith((f"{table}.", "$"))
        kind = _KINDS.get(type_, Kind.OTHER) if readable else Kind.OTHER
        value = _stored(field.get("defaultNullValue"), type_, stored)
        columns[name] = PinotColumn(kind, type_, field.get("notNull") is not True, value)
    return columns


def column_of(name: str, columns: Mapping[str, PinotColumn]) -> PinotColumn:
    """A column that a question uses.

    Raises:
        UnknownColumn: it is not there, or not any more.
        InputError: it holds lists, or its missing values cannot be told from others.
    """
    if name not in columns:
        raise UnknownColumn(name, columns)
    column = columns[name]
    if column.kind is Kind.OTHER:
        raise InputError(f"column {name!r} is of a type that cannot be asked for in Pinot, or holds several values")
    if column.nullable and column.stored is None:
        raise InputError(
            f"the missing values of column {name!r} are stored like others; declare it notNull in the schema if it has "
            "none, or give it a defaultNullValue of its own"
        )
    return column


def _stored(declared: object, type_: str, usual: Mapping[str, str]) -> str | None:
    """What is stored for a missing value, in the words of a statement."""
    if declared is None or type_ == "BOOLEAN":
        return usual.get(type_)
    try:
        if type_ in {"INT", "LONG", "TIMESTAMP"}:
            return str(int(str(declared)))
        return repr(float(str(declared))) if type_ in {"FLOAT", "DOUBLE"} else str(declared)
    except ValueError:  # a moment in words, whose time zone is not known
        return None


def _fields(schema: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, str]]]:
    for specification, stored in (
        ("dimensionFieldSpecs", _STORED_IN_DIMENSIONS),
        ("metricFieldSpecs", _STORED_IN_METRICS),
        ("dateTimeFieldSpecs", _STORED_IN_DIMENSIONS),
    ):
        for field in schema.get(specification) or ():
            yield field, stored
