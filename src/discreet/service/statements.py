"""Plan, answer and estimate whole SQL statements of an account: their queries, and rows computed from answers."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import pyarrow as pa

from discreet.budget import Budget
from discreet.budget.model import Refusal, Replay
from discreet.errors import InputError, SQLError, WhereError
from discreet.release.postprocess import Result, answer_table, arrow_types, check_outer, compute_outer, explain
from discreet.release.result import plain_value, python_values
from discreet.service.problems import BudgetShort, NotFound
from discreet.service.queries import planning_options
from discreet.values import Cost
from discreet.warehouse import check_complete, naming_query, statement_types
from discreet.wire import document
from discreet.wire.document import decode, write_table
from discreet.wire.problems import Malformed, Spend, spend_above
from discreet.wire.queries import QueryEstimate, StatementAnswer, StatementColumn, StatementEstimate, StatementQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from discreet.budget.manager import BudgetManager
    from discreet.budget.model import Settled, StoredRelease
    from discreet.budget.stores.store import BudgetStore
    from discreet.catalog.model import Catalog
    from discreet.query.statement import Leaf, Statement
    from discreet.service.queries import PlannedQuery, Queries
    from discreet.service.serializers import Form
    from discreet.service.settings import Settings
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
    """The rows of a statement, its queries, and their total charge."""

    result: Result
    queries: list[StatementQuery]
    charged: Cost


_AMPLE = Cost(Fraction(10**9), Fraction(1))
"""A budget that no rehearsal can exhaust; queries are planned for a shared budget, as in a real run."""


class Statements:
    """Plans and answers statements. Usable from several threads."""

    def __init__(self, queries: Queries, manager: BudgetManager, warehouse: Warehouse, settings: Settings) -> None:
        self._queries, self._manager, self._warehouse = queries, manager, warehouse
        self._limits, self._defaults = settings.limits, settings.defaults

    def plan(self, request: StatementRequest, account: str, catalog: Catalog, request_id: str) -> PlannedStatement:
        """Plan all queries of a statement; arguments and errors as in `Queries.plan`.

        Raises:
            Malformed: the statement is not supported, or does not fit the columns of its answers.
        """
        statement, public = self._split(request.sql, self._warehouse.restricted_to(catalog))
        planned = {}
        for leaf in statement.leaves:
            if leaf.select is not None:
                with naming_query(leaf, statement):
                    planned[leaf.name] = self._queries.plan(leaf.select, request.options, account, catalog, request_id)
                    check_complete(leaf, planned[leaf.name].plan)
        types = statement_types(catalog, {name: (of.dataset, of.plan.query) for name, of in planned.items()}, public)
        try:
            check_outer(statement.outer, types)
        except InputError as error:
            raise Malformed(str(error)) from None
        return PlannedStatement(statement, planned, public)

    def answer(
        self,
        account: str,
        planned: PlannedStatement,
        *,
        request_id: str,
        key: str | None,
        digest: bytes,
        disconnected: Callable[[], bool],
        answers: dict[str, Settled | Replay],
    ) -> AnsweredStatement:
        """Answer all queries of a statement, in their order, and compute its rows; see `Queries.answer`.

        Args:
            answers: answers of earlier attempts, by SQL; new answers are added, so that retries do not pay again.

        Raises:
            BudgetShort: the account or one of its parents cannot pay the sum of the worst cases; nothing was charged.
                If the budget was spent meanwhile, earlier queries were charged, and are free when sent again.
            InputError: the rows cannot be computed; the answers are charged.
        """
        statement = planned.statement
        if statement.explain:
            plans = {name: of.plan for name, of in planned.queries.items()}
            return AnsweredStatement(explain(statement, plans), [], Cost())
        unpaid = [] if answers else self._unpaid(account, planned, key, digest)
        if len(unpaid) > 1:  # the reservation of a single query makes the same check
            refusal = self._refusal(account, _total(unpaid))
            if refusal is not None:
                raise BudgetShort(refusal, None)
        tables, queries, charged = dict(planned.public), [], Cost()
        for leaf in statement.leaves:
            query = planned.queries.get(leaf.name)
            if query is None:
                queries.append(_public_query(leaf))
                continue
            if leaf.sql not in answers:
                answers[leaf.sql] = self._queries.answer(
                    account,
                    query,
                    request_id=request_id,
                    key=_key_of(key, leaf.name),
                    digest=digest,
                    disconnected=disconnected,
                )
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
            result = compute_outer(statement.outer, tables)
        except InputError as error:
            raise InputError(f"{error}; its queries were answered, so they stay charged") from None
        return AnsweredStatement(result, queries, charged)

    def recompute(self, sql: str, account: str, catalog: Catalog, ids: Sequence[str]) -> AnsweredStatement:
        """Compute the rows of a statement from releases that *account* has paid for; no data is queried.

        Args:
            ids: the ids of the releases of its queries, in their order.

        Raises:
            Malformed: the statement is not supported.
            NotFound: a dataset or a release does not exist for the account.
            InputError: the rows cannot be computed from these releases.
        """
        statement, tables = self._split(sql, self._warehouse.restricted_to(catalog))
        releases = dict(zip(dict.fromkeys(leaf.sql for leaf in statement.leaves if leaf.select), ids, strict=False))
        queries = []
        for leaf in statement.leaves:
            if leaf.select is None:
                queries.append(_public_query(leaf))
                continue
            id_ = releases.get(leaf.sql, "")
            stored = paid_release(self._manager.store, account, id_)
            tables[leaf.name] = answer_table(decode(stored.result))
            charged = Spend.model_validate(document.read(stored.result)["charged"])
            query = StatementQuery(sql=leaf.sql, dataset=leaf.dataset, status="replayed", charged=charged, id=id_)
            if query not in queries:
                queries.append(query)
        return AnsweredStatement(compute_outer(statement.outer, tables), queries, Cost())

    def rehearse(self, request: StatementRequest, catalog: Catalog) -> AnsweredStatement:
        """Compute a statement from made-up rows: no data is read, and nothing is charged.

        The last column of the result, `made_up`, is true in every row, so that rows cannot be mistaken for an answer.

        Raises:
            Malformed: the statement is not supported, or does not fit the columns of its answers.
            InputError: an option is not allowed or exceeds a limit, or the statement has a column `made_up`.
        """
        options = planning_options(request.options, None, self._defaults, self._limits)
        with self._warehouse.restricted_to(catalog).rehearsal() as made:
            statement, _ = self._split(request.sql, made)
            try:
                answers = made.sql(request.sql, **options, budget=Budget.of_cost(_AMPLE), key=bytes(32))
            except (SQLError, WhereError) as error:
                raise Malformed(str(error), error.position) from None
        if "made_up" in answers.table.column_names:
            raise InputError("a rehearsal adds a column made_up: give yours another name")
        table = answers.table.append_column("made_up", pa.array([True] * len(answers.table), pa.bool_()))
        queries = [
            StatementQuery(sql=leaf.sql, dataset=leaf.dataset, status="made up", charged=spend_above(Cost()))
            for leaf in statement.leaves
        ]
        return AnsweredStatement(Result(table, tuple(arrow_types(table).values())), queries, Cost())

    def estimate(self, account: str, planned: PlannedStatement) -> StatementEstimate:
        """Return the worst-case cost of a statement, and whether *account* can pay it now; nothing is reserved."""
        queries = []
        for leaf in planned.statement.leaves:
            query = planned.queries.get(leaf.name)
            estimate = None if query is None else self._queries.estimate(account, query)
            queries.append(QueryEstimate(sql=leaf.sql, estimate=estimate))
        total = _total(self._unpaid(account, planned))
        return StatementEstimate(
            queries=queries, worst_cost=spend_above(total), fits=self._refusal(account, total) is None
        )

    def _split(self, sql: str, viewed: Warehouse) -> tuple[Statement, dict[str, pa.Table]]:
        """Split a statement into its queries; return it with its public tables, which cost nothing."""
        try:
            statement = viewed.split(sql, self._limits.k_most)
            return statement, viewed.public_tables(statement)
        except (SQLError, WhereError) as error:
            raise Malformed(str(error), error.position) from None
        except InputError as error:
            raise NotFound(str(error)) from None

    def _refusal(self, account: str, total: Cost) -> Refusal | None:
        """Return the refusal by the account or parent that cannot pay *total* now, or None if all can."""
        for balance in (report.balance for report in self._manager.path(account)):
            if not balance.admits(total):
                return Refusal(balance.account.id, total, balance.remaining, balance.resets_at_us)
        return None

    def _unpaid(
        self, account: str, planned: PlannedStatement, key: str | None = None, digest: bytes = b""
    ) -> list[PlannedQuery]:
        """Return the distinct queries that *account* has not paid for; arguments as in `answer`."""
        found = {query.release_key or name: (name, query) for name, query in planned.queries.items()}
        return [
            query
            for name, query in found.values()
            if not self._queries.has_paid(account, query, _key_of(key, name), digest)
        ]


def paid_release(store: BudgetStore, account: str, id_: str) -> StoredRelease:
    """Return the release with the id *id_*; raise `NotFound` unless *account* has paid for it."""
    try:
        key = bytes.fromhex(id_)
    except ValueError:
        key = b""
    if len(key) != 32 or key.hex() != id_:
        key = bytes(32)  # the key of no release: a malformed id takes as long as an unknown one
    stored = store.release(key) if store.entitled(account, key) else None
    if stored is None:
        raise NotFound
    return stored


def represent_result(answered: AnsweredStatement, form: Form) -> bytes:
    """Return the rows of a statement in *form*."""
    table, types = answered.result.table, answered.result.types
    if form == "arrow":
        queries = json.dumps([query.model_dump() for query in answered.queries])
        table = table.replace_schema_metadata({"discreet.queries": queries})
    if form != "json":
        return write_table(table, form)
    names = zip(table.column_names, types, strict=True)
    columns = [StatementColumn(name=name, type=type_) for name, type_ in names]
    values = [map(_json_value, python_values(column)) for column in table.columns]
    rows = [list(row) for row in zip(*values, strict=True)]
    return StatementAnswer(columns=columns, rows=rows, queries=answered.queries).model_dump_json().encode()


def _key_of(key: str | None, name: str) -> str | None:
    """Derive the idempotency key of the query called *name* from the key of its statement."""
    return None if key is None else hashlib.sha256(f"{key} {name}".encode()).hexdigest()


def _public_query(leaf: Leaf) -> StatementQuery:
    return StatementQuery(sql=leaf.sql, dataset=leaf.dataset, status="public", charged=spend_above(Cost()))


def _json_value(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else plain_value(value)


def _total(queries: list[PlannedQuery]) -> Cost:
    return sum((query.plan.worst_cost for query in queries), Cost())
