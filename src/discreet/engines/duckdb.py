"""DuckDB, in this process and out of core: files, DuckDB tables, Arrow tables, pandas and Polars frames."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from discreet.engines.base import SqlEngine, check_names, run, typed_domain
from discreet.engines.duckdb_pairs import DuckDBPairs
from discreet.engines.duckdb_source import (
    Source,
    cast_columns,
    check_values,
    fingerprint,
    forbid_other_files,
    name_source,
    open_source,
    original_names,
    prepare,
)
from discreet.engines.sources import CHANGED
from discreet.engines.spill import SpillFolder
from discreet.engines.sql import Columns, EngineColumn, HeadStatement, decimal_type, integer_type
from discreet.errors import DiscreetError, EngineError, EngineUnreachable, InputError, UnfitData
from discreet.head_request import HeadRequest, Kind

_Result = TypeVar("_Result")

_BITS = {
    f"{sign}{name}": bits
    for sign in ("", "U")
    for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64), ("HUGEINT", 128))
}
_KINDS = {
    **dict.fromkeys(_BITS, Kind.INTEGER),
    "VARCHAR": Kind.TEXT,
    "UUID": Kind.TEXT,
    "ENUM": Kind.TEXT,
    "BOOLEAN": Kind.BOOLEAN,
    "DATE": Kind.DATE,
    "TIMESTAMP": Kind.TIMESTAMP,
    "TIMESTAMP_S": Kind.TIMESTAMP,
    "TIMESTAMP_MS": Kind.TIMESTAMP,
    "TIMESTAMP_NS": Kind.TIMESTAMP,
    "TIMESTAMP WITH TIME ZONE": Kind.TIMESTAMP,
    "TIMESTAMPTZ_NS": Kind.TIMESTAMP,
    "DECIMAL": Kind.DECIMAL,
    "FLOAT": Kind.FLOAT,
    "DOUBLE": Kind.FLOAT,
}
_READ_AS = {
    Kind.INTEGER: "DOUBLE",
    Kind.DECIMAL: "DOUBLE",
    Kind.BOOLEAN: "BOOLEAN",
    Kind.DATE: "DATE",
    Kind.TIMESTAMP: "TIMESTAMP",
}
"""For files without types, the type that text is cast to, by the kind of the constant in the comparison."""

_OTHER_FILE = "{} reads a file that is not its source; views and statements may read source only"

_NARROW_USER = (
    "column {!r} has 8 or 16 bits, which a Parquet file may exceed, and wider values are cut, so that two users become "
    "one; write the user column with 32 bits or more"
)

_AS_TEXT = {"ENUM", "UUID", "HUGEINT", "UHUGEINT"}


def _configure(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("SET python_enable_replacements = false; SET TimeZone = 'UTC'")
    # DuckDB computes its progress only with a progress bar enabled, which needs ipywidgets in Jupyter.
    with contextlib.suppress(duckdb.InvalidInputException):
        connection.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
        connection.execute("SET progress_bar_time = 0")


def _base(type_: str) -> str:
    """Return the name of a type without its parameters; lists and other nested types keep theirs."""
    return type_ if type_.endswith("]") else type_.partition("(")[0]


class DuckDBEngine(SqlEngine[duckdb.DuckDBPyConnection, "DuckDBStatement"]):
    """An engine for files, DuckDB tables and frames.

    Args:
        source: a path or glob of Parquet or CSV files, a DuckDB file or "duckdb:///file.db?table=name", or a frame of
            `discreet.engines.sources.as_arrow`.
        table: name of the table of a DuckDB file; None if the file has only one.
        view: a SELECT of the data owner, in which files and frames are called source.
        timeout_seconds: time limit of a query, or None.
        cast: types of columns that have another one, as in `discreet.scan`.
        defers_check: True to check the values of Parquet files without view and cast in the first query of some rows,
            or when a query of all rows fails. For queries of the data's owner alone, and without a budget.

    Attributes:
        checked_fingerprint: the fingerprint of the source that was opened, from before its checks; None for a frame.
            A source with another one is refused.

    Raises:
        InputError: the source does not exist, or cannot be read.
    """

    def __init__(
        self,
        source: Any,  # noqa: ANN401 - frames of four libraries
        table: str | None = None,
        *,
        view: str | None = None,
        timeout_seconds: float | None = None,
        cast: Mapping[str, str] | None = None,
        defers_check: bool = False,
    ) -> None:
        spill = SpillFolder()
        # With a fair scheduler, a short query need not wait for the end of a long one.
        self._database = duckdb.connect(config={"temp_directory": spill.path, "scheduler_process_partial": "true"})
        self._close = weakref.finalize(self, _close, self._database, spill)
        _configure(self._database)
        self._seconds = timeout_seconds
        self.checked_fingerprint = fingerprint(source)
        self._place = None if self.checked_fingerprint is None else source
        self._source = open_source(self._database, source, table, view, defers_check=defers_check and not cast)
        if cast:
            self._source = cast_columns(self._database, self._source, cast)
        forbid_other_files(self._database, self._source)
        self._check_unchanged(InputError)  # the next check of a file that changed meanwhile must not be a query's
        super().__init__(self._source.identity)

    def limit_memory(self, mib: int) -> None:
        """Let DuckDB take at most *mib* MiB for all queries of this engine together; beyond them it writes to disk.

        Raises:
            InputError: the rows that it holds take more.
        """
        try:
            self._database.execute(f"SET memory_limit = '{mib} MiB'")
        except duckdb.Error:
            raise InputError(
                f"the rows of {self._source.name} take more than the {mib:,} MiB that are allowed"
            ) from None

    def check_values(self) -> None:
        """Check the values of the source, unless that was done.

        Raises:
            InputError: a value cannot be read.
            EngineUnreachable: the source changed since it was opened.
        """
        if self._source.unchecked:
            with self._connection() as connection:
                self._check_values(connection)

    def _check_values(self, connection: duckdb.DuckDBPyConnection) -> None:
        if self._source.unchecked:
            self._source = check_values(connection, self._source)

    @staticmethod
    def fingerprint(source: Any) -> str | None:  # noqa: ANN401 - as in the constructor
        """Return a public text that changes whenever the files of *source* change; None for a frame.

        Raises:
            InputError: there is no such file.
            OSError: a file cannot be reached.
        """
        return fingerprint(source)

    def has_changed(self) -> bool:
        """Return True if the source no longer has the fingerprint that it had before it was checked.

        Raises:
            EngineUnreachable: the table of a lakehouse cannot be read.
        """
        if self.checked_fingerprint is None:
            return False
        try:
            return self.fingerprint(self._place) != self.checked_fingerprint
        except (InputError, OSError):
            return True

    def data_version(self) -> str | None:
        """Return the fingerprint of the files, of before they were checked; None for a frame or a view.

        Raises:
            EngineUnreachable: the files have changed since.
        """
        self._check_unchanged(EngineUnreachable)
        return None if self._source.is_view else self.checked_fingerprint

    def fetch(self, statement: str) -> pa.Table:
        with self._connection() as connection:
            self._check_values(connection)
            name_source(connection, self._source)
            return self._guarded(connection, lambda: connection.sql(statement).to_arrow_table(), None)

    def close(self) -> None:
        super().close()
        self._close()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a connection; refuse the source before and after its use if it is not the one that was checked.

        Raises:
            EngineUnreachable: the source changed before. It is not checked again, because its rows would then decide
                whether a request fails.
            EngineError: the source changed while the connection was used, whatever else happened.
        """
        self._check_unchanged(EngineUnreachable)
        try:
            with super()._connection() as connection:
                yield connection
        except Exception:
            self._check_unread()
            raise
        self._check_unread()

    def _check_unread(self) -> None:
        if not self._source.held:
            self._check_unchanged(EngineError)

    def _check_unchanged(self, kind: type[DiscreetError]) -> None:
        if self.has_changed():
            raise kind(CHANGED.format(self._source.name))

    def _connect(self) -> duckdb.DuckDBPyConnection:
        try:
            connection = self._database.cursor()
        except duckdb.ConnectionException:
            raise EngineError(f"{self._source.name} was closed; open it again") from None
        try:
            _configure(connection)
            prepare(connection, self._source)
        except duckdb.Error:
            connection.close()
            raise EngineUnreachable(CHANGED.format(self._source.name)) from None
        return connection

    def _ping(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Do nothing: `_connection` has compared the fingerprint."""

    def _describe(self, connection: duckdb.DuckDBPyConnection) -> Mapping[str, EngineColumn]:
        try:
            rows = connection.execute(f"DESCRIBE SELECT * FROM {self._source.relation}").fetchall()
        except duckdb.PermissionException:
            raise InputError(_OTHER_FILE.format(self._source.name)) from None
        except duckdb.Error:
            raise InputError(f"{self._source.name} cannot be read as the table it should be") from None
        check_names(original_names(connection, self._source), self._source.name)
        untyped = self._source.untyped
        cast = self._source.cast
        return Columns((name, _column(type_, untyped and name not in cast)) for name, type_, *_ in rows)

    def _statement(
        self,
        connection: duckdb.DuckDBPyConnection,
        request: HeadRequest,
        columns: Mapping[str, EngineColumn],
        seed: bytes,
    ) -> DuckDBStatement:
        if request.user in self._source.narrow:
            raise InputError(_NARROW_USER.format(request.user))
        if request != HeadRequest(request.user, request.items, request.limit, keep_missing=request.keep_missing):
            self._check_values(connection)  # what such a request leaves out would decide whether it fails
        statement = DuckDBStatement(request, self._source, columns, seed)
        if request.listed is not None:
            items = request.listed.column_names
            labels = ", ".join(f"{statement.label(item)} AS i{n}" for n, item in enumerate(items))
            empty = connection.sql(f"SELECT {labels} FROM {self._source.relation} LIMIT 0").to_arrow_table()
            types = dict(zip(items, empty.schema.types, strict=True))
            connection.register("listed", typed_domain(request.listed, types))
        return statement

    def _run(
        self,
        connection: duckdb.DuckDBPyConnection,
        statement: DuckDBStatement,
        progress: Callable[[float], None] | None,
    ) -> pa.Table:
        sql = statement.write()
        parameters = statement.parameters
        return self._guarded(connection, lambda: connection.sql(sql, params=parameters).to_arrow_table(), progress)

    @contextlib.contextmanager
    def _open_pairs(
        self,
        connection: duckdb.DuckDBPyConnection,
        statement: DuckDBStatement,
        progress: Callable[[float], None] | None,
    ) -> Iterator[DuckDBPairs]:
        is_view = self._source.is_view
        pairs = DuckDBPairs(
            statement, connection, lambda work: self._guarded(connection, work, progress), is_view=is_view
        )
        try:
            pairs.create()
            yield pairs
        finally:
            pairs.drop()

    def _guarded(
        self,
        connection: duckdb.DuckDBPyConnection,
        work: Callable[[], _Result],
        progress: Callable[[float], None] | None,
    ) -> _Result:
        """Run *work* within the time limit, and remove DuckDB's messages, which may hold data, from errors."""
        try:
            try:
                return run(
                    work,
                    connection.interrupt,
                    seconds=self._seconds,
                    progress=progress,
                    share=lambda: connection.query_progress() / 100,  # it is -1 before and after a query
                )
            except duckdb.Error:
                self._check_values(connection)
                raise
        except duckdb.PermissionException:
            raise EngineError(_OTHER_FILE.format(self._source.name)) from None
        except duckdb.ConversionException:
            raise UnfitData(
                f"{self._source.name} has a view that cannot convert a value; use TRY_CAST instead of CAST in it"
            ) from None
        except (duckdb.Error, pa.ArrowException, OSError) as error:  # Arrow's while a result is read in batches
            raise EngineError(f"DuckDB could not count in {self._source.name} ({type(error).__name__})") from None


def _close(connection: duckdb.DuckDBPyConnection, spill: SpillFolder) -> None:
    with contextlib.suppress(duckdb.Error):  # a connection still in use closes after its request
        connection.close()
    spill.close()


def _column(described: str, untyped: bool) -> EngineColumn:
    """Return a column of DuckDB's type *described*."""
    if untyped:
        return EngineColumn(Kind.UNTYPED, described)
    match _KINDS.get(_base(described), Kind.OTHER):
        case Kind.DECIMAL:
            digits, scale = (int(part) for part in described[8:-1].split(","))
            return EngineColumn(Kind.DECIMAL, described, decimal_type(described, digits, scale))
        case Kind.INTEGER:
            number = integer_type(described, _BITS[described], signed=not described.startswith("U"))
            return EngineColumn(Kind.INTEGER, described, number)
        case kind:
            return EngineColumn(kind, described)


class DuckDBStatement(HeadStatement):
    """The statement for a head in DuckDB's SQL.

    Args:
        seed: selects the random items that are kept of each user.
    """

    def __init__(self, request: HeadRequest, source: Source, columns: Mapping[str, EngineColumn], seed: bytes) -> None:
        super().__init__(request, source.relation, columns, seed)
        self._database = source.database

    def moment(self, column: str) -> str:
        value = self.value(column)
        type_ = self.columns[column].type
        if type_.endswith("_NS"):  # a cast would round the last nanoseconds of a period up, into the next one
            nanoseconds = f"epoch_ns({value})"  # NULL if infinite
            return f"make_timestamp({nanoseconds} // 1000 - CAST({nanoseconds} % 1000 < 0 AS BIGINT))"
        # TIMESTAMP_S and _MS hold timestamps whose microseconds overflow 64 bits.
        return f"TRY_CAST({value} AS TIMESTAMP)" if type_.startswith("TIMESTAMP_") else value

    def label(self, column: str) -> str:
        if self.columns[column].kind in {Kind.DATE, Kind.TIMESTAMP}:
            return super().label(column)
        described = self.columns[column].type
        if _base(described) in _AS_TEXT:
            return f"CAST({self.value(column)} AS VARCHAR)"
        if described in _BITS and described not in {"BIGINT", "UBIGINT"}:  # an unnecessary cast costs time
            return f"CAST({self.value(column)} AS BIGINT)"
        return self._by_bytes(column)

    def user(self, column: str) -> str:
        return self._by_bytes(column)

    def compared(self, column: str, kind: Kind | None) -> str:
        described = self.columns[column]
        if kind is None or described.kind in {Kind.DATE, Kind.TIMESTAMP}:
            return super().compared(column, kind)
        if described.kind is Kind.UNTYPED and kind is not Kind.TEXT:
            read = f"TRY_CAST({self.value(column)} AS {_READ_AS[kind]})"
            return f"nullif({read}, 'NaN'::DOUBLE)" if _READ_AS[kind] == "DOUBLE" else read
        if _base(described.type) in _AS_TEXT and described.kind is Kind.TEXT:
            return f"CAST({self.value(column)} AS VARCHAR)"
        return self._by_bytes(column) if described.type == "VARCHAR" else super().compared(column, kind)

    def as_text(self, name: str, column: str) -> str:
        if self.columns[column].kind is Kind.TIMESTAMP:
            return f"strftime({name}, '%Y-%m-%d %H:%M:%S.%f')"
        return super().as_text(name, column)

    def size(self, text: str) -> str:
        return f"strlen({text})"  # DuckDB's octet_length takes only blobs

    def _by_bytes(self, column: str) -> str:
        """Return the column without its collation, which could treat different texts as equal."""
        collated = self._database and self.columns[column].type == "VARCHAR"
        return f"{self.value(column)} COLLATE C" if collated else self.value(column)
