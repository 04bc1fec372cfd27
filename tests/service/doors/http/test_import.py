"""The import of people: all rows or none, a dry run that changes nothing, and what is already so stays."""

from __future__ import annotations

import pytest

from tests.service.deployment import slug

LIMIT = {"epsilon": 1, "delta": "1e-8"}
TEN = [
    {
        "account": f"p{n}@press",
        "parent": "press",
        "limit": LIMIT,
        "period": {"kind": "sliding", "days": 30},
        "roles": ["analyst"],
        "label": f"Person {n}",
    }
    for n in range(10)
]
PEOPLE = [{"account": "press", "limit": {"epsilon": 4, "delta": "1e-7"}, "grants": {"READS": ["Article"]}}, *TEN]


@pytest.fixture
def both(service):
    """Return the text of a key with both roles that an import with keys needs."""
    return service.make_key(None, ("officer", "admin"))


def send(service, who, people=PEOPLE, **more):
    """Import people."""
    key = more.pop("key", None)
    return service.send("POST", "/v1/admin/import", who, key=key, json={"reason": "a list", "people": people, **more})


def state(service):
    """Return accounts, grants, keys and the ends of the ledger."""
    records = [service.store.records(kind) for kind in ("key", "grant")]
    return service.store.accounts(), records, service.store.heads()


def test_people_get_accounts_grants_and_keys_at_once(service, both):
    """Each can query what was granted to the account above; a second import of the same list changes nothing."""
    assert send(service, both, PEOPLE[:-1]).status_code == 200
    reply = send(service, both).json()
    assert [person["change"] for person in reply["people"]] == ["unchanged"] * 10 + ["created"]
    assert reply["people"][0]["granted"] == []
    key = reply["people"][-1]["created"]["key"]
    datasets = service.send("GET", "/v1/datasets", key).json()["datasets"]
    assert [dataset["name"] for dataset in datasets] == ["reads"]
    before = state(service)
    again = send(service, both).json()["people"]
    assert {(person["change"], person["key"]) for person in again} == {
        ("unchanged", "none"),
        ("unchanged", "unchanged"),
    }
    assert state(service) == before
    service.manager.verify()


def test_a_dry_run_says_what_would_change_and_changes_nothing(service, both):
    """The same answer as the import, without secrets."""
    before = state(service)
    tried = send(service, both, dry_run=True)
    assert tried.status_code == 200
    assert state(service) == before
    assert all(person["created"] is None for person in tried.json()["people"])
    applied = send(service, both).json()
    fields = ("account", "change", "granted", "key")
    assert [[person[name] for name in fields] for person in tried.json()["people"]] == [
        [person[name] for name in fields] for person in applied["people"]
    ]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"account": "x", "parent": "missing", "limit": LIMIT}, "row 12: "),
        ({"account": "x"}, "row 12: the new account 'x' needs a limit"),
        ({"account": "ann@sales", "parent": "press"}, "row 12: the account 'ann@sales' is below 'sales'"),
        ({"account": "x", "limit": LIMIT, "grants": {"nothing": None}}, "row 12: there is no dataset 'nothing'"),
        (
            {"account": "x", "limit": LIMIT, "grants": {"reads": ["nothing"]}},
            "row 12: the dataset 'reads' has no column",
        ),
        ({"account": "x y", "limit": LIMIT}, "row 12: "),
    ],
)
def test_one_wrong_row_changes_nothing(service, both, wrong, sentence):
    """The message names the row."""
    before = state(service)
    reply = send(service, both, [*PEOPLE, wrong])
    assert slug(reply) == "out-of-range"
    assert reply.json()["detail"].startswith(sentence)
    assert state(service) == before


def test_a_limit_in_the_list_changes_an_account(service):
    """What the row leaves out stays."""
    reply = send(service, "officer", [{"account": "ann@sales", "limit": LIMIT}])
    assert reply.json()["people"][0]["change"] == "changed"
    account = service.store.account("ann@sales")
    assert (account.parent, account.period.days) == ("sales", 30)
    assert (
        send(service, "officer", [{"account": "ann@sales", "limit": LIMIT}]).json()["people"][0]["change"]
        == "unchanged"
    )


def test_keys_need_the_role_that_creates_keys(service):
    """An officer alone cannot make one by an import."""
    before = state(service)
    assert send(service, "officer").status_code == 403
    assert send(service, "admin").status_code == 403
    assert state(service) == before


def test_a_repeated_request_creates_no_second_key(service, both):
    """The secret was in the first response; what it changed is not changed again."""
    assert send(service, both, key="once").status_code == 200
    before = state(service)
    again = send(service, both, key="once")
    assert again.status_code == 200
    assert state(service) == before
    assert all(person["created"] is None for person in again.json()["people"])
