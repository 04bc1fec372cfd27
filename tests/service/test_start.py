"""The service as a process: it starts, it stops, and it refuses to start."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import threading

import httpx
import pytest

from discreet.cli import main
from discreet.service.app import open_service
from discreet.service.init_project import create_project
from discreet.service.server import _configuration
from discreet.service.settings import Store, load_settings
from discreet.service.stores import open_ledger, utc_now
from tests.service.process import Running


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """What `discreet init` makes: the folder and the keys."""
    folder = tmp_path_factory.mktemp("template")
    store = Store.model_validate({"url": "sqlite:budget.db"})
    made = create_project(
        folder, catalog=None, store=store, force=False, environment={}, clock=utc_now, random=secrets.token_bytes
    )
    return folder, made.keys


@pytest.fixture
def folder(project, tmp_path):
    """A copy of it."""
    shutil.copytree(project[0], tmp_path / "service")
    return tmp_path / "service"


@pytest.fixture
def keys(project):
    """By role."""
    return project[1]


def change(folder, before, after):
    """Edit the settings."""
    path = folder / "discreet.toml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


@pytest.fixture
def refused(folder, capsys, monkeypatch):
    """Start the service in this process, where it refuses to; the exit code and what it says."""

    def refused(*arguments):
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as caught:
            main(["serve", "--port", "0", *arguments])
        said = capsys.readouterr()
        assert said.out == ""
        return caught.value.code, said.err

    return refused


# ------------------------------------------------------------------------------------------------ it runs


def test_it_answers_and_stops_when_it_is_told_to(folder, keys):
    """SIGTERM: exit code 0, and everything that was done is in the ledger and vouched for."""
    with Running(folder, keys) as service:
        assert service.get("/readyz").json()["status"] == "ready"
        answer = service.ask()
        assert answer.status_code == 200
        assert answer.json()["items"][0]["article"] == "article-001"
        assert service.stop() == 0
    (began,) = service.events("started")
    assert service.url == f"http://127.0.0.1:{began['port']}"
    assert [event["reason"] for event in service.events("stopped")] == ["asked"]
    settings = load_settings(folder / "discreet.toml")
    with contextlib.closing(open_ledger(settings.store, {})) as ledger:
        assert any("settle" in line.body for line in ledger.lines())
        assert ledger.verify().lines == ledger.heads()[0].seq
    with open_service(settings, {}) as parts:
        assert parts.manager.verify().lines


def test_everything_on_standard_output_is_an_event_and_holds_no_key(folder, keys):
    """T9, T17: no access log of the server, no banner, no secret."""
    with Running(folder, keys) as service:
        service.ask()
        service.get("/v1/budget", "analyst")
        service.get("/nothing", "officer")
        service.stop()
    text = "".join(service.lines) + service.err
    assert {"started", "requested", "released", "stopped"} <= {
        re.search(r'"event": "(\w+)"', line)[1] for line in service.lines
    }
    for key in keys.values():
        assert key.rpartition("_")[2] not in text
    assert (folder / "noise.key").read_bytes().hex() not in text
    assert service.err == ""


def test_questions_under_way_are_finished_when_it_stops(folder, keys):
    """The answer that was paid for arrives; after that nobody is listened to."""
    change(folder, "#release_grid_ms = 50", "release_grid_ms = 2_000")
    answers = []
    with Running(folder, keys) as service:
        asking = threading.Thread(target=lambda: answers.append(service.ask()))
        asking.start()
        service.until("released")  # it is computed, and waits for its moment on the grid
        assert service.stop() == 0
        asking.join()
        with pytest.raises(httpx.ConnectError):
            service.get("/healthz")
    assert [answer.status_code for answer in answers] == [200]


def test_it_does_not_wait_for_ever_when_it_stops(folder, keys):
    """Longer than the settings say nobody waits; what was paid for is kept, and free the next time."""
    change(folder, "#release_grid_ms = 50", "shutdown_seconds = 0\nrelease_grid_ms = 60_000")
    cut = []

    def ask(service):
        try:
            cut.append(service.ask().status_code)
        except httpx.HTTPError:
            cut.append(None)

    with Running(folder, keys) as service:
        asking = threading.Thread(target=ask, args=(service,))
        asking.start()
        service.until("released")
        assert service.stop() == 0, service.err
        asking.join()
    assert cut != [200]
    change(folder, "release_grid_ms = 60_000", "release_grid_ms = 0")
    with Running(folder, keys) as service:
        answer = service.ask()
    assert (answer.status_code, answer.headers["discreet-replayed"]) == (200, "?1")
    assert answer.headers["discreet-charged"] == "rho=0.0, delta=0.0"


def test_a_killed_service_starts_again_and_replays_what_was_paid_for(folder, keys):
    """I2: kill -9, and the same question gets the same bytes for nothing."""
    with Running(folder, keys) as service:
        first = service.ask()
        service.signal(signal.SIGKILL)
        assert service.end() == -signal.SIGKILL
    with Running(folder, keys) as service:
        again = service.ask()
    assert again.content == first.content
    assert again.headers["discreet-replayed"] == "?1"


def test_ctrl_c_stops_it_like_sigterm(folder, keys):
    """Exit code 0, and the ledger is sealed."""
    with Running(folder, keys) as service:
        service.signal(signal.SIGINT)
        assert service.end() == 0
    assert service.events("stopped")


def test_metrics_can_have_a_port_of_their_own(folder, keys):
    """T17: then they are not where everybody may ask."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    change(folder, "[store]", f"metrics_port = {port}\n[store]")
    with Running(folder, keys) as service:
        assert service.get("/metrics").status_code == 404
        shown = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60)
        assert "discreet_requests_total" in shown.text
        assert service.stop() == 0


# ------------------------------------------------------------------------------------------------ it does not run


def test_a_store_that_is_older_than_its_witness_does_not_serve(folder, keys, refused):
    """T25: a backup was restored; exit code 3, and a sentence that says so."""
    shutil.copy(folder / "budget.db", folder / "backup.db")
    with Running(folder, keys) as service:
        service.ask()
        service.stop()
    shutil.move(folder / "backup.db", folder / "budget.db")
    code, said = refused()
    assert (code, said.count("\n")) == (3, 1)
    assert "older than its witness" in said


def test_a_store_of_another_service_does_not_serve(folder, refused, tmp_path):
    """T25: nor does one that was made anew."""
    store = Store.model_validate({"url": "sqlite:budget.db"})
    create_project(
        tmp_path / "other",
        catalog=None,
        store=store,
        force=False,
        environment={},
        clock=utc_now,
        random=secrets.token_bytes,
    )
    shutil.copy(tmp_path / "other" / "budget.db", folder / "budget.db")
    code, said = refused()
    assert code == 3
    assert "another store" in said


def test_a_store_that_was_edited_does_not_serve(folder, refused):
    """T26: the line that was witnessed is not there any more."""
    import apsw

    with contextlib.closing(apsw.Connection(str(folder / "budget.db"))) as db:
        db.execute("UPDATE budget_ledger SET hash = zeroblob(32) WHERE seq = (SELECT max(seq) FROM budget_ledger)")
    code, said = refused()
    assert code == 3
    assert "cannot be trusted" in said


def test_one_process_has_an_sqlite_store(folder, keys, refused):
    """A second one is refused while the first goes on."""
    with Running(folder, keys) as service:
        code, said = refused()
        assert (code, said.count("\n")) == (3, 1)
        assert "one process at a time" in said
        assert service.get("/readyz").status_code == 200


def remove(name):
    """Lose a file."""
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (remove("discreet.toml"), "there is no such file"),
        (remove("catalog.toml"), "the catalog"),
        (remove("budget.db"), "there is no budget store 'budget.db'; discreet init creates one"),
        (remove("noise.key"), "the noise key 'noise.key' cannot be read: no such file or directory"),
        (remove("witness.key"), "the signing key of the witness 'witness.key' cannot be read"),
        (lambda folder: (folder / "noise.key").chmod(0o644), "others can read or write the noise key"),
        (lambda folder: (folder / "noise.key").write_bytes(b"short"), "at least 32 bytes"),
        (lambda folder: change(folder, "port = 8080", "prt = 8080"), "'prt' is not a setting"),
        (lambda folder: change(folder, 'host = "127.0.0.1"', 'host = "192.0.2.1"'), "cannot listen at 192.0.2.1"),
        (lambda folder: change(folder, 'host = "127.0.0.1"', 'host = "nowhere.invalid"'), "cannot listen at nowhere"),
        (
            lambda folder: change(folder, "sqlite:budget.db", "postgresql://nobody@127.0.0.1:9/none"),
            "store",
        ),
    ],
)
def test_what_is_not_as_it_should_be_is_told_before_anything_is_served(folder, refused, spoil, sentence):
    """Exit code 2 (3 for a database that is away), one sentence, no path of a secret and no traceback."""
    spoil(folder)
    code, said = refused()
    assert code == (3 if sentence == "store" else 2)
    assert sentence in said
    assert "Traceback" not in said
    assert f"{folder}/noise" not in said


def test_several_processes_need_postgresql(refused):
    """On the command line as in the file."""
    code, said = refused("--workers", "2")
    assert code == 2
    assert "service.workers must be 1 with an SQLite store" in said


def test_a_port_that_is_taken_is_told(folder, capsys, monkeypatch):
    """Exit code 2 and one sentence."""
    monkeypatch.chdir(folder)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as caught:
        main(["serve", "--port", str(taken.getsockname()[1])])
    assert caught.value.code == 2
    assert "address already in use" in capsys.readouterr().err


def test_a_service_that_nobody_has_a_key_to_does_not_start(folder, refused):
    """A store that was made by hand; with an issuer of tokens it would."""
    import apsw

    with contextlib.closing(apsw.Connection(str(folder / "budget.db"))) as db:
        db.execute("DELETE FROM budget_records")
    code, said = refused()
    assert code == 2
    assert "no API key" in said
    change(folder, "#[oidc]", '[oidc]\nissuer = "https://login.example.org"\naudience = "discreet"')
    with open_service(load_settings(folder / "discreet.toml"), {}) as parts:
        assert parts.manager.store.records("key") == []


def test_the_schema_for_editors_is_printed_without_any_settings(tmp_path, capsys, monkeypatch):
    """It is the one of the documentation."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--schema"])
    assert caught.value.code == 0
    assert '"$schema"' in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ what it is made of


def test_proxies_are_believed_only_if_they_are_named(service, services):
    """T20: whoever else says where a request came from is not."""
    named = services(service='trusted_proxies = ["10.0.0.0/8"]')
    trusting = _configuration(named.settings, named.app)
    assert (trusting.proxy_headers, trusting.forwarded_allow_ips) == (True, ["10.0.0.0/8"])
    assert not _configuration(service.settings, service.app).proxy_headers


def test_a_run_may_take_longer_than_any_engine(folder):
    """The lease of a reservation is not over while an engine is still allowed to count."""
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


def test_what_is_opened_is_closed_whatever_happens(folder):
    """Another process can have the store right after."""
    settings = load_settings(folder / "discreet.toml")

    def fail():
        with open_service(settings, {}) as parts:
            assert "noise" not in repr(parts)
            raise RuntimeError

    for _ in range(2):
        with pytest.raises(RuntimeError):
            fail()
