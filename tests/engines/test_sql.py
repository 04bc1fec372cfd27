"""The parts of SQL that engines share, by their definitions."""

from __future__ import annotations

import contextlib
import datetime
import re
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from discreet.engines.duckdb import DuckDBEngine
from discreet.engines.sql import (
    EngineColumn,
    HeadStatement,
    NumberType,
    check_sum,
    decimal_type,
    fit,
    integer_type,
    number_columns,
)
from discreet.errors import InputError
from discreet.head_request import (
    And,
    Comparison,
    Constant,
    Derived,
    HeadRequest,
    IsNull,
    Kind,
    Membership,
    Not,
    Or,
    SumBounds,
)
from discreet.testing.engines import OPERATORS, reference_bounds, reference_head, rows_of

_COLUMNS = {
    "who": EngineColumn(Kind.TEXT, "VARCHAR"),
    "word": EngineColumn(Kind.TEXT, "VARCHAR"),
    "size": EngineColumn(Kind.INTEGER, "INTEGER", integer_type("INTEGER", 32)),
    "price": EngineColumn(Kind.DECIMAL, "DECIMAL(9, 2)", decimal_type("DECIMAL(9, 2)", 9, 2)),
    "day": EngineColumn(Kind.DATE, "DATE"),
    "at": EngineColumn(Kind.TIMESTAMP, "TIMESTAMP"),
    "share": EngineColumn(Kind.FLOAT, "DOUBLE"),
}
_PRICE = SumBounds(Fraction(0), Fraction(7), 2, column="price")
_CHOSEN = SumBounds(Fraction(0), Fraction(7), 2, private=True, column="price")


def statement(request):
    """Return the statement in standard SQL for a table t."""
    return HeadStatement(request, '"t"', _COLUMNS, b"")


def values_of(number):
    """Return all values of a type of few digits."""
    unit = Fraction(1, 10**number.scale)
    return [number.least + n * unit for n in range(int((number.most - number.least) / unit) + 1)]


@pytest.mark.parametrize("sign", OPERATORS)
@pytest.mark.parametrize(
    "number",
    [
        integer_type("t", 3),
        integer_type("t", 2, signed=False),
        NumberType("t", Fraction(-11, 10), Fraction(11, 10), 1),
        NumberType("t", Fraction(-3, 100), Fraction(2, 100), 2),
    ],
)
def test_a_fitted_comparison_is_true_for_the_same_values(number, sign):
    """For every value of the type and constants on it, between, at its ends and beyond; those left are of the type."""
    values = values_of(number)
    texts = {f"{float(value):.{number.scale}f}" for value in values}
    for n in range(-4, 2 * len(values) + 4):
        constant = number.least + Fraction(n, 2 * 10**number.scale)
        fitted, text = fit(sign, constant, number)
        assert text is None or text in texts
        for value in values:
            other = value if text is None else Fraction(text)
            assert OPERATORS[fitted](value, other) == OPERATORS[sign](value, constant)


def test_numbers_have_the_range_of_their_digits():
    """Of integers in two's complement, of positive ones, and of decimals."""
    assert integer_type("a", 8) == NumberType("a", Fraction(-128), Fraction(127), 0)
    assert integer_type("b", 8, signed=False) == NumberType("b", Fraction(0), Fraction(255), 0)
    assert decimal_type("c", 3, 1) == NumberType("c", Fraction(-999, 10), Fraction(999, 10), 1)


@pytest.mark.parametrize(("digits", "scale"), [(1, 0), (20, 0), (20, 16), (19, 17), (18, 18)])
def test_numbers_of_few_digits_can_be_summed(digits, scale):
    """10^18 of them, in units of the last digit, have 38 digits; and so many has a value times 10^scale."""
    check_sum("x", EngineColumn(Kind.DECIMAL, "", decimal_type("", digits, scale)))


@pytest.mark.parametrize("number", [None, *(decimal_type("", *d) for d in ((21, 0), (38, 2), (20, 17), (19, 18)))])
def test_other_numbers_cannot_be_summed(number):
    """The error names the column."""
    with pytest.raises(InputError, match="column 'x' cannot be summed"):
        check_sum("x", EngineColumn(Kind.FLOAT if number is None else Kind.DECIMAL, "", number))


def test_the_numeric_columns_of_a_head_are_named_by_what_they_hold():
    """Counts, sums, sums with each bound, and the users between two bounds."""
    of = [HeadRequest("who", (), 1, summed=summed) for summed in (None, _PRICE, _CHOSEN)]
    lengths = len(of[2].squared_lengths)
    assert lengths > 1
    assert number_columns(of[0]) == ["n"]
    assert number_columns(of[1]) == ["n", "t"]
    assert number_columns(of[2]) == ["n", "t", *(f"{name}{n}" for name in "tv" for n in range(lengths))]


def test_derived_columns_have_types_like_others():
    """Bins are BIGINT, hours timestamps and longer periods dates; a column that has no periods is refused."""
    derived = (Derived("bin", "share", 7), Derived("hour", "at", "hour"), Derived("week", "day", "week"))
    made = statement(HeadRequest("who", (), 1, derived=derived))
    columns = made.columns
    assert columns["bin"] == EngineColumn(
        Kind.INTEGER, "BIGINT", NumberType("BIGINT", Fraction(-(2**63)), Fraction(2**63 - 1))
    )
    assert columns["hour"] == EngineColumn(Kind.TIMESTAMP, "TIMESTAMP")
    assert columns["week"] == EngineColumn(Kind.DATE, "DATE")
    assert columns["word"] == _COLUMNS["word"]
    years = "(\"day\" BETWEEN CAST('0001-01-01' AS DATE) AND CAST('9999-12-31' AS DATE))"
    assert years in made.value("week")  # as timestamps, later days could fail
    with pytest.raises(InputError, match="'month' is computed by month from column 'word'"):
        statement(HeadRequest("who", (), 1, derived=(Derived("month", "word", "month"),)))


def test_constants_are_bound_in_the_type_of_their_column():
    """Text has no other type."""
    made = statement(HeadRequest("who", (), 1))
    assert made.filtered(Comparison("size", "<", Constant(Kind.DECIMAL, "1.5"))) == '("size" <= CAST(? AS INTEGER))'
    assert made.filtered(Comparison("word", "=", Constant(Kind.TEXT, "a"))) == '("word" = ?)'
    assert made.parameters == ["1", "a"]


def test_a_column_that_cannot_be_summed_is_named():
    """The owner of the data reads it."""
    with pytest.raises(InputError, match="column 'word' cannot be summed"):
        statement(HeadRequest("who", (), 1)).summand("word", 0)


def test_every_name_is_written_in_one_way():
    """ClickHouse tells names apart by their case, which DuckDB does not."""
    one = Comparison("size", "=", Constant(Kind.INTEGER, "1"))
    two = Or((And((one, Not(IsNull("word")))), Membership("share", (Constant(Kind.INTEGER, "2"),))))
    listed = pa.table({"word": ["a", "b"]})
    derived = (Derived("bin", "share", 7), Derived("week", "day", "week"))
    requests = [
        HeadRequest("who", ("word", "size"), 9, two, each=("word",), segments=listed, summed=summed, groups_per_user=2)
        for summed in (None, _PRICE, _CHOSEN)
    ]
    requests += [HeadRequest("who", ("word",), 9, one, domain=listed, summed=_CHOSEN)]
    requests += [HeadRequest("who", ("bin", "week"), 9, derived=derived, keep_missing=True)]
    written = " ".join(statement(request).write() for request in requests)
    words = set(re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'", "", written)))
    assert {"n", "t", "t0", "v0", "u", "x", "p", "s", "l", "i0", "listed", "SELECT", "AND", "OR"} <= words
    assert len({word.lower() for word in words}) == len(words)


def test_the_segment_of_a_user_is_chosen_by_the_names_of_segments():
    """DuckDB would find the name of an item in the relation beside the segments; other engines would not."""
    segments = pa.table({"word": ["a"]})
    request = HeadRequest("who", ("word", "size"), 9, each=("word",), segments=segments)
    (chosen,) = re.findall(r"OVER \((.*?)\) AS place", statement(request).rows())
    assert "i0 ASC" in chosen
    assert "i1" not in chosen


def test_heads_of_every_form_are_those_of_plain_counting():
    """Segments, listed items, items kept of each user, rows, sums with one bound and with many, and missing labels."""
    rng = np.random.default_rng(8)
    cells = {
        "who": ["ann", "bob", "cy", "dee"],
        "word": ["a", "b", "x" * 10_001],
        "size": [1, 2, 3],
        "price": [-9, 0, 9],
    }
    table = pa.table(
        {name: [([None, *few])[n] for n in rng.integers(0, len(few) + 1, 60)] for name, few in cells.items()}
    )
    words = pa.table({"word": ["b", "z", "a"]})
    plain = SumBounds(Fraction(-1), Fraction(7), column="price")
    chosen = SumBounds(Fraction(0), Fraction(7), private=True, column="price")
    forms = [
        *({"summed": plain, "rows_per_group": tau} for tau in (1, 2)),
        *({"groups_per_user": groups, "keep_missing": True} for groups in (1, 2)),
        *({"each": ("word",), "segments": words, "limit": limit, "summed": plain} for limit in (1, 2)),
        {"each": ("word",), "segments": words, "groups_per_user": 1, "limit": 2},
        {"each": ("word", "size"), "segments": words.append_column("size", pa.array([1, 2, 3]))},
    ]
    with contextlib.closing(DuckDBEngine(table)) as engine:
        for form in forms:
            request = HeadRequest("who", ("word", "size", "price"), **{"limit": 2} | form)
            for seed in (b"", b"s" * 32):
                assert rows_of(engine, request, seed) == reference_head(table, request, seed)
        for items, listed in ((("word",), None), ((), None), (("word",), words)):
            request = HeadRequest("who", items, 9, domain=listed, summed=chosen)
            head = engine.head(request)
            sums, users = reference_bounds(table, request, chosen)
            found = dict(
                zip(
                    zip(*(column.to_pylist() for column in head.labels.columns), strict=True),
                    head.scaled.tolist(),
                    strict=True,
                )
            )
            assert {label: total for label, total in found.items() if label in sums or any(total)} == sums
            assert head.users.tolist() == users


def test_no_and_every_row_pass_empty_filters():
    """An AND of nothing is true and an OR of nothing is false."""
    table = pa.table({"who": [1, 2], "word": ["a", "a"]})
    with contextlib.closing(DuckDBEngine(table)) as engine:
        for where, counted in ((And(()), [(("a",), 2)]), (Or(()), [])):
            assert rows_of(engine, HeadRequest("who", ("word",), 1, where)) == counted


@pytest.mark.parametrize("type_", [pa.int8(), pa.int64(), pa.float64(), pa.decimal128(21, 2)])
def test_numbers_within_the_range_of_bins_have_one(type_):
    """Those beyond 10^15 have none, and a type may be too narrow to hold such numbers."""
    values = [-8, -7, 0, 6, 7] if type_ == pa.int8() else [-(10**15) - 1, -(10**15), -1, 0, 6, 7, 10**15, 10**15 + 1]
    table = pa.table({"who": range(len(values)), "x": pa.array(values).cast(type_)})
    request = HeadRequest("who", ("bin",), 99, derived=(Derived("bin", "x", 7),))
    with contextlib.closing(DuckDBEngine(table)) as engine:
        assert rows_of(engine, request) == reference_head(table, request)


def test_days_that_no_timestamp_holds_are_in_no_period():
    """Rows with such a day have no label, and the other rows are counted."""
    view = "SELECT who, DATE '2024-02-29' + CAST(who * 2000000 AS INTEGER) AS day FROM source"
    request = HeadRequest("who", ("month",), 9, derived=(Derived("month", "day", "month"),))
    with contextlib.closing(DuckDBEngine(pa.table({"who": [0, 100]}), view=view)) as engine:
        assert rows_of(engine, request) == [((datetime.date(2024, 2, 1),), 1)]


def test_text_without_a_type_is_read_as_what_it_is_compared_with(tmp_path):
    """In CSV files: numbers, dates and text in filters, lists of both, and the columns that are computed from them."""
    path = tmp_path / "t.csv"
    cells = ["7", "007", "-1", "20", "x", "2024-02-29", "2024-03-01 12:00:00"]
    path.write_text("who,item\n" + "".join(f"{n},{cell}\n" for n, cell in enumerate(cells)))
    seven, text, day = Constant(Kind.INTEGER, "7"), Constant(Kind.TEXT, "x"), Constant(Kind.DATE, "2024-03-01")
    with contextlib.closing(DuckDBEngine(path)) as engine:

        def passing(where):
            request = HeadRequest("who", ("item",), 9, where)
            return {label for (label,), _ in rows_of(engine, request)}

        assert passing(Comparison("item", "=", seven)) == {"7", "007"}
        assert passing(Comparison("item", ">", seven)) == {"20"}
        assert passing(Comparison("item", "<", day)) == {"2024-02-29"}
        assert passing(Membership("item", (seven, text))) == {"7", "007", "x"}
        assert passing(Membership("item", (text, Constant(Kind.TEXT, "7")))) == {"x", "7"}
        bins = HeadRequest("who", ("bin",), 9, derived=(Derived("bin", "item", 10),))
        assert rows_of(engine, bins) == [((0,), 2), ((-10,), 1), ((20,), 1)]
        months = HeadRequest("who", ("month",), 9, derived=(Derived("month", "item", "month"),))
        assert [(str(month), count) for (month,), count in rows_of(engine, months)] == [
            ("2024-02-01", 1),
            ("2024-03-01", 1),
        ]
