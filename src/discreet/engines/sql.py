"""SQL for heads, written anew from values: names are quoted, constants are bound. No text of an analyst gets here.

Nor does a constant of an analyst ever make an engine fail on some rows and not on others, which would tell about them
for nothing: numbers are fitted to the column's type beforehand, so that no value of a column is ever cast to theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from discreet.question import Comparison, Every, Kind, Membership, Missing, Not, Some

if TYPE_CHECKING:
    from collections.abc import Callable

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


_NEVER, _ALWAYS = "<>", "="  # of a column with itself: NULL stays NULL
_CASTS = {Kind.DATE: "DATE", Kind.TIMESTAMP: "TIMESTAMP", Kind.BOOLEAN: "BOOLEAN"}


def quoted(name: str) -> str:
    """*name* as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """*text* as an SQL literal, for places that take no parameters."""
    return "'" + text.replace("'", "''") + "'"


class Conditions:
    """Filters in SQL, and the parameters they bind, in order.

    Args:
        column: how a column is written that is compared with constants of a kind (None: with none).
        number: the exact numeric type of a column, or None if it has another.
    """

    def __init__(self, column: Callable[[str, Kind | None], str], number: Callable[[str], NumberType | None]) -> None:
        self.parameters: list[str] = []
        self._column = column
        self._number = number

    def write(self, predicate: Predicate) -> str:
        """*predicate* in SQL, fully parenthesised."""
        match predicate:
            case Comparison(column, operator, constant):
                return self._comparison(column, operator, constant)
            case Membership(column, constants):
                return "(" + " OR ".join(self._comparison(column, "=", constant) for constant in constants) + ")"
            case Missing(column):
                return f"({self._column(column, None)} IS NULL)"
            case Not(inner):
                return f"(NOT {self.write(inner)})"
            case Every(parts):
                return "(" + " AND ".join(map(self.write, parts)) + ")"
            case Some(parts):
                return "(" + " OR ".join(map(self.write, parts)) + ")"

    def _comparison(self, column: str, operator: str, constant: Constant) -> str:
        written = self._column(column, constant.kind)
        number = self._number(column)
        if constant.kind not in {Kind.INTEGER, Kind.DECIMAL}:
            return f"({written} {operator} {self._bound(constant.text, _CASTS.get(constant.kind))})"
        if number is None:
            return f"({written} {operator} {self._bound(constant.text, 'DOUBLE')})"
        operator, fitted = fit(operator, Fraction(constant.text), number)
        return f"({written} {operator} {written if fitted is None else self._bound(fitted, number.name)})"

    def _bound(self, text: str, type_: str | None) -> str:
        self.parameters.append(text)
        return "?" if type_ is None else f"CAST(? AS {type_})"


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
