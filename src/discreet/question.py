"""What is asked of an engine: a filter, and the head that is wanted. Plain values; each engine renders them itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypeAlias


class Kind(Enum):
    """What a column or a constant holds, as far as filters and labels care."""

    TEXT = "text"
    INTEGER = "whole numbers"
    DECIMAL = "decimal numbers"
    FLOAT = "floating-point numbers"
    BOOLEAN = "true or false"
    DATE = "dates"
    TIMESTAMP = "timestamps"
    UNTYPED = "text that is read as what it is compared with"
    OTHER = "something else"


Operator: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of a filter.

    Args:
        kind: TEXT, INTEGER, DECIMAL, BOOLEAN, DATE or TIMESTAMP.
        text: as a canonical literal: digits, "true" or "false", ISO 8601, or the text itself.
    """

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """column OP constant."""

    column: str
    operator: Operator
    constant: Constant


@dataclass(frozen=True, slots=True)
class Membership:
    """column IN (constants)."""

    column: str
    constants: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """column IS NULL."""

    column: str


@dataclass(frozen=True, slots=True)
class Not:
    """NOT predicate, in SQL's three-valued logic."""

    predicate: Predicate


@dataclass(frozen=True, slots=True)
class Every:
    """All of the predicates (AND), at least two."""

    predicates: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """At least one of the predicates (OR), at least two."""

    predicates: tuple[Predicate, ...]


Predicate: TypeAlias = Comparison | Membership | Missing | Not | Every | Some


@dataclass(frozen=True, slots=True)
class HeadRequest:
    """The head that a mechanism needs.

    Args:
        user: the column that says whose a row is.
        items: the columns that together name an item, at least one.
        limit: dbar; the engine returns limit + 1 items if there are as many.
        where: which rows count, or None for all.
        rows_per_group: tau: 1 counts distinct users, more counts rows up to so many per user and item.
        groups_per_user: how many random items of each user to keep, or None to keep all.
        domain: the items listed in advance, an Arrow table with the item columns; items without rows count 0.
    """

    user: str
    items: tuple[str, ...]
    limit: int
    where: Predicate | None = None
    rows_per_group: int = 1
    groups_per_user: int | None = None
    domain: Any = None
