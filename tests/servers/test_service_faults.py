"""The whole service on PostgreSQL with failing connections, servers and processes: charged once, never overspent.

These are the fault tests of tests/service/faults with a server in place of a file. Every test ends with the ledger
verified, no account overspent (I1), and every released answer settled and charged (I2).
"""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from urllib.parse import urlsplit

import httpx
import pytest

from discreet.budget.errors import StoreBehind
from discreet.budget.model import Account
from discreet.budget.stores import postgres
from discreet.budget.stores.postgres import PostgresStore
from discreet.cli import main
from discreet.values import Cost
from tests.servers import postgres as server_of
from tests.servers.budget_schemas import connect_to, new_schema, wait_until
from tests.servers.proxies import LostCommitProxy
from tests.servers.test_budget_postgres_faults import own_server  # noqa: F401 - a fixture
from tests.service.deployment import CHECKPOINTS, KNOWN, TOP, Deployment, slug
from tests.service.faults.processes import Orders, Process, serving

QUICK = """
[engines.quick]
url = "duckdb:///loose.db"
timeout_seconds = 1
"""
"""An engine that serves no query: its timeout sets the lease duration."""

SHORT = Orders(lease_spare_ms=200)
STEPS = ("locked", "decided", "committed")
POINTS = [f"{name}: {step}" for name in ("reserve", "start", "settle") for step in STEPS]


@pytest.fixture
def store_url(server):
    """Return the URL of an empty schema."""
    return new_schema(server("postgres"))


@pytest.fixture
def deployment(store_url, tmp_path):
    """Return a deployment on that schema whose leases may be short."""
    from tests.service.deployment import CATALOG

    return Deployment(tmp_path / "deployment", store=store_url, catalog=CATALOG + QUICK)


def ask(deployment, url, key="once", question=TOP, who="ann", **options):
    """Send a query and return the response, recording what was released."""
    body = {"sql": question, **options}
    reply = httpx.post(f"{url}/v1/query", json=body, headers=deployment.headers(who, key), timeout=60)
    deployment.note(who, reply)
    return reply


def ended(manager):
    """Run maintenance until it has ended an expired reservation."""
    wait_until(lambda: (manager.maintain(),))


@pytest.mark.parametrize("point", POINTS)
def test_a_query_killed_at_any_step_is_charged_once_and_has_one_answer(deployment, point):
    """F2: after a kill the server rolls back the open transaction, and lease expiry ends the reservation."""
    service = Process(deployment, Orders(die=point, lease_spare_ms=200))
    with pytest.raises(httpx.TransportError):
        ask(deployment, service.url)
    service.wait_until_killed()
    at = POINTS.index(point)
    with deployment.manager() as manager:
        deployment.check(manager)
        held, used = manager.get("ann@sales").balance.held, manager.get("ann@sales").balance.used
        assert (held != Cost()) is (POINTS.index("reserve: committed") <= at < POINTS.index("settle: committed"))
        assert (used != Cost()) is (at == len(POINTS) - 1)
        if held != Cost():
            ended(manager)
    with serving(deployment, SHORT) as service:
        reply = ask(deployment, service.url)
        assert reply.status_code == 200
        assert ask(deployment, service.url, key="another").content == reply.content
    with deployment.manager() as manager:
        deployment.check(manager)
        balance = manager.get("ann@sales").balance
        assert balance.spent == balance.used == manager.get("sales").balance.spent != Cost()
        assert len(manager.store.history("ann@sales")) == 1


@pytest.fixture
def stepping(monkeypatch):
    """Make the stores of services in this process call seen["step"] at each step, and return that mapping."""
    seen = {"step": lambda _: None}

    def open_store(store, environment, _):
        from discreet.service.stores import store_url

        def step(name):
            seen["step"](name)

        return PostgresStore(store_url(store, environment), step)

    monkeypatch.setattr("discreet.service.app.open_store", open_store)
    return seen


@pytest.mark.parametrize("nth", [0, 1, 2], ids=["reserve", "start", "settle"])
@pytest.mark.parametrize("where", ["locked", "decided"])
def test_a_query_whose_backend_is_terminated_is_answered_and_charged_once(deployment, store_url, stepping, where, nth):
    """F10: the transaction is retried on another connection; the query is answered and charged once."""
    left, terminated = [nth], []

    def end(name):
        if name == where and not terminated:
            if left[0]:
                left[0] -= 1
                return
            with server_of.owner(store_url.partition("?")[0]) as db:
                terminated.extend(
                    db.execute(
                        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                        "WHERE application_name = 'discreet budget' AND state = 'idle in transaction'"
                    ).fetchall()
                )

    with deployment.open() as service:
        stepping["step"] = end
        assert service.ask(key="once").status_code == 200
        assert (True,) in terminated
        assert service.balance().used == service.balance().spent != Cost()
        assert len(service.manager.store.history("ann@sales")) == 1


@pytest.mark.parametrize("commit", ["reserve", "start", "settle"])
def test_a_commit_whose_response_is_lost_is_charged_once(deployment, store_url, monkeypatch, commit):
    """F6: a commit whose confirmation is lost is retried under its id; the query is answered and charged once."""
    with contextlib.closing(LostCommitProxy(store_url)) as proxy:
        url = proxy.url + "&sslmode=disable&gssencmode=disable"
        monkeypatch.setattr("discreet.service.app.open_store", lambda *_: PostgresStore(url))
        with deployment.open() as service:

            def arm(*_):
                proxy.armed = True

            def count_and_arm(count, _):
                head = count()
                arm()
                return head

            if commit == "reserve":
                arm()
            elif commit == "start":
                service.engines.check = arm
            else:
                service.engines.head = count_and_arm
            assert service.ask(key="once").status_code == 200
            assert proxy.dropped == 1
            assert service.engines.queried == 1
            assert service.balance().used == service.balance().spent == service.balance("sales").spent != Cost()


def test_an_exhausted_connection_pool_gives_503_and_the_retry_is_answered(deployment, monkeypatch):
    """F10: an exhausted pool gives 503 with nothing held and no engine queried; the retry is answered."""
    monkeypatch.setattr(postgres, "MAX_CONNECTIONS", 1)
    with deployment.open() as service:
        pool = service.manager.store._pool
        service.send("GET", "/v1/budget")
        taken = pool.getconn()
        with monkeypatch.context() as patched:
            patched.setattr(postgres, "_WAIT_SECONDS", 0.2)
            reply = service.ask(key="once")
            assert (reply.status_code, slug(reply), reply.headers["retry-after"]) == (503, "store-unavailable", "2")
            assert service.send("GET", "/readyz", None).json()["checks"]["store"] == "unavailable"
        pool.putconn(taken)
        assert service.engines.queried == 0
        assert service.ask(key="once").status_code == 200


def test_a_server_crash_loses_no_released_answer(own_server, tmp_path, monkeypatch):  # noqa: F811
    """F10, I2: across a server crash four clients retry until answered, and each release is charged once."""
    url, crash = own_server
    deployment = Deployment(tmp_path / "deployment", store=new_schema(url), service="max_concurrent_queries = 100")
    monkeypatch.setattr(postgres, "_WAIT_SECONDS", 30)
    with deployment.open() as service:
        busy, crashed, answered = threading.Event(), threading.Event(), []

        def client(number):
            n = after = 0
            while after < 3:
                after += crashed.is_set()
                key = f"{number}-{n}"
                question = KNOWN.replace("GROUP", f"WHERE article <> '{key}' GROUP")
                reply = service.ask(
                    question, ("ann", "bob")[number % 2], key=key, mechanism="laplace", epsilon=0.1, delta="1e-8"
                )
                assert reply.status_code in {200, 409, 503}, reply.text
                if reply.status_code == 200:
                    answered.append(reply.headers["discreet-release"])
                    n += 1
                if len(answered) == 6:
                    busy.set()

        with ThreadPoolExecutor(4) as pool:
            working = [pool.submit(client, number) for number in range(4)]
            assert busy.wait(60)
            crash()
            crashed.set()
            for each in working:
                each.result(120)
        price = service.opened.warehouse.plan(
            KNOWN, epsilon=0.1, delta="1e-8", mechanism="laplace", shared=True
        ).worst_cost.rho
        sales = service.balance("sales")
        assert len(set(answered)) == len(answered)
        assert sales.used.rho == price * len(answered)
        assert (sales.held.rho + sales.forfeited.rho) % price == 0


def test_an_unreachable_server_is_unavailable_until_it_is_back(own_server, tmp_path, monkeypatch):  # noqa: F811
    """F10: without the server a query gets 503; a cached release may still be served, and service resumes."""
    url, _ = own_server
    deployment = Deployment(tmp_path / "deployment", store=new_schema(url))
    with deployment.open() as service:
        paid = service.ask()
        pool = service.manager.store._pool
        with monkeypatch.context() as patched:
            patched.setattr(postgres, "_WAIT_SECONDS", 0.2)
            patched.setattr(pool, "conninfo", pool.conninfo.replace(f":{urlsplit(url).port}/", ":1/"))
            with server_of.owner(url) as db:
                db.execute(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                )
            refused = service.ask(epsilon=0.5, key="once")
            assert (refused.status_code, slug(refused)) == (503, "store-unavailable")
            assert service.ask().status_code in {200, 503}
            assert service.engines.queried == 1
        monkeypatch.setattr(postgres, "_WAIT_SECONDS", 30)
        assert service.ask(epsilon=0.5, key="once").status_code == 200
        assert service.ask().content == paid.content


ROUNDS = int(os.environ.get("DISCREET_ROUNDS", "1"))
"""How often the server is killed at each step below."""


class Killer:
    """Kills the server at a step of a store, once; a tracer that starts it again at the end of that span of the query.

    Args:
        crash: of the server.
        patch: a monkeypatch, so that queries wait for the server only when it starts.
    """

    def __init__(self, crash, patch):
        self._crash, self._patch, self.at, self.stopped = crash, patch, None, False

    def step(self, name):
        """Kill the server at the step *at*."""
        if name == self.at:
            self.at, self.stopped = None, True
            self._crash.stop()
            self._patch.setattr(postgres, "_WAIT_SECONDS", 0.2)

    @contextlib.contextmanager
    def span(self, *_, **__):
        """Start the server again at the end of the span."""
        try:
            yield
        finally:
            if self.stopped:
                self.stopped = False
                self._crash()
                self._patch.setattr(postgres, "_WAIT_SECONDS", 30)

    def close(self):
        """Do nothing."""


@pytest.mark.parametrize("event", ["start", "settle"])
def test_runs_that_a_killed_server_loses_are_charged_and_suspend_nobody(
    event,
    own_server,  # noqa: F811
    tmp_path,
    stepping,
    monkeypatch,
):
    """I3: the server is killed at each step of the transaction; what was held pays for the retry, at once."""
    url, crash = own_server
    wide = Account("ann@sales", Cost(Fraction(10**6), Fraction(1, 2)), Fraction(3, 4))
    deployment = Deployment(tmp_path / "deployment", store=new_schema(url), accounts=[wide])
    killer = Killer(crash, monkeypatch)
    with deployment.open(tracer=killer) as service:
        stepping["step"] = killer.step
        for n, where in enumerate(STEPS * 2 * ROUNDS):

            def at_start(where=where):
                killer.at = where

            def at_settlement(count, _, where=where):
                head = count()
                killer.at = where
                return head

            service.engines.check = at_start if event == "start" else None
            service.engines.head = at_settlement if event == "settle" else None
            question = TOP.replace("GROUP", f"WHERE article <> '{n}' GROUP")
            reply = service.ask(question, key=str(n), epsilon=0.1)
            assert (reply.status_code, killer.at) == (200 if where == "committed" else 503, None), where
            service.engines.check = service.engines.head = None
            assert service.ask(question, key=str(n), epsilon=0.1).status_code == 200, where
            assert service.balance().spent == service.balance().used, where
        assert service.manager.verify().failures == {}
        assert service.balance().suspended_until_us is None


TABLES = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema() "
    "AND table_name LIKE 'budget\\_%' ORDER BY table_name"
)


def _saved(store_url):
    """Copy every table of a store to a saved_ table and return the names."""
    with connect_to(store_url) as db:
        names = [name for (name,) in db.execute(TABLES).fetchall()]
        for name in names:
            db.execute(f"CREATE TABLE saved_{name} AS TABLE {name}")
    return names


def _put_back(store_url, names):
    """Restore the saved tables, as if a lagging replica were promoted while the service runs."""
    with connect_to(store_url) as db, db.transaction():
        db.execute("SET session_replication_role = replica")
        for name in names:
            db.execute(f"DELETE FROM {name}")
            db.execute(f"INSERT INTO {name} OVERRIDING SYSTEM VALUE SELECT * FROM saved_{name}")


def test_a_lagging_replica_that_is_promoted_is_not_served_from(store_url, tmp_path):
    """F12, T25: maintenance detects missing ledger lines, refuses queries and writes no checkpoint."""
    deployment = Deployment(tmp_path / "deployment", store=store_url, rest=CHECKPOINTS)
    with deployment.open(checked=False) as service:
        assert service.ask(key="first").status_code == 200
        names = _saved(store_url)
        assert service.ask(key="second", epsilon=2.0).status_code == 200
        service.opened.maintenance.once()
        written = (deployment.folder / "checkpoints").read_bytes()
        _put_back(store_url, names)
        for _ in range(2):
            service.opened.maintenance.once()
            refused = service.ask(key="third", epsilon=0.5)
            assert (refused.status_code, slug(refused)) == (503, "store-unavailable")
        assert service.engines.queried == 2
        assert (deployment.folder / "checkpoints").read_bytes() == written
        assert service.send("GET", "/readyz", None).json()["checks"]["checkpoints"] == "stale"


def test_a_store_without_its_checkpoints_is_served_only_once_it_is_accepted(store_url, tmp_path, monkeypatch, capsys):
    """F12: also while it is served, where the next maintenance notices; the ledger records who accepted it and why."""
    deployment = Deployment(tmp_path / "deployment", store=store_url, rest=CHECKPOINTS)
    file, settings = deployment.folder / "checkpoints", str(deployment.folder / "discreet.toml")
    monkeypatch.setitem(os.environ, "BUDGETS", deployment.environment["BUDGETS"])

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main(["ledger", *arguments, "--config", settings])
        return left.value.code, capsys.readouterr()

    with deployment.open(checked=False) as service:
        service.opened.maintenance.once()
        file.unlink()
        service.opened.maintenance.once()
        assert slug(service.ask()) == "store-unavailable"
        assert service.send("GET", "/readyz", None).json()["checks"]["checkpoints"] == "stale"
    with pytest.raises(StoreBehind, match="no checkpoint"), deployment.open():
        pass
    code, said = run("verify")
    assert (code, "a rollback to an older copy of the store cannot be excluded" in said.err) == (3, True)
    assert run("accept", "--reason", "the disk was lost")[0] == 0
    assert run("verify")[0] == 0
    with deployment.open() as service:
        assert service.ask().status_code == 200
        notes = [line.body for line in service.manager.store.lines() if "the disk was lost" in line.body]
        assert len(notes) == 1
