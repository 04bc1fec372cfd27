"""The distinct (user, item) pairs of rows that DuckDB reads, and the aggregate queries on them, by numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from discreet.engines.base import int64_array
from discreet.engines.pairs import arrow_array, joined_items, label_names, numbered_items
from discreet.errors import InexactHead
from discreet.head_request import Kind
from discreet.values import CAPPED_BASKET, MAX_BASKET, WEIGHT_UNIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import duckdb
    from numpy.typing import NDArray

    from discreet.engines.sql import HeadStatement

    Ints = NDArray[np.int64]

_BATCH = 2**20
_OUT_OF_ORDER = "DuckDB returned pairs in a different order than they were written"
_ROWS, _ITEMS, _SORTED, _PAIRS = (f"discreet_{name}" for name in ("rows", "items", "sorted", "pairs"))
_GIVEN = "discreet_given"
"""The name under which Arrow tables are registered for a statement."""


class DuckDBPairs:
    """`discreet.values.UserItemPairs` on a temporary table of a connection, sorted by user, which spills to disk.

    Every query reads the table once, in batches: adding up a user's adjacent pairs takes a third of the time of a
    GROUP BY, and skipping duplicates between them half the time of a DISTINCT. In memory are a batch, at most
    `MAX_BASKET` pairs of one user and a few numbers per item.

    Args:
        words: writes the SELECT of the rows in DuckDB's dialect.
        run: runs a statement within the time limit.
    """

    def __init__(
        self,
        words: HeadStatement,
        connection: duckdb.DuckDBPyConnection,
        run: Callable[[Callable[[], pa.Table]], pa.Table],
    ) -> None:
        self._words = words
        self._connection = connection
        self._run = run
        self._labels = ", ".join(label_names(words))
        self._items = 0
        self._numbers = np.zeros(0, dtype=np.int64)
        self._users_of_size = np.zeros(0, dtype=np.int64)

    def create(self) -> None:
        """Write the pairs, and count users by size and by item."""
        words = self._words
        self._write(_ROWS, f"SELECT {self._labels}, u FROM ({words.rows()}) AS r", words.parameters)
        self._write(_ITEMS, numbered_items(words, _ROWS))
        pairs = joined_items(words, _ROWS, _ITEMS)
        if self._has_integer_users():
            owner = "u"
        else:
            owner = "owner"
            owners = f"SELECT u, row_number() OVER () AS owner FROM (SELECT DISTINCT u FROM {_ROWS})"
            pairs = f"{pairs} JOIN ({owners}) AS o USING (u)"
        self._write(_SORTED, f"SELECT {owner} AS owner, item FROM {pairs} ORDER BY owner, item")
        self._connection.execute(f"DROP TABLE {_ROWS}")
        self._write_distinct()
        self._connection.execute(f"DROP TABLE {_SORTED}")
        self._items = self._count(_ITEMS)
        users_of_item = np.zeros(self._items, dtype=np.int64)
        users_of_size = np.zeros(MAX_BASKET + 1, dtype=np.int64)
        for held, sizes in self._baskets():
            users_of_item += np.bincount(held, minlength=self._items)
            few = np.bincount(sizes)
            users_of_size[: len(few)] += few
        self._numbers = np.flatnonzero(users_of_item)
        self._users_of_size = users_of_size

    def drop(self) -> None:
        """Drop all tables that were written, also after a failure."""
        for name in (_PAIRS, _SORTED, _ITEMS, _ROWS):
            self._connection.execute(f"DROP TABLE IF EXISTS {name}")
        self._connection.unregister(_GIVEN)

    def users_by_size(self, bounds: Ints) -> Ints:
        """Count users by their number of items."""
        sizes = np.flatnonzero(self._users_of_size)
        return _sums(_bins(sizes, bounds), self._users_of_size[sizes], len(bounds))

    def count_items(self) -> int:
        """Return the number of items."""
        return len(self._numbers)

    def weighted_sums(self, limit: float) -> Iterator[Ints]:
        """Add up the weights of every item's users."""
        return self._item_sums(lambda sizes: _weights(limit / np.sqrt(sizes)))

    def capped_sums(self, cap: int) -> Iterator[Ints]:
        """Add up the weights of every item's users, at most *cap* items for each user."""
        return self._item_sums(lambda sizes: np.where(sizes > CAPPED_BASKET * cap, 0, _weights(cap / sizes)))

    def _item_sums(self, weights: Callable[[Ints], Ints]) -> Iterator[Ints]:
        """Add up, for every item, the *weights* of its users by their numbers of items."""
        sums = np.zeros(self._items, dtype=np.int64)
        for items, sizes in self._baskets():
            sums += _sums(items, np.repeat(weights(sizes), sizes), len(sums))
        for start in range(0, len(self._numbers), _BATCH):
            yield sums[self._numbers[start : start + _BATCH]]

    def users_by_scale(self, items: Ints, last_scale: Ints, costs: Ints, bounds: Ints) -> Ints:
        """Count users by the first scale at which their items fit."""
        cost_of, scale_of = self._by_item(items, costs), self._by_item(items, last_scale)
        last = last_scale.max(initial=0)
        is_one_scale = (last_scale == last).all()
        users = np.zeros(len(bounds), dtype=np.int64)
        for held, sizes in self._baskets():
            cost = cost_of[held]
            spent = _by_user(cost, sizes)
            if is_one_scale:  # a user costs the same at every scale up to the last one
                users += np.bincount(_bins(spent, bounds[: last + 2])[spent > 0], minlength=len(bounds))
                continue
            users[0] -= np.count_nonzero(spent == 0)
            scale, left = scale_of[held], sizes
            for k, bound in enumerate(bounds):
                above = spent > bound
                users[k] += len(above) - np.count_nonzero(above)
                kept = np.repeat(above, left)
                cost, scale, left = cost[kept], scale[kept], left[above]
                spent = _by_user(np.where(scale > k, cost, 0), left)
            users[-1] += len(left)
        return users

    def clipped_sums(self, items: Ints, costs: Ints, bound: int) -> Ints:
        """Add up the weights of the users of *items*."""
        cost_of = self._by_item(items, costs)
        sums = np.zeros(self._items, dtype=np.int64)
        for held, sizes in self._baskets():
            spent = np.maximum(_by_user(cost_of[held], sizes), 1)
            sums += _sums(held, np.repeat(_weights(np.sqrt(bound / spent)), sizes), len(sums))
        return sums[self._numbers[items]]

    def labels(self, items: Ints) -> pa.Table:
        """Return the labels of *items*."""
        numbers = self._numbers[items]
        chosen = pa.table({"item": arrow_array(numbers), "place": arrow_array(np.arange(len(numbers)))})
        self._connection.register(_GIVEN, chosen)
        table = self._select(f"SELECT {self._labels} FROM {_ITEMS} JOIN {_GIVEN} USING (item) ORDER BY place")
        return table.rename_columns(list(self._words.request.items))

    def _by_item(self, items: Ints, values: Ints) -> Ints:
        """Return the values of *items* in an array indexed by the item's number in the table, 0 for other items."""
        placed = np.zeros(self._items, dtype=np.int64)
        placed[self._numbers[items]] = values
        return placed

    def _baskets(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield batches of whole users: their items' numbers, user by user, and the number of items of each user.

        Users with more than `MAX_BASKET` items are left out.

        Raises:
            InexactHead: the users are not in order.
        """
        users = items = np.zeros(0, dtype=np.int64)
        for more_users, more_items, is_last in self._batches(_PAIRS):
            users, items = np.concatenate([users, more_users]), np.concatenate([items, more_items])
            if (users[1:] < users[:-1]).any():
                raise InexactHead(_OUT_OF_ORDER)
            starts = np.flatnonzero(users[1:] != users[:-1]) + 1
            # The last user may have more rows in the next batch.
            whole = len(users) if is_last else int(starts[-1]) if len(starts) else 0
            sizes = np.diff(starts[starts < whole], prepend=0, append=whole)
            if whole:
                few = sizes <= MAX_BASKET
                yield (items[:whole], sizes) if few.all() else (items[:whole][np.repeat(few, sizes)], sizes[few])
            # The rest is one user's. More pairs than MAX_BASKET + 1 would only take memory: the user is left out.
            users, items = users[whole:][: MAX_BASKET + 1], items[whole:][: MAX_BASKET + 1]

    def _write_distinct(self) -> None:
        """Write the sorted pairs without the duplicates among them."""
        self._run(
            lambda: self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {_PAIRS} (owner BIGINT, item BIGINT)")
        )
        last_user = last_item = np.zeros(0, dtype=np.int64)
        for more_users, more_items, _ in self._batches(_SORTED):
            users, items = np.concatenate([last_user, more_users]), np.concatenate([last_item, more_items])
            is_same_user = users[1:] == users[:-1]
            if (users[1:] < users[:-1]).any() or (is_same_user & (items[1:] < items[:-1])).any():
                raise InexactHead(_OUT_OF_ORDER)
            is_new = np.concatenate([[not len(last_user)], ~is_same_user | (items[1:] != items[:-1])])
            last_user, last_item = users[-1:], items[-1:]
            distinct = {"owner": arrow_array(users[is_new]), "item": arrow_array(items[is_new])}
            self._connection.register(_GIVEN, pa.table(distinct))
            self._run(lambda: self._connection.execute(f"INSERT INTO {_PAIRS} FROM {_GIVEN}"))

    def _batches(self, table: str) -> Iterator[tuple[Ints, Ints, bool]]:
        """Yield batches of *table*: the users, the items, and True for the last batch.

        Raises:
            InexactHead: a row is missing.
        """
        rows = self._count(table)
        for first in range(0, rows, _BATCH):
            end = min(first + _BATCH, rows)
            batch = self._select(f"SELECT owner, item FROM {table} WHERE rowid >= {first} AND rowid < {end}")
            if batch.num_rows != end - first:
                raise InexactHead(_OUT_OF_ORDER)
            users, items = (np.concatenate([*map(np.from_dlpack, column.chunks)]) for column in batch.columns)
            yield users, items, end == rows

    def _has_integer_users(self) -> bool:
        """Return True if the user column holds integers that fit int64."""
        column = self._words.columns[self._words.request.user]
        within = column.number is not None and column.number.least >= -(2**63) and column.number.most < 2**63
        return column.kind is Kind.INTEGER and within

    def _count(self, name: str) -> int:
        return int(int64_array(self._select(f"SELECT count(*) AS n FROM {name}").column("n"))[0])

    def _write(self, name: str, select: str, parameters: Sequence[object] | None = None) -> None:
        create = f"CREATE OR REPLACE TEMP TABLE {name} AS {select}"
        self._run(lambda: self._connection.execute(create, parameters))

    def _select(self, statement: str) -> pa.Table:
        return self._run(lambda: self._connection.sql(statement).to_arrow_table())


def _weights(share: NDArray[np.float64]) -> Ints:
    """Return users' weights in units of 1 / `WEIGHT_UNIT`, from the share of their items that a bound allows."""
    scaled: Ints = np.floor(WEIGHT_UNIT * np.minimum(1.0, share)).astype(np.int64)
    return np.maximum(scaled - 1, 0)


def _by_user(values: Ints, sizes: Ints) -> Ints:
    """Return the sum of the values of each user; *sizes* are the numbers of values, at least 1."""
    if not len(sizes):
        return sizes
    sums: Ints = np.add.reduceat(values, np.cumsum(sizes) - sizes)
    return sums


def _bins(values: Ints, bounds: Ints) -> Ints:
    """Return for each value the first bin with a bound of at least the value, or else the last bin."""
    return np.minimum(np.searchsorted(bounds, values), len(bounds) - 1)


def _sums(keys: Ints, values: Ints, size: int) -> Ints:
    """Return the sums of *values* by key; exact, because sums of a batch are below 2^53, the limit of exact floats."""
    return np.bincount(keys, weights=values, minlength=size).astype(np.int64)
