"""ClickHouse over its HTTP interface: tables of any engine, and views."""

from __future__ import annotations

import re
import ssl
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from typing import ClassVar, TypeVar
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from discreet.engines.base import (
    LABEL_TYPES,
    SqlEngine,
    arrow_array,
    check_names,
    listing,
    refused_as,
    run,
    typed_domain,
)
from discreet.engines.http_connection import HttpConnection
from discreet.engines.pairs import SqlPairs, item_number
from discreet.engines.sql import Columns, EngineColumn, HeadStatement, decimal_type, integer_type
from discreet.engines.url import Url, parse_url
from discreet.errors import DiscreetError, EngineError, EngineTimeout, EngineUnreachable, InexactHead, InputError
from discreet.head_request import MONTHS, HeadRequest, Kind, Period

_Result = TypeVar("_Result")

SETTINGS = {
    # A query over a limit fails instead of dropping rows, even if an account or a profile says otherwise.
    **dict.fromkeys(
        [
            *(
                f"{what}_overflow_mode"
                for what in ("group_by", "distinct", "join", "set", "sort", "result", "transfer")
            ),
            *(f"{what}_overflow_mode{leaf}" for what in ("read", "timeout") for leaf in ("", "_leaf")),
        ],
        "throw",
    ),
    **dict.fromkeys(["limit", "offset", "skip_unavailable_shards", "max_rows_to_group_by"], "0"),
    **dict.fromkeys(["distributed_group_by_no_merge", "extremes", "final", "partial_result_on_first_cancel"], "0"),
    **dict.fromkeys(["ignore_cold_parts_seconds", "fallback_to_stale_replicas_for_distributed_queries"], "0"),
    **dict.fromkeys(["max_parallel_replicas", "apply_deleted_mask"], "1"),
    "additional_table_filters": "{}",
    "additional_result_filter": "",
    "count_distinct_implementation": "uniqExact",
    # Semantics of the statement.
    "cast_keep_nullable": "1",
    "join_use_nulls": "1",
    "transform_null_in": "0",
    "prefer_column_name_to_alias": "1",
    "enable_extended_results_for_datetime_functions": "1",
    "aggregate_functions_null_for_empty": "0",
    "decimal_check_overflow": "1",
    "date_time_output_format": "simple",
    # Format of the response.
    "output_format_arrow_string_as_string": "1",
    "output_format_arrow_low_cardinality_as_dictionary": "0",
    "wait_end_of_query": "1",  # else an error after the first rows has status 200
    "cancel_http_readonly_queries_on_client_close": "1",
    "max_query_size": "1073741824",  # for listed items
}
"""Settings sent with every statement; a server that does not know one, or forbids the account to set it, refuses."""

OLDEST = 26
"""The first version that the suite for engines was run on."""

_BITS = {f"{sign}Int{bits}": bits for sign in ("", "U") for bits in (8, 16, 32, 64)}
_KINDS = {
    **dict.fromkeys(_BITS, Kind.INTEGER),
    **dict.fromkeys(["String", "UUID", "Enum8", "Enum16"], Kind.TEXT),
    **dict.fromkeys(["Float32", "Float64"], Kind.FLOAT),
    **dict.fromkeys(["Date", "Date32"], Kind.DATE),
    **dict.fromkeys(["DateTime", "DateTime64"], Kind.TIMESTAMP),
    "Bool": Kind.BOOLEAN,
    "Decimal": Kind.DECIMAL,
}
_WRAPPED = re.compile(r"(?:LowCardinality|Nullable)\((.*)\)")
_MAX_DIGITS = 38  # digits of a decimal, and of fractional seconds, in the Arrow types used
_FINEST = 6
_HOUR = 3_600_000_000
_MICROSECONDS = {"hour": (_HOUR, 0), "day": (24 * _HOUR, 0), "week": (7 * 24 * _HOUR, -3 * 24 * _HOUR)}
"""Length of each period of fixed length, and the start of one: 1969-12-29 was a Monday."""

_MISSING_CODES = {"60", "81"}
_UNKNOWN_CODE = "47"
_TIMEOUT_CODE = "159"
_REFUSED_CODES = {"192", "193", "194", "497", "516"}
_SETTING_CODES = {"115", "164", "452"}
_PING_SECONDS = 10.0
_SESSION_SECONDS = 60  # idle limit of a session; it deletes temporary tables that could not be dropped


class ClickHouseEngine(SqlEngine["ClickHouseClient", "ClickHouseStatement"]):
    """An engine for a table of ClickHouse.

    Args:
        source_url: clickhouse://reader@host:8123/database?table=name; with https=true over TLS, and with
            temporary=true for pair queries, which make temporary tables.
        table: name of the table, if the URL does not name it.
        view: a SELECT of the data owner, used instead of a table.
        password: password of the account; sent only over TLS.
        timeout_seconds: time limit of a query, here and on the server, or None.

    Raises:
        InputError: the URL is not valid, or neither a table nor a view was named, or both.
        EngineUnreachable: no table was named, and the server cannot be reached to list its tables.
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
        url.check_options({"table", "https", "temporary"})
        truths = all(url.options.get(name, "true") in {"true", "false"} for name in ("https", "temporary"))
        if not url.host or not url.path or "/" in url.path or not truths:
            raise InputError(
                "a ClickHouse URL looks like clickhouse://reader@host:8123/database?table=name&https=true&temporary=true"
            )
        table = url.table(table, view)
        url.check_tls("ClickHouse")
        self._where = url
        self._seconds = timeout_seconds
        super().__init__(f"{url}, a view" if table is None else f"{url}, table {table}")
        if view is None and table is None:
            raise InputError(f"name a table; the tables of {url} are {self._tables()}")
        self._is_table = table is not None
        self._relation = f"({view}\n) AS shown" if table is None else f"{quoted(url.path)}.{quoted(table)}"

    def fetch(self, statement: str) -> pa.Table:
        with self._connection() as client:
            return client.run(statement)

    @property
    def has_pairs(self) -> bool:
        return self._where.options.get("temporary") == "true"

    def _connect(self) -> ClickHouseClient:
        return ClickHouseClient(self._where, self._seconds)

    def _ping(self, connection: ClickHouseClient) -> None:
        connection.ping()

    def _describe(self, connection: ClickHouseClient) -> Mapping[str, EngineColumn]:
        try:
            shown = connection.run(f"DESCRIBE TABLE (SELECT * FROM {self._relation})")
        except ClickHouseNotFoundError:
            raise InputError(f"there is no such table; the tables of {self._where} are {self._tables()}") from None
        version = str(connection.run("SELECT version() AS version").column("version")[0])
        if int(version.partition(".")[0]) < OLDEST:
            raise InexactHead(f"ClickHouse {version} is not known to count exactly; versions from {OLDEST} on are")
        names = shown.column("name").to_pylist()
        check_names(names, self._name)
        return Columns(zip(names, map(column_of, shown.column("type").to_pylist()), strict=True))

    def _statement(
        self, connection: ClickHouseClient, request: HeadRequest, columns: Mapping[str, EngineColumn], seed: bytes
    ) -> ClickHouseStatement:
        del connection
        return ClickHouseStatement(request, self._relation, columns, seed)

    def _plan(self, connection: ClickHouseClient, statement: ClickHouseStatement) -> None:
        super()._plan(connection, statement)
        # Not the statement: to describe or explain it, ClickHouse computes scalar subqueries of views, which read rows.
        if self._is_table:
            connection.execute(f"DESCRIBE TABLE {self._relation}")

    def _run(
        self,
        connection: ClickHouseClient,
        statement: ClickHouseStatement,
        progress: Callable[[float], None] | None,
    ) -> pa.Table:
        return connection.run(statement.write(), progress)

    def check_pairs(self) -> None:
        if not self.has_pairs:
            return
        refused = (
            "ClickHouse does not let the account make temporary tables, which temporary=true in the URL asks for: "
            "grant CREATE TEMPORARY TABLE, or leave temporary out of the URL"
        )
        with self._connection() as client, client.session() as prefix, refused_as(refused):
            client.execute(f"CREATE TEMPORARY TABLE {prefix}check (n UInt64) ENGINE = Memory")
            client.execute(f"DROP TEMPORARY TABLE {prefix}check")

    @contextmanager
    def _open_pairs(
        self,
        connection: ClickHouseClient,
        statement: ClickHouseStatement,
        progress: Callable[[float], None] | None,
    ) -> Iterator[ClickHousePairs]:
        if not self.has_pairs:
            raise InputError(
                "pair queries make temporary tables: the URL needs temporary=true, and the account the right to "
                "CREATE TEMPORARY TABLE"
            )
        with connection.session() as prefix:
            pairs = ClickHousePairs(statement, prefix, connection, progress)
            try:
                pairs.create()
                yield pairs
            finally:
                if not isinstance(sys.exception(), EngineTimeout):  # a stalled network would delay the error again
                    pairs.drop()

    def _tables(self) -> str:
        with self._connection() as client:
            client.ping()
            return listing(client.run(f"SHOW TABLES FROM {quoted(self._where.path)}").column(0).to_pylist())


class ClickHouseStatement(HeadStatement):
    """The statement for a head in ClickHouse's SQL. Its text has no collation: it is compared by bytes."""

    text: ClassVar[str] = "String"
    double: ClassVar[str] = "Float64"
    types: ClassVar[Mapping[Kind, str]] = {
        Kind.DATE: "Date32",
        Kind.TIMESTAMP: "DateTime64(6, 'UTC')",
        Kind.BOOLEAN: "Bool",
    }

    def write(self) -> str:
        return self.with_listed(super().write())

    def with_listed(self, select: str) -> str:
        """Return a SELECT that uses `rows`, preceded by the listed items."""
        return select if self.request.listed is None else f"WITH listed AS ({self._listed_items()}) {select}"

    def quoted(self, name: str) -> str:
        return quoted(name)

    def constant(self, text: str, type_: str | None) -> str:
        return _literal(text) if type_ is None else f"CAST({_literal(text)} AS {type_})"

    def start_of(self, moment: str, period: Period) -> str:
        # date_trunc takes the last second of a period before 1970 for the next period, unless it has no fraction.
        width, first = _MICROSECONDS["day" if period in MONTHS else period]
        past = f"toUnixTimestamp64Micro({moment})"
        start = f"fromUnixTimestamp64Micro({past} - positiveModulo({past} - {first}, {width}), 'UTC')"
        return super().start_of(start, period) if period in MONTHS else start

    def moment(self, column: str) -> str:
        value = self.value(column)
        described = self.columns[column]
        type_ = self.types[described.kind]
        digits = _digits(described.type)
        if digits == _FINEST:
            return f"CAST({value} AS {type_})"
        # A timestamp in coarser units can overflow microseconds, so it is clamped to the range before the cast.
        end = f"9999-12-31 23:59:59.{'9' * digits}".removesuffix(".")
        first, last = (f"CAST('{text}' AS DateTime64({digits}, 'UTC'))" for text in ("0001-01-01", end))
        cast = f"CAST(least(greatest({value}, {first}), {last}) AS {type_})"
        return f"if({value} BETWEEN {first} AND {last}, {cast}, NULL)"

    def label(self, column: str) -> str:
        described = self.columns[column]
        if described.kind is Kind.TEXT:  # ClickHouse does not check that text is UTF-8
            text = self._text(column)  # to test it takes a third of the time of toValidUTF8
            return f"if(isValidUTF8({text}), {text}, toValidUTF8({text}))"
        return self.value(column) if described.type == "UInt64" else super().label(column)

    def user(self, column: str) -> str:
        return self._text(column) if self.columns[column].kind is Kind.TEXT else super().user(column)

    def compared(self, column: str, kind: Kind | None) -> str:
        match self.columns[column].kind:
            case Kind.TEXT:
                return self._text(column)
            case Kind.FLOAT:  # nullif would keep NaN, which equals nothing; IN distinguishes -0.0 from 0.0
                return f"if(isNaN({self.value(column)}), NULL, {self.value(column)} + 0.0)"
        return super().compared(column, kind)

    def as_text(self, name: str, column: str) -> str:
        described = self.columns[column]
        if described.kind is Kind.DECIMAL and described.number is not None:  # a cast drops trailing zeros
            return f"toDecimalString({name}, {described.number.scale})"
        return super().as_text(name, column)

    def size(self, text: str) -> str:
        return f"length({text})"

    def digest(self, text: str) -> str:
        return f"lower(hex(MD5({text})))"

    def _text(self, column: str) -> str:
        value = self.value(column)
        return value if self.columns[column].type == "String" else f"CAST({value} AS String)"

    def _listed_items(self) -> str:
        kinds = {item: self.columns[item] for item in self.request.listed.column_names}
        listed = typed_domain(self.request.listed, {item: label_type(column) for item, column in kinds.items()})
        arrays = []
        labels = []
        for n, (column, values) in enumerate(zip(kinds.values(), listed.columns, strict=True), 1):
            texts = values.cast(pa.string()) if column.kind is Kind.BOOLEAN else values
            arrays.append(f"[{', '.join(_literal(str(text)) for text in texts.to_pylist())}]")
            type_ = {Kind.TEXT: "String", Kind.DECIMAL: column.type, **self.types}.get(column.kind, "Int64")
            labels.append(f"CAST(v.{n} AS {'UInt64' if column.type == 'UInt64' else type_}) AS i{n - 1}")
        return f"SELECT {', '.join(labels)} FROM (SELECT arrayJoin(arrayZip({', '.join(arrays)})) AS v)"


class ClickHousePairs(SqlPairs):
    """Pairs in temporary tables of a session, in the memory of the server.

    The users of an item are one array, as in the exact count of an item: items are numbered without a join by labels,
    and candidates are joined with items instead of pairs.

    Args:
        prefix: prefix of the tables' names.
    """

    def __init__(
        self,
        words: ClickHouseStatement,
        prefix: str,
        client: ClickHouseClient,
        progress: Callable[[float], None] | None,
    ) -> None:
        super().__init__(words)
        self._statement = words
        self._distinct, self._sizes, self._arrays, self._listed = (
            f"{prefix}{name}" for name in ("distinct", "users", "items", "chosen")
        )
        self._users = f"(SELECT u, n FROM {self._sizes} WHERE {self._few}) AS s"
        self._numbered = f"(SELECT *, item AS h FROM {self._arrays}) AS i"
        self._client = client
        self._progress = progress

    def create(self) -> None:
        """Write the relations, one after the other."""
        items = self._words.items
        grouped = f"SELECT {items}, groupUniqArray(u) AS us FROM ({{}}) AS r GROUP BY {items}"
        self._write(self._distinct, self._statement.with_listed(grouped.format(self._words.rows())))
        self._write(self._sizes, f"SELECT u, count(*) AS n FROM {self._distinct} ARRAY JOIN us AS u GROUP BY u")
        source = self._distinct
        if self._has_large(self._sizes):
            large = f"SELECT u FROM {self._sizes} WHERE NOT {self._few}"
            few = f"SELECT {items}, u FROM {self._distinct} ARRAY JOIN us AS u WHERE u NOT IN ({large})"
            source = f"({grouped.format(few)}) AS d"
        self._write(self._arrays, f"SELECT {items}, us, {item_number(self._words)} FROM {source}")
        self._client.execute(f"DROP TEMPORARY TABLE {self._distinct}")

    def drop(self) -> None:
        """Drop the relations; ClickHouse drops the remaining ones at the end of the session."""
        with suppress(DiscreetError):
            for name in (self._distinct, self._sizes, self._arrays, self._listed):
                self._client.execute(f"DROP TEMPORARY TABLE IF EXISTS {name}")

    def _write(self, name: str, select: str) -> None:
        self._client.execute(f"CREATE TEMPORARY TABLE {name} ENGINE = Memory AS {select}", self._progress)

    def _named_pairs(self, columns: str) -> str:
        pairs = f"(SELECT u, item AS h FROM {self._arrays} ARRAY JOIN us AS u) AS p"
        return f"(SELECT {columns}, h FROM {pairs} JOIN {self._users} USING (u)) AS q"

    def _pairs_of(self, chosen: str) -> str:
        return f"(SELECT *, u FROM (SELECT * FROM {self._numbered} JOIN {chosen} USING (item)) ARRAY JOIN us AS u) AS p"

    def _select(self, statement: str, *, labels: bool = False) -> pa.Table:
        del labels  # the columns have the types of the labels already
        return self._client.run(statement, self._progress)

    def _batches(self, statement: str) -> Iterator[pa.Table]:
        return self._client.batches(f"{statement} ORDER BY a", self._progress)

    def _chosen(self, columns: Mapping[str, NDArray[np.int64]]) -> str:
        fields = ", ".join(f"{name} Int64" for name in columns)
        self._client.execute(f"DROP TEMPORARY TABLE IF EXISTS {self._listed}")
        self._client.execute(f"CREATE TEMPORARY TABLE {self._listed} ({fields}) ENGINE = Memory")
        sink = pa.BufferOutputStream()
        table = pa.table({name: arrow_array(values) for name, values in columns.items()})
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        insert = f"INSERT INTO {self._listed} FORMAT ArrowStream"
        self._client.execute(insert, self._progress, sink.getvalue().to_pybytes())
        return self._listed

    def _double(self, value: float) -> str:
        # Passed as bits, because a setting decides how exactly ClickHouse parses the text of a float.
        return f"reinterpretAsFloat64(toUInt64({np.float64(value).view(np.uint64)}))"


class ClickHouseNotFoundError(InputError):
    """The statement names a table or database that is not there, or that the account may not see."""


class ClickHouseClient:
    """A connection to ClickHouse, opened at its first use.

    Args:
        url: URL of the server; its path is the default database.
        seconds: time limit of a statement, here and on the server, or None.
    """

    def __init__(self, url: Url, seconds: float | None) -> None:
        self._url = url
        self._seconds = seconds
        self._query = SETTINGS | {"database": url.path, "default_format": "ArrowStream"}
        self._query |= {} if seconds is None else {"max_execution_time": f"{seconds:g}"}
        tls = ssl.create_default_context() if url.options.get("https") == "true" else None
        self._http = HttpConnection(url.host, url.port or (8123 if tls is None else 8443), tls)

    def run(self, statement: str, progress: Callable[[float], None] | None = None) -> pa.Table:
        """Return all rows of *statement*; timestamps are in UTC, without a time zone.

        Raises:
            NotFoundError: the statement names a table that does not exist.
            EngineError: the server cannot be reached, refused the statement, failed, or took too long.
        """
        body = self.execute(statement, progress)
        try:
            table = pa.ipc.open_stream(body).read_all()
        except (pa.ArrowException, OSError):
            raise EngineError(f"what answers at {self._url} is not ClickHouse") from None
        types = [pa.timestamp("us") if pa.types.is_timestamp(type_) else type_ for type_ in table.schema.types]
        return table.cast(pa.schema(list(zip(table.column_names, types, strict=True))))

    def batches(self, statement: str, progress: Callable[[float], None] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of *statement* in batches, which are read one by one; raises as `run` does.

        The server keeps the response, in files above its limit of memory, until it is read.
        """
        response = self._within_limit(lambda: self._response(statement), progress)
        try:
            stream = self._within_limit(lambda: pa.ipc.open_stream(response), progress)
            while (batch := self._within_limit(lambda: next(stream, None), progress)) is not None:
                yield pa.Table.from_batches([batch])
            self._within_limit(response.read, progress)
        except (pa.ArrowException, OSError, HTTPException):
            raise EngineError(f"the response of {self._url} ended early") from None
        finally:
            if not response.isclosed():
                self._http.close()

    def execute(
        self, statement: str, progress: Callable[[float], None] | None = None, data: bytes | None = None
    ) -> bytes:
        """Return ClickHouse's response to *statement*; raises as `run` does.

        Args:
            data: the rows of an INSERT, in the format that it names.
        """
        return self._within_limit(lambda: self._answer(statement, data), progress)

    def _within_limit(self, step: Callable[[], _Result], progress: Callable[[float], None] | None) -> _Result:
        return run(step, self._http.cut, seconds=self._seconds, progress=progress)

    def ping(self) -> None:
        """Connect, or check that the server still responds; sends no statement.

        Raises:
            EngineUnreachable: the server does not respond.
        """
        with suppress(ConnectionError):
            if self._http.send("GET", "/ping", seconds=_PING_SECONDS)[1].startswith(b"Ok"):
                return
        self._http.close()
        raise EngineUnreachable(f"no ClickHouse answers at {self._url}")

    @contextmanager
    def session(self) -> Iterator[str]:
        """Run all statements inside the context in one session; yield a prefix for its temporary tables.

        Behind a load balancer, another server has no such session, and refuses.
        """
        name = f"discreet_{uuid.uuid4().hex}"
        before = self._query
        self._query = before | {"session_id": name, "session_timeout": str(_SESSION_SECONDS)}
        try:
            self.execute("SELECT 1")
            self._query["session_check"] = "1"
            yield f"{name}_"
        finally:
            self._query = before

    def close(self) -> None:
        """Close the socket."""
        self._http.close()

    def _answer(self, statement: str, data: bytes | None) -> bytes:
        try:
            return self._response(statement, data).read()
        except (OSError, HTTPException):
            self._http.close()
            raise EngineError(f"ClickHouse cannot be reached at {self._url}") from None

    def _response(self, statement: str, data: bytes | None = None) -> HTTPResponse:
        """Return the response to *statement*, of which only the headers were read."""
        account = {"X-ClickHouse-User": self._url.user or "default"}
        account |= {} if self._url.password is None else {"X-ClickHouse-Key": self._url.password}
        body, query = (statement.encode(), {}) if data is None else (data, {"query": statement})
        try:  # no timeout on the connection: `run` enforces the time limit
            response = self._http.request("POST", f"/?{urlencode(self._query | query)}", body, account)
            code = response.getheader("X-ClickHouse-Exception-Code")
            if response.status != HTTPStatus.OK or code is not None:
                response.read()
                raise self._refused(code or "")
        except (ConnectionError, HTTPException):
            raise EngineError(f"ClickHouse cannot be reached at {self._url}") from None
        return response

    def _refused(self, code: str) -> EngineError | InputError:
        """Return the error for ClickHouse's error code, without ClickHouse's message, which may hold data."""
        if code in _MISSING_CODES:
            return ClickHouseNotFoundError(f"{self._url} has no such table")
        if code == _UNKNOWN_CODE:
            return EngineError(f"a column is gone from {self._url}; open it again")
        if code == _TIMEOUT_CODE and self._seconds is not None:
            return EngineTimeout(f"the engine did not answer within {self._seconds:g} seconds")
        if code in _REFUSED_CODES:
            return EngineError(f"ClickHouse does not let {self._url.user or 'default'} read {self._url}")
        if code in _SETTING_CODES:
            return EngineError(
                f"{self._url} does not take a setting that exact counts need; see docs/engines/clickhouse"
            )
        return EngineError(f"ClickHouse could not count in {self._url} (code {code or 'unknown'})")


def quoted(name: str) -> str:
    """Return *name* as a quoted identifier; a backslash is an escape character in it."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def column_of(type_: str) -> EngineColumn:
    """Return a column of ClickHouse's type *type_*."""
    while (inner := _WRAPPED.fullmatch(type_)) is not None:
        type_ = inner[1]
    name, _, parameters = type_.removesuffix(")").partition("(")
    kind = _KINDS.get(name, Kind.OTHER)
    if kind is Kind.INTEGER:
        return EngineColumn(kind, type_, integer_type(type_, _BITS[name], signed=name.startswith("Int")))
    if kind is Kind.DECIMAL:
        digits, scale = map(int, parameters.split(","))
        fits = digits <= _MAX_DIGITS
        return (
            EngineColumn(kind, type_, decimal_type(type_, digits, scale)) if fits else EngineColumn(Kind.OTHER, type_)
        )
    return EngineColumn(Kind.OTHER if _digits(type_) > _FINEST else kind, type_)


def _digits(type_: str) -> int:
    """Return a timestamp type's digits of fractional seconds, or `_FINEST` if all its values fit microseconds."""
    return int(type_[len("DateTime64(")]) if type_.startswith("DateTime64(") else _FINEST


def label_type(column: EngineColumn) -> pa.DataType:
    """Return the Arrow type of a column's labels."""
    if column.kind is Kind.DECIMAL and column.number is not None:
        return pa.decimal128(len(str(int(column.number.most * 10**column.number.scale))), column.number.scale)
    if column.type == "UInt64":
        return pa.uint64()
    return LABEL_TYPES[column.kind]
