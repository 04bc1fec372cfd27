"""The operations of analysts: queries, SQL statements, estimates, the budget, datasets and releases."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from discreet.budget.errors import ReleaseDamaged
from discreet.budget.manager import BudgetManager
from discreet.budget.model import Balance, Replay, Settled
from discreet.catalog.model import Catalog
from discreet.catalog.sample import MAX_SAMPLE_ROWS
from discreet.errors import EngineError, InputError, NotFound
from discreet.query.json import from_dict
from discreet.query.planning import PlannedQuery
from discreet.query.query import Select
from discreet.query.saved import Action, TableChange, read_change
from discreet.query.statement import without_comments
from discreet.release.postprocess import MAX_ROWS, ComputedRows, arrow_types
from discreet.service.answering.accounts import history_entry
from discreet.service.answering.pool import WrittenRows
from discreet.service.answering.queries import Queries, ReplayCache, Run, question_in
from discreet.service.answering.saved_tables import OwnedTable, SavedTables
from discreet.service.answering.statements import Shape, ShareExceeded, Statements, paid_release, release_key_of
from discreet.service.answering.worker import encode_result
from discreet.service.auth.access import Grants
from discreet.service.doors.http.operation import (
    IDEMPOTENCY_KEY,
    MEDIA_TYPES,
    Call,
    Operation,
    Parameter,
    budget_headers,
    charged_header,
    content_headers,
    in_path,
    integer,
    negotiate,
    represent,
)
from discreet.service.middleware import Gate, context_of, run_in_thread, run_while_connected
from discreet.service.observability import on_grid
from discreet.service.problems import ClientDisconnected, RequestInFlight
from discreet.service.settings import Settings
from discreet.values import Cost
from discreet.warehouse import Warehouse
from discreet.wire import document
from discreet.wire.document import Form
from discreet.wire.problems import Slug
from discreet.wire.queries import (
    AnswerWithin,
    BudgetReport,
    DatasetDetail,
    DatasetList,
    DatasetSummary,
    Estimate,
    HistoryPage,
    NewTable,
    QueryRequest,
    SavedTableDetail,
    SavedTableList,
    SavedTableSummary,
    StatementAnswer,
    StatementColumn,
    StatementEstimate,
    StatementRequest,
    read_body,
    spend_above,
)

Answered = TypeVar("Answered")

FRESH_SECONDS = 1.0
"""The maximum age of the balance in the headers of a cached answer."""

JOIN_SECONDS = 30.0
"""How long a request waits for an identical request in progress, in any process; shorter than timeouts of proxies."""

_JOIN_EVERY_SECONDS = 0.1

HEADERS: Mapping[str, str] = {
    "Discreet-Release": "The id of the release.",
    "Discreet-Charged": "What the account was charged for this response: rho=..., delta=...",
    "Discreet-Replayed": "?1 if the answer was stored before, so that no data was queried.",
    "Discreet-Mode": "enforce, or observe if the account is charged but never refused.",
    "RateLimit-Policy": "The account's budget: q is its limit, w the seconds of its period.",
    "RateLimit": "What is left of it: r, and t seconds until some of it comes back.",
}
"""Descriptions of the headers of an answer, by name."""

BEFORE = integer("before", "The `next` of the previous page.", least=1)
TABLE_NAME = in_path("name", "Name of the saved table; with its owner, as ann@sales.top, if that is another account.")
MAX_SHARE = Parameter(
    "max_share",
    "query",
    {"type": "number", "minimum": 0, "maximum": 1},
    "The largest fraction of what is left, of the account or of a parent, that the statement may take.",
    required=True,
)
_ONE_TABLE = "/v1/tables/{name:path}"  # names of accounts may have slashes
_MISSING: tuple[Slug, ...] = ("not-found",)
RELEASE_ID = in_path("id", "Id of the release.")

_RELEASE: Mapping[str, Any] = {
    MEDIA_TYPES["json"]: {"$ref": "#/components/schemas/ReleaseDocument"},
    MEDIA_TYPES["csv"]: {"type": "string"},
    MEDIA_TYPES["arrow"]: {"type": "string", "format": "binary"},
    MEDIA_TYPES["parquet"]: {"type": "string", "format": "binary"},
}


_ROWS: Mapping[str, Any] = {MEDIA_TYPES[form]: _RELEASE[MEDIA_TYPES[form]] for form in ("csv", "arrow", "parquet")}
_QUERY_PROBLEMS: tuple[Slug, ...] = (
    "not-found",
    "not-acceptable",
    "budget-short",
    "suspended",
    "in-flight",
    "engine-unavailable",
    "engine-failed",
    "engine-timeout",
    "data-changed",
    "clock",
)


class QueryAPI:
    """Handlers of the analysts' routes."""

    def __init__(
        self,
        gate: Gate,
        queries: Queries,
        statements: Statements,
        tables: SavedTables,
        cache: ReplayCache,
        manager: BudgetManager,
        grants: Grants,
        warehouse: Warehouse,
        settings: Settings,
        monotonic: Callable[[], float],
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._gate = gate
        self._queries = queries
        self._statements = statements
        self._tables = tables
        self._cache = cache
        self._manager = manager
        self._grants = grants
        self._warehouse = warehouse
        self._settings = settings
        self._monotonic = monotonic
        self._pause = pause
        self._balances: dict[str, tuple[float, dict[str, str]]] = {}  # headers by account, and when they were read

    # ---------------------------------------------------------------------------------------------- queries

    @Operation(
        "POST",
        "/v1/query",
        role="analyst",
        body=QueryRequest,
        raw=True,
        contents=_RELEASE,
        parameters=(IDEMPOTENCY_KEY,),
        problems=_QUERY_PROBLEMS,
        headers=HEADERS,
    )
    async def query(self, call: Call, body: bytes) -> Response:
        """Answer a query.

        Reserves the worst-case cost, queries the data, adds noise, charges the actual cost and returns the answer.
        The same query of the same version of the data gets the same bytes, free of charge.
        """
        request = call.request
        account = call.account
        form = negotiate(request.headers.get("accept"))
        key = call.parameters["Idempotency-Key"]
        # Only the store knows the answers to idempotency keys, so a request with a key bypasses the cache.
        catalog = self._grants.cached(account) if key is None else None
        cached = None if catalog is None else self._cache.answer(account, body, catalog, form)
        context = context_of(request.scope)
        if cached is not None:
            planned, content = cached
            release_key = planned.release_key or b""
            context.release = release_key.hex()
            context.mechanism = planned.plan.mechanism.name
            read, headers = self._balances.get(account, (-math.inf, {}))
            if self._monotonic() - read > FRESH_SECONDS:
                headers = self._balance_headers(account, await run_in_thread(self._manager.store.balance, account))
            return Response(content, headers=_release_headers(form, release_key, Cost(), replayed=True) | headers)

        def work(disconnected: Callable[[], bool]) -> tuple[Settled | Replay, bytes, Balance]:
            run = Run(account, context.request_id, key, hashlib.sha256(body).digest(), disconnected)
            catalog, planned = self._plan(body, run)
            answered = self._queries.answer(planned, run)
            content = represent(answered.release.result, form)
            if answered.release.release_key == planned.release_key:
                self._cache.keep(account, body, catalog, planned, form, content)
            return answered, content, self._manager.store.balance(account)

        answered, content, balance = await self._run_in_slot(request, account, work)
        replayed = isinstance(answered, Replay)
        headers = _release_headers(form, answered.release.release_key, answered.charged, replayed=replayed)
        return Response(content, headers=headers | self._balance_headers(account, balance))

    async def _run_in_slot(
        self, request: Request, account: str, work: Callable[[Callable[[], bool]], Answered]
    ) -> Answered:
        """Run *work* in a slot of *account* and return its result, at a multiple of the time grid.

        While an identical request of the account is in progress, wait for its answer, which is free.

        Args:
            work: runs in a thread; its argument is a function that returns True once the client has disconnected.

        Raises:
            TooManyRequests: no slot is free.
            RequestInFlight: the identical request is still in progress after `JOIN_SECONDS`.
        """
        until = self._monotonic() + JOIN_SECONDS
        try:
            with self._gate.slots.slot(account):
                while True:
                    try:
                        return await run_while_connected(request, work, self._gate.slots.threads)
                    except RequestInFlight:
                        if self._monotonic() > until:
                            raise
                    await self._pause(_JOIN_EVERY_SECONDS)
                    if await request.is_disconnected():
                        raise ClientDisconnected
        finally:
            # A request takes a multiple of the time grid, so that its time says less about the data.
            grid_ms = self._settings.service.release_grid_ms
            took = self._monotonic() - context_of(request.scope).began
            await self._pause(on_grid(took, grid_ms) / 1000 - took if grid_ms else 0.0)

    def _plan(self, body: bytes, run: Run) -> tuple[Catalog, PlannedQuery]:
        catalog = self._grants.catalog_for(run.account)
        planned = self._cache.plan(run.account, body, catalog)
        if planned is None:
            request = read_body(QueryRequest, body)
            question = question_in(request, catalog, self._warehouse.today())
            planned = self._queries.plan(question, request.options, run)
        return catalog, planned

    def _balance_headers(self, account: str, balance: Balance) -> dict[str, str]:
        headers = dict(budget_headers(balance))
        self._balances[account] = self._monotonic(), headers
        return headers

    @Operation(
        "POST",
        "/v1/estimate",
        role="analyst",
        body=QueryRequest,
        raw=True,
        answer=Estimate,
        problems=("not-found", "engine-unavailable"),
    )
    async def estimate(self, call: Call, body: bytes) -> Estimate:
        """Estimate the cost of a query.

        Plans the query and compares its worst-case cost with the budget. No data is queried and nothing is reserved.
        """
        run = Run(call.account, context_of(call.request.scope).request_id)

        def work() -> Estimate:
            _, planned = self._plan(body, run)
            return self._queries.estimate(planned, run)

        with self._gate.slots.slot(run.account):
            return await run_in_thread(work)

    # ------------------------------------------------------------------------------------------- statements

    @Operation(
        "POST",
        "/v1/sql",
        role="analyst",
        body=StatementRequest,
        raw=True,
        answer=StatementAnswer,
        contents=_ROWS,
        parameters=(IDEMPOTENCY_KEY,),
        problems=_QUERY_PROBLEMS,
        headers={
            name: HEADERS[name] for name in ("Discreet-Charged", "Discreet-Mode", "RateLimit-Policy", "RateLimit")
        },
    )
    async def sql(self, call: Call, body: bytes) -> Response:
        """Answer a whole SQL statement.

        Each SELECT directly over a dataset is a query, charged as in /v1/query; the outer statement is computed from
        the answers, free of charge. All queries are planned and compared with the budget before the first is charged.
        With rehearse, the rows are computed from made-up data, free of charge, and marked by a column made_up.
        """
        form = negotiate(call.request.headers.get("accept"))
        answered, balance = await self.answer_statement(call, body, form)
        headers = {**content_headers(form), "Discreet-Charged": charged_header(answered.charged)}
        return Response(answered.content, headers=headers | balance)

    @Operation(
        "POST",
        "/v1/sql/within",
        role="analyst",
        body=StatementRequest,
        raw=True,
        answer=AnswerWithin,
        parameters=(IDEMPOTENCY_KEY, MAX_SHARE),
        problems=_QUERY_PROBLEMS,
    )
    async def sql_within(self, call: Call, body: bytes) -> Response | AnswerWithin:
        """Answer a whole SQL statement if it takes at most a share of what is left of the budget.

        Otherwise returns its estimate, and nothing is charged. The balance of the account is returned with either. The
        Idempotency-Key is used for data without a version only; a new version of the data is a new request.
        """
        try:
            answered, _ = await self.answer_statement(call, body, "json", max_share=call.parameters["max_share"])
        except ShareExceeded as error:
            return AnswerWithin(estimate=error.estimate, budget=error.budget)
        budget = await run_in_thread(self.budget_of, call.account)
        content = b'{"answer":%b,"budget":%b}' % (answered.content, budget.model_dump_json().encode())
        return Response(content, media_type=MEDIA_TYPES["json"])

    async def answer_statement(
        self, call: Call, body: bytes, form: Form, max_rows: int | None = None, max_share: float | None = None
    ) -> tuple[WrittenRows, dict[str, str]]:
        """Answer the statement in *body*, and return it with the headers of the account's balance.

        Args:
            max_rows: the number of rows to return, if not all.
            max_share: as in `Run`.
        """
        request = call.request
        account = call.account
        key = call.parameters["Idempotency-Key"]
        digest = hashlib.sha256(body).digest()
        run = Run(account, context_of(request.scope).request_id, key, digest, max_share=max_share)
        work = self.statement_work(read_body(StatementRequest, body), run, Shape(form, max_rows), {})
        answered, balance = await self._run_in_slot(request, account, work)
        return answered, self._balance_headers(account, balance)

    def statement_work(
        self,
        statement: StatementRequest,
        run: Run,
        shape: Shape,
        answers: dict[str, Settled | Replay],
        change: TableChange | None = None,
    ) -> Callable[[Callable[[], bool]], tuple[WrittenRows, Balance]]:
        """Return a function that answers a statement, and may be called again after `RequestInFlight`.

        It blocks. Its argument is a function that returns True once the client has disconnected; it returns the answer,
        and the account's balance after it.

        Args:
            run: its `disconnected` is not used.
            answers: answers of the statement's queries, kept between calls: unversioned ones are not replayed.
            change: what the statement makes of a saved table; None to read it from the statement.
        """
        if change is None:
            change, _ = _read_change(statement.sql)
        if change is not None and statement.rehearse:
            raise InputError("a rehearsal saves nothing")

        def work(disconnected: Callable[[], bool]) -> tuple[WrittenRows, Balance]:
            catalog = self._grants.catalog_for(run.account)
            watched = replace(run, disconnected=disconnected)
            if change is not None:
                answered = self._statements.change(change, statement, catalog, watched, answers)
                result = ComputedRows(pa.table({"rows": pa.array([answered.rows], pa.int64())}), ("BIGINT",))
                queries = json.dumps([query.model_dump() for query in answered.queries])
                pages = shape.page_rows or MAX_ROWS
                answered = replace(answered, content=encode_result(result, shape.form, queries, page_rows=pages))
            elif statement.rehearse:
                answered = self._statements.rehearse(statement, catalog, watched, shape)
            else:
                planned = self._statements.plan(statement, catalog, watched)
                answered = self._statements.answer(planned, watched, shape, answers)
            return answered, self._manager.store.balance(run.account)

        return work

    @Operation(
        "POST",
        "/v1/sql/estimate",
        role="analyst",
        body=StatementRequest,
        raw=True,
        answer=StatementEstimate,
        parameters=(IDEMPOTENCY_KEY,),
        problems=("not-found", "engine-unavailable"),
    )
    async def estimate_sql(self, call: Call, body: bytes) -> StatementEstimate:
        """Estimate the cost of a whole SQL statement.

        Plans all its queries and compares their worst-case costs with the budget. No data is queried. With the body and
        the Idempotency-Key of an answered statement, its queries are free.
        """
        key = call.parameters["Idempotency-Key"]
        digest = hashlib.sha256(body).digest()
        return await self.estimate_statement(call, read_body(StatementRequest, body), key, digest)

    async def estimate_statement(
        self, call: Call, statement: StatementRequest, key: str | None = None, digest: bytes = b""
    ) -> StatementEstimate:
        """Return the worst cost of a statement.

        Args:
            key: the idempotency key that the statement would be sent with.
            digest: the digest of its request.
        """
        run = Run(call.account, context_of(call.request.scope).request_id, key, digest)
        change, select = _read_change(statement.sql)
        statement = statement.model_copy(update={"sql": select})

        def work(disconnected: Callable[[], bool]) -> StatementEstimate:
            watched = replace(run, disconnected=disconnected)
            catalog = self._grants.catalog_for(run.account)
            if change is not None:
                self._tables.before(run.account, change)  # refuses a name that is not one of saved tables
            return self._statements.estimate(self._statements.plan(statement, catalog, watched), watched)

        with self._gate.slots.slot(run.account):
            return await run_while_connected(call.request, work, self._gate.slots.threads)

    async def recompute(
        self, call: Call, sql: str, ids: Sequence[str], form: Form, max_rows: int | None = None
    ) -> WrittenRows:
        """Return the rows of a statement, with intervals, in *form*, from releases that the account paid for."""
        run = Run(call.account, context_of(call.request.scope).request_id)

        def work(disconnected: Callable[[], bool]) -> WrittenRows:
            watched = replace(run, disconnected=disconnected)
            catalog = self._grants.catalog_for(run.account)
            return self._statements.recompute(sql, catalog, ids, watched, Shape(form, max_rows))

        with self._gate.slots.slot(run.account):
            return await run_while_connected(call.request, work, self._gate.slots.threads)

    async def shared(self, call: Call, id_: str) -> tuple[Select, float, bool]:
        """Return the query and the epsilon of a release that the account has not paid for, to be priced and asked.

        Nothing that depends on data is read from the release. It exists for accounts that may ask its query only.

        Returns:
            the query, its epsilon, and True if asking it with this epsilon returns the release.

        Raises:
            NotFound: there is no such release, or the account may not ask its query.
        """
        run = Run(call.account, context_of(call.request.scope).request_id)

        def work() -> tuple[Select, float, bool]:
            stored = self._manager.store.release(release_key_of(id_))
            if stored is None:
                raise NotFound
            fields = document.read(stored.result)
            body = {"query": fields["question"], "epsilon": fields["query"]["epsilon"]}
            try:
                _, planned = self._plan(json.dumps(body).encode(), run)
            except InputError:
                raise NotFound from None
            return from_dict(fields["question"]), body["epsilon"], planned.release_key == stored.release_key

        with self._gate.slots.slot(run.account):
            return await run_in_thread(work)

    # ---------------------------------------------------------------------------------------------- saved tables

    @Operation("GET", "/v1/tables", role="analyst", answer=SavedTableList)
    def tables(self, call: Call) -> SavedTableList:
        """List the saved tables of the account, and those that an officer published to it."""
        return SavedTableList(tables=[_summary(table) for table in self.saved_tables(call.account)])

    @Operation("GET", _ONE_TABLE, role="analyst", answer=SavedTableDetail, parameters=(TABLE_NAME,), problems=_MISSING)
    def table(self, call: Call) -> SavedTableDetail:
        """Describe a saved table that the account has paid for, or that is published to it.

        Its rows are those of SELECT * FROM saved.name.
        """
        return self.saved_table(call.account, call.parameters["name"])

    def saved_table(self, account: str, name: str) -> SavedTableDetail:
        """Return a saved table with its statements; it blocks.

        Raises:
            NotFound: there is none, or the account has not paid for it.
        """
        store = self._manager.store
        owned = self._tables.find(account, name)
        releases = sorted(owned.table.releases)
        keys = list(map(release_key_of, releases))
        listed = owned.owner == account or owned.name in {table.name for table in self.saved_tables(account)}
        if not listed and not all(store.entitled(account, key) for key in keys):
            raise NotFound(f"there is no saved table {name[:300]!r}")
        stored = [release for key in keys if (release := store.release(key)) is not None]
        documents = [document.read(release.result) for release in stored]
        paid = sum((release.cost for release in stored), Cost()) if owned.stream is None else owned.stream.cost
        return SavedTableDetail(
            **_summary(owned).model_dump(),
            statements=[part.sql for part in owned.table.parts],
            releases=releases,
            paid=spend_above(paid),
            omits_items=any(body["question"].get("items") and not body["query"]["known_domain"] for body in documents),
            running=None if owned.stream is None else owned.stream.summary,
        )

    @Operation(
        "PUT",
        _ONE_TABLE,
        role="analyst",
        body=NewTable,
        raw=True,
        answer=SavedTableDetail,
        parameters=(TABLE_NAME, IDEMPOTENCY_KEY),
        problems=_QUERY_PROBLEMS,
    )
    async def save_table(self, call: Call, body: bytes) -> SavedTableDetail:
        """Save a statement with the releases that answer it, under a name; a table of that name is replaced.

        Charged like the statement in /v1/sql, once; reading the table is free.
        """
        new = read_body(NewTable, body)
        name = call.parameters["name"]
        action: Action = "create view" if new.view else "create table"
        change = TableChange(
            action, ("saved",), name, new.sql, replace=new.replace, comment=new.comment, releases=new.releases
        )
        request = StatementRequest.model_validate({"sql": new.sql, **new.options})
        key = call.parameters["Idempotency-Key"]
        run = Run(call.account, context_of(call.request.scope).request_id, key, hashlib.sha256(body).digest())
        work = self.statement_work(request, run, Shape("json"), {}, change)
        await self._run_in_slot(call.request, call.account, work)
        return await run_in_thread(partial(self.saved_table, call.account, name))

    @Operation("DELETE", _ONE_TABLE, role="analyst", status=204, parameters=(TABLE_NAME,), problems=_MISSING)
    def drop_table(self, call: Call) -> None:
        """Drop a saved table or a view of the account.

        Its releases stay, and stay paid for.
        """
        name = call.parameters["name"]
        view = self._tables.find(call.account, name).table.view
        self._tables.alter(call.account, TableChange("drop view" if view else "drop table", ("saved",), name))

    def saved_tables(self, account: str) -> list[OwnedTable]:
        """Return the saved tables of an account, and those published to it; it blocks."""
        return self._tables.listed(account)

    # ---------------------------------------------------------------------------------------------- reading

    @Operation("GET", "/v1/budget", role="analyst", answer=BudgetReport)
    def budget(self, call: Call) -> BudgetReport:
        """Return the balance of the account.

        Includes the remaining budgets of its parents, which other accounts share.
        """
        return self.budget_of(call.account)

    def budget_of(self, account: str) -> BudgetReport:
        """Return the balance of *account*; it blocks."""
        return self._statements.budget(account)

    @Operation("GET", "/v1/datasets", role="analyst", answer=DatasetList)
    def datasets(self, call: Call) -> DatasetList:
        """List the datasets that the account may query."""
        datasets = self._grants.catalog_for(call.account).datasets
        return DatasetList(
            datasets=[
                DatasetSummary(name=name, description=dataset.description) for name, dataset in sorted(datasets.items())
            ]
        )

    @Operation(
        "GET",
        "/v1/datasets/{name}",
        role="analyst",
        answer=DatasetDetail,
        parameters=(in_path("name", "Name of the dataset."),),
    )
    def dataset(self, call: Call) -> DatasetDetail:
        """Describe a dataset that the account may query.

        Lists the granted columns, and whether each may be grouped, filtered or summed.
        """
        catalog = self._grants.catalog_for(call.account)
        name, dataset = catalog.find(call.parameters["name"])
        version: str | None = None
        with contextlib.suppress(EngineError):  # the description does not depend on the engine; only the version does
            version = self._queries.shown_version(dataset, self._warehouse.key_context(name)[0])
        limits = self._settings.limits
        return DatasetDetail.of(name, dataset, version, max_k=limits.max_k, max_head_limit=limits.max_head_limit)

    @Operation(
        "GET",
        "/v1/datasets/{name}/sample",
        role="analyst",
        answer=StatementAnswer,
        contents=_ROWS,
        parameters=(
            in_path("name", "Name of the dataset."),
            integer("rows", "Number of made-up rows.", least=1, most=MAX_SAMPLE_ROWS, default=100),
        ),
        problems=("not-acceptable",),
    )
    def sample(self, call: Call) -> Response:
        """Return made-up rows of a dataset that the account may query.

        The rows follow the catalog (types, listed labels, bounds of sums), for testing programs and charts; no data is
        queried and nothing is charged.
        """
        form = negotiate(call.request.headers.get("accept"))
        viewed = self._warehouse.restricted_to(self._grants.catalog_for(call.account))
        table = viewed.sample(call.parameters["name"], call.parameters["rows"])
        result = ComputedRows(table, tuple(arrow_types({"": table})[""].values()))
        return Response(encode_result(result, form, "[]"), headers=content_headers(form))

    @Operation(
        "GET",
        "/v1/releases",
        role="analyst",
        answer=HistoryPage,
        parameters=(
            integer("limit", "Maximum number of releases on the page.", least=1, most=100, default=20),
            BEFORE,
        ),
    )
    def releases(self, call: Call) -> HistoryPage:
        """List the releases that the account has paid for, newest first."""
        before = call.parameters["before"]
        most = call.parameters["limit"]
        paid = self._manager.store.history(call.account, before, most + 1)
        page = paid[:most]
        following = page[-1].number if len(paid) > len(page) else None
        entries = []
        damaged = []
        for one in page:
            try:
                entries.append(history_entry(one))
            except (InputError, ReleaseDamaged):
                damaged.append(one.release_key.hex())
        return HistoryPage(releases=entries, damaged=damaged, next=following)

    @Operation(
        "GET",
        "/v1/releases/{id}",
        role="analyst",
        contents=_RELEASE,
        parameters=(RELEASE_ID,),
        problems=("not-acceptable",),
        headers={"Discreet-Release": HEADERS["Discreet-Release"]},
    )
    def release(self, call: Call) -> Response:
        """Return a release that the account has paid for.

        Returns the stored bytes, free of charge.
        """
        form = negotiate(call.request.headers.get("accept"))
        id_ = call.parameters["id"]
        stored = paid_release(self._manager.store, call.account, id_)
        return Response(represent(stored.result, form), headers={"Discreet-Release": id_, **content_headers(form)})


def _summary(table: OwnedTable) -> SavedTableSummary:
    return SavedTableSummary(
        name=table.name,
        owner=table.owner,
        kind="view" if table.table.view else "table",
        columns=[StatementColumn(name=name, type=type_) for name, type_ in table.table.columns],
        comment=table.table.comment,
        published=table.published,
    )


def _release_headers(form: Form, release_key: bytes, charged: Cost, *, replayed: bool) -> dict[str, str]:
    return {
        **content_headers(form),
        "Discreet-Release": release_key.hex(),
        "Discreet-Charged": charged_header(charged),
        "Discreet-Replayed": "?1" if replayed else "?0",
    }


def _read_change(sql: str) -> tuple[TableChange | None, str]:
    """Return the change of a saved table that a statement makes, or None, and the SELECT whose queries it asks."""
    change = read_change(without_comments(sql))
    if change is None:
        return None, sql
    return change, change.sql if change.start else "SELECT TRUE AS done"
