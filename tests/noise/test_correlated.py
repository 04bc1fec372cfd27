"""Correlated noise is exact, has the covariances of the square root, and follows from the key, the item and the day."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from discreet.errors import InputError, InvariantViolated
from discreet.noise import CorrelatedGaussians
from discreet.noise.correlated import _ItemExponentials, _ItemWords, factors, squared_sums
from discreet.noise.rounded import _exactly_accepted

SECRET = b"thirty-two bytes of a public key"
ITEMS = [f"item {n}".encode() for n in range(40)]


def test_the_factors_are_the_square_root_of_the_matrix_that_sums_up():
    """R R = A: the convolution of f with itself is 1, 1, 1, ..., and gamma bounds the sums of the squares."""
    n = 400
    exact = [Fraction(math.comb(2 * k, k), 4**k) for k in range(n)]
    assert all(sum(exact[k] * exact[t - k] for k in range(t + 1)) == 1 for t in range(0, n, 37))
    assert np.allclose(factors(n), [float(f) for f in exact], rtol=n * 2.0**-51, atol=0)
    total = Fraction(0)
    for t, bound in enumerate(squared_sums(n).tolist()):
        total += exact[t] ** 2
        assert total <= Fraction(bound) <= total * (1 + Fraction(2, 10**9))


def exactly(noise, item, day):
    """Return the noise of one item by its definition, in fractions of 640 bits; None if that does not decide."""
    words = _ItemWords(noise._key, name_of(noise, item))
    low = high = Fraction(0)
    for s in range(1, day + 1):
        number = 0
        while True:
            sizes, tests = (_ItemExponentials(words, f"{s}/{number}/{use}", noise._known) for use in ("size", "test"))
            if _exactly_accepted(sizes, tests, 0):
                break
            number += 1
        least, most = sizes.bounds(0, 9)
        weight = Fraction(math.comb(2 * (day - s), day - s), 4 ** (day - s))
        low += weight * (least if words.signs(s)[0] else -most)
        high += weight * (most if words.signs(s)[0] else -least)
    root = Fraction(math.isqrt(math.floor(noise.variance * 2**400)), 2**200)
    ends = {math.floor(end * root + Fraction(1, 2)) for end in (low, high)}
    assert len(ends) == 1
    return ends.pop()


def name_of(noise, item):
    """Return the 16 bytes that name an item, as documented."""
    import hashlib
    import hmac

    key = hmac.digest(noise._key, b"items", hashlib.sha256)
    return hmac.digest(key, item, hashlib.sha256)[:16]


@pytest.mark.parametrize("known_bits", [64, 8, 3])
@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(100), Fraction(2**61, 3)])
def test_it_is_the_rounding_of_the_exact_sum(known_bits, variance):
    """By definition, in fractions, also where few bits are known at first and floats decide next to nothing."""
    noise = CorrelatedGaussians(SECRET, "x", variance, known_bits)
    for day in (1, 2, 5):
        assert noise.draw(ITEMS[:6], day).tolist() == [exactly(noise, item, day) for item in ITEMS[:6]]


def test_it_does_not_depend_on_what_is_drawn_together(monkeypatch):
    """One item alone, all in another order and blocks of three get the same numbers; another object as well."""
    noise = CorrelatedGaussians(SECRET, ("stream", 1), Fraction(10**9), 6)
    together = noise.draw(ITEMS, 4).tolist()
    assert [int(noise.draw([item], 4)[0]) for item in ITEMS] == together
    assert (
        CorrelatedGaussians(SECRET, ("stream", 1), Fraction(10**9), 6).draw(ITEMS[::-1], 4).tolist() == together[::-1]
    )
    monkeypatch.setattr("discreet.noise.correlated._BLOCK", 3)
    assert noise.draw(ITEMS, 4).tolist() == together


@pytest.mark.parametrize("other", [{"secret": SECRET[::-1]}, {"context": ("stream", 2)}])
def test_other_keys_and_streams_have_other_noise(other):
    """No number of 40 with a standard deviation of 2^30 is the same by chance."""
    parts = {"secret": SECRET, "context": ("stream", 1), "variance": Fraction(2**60)}
    one = CorrelatedGaussians(**parts).draw(ITEMS, 3)
    assert not np.any(one == CorrelatedGaussians(**(parts | other)).draw(ITEMS, 3))


@pytest.mark.statistical
def test_the_covariances_are_those_of_the_square_root():
    """sigma^2 R R^T, within four standard errors of a sample covariance; independent noise per day has others."""
    n = 20_000
    noise = CorrelatedGaussians(SECRET, "covariances", Fraction(10_000))
    items = [str(k).encode() for k in range(n)]
    days = (1, 2, 7)
    drawn = np.stack([noise.draw(items, day) for day in days])
    f = factors(7)
    expected = 10_000 * np.array(
        [[sum(f[a - s] * f[b - s] for s in range(1, min(a, b) + 1)) for a in days] for b in days]
    )
    spread = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / n)
    assert np.all(np.abs(np.cov(drawn) - expected) < 4 * spread)
    assert not np.all(np.abs(np.cov(drawn) - np.diag(np.diag(expected))) < 4 * spread)
    assert stats.kstest(drawn[2] / math.sqrt(expected[2, 2]), "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(drawn[:, ::2], drawn[:, 1::2])[:3, 3:]).max() < 4 / math.sqrt(n / 2)


def test_golden_values():
    """A stream goes on for years: any other number here breaks its guarantee, so the format needs a new name first."""
    noise = CorrelatedGaussians(SECRET, ("golden", 1), Fraction(2**40))
    assert [noise.draw(ITEMS[:3], day).tolist() for day in (1, 2, 30)] == GOLDEN


GOLDEN = [[1536667, 295989, 434840], [38955, -456597, 704792], [-2886987, 2491227, -829893]]


def test_what_is_out_of_range_is_refused():
    """Short secrets, wide noise, and days before the first: with no noise at all, they would show the counts."""
    with pytest.raises(InputError, match="32 bytes"):
        CorrelatedGaussians(b"short", "x", Fraction(1))
    with pytest.raises(InputError, match="too small"):
        CorrelatedGaussians(SECRET, "x", Fraction(2**80 + 1))
    for day in (0, -3):
        with pytest.raises(InvariantViolated, match="day 1"):
            CorrelatedGaussians(SECRET, "x", Fraction(1)).draw(ITEMS, day)
    assert CorrelatedGaussians(SECRET, "x", Fraction(1)).draw([], 3).tolist() == []
