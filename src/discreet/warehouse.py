"""Query the datasets of a catalog in SQL, JSON or Python."""

from __future__ import annotations

import datetime
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Self, Unpack

import pyarrow as pa

from discreet.budget import Budget
from discreet.catalog.domains import filtered_domain
from discreet.catalog.engine_pool import EnginePool, open_dataset
from discreet.catalog.loader import load_catalog
from discreet.catalog.model import Catalog
from discreet.catalog.sample import MAX_SAMPLE_ROWS, made_up_catalog, open_made_up, sample
from discreet.engines.base import Engine, Reader, RequestQueue
from discreet.errors import InputError, NotFound
from discreet.head_request import Kind, Predicate
from discreet.noise import Bits, SystemBits
from discreet.query.canonical import canonical, listed_values, possible_labels
from discreet.query.planning import (
    Plan,
    PlannedQuery,
    columns_named,
    is_listed_by_filter,
    make_plan,
    resolve,
    unclipped,
    with_fine_times,
)
from discreet.query.predicates import bind_where
from discreet.query.pricing import PerUnit
from discreet.query.query import DatasetQuery, Options, QueryOptions, Select
from discreet.query.saved import read_change
from discreet.query.statement import Leaf, Statement, split_statement, without_comments
from discreet.release import NoiseKey, Release, answer, statement
from discreet.release.answer import default_delta
from discreet.release.postprocess import ComputedRows, check_outer, compute_outer
from discreet.values import Cost

if TYPE_CHECKING:
    from discreet.release.running import RunningCounter, RunningStream


def connect(catalog: str | Path | Catalog) -> Warehouse:
    """Return the datasets of a catalog, ready to be queried.

    Args:
        catalog: a TOML file (docs/catalog.md), or a `Catalog`. Engines are connected to at their first use;
            a source that changes later is refused until `Warehouse.refresh`.

    Raises:
        InputError: the catalog is invalid; all mistakes are listed.
    """
    source: object = catalog
    if not isinstance(source, str | PurePath | Catalog):
        raise InputError("a catalog is the path of a TOML file, or what discreet.catalog.loader.load_catalog returns")
    return Warehouse(source if isinstance(source, Catalog) else load_catalog(Path(source)))


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
        question = self.question(query)
        plan = self.plan(question, per=per, budget=budget, force=force, **options)
        for note in plan.notes:
            warnings.warn(note, stacklevel=2)
        release = self._answer(plan, question, budget, key, progress)
        return release.timed(time.perf_counter() - start)

    def _answer(
        self,
        plan: Plan,
        question: DatasetQuery,
        budget: Budget | None,
        key: bytes | None,
        progress: Callable[[float], None] | None = None,
    ) -> Release:
        """Answer a plan with noise from *key* and the version of the data, or from the system without a key."""
        version: str | None = None
        bits: Bits = SystemBits()
        if key is not None:
            version, table = self.key_context(question)
            if version is None:
                named = question.select.dataset
                raise InputError(f"a key needs a data version, and the catalog gives {named!r} none")
            bits = NoiseKey(key, version).bits(plan, table)
        engine = self.versioned_reader(question, version)
        queue = self.queue(question)
        keyed = key is not None
        release: Release = answer(plan, engine, budget, bits, queue=queue, computational=keyed, progress=progress)
        return release

    def plan(
        self,
        query: str | Mapping[str, Any] | Select | DatasetQuery,
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
        question = self.question(query)
        select = question.select
        name = question.name
        dataset = question.dataset
        if not isinstance(per, PerUnit | None):
            raise InputError("a price per unit is a discreet.query.pricing.PerUnit")
        parts = columns_named(select.each, dataset)
        items = columns_named(select.items, dataset)
        scales: dict[str, int] = {}  # decimal places: decimals are added up in units of the last one
        if select.measure.kind in {"sum", "average"}:
            column = (select.measure.column or "").casefold()
            scales = {
                summed: self._open.scale(name, summed)
                for summed in dataset.summable
                if summed.casefold() == column and dataset.columns[summed].kind is Kind.DECIMAL
            }
        priced = QueryOptions.of(options, delta=default_delta(budget, options), per=per)
        resolved = resolve(
            select,
            dataset,
            priced,
            scales=scales,
            domain=self.labels(question, (*parts, *items), select.where if is_listed_by_filter(priced) else None),
            segments=self._open.domain(name, parts),
        )
        has_pairs = self._open.has_pairs(name)
        planned = make_plan(resolved, has_pairs=has_pairs, shared_budget=shared or budget is not None, force=force)
        # A label of a time to the second is rarely frequent: for each such column, what to group by in its place.
        days = {
            column: dataset.period(column, "day") or "its days"
            for column, uses in dataset.columns.items()
            if uses.kind is Kind.TIMESTAMP and uses.each is None
        }
        return with_fine_times(planned, days)

    def running(self, name: str, key: bytes | None = None) -> RunningStream:
        """Return a stream of running counts that the catalog declares (docs/running-counts.md).

        Args:
            name: its name in `[datasets.DATASET.running.NAME]`.
            key: 32 random bytes or more, the same for the whole stream; None to show what was answered.

        Raises:
            InputError: there is no such stream, it does not fit its table, or a service refreshes it.
            EngineError: the engine cannot be reached.
        """
        from discreet.release.running import RunningStream

        counter = self.running_counter(name, key)
        answers = self.catalog.streams[name][1].answers
        if answers is None:
            raise InputError(f"a service refreshes the stream {name!r} and keeps its answers, so it has no file")
        return RunningStream(**vars(counter), answers=Path(answers))

    def running_counter(self, name: str, key: bytes | None = None) -> RunningCounter:
        """Return what computes the answers of a stream that the catalog declares, for a service that keeps them.

        Args and errors are those of `running`.
        """
        from discreet.release.declaration import declare_in
        from discreet.release.running import RunningCounter

        streams = self.catalog.streams
        if name not in streams:
            names = ", ".join(sorted(streams)) or "none"
            raise InputError(f"there is no stream {name!r}; the catalog declares {names}")
        dataset = streams[name][0]
        engine = self._open.engine(dataset)
        declaration = declare_in(self.catalog, name, engine.columns())
        return RunningCounter(declaration, engine, self._open.queue(dataset), key, self._clock)

    def sql(
        self,
        text: str,
        *,
        per: PerUnit | None = None,
        budget: Budget | None = None,
        key: bytes | None = None,
        force: bool = False,
        intervals: bool = False,
        **options: Unpack[Options],
    ) -> Answers:
        """Answer a whole statement: each SELECT directly over a dataset is a query; the rest is computed for free.

        Args:
            text: a SELECT, or EXPLAIN and a SELECT; see docs/sql.md. Other arguments are those of `query`, for each
                query of the statement.
            intervals: True to add columns NAME_low and NAME_high, the ends of 95 % intervals, where there are any.

        Raises:
            InputError: something in the statement is not allowed, or it cannot be computed from its answers.
            BudgetExceeded: the budget cannot cover the worst cases together; nothing was read.
            EngineError: as in `query`.
        """
        if read_change(without_comments(text)) is not None:
            raise InputError(
                "tables are saved by a service, which keeps answers: send the statement with discreet.Client or "
                "discreet query; here, the rows of a SELECT are yours to keep"
            )
        if not options.get("counts", True):
            raise InputError("statements compute with counts; leave counts out")
        port = _InThisProcess(self.today(), intervals=intervals)
        queries = WarehouseQueries(self, budget=budget, key=key, per=per, force=force, **options)
        draft = statement.split(text, self.catalog, self.labels, queries, port)
        planned = statement.plan(draft, self.catalog, queries, port)
        rows = statement.compute(planned, statement.answer(planned, queries), port)
        return Answers(rows.table, rows.types, rows.intervals, queries.releases)

    def sample(self, dataset: str, rows: int = 100) -> pa.Table:
        """Return made-up rows of a dataset, from the catalog alone: no data is read.

        Args:
            rows: from 1 to 10,000.

        Raises:
            NotFound: there is no such dataset.
            InputError: *rows* is out of range.
        """
        if not 1 <= rows <= MAX_SAMPLE_ROWS:
            raise InputError(f"a sample has from 1 to {MAX_SAMPLE_ROWS:,} rows, not {rows:,}")
        return sample(self.catalog.datasets[self._name(dataset)], rows)

    def rehearsal(self) -> Warehouse:
        """Return the same datasets with 10,000 made-up rows each instead of their data, which is not read.

        Statements are answered with noise, as they are on real data, so that they can be tried before any budget is
        spent. The numbers mean nothing.
        """
        return Warehouse(made_up_catalog(self.catalog), open_=open_made_up)

    def today(self) -> str:
        """Return the date in UTC, which current_date is in filters, as YYYY-MM-DD."""
        return self._clock().astimezone(datetime.UTC).date().isoformat()

    def question(self, query: str | Mapping[str, Any] | Select | DatasetQuery) -> DatasetQuery:
        """Read a query in any of its forms, and find its dataset.

        Raises:
            NotFound: there is no such dataset.
            InputError: the query is not allowed.
        """
        from discreet.query.json import read_query

        if isinstance(query, DatasetQuery):
            return query
        return DatasetQuery.of(read_query(query, self.today()), self.catalog)

    def labels(
        self, dataset: str | DatasetQuery, items: tuple[str, ...], where: Predicate | None = None
    ) -> pa.Table | None:
        """Return all possible items if the catalog or a filter lists the labels of all columns *items* of a dataset.

        Args:
            where: the filter of a query; it makes no difference if the catalog lists all the labels.

        Raises:
            UnknownColumn, WhereError: the filter does not fit the columns, or takes too many conditions.
            InputError: the filter excludes all labels that the catalog lists.
            EngineError: the engine failed to return the items of a listed domain.
        """
        name = self._name(dataset)
        listed = self._open.domain(name, items)
        if listed is not None or where is None or not items:
            return listed
        # That of a query has the granted columns only, so that a refused filter reveals no others.
        declared = dataset.dataset if isinstance(dataset, DatasetQuery) else self.catalog.datasets[name]
        kinds = {name: declared.columns[name].kind for name in declared.filterable}
        form = canonical(bind_where(where, kinds), kinds)
        columns = {item: self._open.domain(name, (item,)) for item in items}
        labels_of = {
            item: possible_labels(form, kinds, column).column(0)
            for item, column in columns.items()
            if column is not None
        }
        return filtered_domain(items, listed_values(form, kinds), kinds, labels_of)

    def _name(self, dataset: str | DatasetQuery) -> str:
        return dataset.name if isinstance(dataset, DatasetQuery) else self.catalog.find(dataset)[0]

    def key_context(self, dataset: str | DatasetQuery) -> tuple[str | None, str]:
        """Return the inputs of keys: the current version of a dataset's data (None if unknown), and its table's name.

        The name changes with the SQL of a view, but not with the engine or the location of the table.

        Args:
            dataset: its name, which may differ in case, or a query of it; the same in all methods.

        Raises:
            NotFound: there is no such dataset.
            EngineError: the engine failed, or the owner's statement does not return a version.
        """
        name = self._name(dataset)
        view = self.catalog.datasets[name].view
        return self._open.version(name), name if view is None else f"{name}\n{view}"

    def versioned_reader(self, dataset: str | DatasetQuery, version: str | None) -> Reader:
        """Return a reader of a dataset that refuses its result if the data no longer has *version*.

        Its errors name the dataset, and neither files nor hosts.

        Args:
            version: the version from `key_context`, or None if the data may change during the query.

        Raises:
            NotFound: there is no such dataset.
            EngineError: the engine cannot be reached, or the table does not fit the catalog.
        """
        return self._open.reader(self._name(dataset), version)

    def queue(self, dataset: str | DatasetQuery) -> RequestQueue:
        """Return the request queue of a dataset's engine.

        Raises:
            NotFound: there is no such dataset.
        """
        return self._open.queue(self._name(dataset))

    def engine(self, dataset: str) -> Engine:
        """Return the engine of a dataset; raises the errors of `versioned_reader`."""
        return self._open.engine(self._name(dataset))

    def refresh(self) -> None:
        """Open and check every dataset that is new, whose source has changed, or that failed.

        Afterwards, queries open nothing themselves: a dataset that failed is unavailable until the next call.
        """
        self._open.refresh()

    def replace_catalog(self, catalog: Catalog) -> None:
        """Use another catalog from now on; call `refresh` next, which opens its new and changed datasets."""
        self._open.replace_catalog(catalog)
        self.catalog = catalog

    def replaced(self) -> frozenset[str]:
        """Return the datasets whose source was replaced although the catalog still states the same version of it."""
        return self._open.replaced()

    def unavailable(self) -> Mapping[str, str]:
        """Return the datasets that are unavailable since the last `refresh`, each with the reason, for the owner."""
        return self._open.unavailable()

    def close(self) -> None:
        """Close all connections."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Answers(ComputedRows):
    """The rows of a statement, and the releases that they were computed from.

    Args:
        releases: the releases, by the SQL of their query.
    """

    releases: Mapping[str, Release] = field(default_factory=dict)


class WarehouseQueries:
    """The queries of one statement, answered by a warehouse: a `QueryPort`.

    Args:
        priced: options of `Warehouse.plan`.

    Attributes:
        releases: the answers, by the SQL of their query.
    """

    def __init__(self, warehouse: Warehouse, *, budget: Budget | None, key: bytes | None, **priced: Any) -> None:
        self._warehouse = warehouse
        self._budget = budget
        self._key = key
        self._priced = priced
        self.releases: dict[str, Release] = {}

    def plan(self, question: DatasetQuery, *, counts: bool, complete: bool) -> PlannedQuery:
        """Plan a query; as `Warehouse.plan`."""
        priced = self._priced | {"counts": counts}
        if complete:
            priced["mechanism"] = unclipped(priced.get("mechanism"))
        return PlannedQuery(self._warehouse.plan(question, budget=self._budget, **priced), question)

    def check_budget(self, queries: Mapping[str, PlannedQuery], prices: Mapping[str, Cost]) -> None:  # noqa: ARG002
        """Raise `BudgetExceeded` unless the budget can pay all queries together."""
        if self._budget is not None:
            total = sum((query.plan.worst_cost for query in queries.values()), Cost())
            self._budget.void(self._budget.reserve(total))

    def saved(self, leaf: Leaf) -> tuple[Release, Cost | None, str | None]:  # noqa: ARG002
        """Raise `NotFound`: a warehouse saves no tables."""
        raise NotFound

    def pay(self, release: str, price: Cost) -> None:
        """Do nothing: all releases of a warehouse are paid for."""

    def answer(self, leaf: Leaf, query: PlannedQuery) -> Release:
        """Answer a query; the second time, return its answer. As `Warehouse.query`."""
        if leaf.sql not in self.releases:  # two queries may have become equal without their k
            start = time.perf_counter()
            for note in query.plan.notes:
                warnings.warn(note, stacklevel=2)
            release = self._warehouse._answer(query.plan, query.question, self._budget, self._key)
            self.releases[leaf.sql] = release.timed(time.perf_counter() - start)
        return self.releases[leaf.sql]


class _InThisProcess:
    """Reads and computes the statements of callers who may run any code here: a `RowsPort`."""

    def __init__(self, today: str, *, intervals: bool) -> None:
        self._today = today
        self._intervals = intervals

    def split(self, text: str, catalog: Catalog) -> Statement:
        return split_statement(text, catalog, intervals=self._intervals, today=self._today)

    def check(self, outer: str, types: Mapping[str, Mapping[str, str]]) -> Sequence[tuple[str, str]]:
        return check_outer(outer, types)

    def compute(self, statement: Statement, tables: Mapping[str, pa.Table]) -> ComputedRows:
        return compute_outer(statement.outer, tables, statement.marks)

    def texts(self, statement: Statement, tables: Mapping[str, pa.Table]) -> list[str | None]:
        texts: list[str | None] = self.compute(statement, tables).table.column(0).to_pylist()
        return texts

    def show(self, statement: Statement, rows: ComputedRows) -> ComputedRows:  # noqa: ARG002
        return rows


class _View(Warehouse):
    """A view of some datasets of another `Warehouse`, which owns and closes the engines."""

    def __init__(self, catalog: Catalog, opened: EnginePool, clock: Callable[[], datetime.datetime]) -> None:
        self.catalog = catalog
        self._clock = clock
        self._open = opened

    def close(self) -> None:
        """Do nothing: another `Warehouse` owns the engines."""
