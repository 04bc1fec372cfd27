"""Arguments of `discreet serve`; tests/service/test_server.py tests the service."""

from __future__ import annotations

import builtins
import sys

import pytest

from discreet.service import server as start
from discreet.service import server as workers


@pytest.fixture
def started(run, tmp_path, monkeypatch):
    """Replace the service by a function that records its arguments."""
    monkeypatch.chdir(tmp_path)
    run("init")
    seen = []
    monkeypatch.setattr(start, "serve", lambda settings, *_: seen.append(("one", settings.service)))
    monkeypatch.setattr(workers, "serve_many", lambda path, given, *_: seen.append((path, given)))

    def started(*arguments):
        ran = run("serve", *arguments)
        return ran, seen.pop() if seen else None

    return started


def test_without_arguments_the_settings_of_the_working_directory_are_used(started):
    """Without arguments, discreet.toml is used unchanged."""
    ran, (_, service) = started()
    assert ran.code == 0
    assert (service.host, service.port, service.workers) == ("127.0.0.1", 8080, 1)


def test_arguments_override_settings(started):
    """Arguments are validated with the same messages."""
    _, (_, service) = started("discreet.toml", "--port", 0, "--host", "::1")
    assert (service.host, service.port) == ("::1", 0)
    ran, none = started("--port", 70_000)
    assert (ran.code, none) == (2, None)
    assert "service.port: must be at most 65,535" in ran.err


def test_several_processes_read_the_settings_themselves(started, tmp_path):
    """They get the arguments, too; only PostgreSQL can be shared by processes."""
    path = tmp_path / "discreet.toml"
    path.write_text(path.read_text().replace("sqlite:budget.db", "postgresql://me@db/budgets"))
    ran, seen = started("--workers", 2)
    assert (ran.code, seen) == (0, ("discreet.toml", {"workers": 2}))


def test_missing_settings_are_reported(run, tmp_path, monkeypatch):
    """A missing settings file gives exit code 2 and one sentence."""
    monkeypatch.chdir(tmp_path)
    ran = run("serve")
    assert (ran.code, ran.out) == (2, "")
    assert "there is no such file" in ran.err


@pytest.mark.parametrize("command", [["serve"], ["init"], ["ledger", "verify"], ["key", "admin", "--reason", "r"]])
def test_missing_libraries_of_the_service_are_reported_with_the_command_that_installs_them(
    run, tmp_path, monkeypatch, command
):
    """The library alone does not install them."""
    real = builtins.__import__

    def missing(name, *rest):
        if name == "uvicorn":
            raise ImportError("no such module", name="uvicorn")
        return real(name, *rest)

    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "uvicorn", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    ran = run(*command)
    assert ran.code == 2
    assert "pip install '.[service]'" in ran.err
    assert list(tmp_path.iterdir()) == []
