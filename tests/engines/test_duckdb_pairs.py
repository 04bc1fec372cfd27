"""The pair queries of DuckDB compared with numpy, and their cleanup."""

from __future__ import annotations

import contextlib
from decimal import Decimal
from math import isqrt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.engines import duckdb_pairs
from discreet.engines.duckdb import DuckDBEngine
from discreet.engines.duckdb_pairs import DuckDBPairs
from discreet.errors import EngineError, EngineTimeout, InexactHead, InputError
from discreet.head_request import HeadRequest, SumBounds
from discreet.testing.engines import check_pair_queries, predicates, reference_pairs, tables
from discreet.testing.pairs import ArrayPairs, gathered

REQUEST = HeadRequest("user", ("item",), 1)
REQUESTS = st.builds(
    HeadRequest,
    st.just("who"),
    st.lists(st.sampled_from(["word", "size", "day", "open"]), min_size=1, unique=True).map(tuple),
    st.just(1),
    st.none() | predicates(),
    keep_missing=st.booleans(),
)


def table_of(pairs):
    """Make a table of users and items."""
    return pa.table({"user": [user for user, _ in pairs], "item": [item for _, item in pairs]})


OF_EVERY_SIZE = table_of([(user, f"{user}/{n}") for user in range(1, 40) for n in range(user)])
"""Users 1, 2, ..., 39 with as many items, which no other user has."""


def users_of(pairs):
    """Return the user of each item of `OF_EVERY_SIZE`."""
    return [int(label.split("/")[0]) for label in pairs.labels(np.arange(780))["item"].to_pylist()]


def check_first_scales(opened):
    """Compare the users that fit at early scales, at late ones and at none with numpy's; costs tie with bounds."""
    rng = np.random.default_rng(3)
    users, items = rng.integers(0, 300, 3000), rng.integers(0, 40, 3000)
    reference = ArrayPairs(users, items, pa.table({"item": np.unique(items)}))
    with opened(pa.table({"user": users, "item": items})) as pairs:
        for seed in range(6):
            drawn = np.random.default_rng(seed)
            chosen = np.flatnonzero(drawn.random(40) < 0.6)
            costs = drawn.integers(1, 4, len(chosen))
            scales = drawn.integers(0, 18, len(chosen))
            for bounds in (np.arange(18) // 2, np.arange(18) * 3 // 2, np.full(18, 2), np.array([1, 4]), np.array([2])):
                for last in (scales, np.full(len(chosen), seed % 18)):
                    counted = pairs.users_by_scale(chosen, np.minimum(last, len(bounds) - 1), costs, bounds)
                    expected = reference.users_by_scale(chosen, np.minimum(last, len(bounds) - 1), costs, bounds)
                    assert counted.tolist() == expected.tolist()


def check_exact_costs(opened):
    """Check that the cost of a user's items, 2^54 + 1, is above 2^54, with one scale and with two."""
    with opened(table_of([(1, n) for n in range(2049)])) as pairs:
        items, costs, bounds = np.arange(2049), np.full(2049, 2**43), np.array([2**54, 2**54 + 1])
        costs[7] = 1
        for last in (np.full(2049, 1), np.minimum(items, 1)):
            assert pairs.users_by_scale(items, last, costs, bounds).tolist() == [0, 1]


def names_of(connection):
    """Return the names of the pair queries' tables on a connection."""
    shown = connection.execute("SELECT table_name FROM duckdb_tables() UNION SELECT view_name FROM duckdb_views")
    return {name for (name,) in shown.fetchall() if name.startswith("discreet")}


def left_of(engine):
    """Return the tables that pair queries left on the connections of an engine."""
    return set().union(*map(names_of, engine._idle))


@pytest.fixture
def ranges(monkeypatch):
    """Sort a few rows at a time: every second row is sampled, and every second of these ends a range."""
    for name, value in {"_SAMPLED": 2, "_RANGE": 4}.items():
        monkeypatch.setattr(f"discreet.engines.duckdb_pairs.{name}", value)


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(
    REQUESTS,
    tables(),
    st.sampled_from([4, 2**20]),
    st.sampled_from(["hash({})", "hash({}) % 2", "hash({}) % 1024"]),
    st.sampled_from([None, "SELECT * FROM source"]),
)
def test_random_tables_have_the_integers_of_numpy(request, table, batch, hashed, view):
    """Results equal numpy's for all filters and columns, with and without missing labels, wherever blocks end.

    They are equal if labels or users have the same hash, or labels the same first bits of it, and for views, too.
    """
    engine = DuckDBEngine(table, view=view)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("discreet.engines.duckdb_pairs._BATCH", batch)
        patched.setattr("discreet.engines.duckdb_pairs._HASH", f"CAST({hashed} >> 1 AS BIGINT)")
        with engine.pairs(request) as pairs:
            check_pair_queries(pairs, reference_pairs(table, request))
    engine.close()


@pytest.mark.parametrize(
    "users",
    [
        pa.array([-(2**63), 0, 2**63 - 1, 5], pa.int64()),
        pa.array([-128, 0, 127, 5], pa.int8()),
        pa.array([0, 2**31, 2**32 - 1, 5], pa.uint32()),
        pa.array([0, 2**63, 2**64 - 1, 2**64 - 2], pa.uint64()),
        pa.array([Decimal("1e27"), Decimal("1e27") + 1, Decimal(0), Decimal("0.5")], pa.decimal128(38, 1)),
        pa.array(["", "a", "A", "é"], pa.string()),
        pa.array([0, 1, -1, 86400], pa.date32()),
    ],
    ids=lambda users: str(users.type),
)
@pytest.mark.parametrize("hashed", ["hash({})", "hash(CAST(0 AS INTEGER))"])
def test_users_of_all_types_are_distinct_and_whole(engine, monkeypatch, users, hashed):
    """A user's pairs are those with an equal value, also if all users have the same hash."""
    rng = np.random.default_rng(4)
    number, items = rng.integers(0, 4, 60), rng.integers(0, 9, 60)
    monkeypatch.setattr("discreet.engines.duckdb_pairs._HASH", f"CAST({hashed} >> 1 AS BIGINT)")
    table = pa.table({"user": users.take(pa.array(number)), "item": items})
    with engine(table).pairs(REQUEST) as pairs:
        check_pair_queries(pairs, ArrayPairs(number, items, pa.table({"item": np.unique(items)})))


@pytest.mark.usefixtures("ranges")
@pytest.mark.parametrize("batch", [7, 2**20])
@pytest.mark.parametrize("copies", [1, 3])
def test_repeated_rows_change_no_integer(engine, monkeypatch, copies, batch):
    """Theorem 1 counts a pair once: duplicates are dropped, wherever blocks and ranges end."""
    monkeypatch.setattr("discreet.engines.duckdb_pairs._BATCH", batch)
    rng = np.random.default_rng(6)
    users, items = rng.integers(0, 30, 60), rng.integers(0, 12, 60)
    for number in (users, [f"user {n}" for n in users]):
        table = pa.table({"user": np.tile(number, copies), "item": np.tile(items, copies)})
        with engine(table).pairs(REQUEST) as pairs:
            check_pair_queries(pairs, ArrayPairs(users, items, pa.table({"item": np.unique(items)})))


def test_first_scales_are_counted_with_one_and_with_many_scales(engine):
    """Users that fit at early scales, at late ones and at none; ties of costs with bounds."""
    check_first_scales(lambda table: engine(table).pairs(REQUEST))


def test_costs_are_added_exactly(engine):
    """A user's costs may add up to more than 2^53, above which floats are not exact."""
    check_exact_costs(lambda table: engine(table).pairs(REQUEST))


@pytest.mark.usefixtures("ranges")
def test_rows_of_one_pair_are_not_read_together(engine, monkeypatch):
    """However often a pair is repeated, its rows take no memory here."""
    read = []
    integers = DuckDBPairs._integers
    monkeypatch.setattr(DuckDBPairs, "_integers", lambda self, text: read.append(integers(self, text)) or read[-1])
    few = [(user, label) for user in range(9) for label in "ab"]
    table = table_of([*few, *[(5, "a")] * 1000])
    with engine(table).pairs(REQUEST) as pairs:
        hashes, sample, *ranges = read
        assert len(hashes) == 2
        assert len(sample) > 400
        assert max(map(len, ranges)) < 40
        check_pair_queries(pairs, reference_pairs(table, REQUEST))


def test_users_far_apart_are_numbered(engine):
    """Users in a small span are positions in arrays, from the least one on; others are numbered, like texts."""
    lowest = -(2**63)
    for least, most in ((5, 2**22 - 1), (5, 2**22), (0, 2**63 - 1), (lowest, 2**64 - 1), (lowest, 4)):
        users = (least, least + 1, least + most)
        table = table_of([(user, label) for user in users for label in "abcdefghijklmno"[user % 3 :]])
        with engine(table).pairs(REQUEST) as pairs:
            check_pair_queries(pairs, reference_pairs(table, REQUEST))


def test_more_users_and_items_than_numbers_are_refused(engine, monkeypatch):
    """A pair is never written with a number that another one has."""
    monkeypatch.setattr("discreet.engines.duckdb_pairs._KEY_BITS", 3)
    for number in (list(range(4)), list("abcd")):
        table = table_of([(user, label) for user in number for label in "ab"])
        with pytest.raises(EngineError, match="so many"), engine(table).pairs(REQUEST):
            pass
    monkeypatch.setattr("discreet.engines.duckdb_pairs._KEY_BITS", 4)  # two for the users, two for the items
    with engine(table).pairs(REQUEST) as pairs:
        assert pairs.count_items() == 2


@pytest.mark.parametrize("label", ["a", "b", "c"])
def test_a_label_without_rows_or_rows_without_a_label_are_refused(engine, monkeypatch, label):
    """Labels are selected after the rows: that they are the labels of the rows is seen, and not assumed."""
    numbered = duckdb_pairs.numbered_items

    def changed(words, rows, filtered):
        return f"SELECT i0, row_number() OVER () - 1 AS item FROM ({numbered(words, rows)}) AS c {filtered}"

    other = f"WHERE i0 <> '{label}'"
    more = f"UNION ALL SELECT '{label}x', 3"
    table = table_of([(1, "a"), (2, "a"), (1, "b"), (3, "c")])
    for hashed in ("hash({})", "hash({}) % 1024"):
        monkeypatch.setattr("discreet.engines.duckdb_pairs._HASH", f"CAST({hashed} >> 1 AS BIGINT)")
        for text in (other, more):
            monkeypatch.setattr(
                duckdb_pairs, "numbered_items", lambda words, rows, text=text: changed(words, rows, text)
            )
            with pytest.raises(InexactHead, match="other rows"), engine(table).pairs(REQUEST):
                pass


def test_a_user_who_is_not_numbered_is_refused(engine, monkeypatch):
    """Users are selected after the rows, too, and a user who is not there then would be left out unseen."""
    write = DuckDBPairs._write

    def without_one(self, name, select, parameters=None):
        write(self, name, f"{select} WHERE u <> 'a'" if name == duckdb_pairs._OWNERS else select, parameters)

    monkeypatch.setattr(DuckDBPairs, "_write", without_one)
    table = table_of([("a", "x"), ("b", "x"), ("b", "y")])
    with pytest.raises(InexactHead, match="other rows"), engine(table).pairs(REQUEST):
        pass


def test_a_view_is_read_once():
    """The rows of a view may be others each time, and its labels must be theirs."""
    view = "SELECT user, item || CAST(floor(random() * 1e6) AS INTEGER) AS item FROM source"
    with (
        contextlib.closing(DuckDBEngine(table_of([(n, "a") for n in range(300)]), view=view)) as engine,
        engine.pairs(REQUEST) as pairs,
    ):
        assert pairs.users_by_size(np.array([1])).tolist() == [300]
        assert (gathered(pairs.weighted_sums(1.0)) // (2**20 - 1)).sum() == 300


@pytest.mark.parametrize("batch", [1, 2, 2**20])
def test_users_with_too_many_items_are_left_out_with_their_items(engine, monkeypatch, batch):
    """The bound K on a user's number of items is enforced: Theorem 1 takes a union over a user's own items."""
    monkeypatch.setattr("discreet.engines.duckdb_pairs.MAX_BASKET", 3)
    monkeypatch.setattr("discreet.engines.duckdb_pairs._BATCH", batch)
    few = [(1, "a"), (1, "b"), (1, "c"), (1, "c"), (3, "c")]
    table = table_of([*few, *[(2, label) for label in "abcdefghi"], *[(4, label) for label in "abcdefghi"]])
    with engine(table).pairs(REQUEST) as pairs:
        check_pair_queries(pairs, reference_pairs(table, REQUEST, largest_basket=3))
        assert pairs.labels(np.arange(3)).to_pydict() == {"item": ["a", "b", "c"]}


@pytest.mark.parametrize("limit", [0.1, 1 / 3, 0.7, 1.1, 2.9, 7.3])
def test_weights_never_exceed_the_cap(engine, limit):
    """Theorem 1: the squared weights of a user's items add up to (W limit)^2 at most, in integers."""
    with engine(OF_EVERY_SIZE).pairs(REQUEST) as pairs:
        users = users_of(pairs)
        spent = np.bincount(users, weights=gathered(pairs.weighted_sums(limit)).astype(float) ** 2)
    assert (spent <= (2**20 * limit) ** 2).all()


@pytest.mark.parametrize("bound", [1, 5])
def test_weights_are_those_of_the_definition(engine, bound):
    """A user of n items that cost 1 each has floor(W min(1, sqrt(bound / n))) - 1 in each, by either query."""
    with engine(OF_EVERY_SIZE).pairs(REQUEST) as pairs:
        weights = [isqrt(2**40 * min(bound, n) // n) - 1 for n in users_of(pairs)]
        assert gathered(pairs.weighted_sums(bound**0.5)).tolist() == weights
        assert pairs.clipped_sums(np.arange(780), np.ones(780, dtype=np.int64), bound).tolist() == weights
        assert set(gathered(pairs.weighted_sums(1e-7)).tolist()) == {0}


@pytest.mark.parametrize("cap", [1, 2, 7])
def test_capped_weights_are_those_of_the_definition(engine, cap):
    """In each of n items, a user has floor(W min(1, cap / n)) - 1, and nothing in more than 10 caps of items."""
    with engine(OF_EVERY_SIZE).pairs(REQUEST) as pairs:
        weights = [0 if n > 10 * cap else 2**20 * min(cap, n) // n - 1 for n in users_of(pairs)]
        assert gathered(pairs.capped_sums(cap)).tolist() == weights


def test_clipped_weights_never_exceed_the_bound(engine):
    """Costs times squared weights add up to W^2 bound at most, in integers."""
    table = table_of([(user, f"{user}/{n}") for user in range(1, 30) for n in range(user)])
    rng = np.random.default_rng(2)
    with engine(table).pairs(REQUEST) as pairs:
        items = np.arange(435)
        users = [int(label.split("/")[0]) for label in pairs.labels(items)["item"].to_pylist()]
        for bound in (1, 1000, 2**41):
            costs = rng.integers(1, 2**40, len(items))
            sums = pairs.clipped_sums(items, costs, bound)
            spent: dict[int, int] = {}
            for user, cost, weight in zip(users, costs.tolist(), sums.tolist(), strict=True):
                spent[user] = spent.get(user, 0) + cost * weight**2
            assert max(spent.values()) <= 2**40 * bound


@pytest.mark.parametrize(
    "request_",
    [
        HeadRequest("user", ("item",), 1, rows_per_group=2),
        HeadRequest("user", ("item",), 1, groups_per_user=2),
        HeadRequest("user", ("item",), 1, summed=SumBounds(0, 1, column="user")),
        HeadRequest("user", (), 1),
    ],
)
def test_requests_without_pair_queries_are_refused(engine, request_):
    """The request alone decides, and nothing is read."""
    with pytest.raises(InputError, match="pair queries"), engine(table_of([(1, "a")])).pairs(request_):
        pass


def test_temporary_tables_are_dropped(engine, monkeypatch):
    """Temporary tables are dropped after an answer, an error, a cancellation and a timeout; the engine goes on."""
    monkeypatch.setattr("discreet.engines.base._POLL_SECONDS", 1e-4)
    opened = engine(table_of([(n % 1000, n % 3001) for n in range(300_000)]))

    def cancel(_):
        raise KeyboardInterrupt

    with opened.pairs(REQUEST) as pairs:
        first = gathered(pairs.weighted_sums(1.0))
        assert names_of(pairs._connection) == {"discreet_items"}
    assert not left_of(opened)
    with pytest.raises(TypeError), opened.pairs(REQUEST) as pairs:
        gathered(pairs.weighted_sums(None))
    assert not left_of(opened)
    with pytest.raises(KeyboardInterrupt), opened.pairs(REQUEST, progress=cancel):
        pass
    assert not left_of(opened)
    opened._seconds = 1e-9
    with pytest.raises(EngineTimeout), opened.pairs(REQUEST):
        pass
    assert not left_of(opened)
    opened._seconds = None
    with opened.pairs(REQUEST) as pairs:
        assert (gathered(pairs.weighted_sums(1.0)) == first).all()
