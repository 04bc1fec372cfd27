"""Maintenance, its events and the health checks."""

from __future__ import annotations

import threading

import pytest

from discreet.budget.errors import StoreUnavailable
from discreet.service import maintenance as module

CHECKPOINTS = '[checkpoints]\nfile = "checkpoints.log"\nsigning_key_file = "checkpoints.key"'


@pytest.fixture
def service_with_checkpoints(services):
    """Return a service with checkpoints whose maintenance runs only when a test calls it."""
    return services(rest=CHECKPOINTS)


def checks(service) -> tuple[int, str, dict[str, str]]:
    """Return the checks of /readyz."""
    response = service.get("/readyz", None)
    body = response.json()
    return response.status_code, body["status"], body["checks"]


GOOD = {"catalog": "ok", "store": "ok", "maintenance": "ok", "checkpoints": "ok", "clock": "ok", "shares": "none"}


def test_the_process_is_live_even_if_the_store_is_unavailable(service_with_checkpoints):
    """An unavailable store is no reason to restart the process."""
    service_with_checkpoints.store.close()
    response = service_with_checkpoints.get("/healthz", None)
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_it_is_not_ready_before_the_first_maintenance(service_with_checkpoints):
    """Before the first maintenance there is no checkpoint."""
    assert checks(service_with_checkpoints) == (503, "unready", GOOD | {"maintenance": "stale", "checkpoints": "stale"})
    service_with_checkpoints.maintenance.once()
    assert checks(service_with_checkpoints) == (200, "ready", GOOD)


def test_it_is_not_ready_after_four_failed_rounds_of_maintenance(service_with_checkpoints):
    """Three rounds of maintenance may fail before /readyz reports it."""
    service_with_checkpoints.maintenance.once()
    service_with_checkpoints.monotonic.now += 35
    assert checks(service_with_checkpoints)[0] == 200
    service_with_checkpoints.monotonic.now += 0.1
    assert checks(service_with_checkpoints) == (503, "unready", GOOD | {"maintenance": "stale", "checkpoints": "stale"})
    service_with_checkpoints.maintenance.once()
    assert checks(service_with_checkpoints)[0] == 200


def test_checkpoints_that_cannot_be_written_are_reported(service_with_checkpoints):
    """I12: the store goes on, but its end has no new checkpoint."""
    service_with_checkpoints.maintenance.once()
    (service_with_checkpoints.folder / "checkpoints.log").unlink()
    (service_with_checkpoints.folder / "checkpoints.log").mkdir()
    service_with_checkpoints.monotonic.now += 36
    service_with_checkpoints.maintenance.once()
    assert checks(service_with_checkpoints) == (503, "unready", GOOD | {"maintenance": "stale", "checkpoints": "stale"})
    (event,) = service_with_checkpoints.events("failed")
    assert event["where"] == "maintenance"
    assert event["error"].startswith("StoreUnavailable")


def test_an_unavailable_store_is_reported(service_with_checkpoints):
    """503, without the message of the database."""
    service_with_checkpoints.maintenance.once()
    service_with_checkpoints.store.close()
    status, _, body = checks(service_with_checkpoints)
    assert (status, body["store"]) == (503, "unavailable")


def test_it_is_ready_without_checkpoints(service_with_checkpoints):
    """Checkpoints are optional, so their absence is no failed check."""
    service_with_checkpoints.maintenance.once()
    service_with_checkpoints.maintenance.has_checkpoints = False
    assert checks(service_with_checkpoints) == (200, "ready", GOOD | {"checkpoints": "none"})


def test_health_needs_no_key_and_reveals_nothing(service_with_checkpoints):
    """Responses contain names of checks and fixed texts only."""
    service_with_checkpoints.maintenance.once()
    text = service_with_checkpoints.get("/readyz", None).text + service_with_checkpoints.get("/healthz", None).text
    assert not any(word in text for word in ("sales", "reads", str(service_with_checkpoints.folder), "sqlite", "key:"))


def test_dead_reservations_are_ended_and_logged(service_with_checkpoints):
    """They belong to processes that died; the event has their number."""
    worst = service_with_checkpoints.manager.store.account("ann@sales").limit
    service_with_checkpoints.manager.reserve("ann@sales", b"r" * 32, worst)
    service_with_checkpoints.clock.pass_(minutes=2)
    service_with_checkpoints.maintenance.once()
    service_with_checkpoints.maintenance.once()
    assert [event["ended"] for event in service_with_checkpoints.events("leases_expired")] == [1]


def test_the_metrics_have_the_length_of_the_ledger(service_with_checkpoints):
    """They also have the time of the last successful maintenance."""
    service_with_checkpoints.maintenance.once()
    lines = service_with_checkpoints.store.heads()[0].seq
    assert f"discreet_ledger_lines {lines}.0" in service_with_checkpoints.metrics.text().decode()


def test_failed_maintenance_is_repeated(service_with_checkpoints, monkeypatch):
    """No exception ends the maintenance thread."""
    failing = [StoreUnavailable("the disk is full"), ValueError("a bug"), None]

    def tend():
        error = failing.pop(0)
        if error is not None:
            raise error
        return 0

    monkeypatch.setattr(service_with_checkpoints.manager, "maintain", tend)
    for _ in range(3):
        service_with_checkpoints.maintenance.once()
    assert [event["error"] for event in service_with_checkpoints.events("failed")] == ["StoreUnavailable", "ValueError"]
    assert "disk" not in service_with_checkpoints.log.getvalue()
    assert service_with_checkpoints.maintenance.age_seconds == 0


def test_the_maintenance_thread_repeats_until_it_is_closed(service_with_checkpoints, monkeypatch):
    """The thread runs as long as its context."""
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.001)
    enough, rounds = threading.Event(), []

    def once():
        rounds.append(threading.current_thread().name)
        if len(rounds) >= 3:
            enough.set()

    monkeypatch.setattr(service_with_checkpoints.maintenance, "once", once)
    with service_with_checkpoints.maintenance.running():
        assert enough.wait(30)
    done = len(rounds)
    assert set(rounds) == {"maintenance"}
    assert "maintenance" not in {thread.name for thread in threading.enumerate()}
    assert len(rounds) == done


def test_the_last_use_of_keys_is_kept_when_the_service_stops(service_with_checkpoints):
    """Recent uses are written at shutdown."""
    service_with_checkpoints.get("/v1/budget")
    service_with_checkpoints.maintenance.finish()
    ann = service_with_checkpoints.keys["ann"].split("_")[1]
    assert ann in service_with_checkpoints.manager.store.record("used", "keys")
