"""Conversion to and from LinkedIn's units."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from discreet.accounting.convert import cost_of_units, units_of_cost
from discreet.errors import InputError
from discreet.values import DELTA_QUANTUM, RHO_QUANTUM, Cost

EPSILON, DELTA = Fraction(3, 20), Fraction(1, 10**10)

epsilons = st.fractions(Fraction(1, 1000), 10)
deltas = st.fractions(Fraction(1, 10**15), Fraction(99, 100))


def test_the_published_budget_has_its_cost():
    """With k* = 3000 and l* = 30 at .15 and 1e-10: rho 8.4375 and delta 3e-9, and back."""
    cost = cost_of_units(3000, 30, EPSILON, DELTA)
    assert cost == Cost(Fraction(135, 16), Fraction(3, 10**9))
    assert units_of_cost(cost, EPSILON, DELTA) == (3000, 30)


@given(st.integers(0, 10**6), st.integers(0, 10**4), epsilons, deltas)
def test_units_cost_their_formula_rounded_up_to_quanta(information, calls, epsilon, delta):
    """Rho = k epsilon^2 / 8 and delta = l delta_per, above by less than one quantum."""
    cost = cost_of_units(information, calls, epsilon, delta)
    assert 0 <= cost.rho - information * epsilon**2 / 8 < RHO_QUANTUM
    assert 0 <= cost.delta - calls * delta < DELTA_QUANTUM


@given(st.integers(0, 10**6), st.integers(0, 10**4), epsilons, deltas)
@example(1, 1, Fraction(1, 3), Fraction(1, 3 * 10**10))
def test_units_come_back_from_their_cost(information, calls, epsilon, delta):
    """Rounding a cost up to quanta buys no additional unit."""
    cost = cost_of_units(information, calls, epsilon, delta)
    assert units_of_cost(cost, epsilon, delta) == (information, calls)


@given(st.fractions(0, 100), st.fractions(0, Fraction(1, 1000)), epsilons, deltas)
def test_units_of_a_cost_are_the_least_that_cover_it(rho, delta_lost, epsilon, delta):
    """With one unit or one call less the cost is not covered."""
    cost = Cost(rho, delta_lost)
    information, calls = units_of_cost(cost, epsilon, delta)
    assert cost.within(cost_of_units(information, calls, epsilon, delta))
    assert information == 0 or cost_of_units(information - 1, 0, epsilon, delta).rho < cost.rho
    assert calls == 0 or cost_of_units(0, calls - 1, epsilon, delta).delta < cost.delta


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 3)), max_size=8), epsilons, deltas)
def test_sums_of_costs_are_never_cheaper_than_the_sum_of_units(parts, epsilon, delta):
    """Each part of a sum is rounded up."""
    total = Cost()
    for information, calls in parts:
        total += cost_of_units(information, calls, epsilon, delta)
    together = cost_of_units(sum(k for k, _ in parts), sum(c for _, c in parts), epsilon, delta)
    assert together.within(total)


@pytest.mark.parametrize(
    ("information", "calls", "epsilon", "delta"),
    [
        (-1, 0, EPSILON, DELTA),
        (0, -1, EPSILON, DELTA),
        *((1, 1, epsilon, DELTA) for epsilon in (Fraction(0), -EPSILON)),
        *((1, 1, EPSILON, delta) for delta in (Fraction(-1), Fraction(1), Fraction(2))),
    ],
)
def test_values_outside_their_ranges_are_refused(information, calls, epsilon, delta):
    """Units are not negative, epsilon is above 0, and delta is in [0, 1)."""
    names = "epsilon per unit|delta per call" if information >= 0 and calls >= 0 else "information and calls"
    with pytest.raises(InputError, match=f"^({names}) must "):
        cost_of_units(information, calls, epsilon, delta)
    if information >= 0 and calls >= 0:
        with pytest.raises(InputError):
            units_of_cost(Cost(Fraction(1)), epsilon, delta)


@given(st.fractions(Fraction(1, 10**30), 1), st.fractions(Fraction(1, 10**40), Fraction(1, 2)))
@example(Fraction(1, 10**10), Fraction(1, 10**30))
def test_nothing_spent_is_no_unit(epsilon, delta):
    """Also where a unit costs less than a quantum."""
    assert units_of_cost(Cost(), epsilon, delta) == (0, 0)


def test_calls_that_lose_nothing_cost_no_delta_and_cannot_be_counted():
    """With delta_per = 0 no number of calls covers a delta."""
    assert cost_of_units(0, 7, EPSILON, Fraction(0)) == Cost()
    with pytest.raises(InputError, match="delta per call must be above 0"):
        units_of_cost(Cost(), EPSILON, Fraction(0))
