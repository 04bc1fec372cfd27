"""What DuckDB can read, and how to say FROM it."""

from __future__ import annotations

import csv
import glob
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import duckdb

from discreet.engines.sql import quoted, text_literal
from discreet.errors import InputError

_FRAMES = {("pyarrow", "Table"), ("pandas", "DataFrame"), ("polars", "DataFrame")}
_DELIMITERS = (",", ";", "\t", "|")
LONGEST_HEADER = 1_000_000
_CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst")


@dataclass(frozen=True, slots=True)
class Source:
    """Where the rows are.

    Args:
        relation: what stands behind FROM.
        name: what people call it.
        files: what is read, if it is files.
        names: the columns of a frame, as it calls them.
        database: True for a table of a DuckDB file.
        untyped: True for CSV files, in which everything is the text that it is: 007 is not 7.
    """

    relation: str
    name: str
    files: tuple[Path, ...] = ()
    names: tuple[str, ...] = ()
    database: bool = False
    untyped: bool = False


def open_source(
    connection: duckdb.DuckDBPyConnection,
    source: Any,  # noqa: ANN401 - frames of four libraries
    table: str | None,
    view: str | None = None,
) -> Source:
    """Make *source* readable on *connection*.

    Args:
        connection: an in-memory database.
        source: see `discreet.engines.duckdb.DuckDBEngine`.
        table: which table of a DuckDB file.
        view: or what the data owner selects from it.

    Raises:
        InputError: there is nothing there that can be read.
    """
    if view is None:
        return _opened(connection, source, table)
    if isinstance(source, str) and source.startswith("duckdb:"):
        source = _parse_url(source, table)[0]
    if isinstance(source, str | Path) and _begins_with(Path(source), b"DUCK", 8):
        _attach(connection, Path(source))
        name = str(source)
    else:
        opened = _opened(connection, source, table)
        name_source(connection, opened)
        name = opened.name
    # What a view shows may change without its files, so it has no version of its own.
    return Source(f"({view}\n) AS shown", f"{name}, a view", database=True)


def name_source(connection: duckdb.DuckDBPyConnection, source: Source) -> None:
    """Let statements of the data owner's call files and frames by the name of source."""
    if not source.database:
        connection.execute(f"CREATE OR REPLACE TEMP VIEW source AS SELECT * FROM {source.relation}")


def _opened(connection: duckdb.DuckDBPyConnection, source: Any, table: str | None) -> Source:  # noqa: ANN401
    if isinstance(source, str | Path):
        text = str(source)
        if isinstance(source, str) and text.startswith("duckdb:"):
            text, table = _parse_url(text, table)
            return _attached(connection, Path(text), table)
        if table is not None or _begins_with(Path(text), b"DUCK", 8):
            return _attached(connection, Path(text), table)
        is_pattern = glob.has_magic(text) and not Path(text).exists()
        return _files(text, sorted(glob.glob(text, recursive=True)) if is_pattern else [text])
    kind = (type(source).__module__.partition(".")[0], type(source).__name__)
    if kind == ("polars", "LazyFrame"):
        raise InputError("the source is lazy; collect() it first")
    if kind not in _FRAMES:
        raise InputError(
            "the source must be a path or glob of Parquet or CSV files, a DuckDB file, an Arrow table, a pandas or a "
            f"Polars frame, not {type(source).__name__}"
        )
    if kind[0] == "pandas":
        _check_objects(source)
    connection.register("frame", source)
    names = source.column_names if kind[0] == "pyarrow" else source.columns
    return Source("frame", f"the {kind[0]} {kind[1]}", names=tuple(map(str, names)))


def _check_objects(frame: Any) -> None:  # noqa: ANN401 - a pandas frame
    """Refuse columns whose type would be guessed from their values, where one value could change it for all.

    Raises:
        InputError: a column of Python objects that are not all text.
    """
    for name, column in frame.items():
        if column.dtype == object and not all(isinstance(value, str) or value is None for value in column):
            raise InputError(f"column {str(name)!r} of the frame has no type of its own; give it one with astype()")


def original_names(connection: duckdb.DuckDBPyConnection, source: Source) -> list[str]:
    """What the columns are called where they come from: DuckDB renames one of two whose names differ in case only."""
    if source.names or source.database:
        return list(source.names)
    files = f"[{text_literal(glob.escape(str(source.files[0])))}]"
    schema = connection.execute(f"SELECT name, num_children FROM parquet_schema({files})").fetchall()
    return _top_level([(name, children or 0) for name, children in schema])


def _top_level(schema: list[tuple[str, int]]) -> list[str]:
    """The columns of a Parquet schema, which is a tree in pre-order, the root first."""
    names, inside = [], 0
    for name, children in schema[1:]:
        if inside == 0:
            names.append(name)
        else:
            inside -= 1
        inside += children
    return names


def _files(pattern: str, paths: list[str]) -> Source:
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
    names = "[" + ", ".join(text_literal(glob.escape(path)) for path in paths) + "]"
    if all(path.lower().endswith(_CSV) for path in paths):
        return _csv(pattern, files, names)
    for path in files:
        if not _begins_with(path, b"PAR1") and not _begins_with(path, b"PARE"):
            raise InputError(f"the file {str(path)!r} is neither Parquet nor named as CSV (.csv, .tsv)")
    _check_schemas(files)
    return Source(f"read_parquet({names})", pattern, files)


def _check_schemas(files: tuple[Path, ...]) -> None:
    """Refuse files of different columns: DuckDB would cast to those of the first, and fail on values that do not fit.

    Raises:
        InputError: there are such files, or one cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schemas = []
    for path in files if len(files) > 1 else ():
        try:
            schemas.append(pq.read_schema(path).remove_metadata())
        except (pa.ArrowException, OSError):
            raise InputError(f"{path} cannot be read as the table it should be") from None
    for path, schema in zip(files, schemas, strict=False):
        if not schema.equals(schemas[0]):
            raise InputError(f"the columns of {str(path)!r} are not those of {str(files[0])!r}")


def _csv(pattern: str, files: tuple[Path, ...], names: str) -> Source:
    columns, delimiter = _header(files[0])
    for path in files[1:]:  # columns are told by their place
        if _header(path) != (columns, delimiter):
            raise InputError(f"the first line of {str(path)!r} is not that of {str(files[0])!r}")
    return Source(f"{_fields(names, columns, delimiter)} AS fields", pattern, files, tuple(columns), untyped=True)


def _fields(names: str, columns: list[str], delimiter: str) -> str:
    """The rows of CSV files, each read from its own line alone.

    Nothing is guessed from the rows, and no quotation mark reaches beyond its line: a single row could change how all
    others are read, or take them with it. A line with too many or too few fields, or with a quotation mark that is not
    closed, is left out. A field without characters is missing.
    """
    # A character that no text holds stands between columns, so that there is one; a line that does hold it is left out.
    lines = (
        f"read_csv({names}, columns={{'line': 'VARCHAR'}}, delim='\x01', quote='', escape='', comment='', nullstr='', "
        "header=true, auto_detect=false, ignore_errors=true, strict_mode=false)"
    )
    mark, apart = re.escape(delimiter), text_literal(delimiter)
    field = f'(?:"(?:[^"]|"")*"|(?:[^{mark}"][^{mark}]*)?)'
    whole = mark.join([field] * len(columns))
    written = []
    for place, column in enumerate(columns):
        parts = [field] * len(columns)
        parts[place] = f"({field})"
        part = f"regexp_extract(line, {text_literal('^' + mark.join(parts) + '$')}, 1)"
        bare = f"CASE WHEN starts_with({part}, '\"') THEN replace({part}[2:-2], '\"\"', '\"') ELSE {part} END"
        split = f"CASE WHEN contains(line, '\"') THEN {bare} ELSE split_part(line, {apart}, {place + 1}) END"
        written.append(f"nullif({split}, '') AS {quoted(column)}")
    fits = (
        f"CASE WHEN contains(line, '\"') THEN regexp_full_match(line, {text_literal(whole)}) "
        f"ELSE strlen(line) - strlen(replace(line, {apart}, '')) = {len(columns) - 1} END"
    )
    return f"(SELECT {', '.join(written)} FROM {lines} WHERE {fits})"


def _header(path: Path) -> tuple[list[str], str]:
    """The columns that the first line of a CSV file names, and what stands between them.

    Raises:
        InputError: there is no such line.
    """
    import pyarrow as pa

    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            line = stream.read(LONGEST_HEADER).split(b"\n", 1)[0].decode("utf-8-sig").rstrip("\r")
    except (OSError, UnicodeError, pa.ArrowException):
        raise InputError(f"{path} cannot be read as the table it should be") from None
    delimiter = max(_DELIMITERS, key=line.count)
    names = next(csv.reader([line], delimiter=delimiter), [])
    columns = [name.strip() or f"column{place}" for place, name in enumerate(names)]
    if not line.strip() or "\0" in line or len({name.casefold() for name in columns}) < len(columns):
        raise InputError(f"{path} cannot be read as the table it should be: its first line must name its columns")
    return columns, delimiter


def _parse_url(url: str, table: str | None) -> tuple[str, str | None]:
    """The path and table of "duckdb:///folder/file.db?table=name" (three slashes: relative, four: absolute)."""
    parts = urlsplit(url)
    options = parse_qs(parts.query, keep_blank_values=True)
    known = url.startswith("duckdb:///") and not parts.fragment and not set(options) - {"table"}
    if not known or len(parts.path) < 2:
        raise InputError("a DuckDB URL looks like duckdb:///file.db?table=name")
    return unquote(parts.path[1:]), options.get("table", [table])[-1]


def _begins_with(path: Path, magic: bytes, offset: int = 0) -> bool:
    """True if the file has *magic* at *offset*; False if there is no such file.

    Raises:
        InputError: it may not be read.
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
        connection.execute(f"ATTACH {text_literal(str(path))} AS source (READ_ONLY); USE source")
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
    if kind != "BASE TABLE":  # what a view shows may change without its file
        files = ()
    return Source(f"source.{quoted(schema)}.{quoted(name)}", f"{path}, table {table}", files, database=True)
