"""Read statements of analysts, and compute their rows, in a process without keys, connections, environment and files.

`python -c "from discreet.service.answering.worker import main; main()"` is the process that workers are forked from. It
imports the libraries, opens an empty database, has a single connection, to `discreet.service.answering.pool`, and never
sees a statement. Each worker serves one request: a fork takes milliseconds, and nothing that a statement leaves behind,
in its copy of the database or, by a bug of DuckDB, in its memory, is there when the next one is computed. Before a
worker receives its request it gives up, for good, what it needs no more: descriptors, files, memory beyond
`MAX_MEMORY_BYTES`, CPU time beyond `MAX_SECONDS`.

A request is a length in eight bytes, JSON, and an Arrow stream for each table. A response is `RESPONSE`, then as many
bytes as it says: a result, or the JSON of an error. Results of `compute` are sent to the client as they are; the pool
checks all others, because a bug of DuckDB may let a statement write them.
"""

from __future__ import annotations

import ctypes
import gc
import io
import json
import math
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import duckdb
import pyarrow as pa
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from discreet.catalog.fields import OwnerQuery
from discreet.catalog.model import Catalog, Column, Dataset
from discreet.errors import InputError, NotFound, SQLError, WhereError
from discreet.query.json import from_dict
from discreet.query.saved import TABLE
from discreet.query.statement import FilterList, Leaf, Statement, split_statement
from discreet.release.postprocess import (
    MAX_ROWS,
    TOO_MUCH_MEMORY,
    ComputedRows,
    check_outer,
    compute_outer,
    open_database,
    with_no_interval,
)
from discreet.release.result import plain_value, python_values
from discreet.service.answering.trino.commands import COMMAND, read
from discreet.service.answering.trino.dialect import TrinoSession
from discreet.service.answering.trino.errors import TrinoError
from discreet.service.answering.trino.tables import cell_writer, column, trino_type
from discreet.service.problems import describe_exception
from discreet.wire.document import FORMS, Form, write_table

RowsForm: TypeAlias = Form | Literal["trino"]
"""A form of the rows of a statement."""

MAX_MEMORY_BYTES = 192 * 2**20
"""Bytes that a worker may allocate beyond the libraries and the empty database, about 100 MB resident."""

MAX_SECONDS = 4.0
"""The longest time, of the CPU and of the clock, in which a statement is checked, and again in which it is computed."""

MAX_RESULT_BYTES = 16 * 2**20
"""The largest result in bytes, in the representation that is sent."""

RESPONSE = struct.Struct("!?QQ")
"""The head of a response: whether the rest is a result or an error, the rows that were computed, the rest's bytes."""

MAX_REASON_LENGTH = 1_000
"""The most characters of the sentence of an error."""

MAX_FRAMES = 12
"""The most stack frames of an unexpected exception that are sent."""

_PARENT_DEATH_SIGNAL = 1  # prctl(2)


def encode_result(
    result: ComputedRows,
    form: RowsForm,
    queries: str,
    max_rows: int | None = None,
    page_rows: int = MAX_ROWS,
) -> bytes:
    """Return the rows of a statement as `StatementAnswer` in JSON, as a file, or as pages of the Trino protocol.

    Such pages are a line of JSON with the columns, and a line with the rows of each page.

    Noisy numbers without an interval in the result are marked: in JSON, in the metadata of Arrow and Parquet, and in
    CSV by a last column no_interval that names them.

    Args:
        queries: the queries of the statement, the JSON of a list of `StatementQuery`.
        max_rows: the number of rows to keep; None for all.
        page_rows: the number of rows of a page.

    Raises:
        InputError: the result has more than `MAX_RESULT_BYTES`.
    """
    table = result.table if max_rows is None else result.table.slice(0, max_rows)
    if form == "trino":
        types = [trino_type(type_) for type_ in result.types]
        described = [column(name, type_) for name, type_ in zip(table.column_names, types, strict=True)]
        pages = bytearray(json.dumps(described).encode())
        writers = [cell_writer(type_) for type_ in types]
        for number, row in enumerate(_rows(table, writers)):
            pages += b"," if number % page_rows else b"]\n[" if number else b"\n["
            pages += row
            _check_size(pages)
        return bytes(pages) + (b"]" if len(table) else b"")
    if form != "json":
        without = result.no_interval
        if form == "csv":
            table = with_no_interval(table, without)
        else:
            metadata = {"discreet.queries": queries} if form == "arrow" else {}
            table = table.replace_schema_metadata({**metadata, "discreet.no_interval": json.dumps(without)})
        content = write_table(table, form)
        _check_size(content)
        return content
    intervals = result.intervals or [None] * table.num_columns
    columns = [
        {"name": name, "type": type_, "interval": interval}
        for name, type_, interval in zip(table.column_names, result.types, intervals, strict=True)
    ]
    written = bytearray(b'{"columns":' + json.dumps(columns).encode() + b',"rows":[')
    for number, row in enumerate(_rows(table)):
        written += b"," if number else b""
        written += row
        _check_size(written)
    return bytes(written) + b'],"queries":' + queries.encode() + b"}"


def _rows(table: pa.Table, writers: Sequence[Callable[[Any], Any] | None] = ()) -> Iterator[bytes]:
    """Yield each row as a list in JSON.

    Args:
        writers: for each column a function that converts its values, or None; empty for none.
    """
    for batch in table.to_batches(max_chunksize=1_000):
        # Python's objects take much more memory than the text, so only some rows are converted at a time.
        columns = [
            [None if isinstance(value, float) and not math.isfinite(value) else plain_value(value) for value in values]
            for values in map(python_values, batch.columns)
        ]
        for place, write in enumerate(writers):
            if write is not None:
                columns[place] = [None if value is None else write(value) for value in columns[place]]
        for row in zip(*columns, strict=True):
            yield json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _check_size(content: bytes | bytearray) -> None:
    if len(content) > MAX_RESULT_BYTES:
        raise InputError(f"the result has more than {MAX_RESULT_BYTES // 2**20} MiB; select fewer rows or columns")


def with_made_up(result: ComputedRows) -> ComputedRows:
    """Return the result of a rehearsal with a column made_up, which is true in every row.

    Raises:
        InputError: the result has such a column.
    """
    if "made_up" in result.table.column_names:
        raise InputError("a rehearsal adds a column made_up: give yours another name")
    made_up = pa.array([True] * len(result.table), pa.bool_())
    intervals = (*result.intervals, None) if result.intervals else ()
    return ComputedRows(result.table.append_column("made_up", made_up), (*result.types, "BOOLEAN"), intervals)


class _Leaf(TypedDict):
    name: str
    sql: str
    dataset: str
    items: tuple[str, ...]
    select: dict[str, Any] | None
    ranked_by: str | None
    complete: bool
    release: str | None
    counts: bool


class _Statement(TypedDict):
    outer: str
    leaves: list[_Leaf]
    schemas: frozenset[str]
    explain: bool
    marks: tuple[tuple[int, int] | Literal["none"] | None, ...] | None
    lists: tuple[FilterList, ...]


_STATEMENT: TypeAdapter[_Statement] = TypeAdapter(_Statement)


def _encode_statement(statement: Statement) -> bytes:
    """Return a statement as JSON, which `decode_statement` reads."""
    described: Any = {field.name: getattr(statement, field.name) for field in fields(statement)}
    described["leaves"] = [
        {field.name: getattr(leaf, field.name) for field in fields(leaf)}
        | {"select": None if leaf.select is None else leaf.select.to_dict()}
        for leaf in statement.leaves
    ]
    return _STATEMENT.dump_json(described)


def decode_statement(content: bytes) -> Statement:
    """Return the statement that `_encode_statement` wrote.

    Raises:
        ValueError, InputError: *content* is something else.
    """
    described: Any = _STATEMENT.validate_json(content)
    leaves = [
        Leaf(**{**leaf, "select": None if leaf["select"] is None else from_dict(leaf["select"])})
        for leaf in described["leaves"]
    ]
    return Statement(**{**described, "leaves": tuple(leaves)})


def outline_of(catalog: Catalog) -> dict[str, Any]:
    """Return what reading a statement needs of a catalog as JSON values: no engine, source or label."""
    return {
        name: {
            "user": dataset.user,
            "rows_per_group": dataset.rows_per_group,
            "columns": {label: _column(column) for label, column in dataset.columns.items()},
        }
        for name, dataset in catalog.datasets.items()
    }


def _column(column: Column) -> dict[str, Any]:
    labels = "query" if isinstance(column.domain, OwnerQuery) else None if column.domain is None else "listed"
    return {name: getattr(column, name) for name in _READ} | {"domain": labels}


_READ = ("type", "of", "each", "group", "groups_per_user")
_DOMAINS = {"query": OwnerQuery.model_construct(query=""), "listed": (), None: None}


def _catalog(outline: Mapping[str, Any]) -> Catalog:
    """Return the catalog of an outline; what that left out is missing."""
    datasets = {}
    for name, dataset in outline.items():
        columns = {
            column: Column.model_construct(**{**fields, "domain": _DOMAINS[fields["domain"]]})
            for column, fields in dataset["columns"].items()
        }
        settings = {key: dataset[key] for key in ("user", "rows_per_group")}
        datasets[name] = Dataset.model_construct(**settings, columns=columns)
    return Catalog.model_construct(datasets=datasets)


def main() -> None:
    """Fork workers on request, and end them, until the connection to the pool is closed.

    The pool sends eight bytes for each: zero, with a socket for a new worker, or the process id of one to end. Only
    this process waits for its workers, so an id means the same worker until it is ended here.
    """
    control = socket.socket(fileno=os.dup(0))
    os.close(0)
    _warm_up()
    database = open_database()  # takes 20 ms, which each worker would need
    gc.freeze()  # or a collection in a worker would write to, and so copy, the pages that it shares with this process
    workers: set[int] = set()
    killed: set[int] = set()
    try:
        while True:
            message, descriptors, *_ = socket.recv_fds(control, 8, 1)
            # At the lowest priority a process takes long to die, and new workers do not wait for that.
            killed -= {process for process in killed if os.waitpid(process, os.WNOHANG)[0]}
            if not message:
                return
            process = int.from_bytes(message, "big")
            if process:
                if process in workers:
                    workers.remove(process)
                    os.kill(process, signal.SIGKILL)
                    killed.add(process)
                continue
            with socket.socket(fileno=descriptors[0]) as channel:
                try:
                    process = os.fork()
                except OSError:  # the pool sees the end of the channel
                    continue
                if not process:
                    control.close()
                    _serve(channel, database)
                workers.add(process)
    finally:
        for process in workers:
            os.kill(process, signal.SIGKILL)
        for process in workers | killed:
            os.waitpid(process, 0)


def _warm_up() -> None:
    """Import whatever a statement may need: workers open no files."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    values = (
        "DATE '2026-01-01' AS d, TIMESTAMP '2026-01-01' AS t, TIMESTAMPTZ '2026-01-01' AS z, TIME '12:00:00' AS c, "
        "1.5 AS x, 'a' AS a, TRUE AS b, 1::HUGEINT AS h, NULL AS n"
    )
    # Workers use a copy of this connection to DuckDB's parser: it cannot be opened under their limits.
    split_statement("SELECT LOW(COUNT(*)) FROM t", None, intervals=True)
    read("SELECT 1", TrinoSession("main", "", datetime.fromtimestamp(0, UTC)), {}, Catalog.model_construct(datasets={}))
    forms: list[RowsForm] = [*FORMS, "trino"]
    for form in forms:
        check_outer(f"SELECT {values}", {"q1": {"a": "VARCHAR"}})
        result = compute_outer(f"SELECT {values} UNION ALL SELECT {values}", {"q1": pa.table({"x": [1]})})
        encode_result(result, form, "[]")


def _encode_error(error: InputError | TrinoError) -> bytes:
    """Return an error as JSON, which `discreet.service.answering.pool` raises again."""
    reason = error.reason if isinstance(error, SQLError | WhereError) else str(error)
    kinds = (SQLError, WhereError, NotFound, TrinoError, InputError)
    described = {
        "type": next(kind.__name__ for kind in kinds if isinstance(error, kind)),
        "name": error.name if isinstance(error, TrinoError) else None,
        "reason": reason[:MAX_REASON_LENGTH],
        "position": getattr(error, "position", None),
    }
    return json.dumps(described).encode()


def _serve(channel: socket.socket, database: duckdb.DuckDBPyConnection) -> None:
    """Serve one request and end the process."""
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        _limit()
        channel.sendall(os.getpid().to_bytes(8, "big"))
        rows = 0
        try:
            with channel.makefile("rb") as stream:
                job = json.loads(stream.read(int.from_bytes(stream.read(8), "big")))
                tables = {}
                for name in job["tables"]:
                    with pa.ipc.open_stream(stream.read(int.from_bytes(stream.read(8), "big"))) as reader:
                        tables[name] = reader.read_all()
            content, rows = _run(database, job, tables)
            kind = True
        except (InputError, TrinoError) as error:
            kind = False
            content = _encode_error(error)
        except (MemoryError, duckdb.OutOfMemoryException):
            kind = False
            content = _encode_error(InputError(TOO_MUCH_MEMORY))
        except Exception as error:  # noqa: BLE001 - its message may hold released counts and the statement
            kind = False
            names, frames = describe_exception(error)  # for the log of the service
            reason = " ".join(frames[-MAX_FRAMES:])
            bug = {"type": "StatementFailed", "name": names, "reason": reason, "position": None}
            content = json.dumps(bug).encode()
        channel.sendall(RESPONSE.pack(kind, rows, len(content)))
        channel.sendall(content)
        code = 0
    finally:
        os._exit(code)  # whatever else happened, this copy of the parent must not return into its loop


def _limit() -> None:
    """Limit what this process can do from now on; nothing raises these limits again."""
    # What is mapped already is mostly not resident: libraries, and copies of the parent's memory.
    with open("/proc/self/statm", "rb") if sys.platform == "linux" else io.BytesIO(b"0") as mapped:  # noqa: PTH123
        most = int(mapped.read().split()[0]) * resource.getpagesize() + MAX_MEMORY_BYTES
    if sys.platform == "linux":  # macOS refuses limits of the address space
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime + MAX_SECONDS)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NOFILE):
        resource.setrlimit(limit, (0, 0))  # no file and no socket can be opened


def _run(
    database: duckdb.DuckDBPyConnection, job: Mapping[str, Any], tables: Mapping[str, pa.Table]
) -> tuple[bytes, int]:
    """Return the content of the response to a request, and the number of rows before any are left out."""
    match job["kind"]:
        case "read":
            session = TrinoSession(job["schema"], job["user"], datetime.fromtimestamp(job["now"], UTC))
            return COMMAND.dump_json(read(job["text"], session, job["prepared"], _catalog(job["catalog"]))), 0
        case "split":
            return _split(job), 0
        case "check":
            return json.dumps(check_outer(job["outer"], job["types"], database)).encode(), 0
    result = compute_outer(job["outer"], tables, job["marks"], database)
    if job["made_up"]:
        result = with_made_up(result)
    try:
        content = encode_result(result, job["form"], job["queries"], job["max_rows"], job["page_rows"])
        return content, len(result.table)
    except InputError:
        raise
    except pa.ArrowMemoryError:
        raise InputError(TOO_MUCH_MEMORY) from None
    except (pa.ArrowException, ArithmeticError, LookupError, OSError, TypeError, ValueError):
        raise InputError(f"the rows of the statement cannot be represented as {job['form']}") from None


def _split(job: Mapping[str, Any]) -> bytes:
    catalog = None if job["catalog"] is None else _catalog(job["catalog"])
    try:
        saved = {name: TABLE.validate_python(table) for name, table in job["saved"].items()}
        intervals = job["intervals"]
        statement = split_statement(
            job["text"], catalog, job["schemas"], intervals=intervals, today=job["today"], saved=saved
        )
    except OverflowError:
        raise SQLError("a number in it is too large") from None
    return _encode_statement(statement)
