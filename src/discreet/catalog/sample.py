"""Made-up rows of a dataset, from its catalog alone: to try programs and charts before any budget is spent."""

from __future__ import annotations

import datetime
import zlib
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.question import Kind

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from discreet.catalog.model import Column, Dataset

ROWS_PER_USER = 5
VALUES = 100
"""Values that are made up for a column whose labels the catalog does not list."""

_START = datetime.datetime(2026, 1, 1)


def sample(dataset: Dataset, rows: int) -> pa.Table:
    """Return made-up rows with the user column and the columns of the catalog; the same for the same arguments.

    Labels that the catalog lists are used as they are, the first most often. Nothing else is known of the data, so that
    numbers of users, values and their sizes are all invented.

    Args:
        rows: at least 1.
    """
    import pyarrow as pa

    columns: dict[str, Any] = {
        dataset.user: pa.array([f"user {number // ROWS_PER_USER + 1}" for number in range(rows)])
    }
    for name, about in dataset.columns.items():
        values = _values(name, about)
        type_ = pa.timestamp("us") if about.kind is Kind.TIMESTAMP else None
        columns[name] = pa.array([values[rank] for rank in _ranks(name, len(values), rows)], type_)
    return pa.table(columns)


def _ranks(name: str, values: int, rows: int) -> NDArray[np.int64]:
    """Return a rank from 0 for each row, small ones more often: as many from n to 2 n as from 2 n to 4 n."""
    draws = np.random.default_rng(zlib.crc32(name.encode())).random(rows)
    return np.minimum(((values + 1.0) ** draws).astype(np.int64) - 1, values - 1)


def _values(name: str, about: Column) -> list[Any]:
    """Return the values of a column, the most frequent first."""
    if isinstance(about.domain, tuple):
        return list(about.domain)
    low, high = (Decimal(0), Decimal(VALUES)) if about.sum is None else map(_decimal, (about.sum.low, about.sum.high))
    numbers = [low + (high - low) * place / VALUES for place in range(VALUES)]
    width = about.each if isinstance(about.each, int) else 1
    made: dict[Kind, list[Any]] = {
        Kind.INTEGER: [int(number) // width * width for number in numbers],
        Kind.DECIMAL: [round(number, 2) for number in numbers],
        Kind.FLOAT: [float(number) for number in numbers],
        Kind.BOOLEAN: [True, False],
        Kind.DATE: [(_START + datetime.timedelta(days=_day(about, place))).date() for place in range(30)],
        Kind.TIMESTAMP: [_START + datetime.timedelta(hours=7 * place) for place in range(VALUES)],
    }
    return made.get(about.kind) or [f"{name} {place + 1}" for place in range(VALUES)]


def _day(about: Column, place: int) -> int:
    """Return the days from the start to the first day of a period; 2026-01-01 is a Thursday."""
    if about.each == "month":
        return (0, 31, 59)[place % 3]
    return place // 7 * 7 + 4 if about.each == "week" else place


def _decimal(bound: Any) -> Decimal:  # noqa: ANN401 - a fraction
    return Decimal(bound.numerator) / Decimal(bound.denominator)
