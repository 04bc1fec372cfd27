"""The request to an engine: a filter and the head to return. Each engine writes it in its own dialect."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from fractions import Fraction

TOTAL = "total"
"""Name of the label column of a query without item columns; its one value is "all"."""


class Kind(Enum):
    """The kind of value of a column or a constant, for filters and labels."""

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
class IsNull:
    """column IS NULL."""

    column: str


@dataclass(frozen=True, slots=True)
class Not:
    """NOT predicate, in SQL's three-valued logic."""

    predicate: Predicate


@dataclass(frozen=True, slots=True)
class And:
    """All of the predicates (AND); none of them is true for every row."""

    predicates: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one of the predicates (OR); none of them is true for no row."""

    predicates: tuple[Predicate, ...]


Predicate: TypeAlias = Comparison | Membership | IsNull | Not | And | Or


MOST_CHOICES = 20
"""How many upper bounds a private choice has: the smallest is about a 500,000th of the largest."""


@dataclass(frozen=True, slots=True)
class Summed:
    """A column of exact numbers to be summed, first for each user and item, then over users.

    Args:
        column: rows without a value add nothing.
        low: the least that one user adds to one item; a smaller sum is raised to it. A multiple of 10^-scale.
        high: the most that one user adds to one item; a larger sum is lowered to it. A multiple of 10^-scale.
        scale: digits after the decimal point of the column; sums are whole multiples of 10^-scale.
    """

    column: str
    low: Fraction
    high: Fraction
    scale: int = 0

    @property
    def digits(self) -> tuple[int, int]:
        """The bounds in units of the column's last digit."""
        return int(self.low * 10**self.scale), int(self.high * 10**self.scale)

    @property
    def choices(self) -> tuple[int, ...]:
        """The upper bounds to choose from privately, ascending, in units of the last digit; none if none is chosen."""
        return ()


@dataclass(frozen=True, slots=True)
class PrivatelyBounded(Summed):
    """A column to sum with an upper bound chosen privately from `choices`; *low* is 0."""

    @property
    def choices(self) -> tuple[int, ...]:
        """The declared upper bound and its halves, rounded up: `MOST_CHOICES`, or fewer if 1 is reached."""
        found = [self.digits[1]]
        while found[-1] > 1 and len(found) < MOST_CHOICES:
            found.append(-(-found[-1] // 2))
        return tuple(reversed(found))


Period: TypeAlias = Literal["hour", "day", "week", "month"]

LARGEST_BINNED = 10**15
"""The largest magnitude of a number that falls into a bin; a larger one has none, and counts as missing."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A column computed from one of the table: the start of a value's period, in UTC, or of its bin.

    Weeks begin on Monday. Bins begin at the multiples of their width.

    Args:
        each: a period, or the width of bins, from 1 to `LARGEST_BINNED`.
    """

    name: str
    column: str
    each: Period | int

    @property
    def kind(self) -> Kind:
        """The kind of the computed column."""
        if isinstance(self.each, int):
            return Kind.INTEGER
        return Kind.TIMESTAMP if self.each == "hour" else Kind.DATE

    def type_error(self, held: Kind) -> str | None:
        """Return why it cannot be computed from a column of that kind, or None."""
        fit = {Kind.INTEGER, Kind.DECIMAL, Kind.FLOAT} if isinstance(self.each, int) else {Kind.TIMESTAMP, Kind.DATE}
        if held is Kind.UNTYPED or (held in fit and not (held is Kind.DATE and self.each == "hour")):
            return None
        return f"column {self.name!r} is computed by {self.each} from column {self.column!r}, which holds {held.value}"


@dataclass(frozen=True, slots=True)
class HeadRequest:
    """The head that a mechanism needs.

    Args:
        user: the column that identifies the user of a row.
        items: the columns that together name an item; none for all rows as one item, which is always there.
        limit: dbar; the engine returns limit + 1 items if there are as many.
        where: which rows count, or None for all.
        rows_per_group: tau: 1 counts distinct users, more counts rows up to so many per user and item.
        groups_per_user: how many random items of each user to keep, or None to keep all.
        domain: the items listed in advance, an Arrow table with the item columns; items without rows count 0.
        keep_missing: True to count rows without a label under a missing label; otherwise they are left out.
        summed: a column to sum beside the counts, or None.
        derived: the columns of the items and the filter that the table does not have itself.
    """

    user: str
    items: tuple[str, ...]
    limit: int
    where: Predicate | None = None
    rows_per_group: int = 1
    groups_per_user: int | None = None
    domain: Any = None
    keep_missing: bool = False
    summed: Summed | None = None
    derived: tuple[Derived, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The label columns of the head."""
        return self.items or (TOTAL,)
