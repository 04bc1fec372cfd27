"""Maintenance: what it ends, logs and repeats."""

from __future__ import annotations

import threading

from discreet.budget.errors import StoreUnavailable
from discreet.service import maintenance as module


def test_dead_reservations_are_ended_and_logged(service_with_checkpoints):
    """They belong to processes that died; the event has their number."""
    worst = service_with_checkpoints.manager.store.account("ann@sales").limit
    service_with_checkpoints.manager.reserve("ann@sales", b"r" * 32, worst)
    service_with_checkpoints.clock.pass_(minutes=2)
    service_with_checkpoints.maintenance.once()
    service_with_checkpoints.maintenance.once()
    assert [event["ended"] for event in service_with_checkpoints.events("leases_expired")] == [1]


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
