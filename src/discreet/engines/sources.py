"""Checks of what the types of a source do not guarantee, when it is opened.

What a query reads must be what was checked: otherwise one row of a changed file could decide whether a query fails. So
an engine keeps the fingerprint of its source from before the checks, and compares it before and after every read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

CHANGED = "{} has changed since it was opened; open it again"
"""The message for every change, whatever the source holds now."""

_SOURCES = (
    "a path or glob of Parquet or CSV files, the URL of an engine, an Arrow table, a pandas, Polars or Spark frame, a "
    "DuckDB relation, or another object with __arrow_c_stream__"
)
_UNREAD = "read it without Discreet to see why"

_FRAMES = {("pyarrow", "Table"), ("pandas", "DataFrame"), ("polars", "DataFrame")}

_INSTEAD = {
    ("pandas", "Series"): "series.to_frame()",
    ("polars", "Series"): "series.to_frame()",
    ("pyarrow", "Scanner"): "scanner.to_reader()",
    **{("pyarrow", f"{of}Dataset"): "dataset.scanner().to_reader()" for of in ("FileSystem", "InMemory", "Union")},
    ("builtins", "dict"): "pyarrow.table(columns)",
    ("builtins", "list"): "pyarrow.Table.from_pylist(rows), or files by a glob such as 'data/*.parquet'",
    ("adbc_driver_manager", "Cursor"): "cursor.fetch_record_batch()",
    ("duckdb", "DuckDBPyConnection"): "a relation such as connection.sql('SELECT * FROM reads')",
}
"""What to scan instead of an object that is no table, by its library and type."""


def check_parquet(files: tuple[Path, ...]) -> None:
    """Refuse files whose columns differ, because DuckDB would cast those of later files to those of the first.

    Decimals are read, because DuckDB cuts those that have more digits than their type.

    Raises:
        InputError: a file cannot be read, its columns differ from those of the first, a folder key=value is called like
            a column, or a decimal does not fit its type.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = None
    for path in files:
        try:
            with pq.ParquetFile(path) as file:
                schema = file.schema_arrow.remove_metadata()
                decimals = [field.name for field in schema if pa.types.is_decimal(field.type)]
                if decimals:
                    for batch in file.iter_batches(columns=decimals):
                        batch.validate(full=True)
                _check_missing(file, path)
        except (pa.ArrowException, OSError):
            raise InputError(f"{path} cannot be read as the table it should be") from None
        first = schema if first is None else first
        if not schema.equals(first):
            raise InputError(f"the columns of {str(path)!r} are not those of {str(files[0])!r}")
        names = {name.casefold() for name in schema.names}
        for folder in path.parent.parts:
            key = folder.partition("=")[0]
            if "=" in folder and key.casefold() in names:
                raise InputError(f"{str(path)!r} has a column {key!r}, and so has its folder; rename one of them")


def _check_missing(file: pq.ParquetFile, path: Path) -> None:
    """Refuse a file in which statistics say that a column of a row group is all NULL, which DuckDB then does not read.

    Raises:
        InputError: such a column has a value.
    """
    names = set(file.schema_arrow.names)
    for place in range(file.num_row_groups):
        group = file.metadata.row_group(place)
        for chunk in map(group.column, range(group.num_columns)):
            name = chunk.path_in_schema
            statistics = chunk.statistics
            is_empty = statistics is not None and (statistics.null_count or 0) >= chunk.num_values
            if (
                is_empty
                and name in names
                and file.read_row_group(place, [name]).column(name).null_count < group.num_rows
            ):
                raise InputError(f"{str(path)!r} is malformed: its statistics say that column {name!r} holds no values")


def as_arrow(frame: Any) -> tuple[pa.Table, str]:  # noqa: ANN401 - frames of any library
    """Return a frame, a relation or a reader as a checked Arrow table, and its name in messages.

    Args:
        frame: an Arrow table, a pandas or Polars frame, lazy or not, or an object with `__arrow_c_stream__`: a DuckDB
            relation, a reader of record batches, a result of an ADBC driver. It is read once, whole.

    Raises:
        InputError: *frame* is none of these, cannot be read, or as `checked`.
    """
    import pyarrow as pa

    library = type(frame).__module__.partition(".")[0]
    kind = (library.removeprefix("_"), type(frame).__name__)
    name = f"the {kind[1]}" if library == "__main__" else f"the {kind[0]} {kind[1]}"
    server = _ibis_server(frame) if kind[0] == "ibis" else None
    if server is not None:
        raise InputError(f"{name} is at a server: scan that, by its URL {server}")
    if kind == ("polars", "LazyFrame"):
        frame = _read(frame.collect, name)
    elif kind not in _FRAMES:
        instead = _INSTEAD.get(kind)
        if not hasattr(frame, "__arrow_c_stream__"):
            raise InputError(f"a source cannot be of the type {kind[1]}; scan {instead or _SOURCES}")
        advice = _UNREAD if instead is None else f"scan {instead}"
        frame = _read(lambda: pa.RecordBatchReader.from_stream(frame).read_all(), name, advice)
    if isinstance(frame, pa.Table):
        return checked(frame, name), name
    columns: list[Any] = []
    for label, column in frame.items() if kind[0] == "pandas" else ((series.name, series) for series in frame):
        # The type of objects would follow from their values, so that one of them could change it for all.
        objects = str(column.dtype) in {"object", "Object"}
        arrow = None
        with contextlib.suppress(Exception):  # of any library; its message may hold data
            if kind[0] == "polars":
                arrow = None if objects else column.to_arrow()
            elif not objects or all(isinstance(value, str | None) for value in column):
                # A copy, because frames are mutable; Arrow would share their memory.
                arrow = pa.array(column.copy(), pa.string() if objects else None)
        if arrow is None:
            raise InputError(
                f"column {str(label)!r} of {name} has no type of its own, or a value that this type cannot hold; "
                "convert it with astype() or cast(), dates with pandas.to_datetime(), or leave it out"
            )
        columns.append(arrow)
    return checked(pa.Table.from_arrays(columns, list(map(str, frame.columns))), name), name


def _read(read: Callable[[], Any], name: str, advice: str = _UNREAD) -> Any:  # noqa: ANN401 - a frame of any library
    """Return what *read* returns; replace its error, of any library, whose message may hold data.

    Raises:
        InputError: it failed.
    """
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - the library is the caller's
        raise InputError(f"{name} cannot be read as a table ({type(error).__name__}); {advice}") from None


def _ibis_server(table: Any) -> str | None:  # noqa: ANN401 - a table of Ibis
    """Return how to name a table of Ibis that an engine can query in its place, or None."""
    sources = {
        "postgres": "postgresql://user@host/database?table=name",
        "trino": "trino://user@host:8080/catalog/schema?table=name",
        "clickhouse": "clickhouse://user@host:8443/database?table=name",
        "pyspark": "sc://host:15002?table=name, or scan the DataFrame of Spark",
    }
    return sources.get(_read(lambda: table.get_backend().name, "the Ibis table"))


def checked(table: pa.Table, name: str) -> pa.Table:
    """Return *table* in types in which DuckDB reads every value; all its text and numbers are validated.

    DuckDB fails at a timestamp with a zone, or a duration, that does not fit into microseconds. So these are converted
    here; as in every engine, timestamps out of range are missing.

    Raises:
        InputError: the buffers are not valid, for example text that is not UTF-8; a nested timestamp or a duration does
            not fit; or a column has a type that only pandas understands.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        table.validate(full=True)
    except pa.ArrowException:
        raise InputError(f"{name} is not valid; see validate(full=True) of it as an Arrow table") from None
    columns = []
    for field, original in zip(table.schema, table.columns, strict=True):
        column = original
        try:
            type_ = _readable(field.type)
            if type_ != field.type and pa.types.is_timestamp(type_):
                most = (2**63 - 1) // (10**6 if field.type.unit == "s" else 10**3)
                fits = pc.less_equal(pc.abs(pc.max_element_wise(column.cast(pa.int64()), 1 - 2**63)), most)
                column = pc.if_else(fits, column, None)
            columns.append(column if type_ == field.type else column.cast(type_))
        except pa.ArrowInvalid:
            raise InputError(
                f"column {field.name!r} of {name} holds a value that does not fit into microseconds; convert it first"
            ) from None
        except (pa.ArrowException, TypeError):
            raise InputError(f"column {field.name!r} of {name} has a type that DuckDB cannot read; cast it") from None
    return pa.Table.from_arrays(columns, table.column_names)


def _readable(type_: pa.DataType) -> pa.DataType:  # noqa: PLR0911 - one for each nested type
    """Return a type with microseconds for every coarser unit that DuckDB converts when it reads a value.

    Raises:
        TypeError: the type is one that only pandas understands.
    """
    import pyarrow as pa

    types = pa.types
    if types.is_timestamp(type_) and type_.tz and type_.unit in {"s", "ms"}:
        return pa.timestamp("us", type_.tz)
    if types.is_duration(type_) and type_.unit in {"s", "ms"}:
        return pa.duration("us")
    if types.is_dictionary(type_):
        return pa.dictionary(type_.index_type, _readable(type_.value_type), type_.ordered)
    if types.is_map(type_):
        return pa.map_(_readable(type_.key_type), _readable(type_.item_type))
    if types.is_struct(type_):
        return pa.struct([field.with_type(_readable(field.type)) for field in type_])
    if types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_readable(type_.value_type)))
    if types.is_large_list(type_):
        return pa.large_list(type_.value_field.with_type(_readable(type_.value_type)))
    if types.is_fixed_size_list(type_):
        return pa.list_(type_.value_field.with_type(_readable(type_.value_type)), type_.list_size)
    if isinstance(type_, pa.ExtensionType) and type_.extension_name.startswith("pandas."):
        raise TypeError
    return type_
