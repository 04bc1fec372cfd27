"""The values of budgets: exact amounts, ranges, and the preset."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.budget.model import (
    LINKEDIN,
    Account,
    AdminAction,
    Amount,
    Calendar,
    Claim,
    Fingerprint,
    Sliding,
    Units,
)
from discreet.errors import InputError
from discreet.values import Cost


@given(st.fractions(0, 10), st.fractions(0, 1))
def test_amounts_are_costs_exactly(rho, delta):
    """Conversion to quanta and back is exact."""
    cost = Cost(rho, delta)
    assert Amount.of(cost).cost == cost


SOUND = Account("a", Cost(Fraction(1), Fraction(1, 100)), Fraction(1, 10))


CLAIM = Claim("r", "a", bytes(32), Cost())


WRONG = [
    lambda: dataclasses.replace(SOUND, id=""),
    lambda: dataclasses.replace(SOUND, id="a b"),
    lambda: dataclasses.replace(SOUND, id="a\tb"),
    lambda: dataclasses.replace(SOUND, id="a" * 201),
    lambda: dataclasses.replace(SOUND, parent="a"),
    lambda: dataclasses.replace(SOUND, parent="a\nb"),
    lambda: dataclasses.replace(SOUND, mode="off"),
    lambda: dataclasses.replace(SOUND, delta=Fraction(1, 100)),
    lambda: dataclasses.replace(SOUND, delta=Fraction(1)),
    lambda: Sliding(0),
    lambda: Sliding(40_000),
    lambda: Calendar("year"),
    lambda: Units(Fraction(0), Fraction(0), 1, 1),
    lambda: Units(Fraction(1), Fraction(1), 1, 1),
    lambda: Units(Fraction(1), Fraction(0), -1, 1),
    lambda: AdminAction("a", " "),
    lambda: AdminAction("a b", "why"),
    lambda: AdminAction("a", "x" * 2_001),
    lambda: AdminAction("a", "why", ""),
    lambda: AdminAction("a", "why", "a b"),
    lambda: Fingerprint(bytes(15), bytes(32)),
    lambda: Fingerprint(bytes(32), bytes(65)),
    lambda: dataclasses.replace(CLAIM, release_key=bytes(15)),
    lambda: dataclasses.replace(CLAIM, release_key=bytes(65)),
    lambda: dataclasses.replace(CLAIM, digest=bytes(65)),
    lambda: dataclasses.replace(CLAIM, key=""),
    lambda: dataclasses.replace(CLAIM, lease_ms=0),
    lambda: dataclasses.replace(CLAIM, lease_ms=86_400_001),
]


@pytest.mark.parametrize("make", WRONG)
def test_values_outside_their_range_are_refused(make):
    """Invalid values are refused before any call of a store."""
    with pytest.raises(InputError):
        make()


def test_the_preset_is_the_papers():
    """(0.15, 1e-10, 3000, 30): rho = 3000 * 0.15^2 / 8, and 3e-9 that may be lost."""
    assert LINKEDIN.limit == Cost(Fraction("8.4375"), Fraction(3, 10**9))
