"""Published composition theorems: epsilon of many steps from the epsilons of each, for reports and comparisons.

All functions are pure, take and return floats, and round to the safe side: epsilon and delta up, by far more than their
rounding errors. All raise `InputError`, with the name of the argument, for a value outside the documented range.

A "step" is one differentially private answer. Two kinds occur:

- epsilon-DP: the privacy loss stays in [-epsilon, epsilon];
- epsilon-bounded-range (BR; Durfee & Rogers 2019, section 4.2): the loss stays in an interval of *length* epsilon, as
  it does for the exponential mechanism on counts and for Laplace noise of scale 2 tau / epsilon on one count.

epsilon-BR implies epsilon-DP, and epsilon-DP implies 2 epsilon-BR, so that bounds for one kind apply to the other.
Every bound but `nonadaptive_br` allows steps that are chosen after seeing earlier answers, as long as their epsilons
were fixed in advance. This library accounts its guarantees in zCDP (`privacy_filter`); the
sharpest statement for equal BR steps is in `adaptive`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.convert import epsilon_tight
from discreet.errors import InputError
from discreet.values import float_above

MAX_STEPS = 10_000
"""Most steps of the exact optima: up to here their rounding errors are known to be below `_OPTIMUM_SLACK`."""

MAX_EPSILON = 50.0
"""Largest epsilon of a step for the exact optima."""

_SLACK = 1e-12
_OPTIMUM_SLACK = 1e-9  # errors: ln k! 3e-11, k epsilon 6e-11; a mass has a few terms of each
_LEAST_DELTA = 1e-280  # smaller masses underflow: then the result is the sum of the epsilons


def demand(fulfilled: bool, name: str, allowed: str, value: object) -> None:
    """Raise `InputError` unless *fulfilled*; comparisons with NaN are False, so NaN is refused.

    Raises:
        InputError: "*name* must be *allowed*, not *value*".
    """
    if not fulfilled:
        raise InputError(f"{name} must be {allowed}, not {value}")


def basic(epsilons: Iterable[float]) -> float:
    """Return epsilon by basic composition (Dwork et al. 2006): the epsilons add, at delta = 0.

    Args:
        epsilons: shape (t,), one for each epsilon-DP step, above 0 and finite.
    """
    return math.fsum(_checked(epsilons)) * (1 + _SLACK)


def advanced(epsilons: Iterable[float], delta: float) -> float:
    """Return epsilon by advanced composition of epsilon-DP steps (Durfee & Rogers 2019, Theorem 3), at most `basic`.

    Args:
        epsilons: shape (t,), each above 0 and finite.
        delta: failure probability of the theorem (deltas of the steps come on top); at least 0, below 1.
    """
    steps = _checked(epsilons)
    drift = math.fsum(e * math.tanh(e / 2) for e in steps)
    return min(math.fsum(steps), drift + math.sqrt(2 * _squares(steps) * _log_inverse(delta))) * (1 + _SLACK)


def bounded_range(epsilons: Iterable[float], delta: float) -> float:
    """Return epsilon by composition of epsilon-BR steps (Durfee & Rogers 2019, Lemma 4.4), at most `advanced`.

    Valid but loose: its mean term, the sum of epsilon^2 / 2, is four times larger than necessary (`zcdp_tight`).

    Args:
        epsilons: shape (t,), one for each BR step, above 0 and finite.
        delta: at least 0, below 1.
    """
    steps = _checked(epsilons)
    ranged = _squares(steps) / 2 + math.sqrt(_squares(steps) * _log_inverse(delta) / 2)
    return min(advanced(steps, delta), ranged * (1 + _SLACK))


def zcdp_tight(epsilons: Iterable[float], delta: float) -> float:
    """Return epsilon of BR steps through zCDP (epsilon^2 / 8 each) and the tight conversion, at most their sum.

    Canonne, Kamath & Steinke 2020. The simple conversion of equal steps is `linkedin`.

    Args:
        epsilons: shape (t,), each above 0 and finite.
        delta: above 0, below 1.
    """
    steps = _checked(epsilons)
    return min(basic(steps), epsilon_tight(_squares(steps) / 8, delta))


def linkedin(k: int, epsilon: float, delta: float) -> float:
    """Return epsilon by LinkedIn's Lemma 2.1 (Rogers et al. 2021): k epsilon-BR steps.

    Args:
        k: the number of steps, at least 1.
        epsilon: epsilon of each step, above 0 and finite.
        delta: at least 0, below 1.
    """
    demand(k >= 1, "k", "at least 1", k)
    _checked([epsilon])
    concentrated = k * epsilon**2 / 8 + epsilon * math.sqrt(k * _log_inverse(delta) / 2)
    return min(k * epsilon, concentrated) * (1 + _SLACK)


@dataclass(frozen=True, slots=True)
class SystemBound:
    """The guarantee of a whole budget by Theorem 2.

    Args:
        epsilon: by Lemma 2.1.
        delta_published: 2 l* delta + delta', as in the theorem.
        delta: l* delta + delta', which is valid, too: lost masses add.
    """

    epsilon: float
    delta_published: float
    delta: float


def linkedin_system(
    information: int, calls: int, epsilon_per: float, delta_per: Fraction, delta: Fraction
) -> SystemBound:
    """Return LinkedIn's Theorem 2 (Rogers et al. 2021, section 6.2): an information budget k* and a call budget l*.

    The published delta includes every call's delta twice. A call is dominated by bounded-range steps except for a mass
    of delta in each of two neighbouring outcomes; such masses add without a factor, so l* delta + delta' suffices.

    Args:
        information: k*, in bounded-range steps, at least 1.
        calls: l*, calls over unknown domains, at least 0.
        epsilon_per: epsilon of each step, above 0 and finite.
        delta_per: mass that one call may lose, at least 0, below 1.
        delta: delta', the failure probability of the composition; above 0, below 1.
    """
    demand(calls >= 0, "calls", "at least 0", calls)
    demand(0 <= delta_per < 1, "delta_per", "at least 0 and below 1", delta_per)
    demand(0 < delta < 1, "delta", "above 0 and below 1", delta)
    epsilon = linkedin(information, epsilon_per, float(delta))
    lost = calls * Fraction(delta_per)
    return SystemBound(epsilon, float_above(2 * lost + delta), float_above(lost + delta))


def optimal_dp_delta(k: int, epsilon: float, total: float) -> float:
    """Return the least delta for which any k adaptive epsilon-DP steps are (*total*, delta)-DP.

    Kairouz, Oh & Viswanath 2015, Theorem 3.3 (Durfee & Rogers 2019, Lemma 4.5, has its values at k - 2i epsilons): the
    worst steps are k randomised responses, whose loss is (k - 2l) epsilon if l of them lie.

    Args:
        k: from 1 to `MAX_STEPS`.
        epsilon: epsilon of each step, above 0, at most `MAX_EPSILON`.
        total: epsilon of all steps together, at least 0.
    """
    _check_optimum(k, epsilon)
    demand(0 <= total < math.inf, "total", "at least 0 and finite", total)
    lies = np.arange(k // 2 + 1)  # more lies than truths: no loss above 0
    loss = (k - 2 * lies) * epsilon
    mass = np.exp(_log_binomials(k)[: k // 2 + 1] - lies * epsilon - k * math.log1p(math.exp(-epsilon)))
    excess = np.maximum(loss * (1 + 1e-15) - total, 0.0)
    return min(1.0, float(np.sum(mass * -np.expm1(-excess))) * (1 + _OPTIMUM_SLACK))


def optimal_dp(k: int, epsilon: float, delta: float) -> float:
    """Return the least epsilon for which any k adaptive epsilon-DP steps are (epsilon, *delta*)-DP.

    Args:
        k: from 1 to `MAX_STEPS`.
        epsilon: epsilon of each step, above 0, at most `MAX_EPSILON`.
        delta: at least 0, below 1; values below 1e-280 are taken as 0.
    """
    _check_optimum(k, epsilon)
    return _min_epsilon(lambda total: optimal_dp_delta(k, epsilon, total), delta, k * epsilon)


def nonadaptive_br_delta(k: int, epsilon: float, total: float) -> float:
    """Return the least delta for which any k epsilon-BR steps fixed *in advance* are (*total*, delta)-DP.

    Dong, Durfee & Rogers 2020, Theorem 3: the worst steps are k equal ones, each with losses t and t - epsilon only,
    and the worst t is one of (total + (l + 1) epsilon) / (k + 1), l = 0..k-1. Steps chosen after seeing earlier answers
    can be worse: use `adaptive` for them.

    Args:
        k: from 1 to `MAX_STEPS`.
        epsilon: epsilon of each step, above 0, at most `MAX_EPSILON`.
        total: epsilon of all steps together, at least 0.
    """
    _check_optimum(k, epsilon)
    demand(0 <= total < math.inf, "total", "at least 0 and finite", total)
    lows = np.arange(float(k))  # l: the most steps that may have the low loss
    loss = (total + (lows + 1) * epsilon) / (k + 1)
    lows = lows[loss < epsilon]
    loss = loss[loss < epsilon]
    if len(lows) == 0:
        return 0.0
    high = np.expm1(loss - epsilon) / math.expm1(-epsilon)  # probability of the loss t
    low = np.expm1(loss) / math.expm1(epsilon)
    peak = np.minimum(lows, np.floor((k + 1) * low))
    mass = np.exp(_log_binomials(k)[peak.astype(np.int64)] + (k - peak) * np.log(high) + peak * np.log(low))
    excess = epsilon - loss + (lows - peak) * epsilon
    delta = mass * -np.expm1(-excess)
    delta += _side(mass, excess, epsilon, lambda i: (peak - i) / (k - peak + i + 1) * (high / low), peak)
    delta += _side(mass, excess, -epsilon, lambda i: (k - peak - i) / (peak + i + 1) * (low / high), lows - peak)
    return min(1.0, float(delta.max()) * (1 + _OPTIMUM_SLACK))


def nonadaptive_br(k: int, epsilon: float, delta: float) -> float:
    """Return the least epsilon for which any k epsilon-BR steps fixed in advance are (epsilon, *delta*)-DP.

    See `nonadaptive_br_delta`; ranges as in `optimal_dp`.
    """
    _check_optimum(k, epsilon)
    return _min_epsilon(lambda total: nonadaptive_br_delta(k, epsilon, total), delta, k * epsilon)


def _side(
    mass: NDArray[np.float64],
    excess: NDArray[np.float64],
    step: float,
    ratio: Callable[[int], NDArray[np.float64]],
    most: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the sum of mass * (1 - e^-excess) on one side of the peak, where masses never rise.

    Args:
        mass: mass at the peak.
        excess: the loss less the total, at the peak.
        step: the change of the excess per place.
        ratio: mass at place i + 1 over mass at place i.
    """
    total = np.zeros_like(mass)
    for i in range(int(most.max())):
        mass = np.where(i < most, mass * ratio(i), 0.0)
        excess = excess + step
        total += mass * -np.expm1(-np.maximum(excess, 0.0))
        if mass.max() <= 1e-18 * total.max():  # as is each of the rest, at most MAX_STEPS
            break
    return total


def _min_epsilon(delta_of: Callable[[float], float], delta: float, most: float) -> float:
    """Return the least epsilon in [0, *most*], rounded up, with delta_of(epsilon) <= *delta*; delta_of never rises."""
    _log_inverse(delta)
    if delta < _LEAST_DELTA:
        return most * (1 + _SLACK)
    if delta_of(0.0) <= delta:
        return 0.0
    low = 0.0
    high = most
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of(middle) <= delta else (middle, high)
    return high * (1 + _SLACK)


@lru_cache(maxsize=4)
def _log_binomials(k: int) -> NDArray[np.float64]:
    """Return the logarithms of the binomial coefficients (k, i), i = 0..k."""
    logs = np.array([math.lgamma(i + 1) for i in range(k + 1)])
    return logs[k] - logs - logs[::-1]  # type: ignore[no-any-return]


def _squares(epsilons: list[float]) -> float:
    return math.fsum(e * e for e in epsilons)


def _log_inverse(delta: float) -> float:
    """Return ln(1 / delta), infinite for 0."""
    demand(0 <= delta < 1, "delta", "at least 0 and below 1", delta)
    return -math.log(delta) if delta else math.inf


def _checked(epsilons: Iterable[float]) -> list[float]:
    steps = [float(e) for e in epsilons]
    for e in steps:
        demand(0 < e < math.inf, "epsilon", "above 0 and finite", e)
    demand(len(steps) > 0, "epsilons", "one or more numbers", "empty")
    return steps


def _check_optimum(k: int, epsilon: float) -> None:
    demand(1 <= k <= MAX_STEPS, "k", f"from 1 to {MAX_STEPS:,}", k)
    demand(0 < epsilon <= MAX_EPSILON, "epsilon", f"above 0 and at most {MAX_EPSILON:g}", epsilon)
