"""F8: clocks that are set back, run ahead, pass midnight under load or keep summer time create no budget."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from discreet.budget.model import Calendar, Sliding
from discreet.values import Cost
from tests.service.deployment import ACT, CATALOG, DELTA, KNOWN, TOP, Deployment, slug

PRICE = {"epsilon": 1.0, "delta": "1e-8", "mechanism": "laplace"}


def counted(number):
    """Return a new query that costs its worst case, for any data."""
    return KNOWN.replace("GROUP", f"WHERE article <> 'x{number}' GROUP")


def ask(service, number, who="ann"):
    """Return the response to it."""
    return service.ask(counted(number), who, key=f"{who}-{number}", **PRICE)


def with_limit(deployment, times, period):
    """Give ann a limit of so many queries in a period; the limits of sales and bob are higher."""
    with deployment.open() as service:
        price = service.opened.warehouse.plan(counted(0), shared=True, **PRICE).worst_cost
        account = dataclasses.replace(service.manager.store.account("ann@sales"), period=period)
        service.manager.store.alter(account.with_limit(Cost(price.rho * times, price.delta * times), DELTA), ACT)
    return price


def test_a_clock_set_back_frees_no_budget(deployment):
    """Neither an hour nor forty days, neither while the service runs nor before it starts."""
    price = with_limit(deployment, 1, Sliding(30))
    with deployment.open() as service:
        assert ask(service, 1).status_code == 200
        for back in ({"hours": -1}, {"days": -40}):
            service.clock.pass_(**back)
            service.manager.maintain()
            assert slug(ask(service, 2)) == "budget-short"
            assert service.balance().used == price
            assert ask(service, 1).headers["discreet-replayed"] == "?1"
    with deployment.open() as service:
        assert slug(ask(service, 2)) == "budget-short"


def test_an_hour_ahead_begins_no_new_period(deployment):
    """The clock runs an hour ahead and is corrected: every charge still counts, and the service goes on."""
    with_limit(deployment, 2, Sliding(30))
    with deployment.open() as service:
        assert ask(service, 1).status_code == 200
        service.clock.pass_(hours=1)
        service.manager.maintain()
        assert ask(service, 2).status_code == 200
        service.clock.pass_(hours=-1)
        assert slug(ask(service, 3)) == "budget-short"
        service.clock.pass_(days=1)
        service.manager.maintain()
        assert slug(ask(service, 3)) == "budget-short"


@pytest.mark.parametrize("period", [Sliding(30), Calendar("month")], ids=str)
def test_a_clock_that_runs_ahead_begins_no_period_until_an_officer_confirms_it(deployment, period):
    """Forty days at once: 503, nothing held, no data read; paid answers are still replayed."""
    with_limit(deployment, 1, period)
    with deployment.open() as service:
        first = ask(service, 1)
        spent = service.balance().spent
        service.clock.pass_(days=40)
        service.opened.maintenance.once()
        lines = service.manager.verify().lines
        refused = [ask(service, 2), ask(service, 2, "bob")]
        assert [(reply.status_code, slug(reply)) for reply in refused] == [(503, "clock")] * 2
        assert ask(service, 1).content == first.content
        assert (service.balance().spent, service.engines.queried) == (spent, 1)
        assert service.manager.verify().lines == lines
        ready = service.send("GET", "/readyz", None)
        assert (ready.status_code, ready.json()["checks"]["clock"]) == (503, "apart")
        assert service.act("POST", "/v1/admin/clock").status_code in {200, 204}
        service.opened.maintenance.once()
        assert service.send("GET", "/readyz", None).status_code == 200
        assert ask(service, 2).status_code == 200
        assert slug(ask(service, 3)) == "budget-short"
        confirmed = [line for line in service.manager.store.lines() if "\tclock\t" in line.body]
        assert len(confirmed) == 1


def test_charges_expire_with_the_regular_passage_of_time(deployment):
    """With daily maintenance, a charge stops counting after 31 days, and not a day before."""
    with_limit(deployment, 1, Sliding(30))
    with deployment.open() as service:
        assert ask(service, 1).status_code == 200
        for _ in range(30):
            service.clock.pass_(days=1)
            service.manager.maintain()
            assert slug(ask(service, 2)) == "budget-short"
        service.clock.pass_(days=1)
        service.manager.maintain()
        assert ask(service, 2).status_code == 200


@pytest.mark.parametrize("period", [Sliding(1), Calendar("day")], ids=str)
def test_a_charge_belongs_to_the_period_of_its_reservation(deployment, period):
    """I6: reserved before midnight and settled after it, during another query that is reserved after midnight."""
    deployment.clock.now = datetime(2026, 11, 20, 23, 59, 59, tzinfo=UTC)
    price = with_limit(deployment, 1, period)
    begun, go_on = threading.Event(), threading.Event()

    def wait(count, _):
        begun.set()
        assert go_on.wait(60)
        return count()

    with deployment.open() as service, ThreadPoolExecutor(1) as pool:
        service.engines.head = wait
        before = pool.submit(ask, service, 1)
        assert begun.wait(60)
        service.engines.head = None
        service.clock.pass_(seconds=1)
        service.manager.maintain()
        after = ask(service, 2)
        go_on.set()
        assert before.result(60).status_code == 200
        if period == Sliding(1):
            assert slug(after) == "budget-short", "what was held before midnight counts in the window after it"
            assert service.balance().used == price
        else:
            assert after.status_code == 200, "a calendar day begins anew, which its guarantee says"
            assert service.balance().used == price, "what was reserved the day before is charged to that day"
        assert slug(ask(service, 3)) == "budget-short"


def test_midnight_under_load_opens_each_bucket_once(deployment):
    """I1: of twelve queries at the change of day two fit into each day, and each account's bucket opens in one line."""
    deployment.clock.now = datetime(2026, 11, 20, 23, 59, 59, tzinfo=UTC)
    price = with_limit(deployment, 2, Calendar("day"))
    with deployment.open() as service, ThreadPoolExecutor(12) as pool:
        assert [ask(service, n).status_code for n in range(3)] == [200, 200, 403]
        start = threading.Barrier(13)

        def race(number):
            start.wait(60)
            reply = ask(service, number)
            while reply.status_code == 429:
                reply = ask(service, number)
            return reply.status_code

        racing = [pool.submit(race, 10 + n) for n in range(12)]
        start.wait(60)
        service.clock.pass_(seconds=1)
        codes = [each.result(60) for each in racing]
        assert set(codes) <= {200, 403}
        assert codes.count(200) <= 2
        while codes.count(200) < 2:  # they may have been refused before midnight
            codes.append(ask(service, 30 + len(codes)).status_code)
        assert slug(ask(service, 99)) == "budget-short"
        assert service.balance().used == Cost(price.rho * 2, price.delta * 2)
        opened = [line.body for line in service.manager.store.lines() if "\trefresh\t" in line.body]
        assert sum('"ann@sales"' in body for body in opened) == 1


@pytest.mark.parametrize(
    ("midnight", "hours"),
    [(datetime(2026, 10, 24, 22, tzinfo=UTC), 25), (datetime(2027, 3, 27, 23, tzinfo=UTC), 23)],
    ids=["clocks go back", "clocks go forward"],
)
def test_days_of_23_and_25_hours_have_one_limit(tmp_path, midnight, hours):
    """F8: one limit from midnight to midnight in Berlin, for days of 25 hours or 23."""
    deployment = Deployment(tmp_path / "deployment", now=midnight)
    with_limit(deployment, 1, Calendar("day", "Europe/Berlin"))
    with deployment.open() as service:
        assert ask(service, 1).status_code == 200
        end = midnight + timedelta(hours=hours)
        for moment in (midnight + timedelta(hours=2), end - timedelta(hours=1), end - timedelta(microseconds=1)):
            service.clock.now = moment
            refused = ask(service, 2)
            assert slug(refused) == "budget-short"
            assert datetime.fromisoformat(refused.json()["resets_at"]) == end
        service.clock.now = end
        assert ask(service, 2).status_code == 200
        assert slug(ask(service, 3)) == "budget-short"


DAILY = CATALOG.replace(
    'data_version = "2026-11"', 'data_version = { schedule = "daily", at = "04:00", zone = "UTC" }', 1
)
LAST_SECOND = datetime(2026, 11, 21, 3, 59, 59, tzinfo=UTC)


def test_answers_of_two_scheduled_data_versions_are_separate(tmp_path):
    """I7: the same query is free until the next data version, and is then a new query."""
    deployment = Deployment(tmp_path / "deployment", catalog=DAILY)
    with deployment.open() as service:
        first = service.ask(TOP)
        service.clock.now = LAST_SECOND
        assert service.ask(TOP).content == first.content
        service.clock.pass_(seconds=1)
        second = service.ask(TOP)
        assert second.headers["discreet-release"] != first.headers["discreet-release"]
        assert second.headers["discreet-replayed"] == "?0"
        service.clock.now = LAST_SECOND
        assert service.ask(TOP).content == first.content, "a clock that is put back is asked about the version before"
        assert service.engines.queried == 2


def test_a_retry_after_the_next_data_version_is_the_same_request(tmp_path):
    """I4: one idempotency key, one charge, one answer; the first reply was lost a second before four o'clock."""
    deployment = Deployment(tmp_path / "deployment", catalog=DAILY)
    with deployment.open() as service:
        service.clock.now = LAST_SECOND
        lost = service.ask(TOP, key="once")
        used = service.balance().used
        service.clock.pass_(seconds=1)
        again = service.ask(TOP, key="once")
        assert (again.status_code, again.content) == (200, lost.content)
        assert service.balance().used == used
        anew = service.ask(TOP, key="another")
        assert anew.headers["discreet-release"] != lost.headers["discreet-release"], "with another key it is asked anew"
        assert service.ask(TOP).content == anew.content, "what was given again is not taken for what is new"
        assert service.ask(TOP, key="once").content == lost.content, "nor what is new for what was given"
