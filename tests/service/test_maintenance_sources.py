"""The service opens and checks its sources when it starts and in maintenance; no request of an analyst does."""

from __future__ import annotations

import hashlib
import hmac
import threading

import pyarrow as pa
import pyarrow.parquet
import pytest

from discreet.catalog.loader import load_catalog
from discreet.catalog.sample import made_up_table
from discreet.engines import opening
from discreet.engines.duckdb import DuckDBEngine
from discreet.engines.opening import source_fingerprint
from discreet.errors import InputError
from discreet.service import maintenance as module
from discreet.service.app import open_bounded
from discreet.values import Cost
from tests.service.browser import Browser

from .deployment import AWAY, CATALOG, GRANTED, TOP, Deployment, slug, table_of

MORE = """
[datasets.files]
source = "files/*.parquet"
user = "reader"
columns.article = { type = "text", group = true }

[datasets.viewed]
source = "files/*.parquet"
view = "SELECT * FROM source"
user = "reader"
data_version = "1"
columns.article = { type = "text", group = true }
"""
GRANTS = {**GRANTED, "files": None, "viewed": None, "away": None}
SENTENCE = "the data cannot be reached now; nothing was charged, send the query again"
UNAVAILABLE = {(503, "engine-unavailable", SENTENCE)}


@pytest.fixture
def deployment(tmp_path):
    """Return a deployment with datasets of files that a test changes, and one of a server that is down."""
    made = Deployment(tmp_path / "deployment", catalog=CATALOG + AWAY + MORE, granted=GRANTS)
    _write(made.folder)
    return made


def _write(folder, name="1", table=None):
    (folder / "files").mkdir(exist_ok=True)
    pyarrow.parquet.write_table(
        table_of(readers=True) if table is None else table, folder / "files" / f"{name}.parquet"
    )


def _out_of_range(folder):
    at = pa.array([2**63 // 1000 + 1], pa.timestamp("ms"))
    _write(folder, "1", pa.table({"reader": [1], "article": ["x"], "at": at}))


def _text_ids(folder):
    _write(folder, "2", pa.table({"reader": ["x"], "article": ["y"]}))


def _garbage(folder):
    (folder / "files" / "1.parquet").write_bytes(b"PAR1 and nothing else")


def _problems(service, dataset, **options):
    """Return the problems that the requests about a dataset get, without repetition."""
    sql = TOP.replace("reads", dataset)
    found = [service.ask(sql, **options), service.ask(sql, key="once", **options), service.estimate(sql, **options)]
    found += [service.send("POST", path, json={"sql": sql, **options}) for path in ("/v1/sql", "/v1/sql/estimate")]
    browser = Browser(service)
    browser.log_in(service.keys["ann"])
    pages = [browser.get("/ask", params={"sql": sql, **options}), browser.post("/ask", sql=sql, **options)]
    assert [page.status_code for page in pages] == [200, found[0].status_code], "a form shows why it has no price"
    assert all(SENTENCE[1:] in page.text for page in pages)
    return {(reply.status_code, slug(reply), reply.json()["detail"]) for reply in found}


@pytest.mark.parametrize("dataset", ["files", "viewed"])
@pytest.mark.parametrize("spoil", [_out_of_range, _text_ids, _garbage], ids=lambda spoil: spoil.__name__[1:])
def test_a_version_that_fails_its_checks_is_unavailable_until_its_owner_corrects_it(deployment, dataset, spoil):
    """Every request gets the same problem, before and after the check; officers see the reason; no restart."""
    with deployment.open() as service:
        sql = TOP.replace("reads", dataset)
        first = service.ask(sql)
        assert first.status_code == service.estimate(sql).status_code == 200
        spent = service.balance().spent
        spoil(deployment.folder)
        assert _problems(service, dataset, epsilon=0.5) == UNAVAILABLE
        service.maintenance.refresh_sources()
        assert _problems(service, dataset, epsilon=0.5) == _problems(service, dataset) == UNAVAILABLE
        assert service.balance().spent == spent
        officer = Browser(service)
        officer.log_in(service.keys["officer"])
        assert "Unavailable to all analysts: away, broken, files, viewed." in officer.get("/officer").text
        assert "/files/" in officer.get("/officer/catalog").text
        assert service.get(f"/v1/releases/{first.headers['discreet-release']}").status_code == 200, "it was paid"
        (deployment.folder / "files" / "2.parquet").unlink(missing_ok=True)
        _write(deployment.folder)
        assert _problems(service, dataset) == UNAVAILABLE, "no request opens the version that would pass"
        service.maintenance.refresh_sources()
        assert service.ask(sql).status_code == service.estimate(sql).status_code == 200
        assert [event["dataset"] for event in service.events("dataset_available")] == ["files", "viewed"]


def test_the_version_of_files_cannot_be_computed_from_what_is_guessed(deployment):
    """An unkeyed digest was searched: the size of a private file in 6.7 million tries, its time known to 0.4 ms."""
    state = source_fingerprint(str(deployment.folder / "files" / "*.parquet"))
    with deployment.open() as service:
        shown = service.get("/v1/datasets/files").json()["data_version"]
        estimated = service.estimate(TOP.replace("reads", "files")).json()["data_version"]
        released = service.ask(TOP.replace("reads", "files")).json()["data_version"]
    assert shown == estimated == released
    for path in (state, state.replace(f"{deployment.folder.resolve()}/", "")):
        assert shown != hashlib.sha256(path.encode()).hexdigest()[:32]
        assert shown != hmac.digest(b"", path.encode(), hashlib.sha256).hex()[:32]
    with deployment.open() as again:
        assert again.get("/v1/datasets/files").json()["data_version"] == shown, "a restart changes no version"


def test_an_appended_file_is_a_new_version_without_a_restart(deployment):
    """Its fingerprint is the version: the same query is free until then, and charged once for the new one."""
    with deployment.open() as service:
        sql = TOP.replace("reads", "files")
        assert [service.ask(sql).headers["discreet-replayed"] for _ in range(2)] == ["?0", "?1"]
        before = service.get("/v1/datasets/files").json()["data_version"]
        _write(deployment.folder, "2")
        assert slug(service.ask(sql)) == "engine-unavailable"
        service.maintenance.refresh_sources()
        assert service.get("/v1/datasets/files").json()["data_version"] != before
        assert [service.ask(sql).headers["discreet-replayed"] for _ in range(2)] == ["?0", "?1"]


def test_a_query_planned_before_a_switch_is_refused_before_it_is_charged(deployment):
    """Otherwise its noise would be that of another version than its rows."""
    with deployment.open() as service:
        context = service.warehouse.key_context

        def switch(dataset):
            found = context(dataset)
            _write(deployment.folder, "2")
            service.maintenance.refresh_sources()
            return found

        service.warehouse.key_context = switch
        assert slug(service.ask(TOP.replace("reads", "files"))) == "engine-unavailable"
        assert service.balance().spent == Cost()


def test_a_server_that_is_down_at_the_start_is_tried_again_by_maintenance_only(deployment, monkeypatch):
    """The service starts without it; its requests are refused alike, and none of them connects."""
    with deployment.open() as service:
        assert [event["dataset"] for event in service.events("dataset_unavailable")] == ["away", "broken"]
        tried, rows = [], made_up_table(service.warehouse.catalog.datasets["away"], 100)
        monkeypatch.setattr(opening, "open_engine", lambda *_, **__: tried.append(1) or DuckDBEngine(rows))
        assert _problems(service, "away") == UNAVAILABLE
        assert tried == []
        service.maintenance.refresh_sources()
        assert service.estimate(TOP.replace("reads", "away")).status_code == 200
        assert tried == [1]


def test_no_request_of_an_analyst_opens_a_source(deployment, monkeypatch):
    """Whatever it asks, and although its source has changed or failed."""
    opened = []
    with deployment.open() as service:
        monkeypatch.setattr(opening, "open_engine", lambda *where, **_: opened.append(where))
        for dataset in ("reads", "loose", "away", "broken", "files"):
            sql = TOP.replace("reads", dataset)
            _write(deployment.folder, "2")
            replies = [service.ask(sql), service.estimate(sql), service.get(f"/v1/datasets/{dataset}")]
            replies += [service.send("POST", path, json={"sql": sql}) for path in ("/v1/sql", "/v1/sql/estimate")]
            assert {reply.status_code for reply in replies} <= {200, 503}
    assert opened == []


def test_maintenance_opens_sources_in_a_thread_of_its_own(deployment, monkeypatch):
    """A large file must not delay the maintenance of budgets, nor the end of the service."""
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.01)
    with deployment.open() as service:
        held, go_on, maintained = threading.Event(), threading.Event(), threading.Event()
        monkeypatch.setattr(service.warehouse, "refresh", lambda: (held.set(), go_on.wait(20)))
        monkeypatch.setattr(service.maintenance, "once", maintained.set)
        with service.maintenance.running():
            assert held.wait(20)
            assert maintained.wait(20)
            maintained.clear()
            assert maintained.wait(20)
        go_on.set()


def test_the_memory_of_each_dataset_is_bounded_by_the_settings(tmp_path, monkeypatch):
    """Of files and of views, when they are opened; one whose rows take more is unavailable, and closed."""
    with Deployment(tmp_path / "d", service="max_dataset_memory = 64").open() as service:
        assert service.ask().status_code == 200
        for name in ("reads", "loose"):
            bound = service.warehouse.engine(name).fetch("SELECT current_setting('memory_limit') AS bound")
            assert bound.to_pylist() == [{"bound": "64.0 MiB"}]
    closed = []
    close = DuckDBEngine.close

    def counted(engine):
        closed.append(engine)
        close(engine)

    def refused(*_):
        raise InputError("too much")

    monkeypatch.setattr(DuckDBEngine, "limit_memory", refused)
    monkeypatch.setattr(DuckDBEngine, "close", counted)
    with pytest.raises(InputError, match="too much"):
        open_bounded(64, load_catalog(tmp_path / "d" / "catalog.toml"), "reads", {})
    assert len(closed) == 1
