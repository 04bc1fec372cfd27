"""Leave out released items that the data owner does not want to be shown: post-processing, which costs nothing.

Decided by noisy counts and released labels alone, never by rows.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from discreet.values import Outcome

if TYPE_CHECKING:
    from discreet.query.query import Query


def shown(query: Query, labels: pa.Table, outcome: Outcome) -> tuple[pa.Table, Outcome]:
    """Return the items of *outcome* that the catalog lets be shown, in their order, at the same cost.

    With `Query.min_users`, an item is shown if the lower end of its 95 % interval is at least that number, so if its
    noisy count is higher by 1.96 standard errors. Where rows are counted, that number is multiplied by the most rows of
    one user. With `Query.patterns`, an item is shown if its labels match; a missing label does.

    Args:
        labels: the items, in the order of *outcome*.
    """
    is_shown = np.ones(len(outcome.positions), dtype=bool)
    if query.min_users is not None and query.request.items and outcome.low is not None:
        is_shown &= outcome.low >= query.min_users * query.request.rows_per_group
    for column, pattern in query.patterns:
        is_shown &= matching(labels.column(column), pattern)
    if is_shown.all():
        return labels, outcome

    return labels.take(np.flatnonzero(is_shown)), dataclasses.replace(outcome.take(is_shown), complete=False)


def matching(labels: pa.ChunkedArray, pattern: str) -> NDArray[np.bool_]:
    """Return whether each label matches the whole of a regular expression, in time linear in its length (RE2)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    matches = pc.match_substring_regex(labels.cast(pa.string()), whole(pattern))
    return matches.fill_null(fill_value=True).to_numpy().astype(bool)  # type: ignore[no-any-return]


def whole(pattern: str) -> str:
    """Return the regular expression that matches where *pattern* matches a whole text."""
    return rf"\A(?:{pattern})\z"
