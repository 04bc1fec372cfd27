"""What a server that is killed, a stalled network, a cancellation and a dropped table cost, on every engine.

The table of docs/engines/index.md has these outcomes.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from fractions import Fraction

import httpx
import numpy as np
import psycopg
import pyarrow as pa
import pytest

from discreet.budget import Budget
from discreet.engines import postgres as postgres_engine
from discreet.engines.opening import open_engine
from discreet.engines.postgres import PostgresEngine
from discreet.errors import EngineError, EngineTimeout, InputError, UnknownColumn
from discreet.head_request import Comparison, Constant, HeadRequest, Kind
from discreet.noise import KeyedBits
from discreet.query.planning import make_plan
from discreet.release import answer
from discreet.testing.engines import rows_of
from discreet.values import Cost
from tests.queries import query_of
from tests.servers import clickhouse, pinot, postgres, spark, trino
from tests.servers.proxies import Proxy
from tests.servers.urls import url_of

SERVERS = {"postgres": postgres, "spark": spark, "trino": trino, "pinot": pinot, "clickhouse": clickhouse}
PLAN = make_plan(query_of("who", ("item",), 4.0, Fraction(1, 10**9), k=3), shared_budget=True)
ROWS = pa.table({"who": ["ann", "bob"], "item": ["a", "a"]})
SCRATCH = "?scratch=scratch.default"
LOST = {
    "postgres": "there is no PostgreSQL server",  # it connects once more
    "spark": "no Spark Connect server answers",
    "trino": "Trino cannot be reached",
    "pinot": "Pinot cannot be reached",
    "clickhouse": "ClickHouse cannot be reached",
}


class Cancelled(Exception):
    """The exception with which these tests cancel a count."""


@pytest.fixture(params=SERVERS)
def name(request):
    """Return the name of each engine."""
    return request.param


@pytest.fixture
def table(server, name):
    """Return the name of a new table."""
    table = f"failures_{uuid.uuid4().hex[:8]}"
    SERVERS[name].load(server(name), ROWS, table)
    return table


@pytest.fixture
def behind(server, name, table):
    """Return a proxy, and a function that opens the engine on the table through it and describes the columns."""
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(contextlib.closing(Proxy(url_of(server(name)))))

        def opened(**parts):
            url = proxy.url + SCRATCH if name == "trino" else proxy.url
            engine = stack.enter_context(contextlib.closing(open_engine(url, table=table, **parts)))
            assert rows_of(engine, PLAN.request) == [(("a",), 2)]
            return engine

        yield proxy, opened
    if name == "trino":  # a stalled network has kept scratch tables; other tests read the list of tables
        trino.execute(server(name), f"DROP TABLE IF EXISTS {table}")
        for left in trino.execute(server(name), "SHOW TABLES FROM scratch.default"):
            trino.execute(server(name), f"DROP TABLE scratch.default.{left[0]}")


def charge(engine, progress=None):
    """Return the error of a top query, if there is one, and what its budget was charged."""
    budget, error = Budget(8, 1e-8), None
    try:
        answer(PLAN, engine, budget, KeyedBits(bytes(32), "failures"), progress=progress)
    except (EngineError, InputError, Cancelled) as raised:
        error = raised
    assert budget.held == Cost()
    return error, budget.spent


def stalled(engine, proxy, act=lambda: None):
    """Return the outcome of a query whose network stalls as its count begins; *act* runs a moment later."""
    count, started = engine.head, []

    def head(*arguments, **parts):
        proxy.stall()
        started.append(True)
        return count(*arguments, **parts)

    engine.head = head
    return charge(engine, lambda _: act() if started else None)


def test_a_server_that_is_lost_during_a_count_costs_the_worst_case(name, behind):
    """The error says that it was lost; whether the rows were read cannot be known."""
    proxy, opened = behind
    error, spent = stalled(opened(), proxy, proxy.close)
    assert spent == PLAN.worst_cost
    assert isinstance(error, EngineError)
    assert LOST[name] in str(error)


def test_a_stalled_network_ends_a_count_at_its_time_limit(behind):
    """The limit is enforced here, even if neither the statement nor its cancellation reaches the server."""
    proxy, opened = behind
    error, spent = stalled(opened(timeout_seconds=9), proxy)
    assert spent == PLAN.worst_cost
    assert isinstance(error, EngineTimeout)
    assert "within 9 seconds" in str(error)


@pytest.mark.parametrize("name", [name for name in SERVERS if name != "pinot"], indirect=True)
def test_a_stalled_network_ends_pair_queries_at_their_time_limit(behind):
    """What was written is deleted in the background: no deletion waits for the network before the error."""
    proxy, opened = behind
    engine, began = opened(timeout_seconds=15), 0.0

    def stalled_sums():
        nonlocal began
        with engine.pairs(HeadRequest("who", ("item",), 3)) as pairs:
            pairs.users_by_size(np.array([1]))
            proxy.stall()
            began = time.monotonic()
            list(pairs.weighted_sums(1.0))

    with pytest.raises(EngineTimeout):
        stalled_sums()
    assert time.monotonic() - began < 15 + 5  # one second and, on a loaded machine, the time to be scheduled


def test_a_cancelled_count_costs_the_worst_case(behind):
    """The exception of the caller is raised, even if the cancellation does not reach the server."""
    proxy, opened = behind

    def cancel():
        raise Cancelled

    error, spent = stalled(opened(), proxy, cancel)
    assert (type(error), spent) == (Cancelled, PLAN.worst_cost)


def drop(url, name, table):
    """Drop a table."""
    match name:
        case "postgres":
            with postgres.owner(url) as owner:
                owner.execute(f"DROP TABLE {table}")
        case "pinot":
            for kind in ("tables", "schemas"):
                httpx.delete(f"{url['controller']}/{kind}/{table}", timeout=60).raise_for_status()
        case "clickhouse":
            clickhouse.run(url, f"DROP TABLE {clickhouse.DATABASE}.{table}")
        case _:
            SERVERS[name].execute(url, f"DROP TABLE {table}")


def test_a_dropped_table_costs_nothing_where_one_round_trip_shows_it(server, name, table, behind):
    """A statement that cannot be planned has read no row; Spark and Trino, whose plans take several, find out later."""
    engine = behind[1]()
    drop(server(name), name, table)
    error, spent = charge(engine)
    assert isinstance(error, EngineError | InputError)
    assert spent == (PLAN.worst_cost if name in {"spark", "trino"} else Cost())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("ALTER TABLE {} DROP COLUMN item", "if it is gone, open the source again"),
        ("ALTER TABLE {} RENAME item TO other", "if it is gone, open the source again"),
        ("REVOKE SELECT ON {} FROM reader", "a right is missing"),
    ],
)
def test_what_postgres_refuses_to_plan_costs_nothing(server, change, message):
    """A column that is gone and a withdrawn permission are found before the data is read."""
    url, table = server("postgres"), f"planned_{uuid.uuid4().hex}"
    postgres.load(url, ROWS, table)
    with contextlib.closing(open_engine(url, table=table)) as engine:
        assert charge(engine)[0] is None
        with postgres.owner(url) as owner:
            owner.execute(change.format(table))
        error, spent = charge(engine)
    assert message in str(error)
    assert spent == Cost()


def test_a_column_that_clickhouse_lost_is_named_as_the_cause(server):
    """It is found out by the count: planning a statement could read rows of a view."""
    url = server("clickhouse")
    table = clickhouse.load(url, ROWS)
    with contextlib.closing(open_engine(url, table=table)) as engine:
        assert charge(engine)[0] is None
        clickhouse.run(url, f"ALTER TABLE {clickhouse.DATABASE}.{table} DROP COLUMN item")
        error, spent = charge(engine)
    assert "a column is gone" in str(error)
    assert spent == PLAN.worst_cost


@pytest.mark.parametrize("name", ["trino", "spark", "pinot"], indirect=True)
def test_a_column_that_is_gone_costs_the_worst_case_where_the_count_finds_it_out(server, name, table, behind):
    """The table is replaced by one without the column after the columns were described."""
    engine = behind[1]()
    drop(server(name), name, table)
    SERVERS[name].load(server(name), ROWS.rename_columns(["who", "other"]), table)
    error, spent = charge(engine)
    assert isinstance(error, UnknownColumn if name == "pinot" else EngineError)
    assert spent == PLAN.worst_cost


def test_planning_reads_no_row(server):
    """A view that fails on its rows, in a scalar subquery too, is planned; only the count fails, and is charged."""
    view = "SELECT 1 AS who, (SELECT max(1 / (n - n)) FROM generate_series(1, 2) AS n) AS item"
    with contextlib.closing(open_engine(server("postgres"), view=view)) as engine:
        error, spent = charge(engine)
    assert isinstance(error, EngineError)
    assert spent == PLAN.worst_cost


def test_constants_of_a_filter_are_planned(server):
    """The statement that is planned has the constants of the request bound."""
    url, table = server("postgres"), f"planned_{uuid.uuid4().hex}"
    postgres.load(url, ROWS, table)
    with contextlib.closing(PostgresEngine(url, table=table)) as engine:
        where = Comparison("item", "=", Constant(Kind.TEXT, "a'$1"))
        engine.check(HeadRequest("who", ("item",), 1, where, domain=pa.table({"item": ["a"]})))


def test_a_cancel_request_that_stalls_delays_nothing(server, monkeypatch):
    """The socket is shut down while the request is under way, because a stalled network would delay both."""
    forever, shut, shut_down = threading.Event(), [], postgres_engine._shut_down
    monkeypatch.setattr(psycopg.Connection, "cancel_safe", lambda *_, **__: forever.wait())
    monkeypatch.setattr(postgres_engine, "_shut_down", lambda connection: (shut.append(True), shut_down(connection)))

    def cancel(_):
        raise Cancelled

    view = "SELECT 1 AS who, 1 AS item FROM pg_sleep(6)"
    with contextlib.closing(PostgresEngine(server("postgres"), view=view)) as engine:
        with pytest.raises(Cancelled):
            engine.head(HeadRequest("who", ("item",), 1), progress=cancel)
        assert shut
        forever.set()
