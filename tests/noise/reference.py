"""Helpers of the noise tests: sources of chosen bits, exact evaluation at 300 bits, a chi-square test."""

from __future__ import annotations

import functools
import math
from collections import Counter
from fractions import Fraction

import mpmath
import numpy as np
from scipy import stats

from discreet.errors import InvariantViolated
from discreet.noise import KeyedBits

SECRET = bytes(range(1, 33))
ALL_ONES = 2**64 - 1
HALF = 2**63
DEPTH = 3
"""How many further words the exact references look at: 2^-192 is never a tie by chance."""

REFERENCE = mpmath.mp.clone()
REFERENCE.prec = 300


def keyed(*context):
    """Return the bits of this context."""
    return KeyedBits(SECRET, context)


class ScriptedBits:
    """Chosen words for chosen labels; other words come from *others*, or are one half."""

    def __init__(self, words, others=None):
        self._words, self._others, self._drawn = words, others, set()

    def uint64(self, label, n, start=0):
        """Return the words of *label*, which must be *n*."""
        assert start == 0
        if label in self._drawn:
            raise InvariantViolated(label)
        self._drawn.add(label)
        if label not in self._words:
            return np.full(n, HALF, dtype=np.uint64) if self._others is None else self._others.uint64(label, n)
        words = np.array(self._words[label], dtype=np.uint64)
        assert words.shape == (n,), (label, words.shape, n)
        return words


class StreamBits:
    """One long keyed draw in pieces, so that many small experiments need few ciphers."""

    def __init__(self, context, words=2**21):
        self._words, self._next = keyed("stream", context).uint64("all", words), 0

    def uint64(self, label, n, start=0):  # noqa: ARG002 - every draw is fresh, whatever its label
        """Return the next *n* words."""
        self._next += n
        assert self._next <= len(self._words), "the stream is too short for this test"
        return self._words[self._next - n : self._next]


def exact_uniform(bits, label, i, word, known_bits=64):
    """Return the middle of variate *i*'s uniform interval: known bits, then DEPTH further words."""
    value, size = int(word) >> (64 - known_bits), known_bits
    for depth in range(1, DEPTH + 1):
        value, size = value << 64 | int(bits.uint64(f"{label}/{i}/{depth}", 1)[0]), size + 64
    return Fraction(2 * value + 1, 2 << size)


def exact_exponentials(bits, label, n, known_bits=64):
    """Return the n variates -ln W at 300 bits, with every further word."""
    words = bits.uint64(label, n)
    return [-log(exact_uniform(bits, label, i, word, known_bits)) for i, word in enumerate(words)]


def real(value):
    """Return a rational number as a 300-bit real."""
    value = Fraction(value)
    return REFERENCE.mpf(value.numerator) / value.denominator


def log(value):
    """Return the natural logarithm of a rational number at 300 bits."""
    return REFERENCE.log(real(value)) if isinstance(value, int | Fraction) else REFERENCE.log(value)


def words_of(uniform, count):
    """Return the first *count* words of a real in (0, 1)."""
    bits = int(REFERENCE.floor(uniform * 2 ** (64 * count)))
    return [bits >> 64 * (count - 1 - i) & ALL_ONES for i in range(count)]


def exact_fraction(value):
    """Return the rational number of a 300-bit real."""
    sign, mantissa, exponent, _ = value._mpf_
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent


def p_value(observed, expected, least=5.0):
    """Return the p-value of a chi-square test of *observed* against *expected* counts; small expectations are pooled.

    An outcome that is not expected at all gives 0.
    """
    if any(expected.get(outcome, 0) <= 0 for outcome in observed):
        return 0.0
    seen, wanted, rest_seen, rest_wanted = [], [], 0.0, 0.0
    for outcome, mean in expected.items():
        if mean < least:
            rest_seen, rest_wanted = rest_seen + observed.get(outcome, 0), rest_wanted + mean
        else:
            seen.append(observed.get(outcome, 0))
            wanted.append(mean)
    missing = sum(observed.values()) - sum(expected.values())
    assert missing > -1e-6 * sum(observed.values()), "the expected counts add up to more than was observed"
    rest_wanted += missing
    if rest_wanted >= 1e-6:
        seen.append(rest_seen)
        wanted.append(rest_wanted)
    statistic = sum((s - w) ** 2 / w for s, w in zip(seen, wanted, strict=True))
    return float(stats.chi2.sf(statistic, max(len(seen) - 1, 1)))


SURE = 1e-6
"""Below this p-value a distribution is taken to be wrong. Keys are fixed: a failure is never bad luck."""


def counted(values):
    """Return how often each integer occurs."""
    return dict(Counter(np.asarray(values).tolist()))


@functools.cache
def laplace_pmf(scale):
    """Return the probability mass function of the discrete Laplace distribution."""
    q = math.exp(-scale.denominator / scale.numerator)
    return lambda z: -math.expm1(-scale.denominator / scale.numerator) / (1 + q) * q ** abs(z)


@functools.cache
def gaussian_pmf(variance):
    """Return the probability mass function of the discrete Gaussian distribution, normalised by summation."""
    reach = math.ceil(40 * math.sqrt(variance)) + 2
    spread = 2 * float(variance)
    total = math.fsum(math.exp(-(z**2) / spread) for z in range(-reach, reach + 1))
    return lambda z: math.exp(-(z**2) / spread) / total
