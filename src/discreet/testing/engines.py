"""A test suite for engines, which compares their heads with counts in plain Python. Needs pytest and hypothesis.

class TestMyEngine(EngineSuite):
    @contextlib.contextmanager
    def opened(self, table):
        engine = MyEngine(load(table))
        yield engine
        engine.close()

    @contextlib.contextmanager
    def slow(self, timeout_seconds):
        ...  # an engine on a view whose count takes minutes

    @contextlib.contextmanager
    def dead(self):
        ...  # an engine whose server or file disappeared after opening
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import math
import operator
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from discreet.catalog.domains import combined
from discreet.engines.base import Engine
from discreet.engines.sql import MAX_FRAMED_LENGTH
from discreet.errors import EngineError, EngineTimeout, EngineUnreachable, InputError
from discreet.head_request import (
    MAX_BINNED,
    MONTHS,
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
    Operator,
    Or,
    Period,
    Predicate,
    SumBounds,
)
from discreet.testing.outcomes import check_outcomes
from discreet.testing.pairs import ArrayPairs, gathered
from discreet.values import MAX_BASKET, MAX_ITEM_COST, WEIGHT_UNIT, UserItemPairs

_WIDE = Context(prec=38)
Row: TypeAlias = "tuple[Any, ...]"
"""An item's labels, its count, and if requested its sum, or the sum and the number of rows of its average."""

OPERATORS: dict[Operator, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_POOLS: dict[str, tuple[Kind, pa.DataType, list[Any]]] = {
    "who": (Kind.TEXT, pa.string(), ["ann", "bob", "cy", "d'e"]),
    "word": (Kind.TEXT, pa.string(), ["", "B", "a", "a ", "b'", '"', "é", "e\u0301", "ﬀ", "😀", "%", "NULL", "\\"]),
    "size": (Kind.INTEGER, pa.int64(), [-(2**63), -7, 0, 1, 7, 2**53 + 1, 2**63 - 1]),
    "price": (
        Kind.DECIMAL,
        pa.decimal128(9, 2),
        [Decimal(t) for t in ("-9999999.99", "-0.01", "0.10", "7.00", "9999999.99")],
    ),
    "day": (
        Kind.DATE,
        pa.date32(),
        [datetime.date.min, datetime.date(1969, 12, 31), datetime.date(2024, 2, 29), datetime.date.max],
    ),
    "at": (
        Kind.TIMESTAMP,
        pa.timestamp("us"),
        [
            datetime.datetime(2024, 2, 29),
            datetime.datetime(1960, 1, 1, 1, 2, 3, 4),
            datetime.datetime.min,
            datetime.datetime.max,
        ],
    ),
    "open": (Kind.BOOLEAN, pa.bool_(), [False, True]),
    "share": (Kind.FLOAT, pa.float64(), [-math.inf, -0.5, -0.0, 0.0, 0.1, 7.0, math.inf, math.nan]),
}
_TYPES = {kind: type_ for kind, type_, _ in _POOLS.values()}
ALIKE: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (
        pa.string(),
        # Case, composition, width, a dotless i, spaces, zeros in front; long texts enter an order by their digest only.
        [
            *(
                [
                    "",
                    " ",
                    "a",
                    "a ",
                    "A",
                    "ä",
                    "a\u0308",
                    "ﬀ",
                    "ff",
                    "K",
                    "k",
                    "\u212a",
                    "ſ",
                    "s",
                    "İ",
                    "i",
                    "ı",
                    "1",
                    "01",
                    "1.0",
                ]
            ),
            *(f"{'x' * MAX_FRAMED_LENGTH}{end}" for end in ("", "y", "z", " ")),
            "😀",
            "😁",
            "\ue000",
        ],
    ),
    "integer": (pa.int64(), [-(2**63), 1 - 2**63, -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 2, 2**63 - 1]),
    "decimal": (
        pa.decimal128(38, 19),
        [Decimal(sign * (10**38 - 1 - n)).scaleb(-19, _WIDE) for sign in (1, -1) for n in range(3)]
        + [Decimal(n).scaleb(-19, _WIDE) for n in (-1, 0, 1)],
    ),
    "boolean": (pa.bool_(), [False, True]),
    "date": (
        pa.date32(),
        [datetime.date.min + datetime.timedelta(n) for n in (0, 1, 719_161, 719_162)] + [datetime.date.max],
    ),
}
"""Values of every type that can name a user and an item, which an engine could take for one another."""

EDGES = [
    datetime.datetime.fromisoformat(text)
    for text in (
        *("0001-01-08", "1899-12-31", "1900-01-01", "1900-01-01 01:00", "1968-12-30", "1969-10-01", "1969-12-01"),
        *("1969-12-29", "1969-12-31 23:00", "1970-01-01", "1970-01-01 01:00", "1970-01-05", "1970-02-01", "2000-03-01"),
        *("2000-04-01", "2024-01-01", "2024-12-30", "2262-04-14", "2283-11-12", "2300-01-01", "9999-01-01"),
        *("9999-10-01", "9999-12-01", "9999-12-27", "9999-12-31 23:00"),
    )
]
"""The edges of periods: Mondays, first days of months, midnights and full hours, before and after 1970."""
_DERIVED = [
    *(Derived("start", "at", each) for each in get_args(Period)),
    *(Derived("start", "day", each) for each in get_args(Period) if each != "hour"),
    *(Derived("start", column, each) for column in ("size", "price", "share") for each in (1, 7, 10**9)),
]
KINDS = {name: kind for name, (kind, _, _) in _POOLS.items()}
"""The columns of `tables`."""

_LABELS = [name for name, kind in KINDS.items() if kind is not Kind.FLOAT and name != "who"]
_CONSTANTS: dict[Kind, list[Constant]] = {
    kind: [Constant(kind, str(value).lower() if kind is Kind.BOOLEAN else str(value)) for value in values]
    for kind, _, values in _POOLS.values()
    if kind is not Kind.FLOAT
}
_CONSTANTS[Kind.INTEGER] = [*_CONSTANTS[Kind.INTEGER], Constant(Kind.DECIMAL, "0.5"), Constant(Kind.DECIMAL, "-7.25")]
_CONSTANTS[Kind.DECIMAL] = [Constant(Kind.DECIMAL, "0.1"), Constant(Kind.INTEGER, "7"), Constant(Kind.DECIMAL, "0.105")]
_CONSTANTS[Kind.FLOAT] = [
    *(Constant(Kind.DECIMAL, text) for text in ("-0.5", "0.1")),
    *(Constant(Kind.INTEGER, text) for text in ("0", "7")),
]
_CONSTANTS[Kind.TIMESTAMP] = [*_CONSTANTS[Kind.TIMESTAMP], *_CONSTANTS[Kind.DATE]]
_SUMS = [
    None,
    SumBounds(Fraction(0), Fraction(7), column="size"),
    SumBounds(Fraction(-3), Fraction(2**31), column="size"),
    SumBounds(Fraction(1, 2), Fraction(701, 100), 2, column="price"),
    SumBounds(Fraction(-3), Fraction(5), column="size", rows=2),
    SumBounds(Fraction(0), Fraction(701, 100), 2, column="price", rows=1),
    SumBounds(Fraction(-(2**31)), Fraction(2**31), column="size", rows=2**31),
]
_SETTINGS = settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)


_SLOW = HeadRequest("who", ("item",), 10)


class _Left(Exception):
    """A client disconnected."""


def tables() -> st.SearchStrategy[pa.Table]:
    """Draw tables of up to 25 rows with the columns of `KINDS`, of few values, with duplicates, ties and NULLs."""
    row = st.tuples(*(st.sampled_from([None, *values]) for _, _, values in _POOLS.values()))
    return st.lists(row, max_size=25).map(
        lambda rows: pa.table(
            [pa.array([row[n] for row in rows], type_) for n, (_, type_, _) in enumerate(_POOLS.values())],
            names=list(_POOLS),
        )
    )


def predicates(columns: Mapping[str, Kind] = KINDS) -> st.SearchStrategy[Predicate]:
    """Draw filters on *columns* with every operator, up to eight conditions, nested."""
    return _predicates(tuple(sorted(columns.items())))


@functools.lru_cache(maxsize=64)  # validating a strategy takes longer than drawing from it
def _predicates(columns: tuple[tuple[str, Kind], ...]) -> st.SearchStrategy[Predicate]:
    def leaf(name: str, kind: Kind) -> st.SearchStrategy[Predicate]:
        constants = st.sampled_from(_CONSTANTS[kind])
        operators: list[Operator] = ["=", "<>"] if kind is Kind.BOOLEAN else list(OPERATORS)
        return (
            st.builds(Comparison, st.just(name), st.sampled_from(operators), constants)
            | st.builds(Membership, st.just(name), st.lists(constants, min_size=1, max_size=3).map(tuple))
            | st.just(IsNull(name))
        )

    def compound(inner: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
        several = st.lists(inner, min_size=2, max_size=3).map(tuple)
        return st.builds(Not, inner) | st.builds(And, several) | st.builds(Or, several)

    return st.recursive(st.one_of(*(leaf(name, kind) for name, kind in columns)), compound, max_leaves=8)


def truth(predicate: Predicate, row: Mapping[str, Any]) -> bool | None:
    """Return the value of *predicate* for *row* in SQL's three-valued logic; None is unknown."""
    match predicate:
        case IsNull(column):
            return _is_missing(row[column])
        case Comparison(column, sign, constant):
            return None if _is_missing(row[column]) else OPERATORS[sign](*_comparable(row[column], constant))
        case Membership(column, constants):
            equal = (operator.eq(*_comparable(row[column], constant)) for constant in constants)
            return None if _is_missing(row[column]) else any(equal)
        case Not(inner):
            value = truth(inner, row)
            return None if value is None else not value
        case And(parts):
            values = {truth(part, row) for part in parts}
            return False if False in values else None if None in values else True
        case Or(parts):
            values = {truth(part, row) for part in parts}
            return True if True in values else None if None in values else False


def _is_missing(value: Any) -> bool:  # noqa: ANN401 - any cell value
    return value is None or value != value  # noqa: PLR0124 - NaN is missing in filters


def _comparable(value: Any, constant: Constant) -> tuple[Any, Any]:  # noqa: ANN401 - any cell value
    match value:
        case str():
            return value.encode(), constant.text.encode()
        case bool():
            return value, constant.text == "true"
        case float():
            return value, float(constant.text)
        case datetime.datetime() | datetime.date():
            return value, type(value).fromisoformat(constant.text)
    return _exact(value), _exact(constant.text)


_exact = functools.lru_cache(10_000)(Fraction)  # cached: a filter compares the same few numbers in every row


def reference_head(table: pa.Table, request: HeadRequest, seed: bytes = b"") -> list[Row]:
    """Return the head of *table* by counting in plain Python."""
    if request.arrivals is not None:
        return _reference_arrivals(table, request, request.arrivals, seed)
    head: dict[tuple[Any, ...], list[int]] = {} if request.items else {("all",): [0, 0, 0]}
    if request.domain is not None:
        head = {tuple(row[item] for item in request.items): [0, 0, 0] for row in request.domain.to_pylist()}
    for items in _users(table, request, seed):
        for labels, rows in items.items():
            totals = head.setdefault(labels, [0, 0, 0])
            totals[0] += min(len(rows), request.rows_per_group)
            if request.summed is not None:
                for n, value in enumerate(_contribution(rows, request.summed), 1):
                    totals[n] += value
    ranked = sorted(head.items(), key=lambda item: (-item[1][0], *map(_sorted_by, item[0])))
    shown = ranked[: request.limit + 1]
    if request.each:
        segments = [tuple(row.values()) for row in request.segments.to_pylist()]
        within = ([item for item in ranked if item[0][: len(segment)] == segment] for segment in segments)
        shown = [item for part in within for item in part[: request.limit + 1]]
    columns = 1 if request.summed is None else 2 if request.summed.rows is None else 3
    return [(labels, *totals[:columns]) for labels, totals in shown]


def _reference_arrivals(table: pa.Table, request: HeadRequest, arrivals: Arrivals, seed: bytes) -> list[Row]:
    width = len(request.paired)
    listings = [] if request.domain is None else [tuple(row.values()) for row in request.domain.to_pylist()]
    listed = {labels[:width]: "".join(map(str, labels[width:])) for labels in listings}
    counts: dict[tuple[Any, ...], list[int]] = {}
    for user, items in _by_user(table, request).items():
        days = {labels: str(min(row[arrivals.period] for row in rows)) for labels, rows in items.items()}
        if listed and arrivals.among == "unlisted":
            days = {labels: day for labels, day in days.items() if day <= listed.get(labels, day)}
        if request.domain is not None and arrivals.among == "listed":
            days = {labels: max(day, listed[labels]) for labels, day in days.items() if labels in listed}
        order = sorted(days, key=lambda labels, user=user, days=days: (days[labels], digest(seed, user, labels)))  # type: ignore[misc]
        for place, labels in enumerate(order, 1):
            if labels in listed and arrivals.among == "unlisted":
                continue
            counted = place <= (request.groups_per_user or place)
            totals = counts.setdefault(() if arrivals.of else labels, [0, 0, *(0 for _ in arrivals.reached)])
            totals[0] += counted
            totals[1] += counted and arrivals.before is not None and days[labels] <= arrivals.before
            totals[2:] = [n + (place == reached) for n, reached in zip(totals[2:], arrivals.reached, strict=True)]
    if arrivals.of:
        return [(("all",), *counts.get((), [0, 0, *(0 for _ in arrivals.reached)]))]
    shown = [item for item in counts.items() if item[1][0] >= arrivals.least or item[0] in listed]
    ranked = sorted(shown, key=lambda item: (-item[1][0], *map(_sorted_by, item[0])))
    return [(labels, *totals) for labels, totals in ranked]


def _contribution(rows: list[dict[str, Any]], summed: SumBounds) -> tuple[int, ...]:
    """Return what a user's rows of an item add to its sum, in parts of the last digit, and to an average's rows."""
    low, high = summed.units
    values = _values(rows, summed)
    if summed.rows is None:
        return (min(max(sum(values), low), high),)
    weight, total, number = _weighed(values, summed)
    return weight * total, weight * number


def _values(rows: list[dict[str, Any]], summed: SumBounds) -> list[int]:
    """Return the values of the summed column in *rows* that are not missing, in units of its last digit."""
    return [int(Fraction(row[summed.column]) * 10**summed.scale) for row in rows if row[summed.column] is not None]


def _weighed(values: list[int], summed: SumBounds) -> tuple[int, int, int]:
    """Return the weight of a user's rows of an item in an average, their clipped sum, and their number."""
    low, high = summed.units
    total = sum(min(max(value, low), high) for value in values)
    weights = [ROW_UNIT, ROW_UNIT * (summed.rows or 1) // max(len(values), 1)]
    weights += [ROW_UNIT * high // total] if total > high else []
    weights += [ROW_UNIT * low // total] if total < low else []
    return min(weights), total, len(values)


def _users(table: pa.Table, request: HeadRequest, seed: bytes) -> list[dict[tuple[Any, ...], list[dict[str, Any]]]]:
    """Return for each user the counted rows of each item that the user keeps."""
    items_of_users = []
    for user, items in _by_user(table, request).items():
        if request.each:
            segment = min((labels[: len(request.each)] for labels in items), key=functools.partial(digest, seed, user))
            items = {labels: rows for labels, rows in items.items() if labels[: len(segment)] == segment}  # noqa: PLW2901
        order = sorted(items, key=functools.partial(digest, seed, user))
        items_of_users.append({labels: items[labels] for labels in order[: request.groups_per_user]})
    return items_of_users


def _by_user(table: pa.Table, request: HeadRequest) -> dict[Any, dict[tuple[Any, ...], list[dict[str, Any]]]]:
    """Return the counted rows of each user and item."""
    users: dict[Any, dict[tuple[Any, ...], list[dict[str, Any]]]] = {}
    listed = None
    if request.listed is not None and request.arrivals is None:
        listed = {tuple(row.values()) for row in request.listed.to_pylist()}
    for row in _rows(table, request):
        labels = tuple(row[item] for item in request.paired) if request.paired else ("all",)
        is_named = row[request.user] is not None and (request.keep_missing or None not in labels)
        is_named = is_named and (request.arrivals is None or row[request.arrivals.period] is not None)
        counts = request.where is None or truth(request.where, row) is True
        if is_named and counts and (listed is None or labels[: len(request.listed.column_names)] in listed):
            users.setdefault(row[request.user], {}).setdefault(labels, []).append(row)
    return users


def reference_bounds(
    table: pa.Table, request: HeadRequest, summed: SumBounds, *, of_rows: bool = False
) -> tuple[dict[Any, list[int]], list[int]]:
    """Return `ExactHead.scaled` of each item and `ExactHead.users`, in plain Python, for labels that are listed.

    Args:
        of_rows: True for `ExactHead.scaled_rows` and `ExactHead.row_users`.
    """
    squares = request.squared_row_lengths if of_rows else request.squared_lengths
    step = summed.of_rows.step if of_rows else summed.step
    sums: dict[Any, list[int]] = {}
    users = [0] * len(squares)
    for items in _users(table, request, b""):
        values = {labels: _values(rows, summed) for labels, rows in items.items()}
        clipped = {labels: (ROW_UNIT, min(max(sum(own), 0), summed.units[1])) for labels, own in values.items()}
        if summed.rows is not None:
            weighed = {labels: _weighed(own, summed) for labels, own in values.items()}
            clipped = {labels: (own, number if of_rows else total) for labels, (own, total, number) in weighed.items()}
        length = sum((-(-own * total // (ROW_UNIT * step))) ** 2 for own, total in clipped.values())
        for n, square in enumerate(squares):
            above = math.floor(ROW_UNIT * math.sqrt(float(square) / max(length, 1))) - 1
            weight = ROW_UNIT if length <= square else max(above, 0)
            for labels, (own, total) in clipped.items():
                sums.setdefault(labels, [0] * len(squares))[n] += own * weight // ROW_UNIT * total
        if length:
            users[sum(length > square for square in squares)] += 1
    return sums, users


def _rows(table: pa.Table, request: HeadRequest) -> list[dict[str, Any]]:
    """Return the rows of *table* with the derived columns added."""
    rows: list[dict[str, Any]] = table.to_pylist()
    return [row | {rule.name: start_of(row[rule.column], rule.each) for rule in request.derived} for row in rows]


def start_of(value: Any, period: Period | int) -> Any:  # noqa: ANN401 - any cell value
    """Return the start of the period or bin that contains *value*, or None."""
    if value is None:
        return None
    if isinstance(period, int):
        return math.floor(value) // period * period if abs(value) <= MAX_BINNED else None
    if period == "hour":
        return value.replace(minute=0, second=0, microsecond=0)
    day = value.date() if isinstance(value, datetime.datetime) else value
    if period in MONTHS:
        return day.replace(month=(day.month - 1) // MONTHS[period] * MONTHS[period] + 1, day=1)
    return day - datetime.timedelta(days=day.weekday() if period == "week" else 0)


def reference_pairs(table: pa.Table, request: HeadRequest, largest_basket: int = MAX_BASKET) -> ArrayPairs:
    """Return the user-item pairs of *table*, computed in plain Python."""
    numbered: dict[Any, int] = {}
    pairs = []
    listed = None if request.listed is None else {tuple(row.values()) for row in request.listed.to_pylist()}
    first = 0 if request.listed is None else len(request.listed.column_names)
    for row in _rows(table, request):
        labels = tuple(row[item] for item in request.items)
        is_named = row[request.user] is not None and (request.keep_missing or None not in labels)
        is_named = is_named and (listed is None or labels[:first] in listed)
        if is_named and (request.where is None or truth(request.where, row) is True):
            pairs.append((numbered.setdefault(row[request.user], len(numbered)), labels))
    items = sorted({labels for _, labels in pairs}, key=lambda labels: tuple(map(_sorted_by, labels)))
    place = {labels: n for n, labels in enumerate(items)}
    types = {field.name: field.type for field in table.schema}
    types |= {derived.name: _TYPES[derived.kind] for derived in request.derived}
    columns = [pa.array([labels[n] for labels in items], types[item]) for n, item in enumerate(request.items)]
    users = [user for user, _ in pairs]
    return ArrayPairs(users, [place[labels] for _, labels in pairs], pa.table(columns, request.items), largest_basket)


def check_pair_queries(pairs: UserItemPairs, reference: ArrayPairs, seed: int = 0) -> None:
    """Compare *pairs* with *reference* on random queries: few and many items, none, costs up to the largest."""
    rng = np.random.default_rng(seed)
    size = len(reference.counts)
    assert pairs.count_items() == size

    def check(actual: NDArray[np.int64], expected: NDArray[np.int64]) -> None:
        assert actual.dtype == np.int64
        assert actual.tolist() == expected.tolist()

    for bounds in ([1, 2, 3, 5, 8], [0]):
        sizes = np.array(bounds)
        check(pairs.users_by_size(sizes), reference.users_by_size(sizes))
    # Every user who is counted in an item is counted once among all users, also at the largest basket.
    everything = np.arange(size)
    ones = np.ones(size, dtype=np.int64)
    # One item first: an engine that keeps its candidates must not take them for those of all items.
    check(pairs.clipped_sums(everything[:1], ones[:1], 2**53), (WEIGHT_UNIT - 1) * reference.counts[:1])
    last = np.full(size, 17)
    fitting = pairs.users_by_scale(everything, last, ones, np.arange(1, 19))
    assert pairs.users_by_size(np.array([1])).sum() == fitting.sum()
    check(pairs.clipped_sums(everything, ones, 2**53), (WEIGHT_UNIT - 1) * reference.counts)
    for limit in (0.3, math.sqrt(5), 1e9):
        check(gathered(pairs.weighted_sums(limit)), gathered(reference.weighted_sums(limit)))
    for cap in (1, 2, 8):
        check(gathered(pairs.capped_sums(cap)), gathered(reference.capped_sums(cap)))
    for share, cost in ((0, 1), (0.5, 7), (1, MAX_ITEM_COST)):
        items = np.flatnonzero(rng.random(size) < share)
        costs = rng.integers(1, cost, len(items), endpoint=True)
        scale_bounds = np.sort(rng.integers(0, 4 * cost, 18, endpoint=True))
        for scales in (rng.integers(0, 18, len(items)), np.full(len(items), 17)):
            counted = pairs.users_by_scale(items, scales, costs, scale_bounds)
            check(counted, reference.users_by_scale(items, scales, costs, scale_bounds))
        bound = int(rng.integers(1, 3 * cost, endpoint=True))
        sums = pairs.clipped_sums(items, costs, bound)
        check(sums, reference.clipped_sums(items, costs, bound))
        shuffled = rng.permutation(items)
        labels: Any = reference.labels(shuffled)
        assert pairs.labels(shuffled).to_pylist() == labels.to_pylist()


def digest(seed: bytes, user: Any, labels: tuple[Any, ...]) -> str:  # noqa: ANN401 - any user value
    """Return the sort key of one of a user's items in the order that is the same in all engines."""
    framed = seed.hex()
    for text in map(_text, (user, *labels)):
        if text is None:
            framed += "-"
            continue
        size = len(text.encode())
        long = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() if size > MAX_FRAMED_LENGTH else text
        framed += f"{size}:{long}"
    return hashlib.md5(framed.encode(), usedforsecurity=False).hexdigest()


def _text(value: Any) -> str | None:  # noqa: ANN401 - any cell value
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case datetime.datetime():
            return value.isoformat(" ", "microseconds")
    return str(value)


def _sorted_by(label: Any) -> Any:  # noqa: ANN401 - any label value
    return (label is not None, label.encode() if isinstance(label, str) else label)


def rows_of(engine: Engine, request: HeadRequest, seed: bytes = b"") -> list[Row]:
    """Return the head that *engine* returns, as plain values."""
    head = engine.head(request, seed=seed)
    assert head.limit == request.limit
    assert head.labels.column_names == list(request.labels)
    labels = list(zip(*(column.to_pylist() for column in head.labels.columns), strict=True))
    if request.each:
        assert len(head.parts) == len(request.segments)
        ends = (0, *(head.ends or ()))
        for start, end, segment in zip(ends[:-1], ends[1:], request.segments.to_pylist(), strict=True):
            assert all(label[: len(segment)] == tuple(segment.values()) for label in labels[start:end])
    if request.arrivals is not None:
        before = np.zeros_like(head.counts) if head.before is None else head.before
        reached = np.zeros((len(labels), 0), dtype=np.int64) if head.reached is None else head.reached
        return list(zip(labels, *(column.tolist() for column in (head.counts, before, *reached.T)), strict=True))
    if head.sums is None:
        return list(zip(labels, head.counts.tolist(), strict=True))
    columns = [values.tolist() for values in (head.counts, head.sums, head.rows) if values is not None]
    return list(zip(labels, *columns, strict=True))


class EngineSuite:
    """The tests that every engine must pass. Subclasses implement how the engine reads an Arrow table.

    Attributes:
        patience_seconds: time limit for a cancelled count to end, and for the second of two counts to start.
        requests: the number of random requests of each random table; an engine that takes a second may have fewer.
    """

    patience_seconds: ClassVar[float] = 60
    requests: ClassVar[int] = 3

    def opened(self, table: pa.Table) -> AbstractContextManager[Engine]:
        """Return an engine that reads *table*, closed when the context ends."""
        raise NotImplementedError

    def slow(self, timeout_seconds: float | None) -> AbstractContextManager[Engine]:
        """Return an engine with the columns who and item, whose head takes minutes unless the time limit ends it."""
        raise NotImplementedError

    def dead(self) -> AbstractContextManager[Engine]:
        """Return an engine with the columns who and item, whose server or file disappeared after opening."""
        raise NotImplementedError

    def head(self, table: pa.Table, *items: str, **parts: Any) -> list[Row]:
        """Return the head of *table* by the engine; the user column is the first."""
        return self.heads(table, *items, each=[parts])[0]

    def heads(self, table: pa.Table, *items: str, each: Iterable[dict[str, Any]]) -> list[list[Row]]:
        """Return several heads of *table*, which is loaded only once because loading is slow."""
        results = []
        with self.opened(table) as engine:
            for parts in each:
                arguments = {"limit": 1000} | parts
                seed = arguments.pop("seed", b"")
                results.append(rows_of(engine, HeadRequest(table.column_names[0], items, **arguments), seed))
        return results

    @_SETTINGS
    @given(data=st.data(), table=tables())
    def test_random_requests_get_the_head_that_plain_counting_gives(self, data: st.DataObject, table: pa.Table) -> None:
        """Limit, filter, bounds, clipping, sums, periods, bins: duplicates, NULLs, ties and all, the head is exact."""
        items = st.lists(st.sampled_from(_LABELS), max_size=3, unique=True).map(tuple)
        with self.opened(table) as engine:
            for _ in range(2 * self.requests):
                derived = data.draw(st.lists(st.sampled_from(_DERIVED), max_size=1).map(tuple))
                kinds = KINDS | {rule.name: rule.kind for rule in derived}
                request = HeadRequest(
                    "who",
                    data.draw(items) + tuple(rule.name for rule in derived),
                    data.draw(st.sampled_from([1, 2, 5, 1000])),
                    data.draw(st.none() | predicates(kinds)),
                    data.draw(st.sampled_from([1, 2, 3, 2**31])),
                    data.draw(st.sampled_from([None, None, 1, 2])),
                    keep_missing=data.draw(st.booleans()),
                    summed=data.draw(st.sampled_from(_SUMS)),
                    derived=derived,
                )
                seed = data.draw(st.sampled_from([b"", b"s" * 32]))
                assert rows_of(engine, request, seed) == reference_head(table, request, seed)

    @_SETTINGS
    @given(table=tables(), listed=tables(), wheres=st.lists(st.none() | predicates(), min_size=2, max_size=2))
    def test_a_listed_domain_gets_all_its_counts_and_no_others(
        self, table: pa.Table, listed: pa.Table, wheres: list[Predicate | None]
    ) -> None:
        """Listed items without rows count 0; items that were not listed are left out."""
        domain = listed.select(["word", "size"]).drop_null()
        domain = domain.group_by(["word", "size"]).aggregate([])
        with self.opened(table) as engine:
            for tau, where in enumerate(wheres, 1):
                request = HeadRequest("who", ("word", "size"), max(len(domain), 1), where, tau, domain=domain)
                assert rows_of(engine, request) == reference_head(table, request)

    @_SETTINGS
    @given(data=st.data(), table=tables(), listed=tables())
    def test_random_requests_of_segments_get_the_head_of_each(
        self, data: st.DataObject, table: pa.Table, listed: pa.Table
    ) -> None:
        """Every listed segment has its own head, also an empty one, and every user counts in a single segment."""
        with self.opened(table) as engine:
            for _ in range(self.requests):
                names = data.draw(st.lists(st.sampled_from(_LABELS), min_size=1, max_size=2, unique=True).map(tuple))
                segments = listed.select(names).drop_null().group_by(list(names)).aggregate([])
                if not len(segments):
                    continue
                item = data.draw(st.sampled_from([name for name in _LABELS if name not in names]))
                labels = pa.table({item: pa.array(_POOLS[item][2][:2], _POOLS[item][1])})
                domain = data.draw(st.sampled_from([None, combined(segments, labels)]))
                request = HeadRequest(
                    "who",
                    (*names, item),
                    data.draw(st.sampled_from([1, 2, 1000] if domain is None else [2])),
                    data.draw(st.none() | predicates()),
                    data.draw(st.sampled_from([1, 2])),
                    data.draw(st.sampled_from([None, None, 1, 2])),
                    domain,
                    keep_missing=data.draw(st.booleans()),
                    summed=data.draw(st.sampled_from(_SUMS)),
                    each=names,
                    segments=segments,
                )
                seed = data.draw(st.sampled_from([b"", b"s" * 32]))
                assert rows_of(engine, request, seed) == reference_head(table, request, seed)

    @_SETTINGS
    @given(table=tables(), seed=st.integers(0, 2**32))
    def test_one_user_moves_each_count_by_no_more_than_the_bounds(self, table: pa.Table, seed: int) -> None:
        """The answers for the table and for the table without one user are neighbours, whatever is asked."""
        rng = random.Random(seed)  # noqa: S311 - of test data
        users = table["who"].to_pylist()
        user = rng.choice([*users, None])
        without = table.filter(pa.array([who is None or who != user for who in users], pa.bool_()))
        with self.opened(table) as whole, self.opened(without) as rest:
            check_outcomes(whole, rest, rng, self.requests)

    @_SETTINGS
    @given(data=st.data(), table=tables(), listed=tables())
    def test_users_count_for_their_first_items_by_arrival(
        self, data: st.DataObject, table: pa.Table, listed: pa.Table
    ) -> None:
        """Running counts: the first items of each user, by period and digest; all items that are listed or large.

        In two levels: the items that were not listed when a user had them; and those listed, in the order of arrival.
        """
        domain = listed.select(["word", "size"]).drop_null().group_by(["word", "size"]).aggregate([])
        numbers = pa.array([n % 3 for n in range(len(domain))], pa.int64())
        with self.opened(table) as engine:
            if not getattr(engine, "has_arrivals", False):
                pytest.skip("the engine has no running counts")
            for _ in range(self.requests + 1):
                rule = data.draw(st.sampled_from([rule for rule in _DERIVED if rule.each in {"hour", "day", "week"}]))
                last = data.draw(st.sampled_from(["1960-01-01 01:00:00", "2024-02-29 00:00:00"]))
                last = last if rule.each == "hour" else last[:10]
                before = data.draw(st.none() | st.just(last))
                among: Literal["all", "unlisted", "listed"] = data.draw(st.sampled_from(["all", "unlisted", "listed"]))
                moments = ["1960-01-01 01:00:00", "2024-02-28 23:00:00", "2024-02-29 00:00:00"]
                type_ = pa.timestamp("us") if rule.each == "hour" else pa.date32()
                periods = pa.array(moments).take(numbers).cast(pa.timestamp("us")).cast(type_, safe=False)
                dated = domain if among == "all" else domain.append_column("start", periods)
                arrivals = Arrivals(
                    "start",
                    data.draw(st.sampled_from([1, 2, 3])),
                    before,
                    among,
                    data.draw(st.sampled_from([(), (1,), (2, 3, 5)])),
                    data.draw(st.sampled_from([(), ("word", "size")])),
                )
                request = HeadRequest(
                    "who",
                    () if arrivals.of else ("word", "size"),
                    1000,
                    data.draw(st.none() | predicates(KINDS | {"start": rule.kind})),
                    groups_per_user=data.draw(st.sampled_from([1, 2, 5])),
                    domain=None if arrivals.of else data.draw(st.sampled_from([None, dated])),
                    derived=(rule,),
                    arrivals=arrivals,
                )
                seed = data.draw(st.sampled_from([b"", b"s" * 32]))
                # A listed item without users counts 0, whether the head has it or not.
                heads = (rows_of(engine, request, seed), reference_head(table, request, seed))
                actual, expected = ([row for row in head if any(row[1:])] for head in heads)
                assert actual == expected

    def test_a_user_with_one_item_too_many_keeps_the_first_by_digest(self) -> None:
        """Items of one day: some users have as many as count, others one more."""
        pairs = [(user, f"a{(user + n) % 5}") for user in range(40) for n in range(2 + user % 2)]
        day = [datetime.date(2024, 2, 28)] * len(pairs)
        table = pa.table({"who": [user for user, _ in pairs], "item": [item for _, item in pairs], "day": day})
        start = Derived("start", "day", "day")
        request = HeadRequest("who", ("item",), 10, groups_per_user=2, derived=(start,), arrivals=Arrivals("start", 1))
        with self.opened(table) as engine:
            if getattr(engine, "has_arrivals", False):
                assert rows_of(engine, request, b"s" * 32) == reference_head(table, request, b"s" * 32)

    def test_removing_a_user_changes_the_head_of_one_segment_at_most(self) -> None:
        """Of users with rows in up to four segments, and others in none; a user is removed by a filter."""
        pairs = [(user, f"s{(user + n) % 5}", f"a{n % 3}") for user in range(12) for n in range(user % 5)]
        columns = [list(column) for column in zip(*pairs, strict=True)]
        table = pa.table(dict(zip(("who", "segment", "item"), columns, strict=True)))
        segments = pa.table({"segment": ["s3", "empty", "s0", "s1", "s2"]})
        wheres: list[Predicate | None] = [None]
        wheres += [Comparison("who", "<>", Constant(Kind.INTEGER, str(user))) for user in range(12)]
        whole: list[list[tuple[Any, ...]]] = []
        with self.opened(table) as engine:
            for where in wheres:
                request = HeadRequest("who", ("segment", "item"), 2, where, each=("segment",), segments=segments)
                rows = rows_of(engine, request, b"s" * 32)
                heads = [[row for row in rows if row[0][0] == name] for name in segments["segment"].to_pylist()]
                whole = whole or heads
                assert sum(head != before for head, before in zip(heads, whole, strict=True)) <= 1
        assert [len(head) > 0 for head in whole] == [True, False, True, True, True]

    def test_the_segment_of_a_user_is_uniform(self) -> None:
        """6,000 users, the same 6 segments: chi-square with 5 degrees of freedom, 44 is passed once in 4e7."""
        table = pa.table(
            {"who": [n // 6 for n in range(36_000)], "segment": [n % 6 for n in range(36_000)], "item": ["a"] * 36_000}
        )
        segments = pa.table({"segment": range(6)})
        with self.opened(table) as engine:
            request = HeadRequest("who", ("segment", "item"), 9, each=("segment",), segments=segments)
            counts = [count for _, count in rows_of(engine, request, b"u" * 32)]
        assert sum(counts) == 6_000
        assert sum((count - 1_000) ** 2 / 1_000 for count in counts) < 44

    @pytest.mark.parametrize("rule", _DERIVED)
    def test_periods_and_bins_that_are_listed_get_all_their_counts(self, rule: Derived) -> None:
        """A time series over a known domain has a count of 0 or more for each of its periods."""
        values = _POOLS[rule.column][2]
        table = pa.table({"who": range(len(values)), rule.column: pa.array(values, _POOLS[rule.column][1])})
        starts = sorted({start_of(value, rule.each) for value in values} - {None})
        without_rows = start_of(
            5 * 10**14 if rule.kind is Kind.INTEGER else datetime.datetime(2030, 5, 6, 7), rule.each
        )
        domain = pa.table({rule.name: pa.array([*starts[1:], without_rows], _TYPES[rule.kind])})
        request = HeadRequest("who", (rule.name,), len(domain), domain=domain, derived=(rule,))
        with self.opened(table) as engine:
            assert rows_of(engine, request) == reference_head(table, request)

    @pytest.mark.parametrize("sign", OPERATORS)
    def test_every_operator_compares_every_kind(self, sign: Operator) -> None:
        """Values below, at and above the constant, and NULL, which passes neither the filter nor its NOT."""
        # Each condition has its own block of rows with all values, so that one query tests all of a kind.
        compared = {
            name: [
                where
                for constant in (_CONSTANTS[kind] if kind is not Kind.BOOLEAN or sign in {"=", "<>"} else [])
                for where in (Comparison(name, sign, constant), Not(Comparison(name, sign, constant)))
            ]
            for name, kind in KINDS.items()
        }
        blocks = max(map(len, compared.values()))
        height = 1 + max(len(values) for *_, values in _POOLS.values())
        rows = range(blocks * height)
        cells = {name: [None, *values, *[None] * (height - 1 - len(values))] for name, (*_, values) in _POOLS.items()}
        table = pa.table(
            {"row": rows, "item": rows, "block": [row // height for row in rows]}
            | {name: pa.array(cells[name] * blocks, type_) for name, (_, type_, _) in _POOLS.items()}
        )
        with self.opened(table) as engine:
            for name, wheres in compared.items():
                in_block = (Comparison("block", "=", Constant(Kind.INTEGER, str(n))) for n in range(blocks))
                where = Or(tuple(map(And, zip(in_block, wheres, strict=False))))
                request = HeadRequest("row", ("item",), len(rows), where)
                assert rows_of(engine, request) == reference_head(table, request), name

    def test_an_empty_table_has_an_empty_head(self) -> None:
        """No rows, no items, no error."""
        table = pa.table({"who": pa.array([], pa.int64()), "item": pa.array([], pa.string())})
        requests = [{}, {"groups_per_user": 2}, {"domain": pa.table({"item": ["a"]}), "limit": 1}]
        assert self.heads(table, "item", each=requests) == [[], [], [(("a",), 0)]]

    def test_rows_without_a_user_or_a_label_are_left_out(self) -> None:
        """NULL is neither a user nor an item."""
        table = pa.table({"who": [1, None, 2, None], "item": ["a", "a", None, None]})
        assert self.head(table, "item") == [(("a",), 1)]

    def test_duplicated_rows_count_once(self) -> None:
        """Counts are of users, or of at most rows_per_group rows of each user."""
        table = pa.table({"who": [1] * 1000 + [2] * 3, "item": ["a"] * 1003})
        requests = [{"rows_per_group": tau} for tau in (1, 2, 5, 2**31)]
        assert self.heads(table, "item", each=requests) == [[(("a",), count)] for count in (2, 4, 8, 1003)]

    def test_the_item_below_the_cut_is_returned_too(self) -> None:
        """The head has one item more than the limit, if there is one; ties at the cut are in order of the labels."""
        words = ["ﬀ", "😀", "b", "a", "é", "Z"]
        table = pa.table({"who": [0] * 6 + [1], "item": [*words, "b"]})
        ranked = [(("b",), 2), *(((word,), 1) for word in ("Z", "a", "é", "ﬀ", "😀"))]
        requests = [{"limit": limit} for limit in range(1, 8)]
        assert self.heads(table, "item", each=requests) == [ranked[: n + 1] for n in range(1, 8)]

    @pytest.mark.parametrize("name", _LABELS)
    def test_labels_of_every_kind_come_back_in_ascending_order(self, name: str) -> None:
        """Text by UTF-8 bytes, False before True, numbers and timestamps by value; the values are unchanged."""
        _, type_, values = _POOLS[name]
        table = pa.table({"who": range(len(values)), "item": pa.array(values[::-1], type_)})
        assert self.head(table, "item") == [((label,), 1) for label in sorted(values, key=_sorted_by)]

    def test_users_and_items_that_are_alike_stay_apart(self) -> None:
        """Values of every type that differ in one byte or digit are as many users, and as many items, on every path."""
        rows = max(len(values) for _, values in ALIKE.values())
        cells = {
            name: pa.array([*values, *[None] * (rows - len(values))], type_) for name, (type_, values) in ALIKE.items()
        }
        table = pa.table({"row": range(rows), "item": ["x"] * rows, **cells})
        paths: list[dict[str, Any]] = [{}, {"rows_per_group": 2, "groups_per_user": 1}]
        with self.opened(table) as engine:
            for name, (_, values) in ALIKE.items():
                for parts in paths:
                    request = HeadRequest(name, ("item",), 9, **parts)
                    assert rows_of(engine, request, b"s" * 32) == [(("x",), len(values))], name
                    request = HeadRequest("row", (name,), rows, **parts)
                    assert rows_of(engine, request, b"s" * 32) == reference_head(table, request), name
            if engine.has_pairs:  # once, because pairs take Spark ten seconds
                everything = HeadRequest("text", tuple(name for name in ALIKE if name != "text"), 9, keep_missing=True)
                with engine.pairs(everything) as pairs:
                    assert pairs.users_by_size(np.array([1, 9])).tolist() == [rows, 0]
                    assert pairs.count_items() == len(table.group_by(list(everything.items)).aggregate([]))

    def test_columns_that_cannot_tell_users_or_items_apart_are_refused_by_their_type(self) -> None:
        """Floats are neither; timestamps are no users, because a source or an engine may cut them."""
        table = pa.table({name: pa.array([], type_) for name, (_, type_, _) in _POOLS.items()})
        refused = [
            ("at", "word", "timestamps"),
            ("share", "word", "floating-point"),
            ("who", "share", "floating-point"),
        ]
        with self.opened(table) as engine:
            for user, item, message in refused:
                request = HeadRequest(user, (item,), 9)
                for ask in (engine.check, engine.head):
                    with pytest.raises(InputError, match=message):
                        ask(request)

    def test_times_beside_the_edges_of_periods_are_in_their_periods(self) -> None:
        """A second, a millisecond, a microsecond before and after each edge, in columns of each precision."""
        apart = [datetime.timedelta(0, *size) for size in ((1,), (0, 1), (0, 1000))]
        times = sorted({edge + sign * size for edge in EDGES for size in apart for sign in (-1, 0, 1)})
        columns = {
            unit: pa.array(times, pa.timestamp("us")).cast(pa.timestamp(unit), False) for unit in ("s", "ms", "us")
        }
        days = {"day": pa.array([time.date() for time in times])}
        table = pa.table({"row": range(len(times)), **columns, **days})
        with self.opened(table) as engine:
            moments = {name: kind for name, kind in engine.columns().items() if kind in {Kind.TIMESTAMP, Kind.DATE}}
            assert {"us", "day"} <= moments.keys()  # an engine need not have all precisions
            for name in moments:
                periods = [period for period in get_args(Period) if name != "day" or period != "hour"]
                derived = tuple(Derived(f"the {period}", name, period) for period in periods)
                request = HeadRequest("row", tuple(rule.name for rule in derived), 1000, derived=derived)
                assert rows_of(engine, request) == reference_head(table, request), name

    def test_very_long_labels_stay_apart(self) -> None:
        """Labels of 100 kB and of megabytes are whole, and different if only their last characters differ."""
        labels = ["x" * 100_000 + end for end in "bac"]
        table = pa.table({"who": [1, 1, 1, 2], "item": [*labels, labels[2]]})
        assert self.head(table, "item") == [((labels[n],), count) for n, count in ((2, 2), (1, 1), (0, 1))]
        table = pa.table({"who": [1] * 4, "item": ["x" * size for size in (9_999, 10_000, 10_001, 1_200_000)]})
        request = HeadRequest("who", ("item",), 9, groups_per_user=2)
        seeds = (b"", b"s" * 32)
        requests = [{"seed": seed, "limit": 9, "groups_per_user": 2} for seed in seeds]
        assert self.heads(table, "item", each=requests) == [reference_head(table, request, seed) for seed in seeds]

    @pytest.mark.parametrize(
        "name",
        ["order", "a b", 'it"em', "it'em", "n", "u", "i0", "i1", "c", "domain", "Größe", "{x}", "%s", "?", "a--b"],
    )
    def test_columns_may_have_any_name(self, name: str) -> None:
        """Reserved words, quotes, and names that an engine might use internally."""
        table = pa.table({f"{name}'s": [1, 2, 3], name: ["a", "b", "b"], f"{name}2": [7, 7, 8]})
        where = Comparison(f"{name}2", "<>", Constant(Kind.INTEGER, "8"))
        rows = self.head(table, f"{name}2", name, where=where, rows_per_group=2, groups_per_user=5)
        assert rows == [((7, "a"), 1), ((7, "b"), 1)]
        assert self.head(table, name, domain=pa.table({name: ["b", "z"]}), limit=2) == [(("b",), 2), (("z",), 0)]

    def test_hostile_text_is_only_text(self) -> None:
        """Quotes, placeholders and SQL in labels, users and constants are characters like others."""
        hostile = ["'", '"', "' OR 1=1 --", "'; DROP TABLE t; --", "$1", "?", "{}", "%s", "\n", "\\'", "NULL"]
        table = pa.table({"who": hostile, "item": hostile})
        constants = [Constant(Kind.TEXT, text) for text in hostile]
        equal: list[Predicate] = [Comparison("item", "=", constant) for constant in constants]
        equal += [Membership("who", (constant,)) for constant in constants]
        heads = self.heads(table, "item", each=[{"where": where} for where in equal])
        assert heads == [[((text,), 1)] for text in hostile] * 2

    def test_each_user_keeps_as_many_items_as_the_bound_or_all(self) -> None:
        """User u has u items, twice each: min(groups, u) are kept, with their rows."""
        pairs = [(user, f"{user}/{n}") for user in range(1, 8) for n in range(user)] * 2
        table = pa.table({"who": [user for user, _ in pairs], "item": [item for _, item in pairs]})
        bounds = (1, 3, 5, 100)
        requests = [{"seed": b"s" * 32, "groups_per_user": groups, "rows_per_group": 2} for groups in bounds]
        for groups, head in zip(bounds, self.heads(table, "item", each=requests), strict=True):
            assert {count for _, count in head} == {2}
            owners = Counter(int(label.split("/")[0]) for (label,), _ in head)
            assert owners == {user: min(groups, user) for user in range(1, 8)}

    def test_what_a_user_keeps_depends_on_the_seed_and_that_user_alone(self) -> None:
        """The same seed keeps the same items for any other users; another seed keeps other items."""
        pairs = [(user, f"{user}/{n}") for user in range(30) for n in range(9)]
        together = pa.table({"who": [user for user, _ in pairs], "item": [item for _, item in pairs]})
        crowded = pa.concat_tables([together.take([*range(269, -1, -1)]), together.slice(0, 50)])
        alone = together.filter(pa.array([user == 7 for user, _ in pairs]))

        def kept(table: pa.Table) -> list[set[str]]:
            requests = [{"seed": bytes([n]) * 32, "groups_per_user": 3} for n in range(5)]
            return [{label for (label,), _ in head} for head in self.heads(table, "item", each=requests)]

        whole = kept(together)
        assert whole == kept(crowded)
        assert [{label for label in labels if label.startswith("7/")} for labels in whole] == kept(alone)
        assert len(set(map(frozenset, whole))) == 5

    @pytest.mark.parametrize("groups", [1, 3])
    def test_what_users_keep_is_uniform(self, groups: int) -> None:
        """3,000 users with the same 6 items: chi-square with 5 degrees of freedom, 44 is passed once in 4e7."""
        table = pa.table({"who": [n // 6 for n in range(18_000)], "item": [n % 6 for n in range(18_000)]})
        counts = [count for _, count in self.head(table, "item", seed=b"u" * 32, groups_per_user=groups)]
        expected = 3000 * groups / 6
        assert sum(counts) == 3000 * groups
        assert sum((count - expected) ** 2 / (expected * (1 - groups / 6)) for count in counts) * 5 / 6 < 44

    @pytest.mark.parametrize(
        ("type_", "labels"),
        [
            (pa.int64(), [1, None]),
            (pa.int64(), [1, 2, 1]),
            (pa.int64(), ["x"]),
            (pa.int64(), ["07"]),
            (pa.int64(), [1.5]),
            (pa.date32(), [datetime.datetime(2024, 1, 1, 13)]),
            (pa.decimal128(9, 2), [Decimal("1.255")]),
            (pa.string(), ["a", "a"]),
        ],
    )
    def test_a_domain_with_labels_that_cannot_be_meant_is_refused(self, type_: pa.DataType, labels: list[Any]) -> None:
        """Labels that are missing, listed twice, or not of the column's type are never interpreted as another label."""
        table = pa.table({"who": pa.array([], pa.int64()), "item": pa.array([], type_)})
        with pytest.raises(InputError, match="domain"):
            self.head(table, "item", domain=pa.table({"item": labels}), limit=len(labels))

    @pytest.mark.parametrize(
        ("items", "parts"),
        [
            (("word",), {"where": Not(Comparison("size", "=", Constant(Kind.INTEGER, "7")))}),
            (("word", "size", "price", "day", "at", "open"), {"keep_missing": True}),
            (("word",), {"where": IsNull("who")}),
            (("start", "word"), {"derived": (Derived("start", "at", "week"),)}),
            (("start",), {"derived": (Derived("start", "size", 10),)}),
            (("word", "open"), {"domain": pa.table({"word": ["a", "B", "nowhere"], "open": [True, False, True]})}),
            (("word", "open"), {"segments": pa.table({"word": ["a", "B", "nowhere"]}), "keep_missing": True}),
        ],
    )
    def test_pair_queries_return_the_integers_that_numpy_gives(
        self, items: tuple[str, ...], parts: dict[str, Any]
    ) -> None:
        """Duplicates, ties and NULLs, many items and none: every engine computes the same weights, costs and bins."""
        rng = np.random.default_rng(9)
        rows = 500
        users = [None if rank > 40 else f"{'Aaé😀'[rank % 4]}'{rank // 4} " for rank in rng.zipf(1.4, rows)]
        cells = [
            [([None, *values])[n] for n in rng.integers(0, len(values) + 1, rows)] for *_, values in _POOLS.values()
        ]
        types = [type_ for _, type_, _ in _POOLS.values()]
        table = pa.table([pa.array(c, t) for c, t in zip([users, *cells[1:]], types, strict=True)], names=list(_POOLS))
        request = HeadRequest("who", items, 1, **parts)
        with self.opened(table) as engine:
            if engine.has_pairs:
                assert getattr(engine, "has_capped_sums", False), (
                    "an engine with pair queries says has_capped_sums = True"
                )
                with engine.pairs(request) as pairs:
                    check_pair_queries(pairs, reference_pairs(table, request))
            else:
                with pytest.raises(InputError, match="pair"), engine.pairs(request):
                    pass

    def test_progress_is_a_share(self) -> None:
        """All reported progress is between 0 and 1."""
        shares: list[float] = []
        table = pa.table({"who": range(100_000), "item": range(100_000)})
        with self.opened(table) as engine:
            engine.head(HeadRequest("who", ("item",), 10), progress=shares.append)
        assert all(0 <= share <= 1 for share in shares)

    def test_a_count_ends_when_its_progress_raises(self) -> None:
        """A client that disconnects stops its count, and the engine can be used again."""

        def leave(_: float) -> None:
            raise _Left

        start = time.monotonic()
        with self.slow(None) as engine:
            with pytest.raises(_Left):
                self._ended(lambda: engine.head(_SLOW, progress=leave))
            engine.check(_SLOW)
        assert time.monotonic() - start < self.patience_seconds

    def test_a_count_ends_at_its_time_limit(self) -> None:
        """The count raises `EngineTimeout`, and the engine can be used again."""
        with self.slow(2) as engine:
            with pytest.raises(EngineTimeout):
                self._ended(lambda: engine.head(_SLOW))
            engine.check(_SLOW)

    def test_a_count_does_not_wait_for_another(self) -> None:
        """Two counts run concurrently: both report progress before either ends."""
        barrier = threading.Barrier(2)

        def meet(_: float) -> None:
            barrier.wait(self.patience_seconds)
            raise _Left

        with self.slow(None) as engine, ThreadPoolExecutor(2) as threads:
            counts = [threads.submit(engine.head, _SLOW, progress=meet) for _ in range(2)]
            assert [type(count.exception()) for count in counts] == [_Left, _Left]

    def test_counts_at_once_get_each_their_own_head(self) -> None:
        """Concurrent requests never mix up their filters, limits and listed items."""
        table = pa.table({"who": range(60), "item": [n % 6 for n in range(60)]})
        requests = [
            HeadRequest("who", ("item",), 1 + n % 5, Comparison("who", "<", Constant(Kind.INTEGER, str(10 * n))))
            for n in range(6)
        ] + [HeadRequest("who", ("item",), 2, domain=pa.table({"item": [n, 9]})) for n in range(6)]
        with self.opened(table) as engine, ThreadPoolExecutor(4) as threads:
            heads = list(threads.map(functools.partial(rows_of, engine), requests))
        assert heads == [reference_head(table, request) for request in requests]

    def test_an_engine_that_is_gone_is_unreachable_before_a_query(self) -> None:
        """`check` raises `EngineUnreachable`, so that nothing is charged; `head` raises an `EngineError`."""
        with self.dead() as engine:
            with pytest.raises(EngineUnreachable):
                engine.check(_SLOW)
            with pytest.raises(EngineError):
                engine.head(_SLOW)

    def _ended(self, count: Callable[[], object]) -> None:
        """Run *count* in a daemon thread, which is abandoned if it does not end in time."""
        errors: list[BaseException] = []

        def work() -> None:
            try:
                count()
            except BaseException as error:  # noqa: BLE001 - raised again here
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(self.patience_seconds)
        assert not thread.is_alive(), "the count does not end"
        if errors:
            raise errors[0]

    def test_columns_come_in_order_with_their_kinds(self) -> None:
        """Filters and labels are checked against them."""
        table = pa.table({name: pa.array([], type_) for name, (_, type_, _) in _POOLS.items()})
        with self.opened(table) as engine:
            assert list(engine.columns().items()) == list(KINDS.items())
            assert (engine.scale("price"), engine.scale("size")) == (2, 0)

    @_SETTINGS
    @given(data=st.data(), table=tables())
    def test_private_bounds_are_chosen_from_exact_sums_and_users(self, data: st.DataObject, table: pa.Table) -> None:
        """Sums with every bound, and the users between two bounds, equal those of plain Python."""
        size = SumBounds(Fraction(0), Fraction(data.draw(st.sampled_from([1, 6, 2**31]))), private=True, column="size")
        summed = data.draw(
            st.sampled_from([size, SumBounds(Fraction(0), Fraction(701, 100), 2, private=True, column="price")])
        )
        summed = dataclasses.replace(summed, rows=data.draw(st.sampled_from([None, 1, 2])))
        domain = table.select(["word"]).drop_null().group_by(["word"]).aggregate([])
        with self.opened(table) as engine:
            for items, where, listed, groups in (
                (("word",), data.draw(st.none() | predicates()), domain, None),
                ((), None, None, None),
                (("word",), None, domain, 2),
            ):
                limit = max(len(domain), 1) if items else 1
                request = HeadRequest("who", items, limit, where, domain=listed, summed=summed, groups_per_user=groups)
                head = engine.head(request)
                sums, users = reference_bounds(table, request, summed)
                labels = zip(*(column.to_pylist() for column in head.labels.columns), strict=True)
                assert head.scaled is not None
                totals = dict(zip(labels, head.scaled.tolist(), strict=True))
                assert {label: total for label, total in totals.items() if label in sums or any(total)} == sums
                assert head.users is not None
                assert head.users.tolist() == users
                assert (head.scaled_rows is None) == (summed.rows is None)
                if head.scaled_rows is not None and head.row_users is not None:
                    rows, users = reference_bounds(table, request, summed, of_rows=True)
                    labels = zip(*(column.to_pylist() for column in head.labels.columns), strict=True)
                    totals = dict(zip(labels, head.scaled_rows.tolist(), strict=True))
                    assert {label: total for label, total in totals.items() if label in rows or any(total)} == rows
                    assert head.row_users.tolist() == users

    def test_columns_that_cannot_be_summed_are_refused_beforehand(self) -> None:
        """The column's type alone is refused, so that the data owner sees the error and not the analyst."""
        table = pa.table({name: pa.array([], type_) for name, (_, type_, _) in _POOLS.items()})
        with self.opened(table) as engine:
            for name in ("who", "share", "day"):
                with pytest.raises(InputError, match="cannot"):
                    engine.check_sum(name)
