"""What DuckDB can read, and how to say FROM it."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import duckdb

from discreet.engines.sql import quoted, text_literal
from discreet.errors import InputError

_CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst")


@dataclass(frozen=True, slots=True)
class Source:
    """Where the rows are.

    Args:
        relation: what stands behind FROM; for CSV files a template with a place for the columns to read as text.
        name: what people call it.
        files: what is read, if it is files.
        text_labels: True for CSV files, whose labels are read as the text they are: 007 is not 7.
    """

    relation: str
    name: str
    files: tuple[Path, ...] = ()
    text_labels: bool = False

    def read(self, labels: tuple[str, ...] = ()) -> str:
        """What stands behind FROM when *labels* name users and items."""
        if not self.text_labels:
            return self.relation
        types = ", ".join(f"{text_literal(label)}: 'VARCHAR'" for label in labels)
        return self.relation.format(types=f", types={{{types}}}" if types else "")


def open_source(connection: duckdb.DuckDBPyConnection, source: Any, table: str | None) -> Source:  # noqa: ANN401
    """Make *source* readable on *connection*.

    Args:
        connection: an in-memory database.
        source: see `discreet.engines.duckdb.DuckDBEngine`.
        table: which table of a DuckDB file.

    Raises:
        InputError: there is nothing there that can be read.
    """
    if isinstance(source, str | Path):
        text = str(source)
        if text.startswith("duckdb:"):
            text, table = _parse_url(text, table)
            return _attached(connection, Path(text), table)
        if _looks_like_duckdb(Path(text)) or table is not None:
            return _attached(connection, Path(text), table)
        return _files(text)
    library = type(source).__module__.partition(".")[0]
    if library not in {"pyarrow", "pandas", "polars"} or not hasattr(
        source, "columns" if library != "pyarrow" else "schema"
    ):
        raise InputError(
            "the source must be a path or glob of Parquet or CSV files, a DuckDB file, an Arrow table, a pandas or a "
            f"Polars frame, not {type(source).__name__}"
        )
    if hasattr(source, "collect"):
        raise InputError("the source is lazy; collect() it first")
    connection.register("frame", source)
    return Source("frame", f"the {type(source).__name__}")


def _files(pattern: str) -> Source:
    paths = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]
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
    names = "[" + ", ".join(map(text_literal, paths)) + "]"
    if all(path.lower().endswith(_CSV) for path in paths):
        escaped = names.replace("{", "{{").replace("}", "}}")
        return Source(f"read_csv({escaped}, header=true{{types}})", pattern, files, text_labels=True)
    for path in files:
        with path.open("rb") as file:
            if file.read(4) not in {b"PAR1", b"PARE"}:
                raise InputError(f"the file {str(path)!r} is neither Parquet nor named as CSV (.csv, .tsv)")
    return Source(f"read_parquet({names})", pattern, files)


def _parse_url(url: str, table: str | None) -> tuple[str, str | None]:
    """The path and table of "duckdb:///folder/file.db?table=name" (three slashes: relative, four: absolute)."""
    parts = urlsplit(url)
    options = parse_qs(parts.query, keep_blank_values=True)
    if parts.netloc or len(parts.path) < 2 or set(options) - {"table"}:
        raise InputError("a DuckDB URL looks like duckdb:///file.db?table=name")
    return unquote(parts.path[1:]), options.get("table", [table])[-1]


def _looks_like_duckdb(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(12)[8:12] == b"DUCK"


def _attached(connection: duckdb.DuckDBPyConnection, path: Path, table: str | None) -> Source:
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}")
    try:
        connection.execute(f"ATTACH {text_literal(str(path))} AS source (READ_ONLY)")
    except duckdb.Error:
        raise InputError(f"the file {str(path)!r} is not a DuckDB database that can be opened for reading") from None
    rows = connection.execute(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_catalog = 'source' ORDER BY ALL"
    ).fetchall()
    known = [name if schema == "main" else f"{schema}.{name}" for schema, name in rows]
    if table is None and len(known) == 1:
        table = known[0]
    if table not in known:
        wanted = "name one" if table is None else f"there is no table {table!r}"
        raise InputError(f"{wanted}; the tables of {str(path)!r} are {', '.join(map(repr, known)) or 'none'}")
    schema, name = rows[known.index(table)]
    files = (path, *(log for log in [path.with_name(f"{path.name}.wal")] if log.exists()))
    return Source(f"source.{quoted(schema)}.{quoted(name)}", f"{path}, table {table}", files)
