"""The routes of officers and administrators: from requests to the office, from what it says to responses."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar, cast

from fastapi import APIRouter
from starlette.requests import Request  # noqa: TC002 - FastAPI reads it
from starlette.responses import Response

from discreet._version import __version__
from discreet.budget.errors import AccountChanged, LedgerBroken, StoreBehind
from discreet.budget.model import Account, AdminAction
from discreet.errors import InputError
from discreet.service.api.openapi_admin import ROUTES
from discreet.service.api.query import RawRoute, idempotency_key, parameter, refuse_parameters
from discreet.service.auth.api_keys import ApiKeys
from discreet.service.auth.gate import gate_of, read_json, run_in_thread
from discreet.service.auth.grants import columns_in, grant_name, grant_text, named_in
from discreet.service.auth.records import GRANT
from discreet.service.middleware import context_of
from discreet.service.observability.events import AdminChanged
from discreet.service.problems import NotFound
from discreet.service.serializers import (
    account_detail,
    account_summary,
    ledger_line_of,
    read_amount,
    read_limit,
    read_period,
)
from discreet.values import Cost
from discreet.wire import administration as wire
from discreet.wire.administration import AccountPage, Grant, GrantPage, LedgerPage, RunningSettings, Verdict
from discreet.wire.problems import read_body

if TYPE_CHECKING:
    from pydantic import BaseModel

    from discreet.budget.manager import BudgetManager
    from discreet.catalog.model import Catalog
    from discreet.service.auth.api_keys import Used
    from discreet.service.auth.identity import Role
    from discreet.service.auth.records import RecordCache
    from discreet.service.parts import Parts
    from discreet.service.settings import Settings
    from discreet.wire.administration import AccountDetail, ChangedAccount, NewAccount, NewGrant, Payment


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
        self._locksmith = ApiKeys(parts.manager, parts.registry, cast("Used", parts.keyring), parts.clock, parts.random)

    # ---------------------------------------------------------------------------------------------- accounts

    async def accounts(self, request: Request) -> Response:
        """List accounts by name."""
        after, most = await self._page(request, "officer")
        return _json(await run_in_thread(self._office.accounts, after, most))

    async def create_account(self, request: Request) -> Response:
        """Open an account."""
        asked, act = await self._asked(request, "officer", wire.NewAccount)
        told = await run_in_thread(self._office.create, asked, act)
        return self._done(request, act, asked.account, told, 201)

    async def account(self, request: Request) -> Response:
        """Tell how an account stands."""
        await self._look(request, "officer")
        return _json(await run_in_thread(self._office.account, request.path_params["account"]))

    async def change_account(self, request: Request) -> Response:
        """Give an account another limit, period or mode."""
        asked, act = await self._asked(request, "officer", wire.ChangedAccount)
        name = request.path_params["account"]
        return self._done(request, act, name, await run_in_thread(self._office.change, name, asked, act))

    async def charge(self, request: Request) -> Response:
        """Charge an account by hand."""
        asked, act = await self._asked(request, "officer", wire.Payment)
        name = request.path_params["account"]
        return self._done(request, act, name, await run_in_thread(self._office.charge, name, asked, act))

    async def refund(self, request: Request) -> Response:
        """Give back charges, up to a tenth of the limit."""
        asked, act = await self._asked(request, "officer", wire.Payment)
        name = request.path_params["account"]
        return self._done(request, act, name, await run_in_thread(self._office.refund, name, asked, act))

    async def lift(self, request: Request) -> Response:
        """End a suspension."""
        _, act = await self._asked(request, "officer", wire.Act)
        name = request.path_params["account"]
        return self._done(request, act, name, await run_in_thread(self._office.lift, name, act))

    async def confirm_clock(self, request: Request) -> Response:
        """Take the time of the store as right, after it ran ahead."""
        _, act = await self._asked(request, "officer", wire.Act)
        await run_in_thread(self._office.confirm_clock, act)
        return self._done(request, act, "clock")

    # ---------------------------------------------------------------------------------------------- grants

    async def grants(self, request: Request) -> Response:
        """List grants by account and dataset."""
        after, most = await self._page(request, "officer", "account")
        return _json(await run_in_thread(self._office.grants, request.query_params.get("account"), after, most))

    async def grant(self, request: Request) -> Response:
        """Let an account, and all below it, ask about a dataset."""
        asked, act = await self._asked(request, "officer", wire.NewGrant)
        account, dataset = request.path_params["account"], request.path_params["dataset"]
        told = await run_in_thread(self._office.grant, account, dataset, asked, act)
        return self._done(request, act, account, told)

    async def revoke_grant(self, request: Request) -> Response:
        """Take a grant back."""
        act = await self._removing(request, "officer")
        account, dataset = request.path_params["account"], request.path_params["dataset"]
        await run_in_thread(self._office.revoke_grant, account, dataset, act)
        return self._done(request, act, account)

    # ---------------------------------------------------------------------------------------------- keys

    async def keys(self, request: Request) -> Response:
        """List API keys by id."""
        after, most = await self._page(request, "admin")
        return _json(await run_in_thread(self._locksmith.listed, after, most))

    async def make_key(self, request: Request) -> Response:
        """Make an API key; it is shown once."""
        asked, act = await self._asked(request, "admin", wire.NewKey)
        made = await run_in_thread(self._locksmith.make, asked, act)
        return self._done(request, act, made.id, made, 201)

    async def rotate_key(self, request: Request) -> Response:
        """Make another key for the same; both are good for a while."""
        asked, act = await self._asked(request, "admin", wire.RotatedKey)
        made = await run_in_thread(self._locksmith.rotate, request.path_params["key"], asked, act)
        return self._done(request, act, made.id, made, 201)

    async def revoke_key(self, request: Request) -> Response:
        """Have a key open nothing any more."""
        act = await self._removing(request, "admin")
        await run_in_thread(self._locksmith.revoke, request.path_params["key"], act)
        return self._done(request, act, request.path_params["key"])

    # ---------------------------------------------------------------------------------------------- ledger, settings

    async def ledger(self, request: Request) -> Response:
        """Tell lines of a chain of the ledger, in order."""
        await self._look(request, "officer", "chain", "after", "limit")
        chain, after = _from_nought(request, "chain"), _from_nought(request, "after")
        most = parameter(request, "limit", PAGE_MOST) or PAGE
        return _json(await run_in_thread(self._office.ledger, chain, after, most))

    async def verify(self, request: Request) -> Response:
        """Read the whole ledger, and tell whether it can be trusted."""
        await self._look(request, "officer")
        return _json(await run_in_thread(self._office.verify))

    async def settings(self, request: Request) -> Response:
        """Tell what the service runs with."""
        await self._look(request, "officer")
        return _json(self._office.settings())

    # ---------------------------------------------------------------------------------------------- what they share

    async def _look(self, request: Request, role: Role, *parameters: str) -> None:
        refuse_parameters(request, parameters)
        await gate_of(request).authorize(request, role)

    async def _page(self, request: Request, role: Role, *parameters: str) -> tuple[str | None, int]:
        await self._look(request, role, "after", "limit", *parameters)
        return request.query_params.get("after"), parameter(request, "limit", PAGE_MOST) or PAGE

    async def _asked(self, request: Request, role: Role, kind: type[Asked]) -> tuple[Asked, AdminAction]:
        refuse_parameters(request)
        gate, key = gate_of(request), idempotency_key(request)
        asker = await gate.authorize(request, role)
        asked = read_body(kind, await read_json(request, gate.settings.service.body_most_bytes))
        return asked, AdminAction(asker.actor, asked.reason, key)

    async def _removing(self, request: Request, role: Role) -> AdminAction:
        refuse_parameters(request, {"reason"})
        key = idempotency_key(request)
        asker = await gate_of(request).authorize(request, role)
        if "reason" not in request.query_params:
            raise InputError("the parameter reason must say why; it is kept in the ledger")
        return AdminAction(asker.actor, request.query_params["reason"], key)

    def _done(
        self, request: Request, act: AdminAction, subject: str, told: BaseModel | None = None, status: int = 200
    ) -> Response:
        visit = context_of(request.scope)
        route = f"{request.method} {request.scope['route'].path}"
        self._log.event(AdminChanged(visit.request_id, act.actor, route, subject))
        return Response(status_code=204) if told is None else _json(told, status)


def _from_nought(request: Request, name: str) -> int:
    """A parameter of the URL that is a whole number, 0 if it is not there."""
    return 0 if request.query_params.get(name) == "0" else parameter(request, name, _LARGEST) or 0


def _json(told: BaseModel, status: int = 200) -> Response:
    return Response(told.model_dump_json(), status, media_type="application/json")


class Office:
    """Accounts, grants and the ledger.

    Args:
        manager: keeps them.
        registry: what is remembered of grants.
        catalog: all there is to grant.
        settings: what the service runs with.
    """

    def __init__(self, manager: BudgetManager, registry: RecordCache, catalog: Catalog, settings: Settings) -> None:
        self._manager, self._registry, self._catalog, self._settings = manager, registry, catalog, settings

    # ---------------------------------------------------------------------------------------------- accounts

    def accounts(self, after: str | None, most: int) -> AccountPage:
        """Accounts by name, from the one behind *after*."""
        behind = [account for account in self._manager.store.accounts() if after is None or account.id > after]
        found = [account_summary(account) for account in behind[:most]]
        return AccountPage(accounts=found, next=found[-1].account if len(behind) > most else None)

    def account(self, name: str) -> AccountDetail:
        """How an account stands.

        Raises:
            UnknownAccount: there is none.
        """
        return account_detail([self._manager.get(member.id) for member in self._manager.store.path(name)])

    def create(self, asked: NewAccount, act: AdminAction) -> AccountDetail:
        """Open an account.

        Raises:
            InputError: there is one of that name, or no such parent, or a value is outside its range.
        """
        limit, delta, units = read_limit(asked.limit)
        account = Account(asked.account, limit, delta, asked.parent, read_period(asked.period), asked.mode, units)
        self._manager.store.create(account, act)
        return self.account(asked.account)

    def change(self, name: str, asked: ChangedAccount, act: AdminAction) -> AccountDetail:
        """Give an account another limit, period or mode.

        Raises:
            UnknownAccount: there is none.
            InputError: a value outside its range.
        """
        while True:  # what is not asked for stays as it is, whoever changes that meanwhile
            before = self._manager.store.account(name)
            try:
                self._manager.store.alter(_changed(before, asked), act, before)
            except AccountChanged:
                continue
            return self.account(name)

    def charge(self, name: str, asked: Payment, act: AdminAction) -> AccountDetail:
        """Charge an account by hand.

        Raises:
            UnknownAccount: there is none.
            InputError: the amount is not in its units.
        """
        rho, delta = read_amount(self._manager.store.account(name), asked)
        self._manager.store.charge(name, Cost(rho, delta), act)
        return self.account(name)

    def refund(self, name: str, asked: Payment, act: AdminAction) -> AccountDetail:
        """Give back charges.

        Raises:
            UnknownAccount: there is none.
            InputError: more than may be given back.
        """
        rho, delta = read_amount(self._manager.store.account(name), asked)
        self._manager.store.refund(name, Cost.at_most(rho, delta), act)
        return self.account(name)

    def lift(self, name: str, act: AdminAction) -> AccountDetail:
        """End the suspension of an account.

        Raises:
            UnknownAccount: there is none.
        """
        self._manager.store.lift(name, act)
        return self.account(name)

    def confirm_clock(self, act: AdminAction) -> None:
        """Take the time of the store as right, after it ran ahead."""
        self._manager.store.confirm_clock(act)

    # ---------------------------------------------------------------------------------------------- grants

    def grants(self, account: str | None, after: str | None, most: int) -> GrantPage:
        """Grants by account and dataset, from the one behind *after*; those of one account if it is named."""
        named = sorted((named_in(name), columns_in(text)) for name, text in self._manager.store.records(GRANT))
        found = [
            Grant(account=who, dataset=dataset, columns=None if columns is None else sorted(columns))
            for (who, dataset), columns in named
            if account in {None, who} and (after is None or f"{who}\t{dataset}" > after)
        ]
        page = found[:most]
        return GrantPage(grants=page, next=f"{page[-1].account}\t{page[-1].dataset}" if len(found) > most else None)

    def grant(self, account: str, dataset: str, asked: NewGrant, act: AdminAction) -> Grant:
        """Let an account, and all below it, ask about a dataset; in place of what it was granted before.

        Raises:
            UnknownAccount: there is none.
            InputError: there is no such dataset or column in the catalog.
        """
        self._manager.store.account(account)
        name = self._catalog.find(dataset)
        known = {column.casefold(): column for column in self._catalog.datasets[name].columns}
        unknown = [column for column in asked.columns or () if column.casefold() not in known]
        if unknown:
            raise InputError(f"the catalog has no column {unknown[0]!r} in the dataset {name!r} that could be granted")
        columns = None if asked.columns is None else frozenset(known[column.casefold()] for column in asked.columns)
        self._manager.store.put_record(GRANT, grant_name(account, name), grant_text(columns), act)
        self._registry.invalidate()
        return Grant(account=account, dataset=name, columns=None if columns is None else sorted(columns))

    def revoke_grant(self, account: str, dataset: str, act: AdminAction) -> None:
        """Take a grant back: the dataset does not exist for the account then; in other processes within a second.

        Raises:
            NotFound: there is no such grant.
        """
        if self._manager.store.record(GRANT, grant_name(account, dataset)) is None:
            raise NotFound
        self._manager.store.put_record(GRANT, grant_name(account, dataset), None, act)
        self._registry.invalidate()

    # ---------------------------------------------------------------------------------------------- the ledger

    def ledger(self, chain: int, after: int, most: int) -> LedgerPage:
        """Lines of a chain, from the one behind *after*."""
        lines = list(self._manager.store.lines(chain, after, most + 1))
        return LedgerPage(
            chain=chain,
            lines=[ledger_line_of(line) for line in lines[:most]],
            next=lines[most - 1].seq if len(lines) > most else None,
        )

    def verify(self) -> Verdict:
        """Whether the ledger can be trusted: everything in it is read and added up."""
        witnessed = self._settings.witness is not None
        try:
            verified = self._manager.verify()
        except (LedgerBroken, StoreBehind) as error:
            return Verdict(sound=False, mistake=str(error), lines=None, chains=None, witnessed=witnessed)
        return Verdict(sound=True, mistake=None, lines=verified.lines, chains=len(verified.heads), witnessed=witnessed)

    # ---------------------------------------------------------------------------------------------- settings

    def settings(self) -> RunningSettings:
        """What the service runs with."""
        service, limits, defaults, oidc = (
            self._settings.service,
            self._settings.limits,
            self._settings.defaults,
            self._settings.oidc,
        )
        return RunningSettings(
            version=__version__,
            store=self._settings.store.kind,
            witness=self._settings.witness is not None,
            datasets=list(self._catalog.datasets),
            defaults={
                name: str(value)
                for name in ("epsilon", "delta", "epsilon_per", "delta_per", "information")
                if (value := getattr(defaults, name)) is not None
            },
            k_most=limits.k_most,
            head_limit_most=limits.head_limit_most,
            epsilon_most=limits.epsilon_most,
            body_most_bytes=service.body_most_bytes,
            concurrent_most=service.concurrent_most,
            requests_per_minute=service.requests_per_minute,
            release_grid_ms=service.release_grid_ms,
            issuer=None if oidc is None else oidc.issuer,
            audience=None if oidc is None else oidc.audience,
        )


def _changed(account: Account, asked: ChangedAccount) -> Account:
    """*account* with what was asked for."""
    if asked.limit is not None:
        limit, delta, units = read_limit(asked.limit)
        account = dataclasses.replace(account.limited(limit, delta), units=units)
    if asked.period is not None:
        account = dataclasses.replace(account, period=read_period(asked.period))
    return dataclasses.replace(account, mode=asked.mode or account.mode)
