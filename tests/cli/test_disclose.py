"""`discreet disclose` of a saved answer, and of an account of a running service."""

from __future__ import annotations

import json

import pytest
import yaml

from discreet.cli import main
from discreet.service.stores import utc_now
from tests.client.running_service import running
from tests.service.deployment import CATALOG, Deployment
from tests.service.officer.test_disclosure import STATED


@pytest.fixture
def disclose(capsys):
    """Run the command and return its exit code, output and errors."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["disclose", *map(str, arguments)])
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return run


def test_a_saved_answer_has_a_sheet_in_html_and_json(ask, tmp_path, disclose):
    """Of the library, without a service."""
    saved = tmp_path / "answer.json"
    assert ask("top", "-k", 2, "--output", saved).code == 0
    code, out, _ = disclose(saved)
    assert code == 0
    assert json.loads(out)["privacy"]["epsilon"] == json.loads(saved.read_text())["privacy"]["epsilon"]
    page = tmp_path / "sheet.html"
    assert disclose(saved, "--output", page)[0] == 0
    assert "This answer alone" in page.read_text()
    code, _, wrong = disclose(saved, "--output", page)
    assert (code, "--force" in wrong) == (2, True)
    code, _, wrong = disclose(saved, "--format", "yaml")
    assert (code, "section disclosure" in wrong) == (2, True)


def test_an_account_of_a_service_is_disclosed_in_all_forms(tmp_path, monkeypatch, disclose):
    """With the key of an officer."""
    catalog = CATALOG.partition("[datasets.loose]")[0]
    keys = Deployment(tmp_path, catalog=catalog, granted=None, now=utc_now(), rest=STATED).keys
    with running(tmp_path) as started:
        monkeypatch.setenv("DISCREET_URL", started.url)
        monkeypatch.setenv("DISCREET_KEY", keys["officer"])
        assert json.loads(disclose("--account", "sales")[1])["subject"] == "sales"
        entry = tmp_path / "entry.yaml"
        assert disclose("--dataset", "reads", "--output", entry)[0] == 0
        assert yaml.safe_load(entry.read_text())["deployment"]["basic"]["name"] == "Reading figures"
        code, _, wrong = disclose("--account", "ann@sales")
        assert (code, "sales" in wrong) == (2, True)


@pytest.mark.parametrize(
    "arguments", [(), ("missing.json",), ("answer.json", "--dataset", "reads"), ("a.json", "--output", "b.pdf")]
)
def test_mistakes_get_one_sentence(arguments, disclose, monkeypatch):
    """Exit code 2."""
    monkeypatch.delenv("DISCREET_URL", raising=False)
    code, out, wrong = disclose(*arguments)
    assert (code, out, wrong.count("\n")) == (2, "", 1)
    assert ("an account is named by --account" in wrong) == (arguments == ("missing.json",))
