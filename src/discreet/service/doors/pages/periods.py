"""First and last periods of a time series that hold a part of their time only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast, get_args

from discreet.catalog.model import Column, ImpliedColumn
from discreet.head_request import Comparison, Period, Predicate
from discreet.service.doors.pages.filters import conjuncts

_DAY = timedelta(days=1)
_LENGTHS = {"hour": timedelta(hours=1), "day": _DAY, "week": 7 * _DAY}


@dataclass(frozen=True, slots=True)
class Covered:
    """The time that the rows of an answer can be from.

    Args:
        each: the period of the labels.
        begin: the first moment, or None if it is not known.
        end: the moment after the last.
    """

    each: Period
    begin: datetime | None
    end: datetime

    def cuts(self, labels: Sequence[str]) -> tuple[bool, bool]:
        """Return whether the first and the last of *labels*, in order, lack a part of their time."""
        times = [_moment(label) for label in labels if label != "(missing)"]
        if len(times) < 2:
            return False, False
        return self.begin is not None and self.begin > times[0], self.end < _end_of(times[-1], self.each)


def covered(columns: Mapping[str, Column], item: str, where: Predicate | None, now: datetime) -> Covered | None:
    """Return the time that a query's rows are from: by its filter, the known labels of the column, and the clock.

    Returns None unless *item* is a column of periods.
    """
    column = columns.get(item)
    if column is None or column.each not in get_args(Period):
        return None
    source = column.source if isinstance(column, ImpliedColumn) else column.of or item
    begins = []
    ends = [now.astimezone(UTC).replace(tzinfo=None)]
    declared = columns.get(source)
    if declared is not None and declared.each is None and isinstance(declared.domain, tuple):
        days = sorted(str(label) for label in declared.domain)
        begins.append(_moment(days[0]))
        ends.append(_plus(_moment(days[-1]), _DAY if declared.type == "date" else timedelta(0)))
    for part in conjuncts(where):
        if isinstance(part, Comparison) and part.column.casefold() == source.casefold():
            time = _moment(part.constant.text)
            after = _plus(time, _DAY if declared is not None and declared.type == "date" else timedelta(0))
            if part.operator in {">", ">=", "="}:
                begins.append(after if part.operator == ">" else time)
            if part.operator in {"<", "<=", "="}:
                ends.append(time if part.operator == "<" else after)
    return Covered(cast("Period", column.each), max(begins, default=None), min(ends))


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=None)


def _plus(time: datetime, length: timedelta) -> datetime:
    return time + min(length, datetime.max - time)


def _end_of(time: datetime, period: Period) -> datetime:
    if period in _LENGTHS:
        return _plus(time, _LENGTHS[period])
    months = time.month + {"month": 1, "quarter": 3, "year": 12}[period] - 1
    year = time.year + months // 12
    return datetime.max if year > datetime.max.year else time.replace(year=year, month=months % 12 + 1)
