"""Compute the outer part of a statement from the answers of its queries, in a database that holds only those.

Computing from released answers costs no privacy (post-processing). The database is in memory, reads no file, has no
extensions and cannot be configured by a statement; its memory and the rows of its result are limited. These limits
are DuckDB's own, so a service computes the statements of its analysts in `discreet.service.answering.pool`.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import duckdb
import pyarrow as pa

from discreet.engines.sql import quoted
from discreet.errors import InputError, SQLError
from discreet.head_request import Kind
from discreet.query.answers import HIGH, LOW, SQL_TYPES, VALUE
from discreet.query.output import Mark
from discreet.query.query import SAVED
from discreet.query.saved import SavedTable
from discreet.query.statement import Statement
from discreet.release.files import require
from discreet.values import Cost, float_above

if TYPE_CHECKING:
    import pandas as pd

    from discreet.catalog.model import Catalog, Dataset
    from discreet.query.planning import Plan

MAX_MEMORY = "128MB"
MAX_ROWS = 100_000
MAX_SECONDS = 10.0

TOO_MUCH_MEMORY = "the statement takes too much memory: it has too many expressions, or its answers too many rows"
_ROWS = f"the result has more than {MAX_ROWS:,} rows; add a LIMIT"


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """The rows of a statement.

    Args:
        table: an Arrow table.
        types: the SQL types of its columns; empty if they are not known.
        intervals: for each column the names of the columns with the ends of its 95 % interval, "none" for noisy numbers
            without them, None for what has no noise; empty if no column has any.
    """

    table: pa.Table
    types: tuple[str, ...] = ()
    intervals: tuple[tuple[str, str] | Literal["none"] | None, ...] = ()

    @property
    def no_interval(self) -> tuple[str, ...]:
        """The columns of noisy numbers without the ends of their 95 % interval among the columns."""
        return tuple(
            name for name, ends in zip(self.table.column_names, self.intervals, strict=False) if ends == "none"
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas frame. Needs pandas."""
        require("pandas", "to_pandas()")
        return self.table.to_pandas()


def check_outer(
    outer: str, types: Mapping[str, Mapping[str, str]], database: duckdb.DuckDBPyConnection | None = None
) -> list[tuple[str, str]]:
    """Return the columns of an outer statement with their types; raise unless it is valid over tables with *types*.

    Args:
        outer: a `Statement.outer` of `discreet.query.statement.split_statement`.
        types: the SQL types by column, for each table of the schema `answers`.
        database: an unused one of `open_database`; by default a new one.

    Raises:
        SQLError: the statement is not valid; nothing was queried.
        InputError: it takes too much memory.
    """
    with contextlib.ExitStack() as stack:
        database = database or stack.enter_context(open_database())
        for name, columns in types.items():
            declared = ", ".join(f"{quoted(column)} {type_}" for column, type_ in columns.items())
            database.execute(f"CREATE TABLE answers.{quoted(name)} ({declared})")
        _lock(database)
        try:
            relation = database.sql(outer)
            # Sums of integers are shown as BIGINT where they fit; see `compute_outer`.
            types_ = ("BIGINT" if str(type_) == "HUGEINT" else str(type_) for type_ in relation.types)
            return list(zip(relation.columns, types_, strict=True))
        except duckdb.OutOfMemoryException:
            raise InputError(TOO_MUCH_MEMORY) from None
        except duckdb.Error as error:
            raise SQLError(_sentence(error)) from None


def compute_outer(
    outer: str,
    tables: Mapping[str, pa.Table],
    marks: Sequence[Mark] | None = (),
    database: duckdb.DuckDBPyConnection | None = None,
) -> ComputedRows:
    """Run an outer statement over answers, and return its result.

    Args:
        outer: a `Statement.outer` of `discreet.query.statement.split_statement`.
        tables: the answers, by the name of their table in the schema `answers`.
        marks: those of the statement; None if they are not known, so that every number is taken to be noisy; empty if
            there is no noise.
        database: an unused one of `open_database`; by default a new one.

    Raises:
        InputError: the statement fails on these answers, takes too much memory, or has too many rows.
    """
    with contextlib.ExitStack() as stack:
        database = database or stack.enter_context(open_database())
        try:
            for name, table in tables.items():
                database.from_arrow(table).create(f"answers.{quoted(name)}")
            _lock(database)
            relation = database.sql(outer)
            types = [str(type_) for type_ in relation.types]
            if any(map(_AS_TEXT.search, types)):
                columns = (
                    f"CAST(#{n} AS VARCHAR)" if _AS_TEXT.search(of) else f"#{n}" for n, of in enumerate(types, 1)
                )
                aliased = (
                    f"{column} AS {quoted(name)}" for column, name in zip(columns, relation.columns, strict=True)
                )
                relation = relation.project(", ".join(aliased))
            batches = []
            rows = 0
            reader = relation.to_arrow_reader(10_000)
            for batch in reader:
                rows += batch.num_rows
                if rows > MAX_ROWS:
                    raise InputError(_ROWS)
                batches.append(batch)
            table = pa.Table.from_batches(batches, reader.schema)
            names: list[str] = []
            for name in table.column_names:  # a repeated name gets a number: count, count_1
                numbered = (f"{name}_{number}" for number in itertools.count(1))
                names.append(
                    next(candidate for candidate in itertools.chain([name], numbered) if candidate not in names)
                )
            for place, type_ in enumerate(types):
                if type_ == "HUGEINT":  # DuckDB's sums of integers, which Arrow would have as decimals
                    with contextlib.suppress(pa.ArrowInvalid):
                        table = table.set_column(place, names[place], table.column(place).cast(pa.int64()))
                        types[place] = "BIGINT"
            return ComputedRows(table.rename_columns(names), tuple(types), _intervals(names, types, marks))
        except (duckdb.OutOfMemoryException, pa.ArrowMemoryError):
            raise InputError(TOO_MUCH_MEMORY) from None
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            text = str(error)  # a failure within the reader is an OSError, whatever failed
            reason = (
                TOO_MUCH_MEMORY if "Out of Memory" in text else f"the statement cannot be computed: {_sentence(error)}"
            )
            raise InputError(reason) from None


_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UHUGEINT", "BIGNUM", "FLOAT", "DOUBLE", "DECIMAL")
_AS_TEXT = re.compile(r"\b(BIGNUM|UHUGEINT|BLOB|BIT|VARIANT)\b")
"""Types whose values Arrow holds as bytes, or, those of UHUGEINT, with another sign."""

NO_INTERVAL = "no_interval"


def _intervals(
    names: Sequence[str], types: Sequence[str], marks: Sequence[Mark] | None
) -> tuple[tuple[str, str] | Literal["none"] | None, ...]:
    """Return `ComputedRows.intervals` of columns with the marks of their statement."""
    intervals: list[tuple[str, str] | Literal["none"] | None] = []
    for place, type_ in enumerate(types):
        mark: Mark = "none" if marks is None else marks[place] if place < len(marks) else None
        if mark is None or not type_.startswith(_NUMBERS):
            intervals.append(None)
        else:
            intervals.append("none" if mark == "none" else (names[mark[0]], names[mark[1]]))
    return tuple(intervals)


def with_no_interval(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return a table with a last column no_interval that has *names* in every row, or as it is without any."""
    if not names or NO_INTERVAL in table.column_names:
        return table
    place = table.num_columns - (table.column_names[-1] == "made_up")  # which stays the last column of a rehearsal
    return table.add_column(place, NO_INTERVAL, pa.array([", ".join(names)] * len(table), pa.string()))


def schema_table(name: str, catalog: Catalog, saved: Mapping[str, SavedTable] = MappingProxyType({})) -> pa.Table:
    """Return a table of information_schema for the datasets and columns of *catalog*.

    Args:
        name: "tables" or "columns".
        catalog: the datasets that the caller may query.
        saved: the saved tables that the caller may read, by name.
    """
    rows: list[tuple[Any, ...]] = []
    for dataset, declared in sorted(catalog.datasets.items()):
        schema, _, table = dataset.rpartition(".")
        place = ("discreet", schema or "main", table)
        if name == "tables":
            rows.append((*place, "BASE TABLE", declared.description))
            continue
        rows += [
            (*place, column, number, "YES", SQL_TYPES[kind], uses)
            for number, (column, kind, uses) in enumerate(columns_of(declared), start=1)
        ]
    for table, of in saved.items():
        place = ("discreet", SAVED, table)
        if name == "tables":
            rows.append((*place, "VIEW" if of.view else "BASE TABLE", of.comment))
            continue
        rows += [
            (*place, column, number, "YES", type_, "") for number, (column, type_) in enumerate(of.columns, start=1)
        ]
    schema_ = pa.schema(
        [(column, pa.int64() if column == "ordinal_position" else pa.string()) for column in _SCHEMA[name]]
    )
    return pa.Table.from_pylist([dict(zip(_SCHEMA[name], row, strict=True)) for row in rows], schema_)


_PLACE = ("table_catalog", "table_schema", "table_name")
_SCHEMA: Mapping[str, tuple[str, ...]] = {
    "tables": (*_PLACE, "table_type", "table_comment"),
    "columns": (*_PLACE, "column_name", "ordinal_position", "is_nullable", "data_type", "column_comment"),
}


def arrow_types(tables: Mapping[str, pa.Table]) -> dict[str, dict[str, str]]:
    """Return the SQL types of the columns of Arrow tables, by table and column."""
    types: dict[str, dict[str, str]] = {}
    with open_database() as database:
        for name, table in tables.items():
            relation = database.from_arrow(table.slice(0, 0))
            types[name] = dict(zip(relation.columns, map(str, relation.types), strict=True))
    return types


def explain(
    statement: Statement,
    plans: Mapping[str, Plan],
    prices: Mapping[str, Cost],
    running: Mapping[str, tuple[float, str | None]],
) -> ComputedRows:
    """Return the rows of EXPLAIN: a row for each query with its mechanism, expected error and worst cost.

    Args:
        statement: the split statement.
        plans: the plans of its queries, by `Leaf.name`.
        prices: the most that releases of saved tables cost which are not paid for, by their id.
        running: epsilon of all periods of running counts together, and who paid it until when, by `Leaf.name`.
    """
    rows: list[dict[str, Any]] = []
    for leaf in statement.leaves:
        price = prices.get(leaf.release or "", Cost())
        row: dict[str, Any] = {
            "query": leaf.sql,
            "dataset": leaf.dataset,
            "mechanism": "public" if leaf.release is None else "saved",
            "rho": float_above(price.rho),
            "delta": float_above(price.delta),
        }
        if leaf.name in running:
            epsilon, payer = running[leaf.name]
            row |= {"mechanism": "running", "epsilon": epsilon, "paid": payer}
        plan = plans.get(leaf.name)
        if plan is not None:
            cost = plan.worst_cost
            expected = plan.expectation
            row |= {
                "mechanism": plan.mechanism.name,
                "epsilon": plan.guarantee.epsilon,
                "rho": float_above(cost.rho),
                "delta": float_above(cost.delta),
                "std_error": expected.max_std_error if plan.sum_std_error is None else plan.sum_std_error,
                "min_std_error": expected.min_std_error,
                "smallest_count": expected.smallest_count,
                "likely_mechanism": plan.likely_mechanism,
                "error_basis": plan.error_basis,
            }
            if expected.likely:
                first = expected.likely[0]
                row |= {
                    "std_error": first.max_std_error,
                    "min_std_error": first.min_std_error,
                    "max_relative_error": first.max_relative_error,
                    "smallest_count": first.smallest_count,
                    "max_smallest_count": first.max_smallest_count,
                }
        rows.append(row)
    names = {"VARCHAR": pa.string(), "DOUBLE": pa.float64(), "BIGINT": pa.int64()}
    schema = pa.schema([(column, names[type_]) for column, type_ in _EXPLAINED.items()])
    return ComputedRows(pa.Table.from_pylist(rows, schema), tuple(_EXPLAINED.values()))


_EXPLAINED: Mapping[str, str] = {
    "query": "VARCHAR",
    "dataset": "VARCHAR",
    "mechanism": "VARCHAR",
    "epsilon": "DOUBLE",
    "rho": "DOUBLE",
    "delta": "DOUBLE",
    "paid": "VARCHAR",
    "std_error": "DOUBLE",
    "smallest_count": "BIGINT",
    "min_std_error": "DOUBLE",
    "max_relative_error": "DOUBLE",
    "max_smallest_count": "BIGINT",
    "likely_mechanism": "VARCHAR",
    "error_basis": "VARCHAR",
}


def columns_of(dataset: Dataset) -> list[tuple[str, Kind, str]]:
    """Return the columns of a dataset, as information_schema lists them: name, kind, and a comment on their uses."""
    columns = [(dataset.user, Kind.TEXT, f"identifies users: COUNT(DISTINCT {dataset.user})")]
    for name, column in dataset.columns.items():
        uses = (("GROUP BY", column.group), ("WHERE", column.filter), ("SUM", column.sum))
        columns.append((name, column.kind, "for " + ", ".join(use for use, allowed in uses if allowed)))
    return columns


_SETTINGS: Mapping[str, str] = {
    "temp_directory": "''",
    "max_temp_directory_size": "'0B'",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "TimeZone": "'UTC'",  # a result must not depend on the machine that computes it
    "enable_external_access": "false",  # set last, because it locks other settings
}


def open_database() -> duckdb.DuckDBPyConnection:
    """Return a new database in memory for one outer statement, with an empty schema `answers`."""
    milliseconds = int(1_000 * MAX_SECONDS)
    config = {"threads": 1, "async_threads": 0, "memory_limit": MAX_MEMORY, "max_execution_time": milliseconds}
    database = duckdb.connect(":memory:", config=config)  # type: ignore[arg-type]  # its dict is invariant
    for setting, value in _SETTINGS.items():
        database.execute(f"SET {setting} = {value}")
    database.execute("CREATE SCHEMA answers")
    return database


def _lock(database: duckdb.DuckDBPyConnection) -> None:
    """Prevent statements from reading Python variables and from changing settings."""
    database.execute("SET python_enable_replacements = false")
    database.execute("SET lock_configuration = true")


def _sentence(error: Exception) -> str:
    """Return the first line of DuckDB's error message, with SQL names for the columns of answers."""
    line = str(error).strip().splitlines()[0]
    text = line.partition("Error: ")[2] or line
    for name, said in ((VALUE, "the aggregate"), (LOW, "LOW"), (HIGH, "HIGH")):
        text = text.replace(f'"{name}"', said).replace(name, said)
    return text[:300]
