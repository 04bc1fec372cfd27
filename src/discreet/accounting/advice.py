"""Choose privacy parameters: so that concrete attacks fail, or as large as a guarantee allows.

`advise` follows LinkedIn's Audience Engagements API (Rogers et al. 2021), section 8.3. An epsilon of tens guarantees
little by itself; the paper sets each parameter so that one concrete attack is unlikely: epsilon_per by averaging
answers of many days, k* by differencing two top-k results, delta and l* by the chance that an item of a single user is
shown. Noise is taken as continuous, as in the paper; the integer noise of the mechanisms differs from it by a relative
epsilon^2. None of this replaces the guarantee, which is in `Advice.guarantee`.

`settings_for` and `information_for` solve section 6 and Theorem 2 of the same paper: (epsilon_per, delta) from
(epsilon*, delta*, k*, l*), and k* from the rest. They round down, to 28 bits. Two rules:

- "published": delta = delta* / (6 l*), delta' = delta* / 2, the simple conversion. It leaves a sixth of delta* unused,
  since Theorem 2 requires 2 l* delta + delta' only.
- "tight": lost masses add without a factor (`bounds.linkedin_system`), so delta = delta* / (2 l*), delta' = delta* / 2,
  and the tight conversion. Its epsilon_per is 10 to 20 % larger for the same guarantee.

All functions raise `InputError`, with the name of the argument, for a value outside the documented range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, TypeAlias

from discreet.accounting.bounds import demand
from discreet.accounting.convert import (
    cost_of_units,
    epsilon_per_unit,
    floor_bits,
    guarantee_of,
    rho_simple,
    rho_tight,
)
from discreet.values import DELTA_QUANTUM, float_below

if TYPE_CHECKING:
    from discreet.accounting.convert import Guarantee
    from discreet.values import Cost

CountNoise: TypeAlias = Literal["gaussian", "laplace"]
"""Noise of a released count at the cost of one step: sigma or b = 2 / epsilon_per."""

Rule: TypeAlias = Literal["published", "tight"]

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
    above, log_mass = [-math.expm1(-z)], -z  # Pr[Poisson(z) >= r], r = 1..answers
    for r in range(1, answers):
        log_mass += math.log(z / r)
        above.append(max(above[-1] - math.exp(log_mass), 0.0))
    found, log_weight = 0.0, (1 - answers) * math.log(2)
    for j, likely in enumerate(reversed(above)):
        found += math.exp(log_weight) * likely
        log_weight += math.log((answers + j) / (2 * (j + 1)))
    return min(found, 1.0)


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
    days, results = use.period_days, use.results_per_query
    demand(1 <= days <= MAX_ANSWERS, "period_days", f"from 1 to {MAX_ANSWERS:,}", days)
    demand(use.queries_per_day >= 1, "queries_per_day", "at least 1", use.queries_per_day)
    demand(results >= 1, "results_per_query", "at least 1", results)
    demand(0 < use.averaging_chance < 1, "averaging_chance", "above 0 and below 1", use.averaging_chance)
    demand(1e-20 <= use.leak_chance < 1, "leak_chance", "at least 1e-20 and below 1", use.leak_chance)
    low, high = 0.0, MAX_EPSILON  # the largest epsilon_per at which averaging over the period succeeds rarely enough
    for _ in range(40):
        middle = (low + high) / 2
        likely = averaging(middle, days, use.tolerance, use.noise) > use.averaging_chance
        low, high = (low, middle) if likely else (middle, high)
    demand(low > 1e-9, "tolerance", "narrower, or averaging_chance larger", use.tolerance)
    epsilon_per = _round_down(low, 2)
    attack = differencing(float(epsilon_per), use.tolerance, use.noise)
    calls = days * use.queries_per_day
    per_answer = 2 * results + 1
    wanted = calls * per_answer
    demand(results <= 2 * attack.items, "results_per_query", f"at most {2 * attack.items}", results)
    information = min(wanted, attack.information)
    delta_per = _round_down(use.leak_chance / calls, 1)
    guarantee = guarantee_of(cost_of_units(information, calls, epsilon_per, delta_per), 2 * calls * delta_per)
    chance = averaging(float(epsilon_per), days, use.tolerance, use.noise)
    revealing = "count precise enough to reveal a user by their difference"
    if wanted <= attack.information:
        why_information = (
            f"All answers of a period cost {wanted:,} steps at most, within the {attack.information:,} steps up to "
            f"which two results share less than one {revealing}."
        )
    else:
        why_information = (
            f"All answers of a period could cost {wanted:,} steps, but beyond {attack.information:,} steps (full "
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
        epsilon_per, information, calls, delta_per, guarantee, tuple(Reason(*each) for each in reasons.items())
    )


def _round_down(value: float, digits: int) -> Fraction:
    """Return *value* > 0, rounded down to *digits* significant decimal digits."""
    exact, magnitude = Fraction(value), math.floor(math.log10(value))
    if exact < Fraction(10) ** magnitude:  # round-off: the float 1e-6 has the logarithm -6
        magnitude -= 1
    unit = Fraction(10) ** (magnitude - digits + 1)
    return math.floor(exact / unit) * unit


@dataclass(frozen=True, slots=True)
class Settings:
    """The parameters of a budget service.

    Args:
        information: k*, in bounded-range steps.
        calls: l*, over unknown domains.
        epsilon_per: epsilon of each step.
        delta_per: mass that each call may lose; 0 without calls.
        delta: delta', the failure probability of the conversion.
    """

    information: int
    calls: int
    epsilon_per: Fraction
    delta_per: Fraction
    delta: Fraction

    def cost(self) -> Cost:
        """Return the zCDP cost of the whole budget."""
        return cost_of_units(self.information, self.calls, self.epsilon_per, self.delta_per)


def settings_for(epsilon: float, delta: Fraction, information: int, calls: int, rule: Rule = "tight") -> Settings:
    """Return the largest epsilon_per and delta_per that keep a budget's guarantee.

    For few steps (up to about eight, at usual deltas) the sum of their epsilons is the better bound; epsilon_per is
    then epsilon / k*, and the cost in zCDP exceeds the rho that the guarantee converts to.

    Args:
        epsilon: epsilon*, the guarantee of the whole budget, above 0 and finite.
        delta: delta*, above 0, below 1.
        information: k*, at least 1.
        calls: l*, at least 0. Without calls nothing is lost, and the tight rule gives all of delta to the conversion.

    Raises:
        InputError: a value outside its range, or so many calls that delta_per would be below 1e-27.
    """
    demand(information >= 1, "information", "at least 1", information)
    rho, delta_per, conversion = _split(epsilon, delta, calls, rule)
    summed = floor_bits(Fraction(epsilon) / information)
    return Settings(information, calls, max(epsilon_per_unit(rho, information), summed), delta_per, conversion)


def information_for(epsilon: float, delta: Fraction, epsilon_per: Fraction, calls: int, rule: Rule = "tight") -> int:
    """Return the largest information budget k*, possibly 0, that keeps a guarantee at *epsilon_per*.

    Args:
        epsilon_per: epsilon of each step, above 0.
    """
    demand(epsilon_per > 0, "epsilon_per", "above 0", epsilon_per)
    rho, _, _ = _split(epsilon, delta, calls, rule)
    return max(math.floor(8 * rho / epsilon_per**2), math.floor(Fraction(epsilon) / epsilon_per))


def _split(epsilon: float, delta: Fraction, calls: int, rule: Rule) -> tuple[Fraction, Fraction, Fraction]:
    """Return (rho, delta_per, delta')."""
    demand(0 < delta < 1, "delta", "above 0 and below 1", delta)
    demand(calls >= 0, "calls", "at least 0", calls)
    demand(rule in ("published", "tight"), "rule", '"published" or "tight"', rule)
    conversion = delta if calls == 0 and rule == "tight" else delta / 2
    share = delta / (max(calls, 1) * (6 if rule == "published" else 2))
    delta_per = math.floor(share / DELTA_QUANTUM) * DELTA_QUANTUM if calls else Fraction(0)
    demand(calls == 0 or delta_per > 0, "delta", f"at least {float(delta / share * DELTA_QUANTUM):.2g}", delta)
    largest_rho = rho_simple if rule == "published" else rho_tight
    return floor_bits(Fraction(largest_rho(epsilon, float_below(conversion)))), delta_per, conversion
