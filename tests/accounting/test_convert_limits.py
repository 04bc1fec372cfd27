"""The largest parameters within a limit: as large as possible, and never larger."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.accounting.convert import (
    LEAST_DELTA,
    PRECISION_BITS,
    ceil_sqrt,
    epsilon_per_unit,
    floor_bits,
    floor_sqrt,
    guarantee_of,
    limit_for,
    share_of_delta,
)
from discreet.errors import InputError
from discreet.values import DELTA_QUANTUM, RHO_QUANTUM, Cost

from .test_convert import MP, true_epsilon

positive = st.one_of(
    st.fractions(Fraction(1, 10**40), 10**40),
    st.integers(1, 10**60).map(Fraction),
    st.integers(1, 10**60).map(lambda n: Fraction(1, n)),
    st.integers(-300, 300).map(lambda n: Fraction(2) ** n),
)
bits = st.integers(1, 64)


def is_dyadic(value):
    """Return True if the denominator is a power of two."""
    return value.denominator & (value.denominator - 1) == 0


@given(positive, bits)
def test_floor_bits_rounds_down_to_few_bits(value, bits):
    """Never above, less than 2^(1-bits) below, dyadic, at most one bit longer than requested, and idempotent."""
    rounded = floor_bits(value, bits)
    assert value * (1 - Fraction(2) / 2**bits) < rounded <= value
    assert is_dyadic(rounded)
    assert (rounded.numerator // (rounded.numerator & -rounded.numerator)).bit_length() <= bits + 1
    assert floor_bits(rounded, bits) == rounded


@given(positive, bits)
def test_floor_sqrt_rounds_the_root_down(value, bits):
    """Its square is at most the value, and that of a 2^(2-bits) greater number is above; it is dyadic."""
    root = floor_sqrt(value, bits)
    assert root**2 <= value < (root * (1 + Fraction(4) / 2**bits)) ** 2
    assert is_dyadic(root)


@given(positive, bits)
def test_ceil_sqrt_rounds_the_root_up(value, bits):
    """Its square is at least the value, and that of a 2^(2-bits) smaller number is below."""
    root = ceil_sqrt(value, bits)
    assert (root / (1 + Fraction(4) / 2**bits)) ** 2 < value <= root**2


@given(st.integers(1, 2**20), st.integers(-40, 40))
def test_roots_that_are_short_are_exact(root, exponent):
    """Perfect squares of dyadic numbers have exact roots, up and down."""
    exact = root * Fraction(2) ** exponent
    assert floor_sqrt(exact**2) == exact
    assert ceil_sqrt(Fraction(1) / exact**2) == 1 / exact


def test_the_root_of_zero_is_zero():
    """A spent budget buys a parameter of 0."""
    assert floor_sqrt(Fraction(0)) == floor_sqrt(Fraction(-1)) == 0


def test_parameters_are_coarse_enough_to_be_equal_everywhere():
    """Parameters have 28 bits, so that differences of logarithms between machines are rounded away."""
    assert PRECISION_BITS == 28
    for value in (0.1234567890123, 8.765e-9, 3.3, 99999.7):
        near = [Fraction(value * (1 + step * 2.0**-52)) for step in (-4, -1, 0, 1, 4)]
        assert len(set(near)) > 3
        assert len(set(map(floor_bits, near))) == 1


@given(st.fractions(Fraction(1, 10**12), 10**4), st.one_of(st.integers(1, 10**5), st.fractions(Fraction(1, 2), 100)))
def test_an_epsilon_per_unit_fits_the_rho_it_was_made_from(rho, units):
    """The cost of all units, rounded up to quanta, is within the limit; a ten-millionth more would not fit."""
    limit = Cost.at_most(rho, 0)
    epsilon = epsilon_per_unit(limit.rho, units)
    assert Cost(units * epsilon**2 / 8).within(limit)
    assert units * (epsilon * (1 + Fraction(1, 10**7))) ** 2 / 8 > limit.rho


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-3, 0.1, 0.5, 1.0, 4.0, 8.0, 50.0])
@pytest.mark.parametrize(
    "delta", [Fraction(1, 10**12), Fraction(1, 10**8), Fraction(3, 10**6), Fraction(1, 10)], ids=str
)
def test_a_limit_keeps_the_guarantee_it_was_made_from(epsilon, delta, lossless):
    """By an independent conversion: never above epsilon, and used up to a ten-millionth (and one quantum of rho)."""
    limit = limit_for(epsilon, delta, lossless)
    assert limit.delta == (0 if lossless else delta / 2)
    conversion = MP.mpf((delta - limit.delta).numerator) / (delta - limit.delta).denominator
    assert true_epsilon(MP.mpf(limit.rho.numerator) / limit.rho.denominator, conversion) <= epsilon
    more = (limit.rho + RHO_QUANTUM) * (1 + Fraction(1, 10**7))
    assert true_epsilon(MP.mpf(more.numerator) / more.denominator, conversion) > epsilon


@given(st.floats(0.001, 100), st.fractions(Fraction(1, 10**20), Fraction(1, 2)), st.booleans())
def test_the_guarantee_of_a_limit_is_the_requested_one(epsilon, delta, lossless):
    """The reported epsilon is never above the requested one, nor visibly below."""
    found = guarantee_of(limit_for(epsilon, delta, lossless), delta)
    assert epsilon * (1 - 1e-7) <= found.epsilon <= epsilon
    assert found.delta >= delta


@given(st.floats(0.001, 100), st.fractions(Fraction(1, 10**20), Fraction(1, 2)))
def test_a_lossless_limit_buys_more_rho(epsilon, delta):
    """All of delta pays for the conversion; otherwise half of it, rounded down to quanta, may be lost."""
    lossless, lossy = limit_for(epsilon, delta, lossless=True), limit_for(epsilon, delta)
    assert lossless.rho > lossy.rho
    assert lossless.delta == 0
    assert delta / 2 - DELTA_QUANTUM < lossy.delta <= delta / 2


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 0.1), (-1.0, 0.1), (1.0, 0), (1.0, -1), (1.0, 2), (1.0, 1.5), (1.0, 1)]
)
def test_a_guarantee_outside_its_range_is_refused(epsilon, delta):
    """Epsilon above 0, delta above 0 and below 1; the error has the number as it was given."""
    refused = f"delta must be .*, not {Fraction(delta)}" if epsilon > 0 else f"epsilon must be .*, not {epsilon}"
    with pytest.raises(InputError, match=f"^{refused}$"):
        limit_for(epsilon, Fraction(delta))


@given(st.floats(0.1, 20), st.floats(1e-5, 1), st.integers(5, 12))
def test_queries_of_a_small_epsilon_use_up_rho_before_delta(epsilon, part, digits):
    """Of delta they take no more than of rho, and no less than nine tenths of that; a large one takes the most."""
    limit, most = limit_for(epsilon, Fraction(1, 10**digits)), Fraction(1, 10 ** (digits + 2))
    delta = share_of_delta(epsilon * part, limit, most)
    asked = limit_for(epsilon * part, delta)
    rho, lost = asked.rho / limit.rho, asked.delta / limit.delta
    assert delta == LEAST_DELTA or lost <= rho
    assert delta == most or lost >= rho * Fraction(9, 10)
    assert delta == Fraction(f"{float(delta):.1e}")  # two digits, which are shown exactly
