"""Check a catalog against the tables it declares. Findings name settings, columns and types, never data."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from discreet.catalog.domains import known_labels
from discreet.catalog.engine_pool import column_error, open_dataset, queried_version, user_error
from discreet.catalog.fields import OwnerQuery
from discreet.catalog.loader import Finding, write_key
from discreet.engines.base import check_private_bounds
from discreet.errors import EngineError, InputError
from discreet.mechanisms import check_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from discreet.catalog.model import Catalog, Column, Dataset
    from discreet.engines.base import Engine


def check(catalog: Catalog, names: Iterable[str] = (), *, environment: Mapping[str, str]) -> list[Finding]:
    """Connect to datasets and compare their declarations with their tables.

    Rows are read only by the owner's own queries, for domains and versions.

    Args:
        names: names of the datasets to check; all if empty.

    Returns:
        a finding for each dataset, its user column, its columns, and its version if a query returns it.

    Raises:
        InputError: there is no such dataset.
    """
    chosen = [catalog.find(name) for name in names] or list(catalog.datasets)
    return [finding for name in dict.fromkeys(chosen) for finding in _check_dataset(catalog, name, environment)]


def _check_dataset(catalog: Catalog, name: str, environment: Mapping[str, str]) -> Iterator[Finding]:
    dataset, place = catalog.datasets[name], ("datasets", name)
    try:
        engine = open_dataset(catalog, name, environment)
        with closing(engine):
            held = engine.columns()
            yield _finding(*place)
            yield _finding(*place, "user", mistake=user_error(dataset.user, held))
            for column in dataset.declared:
                wrong = (
                    column_error(dataset, column, held)
                    or _sum_error(dataset, column, engine)
                    or _domain_error(dataset, column, engine)
                )
                yield _finding(*place, "columns", column, mistake=wrong)
            if isinstance(dataset.data_version, OwnerQuery):
                wrong = None
                try:
                    queried_version(engine.fetch(dataset.data_version.query))
                except (InputError, EngineError) as error:
                    wrong = str(error)
                yield _finding(*place, "data_version", mistake=wrong)
    except (InputError, EngineError) as error:
        yield _finding(*place, mistake=str(error))


def _finding(*place: str, mistake: str | None = None) -> Finding:
    return Finding(write_key(*place), mistake)


def _sum_error(dataset: Dataset, name: str, engine: Engine) -> str | None:
    if dataset.columns[name].sum is None:
        return None
    try:
        engine.check_sum(name)
        summed = dataset.summed(name, engine.scale(name))
        check_private_bounds(engine, summed)
        check_bounds(summed)
    except (InputError, EngineError) as error:
        return str(error)
    return None


def _domain_error(dataset: Dataset, name: str, engine: Engine) -> str | None:
    column = dataset.columns[name]
    if column.domain is None:
        return None
    try:
        labels = known_labels(dataset, name, engine)
    except (InputError, EngineError) as error:
        return str(error)
    if not _fits(column, labels):
        return f"column {name!r} is declared {column.type}, but its domain holds a label that is not of this type"
    return None


def _fits(column: Column, labels: pa.Array) -> bool:
    """Return True if *labels* have the column's type, or are text that can be parsed as it, as in CSV files."""
    import pyarrow as pa

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
