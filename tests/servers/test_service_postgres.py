"""Several processes and several replicas of the service behind one PostgreSQL store."""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import signal
from urllib.parse import urlsplit, urlunsplit

import httpx
import pytest

from discreet.cli import main
from discreet.service.init_project import QUESTION
from tests.cli.test_serve_init import keys_in
from tests.servers.budget_schemas import new_schema
from tests.service.process import ServiceProcess


@pytest.fixture
def run(capsys):
    """Return a function that runs a command in this process and returns its exit code, stdout and stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return int(caught.value.code or 0), output.out, output.err

    return run


@pytest.fixture
def database(server, monkeypatch):
    """Return the URL of an empty schema without the password, which is in the variable BUDGETS_PASSWORD."""
    parts = urlsplit(new_schema(server("postgres")))
    monkeypatch.setenv("BUDGETS_PASSWORD", parts.password)
    host = f"{parts.username}@{parts.hostname}:{parts.port}"
    return urlunsplit(parts._replace(netloc=host))


@pytest.fixture
def project(run, tmp_path, database):
    """Return the folder that `discreet init` creates and its API keys."""
    code, out, err = run("init", tmp_path, "--store", database, "--password-env", "BUDGETS_PASSWORD")
    assert (code, err) == (0, "")
    assert not (tmp_path / "budget.db").exists()
    return tmp_path, keys_in(out)


def release(response) -> tuple[bytes, str]:
    """Return the body of a successful response and its replayed header."""
    assert response.status_code == 200, response.text
    return response.content, response.headers["discreet-replayed"]


@pytest.mark.usefixtures("project")
def test_init_refuses_a_database_with_accounts(run, database, tmp_path):
    """`init` refuses a database with accounts, which are permanent, and writes no files."""
    code, _, err = run("init", tmp_path / "again", "--store", database, "--password-env", "BUDGETS_PASSWORD")
    assert code == 2
    assert "accounts or keys already" in err
    assert not (tmp_path / "again").exists()


def test_replicas_share_budgets_answers_and_keys(project):
    """I7: each replica replays the other's releases, and sees changes to keys within a second."""
    folder, keys = project
    (folder / "two.toml").write_text((folder / "discreet.toml").read_text().replace("checkpoints.log", "other.log"))
    shutil.copy(folder / "checkpoints.log", folder / "other.log")  # a replica without it could not exclude a rollback
    with ServiceProcess(folder, keys) as one, ServiceProcess(folder, keys, settings="two.toml") as two:
        body, replayed = release(one.ask())
        assert replayed == "?0"
        assert release(two.ask()) == (body, "?1")
        spent = [service.get("/v1/budget", "analyst").json()["used"] for service in (one, two)]
        assert spent[0] == spent[1] != {"rho": 0.0, "delta": 0.0}
        key = keys["analyst"].split("_")[1]
        headers = {"Authorization": f"Bearer {keys['admin']}"}
        revoked = httpx.delete(f"{one.url}/v1/admin/keys/{key}", headers=headers, params={"reason": "left"}, timeout=60)
        assert revoked.status_code == 204
        assert one.get("/v1/budget", "analyst").status_code == 401
        asked = (two.get("/v1/budget", "analyst").status_code for _ in range(10_000))
        assert 401 in asked  # its cache is a second old at most
        assert (one.stop(), two.stop()) == (0, 0)


def test_replicas_never_overspend_together(project):
    """I1: sixteen concurrent queries on two replicas spend no more than the limit."""
    folder, keys = project
    question = "SELECT article, COUNT(DISTINCT reader) FROM reads WHERE article != 'x{}' GROUP BY article LIMIT 10"
    with ServiceProcess(folder, keys) as one, ServiceProcess(folder, keys) as two:
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            asked = [pool.submit((one, two)[n % 2].ask, question.format(n), epsilon=2.0) for n in range(16)]
            statuses = [future.result().status_code for future in asked]
        report = one.get("/v1/budget", "analyst").json()
        assert set(statuses) <= {200, 403, 429}
        assert 403 in statuses
        assert report["used"]["rho"] <= report["limit"]["rho"]
        assert report["held"] == {"rho": 0.0, "delta": 0.0}
        assert (one.stop(), two.stop()) == (0, 0)


def test_several_processes_serve_at_one_port(project):
    """SIGTERM stops all worker processes with exit code 0, and each logs its start and stop."""
    folder, keys = project
    with ServiceProcess(folder, keys, "--workers", "2") as service:
        service.until_count("started", 2)
        body, _ = release(service.ask())
        assert release(service.ask())[0] == body
        assert service.stop() == 0
    assert len(service.events("stopped")) == 2


def test_sighup_has_all_processes_read_the_catalog_again(project):
    """The signal to the parent reaches one worker; the others follow by the store, without an end of any."""
    folder, keys = project
    catalog = (folder / "catalog.toml").read_text()
    fresh = catalog.replace("[datasets.reads", "[datasets.fresh")
    with ServiceProcess(folder, keys, "--workers", "2") as service:
        service.until_count("started", 2)
        workers = service.children()
        (folder / "catalog.toml").write_text(catalog + fresh[fresh.index("[datasets.fresh") :])
        service.signal(signal.SIGHUP)
        service.until_count("catalog_read", 2)
        headers = {"Authorization": f"Bearer {keys['officer']}"}
        grant = f"{service.url}/v1/admin/grants/example/fresh"
        body = {"columns": None, "reason": "a new table"}
        assert httpx.put(grant, headers=headers, json=body, timeout=60).status_code == 200
        answers = {release(service.ask(QUESTION.replace("reads", "fresh")))[0] for _ in range(20)}
        assert len(answers) == 1  # whichever process a connection reached
        assert service.children() == workers
        assert service.stop() == 0
    assert [event["datasets"] for event in service.events("catalog_read")] == [2, 2]


def test_all_processes_end_if_one_dies(project):
    """If a worker dies, all end with exit code 3 and one sentence, so that a supervisor restarts them together."""
    folder, keys = project
    with ServiceProcess(folder, keys, "--workers", "2") as service:
        service.until_count("started", 2)
        os.kill(service.children()[0], signal.SIGKILL)
        assert service.end() == 3
    assert "ended by itself" in service.err


def test_the_ledger_is_verified_beside_its_service(run, project):
    """`ledger verify` succeeds against a running service and one replica's checkpoints."""
    folder, keys = project
    with ServiceProcess(folder, keys) as service:
        service.ask()
        code, out, _ = run("ledger", "verify", "--config", folder / "discreet.toml")
        assert code == 0
        assert out.startswith("sound: ")
        assert "its end is that of the last checkpoint" in out
        assert service.stop() == 0
    code, out, _ = run("ledger", "show", "--config", folder / "discreet.toml", "--account", "ann@example")
    assert code == 0
    assert "settle" in out
