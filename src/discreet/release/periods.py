"""First and last periods of a time series that hold a part of their time only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from discreet.head_request import PERIOD_HOURS, And, Comparison, Kind, Period, Predicate

DAY = timedelta(days=1)
LENGTHS = {each: timedelta(hours=hours) for each, hours in PERIOD_HOURS.items()}


@dataclass(frozen=True, slots=True)
class Covered:
    """The time that the rows of an answer can be from.

    Args:
        each: the period of the labels.
        begin: the first moment, or None if it is not known.
        end: the moment after the last, or None if it is not known.
    """

    each: Period
    begin: datetime | None
    end: datetime | None

    def cuts(self, labels: Iterable[str]) -> tuple[int, int]:
        """Return how many of the first and of the last of *labels* lack a part of their time, or all of it."""
        times = {moment(label) for label in labels if label != "(missing)"}
        if len(times) < 2:
            return 0, 0
        first = 0 if self.begin is None else sum(time < self.begin for time in times)
        return first, 0 if self.end is None else sum(self.end < _end_of(time, self.each) for time in times)


def covered(
    column: str,
    each: Period,
    where: Predicate | None,
    *,
    dates: bool | None = None,
    begins: Iterable[datetime] = (),
    ends: Iterable[datetime] = (),
) -> Covered:
    """Return the time that rows are from by the conditions of a filter on *column*.

    Args:
        dates: True if the column holds dates, so that a constant stands for a whole day; None for a bound filter, whose
            constants that are dates do.
        begins: other moments before which there are no rows.
        ends: other moments from which on there are none.
    """
    first, last = list(begins), list(ends)
    for part in conjuncts(where):
        if isinstance(part, Comparison) and part.column.casefold() == column.casefold():
            try:
                time = moment(part.constant.text)
            except ValueError:  # files without types are compared with any text, such as day <> ''
                continue
            is_date = dates or part.constant.kind is Kind.DATE
            if dates is None and len(part.constant.text) == len("2026-01-31"):
                is_date = True  # of a file without types: text, which is compared with the text of the values
            after = plus(time, DAY if is_date else timedelta(0))
            if part.operator in {">", ">=", "="}:
                first.append(after if part.operator == ">" else time)
            if part.operator in {"<", "<=", "="}:
                last.append(time if part.operator == "<" else after)
    return Covered(each, max(first, default=None), min(last, default=None))


def conjuncts(where: Predicate | None) -> Iterable[Predicate]:
    """Yield the conditions of a filter that all rows fulfil."""
    if isinstance(where, And):
        for part in where.predicates:
            yield from conjuncts(part)
    elif where is not None:
        yield where


def moment(text: str) -> datetime:
    """Return the moment in UTC that a label or a constant names."""
    return datetime.fromisoformat(text).replace(tzinfo=None)


def plus(time: datetime, length: timedelta) -> datetime:
    """Return the later moment, at most the last there is."""
    return time + min(length, datetime.max - time)


def _end_of(time: datetime, period: Period) -> datetime:
    if period in LENGTHS:
        return plus(time, LENGTHS[period])
    months = time.month + {"month": 1, "quarter": 3, "year": 12}[period] - 1
    year = time.year + months // 12
    return datetime.max if year > datetime.max.year else time.replace(year=year, month=months % 12 + 1)
