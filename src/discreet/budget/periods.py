"""Periods: when charges stop counting against a limit. Pure: timestamps are whole microseconds since 1970 UTC.

An account's charges are summed in buckets, numbered from 0, and a charge stays in the bucket of its reservation. A
bucket is open until its end; then the next one opens, and the closed one never opens again. Whenever a bucket opens, it
is decided which closed buckets still count against the limit:

- Sliding(days): a bucket is a day of UTC. It counts until its youngest possible charge is `days` old, so that up to
  days + 1 buckets count and any window of `days` days, wherever it begins, holds at most the limit.
- Calendar(unit, zone): a bucket is a month, week or day of the zone. Only the open one counts, so that a window that
  overlaps two buckets can hold twice the limit (`limits_per_window`).
- Forever: one bucket that never ends.
"""

from __future__ import annotations

import functools
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import assert_never

from discreet.budget.errors import ClockError
from discreet.budget.model import Calendar, Forever, Period, Sliding
from discreet.errors import InputError

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
NEVER_US = 2**62
"""The end of a bucket that never ends."""

GUARD_US = 2 * DAY_US
"""How far the clock may run ahead of the last time seen before it has to be confirmed."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_YEAR = 9_990  # calendars of the standard library end with the year 9999


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of the database's clock, and the latest time that the store has accepted from it.

    Args:
        raw_us: the time of the database's clock.
        seen_us: the latest time that a transaction or heartbeat accepted.
        guard_us: how far the clock may run ahead of the last time seen.
    """

    raw_us: int
    seen_us: int
    guard_us: int = GUARD_US

    @property
    def ahead(self) -> bool:
        """True if the clock is further ahead of the last time seen than the guard allows."""
        return self.raw_us > self.seen_us + self.guard_us

    @property
    def now_us(self) -> int:
        """The time of leases and ledger lines, which is recorded as seen.

        It is never before the last time seen; as long as the clock is ahead and not confirmed, it does not change.
        """
        return self.seen_us if self.ahead else max(self.raw_us, self.seen_us)

    def has_passed(self, end_us: int) -> bool:
        """Return True if a bucket that ends at *end_us* is over, so that the next one opens.

        Raises:
            ClockError: it is over only by a clock that is too far ahead.
        """
        if self.raw_us < end_us:
            return self.seen_us >= end_us
        if self.ahead:
            raise ClockError
        return True


def bucket_end(period: Period, now_us: int) -> int:
    """Return the end of the bucket that is open at *now_us*: the first timestamp after it.

    Raises:
        InputError: the time zone is unknown, or the time is beyond the calendar.
    """
    match period:
        case Sliding():
            return (now_us // DAY_US + 1) * DAY_US
        case Calendar():
            return _calendar(period, now_us)[1]
        case Forever():
            return NEVER_US
        case _:
            assert_never(period)


def still_counts(period: Period, end_us: int, now_us: int) -> bool:
    """Return True if charges of a closed bucket, made before *end_us*, still count at *now_us*."""
    match period:
        case Sliding(days):
            return end_us + days * DAY_US > now_us
        case Calendar():
            return end_us > _calendar(period, now_us)[0]
        case Forever():
            return True
        case _:
            assert_never(period)


def stops_counting_us(period: Period, end_us: int, now_us: int) -> int | None:
    """Return when charges of a bucket that still counts stop counting; None if never.

    Args:
        end_us: the end of the bucket, open or closed.
    """
    match period:
        case Sliding(days):
            return -(-end_us // DAY_US) * DAY_US + days * DAY_US  # buckets close at midnight, even those cut short
        case Calendar():
            return _calendar(period, now_us)[1]
        case Forever():
            return None
        case _:
            assert_never(period)


def limits_per_window(period: Period) -> int:
    """Return how many limits can be spent in a window as long as the period: 2 for Calendar, else 1.

    With 30-day data an analyst can spend a monthly limit on the 31st and the next on the 1st, on nearly the same rows;
    LinkedIn's published 34.9 is then 54.3. This assumes that data is kept no longer than the period.
    """
    return 2 if isinstance(period, Calendar) else 1


def check_period(period: Period) -> None:
    """Raise `InputError` if the time zone of *period* is not known."""
    if isinstance(period, Calendar):
        _zone(period.zone)


def microseconds(moment: datetime) -> int:
    """Return the whole microseconds from 1970 UTC to *moment*, which has a time zone."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def clock_us(clock: Callable[[], datetime]) -> Callable[[], int]:
    """Return a function that returns the time of *clock* in whole microseconds since 1970 UTC, for `SQLiteStore`."""
    return lambda: microseconds(clock())


@functools.lru_cache(maxsize=64)
def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise InputError(f"there is no time zone {name!r}; use a name such as Europe/Berlin") from None


def _calendar(period: Calendar, now_us: int) -> tuple[int, int]:
    """Return the first timestamps of the calendar period that contains *now_us*, and of the next one."""
    zone = _zone(period.zone)
    moment = _EPOCH + timedelta(microseconds=now_us)
    if moment.year > _LATEST_YEAR:
        raise InputError("the clock of the database is beyond the calendar")
    today = moment.astimezone(zone).date()
    match period.unit:
        case "month":
            first = today.replace(day=1)
            following = date(first.year + first.month // 12, first.month % 12 + 1, 1)
        case "week":
            first = today - timedelta(days=today.weekday())
            following = first + timedelta(days=7)
        case _:
            first = today
            following = today + timedelta(days=1)
    # Where the clock is put back at midnight, midnight occurs twice: the day begins at the first one.
    midnights = (datetime(day.year, day.month, day.day, tzinfo=zone) for day in (first, following))
    begin, end = map(microseconds, midnights)
    return begin, end
