"""Answer whole statements. The library, the service and its rehearsals all take these steps.

    found   = split(text)        the queries, and the outer statement over their answers
    planned = plan(found)        every query, and whether the outer statement fits the columns of their answers
    tables  = answer(planned)    each distinct query in its order, which is charged
    rows    = compute(tables)    the outer statement

They differ in what answers a query (`QueryPort`: a warehouse, or a service for an account), and in what reads the
statement and computes its rows (`RowsPort`: this process, or a worker).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa

from discreet.catalog.model import Catalog, Dataset
from discreet.engines.sql import text_literal
from discreet.errors import InputError, NotFound, SQLError
from discreet.head_request import MAX_LISTED, Predicate
from discreet.mechanisms import KnownLaplace
from discreet.mechanisms.running import RunningCounts
from discreet.query.planning import PlannedQuery, columns_named
from discreet.query.predicates import columns_of
from discreet.query.query import DatasetQuery, check_ranked_by
from discreet.query.statement import FilterList, Leaf, Statement
from discreet.release.postprocess import ComputedRows, arrow_types, explain, schema_table
from discreet.release.result import Release, answer_types
from discreet.values import Cost

Labels: TypeAlias = Callable[[str, tuple[str, ...], Predicate | None], pa.Table | None]

Rows = TypeVar("Rows")
Rows_co = TypeVar("Rows_co", covariant=True)


@dataclass(frozen=True, slots=True)
class PlannedStatement:
    """A statement, whose leaves name datasets as the catalog spells them.

    Args:
        public: tables that need no query because their rows are public or saved, by name.
        queries: planned queries, by the name of the table that holds their answer; empty before `plan`.
        prices: the releases of saved tables that are not paid for, with the most that each costs.
        running: epsilon of running counts of which saved tables hold periods, and who paid it, by the names of tables.
        columns: the names of the columns of its rows, and their SQL types; empty before `plan`.
        written: the SQL of the queries as it was before a k was taken from it, by the same names.
        text: what was split, with values in place of lists in filters.
    """

    statement: Statement
    public: Mapping[str, pa.Table]
    queries: Mapping[str, PlannedQuery] = field(default_factory=dict)
    prices: Mapping[str, Cost] = field(default_factory=dict)
    running: Mapping[str, tuple[float, str | None]] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)
    columns: Sequence[tuple[str, str]] = ()
    text: str = ""


class QueryPort(Protocol):
    """What plans and answers the queries of a statement."""

    def plan(self, question: DatasetQuery, *, counts: bool, complete: bool) -> PlannedQuery:
        """Plan a query, of labels only unless *counts*; no row is read.

        Args:
            complete: True for quantiles, whose counts are `unclipped`.
        """
        ...

    def check_budget(self, queries: Mapping[str, PlannedQuery], prices: Mapping[str, Cost]) -> None:
        """Raise unless the budget can pay the worst cases of all queries, and *prices* of releases, together."""
        ...

    def saved(self, leaf: Leaf) -> tuple[Release, Cost | None, str | None]:
        """Return the release that a saved table names, the most that it costs, and who paid for it.

        The cost is None if it is paid for. The payer of running counts is a text such as "board paid epsilon 4 for all
        periods, until 2026-11-28"; that of other releases is not shown.
        """
        ...

    def pay(self, release: str, price: Cost) -> None:
        """Charge a release that a saved table names; nothing of it is shown before."""
        ...

    def answer(self, leaf: Leaf, query: PlannedQuery) -> Release:
        """Answer a query and charge it; the second time, return its answer free of charge."""
        ...


class RowsPort(Protocol[Rows_co]):
    """What reads statements and computes rows from answers."""

    def split(self, text: str, catalog: Catalog) -> Statement:
        """Return the queries of a statement; as `discreet.query.statement.split_statement`."""
        ...

    def check(self, outer: str, types: Mapping[str, Mapping[str, str]]) -> Sequence[tuple[str, str]]:
        """Return the columns of an outer statement over tables with these types; as `postprocess.check_outer`."""
        ...

    def compute(self, statement: Statement, tables: Mapping[str, pa.Table]) -> Rows_co:
        """Return the rows of a statement; as `postprocess.compute_outer`."""
        ...

    def texts(self, statement: Statement, tables: Mapping[str, pa.Table]) -> list[str | None]:
        """Return the rows of a statement with one column of text."""
        ...

    def show(self, statement: Statement, rows: ComputedRows) -> Rows_co:
        """Return the rows of EXPLAIN."""
        ...


def split(
    text: str,
    catalog: Catalog,
    labels: Labels,
    queries: QueryPort,
    port: RowsPort[Rows],
    max_k: int | None = None,
    *,
    made_up: bool = False,
) -> PlannedStatement:
    """Split a statement into its queries, and read the tables that are free.

    Lists in filters, as `article IN (SELECT article FROM saved.top)`, are computed first, from releases that are paid
    for, and become constants, which may list the items. A query loses its k where the LIMIT is better applied to its
    answer: above the largest k, or where it covers a known domain.

    Args:
        catalog: the datasets that may be queried; errors name only these.
        labels: returns the items of columns of a dataset if the catalog or a filter lists them; see `Warehouse.labels`.
        max_k: the largest k of a query, beside that of its dataset.
        made_up: True to compute lists from any answers of *queries*, which are of made-up rows.

    Raises:
        SQLError, WhereError: part of the statement is not allowed, or the order of a sum's items is not by their users.
        NotFound: there is no such dataset.
        InputError: labels that are needed are not listed.
        EngineError: the engine failed to return the items of a listed domain.
    """
    statement = port.split(text, catalog)
    if statement.lists:

        def read(sql: str, place: int) -> str:
            inner = split(sql, catalog, labels, queries, port, max_k, made_up=made_up)
            return _constants(inner, place, catalog, queries, port, made_up=made_up)

        text = _with_lists(text, statement.lists, read)
        statement = port.split(text, catalog)
    leaves = []
    for written_leaf in statement.leaves:
        leaf, dataset = _resolved(written_leaf, catalog)  # from here on with the catalog's spelling
        if leaf.release is not None:
            leaves.append(leaf)
            continue
        check_ranked_by(leaf.ranked_by, dataset)
        if leaf.complete:
            with _naming_query(leaf, statement):
                _listed(leaf, catalog, labels, "quantiles are computed from all of them")
        leaves.append(_limited(leaf, dataset, labels, max_k))
    written = {leaf.name: leaf.sql for leaf in statement.leaves}
    statement = replace(statement, leaves=tuple(leaves))
    public = {name: schema_table(name, catalog) for name in statement.schemas}
    for leaf in statement.leaves:
        if leaf.select is None:
            with _naming_query(leaf, statement):
                user = catalog.datasets[leaf.dataset].user
                hint = f"select an aggregate beside it, such as COUNT(DISTINCT {user})"
                public[leaf.name] = _listed(leaf, catalog, labels, hint)
    return PlannedStatement(statement, public, written=written, text=text)


def _limited(leaf: Leaf, dataset: Dataset, labels: Labels, max_k: int | None) -> Leaf:
    """Return a query without k if its LIMIT is better applied to its answer, and with counts that decide on items."""
    if dataset.min_users is not None:
        leaf = leaf.with_counts()
    leaf = leaf.limit_k(max_k).limit_k(dataset.max_k)
    size = math.inf
    if leaf.select is not None and leaf.select.k is not None:
        with contextlib.suppress(InputError):  # planning raises it again, with the query
            items = labels(leaf.dataset, columns_named(leaf.select.items, dataset), leaf.select.where)
            size = math.inf if items is None else len(items)
    return leaf.limit_k(size - 1)


def _with_lists(text: str, lists: Sequence[FilterList], read: Callable[[str, int], str]) -> str:
    """Return a statement with constants in place of the lists of its filters.

    Args:
        read: returns the constants of a list, which begins at a place in the text.
    """
    constants: dict[str, str] = {}
    for one in lists:
        if one.sql not in constants:
            constants[one.sql] = read(one.sql, one.start)
    for one in reversed(lists):
        text = f"{text[: one.start]}({constants[one.sql]}){text[one.end :]}"
    return text


def _constants(
    listed: PlannedStatement,
    place: int,
    catalog: Catalog,
    queries: QueryPort,
    port: RowsPort[Rows],
    *,
    made_up: bool,
) -> str:
    """Return the values of a list in a filter as SQL, in order.

    Raises:
        SQLError: it is not computed from saved tables alone, which are paid for, or it is not a list of labels.
    """
    statement = listed.statement
    if statement.schemas or (not made_up and any(leaf.release is None for leaf in statement.leaves)):
        raise SQLError("the list of a filter is selected from saved tables: save its statement first", place)
    planned = plan(listed, catalog, queries, port)
    if planned.prices:
        raise SQLError(
            "the list of a filter is selected from saved tables that are paid for: SELECT from it first", place
        )
    if len(planned.columns) > 1:
        raise SQLError("the list of a filter has one column", place)
    type_ = planned.columns[0][1]
    if type_ not in _LABEL_TYPES:
        raise SQLError(f"the list of a filter holds labels, of type {', '.join(_LABEL_TYPES)}, not {type_}", place)
    outer = f"SELECT DISTINCT CAST(label AS VARCHAR) FROM ({statement.outer}) AS list(label) ORDER BY 1"  # noqa: S608
    texts = port.texts(replace(statement, outer=outer, marks=()), answer(planned, queries))
    if len(texts) > MAX_LISTED:
        raise SQLError(f"the list of a filter has at most {MAX_LISTED:,} values, not {len(texts):,}", place)
    constants = []
    for text in texts:
        if text is None:
            raise SQLError(
                "the list of a filter has a missing label, which equals nothing: add IS NOT NULL to it", place
            )
        typed = f"{type_} " if type_ in {"DATE", "TIMESTAMP"} else ""
        constants.append(text if type_ in {"INTEGER", "BIGINT", "BOOLEAN"} else f"{typed}{text_literal(text)}")
    if not constants:
        raise SQLError("the list of a filter is empty, so no row is left", place)
    return ", ".join(constants)


_LABEL_TYPES = ("VARCHAR", "INTEGER", "BIGINT", "BOOLEAN", "DATE", "TIMESTAMP")


def plan(draft: PlannedStatement, catalog: Catalog, queries: QueryPort, port: RowsPort[Rows]) -> PlannedStatement:
    """Plan all queries of a statement, and check the rest of it; nothing is charged.

    Raises:
        SQLError: the outer statement does not fit the columns of its answers.
        InputError: a query is not allowed, or its mechanism omits labels that quantiles need.
        EngineError: planning needs metadata from the engine, and the engine failed.
    """
    statement = draft.statement
    planned: dict[str, PlannedQuery] = {}
    public = dict(draft.public)
    prices: dict[str, Cost] = {}
    running: dict[str, tuple[float, str | None]] = {}
    types = {}
    for leaf in statement.leaves:
        if leaf.release is not None:
            release, price, payer = queries.saved(leaf)
            public[leaf.name] = release.answer_table(ranks=not leaf.counts)
            prices |= {} if price is None else {leaf.release: price}
            if release.mechanism == RunningCounts.name:
                running[leaf.name] = release.guarantee.epsilon, payer
            continue
        if leaf.select is None:
            continue
        dataset = catalog.datasets[leaf.dataset]
        with _naming_query(leaf, statement):
            query = queries.plan(
                DatasetQuery(leaf.select, leaf.dataset, dataset), counts=leaf.counts, complete=leaf.complete
            )
            if leaf.complete and (query.plan.query.min_users is not None or query.plan.query.patterns):
                raise InputError(
                    "quantiles need the counts of all labels, and the catalog does not let all of them be shown"
                )
            if leaf.complete and not isinstance(query.plan.mechanism, KnownLaplace):
                raise InputError("quantiles need the counts of all labels: leave the mechanism out, or choose laplace")
        planned[leaf.name] = query
        types[leaf.name] = answer_types(query.plan.query, dataset)
    if public:
        types |= arrow_types(public)
    columns = port.check(statement.outer, types)
    return replace(draft, queries=planned, public=public, prices=prices, running=running, columns=columns)


def answer(planned: PlannedStatement, queries: QueryPort) -> dict[str, pa.Table]:
    """Answer all queries of a statement in their order; return the tables of its outer statement, none for EXPLAIN.

    Raises:
        BudgetExceeded: the budget cannot pay the sum of the worst cases; nothing was charged.
        DiscreetError: as `discreet.release.answer.answer`; earlier queries stay charged.
    """
    if planned.statement.explain:
        return {}
    queries.check_budget(planned.queries, planned.prices)
    tables = dict(planned.public)
    for id_, price in planned.prices.items():
        queries.pay(id_, price)
    for leaf in planned.statement.leaves:
        if leaf.name in planned.queries:
            release = queries.answer(leaf, planned.queries[leaf.name])
            tables[leaf.name] = release.answer_table(ranks=not leaf.counts)
    return tables


def compute(planned: PlannedStatement, tables: Mapping[str, pa.Table], port: RowsPort[Rows]) -> Rows:
    """Return the rows of a statement, computed from the *tables* of `answer`; those of its plans for EXPLAIN.

    Raises:
        InputError: the rows cannot be computed from the answers, which stay charged.
    """
    statement = planned.statement
    if statement.explain:
        plans = {name: of.plan for name, of in planned.queries.items()}
        return port.show(statement, explain(statement, plans, planned.prices, planned.running))
    return port.compute(statement, tables)


def _resolved(leaf: Leaf, catalog: Catalog) -> tuple[Leaf, Dataset]:
    """Return a query that names its dataset as the catalog does, and the dataset.

    Raises:
        NotFound: there is no such dataset, or it lacks a column of a query that a release answers.
    """
    try:
        name, dataset = catalog.find(leaf.dataset)
        select = leaf.select
        if leaf.release is not None and select is not None:
            named = {*select.items, *select.each, *(columns_of(select.where) if select.where else ())}
            named |= {select.measure.column} if select.measure.column else set()
            columns = {column.casefold() for column in (dataset.user, *dataset.columns)}
            if not {column.casefold() for column in named} <= columns:
                raise NotFound  # noqa: TRY301 - as if there were no such dataset
    except NotFound:
        if leaf.release is None:
            raise
        raise NotFound("a saved table reads data that do not exist, or were not granted") from None
    return replace(leaf, dataset=name), dataset


def _listed(leaf: Leaf, catalog: Catalog, labels: Labels, hint: str) -> pa.Table:
    """Return the labels of the columns of a query, or raise `InputError` with *hint* if the catalog lacks them."""
    dataset = catalog.datasets[leaf.dataset]
    items = columns_named(leaf.items, dataset)
    listed = labels(leaf.dataset, items, None)
    if listed is None:
        unknown = next((item for item in items if dataset.columns[item].domain is None), items[0])
        raise InputError(f"the labels of column {unknown!r} are not listed in the catalog; {hint}")
    return listed


@contextlib.contextmanager
def _naming_query(leaf: Leaf, statement: Statement) -> Iterator[None]:
    """Add the SQL of a query to the messages of its errors, if its statement has several queries."""
    try:
        yield
    except InputError as error:
        if len(statement.leaves) > 1:
            error.args = (f"{error}; in: {leaf.sql}",)
        raise
