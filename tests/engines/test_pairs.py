"""The pair queries in standard SQL that most engines share, run here by DuckDB and compared with numpy."""

from __future__ import annotations

import contextlib
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from discreet.engines.duckdb import DuckDBEngine
from discreet.engines.pairs import HashedPairs
from discreet.errors import InexactHead
from discreet.head_request import HeadRequest
from discreet.testing.engines import check_pair_queries, reference_pairs, tables
from discreet.testing.pairs import ArrayPairs, gathered

from .test_duckdb_pairs import (
    OF_EVERY_SIZE,
    REQUEST,
    REQUESTS,
    check_exact_costs,
    check_first_scales,
    table_of,
)


class StandardPairs(HashedPairs):
    """`HashedPairs` whose relations are temporary tables of DuckDB."""

    def __init__(self, words, connection):
        super().__init__(words)
        self.connection = connection
        self.written = []
        parameters = words.parameters
        for name, select in self._statements():
            self.written.append(f"CREATE TEMP TABLE {name} AS {select}")
            connection.execute(self.written[-1], parameters)
            parameters = None

    def _hash(self):
        return f"CAST(hash({self._words.items}) >> 1 AS BIGINT)"

    def _distinct(self, name):
        return f"array_agg(DISTINCT {name})"

    def _size(self, array):
        return f"len({array})"

    def _named_pairs(self, columns):
        return f"(SELECT {columns}, unnest(hs) AS h FROM {self._users}) AS p"

    def _select(self, statement, *, labels=False):
        self.written.append(statement)
        table = self.connection.sql(statement).to_arrow_table()
        assert labels == (table.column_names != ["a", "b"])  # engines fetch labels in their own types
        return table.take(np.arange(len(table))[::-1])  # rows come in any order

    def _batches(self, statement):
        self.written.append(f"{statement} ORDER BY a")
        for batch in self.connection.sql(self.written[-1]).to_arrow_reader(2048):
            yield pa.Table.from_batches([batch])

    def _chosen(self, columns):
        listed = ", ".join(f"unnest({values.tolist()}::BIGINT[]) AS {name}" for name, values in columns.items())
        return f"(SELECT {listed}) AS chosen"


class StandardEngine(DuckDBEngine):
    """DuckDB, with the pair queries of other engines."""

    @contextlib.contextmanager
    def _open_pairs(self, connection, statement, progress):
        del connection, progress  # the tables' own connection is closed with them
        with contextlib.closing(self._connect()) as own:
            yield StandardPairs(statement, own)


@contextlib.contextmanager
def opened(table, request=REQUEST):
    """Open the pairs of an Arrow table."""
    with contextlib.closing(StandardEngine(table)) as engine, engine.pairs(request) as pairs:
        yield pairs


@settings(max_examples=12, derandomize=True, deadline=None, database=None)
@given(REQUESTS, tables())
def test_random_tables_have_the_integers_of_numpy(request, table):
    """Results equal numpy's for all filters and columns, with and without missing labels."""
    with opened(table, request) as pairs:
        check_pair_queries(pairs, reference_pairs(table, request))


@pytest.mark.parametrize("copies", [1, 3])
def test_repeated_rows_change_no_integer(copies):
    """Theorem 1 counts a pair once: rows are made distinct before anything else."""
    rng = np.random.default_rng(6)
    users, items = rng.integers(0, 30, 200), rng.integers(0, 12, 200)
    table = pa.table({"user": np.tile(users, copies), "item": np.tile(items, copies)})
    reference = ArrayPairs(users, items, pa.table({"item": np.unique(items)}))
    with opened(table) as pairs:
        for seed in range(6):
            check_pair_queries(pairs, reference, seed)


@pytest.mark.parametrize("hashed", ["", " % 3", " * 0"])
def test_users_with_too_many_items_are_left_out_with_their_items(monkeypatch, hashed):
    """The bound K on a user's number of items is enforced in every query, for K + 1 items and not for K.

    Also where labels have equal hashes, and for a user who has more rows than K, but not more items.
    """
    hash_of = StandardPairs._hash
    monkeypatch.setattr(StandardPairs, "_hash", lambda pairs: hash_of(pairs) + hashed)
    monkeypatch.setattr("discreet.engines.pairs.MAX_BASKET", 3)
    few = [(1, "a"), (1, "b"), (1, "c"), (1, "c"), (3, "c"), (5, None), (5, "a")]
    table = table_of([*few, *[(2, label) for label in "abcd"], *[(4, label) for label in "abcdefghi"]])
    with opened(table) as pairs:
        check_pair_queries(pairs, reference_pairs(table, REQUEST, largest_basket=3))
        assert pairs.labels(np.arange(3)).to_pydict() == {"item": ["a", "b", "c"]}


@pytest.mark.parametrize("has_duplicates", [True, False])
def test_rows_are_counted_by_user_only_where_an_array_could_be_too_long(monkeypatch, has_duplicates):
    """No user has more items than there are, but arrays with an element for each row may have more of these."""
    monkeypatch.setattr("discreet.engines.pairs.MAX_BASKET", 3)
    monkeypatch.setattr("discreet.engines.pairs.MAX_ELEMENTS", 5)
    monkeypatch.setattr(StandardPairs, "_elements", 6 if has_duplicates else 5)
    few = [(1, "a"), (1, "b"), (1, "c"), (1, "c"), (1, "c"), (2, "c")]
    for others, counted in (([], has_duplicates), ([(3, "d"), (3, "d"), (3, "d"), (3, "d")], True)):
        table = table_of([*few, *others])
        with opened(table) as pairs:
            assert any("FROM discreet_rows GROUP BY u" in statement for statement in pairs.written) == counted
            check_pair_queries(pairs, reference_pairs(table, REQUEST, largest_basket=3))


def test_users_are_counted_by_size_once():
    """Histograms with other bounds are sums of the same counts."""
    with opened(OF_EVERY_SIZE) as pairs:
        assert pairs.users_by_size(np.array([1, 2, 40])).tolist() == [1, 1, 37]
        statements = len(pairs.written)
        assert pairs.users_by_size(np.array([5, 38])).tolist() == [5, 34]
        assert pairs.users_by_size(np.array([0])).tolist() == [39]
        assert len(pairs.written) == statements


def test_users_of_many_sizes_have_the_integers_of_numpy():
    """Weights of users with up to 39 items, on both sides of the size above which a cap leaves them none."""
    with opened(OF_EVERY_SIZE) as pairs:
        check_pair_queries(pairs, reference_pairs(OF_EVERY_SIZE, REQUEST))


def test_every_name_is_written_in_one_way():
    """ClickHouse tells names apart by their case, which DuckDB does not."""
    table = pa.table({"user": [1, 1, 2], "item": ["a", "b", None], "size": [1, 1, 2]})
    with opened(table, HeadRequest("user", ("item", "size"), 1, keep_missing=True)) as pairs:
        check_pair_queries(pairs, reference_pairs(table, pairs._words.request))
        words = set(re.findall(r"\w+", " ".join(pairs.written)))
    assert {"n", "item", "k", "c", "discreet_users"} <= words
    assert len({word.lower() for word in words}) == len(words)


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("keep_missing", [True, False])
def test_labels_of_several_columns_are_joined_with_missing_ones(keep_missing, hashed, monkeypatch):
    """A missing label is equal to itself, if missing labels are kept; also where all hashes are equal."""
    if not hashed:
        monkeypatch.setattr(StandardPairs, "_hash", lambda _: "0")
    table = pa.table({"user": [1, 1, 2, 2, 3], "item": ["a", None, "a", None, None], "size": [1, 1, None, None, 2]})
    request = HeadRequest("user", ("item", "size"), 1, keep_missing=keep_missing)
    with opened(table, request) as pairs:
        check_pair_queries(pairs, reference_pairs(table, request))


def test_first_scales_are_counted_with_one_and_with_many_scales():
    """Users that fit at early scales, at late ones and at none; ties of costs with bounds."""
    check_first_scales(opened)


def test_costs_are_added_exactly():
    """A user's costs may add up to more than 2^53, above which floats are not exact."""
    check_exact_costs(opened)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_items_of_other_numbers_are_refused(missing):
    """An engine whose second query sees other items than its first cannot be exact; the last one counts as well."""
    with opened(table_of([(1, "a"), (2, "b"), (2, "c")])) as pairs:
        assert pairs.count_items() == 3
        pairs.connection.execute(f"DELETE FROM discreet_items WHERE item = {missing}")
        with pytest.raises(InexactHead, match="other numbers"):
            gathered(pairs.weighted_sums(1.0))


@pytest.mark.parametrize("order", [[1, 0], [0, 0, 1], [0, 1, 1], [1]])
def test_batches_in_another_order_are_refused(order, monkeypatch):
    """Noise is drawn in the order of items: a late, repeated or missing batch would give items another one's noise."""
    rows = 3000
    with opened(pa.table({"user": range(rows), "item": range(rows)})) as pairs:
        assert gathered(pairs.weighted_sums(1.0)).tolist() == [2**20 - 1] * rows
        batches = list(pairs._batches(f"SELECT item AS a, item AS b FROM {pairs._numbered}"))
        assert len(batches) == 2
        monkeypatch.setattr(pairs, "_batches", lambda _: (batches[n] for n in order))
        with pytest.raises(InexactHead, match="other numbers"):
            gathered(pairs.weighted_sums(1.0))


def test_an_empty_table_has_no_items():
    """No users, no sums, no labels."""
    empty = pa.table({"user": pa.array([], pa.int64()), "item": pa.array([], pa.string())})
    none = np.zeros(0, dtype=np.int64)
    with opened(empty) as pairs:
        assert pairs.users_by_size(np.array([1, 2])).tolist() == [0, 0]
        assert gathered(pairs.weighted_sums(1.0)).tolist() == []
        assert pairs.count_items() == 0
        assert pairs.users_by_scale(none, none, none, np.array([1, 2])).tolist() == [0, 0]
        assert pairs.clipped_sums(none, none, 1).tolist() == []
        assert pairs.labels(none).to_pydict() == {"item": []}
