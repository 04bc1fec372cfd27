"""Discrete Laplace and Gaussian draws have exactly their distribution and exactly the decisions of their bits."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from discreet.errors import InputError, InvariantViolated
from discreet.noise import DiscreteGaussian, DiscreteLaplace
from discreet.noise.distributions import Exponentials

from .reference import (
    ALL_ONES,
    HALF,
    REFERENCE,
    SURE,
    ScriptedBits,
    counted,
    exact_exponentials,
    gaussian_pmf,
    keyed,
    laplace_pmf,
    p_value,
    real,
    words_of,
)

SCALES = [Fraction(1, 10), Fraction(1, 3), Fraction(1), Fraction(7, 2), Fraction(200, 15)]
VARIANCES = [Fraction(1, 10), Fraction(1, 3), Fraction(1), Fraction(49, 4), Fraction(200, 15) ** 2]
N = 200_000


def fits(values, pmf, reach):
    """Return the p-value of integer *values* against *pmf*, which is negligible beyond *reach*."""
    return p_value(counted(values), {z: len(values) * pmf(z) for z in range(-reach, reach + 1)})


def rounded_laplace(scale, n):
    """A planted defect: continuous Laplace noise, rounded."""
    return np.round(np.random.default_rng(1).laplace(scale=float(scale), size=n)).astype(np.int64)


def rounded_gaussian(variance, n):
    """A planted defect: continuous Gaussian noise, rounded."""
    return np.round(np.random.default_rng(1).normal(scale=math.sqrt(variance), size=n)).astype(np.int64)


@pytest.mark.statistical
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_laplace_draws_have_the_closed_form_pmf(scale):
    """Chi-square over all integers; it rejects a scale off by 5 % and rounded continuous noise."""
    values = DiscreteLaplace(scale).draw(keyed("pmf", scale), "x", N)
    reach = math.ceil(40 * scale) + 2
    assert values.dtype == np.int64
    assert values.shape == (N,)
    assert fits(values, laplace_pmf(scale), reach) > SURE
    if scale > Fraction(1, 5):
        assert fits(values, laplace_pmf(scale * Fraction(21, 20)), 2 * reach) < SURE
    if scale <= 1:
        assert fits(rounded_laplace(scale, N), laplace_pmf(scale), 2 * reach) < SURE


@pytest.mark.statistical
@pytest.mark.parametrize("variance", VARIANCES, ids=str)
def test_gaussian_draws_have_the_closed_form_pmf(variance):
    """Chi-square over all integers; it rejects a variance off by 5 % and rounded continuous noise."""
    values = DiscreteGaussian(variance).draw(keyed("pmf", variance), "x", N)
    reach = math.ceil(40 * math.sqrt(variance)) + 2
    assert values.dtype == np.int64
    assert values.shape == (N,)
    assert fits(values, gaussian_pmf(variance), reach) > SURE
    assert fits(values, gaussian_pmf(variance * Fraction(21, 20)), reach) < SURE
    if variance <= Fraction(1, 3):
        assert fits(rounded_gaussian(variance, N), gaussian_pmf(variance), reach) < SURE


@pytest.mark.statistical
def test_wide_laplace_draws_have_the_closed_form_probabilities_of_bins():
    """Scale 10^6, 40 bins of equal probability; it rejects 1 % off with a million draws."""
    scale, n = Fraction(10**6), 10**6
    values = DiscreteLaplace(scale).draw(keyed("wide"), "x", n)
    edges = [round(stats.laplace.ppf(i / 40) * 10**6) for i in range(1, 40)]

    def below(edge, b):
        """Pr[z < edge] in closed form."""
        q = math.exp(-1 / b)
        return q ** (1 - edge) / (1 + q) if edge <= 0 else 1 - q**edge / (1 + q)

    observed = counted(np.searchsorted(edges, values, side="right"))
    for width, right in ((10**6, True), (1.01 * 10**6, False)):
        cumulative = [0.0, *(below(edge, width) for edge in edges), 1.0]
        expected = {i: n * (high - low) for i, (low, high) in enumerate(itertools.pairwise(cumulative))}
        assert (p_value(observed, expected) > SURE) == right


@pytest.mark.statistical
def test_wide_gaussian_draws_have_the_summed_probabilities_of_bins():
    """Sigma 10^6, bins of width sigma / 5 by summation of the pmf; it rejects 1 % off."""
    sigma, n = 10**6, 10**6
    values = DiscreteGaussian(Fraction(sigma**2)).draw(keyed("wide"), "x", n)
    reach, width = 8 * sigma, sigma // 5
    assert np.abs(values).max() < reach
    observed = counted((values + reach) // width)
    for spread, right in ((sigma, True), (1.01 * sigma, False)):
        weights = np.exp(-0.5 * (np.arange(-reach, reach) / spread) ** 2).reshape(-1, width).sum(axis=1)
        expected = dict(enumerate((n * weights / weights.sum()).tolist()))
        assert (p_value(observed, expected) > SURE) == right


@pytest.mark.statistical
def test_the_draws_of_one_vector_are_independent():
    """Chi-square of 100,000 adjacent pairs against the product; sorted values would fail."""
    for noise, pmf in (
        (DiscreteLaplace(Fraction(3, 2)), laplace_pmf(Fraction(3, 2))),
        (DiscreteGaussian(Fraction(4)), gaussian_pmf(Fraction(4))),
    ):
        values = np.clip(noise.draw(keyed("pairs"), "x", N), -8, 8)
        marginal = {z: pmf(z) for z in range(-7, 8)}
        marginal |= {z: (1 - sum(marginal.values())) / 2 for z in (-8, 8)}
        expected = {(a, b): N / 2 * p * q for (a, p), (b, q) in itertools.product(marginal.items(), repeat=2)}

        def pairs(vector):
            codes = counted((vector[0::2] + 8) * 17 + vector[1::2] + 8)
            return {(code // 17 - 8, code % 17 - 8): times for code, times in codes.items()}

        assert p_value(pairs(values), expected) > SURE
        assert p_value(pairs(np.sort(values)), expected) < SURE


def reference_laplace(make_bits, label, n, scale, known_bits):
    """Return the draw at 300 bits, written from its documentation."""
    up = exact_exponentials(make_bits(), f"{label}/up", n, known_bits)
    down = exact_exponentials(make_bits(), f"{label}/down", n, known_bits)
    return [
        int(REFERENCE.floor(u * real(scale)) - REFERENCE.floor(d * real(scale))) for u, d in zip(up, down, strict=True)
    ]


def reference_gaussian(make_bits, label, n, variance, known_bits):
    """Return Algorithm 3 of Canonne, Kamath & Steinke (2020) with t = floor(sigma) + 1, by batches, at 300 bits."""
    t, found, batch = math.isqrt(math.floor(variance)) + 1, [], 0
    while len(found) < n:
        missing = n - len(found)
        size = missing + missing // 2 + 16
        proposals = reference_laplace(make_bits, f"{label}/{batch}/proposal", size, Fraction(t), known_bits)
        tests = exact_exponentials(make_bits(), f"{label}/{batch}/test", size, known_bits)
        hurdles = [real((abs(y) - variance / t) ** 2 / (2 * variance)) for y in proposals]
        accepted = [y for y, e, hurdle in zip(proposals, tests, hurdles, strict=True) if e > hurdle]
        found += accepted[:missing]
        batch += 1
    return found


@pytest.fixture
def known_bits(request, monkeypatch):
    """Limit the bits that draws see at first, so that nearly every decision needs further words."""
    monkeypatch.setattr(
        "discreet.noise.distributions.Exponentials", functools.partial(Exponentials, known_bits=request.param)
    )
    return request.param


@pytest.mark.parametrize("known_bits", [1, 2, 4, 16, 64], indirect=True)
@pytest.mark.parametrize("scale", [*SCALES, Fraction(2**40), Fraction(10**12, 7)], ids=str)
def test_ambiguous_laplace_draws_are_decided_exactly(scale, known_bits):
    """With few known bits every value equals that of 300-bit arithmetic on the same words."""
    make_bits = functools.partial(keyed, "forced", scale)
    drawn = DiscreteLaplace(scale).draw(make_bits(), "x", 60)
    assert drawn.tolist() == reference_laplace(make_bits, "x", 60, scale, known_bits)


@pytest.mark.parametrize("known_bits", [1, 2, 4, 16, 64], indirect=True)
@pytest.mark.parametrize("variance", [*VARIANCES, Fraction(2**80 - 1), Fraction(10**13, 7)], ids=str)
def test_ambiguous_gaussian_draws_are_decided_exactly(variance, known_bits):
    """With few known bits every value equals that of 300-bit arithmetic on the same words."""
    make_bits = functools.partial(keyed, "forced", variance)
    drawn = DiscreteGaussian(variance).draw(make_bits(), "x", 40)
    assert drawn.tolist() == reference_gaussian(make_bits, "x", 40, variance, known_bits)


def test_a_gaussian_draw_takes_as_many_batches_as_it_needs():
    """With a small variance many proposals are rejected: 200 values take three batches, each with labels of its own."""
    variance = Fraction(1)
    make_bits = functools.partial(keyed, "batches", variance)
    bits = make_bits()
    drawn = DiscreteGaussian(variance).draw(bits, "x", 200)
    assert drawn.tolist() == reference_gaussian(make_bits, "x", 200, variance, 64)
    with pytest.raises(InvariantViolated):
        bits.uint64("x/2/test", 1)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("scale", [*SCALES, Fraction(10**9)], ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_value_on_an_integer_boundary_falls_to_the_right_side(scale, n, depth):
    """The first words are those of e^(-n/b); a last word just below gives n, just above n - 1."""
    *words, last = words_of(REFERENCE.exp(-real(n / scale)), depth + 1)
    for further, expected in ((last - 1, n), (last + 1, n - 1)):
        script = {"x/up": [words[0]], "x/down": [ALL_ONES], f"x/up/0/{depth}": [further]}
        script |= {f"x/up/0/{i}": [word] for i, word in enumerate(words[1:], 1)}
        assert DiscreteLaplace(scale).draw(ScriptedBits(script), "x", 1).tolist() == [expected]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("variance", [Fraction(1), Fraction(49, 4), Fraction(10**6)], ids=str)
@pytest.mark.parametrize("proposal", [2, 3, 5])
def test_a_gaussian_test_on_the_hurdle_falls_to_the_right_side(variance, proposal, depth):
    """The first words of the test are those of e^-hurdle; the last decides whether the proposal is accepted."""
    t = math.isqrt(math.floor(variance)) + 1
    hurdle = (proposal - variance / t) ** 2 / (2 * variance)
    *words, last = words_of(REFERENCE.exp(-real(hurdle)), depth + 1)

    def uniform(y):
        """Return a word whose geometric value is y."""
        return math.floor(math.exp(-(y + 0.5) / t) * 2.0**64)

    script = {
        "x/0/proposal/up": [uniform(proposal), *[uniform(0)] * 16],
        "x/0/proposal/down": [uniform(0)] * 17,
        "x/0/test": [words[0], *[1 << 30] * 16],
        **{f"x/0/test/0/{i}": [word] for i, word in enumerate(words[1:], 1)},
    }
    for further, accepted in ((last - 1, True), (last + 1, False)):
        drawn = DiscreteGaussian(variance).draw(ScriptedBits(script | {f"x/0/test/0/{depth}": [further]}), "x", 1)
        assert drawn.tolist() == [proposal if accepted else 0]


def test_further_words_are_drawn_only_where_they_are_needed():
    """A value in the middle of an integer interval needs one word."""

    class OneWord(ScriptedBits):
        def uint64(self, label, n, start=0):
            assert label in ("x/up", "x/down")
            return super().uint64(label, n, start)

    word = math.floor(math.exp(-2.5) * 2.0**64)
    drawn = DiscreteLaplace(Fraction(1)).draw(OneWord({"x/up": [word], "x/down": [HALF]}), "x", 1)
    assert drawn.tolist() == [2]


def test_a_longer_draw_begins_with_the_shorter_laplace_draw():
    """Each value depends on its own words only."""
    noise = DiscreteLaplace(Fraction(50))
    assert noise.draw(keyed("a"), "x", 10).tolist() == noise.draw(keyed("a"), "x", 100)[:10].tolist()


@pytest.mark.parametrize("scale", [Fraction(50), Fraction(2**40)])
def test_laplace_draws_in_parts_are_those_of_one_call(scale):
    """Also where a value needs further words, whose labels count from the first draw."""
    noise, bits = DiscreteLaplace(scale), keyed("parts")
    found = [noise.draw(bits, "x", n, first) for first, n in ((0, 1), (1, 2000), (2001, 0), (2001, 999))]
    assert np.concatenate(found).tolist() == noise.draw(keyed("parts"), "x", 3000).tolist()


@pytest.mark.parametrize("noise", [DiscreteLaplace(Fraction(3)), DiscreteGaussian(Fraction(9))], ids=repr)
class TestBothKinds:
    """Properties of both Laplace and Gaussian noise."""

    def test_equal_bits_give_equal_draws_and_other_labels_others(self, noise):
        """Keyed noise is consistent, and two draws of one answer are independent."""
        bits = keyed("both")
        one, other = noise.draw(bits, "one", 50), noise.draw(bits, "other", 50)
        assert one.tolist() == noise.draw(keyed("both"), "one", 50).tolist()
        assert one.tolist() != other.tolist()

    def test_none_are_drawn_for_none(self, noise):
        """Zero draws are an empty int64 vector."""
        drawn = noise.draw(keyed("none"), "x", 0)
        assert drawn.shape == (0,)
        assert drawn.dtype == np.int64

    def test_a_label_used_twice_raises(self, noise):
        """Two counts never get the same noise."""
        bits = keyed("twice")
        noise.draw(bits, "x", 3)
        with pytest.raises(InvariantViolated):
            noise.draw(bits, "x", 3)


@pytest.mark.parametrize("scale", [Fraction(0), Fraction(-1), Fraction(2**40) + Fraction(1, 10**9)])
def test_a_scale_outside_its_range_is_refused(scale):
    """Zero, negative, and too wide to fit into int64 beside a large count."""
    with pytest.raises(InputError):
        DiscreteLaplace(scale)


@pytest.mark.parametrize("variance", [Fraction(0), Fraction(-1), Fraction(2**80) + Fraction(1, 10**9)])
def test_a_variance_outside_its_range_is_refused(variance):
    """The range of the scale, squared."""
    with pytest.raises(InputError):
        DiscreteGaussian(variance)


@pytest.mark.parametrize("noise", [DiscreteLaplace(Fraction(2**40)), DiscreteGaussian(Fraction(2**80))], ids=repr)
def test_the_widest_noise_that_is_allowed_can_be_drawn(noise):
    """The largest accepted parameter gives draws of that width."""
    drawn = noise.draw(keyed("widest"), "x", 200)
    assert 2**39 < np.abs(drawn).mean() < 2**41


def test_the_largest_laplace_draw_fits_beside_the_largest_count():
    """A uniform of 2^-129 gives 2^40 * 129 ln 2: far from the 2^62 that are left."""
    bits = ScriptedBits({"x/up": [0], "x/down": [ALL_ONES], "x/up/0/1": [0], "x/up/0/2": [HALF]})
    drawn = DiscreteLaplace(Fraction(2**40)).draw(bits, "x", 1)
    assert drawn.tolist() == [math.floor(2**40 * Fraction(129 * math.log(2)))]
    assert 2**62 + int(drawn[0]) < 2**63
