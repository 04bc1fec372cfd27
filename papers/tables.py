"""Tables of users and items: real ones if they are there, made-up ones always.

A real table is a Parquet file with the columns user_id and item in the folder `shared/data` beside the repository. It
is read, never copied. A made-up table is generated to match the published statistics of one that cannot be had.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

REAL = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


@dataclass(frozen=True)
class UserItems:
    """Deduplicated (user, item) pairs with dense numbers for both.

    Args:
        name: what people call the table; made-up tables say so in their name.
        users: int64 of shape (n,), values 0..number of users - 1.
        items: int64 of shape (n,), values 0..number of items - 1.
    """

    name: str
    users: NDArray[np.int64]
    items: NDArray[np.int64]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Distinct users of each item, shape (number of items,)."""
        return np.bincount(self.items).astype(np.int64)

    @cached_property
    def head(self) -> NDArray[np.int64]:
        """The counts in descending order; ties by item number."""
        return np.sort(self.counts)[::-1].copy()

    @cached_property
    def number_of_users(self) -> int:
        """How many users there are."""
        return int(self.users.max()) + 1


class Tables:
    """Tables by name.

    Args:
        real: the folder of the real tables, which need not exist.
    """

    def __init__(self, real: Path = REAL) -> None:
        self._real = real
        self._kept: dict[str, UserItems] = {}

    def has(self, name: str) -> bool:
        """True if the real table *name* is there."""
        return (self._real / f"{name}.parquet").exists()

    def real(self, name: str) -> UserItems:
        """The real table *name*."""
        if name not in self._kept:
            rows = duckdb.sql(
                f"SELECT dense_rank() OVER (ORDER BY user_id) - 1 AS u, dense_rank() OVER (ORDER BY item) - 1 AS i "
                f"FROM (SELECT DISTINCT user_id, item FROM '{self._real / name}.parquet') ORDER BY u, i"
            ).fetchnumpy()
            self._kept[name] = UserItems(name, rows["u"].astype(np.int64), rows["i"].astype(np.int64))
        return self._kept[name]
