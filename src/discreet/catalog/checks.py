"""Check a catalog against the tables it declares. Findings name settings, columns and types, never data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import get_args

import pyarrow as pa

from discreet.catalog.domains import known_labels
from discreet.catalog.engine_pool import column_error, open_dataset, queried_version, user_error
from discreet.catalog.fields import OwnerQuery
from discreet.catalog.loader import Finding, write_key, write_text
from discreet.catalog.model import Catalog, Column, Dataset
from discreet.engines.base import Engine, check_private_bounds
from discreet.errors import EngineError, InputError
from discreet.head_request import Kind, Period
from discreet.mechanisms import check_bounds


def check(
    catalog: Catalog,
    names: Iterable[str] = (),
    *,
    environment: Mapping[str, str],
    check_stream: Callable[[str, Engine], None] = lambda _name, _engine: None,
) -> list[Finding]:
    """Connect to datasets and compare their declarations with their tables.

    Rows are read only by the owner's own queries, for domains and versions. Where pair queries write tables of a
    server, an empty one is made and dropped.

    Args:
        names: names of the datasets to check; all if empty.
        check_stream: raises `InputError` if an engine cannot count a stream of running counts.

    Returns:
        a finding for each dataset, its user column, its columns, its version if a query returns it, and its streams.

    Raises:
        NotFound: there is no such dataset.
    """
    chosen = [catalog.find(name)[0] for name in names] or list(catalog.datasets)
    return [
        finding
        for name in dict.fromkeys(chosen)
        for finding in _check_dataset(catalog, name, environment, check_stream)
    ]


def _check_dataset(
    catalog: Catalog, name: str, environment: Mapping[str, str], check_stream: Callable[[str, Engine], None]
) -> Iterator[Finding]:
    """Yield the findings of a dataset: its engine, its user, each column, its version, and each stream."""
    dataset = catalog.datasets[name]
    place = ("datasets", name)
    try:
        engine = open_dataset(catalog, name, environment)
        with closing(engine):
            kinds = engine.columns()
            if engine.has_pairs:
                engine.check_pairs()
            notes = engine.account_notes()
            if dataset.data_version is None and engine.data_version() is None:
                notes.append(
                    "the same query is charged every time, because the data has no version: declare data_version"
                )
            if not dataset.rows_per_group:
                notes.append(f"these will be refused: {_OF_ROWS}: declare rows_per_group")
            yield _finding(*place, note="; ".join(notes) or None)
            yield _finding(*place, "user", mistake=user_error(dataset.user, kinds))
            for column in dataset.declared:
                wrong = _column_error(dataset, column, engine, kinds)
                yield _finding(*place, "columns", column, mistake=wrong, note=refused(dataset, column))
            if isinstance(dataset.data_version, OwnerQuery):
                wrong = None
                try:
                    queried_version(engine.fetch(dataset.data_version.query))
                except (InputError, EngineError) as error:
                    wrong = str(error)
                yield _finding(*place, "data_version", mistake=wrong)
            for stream in dataset.running:
                wrong = None
                try:
                    check_stream(stream, engine)
                except (InputError, EngineError) as error:
                    wrong = str(error)
                yield _finding(*place, "running", stream, mistake=wrong)
    except (InputError, EngineError) as error:
        yield _finding(*place, mistake=str(error))


def _finding(*place: str, mistake: str | None = None, note: str | None = None) -> Finding:
    return Finding(write_key(*place), mistake, None if mistake else note)


_OF_ROWS = "COUNT(*), AVG and quantiles"


def refused(dataset: Dataset, name: str) -> str | None:
    """Return a sentence about the queries of a column that tools write and *dataset* does not allow, or None."""
    column = dataset.columns[name]
    notes = []
    source = column.of or name
    uses = {other: declared for other, declared in dataset.columns.items() if (declared.of or other) == source}
    if name == next(iter(uses)) and not isinstance(column.each, int) and column.type in {"date", "timestamp"}:
        hours = any(declared.type == "timestamp" for declared in uses.values())
        periods: tuple[Period, ...] = get_args(Period) if hours else get_args(Period)[1:]
        lacking = [f"'{period}'" for period in periods if dataset.period(name, period) is None]
        if lacking:
            notes.append(f"date_trunc by {', '.join(lacking)}: declare columns with of = {write_text(source)} and each")
    if column.type in {"integer", "decimal", "float"} and column.of is None and column.sum is None:
        how = "cast it to a decimal in a view, and declare its sum" if column.type == "float" else "declare its sum"
        notes.append(f"SUM({name}) and AVG({name}): {how}")
    if column.sum is not None:
        items = [item for item in dataset.groupable if item != name and dataset.columns[item].domain is None]
        unbounded = [item for item in items if dataset.groups_of((item,)) is None]
        if unbounded:
            shown = ", ".join(unbounded[:5]) + (" and others" if len(unbounded) > 5 else "")
            notes.append(
                f"SUM({name}) by {shown} without ORDER BY COUNT(DISTINCT {dataset.user}) DESC LIMIT k: declare their "
                "groups_per_user or domain"
            )
    if column.type in {"integer", "decimal"} and column.group and column.domain is None:
        notes.append(f"MEDIAN({name}) and other quantiles: declare its domain, or that of bins of it")
    return f"these will be refused: {'; '.join(notes)}" if notes else None


def _column_error(dataset: Dataset, name: str, engine: Engine, kinds: Mapping[str, Kind]) -> str | None:
    """Return an error message if the type, the bounds of sums or the domain of a column do not fit, or None."""
    column = dataset.columns[name]
    wrong = column_error(dataset, name, kinds)
    if wrong is not None:
        return wrong
    try:
        if column.sum is not None:
            engine.check_sum(name)
            summed = dataset.summed(name, engine.scale(name))
            check_private_bounds(engine, summed)
            check_bounds(summed)
        if column.domain is not None and not _fits(column, known_labels(dataset, name, engine)):
            return f"column {name!r} is declared {column.type}, but its domain holds a label that is not of this type"
    except (InputError, EngineError) as error:
        return str(error)
    return None


def _fits(column: Column, labels: pa.Array) -> bool:
    """Return True if *labels* have the column's type, or are text that can be parsed as it, as in CSV files."""
    is_type, type_ = {
        "text": (pa.types.is_string, pa.string()),
        "integer": (pa.types.is_integer, pa.decimal128(38, 0)),
        "decimal": (pa.types.is_decimal, pa.decimal256(76, 38)),
        "boolean": (pa.types.is_boolean, pa.bool_()),
        "date": (pa.types.is_date, pa.date32()),
        "timestamp": (pa.types.is_timestamp, pa.timestamp("us")),
    }[column.type]
    if is_type(labels.type):
        return True
    try:  # Arrow casts value by value, and raises for text that is not of the type
        labels.cast(type_)
    except pa.ArrowException:
        return False
    return pa.types.is_string(labels.type) or (column.type == "decimal" and pa.types.is_integer(labels.type))
