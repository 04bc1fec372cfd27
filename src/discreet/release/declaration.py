"""Declarations of running counts: what is counted, in which periods, and at what price (docs/running-counts.md)."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pyarrow as pa

from discreet.catalog.model import Catalog
from discreet.engines.base import Engine, check_arrivals
from discreet.errors import InputError
from discreet.head_request import (
    And,
    Arrivals,
    Comparison,
    Constant,
    Derived,
    HeadRequest,
    Kind,
    RunningPeriod,
)
from discreet.mechanisms.running import CorrectedCounts, RunningCounts, price
from discreet.query.planning import bind, check_price
from discreet.query.predicates import bind_where, find_column
from discreet.query.query import Query, QueryOptions
from discreet.query.sql import condition, parse_where
from discreet.release.periods import LENGTHS
from discreet.values import MAX_COUNT, whole

GRACE = datetime.timedelta(hours=1)
"""How long after its end a period is complete: transactions that load its rows may be open until then."""


@dataclass(frozen=True, slots=True)
class RunningDeclaration:
    """What is counted, in which periods, and at what price; fixed before the first period.

    Args:
        request: the user, the items, the filter, groups_per_user, and one derived column, the period of arrival.
        kinds: the kinds of the item columns.
        first: the start of the first period.
        periods: the number of periods, from 1 to 3,653.
        epsilon: of the whole stream.
        delta: of the whole stream.
        pilot: the start of as many earlier periods, from which the bounds on users are chosen; None for none.

    Raises:
        InputError: *first* or *pilot* is not the start of a period, the pilot does not end before *first*, or there are
            too many periods, or none.
    """

    table: str
    request: HeadRequest
    kinds: tuple[Kind, ...]
    first: datetime.datetime
    periods: int
    epsilon: float
    delta: Fraction
    pilot: datetime.datetime | None = None

    def __post_init__(self) -> None:
        price(self.periods, self.epsilon, self.delta)
        self._check_start(self.first, "first period")
        if self.pilot is None:
            return
        if self.request.groups_per_user is not None:
            raise InputError("the bound on a user comes from groups_per_user or from a pilot; leave one of them out")
        self._check_start(self.pilot, "pilot")
        if self.pilot + self.periods * LENGTHS[self.each] > self.first:
            raise InputError(
                f"a pilot has as many periods as the stream, and they end before {self.name(1)}: it begins at "
                f"{self.first - self.periods * LENGTHS[self.each]} at the latest"
            )

    def _check_start(self, moment: datetime.datetime, what: str) -> None:
        if (moment - datetime.datetime.min) % LENGTHS[self.each]:  # the least datetime is the start of a Monday
            start = {"hour": "the start of an hour", "day": "the start of a day", "week": "a Monday"}[self.each]
            raise InputError(f"the {what} of a stream by {self.each} is {start}, not {moment}")

    @property
    def each(self) -> str:
        """The length of a period: hour, day or week."""
        return str(self.request.derived[0].each)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the starts of periods."""
        return pa.timestamp("us") if self.each == "hour" else pa.date32()

    def mechanism(self) -> RunningCounts | CorrectedCounts:
        """Return the mechanism with the least noise; the same numbers are read from the file ever after.

        If there is a pilot, it decides the bounds on users; until then they are those of a stream without one.
        """
        groups = self.request.groups_per_user
        square, mass = price(self.periods, self.epsilon, self.delta)
        if groups is None:
            return CorrectedCounts.within(self.periods, square, mass, has_pilot=self.pilot is not None)
        return RunningCounts.within(self.periods, groups, square, mass)

    def check(self, engine: Engine) -> None:
        """Raise `InputError` if an engine cannot count the stream; no row is read."""
        check_arrivals(engine)
        mechanism = self.mechanism()
        engine.check(self.arrived(self.first, self.periods, mechanism.groups_per_user, mechanism.least))

    def arrived(self, first: datetime.datetime, periods: int, groups: int, least: int, **parts: Any) -> HeadRequest:
        """Return the request for the rows of some periods from *first* on.

        Args:
            groups: the number of places of a user.
            least: as in `Arrivals`, like *parts*.
        """
        period = self.request.derived[0]
        arrivals = Arrivals(period.name, least, **parts)
        starts = first, first + (periods - 1) * LENGTHS[self.each]
        texts = (str(start if self.each == "hour" else start.date()) for start in starts)
        since, until = (Constant(period.kind, text) for text in texts)
        within = Comparison(period.name, ">=", since), Comparison(period.name, "<=", until)
        where = And((*within, *(() if self.request.where is None else (self.request.where,))))
        return dataclasses.replace(
            self.request, limit=MAX_COUNT, where=where, groups_per_user=groups, arrivals=arrivals
        )

    def start(self, number: int) -> datetime.datetime:
        """Return the start of period *number*, from 1 on."""
        return self.first + (number - 1) * LENGTHS[self.each]

    def name(self, number: int) -> str:
        """Return period *number* as ISO 8601 text, which is also its constant in a filter."""
        return str(self.value(number))

    def value(self, number: int) -> datetime.date:
        """Return the start of period *number* as a value of a label."""
        return self.start(number) if self.each == "hour" else self.start(number).date()

    def number(self, period: str | datetime.date) -> int:
        """Return the number of a period, named by its start or a moment in it.

        Raises:
            InputError: it is not a moment, or not in the stream.
        """
        number = (moment(str(period), "the period") - self.first) // LENGTHS[self.each] + 1
        if not 1 <= number <= self.periods:
            raise InputError(
                f"the stream was declared for the periods {self.name(1)} to {self.name(self.periods)}, and {period} is "
                "not in them; a longer one is another stream, with its own price"
            )
        return number

    def complete(self, now: datetime.datetime) -> int:
        """Return the number of the last period that is complete at *now* in UTC; 0 if none is."""
        ended = (now - GRACE - self.first) // LENGTHS[self.each]
        return max(min(ended, self.periods), 0)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, equal only for equal declarations."""
        request = self.request
        chosen = {"pilot": None if self.pilot is None else str(self.pilot)}
        return ({} if request.groups_per_user is not None else chosen) | {
            "table": self.table,
            "user": request.user,
            "items": list(request.items),
            "kinds": [kind.value for kind in self.kinds],
            "where": None if request.where is None else condition(request.where),
            "groups_per_user": request.groups_per_user,
            "column": request.derived[0].column,
            "each": self.each,
            "first": self.name(1),
            "periods": self.periods,
            "epsilon": str(Fraction(self.epsilon)),
            "delta": str(self.delta),
        }


def declare(
    table: str,
    query: Query,
    columns: Mapping[str, Kind],
    *,
    column: str,
    each: RunningPeriod,
    first: str | datetime.date,
    periods: int,
    pilot: str | datetime.date | None = None,
) -> RunningDeclaration:
    """Return the declaration of a stream.

    Args:
        query: the user, the items, the filter, groups_per_user, epsilon and delta.
        column: the column of the time at which a row arrived.
        each: hour, day or week.
        first: the start of the first period.
        periods: the number of periods.
        pilot: the start of earlier periods, from which the bounds on users are chosen; None for none.

    Raises:
        InputError: one of them is out of range, or does not fit the table.
    """
    if each not in LENGTHS:
        raise InputError(f"the periods of a stream are {', '.join(LENGTHS)}, not {each!r}")
    if not query.request.items:
        raise InputError("running counts need at least one item column")
    check_price(query.options.epsilon, query.options.delta, force=None)
    named = find_column(column, columns, "column of arrival")
    period = Derived(f"{named}:{each}", named, each)
    wrong = period.type_error(columns[named])
    if wrong is not None:
        raise InputError(wrong)
    request = bind(query, columns).request
    request = dataclasses.replace(request, derived=(*request.derived, period))
    return RunningDeclaration(
        table,
        request,
        tuple(columns[item] for item in request.items),
        moment(str(first), "the first period"),
        whole(periods, "the number of periods"),
        query.options.epsilon,
        query.options.delta,
        None if pilot is None else moment(str(pilot), "the pilot"),
    )


def declare_in(catalog: Catalog, name: str, columns: Mapping[str, Kind]) -> RunningDeclaration:
    """Return the declaration of a stream of a catalog, over a table with these columns.

    Raises:
        InputError: it does not fit the table, or something in it is out of range.
    """
    dataset, declared = catalog.streams[name]
    where = None if declared.where is None else bind_where(parse_where(declared.where), columns)
    user = catalog.datasets[dataset].user
    request = HeadRequest(user, declared.items, 0, where, groups_per_user=declared.groups_per_user)
    return declare(
        dataset,
        Query(request, QueryOptions(float(declared.epsilon), declared.delta)),
        columns,
        column=declared.column,
        each=declared.each,
        first=declared.first,
        periods=declared.periods,
        pilot=declared.pilot,
    )


def check_in(catalog: Catalog, name: str, engine: Engine) -> None:
    """Raise `InputError` if a stream of a catalog does not fit its table, or the engine cannot count it."""
    declare_in(catalog, name, engine.columns()).check(engine)


def moment(text: str, what: str) -> datetime.datetime:
    """Return ISO 8601 text as a moment in UTC, without a zone.

    Raises:
        InputError: it is something else.
    """
    try:
        named = datetime.datetime.fromisoformat(text)
        return named if named.tzinfo is None else named.astimezone(datetime.UTC).replace(tzinfo=None)
    except (TypeError, ValueError):
        raise InputError(
            f"{what} is a date such as 2026-12-01, or an hour such as 2026-12-01 05:00, not {text!r}"
        ) from None
