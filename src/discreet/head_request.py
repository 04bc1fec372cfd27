"""The request to an engine: a filter and the head to return. Each engine translates it to its own dialect."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any, Literal, TypeAlias

TOTAL = "total"
"""Name of the label column of a query without item columns; its one value is "all"."""


class Kind(Enum):
    """The kind of the values of a column, or of a constant, in filters and labels."""

    TEXT = "text"
    INTEGER = "whole numbers"
    DECIMAL = "decimal numbers"
    FLOAT = "floating-point numbers"
    BOOLEAN = "true or false"
    DATE = "dates"
    TIMESTAMP = "timestamps"
    UNTYPED = "text that is read as what it is compared with"
    OTHER = "values of a type that is not supported"


ColumnType: TypeAlias = Literal["text", "integer", "decimal", "boolean", "date", "timestamp", "float"]
"""The types of columns by their names in catalogs and in the API."""


def cast_option(column: str, type_: str) -> str:
    """Return the option of the command line that casts *column*, quoted for a shell."""
    return shlex.join(["--cast", f"{column}={type_}"])


def naming_error(column: str, kind: Kind, *, is_user: bool, has_cast: bool = False) -> str | None:
    """Return an error message if a column of *kind* cannot name users, or items if *is_user* is False, or None.

    Args:
        has_cast: True for a table of `discreet.scan`, whose columns can be cast by an argument; catalogs have views.
    """
    if kind is Kind.FLOAT:
        types = ("integer",) if is_user else ("integer", "decimal(18,2)")
        by = f", or for files and frames by cast= ({' or '.join(cast_option(column, type_) for type_ in types)})"
        return (
            f"column {column!r} holds floating-point numbers, and engines disagree on which of those are equal; "
            f"cast it to whole numbers, decimals or text in a view{by if has_cast else ''}"
        )
    if kind is Kind.OTHER:
        return f"column {column!r} has a type that cannot name a user or an item; cast it to text in a view"
    if kind is Kind.TIMESTAMP and is_user:
        # Files with 96-bit or nanosecond timestamps and connectors with milliseconds are cut without a trace in the
        # declared type. Two users that become one would not be protected separately.
        return (
            f"column {column!r} holds timestamps, which sources and engines cut to different precisions, so that two "
            "users could become one; cast it to text or a date in a view"
        )
    return None


Operator: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of a filter.

    Args:
        kind: TEXT, INTEGER, DECIMAL, BOOLEAN, DATE or TIMESTAMP.
        text: canonical text of the value: digits, "true" or "false", ISO 8601, or the text itself.
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
    """All of the predicates (AND); an empty AND is true for every row."""

    predicates: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one of the predicates (OR); an empty OR is true for no row."""

    predicates: tuple[Predicate, ...]


Predicate: TypeAlias = Comparison | Membership | IsNull | Not | And | Or


MAX_LISTED = 1_000
"""The largest number of items that a filter lists as the domain.

The noise of listed items grows with their number where the items of a user are not bounded. At epsilon 1, that of 1,000
counts is 10 % of 900, and an unknown domain shows counts above 66 to 988 (`Plan.expectation`), depending on the data.
"""

MAX_LENGTHS = 20
"""The largest number of bounds to choose from privately; the smallest is then 2^-19 of the largest."""

MAX_STEPS = 2**20
"""The largest upper bound of a sum whose bound is chosen privately, in steps, so that squares of sums fit an int64."""

ROW_UNIT = 2**8
"""The weight of a user's rows in an average, or of a user's sums, is a whole multiple of 1 / ROW_UNIT."""


@dataclass(frozen=True, slots=True)
class SumBounds:
    """The bounds of one user's sum of a column for one item; users' sums are clipped to them and then added up.

    With *rows*, it is for the average of the rows of an item: each value is clipped to the bounds, and the rows of a
    user and an item that are more than *rows*, or whose sum is out of bounds, count with less weight: their sum and
    their number are multiplied by the largest multiple of 1 / `ROW_UNIT` with which both are in bounds.

    Args:
        low: smaller sums are raised to it. A multiple of 10^-scale.
        high: larger sums are lowered to it. A multiple of 10^-scale.
        scale: digits after the decimal point of the column; sums are whole multiples of 10^-scale, the unit.
        private: True to bound each user's sums of all items together as well, by a bound that is chosen privately from
            `squared_lengths`; *low* is 0 then.
        column: the column to sum, whose missing values add 0; mechanisms do not read it.
        rows: tau, the most rows of a user and an item that an average counts, at least 1; None for a sum.
    """

    low: Fraction | int
    high: Fraction | int
    scale: int = 0
    private: bool = False
    column: str = ""
    rows: int | None = None

    @property
    def units(self) -> tuple[int, int]:
        """The bounds in units of the column's last digit."""
        return int(self.low * 10**self.scale), int(self.high * 10**self.scale)

    @property
    def most(self) -> int:
        """C: the most by which adding or removing one user moves a sum, in parts of the column's last digit."""
        low, high = self.units
        return self.parts * max(-low, high)

    @property
    def parts(self) -> int:
        """The parts of the last digit, and of a row, that are added up: `ROW_UNIT` for averages, otherwise 1."""
        return 1 if self.rows is None else ROW_UNIT

    @property
    def most_rows(self) -> int:
        """The most by which one user moves the number of rows of an average, in parts of a row; 0 for sums."""
        return 0 if self.rows is None else ROW_UNIT * self.rows

    @property
    def of_rows(self) -> SumBounds:
        """The bounds of the numbers of rows of an average, whose lengths are bounded privately if those of sums are."""
        return SumBounds(0, self.rows or 0, private=self.private)

    @property
    def step(self) -> int:
        """The unit of lengths, in units of the last digit: 1, or more if *high* is above `MAX_STEPS`."""
        return -(-self.units[1] // MAX_STEPS)

    def squared_lengths(self, items: int) -> tuple[int, ...]:
        """Return the squares of the bounds to choose from privately, ascending, in squared steps.

        The length of a user's sums is the root of the sum of their squares, each sum rounded up to a whole number of
        steps. The largest bound is that of *items* sums of *high*, which no user exceeds; the others are its halves,
        `MAX_LENGTHS` at most. Empty if no bound is chosen.
        """
        if not self.private:
            return ()
        squares = [items * (-(-self.units[1] // self.step)) ** 2]
        while squares[-1] > 1 and len(squares) < MAX_LENGTHS:
            squares.append(-(-squares[-1] // 4))
        return tuple(reversed(squares))


Period: TypeAlias = Literal["hour", "day", "week", "month", "quarter", "year"]

MONTHS = {"month": 1, "quarter": 3, "year": 12}
"""Periods by their numbers of months; the others have a fixed length."""

MAX_BINNED = 10**15
"""The largest magnitude of a number that has a bin; larger numbers are treated as missing."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A column computed from a column of the table: the start of the period, in UTC, or of the bin of each value.

    Weeks begin on Monday. Bins begin at the multiples of their width.

    Args:
        each: a period, or the width of bins, from 1 to `MAX_BINNED`.
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

    def type_error(self, kind: Kind) -> str | None:
        """Return an error message if it cannot be computed from a column of kind *kind*, or None."""
        fit = {Kind.INTEGER, Kind.DECIMAL, Kind.FLOAT} if isinstance(self.each, int) else {Kind.TIMESTAMP, Kind.DATE}
        if kind is Kind.UNTYPED or (kind in fit and not (kind is Kind.DATE and self.each == "hour")):
            return None
        needed = "numbers" if isinstance(self.each, int) else "dates or timestamps"
        return (
            f"column {self.name!r} is computed by {self.each} from column {self.column!r}, which holds {kind.value}; "
            f"cast it to {needed}"
        )


MAX_RUNNING_PERIODS = 3_653
"""The largest number of periods of running counts: ten years of days."""

MAX_RUNNING_GROUPS = 1_000
"""The largest number of items that a user counts for in running counts."""

MAX_TABLE_PARTS = 400
"""The largest number of parts of a table that a service keeps: of inserts into a saved one, of periods of a stream."""

RunningPeriod: TypeAlias = Literal["hour", "day", "week"]

PERIOD_HOURS: dict[str, int] = {"hour": 1, "day": 24, "week": 168}
"""The length of a period of running counts, in hours."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The order of the items of a user by their arrival, for a head of running counts (docs/running-counts.md).

    The groups_per_user items that a user keeps are the first ones, by the first period in which the user had each. So
    later rows change nothing about earlier pairs. The head has all items with enough users, and those of the domain
    that have any: it is cut off nowhere else, and the domain does not restrict what a user keeps.

    For running counts in two levels, the domain has the column *period* after the items: the period in which an item
    was listed. In the head of what is not listed, a user keeps the first of the items that were not listed before the
    user had them, and the listed items are left out. In the head of what is listed, the items compete that are in the
    domain, and a pair arrives when the user has it and it is listed: in the later of both periods.

    Args:
        period: the derived column that is the period of a row's arrival, a date or a timestamp; the filter ends it.
        least: items with fewer users are returned only if the domain lists them; at least 1.
        before: ISO 8601 text of an earlier period, whose counts are `ExactHead.before`; None for none.
        among: the items that compete for a user's places.
        reached: places of a user; `ExactHead.reached` are the numbers of users who have an item in each of them.
        of: the columns that name an item in a request without items, whose head is one row of all pairs.
    """

    period: str
    least: int
    before: str | None = None
    among: Literal["all", "unlisted", "listed"] = "all"
    reached: tuple[int, ...] = ()
    of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HeadRequest:
    """A request for the head: the counts of the largest items, and the rows to count.

    Args:
        user: the column that identifies the user of a row.
        items: the columns that together name an item; empty for all rows as one item, which is always returned.
        limit: dbar; the engine returns limit + 1 items of each segment, or all if there are fewer.
        where: the filter, or None for all rows.
        rows_per_group: tau: 1 counts distinct users, more counts rows, at most tau per user and item.
        groups_per_user: the number of random items of each user to keep, or None to keep all.
        domain: the items listed in advance, an Arrow table with the item columns; items without rows count 0.
        keep_missing: True to count rows without a label under a missing label; otherwise they are left out.
        summed: a column to sum in addition to the counts, with its bounds, or None.
        derived: computed columns that the items or the filter use.
        each: the first of the items, whose labels are the segments; empty for one head over all rows. A user with rows
            in several segments counts in one of them, chosen at random.
        segments: the segments listed in advance, an Arrow table with the columns of *each*; no others are counted.
        arrivals: the period of arrival, by which groups_per_user items of each user are kept; None to keep random ones.
    """

    user: str
    items: tuple[str, ...]
    limit: int
    where: Predicate | None = None
    rows_per_group: int = 1
    groups_per_user: int | None = None
    domain: Any = None
    keep_missing: bool = False
    summed: SumBounds | None = None
    derived: tuple[Derived, ...] = ()
    each: tuple[str, ...] = ()
    segments: Any = None
    arrivals: Arrivals | None = None

    @property
    def listed(self) -> Any:  # noqa: ANN401 - an Arrow table
        """The labels listed in advance, with the first or all of the item columns; None if nothing is listed."""
        return self.segments if self.domain is None else self.domain

    @property
    def squared_lengths(self) -> tuple[int, ...]:
        """The squares of the bounds to choose the bound of a user's sums from, ascending; empty if none is chosen."""
        return () if self.summed is None else self.summed.squared_lengths(self._most_items)

    @property
    def squared_row_lengths(self) -> tuple[int, ...]:
        """The same for a user's numbers of rows of averages."""
        summed = self.summed
        return () if summed is None or summed.rows is None else summed.of_rows.squared_lengths(self._most_items)

    @property
    def _most_items(self) -> int:
        """The largest number of items of the head that one user has."""
        if not self.items:
            return 1
        return self.limit if self.groups_per_user is None else min(self.limit, self.groups_per_user)

    @property
    def labels(self) -> tuple[str, ...]:
        """The label columns of the head."""
        return self.items or (TOTAL,)

    @property
    def paired(self) -> tuple[str, ...]:
        """The columns that name the item of a pair: the items, or for a single row those of `Arrivals.of`."""
        return self.items if self.arrivals is None else self.items or self.arrivals.of
