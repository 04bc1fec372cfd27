"""SQL for heads, written anew from values: names are quoted, constants are bound. No text of an analyst gets here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.question import Comparison, Every, Kind, Membership, Missing, Not, Some

if TYPE_CHECKING:
    from collections.abc import Callable

    from discreet.question import Constant, Predicate

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
        column: how a column is written; its quoted name, unless an engine must cast it first.
    """

    def __init__(self, column: Callable[[str], str] = quoted) -> None:
        self.parameters: list[str] = []
        self._column = column

    def write(self, predicate: Predicate) -> str:
        """*predicate* in SQL, fully parenthesised."""
        match predicate:
            case Comparison(column, operator, constant):
                return f"({self._column(column)} {operator} {self._constant(constant)})"
            case Membership(column, constants):
                return f"({self._column(column)} IN ({', '.join(map(self._constant, constants))}))"
            case Missing(column):
                return f"({self._column(column)} IS NULL)"
            case Not(inner):
                return f"(NOT {self.write(inner)})"
            case Every(parts):
                return "(" + " AND ".join(map(self.write, parts)) + ")"
            case Some(parts):
                return "(" + " OR ".join(map(self.write, parts)) + ")"

    def _constant(self, constant: Constant) -> str:
        if constant.kind in {Kind.INTEGER, Kind.DECIMAL}:
            return constant.text  # a sign, digits and a point: the parser lets nothing else through
        self.parameters.append(constant.text)
        return f"CAST(? AS {_CASTS[constant.kind]})" if constant.kind in _CASTS else "?"
