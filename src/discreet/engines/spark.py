"""Spark, from version 4.0 on: tables of its catalogs and Parquet files, in this process or at a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from discreet.engines.head import exact_head
from discreet.engines.listed import typed_domain
from discreet.engines.pairs import NoPairs
from discreet.engines.spark_session import FAILURES, DriverQuestion, ServerQuestion, condition_of
from discreet.engines.spark_statement import LISTED, ROWS, SparkStatement, column_of
from discreet.engines.statement import check_sum
from discreet.engines.url import parse_url
from discreet.errors import EngineError, InexactHead, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from discreet.engines.sql import Column
    from discreet.engines.url import Url
    from discreet.question import HeadRequest, Kind
    from discreet.values import ExactHead

_Result = TypeVar("_Result")

_FILES = "source"
_DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
"""Where Spark says of text what it was declared as."""

_STRICT = dict.fromkeys(("ignoreCorruptFiles", "ignoreMissingFiles", "ignoreInvalidPartitionPaths"), "false")
"""Options of a table come before settings. Given here as well, Spark refuses a table that has them otherwise."""

_OTHERWISE = "_LEGACY_ERROR_TEMP_1151"
_NOT_THERE = {"TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "PATH_NOT_FOUND", "REQUIRES_SINGLE_PART_NAMESPACE"}
_NOT_READ = {
    "COLUMN_ALREADY_EXISTS",
    "FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER",
    "PARSE_SYNTAX_ERROR",
    "UNABLE_TO_INFER_SCHEMA",
    "UNRESOLVED_COLUMN",
}
_TABLES_SHOWN = 30


class SparkEngine(NoPairs):
    """A table that Spark reads; see `discreet.engines.base.Engine`.

    Args:
        source_url: spark://local for Spark in this process (the one that runs already, or a new one on all cores),
            spark://host:7077 for the executors of a standalone cluster with the driver in this process, or
            sc://user@host:15002 for a Spark Connect server (ssl=true over TLS); with ?table=database.name or
            ?path=/data/*.parquet.
        table: which table; or the URL names it.
        view: or a SELECT of the data owner's, in which the files of a path are called source.
        password: the token of a Spark Connect server.
        timeout_seconds: how long a count may take, or None.

    Raises:
        InputError: the URL cannot be meant, or there is neither a table nor files nor a view.
        EngineError: tables were to be listed, and Spark cannot be reached or started.
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
        self._url = _read(source_url)
        self._password = self._url.password if password is None else password
        if self._password is not None and self._url.scheme != "sc":
            raise InputError("only a Spark Connect server (sc://) takes a password")
        self._table = self._url.options.get("table") if table is None else table
        self._path = self._url.options.get("path")
        self._view = view
        self._seconds = timeout_seconds
        self._columns: Mapping[str, Column] | None = None
        if self._table is not None and (self._path is not None or view is not None):
            raise InputError("name a table, or files, or a view, not a table and another")
        if self._table is None and self._path is None and view is None:
            raise InputError(f"name a table or files; the tables of {self._url} are {self._tables()}")

    @property
    def name(self) -> str:
        """See `Engine.name`: the URL, and the table or the files."""
        named = f", table {self._table}" if self._table else f", files {self._path}" if self._path else ""
        return f"{self._url}{named}" + ("" if self._view is None else ", a view")

    def columns(self) -> Mapping[str, Kind]:
        """See `Engine.columns`."""
        return {name: column.kind for name, column in self._described().items()}

    def scale(self, column: str) -> int:
        """See `Engine.scale`."""
        number = self._described()[column].number
        return 0 if number is None else number.scale

    def check_sum(self, column: str) -> None:
        """See `Engine.check_sum`."""
        check_sum(column, self._described()[column])

    def data_version(self) -> str | None:
        """None: Spark has no name for the state of what its catalogs show."""
        return None

    def check(self, request: HeadRequest) -> None:
        self._ask(lambda session: _table(session, "SELECT 1", []))
        statement = SparkStatement(request, ROWS, self._described(), bytes(32))
        statement.write()
        if request.domain is not None:
            typed_domain(request.domain, statement.label_types())

    def head(
        self, request: HeadRequest, *, seed: bytes = b"", progress: Callable[[float], None] | None = None
    ) -> ExactHead:
        """See `Engine.head`."""
        statement = SparkStatement(request, ROWS, self._described(), seed)
        text = statement.write()
        listed = None if request.domain is None else typed_domain(request.domain, statement.label_types())

        def count(session: SparkSession) -> pa.Table:
            self._rows(session)
            if listed is not None:
                session.createDataFrame(listed, statement.listed_schema()).createOrReplaceTempView(LISTED)
            return _table(session, text, statement.parameters)

        return exact_head(self._ask(count, progress), request)

    def fetch(self, statement: str) -> pa.Table:
        """See `Engine.fetch`."""

        def select(session: SparkSession) -> pa.Table:
            self._files(session)
            return _table(session, statement, [])

        return self._ask(select)

    def close(self) -> None:
        """Nothing is open between questions. A Spark in this process goes on: others may be using it."""

    def _described(self) -> Mapping[str, Column]:
        if self._columns is None:
            try:
                fields = self._ask(lambda session: self._rows(session).schema.fields)
            except _NotThereError as error:
                raise InputError(str(error)) from None
            if len({field.name.casefold() for field in fields}) < len(fields):
                raise InputError(f"{self.name} has columns whose names differ in case only, or not at all")
            if any("${" in field.name for field in fields):
                # On their way to the readers of files, names are filled in with settings, and found to be missing.
                raise InputError(f"Spark may take a column for empty whose name holds '${{'; rename it in {self.name}")
            self._columns = {
                field.name: column_of(field.dataType.simpleString(), field.metadata.get(_DECLARED, ""))
                for field in fields
            }
        return self._columns

    def _files(self, session: SparkSession) -> None:
        """Let statements of the data owner's call the files by the name of source."""
        if self._path is not None:
            session.read.options(**_STRICT).parquet(self._path).createOrReplaceTempView(_FILES)

    def _rows(self, session: SparkSession) -> Any:  # noqa: ANN401 - a data frame of Spark's or of Spark Connect's
        """The table, the files or the view, which statements know as `ROWS`."""
        self._files(session)
        if self._view is not None:
            # Between parentheses, nothing but a query can stand.
            rows = session.sql(f"SELECT * FROM ({self._view}\n)")
        else:
            rows = session.read.options(**_STRICT).table(self._table or _FILES)
        rows.createOrReplaceTempView(ROWS)
        return rows

    def _ask(self, work: Callable[[SparkSession], _Result], progress: Callable[[float], None] | None = None) -> _Result:
        kind = ServerQuestion if self._url.scheme == "sc" else DriverQuestion
        try:
            return kind(self._url, self._password).ask(work, seconds=self._seconds, progress=progress)
        except FAILURES as error:
            raise self._told(condition_of(error)) from None

    def _told(self, condition: str) -> EngineError:
        """What went wrong, in words of ours: Spark's may hold data."""
        if condition in _NOT_THERE:
            return _NotThereError(f"Spark finds no such table or file: {self.name}")
        if {condition, condition.partition(".")[0]} & _NOT_READ:
            return _NotThereError(f"Spark cannot read it as a table, as Parquet files or as a SELECT: {self.name}")
        if condition == _OTHERWISE:
            return InexactHead(f"options of its own leave files out of it: {self.name}; take {', '.join(_STRICT)} away")
        if condition == "UNAVAILABLE":
            return EngineError(f"no Spark Connect server answers at {self._url}; check the host and the port")
        if condition in {"UNAUTHENTICATED", "PERMISSION_DENIED"}:
            return EngineError(f"{self._url} lets nobody in with this password, or with none")
        return EngineError(f"Spark could not answer: {self.name} ({condition})")

    def _tables(self) -> str:
        names = [table.name for table in self._ask(lambda session: session.catalog.listTables())]
        shown = ", ".join(map(repr, names[:_TABLES_SHOWN])) or "none"
        return f"{shown} and others" if len(names) > _TABLES_SHOWN else shown


class _NotThereError(EngineError):
    """There is no such table or file, or it is none."""


def _read(source_url: str) -> Url:
    url = parse_url(source_url)
    remote = url.scheme == "sc"
    url.check_options({"table", "path", "ssl"} if remote else {"table", "path"})
    account = None if remote else url.user
    port = url.port if url.host == "local" else None
    if not url.host or url.path or account or port or url.options.get("ssl", "true") not in {"true", "false"}:
        raise InputError(
            "a Spark URL looks like spark://local?path=/data/*.parquet, spark://host:7077?table=database.name or "
            "sc://user@host:15002?table=database.name&ssl=true"
        )
    return url


def _table(session: SparkSession, statement: str, parameters: list[str]) -> pa.Table:
    """What *statement* returns; moments without their zone, which is UTC, and nothing marked as never missing."""
    table: pa.Table = session.sql(statement, args=parameters).toArrow()
    moment = pa.timestamp("us")
    types = [moment if pa.types.is_timestamp(type_) else type_ for type_ in table.schema.types]
    return table.cast(pa.schema(list(zip(table.column_names, types, strict=True))))
