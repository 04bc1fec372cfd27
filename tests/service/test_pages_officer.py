"""The officers' pages over plain HTTP, and the preview that they show."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import pytest

from discreet.accounting.advice import averaging, differencing
from discreet.budget.ledger import Entry
from discreet.budget.ledger_replay import days_until, preview, spent_by_day
from discreet.budget.model import Account, Amount, Forever, Sliding, Tally
from discreet.budget.periods import DAY_US
from discreet.errors import EngineError
from discreet.noise import SystemBits
from discreet.service.pages.simulator import Parameters, released_counts, simulate
from discreet.values import Cost

from .deployment import KNOWN
from .test_pages import Browser

ANN = "/officer/accounts/ann@sales"


@pytest.fixture
def officer(service):
    """Return the browser of a privacy officer."""
    browser = Browser(service)
    assert browser.log_in(service.keys["officer"]).status_code == 303
    return browser


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
    assert "<strong>1 of 1</strong> queries" in shown.text
    assert service.balance().account.limit == limit
    assert officer.post(ANN, act="apply", epsilon="0.5", delta="1e-6", reason="a cut").status_code == 303
    assert service.balance().account.limit.rho < limit.rho
    assert service.ask(KNOWN, mechanism="laplace", epsilon=1.5).status_code == 403
    assert "a cut" in officer.get("/officer/ledger").text


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


def test_the_simulator_agrees_with_the_functions_that_choose_parameters(officer):
    """Its attacks are those of `discreet.accounting.advice`, and its budget ends where k* or l* does."""
    tried = Parameters(Fraction("0.15"), Fraction("1e-10"), 1_000, 3_000, 100, 10, 30, 10_000)
    found = simulate(tried, SystemBits)
    assert found.items == 10
    assert found.steps == 20
    assert found.queries == 100
    assert simulate(replace(tried, information=90), SystemBits).queries == 4
    assert found.averaging == averaging(0.15, 30, noise="gaussian")
    assert found.differencing == differencing(0.15, noise="gaussian")
    shown = officer.get("/officer/simulator").text
    assert "100 <span>queries until the budget is exhausted" in shown
    for wrong in ("0", "many", "1e-999999999", "nan", "inf"):
        assert "epsilon_per must be" in officer.get(f"/officer/simulator?epsilon_per={wrong}").text.lower()
    assert "k must be" in officer.get("/officer/simulator?k=2000&head_limit=20000").text.lower()


def test_the_simulator_takes_the_counts_of_an_answer_as_they_are_copied_or_saved(officer):
    """No item beyond them is shown, and a line without a count is reported."""
    assert released_counts("300\n-4\n\n1200.7") == [1201, 300, 0]
    assert released_counts("article\tusers\t95 % interval\na1\t12\t9\na2\t40\t37") == [40, 12]
    assert released_counts('"rank","article","count"\n1,"a 1",7') == [7]
    officer.get("/officer/simulator")
    assert "A query returns 2 of the 10 items" in officer.post("/officer/simulator", counts="a,4000\nb,3000").text
    assert "Line 2 of the counts" in officer.post("/officer/simulator", counts="a,1\nb,few").text


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


def test_an_observed_account_shows_what_it_would_have_refused(service, officer):
    """An officer sees the effect of enforcement before it is set."""
    service.act("PATCH", "/v1/admin/accounts/ann@sales", mode="observe", limit={"epsilon": 0.5, "delta": "1e-6"})
    assert service.ask(KNOWN, mechanism="laplace", epsilon=1).status_code == 200
    assert "<strong>1 of 1</strong> queries" in officer.get(ANN).text


def test_an_officer_creates_an_account_grants_and_revokes(service, officer):
    """Each form performs the operation of the API, and needs a reason."""
    officer.get("/officer")
    new = {"account": "eve@sales", "parent": "sales", "epsilon": "2", "delta": "1e-7", "days": "30"}
    assert "reason" in officer.post("/officer", **new).text
    assert officer.post("/officer", **new, reason="new").headers["location"] == "/officer/accounts/eve@sales"
    page = "/officer/accounts/eve@sales"
    officer.get(page)
    assert officer.post(page, act="grant", dataset="secret", columns="article", reason="r", key="g1").status_code == 303
    assert "secret" in officer.get(page).text
    assert officer.post(page, act="revoke", dataset="secret", reason="r", key="g2").status_code == 303
    assert service.store.record("grant", "eve@sales\tsecret") is None
    assert "no column" in officer.post(page, act="grant", dataset="reads", columns="x", reason="r", key="g3").text


def test_the_ledger_is_verified_and_exported(service, officer):
    """The export has every line of every chain, with the hashed text."""
    officer.get("/officer/ledger")
    assert "<strong>Sound.</strong>" in officer.post("/officer/ledger").text
    lines = officer.get("/officer/ledger.jsonl").text.splitlines()
    assert len(lines) == sum(head.seq for head in service.store.heads())


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


def query_lines(day, name, worst, actual=None):
    """Return the lines of a query that held *worst* and cost *actual*."""
    time = day * DAY_US
    yield Entry(time, "reserve", name, "{}", [("a", 0, Tally(held=Amount(worst, 0)))])
    if actual is not None:
        yield Entry(time + 1, "settle", name, "{}", [("a", 0, Tally(Amount(actual, 0), Amount(-worst, 0)))])


def account_of(quanta, period):
    """Return an account with a limit of so many quanta of rho."""
    return Account("a", Cost(Fraction(quanta, 10**18)), Fraction(1, 10**6), None, period)


def test_a_preview_refuses_by_the_rule_that_refuses_queries():
    """Worst cases are held, actual costs stay, refused queries cost nothing, and old charges stop counting."""
    queries = [(0, "q1", 5, 3), (1, "q2", 5, 4), (2, "q3", 3, 3), (40, "q4", 8, 8)]
    entries = [line for query in queries for line in query_lines(*query)]
    for_ever = preview(entries, account_of(8, Forever()), 0)
    assert (for_ever.queries, for_ever.refused, for_ever.first_us) == (4, 2, 2 * DAY_US)
    sliding = preview(entries, account_of(8, Sliding(30)), 0)
    assert (sliding.queries, sliding.refused) == (4, 1)
    recent = preview(entries, account_of(8, Forever()), 3 * DAY_US)
    assert (recent.queries, recent.refused) == (1, 1)
    assert preview(entries, account_of(100, Forever()), 0).refused == 0


def test_the_spending_of_each_day_is_the_sum_of_the_ledger():
    """Charges and forfeits count; holds do not."""
    entries = [*query_lines(0, "q1", 5, 3), *query_lines(1, "q2", 5, 4), *query_lines(1, "q3", 2)]
    assert spent_by_day(entries, 0)["a"] == {0: Amount(3), 1: Amount(4)}
    assert spent_by_day(entries, DAY_US)["a"] == {1: Amount(4)}


def test_a_part_of_a_limit_is_reached_by_rho_or_delta_counted_from_the_first_charge():
    """Figure 5 of Rogers et al. (2021): analysts begin on different days."""
    spent = {2: Amount(), 3: Amount(20), 5: Amount(30, 5), 9: Amount(30, 5)}
    limit = Amount(100, 20)
    assert [days_until(spent, limit, percent) for percent in (20, 25, 50, 80, 81)] == [0, 2, 2, 6, None]
    assert days_until({4: Amount(0, 10)}, limit, 50) == 0
    assert days_until({4: Amount(10)}, Amount(100), 25) is None


def test_spending_counts_analysts_and_not_the_accounts_above_them(service, officer):
    """The page and the API have the same numbers."""
    assert service.ask(KNOWN, mechanism="laplace", epsilon=1).status_code == 200
    found = service.send("GET", "/v1/admin/spending?days=7", "officer").json()
    assert len(found["days"]) == 7
    assert {each["account"] for each in found["accounts"]} == {"ann@sales", "sales"}
    assert found["analysts"] == 1
    assert all(each["rho"][-1] > 0 and not any(each["rho"][:-1]) for each in found["accounts"])
    shown = officer.get("/officer").text
    assert "Of 1 analyst that" in shown
    assert shown.count("<polyline") == len(found["reached"]) == 4
