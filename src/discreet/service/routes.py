"""The analysts' routes: from requests to the desk, from answers to responses. Nothing is decided here."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi.routing import APIRoute
from starlette.requests import Request  # noqa: TC002 - FastAPI reads it
from starlette.responses import Response

from discreet.budget.model import NAME_LONGEST
from discreet.errors import InputError
from discreet.service.answering import Sent
from discreet.service.api.openapi import ANALYSTS
from discreet.service.auth.gate import read_json, run_in_thread, run_while_connected
from discreet.service.desk import Desk
from discreet.service.middleware import context_of
from discreet.service.negotiation import content_type, in_form, wanted_form
from discreet.service.replays import Kept
from discreet.service.serializers import budget_headers, charged_header
from discreet.values import Cost
from discreet.wire.questions import read_question

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable

    from fastapi import FastAPI
    from pydantic import BaseModel

    from discreet.service.answering import Given
    from discreet.service.auth.gate import Gate
    from discreet.service.auth.identity import Identity
    from discreet.service.middleware import RequestContext
    from discreet.service.negotiation import Form
    from discreet.service.parts import Parts
    from discreet.service.replays import Fields, Replays, Standings, UsedKeys

PAGE, PAGE_MOST = 20, 100
"""Answers on a page of the history, by default and at most."""


class RawRoute(APIRoute):
    """A route whose handler takes the request as it is: it reads the body itself, and only as much as it likes."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with nothing around it."""
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as it came in.

    Args:
        asker: who sent it.
        account: that it is charged to.
        body: of the request.
        form: that the answer is wanted in.
        key: its idempotency key, or None.
        reused: True if the key came with another request before, as far as this process knows.
        visit: the request.
    """

    asker: Identity
    account: str
    body: bytes
    form: Form
    key: str | None
    reused: bool
    visit: RequestContext


class Analysts:
    """Handlers of the analysts' routes.

    Args:
        parts: of the service.
        gate: where requests come in.
        replays: answers that are remembered.
        standings: how accounts stood a moment ago.
        keys: idempotency keys that were used.
    """

    def __init__(self, parts: Parts, gate: Gate, replays: Replays, standings: Standings, keys: UsedKeys) -> None:
        self._parts, self._gate = parts, gate
        self._desk = Desk(parts)
        self._replays, self._standings, self._keys = replays, standings, keys

    def add_to(self, app: FastAPI) -> None:
        """Make them routes of *app*."""
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

    # ---------------------------------------------------------------------------------------------- questions

    async def query(self, request: Request) -> Response:
        """Answer a question."""
        asked = await self._asked(request)
        catalog = self._parts.grants.cached(asked.account)
        kept = self._replays.recall((asked.account, asked.body, asked.form), catalog)
        if kept is not None and not asked.reused and self._keys.fits(asked.account, asked.key, kept.id):
            return await self._replayed(asked, kept)
        try:
            given, body = await self._run(request, asked)
        finally:
            await self._parts.pause(self._until_grid(asked.visit))
        return self._answered(asked, given, body)

    async def estimate(self, request: Request) -> Response:
        """What a question could cost."""
        refuse_parameters(request)
        asker = await self._gate.authorize(request, "analyst")
        body = await read_json(request, self._gate.settings.service.body_most_bytes)
        with self._gate.places.slot(asker.analyst_account()):
            return _json(await run_in_thread(lambda: self._desk.estimate(asker, read_question(body))))

    # ---------------------------------------------------------------------------------------------- looking

    async def budget(self, request: Request) -> Response:
        """How the account stands."""
        refuse_parameters(request)
        asker = await self._gate.authorize(request, "analyst")
        return _json(await run_in_thread(self._desk.budget, asker))

    async def datasets(self, request: Request) -> Response:
        """What may be asked about."""
        refuse_parameters(request)
        asker = await self._gate.authorize(request, "analyst")
        return _json(await run_in_thread(self._desk.datasets, asker))

    async def dataset(self, request: Request) -> Response:
        """What may be asked about one dataset."""
        refuse_parameters(request)
        asker = await self._gate.authorize(request, "analyst")
        return _json(await run_in_thread(self._desk.dataset, asker, request.path_params["name"]))

    async def releases(self, request: Request) -> Response:
        """What was paid for."""
        refuse_parameters(request, {"limit", "before"})
        asker = await self._gate.authorize(request, "analyst")
        most = parameter(request, "limit", PAGE_MOST) or PAGE
        return _json(await run_in_thread(self._desk.history, asker, parameter(request, "before", 2**63 - 1), most))

    async def release(self, request: Request) -> Response:
        """An answer that was paid for."""
        refuse_parameters(request)
        asker = await self._gate.authorize(request, "analyst")
        form, id_ = wanted_form(request.headers.get("accept")), request.path_params["id"]
        body = await run_in_thread(lambda: in_form(self._desk.release(asker, id_), form))
        return Response(body, headers={"Discreet-Release": id_, "Vary": "Accept", "Content-Type": content_type(form)})

    # ---------------------------------------------------------------------------------------------- one question

    async def _asked(self, request: Request) -> Asked:
        refuse_parameters(request)
        asker = await self._gate.authorize(request, "analyst")
        form, key = wanted_form(request.headers.get("accept")), idempotency_key(request)
        body = await read_json(request, self._gate.settings.service.body_most_bytes)
        account = asker.analyst_account()
        reused = not self._keys.allow(account, key, body)
        return Asked(asker, account, body, form, key, reused, context_of(request.scope))

    async def _run(self, request: Request, asked: Asked) -> tuple[Given, bytes]:
        def work(gone: Callable[[], bool]) -> tuple[Given, bytes]:
            digest = hashlib.sha256(asked.body).digest()
            question = read_question(asked.body)
            sent = Sent(question, asked.visit.request_id, digest, asked.key, asked.reused, gone)
            given = self._desk.query(asked.asker, sent)
            return given, in_form(given.document, asked.form)

        with self._gate.places.slot(asked.account):
            return await run_while_connected(request, work, self._gate.places.threads)

    def _answered(self, asked: Asked, given: Given, body: bytes) -> Response:
        self._keys.note(asked.account, asked.key, asked.body, given.id)
        fields = {
            "Content-Type": content_type(asked.form),
            "Vary": "Accept",
            "Discreet-Release": given.id,
            "Discreet-Charged": charged_header(given.charged),
            "Discreet-Replayed": "?1" if given.replayed else "?0",
        }
        standing = self._standings.note(asked.account, as_sent(budget_headers(given.report)))
        if given.data_version is not None:
            free = {**fields, "Discreet-Charged": charged_header(Cost()), "Discreet-Replayed": "?1"}
            sent = as_sent([*free.items(), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")])
            kept = Kept(body, sent, given.id, given.dataset, given.mechanism, given.catalog, given.data_version)
            self._replays.keep((asked.account, asked.body, asked.form), kept)
        return _raw(body, [*as_sent(fields.items()), *standing])

    async def _replayed(self, asked: Asked, kept: Kept) -> Response:
        self._keys.note(asked.account, asked.key, asked.body, kept.id)
        standing = self._standings.recall(asked.account)
        if standing is None:
            report = await run_in_thread(self._desk.standing, asked.account)
            standing = self._standings.note(asked.account, as_sent(budget_headers(report)))
        asked.visit.release, asked.visit.mechanism = kept.id, kept.mechanism
        return _raw(kept.body, [*kept.headers, *standing])

    def _until_grid(self, visit: RequestContext) -> float:
        """Seconds until an answer may leave: nobody sees more finely how long it took."""
        grid = self._gate.settings.service.release_grid_ms / 1000
        if not grid:
            return 0.0
        took = self._parts.monotonic() - visit.began
        return math.ceil(took / grid) * grid - took


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
    """A parameter of the URL that is a whole number from 1 to *most*; None if it is not there.

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
    """The header Idempotency-Key, or None.

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


def as_sent(fields: Iterable[tuple[str, str]]) -> Fields:
    """Headers as ASGI has them."""
    return [(name.lower().encode(), value.encode()) for name, value in fields]


def _raw(body: bytes, fields: Fields) -> Response:
    response = Response(body)
    response.raw_headers = [*(field for field in fields if field[0] != b"content-length"), *response.raw_headers]
    return response


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")
