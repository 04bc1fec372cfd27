"""What Spark's types are, and heads in Spark's words."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from discreet.engines.sql import Column, NumberType
from discreet.engines.statement import HeadStatement
from discreet.question import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

ROWS, LISTED = "__discreet_rows", "__discreet_listed"
"""What the rows and the listed items are called in the session of a question."""

_DAYS = "DATE '0001-01-01' AND DATE '9999-12-31'"
_MOMENTS = "TIMESTAMP_NTZ '0001-01-01 00:00:00' AND TIMESTAMP_NTZ '9999-12-31 23:59:59.999999'"
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_KINDS = {
    **dict.fromkeys(_BITS, Kind.INTEGER),
    "string": Kind.TEXT,
    "varchar": Kind.TEXT,
    "decimal": Kind.DECIMAL,
    "float": Kind.FLOAT,
    "double": Kind.FLOAT,
    "boolean": Kind.BOOLEAN,
    "date": Kind.DATE,
    "timestamp": Kind.TIMESTAMP,
    "timestamp_ntz": Kind.TIMESTAMP,
}
"""By Spark's names, without parameters; text that has a collation has a longer name."""


def column_of(type_: str, declared: str = "") -> Column:
    """A column of Spark's type.

    Args:
        type_: as Spark calls it in short.
        declared: as which other type of text it was declared, if it was: char(n) is padded with blanks.
    """
    base, _, parameters = type_.rstrip(")").partition("(")
    kind = Kind.OTHER if declared.startswith("char") else _KINDS.get(base, Kind.OTHER)
    if kind is Kind.DECIMAL:
        digits, scale = map(int, parameters.split(","))
        most = Fraction(10**digits - 1, 10**scale)
        return Column(kind, type_, NumberType(type_, -most, most, scale))
    if kind is Kind.INTEGER:
        most = Fraction(2 ** (_BITS[base] - 1) - 1)
        return Column(kind, type_, NumberType(type_, -most - 1, most))
    return Column(kind, type_)


class SparkStatement(HeadStatement):
    """What Spark says in words of its own. Its text is compared by bytes unless it has a collation."""

    text: ClassVar[str] = "STRING"
    types: ClassVar[Mapping[Kind, str]] = {**HeadStatement.types, Kind.TIMESTAMP: "TIMESTAMP_NTZ"}

    def label_types(self) -> dict[str, pa.DataType]:
        """The types of the labels, by item."""
        return {item: _label_type(self.columns[item]) for item in self.request.items}

    def listed_schema(self) -> str:
        """The listed items' columns with their types, as Spark writes a schema."""
        columns = [self.columns[item] for item in self.request.items]
        words = {**self.types, Kind.TEXT: self.text, Kind.INTEGER: "BIGINT"}
        types = [words.get(column.kind, column.type) for column in columns]
        return ", ".join(f"{name} {type_}" for name, type_ in zip(self._names, types, strict=True))

    def quoted(self, name: str) -> str:
        """What stands between double quotes is text in Spark."""
        return "`" + name.replace("`", "``") + "`"

    def label(self, column: str) -> str:
        """Text in UTF-8, which Spark does not see to; days and moments (in UTC) that Arrow and Python can hold."""
        written = self.compared(column, None)
        match self.columns[column].kind:
            case Kind.TEXT:
                return f"make_valid_utf8({written})"
            case Kind.DATE:
                return f"CASE WHEN {written} BETWEEN {_DAYS} THEN {written} END"
            case Kind.TIMESTAMP:
                return f"CASE WHEN {written} BETWEEN {_MOMENTS} THEN {written} END"
        return super().label(column)

    def present(self, column: str) -> str:
        """Days and moments that are no labels are missing."""
        if self.columns[column].kind in {Kind.DATE, Kind.TIMESTAMP}:
            return f"{self.label(column)} IS NOT NULL"
        return super().present(column)

    def compared(self, column: str, kind: Kind | None) -> str:
        """Moments as they are in UTC."""
        if self.columns[column].type == "timestamp":
            return f"CAST({self.quoted(column)} AS TIMESTAMP_NTZ)"
        return super().compared(column, kind)

    def as_text(self, name: str, column: str) -> str:
        """Moments with all their microseconds, as everywhere."""
        if self.columns[column].kind is Kind.TIMESTAMP:
            return f"date_format({name}, 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
        return super().as_text(name, column)

    def listed(self) -> str:
        """Under the name that no table has."""
        return LISTED


def _label_type(column: Column) -> pa.DataType:
    if column.kind is Kind.DECIMAL:
        digits, scale = map(int, column.type.removeprefix("decimal(").rstrip(")").split(","))
        return pa.decimal128(digits, scale)
    return {
        Kind.TEXT: pa.string(),
        Kind.INTEGER: pa.int64(),
        Kind.BOOLEAN: pa.bool_(),
        Kind.DATE: pa.date32(),
        Kind.TIMESTAMP: pa.timestamp("us"),
    }[column.kind]
