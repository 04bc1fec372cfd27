"""The service as a process starts, stops, and refuses to start."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import threading

import httpx
import pytest

from discreet.cli import main
from discreet.service.app import open_service
from discreet.service.init_project import QUESTION, create_project
from discreet.service.server import _configuration
from discreet.service.settings import Store, load_settings
from discreet.service.stores import open_ledger
from tests.certificates import write_certificate
from tests.client.running_service import running
from tests.service.process import ServiceProcess


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return the folder and the keys that `discreet init` makes."""
    folder = tmp_path_factory.mktemp("template")
    store = Store.model_validate({"url": "sqlite:budget.db"})
    made = create_project(folder, store=store)
    return folder, made.keys


@pytest.fixture
def folder(project, tmp_path):
    """Return a copy of the project's folder."""
    shutil.copytree(project[0], tmp_path / "service")
    return tmp_path / "service"


@pytest.fixture
def keys(project):
    """Return the API keys by role."""
    return project[1]


ALONE = "\nwithout_proxy = true"


def change(folder, before, after):
    """Edit the settings."""
    path = folder / "discreet.toml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


@pytest.fixture
def refused(folder, capsys, monkeypatch):
    """Return a function that starts a service which refuses to, and returns the exit code and the message."""

    def refused(*arguments):
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as caught:
            main(["serve", "--port", "0", *arguments])
        error = capsys.readouterr()
        assert error.out == ""
        return caught.value.code, error.err

    return refused


def ask_again(folder, keys):
    """Return the answer of a service in this process."""
    headers = {"Authorization": f"Bearer {keys['analyst']}"}
    with running(folder) as service:
        return httpx.post(f"{service.url}/v1/query", headers=headers, json={"sql": QUESTION}, timeout=60)


# ---------------------------------------------------------------------------------------------- running and stopping


def test_a_dataset_is_added_by_sighup_while_the_service_runs(folder, keys):
    """The process stays the same; a mistake in the file is logged, and what was served is served."""
    catalog = (folder / "catalog.toml").read_text()
    fresh = catalog.replace("[datasets.reads", "[datasets.fresh")
    headers = {"Authorization": f"Bearer {keys['officer']}"}
    with ServiceProcess(folder, keys) as service:
        grant = f"{service.url}/v1/admin/grants/example/fresh"
        body = {"columns": None, "reason": "a new table"}
        (folder / "catalog.toml").write_text(catalog + fresh[fresh.index("[datasets.fresh") :])
        assert httpx.put(grant, headers=headers, json=body, timeout=60).status_code == 404
        service.signal(signal.SIGHUP)
        assert service.until("catalog_read")["datasets"] == 2
        assert httpx.put(grant, headers=headers, json=body, timeout=60).status_code == 200
        assert service.ask(QUESTION.replace("reads", "fresh")).status_code == 200
        (folder / "catalog.toml").write_text("nonsense")
        service.signal(signal.SIGHUP)
        assert service.until("failed")["where"] == "catalog"
        assert service.ask(QUESTION.replace("reads", "fresh")).status_code == 200
        assert service.stop() == 0


def test_sigterm_stops_the_service_and_its_ledger_has_a_checkpoint(folder, keys):
    """Exit code 0, and the charge is in the ledger."""
    with ServiceProcess(folder, keys) as service:
        assert service.get("/readyz").json()["status"] == "ready"
        answer = service.ask()
        assert answer.status_code == 200
        assert answer.json()["items"][0]["article"] == "article-001"
        assert service.stop() == 0
    (began,) = service.events("started")
    assert service.url == f"http://127.0.0.1:{began['port']}"
    assert [event["reason"] for event in service.events("stopped")] == ["requested"]
    settings = load_settings(folder / "discreet.toml")
    with contextlib.closing(open_ledger(settings.store, {})) as ledger:
        assert any("settle" in line.body for line in ledger.lines())
        assert ledger.verify().lines == ledger.heads()[0].seq
    with open_service(settings, {}) as parts:
        assert parts.manager.verify().lines


def test_every_line_of_standard_output_is_an_event_without_a_key(folder, keys):
    """T9, T17: no access log, no banner, no secret; Ctrl-C stops the service like SIGTERM."""
    with ServiceProcess(folder, keys) as service:
        service.ask()
        service.get("/v1/budget", "analyst")
        service.get("/nothing", "officer")
        service.signal(signal.SIGINT)
        assert service.end() == 0
    text = "".join(service.lines) + service.err
    assert {"started", "requested", "released", "stopped"} <= {
        re.search(r'"event": "(\w+)"', line)[1] for line in service.lines
    }
    for key in keys.values():
        assert key.rpartition("_")[2] not in text
    assert (folder / "noise.key").read_bytes().hex() not in text
    assert service.err == ""


def test_a_running_query_is_answered_before_the_service_stops(folder, keys):
    """The paid answer is sent; after that no connection is accepted."""
    change(folder, "#release_grid_ms = 50", "release_grid_ms = 2_000")
    answers = []
    with ServiceProcess(folder, keys) as service:
        asking = threading.Thread(target=lambda: answers.append(service.ask()))
        asking.start()
        service.until("released")  # it is computed, and waits for its time on the grid
        assert service.stop() == 0
        asking.join()
        with pytest.raises(httpx.ConnectError):
            service.get("/healthz")
    assert [answer.status_code for answer in answers] == [200]


def test_shutdown_waits_no_longer_than_its_setting(folder, keys):
    """A paid answer that was not sent is stored, and free when it is requested again."""
    change(folder, "#release_grid_ms = 50", "shutdown_seconds = 0\nrelease_grid_ms = 60_000")
    cut = []

    def ask(service):
        try:
            cut.append(service.ask().status_code)
        except httpx.HTTPError:
            cut.append(None)

    with ServiceProcess(folder, keys) as service:
        asking = threading.Thread(target=ask, args=(service,))
        asking.start()
        service.until("released")
        assert service.stop() == 0, service.err
        asking.join()
    assert cut != [200]
    change(folder, "release_grid_ms = 60_000", "release_grid_ms = 0")
    answer = ask_again(folder, keys)
    assert (answer.status_code, answer.headers["discreet-replayed"]) == (200, "?1")
    assert answer.headers["discreet-charged"] == "rho=0.0, delta=0.0"


def test_a_killed_service_starts_again_and_replays_paid_answers(folder, keys):
    """I2: after kill -9 the same query gets the same bytes for nothing."""
    with ServiceProcess(folder, keys) as service:
        first = service.ask()
        service.signal(signal.SIGKILL)
        assert service.end() == -signal.SIGKILL
    again = ask_again(folder, keys)
    assert again.content == first.content
    assert again.headers["discreet-replayed"] == "?1"


def test_metrics_can_have_a_port_of_their_own(folder, keys):
    """T17: the public port does not serve them then."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    change(folder, "[store]", f"metrics_port = {port}\n[store]")
    with ServiceProcess(folder, keys) as service:
        assert service.get("/metrics").status_code == 404
        shown = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60)
        assert "discreet_requests_total" in shown.text
        assert service.stop() == 0


# --------------------------------------------------------------------------------------------------- refusing to start


def test_a_store_that_is_older_than_its_checkpoint_does_not_serve(folder, keys, refused):
    """T25: a restored backup; exit code 3 and one sentence."""
    shutil.copy(folder / "budget.db", folder / "backup.db")
    with ServiceProcess(folder, keys) as service:
        service.ask()
        service.stop()
    shutil.move(folder / "backup.db", folder / "budget.db")
    code, error = refused()
    assert (code, error.count("\n")) == (3, 1)
    assert "older than its last checkpoint" in error


def test_a_store_of_another_service_does_not_serve(folder, refused, tmp_path):
    """T25: a store that was created again is not the one of the checkpoints."""
    store = Store.model_validate({"url": "sqlite:budget.db"})
    create_project(tmp_path / "other", store=store)
    shutil.copy(tmp_path / "other" / "budget.db", folder / "budget.db")
    code, error = refused()
    assert code == 3
    assert "another store" in error


def test_a_store_that_was_edited_does_not_serve(folder, refused):
    """T26: the line of the checkpoint is missing."""
    import apsw

    with contextlib.closing(apsw.Connection(str(folder / "budget.db"))) as db:
        db.execute("UPDATE budget_ledger SET hash = zeroblob(32) WHERE seq = (SELECT max(seq) FROM budget_ledger)")
    code, error = refused()
    assert code == 3
    assert "cannot be trusted" in error


def test_only_one_process_opens_an_sqlite_store(folder, keys, refused):
    """The second one is refused, and the first goes on."""
    with ServiceProcess(folder, keys) as service:
        code, error = refused()
        assert (code, error.count("\n")) == (3, 1)
        assert "one process at a time" in error
        assert service.get("/readyz").status_code == 200


def remove(name):
    """Return a function that removes a file."""
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (remove("discreet.toml"), "there is no such file"),
        (remove("catalog.toml"), "the catalog"),
        (remove("budget.db"), "there is no budget store 'budget.db'; discreet init creates one"),
        (remove("noise.key"), "the noise key 'noise.key' cannot be read: no such file or directory"),
        (remove("checkpoints.key"), "the signing key of the checkpoints 'checkpoints.key' cannot be read"),
        (lambda folder: (folder / "noise.key").chmod(0o644), "others can read or write the noise key"),
        (lambda folder: (folder / "noise.key").write_bytes(b"short"), "at least 32 bytes"),
        (lambda folder: change(folder, "port = 8080", "prt = 8080"), "'prt' is not a setting"),
        (lambda folder: change(folder, '"127.0.0.1"', '"0.0.0.0"'), "lets other machines connect, so a proxy with TLS"),
        (lambda folder: change(folder, '"127.0.0.1"', f'"192.0.2.1"{ALONE}'), "cannot listen at 192.0.2.1"),
        (lambda folder: change(folder, '"127.0.0.1"', f'"nowhere.invalid"{ALONE}'), "cannot listen at nowhere"),
        (
            lambda folder: change(folder, "sqlite:budget.db", "postgresql://nobody@127.0.0.1:9/none"),
            "store",
        ),
    ],
)
def test_a_broken_project_is_refused_before_anything_is_served(folder, refused, spoil, sentence):
    """Exit code 2 (3 for a database that cannot be reached), one sentence, no path of a secret, no traceback."""
    spoil(folder)
    code, error = refused()
    assert code == (3 if sentence == "store" else 2)
    assert sentence in error
    assert "Traceback" not in error
    assert f"{folder}/noise" not in error


def test_several_processes_need_postgresql(refused):
    """The option of the command line is checked like the setting."""
    code, error = refused("--workers", "2")
    assert code == 2
    assert "service.workers must be 1 with an SQLite store" in error


def test_a_port_in_use_is_refused(folder, capsys, monkeypatch):
    """Exit code 2 and one sentence."""
    monkeypatch.chdir(folder)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as caught:
        main(["serve", "--port", str(taken.getsockname()[1])])
    assert caught.value.code == 2
    assert "address already in use" in capsys.readouterr().err


def test_a_service_without_api_keys_or_an_issuer_does_not_start(folder, refused):
    """A store without keys needs an issuer of tokens."""
    import apsw

    with contextlib.closing(apsw.Connection(str(folder / "budget.db"))) as db:
        db.execute("DELETE FROM budget_records")
    code, error = refused()
    assert code == 2
    assert "no API key" in error
    change(folder, "#[oidc]", '[oidc]\nissuer = "https://login.example.org"\naudience = "discreet"')
    with open_service(load_settings(folder / "discreet.toml"), {}) as parts:
        assert parts.manager.store.records("key") == []


def test_the_schema_is_printed_without_settings(tmp_path, capsys, monkeypatch):
    """The JSON Schema of the settings goes to standard output."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--schema"])
    assert caught.value.code == 0
    assert '"$schema"' in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------------- configuration


def test_only_the_proxies_of_the_settings_are_trusted(service, services):
    """T20: the address that another sender gives in a header is ignored."""
    named = services(service='trusted_proxies = ["10.0.0.0/8"]')
    trusting = _configuration(named.settings, named.app)
    assert (trusting.proxy_headers, trusting.forwarded_allow_ips) == (True, ["10.0.0.0/8"])
    assert not _configuration(service.settings, service.app).proxy_headers


def test_a_lease_is_longer_than_the_timeout_of_any_engine(folder):
    """A reservation must not expire while an engine may still run its query."""
    catalog = folder / "catalog.toml"
    catalog.write_text(
        '[engines.w]\nurl = "postgresql://reader@db/warehouse"\ntimeout_seconds = 600\n' + catalog.read_text()
    )
    with open_service(load_settings(folder / "discreet.toml"), {}) as parts:
        reservation = parts.manager.reserve(
            "ann@example", os.urandom(32), parts.manager.store.account("ann@example").limit
        )
        lease_us = reservation.lease_until_us - parts.manager.get("ann@example").balance.time_us
    assert lease_us > 600 * 1_000_000


def test_a_failure_closes_everything_that_was_opened(folder):
    """The store can be opened again at once."""
    settings = load_settings(folder / "discreet.toml")

    def fail():
        with open_service(settings, {}) as parts:
            assert "noise" not in repr(parts)
            raise RuntimeError

    for _ in range(2):
        with pytest.raises(RuntimeError):
            fail()


def test_a_service_with_a_certificate_speaks_tls(folder, keys):
    """Clients of Trino send a password over TLS only; a page's address has the scheme."""
    certificate, _ = write_certificate(folder)
    change(folder, "[service]", '[service]\ntls_certificate = "tls.pem"\ntls_key_file = "tls.key"')
    trusting = ssl.create_default_context(cafile=certificate)
    with ServiceProcess(folder, keys) as service:
        assert service.url.startswith("https://127.0.0.1:")
        with httpx.Client(base_url=service.url, auth=("ann", keys["analyst"]), verify=trusting, timeout=60) as client:
            reply = client.post("/v1/statement", content=b"SELECT 1").json()
            assert reply["nextUri"].startswith(service.url)
            while "nextUri" in reply:
                reply = client.get(reply["nextUri"]).json()
            assert reply["data"] == [[1]]


@pytest.mark.parametrize(("mode", "said"), [(0o644, "chmod 600"), (0o600, "must be a certificate chain and its key")])
def test_a_key_that_others_can_read_or_that_is_none_is_refused(folder, refused, mode, said):
    """Nothing is served without TLS instead."""
    write_certificate(folder)
    change(folder, "[service]", '[service]\ntls_certificate = "tls.pem"\ntls_key_file = "tls.key"')
    if mode == 0o600:
        (folder / "tls.pem").write_text("no certificate")
    (folder / "tls.key").chmod(mode)
    code, error = refused()
    assert code == 2
    assert said in error
