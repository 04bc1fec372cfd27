"""From a question to a plan: which mechanism with which parameters, at what worst cost. Pure; touches no data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from discreet.accounting.calibrate import limit_for
from discreet.accounting.guarantee import Guarantee, guarantee_of
from discreet.errors import InputError, InvariantViolated
from discreet.mechanisms import (
    CountRelease,
    KnownGumbel,
    KnownLaplace,
    Magnitude,
    Mechanism,
    Request,
    TopStable,
    UnknownGumbel,
    UnknownLaplace,
    choose,
    summing,
)
from discreet.query.canonical import canonical
from discreet.query.model import HEAD_LIMIT_MOST, Query, default_head_limit
from discreet.query.units import priced
from discreet.query.where import bind_where, find_column
from discreet.question import HeadRequest, Kind
from discreet.values import Cost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.mechanisms import Expectation, NoiseName
    from discreet.query.units import PerUnit, UnitCost
    from discreet.question import Summed

EPSILON_LEAST = 1e-6
EPSILON_MOST = 100.0
DELTA_LEAST = Fraction(1, 10**20)
DELTA_WARNED = Fraction(1, 10_000)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a question will be answered.

    Args:
        query: the question.
        mechanism: with all its parameters.
        guarantee: what the answer promises, in the worst case.
        notes: sentences for people: what is allowed but unwise.
        per: the price of a unit, or None if the question was priced by its own (epsilon, delta).
    """

    query: Query
    mechanism: Mechanism
    guarantee: Guarantee
    notes: tuple[str, ...]
    per: PerUnit | None = None

    @property
    def worst_cost(self) -> Cost:
        """What is reserved before any data is read."""
        return self.mechanism.worst_cost()

    @property
    def worst_units(self) -> UnitCost | None:
        """The same in units, or None if it was not priced in them; `PerUnit.units` tells those of what is charged."""
        return None if self.per is None else self.per.units(self.worst_cost)

    @property
    def expectation(self) -> Expectation:
        """What can be said about the answer before any data is read."""
        return self.mechanism.expectation()

    @property
    def request(self) -> HeadRequest:
        """What the engine is asked for."""
        query = self.query
        return HeadRequest(
            query.user,
            query.items,
            self.mechanism.head_limit,
            query.where,
            query.sensitivity.rows_per_group,
            query.sensitivity.groups_per_user,
            query.domain,
            query.keep_missing,
            query.summed,
        )


def make_plan(query: Query, *, shared_budget: bool = False, force: bool = False, per: PerUnit | None = None) -> Plan:
    """Choose a mechanism and the most accurate parameters that *query*'s guarantee allows.

    Args:
        query: the question.
        shared_budget: True if the cost is charged to a budget shared with other questions, which adds up zCDP;
            otherwise a mechanism's own (epsilon, delta) theorem is used where it allows less noise.
        force: True to allow epsilon above 100.
        per: a price for each unit, in place of *query*'s own epsilon and delta. The plan's query has what it comes to.

    Raises:
        InputError: something in the question is outside its range, or the mechanism cannot answer it.
    """
    _check(query)
    request = _request(query)
    kind = summing(_mechanism(query, request), request)
    if per is not None:
        return _plan_per_unit(query, priced(kind, request, per), per, force)
    notes = _check_price(query.epsilon, query.delta, force)
    mechanism = _most_accurate(kind, query, request, shared_budget)
    mechanism.expectation()  # refuses noise that cannot be drawn, before anything is read
    guarantee = guarantee_of(mechanism.worst_cost(), query.delta, mechanism.direct_epsilon())
    if guarantee.epsilon > query.epsilon * (1 + 1e-9) or Fraction(guarantee.delta) > query.delta * (
        1 + Fraction(1, 10**15)
    ):
        raise InvariantViolated("the plan would cost more than was asked for")
    return Plan(query, mechanism, guarantee, notes)


def _plan_per_unit(query: Query, mechanism: Mechanism, per: PerUnit, force: bool) -> Plan:
    mechanism.expectation()
    guarantee = per.guarantee(mechanism)
    if guarantee.epsilon > EPSILON_MOST and not force:
        units = per.units(mechanism.worst_cost()).information
        raise InputError(
            f"{units:,} units come to an epsilon above {EPSILON_MOST:g}, where nothing is protected; ask for less"
        )
    delta = Fraction(guarantee.delta)
    asked = replace(query, epsilon=guarantee.epsilon, delta=delta)
    return Plan(asked, mechanism, guarantee, _notes(delta), per)


def bind(query: Query, columns: Mapping[str, Kind]) -> Query:
    """*query* with the table's own column names, checked against its columns, and its filter in the one form.

    Args:
        query: as asked.
        columns: the table's columns.

    Raises:
        UnknownColumn: a column the table does not have.
        InputError: a column that cannot serve: floating point or nested items, the user as an item.
    """
    user = find_column(query.user, columns, "user column")
    items = tuple(find_column(item, columns, "item column") for item in query.items)
    for column in (user, *items):
        if columns[column] is Kind.FLOAT:
            raise InputError(
                f"column {column!r} holds floating-point numbers, of which engines disagree which are equal; "
                "cast it to whole numbers, decimals or text"
            )
        if columns[column] is Kind.OTHER:
            raise InputError(f"column {column!r} has a type that cannot name a user or an item; cast it to text")
    _check_columns(user, items)
    where = None if query.where is None else canonical(bind_where(query.where, columns), columns)
    domain = None if query.domain is None else query.domain.rename_columns(list(items))
    return replace(query, user=user, items=items, where=where, domain=domain)


def _check_price(epsilon: float, delta: Fraction, force: bool) -> tuple[str, ...]:
    """Refuse what is out of range; return notes on what is unwise."""
    if not EPSILON_LEAST <= epsilon < math.inf:
        raise InputError(f"epsilon must be a number of at least {EPSILON_LEAST:g}, not {epsilon:g}")
    if epsilon > EPSILON_MOST and not force:
        raise InputError(
            f"epsilon must be at most {EPSILON_MOST:g}: above that nothing is protected; force it if you must"
        )
    if not DELTA_LEAST <= delta < 1:
        raise InputError(f"delta must be below 1 and at least 1e-20, not {_shown(delta)}")
    return _notes(delta)


def _notes(delta: Fraction) -> tuple[str, ...]:
    if delta > DELTA_WARNED:
        return (f"delta = {float(delta):g} is large: it should be far below one over the number of users",)
    return ()


def _check(query: Query) -> None:
    """Refuse what is out of range, whatever the price."""
    if query.k is not None and query.k < 1:
        raise InputError(f"k must be at least 1, not {query.k}")
    if not 0 < query.relative_error < 1:
        raise InputError(f"the relative error must be above 0 and below 1, not {_shown(query.relative_error)}")
    if query.noise not in (None, "gaussian", "laplace"):  # a list has no hash
        raise InputError(f"there is no noise {query.noise!r}; choose from gaussian and laplace")
    _check_columns(query.user, query.items)


def _shown(value: Fraction) -> str:
    """*value* in a few characters."""
    try:
        return f"{float(value):g}"
    except OverflowError:
        return "a number of hundreds of digits"


def _check_columns(user: str, items: tuple[str, ...]) -> None:
    if user in items:
        raise InputError(f"column {user!r} cannot be both the user and an item")
    if len(set(items)) < len(items):
        raise InputError("an item column is named twice")


def _request(query: Query) -> Request:
    if query.known_domain:
        head_limit = 1 if query.domain is None else len(query.domain)
    else:
        head_limit = default_head_limit(query.k) if query.head_limit is None else query.head_limit
    if not 1 <= head_limit <= HEAD_LIMIT_MOST:
        raise InputError(f"the head limit must be from 1 to {HEAD_LIMIT_MOST:,}, not {head_limit:,}")
    if query.k is not None and query.k > head_limit:
        limit = "the size of the domain" if query.known_domain else "the head limit"
        raise InputError(f"k must be at most {limit}, {head_limit:,}, not {query.k:,}")
    return Request(
        query.k,
        head_limit,
        # All rows as one item: nobody adds to more than that one.
        query.sensitivity if query.items else replace(query.sensitivity, groups_per_user=1),
        query.counts,
        query.noise or "gaussian",
        known_domain=query.known_domain,
        relative_error=query.relative_error,
        summed=None if query.summed is None else _magnitude(query.summed, average=query.average),
    )


def _magnitude(summed: Summed, *, average: bool) -> Magnitude:
    low, high = (int(bound * 10**summed.scale) for bound in (summed.low, summed.high))
    return Magnitude(low, high, average)


def _mechanism(query: Query, request: Request) -> type[Mechanism]:
    match query.mechanism:
        case "auto" if request.k is None:
            raise InputError(
                "the name auto is reserved for what comes next; leave the mechanism out, or choose pcr or laplace"
            )
        case None | "auto":
            return choose(request)
        case "gumbel":
            return KnownGumbel if request.known_domain else UnknownGumbel
        case "laplace":
            return KnownLaplace if request.known_domain else UnknownLaplace
        case "stable":
            return TopStable
        case "pcr":
            return CountRelease
    raise InputError(f"there is no mechanism {query.mechanism!r}; choose from gumbel, laplace, stable and pcr")


def _most_accurate(kind: type[Mechanism], query: Query, request: Request, shared_budget: bool) -> Mechanism:
    """The best of: each noise (unless one was named), within the zCDP limit or by the mechanism's own theorem."""
    epsilon = Fraction(query.epsilon)
    best = kind.within(limit_for(query.epsilon, query.delta, kind.lossless and not shared_budget), request)
    if shared_budget:
        return best
    noises: tuple[NoiseName, ...] = ("gaussian", "laplace") if query.noise is None else (query.noise,)
    lost = Cost.at_most(0, query.delta).delta
    own = [kind.at(epsilon, lost, replace(request, noise=noise)) for noise in noises]
    rivals = [mechanism for mechanism in own if mechanism is not None]
    return min((best, *rivals), key=_error) if rivals else best


def _error(mechanism: Mechanism) -> float:
    """What instances of one mechanism are compared by: the error of what is released, or the inverse of the zCDP spent.

    The latter for labels only, where nothing has an error.
    """
    expected = mechanism.expectation()
    errors = [std for std in (expected.std_error_most, expected.sum_std_error) if std is not None]
    return errors[-1] if errors else 1 / float(mechanism.worst_cost().rho)
