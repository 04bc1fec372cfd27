"""The engines of a catalog's datasets: opened once, checked against the catalog, and bound to a data version."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import threading
import zoneinfo
from decimal import Decimal
from typing import TYPE_CHECKING

from discreet.catalog.domains import known_domain
from discreet.catalog.fields import OwnerQuery
from discreet.catalog.model import KINDS, Schedule
from discreet.engines.base import RequestQueue, check_private_bounds
from discreet.errors import (
    EngineError,
    EngineTimeout,
    EngineUnreachable,
    InexactHead,
    InputError,
    InvariantViolated,
    UnfitData,
    UnknownColumn,
)
from discreet.head_request import Kind
from discreet.secrets import read_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from discreet.catalog.model import Catalog, Dataset
    from discreet.engines.base import Engine
    from discreet.head_request import Derived, HeadRequest
    from discreet.values import ExactHead, UserItemPairs

_HELD = {kind: type_ for type_, kind in KINDS.items()}


def open_dataset(catalog: Catalog, name: str, environment: Mapping[str, str]) -> Engine:
    """Open the engine of a dataset; the caller closes it.

    Args:
        name: the name of the dataset, as spelled in the catalog.

    Raises:
        InputError: there is no such table, or a password is missing.
        EngineError: the engine cannot be reached.
    """
    from discreet.engines.opening import open_engine

    dataset = catalog.datasets[name]
    if dataset.engine is None:
        return open_engine(dataset.source, table=dataset.table, view=dataset.view)
    settings = catalog.engines[dataset.engine]
    return open_engine(
        settings.url,
        table=dataset.table,
        view=dataset.view,
        password=read_variable(settings.password_env, environment),
        timeout_seconds=settings.timeout_seconds,
    )


def schema_error(dataset: Dataset, held: Mapping[str, Kind]) -> str | None:
    """Return an error message if the user column or a declared column does not fit its table, or None."""
    wrong = (user_error(dataset.user, held), *(column_error(dataset, name, held) for name in dataset.columns))
    return next(filter(None, wrong), None)


def user_error(user: str, held: Mapping[str, Kind]) -> str | None:
    """Return an error message if a table's column cannot be the user column, or None."""
    if user not in held:
        return str(UnknownColumn(user, held, "user column"))
    if held[user] is Kind.FLOAT:
        return f"user column {user!r} holds floating-point numbers, and engines disagree on which of those are equal"
    if held[user] is Kind.OTHER:
        return f"user column {user!r} has a type that cannot tell users apart; cast it to text in a view"
    return None


def column_error(dataset: Dataset, name: str, held: Mapping[str, Kind]) -> str | None:
    """Return an error message if a declared column does not fit its table, or None."""
    column = dataset.columns[name]
    made = next((made for made in dataset.derived if made.name == name), None)
    if made is not None:
        return _derived_error(made, held)
    if name not in held:
        return str(UnknownColumn(name, held))
    if held[name] is column.kind or (held[name] is Kind.UNTYPED and column.type == "text"):
        return None
    if held[name] is Kind.UNTYPED:
        return (
            f"column {name!r} is declared {column.type}, but CSV files hold text; cast it in a view, or write Parquet"
        )
    there = _HELD.get(held[name], "values of a type that cannot be queried")
    return f"column {name!r} is declared {column.type}, but the table holds {there}"


def _derived_error(made: Derived, held: Mapping[str, Kind]) -> str | None:
    if made.name in held:
        return f"column {made.name!r} is computed, but the table has a column of this name; give it another one"
    return made.type_error(held[made.column]) if made.column in held else str(UnknownColumn(made.column, held))


_PAIRS_OPTION = {"pinot": None, "trino": "scratch=", "clickhouse": "temporary=true"}
"""The URL option that enables pair queries, by scheme; None if unsupported. Other engines always support them."""


class EnginePool:
    """The open engines of a catalog, with the domains and column scales read from them. It is thread-safe.

    Messages of errors raised here name no file, host or undeclared column, since analysts see them; their causes do.

    Args:
        clock: returns the time with its zone, for data versions on a schedule.
        environment: environment variables, for passwords of engines.
        open_: opens the engine of a dataset, like `open_dataset`.
    """

    def __init__(
        self,
        catalog: Catalog,
        clock: Callable[[], datetime.datetime],
        environment: Mapping[str, str],
        open_: Callable[[Catalog, str, Mapping[str, str]], Engine] = open_dataset,
    ) -> None:
        self.catalog = catalog
        self._open_dataset = open_
        self._clock = clock
        self._environment = environment
        self._locks = {name: threading.Lock() for name in catalog.datasets}  # a slow engine does not delay the others
        shared = {name: RequestQueue(e.connections, e.timeout_seconds) for name, e in catalog.engines.items()}
        self._queues = {
            name: RequestQueue() if dataset.engine is None else shared[dataset.engine]
            for name, dataset in catalog.datasets.items()
        }
        self._engines: dict[str, Engine] = {}
        self._scales: dict[tuple[str, str], int] = {}
        self._domains: dict[tuple[str, tuple[str, ...]], tuple[str | None, pa.Table | None]] = {}

    def engine(self, name: str) -> Engine:
        """Return the engine of a dataset, opened at its first use.

        Args:
            name: the dataset's name as spelled in the catalog; the same in all methods.

        Raises:
            EngineError: the engine cannot be reached, or the table does not fit the catalog.
        """
        if name not in self._engines:
            with self._locks[name]:
                if name not in self._engines:
                    with _hide_cause(name):
                        self._engines[name] = self._open(name)
        return self._engines[name]

    def queue(self, name: str) -> RequestQueue:
        """Return the request queue of a dataset's engine; datasets of one engine share it."""
        return self._queues[name]

    def version(self, name: str) -> str | None:
        """Return the current version of a dataset's data, or None if it is unknown.

        Raises:
            EngineError: the engine failed, or the owner's statement does not return a version.
        """
        with _hide_cause(name):
            return current_version(self.catalog.datasets[name], self.engine(name), self._clock())

    def has_pairs(self, name: str) -> bool:
        """Return True if a dataset's engine supports pair queries; decided by its URL if it cannot be opened now."""
        try:
            return self.engine(name).has_pairs
        except (EngineError, InputError):
            dataset = self.catalog.datasets[name]
            url = dataset.source or "" if dataset.engine is None else self.catalog.engines[dataset.engine].url
            option = _PAIRS_OPTION.get(url.partition("://")[0], "")
            return option is not None and option in url

    def scale(self, name: str, column: str) -> int:
        """Return the number of decimal places of a column; cached, so that a busy engine does not delay it.

        Raises:
            EngineError: the engine failed.
        """
        if (name, column) not in self._scales:
            with _hide_cause(name):
                self._scales[name, column] = self.engine(name).scale(column)
        return self._scales[name, column]

    def domain(self, name: str, items: tuple[str, ...]) -> pa.Table | None:
        """Return all possible items if the catalog lists the labels of all item columns; cached until the data changes.

        Raises:
            EngineError: the engine failed, or the declared domain cannot be used.
        """
        dataset = self.catalog.datasets[name]
        if not items or any(dataset.columns[item].domain is None for item in items):
            return None
        version = None if _is_written_out(dataset, items) else self.version(name)
        kept = self._domains.get((name, items))
        if kept is None or kept[0] != version or (version is None and not _is_written_out(dataset, items)):
            with _hide_cause(name):
                kept = version, known_domain(dataset, items, self.engine(name))
            self._domains[name, items] = kept
        return kept[1]

    def close(self) -> None:
        """Close all engines."""
        while self._engines:
            self._engines.popitem()[1].close()

    def _open(self, name: str) -> Engine:
        opened = self._open_dataset(self.catalog, name, self._environment)
        try:
            wrong = schema_error(self.catalog.datasets[name], opened.columns())
        except BaseException:
            opened.close()
            raise
        if wrong:
            opened.close()
            raise InputError(wrong)
        return opened


def _is_written_out(dataset: Dataset, items: tuple[str, ...]) -> bool:
    """Return True if the catalog itself lists all labels, so that they do not change with the data."""
    return all(isinstance(dataset.columns[item].domain, tuple) for item in items)


@contextlib.contextmanager
def _hide_cause(name: str) -> Iterator[None]:
    """Replace errors that only the data owner can fix by an error that does not show analysts the engine."""
    try:
        yield
    except (InputError, EngineError, OSError) as error:
        raise EngineError(
            f"the dataset {name!r} cannot be queried now: its owner should run discreet catalog check"
        ) from error


_SENTENCES: Mapping[type[EngineError], str] = {
    EngineUnreachable: "the engine of the dataset {!r} cannot be reached now; nothing was queried",
    EngineTimeout: "the engine of the dataset {!r} did not answer in time",
    UnfitData: "the dataset {!r} holds a value that is not what its owner declared it to be",
    InexactHead: "the engine of the dataset {!r} answered, but its answer is not proven exact",
    EngineError: "the engine of the dataset {!r} failed",
}
"""Messages for analysts. The engine's message, which may name files and hosts, is the cause of the error."""


class VersionedReader:
    """A reader that refuses results if the data version changed while the query ran.

    Otherwise equal noise could be added to different data, which would reveal the difference.

    Args:
        unchanged: returns True if the data still has the version that the query's noise is derived from.
    """

    def __init__(self, engine: Engine, dataset: str, unchanged: Callable[[], bool]) -> None:
        self._engine = engine
        self._dataset = dataset
        self._unchanged = unchanged

    def check(self, request: HeadRequest) -> None:
        if request.summed is not None:
            check_private_bounds(self._engine, request.summed)
        with self._without_hosts():
            self._engine.check(request)

    def head(
        self, request: HeadRequest, *, seed: bytes = b"", progress: Callable[[float], None] | None = None
    ) -> ExactHead:
        with self._without_hosts():
            head = self._engine.head(request, seed=seed, progress=progress)
        self._check_unchanged()
        return head

    @contextlib.contextmanager
    def pairs(
        self, request: HeadRequest, *, progress: Callable[[float], None] | None = None
    ) -> Iterator[UserItemPairs]:
        with self._without_hosts(), self._engine.pairs(request, progress=progress) as pairs:
            yield pairs
        self._check_unchanged()

    def _check_unchanged(self) -> None:
        if not self._unchanged():
            raise EngineError(f"the data of {self._dataset!r} changed its version while the query ran; run it again")

    @contextlib.contextmanager
    def _without_hosts(self) -> Iterator[None]:
        """Replace an engine's message, which may name files and hosts, by a message that names the dataset."""
        try:
            yield
        except EngineError as error:
            kind = next(kind for kind in _SENTENCES if isinstance(error, kind))
            raise kind(_SENTENCES[kind].format(self._dataset)) from error


LONGEST = 200
"""The largest number of characters in a version."""

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def current_version(dataset: Dataset, engine: Engine, now: datetime.datetime) -> str | None:
    """Return the version of a dataset's data; None if neither the catalog nor the engine states one.

    Args:
        now: the time, with a time zone.

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
    """Return a digest of an engine's version, which may be long and contain paths."""
    return None if version is None else hashlib.sha256(version.encode(errors="surrogateescape")).hexdigest()[:32]


def scheduled_version(schedule: Schedule, now: datetime.datetime) -> str:
    """Return the last scheduled change up to *now*, in the schedule's zone: "2026-11-20T04:00+01:00".

    A local time that daylight saving skips is read as if the clock had not been put forward: 02:30 becomes 03:30. If a
    local time occurs twice, the change is at the first; on an hourly schedule, at both. The offset from UTC is part of
    the text, so that two changes never have the same version.

    Args:
        now: the time, with a time zone.
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
    """Return the version from the result of the data owner's query.

    Raises:
        InputError: *answer* is not one row with one column that holds text, an exact number, a date or a timestamp.
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
                "the query for the data version must return text, a whole or decimal number, a date or a timestamp"
            )
    if len(version) > LONGEST:
        raise InputError(f"the query for the data version must return at most {LONGEST} characters")
    return version


def check_zone(name: str) -> str | None:
    """Return an error message for an invalid time zone name, or None."""
    try:
        zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # an unknown name, a malformed name, a folder of zones
        if not zoneinfo.available_timezones():
            return "cannot be read: this machine has no time zone data; install it with: pip install tzdata"
        return "must be a time zone such as Europe/Berlin or UTC"
    return None
