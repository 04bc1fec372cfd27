"""Sources that DuckDB can read, and the SQL relations for them."""

from __future__ import annotations

import csv
import glob
import io
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import duckdb

from discreet.engines.sql import quoted, text_literal
from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

_FRAMES = {("pyarrow", "Table"), ("pandas", "DataFrame"), ("polars", "DataFrame")}
_DELIMITERS = (",", ";", "\t", "|")
LONGEST_HEADER = 1_000_000
_MILLISECONDS_MOST = 2**63 // 1000
_LONGEST_FIELD = 2**31 - 1
_RECORDS_AT_ONCE = 50_000
_USE = "USE source"
_NAME = "CREATE OR REPLACE TEMP VIEW source AS SELECT * FROM {}"
_CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst")


@dataclass(frozen=True, slots=True)
class Source:
    """A source of rows, and the relation that reads it.

    Args:
        name: the source in messages.
        files: the paths of the files, if the source is files.
        names: the columns' original names, if DuckDB may have renamed them.
        database: True for a table of a DuckDB file.
        untyped: True for CSV files, whose values are all text: 007 is not 7.
        read_version: version of the files at opening, if queries are refused once they change.
        frame: the frame to register under the name frame, or None.
        setup: statement that each connection runs first.
        unsafe: columns of a frame whose type has values on which DuckDB could fail.
    """

    relation: str
    name: str
    files: tuple[Path, ...] = ()
    names: tuple[str, ...] = ()
    database: bool = False
    untyped: bool = False
    read_version: str | None = None
    frame: Any = None
    setup: str = ""
    unsafe: frozenset[str] = frozenset()

    @property
    def identity(self) -> str:
        """The name of the source that keyed noise depends on: the same for all spellings of the same paths."""
        if self.database or not self.files:
            return self.name
        return "\n".join(sorted({_resolved(path) for path in self.files}))


def _resolved(path: Path) -> str:
    """Return the canonical form of a path: relative if it is in the working directory, so that projects can move."""
    real, here = path.resolve(), Path.cwd()
    return str(real.relative_to(here) if real.is_relative_to(here) else real)


def open_source(
    connection: duckdb.DuckDBPyConnection,
    source: Any,  # noqa: ANN401 - frames of four libraries
    table: str | None,
    view: str | None = None,
) -> Source:
    """Make *source* readable on *connection*.

    Args:
        view: a SELECT of the data owner from *source*, or None.

    Raises:
        InputError: the source does not exist, or cannot be read.
    """
    if view is None:
        return _opened(connection, source, table)
    if isinstance(source, str) and source.startswith("duckdb:"):
        source = _parse_url(source, table)[0]
    if isinstance(source, str | Path) and _begins_with(Path(source), b"DUCK", 8):
        _attach(connection, Path(source))
        frame, setup, name = None, _USE, str(source)
    else:
        opened = _opened(connection, source, table)
        frame, setup, name = opened.frame, opened.setup or _NAME.format(opened.relation), opened.name
    # The rows of a view may change although its files do not, so it has no version.
    shown = Source(f"({view}\n) AS shown", f"{name}, a view", database=True, frame=frame, setup=setup)
    prepare(connection, shown)
    return shown


def prepare(connection: duckdb.DuckDBPyConnection, source: Source) -> None:
    """Make *source* readable on another connection of its database."""
    if source.frame is not None:
        connection.register("frame", source.frame)
    if source.setup:
        connection.execute(source.setup)


def name_source(connection: duckdb.DuckDBPyConnection, source: Source) -> None:
    """Make files and frames available as source, for statements of the data owner."""
    if not source.database:
        connection.execute(_NAME.format(source.relation))


def _opened(connection: duckdb.DuckDBPyConnection, source: Any, table: str | None) -> Source:  # noqa: ANN401
    if isinstance(source, str | Path):
        text = str(source)
        if isinstance(source, str) and text.startswith("duckdb:"):
            text, table = _parse_url(text, table)
            return _attached(connection, Path(text), table)
        if table is not None or _begins_with(Path(text), b"DUCK", 8):
            return _attached(connection, Path(text), table)
        is_pattern = glob.has_magic(text) and not Path(text).exists()
        return _files(connection, text, sorted(glob.glob(text, recursive=True)) if is_pattern else [text])
    kind = (type(source).__module__.partition(".")[0], type(source).__name__)
    if kind == ("polars", "LazyFrame"):
        raise InputError("the source is lazy; collect() it first")
    if kind not in _FRAMES:
        raise InputError(
            "the source must be a path or glob of Parquet or CSV files, a DuckDB file, an Arrow table, a pandas or a "
            f"Polars frame, not {type(source).__name__}"
        )
    names = source.column_names if kind[0] == "pyarrow" else source.columns
    unsafe = frozenset[str]()
    if kind[0] == "pandas":
        _check_objects(source)
    else:
        unsafe = _unsafe_timestamps(source)
    connection.register("frame", source)
    return Source("frame", f"the {kind[0]} {kind[1]}", names=tuple(map(str, names)), frame=source, unsafe=unsafe)


def _unsafe_timestamps(frame: Any) -> frozenset[str]:  # noqa: ANN401 - an Arrow table or a Polars frame
    """Return the columns of timestamps with a zone in units above microseconds: DuckDB fails if one overflows.

    Raises:
        InputError: the table's buffers are not valid, for example text that is not UTF-8.
    """
    import pyarrow as pa

    table = frame if isinstance(frame, pa.Table) else frame.head(0).to_arrow()
    try:
        table.validate(full=True)
    except pa.ArrowException:
        raise InputError("the Arrow table is not valid; see its validate(full=True)") from None
    zoned = [field for field in table.schema if pa.types.is_timestamp(field.type) and field.type.tz]
    return frozenset(field.name for field in zoned if field.type.unit in {"s", "ms"})


def _check_objects(frame: Any) -> None:  # noqa: ANN401 - a pandas frame
    """Refuse columns whose type DuckDB would infer from their values, because one value could change it for all.

    Raises:
        InputError: a column of Python objects is not all text, or has text that UTF-8 cannot encode.
    """
    for name, column in frame.items():
        if column.dtype == object and not all(value is None or _is_text(value) for value in column):
            raise InputError(f"column {str(name)!r} of the frame has no type of its own; give it one with astype()")


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and (value.isascii() or bool(value.encode()))
    except UnicodeEncodeError:  # an unpaired surrogate
        return False


def original_names(connection: duckdb.DuckDBPyConnection, source: Source) -> list[str]:
    """Return the original column names: DuckDB renames one of two that differ only in case."""
    if source.names or source.database:
        return list(source.names)
    files = f"[{text_literal(glob.escape(str(source.files[0])))}]"
    schema = connection.execute(f"SELECT name, num_children FROM parquet_schema({files})").fetchall()
    return _top_level([(name, children or 0) for name, children in schema])


def _top_level(schema: list[tuple[str, int]]) -> list[str]:
    """Return the columns of a Parquet schema, which is a tree in pre-order, the root first."""
    names, inside = [], 0
    for name, children in schema[1:]:
        if inside == 0:
            names.append(name)
        else:
            inside -= 1
        inside += children
    return names


def files_version(files: tuple[Path, ...]) -> str:
    """Return a text of the files' paths and the times of their last changes, as their version.

    Raises:
        OSError: a file no longer exists.
    """
    states = [(path.resolve(), path.stat()) for path in files]
    return "\n".join(f"{path} {s.st_mtime_ns} {s.st_ctime_ns} {s.st_ino}" for path, s in states)


def _files(connection: duckdb.DuckDBPyConnection, pattern: str, paths: list[str]) -> Source:
    if not paths:
        raise InputError(f"no file matches {pattern!r}")
    files = tuple(map(Path, paths))
    for path in files:
        if not path.exists():
            raise InputError(f"there is no file {str(path)!r}")
        if path.is_dir():
            raise InputError(f"{str(path)!r} is a folder; name its files, for example {str(path / '*.parquet')!r}")
        if path.stat().st_size == 0:
            raise InputError(f"the file {str(path)!r} is empty")
    if all(path.lower().endswith(_CSV) for path in paths):
        return _csv(connection, pattern, files)
    for path in files:
        if not _begins_with(path, b"PAR1") and not _begins_with(path, b"PARE"):
            raise InputError(f"the file {str(path)!r} is neither Parquet nor named as CSV (.csv, .tsv)")
    version = files_version(files) if _check_parquet(files) else None
    names = "[" + ", ".join(text_literal(glob.escape(path)) for path in paths) + "]"
    return Source(f"read_parquet({names})", pattern, files, read_version=version)


def _check_parquet(files: tuple[Path, ...]) -> bool:
    """Refuse files that DuckDB could fail to read because of a value, by their schemas and statistics.

    DuckDB would cast the columns of other files to those of the first, and timestamps in milliseconds to microseconds.

    Returns:
        True if there are timestamps in milliseconds; the statistics show that all of them fit.

    Raises:
        InputError: a file cannot be read, its columns differ from those of the first, or a timestamp may not fit.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    first, coarse = None, False
    for path in files:
        try:
            metadata = pq.read_metadata(path)
            schema = metadata.schema.to_arrow_schema().remove_metadata()
        except (pa.ArrowException, OSError):
            raise InputError(f"{path} cannot be read as the table it should be") from None
        first = schema if first is None else first
        if not schema.equals(first):
            raise InputError(f"the columns of {str(path)!r} are not those of {str(files[0])!r}")
        for n in range(metadata.num_columns):
            column = metadata.schema.column(n)
            if "timeUnit=milliseconds" not in str(column.logical_type):
                continue
            coarse = True
            groups = (metadata.row_group(group).column(n) for group in range(metadata.num_row_groups))
            if not all(_fits_microseconds(group) for group in groups):
                raise InputError(
                    f"column {column.path!r} of {str(path)!r} holds timestamps in milliseconds that may not fit into "
                    "microseconds; write it in microseconds"
                )
    return coarse


def _fits_microseconds(column: Any) -> bool:  # noqa: ANN401 - a column chunk, of a class that pyarrow does not export
    bounds = column.statistics
    if bounds is None or not bounds.has_min_max:
        return bool(bounds is not None and bounds.num_values == 0)
    return all(abs(bound) <= _MILLISECONDS_MOST for bound in (bounds.min_raw, bounds.max_raw))


def _csv(connection: duckdb.DuckDBPyConnection, pattern: str, files: tuple[Path, ...]) -> Source:
    """Read CSV files once, whole, into the table `csv_records`; an empty field is NULL.

    All of it is read before any query, because a malformed record must not decide which queries fail. Nothing is
    guessed from the records, and Python's strict reader finds their ends as RFC 4180 defines them (DuckDB 2.0 and
    pyarrow 26 end a record at a carriage return, and accept a quotation mark that is never closed).

    Raises:
        InputError: a file is malformed, or changed while it was read.
    """
    version = files_version(files)
    columns, delimiter = _load_csv(connection, files[0], None)
    for path in files[1:]:  # columns are matched by position
        _load_csv(connection, path, (columns, delimiter))
    if files_version(files) != version:
        raise InputError(f"{pattern} changed while it was read; try again")
    return Source("csv_records", pattern, files, tuple(columns), untyped=True, read_version=version)


def _load_csv(
    connection: duckdb.DuckDBPyConnection, path: Path, expected: tuple[list[str], str] | None
) -> tuple[list[str], str]:
    """Append the records of a file to `csv_records`, which the first file (*expected* is None) creates.

    Returns:
        the names of the columns, and the delimiter: the most frequent of the possible ones in the first line.
    """
    import pyarrow as pa

    csv.field_size_limit(_LONGEST_FIELD)  # for the whole process; the default refuses more than 128 KiB
    try:
        with (
            pa.input_stream(str(path), compression="detect") as stream,
            # Lines end at a line feed only; the reader refuses an unquoted carriage return before anything else.
            io.TextIOWrapper(stream, "utf-8-sig", newline="\n") as text,
        ):
            first = text.readline(LONGEST_HEADER)
            delimiter = max(_DELIMITERS, key=first.count)
            reader = csv.reader(itertools.chain([first], text), delimiter=delimiter, strict=True)
            try:
                columns = [name.strip() or f"column{place}" for place, name in enumerate(next(reader, []))]
                if not first.strip() or "\0" in first or len({name.casefold() for name in columns}) < len(columns):
                    raise InputError(
                        f"{path} cannot be read as the table it should be: its first line must name its columns"
                    )
                if expected is None:
                    names = ", ".join(f"{quoted(name)} VARCHAR" for name in columns)
                    connection.execute(f"CREATE TABLE csv_records ({names})")
                elif expected != (columns, delimiter):
                    raise InputError(f"the first line of {str(path)!r} does not have the columns of the first file")
                _insert(connection, _records(reader, len(columns)))
            except csv.Error:
                raise InputError(
                    f"{path} is malformed at line {reader.line_num:,} and is refused whole; write it with quotes as "
                    "RFC 4180 has them, or as Parquet"
                ) from None
    except (OSError, UnicodeError, pa.ArrowException):
        raise InputError(f"{path} cannot be read as the table it should be: CSV files must be UTF-8 text") from None
    return columns, delimiter


def _records(reader: Iterator[list[str]], width: int) -> Iterator[list[str]]:
    """Return the records of *reader*, without empty lines.

    Raises:
        csv.Error: a record does not have *width* fields.
    """
    for record in reader:
        if len(record) == width:
            yield record
        elif record:
            raise csv.Error


def _insert(connection: duckdb.DuckDBPyConnection, records: Iterator[list[str]]) -> None:
    import pyarrow as pa

    while batch := list(itertools.islice(records, _RECORDS_AT_ONCE)):
        columns = {f"c{place}": pa.array(cells, pa.string()) for place, cells in enumerate(zip(*batch, strict=True))}
        connection.register("batch", pa.table(columns))
        present = ", ".join(f"nullif({name}, '')" for name in columns)
        connection.execute(f"INSERT INTO csv_records SELECT {present} FROM batch")
        connection.unregister("batch")


def _parse_url(url: str, table: str | None) -> tuple[str, str | None]:
    """Return the path and table of "duckdb:///folder/file.db?table=name" (three slashes: relative, four: absolute)."""
    parts = urlsplit(url)
    options = parse_qs(parts.query, keep_blank_values=True)
    known = url.startswith("duckdb:///") and not parts.fragment and not set(options) - {"table"}
    if not known or len(parts.path) < 2:
        raise InputError("a DuckDB URL looks like duckdb:///file.db?table=name")
    return unquote(parts.path[1:]), options.get("table", [table])[-1]


def _begins_with(path: Path, magic: bytes, offset: int = 0) -> bool:
    """Return True if the file has *magic* at *offset*, False if there is no such file.

    Raises:
        InputError: the process may not read the file.
    """
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(len(magic)) == magic
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {(error.strerror or 'no access').lower()}") from None


def _attach(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}")
    try:
        connection.execute(f"ATTACH {text_literal(str(path))} AS source (READ_ONLY); {_USE}")
    except duckdb.Error:
        raise InputError(f"the file {str(path)!r} is not a DuckDB database that can be opened for reading") from None


def _attached(connection: duckdb.DuckDBPyConnection, path: Path, table: str | None) -> Source:
    _attach(connection, path)
    rows = connection.execute(
        "SELECT table_schema, table_name, table_type FROM information_schema.tables WHERE table_catalog = 'source' "
        "ORDER BY ALL"
    ).fetchall()
    known = [name if schema == "main" else f"{schema}.{name}" for schema, name, _ in rows]
    if table is None and len(known) == 1:
        table = known[0]
    if table not in known:
        wanted = "name one" if table is None else f"there is no table {table!r}"
        raise InputError(f"{wanted}; the tables of {str(path)!r} are {', '.join(map(repr, known)) or 'none'}")
    schema, name, kind = rows[known.index(table)]
    files = (path, *(log for log in [path.with_name(f"{path.name}.wal")] if log.exists()))
    if kind != "BASE TABLE":  # the rows of a view may change although its file does not
        files = ()
    named = f"{_resolved(path)}, table {table}"
    return Source(f"source.{quoted(schema)}.{quoted(name)}", named, files, database=True, setup=_USE)
