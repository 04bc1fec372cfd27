"""The client with a complete service: a query is answered once and charged once, despite faults between them.

F6: replies that are dropped after the commit, cut, or never come; the same request many times at once; clients that
are killed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import duckdb
import httpx
import pyarrow as pa
import pytest

import discreet
from discreet.client import BudgetShort, Busy, Client, NotFound, ServiceError, Suspended, Unauthorized
from discreet.client.retries import RetryRuntime
from discreet.errors import EngineError, EngineUnreachable, InputError, SQLError
from discreet.service.stores import utc_now
from discreet.values import Cost, float_above
from discreet.wire.document import decode, encode, question_of
from tests.service.deployment import AWAY, Deployment

from .faulty_proxy import FaultyProxy
from .running_service import running
from .scripted_server import FakeRuntime

READERS = {"bees": 900, "tides": 700, "moss": 500, "owls": 2}
TOP = "SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article LIMIT 3"
UNVERSIONED = TOP.replace("reads", "drafts")
CATALOG = """
[datasets.reads]
source = "reads.parquet"
user = "reader"
data_version = "1"
columns.article = { type = "text", group = true, filter = true }

[datasets.drafts]
engine = "there"
table = "reads"
user = "reader"
columns.article = { type = "text", group = true }

[engines.there]
url = "duckdb:///drafts.db"
connections = 8
"""


_ROWS = [(reader, article) for article, n in READERS.items() for reader in range(n)]
TABLE = pa.table({"reader": [reader for reader, _ in _ROWS], "article": [article for _, article in _ROWS]})


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    """Return a table in a database whose data version is unknown."""
    path = tmp_path_factory.mktemp("tables") / "drafts.db"
    with duckdb.connect(path) as database:
        database.register("rows", TABLE)
        database.execute("CREATE TABLE reads AS FROM rows")
    return path


@pytest.fixture
def service(tmp_path, drafts):
    """Return a service, and the keys of its accounts."""
    (tmp_path / "drafts.db").symlink_to(drafts)
    keys = Deployment(tmp_path, catalog=CATALOG + AWAY, granted=None, table=TABLE, now=utc_now()).keys
    with running(tmp_path) as started:
        yield started, keys


@pytest.fixture
def client_of(service):
    """Return a client of any URL with the key of an account; its sleeps take no time."""
    _, keys = service
    clients = []

    def client_of(url, name="ann", **settings):
        fake = FakeRuntime()
        runtime = RetryRuntime(fake.clock, fake.sleep, fake.random, RetryRuntime().ids)
        clients.append(Client(url, keys[name], runtime=runtime, **settings))
        return clients[-1]

    yield client_of
    for client in clients:
        client.close()


def test_an_answer_is_the_librarys_own_release(service, client_of):
    """It is complete; a repetition is free, by the query or by its id; other accounts pay for the same one."""
    started, _ = service
    ann = client_of(started.url)
    first = ann.answer(TOP, epsilon=4.0)
    assert isinstance(first.release, discreet.Release)
    assert first.release.labels["article"].to_pylist() == ["bees", "tides", "moss"]
    assert (first.replayed, first.mode) == (False, "enforce")
    again = ann.answer(TOP.replace("LIMIT 3", " limit  3"), epsilon=4.0)
    assert (again.id, again.replayed, again.charged) == (first.id, True, Cost())
    assert ann.release(first.id).to_csv() == first.release.to_csv() == again.release.to_csv()
    bob = client_of(started.url, "bob").answer(TOP, epsilon=4.0)
    assert (bob.id, bob.charged, bob.release.to_csv()) == (first.id, first.charged, first.release.to_csv())
    assert [entry.id for entry in ann.history()] == [first.id]


def test_a_statement_is_computed_from_answers_that_are_paid_once(service, client_of):
    """The rows, and the cost of each query of the statement; a query paid for alone is free in a statement."""
    started, _ = service
    ann = client_of(started.url)
    counts = ann.answer(TOP.replace(" LIMIT 3", ""), epsilon=4.0).release.counts
    rows = ann.sql(
        f"SELECT SUM(n) AS total FROM ({TOP.replace('reader)', 'reader) AS n').replace(' LIMIT 3', '')})", epsilon=4.0
    )
    assert rows.table.to_pylist() == [{"total": counts.sum()}]
    assert [(query.dataset, query.status) for query in rows.queries] == [("reads", "replayed")]
    assert rows.charged == Cost()
    assert ann.estimate_sql(f"SELECT article FROM ({TOP})", epsilon=1.0).worst_cost.rho > 0
    with pytest.raises(InputError, match="rows are never shown"):
        ann.sql("SELECT * FROM reads")


def test_answers_are_saved_as_tables(service, client_of):
    """Of a statement that is asked, or of answers that are paid for; read free, and dropped."""
    started, _ = service
    ann = client_of(started.url)
    counts = TOP.replace("reader)", "reader) AS n").replace(" LIMIT 3", "")
    saved = ann.save("top", counts, comment="all", epsilon=4.0)
    assert (saved.name, saved.comment, saved.kind) == ("top", "all", "table")
    assert ann.save("again", counts, releases=saved.releases).releases == saved.releases
    rows = ann.sql("SELECT SUM(n) AS n FROM saved.again")
    assert rows.charged == Cost()
    assert ann.table("TOP") == saved
    assert [table.name for table in ann.tables()] == ["again", "top"]
    with pytest.raises(InputError, match="already"):
        ann.save("top", counts, replace=False, epsilon=4.0)
    ann.drop_table("again")
    for name in ("again", "team/ann.top"):
        with pytest.raises(NotFound, match="no saved table"):
            ann.table(name)


def test_datasets_budgets_and_estimates_cost_nothing(service, client_of):
    """Reading datasets, columns, budgets and estimates charges nothing."""
    started, _ = service
    ann = client_of(started.url)
    assert {dataset.name for dataset in ann.datasets()} == {"reads", "drafts", "away"}
    assert [column.name for column in ann.dataset("reads").columns] == ["article"]
    assert ann.sample("reads", 7).column_names == ["reader", "article"]
    estimate = ann.estimate(TOP, epsilon=4.0)
    assert (estimate.fits, estimate.paid, estimate.mechanism) == (True, False, "unknown-gumbel")
    report = ann.budget()
    assert report.left == report.limit
    assert [parent.account for parent in report.parents] == ["sales"]
    assert started.events("released") == []


@pytest.mark.parametrize(
    "faults",
    [
        ["drop"],
        ["cut"],
        ["refuse"],
        ["away"],
        ["drop", "cut", "away"],
        ["away", "refuse", "drop"],
        ["cut", "cut", "cut"],
    ],
)
@pytest.mark.parametrize("statement", [TOP, UNVERSIONED])
def test_a_query_is_charged_once_whatever_happens_to_its_reply(service, client_of, faults, statement):
    """I4, F6: also for data without a declared version, where only the idempotency key identifies a retry."""
    started, _ = service
    proxy = FaultyProxy(started.url, list(faults))
    answer = client_of(proxy.url).answer(statement, epsilon=4.0)
    proxy.close()
    used, forfeited, held = started.spent("ann@sales")
    paid = [event for event in started.events("released") if event["rho"]]
    assert len(paid) == 1
    assert float(answer.release.charged.rho) == float_above(used) > 0
    assert (forfeited, held) == (0, 0)
    bodies = {reply.partition(b"\r\n\r\n")[2] for reply in proxy.forwarded}
    assert len(bodies) == 1


def test_the_same_request_fifty_times_at_once_is_one_answer(service):
    """I4: one charge, and the same bytes for all."""
    started, keys = service
    headers = {"Authorization": f"Bearer {keys['ann']}", "Idempotency-Key": "once"}
    together = threading.Barrier(50)

    def ask(_):
        with httpx.Client(timeout=60) as http:
            together.wait()
            while True:
                reply = http.post(f"{started.url}/v1/query", json={"sql": UNVERSIONED, "epsilon": 4.0}, headers=headers)
                if reply.status_code == 200:
                    return reply.content
                assert reply.status_code in (409, 429), reply.text

    with ThreadPoolExecutor(50) as pool:
        bodies = set(pool.map(ask, range(50)))
    assert len(bodies) == 1
    used, forfeited, held = started.spent("ann@sales")
    assert [event["rho"] > 0 for event in started.events("released")].count(True) == 1
    assert used > 0
    assert (forfeited, held) == (0, 0)


def test_a_retry_waits_for_a_query_that_still_runs(service):
    """The connection broke, the run goes on behind the proxy: a retry with the same key waits for its answer."""
    started, keys = service
    proxy, fake, pauses = FaultyProxy(started.url, ["leave"]), FakeRuntime(), []
    started.gate.open.clear()

    def sleep(_):
        """End the first pause when the query runs; then release it."""
        pauses.append(started.gate.arrived.acquire(timeout=60))
        started.gate.open.set()

    runtime = RetryRuntime(fake.clock, sleep, fake.random, fake.ids)
    with Client(proxy.url, keys["ann"], timeout=60, runtime=runtime) as client:
        answer = client.answer(TOP, epsilon=4.0)
    proxy.close()
    assert pauses == [True]
    # Two threads write these lines, in either order.
    assert sorted(event["source"] for event in started.events("released")) == ["engine", "store"]
    used, forfeited, held = started.spent("ann@sales")
    assert (float_above(used), forfeited, held) == (float(answer.release.charged.rho), 0, 0)


def test_a_killed_client_stops_its_query_and_pays_once(service, client_of):
    """The engine is stopped, the run is forfeited, and the forfeit pays for a retry."""
    started, keys = service
    started.gate.open.clear()
    killed = subprocess.Popen(
        [sys.executable, "-m", "discreet", "query", "--url", started.url, "--sql", TOP, "--epsilon", "4"],
        env={**os.environ, "DISCREET_KEY": keys["ann"]},
    )
    assert started.gate.arrived.acquire(timeout=60)
    assert started.spent("ann@sales")[2] > 0
    killed.kill()
    killed.wait()
    assert started.gate.left.acquire(timeout=60)  # the gate is still closed: the engine was stopped
    started.gate.open.set()
    answer = client_of(started.url).answer(TOP, epsilon=4.0)
    used, forfeited, held = started.spent("ann@sales")
    assert (float_above(used), forfeited, held) == (float(answer.release.charged.rho), 0, 0)
    assert [event["cause"] for event in started.events("forfeited")] == ["client-gone"]


def test_a_client_past_its_deadline_gets_an_error_and_stops_the_engine(service):
    """The client's deadline raises one sentence and stops the engine."""
    started, keys = service
    started.gate.open.clear()
    for seconds in (1, 8, 64):  # a slow machine needs more than one to reach the engine
        with Client(started.url, keys["ann"], timeout=seconds) as client, pytest.raises(ServiceError) as caught:
            client.query(TOP, epsilon=4.0)
        assert str(caught.value) == f"no reply came from {started.url} within {seconds} seconds"
        if started.gate.arrived.acquire(blocking=False):
            break
    assert started.gate.left.acquire(timeout=60)


def test_five_failed_runs_suspend_the_account(service, client_of):
    """T27: the client retries no failed query; the error has the end of the suspension."""
    started, _ = service
    for number in range(5):
        started.gate.failing = EngineError("the engine said something")
        with pytest.raises(EngineError):
            client_of(started.url).query(TOP, epsilon=4.0 - number / 10)
    assert len(started.events("forfeited")) == 5
    with pytest.raises(Suspended) as caught:
        client_of(started.url).query(TOP, epsilon=1.0)
    assert caught.value.until is not None


def test_an_insufficient_budget_is_refused_with_what_would_fit(service, client_of):
    """The refusal is not retried; the suggested price fits."""
    started, _ = service
    ann = client_of(started.url)
    for number in range(2):
        ann.query(TOP, epsilon=7.5 - number / 1000)
    with pytest.raises(BudgetShort) as caught:
        ann.query(TOP, epsilon=7.75)
    short = caught.value
    assert short.account == "ann@sales"
    assert not short.needed.within(short.left)
    assert short.resets_at is not None
    ann.query(TOP, epsilon=short.fits["epsilon"])


@pytest.mark.parametrize(
    ("statement", "kind", "position"),
    [
        (TOP.replace("GROUP BY article", "JOIN x"), SQLError, 57),
        (TOP.replace("reads", "nothing"), NotFound, None),
        (TOP.replace("article", "artikle"), NotFound, None),
        (TOP.replace("LIMIT 3", "LIMIT 3000000"), InputError, None),
    ],
)
def test_an_impossible_query_raises_the_error_of_the_library(service, client_of, statement, kind, position):
    """It has the position in the statement; nothing was charged."""
    started, _ = service
    with pytest.raises(kind) as caught:
        client_of(started.url).query(statement)
    assert getattr(caught.value, "position", None) == position
    assert started.spent("ann@sales") == (0, 0, 0)


def test_an_unavailable_engine_is_retried_and_costs_nothing(service, client_of):
    """No data was read, so a retry is safe and free."""
    started, _ = service
    with pytest.raises(EngineUnreachable):
        client_of(started.url, retries=2).query(TOP.replace("reads", "away"))
    assert len(started.events("requested")) == 3
    assert started.spent("ann@sales") == (0, 0, 0)


def test_an_unknown_key_is_refused(service):
    """One sentence, the same for all unknown keys."""
    started, _ = service
    with Client(started.url, "dsc_" + "0" * 16 + "_" + "0" * 64) as client, pytest.raises(Unauthorized):
        client.budget()


def test_too_many_concurrent_queries_are_retried_until_the_deadline(service, client_of):
    """429, with the seconds to wait; until the deadline."""
    started, keys = service
    started.gate.open.clear()
    busy = [threading.Thread(target=_ask_and_fail, args=(started.url, keys["ann"], n)) for n in range(8)]
    for thread in busy:
        thread.start()
    for _ in busy:
        assert started.gate.arrived.acquire(timeout=60)
    with pytest.raises(Busy) as caught:
        client_of(started.url, timeout=5).query(TOP, epsilon=0.5)
    started.gate.open.set()
    for thread in busy:
        thread.join()
    assert caught.value.retry_after >= 1


def _ask_and_fail(url, key, number):
    with Client(url, key) as client:
        client.query(UNVERSIONED, epsilon=1.0 + number / 100)


def test_a_release_is_the_same_through_the_service_and_without(service, client_of):
    """Every shown value is the same over HTTP."""
    started, _ = service
    release = client_of(started.url).query(TOP, epsilon=4.0)
    document = encode(release, id="x", dataset="reads", question=question_of(release.query, "reads"), data_version="1")
    assert decode(document).to_json() == release.timed(0.0).to_json()
    assert str(decode(document)) == str(release)


def test_the_command_line_queries_the_service(service, run, monkeypatch):
    """A release, an estimate, the budget and a refusal are printed."""
    started, keys = service
    monkeypatch.setenv("DISCREET_KEY", keys["ann"])
    monkeypatch.setenv("DISCREET_URL", started.url)
    answered = run("query", "--sql", TOP, "--epsilon", "4", "--format", "csv")
    assert answered.code == 0
    assert answered.out.startswith('"rank","article","count"')
    assert "charged rho = 0." in answered.err
    assert "charged nothing: it was paid for before" in run("query", "--sql", TOP, "--epsilon", "4").err
    assert "it was paid for before and is free" in run("query", "--sql", TOP, "--epsilon", "4", "--estimate").out
    assert re.match(r"ann@sales  \d+ % left, in any 30 days\n  rho         \[##", run("budget").out)
    refused = run("query", "--sql", TOP.replace("reads", "nothing"))
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
