"""Binding queries to a table's columns: names and types."""

from __future__ import annotations

from fractions import Fraction

import pyarrow as pa
import pytest

from discreet.errors import InputError, UnknownColumn, WhereError
from discreet.head_request import And, Comparison, Constant, IsNull, Kind, Membership, Not, Or
from discreet.query.planning import bind
from discreet.query.predicates import bind_where
from discreet.query.sql import parse_where
from tests.queries import changed, query_of

COLUMNS = {
    "User": Kind.TEXT,
    "country": Kind.TEXT,
    "Country": Kind.TEXT,
    "size": Kind.INTEGER,
    "price": Kind.DECIMAL,
    "share": Kind.FLOAT,
    "open": Kind.BOOLEAN,
    "day": Kind.DATE,
    "at": Kind.TIMESTAMP,
    "blob": Kind.OTHER,
    "Straße": Kind.TEXT,
}
_CONSTANTS = {
    "text": "'a'",
    "whole": "1",
    "decimal": "0.5",
    "truth": "TRUE",
    "date": "DATE '2024-01-01'",
    "moment": "TIMESTAMP '2024-01-01 00:00:00'",
    "text of a date": "'2024-01-01'",
    "text of a moment": "'2024-01-01 00:00:00'",
}
_COMPARABLE = {
    "country": {"text", "text of a date", "text of a moment"},
    "size": {"whole", "decimal"},
    "price": {"whole", "decimal"},
    "share": {"whole", "decimal"},
    "open": {"truth"},
    "day": {"date", "text of a date"},
    '"at"': {"date", "moment", "text of a date", "text of a moment"},
    "blob": set(),
}


def _bound(text):
    return bind_where(parse_where(text), COLUMNS)


def _query(user="User", items=("country",), **parts):
    return query_of(user, items, 1.0, Fraction(1, 10**8), **parts)


@pytest.mark.parametrize("constant", _CONSTANTS)
@pytest.mark.parametrize("column", _COMPARABLE)
def test_columns_are_compared_with_constants_of_their_kind(column, constant):
    """Every kind of column with every kind of constant, in comparisons, lists and under NOT."""
    name = column.strip('"')
    for text in (f"{column} = {_CONSTANTS[constant]}", f"NOT ({column} IN ({_CONSTANTS[constant]}))"):
        if constant in _COMPARABLE[column]:
            _bound(text)
        else:
            with pytest.raises(WhereError, match=f"column '{name}' holds {COLUMNS[name].value}"):
                _bound(text)


def test_text_becomes_a_date_for_date_columns_only():
    """'2024-01-01' is text for a text column and a date for a date column."""
    day = Constant(Kind.DATE, "2024-01-01")
    at = Constant(Kind.TIMESTAMP, "2024-01-01 01:02:03")
    text = "country = '2024-01-01' AND day > '2024-01-01' AND \"at\" IN ('2024-01-01', '2024-01-01T01:02:03')"
    assert _bound(text) == And(
        (
            Comparison("country", "=", Constant(Kind.TEXT, "2024-01-01")),
            Comparison("day", ">", day),
            Membership("at", (day, at)),
        )
    )
    for wrong in ("day = '2024-13-01'", "day = '2023-02-29'", "\"at\" = '2024-01-01 24:00:01'", "day = 'today'"):
        with pytest.raises(WhereError):
            _bound(wrong)


def test_dates_and_timestamps_in_one_list_are_read_as_the_column_or_refused_in_one_sentence():
    """A date is a timestamp at midnight; no date is a timestamp, in any order of the list."""
    day, at = Constant(Kind.DATE, "2024-01-01"), Constant(Kind.TIMESTAMP, "2024-01-01 01:02:03")
    for mixed in ("DATE '2024-01-01', TIMESTAMP '2024-01-01 01:02:03'", "'2024-01-01', '2024-01-01 01:02:03'"):
        assert _bound(f'"at" IN ({mixed})') == Membership("at", (day, at))
        for listed in (mixed, ", ".join(reversed(mixed.split(", ")))):
            with pytest.raises(WhereError) as caught:
                _bound(f"day IN ({listed})")
            assert str(caught.value) == (
                "the filter cannot be used: column 'day' holds dates and cannot be compared with timestamps"
            )


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">="])
def test_booleans_have_no_order(sign):
    """Engines disagree on the order of booleans."""
    assert _bound("open <> TRUE") == Comparison("open", "<>", Constant(Kind.BOOLEAN, "true"))
    with pytest.raises(WhereError, match="no order"):
        _bound(f"open {sign} TRUE")


def test_every_column_can_be_tested_for_missing_values():
    """IS NULL is allowed on columns whose values cannot be compared."""
    assert _bound("blob IS NULL OR NOT share IS NULL") == Or((IsNull("blob"), Not(IsNull("share"))))


@pytest.mark.parametrize(
    ("name", "column"),
    [("SIZE", "size"), ("Size", "size"), ("country", "country"), ("Country", "Country"), ("STRASSE", "Straße")],
)
def test_names_are_found_exactly_or_else_case_insensitively(name, column):
    """The bound query has the table's spelling."""
    assert _bound(f"{name} IS NULL") == IsNull(column)
    assert bind(_query("user", (name,)), COLUMNS).request.items == (column,)


def test_a_name_that_matches_two_columns_is_refused():
    """A name is ambiguous if two columns differ from it in case only."""
    with pytest.raises(UnknownColumn):
        _bound("COUNTRY IS NULL")


@pytest.mark.parametrize(
    ("name", "nearest"), [("sizes", "size"), ("Pirce", "price"), ("COUNTY", "country"), ("zzz", None)]
)
def test_an_unknown_name_is_refused_with_the_nearest_known_one(name, nearest):
    """The message lists all columns if none is similar."""
    for ask in (lambda: _bound(f"{name} = 1"), lambda: bind(_query(items=(name,)), COLUMNS)):
        with pytest.raises(UnknownColumn) as error:
            ask()
        assert error.value.name == name
        assert nearest is None or error.value.nearest.casefold() == nearest
        hints = [f"'{column}'" for column in COLUMNS] if nearest is None else [f"did you mean '{error.value.nearest}'"]
        assert all(hint in str(error.value) for hint in [repr(name), *hints])


def test_binding_changes_names_and_nothing_else():
    """User, items, filter and domain get the table's names, and every other field is kept."""
    query = _query("USER", ("SIZE", "Day"), k=3, where=parse_where("PRICE > 1"), counts=False, head_limit=7)
    query = changed(query, domain=pa.table({"SIZE": [1, 2, 3], "Day": ["x"] * 3}))
    bound = bind(query, COLUMNS)
    request = bound.request
    assert (request.user, request.items, request.where) == ("User", ("size", "day"), _bound("price > 1"))
    assert request.domain.column_names == ["size", "day"]
    named = {"user": "User", "items": ("size", "day"), "where": request.where, "domain": request.domain}
    assert bound == changed(query, **named)


@pytest.mark.parametrize(
    ("user", "items", "part"),
    [
        ("share", ("size",), "floating-point"),
        ("User", ("share",), "floating-point"),
        ("User", ("size", "share"), "floating-point"),
        ("blob", ("size",), "cast it to text"),
        ("User", ("blob",), "cast it to text"),
        ("User", ("User",), "both the user and an item"),
        ("size", ("SIZE",), "both the user and an item"),
        ("User", ("size", "SIZE"), "twice"),
        ("nobody", ("size",), "no user column 'nobody'"),
        ("User", ("nothing",), "no item column 'nothing'"),
    ],
)
def test_unsuitable_columns_are_refused(user, items, part):
    """Floating point, nested types, the user as an item, duplicate items in two spellings, unknown columns."""
    with pytest.raises(InputError, match=part):
        bind(_query(user, items), COLUMNS)
