"""The health checks."""

from __future__ import annotations


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


def test_the_metrics_have_the_length_of_the_ledger(service_with_checkpoints):
    """They also have the time of the last successful maintenance."""
    service_with_checkpoints.maintenance.once()
    lines = service_with_checkpoints.store.heads()[0].seq
    assert f"discreet_ledger_lines {lines}.0" in service_with_checkpoints.metrics.text().decode()
