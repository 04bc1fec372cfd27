"""The distinct (user, item) pairs of rows that DuckDB reads, and the aggregate queries on them, by numpy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from discreet.engines.base import arrow_array
from discreet.engines.pairs import joined_items, numbered_items
from discreet.engines.sql import HeadStatement
from discreet.errors import EngineError, InexactHead
from discreet.head_request import Kind
from discreet.values import CAPPED_BASKET, MAX_BASKET, WEIGHT_UNIT

Ints = NDArray[np.signedinteger[Any]]
Block = tuple[Ints, Ints, Ints]

_BATCH = 2**20
_RANGE = 2**25
"""About how many rows are sorted at a time: more take more memory, fewer more scans."""

_SAMPLED = 1_000
"""One in this number of rows is sampled to find ranges of that size."""

_LEAST_SPAN = 2**22
_MOST_SPAN = 4
"""Integers that name users are used as positions if their span is at most the former, or the latter times the rows."""

_KEY_BITS = 63
_HASH = "CAST(hash({}) >> 1 AS BIGINT)"
_OTHER_ROWS = "DuckDB returned other rows when it read them again"
_ROWS, _CODES, _ITEMS, _OWNERS, _KEYS = (f"discreet_{name}" for name in ("rows", "codes", "items", "owners", "keys"))
_GIVEN = "discreet_given"
"""The name under which an Arrow table is registered for a statement."""


class DuckDBPairs:
    """`discreet.values.UserItemPairs` on arrays: the distinct users of each item.

    A row is one number: the first bits of the hash of its label, above the number of its user. Sorting these numbers
    groups the pairs by item and makes duplicates adjacent. This is exact because the distinct labels, which DuckDB
    selects, have different bits; if they do not, a join with them puts the number of the item in the place of the bits.

    The numbers, or the hashes and users that they are computed from, are in a temporary table, which spills to disk;
    numpy sorts a range of them at a time. In memory are a range, 4 bytes for each distinct pair, about 20 for each user
    and a few numbers for each item.

    Args:
        words: writes the SELECT of the rows in DuckDB's dialect.
        run: runs a statement within the time limit.
        is_view: True if the rows may be others when they are selected again.
    """

    def __init__(
        self,
        words: HeadStatement,
        connection: duckdb.DuckDBPyConnection,
        run: Callable[[Callable[[], Any]], Any],
        *,
        is_view: bool,
    ) -> None:
        self._words = words
        self._connection = connection
        self._run = run
        self._is_view = is_view
        self._threads = ThreadPoolExecutor(2)
        self._user_bits: int  # this and what follows is known after `create`
        self._sizes: Ints
        self._numbers: Ints
        self._users_of_item: Ints
        self._blocks: list[Block]
        """Numbers of items, each with its number of users, and these users; an item may go on in the next block."""

    def create(self) -> None:
        """Read the pairs, and count users by item and by size.

        Raises:
            EngineError: users and items are too many for a number, which takes over 2 * 10^9 rows.
            InexactHead: the rows do not have the labels that were selected.
        """
        keys, codes, order, users = self._select_keys()
        sizes = np.zeros(users, dtype=np.int32)
        blocks = []
        read = [codes[:0]]
        place = -1
        last = -1
        for ordered in self._sorted(keys):
            for start in range(0, len(ordered), _BATCH):
                rows = ordered[start : start + _BATCH]
                pairs = rows[_begins(rows, last)]
                if not len(pairs):
                    continue
                of = pairs >> self._user_bits
                starts = np.flatnonzero(_begins(of, -1))
                new = int(of[0] != last >> self._user_bits)
                place += new
                read.append(of[starts[1 - new :]])
                users_of_pairs = (pairs & 2**self._user_bits - 1).astype(np.int32 if users < 2**31 else np.int64)
                np.add.at(sizes, users_of_pairs, np.int32(1))  # a number of another type would take ten times as long
                blocks.append((order[place : place + len(starts)], np.diff(starts, append=len(pairs)), users_of_pairs))
                place += len(starts) - 1
                last = pairs[-1]
        self._connection.execute(f"DROP TABLE IF EXISTS {_KEYS}; DROP TABLE IF EXISTS {_CODES}")
        if not np.array_equal(np.concatenate(read), codes):
            raise InexactHead(_OTHER_ROWS)
        self._sizes = sizes
        self._blocks = blocks
        self._users_of_item = np.zeros(len(codes), dtype=np.int64)
        for items, counts, _ in blocks:
            self._users_of_item[items] += counts
        left_out = sizes > MAX_BASKET
        if left_out.any():
            self._users_of_item -= self._add_up(left_out.astype(np.int32), self._users_of_item)
            sizes[left_out] = 0
        self._numbers = np.flatnonzero(self._users_of_item)

    def _select_keys(self) -> tuple[str, Ints, Ints, int]:
        """Find a number for the pair of each row: a code of its item, above a number of its user.

        Returns:
            a relation with a column of these numbers, pair; the codes, ascending; the item that has each of them; and a
            number above those of the users.
        """
        rows = f"({self._words.rows()})"
        parameters: list[str] | None = self._words.parameters
        if self._is_view:
            self._write(_ROWS, f"FROM {rows}", parameters)
            rows = _ROWS
            parameters = None
        label = _HASH.format(self._words.items)
        user = "CAST(u AS BIGINT)" if self._has_integer_users() else _HASH.format("u")
        self._write(_CODES, f"SELECT {label} AS h, {user} AS v FROM {rows} AS r", parameters)
        self._write(_ITEMS, f"SELECT *, {label} AS h FROM ({numbered_items(self._words, rows)}) AS n", parameters)
        hashes = self._integers(f"SELECT h FROM {_ITEMS} ORDER BY item")
        order = np.argsort(hashes)
        hashes = hashes[order]
        is_hashed = _are_different(hashes)
        count = self._count(_CODES)
        users = 2**64
        if self._has_integer_users():
            least, most = self._numbers_of(f"SELECT coalesce(min(v), 0), coalesce(max(v), 0) FROM {_CODES}")
            users = most - least + 1
            owner = f"(v - CAST('{least}' AS BIGINT))"
        pairs = _CODES
        if not is_hashed or users > max(_LEAST_SPAN, _MOST_SPAN * count):
            named = f"(SELECT DISTINCT u FROM {rows} AS r) AS n"
            self._write(_OWNERS, f"SELECT u, {user} AS v, row_number() OVER () - 1 AS owner FROM {named}", parameters)
            users, names = self._numbers_of(f"SELECT count(*), count(DISTINCT v) FROM {_OWNERS}")
            is_hashed = is_hashed and names == users
            owner = "owner"
            pairs = f"{_CODES} JOIN {_OWNERS} USING (v)"
        self._user_bits = max(users - 1, 0).bit_length()
        if len(hashes).bit_length() + self._user_bits > _KEY_BITS:
            raise EngineError("DuckDB cannot number so many users and items")
        codes = hashes >> self._user_bits
        key = f"(h & {-(2**self._user_bits)}) + {owner}"
        if not is_hashed or not _are_different(codes):
            codes = order = np.arange(len(hashes))
            key = f"item * {2**self._user_bits} + {owner}"
            pairs += f" JOIN (SELECT item, h FROM {_ITEMS}) AS i USING (h)"
        if not is_hashed:  # the labels and users themselves are compared
            pairs = f"{joined_items(self._words, rows, _ITEMS)} JOIN {_OWNERS} AS o ON d.u = o.u"
        keys = f"SELECT {key} AS pair FROM {pairs}"
        if pairs == _CODES and count <= _RANGE:  # they are selected once
            return f"({keys})", codes, order, users
        self._write(_KEYS, keys, None if is_hashed else parameters)
        if self._count(_KEYS) != count:
            raise InexactHead(_OTHER_ROWS)
        self._connection.execute(f"DROP TABLE {_CODES}")
        return _KEYS, codes, order, users

    def _sorted(self, keys: str) -> Iterator[Ints]:
        """Yield the numbers of pairs in *keys* in ascending order, range by range.

        Ends of ranges are sampled. Rows of the same pair may be more than fit in memory, but then most ends are that
        pair, and a range of a single pair is not read.
        """
        times: Counter[int] = Counter()
        if self._count(keys) > _RANGE:
            sample = self._integers(f"SELECT pair FROM {_KEYS} WHERE hash(rowid) % {_SAMPLED} = 0")
            times.update(np.sort(sample)[:: _RANGE // _SAMPLED].tolist())
        frequent = {end for end, count in times.items() if count > 1}
        starts = sorted({0, *times, *(end + 1 for end in frequent)})
        for start, end in zip(starts, [*starts[1:], 2**_KEY_BITS], strict=True):
            if start in frequent:  # the next range begins with the next number
                yield np.array([start])
                continue
            within = f" WHERE pair BETWEEN {start} AND {end - 1}" if len(starts) > 1 else ""
            pairs = self._integers(f"SELECT pair FROM {keys}{within}")
            middle = len(pairs) // 2
            list(self._threads.map(np.ndarray.sort, (pairs[:middle], pairs[middle:])))
            pairs.sort(kind="stable")  # which merges the two
            yield pairs

    def drop(self) -> None:
        """Drop all tables that were written, also after a failure."""
        self._threads.shutdown()
        for name in (_KEYS, _OWNERS, _ITEMS, _CODES, _ROWS):
            self._connection.execute(f"DROP TABLE IF EXISTS {name}")
        self._connection.unregister(_GIVEN)

    def users_by_size(self, bounds: Ints) -> Ints:
        """Count users by their number of items."""
        users = np.bincount(self._sizes)
        sizes = np.flatnonzero(users[1:]) + 1
        return np.bincount(_bins(sizes, bounds), weights=users[sizes], minlength=len(bounds)).astype(np.int64)

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
        weight_of = np.zeros(int(self._sizes.max(initial=0)) + 1, dtype=np.int32)
        weight_of[1:] = weights(np.arange(1, len(weight_of)))
        sums = self._add_up(weight_of[self._sizes], self._users_of_item)
        for start in range(0, len(self._numbers), _BATCH):
            yield sums[self._numbers[start : start + _BATCH]]

    def users_by_scale(self, items: Ints, last_scale: Ints, costs: Ints, bounds: Ints) -> Ints:
        """Count users by the first scale at which their items fit."""
        cost_of = self._by_item(items, costs)
        scale_of = self._by_item(items, last_scale)
        blocks = [_chosen(block, cost_of) for block in self._blocks]
        spent = self._spent(cost_of, blocks)
        left = np.flatnonzero(spent)
        users = np.zeros(len(bounds), dtype=np.int64)
        for k, bound in enumerate(bounds):
            if k and (last_scale == k - 1).any():  # these items cost nothing from here on
                spent -= self._spent(np.where(scale_of == k - 1, cost_of, 0), blocks)
            above = spent[left] > bound
            users[k] += len(left) - np.count_nonzero(above)
            left = left[above]
        users[-1] += len(left)
        return users

    def clipped_sums(self, items: Ints, costs: Ints, bound: int) -> Ints:
        """Add up the weights of the users of *items*."""
        if int(costs.max(initial=0)) * len(costs) <= bound:  # no user is above the bound
            return (WEIGHT_UNIT - 1) * self._users_of_item[self._numbers[items]]
        cost_of = self._by_item(items, costs)
        weight = _weights(np.sqrt(bound / np.maximum(self._spent(cost_of, self._blocks), 1)))
        weight[self._sizes == 0] = 0
        return self._add_up(weight, cost_of)[self._numbers[items]]

    def labels(self, items: Ints) -> pa.Table:
        """Return the labels of *items*."""
        numbers = self._numbers[items]
        chosen = pa.table({"item": arrow_array(numbers), "place": arrow_array(np.arange(len(numbers)))})
        self._connection.register(_GIVEN, chosen)
        table = self._select(f"SELECT {self._words.items} FROM {_ITEMS} JOIN {_GIVEN} USING (item) ORDER BY place")
        return table.rename_columns(list(self._words.request.items))

    def _by_item(self, items: Ints, values: Ints) -> Ints:
        """Return the values of *items* in an array indexed by the item's number in the table, 0 for other items."""
        placed = np.zeros_like(self._users_of_item)
        placed[self._numbers[items]] = values
        return placed

    def _spent(self, cost_of: Ints, blocks: list[Block]) -> Ints:
        """Return the sum of the costs of each user's items in *blocks*; 0 for users who are left out."""
        spent = np.zeros(len(self._sizes), dtype=np.int64)
        for block in blocks:
            items, counts, users = _chosen(block, cost_of)
            np.add.at(spent, users, np.repeat(cost_of[items], counts))
        spent[self._sizes == 0] = 0
        return spent

    def _add_up(self, weight: Ints, chosen: Ints) -> Ints:
        """Return the sum of the weights of each item's users; 0 for items of which *chosen* is 0."""
        sums = np.zeros(len(chosen), dtype=np.int64)

        def add_up(block: Block) -> tuple[Ints, Ints]:
            items, counts, users = _chosen(block, chosen)
            return items, np.add.reduceat(weight.take(users), np.cumsum(counts) - counts, dtype=np.int64)

        for items, weights in self._threads.map(add_up, self._blocks):
            sums[items] += weights
        return sums

    def _integers(self, statement: str) -> Ints:
        """Return the only column that is selected."""
        chunks = self._select(statement).column(0).chunks
        return np.concatenate([np.zeros(0, dtype=np.int64), *map(np.from_dlpack, chunks)])

    def _has_integer_users(self) -> bool:
        """Return True if the user column holds integers that fit int64."""
        column = self._words.columns[self._words.request.user]
        return column.kind is Kind.INTEGER and column.number is not None and column.number.most < 2**63

    def _count(self, name: str) -> int:
        return self._numbers_of(f"SELECT count(*) FROM {name}")[0]

    def _numbers_of(self, statement: str) -> list[int]:
        """Return the numbers in the only row that is selected."""
        return [column[0].as_py() for column in self._select(statement).columns]

    def _write(self, name: str, select: str, parameters: list[str] | None = None) -> None:
        create = f"CREATE OR REPLACE TEMP TABLE {name} AS {select}"
        self._run(lambda: self._connection.execute(create, parameters))

    def _select(self, statement: str) -> pa.Table:
        table: pa.Table = self._run(lambda: self._connection.sql(statement).to_arrow_table())
        return table


def _chosen(block: Block, chosen: Ints) -> Block:
    """Return *block* without the items of which *chosen* is 0."""
    items, counts, users = block
    is_chosen = chosen[items] != 0
    return block if is_chosen.all() else (items[is_chosen], counts[is_chosen], users[np.repeat(is_chosen, counts)])


def _weights(share: NDArray[np.float64]) -> Ints:
    """Return users' weights in units of 1 / `WEIGHT_UNIT`, from the share of their items that a bound allows."""
    scaled: Ints = np.floor(WEIGHT_UNIT * np.minimum(1.0, share)).astype(np.int64)
    return np.maximum(scaled - 1, 0)


def _bins(values: Ints, bounds: Ints) -> Ints:
    """Return for each value the first bin with a bound of at least the value, or else the last bin."""
    return np.minimum(np.searchsorted(bounds, values), len(bounds) - 1)


def _begins(ordered: Ints, last: int) -> NDArray[np.bool_]:
    """Return for each number whether it differs from the one before it, of which *last* is the first one's."""
    begins = np.empty(len(ordered), dtype=np.bool_)
    begins[:1] = ordered[:1] != last
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    return begins


def _are_different(ordered: Ints) -> bool:
    return bool((ordered[1:] != ordered[:-1]).all())
