"""Distinct (user, item) pairs: the form in which experiments hold every table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import duckdb
    from numpy.typing import NDArray


@dataclass(frozen=True)
class UserItems:
    """Distinct (user, item) pairs, users and items numbered from 0 without gaps.

    Args:
        name: the title of the table; that of a made-up table says so.
        users: int64 of shape (n,), values 0..number of users - 1, ascending.
        items: int64 of shape (n,), values 0..number of items - 1.
    """

    name: str
    users: NDArray[np.int64]
    items: NDArray[np.int64]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Return the distinct users of each item, shape (number of items,)."""
        return np.bincount(self.items).astype(np.int64)

    @cached_property
    def head(self) -> NDArray[np.int64]:
        """Return the counts in descending order; ties by item number."""
        return np.sort(self.counts)[::-1].copy()

    @cached_property
    def contributions(self) -> NDArray[np.int64]:
        """Return the distinct items of each user, shape (number of users,)."""
        return np.bincount(self.users).astype(np.int64)

    @cached_property
    def number_of_users(self) -> int:
        """Return the number of users."""
        return int(self.users.max()) + 1


def numbered(name: str, pairs: duckdb.DuckDBPyRelation) -> UserItems:
    """Return the distinct pairs of a relation with the columns user_id and item, numbered from 0."""
    rows = pairs.query(
        "pairs",
        "SELECT dense_rank() OVER (ORDER BY user_id) - 1 AS u, dense_rank() OVER (ORDER BY item) - 1 AS i "
        "FROM (SELECT DISTINCT user_id, item FROM pairs) ORDER BY u, i",
    ).fetchnumpy()
    return UserItems(name, rows["u"].astype(np.int64), rows["i"].astype(np.int64))
