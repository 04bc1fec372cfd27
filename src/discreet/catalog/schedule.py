"""How a data version is declared: as text, as a query, or by the times at which the data changes."""

from typing import Annotated, Literal

from pydantic import Field, Tag, ValidationInfo, field_validator

from discreet.catalog.settings import OwnersQuery, Table, Text, mistake, mistake_above, ways


class Schedule(Table):
    """When the data changes: the version is the last such moment."""

    schedule: Literal["hourly", "daily", "weekly", "monthly"] = Field(
        description="How often the data changes; a monthly schedule is for the first of the month."
    )
    at: str = Field(
        pattern="^([01][0-9]|2[0-3])?:[0-5][0-9]$",
        description='When the new data is all there, such as "04:00"; if hourly, the minute, such as ":15".',
    )
    zone: Text = Field(description="The time zone of that clock, such as Europe/Berlin.")
    day: Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"] | None = Field(
        default=None, validate_default=True, description="The day of a weekly schedule."
    )

    @field_validator("at")
    @classmethod
    def _check_at(cls, at: str, info: ValidationInfo) -> str:
        hourly = at.startswith(":")
        if info.data.get("schedule") == "hourly" and not hourly:
            raise mistake('must be the minute of an hourly schedule, such as ":15"')
        if info.data.get("schedule", "hourly") != "hourly" and hourly:
            raise mistake('must be a time of the day, such as "04:00"')
        return at

    @field_validator("zone")
    @classmethod
    def _check_zone(cls, zone: str, info: ValidationInfo) -> str:
        wrong = info.context.check_zone(zone) if info.context else None
        if wrong is not None:
            raise mistake(wrong)
        return zone

    @field_validator("day")
    @classmethod
    def _check_day(cls, day: str | None, info: ValidationInfo) -> str | None:
        schedule = info.data.get("schedule")
        if schedule == "weekly" and day is None:
            raise mistake_above('needs the day of a weekly schedule, such as day = "monday"')
        if schedule not in {"weekly", None} and day is not None:
            raise mistake("is for weekly schedules only")
        return day


Version = Annotated[
    Annotated[Text, Tag("~text")] | Annotated[Schedule, Tag("~schedule")] | Annotated[OwnersQuery, Tag("~query")],
    ways('must be text in quotes, { schedule = "daily", at = "04:00", zone = "..." } or { query = "SELECT ..." }'),
]
