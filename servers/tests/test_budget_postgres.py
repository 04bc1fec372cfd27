"""The PostgreSQL store of budgets passes the suite of stores, and agrees with the reference whatever is done."""

from __future__ import annotations

import contextlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from tests.budget import test_migration, test_model_of_store
from tests.budget.suite import ACT, UNIT, BudgetStoreSuite, FakeClock, account, claim, spend

from discreet.budget.errors import LedgerBroken, StoreUnavailable
from discreet.budget.model import AdminAction, Calendar, Refusal
from discreet.budget.periods import DAY_US
from discreet.budget.stores import postgres_schema
from discreet.budget.stores.postgres import PostgresStore
from servers import process
from servers.tests.budget_places import connected, new_place

pytest_plugins = ["servers.tests.budget_stores"]

_TAMPERED = [
    "UPDATE budget_ledger SET body = replace(body, 'ann', 'eve') WHERE seq = 2",
    "UPDATE budget_ledger SET body = body || ' ' WHERE seq = 1",
    "UPDATE budget_ledger SET hash = sha256(hash) WHERE seq = 3",
    "DELETE FROM budget_ledger WHERE (chain, seq) IN (SELECT chain, max(seq) FROM budget_ledger GROUP BY chain)",
    "DELETE FROM budget_ledger WHERE chain = 1",
    "UPDATE budget_ledger SET seq = -seq",
    "UPDATE budget_ledger SET chain = chain + 10",
    "INSERT INTO budget_ledger SELECT chain, seq + 1, body, hash FROM budget_ledger WHERE seq = 8",
    "UPDATE budget_accounts SET tally[1] = 0",
    "UPDATE budget_accounts SET tally[8] = 1",
    "UPDATE budget_accounts SET older[3] = 1",
    'UPDATE budget_accounts SET settings = replace(settings, \'"rho":"1\', \'"rho":"91\')',
    "UPDATE budget_accounts SET settings = replace(settings, 'enforce', 'observe')",
    "UPDATE budget_accounts SET end_us = 0",
    "UPDATE budget_accounts SET bucket = 1",
    "UPDATE budget_accounts SET path = ARRAY[id]",
    "UPDATE budget_accounts SET seq = seq - 1",
    "DELETE FROM budget_accounts WHERE id = 'ann'",
    "UPDATE budget_reservations SET state = 'void'",
    "UPDATE budget_reservations SET holds = replace(holds, 'org', 'ann')",
    "DELETE FROM budget_reservations",
    "INSERT INTO budget_buckets SELECT id, 7, 1, true, tally FROM budget_accounts",
    "UPDATE budget_accounts SET failures = '{}' WHERE id = 'ann'",
    "UPDATE budget_releases SET result = 'another'",
    "UPDATE budget_releases SET cost[2] = 1",
    "DELETE FROM budget_releases",
    "INSERT INTO budget_releases SELECT sha256(release_key), result, cost, time_us FROM budget_releases",
    "INSERT INTO budget_entitlements SELECT 'bob', release_key, number, time_us FROM budget_entitlements LIMIT 1",
    "DELETE FROM budget_entitlements WHERE account = 'ann'",
    "UPDATE budget_forfeits SET amount[1] = 9",
    "UPDATE budget_forfeits SET release_key = sha256(release_key)",
    "DELETE FROM budget_forfeits WHERE account = 'org'",
    "UPDATE budget_records SET text = '{}'",
    "DELETE FROM budget_records",
    "UPDATE budget_meta SET records = 0",
    "DELETE FROM budget_acts",
    "UPDATE budget_acts SET digest = sha256(digest)",
]

_SET_BY_TESTS = """
CREATE TABLE test_clock (us bigint);
CREATE OR REPLACE FUNCTION budget_now_us() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT us FROM test_clock'
"""


class Clocked:
    """A store whose server reads a clock of the test's: it is put there before each call."""

    def __init__(self, place, clock, **parts):
        self._store, self._clock, self._set_us = PostgresStore(place, **parts), clock, clock()
        self._db = connected(place)
        self._db.execute(_SET_BY_TESTS)
        self._db.execute("INSERT INTO test_clock VALUES (%s)", (clock(),))
        self._db.execute("UPDATE budget_meta SET seen_us = %s", (clock(),))

    def __getattr__(self, name):
        if self._clock() != self._set_us:
            self._set_us = self._clock()
            self._db.execute("UPDATE test_clock SET us = %s", (self._set_us,))
        return getattr(self._store, name)

    def close(self):
        """Both."""
        self._store.close()
        self._db.close()


class TestPostgresStore(BudgetStoreSuite):
    """Every test of the suite."""

    @pytest.fixture(autouse=True)
    def _server(self, server):
        self.url = server("postgres")

    @contextlib.contextmanager
    def opened(self, clock):
        """In a schema of its own."""
        with contextlib.closing(Clocked(new_place(self.url), clock)) as store:
            yield store


@pytest.fixture
def fresh(server):
    """A place where no store is yet."""
    return new_place(server("postgres"))


def test_whatever_is_done_in_whatever_order_the_manager_agrees_with_the_reference(server, monkeypatch):
    """I1, I5: the state machine of the SQLite store, on PostgreSQL."""
    url = server("postgres")

    class OnPostgres:
        @staticmethod
        def in_memory(clock):
            return Clocked(new_place(url), clock)

    monkeypatch.setattr(test_model_of_store, "SQLiteStore", OnPostgres)
    run_state_machine_as_test(
        test_model_of_store.Manager,
        settings=settings(max_examples=15, stateful_step_count=40, derandomize=True, deadline=None, database=None),
    )


def test_time_is_the_servers(place, open_store):
    """Between two looks at its clock."""
    store = open_store()
    with connected(place) as db:
        look = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        before, told, after = db.execute(look).fetchone(), store.balance("ann").time_us, db.execute(look).fetchone()
        assert before[0] <= told <= after[0]


def test_what_one_process_has_seen_the_others_have_seen(fresh):
    """I6: the clock goes back between two processes, and a period that is over stays over."""
    clock = FakeClock()
    with contextlib.closing(Clocked(fresh, clock)) as first, contextlib.closing(PostgresStore(fresh)) as second:
        first.create(account("ann", 3, period=Calendar("day")), ACT)
        spend(first, claim("a"), UNIT * 3)
        clock.go(days=1)
        spend(first, claim("b"), UNIT * 3)
        clock.go(days=-1)
        assert first.balance("ann").time_us == second.balance("ann").time_us == clock() + DAY_US
        assert isinstance(second.reserve(claim("c", worst=UNIT)), Refusal)
        second.verify()


def test_processes_that_open_a_store_at_once_make_it_once(fresh):
    """The tables are made by one of them; all have the same store, and another place is another store."""
    together = threading.Barrier(6)

    def open_one(_):
        together.wait(30)
        with contextlib.closing(PostgresStore(fresh)) as opened:
            return opened.id

    with ThreadPoolExecutor(6) as pool:
        (name,) = set(pool.map(open_one, range(6)))
    url = fresh.partition("?")[0].replace("owner:owner", "reader:reader")
    with contextlib.closing(PostgresStore(new_place(url))) as another:
        assert another.id != name


def test_a_newer_schema_is_refused_and_an_older_one_migrated(fresh, monkeypatch):
    """Nothing is written by a program that does not know it."""
    PostgresStore(fresh).close()
    with monkeypatch.context() as patched:
        newer = (*postgres_schema.MIGRATIONS, "CREATE TABLE budget_more (n int); INSERT INTO budget_more VALUES (7)")
        patched.setattr(postgres_schema.migrate, "__defaults__", (newer,))
        for _ in range(2):
            PostgresStore(fresh).close()
        with connected(fresh) as db:
            assert db.execute("SELECT n, version FROM budget_more, budget_meta").fetchall() == [(7, len(newer))]
    known = len(postgres_schema.MIGRATIONS)
    with pytest.raises(StoreUnavailable, match=f"schema {known + 1}, but this program knows only up to {known}"):
        PostgresStore(fresh)


def test_what_is_answered_is_on_disk_whatever_the_servers_default(fresh):
    """I2: synchronous_commit is never less than on."""
    for default, ours in (("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")):
        with contextlib.closing(PostgresStore(f"{fresh}%20-csynchronous_commit%3D{default}")) as opened:
            assert opened._rows("SHOW synchronous_commit") == [(ours,)]


def _left_behind(place):
    """Tables as the earlier program left them."""
    with connected(place) as db:
        db.execute(postgres_schema.MIGRATIONS[0])
        db.execute(Path(__file__).with_name("budget_schema_1.sql").read_text())
        db.execute("UPDATE budget_meta SET version = 1")
    return place


def test_a_store_of_the_first_schema_goes_on(fresh):
    """I1-I5: with its accounts, releases, forfeits and failures."""
    PostgresStore(_left_behind(fresh)).close()
    with contextlib.closing(Clocked(fresh, FakeClock(test_migration.LEFT_US))) as store:
        test_migration.goes_on(store)


def test_an_old_store_whose_ledger_was_changed_is_not_migrated(fresh):
    """What failed is read from it, so that it has to be whole."""
    with connected(_left_behind(fresh)) as db:
        db.execute("UPDATE budget_ledger SET body = replace(body, 'forfeit', 'void')")
    for _ in range(2):
        with pytest.raises(LedgerBroken):
            PostgresStore(fresh)


@pytest.mark.parametrize("defect", _TAMPERED)
def test_whatever_is_changed_behind_its_back_is_found(fresh, defect):
    """I5: a line, a balance, a reservation, edited, removed or moved by somebody with all rights."""
    with contextlib.closing(PostgresStore(fresh)) as store:
        store.create(account("org", 100), ACT)
        store.create(account("ann", 10, "org"), ACT)
        spend(store, claim("a"))
        store.reserve(claim("b"))
        store.reserve(claim("c"))
        store.start("c")
        store.forfeit("c")
        store.put_record("key", "k", "a text", AdminAction("officer", "a record", "act-1"))
        store.verify()
        with connected(fresh) as db:
            assert db.execute(defect).rowcount > 0
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
def test_a_database_that_cannot_be_had_is_refused_without_secrets(fresh, change, message):
    """In one sentence, without the server's own words."""
    with pytest.raises(StoreUnavailable, match=message) as caught:
        PostgresStore(change(fresh))
    assert "s3cret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_store_that_is_closed_answers_nothing(fresh):
    """Neither reads nor writes."""
    store = PostgresStore(fresh)
    store.close()
    for ask in (lambda: store.reserve(claim("a")), store.accounts, store.verify, store.heartbeat):
        with pytest.raises(StoreUnavailable):
            ask()
