"""The routes of officers and administrators: from requests to the office, from what it says to responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from fastapi import APIRouter
from starlette.requests import Request  # noqa: TC002 - FastAPI reads it
from starlette.responses import Response

from discreet.budget.model import Act
from discreet.errors import InputError
from discreet.service.events import Acted
from discreet.service.limits import gate_of, in_thread, read_json
from discreet.service.locksmith import Locksmith
from discreet.service.office import Office
from discreet.service.openapi_admin import ROUTES
from discreet.service.reception import visit_of
from discreet.service.routes import RawRoute, idempotency_key, parameter, refuse_parameters
from discreet.wire import administration as wire
from discreet.wire.malformed import read_body

if TYPE_CHECKING:
    from pydantic import BaseModel

    from discreet.service.identity import Role
    from discreet.service.locksmith import Used
    from discreet.service.parts import Parts

Asked = TypeVar("Asked", bound=wire.Request)

PAGE, PAGE_MOST = 100, 1_000
"""Entries on a page of a list, by default and at most."""

_LARGEST = 2**63 - 1


def admin_router(parts: Parts) -> APIRouter:
    """All of them."""
    router, handlers = APIRouter(tags=["administration"], route_class=RawRoute), Administration(parts)
    for about in ROUTES:
        router.add_api_route(
            about.path, getattr(handlers, about.name), methods=[about.method], response_class=Response, **about.told()
        )
    return router


class Administration:
    """Handlers.

    Args:
        parts: of the service.
    """

    def __init__(self, parts: Parts) -> None:
        self._log = parts.log
        self._office = Office(parts.manager, parts.registry, parts.warehouse.catalog, parts.settings)
        self._locksmith = Locksmith(
            parts.manager, parts.registry, cast("Used", parts.keyring), parts.clock, parts.random
        )

    # ---------------------------------------------------------------------------------------------- accounts

    async def accounts(self, request: Request) -> Response:
        """List accounts by name."""
        after, most = await self._page(request, "officer")
        return _json(await in_thread(self._office.accounts, after, most))

    async def create_account(self, request: Request) -> Response:
        """Open an account."""
        asked, act = await self._asked(request, "officer", wire.NewAccount)
        told = await in_thread(self._office.create, asked, act)
        return self._done(request, act, asked.account, told, 201)

    async def account(self, request: Request) -> Response:
        """Tell how an account stands."""
        await self._look(request, "officer")
        return _json(await in_thread(self._office.account, request.path_params["account"]))

    async def change_account(self, request: Request) -> Response:
        """Give an account another limit, period or mode."""
        asked, act = await self._asked(request, "officer", wire.ChangedAccount)
        name = request.path_params["account"]
        return self._done(request, act, name, await in_thread(self._office.change, name, asked, act))

    async def charge(self, request: Request) -> Response:
        """Charge an account by hand."""
        asked, act = await self._asked(request, "officer", wire.Payment)
        name = request.path_params["account"]
        return self._done(request, act, name, await in_thread(self._office.charge, name, asked, act))

    async def refund(self, request: Request) -> Response:
        """Give back charges, up to a tenth of the limit."""
        asked, act = await self._asked(request, "officer", wire.Payment)
        name = request.path_params["account"]
        return self._done(request, act, name, await in_thread(self._office.refund, name, asked, act))

    async def lift(self, request: Request) -> Response:
        """End a suspension."""
        _, act = await self._asked(request, "officer", wire.Act)
        name = request.path_params["account"]
        return self._done(request, act, name, await in_thread(self._office.lift, name, act))

    async def confirm_clock(self, request: Request) -> Response:
        """Take the time of the store as right, after it ran ahead."""
        _, act = await self._asked(request, "officer", wire.Act)
        await in_thread(self._office.confirm_clock, act)
        return self._done(request, act, "clock")

    # ---------------------------------------------------------------------------------------------- grants

    async def grants(self, request: Request) -> Response:
        """List grants by account and dataset."""
        after, most = await self._page(request, "officer", "account")
        return _json(await in_thread(self._office.grants, request.query_params.get("account"), after, most))

    async def grant(self, request: Request) -> Response:
        """Let an account, and all below it, ask about a dataset."""
        asked, act = await self._asked(request, "officer", wire.NewGrant)
        account, dataset = request.path_params["account"], request.path_params["dataset"]
        told = await in_thread(self._office.grant, account, dataset, asked, act)
        return self._done(request, act, account, told)

    async def revoke_grant(self, request: Request) -> Response:
        """Take a grant back."""
        act = await self._removing(request, "officer")
        account, dataset = request.path_params["account"], request.path_params["dataset"]
        await in_thread(self._office.revoke_grant, account, dataset, act)
        return self._done(request, act, account)

    # ---------------------------------------------------------------------------------------------- keys

    async def keys(self, request: Request) -> Response:
        """List API keys by id."""
        after, most = await self._page(request, "admin")
        return _json(await in_thread(self._locksmith.listed, after, most))

    async def make_key(self, request: Request) -> Response:
        """Make an API key; it is shown once."""
        asked, act = await self._asked(request, "admin", wire.NewKey)
        made = await in_thread(self._locksmith.make, asked, act)
        return self._done(request, act, made.id, made, 201)

    async def rotate_key(self, request: Request) -> Response:
        """Make another key for the same; both are good for a while."""
        asked, act = await self._asked(request, "admin", wire.RotatedKey)
        made = await in_thread(self._locksmith.rotate, request.path_params["key"], asked, act)
        return self._done(request, act, made.id, made, 201)

    async def revoke_key(self, request: Request) -> Response:
        """Have a key open nothing any more."""
        act = await self._removing(request, "admin")
        await in_thread(self._locksmith.revoke, request.path_params["key"], act)
        return self._done(request, act, request.path_params["key"])

    # ---------------------------------------------------------------------------------------------- ledger, settings

    async def ledger(self, request: Request) -> Response:
        """Tell lines of a chain of the ledger, in order."""
        await self._look(request, "officer", "chain", "after", "limit")
        chain, after = _from_nought(request, "chain"), _from_nought(request, "after")
        most = parameter(request, "limit", PAGE_MOST) or PAGE
        return _json(await in_thread(self._office.ledger, chain, after, most))

    async def verify(self, request: Request) -> Response:
        """Read the whole ledger, and tell whether it can be trusted."""
        await self._look(request, "officer")
        return _json(await in_thread(self._office.verify))

    async def settings(self, request: Request) -> Response:
        """Tell what the service runs with."""
        await self._look(request, "officer")
        return _json(self._office.settings())

    # ---------------------------------------------------------------------------------------------- what they share

    async def _look(self, request: Request, role: Role, *parameters: str) -> None:
        refuse_parameters(request, parameters)
        await gate_of(request).enter(request, role)

    async def _page(self, request: Request, role: Role, *parameters: str) -> tuple[str | None, int]:
        await self._look(request, role, "after", "limit", *parameters)
        return request.query_params.get("after"), parameter(request, "limit", PAGE_MOST) or PAGE

    async def _asked(self, request: Request, role: Role, kind: type[Asked]) -> tuple[Asked, Act]:
        refuse_parameters(request)
        gate, key = gate_of(request), idempotency_key(request)
        asker = await gate.enter(request, role)
        asked = read_body(kind, await read_json(request, gate.settings.service.body_most_bytes))
        return asked, Act(asker.actor, asked.reason, key)

    async def _removing(self, request: Request, role: Role) -> Act:
        refuse_parameters(request, {"reason"})
        key = idempotency_key(request)
        asker = await gate_of(request).enter(request, role)
        if "reason" not in request.query_params:
            raise InputError("the parameter reason must say why; it is kept in the ledger")
        return Act(asker.actor, request.query_params["reason"], key)

    def _done(
        self, request: Request, act: Act, subject: str, told: BaseModel | None = None, status: int = 200
    ) -> Response:
        visit = visit_of(request.scope)
        route = f"{request.method} {request.scope['route'].path}"
        self._log.event(Acted(visit.request_id, act.actor, route, subject))
        return Response(status_code=204) if told is None else _json(told, status)


def _from_nought(request: Request, name: str) -> int:
    """A parameter of the URL that is a whole number, 0 if it is not there."""
    return 0 if request.query_params.get(name) == "0" else parameter(request, name, _LARGEST) or 0


def _json(told: BaseModel, status: int = 200) -> Response:
    return Response(told.model_dump_json(), status, media_type="application/json")
