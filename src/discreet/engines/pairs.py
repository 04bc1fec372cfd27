"""The distinct (user, item) pairs of a table, and the aggregate queries on them, in SQL.

One pass over the rows writes the pairs; every query reads the pairs only. All engines return the same integers: apart
from one quotient and one square root, which IEEE 754 rounds alike everywhere, all arithmetic is on integers. None of it
can fail on account of a row: quotients are of positive numbers, and no sum reaches 2^63 (a weight is below 2^20, so
sums of weights need 2^43 users; `MAX_BASKET` costs of at most `MAX_ITEM_COST` are below 2^63). The items of a user may
be one array once users with too many are left out. The users of an item, whose number is not bounded, may be one only
in an engine that has no limit on arrays except the memory that it needs to count the item's users anyway.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from discreet.engines.base import arrow_array, int64_array
from discreet.engines.sql import HeadStatement
from discreet.errors import InexactHead
from discreet.values import CAPPED_BASKET, MAX_BASKET, WEIGHT_UNIT

_OTHER_NUMBERS = "the engine answered with items of other numbers than it gave them"
_FULL_WEIGHT = WEIGHT_UNIT - 1

MAX_ELEMENTS = 2**21
"""The most rows that one array may have before it is made distinct, 17 MB; tables with fewer are not counted by user.

Trino sends no page of more than 32 MB between its tasks.
"""


def numbered_items(words: HeadStatement, source: str) -> str:
    """Return a SELECT of the distinct labels in *source*, numbered from 0 in ascending order of the labels.

    On a cluster, one task numbers all of them: a window without PARTITION BY is not divided.
    """
    return f"SELECT {words.items}, {item_number(words)} FROM (SELECT DISTINCT {words.items} FROM {source}) AS i"


def item_number(words: HeadStatement) -> str:
    """Return the column item, the number of each row of a SELECT of distinct labels."""
    return f"row_number() OVER (ORDER BY {words.ordered()}) - 1 AS item"


def joined_items(words: HeadStatement, rows: str, items: str) -> str:
    """Return a join, for use in FROM, of the relation *rows* as d with the numbered *items* as i, by their labels."""
    same = words.same if words.request.keep_missing else "{} = {}".format
    return f"{rows} AS d JOIN {items} AS i ON " + " AND ".join(same(f"d.{name}", f"i.{name}") for name in words.names)


class SqlPairs(ABC):
    """`discreet.values.UserItemPairs` in standard SQL, on relations that an engine creates.

    Users with more than `MAX_BASKET` items, and items that only they have, are in none of these.

    Args:
        words: writes the SELECT of the rows in the engine's dialect.

    Attributes:
        _users: each user u and the number n of items, for use in FROM.
        _numbered: the labels i0, i1, ... of each item, its number item and its name h, for use in FROM.
    """

    _users: str
    _numbered: str

    def __init__(self, words: HeadStatement) -> None:
        self._words = words
        self._item_count: int | None = None
        self._by_size: pa.Table | None = None
        self._few = f"n <= {MAX_BASKET}"  # a condition on users

    @abstractmethod
    def _select(self, statement: str, *, labels: bool = False) -> pa.Table:
        """Return the result of a SELECT on the relations.

        Args:
            statement: selects int64 columns a and b; or, if *labels* is True, item and the columns of labels.
        """

    @abstractmethod
    def _batches(self, statement: str) -> Iterator[pa.Table]:
        """Yield the result of a SELECT of int64 columns a and b in ascending order of a, in batches.

        In memory here is a batch. No other statement runs before the last one.
        """

    @abstractmethod
    def _named_pairs(self, columns: str) -> str:
        """Return all pairs, for use in FROM: the name h of the item, and *columns*, SQL of u and n."""

    @abstractmethod
    def _chosen(self, columns: Mapping[str, NDArray[np.int64]]) -> str:
        """Return the SQL of a relation with int64 *columns*, for use in FROM."""

    def count_items(self) -> int:
        """Return the number of items."""
        if self._item_count is None:
            self._item_count = self._count(self._numbered)
        return self._item_count

    def _count(self, source: str) -> int:
        """Return the number of rows of *source*, SQL for use in FROM."""
        table = self._select(f"SELECT count(*) AS a, CAST(0 AS BIGINT) AS b FROM {source}")
        return int(int64_column(table, "a")[0])

    def _has_large(self, sizes: str) -> bool:
        """Return True if an n of a relation, for use in FROM, is above `MAX_BASKET`."""
        return self._count(f"{sizes} WHERE NOT {self._few}") > 0

    def _has_equal_names(self) -> bool:
        """Return True if two items have one name."""
        table = self._select(f"SELECT count(*) AS a, count(DISTINCT h) AS b FROM {self._numbered}")
        self._item_count = int(int64_column(table, "a")[0])
        return bool((int64_column(table, "a") != int64_column(table, "b"))[0])

    def users_by_size(self, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count users by their number of items; the engine counts them once for all bounds."""
        if self._by_size is None:
            self._by_size = self._select(f"SELECT n AS a, count(*) AS b FROM {self._users} GROUP BY n")
        users = np.zeros(len(bounds), dtype=np.int64)
        places = np.searchsorted(bounds[:-1], int64_column(self._by_size, "a"))  # the last bin has no upper bound
        np.add.at(users, places, int64_column(self._by_size, "b"))
        return users

    def weighted_sums(self, limit: float) -> Iterator[NDArray[np.int64]]:
        """Add up the weights of every item's users."""
        return self._item_sums(self._weight(f"{self._double(limit)} / sqrt({self._as_double('n')})"))

    def capped_sums(self, cap: int) -> Iterator[NDArray[np.int64]]:
        """Add up the weights of every item's users, at most *cap* items for each user."""
        weight = self._weight(f"{self._double(cap)} / {self._as_double('n')}")
        # Users of weight 0 stay: without them, an item could be missing in the result.
        return self._item_sums(f"CASE WHEN n <= {CAPPED_BASKET * cap} THEN {weight} ELSE 0 END")

    def _item_sums(self, weight: str) -> Iterator[NDArray[np.int64]]:
        """Add up the *weight* of every item's users, SQL of the number n of their items.

        Raises:
            InexactHead: the items are not all of them, in the order of their numbers.
        """
        count = self.count_items()
        first = 0
        for table in self._batches(self._summed(weight)):
            items = int64_column(table, "a")
            if not np.array_equal(items, np.arange(first, first + len(items))):
                raise InexactHead(_OTHER_NUMBERS)
            first += len(items)
            yield int64_column(table, "b")
        if first != count:
            raise InexactHead(_OTHER_NUMBERS)

    def users_by_scale(
        self,
        items: NDArray[np.int64],
        last_scale: NDArray[np.int64],
        costs: NDArray[np.int64],
        bounds: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Count users by the first scale at which their items fit."""
        if not len(items):
            return np.zeros(len(bounds), dtype=np.int64)
        chosen = self._chosen({"item": items, "k": last_scale, "c": costs})
        # At scale k items cost as much as at the first of these scales from k on, and nothing after the last one.
        scales = np.unique(last_scale)
        fits = " ".join(
            f"WHEN c{scales[np.searchsorted(scales, k)]} <= {bound} THEN {k}"
            for k, bound in enumerate(bounds[: scales[-1] + 1].tolist())
        )
        last = min(int(scales[-1]) + 1, len(bounds) - 1)
        sums = ", ".join(f"CAST(sum(CASE WHEN k >= {k} THEN c ELSE 0 END) AS BIGINT) AS c{k}" for k in scales.tolist())
        by_user = f"SELECT u, {sums} FROM {self._pairs_of(chosen)} GROUP BY u"
        places = f"SELECT CASE {fits} ELSE {last} END AS a FROM ({by_user}) AS t"
        return histogram(self._select(f"SELECT a, count(*) AS b FROM ({places}) AS h GROUP BY a"), len(bounds))

    def clipped_sums(self, items: NDArray[np.int64], costs: NDArray[np.int64], bound: int) -> NDArray[np.int64]:
        """Add up the weights of the users of *items*."""
        chosen = self._chosen({"item": items, "c": costs})
        weight = self._weight(f"sqrt({self._double(bound)} / {self._as_double('c')})")
        statement = self._clipped(chosen, weight, bound)
        if int(costs.max(initial=0)) * len(costs) <= bound:  # no user is above the bound
            full = f"CAST({_FULL_WEIGHT} * count(*) AS BIGINT)"
            statement = f"SELECT item AS a, {full} AS b FROM {self._pairs_of(chosen)} GROUP BY item"
        table = self._select(statement)
        return scattered(np.searchsorted(items, int64_column(table, "a")), int64_column(table, "b"), len(items))

    def labels(self, items: NDArray[np.int64]) -> pa.Table:
        """Return the labels of *items*."""
        chosen = self._chosen({"item": np.sort(items)})
        selected = f"SELECT item, {self._words.items} FROM {self._numbered} JOIN {chosen} USING (item)"
        table = self._select(selected, labels=True)
        order = np.empty(len(items), dtype=np.int64)
        order[np.argsort(items)] = np.argsort(int64_column(table, "item"))
        return table.select(self._words.names).rename_columns(list(self._words.request.items)).take(arrow_array(order))

    def _pairs_of(self, chosen: str) -> str:
        """Return the pairs of *chosen* items with all columns of that relation, for use in FROM."""
        named = f"(SELECT * FROM {self._numbered} JOIN {chosen} USING (item)) AS i"
        return f"{self._named_pairs('u')} JOIN {named} USING (h)"

    def _summed(self, weight: str) -> str:
        """Return a SELECT of every item as a with the sum of the *weight* of its users as b."""
        sums = f"SELECT h, CAST(sum(w) AS BIGINT) AS b FROM {self._named_pairs(f'{weight} AS w')} GROUP BY h"
        return f"SELECT item AS a, b FROM {self._numbered} JOIN ({sums}) AS t USING (h)"

    def _clipped(self, chosen: str, weight: str, bound: int) -> str:
        """Return a SELECT of *chosen* items as a with the sum of the *weight* of their users as b.

        The weight is SQL of a user's cost c, and full for costs of at most *bound*.
        """
        cost = f"SELECT u, CAST(sum(c) AS BIGINT) AS c FROM {self._pairs_of(chosen)} GROUP BY u"
        # Few users are above the bound: a join with these alone takes half the time of a join with all users.
        missing = f"SELECT u, {_FULL_WEIGHT} - {weight} AS w FROM ({cost}) AS t WHERE c > {bound}"
        return (
            f"SELECT item AS a, CAST({_FULL_WEIGHT} * count(*) - coalesce(sum(w), 0) AS BIGINT) AS b "
            f"FROM {self._pairs_of(chosen)} LEFT JOIN ({missing}) AS v USING (u) GROUP BY item"
        )

    def _weight(self, share: str) -> str:
        scaled = f"floor({self._double(WEIGHT_UNIT)} * least({self._double(1)}, {share}))"
        return f"greatest(CAST({scaled} AS BIGINT) - 1, 0)"

    def _double(self, value: float) -> str:
        """Return a literal that every engine parses as the nearest float; some round plain decimals differently."""
        return f"CAST('{float(value)!r}' AS {self._words.double})"

    def _as_double(self, name: str) -> str:
        return f"CAST({name} AS {self._words.double})"


class HashedPairs(SqlPairs):
    """Pairs as an array of names for each user, in relations that an engine creates from `_statements`.

    rows: labels and user. items: labels, number and name. users: u and the names hs of the user's items. Each is a
    SELECT from those before it, and only the first one reads the data.

    The name of an item is a hash of its label, so that pairs are not joined with labels. This is exact because the
    distinct labels have different hashes; if they do not, pairs are joined with labels, and names are numbers.

    Args:
        prefix: prefix of the relations' names.

    Attributes:
        _elements: the rows written, where the array of a user has an element for each before it is made distinct.
    """

    _elements = 0

    def __init__(self, words: HeadStatement, prefix: str = "discreet_") -> None:
        super().__init__(words)
        self._rows, self._kept, self._numbered, self._baskets = (
            f"{prefix}{name}" for name in ("rows", "kept", "items", "users")
        )
        self._users = f"(SELECT u, hs, {self._size('hs')} AS n FROM {self._baskets}) AS s"

    def _statements(self) -> Iterator[tuple[str, str]]:
        """Yield each relation with its SELECT, to be written before the next.

        An array of too many items could be longer than the engine allows. A user has no more items than there are, so
        that mostly no rows need to be counted by user.
        """
        labels = self._words.items
        source = self._rows
        yield source, self._words.rows()
        yield from self._numbering(source).items()
        are_equal = self._has_equal_names()
        may_have_large = self.count_items() > MAX_BASKET or self._elements > MAX_ELEMENTS
        if may_have_large and self._has_large(f"(SELECT count(*) AS n FROM {source} GROUP BY u) AS s"):
            distinct = f"SELECT DISTINCT {labels}, u FROM {source}"
            sizes = f"SELECT u, count(*) AS n FROM ({distinct}) AS e GROUP BY u"
            large = f"SELECT u FROM ({sizes}) AS m WHERE NOT {self._few} AND m.u = d.u"
            source = self._kept
            yield source, f"{distinct} AS d WHERE NOT EXISTS ({large})"
            self._numbered = f"{source}_items"
            yield from self._numbering(source).items()
            are_equal = self._has_equal_names()
        names = f"SELECT u, {self._hash()} AS h FROM {source}"
        if are_equal:
            names = f"SELECT u, item AS h FROM {joined_items(self._words, source, self._numbered)}"
            self._numbered = f"(SELECT {labels}, item, item AS h FROM {self._numbered}) AS i"
        yield self._baskets, f"SELECT u, {self._distinct('h')} AS hs FROM {self._by_user(names)} GROUP BY u"

    def _numbering(self, source: str) -> dict[str, str]:
        """Return the relation of items in *source*, with its SELECT, after the relations that it reads."""
        numbered = numbered_items(self._words, source)
        return {self._numbered: f"SELECT {self._words.items}, item, {self._hash()} AS h FROM ({numbered}) AS i"}

    def _by_user(self, names: str) -> str:
        """Return a SELECT of users and names for use in FROM; on Spark, distributed by user."""
        return f"({names}) AS p"

    @abstractmethod
    def _hash(self) -> str:
        """Return the SQL of a hash of the labels, in 64 bits and with NULL, that cannot fail."""

    @abstractmethod
    def _distinct(self, name: str) -> str:
        """Return the aggregate that collects the distinct values of a column in an array."""

    @abstractmethod
    def _size(self, array: str) -> str:
        """Return the SQL of the length of an array."""


def histogram(table: pa.Table, bins: int) -> NDArray[np.int64]:
    """Return *bins* numbers: those of column b at the places of column a, 0 elsewhere."""
    return scattered(int64_column(table, "a"), int64_column(table, "b"), bins)


def scattered(places: NDArray[np.int64], values: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return *size* numbers: *values* at *places*, 0 elsewhere."""
    placed = np.zeros(size, dtype=np.int64)
    placed[places] = values
    return placed


def int64_column(table: pa.Table, name: str) -> NDArray[np.int64]:
    """Return a column of int64 without missing values."""
    return int64_array(table.column(name))
