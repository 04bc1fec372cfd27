"""`discreet init`: a new service, and the commands to use it."""

from __future__ import annotations

import re
import shlex

import httpx
import pytest

from discreet.service.init_project import QUESTION
from tests.service.process import ServiceProcess


def keys_in(text: str) -> dict[str, str]:
    """Return the printed keys, by role."""
    return dict(re.findall(r"^  (admin|officer|analyst) +(dsc_\S+) ", text, re.MULTILINE))


def test_the_commands_that_init_prints_work(run, tmp_path, monkeypatch):
    """A new folder, three commands, a private answer: by our client and by curl."""
    monkeypatch.chdir(tmp_path)
    ran = run("init")
    assert (ran.code, ran.err) == (0, "")
    keys = keys_in(ran.out)
    assert keys.keys() == {"admin", "officer", "analyst"}
    commands = ran.out.replace("\\\n", "").splitlines()
    assert shlex.split(next(line for line in commands if "discreet serve" in line))[2] == "discreet.toml"
    with ServiceProcess(tmp_path, keys) as service:
        monkeypatch.setenv("DISCREET_KEY", keys["analyst"])
        monkeypatch.setenv("DISCREET_URL", service.url)
        query = shlex.split(next(line for line in commands if "discreet query" in line))
        answer = run(*query[1:], "--format", "csv")
        assert answer.code == 0
        assert "article-001" in answer.out
        assert run("budget").code == 0
        curl = shlex.split(next(line for line in commands if "curl" in line).replace("$DISCREET_KEY", keys["analyst"]))
        headers = dict(curl[n + 1].split(": ", 1) for n, word in enumerate(curl) if word == "-H")
        url = curl[2].replace("$DISCREET_URL", service.url)
        response = httpx.post(url, headers=headers, content=curl[curl.index("-d") + 1], timeout=60)
        assert response.status_code == 200
        assert response.headers["discreet-replayed"] == "?1"


def test_the_folder_is_created_and_named_in_the_printed_commands(run, tmp_path):
    """The commands have the given path."""
    ran = run("init", tmp_path / "a" / "b")
    assert f"discreet serve {tmp_path / 'a' / 'b' / 'discreet.toml'}" in ran.out
    assert f"The settings, secrets and budgets are in {(tmp_path / 'a' / 'b').resolve()}." in ran.out
    assert QUESTION in ran.out


def test_existing_files_are_not_replaced(run, tmp_path):
    """Exit code 2 and one sentence; --force moves them aside."""
    run("init", tmp_path)
    ran = run("init", tmp_path)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "--force" in ran.err
    again = run("init", tmp_path, "--force")
    assert again.code == 0
    assert keys_in(again.out)


def test_the_users_own_catalog_is_served(run, tmp_path):
    """No query about the made-up data is suggested."""
    (tmp_path / "own.toml").write_text(
        '[datasets.a]\nsource = "a.parquet"\nuser = "u"\ncolumns.x = { type = "text", group = true }\n'
    )
    ran = run("init", tmp_path / "service", "--catalog", tmp_path / "own.toml")
    assert ran.code == 0
    assert QUESTION not in ran.out
    assert not (tmp_path / "service" / "reads.parquet").exists()
    assert str(tmp_path / "own.toml") in (tmp_path / "service" / "discreet.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--catalog", "none.toml"], "there is no such file"),
        (["--store", "mysql://db/b"], "--store must be sqlite:FILE, or a URL without a password"),
        (["--store", "postgresql://me:hunter2@db/b"], "--store must be sqlite:FILE, or a URL without a password"),
        (["--store", "postgresql://me@db/b", "--password-env", "a b"], "--password-env must be the name of"),
        (["--store", "postgresql://me@db/b", "--password-env", "NOT_SET_AT_ALL"], "'NOT_SET_AT_ALL'"),
    ],
)
def test_an_impossible_project_is_refused_and_nothing_is_written(run, tmp_path, monkeypatch, arguments, sentence):
    """Exit code 2, one sentence, no password."""
    monkeypatch.chdir(tmp_path)
    ran = run("init", "service", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.err
    assert "hunter2" not in ran.err
    assert list(tmp_path.iterdir()) == []
