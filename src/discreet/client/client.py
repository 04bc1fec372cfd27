"""The client of a budget service."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack
from urllib.parse import quote

import pyarrow as pa
from pydantic import BaseModel, ValidationError

from discreet.budget.model import Mode
from discreet.client.errors import ServiceError, cost_of
from discreet.client.retries import HttpReply, HttpRequest, RetryRuntime
from discreet.errors import InputError, how_to_install
from discreet.query.json import read_query
from discreet.query.query import Options, Select
from discreet.release import Release
from discreet.release.postprocess import ComputedRows
from discreet.secrets import read_secret
from discreet.values import Cost, exact
from discreet.wire.document import decode
from discreet.wire.queries import (
    BudgetReport,
    DatasetDetail,
    DatasetList,
    DatasetSummary,
    Estimate,
    HistoryEntry,
    HistoryPage,
    QueryRequest,
    SavedTableDetail,
    SavedTableList,
    SavedTableSummary,
    StatementEstimate,
    StatementQuery,
    StatementRequest,
    read_body,
)

if TYPE_CHECKING:
    import httpx


_Shape = TypeVar("_Shape", bound=BaseModel)

_PAGE = 100


@dataclass(frozen=True, slots=True)
class Answer:
    """A release and its charge.

    Args:
        id: the id of the release, for `Client.release`.
        charged: the amount that the account was charged for this request; zero if it had paid before.
        replayed: True if the release was stored before this request.
        mode: "observe" if the account's limit is not enforced, so that it guarantees nothing; otherwise "enforce".
    """

    release: Release
    id: str
    charged: Cost
    replayed: bool
    mode: Mode


@dataclass(frozen=True, slots=True)
class Rows(ComputedRows):
    """The rows of a statement of a service, which sends no types.

    Args:
        queries: the queries that the rows were computed from, with the charge of each.
    """

    queries: list[StatementQuery] = field(default_factory=list)

    @classmethod
    def read(cls, body: bytes) -> Rows:
        """Parse an Arrow stream of the service."""
        table = pa.ipc.open_stream(body).read_all()
        metadata = table.schema.metadata
        queries = [StatementQuery.model_validate(query) for query in json.loads(metadata[b"discreet.queries"])]
        without = json.loads(metadata.get(b"discreet.no_interval", b"[]"))  # an older service does not say
        intervals: list[Literal["none"] | None] = ["none" if name in without else None for name in table.column_names]
        return cls(table.replace_schema_metadata(None), intervals=tuple(intervals), queries=queries)

    @property
    def charged(self) -> Cost:
        """The amount that the account was charged for all queries together."""
        return sum((cost_of(query.charged) for query in self.queries), Cost())


class Client:
    """Client of a budget service. Thread-safe, and usable as a context manager.

        with discreet.Client("https://discreet.example.org") as client:
            client.query("SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article LIMIT 10")

    A request that fails in transit is sent again with the same idempotency key, so that it is answered and charged
    once. A query that exceeds the budget is not sent again.

    Args:
        key: an API key or a token of the identity provider; by default the value of the environment variable
            DISCREET_KEY.
        key_file: path of a file that holds the key, in place of *key*.
        timeout: seconds for a call with all attempts and pauses, up to 86,400.
        retries: number of retries after failed attempts of a call, from 0 to 100. Waiting for a query that is still
            being answered is not a failed attempt.
        runtime: clock, sleep and randomness; by default of the system.
        transport: a transport of httpx; by default the network, with certificates verified.

    Raises:
        InputError: the URL is malformed, there is no key, or a number is out of range.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        key_file: str | Path | None = None,
        timeout: float = 300.0,
        retries: int = 3,
        runtime: RetryRuntime | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        try:
            from discreet.client.transport import Transport, check_url
        except ImportError:
            raise InputError(f"the client needs httpx; {how_to_install('client')}") from None
        check_url(url)
        self._runtime = runtime or RetryRuntime()
        self._transport = Transport(
            url,
            find_key(key, key_file, os.environ),
            timeout=timeout,
            retries=retries,
            runtime=self._runtime,
            transport=transport,
        )

    def query(self, query: str | Mapping[str, Any] | Select, **options: Unpack[Options]) -> Release:
        """Return private counts, sums or averages. The service sets defaults for missing options.

        Args:
            query: a SELECT, its JSON form as a dictionary, or `discreet.Select`.
            **options: epsilon and delta, or epsilon_per and information; relative_error, counts, mechanism, noise,
                head_limit: as in `discreet.Warehouse.query`, within the limits of the service.

        Raises:
            InputError: something in the query is not allowed, or the key is not valid.
            BudgetShort: the budget cannot cover the worst case; nothing was read.
            EngineError: the engine behind the service failed.
            ServiceError: the service cannot be reached, or failed.
        """
        return self.answer(query, **options).release

    def answer(self, query: str | Mapping[str, Any] | Select, **options: Unpack[Options]) -> Answer:
        """Return the release that `query` returns, with its id and its charge."""
        began = time.perf_counter()
        reply = self._post("/v1/query", query, options, {"Idempotency-Key": self._runtime.ids()})
        # "rho=0.0125, delta=5e-09"; nothing was charged if the header is absent
        written = reply.headers.get("discreet-charged", "")
        parts = dict(part.strip().partition("=")[::2] for part in written.split(",") if "=" in part)
        charged = Cost()
        with contextlib.suppress(KeyError, InputError):
            charged = Cost(exact(parts["rho"], "rho"), exact(parts["delta"], "delta"))
        return Answer(
            self._release(reply).timed(time.perf_counter() - began),
            reply.headers.get("discreet-release", ""),
            charged,
            reply.headers.get("discreet-replayed") == "?1",
            "observe" if reply.headers.get("discreet-mode") == "observe" else "enforce",
        )

    def sql(self, text: str, *, rehearse: bool = False, intervals: bool = False, **options: Unpack[Options]) -> Rows:
        """Return the rows of a whole statement, computed from the private answers of its queries.

        Args:
            text: a SELECT, or EXPLAIN and a SELECT: each SELECT directly over a dataset is charged like a query.
            rehearse: True to compute it from made-up rows, free of charge; the rows then have a column `made_up`.
            intervals: True to add columns NAME_low and NAME_high, the ends of 95 % intervals, where there are any.
            **options: as in `query`, for each query of the statement.

        Raises:
            InputError: something in the statement is not allowed.
            BudgetShort: the budget cannot cover the worst cases together; nothing was read.
            EngineError: the engine behind the service failed.
            ServiceError: the service cannot be reached, or failed.
        """
        body = _statement_body(text, options, rehearse=rehearse, intervals=intervals)
        sent = {**_ACCEPT_ARROW, "Content-Type": "application/json", "Idempotency-Key": self._runtime.ids()}
        return self._rows(HttpRequest("POST", "/v1/sql", body, sent))

    def estimate_sql(self, text: str, **options: Unpack[Options]) -> StatementEstimate:
        """Return the worst costs of the queries of a whole statement; no data is read. Arguments as in `sql`."""
        sent = {**_ACCEPT, "Content-Type": "application/json"}
        body = _statement_body(text, options)
        return self._read(StatementEstimate, self._transport.send(HttpRequest("POST", "/v1/sql/estimate", body, sent)))

    def save(
        self,
        name: str,
        sql: str,
        *,
        view: bool = False,
        comment: str = "",
        replace: bool = True,
        releases: Sequence[str] | None = None,
        **options: Unpack[Options],
    ) -> SavedTableDetail:
        """Save a statement under a name, with the releases that answer it.

        It is charged like `sql`, once; `sql("SELECT ... FROM saved.NAME")` is free.

        Args:
            name: letters, digits and _, up to 63.
            view: True to save the statement only, whose queries run whenever it is read.
            replace: False to refuse the name of a table that there is.
            releases: the ids of releases that are paid for and answer the queries of the statement, in their order;
                nothing is then charged. Without them the queries run.
            **options: as in `query`, for each query of the statement.

        Raises:
            InputError: something in the statement or the name is not allowed.
            BudgetShort: the budget cannot cover the worst cases together; nothing was read.
            EngineError: the engine behind the service failed.
            ServiceError: the service cannot be reached, or failed.
        """
        fields = {"sql": sql, "view": view, "comment": comment, "replace": replace}
        body = _body(fields if releases is None else {**fields, "releases": list(releases)}, options)
        sent = {**_ACCEPT, "Content-Type": "application/json", "Idempotency-Key": self._runtime.ids()}
        return self._read(SavedTableDetail, self._transport.send(HttpRequest("PUT", _table_path(name), body, sent)))

    def table(self, name: str) -> SavedTableDetail:
        """Describe a saved table: its statements, releases and what they cost.

        Args:
            name: with its owner, as "ann@sales.top", if that is another account.

        Raises:
            NotFound: there is no such table that the account has paid for or that is published to it.
        """
        return self._read(SavedTableDetail, self._get(_table_path(name)))

    def drop_table(self, name: str) -> None:
        """Drop a saved table or a view of the account; its releases stay, and stay paid for.

        Raises:
            NotFound: the account has no such table.
        """
        self._transport.send(HttpRequest("DELETE", _table_path(name), headers=_ACCEPT))

    def tables(self) -> list[SavedTableSummary]:
        """List the saved tables of the account, and those that an officer published to it."""
        return self._read(SavedTableList, self._get("/v1/tables")).tables

    def estimate(self, query: str | Mapping[str, Any] | Select, **options: Unpack[Options]) -> Estimate:
        """Return the plan of a query, its worst cost and whether that fits the budget. No data is read.

        Args:
            **options: as in `query`.

        Raises:
            InputError: as in `query`.
            ServiceError: as in `query`.
        """
        return self._read(Estimate, self._post("/v1/estimate", query, options, {}))

    def budget(self) -> BudgetReport:
        """Return the balance of the account, and of its parents, which are charged too."""
        return self._read(BudgetReport, self._get("/v1/budget"))

    def datasets(self) -> list[DatasetSummary]:
        """List the datasets that the account may query."""
        return self._read(DatasetList, self._get("/v1/datasets")).datasets

    def dataset(self, name: str) -> DatasetDetail:
        """Describe a dataset.

        Raises:
            NotFound: there is no dataset of that name that the account may query.
        """
        return self._read(DatasetDetail, self._get(f"/v1/datasets/{path_segment(name, 'a dataset')}"))

    def sample(self, name: str, rows: int = 100) -> pa.Table:
        """Return made-up rows of a dataset, generated from its catalog alone, free of charge.

        Args:
            rows: from 1 to 10,000.

        Raises:
            NotFound: there is no dataset of that name that the account may query.
        """
        path = f"/v1/datasets/{path_segment(name, 'a dataset')}/sample"
        return self._rows(HttpRequest("GET", path, headers=_ACCEPT_ARROW, parameters={"rows": str(rows)})).table

    def history(self, limit: int = 100) -> list[HistoryEntry]:
        """List the releases that the account has paid for, newest first.

        Args:
            limit: the largest number of entries.

        Raises:
            InputError: *limit* is below 1.
        """
        if limit < 1:
            raise InputError(f"the limit must be at least 1, not {limit}")
        entries: list[HistoryEntry] = []
        before: int | None = None
        while len(entries) < limit:
            parameters = {"limit": str(min(limit - len(entries), _PAGE))}
            if before is not None:
                parameters["before"] = str(before)
            page = self._read(HistoryPage, self._get("/v1/releases", parameters))
            entries += page.releases
            before = page.next
            if before is None or not (page.releases or page.damaged):
                break
        return entries

    def release(self, id: str) -> Release:  # noqa: A002 - as the service calls it
        """Return a stored release that the account has paid for, free of charge.

        Args:
            id: the id of the release, from `Answer.id` or `history`.

        Raises:
            NotFound: there is no release with this id that the account has paid for.
        """
        return self._release(self._get(f"/v1/releases/{path_segment(id, 'an answer')}"))

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._transport.url!r})"

    def _get(self, path: str, parameters: Mapping[str, str] | None = None) -> HttpReply:
        return self._transport.send(HttpRequest("GET", path, headers=_ACCEPT, parameters=parameters or {}))

    def _post(
        self,
        path: str,
        query: str | Mapping[str, Any] | Select,
        options: Options,
        headers: Mapping[str, str],
    ) -> HttpReply:
        sent = {**_ACCEPT, "Content-Type": "application/json", **headers}
        return self._transport.send(HttpRequest("POST", path, body_of(query, options), sent))

    def _rows(self, request: HttpRequest) -> Rows:
        reply = self._transport.send(request)
        try:
            return Rows.read(reply.body)
        except (ValueError, KeyError, TypeError):  # includes the errors of Arrow and pydantic
            raise self._unexpected(reply) from None

    def _release(self, reply: HttpReply) -> Release:
        try:
            return decode(reply.body)
        except InputError:
            raise self._unexpected(reply) from None

    def _read(self, shape: type[_Shape], reply: HttpReply) -> _Shape:
        try:
            return shape.model_validate_json(reply.body)
        except ValidationError:
            raise self._unexpected(reply) from None

    def _unexpected(self, reply: HttpReply) -> ServiceError:
        url = self._transport.url
        return ServiceError(f"the server at {url} is not a Discreet service, or one of another version", reply.status)


_ACCEPT = {"Accept": "application/json"}
_ACCEPT_ARROW = {"Accept": "application/vnd.apache.arrow.stream"}


def _table_path(name: str) -> str:
    return f"/v1/tables/{path_segment(name, 'a saved table')}"


def path_segment(name: str, what: str) -> str:
    """Return *name* as one segment of a path.

    Raises:
        InputError: the name is empty, or of dots only, which mean other segments; *what* has it.
    """
    if not name or not name.strip("."):
        raise InputError(f"{what} needs a name")
    return quote(name, safe="", errors="replace")  # a lone surrogate names nothing


def body_of(query: str | Mapping[str, Any] | Select, options: Options) -> bytes:
    """Return the body of the request for a query; the same bytes for the same arguments.

    Args:
        query: a SELECT, its JSON form, or `discreet.Select`.
        options: those that are None are left out.

    Raises:
        InputError: the query or an option is malformed.
    """
    if isinstance(query, str):  # the service reads it: current_date is its own
        fields: dict[str, Any] = {"sql": query}
    else:
        fields = {"query": query if isinstance(query, dict) else read_query(query).to_dict()}
    body = _body(fields, options)
    read_body(QueryRequest, body)
    return body


def _statement_body(text: str, options: Options, **flags: bool) -> bytes:
    body = _body({"sql": text} | {name: True for name, flag in flags.items() if flag}, options)
    read_body(StatementRequest, body)
    return body


def _body(fields: dict[str, Any], options: Options) -> bytes:
    # JSON has no fractions; as text, the service takes them exactly
    written_options = {
        name: str(value) if isinstance(value, Fraction) else value
        for name, value in options.items()
        if value is not None
    }
    try:
        return json.dumps(fields | written_options).encode()
    except (TypeError, ValueError, RecursionError):
        raise InputError("a query can hold text, numbers, true, false, null, lists and objects only") from None


KEY_VARIABLE = "DISCREET_KEY"
"""The environment variable that can hold the key."""

MAX_KEY_LENGTH = 16_384
"""The largest number of characters in a key; tokens of identity providers are long."""


def find_key(key: str | None, key_file: str | Path | None, environment: Mapping[str, str]) -> str:
    """Return *key*, the key in *key_file*, or the value of DISCREET_KEY in *environment*.

    Raises:
        InputError: there is no key, there are two, it is malformed, or its file cannot be read, or
            can be read by others; the key is never shown.
    """
    if key is not None and key_file is not None:
        raise InputError("give the key or the file that holds it, not both")
    if key is not None:
        return _check_key(key, "the argument key")
    if key_file is not None:
        secret = read_secret(Path(key_file), "key").decode("latin-1")  # a key of other characters is refused next
        return _check_key(secret, f"the content of {str(key_file)!r}")
    if KEY_VARIABLE in environment:
        return _check_key(environment[KEY_VARIABLE], f"the value of {KEY_VARIABLE}")
    raise InputError(f"a service needs a key: give one, name a file that holds it, or set {KEY_VARIABLE}")


def _check_key(key: str, what: str) -> str:
    key = key.strip()
    if not 0 < len(key) <= MAX_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(f"{what} is not a valid key: a key is one word of printable ASCII characters")
    return key
