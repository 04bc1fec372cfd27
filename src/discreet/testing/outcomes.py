"""A check that no user decides whether there is an answer, or moves a count by more than one. Needs no test framework.

An engine on a table with one more user, whose rows may hold the extreme values of every type, must answer the same
requests as the engine on the table without them: an error would reveal that user at any epsilon. Its answers must be
neighbours, because noise is scaled to what one user can change.

```python
cases = {"SMALLINT": ["7", "-32768", "32767"], "DATE": ["DATE '2024-02-29'", "DATE '0001-01-01'", "NULL"]}
with_user, without_user = (MyEngine(view=select(cases, extremes)) for extremes in (True, False))
check_outcomes(with_user, without_user, random.Random(1), 100)
```
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from discreet.engines.base import Engine, has_all_pair_queries
from discreet.errors import DiscreetError, InputError
from discreet.head_request import (
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
    naming_error,
)
from discreet.mechanisms.base import MAX_BOUND
from discreet.testing.pairs import gathered
from discreet.values import WEIGHT_UNIT

USER = "who"
"""The user column of `select`."""

_OPERATORS: tuple[Operator, ...] = ("=", "<>", "<", "<=", ">", ">=")
_NUMBERS = [Constant(Kind.INTEGER, str(n)) for n in (0, 7, -(2**63), 2**63 - 1, 2**64, 10**38)] + [
    Constant(Kind.DECIMAL, text) for text in ("0.5", "-7.25", f"0.{'0' * 37}1")
]
_DATES = [Constant(Kind.DATE, text) for text in ("0001-01-01", "2024-02-29", "9999-12-31")]
_TIMESTAMPS = [
    Constant(Kind.TIMESTAMP, text)
    for text in ("0001-01-01 00:00:00", "2024-02-29 12:00:00", "9999-12-31 23:59:59.999999")
]
_TEXTS = [Constant(Kind.TEXT, text) for text in ("", "a", "é", "\U0010ffff", "NaN", "infinity", "x" * 1000)]
_BOOLEANS = [Constant(Kind.BOOLEAN, text) for text in ("true", "false")]
_CONSTANTS = {
    Kind.TEXT: _TEXTS,
    Kind.INTEGER: _NUMBERS,
    Kind.DECIMAL: _NUMBERS,
    Kind.FLOAT: _NUMBERS,
    Kind.BOOLEAN: _BOOLEANS,
    Kind.DATE: _DATES,
    Kind.TIMESTAMP: _DATES + _TIMESTAMPS,
    Kind.OTHER: _TEXTS,
    Kind.UNTYPED: _TEXTS + _NUMBERS + _BOOLEANS + _DATES + _TIMESTAMPS,
}
_SEGMENTS: dict[Kind, list[str]] = {
    Kind.TEXT: ["a", "", "é", "NaN"],
    Kind.INTEGER: ["7", "-1", "0"],
    Kind.BOOLEAN: ["true", "false"],
    Kind.DATE: ["2024-02-29", "0001-01-01", "9999-12-31"],
}
"""Listed labels of segments, by the kind of their column."""
_MOST = (0, 1, 2**31, 2**62)
_LIMIT = 1.5
_CAP = 2
_SIZES = np.array([1, 2, 3, 4, 8, 2**20])

_Head = dict[tuple[Any, ...], list[int]]
"""All numbers of an item by its labels, in Python values."""


@dataclasses.dataclass(slots=True)
class _Outcome:
    """The class of an error, or the answers to a request; weighted and capped sums by label."""

    error: str | None = None
    head: _Head = dataclasses.field(default_factory=dict)
    users_by_length: list[list[int]] = dataclasses.field(default_factory=list)
    users_by_size: list[int] = dataclasses.field(default_factory=lambda: [0] * len(_SIZES))
    weighted: dict[tuple[Any, ...], int] = dataclasses.field(default_factory=dict)
    capped: dict[tuple[Any, ...], int] = dataclasses.field(default_factory=dict)


def select(cases: Mapping[str, Sequence[str]], extremes: bool) -> str:
    """Return a SELECT of a table with the columns who (text) and c0, c1, ..., one of each type.

    Args:
        cases: SQL expressions for each type: an ordinary value, then extreme values.
        extremes: True to add the rows of one more user, which together hold all extreme values.
    """
    rows = [("u1", 0), ("u2", 0), ("u3", 0)]
    if extremes:
        rows += [("z", n) for n in range(1, max(map(len, cases.values())))]
    selected = []
    for user, n in rows:  # a type with fewer values begins again with its first extreme one
        cells = [
            f"CAST({values[n if n < len(values) else (n - 1) % (len(values) - 1) + 1]} AS {type_}) AS c{place}"
            for place, (type_, values) in enumerate(cases.items())
        ]
        selected.append(f"SELECT '{user}' AS {USER}, {', '.join(cells)}")
    return " UNION ALL ".join(selected)


def check_outcomes(with_user: Engine, without_user: Engine, rng: random.Random, number: int) -> None:
    """Send *number* random requests to both engines, whose tables differ by the rows of one user of the column who.

    Raises:
        AssertionError: only one engine raises, or they raise different errors; or the request's users are in who, and
            one user moves a count by more than rows_per_group, or a sum or the rows of an average by more than their
            bounds, or their length at a private bound by more than it, or more items than groups_per_user, or several
            segments, or an earlier count by more than 1, or several items of a place; or is counted as several users
            by length or size; or moves a sum of the pair queries by more than the user's weight.
    """
    for _ in range(number):
        request = random_request(rng, without_user)
        check_request(with_user, without_user, request, rng.randbytes(32), with_pairs=rng.random() < 0.3)


def check_request(
    with_user: Engine, without_user: Engine, request: HeadRequest, seed: bytes, *, with_pairs: bool = True
) -> None:
    """Send *request* to both engines; as `check_outcomes`.

    Args:
        with_pairs: False to leave out pair queries, which take longer.
    """
    with_row = _outcome(with_user, request, seed, with_pairs)
    without = _outcome(without_user, request, seed, with_pairs)
    assert with_row.error == without.error, f"with the user {with_row.error}, without {without.error}: {request}"
    if request.user == USER:  # the values of another column are many users
        _check_head(with_row, without, request)
        _check_pairs(with_row, without, request)


def _check_head(outcome: _Outcome, without: _Outcome, request: HeadRequest) -> None:
    ranges = [(0, request.rows_per_group)]
    squares = []
    if request.summed is not None:
        summed = request.summed
        ranges.append((-summed.most, summed.most))
        ranges += [(0, summed.most_rows)] if summed.rows is not None else []
        squares += [square * (ROW_UNIT * summed.step) ** 2 for square in request.squared_lengths]
        squares += [square * (ROW_UNIT * summed.of_rows.step) ** 2 for square in request.squared_row_lengths]
    if request.arrivals is not None:
        ranges += [(0, 1)] if request.arrivals.before is not None else []
        squares += [1] * len(request.arrivals.reached)
    nothing = [0] * (len(ranges) + len(squares))
    moved = {
        labels: np.subtract(outcome.head.get(labels, nothing), without.head.get(labels, nothing), dtype=object)
        for labels in {*outcome.head, *without.head}
    }
    moved = {labels: change for labels, change in moved.items() if any(change)}
    for change in moved.values():
        assert all(low <= number <= high for number, (low, high) in zip(change, ranges, strict=False)), request
    # A user has one item in a place, and sums and rows at a private bound of at most its length, in parts of a step.
    for place, square in enumerate(squares, len(ranges)):
        assert sum(change[place] ** 2 for change in moved.values()) <= square, request
    kept = sum(1 for change in moved.values() if any(change[: len(ranges)]))
    assert request.groups_per_user is None or kept <= request.groups_per_user, request
    assert not request.each or len({labels[: len(request.each)] for labels in moved}) <= 1, request
    for users, users_without in zip(outcome.users_by_length, without.users_by_length, strict=True):
        _check_users(users, users_without, request)


def _check_users(users: list[int], without: list[int], request: HeadRequest) -> None:
    moved = [a - b for a, b in zip(users, without, strict=True)]
    assert min(moved, default=0) >= 0, request
    assert sum(moved) <= 1, request


def _check_pairs(outcome: _Outcome, without: _Outcome, request: HeadRequest) -> None:
    _check_users(outcome.users_by_size, without.users_by_size, request)
    for query, share in (("weighted", lambda size: _LIMIT / math.sqrt(size)), ("capped", lambda size: _CAP / size)):
        sums = getattr(outcome, query)
        sums_without = getattr(without, query)
        moved = [sums.get(labels, 0) - sums_without.get(labels, 0) for labels in {*sums, *sums_without}]
        moved = [change for change in moved if change]
        weight = math.floor(WEIGHT_UNIT * min(1.0, share(max(len(moved), 1)))) - 1
        assert set(moved) <= {weight}, request


def random_request(rng: random.Random, engine: Engine) -> HeadRequest:
    """Return a random request over the columns of *engine*: user, items, filter, bounds and sum."""
    columns = dict(engine.columns())
    derived: tuple[Derived, ...] = ()
    every = [Derived("start", name, period) for name in columns for period in (*get_args(Period), 1, 10**15)]
    every = [period for period in every if period.type_error(columns[period.column]) is None]
    if every and rng.random() < 0.3:
        derived = (rng.choice(every),)
    columns |= {period.name: period.kind for period in derived}
    anything = rng.random() < 0.05  # columns of any type, most of which are refused
    users, others = (
        [name for name, kind in columns.items() if anything or naming_error(name, kind, is_user=is_user) is None]
        for is_user in (True, False)
    )
    user = USER if rng.random() < 0.7 else rng.choice([name for name in users if name != "start"])
    others = [name for name in others if name not in {user, USER}]
    items = rng.sample(others, min(rng.choice([0, 1, 1, 2]), len(others)))
    summed = None
    if rng.random() < 0.3:
        column = rng.choice([*engine.columns()])
        try:
            engine.check_sum(column)
        except InputError:
            pass
        else:
            scale = engine.scale(column)
            low, high = sorted(rng.choice([-1, 1]) * Fraction(rng.choice(_MOST), 10**scale) for _ in range(2))
            summed = SumBounds(low, high, scale, column=column)
            most = max(abs(low), abs(high))
            if most and rng.random() < 0.3:  # a private bound is above 0
                summed = SumBounds(Fraction(0), most, scale, private=True, column=column)
            if summed.most <= MAX_BOUND and rng.random() < 0.5:  # as queries check before they ask for an average
                summed = dataclasses.replace(summed, rows=rng.choice([1, 2, 2**31]))
    segment_columns: tuple[str, ...] = ()
    segments = None
    listed = _SEGMENTS.get(columns[items[0]]) if items else None
    if listed is not None and not (summed is not None and summed.private) and rng.random() < 0.3:
        segment_columns = (items[0],)
        segments = pa.table({items[0]: listed})
    domain = None
    if listed is not None and not segment_columns and len(items) == 1 and rng.random() < 0.2:
        domain = pa.table({items[0]: listed})
    groups = rng.choice([None, None, 1, 2])
    arrivals = None
    is_plain = items and summed is None and domain is None and segments is None
    if is_plain and columns.get("start") in {Kind.DATE, Kind.TIMESTAMP} and getattr(engine, "has_arrivals", False):
        before = rng.choice([None, "0001-01-01", "2024-02-29", "9999-12-31"])
        arrivals = Arrivals("start", 1, before, reached=() if groups is None else (1, 2, 10))
    return HeadRequest(
        user,
        tuple(items),
        10_000 if domain is None else len(domain),
        _predicate(rng, columns, 3) if rng.random() < 0.7 else None,
        1 if arrivals else rng.choice([1, 1, 2, 2**31]),
        groups,
        keep_missing=rng.random() < 0.3,
        summed=summed,
        domain=domain,
        derived=derived,
        each=segment_columns,
        segments=segments,
        arrivals=arrivals,
    )


def _predicate(rng: random.Random, columns: Mapping[str, Kind], depth: int) -> Predicate:
    if depth and rng.random() < 0.4:
        parts = tuple(_predicate(rng, columns, depth - 1) for _ in range(2))
        compound: list[Predicate] = [And(parts), Or(parts), Not(parts[0])]
        return rng.choice(compound)
    name = rng.choice([*columns])
    if rng.random() < 0.2 or (columns[name] is Kind.OTHER and rng.random() < 0.95):
        return IsNull(name)
    constants = _CONSTANTS[columns[name]]
    if rng.random() < 0.3:
        return Membership(name, tuple(rng.sample(constants, 2)))
    operators = _OPERATORS[:2] if columns[name] is Kind.BOOLEAN else _OPERATORS
    return Comparison(name, rng.choice(operators), rng.choice(constants))


def _outcome(engine: Engine, request: HeadRequest, seed: bytes, with_pairs: bool) -> _Outcome:
    """Return the answers of *engine*; those of pair queries only if *with_pairs*, and where they are possible."""
    outcome = _Outcome()
    try:
        head = engine.head(request, seed=seed)
        if with_pairs and engine.has_pairs and request.items and request.segments is None and request.summed is None:
            plain = dataclasses.replace(request, rows_per_group=1, groups_per_user=None, arrivals=None)
            with engine.pairs(plain) as pairs:
                outcome.users_by_size = pairs.users_by_size(_SIZES).tolist()
                weighted = gathered(pairs.weighted_sums(_LIMIT)).tolist()
                capped = gathered(pairs.capped_sums(_CAP)).tolist() if has_all_pair_queries(engine) else []
                items = _rows(pairs.labels(np.arange(len(weighted))))
            outcome.weighted = dict(zip(items, weighted, strict=True))
            outcome.capped = dict(zip(items, capped, strict=False))
    except DiscreetError as error:
        return _Outcome(type(error).__name__)
    numbers = [head.counts, head.sums, head.rows, head.before, head.reached, head.scaled, head.scaled_rows]
    columns = np.column_stack([part for part in numbers if part is not None])
    outcome.head = dict(zip(_rows(head.labels), columns.tolist(), strict=True))
    outcome.users_by_length = [users.tolist() for users in (head.users, head.row_users) if users is not None]
    return outcome


def _rows(labels: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401 - an Arrow table
    return list(zip(*(column.to_pylist() for column in labels.columns), strict=True))
