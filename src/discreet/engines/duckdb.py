"""DuckDB: Parquet and CSV files, DuckDB tables, Arrow tables, pandas and Polars frames. Embedded, out of core."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Waiting
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np

from discreet.engines.duckdb_source import open_source, original_names
from discreet.engines.sql import Conditions, NumberType, quoted
from discreet.errors import EngineError, InputError
from discreet.question import Kind
from discreet.values import ExactHead

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from discreet.question import HeadRequest

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

_POLL_SECONDS = 0.1


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

    Raises:
        InputError: there is nothing there that can be read.
    """

    def __init__(self, source: Any, table: str | None = None) -> None:  # noqa: ANN401 - frames of four libraries
        spill = tempfile.mkdtemp(prefix="discreet-")
        self._connection = duckdb.connect(config={"temp_directory": spill})
        self._close = weakref.finalize(self, _close, self._connection, spill)
        self._connection.execute("SET python_enable_replacements = false")
        # DuckDB tells its progress only if it believes that it draws a bar.
        self._connection.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
        self._connection.execute("SET progress_bar_time = 0")
        self._source = open_source(self._connection, source, table)
        self._types: dict[str, str] | None = None
        self._lock = threading.Lock()  # a connection answers one question at a time

    @property
    def name(self) -> str:
        """See `Engine.name`: the path or URL as given, or the kind of frame."""
        return self._source.name

    def columns(self) -> Mapping[str, Kind]:
        """See `Engine.columns`."""
        with self._lock:
            if self._source.untyped:
                return dict.fromkeys(self._described(), Kind.UNTYPED)
            return {name: _KINDS.get(_base(type_), Kind.OTHER) for name, type_ in self._described().items()}

    def data_version(self) -> str | None:
        """See `Engine.data_version`: where the files are and when they were last changed."""
        states = [(path.resolve(), path.stat()) for path in self._source.files]
        return "\n".join(f"{path} {s.st_mtime_ns} {s.st_ctime_ns} {s.st_ino}" for path, s in states) or None

    def head(
        self, request: HeadRequest, *, seed: bytes = b"", progress: Callable[[float], None] | None = None
    ) -> ExactHead:
        """See `Engine.head`."""
        with self._lock:
            result = self._run(lambda: self._count(request, seed), progress)
        # Not to_numpy(), which imports pandas where it is installed: a quarter of a second.
        counts = np.array(np.from_dlpack(result.column("n").combine_chunks()), dtype=np.int64)
        return ExactHead(counts, request.limit, result.drop_columns(["n"]).rename_columns(list(request.items)))

    def _count(self, request: HeadRequest, seed: bytes) -> pa.Table:
        sql, parameters = self._head_sql(request, seed)
        if request.domain is not None:
            self._register_domain(request)
        return self._connection.sql(sql, params=parameters).to_arrow_table()

    def close(self) -> None:
        """Close the connection and delete what was spilled."""
        self._close()

    def _described(self) -> dict[str, str]:
        if self._types is None:
            try:
                rows = self._connection.execute(f"DESCRIBE SELECT * FROM {self._source.relation}").fetchall()
            except duckdb.Error:
                raise InputError(f"{self._source.name} cannot be read as the table it should be") from None
            types = {name: type_ for name, type_, *_ in rows}
            names = [name.casefold() for name in original_names(self._connection, self._source)]
            if len(set(names)) < len(names):
                raise InputError(f"{self._source.name} has columns whose names differ in case only, or not at all")
            self._types = types
        return self._types

    def _head_sql(self, request: HeadRequest, seed: bytes) -> tuple[str, list[str]]:
        """The statement, from the inside out: rows, pairs of user and item, counts."""
        names = [f"i{n}" for n in range(len(request.items))]
        items = ", ".join(names)
        conditions = Conditions(self._filtered, self._number)
        kept = [f"{quoted(column)} IS NOT NULL" for column in (request.user, *request.items)]
        if request.where is not None:
            kept.append(conditions.write(request.where))
        labels = ", ".join(
            f"{self._label(column)} AS {name}" for column, name in zip(request.items, names, strict=True)
        )
        rows = (
            f"SELECT {labels}, {self._written(request.user)} AS u "
            f"FROM {self._source.relation} WHERE {' AND '.join(kept)}"
        )
        if request.domain is not None:
            rows = f"SELECT {items}, u FROM ({rows}) SEMI JOIN listed USING ({items})"
        counts = self._counts_sql(request, rows, items, seed)
        if request.domain is not None:
            counts = f"SELECT {items}, coalesce(n, 0) AS n FROM listed LEFT JOIN ({counts}) USING ({items})"
        return f"{counts} ORDER BY n DESC, {items} LIMIT {request.limit + 1}", conditions.parameters

    @staticmethod
    def _counts_sql(request: HeadRequest, rows: str, items: str, seed: bytes) -> str:
        if request.groups_per_user is None and request.rows_per_group == 1:
            return f"SELECT {items}, count(DISTINCT u) AS n FROM ({rows}) GROUP BY {items}"
        pairs = f"SELECT {items}, u, count(*) AS c FROM ({rows}) GROUP BY {items}, u"
        if request.groups_per_user is not None:
            # Each user's items in an order of her own that depends on nothing but the seed, herself and the item.
            parts = "".join(
                f" || strlen({part}::VARCHAR) || ':' || {part}::VARCHAR" for part in ["u", *items.split(", ")]
            )
            order = f"md5_number_lower('{seed.hex()}'{parts}), {items}"
            pairs = f"{pairs} QUALIFY row_number() OVER (PARTITION BY u ORDER BY {order}) <= {request.groups_per_user}"
        clipped = f"CAST(sum(least(c, {request.rows_per_group})) AS BIGINT)"
        return f"SELECT {items}, {clipped} AS n FROM ({pairs}) GROUP BY {items}"

    def _label(self, column: str) -> str:
        """How a label is selected: engine types that Arrow does not keep apart become text."""
        type_ = _base(self._described()[column])
        as_text = type_ in {"ENUM", "UUID", "HUGEINT", "UHUGEINT"}
        return f"CAST({quoted(column)} AS VARCHAR)" if as_text else self._written(column)

    def _written(self, column: str) -> str:
        """The column as it is written: a collation of its table must not make one text of two."""
        collated = self._source.database and self._described()[column] == "VARCHAR"
        return f"{quoted(column)} COLLATE C" if collated else quoted(column)

    def _filtered(self, column: str, kind: Kind | None) -> str:
        """How a filter names a column that it compares with constants of *kind*.

        What is not of a kind is no error, which would tell of it, but is missing.
        """
        if kind is None:
            return quoted(column)
        type_ = _base(self._described()[column])
        if self._source.untyped and kind is not Kind.TEXT:
            return f"TRY_CAST({quoted(column)} AS {_READ_AS[kind]})"
        if type_ in {"UUID", "ENUM"}:
            return f"CAST({quoted(column)} AS VARCHAR)"
        if type_.startswith("TIMESTAMP_"):
            return f"TRY_CAST({quoted(column)} AS TIMESTAMP)"
        return self._written(column)

    def _number(self, column: str) -> NumberType | None:
        """The exact numeric type of a column, if it has one."""
        described = self._described()[column]
        if described.startswith("DECIMAL(") and described.endswith(")"):
            digits, scale = (int(part) for part in described[8:-1].split(","))
            most = Fraction(10**digits - 1, 10**scale)
            return NumberType(described, -most, most, scale)
        if described not in _BITS:
            return None
        bits, signed = _BITS[described], not described.startswith("U")
        most = 2 ** (bits - signed) - 1
        return NumberType(described, Fraction(-most - 1 if signed else 0), Fraction(most))

    def _register_domain(self, request: HeadRequest) -> None:
        """Make the listed items the table `listed`, in the types of the labels.

        Raises:
            InputError: a label is missing, listed twice, or not of its column's type.
        """
        self._connection.register("domain", request.domain)
        given = {name: type_ for name, type_, *_ in self._connection.execute("DESCRIBE domain").fetchall()}
        casts, wrong = [], []
        for n, column in enumerate(request.items):
            described = self._described()[column]
            text = self._label(column).startswith("CAST") or described == "VARCHAR"
            type_ = "VARCHAR" if text else described
            cast = f"TRY_CAST({quoted(column)} AS {type_})"
            casts.append(f"{cast} AS i{n}")
            wrong.append(f"{cast} IS NULL")
            # A label that changes on the way there and back (1.5 as a whole number, '07') is not of that type.
            wrong.append(f"TRY_CAST({cast} AS {given[column]}) IS DISTINCT FROM {quoted(column)}")
        columns = ", ".join(f"i{n}" for n in range(len(request.items)))
        run = self._connection.execute
        try:
            if run(f"SELECT count(*) FROM domain WHERE {' OR '.join(wrong)}").fetchall() != [(0,)]:
                raise InputError("the domain lists a label that is missing or not of the type of its column")
            run(f"CREATE OR REPLACE TEMP TABLE listed AS SELECT {', '.join(casts)} FROM domain")
            if run(f"SELECT count(*) FROM listed GROUP BY {columns} HAVING count(*) > 1 LIMIT 1").fetchall():
                raise InputError("the domain lists an item twice")
        finally:
            self._connection.unregister("domain")

    def _run(self, work: Callable[[], pa.Table], progress: Callable[[float], None] | None) -> pa.Table:
        """Run a query in a thread, so that Ctrl-C stops it at once and progress can be shown."""
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(work)
            try:
                return self._wait(future, progress)
            except duckdb.ConversionException:
                raise InputError(
                    f"{self._source.name} holds a value that is not of the type its column seems to have; "
                    "write it as Parquet with the types you mean"
                ) from None
            except duckdb.Error as error:
                raise EngineError(f"DuckDB could not count in {self._source.name} ({type(error).__name__})") from None
            finally:
                if not future.done():
                    self._connection.interrupt()

    def _wait(self, future: Future[pa.Table], progress: Callable[[float], None] | None) -> pa.Table:
        while True:
            try:
                return future.result(timeout=_POLL_SECONDS)
            except Waiting:
                percent = self._connection.query_progress()  # -1 before and after
                if progress is not None and percent >= 0:
                    progress(min(percent, 100.0) / 100)
