"""What officers do with accounts, grants and the ledger, without HTTP."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from discreet._version import __version__
from discreet.budget.errors import AccountChanged, LedgerBroken, StoreBehind
from discreet.budget.model import Account
from discreet.errors import InputError
from discreet.service.grants import columns_in, grant_name, grant_text, named_in
from discreet.service.paperwork import amount_of, detail_of, limit_of, line_told, period_of, summary_of
from discreet.service.problems import NotFound
from discreet.service.registry import GRANT
from discreet.values import Cost
from discreet.wire.administration import AccountPage, Grant, GrantPage, LedgerPage, RunningSettings, Verdict

if TYPE_CHECKING:
    from discreet.budget.manager import BudgetManager
    from discreet.budget.model import Act
    from discreet.catalog.model import Catalog
    from discreet.service.registry import Registry
    from discreet.service.settings import Settings
    from discreet.wire.administration import AccountDetail, ChangedAccount, NewAccount, NewGrant, Payment


class Office:
    """Accounts, grants and the ledger.

    Args:
        manager: keeps them.
        registry: what is remembered of grants.
        catalog: all there is to grant.
        settings: what the service runs with.
    """

    def __init__(self, manager: BudgetManager, registry: Registry, catalog: Catalog, settings: Settings) -> None:
        self._manager, self._registry, self._catalog, self._settings = manager, registry, catalog, settings

    # ---------------------------------------------------------------------------------------------- accounts

    def accounts(self, after: str | None, most: int) -> AccountPage:
        """Accounts by name, from the one behind *after*."""
        behind = [account for account in self._manager.accounts() if after is None or account.id > after]
        found = [summary_of(account) for account in behind[:most]]
        return AccountPage(accounts=found, next=found[-1].account if len(behind) > most else None)

    def account(self, name: str) -> AccountDetail:
        """How an account stands.

        Raises:
            UnknownAccount: there is none.
        """
        return detail_of([self._manager.get(member.id) for member in self._manager.path(name)])

    def create(self, asked: NewAccount, act: Act) -> AccountDetail:
        """Open an account.

        Raises:
            InputError: there is one of that name, or no such parent, or a value is outside its range.
        """
        limit, delta, units = limit_of(asked.limit)
        account = Account(asked.account, limit, delta, asked.parent, period_of(asked.period), asked.mode, units)
        self._manager.create(account, act)
        return self.account(asked.account)

    def change(self, name: str, asked: ChangedAccount, act: Act) -> AccountDetail:
        """Give an account another limit, period or mode.

        Raises:
            UnknownAccount: there is none.
            InputError: a value outside its range.
        """
        while True:  # what is not asked for stays as it is, whoever changes that meanwhile
            before = self._manager.account(name)
            try:
                self._manager.alter(_changed(before, asked), act, before)
            except AccountChanged:
                continue
            return self.account(name)

    def charge(self, name: str, asked: Payment, act: Act) -> AccountDetail:
        """Charge an account by hand.

        Raises:
            UnknownAccount: there is none.
            InputError: the amount is not in its units.
        """
        rho, delta = amount_of(self._manager.account(name), asked)
        self._manager.charge(name, Cost(rho, delta), act)
        return self.account(name)

    def refund(self, name: str, asked: Payment, act: Act) -> AccountDetail:
        """Give back charges.

        Raises:
            UnknownAccount: there is none.
            InputError: more than may be given back.
        """
        rho, delta = amount_of(self._manager.account(name), asked)
        self._manager.refund(name, Cost.at_most(rho, delta), act)
        return self.account(name)

    def lift(self, name: str, act: Act) -> AccountDetail:
        """End the suspension of an account.

        Raises:
            UnknownAccount: there is none.
        """
        self._manager.lift(name, act)
        return self.account(name)

    def confirm_clock(self, act: Act) -> None:
        """Take the time of the store as right, after it ran ahead."""
        self._manager.confirm_clock(act)

    # ---------------------------------------------------------------------------------------------- grants

    def grants(self, account: str | None, after: str | None, most: int) -> GrantPage:
        """Grants by account and dataset, from the one behind *after*; those of one account if it is named."""
        named = sorted((named_in(name), columns_in(text)) for name, text in self._manager.records(GRANT))
        found = [
            Grant(account=who, dataset=dataset, columns=None if columns is None else sorted(columns))
            for (who, dataset), columns in named
            if account in {None, who} and (after is None or f"{who}\t{dataset}" > after)
        ]
        page = found[:most]
        return GrantPage(grants=page, next=f"{page[-1].account}\t{page[-1].dataset}" if len(found) > most else None)

    def grant(self, account: str, dataset: str, asked: NewGrant, act: Act) -> Grant:
        """Let an account, and all below it, ask about a dataset; in place of what it was granted before.

        Raises:
            UnknownAccount: there is none.
            InputError: there is no such dataset or column in the catalog.
        """
        self._manager.account(account)
        name = self._catalog.find(dataset)
        known = {column.casefold(): column for column in self._catalog.datasets[name].columns}
        unknown = [column for column in asked.columns or () if column.casefold() not in known]
        if unknown:
            raise InputError(f"the catalog has no column {unknown[0]!r} in the dataset {name!r} that could be granted")
        columns = None if asked.columns is None else frozenset(known[column.casefold()] for column in asked.columns)
        self._manager.put_record(GRANT, grant_name(account, name), grant_text(columns), act)
        self._registry.forget()
        return Grant(account=account, dataset=name, columns=None if columns is None else sorted(columns))

    def revoke_grant(self, account: str, dataset: str, act: Act) -> None:
        """Take a grant back: the dataset does not exist for the account then; in other processes within a second.

        Raises:
            NotFound: there is no such grant.
        """
        if self._manager.record(GRANT, grant_name(account, dataset)) is None:
            raise NotFound
        self._manager.put_record(GRANT, grant_name(account, dataset), None, act)
        self._registry.forget()

    # ---------------------------------------------------------------------------------------------- the ledger

    def ledger(self, chain: int, after: int, most: int) -> LedgerPage:
        """Lines of a chain, from the one behind *after*."""
        lines = list(self._manager.lines(chain, after, most + 1))
        return LedgerPage(
            chain=chain,
            lines=[line_told(line) for line in lines[:most]],
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
        limit, delta, units = limit_of(asked.limit)
        account = dataclasses.replace(account.limited(limit, delta), units=units)
    if asked.period is not None:
        account = dataclasses.replace(account, period=period_of(asked.period))
    return dataclasses.replace(account, mode=asked.mode or account.mode)
