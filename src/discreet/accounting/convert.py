"""Conversions between rho-zCDP, (epsilon, delta)-DP and LinkedIn's units, and the statement of a guarantee.

- simple: epsilon = rho + 2 sqrt(rho ln(1/delta)) (Bun & Steinke 2016, Proposition 1.3; used in the papers).
- tight: epsilon = min over alpha > 1 of alpha rho + ln(1/(alpha delta))/(alpha - 1) + ln(1 - 1/alpha)
  (Canonne, Kamath & Steinke 2020, Proposition 12). Every alpha gives a valid bound, so an imperfect minimum is still
  valid; it is never above the simple bound.

All functions take and return floats and round to the safe side by a relative 1e-12, far more than their rounding
errors: epsilon and delta up, rho down. delta is always the part spent on the conversion; mass that a mechanism loses
(`Cost.delta`) comes on top. Parameters found for a limit are rounded down, so that costs computed from them fit it. All
raise `InputError` for a value outside the documented range.

LinkedIn's units (Rogers et al. 2021, section 6) are an information budget k* and a call budget l*: a unit of
information is rho = epsilon_per^2 / 8 (one peel of the exponential mechanism, or one noisy count), a call to a
mechanism over an unknown domain is delta_per.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from discreet.errors import InputError, InvariantViolated
from discreet.values import DELTA_QUANTUM, RHO_QUANTUM, Cost, float_above, float_below

_SLACK = 1e-12
# ln(alpha - 1) of the optimum is near ln(ln(1/delta) / rho) / 2: this covers rho from 1e-30 to 1e8.
_LEAST = -12.0
_MOST = 45.0
_REMEMBERED = 1024  # a minimum takes 200 times as long as a cache hit, and queries have few different costs
_GOLDEN = (math.sqrt(5) - 1) / 2


def epsilon_simple(rho: float, delta: float) -> float:
    """Return epsilon for rho-zCDP at *delta*, by the simple formula.

    Args:
        rho: at least 0.
        delta: above 0, below 1.
    """
    _check(rho=rho, delta=delta)
    return (rho + 2 * math.sqrt(rho * -math.log(delta))) * (1 + _SLACK)


@lru_cache(_REMEMBERED)
def epsilon_tight(rho: float, delta: float) -> float:
    """Return epsilon for rho-zCDP at *delta*, by the tight formula; ranges as in `epsilon_simple`."""
    simple = epsilon_simple(rho, delta)  # refuses values outside the ranges
    if rho == 0:
        return 0.0
    log_delta = math.log(delta)
    epsilon = _minimise(lambda u: _order(u) * rho + _offset(u, log_delta))
    return max(0.0, min(epsilon * (1 + _SLACK), simple))


def delta_tight(rho: float, epsilon: float) -> float:
    """Return delta for rho-zCDP at *epsilon*: the tight formula solved for delta.

    Args:
        rho: at least 0.
        epsilon: at least 0.

    Returns:
        the smallest delta the formula allows, at most 1.
    """
    _check(rho=rho)
    if not 0 <= epsilon < math.inf:
        raise InputError(f"epsilon must be at least 0 and finite, not {epsilon}")
    if rho == 0:
        return 0.0

    def log_delta(u: float) -> float:
        above = math.exp(u)
        return above * (_order(u) * rho - epsilon) - above * math.log1p(math.exp(-u)) - math.log1p(above)

    return min(1.0, max(math.exp(min(_minimise(log_delta), 0.0)) * (1 + 1e-9), sys.float_info.min))


def rho_simple(epsilon: float, delta: float) -> float:
    """Return the largest rho with `epsilon_simple` at most *epsilon*.

    Args:
        epsilon: above 0, finite.
        delta: above 0, below 1.
    """
    _check(epsilon=epsilon, delta=delta)
    log = -math.log(delta)
    return (epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2 * (1 - 3 * _SLACK)


@lru_cache(_REMEMBERED)
def rho_tight(epsilon: float, delta: float) -> float:
    """Return the largest rho with `epsilon_tight` at most *epsilon*; ranges as in `rho_simple`.

    For each alpha the bound is linear in rho and reaches epsilon at one rho; the result is the maximum over alpha.
    """
    simple = rho_simple(epsilon, delta)  # refuses values outside the ranges
    log_delta = math.log(delta)
    rho = -_minimise(lambda u: (_offset(u, log_delta) - epsilon) / _order(u))
    return max(rho * (1 - 3 * _SLACK), simple)


def _order(u: float) -> float:
    """Return alpha, from u = ln(alpha - 1)."""
    return 1 + math.exp(u)


def _offset(u: float, log_delta: float) -> float:
    """Return the part of the tight bound that does not depend on rho."""
    return (-log_delta - math.log1p(math.exp(u))) / math.exp(u) - math.log1p(math.exp(-u))


def _minimise(function: Callable[[float], float]) -> float:
    """Return the least value found on [_LEAST, _MOST]: a grid, then golden sections around its best point."""
    steps = 96
    width = (_MOST - _LEAST) / steps
    values = [function(_LEAST + i * width) for i in range(steps + 1)]
    best = min(range(steps + 1), key=values.__getitem__)
    low = _LEAST + max(best - 1, 0) * width
    high = _LEAST + min(best + 1, steps) * width
    left = high - _GOLDEN * (high - low)
    right = low + _GOLDEN * (high - low)
    at_left = function(left)
    at_right = function(right)
    for _ in range(48):
        if at_left < at_right:
            high = right
            right = left
            at_right = at_left
            left = high - _GOLDEN * (high - low)
            at_left = function(left)
        else:
            low = left
            left = right
            at_left = at_right
            right = low + _GOLDEN * (high - low)
            at_right = function(right)
    return min(values[best], at_left, at_right)


def _check(*, rho: float = 0.0, epsilon: float = 1.0, delta: float = 0.5) -> None:
    if not 0 <= rho < math.inf:
        raise InputError(f"rho must be at least 0 and finite, not {rho}")
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon must be above 0 and finite, not {epsilon}")
    if not 0 < delta < 1:
        raise InputError(f"delta must be above 0 and below 1, not {delta}")


LEAST_DELTA = Fraction(1, 10**20)
"""The smallest default of delta; the smallest that a query may have."""

PRECISION_BITS = 28
"""Parameters are rounded to this many significant bits: coarser than differences between the logarithms of two
machines, so that equal queries have equal parameters everywhere, and too fine to matter (4e-9)."""


def limit_for(epsilon: float, delta: Fraction, lossless: bool = False) -> Cost:
    """Return the largest (rho, delta) that may be spent under an (epsilon, delta) guarantee.

    Half of delta pays for the conversion, the other half is mass that mechanisms may lose; a mechanism that loses none
    (*lossless*) leaves all of it to the conversion.

    Args:
        epsilon: above 0.
        delta: above 0, below 1.
        lossless: True if no mass will be lost.
    """
    if not 0 < delta < 1:
        raise InputError(f"delta must be above 0 and below 1, not {delta}")
    lost = Fraction(0) if lossless else delta / 2
    return Cost.at_most(floor_bits(Fraction(rho_tight(epsilon, float_below(delta - lost)))), lost)


def share_of_delta(epsilon: float, limit: Cost, most: Fraction) -> Fraction:
    """Return a delta for a query of *epsilon*, of which *limit* takes no smaller share than of rho; at most *most*.

    So queries of a small epsilon use up rho before delta. Thresholds grow only with the logarithm of one over delta.
    It depends on no balance, so that equal queries have equal deltas.

    Args:
        epsilon: above 0, finite.
        limit: the (rho, delta) that queries share; half of a query's delta is mass that it may lose.
        most: above 0, below 1.

    Returns:
        *most*, or a smaller number of two significant digits, at least 1e-20.
    """
    delta = most
    for _ in range(4):  # rho falls with the logarithm of delta, so each step is some twenty times closer
        delta = min(most, max(2 * limit.delta * limit_for(epsilon, delta).rho / limit.rho, LEAST_DELTA))
    if delta == most:
        return most
    digits = Fraction(10) ** (1 - math.floor(math.log10(delta)))
    return max(math.floor(delta * digits) / digits, LEAST_DELTA)


def epsilon_per_unit(rho: Fraction, units: int | Fraction) -> Fraction:
    """Return the largest epsilon (to 28 bits) with units * epsilon^2 / 8 <= rho."""
    return floor_sqrt(8 * rho / units)


def floor_bits(value: Fraction, bits: int = PRECISION_BITS) -> Fraction:
    """Round *value* > 0 down to *bits* significant bits."""
    shift = bits - (value.numerator.bit_length() - value.denominator.bit_length())
    return math.floor(value * Fraction(2) ** shift) / Fraction(2) ** shift


def floor_sqrt(value: Fraction, bits: int = PRECISION_BITS) -> Fraction:
    """Return the square root of *value*, rounded down to a dyadic fraction of about *bits* bits; 0 for 0."""
    if value <= 0:
        return Fraction(0)
    magnitude = (value.numerator.bit_length() - value.denominator.bit_length()) // 2
    shift = bits - magnitude
    scaled = value * Fraction(4) ** shift
    return Fraction(math.isqrt(math.floor(scaled))) / Fraction(2) ** shift


def ceil_sqrt(value: Fraction, bits: int = PRECISION_BITS) -> Fraction:
    """Return the square root of *value* > 0, rounded up to a fraction of about *bits* bits."""
    return 1 / floor_sqrt(1 / value, bits)


class UnitCost(NamedTuple):
    """A cost in units of information, which are peels and noisy values, and in calls to unknown domains."""

    information: int
    calls: int

    def __str__(self) -> str:
        return f"{self.information:,} of information, {self.calls:,} {'call' if self.calls == 1 else 'calls'}"


def cost_of_units(information: int, calls: int, epsilon_per: Fraction, delta_per: Fraction) -> Cost:
    """Return the zCDP cost of *information* units and *calls* together.

    Args:
        information: k, at least 0.
        calls: l, at least 0.
        epsilon_per: privacy parameter of one unit, above 0.
        delta_per: mass lost by one call, at least 0 and below 1.
    """
    if information < 0 or calls < 0:
        raise InputError("information and calls must not be negative")
    _check_units(epsilon_per, delta_per)
    return Cost(information * epsilon_per**2 / 8, calls * delta_per)


def units_of_cost(cost: Cost, epsilon_per: Fraction, delta_per: Fraction) -> UnitCost:
    """Return the least units that cover *cost*; ranges as in `cost_of_units`, delta_per above 0."""
    _check_units(epsilon_per, delta_per)
    if delta_per == 0:
        raise InputError("delta per call must be above 0")
    # the least numbers of units whose cost, rounded up to the quantum, covers the spent amount
    information = math.floor((cost.rho - RHO_QUANTUM) / (epsilon_per**2 / 8)) + 1 if cost.rho else 0
    calls = math.floor((cost.delta - DELTA_QUANTUM) / delta_per) + 1 if cost.delta else 0
    return UnitCost(information, calls)


def _check_units(epsilon_per: Fraction, delta_per: Fraction) -> None:
    if epsilon_per <= 0:
        raise InputError("epsilon per unit must be above 0")
    if not 0 <= delta_per < 1:
        raise InputError("delta per call must be at least 0 and below 1")


UNIT = "user"
NEIGHBOURS = "tables that differ in all rows of one user, added or removed"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """(epsilon, delta)-differential privacy, and the zCDP behind it.

    Args:
        epsilon: rounded up.
        delta: rounded up; includes the mass that mechanisms may lose.
        rho: zCDP of the worst case.
        neighbours: the pairs of tables for which it holds.
        computational: True if it rests on AES and HMAC (keyed noise), not on true randomness.
    """

    epsilon: float
    delta: float
    rho: float
    unit: str = UNIT
    neighbours: str = NEIGHBOURS
    computational: bool = False

    def __str__(self) -> str:
        kind = "computational differential privacy" if self.computational else "differential privacy"
        return (
            f"({self.epsilon:.4g}, {self.delta:.4g})-{kind} for every {self.unit} "
            f"(rho = {self.rho:.4g}; between {self.neighbours})"
        )


def guarantee_of(
    cost: Cost, delta: Fraction, direct_epsilon: Fraction | None = None, computational: bool = False
) -> Guarantee:
    """Return the guarantee of a mechanism (or a whole filter) whose worst case is *cost*.

    Args:
        cost: the worst case.
        delta: total delta of the statement; the part that the mechanism cannot lose pays for the conversion.
        direct_epsilon: epsilon of a direct (epsilon, cost.delta)-DP theorem about the mechanism, if there is one.

    Raises:
        InvariantViolated: the mechanism alone may lose *delta* or more.
    """
    conversion = delta - cost.delta
    epsilon = math.inf
    stated = delta
    if conversion > 0:
        epsilon = epsilon_tight(float_above(cost.rho), float_below(conversion))
    if direct_epsilon is not None and direct_epsilon < epsilon and cost.delta <= delta:
        epsilon = float_above(direct_epsilon)
        stated = cost.delta
    if epsilon == math.inf:
        raise InvariantViolated("no delta is left for the conversion")
    return Guarantee(epsilon, float_above(stated), float_above(cost.rho), computational=computational)
