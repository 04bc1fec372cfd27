"""The canonical form of filters: filters that differ only in writing are the same query with the same noise.

WHERE keeps the rows for which a filter is true. So each condition becomes the set of values of one column for which it
is true, or under NOT the set for which it is false; missing values are in neither, and only IS NULL tests for them.
That removes NOT and SQL's third truth value. AND and OR of these sets are flattened, sets of the same column are
merged, conditions that are always true or never true are dropped, and the result is sorted and written as a filter.

Filters with equal forms match the same rows. The converse holds for filters on a single column, as far as
`cuts_around` distinguishes values, but not in general: AND and OR of different columns are not rearranged. An analyst
who writes a filter in a form that is not recognised as equal is charged again; users lose no privacy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from math import ceil, floor
from typing import Any, TypeAlias

from discreet.errors import InputError, WhereError
from discreet.head_request import (
    MAX_LISTED,
    And,
    Comparison,
    Constant,
    IsNull,
    Kind,
    Membership,
    Not,
    Operator,
    Or,
    Predicate,
)
from discreet.query.predicates import MAX_DIGITS, number_of

Cut: TypeAlias = "tuple[Any, int]"
"""A cut point in the order of values: (v, 0) is just below the value v, (v, 1) just above it."""

MAX_CONDITIONS = 1_000
"""The largest number of conditions in a canonical form; a list is one condition."""

FEW = 8
"""The largest number of consecutive integers that are written as a list; more are written as a range."""

_LISTABLE = {Kind.TEXT, Kind.INTEGER, Kind.BOOLEAN, Kind.DATE, Kind.TIMESTAMP}

NO_ROW = Or(())
"""The canonical form of filters that match no row."""

_STEPS = {Kind.INTEGER, Kind.BOOLEAN}
"""Kinds without values between v and v + 1. Other kinds are treated as having values between any two."""

_ENDS: dict[Kind, tuple[Cut | None, Cut | None]] = {Kind.TEXT: (("", 0), None), Kind.BOOLEAN: ((0, 0), (2, 0))}
"""The lower and upper end of the values of a kind, None if unbounded: no text is below ''."""

_MAX_INTEGER = 10**MAX_DIGITS - 1
"""The largest integer constant; the smallest is its negative."""


@dataclass(frozen=True, slots=True)
class _Values:
    """A set of values of one column.

    Args:
        cuts: the cuts at which membership changes, ascending.
        first: True if the values below the first cut are in the set.
        missing: True if missing values are in the set.
    """

    column: str
    kind: Kind
    cuts: tuple[Cut, ...]
    first: bool
    missing: bool = False

    def holds(self, value: Any) -> bool:  # noqa: ANN401 - as in a cut
        """Return True if *value*, or None for a missing one, is in the set."""
        if value is None:
            return self.missing
        return self.first is (bisect_right(self.cuts, (value, 0)) % 2 == 0)


@dataclass(frozen=True, slots=True)
class _Junction:
    """AND (if *conjunction*) or OR of at least two parts: sets of different columns, or junctions of the other kind."""

    conjunction: bool
    parts: tuple[_Values | _Junction, ...]


_Form: TypeAlias = "bool | _Values | _Junction"


def canonical(predicate: Predicate, columns: Mapping[str, Kind]) -> Predicate | None:
    """Return the canonical form of a filter, which matches the same rows.

    Args:
        columns: the kinds of the columns of the table that the filter is bound to.

    Returns:
        None for a filter that matches all rows, `NO_ROW` for one that matches none.

    Raises:
        WhereError: the form has more than 1,000 conditions.
    """
    form = _reduce(predicate, columns, True)
    if isinstance(form, bool):
        return None if form else NO_ROW
    written = _write(form, columns)
    if _count_conditions(written) > MAX_CONDITIONS:
        raise WhereError(f"it may have {MAX_CONDITIONS:,} conditions at most; use IN instead of many ORs")
    return written


def possible_labels(where: Predicate | None, columns: Mapping[str, Kind], domain: Any) -> Any:  # noqa: ANN401
    """Return the listed items that rows matching *where* can have; all other items have a count of 0 on any data.

    Only conditions on a single item column, joined by AND, are used, and only for labels of the column's type.

    Args:
        where: in canonical form.
        columns: the kinds of the columns of the table that the filter is bound to.
        domain: the listed items, an Arrow table with the item columns.

    Raises:
        InputError: no item is left.
    """
    form = True if where is None else _reduce(where, columns, True)
    parts = form.parts if isinstance(form, _Junction) and form.conjunction else (form,)
    for part in parts:
        if not isinstance(part, _Values) or part.column not in domain.column_names:
            continue
        labels = [_label(part.kind, label) for label in domain.column(part.column).to_pylist()]
        domain = domain.filter([label is NotImplemented or part.holds(label) for label in labels])
    if not len(domain):
        raise InputError("the filter excludes all items that are listed, so that each count is 0; change the filter")
    return domain


def listed_values(where: Predicate | None, columns: Mapping[str, Kind]) -> dict[str, list[Any]]:
    """Return all values that rows matching *where* can have, in order, by column, where the filter leaves a finite set.

    Such are `column = constant`, `column IN (constants)`, and ranges of whole numbers, which have the same form. Only
    conditions on a single column, joined by AND, are used. Dates and timestamps are ISO 8601 text. Missing values,
    decimals and floating-point numbers have no list, nor has an untyped column that is not compared with text.

    Args:
        where: in canonical form.
        columns: the kinds of the columns of the table that the filter is bound to.
    """
    form = True if where is None else _reduce(where, columns, True)
    parts = form.parts if isinstance(form, _Junction) and form.conjunction else (form,)
    listed = {}
    for part in parts:
        if not isinstance(part, _Values) or part.missing or part.kind not in _LISTABLE:
            continue
        if part.kind is not columns[part.column] and part.kind is not Kind.TEXT:
            continue
        start, end = _ENDS.get(part.kind, (None, None))
        values: list[Any] = []
        for low, high in list(pairwise([start, *part.cuts, end]))[0 if part.first else 1 :: 2]:
            if low is None or high is None or len(values) > MAX_LISTED:
                break
            if part.kind in _STEPS:
                number = bool if part.kind is Kind.BOOLEAN else int
                values += map(number, range(low[0], min(high[0], low[0] + MAX_LISTED + 1)))
            elif low[0] == high[0]:
                values.append(low[0])
            else:
                break
        else:
            if len(values) <= MAX_LISTED and all(type(value) is str or -(2**63) <= value < 2**63 for value in values):
                listed[part.column] = values
    return listed


def _label(kind: Kind, label: Any) -> Any:  # noqa: ANN401 - a label, and a value of a cut
    """Return a label as a comparable value; `NotImplemented` if it is not of *kind*, so that the engine converts it."""
    match kind, label:
        case _, None:
            return None
        case (Kind.TEXT, str()) | (Kind.BOOLEAN, bool()):
            return label
        case Kind.INTEGER, int() if not isinstance(label, bool):
            return label
        case Kind.DATE, _ if type(label).__name__ == "date":  # by name: this module must not import datetime
            return label.isoformat()
    return NotImplemented


def _reduce(predicate: Predicate, columns: Mapping[str, Kind], value: bool) -> _Form:
    """Return the form of *predicate* if *value* is True, otherwise that of the rows for which it is false."""
    match predicate:
        case Not(inner):
            return _reduce(inner, columns, not value)
        case And(parts) | Or(parts):
            return _join([_reduce(part, columns, value) for part in parts], isinstance(predicate, And) is value)
        case IsNull(column):
            return _Values(column, _read_as(columns[column], None), (), not value, value)
        case Comparison(column, operator, constant):
            return _simplify(_compare(column, _read_as(columns[column], constant.kind), operator, constant, value))
        case Membership(column, constants):
            equal: list[_Form] = [
                _compare(column, _read_as(columns[column], constant.kind), "=", constant, value)
                for constant in constants
            ]
            return _join(equal, not value)


def _read_as(column: Kind, constant: Kind | None) -> Kind:
    """Return the kind to which a column is converted for comparison with a constant, or for IS NULL (None).

    An untyped column is converted to the kind of the constant. Each conversion of it is treated as a separate column.
    """
    if column is not Kind.UNTYPED:
        return column
    if constant is None:
        return Kind.TEXT
    return Kind.FLOAT if constant in {Kind.INTEGER, Kind.DECIMAL} else constant


def _compare(column: str, kind: Kind, operator: Operator, constant: Constant, value: bool) -> _Values:
    """Return the values for which a comparison is true, or false if *value* is False."""
    below, above = cuts_around(kind, constant)
    if operator in {"=", "<>"}:
        cuts = [] if below == above else [below, above]
    else:
        cuts = [below if operator in {"<", ">="} else above]
    first = (operator in {"<>", "<", "<="}) is value
    low, high = _ENDS.get(kind, (None, None))
    if cuts and cuts[0] == low:
        cuts = cuts[1:]
        first = not first
    if cuts and cuts[-1] == high:
        cuts = cuts[:-1]
    return _Values(column, kind, tuple(cuts), first)


def cuts_around(kind: Kind, constant: Constant) -> tuple[Cut, Cut]:
    """Return the cuts below and above a constant in a column of *kind*; equal ones if no value equals the constant."""
    text = constant.text
    match kind:
        case Kind.INTEGER:
            number = Decimal(text)
            return (ceil(number), 0), (floor(number) + 1, 0)
        case Kind.BOOLEAN:
            return (int(text == "true"), 0), (int(text == "true") + 1, 0)
        case Kind.DECIMAL:
            value: Any = Decimal(text)
        case Kind.FLOAT:  # engines compare with the nearest double; -0.0 equals 0.0
            value = float(text) + 0.0
        case Kind.TIMESTAMP:
            value = (text if " " in text else f"{text} 00:00:00") if "." not in text else text.rstrip("0").rstrip(".")
        case _:  # text, and dates, which have the order of their text
            value = text
    return (value, 0), (value, 1)


def _join(forms: Iterable[_Form], conjunction: bool) -> _Form:
    """Return AND (or OR) of *forms*: flattened, with one set per column, without duplicates, sorted."""
    columns: dict[tuple[str, Kind], list[_Values]] = {}
    junctions: set[_Junction] = set()
    pending = list(forms)
    while pending:
        form = pending.pop()
        if isinstance(form, bool):
            if form is not conjunction:
                return form
        elif isinstance(form, _Values):
            columns.setdefault((form.column, form.kind), []).append(form)
        elif form.conjunction is conjunction:
            pending += form.parts
        else:
            junctions.add(form)
    parts: list[_Values | _Junction] = [*junctions]
    for sets in columns.values():
        merged = _simplify(_merge(sets, conjunction))
        if not isinstance(merged, bool):
            parts.append(merged)
        elif merged is not conjunction:
            return merged
    if len(parts) < 2:
        return parts[0] if parts else conjunction
    return _Junction(conjunction, tuple(sorted(parts, key=_sort_key)))


def _merge(sets: Sequence[_Values], conjunction: bool) -> _Values:
    """Return the intersection (or union) of sets of the same column."""
    needed = len(sets) if conjunction else 1
    changes: Counter[Cut] = Counter()
    for values in sets:
        change = -1 if values.first else 1
        for cut in values.cuts:
            changes[cut] += change
            change = -change
    count = sum(values.first for values in sets)
    first = inside = count >= needed
    cuts = []
    for cut in sorted(changes):
        count += changes[cut]
        if (count >= needed) is not inside:
            cuts.append(cut)
            inside = not inside
    missing = sum(values.missing for values in sets) >= needed
    return _Values(sets[0].column, sets[0].kind, tuple(cuts), first, missing)


def _simplify(values: _Values) -> bool | _Values:
    """Return True for a set that contains every row, False for an empty one, or else the set."""
    return values.first if not values.cuts and values.first is values.missing else values


def _sort_key(form: _Values | _Junction) -> str:
    if isinstance(form, _Junction):
        return f"~{form.conjunction} {[_sort_key(part) for part in form.parts]}"
    return f"{form.column} {form.kind.name} {form.first} {form.missing} {form.cuts}"


def _write(form: _Values | _Junction, columns: Mapping[str, Kind]) -> Predicate:
    """Convert a form to a predicate."""
    if isinstance(form, _Junction):
        return _flatten(And if form.conjunction else Or, [_write(part, columns) for part in form.parts])
    if not form.cuts and not form.first:
        return IsNull(form.column)
    if form.cuts:
        present = _write_values(form)
    elif columns[form.column] is form.kind or form.kind is Kind.TEXT:
        present = Not(IsNull(form.column))
    else:
        # In an untyped column, a text that cannot be converted to this kind is neither NULL nor a value of this kind.
        some = _constant_of(form.kind, _SOME_VALUE[form.kind])
        present = Or((Comparison(form.column, "=", some), Comparison(form.column, "<>", some)))
    return _flatten(Or, [present, IsNull(form.column)]) if form.missing else present


_SOME_VALUE: Mapping[Kind, Any] = {
    Kind.FLOAT: 0.0,
    Kind.BOOLEAN: 0,
    Kind.DATE: "2000-01-01",
    Kind.TIMESTAMP: "2000-01-01 00:00:00",
}


def _write_values(form: _Values) -> Predicate:
    """Convert the present values of a set to a predicate: ranges, a list of other values, and a list of exceptions."""
    column = form.column
    kind = form.kind
    start, end = _ENDS.get(kind, (None, None))
    segments = list(pairwise([start, *form.cuts, end]))[0 if form.first else 1 :: 2]
    runs = [[segments[0]]]  # segments with few values between them
    for before, segment in pairwise(segments):
        if _enumerated(kind, before[1], segment[0]) is None:
            runs.append([])
        runs[-1].append(segment)
    ranges: list[tuple[Cut | None, Cut | None]] = []
    listed: list[Any] = []
    left_out: list[Any] = []
    for run in runs:
        values = [_enumerated(kind, *segment) for segment in run]
        if None in values:
            ranges.append((run[0][0], run[-1][1]))
            left_out += [value for a, b in pairwise(run) for value in _enumerated(kind, a[1], b[0]) or []]
        else:
            listed += [value for some in values for value in some or []]
    parts = [_flatten(And, bounds) for bounds in (_bounds(column, kind, *limits) for limits in ranges) if bounds]
    if listed:
        parts.append(_equals_any(column, kind, listed))
    conditions = [_flatten(Or, parts)] if parts else []
    if len(left_out) == 1:
        conditions.append(Comparison(column, "<>", _constant_of(kind, left_out[0])))
    elif left_out:
        conditions.append(Not(_equals_any(column, kind, left_out)))
    return _flatten(And, conditions)


def _enumerated(kind: Kind, low: Cut | None, high: Cut | None) -> list[Any] | None:
    """Return the values between two cuts, or None if there are too many to list."""
    if low is None or high is None:
        return None
    if kind in _STEPS:
        return list(range(low[0], high[0])) if high[0] - low[0] <= FEW else None
    return [low[0]] if low[0] == high[0] else None


def _bounds(column: str, kind: Kind, low: Cut | None, high: Cut | None) -> list[Predicate]:
    """Convert a range to up to two comparisons; only integers can have a cut at a value that is no valid constant."""
    bounds: list[Predicate] = []
    end, _ = _ENDS.get(kind, (None, None))
    if low is not None and low != end:
        operator: Operator = ">" if low[1] else ">="
        if kind is Kind.INTEGER and low[0] > _MAX_INTEGER:
            operator = ">"
            low = (_MAX_INTEGER, 0)
        bounds.append(Comparison(column, operator, _constant_of(kind, low[0])))
    if high is not None:
        operator = "<=" if high[1] else "<"
        if kind is Kind.INTEGER and high[0] > -_MAX_INTEGER:
            operator = "<="
            high = (high[0] - 1, 0)
        bounds.append(Comparison(column, operator, _constant_of(kind, high[0])))
    return bounds


def _equals_any(column: str, kind: Kind, values: list[Any]) -> Comparison | Membership:
    if len(values) == 1:
        return Comparison(column, "=", _constant_of(kind, values[0]))
    return Membership(column, tuple(_constant_of(kind, value) for value in values))


def _constant_of(kind: Kind, value: Any) -> Constant:  # noqa: ANN401 - a number or a text
    """Return the constant for a value in a column of *kind*; the inverse of `cuts_around`."""
    match kind:
        case Kind.INTEGER:
            return number_of(str(abs(value)), negative=value < 0)
        case Kind.BOOLEAN:
            return Constant(kind, "true" if value else "false")
        case Kind.DECIMAL:
            return number_of(f"{value.copy_abs():f}", negative=value < 0)
        case Kind.FLOAT:  # the fewest digits that parse to this double; all of them for an integer
            digits = str(abs(int(value))) if value.is_integer() else f"{Decimal(repr(abs(value))):f}"
            return number_of(digits, negative=value < 0)
    return Constant(kind, value)


def _flatten(junction: type[And | Or], predicates: Sequence[Predicate]) -> Predicate:
    """Return AND (or OR) of at least one predicate, with nested junctions of the same type flattened."""
    parts: list[Predicate] = []
    for predicate in predicates:
        parts += predicate.predicates if isinstance(predicate, junction) else (predicate,)
    return parts[0] if len(parts) == 1 else junction(tuple(parts))


def _count_conditions(predicate: Predicate) -> int:
    match predicate:
        case And(parts) | Or(parts):
            return sum(map(_count_conditions, parts))
    return 1
