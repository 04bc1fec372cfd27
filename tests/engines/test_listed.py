"""Listed items are held to the types of the labels as DuckDB holds them, for engines that cannot."""

from __future__ import annotations

import contextlib
import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from discreet.engines.base import typed_domain
from discreet.engines.duckdb import DuckDBEngine
from discreet.errors import InputError
from discreet.question import HeadRequest

_DAY = datetime.date(2024, 2, 29)
_NOON = datetime.datetime(2024, 2, 29, 12)
_TYPES = [pa.string(), pa.int64(), pa.decimal128(9, 2), pa.bool_(), pa.date32(), pa.timestamp("us")]
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


@pytest.mark.parametrize("type_", _TYPES, ids=str)
def test_what_duckdb_takes_is_taken_and_nothing_else(type_):
    """Both say the same labels, or both refuse."""
    nobody = pa.table({"who": pa.array([], pa.int64()), "item": pa.array([], type_)})
    taken = 0
    with contextlib.closing(DuckDBEngine(nobody)) as engine:
        for labels in _LABELS:
            domain = pa.table({"item": labels})
            try:
                head = engine.head(HeadRequest("who", ("item",), len(labels), domain=domain))
            except InputError:
                with pytest.raises(InputError, match="domain"):
                    typed_domain(domain, {"item": type_})
                continue
            typed = typed_domain(domain, {"item": type_})
            assert typed.schema == pa.schema([("i0", type_)])
            assert sorted(typed.column(0).to_pylist()) == head.labels.column(0).to_pylist()
            taken += 1
    assert 0 < taken < len(_LABELS)


def test_rows_and_columns_stay_in_their_order():
    """Columns are those of the request, in its order, whatever they are called; rows those that were listed."""
    domain = pa.table({'a"b': ["7", "-1"], "i0": ["z", "a"], "other": [0, 0]})
    typed = typed_domain(domain, {"i0": pa.string(), 'a"b': pa.int64()})
    assert typed.equals(pa.table({"i0": ["z", "a"], "i1": [7, -1]}))


def test_an_item_is_listed_twice_only_if_all_its_labels_are():
    """Also where they are written differently."""
    types = {"a": pa.int64(), "b": pa.decimal128(3, 1)}
    typed_domain(pa.table({"a": [1, 1], "b": [1.0, 2.0]}), types)
    with pytest.raises(InputError, match="twice"):
        typed_domain(pa.table({"a": ["1", "1"], "b": [Decimal("1.00"), Decimal("1.00")]}), types)


def test_moments_with_a_zone_are_in_utc():
    """Wherever this machine is."""
    zone = datetime.timezone(datetime.timedelta(hours=2))
    for given in (
        [datetime.datetime(2024, 2, 29, 12, tzinfo=zone)],
        ["2024-02-29 10:00:00+00"],
        [_NOON.replace(hour=10)],
    ):
        typed = typed_domain(pa.table({"at": given}), {"at": pa.timestamp("us", "UTC")})
        assert typed.column(0).cast(pa.timestamp("us")).to_pylist() == [_NOON.replace(hour=10)]


@pytest.mark.parametrize("text", ["infinity", "-infinity", "0044-03-15 (BC)", "12024-01-01"])
def test_moments_outside_of_the_years_1_to_9999_are_refused(text):
    """No engine's literal and no date of Python's holds them."""
    for type_ in (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        with pytest.raises(InputError, match="domain"):
            typed_domain(pa.table({"day": [text]}), {"day": type_})


@pytest.mark.parametrize("given", [pa.array([[1]]), pa.array([{"a": 1}]), pa.array([b"\xff"])])
def test_labels_of_unlike_types_are_refused(given):
    """Lists, structs, bytes."""
    for type_ in (pa.int64(), pa.date32()):
        with pytest.raises(InputError, match="domain"):
            typed_domain(pa.table({"item": given}), {"item": type_})


def test_nothing_listed_is_nothing():
    """With its types."""
    typed = typed_domain(pa.table({"item": pa.array([], pa.string())}), {"item": pa.int64()})
    assert typed.equals(pa.table({"i0": pa.array([], pa.int64())}))
