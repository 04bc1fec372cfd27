"""Data versions: public text that names a state of the data, from the clock or an owner's query, never from rows."""

from __future__ import annotations

import datetime
import hashlib
import zoneinfo
from decimal import Decimal
from typing import TYPE_CHECKING

from discreet.catalog.fields import OwnerQuery
from discreet.catalog.model import Schedule
from discreet.errors import InputError, InvariantViolated

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from discreet.catalog.model import Dataset
    from discreet.engines.base import Engine

LONGEST = 200
"""Characters in a version."""

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def current_version(dataset: Dataset, engine: Engine, now: datetime.datetime) -> str | None:
    """Return the version of a dataset's data; None if the catalog declares none and the engine knows none.

    Args:
        now: with a time zone.

    Raises:
        InputError: the owner's query does not return one text, number, date or timestamp.
        EngineError: the engine failed.
    """
    match dataset.data_version:
        case Schedule() as schedule:
            return scheduled_version(schedule, now)
        case OwnerQuery(query=statement):
            return queried_version(engine.fetch(statement))
        case None:
            return _digest(engine.data_version())
        case text:
            return text


def _digest(version: str | None) -> str | None:
    """Return a short name for an engine's version, which may hold paths and be long."""
    return None if version is None else hashlib.sha256(version.encode(errors="surrogateescape")).hexdigest()[:32]


def scheduled_version(schedule: Schedule, now: datetime.datetime) -> str:
    """Return the last scheduled change up to *now*, in the schedule's zone: "2026-11-20T04:00+01:00".

    A local time that daylight saving skips is read as if the clock had not been put forward: 02:30 becomes 03:30. Of a
    local time that occurs twice, a schedule means the first, an hourly one both. The offset from UTC is part of the
    text, so that two changes never have the same version.

    Args:
        now: with a time zone.
    """
    if now.tzinfo is None:
        raise InvariantViolated("a version needs a time with a time zone")
    zone = zoneinfo.ZoneInfo(schedule.zone)
    changes = (moment.astimezone(datetime.UTC) for moment in _changes(schedule, now.astimezone(zone), zone))
    return max(moment for moment in changes if moment <= now).astimezone(zone).isoformat(timespec="minutes")


def _changes(schedule: Schedule, local: datetime.datetime, zone: zoneinfo.ZoneInfo) -> Iterator[datetime.datetime]:
    """Yield the scheduled changes around *local*: at least one before it, and perhaps later ones."""
    hour, minute = schedule.at.split(":")
    if schedule.schedule == "hourly":
        this = local.replace(minute=int(minute), second=0, microsecond=0, tzinfo=None)
        for hours in range(-3, 2):  # clocks are put forward or back by up to two hours
            for fold in (0, 1):
                yield (this + datetime.timedelta(hours=hours)).replace(fold=fold, tzinfo=zone)
        return
    for days in range(-32, 2):
        date = local.date() + datetime.timedelta(days=days)
        if _is_day(schedule, date):
            yield datetime.datetime.combine(date, datetime.time(int(hour), int(minute)), zone)


def _is_day(schedule: Schedule, date: datetime.date) -> bool:
    match schedule.schedule:
        case "weekly":
            return _DAYS[date.weekday()] == schedule.day
        case "monthly":
            return date.day == 1
    return True


def queried_version(answer: pa.Table) -> str:
    """Return the version from the result of an owner's query.

    Raises:
        InputError: it is not one row with one column that holds text, an exact number, a date or a timestamp.
    """
    if answer.shape != (1, 1):
        raise InputError("the query for the data version must return one row with one column")
    match answer.column(0)[0].as_py():
        case str() as text if text.strip():
            version = text
        case int() | Decimal() as number if not isinstance(number, bool):
            version = f"{number:f}" if isinstance(number, Decimal) else str(number)
        case datetime.date() as moment:
            version = moment.isoformat()
        case _:
            raise InputError(
                "the query for the data version must return text, a whole or decimal number, a date or a moment"
            )
    if len(version) > LONGEST:
        raise InputError(f"the query for the data version must return at most {LONGEST} characters")
    return version


def check_zone(name: str) -> str | None:
    """Return what is wrong with the name of a time zone, or None."""
    try:
        zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, no name at all, a folder of zones
        if not zoneinfo.available_timezones():
            return "cannot be read: this machine has no time zone data; install it with: pip install tzdata"
        return "must be a time zone such as Europe/Berlin or UTC"
    return None
