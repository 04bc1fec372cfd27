"""The catalog is read again while a service runs: new datasets appear, and a mistake changes nothing."""

from __future__ import annotations

import pyarrow.parquet

from tests.service.browser import Browser
from tests.service.deployment import CATALOG, KNOWN, TOP, slug, table_of

NEW = """
[datasets.fresh]
source = "reads.parquet"
user = "reader"
data_version = "1"
columns.article = { type = "text", group = true }
"""


def write(service, text):
    """Replace the catalog file."""
    (service.folder / "catalog.toml").write_text(text)


def reload(service, who="officer"):
    """Have an officer's request read the file again, and let maintenance apply it."""
    reply = service.send("POST", "/v1/admin/catalog", who, json={"reason": "a new table"})
    service.maintenance.refresh_sources()
    return reply


def test_a_new_dataset_needs_no_restart(service):
    """It can be granted and queried; the ledger says who had the file read, and its digest."""
    service.send("GET", "/v1/datasets")  # cached for the account
    write(service, CATALOG + NEW)
    assert (
        service.send(
            "PUT", "/v1/admin/grants/sales/fresh", "officer", json={"columns": None, "reason": "r"}
        ).status_code
        == 404
    )
    assert reload(service).status_code == 204
    assert service.act("PUT", "/v1/admin/grants/sales/fresh", columns=None).status_code == 200
    assert service.ask(TOP.replace("reads", "fresh")).status_code == 200
    assert "fresh" in [each["name"] for each in service.send("GET", "/v1/datasets").json()["datasets"]]
    assert any('"a new table"' in line.body and "sha256" in line.body for line in service.store.lines(0, 0))
    assert [event["datasets"] for event in service.events("catalog_read")] == [6]
    service.manager.verify()


def test_a_mistake_in_the_file_changes_nothing(service):
    """The officer gets the mistakes; the datasets that were served are served."""
    before = service.store.heads()
    write(service, CATALOG + "[datasets.broken_again]\n")
    assert slug(reload(service)) == "out-of-range"
    assert service.store.heads() == before
    assert service.ask(KNOWN).status_code == 200
    assert service.events("catalog_read") == []


def test_a_removed_dataset_and_a_removed_column_are_gone(service):
    """As if they had never been; the open engines of all others stay."""
    engine = service.warehouse.engine("daily")
    text = CATALOG.replace("columns.day", "#columns.day").partition("[datasets.loose]")[0]
    write(service, text)
    assert reload(service).status_code == 204
    assert slug(service.ask(TOP.replace("reads", "loose"))) == "not-found"
    assert slug(service.ask(TOP.replace("article", "day"))) == "not-found"
    assert service.ask(TOP).status_code == 200
    assert service.warehouse.engine("daily") is engine


def test_a_paid_answer_stays_free_after_the_file_is_read_again(service):
    """Reading the catalog is no new version of the data."""
    assert service.ask(KNOWN).status_code == 200
    write(service, CATALOG + NEW)
    reload(service)
    again = service.ask(KNOWN)
    assert again.headers["discreet-charged"] == "rho=0.0, delta=0.0"


def test_a_signal_has_the_file_read(service):
    """SIGHUP only sets a flag; maintenance reads the file, and logs a mistake without ending."""
    write(service, CATALOG + NEW)
    service.opened.catalog.request()
    service.maintenance.refresh_sources()
    assert "fresh" in service.warehouse.catalog.datasets
    written = service.store.heads()
    service.maintenance.refresh_sources()
    assert service.store.heads() == written, "one signal is one line of the ledger"
    write(service, "nonsense")
    service.opened.catalog.request()
    service.maintenance.refresh_sources()
    assert "fresh" in service.warehouse.catalog.datasets
    assert [event["where"] for event in service.events("failed")] == ["catalog"]


def test_an_edited_file_is_not_read_unless_that_is_requested(service):
    """Also not after a restart before which it was requested."""
    write(service, CATALOG + NEW)
    reload(service)
    write(service, CATALOG)
    service.maintenance.refresh_sources()
    assert "fresh" in service.warehouse.catalog.datasets
    service.reopen()
    assert "fresh" not in service.warehouse.catalog.datasets
    write(service, CATALOG + NEW)
    service.maintenance.refresh_sources()
    assert "fresh" not in service.warehouse.catalog.datasets
    reload(service)
    assert "fresh" in service.warehouse.catalog.datasets


def test_a_file_that_was_edited_after_the_request_is_not_served(service):
    """Each process serves the file that the officer's request checked, as soon as it has it."""
    write(service, CATALOG + NEW)
    reply = service.send("POST", "/v1/admin/catalog", "officer", json={"reason": "a new table"})
    assert reply.status_code == 204
    write(service, CATALOG + NEW.replace("fresh", "unchecked"))
    service.maintenance.refresh_sources()
    assert not {"fresh", "unchecked"} & set(service.warehouse.catalog.datasets)
    write(service, CATALOG + NEW)
    service.maintenance.refresh_sources()
    assert "fresh" in service.warehouse.catalog.datasets


def test_a_file_replaced_under_its_declared_version_warns_the_officer(service):
    """Once in the log, and on the pages until the catalog states another version."""
    officer = Browser(service)
    officer.log_in(service.keys["officer"])
    pyarrow.parquet.write_table(table_of(readers=True, more=5), service.folder / "reads.parquet")
    service.maintenance.refresh_sources()
    service.maintenance.refresh_sources()
    assert [event["dataset"] for event in service.events("source_replaced")] == ["reads", "secret"]
    for page in ("/officer", "/officer/catalog"):
        assert "eplaced" in officer.get(page).text
    write(service, CATALOG.replace('"2026-11"', '"2026-12"'))
    officer.get("/officer/catalog")
    assert officer.post("/officer/catalog", reason="new rows").status_code == 303
    service.maintenance.refresh_sources()
    assert service.warehouse.replaced() == {"secret"}
    write(service, "nonsense")
    assert "cannot be used" in officer.post("/officer/catalog", reason="x", key="other").text


def test_a_query_that_was_planned_keeps_its_dataset(service, monkeypatch):
    """Another catalog without the dataset comes between its plan and its price."""
    of = type(service.warehouse).key_context

    def replaced(warehouse, question):
        context = of(warehouse, question)
        write(service, CATALOG.partition("[datasets.loose]")[0])
        assert reload(service).status_code == 204
        return context

    monkeypatch.setattr(type(service.warehouse), "key_context", replaced)
    assert service.estimate(TOP.replace("reads", "loose")).status_code == 200
