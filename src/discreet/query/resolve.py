"""A question held against the catalog: what its owner allows becomes a `Query`, anything else is refused.

What an analyst may not ask about looks exactly like what does not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from discreet.errors import InputError, UnknownColumn
from discreet.query.canonical import canonical
from discreet.query.model import Query, default_head_limit
from discreet.query.where import bind_where
from discreet.values import Sensitivity

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from discreet.catalog.model import Dataset
    from discreet.mechanisms import NoiseName
    from discreet.query.model import MechanismChoice
    from discreet.query.select import Measure, Select
    from discreet.question import Kind, Predicate, Summed


def resolve(
    select: Select,
    dataset: Dataset,
    *,
    epsilon: float,
    delta: Fraction,
    scales: Mapping[str, int],
    domain: Any = None,  # noqa: ANN401 - an Arrow table
    head_limit: int | None = None,
    mechanism: MechanismChoice | None = None,
    noise: NoiseName | None = None,
    relative_error: Fraction,
    counts: bool = True,
) -> Query:
    """The query that *select* asks of *dataset*.

    Args:
        select: the question; names may differ from the catalog's in case.
        dataset: what may be asked.
        epsilon: see `Query`.
        delta: see `Query`.
        scales: digits behind the point of the columns that may be summed, for those that have some.
        domain: the items listed by the catalog, an Arrow table with the item columns, or None.
        head_limit: see `Query`.
        mechanism: see `Query`.
        noise: see `Query`.
        relative_error: see `Query`.
        counts: see `Query`.

    Raises:
        UnknownColumn: a column that there is not, or that may not be used so.
        InputError: something else that the catalog does not allow.
        WhereError: a filter that does not fit its columns.
    """
    items = items_of(select, dataset)
    if len(set(items)) < len(items):
        raise InputError("an item column is named twice")
    summed = _summed(select.measure, dataset, scales)
    if not counts and select.measure.kind == "average":
        raise InputError("an average is a sum divided by a count, so it cannot be had without counts")
    _check_ceilings(select.k, head_limit, dataset)
    return Query(
        dataset.user,
        items,
        epsilon,
        delta,
        k=_k(select.k, domain),
        where=_where(select.where, dataset),
        sensitivity=_sensitivity(select.measure, dataset),
        head_limit=_head_limit(select.k, head_limit, dataset),
        counts=counts if summed is None else select.measure.kind == "average",
        noise=noise,
        mechanism=mechanism,
        relative_error=relative_error,
        domain=domain,
        keep_missing=dataset.missing_labels == "keep",
        summed=summed,
        average=select.measure.kind == "average",
    )


def _k(asked: int | None, domain: Any) -> int | None:  # noqa: ANN401 - an Arrow table
    """No more than there are items: LIMIT 10 of 3 is 3, as in any SQL."""
    return asked if asked is None or domain is None else min(asked, len(domain))


def items_of(select: Select, dataset: Dataset) -> tuple[str, ...]:
    """The item columns as the catalog spells them.

    Raises:
        UnknownColumn: there is no such column, or it may not name items.
    """
    return tuple(_find(item, dataset.groupable, "column to group by") for item in select.items)


def _find(name: str, allowed: tuple[str, ...], role: str) -> str:
    found = {column.casefold(): column for column in allowed}.get(name.casefold())
    if found is None:
        raise UnknownColumn(name, allowed, role)
    return found


def _where(where: Predicate | None, dataset: Dataset) -> Predicate | None:
    if where is None:
        return None
    kinds: dict[str, Kind] = {name: dataset.columns[name].kind for name in dataset.filterable}
    return canonical(bind_where(where, kinds), kinds)


def _sensitivity(measure: Measure, dataset: Dataset) -> Sensitivity:
    declared = dataset.sensitivity
    if measure.kind == "users" and (measure.column or "").casefold() != dataset.user.casefold():
        raise InputError(f"users are counted, as COUNT(DISTINCT {dataset.user}); nothing else can be counted so")
    if measure.kind != "rows":
        return Sensitivity(declared.groups_per_user)
    if dataset.rows_per_group is None:
        raise InputError(f"rows of this dataset are not counted; count users, as COUNT(DISTINCT {dataset.user})")
    return declared


def _summed(measure: Measure, dataset: Dataset, scales: Mapping[str, int]) -> Summed | None:
    if measure.kind not in {"sum", "average"}:
        return None
    column = _find(measure.column or "", dataset.summable, "column to sum")
    return dataset.summed(column, scales.get(column, 0))


def _check_ceilings(k: int | None, head_limit: int | None, dataset: Dataset) -> None:
    if k is not None and dataset.k_most is not None and k > dataset.k_most:
        raise InputError(f"a top k of this dataset has at most {dataset.k_most:,} items, not {k:,}")
    if head_limit is not None and dataset.head_limit_most is not None and head_limit > dataset.head_limit_most:
        raise InputError(f"the head limit of this dataset is at most {dataset.head_limit_most:,}, not {head_limit:,}")


def _head_limit(k: int | None, asked: int | None, dataset: Dataset) -> int | None:
    """The default head limit, lowered to what the catalog allows."""
    if asked is not None or dataset.head_limit_most is None:
        return asked
    return min(default_head_limit(k), dataset.head_limit_most)
