"""PostgreSQL 13 and later: tables, partitioned tables and views."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import psycopg
import pyarrow as pa
from numpy.typing import NDArray
from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, Ping, TransactionStatus

from discreet.engines.base import LABEL_TYPES, NAMES_SHOWN, PATIENCE_SECONDS, SqlEngine, listing, run, typed_domain
from discreet.engines.pairs import SqlPairs, item_number, joined_items
from discreet.engines.sql import (
    Columns,
    EngineColumn,
    HeadStatement,
    check_sum,
    decimal_type,
    integer_type,
    number_columns,
    quoted,
)
from discreet.engines.url import Url, parse_url
from discreet.errors import EngineError, EngineTimeout, EngineUnreachable, InexactHead, InputError
from discreet.head_request import Constant, HeadRequest, Kind

Cursor: TypeAlias = psycopg.RawCursor[tuple[Any, ...]]

_Result = TypeVar("_Result")

_OPTIONS = {"table", "sslmode", "sslrootcert"}
_FIND = """
SELECT CAST(n.nspname AS text), CAST(c.relname AS text), row_security_active(c.oid), EXISTS (
    WITH RECURSIVE tree(part) AS (
        SELECT c.oid UNION SELECT i.inhrelid FROM pg_inherits AS i JOIN tree ON i.inhparent = part)
    SELECT FROM tree JOIN pg_class AS p ON p.oid = part WHERE p.relkind = 'f')
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND (concat(n.nspname, '.', c.relname) = $1 OR (c.relname = $1 AND pg_table_is_visible(c.oid)))
ORDER BY 1, 2
"""
_LIST = f"""
SELECT concat(n.nspname, '.', c.relname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm') AND NOT c.relispartition
    AND n.nspname NOT IN ('pg_catalog', 'information_schema')
    AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
ORDER BY 1 LIMIT {NAMES_SHOWN + 1}
"""
_TEMPORARY = "SELECT has_database_privilege(current_database(), 'TEMP') AND NOT pg_is_in_recovery()"
_RIGHTS = """
SELECT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user), EXISTS (
    SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
        AND has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE'))
"""
_BYTES = ' COLLATE "C"'
_TYPE_NAMES = {Kind.TEXT: "text", Kind.INTEGER: "bigint", Kind.TIMESTAMP: "timestamp"}
_ZONED = "timestamp with time zone"
_TYPES = {
    16: EngineColumn(Kind.BOOLEAN, "boolean"),
    25: EngineColumn(Kind.TEXT, "text"),
    700: EngineColumn(Kind.FLOAT, "real"),
    701: EngineColumn(Kind.FLOAT, "double precision"),
    1043: EngineColumn(Kind.TEXT, "text"),  # varchar
    1082: EngineColumn(Kind.DATE, "date"),
    1114: EngineColumn(Kind.TIMESTAMP, "timestamp"),
    1184: EngineColumn(Kind.TIMESTAMP, _ZONED),
    2950: EngineColumn(Kind.TEXT, "uuid"),
}
"""Kinds by the object ids of PostgreSQL's built-in types, which never change."""

_INTEGERS = {21: ("smallint", 16), 23: ("integer", 32), 20: ("bigint", 64)}
_NUMERIC = 1700
_MAX_DIGITS = 38
_FIRST_OF_OTHERS = 16_384  # the object ids of types that are not built in begin here

_COUNTED = [("a", pa.int64()), ("b", pa.int64())]
_HASH = "hash_record_extended(ROW({}), 0)"
_HASH_VERSION = 140_000
"""The hash of labels, in 64 bits and with NULL, and the first version that has it."""

_PAIRS, _ITEMS, _CHOSEN, _SUMS = (f"discreet_{name}" for name in ("pairs", "items", "chosen", "sums"))
"""The tables of pairs, of items and of those that a query chooses; the cursor of sums that are fetched in batches."""

_FIELD = [("size", ">i4"), ("value", ">i8")]
_CONNECT_SECONDS = 10
_LOGIN_HINT = "; the source has no password: name its variable as password_env in a catalog, or set PGPASSWORD"
_CANCEL_SECONDS = 5
_MAX_MILLISECONDS = 2**31 - 1
_ROWS_AT_ONCE = 65_536


class PostgresEngine(SqlEngine["PostgresSession", "PostgresStatement"]):
    """An engine for a table of PostgreSQL.

    Args:
        source_url: postgresql://reader@host:5432/database?table=schema.name, with sslmode and sslrootcert if need be.
        table: name of the table, taken literally, with its schema if needed, if the URL does not name it.
        view: a SELECT of the data owner, used instead of a table.
        password: password of the account, if the URL, ~/.pgpass and PGPASSWORD lack it.
        timeout_seconds: time limit of a query, here and on the server, or None.

    Raises:
        InputError: the URL is not valid, there is no such table, or neither a table nor a view was named, or both.
        EngineError: the server cannot be reached.
        InexactHead: row security hides rows of the table from the account, or its rows are in another system.
    """

    def __init__(
        self,
        source_url: str,
        *,
        table: str | None = None,
        view: str | None = None,
        password: str | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        url = parse_url(source_url).with_password(password)
        url.check_options(_OPTIONS)
        table = url.table(table, view)
        self._url = url
        self._seconds = timeout_seconds
        self._exact_users: set[str] = set()
        self._relation = f"({view}\n) AS shown"
        super().__init__(f"{url}, a view")
        if view is None:
            with self._connection() as session:
                schema, table = session.run(lambda cursor: _find(cursor, table, str(url)))
            self._relation = f"{quoted(schema)}.{quoted(table)}"
            self._name = f"{url}, table {schema}.{table}"

    def account_notes(self) -> list[str]:
        with self._connection() as session:
            ((superuser, writes),) = session.run(lambda cursor: cursor.execute(_RIGHTS).fetchall())
            ((temporary,),) = session.run(lambda cursor: cursor.execute(_TEMPORARY).fetchall())
        notes = []
        if superuser:
            notes.append("the account is a superuser, whom no right restrains: use one that can only read")
        elif writes:
            notes.append("the account may write tables: use one that can only read")
        if not temporary:
            notes.append(
                "the account may not make temporary tables, or this is a standby: release takes several times as long"
            )
        return notes

    def fetch(self, statement: str) -> pa.Table:
        """Return all rows of a SELECT or VALUES, without a semicolon."""
        with self._connection() as session:
            return session.run(lambda cursor: _fetch(cursor, f"({statement}\n) AS shown"))

    def _connect(self) -> PostgresSession:
        return PostgresSession(self._url, self._seconds)

    def _ping(self, connection: PostgresSession) -> None:
        connection.ping()

    def _describe(self, connection: PostgresSession) -> Mapping[str, EngineColumn]:
        fields = connection.run(lambda cursor: columns_of(cursor, self._relation))
        if len(dict(fields)) < len(fields):
            raise InputError(f"{self._name} has two columns with the same name; rename one")
        return Columns(fields)

    def _statement(
        self, connection: PostgresSession, request: HeadRequest, columns: Mapping[str, EngineColumn], seed: bytes
    ) -> PostgresStatement:
        self._check_user(connection, request.user, columns[request.user])
        return PostgresStatement(request, self._relation, columns, seed)

    def _plan(self, connection: PostgresSession, statement: PostgresStatement) -> None:
        sql = f"EXPLAIN {statement.write()}"  # unlike a prepared statement, it checks permissions
        connection.run(lambda cursor: cursor.execute(sql, statement.bound).fetchall())

    def _run(
        self, connection: PostgresSession, statement: PostgresStatement, progress: Callable[[float], None] | None
    ) -> pa.Table:
        sql = statement.write()
        schema = statement.schema()
        return connection.run(lambda cursor: table_of(cursor, sql, statement.bound, schema), progress)

    @contextlib.contextmanager
    def _open_pairs(
        self, connection: PostgresSession, statement: PostgresStatement, progress: Callable[[float], None] | None
    ) -> Iterator[PostgresPairs]:
        ((temporary,),) = connection.run(lambda cursor: cursor.execute(_TEMPORARY).fetchall())
        with connection.transaction(writable=temporary):
            pairs = PostgresPairs(statement, connection, temporary, progress)
            pairs.create()
            yield pairs

    def _check_user(self, session: PostgresSession, user: str, column: EngineColumn) -> None:
        """Refuse user columns whose collation treats different texts as equal: one user would count as several.

        Raises:
            InputError: the column ignores case or the like.
        """
        if column.kind is not Kind.TEXT or user in self._exact_users:
            return
        exact = column.type in {"uuid", "enum"}
        if column.type == "text":
            collation = f"to_regcollation(pg_collation_for((SELECT {quoted(user)} FROM {self._relation} LIMIT 0)))"
            sql = f"SELECT collisdeterministic FROM pg_collation WHERE oid = {collation}"
            exact = session.run(lambda cursor: cursor.execute(sql).fetchall()) != [(False,)]
        if not exact:
            raise InputError(
                f"column {user!r} treats different texts as the same user; show each user as one text in a view, "
                'such as lower(CAST(name AS text)) COLLATE "C" AS name'
            )
        self._exact_users.add(user)


def _find(cursor: Cursor, table: str | None, where: str) -> tuple[str, str]:
    """Return the schema and name of a table.

    Raises:
        InputError: there is no table of that name, or several.
        InexactHead: not all of its rows can be counted.
    """
    matches = [] if table is None else cursor.execute(_FIND, [table.replace("\0", "\ufffd")]).fetchall()
    if len(matches) != 1:
        names = [name for (name,) in cursor.execute(_LIST).fetchall()]
        mistake = "name a table" if table is None else f"there is {'no' if not matches else 'more than one'} {table!r}"
        raise InputError(f"{mistake}; the tables of {where} that may be read are {listing(names)}")
    schema, name, hidden, foreign = matches[0]
    if hidden:
        raise InexactHead(
            f"row security may hide rows of table {schema}.{name} from this account; "
            "let it read a view of the table's owner, or grant it BYPASSRLS"
        )
    if foreign:
        raise InexactHead(f"rows of table {schema}.{name} are in another system, which may not send all; copy them")
    return schema, name


def _fetch(cursor: Cursor, relation: str) -> pa.Table:
    """Return all rows of *relation*, SQL text that can follow FROM.

    Raises:
        EngineError: a column has an unsupported type, or two columns have the same name.
    """
    fields = columns_of(cursor, relation)
    columns = dict(fields)
    unread = [name for name, column in fields if column.kind is Kind.OTHER]
    if unread or len(columns) < len(fields):
        raise EngineError("the statement selects a column of a type that is not read, or two of one name; use CAST, AS")
    statement = PostgresStatement(HeadRequest("", (), 1), relation, columns)
    selected = ", ".join(f"{statement.label(name)} AS {quoted(name)}" for name in columns)
    schema = pa.schema([(name, arrow_type(column)) for name, column in fields])
    return table_of(cursor, f"SELECT {selected} FROM {relation}", [], schema)


class PostgresStatement(HeadStatement):
    """The statement for a head in PostgreSQL's SQL. Text is compared and sorted by its bytes."""

    text: ClassVar[str] = "text"
    double: ClassVar[str] = "double precision"

    def __init__(
        self, request: HeadRequest, relation: str, columns: Mapping[str, EngineColumn], seed: bytes = b""
    ) -> None:
        super().__init__(request, relation, columns, seed)
        self._listed = [] if request.listed is None else _texts(request, self.columns)

    @property
    def bound(self) -> list[Any]:
        """The values of $1, $2, ...: the listed labels column by column, then the constants."""
        return [*self._listed, *self.parameters]

    def schema(self) -> pa.Schema:
        """Return the columns that the statement selects."""
        return pa.schema([*self.label_fields(), *((name, pa.int64()) for name in number_columns(self.request))])

    def label_fields(self) -> list[tuple[str, pa.DataType]]:
        """Return the names and types of the labels."""
        return [(f"i{n}", arrow_type(self.columns[item])) for n, item in enumerate(self.request.items)]

    def constant(self, text: str, type_: str | None) -> str:
        self.parameters.append(text)
        return f"CAST(${len(self.bound)} AS {type_ or self.text})"

    def moment(self, column: str) -> str:
        name = self.value(column)
        return f"({name} AT TIME ZONE 'UTC')" if self.columns[column].type == _ZONED else name

    def label(self, column: str) -> str:
        match self.columns[column].kind:
            case Kind.TEXT:
                return f"CAST({self.value(column)} AS text){_BYTES}"
            case Kind.DECIMAL:
                return self.compared(column, None)
        return super().label(column)

    def user(self, column: str) -> str:
        return self.label(column)

    def present(self, column: str) -> str:
        moment = self.columns[column].kind in {Kind.DATE, Kind.TIMESTAMP}
        return super().present(column) if moment else f"{self.label(column)} IS NOT NULL"

    def compared(self, column: str, kind: Kind | None) -> str:
        match self.columns[column].kind:
            case Kind.TEXT:
                return self.label(column)
            case Kind.DECIMAL:  # which may be NaN here
                return f"nullif({self.value(column)}, CAST('NaN' AS numeric))"
        return super().compared(column, kind)

    def listed(self) -> str:
        casts = []
        for name, item in zip(self.names_listed, self.request.listed.column_names, strict=True):
            column = self.columns[item]
            type_ = _TYPE_NAMES.get(column.kind, column.type)
            casts.append(f"CAST({name} AS {type_}){_BYTES if column.kind is Kind.TEXT else ''} AS {name}")
        arrays = ", ".join(f"CAST(${n + 1} AS text[])" for n in range(len(casts)))
        return f"(SELECT {', '.join(casts)} FROM unnest({arrays}) AS d({', '.join(self.names_listed)})) AS listed"

    def as_text(self, name: str, column: str) -> str:
        match self.columns[column].kind:
            case Kind.TIMESTAMP:
                return f"to_char({name}, 'YYYY-MM-DD HH24:MI:SS.US')"
            case Kind.DATE:  # a cast would follow the account's DateStyle
                return f"to_char({name}, 'YYYY-MM-DD')"
        return super().as_text(name, column)

    def digest(self, text: str) -> str:
        return f"md5({text}){_BYTES}"

    def same(self, left: str, right: str) -> str:
        return f"ARRAY[{left}] = ARRAY[{right}]"  # arrays with NULL are equal, and can be hashed

    def summand(self, column: str, scale: int) -> str:
        check_sum(column, self.columns[column])
        return f"CAST({self.compared(column, None)} AS numeric) * {10**scale}"

    def _fitted(self, column: str, operator: str, constant: Constant) -> tuple[str, str | None]:
        # PostgreSQL text never holds NUL, so a constant with a NUL is compared by the part before the NUL.
        before, nul, _ = constant.text.partition("\0")
        if not nul:
            return super()._fitted(column, operator, constant)
        if operator in {"=", "<>"}:
            return ("<>" if operator == "=" else "="), None  # compare the column with itself
        return ("<=" if operator in {"<", "<="} else ">"), self.constant(before, None)


def _texts(request: HeadRequest, columns: Mapping[str, EngineColumn]) -> list[list[str]]:
    """Return the listed labels as text, column by column.

    Raises:
        InputError: a label is not a value that its column can hold, or an item is listed twice.
    """
    types = {item: arrow_type(columns[item]) for item in request.listed.column_names}
    texts = []
    for column in typed_domain(request.listed, types).columns:
        moments = pa.types.is_timestamp(column.type)
        texts.append((column.cast(pa.timestamp("us")) if moments else column).cast(pa.string()).to_pylist())
    if any("\0" in text for column in texts for text in column):
        raise InputError("the domain lists a label that PostgreSQL cannot hold: text with the character NUL")
    return texts


class PostgresPairs(SqlPairs):
    """Pairs in temporary tables of a transaction, or in common table expressions where those are not allowed.

    An item is named by the hash of its label until it is counted. This is exact because the distinct labels have
    different hashes; if they do not, pairs are joined with the items by their labels.

    The expressions are computed anew by every query, from the one state of the data that the transaction sees.
    """

    def __init__(
        self,
        words: PostgresStatement,
        session: PostgresSession,
        temporary: bool,
        progress: Callable[[float], None] | None,
    ) -> None:
        super().__init__(words)
        self._session = session
        self._statement = words
        self._progress = progress
        self._users = f"(SELECT u, n FROM {_PAIRS} WHERE is_first AND {self._few}) AS s"
        self._pairs = f"(SELECT u, h, n FROM {_PAIRS} WHERE {self._few}) AS p"
        self._numbered = _ITEMS
        self._definitions = self._defined()
        self._expressions = "" if temporary else ", ".join(f"{n} AS ({sql})" for n, sql in self._definitions.items())

    def create(self) -> None:
        """Write the relations. The transaction is read-only again before the data is read."""
        if not self._expressions:
            self._session.run(self._create)
            for name, select in self._definitions.items():
                self._session.run(partial(self._fill, name=name, select=select), self._progress)
        if self._has_equal_names():  # the labels themselves are compared
            joined = joined_items(self._words, _PAIRS, _ITEMS)
            self._pairs = f"(SELECT u, n, item AS h FROM {joined} WHERE {self._few}) AS p"
            self._numbered = f"(SELECT {self._words.items}, item, item AS h FROM {_ITEMS}) AS i"

    def _defined(self) -> dict[str, str]:
        """Return the relations: each pair with the hash h of its label and the number n of its user's items; items.

        One sort, by user, makes the pairs distinct and gives the sizes.
        """
        items = self._words.items
        hashed = _HASH.format(items) if self._session.version >= _HASH_VERSION else "CAST(0 AS bigint)"
        distinct = f"SELECT DISTINCT u, {hashed} AS h, {items} FROM ({self._words.rows()}) AS r"
        sizes = "count(*) OVER w AS n, row_number() OVER w = 1 AS is_first"
        labels = f"SELECT DISTINCT {items}, h FROM {_PAIRS} WHERE {self._few}"
        return {
            _PAIRS: f"SELECT *, {sizes} FROM ({distinct}) AS d WINDOW w AS (PARTITION BY u)",
            _ITEMS: f"SELECT {items}, h, {item_number(self._words)} FROM ({labels}) AS i",
        }

    def _named_pairs(self, columns: str) -> str:
        return f"(SELECT {columns}, h FROM {self._pairs}) AS q"

    def _create(self, cursor: Cursor) -> None:
        cursor.execute(f"CREATE TEMP TABLE {_CHOSEN} (item bigint, k bigint, c bigint) ON COMMIT DROP")
        for name, select in self._definitions.items():
            cursor.execute(f"CREATE TEMP TABLE {name} ON COMMIT DROP AS {select} WITH NO DATA", self._values(name))
        cursor.execute("SET TRANSACTION READ ONLY")

    def _fill(self, cursor: Cursor, *, name: str, select: str) -> None:
        # Pairs that are hashed would have to be sorted by user for their window, which takes half as long again.
        cursor.execute(f"SET LOCAL enable_hashagg = {'off' if name == _PAIRS else 'on'}")
        cursor.execute(f"INSERT INTO {name} {select}", self._values(name))
        cursor.execute(f"ANALYZE {name}")

    def _values(self, name: str) -> list[Any] | None:
        return self._statement.bound if name == _PAIRS else None

    def _select(self, statement: str, *, labels: bool = False) -> pa.Table:
        statement, bound = self._bound(statement)
        fields = [("item", pa.int64()), *self._statement.label_fields()] if labels else _COUNTED
        return self._session.run(lambda cursor: table_of(cursor, statement, bound, pa.schema(fields)), self._progress)

    def _batches(self, statement: str) -> Iterator[pa.Table]:
        ordered, bound = self._bound(f"{statement} ORDER BY a")
        schema = pa.schema(_COUNTED)
        fetch = f"FETCH {_ROWS_AT_ONCE} FROM {_SUMS}"

        def begin(cursor: Cursor) -> None:
            cursor.execute(f"DECLARE {_SUMS} NO SCROLL CURSOR FOR {ordered}", bound)

        self._session.run(begin, self._progress)
        while (batch := self._session.run(lambda cursor: table_of(cursor, fetch, [], schema), self._progress)).num_rows:
            yield batch
        self._session.run(lambda cursor: cursor.execute(f"CLOSE {_SUMS}"))

    def _bound(self, statement: str) -> tuple[str, list[Any]]:
        """Return *statement*, preceded by the expressions if there are no tables, and its parameters."""
        if not self._expressions:
            return statement, []
        return f"WITH {self._expressions} SELECT * FROM ({statement}) AS q", self._statement.bound

    def _chosen(self, columns: Mapping[str, NDArray[np.int64]]) -> str:
        if not self._expressions:
            self._session.run(lambda cursor: _refill(cursor, columns), self._progress)
            return _CHOSEN
        arrays = [f"CAST('{{{','.join(map(str, values.tolist()))}}}' AS bigint[])" for values in columns.values()]
        return f"unnest({', '.join(arrays)}) AS chosen({', '.join(columns)})"


def _refill(cursor: Cursor, columns: Mapping[str, NDArray[np.int64]]) -> None:
    """Replace the rows of `_CHOSEN` by *columns*, in binary: a literal of a million numbers takes long to parse."""
    cursor.execute(f"DELETE FROM {_CHOSEN}")
    with cursor.copy(f"COPY {_CHOSEN} ({', '.join(columns)}) FROM STDIN (FORMAT binary)") as copy:
        copy.write(_copied(list(columns.values())))
    cursor.execute(f"ANALYZE {_CHOSEN}")


def _copied(columns: list[NDArray[np.int64]]) -> bytes:
    """Return *columns* of bigint in PostgreSQL's binary format of COPY: each row its number of fields, then sizes."""
    row = np.dtype([("fields", ">i2"), *((f"{n}{what}", type_) for n in range(len(columns)) for what, type_ in _FIELD)])
    rows = np.empty(len(columns[0]), row)
    rows["fields"] = len(columns)
    for n, values in enumerate(columns):
        rows[f"{n}size"], rows[f"{n}value"] = 8, values
    return b"PGCOPY\n\xff\r\n\0" + bytes(8) + rows.tobytes() + b"\xff\xff"


class PostgresSession:
    """A connection that is opened on first use, and closed after any failure.

    Args:
        url: URL of the database; without a password in it, libpq looks for one elsewhere.
        seconds: time limit of *work*, or None.
    """

    def __init__(self, url: Url, seconds: float | None) -> None:
        self._url = url
        self._where = str(url)
        self._account = "this account" if url.user is None else repr(url.user)
        self._seconds = seconds
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._kept = self._writable = self._stopped = False

    @property
    def version(self) -> int:
        """The version of the server that is connected, such as 150014; 0 if none is."""
        return 0 if self._connection is None else self._connection.info.server_version

    def run(self, work: Callable[[Cursor], _Result], progress: Callable[[float], None] | None = None) -> _Result:
        """Run *work* in one read-only transaction that sees one snapshot of the data, and return its result.

        Inside `transaction`, that transaction is used.

        Raises:
            EngineError: the server cannot be reached, or failed, or took too long.
            InputError: its database keeps text in another encoding than UTF-8.
        """
        finished = threading.Event()
        self._stopped = False

        def work_in_transaction() -> _Result:
            try:
                connection = self._in_transaction()
                result = work(psycopg.RawCursor(connection))
                if not self._kept:
                    connection.rollback()
                return result
            finally:
                finished.set()

        try:
            return run(work_in_transaction, lambda: self._cancel(finished), seconds=self._seconds, progress=progress)
        except psycopg.Error as error:
            self.close()
            # without the server's message, which may hold data
            if isinstance(error, psycopg.errors.QueryCanceled) and self._seconds is not None:
                raise EngineTimeout(f"the engine did not answer within {self._seconds:g} seconds") from None
            raise EngineError(self._failure(error)) from None
        except pa.ArrowException:
            self.close()
            raise EngineError(f"{self._where} answered with values of another type than its columns had") from None
        except BaseException:
            self.close()  # a cancellation may come late, and must not hit the next request
            raise

    @contextlib.contextmanager
    def transaction(self, *, writable: bool) -> Iterator[None]:
        """Run everything inside the context in one transaction, which is rolled back at the end.

        Args:
            writable: True if it can create temporary tables until SET TRANSACTION READ ONLY.
        """
        self._kept = True
        self._writable = writable
        try:
            yield
            if self._connection is not None:
                self._connection.rollback()
                self._connection.read_only = True
        except BaseException:
            self.close()
            raise
        finally:
            self._kept = self._writable = False

    def ping(self) -> None:
        """Connect, or detect that the server closed the connection; sends nothing on it.

        Raises:
            EngineUnreachable: the server cannot be reached.
        """
        if self._connection is not None:
            try:
                self._connection.pgconn.consume_input()  # does not block
            except psycopg.OperationalError:
                self.close()
        if self._connection is None:
            self._connection = self._open()

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        connection = self._connection
        self._connection = None
        if connection is not None:
            connection.close()

    def _in_transaction(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a connection with an open transaction."""
        if self._connection is not None:
            if self._connection.info.transaction_status == TransactionStatus.INTRANS:
                return self._connection
            try:
                return self._begin(self._connection)
            except psycopg.OperationalError:  # the connection was lost between requests
                if self._stopped:
                    raise
                self.close()
        self._connection = self._open()
        return self._begin(self._connection)

    def _open(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Connect for reading, in transactions that see one state of the data."""
        try:
            connection = psycopg.connect(
                _address(self._url), client_encoding="UTF8", application_name="discreet", prepare_threshold=None
            )
        except psycopg.Error:
            raise EngineUnreachable(self._refusal()) from None
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        if connection.info.parameter_status("server_encoding") != "UTF8":
            connection.close()
            raise InputError(
                f"the database {self._where} does not keep text as UTF8, in whose order labels are released"
            )
        return connection

    def _begin(self, connection: psycopg.Connection[tuple[Any, ...]]) -> psycopg.Connection[tuple[Any, ...]]:
        """Begin a transaction, and set every setting that could change a result.

        Settings of a transaction also work behind a connection pooler.
        """
        settings = {
            "row_security": "off",  # an error where it would leave out rows
            "TimeZone": "UTC",
            "jit": "off",
            "cursor_tuple_fraction": "1",  # cursors are read to the end
        }
        if self._seconds is not None:
            settings["statement_timeout"] = str(min(max(math.ceil(self._seconds * 1000), 1), _MAX_MILLISECONDS))
        if self._writable:
            connection.read_only = False
        calls = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())
        connection.execute(f"SELECT {calls}")
        return connection

    def _cancel(self, finished: threading.Event) -> None:
        """Cancel on the server repeatedly until *work* ends: a cancellation between two statements is lost.

        Each takes a connection of its own. If the network stalls, shutting down the socket ends the wait here.
        """
        self._stopped = True
        end = time.monotonic() + PATIENCE_SECONDS
        while not finished.is_set():
            connection = self._connection
            if connection is not None:
                threading.Thread(target=_cancel_statement, args=(connection,), daemon=True).start()
            finished.wait(PATIENCE_SECONDS / 2)
            if connection is not None and time.monotonic() >= end:
                _shut_down(connection)

    def _refusal(self) -> str:
        match PGconn.ping(_address(self._url).encode()):
            case Ping.OK:
                return (
                    f"{self._where} refuses {self._account}: the account, its password or the database is wrong, or "
                    f"it may not connect{'' if self._url.password else _LOGIN_HINT}"
                )
            case Ping.REJECT:
                return f"the PostgreSQL server of {self._where} takes no connections now; try again later"
        return f"there is no PostgreSQL server that answers at {self._where}; check the host, the port and the options"

    def _failure(self, error: psycopg.Error) -> str:
        match error:
            case psycopg.errors.QueryCanceled():
                return f"{self._where} stopped the statement: the account has a time limit, or it was cancelled there"
            case psycopg.errors.UndefinedTable() | psycopg.errors.UndefinedColumn():
                return (
                    f"{self._where} lacks a table or a column: if it is gone, open the source again; otherwise a "
                    "view or a query of the catalog misspells it"
                )
            case psycopg.errors.SyntaxError():
                return f"{self._where} cannot read the view or a query of the catalog as SQL; try it in psql"
            case psycopg.errors.InsufficientPrivilege():
                return (
                    f"{self._account} may not read all of it at {self._where}: "
                    "a right is missing, or row security hides rows"
                )
            case psycopg.OperationalError() if error.sqlstate is None or error.sqlstate.startswith("57P"):
                return f"the connection to {self._where} was lost"
        return f"{self._where} could not answer ({type(error).__name__})"


def _address(url: Url) -> str:
    parameters: dict[str, Any] = {"host": url.host, "port": url.port, "dbname": url.path}
    parameters |= {"user": url.user, "password": url.password, "connect_timeout": _CONNECT_SECONDS}
    parameters |= {name: value for name, value in url.options.items() if name != "table"}
    return make_conninfo(**{name: value for name, value in parameters.items() if value not in {None, ""}})


def _cancel_statement(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    try:
        connection.cancel_safe(timeout=_CANCEL_SECONDS)
    except psycopg.Error:
        _shut_down(connection)


def _shut_down(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Shut down the socket of a connection whose server cannot be reached to cancel."""
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return  # it is closed already


def table_of(cursor: Cursor, statement: str, parameters: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """Run one statement with $1, $2, ... bound, and return its rows as Arrow columns of *schema*."""
    cursor.execute(statement, parameters, binary=True)
    batches = []
    while rows := cursor.fetchmany(_ROWS_AT_ONCE):
        columns = zip(zip(*rows, strict=True), schema.types, strict=True)
        batches.append(pa.record_batch([pa.array(values, type_) for values, type_ in columns], schema))
    return pa.Table.from_batches(batches, schema)


def columns_of(cursor: Cursor, relation: str) -> list[tuple[str, EngineColumn]]:
    """Return the names and types of the columns of a relation in FROM; a domain is returned as its base type."""
    cursor.execute(f"SELECT * FROM {relation} LIMIT 0", binary=True)
    result = cursor.pgresult
    fields = (
        [] if result is None else [(result.fname(n), result.ftype(n), result.fmod(n)) for n in range(result.nfields)]
    )
    others = {oid for _, oid, _ in fields if oid >= _FIRST_OF_OTHERS}
    user_defined = {}
    if others:
        numbers = ", ".join(map(str, sorted(others)))
        cursor.execute(
            f"SELECT CAST(oid AS bigint), CAST(typname AS text), typtype = 'e' FROM pg_type WHERE oid IN ({numbers})"
        )
        user_defined = {oid: _user_defined(name, enumerated) for oid, name, enumerated in cursor.fetchall()}
    return [((name or b"").decode(), _column_of_type(oid, modifier, user_defined)) for name, oid, modifier in fields]


def _user_defined(name: str, enumerated: bool) -> EngineColumn:
    """Return a column of a type that is not built into PostgreSQL."""
    if enumerated:
        return EngineColumn(Kind.TEXT, "enum")
    return EngineColumn(Kind.TEXT, name) if name == "citext" else EngineColumn(Kind.OTHER, name)


def _column_of_type(oid: int, modifier: int, others: dict[int, EngineColumn]) -> EngineColumn:
    if oid in _INTEGERS:
        name, bits = _INTEGERS[oid]
        return EngineColumn(Kind.INTEGER, name, integer_type(name, bits))
    if oid == _NUMERIC and modifier >= 0:
        return _decimal(modifier - 4)
    return _TYPES.get(oid) or others.get(oid) or EngineColumn(Kind.OTHER, "other")


def _decimal(modifier: int) -> EngineColumn:
    """Return numeric(p, s) as a wider type with 0 <= s <= p; PostgreSQL allows s outside that range."""
    precision = modifier >> 16
    scale = ((modifier & 0x7FF) ^ 0x400) - 0x400
    digits = max(precision - scale, 0) + max(scale, 0)
    behind = max(scale, 0)
    if digits > _MAX_DIGITS:
        return EngineColumn(Kind.OTHER, "numeric")
    name = f"numeric({digits},{behind})"
    return EngineColumn(Kind.DECIMAL, name, decimal_type(name, digits, behind))


def arrow_type(column: EngineColumn) -> pa.DataType:
    """Return the Arrow type of a column's labels."""
    if column.kind is Kind.DECIMAL:
        digits, scale = column.type[len("numeric(") : -1].split(",")
        return pa.decimal128(int(digits), int(scale))
    if column.kind is Kind.TIMESTAMP:
        return pa.timestamp("us", "UTC" if column.type == _ZONED else None)
    return LABEL_TYPES[column.kind]
