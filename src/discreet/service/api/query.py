"""The analysts' part of the HTTP API: query, estimate, budget, datasets and releases."""

from __future__ import annotations

import contextlib
import hashlib
import math
from typing import TYPE_CHECKING, Any

import anyio
from fastapi.routing import APIRoute
from starlette.requests import Request  # noqa: TC002 - FastAPI reads it
from starlette.responses import Response

from discreet.budget.model import NAME_LONGEST, Replay
from discreet.errors import EngineError, InputError
from discreet.service.api.openapi import ANALYSTS
from discreet.service.auth.gate import read_json, run_in_thread, run_while_connected
from discreet.service.middleware import context_of
from discreet.service.problems import ClientDisconnected, NotFound
from discreet.service.representations import content_type, negotiate, represent
from discreet.service.serializers import budget_headers, budget_report, charged_header, dataset_detail, history_entry
from discreet.values import Cost
from discreet.wire.questions import DatasetList, DatasetSummary, HistoryPage, read_question

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine

    from fastapi import FastAPI
    from pydantic import BaseModel

    from discreet.budget.manager import BudgetManager
    from discreet.budget.model import Settled
    from discreet.budget.report import Report
    from discreet.catalog.model import Catalog
    from discreet.service.auth.gate import Gate
    from discreet.service.parts import Grants
    from discreet.service.queries import PlannedQuery, Queries
    from discreet.service.replay_cache import ReplayCache
    from discreet.service.representations import Form
    from discreet.warehouse import Warehouse

PAGE, PAGE_MOST = 20, 100
"""Answers on a page of the history, by default and at most."""

FRESH_SECONDS = 1.0
"""How old the balance in the headers of a cached answer can be."""


class RawRoute(APIRoute):
    """A route whose handler gets the request as it is, and reads the body itself."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with nothing around it."""
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


class QueryAPI:
    """Handlers of the analysts' routes.

    Args:
        gate: authenticates and limits requests.
        queries: answers them.
        cache: of plans and answers.
        manager: of the accounts.
        grants: what accounts may query.
        warehouse: all datasets.
        monotonic: seconds that only rise.
        pause: waits so many seconds.
    """

    def __init__(
        self,
        gate: Gate,
        queries: Queries,
        cache: ReplayCache,
        manager: BudgetManager,
        grants: Grants,
        warehouse: Warehouse,
        monotonic: Callable[[], float],
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._gate, self._queries, self._cache = gate, queries, cache
        self._manager, self._grants, self._warehouse = manager, grants, warehouse
        self._monotonic, self._pause = monotonic, pause
        self._running: dict[tuple[str, bytes], anyio.Event] = {}
        self._balances: dict[str, tuple[float, dict[str, str]]] = {}  # headers by account, and when they were read

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to *app*."""
        for about in ANALYSTS:
            app.router.add_api_route(
                about.path,
                getattr(self, about.name),
                methods=[about.method],
                response_class=Response,
                response_model=None,
                route_class_override=RawRoute,
                **about.told(),
            )

    # ---------------------------------------------------------------------------------------------- queries

    async def query(self, request: Request) -> Response:
        """Answer a query from the cache, the store or the data."""
        account = await self._authorize(request)
        form, key = negotiate(request.headers.get("accept")), idempotency_key(request)
        body = await read_json(request, self._gate.settings.service.body_most_bytes)
        # The store knows which answer an idempotency key got, so that a request with a key is answered from there.
        catalog = self._grants.cached(account) if key is None else None
        cached = None if catalog is None else self._cache.answer(account, body, catalog, form)
        if cached is not None:
            return await self._answer_from_cache(request, account, form, *cached)
        try:
            with self._gate.places.slot(account):
                async with self._once_at_a_time(request, account, body):
                    answered, content, report = await self._answer(request, account, body, form, key)
        finally:
            await self._pause(self._until_grid(request))
        replayed = isinstance(answered, Replay)
        headers = _release_headers(form, answered.release.release_key, answered.charged, replayed=replayed)
        return Response(content, headers=headers | self._balance_headers(account, report))

    async def _answer(
        self, request: Request, account: str, body: bytes, form: Form, key: str | None
    ) -> tuple[Settled | Replay, bytes, Report]:
        """Return the answer, its bytes in *form*, and how the account stands after it."""
        request_id = context_of(request.scope).request_id

        def work(disconnected: Callable[[], bool]) -> tuple[Settled | Replay, bytes, Report]:
            catalog, planned = self._plan(account, body, request_id)
            answered = self._queries.answer(
                account,
                planned,
                request_id=request_id,
                key=key,
                digest=hashlib.sha256(body).digest(),
                disconnected=disconnected,
            )
            content = represent(answered.release.result, form)
            if answered.release.release_key == planned.release_key:
                self._cache.keep(account, body, catalog, planned, form, content)
            return answered, content, self._manager.get(account)

        return await run_while_connected(request, work, self._gate.places.threads)

    def _plan(self, account: str, body: bytes, request_id: str) -> tuple[Catalog, PlannedQuery]:
        catalog = self._grants.catalog_for(account)
        planned = self._cache.plan(account, body, catalog)
        return catalog, planned or self._queries.plan(read_question(body), account, catalog, request_id)

    async def _answer_from_cache(
        self, request: Request, account: str, form: Form, planned: PlannedQuery, content: bytes
    ) -> Response:
        context, release_key = context_of(request.scope), planned.release_key or b""
        context.release, context.mechanism = release_key.hex(), planned.plan.mechanism.name
        read, balance = self._balances.get(account, (-math.inf, {}))
        if self._monotonic() - read > FRESH_SECONDS:
            balance = self._balance_headers(account, await run_in_thread(self._manager.get, account))
        return Response(content, headers=_release_headers(form, release_key, Cost(), replayed=True) | balance)

    @contextlib.asynccontextmanager
    async def _once_at_a_time(self, request: Request, account: str, body: bytes) -> AsyncIterator[None]:
        """Wait until the same request of the same account has ended: what it paid for, this one gets for free."""
        name = account, body
        while name in self._running:
            await self._running[name].wait()
            if await request.is_disconnected():
                raise ClientDisconnected
        ended = self._running[name] = anyio.Event()
        try:
            yield
        finally:
            del self._running[name]
            ended.set()

    def _balance_headers(self, account: str, report: Report) -> dict[str, str]:
        headers = dict(budget_headers(report))
        self._balances[account] = self._monotonic(), headers
        return headers

    def _until_grid(self, request: Request) -> float:
        """Return the seconds until an answer may leave, so that its duration is seen no more finely than the grid."""
        grid = self._gate.settings.service.release_grid_ms / 1000
        if not grid:
            return 0.0
        took = self._monotonic() - context_of(request.scope).began
        return math.ceil(took / grid) * grid - took

    async def estimate(self, request: Request) -> Response:
        """Return what a query could cost."""
        account = await self._authorize(request)
        body = await read_json(request, self._gate.settings.service.body_most_bytes)
        request_id = context_of(request.scope).request_id

        def work() -> BaseModel:
            _, planned = self._plan(account, body, request_id)
            return self._queries.estimate(account, planned)

        with self._gate.places.slot(account):
            return _json(await run_in_thread(work))

    # ---------------------------------------------------------------------------------------------- reading

    async def budget(self, request: Request) -> Response:
        """Return how the account stands, and what is left of those above it."""
        account = await self._authorize(request)

        def work() -> BaseModel:
            own, *parents = (self._manager.get(member.id) for member in self._manager.store.path(account))
            return budget_report(own, parents)

        return _json(await run_in_thread(work))

    async def datasets(self, request: Request) -> Response:
        """List the datasets that the account may query."""
        account = await self._authorize(request)
        catalog = await run_in_thread(self._grants.catalog_for, account)
        found = [
            DatasetSummary(name=name, description=dataset.description)
            for name, dataset in sorted(catalog.datasets.items())
        ]
        return _json(DatasetList(datasets=found))

    async def dataset(self, request: Request) -> Response:
        """Describe a dataset that the account may query."""
        account = await self._authorize(request)

        def work() -> BaseModel:
            catalog = self._grants.catalog_for(account)
            try:
                name = catalog.find(request.path_params["name"])
            except InputError as error:
                raise NotFound(str(error)) from None
            version: str | None = None
            with contextlib.suppress(EngineError):  # what may be queried is known without the engine
                version, _ = self._warehouse.context(name)
            return dataset_detail(name, catalog.datasets[name], self._gate.settings.limits, version)

        return _json(await run_in_thread(work))

    async def releases(self, request: Request) -> Response:
        """List what the account has paid for, newest first."""
        account = await self._authorize(request, "limit", "before")
        most = parameter(request, "limit", PAGE_MOST) or PAGE
        before = parameter(request, "before", 2**63 - 1)
        paid = await run_in_thread(self._manager.store.history, account, before, most + 1)
        page = paid[:most]
        following = page[-1].number if len(paid) > len(page) else None
        return _json(HistoryPage(releases=[history_entry(one) for one in page], next=following))

    async def release(self, request: Request) -> Response:
        """Return an answer that the account has paid for."""
        account = await self._authorize(request)
        form, id_ = negotiate(request.headers.get("accept")), request.path_params["id"]

        def work() -> bytes:
            key = _release_key(id_)
            stored = self._manager.store.release(key) if self._manager.store.entitled(account, key) else None
            if stored is None:
                raise NotFound
            return represent(stored.result, form)

        body = await run_in_thread(work)
        return Response(body, headers={"Discreet-Release": id_, "Vary": "Accept", "Content-Type": content_type(form)})

    async def _authorize(self, request: Request, *parameters: str) -> str:
        """Return the account of an analyst, whose request has no URL parameters but those named."""
        refuse_parameters(request, parameters)
        return (await self._gate.authorize(request, "analyst")).analyst_account()


def refuse_parameters(request: Request, known: Collection[str] = ()) -> None:
    """Raise if the URL has parameters that are not *known*, or one of them twice.

    Raises:
        InputError: it has.
    """
    if not request.scope["query_string"]:
        return
    names = [name for name, _ in request.query_params.multi_items()]
    if len(set(names)) < len(names) or not set(names) <= set(known):
        allowed = f"are {' and '.join(sorted(known))}, each once" if known else "are none"
        raise InputError(f"the parameters that this can have {allowed}")


def parameter(request: Request, name: str, most: int) -> int | None:
    """Return a parameter of the URL that is a whole number from 1 to *most*, or None if it is absent.

    Raises:
        InputError: it is something else.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and 1 <= int(text) <= most):
        raise InputError(f"{name} must be a whole number from 1 to {most:,}")
    return int(text)


def idempotency_key(request: Request) -> str | None:
    """Return the header Idempotency-Key, or None.

    Raises:
        InputError: it has not from 1 to 200 printable characters without white space, or there are several.
    """
    found = request.headers.getlist("idempotency-key")
    if not found:
        return None
    key = found[0]
    if len(found) > 1 or not 1 <= len(key) <= NAME_LONGEST or not key.isprintable() or " " in key:
        raise InputError(f"an Idempotency-Key has from 1 to {NAME_LONGEST} printable characters and no white space")
    return key


def _release_headers(form: Form, release_key: bytes, charged: Cost, *, replayed: bool) -> dict[str, str]:
    return {
        "Content-Type": content_type(form),
        "Vary": "Accept",
        "Discreet-Release": release_key.hex(),
        "Discreet-Charged": charged_header(charged),
        "Discreet-Replayed": "?1" if replayed else "?0",
    }


def _release_key(id_: str) -> bytes:
    """Return the release key of an id, or one that no release has."""
    try:
        key = bytes.fromhex(id_)
    except ValueError:
        key = b""
    return key if len(key) == 32 and key.hex() == id_ else bytes(32)


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")
