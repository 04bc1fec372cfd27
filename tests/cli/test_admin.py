"""`discreet admin` with a running service."""

from __future__ import annotations

import json

import pytest

from discreet.cli import main
from discreet.service.stores import utc_now
from tests.client.running_service import running
from tests.service.deployment import CATALOG, Deployment, put_key


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
    assert run(officer, "running")[1] == {"streams": []}
    code, unknown = run(officer, "erased", "by_article", *why)
    assert (code, "no running counts 'by_article' have begun" in unknown) == (2, True)
    assert run(officer, "revoke", "cem@sales", "reads", *why)[0] == 0
    assert run(admin, "revoke-key", made["id"], *why)[0] == 0
    assert len(run(officer, "accounts")[1]["accounts"]) == 4
    code, refusal = run(officer, "open", "cem@sales", *budget, *why)
    assert code == 2
    assert "cem@sales" in refusal
    assert run(made["key"], "keys")[0] != 0


def test_people_are_imported_from_csv_after_a_dry_run(service, monkeypatch, capsys, tmp_path):
    """Without --apply nothing changes; with it, each row has what it says, and each key is printed once."""
    started, _ = service
    both = put_key(started.opened.manager.store, None, ("officer", "admin"))
    monkeypatch.setenv("DISCREET_URL", started.url)
    monkeypatch.setenv("DISCREET_KEY", both)
    people = tmp_path / "people.csv"

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["admin", "import", str(people), "--reason", "the new team", *arguments])
        printed = capsys.readouterr()
        return ended.value.code, json.loads(printed.out) if printed.out else printed.err

    people.write_text(
        "account,parent,epsilon,delta,days,datasets,roles,label,key_days\n"
        'press,,4,1e-7,30,"reads(article, country); daily",,,\n'
        "eve@press,press,1,1e-8,30,,analyst,Eve,90\n",
        "utf-8-sig",
    )
    code, tried = run()
    assert (code, [person["change"] for person in tried["people"]]) == (0, ["created", "created"])
    assert "press" not in [account.id for account in started.opened.manager.store.accounts()]
    code, applied = run("--apply")
    assert (code, applied["people"][0]["granted"]) == (0, ["reads", "daily"])
    assert applied["people"][1]["created"]["key"].startswith("dsc_")
    for text, wrong in (
        ("name\nx\n", "no column 'name'"),
        ("account,epsilon\nx,1\n", "row 1 of 'people.csv' needs both epsilon and delta"),
        ("account,days\nx,ten\n", "row 1 of 'people.csv': days must be a whole number of days, not 'ten'"),
        (f"account,days\nx,{'9' * 5000}\n", "days must be a whole number of days, not '999"),
        ("account,epsilon,delta\nx,much,1e-8\n", "row 1 of 'people.csv': epsilon must be a number, not 'much'"),
        ("account,datasets\nx,reads(\n", "semicolons"),
        ("account\nx,y\n", "more cells"),
        ("account\nnew\n", "row 1: the new account 'new' needs a limit"),
    ):
        people.write_text(text)
        code, sentence = run("--apply")
        assert (code, wrong in sentence, sentence.count("\n")) == (2, True, 1), sentence
