"""The cost of Laplace noise in zCDP, computed by summation and with sixty digits."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from discreet.accounting.convert import PRECISION_BITS
from discreet.accounting.laplace import epsilon_of_laplace, rho_laplace


def renyi(order, scale, moved):
    """Return the Renyi divergence of discrete Laplace noise from itself moved by an integer, by summation."""
    values = np.arange(-int(60 * scale) - 2 * moved, int(60 * scale) + 3 * moved)
    loss = (np.abs(values - moved) - np.abs(values)) / scale
    mass = np.exp(-np.abs(values) / scale) * math.tanh(1 / (2 * scale))
    return math.log1p(math.fsum(mass * np.expm1((order - 1) * loss))) / (order - 1)


@pytest.mark.exact
@pytest.mark.parametrize("moved", [1, 2, 7, 64, 1024])
@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(1), Fraction(5, 2), Fraction(8)])
def test_no_order_costs_more_than_stated(epsilon, moved):
    """D_a <= a rho for the discrete noise that is drawn, at every order; near 1 it is close for fine units."""
    scale = float(moved / epsilon)
    rho = float(rho_laplace(epsilon, moved))
    costs = [renyi(order, scale, moved) / order for order in (1.001, 1.01, 1.1, 1.5, 2, 4, 16, 64)]
    assert max(costs) <= rho * (1 + 1e-9)
    if moved == 1024:
        assert max(costs) > 0.99 * rho


@pytest.mark.exact
@pytest.mark.parametrize("epsilon", [Fraction(1, 10**n) for n in (9, 7, 5, 4, 2, 0)] + [Fraction(3), Fraction(30)])
def test_the_cost_of_fine_noise_is_rounded_up_by_little(epsilon):
    """It is e - 1 + exp(-e), computed here with 60 digits, and never more than e^2 / 2, for very small e too."""
    with mpmath.workdps(60):
        e = mpmath.mpf(epsilon.numerator) / epsilon.denominator
        exact = e - 1 + mpmath.exp(-e)
        rho = rho_laplace(epsilon, 2**60)
        stated = mpmath.mpf(rho.numerator) / rho.denominator
        assert exact < stated <= min(exact * (1 + mpmath.mpf("2e-9")) + mpmath.mpf("2e-15"), e**2 / 2 + e**3 / 2**120)


def test_a_shift_split_over_many_values_costs_no_more():
    """The cost is convex in the shift and 0 at 0, so one value with the whole shift is the worst."""
    whole = renyi(2.0, 32.0, 64)
    assert sum(renyi(2.0, 32.0, part) for part in (1, 3, 20, 40)) < whole


@pytest.mark.parametrize("rho", [Fraction(1, 10**6), Fraction(1, 50), Fraction(1), Fraction(7), Fraction(40)])
def test_the_epsilon_of_a_rho_costs_at_most_it(rho):
    """It is rounded down, by little."""
    epsilon = epsilon_of_laplace(rho, 2**20)
    assert rho_laplace(epsilon, 2**20) <= rho
    assert rho_laplace(epsilon * (1 + Fraction(1, 2 ** (PRECISION_BITS - 4))), 2**20) > rho
