"""The items that are listed in advance, from where the catalog says they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from discreet.catalog.column import DOMAIN_MOST, LabelFile
from discreet.catalog.settings import OwnersQuery
from discreet.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from discreet.catalog.model import Dataset
    from discreet.engines.base import Engine


def known_domain(dataset: Dataset, items: tuple[str, ...], engine: Engine) -> pa.Table | None:
    """All items that *items* can name together: every combination of their labels.

    Args:
        dataset: declares the labels of each column.
        items: columns, as the dataset has them.
        engine: the dataset's, for statements of its owner.

    Returns:
        an Arrow table with a column for each of *items*. None if there are none, if one of them has no known domain, or
        if there would be more than `DOMAIN_MOST` combinations: then the domain counts as unknown, which protects as
        much and returns less.

    Raises:
        InputError: a domain cannot be read, or is none.
        EngineError: the engine failed.
    """
    import pyarrow as pa

    if not items or any(dataset.columns[item].domain is None for item in items):
        return None
    labels = [known_labels(dataset, item, engine) for item in items]
    total = math.prod(map(len, labels))
    if total > DOMAIN_MOST:
        return None
    columns, repeated = {}, total
    for item, known in zip(items, labels, strict=True):
        repeated //= len(known)
        places = [place for place in range(len(known)) for _ in range(repeated)] * (total // len(known) // repeated)
        columns[item] = known.take(pa.array(places, pa.int64()))
    return pa.table(columns)


def known_labels(dataset: Dataset, column: str, engine: Engine) -> pa.Array:
    """All labels of a column that has a known domain, each of them once.

    Raises:
        InputError: they cannot be read, there are none or too many, or one is missing or there twice.
        EngineError: the engine failed.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from discreet.domain import listed

    match dataset.columns[column].domain:
        case OwnersQuery(query=statement):
            answer = engine.fetch(statement)
            if answer.num_columns != 1:
                raise InputError(f"the query for the domain of column {column!r} must return one column")
            labels = answer.column(0)
        case LabelFile(file=path):
            labels = listed(path, (column,)).column(0)
        case declared:
            labels = listed(declared, (column,)).column(0)
    if not 1 <= len(labels) <= DOMAIN_MOST:
        raise InputError(f"the domain of column {column!r} must have from 1 to {DOMAIN_MOST:,} labels")
    if labels.null_count:
        raise InputError(f"the domain of column {column!r} holds a missing label")
    labels = _plain(labels)
    if pa.types.is_nested(labels.type) or pc.count_distinct(labels).as_py() < len(labels):
        raise InputError(f"the domain of column {column!r} holds a label twice, or values that are no labels")
    return labels


def _plain(labels: pa.ChunkedArray) -> pa.Array:
    """Text as text, however Arrow keeps it."""
    import pyarrow as pa

    if pa.types.is_dictionary(labels.type):
        labels = labels.cast(labels.type.value_type)
    if pa.types.is_large_string(labels.type) or pa.types.is_string_view(labels.type):
        labels = labels.cast(pa.string())
    return labels.combine_chunks()
