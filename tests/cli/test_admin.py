"""`discreet admin` with a running service."""

from __future__ import annotations

import json

import pytest

from discreet.cli import main
from discreet.service.stores import utc_now
from tests.client.running_service import running
from tests.service.deployment import CATALOG, Deployment


@pytest.fixture
def service(tmp_path):
    """Return a service on a free port, and its keys."""
    catalog = CATALOG.partition("[datasets.loose]")[0]
    keys = Deployment(tmp_path, catalog=catalog, granted=None, now=utc_now()).keys
    with running(tmp_path) as started:
        yield started, keys


def test_an_account_is_opened_granted_given_a_key_and_limited(service, monkeypatch, capsys):
    """The same as with curl in docs/service/running.md; errors are those of the service, with exit code 2."""
    started, keys = service
    monkeypatch.setenv("DISCREET_URL", started.url)

    def run(key, *arguments):
        monkeypatch.setenv("DISCREET_KEY", key)
        with pytest.raises(SystemExit) as ended:
            main(["admin", *arguments])
        body = capsys.readouterr()
        return ended.value.code, json.loads(body.out) if body.out else body.err

    why = ("--reason", "a test")
    officer, admin = keys["officer"], keys["admin"]
    budget = ("--epsilon", "1", "--delta", "1e-8")
    code, opened = run(officer, "open", "cem@sales", "--parent", "sales", *budget, "--days", "30", *why)
    assert (code, opened["account"], opened["parent"], opened["period"]["days"]) == (0, "cem@sales", "sales", 30)
    assert run(officer, "grant", "cem@sales", "reads", "--column", "article", *why)[1]["columns"] == ["article"]
    assert "cem@sales" in [grant["account"] for grant in run(officer, "grants")[1]["grants"]]
    code, made = run(admin, "make-key", "--account", "cem@sales", "--role", "analyst", *why)
    assert made["key"].startswith("dsc_")
    assert made["id"] in [key["id"] for key in run(admin, "keys")[1]["keys"]]
    assert run(officer, "preview", "cem@sales", "--epsilon", "0.5", "--delta", "1e-8")[1]["queries"] == 0
    assert len(run(officer, "spending", "--days", "7")[1]["days"]) == 7
    code, lower = run(officer, "limit", "cem@sales", "--epsilon", "0.5", "--delta", "1e-8", *why)
    assert lower["limit"]["rho"] < opened["limit"]["rho"]
    assert run(officer, "suspend", "cem@sales", *why)[1]["suspended_by_officer"] == "cem@sales"
    assert run(officer, "lift", "cem@sales", *why)[1]["suspended_by_officer"] is None
    code, told = run(officer, "activity", "--account", "cem@sales", "--kind", "account")
    assert [each["reason"] for each in told["activity"]] == ["a test"] * 5  # two lines of lift: failures, and officers'
    assert run(officer, "revoke", "cem@sales", "reads", *why)[0] == 0
    assert run(admin, "revoke-key", made["id"], *why)[0] == 0
    assert len(run(officer, "accounts")[1]["accounts"]) == 4
    code, refusal = run(officer, "open", "cem@sales", *budget, *why)
    assert code == 2
    assert "cem@sales" in refusal
    assert run(made["key"], "keys")[0] != 0
