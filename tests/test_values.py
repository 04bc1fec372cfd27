"""Costs, sensitivities and heads are exact, rounded to the safe side, and never show the data."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InputError, InvariantViolated, UnfitData
from discreet.values import (
    DELTA_QUANTUM,
    MAX_COUNT,
    RHO_QUANTUM,
    Cost,
    ExactHead,
    Sensitivity,
    float_above,
    float_below,
)

amounts = st.one_of(st.fractions(0, 100), st.floats(0, 100), st.integers(0, 100), st.fractions(0, Fraction(1, 10**20)))
costs = st.builds(Cost, amounts, amounts)
finite = st.one_of(
    st.fractions(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False).map(Fraction),
    st.fractions(-1, 1).map(lambda value: value / 10**330),
)


@given(amounts, amounts)
def test_a_cost_is_rounded_up_to_whole_quanta(rho, delta):
    """Never below the given value, above by less than one quantum; exact multiples stay."""
    cost = Cost(rho, delta)
    for part, given_part, quantum in ((cost.rho, rho, RHO_QUANTUM), (cost.delta, delta, DELTA_QUANTUM)):
        assert 0 <= part - Fraction(given_part) < quantum
        assert part / quantum == int(part / quantum)


@given(amounts, amounts)
def test_a_limit_is_rounded_down_to_whole_quanta(rho, delta):
    """Below the given value by less than one quantum, so that no cost above the limit is within it."""
    limit = Cost.at_most(rho, delta)
    for part, given_part, quantum in ((limit.rho, rho, RHO_QUANTUM), (limit.delta, delta, DELTA_QUANTUM)):
        assert 0 <= Fraction(given_part) - part < quantum
        assert part / quantum == int(part / quantum)


def test_quanta_are_what_budgets_are_stored_in():
    """1e-18 of rho and 1e-27 of delta: stored budgets depend on them."""
    assert (RHO_QUANTUM, DELTA_QUANTUM) == (Fraction(1, 10**18), Fraction(1, 10**27))
    assert Cost(Fraction(1, 3)).rho == Fraction(333333333333333334, 10**18)
    assert Cost.at_most(Fraction(1, 3), 0).rho == Fraction(333333333333333333, 10**18)
    assert Cost(0.1).rho == Fraction(100000000000000006, 10**18)


@given(costs, costs, st.integers(0, 50))
def test_costs_add_subtract_and_multiply_exactly(one, other, times):
    """Nothing is rounded twice."""
    assert (one + other).rho == one.rho + other.rho
    assert (one + other).delta == one.delta + other.delta
    assert one + other - other == one
    assert times * one == one * times == sum([one] * times, Cost())


@given(costs, costs)
def test_within_compares_both_parts(cost, limit):
    """Neither rho alone nor delta alone suffices."""
    assert cost.within(limit) == (cost.rho <= limit.rho and cost.delta <= limit.delta)
    assert cost.within(cost)
    assert cost.within(cost + limit)
    assert not (cost + Cost(RHO_QUANTUM)).within(cost)
    assert not (cost + Cost(Fraction(0), DELTA_QUANTUM)).within(cost)


@pytest.mark.parametrize("value", [-1, -1e-300, Fraction(-1, 10**40), math.nan, math.inf, -math.inf])
def test_a_negative_or_infinite_cost_is_refused(value):
    """A negative cost smaller than a quantum is refused too, though rounding up would give 0."""
    with pytest.raises(InputError, match="rho must"):
        Cost(value)
    with pytest.raises(InputError, match="delta must"):
        Cost(Fraction(0), value)


def test_a_result_below_zero_is_refused():
    """Subtraction and multiplication never give a negative budget."""
    with pytest.raises(InputError):
        Cost(Fraction(1)) - Cost(Fraction(2))
    with pytest.raises(InputError):
        Cost(Fraction(1)) - Cost(Fraction(0), Fraction(1))
    with pytest.raises(InputError):
        Cost(Fraction(1)) * -1
    with pytest.raises(InputError):
        Cost.at_most(Fraction(-1), 0)


def test_a_cost_is_immutable():
    """Frozen, without other attributes, and equal costs are equal keys."""
    cost = Cost(Fraction(1), Fraction(1, 2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        cost.rho = Fraction(0)
    assert {cost: 1}[Cost(1, 0.5)] == 1
    assert Cost() == Cost(0, 0)


@given(finite)
def test_float_above_is_the_least_float_not_below(value):
    """`float_below` is the greatest float that is not above."""
    above, below = float_above(value), float_below(value)
    assert Fraction(below) <= value <= Fraction(above)
    before, after = math.nextafter(above, -math.inf), math.nextafter(below, math.inf)
    assert value != 0 or (math.copysign(1, above), math.copysign(1, below)) == (1, 1)
    assert before == -math.inf or Fraction(before) < value
    assert after == math.inf or Fraction(after) > value


@pytest.mark.parametrize(("groups", "rows"), [(None, 1), (1, 1), (10**9, 2**31)])
def test_a_sensitivity_within_its_range_is_accepted(groups, rows):
    """Both ends of both ranges; by default groups have no bound."""
    assert dataclasses.astuple(Sensitivity(groups, rows)) == (groups, rows)
    assert Sensitivity() == Sensitivity(None, 1)


@pytest.mark.parametrize(("groups", "rows"), [(0, 1), (-1, 1), (None, 0), (None, -5), (None, 2**31 + 1)])
def test_a_sensitivity_outside_its_range_is_refused(groups, rows):
    """A user has at least one item and at most an int32 of rows."""
    with pytest.raises(InputError):
        Sensitivity(groups, rows)


@pytest.mark.parametrize("value", [1.0, 2.5, "2", Fraction(2), np.float64(3), [1]])
def test_a_sensitivity_that_is_no_integer_is_refused(value):
    """A float equal to an integer is refused; numpy's integers become ints."""
    for arguments in ({"groups_per_user": value}, {"rows_per_group": value}):
        with pytest.raises(InputError, match="must be a whole number"):
            Sensitivity(**arguments)
    kept = Sensitivity(np.int32(4), np.uint8(3))
    assert [type(part) for part in dataclasses.astuple(kept)] == [int, int]
    assert kept == Sensitivity(4, 3)


def head(counts, limit=5, labels=None):
    """Return a head of int64 counts."""
    return ExactHead(np.array(counts, dtype=np.int64), limit, labels)


SECRET = head([987654, 1234, 1234], 5, ["Anna Karenina", "Emma", "Ulysses"])


@dataclass
class Holder:
    """An object whose repr contains a head."""

    held: ExactHead


@pytest.mark.parametrize(
    "show",
    [
        *(repr, str, format, ascii, "{}".format, "{!r}".format),
        *(lambda h: f"{h!s}", lambda h: repr([h]), lambda h: repr({1: h}), lambda h: repr(Holder(h))),
        *(lambda h: repr(KeyError(h)), lambda h: json.dumps(h, default=repr)),
    ],
)
def test_a_head_shows_no_data(show):
    """No repr of a head or of its container has a count, a label or the number of items."""
    shown = show(SECRET)
    assert "ExactHead(limit=5)" in shown
    for secret in ("987654", "1234", "Anna", "Emma", "Ulysses", "3"):
        assert secret not in shown


def test_a_head_has_no_equality_no_encoder_and_no_dict():
    """Heads with equal contents are not equal, json refuses them, and they are immutable."""
    twin = head([987654, 1234, 1234], 5, SECRET.labels)
    assert twin != SECRET
    assert len({twin, SECRET}) == 2
    with pytest.raises(TypeError) as raised:
        json.dumps(SECRET)
    assert "1234" not in str(raised.value)
    with pytest.raises(TypeError):
        vars(SECRET)
    with pytest.raises(dataclasses.FrozenInstanceError):
        SECRET.limit = 2


def test_a_count_is_found_by_rank_and_is_zero_past_the_end():
    """Ranks are 1 to limit + 1, and a short head continues with zeros."""
    assert [SECRET.count_at(rank) for rank in range(1, 7)] == [987654, 1234, 1234, 0, 0, 0]
    full = head([3, 2, 1], 2)
    assert full.count_at(3) == 1
    assert isinstance(full.count_at(1), int)
    assert head([], 1).count_at(2) == 0
    for rank in (0, -1, 7):
        with pytest.raises(InvariantViolated, match="does not reach"):
            SECRET.count_at(rank)


@pytest.mark.parametrize(
    "counts",
    [
        np.array([[3, 2]], dtype=np.int64),
        np.array(3, dtype=np.int64),
        np.array([3.0, 2.0]),
        np.array([3, 2], dtype=np.int32),
        np.array([3, 2], dtype=np.uint64),
        np.array([3, 2], dtype="m8[s]"),
        np.array([3, 2], dtype=object),
    ],
    ids=lambda counts: f"{counts.dtype} {counts.shape}",
)
def test_a_head_of_other_numbers_is_refused(counts):
    """Counts are one dimension of int64."""
    with pytest.raises(InvariantViolated, match="one row of int64"):
        ExactHead(counts, 5)


@pytest.mark.parametrize(
    ("counts", "limit", "message"),
    [
        ([3, 2, 1], 1, "more items than requested"),
        ([77, 88], 5, "descending"),
        ([88, 77, 78], 5, "descending"),
        ([1, -1], 5, "not negative"),
        ([-(2**63)], 5, "not negative"),
        ([2**63 - 1, -(2**63)], 5, "not negative"),
    ],
)
def test_an_invalid_head_is_refused(counts, limit, message):
    """Too long, unsorted or negative: a bug, whose message has no count."""
    with pytest.raises(InvariantViolated, match=message) as raised:
        head(counts, limit)
    assert not any(character.isdigit() for character in str(raised.value))


def test_extreme_heads_are_accepted():
    """Empty, full to limit + 1, all tied, zeros, the largest count."""
    for counts, limit in (([], 0), ([5], 0), ([4] * 6, 5), ([0, 0], 5), ([MAX_COUNT, 0], 5)):
        assert head(counts, limit).counts.tolist() == counts


def test_a_count_too_large_to_protect_is_unfit_data():
    """Above 2^62 a count plus noise could overflow: the user's data, not our bug."""
    assert MAX_COUNT == 2**62
    with pytest.raises(UnfitData, match="cannot be protected") as raised:
        head([2**62 + 1])
    assert str(2**62 + 1) not in str(raised.value)
