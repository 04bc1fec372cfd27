"""SQL for heads, written anew from values: names are quoted, constants are bound. No text of an analyst gets here.

Nor does a constant of an analyst ever make an engine fail on some rows and not on others, which would tell about them
for nothing: numbers are fitted to the column's type beforehand, so that no value of a column is ever cast to theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

from discreet.question import Comparison, Every, Kind, Membership, Missing, Not, Some

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.question import Constant, Predicate


@dataclass(frozen=True, slots=True)
class NumberType:
    """What an exact numeric column can hold: multiples of 10^-scale from least to most.

    Args:
        name: as the engine has it.
        least: smallest value.
        most: largest value.
        scale: digits behind the point.
    """

    name: str
    least: Fraction
    most: Fraction
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, as an engine describes it.

    Args:
        kind: what it holds.
        type: the engine's own name of its type, with parameters.
        number: what it can hold, if it is an exact number.
    """

    kind: Kind
    type: str
    number: NumberType | None = None


_NEVER, _ALWAYS = "<>", "="  # of a column with itself: NULL stays NULL


def quoted(name: str) -> str:
    """*name* as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """*text* as an SQL literal, for places that take no parameters."""
    return "'" + text.replace("'", "''") + "'"


class Conditions:
    """Filters in the words of standard SQL; engines override what they say otherwise.

    Args:
        columns: the table's.

    Attributes:
        parameters: what was bound so far, in order.
    """

    placeholder: ClassVar[str] = "?"
    double: ClassVar[str] = "DOUBLE"
    types: ClassVar[Mapping[Kind, str]] = {
        Kind.DATE: "DATE",
        Kind.TIMESTAMP: "TIMESTAMP",
        Kind.BOOLEAN: "BOOLEAN",
    }

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns = columns
        self.parameters: list[str] = []

    def filtered(self, predicate: Predicate) -> str:
        """*predicate* in SQL, fully parenthesised."""
        match predicate:
            case Comparison(column, operator, constant):
                return self._comparison(column, operator, constant)
            case Membership(column, constants):
                return self._membership(column, constants)
            case Missing(column):
                return f"({self.compared(column, None)} IS NULL)"
            case Not(inner):
                return f"(NOT {self.filtered(inner)})"
            case Every(parts):
                return "(" + " AND ".join(map(self.filtered, parts)) + ")" if parts else "(1 = 1)"
            case Some(parts):
                return "(" + " OR ".join(map(self.filtered, parts)) + ")" if parts else "(1 = 0)"

    def quoted(self, name: str) -> str:
        """*name* as an identifier."""
        return quoted(name)

    def compared(self, column: str, kind: Kind | None) -> str:
        """How a column is written that is compared with constants of *kind*, or with none.

        Engines disagree on what is not a number; in filters it is missing.
        """
        del kind
        name = self.quoted(column)
        if self.columns[column].kind is Kind.FLOAT:
            return f"nullif({name}, CAST('NaN' AS {self.double}))"
        return name

    def constant(self, text: str, type_: str | None) -> str:
        """A constant of a type, None for text; bound."""
        self.parameters.append(text)
        return self.placeholder if type_ is None else f"CAST({self.placeholder} AS {type_})"

    def _comparison(self, column: str, operator: str, constant: Constant) -> str:
        written = self.compared(column, constant.kind)
        fitted_operator, fitted = self._fitted(column, operator, constant)
        return f"({written} {fitted_operator} {fitted or written})"

    def _membership(self, column: str, constants: tuple[Constant, ...]) -> str:
        listed: dict[str, list[str]] = {}
        for constant in constants:  # text in files without types is read as each constant's kind
            fitted = self._fitted(column, "=", constant)[1]
            listed.setdefault(self.compared(column, constant.kind), []).extend([] if fitted is None else [fitted])
        lists = [
            f"({written} IN ({', '.join(texts)}))" if texts else f"({written} {_NEVER} {written})"
            for written, texts in listed.items()
        ]
        return lists[0] if len(lists) == 1 else f"({' OR '.join(lists)})"

    def _fitted(self, column: str, operator: str, constant: Constant) -> tuple[str, str | None]:
        """The operator and the constant in SQL, or None where the column is compared with itself."""
        number = self.columns[column].number
        if constant.kind not in {Kind.INTEGER, Kind.DECIMAL}:
            return operator, self.constant(constant.text, self.types.get(constant.kind))
        if number is None:
            return operator, self.constant(constant.text, self.double)
        operator, fitted = fit(operator, Fraction(constant.text), number)
        return operator, None if fitted is None else self.constant(fitted, number.name)


def fit(operator: str, value: Fraction, number: NumberType) -> tuple[str, str | None]:
    """A comparison with a number that the column's type can hold, true for the same values of the column.

    Returns:
        the operator and the number as text; or the operator of the column with itself that is always, or never, true.
    """
    unit = 10**number.scale
    below = Fraction(math.floor(value * unit), unit)
    if operator in {"=", "<>"} and not (below == value and number.least <= value <= number.most):
        return (_NEVER if operator == "=" else _ALWAYS), None
    if below > number.most:
        return (_ALWAYS if operator in {"<", "<="} else _NEVER), None
    if below < number.least:
        return (_ALWAYS if operator in {">", ">="} else _NEVER), None
    if below != value:
        operator = {"<": "<=", ">=": ">"}.get(operator, operator)
    whole = abs(below.numerator * (unit // below.denominator))
    digits = f"{whole // unit}.{whole % unit:0{number.scale}d}" if number.scale else str(whole)
    return operator, f"-{digits}" if below < 0 else digits
