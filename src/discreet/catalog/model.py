"""The catalog as frozen values: the datasets, columns and uses that the data owner permits.

No data and no files are read here; `discreet.catalog.loader` reads a `Catalog` from a file.
"""

import datetime
import difflib
import itertools
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeAlias, cast, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from discreet.catalog.fields import (
    Name,
    Number,
    OwnerQuery,
    Place,
    SettingsTable,
    Statement,
    Text,
    Url,
    Variable,
    forms,
    frozen,
    invalid,
    invalid_parent,
)
from discreet.errors import InputError, NotFound
from discreet.head_request import (
    MAX_BINNED,
    MAX_RUNNING_GROUPS,
    MAX_RUNNING_PERIODS,
    MAX_TABLE_PARTS,
    MONTHS,
    PERIOD_HOURS,
    ColumnType,
    Derived,
    Kind,
    Period,
    RunningPeriod,
    SumBounds,
)


class Schedule(SettingsTable):
    """The times at which the data changes; the data version is the time of the last change."""

    schedule: Literal["hourly", "daily", "weekly", "monthly"] = Field(
        description="Interval at which the data changes; monthly means on the first of the month."
    )
    at: str = Field(
        pattern="^([01][0-9]|2[0-3])?:[0-5][0-9]$",
        description='The time by which new data is complete, such as "04:00"; if hourly, its minute, such as ":15".',
    )
    zone: Text = Field(description="The time zone of that time, such as Europe/Berlin.")
    day: Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"] | None = Field(
        default=None, validate_default=True, description="The day of a weekly schedule, monday to sunday."
    )

    @field_validator("at")
    @classmethod
    def _check_at(cls, at: str, info: ValidationInfo) -> str:
        hourly = at.startswith(":")
        if info.data.get("schedule") == "hourly" and not hourly:
            raise invalid('must be the minute of an hourly schedule, such as ":15"')
        if info.data.get("schedule", "hourly") != "hourly" and hourly:
            raise invalid('must be a time of the day, such as "04:00"')
        return at

    @field_validator("zone")
    @classmethod
    def _check_zone(cls, zone: str, info: ValidationInfo) -> str:
        wrong = info.context.check_zone(zone) if info.context else None
        if wrong is not None:
            raise invalid(wrong)
        return zone

    @field_validator("day")
    @classmethod
    def _check_day(cls, day: str | None, info: ValidationInfo) -> str | None:
        schedule = info.data.get("schedule")
        if schedule == "weekly" and day is None:
            raise invalid_parent('needs the day of a weekly schedule, such as day = "monday"')
        if schedule not in {"weekly", None} and day is not None:
            raise invalid("is for weekly schedules only")
        return day


Version = Annotated[
    Annotated[Text, Tag("~text")] | Annotated[Schedule, Tag("~schedule")] | Annotated[OwnerQuery, Tag("~query")],
    forms('must be text in quotes, { schedule = "daily", at = "04:00", zone = "..." } or { query = "SELECT ..." }'),
]


Label: TypeAlias = str | int | bool | Decimal | datetime.date
MAX_DOMAIN_SIZE = 1_000_000
"""The largest number of items in a known domain, of one column or of several together."""

KINDS: Mapping[ColumnType, Kind] = {
    "text": Kind.TEXT,
    "integer": Kind.INTEGER,
    "decimal": Kind.DECIMAL,
    "boolean": Kind.BOOLEAN,
    "date": Kind.DATE,
    "timestamp": Kind.TIMESTAMP,
    "float": Kind.FLOAT,
}
"""The kind of each column type."""

_MAX_PATTERN_LENGTH = 1_000
_NUMBERS = ("integer", "decimal")
_LABELS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "text": ((str,), "text in quotes"),
    "integer": ((int,), "whole numbers"),
    "decimal": ((int, Decimal), "numbers"),
    "boolean": ((bool,), "true or false"),
    "date": ((datetime.date,), "dates without quotes, such as 2026-11-20"),
    "timestamp": ((datetime.datetime,), "timestamps without quotes and zone, such as 2026-11-20T12:00:00"),
}
"""The Python types of labels in a list and their description, by the type of the column."""


def _check_count(value: Any) -> tuple[Label, ...]:  # noqa: ANN401 - a list of any TOML values
    if not 1 <= len(value) <= MAX_DOMAIN_SIZE:
        raise invalid(f"must list from 1 to {MAX_DOMAIN_SIZE:,} labels")
    return tuple(value)


def _is_label(value: object, type_: str) -> bool:
    types, _ = _LABELS[type_]
    if type(value) not in types or (isinstance(value, Decimal) and not value.is_finite()):
        return False  # not isinstance(): True is not a whole number, and a datetime is not a date
    return not (isinstance(value, datetime.datetime) and value.tzinfo)


class Clip(SettingsTable):
    """The bounds that one user's sum for one item is clipped to."""

    low: Number = Field(description="The smallest sum of one user for one item; a smaller one counts as this.")
    high: Number = Field(description="The largest sum of one user for one item; a larger one counts as this.")
    private_bound: bool = Field(
        default=False,
        description="True if each query chooses its upper bound privately, up to high. low must be 0.",
    )

    @field_validator("high")
    @classmethod
    def _check_high(cls, high: Number, info: ValidationInfo) -> Number:
        if "low" in info.data and high <= info.data["low"]:
            raise invalid("must be above low")
        return high

    @field_validator("private_bound")
    @classmethod
    def _check_private_bound(cls, private: bool, info: ValidationInfo) -> bool:
        if private and info.data.get("low", 0) != 0:
            raise invalid("is for sums of values from 0 on: set low = 0")
        return private


class LabelRange(SettingsTable):
    """Labels from a first to a last one: days, integers, or the starts of periods or bins."""

    first: Any = Field(description="The first label: a date, a timestamp or a whole number.")
    last: Any = Field(description="The last label.")


class LabelFile(SettingsTable):
    """Labels in a file."""

    file: Place = Field(description="A CSV or Parquet file that has a column of the same name.")


Domain = Annotated[
    Annotated[
        tuple[Label, ...],
        PlainValidator(_check_count),
        WithJsonSchema({"type": "array", "minItems": 1, "maxItems": MAX_DOMAIN_SIZE, "uniqueItems": True}),
        Tag("~list"),
    ]
    | Annotated[OwnerQuery, Tag("~query")]
    | Annotated[LabelFile, Tag("~file")]
    | Annotated[LabelRange, Tag("~first")],
    forms('must be a list of labels, { first = ..., last = ... }, { query = "SELECT ..." } or { file = "..." }'),
]


def is_pattern(pattern: str) -> bool:
    """Return True for a regular expression of RE2, which matches in linear time, with at most 1,000 characters."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.match_substring_regex(pa.scalar(""), pattern)
    except pa.ArrowInvalid:
        return False
    return len(pattern) <= _MAX_PATTERN_LENGTH


def _check_period(value: object) -> Period | int:
    whole = type(value) is int and 1 <= value <= MAX_BINNED
    if not whole and value not in get_args(Period):
        raise invalid(f"must be {', '.join(get_args(Period))}, or the width of bins: a whole number of at least 1")
    return cast("Period | int", value)


def starts_between(first: Any, last: Any, period: Period | int) -> Iterator[Label]:  # noqa: ANN401 - dates or whole numbers
    """Yield the starts of all periods or bins, from that of *first* to that of *last*."""
    if isinstance(period, int):
        yield from range(first // period * period, last + 1, period)
    elif period == "hour":
        start = first.replace(minute=0, second=0, microsecond=0)
        for hours in range((last - start) // datetime.timedelta(hours=1) + 1):
            yield start + datetime.timedelta(hours=hours)
    elif period in MONTHS:
        # Months are counted from January of year 0, so that month // 12 is the year.
        months = MONTHS[period]
        start = 12 * first.year + first.month - 1
        for month in range(start - start % months, 12 * last.year + last.month, months):
            yield datetime.date(month // 12, month % 12 + 1, 1)
    else:
        start = first.toordinal() - (first.weekday() if period == "week" else 0)
        for day in range(start, last.toordinal() + 1, 7 if period == "week" else 1):
            yield datetime.date.fromordinal(day)


def _labels_between(between: LabelRange, type_: ColumnType, unit: Period | int | None) -> tuple[Label, ...]:
    """Return the labels of a range: the starts of its days, periods or bins."""
    unit = unit or {"date": "day", "integer": 1}.get(type_)  # type: ignore[assignment]
    if unit is None:
        raise invalid("must be a list: ranges are of dates, of whole numbers and of hours")
    if not (_is_label(between.first, type_) and _is_label(between.last, type_) and between.first <= between.last):
        raise invalid(f"must be from a first to a last label, which is not before it: {_LABELS[type_][1]}")
    # One more than allowed is enough to refuse it: a range may have 10^18 labels.
    return _check_count(list(itertools.islice(starts_between(between.first, between.last, unit), MAX_DOMAIN_SIZE + 1)))


class Column(SettingsTable):
    """The permitted uses of a column; all others are refused."""

    type: ColumnType = Field(description="The type of its values. A float column can only be filtered.")
    of: Text | None = Field(default=None, description="The column of the table that this one is computed from.")
    each: Annotated[
        Period | int | None,
        PlainValidator(_check_period),
        WithJsonSchema(
            {"anyOf": [{"enum": list(get_args(Period))}, {"type": "integer", "minimum": 1, "maximum": MAX_BINNED}]}
        ),
    ] = Field(
        default=None,
        description="The computation: the start of this period, in UTC, or of the bin of this width.",
    )
    group: bool = Field(default=False, description="True if queries may group by it.")
    filter: bool = Field(default=False, description="True if filters (WHERE) may use it.")
    sum: Clip | None = Field(
        default=None,
        description="Allows SUM, and AVG where rows_per_group is declared: each user's sum for an item is clipped to "
        "these bounds, and each value of an average.",
    )
    domain: Domain | None = Field(default=None, description="All possible items, if they are known in advance.")
    groups_per_user: int | None = Field(
        default=None,
        ge=1,
        le=2**31,
        description="The largest number of labels of one user that are counted, if all columns of GROUP BY have one.",
    )

    pattern: Text | None = Field(
        default=None,
        description="A regular expression (RE2) that a whole label of text must match; other items are not shown.",
    )

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None, info: ValidationInfo) -> str | None:
        if pattern is not None and not (info.data.get("group") and info.data.get("type") == "text"):
            raise invalid("is for text columns that may be grouped: set group = true")
        if pattern is not None and not is_pattern(pattern):
            raise invalid("must be a regular expression of RE2 with at most 1,000 characters, such as '[a-z-]{1,40}'")
        return pattern

    @field_validator("each")
    @classmethod
    def _check_each(cls, each: Period | int, info: ValidationInfo) -> Period | int:
        type_ = info.data.get("type")
        kind = Derived("", "", each).kind  # it depends on nothing but `each`
        if type_ is not None and KINDS[cast("ColumnType", type_)] is not kind:
            raise invalid(f"needs a column declared {next(name for name in KINDS if KINDS[name] is kind)}")
        return each

    @field_validator("group")
    @classmethod
    def _check_group(cls, group: bool, info: ValidationInfo) -> bool:
        if group and info.data.get("type") == "float":
            raise invalid("must not be true: engines disagree on which floating-point numbers are equal")
        return group

    @field_validator("sum")
    @classmethod
    def _check_sum(cls, clip: Clip | None, info: ValidationInfo) -> Clip | None:
        type_ = info.data.get("type")
        if clip is not None and info.data.get("of") is not None:
            raise invalid("is for columns of the table, not for computed ones")
        if clip is not None and type_ is not None and type_ not in _NUMBERS:
            raise invalid("is for integer and decimal columns only")
        if clip is not None and type_ == "integer" and {clip.low.denominator, clip.high.denominator} != {1}:
            raise invalid("must have whole bounds, because the column holds whole numbers")
        return clip

    @field_validator("domain")
    @classmethod
    def _check_domain(cls, domain: Domain | None, info: ValidationInfo) -> Domain | None:
        if domain is not None and info.data.get("group") is False:
            raise invalid("is for columns that may be grouped: set group = true")
        type_ = info.data.get("type", "")
        period = info.data.get("each")
        if type_ in _LABELS and isinstance(domain, LabelRange):
            return _labels_between(domain, type_, period)
        if not isinstance(domain, tuple) or type_ not in _LABELS:
            return domain
        if not all(_is_label(label, type_) for label in domain):
            raise invalid(f"must list {_LABELS[type_][1]}, because the column is declared {type_}")
        if period is not None and any(label not in starts_between(label, label, period) for label in domain):
            raise invalid("must list the starts of periods or bins")
        if len(set(domain)) < len(domain):
            raise invalid("must not list a label twice")
        if type_ == "decimal":  # Arrow needs one type
            return tuple(Decimal(label) if isinstance(label, int) else label for label in domain)
        return domain

    @field_validator("groups_per_user")
    @classmethod
    def _check_groups_per_user(cls, groups: int | None, info: ValidationInfo) -> int | None:
        if groups is not None and info.data.get("group") is False:
            raise invalid("is for columns that may be grouped: set group = true")
        return groups

    @model_validator(mode="after")
    def _check_use(self) -> "Column":
        if not (self.group or self.filter or self.sum):
            raise invalid("allows nothing; set group, filter or sum, or leave the column out")
        if (self.of is None) != (self.each is None):
            raise invalid('needs both of and each, such as of = "at" and each = "day", or neither')
        return self

    @property
    def kind(self) -> Kind:
        """The kind of value that the column holds."""
        return KINDS[self.type]


class ImpliedColumn(Column):
    """A coarser period of a declared date or timestamp column, which queries may group by as by that column.

    It is not written in catalogs. Its labels are public if those of the declared column are listed, otherwise unknown.
    """

    source: Text = Field(description="The declared column, with which it is granted.")


def _implied_periods(columns: Mapping[str, Column], user: str) -> dict[str, ImpliedColumn]:
    """Return the periods of all date and timestamp columns of GROUP BY that the catalog does not declare, by name."""
    names = {name.casefold() for name in (user, *columns, *(column.of for column in columns.values() if column.of))}
    periods = get_args(Period)
    declared = {((column.of or name).casefold(), column.each) for name, column in columns.items()}
    undeclared = {}
    # Listed labels first: of equal periods of one column of the table, date_trunc takes the first.
    for name, column in sorted(columns.items(), key=lambda pair: not isinstance(pair[1].domain, tuple)):
        if column.type not in {"date", "timestamp"} or not column.group:
            continue
        own = column.each or ("day" if column.type == "date" else None)
        # A week is in two months at times, so neither is a period of the other.
        coarser = periods if own is None else () if own == "week" else periods[periods.index(own) + 1 :]
        for period in coarser:
            implied = f"{name}_{period}"
            if implied.casefold() in names or ((column.of or name).casefold(), period) in declared:
                continue
            labels = column.domain if isinstance(column.domain, tuple) else None
            undeclared[implied] = ImpliedColumn.model_construct(
                type="timestamp" if period == "hour" else "date",
                of=column.of or name,
                each=period,
                group=True,
                filter=column.filter,
                sum=None,
                domain=labels and tuple(dict.fromkeys(next(starts_between(at, at, period)) for at in sorted(labels))),
                groups_per_user=column.groups_per_user,
                source=name,
            )
    return undeclared


def _check_column_name(column: str, info: ValidationInfo) -> str:
    if column.casefold() == info.data.get("user", "").casefold():
        raise invalid("is the user column, which may not be queried; leave it out")
    return column


class EngineSettings(SettingsTable):
    """The settings of an engine, which several datasets may use."""

    url: Url = Field(description="The URL, such as postgresql://reader@db:5432/warehouse, without a password.")
    password_env: Variable | None = Field(
        default=None, description="The environment variable that holds the password, if the engine needs one."
    )
    timeout_seconds: int = Field(
        default=60, ge=1, le=86_400, description="The time limit of a query, and of its wait for a connection."
    )
    connections: int = Field(
        default=4,
        ge=1,
        le=100,
        description="The largest number of queries that run at once; four times as many may wait.",
    )


class RunningTable(SettingsTable):
    """A stream of the users so far of every item, refreshed period by period (docs/running-counts.md)."""

    items: Annotated[
        tuple[Text, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
    ] = Field(min_length=1, description="The columns that together name an item.")
    where: Text | None = Field(default=None, description="The filter; it is part of the stream.")
    column: Text = Field(
        description="The column of dates or timestamps of the arrival of a row; rows never get a past period."
    )
    each: RunningPeriod = Field(default="day", description="The length of a period, in UTC.")
    first: Text = Field(description="The start of the first period: 2026-12-01, or 2026-12-01 05:00 for hours.")
    periods: int = Field(ge=1, le=MAX_RUNNING_PERIODS, description="The number of periods.")
    groups_per_user: int | None = Field(
        default=None,
        ge=1,
        le=MAX_RUNNING_GROUPS,
        description="The first items of each user that count; without it, bounds are chosen and counts corrected.",
    )
    pilot: Text | None = Field(
        default=None, description="The start of as many earlier periods, from which bounds on users are chosen."
    )
    epsilon: Number = Field(description="Epsilon of all periods together.")
    delta: Number = Field(default=Fraction(1, 10**8), description="Delta of all periods together.")
    answers: Place | None = Field(
        default=None,
        description="The Parquet file of the answers, the state of a stream that discreet running refreshes.",
    )
    account: Text | None = Field(
        default=None,
        validate_default=True,
        description="The account that pays for a stream that a service refreshes: one without a parent or a period.",
    )

    @field_validator("account")
    @classmethod
    def _check_account(cls, account: str | None, info: ValidationInfo) -> str | None:
        if (account is None) == (info.data.get("answers") is None):
            raise invalid_parent(
                "needs either answers, a file, or the account of a service" + (", not both" if account else "")
            )
        periods = info.data.get("periods", 0)
        if account is not None and periods > MAX_TABLE_PARTS:
            raise invalid_parent(
                f"has an account, so it has at most {MAX_TABLE_PARTS} periods, which are parts of a table"
            )
        return account


class Dataset(SettingsTable):
    """A table whose rows belong to users, and the permitted queries of it."""

    description: Text | None = Field(default=None, description="A description for analysts.")
    engine: str | None = Field(default=None, description="The name of the declared engine that holds it.")
    source: Place | None = Field(
        default=None,
        validate_default=True,
        description="Its files, without an engine: a path, a pattern or a URL; relative to the folder of the catalog.",
    )
    table: Text | None = Field(
        default=None, description="The table: with its schema in an engine, or one of several in a DuckDB file."
    )
    view: Statement | None = Field(
        default=None,
        validate_default=True,
        description="A SELECT in place of a table. It names the files of a source as source.",
    )
    user: Text = Field(
        description="The column that identifies users. It cannot be queried; rows without a user are left out."
    )
    groups_per_user: int | None = Field(
        default=None,
        ge=1,
        le=2**31,
        description="The largest number of groups of one user that are counted; of more, random ones are.",
    )
    rows_per_group: int | None = Field(
        default=None,
        ge=1,
        le=2**31,
        description="Allows COUNT(*), AVG and quantiles: the largest number of rows of one user that count in a group.",
    )
    missing_labels: Literal["drop", "keep"] = Field(
        default="drop", description="Rows without a label are left out (drop) or are a group of their own (keep)."
    )
    data_version: Version | None = Field(
        default=None,
        description="The version of the data; the same query of the same version is free. By default that of the "
        "files; for engines none.",
    )
    retention_days: int | None = Field(
        default=None, ge=1, le=36_500, description="The number of days after which rows are deleted."
    )
    min_users: int | None = Field(
        default=None,
        ge=1,
        le=2**31,
        description="Items are shown only if the lower end of the 95 % interval of their users is at least this.",
    )
    max_head_limit: int | None = Field(default=None, ge=1, le=10_000_000, description="The largest head limit.")
    max_k: int | None = Field(default=None, ge=1, le=10_000_000, description="The largest k of a top k.")
    columns: Annotated[
        Mapping[Annotated[Text, AfterValidator(_check_column_name)], Column],
        Field(min_length=1),
        AfterValidator(frozen),
    ] = Field(
        description="The permitted uses of each column; a draft has them behind #, for you to choose. Other columns do "
        "not exist for analysts."
    )
    running: Annotated[Mapping[Name, RunningTable], AfterValidator(frozen)] = Field(
        default_factory=dict, validate_default=True, description="Streams of running counts, by name."
    )

    @field_validator("engine")
    @classmethod
    def _check_engine(cls, engine: str | None, info: ValidationInfo) -> str | None:
        if info.context and engine not in info.context.engines:
            raise invalid(f"must be one of the declared engines: {', '.join(sorted(info.context.engines)) or 'none'}")
        return engine

    @field_validator("source")
    @classmethod
    def _check_source(cls, source: str | None, info: ValidationInfo) -> str | None:
        if "engine" in info.data and (info.data["engine"] is None) == (source is None):
            raise invalid_parent("needs either an engine or a source" + (", not both" if source else ""))
        return source

    @field_validator("view")
    @classmethod
    def _check_view(cls, view: str | None, info: ValidationInfo) -> str | None:
        if "table" not in info.data:
            return view
        table = info.data["table"]
        if table is not None and view is not None:
            raise invalid_parent("needs either a table or a view, not both")
        if table is None and view is None and info.data.get("engine") is not None and "source" in info.data:
            raise invalid_parent("needs either a table or a view")
        return view

    @field_validator("max_k")
    @classmethod
    def _check_max_k(cls, max_k: int | None, info: ValidationInfo) -> int | None:
        head_limit = info.data.get("max_head_limit")
        if max_k is not None and head_limit is not None and max_k > head_limit:
            raise invalid("must be at most max_head_limit")
        return max_k

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: Mapping[str, Column], info: ValidationInfo) -> Mapping[str, Column]:
        user = info.data.get("user", "").casefold()
        for name, column in columns.items():
            if column.of is not None and column.of.casefold() == user:
                raise invalid(f"must not compute {name!r} from the user column, which may not be queried")
        return frozen({**columns, **_implied_periods(columns, user)})

    @field_validator("running")
    @classmethod
    def _check_running(cls, running: Mapping[str, RunningTable], info: ValidationInfo) -> Mapping[str, RunningTable]:
        days = info.data.get("retention_days")
        patterns = {column.casefold() for column, used in info.data.get("columns", {}).items() if used.pattern}
        for name, stream in running.items():
            if days is not None and days * 24 < stream.periods * PERIOD_HOURS[stream.each]:
                raise invalid(
                    f"must not hold {name!r}, which is longer than retention_days: rows would vanish during it"
                )
            # The list of items is what was published: an item that is not shown would have to stay in it unseen.
            settings = ["min_users"] if info.data.get("min_users") is not None else []
            settings += [f"the pattern of {item!r}" for item in stream.items if item.casefold() in patterns]
            if settings:
                raise invalid(
                    f"must not hold {name!r}: running counts would show items that {settings[0]} leaves out; "
                    "declare the stream in a dataset of the same table without it"
                )
        return running

    @property
    def declared(self) -> tuple[str, ...]:
        """The columns that the catalog declares, without implied ones."""
        return tuple(name for name, column in self.columns.items() if not isinstance(column, ImpliedColumn))

    @property
    def derived(self) -> tuple[Derived, ...]:
        """The columns that are computed from columns of the table."""
        columns = self.columns.items()
        return tuple(Derived(name, c.of, c.each) for name, c in columns if c.of is not None and c.each is not None)

    def period(self, name: str, period: Period) -> str | None:
        """Return the column that holds the start of the period of another column, as date_trunc(each, name) does.

        Args:
            name: a column of the catalog, or the column of the table that it is computed from; its case is ignored.

        Returns:
            the column as the catalog spells it, or None if the catalog declares none.
        """
        folded = name.casefold()
        of = {column.casefold(): (entry.of or column).casefold() for column, entry in self.columns.items()}
        source = of.get(folded, folded)
        for column, entry in self.columns.items():
            own = entry.each or ("day" if entry.type == "date" else None)
            if of[column.casefold()] == source and own == period:
                return column
        return None

    def groups_of(self, items: tuple[str, ...]) -> int | None:
        """Return the bound on the groups of one user that are counted when grouping by *items*, or None."""
        # A user with a labels in one column and b in another is in at most a * b groups of both.
        parts = [self.columns[item].groups_per_user for item in items]
        bounds = [self.groups_per_user, None if None in parts or not parts else math.prod(filter(None, parts))]
        return min((bound for bound in bounds if bound is not None), default=None)

    def segment_error(self, column: str) -> str | None:
        """Return an error message if the labels of *column* cannot be segments of a query with 'each', or None."""
        declared = self.columns[column]
        if declared.groups_per_user != 1:
            return f"column {column!r} cannot be in 'each': the catalog does not declare groups_per_user = 1 for it"
        if declared.domain is None:
            return f"column {column!r} cannot be in 'each': the catalog does not list its labels (domain)"
        if isinstance(declared.domain, OwnerQuery):  # whether a segment is queried must not depend on one user's rows
            return f"column {column!r} cannot be in 'each': its labels are read by a query; list them in the catalog"
        return None

    @property
    def groupable(self) -> tuple[str, ...]:
        """The columns allowed in GROUP BY."""
        return tuple(name for name, column in self.columns.items() if column.group)

    @property
    def filterable(self) -> tuple[str, ...]:
        """The columns allowed in filters."""
        return tuple(name for name, column in self.columns.items() if column.filter)

    @property
    def summable(self) -> tuple[str, ...]:
        """The columns allowed in SUM and AVG."""
        return tuple(name for name, column in self.columns.items() if column.sum)

    def summed(self, column: str, scale: int = 0) -> SumBounds:
        """Return the column to sum, with its bounds.

        Args:
            scale: digits after the decimal point of the column in its table, at least 0.

        Raises:
            InputError: the column may not be summed, or its bounds have more digits after the point than it has.
        """
        clip = self.columns[column].sum if column in self.columns else None
        if clip is None:
            raise InputError(f"column {column!r} may not be summed")
        if {(bound * 10**scale).denominator for bound in (clip.low, clip.high)} != {1}:
            raise InputError(
                f"the bounds for sums of column {column!r} have more digits after the decimal point than the column: "
                f"{scale}"
            )
        return SumBounds(clip.low, clip.high, scale, clip.private_bound, column)


class Catalog(SettingsTable):
    """The datasets that may be queried, as declared by the data owner."""

    engines: Annotated[Mapping[Name, EngineSettings], AfterValidator(frozen)] = Field(
        default_factory=dict, validate_default=True, description="The engines that hold datasets, by name."
    )
    datasets: Annotated[Mapping[Name, Dataset], Field(min_length=1), AfterValidator(frozen)] = Field(
        description="The datasets that analysts may query, by their names in FROM."
    )

    @field_validator("datasets")
    @classmethod
    def _check_streams(cls, datasets: Mapping[str, Dataset]) -> Mapping[str, Dataset]:
        names = [name.casefold() for dataset in datasets.values() for name in dataset.running]
        for name in names:
            if names.count(name) > 1:
                raise invalid(f"must not declare two streams {name!r}, whatever their case: each name is one stream")
        return datasets

    @property
    def streams(self) -> dict[str, tuple[str, RunningTable]]:
        """The dataset and the declaration of each stream of running counts, by its name."""
        return {
            name: (dataset, declared)
            for dataset, settings in self.datasets.items()
            for name, declared in settings.running.items()
        }

    def find(self, name: str) -> tuple[str, Dataset]:
        """Return the declared spelling of a dataset's name, and the dataset; *name* may differ in case.

        Raises:
            NotFound: there is no such dataset.
        """
        folded = {dataset.casefold(): dataset for dataset in self.datasets}
        if name.casefold() in folded:
            declared = folded[name.casefold()]
            return declared, self.datasets[declared]
        nearest = difflib.get_close_matches(name.casefold(), folded, n=1)
        hint = f"; did you mean {folded[nearest[0]]!r}?" if nearest else ""
        raise NotFound(f"there is no dataset {name!r}{hint}")
