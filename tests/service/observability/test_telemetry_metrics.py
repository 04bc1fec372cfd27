"""The Prometheus metrics are derived from events, and have no label of an account."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from discreet.budget.errors import LeaseLost, UnknownAccount
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.errors import InvariantViolated
from discreet.service.observability import (
    MAX_LABELS,
    AdminChanged,
    CatalogRead,
    DatasetAvailable,
    DatasetUnavailable,
    Denied,
    Failed,
    Forfeited,
    IssuerFetched,
    LeasesExpired,
    LibraryLogged,
    Metrics,
    Refused,
    Released,
    Requested,
    ShareMoved,
    SourceReplaced,
    Started,
    Stopped,
)
from tests.budget.suite import FakeClock


class FakeMonotonic:
    """Seconds that only a test advances."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        """Return the seconds."""
        return self.now


def samples(metrics):
    """Return name{labels} -> value of all samples."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found[sample.name, *sorted(sample.labels.items())] = sample.value
    return found


EVENTS = [
    (Requested("r", "POST /v1/query", 403, 50, "key:a", "ann", "budget-short"), "requests_total", 1),
    (Requested("r", "POST /v1/query", 403, 50, "key:a", "ann", "budget-short"), "problems_total", 1),
    (Requested("r", "GET /v1/budget", 200, 50), "request_seconds_count", 1),
    (Released("r", "ann", "reads", "pcr", "ab", 0.5, 1e-9, "memory"), "releases_total", 1),
    (Released("r", "ann", "reads", "pcr", "ab", 0.5, 1e-9, "engine"), "charged_rho_total", 0.5),
    (Released("r", "ann", "reads", "pcr", "ab", 0.5, 1e-9, "engine"), "charged_delta_total", 1e-9),
    (Refused("r", "ann", "budget-short", "org"), "refusals_total", 1),
    (Forfeited("r", "ann", "reads", "timeout"), "forfeits_total", 1),
    (LeasesExpired(3), "expired_reservations_total", 3),
    (Denied("r", "unknown"), "denials_total", 1),
    (AdminChanged("r", "key:a", "POST /v1/admin/keys", "ann"), "admin_changes_total", 1),
    (Failed("upkeep", "KeyError", ()), "failures_total", 1),
    (LibraryLogged("uvicorn", "error", "x.py:1"), "library_logs_total", 1),
    (ShareMoved("t1", "east", "ann", "sent"), "shares_moved_total", 1),
    (DatasetUnavailable("reads"), "datasets_unavailable_total", 1),
    (DatasetAvailable("reads"), "datasets_available_total", 1),
    (SourceReplaced("reads"), "sources_replaced_total", 1),
    (CatalogRead(2), "catalogs_read_total", 1),
    (IssuerFetched("keys", "failed"), "identity_fetches_total", 1),
    (Requested("r", "POST /v1/query", 200, 1, "key:a", "ann", None, "ab", "pcr"), "releases_total", 1),
    (Started("0", "host", 1, "sqlite", 1), "requests_total", 0),
    (Stopped(), "requests_total", 0),
]


@pytest.mark.parametrize(("event", "name", "value"), EVENTS)
def test_an_event_is_counted(event, name, value):
    """By its number, in one series of that name; some events are not counted."""
    metrics = Metrics(FakeMonotonic())
    before = samples(metrics)
    metrics.event(event)
    after = samples(metrics)
    rise = {key: after[key] - before.get(key, 0.0) for key in after if key[0] == f"discreet_{name}"}
    assert sum(rise.values()) == value
    assert sum(1 for risen in rise.values() if risen) == (1 if value else 0)


def test_no_label_holds_an_account():
    """/metrics may be public: no account, actor, dataset, release, reservation or peer is in it."""
    metrics = Metrics(FakeMonotonic())
    for event, _, _ in EVENTS:
        metrics.event(event)
    values = {value for key in samples(metrics) for _, value in key[1:]}
    assert values.isdisjoint({"ann", "org", "key:a", "reads", "ab", "t1", "east", "host", "r"})
    assert {"POST /v1/query", "403", "budget-short", "memory", "timeout"} <= values


def test_labels_are_bounded():
    """Memory is bounded for any requests: values beyond the limit are counted as other."""
    metrics = Metrics(FakeMonotonic())
    for n in range(MAX_LABELS + 50):
        metrics.event(Requested("r", f"GET /{n}", 404, 0))
    found = samples(metrics)
    routes = {dict(key[1:])["route"] for key in found if key[0] == "discreet_requests_total"}
    assert len(routes) == MAX_LABELS + 1
    assert found["discreet_requests_total", ("route", "other"), ("status", "404")] == 50
    assert len(metrics._children) <= 2 * MAX_LABELS


@pytest.mark.parametrize("event", ["requested", Requested("r", KeyError("7777777"), 200, 1)])
def test_other_objects_than_events_are_not_counted(event):
    """As in other logs: neither other types, nor fields that hold more than plain values."""
    metrics = Metrics(FakeMonotonic())
    with pytest.raises(InvariantViolated):
        metrics.event(event)
    assert b"7777777" not in metrics.text()


def test_the_age_of_maintenance_grows_until_it_succeeds():
    """By the given clock, for alerting; the length of the ledger is there, too."""
    watch = FakeMonotonic()
    metrics = Metrics(watch)
    watch.now += 25
    assert samples(metrics)["discreet_maintenance_age_seconds",] == 25
    metrics.maintained(ledger_lines=42)
    assert samples(metrics)["discreet_maintenance_age_seconds",] == 0
    assert samples(metrics)["discreet_ledger_lines",] == 42


def test_a_store_is_timed_by_method_whether_it_succeeds_or_not():
    """Results and errors are passed through."""
    metrics = Metrics(FakeMonotonic())
    store = SQLiteStore(None, FakeClock())
    store.timed = metrics.timed
    assert store.heads() == ()
    with pytest.raises(UnknownAccount):
        store.balance("nobody")
    with pytest.raises(LeaseLost):
        store.start("never reserved")
    store.expire()
    store.verify()
    store.close()
    found = samples(metrics)
    for operation in ("heads", "balance", "start", "expired", "verify"):
        assert found["discreet_store_seconds_count", ("operation", operation)] == 1


def test_two_services_in_one_process_have_separate_metrics():
    """Each service has its own registry."""
    first, second = Metrics(FakeMonotonic()), Metrics(FakeMonotonic())
    first.event(Failed("upkeep", "KeyError", ()))
    assert samples(first)["discreet_failures_total",] == 1
    assert samples(second)["discreet_failures_total",] == 0


def test_the_page_names_every_metric_with_its_labels():
    """Each metric has a row of the table with its labels."""
    page = (Path(__file__).resolve().parents[3] / "docs/service/observability.md").read_text()
    for family in Metrics(FakeMonotonic()).registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"`{name}`" in page or f"`{name}{{" in page, name
