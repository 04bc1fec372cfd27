"""SQL for heads: one form of statement for all engines, so that their heads are identical to the byte.

**The rule**: no value of a row decides whether a statement fails, or how. Whether there is an answer, and which error,
would reveal one user without noise. So the generated SQL is total:

- no value of a column is ever cast to the type of a constant: constants are fitted to the column's type (`fit`);
- casts of columns cannot fail, by the declared types, or are TRY_CAST;
- sums are of exact numbers that cannot overflow, by the declared type (`check_sum`), and totals saturate;
- dates and timestamps outside the years 1 to 9999, which Arrow and Python cannot hold, are missing values;
- periods and bins are computed from values that were seen to be in range;
- an expression that cannot be made total is refused by its declared type, before a row is read.

No text of an analyst enters a statement unquoted: names are quoted, constants are bound or checked literals.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import ClassVar

from discreet.errors import InputError, UnknownColumn
from discreet.head_request import (
    MAX_BINNED,
    ROW_UNIT,
    And,
    Arrivals,
    Comparison,
    Constant,
    Derived,
    HeadRequest,
    IsNull,
    Kind,
    Membership,
    Not,
    Or,
    Period,
    Predicate,
    SumBounds,
)
from discreet.values import MAX_COUNT

_SUMMED_DIGITS = 20
"""Digits of numbers that can be summed: the sum of 10^18 of them fits the decimals of every engine."""

_SCALED_DIGITS = 36
"""Limit on a decimal type's precision plus its scale: a value times 10^scale has that many digits."""

MAX_FRAMED_LENGTH = 10_000
"""Longest label or user, in bytes of UTF-8, that enters the order of a user's items itself and not as its MD5."""

_MOMENTS = (Kind.DATE, Kind.TIMESTAMP)
_LAST = {Kind.DATE: "9999-12-31", Kind.TIMESTAMP: "9999-12-31 23:59:59.999999"}
_NEVER = "<>"  # a column compared with itself: NULL stays NULL
_ALWAYS = "="


@dataclass(frozen=True, slots=True)
class NumberType:
    """The range of an exact numeric column: multiples of 10^-scale from least to most.

    Args:
        least: smallest value.
        most: largest value.
        scale: digits after the decimal point.
    """

    name: str
    least: Fraction
    most: Fraction
    scale: int = 0


def integer_type(name: str, bits: int, *, signed: bool = True) -> NumberType:
    """Return the type of integers of *bits* bits."""
    most = Fraction(2 ** (bits - signed) - 1)
    return NumberType(name, -most - 1 if signed else Fraction(0), most)


def decimal_type(name: str, digits: int, scale: int) -> NumberType:
    """Return the type of decimals of *digits* digits, *scale* of them after the decimal point."""
    most = Fraction(10**digits - 1, 10**scale)
    return NumberType(name, -most, most, scale)


@dataclass(frozen=True, slots=True)
class EngineColumn:
    """A column of a table in an engine.

    Args:
        type: the engine's own name of the type, with parameters.
        number: the range of an exact number, else None.
    """

    kind: Kind
    type: str
    number: NumberType | None = None


class Columns(dict[str, EngineColumn]):
    """The columns of a table by name, in order; a missing one raises `UnknownColumn`."""

    def __missing__(self, name: str) -> EngineColumn:
        raise UnknownColumn(name, self)


def quoted(name: str) -> str:
    """Return *name* as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """Return *text* as an SQL literal, for statements without parameters."""
    return "'" + text.replace("'", "''") + "'"


def fit(operator: str, value: Fraction, number: NumberType) -> tuple[str, str | None]:
    """Return an equivalent comparison with a number that the column's type can hold.

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


def check_sum(name: str, column: EngineColumn) -> None:
    """Raise `InputError` unless a column can be summed.

    Raises:
        InputError: its type is not an exact number, or has too many digits.
    """
    number = column.number
    digits = math.inf if number is None else len(str(int(number.most * 10**number.scale)))
    if number is None or digits > _SUMMED_DIGITS or digits + number.scale > _SCALED_DIGITS:
        too_long = (
            f"its numbers may have {_SUMMED_DIGITS} digits at most, and {_SCALED_DIGITS} with those after the decimal "
            "point counted twice"
        )
        why = "it does not hold exact numbers" if number is None else too_long
        raise InputError(f"column {name!r} cannot be summed: {why}; cast it to DECIMAL(18, 2), for example, in a view")


def number_columns(request: HeadRequest) -> list[str]:
    """Return the numeric columns that the statement for a head selects after the labels.

    Returns:
        n (counts); b (counts of an earlier period) and v0, v1, ... (`ExactHead.reached`), if arrivals have them; t
        (sums), if a column is summed; r (rows), if it is averaged; and if its bound is chosen privately, t0, t1, ...
        (`ExactHead.scaled`), v0, v1, ... (`ExactHead.users`, the same in every row), and for rows of averages r0, ...
        and vr0, ... in the same way.
    """
    if request.arrivals is not None:
        names = ["n"] if request.arrivals.before is None else ["n", "b"]
        return names + [f"v{n}" for n in range(len(request.arrivals.reached))]
    names = ["n"] if request.summed is None else ["n", "t"]
    names += [] if request.summed is None or request.summed.rows is None else ["r"]
    names += [f"{name}{n}" for name in ("t", "v") for n in range(len(request.squared_lengths))]
    return names + [f"{name}{n}" for name in ("r", "vr") for n in range(len(request.squared_row_lengths))]


class HeadStatement:
    """The statement for a head in standard SQL; engines override the parts where their dialect differs.

    From the inside out, it selects the rows, of a single segment for each user; from them the pairs of a user and an
    item, unless only distinct users are counted; from the pairs the count of each item; and of those the largest, of
    each segment, with ties in order of the labels.

    Args:
        seed: selects the random items that are kept of each user, where their number is bounded.

    Attributes:
        names: the columns of labels: i0, i1, ...
        items: these names, separated by commas.
        parameters: the values of the placeholders written so far, in order.
        names_listed: the columns of the relation of listed items or segments: i0, i1, ...; empty if none are listed.
    """

    placeholder: ClassVar[str] = "?"
    text: ClassVar[str] = "VARCHAR"
    double: ClassVar[str] = "DOUBLE"
    types: ClassVar[Mapping[Kind, str]] = {
        Kind.DATE: "DATE",
        Kind.TIMESTAMP: "TIMESTAMP",
        Kind.BOOLEAN: "BOOLEAN",
    }

    def __init__(self, request: HeadRequest, relation: str, columns: Mapping[str, EngineColumn], seed: bytes) -> None:
        self.request = request
        self._derived = {derived.name: derived for derived in request.derived}
        computed = {derived.name: self._describe_derived(derived, columns) for derived in request.derived}
        self.columns: Mapping[str, EngineColumn] = ChainMap(computed, columns)  # type: ignore[arg-type]
        self.parameters: list[str] = []
        self._relation = relation
        self._seed = seed
        self.names = [f"i{n}" for n in range(len(request.paired))]
        self.items = ", ".join(self.names)
        self._leading = "".join(f"{name}, " for name in self.names)
        self._grouped = f" GROUP BY {self.items}" if self.names else ""
        self._segment = ", ".join(self.names[: len(request.each)])
        listed = [] if request.listed is None else request.listed.column_names
        self.names_listed = [f"i{n}" for n in range(len(listed))]

    def write(self) -> str:
        """Return the statement. It selects i0, i1, ... (labels) and the columns of `number_columns`."""
        if self.request.arrivals is not None:
            return self._arrived(self.request.arrivals)
        counts = self._counts(self.rows())
        request = self.request
        if not self.names:
            return counts
        if not request.each:
            return f"{counts} ORDER BY n DESC, {self.ordered()} LIMIT {request.limit + 1}"
        place = f"row_number() OVER (PARTITION BY {self._segment} ORDER BY n DESC, {self.ordered()}) AS place"
        selected = f"{self._leading}{', '.join(number_columns(request))}"
        ranked = f"SELECT h.*, {place} FROM ({counts}) AS h"
        head = f"SELECT {selected} FROM ({ranked}) AS s WHERE place <= {request.limit + 1}"
        return f"{head} ORDER BY {self._segment}, n DESC, {self.ordered()}"

    def rows(self) -> str:
        """Return a SELECT of the counted rows: i0, i1, ... (labels), u (users) and, if a column is summed, x.

        It leaves out rows that fail the filter, have no user, or have an item or a segment that is not listed; and for
        a request of segments, all rows of a user but those of one segment.
        """
        rows = self._listed_rows()
        if not self.request.each:
            return rows
        # The segment is one of those that the user's counted rows have. The rows are selected twice, because engines
        # would write out a common table expression that is read twice; the join has one segment of each user even if
        # the data changes between the two.
        segments = f"SELECT DISTINCT {self._segment}, u FROM ({self._listed_rows()}) AS r"
        chosen = f"SELECT {self._segment}, u FROM ({self._bounded(segments, 1, self._segment)}) AS k"
        value = "" if self.request.summed is None else ", x"
        return f"SELECT {self.items}, u{value} FROM ({rows}) AS a JOIN ({chosen}) AS k USING (u, {self._segment})"

    def _listed_rows(self) -> str:
        """Return a SELECT of the rows that pass the filter and have a user and listed labels."""
        request = self.request
        needed = (request.user,) if request.keep_missing else (request.user, *request.paired)
        needed = needed if request.arrivals is None else (*needed, request.arrivals.period)
        conditions = [self.present(column) for column in needed]
        if request.where is not None:
            conditions.append(self.filtered(request.where))
        selected = [f"{self.label(item)} AS {name}" for item, name in zip(request.paired, self.names, strict=True)]
        selected.append(f"{self.user(request.user)} AS u")
        if request.summed is not None:
            selected.append(f"{self.summand(request.summed.column, request.summed.scale)} AS x")
        if request.arrivals is not None:
            selected.append(f"{self.value(request.arrivals.period)} AS d")
        rows = f"SELECT {', '.join(selected)} FROM {self._relation} WHERE {' AND '.join(conditions)}"
        if not self.names_listed or request.arrivals is not None:
            return rows
        value = "" if request.summed is None else ", x"
        names = ", ".join(self.names_listed)
        return f"SELECT {self.items}, u{value} FROM ({rows}) AS r JOIN {self.listed()} USING ({names})"

    # Parts that engines write differently.

    def quoted(self, name: str) -> str:
        """Return *name* as an identifier."""
        return quoted(name)

    def value(self, column: str) -> str:
        """Return the value of a column: its name, or the expression that computes a derived column."""
        if column not in self._derived:
            return self.quoted(column)
        period = self._derived[column].each
        source = self._derived[column].column
        if isinstance(period, int):
            # The value is bounded first, so that the cast cannot fail and products do not overflow.
            whole = f"CAST({self.floor(source)} AS BIGINT)"
            whole = f"CASE WHEN {self._has_bin(source)} THEN {whole} END"
            return f"({whole} - mod(mod({whole}, {period}) + {period}, {period}))"
        moment = self.compared(source, Kind.TIMESTAMP)
        source_kind = self.columns[source].kind
        in_years = self._in_years(moment, source_kind if source_kind in _MOMENTS else Kind.TIMESTAMP)
        # The moment is bounded first: Trino's planner fails to compute the start of a constant outside of these years.
        bounded = f"CASE WHEN {in_years} THEN {moment} END"
        start = self.start_of(f"CAST({bounded} AS {self.types[Kind.TIMESTAMP]})", period)
        return f"CAST({start} AS {self.columns[column].type})"

    def floor(self, column: str) -> str:
        """Return the largest whole number that is not above a number; no value of the column may make it fail."""
        return f"floor({self.compared(column, Kind.INTEGER)})"

    def start_of(self, moment: str, period: Period) -> str:
        """Return the start of the period that contains a timestamp of `types`."""
        return f"date_trunc('{period}', {moment})"

    def constant(self, text: str, type_: str | None) -> str:
        """Return the placeholder of a bound constant, cast to *type_* unless that is None, for text."""
        self.parameters.append(text)
        return self.placeholder if type_ is None else f"CAST({self.placeholder} AS {type_})"

    def moment(self, column: str) -> str:
        """Return a date or timestamp as a value comparable with those of `types`; out of range, it is NULL."""
        return self.value(column)

    def label(self, column: str) -> str:
        """Return a label as text, BIGINT, DECIMAL, BOOLEAN, DATE or TIMESTAMP, text compared by its bytes."""
        kind = self.columns[column].kind
        if kind in _MOMENTS:
            moment = self.moment(column)
            return f"CASE WHEN {self.present(column)} THEN {moment} END" if self.request.keep_missing else moment
        return f"CAST({self.value(column)} AS BIGINT)" if kind is Kind.INTEGER else self.value(column)

    def user(self, column: str) -> str:
        """Return the value that identifies a user: the column itself, because labels may be shortened or mended."""
        return self.value(column)

    def present(self, column: str) -> str:
        """Return the condition that a column is not missing in a row."""
        kind = self.columns[column].kind
        if kind not in _MOMENTS:
            return f"{self.value(column)} IS NOT NULL"
        return self._in_years(self.moment(column), kind)

    def compared(self, column: str, kind: Kind | None) -> str:
        """Return a column to compare with constants of *kind*, None for a test for NULL. NaN becomes NULL."""
        del kind
        match self.columns[column].kind:
            case Kind.FLOAT:
                return f"nullif({self.value(column)}, CAST('NaN' AS {self.double}))"
            case Kind.DATE | Kind.TIMESTAMP:
                return self.moment(column)
        return self.value(column)

    def summand(self, column: str, scale: int) -> str:
        """Return a value in units of its last digit, in a type whose sums cannot overflow.

        Raises:
            InputError: the column cannot be summed.
        """
        check_sum(column, self.columns[column])
        name = self.value(column)
        if scale:  # DuckDB multiplies decimals of up to 18 digits within 18 digits
            name = f"CAST({name} AS DECIMAL({_SUMMED_DIGITS}, {scale})) * CAST({10**scale} AS DECIMAL({scale + 1}, 0))"
        return f"CAST({name} AS DECIMAL(38, 0))"

    def ordered(self, names: Sequence[str] = ()) -> str:
        """Return the labels, or those called *names*, in ascending order, missing ones first."""
        return ", ".join(f"{name} ASC NULLS FIRST" for name in names or self.names)

    def listed(self) -> str:
        """Return a relation of the listed items or segments: columns i0, i1, ... in the types of the labels."""
        return "listed"

    def as_text(self, name: str, column: str) -> str:
        """Return the label or user *name*, selected from *column*, as text in the same form in all engines."""
        del column
        return f"CAST({name} AS {self.text})"

    def size(self, text: str) -> str:
        """Return the number of bytes of a text in UTF-8."""
        return f"octet_length({text})"

    def digest(self, text: str) -> str:
        """Return MD5 in lower-case hexadecimal digits, compared by their bytes."""
        return f"md5({text})"

    def same(self, left: str, right: str) -> str:
        """Return the condition that two labels are equal or both missing, in a form that the engine can join on."""
        return f"{left} IS NOT DISTINCT FROM {right}"

    # Derived columns.

    def _describe_derived(self, derived: Derived, columns: Mapping[str, EngineColumn]) -> EngineColumn:
        """Return the description of a derived column.

        Raises:
            InputError: the derived column cannot be computed from its column's type.
        """
        wrong = derived.type_error(columns[derived.column].kind)
        if wrong is not None:
            raise InputError(wrong)
        if derived.kind is Kind.INTEGER:
            return EngineColumn(derived.kind, "BIGINT", integer_type("BIGINT", 64))
        return EngineColumn(derived.kind, self.types[derived.kind])

    def _in_years(self, moment: str, kind: Kind) -> str:
        first, last = (f"CAST('{text}' AS {self.types[kind]})" for text in ("0001-01-01", _LAST[kind]))
        return f"({moment} BETWEEN {first} AND {last})"

    def _has_bin(self, column: str) -> str:
        """Return the condition that a number is within the range of bins."""
        value = self.compared(column, Kind.INTEGER)
        number = self.columns[column].number
        if number is None:
            return f"{value} BETWEEN -{MAX_BINNED}e0 AND {MAX_BINNED}e0"
        conditions = []
        for operator, bound in ((">=", -MAX_BINNED), ("<=", MAX_BINNED)):
            fitted, text = fit(operator, Fraction(bound), number)
            limit = value if text is None else f"CAST('{text}' AS {number.name})"
            conditions.append(f"{value} {fitted} {limit}")
        return " AND ".join(conditions)

    # Filters.

    def filtered(self, predicate: Predicate) -> str:
        """Return *predicate* as a fully parenthesised SQL condition."""
        match predicate:
            case Comparison(column) | Membership(column) if self.columns[column].kind is Kind.OTHER:
                raise InputError(f"column {column!r} has a type that cannot be compared; cast it to text in a view")
            case Comparison(column, operator, constant):
                return self._comparison(column, operator, constant)
            case Membership(column, constants):
                return self._membership(column, constants)
            case IsNull(column):
                return f"({self.compared(column, None)} IS NULL)"
            case Not(inner):
                return f"(NOT {self.filtered(inner)})"
            case And(parts):
                return "(" + " AND ".join(map(self.filtered, parts)) + ")" if parts else "(1 = 1)"
            case Or(parts):
                return "(" + " OR ".join(map(self.filtered, parts)) + ")" if parts else "(1 = 0)"

    def _comparison(self, column: str, operator: str, constant: Constant) -> str:
        written = self.compared(column, constant.kind)
        fitted_operator, fitted = self._fitted(column, operator, constant)
        return f"({written} {fitted_operator} {fitted or written})"

    def _membership(self, column: str, constants: tuple[Constant, ...]) -> str:
        listed: dict[str, list[str]] = {}
        for constant in constants:  # text in files without types is cast to the kind of each constant
            fitted = self._fitted(column, "=", constant)[1]
            listed.setdefault(self.compared(column, constant.kind), []).extend([] if fitted is None else [fitted])
        lists = [
            f"({written} IN ({', '.join(texts)}))" if texts else f"({written} {_NEVER} {written})"
            for written, texts in listed.items()
        ]
        return lists[0] if len(lists) == 1 else f"({' OR '.join(lists)})"

    def _fitted(self, column: str, operator: str, constant: Constant) -> tuple[str, str | None]:
        """Return the operator and the constant in SQL, or None to compare the column with itself."""
        number = self.columns[column].number
        if constant.kind not in {Kind.INTEGER, Kind.DECIMAL}:
            return operator, self.constant(constant.text, self.types.get(constant.kind))
        if number is None:
            return operator, self.constant(constant.text, self.double)
        operator, fitted = fit(operator, Fraction(constant.text), number)
        return operator, None if fitted is None else self.constant(fitted, number.name)

    # The structure of the statement.

    def _counts(self, rows: str) -> str:
        """Return the SELECT of `number_columns` from rows; listed items without rows count 0."""
        request = self.request
        squares = request.squared_lengths
        if request.groups_per_user is None and request.rows_per_group == 1 and request.summed is None:
            counts = f"SELECT {self._leading}count(DISTINCT u) AS n FROM ({rows}) AS r{self._grouped}"
        elif request.summed is not None and squares:
            pairs = self._with_lengths(self._pairs(rows), request.summed)
            counts = self._counts_of_pairs("p")
        else:
            counts = self._counts_of_pairs(f"({self._pairs(rows)}) AS p")
        numbers = number_columns(request)
        if request.domain is not None:
            every = f"{self.listed()} LEFT JOIN ({counts}) AS k USING ({self.items})"
            listed = (f"coalesce({name}, 0) AS {name}" for name in numbers if not name.startswith("v"))
            counts = f"SELECT {self.items}, {', '.join(listed)} FROM {every}"
        if not squares:
            return counts
        selected = f"{self._leading}{', '.join(numbers)}"
        lengths = {"l": ("v", squares), "k": ("vr", request.squared_row_lengths)}
        lengths = {length: of for length, of in lengths.items() if of[1]}
        placed = f"SELECT u, {', '.join(lengths)} FROM p GROUP BY u, {', '.join(lengths)}"
        users = (
            f"CAST(count(CASE WHEN {length} > {before} AND {length} <= {square} THEN 1 END) AS BIGINT) AS {name}{n}"
            for length, (name, of) in lengths.items()
            for n, (before, square) in enumerate(pairwise((0, *of)))
        )
        joined = f"({counts}) AS h CROSS JOIN (SELECT {', '.join(users)} FROM ({placed}) AS c) AS v"
        return f"SELECT {selected} FROM (WITH p AS ({pairs}) SELECT {selected} FROM {joined}) AS w"

    def _arrived(self, arrivals: Arrivals) -> str:
        """Return the statement for a head of running counts: each user keeps the first items that the user had.

        In the statement, u is the user, d the first period of the pair, f the period in which the item was listed, NULL
        if it was not, and place counts the items of a user in the order of d.
        """
        pairs = f"SELECT {self.items}, u, min(d) AS d FROM ({self._listed_rows()}) AS r GROUP BY {self.items}, u"
        in_levels = bool(self.names_listed) and arrivals.among != "all"
        if in_levels:
            listed = f"SELECT {self.items}, {self.names_listed[-1]} AS f FROM {self.listed()}"
            pairs = f"SELECT {self.items}, u, d, f FROM ({pairs}) AS k LEFT JOIN ({listed}) AS l USING ({self.items})"
            if arrivals.among == "listed":
                pairs = f"SELECT {self.items}, u, greatest(d, f) AS d FROM ({pairs}) AS j WHERE f IS NOT NULL"
            else:  # what was listed since keeps its places, so that others do not move into them
                pairs = f"SELECT * FROM ({pairs}) AS j WHERE f IS NULL OR d <= f"
        condition = "1 = 1"
        if self.request.groups_per_user is not None:
            groups = self.request.groups_per_user
            most = max(groups, *arrivals.reached, 0)
            pairs = self._bounded(pairs, most, self.items, "d, ", placed=bool(arrivals.reached))
            condition = f"place <= {groups}"
        if in_levels and arrivals.among == "unlisted":
            pairs = f"SELECT * FROM ({pairs}) AS w WHERE f IS NULL"
        numbers = f"count(CASE WHEN {condition} THEN 1 END) AS n"
        if arrivals.before is not None:
            type_ = self.types[self.columns[arrivals.period].kind]
            earlier = f"{condition} AND d <= CAST({text_literal(arrivals.before)} AS {type_})"
            numbers += f", count(CASE WHEN {earlier} THEN 1 END) AS b"
        for number, place in enumerate(arrivals.reached):
            numbers += f", count(CASE WHEN place = {place} THEN 1 END) AS v{number}"
        if arrivals.of:
            return f"SELECT {numbers} FROM ({pairs}) AS p"
        counts = f"SELECT {self.items}, {numbers} FROM ({pairs}) AS p GROUP BY {self.items}"
        shown = f"n >= {arrivals.least}"
        if self.names_listed and arrivals.among != "unlisted":
            listed = f"SELECT {self.items}, 1 AS l FROM {self.listed()}"
            counts = f"SELECT * FROM ({counts}) AS k LEFT JOIN ({listed}) AS l USING ({self.items})"
            shown += " OR l = 1"
        selected = f"{self.items}, {', '.join(number_columns(self.request))}"
        return f"SELECT {selected} FROM ({counts}) AS h WHERE {shown} ORDER BY n DESC, {self.ordered()}"

    def _with_lengths(self, pairs: str, summed: SumBounds) -> str:
        """Return a SELECT of the pairs with s in bounds, and l: the squared length of the user's sums, in steps.

        For an average, the sums are those that `_weighted` weighs, and k is the squared length of the numbers of rows.
        """
        kept = f"{self._leading}u, c, s"
        if summed.rows is None:
            least = f"CAST(greatest(least(coalesce(s, 0), {summed.units[1]}), 0) AS BIGINT)"
            clipped = f"SELECT {self._leading}u, c, {least} AS s FROM ({pairs}) AS q"
            added = {"l": ("s", summed.step)}
        else:
            clipped = self._weighted(pairs, summed)
            kept += ", w, m"
            added = {"l": ("w * s", summed.step * ROW_UNIT), "k": ("w * m", summed.of_rows.step * ROW_UNIT)}
        squares = ""
        for name, (value, unit) in added.items():
            steps = f"CAST(floor(CAST({value} + {unit - 1} AS {self.double}) / {unit}e0) AS BIGINT)"
            squares += f", {steps} * {steps} AS q{name}"
        lengths = "".join(
            f", CAST(least(sum(q{name}) OVER (PARTITION BY u), {MAX_COUNT}) AS BIGINT) AS {name}" for name in added
        )
        return f"SELECT {kept}{lengths} FROM (SELECT {kept}{squares} FROM ({clipped}) AS a) AS b"

    def _pairs(self, rows: str) -> str:
        """Return a SELECT of the pairs of an item and a user: c (rows) and, if a column is summed, s (its sum).

        For an average, s is the sum of the clipped values, and there is m, the number of rows that have a value.
        """
        request = self.request
        summed = self.request.summed
        value = "" if summed is None else ", sum(x) AS s"
        if summed is not None and summed.rows is not None:
            low, high = summed.units
            clipped = f"CASE WHEN x > {high} THEN {high} WHEN x < {low} THEN {low} ELSE x END"
            value = f", coalesce(sum(CAST({clipped} AS DECIMAL(38, 0))), 0) AS s, count(x) AS m"
        pairs = f"SELECT {self._leading}u, count(*) AS c{value} FROM ({rows}) AS r GROUP BY {self._leading}u"
        if request.groups_per_user is not None and request.items:
            pairs = self._bounded(pairs, request.groups_per_user, self.items)
        return pairs

    def _counts_of_pairs(self, pairs: str) -> str:
        """Return a SELECT of the numbers of each item from its pairs, each clipped to the bounds of a user."""
        request = self.request
        summed = self.request.summed
        counts = f"CAST(coalesce(sum(least(c, {request.rows_per_group})), 0) AS BIGINT) AS n"
        if summed is not None:
            low, high = summed.units
            sums = {"t": f"greatest(least(coalesce(s, 0), {high}), {low})"}
            if summed.rows is not None:
                sums = {name: f"CAST(w * {value} AS DECIMAL(38, 0))" for value, name in (("s", "t"), ("m", "r"))}
                if not summed.private:
                    pairs = f"({self._weighted(f'SELECT * FROM {pairs}', summed)}) AS g"
            bounded = [("t", "s", "l", n, square) for n, square in enumerate(request.squared_lengths)]
            bounded += [("r", "m", "k", n, square) for n, square in enumerate(request.squared_row_lengths)]
            for name, value, length, n, square in bounded:
                # The 1 that is subtracted makes up for the rounding of the quotient and the root.
                share = f"floor({ROW_UNIT}e0 * sqrt({square}e0 / CAST({length} AS {self.double})))"
                least = f"greatest(CAST({share} AS BIGINT) - 1, 0)"
                weight = f"CASE WHEN {length} <= {square} THEN {ROW_UNIT} ELSE {least} END"
                if summed.rows is not None:  # both weights in one: so the product of the rounded one is in bounds
                    weight = f"CAST(floor(CAST(w * {weight} AS {self.double}) / {ROW_UNIT}e0) AS BIGINT)"
                # As decimals: the product of a large sum and its weight is no BIGINT, and one user could have it.
                sums[f"{name}{n}"] = f"CAST({value} AS DECIMAL(20, 0)) * CAST({weight} AS DECIMAL(5, 0))"
            for name, value in sums.items():
                # The sum saturates, because one user could cause an error if a large sum raised one.
                total = f"coalesce(sum({value}), 0)"
                counts += f", CAST(greatest(least({total}, {MAX_COUNT}), {-MAX_COUNT}) AS BIGINT) AS {name}"
        return f"SELECT {self._leading}{counts} FROM {pairs}{self._grouped}"

    def _weighted(self, pairs: str, summed: SumBounds) -> str:
        """Return a SELECT of the pairs with w, the weight in parts of a row, so that w s and w m are in bounds.

        Quotients of whole numbers below 2^53 are floored exactly: others are >= 1 / divisor from a whole number, which
        is more than floats are rounded by. A sum above 2^53 gets the weight 0.
        """
        low, high = summed.units
        rows = f"CAST(floor({summed.most_rows}e0 / CAST(greatest(m, 1) AS {self.double})) AS BIGINT)"
        above, below = (
            f"CAST(floor({ROW_UNIT * bound}e0 / CAST({end} AS {self.double})) AS BIGINT)"
            for bound, end in ((high, "greatest(s, 1)"), (low, "least(s, -1)"))
        )
        sums = f"CASE WHEN s > {high} THEN {above} WHEN s < {low} THEN {below} ELSE {ROW_UNIT} END"
        # If the weight is not 0, the sum is within most, and clipping it makes its cast total.
        whole = f"CAST(greatest(least(s, {summed.most}), {-summed.most}) AS BIGINT)"
        weight = f"least({ROW_UNIT}, {rows}, {sums})"
        return f"SELECT {self._leading}u, c, {weight} AS w, {whole} AS s, m FROM ({pairs}) AS q"

    def _framed(self, text: str) -> str:
        size = self.size(text)
        # Trino cannot concatenate texts of more than a megabyte, and one label may be that long.
        short = f"CASE WHEN {size} > {MAX_FRAMED_LENGTH} THEN {self.digest(text)} ELSE {text} END"
        return f"CAST({size} AS {self.text}) || ':' || {short}"

    def _bounded(self, pairs: str, groups: int, labels: str, first: str = "", *, placed: bool = True) -> str:
        """Keep *groups* items, or segments, of each user, in an order that the seed, the user and the labels decide.

        Args:
            first: columns that decide the order before these, each with a comma.
            placed: False if only what is kept matters, and not its place.
        """
        names = labels.split(", ")
        texts = [self.as_text("u", self.request.user)]
        texts += [self.as_text(name, item) for name, item in zip(names, self.request.paired, strict=False)]
        framed = "".join(f" || coalesce({self._framed(text)}, '-')" for text in texts)
        digest = self.digest(f"'{self._seed.hex()}'{framed}")
        if not placed:  # digests take most of the time, and most users keep all they have
            pairs = f"SELECT q.*, count(*) OVER (PARTITION BY u) AS m FROM ({pairs}) AS q"
            digest = f"CASE WHEN m > {groups} THEN {digest} END"
        place = f"row_number() OVER (PARTITION BY u ORDER BY {first}{digest}, {self.ordered(names)}) AS place"
        return f"SELECT * FROM (SELECT q.*, {place} FROM ({pairs}) AS q) AS o WHERE place <= {groups}"
