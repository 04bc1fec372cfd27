"""F7: runs whose lease ended while they were suspended: their answers are dropped, and charged.

With processes that are stopped, on PostgreSQL: tests/servers/test_service_replicas.py. Clients that disconnect:
tests/service/test_middleware_gate.py.
"""

from __future__ import annotations

from discreet.budget.model import State
from discreet.values import Cost
from tests.service.deployment import TOP, slug


def test_a_run_that_lost_its_lease_releases_nothing(deployment):
    """F7, I3: a run that resumes after its reservation was ended settles nothing, and no byte of its answer is sent."""
    with deployment.open() as service:

        def sleep_long(count, _):
            head = count()
            service.clock.pass_(minutes=10)
            assert service.manager.maintain() == 1
            return head

        service.engines.head = sleep_long
        reply = service.ask(key="once")
        assert (reply.status_code, slug(reply)) == (503, "engine-failed")
        assert "article" not in reply.text
        assert service.events("forfeited")[0]["cause"] == "lease-lost"
        forfeited = service.events("forfeited")[0]["reservation"]
        assert service.manager.store.reservation(forfeited).state is State.FORFEIT
        assert service.balance().forfeited == service.balance().spent != Cost()
        assert service.manager.store.history("ann@sales") == []
        service.engines.head = None
        assert service.ask(key="once").status_code == 200
        assert service.balance().forfeited == Cost()


def test_a_run_that_lost_its_lease_to_its_retry_is_dropped(deployment):
    """F7: the run resumes after its retry was answered: the settled answer stays the only one."""
    with deployment.open() as service:

        def superseded(count, _):
            head = count()
            service.engines.head = None
            service.clock.pass_(minutes=10)
            service.manager.maintain()
            answers.append(service.ask(f"{TOP} ", key="another"))  # spelled differently, so that it does not wait
            return head

        answers = []
        service.engines.head = superseded
        zombie = service.ask(key="once")
        assert answers[0].status_code == 200
        assert slug(zombie) == "engine-failed"
        assert service.ask(key="once").content == answers[0].content
        assert service.balance().spent == service.balance().used
