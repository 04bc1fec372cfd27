"""Listed items are checked against the types of labels as DuckDB does it, for engines that cannot."""

from __future__ import annotations

import contextlib
import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from discreet.engines.base import typed_domain
from discreet.engines.duckdb import DuckDBEngine
from discreet.errors import InputError
from discreet.head_request import HeadRequest

_DAY = datetime.date(2024, 2, 29)
_NOON = datetime.datetime(2024, 2, 29, 12)
_LABELS = [
    *([value] for value in (1, True, 1.5, 2.0, 0.1, 1.255, 2**63 - 1, _DAY, _NOON, b"a", None)),
    *([Decimal(text)] for text in ("1.5", "7", "1.255", "12345678.90")),
    *([text] for text in ("7", "07", " 7", "1.5", "1.50", "1e3", "x", "", "é", "true", "TRUE", "t")),
    *([text] for text in ("2024-02-29", "2024-2-29", "2024-02-29 12:00:00", "2024-02-29T12:00:00", "2024-02-30")),
    *([text] for text in ("2024-02-29 12:00:00.5", "2024-02-29 12:00:00.500000")),
    ["a", "a"],
    [1, 2, 1],
    [3, 1, 2],
    [1, None],
]


_TEXT = ["1", "true", "1.5", "2.0", "0.1", "1.255", str(2**63 - 1), "2024-02-29", "2024-02-29 12:00:00", "a"]
_TYPED = {
    pa.string(): [
        *zip(_LABELS, ([text] for text in _TEXT), strict=False),
        *((labels, [str(labels[0])]) for labels in _LABELS[11:34]),
        ([3, 1, 2], ["3", "1", "2"]),
    ],
    pa.int64(): [([n], [n]) for n in (1, True, 2.0, 2**63 - 1, Decimal(7))] + [(["7"], [7]), ([3, 1, 2], [3, 1, 2])],
    pa.decimal128(9, 2): [
        *(([n], [n]) for n in (1, True, 1.5, 2.0, Decimal("1.5"), Decimal(7))),
        *(([n], [Decimal(text)]) for n, text in ((0.1, "0.1"), ("1.50", "1.5"))),
        ([3, 1, 2], [3, 1, 2]),
    ],
    pa.bool_(): [([label], [True]) for label in (1, True, "true")],
    pa.date32(): [([label], [_DAY]) for label in (_DAY, "2024-02-29")],
    pa.timestamp("us"): [
        ([_DAY], [_NOON.replace(hour=0)]),
        *(([label], [_NOON]) for label in (_NOON, "2024-02-29 12:00:00")),
        (["2024-02-29 12:00:00.5"], [_NOON.replace(microsecond=500_000)]),
    ],
}
"""The labels that each type accepts, and their values; all others of `_LABELS` are refused."""


@pytest.mark.parametrize("type_", _TYPED, ids=str)
def test_a_label_is_accepted_only_if_it_is_written_as_a_value_of_the_type(type_):
    """A label that changes when it is cast to the type and back would be another item."""
    accepted = {repr(labels): typed for labels, typed in _TYPED[type_]}
    assert len(accepted) == len(_TYPED[type_]) < len(_LABELS)
    for labels in _LABELS:
        domain = pa.table({"item": labels})
        if repr(labels) in accepted:
            typed = typed_domain(domain, {"item": type_})
            assert typed.schema == pa.schema([("i0", type_)])
            assert typed.column(0).to_pylist() == accepted.pop(repr(labels))
        else:
            with pytest.raises(InputError, match="domain"):
                typed_domain(domain, {"item": type_})
    assert not accepted


@pytest.mark.parametrize("type_", _TYPED, ids=str)
def test_duckdb_types_a_domain_by_its_column(type_):
    """A domain is cast to the types that the columns' labels have in DuckDB."""
    with contextlib.closing(
        DuckDBEngine(pa.table({"who": pa.array([], pa.int64()), "item": pa.array([], type_)}))
    ) as engine:
        labels, typed = _TYPED[type_][-1]
        head = engine.head(HeadRequest("who", ("item",), len(labels), domain=pa.table({"item": labels})))
        assert head.labels.column(0).to_pylist() == sorted(typed)
        with pytest.raises(InputError, match="domain"):
            engine.head(HeadRequest("who", ("item",), 2, domain=pa.table({"item": [1, None]})))


def test_rows_and_columns_stay_in_their_order():
    """Columns have the order of the request, and rows the order in which they are listed."""
    domain = pa.table({'a"b': ["7", "-1"], "i0": ["z", "a"], "other": [0, 0]})
    typed = typed_domain(domain, {"i0": pa.string(), 'a"b': pa.int64()})
    assert typed.equals(pa.table({"i0": ["z", "a"], "i1": [7, -1]}))


def test_an_item_is_listed_twice_only_if_all_its_labels_are():
    """Duplicates are detected even if they are written differently."""
    types = {"a": pa.int64(), "b": pa.decimal128(3, 1)}
    typed_domain(pa.table({"a": [1, 1], "b": [1.0, 2.0]}), types)
    with pytest.raises(InputError, match="twice"):
        typed_domain(pa.table({"a": ["1", "1"], "b": [Decimal("1.00"), Decimal("1.00")]}), types)


def test_timestamps_with_a_zone_are_in_utc():
    """The zone of the machine does not matter."""
    zone = datetime.timezone(datetime.timedelta(hours=2))
    for given in (
        [datetime.datetime(2024, 2, 29, 12, tzinfo=zone)],
        ["2024-02-29 10:00:00+00"],
        [_NOON.replace(hour=10)],
    ):
        typed = typed_domain(pa.table({"at": given}), {"at": pa.timestamp("us", "UTC")})
        assert typed.column(0).cast(pa.timestamp("us")).to_pylist() == [_NOON.replace(hour=10)]


@pytest.mark.parametrize("text", ["infinity", "-infinity", "0044-03-15 (BC)", "12024-01-01"])
def test_timestamps_outside_of_the_years_1_to_9999_are_refused(text):
    """Neither literals of engines nor Python's dates can represent them."""
    for type_ in (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        with pytest.raises(InputError, match="domain"):
            typed_domain(pa.table({"day": [text]}), {"day": type_})


@pytest.mark.parametrize("given", [pa.array([[1]]), pa.array([{"a": 1}]), pa.array([b"\xff"])])
def test_labels_of_unsupported_types_are_refused(given):
    """Lists, structs and bytes are refused."""
    for type_ in (pa.int64(), pa.date32()):
        with pytest.raises(InputError, match="domain"):
            typed_domain(pa.table({"item": given}), {"item": type_})


def test_an_empty_domain_keeps_its_types():
    """A domain without rows has the types of its columns."""
    typed = typed_domain(pa.table({"item": pa.array([], pa.string())}), {"item": pa.int64()})
    assert typed.equals(pa.table({"i0": pa.array([], pa.int64())}))
