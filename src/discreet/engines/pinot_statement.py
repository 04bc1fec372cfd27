"""Statements for Pinot's single-stage engine.

It has no subqueries, no parameters, and no NULLs: it stores a default value of the schema instead. So this module
evaluates SQL's three-valued logic, and writes a filter as conditions that are only true or false.
"""

from __future__ import annotations

import math
import operator as operators
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from discreet.engines.pinot_cluster import PinotColumn, column_of
from discreet.engines.sql import NumberType, fit, quoted
from discreet.errors import InputError
from discreet.head_request import (
    MAX_BINNED,
    MONTHS,
    And,
    Comparison,
    Constant,
    Derived,
    HeadRequest,
    IsNull,
    Kind,
    Membership,
    Not,
    Operator,
    Or,
    Period,
    Predicate,
)

Condition: TypeAlias = "str | bool"
"""An SQL condition, or its value if that is the same for every row."""

MAX_LISTED = 20_000
"""Maximum number of listed items of one column, which become one IN, a single node of Pinot's parse tree."""

MAX_LISTED_TUPLES = 1_000
"""Maximum number of listed items of several columns: each nests Pinot's parse tree one level deeper."""

_OPPOSITE: dict[Operator, Operator] = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", "<=": ">", ">": "<="}
_ORDER = {
    "=": operators.eq,
    "<>": operators.ne,
    "<": operators.lt,
    ">=": operators.ge,
    "<=": operators.le,
    ">": operators.gt,
}
_NUMBERS = {
    "INT": NumberType("INT", Fraction(-(2**31)), Fraction(2**31 - 1)),
    "LONG": NumberType("LONG", Fraction(-(2**63)), Fraction(2**63 - 1)),
    "TIMESTAMP": NumberType("TIMESTAMP", Fraction(-(2**63)), Fraction(2**63 - 1)),
}
_LEAST = {"FLOAT": "-3.4028235E38", "DOUBLE": "-1.7976931348623157E308"}
_HOUR = 3_600_000
_DAY = 86_400_000
_PERIODS = {"hour": (_HOUR, 0), "day": (_DAY, 0), "week": (7 * _DAY, -3 * _DAY)}
"""Length of each period of fixed length, and the start of one, in milliseconds: 1969-12-29 was a Monday."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MILLISECOND = -62_135_596_800_000  # years 1 and 9999
_LAST_MILLISECOND = 253_402_300_799_999
_FIRST_SURROGATE = "\ud800"
"""From this character on, the order of UTF-16, by which Pinot compares text, differs from that of code points."""


class PinotStatement:
    """The statement for a head.

    Args:
        listed: the domain in the types of the labels, with columns i0, i1, ...; or None.

    Raises:
        InputError: Pinot cannot answer such a request.
    """

    def __init__(
        self, request: HeadRequest, table: str, columns: Mapping[str, PinotColumn], listed: pa.Table | None = None
    ) -> None:
        self._request = request
        self._table = table
        self._columns = columns
        self._derived = {derived.name: derived for derived in request.derived}
        self.listed = listed
        self.limit = request.limit + 1 if listed is None else len(listed)
        self._check()

    @property
    def names(self) -> list[str]:
        """The column names that the response must have, in order; the last one names the count."""
        labels = [
            f"i{n}" if item in self._derived else f"cast({item},'LONG')" if self._is_moment(item) else item
            for n, item in enumerate(self._request.items)
        ]
        return [*labels, f"distinctcount({self._request.user})"]

    @property
    def types(self) -> list[str]:
        """Pinot's types of the columns in the response."""
        labels = [
            "LONG" if item in self._derived or self._is_moment(item) else self._columns[item].type
            for item in self._request.items
        ]
        return [*labels, "INT"]

    def write(self) -> str | None:
        """Return the statement, or None if no row of any table can pass the filter."""
        request = self._request
        conditions = [self._present(column) for column in (request.user, *request.items)]
        conditions += [self._in_years(column) for column in request.items if self._is_moment(column)]
        if request.where is not None:
            conditions.append(self._true(request.where))
        if self.listed is not None:
            conditions.append(self._any_listed(self.listed))
        where = _every(conditions)
        if where is False:
            return None
        # It has no alias, because the column's name shows what was counted.
        count = f"COUNT(DISTINCT {quoted(request.user)})"
        filtered = "" if where is True else f" WHERE {where}"
        labels = ", ".join(map(self._label, request.items))
        selected = ", ".join(
            f"{self._label(item)} AS i{n}" if item in self._derived else self._label(item)
            for n, item in enumerate(request.items)
        )
        if not labels:
            return f"SELECT {count} FROM {quoted(self._table)}{filtered}"
        order = ", ".join(f"{self._ordered(item)} ASC" for item in request.items)
        return (
            f"SELECT {selected}, {count} FROM {quoted(self._table)}{filtered} "
            f"GROUP BY {labels} ORDER BY {count} DESC, {order} LIMIT {self.limit}"
        )

    def _check(self) -> None:
        """Raise `InputError` if Pinot cannot answer the request."""
        request = self._request
        for unwanted, what in (
            (bool(request.each), "keep a single segment of each user"),
            (request.arrivals is not None, "count users by the day of their arrival"),
            (request.groups_per_user is not None, "keep a bounded number of items of each user"),
            (request.rows_per_group > 1, "count several rows of a user and an item"),
            (request.summed is not None, "add up what each user contributes"),
            (request.keep_missing, "keep missing labels, which it stores as if they were values"),
        ):
            if unwanted:
                raise InputError(f"Pinot cannot {what}; its single-stage engine has no subqueries")
        for derived in request.derived:
            wrong = derived.type_error(column_of(derived.column, self._columns).kind)
            if wrong is not None:
                raise InputError(wrong)
        most = MAX_LISTED if len(request.items) == 1 else MAX_LISTED_TUPLES
        if self.listed is not None and len(self.listed) > most:
            raise InputError(f"a domain for Pinot may list {most:,} items at most")

    def _is_moment(self, item: str) -> bool:
        return item not in self._derived and self._columns[item].kind is Kind.TIMESTAMP

    def _label(self, item: str) -> str:
        if item in self._derived:
            return self._computed(self._derived[item])
        # Pinot writes timestamps in its servers' time zone, in which one hour of the year may occur twice.
        return f"CAST({quoted(item)} AS LONG)" if self._is_moment(item) else quoted(item)

    def _computed(self, derived: Derived) -> str:
        """Return the SQL of a derived label, used only for rows that have one; doubles represent its values exactly."""
        column = self._columns[derived.column]
        value = quoted(derived.column)
        if column.kind is Kind.TIMESTAMP:
            value = f"CAST({value} AS LONG)"
        elif column.kind is Kind.FLOAT:
            value = f"FLOOR({value})"
        if derived.each in MONTHS:
            return f"DATETRUNC('{derived.each}', {value}, 'MILLISECONDS')"
        width, first = _bins(derived.each)
        shifted = value if first == 0 else f"({value} + {-first})"
        return f"CAST({value} - MOD(MOD({shifted}, {width}) + {width}, {width}) AS LONG)"

    @staticmethod
    def _in_years(item: str) -> str:
        # Timestamps of other years overflow Arrow's microseconds; as in all engines, they are missing.
        return f"({quoted(item)} >= {_FIRST_MILLISECOND} AND {quoted(item)} <= {_LAST_MILLISECOND})"

    def _ordered(self, item: str) -> str:
        # Pinot orders text by UTF-16, but bytes by value.
        return (
            f"toUtf8({quoted(item)})" if kind_of(item, self._request, self._columns) is Kind.TEXT else self._label(item)
        )

    def _any_listed(self, listed: pa.Table) -> Condition:
        items = self._request.items
        values = {item: _as_stored(labels) for item, labels in zip(items, listed.columns, strict=True)}
        if len(items) > 1:
            rows = zip(*values.values(), strict=True)
            return _some(_every(map(self._is_listed, items, row)) for row in rows)
        (item,) = items
        if item not in self._derived:
            return _member(quoted(item), [_stored(v, self._columns[item]) for v in values[item]], negated=False)
        return _some(
            self._between(self._derived[item], *ends) for ends in _runs(values[item], self._derived[item].each)
        )

    def _is_listed(self, item: str, value: str | int | Fraction | bool) -> Condition:
        if item in self._derived:
            runs = _runs([Fraction(value)], self._derived[item].each)
            return _some(self._between(self._derived[item], *ends) for ends in runs)
        text = _stored(value, self._columns[item])
        return False if text is None else f"{quoted(item)} = {text}"

    def _true(self, predicate: Predicate) -> Condition:
        """Return the condition that *predicate* is true."""
        match predicate:
            case And(parts):
                return _every(map(self._true, parts))
            case Or(parts):
                return _some(map(self._true, parts))
            case Not(inner):
                return self._false(inner)
            case IsNull(column):
                return self._absent(column)
            case Comparison(column, operator, constant):
                return self._where_present(column, operator, (constant,), self._compared(column, operator, constant))
            case Membership(column, constants):
                return self._where_present(column, "=", constants, self._listed_in(column, constants, negated=False))

    def _false(self, predicate: Predicate) -> Condition:
        """Return the condition that *predicate* is false; an unknown one is neither true nor false."""
        match predicate:
            case And(parts):
                return _some(map(self._false, parts))
            case Or(parts):
                return _every(map(self._false, parts))
            case Not(inner):
                return self._true(inner)
            case IsNull(column):
                return self._present(column)
            case Comparison(column, operator, constant):
                return self._true(Comparison(column, _OPPOSITE[operator], constant))
            case Membership(column, constants):
                return _every([self._present(column), self._listed_in(column, constants, negated=True)])

    def _where_present(
        self, name: str, operator: Operator, constants: Iterable[Constant], compared: Condition
    ) -> Condition:
        """Return a comparison that no missing value passes, without unnecessary conditions, which cost time."""
        if name in self._derived:
            return _every([self._present(name), compared])
        column = column_of(name, self._columns)
        if any(_passes(column, operator, constant) for constant in constants):
            return _every([self._present(name), compared])
        return compared

    def _present(self, name: str) -> Condition:
        """Return the condition that a column is not missing; NaN is missing."""
        if name in self._derived:
            return _every([self._present(self._derived[name].column), *self._in_range(self._derived[name])])
        column = column_of(name, self._columns)
        if column.kind is Kind.FLOAT:
            number = f"{quoted(name)} <= 'Infinity'"
            if column.stored == "-Infinity" and column.nullable:
                return f"({number} AND {quoted(name)} >= '{_LEAST[column.type]}')"
            if column.nullable:
                return f"({number} AND {quoted(name)} <> {_literal(column.stored or '')})"
            return f"({number})"
        return f"{quoted(name)} <> {self._stored_for_missing(column)}" if column.nullable else True

    def _absent(self, name: str) -> Condition:
        if name in self._derived:
            present = self._present(name)
            return not present if isinstance(present, bool) else f"(NOT {present})"
        column = column_of(name, self._columns)
        if column.kind is Kind.FLOAT:
            return f"(NOT {self._present(name)})"
        return f"{quoted(name)} = {self._stored_for_missing(column)}" if column.nullable else False

    @staticmethod
    def _stored_for_missing(column: PinotColumn) -> str:
        text = column.stored or ""
        return _literal(text) if column.kind is Kind.TEXT else text

    def _compared(self, name: str, operator: Operator, constant: Constant) -> Condition:
        if name in self._derived:
            return self._starts(self._derived[name], operator, constant)
        column = column_of(name, self._columns)
        match column.kind:
            case Kind.TEXT:
                if operator not in {"=", "<>"} and any(character >= _FIRST_SURROGATE for character in constant.text):
                    raise InputError(
                        "Pinot compares text by UTF-16, where a constant with a character from U+D800 on has another "
                        "place; compare such constants with =, <> or IN"
                    )
                return f"{quoted(name)} {operator} {_literal(constant.text)}"
            case Kind.BOOLEAN:
                return f"{quoted(name)} {operator} {constant.text}"
            case Kind.FLOAT:
                return _float_compared(quoted(name), operator, float(Fraction(constant.text)), column.type)
        return _number_compared(quoted(name), operator, _exact(constant), column.type)

    # Conditions on derived columns are written on the source column, because the function that computes months
    # could fail on a row without one.

    def _in_range(self, derived: Derived) -> list[Condition]:
        if isinstance(derived.each, int):
            return [self._source(derived, ">=", -MAX_BINNED), self._source(derived, "<=", MAX_BINNED)]
        return [self._in_years(derived.column)]

    def _starts(self, derived: Derived, operator: Operator, constant: Constant) -> Condition:
        """Return the comparison of a derived column with a constant, for rows where it is not missing."""
        value = _exact(constant)
        period = derived.each
        start = _start_of(value, period)
        if start != value and operator in {"=", "<>"}:
            return operator == "<>"
        end = _end_of(start, period)
        match operator:
            case "=":
                return self._between(derived, start, end)
            case "<>":
                return _some([self._source(derived, "<", start), self._source(derived, ">=", end)])
            case "<" | ">=":
                return self._source(derived, operator, start if start == value else end)
        return self._source(derived, "<" if operator == "<=" else ">=", end)

    def _between(self, derived: Derived, start: int, end: int) -> Condition:
        return _every([self._source(derived, ">=", start), self._source(derived, "<", end)])

    def _source(self, derived: Derived, operator: str, value: int) -> Condition:
        column = self._columns[derived.column]
        name = quoted(derived.column)
        if column.kind is Kind.FLOAT:
            return _float_compared(name, operator, float(value), column.type)
        return _number_compared(name, operator, Fraction(value), column.type)

    def _listed_in(self, name: str, constants: tuple[Constant, ...], *, negated: bool) -> Condition:
        kind = kind_of(name, self._request, self._columns)
        if name in self._derived or kind is Kind.FLOAT:
            compared = [self._compared(name, "<>" if negated else "=", constant) for constant in constants]
            return _every(compared) if negated else _some(compared)
        if kind in {Kind.TEXT, Kind.BOOLEAN}:
            texts: list[str | None] = [
                _literal(constant.text) if kind is Kind.TEXT else constant.text for constant in constants
            ]
        else:
            texts = [fit("=", _exact(constant), _NUMBERS[self._columns[name].type])[1] for constant in constants]
        return _member(quoted(name), texts, negated=negated)


def kind_of(name: str, request: HeadRequest, columns: Mapping[str, PinotColumn]) -> Kind:
    """Return the kind of a column of the table, or of a derived column of the request.

    Raises:
        InputError: the column cannot be read.
    """
    kinds = {derived.name: derived.kind for derived in request.derived}
    return kinds[name] if name in kinds else column_of(name, columns).kind


def _bins(period: Period | int) -> tuple[int, int]:
    """Return the width of bins or of periods of fixed length, and the start of one of them."""
    return (period, 0) if isinstance(period, int) else _PERIODS[period]


def _start_of(value: Fraction, period: Period | int) -> int:
    """Return the start of the bin, or the first millisecond of the period, that contains *value*."""
    if period in MONTHS:
        month = int(np.datetime64(math.floor(value), "ms").astype("M8[M]").astype(np.int64))
        first = month - month % MONTHS[period]  # counted from January 1970, which begins a quarter and a year
        return int(np.datetime64(first, "M").astype("M8[ms]").astype(np.int64))
    width, first = _bins(period)
    return math.floor((value - first) / width) * width + first


def _end_of(start: int, period: Period | int) -> int:
    """Return the start of the next bin or period."""
    if period in MONTHS:  # no period is longer, and none is shorter than half of that
        return _start_of(Fraction(start + {1: 31, 3: 92, 12: 366}[MONTHS[period]] * _DAY), period)
    return start + _bins(period)[0]


def _runs(starts: Iterable[int | Fraction], period: Period | int) -> list[tuple[int, int]]:
    """Merge adjacent bins or periods into ranges (start, end); leave out values that start no bin or period."""
    runs: list[tuple[int, int]] = []
    for value in sorted(starts):
        start = _start_of(Fraction(value), period)
        if start != value:
            continue
        end = _end_of(start, period)
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((start, end))
    if len(runs) > MAX_LISTED_TUPLES:
        raise InputError(f"a domain for Pinot may have {MAX_LISTED_TUPLES:,} ranges of bins at most")
    return runs


def _as_stored(labels: pa.ChunkedArray) -> list[Any]:
    """Return listed labels as Pinot stores or computes them: dates and timestamps in milliseconds."""
    if pa.types.is_date32(labels.type):
        return [_DAY * day for day in labels.cast(pa.int32()).to_pylist()]
    if pa.types.is_timestamp(labels.type):
        return [Fraction(moment, 1000) for moment in labels.cast(pa.int64()).to_pylist()]
    values: list[Any] = labels.to_pylist()
    return values


def _passes(column: PinotColumn, operator: Operator, constant: Constant) -> bool:
    """Return False if the value that Pinot stores in place of NULL is known to fail the comparison."""
    if column.stored is None:
        return True
    if column.kind is Kind.TEXT:
        return operator != "=" or column.stored == constant.text
    return column.kind is not Kind.INTEGER or _ORDER[operator](Fraction(column.stored), _exact(constant))


def _every(parts: Iterable[Condition]) -> Condition:
    conditions = [part for part in parts if part is not True]
    if False in conditions:
        return False
    return f"({' AND '.join(map(str, conditions))})" if conditions else True


def _some(parts: Iterable[Condition]) -> Condition:
    conditions = [part for part in parts if part is not False]
    if True in conditions:
        return True
    return f"({' OR '.join(map(str, conditions))})" if conditions else False


def _member(column: str, texts: Iterable[str | None], *, negated: bool) -> Condition:
    """Return the condition that a column is in a list; None is a constant that the column cannot hold."""
    listed = ", ".join(text for text in texts if text is not None)
    return f"{column} {'NOT ' if negated else ''}IN ({listed})" if listed else negated


def _literal(text: str) -> str:
    if "''" in text:
        raise InputError("Pinot cannot be given text that holds two single quotes next to each other")
    return "'" + text.replace("'", "''") + "'"


def _stored(label: str | int | Fraction | bool, column: PinotColumn) -> str | None:
    """Return a listed label as a literal, or None if the column cannot hold it."""
    if isinstance(label, str):
        return _literal(label)
    if column.kind is Kind.BOOLEAN:
        return str(label).lower()
    return fit("=", Fraction(label), _NUMBERS[column.type])[1]


def _exact(constant: Constant) -> Fraction:
    """Return the exact number of a constant; a date or timestamp is in milliseconds since 1970."""
    if constant.kind not in {Kind.DATE, Kind.TIMESTAMP}:
        return Fraction(constant.text)
    return Fraction(
        (datetime.fromisoformat(constant.text).replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1), 1000
    )


def _number_compared(column: str, operator: str, value: Fraction, type_: str) -> Condition:
    """Return a comparison of an integer or timestamp column."""
    operator, text = fit(operator, value, _NUMBERS[type_])
    return operator == "=" if text is None else f"{column} {operator} {text}"


def _float_compared(column: str, operator: str, value: float, type_: str) -> Condition:
    """Return a comparison of a floating-point column with a double."""
    with np.errstate(over="ignore"):
        near = np.float32(value)
    if type_ == "FLOAT" and float(near) != value:  # the value is between two floats of the column
        if operator in {"=", "<>"}:
            return operator == "<>"
        below = near if float(near) < value else np.nextafter(near, np.float32(-np.inf))
        return f"{column} {'<=' if operator in {'<', '<='} else '>'} '{float(below)!r}'"
    if value != 0:
        return f"{column} {operator} '{value!r}'"
    return _compared_with_zero(column, operator, type_)


def _compared_with_zero(column: str, operator: str, type_: str) -> Condition:
    """Return a comparison with the floats next to zero, because Pinot 0.11 matches only one of 0.0 and -0.0."""
    least = repr(float(np.finfo(np.float32 if type_ == "FLOAT" else np.float64).smallest_subnormal))
    return {
        "=": f"({column} > '-{least}' AND {column} < '{least}')",
        "<>": f"({column} <= '-{least}' OR {column} >= '{least}')",
        "<": f"{column} <= '-{least}'",
        "<=": f"{column} < '{least}'",
        ">": f"{column} >= '{least}'",
        ">=": f"{column} > '-{least}'",
    }[operator]
