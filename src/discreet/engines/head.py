"""From an engine's rows to a head, once they are proven to be one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from discreet.errors import InexactHead
from discreet.question import TOTAL
from discreet.values import ExactHead

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.question import HeadRequest


def exact_head(table: pa.Table, request: HeadRequest) -> ExactHead:
    """The head that an engine returned for *request*.

    Args:
        table: labels in columns i0, i1, ..., counts in n (and sums in t, where wanted).
        request: what was wanted.

    Raises:
        InexactHead: what came back cannot be the head: too long, out of order, a label twice, a count below 1.
    """
    labels = table.select([f"i{n}" for n in range(len(request.items))]).rename_columns(list(request.items))
    counts = int64_array(table.column("n"))
    sums = None if request.summed is None else int64_array(table.column("t"))
    if not request.items:
        labels = pa.table({TOTAL: ["all"]})
    if len(counts) != len(labels) or len(counts) > request.limit + 1:
        raise InexactHead("the engine answered with more rows than it was asked for")
    if request.items:
        _check(table, request)
    return ExactHead(counts, request.limit, labels, sums)


def _check(table: pa.Table, request: HeadRequest) -> None:
    names = [f"i{n}" for n in range(len(request.items))]
    ranked, keys = table, [("n", "descending")]
    for name in names:
        if table.column(name).null_count:  # missing labels come first: not present sorts before present
            ranked = ranked.append_column(f"{name} present", table.column(name).is_valid())
            keys.append((f"{name} present", "ascending"))
        keys.append((name, "ascending"))
    order = pc.sort_indices(ranked, sort_keys=keys)
    if not np.array_equal(np.from_dlpack(order), np.arange(len(table))):
        raise InexactHead("the engine answered in another order than it was asked for")
    if len(table) and table.column("n")[-1].as_py() < (1 if request.domain is None else 0):
        raise InexactHead("the engine answered with items that have no users")
    if len(table.group_by(names).aggregate([])) < len(table):
        raise InexactHead("the engine answered with an item twice")


def int64_array(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return a column of numbers, none of them missing, as an array."""
    if column.null_count:
        raise InexactHead("the engine answered with an item without a count")
    # Not to_numpy(), which imports pandas where it is installed: a quarter of a second.
    return np.array(np.from_dlpack(column.cast(pa.int64()).combine_chunks()), dtype=np.int64)
