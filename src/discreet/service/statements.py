"""Plan, answer and estimate whole SQL statements of an account: their queries, and rows computed from answers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from discreet.budget import Budget
from discreet.budget.model import Refusal, Replay
from discreet.errors import InputError, SQLError, WhereError
from discreet.release.postprocess import answer_table, explain
from discreet.service.problems import BudgetShort, NotFound, StatementsUnavailable
from discreet.service.queries import planning_options
from discreet.service.statement_worker import encode_result, with_made_up
from discreet.values import Cost
from discreet.warehouse import check_complete, naming_query, statement_types
from discreet.wire import document
from discreet.wire.document import decode
from discreet.wire.problems import Malformed, Spend, spend_above
from discreet.wire.queries import QueryEstimate, StatementEstimate, StatementQuery

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from discreet.budget.manager import BudgetManager
    from discreet.budget.model import Settled, StoredRelease
    from discreet.budget.stores.store import BudgetStore
    from discreet.catalog.model import Catalog
    from discreet.query.statement import Leaf, Statement
    from discreet.service.api.answers import Form
    from discreet.service.queries import PlannedQuery, Queries, Run
    from discreet.service.settings import Settings
    from discreet.service.statement_pool import StatementPool
    from discreet.warehouse import Warehouse
    from discreet.wire.queries import StatementRequest


@dataclass(frozen=True, slots=True)
class PlannedStatement:
    """A statement with the plans of its queries.

    Args:
        queries: planned queries by the name of the table that holds their answer.
        public: tables that need no query because their rows are public, by name.
    """

    statement: Statement
    queries: Mapping[str, PlannedQuery]
    public: Mapping[str, pa.Table]


@dataclass(frozen=True, slots=True)
class AnsweredStatement:
    """The answer to a statement.

    Args:
        content: its rows and its queries, in the form that was requested.
        rows: the number of rows, with those that were left out.
        charged: the total charge of its queries.
    """

    content: bytes
    rows: int
    charged: Cost


@dataclass(frozen=True, slots=True)
class Shape:
    """The form in which a result is returned, and the largest number of its rows; None for all."""

    form: Form
    max_rows: int | None = None


_AMPLE = Cost(Fraction(10**9), Fraction(1))
"""A budget that no rehearsal can exhaust; queries are planned for a shared budget, as in a real run."""


class Statements:
    """Plans and answers statements. Usable from several threads.

    Args:
        pool: computes outer statements in other processes: they are written by analysts.
    """

    def __init__(
        self, queries: Queries, manager: BudgetManager, warehouse: Warehouse, settings: Settings, pool: StatementPool
    ) -> None:
        self._queries = queries
        self._manager = manager
        self._warehouse = warehouse
        self._pool = pool
        self._limits = settings.limits
        self._defaults = settings.defaults

    def plan(self, request: StatementRequest, catalog: Catalog, run: Run) -> PlannedStatement:
        """Plan all queries of a statement; other errors as in `Queries.plan` and `StatementPool.check`.

        Args:
            catalog: the datasets and columns granted to the account of *run*; errors name only these.

        Raises:
            Malformed: the statement is not supported, or does not fit the columns of its answers.
        """
        viewed = self._warehouse.restricted_to(catalog)
        statement, public = self._split(request.sql, viewed, run, intervals=request.intervals)
        planned = {}
        for leaf in statement.leaves:
            if leaf.select is not None:
                with naming_query(leaf, statement):
                    planned[leaf.name] = self._queries.plan(leaf.select, request.options, catalog, run)
                    check_complete(leaf, planned[leaf.name].plan)
        types = statement_types(catalog, {name: (of.dataset, of.plan.query) for name, of in planned.items()}, public)
        try:
            self._pool.check(run.account, statement.outer, types, run.disconnected)
        except SQLError as error:
            raise Malformed(str(error)) from None
        return PlannedStatement(statement, planned, public)

    def answer(
        self, planned: PlannedStatement, run: Run, shape: Shape, answers: dict[str, Settled | Replay]
    ) -> AnsweredStatement:
        """Answer all queries of a statement, in their order, and compute its rows; see `Queries.answer`.

        Args:
            answers: answers of earlier attempts, by SQL; new answers are added, so that retries do not pay again.

        Raises:
            BudgetShort: the account or one of its parents cannot pay the sum of the worst cases; nothing was charged.
                If the budget was spent meanwhile, earlier queries were charged, and are free when sent again.
            InputError: the rows cannot be computed; the answers are charged.
            StatementsUnavailable: no process can be started to compute the rows; the answers are charged.
        """
        statement = planned.statement
        if statement.explain:
            plans = {name: of.plan for name, of in planned.queries.items()}
            explained = explain(statement, plans)
            return AnsweredStatement(encode_result(explained, shape.form, "[]"), len(explained.table), Cost())
        unpaid = [] if answers else self._unpaid(planned, run)
        if len(unpaid) > 1:  # the reservation of a single query makes the same check
            refusal = self._refusal(run.account, _total(unpaid))
            if refusal is not None:
                raise BudgetShort(refusal, None)
        tables = dict(planned.public)
        queries = []
        charged = Cost()
        for leaf in statement.leaves:
            query = planned.queries.get(leaf.name)
            if query is None:
                queries.append(_free_query(leaf, "public"))
                continue
            if leaf.sql not in answers:
                answers[leaf.sql] = self._queries.answer(query, _run_of(run, leaf.name))
            answered = answers[leaf.sql]
            tables[leaf.name] = answer_table(decode(answered.release.result))
            if any(leaf.sql == listed.sql for listed in queries):
                continue  # without their k, two leaves can be the same query: charge and list it once
            charged += answered.charged
            queries.append(
                StatementQuery(
                    sql=leaf.sql,
                    dataset=query.dataset,
                    status="replayed" if isinstance(answered, Replay) else "released",
                    charged=spend_above(answered.charged),
                    id=answered.release.release_key.hex(),
                )
            )
        try:
            answered_rows = self._compute(statement, tables, queries, run, shape)
        except (InputError, StatementsUnavailable) as error:
            if not planned.queries:
                raise
            raise type(error)(f"{error}; its queries were answered, so they stay charged") from None
        return replace(answered_rows, charged=charged)

    def recompute(self, sql: str, catalog: Catalog, ids: Sequence[str], run: Run, shape: Shape) -> AnsweredStatement:
        """Compute the rows of a statement from releases that the account has paid for; no data is queried.

        Args:
            ids: the ids of the releases of its queries, in their order.

        Raises:
            Malformed: the statement is not supported.
            NotFound: a dataset or a release does not exist for the account.
            InputError: the rows cannot be computed from these releases.
        """
        statement, tables = self._split(sql, self._warehouse.restricted_to(catalog), run)
        releases = dict(zip(dict.fromkeys(leaf.sql for leaf in statement.leaves if leaf.select), ids, strict=False))
        queries: list[StatementQuery] = []
        for leaf in statement.leaves:
            if leaf.select is None:
                queries.append(_free_query(leaf, "public"))
                continue
            id_ = releases.get(leaf.sql, "")
            stored = paid_release(self._manager.store, run.account, id_)
            tables[leaf.name] = answer_table(decode(stored.result))
            charged = Spend.model_validate(document.read(stored.result)["charged"])
            query = StatementQuery(sql=leaf.sql, dataset=leaf.dataset, status="replayed", charged=charged, id=id_)
            if query not in queries:
                queries.append(query)
        return self._compute(statement, tables, queries, run, shape)

    def rehearse(self, request: StatementRequest, catalog: Catalog, run: Run, shape: Shape) -> AnsweredStatement:
        """Compute a statement from made-up rows: no data is read, and nothing is charged.

        The last column of the result, `made_up`, is true in every row, so that rows cannot be mistaken for an answer.

        Raises:
            Malformed: the statement is not supported, or does not fit the columns of its answers.
            InputError: an option is not allowed or exceeds a limit, or the statement has a column `made_up`.
        """
        options = planning_options(request.options, None, self._defaults, self._limits)
        with self._warehouse.restricted_to(catalog).rehearsal() as made:
            statement, _ = self._split(request.sql, made, run, intervals=request.intervals)
            try:
                answered = made.answer_queries(
                    statement,
                    lambda outer, types: self._pool.check(run.account, outer, types, run.disconnected),
                    budget=Budget.of_cost(_AMPLE),
                    key=bytes(32),
                    **options,
                )
            except (SQLError, WhereError) as error:
                raise Malformed(str(error), error.position) from None
        queries = [_free_query(leaf, "made up") for leaf in statement.leaves]
        if statement.explain:
            explained = with_made_up(explain(statement, answered.plans))
            content = encode_result(explained, shape.form, _written(queries))
            return AnsweredStatement(content, len(explained.table), Cost())
        return self._compute(answered.statement, answered.tables, queries, run, shape, made_up=True)

    def estimate(self, planned: PlannedStatement, run: Run) -> StatementEstimate:
        """Return the worst-case cost of a statement, and whether its account can pay it now; nothing is reserved.

        Args:
            run: the run of the request that would be sent.
        """
        queries = []
        for leaf in planned.statement.leaves:
            query = planned.queries.get(leaf.name)
            estimate = None
            if query is not None:
                estimate = self._queries.estimate(query, _run_of(run, leaf.name))
            queries.append(QueryEstimate(sql=leaf.sql, estimate=estimate))
        total = _total(self._unpaid(planned, run))
        fits = self._refusal(run.account, total) is None
        return StatementEstimate(queries=queries, worst_cost=spend_above(total), fits=fits)

    def _compute(
        self,
        statement: Statement,
        tables: Mapping[str, pa.Table],
        queries: list[StatementQuery],
        run: Run,
        shape: Shape,
        *,
        made_up: bool = False,
    ) -> AnsweredStatement:
        """Return the rows of a statement, computed from the answers in *tables*, as an answer that costs nothing."""
        computed = self._pool.compute(
            run.account,
            statement.outer,
            tables,
            form=shape.form,
            queries=_written(queries),
            max_rows=shape.max_rows,
            made_up=made_up,
            marks=statement.marks,
            disconnected=run.disconnected,
        )
        return AnsweredStatement(computed.content, computed.rows, Cost())

    def _split(
        self, sql: str, viewed: Warehouse, run: Run, *, intervals: bool = False
    ) -> tuple[Statement, dict[str, pa.Table]]:
        """Split a statement into its queries; return it with its public tables, which cost nothing."""
        try:
            statement = self._pool.split(
                run.account,
                sql,
                viewed.catalog,
                intervals=intervals,
                today=viewed.today(),
                disconnected=run.disconnected,
            )
            try:
                statement = viewed.limit(statement, self._limits.max_k)
                return statement, viewed.public_tables(statement)
            except (SQLError, WhereError):
                raise
            except InputError as error:
                raise NotFound(str(error)) from None
        except (SQLError, WhereError) as error:
            raise Malformed(str(error), error.position) from None

    def _refusal(self, account: str, total: Cost) -> Refusal | None:
        """Return the refusal by the account or parent that cannot pay *total* now, or None if all can."""
        for balance in (report.balance for report in self._manager.path(account)):
            if not balance.admits(total):
                return Refusal(balance.account.id, total, balance.remaining, balance.resets_at_us)
        return None

    def _unpaid(self, planned: PlannedStatement, run: Run) -> list[PlannedQuery]:
        """Return the distinct queries that the account has not paid for."""
        found = {query.release_key or name: (name, query) for name, query in planned.queries.items()}
        return [query for name, query in found.values() if not self._queries.has_paid(query, _run_of(run, name))]


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


def _run_of(run: Run, name: str) -> Run:
    """Return the run of the query called *name*, whose idempotency key is derived from that of its statement."""
    return run if run.key is None else replace(run, key=hashlib.sha256(f"{run.key} {name}".encode()).hexdigest())


def _free_query(leaf: Leaf, status: Literal["public", "made up"]) -> StatementQuery:
    return StatementQuery(sql=leaf.sql, dataset=leaf.dataset, status=status, charged=spend_above(Cost()))


def _written(queries: list[StatementQuery]) -> str:
    return json.dumps([query.model_dump() for query in queries])


def _total(queries: list[PlannedQuery]) -> Cost:
    return sum((query.plan.worst_cost for query in queries), Cost())
