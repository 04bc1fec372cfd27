"""Plan, answer and estimate whole SQL statements of an account, by the steps of `discreet.release.statement`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Literal

import pyarrow as pa

from discreet.budget import Budget
from discreet.budget.manager import BudgetManager
from discreet.budget.model import Refusal, Replay, Settled, StoredRelease
from discreet.budget.stores.store import BudgetStore
from discreet.catalog.model import Catalog
from discreet.errors import InputError, NotFound, SQLError
from discreet.mechanisms import KnownLaplace
from discreet.mechanisms.running import RunningCounts
from discreet.query.planning import PlannedQuery, unclipped
from discreet.query.query import ROWS_NOTE, DatasetQuery, Options
from discreet.query.saved import SavedPart, SavedTable, TableChange, changed, names_in, unanswered
from discreet.query.statement import Leaf, Statement
from discreet.release import Release
from discreet.release import statement as pipeline
from discreet.release.postprocess import MAX_ROWS, ComputedRows, arrow_types, schema_table
from discreet.release.statement import PlannedStatement
from discreet.service.answering.accounts import budget_report
from discreet.service.answering.pool import StatementPool, WrittenRows
from discreet.service.answering.queries import Queries, Run, planning_options
from discreet.service.answering.saved_tables import SavedTables
from discreet.service.answering.worker import RowsForm, encode_result, with_made_up
from discreet.service.problems import StatementFailed, StatementsUnavailable, UnaffordableQuery
from discreet.service.settings import Settings
from discreet.values import Cost
from discreet.warehouse import Warehouse, WarehouseQueries
from discreet.wire import document
from discreet.wire.document import decode, question_of
from discreet.wire.queries import (
    BudgetReport,
    QueryEstimate,
    StatementEstimate,
    StatementQuery,
    StatementRequest,
    spend_above,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The form in which a result is returned.

    Args:
        max_rows: the largest number of its rows; None for all.
        page_rows: the rows of a page, for the form of Trino's protocol.
    """

    form: RowsForm
    max_rows: int | None = None
    page_rows: int | None = None


class ShareExceeded(Exception):
    """A statement could take more of a budget than its run allows, or than is left; nothing was charged."""

    def __init__(self, estimate: StatementEstimate, budget: BudgetReport) -> None:
        self.estimate = estimate
        self.budget = budget
        super().__init__()


_AMPLE = Cost(Fraction(10**9), Fraction(1))
"""A budget that no rehearsal can exhaust; queries are planned for a shared budget, as in a real run."""


class Statements:
    """Plans and answers statements. Usable from several threads.

    Args:
        tables: those that statements may name.
        pool: reads statements and computes their rows in other processes: they are written by analysts.
    """

    def __init__(
        self,
        queries: Queries,
        manager: BudgetManager,
        warehouse: Warehouse,
        settings: Settings,
        pool: StatementPool,
        tables: SavedTables,
    ) -> None:
        self._queries = queries
        self._manager = manager
        self._warehouse = warehouse
        self._pool = pool
        self._tables = tables
        self._limits = settings.limits
        self._defaults = settings.defaults

    def plan(self, request: StatementRequest, catalog: Catalog, run: Run) -> PlannedStatement:
        """Plan all queries of a statement; other errors as in `Queries.plan` and `StatementPool.check`.

        Args:
            catalog: the datasets and columns granted to the account of *run*; errors name only these.

        Raises:
            SQLError, WhereError: the statement is not supported, or does not fit the columns of its answers.
            NotFound: there is no such dataset.
            InputError: labels that it needs are not listed, or reading it takes too much time or memory.
        """
        return self._plan(request, catalog, run, *self._tables.used_by(run.account, request.sql))

    def _plan(
        self,
        request: StatementRequest,
        catalog: Catalog,
        run: Run,
        saved: Mapping[str, SavedTable],
        free: Mapping[str, str],
    ) -> PlannedStatement:
        worker = self._worker(run, Shape("json"), saved, intervals=request.intervals)
        port = self._asked(request.options, run, {}, free)
        draft = self._split(request.sql, run, self._warehouse.restricted_to(catalog), port, worker)
        return pipeline.plan(draft, catalog, port, worker)

    def answer(
        self, planned: PlannedStatement, run: Run, shape: Shape, answers: dict[str, Settled | Replay]
    ) -> WrittenRows:
        """Answer all queries of a statement, in their order, and compute its rows; see `Queries.answer`.

        Args:
            answers: answers of earlier attempts, by SQL; new answers are added, so that retries do not pay again.

        Raises:
            UnaffordableQuery: the account or one of its parents cannot pay the sum of the worst cases; nothing
                was charged. If the budget was spent meanwhile, earlier queries were charged, and are free when
                sent again.
            InputError: the rows cannot be computed; the answers are charged.
            ShareExceeded: as its name; the run has a share.
            StatementsUnavailable: no process can be started to compute the rows; the answers are charged.
            StatementFailed: computing them met a bug; the answers are charged.
        """
        run = _keyed(run, planned)
        port = self._asked({}, run, answers)
        if run.max_share is not None and not answers:
            total = port.unpaid_total(planned.queries, planned.prices)
            budget = self.budget(run.account)
            if port.refusal(total) is not None or budget.share_of_left(spend_above(total)) > run.max_share:
                raise ShareExceeded(self.estimate(planned, run), budget)
        tables = pipeline.answer(planned, port)
        try:
            rows = pipeline.compute(planned, tables, self._worker(run, shape, listed=port.listed))
        except (InputError, StatementsUnavailable, StatementFailed) as error:
            if not planned.queries:
                raise
            raise type(error)(f"{error}; its queries were answered, so they stay charged") from error
        return replace(rows, charged=sum((answered.charged for answered in answers.values()), Cost()))

    def budget(self, account: str) -> BudgetReport:
        """Return the balance of *account*."""
        own, *parents = self._manager.path(account)
        return budget_report(own, parents, self._manager.store, self._queries.default_cost())

    def change(
        self,
        change: TableChange,
        request: StatementRequest,
        catalog: Catalog,
        run: Run,
        answers: dict[str, Settled | Replay],
    ) -> WrittenRows:
        """Make or change a saved table; return what was charged, and the number of its rows, without their content.

        Args:
            request: its options are those of the queries.
            answers: as in `answer`.

        Raises:
            InputError: the change is not allowed; nothing was charged.
            NotFound: there is no such table. Other errors as in `plan` and `answer`.
        """
        before = self._tables.before(run.account, change)
        if change.action not in {"create table", "create view", "insert"}:
            self._tables.alter(run.account, change)
            return WrittenRows(b"", 0)
        if before is not None and change.lenient:
            return WrittenRows(b"", 0)
        view = change.action == "create view"
        sql = change.sql.strip().rstrip("; \n")
        uses, free = self._tables.used_by(run.account, sql)
        alone = request.model_copy(update={"sql": sql, "intervals": False})
        if change.releases is None:
            planned = self._plan(alone, catalog, run, uses, free if view else {})
        else:
            planned, worker = self._paid(sql, catalog, change.releases, run, Shape("json"), answers, (uses, free))
            self._check_questions(planned, catalog, answers)
            columns = worker.check(planned.statement.outer, arrow_types(planned.public))
            planned = replace(planned, columns=columns)
        run = _keyed(run, planned)
        bound = {leaf.release or "" for leaf in planned.statement.leaves} & set(free)
        if not view and any(not self._manager.store.entitled(run.account, release_key_of(id_)) for id_ in bound):
            raise InputError(
                "a table is made of what its account paid for, and this reads a published one: CREATE VIEW"
            )
        if view and planned.text != sql:
            raise InputError(
                "a view has no list that is selected in a filter, because that is computed now: write its values"
            )
        names = {name.lower() for name in names_in(planned.text)}
        uses = {} if view else {name: table for name, table in uses.items() if name in names}
        key = "" if run.key is None else hashlib.sha256(run.key.encode()).hexdigest()[:32]
        part = SavedPart(planned.text, self._warehouse.today(), uses=uses, key=key)
        new = SavedTable((part,), _named_apart(planned), view)
        changed(before, change, new)  # refused before anything is charged
        answered = WrittenRows(b"", 0)
        if not view:
            answered = self.answer(planned, run, Shape("json", max_rows=0), answers)
            ids = {
                planned.written[leaf.name]: answers[leaf.sql].release.release_key.hex()
                for leaf in planned.statement.leaves
                if leaf.sql in answers
            }
            new = replace(new, parts=(replace(part, answers=ids),))
        self._tables.save(run.account, change, new)
        return answered

    def _check_questions(
        self, planned: PlannedStatement, catalog: Catalog, answers: dict[str, Settled | Replay]
    ) -> None:
        """Raise `InputError` unless *answers* are to the queries of a statement; nothing more is charged for them."""
        for leaf in planned.statement.leaves:
            if leaf.select is None or leaf.release is not None:
                continue
            question = DatasetQuery(leaf.select, leaf.dataset, catalog.datasets[leaf.dataset])
            expected = question_of(self._warehouse.plan(question, shared=True).query, leaf.dataset)
            stored = answers[leaf.sql].release
            fields = document.read(stored.result)
            if fields["question"] != expected or (leaf.complete and fields["mechanism"] != KnownLaplace.name):
                raise InputError(f"the answer {stored.release_key.hex()} is not one to: {leaf.sql}")
            answers[leaf.sql] = Replay(stored, Cost())

    def recompute(self, sql: str, catalog: Catalog, ids: Sequence[str], run: Run, shape: Shape) -> WrittenRows:
        """Compute the rows of a statement from releases that the account has paid for, with the ends of intervals.

        No data is queried.

        Args:
            ids: the ids of the releases of its queries, in their order.

        Raises:
            SQLError, WhereError: the statement is not supported.
            NotFound: a dataset or a release does not exist for the account.
            InputError: the rows cannot be computed from these releases.
        """
        used = self._tables.used_by(run.account, sql)
        planned, worker = self._paid(sql, catalog, ids, run, shape, {}, used, intervals=True)
        return worker.compute(planned.statement, planned.public)

    def _paid(
        self,
        sql: str,
        catalog: Catalog,
        ids: Sequence[str],
        run: Run,
        shape: Shape,
        answers: dict[str, Settled | Replay],
        used: tuple[Mapping[str, SavedTable], Mapping[str, str]],
        *,
        intervals: bool = False,
    ) -> tuple[PlannedStatement, _Worker]:
        """Split a statement whose queries were answered by releases, which are added to *answers*; as `recompute`."""
        saved, free = used
        port = self._asked({}, run, answers, free)
        worker = self._worker(run, shape, saved, listed=port.listed, intervals=intervals)
        draft = self._split(sql, run, self._warehouse.restricted_to(catalog), port, worker)
        leaves = [leaf for leaf in draft.statement.leaves if leaf.select is not None and leaf.release is None]
        releases = dict(zip(dict.fromkeys(leaf.sql for leaf in leaves), ids, strict=False))
        tables = dict(draft.public)
        for leaf in leaves:
            stored = paid_release(self._manager.store, run.account, releases.get(leaf.sql, ""))
            tables[leaf.name] = decode(stored.result).answer_table(ranks=not leaf.counts)
            answers[leaf.sql] = Replay(stored, stored.cost)
        for leaf in draft.statement.leaves:
            if leaf.release is not None:
                release, price, _ = port.saved(leaf)
                if price is not None:
                    raise NotFound
                tables[leaf.name] = release.answer_table(ranks=not leaf.counts)
        return replace(draft, public=tables), worker

    def rehearse(self, request: StatementRequest, catalog: Catalog, run: Run, shape: Shape) -> WrittenRows:
        """Compute a statement from made-up rows: no data is read, and nothing is charged.

        The last column of the result, `made_up`, is true in every row, so that rows cannot be mistaken for an answer.

        Raises:
            SQLError, WhereError: the statement is not supported, or does not fit the columns of its answers.
            InputError: an option is not allowed or exceeds a limit, or the statement has a column `made_up`.
        """
        options = planning_options(request.options, None, self._defaults, self._limits)
        saved, _ = self._tables.used_by(run.account, request.sql)
        saved = {name: unanswered(table) for name, table in saved.items()}
        worker = self._worker(run, shape, saved, intervals=request.intervals, made_up=True)
        with self._warehouse.restricted_to(catalog).rehearsal() as warehouse:
            queries = WarehouseQueries(warehouse, budget=Budget.of_cost(_AMPLE), key=bytes(32), **options)
            draft = self._split(request.sql, run, warehouse, queries, worker, made_up=True)
            planned = pipeline.plan(draft, warehouse.catalog, queries, worker)
            return pipeline.compute(planned, pipeline.answer(planned, queries), worker)

    def estimate(self, planned: PlannedStatement, run: Run) -> StatementEstimate:
        """Return the worst-case cost of a statement, and whether its account can pay it now; nothing is reserved.

        Args:
            run: the run of the request that would be sent.
        """
        queries = []
        for leaf in planned.statement.leaves:
            if leaf.release is not None:
                continue  # what it costs is part of the worst cost
            query = planned.queries.get(leaf.name)
            estimate = None
            if query is not None:
                estimate = self._queries.estimate(query, _run_of(run, leaf.name))
            queries.append(QueryEstimate(sql=leaf.sql, estimate=estimate))
        port = self._asked({}, run, {})
        total = port.unpaid_total(planned.queries, planned.prices)
        fits = port.refusal(total) is None
        return StatementEstimate(queries=queries, worst_cost=spend_above(total), fits=fits)

    def _asked(
        self,
        options: Options,
        run: Run,
        answers: dict[str, Settled | Replay],
        free: Mapping[str, str] = MappingProxyType({}),
    ) -> _AccountQueries:
        return _AccountQueries(self._queries, self._manager, options, run, answers, free)

    def _worker(
        self,
        run: Run,
        shape: Shape,
        saved: Mapping[str, SavedTable] | None = None,
        *,
        listed: Callable[[Statement], list[StatementQuery]] | None = None,
        intervals: bool = False,
        made_up: bool = False,
    ) -> _Worker:
        today = self._warehouse.today()
        return _Worker(self._pool, run, shape, today, saved or {}, listed, intervals=intervals, made_up=made_up)

    def _split(
        self,
        sql: str,
        run: Run,
        viewed: Warehouse,
        queries: pipeline.QueryPort,
        worker: _Worker,
        *,
        made_up: bool = False,
    ) -> PlannedStatement:
        """Split a statement into its queries, as `discreet.release.statement.split`, and list saved tables too."""
        catalog = viewed.catalog
        draft = pipeline.split(sql, catalog, viewed.labels, queries, worker, self._limits.max_k, made_up=made_up)
        if not draft.statement.schemas:
            return draft
        saved = {owned.name: owned.table for owned in self._tables.listed(run.account)}
        schemas = {name: schema_table(name, catalog, saved) for name in draft.statement.schemas}
        return replace(draft, public={**draft.public, **schemas})


class _AccountQueries:
    """The queries of one statement, answered for an account: a `QueryPort`.

    Args:
        options: the privacy parameters and options of the request.
        answers: answers of earlier attempts, by SQL, or by id for a saved table; new ones are added.
        free: the ids of releases that are published to the account; of running counts, with who paid them until when.
    """

    def __init__(
        self,
        queries: Queries,
        manager: BudgetManager,
        options: Options,
        run: Run,
        answers: dict[str, Settled | Replay],
        free: Mapping[str, str],
    ) -> None:
        self._queries = queries
        self._manager = manager
        self._options = options
        self._run = run
        self._answers = answers
        self._free = free

    def plan(self, question: DatasetQuery, *, counts: bool, complete: bool) -> PlannedQuery:
        options: Options = self._options if counts else {**self._options, "counts": False}
        if complete:
            options = {**options, "mechanism": unclipped(options.get("mechanism"))}
        return self._queries.plan(question, options, self._run)

    def check_budget(self, queries: Mapping[str, PlannedQuery], prices: Mapping[str, Cost]) -> None:
        unpaid = [] if self._answers else self.unpaid(queries)
        if len(unpaid) + len(prices) > 1 and not self._answers:  # that of a single one is checked when it is reserved
            refusal = self.refusal(sum(prices.values(), _total(unpaid)))
            if refusal is not None:
                raise UnaffordableQuery(refusal, None)

    def saved(self, leaf: Leaf) -> tuple[Release, Cost | None, str | None]:
        release = leaf.release or ""
        store = self._manager.store
        key = release_key_of(release)
        stored = store.release(key)
        if stored is None:
            raise NotFound
        paid = release in self._free or release in self._answers or store.entitled(self._run.account, key)
        if paid:
            return decode(stored.result), None, self._free.get(release)
        fields = document.read(stored.result)
        if fields["mechanism"] == RunningCounts.name:  # paid for with its stream: it has no price of its own
            raise InputError("running counts are not sold by the period: read the table of the stream, or CREATE VIEW")
        # The guarantee is at least the worst case, and does not depend on the answer, as its cost does.
        privacy = fields["privacy"]
        return decode(stored.result), Cost(Fraction(privacy["rho"]), Fraction(privacy["delta"])), None

    def pay(self, release: str, price: Cost) -> None:
        stored = self._manager.store.release(release_key_of(release))
        if stored is None:
            raise NotFound
        self._answers[release] = self._queries.pay(stored, price, self._run)

    def answer(self, leaf: Leaf, query: PlannedQuery) -> Release:
        if leaf.sql not in self._answers:  # without their k, two leaves can be the same query
            self._answers[leaf.sql] = self._queries.answer(query, _run_of(self._run, leaf.name))
        return decode(self._answers[leaf.sql].release.result)

    def listed(self, statement: Statement) -> list[StatementQuery]:
        """Return the queries of an answered statement, with the charge of each."""
        queries = {}
        for leaf in statement.leaves:
            answered = self._answers.get(leaf.release or leaf.sql)
            if answered is not None:
                queries[leaf.sql] = StatementQuery(
                    sql=leaf.sql,
                    dataset=leaf.dataset,
                    status="replayed" if isinstance(answered, Replay) else "released",
                    charged=spend_above(answered.charged),
                    id=answered.release.release_key.hex(),
                    note=_note_of(leaf),
                )
        return _listed(statement, queries)

    def unpaid_total(self, queries: Mapping[str, PlannedQuery], prices: Mapping[str, Cost]) -> Cost:
        """Return the sum of the worst cases of all that the account has not paid for."""
        return sum(prices.values(), _total(self.unpaid(queries)))

    def unpaid(self, queries: Mapping[str, PlannedQuery]) -> list[PlannedQuery]:
        """Return the distinct queries that the account has not paid for."""
        distinct = {query.release_key or name: (name, query) for name, query in queries.items()}
        return [
            query for name, query in distinct.values() if not self._queries.has_paid(query, _run_of(self._run, name))
        ]

    def refusal(self, total: Cost) -> Refusal | None:
        """Return the refusal by the account or parent that cannot pay *total* now, or None if all can."""
        for balance in (report.balance for report in self._manager.path(self._run.account)):
            if not balance.admits(total):
                return Refusal(balance.account.id, total, balance.remaining, balance.resets_at_us)
        return None


class _Worker:
    """Reads one statement and computes its rows in worker processes: a `RowsPort`.

    Args:
        today: the date that current_date is.
        saved: the saved tables that the statement may name.
        listed: returns the queries of the statement, which are part of the answer; None for those of a rehearsal.
        intervals: True to add the ends of intervals.
        made_up: True to mark every row as made up.
    """

    def __init__(
        self,
        pool: StatementPool,
        run: Run,
        shape: Shape,
        today: str,
        saved: Mapping[str, SavedTable],
        listed: Callable[[Statement], list[StatementQuery]] | None,
        *,
        intervals: bool,
        made_up: bool,
    ) -> None:
        self._pool = pool
        self._run = run
        self._shape = shape
        self._today = today
        self._saved = saved
        self._listed = listed
        self._intervals = intervals
        self._made_up = made_up

    def split(self, text: str, catalog: Catalog) -> Statement:
        return self._pool.split(
            self._run.account,
            text,
            catalog,
            intervals=self._intervals,
            today=self._today,
            saved=self._saved,
            disconnected=self._run.disconnected,
        )

    def check(self, outer: str, types: Mapping[str, Mapping[str, str]]) -> Sequence[tuple[str, str]]:
        return self._pool.check(self._run.account, outer, types, self._run.disconnected)

    def compute(self, statement: Statement, tables: Mapping[str, pa.Table]) -> WrittenRows:
        queries = self._queries_of(statement)
        rows = self._pool.compute(
            self._run.account,
            statement.outer,
            tables,
            form=self._shape.form,
            queries=_written(queries),
            max_rows=self._shape.max_rows,
            page_rows=self._shape.page_rows,
            made_up=self._made_up,
            marks=statement.marks,
            disconnected=self._run.disconnected,
        )
        return replace(rows, queries=tuple(queries))

    def texts(self, statement: Statement, tables: Mapping[str, pa.Table]) -> list[str | None]:
        run = self._run
        rows = self._pool.compute(
            run.account, statement.outer, tables, form="json", queries="[]", disconnected=run.disconnected
        )
        return [text for (text,) in json.loads(rows.content)["rows"]]

    def show(self, statement: Statement, rows: ComputedRows) -> WrittenRows:
        queries = self._queries_of(statement) if self._made_up else []
        shown = with_made_up(rows) if self._made_up else rows
        page_rows = self._shape.page_rows or MAX_ROWS
        content = encode_result(shown, self._shape.form, _written(queries), page_rows=page_rows)
        return WrittenRows(content, len(rows.table), tuple(queries))

    def _queries_of(self, statement: Statement) -> list[StatementQuery]:
        if self._listed is not None:
            return self._listed(statement)
        return [_free_query(leaf, "made up") for leaf in statement.leaves]


def _named_apart(planned: PlannedStatement) -> tuple[tuple[str, str], ...]:
    """Return the columns of a statement that is saved; raise `InputError` if two have one name."""
    if planned.statement.explain:
        raise SQLError("EXPLAIN is not saved")
    names = [name.casefold() for name, _ in planned.columns]
    if len(set(names)) < len(names):
        raise InputError("the columns of a saved table need different names: use AS")
    return tuple((name, type_) for name, type_ in planned.columns)


def release_key_of(id_: str) -> bytes:
    """Return the key of a release by its id; that of no release for a malformed id, which takes as long."""
    try:
        key = bytes.fromhex(id_)
    except ValueError:
        key = b""
    return key if len(key) == 32 and key.hex() == id_ else bytes(32)


def paid_release(store: BudgetStore, account: str, id_: str) -> StoredRelease:
    """Return the release with the id *id_*; raise `NotFound` unless *account* has paid for it."""
    key = release_key_of(id_)
    stored = store.release(key) if store.entitled(account, key) else None
    if stored is None:
        raise NotFound
    return stored


def _keyed(run: Run, planned: PlannedStatement) -> Run:
    """Return *run* without its key if that is for data without a version, and all queries are about a version."""
    versioned = all(query.data_version is not None for query in planned.queries.values())
    return replace(run, key=None) if versioned and run.max_share is not None else run


def _run_of(run: Run, name: str) -> Run:
    """Return the run of the query called *name*, whose idempotency key is derived from that of its statement."""
    return run if run.key is None else replace(run, key=hashlib.sha256(f"{run.key} {name}".encode()).hexdigest())


def _listed(statement: Statement, queries: Mapping[str, StatementQuery]) -> list[StatementQuery]:
    """Return the distinct queries of a statement: those in *queries*, by SQL, and public labels."""
    by_sql = {}
    for leaf in statement.leaves:
        if leaf.sql in queries or leaf.release is None:  # a saved table that is paid for may have hundreds
            by_sql[leaf.sql] = queries.get(leaf.sql) or _free_query(leaf, "public")
    return list(by_sql.values())


def _free_query(leaf: Leaf, status: Literal["public", "made up"]) -> StatementQuery:
    free = spend_above(Cost())
    return StatementQuery(sql=leaf.sql, dataset=leaf.dataset, status=status, charged=free, note=_note_of(leaf))


def _note_of(leaf: Leaf) -> str | None:
    rows = leaf.select is not None and leaf.select.measure.kind == "rows"
    return (
        ROWS_NOTE if rows and not leaf.complete else None
    )  # a quantile is computed from rows, but is no number of them


def _written(queries: list[StatementQuery]) -> str:
    return json.dumps([query.model_dump() for query in queries])


def _total(queries: list[PlannedQuery]) -> Cost:
    return sum((query.plan.worst_cost for query in queries), Cost())
