"""Query the datasets of a catalog in SQL, JSON or Python."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Self, Unpack

from discreet.catalog.engine_pool import EnginePool, open_dataset
from discreet.catalog.loader import load_catalog
from discreet.catalog.model import Catalog
from discreet.catalog.sample import MAX_SAMPLE_ROWS, made_up_catalog, open_made_up, sample
from discreet.errors import DiscreetError, InputError, SQLError
from discreet.head_request import Kind
from discreet.mechanisms import KnownLaplace
from discreet.noise import SystemBits
from discreet.query.json import from_dict
from discreet.query.planning import columns_named, make_plan, resolve
from discreet.query.pricing import PerUnit
from discreet.query.query import QueryOptions, Select
from discreet.query.sql import parse_select
from discreet.query.statement import split_statement
from discreet.release import NoiseKey, Release, answer
from discreet.release.answer import default_delta
from discreet.release.files import require
from discreet.release.postprocess import (
    answer_table,
    answer_types,
    arrow_types,
    check_outer,
    column_intervals,
    compute_outer,
    explain,
    schema_table,
)
from discreet.values import Cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    import pandas as pd
    import pyarrow as pa

    from discreet.budget import Budget
    from discreet.engines.base import Engine, Reader, RequestQueue
    from discreet.noise import Bits
    from discreet.query.planning import Plan
    from discreet.query.query import Options, Query
    from discreet.query.statement import Leaf, Statement


def connect(catalog: str | Path | Catalog) -> Warehouse:
    """Return the datasets of a catalog, ready to be queried.

    Args:
        catalog: a TOML file (docs/catalog.md), or a `Catalog`. Engines are connected to at their first use;
            a source that changes later is refused until `Warehouse.refresh`.

    Raises:
        InputError: the catalog is invalid; all mistakes are listed.
    """
    given: object = catalog
    if not isinstance(given, str | PurePath | Catalog):
        raise InputError("a catalog is the path of a TOML file, or what discreet.catalog.loader.load_catalog returns")
    return Warehouse(given if isinstance(given, Catalog) else load_catalog(Path(given)))


class Warehouse:
    """Datasets declared by a catalog. Made by `connect`; thread-safe.

    Args:
        catalog: the datasets that may be queried.
        clock: returns the time with its zone, for data versions on a schedule and for current_date, which is in UTC.
        environment: environment variables, for passwords of engines.
        open_: opens the engine of a dataset, like `discreet.catalog.engine_pool.open_dataset`.
    """

    def __init__(
        self,
        catalog: Catalog,
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        environment: Mapping[str, str] = os.environ,
        open_: Callable[[Catalog, str, Mapping[str, str]], Engine] = open_dataset,
    ) -> None:
        self.catalog = catalog
        self._clock = clock
        self._open = EnginePool(catalog, clock, environment, open_)

    def restricted_to(self, catalog: Catalog) -> Warehouse:
        """Return the same datasets restricted to *catalog*, over the same open engines.

        Args:
            catalog: the catalog of this warehouse without some datasets and columns.

        Raises:
            InputError: *catalog* has a dataset that this warehouse lacks.
        """
        unknown = catalog.datasets.keys() - self.catalog.datasets.keys()
        if unknown:
            raise InputError(f"there is no dataset {min(unknown)!r}")
        return _View(catalog, self._open, self._clock)

    def query(
        self,
        query: str | Mapping[str, Any] | Select,
        *,
        per: PerUnit | None = None,
        budget: Budget | None = None,
        key: bytes | None = None,
        force: bool = False,
        progress: Callable[[float], None] | None = None,
        **options: Unpack[Options],
    ) -> Release:
        """Release private counts, sums or averages.

        Args:
            query: a SELECT, see `discreet.query.sql`; or its JSON form as a mapping, or `discreet.Select`.
                With LIMIT k, a top k; without, as many accurate counts as possible; without GROUP BY, one total.
            per: the price of a unit of information and of a call, as in LinkedIn's budgets, in place of epsilon and
                delta.
            budget: the budget to charge (pay what you get); without one, the guarantee is for this query alone.
            key: a secret of 32 bytes or more for consistent noise: the same query of the same version of the data
                gets the same answer, on every engine. The catalog must declare the version of the data.
            force: True to allow epsilon above 100.
            progress: called with the finished share of the counting; an exception from it stops the engine.
            **options: epsilon, at least 1e-6 and by default 1. delta, at least 1e-20, by default 1e-8 or the query's
                share of the budget's: choose it far below one over the number of users; text such as "1e-8" is taken
                exactly. Or epsilon_per and information: the price of a unit, and the most units of a query without k.
                relative_error: the relative error that most counts should stay within, for queries without k.
                counts=False for labels only. mechanism: its name; by default chosen by the query and the catalog.
                noise: "gaussian" or "laplace"; by default the one with the smaller standard error. head_limit: the
                number of items to read from the engine, at least k.

        Raises:
            InputError: the query is not allowed; the message says what is allowed.
            BudgetExceeded: the budget cannot cover the worst case; nothing was read.
            EngineError: the engine failed; the budget is charged the worst case if data was being read.
            InexactHead: the engine's answer is not proven exact; the budget is charged the worst case.
        """
        start = time.perf_counter()
        select = _read(query, self.today)
        plan = self.plan(select, per=per, budget=budget, force=force, **options)
        for note in plan.notes:
            warnings.warn(note, stacklevel=2)
        version: str | None = None
        bits: Bits = SystemBits()
        if key is not None:
            version, table = self.key_context(select.dataset)
            if version is None:
                raise InputError(f"a key needs a data version, and the catalog gives {select.dataset!r} none")
            bits = NoiseKey(key, version).bits(plan, table)
        engine = self.versioned_reader(select.dataset, version)
        queue = self.queue(select.dataset)
        keyed = key is not None
        release: Release = answer(plan, engine, budget, bits, queue=queue, computational=keyed, progress=progress)
        return release.timed(time.perf_counter() - start)

    def plan(
        self,
        query: str | Mapping[str, Any] | Select,
        *,
        per: PerUnit | None = None,
        budget: Budget | None = None,
        shared: bool = False,
        force: bool = False,
        **options: Unpack[Options],
    ) -> Plan:
        """Return the plan of a query with its worst cost; no row is read. Parameters as in `query`.

        Set *shared* if the cost will be charged to another budget that adds up zCDP, such as an account of a service.

        Raises:
            InputError: the query is not allowed; the message says what is allowed.
            EngineError: the engine failed to return its columns or the items of a listed domain.
        """
        select = _read(query, self.today)
        name = self.catalog.find(select.dataset)
        dataset = self.catalog.datasets[name]
        if not isinstance(per, PerUnit | None):
            raise InputError("a price per unit is a discreet.query.pricing.PerUnit")
        each = columns_named(select.each, dataset)
        items = columns_named(select.items, dataset)
        scales: dict[str, int] = {}
        if select.measure.kind in {"sum", "average"}:
            column = (select.measure.column or "").casefold()
            summed = (known for known in dataset.summable if known.casefold() == column)
            scales = {
                known: self._open.scale(name, known) for known in summed if dataset.columns[known].kind is Kind.DECIMAL
            }
        resolved = resolve(
            select,
            dataset,
            QueryOptions.of(options, delta=default_delta(budget, options), per=per),
            scales=scales,
            domain=self._open.domain(name, (*each, *items)),
            segments=self._open.domain(name, each),
        )
        has_pairs = self._open.has_pairs(name)
        return make_plan(resolved, has_pairs=has_pairs, shared_budget=shared or budget is not None, force=force)

    def sql(
        self,
        text: str,
        *,
        per: PerUnit | None = None,
        budget: Budget | None = None,
        key: bytes | None = None,
        force: bool = False,
        **options: Unpack[Options],
    ) -> Answers:
        """Answer a whole statement: each SELECT directly over a dataset is a query; the rest is computed for free.

        Args:
            text: a SELECT, or EXPLAIN and a SELECT; see docs/sql.md. Other arguments are those of `query`, for each
                query of the statement.

        Raises:
            InputError: something in the statement is not allowed, or it cannot be computed from its answers.
            BudgetExceeded: the budget cannot cover the worst cases together; nothing was read.
            EngineError: as in `query`.
        """
        priced: dict[str, Any] = {"per": per, "budget": budget, "force": force, **options}
        answered = self.answer_queries(
            self.limit(split_statement(text, self.catalog, today=self.today())), check_outer, key=key, **priced
        )
        if answered.statement.explain:
            return Answers(explain(answered.statement, answered.plans).table, {})
        computed = compute_outer(answered.statement.outer, answered.tables)
        names = computed.table.column_names
        intervals = column_intervals(names, computed.types, answered.statement.marks)
        without = tuple(name for name, interval in zip(names, intervals, strict=True) if interval == "none")
        return Answers(computed.table, answered.releases, without)

    def answer_queries(
        self,
        statement: Statement,
        check: Callable[[str, Mapping[str, Mapping[str, str]]], None],
        *,
        budget: Budget | None = None,
        key: bytes | None = None,
        **priced: Any,
    ) -> AnsweredQueries:
        """Answer the queries of a whole statement, from which its rows can be computed; plan them only for EXPLAIN.

        Args:
            statement: as `limit` returns it.
            check: `discreet.release.postprocess.check_outer`, or a function that calls it in another process.
            priced: options of `query`. Others, and errors, as `sql`.
        """
        if not priced.get("counts", True):
            raise InputError("statements compute with counts; leave counts out")
        leaves = {leaf.name: leaf for leaf in statement.leaves if leaf.select is not None}
        plans = {}
        for name, leaf in leaves.items():
            with naming_query(leaf, statement):
                plans[name] = self.plan(leaf.select, budget=budget, **priced)  # type: ignore[arg-type]  # not None
                check_complete(leaf, plans[name])
        public = self.public_tables(statement)
        queries = {name: (self.catalog.find(leaf.dataset), plans[name].query) for name, leaf in leaves.items()}
        check(statement.outer, statement_types(self.catalog, queries, public))
        if statement.explain:
            return AnsweredQueries(statement, plans, {}, {})
        if budget is not None:
            budget.void(budget.reserve(sum((plan.worst_cost for plan in plans.values()), Cost())))
        releases: dict[str, Release] = {}
        for leaf in leaves.values():
            if leaf.sql not in releases:  # two queries may have become equal without their k
                releases[leaf.sql] = self.query(leaf.select, key=key, budget=budget, **priced)  # type: ignore[arg-type]
        answers = {name: answer_table(releases[leaf.sql]) for name, leaf in leaves.items()}
        return AnsweredQueries(statement, plans, public | answers, releases)

    def sample(self, dataset: str, rows: int = 100) -> pa.Table:
        """Return made-up rows of a dataset, from the catalog alone: no data is read.

        Args:
            rows: from 1 to 10,000.

        Raises:
            InputError: there is no such dataset, or *rows* is out of range.
        """
        if not 1 <= rows <= MAX_SAMPLE_ROWS:
            raise InputError(f"a sample has from 1 to {MAX_SAMPLE_ROWS:,} rows, not {rows:,}")
        return sample(self.catalog.datasets[self.catalog.find(dataset)], rows)

    def rehearsal(self) -> Warehouse:
        """Return the same datasets with 10,000 made-up rows each instead of their data, which is not read.

        Statements are answered with noise, as they are on real data, so that they can be tried before any budget is
        spent. The numbers mean nothing.
        """
        return Warehouse(made_up_catalog(self.catalog), open_=open_made_up)

    def today(self) -> str:
        """Return the date in UTC, which current_date is in filters, as YYYY-MM-DD."""
        return self._clock().astimezone(datetime.UTC).date().isoformat()

    def limit(self, statement: Statement, max_k: int | None = None) -> Statement:
        """Return a statement whose queries have no k where the LIMIT is better applied to their answers.

        That is where a LIMIT is above the largest k, or covers a known domain.

        Args:
            statement: of `discreet.query.statement.split_statement`.
            max_k: the largest k of a query, beside that of its dataset.

        Raises:
            SQLError: the order of a sum's items is not by their users.
            InputError: there is no such dataset, or the labels that a quantile needs are not listed.
            EngineError: the engine failed to return the items of a listed domain.
        """
        leaves = []
        for leaf in statement.leaves:
            name = self.catalog.find(leaf.dataset)
            about = self.catalog.datasets[name]
            select = leaf.select
            size = math.inf
            if leaf.ranked_by is not None and leaf.ranked_by.casefold() != about.user.casefold():
                by = f"ORDER BY COUNT(DISTINCT {about.user})"
                raise SQLError(f"the items of a sum are those with the most users: {by}")
            if leaf.complete:
                with naming_query(leaf, statement):
                    self._labels(leaf, "quantiles are computed from all of them")
            limited = leaf.limit_k(max_k).limit_k(about.max_k)
            if select is not None and limited.select is not None and limited.select.k is not None:
                with contextlib.suppress(InputError):  # planning raises it again, with the query
                    labels = self._open.domain(name, columns_named(select.items, about))
                    size = math.inf if labels is None else len(labels)
            leaves.append(limited.limit_k(size - 1))
        return replace(statement, leaves=tuple(leaves))

    def public_tables(self, statement: Statement) -> dict[str, pa.Table]:
        """Return the tables of a statement that are free: labels of known domains, and information_schema.

        Raises:
            UnknownColumn: there is no such column.
            InputError: the catalog does not list the labels of a column.
            EngineError: the engine failed to return the items of a listed domain.
        """
        tables = {name: schema_table(name, self.catalog) for name in statement.schemas}
        for leaf in statement.leaves:
            if leaf.select is None:
                with naming_query(leaf, statement):
                    user = self.catalog.datasets[self.catalog.find(leaf.dataset)].user
                    hint = f"select an aggregate beside it, such as COUNT(DISTINCT {user})"
                    tables[leaf.name] = self._labels(leaf, hint)
        return tables

    def _labels(self, leaf: Leaf, hint: str) -> pa.Table:
        name = self.catalog.find(leaf.dataset)
        dataset = self.catalog.datasets[name]
        items = columns_named(leaf.items, dataset)
        labels = self._open.domain(name, items)
        if labels is None:
            unknown = next((item for item in items if dataset.columns[item].domain is None), items[0])
            raise InputError(f"the labels of column {unknown!r} are not listed in the catalog; {hint}")
        return labels

    def key_context(self, dataset: str) -> tuple[str | None, str]:
        """Return the inputs of keys: the current version of a dataset's data (None if unknown), and its table's name.

        The name changes with the SQL of a view, but not with the engine or the location of the table.

        Raises:
            InputError: there is no such dataset.
            EngineError: the engine failed, or the owner's statement does not return a version.
        """
        name = self.catalog.find(dataset)
        view = self.catalog.datasets[name].view
        return self._open.version(name), name if view is None else f"{name}\n{view}"

    def versioned_reader(self, dataset: str, version: str | None) -> Reader:
        """Return a reader of a dataset that refuses its result if the data no longer has *version*.

        Its errors name the dataset, and neither files nor hosts.

        Args:
            dataset: its name; may differ in case.
            version: the version from `key_context`, or None if the data may change during the query.

        Raises:
            InputError: there is no such dataset.
            EngineError: the engine cannot be reached, or the table does not fit the catalog.
        """
        return self._open.reader(self.catalog.find(dataset), version)

    def queue(self, dataset: str) -> RequestQueue:
        """Return the request queue of a dataset's engine.

        Raises:
            InputError: there is no such dataset.
        """
        return self._open.queue(self.catalog.find(dataset))

    def engine(self, dataset: str) -> Engine:
        """Return the engine of a dataset; raises the errors of `versioned_reader`."""
        return self._open.engine(self.catalog.find(dataset))

    def refresh(self) -> None:
        """Open and check every dataset that is new, whose source has changed, or that failed.

        Afterwards, queries open nothing themselves: a dataset that failed is unavailable until the next call.
        """
        self._open.refresh()

    def unavailable(self) -> Mapping[str, str]:
        """Return the datasets that are unavailable since the last `refresh`, each with the reason, for the owner."""
        return self._open.unavailable()

    def close(self) -> None:
        """Close all connections."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Answers:
    """The result of a statement, and the releases that it was computed from.

    Args:
        table: the rows, an Arrow table.
        releases: the releases, by the SQL of their query.
        no_interval: the columns of noisy numbers without the ends of their 95 % interval among the columns.
    """

    table: pa.Table
    releases: Mapping[str, Release]
    no_interval: tuple[str, ...] = ()

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas frame. Needs pandas."""
        require("pandas", "to_pandas()")
        return self.table.to_pandas()


@dataclass(frozen=True, slots=True)
class AnsweredQueries:
    """A statement whose queries are answered.

    Args:
        plans: the plans of its queries, by `Leaf.name`.
        tables: the tables of its outer statement, by their name in the schema `answers`; empty for EXPLAIN.
        releases: the releases, by the SQL of their query; empty for EXPLAIN.
    """

    statement: Statement
    plans: Mapping[str, Plan]
    tables: Mapping[str, pa.Table]
    releases: Mapping[str, Release]


def statement_types(
    catalog: Catalog, queries: Mapping[str, tuple[str, Query]], public: Mapping[str, pa.Table]
) -> dict[str, dict[str, str]]:
    """Return the SQL types of the columns of all tables of a statement, by table and column; needs no answers.

    Args:
        catalog: the datasets that may be queried.
        queries: the dataset and the planned query of each answer, by `Leaf.name`.
        public: tables of `Warehouse.public_tables`.
    """
    types = {name: answer_types(query, catalog.datasets[dataset]) for name, (dataset, query) in queries.items()}
    return types | {name: arrow_types(table) for name, table in public.items()}


def check_complete(leaf: Leaf, plan: Plan) -> None:
    """Raise unless *plan* releases all labels, if quantiles are computed from the answer.

    Raises:
        InputError: the query names another mechanism, which omits labels with small counts.
    """
    if leaf.complete and not isinstance(plan.mechanism, KnownLaplace):
        raise InputError("quantiles need the counts of all labels: leave the mechanism out, or choose laplace")


@contextlib.contextmanager
def naming_query(leaf: Leaf, statement: Statement) -> Iterator[None]:
    """Add the SQL of a query to the messages of its errors, if its statement has several queries."""
    try:
        yield
    except DiscreetError as error:
        if len(statement.leaves) > 1 and isinstance(error, InputError):
            error.args = (f"{error}; in: {leaf.sql}",)
        raise


class _View(Warehouse):
    """A view of some datasets of another `Warehouse`, which owns and closes the engines."""

    def __init__(self, catalog: Catalog, opened: EnginePool, clock: Callable[[], datetime.datetime]) -> None:
        self.catalog = catalog
        self._clock = clock
        self._open = opened

    def close(self) -> None:
        """Do nothing: another `Warehouse` owns the engines."""


def _read(query: str | Mapping[str, Any] | Select, today: Callable[[], str]) -> Select:
    match query:
        case str():
            return parse_select(query, today())
        case Select():
            return query
        case dict():
            return from_dict(query)
    raise InputError("a query is a SELECT as text, its JSON form as a dictionary, or a discreet.Select")
