"""What LinkedIn 2021 prints in sections 8.3 and 8.4 follows from its formulas, and where they are not exact."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from scipy.stats import norm

from discreet.accounting.advice import averaging
from papers import linkedin_published as published


def test_averaging_reproduces_the_published_eleven_percent():
    """8.3.1: epsilon_per = 0.15, 30 days, tolerance 1/2, the normal approximation as printed."""
    found = published.averaging_published(0.15, 30)
    assert found == pytest.approx(2 * norm.cdf(0.15 * math.sqrt(30) / (4 * math.sqrt(2))) - 1, rel=1e-12)
    assert round(100 * found, 2) == 11.55


def test_the_normal_distribution_understates_the_averaging_attack():
    """Means of Laplace noise are more often near 0 than the paper's normal distribution, less so for many answers."""
    excesses = [averaging(0.15, m) / published.averaging_published(0.15, m) - 1 for m in (1, 5, 30, 365, 4000)]
    assert all(excess > 0 for excess in excesses)
    assert excesses == sorted(excesses, reverse=True)
    assert excesses[2] == pytest.approx(0.0125, abs=5e-4)


def test_unique_counts_reproduce_one_in_four_hundred_million():
    """8.3.3: 30 calls at delta = 1e-10 and epsilon_per = 0.15; the exact union over 1,000 items is just below."""
    found = published.unique_count(0.15, 1e-10, 30)
    assert math.floor(1 / found) == 387_278_080
    with mp.workdps(40):
        one = 1 - 1 / (1 + mp.exp(mp.mpf("-0.15")) * mp.mpf("1e-10") / 1000)
        assert 30 * 1000 * one <= found <= 30 * 1000 * one * (1 + mp.mpf("1e-12"))


def test_the_published_worst_case_of_unique_counts_is_not_the_worst():
    """With fewer items than places the count at the cut is 0: the chance is delta / (1 + delta), above delta e^-eps."""
    epsilon, delta, cutoff = 0.5, 0.01, 8
    # a race: items of count 1 against a rival of count 0 + 1 and weight cutoff / delta
    weights = np.full(cutoff, math.exp(epsilon))
    rival = math.exp(epsilon) * cutoff / delta
    shown = weights.sum() / (weights.sum() + rival)
    assert shown == pytest.approx(delta / (1 + delta))
    assert published.unique_count(epsilon, delta, 1) < shown <= delta


def test_the_overall_guarantee_is_the_published_pair():
    """8.4: (34.9, 7e-9) per month."""
    found = published.linkedin_deployment()
    assert round(found.epsilon, 1) == 34.9
    assert found.delta_published == pytest.approx(7e-9, rel=1e-12)


def test_table_2_follows_from_reports_per_day():
    """Daily and monthly epsilons as printed; the paper rounds Microsoft's day before multiplying."""
    printed = [("25.63", "769"), ("8", "240"), ("4", "120"), ("2.74", "82.2"), ("2.64", "79.2"), None]
    for row, numbers in zip(published.DEPLOYMENTS, printed, strict=True):
        if numbers is None:
            assert row.epsilon_of(1) is None
            continue
        daily, monthly = (Fraction(number) for number in numbers)
        assert abs(row.epsilon_of(1) - daily) <= Fraction(1, 200)
        assert abs(row.epsilon_of(30) - monthly) <= Fraction(1, 2) * (monthly > 100) + Fraction(13, 100)
    assert [row.local for row in published.DEPLOYMENTS] == [True] * 4 + [False] * 2
