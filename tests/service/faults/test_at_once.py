"""I1, I4, I7: concurrent requests to one service: repeated ones, more than fit, and simultaneous first queries.

The same with two services on one PostgreSQL store is in tests/servers/test_service_replicas.py.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from discreet.values import Cost
from tests.budget.suite import set_limit
from tests.service.deployment import ACT, DELTA, TOP, Deployment, slug

LOOSE = TOP.replace("reads", "loose")
ROOM = "max_concurrent_queries = 200"


def rewritten(number):
    """Return a new query at the same price."""
    return TOP.replace("GROUP", f"WHERE article <> 'x{number}' GROUP")


@pytest.fixture
def deployment(tmp_path):
    """Return a deployment with budget for many concurrent queries."""
    return Deployment(tmp_path / "deployment", service=ROOM)


@pytest.mark.parametrize("question", [TOP, LOOSE], ids=["versioned", "without a version"])
def test_the_same_request_fifty_times_at_once_is_run_once(deployment, question):
    """I4, F6: while it runs the others are refused; then all get the same bytes, for one charge."""
    with deployment.open() as service:
        request = ("ann", question, "once", {})
        replies = service.together([request] * 50)
        assert {reply.status_code for reply in replies} <= {200, 409}
        assert {slug(reply) for reply in replies if reply.status_code == 409} <= {"in-flight"}
        replies += service.together([request] * 50)
        answered = [reply for reply in replies if reply.status_code == 200]
        assert len(answered) > 50
        assert len({reply.content for reply in answered}) == 1
        assert service.engines.queried == 1
        charged = [
            reply.headers["discreet-charged"] for reply in answered if reply.headers["discreet-replayed"] == "?0"
        ]
        assert len(charged) == 1
        assert service.balance().used == service.balance("sales").used == service.balance().spent != Cost()
        assert len(service.manager.store.history("ann@sales")) == 1


def test_a_key_with_another_body_is_refused_and_costs_nothing(deployment):
    """I4: also if the other body is the same query, and while the first request runs."""
    begun, go_on = threading.Event(), threading.Event()

    def wait(count, _):
        begun.set()
        assert go_on.wait(60)
        return count()

    with deployment.open() as service, ThreadPoolExecutor(1) as pool:
        service.engines.head = wait
        first = pool.submit(service.ask, key="once")
        assert begun.wait(60)
        held = service.balance().spent
        early = service.ask(key="once", epsilon=0.5)
        assert (early.status_code, slug(early)) == (409, "key-reused")
        assert service.balance().spent == held
        go_on.set()
        assert first.result(60).status_code == 200
        used = service.balance().spent
        late = [service.ask(question, key="once") for question in (TOP + " ", rewritten(1), "SELECT nothing")]
        assert [(reply.status_code, slug(reply)) for reply in late[:2]] == [(409, "key-reused")] * 2
        assert (late[2].status_code, slug(late[2])) == (400, "malformed")
        assert service.balance().spent == used
        assert service.ask(key="once").content == first.result().content


def test_an_idempotency_key_belongs_to_one_account(deployment):
    """I4: bob's request with ann's idempotency key is a separate request."""
    with deployment.open() as service:
        ann, bob = service.ask(LOOSE, key="once"), service.ask(LOOSE, "bob", key="once")
        other = service.ask(rewritten(1), "bob", key="another")
        assert {ann.status_code, bob.status_code, other.status_code} == {200}
        assert ann.headers["discreet-release"] != bob.headers["discreet-release"]
        assert service.engines.queried == 3


@pytest.mark.parametrize("question", [TOP, LOOSE], ids=["versioned", "without a version"])
def test_answers_are_replayed_after_a_restart(deployment, question):
    """I4, I7: after a restart the replay has the same bytes and is free; another body is still refused."""
    with deployment.open() as service:
        first = service.ask(question, key="once")
        used = service.balance().used
    with deployment.open() as service:
        again = service.ask(question, key="once")
        assert (again.status_code, again.content) == (200, first.content)
        assert (again.headers["discreet-charged"], again.headers["discreet-replayed"]) == ("rho=0.0, delta=0.0", "?1")
        assert slug(service.ask(question, key="once", epsilon=0.5)) == "key-reused"
        as_csv = service.ask(question, key="once", headers={"Accept": "text/csv"})
        assert (as_csv.status_code, as_csv.headers["discreet-release"]) == (200, first.headers["discreet-release"])
        assert service.engines.queried == 0
        assert service.balance().used == service.balance().spent == used


def test_a_refused_request_can_be_sent_again_with_its_key(deployment):
    """I4: a refusal does not use the idempotency key."""
    with deployment.open() as service:
        limit = service.manager.store.account("ann@sales").limit
        set_limit(service.manager.store, "ann@sales", Cost(), DELTA, ACT)
        assert slug(service.ask(key="once")) == "budget-short"
        set_limit(service.manager.store, "ann@sales", limit, DELTA, ACT)
        assert service.ask(key="once").status_code == 200


def test_exactly_as_many_are_admitted_as_fit(deployment):
    """I1: of sixteen concurrent queries on a shared budget of three and a half, exactly three are admitted."""
    with deployment.open() as service, ThreadPoolExecutor(16) as pool:
        worst = service.opened.warehouse.plan(TOP, epsilon=1.0, delta="1e-8", shared=True).worst_cost
        set_limit(service.manager.store, "sales", Cost(worst.rho * 7 / 2, DELTA / 2), DELTA, ACT)
        refused, all_refused = [], threading.Event()

        def wait(count, _):
            assert all_refused.wait(60)  # so that nothing is freed before the last request
            return count()

        def ask(number):
            reply = service.ask(rewritten(number), "ann" if number % 2 else "bob", key=f"k{number}")
            if reply.status_code == 403:
                refused.append(reply)
                if len(refused) == 13:
                    all_refused.set()
            return reply

        service.engines.head = wait
        replies = list(pool.map(ask, range(16)))
        assert sorted(reply.status_code for reply in replies) == [200] * 3 + [403] * 13
        assert {reply.json()["account"] for reply in refused} == {"sales"}
        assert service.engines.queried == 3
        left = service.balance("sales").remaining
        assert worst.within(left), "they paid what they got, and what was freed can be asked for"
        assert service.ask(rewritten(99)).status_code == 200


def test_two_concurrent_first_queries_get_the_same_bytes_and_their_parent_pays_once(deployment):
    """I7: both run; both get the answer that is settled first."""
    together = threading.Barrier(2)

    def meet(count, _):
        head = count()
        together.wait(60)
        return head

    with deployment.open() as service, ThreadPoolExecutor(2) as pool:
        service.engines.head = meet
        ann, bob = pool.map(lambda who: service.ask(who=who, key="first"), ("ann", "bob"))
        assert ann.content == bob.content
        assert service.engines.queried == 2
        assert service.balance("ann@sales").used == service.balance("bob@sales").used != Cost()
        assert service.balance("sales").used == service.balance("ann@sales").used


def test_a_release_that_a_shared_account_has_paid_for_costs_it_nothing_more(deployment):
    """I7: bob pays for ann's answer himself, though their shared budget is spent; another query is refused."""
    with deployment.open() as service:
        first = service.ask()
        paid = service.balance("sales").used
        set_limit(service.manager.store, "sales", paid, DELTA, ACT)
        second = service.ask(who="bob")
        assert second.content == first.content
        assert service.balance("bob@sales").used == service.balance("sales").spent == paid
        assert slug(service.ask(rewritten(1), "bob")) == "budget-short"
