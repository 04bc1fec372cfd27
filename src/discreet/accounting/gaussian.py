"""Gaussian differential privacy: the exact cost of Gaussian noise, without the loss of a conversion through zCDP.

A mechanism is mu-GDP if its outputs on two neighbours are at least as hard to distinguish as N(0, 1) and N(mu, 1).
Gaussian noise of standard deviation sigma on values that a user moves by a vector of length s is (s / sigma)-GDP, and
the squares of mu of adaptively chosen steps add (Dong, Roth & Su 2022, Theorem 2.7 and Corollary 3.3). mu-GDP implies
mu^2/2-zCDP, so a GDP mechanism can join a zCDP budget at that price; on its own it has the (epsilon, delta) curve

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

(Balle & Wang 2018, Theorem 8). All functions round to the safe side: delta up, mu and rho down, quantiles up.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from discreet.errors import InputError

Floats = NDArray[np.float64]

_ULP = 2.0**-52
_SQRT2 = math.sqrt(2)


def normal_tail(z: float) -> float:
    """Return Pr[N(0, 1) > z]."""
    return math.erfc(z / _SQRT2) / 2


def normal_quantile(probability: float) -> float:
    """Return the smallest z, up to a relative 1e-9, with Pr[N(0, 1) > z] at most *probability*.

    Args:
        probability: above 0, at most 1/2.
    """
    z = -NormalDist().inv_cdf(probability) * (1 + 1e-12)
    while normal_tail(z) * (1 + 1e-9) > probability:
        z += 1e-9 * (1 + z)
    return z


def delta_gaussian(mu: float, epsilon: float) -> float:
    """Return delta of a mu-GDP mechanism at *epsilon*, rounded up.

    Args:
        mu: above 0.
        epsilon: at least 0, finite.
    """
    first = normal_tail(epsilon / mu - mu / 2)
    second = normal_tail(epsilon / mu + mu / 2)
    if second > 0:  # e^epsilon alone could overflow; the product is at most 1
        second = math.exp(epsilon + math.log(second))
    # Rounding the arguments changes the tails by a relative x^2 ulps, and the exponential by epsilon ulps.
    slack = 4 * _ULP * (2 + (epsilon / mu + mu / 2) ** 2 + epsilon) * (first + second)
    return min(1.0, max(first - second + slack, sys.float_info.min))


@lru_cache(1024)
def mu_gaussian(epsilon: float, delta: float) -> float:
    """Return the largest mu whose delta at *epsilon* is at most *delta*, rounded down.

    Args:
        epsilon: above 0, finite.
        delta: above 0, below 1.

    Raises:
        InputError: a value outside its range.
    """
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon must be above 0 and finite, not {epsilon}")
    if not 0 < delta < 1:
        raise InputError(f"delta must be above 0 and below 1, not {delta}")
    low = 0.0
    high = 1.0
    while delta_gaussian(high, epsilon) <= delta:
        low = high
        high = 2 * high
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if delta_gaussian(middle, epsilon) <= delta:
            low = middle
        else:
            high = middle
    return low


@lru_cache(256)
def rho_of_branch(epsilon: float, delta: float, mu: float, test: float, lost: float, lost_other: float) -> float:
    """Return the largest rho of an alternative branch that a mu-GDP mechanism may take after a Gaussian test.

    The test is test-GDP, and its outcome selects one of two branches: the rest of the mu-GDP mechanism, which is
    sqrt(mu^2 - test^2)-GDP except for a mass *lost*, or a rho-zCDP mechanism except for a mass *lost_other*. The
    privacy loss L of the test is at most N(test^2/2, test^2), and after the test only one branch runs, so delta at
    epsilon is at most E max(delta of one branch at epsilon - L, delta of the other) (docs/mechanisms/two_round.md,
    Theorem 2).

    Args:
        epsilon: epsilon of the whole run, above 0.
        delta: delta of the whole run, above 0.
        mu: mu of the mechanism with the test; its own delta at epsilon plus *lost* is below *delta*.
        test: mu of the test alone, above 0 and below *mu*.
        lost: probability mass that the bound on the first branch does not cover.
        lost_other: probability mass that the bound on the alternative branch does not cover.

    Returns:
        rho of the alternative branch alone; 0 if no rho is small enough.
    """
    level, mass = _after_test(epsilon, test)
    first = _gaussian_branch(mu, test, level) + lost
    other = _zcdp_branch(level)
    return _largest(mu**2, lambda rho: _expected(mass, first, other(rho) + lost_other) <= delta)


@lru_cache(256)
def epsilon_of_branch(
    epsilon: float, delta: float, mu: float, test: float, lost: float, rho: float, lost_other: float, lost_pure: float
) -> float:
    """Return the largest epsilon of a third branch, beside those of `rho_of_branch`, that is pure but for a mass lost.

    Args:
        epsilon: as in `rho_of_branch`, like *mu*, *test*, *lost* and *lost_other*.
        delta: delta of the whole run; E max of the first two branches must be below it.
        rho: rho of the second branch.
        lost_pure: probability mass that the bound on the third branch does not cover.

    Returns:
        epsilon of the third branch alone; 0 if none is small enough.
    """
    level, mass = _after_test(epsilon, test)
    others = np.maximum(_gaussian_branch(mu, test, level) + lost, _zcdp_branch(level)(rho) + lost_other)
    return _largest(epsilon, lambda third: _expected(mass, others, _pure_branch(third, level) + lost_pure) <= delta)


@lru_cache(256)
def rho_after_second_test(
    epsilon: float,
    delta: float,
    mu: float,
    test: float,
    lost: float,
    rho: float,
    lost_other: float,
    pure: float,
    lost_pure: float,
    second: float,
) -> float:
    """Return the largest rho of a branch after a second, pure test, beside those of `epsilon_of_branch`.

    The second test is at most *second*-DP. It selects the third branch, with an epsilon that is smaller by as much, or
    a rho-zCDP mechanism except for a mass *lost_other*. The privacy loss of the second test is at most *second*, so
    delta of what follows is at most that of either at an epsilon that is lower by *second* (docs/mechanisms/auto.md).

    Args:
        epsilon: as in `epsilon_of_branch`, like *delta*, *mu*, *test*, *lost*, *lost_other* and *lost_pure*.
        rho: that of the second branch, which bounds the result; 0 if there is none.
        pure: epsilon of the third branch.
        second: the largest epsilon of the second test, above 0 and below *pure*.

    Returns:
        rho of the branch alone; 0 if none is small enough.
    """
    level, mass = _after_test(epsilon, test)
    lower = level - second
    branches = [
        _gaussian_branch(mu, test, level) + lost,
        _zcdp_branch(level)(rho) + lost_other,
        _pure_branch(pure, level) + lost_pure,
        _pure_branch(pure - second, lower) + lost_pure,
    ]
    others = np.max(branches, axis=0)
    last = _zcdp_branch(lower)
    return _largest(rho or mu**2, lambda fourth: _expected(mass, others, last(fourth) + lost_other) <= delta)


def _largest(high: float, fits: Callable[[float], bool]) -> float:
    """Return the largest number from 0 to *high* that fits, rounded down to about 12 digits; 0 if none does."""
    low = 0.0
    if not fits(low):
        return 0.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _after_test(epsilon: float, test: float) -> tuple[Floats, Floats]:
    """Return cells of the privacy loss L of a test, N(test^2/2, test^2): epsilon - L, and the probability of each cell.

    A cell counts at its upper end, where epsilon - L is least and delta is largest.
    """
    edges = np.arange(-9, 9.001, 0.05)
    mass = np.diff([normal_tail(-x) for x in (-math.inf, *edges.tolist())])
    return epsilon - (test**2 / 2 + test * edges), mass


def _expected(mass: Floats, first: Floats, second: Floats) -> float:
    """Return delta of a run whose branches have delta *first* and *second* after each loss, rounded up."""
    return (float(mass @ np.minimum(np.maximum(first, second), 1)) + normal_tail(9)) * (1 + 1e-9)


def _gaussian_branch(mu: float, test: float, level: Floats) -> Floats:
    """Return delta at *level* of the rest of a mu-GDP mechanism after a test."""
    rest = math.sqrt(mu**2 - test**2)
    return np.array([_delta_gaussian_at(rest, float(at)) for at in level])


def _zcdp_branch(level: Floats) -> Callable[[float], Floats]:
    """Return delta at *level* of a rho-zCDP mechanism, by rho (Canonne, Kamath & Steinke 2020, Proposition 12).

    For every order a > 1, delta is at most exp((a - 1)(a rho - level)) (1 - 1/a)^(a - 1) / a; the least is taken.
    """
    order = 1 + np.exp(np.linspace(-2, 9, 300))[:, None]
    exponent = -(order - 1) * level + (order - 1) * np.log1p(-1 / order) - np.log(order)

    def delta(rho: float) -> Floats:
        least: Floats = np.exp(np.minimum((order * (order - 1) * rho + exponent).min(axis=0), 0))
        return least

    return delta


def _pure_branch(epsilon: float, level: Floats) -> Floats:
    """Return delta at *level* of an epsilon-DP mechanism: that of randomized response, which dominates it."""
    between = (math.exp(epsilon) - np.exp(np.minimum(level, epsilon))) / (1 + math.exp(epsilon))
    delta: Floats = np.where(level <= -epsilon, -np.expm1(np.minimum(level, 0)), np.maximum(between, 0))
    return delta


def _delta_gaussian_at(mu: float, epsilon: float) -> float:
    """Return `delta_gaussian`, extended to negative epsilon."""
    if epsilon >= 0:
        return delta_gaussian(mu, epsilon)
    return min(1.0, 1 - math.exp(epsilon) * (1 - delta_gaussian(mu, -epsilon)) + 1e-15)
