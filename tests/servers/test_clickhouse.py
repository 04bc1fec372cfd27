"""ClickHouse passes the engine suite and refuses what it cannot count exactly."""

from __future__ import annotations

import contextlib
import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from discreet.engines.clickhouse import ClickHouseClient, ClickHouseEngine
from discreet.engines.opening import open_engine
from discreet.errors import EngineError, EngineUnreachable, InputError
from discreet.head_request import HeadRequest, Kind
from discreet.testing.engines import EngineSuite, reference_head, rows_of
from tests.servers import clickhouse
from tests.servers.proxies import Proxy


@pytest.fixture(scope="module")
def url(server):
    """Return the URL of a database."""
    return server("clickhouse")


class TestClickHouse(EngineSuite):
    """Run the whole suite."""

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, url):
        cls.url = url

    @contextlib.contextmanager
    def opened(self, table):
        """See `EngineSuite.opened`."""
        name = clickhouse.load(self.url, table)
        with contextlib.closing(ClickHouseEngine(self.url, table=name)) as engine:
            yield engine
        assert b"discreet_" not in clickhouse.run(self.url, "SHOW TEMPORARY TABLES")
        clickhouse.run(self.url, f"DROP TABLE {clickhouse.DATABASE}.{name}")

    @contextlib.contextmanager
    def slow(self, timeout_seconds):
        """See `EngineSuite.slow`; it takes seconds, because chdb runs one statement at a time and cannot cancel it."""
        clickhouse.run(self.url, "SELECT 1")  # wait for statements of earlier tests to end
        view = "SELECT 1 AS who, 1 + sleepEachRow(1) AS item FROM numbers(5) SETTINGS max_block_size = 1"
        with contextlib.closing(ClickHouseEngine(self.url, view=view, timeout_seconds=timeout_seconds)) as engine:
            engine.columns()
            yield engine

    @contextlib.contextmanager
    def dead(self):
        """See `EngineSuite.dead`."""
        proxy = Proxy(self.url)
        with contextlib.closing(ClickHouseEngine(proxy.url, view="SELECT 1 AS who, 1 AS item")) as engine:
            engine.columns()
            proxy.close()
            yield engine


def test_clickhouse_types_are_exact_labels_items_and_users(url):
    """UInt64, LowCardinality, Enum and DateTime columns are exact as labels, listed items and users."""
    name = "kinds"
    moods = "mood Enum8('good' = 1, 'bad' = 2)"
    columns = f"who UInt64, small LowCardinality(Nullable(String)), {moods}, at DateTime('Asia/Tokyo')"
    values = "(18446744073709551615, 'a', 'good', 0), (1, NULL, 'bad', 1), (1, unhex('ff'), 'bad', 1)"
    clickhouse.run(url, f"CREATE TABLE library.{name} ({columns}) ENGINE = Memory")
    clickhouse.run(url, f"INSERT INTO library.{name} VALUES {values}")
    with contextlib.closing(open_engine(url, table=name)) as engine:
        assert list(engine.columns().values()) == [Kind.INTEGER, Kind.TEXT, Kind.TEXT, Kind.TIMESTAMP]
        first, second = datetime.datetime(1970, 1, 1), datetime.datetime(1970, 1, 1, 0, 0, 1)
        assert rows_of(engine, HeadRequest("who", ("small",), 9)) == [(("a",), 1), (("\ufffd",), 1)]
        assert rows_of(engine, HeadRequest("who", ("mood", "at"), 9)) == [(("bad", second), 1), (("good", first), 1)]
        listed = pa.table({"who": pa.array([2**64 - 1, 5], pa.uint64())})
        found = rows_of(engine, HeadRequest("mood", ("who",), 2, domain=listed))
        assert found == [((2**64 - 1,), 1), ((5,), 0)]


def test_users_that_are_not_utf8_stay_apart(url):
    """Bytes that are not UTF-8 are as many users, though they would be one label."""
    view = "SELECT unhex(toString(number + 80)) || unhex('ff') AS who, 'x' AS item FROM numbers(10)"
    view = f"{view} UNION ALL SELECT unhex('fe'), 'x' UNION ALL SELECT unhex('ff'), 'x'"
    with contextlib.closing(open_engine(url, view=view)) as engine:
        for parts in ({}, {"groups_per_user": 1}):
            assert rows_of(engine, HeadRequest("who", ("item",), 9, **parts)) == [(("x",), 12)]
        with engine.pairs(HeadRequest("who", ("item",), 9)) as pairs:
            assert pairs.users_by_size(np.array([1, 2])).tolist() == [12, 0]


def test_a_user_keeps_the_same_decimals_as_in_every_engine(url):
    """Which decimals a user keeps depends on their text, in which trailing zeros are preserved."""
    prices = [Decimal(n) / 100 for n in range(-100, 100, 5)]
    table = pa.table({"who": ["ann"] * len(prices), "price": pa.array(prices, pa.decimal128(9, 2))})
    with contextlib.closing(open_engine(url, table=clickhouse.load(url, table))) as engine:
        request = HeadRequest("who", ("price",), 50, groups_per_user=9)
        assert rows_of(engine, request) == reference_head(table, request)


def test_session_settings_that_truncate_results_are_overridden(url):
    """Session settings that drop groups or truncate the result are overridden."""
    name = clickhouse.load(url, pa.table({"who": range(3000), "item": range(3000)}))
    for setting, value in (("max_rows_to_group_by", 10), ("group_by_overflow_mode", "any"), ("limit", 5)):
        clickhouse.run(url, f"SET {setting} = '{value}'")
    with contextlib.closing(open_engine(url, table=name)) as engine:
        assert len(rows_of(engine, HeadRequest("who", ("item",), 5000))) == 3000


def test_pair_queries_need_to_be_allowed_in_the_url(url):
    """Without temporary=true no temporary table is created, and the plan knows this without a connection."""
    with contextlib.closing(open_engine(url.partition("?")[0], view="SELECT 1 AS who, 1 AS item")) as engine:
        assert not engine.has_pairs
        with pytest.raises(InputError, match="temporary=true"), engine.pairs(HeadRequest("who", ("item",), 1)):
            pass


def test_pair_queries_need_temporary_tables_that_can_be_made(url, monkeypatch):
    """An account that may not make them is found by an empty table, before rows are read; none is left."""
    with contextlib.closing(open_engine(url, view="SELECT 1 AS who, 1 AS item")) as engine:
        engine.check_pairs()
        assert b"discreet_" not in clickhouse.run(url, "SELECT name FROM system.tables WHERE is_temporary")
        execute = ClickHouseClient.execute

        def readonly(self, statement, *arguments, **named):
            if statement.startswith("CREATE"):
                statement = statement.replace("TABLE ", "TABLE nowhere.")
            return execute(self, statement, *arguments, **named)

        monkeypatch.setattr(ClickHouseClient, "execute", readonly)
        with pytest.raises(EngineError, match="grant CREATE TEMPORARY TABLE"):
            engine.check_pairs()


def test_an_unreachable_server_is_reported_before_a_query():
    """An unreachable server is reported by check, before a query is sent or charged."""
    with (
        contextlib.closing(open_engine("clickhouse://127.0.0.1:1/library?table=t")) as engine,
        pytest.raises(EngineUnreachable, match="no ClickHouse answers"),
    ):
        engine.check(HeadRequest("who", ("item",), 1))


def test_a_connection_closed_while_idle_is_reopened(url):
    """A statement passed to fetch, which is not preceded by a ping, succeeds after the idle connection was closed."""
    proxy = Proxy(url)
    with contextlib.closing(open_engine(proxy.url, table="t")) as engine, contextlib.closing(proxy):
        for _ in range(2):
            assert engine.fetch("SELECT 1 AS n").to_pydict() == {"n": [1]}
            proxy.cut()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("clickhouse://h", "looks like clickhouse://"),
        ("clickhouse://h/d?table=t&secure=1", "no option 'secure'"),
        ("clickhouse://u:p@h/d?table=t", "over TLS only"),
    ],
)
def test_an_invalid_url_is_refused(source, message):
    """An invalid URL is refused before a connection is opened."""
    with pytest.raises(InputError, match=message):
        open_engine(source)


def test_a_missing_table_is_refused_with_a_list_of_tables(url):
    """A missing table is refused with the names of the tables that exist."""
    clickhouse.load(url, pa.table({"who": [1]}), "here")
    with contextlib.closing(open_engine(url, table="nowhere")) as engine, pytest.raises(InputError, match="'here'"):
        engine.columns()
