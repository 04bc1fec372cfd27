"""The interface of engines, a base class for SQL engines, and the request queue of each engine."""

from __future__ import annotations

import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Waiting
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from discreet.engines.sql import EngineColumn, HeadStatement, check_sum, quoted
from discreet.errors import (
    DiscreetError,
    EngineBusy,
    EngineError,
    EngineTimeout,
    EngineUnreachable,
    InexactHead,
    InputError,
)
from discreet.head_request import TOTAL, HeadRequest, Kind, SumBounds, naming_error
from discreet.values import ExactHead, UserItemPairs

_Result = TypeVar("_Result")
_Statement = TypeVar("_Statement", bound="HeadStatement")

LABEL_TYPES = {
    Kind.TEXT: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.FLOAT: pa.float64(),
}
"""The Arrow types of labels, by kind; those of decimals depend on their digits."""

NAMES_SHOWN = 30
"""The number of tables that a message lists at most."""

_POLL_SECONDS = 0.1
_ANY_SEED = bytes(32)

_FOREVER = 1e9
PATIENCE_SECONDS = 0.8
"""How long a cancelled statement is waited for where a server ends it by itself: a time limit holds to a second."""


class Reader(Protocol):
    """The part of an `Engine` that `discreet.release.answer` uses; `VersionedReader` implements it too."""

    def check(self, request: HeadRequest) -> None:
        """Raise unless the engine can be reached and supports *request*; at most plans a statement, and reads no row.

        Raises:
            InputError: the engine does not support the request, by its form or the types of the columns.
            EngineUnreachable: the engine cannot be reached.
            EngineError: the engine failed in another way.
        """
        ...

    def check_pairs(self) -> None:
        """Raise unless pair queries can write what they write; creates and drops an empty table where that is a table.

        Raises:
            EngineError: the account may not write it.
        """
        ...

    def head(
        self, request: HeadRequest, *, seed: bytes = b"", progress: Callable[[float], None] | None = None
    ) -> ExactHead:
        """Return the request.limit + 1 largest counts, of each segment if there are any, with their labels, exactly.

        Rows without a user are left out, and so are rows without one of the labels unless missing labels are kept. Ties
        are in ascending order of the labels, missing ones first, text by UTF-8 bytes. With a domain, exactly its items
        are returned. Segments are in the order of the request; each user counts in one of them. Labels are text, int64,
        decimals, booleans, dates or microseconds, in every engine. With request.squared_lengths, the head also has the
        scaled sums and the users by length, and those of rows of averages; only engines whose attribute has_scaled_sums
        is true get such requests, and only those whose attribute has_arrivals is true get requests with `Arrivals`.

        Args:
            seed: decides which random segment and items of a user are kept, where request.each or
                request.groups_per_user bounds them: the same ones in every engine.
            progress: called with a share from 0 to 1 about ten times a second; an exception it raises stops the engine.

        Raises:
            InputError: the engine does not support the request. The request and the types of the columns alone decide
                that, never a row, so nothing is charged.
            EngineUnreachable: the engine cannot be reached, and no part of the request was sent; nothing is charged.
            EngineError: the engine failed in another way; its own message, which may hold data, is left out.
            UnfitData: a view of the data owner failed on a value.
            InexactHead: the engine's result cannot be proven exact.
        """
        ...

    def pairs(
        self, request: HeadRequest, *, progress: Callable[[float], None] | None = None
    ) -> AbstractContextManager[UserItemPairs]:
        """Write the distinct user-item pairs of the selected rows, and make them queryable until the context exits.

        The pairs are deleted on exit. Inside the context, no other method may be called.

        Args:
            request: only its user, items, filter, keep_missing and what it lists are used: the items, or the segments,
                which are then the first of the items.
            progress: called during each query as by `head`.

        Raises:
            InputError: the engine has no pair queries, or does not support the request.
            EngineError: raised by every query as by `head`, with its subclasses.
        """
        ...


class Engine(Reader, Protocol):
    """A table in an engine that counts exactly. It is read-only and thread-safe.

    No single row decides whether a method raises; see `docs/threat-model.md`.
    """

    @property
    def name(self) -> str:
        """The source of the table, without passwords. Keyed noise depends on it unless a catalog names the dataset."""
        ...

    def columns(self) -> Mapping[str, Kind]:
        """Return the table's columns, in order.

        Raises:
            EngineError: the engine failed.
        """
        ...

    def scale(self, column: str) -> int:
        """Return the number of decimal places of a decimal column, 0 for any other.

        Raises:
            EngineError: the engine failed.
        """
        ...

    def check_sum(self, column: str) -> None:
        """Raise unless the type of *column* guarantees that every sum of its values is exact and does not overflow.

        Raises:
            InputError: the type does not guarantee it.
            EngineError: the engine failed.
        """
        ...

    def data_version(self) -> str | None:
        """Return a public text that changes with the data but is computed from no row, or None if there is none."""
        ...

    @property
    def has_pairs(self) -> bool:
        """True if the engine has pair queries; needs no connection.

        They are used only if its attribute has_capped_sums is true as well: see `has_all_pair_queries`.
        """
        ...

    def account_notes(self) -> list[str]:
        """Return sentences about rights that the account lacks or should not have, though every query will be answered.

        Raises:
            EngineError: the engine failed.
        """
        ...

    def fetch(self, statement: str) -> pa.Table:
        """Return all rows of a statement of the data owner, which selects a domain or the version of the data.

        Raises:
            EngineError: the engine failed, or the statement is wrong.
        """
        ...

    def close(self) -> None:
        """Close connections and delete temporary files."""
        ...


class Connection(Protocol):
    """A connection on which an engine runs one request at a time; it may connect at its first use."""

    def close(self) -> None:
        """Close the connection, and delete everything that its requests left in the engine."""
        ...


_Connection = TypeVar("_Connection", bound=Connection)


class PooledEngine(ABC, Generic[_Connection]):
    """An engine with a connection for each request.

    Connections are reused, so there are at most as many as there were concurrent requests.
    """

    keeps_connections: ClassVar[bool] = True

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[_Connection] = []
        weakref.finalize(self, _close_all, self._idle)

    @property
    def name(self) -> str:
        return self._name

    def close(self) -> None:
        """Close the connections that no request uses."""
        _close_all(self._idle)

    @contextmanager
    def _connection(self) -> Iterator[_Connection]:
        """Yield a connection that no other request uses; it is closed after a failure."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if self.keeps_connections:
            self._idle.append(connection)
        else:
            connection.close()

    def check_pairs(self) -> None:
        return

    def account_notes(self) -> list[str]:
        return []

    @abstractmethod
    def _connect(self) -> _Connection:
        """Return a new connection."""


class SqlEngine(PooledEngine[_Connection], Generic[_Connection, _Statement]):
    """An engine that reads a head by one SQL statement; subclasses connect, describe the table and run it."""

    has_scaled_sums: ClassVar[bool] = True
    has_capped_sums: ClassVar[bool] = True
    has_arrivals: ClassVar[bool] = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._columns: Mapping[str, EngineColumn] | None = None
        self._describing = threading.Lock()

    def columns(self) -> Mapping[str, Kind]:
        with self._connection() as connection:
            return {name: column.kind for name, column in self._described(connection).items()}

    def scale(self, column: str) -> int:
        with self._connection() as connection:
            number = self._described(connection)[column].number
        return 0 if number is None else number.scale

    def check_sum(self, column: str) -> None:
        with self._connection() as connection:
            check_sum(column, self._described(connection)[column])

    def data_version(self) -> str | None:
        return None

    def check(self, request: HeadRequest) -> None:
        with self._connection() as connection:
            self._ping(connection)
            self._plan(connection, self._prepared(connection, request, _ANY_SEED))

    def head(
        self, request: HeadRequest, *, seed: bytes = b"", progress: Callable[[float], None] | None = None
    ) -> ExactHead:
        with self._connection() as connection:
            statement = self._prepared(connection, request, seed)
            return exact_head(self._run(connection, statement, progress), request)

    @property
    def has_pairs(self) -> bool:
        return True

    @contextmanager
    def pairs(
        self, request: HeadRequest, *, progress: Callable[[float], None] | None = None
    ) -> Iterator[UserItemPairs]:
        _check_pairs(request)
        with self._connection() as connection:
            statement = self._prepared(connection, request, _ANY_SEED)
            with self._open_pairs(connection, statement, progress) as pairs:
                yield pairs

    def _prepared(self, connection: _Connection, request: HeadRequest, seed: bytes) -> _Statement:
        columns = self._described(connection)
        check_named(request, lambda name: columns[name].kind)
        return self._statement(connection, request, columns, seed)

    def _described(self, connection: _Connection) -> Mapping[str, EngineColumn]:
        with self._describing:
            if self._columns is None:
                self._ping(connection)
                self._columns = self._describe(connection)
            return self._columns

    @abstractmethod
    def _ping(self, connection: _Connection) -> None:
        """Raise `EngineUnreachable` unless the engine can be reached; sends no statement."""

    def _plan(self, connection: _Connection, statement: _Statement) -> None:
        """Raise if the engine refuses *statement* by its plan: a table, a column or a permission is gone.

        No row is read. Engines override it where this takes one round trip; here, the statement is only written.
        """
        del connection
        statement.write()

    @abstractmethod
    def _describe(self, connection: _Connection) -> Mapping[str, EngineColumn]:
        """Return the columns of the table, as the engine declares them."""

    @abstractmethod
    def _statement(
        self, connection: _Connection, request: HeadRequest, columns: Mapping[str, EngineColumn], seed: bytes
    ) -> _Statement:
        """Return the statement for a head, or raise `InputError` if the engine does not support the request."""

    @abstractmethod
    def _run(
        self, connection: _Connection, statement: _Statement, progress: Callable[[float], None] | None
    ) -> pa.Table:
        """Return the rows of *statement*."""

    @abstractmethod
    def _open_pairs(
        self, connection: _Connection, statement: _Statement, progress: Callable[[float], None] | None
    ) -> AbstractContextManager[UserItemPairs]:
        """Write the pairs of the rows of *statement*; delete them on exit."""


def _check_pairs(request: HeadRequest) -> None:
    if request.groups_per_user is not None or request.rows_per_group != 1:
        raise InputError("the pair queries count distinct users with all their items: bound neither rows nor items")
    if request.summed is not None:
        raise InputError("the pair queries take no sum")
    if not request.items or request.each:
        raise InputError("the pair queries need an item column, and have no segments")


def _close_all(connections: list[Any]) -> None:
    while connections:
        connections.pop().close()


@contextmanager
def refused_as(message: str) -> Iterator[None]:
    """Raise `EngineError` with *message* where the engine refuses a statement, not where it cannot be reached."""
    try:
        yield
    except (EngineTimeout, EngineUnreachable):
        raise
    except DiscreetError:
        raise EngineError(message) from None


def has_all_pair_queries(engine: Engine) -> bool:
    """Return True if an engine has every query of `discreet.values.UserItemPairs`, `capped_sums` among them.

    Engines of other packages may be older than that query. A release that needs it must not find out after reading.
    """
    return engine.has_pairs and bool(getattr(engine, "has_capped_sums", False))


def check_private_bounds(engine: Engine, summed: SumBounds) -> None:
    """Refuse a sum with a private bound, before a row is read, on engines that may not support it.

    Raises:
        InputError: the bound of *summed* is chosen privately, which the engine does not support.
    """
    if summed.private and not getattr(engine, "has_scaled_sums", False):
        raise InputError(
            f"this engine cannot choose the bound of {summed.column!r} privately; declare its sum without private_bound"
        )


def check_arrivals(engine: Engine) -> None:
    """Raise `InputError` unless an engine supports requests with arrivals, before a row is read."""
    if not getattr(engine, "has_arrivals", False):
        raise InputError("this engine cannot count users by the day of their arrival, which running counts need")


def check_named(request: HeadRequest, kind: Callable[[str], Kind]) -> None:
    """Refuse a request whose user or items are of a type that cannot tell them apart.

    Args:
        kind: returns the kind of a column of the table.

    Raises:
        InputError: a column has such a type.
    """
    derived = {period.name for period in request.derived}
    for column in (request.user, *request.items):
        wrong = None if column in derived else naming_error(column, kind(column), is_user=column == request.user)
        if wrong is not None:
            raise InputError(wrong)


def check_names(names: Iterable[str], source: str) -> None:
    """Refuse column names that differ only in case, which SQL does not distinguish.

    Raises:
        InputError: two names are equal, or differ only in case.
    """
    folded = [name.casefold() for name in names]
    if len(set(folded)) < len(folded):
        raise InputError(f"{source} has columns with the same name, or with names that differ in case only")


def listing(names: list[str]) -> str:
    """Return *names*, quoted, for a message; at most `NAMES_SHOWN` of them."""
    shown = ", ".join(map(repr, names[:NAMES_SHOWN])) or "none"
    return f"{shown} and others" if len(names) > NAMES_SHOWN else shown


def run(
    work: Callable[[], _Result],
    cancel: Callable[[], None],
    *,
    seconds: float | None = None,
    progress: Callable[[float], None] | None = None,
    share: Callable[[], float] = lambda: 0.0,
    patience: float = _FOREVER,
) -> _Result:
    """Run *work* in a thread and return its result; Ctrl-C, a deadline or the caller can cancel it.

    Args:
        work: runs in a thread of its own.
        cancel: stops *work* soon; called if the wait ends before *work* does.
        seconds: time limit, or None.
        progress: called every tenth of a second; any exception that it raises stops the work.
        share: returns the completed share of the work, from 0 to 1.
        patience: seconds to wait for the cancellation and the work to end; after that they end by themselves, where
            only a server or a network that does not respond delays them.

    Raises:
        EngineTimeout: *work* took longer than *seconds*.
    """
    end = None if seconds is None else time.monotonic() + seconds
    future: Future[_Result] = Future()

    def settle() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            future.set_exception(error)

    worker = threading.Thread(target=settle, daemon=True)
    worker.start()
    try:
        while True:
            left = _POLL_SECONDS if end is None else min(_POLL_SECONDS, max(end - time.monotonic(), 0))
            try:
                return future.result(timeout=left)
            except Waiting:
                if future.done():  # it ended just now, or *work* itself raised TimeoutError
                    return future.result()
            if end is not None and time.monotonic() >= end:
                raise EngineTimeout(f"the engine did not answer within {seconds:g} seconds")
            if progress is not None:
                progress(min(max(share(), 0.0), 1.0))
    finally:
        if not future.done():
            canceller = threading.Thread(target=cancel, daemon=True)
            canceller.start()
            latest = time.monotonic() + patience
            for thread in (canceller, worker):
                thread.join(max(latest - time.monotonic(), 0))
        else:
            worker.join()  # no thread holds a result, and with it a connection, when the process ends


_FIRST = "'0001-01-01'"
_LAST = "'9999-12-31 23:59:59.999999'"

_WRONG_LABEL = "the domain lists a label that is missing or not of the type of its column"


def exact_head(table: pa.Table, request: HeadRequest) -> ExactHead:
    """Return the head from an engine's result for *request*, after checking that it is exact.

    Args:
        table: labels in columns i0, i1, ..., and the columns of `number_columns`.

    Raises:
        InexactHead: the table cannot be the head: too many rows, out of order, a label twice, or a count below 1.
    """
    if request.items:
        _check_order(table, request)
    ends = None
    if request.each:
        table, ends = _in_segments(table, request)
    labels = table.select([f"i{n}" for n in range(len(request.items))]).rename_columns(list(request.items))
    counts = int64_array(table.column("n"))
    sums = None if request.summed is None else int64_array(table.column("t"))
    if not request.items:
        labels = pa.table({TOTAL: ["all"]})
    sizes = [len(counts)] if ends is None else np.diff((0, *ends))
    if len(counts) != len(labels) or max(sizes) > request.limit + 1:
        raise InexactHead("the engine answered with more rows than were requested")
    if request.arrivals is not None:
        before = None if request.arrivals.before is None else int64_array(table.column("b"))
        columns = [int64_array(table.column(f"v{n}")) for n in range(len(request.arrivals.reached))]
        reached = np.column_stack(columns) if columns else None
        return ExactHead(counts, request.limit, labels, before=before, reached=reached)
    rows = None if request.summed is None or request.summed.rows is None else int64_array(table.column("r"))
    scaled, users = _by_length(table, "t", "v", len(request.squared_lengths))
    scaled_rows, row_users = _by_length(table, "r", "vr", len(request.squared_row_lengths))
    return ExactHead(
        counts,
        request.limit,
        labels,
        sums,
        scaled,
        users,
        ends,
        rows,
        scaled_rows=scaled_rows,
        row_users=row_users,
    )


def _by_length(
    table: pa.Table, scaled: str, users: str, lengths: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | tuple[None, None]:
    """Return the scaled sums of *table* and the users by length, or None for no *lengths*."""
    if not lengths:
        return None, None
    columns = [int64_array(table.column(f"{scaled}{n}")) for n in range(lengths)]
    first = [int(int64_array(table.column(f"{users}{n}"))[:1].sum()) for n in range(lengths)]
    return np.column_stack(columns), np.array(first, dtype=np.int64)


def _in_segments(table: pa.Table, request: HeadRequest) -> tuple[pa.Table, tuple[int, ...]]:
    """Return the rows in the order of the listed segments, and the row after the last one of each segment.

    Args:
        table: rows in ascending order of their segments.
    """
    names = [f"i{n}" for n in range(len(request.each))]
    placed = table.append_column("row", pa.array(range(len(table)), pa.int64())).group_by(names, use_threads=False)
    ends_of_segment = placed.aggregate([("row", "min"), ("row", "max")]).to_pylist()
    places = {tuple(row[name] for name in names): range(row["row_min"], row["row_max"] + 1) for row in ends_of_segment}
    types = {column: table.schema.field(name).type for column, name in zip(request.each, names, strict=True)}
    listed = [tuple(row.values()) for row in typed_domain(request.segments, types).to_pylist()]
    if not places.keys() <= set(listed):
        raise InexactHead("the engine answered with a segment that was not requested")
    rows = [places.get(segment, range(0)) for segment in listed]
    rows_in_order = table.take(pa.array([row for part in rows for row in part], pa.int64()))
    return rows_in_order, tuple(np.cumsum([len(part) for part in rows]).tolist())


def _check_order(table: pa.Table, request: HeadRequest) -> None:
    """Raise `InexactHead` unless rows are in the order that was requested, of items with users, each once."""
    import pyarrow.compute as pc

    names = [f"i{n}" for n in range(len(request.items))]
    ranked = table
    keys = [(name, "ascending") for name in names[: len(request.each)]]
    keys.append(("n", "descending"))
    for name in names:
        if table.column(name).null_count:  # missing labels come first: False sorts before True
            ranked = ranked.append_column(f"{name} present", table.column(name).is_valid())
            keys.append((f"{name} present", "ascending"))
        if name not in names[: len(request.each)]:  # a segment is never missing
            keys.append((name, "ascending"))
    order = pc.sort_indices(ranked, sort_keys=keys)
    if not np.array_equal(np.from_dlpack(order), np.arange(len(table))):
        raise InexactHead("the engine answered in another order than was requested")
    if len(table) and pc.min(table.column("n")).as_py() < (1 if request.domain is None else 0):
        raise InexactHead("the engine answered with items that have no users")
    # Table.group_by() would import pyarrow.dataset, and pandas where it is installed: a third of a second.
    codes = np.zeros(len(table), np.int64)  # equal for rows whose labels so far are equal
    for name in names:
        encoded = pc.dictionary_encode(table.column(name), null_encoding="encode").chunks
        numbers = [np.from_dlpack(chunk.indices.cast(pa.int64())) for chunk in encoded]
        width = len(encoded[-1].dictionary) if encoded else 1
        _, codes = np.unique(codes * width + np.concatenate([codes[:0], *numbers]), return_inverse=True)
    if len(codes) and int(codes.max()) + 1 < len(table):
        raise InexactHead("the engine answered with an item twice")


def int64_array(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return a column of numbers as an array.

    Raises:
        InexactHead: a number is missing.
    """
    if column.null_count:
        raise InexactHead("the engine answered with an item without a count")
    # to_numpy() would import pandas where it is installed, which takes a quarter of a second.
    return np.array(np.from_dlpack(column.cast(pa.int64()).combine_chunks()), dtype=np.int64)


def arrow_array(values: NDArray[Any]) -> pa.Array:
    """Return numbers as an Arrow array, without pa.array(), which imports pandas where it is installed."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def typed_domain(domain: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Return the items of a listed domain in the types of the labels.

    DuckDB casts them in memory, so that a label means the same in every engine.

    Args:
        domain: a table with the item columns; its labels may be text that can be parsed as the type.
        types: type of each item column, in the order of the request: string, int64, decimal128, bool, date32 or
            timestamp[us].

    Returns:
        the same rows, with columns i0, i1, ... of those types.

    Raises:
        InputError: a label is missing, or is not the canonical form of a value of its column's type; an item is listed
            twice; or a date or timestamp is outside the years 1 to 9999.
    """
    try:
        listed = _as_given(domain, types)
        if listed is None:
            with _database().cursor() as connection:
                listed = _cast_domain(connection, domain, types)
    except (duckdb.Error, pa.ArrowInvalid):
        _database.cache_clear()  # an internal error of DuckDB makes a database unusable
        raise InputError("the domain lists labels of another type than their column") from None
    if len(listed.group_by(listed.column_names).aggregate([])) < len(listed):
        raise InputError("the domain lists an item twice")
    return listed


def _as_given(domain: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table | None:
    """Return a domain whose labels have the right types already, or None: casting takes longer than most queries."""
    selected = domain.select(list(types))
    if selected.schema.types != list(types.values()) or any(map(pa.types.is_temporal, types.values())):
        return None
    selected.validate(full=True)
    if any(column.null_count for column in selected.columns):
        raise InputError(_WRONG_LABEL)
    return selected.rename_columns([f"i{n}" for n in range(len(types))])


@lru_cache(maxsize=1)
def _database() -> duckdb.DuckDBPyConnection:
    """Return an in-memory database; a cursor sees only the tables that are registered on it."""
    return duckdb.connect(config={"threads": 1})


def _cast_domain(connection: duckdb.DuckDBPyConnection, domain: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    connection.execute("SET TimeZone = 'UTC'")
    labels = pa.schema(list(types.items())).empty_table()
    connection.register("domain", domain)
    connection.register("labels", labels)
    old, new = (
        {name: type_ for name, type_, *_ in connection.execute(f"DESCRIBE {relation}").fetchall()}
        for relation in ("domain", "labels")
    )
    casts = []
    wrong = []
    for n, (column, type_) in enumerate(types.items()):
        cast = f"TRY_CAST({quoted(column)} AS {new[column]})"
        casts.append(f"{cast} AS i{n}")
        wrong.append(f"{cast} IS NULL")
        # A label that changes in a cast to the type and back (1.5 to an integer, '07') is not of that type.
        wrong.append(f"TRY_CAST({cast} AS {old[column]}) IS DISTINCT FROM {quoted(column)}")
        if pa.types.is_temporal(type_):  # a value that Python's datetime cannot hold
            wrong.append(f"{cast} NOT BETWEEN CAST({_FIRST} AS {new[column]}) AND CAST({_LAST} AS {new[column]})")
    if connection.execute(f"SELECT 1 FROM domain WHERE {' OR '.join(wrong)} LIMIT 1").fetchall():
        raise InputError(_WRONG_LABEL)
    return connection.sql(f"SELECT {', '.join(casts)} FROM domain").to_arrow_table()


_WAITING_PER_CONNECTION = 4


class RequestQueue:
    """A first-in, first-out queue for the connections of one engine. It is thread-safe.

    Args:
        connections: the number of slots; four times as many requests may wait.
        seconds: time limit of the wait, or None.
    """

    def __init__(self, connections: int = 4, seconds: float | None = None) -> None:
        self._free = connections  # 0 while any request waits: a slot is handed to the next one
        self._max_waiting = _WAITING_PER_CONNECTION * connections
        self._seconds = seconds
        self._lock = threading.Lock()
        self._waiting: deque[threading.Event] = deque()

    @contextmanager
    def slot(self, progress: Callable[[float], None] | None = None) -> Iterator[None]:
        """Wait for a slot, and hold it until the context exits.

        Args:
            progress: called with 0 about ten times a second; an exception that it raises ends the wait.

        Raises:
            EngineBusy: too many requests wait already, or this one waited too long.
        """
        turn = self._join()
        try:
            end = None if self._seconds is None else time.monotonic() + self._seconds
            while not turn.wait(_POLL_SECONDS):
                if end is not None and time.monotonic() >= end:
                    raise EngineBusy(f"the engine was busy for {self._seconds:g} seconds; try again later")
                if progress is not None:
                    progress(0.0)
            yield
        finally:
            self._leave(turn)

    def _join(self) -> threading.Event:
        """Return an event that is set once the caller has a slot; it may be set already."""
        turn = threading.Event()
        with self._lock:
            if self._free:
                self._free -= 1
                turn.set()
            elif len(self._waiting) >= self._max_waiting:
                raise EngineBusy(f"{self._max_waiting} queries wait for this engine already; try again later")
            else:
                self._waiting.append(turn)
        return turn

    def _leave(self, turn: threading.Event) -> None:
        """Pass the slot of *turn* to the next request; if it had none yet, leave the queue."""
        with self._lock:
            if not turn.is_set():
                self._waiting.remove(turn)
            elif self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1
