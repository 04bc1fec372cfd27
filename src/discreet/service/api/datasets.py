"""Descriptions of datasets for analysts."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from discreet.catalog.model import ImpliedColumn
from discreet.wire.queries import ColumnDetail, DatasetDetail, SumBounds

if TYPE_CHECKING:
    from discreet.catalog.model import Column, Dataset
    from discreet.service.settings import Limits

MAX_LABELS = 1_000
"""The maximum of labels of a known domain that are listed with their column."""


def dataset_detail(name: str, dataset: Dataset, limits: Limits, version: str | None) -> DatasetDetail:
    """Return the description of a dataset for its analysts.

    Args:
        dataset: without the columns that the caller may not see.
        limits: limits of the service, which apply in addition to those of the dataset.
    """
    return DatasetDetail(
        name=name,
        description=dataset.description,
        user=dataset.user,
        rows=dataset.rows_per_group is not None,
        groups_per_user=dataset.groups_per_user,
        rows_per_group=dataset.rows_per_group,
        missing_labels=dataset.missing_labels,
        max_k=min(dataset.max_k or limits.max_k, limits.max_k),
        max_head_limit=min(dataset.max_head_limit or limits.max_head_limit, limits.max_head_limit),
        retention_days=dataset.retention_days,
        data_version=version,
        columns=[_column_detail(column, about) for column, about in dataset.columns.items()],
    )


def _column_detail(name: str, column: Column) -> ColumnDetail:
    labels = None
    if isinstance(column.domain, tuple) and len(column.domain) <= MAX_LABELS:
        # in the JSON form that releases use
        dated = (label.isoformat() if isinstance(label, datetime.date) else label for label in column.domain)
        labels = [label if isinstance(label, str | int) else str(label) for label in dated]
    return ColumnDetail(
        name=name,
        type=column.type,
        each=column.each,
        period_of=column.source if isinstance(column, ImpliedColumn) else None,
        group=column.group,
        filter=column.filter,
        sum=None
        if column.sum is None
        else SumBounds(low=float(column.sum.low), high=float(column.sum.high), private_bound=column.sum.private_bound),
        known_domain=column.domain is not None,
        groups_per_user=column.groups_per_user,
        labels=labels,
    )
