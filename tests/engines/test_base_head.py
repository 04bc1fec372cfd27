"""A result that has an item twice is no head, for labels of every type, in one column or several, in any chunks."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from discreet.engines.base import exact_head
from discreet.errors import InexactHead
from discreet.head_request import HeadRequest

SPLIT = [["a", "b"], ["c", "a"]]


def _check(columns):
    n = len(columns[0])
    counts = {f"i{place}": column for place, column in enumerate(columns)} | {
        "n": pa.array(range(n, 0, -1), pa.int64())
    }
    return exact_head(pa.table(counts), HeadRequest("user", tuple("xyz"[: len(columns)]), 10))


@pytest.mark.parametrize(
    "columns",
    [
        [["a", "a"]],
        [[None, None]],
        [[1, 2, 1]],
        [[Decimal("1.0"), Decimal("1.0")]],
        [[datetime.date(2026, 1, 1)] * 2],
        [[datetime.datetime(2026, 1, 1)] * 2],
        [[True, True]],
        [["a", "a"], [1, 1]],
        [["a", "b", "a"], [1, 1, 1]],
        [["a", "a"], [None, None]],
        [["a", "b", "a"], [1, 2, 1], [True, True, True]],
        [pa.chunked_array(SPLIT)],
        [pa.chunked_array(SPLIT), pa.chunked_array([[1], [1, 2, 1]])],
    ],
)
def test_an_item_that_is_twice_is_refused(columns):
    """Its counts would be two for one item."""
    with pytest.raises(InexactHead, match="an item twice"):
        _check(columns)


@pytest.mark.parametrize(
    "columns",
    [
        [["a", None]],
        [pa.array([], pa.string())],
        [["a", "a"], [1, 2]],
        [["a", "a", None], [None, 1, 1]],
        [["a", "b", "a"], [1, 1, 2], [True, True, True]],
        [pa.chunked_array(SPLIT), pa.chunked_array([[1], [1, 2, 3]])],
    ],
)
def test_items_that_differ_in_a_label_are_a_head(columns):
    """A missing label is one of its own, and the other columns may be equal."""
    assert len(_check(columns).counts) == len(columns[0])
