"""Asking Trino one question at a time: its HTTP client, made to stop when it should, and its rows as Arrow."""

from __future__ import annotations

import contextlib
import re
import threading
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import requests
import trino.auth
import trino.dbapi
import trino.exceptions

from discreet.engines.running import run
from discreet.engines.sql import Column, NumberType
from discreet.errors import DiscreetError, EngineError, EngineTimeout, InputError
from discreet.question import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from discreet.engines.url import Url

    _Answer: TypeAlias = "tuple[list[list[Any]], list[tuple[str, str]]]"

LONGEST = 1_000_000
"""Characters in a statement: Trino's own query.max-length, unless its owner chose another."""

_BITS = {"tinyint": 8, "smallint": 16, "integer": 32, "bigint": 64}
_KINDS = {
    **dict.fromkeys(_BITS, Kind.INTEGER),
    "decimal": Kind.DECIMAL,
    "varchar": Kind.TEXT,
    "uuid": Kind.TEXT,
    "boolean": Kind.BOOLEAN,
    "date": Kind.DATE,
    "timestamp": Kind.TIMESTAMP,
    "real": Kind.FLOAT,
    "double": Kind.FLOAT,
}
_TYPE = re.compile(r"(\w+)(?:\((\d+)(?:, ?(\d+))?\))?( with time zone)?")
_MOMENT = re.compile(r"([+-]?\d+)-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d+))?)?")
_ARROW = {
    Kind.INTEGER: pa.int64(),
    Kind.TEXT: pa.string(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.FLOAT: pa.float64(),
}
_FINEST = 6  # digits behind a second's point that Arrow's microseconds keep
_EPOCH = date(1970, 1, 1).toordinal()
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # after which the calendar repeats itself

_MISSING = {"TABLE_NOT_FOUND", "SCHEMA_NOT_FOUND", "CATALOG_NOT_FOUND", "MISSING_CATALOG_NAME"}
_TRANSPORT_ERRORS = (trino.exceptions.Error, trino.exceptions.HttpError, requests.RequestException)


def check_length(statement: str) -> None:
    """Raise `InputError` if *statement* is longer than Trino takes."""
    if len(statement) > LONGEST:
        raise InputError(f"Trino takes {LONGEST:,} characters at most; list fewer items or shorter constants")


class NotThere(InputError):
    """The statement names a table, schema or catalog that Trino does not have, or does not show to its user."""


class Forbidden(EngineError):
    """Trino's user has no right to what the statement needs."""


class Asker:
    """A connection to Trino. Statements hold their constants as literals: nothing is prepared, nothing is left behind.

    Args:
        url: of the coordinator; https=true for TLS; the path is the catalog and the schema of names without theirs.
        password: sent over TLS only.
        seconds: how long a statement may take, here and on the server, or None.
    """

    def __init__(self, url: Url, password: str | None, seconds: float | None) -> None:
        self._url = url
        self._seconds = seconds
        catalog, schema = url.path.split("/")
        self._connection = trino.dbapi.connect(  # type: ignore[no-untyped-call]
            host=url.host,
            port=url.port,
            user=url.user,
            http_scheme="https" if url.options.get("https") == "true" else "http",
            auth=None if password is None else trino.auth.BasicAuthentication(url.user or "", password),
            catalog=catalog,
            schema=schema,
            source="discreet",
            timezone="UTC",
            session_properties=None if seconds is None else {"query_max_run_time": f"{seconds:.3f}s"},
            legacy_primitive_types=True,  # Python's dates end with the year 9999
        )

    def ask(self, statement: str, progress: Callable[[float], None] | None = None) -> pa.Table:
        """What *statement* returns, to the last page.

        Raises:
            NotThere: it names a table that is not there.
            Forbidden: its user may not read what it names.
            InputError: it is too long.
            EngineError: Trino cannot be reached, refused it, failed, or took too long; or a column has a type that is
                not read.
        """
        return arrow_table(*self._answer(statement, progress))

    def ask_types(self, statement: str) -> list[tuple[str, str]]:
        """The names and Trino's types of the columns that *statement* returns.

        Raises:
            NotThere: it names a table that is not there.
            EngineError: as for `ask`.
        """
        return self._answer(statement, None)[1]

    def close(self) -> None:
        """Close the sockets."""
        self._connection.close()

    def _answer(self, statement: str, progress: Callable[[float], None] | None) -> _Answer:
        check_length(statement)
        question = _Question(self._connection)
        return run(
            lambda: self._work(question, statement),
            question.cancel,
            seconds=self._seconds,
            progress=progress,
            share=question.share,
        )

    def _work(self, question: _Question, statement: str) -> _Answer:
        try:
            return question.answer(statement)
        except trino.exceptions.TrinoQueryError as error:
            raise self._refused(error.error_name or "") from None
        except _TRANSPORT_ERRORS as error:
            raise EngineError(self._unreached(error)) from None
        except (ValueError, TypeError, LookupError, AttributeError):
            raise EngineError(f"what answers at {self._url} is not Trino") from None

    def _refused(self, name: str) -> DiscreetError:
        """What Trino's name of an error means; there is a fixed list of such names, so they hold no data."""
        if name in _MISSING:
            return NotThere(f"{self._url} has no such table")
        if name == "PERMISSION_DENIED":
            return Forbidden(f"Trino does not let {self._url.user} read {self._url}")
        if name == "EXCEEDED_TIME_LIMIT" and self._seconds is not None:
            return EngineTimeout(f"the engine did not answer within {self._seconds:g} seconds")
        if name == "QUERY_TEXT_TOO_LARGE":
            return InputError("this Trino takes no statement of that length; list fewer items or shorter constants")
        return EngineError(f"Trino could not count in {self._url} ({name or 'an unknown error'})")

    def _unreached(self, error: BaseException) -> str:
        status = re.match(r"error (\d+)", str(error))
        if status and status[1] in {"401", "403"}:
            return f"Trino at {self._url} does not accept the user and the password"
        if isinstance(error.__context__, requests.exceptions.SSLError):
            return f"{self._url} shows no certificate that is trusted here"
        if status and status[1] in {"404", "405"}:
            return f"Trino at {self._url} does not know the question any more, or is not Trino"
        return f"Trino cannot be reached at {self._url}"


class _Stopped(Exception):
    """Nobody waits for the answer."""


class _Question:
    """One statement on its way, which may be cancelled from another thread."""

    def __init__(self, connection: trino.dbapi.Connection) -> None:
        self._stopped = threading.Event()
        self._share = 0.0
        self._cursor = connection.cursor(stats_callback=self._watch)

    def answer(self, statement: str) -> _Answer:
        """Its rows, and the names and types of its columns."""
        try:
            self._cursor.execute(statement)
            rows = self._cursor.fetchall()
        finally:
            self._end()
        return rows, [(column.name, column.type_code) for column in self._cursor.description or ()]

    def cancel(self) -> None:
        """End it on the server; if that does not know it yet, as soon as it does."""
        self._stopped.set()
        self._end()

    def share(self) -> float:
        """How much of it is done."""
        return self._share

    def _watch(self, stats: dict[str, Any]) -> None:
        """Called by the client with every page."""
        self._share = (stats.get("progressPercentage") or 0) / 100
        if self._stopped.is_set():
            raise _Stopped

    def _end(self) -> None:
        """Nothing, if it has ended."""
        with contextlib.suppress(*_TRANSPORT_ERRORS):
            self._cursor.cancel()


def column_of(type_: str) -> Column:
    """A column of Trino's type *type_*."""
    name, first, second, _ = _parts(type_)
    kind = _KINDS.get(name, Kind.OTHER)
    if kind is Kind.TIMESTAMP and first > _FINEST:
        kind = Kind.OTHER
    if kind is Kind.INTEGER:
        most = Fraction(2 ** (_BITS[name] - 1) - 1)
        return Column(kind, type_, NumberType(type_, -most - 1, most))
    if kind is Kind.DECIMAL:
        most = Fraction(10**first - 1, 10**second)
        return Column(kind, type_, NumberType(type_, -most, most, second))
    return Column(kind, type_)


def has_zone(type_: str) -> bool:
    """True for moments that Trino shows in a time zone."""
    return _parts(type_)[3]


def arrow_table(rows: Sequence[Sequence[Any]], columns: Sequence[tuple[str, str]]) -> pa.Table:
    """Trino's *rows* as Arrow.

    Args:
        rows: as its client returns them with its legacy_primitive_types: moments and decimals as text.
        columns: names and types.

    Raises:
        EngineError: a column has a type that is not read.
    """
    arrays = []
    for place, (name, type_) in enumerate(columns):
        column = column_of(type_)
        if column.kind is Kind.OTHER or has_zone(type_):
            raise EngineError(f"column {name!r} is of Trino's type {type_}; cast it to one that is read")
        read = _READERS.get(column.kind, _as_it_is)
        values = [None if row[place] is None else read(row[place]) for row in rows]
        arrays.append(pa.array(values, label_type(column)))
    return pa.table(arrays, [name for name, _ in columns])


def label_type(column: Column) -> pa.DataType:
    """What the labels of *column* become in Arrow."""
    if column.kind is not Kind.DECIMAL:
        return _ARROW[column.kind]
    _, digits, scale, _ = _parts(column.type)
    return pa.decimal128(digits, scale)


def _parts(type_: str) -> tuple[str, int, int, bool]:
    """The name of a type, its numbers (0 where there is none), and whether it has a time zone; "" for nested types."""
    match = _TYPE.fullmatch(type_)
    if match is None:
        return "", 0, 0, False
    return match[1], int(match[2] or 0), int(match[3] or 0), match[4] is not None


def _moment(text: str) -> tuple[int, int]:
    """Days since 1970 and microseconds since midnight, of any year that Trino can write."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise EngineError("Trino wrote a moment in a form that is not known")
    year, month, day, hours, minutes, seconds, fraction = match.groups(default="0")
    cycles, year_of_cycle = divmod(int(year), _CYCLE_YEARS)
    within = date(_CYCLE_YEARS + year_of_cycle, int(month), int(day)).toordinal()
    days = within - _EPOCH + (cycles - 1) * _CYCLE_DAYS
    return days, ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 10**6 + int(fraction.ljust(_FINEST, "0"))


def _day(text: str) -> int:
    return _moment(text)[0]


def _microseconds(text: str) -> int:
    days, above = _moment(text)
    return days * 86_400 * 10**6 + above


def _as_it_is(value: Any) -> Any:  # noqa: ANN401 - whatever JSON has
    return value


_READERS: dict[Kind, Callable[[Any], Any]] = {
    Kind.DECIMAL: Decimal,
    Kind.FLOAT: float,
    Kind.DATE: _day,
    Kind.TIMESTAMP: _microseconds,
}
