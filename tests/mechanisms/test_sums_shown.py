"""Displayed sums and averages: values, standard errors, and ends of intervals."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.accounting.convert import limit_for
from discreet.errors import InputError
from discreet.head_request import ROW_UNIT, SumBounds
from discreet.mechanisms import Request, summing
from discreet.mechanisms.sums import (
    ListedSums,
    ReleasedScaledSums,
    ScaledSums,
    SumsAndRows,
    _measured_by_bound,
    average_factors,
    averages,
    difference_noise,
    measured_sums,
)
from discreet.noise import DiscreteLaplace
from discreet.noise.distributions import MAX_SCALE
from discreet.query.planning import choose
from discreet.values import Clipping, Cost, Outcome, Sensitivity

CLIPPING = Clipping(10, 0.1, 0.0, 0.2, 0.8)


@dataclass
class Width:
    """Noise of a known width."""

    width: int
    std: float = 1.0

    def half_width(self, miss):
        """See `Noise.half_width`."""
        assert miss == 0.05
        return self.width


def outcome_of(n):
    """Return an outcome of *n* items."""
    return Outcome(np.arange(n), ordered=True, complete=True, cost=Cost())


def quotient(total, width, rows, spread, summed, correlation=0.0, parts=ROW_UNIT):
    """Return the average of one item: its low end, value and high end."""
    measured = SumsAndRows(
        *(np.array([parts * total], dtype=float), np.array([parts * rows], dtype=float)),
        *(1.0, 1.0, parts * width, parts * spread, correlation),
    )
    found = averages(measured, outcome_of(1), summed).measured
    return found.low[0], found.values[0], found.high[0]


numbers = st.tuples(st.integers(-60, 60), st.integers(0, 30), st.integers(-10, 40), st.integers(0, 20))
bounds = st.tuples(st.integers(-9, 9), st.integers(0, 9)).filter(any)


@given(numbers, bounds, st.fractions(-10, 10), st.sampled_from([0.0, 0.5]))
def test_an_interval_of_an_average_holds_the_quotients_that_fieller_does_not_reject(number, bound, r, correlation):
    """All r within the bounds for which sum - r rows is within its half width; all of the bounds without rows."""
    total, width, rows, spread = number
    summed = SumBounds(bound[0], sum(bound), rows=3)
    low, value, high = quotient(*number, summed, correlation)
    assert summed.low <= low <= value <= high <= summed.high
    assert value == min(max(total / max(rows, 1), summed.low), summed.high)
    if rows <= spread:
        assert (low, high) == (summed.low, summed.high)
    elif summed.low <= r <= summed.high:
        shared = 2 * r * correlation * width * spread
        held = (total - r * rows) ** 2 <= width**2 - shared + (r * spread) ** 2
        assert (low - 1e-9 <= r <= high + 1e-9) if held else not (low + 1e-9 < r < high - 1e-9)


def test_an_average_by_hand():
    """600 over 20 rows is 30; with 60 and 4 around them from 24.3 to 38.2; bounds of 0 to 35 cut the upper end.

    Noise that sum and rows share cancels in part: from 25.6 to 36.3.
    """
    assert quotient(600, 60, 20, 4, SumBounds(0, 40, rows=1)) == pytest.approx((24.290, 30.0, 38.210), abs=1e-3)
    assert quotient(600, 60, 20, 4, SumBounds(0, 35, rows=1))[2] == 35
    assert quotient(600, 60, 20, 4, SumBounds(0, 40, rows=1), 0.5) == pytest.approx((25.552, 30.0, 36.323), abs=1e-3)


def test_an_average_has_its_number_of_rows_and_the_error_of_a_quotient():
    """In whole rows; noisy numbers of 1 and less count as 1, and the error is at most the width of the bounds."""
    rows, sums = np.array([20, 0, -50]) * ROW_UNIT, np.array([600, 7, 90]) * ROW_UNIT
    noise = Width(600, 30.0 * ROW_UNIT), Width(4 * ROW_UNIT + 1, 2.0 * ROW_UNIT)
    measured = SumsAndRows.independent(sums, noise[0], rows, noise[1])
    found = averages(measured, outcome_of(3), SumBounds(-10, 40, rows=1))
    assert found.measured.name == "average"
    assert found.measured.values.tolist() == [30, 7, 40]
    assert found.measured.std_errors.tolist() == [
        pytest.approx(math.hypot(30, 30 * 2) / 20),
        pytest.approx(math.hypot(30, 7 * 2)),
        50,
    ]
    assert found.counts.tolist() == [20, 0, -50]
    assert found.std_errors.tolist() == [2.0] * 3
    assert (found.low.tolist(), found.high.tolist()) == ([15, 0, 0], [25, 5, 0])
    shared = averages(replace(measured, correlation=0.5), outcome_of(3), SumBounds(-10, 40, rows=1))
    assert shared.measured.std_errors[0] == pytest.approx(math.sqrt(30**2 - 30 * 30 * 2 + (30 * 2) ** 2) / 20)


def test_an_average_is_divided_by_what_private_bounds_leave():
    """Of its sum 4/5 and of its rows 1/2; the counts are the rows, and all errors grow alike."""
    sums = ReleasedScaledSums(np.array([600]) * ROW_UNIT, Width(60 * ROW_UNIT, 30.0 * ROW_UNIT), 0.8, 0.6, CLIPPING)
    rows = ReleasedScaledSums(np.array([20]) * ROW_UNIT, Width(4 * ROW_UNIT, 2.0 * ROW_UNIT), 0.5, 0.4, CLIPPING)
    outcome = _measured_by_bound((sums, rows), outcome_of(1), SumBounds(0, 60, rows=1, private=True))
    assert outcome.counts.tolist() == [40]
    assert outcome.std_errors.tolist() == [4.0]
    assert (outcome.low.tolist(), outcome.high.tolist()) == ([16], [60])
    assert outcome.measured.values.tolist() == [18.75]
    assert outcome.measured.std_errors == pytest.approx([math.hypot(30 / 0.8, 18.75 * 2 / 0.5) / 40])
    low, _, _ = quotient(600, 60, 20 / 0.4, 4 / 0.4, SumBounds(0, 60, rows=1))
    _, _, high = quotient(600 / 0.6, 60 / 0.6, 20, 4, SumBounds(0, 60, rows=1))
    assert (outcome.measured.low[0], outcome.measured.high[0]) == pytest.approx((low, high))
    assert outcome.measured.clipping is CLIPPING
    assert {values.dtype for values in (outcome.counts, outcome.low, outcome.high)} == {np.dtype(np.int64)}


def test_a_sum_is_divided_by_what_its_private_bound_leaves():
    """Its upper end by the least that may be left; intervals end at 0."""
    noise = Width(60 * ROW_UNIT, 30.0 * ROW_UNIT)
    measured = ReleasedScaledSums(np.array([600, 9, -80]) * ROW_UNIT, noise, 0.8, 0.6, CLIPPING).measured()
    assert (measured.name, measured.clipping) == ("sum", CLIPPING)
    assert measured.values.tolist() == [750, 11, -100]
    assert measured.std_errors.tolist() == [37.5] * 3
    assert (measured.low.tolist(), measured.high.tolist()) == ([540, 0, 0], [1100, 115, 0])
    assert {values.dtype for values in (measured.values, measured.low, measured.high)} == {np.dtype(np.int64)}


@pytest.mark.parametrize(("scale", "sampled"), [(741_455, True), (741_456, False)])
def test_a_private_bound_needs_noise_of_the_least_bound_that_can_be_sampled(scale, sampled):
    """It is the scale times 2^20.5: the least length, 2 steps of 2,048 units of 256 parts, for twice its square."""
    scaled = ScaledSums(SumBounds(0, 2**31, private=True), 1, Fraction(scale), "gaussian")
    with contextlib.nullcontext() if sampled else pytest.raises(InputError):
        scaled.check()


def test_differences_are_measured_up_to_half_the_largest_scale():
    """Of 3 sums less 7 numbers of rows it is 3 times that of the sum, so it is the first that cannot be sampled."""
    summed = SumBounds(0, 7, rows=3)
    largest = Fraction(MAX_SCALE, 2 * 3)
    below, above = (ListedSums(1, summed, 1, largest * Fraction(10**9 + n, 10**9)) for n in (-1, 1))
    assert difference_noise(below).std == pytest.approx(MAX_SCALE / 2)
    assert difference_noise(above) is None
    assert average_factors(below) == (0.86, 1.0)
    assert average_factors(above) == (1.0, 1.42)


@pytest.mark.parametrize(
    ("summed", "low", "high"),
    [
        (SumBounds(0, 9), [0, 0, 82], [0, 23, 118]),
        (SumBounds(-9, 9), [-68, -13, 82], [-32, 23, 118]),
        (SumBounds(-9, 0), [-68, -13, 0], [-32, 0, 0]),
        (SumBounds(-9, 1), [-68, -13, 82], [-32, 23, 118]),
        (SumBounds(-1, 9), [-68, -13, 82], [-32, 23, 118]),
        (SumBounds(2, 9), [0, 0, 82], [0, 23, 118]),
    ],
)
def test_intervals_of_sums_with_one_sign_end_at_zero(summed, low, high):
    """The sums themselves stay unbiased."""
    noise = DiscreteLaplace(Fraction(6))
    width = noise.half_width()
    found = measured_sums(np.array([-50, 5, 100]), noise, summed)
    assert width == 18
    assert found.values.tolist() == [-50, 5, 100]
    assert (found.low.tolist(), found.high.tolist()) == (low, high)
    assert found.std_errors.tolist() == [noise.std] * 3


SIXTY = SumBounds(0, 60)
AVERAGED = {"summed": SumBounds(0, 60, rows=5)}
LISTED = {"counts": False, "known_domain": True, "summed": SIXTY}


@pytest.mark.parametrize(
    ("request_", "name", "sum_error", "count_error"),
    [
        (Request(None, 1, **LISTED), "listed+sum", 85, None),
        (Request(None, 1, **LISTED | AVERAGED), "listed+sum", 139, None),
        (Request(None, 200, **LISTED), "listed+sum", 2449, None),
        (Request(None, 200, Sensitivity(3), **LISTED), "listed+sum", 255, None),
        (Request(10, 200, **LISTED), "known-gumbel+sum", 952, None),
        (Request(10, 1000, counts=False, summed=SIXTY), "unknown-gumbel+sum", 1479, None),
        (Request(10, 1000, summed=SIXTY), "unknown-gumbel+sum", 1811, 30.2),
        (Request(10, 1000, counts=False, **AVERAGED), "unknown-gumbel+sum", 1479, None),
        (Request(10, 1000, Sensitivity(3), counts=False, summed=SIXTY), "unknown-laplace+sum", 509, None),
    ],
)
def test_the_errors_are_the_documented_ones(request_, name, sum_error, count_error):
    """At epsilon 1 and delta 1e-8: the better of a Gaussian within the limit and Laplace noise by its own theorem."""
    kind, delta = summing(choose(request_, has_pairs=True), request_), Fraction(1, 10**8)
    made = kind.within_cost(limit_for(1.0, delta, kind.lossless), request_)
    own = kind.at_epsilon(Fraction(1), Cost.at_most(0, delta).delta, replace(request_, noise="laplace"))
    best = min((made.expectation(), own.expectation()), key=lambda expected: expected.sum_std_error)
    assert made.name == name
    assert best.sum_std_error == pytest.approx(sum_error, abs=0.5)
    assert best.min_std_error == (None if count_error is None else pytest.approx(count_error, abs=0.05))
