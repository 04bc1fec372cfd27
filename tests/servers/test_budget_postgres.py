"""The PostgreSQL budget store passes the store suite and agrees with the reference model."""

from __future__ import annotations

import contextlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from discreet.budget.errors import LedgerBroken, StoreUnavailable
from discreet.budget.model import Calendar, Refusal
from discreet.budget.rules import DAY_US
from discreet.budget.stores.postgres import PostgresStore
from tests.budget import test_manager_model
from tests.budget.suite import ACT, UNIT, BudgetStoreSuite, FakeClock, account, claim, spend
from tests.budget.tampering import CHANGES, prepare
from tests.servers import process
from tests.servers.budget_schemas import connect_to, new_schema

pytest_plugins = ["tests.servers.budget_stores"]

_SET_BY_TESTS = """
CREATE TABLE test_clock (us bigint);
CREATE OR REPLACE FUNCTION budget_now_us() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT us FROM test_clock'
"""


class Clocked:
    """A store whose server reads the test's clock, which is written to the database before each call."""

    def __init__(self, store_url, clock, **parts):
        self._store, self._clock, self._set_us = PostgresStore(store_url, **parts), clock, clock()
        self._db = connect_to(store_url)
        self._db.execute(_SET_BY_TESTS)
        self._db.execute("INSERT INTO test_clock VALUES (%s)", (clock(),))
        self._db.execute("UPDATE budget_meta SET seen_us = %s", (clock(),))

    def __getattr__(self, name):
        if self._clock() != self._set_us:
            self._set_us = self._clock()
            self._db.execute("UPDATE test_clock SET us = %s", (self._set_us,))
        return getattr(self._store, name)

    def close(self):
        """Close the store and the connection that sets its clock."""
        self._store.close()
        self._db.close()


class OnPostgres:
    """A suite of stores whose stores have a schema each of the running server."""

    @pytest.fixture(autouse=True)
    def _server(self, server):
        self.url = server("postgres")

    @contextlib.contextmanager
    def opened(self, clock):
        """Open a store in its own schema."""
        with contextlib.closing(Clocked(new_schema(self.url), clock)) as store:
            yield store


class TestPostgresStore(OnPostgres, BudgetStoreSuite):
    """Run the whole suite."""


@pytest.fixture
def fresh(server):
    """Return the URL of an empty schema."""
    return new_schema(server("postgres"))


def test_the_manager_agrees_with_the_reference_after_any_operations(server, monkeypatch):
    """I1, I5: the SQLite store's state machine test passes on PostgreSQL."""
    url = server("postgres")

    monkeypatch.setattr(test_manager_model, "SQLiteStore", lambda _, clock: Clocked(new_schema(url), clock))
    run_state_machine_as_test(
        test_manager_model.Manager,
        settings=settings(max_examples=15, stateful_step_count=40, derandomize=True, deadline=None, database=None),
    )


def test_timestamps_are_those_of_the_server(store_url, open_store):
    """A balance's timestamp lies between two readings of the server's clock."""
    store = open_store()
    with connect_to(store_url) as db:
        look = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        before, stamp, after = db.execute(look).fetchone(), store.balance("ann").time_us, db.execute(look).fetchone()
        assert before[0] <= stamp <= after[0]


def test_all_processes_share_the_latest_time(fresh):
    """I6: when the clock goes back, a period that has ended for one process has ended for all."""
    clock = FakeClock()
    with contextlib.closing(Clocked(fresh, clock)) as first, contextlib.closing(PostgresStore(fresh)) as second:
        first.create(account("ann", 3, period=Calendar("day")), ACT)
        spend(first, claim("a"), UNIT * 3)
        clock.advance(days=1)
        spend(first, claim("b"), UNIT * 3)
        clock.advance(days=-1)
        assert first.balance("ann").time_us == second.balance("ann").time_us == clock() + DAY_US
        assert isinstance(second.reserve(claim("c", worst=UNIT)), Refusal)
        second.verify()


def test_concurrent_opens_create_the_tables_once(fresh):
    """Concurrent opens create the tables once and see one store id; another schema has another id."""
    together = threading.Barrier(6)

    def open_one(_):
        together.wait(30)
        with contextlib.closing(PostgresStore(fresh)) as opened:
            return opened.id

    with ThreadPoolExecutor(6) as pool:
        (name,) = set(pool.map(open_one, range(6)))
    url = fresh.partition("?")[0].replace("owner:owner", "reader:reader")
    with contextlib.closing(PostgresStore(new_schema(url))) as another:
        assert another.id != name


def test_another_schema_is_refused(fresh):
    """A store with an unknown schema version is not opened."""
    PostgresStore(fresh).close()
    with connect_to(fresh) as db:
        db.execute("UPDATE budget_meta SET version = version + 1")
    with pytest.raises(StoreUnavailable, match="schema"):
        PostgresStore(fresh)


def test_commits_are_synchronous_under_any_server_default(fresh):
    """I2: synchronous_commit is never less than on."""
    for default, ours in (("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")):
        with contextlib.closing(PostgresStore(f"{fresh}%20-csynchronous_commit%3D{default}")) as opened:
            assert opened.read(lambda db: db.query(("SHOW synchronous_commit", ())), "show")[0] == [(ours,)]


@pytest.mark.parametrize(
    "change",
    [
        *CHANGES.values(),
        "INSERT INTO budget_ledger SELECT chain, seq + 1, body, hash FROM budget_ledger WHERE seq = 8",
        "UPDATE budget_accounts SET seq = seq - 1",
    ],
)
def test_every_external_change_is_detected(fresh, change):
    """I5: verify detects a ledger line, balance or reservation edited, removed or moved by a superuser."""
    with contextlib.closing(PostgresStore(fresh)) as store:
        prepare(store)
        with connect_to(fresh) as db:
            assert db.execute(change).rowcount > 0
        with pytest.raises(LedgerBroken):
            store.verify()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda url: re.sub(r":\d+/", f":{process.free_port()}/", url), "OperationalError"),
        (lambda url: url.replace(":owner@", ":s3cret@"), "OperationalError"),
        (lambda url: url.replace("owner:owner", "reader:reader"), "ReadOnlySqlTransaction"),
        (lambda url: url.replace("/library", "/s3cret"), "OperationalError"),
    ],
)
def test_an_unreachable_database_is_reported_without_secrets(fresh, change, message):
    """The error message omits the password and the server's own message."""
    with pytest.raises(StoreUnavailable, match=message) as caught:
        PostgresStore(change(fresh))
    assert "s3cret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_closed_store_raises(fresh):
    """Reads and writes raise StoreUnavailable."""
    store = PostgresStore(fresh)
    store.close()
    for ask in (lambda: store.reserve(claim("a")), store.accounts, store.verify, store.heartbeat):
        with pytest.raises(StoreUnavailable):
            ask()
