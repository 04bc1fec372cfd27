"""Rounded Gaussian noise is exact: its distribution, its rounding, and decisions that floats cannot make."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from discreet.errors import InputError, InvariantViolated
from discreet.noise import KeyedBits, RoundedGaussians, rounded_gaussian
from discreet.noise.distributions import Exponentials
from discreet.noise.rounded import (
    _ULPS,
    _exactly_accepted,
    _exactly_scaled,
    _scaled,
    accepted_proposals,
    rounded_root,
)

SECRET = b"thirty-two bytes of rounded noise"


MAX_DEPTH = 40
"""Further words of 64 bits, or halvings of an interval, after which no decision of these tests is open."""


@pytest.fixture(autouse=True)
def _all_decisions_end(monkeypatch):
    """Fail at a decision, or a loop of proposals, that would never end."""
    bounds, batches = Exponentials.bounds, itertools.count()

    def limited(self, i, depth):
        assert depth < MAX_DEPTH
        return bounds(self, i, depth)

    def proposals(*arguments):
        assert next(batches) < 400
        return Exponentials(*arguments)

    monkeypatch.setattr(Exponentials, "bounds", limited)
    monkeypatch.setattr("discreet.noise.rounded.Exponentials", proposals)


def draw(numerator, precisions, run=0, known_bits=64):
    """Return noise with bits that follow from *run*."""
    return rounded_gaussian(KeyedBits(SECRET, run), "x", numerator, np.asarray(precisions), known_bits)


@pytest.mark.statistical
@pytest.mark.parametrize(("numerator", "precision"), [(1, 4), (2, 1), (2**40, 2**33)])
@pytest.mark.parametrize("known_bits", [64, 6])
def test_it_has_the_distribution_of_a_rounded_gaussian(numerator, precision, known_bits):
    """Chi-square against differences of the normal distribution, also where nearly every decision needs more bits."""
    n = 20_000 if known_bits == 64 else 1_500
    found = draw(numerator, np.full(n, precision), 3, known_bits)
    sigma = math.sqrt(numerator / precision)
    reach = math.ceil(2.5 * sigma)
    edges = np.arange(-reach - 0.5, reach + 1)
    probability = np.diff(np.concatenate(([0], stats.norm.cdf(edges / sigma), [1])))
    observed = np.bincount(np.clip(found, -reach - 1, reach + 1) + reach + 1, minlength=2 * reach + 3)
    assert stats.chisquare(observed, probability * n).pvalue > 1e-3


@pytest.mark.statistical
def test_wide_noise_is_gaussian():
    """Kolmogorov-Smirnov with a standard deviation of 2^40, where every bit counts."""
    assert stats.kstest(draw(2**80, np.full(30_000, 1)) / 2**40, "norm").pvalue > 1e-3


def test_every_value_has_its_own_variance():
    """Small variances give small noise at their positions."""
    precisions = np.tile([1, 2**60], 500)
    found = draw(2**62, precisions)
    assert abs(found[1::2]).max() < 20
    assert np.median(abs(found[::2])) > 2**30


def test_the_floats_are_confirmed_by_exact_arithmetic():
    """The acceptance of every proposal by fractions of 128 bits equals that of the intervals."""
    bits = KeyedBits(SECRET, 9)
    sizes, tests = Exponentials(bits, "size", 200), Exponentials(bits, "test", 200)
    assert accepted_proposals(sizes, tests)[1].tolist() == [_exactly_accepted(sizes, tests, i) for i in range(200)]


@pytest.mark.parametrize(("square", "rounded"), [(0, 0), (Fraction(1, 4), 1), (Fraction(24, 100), 0), (6, 2), (7, 3)])
def test_roots_are_rounded_exactly(square, rounded):
    """The result is floor(sqrt(x) + 1/2)."""
    assert rounded_root(Fraction(square)) == rounded


def test_no_bits_are_drawn_for_no_values():
    """An empty array gets no noise."""

    class NoBits:
        def uint64(self, label, n, start=0):
            pytest.fail(f"{n} words of {label} from {start} on")

    assert rounded_gaussian(NoBits(), "x", 1, np.zeros(0, np.int64)).tolist() == []


def test_noise_that_could_leave_the_integers_is_refused():
    """A standard deviation above 2^40 could overflow."""
    with pytest.raises(InputError, match="too small"):
        draw(2**80 + 1, np.array([1]))


def test_large_variances_are_quotients():
    """Only the largest quotient is limited, and 64 bits of each variate are drawn first."""
    precisions = np.full(20, 2**60)
    found = rounded_gaussian(KeyedBits(SECRET, 0), "x", 2**140, precisions)
    assert found.tolist() == draw(2**140, precisions).tolist()
    assert found.tolist() == RoundedGaussians(KeyedBits(SECRET, 0), "x", 2**140, 20).draw(precisions).tolist()
    with pytest.raises(InputError, match="too small"):
        draw(2**140, np.array([2**60, 2**59]))


@pytest.mark.parametrize("known_bits", [64, 6])
@pytest.mark.parametrize("n", [1, 70, 129])
@pytest.mark.parametrize("every", [1, 7])
def test_each_value_is_the_next_accepted_proposal_with_a_sign_of_its_own(n, every, known_bits, monkeypatch):
    """Compared with a loop by definition, in exact fractions; with most proposals refused there are several batches."""
    numerator, precisions, bits, values, batch = 2**30, np.arange(1, n + 1), KeyedBits(SECRET, 4), [], 0
    while len(values) < n:
        left = n - len(values)
        size = left + left // 2 + 16
        sizes = Exponentials(bits, f"x/{batch}/size", size, known_bits)
        tests = Exponentials(bits, f"x/{batch}/test", size, known_bits)
        for i in range(0, size, every):
            if len(values) < n and _exactly_accepted(sizes, tests, i):
                values.append(_exactly_scaled(sizes, i, Fraction(numerator, int(precisions[len(values)]))))
        batch += 1
    words = bits.uint64("x/sign", math.ceil(n / 64)).tolist()
    signed = [value if words[i // 64] >> i % 64 & 1 else -value for i, value in enumerate(values)]

    def some(sizes, tests):
        values, accepted = accepted_proposals(sizes, tests)
        return values, accepted & (np.arange(len(accepted)) % every == 0)

    monkeypatch.setattr("discreet.noise.rounded.accepted_proposals", some)
    assert batch > 1 or every == 1 or n == 1
    assert draw(numerator, precisions, 4, known_bits).tolist() == signed


def test_the_last_values_have_signs_too():
    """NumPy would fill up signs that were not drawn with zeros."""
    words = KeyedBits(SECRET, 5).uint64("x/sign", 21).tolist()
    signs = [words[i // 64] >> i % 64 & 1 for i in range(1301)]
    assert (draw(2**60, np.ones(1301, np.int64), 5) > 0).tolist() == list(map(bool, signs))


@pytest.mark.parametrize("errors", [(2.0**-20, 0.0), (0.0, 2.0**-20), (0.0, -(2.0**-20))])
def test_proposals_that_errors_of_either_variate_could_change_are_tested_exactly(errors):
    """Values that are as far from the true ones as their bounds allow, and true ones next to the hurdle."""

    class Off:
        def __init__(self, values, error):
            self.true = values
            self.error = error

        def values(self):
            return self.true + self.error

        def radius(self, given):
            return np.full(len(given), abs(self.error))

        def bounds(self, index, depth):
            assert depth < MAX_DEPTH
            return Fraction(float(self.true[index])), Fraction(float(self.true[index]))

    sizes = np.random.default_rng(1).uniform(1e-3, 6, 300)
    tests = (sizes - 1) ** 2 / 2 + 2.0**-30 * np.tile([1, -1], 150)
    accepted = accepted_proposals(Off(sizes, errors[0]), Off(tests, errors[1]))[1]
    assert accepted.tolist() == np.tile([True, False], 150).tolist()


@pytest.mark.parametrize("ulps", [-1, 0, 1])
def test_comparisons_of_floats_that_are_next_to_each_other_are_exact(ulps):
    """The hurdle of a size below 1/2 is off by more than its last digit."""

    class Known:
        def __init__(self, values):
            self.known = values

        def values(self):
            return self.known

        def radius(self, given):
            return np.zeros(len(given))

        def bounds(self, index, depth):
            assert depth < MAX_DEPTH
            return Fraction(float(self.known[index])), Fraction(float(self.known[index]))

    sizes = np.random.default_rng(1).uniform(1e-3, 0.5, 300)
    tests = (sizes - 1) ** 2 / 2
    tests += ulps * np.spacing(tests)
    exact = [
        Fraction(test) > (Fraction(size) - 1) ** 2 / 2
        for size, test in zip(sizes.tolist(), tests.tolist(), strict=True)
    ]
    assert accepted_proposals(Known(sizes), Known(tests))[1].tolist() == exact
    assert exact != (tests > (sizes - 1) ** 2 / 2).tolist()


class Narrowing:
    """A variate of which every further word halves the known interval; the true value is not in its middle."""

    def __init__(self, value, width):
        self.value, self.width = Fraction(value), Fraction(width)

    def bounds(self, index, depth):
        """Return bounds, the upper one being None at first, as while a uniform variate may be 0."""
        assert index == 3
        assert depth < MAX_DEPTH
        width = self.width / 2**depth
        return max(self.value - width / 3, Fraction(0)), None if depth == 1 else self.value + width


@pytest.mark.parametrize("size", ["0.2", "0.99", "1", "1.01", "2", "3.5"])
@pytest.mark.parametrize("away", ["0.001", "0.1"])
def test_acceptance_is_decided_at_whatever_depth_the_intervals_part(size, away):
    """E > (Y - 1)^2 / 2, just above and just below, whichever of the two is known worse."""
    hurdle = (Fraction(size) - 1) ** 2 / 2
    for width, other in ((1, 4), (4, 1), (Fraction(1, 1000), 4)):
        known = Narrowing(size, width)
        assert _exactly_accepted(known, Narrowing(hurdle + Fraction(away), other), 3)
        if hurdle > Fraction(away):
            assert not _exactly_accepted(known, Narrowing(hurdle - Fraction(away), other), 3)


def test_a_size_that_may_be_1_has_no_hurdle_yet():
    """Between 1/2 and 3/2 the hurdle, 1/8 at both ends, may be 0."""

    class Known:
        def __init__(self, *intervals):
            self.intervals = intervals

        def bounds(self, index, depth):
            assert index == 0
            return tuple(map(Fraction, self.intervals[depth - 1]))

    sizes, tests = Known(("1/2", "3/2"), ("0.9", "1.1")), Known(("0", "1/16"), ("1/100", "1/16"))
    assert _exactly_accepted(sizes, tests, 0)


@pytest.mark.parametrize("value", ["0", "0.4", "0.499", "0.501", "7.4999", "7.5001"])
def test_rounding_is_decided_at_whatever_depth_the_interval_parts(value):
    """floor(Y sqrt(variance) + 1/2)."""
    for variance in (1, 4, Fraction(1, 9)):
        rounded = math.floor(float(Fraction(value)) * math.sqrt(variance) + 0.5)
        assert _exactly_scaled(Narrowing(value, 8), 3, Fraction(variance)) == rounded


@pytest.mark.parametrize("margins", [0, 1])
def test_products_of_floats_that_are_next_to_a_half_are_rounded_exactly(margins):
    """A standard deviation of 2^39.5 moves a product across a half; its known error alone does not."""
    variance = 2 * 4**39
    sigma = math.sqrt(variance)
    values = (np.arange(200) * 2**32 + 2**40 - 0.5) / sigma

    class Known:
        def radius(self, given):
            return margins * _ULPS * (given * sigma + 1) / sigma

        def bounds(self, index, depth):
            assert depth < MAX_DEPTH
            return Fraction(float(values[index])), Fraction(float(values[index]))

    exact = [rounded_root(Fraction(float(value)) ** 2 * variance) for value in values]
    assert _scaled(Known(), values, np.arange(200), variance, np.ones(200, np.int64)).tolist() == exact
    assert np.floor(values * sigma + 0.5).tolist() != exact


@pytest.mark.parametrize("block", [17, 50, 2**20])
@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("parts", [[129], [1, 64, 63, 1], [0, 128, 1], [1] * 129])
def test_draws_in_parts_are_those_of_one_call(parts, every, block, monkeypatch):
    """Whatever the parts and the blocks of proposals, also where several batches of them are needed."""
    precisions, exact, calls = np.arange(1, 130), accepted_proposals, []

    def some(sizes, tests):
        values, accepted = exact(sizes, tests)
        calls.append(len(accepted))
        return values, accepted & ((np.arange(len(accepted)) + sizes._first) % every == 0)

    monkeypatch.setattr("discreet.noise.rounded.accepted_proposals", some)
    expected = draw(2**30, precisions, known_bits=6)
    assert len(calls) > (every > 1)
    monkeypatch.setattr("discreet.noise.rounded._BLOCK", block)
    draws = RoundedGaussians(KeyedBits(SECRET, 0), "x", 2**30, 129, 6)
    found = [draws.draw(part) for part in np.split(precisions, np.cumsum(parts)[:-1])]
    assert np.concatenate(found).tolist() == expected.tolist()
    with pytest.raises(InvariantViolated, match="announced"):
        draws.draw(precisions[:1])
