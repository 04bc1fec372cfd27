"""From a query to a plan: given and default prices, and the most that fits a budget."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest

from discreet.errors import InputError
from discreet.query.planning import make_plan
from discreet.query.pricing import PRESETS, PerUnit
from discreet.query.query import default_head_limit
from discreet.service.answering.queries import most_that_fits, planning_options
from discreet.service.settings import Defaults, Limits
from discreet.values import Cost
from discreet.wire.queries import QueryRequest
from tests.queries import changed, query_of

LIMITS = Limits(max_k=100, max_head_limit=2_000, max_epsilon=5.0)
TOP = "SELECT place, COUNT(DISTINCT guest) FROM visits GROUP BY place LIMIT {}"
EPSILON = Defaults.model_validate({"epsilon": 0.5, "delta": Decimal("1e-9")})
UNITS = Defaults.model_validate({"preset": "linkedin"})


def options_of(defaults=EPSILON, k=10, **fields):
    """Return the options of a top k."""
    return planning_options(QueryRequest(sql=TOP.format(k), **fields).options, k, defaults, LIMITS)


@pytest.mark.parametrize(
    ("defaults", "fields", "epsilon", "delta", "per"),
    [
        (EPSILON, {}, 0.5, Fraction(1, 10**9), None),
        (EPSILON, {"epsilon": 2.0}, 2.0, Fraction(1, 10**9), None),
        (EPSILON, {"delta": "1e-7"}, 0.5, "1e-7", None),
        (EPSILON, {"epsilon": 0.05}, 0.05, Fraction(88, 10**13), None),
        (UNITS, {"epsilon": 2.0}, 2.0, Fraction(1, 10**8), None),
        (UNITS, {"delta": "1e-7"}, 1.0, "1e-7", None),
        (UNITS, {}, None, None, PRESETS["linkedin"]),
        (UNITS, {"information": 7}, None, None, PerUnit("0.15", "1e-10", 7)),
        (UNITS, {"epsilon_per": "0.2"}, None, None, PerUnit("0.2", "1e-10", 100)),
        (EPSILON, {"epsilon_per": 0.2, "information": 7}, None, None, PerUnit("0.2", "1e-10", 7)),
    ],
)
def test_the_settings_have_the_default_price(defaults, fields, epsilon, delta, per):
    """Either an epsilon and a delta, or a price of units; never a mix of both."""
    found = options_of(defaults, **fields)
    assert (found.get("epsilon"), found.get("delta"), found.get("per")) == (epsilon, delta, per)


def test_options_are_those_of_the_query():
    """Missing options are left to the planner."""
    found = options_of(counts=False, mechanism="gumbel", noise="laplace", relative_error="1/3", head_limit=1_500)
    assert found == {
        "epsilon": 0.5,
        "delta": Fraction(1, 10**9),
        "counts": False,
        "mechanism": "gumbel",
        "noise": "laplace",
        "relative_error": "1/3",
        "head_limit": 1_500,
    }
    assert options_of(UNITS).keys() == {"counts", "head_limit", "per"}


def test_the_usual_head_limit_is_lowered_to_that_of_the_service():
    """An explicit head limit is not lowered but refused."""
    every = QueryRequest(sql=TOP.format(1).replace(" LIMIT 1", ""))
    assert planning_options(every.options, None, EPSILON, LIMITS)["head_limit"] == 2_000
    with pytest.raises(InputError, match="at most 2,000, not 2,001"):
        options_of(head_limit=2_001)


@pytest.mark.parametrize(
    ("fields", "message"), [({"k": 101}, "k must be at most 100"), ({"epsilon": 5.1}, "at most 5")]
)
def test_the_limits_of_the_service_hold(fields, message):
    """Limits of the dataset do not extend them."""
    with pytest.raises(InputError, match=message):
        options_of(**fields)


def test_the_limits_of_the_service_are_allowed():
    """What is equal to one is not beyond it."""
    found = options_of(k=100, head_limit=2_000, epsilon=5.0, delta=str(float(LIMITS.max_delta)))
    assert (found["head_limit"], found["epsilon"]) == (2_000, 5.0)
    with pytest.raises(InputError, match=r"^delta must be at most 1e-06, not 2e-06$"):
        options_of(delta="2e-6")
    with pytest.raises(InputError, match=r"^delta "):
        planning_options({"delta": "much"}, 10, EPSILON, LIMITS)


def test_a_head_limit_below_that_of_the_service_is_kept():
    """One of the request, and the usual one of its k."""
    usual = default_head_limit(10)
    assert planning_options({"head_limit": 1_500}, None, EPSILON, LIMITS)["head_limit"] == 1_500
    assert planning_options({}, 10, EPSILON, Limits(max_head_limit=usual))["head_limit"] is None
    assert planning_options({}, 10, EPSILON, Limits(max_head_limit=usual - 1))["head_limit"] == usual - 1


def test_a_delta_that_is_not_requested_follows_from_epsilon():
    """From epsilon 1 and delta 1e-8 where the settings have a price of units; an epsilon of 0 is refused later."""
    whole = Defaults.model_validate({"epsilon": 1, "delta": Decimal("1e-8")})
    assert options_of(UNITS, epsilon=0.05)["delta"] == options_of(whole, epsilon=0.05)["delta"] < Fraction(1, 10**8)
    assert planning_options({"epsilon": 0.0}, 10, EPSILON, LIMITS)["delta"] is None


def test_parts_of_a_price_of_units_are_completed_by_the_settings():
    """Not by published ones, if the settings have their own."""
    own = Defaults.model_validate({"epsilon_per": Decimal("0.3"), "delta_per": Decimal("1e-9"), "information": 50})
    assert options_of(own, information=7)["per"] == PerUnit("0.3", "1e-9", 7)
    assert options_of(own)["per"] == PerUnit("0.3", "1e-9", 50)


def asked(k=10, per=None):
    """Return a query about a table that does not exist."""
    return query_of("guest", ("place",), 2.0, k=k, per=per)


@pytest.mark.parametrize("k", [10, None])
@pytest.mark.parametrize("share", [Fraction(9, 10), Fraction(1, 3), Fraction(1, 1000)])
def test_the_largest_epsilon_that_fits_nearly_takes_what_is_left(share, k):
    """It is within a few hundredths of the remaining budget, and never beyond it."""
    has_pairs = k is None
    plan = make_plan(asked(k), has_pairs=has_pairs, shared_budget=True)
    assert plan.reads_pairs is has_pairs
    left = Cost.at_most(plan.worst_cost.rho * share, plan.worst_cost.delta)
    fits = most_that_fits(plan, left)
    assert fits.k is None

    def worst(epsilon):
        return make_plan(changed(asked(k), epsilon=epsilon), has_pairs=has_pairs, shared_budget=True).worst_cost

    assert worst(fits.epsilon).within(left)
    assert not worst(fits.epsilon * 1.15).within(left)


@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_the_largest_k_that_fits_is_exact(k):
    """The worst cost of k items is left, so k items fit."""
    per = PRESETS["linkedin"]
    left = make_plan(asked(k, per=per), shared_budget=True).worst_cost
    fits = most_that_fits(make_plan(asked(per=per), shared_budget=True), left)
    assert (fits.k, fits.epsilon, fits.information) == (k, None, None)


def test_the_most_information_that_fits_is_reported_without_a_k():
    """The remaining units, less those lost by rounding."""
    per = PerUnit("0.15", "1e-10", 100)
    fits = most_that_fits(make_plan(asked(None, per=per), shared_budget=True), per.cost(40, 1))
    assert fits.information == 40


@pytest.mark.parametrize("per", [None, PRESETS["linkedin"]])
@pytest.mark.parametrize("k", [10, None])
def test_no_alternative_fits_an_empty_budget(k, per):
    """For an exhausted budget no alternative is offered."""
    assert most_that_fits(make_plan(asked(k, per=per), shared_budget=True), Cost()) is None
