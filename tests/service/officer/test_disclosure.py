"""Disclosures of accounts and datasets: what is promised, from the ledger, and nothing that is protected."""

from __future__ import annotations

import hashlib

import jsonschema
import pytest
import yaml

from discreet.budget.model import Account, Calendar
from discreet.wire.disclosure import Disclosure, to_yaml
from tests.registry import SCHEMA
from tests.service.deployment import CHECKPOINTS, DELTA, KNOWN, TOP, slug, usual_accounts

STATED = """
[disclosure]
name = "Reading figures"
curators = ["The Library"]
region = "Europe"
description = "Readers by article."
intended_use = "Planning."
justification = "The committee chose epsilon."
"""


def disclosed(service, **asked):
    """Return a disclosure as an officer gets it."""
    reply = service.send("GET", "/v1/admin/disclosure", "officer", params=asked)
    assert reply.status_code == 200, reply.text
    return Disclosure.model_validate_json(reply.content)


def test_an_account_discloses_its_guarantee_its_mechanisms_and_its_last_checkpoint(services):
    """All from the store, the catalog and the settings; a repeated answer is one answer."""
    service = services(rest=CHECKPOINTS + STATED)
    assert service.ask(KNOWN, mechanism="laplace", epsilon=1).status_code == 200
    assert service.ask(KNOWN, who="bob", mechanism="laplace", epsilon=1).status_code == 200
    assert service.ask(TOP, mechanism="gumbel").status_code == 200
    service.maintenance.once()
    found = disclosed(service)
    assert (found.kind, found.subject, found.answers) == ("account", "sales", 2)
    promised = service.manager.get("sales").guarantee
    assert (found.privacy.epsilon, found.privacy.delta, found.privacy.rho) == (
        promised.epsilon,
        promised.delta,
        promised.rho,
    )
    assert found.period == "All answers in any 30 days"
    assert {use.name: use.answers for use in found.mechanisms} == {"known-laplace": 1, "unknown-gumbel": 1}
    assert found.first_answer.startswith("2026-11-20T12:00:00")
    assert {about.name for about in found.datasets} == {"reads", "daily", "loose", "broken"}
    columns = next(about.columns for about in found.datasets if about.name == "reads")
    assert columns == ["article", "country", "minutes", "day"], "hidden is granted to no account"
    last = (service.folder / "checkpoints").read_text().strip().splitlines()[-1]
    assert found.checkpoint == hashlib.sha256(last.encode()).hexdigest()
    assert "reads: where rows count, at most 3 of each user and group." in found.exclusions
    assert "reads: what each user adds to a sum of minutes is clipped to 0 to 60." in found.exclusions


def test_the_entry_of_the_registry_fits_its_schema(services):
    """Of an account and of a dataset; only the section disclosure is typed by hand."""
    service = services(rest=STATED)
    assert service.ask(KNOWN, mechanism="laplace", epsilon=1).status_code == 200
    for asked in ({}, {"dataset": "reads"}):
        entry = yaml.safe_load(to_yaml(disclosed(service, **asked).registry_entry()))
        jsonschema.validate(entry, SCHEMA)
        assert entry["deployment"]["basic"]["publication_date"] == "2026-11-20"


def test_a_dataset_discloses_the_sum_over_all_accounts_that_may_query_it(services):
    """Two roots add up, and a calendar limit counts twice; an account without a grant does not count."""
    more = [Account.of_epsilon(name, 1.0, DELTA, period=Calendar("month")) for name in ("press", "idle")]
    service = services(accounts=[*usual_accounts(), *more])
    alone = disclosed(service, dataset="reads").privacy
    assert alone.rho == service.manager.get("sales").guarantee.rho
    service.grant("press", "reads", ["article"])
    both = disclosed(service, dataset="reads")
    assert {each.account for each in both.accounts} == {"sales", "press"}
    assert both.privacy.rho == pytest.approx(
        sum(service.manager.get(name).guarantee.rho for name in ("sales", "press"))
    )
    assert both.privacy.delta > alone.delta
    assert any("press" in line for line in disclosed(service, account="sales").limits)
    assert slug(service.send("GET", "/v1/admin/disclosure", "officer")) == "out-of-range"  # which of three?


def test_an_answer_that_two_roots_paid_for_is_one_answer_of_the_dataset(services):
    """Both are charged, and nothing more was published."""
    press = Account.of_epsilon("press", 5.0, DELTA, period=Calendar("month"))
    service = services(accounts=[*usual_accounts(), press])
    service.grant("press", "reads", None)
    key = service.make_key("press")
    assert service.ask(KNOWN, mechanism="laplace", epsilon=1, delta="1e-9").status_code == 200
    body = {"sql": KNOWN, "mechanism": "laplace", "epsilon": 1, "delta": "1e-9"}
    assert service.send("POST", "/v1/query", key, json=body).status_code == 200
    found = disclosed(service, dataset="reads")
    assert {each.account for each in found.accounts} == {"sales", "press"}
    assert found.answers == 1
    assert {use.name: use.answers for use in found.mechanisms} == {"known-laplace": 1}


def test_a_revoked_grant_leaves_what_was_answered(services):
    """The answers of an account count, also once it may not query any more."""
    service = services()
    assert service.ask(KNOWN, mechanism="laplace", epsilon=1).status_code == 200
    service.revoke("sales", "reads")
    assert [each.account for each in disclosed(service, dataset="reads").accounts] == ["sales"]
    service.revoke("sales", "daily")
    found = disclosed(service, dataset="daily")
    assert (found.accounts, found.privacy, found.answers) == ([], None, 0)


def test_an_observed_account_promises_nothing(service):
    """The page says so, and the entry of the registry has no parameters."""
    service.act("PATCH", "/v1/admin/accounts/sales", mode="observe")
    found = disclosed(service)
    assert found.privacy is None
    assert any("only observed" in line for line in found.limits)


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"account": "ann@sales"}, "out-of-range"),
        ({"account": "nobody"}, "not-found"),
        ({"dataset": "nothing"}, "not-found"),
        ({"dataset": "reads", "account": "sales"}, "out-of-range"),
    ],
)
def test_what_cannot_be_disclosed_is_refused(service, asked, kind):
    """One sentence that says what can."""
    assert slug(service.send("GET", "/v1/admin/disclosure", "officer", params=asked)) == kind


def test_officers_alone_disclose_accounts(service):
    """An analyst does not see the accounts of others."""
    assert service.send("GET", "/v1/admin/disclosure").status_code == 403
