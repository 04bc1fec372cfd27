"""Pages of privacy officers: accounts and their limits, grants, the catalog, the ledger, keys."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from starlette.responses import RedirectResponse, Response, StreamingResponse

from discreet.budget.manager import BudgetManager
from discreet.budget.model import Amount
from discreet.errors import DiscreetError
from discreet.noise import SystemBits
from discreet.release.tables import guarded_cell
from discreet.service.doors.http.operation import Operation
from discreet.service.doors.http.operation import text as text_of
from discreet.service.doors.pages import charts, text
from discreet.service.doors.pages.site import HEADERS, KEY, Site, Visit, fields, number_field, show_disclosure
from discreet.service.officer.admin import ACCOUNT, ACTIVITY, AFTER, QUERIES, AdminAPI
from discreet.service.officer.simulator import SimulatorParameters, parameters_for, released_counts, simulate
from discreet.service.runtime import Runtime
from discreet.warehouse import Warehouse
from discreet.wire import administration as wire
from discreet.wire.problems import Problem
from discreet.wire.queries import Malformed, read_body

TEMPLATES = Path(__file__).parent / "templates"

DAYS = 30
"""Days of history in charts and previews."""

_PAGE = 1_000
_ENTRIES = 50

_KINDS = (
    ("", "queries and changes"),
    ("queries", "all queries"),
    *((kind, f"queries {kind}") for kind in ("answered", "repeated", "refused", "failed", "cancelled", "running")),
    ("changes", "all changes"),
    ("account", "changes of accounts"),
    ("grant", "grants"),
    ("key", "API keys"),
    ("store", "changes of the store"),
    ("upkeep", "upkeep"),
    ("all", "everything"),
)
_COLUMNS = (
    *("time", "kind", "account", "dataset", "what", "filter", "mechanism"),
    *("epsilon_held", "epsilon_charged", "share_of_limit", "rho_held", "delta_held", "rho_charged", "delta_charged"),
    *("refused_by", "actor", "name", "changes", "reason", "lines"),
)

_SIMULATED = {
    "epsilon": (
        number_field("epsilon", "ε of a query", 1e-3, 100.0, 0.5),
        number_field("delta", "δ of a query", 1e-20, 0.5, 1e-9),
        number_field("limit_epsilon", "ε of the budget", 1e-3, 100.0, 5.0),
        number_field("limit_delta", "δ of the budget", 1e-20, 0.49, 1e-7),
    ),
    "steps": (
        number_field("epsilon_per", "ε of a step", 1e-6, 10.0, 0.15),
        number_field("delta_per", "δ of a call", 1e-30, 0.5, 1e-10),
        number_field("information", "Steps in a period (k*)", 1, 10**9, 3_000),
        number_field("calls", "Calls in a period (l*)", 1, 10**6, 100),
    ),
}
"""The privacy parameters of a simulation with their labels, by their units."""

_SHAPE = (
    number_field("k", "Items asked (k)", 1, 1_000, 10),
    number_field("head_limit", "Items read (d̄)", 1, 20_000, 1_000),
    number_field("days", "Days of a period", 1, 10**6, 30),
    number_field("largest", "Users of the largest item", 1, 10**9, 10_000),
)
"""The other parameters of a simulation, with their labels."""

_SIMULATION = (*_SIMULATED["epsilon"], *_SIMULATED["steps"], *_SHAPE, *fields("units", "counts"))

_LIMIT = (number_field("epsilon", "The limit.", 0.0, 1e6), *fields("delta"), number_field("days", "Period.", 1, 10**6))
_CHANGE = (ACCOUNT, *fields("act", "dataset", "table", "columns", "mode", "reason"), *_LIMIT, KEY)


class OfficerPages:
    """Pages of officers; the pages about keys are for admins."""

    def __init__(
        self, site: Site, api: AdminAPI, manager: BudgetManager, warehouse: Warehouse, runtime: Runtime
    ) -> None:
        self._site = site
        self._api = api
        self._manager = manager
        self._warehouse = warehouse
        self._runtime = runtime

    # ---------------------------------------------------------------------------------------------- accounts

    @Operation(
        "POST",
        "/officer",
        role="officer",
        parameters=(*fields("account", "parent", "mode", "reason"), *_LIMIT, KEY),
    )
    def create_account(self, visit: Visit) -> Response:
        """Create an account."""
        try:
            fields = {
                "account": visit.text("account"),
                "parent": visit.text("parent") or None,
                "limit": {"epsilon": visit["epsilon"], "delta": visit.text("delta") or None},
                "period": _period(visit),
                "mode": visit.text("mode") or "enforce",
                "reason": visit.text("reason"),
            }
            self._api.create_account(visit.call(), _read(wire.NewAccount, fields))
        except DiscreetError as error:
            return self.accounts(visit, self._site.problem(visit, error))
        return RedirectResponse(_address(visit.text("account")), 303)

    @Operation("GET", "/officer", role="officer")
    def accounts(self, visit: Visit, problem: Problem | None = None) -> Response:
        """Show the tree of accounts, and their daily spending in the last days."""
        details = {account.id: self._detail(visit, account.id) for account in self._manager.store.accounts()}
        spending = self._api.spending(visit.call(days=DAYS))
        spent = {row.account: row.rho for row in spending.accounts}
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
        week = self._api.activity(
            visit.call(account=None, dataset=None, kind=None, since=None, until=None, after=None, limit=1)
        )
        return self._show(
            visit,
            "officer.html",
            problem,
            rows=rows,
            spending=spending,
            days=DAYS,
            unavailable=list(self._warehouse.unavailable()),
            replaced=sorted(self._warehouse.replaced()),
            week=week.spent[:5],
            labels=self._labels(visit),
            elapsed=_elapsed(spending),
            ledger=lambda account: f"/officer/ledger?{urlencode({'account': account})}",
        )

    @Operation("POST", "/officer/accounts/{account:path}", role="officer", parameters=_CHANGE)
    def change_account(self, visit: Visit) -> Response:
        """Process a posted form: preview or apply settings, suspend or lift that, grant or revoke."""
        name = visit["account"]
        act = visit.text("act")
        reason = {"reason": visit.text("reason")}
        call = visit.call(account=name, dataset=visit.text("dataset"), reason=visit.text("reason"))
        try:
            match act:
                case "preview":
                    tried = _read(wire.AccountChanges, self._changes(visit))
                    return self.account(visit, preview=self._api.preview(visit.call(account=name, days=DAYS), tried))
                case "apply":
                    self._api.change_account(call, _read(wire.ChangedAccount, self._changes(visit) | reason))
                case "lift":
                    self._api.lift(call, _read(wire.AdminRequest, reason))
                case "suspend":
                    self._api.suspend(call, _read(wire.AdminRequest, reason))
                case "grant":
                    columns = [part.strip() for part in visit.text("columns").split(",") if part.strip()]
                    self._api.grant(call, _read(wire.NewGrant, {"columns": columns or None} | reason))
                case "publish" | "unpublish":
                    published = _read(wire.Publication, {"published": act == "publish"} | reason)
                    self._api.publish_table(visit.call(account=name, name=visit.text("table")), published)
                case "erased":
                    erased = _read(wire.AdminRequest, reason)
                    self._api.allow_erased(visit.call(name=visit.text("table")), erased)
                case "revoke":
                    _read(wire.AdminRequest, reason)
                    self._api.revoke_grant(call)
                case _:
                    raise Malformed("there is no such form")
        except DiscreetError as error:
            return self.account(visit, problem=self._site.problem(visit, error))
        return RedirectResponse(f"{_address(name)}?done={act}", 303)

    @Operation(
        "GET",
        "/officer/accounts/{account:path}",
        role="officer",
        parameters=(*_CHANGE, text_of("done", "The change before.")),
    )
    def account(self, visit: Visit, problem: Problem | None = None, preview: wire.Preview | None = None) -> Response:
        """Show an account: its balance, its guarantee, its grants, and forms that change them."""
        name = visit["account"]
        detail = self._detail(visit, name)
        if preview is None and detail.mode == "observe":
            preview = self._api.preview(visit.call(account=name, days=DAYS), wire.AccountChanges(mode="enforce"))
        tight = detail.guarantee
        parts = ("limit", "used", "forfeited", "held", "left")
        balance = self._manager.get(name).balance
        return self._show(
            visit,
            "account.html",
            problem,
            detail=detail,
            address=_address(name),
            bar=text.budget_bar(detail),
            over=not Amount.of(balance.spent).within(Amount.of(balance.account.limit)),
            shares={part: getattr(detail, part).share_of(detail.limit) for part in parts}
            | {"left": detail.left.left_of(detail.limit)},
            ledger=f"/officer/ledger?{urlencode({'account': name})}",
            tight=tight,
            words=None if tight is None else text.guarantee_in_words(tight.epsilon, tight.delta),
            published=self._manager.get(name).published,
            registered=self._api.registered,
            grants=self._grants(visit, name),
            inherited=[grant for above in self._above(detail.parent) for grant in self._grants(visit, above)],
            tables=self._api.tables_of(name),
            streams=[one for one in self._api.running_counts(visit.call()).streams if one.account == name],
            datasets=list(self._warehouse.catalog.datasets),
            preview=preview,
            days=DAYS,
            act=visit.text("act"),
            done=visit["done"] if "done" in visit.declared else None,
            values={field: visit.text(field) for field in ("epsilon", "delta", "days", "mode", "reason", "columns")},
        )

    def _changes(self, visit: Visit) -> dict[str, Any]:
        """Return the changes in the form; empty fields change nothing."""
        changes: dict[str, Any] = {}
        if visit["epsilon"] is not None or visit.text("delta"):
            if visit["epsilon"] is None:
                raise Malformed("a new delta needs epsilon, too: together they are the limit")
            delta = visit.text("delta") or str(self._manager.store.account(visit["account"]).delta)
            changes["limit"] = {"epsilon": visit["epsilon"], "delta": delta}
        if visit["days"] is not None:
            changes["period"] = _period(visit)
        if visit.text("mode"):
            changes["mode"] = visit.text("mode")
        return changes

    def _grants(self, visit: Visit, name: str) -> list[wire.Grant]:
        return self._api.grants(visit.call(account=name, after=None, limit=1_000)).grants

    def _above(self, name: str | None) -> Iterator[str]:
        while name is not None:
            yield name
            name = self._manager.store.account(name).parent

    def _labels(self, visit: Visit) -> dict[str, str]:
        """Return the labels of the API keys of each account, with commas between them."""
        labels: dict[str, list[str]] = {}
        for key in self._api.keys(visit.call(after=None, limit=1_000)).keys:
            if key.account is not None and key.label:
                labels.setdefault(key.account, []).append(key.label)
        return {account: ", ".join(dict.fromkeys(texts)) for account, texts in labels.items()}

    def _detail(self, visit: Visit, name: str) -> wire.AccountDetail:
        return self._api.account(visit.call(account=name))

    @Operation("GET", "/officer/disclosure", role="officer", parameters=fields("account", "dataset", "as"))
    def disclosure(self, visit: Visit) -> Response:
        """Show what may be published about an account or a dataset: a page to print, JSON or a registry entry."""
        parameters = {name: visit.text(name) or None for name in ("account", "dataset")}
        return show_disclosure(self._api.disclosure(visit.call(**parameters)), visit.text("as") or "html")

    # ---------------------------------------------------------------------------------------------- catalog, ledger

    @Operation("POST", "/officer/catalog", role="officer", parameters=(*fields("reason", "done"), KEY))
    def reload_catalog(self, visit: Visit) -> Response:
        """Read the catalog file again."""
        try:
            self._api.reload_catalog(visit.call(), _read(wire.AdminRequest, {"reason": visit.text("reason")}))
        except DiscreetError as error:
            return self.catalog(visit, self._site.problem(visit, error))
        return RedirectResponse("/officer/catalog?done=1", 303)

    @Operation("GET", "/officer/catalog", role="officer", parameters=fields("done"))
    def catalog(self, visit: Visit, problem: Problem | None = None) -> Response:
        """Show the datasets and columns of the catalog, with warnings, and why datasets are unavailable."""
        datasets = self._warehouse.catalog.datasets
        unavailable = self._warehouse.unavailable()
        most = self._api.settings(visit.call())  # those of the service apply, too
        limits = {
            name: {
                "k": min(dataset.max_k or most.max_k, most.max_k),
                "head": min(dataset.max_head_limit or most.max_head_limit, most.max_head_limit),
            }
            for name, dataset in datasets.items()
        }
        return self._show(
            visit,
            "catalog.html",
            problem,
            datasets=datasets,
            replaced=self._warehouse.replaced(),
            reloaded=problem is None and visit.text("done") == "1",
            unavailable=unavailable,
            limits=limits,
            registered=self._api.registered,
        )

    @Operation("POST", "/officer/ledger", role="officer", parameters=(*ACTIVITY, AFTER))
    def verify(self, visit: Visit) -> Response:
        """Verify the whole ledger now."""
        return self.ledger(visit, self._api.verify(visit.call()))

    @Operation("GET", "/officer/ledger", role="officer", parameters=(*ACTIVITY, AFTER))
    def ledger(self, visit: Visit, verification: wire.Verification | None = None) -> Response:
        """Show queries and actions: who asked or changed what, and for how much."""
        page = None
        problem = None
        shown = {field.name: visit.text(field.name) for field in (*ACTIVITY, AFTER) if visit.text(field.name)}
        try:
            filters = {field.name: visit[field.name] for field in (*ACTIVITY, AFTER)}
            page = self._api.activity(visit.call(**filters, limit=_ENTRIES))
        except DiscreetError as error:
            problem = self._site.problem(visit, error)
        today = self._runtime.clock().astimezone(UTC).date()
        week, month = (f"{today - timedelta(days=days - 1)}" for days in (7, 30))
        filters = {field.name: None for field in ACTIVITY} | {"since": week} | shown

        def link(**changes: str | None) -> str:
            parameters = {name: value for name, value in {**filters, "after": None, **changes}.items() if value}
            return f"/officer/ledger?{urlencode(parameters)}"

        return self._show(
            visit,
            "ledger.html",
            problem,
            found=page,
            late=page is not None and page.since[:10] > filters["since"],
            filters=filters,
            link=link,
            query=urlencode({name: value for name, value in filters.items() if value and name != "after"}),
            presets=(
                ("Today", f"{today}"),
                ("7 days", week),
                ("30 days", month),
                ("A year", f"{today - timedelta(364)}"),
            ),
            kinds=_KINDS,
            queries=QUERIES,
            accounts=[account.id for account in self._manager.store.accounts()],
            datasets=list(self._warehouse.catalog.datasets),
            verification=verification,
            labels=self._labels(visit),
        )

    @Operation("GET", "/officer/ledger.csv", role="officer", parameters=ACTIVITY)
    def export_csv(self, visit: Visit) -> Response:
        """Return the queries and actions that fit the filters, as CSV; the last row says if some are missing."""
        complete_from, entries = self._entries(visit)

        def parts() -> Iterator[str]:
            text_ = io.StringIO()
            writer = csv.writer(text_, lineterminator="\r\n")
            writer.writerow(_COLUMNS)
            for entry in entries:
                own = entry.needed or next(iter(entry.charges), None)
                changes = "; ".join(f"{change.setting}: {change.old} -> {change.new}" for change in entry.changes)
                row = [
                    *(entry.time, entry.kind, entry.account, entry.dataset),
                    text.asked(entry) if entry.kind in QUERIES else text.acted(entry),
                    *(entry.where, entry.mechanism),
                    *((own.epsilon_held, own.epsilon_charged, own.share_charged) if own else (None,) * 3),
                    *((own.held.rho, own.held.delta, own.charged.rho, own.charged.delta) if own else (None,) * 4),
                    *(entry.refused_by, entry.actor, entry.name, changes, entry.reason, " ".join(entry.lines)),
                ]
                writer.writerow(map(guarded_cell, row))
                yield text_.getvalue()
                text_.seek(0)
                text_.truncate()
            if complete_from is not None:
                writer.writerow([complete_from, "incomplete", None, None, _REMOVED])
            yield text_.getvalue()

        return _download(parts(), "ledger.csv", "text/csv")

    @Operation("GET", "/officer/ledger.json", role="officer", parameters=ACTIVITY)
    def export_json(self, visit: Visit) -> Response:
        """Return the queries and actions that fit the filters, as a JSON list.

        If earlier ones are missing, the last element says so.
        """
        complete_from, entries = self._entries(visit)

        def parts() -> Iterator[str]:
            yield "["
            separator = "\n"
            for entry in entries:
                yield separator + entry.model_dump_json()
                separator = ",\n"
            if complete_from is not None:
                yield separator + json.dumps({"time": complete_from, "kind": "incomplete", "reason": _REMOVED})
            yield "\n]\n"

        return _download(parts(), "ledger.json", "application/json")

    def _entries(self, visit: Visit) -> tuple[str | None, Iterator[wire.Activity]]:
        """Return what `AdminAPI.export_activity` does; a mistake in the filters raises here."""
        return self._api.export_activity(visit.call(**{field.name: visit[field.name] for field in ACTIVITY}))

    @Operation("GET", "/officer/ledger.jsonl", role="officer")
    def export(self, visit: Visit) -> Response:
        """Return the whole ledger for an audit, as JSON lines."""

        def lines() -> Iterator[str]:
            for head in self._manager.store.heads():
                after: int | None = 0
                while after is not None:
                    part = self._api.ledger(visit.call(chain=head.chain, after=after, limit=_PAGE))
                    yield from (json.dumps({"chain": head.chain} | line.model_dump()) + "\n" for line in part.lines)
                    after = part.next

        return _download(lines(), "ledger.jsonl", "application/jsonl")

    @Operation("POST", "/officer/simulator", role="officer", parameters=_SIMULATION)
    def simulate(self, visit: Visit) -> Response:
        """Simulate parameters on made-up counts, or on the noisy counts of an answer."""
        return self.simulator(visit)

    @Operation("GET", "/officer/simulator", role="officer", parameters=_SIMULATION)
    def simulator(self, visit: Visit) -> Response:
        """Show the simulator, with the default parameters on made-up counts."""
        units = "steps" if visit.text("units") == "steps" else "epsilon"
        shown = (*_SIMULATED[units], *_SHAPE)
        values = {field.name: visit.text(field.name) or f"{field.schema['default']:g}" for field in shown}
        result = None
        problem = None
        try:
            tried = {field.name: visit[field.name] for field in shown}
            exact = {name: Fraction(str(tried[name])) for name in tried if "delta" in name or name == "epsilon_per"}
            parameters = (SimulatorParameters if units == "steps" else parameters_for)(**{**tried, **exact})
            result = simulate(parameters, SystemBits, released_counts(visit.text("counts")))
        except DiscreetError as error:
            problem = self._site.problem(visit, error)
        return self._show(
            visit,
            "simulator.html",
            problem,
            units=units,
            fields=[(field.name, field.description) for field in shown],
            values=values,
            counts=visit.text("counts"),
            found=result,
            words="" if result is None else text.guarantee_in_words(result.guarantee.epsilon, result.guarantee.delta),
        )

    # ---------------------------------------------------------------------------------------------- keys

    @Operation(
        "POST",
        "/officer/keys",
        role="admin",
        parameters=(*fields("act", "name", "account", "label", "reason"), *fields("role", many=True), AFTER, KEY),
    )
    def change_keys(self, visit: Visit) -> Response:
        """Create or revoke an API key."""
        try:
            if visit.text("act") == "revoke":
                _read(wire.AdminRequest, {"reason": visit.text("reason")})
                self._api.revoke_key(visit.call(reason=visit.text("reason"), key=visit.text("name")))
                return RedirectResponse("/officer/keys", 303)
            fields = {
                "account": visit.text("account") or None,
                "roles": visit["role"],
                "label": visit.text("label"),
                "reason": visit.text("reason"),
            }
            return self.keys(visit, created=self._api.make_key(visit.call(), _read(wire.NewKey, fields)))
        except DiscreetError as error:
            return self.keys(visit, problem=self._site.problem(visit, error))

    @Operation("GET", "/officer/keys", role="admin", parameters=(AFTER,))
    def keys(self, visit: Visit, problem: Problem | None = None, created: wire.CreatedKey | None = None) -> Response:
        """List API keys."""
        page = self._api.keys(visit.call(after=visit["after"], limit=100))
        accounts = [account.id for account in self._manager.store.accounts()]
        return self._show(visit, "keys.html", problem, keys=page, made=created, accounts=accounts)

    def _show(self, visit: Visit, template: str, problem: Problem | None = None, **values: Any) -> Response:
        key = self._runtime.random(16).hex()
        return self._site.render(
            visit, template, 200 if problem is None else problem.status, problem=problem, key=key, **values
        )


_REMOVED = "the ledger's lines before this time were moved to an archive; discreet ledger verify --archive reads it"


def _download(parts: Iterator[str], name: str, media_type: str) -> Response:
    headers = dict(HEADERS) | {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(parts, headers=headers, media_type=media_type)


def _read(kind: type[Any], fields: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an instance of *kind*
    return read_body(kind, json.dumps(fields).encode())


def _period(visit: Visit) -> dict[str, Any]:
    return {"kind": "forever"} if visit["days"] is None else {"kind": "sliding", "days": visit["days"]}


def _elapsed(spending: wire.Spending) -> int:
    """Return the number of days from the first charge to today, at least 1."""
    begins = (
        n for row in spending.accounts for n, parts in enumerate(zip(row.rho, row.delta, strict=True)) if any(parts)
    )
    return max(1, len(spending.days) - min(begins, default=len(spending.days)))


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
