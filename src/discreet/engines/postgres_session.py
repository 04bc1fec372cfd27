"""Asking PostgreSQL: connections, transactions, deadlines, and what its types are."""

from __future__ import annotations

import math
import os
import socket
import threading
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
import pyarrow as pa
from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, Ping

from discreet.engines.running import run
from discreet.engines.sql import Column, NumberType
from discreet.errors import EngineError, EngineTimeout, EngineUnreachable, InputError
from discreet.question import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from discreet.engines.url import Url

    Cursor: TypeAlias = psycopg.RawCursor[tuple[Any, ...]]

_Result = TypeVar("_Result")

ZONED = "timestamp with time zone"
_TYPES = {
    16: Column(Kind.BOOLEAN, "boolean"),
    25: Column(Kind.TEXT, "text"),
    700: Column(Kind.FLOAT, "real"),
    701: Column(Kind.FLOAT, "double precision"),
    1043: Column(Kind.TEXT, "text"),  # varchar
    1082: Column(Kind.DATE, "date"),
    1114: Column(Kind.TIMESTAMP, "timestamp"),
    1184: Column(Kind.TIMESTAMP, ZONED),
    2950: Column(Kind.TEXT, "uuid"),
}
"""By the numbers that PostgreSQL's own types have everywhere."""

_INTEGERS = {21: ("smallint", 16), 23: ("integer", 32), 20: ("bigint", 64)}
_NUMERIC = 1700
_DIGITS_MOST = 38
_FIRST_OF_OTHERS = 16_384  # types that are not PostgreSQL's own have numbers from here on

_CONNECT_SECONDS = 10
_CANCEL_SECONDS = 5
_LONGEST_MILLISECONDS = 2**31 - 1
_ROWS_AT_ONCE = 65_536


class Session:
    """A connection that is opened when it is needed, and given up after whatever fails on it.

    Args:
        url: of the server and its database.
        password: of the account, or None if there is another way to learn it.
        seconds: how long an answer may take, or None.
    """

    def __init__(self, url: Url, password: str | None, seconds: float | None) -> None:
        self._where = str(url)
        self._account = "this account" if url.user is None else repr(url.user)
        self._seconds = seconds
        given: dict[str, Any] = {"host": url.host, "port": url.port, "dbname": url.path}
        given |= {"user": url.user, "password": password, "connect_timeout": _CONNECT_SECONDS}
        given |= {name: value for name, value in url.options.items() if name != "table"}
        self._address = make_conninfo(**{name: value for name, value in given.items() if value not in {None, ""}})
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def ask(self, work: Callable[[Cursor], _Result], progress: Callable[[float], None] | None = None) -> _Result:
        """What *work* returns, within one transaction that sees one state of the data and changes nothing.

        Raises:
            EngineError: the server cannot be reached, or failed, or took too long.
            InputError: its database keeps text in another encoding than UTF-8.
        """
        finished = threading.Event()

        def answered() -> _Result:
            try:
                connection = self._begun()
                result = work(psycopg.RawCursor(connection))
                connection.rollback()
                return result
            finally:
                finished.set()

        try:
            return run(answered, lambda: self._cancel(finished), seconds=self._seconds, progress=progress)
        except psycopg.Error as error:
            self.close()
            raise self._explained(error) from None
        except pa.ArrowException:
            self.close()
            raise EngineError(f"{self._where} answered with values of another type than its columns had") from None
        except BaseException:
            self.close()  # a cancel may come late, and must not meet the next question
            raise

    def close(self) -> None:
        """Close the connection; the next question opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _begun(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection with a transaction begun."""
        if self._connection is not None:
            try:
                return self._set(self._connection)
            except psycopg.OperationalError:  # it was lost while nobody asked
                self.close()
        self._connection = self._connected()
        return self._set(self._connection)

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        try:
            connection = psycopg.connect(
                self._address, client_encoding="UTF8", application_name="discreet", prepare_threshold=None
            )
        except psycopg.Error:
            raise EngineUnreachable(self._refused()) from None
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        if connection.info.parameter_status("server_encoding") != "UTF8":
            connection.close()
            raise InputError(
                f"the database {self._where} does not keep text as UTF8, in whose order labels are released"
            )
        return connection

    def _set(self, connection: psycopg.Connection[tuple[Any, ...]]) -> psycopg.Connection[tuple[Any, ...]]:
        """Begin a transaction, and pin for it whatever could make an answer another one.

        Settings of a transaction hold also where connections are shared behind a pool.
        """
        settings = {"row_security": "off", "TimeZone": "UTC", "jit": "off"}  # off: an error, never fewer rows
        if self._seconds is not None:
            settings["statement_timeout"] = str(min(max(math.ceil(self._seconds * 1000), 1), _LONGEST_MILLISECONDS))
        calls = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())
        connection.execute(f"SELECT {calls}")
        return connection

    def _cancel(self, finished: threading.Event) -> None:
        """Cancel on the server until it ends: a cancel that comes between two statements is lost."""
        while not finished.is_set():
            connection = self._connection
            if connection is not None:
                try:
                    connection.cancel_safe(timeout=_CANCEL_SECONDS)
                except psycopg.Error:
                    _hang_up(connection)
            finished.wait(_CANCEL_SECONDS / 10)

    def _refused(self) -> str:
        match PGconn.ping(self._address.encode()):
            case Ping.OK:
                return (
                    f"{self._where} lets nobody in as {self._account}: the account, its password or the database is "
                    "wrong, or it may not connect"
                )
            case Ping.REJECT:
                return f"the PostgreSQL server of {self._where} takes no connections now; try again later"
        return f"there is no PostgreSQL server that answers at {self._where}; check the host, the port and the options"

    def _explained(self, error: psycopg.Error) -> EngineError:
        """What went wrong, in words of ours: the server's may hold data."""
        if isinstance(error, psycopg.errors.QueryCanceled) and self._seconds is not None:
            return EngineTimeout(f"the engine did not answer within {self._seconds:g} seconds")
        return EngineError(self._failure(error))

    def _failure(self, error: psycopg.Error) -> str:
        match error:
            case psycopg.errors.QueryCanceled():
                return f"{self._where} stopped the statement: the account has a time limit, or somebody cancelled it"
            case psycopg.errors.InsufficientPrivilege():
                return (
                    f"{self._account} may not read all of it at {self._where}: "
                    "a right is missing, or row security hides rows"
                )
            case psycopg.OperationalError() if error.sqlstate is None or error.sqlstate.startswith("57P"):
                return f"the connection to {self._where} was lost"
        return f"{self._where} could not answer ({type(error).__name__})"


def _hang_up(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """End the wait for a server that cannot be asked to stop."""
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return  # it is gone already


def table_of(cursor: Cursor, statement: str, parameters: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """What *statement* returns, as Arrow columns of *schema*. One statement only, with $1, $2, ... bound."""
    cursor.execute(statement, parameters, binary=True)
    batches = []
    while rows := cursor.fetchmany(_ROWS_AT_ONCE):
        columns = zip(zip(*rows, strict=True), schema.types, strict=True)
        batches.append(pa.record_batch([pa.array(values, type_) for values, type_ in columns], schema))
    return pa.Table.from_batches(batches, schema)


def columns_of(cursor: Cursor, relation: str) -> list[tuple[str, Column]]:
    """The names and types of what stands behind FROM; domains are what they are made of."""
    cursor.execute(f"SELECT * FROM {relation} LIMIT 0", binary=True)
    result = cursor.pgresult
    fields = (
        [] if result is None else [(result.fname(n), result.ftype(n), result.fmod(n)) for n in range(result.nfields)]
    )
    others = {oid for _, oid, _ in fields if oid >= _FIRST_OF_OTHERS}
    known = {}
    if others:
        numbers = ", ".join(map(str, sorted(others)))
        cursor.execute(
            f"SELECT CAST(oid AS bigint), CAST(typname AS text), typtype = 'e' FROM pg_type WHERE oid IN ({numbers})"
        )
        known = {oid: _other(name, enumerated) for oid, name, enumerated in cursor.fetchall()}
    return [((name or b"").decode(), _column(oid, modifier, known)) for name, oid, modifier in fields]


def _other(name: str, enumerated: bool) -> Column:
    """A type that is not PostgreSQL's own."""
    if enumerated:
        return Column(Kind.TEXT, "enum")
    return Column(Kind.TEXT, name) if name == "citext" else Column(Kind.OTHER, name)


def _column(oid: int, modifier: int, others: dict[int, Column]) -> Column:
    if oid in _INTEGERS:
        name, bits = _INTEGERS[oid]
        most = Fraction(2 ** (bits - 1) - 1)
        return Column(Kind.INTEGER, name, NumberType(name, -most - 1, most))
    if oid == _NUMERIC and modifier >= 0:
        return _decimal(modifier - 4)
    return _TYPES.get(oid) or others.get(oid) or Column(Kind.OTHER, "other")


def _decimal(modifier: int) -> Column:
    """numeric(p, s), whose s may be negative or above p, as one in which neither is so."""
    precision, scale = modifier >> 16, ((modifier & 0x7FF) ^ 0x400) - 0x400
    digits, behind = max(precision - scale, 0) + max(scale, 0), max(scale, 0)
    if digits > _DIGITS_MOST:
        return Column(Kind.OTHER, "numeric")
    name = f"numeric({digits},{behind})"
    most = Fraction(10**digits - 1, 10**behind)
    return Column(Kind.DECIMAL, name, NumberType(name, -most, most, behind))


def arrow_type(column: Column) -> pa.DataType:
    """What a label of a column becomes."""
    if column.kind is Kind.DECIMAL:
        digits, scale = column.type[len("numeric(") : -1].split(",")
        return pa.decimal128(int(digits), int(scale))
    if column.kind is Kind.TIMESTAMP:
        return pa.timestamp("us", "UTC" if column.type == ZONED else None)
    return {
        Kind.TEXT: pa.string(),
        Kind.INTEGER: pa.int64(),
        Kind.BOOLEAN: pa.bool_(),
        Kind.DATE: pa.date32(),
        Kind.FLOAT: pa.float64(),
    }[column.kind]
