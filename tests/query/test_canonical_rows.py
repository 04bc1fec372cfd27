"""Canonical forms checked on all rows that filters can distinguish: equal forms only for equal rows."""

from __future__ import annotations

import datetime
import functools
import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.head_request import And, Comparison, Constant, IsNull, Kind, Membership, Not, Or
from discreet.query.canonical import canonical
from discreet.query.predicates import bind_where, parse_constant
from discreet.testing.engines import truth

KINDS = {
    "n": Kind.INTEGER,
    "p": Kind.DECIMAL,
    "f": Kind.FLOAT,
    "t": Kind.TEXT,
    "o": Kind.BOOLEAN,
    "day": Kind.DATE,
    "at": Kind.TIMESTAMP,
    "z": Kind.OTHER,
    "r": Kind.UNTYPED,
    **dict.fromkeys(("b1", "b2", "b3", "b4"), Kind.BOOLEAN),
}
_NUMBERS = {Kind.INTEGER, Kind.DECIMAL, Kind.FLOAT}
_NOON = datetime.datetime(2024, 2, 29, 12)
_BOOLEANS = ("true false", [False, True])
_LINES = {
    "n": ("0 1 2 5 0.5 1.5", range(-1, 7)),
    "p": ("-0.25 0 1 1.5 1.50", [Fraction(n, 8) for n in (-3, -2, -1, 0, 4, 8, 10, 12, 13)]),
    "f": ("-1 0.1 0.10000000000000001 0.3", [-2.0, -1.0, 0.0, 0.1, 0.2, 0.3, 1.0]),
    "t": ("'' 'A' 'a' 'e\u0301' 'é' 'ﬀ' '😀'", [*"!AZab", "", "e\u0301", *"fwéêﬀﬁ😀😁"]),
    "o": _BOOLEANS,
    "day": (
        "2024-02-28 2024-02-29 2024-03-02",
        [datetime.date(2024, 2, 27) + datetime.timedelta(days) for days in range(6)],
    ),
    "at": (
        "2024-02-29 2024-02-29T00:00:00 2024-02-29T12:00:00.0 2024-02-29T12:00:00.000002",
        [_NOON + datetime.timedelta(hours=-hours) for hours in (24, 12, 6)]
        + [_NOON + datetime.timedelta(microseconds=n) for n in range(4)],
    ),
    "z": ("", ["something"]),
    "r as number": ("0 1 1.5", [-1.0, 0.0, 0.5, 1.0, 1.2, 1.5, 2.0]),
    "r as text": ("'1' 'x'", [*"012xy"]),
    **dict.fromkeys(("b1", "b2", "b3", "b4"), _BOOLEANS),
}
"""Constants; and values: what the constants mean, and others between any two of them and beyond."""


def _constant(text):
    if text.startswith("'"):
        return Constant(Kind.TEXT, text[1:-1])
    if text in {"true", "false"}:
        return Constant(Kind.BOOLEAN, text)
    if "T" in text:
        return Constant(Kind.TIMESTAMP, text.replace("T", " "))
    if text.count("-") == 2:
        return Constant(Kind.DATE, text)
    return Constant(Kind.DECIMAL if "." in text else Kind.INTEGER, text)


def _lines(column):
    return [line for line in _LINES if line.split()[0] == column]


@functools.cache
def conditions(column):
    """Return a strategy for single conditions on a column."""
    constants = [_constant(text) for line in _lines(column) for text in _LINES[line][0].split()]
    if not constants:
        return st.just(IsNull(column))
    signs = ["=", "<>"] if KINDS[column] is Kind.BOOLEAN else ["=", "<>", "<", "<=", ">", ">="]
    return (
        st.builds(Comparison, st.just(column), st.sampled_from(signs), st.sampled_from(constants))
        | st.builds(
            Membership, st.just(column), st.lists(st.sampled_from(constants), min_size=1, max_size=4).map(tuple)
        )
        | st.just(IsNull(column))
    )


@functools.cache  # validating a strategy costs more than drawing from it
def filters(columns, most):
    """Return a strategy for filters of up to *most* conditions on a tuple of columns."""

    def compound(inner):
        several = st.lists(inner, min_size=2, max_size=3).map(tuple)
        return st.builds(Not, inner) | st.builds(And, several) | st.builds(Or, several)

    return st.recursive(st.one_of(*map(conditions, columns)), compound, max_leaves=most)


def _apart(predicate):
    """Split an untyped column into one for each way to read it."""
    match predicate:
        case And(parts) | Or(parts):
            return type(predicate)(tuple(map(_apart, parts)))
        case Not(inner):
            return Not(_apart(inner))
        case Comparison("r", operator, constant):
            return Comparison(_line(constant), operator, constant)
        case Membership("r", constants):
            return Or(tuple(Comparison(_line(constant), "=", constant) for constant in constants))
        case IsNull("r"):
            return IsNull("r as text")
    return predicate


def _line(constant):
    return "r as number" if constant.kind in _NUMBERS else "r as text"


def all_rows(columns):
    """Return rows with all combinations of values of some columns, and missing ones."""
    lines = [line for column in columns for line in _lines(column)]
    values = itertools.product(*([None, *_LINES[line][1]] for line in lines))
    return [dict(zip(lines, row, strict=True)) for row in values]


def rows_of(predicate, rows):
    """Return the rows for which a filter, or None, is true."""
    predicate = _apart(predicate or And(()))
    return tuple(truth(predicate, row) is True for row in rows)


def check(predicates, rows):
    """Check that forms are true for their filters' rows, equal only for equal rows, and their own forms.

    On a single column it is equal to all others that are true for the same rows (days are not counted, only compared).
    """
    known = []
    single = len(rows[0]) == 1 and "day" not in rows[0]
    for predicate in predicates:
        form, selected = canonical(predicate, KINDS), rows_of(predicate, rows)
        assert rows_of(form, rows) == selected
        for other, others in known:
            assert selected == others or form != other
            assert form == other or selected != others or not single
        known.append((form, selected))
        if form is not None:
            assert canonical(form, KINDS) == form
            assert bind_where(form, KINDS) == form
            for constant in _constants(form):
                assert parse_constant(constant.kind, constant.text) == constant


def _constants(predicate):
    match predicate:
        case And(parts) | Or(parts):
            return [constant for part in parts for constant in _constants(part)]
        case Not(inner):
            return _constants(inner)
        case Comparison(_, _, constant):
            return [constant]
        case Membership(_, constants):
            return list(constants)
    return []


@functools.cache
def _several(columns):
    return st.lists(filters(columns, 5), min_size=2, max_size=4)


_PAIRS = st.sampled_from(
    list(itertools.combinations(["n", "p", "f", "t", "o", "day", "at", "z"], 2)) + [("r", "o")] * 4
)


@settings(max_examples=50)
@given(st.data(), _PAIRS)
def test_two_columns_of_every_kind_have_one_form_for_the_same_rows_only(data, columns):
    """Four filters at a time, equal by chance; the tests of rewriting make equal ones by design."""
    check(data.draw(_several(columns)), all_rows(columns))


@pytest.mark.parametrize("column", ["n", "p", "f", "t", "o", "day", "at", "z"])
def test_filters_on_one_column_have_one_form_exactly_for_the_same_rows(column):
    """Filters of up to five conditions on every kind of column."""
    rows = all_rows([column])

    @settings(max_examples=25)
    @given(st.lists(filters((column,), 5), min_size=2, max_size=6))
    def run(predicates):
        check(predicates, rows)

    run()


@settings(max_examples=50)
@given(st.lists(filters(("b1", "b2", "b3", "b4"), 8), min_size=2, max_size=3))
def test_many_columns_have_one_form_for_the_same_rows_only(predicates):
    """Booleans only, so that four columns have few rows."""
    check(predicates, all_rows(["b1", "b2", "b3", "b4"]))


def test_all_pairs_of_conditions_have_one_form_for_the_same_rows_only():
    """AND and OR of any two of thirty conditions on two columns: eight hundred filters with fewer forms."""
    zero, one = (Constant(Kind.INTEGER, text) for text in "01")
    true = Constant(Kind.BOOLEAN, "true")
    signs = ["=", "<>", "<", "<=", ">", ">="]
    single = [
        *(Comparison("n", sign, constant) for sign in signs for constant in (zero, one)),
        Membership("n", (zero, one)),
        IsNull("n"),
        Comparison("o", "=", true),
        IsNull("o"),
    ]
    single += [Not(condition) for condition in single]
    rows = all_rows(["n", "o"])
    forms = {}
    for parts in itertools.combinations(single, 2):
        for predicate in (And(parts), Or(parts)):
            forms.setdefault(canonical(predicate, KINDS), set()).add(rows_of(predicate, rows))
    assert all(len(some) == 1 for some in forms.values())
    assert 100 < len(set().union(*forms.values())) <= len(forms) < 300
