"""From a question as it was sent to a plan: what is asked, at which price, within the service's limits. No data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from discreet.errors import InputError
from discreet.query.planning import EPSILON_LEAST, make_plan
from discreet.query.pricing import PRESETS, PerUnit
from discreet.query.query import default_head_limit
from discreet.query.query_json import from_dict
from discreet.query.sql import parse_select
from discreet.service.problems import NotFound
from discreet.values import exact
from discreet.wire.malformed import Malformed
from discreet.wire.problems import Fitting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from fractions import Fraction

    from discreet.query.planning import Plan
    from discreet.query.query import Query, Select
    from discreet.service.settings import Defaults, Limits
    from discreet.values import Cost
    from discreet.warehouse import Warehouse
    from discreet.wire.questions import Question

_TRIES = 14
"""Of prices, until the largest that still fits is known to a hundredth."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A question with its price, ready to be planned.

    Args:
        select: what is asked.
        dataset: its name in the catalog.
        epsilon: of the answer; None if units have a price.
        delta: goes with epsilon.
        per: the price of a unit; None if the answer has an epsilon.
        options: the rest of what `Warehouse.plan` takes.
    """

    select: Select
    dataset: str
    epsilon: float | None = None
    delta: float | str | Fraction | None = None
    per: PerUnit | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def plan(self, view: Warehouse) -> Plan:
        """How it would be answered, for a budget that is shared.

        Args:
            view: what the asker may see, and nothing else.

        Raises:
            InputError: something is not allowed; only names that the asker may see are named.
            EngineError: the engine cannot be asked for what planning needs.
        """
        return view.plan(self.select, epsilon=self.epsilon, delta=self.delta, per=self.per, shared=True, **self.options)


def wanted(question: Question, view: Warehouse, defaults: Defaults, limits: Limits) -> Wanted:
    """What is asked, at which price.

    Args:
        question: as it was sent.
        view: what the asker may see.
        defaults: prices for questions that say none.
        limits: of the service.

    Raises:
        Malformed: it is outside the grammar.
        NotFound: there is no such dataset, or the asker may not see it.
        InputError: something is above a limit.
    """
    select = _select(question)
    try:
        dataset = view.catalog.find(select.dataset)
    except InputError as error:
        raise NotFound(str(error)) from None
    options: dict[str, Any] = {"counts": question.counts, "mechanism": question.mechanism, "noise": question.noise}
    if question.relative_error is not None:
        options["relative_error"] = question.relative_error
    options["head_limit"] = _head_limit(question.head_limit, select.k, limits)
    _check_k(select.k, limits)
    by_unit = question.epsilon_per is not None or question.information is not None
    by_epsilon = question.epsilon is not None or question.delta is not None
    if by_unit or (defaults.per is not None and not by_epsilon):
        return Wanted(select, dataset, per=_per_unit(question, defaults), options=options)
    epsilon = question.epsilon if question.epsilon is not None else defaults.epsilon or 1.0
    if epsilon > limits.epsilon_most:
        raise InputError(f"epsilon must be at most {limits.epsilon_most:g}, not {epsilon:g}")
    delta = question.delta if question.delta is not None else defaults.delta
    return Wanted(select, dataset, epsilon, delta, options=options)


def most_that_fits(plan: Plan, left: Cost) -> Fitting | None:
    """The largest epsilon, k or information whose worst case is within *left*, all else equal.

    Args:
        plan: what was too much.
        left: the least that is left on the path.
    """

    def fits(query: Query, per: PerUnit | None) -> bool:
        try:
            return make_plan(query, shared_budget=True, per=per).worst_cost.within(left)
        except InputError:  # out of range when it is as small as that
            return False

    query, per = plan.query, plan.per
    if per is None:
        epsilon = _largest_epsilon(query.epsilon, lambda e: fits(replace(query, epsilon=e), None))
        return None if epsilon is None else Fitting(epsilon=epsilon)
    if query.k is not None:
        k = _largest(query.k, lambda n: fits(replace(query, k=n), per))
        return None if k is None else Fitting(k=k)
    most = _largest(per.information, lambda n: fits(query, replace(per, information=n)))
    return None if most is None else Fitting(information=most)


def _largest(asked: int, fits: Callable[[int], bool]) -> int | None:
    """The largest number from 1 to below *asked* that fits; whatever is below one that fits, fits."""
    low, high = 0, asked
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low or None


def _largest_epsilon(asked: float, fits: Callable[[float], bool]) -> float | None:
    """An epsilon of two digits that fits, nearly the largest such below *asked*."""
    low, high, best = EPSILON_LEAST, asked, None
    for _ in range(_TRIES):
        middle = (low * high) ** 0.5
        epsilon = float(f"{middle:.1e}")
        if epsilon < asked and fits(epsilon):
            low, best = middle, epsilon
        else:
            high = middle
    return best


def _select(question: Question) -> Select:
    try:
        return parse_select(question.sql) if question.sql is not None else from_dict(question.query or {})
    except InputError as error:
        raise Malformed(str(error), getattr(error, "position", None)) from None


def _check_k(k: int | None, limits: Limits) -> None:
    if k is not None and k > limits.k_most:
        raise InputError(f"k must be at most {limits.k_most:,}, not {k:,}")


def _head_limit(asked: int | None, k: int | None, limits: Limits) -> int | None:
    """What was asked for, or the usual; that is lowered where the limit is lower."""
    if asked is not None and asked > limits.head_limit_most:
        raise InputError(f"the head limit must be at most {limits.head_limit_most:,}, not {asked:,}")
    usual = default_head_limit(k)
    return limits.head_limit_most if asked is None and usual > limits.head_limit_most else asked


def _per_unit(question: Question, defaults: Defaults) -> PerUnit:
    """The price of a unit; what neither the question nor the settings say is as LinkedIn had it."""
    usual = defaults.per or PRESETS["linkedin"]
    return PerUnit(
        usual.epsilon_per if question.epsilon_per is None else exact(question.epsilon_per, "epsilon per unit"),
        usual.delta_per,
        usual.information if question.information is None else question.information,
    )
