"""Statements for Pinot's single-stage engine.

It has no subqueries, no parameters, and no missing values: where one is missing, a value of the schema's is stored. So
SQL's three-valued logic is worked out here, and a filter becomes conditions that are true, or not.
"""

from __future__ import annotations

import operator as operators
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from discreet.engines.pinot_cluster import column_of
from discreet.engines.sql import NumberType, fit, quoted
from discreet.errors import InputError
from discreet.question import Comparison, Every, Kind, Membership, Missing, Not, Some

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from discreet.engines.pinot_cluster import PinotColumn
    from discreet.question import Constant, HeadRequest, Operator, Predicate

Condition: TypeAlias = "str | bool"
"""SQL, or what it is for every row."""

LISTED_MOST = 20_000
"""Listed items of one column: an IN of so many is one node of Pinot's parser."""

LISTED_TUPLES_MOST = 1_000
"""Listed items of several columns: each is a branch, and Pinot's parser goes down them one in another."""

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
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MILLISECOND, _LAST_MILLISECOND = -62_135_596_800_000, 253_402_300_799_999  # of the years 1 and 9999
_FIRST_SURROGATE = "\ud800"
"""From here on UTF-16, by which Pinot compares text, is not in the order of the characters."""


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
        self.listed = listed
        self.limit = request.limit + 1 if listed is None else len(listed)
        self._check()

    @property
    def names(self) -> list[str]:
        """The columns that the answer must have, in order; another last one would show another count."""
        labels = [
            f"cast({item},'LONG')" if self._columns[item].kind is Kind.TIMESTAMP else item
            for item in self._request.items
        ]
        return [*labels, f"distinctcount({self._request.user})"]

    @property
    def types(self) -> list[str]:
        """Pinot's types of the columns that the answer must have."""
        labels = [self._columns[item].type for item in self._request.items]
        return [*("LONG" if type_ == "TIMESTAMP" else type_ for type_ in labels), "INT"]

    def write(self) -> str | None:
        """Return the statement, or None if no row can count whatever the table holds."""
        request = self._request
        kept = [self._present(column) for column in (request.user, *request.items)]
        kept += [self._in_years(column) for column in request.items if self._columns[column].kind is Kind.TIMESTAMP]
        if request.where is not None:
            kept.append(self._true(request.where))
        if self.listed is not None:
            kept.append(self._any_listed(self.listed))
        where = _every(kept)
        if where is False:
            return None
        # Without an alias: the name of the column tells what was counted.
        count = f"COUNT(DISTINCT {quoted(request.user)})"
        filtered = "" if where is True else f" WHERE {where}"
        labels = ", ".join(map(self._label, request.items))
        if not labels:
            return f"SELECT {count} FROM {quoted(self._table)}{filtered}"
        order = ", ".join(f"{self._ordered(item)} ASC" for item in request.items)
        return (
            f"SELECT {labels}, {count} FROM {quoted(self._table)}{filtered} "
            f"GROUP BY {labels} ORDER BY {count} DESC, {order} LIMIT {self.limit}"
        )

    def _check(self) -> None:
        request = self._request
        for unwanted, what in (
            (request.groups_per_user is not None, "keep a bounded number of items of each user"),
            (request.rows_per_group > 1, "count several rows of a user and an item"),
            (request.summed is not None, "add up what each user contributes"),
            (bool(request.derived), "compute columns"),
            (request.keep_missing, "keep missing labels, which it stores as if they were values"),
        ):
            if unwanted:
                raise InputError(f"Pinot cannot {what}; its single-stage engine has no subqueries")
        most = LISTED_MOST if len(request.items) == 1 else LISTED_TUPLES_MOST
        if self.listed is not None and len(self.listed) > most:
            raise InputError(f"a domain for Pinot may list {most:,} items at most")

    def _label(self, item: str) -> str:
        # Pinot writes moments in the time zone of its servers, where one hour of the year is there twice.
        return f"CAST({quoted(item)} AS LONG)" if self._columns[item].kind is Kind.TIMESTAMP else quoted(item)

    @staticmethod
    def _in_years(item: str) -> str:
        # Others do not fit into Arrow's microseconds: as in all engines, they are missing.
        return f"({quoted(item)} >= {_FIRST_MILLISECOND} AND {quoted(item)} <= {_LAST_MILLISECOND})"

    def _ordered(self, item: str) -> str:
        # Pinot compares text by UTF-16, but bytes by value.
        return f"toUtf8({quoted(item)})" if self._columns[item].kind is Kind.TEXT else self._label(item)

    def _any_listed(self, listed: pa.Table) -> Condition:
        columns = []
        for item, labels in zip(self._request.items, listed.columns, strict=True):
            column = self._columns[item]
            values = labels.cast("int64").to_pylist() if column.kind is Kind.TIMESTAMP else labels.to_pylist()
            columns.append([_stored(value, column) for value in values])
        if len(columns) == 1:
            return _member(quoted(self._request.items[0]), columns[0], negated=False)
        items = zip(*columns, strict=True)
        return _some(
            _every(
                False if text is None else f"{quoted(column)} = {text}"
                for column, text in zip(self._request.items, item, strict=True)
            )
            for item in items
        )

    def _true(self, predicate: Predicate) -> Condition:
        """Return where *predicate* is true."""
        match predicate:
            case Every(parts):
                return _every(map(self._true, parts))
            case Some(parts):
                return _some(map(self._true, parts))
            case Not(inner):
                return self._false(inner)
            case Missing(column):
                return self._absent(column)
            case Comparison(column, operator, constant):
                return self._where_present(column, operator, (constant,), self._compared(column, operator, constant))
            case Membership(column, constants):
                return self._where_present(column, "=", constants, self._listed_in(column, constants, negated=False))

    def _false(self, predicate: Predicate) -> Condition:
        """Return where *predicate* is false; where it is unknown, it is neither."""
        match predicate:
            case Every(parts):
                return _some(map(self._false, parts))
            case Some(parts):
                return _every(map(self._false, parts))
            case Not(inner):
                return self._true(inner)
            case Missing(column):
                return self._present(column)
            case Comparison(column, operator, constant):
                return self._true(Comparison(column, _OPPOSITE[operator], constant))
            case Membership(column, constants):
                return _every([self._present(column), self._listed_in(column, constants, negated=True)])

    def _where_present(
        self, name: str, operator: Operator, constants: Iterable[Constant], compared: Condition
    ) -> Condition:
        """Return a comparison that no missing value passes; a condition that is not needed costs time."""
        column = column_of(name, self._columns)
        if any(_passes(column, operator, constant) for constant in constants):
            return _every([self._present(name), compared])
        return compared

    def _present(self, name: str) -> Condition:
        """Return where a column has a value; NaN is none."""
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
        column = column_of(name, self._columns)
        if column.kind is Kind.FLOAT:
            return f"(NOT {self._present(name)})"
        return f"{quoted(name)} = {self._stored_for_missing(column)}" if column.nullable else False

    @staticmethod
    def _stored_for_missing(column: PinotColumn) -> str:
        text = column.stored or ""
        return _literal(text) if column.kind is Kind.TEXT else text

    def _compared(self, name: str, operator: str, constant: Constant) -> Condition:
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
        operator, text = fit(operator, _exact(constant), _NUMBERS[column.type])
        return operator == "=" if text is None else f"{quoted(name)} {operator} {text}"

    def _listed_in(self, name: str, constants: tuple[Constant, ...], *, negated: bool) -> Condition:
        column = column_of(name, self._columns)
        if column.kind is Kind.FLOAT:
            compared = [self._compared(name, "<>" if negated else "=", constant) for constant in constants]
            return _every(compared) if negated else _some(compared)
        if column.kind in {Kind.TEXT, Kind.BOOLEAN}:
            texts: list[str | None] = [
                _literal(constant.text) if column.kind is Kind.TEXT else constant.text for constant in constants
            ]
        else:
            texts = [fit("=", _exact(constant), _NUMBERS[column.type])[1] for constant in constants]
        return _member(quoted(name), texts, negated=negated)


def _passes(column: PinotColumn, operator: Operator, constant: Constant) -> bool:
    """Return False if what is stored for a missing value fails the comparison for certain."""
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
    """Return whether a column is among constants, of which None is one that it cannot hold."""
    listed = ", ".join(text for text in texts if text is not None)
    return f"{column} {'NOT ' if negated else ''}IN ({listed})" if listed else negated


def _literal(text: str) -> str:
    if "''" in text:
        raise InputError("Pinot cannot be given text that holds two single quotes next to each other")
    return "'" + text.replace("'", "''") + "'"


def _stored(label: str | int | bool, column: PinotColumn) -> str | None:
    """Return a listed label as a literal, or None if the column cannot hold it."""
    if isinstance(label, str):
        return _literal(label)
    if column.kind is Kind.BOOLEAN:
        return str(label).lower()
    return fit("=", Fraction(label, 1000 if column.kind is Kind.TIMESTAMP else 1), _NUMBERS[column.type])[1]


def _exact(constant: Constant) -> Fraction:
    """Return a number, or a timestamp in milliseconds since 1970."""
    if constant.kind not in {Kind.DATE, Kind.TIMESTAMP}:
        return Fraction(constant.text)
    return Fraction(
        (datetime.fromisoformat(constant.text).replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1), 1000
    )


def _float_compared(column: str, operator: str, value: float, type_: str) -> Condition:
    """Return a comparison of a floating-point column with a double."""
    with np.errstate(over="ignore"):
        near = np.float32(value)
    if type_ == "FLOAT" and float(near) != value:  # between two numbers of the column
        if operator in {"=", "<>"}:
            return operator == "<>"
        below = near if float(near) < value else np.nextafter(near, np.float32(-np.inf))
        return f"{column} {'<=' if operator in {'<', '<='} else '>'} '{float(below)!r}'"
    if value != 0:
        return f"{column} {operator} '{value!r}'"
    return _compared_with_zero(column, operator, type_)


def _compared_with_zero(column: str, operator: str, type_: str) -> Condition:
    """Return a comparison with the neighbours of zero: there are two zeros, and 0.11 finds one of them only."""
    least = repr(float(np.finfo(np.float32 if type_ == "FLOAT" else np.float64).smallest_subnormal))
    return {
        "=": f"({column} > '-{least}' AND {column} < '{least}')",
        "<>": f"({column} <= '-{least}' OR {column} >= '{least}')",
        "<": f"{column} <= '-{least}'",
        "<=": f"{column} < '{least}'",
        ">": f"{column} >= '{least}'",
        ">=": f"{column} > '-{least}'",
    }[operator]
