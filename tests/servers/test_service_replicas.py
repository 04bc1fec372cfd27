"""Two services on one PostgreSQL store race for the last budget, run the same first query and outlive their leases.

They are separate processes, which wait at a step of the pipeline until a test lets them continue.
"""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from urllib.parse import urlsplit

import httpx
import pytest

from discreet.values import Cost
from tests.budget.suite import set_limit
from tests.servers.budget_schemas import new_schema
from tests.servers.test_service_faults import QUICK, ask, ended
from tests.service.deployment import ACT, CATALOG, DELTA, KNOWN, TOP, Deployment, slug
from tests.service.faults.processes import Orders, serving

LAPLACE = {"mechanism": "laplace", "delta": "1e-8"}


@pytest.fixture
def deployment(server, tmp_path):
    """Return a deployment whose leases may be short and which admits many concurrent queries."""
    store = new_schema(server("postgres"))
    return Deployment(
        tmp_path / "deployment", store=store, catalog=CATALOG + QUICK, service="max_concurrent_queries = 100"
    )


def checked(deployment):
    """Check the ledger and return the balances of ann, bob and sales."""
    with deployment.manager() as manager:
        deployment.check(manager)
        return [manager.get(name).balance for name in ("ann@sales", "bob@sales", "sales")]


def test_exactly_as_many_are_admitted_as_fit(deployment):
    """I1: of sixteen clients of two services that race for a budget of three and a half queries, three are admitted."""
    with deployment.open() as service:
        worst = service.opened.warehouse.plan(KNOWN, **LAPLACE, epsilon=1.0, shared=True).worst_cost
        set_limit(service.manager.store, "sales", Cost(worst.rho * 7 / 2, DELTA / 2), DELTA, ACT)
    with serving(deployment) as one, serving(deployment) as two, ThreadPoolExecutor(16) as pool:

        def race(n):
            question = KNOWN.replace("GROUP", f"WHERE article <> 'x{n}' GROUP")
            who, url = ("ann", "bob")[n // 2 % 2], (one.url, two.url)[n % 2]
            return ask(deployment, url, f"k{n}", question, who, epsilon=1.0, **LAPLACE)

        replies = list(pool.map(race, range(16)))
    assert sorted(reply.status_code for reply in replies) == [200] * 3 + [403] * 13
    assert {reply.json()["account"] for reply in replies if reply.status_code == 403} == {"sales"}
    ann, bob, sales = checked(deployment)
    assert sales.spent == sales.used == ann.used + bob.used == Cost(worst.rho * 3, worst.delta * 3)


def test_exactly_as_many_are_admitted_as_fit_while_they_run(deployment):
    """I1: the worst-case cost of running queries is held against the queries of both services."""
    with deployment.open() as service:
        worst = service.opened.warehouse.plan(TOP, epsilon=1.0, delta="1e-8", shared=True).worst_cost
        set_limit(service.manager.store, "sales", Cost(worst.rho * 5 / 2, DELTA / 2), DELTA, ACT)
    orders = Orders(wait="before head")
    with serving(deployment, orders) as one, serving(deployment, orders) as two, ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, deployment, one.url, "first")
        one.wait_until_reached()
        second = pool.submit(ask, deployment, two.url, "second", who="bob", epsilon=0.99)
        two.wait_until_reached()
        for url in (one.url, two.url):
            refused = ask(deployment, url, "third", epsilon=0.98)
            assert (refused.status_code, slug(refused), refused.json()["account"]) == (403, "budget-short", "sales")
        one.resume()
        two.resume()
        assert first.result(60).status_code == second.result(60).status_code == 200
    checked(deployment)


def test_two_concurrent_first_queries_get_the_same_bytes_and_their_parent_pays_once(deployment):
    """I7: both services run the query; the result that is settled first is returned by both."""
    orders = Orders(wait="before settle")
    with serving(deployment, orders) as one, serving(deployment, orders) as two, ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, deployment, one.url, "a"), pool.submit(ask, deployment, two.url, "b", who="bob")]
        one.wait_until_reached()
        two.wait_until_reached()
        one.resume()
        two.resume()
        ann, bob = (each.result(60) for each in asked)
    assert (ann.status_code, ann.content) == (200, bob.content)
    assert ann.headers["discreet-charged"] == bob.headers["discreet-charged"]
    ann, bob, sales = checked(deployment)
    assert ann.used == bob.used == sales.used == sales.spent != Cost()


def test_data_without_a_version_is_answered_once_for_one_key(deployment):
    """I4: with system noise, which the services do not share, one idempotency key has one answer."""
    loose = TOP.replace("reads", "loose")
    with (
        serving(deployment, Orders(wait="before settle")) as one,
        serving(deployment) as two,
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(ask, deployment, one.url, "once", loose)
        one.wait_until_reached()
        joined = pool.submit(ask, deployment, two.url, "once", loose)
        assert slug(ask(deployment, two.url, "once", loose, epsilon=0.5)) == "key-reused"
        assert not joined.done()
        one.resume()
        for again in (joined.result(60), ask(deployment, two.url, "once", loose)):
            assert (again.content, again.headers["discreet-replayed"]) == (first.result(60).content, "?1")
    ann, _, sales = checked(deployment)
    assert ann.used == ann.spent == sales.spent != Cost()


def test_a_service_suspended_past_its_lease_releases_nothing(deployment):
    """F7: a service suspended past its lease releases nothing when resumed; the retry was answered by another one."""
    sleepy = Orders(wait="before settle", lease_spare_ms=200)
    with serving(deployment, sleepy) as one, ThreadPoolExecutor(1) as pool:
        late = pool.submit(ask, deployment, one.url, "once")
        one.wait_until_reached()
        os.kill(one.pid, signal.SIGSTOP)
        try:
            with deployment.manager() as manager:
                ended(manager)
                balance = manager.get("ann@sales").balance
                assert balance.forfeited == balance.spent != Cost()
            with serving(deployment, Orders(lease_spare_ms=200)) as two:
                retried = ask(deployment, two.url, "another")
                assert retried.status_code == 200
            one.resume()
        finally:
            os.kill(one.pid, signal.SIGCONT)
        zombie = late.result(60)
        assert (zombie.status_code, slug(zombie)) == (503, "engine-failed")
        assert "article" not in zombie.text
        again = httpx.post(
            f"{one.url}/v1/query", json={"sql": TOP}, headers=deployment.headers("ann", "once"), timeout=60
        )
        assert again.content == retried.content
    ann, _, sales = checked(deployment)
    assert ann.spent == ann.used == sales.spent


def test_concurrent_changes_at_two_services_are_both_kept(deployment):
    """A limit lowered at one service stays lowered when another changes the mode concurrently."""
    with deployment.open() as one, deployment.open() as two:
        together, read, go_on = one.manager.store.together, threading.Event(), threading.Event()

        def late(work, **options):
            def after_a_wait(store):
                alter = store.alter

                def altered(*arguments):
                    read.set()
                    assert go_on.wait(60)
                    alter(*arguments)

                store.alter = altered
                return work(store)

            return together(after_a_wait, **options)

        one.manager.store.together = late
        path = "/v1/admin/accounts/ann@sales"
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(one.act, "PATCH", path, mode="observe")
            assert read.wait(60)
            limit = {"rho": "0.001", "lost": "1e-9", "delta": "1e-8"}
            lowered = two.act("PATCH", path, limit=limit)
            go_on.set()
            assert slow.result(60).status_code == lowered.status_code == 200
        account = two.manager.store.account("ann@sales")
        assert (account.mode, account.limit.rho) == ("observe", Fraction(1, 1000))


LOOSE = "SELECT article, COUNT(DISTINCT reader) AS readers FROM loose GROUP BY article ORDER BY readers DESC LIMIT 3"


def posted(deployment, url):
    """Send a statement of data without a version over Trino's protocol, and return the path of its page."""
    reply = httpx.post(f"{url}/v1/statement", content=LOOSE, headers=deployment.headers("ann"), timeout=60)
    return urlsplit(reply.json()["nextUri"]).path


def page(deployment, url, path):
    """Request a page once and return its JSON."""
    return httpx.get(f"{url}{path}", headers=deployment.headers("ann"), timeout=60).json()


def followed(deployment, url, path):
    """Request a page until it is answered, and return its rows."""
    while "nextUri" in (found := page(deployment, url, path)):
        continue
    return found["data"]


def test_every_replica_answers_the_page_of_a_statement_and_one_pays(deployment):
    """I4: while one runs the query the other holds the client, and then sends the same rows."""
    with serving(deployment, Orders(wait="before settle")) as one, serving(deployment) as two:
        path = posted(deployment, one.url)
        assert page(deployment, one.url, path)["stats"]["state"] == "RUNNING"
        one.wait_until_reached()
        held = page(deployment, two.url, path)
        assert "nextUri" in held
        assert not {"error", "data"} & held.keys()
        one.resume()
        assert followed(deployment, two.url, path) == followed(deployment, one.url, path) != []
    ann, _, sales = checked(deployment)
    assert ann.used == ann.spent == sales.spent != Cost()


def test_a_page_outlives_the_replica_that_was_killed(deployment):
    """I3: the other replica runs the query after the lease ended, and what was forfeited pays for it."""
    with serving(deployment, Orders(wait="before settle", lease_spare_ms=200)) as one:
        path = posted(deployment, one.url)
        assert page(deployment, one.url, path)["stats"]["state"] == "RUNNING"
        one.wait_until_reached()
        one.kill()
    with deployment.manager() as manager:
        ended(manager)
        worst = manager.get("ann@sales").balance.forfeited
    with serving(deployment, Orders(lease_spare_ms=200)) as two:
        assert followed(deployment, two.url, path)
    ann, _, _ = checked(deployment)
    assert ann.spent == ann.used
    assert ann.spent.within(worst)
