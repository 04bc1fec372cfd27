"""Data versions by schedule, by statement and by file."""

from __future__ import annotations

import datetime
import hashlib
import zoneinfo
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.catalog.engine_pool import check_zone, current_version, queried_version, scheduled_version
from discreet.catalog.model import Schedule
from discreet.errors import InputError, InvariantViolated
from tests.catalog.fakes import FakeEngine, dataset

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
MINUTE, INSTANT = datetime.timedelta(minutes=1), datetime.timedelta(microseconds=1)


def schedule(text: str, zone: str) -> Schedule:
    """Return the schedule of a line such as "weekly 04:00 monday"."""
    kind, at, *day = text.split()
    return Schedule(schedule=kind, at=at, zone=zone, **({"day": day[0]} if day else {}))


@pytest.mark.parametrize(
    ("line", "zone", "now", "version"),
    [
        ("daily 04:00", BERLIN, "2026-11-20T03:00:00+00:00", "2026-11-20T04:00+01:00"),
        ("daily 04:00", BERLIN, "2026-11-21T02:59:59+00:00", "2026-11-20T04:00+01:00"),
        ("daily 04:00", BERLIN, "2026-11-21T03:00:00+00:00", "2026-11-21T04:00+01:00"),
        ("daily 04:00", BERLIN, "2026-11-21T08:30:00+05:30", "2026-11-21T04:00+01:00"),
        ("daily 00:00", NEW_YORK, "2026-11-20T04:59:59+00:00", "2026-11-19T00:00-05:00"),
        ("daily 23:59", NEW_YORK, "2026-12-31T04:58:00+00:00", "2026-12-29T23:59-05:00"),
        ("weekly 04:00 monday", BERLIN, "2026-11-20T12:00:00+01:00", "2026-11-16T04:00+01:00"),
        ("weekly 04:00 friday", BERLIN, "2026-11-20T03:59:00+01:00", "2026-11-13T04:00+01:00"),
        ("weekly 04:00 friday", BERLIN, "2026-11-20T04:00:00+01:00", "2026-11-20T04:00+01:00"),
        ("monthly 06:30", BERLIN, "2026-03-01T06:29:00+01:00", "2026-02-01T06:30+01:00"),
        ("monthly 06:30", BERLIN, "2026-03-31T23:00:00+02:00", "2026-03-01T06:30+01:00"),
        ("monthly 06:30", BERLIN, "2027-01-01T06:29:59+01:00", "2026-12-01T06:30+01:00"),
        ("hourly :15", BERLIN, "2026-11-20T12:14:59+01:00", "2026-11-20T11:15+01:00"),
        ("hourly :15", BERLIN, "2026-11-20T12:15:00+01:00", "2026-11-20T12:15+01:00"),
        ("hourly :15", "Asia/Kolkata", "2026-11-20T06:50:00+00:00", "2026-11-20T12:15+05:30"),
        # The clock skips 02:00 to 03:00: a time in there is taken as if it did not.
        ("daily 02:30", BERLIN, "2026-03-29T03:29:00+02:00", "2026-03-28T02:30+01:00"),
        ("daily 02:30", BERLIN, "2026-03-29T03:30:00+02:00", "2026-03-29T03:30+02:00"),
        ("daily 02:30", NEW_YORK, "2026-03-08T03:30:00-04:00", "2026-03-08T03:30-04:00"),
        ("daily 02:15", LORD_HOWE, "2026-10-04T02:45:00+11:00", "2026-10-04T02:45+11:00"),
        ("hourly :30", BERLIN, "2026-03-29T03:29:00+02:00", "2026-03-29T01:30+01:00"),
        # It shows 02:00 to 03:00 twice: the first time counts, for an hourly schedule both.
        ("daily 02:30", BERLIN, "2026-10-25T02:30:00+02:00", "2026-10-25T02:30+02:00"),
        ("daily 02:30", BERLIN, "2026-10-25T02:30:00+01:00", "2026-10-25T02:30+02:00"),
        ("daily 01:30", NEW_YORK, "2026-11-01T01:45:00-05:00", "2026-11-01T01:30-04:00"),
        ("hourly :30", BERLIN, "2026-10-25T02:29:00+01:00", "2026-10-25T02:30+02:00"),
        ("hourly :30", BERLIN, "2026-10-25T02:30:00+01:00", "2026-10-25T02:30+01:00"),
        # A distance from UTC is that of the moment of the version, not that of now.
        ("daily 00:30", BERLIN, "2026-03-29T12:00:00+02:00", "2026-03-29T00:30+01:00"),
    ],
)
def test_the_version_is_the_last_moment_of_the_schedule(line, zone, now, version):
    """A version begins exactly at its scheduled time, in the zone of the schedule."""
    assert scheduled_version(schedule(line, zone), datetime.datetime.fromisoformat(now)) == version


SCHEDULES = [
    "daily 04:00",
    "daily 00:00",
    "daily 02:30",
    "weekly 02:30 sunday",
    "monthly 00:00",
    "hourly :00",
    "hourly :45",
]
MAX_LENGTH = {"hourly": 1, "daily": 25, "weekly": 7 * 24 + 1, "monthly": 31 * 24 + 1}
"""Hours between two moments, at most."""
MOMENTS = st.datetimes(datetime.datetime(2026, 1, 1), datetime.datetime(2027, 1, 1), timezones=st.just(datetime.UTC))
NEAR_CHANGES = st.builds(
    lambda change, minutes: datetime.datetime.fromisoformat(change) + minutes * MINUTE,
    st.sampled_from(
        ["2026-03-29T01:00+00:00", "2026-10-25T01:00+00:00", "2026-03-08T07:00+00:00", "2026-11-01T06:00+00:00"]
    ),
    st.integers(-1800, 1800),
)


def fault(version, asked: Schedule, early: datetime.datetime, late: datetime.datetime) -> str | None:
    """Return what is wrong with a version at two times, or None."""
    first, last = (datetime.datetime.fromisoformat(version(asked, moment)) for moment in (early, late))
    hours = MAX_LENGTH[asked.schedule]
    if not first <= early < first + datetime.timedelta(hours=hours):
        return "it is not the last moment"
    if last < first:
        return "it runs backwards"
    if version(asked, first) != first.isoformat(timespec="minutes") or version(asked, first - INSTANT) == version(
        asked, first
    ):
        return "it begins at another moment than it says"
    return None


@given(
    st.sampled_from(SCHEDULES),
    st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, "Asia/Kolkata", "UTC"]),
    st.tuples(MOMENTS | NEAR_CHANGES, MOMENTS | NEAR_CHANGES).map(sorted),
)
def test_a_version_lasts_from_its_moment_to_the_next(line, zone, moments):
    """A version never goes back, is constant between scheduled times, and is named after the time when it begins."""
    assert fault(scheduled_version, schedule(line, zone), *moments) is None


def test_versions_follow_local_time_on_days_with_a_clock_change():
    """Scheduled times equal those found by looking at the local time every minute."""
    zone = zoneinfo.ZoneInfo(BERLIN)
    asked = schedule("daily 01:30", BERLIN)
    for start in ("2026-03-28T20:00+00:00", "2026-10-24T20:00+00:00"):
        moment, shown = datetime.datetime.fromisoformat(start), None
        for minutes in range(30 * 60):
            local = (moment + minutes * MINUTE).astimezone(zone)
            if (local.hour, local.minute) == (1, 30):
                shown = local.isoformat(timespec="minutes")
            assert shown is None or scheduled_version(asked, local) == shown


def by_date(asked: Schedule, now: datetime.datetime) -> str:
    """Return a wrong version: the date alone."""
    local = now.astimezone(zoneinfo.ZoneInfo(asked.zone))
    return local.replace(hour=4, minute=0, second=0, microsecond=0).isoformat(timespec="minutes")


def by_the_offset_of_now(asked: Schedule, now: datetime.datetime) -> str:
    """Return a wrong version: with the UTC offset of the current time."""
    local = now.astimezone(zoneinfo.ZoneInfo(asked.zone))
    fixed = now.astimezone(datetime.timezone(local.utcoffset()))
    moment = fixed.replace(hour=4, minute=0, second=0, microsecond=0)
    return (moment if moment <= fixed else moment - datetime.timedelta(days=1)).isoformat(timespec="minutes")


def late(asked: Schedule, now: datetime.datetime) -> str:
    """Return a wrong version: a microsecond late."""
    return scheduled_version(asked, now - INSTANT)


@pytest.mark.parametrize("wrong", [by_date, by_the_offset_of_now, late])
def test_wrong_versions_are_detected(wrong):
    """The check above rejects three planted defects."""
    asked = schedule("daily 04:00", BERLIN)
    moments = [datetime.datetime.fromisoformat(f"2026-03-29T0{hour}:00+00:00") for hour in range(5)]
    moments += [moment - datetime.timedelta(days=1) for moment in moments]
    assert any(fault(wrong, asked, moment, moment + MINUTE) for moment in moments)
    assert not any(fault(scheduled_version, asked, moment, moment + MINUTE) for moment in moments)


def test_a_time_without_a_zone_is_a_bug():
    """Python would interpret a time without a zone in the zone of the machine."""
    with pytest.raises(InvariantViolated):
        scheduled_version(schedule("daily 04:00", BERLIN), datetime.datetime(2026, 11, 20))


@pytest.mark.parametrize("name", ["Berlin", "", "Europe", "../UTC", "/etc/localtime"])
def test_other_names_are_no_time_zones(name):
    """Unknown ones, folders, and paths, which are not read."""
    assert check_zone(name) == "must be a time zone such as Europe/Berlin or UTC"


@pytest.mark.parametrize("name", ["UTC", BERLIN, "Asia/Kolkata"])
def test_time_zones_are_known_by_their_names(name):
    """Zones have the names of the tz database."""
    assert check_zone(name) is None


def test_missing_time_zones_are_reported_with_a_remedy(monkeypatch):
    """A missing tz database is not reported as a mistake in the catalog."""
    monkeypatch.setattr(zoneinfo, "TZPATH", ())

    def nothing(_name):
        raise zoneinfo.ZoneInfoNotFoundError

    monkeypatch.setattr(zoneinfo, "ZoneInfo", nothing)
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    assert (
        check_zone(BERLIN) == "cannot be read: this machine has no time zone data; install it with: pip install tzdata"
    )


@pytest.mark.parametrize(
    ("value", "version"),
    [
        ("2026-11", "2026-11"),
        (17, "17"),
        (-5, "-5"),
        (Decimal("1E+3"), "1000"),
        (Decimal("2.50"), "2.50"),
        (Decimal("1E-7"), "0.0000001"),
        ("x" * 200, "x" * 200),
        (datetime.date(2026, 11, 20), "2026-11-20"),
        (datetime.datetime(2026, 11, 20, 4), "2026-11-20T04:00:00"),
    ],
)
def test_a_query_returns_the_version_as_text(value, version):
    """The version is one value of a type whose text is equal in all engines."""
    assert queried_version(pa.table({"v": [value]})) == version


@pytest.mark.parametrize(
    "answer",
    [
        pa.table({"v": pa.array([], pa.string())}),
        pa.table({"v": ["secret", "secret"]}),
        pa.table({"v": ["secret"], "w": ["secret"]}),
        pa.table({"v": pa.array([None], pa.string())}),
        pa.table({"v": [" "]}),
        pa.table({"v": [1.5]}),
        pa.table({"v": [True]}),
        pa.table({"v": [["secret"]]}),
        pa.table({"v": ["secret" * 40]}),
    ],
    ids=["no row", "rows", "columns", "missing", "blank", "float", "boolean", "nested", "long"],
)
def test_a_query_that_returns_no_version_is_refused(answer):
    """The message is one sentence, and shows nothing of the result."""
    with pytest.raises(InputError, match="the query for the data version must return") as caught:
        queried_version(answer)
    assert "secret" not in str(caught.value)


NOW = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("setting", "version"),
    [
        ("", hashlib.sha256(b"/srv/reads.parquet 17").hexdigest()[:32]),
        ('data_version = "2026-11"', "2026-11"),
        ('data_version = { schedule = "daily", at = "04:00", zone = "UTC" }', "2026-11-20T04:00+00:00"),
        ('data_version = { query = "SELECT 17" }', "17"),
    ],
)
def test_the_version_has_the_declared_source(tmp_path, setting, version):
    """The version is text from a schedule or a query, or a digest of the engine's version, which names paths."""
    engine = FakeEngine(answers={"SELECT 17": pa.table({"v": [17]})}, version="/srv/reads.parquet 17")
    assert current_version(dataset(tmp_path, setting), engine, NOW) == version


def test_a_version_may_hold_the_path_of_any_file(tmp_path):
    """Paths are bytes, and those that are not UTF-8 have surrogates in Python."""
    version = current_version(dataset(tmp_path, ""), FakeEngine(version="/srv/\udcff 17"), NOW)
    assert version == hashlib.sha256(b"/srv/\xff 17").hexdigest()[:32]


def test_the_version_may_be_unknown(tmp_path):
    """A table of a database has no version if the catalog declares none."""
    assert current_version(dataset(tmp_path, ""), FakeEngine(), NOW) is None
