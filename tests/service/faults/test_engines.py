"""Engines that time out, are unavailable, disconnect, or answer wrongly: charges and problems."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from discreet.errors import EngineTimeout, EngineUnreachable, InexactHead
from discreet.values import Cost, ExactHead
from tests.service.deployment import AWAY, CATALOG, GRANTED, TOP, Deployment, slug

MORE = """
[engines.slow]
url = "duckdb:///loose.db"
timeout_seconds = 1

[datasets.slow]
engine = "slow"
view = "SELECT t.reader, t.article FROM t, range(100000000) AS many(number) WHERE hash(number) <> 1"
user = "reader"
data_version = "1"
columns.article = { type = "text", group = true }
"""


@pytest.fixture
def deployment(tmp_path):
    """Return a deployment with a slow engine and an unavailable one."""
    granted = {**GRANTED, "slow": None, "away": None}
    return Deployment(tmp_path / "deployment", catalog=CATALOG + AWAY + MORE, granted=granted)


def late(_, __):
    """Raise the error of an engine that times out."""
    raise EngineTimeout("the engine did not answer within 1 seconds")


def test_an_engine_that_times_out_is_stopped_and_charged(deployment):
    """I3: 504; its worst case stays charged, and pays for a retry; nothing is refunded."""
    with deployment.open() as service:
        question = TOP.replace("reads", "slow")
        worst = service.opened.warehouse.plan(question, epsilon=1.0, delta="1e-8", shared=True).worst_cost
        for key in ("once", "twice"):
            reply = service.ask(question, key=key)
            assert (reply.status_code, slug(reply)) == (504, "engine-timeout")
            assert "retry-after" not in reply.headers, "each attempt may count towards a suspension"
            assert service.balance().spent == service.balance().forfeited == worst
        assert [event["cause"] for event in service.events("forfeited")] == ["timeout"] * 2


def test_a_forfeit_pays_for_the_same_query_again_and_for_nothing_else(deployment):
    """I3: the retry is charged the actual cost; another query is charged separately."""
    with deployment.open() as service:
        service.engines.head = late
        assert service.ask(key="once").status_code == 504
        forfeited = service.balance().forfeited
        service.engines.head = None
        other = service.ask(epsilon=0.5)
        assert service.balance().forfeited == forfeited
        other_cost = service.balance().used
        assert service.ask(key="once").status_code == other.status_code == 200
        assert service.balance().forfeited == Cost()
        assert (service.balance().used - other_cost).within(forfeited)
        assert service.balance("sales").spent == service.balance().spent


def test_five_failed_runs_in_a_day_suspend_until_a_day_passed_or_an_officer_lifts_it(deployment):
    """T27: an analyst who can make runs fail learns from at most five; paid answers are still replayed."""
    with deployment.open() as service:
        paid = service.ask()
        service.engines.head = late
        for number in range(5):
            assert service.ask(epsilon=0.5 + number / 100).status_code == 504
        service.engines.head = None
        asked, spent = service.engines.queried, service.balance().spent
        refused = service.ask(epsilon=2.0)
        assert (refused.status_code, slug(refused), refused.json()["account"]) == (403, "suspended", "ann@sales")
        assert service.ask(epsilon=0.5).json()["until"] == refused.json()["until"], "not even what was forfeited for"
        assert service.ask().content == paid.content
        assert service.ask(who="bob", epsilon=2.0).status_code == 200
        assert (service.engines.queried, service.balance().spent) == (asked + 1, spent)
        assert service.act("POST", "/v1/admin/accounts/ann@sales/lift").status_code in {200, 204}
        assert service.ask(epsilon=0.5).status_code == 200
        service.engines.head = late
        for number in range(5):
            assert service.ask(epsilon=0.4 + number / 100).status_code == 504
        assert slug(service.ask(epsilon=2.1)) == "suspended"
        service.clock.pass_(days=1)
        service.engines.head = None
        assert service.ask(epsilon=2.1).status_code == 200


def test_an_unreachable_engine_holds_nothing_and_leaves_no_line(deployment):
    """503, before anything is reserved: retries cost nothing."""
    with deployment.open() as service:
        heads = service.manager.store.heads()
        for _ in range(6):
            reply = service.ask(TOP.replace("reads", "away"), key="once")
            assert (reply.status_code, slug(reply), reply.headers["retry-after"]) == (503, "engine-unavailable", "5")
        assert service.manager.store.heads() == heads
        assert service.balance().spent == Cost()


@pytest.mark.parametrize("where", ["check", "head"])
def test_an_engine_lost_during_a_query_is_charged(deployment, where):
    """Before that no data was read, and the hold is voided."""

    def gone(*_):
        raise EngineUnreachable("there is no connection")

    with deployment.open() as service:
        setattr(service.engines, where, gone)
        reply = service.ask(key="once")
        assert reply.status_code == 503
        assert slug(reply) == ("engine-unavailable" if where == "check" else "engine-failed")
        assert (service.balance().forfeited == Cost()) is (where == "check")
        assert service.balance().held == Cost()
        service.engines.check = service.engines.head = None
        assert service.ask(key="once").status_code == 200
        assert service.balance().spent == service.balance().used


def unproven(_, __):
    """Return a head that is not marked as exact."""
    raise InexactHead("the engine dropped 17 groups")


def unsorted(count, _):
    """Return a head in the wrong order."""
    head = count()
    return dataclasses.replace(head, counts=head.counts[::-1].copy())


def negative(count, _):
    """Return a negative count."""
    head = count()
    return dataclasses.replace(head, counts=head.counts - 10_000)


def too_many(count, _):
    """Return more items than requested."""
    head = count()
    return ExactHead(np.arange(head.limit + 2, 0, -1), head.limit, head.labels)


def inexact_numbers(count, _):
    """Return counts that are no whole numbers."""
    head = count()
    return dataclasses.replace(head, counts=head.counts.astype(float))


@pytest.mark.parametrize("wrong", [unproven, unsorted, negative, too_many, inexact_numbers], ids=lambda f: f.__name__)
def test_a_wrong_head_is_dropped_and_charged(deployment, wrong):
    """Only a head that is proven exact is protected by its noise; any other is dropped, and charged."""
    with deployment.open() as service:
        service.engines.head = wrong
        reply = service.ask(key="once")
        assert reply.status_code == (503 if wrong is unproven else 500)
        assert slug(reply) == ("engine-failed" if wrong is unproven else "internal")
        assert not any(character.isdigit() for character in reply.json()["detail"])
        assert "groups" not in service.log.getvalue(), "the engine's words are not ours to tell"
        assert service.balance().used == Cost()
        assert service.balance().forfeited == service.balance().spent != Cost()
        service.engines.head = None
        assert service.ask(key="once").status_code == 200
        assert service.balance().forfeited == Cost()
