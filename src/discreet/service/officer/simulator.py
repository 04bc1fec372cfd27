"""Simulate privacy parameters on made-up or released counts, never on true counts of the data."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from discreet.accounting.advice import Differencing, averaging, differencing
from discreet.accounting.bounds import demand
from discreet.accounting.convert import (
    Guarantee,
    cost_of_units,
    epsilon_per_unit,
    epsilon_tight,
    guarantee_of,
    limit_for,
)
from discreet.errors import InputError
from discreet.mechanisms.unknown_gumbel import UnknownGumbel
from discreet.noise import Bits
from discreet.values import ExactHead

ANSWERS = 20
"""The number of simulated answers."""

_NUMBER = re.compile(r"-?\d{1,15}(\.\d+)?")


@dataclass(frozen=True, slots=True)
class SimulatorParameters:
    """The parameters of a simulation.

    Args:
        epsilon_per: epsilon of one step: an item, a count or a cut-off.
        delta_per: delta of one call.
        head_limit: dbar, the number of items that are read from the engine.
        information: k*, the budget of a period in steps.
        calls: l*, the budget of a period in calls.
        k: the LIMIT of each query.
        days: days of a period in which the data does not change.
        largest: users of the largest item; item number r has 1/r of them (Zipf).
    """

    epsilon_per: Fraction
    delta_per: Fraction
    head_limit: int
    information: int
    calls: int
    k: int
    days: int
    largest: int


def parameters_for(
    epsilon: float, delta: Fraction, limit_epsilon: float, limit_delta: Fraction, head_limit: int, k: int, **rest: int
) -> SimulatorParameters:
    """Return the parameters of a top-k query and a budget that are given in epsilon and delta.

    Args:
        epsilon: epsilon of one query, with *delta*.
        limit_epsilon: epsilon of all queries of a period, with *limit_delta*.
        rest: the other parameters.

    Raises:
        InputError: the limit does not allow a single query.
    """
    query = limit_for(epsilon, delta)
    limit = limit_for(limit_epsilon, limit_delta)
    per = epsilon_per_unit(query.rho, 2 * k + 1)  # k items, k counts and a cut-off
    calls = int(limit.delta / query.delta)
    if not query.within(limit):
        raise InputError("the limit does not allow a single query: raise it, or lower epsilon and delta of a query")
    return SimulatorParameters(per, query.delta, head_limit, int(limit.rho / (per**2 / 8)), calls, k, **rest)


@dataclass(frozen=True, slots=True)
class Simulation:
    """The results of a simulation.

    Args:
        items: the mean number of returned items.
        std_error: standard error of a count.
        smallest_count: the smallest count that is shown with a probability above one half.
        steps: the mean cost of an answer in steps.
        share: the mean cost of an answer as a share of the budget, by steps or calls.
        epsilon: epsilon of the mean cost of an answer, at the delta of the guarantee.
        queries: the number of queries until the budget is exhausted.
        averaging: the probability that the mean of one answer a day reveals a count.
        differencing: the result of a differencing attack by two answers that differ in a single user.
        shown: a bound on the probability that a period shows an item of a single user.
        guarantee: the guarantee of all answers of a period.
    """

    items: float
    std_error: float
    smallest_count: int
    steps: float
    share: float
    epsilon: float
    queries: int
    averaging: float
    differencing: Differencing
    shown: float
    guarantee: Guarantee


def released_counts(text: str) -> list[int]:
    """Return the noisy counts in the text of an answer, largest first; negative ones as 0.

    Args:
        text: a count on each line, or rows of a table or a CSV file; the count of a row is the first number after its
            first field.

    Raises:
        InputError: a line has no such number.
    """
    counts = []
    for n, line in enumerate(filter(str.strip, text.splitlines())):
        fields = [field.strip(' "') for field in re.split(r"[\t,;]", line)]
        count = next((field for field in fields[1:] or fields if _NUMBER.fullmatch(field)), None)
        if count is not None:
            counts.append(max(0, round(float(count))))
        elif n:  # the first line may be a header
            raise InputError(f"line {n + 1} of the counts has no count, such as 120 or article-1, 120")
    return sorted(counts, reverse=True)


def simulate(tried: SimulatorParameters, bits: Callable[[], Bits], counts: Sequence[int] = ()) -> Simulation:
    """Simulate top-k queries by `UnknownGumbel` with Gaussian counts, and attacks on their answers.

    Args:
        tried: the parameters, within the ranges of the simulator's fields.
        bits: returns the random source of an answer.
        counts: counts of a release, largest first, in place of made-up ones; all further items have no users.

    Raises:
        InputError: the deltas of all calls add up to a half or more.
    """
    per = float(tried.epsilon_per)
    likely = averaging(per, tried.days, noise="gaussian")
    mechanism = UnknownGumbel(tried.k, tried.head_limit, tried.epsilon_per, tried.delta_per)
    items = tried.head_limit + 1
    made_up = tried.largest // np.arange(1, items + 1, dtype=np.int64)
    if counts:
        known_counts = np.minimum(np.array(counts[:items], dtype=np.int64), 10**9)
        made_up = np.pad(known_counts, (0, items - len(known_counts)))
    head = ExactHead(made_up, tried.head_limit)
    outcomes = [mechanism.release(head, bits()) for _ in range(ANSWERS)]
    steps = float(sum(outcome.cost.rho for outcome in outcomes) / ANSWERS / (tried.epsilon_per**2 / 8))
    lost = tried.calls * tried.delta_per
    demand(2 * lost < 1, "delta_per", "so small that twice its sum over all calls is below 1", float(tried.delta_per))
    cost = cost_of_units(tried.information, tried.calls, tried.epsilon_per, tried.delta_per)
    expected = mechanism.expectation()
    return Simulation(
        items=sum(len(outcome.positions) for outcome in outcomes) / ANSWERS,
        std_error=expected.max_std_error or 0.0,
        smallest_count=expected.smallest_count or 0,
        steps=steps,
        share=max(steps / tried.information, 1 / tried.calls),
        epsilon=epsilon_tight(steps * per**2 / 8, float(lost)),
        queries=min(int(tried.information / steps), tried.calls),
        averaging=likely,
        differencing=differencing(per, noise="gaussian"),
        shown=float(lost),
        guarantee=guarantee_of(cost, 2 * lost),
    )
