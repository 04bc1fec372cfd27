"""Domains: items that are listed in advance by the catalog, a file or a query."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from discreet.catalog.domains import known_domain, known_labels
from discreet.errors import EngineError, InputError
from tests.catalog.fakes import FakeEngine, dataset


def labels(folder, type_, domain, engine=None):
    """Return the labels of a column c with a given domain."""
    declared = dataset(folder, f'columns.c = {{ type = "{type_}", group = true, domain = {domain} }}')
    return known_labels(declared, "c", engine or FakeEngine())


@pytest.mark.parametrize(
    ("type_", "written", "listed", "kept"),
    [
        ("text", '["b", "a", ""]', ["b", "a", ""], pa.string()),
        ("integer", "[2, -1]", [2, -1], pa.int64()),
        ("decimal", "[2, 0.50]", [Decimal("2.00"), Decimal("0.50")], pa.decimal128(3, 2)),
        ("boolean", "[true, false]", [True, False], pa.bool_()),
        ("date", "[2026-11-20]", [datetime.date(2026, 11, 20)], pa.date32()),
        ("timestamp", "[2026-11-20T12:00:00]", [datetime.datetime(2026, 11, 20, 12)], pa.timestamp("us")),
    ],
)
def test_labels_of_the_catalog_are_of_the_type_of_their_column(tmp_path, type_, written, listed, kept):
    """Labels in the catalog keep their order."""
    found = labels(tmp_path, type_, written)
    assert (found.to_pylist(), found.type) == (listed, kept)


def test_labels_of_a_file_are_those_of_the_column_of_the_same_name(tmp_path):
    """CSV files hold text, so 007 is not 7; Parquet files have their own types, in any encoding."""
    (tmp_path / "c.csv").write_text("x,c\n1,007\n2,7\n3,\n")
    assert labels(tmp_path, "text", '{ file = "c.csv" }').to_pylist() == ["007", "7", ""]
    for kept in (pa.array(["a", "b"]).dictionary_encode(), pa.array(["a", "b"], pa.large_string())):
        pq.write_table(pa.table({"c": kept}), tmp_path / "c.parquet")
        found = labels(tmp_path, "text", '{ file = "c.parquet" }')
        assert (found.to_pylist(), found.type) == (["a", "b"], pa.string())


def test_labels_of_a_query_are_those_of_its_column(tmp_path):
    """The name of the query's only column does not matter."""
    engine = FakeEngine(answers={"SELECT code FROM countries": pa.table({"code": pa.chunked_array([["IN"], ["DE"]])})})
    assert labels(tmp_path, "text", '{ query = "SELECT code FROM countries" }', engine).to_pylist() == ["IN", "DE"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (pa.table({"c": ["secret"], "d": ["secret"]}), "the query for the domain of column 'c' must return one column"),
        (pa.table({"c": pa.array([], pa.string())}), "must have from 1 to 1,000,000 labels"),
        (pa.table({"c": pa.array(range(1_000_001))}), "must have from 1 to 1,000,000 labels"),
        (pa.table({"c": ["secret", None]}), "holds a missing label"),
        (pa.table({"c": ["secret", "x", "secret"]}), "holds a label twice"),
        (pa.table({"c": pa.chunked_array([["secret"], ["secret"]]).dictionary_encode()}), "holds a label twice"),
        (pa.table({"c": [["secret"], ["x"]]}), "values that are no labels"),
    ],
    ids=["columns", "none", "many", "missing", "twice", "twice in chunks", "nested"],
)
def test_a_query_result_that_is_no_domain_is_refused(tmp_path, answer, expected):
    """The message is one sentence and shows no label."""
    with pytest.raises(InputError) as caught:
        labels(tmp_path, "text", '{ query = "SELECT 1" }', FakeEngine(answers={"SELECT 1": answer}))
    assert expected in str(caught.value)
    assert "'c'" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "there is no domain file"),
        ("x\n1\n", "there is no column of the domain 'c'"),
        ("c\n", "the domain is empty"),
        ("c\nsecret\nsecret\n", "the domain of column 'c' holds a label twice"),
    ],
    ids=["missing", "column", "empty", "twice"],
)
def test_a_file_that_is_no_domain_is_refused(tmp_path, content, expected):
    """The message is one sentence and shows no label."""
    if content is not None:
        (tmp_path / "c.csv").write_text(content)
    with pytest.raises(InputError, match=expected) as caught:
        labels(tmp_path, "text", '{ file = "c.csv" }')
    assert "secret" not in str(caught.value)


def test_an_engine_failure_is_not_an_empty_domain(tmp_path):
    """An engine's error while labels are fetched is raised."""
    with pytest.raises(EngineError):
        labels(tmp_path, "text", '{ query = "SELECT 2" }')


def several(folder, **sizes):
    """Return the labels of the columns of a dataset whose domains have so many labels; 0 means no domain."""
    columns = []
    for name, size in sizes.items():
        domain = "" if size == 0 else f", domain = {list(range(size))}"
        columns.append(f'columns.{name} = {{ type = "integer", group = true{domain} }}')
    declared = dataset(folder, "\n".join(columns))
    return {name: known_labels(declared, name, FakeEngine()) for name, size in sizes.items() if size}


def test_the_domain_of_several_columns_is_every_combination(tmp_path):
    """Combinations are listed once each, the last column varies fastest, and columns have the order of the request."""
    declared = several(tmp_path, a=2, b=3, c=2)
    found = known_domain(("b", "a"), declared)
    assert found.column_names == ["b", "a"]
    assert list(zip(*found.to_pydict().values(), strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert known_domain(("c",), declared).to_pydict() == {"c": [0, 1]}
    three = known_domain(("a", "b", "c"), declared)
    assert len(set(zip(*three.to_pydict().values(), strict=True))) == len(three) == 12


def test_one_unknown_column_makes_the_domain_unknown(tmp_path):
    """A domain cannot hold combinations with labels that are not listed."""
    declared = several(tmp_path, a=2, b=0)
    assert known_domain(("a", "b"), declared) is None
    assert known_domain(("b",), declared) is None
    assert known_domain((), declared) is None
    assert known_domain(("a",), declared) is not None


def test_too_many_combinations_make_the_domain_unknown(tmp_path):
    """A million combinations are listed, and one row of labels more is not."""
    declared = several(tmp_path, a=1000, b=1000, c=1001)
    assert len(known_domain(("a", "b"), declared)) == 1_000_000
    assert known_domain(("a", "c"), declared) is None
