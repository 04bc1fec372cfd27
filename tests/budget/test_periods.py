"""Periods: when buckets end, when charges stop counting, and the clock."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.budget.errors import ClockError
from discreet.budget.model import (
    Calendar,
    Forever,
    Sliding,
)
from discreet.budget.rules import (
    DAY_US,
    NEVER_US,
    Clock,
    bucket_end,
    check_period,
    clock_us,
    limits_per_window,
    microseconds,
    still_counts,
    stops_counting_us,
)
from discreet.errors import InputError

ZONES = ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu", "America/New_York"]


TIMES = st.integers(0, 4_102_444_800 * 10**6)  # to 2100


PERIODS = st.one_of(
    st.just(Forever()),
    st.builds(Sliding, st.integers(1, 400)),
    st.builds(Calendar, st.sampled_from(["month", "week", "day"]), st.sampled_from(ZONES)),
)


def _us(text):
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**6


@given(PERIODS, TIMES)
def test_a_bucket_ends_after_now_and_another_begins_there(period, now_us):
    """Buckets only move forward, at every change of the clock."""
    end = bucket_end(period, now_us)
    assert now_us < end
    assert bucket_end(period, end - 1) == end
    assert still_counts(period, end, now_us)
    assert still_counts(period, end, end - 1)
    if end != NEVER_US:
        assert end < bucket_end(period, end)
        assert still_counts(period, end, end) == isinstance(period, Sliding)


@given(st.integers(1, 60), TIMES, st.integers(0, 100 * DAY_US))
def test_a_charge_counts_for_as_long_as_the_window_and_a_day_at_most(days, charged_us, later_us):
    """I6: never less than `days`, never more than `days` + 1; and it stops at the reported time."""
    period = Sliding(days)
    end = bucket_end(period, charged_us)
    counted = still_counts(period, end, charged_us + later_us)
    if later_us < days * DAY_US:
        assert counted
    if later_us >= (days + 1) * DAY_US:
        assert not counted
    assert counted == (charged_us + later_us < stops_counting_us(period, end, charged_us))


@given(st.lists(st.integers(0, 40 * DAY_US), min_size=1, max_size=60), st.integers(1, 5))
def test_no_window_holds_more_than_the_limit(times, days):
    """I6: with as many unit charges as fit at each time, any window of `days` days holds at most the limit."""
    period, limit, charges = Sliding(days), 3, []
    for now_us in sorted(times):
        while sum(still_counts(period, bucket_end(period, t), now_us) for t in charges) < limit:
            charges.append(now_us)
    for begin in charges:
        assert sum(begin <= t < begin + days * DAY_US for t in charges) <= limit


@pytest.mark.parametrize(
    ("period", "now", "end"),
    [
        (Sliding(30), "2024-02-29T23:59:59", "2024-03-01"),
        (Calendar("month", "UTC"), "2024-02-29T23:59:59", "2024-03-01"),
        (Calendar("month", "Europe/Berlin"), "2024-12-31T22:59:59", "2024-12-31T23:00:00"),
        (Calendar("month", "Europe/Berlin"), "2024-12-31T23:00:00", "2025-01-31T23:00:00"),
        (Calendar("week", "UTC"), "2024-01-01T00:00:00", "2024-01-08"),
        (Calendar("week", "UTC"), "2024-01-07T23:59:59", "2024-01-08"),
        (Calendar("day", "Europe/Berlin"), "2024-03-31T12:00:00", "2024-03-31T22:00:00"),  # 23 hours
        (Calendar("day", "Europe/Berlin"), "2024-10-27T12:00:00", "2024-10-27T23:00:00"),  # 25 hours
        (Calendar("day", "America/Sao_Paulo"), "2017-10-15T02:59:59", "2017-10-15T03:00:00"),  # no midnight there
        (Calendar("day", "Pacific/Apia"), "2011-12-30T09:00:00", "2011-12-30T10:00:00"),  # no 30th there
    ],
)
def test_periods_begin_by_the_calendar(period, now, end):
    """Leap days, years, zones, and days that are shorter, longer or missing."""
    assert bucket_end(period, _us(now)) == _us(end)


@pytest.mark.parametrize(
    ("period", "end", "now", "counts", "stops"),
    [
        (Sliding(2), "2024-02-29", "2024-03-01T23:59:59", True, "2024-03-02"),
        (Sliding(2), "2024-02-29", "2024-03-02", False, "2024-03-02"),
        (Sliding(2), "2024-02-28T12:00:00", "2024-03-01", True, "2024-03-02"),  # cut short: it closes at midnight
        (Calendar("month"), "2024-01-01", "2024-01-20", False, "2024-02-01"),
        (Calendar("month"), "2024-01-01T12:00:00", "2024-01-20", True, "2024-02-01"),
        (Calendar("week", "Europe/Berlin"), "2024-01-07T23:00:00", "2024-01-10", False, "2024-01-14T23:00:00"),
        (Calendar("week", "Europe/Berlin"), "2024-01-07T23:00:01", "2024-01-10", True, "2024-01-14T23:00:00"),
        (Forever(), "2024-01-01", "2034-01-01", True, None),
    ],
)
def test_charges_stop_counting_when_it_is_said(period, end, now, counts, stops):
    """I6: at the second, for buckets that were cut short too."""
    assert still_counts(period, _us(end), _us(now)) is counts
    assert stops_counting_us(period, _us(end), _us(now)) == (None if stops is None else _us(stops))


@pytest.mark.parametrize(
    "function", [bucket_end, partial(still_counts, end_us=1), partial(stops_counting_us, end_us=1)]
)
def test_another_period_is_no_period(function):
    """A kind of period without a rule is an error, never a charge that does not count."""
    with pytest.raises(AssertionError, match="'year'"):
        function("year", now_us=1)


def test_periods_have_a_zone_and_a_year():
    """A time zone is known, and the calendar ends before that of the standard library does."""
    assert check_period(Sliding(30)) is check_period(Calendar("day", "Europe/Berlin")) is None
    with pytest.raises(InputError, match="Mars/Olympus"):
        check_period(Calendar("day", "Mars/Olympus"))
    assert bucket_end(Calendar("day"), _us("9990-12-31")) == _us("9991-01-01")
    with pytest.raises(InputError, match="calendar"):
        bucket_end(Calendar("day"), _us("9991-01-01"))


def test_a_clock_counts_whole_microseconds():
    """An integer, which a float of this size is not beyond 2255."""
    moment = datetime(2300, 1, 1, 0, 0, 0, 1, UTC)
    assert clock_us(lambda: moment)() == microseconds(moment) == _us("2300-01-01") + 1
    assert isinstance(microseconds(moment), int)


def test_only_calendar_periods_are_doubled():
    """The paper's 34.9 becomes 54.3 for queries on the 31st and on the 1st."""
    assert [limits_per_window(p) for p in (Sliding(30), Forever(), Calendar("month"))] == [1, 1, 2]


def test_the_time_never_goes_back_and_stops_when_the_clock_runs_ahead():
    """I6, at the guard's limit and a microsecond beyond."""
    assert Clock(5, 9).now_us == 9
    assert Clock(9 + 100, 9, 100).now_us == 109
    assert not Clock(9 + 100, 9, 100).ahead
    ahead = Clock(9 + 101, 9, 100)
    assert ahead.ahead
    assert ahead.now_us == 9
    assert not ahead.has_passed(111)
    with pytest.raises(ClockError):
        ahead.has_passed(110)
    assert Clock(109, 9, 100).has_passed(109)
    assert not Clock(108, 9, 100).has_passed(109)
    assert Clock(0, 109, 100).has_passed(109)
