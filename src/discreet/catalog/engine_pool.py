"""The engines of a catalog's datasets: opened and checked by the data owner's act, and bound to a data version."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import queue
import threading
import zoneinfo
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

import pyarrow as pa

from discreet.catalog.domains import known_domain, known_labels
from discreet.catalog.fields import OwnerQuery
from discreet.catalog.model import KINDS, Catalog, Dataset, EngineSettings, LabelFile, Schedule
from discreet.engines.base import Engine, RequestQueue, check_private_bounds, has_all_pair_queries
from discreet.errors import (
    DiscreetError,
    EngineError,
    EngineTimeout,
    EngineUnreachable,
    InexactHead,
    InputError,
    InvariantViolated,
    UnfitData,
    UnknownColumn,
)
from discreet.head_request import HeadRequest, Kind, naming_error
from discreet.secrets import read_variable
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


def schema_error(dataset: Dataset, kinds: Mapping[str, Kind]) -> str | None:
    """Return an error message if the user column or a declared column does not fit its table, or None."""
    wrong = (user_error(dataset.user, kinds), *(column_error(dataset, name, kinds) for name in dataset.declared))
    return next(filter(None, wrong), None)


def user_error(user: str, kinds: Mapping[str, Kind]) -> str | None:
    """Return an error message if a table's column cannot be the user column, or None."""
    if user not in kinds:
        return str(UnknownColumn(user, kinds, "user column"))
    wrong = naming_error(user, kinds[user], is_user=True)
    return None if wrong is None else f"user {wrong}"


def column_error(dataset: Dataset, name: str, kinds: Mapping[str, Kind]) -> str | None:
    """Return an error message if a declared column does not fit its table, or None."""
    column = dataset.columns[name]
    rule = next((rule for rule in dataset.derived if rule.name == name), None)
    if rule is not None:
        if name in kinds:
            return f"column {name!r} is computed, but the table has a column of this name; give it another one"
        return rule.type_error(kinds[rule.column]) if rule.column in kinds else str(UnknownColumn(rule.column, kinds))
    if name not in kinds:
        return str(UnknownColumn(name, kinds))
    if kinds[name] is column.kind or (kinds[name] is Kind.UNTYPED and column.type == "text"):
        return None
    if kinds[name] is Kind.UNTYPED:
        return (
            f"column {name!r} is declared {column.type}, but CSV files hold text; cast it in a view, or write Parquet"
        )
    contents = _HELD.get(kinds[name], "values of a type that cannot be queried")
    return f"column {name!r} is declared {column.type}, but the table holds {contents}"


_PAIRS_OPTION = {"pinot": None, "trino": "scratch=", "clickhouse": "temporary=true"}
"""The URL option that enables pair queries, by scheme; None if unsupported. Other engines always support them."""

_OPEN_AT_ONCE = 4
"""Datasets that are opened at once, so that a server that does not answer delays few others."""

_LABELS_SECONDS = 600
"""How old labels that a query or a file of the owner lists may become before they are read again."""

_PATIENCE = 10
"""A source that failed is tried again after so many times as long as the attempt took, or once it has changed."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """A dataset that passed all checks, with all that planning needs from its engine.

    Args:
        fingerprint: the fingerprint of the source that was checked; None for servers.
        version: the data version of the engine, if the source has a fingerprint.
        labels: the labels of each column with a known domain.
        scales: the number of decimal places of each summed decimal column.
        read: the time when the labels were read.
        domains: known domains by their item columns, filled at first use.
    """

    engine: Engine
    fingerprint: str | None
    version: str | None
    labels: Mapping[str, pa.Array]
    scales: Mapping[str, int]
    read: datetime.datetime
    domains: dict[tuple[str, ...], pa.Table | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a dataset is unavailable.

    Args:
        reason: the message of the error, for the owner; not the error itself, which would keep what it read in memory.
        fingerprint: the fingerprint of the source that failed, or None.
        again: the time from which the same source is tried again.
    """

    reason: str
    fingerprint: str | None
    again: datetime.datetime


class EnginePool:
    """The open engines of a catalog, with the domains and column scales read from them. It is thread-safe.

    Opening a source reads and checks it, so it is the data owner's act. Without a service, the first query of a dataset
    opens it. After the first call of `refresh`, only `refresh` does: no query opens or checks anything, and a dataset
    that failed is unavailable to all queries alike.

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
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # a slow engine delays no other
        self._queues: dict[tuple[str, EngineSettings | None], RequestQueue] = {}
        self._opened: dict[str, _Opened] = {}
        self._failed: dict[str, _Failure] = {}
        self._replaced: set[str] = set()
        self._is_refreshed = False

    def replace_catalog(self, catalog: Catalog) -> None:
        """Use another catalog from now on; not while `refresh` runs, which has to be called next.

        Datasets whose declaration and engine are as before stay open. All others are closed; queries in progress keep
        the engine that they began with.
        """
        before = self.catalog
        changed = {
            name
            for name, dataset in before.datasets.items()
            if catalog.datasets.get(name) != dataset
            or (dataset.engine is not None and catalog.engines[dataset.engine] != before.engines[dataset.engine])
        }
        for name in changed:
            if name in catalog.datasets:
                self._failed[name] = _Failure("its declaration has changed, and is being checked", None, self._clock())
            else:
                self._failed.pop(name, None)
            self._opened.pop(name, None)
        self._replaced -= changed
        self.catalog = catalog

    def replaced(self) -> frozenset[str]:
        """Return the datasets whose source was replaced although the catalog still states the same version of it."""
        return frozenset(self._replaced)

    def refresh(self) -> None:
        """Open and check every dataset that is new, whose source has changed, or that failed; see `unavailable`.

        Queries switch to what passed. Those in progress keep the engine that they began with, which closes itself when
        the last of them has ended.
        """
        self._is_refreshed = True
        names: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in self.catalog.datasets:
            names.put(name)

        def work() -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._refresh(names.get_nowait())

        # Not a ThreadPoolExecutor: its threads would keep the process from ending while a large file is read.
        threads = [threading.Thread(target=work, daemon=True) for _ in range(_OPEN_AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def unavailable(self) -> dict[str, str]:
        """Return the datasets that are unavailable since the last `refresh`, each with the reason, for the owner."""
        return {name: failure.reason for name, failure in sorted(self._failed.items())}

    def _refresh(self, name: str) -> None:
        """Open a dataset again if its source has changed or it failed a while ago; otherwise read its labels again."""
        from discreet.engines.opening import source_fingerprint

        with self._locks[name]:
            began = self._clock()
            fingerprint = None
            opened = self._opened.get(name)
            failure = self._failed.get(name)
            try:
                dataset = self.catalog.datasets[name]
                in_engine = None if dataset.engine is None else self.catalog.engines[dataset.engine]
                fingerprint = source_fingerprint(dataset.source if in_engine is None else in_engine.url)
                if failure is not None and failure.fingerprint == fingerprint and began < failure.again:
                    return
                if opened is not None and opened.fingerprint == fingerprint:
                    opened = self._with_labels(name, opened)
                else:
                    if opened is not None and isinstance(dataset.data_version, str):
                        self._replaced.add(name)
                    if opened is not None:  # refuse all queries alike from now on, and free the memory of the old rows
                        self._failed[name] = _Failure("its source has changed, and is being checked", None, began)
                        del self._opened[name]
                        opened = None
                    opened = self._open(name)
            except Exception as error:  # noqa: BLE001 - the owner sees it, and the other datasets are served
                ours = isinstance(error, DiscreetError | OSError)  # the text of others may hold data
                reason = str(error) if ours else f"it cannot be opened ({type(error).__name__})"
                now = self._clock()
                self._failed[name] = _Failure(reason, fingerprint, now + _PATIENCE * (now - began))
            else:
                self._opened[name] = opened
                self._failed.pop(name, None)

    def engine(self, name: str) -> Engine:
        """Return the engine of a dataset.

        Args:
            name: the dataset's name as spelled in the catalog; the same in all methods.

        Raises:
            EngineError: the engine cannot be reached, or the table does not fit the catalog.
        """
        return self._current(name).engine

    def queue(self, name: str) -> RequestQueue:
        """Return the request queue of a dataset's engine; datasets of one engine share it.

        Raises:
            EngineUnreachable: another catalog without the dataset replaced the one of a query.
        """
        catalog = self.catalog  # read once: another may replace it meanwhile
        engine = self._dataset(name, catalog).engine
        settings = catalog.engines[engine] if engine else None
        new = RequestQueue() if settings is None else RequestQueue(settings.connections, settings.timeout_seconds)
        return self._queues.setdefault((engine or name, settings), new)

    def version(self, name: str) -> str | None:
        """Return the current version of a dataset's data, or None if it is unknown.

        Raises:
            EngineError: the dataset is unavailable, or the owner's statement does not return a version.
        """
        dataset = self._dataset(name)
        opened = self._unchanged(name)
        if dataset.data_version is None and opened.fingerprint is not None:
            return _digest(opened.version)
        with _hide_cause(name):
            return current_version(dataset, opened.engine, self._clock())

    def reader(self, name: str, version: str | None) -> VersionedReader:
        """Return a reader of a dataset that refuses its result if the data no longer has *version*.

        Args:
            version: from `version`, or None if the data may change during the query.

        Raises:
            EngineError: the dataset is unavailable, or queries switched to other data since *version* was returned.
        """
        dataset = self._dataset(name)
        opened = self._unchanged(name)
        if dataset.data_version is None and opened.fingerprint is not None:  # the engine refuses a source that changed
            if version not in {None, _digest(opened.version)}:
                raise EngineUnreachable(f"the data of {name!r} changed its version; send the query again")
            return VersionedReader(opened.engine, name, lambda: True)

        def is_unchanged() -> bool:
            with _hide_cause(name):
                return version is None or current_version(dataset, opened.engine, self._clock()) == version

        return VersionedReader(opened.engine, name, is_unchanged)

    def has_pairs(self, name: str) -> bool:
        """Return True if a dataset's engine supports pair queries.

        Before the first `refresh`, its URL decides that if it cannot be opened, for plans without data.

        Raises:
            EngineError: the dataset is unavailable since the last `refresh`.
        """
        try:
            return has_all_pair_queries(self._current(name).engine)
        except EngineError:
            if self._is_refreshed:
                raise
            dataset = self._dataset(name)
            url = dataset.source or "" if dataset.engine is None else self.catalog.engines[dataset.engine].url
            option = _PAIRS_OPTION.get(url.partition("://")[0], "")  # "" is in every URL
            return option is not None and option in url

    def scale(self, name: str, column: str) -> int:
        """Return the number of decimal places of a summed column; raises as `engine`."""
        return self._current(name).scales[column]

    def domain(self, name: str, items: tuple[str, ...]) -> pa.Table | None:
        """Return all possible items if the catalog lists the labels of all item columns; raises as `engine`."""
        columns = self._dataset(name).columns
        if not items or any(columns[item].domain is None for item in items):
            return None
        opened = self._current(name)
        if items not in opened.domains:
            opened.domains[items] = known_domain(items, opened.labels)
        return opened.domains[items]

    def close(self) -> None:
        """Close all engines."""
        while self._opened:
            self._opened.popitem()[1].engine.close()

    def _dataset(self, name: str, catalog: Catalog | None = None) -> Dataset:
        """Return a dataset of the catalog; raise if another catalog without it replaced the one of a query."""
        dataset = (catalog or self.catalog).datasets.get(name)
        if dataset is None:
            raise EngineUnreachable(f"the dataset {name!r} was removed; nothing was queried")
        return dataset

    def _unchanged(self, name: str) -> _Opened:
        """Return an open dataset; raise if its source is no longer the one that was checked, for estimates too."""
        opened = self._current(name)
        with _hide_cause(name):
            changed = getattr(opened.engine, "has_changed", bool)()
        if changed:
            raise EngineUnreachable(f"the data of {name!r} has changed, and was not opened again yet")
        return opened

    def _current(self, name: str) -> _Opened:
        """Return an open dataset; open it at its first use, unless only `refresh` opens datasets."""
        with _hide_cause(name):
            failure = self._failed.get(name)
            if failure is not None:
                raise EngineError(failure.reason)
            if name not in self._opened and not self._is_refreshed:
                with self._locks[name]:
                    if name not in self._opened:
                        self._opened[name] = self._open(name)
            opened = self._opened.get(name)
            if opened is None:
                raise EngineError("it is being opened")
            return opened

    def _open(self, name: str) -> _Opened:
        """Open a dataset, and read from its engine what the catalog leaves to it: labels, scales and the version."""
        dataset = self._dataset(name)
        engine = self._open_dataset(self.catalog, name, self._environment)
        with contextlib.ExitStack() as failing:
            failing.callback(engine.close)
            kinds = engine.columns()
            wrong = schema_error(dataset, kinds)
            if wrong:
                raise InputError(wrong)
            fingerprint = getattr(engine, "checked_fingerprint", None)
            listed = [column for column, declared in dataset.columns.items() if declared.domain is not None]
            opened = _Opened(
                engine,
                fingerprint,
                None if fingerprint is None else engine.data_version(),
                {column: known_labels(dataset, column, engine) for column in listed},
                {column: engine.scale(column) for column in dataset.summable if column in kinds},
                self._clock(),
            )
            failing.pop_all()
        return opened

    def _with_labels(self, name: str, opened: _Opened) -> _Opened:
        """Return an open dataset with its labels read again, if they are old and not written in the catalog."""
        dataset = self.catalog.datasets[name]
        now = self._clock()
        listed = [
            column for column in opened.labels if isinstance(dataset.columns[column].domain, OwnerQuery | LabelFile)
        ]
        if not listed or now - opened.read < datetime.timedelta(seconds=_LABELS_SECONDS):
            return opened
        again = {column: known_labels(dataset, column, opened.engine) for column in listed}
        return replace(opened, labels={**opened.labels, **again}, read=now, domains={})


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

    def check_pairs(self) -> None:
        with self._without_hosts():
            self._engine.check_pairs()

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


MAX_LENGTH = 200
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
    local = now.astimezone(zone)
    hour, minute = schedule.at.split(":")
    # The changes around that time: at least one before it, and perhaps later ones.
    if schedule.schedule == "hourly":
        this = local.replace(minute=int(minute))  # its seconds are those of now, and are not shown
        hours = (this + datetime.timedelta(hours=n) for n in range(-3, 2))  # clocks change by two hours at most
        changes = [at.replace(fold=fold) for at in hours for fold in (0, 1)]
    else:
        at = datetime.time(int(hour), int(minute), tzinfo=zone)
        days = [local.date() + datetime.timedelta(days=n) for n in range(-32, 2)]
        if schedule.schedule == "weekly":
            days = [day for day in days if _DAYS[day.weekday()] == schedule.day]
        elif schedule.schedule == "monthly":
            days = [day for day in days if day.day == 1]
        changes = [datetime.datetime.combine(day, at) for day in days]
    past = (moment for moment in (change.astimezone(datetime.UTC) for change in changes) if moment <= now)
    return max(past).astimezone(zone).isoformat(timespec="minutes")


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
    if len(version) > MAX_LENGTH:
        raise InputError(f"the query for the data version must return at most {MAX_LENGTH} characters")
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
