"""Values outside their ranges, of all functions of the package."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import pytest

from discreet.accounting import advice, bounds
from discreet.accounting.adaptive import adaptive_epsilon
from discreet.accounting.advice import Workload, advise
from discreet.errors import InputError

HALF = Fraction(1, 2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: adaptive_epsilon(0, 0.1, 0.1), "k must be from 1 to 10,000, not 0"),
        (lambda: adaptive_epsilon(1, 0.0, 0.1), "epsilon must be above 0 and at most 50, not 0.0"),
        (lambda: adaptive_epsilon(10_000, 1.5, 0.1), "k * epsilon must be at most 10,000, not 15000.0"),
        (lambda: adaptive_epsilon(1, 0.1, 1.0), "delta must be at least 0 and below 1, not 1.0"),
        (lambda: adaptive_epsilon(1, 0.1, 0.1, 3), "resolution must be from 4 to 4,096, not 3"),
        (lambda: adaptive_epsilon(1, 0.1, math.nan), "delta must be at least 0 and below 1, not nan"),
        (lambda: adaptive_epsilon(1, 0.1, -0.1), "delta must be at least 0 and below 1, not -0.1"),
        (lambda: adaptive_epsilon(10_001, 0.1, 0.1), "k must be from 1 to 10,000, not 10001"),
        (lambda: adaptive_epsilon(1, 50.1, 0.1), "epsilon must be above 0 and at most 50, not 50.1"),
        (lambda: adaptive_epsilon(1, 0.1, 0.1, 4097), "resolution must be from 4 to 4,096, not 4097"),
        (lambda: adaptive_epsilon(1, math.nan, 0.1), "epsilon must be above 0"),
        (lambda: advice.averaging(0.0, 1), "epsilon_per must be above 0 and at most 10, not 0.0"),
        (lambda: advice.averaging(10.1, 1), "epsilon_per must be above 0 and at most 10, not 10.1"),
        (lambda: advice.averaging(math.nan, 1), "epsilon_per must be above 0"),
        (lambda: advice.averaging(0.1, 0), "answers must be from 1 to 4,000, not 0"),
        (lambda: advice.averaging(0.1, 4_001), "answers must be from 1 to 4,000, not 4001"),
        (lambda: advice.averaging(0.1, 1, 0.0), "tolerance must be above 0 and finite, not 0.0"),
        (lambda: advice.averaging(0.1, 1, math.inf), "tolerance must be above 0 and finite, not inf"),
        (lambda: advice.averaging(0.1, 1, 0.5, "uniform"), 'noise must be "gaussian" or "laplace", not uniform'),
        (lambda: advise(Workload(0, 1, 1)), "period_days must be from 1 to 4,000, not 0"),
        (lambda: advise(Workload(1, 0, 1)), "queries_per_day must be at least 1, not 0"),
        (lambda: advise(Workload(1, 1, 0)), "results_per_query must be at least 1, not 0"),
        (lambda: advise(Workload(4_001, 1, 1)), "period_days must be from 1 to 4,000, not 4001"),
        (
            lambda: advise(Workload(1, 1, 1, averaging_chance=0.0)),
            "averaging_chance must be above 0 and below 1, not 0.0",
        ),
        (
            lambda: advise(Workload(1, 1, 1, averaging_chance=1.0)),
            "averaging_chance must be above 0 and below 1, not 1.0",
        ),
        (lambda: advise(Workload(1, 1, 1, leak_chance=0.0)), "leak_chance must be at least 1e-20 and below 1, not 0.0"),
        (lambda: advise(Workload(1, 1, 1, leak_chance=1.0)), "leak_chance must be at least 1e-20 and below 1, not 1.0"),
        (
            lambda: advise(Workload(30, 1, 1, tolerance=1e12)),
            "tolerance must be narrower, or averaging_chance larger, not 1000000000000.0",
        ),
        (lambda: bounds.basic([]), "epsilons must be one or more numbers, not empty"),
        (lambda: bounds.basic([0.1, 0.0]), "epsilon must be above 0 and finite, not 0.0"),
        (lambda: bounds.basic([math.inf]), "epsilon must be above 0 and finite, not inf"),
        (lambda: bounds.advanced([math.nan], 0.1), "epsilon must be above 0 and finite, not nan"),
        (lambda: bounds.advanced([0.1], 1.0), "delta must be at least 0 and below 1, not 1.0"),
        (lambda: bounds.bounded_range([0.1], -1e-9), "delta must be at least 0 and below 1"),
        (lambda: bounds.zcdp_tight([0.1], 0.0), "delta must be above 0 and below 1"),
        (lambda: bounds.linkedin(0, 0.1, 0.1), "k must be at least 1, not 0"),
        (lambda: bounds.linkedin_system(1, -1, 0.1, Fraction(0), HALF), "calls must be at least 0, not -1"),
        (
            lambda: bounds.linkedin_system(1, 1, 0.1, Fraction(1), HALF),
            "delta_per must be at least 0 and below 1, not 1",
        ),
        (lambda: bounds.linkedin_system(1, 1, 0.1, HALF, Fraction(0)), "delta must be above 0 and below 1, not 0"),
        (lambda: bounds.linkedin_system(1, 1, 0.1, HALF, Fraction(1)), "delta must be above 0 and below 1, not 1"),
        (lambda: bounds.optimal_dp(10_001, 0.1, 0.1), "k must be from 1 to 10,000, not 10001"),
        (lambda: bounds.optimal_dp(1, 51.0, 0.1), "epsilon must be above 0 and at most 50, not 51.0"),
        (lambda: bounds.optimal_dp(1, 0.0, 0.1), "epsilon must be above 0 and at most 50, not 0.0"),
        (lambda: bounds.optimal_dp_delta(1, 0.1, -0.1), "total must be at least 0 and finite, not -0.1"),
        (lambda: bounds.optimal_dp_delta(1, 0.1, math.inf), "total must be at least 0 and finite, not inf"),
        (lambda: bounds.nonadaptive_br(0, 0.1, 0.1), "k must be from 1 to 10,000"),
        (lambda: bounds.nonadaptive_br_delta(1, 0.1, math.inf), "total must be at least 0 and finite, not inf"),
    ],
)
def test_a_value_outside_its_range_raises_with_the_range(call, words):
    """InputError with the name, the range and the value."""
    with pytest.raises(InputError, match=re.escape(words)):
        call()
