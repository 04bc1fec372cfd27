"""A catalog held against the real tables. What comes out names settings, columns and types, and never any data."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from discreet.catalog.column import KINDS
from discreet.catalog.connect import open_dataset
from discreet.catalog.domain import known_labels
from discreet.catalog.mistakes import Finding
from discreet.catalog.settings import OwnersQuery
from discreet.catalog.toml import write_key
from discreet.catalog.version import queried_version
from discreet.errors import EngineError, InputError, UnknownColumn
from discreet.mechanisms import Magnitude
from discreet.question import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from discreet.catalog.column import Column
    from discreet.catalog.model import Catalog, Dataset
    from discreet.engines.base import Engine

_HELD = {kind: type_ for type_, kind in KINDS.items()}


def check(catalog: Catalog, names: Iterable[str] = (), *, environment: Mapping[str, str]) -> list[Finding]:
    """Connect to datasets, and compare what is declared with what is there.

    Rows are read only by the owner's own statements, for domains and versions.

    Args:
        catalog: to be checked.
        names: of datasets; all if there are none.
        environment: the variables in which passwords are.

    Returns:
        what was checked: of each dataset itself, its user column, its columns, and its version if a query tells it.

    Raises:
        InputError: there is no such dataset.
    """
    chosen = [catalog.find(name) for name in names] or list(catalog.datasets)
    return [finding for name in dict.fromkeys(chosen) for finding in _check_dataset(catalog, name, environment)]


def misfits(dataset: Dataset, held: Mapping[str, Kind]) -> list[str]:
    """What is wrong with the columns that a dataset declares.

    Args:
        dataset: declares a user column, and columns with types.
        held: the columns of its table, by their names.

    Returns:
        a sentence for each that is missing or of a type that does not fit, the user column first.
    """
    wrong = [
        _wrong_with_user(dataset.user, held),
        *(_wrong_with_column(dataset, name, held) for name in dataset.columns),
    ]
    return [sentence for sentence in wrong if sentence is not None]


def _check_dataset(catalog: Catalog, name: str, environment: Mapping[str, str]) -> Iterator[Finding]:
    dataset, place = catalog.datasets[name], ("datasets", name)
    try:
        engine = open_dataset(catalog, name, environment)
        with closing(engine):
            held = engine.columns()
            yield _finding(*place)
            yield _finding(*place, "user", mistake=_wrong_with_user(dataset.user, held))
            for column in dataset.columns:
                wrong = (
                    _wrong_with_column(dataset, column, held)
                    or _wrong_with_sum(dataset, column, engine)
                    or _wrong_with_domain(dataset, column, engine)
                )
                yield _finding(*place, "columns", column, mistake=wrong)
            if isinstance(dataset.data_version, OwnersQuery):
                wrong = _wrong_with_version(dataset.data_version, engine)
                yield _finding(*place, "data_version", mistake=wrong)
    except (InputError, EngineError) as error:
        yield _finding(*place, mistake=str(error))


def _finding(*place: str, mistake: str | None = None) -> Finding:
    return Finding(write_key(*place), mistake)


def _wrong_with_user(user: str, held: Mapping[str, Kind]) -> str | None:
    if user not in held:
        return str(UnknownColumn(user, held, "user column"))
    if held[user] is Kind.FLOAT:
        return f"user column {user!r} holds floating-point numbers, of which engines disagree which are equal"
    if held[user] is Kind.OTHER:
        return f"user column {user!r} has a type that cannot tell users apart; cast it to text in a view"
    return None


def _wrong_with_column(dataset: Dataset, name: str, held: Mapping[str, Kind]) -> str | None:
    column = dataset.columns[name]
    if name not in held:
        return str(UnknownColumn(name, held))
    if held[name] is column.kind or (held[name] is Kind.UNTYPED and column.type == "text"):
        return None
    if held[name] is Kind.UNTYPED:
        return (
            f"column {name!r} is declared {column.type}, but CSV files hold text; cast it in a view, or write Parquet"
        )
    there = _HELD.get(held[name], "values of a type that cannot be asked about")
    return f"column {name!r} is declared {column.type}, but the table holds {there}"


def _wrong_with_sum(dataset: Dataset, name: str, engine: Engine) -> str | None:
    if dataset.columns[name].sum is None:
        return None
    try:
        engine.check_sum(name)
        summed = dataset.summed(name, engine.scale(name))
        low, high = (int(bound * 10**summed.scale) for bound in (summed.low, summed.high))
        Magnitude(low, high)
    except (InputError, EngineError) as error:
        return str(error)
    return None


def _wrong_with_domain(dataset: Dataset, name: str, engine: Engine) -> str | None:
    column = dataset.columns[name]
    if column.domain is None:
        return None
    try:
        labels = known_labels(dataset, name, engine)
    except (InputError, EngineError) as error:
        return str(error)
    if not _can_name(column, labels):
        return f"column {name!r} is declared {column.type}, but its domain holds a label that is not of this type"
    return None


def _can_name(column: Column, labels: pa.Array) -> bool:
    """True if *labels* are of the column's type, or text that can be read as such: files of text hold nothing else."""
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
    try:
        labels.cast(type_)
    except pa.ArrowException:
        return False
    return pa.types.is_string(labels.type) or (column.type == "decimal" and pa.types.is_integer(labels.type))


def _wrong_with_version(version: OwnersQuery, engine: Engine) -> str | None:
    try:
        queried_version(engine.fetch(version.query))
    except (InputError, EngineError) as error:
        return str(error)
    return None
