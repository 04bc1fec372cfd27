"""Which state of the data it is: a public text, by the clock or a statement of the owner's; it depends on no row."""

from __future__ import annotations

import datetime
import hashlib
import zoneinfo
from decimal import Decimal
from typing import TYPE_CHECKING

from discreet.catalog.schedule import Schedule
from discreet.catalog.settings import OwnersQuery
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
    """The version of a dataset's data.

    Args:
        dataset: says how it is known.
        engine: where the data is.
        now: with a time zone.

    Returns:
        None if nobody says it: the dataset has no version, and its engine knows none.

    Raises:
        InputError: the owner's statement does not return one text, number, date or moment.
        EngineError: the engine failed.
    """
    match dataset.data_version:
        case Schedule() as schedule:
            return scheduled_version(schedule, now)
        case OwnersQuery(query=statement):
            return queried_version(engine.fetch(statement))
        case None:
            return _digested(engine.data_version())
        case text:
            return text


def _digested(told: str | None) -> str | None:
    """What an engine tells, which holds paths and may be long, as a name that can be shown."""
    return None if told is None else hashlib.sha256(told.encode(errors="surrogateescape")).hexdigest()[:32]


def scheduled_version(schedule: Schedule, now: datetime.datetime) -> str:
    """The last moment up to *now* at which the data changed, in the schedule's zone: "2026-11-20T04:00+01:00".

    A time that the clock skips is taken as if it had not been put forward: 02:30 is 03:30 then. Of a time that the
    clock shows twice, a schedule means the first; an hourly one means both. The distance from UTC is part of the text,
    so that two moments never get one version.

    Args:
        schedule: when the data changes.
        now: with a time zone.
    """
    if now.tzinfo is None:
        raise InvariantViolated("a version needs a moment with a time zone")
    zone = zoneinfo.ZoneInfo(schedule.zone)
    moments = (moment.astimezone(datetime.UTC) for moment in _moments(schedule, now.astimezone(zone), zone))
    return max(moment for moment in moments if moment <= now).astimezone(zone).isoformat(timespec="minutes")


def _moments(schedule: Schedule, local: datetime.datetime, zone: zoneinfo.ZoneInfo) -> Iterator[datetime.datetime]:
    """When the data changes around *local*: at least once before it, and perhaps after it."""
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
    """The version that a statement of the owner's returned.

    Raises:
        InputError: it is not one row with one column that holds text, a number without rounding, a date or a moment.
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
    """What is wrong with the name of a time zone, or None."""
    try:
        zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, no name at all, a folder of zones
        if not zoneinfo.available_timezones():
            return "cannot be read: this machine has no time zone data; install it with: pip install tzdata"
        return "must be a time zone such as Europe/Berlin or UTC"
    return None
