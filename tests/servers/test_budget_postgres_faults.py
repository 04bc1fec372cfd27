"""Connection and server failures under the PostgreSQL budget store: acknowledged work is durable and charged once."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet.budget.checkpoints import Checkpointer, CheckpointFile
from discreet.budget.errors import StoreBehind, StoreUnavailable
from discreet.budget.manager import BudgetManager
from discreet.budget.model import AdminAction, Replay, Reservation, State
from discreet.budget.stores import postgres
from discreet.budget.stores.postgres import PostgresStore
from tests.budget.suite import ACT, UNIT, account, claim, key_of, spend, units
from tests.servers import postgres as server_of
from tests.servers.budget_schemas import AFTER, connect_to, new_schema, prepare, wait_until
from tests.servers.proxies import LostCommitProxy

pytest_plugins = ["tests.servers.budget_stores"]


class TerminateConnections:
    """A step hook at which the server terminates the connections of all stores, once."""

    def __init__(self, where):
        self.where, self.url, self.done = where, None, False

    def __call__(self, name):
        if name == self.where and self.url is not None and not self.done:
            self.done = True
            wait_until(self._ended)  # a session is shown as idle a moment after it has answered

    def _ended(self):
        with server_of.owner(self.url) as db:
            ended = db.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE application_name = 'discreet budget' AND state = 'idle in transaction'"
            ).fetchall()
        return [(True,) in ended]


@pytest.mark.parametrize("method", list(AFTER))
@pytest.mark.parametrize("where", ["locked", "decided"])
def test_a_transaction_whose_connection_ends_before_commit_takes_effect_once(store_url, open_store, method, where):
    """F10: a transaction whose connection ends before COMMIT is retried and takes effect once."""
    hook = TerminateConnections(where)
    store = open_store(step=hook)
    act = prepare(store, method)
    lines = store.verify().lines
    hook.url = store_url.partition("?")[0]
    act()
    assert hook.done
    assert [units(store, name) for name in ("ann", "org", "data")] == [AFTER[method]] * 3
    assert store.verify().lines == lines + 1


def test_a_charge_whose_connection_ends_before_commit_is_made_once(store_url, open_store):
    """F10: an administrative charge whose connection ends before COMMIT is retried and made once."""
    hook = TerminateConnections("decided")
    store = open_store(step=hook)
    hook.url = store_url.partition("?")[0]
    store.charge("ann", UNIT, ACT)
    assert hook.done
    assert units(store, "ann") == (1, 0, 0)


_AT_COMMIT = """
CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON budget_ledger DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION wait()
"""


@pytest.mark.parametrize("method", list(AFTER))
def test_a_transaction_whose_connection_ends_at_commit_takes_effect_once(store_url, open_store, method):
    """F10: a transaction whose connection ends during COMMIT is retried and takes effect once."""
    store = open_store()
    act = prepare(store, method)
    lines = store.verify().lines
    with connect_to(store_url) as db, ThreadPoolExecutor(1) as pool:
        db.execute(_AT_COMMIT)
        db.execute("SELECT pg_advisory_lock(77)")
        waiting = pool.submit(act)
        query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 77"
        wait_until(lambda: db.execute(query).fetchone())
        db.execute(f"SELECT pg_terminate_backend(pid, 10000) {query.partition('count(*)')[2]}")
        db.execute("SELECT pg_advisory_unlock(77)")
        waiting.result(30)
    assert [units(store, name) for name in ("ann", "org", "data")] == [AFTER[method]] * 3
    assert store.verify().lines == lines + 1


@pytest.fixture
def lost_commit(store_url, open_store):
    """Return a store connected through a LostCommitProxy, and the proxy."""
    with contextlib.closing(LostCommitProxy(store_url)) as proxy:
        yield open_store(proxy.url + "&sslmode=disable&gssencmode=disable"), proxy


@pytest.mark.parametrize("method", list(AFTER))
def test_an_operation_whose_commit_response_is_lost_takes_effect_once(lost_commit, method):
    """F6, I4: an operation with unknown outcome is retried under the same id and takes effect once."""
    store, proxy = lost_commit
    act = prepare(store, method)
    lines = store.verify().lines
    proxy.armed = True
    answer = act()
    assert proxy.dropped == 1
    assert [units(store, name) for name in ("ann", "org", "data")] == [AFTER[method]] * 3
    assert store.verify().lines == lines + 1
    if method == "settle":
        assert (answer.charged, answer.release.result) == (UNIT, b"x")
    if method == "reserve":
        assert answer.state is State.HELD


def test_a_replay_whose_commit_response_is_lost_is_charged_once(lost_commit):
    """I7: bob's replay of a release paid for by ann is charged once when the commit response is lost."""
    store, proxy = lost_commit
    spend(store, claim("a", release="q"))
    proxy.armed = True
    assert isinstance(store.reserve(claim("b", "bob", "q")), Replay)
    assert proxy.dropped == 1
    assert [units(store, name) for name in ("ann", "bob", "org")] == [(1, 0, 0)] * 3


def test_a_charge_without_an_id_is_not_retried_after_a_lost_commit_response(lost_commit):
    """A charge without an id cannot be retried: the error says that its outcome is not known."""
    store, proxy = lost_commit
    proxy.armed = True
    with pytest.raises(StoreUnavailable, match="not known"):
        store.charge("ann", UNIT, ACT)
    assert proxy.dropped == 1
    assert units(store, "ann") == (1, 0, 0)


def test_an_action_with_an_id_is_retried_after_a_lost_commit_response(lost_commit):
    """I4: charges, records, new accounts and notes with an id are retried by it and take effect once."""
    store, proxy = lost_commit
    acts = [
        lambda act: store.charge("ann", UNIT, act),
        lambda act: store.put_record("key", "a", "1", act),
        lambda act: store.create(account("eve", 5, "org"), act),
        lambda act: store.note(act, {}),
    ]
    for n, do in enumerate(acts):
        lines, proxy.armed = store.verify().lines, True
        do(AdminAction("officer", "once", f"act-{n}"))
        assert proxy.dropped == n + 1
        assert store.verify().lines == lines + 1
    assert units(store, "ann") == (1, 0, 0)
    assert store.records_version() == 1


def test_an_exhausted_connection_pool_is_unavailable(open_store, monkeypatch):
    """F10: an exhausted connection pool raises StoreUnavailable after a timeout and changes nothing."""
    monkeypatch.setattr(postgres, "MAX_CONNECTIONS", 1)
    store = open_store()
    taken = store._pool.getconn()
    with monkeypatch.context() as patched:
        patched.setattr(postgres, "_WAIT_SECONDS", 0.2)
        with pytest.raises(StoreUnavailable, match="PoolTimeout"):
            store.reserve(claim("a"))
    store._pool.putconn(taken)
    assert isinstance(store.reserve(claim("a")), Reservation)


def test_the_server_releases_the_locks_of_a_hanging_process(open_store, monkeypatch):
    """The server ends an idle transaction that holds locks; other clients proceed, and the transaction is retried."""
    hangs, wake = threading.Event(), threading.Event()

    def step(name):
        if name == "decided" and not hangs.is_set():
            hangs.set()
            assert wake.wait(30)

    with monkeypatch.context() as patched:
        patched.setitem(postgres._SETTINGS, "idle_in_transaction_session_timeout", "1s")
        slow = open_store(step=step)
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(lambda: slow.reserve(claim("late")))
            assert hangs.wait(30)
            store = open_store()
            assert isinstance(store.reserve(claim("b")), Reservation)
            wake.set()
            assert isinstance(late.result(30), Reservation)
    assert units(store, "ann") == (0, 6, 0)


class Crash:
    """Crashes the server of a folder: at once and started again if called, or stopped until it is started."""

    def __init__(self, folder):
        self._data = folder / "data"

    def __call__(self):
        """Crash the server and start it again; it starts also if it was stopped."""
        self._control("restart", "--mode=immediate", f"--log={self._data / 'again.log'}")

    def stop(self):
        """Stop the server as in a crash."""
        self._control("stop", "--mode=immediate")

    def _control(self, command, *options):
        server_of._run([server_of._programs() / "pg_ctl", command, "--pgdata", self._data, "--wait", *options])


@pytest.fixture(scope="module")
def own_server(tmp_path_factory):
    """Return the URL of a server for crash tests and its `Crash`; asynchronous commits do not survive."""
    folder = tmp_path_factory.mktemp("crashing")
    url = server_of.start(folder)
    with server_of.owner(url) as db:
        db.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        db.execute("SELECT pg_reload_conf()")
    yield url, Crash(folder)
    server_of.stop(folder)


def test_a_server_crash_loses_no_acknowledged_release(own_server):
    """F10, I2: every acknowledged release survives a crash under four threads that retry until they succeed."""
    url, crash = own_server
    with contextlib.closing(PostgresStore(new_schema(url))) as store:
        store.create(account("org", 10_000), ACT)
        answered, busy, crashed = [], threading.Event(), threading.Event()
        for n in range(4):
            store.create(account(f"a{n}", 10_000, "org"), ACT)

        def ask(n):
            i = after = 0
            while after < 5:
                after += crashed.is_set()
                wish = claim(f"c{n}-{i}", f"a{n}")
                with contextlib.suppress(StoreUnavailable):
                    spend(store, wish)
                    answered.append(wish.release_key)
                    i += 1
                    if i == 5:
                        busy.set()

        with ThreadPoolExecutor(4) as pool:
            working = [pool.submit(ask, n) for n in range(4)]
            assert busy.wait(60)
            crash()
            crashed.set()
            for each in working:
                each.result(60)
        assert all(store.release(key) is not None for key in answered)
        assert units(store, "org") == (len(answered), 0, 0)
        store.verify()


def test_a_server_crash_loses_an_asynchronous_commit(own_server, monkeypatch):
    """The crash test can fail: with the server's default of asynchronous commit the last release is lost."""
    url, crash = own_server
    for ours in (True, False):
        with monkeypatch.context() as patched:
            if not ours:
                patched.setattr(postgres, "_ON_DISK", "SELECT")
            with contextlib.closing(PostgresStore(new_schema(url))) as store:
                store.create(account("ann", 1_000), ACT)
                store.heartbeat()
                with server_of.owner(url) as db:
                    db.execute("CHECKPOINT")
                spend(store, claim("a"))
                crash()
                assert (store.release(key_of("a")) is not None) == ours
                store.verify()


def test_an_unreachable_server_is_unavailable_until_it_is_back(own_server, monkeypatch):
    """I12: without the store every operation fails; once it is back the same store reconnects."""
    url, _ = own_server
    with contextlib.closing(PostgresStore(new_schema(url))) as store:
        store.create(account("ann"), ACT)
        store._pool.wait(60)  # a connection that is still being opened would outlive the others
        with monkeypatch.context() as patched:
            patched.setattr(postgres, "_WAIT_SECONDS", 0.2)
            patched.setattr(store._pool, "conninfo", url.replace(f":{urlsplit(url).port}/", ":1/"))
            with server_of.owner(url) as db:
                db.execute(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                )
            for ask in (lambda: store.reserve(claim("a")), lambda: store.balance("ann")):
                with pytest.raises(StoreUnavailable):
                    ask()
        monkeypatch.setattr(postgres, "_WAIT_SECONDS", 30)
        assert isinstance(store.reserve(claim("a")), Reservation)
        store.verify()


def test_a_dump_that_is_restored_is_whole_and_older_than_its_checkpoint(store_url, tmp_path):
    """F12: pg_dump and psql, as in a restore drill; the restored store goes on only once it is accepted."""
    checkpointer = Checkpointer(CheckpointFile(tmp_path / "checkpoints"), Ed25519PrivateKey.generate())
    url, _, schema = store_url.partition("?options=-csearch_path%3D")
    programs, dump = server_of._programs(), tmp_path / "dump.sql"
    with contextlib.closing(PostgresStore(store_url)) as store:
        checkpointer.begin(store)
        spend(store, claim("a", release="q"))
        command = [programs / "pg_dump", f"--dbname={url}", f"--schema={schema}", f"--file={dump}"]
        subprocess.run(command, check=True, capture_output=True)
        spend(store, claim("b"))
        checkpointer.write(store)
    with server_of.owner(url) as db:
        db.execute(f"DROP SCHEMA {schema} CASCADE")
    command = [programs / "psql", "--no-psqlrc", "--set=ON_ERROR_STOP=1", f"--dbname={url}", f"--file={dump}"]
    subprocess.run(command, check=True, capture_output=True)
    with contextlib.closing(PostgresStore(store_url)) as store:
        store.verify()
        with pytest.raises(StoreBehind):
            BudgetManager(store, str, checkpointer=checkpointer)
        (tmp_path / "checkpoints").unlink()
        with pytest.raises(StoreBehind):
            BudgetManager(store, str, checkpointer=checkpointer)
        checkpointer.begin(store)
        BudgetManager(store, str, checkpointer=checkpointer).maintain()
        assert isinstance(store.reserve(claim("again", release="q")), Replay)
        assert spend(store, claim("c")) == UNIT
        assert units(store, "ann") == (2, 0, 0)
