"""Maintenance, its events and the health checks."""

from __future__ import annotations

import threading

import pytest

from discreet.budget.errors import StoreUnavailable
from discreet.service import maintenance as module

CHECKPOINTS = '[checkpoints]\nfile = "checkpoints.log"\nsigning_key_file = "checkpoints.key"'


@pytest.fixture
def tended(services):
    """A service with checkpoints whose maintenance runs only when a test calls it."""
    return services(rest=CHECKPOINTS)


def checks(service) -> tuple[int, str, dict[str, str]]:
    """Return the checks of /readyz."""
    response = service.get("/readyz", None)
    body = response.json()
    return response.status_code, body["status"], body["checks"]


GOOD = {"catalog": "ok", "store": "ok", "maintenance": "ok", "checkpoints": "ok", "clock": "ok", "shares": "none"}


def test_the_process_lives_whatever_is_wrong(tended):
    """An unavailable store is no reason to restart the process."""
    tended.store.close()
    response = tended.get("/healthz", None)
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_it_is_not_ready_before_the_first_upkeep(tended):
    """There is no checkpoint yet."""
    assert checks(tended) == (503, "unready", GOOD | {"maintenance": "stale", "checkpoints": "stale"})
    tended.maintenance.once()
    assert checks(tended) == (200, "ready", GOOD)


def test_it_is_not_ready_when_the_upkeep_did_not_succeed_for_long(tended):
    """Three rounds may fail."""
    tended.maintenance.once()
    tended.monotonic.now += 35
    assert checks(tended)[0] == 200
    tended.monotonic.now += 0.1
    assert checks(tended) == (503, "unready", GOOD | {"maintenance": "stale", "checkpoints": "stale"})
    tended.maintenance.once()
    assert checks(tended)[0] == 200


def test_checkpoints_that_cannot_be_written_are_reported(tended):
    """I12: the store goes on, but its end has no new checkpoint."""
    tended.maintenance.once()
    (tended.folder / "checkpoints.log").unlink()
    (tended.folder / "checkpoints.log").mkdir()
    tended.monotonic.now += 36
    tended.maintenance.once()
    assert checks(tended) == (503, "unready", GOOD | {"maintenance": "stale", "checkpoints": "stale"})
    (event,) = tended.events("failed")
    assert event["where"] == "maintenance"
    assert event["error"].startswith("StoreUnavailable")


def test_an_unavailable_store_is_reported(tended):
    """503, without the message of the database."""
    tended.maintenance.once()
    tended.store.close()
    status, _, body = checks(tended)
    assert (status, body["store"]) == (503, "unavailable")


def test_without_checkpoints_there_is_nothing_to_be_fresh(tended):
    """It is ready nevertheless: checkpoints are optional."""
    tended.maintenance.once()
    tended.maintenance.has_checkpoints = False
    assert checks(tended) == (200, "ready", GOOD | {"checkpoints": "none"})


def test_a_clock_that_ran_ahead_is_reported_until_an_officer_confirms_it(tended):
    """I6: time stands still in the store, so that no period begins."""
    tended.maintenance.once()
    tended.clock.pass_(days=3)
    tended.maintenance.once()
    assert checks(tended) == (503, "unready", GOOD | {"clock": "apart"})
    tended.keys["officer"] = tended.make_key(None, ("officer",))
    confirmed = tended.send("POST", "/v1/admin/clock", "officer", json={"reason": "the machine was off"})
    assert confirmed.status_code == 204
    tended.maintenance.once()
    assert checks(tended) == (200, "ready", GOOD)


def test_health_needs_no_key_and_reveals_nothing(tended):
    """Responses contain names of checks and fixed texts only."""
    tended.maintenance.once()
    text = tended.get("/readyz", None).text + tended.get("/healthz", None).text
    assert not any(word in text for word in ("sales", "reads", str(tended.folder), "sqlite", "key:"))


def test_dead_reservations_are_ended_and_logged(tended):
    """They belong to processes that died; the event has their number."""
    worst = tended.manager.store.account("ann@sales").limit
    tended.manager.reserve("ann@sales", b"r" * 32, worst)
    tended.clock.pass_(minutes=2)
    tended.maintenance.once()
    tended.maintenance.once()
    assert [event["ended"] for event in tended.events("leases_expired")] == [1]


def test_the_metrics_know_how_long_the_ledger_is(tended):
    """They also have the time of the last successful maintenance."""
    tended.maintenance.once()
    lines = tended.store.heads()[0].seq
    assert f"discreet_ledger_lines {lines}.0" in tended.metrics.text().decode()


def test_what_fails_is_tried_again(tended, monkeypatch):
    """No exception ends the maintenance thread."""
    failing = [StoreUnavailable("the disk is full"), ValueError("a bug"), None]

    def tend():
        error = failing.pop(0)
        if error is not None:
            raise error
        return 0

    monkeypatch.setattr(tended.manager, "maintain", tend)
    for _ in range(3):
        tended.maintenance.once()
    assert [event["error"] for event in tended.events("failed")] == ["StoreUnavailable", "ValueError"]
    assert "disk" not in tended.log.getvalue()
    assert tended.maintenance.age_seconds == 0


def test_the_maintenance_thread_repeats_until_it_is_closed(tended, monkeypatch):
    """It ends with the context."""
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.001)
    enough, rounds = threading.Event(), []

    def once():
        rounds.append(threading.current_thread().name)
        if len(rounds) >= 3:
            enough.set()

    monkeypatch.setattr(tended.maintenance, "once", once)
    with tended.maintenance.running():
        assert enough.wait(30)
    done = len(rounds)
    assert set(rounds) == {"maintenance"}
    assert "maintenance" not in {thread.name for thread in threading.enumerate()}
    assert len(rounds) == done


def test_the_last_use_of_keys_is_kept_when_the_service_stops(tended):
    """It is written at shutdown, however recent it is."""
    tended.get("/v1/budget")
    tended.maintenance.finish()
    ann = tended.keys["ann"].split("_")[1]
    assert ann in tended.manager.store.record("used", "keys")
