"""The distinct (user, item) pairs of rows that DuckDB reads, and the aggregate queries on them, by numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from discreet.engines.base import int64_array
from discreet.engines.pairs import arrow_array, joined_items, label_names, numbered_items
from discreet.errors import EngineError, InexactHead
from discreet.head_request import Kind
from discreet.values import CAPPED_BASKET, MAX_BASKET, WEIGHT_UNIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import duckdb
    from numpy.typing import NDArray

    from discreet.engines.sql import HeadStatement

    Ints = NDArray[np.int64]

_BATCH = 2**20
_LEAST_RANGE = 2**21
_MOST_RANGE = 2**23
"""The least and the most pairs that are sorted in memory at a time, about: more take more memory, fewer more scans."""

_SAMPLED = 1_000
"""One in this number of pairs is sampled to find ranges of that size."""

_KEY_BITS = 63
_HASH = "hash({})"
_OUT_OF_ORDER = "DuckDB returned pairs in a different order than they were written"
_MISSING = "DuckDB returned fewer pairs than rows"
_ROWS, _ITEMS, _OWNERS, _KEYS, _PAIRS = (f"discreet_{name}" for name in ("rows", "items", "owners", "keys", "pairs"))
_GIVEN = "discreet_given"
"""The name under which Arrow tables are registered for a statement."""


class DuckDBPairs:
    """`discreet.values.UserItemPairs` on a temporary table of a connection, sorted by user, which spills to disk.

    A pair is one number: the user's, above the bits of the item's. Numpy sorts a range of these at a time and skips
    duplicates, in a fifth of the time of an ORDER BY or a DISTINCT in DuckDB. Every query reads the sorted table once,
    in batches: adding up a user's adjacent pairs takes a third of the time of a GROUP BY. In memory are a range or a
    batch, at most `MAX_BASKET` pairs of one user and a few numbers per item.

    Args:
        words: writes the SELECT of the rows in DuckDB's dialect.
        run: runs a statement within the time limit.
    """

    def __init__(
        self,
        words: HeadStatement,
        connection: duckdb.DuckDBPyConnection,
        run: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self._words = words
        self._connection = connection
        self._run = run
        self._labels = ", ".join(label_names(words))
        self._items: int  # this and what follows is known after `create`
        self._item_bits: int
        self._numbers: Ints
        self._users_of_item: Ints
        self._users_of_size: Ints

    def create(self) -> None:
        """Write the pairs, and count users by item and by size."""
        words = self._words
        labels = self._labels
        rows = f"SELECT {labels}, {_HASH.format(labels)} AS h, u FROM ({words.rows()}) AS r"
        self._write(_ROWS, rows, words.parameters)
        numbered = numbered_items(words, _ROWS)
        self._write(_ITEMS, f"SELECT *, {_HASH.format(labels)} AS h FROM ({numbered}) AS n")
        self._write_keys()
        self._connection.execute(f"DROP TABLE {_ROWS}")
        users_of_item = np.zeros(self._items, dtype=np.int64)
        users_of_size = np.zeros(MAX_BASKET + 1, dtype=np.int64)
        for held, sizes in self._baskets(self._sorted()):
            users_of_item += np.bincount(held, minlength=self._items)
            few = np.bincount(sizes)
            users_of_size[: len(few)] += few
        self._connection.execute(f"DROP TABLE {_KEYS}")
        self._numbers = np.flatnonzero(users_of_item)
        self._users_of_item = users_of_item
        self._users_of_size = users_of_size

    def _write_keys(self) -> None:
        """Write a number for the pair of each row: user and item.

        Raises:
            EngineError: users and items are too many for a number, which takes over 2 * 10^9 rows.
            InexactHead: a row is missing.
        """
        self._items, hashes, rows = self._numbers_of(
            f"SELECT count(*), count(DISTINCT h), (SELECT count(*) FROM {_ROWS}) FROM {_ITEMS}"
        )
        # Comparing hashes takes half the time of comparing labels. It is exact if no two labels have the same hash.
        pairs = f"{_ROWS} AS d JOIN {_ITEMS} AS i ON d.h = i.h"
        if hashes < self._items:
            pairs = joined_items(self._words, _ROWS, _ITEMS)
        self._item_bits = self._items.bit_length()
        users = 2**_KEY_BITS
        if self._has_integer_users():
            least, most = self._numbers_of(f"SELECT coalesce(min(u), 0), coalesce(max(u), 0) FROM {_ROWS}")
            owner = f"(d.u - CAST('{least}' AS BIGINT))"
            users = most - least + 1
        if users.bit_length() + self._item_bits > _KEY_BITS:
            self._write(_OWNERS, f"SELECT u, row_number() OVER () AS owner FROM (SELECT DISTINCT u FROM {_ROWS})")
            owner = "owner"
            users = self._numbers_of(f"SELECT count(*) FROM {_OWNERS}")[0]
            pairs = f"{pairs} JOIN {_OWNERS} AS o ON d.u = o.u"
        if users.bit_length() + self._item_bits > _KEY_BITS:
            raise EngineError("DuckDB cannot number so many users and items")
        self._write(_KEYS, f"SELECT {owner} * {2**self._item_bits} + item AS pair FROM {pairs}")
        if self._numbers_of(f"SELECT count(*) FROM {_KEYS}") != [rows]:
            raise InexactHead(_MISSING)

    def _sorted(self) -> Iterator[tuple[Ints, bool]]:
        """Write the distinct pairs in ascending order, and yield them range by range, with True for the last one.

        Ends of ranges are sampled. Rows of the same pair may be more than fit in memory, but then most ends are that
        pair, and a range of a single pair is not read.
        """
        create = f"CREATE OR REPLACE TEMP TABLE {_PAIRS} (pair BIGINT)"
        self._run(lambda: self._connection.execute(create))
        rows = self._count(_KEYS)
        step = min(max(rows >> 4, _LEAST_RANGE), _MOST_RANGE) // _SAMPLED
        sample = np.sort(self._pairs(f"FROM {_KEYS} WHERE hash(rowid) % {_SAMPLED} = 0"))
        ends, times = np.unique(sample[step::step], return_counts=True)
        frequent = ends[times > 1]
        starts = np.unique(np.concatenate([[0], ends, frequent + 1]))
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), 2**_KEY_BITS], strict=True):
            if start in frequent:  # the next range begins with the next number
                pairs = np.array([start])
            else:
                pairs = self._pairs(f"FROM {_KEYS} WHERE pair BETWEEN {start} AND {end - 1}")
                pairs.sort()
                pairs = pairs[np.concatenate([[True], pairs[1:] != pairs[:-1]])[: len(pairs)]]
            self._connection.register(_GIVEN, pa.table({"pair": arrow_array(pairs)}))
            self._run(lambda: self._connection.execute(f"INSERT INTO {_PAIRS} FROM {_GIVEN}"))
            yield pairs, end == 2**_KEY_BITS

    def drop(self) -> None:
        """Drop all tables that were written, also after a failure."""
        for name in (_PAIRS, _KEYS, _OWNERS, _ITEMS, _ROWS):
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
        cost_of = self._by_item(items, costs)
        scale_of = self._by_item(items, last_scale)
        last = last_scale.max(initial=0)
        is_one_scale = (last_scale == last).all()
        users = np.zeros(len(bounds), dtype=np.int64)
        for held, sizes in self._baskets():
            cost = cost_of[held]
            spent = _by_user(cost, sizes)
            if is_one_scale:  # a user costs the same at every scale up to the last one
                users += np.bincount(_bins(spent[spent > 0], bounds[: last + 2]), minlength=len(bounds))
                continue
            users[0] -= np.count_nonzero(spent == 0)
            scale = scale_of[held]
            left = sizes
            for k, bound in enumerate(bounds):
                above = spent > bound
                users[k] += len(above) - np.count_nonzero(above)
                kept = np.repeat(above, left)
                cost = cost[kept]
                scale = scale[kept]
                left = left[above]
                spent = _by_user(np.where(scale > k, cost, 0), left)
            users[-1] += len(left)
        return users

    def clipped_sums(self, items: Ints, costs: Ints, bound: int) -> Ints:
        """Add up the weights of the users of *items*."""
        if int(costs.max(initial=0)) * len(costs) <= bound:  # no user is above the bound
            return (WEIGHT_UNIT - 1) * self._users_of_item[self._numbers[items]]
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

    def _baskets(self, batches: Iterator[tuple[Ints, bool]] | None = None) -> Iterator[tuple[Ints, Ints]]:
        """Yield batches of whole users: their items' numbers, user by user, and the number of items of each user.

        Users with more than `MAX_BASKET` items are left out.

        Raises:
            InexactHead: the users are not in order.
        """
        pairs = np.zeros(0, dtype=np.int64)
        for more, is_last in batches or self._batches():
            pairs = np.concatenate([pairs, more])
            if (pairs[1:] <= pairs[:-1]).any():
                raise InexactHead(_OUT_OF_ORDER)
            users = pairs >> self._item_bits
            starts = np.flatnonzero(users[1:] != users[:-1]) + 1
            # The last user may have more rows in the next batch.
            whole = len(pairs) if is_last else int(starts[-1]) if len(starts) else 0
            sizes = np.diff(starts[starts < whole], prepend=0, append=whole)
            if whole:
                items = pairs[:whole] & 2**self._item_bits - 1
                few = sizes <= MAX_BASKET
                yield (items, sizes) if few.all() else (items[np.repeat(few, sizes)], sizes[few])
            # The rest is one user's. More pairs than MAX_BASKET + 1 would only take memory: the user is left out.
            pairs = pairs[whole:][: MAX_BASKET + 1]

    def _batches(self) -> Iterator[tuple[Ints, bool]]:
        """Yield batches of the sorted pairs, and True for the last batch.

        Raises:
            InexactHead: a pair is missing.
        """
        rows = self._count(_PAIRS)
        read = 0
        # One scan: a filter by rowid would read the whole table for each batch, without DuckDB's filter pushdown.
        statement = f"SELECT pair FROM {_PAIRS}"
        with self._run(lambda: self._connection.sql(statement).to_arrow_reader(_BATCH)) as reader:
            while read < rows:
                batch = self._run(lambda: next(reader, None))
                if batch is None:
                    raise InexactHead(_OUT_OF_ORDER)
                read += len(batch)
                yield np.asarray(np.from_dlpack(batch.column("pair")), dtype=np.int64), read == rows

    def _pairs(self, source: str) -> Ints:
        """Return the pairs of rows that are selected by FROM and WHERE."""
        chunks = self._select(f"SELECT pair {source}").column("pair").chunks
        return np.concatenate([np.zeros(0, dtype=np.int64), *map(np.from_dlpack, chunks)])

    def _has_integer_users(self) -> bool:
        """Return True if the user column holds integers that fit int64."""
        column = self._words.columns[self._words.request.user]
        return column.kind is Kind.INTEGER and column.number is not None and column.number.most < 2**63

    def _count(self, name: str) -> int:
        return self._numbers_of(f"SELECT count(*) FROM {name}")[0]

    def _numbers_of(self, statement: str) -> list[int]:
        """Return the numbers in the only row that is selected."""
        return [int(int64_array(column)[0]) for column in self._select(statement).columns]

    def _write(self, name: str, select: str, parameters: Sequence[object] | None = None) -> None:
        create = f"CREATE OR REPLACE TEMP TABLE {name} AS {select}"
        self._run(lambda: self._connection.execute(create, parameters))

    def _select(self, statement: str) -> pa.Table:
        table: pa.Table = self._run(lambda: self._connection.sql(statement).to_arrow_table())
        return table


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
