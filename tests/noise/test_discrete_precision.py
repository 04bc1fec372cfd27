"""The low bits of a released count do not betray the true one (Mironov 2012).

A checker looks at a way of releasing counts. It accepts integer noise added to integers, and rejects floating-point
noise: rounded or not, and at whatever magnitude the rounding bites.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from discreet.noise import DiscreteGaussian, DiscreteLaplace

from .reference import SURE, counted, keyed, p_value

N = 2_000
SMALL = [0, 1, 2, 1000, 2**20 + 1]
LARGE = [0, 1, 2**53 + 1, 2**61 - 1, 2**62]


def with_noise(noise):
    """Return counts with noise as every mechanism does: int64 plus int64."""
    return lambda count: np.full(N, count, dtype=np.int64) + noise.draw(keyed("grid"), "x", N)


def float_laplace(scale):
    """A planted defect: the textbook sampler."""
    return lambda count: count + np.random.default_rng(1).laplace(scale=float(scale), size=N)


def rounded_float_laplace(scale):
    """A planted defect: the textbook sampler, its sum rounded to integers afterwards."""
    return lambda count: np.round(count + np.random.default_rng(1).laplace(scale=float(scale), size=N))


def coarse_laplace(scale):
    """A planted defect: integer noise, but from a uniform of 12 bits: wide noise that leaves most integers out."""

    def release(count):
        rng = np.random.default_rng(1)
        uniform = (rng.integers(0, 2**12, N) + 0.5) / 2**12
        noise = np.floor(-float(scale) * np.log(uniform)) * rng.choice([-1, 1], N)
        return np.full(N, count, dtype=np.int64) + noise.astype(np.int64)

    return release


def betrayals(release, counts, low_bits):
    """Return what in the values released for these true *counts* depends on the counts, or has a grid.

    - not all values are integers: the spacing of floats tells how large the terms of the sum were;
    - value less count is not the same for every count with the same bits: rounding looked at the sum, so the set of
      attainable values is not one set moved along by the count;
    - the residues modulo 2^low_bits are not uniform: a value can be written as noise plus one count, not another;
    - few values are distinct: the attainable set has holes.
    """
    found = set()
    base = None
    for count in counts:
        values = [Fraction(value) for value in release(count).tolist()]
        if any(value.denominator != 1 for value in values):
            found.add("fractions")
        noise = [value - count for value in values]
        base = noise if base is None else base
        if noise != base:
            found.add("rounded sums")
        if low_bits:
            residues = [int(value) % 2**low_bits for value in values]
            if p_value(counted(residues), dict.fromkeys(range(2**low_bits), N / 2**low_bits)) < SURE:
                found.add("grid")
            if len(set(values)) < 0.99 * N:
                found.add("holes")
    return found


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(2), Fraction(200, 15)], ids=str)
def test_narrow_noise_is_the_same_for_every_count(scale):
    """Equal bits give equal noise for counts up to 2^62, and every integer is attainable."""
    for noise in (DiscreteLaplace(scale), DiscreteGaussian(scale**2)):
        assert betrayals(with_noise(noise), [*SMALL, *LARGE], 0) == set()
        assert noise.draw(keyed("grid"), "x", N).dtype == np.int64


@pytest.mark.statistical
@pytest.mark.parametrize("scale", [Fraction(10**9), Fraction(2**35), Fraction(2**40) - 1], ids=str)
def test_wide_noise_reaches_every_residue_alike(scale):
    """Up to the widest noise the low six bits of released values are uniform, so they have no grid."""
    for noise in (DiscreteLaplace(scale), DiscreteGaussian(scale**2)):
        assert betrayals(with_noise(noise), LARGE, 6) == set()


@pytest.mark.parametrize(
    ("release", "counts", "low_bits", "expected"),
    [
        (float_laplace(2), SMALL, 0, {"fractions", "rounded sums"}),
        (float_laplace(2**40), LARGE, 6, {"fractions", "rounded sums", "grid"}),
        (rounded_float_laplace(2), LARGE, 0, {"rounded sums"}),
        (rounded_float_laplace(2**40), LARGE, 6, {"rounded sums", "grid"}),
        (coarse_laplace(10**9), LARGE, 6, {"holes"}),
    ],
    ids=["float", "wide float", "rounded", "wide rounded", "coarse"],
)
def test_floating_point_noise_is_detected(release, counts, low_bits, expected):
    """The checker rejects each planted defect for its own reason."""
    assert betrayals(release, counts, low_bits) >= expected


def attainable(noise, count, around):
    """Return which integers of the window *around* a narrow release of *count* occurred."""
    values = set((count + noise.draw(keyed("attainable"), "x", 200_000)).tolist())
    return {value for value in range(around - 3, around + 4) if value in values}


@pytest.mark.parametrize("noise", [DiscreteLaplace(Fraction(3, 2)), DiscreteGaussian(Fraction(4))], ids=repr)
def test_neighbouring_counts_reach_the_same_integers(noise):
    """A window of seven values is reached completely from every count near it."""
    for count in (2**62 - 2, 2**62 - 1, 2**62):
        assert len(attainable(noise, count, 2**62 - 1)) == 7


def test_float_sums_of_neighbouring_large_counts_reach_different_values():
    """The planted sampler near 2^62 reaches multiples of 512 only, so that a count shows through its noise."""
    values = float_laplace(10**4)(2**62)
    assert {int(value) % 512 for value in values} == {0}
