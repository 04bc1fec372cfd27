"""Spark, from version 4.0 on: tables of its catalogs and Parquet files, in this process or at a server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from discreet.engines.base import LABEL_TYPES, SqlEngine, arrow_array, check_names, listing, typed_domain
from discreet.engines.pairs import HashedPairs
from discreet.engines.spark_session import FAILURES, SessionRun, condition_of, open_session
from discreet.engines.sql import Columns, EngineColumn, HeadStatement, decimal_type, integer_type
from discreet.engines.url import Url, parse_url
from discreet.errors import EngineError, InexactHead, InputError
from discreet.head_request import HeadRequest, Kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_Result = TypeVar("_Result")

ROWS = "__discreet_rows"
LISTED = "__discreet_listed"
CHOSEN = "__discreet_chosen"
"""Names in a request's session: of the rows, of the listed items, and of the items that a pair query chooses."""

SORTED = "__discreet_sorted"
SUMS = "__discreet_sums"
"""Names in a request's session: of the sorted labels, and of the sums of a pair query that are fetched in batches."""

_ITEMS_AT_ONCE = 2**20
_COALESCED = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"
"""Without this setting, each relation that is kept has as many tasks as a shuffle, 200, however small it is."""

_ROW_BITS = 33
"""monotonically_increasing_id() is the number of the partition, then this many bits for the row in it."""

_FILES = "source"
_DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
"""Key of a text column's metadata that holds its declared type."""

STRICT = dict.fromkeys(("ignoreCorruptFiles", "ignoreMissingFiles", "ignoreInvalidPartitionPaths"), "false")
"""Options of a table override settings. With these read options, Spark refuses a table with different ones."""

_OTHER_OPTIONS = "_LEGACY_ERROR_TEMP_1151"
_NOT_FOUND = {"TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "PATH_NOT_FOUND", "REQUIRES_SINGLE_PART_NAMESPACE"}
_NOT_READ = {
    "COLUMN_ALREADY_EXISTS",
    "FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER",
    "PARSE_SYNTAX_ERROR",
    "UNABLE_TO_INFER_SCHEMA",
    "UNRESOLVED_COLUMN",
}
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_KINDS = {
    **dict.fromkeys(_BITS, Kind.INTEGER),
    "string": Kind.TEXT,
    "varchar": Kind.TEXT,
    "decimal": Kind.DECIMAL,
    "float": Kind.FLOAT,
    "double": Kind.FLOAT,
    "boolean": Kind.BOOLEAN,
    "date": Kind.DATE,
    "timestamp": Kind.TIMESTAMP,
    "timestamp_ntz": Kind.TIMESTAMP,
}
"""Kinds by Spark's type names without parameters; the name of a type with a collation is longer."""


class SparkEngine(SqlEngine["SessionRun", "SparkStatement"]):
    """An engine for a table or files that Spark reads.

    Args:
        source_url: spark://local for Spark in this process (the one that runs already, or a new one on all cores),
            spark://host:7077 for the executors of a standalone cluster with the driver in this process, or
            sc://user@host:15002 for a Spark Connect server (ssl=true over TLS); with ?table=database.name or
            ?path=/data/*.parquet.
        table: name of the table, if the URL does not name it.
        view: a SELECT of the data owner, in which the files of a path are called source.
        password: the token of a Spark Connect server.
        timeout_seconds: time limit of a query, or None.

    Raises:
        InputError: the URL is not valid, or names neither a table nor files, and there is no view.
        EngineError: no table was named, and Spark cannot be reached or started to list its tables.
    """

    keeps_connections = False  # a session remembers the files of its tables

    def __init__(
        self,
        source_url: str,
        *,
        table: str | None = None,
        view: str | None = None,
        password: str | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        self._url = _parse(source_url).with_password(password)
        if self._url.password is not None and self._url.scheme != "sc":
            raise InputError("only a Spark Connect server (sc://) takes a password")
        self._table = self._url.table(table, view)
        self._path = self._url.options.get("path")
        self._view = view
        named = f", table {self._table}" if self._table else f", files {self._path}" if self._path else ""
        super().__init__(f"{self._url}{named}" + ("" if view is None else ", a view"))
        self._seconds = timeout_seconds
        if self._table is not None and self._path is not None:
            raise InputError("name a table or files, not both")
        if self._table is None and self._path is None and view is None:
            raise InputError(f"name a table or files; the tables of {self._url} are {self._tables()}")

    def fetch(self, statement: str) -> pa.Table:
        def select(session: SparkSession) -> pa.Table:
            self._name_files(session)
            return _table(session, statement, [])

        with self._connection() as connection:
            return self._guarded(connection, select, None)

    def _connect(self) -> SessionRun:
        return open_session(self._url)

    def _ping(self, connection: SessionRun) -> None:
        connection.ping()

    def _describe(self, connection: SessionRun) -> Mapping[str, EngineColumn]:
        try:
            fields = self._guarded(connection, lambda session: self._name_rows(session).schema.fields, None)
        except _NotFoundError as error:
            raise InputError(str(error)) from None
        check_names([field.name for field in fields], self.name)
        if any("${" in field.name for field in fields):
            # Spark substitutes settings in the column names that it passes to file readers, which find no such column.
            raise InputError(f"Spark may take a column for empty whose name holds '${{'; rename it in {self.name}")
        return Columns(
            (field.name, column_of(field.dataType.simpleString(), field.metadata.get(_DECLARED, "")))
            for field in fields
        )

    def _statement(
        self, connection: SessionRun, request: HeadRequest, columns: Mapping[str, EngineColumn], seed: bytes
    ) -> SparkStatement:
        del connection
        return SparkStatement(request, columns, seed)

    def _run(
        self, connection: SessionRun, statement: SparkStatement, progress: Callable[[float], None] | None
    ) -> pa.Table:
        sql = statement.write()

        def count(session: SparkSession) -> pa.Table:
            self._name_relations(session, statement)
            return _table(session, sql, statement.parameters)

        return self._guarded(connection, count, progress)

    @contextlib.contextmanager
    def _open_pairs(
        self, connection: SessionRun, statement: SparkStatement, progress: Callable[[float], None] | None
    ) -> Iterator[SparkPairs]:
        def work(part: Callable[[SparkSession], pa.Table | None]) -> Any:  # noqa: ANN401 - the part's result
            return self._guarded(connection, part, progress)

        self._guarded(connection, lambda session: self._name_relations(session, statement), None)
        pairs = SparkPairs(statement, work, connection.frames)
        pairs.create()
        yield pairs

    def _name_files(self, session: SparkSession) -> None:
        """Register the files as source, for statements of the data owner."""
        if self._path is not None:
            session.read.options(**STRICT).parquet(self._path).createOrReplaceTempView(_FILES)

    def _name_relations(self, session: SparkSession, statement: SparkStatement) -> None:
        """Register the rows as `ROWS`, and the listed items, if there are any, as `LISTED`."""
        self._name_rows(session)
        if statement.items_listed is not None:
            listed = session.createDataFrame(statement.items_listed, statement.listed_schema())
            listed.createOrReplaceTempView(LISTED)

    def _name_rows(self, session: SparkSession) -> Any:  # noqa: ANN401 - a data frame of Spark's or of Spark Connect's
        """Register the table, the files or the view as `ROWS`, and return it as a data frame."""
        self._name_files(session)
        if self._view is not None:
            # Only a query is valid between parentheses.
            rows = session.sql(f"SELECT * FROM ({self._view}\n)")
        else:
            rows = session.read.options(**STRICT).table(self._table or _FILES)
        rows.createOrReplaceTempView(ROWS)
        return rows

    def _guarded(
        self,
        session: SessionRun,
        work: Callable[[SparkSession], _Result],
        progress: Callable[[float], None] | None,
    ) -> _Result:
        try:
            return session.run(work, seconds=self._seconds, progress=progress)
        except FAILURES as error:
            raise self._explained(condition_of(error)) from None

    def _explained(self, condition: str) -> EngineError:
        """Return the error without Spark's message, which may hold data."""
        if condition in _NOT_FOUND:
            return _NotFoundError(f"Spark finds no such table or file: {self.name}")
        if {condition, condition.partition(".")[0]} & _NOT_READ:
            return _NotFoundError(f"Spark cannot read it as a table, as Parquet files or as a SELECT: {self.name}")
        if condition == _OTHER_OPTIONS:
            return InexactHead(f"options of its own leave files out of it: {self.name}; take {', '.join(STRICT)} away")
        if condition == "UNAVAILABLE":
            return EngineError(f"no Spark Connect server answers at {self._url}; check the host and the port")
        if condition in {"UNAUTHENTICATED", "PERMISSION_DENIED"}:
            return EngineError(f"{self._url} refuses this password, or a missing one")
        return EngineError(f"Spark could not answer: {self.name} ({condition})")

    def _tables(self) -> str:
        with self._connection() as connection:
            connection.ping()
            tables = self._guarded(connection, lambda session: session.catalog.listTables(), None)
        return listing([table.name for table in tables])


class _NotFoundError(EngineError):
    """The table or file does not exist, or cannot be read as a table."""


def _parse(source_url: str) -> Url:
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
    """Return the rows of *statement*, with timestamps in UTC without a time zone, and all columns nullable."""
    table: pa.Table = session.sql(statement, args=parameters).toArrow()
    moment = pa.timestamp("us")
    types = [moment if pa.types.is_timestamp(type_) else type_ for type_ in table.schema.types]
    return table.cast(pa.schema(list(zip(table.column_names, types, strict=True))))


def column_of(type_: str, declared: str = "") -> EngineColumn:
    """Return a column of Spark's type.

    Args:
        declared: the declared text type if it differs, such as char(n), which is padded with spaces.
    """
    base, _, parameters = type_.rstrip(")").partition("(")
    kind = Kind.OTHER if declared.startswith("char") else _KINDS.get(base, Kind.OTHER)
    if kind is Kind.DECIMAL:
        digits, scale = map(int, parameters.split(","))
        return EngineColumn(kind, type_, decimal_type(type_, digits, scale))
    if kind is Kind.INTEGER:
        return EngineColumn(kind, type_, integer_type(type_, _BITS[base]))
    return EngineColumn(kind, type_)


class SparkStatement(HeadStatement):
    """The statement for a head in Spark's SQL. Its text is compared by bytes unless it has a collation.

    Args:
        seed: selects the random items that are kept of each user.

    Attributes:
        items_listed: the rows of the relation `LISTED`, or None.

    Raises:
        InputError: the domain lists a label that its column cannot hold, or an item twice.
    """

    text: ClassVar[str] = "STRING"
    types: ClassVar[Mapping[Kind, str]] = {**HeadStatement.types, Kind.TIMESTAMP: "TIMESTAMP_NTZ"}

    def __init__(self, request: HeadRequest, columns: Mapping[str, EngineColumn], seed: bytes = b"") -> None:
        super().__init__(request, ROWS, columns, seed)
        self.items_listed = None
        if request.listed is not None:
            types = {item: _label_type(self.columns[item]) for item in request.listed.column_names}
            self.items_listed = typed_domain(request.listed, types)

    def listed_schema(self) -> str:
        """Return the schema of the listed items in Spark's syntax."""
        columns = [self.columns[item] for item in self.request.listed.column_names]
        words = {**self.types, Kind.TEXT: self.text, Kind.INTEGER: "BIGINT"}
        types = [words.get(column.kind, column.type) for column in columns]
        return ", ".join(f"{name} {type_}" for name, type_ in zip(self.names_listed, types, strict=True))

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def moment(self, column: str) -> str:
        name = self.value(column)
        return f"CAST({name} AS TIMESTAMP_NTZ)" if self.columns[column].type == "timestamp" else name

    def label(self, column: str) -> str:
        if self.columns[column].kind is Kind.TEXT:  # Spark does not check that text is UTF-8
            return f"make_valid_utf8({self.value(column)})"
        return super().label(column)

    def as_text(self, name: str, column: str) -> str:
        if self.columns[column].kind is Kind.TIMESTAMP:
            return f"date_format({name}, 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
        return super().as_text(name, column)

    def listed(self) -> str:
        return LISTED


class SparkPairs(HashedPairs):
    """Pairs in data frames that Spark keeps in memory and on disk until the session ends.

    Hashes are distributed by user and chosen items are broadcast, so that no query shuffles by user again.

    Args:
        frames: the list of the session's data frames, which these are added to.
    """

    def __init__(
        self,
        words: SparkStatement,
        run: Callable[[Callable[[SparkSession], pa.Table | None]], Any],
        frames: list[Any],
    ) -> None:
        super().__init__(words)
        self._run = run
        self._frames = frames

    def _numbering(self, source: str) -> dict[str, str]:
        """Number each partition of the sorted labels from the number of labels before it.

        A window over all labels would bring them to one task.
        """
        labels = self._words.items
        distinct = f"SELECT DISTINCT {labels} FROM {source} ORDER BY {self._words.ordered()}"
        part = f"shiftright(place, {_ROW_BITS})"
        counted = f"SELECT {part} AS part, count(*) AS n FROM {SORTED} GROUP BY {part}"
        before = f"SELECT part, sum(n) OVER (ORDER BY part) - n AS before FROM ({counted}) AS c"
        return {
            SORTED: f"SELECT {labels}, monotonically_increasing_id() AS place FROM ({distinct}) AS i",
            self._numbered: (
                f"SELECT /*+ BROADCAST(b) */ {labels}, (place & {2**_ROW_BITS - 1}) + before AS item, "
                f"{self._hash()} AS h FROM {SORTED} JOIN ({before}) AS b ON {part} = part"
            ),
        }

    def _by_user(self, names: str) -> str:
        # Labels are not sent, which would take half as long again.
        return f"(SELECT /*+ REPARTITION(u) */ * FROM {super()._by_user(names)}) AS q"

    def _hash(self) -> str:
        # NULL leaves the hash of the other labels as it is.
        return f"xxhash64({', '.join(f'{name}, {name} IS NULL' for name in self._words.names)})"

    def _distinct(self, name: str) -> str:
        return f"collect_set({name})"

    def _size(self, array: str) -> str:
        return f"size({array})"

    def _named_pairs(self, columns: str) -> str:
        return f"(SELECT {columns}, explode(hs) AS h FROM {self._users}) AS p"

    def _pairs_of(self, chosen: str) -> str:
        return f"(SELECT /*+ BROADCAST(i) */ * FROM {super()._pairs_of(chosen)}) AS q"

    def create(self) -> None:
        """Write the relations."""
        self._run(lambda session: session.conf.set(_COALESCED, "true"))
        for name, select in self._statements():
            self._run(partial(self._keep, name=name, select=select))
        # Computed now, so that all later queries see the same state of the data.
        self._run(lambda _: self._frames[-1].count())

    def _keep(self, session: SparkSession, *, name: str, select: str) -> Any:  # noqa: ANN401 - a data frame of Spark's or of Spark Connect's
        parameters = self._words.parameters if name == self._rows else []
        frame = session.sql(select, args=parameters).persist()
        self._frames.append(frame)
        frame.createOrReplaceTempView(name)
        return frame

    def _batches(self, statement: str) -> Iterator[pa.Table]:
        """Yield the rows by ranges of a; being sorted, each range is read from a few of the kept partitions.

        The driver of Spark holds one batch, far below spark.driver.maxResultSize.
        """
        sums = self._run(lambda session: self._keep(session, name=SUMS, select=f"{statement} ORDER BY a"))
        for first in range(0, self.count_items(), _ITEMS_AT_ONCE):
            part = f"SELECT a, b FROM {SUMS} WHERE a >= {first} AND a < {first + _ITEMS_AT_ONCE}"
            yield self._select(part).sort_by("a")
        self._frames.pop()
        self._run(lambda _: sums.unpersist())

    def _select(self, statement: str, *, labels: bool = False) -> pa.Table:
        del labels  # the columns have the types of the labels already
        return self._run(lambda session: _table(session, statement, []))

    def _chosen(self, columns: Mapping[str, NDArray[np.int64]]) -> str:
        table = pa.table({name: arrow_array(values) for name, values in columns.items()})
        schema = ", ".join(f"{name} BIGINT" for name in columns)
        self._run(
            lambda session: session.createDataFrame(table, schema).hint("broadcast").createOrReplaceTempView(CHOSEN)
        )
        return CHOSEN


def _label_type(column: EngineColumn) -> pa.DataType:
    if column.kind is Kind.DECIMAL:
        digits, scale = map(int, column.type.removeprefix("decimal(").rstrip(")").split(","))
        return pa.decimal128(digits, scale)
    return LABEL_TYPES[column.kind]
