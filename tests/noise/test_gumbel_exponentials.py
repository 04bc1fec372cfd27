"""Bounds on logarithms and on exponential variates enclose the exact value for any words."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InvariantViolated
from discreet.noise.distributions import Exponentials, log_bounds

from .reference import ALL_ONES, HALF, ScriptedBits, exact_exponentials, exact_fraction, keyed, log, real

POWERS = [1 << p for p in range(64)]
ADVERSARIAL = sorted(
    {0, ALL_ONES, HALF, *POWERS, *(p - 1 for p in POWERS), *(p + 1 for p in POWERS), *(ALL_ONES - p for p in POWERS)}
)
"""Words next to 0, next to 1, next to one half, and on both sides of every power of two."""

KNOWN_BITS = [1, 2, 4, 8, 17, 31, 32, 33, 40, 52, 53, 63, 64]


def variates(words, known_bits=64, further=None):
    """Return exponentials that drew *words*; `further` holds the words of label "x/index/depth"."""
    named = {"x": words, **{f"x/{label}": [word] for label, word in (further or {}).items()}}
    return Exponentials(ScriptedBits(named), "x", len(words), known_bits)


def intervals(words, known_bits):
    """Return the uniform interval that the known bits of each word leave: fractions (low, high)."""
    known = [int(word) >> (64 - known_bits) for word in words]
    return [(Fraction(k, 1 << known_bits), Fraction(k + 1, 1 << known_bits)) for k in known]


def gumbel(uniform):
    """Return -ln -ln of a fraction at 300 bits, infinite at the ends."""
    if uniform in (0, 1):
        return mpmath.mpf("-inf") if uniform == 0 else mpmath.mpf("inf")
    return -log(-log(uniform))


@given(st.fractions(min_value=Fraction(1, 10**40), max_value=10**40).filter(lambda v: v != 1), st.integers(15, 80))
def test_log_bounds_enclose_the_logarithm_narrowly(value, digits):
    """They are on both sides of mpmath's value, a few units of the last digit apart."""
    low, high = log_bounds(value, digits)
    truth = log(value)
    assert real(low) < truth < real(high)
    assert high - low < 60 * Fraction(1, 10**digits) * max(1, abs(exact_fraction(truth)))


@pytest.mark.parametrize("shift", [10, 64, 128, 200])
@pytest.mark.parametrize("side", [-1, 1])
def test_log_bounds_enclose_next_to_one(shift, side):
    """The logarithm nearly vanishes there, and only the quotient's rounding remains."""
    value = 1 + side * Fraction(1, 1 << shift)
    for digits in (shift // 3 + 5, shift // 3 + 20, 90):
        low, high = log_bounds(value, digits)
        assert real(low) < log(value) < real(high)


@pytest.mark.parametrize("power", [-2000, -600, -300, 300, 600, 2000])
def test_log_bounds_enclose_for_values_that_are_no_floats(power):
    """A rival's factor may be arbitrarily small or large."""
    value = Fraction(7, 3) * Fraction(10) ** power
    low, high = log_bounds(value, 60)
    assert real(low) < log(value) < real(high)
    assert high - low < Fraction(1, 10**50)


@pytest.mark.parametrize(
    "call",
    [
        "log_bounds(Fraction(1), 40)",
        "log_bounds(1 + Fraction(1, 10**50), 40)",
        "Exponentials(Ones(), 'x', 1).bounds(0, 1)",
    ],
)
def test_the_logarithm_of_a_value_that_rounds_to_one_is_bounded(call):
    """In a separate process, since a defect here may never return."""
    script = f"""
        from fractions import Fraction
        import numpy as np
        from discreet.noise.distributions import Exponentials
        from discreet.noise.distributions import log_bounds
        class Ones:
            def uint64(self, label, n, start=0): return np.full(n, 2**64 - 1, dtype=np.uint64)
        low, high = {call}
        assert low <= 0 <= high < Fraction(1, 10**30) or 0 <= low <= high < Fraction(1, 2**120)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=120)


@pytest.mark.parametrize("known_bits", KNOWN_BITS)
def test_radius_is_a_true_bound_for_adversarial_words(known_bits):
    """Every real that the known bits allow is within the radius of the value."""
    noise = variates(ADVERSARIAL, known_bits)
    values = noise.values()
    radius = noise.radius(values)
    assert not np.isnan(radius).any()
    finite = 0
    for value, bound, (low, high) in zip(
        values.tolist(), radius.tolist(), intervals(ADVERSARIAL, known_bits), strict=True
    ):
        if bound < np.inf:
            finite += 1
            assert abs(-log(low) - value) <= bound
            assert abs(-log(high) - value) <= bound
    assert (finite > 50) == (known_bits > 4)


def test_a_word_of_zeros_has_no_finite_radius():
    """W may be 0 and the variate arbitrarily large."""
    noise = variates([0, 1, 15])
    assert noise.radius(noise.values()).tolist() == [np.inf] * 3


@pytest.mark.parametrize("known_bits", KNOWN_BITS)
def test_regular_values_have_a_relative_error_of_2_to_the_minus_19(known_bits):
    """Races skip candidates by it."""
    near_one = [ALL_ONES - (1 << p) - k * (1 << p) // 8 for p in range(20, 62) for k in range(9)]
    rounded = [word - 1023 // n for word in near_one for n in (2, 3, 4)]  # floats have 53 bits
    words = sorted({*ADVERSARIAL, *near_one, *rounded})
    noise = variates(words, known_bits)
    values = noise.values()
    irregular = set(noise.irregular(values).tolist())
    for i, (low, high) in enumerate(intervals(words, known_bits)):
        if i not in irregular:
            least, most = -log(high), -log(low)
            assert values[i] * (1 - 2**-19) <= least, words[i]
            assert most <= values[i] * (1 + 2**-19), words[i]


@pytest.mark.parametrize("known_bits", KNOWN_BITS)
def test_gumbel_bounds_enclose_for_adversarial_words(known_bits):
    """Both ends of every uniform interval are inside, and the bound is infinite where W may be 0 or 1."""
    noise = variates(ADVERSARIAL, known_bits)
    lows, highs = noise.gumbel_bounds(np.arange(len(ADVERSARIAL)))
    for low, high, (least, most) in zip(lows.tolist(), highs.tolist(), intervals(ADVERSARIAL, known_bits), strict=True):
        assert low <= gumbel(least)
        assert gumbel(most) <= high


def test_gumbel_bounds_are_as_narrow_as_64_bits_allow():
    """For 20,000 random words the bounds are within 2^-40, so that refinements are rare."""
    noise = Exponentials(keyed("narrow"), "x", 20_000)
    low, high = noise.gumbel_bounds(np.arange(20_000))
    assert np.median(high - low) < 2.0**-44
    assert (high - low).max() < 2.0**-40


def test_values_are_exponential_variates_of_their_words():
    """Values are -ln of random words and further words by mpmath, within the radius."""
    noise = Exponentials(keyed("values"), "x", 300)
    values = noise.values()
    for value, bound, exact in zip(
        values, noise.radius(values), exact_exponentials(keyed("values"), "x", 300), strict=True
    ):
        assert abs(exact - value.item()) <= bound < 2.0**-45


@pytest.mark.parametrize("known_bits", [1, 2, 4, 64])
def test_refined_bounds_are_nested_and_close_in_on_the_variate(known_bits):
    """Each depth is inside the previous one, contains the exact variate, and is about 2^-64 times as wide."""
    exact = exact_exponentials(keyed("nested"), "x", 40, known_bits)
    noise = Exponentials(keyed("nested"), "x", 40, known_bits)
    for i, truth in enumerate(exact):
        least, most = noise.bounds(i, 1)
        for depth in (1, 2, 3):
            low, high = noise.bounds(i, depth)
            assert least <= low < high
            assert most is None or high <= most
            assert real(low) <= truth <= real(high)
            assert high - low < Fraction(1, 2 ** (64 * depth - 20))
            least, most = low, high


@pytest.mark.parametrize("depth", [1, 2])
def test_refined_bounds_enclose_both_ends_of_the_interval_that_is_known(depth):
    """To the last digit: the logarithms are rounded outwards."""
    noise = Exponentials(keyed("ends"), "x", 40)
    words = keyed("ends").uint64("x", 40).tolist()
    for i, word in enumerate(words):
        low, high = noise.bounds(i, depth)
        known = word
        for further in range(1, depth + 1):
            known = known << 64 | int(keyed("ends").uint64(f"x/{i}/{further}", 1)[0])
        size = 1 << (64 + 64 * depth)
        assert real(low) < -log(Fraction(known + 1, size))
        assert -log(Fraction(known, size)) < real(high)


def test_bounds_do_not_depend_on_the_order_of_calls():
    """Depth 3 at once or step by step, in any order of variates: the same words, drawn once."""
    one, other = (Exponentials(keyed("order"), "x", 3) for _ in range(2))
    deep = [one.bounds(i, 3) for i in (0, 1, 2)]
    steps = {i: [other.bounds(i, depth) for depth in (1, 2, 3)] for i in (2, 0, 1)}
    assert [steps[i][-1] for i in (0, 1, 2)] == deep
    assert one.bounds(1, 1) == steps[1][0]


def test_further_words_are_labelled_by_index_and_depth():
    """Further words of ones push W to the upper end, and zeros to the lower, by the documented labels."""
    word = 12345 << 40
    noise = variates([HALF, word, word], further={"1/1": ALL_ONES, "2/1": 0})
    assert noise.bounds(1, 1)[1] < noise.bounds(2, 1)[0]
    for i, uniform in ((1, Fraction(word + 1, 2**64)), (2, Fraction(word, 2**64))):
        low, high = noise.bounds(i, 1)
        assert real(low) - 2.0**-60 < -log(uniform) < real(high) + 2.0**-60


def test_the_upper_end_is_unknown_while_the_uniform_may_be_zero():
    """Words of zeros give None, and a number once a bit is set."""
    noise = variates([0], further={"0/1": 0, "0/2": 1})
    assert noise.bounds(0, 1)[1] is None
    low, high = noise.bounds(0, 2)
    assert real(low) <= 191 * log(2) <= real(high)


def test_known_bits_hide_the_rest_of_the_word():
    """Two words that share their first bits give the same values, and the same bounds when their further words do."""
    one, other = variates([HALF], 4), variates([HALF + (1 << 60) - 1], 4)
    assert one.values() == other.values()
    assert one.bounds(0, 1) == other.bounds(0, 1)


def test_none_are_drawn_for_none():
    """Zero draws give an empty vector and use their label."""
    bits = keyed("none")
    noise = Exponentials(bits, "x", 0)
    assert len(noise) == 0
    assert noise.values().shape == (0,)
    with pytest.raises(InvariantViolated):
        Exponentials(bits, "x", 1)


def test_further_words_of_a_long_vector_have_labels_of_their_own():
    """Of any number of variates, drawn at once or in parts: a word of two variates would be drawn twice."""
    numbers = [0, 2**20 - 1, 2**20, 2**21]
    bits = keyed("long")
    whole = Exponentials(bits, "x", 2**21 + 1)
    drawn = [whole.bounds(i, 1) for i in numbers]
    assert len(set(drawn)) == len(numbers)
    for i, bounds in list(zip(numbers, drawn, strict=True))[1:]:
        bits = keyed("long")
        bits.uint64("x", i - 1)
        assert Exponentials(bits, "x", 2, first=i - 1).bounds(1, 1) == bounds
