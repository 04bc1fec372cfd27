"""Reported guarantees are never better than the actual ones."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.accounting.convert import NEIGHBOURS, Guarantee, guarantee_of
from discreet.errors import InvariantViolated
from discreet.values import Cost

from .test_convert import MP, true_epsilon

DELTA = Fraction(1, 10**8)
CLOSE = 1 + Fraction(1, 10**15)
"""A float is no farther than this from the fraction it stands for."""


def exactly(value):
    """Return a fraction as a 50-digit real."""
    return MP.mpf(Fraction(value).numerator) / Fraction(value).denominator


@settings(max_examples=25)
@given(
    st.fractions(Fraction(1, 10**4), 50),
    st.fractions(Fraction(1, 10**12), Fraction(1, 2)),
    st.fractions(0, Fraction(99, 100)),
)
def test_the_numbers_hold_by_an_independent_conversion(rho, delta, lost):
    """Delta covers the lost mass and the conversion, and every number is rounded up slightly."""
    cost = Cost(rho, Cost.at_most(0, lost * delta).delta)
    found = guarantee_of(cost, delta)
    conversion = delta - cost.delta
    truth = true_epsilon(exactly(cost.rho), exactly(conversion))
    assert truth <= found.epsilon <= truth * (1 + MP.mpf(10) ** -9) + MP.mpf(10) ** -12
    assert delta <= Fraction(found.delta) <= delta * CLOSE
    assert cost.rho <= Fraction(found.rho) <= cost.rho * CLOSE


def test_the_published_budget_is_stated_with_all_of_its_delta():
    """3000 units of .15 and 30 calls of 1e-10 in a total of 7e-9: (32.8606, 7e-9), published as (34.9, 7e-9)."""
    found = guarantee_of(Cost(Fraction(135, 16), Fraction(3, 10**9)), Fraction(7, 10**9))
    assert found.epsilon == pytest.approx(32.8606, abs=5e-5)
    assert found.rho == 8.4375
    assert Fraction(7, 10**9) <= Fraction(found.delta) < Fraction(7, 10**9) * CLOSE


def test_the_mechanisms_own_theorem_is_used_where_it_is_stronger():
    """Its epsilon is reported, rounded up, with the mechanism's lost mass as delta."""
    cost = Cost(Fraction(1, 8), Fraction(1, 10**10))
    found = guarantee_of(cost, DELTA, Fraction(1, 3))
    assert Fraction(1, 3) <= Fraction(found.epsilon) < Fraction(1, 3) + Fraction(1, 10**16)
    assert Fraction(1, 10**10) <= Fraction(found.delta) < Fraction(1, 10**10) * CLOSE
    assert found.rho == 0.125


def test_the_mechanisms_own_theorem_is_not_used_where_it_is_weaker():
    """The conversion's epsilon is reported with all of delta."""
    cost = Cost(Fraction(1, 8), Fraction(1, 10**10))
    assert guarantee_of(cost, DELTA, Fraction(100)) == guarantee_of(cost, DELTA)
    assert guarantee_of(cost, DELTA).epsilon < 100


def test_a_theorem_of_the_mechanisms_own_needs_no_delta_for_a_conversion():
    """The mechanism may lose all of delta, and not more with any theorem."""
    found = guarantee_of(Cost(Fraction(1), DELTA), DELTA, Fraction(2))
    assert (found.epsilon, Fraction(found.delta) >= DELTA) == (2.0, True)
    for direct in (None, Fraction(2)):
        with pytest.raises(InvariantViolated, match="no delta is left"):
            guarantee_of(Cost(Fraction(1), DELTA + Fraction(1, 10**20)), DELTA, direct)
    with pytest.raises(InvariantViolated, match="no delta is left"):
        guarantee_of(Cost(Fraction(1), DELTA), DELTA)


def test_pure_privacy_is_stated_with_a_delta_of_zero():
    """A lossless mechanism with its own theorem has delta 0."""
    assert guarantee_of(Cost(Fraction(1, 8)), DELTA, Fraction(1, 2)).delta == 0


def test_the_sentence_has_the_numbers_the_unit_and_the_neighbouring_tables():
    """It calls the privacy of keyed noise computational."""
    plain = Guarantee(1.23456, 1e-8, 0.05)
    assert str(plain) == (
        "(1.235, 1e-08)-differential privacy for every user (rho = 0.05; between tables that differ in all rows of one "
        "user, added or removed)"
    )
    keyed = guarantee_of(Cost(Fraction(1, 8)), DELTA, computational=True)
    assert keyed.computational
    assert "-computational differential privacy for every user" in str(keyed)
    assert not guarantee_of(Cost(Fraction(1, 8)), DELTA).computational


def test_a_guarantee_names_its_unit_and_is_immutable():
    """The unit is one user's rows, added or removed."""
    found = guarantee_of(Cost(Fraction(1, 8)), DELTA)
    assert (found.unit, found.neighbours) == ("user", NEIGHBOURS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.epsilon = 0.0


def test_nothing_spent_is_a_guarantee_of_epsilon_zero():
    """`Cost` refuses an infinite cost, so epsilon is always finite."""
    assert guarantee_of(Cost(), DELTA).epsilon == 0.0
    assert math.isfinite(guarantee_of(Cost(Fraction(10**12)), DELTA).epsilon)
