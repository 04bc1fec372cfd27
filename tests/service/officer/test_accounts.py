"""GET /v1/budget: the state of one's account, and the necessary minimum about its parents."""

from __future__ import annotations

from fractions import Fraction

from discreet.budget.model import LINKEDIN, Account, Calendar, Forever, Sliding
from discreet.values import Cost, float_above, float_below
from tests.budget.suite import set_mode
from tests.service.deployment import ACT, DELTA


def test_a_budget_adds_up(service):
    """Limit, used, held, forfeited and left: spent amounts are rounded up, remaining ones down."""
    service.ask()
    body, balance = service.get("/v1/budget").json(), service.balance()
    assert body["account"] == "ann@sales"
    assert body["used"]["rho"] == float_above(balance.used.rho)
    assert body["left"]["rho"] == float_below(balance.remaining.rho)
    assert body["limit"]["delta"] == float_below(balance.account.limit.delta)
    assert body["held"] == body["forfeited"] == {"rho": 0.0, "delta": 0.0}
    assert body["epsilon_spent"] > 0
    assert body["epsilon_left"] < 10
    assert body["guarantee"]["epsilon"] <= 10
    assert body["guarantee"]["computational"]
    assert body["resets_at"] == "2026-12-21T00:00:00+00:00"
    assert body["suspended_until"] is None
    assert body["units"] is None


def test_parents_show_only_their_limit_and_remaining_budget(service):
    """T18: the spenders are not shown."""
    service.ask(who="bob")
    body = service.get("/v1/budget").json()
    (parent,) = body["parents"]
    assert set(parent) == {"account", "mode", "limit", "left", "resets_at"}
    assert parent["account"] == "sales"
    assert parent["left"]["rho"] < parent["limit"]["rho"]
    assert body["left"] == body["limit"]
    assert "bob" not in service.get("/v1/budget").text


def test_units_and_periods_are_shown(service):
    """Units and periods are those of the account's settings."""
    for name, period, body in (
        ("a", Sliding(7), {"kind": "sliding", "days": 7, "unit": None, "zone": None}),
        (
            "b",
            Calendar("week", "Europe/Berlin"),
            {"kind": "calendar", "days": None, "unit": "week", "zone": "Europe/Berlin"},
        ),
        ("c", Forever(), {"kind": "forever", "days": None, "unit": None, "zone": None}),
    ):
        service.manager.store.create(Account.of_units(name, period=period), ACT)
        key = service.make_key(name)
        service.clock.pass_(seconds=2)  # by then every process has read it
        budget = service.get("/v1/budget", key).json()
        assert budget["period"] == body
        assert budget["parents"] == []
        assert budget["units"] == {
            "epsilon_per": "0.15",
            "delta_per": "1e-10",
            "information": {"limit": 3000, "spent": 0, "left": 3000},
            "calls": {"limit": 30, "spent": 0, "left": 30},
        }


def test_units_are_rounded_against_the_account(service):
    """A thousandth of a unit counts as a unit spent, and one less left."""
    service.manager.store.create(Account.of_units("u"), ACT)
    service.manager.store.charge("u", Cost(LINKEDIN.epsilon_per**2 / 8 / 1000, Fraction(1, 10**13)), ACT)
    units = service.get("/v1/budget", service.make_key("u")).json()["units"]
    assert units["information"] == {"limit": 3000, "spent": 1, "left": 2999}
    assert units["calls"] == {"limit": 30, "spent": 1, "left": 29}


def test_an_observed_account_has_no_guarantee(service):
    """The response states that there is no guarantee."""
    service.manager.store.create(Account.of_epsilon("w", 1.0, DELTA), ACT)
    set_mode(service.manager.store, "w", "observe", ACT)
    body = service.get("/v1/budget", service.make_key("w")).json()
    assert (body["mode"], body["guarantee"]) == ("observe", None)
