"""Sources that DuckDB can read, and the SQL relations for them."""

from __future__ import annotations

import csv
import dataclasses
import glob
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import duckdb
import numpy as np

from discreet.engines.sources import as_arrow, check_parquet
from discreet.engines.sql import quoted, text_literal
from discreet.errors import InputError, UnknownColumn

if TYPE_CHECKING:
    import pyarrow as pa

_DELIMITERS = (",", ";", "\t", "|")
MAX_HEADER_LENGTH = 1_000_000
_MAX_FIELD_LENGTH = 2**31 - 1
_RECORDS_AT_ONCE = 50_000
_USE = "USE source"
_NAME = "CREATE OR REPLACE TEMP VIEW source AS SELECT * FROM {}"
_READABLE = {"BOOLEAN", "FLOAT", "DOUBLE", "DATE"} | {
    f"{sign}{size}" for sign in ("", "U") for size in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
}
"""Types of Parquet columns whose every value DuckDB reads."""

_OPTIMIZERS = "statistics_propagation,filter_pushdown,join_filter_pushdown"
"""DuckDB's optimizers that use the statistics in Parquet files, which nothing checks: see docs/findings.md."""

_NARROW = {"TINYINT", "UTINYINT", "SMALLINT", "USMALLINT"}

_CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst")


@dataclass(frozen=True, slots=True)
class Source:
    """A source of rows, and the relation that reads it.

    Args:
        name: the source in messages.
        files: the paths of Parquet or CSV files.
        names: the columns' original names, if DuckDB may have renamed them.
        database: True for a table of a DuckDB file.
        untyped: True for CSV files, whose values are all text: 007 is not 7.
        held: True if all rows were read into memory when the source was opened, so that no query reads the source.
        is_view: True if the rows may change although the files do not.
        frame: the Arrow table to register under the name frame, or None.
        setup: statement that each connection runs first.
        cast: the columns that the relation casts, each with its new type.
        narrow: columns of 8 or 16 bits that Parquet files hold in 32: wider values would be cut, which nothing checks.
        unchecked: columns with values that DuckDB may fail to read, until `check_values` has read them.
    """

    relation: str
    name: str
    files: tuple[Path, ...] = ()
    names: tuple[str, ...] = ()
    database: bool = False
    untyped: bool = False
    held: bool = False
    is_view: bool = False
    frame: pa.Table | None = None
    setup: str = ""
    cast: Mapping[str, str] = field(default_factory=dict)
    narrow: frozenset[str] = frozenset()
    unchecked: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """The name of the source that keyed noise depends on: the same for all spellings of the same paths."""
        # Filters compare a column that was cast in another way, so its noise is that of another source.
        cast = "".join(f"\n{column} as {type_}" for column, type_ in sorted(self.cast.items()))
        if self.database or not self.files:
            return self.name + cast
        return "\n".join(sorted({_resolved(path) for path in self.files})) + cast


def _resolved(path: Path) -> str:
    """Return the canonical form of a path: relative if it is in the working directory, so that projects can move."""
    real = path.resolve()
    working_directory = Path.cwd()
    return str(real.relative_to(working_directory) if real.is_relative_to(working_directory) else real)


def open_source(
    connection: duckdb.DuckDBPyConnection,
    source: Any,  # noqa: ANN401 - frames of four libraries
    table: str | None,
    view: str | None = None,
    *,
    defers_check: bool = False,
) -> Source:
    """Make *source* readable on *connection*.

    Args:
        view: a SELECT of the data owner from *source*, or None.
        defers_check: True to leave `check_values` to the caller, unless there is a view.

    Raises:
        InputError: the source does not exist, or cannot be read.
    """
    if view is None:
        opened = _opened(connection, source, table)
        return opened if defers_check else check_values(connection, opened)
    if isinstance(source, str) and source.startswith("duckdb:"):
        source = _parse_url(source, table)[0]
    if isinstance(source, str | Path) and _begins_with(Path(source), b"DUCK", 8):
        _attach(connection, Path(source))
        opened = Source("", str(source), setup=_USE)
    else:
        opened = check_values(connection, _opened(connection, source, table))
    shown = Source(
        f"({view}\n) AS shown",
        f"{opened.name}, a view",
        database=True,
        files=opened.files,
        held=opened.held,
        is_view=True,
        frame=opened.frame,
        setup=opened.setup or _NAME.format(opened.relation),
    )
    prepare(connection, shown)
    return shown


def forbid_other_files(connection: duckdb.DuckDBPyConnection, source: Source) -> None:
    """Let the database of *connection* read no files from now on but those of *source*, not even in views."""
    # DuckDB compares the text of a path as it stands in read_parquet.
    allowed = ", ".join(text_literal(text) for path in source.files for text in (str(path), glob.escape(str(path))))
    connection.execute(f"SET allowed_paths = [{allowed}]; SET enable_external_access = false")


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
        return _files(connection, text)
    frame, name = as_arrow(source)
    _register(connection, frame, name)
    return Source("frame", name, names=tuple(frame.column_names), held=True, frame=frame)


def _register(connection: duckdb.DuckDBPyConnection, frame: pa.Table, name: str) -> None:
    """Make *frame* readable as frame; its types decide whether DuckDB can read it, not its values.

    Raises:
        InputError: a column has a type that DuckDB does not have, such as float16 or decimal256.
    """
    try:
        connection.register("frame", frame)
    except duckdb.Error:
        for place, field_ in enumerate(frame.schema):
            try:
                connection.register("frame", frame.select([place]))
            except duckdb.Error:
                raise InputError(
                    f"column {field_.name!r} of {name} has the type {field_.type}, which DuckDB cannot read; "
                    "cast it, float16 to float32 and decimal256 to decimal128 of at most 38 digits"
                ) from None
        raise InputError(f"{name} cannot be read as a table by DuckDB") from None


def _paths_of(place: str) -> tuple[Path, ...]:
    """Return the files that a path or pattern names, in order.

    Raises:
        InputError: there is none, or the path names a folder.
    """
    is_pattern = glob.has_magic(place) and not Path(place).exists()
    paths = tuple(map(Path, sorted(glob.glob(place, recursive=True)))) if is_pattern else (Path(place),)
    if not paths:
        urls = "; URLs of engines begin with their name, as postgresql://" if "://" in place else ""
        raise InputError(f"no file matches {place!r}{urls}")
    for path in paths:
        if not path.exists():
            raise InputError(f"there is no file {str(path)!r}")
        if path.is_dir():
            raise InputError(f"{str(path)!r} is a folder; name its files, for example {str(path / '*.parquet')!r}")
    return paths


def fingerprint(source: Any) -> str | None:  # noqa: ANN401 - as in `open_source`
    """Return a text that changes whenever the files of *source* change, computed from none of their bytes.

    Returns:
        a line for each file: its path, inode, size in bytes, and times of modification and of status change in ns; None
        for a frame.

    Raises:
        InputError: there is no such file.
        OSError: a file cannot be reached.
    """
    if not isinstance(source, str | Path):
        return None
    text = str(source)
    paths = _paths_of(_parse_url(text, None)[0] if text.startswith("duckdb:") else text)
    logs = (path.with_name(f"{path.name}.wal") for path in paths)  # DuckDB writes the latest changes beside a file
    states = [(path.resolve(), path.stat()) for path in (*paths, *(log for log in logs if log.exists()))]
    return "\n".join(f"{path} {s.st_ino} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}" for path, s in states)


_DECIMAL = re.compile(r"decimal\(([0-9]{1,2}), ?([0-9]{1,2})\)")
_TYPES = {"text": "VARCHAR", "integer": "BIGINT", "boolean": "BOOLEAN", "date": "DATE", "timestamp": "TIMESTAMP"}
_WRITTEN = {
    "text": "",
    "integer": "-?(0|[1-9][0-9]*)",
    "boolean": "(?i)true|false",
    "date": "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "timestamp": r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?",
}
"""How text is written that can be cast: DuckDB would also round 1.5 to a whole number, and read 1e3."""


def cast_columns(connection: duckdb.DuckDBPyConnection, source: Source, cast: Mapping[str, str]) -> Source:
    """Return *source* with columns of other types, once it is clear that no value changes.

    All rows are read for it now, when the source is opened, so that no value can make a query fail or be another one.

    Args:
        cast: the new type of each column: text, integer, decimal(digits, places), boolean, date or timestamp.

    Raises:
        InputError: there is no such column or type, or a column holds a value that has no equal one of its new type.
    """
    described = connection.sql(f"SELECT * FROM {source.relation} LIMIT 0")
    table_types = dict(zip(described.columns, map(str, described.types), strict=True))
    folded = {name.casefold(): name for name in table_types}
    types = {}
    replaced = []
    for key, type_ in cast.items():
        name = folded.get(str(key).casefold())
        if name is None:
            raise UnknownColumn(str(key), table_types, "column to cast")
        decimal = _DECIMAL.fullmatch(str(type_))
        digits, places = (int(decimal[1]), int(decimal[2])) if decimal else (0, 0)
        if type_ not in _TYPES and not (decimal and places <= digits and 1 <= digits <= 38):
            raise InputError(
                "a column is cast to text, integer, decimal(18,2) with its digits and decimal places, boolean, date or "
                f"timestamp, not to {str(type_)!r}"
            )
        new = _TYPES.get(type_, f"DECIMAL({digits},{places})")
        old = table_types[name]
        column = quoted(name)
        value = f"TRY_CAST({column} AS {new})"
        if old == "VARCHAR":
            fraction = rf"(\.[0-9]{{1,{places}}})?" if places else ""
            written = _WRITTEN.get(type_, f"-?[0-9]+{fraction}")
            same = "TRUE" if type_ == "text" else f"regexp_full_match({column}, {text_literal(written)})"
        elif old in {"FLOAT", "DOUBLE"}:
            value = f"TRY_CAST(nullif({column}, 'NaN'::{old}) AS {new})"  # pandas has NaN for a missing number
            same = f"isnan({column}) OR TRY_CAST({value} AS {old}) = {column}"
            if type_ == "integer":  # above this, whole numbers next to each other are one float already
                same = f"isnan({column}) OR ({same} AND abs({column}) < {2**24 if old == 'FLOAT' else 2**53})"
        else:
            same = f"TRY_CAST({value} AS {old}) = {column}"
        missing = f"({value} IS NULL{f' AND NOT isnan({column})' if old in {'FLOAT', 'DOUBLE'} else ''})"
        try:
            wrong = connection.sql(
                f"SELECT 1 FROM {source.relation} WHERE {column} IS NOT NULL AND ({missing} OR NOT ({same})) LIMIT 1"
            ).fetchall()
        except duckdb.Error:
            raise InputError(f"column {name!r} of {source.name} cannot be cast from {old} to {type_}") from None
        if wrong:
            raise InputError(
                f"column {name!r} of {source.name} cannot be cast to {type_}: it holds a value that has no equal "
                "one of that type; round or correct the values in a view, or before they are written"
            )
        types[name] = str(type_)
        replaced.append(f"{value} AS {column}")
    relation = f"(SELECT * REPLACE ({', '.join(replaced)}) FROM {source.relation}) AS cast_columns"
    return dataclasses.replace(source, relation=relation, cast=types)


def original_names(connection: duckdb.DuckDBPyConnection, source: Source) -> list[str]:
    """Return the original column names: DuckDB renames one of two that differ only in case."""
    if source.names or source.database:
        return list(source.names)
    files = f"[{text_literal(glob.escape(str(source.files[0])))}]"
    schema = connection.execute(f"SELECT name, num_children FROM parquet_schema({files})").fetchall()
    return _top_level([(name, children or 0) for name, children in schema])


def _top_level(schema: list[tuple[str, int]]) -> list[str]:
    """Return the columns of a Parquet schema, which is a tree in pre-order, the root first."""
    names = []
    inside = 0
    for name, children in schema[1:]:
        if inside == 0:
            names.append(name)
        else:
            inside -= 1
        inside += children
    return names


def _files(connection: duckdb.DuckDBPyConnection, place: str) -> Source:
    """Open Parquet files as a view of them, and CSV files as a table; check first that every value can be read."""
    files = _paths_of(place)
    for path in files:
        if path.stat().st_size == 0:
            raise InputError(f"the file {str(path)!r} is empty")
    if all(path.name.lower().endswith(_CSV) for path in files):
        # They are read once, whole, before any query, because a malformed record must not decide which queries fail.
        # Nothing is guessed from the records, and Python's strict reader finds their ends as RFC 4180 defines them
        # (DuckDB 2.0 and pyarrow 26 end a record at a carriage return, and accept a quotation mark that is never
        # closed).
        columns, delimiter = _load_csv(connection, files[0], None)
        for path in files[1:]:  # columns are matched by position
            _load_csv(connection, path, (columns, delimiter))
        return Source("csv_records", place, files, tuple(columns), untyped=True, held=True)
    for path in files:
        if not _begins_with(path, b"PAR1") and not _begins_with(path, b"PARE"):
            raise InputError(f"the file {str(path)!r} is neither Parquet nor named as CSV (.csv, .tsv)")
    connection.execute(f"SET disabled_optimizers = '{_OPTIMIZERS}'")  # before the checks: they rely on it, too
    check_parquet(files)
    relation = _parquet(*files)
    try:
        described = connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    except duckdb.Error:
        raise InputError(f"{place} cannot be read as the table it should be") from None
    narrow = frozenset(name for name, type_, *_ in described if type_ in _NARROW)
    unchecked = tuple(name for name, type_, *_ in described if type_ not in _READABLE)
    return Source(relation, place, files, narrow=narrow, unchecked=unchecked)


def check_values(connection: duckdb.DuckDBPyConnection, source: Source) -> Source:
    """Read all values of the unchecked columns of *source*, and return it without unchecked columns.

    Raises:
        InputError: a value cannot be read.
    """
    names = source.unchecked
    try:
        _read(connection, names, source.relation)
    except duckdb.Error:
        for path, name in itertools.product(source.files, names):
            try:
                _read(connection, [name], _parquet(path))
            except duckdb.Error:
                raise InputError(
                    f"column {name!r} of {str(path)!r} holds a value that cannot be read: text must be UTF-8, and "
                    "timestamps must fit into microseconds"
                ) from None
        raise InputError(f"{source.name} cannot be read as the table it should be") from None
    return dataclasses.replace(source, unchecked=())


def _parquet(*files: Path) -> str:
    # The types of columns that folders key=value make would follow from the values, one user's among them.
    listed = ", ".join(text_literal(glob.escape(str(path))) for path in files)
    return f"read_parquet([{listed}], hive_types_autocast = false)"


def _read(connection: duckdb.DuckDBPyConnection, names: Sequence[str], relation: str) -> None:
    """Read all values of the columns; other functions, such as strlen, do not validate text.

    With statistics propagation, which is disabled, values of columns without nulls would be counted but not read.
    """
    if names:
        counts = ", ".join(f"count({quoted(name)})" for name in names)
        connection.execute(f"SELECT {counts} FROM {relation}").fetchall()


def _load_csv(
    connection: duckdb.DuckDBPyConnection, path: Path, expected: tuple[list[str], str] | None
) -> tuple[list[str], str]:
    """Append the records of a file to `csv_records`, which the first file (*expected* is None) creates.

    Returns:
        the names of the columns, and the delimiter: the most frequent of the possible ones in the first line.
    """
    import pyarrow as pa

    csv.field_size_limit(_MAX_FIELD_LENGTH)  # for the whole process; the default refuses more than 128 KiB
    try:
        with (
            pa.input_stream(str(path), compression="detect") as stream,
            # Lines end at a line feed only; the reader refuses an unquoted carriage return before anything else.
            io.TextIOWrapper(stream, "utf-8-sig", newline="\n") as text,
        ):
            first = text.readline(MAX_HEADER_LENGTH)
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
                    raise InputError(f"the first line of {str(path)!r} {_difference((columns, delimiter), expected)}")
                _insert(connection, _records(reader, len(columns)))
            except csv.Error:
                raise InputError(
                    f"{path} is malformed at line {reader.line_num:,} and is refused whole; write it with quotes as "
                    "RFC 4180 has them, or as Parquet"
                ) from None
    except (OSError, UnicodeError, pa.ArrowException):
        raise InputError(f"{path} cannot be read as the table it should be: CSV files must be UTF-8 text") from None
    return columns, delimiter


def _difference(header: tuple[list[str], str], expected: tuple[list[str], str]) -> str:
    """Return how the columns and the delimiter of a file differ from those of the first file."""
    (columns, delimiter), (first, usual) = header, expected
    lacking, more = ([repr(name) for name in a if name not in b] for a, b in ((first, columns), (columns, first)))
    if not lacking and not more:
        order = (
            "the same columns in another order than" if columns != first else f"{delimiter!r} and not {usual!r} as in"
        )
        return f"has {order} the first file"
    parts = [f"{verb} {', '.join(names)}" for verb, names in (("lacks", lacking), ("has also", more)) if names]
    return f"does not have the columns of the first file: it {' and '.join(parts)}"


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
        columns = {f"c{place}": _text_array(cells) for place, cells in enumerate(zip(*batch, strict=True))}
        connection.register("batch", pa.table(columns))
        present = ", ".join(f"nullif({name}, '')" for name in columns)
        connection.execute(f"INSERT INTO csv_records SELECT {present} FROM batch")
        connection.unregister("batch")


def _text_array(cells: Sequence[str]) -> pa.Array:
    """Return *cells* as an Arrow array; pa.array would first import pandas, which takes a quarter of a second."""
    import pyarrow as pa

    text = "".join(cells)
    data = text.encode()
    lengths = map(len, cells) if len(data) == len(text) else (len(cell.encode()) for cell in cells)
    ends = np.cumsum([0, *lengths], dtype=np.int64)
    return pa.LargeStringArray.from_buffers(len(cells), pa.py_buffer(ends), pa.py_buffer(data))


def _parse_url(url: str, table: str | None) -> tuple[str, str | None]:
    """Return the path and table of "duckdb:///folder/file.db?table=name" (three slashes: relative, four: absolute)."""
    parts = urlsplit(url)
    options = parse_qs(parts.query, keep_blank_values=True)
    is_valid = url.startswith("duckdb:///") and not parts.fragment and not set(options) - {"table"}
    if not is_valid or len(parts.path) < 2:
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
    """Attach a file of DuckDB; return its table *table*, or its only one if that is None."""
    _attach(connection, path)
    rows = connection.execute(
        "SELECT table_schema, table_name, table_type FROM information_schema.tables WHERE table_catalog = 'source' "
        "ORDER BY ALL"
    ).fetchall()
    names = [name if schema == "main" else f"{schema}.{name}" for schema, name, _ in rows]
    if table is None and len(names) == 1:
        table = names[0]
    if table not in names:
        mistake = "name one" if table is None else f"there is no table {table!r}"
        raise InputError(f"{mistake}; the tables of {str(path)!r} are {', '.join(map(repr, names)) or 'none'}")
    schema, name, kind = rows[names.index(table)]
    relation = f"source.{quoted(schema)}.{quoted(name)}"
    named = f"{_resolved(path)}, table {table}"
    return Source(relation, named, database=True, is_view=kind != "BASE TABLE", setup=_USE)
