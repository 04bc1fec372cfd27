"""Queries and actions from the ledger: the lines of each together, in words, and nothing of an answer."""

from __future__ import annotations

import json
from fractions import Fraction
from types import SimpleNamespace

import pytest

from discreet.accounting.convert import epsilon_tight
from discreet.budget.rules import DAY_US, microseconds
from discreet.errors import EngineError
from tests.budget.suite import ACT
from tests.service.deployment import KNOWN

ACTIVITY, SPENDING = "/v1/admin/activity", "/v1/admin/spending"


def activity(service, **filters):
    """Return the page of activity."""
    reply = service.send("GET", ACTIVITY, "officer", params=filters)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_query_is_one_entry_with_what_it_held_and_was_charged(service):
    """Its lines are together; epsilon is that of the charge alone, at the delta of each account on the path."""
    assert service.ask(KNOWN, mechanism="laplace", epsilon=1).status_code == 200
    (found,) = activity(service, kind="queries")["activity"]
    assert (found["kind"], found["account"], found["dataset"]) == ("answered", "ann@sales", "reads")
    assert found["question"]["items"] == ["country"]
    assert (found["mechanism"], found["where"], len(found["lines"])) == ("known-laplace", None, 3)
    assert [charge["account"] for charge in found["charges"]][:2] == ["ann@sales", "sales"]
    balance = service.balance()
    own, conversion = found["charges"][0], float(balance.account.delta - balance.account.limit.delta)
    assert Fraction(own["charged"]["rho"]) == pytest.approx(balance.used.rho)
    assert own["epsilon_charged"] == pytest.approx(epsilon_tight(float(balance.used.rho), conversion), rel=1e-6)
    assert own["share_charged"] == pytest.approx(float(balance.used.rho / balance.account.limit.rho), rel=1e-6)
    assert own["held"]["rho"] >= own["charged"]["rho"]


def test_every_outcome_of_a_query_is_told(service):
    """Answered, repeated for another account, refused, failed and suspended; a free repetition leaves no line."""
    for who in ("ann", "ann", "bob"):
        assert service.ask(KNOWN, who, mechanism="laplace", epsilon=1).status_code == 200
    service.act("PATCH", "/v1/admin/accounts/ann@sales", limit={"epsilon": 0.5, "delta": "1e-6"})
    assert service.ask(KNOWN, mechanism="laplace", epsilon=2).status_code == 403
    service.act("POST", "/v1/admin/accounts/bob@sales/suspend")
    assert service.ask(KNOWN, "bob", mechanism="laplace", epsilon=0.2).status_code == 403
    service.act("POST", "/v1/admin/accounts/bob@sales/lift")

    def fail(*_):
        raise EngineError("the engine is down")

    service.engines.head = fail
    service.ask(who="bob", epsilon=0.1)
    found = activity(service, kind="queries")["activity"]
    assert [(each["kind"], each["account"]) for each in reversed(found)] == [
        ("answered", "ann@sales"),
        ("repeated", "bob@sales"),
        ("refused", "ann@sales"),
        ("refused", "bob@sales"),
        ("failed", "bob@sales"),
    ]
    assert found[0]["charges"][0]["share_charged"] > 0  # a failed query stays charged
    assert found[2]["needed"]["account"] == found[2]["refused_by"] == "ann@sales"
    assert found[2]["needed"]["share_held"] > 1
    assert all(each["question"]["dataset"] == "reads" for each in found)
    assert all(activity(service, kind=each["kind"])["count"] for each in found)


def test_the_ledger_says_which_columns_a_query_filtered_and_no_constant(service):
    """Of a refused query, too, which has no stored answer that says more."""
    service.act("PATCH", "/v1/admin/accounts/ann@sales", limit={"epsilon": 0.5, "delta": "1e-6"})
    filtered = KNOWN.replace("reads", "reads WHERE country = 'IN' AND article <> 'secret'", 1)
    for epsilon, status in ((2, 403), (0.1, 200)):
        assert service.ask(filtered, mechanism="laplace", epsilon=epsilon).status_code == status
    refused = activity(service, kind="refused")["activity"]
    assert [each["where"] for each in refused] == ["article, country"]
    bodies = [line.body for line in service.store.lines()]
    assert sum('"where":["article","country"]' in body for body in bodies) == 2
    assert "secret" not in "".join(bodies)


def test_a_preview_reads_the_account_alone_and_says_since_when(service, monkeypatch):
    """Queries of other accounts and of times that are not read do not count."""

    def preview(who):
        path = f"/v1/admin/accounts/{who}/preview"
        return service.send("POST", path, "officer", json={"limit": {"epsilon": 0.5, "delta": "1e-6"}}).json()

    for n in range(1, 4):
        service.clock.pass_(seconds=60)
        assert service.ask(KNOWN, mechanism="laplace", epsilon=n / 4).status_code == 200
    assert service.ask(KNOWN, "bob", mechanism="laplace", epsilon=1).status_code == 200
    whole = preview("ann@sales")
    assert (whole["queries"], whole["refused"]) == (3, 1)
    assert preview("sales")["queries"] == 4, "those of the accounts below it are its own"
    monkeypatch.setattr("discreet.service.officer.admin.MAX_PREVIEW_EVENTS", 2)
    last = preview("ann@sales")
    assert (last["queries"], last["refused"]) == (2, 1)
    assert last["since"] > whole["since"]


def test_actions_show_old_and_new_values_and_the_name_behind_a_key(service):
    """Also once the key is revoked."""
    made = service.send(
        "POST", "/v1/admin/keys", "admin", json={"roles": ["officer"], "label": "Olga", "reason": "new"}
    ).json()
    olga = {"headers": {"Authorization": f"Bearer {made['key']}"}}
    limit = {"epsilon": 2, "delta": "1e-6"}
    service.send("PATCH", "/v1/admin/accounts/ann@sales", None, json={"limit": limit, "reason": "a cut"}, **olga)
    for dataset, columns in (("reads", ["country"]), ("secret", None)):
        body = {"columns": columns, "reason": "r"}
        service.send("PUT", f"/v1/admin/grants/bob@sales/{dataset}", None, json=body, **olga)
    service.send("DELETE", "/v1/admin/grants/bob@sales/reads?reason=done", None, **olga)
    service.send("DELETE", f"/v1/admin/keys/{made['id']}?reason=left", "admin")
    (cut, *_) = activity(service, kind="account", account="ann@sales")["activity"]
    assert (cut["name"], cut["actor"], cut["reason"]) == ("Olga", f"key:{made['id']}", "a cut")
    (change,) = cut["changes"]
    assert (change["setting"], change["new"]) == ("limit", "ε 2 at δ 1e-6")
    assert change["old"] not in {None, change["new"]}
    revoked, _, given = activity(service, kind="grant", account="bob@sales")["activity"]
    assert given["changes"] == [{"setting": "columns", "old": None, "new": "country"}]
    assert revoked["changes"] == [{"setting": "columns", "old": "country", "new": None}]
    gone, made_ = activity(service, kind="key")["activity"][:2]
    assert {"setting": "state", "old": "valid", "new": "revoked"} in gone["changes"]
    assert {"setting": "label", "old": None, "new": "Olga"} in made_["changes"]
    assert made["key"] not in json.dumps(activity(service, kind="all"))


def test_pages_and_filters_lose_nothing(service):
    """All pages together are the whole; kinds split it; a parent's filter includes the accounts below it."""
    assert service.ask(KNOWN, mechanism="laplace", epsilon=1).status_code == 200
    whole = activity(service, kind="all", limit=1_000)
    pages, after = [], None
    while after is not None or not pages:
        page = activity(service, kind="all", limit=3, **({} if after is None else {"after": after}))
        pages, after = pages + page["activity"], page["next"]
    assert pages == whole["activity"]
    assert len(pages) == whole["count"]
    lines = [line for each in pages for line in each["lines"]]
    assert len(lines) == len(set(lines)) == sum(head.seq for head in service.store.heads())
    parts = [activity(service, kind=kind, limit=1_000)["count"] for kind in ("queries", "changes", "upkeep")]
    assert sum(parts) == whole["count"]
    assert activity(service, account="sales", kind="queries")["count"] == 1
    assert activity(service, account="bob@sales", kind="queries")["count"] == 0
    assert activity(service, dataset="secret", kind="queries")["count"] == 0


@pytest.mark.parametrize("most", [0, 1, 4096])
def test_entries_are_the_same_however_many_answers_are_read_at_once(service, monkeypatch, most):
    """What was read of them is forgotten when it is too much, but never that of entries which are shown next."""
    for n, who in enumerate(("ann", "bob", "ann", "bob", "ann")):
        filtered = KNOWN.replace("reads", f"reads WHERE article <> 'x{n // 2}'", 1)
        assert service.ask(filtered, who, mechanism="laplace", epsilon=0.2).status_code == 200
    whole = activity(service, kind="queries")["activity"]
    assert {(each["mechanism"], each["where"]) for each in whole} == {
        ("known-laplace", f"article <> 'x{n}'") for n in range(3)
    }
    assert [each["kind"] for each in reversed(whole)] == ["answered", "repeated"] * 2 + ["answered"]
    monkeypatch.setattr("discreet.service.officer.activity._RELEASES_AT_ONCE", 2)
    monkeypatch.setattr("discreet.service.officer.activity._MAX_STORED", most)
    assert activity(service, kind="queries")["activity"] == whole


def test_the_largest_share_comes_first_with_what_it_was_spent_on(service):
    """Accounts by the share of their limits; the question is that which cost most."""
    for epsilon in (0.1, 1):
        assert service.ask(KNOWN, mechanism="laplace", epsilon=epsilon).status_code == 200
    assert service.ask(epsilon=0.01, who="bob").status_code == 200
    ann, bob = activity(service)["spent"]
    assert (ann["account"], ann["queries"], ann["question"]["items"]) == ("ann@sales", 2, ["country"])
    assert bob["account"] == "bob@sales"
    assert ann["share"] > bob["share"] > 0
    assert ann["question_share"] == pytest.approx(1)


@pytest.mark.parametrize("wrong", [{"since": "2026-02-30"}, {"until": "today"}, {"kind": "no"}, {"after": "x"}])
def test_a_filter_that_is_wrong_is_refused(service, wrong):
    """With a sentence."""
    reply = service.send("GET", ACTIVITY, "officer", params=wrong)
    assert (reply.status_code, reply.json()["type"]) == (422, "/problems/out-of-range")


def test_the_index_is_the_same_however_the_ledger_was_read(service, monkeypatch):
    """Line by line, with events that begin in one part and end in another, at once, and made again by verify."""
    monkeypatch.setattr("discreet.budget.stores.ledger_index.LINES_AT_ONCE", 1)
    for epsilon in (0.1, 0.2):
        assert service.ask(KNOWN, mechanism="laplace", epsilon=epsilon).status_code == 200
        pieces = activity(service, kind="all", limit=1_000), service.send("GET", SPENDING, "officer").json()
    monkeypatch.undo()
    assert service.act("POST", "/v1/admin/ledger/verify").json()["sound"]
    assert (activity(service, kind="all", limit=1_000), service.send("GET", SPENDING, "officer").json()) == pieces
    assert [len(each["lines"]) for each in pieces[0]["activity"] if each["kind"] == "answered"] == [3, 3]
    spent = {each["account"]: sum(each["rho"]) for each in pieces[1]["accounts"]}
    assert spent["ann@sales"] == pytest.approx(float(service.balance().used.rho))


def test_old_ranges_of_a_long_ledger_are_exported_whole(service, monkeypatch):
    """However many later lines there are, and in pages that are smaller than the range."""
    monkeypatch.setattr("discreet.service.officer.admin._EXPORTED_AT_ONCE", 2)
    for n in range(5):
        assert service.ask(KNOWN, mechanism="laplace", epsilon=0.1 + n / 100).status_code == 200
    first = service.clock().date()
    service.clock.pass_(days=10)
    service.act("POST", "/v1/admin/clock")
    for n in range(5):
        assert service.ask(KNOWN, mechanism="laplace", epsilon=0.2 + n / 100).status_code == 200
    range_ = {"since": str(first), "until": str(first), "kind": "queries"}
    parameters = dict.fromkeys(("account", "dataset")) | range_
    complete_from, entries = service.opened.admin_api.export_activity(SimpleNamespace(parameters=parameters))
    exported = [each.model_dump(mode="json") for each in entries]
    assert complete_from is None
    assert exported == activity(service, **range_)["activity"]
    assert len(exported) == 5


def test_pages_say_from_when_on_nothing_was_removed(service):
    """Lines that prune removed are in no list; a later rebuild changes nothing."""
    assert service.ask(KNOWN, mechanism="laplace", epsilon=0.1).status_code == 200
    first = service.clock().date()
    service.clock.pass_(days=10)
    service.act("POST", "/v1/admin/clock")
    assert service.ask(KNOWN, mechanism="laplace", epsilon=0.2).status_code == 200
    assert activity(service, since=str(first), kind="queries")["count"] == 2
    service.manager.prune(microseconds(service.clock()) - 5 * DAY_US, ACT, list)
    page = activity(service, since=str(first), kind="queries")
    assert (page["count"], page["since"][:10]) == (1, str(service.clock().date()))
    service.act("POST", "/v1/admin/ledger/verify")
    assert activity(service, since=str(first), kind="queries") == page
