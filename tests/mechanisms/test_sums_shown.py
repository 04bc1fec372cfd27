"""Displayed sums and averages: values, standard errors, and ends of intervals."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.accounting.convert import limit_for
from discreet.head_request import SumBounds
from discreet.mechanisms import KnownLaplace, Request, UnknownLaplace, summing
from discreet.mechanisms.sums import Estimates, KnownLaplaceSums, UnknownLaplaceSums, averages, measured_sums
from discreet.noise import DiscreteLaplace, KeyedBits
from discreet.query.planning import choose
from discreet.values import Cost, ExactHead, Sensitivity

SECRET = b"a secret for what sums look like"


def quotient(total, width, users, spread, summed):
    """Return the average of one item: its low end, value and high end."""
    sums, counts = (Estimates(np.array([v]), 1.0, w) for v, w in ((total, width), (users, spread)))
    found = averages(sums, counts, summed)
    return found.low[0], found.values[0], found.high[0]


def quotient_of_positive_sums(total, width, users, spread, summed):
    """Return `quotient` with a defect: sums are assumed to be positive."""
    ends = (total - width) / max(users + spread, 1), total / max(users, 1), (total + width) / max(users - spread, 1)
    return tuple(min(max(end, summed.low), summed.high) for end in ends)


def holds_every_quotient(found, total, width, users, spread, summed):
    """Return whether an interval reaches from the least to the greatest average of sums and counts in reach."""
    possible = [
        min(max(s / n, summed.low), summed.high)
        for s in (total - width, total, total + width)
        for n in range(max(users - spread, 1), max(users + spread, 1) + 1)
    ]
    return (found[0], found[2]) == (min(possible), max(possible)) and found[0] <= found[1] <= found[2]


numbers = st.tuples(st.integers(-60, 60), st.integers(0, 30), st.integers(-10, 40), st.integers(0, 20))
bounds = st.tuples(st.integers(-9, 9), st.integers(0, 9)).filter(any)


@given(numbers, bounds)
def test_an_interval_of_an_average_holds_every_quotient_and_no_more(number, bound):
    """It reaches from the least to the greatest quotient, clipped to the bounds, and contains the average."""
    summed = SumBounds(bound[0], sum(bound))
    found = quotient(*number, summed)
    assert holds_every_quotient(found, *number, summed)
    assert found[1] == min(max(number[0] / max(number[2], 1), summed.low), summed.high)


def test_the_check_detects_ignored_negative_sums():
    """The check above can fail: a negative sum is least with the fewest users."""
    number, summed = (-20, 3, 10, 4), SumBounds(-9, 9)
    assert holds_every_quotient(quotient(*number, summed), *number, summed)
    assert not holds_every_quotient(quotient_of_positive_sums(*number, summed), *number, summed)


def test_an_average_by_hand():
    """600 over 20 users is 30; with 60 and 4 around them from 540/24 to 660/16; bounds of 0 to 40 cut the upper end."""
    summed = SumBounds(0, 40)
    found = averages(Estimates(np.array([600]), 30.0, 60), Estimates(np.array([20]), 2.0, 4), summed)
    assert (found.low[0], found.values[0], found.high[0]) == (22.5, 30.0, 40.0)
    assert found.std_errors[0] == pytest.approx(math.hypot(30, 30 * 2) / 20)
    assert found.name == "average"


def test_an_average_over_no_users_is_within_its_bounds():
    """Noisy counts of 1 and less count as 1; the error is at most the width of the bounds."""
    summed = SumBounds(-10, 40)
    sums, counts = Estimates(np.array([7, 90, -90]), 300.0, 600), Estimates(np.array([0, -50, 1]), 5.0, 9)
    found = averages(sums, counts, summed)
    assert found.values.tolist() == [7, 40, -10]
    assert found.std_errors.tolist() == [50, 50, 50]
    assert found.low.tolist() == [-10, -10, -10]
    assert found.high.tolist() == [40, 40, 40]


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


@pytest.mark.parametrize(
    ("kind", "ranking"),
    [
        (KnownLaplaceSums, KnownLaplace(2, 40, 1, Fraction(4), 1, "laplace")),
        (UnknownLaplaceSums, UnknownLaplace(2, 40, 1, Fraction(4), Fraction(1, 1000), 1, "laplace")),
    ],
)
def test_averages_use_selected_intervals_of_counts(kind, ranking):
    """If noisy values selected the items, counts have wide intervals at half the miss, and sums plain ones."""
    summed = SumBounds(0, 100)
    mechanism = kind(ranking, summed, 1, "laplace", average=True)
    counts = np.array([1_000 - 10 * i for i in range(40)])
    outcome = mechanism.release(ExactHead(counts, 40, None, 50 * counts), KeyedBits(SECRET, 0))
    bits = KeyedBits(SECRET, 0)
    noisy = 50 * counts[outcome.positions] + mechanism.sum_noise().draw(bits, "sums", 2)
    width = DiscreteLaplace(Fraction(4)).half_width(0.025 * 2 / 40)
    reach = DiscreteLaplace(Fraction(400)).half_width(0.025)
    assert mechanism.sum_noise() == DiscreteLaplace(Fraction(400))
    assert outcome.measured.values.tolist() == (noisy / outcome.counts).tolist()
    assert outcome.measured.low.tolist() == ((noisy - reach) / (outcome.counts + width)).tolist()
    assert outcome.measured.high.tolist() == ((noisy + reach) / (outcome.counts - width)).tolist()
    plain = DiscreteLaplace(Fraction(4)).half_width(mechanism.ranking.plain_miss(2, 0.05))
    assert (outcome.high - outcome.counts).tolist() == [plain] * 2  # the ranking says of itself what it does


SIXTY = SumBounds(0, 60)
LISTED = {"counts": False, "known_domain": True, "summed": SIXTY}


@pytest.mark.parametrize(
    ("request_", "name", "sum_error", "count_error"),
    [
        (Request(None, 1, **LISTED), "listed+sum", 85, None),
        (Request(None, 1, known_domain=True, summed=SIXTY, average=True), "known-laplace+sum", 170, 2.8),
        (Request(None, 200, **LISTED), "listed+sum", 4574, None),
        (Request(None, 200, Sensitivity(3), **LISTED), "listed+sum", 255, None),
        (Request(10, 200, **LISTED), "known-gumbel+sum", 1447, None),
        (Request(10, 1000, counts=False, summed=SIXTY), "unknown-gumbel+sum", 1479, None),
        (Request(10, 1000, summed=SIXTY, average=True), "unknown-gumbel+sum", 1811, 30.2),
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
