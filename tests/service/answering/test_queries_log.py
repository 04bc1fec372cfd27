"""What the log says of queries: who asked, what they were charged, and why not."""

from __future__ import annotations

from dataclasses import replace

from discreet.errors import EngineError
from tests.service.deployment import ACT, TOP


def logged(service, name):
    """Return the last event of a name without what is the same in all events."""
    event = service.events(name)[-1]
    return {field: value for field, value in event.items() if field not in {"time", "event", "level"}}


def test_an_answer_and_its_charge_are_logged(service):
    """With the reservation that paid; a replay costs nothing and has none."""
    reply = service.ask()
    charged = reply.json()["charged"]
    first = logged(service, "released")
    reservation = first.pop("reservation")
    assert any(f"\tsettle\t{reservation}\t" in line.body for line in service.store.lines(0, 0))
    assert first == {
        "request_id": reply.headers["x-request-id"],
        "account": "ann@sales",
        "dataset": "reads",
        "mechanism": reply.json()["mechanism"],
        "release": reply.headers["discreet-release"],
        **charged,
        "source": "engine",
    }
    again = service.ask(TOP + " ")
    free = {"request_id": again.headers["x-request-id"], "rho": 0.0, "delta": 0.0, "source": "store"}
    assert logged(service, "released") == first | free


def test_a_query_that_cannot_be_paid_is_logged_with_its_worst_case(service):
    """And with the account that lacks it."""
    worst = service.estimate(epsilon=0.7).json()["worst_cost"]
    service.manager.store.charge("ann@sales", replace(service.balance().remaining, delta=0), ACT)
    reply = service.ask(epsilon=0.7)
    assert reply.status_code == 403
    assert logged(service, "refused") == {
        "request_id": reply.headers["x-request-id"],
        "account": "ann@sales",
        "kind": "budget-short",
        "short": "ann@sales",
        "rho": worst["rho"],
        "delta": worst["delta"],
    }


def test_a_failed_run_and_the_suspension_that_follows_are_logged(service):
    """The run with the reservation that is forfeited."""

    def fail(*_):
        raise EngineError("it failed")

    service.engines.head = fail
    for epsilon in range(1, 6):
        reply = service.ask(epsilon=epsilon / 10)
    forfeited = logged(service, "forfeited")
    reservation = forfeited.pop("reservation")
    assert any(f"\treserve\t{reservation}\t" in line.body for line in service.store.lines(0, 0))
    who = {"request_id": reply.headers["x-request-id"], "account": "ann@sales"}
    assert forfeited == who | {"dataset": "reads", "cause": "engine"}
    reply = service.ask(epsilon=0.9)
    assert logged(service, "refused") == {
        "request_id": reply.headers["x-request-id"],
        "account": "ann@sales",
        "kind": "suspended",
        "short": "ann@sales",
        "rho": 0.0,
        "delta": 0.0,
    }
