"""First and last periods of a time series that hold a part of their time only, by the catalog and the clock."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import cast, get_args

from discreet.catalog.model import Column, ImpliedColumn
from discreet.head_request import Period, Predicate
from discreet.release.periods import DAY, Covered, moment, plus
from discreet.release.periods import covered as covered_by


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
    dates = declared is not None and declared.type == "date"
    if declared is not None and declared.each is None and isinstance(declared.domain, tuple):
        days = sorted(str(label) for label in declared.domain)
        begins.append(moment(days[0]))
        ends.append(plus(moment(days[-1]), DAY if dates else timedelta(0)))
    return covered_by(source, cast("Period", column.each), where, dates=dates, begins=begins, ends=ends)
