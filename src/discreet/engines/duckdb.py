"""DuckDB: Parquet and CSV files, DuckDB tables, Arrow tables, pandas and Polars frames. Embedded, out of core."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import weakref
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import duckdb
import pyarrow as pa

from discreet.engines.duckdb_source import Source, files_version, name_source, open_source, original_names
from discreet.engines.head import exact_head
from discreet.engines.listed import typed_domain
from discreet.engines.pairs import SqlPairs
from discreet.engines.running import run
from discreet.engines.sql import Column, NumberType, quoted
from discreet.engines.statement import HeadStatement, check_sum
from discreet.errors import EngineError, EngineUnreachable, InputError, UnfitData
from discreet.question import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from discreet.question import HeadRequest
    from discreet.values import ExactHead

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
"""What text in files without types is read as, for a constant of a kind."""

_AS_TEXT = {"ENUM", "UUID", "HUGEINT", "UHUGEINT"}


def _base(type_: str) -> str:
    """The name of a type without its parameters; lists and other nested types keep theirs."""
    return type_ if type_.endswith("]") else type_.split("(", maxsplit=1)[0]


def _close(connection: duckdb.DuckDBPyConnection, spill: str) -> None:
    connection.close()
    shutil.rmtree(spill, ignore_errors=True)


class DuckDBEngine:
    """A table that DuckDB reads; see `discreet.engines.base.Engine`.

    Args:
        source: a path or glob of Parquet or CSV files, a DuckDB file or "duckdb:///file.db?table=name", an Arrow table,
            a pandas or Polars frame.
        table: which table of a DuckDB file; may be left out if there is only one.
        view: or a SELECT of the data owner's, in which files and frames are called source.
        timeout_seconds: how long a count may take, or None.

    Raises:
        InputError: there is nothing there that can be read.
    """

    def __init__(
        self,
        source: Any,  # noqa: ANN401 - frames of four libraries
        table: str | None = None,
        *,
        view: str | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        spill = tempfile.mkdtemp(prefix="discreet-")
        self._connection = duckdb.connect(config={"temp_directory": spill})
        self._close = weakref.finalize(self, _close, self._connection, spill)
        self._connection.execute("SET python_enable_replacements = false; SET TimeZone = 'UTC'")
        # DuckDB tells its progress only if it believes that it draws a bar.
        self._connection.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
        self._connection.execute("SET progress_bar_time = 0")
        self._source = open_source(self._connection, source, table, view)
        self._columns: Mapping[str, Column] | None = None
        self._seconds = timeout_seconds
        self._lock = threading.Lock()  # a connection answers one question at a time

    @property
    def name(self) -> str:
        """See `Engine.name`: the path or URL as given, or the kind of frame."""
        return self._source.name

    def columns(self) -> Mapping[str, Kind]:
        """See `Engine.columns`."""
        with self._lock:
            return {name: column.kind for name, column in self._described().items()}

    def scale(self, column: str) -> int:
        """See `Engine.scale`."""
        with self._lock:
            number = self._described()[column].number
        return 0 if number is None else number.scale

    def check_sum(self, column: str) -> None:
        """See `Engine.check_sum`."""
        with self._lock:
            check_sum(column, self._described()[column])

    def data_version(self) -> str | None:
        """See `Engine.data_version`: where the files are and when they were last changed."""
        return files_version(self._source.files) or None

    def ping(self) -> None:
        """Raise if CSV files changed since they were read.

        They are not read again: whether a query fails would depend on what is in them.

        Raises:
            EngineUnreachable: they did.
        """
        if self._source.read_version is None:
            return
        try:
            changed = files_version(self._source.files) != self._source.read_version
        except OSError:
            changed = True
        if changed:
            raise EngineUnreachable(f"{self._source.name} has changed since it was read; open it again")

    def check(self, request: HeadRequest) -> None:
        with self._lock:
            statement = _Statement(request, self._source, self._described(), bytes(32))
            if request.domain is not None:
                self._register_domain(statement)
            statement.write()

    def head(
        self, request: HeadRequest, *, seed: bytes = b"", progress: Callable[[float], None] | None = None
    ) -> ExactHead:
        """See `Engine.head`."""
        self.ping()
        with self._lock:
            statement = _Statement(request, self._source, self._described(), seed)
            return exact_head(self._run(lambda: self._count(statement), progress), request)

    def _count(self, statement: _Statement) -> pa.Table:
        if statement.request.domain is not None:
            self._register_domain(statement)
        sql = statement.write()
        return self._connection.sql(sql, params=statement.parameters).to_arrow_table()

    @property
    def has_pairs(self) -> bool:
        return True

    @contextlib.contextmanager
    def pairs(self, request: HeadRequest, *, progress: Callable[[float], None] | None = None) -> Iterator[SqlPairs]:
        with self._lock:
            statement = _Statement(request, self._source, self._described(), b"")
            pairs = _Pairs(statement, self._connection, lambda work: self._run(work, progress))
            try:
                pairs.create()
                yield pairs
            finally:
                pairs.drop()

    def fetch(self, statement: str) -> pa.Table:
        """See `Engine.fetch`."""
        with self._lock:
            name_source(self._connection, self._source)
            return self._run(lambda: self._connection.sql(statement).to_arrow_table(), None)

    def close(self) -> None:
        """Close the connection and delete what was spilled."""
        self._close()

    def _described(self) -> Mapping[str, Column]:
        if self._columns is None:
            try:
                rows = self._connection.execute(f"DESCRIBE SELECT * FROM {self._source.relation}").fetchall()
            except duckdb.Error:
                raise InputError(f"{self._source.name} cannot be read as the table it should be") from None
            names = [name.casefold() for name in original_names(self._connection, self._source)]
            if len(set(names)) < len(names):
                raise InputError(f"{self._source.name} has columns whose names differ in case only, or not at all")
            self._columns = {name: _column(type_, self._source.untyped) for name, type_, *_ in rows}
        return self._columns

    def _register_domain(self, statement: _Statement) -> None:
        """Make the listed items the relation `listed`, in the types of the labels.

        Raises:
            InputError: a label is missing, listed twice, or not of its column's type.
        """
        request = statement.request
        labels = ", ".join(f"{statement.label(item)} AS i{n}" for n, item in enumerate(request.items))
        empty = self._connection.sql(f"SELECT {labels} FROM {self._source.relation} LIMIT 0").to_arrow_table()
        types = dict(zip(request.items, empty.schema.types, strict=True))
        self._connection.register("listed", typed_domain(request.domain, types))

    def _run(self, work: Callable[[], pa.Table], progress: Callable[[float], None] | None) -> pa.Table:
        try:
            return run(work, self._connection.interrupt, seconds=self._seconds, progress=progress, share=self._share)
        except duckdb.ConversionException:
            raise UnfitData(
                f"{self._source.name} holds a value that is not of the type its column seems to have; "
                "write it as Parquet with the types you mean"
            ) from None
        except duckdb.Error as error:
            raise EngineError(f"DuckDB could not count in {self._source.name} ({type(error).__name__})") from None

    def _share(self) -> float:
        return self._connection.query_progress() / 100  # -1 before and after


def _column(described: str, untyped: bool) -> Column:
    """A column of DuckDB's type *described*."""
    if untyped:
        return Column(Kind.UNTYPED, described)
    kind = _KINDS.get(_base(described), Kind.OTHER)
    if kind is Kind.DECIMAL:
        digits, scale = (int(part) for part in described[8:-1].split(","))
        most = Fraction(10**digits - 1, 10**scale)
        return Column(kind, described, NumberType(described, -most, most, scale))
    if kind is not Kind.INTEGER:
        return Column(kind, described)
    bits, signed = _BITS[described], not described.startswith("U")
    most = Fraction(2 ** (bits - signed) - 1)
    return Column(kind, described, NumberType(described, -most - 1 if signed else Fraction(0), most))


class _Statement(HeadStatement):
    """What DuckDB says in words of its own.

    Args:
        database: True for a table of a DuckDB file, whose text may have a collation.
    """

    def __init__(self, request: HeadRequest, source: Source, columns: Mapping[str, Column], seed: bytes) -> None:
        super().__init__(request, source.relation, columns, seed)
        self._database = source.database

    def label_type(self, column: str) -> str:
        """The type of a label: what Arrow does not keep apart becomes text."""
        type_ = self.columns[column].type
        if _base(type_) in _AS_TEXT:
            return "VARCHAR"
        return "BIGINT" if type_ in _BITS and type_ != "UBIGINT" else type_

    def label(self, column: str) -> str:
        """A label in its type; nothing is cast that has it already, since casts cost time."""
        type_ = self.label_type(column)
        if self._is_moment(column):
            moment = self._moment(column)
            return f"CASE WHEN {self.present(column)} THEN {moment} END" if self.request.keep_missing else moment
        if type_ != self.columns[column].type:
            return f"CAST({quoted(column)} AS {type_})"
        return self._binary(column)

    def user(self, column: str) -> str:
        """Users are compared as they are."""
        return self._moment(column) if self._is_moment(column) else self._binary(column)

    def present(self, column: str) -> str:
        """Moments outside the years 1 to 9999, and infinite ones, are missing, as in all engines."""
        if not self._is_moment(column):
            return super().present(column)
        type_ = _base(self.columns[column].type)
        type_ = "TIMESTAMP" if type_.startswith("TIMESTAMP_") else type_
        last = "9999-12-31" if type_ == "DATE" else "9999-12-31 23:59:59.999999"
        return f"({self._moment(column)} BETWEEN CAST('0001-01-01' AS {type_}) AND CAST('{last}' AS {type_}))"

    def compared(self, column: str, kind: Kind | None) -> str:
        """What is not of a kind is no error, which would tell of it, but is missing."""
        type_ = _base(self.columns[column].type)
        if self._is_moment(column):
            return self._moment(column)
        if kind is None:
            return super().compared(column, kind)
        if self.columns[column].kind is Kind.UNTYPED and kind is not Kind.TEXT:
            read = f"TRY_CAST({quoted(column)} AS {_READ_AS[kind]})"
            return f"nullif({read}, 'NaN'::DOUBLE)" if _READ_AS[kind] == "DOUBLE" else read
        if type_ in _AS_TEXT and self.columns[column].kind is Kind.TEXT:
            return f"CAST({quoted(column)} AS VARCHAR)"
        return self._binary(column) if type_ == "VARCHAR" else super().compared(column, kind)

    def as_text(self, name: str, column: str) -> str:
        """Moments with all their microseconds, as everywhere."""
        if self.columns[column].kind is Kind.TIMESTAMP:
            return f"strftime({name}, '%Y-%m-%d %H:%M:%S.%f')"
        return super().as_text(name, column)

    def size(self, text: str) -> str:
        """DuckDB's octet_length is of blobs."""
        return f"CAST(strlen({text}) AS VARCHAR)"

    def _moment(self, column: str) -> str:
        """A date or timestamp in microseconds: a finer or coarser one that does not fit is missing, and no error."""
        coarse = _base(self.columns[column].type).startswith("TIMESTAMP_")
        return f"TRY_CAST({quoted(column)} AS TIMESTAMP)" if coarse else quoted(column)

    def _is_moment(self, column: str) -> bool:
        return self.columns[column].kind in {Kind.DATE, Kind.TIMESTAMP}

    def _binary(self, column: str) -> str:
        """The column as it is written: a collation of its table must not make one text of two."""
        collated = self._database and self.columns[column].type == "VARCHAR"
        return f"{quoted(column)} COLLATE C" if collated else quoted(column)


class _Pairs(SqlPairs):
    """Pairs in temporary tables of a connection, which spill to disk."""

    _CHOSEN: ClassVar[str] = "discreet_chosen"

    def __init__(
        self,
        words: _Statement,
        connection: duckdb.DuckDBPyConnection,
        run: Callable[[Callable[[], pa.Table]], pa.Table],
    ) -> None:
        super().__init__(words)
        self._connection = connection
        self._run = run

    def create(self) -> None:
        """Write the relations, one after the other."""
        for name, select in self.definitions().items():
            create = f"CREATE TEMP TABLE {name} AS {select}"
            parameters = self._words.parameters if name == self._distinct else None
            self._run(lambda: self._connection.execute(create, parameters))  # noqa: B023
        self._connection.execute(f"DROP TABLE {self._distinct}")

    def drop(self) -> None:
        """Drop what was written, however far that came."""
        for name in (self._pairs, self._numbered, self._users, self._distinct):
            self._connection.execute(f"DROP TABLE IF EXISTS {name}")
        self._connection.unregister(self._CHOSEN)

    def _select(self, statement: str, *, labels: bool = False) -> pa.Table:
        del labels  # the types of the columns are those of the labels already
        return self._run(lambda: self._connection.sql(statement).to_arrow_table())

    def _chosen(self, columns: Mapping[str, NDArray[np.int64]]) -> str:
        self._connection.register(self._CHOSEN, pa.table({name: pa.array(values) for name, values in columns.items()}))
        return self._CHOSEN
