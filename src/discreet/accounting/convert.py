"""Between rho-zCDP and (epsilon, delta)-DP, both ways.

- simple: epsilon = rho + 2 sqrt(rho ln(1/delta)) (Bun & Steinke 2016, Proposition 1.3; what the papers use).
- tight: epsilon = min over alpha > 1 of alpha rho + ln(1/(alpha delta))/(alpha - 1) + ln(1 - 1/alpha)
  (Canonne, Kamath & Steinke 2020, Proposition 12). Every alpha gives a valid bound, so an imperfect minimum is still
  valid; it is never above the simple bound.

All functions take and return floats and lean to the safe side by a relative 1e-12, far more than their rounding errors:
epsilon and delta up, rho down. delta is always the part spent on the conversion; mass that a mechanism loses
(`Cost.delta`) comes on top.
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

_SLACK = 1e-12
# ln(alpha - 1) of the optimum is near ln(ln(1/delta) / rho) / 2: this covers rho from 1e-30 to 1e8.
_LEAST, _MOST = -12.0, 45.0
_REMEMBERED = 1024  # a minimum takes 200 times as long as a look at the last ones, and questions come at few prices
_GOLDEN = (math.sqrt(5) - 1) / 2


def epsilon_simple(rho: float, delta: float) -> float:
    """Return epsilon for rho-zCDP at *delta*, by the simple formula.

    Args:
        rho: at least 0.
        delta: above 0, below 1.

    Raises:
        InputError: a value outside its range.
    """
    _check(rho=rho, delta=delta)
    return (rho + 2 * math.sqrt(rho * -math.log(delta))) * (1 + _SLACK)


@lru_cache(_REMEMBERED)
def epsilon_tight(rho: float, delta: float) -> float:
    """Return epsilon for rho-zCDP at *delta*, by the tight formula; ranges as in `epsilon_simple`."""
    _check(rho=rho, delta=delta)
    if rho == 0:
        return 0.0
    log_delta = math.log(delta)
    found = _minimise(lambda u: _order(u) * rho + _offset(u, log_delta))
    return max(0.0, min(found * (1 + _SLACK), epsilon_simple(rho, delta)))


def delta_tight(rho: float, epsilon: float) -> float:
    """Return delta for rho-zCDP at *epsilon*: the tight formula solved for delta.

    Args:
        rho: at least 0.
        epsilon: at least 0.

    Returns:
        the smallest delta the formula allows, at most 1.

    Raises:
        InputError: a value outside its range.
    """
    _check(rho=rho)
    if not 0 <= epsilon < math.inf:
        raise InputError(f"epsilon must be at least 0 and finite, not {epsilon}")
    if rho == 0:
        return 0.0

    def log_delta(u: float) -> float:
        above = math.exp(u)
        return above * (_order(u) * rho - epsilon) - above * math.log1p(math.exp(-u)) - math.log1p(above)

    return min(1.0, max(math.exp(_minimise(log_delta)) * (1 + 1e-9), sys.float_info.min))


def rho_simple(epsilon: float, delta: float) -> float:
    """Return the largest rho with `epsilon_simple` at most *epsilon*.

    Args:
        epsilon: above 0, finite.
        delta: above 0, below 1.

    Raises:
        InputError: a value outside its range.
    """
    _check(epsilon=epsilon, delta=delta)
    log = -math.log(delta)
    return (epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2 * (1 - 3 * _SLACK)


@lru_cache(_REMEMBERED)
def rho_tight(epsilon: float, delta: float) -> float:
    """Return the largest rho with `epsilon_tight` at most *epsilon*; ranges as in `rho_simple`.

    For each alpha the bound is a line in rho, so the largest rho is the maximum over alpha of where the line crosses.
    """
    _check(epsilon=epsilon, delta=delta)
    log_delta = math.log(delta)
    found = -_minimise(lambda u: (_offset(u, log_delta) - epsilon) / _order(u))
    return max(found * (1 - 3 * _SLACK), rho_simple(epsilon, delta))


def _order(u: float) -> float:
    """alpha, from u = ln(alpha - 1)."""
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
    low, high = _LEAST + max(best - 1, 0) * width, _LEAST + min(best + 1, steps) * width
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(48):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
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
