"""DB-API 2.0 driver (PEP 249) of a Discreet service.

`connect` takes the URL of a service and an API key. Statements are sent to `POST /v1/sql`, where each SELECT directly
over a dataset is answered with noise and charged, and everything around it is computed from the answers for free.
"""

from __future__ import annotations

import datetime
import time

from discreet_sql.connection import Connection, Cursor, connect
from discreet_sql.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,  # noqa: A004 - the name is from PEP 249
)
from discreet_sql.values import BINARY, DATETIME, NUMBER, ROWID, STRING

apilevel = "2.0"
threadsafety = 2
paramstyle = "qmark"

Date = datetime.date
Time = datetime.time
Timestamp = datetime.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> datetime.date:  # noqa: N802 - the name is from PEP 249
    """Return the local date of *ticks* seconds since 1970."""
    return datetime.date(*time.localtime(ticks)[:3])


def TimeFromTicks(ticks: float) -> datetime.time:  # noqa: N802
    """Return the local time of day of *ticks* seconds since 1970."""
    return datetime.time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> datetime.datetime:  # noqa: N802
    """Return the local date and time of *ticks* seconds since 1970."""
    return datetime.datetime(*time.localtime(ticks)[:6])


__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]
