"""Correlated noise is exact, has the covariances of its weights, and follows from the key, the item and the day."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from discreet.errors import InputError, InvariantViolated
from discreet.noise import CorrelatedGaussians
from discreet.noise.correlated import (
    _ItemExponentials,
    _ItemWords,
    factors,
    noise_variances,
    scales,
    squared_sums,
    weights,
)
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


def exact_weights(periods, day):
    """Return L[day, .] by its definition, A D R^-1: the inverse of R has the coefficients of the root of 1 - x."""
    scale = [Fraction(d) for d in scales(periods).tolist()]
    inverse = [Fraction(-math.comb(2 * k, k), 4**k * (2 * k - 1)) for k in range(periods)]
    return [sum(scale[k - 1] * inverse[k - s] for k in range(s, day + 1)) for s in range(1, day + 1)]


@pytest.mark.parametrize(("periods", "days"), [(1, [1]), (2, [1, 2]), (28, range(1, 29)), (400, [1, 77, 399, 400])])
def test_no_change_moves_more_than_one_and_the_weights_belong_to_it(periods, days):
    """A = L R D^-1, where the squares of each column of R D^-1 add up to 1 at most and hardly to less."""
    scale = scales(periods)
    assert np.array_equal(scale * 2**20, np.rint(scale * 2**20))
    for k, d in enumerate(scale.tolist(), 1):
        gamma = sum(Fraction(math.comb(2 * j, j), 4**j) ** 2 for j in range(periods - k + 1)) if k in days else None
        assert gamma is None or 1 - Fraction(1, 10**5) < gamma / Fraction(d) ** 2 <= 1
    for day in days:
        exact = exact_weights(periods, day)
        for weight, true in zip(weights(periods, day).tolist(), exact, strict=True):
            assert abs(Fraction(weight) - true) <= true * (3 * day + 1) / 2**52
        variance = Fraction(0)
        for bound, true in zip(noise_variances(periods, day)[::-1].tolist(), exact[::-1], strict=True):
            variance += true**2
            assert variance <= Fraction(bound) <= variance * (1 + Fraction(2, 10**9))
    moved = np.array([factors(periods)[: periods - s] @ weights(periods, periods)[s:] for s in range(periods)])
    assert np.allclose(moved / scale, 1)  # the last row of L R D^-1


def exactly(noise, item, day, first=1):
    """Return the noise of one item by its definition, in fractions of 640 bits; None if that does not decide."""
    words = _ItemWords(noise._key, name_of(noise, item))
    low = high = Fraction(0)
    for s in range(first, day + 1):
        number = 0
        while True:
            labels = (f"{noise._name(s)}/{number}/{use}" for use in ("size", "test"))
            sizes, tests = (_ItemExponentials(words, label, noise._known) for label in labels)
            if _exactly_accepted(sizes, tests, 0):
                break
            number += 1
        least, most = sizes.bounds(0, 9)
        weight = exact_weights(noise.periods, day)[s - 1]
        low += weight * (least if words.signs(noise._name(s))[0] else -most)
        high += weight * (most if words.signs(noise._name(s))[0] else -least)
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
    noise = CorrelatedGaussians(SECRET, "x", variance, 6, known_bits=known_bits)
    for day in (1, 2, 5):
        assert noise.draw(ITEMS[:6], day).tolist() == [exactly(noise, item, day) for item in ITEMS[:6]]


class Enclosed:
    """A variate of which every further word halves the known interval, and nothing bounds it before the second."""

    def __init__(self, value, width):
        self.value, self.width = value, width

    def bounds(self, index, depth):
        """Return bounds; the value is not in their middle."""
        assert index == 0
        assert 0 < depth < 60
        width = self.width / 2**depth
        return max(self.value - width / 3, Fraction(0)), None if depth == 1 else self.value + width


@pytest.mark.parametrize("away", [Fraction(1, 1000), Fraction(1, 10**9), Fraction(-1, 1000), Fraction(1, 3)])
@pytest.mark.parametrize("item", ITEMS[:6])
def test_a_sum_is_rounded_at_whatever_depth_its_interval_has_one_rounding(item, away, monkeypatch):
    """Terms of both signs, whose last one is known exactly enough from the start."""
    noise = CorrelatedGaussians(SECRET, "x", Fraction(9), 3)
    words = _ItemWords(noise._key, name_of(noise, item))
    signs = [1 if words.signs(noise._name(s))[0] else -1 for s in (1, 2, 3)]
    first, second, third = exact_weights(3, 3)
    head = signs[0] * first * Fraction(7, 5) + signs[1] * second * Fraction(1, 7)
    target = signs[2] * (Fraction(19, 2) + away)  # three times the sum: away from a half
    sizes = [Fraction(7, 5), Fraction(1, 7), (target / 3 - head) * signs[2] / third]
    for widths in ((8, 8, 8), (Fraction(1, 10**6), 8, Fraction(1, 10**6))):
        variates = dict(zip((1, 2, 3), map(Enclosed, sizes, widths), strict=True))
        monkeypatch.setattr(noise, "_proposals", lambda _, s, known=variates: iter([(known[s], None, None)]))
        assert noise._exactly_rounded(words, 3, 1) == signs[2] * (10 if away > 0 else 9)


class Measured:
    """A variate with an error bound, and a true value."""

    def __init__(self, error, true):
        self.error, self.true = error, true

    def radius(self, _values):
        """Return the bound."""
        return np.array([self.error])

    def bounds(self, _index, _depth):
        """Return the true value."""
        return self.true, self.true


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("day", [1, 8, 40])
def test_floats_decide_only_what_their_errors_cannot_change(day, bounded, monkeypatch):
    """A sum just below a half that is truly just above it: as far as the bound of all errors allows."""
    noise = CorrelatedGaussians(SECRET, "x", Fraction(2**60), 41)
    words = _ItemWords(noise._key, name_of(noise, ITEMS[0]))
    terms = weights(41, day).tolist()
    signs = [1 if words.signs(noise._name(s))[0] else -1 for s in range(1, day + 1)]
    values = [1.5] * day
    relative = (2 * day + 8) * 2.0**-51
    margin = (1 + bounded) * relative * sum(weight * value for weight, value in zip(terms, values, strict=True))
    sums = sum(sign * weight * value for sign, weight, value in zip(signs, terms, values, strict=True))
    half = (math.floor(sums * 2**30) + 0.5) / 2**30
    values[-1] += signs[-1] * (half - 0.95 * margin - sums) / terms[-1]
    true = [Fraction(value) for value in values]
    true[-1] += signs[-1] * Fraction(margin / terms[-1])
    variates = [
        Measured(relative * value if bounded else 0.0, truth) for value, truth in zip(values, true, strict=True)
    ]
    rounds = {s: [(variates[s - 1], np.array([values[s - 1]]), np.array([0]))] for s in range(1, day + 1)}
    monkeypatch.setattr(noise, "_proposals", lambda _, s: iter(rounds[s]))
    assert noise._rounded(words, day, np.ones(1, dtype=np.int64)).tolist() == [math.floor(half * 2**30 + 0.5)]


@pytest.mark.parametrize(("variance", "known_bits"), [(Fraction(2**80), {}), (Fraction(2**24), {"known_bits": 16})])
def test_what_floats_cannot_decide_is_decided_exactly(variance, known_bits):
    """At the largest variance, and where few bits are known, all items have the exact rounding."""
    noise = CorrelatedGaussians(SECRET, "x", variance, 3, **known_bits)
    items = [b"%d" % n for n in range(100)]
    exact = [noise._exactly_rounded(_ItemWords(noise._key, name_of(noise, item)), 3, 1) for item in items]
    assert noise.draw(items, 3).tolist() == exact


def test_half_of_all_words_are_positive(monkeypatch):
    """A word of 64 bits is positive from 2^63 on."""
    monkeypatch.setattr(_ItemWords, "uint64", lambda *_: np.array([2**63 - 1, 2**63], dtype=np.uint64))
    assert _ItemWords(bytes(32), bytes(32)).signs("1").tolist() == [False, True]


def test_an_item_has_one_word_of_a_label():
    """More, or later ones, would be those of other items."""
    for n, start in ((2, 0), (1, 1)):
        with pytest.raises(InvariantViolated, match="one word"):
            _ItemWords(bytes(32), bytes(16)).uint64("x", n, start)


def test_the_noise_of_an_item_may_start_on_a_day_of_its_own():
    """Items that start on several days have the sums of the days from there on."""
    noise = CorrelatedGaussians(SECRET, "starts", Fraction(10**9), 9)
    first = np.array([n % 7 + 1 for n in range(len(ITEMS))])
    exact = [exactly(noise, item, 7, start) for item, start in zip(ITEMS, first.tolist(), strict=True)]
    assert noise.draw(ITEMS, 7, first).tolist() == exact
    for day, wrong in ((7, [1, 0]), (7, [1, 8]), (10, [1, 1])):
        with pytest.raises(InvariantViolated, match="starts on day 1 or later, and before"):
            noise.draw(ITEMS[:2], day, np.array(wrong))


def test_the_noise_of_a_day_depends_on_what_was_read_on_it():
    """Days that read the same share it, whatever was read after them; the day that read other rows has its own."""
    scale = Fraction(2**60)
    days = {}
    for last in "xy":
        noise = CorrelatedGaussians(SECRET, "read", scale, 3, ["a", "b", last])
        days[last] = [noise.draw(ITEMS, day) for day in (1, 2, 3)]
    for earlier in (0, 1):
        assert np.array_equal(days["x"][earlier], days["y"][earlier])
    assert not np.any(days["x"][2] == days["y"][2])
    noise = CorrelatedGaussians(SECRET, "read", scale, 3, ["a", "b", "x"])
    assert noise.draw(ITEMS[:2], 3).tolist() == [exactly(noise, item, 3) for item in ITEMS[:2]]


def test_it_does_not_depend_on_what_is_drawn_together(monkeypatch):
    """One item alone, all in another order and blocks of three get the same numbers; another object as well."""
    noise = CorrelatedGaussians(SECRET, ("stream", 1), Fraction(10**9), 4, known_bits=6)
    drawn = noise.draw(ITEMS, 4)
    assert drawn.dtype == np.int64
    together = drawn.tolist()
    assert [int(noise.draw([item], 4)[0]) for item in ITEMS] == together
    assert (
        CorrelatedGaussians(SECRET, ("stream", 1), Fraction(10**9), 4, known_bits=6).draw(ITEMS[::-1], 4).tolist()
        == together[::-1]
    )
    monkeypatch.setattr("discreet.noise.correlated._BLOCK", 3)
    assert noise.draw(ITEMS, 4).tolist() == together


@pytest.mark.parametrize("other", [{"secret": SECRET[::-1]}, {"context": ("stream", 2)}])
def test_other_keys_and_streams_have_other_noise(other):
    """No number of 40 with a standard deviation of 2^30 is the same by chance."""
    parts = {"secret": SECRET, "context": ("stream", 1), "variance": Fraction(2**60), "periods": 3}
    one = CorrelatedGaussians(**parts).draw(ITEMS, 3)
    assert not np.any(one == CorrelatedGaussians(**(parts | other)).draw(ITEMS, 3))


@pytest.mark.statistical
def test_the_covariances_are_those_of_the_weights():
    """sigma^2 L L^T, within four standard errors of a sample covariance; independent noise per day has others."""
    n = 20_000
    noise = CorrelatedGaussians(SECRET, "covariances", Fraction(10_000), 9)
    items = [str(k).encode() for k in range(n)]
    days = (1, 2, 7)
    drawn = np.stack([noise.draw(items, day) for day in days])
    rows = np.array([[float(w) for w in exact_weights(9, day)] + [0.0] * (7 - day) for day in days])
    expected = 10_000 * rows @ rows.T
    spread = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / n)
    assert np.all(np.abs(np.cov(drawn) - expected) < 4 * spread)
    assert not np.all(np.abs(np.cov(drawn) - np.diag(np.diag(expected))) < 4 * spread)
    assert stats.kstest(drawn[2] / math.sqrt(expected[2, 2]), "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(drawn[:, ::2], drawn[:, 1::2])[:3, 3:]).max() < 4 / math.sqrt(n / 2)


def test_golden_values():
    """A stream goes on for years: any other number here breaks its guarantee, so the format needs a new name first."""
    noise = CorrelatedGaussians(SECRET, ("golden", 1), Fraction(2**40), 30)
    assert [noise.draw(ITEMS[:3], day).tolist() for day in (1, 2, 30)] == GOLDEN
    further = CorrelatedGaussians(SECRET, ("golden", 1), Fraction(2**40), 30, known_bits=3)
    assert further.draw(ITEMS[:3], 1).tolist() == FURTHER


FURTHER = [1021681, -774112, -326243]
GOLDEN = [[996049, -789140, -313124], [257559, -3279466, 1053855], [-2613166, -32233, 819834]]


def test_what_is_out_of_range_is_refused():
    """Short secrets, wide noise, and days before the first: with no noise at all, they would show the counts."""
    with pytest.raises(InputError, match="32 bytes"):
        CorrelatedGaussians(b"short", "x", Fraction(1), 3)
    with pytest.raises(InputError, match="too small"):
        CorrelatedGaussians(SECRET, "x", Fraction(2**80 + 1), 3)
    for day in (0, -3):
        with pytest.raises(InvariantViolated, match="day 1"):
            CorrelatedGaussians(SECRET, "x", Fraction(1), 3).draw(ITEMS, day)
    assert CorrelatedGaussians(SECRET, "x", Fraction(1), 3).draw([], 3).tolist() == []
