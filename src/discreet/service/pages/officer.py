"""Pages of privacy officers: accounts and their limits, grants, the catalog, the ledger, keys."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from discreet.errors import DiscreetError
from discreet.noise import SystemBits
from discreet.service.pages import charts, text
from discreet.service.pages.simulator import Parameters, released_counts, simulate
from discreet.service.pages.site import HEADERS, Site, Visit, page
from discreet.wire import administration as wire
from discreet.wire.problems import Malformed, read_body

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from discreet.budget.manager import BudgetManager
    from discreet.service.api.admin import AdminAPI
    from discreet.service.app import Runtime
    from discreet.warehouse import Warehouse
    from discreet.wire.problems import Problem

DAYS = 30
"""Days of history in charts and previews."""

_PAGE = 1_000

_SIMULATED = (
    ("epsilon_per", "Epsilon of a step", "0.15"),
    ("delta_per", "Delta of a call", "1e-10"),
    ("head_limit", "Items read (d̄)", "1000"),
    ("information", "Steps in a period (k*)", "3000"),
    ("calls", "Calls in a period (l*)", "100"),
    ("k", "Items of a query (k)", "10"),
    ("days", "Days of a period", "30"),
    ("largest", "Users of the largest item", "10000"),
)
"""Fields of the simulator: parameter, label and default value."""

_FRACTIONS = ("epsilon_per", "delta_per")


class OfficerPages:
    """Pages of officers; the pages about keys are for admins."""

    def __init__(
        self, site: Site, api: AdminAPI, manager: BudgetManager, warehouse: Warehouse, runtime: Runtime
    ) -> None:
        self._site, self._api, self._manager, self._warehouse = site, api, manager, warehouse
        self._runtime = runtime

    # ---------------------------------------------------------------------------------------------- accounts

    @page("GET", "/officer", role="officer")
    def accounts(self, visit: Visit) -> Response:
        """Show the tree of accounts, and their daily spending in the last days."""
        return self._accounts(visit)

    @page("POST", "/officer", role="officer")
    def create_account(self, visit: Visit) -> Response:
        """Create an account."""
        try:
            fields = {
                "account": visit.field("account"),
                "parent": visit.field("parent") or None,
                "limit": _limit(visit),
                "period": _period(visit),
                "mode": visit.field("mode") or "enforce",
                "reason": visit.field("reason"),
            }
            self._api.create_account(visit.call(), _read(wire.NewAccount, fields))
        except DiscreetError as error:
            return self._accounts(visit, self._site.problem(visit, error))
        return self._site.redirect(visit, _address(visit.field("account")))

    def _accounts(self, visit: Visit, problem: Problem | None = None) -> Response:
        details = {account.id: self._detail(visit, account.id) for account in self._manager.store.accounts()}
        spending = self._api.spending(visit.call(days=DAYS))
        spent = {each.account: each.rho for each in spending.accounts}
        rows = [
            {
                "detail": details[name],
                "depth": min(depth, 4),
                "address": _address(name),
                "bar": text.budget_bar(details[name]),
                "days": charts.columns(spent.get(name, [])),
            }
            for name, depth in _tree(details)
        ]
        unavailable = list(self._warehouse.unavailable())
        return self._show(
            visit, "officer.html", problem, rows=rows, spending=spending, days=DAYS, unavailable=unavailable
        )

    @page("GET", "/officer/accounts/{account:path}", role="officer")
    def account(self, visit: Visit) -> Response:
        """Show an account: its balance, its guarantee, its grants, and forms that change them."""
        return self._account(visit)

    @page("POST", "/officer/accounts/{account:path}", role="officer")
    def change_account(self, visit: Visit) -> Response:
        """Process a posted form: preview or apply settings, lift a suspension, grant or revoke."""
        name, act = visit.request.path_params["account"], visit.field("act")
        reason = {"reason": visit.field("reason")}
        call = visit.call(account=name, dataset=visit.field("dataset"), reason=visit.field("reason"))
        try:
            match act:
                case "preview":
                    tried = _read(wire.AccountChanges, self._changes(visit))
                    return self._account(visit, preview=self._api.preview(visit.call(account=name, days=DAYS), tried))
                case "apply":
                    self._api.change_account(call, _read(wire.ChangedAccount, self._changes(visit) | reason))
                case "lift":
                    self._api.lift(call, _read(wire.AdminRequest, reason))
                case "grant":
                    columns = [part.strip() for part in visit.field("columns").split(",") if part.strip()]
                    self._api.grant(call, _read(wire.NewGrant, {"columns": columns or None} | reason))
                case "revoke":
                    _read(wire.AdminRequest, reason)
                    self._api.revoke_grant(call)
                case _:
                    raise Malformed("there is no such form")
        except DiscreetError as error:
            return self._account(visit, problem=self._site.problem(visit, error))
        return self._site.redirect(visit, f"{_address(name)}?done={act}")

    def _account(self, visit: Visit, problem: Problem | None = None, preview: wire.Preview | None = None) -> Response:
        name = visit.request.path_params["account"]
        detail = self._detail(visit, name)
        if preview is None and detail.mode == "observe":
            preview = self._api.preview(visit.call(account=name, days=DAYS), wire.AccountChanges(mode="enforce"))
        tight = detail.guarantee
        return self._show(
            visit,
            "account.html",
            problem,
            detail=detail,
            address=_address(name),
            bar=text.budget_bar(detail),
            tight=tight,
            words=None if tight is None else text.guarantee_in_words(tight.epsilon, tight.delta),
            published=self._manager.get(name).published,
            grants=self._api.grants(visit.call(account=name, after=None, limit=1_000)).grants,
            datasets=list(self._warehouse.catalog.datasets),
            preview=preview,
            days=DAYS,
            act=visit.field("act"),
            done=visit.request.query_params.get("done"),
            values={field: visit.field(field) for field in ("epsilon", "delta", "days", "mode", "reason", "columns")},
        )

    def _changes(self, visit: Visit) -> dict[str, Any]:
        """Return the changes in the form; empty fields change nothing."""
        changes: dict[str, Any] = {}
        if visit.field("epsilon") or visit.field("delta"):
            changes["limit"] = _limit(visit)
        if visit.field("days"):
            changes["period"] = _period(visit)
        if visit.field("mode"):
            changes["mode"] = visit.field("mode")
        return changes

    def _detail(self, visit: Visit, name: str) -> wire.AccountDetail:
        return self._api.account(visit.call(account=name))

    # ---------------------------------------------------------------------------------------------- catalog, ledger

    @page("GET", "/officer/catalog", role="officer")
    def catalog(self, visit: Visit) -> Response:
        """Show the datasets and columns of the catalog, with warnings, and why datasets are unavailable."""
        datasets, unavailable = self._warehouse.catalog.datasets, self._warehouse.unavailable()
        return self._show(visit, "catalog.html", datasets=datasets, unavailable=unavailable)

    @page("GET", "/officer/ledger", role="officer")
    def ledger(self, visit: Visit) -> Response:
        """Show the latest lines of the ledger."""
        return self._ledger(visit)

    @page("POST", "/officer/ledger", role="officer")
    def verify(self, visit: Visit) -> Response:
        """Verify the whole ledger now."""
        return self._ledger(visit, self._api.verify(visit.call()))

    def _ledger(self, visit: Visit, verification: wire.Verification | None = None) -> Response:
        lines = [
            line
            for head in self._manager.store.heads()
            for line in self._api.ledger(visit.call(chain=head.chain, after=max(0, head.seq - 50), limit=50)).lines
        ]
        latest = sorted(lines, key=lambda line: line.time, reverse=True)[:50]
        return self._show(visit, "ledger.html", lines=latest, verification=verification)

    @page("GET", "/officer/ledger.jsonl", role="officer")
    def export(self, visit: Visit) -> Response:
        """Return the whole ledger for an audit, as JSON lines."""

        def lines() -> Iterator[str]:
            for head in self._manager.store.heads():
                after: int | None = 0
                while after is not None:
                    part = self._api.ledger(visit.call(chain=head.chain, after=after, limit=_PAGE))
                    yield from (json.dumps({"chain": head.chain} | line.model_dump()) + "\n" for line in part.lines)
                    after = part.next

        headers = dict(HEADERS) | {"Content-Disposition": 'attachment; filename="ledger.jsonl"'}
        return StreamingResponse(lines(), headers=headers, media_type="application/jsonl")

    @page("GET", "/officer/simulator", role="officer")
    def simulator(self, visit: Visit) -> Response:
        """Show the simulator, with the default parameters on made-up counts."""
        return self._simulator(visit)

    @page("POST", "/officer/simulator", role="officer")
    def simulate(self, visit: Visit) -> Response:
        """Simulate parameters on made-up counts, or on the noisy counts of an answer."""
        return self._simulator(visit)

    def _simulator(self, visit: Visit) -> Response:
        values = {name: visit.field(name) or default for name, _, default in _SIMULATED}
        found, problem = None, None
        try:
            found = simulate(
                Parameters(
                    _fraction(values["epsilon_per"], "epsilon_per"),
                    _fraction(values["delta_per"], "delta_per"),
                    **{name: _whole(value, name) for name, value in values.items() if name not in _FRACTIONS},
                ),
                SystemBits,
                released_counts(visit.field("counts")),
            )
        except DiscreetError as error:
            problem = self._site.problem(visit, error)
        return self._show(
            visit,
            "simulator.html",
            problem,
            fields=[(name, label) for name, label, _ in _SIMULATED],
            values=values,
            counts=visit.field("counts"),
            found=found,
            words="" if found is None else text.guarantee_in_words(found.guarantee.epsilon, found.guarantee.delta),
        )

    # ---------------------------------------------------------------------------------------------- keys

    @page("GET", "/officer/keys", role="admin")
    def keys(self, visit: Visit) -> Response:
        """List API keys."""
        return self._keys(visit)

    @page("POST", "/officer/keys", role="admin")
    def change_keys(self, visit: Visit) -> Response:
        """Create or revoke an API key."""
        try:
            if visit.field("act") == "revoke":
                _read(wire.AdminRequest, {"reason": visit.field("reason")})
                self._api.revoke_key(visit.call(reason=visit.field("reason"), key=visit.field("name")))
                return self._site.redirect(visit, "/officer/keys")
            fields = {
                "account": visit.field("account") or None,
                "roles": visit.fields("role"),
                "label": visit.field("label"),
                "reason": visit.field("reason"),
            }
            return self._keys(visit, made=self._api.make_key(visit.call(), _read(wire.NewKey, fields)))
        except DiscreetError as error:
            return self._keys(visit, problem=self._site.problem(visit, error))

    def _keys(self, visit: Visit, problem: Problem | None = None, made: wire.CreatedKey | None = None) -> Response:
        found = self._api.keys(visit.call(after=visit.request.query_params.get("after"), limit=100))
        accounts = [account.id for account in self._manager.store.accounts()]
        return self._show(visit, "keys.html", problem, keys=found, made=made, accounts=accounts)

    def _show(self, visit: Visit, template: str, problem: Problem | None = None, **values: Any) -> Response:
        key = self._runtime.random(16).hex()
        return self._site.render(
            visit, template, 200 if problem is None else problem.status, problem=problem, key=key, **values
        )


def _read(kind: type[Any], fields: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an instance of *kind*
    return read_body(kind, json.dumps(fields).encode())


def _limit(visit: Visit) -> dict[str, Any]:
    return {"epsilon": _number(visit.field("epsilon"), "epsilon"), "delta": visit.field("delta") or None}


def _period(visit: Visit) -> dict[str, Any]:
    days = visit.field("days")
    if not days:
        return {"kind": "forever"}
    return {"kind": "sliding", "days": int(_number(days, "the number of days"))}


def _number(value: str, name: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise Malformed(f"{name} must be a number") from None


def _fraction(value: str, name: str) -> Fraction:
    try:
        return Fraction(str(float(value)))  # Fraction("1e-999999999") would take too long
    except ValueError:
        raise Malformed(f"{name} must be a number, such as 0.15 or 1e-10") from None


def _whole(value: str, name: str) -> int:
    if not value.isdecimal() or len(value) > 12:
        raise Malformed(f"{name} must be a whole number")
    return int(value)


def _address(account: str) -> str:
    return f"/officer/accounts/{quote(account, safe='/@')}"


def _tree(details: Mapping[str, wire.AccountDetail]) -> Iterator[tuple[str, int]]:
    """Return all accounts with their depth in the tree, each followed by its descendants."""

    def below(parent: str | None, depth: int) -> Iterator[tuple[str, int]]:
        for name in sorted(details):
            if details[name].parent == parent:
                yield name, depth
                yield from below(name, depth + 1)

    return below(None, 0)
