"""POST /v1/estimate: what a question could cost, without touching data or budget."""

from __future__ import annotations

import pytest

from discreet.budget.model import Account
from discreet.values import Cost, float_above

from .world import ACT, TOP


def test_an_estimate_touches_nothing(world):
    """No head is read, nothing is reserved, no line is written."""
    heads = world.store.heads()
    world.no_engine()
    answer = world.estimate()
    assert answer.status_code == 200
    assert world.balance().spent == Cost()
    assert world.store.heads() == heads


def test_an_estimate_is_the_worst_case_of_the_query(world):
    """The same mechanism, guarantee and question; what is charged is at most what was estimated."""
    told = world.estimate(epsilon=2).json()
    answer = world.ask(epsilon=2).json()
    assert told["mechanism"] == answer["mechanism"]
    assert told["question"] == answer["question"]
    assert told["privacy"] == answer["privacy"]
    assert told["worst_cost"]["rho"] == told["privacy"]["rho"]
    assert answer["charged"]["rho"] <= told["worst_cost"]["rho"]
    assert told["expected"]["std_error_most"] == answer["items"][0]["std_error"]


def test_an_estimate_says_what_fits_on_the_whole_path(world):
    """Account and parents, with what is left and what would be left."""
    told = world.estimate(epsilon=4).json()
    assert [(fit["account"], fit["fits"]) for fit in told["accounts"]] == [("ann@sales", True), ("sales", True)]
    own = told["accounts"][0]
    assert own["left"]["rho"] - own["left_after"]["rho"] == pytest.approx(told["worst_cost"]["rho"])
    assert told["fits"]
    world.manager.store.charge("sales", world.balance("sales").remaining, ACT)
    told = world.estimate(epsilon=4).json()
    assert [fit["fits"] for fit in told["accounts"]] == [True, False]
    assert not told["fits"]
    assert told["accounts"][1]["left_after"] == {"rho": 0.0, "delta": 0.0}


def test_an_estimate_of_what_was_paid_for_says_that_it_is_free(world):
    """Then it fits, whatever is left; for another analyst it is not."""
    assert not world.estimate().json()["paid"]
    world.ask()
    assert all(fit["left_after"] == fit["left"] for fit in world.estimate().json()["accounts"])
    world.manager.store.charge("ann@sales", world.balance().remaining, ACT)
    told = world.estimate().json()
    assert told["paid"]
    assert told["fits"]
    assert not world.estimate(who="bob").json()["paid"]
    assert not world.estimate(epsilon=1.5).json()["fits"]


def test_an_estimate_for_an_account_with_units_is_in_units(world):
    """2 k + 1 and the choice of the cut-off, and one call."""
    world.manager.store.create(Account.of_units("units"), ACT)
    world.grant("units", "reads")
    told = world.estimate(who=world.make_key("units"), epsilon_per="0.15").json()
    assert (told["information"], told["calls"]) == (2 * 5 + 1, 1)
    assert told["worst_cost"]["rho"] == float_above(
        world.manager.store.account("units").units.epsilon_per ** 2 / 8 * 11
    )
    assert world.estimate().json()["information"] is None


def test_errors_of_sums_are_in_the_column_s_own_units(world):
    """Here whole minutes."""
    told = world.estimate("SELECT article, SUM(minutes) FROM reads GROUP BY article LIMIT 3", epsilon=4).json()
    answer = world.ask("SELECT article, SUM(minutes) FROM reads GROUP BY article LIMIT 3", epsilon=4).json()
    assert told["expected"]["sum_std_error"] == answer["items"][0]["std_error"]
    assert told["expected"]["std_error_most"] is None


def test_a_delta_that_is_too_large_is_refused_and_nothing_else_is_noted(world):
    """It is not far below one over the number of users, and all who share an account would pay for it."""
    assert world.estimate(delta="0.001").status_code == 422
    assert world.estimate().json()["notes"] == []


def test_an_estimate_refuses_what_a_query_refuses(world):
    """The same problems, before anything is reserved."""
    assert world.estimate(TOP.replace("article", "hidden")).status_code == 404
    assert world.estimate("SELECT").status_code == 400
    assert world.estimate(epsilon=5).status_code == 422
    assert world.estimate(who=None).status_code == 401
