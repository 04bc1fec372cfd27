"""Exact audits of noise of which all values share a part: all outcomes of the real draws, on all neighbours."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from discreet.accounting.convert import limit_for
from discreet.accounting.gaussian import mu_gaussian
from discreet.head_request import SumBounds
from discreet.mechanisms import KnownGumbel, KnownLaplace, Request, UnknownGumbel, anchored
from discreet.mechanisms.anchored import SharedNoise
from discreet.mechanisms.base import INTERVAL
from discreet.mechanisms.sums import KnownGumbelSums, KnownLaplaceSums, ListedSums, UnknownGumbelSums
from discreet.mechanisms.unknown_gumbel import AnchoredGumbel
from discreet.noise import DiscreteGaussian

from .draws import Coins

pytestmark = pytest.mark.exact

WIDTH = 5.5
"""Standard deviations of each Gaussian that are enumerated."""


def law(noise, n):
    """Return the values of all outcomes of a draw of *n*, shape (outcomes, n), and their probabilities.

    Every Gaussian that the draw asks for takes each of its values; coins take both.
    """
    stds, script = [], None

    def scripted(_bits, _label, numerator, precisions):
        sizes = [math.sqrt(numerator / precision) for precision in precisions.tolist()]
        if script is None:
            stds.extend(sizes)
            return np.zeros(len(sizes), dtype=np.int64)
        return np.stack([next(script) for _ in sizes], axis=-1)

    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchored, "rounded_gaussian", scripted)
        noise.draw(Coins(0), "counts", n)
        grids = [np.arange(-math.ceil(WIDTH * std), math.ceil(WIDTH * std) + 1) for std in stds]
        masses = [
            np.diff(stats.norm.cdf(np.append(z, z[-1] + 1) - 0.5, scale=std))
            for z, std in zip(grids, stds, strict=True)
        ]
        values = [axis.ravel() for axis in np.meshgrid(*grids, indexing="ij")]
        mass = np.prod([axis.ravel() for axis in np.meshgrid(*masses, indexing="ij")], axis=0)
        for word in range(2**n):
            script = iter(values)
            drawn = noise.draw(Coins(word), "counts", n)
            keys = (drawn + 500) @ (1000 ** np.arange(n))
            outcomes, where = np.unique(keys, return_inverse=True)
            for key, p in zip(outcomes.tolist(), np.bincount(where, mass).tolist(), strict=True):
                found[key] = found.get(key, 0.0) + p / 2**n
    keys = np.array(sorted(found))
    return keys[:, None] // 1000 ** np.arange(n) % 1000 - 500, np.array([found[key] for key in keys.tolist()])


def deltas(noise, n, epsilon, low, high):
    """Return delta at *epsilon* for each way in which a user moves *n* values, in both directions."""
    values, mass = law(noise, n)
    at = {tuple(value): p for value, p in zip(values.tolist(), mass.tolist(), strict=True)}
    lost = 1 - mass.sum()
    for moved in itertools.product(range(low, high + 1), repeat=n):
        for sign in (1, -1):
            other = np.array([at.get(tuple(value), 0.0) for value in (values - sign * np.array(moved)).tolist()])
            yield float(np.maximum(mass - math.exp(epsilon) * other, 0).sum() + lost)


def epsilon_of(rho, delta=1e-3):
    """Return the epsilon at which a Gaussian that costs *rho* has *delta*."""
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mu_gaussian(middle, delta) < math.sqrt(2 * rho) else (low, middle)
    return high


CASES = [(2, 0, 1), (2, 0, 2), (2, -1, 2), (3, 0, 1)]
PRECISION = Fraction(2)


@pytest.mark.parametrize(("n", "low", "high"), CASES)
def test_shared_noise_is_private_on_the_exact_gaussian_curve(n, low, high):
    """However a user moves the values; and the worst user comes near the curve."""
    noise = SharedNoise.of(n, PRECISION / (1 if high == 1 else 2), low, high)
    rho = float(noise.rho(n, low, high))
    assert 0.99 * PRECISION / (1 if high == 1 else 2) <= 2 * rho <= PRECISION
    worst = max(deltas(noise, n, epsilon_of(rho), low, high))
    assert 2e-4 < worst <= 1e-3


@pytest.mark.parametrize(("n", "low", "high"), CASES)
def test_the_noise_has_the_stated_mean_variance_and_covariance(n, low, high):
    """Mean 0, and the variance and covariance of the stated standard deviations."""
    noise = SharedNoise.of(n, PRECISION / 4, low, high)
    values, mass = law(noise, n)
    assert np.abs(mass @ values).max() < 1e-6
    covariance = (values * mass[:, None]).T @ values
    wanted = np.full((n, n), noise.shared_std**2)
    np.fill_diagonal(wanted, noise.std**2)
    assert covariance == pytest.approx(wanted, rel=1e-3)


class WithoutAnchor(SharedNoise):
    """Planted: the shared noise is forgotten."""

    def twice(self, bits, label, _anchor, n):
        """See `SharedNoise`."""
        return anchored.rounded_gaussian(bits, label, self.apart.numerator, np.full(n, self.apart.denominator))


class AnchorEach(SharedNoise):
    """Planted: the anchor is drawn again for every value."""

    def twice(self, bits, label, anchor, n):
        """See `SharedNoise`."""
        apart = anchored.rounded_gaussian(bits, label, self.apart.numerator, np.full(n, self.apart.denominator))
        shared = anchored.rounded_gaussian(bits, anchor, self.shared.numerator, np.full(n, self.shared.denominator))
        return apart + shared


class Cheap(SharedNoise):
    """Planted: the variances are those of a cost of n, not of n + sqrt(n)."""

    @classmethod
    def of(cls, n, precision, low=0, high=1):
        """See `SharedNoise`."""
        noise = SharedNoise.of(n, precision, low, high)
        part = Fraction(n) / (n + Fraction(math.sqrt(n)))
        return cls(noise.apart * part, noise.shared * part)


class RoundedDown(SharedNoise):
    """Planted: halves are rounded down."""

    def draw(self, bits, label, n):
        """See `SharedNoise`."""
        return self.twice(bits, label, f"{label}/anchor", n) // 2


@pytest.mark.parametrize("planted", [WithoutAnchor, AnchorEach, Cheap])
def test_planted_errors_of_privacy_are_detected(planted):
    """The audit sees noise that is too small by the anchor, by its covariance or by the cost."""
    noise = planted.of(2, PRECISION)
    assert max(deltas(noise, 2, epsilon_of(float(PRECISION) / 2), 0, 1)) > 1.2e-3


def test_halves_that_are_rounded_down_are_detected():
    """A quarter of a count is missing on average; privacy does not suffer."""
    values, mass = law(RoundedDown.of(2, PRECISION), 2)
    assert mass @ values == pytest.approx([-0.25, -0.25], abs=1e-3)


@pytest.mark.parametrize(
    ("mechanism", "n"),
    [
        (KnownLaplace(None, 2, 2, Fraction(3, 2)), 2),
        (KnownLaplace(None, 2, 2, Fraction(3), 2), 2),
        (KnownLaplace(1, 3, 2, Fraction(2)), 3),
        (KnownGumbel(2, 4, Fraction(4, 3)), 2),
        (KnownGumbel(2, 4, Fraction(4, 3), 2), 2),
    ],
)
def test_counts_cost_what_is_charged_for_any_number_of_items(mechanism, n):
    """Also for a user of more items than `groups_per_user`, on which the shared noise does not depend."""
    noise, tau = mechanism.count_noise(), mechanism.rows_per_group
    rho = float(mechanism.worst_cost().rho) - (
        n * mechanism.epsilon**2 / 8 if n == 2 and hasattr(mechanism, "epsilon") else 0
    )
    assert max(deltas(noise, n, epsilon_of(float(rho)), 0, tau)) <= 1e-3


@pytest.mark.parametrize(
    "mechanism",
    [
        ListedSums(2, SumBounds(0, 2), 2, Fraction(3)),
        ListedSums(2, SumBounds(1, 2), 2, Fraction(3)),
        ListedSums(2, SumBounds(-3, 0), 2, Fraction(4)),
        ListedSums(2, SumBounds(-1, 2), 2, Fraction(3)),
        ListedSums(3, SumBounds(0, 1), 3, Fraction(2)),
        KnownLaplaceSums(KnownLaplace(None, 2, 2, Fraction(3, 2)), SumBounds(0, 2), 2),
        KnownGumbelSums(KnownGumbel(2, 4, Fraction(4, 3), 1, None), SumBounds(-1, 2), 2),
    ],
)
def test_sums_cost_what_is_charged(mechanism):
    """For users who move each sum by any number within the bounds, or not at all."""
    noise, (low, high) = mechanism.released_noise(), mechanism.summed.units
    price = mechanism.worst_cost().rho - (mechanism.ranking.worst_cost().rho if hasattr(mechanism, "ranking") else 0)
    n = mechanism.domain_size if isinstance(mechanism, ListedSums) else 2
    assert isinstance(noise, SharedNoise)
    assert 0.99 * price < noise.rho(n, min(low, 0), max(high, 0)) <= price
    assert max(deltas(noise, n, epsilon_of(float(price)), min(low, 0), max(high, 0))) <= 1e-3
    assert mechanism.expectation().sum_std_error == noise.std < mechanism.sum_noise().std


@pytest.mark.parametrize(
    "mechanism",
    [
        ListedSums(2, SumBounds(-2, 2), 2, Fraction(3)),
        ListedSums(9, SumBounds(0, 2), 2, Fraction(3)),
        ListedSums(2, SumBounds(0, 2, private=True), 2, Fraction(3)),
        ListedSums(2, SumBounds(0, 2, rows=3), 2, Fraction(3)),
        ListedSums(2, SumBounds(0, 2), 2, Fraction(3), "laplace"),
        UnknownGumbelSums(UnknownGumbel(2, 4, Fraction(1), Fraction(1, 10)), SumBounds(0, 2), 2),
    ],
)
def test_other_sums_have_independent_noise(mechanism):
    """Of both signs alike, of few items a user, with a private bound, of averages, Laplace, or of what is found."""
    assert mechanism.released_noise() == mechanism.sum_noise()


@pytest.mark.parametrize("tau", [1, 3])
@pytest.mark.parametrize(("n", "groups"), [(2, 1), (2, 2), (9, 4), (9, 5), (200, 56), (200, 58), (200, 200)])
def test_noise_is_shared_where_that_is_smaller(n, groups, tau):
    """Where (1 + sqrt(d))^2 is less than 4 Delta, at the same cost: by the factor (1 + sqrt(d)) / 2 sqrt(Delta)."""
    scale = Fraction(40)
    noise = KnownLaplace(None, n, groups, scale, tau).count_noise()
    factor = (1 + math.sqrt(n)) / (2 * math.sqrt(groups))
    assert isinstance(noise, SharedNoise if factor < 1 else DiscreteGaussian)
    if factor < 1:
        cost = groups * Fraction(tau) ** 2 / (2 * scale**2)
        assert 0.999 * cost < noise.rho(n, 0, tau) <= cost
        assert noise.std == pytest.approx(factor * scale, rel=1e-3)


def test_half_widths_cover_and_are_nearly_the_smallest():
    """Pr[|noise| > w] is at most the failure probability, and w - 2 would not do."""
    noise = SharedNoise.of(2, PRECISION / 4)
    values, mass = law(noise, 2)
    for miss in (0.05, 0.2, 0.001):
        width = noise.half_width(miss)
        assert mass[np.abs(values[:, 0]) > width].sum() <= miss
        assert mass[np.abs(values[:, 0]) > width - 2].sum() > miss


def test_the_errors_are_the_documented_ones():
    """At epsilon 1 and delta 1e-8: 200 listed items without a bound, and the counts of the top k of a list."""
    limit = limit_for(1.0, Fraction(1, 10**8), lossless=True)
    listed = KnownLaplace.within_cost(limit, Request(None, 200, known_domain=True))
    assert float(listed.scale) == pytest.approx(76.2, abs=0.05)
    assert listed.expectation().max_std_error == pytest.approx(40.8, abs=0.05)
    for k, factor in ((10, 0.66), (30, 0.59), (100, 0.55)):
        top = KnownGumbel.within_cost(limit, Request(k, 200, known_domain=True))
        assert top.expectation().max_std_error * top.epsilon / 2 == pytest.approx(factor, abs=0.005)
        if k == 10:
            assert top.expectation().max_std_error == pytest.approx(15.9, abs=0.05)


@pytest.mark.parametrize("epsilon", [Fraction(1, 4), 2, 10])
def test_intervals_of_a_race_hold_though_halves_are_rounded_down(epsilon):
    """At least 95 % of the exact distribution, also of the narrowest noise; counts are a quarter too small or less."""
    race = AnchoredGumbel(3, 5, Fraction(epsilon), Fraction(1, 100))
    noise = race._noise()
    laws = []
    for variance in (noise.apart, noise.shared):
        most = math.ceil(9 * math.sqrt(variance)) + 1
        edges = np.arange(-most, most + 2) - 0.5
        laws.append(np.diff(stats.norm.cdf(edges, scale=math.sqrt(variance))))
    mass = np.convolve(*laws)
    values = (np.arange(len(mass)) - len(mass) // 2) // 2
    assert -0.2501 < mass @ values < 0
    width = math.ceil(INTERVAL * race.std_error)
    assert mass[np.abs(values) <= width].sum() >= 0.95
