"""POST /v1/estimate: the worst case of a query, without reading data or reserving budget."""

from __future__ import annotations

import pytest

from discreet.budget.model import Account
from discreet.values import Cost, float_above
from tests.service.deployment import ACT, TOP


def test_an_estimate_reads_no_data_and_reserves_nothing(service):
    """No head is read, nothing is reserved, no line is written."""
    heads = service.store.heads()
    service.no_engine()
    answer = service.estimate()
    assert answer.status_code == 200
    assert service.balance().spent == Cost()
    assert service.store.heads() == heads


def test_an_estimate_is_the_worst_case_of_the_query(service):
    """Mechanism, guarantee and query are the same; the charge is at most the estimate."""
    body = service.estimate(epsilon=2).json()
    answer = service.ask(epsilon=2).json()
    assert body["mechanism"] == answer["mechanism"]
    assert body["question"] == answer["question"]
    assert body["privacy"] == answer["privacy"]
    assert body["worst_cost"]["rho"] == body["privacy"]["rho"]
    assert answer["charged"]["rho"] <= body["worst_cost"]["rho"]
    assert body["expected"]["max_std_error"] == answer["items"][0]["std_error"]


def test_an_estimate_covers_all_accounts_of_the_path(service):
    """Account and parents, with the remaining budget before and after the query."""
    body = service.estimate(epsilon=4).json()
    assert [(fit["account"], fit["fits"]) for fit in body["accounts"]] == [("ann@sales", True), ("sales", True)]
    own = body["accounts"][0]
    assert own["left"]["rho"] - own["left_after"]["rho"] == pytest.approx(body["worst_cost"]["rho"])
    assert body["fits"]
    service.manager.store.charge("sales", service.balance("sales").remaining, ACT)
    body = service.estimate(epsilon=4).json()
    assert [fit["fits"] for fit in body["accounts"]] == [True, False]
    assert not body["fits"]
    assert body["accounts"][1]["left_after"] == {"rho": 0.0, "delta": 0.0}


def test_an_estimate_of_a_paid_query_is_free(service):
    """It then fits any remaining budget; for another analyst it does not."""
    assert not service.estimate().json()["paid"]
    service.ask()
    assert all(fit["left_after"] == fit["left"] for fit in service.estimate().json()["accounts"])
    service.manager.store.charge("ann@sales", service.balance().remaining, ACT)
    body = service.estimate().json()
    assert body["paid"]
    assert body["fits"]
    assert not service.estimate(who="bob").json()["paid"]
    assert not service.estimate(epsilon=1.5).json()["fits"]


def test_an_estimate_for_an_account_with_units_is_in_units(service):
    """2 k + 1 and the choice of the cut-off, and one call."""
    service.manager.store.create(Account.of_units("units"), ACT)
    service.grant("units", "reads")
    body = service.estimate(who=service.make_key("units"), epsilon_per="0.15").json()
    assert (body["information"], body["calls"]) == (2 * 5 + 1, 1)
    assert body["worst_cost"]["rho"] == float_above(
        service.manager.store.account("units").units.epsilon_per ** 2 / 8 * 11
    )
    assert service.estimate().json()["information"] is None


def test_errors_of_sums_are_in_the_column_s_own_units(service):
    """The units are whole minutes here."""
    body = service.estimate("SELECT article, SUM(minutes) FROM reads GROUP BY article LIMIT 3", epsilon=4).json()
    answer = service.ask("SELECT article, SUM(minutes) FROM reads GROUP BY article LIMIT 3", epsilon=4).json()
    assert body["expected"]["sum_std_error"] == answer["items"][0]["std_error"]
    assert body["expected"]["max_std_error"] is None


def test_a_delta_that_is_too_large_is_refused_and_smaller_ones_have_no_note(service):
    """It is not far below one over the number of users, and would use much of shared accounts."""
    assert service.estimate(delta="0.001").status_code == 422
    assert service.estimate().json()["notes"] == []


def test_an_estimate_returns_the_problems_of_the_query(service):
    """An estimate of an impossible query has the problem of the query, and reserves nothing."""
    assert service.estimate(TOP.replace("article", "hidden")).status_code == 404
    assert service.estimate("SELECT").status_code == 400
    assert service.estimate(epsilon=9).status_code == 422
    assert service.estimate(who=None).status_code == 401
