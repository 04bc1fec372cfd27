"""Choose privacy parameters so that concrete attacks fail.

`advise` follows LinkedIn's Audience Engagements API (Rogers et al. 2021), section 8.3. An epsilon of tens guarantees
little by itself; the paper sets each parameter so that one concrete attack is unlikely: epsilon_per by averaging
answers of many days, k* by differencing two top-k results, delta and l* by the chance that an item of a single user is
shown. Noise is taken as continuous, as in the paper; the integer noise of the mechanisms differs from it by a relative
epsilon^2. None of this replaces the guarantee, which is in `Advice.guarantee`.

All functions raise `InputError`, with the name of the argument, for a value outside the documented range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from discreet.accounting.bounds import demand
from discreet.accounting.convert import Guarantee, cost_of_units, guarantee_of

CountNoise: TypeAlias = Literal["gaussian", "laplace"]
"""Noise of a released count at the cost of one step: sigma or b = 2 / epsilon_per."""

MAX_ANSWERS = 4_000
MAX_EPSILON = 10.0


def averaging(epsilon_per: float, answers: int, tolerance: float = 0.5, noise: CountNoise = "laplace") -> float:
    """Return the chance that the mean of independent noisy answers is within *tolerance* of the count, exactly.

    The sum of m Laplace variables of scale b is in size a Gamma(m - j) variable of scale b with probability
    C(m - 1 + j, j) / 2^(m - 1 + j), j = 0..m-1, and Gamma(r) is below z as often as Poisson(z) is at least r.

    Args:
        epsilon_per: above 0, at most `MAX_EPSILON`.
        answers: the number of answers, on data that did not change; from 1 to `MAX_ANSWERS`.
        tolerance: in counts, above 0; at 1/2 rounding the mean reveals the count.
        noise: of the counts, "gaussian" or "laplace".
    """
    demand(0 < epsilon_per <= MAX_EPSILON, "epsilon_per", f"above 0 and at most {MAX_EPSILON:g}", epsilon_per)
    demand(1 <= answers <= MAX_ANSWERS, "answers", f"from 1 to {MAX_ANSWERS:,}", answers)
    demand(0 < tolerance < math.inf, "tolerance", "above 0 and finite", tolerance)
    demand(noise in ("gaussian", "laplace"), "noise", '"gaussian" or "laplace"', noise)
    if noise == "gaussian":
        return math.erf(tolerance * epsilon_per * math.sqrt(answers / 8))
    z = tolerance * answers * epsilon_per / 2
    above = [-math.expm1(-z)]  # Pr[Poisson(z) >= r], r = 1..answers
    log_mass = -z
    for r in range(1, answers):
        log_mass += math.log(z / r)
        above.append(max(above[-1] - math.exp(log_mass), 0.0))
    chance = 0.0
    log_weight = (1 - answers) * math.log(2)
    for j, likely in enumerate(reversed(above)):
        chance += math.exp(log_weight) * likely
        log_weight += math.log((answers + j) / (2 * (j + 1)))
    return min(chance, 1.0)


@dataclass(frozen=True, slots=True)
class Differencing:
    """The differencing attack (8.3.2): compare two top-k results on data that differ by one user.

    Args:
        chance: the chance that one released count is within the tolerance of the truth.
        items: the largest k for which two results are expected to share less than one such count: below 1 / chance^2.
        information: the cost of two such results: 2 (2 items + 1) steps for labels, counts and cut-offs.
    """

    chance: float
    items: int
    information: int


def differencing(epsilon_per: float, tolerance: float = 0.5, noise: CountNoise = "laplace") -> Differencing:
    """Return the differencing attack of 8.3.2, and the information budget that makes it fail."""
    chance = averaging(epsilon_per, 1, tolerance, noise)
    items = math.ceil(chance**-2) - 1
    return Differencing(chance, items, 4 * items + 2)


@dataclass(frozen=True, slots=True)
class Workload:
    """The expected workload of a system of private counts. All of it is public.

    Args:
        period_days: days for which the same data can be queried, and the budget's period; from 1 to `MAX_ANSWERS`.
        queries_per_day: at least 1.
        results_per_query: items per answer, each with a count; at least 1.
        tolerance: an estimate this close to a count reveals it; above 0.
        noise: of the counts, "gaussian" or "laplace".
        averaging_chance: accepted chance that averaging succeeds; above 0 and below 1. The paper accepts "about" 11 %.
        leak_chance: accepted chance that a period shows an item of a single user; at least 1e-20 and below 1.
    """

    period_days: int
    queries_per_day: int
    results_per_query: int
    tolerance: float = 0.5
    noise: CountNoise = "gaussian"
    averaging_chance: float = 0.12
    leak_chance: float = 1e-8


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for the value of a parameter.

    Args:
        sentence: the reason in one sentence.
    """

    parameter: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Advice:
    """The parameters chosen for a workload, with reasons.

    Args:
        epsilon_per: epsilon of each step, rounded down to two digits.
        information: k*, steps per period.
        calls: l*, calls per period.
        delta_per: delta of each call, rounded down to one digit.
        guarantee: the guarantee of all answers of a period together.
        reasons: one for each of the other fields, in this order.
    """

    epsilon_per: Fraction
    information: int
    calls: int
    delta_per: Fraction
    guarantee: Guarantee
    reasons: tuple[Reason, ...]


def advise(use: Workload) -> Advice:
    """Choose parameters for a workload.

    Raises:
        InputError: a value outside its range, or a tolerance so wide that all useful noise is within it.
    """
    days = use.period_days
    results = use.results_per_query
    demand(1 <= days <= MAX_ANSWERS, "period_days", f"from 1 to {MAX_ANSWERS:,}", days)
    demand(use.queries_per_day >= 1, "queries_per_day", "at least 1", use.queries_per_day)
    demand(results >= 1, "results_per_query", "at least 1", results)
    demand(0 < use.averaging_chance < 1, "averaging_chance", "above 0 and below 1", use.averaging_chance)
    demand(1e-20 <= use.leak_chance < 1, "leak_chance", "at least 1e-20 and below 1", use.leak_chance)
    # 8.3.1: the largest epsilon_per at which averaging a period's answers succeeds rarely enough, by bisection: the
    # chance grows with epsilon_per.
    low = 0.0
    high = MAX_EPSILON
    for _ in range(40):
        middle = (low + high) / 2
        likely = averaging(middle, days, use.tolerance, use.noise) > use.averaging_chance
        low, high = (low, middle) if likely else (middle, high)
    demand(low > 1e-9, "tolerance", "narrower, or averaging_chance larger", use.tolerance)
    epsilon_per = _round_down(low, 2)
    attack = differencing(float(epsilon_per), use.tolerance, use.noise)
    calls = days * use.queries_per_day
    per_answer = 2 * results + 1  # steps: a label and a count for each result, and the cut-off
    all_steps = calls * per_answer
    demand(results <= 2 * attack.items, "results_per_query", f"at most {2 * attack.items}", results)
    information = min(all_steps, attack.information)
    delta_per = _round_down(use.leak_chance / calls, 1)  # the union bound over all calls
    # Half of delta is lost mass, which is in the cost, and the other half is for the conversion of rho.
    guarantee = guarantee_of(cost_of_units(information, calls, epsilon_per, delta_per), 2 * calls * delta_per)
    chance = averaging(float(epsilon_per), days, use.tolerance, use.noise)
    revealing = "count precise enough to reveal a user by their difference"
    if all_steps <= attack.information:
        why_information = (
            f"All answers of a period cost {all_steps:,} steps at most, within the {attack.information:,} steps up to "
            f"which two results share less than one {revealing}."
        )
    else:
        why_information = (
            f"All answers of a period could cost {all_steps:,} steps, but beyond {attack.information:,} steps (full "
            f"answers: {attack.information // per_answer:,}) two results would share a {revealing}."
        )
    reasons = {
        "epsilon_per": f"Averaging one query's daily answers ({days:,} in a period) comes within {use.tolerance:g} of "
        f"the true count with probability {chance:.1%}, at most the {use.averaging_chance:.1%} allowed.",
        "information": why_information,
        "calls": f"There are {calls:,} calls in a period (days: {days:,}, queries a day: {use.queries_per_day:,}).",
        "delta_per": "The chance that any answer of a period shows an item of a single user is at most 1 in "
        f"{math.floor(1 / (calls * delta_per)):,}.",
        "guarantee": f"All answers of a period together satisfy {guarantee}.",
    }
    return Advice(
        epsilon_per, information, calls, delta_per, guarantee, tuple(Reason(*reason) for reason in reasons.items())
    )


def _round_down(value: float, digits: int) -> Fraction:
    """Return *value* > 0, rounded down to *digits* significant decimal digits."""
    exact = Fraction(value)
    magnitude = math.floor(math.log10(value))
    if exact < Fraction(10) ** magnitude:  # round-off: the float 1e-6 has the logarithm -6
        magnitude -= 1
    unit = Fraction(10) ** (magnitude - digits + 1)
    return math.floor(exact / unit) * unit
