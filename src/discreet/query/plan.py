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
from discreet.query.where import bind_where, find_column
from discreet.question import HeadRequest, Kind
from discreet.values import Cost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.mechanisms import Expectation, NoiseName
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
    """

    query: Query
    mechanism: Mechanism
    guarantee: Guarantee
    notes: tuple[str, ...]

    @property
    def worst_cost(self) -> Cost:
        """What is reserved before any data is read."""
        return self.mechanism.worst_cost()

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


def make_plan(query: Query, *, shared_budget: bool = False, force: bool = False) -> Plan:
    """Choose a mechanism and the most accurate parameters that *query*'s guarantee allows.

    Args:
        query: the question.
        shared_budget: True if the cost is charged to a budget shared with other questions, which adds up zCDP;
            otherwise a mechanism's own (epsilon, delta) theorem is used where it allows less noise.
        force: True to allow epsilon above 100.

    Raises:
        InputError: something in the question is outside its range, or the mechanism cannot answer it.
    """
    notes = _check(query, force)
    request = _request(query)
    kind = summing(_mechanism(query, request), request)
    mechanism = _most_accurate(kind, query, request, shared_budget)
    mechanism.expectation()  # refuses noise that cannot be drawn, before anything is read
    guarantee = guarantee_of(mechanism.worst_cost(), query.delta, mechanism.direct_epsilon())
    if guarantee.epsilon > query.epsilon * (1 + 1e-9) or Fraction(guarantee.delta) > query.delta * (
        1 + Fraction(1, 10**15)
    ):
        raise InvariantViolated("the plan would cost more than was asked for")
    return Plan(query, mechanism, guarantee, notes)


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


def _check(query: Query, force: bool) -> tuple[str, ...]:
    """Refuse what is out of range; return notes on what is unwise."""
    if not EPSILON_LEAST <= query.epsilon < math.inf:
        raise InputError(f"epsilon must be a number of at least {EPSILON_LEAST:g}, not {query.epsilon:g}")
    if query.epsilon > EPSILON_MOST and not force:
        raise InputError(
            f"epsilon must be at most {EPSILON_MOST:g}: above that nothing is protected; force it if you must"
        )
    if not DELTA_LEAST <= query.delta < 1:
        raise InputError(f"delta must be below 1 and at least 1e-20, not {_shown(query.delta)}")
    if query.k is not None and query.k < 1:
        raise InputError(f"k must be at least 1, not {query.k}")
    if not 0 < query.relative_error < 1:
        raise InputError(f"the relative error must be above 0 and below 1, not {_shown(query.relative_error)}")
    if query.noise not in {None, "gaussian", "laplace"}:
        raise InputError(f"there is no noise {query.noise!r}; choose from gaussian and laplace")
    _check_columns(query.user, query.items)
    if query.delta > DELTA_WARNED:
        return (f"delta = {float(query.delta):g} is large: it should be far below one over the number of users",)
    return ()


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
    for noise in noises:
        own = kind.at(epsilon, Cost.at_most(0, query.delta).delta, replace(request, noise=noise))
        if own is not None and _error(own) < _error(best):
            best = own
    return best


def _error(mechanism: Mechanism) -> float:
    """What instances of one mechanism are compared by: the error of what is released, or the inverse of the zCDP spent.

    The latter for labels only, where nothing has an error.
    """
    expected = mechanism.expectation()
    errors = [std for std in (expected.std_error_most, expected.sum_std_error) if std is not None]
    return errors[-1] if errors else 1 / float(mechanism.worst_cost().rho)
