"""Pages of analysts: the query form, answers, the budget."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from starlette.responses import RedirectResponse, Response

from discreet.budget.errors import ReleaseDamaged
from discreet.budget.ledger import canonical
from discreet.budget.model import AdminAction
from discreet.budget.rules import microseconds
from discreet.budget.stores.store import BudgetStore
from discreet.catalog.model import Catalog
from discreet.engines.sql import quoted, text_literal
from discreet.errors import DiscreetError, InputError, NotFound
from discreet.query.canonical import listed_values
from discreet.query.json import from_dict
from discreet.query.planning import MAX_EPSILON, MIN_EPSILON
from discreet.query.predicates import bind_where
from discreet.query.query import ROWS_NOTE, Measure, Select
from discreet.query.saved import read_change
from discreet.query.sql import condition, is_select, parse_select, to_sql
from discreet.query.statement import MAX_QUERIES, without_comments
from discreet.release.periods import Covered
from discreet.release.tables import shortened
from discreet.service.answering.pool import WrittenRows
from discreet.service.answering.statements import paid_release
from discreet.service.doors.http.operation import MEDIA_TYPES, Operation, charged_header, content_headers, represent
from discreet.service.doors.http.operation import text as text_of
from discreet.service.doors.http.query import BEFORE, RELEASE_ID, TABLE_NAME, QueryAPI
from discreet.service.doors.pages import charts, filters, periods, text
from discreet.service.doors.pages.site import HEADERS, KEY, Site, Visit, fields, number_field, show_disclosure
from discreet.service.middleware import run_in_thread
from discreet.service.runtime import Runtime
from discreet.service.settings import Settings
from discreet.values import Cost
from discreet.wire import document
from discreet.wire.disclosure import release_sheet
from discreet.wire.document import Form
from discreet.wire.queries import (
    BudgetReport,
    DatasetDetail,
    Estimate,
    HistoryEntry,
    SavedTableDetail,
    Spend,
    StatementAnswer,
    StatementRequest,
    iso_time,
    read_body,
)

_EPSILON = number_field("epsilon", "Privacy to spend.", MIN_EPSILON, MAX_EPSILON)
_QUERY = (
    *fields("from", "dataset", "measure", "each", "where", "sql"),
    *fields("item", "pick", "filter", "low", "high", "preset", many=True),
    number_field("k", "The number of items.", 1, 10**9),
    text_of("shared", "same or other after a link to an answer that another account has paid for."),
    _EPSILON,
)
"""The fields of the form for a query: the builder's, or a statement."""

_MAX_ROLLUP = MAX_QUERIES - 1
"""The largest number of columns whose totals are one statement."""

_FILTERS = ("pick", "filter", "low", "high", "preset")
"""The fields of the builder for filters; filter, low and high have a value for each column with a range."""

_FREE = text_of("free", "1 after an answer that was free.")

_MEASURES = {"users": "users", "rows": "rows", "sum": "sum of", "average": "average of"}
_MAX_LINK_LENGTH = 6_000
"""The maximum length of a link that every proxy accepts, in characters."""

_MAX_SHOWN = 1_000
"""The maximum of items on a page; files contain all of them."""

_MAX_CHARTS = 24
"""The most answers on the dashboard."""

_MAX_SMALL = 6
"""The most bars of an answer on the dashboard."""

_MAX_PAGES = 10
"""The most pages of 100 answers that one search reads."""

_NAMES = "names"
_STATEMENTS = "statements"
"""The kinds of the records with the names of answers, and with the last statements, by account."""

_MAX_STATEMENTS = 75
"""The most statements in the list of answers that have a name, and that have none; so they fit into a record."""

_MAX_NAMES = 4_000
_MAX_NAME_LENGTH = 120


class AnalystPages:
    """Pages of analysts."""

    def __init__(self, site: Site, api: QueryAPI, store: BudgetStore, settings: Settings, runtime: Runtime) -> None:
        self._site = site
        self._api = api
        self._store = store
        self._settings = settings
        self._runtime = runtime

    # ---------------------------------------------------------------------------------------------- ask

    @Operation("POST", "/ask", role="analyst", parameters=(*_QUERY, KEY, _FREE))
    async def ask(self, visit: Visit) -> Response:
        """Submit the query or statement of the form, and redirect to its answer."""
        if visit.text("from"):  # without scripts, a button rebuilds the statement from the fields
            one = ("from", "dataset", "measure", "each", "where", "k", "epsilon")
            many = ("item", *_FILTERS)
            typed = {name: visit.text(name) for name in one} | {name: visit.texts(name) for name in many}
            return RedirectResponse(f"/ask?{urlencode(typed, doseq=True)}", 303)
        try:
            if not is_select(visit.text("sql")):
                body = _body_of(visit, intervals=True)
                answered, _ = await self._api.answer_statement(visit.call(), body, "json", _MAX_SHOWN)
                return await run_in_thread(self._redirect_to_statement, visit, answered)
            answer = await self._api.query(visit.call(), _body_of(visit))
        except DiscreetError as error:
            return await self.show_form(visit, error)
        name = answer.headers["discreet-release"]
        free = "?free=1" if answer.headers["discreet-charged"] == charged_header(Cost()) else ""
        return RedirectResponse(f"/answers/{name}{free}", 303)

    def _statements(self, visit: Visit) -> dict[str, dict[str, Any]]:
        """Return the last statements of the account with the fields of their links, by id; all that have a name."""
        return _entries(self._store.record(_STATEMENTS, visit.call().account))

    def _redirect_to_statement(self, visit: Visit, answered: WrittenRows) -> Response:
        """Redirect to the page of a statement's answer; show it directly without queries or if the link is too long."""
        change = read_change(without_comments(visit.text("sql")))
        if change is not None:
            name = change.sql if change.action == "rename" else change.name
            return RedirectResponse("/tables" if change.action.startswith("drop") else _table_path(name.lower()), 303)
        released = [query.id for query in answered.queries if query.id]
        shown = {"sql": visit.text("sql").replace("\r\n", "\n"), "epsilon": visit.text("epsilon"), "release": released}
        link = _link_of(shown)
        if not answered.queries or len(link) > _MAX_LINK_LENGTH:
            return self._show_rows(visit, answered, None)
        call = visit.call()
        if released:
            action = AdminAction(call.caller.actor, "asked a statement", name=call.caller.label)

            def listed(store: BudgetStore) -> None:
                def with_shown(text: str | None) -> str | None:
                    entries = _entries(text)
                    if _id_of(shown) in entries:
                        return text
                    entries[_id_of(shown)] = {**shown, "time": iso_time(microseconds(self._runtime.clock()))}
                    names = _entries(store.record(_NAMES, call.account))
                    unnamed = sorted(entries.keys() - names.keys(), key=lambda id_: str(entries[id_]["time"]))
                    for id_ in unnamed[:-_MAX_STATEMENTS]:
                        del entries[id_]
                    return canonical(entries)

                store.change_record(_STATEMENTS, call.account, with_shown, action)

            self._store.together(listed)
        free = not any(query.charged.rho or query.charged.delta for query in answered.queries)
        return RedirectResponse(f"{link}&free=1" if free else link, 303)

    @Operation("GET", "/ask", role="analyst", parameters=_QUERY)
    async def show_form(self, visit: Visit, error: Exception | None = None) -> Response:
        """Show the form for a query, with the estimated cost.

        Args:
            visit: its form holds a statement, or the parts of a query.
            error: the reason why the query was not answered.
        """
        datasets = (await run_in_thread(self._api.datasets, visit.call())).datasets
        budget: BudgetReport = await run_in_thread(self._api.budget, visit.call())
        if not datasets:
            return self._site.render(visit, "no_datasets.html", budget=budget)
        sql = "" if visit.text("from") else visit.text("sql")
        names = {dataset.name for dataset in datasets}
        query: Select | None = None  # None for a statement that is not a single query
        if sql:
            with contextlib.suppress(InputError):
                query = parse_select(sql, self._runtime.clock().date().isoformat())
        name = visit.text("dataset") if query is None else query.dataset
        detail: DatasetDetail = await run_in_thread(
            self._api.dataset, visit.call(name=name if name in names else datasets[0].name)
        )
        picks, rest = filters.filters_of(detail, None if query is None else query.where, self._runtime.clock().date())
        where = "" if rest is None else condition(rest)
        if not sql:
            # the ten items with the most users, as an example; of times and decimals hardly any would have enough users
            columns = sorted(
                (column for column in detail.columns if column.group),
                key=lambda column: (filters.is_fine(column), column.known_domain),
            )
            items = tuple(column.name for column in columns[:1])
            k = min(10, detail.max_k or 10) if items else None
            query = Select(detail.name, items, Measure("users", detail.user), None, k)
            clause = ""
            if visit.text("from") and name in names:
                where = visit.text("where")
                ranges = zip(*map(visit.texts, ("filter", "low", "high")), strict=False)
                picks = filters.typed_filters(picks, visit.texts("pick"), ranges, visit.texts("preset"))
                try:
                    query = _built_query(visit, detail)
                    clause = filters.written(picks, where)
                except InputError as refused:
                    error = error or refused
            sql = to_sql(query, clause or None)
            with contextlib.suppress(InputError):
                query = parse_select(sql, self._runtime.clock().date().isoformat())
        price: dict[str, Any] | None = None
        try:
            price = await self._estimate_cost(visit, sql, budget)
        except DiscreetError as refused:
            error = error or refused
        problem = None if error is None else self._site.problem(visit, error)
        cost = None if price is None or price["free"] else price["cost"]
        usual = self._settings.defaults.epsilon
        return self._site.render(
            visit,
            "ask.html",
            200 if problem is None or visit.request.method == "GET" else problem.status,
            datasets=datasets,
            dataset=detail,
            query=query,
            measures=_MEASURES,
            filters=picks,
            where=where,
            shared=visit.text("shared"),
            hints=[] if query is None else filters.hints(query, detail),
            sql=sql,
            epsilon=visit.text("epsilon") or ("" if usual is None else f"{usual:g}"),
            price=price,
            budget=budget,
            bar=text.budget_bar(budget, cost),
            problem=problem,
            place=None if problem is None else text.place_of(problem),
            key=self._runtime.random(16).hex(),
        )

    async def _estimate_cost(self, visit: Visit, sql: str, budget: BudgetReport) -> dict[str, Any]:
        """Estimate the cost and the errors of a query, or of all queries of a statement, for the template."""
        body = _body_of(visit, sql)
        queries: list[tuple[str, Estimate | None]]
        single_query = is_select(sql)
        if single_query:
            single = await self._api.estimate(visit.call(), body)
            queries = [("", single)]
            cost = single.worst_cost
            fits = single.fits
            left = single.queries_left
            runs_out = single.runs_out
        else:
            statement = read_body(StatementRequest, body)
            whole = await self._api.estimate_statement(visit.call(), statement)
            queries = [(query.sql, query.estimate) for query in whole.queries]
            cost = whole.worst_cost
            fits = whole.fits
            left = None
            runs_out = None
        return {
            "statement": not single_query,
            "free": all(estimate is None or estimate.paid for _, estimate in queries)
            and (single_query or not (cost.rho or cost.delta)),  # a saved table of another account is no query
            "cost": cost,
            "share": cost.share_of(budget.limit),
            "over": cost.share_of(budget.left) == 1,
            "fits": fits,
            "left": left,
            "runs_out": runs_out,
            "queries": [
                {
                    "sql": sql_,
                    "free": estimate is None or estimate.paid,
                    "expected": []
                    if estimate is None
                    else text.expected_error(estimate.expected, estimate.question["measure"]["kind"]),
                    "daily": None if estimate is None else text.daily_price(estimate),
                    "notes": [] if estimate is None else estimate.notes,
                }
                for sql_, estimate in queries
            ],
        }

    @Operation(
        "GET",
        "/statements",
        role="analyst",
        parameters=(*fields("sql", "as"), *fields("release", many=True), _EPSILON, _FREE),
    )
    async def statement(self, visit: Visit) -> Response:
        """Show the answer of a statement, computed from the releases in its link, or return it as a file."""
        form = next((name for name in MEDIA_TYPES if visit.text("as") == name), None)
        max_rows = _MAX_SHOWN if form is None else None
        sql = visit.text("sql")
        releases = visit["release"]
        try:
            answered = await self._api.recompute(visit.call(), sql, releases, form or "json", max_rows)
        except NotFound:
            if form is not None or not releases:
                raise
            shared = {"sql": sql, "epsilon": visit.text("epsilon"), "shared": "other"}  # a colleague's
            return RedirectResponse(f"/ask?{urlencode(shared)}", 303)
        if form is not None:
            return _file(answered.content, "answer", form)
        link = f"/statements?{visit.request.url.query.removesuffix('&free=1')}"
        return self._show_rows(visit, answered, link)

    def _show_rows(self, visit: Visit, answered: WrittenRows, link: str | None) -> Response:
        """Show the first rows of a statement, with *link* as the permanent link unless it is None."""
        answer = StatementAnswer.model_validate_json(answered.content)
        sql = visit.text("sql").replace("\r\n", "\n")
        url = str(visit.request.base_url).rstrip("/")
        epsilon = visit["epsilon"]
        price = {} if epsilon is None else {"epsilon": epsilon}
        id_ = _id_of({"sql": sql, "epsilon": visit.text("epsilon"), "release": visit.texts("release")}) if link else ""
        return self._site.render(
            visit,
            "statement.html",
            id=id_ if id_ in self._statements(visit) else None,
            name=self._names(visit).get(id_),
            title=shortened(" ".join(sql.split())),
            notes=list(dict.fromkeys(query.note for query in answer.queries if query.note is not None)),
            **_drawn_rows(answer, self._covered_rows(visit, answer)),
            sql=sql,
            releases=[query.id for query in answer.queries if query.id],
            key=self._runtime.random(16).hex(),
            charged=Spend(
                rho=math.fsum(query.charged.rho for query in answer.queries),
                delta=math.fsum(query.charged.delta for query in answer.queries),
            ),
            budget=self._api.budget(visit.call()),
            left_out=answered.rows - len(answer.rows),
            free=visit.text("free") == "1",
            link=link,
            snippets=text.snippets(sql, price, url, "sql"),
            again=f"/ask?{urlencode({'sql': sql, **price})}",
        )

    # ---------------------------------------------------------------------------------------------- saved tables

    @Operation(
        "POST", "/tables", role="analyst", parameters=(KEY, *fields("name", "sql"), *fields("release", many=True))
    )
    async def save(self, visit: Visit) -> Response:
        """Save the answers on a page as a table; nothing is queried or charged."""
        sql = visit.text("sql").replace("\r\n", "\n")
        new = {"sql": sql, "releases": visit["release"], "replace": False}
        saved = await self._api.save_table(visit.call(name=visit.text("name")), json.dumps(new).encode())
        return RedirectResponse(_table_path(saved.name), 303)

    @Operation("GET", "/tables", role="analyst")
    def tables(self, visit: Visit) -> Response:
        """List the saved tables of the account, and those that are published to it."""
        tables = self._api.tables(visit.call()).tables
        return self._site.render(visit, "tables.html", tables=tables, account=visit.call().account)

    @Operation("POST", "/tables/{name:path}", role="analyst", parameters=(TABLE_NAME, KEY, *fields("act", "value")))
    async def change_table(self, visit: Visit) -> Response:
        """Rename or drop a saved table, or change its comment."""
        table = await run_in_thread(self._api.table, visit.call(name=visit["name"]))
        named = f"{table.kind.upper()} saved.{quoted(table.name)}"
        value = visit.text("value")
        forms = {
            "rename": f"ALTER {named} RENAME TO saved.{quoted(value)}",
            "comment": f"COMMENT ON {named} IS {text_literal(value)}",
            "drop": f"DROP {named}",
        }
        act = visit.text("act")
        if act not in forms:
            raise NotFound
        await self._api.answer_statement(visit.call(), json.dumps({"sql": forms[act]}).encode(), "json")
        shown = {"rename": _table_path(value.lower()), "comment": _table_path(table.name), "drop": "/tables"}
        return RedirectResponse(shown[act], 303)

    @Operation("GET", "/tables/{name:path}", role="analyst", parameters=(TABLE_NAME, *fields("as")))
    async def table(self, visit: Visit) -> Response:
        """Show a saved table, or return it as a file; the form with its price if the account has not paid for it."""
        name = visit["name"]
        form = next((media for media in MEDIA_TYPES if visit.text("as") == media), None)
        sql = f"SELECT * FROM saved.{quoted(name)}"  # noqa: S608 - a quoted name
        try:
            detail = await run_in_thread(self._api.table, visit.call(name=name))
        except NotFound:
            if form is not None or "." not in name:
                raise
            return RedirectResponse(f"/ask?{urlencode({'sql': sql, 'shared': 'other'})}", 303)  # a colleague's
        drawn: dict[str, Any] = {"answer": None}
        left_out = 0
        if detail.kind == "table":
            max_rows = _MAX_SHOWN if form is None else None
            shown = _largest_so_far(detail) if detail.running is not None and form is None else sql
            answered = await self._api.recompute(visit.call(), shown, [], form or "json", max_rows)
            if form is not None:
                return _file(answered.content, name, form)
            answer = StatementAnswer.model_validate_json(answered.content)
            drawn = _drawn_rows(answer)
            if detail.running is not None:
                drawn["shown"] = _last_period(drawn["shown"])
            else:
                left_out = answered.rows - len(answer.rows)
        return self._site.render(
            visit,
            "table.html",
            **drawn,
            about=detail,
            own=detail.owner == visit.call().account and detail.running is None,
            left_out=left_out,
            budget=await run_in_thread(self._api.budget, visit.call()),
            link=f"{_table_path(name)}?" if detail.kind == "table" else None,
            key=self._runtime.random(16).hex(),
            snippets=text.snippets(sql, {}, str(visit.request.base_url).rstrip("/"), "sql"),
            ask=f"/ask?{urlencode({'sql': sql})}",
        )

    # ---------------------------------------------------------------------------------------------- answers

    @Operation("GET", "/answers", role="analyst", parameters=(BEFORE, text_of("q", "Words to find.")))
    def history(self, visit: Visit) -> Response:
        """List the answers that the account has paid for, or those with all words of a search."""
        words = visit.text("q").casefold().split()
        names = self._names(visit)
        entries: list[HistoryEntry] = []
        damaged: list[str] = []
        before = visit["before"]
        page = None
        for _ in range(_MAX_PAGES if words else 1):
            page = self._api.releases(visit.call(limit=100 if words else 20, before=before))
            damaged += page.damaged
            for entry in page.releases:
                query = from_dict(entry.question)
                where = "" if query.where is None else condition(query.where)
                title = text.title_of(query, self._site.named)
                shown = (names.get(entry.id, ""), title, *query.items, entry.dataset, where, text.when(entry.time))
                if all(word in " ".join(shown).casefold() for word in words):
                    entries.append(entry)
            before = page.next
            if before is None or len(entries) >= 20:
                break
        statements = {
            id_: {**one, "link": _link_of(one)}
            for id_, one in sorted(self._statements(visit).items(), key=lambda item: str(item[1]["time"]), reverse=True)
            if all(word in f"{names.get(id_, '')} {one['sql']} {text.when(one['time'])}".casefold() for word in words)
        }
        budget = self._api.budget(visit.call())
        return self._site.render(
            visit,
            "answers.html",
            found=entries,
            statements={} if visit["before"] else statements,
            damaged=damaged,
            next=before,
            names=names,
            q=visit.text("q"),
            budget=budget,
        )

    @Operation("POST", "/answers/{id}", role="analyst", parameters=(RELEASE_ID, KEY, *fields("title")))
    def rename(self, visit: Visit) -> Response:
        """Give an answer a name, or take it away; it is for all who use the account."""
        call = visit.call()
        title = visit.text("title")
        statements = self._statements(visit)
        statement = statements.get(visit["id"])
        if statement is None:
            paid_release(self._store, call.account, visit["id"])
        if len(title) > _MAX_NAME_LENGTH or not title.isprintable():
            raise InputError(f"a name has up to {_MAX_NAME_LENGTH} printable characters")

        def named(store: BudgetStore) -> None:
            def with_title(text: str | None) -> str:
                names = _entries(text)
                names.pop(visit["id"], None)
                if title:
                    names[visit["id"]] = title
                if len(names) > _MAX_NAMES:
                    raise InputError(f"an account has names for up to {_MAX_NAMES:,} answers; take one away first")
                listed = _entries(store.record(_STATEMENTS, call.account))
                if statement is not None and visit["id"] not in listed:
                    raise NotFound
                if len(names.keys() & listed.keys()) > _MAX_STATEMENTS:
                    raise InputError(
                        f"an account has names for up to {_MAX_STATEMENTS} statements; take one away first"
                    )
                return canonical(names)

            store.change_record(_NAMES, call.account, with_title, call.action("named an answer"))

        self._store.together(named)
        return RedirectResponse(f"/answers/{visit['id']}" if statement is None else _link_of(statement), 303)

    def _names(self, visit: Visit) -> dict[str, str]:
        """Return the names that the account has given to answers, by id."""
        return _entries(self._store.record(_NAMES, visit.call().account))

    @Operation("GET", "/dashboard", role="analyst", parameters=(text_of("q", "Words of the names."),))
    async def dashboard(self, visit: Visit) -> Response:
        """Show the answers that the account has named beside each other, or those with all words of a search."""
        words = visit.text("q").casefold().split()
        names = [
            (name.casefold(), name, id_)
            for id_, name in (await run_in_thread(self._names, visit)).items()
            if all(word in name.casefold() for word in words)
        ]
        statements = await run_in_thread(self._statements, visit)
        shown = []
        damaged = []
        for _, name, id_ in sorted(names)[:_MAX_CHARTS]:
            try:
                if id_ in statements:
                    drawn = await self._small_statement(visit, statements[id_])
                else:
                    drawn = await run_in_thread(self._small_release, visit, id_)
            except (NotFound, InputError):  # deleted since, when its data was, or not granted any more
                continue
            except ReleaseDamaged:
                damaged.append(name)
            else:
                shown.append({"name": name, "sql": None, **drawn})
        return self._site.render(
            visit,
            "dashboard.html",
            shown=shown,
            damaged=damaged,
            left_out=max(len(names) - _MAX_CHARTS, 0),
            small_items=_MAX_SMALL,
            q=visit.text("q"),
        )

    def _small_release(self, visit: Visit, id_: str) -> dict[str, Any]:
        """Return an answer as the dashboard shows it."""
        release = document.read(bytes(paid_release(self._store, visit.call().account, id_).result))
        query = from_dict(release["question"])
        drawn = self._drawn_release(release, query)
        return {
            **release,
            "title": text.title_of(query, self._site.named, per_user=_is_per_user(release, query)),
            "condition": None if query.where is None else condition(query.where),
            "drawn": drawn,
            "more": len(release["items"]) - _at_once(drawn),
        }

    async def _small_statement(self, visit: Visit, statement: Mapping[str, Any]) -> dict[str, Any]:
        """Return a statement with its first rows, as the dashboard shows it."""
        sql = statement["sql"]
        answered = await self._api.recompute(visit.call(), sql, statement["release"], "json", _MAX_SHOWN)
        answer = StatementAnswer.model_validate_json(answered.content)
        drawn = _drawn_rows(answer, self._covered_rows(visit, answer))
        return {"link": _link_of(statement), "sql": sql, "more": answered.rows - _at_once(drawn["shown"]), **drawn}

    @Operation("GET", "/answers/{id}", role="analyst", parameters=(RELEASE_ID, _FREE))
    async def answer(self, visit: Visit) -> Response:
        """Show an answer, or return it as a file if the id ends in .csv, .parquet, .arrow or .json.

        Redirect to the form with its query, which shows the price, if another account has paid for it.
        """
        name, _, form = visit["id"].partition(".")
        try:
            response = await run_in_thread(self._api.release, visit.call(id=name))
        except NotFound:
            if form:
                raise
            query, epsilon, same = await self._api.shared(visit.call(), name)
            shared = {"sql": to_sql(query), "epsilon": f"{epsilon!r}", "shared": "same" if same else "other"}
            return RedirectResponse(f"/ask?{urlencode(shared)}", 303)
        return await run_in_thread(self._show_answer, visit, bytes(response.body), name, form)

    def _show_answer(self, visit: Visit, content: bytes, name: str, form: str) -> Response:
        for file_form in MEDIA_TYPES:
            if form == file_form:
                return _file(represent(content, file_form), name, file_form)
        if form:
            raise NotFound
        release = document.read(content)
        query = from_dict(release["question"])
        sql = to_sql(query)
        price = {name: release["query"][name] for name in ("epsilon", "delta")}
        url = str(visit.request.base_url).rstrip("/")
        return self._site.render(
            visit,
            "answer.html",
            release=release,
            charged=Spend(**release["charged"]),
            budget=self._api.budget(visit.call()),
            title=text.title_of(query, self._site.named, per_user=_is_per_user(release, query)),
            name=self._names(visit).get(name),
            key=self._runtime.random(16).hex(),
            condition=None if query.where is None else condition(query.where),
            shown=self._drawn_release(release, query),
            left_out=len(release["items"]) - _MAX_SHOWN,
            bites=release["clipped"] is not None and _can_bite(query, release["query"], self._site.catalog),
            rows_note=ROWS_NOTE if query.measure.kind == "rows" else None,
            chosen=text.chosen_for_you(release),
            intervals=text.interval_note_of(release),
            mechanism=text.mechanism_of(release),
            fewer=text.why_fewer_items(release),
            free=visit.text("free") == "1",
            guarantee=text.guarantee_in_words(
                release["privacy"]["epsilon"], release["privacy"]["delta"], "this answer alone"
            ),
            snippets=text.snippets(sql, price, url, "query"),
            again=f"/ask?{urlencode({'sql': sql, 'epsilon': price['epsilon']})}",
            sql=_with_named_value(sql, query),
            releases=[name] if release["query"]["counts"] or release["query"]["summed"] else [],
            totals=_with_totals(query, price["epsilon"], listed=release["query"]["known_domain"]),
        )

    @Operation("GET", "/answers/{id}/sheet", role="analyst", parameters=(RELEASE_ID, *fields("as")))
    def sheet(self, visit: Visit) -> Response:
        """Show what is published beside an answer: a page to print, JSON or a registry entry."""
        release = document.read(bytes(self._api.release(visit.call(id=visit["id"])).body))
        written = iso_time(microseconds(self._runtime.clock()))
        return show_disclosure(release_sheet(release, written, self._settings.disclosure), visit.text("as") or "html")

    def _drawn_release(self, release: Mapping[str, Any], query: Select) -> dict[str, Any]:
        """Return the first items of a release as `_drawn` does."""
        begin = 1 if query.k is not None else 0
        end = begin + len(query.each) + len(query.items)
        types = {
            self._site.named(query.dataset, column["name"]): column["type"] for column in release["columns"][begin:end]
        }
        measured = _MEASURES[query.measure.kind]
        if query.measure.kind in {"sum", "average"}:
            measured += f" {query.measure.column}"
        items = charts.items_of({**release, "items": release["items"][:_MAX_SHOWN]})
        return _drawn(items, types, measured, len(query.each), self._covered(query), ranked=query.k is not None)

    def _covered_rows(self, visit: Visit, answer: StatementAnswer) -> list[Covered | None]:
        """Return the time that rows of a statement are from, if the items of its only query are their first column."""
        if len(answer.queries) != 1 or (id_ := answer.queries[0].id) is None:
            return []
        release = document.read(bytes(paid_release(self._store, visit.call().account, id_).result))
        query = from_dict(release["question"])
        items = {item.labels for item in charts.items_of(release)}
        is_unchanged = {(text.label([row[0]]),) for row in answer.rows} <= items  # no other date was computed
        return self._covered(query) if is_unchanged else []

    def _covered(self, query: Select) -> list[Covered | None]:
        dataset = self._site.catalog.datasets.get(query.dataset)
        columns = {} if dataset is None else dataset.columns
        return [periods.covered(columns, item, query.where, self._runtime.clock()) for item in query.items]

    # ---------------------------------------------------------------------------------------------- budget

    @Operation("GET", "/budget", role="analyst")
    def budget(self, visit: Visit) -> Response:
        """Show the used and remaining budget, and the guarantee."""
        budget = self._api.budget(visit.call())
        sure = budget.guarantee
        words = None if sure is None else text.guarantee_in_words(sure.epsilon, sure.delta)
        return self._site.render(visit, "budget.html", budget=budget, bar=text.budget_bar(budget), words=words)


def _at_once(drawn: Mapping[str, Any]) -> int:
    """Return how many items of an answer the dashboard shows."""
    return _MAX_SHOWN if drawn["line"] or drawn["total"] else _MAX_SMALL


def _link_of(statement: Mapping[str, Any]) -> str:
    shown = {name: statement[name] for name in ("sql", "epsilon", "release")}
    return f"/statements?{urlencode(shown, doseq=True)}"


def _entries(text: str | None) -> dict[str, Any]:
    """Return the entries of a record of names or statements, by id."""
    entries: dict[str, Any] = json.loads(text or "{}")
    return entries


def _id_of(statement: Mapping[str, Any]) -> str:
    return hashlib.sha256(_link_of(statement).encode()).hexdigest()


def _largest_so_far(detail: SavedTableDetail) -> str:
    """Return the statement of all periods of running counts, of the items that are the largest in the last one."""
    period, *items, users = (quoted(column.name) for column in detail.columns)
    names = ", ".join(items)
    table = f"saved.{quoted(detail.name)}"
    last = f"SELECT max({period}) FROM {table}"  # noqa: S608 - quoted names
    most = max(_MAX_SHOWN // len(detail.releases), charts.MAX_SERIES)
    largest = f"SELECT {names} FROM {table} WHERE {period} = ({last}) ORDER BY {users} DESC LIMIT {most}"  # noqa: S608
    return f"SELECT * FROM {table} WHERE ({names}) IN ({largest}) ORDER BY {period}, {users} DESC"  # noqa: S608


def _last_period(shown: dict[str, Any]) -> dict[str, Any]:
    """Return what is drawn of running counts with the items of the last period alone in the table below the lines."""
    if shown["table"] is not None or not shown["items"]:
        return shown
    last = max(item.labels[0] for item in shown["items"])
    items = [item for item in shown["items"] if item.labels[0] == last]
    items.sort(key=lambda item: -float(item.value or 0))
    return shown | {"items": items, "sorted": f"Of {last}, largest first. The files have all periods and items."}


def _table_path(name: str) -> str:
    return f"/tables/{quote(name)}"


def _with_named_value(sql: str, query: Select) -> str:
    """Return the SQL of a query whose value is called n, or n_ if a label has that name."""
    head, _, rest = sql.partition("\n")
    names = {column.casefold() for column in (*query.each, *query.items)}
    return f"{head} AS {'n_' if 'n' in names else 'n'}\n{rest}"


def _with_totals(query: Select, epsilon: float, *, listed: bool) -> str | None:
    """Return the link of the form that asks for totals beside the items of a query; None if they add up without it."""
    if listed or query.k is not None or query.each or not 1 <= len(query.items) <= _MAX_ROLLUP:
        return None
    head, _, groups = _with_named_value(to_sql(query), query).rpartition("GROUP BY ")
    return f"/ask?{urlencode({'sql': f'{head}GROUP BY ROLLUP ({groups})', 'epsilon': epsilon})}"


def _drawn_rows(answer: StatementAnswer, covered: Sequence[Covered | None] = ()) -> dict[str, Any]:
    """Return the rows of a statement as the template of its table shows them."""
    ends = charts.interval_columns(answer.columns)
    noisy = [place for place, column in enumerate(answer.columns) if column.interval is not None]
    places = (noisy[0], *ends[noisy[0]]) if len(noisy) == len(ends) == 1 else None
    labels = [column for place, column in enumerate(answer.columns) if place not in (places or ())]
    items = [] if places is None else charts.statement_items(answer.rows, places)
    types = {column.name: column.type for column in labels}
    return {
        "answer": answer,
        "numeric": [charts.is_number(column) for column in answer.columns],
        "ends": ends,
        "shown": _drawn(items, types, "" if places is None else answer.columns[places[0]].name, covered=covered),
    }


def _body_of(visit: Visit, sql: str | None = None, *, intervals: bool = False) -> bytes:
    """Return the JSON body of the API request for a form, with the ends of intervals if it is a statement's."""
    body: dict[str, Any] = {"sql": visit.text("sql").replace("\r\n", "\n") if sql is None else sql}
    if intervals:
        body["intervals"] = True
    if visit["epsilon"] is not None:
        body["epsilon"] = visit["epsilon"]
    return json.dumps(body).encode()


def _built_query(visit: Visit, dataset: DatasetDetail) -> Select:
    """Return the query of the fields of a form, without its filter.

    Raises:
        InputError: the fields are not those of the page.
    """
    kind, _, column = (visit.text("measure") or "users").partition(":")
    measure = Measure(kind, column) if column else Measure("rows") if kind == "rows" else Measure("users", dataset.user)  # type: ignore[arg-type] # checked by Measure
    segments = (visit.text("each"),) if visit.text("each") else ()
    items = tuple(item for item in visit["item"] if item not in segments)
    if segments and not items:
        raise InputError("choose the items of each label: group by another column too")
    return Select(dataset.name, items, measure, None, visit["k"] if items else None, segments)


def _is_per_user(release: Mapping[str, Any], query: Select) -> bool:
    """Return True for averages of users, as answers of earlier versions have."""
    return query.measure.kind == "average" and (release["query"]["bounds"] or {}).get("rows") is None


def _drawn(
    items: list[charts.Item],
    types: Mapping[str, str],
    measured: str,
    segmented: int = 0,
    covered: Sequence[Covered | None] = (),
    *,
    ranked: bool = False,
) -> dict[str, Any]:
    """Return items as the templates show them: a total, lines, a table of two columns, bars, or bars of each segment.

    Args:
        types: the types of the label columns, by name.
        measured: the unit of the values.
        segmented: how many of the label columns, from the first, name the segment of an item.
        covered: the time that the rows of each label column are from, where it is one of periods.
        ranked: True if a mechanism ranked the items.
    """
    if segmented:
        segments = charts.multiples(items, segmented)
        label = " · ".join(types)
        return {
            "items": items,
            "multiples": segments,
            "line": None,
            "sorted": None,
            "total": None,
            "label": label,
            "measured": measured,
        }
    time = charts.time_of(items, list(types.values()))
    table = None
    if len(types) == 2 and len(items) > 1 and items[0].bar and len({item.labels for item in items}) == len(items):
        ordered = [not type_.lower().startswith(("text", "varchar", "bool")) for type_ in types.values()]
        table = charts.pivot(items, list(types), ordered)
    incomplete = (0, 0)
    if time is not None:
        items = sorted(items, key=lambda item: (item.labels[time], item.label))
        if time < len(covered) and (span := covered[time]) is not None:
            incomplete = span.cuts(item.labels[time] for item in items)
    return {
        "items": items,
        "multiples": None,
        "line": None if time is None else charts.line_chart(items, time, table, incomplete),
        "sorted": charts.order_of(items, " · ".join(types), measured, ranked=ranked),
        "time": None if time is None else list(types)[time],
        "table": table,
        "total": items[0] if not types and len(items) == 1 and items[0].bar else None,
        "label": " · ".join(types) or "total",
        "measured": measured,
    }


def _can_bite(query: Select, parameters: Mapping[str, Any], catalog: Catalog) -> bool:
    """Return False if the only bound on a user is a number of groups that the known labels do not exceed.

    Labels are known that the catalog lists, or the filter.
    """
    bound: int | None = parameters["groups_per_user"]
    dataset = catalog.datasets.get(query.dataset)
    if query.measure.kind != "users" or query.each or bound is None or dataset is None:
        return True
    kinds = {name: dataset.columns[name].kind for name in dataset.filterable}
    listed: dict[str, list[Any]] = {}
    with contextlib.suppress(InputError):  # the filter of an old answer need not fit the catalog
        listed = listed_values(None if query.where is None else bind_where(query.where, kinds), kinds)
    sizes: list[int] = []
    for item in query.items:
        domain = getattr(dataset.columns.get(item), "domain", None)
        lengths = [len(labels) for labels in (domain, listed.get(item)) if isinstance(labels, tuple | list)]
        if not lengths:
            return True
        sizes.append(min(lengths))
    return math.prod(sizes) > bound


def _file(content: bytes, name: str, form: Form) -> Response:
    headers = {**content_headers(form), **HEADERS, "Content-Disposition": f'attachment; filename="{name[:12]}.{form}"'}
    return Response(content, headers=headers)
