"""DuckDB counts the same rows with a filter and with its canonical form."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.engines.duckdb import DuckDBEngine
from discreet.errors import InputError
from discreet.head_request import And, Comparison, HeadRequest, Kind, Membership, Not, Or
from discreet.query.canonical import canonical, listed_values, possible_labels
from discreet.query.predicates import bind_where
from discreet.query.sql import parse_where
from discreet.testing.engines import KINDS, predicates, rows_of, tables
from tests.query.test_canonical_rows import filters


def _counted(engine, predicates_, columns):
    """Return the rows that each filter selects, which are those that its form selects."""
    counted = []
    for predicate in predicates_:
        heads = [
            rows_of(engine, HeadRequest("row", ("row",), 1000, where))
            for where in (predicate, canonical(predicate, columns))
        ]
        assert heads[0] == heads[1], predicate
        counted.append(heads[0])
    return counted


def _numbered(table):
    return table.append_column("row", pa.array(range(len(table)), pa.int64()))


@settings(max_examples=25)
@given(tables(), st.lists(predicates(), min_size=4, max_size=4))
def test_random_filters_and_their_forms_select_the_same_rows(table, asked):
    """Tables of the engine suite: every kind, NULL, extreme numbers, and constants between them."""
    with contextlib.closing(DuckDBEngine(_numbered(table))) as engine:
        _counted(engine, asked, KINDS)


@settings(max_examples=40)
@given(tables(), predicates(), st.sampled_from([name for name, kind in KINDS.items() if kind is not Kind.FLOAT]))
def test_excluded_labels_have_no_row(table, asked, column):
    """Labels that a filter excludes have no rows; a filter on that column alone excludes exactly those without rows."""
    where, labels = canonical(asked, KINDS), table.select([column]).group_by(column).aggregate([])
    with contextlib.closing(DuckDBEngine(_numbered(table))) as engine:
        rows = {row for (row,), _ in rows_of(engine, HeadRequest("row", ("row",), 1000, asked))}
    selected = {table.column(column)[row] for row in rows}
    try:
        left = set(possible_labels(where, KINDS, labels).column(column))
    except InputError:
        left = set()
    assert selected <= left
    if where is not None and KINDS[column] in {Kind.TEXT, Kind.INTEGER, Kind.BOOLEAN, Kind.DATE} and _on(where, column):
        assert selected == left


@settings(max_examples=40)
@given(tables(), predicates(), st.sampled_from(list(KINDS)))
def test_all_rows_have_a_value_that_their_filter_lists(table, asked, column):
    """So a domain that a filter lists lacks no row; a value that the filter excludes is not listed."""
    listed = listed_values(canonical(asked, KINDS), KINDS).get(column)
    if listed is None:
        return
    with contextlib.closing(DuckDBEngine(_numbered(table))) as engine:
        rows = {row for (row,), _ in rows_of(engine, HeadRequest("row", ("row",), 1000, asked))}
    texts = {str(value) for value in listed}
    assert {str(table.column(column)[row].as_py()) for row in rows} <= texts
    if _on(asked, column):
        left = {str(label) for n, label in enumerate(table.column(column).to_pylist()) if n not in rows}
        assert not left & texts


def _on(where, column):
    """Return True if a filter names only that column."""
    match where:
        case And(parts) | Or(parts):
            return bool(parts) and all(_on(part, column) for part in parts)
        case Not(inner):
            return _on(inner, column)
    return where.column == column


_FLOATS = [None, float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 0.1, 0.3, 0.1 + 0.2, 1.0, 1e300]


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()])
def test_floating_point_numbers_are_doubles_and_nan_is_missing(type_):
    """Includes infinities and 32-bit numbers; constants are read as the nearest double."""
    columns = {"x": Kind.FLOAT, "row": Kind.INTEGER}
    asked = """x > 0.1|x >= 0.1|x = 0.10000000000000001|x <> 0.3|x < 0.30000000000000004|x > 0.3 OR x <= 0.3|x IS NULL
        NOT x > 1|x IS NULL OR x = 0|x > 1 AND x <> 99999999999999999999999999999999999999|NOT x IN (0, 0.1, 1)"""
    bound = [bind_where(parse_where(text), columns) for text in asked.replace("\n", "|").split("|")]
    with contextlib.closing(DuckDBEngine(_numbered(pa.table({"x": pa.array(_FLOATS, type_)})))) as engine:
        counted = _counted(engine, bound, columns)
    assert [len(rows) for rows in counted[5:8]] == [9, 2, 7]


@settings(max_examples=25)
@given(st.lists(filters(("r", "n"), 6), min_size=3, max_size=3))
def test_untyped_text_is_read_with_the_type_of_the_constant(file, asked):
    """A CSV column with numbers, text, booleans, values of none of them, and missing values."""
    columns = dict.fromkeys(("row", "r", "n"), Kind.UNTYPED)
    _counted(file, map(_spelled_out, asked), columns)


def _spelled_out(predicate):
    """Replace lists by equalities, since engines read a column with one type for a whole list."""
    match predicate:
        case And(parts) | Or(parts):
            return type(predicate)(tuple(map(_spelled_out, parts)))
        case Not(inner):
            return Not(_spelled_out(inner))
        case Membership(column, constants):
            return Or(tuple(Comparison(column, "=", constant) for constant in constants))
    return predicate


@pytest.mark.parametrize(
    "text", ["r > 1 OR r <= 1", "r = TRUE OR r <> TRUE", "r < DATE '2024-01-01' OR r >= DATE '2024-01-01'"]
)
def test_the_test_data_has_values_of_every_type(file, text):
    """Some text is a number, some a boolean, some a date, and none is all of them."""
    columns = dict.fromkeys(("row", "r", "n"), Kind.UNTYPED)
    ((*rows,),) = _counted(file, [bind_where(parse_where(text), columns)], columns)
    assert 0 < len(rows) < len(_TEXTS) - 2


_TEXTS = [
    "0",
    "1",
    "1.0",
    "01",
    "1e0",
    "1.5",
    "2",
    "x",
    "true",
    "FALSE",
    "t",
    "nan",
    "inf",
    "2024-02-29",
    " 1",
    "''",
    "",
]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Return an engine that reads a CSV file."""
    path = tmp_path_factory.mktemp("files") / "texts.csv"
    rows = [f'{row},"{text}",{row % 7}' if text else f"{row},," for row, text in enumerate(_TEXTS)]
    path.write_text("\n".join(["row,r,n", *rows]))
    engine = DuckDBEngine(path)
    yield engine
    engine.close()
