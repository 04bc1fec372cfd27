"""Generate made-up rows of a dataset from its catalog alone, to try programs and charts before spending any budget."""

from __future__ import annotations

import datetime
import math
import zlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from discreet.catalog.model import Catalog, Column, Dataset, starts_between
from discreet.engines.base import Engine
from discreet.head_request import MONTHS, Kind

MAX_SAMPLE_ROWS = 10_000
"""The largest number of rows in a sample."""

ROWS_PER_USER = 5
VALUES = 100
"""The number of values that are made up for a column whose labels the catalog does not list."""

_START = datetime.datetime(2026, 1, 1)


def sample(dataset: Dataset, rows: int) -> pa.Table:
    """Return made-up rows with the user column and the columns of the catalog; the same for the same arguments.

    Labels that the catalog lists are used, the first one most often; users and all other values are made up.

    Args:
        rows: at least 1.
    """
    table = made_up_table(dataset, rows)
    columns = {dataset.user: table[dataset.user]}
    for name, column in dataset.columns.items():
        columns[name] = table[column.of or name]
        if column.each is not None:
            values = columns[name].to_pylist()
            if isinstance(column.each, int):  # bins of decimals, too, begin at whole numbers
                values = [math.floor(value) for value in values]
            # the period or bin that contains a value is the only one between that value and itself
            starts = [next(starts_between(value, value, column.each)) for value in values]
            columns[name] = pa.array(starts, pa.timestamp("us") if column.kind is Kind.TIMESTAMP else None)
    return pa.table(columns)


def made_up_table(dataset: Dataset, rows: int) -> pa.Table:
    """Return made-up rows of a dataset's table: without computed columns, with the columns that those come from.

    Args:
        rows: at least 1.
    """
    table = {dataset.user: pa.array([f"user {number // ROWS_PER_USER + 1}" for number in range(rows)])}
    for source in dict.fromkeys(column.of or name for name, column in dataset.columns.items()):
        uses = {name: column for name, column in dataset.columns.items() if (column.of or name) == source}
        name, column = min(uses.items(), key=lambda use: (use[1].domain is None, _WIDTHS.get(use[1].each, use[1].each)))
        kinds = {use.kind for use in uses.values()}
        kind = uses[source].kind if source in uses else Kind.TIMESTAMP if Kind.TIMESTAMP in kinds else column.kind
        values = _column_values(name, column)  # of the computed column, as values of the one that it comes from
        if kind is Kind.TIMESTAMP:
            midnight = datetime.time()
            moments = datetime.datetime
            values = [value if isinstance(value, moments) else moments.combine(value, midnight) for value in values]
        elif kind is Kind.DATE:
            values = [value.date() if isinstance(value, datetime.datetime) else value for value in values]
        elif kind in {Kind.DECIMAL, Kind.FLOAT}:
            values = list(map(Decimal if kind is Kind.DECIMAL else float, values))
        type_ = pa.timestamp("us") if kind is Kind.TIMESTAMP else None
        # Log-uniform ranks from 0: those from n to 2 n are as likely as those from 2 n to 4 n, as items often are.
        draws = np.random.default_rng(zlib.crc32(name.encode())).random(rows)
        ranks = np.minimum(((len(values) + 1.0) ** draws).astype(np.int64) - 1, len(values) - 1)
        table[source] = pa.array([values[rank] for rank in ranks], type_)
    return pa.table(table)


def made_up_catalog(catalog: Catalog) -> Catalog:
    """Return *catalog* over made-up tables: without engines, and with made-up labels instead of queried ones."""
    datasets = {}
    for dataset, declared in catalog.datasets.items():
        columns = {
            name: column
            if column.domain is None or isinstance(column.domain, tuple)
            else column.model_copy(update={"domain": tuple(dict.fromkeys(_column_values(name, column)))})
            for name, column in declared.columns.items()
        }
        settings = {"engine": None, "source": "made-up rows", "table": None, "view": None, "data_version": "made up"}
        datasets[dataset] = declared.model_copy(update={**settings, "columns": columns})
    return catalog.model_copy(update={"engines": {}, "datasets": datasets})


def open_made_up(catalog: Catalog, name: str, environment: Mapping[str, str]) -> Engine:  # noqa: ARG001 - no password
    """Return an engine over made-up rows of a dataset; a stand-in for `discreet.catalog.engine_pool.open_dataset`."""
    from discreet.engines.opening import open_engine

    return open_engine(made_up_table(catalog.datasets[name], MAX_SAMPLE_ROWS))


_WIDTHS: Mapping[Any, int] = {None: 0, "hour": 1, "day": 2, "week": 3, "month": 4, "quarter": 5, "year": 6}
"""Periods by length. Values are made up for the finest computed column of a source; coarser ones follow from it."""


def _column_values(name: str, column: Column) -> list[Any]:
    """Return the values of a column, the most frequent first."""
    if isinstance(column.domain, tuple):
        return list(column.domain)
    low = Decimal(0)
    high = Decimal(VALUES)
    if column.sum is not None:
        low, high = (Decimal(of.numerator) / of.denominator for of in (column.sum.low, column.sum.high))
    numbers = [low + (high - low) * place / VALUES for place in range(VALUES)]
    width = column.each if isinstance(column.each, int) else 1
    # days from 2026-01-01, a Thursday, to the first day of each period
    days: list[int] = [place // 7 * 7 + 4 if column.each == "week" else place for place in range(30)]
    if column.each in MONTHS:
        days = {"month": [0, 31, 59], "quarter": [0, 90, 181], "year": [0, 365, 730]}[column.each] * 10
    values_of_kind: dict[Kind, list[Any]] = {
        Kind.INTEGER: [int(number) // width * width for number in numbers],
        Kind.DECIMAL: [round(number, 2) for number in numbers],
        Kind.FLOAT: [float(number) for number in numbers],
        Kind.BOOLEAN: [True, False],
        Kind.DATE: [(_START + datetime.timedelta(days=day)).date() for day in days],
        Kind.TIMESTAMP: [_START + datetime.timedelta(hours=7 * place) for place in range(VALUES)],
    }
    return values_of_kind.get(column.kind) or [f"{name} {place + 1}" for place in range(VALUES)]
