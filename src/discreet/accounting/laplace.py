"""The cost in zCDP of Laplace noise, below the epsilon^2 / 2 of a general epsilon-DP mechanism.

Noise of scale b on values that a user moves by at most s in l1, e = s / b, is e-DP and (e - 1 + exp(-e))-zCDP, which is
its Kullback-Leibler divergence; discrete noise costs at most e / 6b^2 more (docs/accounting.md#laplace-noise).
"""

from __future__ import annotations

import math
from fractions import Fraction

from discreet.accounting.convert import floor_bits


def rho_laplace(epsilon: Fraction, moved: int) -> Fraction:
    """Return the zCDP cost, rounded up, of discrete Laplace noise of scale *moved* / *epsilon* on integers.

    Args:
        epsilon: above 0.
        moved: the most by which a user moves all integers together, in l1.
    """
    e = float(epsilon)
    continuous = min(Fraction((e + math.expm1(-e)) * (1 + 1e-9) + 1e-15), epsilon**2 / 2)
    return continuous + epsilon**3 / (6 * moved**2)


def epsilon_of_laplace(rho: Fraction, moved: int) -> Fraction:
    """Return the largest epsilon, rounded down, whose `rho_laplace` is at most *rho*."""
    low = 0.0
    high = 2 * (1 + float(rho)) + 2 * math.sqrt(float(rho))
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if rho_laplace(Fraction(middle), moved) <= rho:
            low = middle
        else:
            high = middle
    return floor_bits(Fraction(low))
