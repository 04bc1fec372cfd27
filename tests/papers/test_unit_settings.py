"""The solver of settings compared with the papers' formulas, inverted and evaluated independently."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.accounting.convert import limit_for
from discreet.errors import InputError
from papers.unit_settings import information_for, settings_for

epsilons = st.floats(math.log(1e-3), math.log(50)).map(math.exp)
deltas = st.floats(-15, -2).map(lambda x: Fraction(repr(round(10.0**x, 18 - int(x)))))
informations = st.integers(1, 10**6)
calls_made = st.integers(0, 10**6)


def published_epsilon(k, epsilon_per, delta):
    """Return LinkedIn's eq. 6.1, or the sum, at forty digits."""
    with mp.workdps(40):
        e, log = mp.mpf(float(epsilon_per)), -mp.log(mp.mpf(delta.numerator) / delta.denominator)
        return min(k * e, k * e**2 / 8 + e * mp.sqrt(k * log / 2))


def tight_epsilon(k, epsilon_per, delta):
    """Return Proposition 12 of Canonne, Kamath & Steinke for rho = k epsilon^2 / 8, by a scan of ln(alpha - 1)."""
    rho, log = k * float(epsilon_per) ** 2 / 8, -math.log(delta)
    centre = math.log(max(log / rho, 1e-9)) / 2
    u = np.linspace(centre - 5, centre + 5, 40_001)
    values = rho * (1 + np.exp(u)) + (log - np.log1p(np.exp(u))) * np.exp(-u) - np.log1p(np.exp(-u))
    return min(float(values.min()), k * float(epsilon_per))


def test_reference_values_of_both_rules():
    """The published rule and the tight one for two promises, and the 34.9 of the paper's system solved backwards."""
    for promise, published, tight in (
        ((1.0, Fraction("1e-8"), 100, 10), 0.0319352, 0.0362969),
        ((8.0, Fraction("1e-8"), 1000, 30), 0.0746988, 0.0794406),
    ):
        assert float(settings_for(*promise, "published").epsilon_per) == pytest.approx(published, abs=6e-8)
        assert float(settings_for(*promise).epsilon_per) == pytest.approx(tight, abs=6e-8)
        assert information_for(*promise[:2], Fraction(tight), promise[3]) in (promise[2], promise[2] - 1)
    assert float(settings_for(34.9, Fraction("8e-9"), 3000, 30).epsilon_per) == pytest.approx(0.15724, abs=5e-6)


def test_the_published_split_leaves_a_sixth_of_delta_unused():
    """A call gets delta* / (6 l*), delta' is delta* / 2, so 2 l* delta + delta' is five sixths of delta*."""
    found = settings_for(1.0, Fraction("1.2e-8"), 100, 10, "published")
    assert found.delta_per == Fraction("2e-10")
    assert found.delta == Fraction("6e-9")
    assert 2 * found.calls * found.delta_per + found.delta == Fraction("1e-8")


def test_the_tight_split_uses_all_of_delta():
    """A call gets delta* / (2 l*), delta' is delta* / 2; without calls all of delta* is delta'."""
    found = settings_for(1.0, Fraction("1.2e-8"), 100, 10)
    assert found.delta_per == Fraction("6e-10")
    assert found.calls * found.delta_per + found.delta == Fraction("1.2e-8")
    assert settings_for(1.0, Fraction("1.2e-8"), 100, 1).delta_per == Fraction("6e-9")
    without = settings_for(1.0, Fraction("1.2e-8"), 100, 0)
    assert (without.delta_per, without.delta) == (0, Fraction("1.2e-8"))
    assert without.epsilon_per > found.epsilon_per


@given(epsilons, deltas, informations, calls_made)
@settings(max_examples=150)
def test_the_published_rule_meets_its_guarantee_and_wastes_none(epsilon, delta, information, calls):
    """At forty digits, eq. 6.1 is at most epsilon* with the epsilon_per found, and above with a slightly larger one."""
    found = settings_for(epsilon, delta, information, calls, "published")
    assert published_epsilon(information, found.epsilon_per, found.delta) <= mp.mpf(epsilon) * (1 + mp.mpf("1e-15"))
    assert published_epsilon(information, found.epsilon_per * Fraction(1 + 1e-6), found.delta) > epsilon
    assert 2 * calls * found.delta_per + found.delta <= delta


@given(epsilons, deltas, informations, calls_made)
@settings(max_examples=60)
def test_the_tight_rule_meets_its_guarantee_and_wastes_none(epsilon, delta, information, calls):
    """Proposition 12, scanned independently, brackets epsilon* between the epsilon_per found and a larger one."""
    found = settings_for(epsilon, delta, information, calls)
    assert tight_epsilon(information, found.epsilon_per, float(found.delta)) <= epsilon * (1 + 1e-6)
    assert tight_epsilon(information, found.epsilon_per * Fraction(1 + 3e-6), float(found.delta)) > epsilon
    assert calls * found.delta_per + found.delta <= delta
    assert found.epsilon_per >= settings_for(epsilon, delta, information, calls, "published").epsilon_per


@given(epsilons, deltas, st.integers(20_000, 10**6), st.integers(1, 10**6))
@settings(max_examples=40)
def test_the_settings_fit_a_filter_for_the_same_promise(epsilon, delta, information, calls):
    """With more than a handful of steps the cost in zCDP stays within the limit that the promise converts to."""
    found = settings_for(epsilon, delta, information, calls)
    assert found.cost().within(limit_for(epsilon, delta))


@given(epsilons, deltas, informations, calls_made, st.sampled_from(["published", "tight"]))
@settings(max_examples=100)
def test_information_is_the_largest_within_the_guarantee(epsilon, delta, information, calls, rule):
    """Solving for k* gives at least k*, and one step more exceeds the guarantee."""
    found = settings_for(epsilon, delta, information, calls, rule)
    most = information_for(epsilon, delta, found.epsilon_per, calls, rule)
    assert information <= most <= information * (1 + 1e-6) + 1
    if rule == "published":
        assert published_epsilon(most, found.epsilon_per, found.delta) <= mp.mpf(epsilon) * (1 + mp.mpf("1e-15"))
        # rho is rounded down to 28 bits, so a step more may still fit a large budget
        assert published_epsilon(most + 1 + most // 10**7, found.epsilon_per, found.delta) > epsilon


@given(epsilons, deltas, informations, calls_made, st.sampled_from(["published", "tight"]), st.floats(1.001, 2.0))
@settings(max_examples=100)
def test_a_wider_promise_or_fewer_steps_allow_a_larger_epsilon_per(epsilon, delta, information, calls, rule, factor):
    """Monotone in epsilon*, delta* and k*; delta_per falls with l*."""
    here = settings_for(epsilon, delta, information, calls, rule)
    assert settings_for(epsilon * factor, delta, information, calls, rule).epsilon_per >= here.epsilon_per
    assert settings_for(epsilon, delta * Fraction(factor), information, calls, rule).epsilon_per >= here.epsilon_per
    assert (
        settings_for(epsilon, delta, information + 1 + information // 100, calls, rule).epsilon_per <= here.epsilon_per
    )
    if calls:
        assert settings_for(epsilon, delta, information, calls + 1, rule).delta_per <= here.delta_per


def test_a_handful_of_steps_is_summed():
    """For few steps epsilon* / k* is larger than any conversion allows, and is used."""
    for rule in ("published", "tight"):
        assert settings_for(1.0, Fraction("1e-8"), 1, 1, rule).epsilon_per == 1
        assert settings_for(1.0, Fraction("1e-8"), 4, 1, rule).epsilon_per == Fraction(1, 4)
        assert settings_for(1.0, Fraction("1e-8"), 10, 1, rule).epsilon_per > Fraction(1, 10)
        assert information_for(1.0, Fraction("1e-8"), Fraction(1, 2), 1, rule) == 2
        assert information_for(1.0, Fraction("1e-8"), Fraction(2), 1, rule) == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: settings_for(0.0, Fraction(1, 9), 1, 1), "epsilon must be above 0 and finite, not 0.0"),
        (lambda: settings_for(math.nan, Fraction(1, 9), 1, 1), "epsilon must be above 0 and finite, not nan"),
        (lambda: settings_for(math.inf, Fraction(1, 9), 1, 1), "epsilon must be above 0 and finite, not inf"),
        (lambda: settings_for(1.0, Fraction(0), 1, 1), "delta must be above 0 and below 1, not 0"),
        (lambda: settings_for(1.0, Fraction(1), 1, 1), "delta must be above 0 and below 1, not 1"),
        (lambda: settings_for(1.0, Fraction(1, 9), 0, 1), "information must be at least 1, not 0"),
        (lambda: settings_for(1.0, Fraction(1, 9), 1, -1), "calls must be at least 0, not -1"),
        (lambda: settings_for(1.0, Fraction(1, 9), 1, 1, "loose"), 'rule must be "published" or "tight", not loose'),
        (lambda: settings_for(1.0, Fraction(1, 10**27), 1, 1), f"delta must be at least 2e-27, not 1/{10**27}"),
        (lambda: settings_for(1.0, Fraction(1, 10**24), 1, 1000), f"delta must be at least 2e-24, not 1/{10**24}"),
        (lambda: information_for(1.0, Fraction(1, 9), Fraction(0), 1), "epsilon_per must be above 0, not 0"),
    ],
)
def test_a_value_outside_its_range_raises_with_the_range(call, words):
    """InputError with the name, the range and the value."""
    with pytest.raises(InputError, match=re.escape(words)):
        call()
