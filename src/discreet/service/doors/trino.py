"""The Trino client protocol: POST /v1/statement, and pages of its answer.

POST only reads the statement. It touches no data and charges nothing, because clients send it again when they get no
response. Its answer names the first page, whose address holds everything: the statement, the session and an idempotency
key, encrypted with a key of the service. So any process of the service answers any page, and the same page, requested
again, is the same request: it is charged once. A page that takes longer than `MAX_WAIT_SECONDS` is answered with its
own address, for the client to ask again, while the query goes on in the background. All pages are written at once, by
the worker that computes the rows, and wait for the client; a process that does not have them computes them from
replays of what the first page was charged.

What clients would not send again is held instead of sent: they retry 502, 503 and 504, not 409 and 429.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import math
import re
import threading
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import unquote_plus

import anyio
from cryptography.fernet import Fernet, InvalidToken
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from discreet.catalog.model import Catalog
from discreet.errors import InputError, InvariantViolated, NotFound, SQLError, WhereError
from discreet.release.postprocess import MAX_ROWS
from discreet.secrets import is_local
from discreet.service.answering.pool import StatementPool, WrittenRows
from discreet.service.answering.queries import Run
from discreet.service.answering.statements import Shape
from discreet.service.answering.trino import tables
from discreet.service.answering.trino.commands import (
    Command,
    ConstantRows,
    Question,
    SessionChange,
    max_seconds,
    options,
)
from discreet.service.answering.trino.dialect import CATALOG, SCHEMA, VERSION, TrinoSession
from discreet.service.answering.trino.errors import TrinoError, trino_error
from discreet.service.auth.access import Grants
from discreet.service.doors.http.query import QueryAPI
from discreet.service.middleware import (
    Gate,
    check_role,
    context_of,
    is_failure,
    problem_of_request,
    read_stream,
    run_in_thread,
)
from discreet.service.observability import Failed, Log, on_grid
from discreet.service.problems import (
    ClientDisconnected,
    KeyRefused,
    RequestInFlight,
    RoleRefused,
    RunFailed,
    TooManyRequests,
)
from discreet.service.runtime import Runtime
from discreet.service.settings import Settings
from discreet.wire.queries import Malformed, StatementRequest, percent, spend_above, spend_below

MAX_WAIT_SECONDS = 1.0
"""How long a page waits for its answer; clients show progress, and can cancel, that often."""

MAX_PAGE_ROWS = 50_000
"""Rows of a page; an answer has at most `worker.MAX_RESULT_BYTES`."""

MAX_ADDRESS_LENGTH = 48_000
"""Characters of the address of a page; the proxy in examples/deploy allows as many."""

MAX_HELD_SECONDS = 10.0
"""How long a request above the rate of its caller is held, before it is answered with 503."""

MAX_FINISHED_BYTES = 64 * 2**20
"""Bytes of answers that wait for their clients; those of the oldest are dropped, and computed again if asked for."""

_ABANDONED_SECONDS = 60.0  # a client that has not asked for so long does not wait for its turn any more
_JOIN_EVERY_SECONDS = 0.1
_NEEDS_KEY = (
    "this needs a valid key: as the password, over TLS, with any user name, or as a bearer token; without TLS, on this "
    "machine only, as the extra credential key"
)
_OF_PROXIES = ("forwarded", "via", "x-forwarded-", "x-real-ip")  # how their headers begin
_PATH = "/v1/statement/executing/{sealed}/{page}"
_MAX_PAGE_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Sealed:
    """What the address of a page holds.

    Args:
        id: the id of the statement, which is also its idempotency key.
        sql: the statement, as it was sent.
        prepared: the prepared statements that it may name.
        properties: the session properties that are set.
        credential: the value of a header Authorization, for clients that send an extra credential with POST only; it
            is used only for requests that could have an extra credential themselves (`_is_direct`). None for clients
            that send their key with each request.
    """

    id: str
    account: str
    sql: str
    schema: str
    began: float
    properties: Mapping[str, str]
    prepared: Mapping[str, str]
    credential: str | None = field(default=None, repr=False)

    @property
    def session(self) -> TrinoSession:
        """Return the session that the statement is read in."""
        return TrinoSession(self.schema, self.account, datetime.fromtimestamp(self.began, UTC))


@dataclass(slots=True)
class _Polled:
    """A statement that is being answered in this process, or whose later pages wait for their client.

    Attributes:
        progress: the share of the data that the engine has read, from 0 to 1.
        waits: True while it waits for its turn, or for the same statement in another process.
        polled: when the client asked last, in monotonic seconds.
        warnings: their names and sentences.
        updated: what a change of a saved table was, and the number of its rows; None for other statements.
        task: answers the statement; its content is a line with the columns, and one with the rows of each page.
    """

    polled: float
    progress: float = 0.0
    waits: bool = True
    cancelled: threading.Event = field(default_factory=threading.Event)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    updated: tuple[str, int] | None = None
    task: asyncio.Task[WrittenRows] | None = None


class TrinoProtocol:
    """Answers the requests of Trino clients.

    Args:
        key: 32 secret bytes that encrypt the addresses of pages, the same in all processes of the service.
    """

    def __init__(
        self,
        gate: Gate,
        query_api: QueryAPI,
        grants: Grants,
        pool: StatementPool,
        key: bytes,
        settings: Settings,
        runtime: Runtime,
        log: Log,
    ) -> None:
        self._gate = gate
        self._api = query_api
        self._grants = grants
        self._pool = pool
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
        self._grid_ms = settings.service.release_grid_ms
        self._hosts = {settings.service.host.lower(), *(name.lower() for name in settings.service.hosts)}
        self._behind_proxy = bool(settings.service.trusted_proxies)
        self._runtime = runtime
        self._log = log
        self._runs: dict[str, _Polled] = {}

    def routes(self) -> list[Route]:
        """Return the routes of the protocol."""
        return [
            Route("/v1/statement", self._answering(self.post), methods=["POST"]),
            Route(_PATH, self._answering(self.page), methods=["GET", "DELETE"]),
            Route("/v1/info", self.info, methods=["GET"]),
        ]

    def _answering(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Return *handler* with the responses to wrong keys and to too many requests that clients of Trino know."""

        async def endpoint(request: Request) -> Response:
            try:
                return await handler(request)
            except KeyRefused:
                headers = {"WWW-Authenticate": 'Basic realm="Discreet"'}
                context_of(request.scope).problem = "unauthorized"
                return PlainTextResponse(_NEEDS_KEY, 401, headers)
            except TooManyRequests as error:
                context_of(request.scope).problem = "too-many-requests"
                headers = {"Retry-After": str(math.ceil(error.seconds))}
                return PlainTextResponse(str(error), 503, headers)

        return endpoint

    def close(self) -> None:
        """Cancel all statements that are being answered."""
        for run in self._runs.values():
            run.cancelled.set()

    async def info(self, _: Request) -> Response:
        """Return what clients ask before they connect."""
        version = {"version": VERSION}
        return JSONResponse(
            {"nodeVersion": version, "environment": CATALOG, "coordinator": True, "starting": False, "uptime": "0.00s"}
        )

    async def post(self, request: Request) -> Response:
        """Read a statement: answer changes of the session at once, and everything else with the address of a page."""
        self._check_host(request)
        header, sent_once = self._credential(request)
        account = await self._account(request, header)
        body = await read_stream(request, self._gate.max_body_bytes)
        try:
            sql = body.decode()
        except UnicodeDecodeError:
            raise Malformed("the statement is not UTF-8") from None
        prepared = _pairs(request, "prepared-statement")
        may_name = any(word in sql.upper() for word in ("EXECUTE", "DESCRIBE"))
        state = Sealed(
            id=self._runtime.random(16).hex(),
            account=account,
            sql=sql,
            schema=unquote_plus(request.headers.get("x-trino-schema") or SCHEMA),
            began=self._runtime.clock().timestamp(),
            properties={name.rpartition(".")[2]: text for name, text in _pairs(request, "session").items()},
            prepared=prepared if may_name else {},
            credential=header if sent_once else None,
        )

        def work() -> SessionChange | str:
            command = self._pool.read(account, sql, state.session, prepared, self._grants.catalog_for(account))
            options(state.properties)
            if isinstance(command, SessionChange):
                return command
            sealed = self._fernet.encrypt(zlib.compress(json.dumps(asdict(state)).encode(), 9)).decode()
            if len(sealed) > MAX_ADDRESS_LENGTH:
                raise TrinoError("QUERY_TEXT_TOO_LARGE", "the statement is too long; send a shorter one")
            return sealed

        try:
            reply = await run_in_thread(work)
        except (TrinoError, InputError) as error:
            return self._failed(request, state, error)
        if isinstance(reply, str):
            return JSONResponse(self._body(request, state, "QUEUED", (reply, 0)))
        content = self._body(request, state, "FINISHED") | {"updateType": reply.kind}
        # A statement without columns is refused by trino-jdbc.
        content |= {"columns": [tables.column("result", "boolean")], "data": [[True]]}
        return JSONResponse(content, headers={f"X-Trino-{name}": text for name, text in reply.headers.items()})

    def _opened(self, request: Request) -> tuple[Sealed, int]:
        """Return what the address of a page holds, and its number."""
        number = request.path_params["page"]
        if not number.isdecimal() or len(number) > _MAX_PAGE_DIGITS:  # a route's own int() raises beyond 4,300 digits
            raise NotFound
        try:
            state = Sealed(**json.loads(zlib.decompress(self._fernet.decrypt(request.path_params["sealed"]))))
        except (InvalidToken, ValueError, TypeError):  # no ASCII, or written by another version
            raise NotFound from None
        return state, int(number)

    async def page(self, request: Request) -> Response:
        """Return a page of an answer, or cancel the statement."""
        state, page = self._opened(request)
        sealed = request.path_params["sealed"]
        self._check_host(request)
        header, _ = self._credential(request)
        if header is None and self._is_direct(request):
            header = state.credential
        account = await self._account(request, header)
        if account != state.account:
            raise NotFound
        if request.method == "DELETE":
            if state.id in self._runs:
                self._runs[state.id].cancelled.set()
            return Response(status_code=204)
        now = self._runtime.monotonic()
        if state.id not in self._runs:
            self._drop_finished(now)
            run = self._runs[state.id] = _Polled(now)
            run.task = asyncio.create_task(self._answer(state, run, context_of(request.scope).request_id))
            late = state.began + max_seconds(state.properties) - self._runtime.clock().timestamp()
            timer = asyncio.get_running_loop().call_later(max(late, 0), run.cancelled.set)
            run.task.add_done_callback(lambda _: timer.cancel())
            # asyncio would print an exception that no client asks for, and it may hold data.
            run.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        run = self._runs[state.id]
        run.polled = now
        task = cast("asyncio.Task[WrittenRows]", run.task)
        await asyncio.wait({task}, timeout=MAX_WAIT_SECONDS)
        if not task.done():
            waits = "QUEUED" if run.waits else "RUNNING"
            return JSONResponse(self._body(request, state, waits, (sealed, page), run.progress))
        try:
            rows = task.result()
        except Exception as error:  # noqa: BLE001 - each is sent in the form of the protocol
            self._runs.pop(state.id, None)
            return self._failed(request, state, error)
        columns, *pages = rows.content.split(b"\n", math.ceil(MAX_ROWS / MAX_PAGE_ROWS))
        if page + 1 >= len(pages):
            self._runs.pop(state.id, None)
        return self._answered(request, state, page, columns, pages, run)

    def _drop_finished(self, now: float) -> None:
        """Forget answers that no client fetched: they are free when they are asked for again."""
        size = 0
        for name, run in reversed(list(self._runs.items())):
            if run.task is None or not run.task.done():
                continue
            size += 0 if run.task.cancelled() or run.task.exception() else len(run.task.result().content)
            if size > MAX_FINISHED_BYTES or now - run.polled > _ABANDONED_SECONDS:
                del self._runs[name]

    def _check_host(self, request: Request) -> None:
        """Raise `Malformed` if the host of the request, which the addresses of its pages get, is not declared."""
        name = _host_name(request)
        if not (is_local(name) or name in self._hosts):
            raise Malformed("this service has another name; its operator can declare this one in service.hosts")

    def _credential(self, request: Request) -> tuple[str | None, bool]:
        """Return the key of a request as a header Authorization, and whether it came as an extra credential.

        A password is a key, whatever the user's name. An extra credential is read only from a direct connection.
        """
        header = request.headers.get("authorization")
        if header is not None:
            kind, _, rest = header.partition(" ")
            if kind.lower() != "basic":
                return header, False
            try:
                _, _, password = base64.b64decode(rest, validate=True).decode().partition(":")
            except ValueError:
                return "Bearer", False  # which is refused as malformed
            return f"Bearer {password}", False
        extra = _pairs(request, "extra-credential").get("key")
        if extra is not None and self._is_direct(request):
            return f"Bearer {extra}", True
        return None, False

    def _is_direct(self, request: Request) -> bool:
        """Return True if the request came from this machine, without TLS and not by a proxy: no one else reads it."""
        return (
            not self._behind_proxy
            and is_local(request.client.host if request.client else None)
            and is_local(_host_name(request))
            and not any(name.startswith(_OF_PROXIES) for name in request.headers)
        )

    async def _account(self, request: Request, header: str | None) -> str:
        """Return the account of the analyst that *header* names; wait while it sends too many requests.

        Raises:
            KeyRefused, RoleRefused: it is not known, or not an analyst.
            TooManyRequests: its rate stays too high.
        """
        waited = 0.0
        while True:
            try:
                caller = await self._gate.identify(request, header)
            except TooManyRequests as error:
                if waited + error.seconds > MAX_HELD_SECONDS:
                    raise
                waited += error.seconds
                await self._runtime.pause(error.seconds)
                continue
            check_role(caller, "analyst")
            if caller.account is None:
                raise RoleRefused("analyst")
            return caller.account

    # ------------------------------------------------------------------------------------------------- answers

    async def _answer(self, state: Sealed, run: _Polled, request_id: str) -> WrittenRows:
        """Answer a statement; wait for a slot, and for the same statement in another process.

        Raises:
            Exception: every error of a statement; with the position in the text that the client sent.
        """
        answers: dict[str, Any] = {}
        began = self._runtime.monotonic()

        def work() -> WrittenRows:
            run.waits = False
            catalog = self._grants.catalog_for(state.account)
            command = self._pool.read(
                state.account, state.sql, state.session, state.prepared, catalog, run.cancelled.is_set
            )
            try:
                return self._compute(command, state, catalog, request_id, run, answers)
            except (Malformed, SQLError, WhereError) as error:
                rewritten = command.rewriting if isinstance(command, Question) and command.typed else None
                position = None if rewritten is None or error.position is None else rewritten.place(error.position)
                # Sentences of the parser count characters of the rewritten text; the protocol has the place.
                sentence = re.sub(r" at character \d+: ", ": ", str(error))
                raise TrinoError("SYNTAX_ERROR", sentence, position) from None

        try:
            while True:
                try:
                    with self._gate.slots.slot(state.account):
                        return await anyio.to_thread.run_sync(work, limiter=self._gate.slots.threads)
                except (RequestInFlight, TooManyRequests):
                    run.waits = True
                    abandoned = self._runtime.monotonic() - run.polled > _ABANDONED_SECONDS
                    if run.cancelled.is_set() or abandoned:
                        raise ClientDisconnected from None
                await self._runtime.pause(_JOIN_EVERY_SECONDS)
        except ClientDisconnected:
            raise TrinoError(
                "USER_CANCELED",
                "the statement was cancelled, or took longer than query_max_run_time; a charge is not refunded",
            ) from None
        except RunFailed:
            if run.cancelled.is_set():
                sentence = "the statement was cancelled after the data was queried; the same query again is paid for"
                raise TrinoError("USER_CANCELED", sentence) from None
            raise
        finally:
            if self._grid_ms:  # as in `QueryAPI`: when an answer is there says little about how long it took
                took = self._runtime.monotonic() - began
                await self._runtime.pause(on_grid(took, self._grid_ms) / 1000 - took)

    def _compute(
        self, command: Command, state: Sealed, catalog: Catalog, request_id: str, run: _Polled, answers: dict[str, Any]
    ) -> WrittenRows:
        """Answer a command that changes nothing in the session."""
        if isinstance(command, ConstantRows):
            return _table(command.columns, command.rows)
        if isinstance(command, SessionChange):
            raise InvariantViolated("changes of the session are answered at once")
        text = command.rewriting.sql
        parameters = options(state.properties)
        if command.rewriting.metadata:
            statement = self._pool.split(
                state.account, text, None, tables.COLUMNS.keys(), disconnected=run.cancelled.is_set
            )
            if statement.leaves:
                raise TrinoError("NOT_SUPPORTED", "a statement reads either datasets or tables of metadata")
            budget = self._api.budget_of(state.account)
            saved = self._api.saved_tables(state.account)
            if command.described not in {None, *(table.name.lower() for table in saved)}:
                raise NotFound(
                    f"there is no saved table {command.described!r} of yours, and none is published to you; "
                    "SHOW TABLES FROM saved lists them"
                )
            read_tables = {
                name: tables.table(name, catalog, saved, budget, state.properties) for name in statement.schemas
            }
            return self._pool.compute(
                state.account,
                statement.outer,
                read_tables,
                form="trino",
                queries="[]",
                page_rows=MAX_PAGE_ROWS,
                disconnected=run.cancelled.is_set,
            )
        if command.form == "columns":
            parameters["rehearse"] = True
        request = StatementRequest(sql=text or "SELECT 1", **parameters)
        digest = hashlib.sha256(request.model_dump_json().encode()).digest()
        watched = Run(
            state.account,
            request_id,
            f"trino-{state.id}",
            digest,
            progress=lambda share: setattr(run, "progress", share),
        )
        shape = Shape("trino", page_rows=MAX_PAGE_ROWS)
        work = self._api.statement_work(request, watched, shape, answers, command.change)
        answered, balance = work(run.cancelled.is_set)
        if command.change is not None:
            run.updated = command.change.action.upper(), answered.rows
        if command.form != "rows":
            return _of_form(command.form, answered)
        warnings = [("APPROXIMATE_FUNCTION", sentence) for sentence in command.rewriting.warnings]
        if any(query.status in {"released", "replayed"} for query in answered.queries):
            charged = spend_above(answered.charged)
            left = spend_below(balance.remaining)
            limit = spend_below(balance.account.limit)
            share = percent(charged.share_of(limit))
            paid = f"charged {share} of the budget of {state.account} ({charged})"
            warnings.append(("PRIVACY_CHARGE", f"{paid}; {percent(left.left_of(limit))} is left ({left})"))
        notes = dict.fromkeys(query.note for query in answered.queries if query.note is not None)
        run.warnings = [*(("ROWS_LEFT_OUT", note) for note in notes), *warnings]
        return answered

    # ------------------------------------------------------------------------------------------------ responses

    def _answered(
        self,
        request: Request,
        state: Sealed,
        page: int,
        columns: bytes,
        pages: Sequence[bytes],
        run: _Polled,
    ) -> Response:
        """Return the response with the rows of a page, as the worker wrote them, and the address of the next."""
        following = (request.path_params["sealed"], page + 1) if page + 1 < len(pages) else None
        body = self._body(request, state, "FINISHED" if following is None else "RUNNING", following, 1.0)
        body["warnings"] = [
            {"warningCode": {"code": number, "name": name}, "message": sentence}
            for number, (name, sentence) in enumerate(run.warnings, 0x0100_0000)
        ]
        if run.updated is not None:
            body["updateType"], body["updateCount"] = run.updated
        parts = [json.dumps(body).encode()[:-1], b',"columns":', columns]
        parts += [b',"data":', pages[page]] if page < len(pages) else []
        return Response(b"".join([*parts, b"}"]), media_type="application/json")

    def _failed(self, request: Request, state: Sealed, error: Exception) -> Response:
        """Return the response to a statement that failed."""
        problem = problem_of_request(request.scope, error) if not isinstance(error, TrinoError) else None
        if problem is not None and is_failure(error, problem.slug):
            context = context_of(request.scope)
            self._log.event(Failed.of(error, f"{request.method} {request.scope['route'].path}", context.request_id))
        body = self._body(request, state, "FAILED")
        return JSONResponse(body | {"error": trino_error(error).to_json(state.sql)})

    def _body(
        self,
        request: Request,
        state: Sealed,
        kind: str,
        following: tuple[str, int] | None = None,
        progress: float = 0.0,
    ) -> dict[str, Any]:
        """Return the response of a statement in the state *kind*.

        Args:
            following: the sealed state and the number of the page to ask for next; None on the last.
        """
        # The scheme is that of a declared proxy's X-Forwarded-Proto, if it sent one.
        base = f"{request.url.scheme}://{request.headers['host']}"
        took_ms = max(int((self._runtime.clock().timestamp() - state.began) * 1_000), 0)
        body = {
            "id": f"{datetime.fromtimestamp(state.began, UTC):%Y%m%d_%H%M%S}_{state.id[:5]}_{state.id[5:10]}",
            "infoUri": f"{base}/",
            "stats": {
                "state": kind,
                "queued": kind == "QUEUED",
                "scheduled": kind != "QUEUED",
                "progressPercentage": 100 * progress,
                "runningPercentage": 0.0,
                "nodes": 1,
                "totalSplits": 100,
                "queuedSplits": 0,
                "runningSplits": 100 - int(100 * progress) if kind == "RUNNING" else 0,
                "completedSplits": int(100 * progress),
                **dict.fromkeys(("cpuTimeMillis", "queuedTimeMillis", "processedRows", "processedBytes"), 0),
                **dict.fromkeys(("physicalInputBytes", "peakMemoryBytes", "spilledBytes"), 0),
                **dict.fromkeys(("wallTimeMillis", "elapsedTimeMillis"), took_ms),
            },
            "warnings": [],
        }
        if following is not None:
            sealed, page = following
            body["nextUri"] = f"{base}/v1/statement/executing/{sealed}/{page}"
        return body


def _table(columns: Sequence[tuple[str, str]], rows: list[list[Any]]) -> WrittenRows:
    """Return few rows of values of JSON, as a worker writes them."""
    lines = [[tables.column(name, type_) for name, type_ in columns], *([rows] if rows else [])]
    return WrittenRows("\n".join(map(json.dumps, lines)).encode(), len(rows))


def _of_form(form: str, answered: WrittenRows) -> WrittenRows:
    """Return what EXPLAIN with options, or DESCRIBE OUTPUT, asks for, from the plan or the rehearsal of a statement."""
    written, _, page = answered.content.partition(b"\n")
    columns = json.loads(written)
    match form:
        case "valid":
            return _table([("Valid", "boolean")], [[True]])
        case "columns":
            names = ("Column Name", "Catalog", "Schema", "Table", "Type")
            shown = [column for column in columns if column["name"] != "made_up"]
            return _table(
                [*((name, "varchar") for name in names), ("Type Size", "bigint"), ("Aliased", "boolean")],
                [[column["name"], "", "", "", column["type"], 0, False] for column in shown],
            )
        case "io":
            keys = [column["name"] for column in columns]
            plans = [dict(zip(keys, row, strict=True)) for row in json.loads(page or b"[]")]
            rho, delta = (math.fsum(plan[part] for plan in plans) for part in ("rho", "delta"))
            price = f"rho={rho!r}, delta={delta!r}"
            # Superset shows the fields of the estimate that it knows as they are, if they are no numbers.
            estimate = {"estimate": {"cpuCost": price}, "inputTableColumnInfos": [], "queries": plans}
            return _table([("Query Plan", "varchar")], [[json.dumps(estimate)]])
    return answered


def _pairs(request: Request, name: str) -> dict[str, str]:
    """Return the pairs in all headers X-Trino-*name*, such as epsilon=0.5,delta=1e-8, with their values decoded."""
    pairs = {}
    for line in request.headers.getlist(f"x-trino-{name}"):
        for pair in line.split(","):
            key, sign, value = pair.strip().partition("=")
            if sign:
                pairs[unquote_plus(key)] = unquote_plus(value)
    return pairs


def _host_name(request: Request) -> str:
    """Return the name in the header Host in lower case, without the port; empty if it is not valid."""
    valid = re.fullmatch(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", request.headers["host"].lower())
    return "" if valid is None else valid[1]
