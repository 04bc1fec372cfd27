"""The officers' pages over plain HTTP."""

from __future__ import annotations

import csv
import re

import pytest

from discreet.budget.rules import DAY_US, microseconds
from discreet.errors import EngineError
from tests.service.browser import Browser
from tests.service.deployment import ACT, KNOWN

ANN = "/officer/accounts/ann@sales"


@pytest.mark.parametrize(
    "path", ["/officer", ANN, "/officer/catalog", "/officer/ledger", "/officer/simulator", "/officer/keys"]
)
def test_pages_need_the_role_of_their_operation(service, path):
    """Pages show nothing that the API would refuse."""
    ann = Browser(service)
    ann.log_in(service.keys["ann"])
    assert ann.get(path).status_code == 403


def test_an_officer_previews_and_applies_a_lower_limit(service, officer):
    """The preview shows what the limit would have refused and changes nothing; the applied limit is effective."""
    assert service.ask(KNOWN, mechanism="laplace", epsilon=1).status_code == 200
    limit = service.balance().account.limit
    officer.get(ANN)
    shown = officer.post(ANN, act="preview", epsilon="0.5", delta="1e-6")
    assert "<strong>The only query</strong> of the last 30 days would have been refused, on" in shown.text
    assert service.balance().account.limit == limit
    assert officer.post(ANN, act="apply", epsilon="0.5", delta="1e-6", reason="a cut").status_code == 303
    assert service.balance().account.limit.rho < limit.rho
    assert service.ask(KNOWN, mechanism="laplace", epsilon=1.5).status_code == 403
    assert "a cut" in officer.get("/officer/ledger").text


def test_a_suspension_is_shown_and_lifted(service, officer):
    """The account can query again, and the ledger has the reason."""

    def fail(*_):
        raise EngineError("the engine is down")

    service.engines.head = fail
    for epsilon in range(1, 6):
        service.ask(epsilon=epsilon / 10)
    assert "suspended" in officer.get("/officer").text
    officer.get(ANN)
    assert officer.post(ANN, act="lift").status_code == 400
    assert officer.post(ANN, act="lift", reason="the engine was down").status_code == 303
    assert "suspended" not in officer.get("/officer").text
    assert "the engine was down" in officer.get("/officer/ledger").text


def test_an_officer_suspends_and_lifts_by_hand(service, officer):
    """Accounts below are suspended with it, and the pages and the ledger say by whom and why."""
    page = "/officer/accounts/sales"
    officer.get(page)
    assert officer.post(page, act="suspend").status_code == 400
    assert officer.post(page, act="suspend", reason="an audit").status_code == 303
    assert "by an officer" in officer.get(page).text
    assert 'with <a href="/officer/accounts/sales">sales</a>' in officer.get(ANN).text
    refused = service.ask().json()
    assert (refused["type"], refused["account"], refused.get("until")) == ("/problems/suspended", "sales", None)
    assert service.send("GET", "/v1/budget").json()["suspended_by_officer"] == "sales"
    officer.get(page)
    assert officer.post(page, act="lift", reason="it is over").status_code == 303
    assert service.ask().status_code == 200
    shown = officer.get("/officer/ledger").text
    for text in ("an audit", "it is over", "<del>no</del> &rarr; yes", "<del>yes</del> &rarr; no", "by sales"):
        assert text in shown
    service.manager.verify()


def test_an_observed_account_shows_what_it_would_have_refused(service, officer):
    """An officer sees the effect of enforcement before it is set."""
    service.act("PATCH", "/v1/admin/accounts/ann@sales", mode="observe", limit={"epsilon": 0.5, "delta": "1e-6"})
    assert service.ask(KNOWN, mechanism="laplace", epsilon=1).status_code == 200
    assert "<strong>The only query</strong> of the last 30 days would have been refused, on" in officer.get(ANN).text


def test_an_officer_creates_an_account_grants_and_revokes(service, officer):
    """Each form performs the operation of the API, and needs a reason."""
    officer.get("/officer")
    new = {"account": "eve@sales", "parent": "sales", "epsilon": "2", "delta": "1e-7", "days": "30"}
    assert "reason" in officer.post("/officer", **new).text
    assert officer.post("/officer", **new, reason="new").headers["location"] == "/officer/accounts/eve@sales"
    page = "/officer/accounts/eve@sales"
    officer.get(page)
    assert 'from <a href="/officer/accounts/sales#grants">sales</a>' in officer.get(page).text
    assert officer.post(page, act="grant", dataset="secret", columns="article", reason="r", key="g1").status_code == 303
    assert "secret" in officer.get(page).text
    assert "Grants add up" in officer.get(page).text
    assert officer.post(page, act="revoke", dataset="secret", reason="r", key="g2").status_code == 303
    assert service.store.record("grant", "eve@sales\tsecret") is None
    assert "no column" in officer.post(page, act="grant", dataset="reads", columns="x", reason="r", key="g3").text


def test_the_ledger_is_verified_and_exported(service, officer):
    """The export has every line of every chain, with the hashed text."""
    officer.get("/officer/ledger")
    assert "<strong>Sound.</strong>" in officer.post("/officer/ledger").text
    lines = officer.get("/officer/ledger.jsonl").text.splitlines()
    assert len(lines) == sum(head.seq for head in service.store.heads())


def test_the_ledger_is_filtered_and_what_is_filtered_exported(service, officer):
    """A query is one entry: who asked what, for how much; CSV and JSON have the same entries as the page."""
    assert service.ask(KNOWN, mechanism="laplace", epsilon=1).status_code == 200
    shown = officer.get("/officer/ledger?kind=queries").text
    assert "<h2>1 entry</h2>" in shown
    assert "Users by country" in shown
    assert "of its budget" in shown
    rows = list(csv.DictReader(officer.get("/officer/ledger.csv?kind=queries").text.splitlines()))
    (found,) = officer.get("/officer/ledger.json?kind=queries").json()
    assert [(row["account"], row["kind"], row["what"]) for row in rows] == [
        ("ann@sales", "answered", "Users by country")
    ]
    assert float(rows[0]["epsilon_charged"]) == found["charges"][0]["epsilon_charged"] > 0
    assert len(officer.get("/officer/ledger.json?kind=all").json()) > 5
    assert officer.get("/officer/ledger.json?account=sales&kind=queries").json() == [found]
    assert officer.get("/officer/ledger.json?dataset=secret&kind=queries").json() == []
    assert officer.get("/officer/ledger.json?until=2000-01-01&since=1999-01-01").json() == []
    assert officer.get("/officer/ledger?since=2026-02-30").status_code == 422
    assert "There is no day 2026-02-30" in officer.get("/officer/ledger?since=2026-02-30").text
    assert officer.get("/officer/ledger.csv?kind=no").status_code == 422


def test_a_reason_cannot_compute_in_a_spreadsheet(service, officer):
    """A text that begins like a formula is exported with an apostrophe before it."""
    service.act("PATCH", "/v1/admin/accounts/ann@sales", mode="observe", reason="=1+1")
    rows = csv.DictReader(officer.get("/officer/ledger.csv?kind=account").text.splitlines())
    assert "'=1+1" in {row["reason"] for row in rows}


def test_an_export_says_that_earlier_lines_are_in_an_archive(service):
    """The last row of CSV and the last element of JSON have the time before which lines were removed."""
    first = service.clock().date()
    service.clock.pass_(days=10)
    service.act("POST", "/v1/admin/clock")
    assert service.ask(KNOWN, mechanism="laplace", epsilon=0.2).status_code == 200
    service.manager.prune(microseconds(service.clock()) - 5 * DAY_US, ACT, list)
    officer = Browser(service)
    officer.log_in(service.keys["officer"])
    rows = list(csv.DictReader(officer.get(f"/officer/ledger.csv?kind=queries&since={first}").text.splitlines()))
    entries = officer.get(f"/officer/ledger.json?kind=queries&since={first}").json()
    for last in (rows[-1], entries[-1]):
        assert (last["kind"], last["time"][:10]) == ("incomplete", str(service.clock().date()))


def test_a_cut_below_what_is_spent_is_explained(service, officer):
    """The limit is shown as it was set; the guarantee is higher, and the page says why."""
    assert service.ask(KNOWN, mechanism="laplace", epsilon=1).status_code == 200
    officer.get(ANN)
    assert officer.post(ANN, act="apply", epsilon="0.25", delta="1e-6", reason="a cut").status_code == 303
    shown = officer.get(ANN).text
    assert "The limit is ε 0.25 at δ 1e-6." in shown
    assert "More is spent than the limit allows" in shown
    assert "because more was spent before the limit was lowered" in shown


def test_a_limit_in_units_is_shown_in_them_with_epsilon_beside(service, officer):
    """And the ledger has the old and the new value, each in its unit."""
    service.act("PATCH", "/v1/admin/accounts/ann@sales", limit={"preset": "linkedin"})
    shown = officer.get(ANN).text
    assert "The limit is 3,000 units of information and 30 calls, which is &epsilon; 33.8" in shown
    assert re.search(r"<del>[^<]+</del> &rarr; 3,000 units of information", officer.get("/officer/ledger").text)


def test_the_catalog_shows_labels_limits_and_retention(officer):
    """What analysts may ask, without a number of rows or users."""
    shown = officer.get("/officer/catalog").text
    assert re.search(r"Top k: at most [\d,]+ items", shown)
    assert re.search(r"Rows are kept for [\d,]+ days|does not say how long rows are kept", shown)


def test_an_administrator_creates_a_key_that_is_shown_once_and_revokes_it(service):
    """The new key can log in until it is revoked."""
    admin = Browser(service)
    admin.log_in(service.keys["admin"])
    admin.get("/officer/keys")
    made = admin.post("/officer/keys", role="analyst", account="ann@sales", reason="new")
    key = re.search(r"dsc_[0-9a-f]{16}_[0-9a-f]{64}", made.text)[0]
    assert key not in admin.get("/officer/keys").text
    ann = Browser(service)
    assert ann.log_in(key).status_code == 303
    assert admin.post("/officer/keys", act="revoke", name=key[4:20], reason="gone", key="r").status_code == 303
    assert ann.get("/ask").status_code == 303


def test_spending_counts_analysts_and_not_the_accounts_above_them(service, officer):
    """The page and the API have the same numbers."""
    assert service.ask(KNOWN, mechanism="laplace", epsilon=1).status_code == 200
    found = service.send("GET", "/v1/admin/spending?days=7", "officer").json()
    assert len(found["days"]) == 7
    assert {each["account"] for each in found["accounts"]} == {"ann@sales", "sales"}
    assert found["analysts"] == 1
    assert all(each["rho"][-1] > 0 and not any(each["rho"][:-1]) for each in found["accounts"])
    shown = officer.get("/officer").text
    assert "The analyst that spent something in the last 30 days has not used 25 % of a limit yet" in shown
    assert "<polyline" not in shown
    service.act("PATCH", "/v1/admin/accounts/ann@sales", limit={"epsilon": 1, "delta": "1e-6"})
    shown = officer.get("/officer").text
    assert "Of 1 analyst that" in shown
    assert shown.count("<polyline") == len(found["reached"]) == 4
    assert "Within" not in shown, "the first charge was today"


def test_an_officer_cuts_epsilon_alone(service, officer):
    """An empty delta stays as it is, in the preview and in what is applied, to the last digit."""
    before = service.balance().account
    officer.get(ANN)
    assert "Nothing has been changed" in officer.post(ANN, act="preview", epsilon="0.5").text
    assert officer.post(ANN, act="apply", epsilon="0.5", reason="a cut").status_code == 303
    after = service.balance().account
    assert after.limit.rho < before.limit.rho
    assert after.delta == before.delta
    assert "needs epsilon" in officer.post(ANN, act="preview", delta="1e-7").text.lower()


def test_a_change_of_an_observed_account_is_not_followed_by_its_denial(officer):
    """Only a preview that was asked for says that nothing has been changed."""
    officer.get(ANN)
    answer = officer.post(ANN, act="apply", mode="observe", reason="a trial")
    shown = officer.get(answer.headers["location"]).text
    assert "Done, and written to the" in shown
    assert "This account is observed" in shown
    assert "Nothing has been changed" not in shown


def test_an_officer_publishes_a_saved_table(service, officer):
    """Tables can be published, not views; the accounts below the parent read it free, until that ends."""
    counts = "SELECT country, COUNT(DISTINCT reader) AS n FROM reads GROUP BY country"
    for name in ("TABLE saved.top", "VIEW saved.v"):
        service.send("POST", "/v1/sql", json={"sql": f"CREATE {name} AS {counts}", "epsilon": 4})
    shown = officer.get(ANN).text
    assert '"Reason to publish top"' in shown
    assert "publish v" not in shown
    assert officer.post(ANN, act="publish", table="v", reason="for all").status_code == 404
    officer.get(ANN)
    assert officer.post(ANN, act="publish", table="top").status_code == 400
    officer.get(ANN)
    assert officer.post(ANN, act="publish", table="top", reason="for all").headers["location"].endswith("done=publish")
    assert [table["name"] for table in service.send("GET", "/v1/tables", "bob").json()["tables"]] == ["ann@sales.top"]
    assert '"Reason to unpublish top"' in officer.get(ANN).text
    officer.post(ANN, act="unpublish", table="top", reason="no more")
    assert service.send("GET", "/v1/tables", "bob").json()["tables"] == []
