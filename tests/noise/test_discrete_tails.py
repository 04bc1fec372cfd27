"""Properties that noise distributions report about themselves, compared with direct summation."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.noise import DiscreteGaussian, DiscreteLaplace
from discreet.noise.distributions import laplace_difference_tail, smallest_margin

from .reference import REFERENCE, exact_fraction, gaussian_pmf, laplace_pmf, log, real

SCALES = [Fraction(1, 50), Fraction(1, 10), Fraction(1, 3), Fraction(1), Fraction(7, 2), Fraction(200, 15)]
VARIANCES = [Fraction(1, 50), Fraction(1, 10), Fraction(1, 3), Fraction(1), Fraction(49, 4), Fraction(200, 15) ** 2]
PAIRS = [
    *((Fraction(a), Fraction(b)) for a, b in itertools.combinations(["1/3", "1", "7/2", "40/3", "12"], 2)),
    (Fraction(2000, 63), Fraction(1000, 37)),
]


def summed(pmf, reach, wanted):
    """Return the sum of the pmf over the integers of [-reach, reach] that are *wanted*."""
    return math.fsum(pmf(z) for z in range(-reach, reach + 1) if wanted(z))


def convolved_tail(one, other, n, reach):
    """Return Pr[X - Y >= n] by convolution of two symmetric pmfs cut off at *reach*."""
    p = np.array([one(z) for z in range(-reach, reach + 1)])
    q = np.array([other(z) for z in range(-reach, reach + 1)])
    return math.fsum(np.convolve(p, q)[2 * reach + n :].tolist())


def exact_laplace_tail(scale, n):
    """Return Pr[X - Y >= n] for X and Y of one scale, at 300 bits: the convolution of q^|x| with itself.

    Pr[X - Y = z] = ((1-q)/(1+q))^2 (|z| + (1+q^2)/(1-q^2)) q^|z|, whose tail is an arithmetico-geometric series.
    """
    q = REFERENCE.exp(-real(1 / scale))
    constant = (1 + q * q) / (1 - q * q)
    return ((1 - q) / (1 + q)) ** 2 * q**n * ((n + constant) / (1 - q) + q / (1 - q) ** 2)


def exact_unequal_tail(scale, other, n):
    """Return Pr[X - Y >= n] for two scales, at 300 bits.

    With X = U - U' and Y = V - V' of geometric variates, X - Y = (U + V') - (U' + V), and partial fractions of
    the generating function (1-p)^2 (1-r)^2 / ((1-pz)(1-p/z)(1-rz)(1-r/z)) give a p^z and an r^z term for z >= 0.
    """
    p, r = REFERENCE.exp(-real(1 / scale)), REFERENCE.exp(-real(1 / other))
    of_p = p / ((p - r) * (1 - p * r)) * (1 - r) ** 2 * (1 - p) / (1 + p)
    of_r = r / ((r - p) * (1 - p * r)) * (1 - p) ** 2 * (1 - r) / (1 + r)
    return of_p * p**n / (1 - p) + of_r * r**n / (1 - r)


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_laplace_std_is_the_root_of_the_summed_variance(scale):
    """Equal to twelve digits."""
    reach = math.ceil(60 * scale) + 5
    variance = math.fsum(laplace_pmf(scale)(z) * z * z for z in range(-reach, reach + 1))
    assert DiscreteLaplace(scale).std == pytest.approx(math.sqrt(variance), rel=1e-12)


@pytest.mark.parametrize("variance", VARIANCES, ids=str)
def test_gaussian_std_is_never_below_the_root_of_the_summed_variance(variance):
    """Above it by less than a billionth unless sigma is below 1."""
    reach = math.ceil(40 * math.sqrt(variance)) + 5
    truth = math.sqrt(math.fsum(gaussian_pmf(variance)(z) * z * z for z in range(-reach, reach + 1)))
    std = DiscreteGaussian(variance).std
    assert std >= truth * (1 - 1e-12)
    assert std == pytest.approx(math.sqrt(variance), rel=1e-15)
    if variance >= 4:
        assert std <= truth * (1 + 1e-9)


@given(st.fractions(Fraction(1, 1000), 10**9), st.integers(1, 10**6))
def test_rho_is_half_the_squared_ratio_of_sensitivity_to_scale(scale, sensitivity):
    """Exact fractions: Laplace is (s/b)-DP, so s^2 / 2b^2; the Gaussian costs s^2 / 2 sigma^2."""
    expected = Fraction(sensitivity**2) / (2 * scale**2)
    assert DiscreteLaplace(scale).rho(sensitivity) == expected
    assert DiscreteGaussian(scale**2).rho(sensitivity) == expected
    assert DiscreteLaplace(scale).rho() == 1 / (2 * scale**2)


@pytest.mark.parametrize("variance", VARIANCES, ids=str)
def test_gaussian_rho_bounds_every_renyi_divergence_of_its_shift(variance):
    """Theorem 14 of Canonne et al. by summation: D_alpha(Z || Z + 1) <= alpha rho; 1 % less noise would break it."""
    spread, reach = 2 * float(variance), math.ceil(25 * math.sqrt(variance)) + 12
    log_total = -math.log(gaussian_pmf(variance)(0))
    divergence = []
    for alpha in (1.5, 2.0, 8.0):
        logs = [(-alpha * z**2 - (1 - alpha) * (z - 1) ** 2) / spread - log_total for z in range(-reach, reach + 1)]
        divergence.append(
            (max(logs) + math.log(math.fsum(math.exp(x - max(logs)) for x in logs))) / (alpha - 1) / alpha
        )
    rho = float(DiscreteGaussian(variance).rho())
    assert max(divergence) <= rho * (1 + 1e-9)
    assert max(divergence) > rho * 0.99


@pytest.mark.parametrize("miss", [0.5, 0.05, 1e-3, 1e-9])
@pytest.mark.parametrize("scale", [*SCALES, Fraction(500)], ids=str)
def test_laplace_half_width_is_the_smallest_that_misses_rarely_enough(scale, miss):
    """Pr[|z| > w] by summation is at most *miss*, and Pr[|z| > w - 1] is above it."""
    width, reach = DiscreteLaplace(scale).half_width(miss), math.ceil(60 * scale) + 5
    assert summed(laplace_pmf(scale), reach, lambda z: abs(z) > width) <= miss * (1 + 1e-9)
    assert width == 0 or summed(laplace_pmf(scale), reach, lambda z: abs(z) > width - 1) > miss * (1 - 1e-9)


@pytest.mark.parametrize("miss", [0.5, 0.05, 1e-3, 1e-9])
@pytest.mark.parametrize("variance", [*VARIANCES, Fraction(10**6)], ids=str)
def test_gaussian_half_width_is_nearly_the_smallest_that_misses_rarely_enough(variance, miss):
    """Pr[|z| > w] by summation is at most *miss*; two narrower would not do."""
    width, reach = DiscreteGaussian(variance).half_width(miss), math.ceil(40 * math.sqrt(variance)) + 5
    pmf = gaussian_pmf(variance)
    assert summed(pmf, reach, lambda z: abs(z) > width) <= miss * (1 + 1e-9)
    assert width < 2 or summed(pmf, reach, lambda z: abs(z) > width - 2) > miss


def test_half_width_misses_one_time_in_twenty_by_default():
    """The default is that of the 95 % intervals of answers."""
    for noise in (DiscreteLaplace(Fraction(30)), DiscreteGaussian(Fraction(900))):
        assert noise.half_width() == noise.half_width(0.05)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 20, 60])
@pytest.mark.parametrize(("scale", "other"), [*((s, s) for s in SCALES), *PAIRS], ids=str)
def test_the_tail_of_a_laplace_difference_is_the_convolution(scale, other, n):
    """Equal and unequal scales, in either order: never below direct summation, above it by a few billionths."""
    reach = math.ceil(45 * max(scale, other)) + n + 5
    truth = convolved_tail(laplace_pmf(scale), laplace_pmf(other), n, reach)
    for tail in (laplace_difference_tail(scale, other, n), laplace_difference_tail(other, scale, n)):
        assert truth * (1 - 1e-12) <= tail <= truth * (1 + 5e-9) + 1e-250


@pytest.mark.parametrize(
    ("scale", "m", "expected"),
    [("2", 5, 0.0736656422), ("2", 20, 1.0371308e-4), ("13.3333", 100, 1.2690258e-3)],
)
def test_the_published_tails_of_a_laplace_difference_are_reproduced(scale, m, expected):
    """Independent values of Pr[X - Y >= m + 1]."""
    assert laplace_difference_tail(Fraction(scale), Fraction(scale), m + 1) == pytest.approx(expected, rel=1e-7)


WIDE = [Fraction(10**6), Fraction(2**30), Fraction(7049 * 10**9 + 1, 7), Fraction(2**40)]


@pytest.mark.parametrize("scale", WIDE, ids=str)
def test_the_tail_of_a_wide_laplace_difference_is_never_too_small(scale):
    """Up to the widest noise and far out, where e^(-n/b) must not be a power of a rounded e^(-1/b)."""
    for factor in (1, 10, 30, 60):
        n = factor * math.floor(scale)
        truth = exact_laplace_tail(scale, n)
        assert truth <= laplace_difference_tail(scale, scale, n) <= truth * (1 + 5e-9)


@pytest.mark.parametrize("apart", [Fraction(1, 10**k) for k in (1, 3, 6, 12, 30)], ids=str)
def test_the_tail_for_nearly_equal_scales_is_never_too_small(apart):
    """The closed form for unequal scales divides by their small difference."""
    for scale, n in itertools.product((Fraction(10), Fraction(1, 3)), (0, 3, 50)):
        truth = exact_unequal_tail(scale, scale + apart, n)
        for pair in ((scale, scale + apart), (scale + apart, scale)):
            assert truth <= laplace_difference_tail(*pair, n) <= truth * (1 + 5e-9)


def test_the_two_exact_references_agree_with_each_other():
    """Both agree with a convolution, and with each other as the scales converge."""
    for n in (0, 1, 7, 40):
        equal, apart = exact_laplace_tail(Fraction(5), n), exact_unequal_tail(Fraction(5), Fraction(7, 2), n)
        assert float(equal) == pytest.approx(convolved_tail(*[laplace_pmf(Fraction(5))] * 2, n, 400), rel=1e-10)
        assert float(apart) == pytest.approx(
            convolved_tail(laplace_pmf(Fraction(5)), laplace_pmf(Fraction(7, 2)), n, 400), rel=1e-10
        )
        near = exact_unequal_tail(Fraction(5), 5 + Fraction(1, 10**30), n)
        assert mpmath.almosteq(near, equal, rel_eps=1e-25)


def test_the_margin_of_linkedins_example_is_342():
    """Scale 200/15 (epsilon .15, tau 1), Pr <= 10^-10 / 2: by convolution in exact steps, 342 does and 341 does not."""
    scale, probability = Fraction(200, 15), Fraction(1, 2 * 10**10)
    with mpmath.workdps(40):
        q = mpmath.exp(-mpmath.mpf(15) / 200)
        pmf = [(1 - q) / (1 + q) * q ** abs(z) for z in range(-900, 901)]
        above = [mpmath.fsum(pmf)]
        for z in range(1, 1801):
            above.append(above[-1] - pmf[z - 1])
        # Pr[X - Y > m] = sum over y of Pr[y] Pr[X > m + y]
        tails = {m: mpmath.fsum(pmf[y + 900] * above[m + y + 901] for y in range(-900, 900 - m)) for m in (341, 342)}
        assert tails[342] < mpmath.mpf(10) ** -10 / 2 < tails[341]
    assert DiscreteLaplace(scale).difference_margin(probability) == 342


@pytest.mark.parametrize("probability", [Fraction(1, 10**10), Fraction(1, 1000), Fraction(2, 5), Fraction(1)], ids=str)
@pytest.mark.parametrize("scale", [*SCALES, *WIDE], ids=str)
def test_a_laplace_margin_is_never_too_small_and_hardly_too_large(scale, probability):
    """Pr[X - Y > m] at 300 bits is at most the probability, and above it for a slightly smaller margin, or m is 0."""
    margin = DiscreteLaplace(scale).difference_margin(probability)
    assert exact_laplace_tail(scale, margin + 1) <= real(probability)
    less = margin - 1 - math.floor(margin / 10**8)
    assert margin == 0 or exact_laplace_tail(scale, less + 1) > real(probability)


@pytest.mark.parametrize("probability", [Fraction(1, 10**10), Fraction(1, 1000), Fraction(2, 5), Fraction(1)], ids=str)
@pytest.mark.parametrize("variance", VARIANCES, ids=str)
def test_a_gaussian_margin_is_never_too_small_and_not_much_too_large(variance, probability):
    """Against direct convolution; the sub-Gaussian bound costs at most 2 sigma and one."""
    margin = DiscreteGaussian(variance).difference_margin(probability)
    reach = math.ceil(25 * math.sqrt(variance)) + 5
    pmf = gaussian_pmf(variance)
    assert convolved_tail(pmf, pmf, margin + 1, reach) <= probability
    less = margin - 2 - math.ceil(2 * math.sqrt(variance))
    assert less < 0 or convolved_tail(pmf, pmf, less + 1, reach) > probability


@pytest.mark.parametrize("whole", [1, 40, 10**6])
@pytest.mark.parametrize("probability", [Fraction(1, 10**10), Fraction(2, 5)], ids=str)
def test_a_gaussian_margin_next_to_a_whole_number_is_rounded_up(whole, probability):
    """The bound sqrt(4 sigma^2 ln(1/p)) lies a relative 10^-13 above a whole number, or 10^-11 below it."""
    for beside, expected in ((Fraction(1, 10**13), whole + 1), (-Fraction(1, 10**11), whole)):
        variance = exact_fraction(real(whole * (1 + beside)) ** 2 / (-4 * log(probability)))
        assert DiscreteGaussian(variance).difference_margin(probability) == expected


@given(st.integers(0, 10**7), st.fractions(Fraction(1, 1000), Fraction(999, 1000)))
def test_the_smallest_margin_is_found(answer, probability):
    """For a tail that falls to the probability exactly at *answer*; no negative margin is evaluated."""
    allowed = float(probability)

    def tail(m):
        assert m >= 0
        return allowed if m >= answer else 1.5 * allowed

    assert smallest_margin(tail, Fraction(allowed)) == answer
