"""Exact audits of shared Laplace noise: all outcomes of the real draws, on all neighbours, for pure privacy."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from discreet.accounting.convert import limit_for
from discreet.errors import InputError
from discreet.head_request import SumBounds
from discreet.mechanisms import KnownGumbel, KnownLaplace, Request, anchored
from discreet.mechanisms.anchored import SharedLaplace, SharedNoise
from discreet.mechanisms.base import shared_where_smaller
from discreet.mechanisms.sums import KnownGumbelSums, ListedSums
from discreet.noise import DiscreteGaussian, DiscreteLaplace, KeyedBits
from discreet.query.planning import make_plan
from discreet.values import ExactHead
from tests.queries import query_of

from .draws import Coins

pytestmark = pytest.mark.exact

WIDTH = 20
"""Scales of each Laplace that are enumerated."""

EPSILON = Fraction(4)
"""So large that few values have to be enumerated."""


def law(noise, n):
    """Return the probability of every outcome of a draw of *n*, indexed by the values above the least.

    Every Laplace that the draw asks for takes each of its values; coins take both.
    """
    scales, script = [], None

    def scripted(self, _bits, _label, m):
        if script is None:
            scales.extend([float(self.scale)] * m)
            return np.zeros(m, dtype=np.int64)
        return np.stack([next(script) for _ in range(m)], axis=-1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiscreteLaplace, "draw", scripted)
        noise.draw(Coins(0), "counts", n)
        grids = [np.arange(-math.ceil(WIDTH * scale), math.ceil(WIDTH * scale) + 1) for scale in scales]
        masses = [np.exp(-np.abs(z) / b) * math.tanh(1 / (2 * b)) for z, b in zip(grids, scales, strict=True)]
        values = [axis.ravel() for axis in np.meshgrid(*grids, indexing="ij")]
        mass = np.prod([axis.ravel() for axis in np.meshgrid(*masses, indexing="ij")], axis=0)
        side = 2 * max(len(grid) for grid in grids) + 8
        found = np.zeros(side**n)
        for word in range(2**n):
            script = iter(values)
            places = (noise.draw(Coins(word), "counts", n) + side // 2) @ (side ** np.arange(n))
            found += np.bincount(places, mass, minlength=side**n) / 2**n
    return found.reshape((side,) * n)


def largest_loss(noise, n, low, high):
    """Return the largest log ratio of the probabilities of an outcome, over the ways in which a user moves *n* values.

    Outcomes so unlikely that values beyond the enumerated ones would matter are left out.
    """
    mass = law(noise, n)
    likely = mass > 1e-5 * mass.max()
    losses = []
    for moved in itertools.product(range(low, high + 1), repeat=n):
        other = np.roll(mass, [-by for by in moved], axis=range(n))
        losses.append(np.abs(np.log(mass[likely] / other[likely])).max())
    return max(losses)


CASES = [(2, 0, 1), (2, 0, 2), (2, -1, 2), (2, 0, 3)]


@pytest.mark.parametrize(("n", "low", "high"), CASES)
def test_shared_laplace_noise_is_purely_private(n, low, high):
    """However a user moves the values, and rounding hides at most three tenths of epsilon."""
    noise = SharedLaplace.of(n, EPSILON, low, high)
    assert 0.995 * EPSILON < noise.epsilon(n, low, high) <= EPSILON
    assert 0.7 * EPSILON < largest_loss(noise, n, low, high) <= 1.001 * EPSILON


class WithoutAnchor(SharedLaplace):
    """Planted: the shared noise is forgotten."""

    def twice(self, bits, label, _anchor, n):
        """See `SharedLaplace`."""
        return DiscreteLaplace(self.apart).draw(bits, label, n)


class AnchorEach(SharedLaplace):
    """Planted: the anchor is drawn again for every value."""

    def twice(self, bits, label, anchor, n):
        """See `SharedLaplace`."""
        apart = DiscreteLaplace(self.apart).draw(bits, label, n)
        return apart + DiscreteLaplace(self.shared).draw(bits, anchor, n)


class Cheap(SharedLaplace):
    """Planted: the scales are those of a cost of n, without that of the anchor."""

    @classmethod
    def of(cls, n, precision, low=0, high=1):
        """See `SharedLaplace`."""
        noise = SharedLaplace.of(n, precision, low, high)
        part = (high - low) * n / noise.apart / precision
        return cls(noise.apart * part, noise.shared * part)


class RoundedDown(SharedLaplace):
    """Planted: halves are rounded down."""

    def draw(self, bits, label, n):
        """See `SharedNoise`."""
        return self.twice(bits, label, f"{label}/anchor", n) // 2


@pytest.mark.parametrize("planted", [WithoutAnchor, Cheap])
def test_planted_errors_of_privacy_are_detected(planted):
    """The audit sees noise that lacks the anchor, or whose scales do not pay for it."""
    assert largest_loss(planted.of(2, EPSILON), 2, 0, 1) > 1.05 * EPSILON


def test_anchors_that_are_drawn_for_each_value_are_detected():
    """The values would not share a part of their noise."""
    noise = AnchorEach.of(2, 2 * EPSILON)  # four variates are enumerated
    assert abs(moments(law(noise, 2))[1][0, 1]) < noise.shared_std**2 / 4


def moments(mass):
    """Return the means and the covariance of two values."""
    z = np.arange(len(mass)) - len(mass) // 2
    one, two = mass.sum(axis=1), mass.sum(axis=0)
    means = np.array([one @ z, two @ z])
    cross = z @ mass @ z
    return means, np.array([[one @ z**2, cross], [cross, two @ z**2]]) - np.outer(means, means)


@pytest.mark.parametrize(("n", "low", "high"), CASES)
def test_the_noise_has_the_stated_mean_variance_covariance_and_tails(n, low, high):
    """Mean 0, the stated variance and covariance, and half widths that are the smallest."""
    noise = SharedLaplace.of(n, EPSILON, low, high)
    mass = law(noise, n)
    means, covariance = moments(mass)
    assert np.abs(means).max() < 1e-6
    assert covariance[0, 0] == pytest.approx(noise.std**2, rel=0.03)
    assert covariance[0, 1] == pytest.approx(noise.shared_std**2, rel=1e-6)
    z = np.arange(len(mass)) - len(mass) // 2
    for miss in (0.05, 0.2, 0.001):
        width = noise.half_width(miss)
        assert mass.sum(axis=1)[np.abs(z) > width].sum() <= miss
        assert mass.sum(axis=1)[np.abs(z) > width - 1].sum() > miss


def test_halves_that_are_rounded_down_are_detected():
    """A quarter of a count is missing on average; privacy does not suffer."""
    means, _ = moments(law(RoundedDown.of(2, EPSILON), 2))
    assert means == pytest.approx([-0.25, -0.25], abs=0.1)


@pytest.mark.parametrize("tau", [1, 3])
@pytest.mark.parametrize(("n", "groups"), [(2, 2), (3, 3), (4, 4), (10, 10), (10, 6), (14, 14), (200, 200), (200, 90)])
def test_laplace_noise_is_shared_where_that_is_smaller(n, groups, tau):
    """At no larger epsilon and rho: smaller by sqrt(2) Delta / (1 + d^(2/3))^1.5 where rho does not bind."""
    scale = Fraction(40)
    noise = KnownLaplace(None, n, groups, scale, tau, "laplace").count_noise()
    factor = (1 + n ** (2 / 3)) ** 1.5 / (2 * groups)
    assert isinstance(noise, SharedLaplace if factor < 0.99 else DiscreteLaplace)
    if factor < 0.99:
        assert noise.epsilon(n, 0, tau) <= groups * tau / scale
        assert noise.rho(n, 0, tau) <= groups * tau**2 / (2 * scale**2)
        assert factor * 0.999 < noise.std / DiscreteLaplace(scale).std < factor * 1.06
    assert isinstance(
        KnownLaplace(None, n, groups, scale, tau, "laplace", independent=True).count_noise(), DiscreteLaplace
    )


@pytest.mark.parametrize(
    ("mechanism", "epsilon"),
    [
        (KnownLaplace(None, 3, 3, Fraction(3), 1, "laplace"), 1),
        (KnownGumbel(3, 4, Fraction(2, 3), 1, "laplace"), 1),
    ],
)
def test_counts_cost_what_is_charged(mechanism, epsilon):
    """Pure epsilon of all counts together, on a grid of the real draws."""
    noise = mechanism.count_noise()
    assert isinstance(noise, SharedLaplace)
    assert noise.epsilon(3) <= epsilon
    pair = SharedLaplace(noise.apart / 3, noise.shared / 3)
    assert largest_loss(pair, 2, 0, 1) <= 1.001 * pair.epsilon(2)


@pytest.mark.parametrize(("low", "high"), [(0, 9), (-2, 7), (-5, 0), (-4, 4)])
def test_laplace_sums_of_listed_items_share_noise_where_that_is_smaller(low, high):
    """At the epsilon and rho of independent noise; not where values may have either sign alike, nor in averages."""
    request = Request(
        None, 6, counts=False, noise="laplace", known_domain=True, summed=SumBounds(low, high, column="x")
    )
    sums = ListedSums.at_epsilon(Fraction(1, 2), Fraction(0), request)
    noise = sums.released_noise()
    top = KnownGumbelSums.at_epsilon(Fraction(2), Fraction(0), replace(request, k=4))
    averages = replace(sums, summed=replace(sums.summed, rows=3))
    priced = ListedSums.at_epsilon(Fraction(1, 2), Fraction(0), replace(request, independent=True))
    for alone in (averages, priced):
        assert alone.released_noise() == alone.sum_noise()
    if low == -high:
        assert noise == sums.sum_noise()
        return
    for mechanism, n in ((sums, 6), (top, 4)):
        noise = mechanism.released_noise()
        scale = mechanism.sum_noise().scale
        most = max(-low, high)
        assert isinstance(noise, SharedLaplace)
        assert noise.std < mechanism.sum_noise().std
        assert noise.epsilon(n, low, high) <= n * most / scale
        assert noise.rho(n, low, high) <= n * most**2 / (2 * scale**2)
    assert sums.expectation().sum_std_error == sums.released_noise().std
    outcome = sums.release(ExactHead(np.full(6, 9), 6, None, np.full(6, 30)), KeyedBits(bytes(32), "sums"))
    assert outcome.shared_error == sums.released_noise().shared_std
    assert set((outcome.measured.std_errors).tolist()) == {sums.released_noise().std}


def test_a_query_of_its_own_has_the_smaller_noise():
    """Listed labels without delta: Laplace up to about 14 of them, Gaussian beyond, each with a shared part."""
    for labels, kind in ((4, SharedLaplace), (10, SharedLaplace), (60, SharedNoise)):
        domain = [f"x{n:02}" for n in range(labels)]
        query = query_of("who", ("item",), domain=domain, mechanism="laplace")
        assert type(make_plan(query).mechanism.count_noise()) is kind
    for d, gain in ((4, 1.21), (10, 1.49)):
        listed = KnownLaplace.at_epsilon(
            Fraction(1, 10), Fraction(0), Request(None, d, noise="laplace", known_domain=True)
        )
        assert DiscreteLaplace(listed.scale).std / listed.count_noise().std == pytest.approx(gain, abs=0.01)
        assert listed.direct_epsilon() == Fraction(1, 10)


def test_the_price_of_laplace_counts_is_their_interval():
    """2.12 standard errors for independent noise, and what is shown for shared noise."""
    limit = limit_for(1.0, Fraction(1, 10**8), lossless=True)
    for k, ratio in ((1, 2.12), (8, 2.02)):
        top = KnownGumbel.within_cost(limit, Request(k, 20, noise="laplace", known_domain=True))
        expected = top.expectation()
        assert expected.max_half_width == top.count_noise().half_width()
        assert expected.max_half_width / expected.max_std_error == pytest.approx(ratio, abs=0.1)
    gaussian = KnownGumbel.within_cost(limit, Request(8, 20, known_domain=True))
    assert gaussian.expectation().max_half_width is None
    assert isinstance(shared_where_smaller(DiscreteLaplace(Fraction(9)), 1, 1, 0, 1), DiscreteLaplace)
    for alone in (DiscreteLaplace(Fraction(9)), DiscreteGaussian(Fraction(9))):
        assert shared_where_smaller(alone, 2, 2, -1, 1) is alone


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(SharedNoise, [675, 30, -13, 33, 21, -5]), (SharedLaplace, [-20034, -130, 464, 270, -1826, -751])],
)
def test_what_a_key_draws_is_kept(kind, expected):
    """Of 65 values, whose coins take more than one word; each shares the anchor."""
    drawn = kind(Fraction(900), Fraction(400)).draw(KeyedBits(bytes(32), "kept"), "counts", 65)
    assert [int(drawn.sum()), *drawn[:3].tolist(), *drawn[-2:].tolist()] == expected


def test_costs_of_shared_noise_by_hand():
    """Of values that a user moves by 0 to 1, and by -1 to 3; and the widest noise that can be drawn."""
    laplace = SharedLaplace(Fraction(3), Fraction(2))
    assert laplace.rho(4) == (Fraction(4, 9) + Fraction(1, 4)) / 2
    assert laplace.rho(4, -1, 3) == (Fraction(64, 9) + 1) / 2
    assert laplace.epsilon(4) == Fraction(4, 3) + Fraction(1, 2)
    assert laplace.epsilon(4, -1, 3) == Fraction(16, 3) + 1
    gaussian = SharedNoise(Fraction(3), Fraction(2))
    assert gaussian.rho(4) == (Fraction(4, 3) + Fraction(1, 2)) / 2
    assert gaussian.rho(4, -1, 3) == (Fraction(64, 3) + Fraction(4, 2)) / 2
    for kind in (SharedLaplace, SharedNoise):
        assert kind.instead(9, 9, Fraction(10_000), 0, 1) is not None
        assert kind.instead(1, 1, Fraction(10_000), 0, 1) is None
    for alone in (DiscreteLaplace(Fraction(50)), DiscreteGaussian(Fraction(50))):
        assert shared_where_smaller(alone, 9, 9, -3, 3) is alone  # what moves both ways alike shares no noise
    assert [anchored._cube_root(number) for number in (0, 1, 7, 8, 26, 27, 10**18)] == [0, 1, 1, 2, 2, 3, 10**6]
    assert SharedNoise(Fraction(2**80), Fraction(1)).apart == 2**80
    with pytest.raises(InputError, match="wider"):
        SharedNoise(Fraction(1), Fraction(2**80 + 1))
