"""Apache Pinot: offline tables, counted by the single-stage engine over plain HTTP.

By default each server silently keeps only its largest 5,000 groups. So every statement switches that off, the settings
that cannot be switched off are checked, and a response is refused unless all its flags show that it is complete.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from discreet.engines.base import LABEL_TYPES, PooledEngine, check_named, exact_head, typed_domain
from discreet.engines.pinot_cluster import (
    Attested,
    PinotClient,
    attested,
    check_table,
    check_url,
    column_of,
    segments_of,
    tls_of,
)
from discreet.engines.pinot_statement import PinotStatement, kind_of
from discreet.engines.sql import quoted
from discreet.engines.url import parse_url
from discreet.errors import DiscreetError, EngineError, EngineTimeout, InexactHead, InputError
from discreet.head_request import HeadRequest, Kind
from discreet.values import ExactHead, UserItemPairs

_SETTINGS = "/appconfigs"
"""The broker's path of its settings; only a restart changes them."""

_LIMIT = re.compile(r"\bLIMIT\s+([0-9]+)\s*;?\s*\Z", re.IGNORECASE)
_FROM = re.compile(r"\bFROM\b", re.IGNORECASE)
_TABLE = re.compile(r"\w[\w.-]*", re.ASCII)
_TIME_OUTS = {240, 250, 400}
"""Pinot's error codes of timeouts of servers and brokers."""

_NO_RESPONSE = 427
"""Pinot's error code of a server that did not respond; together with one of `_TIME_OUTS`, it was too slow."""

_FETCHED = {
    "STRING": pa.string(),
    "TIMESTAMP": pa.string(),  # in the time zone of the servers
    "INT": pa.int64(),
    "LONG": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "FLOAT": pa.float64(),
    "DOUBLE": pa.float64(),
}


class PinotEngine(PooledEngine[PinotClient]):
    """An engine for an offline table of Pinot.

    Args:
        source_url: pinot://broker:8099?table=events&controller=http://host:9000, or pinots:// for a broker over TLS. It
            names one broker, not a load balancer, because the settings of that broker are checked.
        table: name of the table, without the type, if the URL does not name it.
        view: must be None: Pinot has no views.
        password: password of the URL's user at the broker and the controller; sent only over TLS.
        timeout_seconds: time limit of a query, here and on the servers, or None.

    Raises:
        InputError: the URL is not valid, or there is no such table.
        InexactHead: the version or a setting of the cluster or the table is not known to count exactly.
        EngineUnreachable: the controller or the broker cannot be reached.
    """

    def __init__(
        self,
        source_url: str,
        *,
        table: str | None = None,
        view: str | None = None,
        password: str | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        url = parse_url(source_url)
        url.check_options({"table", "controller"})
        table = url.options.get("table") if table is None else table
        if not url.host or url.path or "controller" not in url.options:
            raise InputError("a Pinot URL looks like pinot://broker:8099?table=events&controller=http://host:9000")
        if view is not None:
            raise InputError("Pinot has no views; name a table")
        if table is None or not _TABLE.fullmatch(table):
            raise InputError("name a table of Pinot, without _OFFLINE behind it")
        password = url.password if password is None else password
        controller = check_url(url.options["controller"])
        if password is not None and not (url.scheme == "pinots" and controller.startswith("https://")):
            raise InputError(
                "a password is sent to Pinot over TLS only; write pinots:// and a controller with https://"
            )
        host = f"[{url.host}]" if ":" in url.host else url.host
        broker = f"{'https' if url.scheme == 'pinots' else 'http'}://{host}:{url.port or 8099}"
        account = None if password is None else (url.user or "", password)
        super().__init__(f"{url}, table {table}")
        self._table = table
        self._relation = f"{table}_OFFLINE"  # new rows arrive in another table, _REALTIME
        self._new_client = partial(
            PinotClient, broker, controller, account, tls_of(broker, controller), timeout_seconds
        )
        with self._connection() as client:
            client.controller.ping()
            client.broker.ping()
            self._known = self._attested(client, client.broker.constant(_SETTINGS))

    def columns(self) -> Mapping[str, Kind]:
        return {name: column.kind for name, column in self._known.columns.items()}

    def scale(self, column: str) -> int:  # noqa: ARG002 - no decimals are read from Pinot
        return 0

    def check_sum(self, column: str) -> None:  # noqa: ARG002 - refused for every type
        raise InputError("Pinot cannot add up what each user contributes; its single-stage engine has no subqueries")

    def data_version(self) -> str | None:
        """Return a digest of the creation times of the segments, which depend on no row."""
        path, key = self._known.generation.made
        with self._connection() as client:
            answer = client.controller.get(f"/segments/{quote(self._relation)}/{path}")
            try:
                segments = segments_of(client.controller, quote(self._table))
                created = sorted(int(answer[segment][key]) for segment in segments)
            except (LookupError, TypeError, ValueError):
                self._known = self._attested(client, client.broker.constant(_SETTINGS))  # Pinot may have been upgraded
                raise EngineError("the controller of Pinot does not say when all of the segments were made") from None
        return f"{len(created)} segments, {hashlib.sha256(repr(created).encode()).hexdigest()[:32]}"

    def check(self, request: HeadRequest) -> None:
        with self._connection() as client:
            client.broker.ping()
            check_table(client.controller, quote(self._table))
        self._statement(request, self._known).write()

    def head(
        self, request: HeadRequest, *, seed: bytes = b"", progress: Callable[[float], None] | None = None
    ) -> ExactHead:
        del seed  # Pinot cannot bound the items of a user
        with self._connection() as client:
            for _ in range(2):
                checks = self._known
                settings = client.broker.constant(_SETTINGS)
                with ThreadPoolExecutor(1) as pool:
                    reading = pool.submit(self._attested, client, settings)
                    try:
                        head = self._head(client, request, checks, progress)
                    except DiscreetError:
                        if self._reattested(client, settings, reading) == checks:
                            raise
                    else:
                        if self._reattested(client, settings, reading) == checks:
                            return head
                # The settings changed since they were checked, so neither a head nor an error can be trusted.
        raise InexactHead("the table or its cluster is being changed; try again")

    @property
    def has_pairs(self) -> bool:
        return False

    def pairs(
        self, request: HeadRequest, *, progress: Callable[[float], None] | None = None
    ) -> AbstractContextManager[UserItemPairs]:
        """Refuse: Pinot has no temporary tables, and its broker cannot join the pairs with chosen items."""
        del request, progress
        raise InputError("Pinot has no pair queries; release from the head of the counts")

    def fetch(self, statement: str) -> pa.Table:
        """Return all rows of a statement on this table; it must end with a LIMIT if it has several rows."""
        with self._connection() as client:
            answer = client.run(statement)
            checks = self._attested(client, client.broker.constant(_SETTINGS))
        check_signs(answer, checks)
        if _FROM.search(statement):  # without FROM, the broker responds without any server
            check_complete(answer, checks)
        table = _fetched(answer)
        limit = _LIMIT.search(statement)
        if len(table) >= (int(limit[1]) if limit else 2):
            raise InexactHead("the statement may have more rows; end it with a LIMIT above the number of its rows")
        return table

    def _connect(self) -> PinotClient:
        return self._new_client()

    def _attested(self, client: PinotClient, settings: Mapping[str, Any]) -> Attested:
        return attested(client.controller, settings, quote(self._table))

    def _reattested(self, client: PinotClient, settings: Mapping[str, Any], reading: Future[Attested]) -> Attested:
        """Return and store the checks after a statement: *reading*, or new ones if the broker's settings changed."""
        checks = reading.result()
        now = client.broker.constant(_SETTINGS)
        self._known = checks if now == settings else self._attested(client, now)
        return self._known

    def _statement(self, request: HeadRequest, checks: Attested) -> PinotStatement:
        check_named(request, lambda name: column_of(name, checks.columns).kind)
        listed = None
        if request.domain is not None:
            types = {name: LABEL_TYPES[kind_of(name, request, checks.columns)] for name in request.items}
            listed = typed_domain(request.domain, types)
        return PinotStatement(request, self._relation, checks.columns, listed)

    def _head(
        self,
        client: PinotClient,
        request: HeadRequest,
        checks: Attested,
        progress: Callable[[float], None] | None,
    ) -> ExactHead:
        statement = self._statement(request, checks)
        rows = self._rows(client, statement, checks, request.user, progress)
        if not request.items:
            return exact_head(pa.table({"n": counts_of([row[0] for row in rows] or [0])}), request)
        kinds = [kind_of(name, request, checks.columns) for name in request.items]
        arrays = [labels_of([row[n] for row in rows], kind) for n, kind in enumerate(kinds)]
        names = [f"i{n}" for n in range(len(arrays))]
        table = pa.table([*arrays, counts_of([row[-1] for row in rows])], [*names, "n"])
        listed = statement.listed
        return exact_head(table if listed is None else _all_listed(listed, table, request.limit), request)

    def _rows(
        self,
        client: PinotClient,
        statement: PinotStatement,
        checks: Attested,
        user: str,
        progress: Callable[[float], None] | None,
    ) -> list[list[Any]]:
        """Return the rows of an answer; raise `InexactHead` if Pinot could count a user twice or leave out rows."""
        if user in checks.partitioned:
            raise InexactHead(
                f"isSegmentPartitioned of column {user!r} makes Pinot add up the counts of segments, "
                "in which one user may be twice"
            )
        if checks.limit is not None and statement.limit > checks.limit:
            raise InexactHead(
                f"the broker returns {checks.limit:,} rows at most; raise its pinot.broker.query.response.limit or ask "
                "for a smaller head"
            )
        text = statement.write()
        if text is None:
            return []
        answer = client.run(text, progress)
        check_signs(answer, checks)
        if _number(answer, "numServersQueried") == 0 and _number(answer, "numServersResponded") == 0:
            # The broker finds the filter to be always false, or knows no server: it responds alike.
            if checks.segments:
                every = client.run(f"SELECT COUNT(*) FROM {quoted(self._relation)}", progress)
                check_signs(every, checks)
                check_complete(every, checks)
            return []
        check_complete(answer, checks)
        return rows_of(answer, statement.names, statement.types, statement.limit)


def _all_listed(listed: pa.Table, counted: pa.Table, limit: int) -> pa.Table:
    """Return the head of the listed items, of which Pinot returns only those with rows."""
    every = listed.join(counted, listed.column_names, join_type="left outer")
    counts = every.column("n")
    if counts.null_count != len(listed) - len(counted):
        raise InexactHead("Pinot answered with an item that was not listed")
    every = every.set_column(every.column_names.index("n"), "n", counts.fill_null(0))
    order = [("n", "descending"), *((name, "ascending") for name in listed.column_names)]
    return every.sort_by(order).slice(0, limit + 1)


def check_complete(answer: dict[str, Any], attested: Attested) -> None:
    """Refuse a response that does not cover all servers and all segments.

    Args:
        answer: the broker's response to a statement that it sent to servers.
        attested: the checks of the cluster.

    Raises:
        InexactHead: a server or a segment is missing, or may be.
    """
    queried = _number(answer, "numServersQueried")
    if not 1 <= queried == _number(answer, "numServersResponded"):
        raise InexactHead("not all of Pinot's servers answered")
    # Pinot silently leaves out a segment that no server has loaded yet.
    if _number(answer, "numSegmentsQueried") + _number(answer, "numSegmentsPrunedByBroker") != len(attested.segments):
        raise InexactHead("Pinot did not read all segments of the table; it may be loading them")


def check_signs(answer: dict[str, Any], attested: Attested) -> None:
    """Refuse a response whose flags do not show that it is complete.

    Args:
        attested: the checks of the cluster; its generation defines the flags.

    Raises:
        InexactHead: a flag says that rows or groups were left out, or is missing.
        EngineTimeout: Pinot ran out of time.
    """
    exceptions = answer.get("exceptions")
    if not isinstance(exceptions, list):
        raise InexactHead("Pinot did not say whether there were errors")
    codes = sorted({int(error.get("errorCode", -1)) for error in exceptions})
    if _TIME_OUTS.intersection(codes) and {*_TIME_OUTS, _NO_RESPONSE}.issuperset(codes):
        raise EngineTimeout("Pinot did not answer within its time limit")
    if codes:  # its messages hold SQL and may hold data
        raise InexactHead(f"Pinot reported errors, with the codes {', '.join(map(str, codes))}")
    for sign, meaning in attested.generation.signs.items():
        if answer.get(sign) is not False:
            raise InexactHead(f"{meaning}: its answer's {sign} is not false")
    if _number(answer, "numConsumingSegmentsQueried"):
        raise InexactHead("Pinot counted rows that are still coming in; only offline tables stand still")
    if attested.generation.named and answer.get("brokerId") != attested.broker:
        raise InexactHead("another broker answered than the one whose settings were read; name one broker, not several")


def rows_of(answer: dict[str, Any], names: Sequence[str], types: Sequence[str], limit: int) -> list[list[Any]]:
    """Return the rows of a response to a statement for a head.

    Args:
        names: expected names of the columns, which show what was counted.

    Raises:
        InexactHead: the response does not belong to the statement.
    """
    table = answer.get("resultTable")
    schema = table.get("dataSchema") if isinstance(table, dict) else None
    rows = table.get("rows") if isinstance(table, dict) else None
    if not isinstance(schema, dict) or not isinstance(rows, list):
        raise InexactHead("Pinot answered without a table")
    if schema.get("columnNames") != list(names):
        raise InexactHead(
            f"Pinot counted something else than {names[-1]}: its settings rewrite the count into one that is not exact"
        )
    # Pinot may choose any type for a column without values.
    if rows and schema.get("columnDataTypes") != list(types):
        raise InexactHead("Pinot answered with columns of other types than its schema declares")
    if len(rows) > limit or _number(answer, "numRowsResultSet") != len(rows):
        raise InexactHead("Pinot answered with another number of rows than it should")
    if not all(isinstance(row, list) and len(row) == len(names) for row in rows):
        raise InexactHead("Pinot answered with a row of another length")
    return rows


def _fetched(answer: dict[str, Any]) -> pa.Table:
    """Return the rows of a response to a statement of the data owner.

    Raises:
        EngineError: the response has no table, or a column of an unsupported type.
    """
    try:
        schema = answer["resultTable"]["dataSchema"]
        rows = answer["resultTable"]["rows"]
        types = [_FETCHED[type_] for type_ in schema["columnDataTypes"]]
        columns = [pa.array([row[n] for row in rows], type_) for n, type_ in enumerate(types)]
        return pa.table(columns, schema["columnNames"])
    except (LookupError, TypeError, pa.ArrowInvalid):
        raise EngineError("Pinot answered without rows, or with a column of a type that is not read") from None


def labels_of(values: Sequence[Any], kind: Kind) -> pa.Array:
    """Return a column of labels as Arrow.

    Raises:
        InexactHead: a value is not of the column's type.
    """
    type_ = {Kind.TEXT: str, Kind.BOOLEAN: bool}.get(kind, int)
    if not all(type(value) is type_ for value in values):
        raise InexactHead("Pinot answered with a label that is not of its column's type")
    try:
        if kind is Kind.TIMESTAMP:
            return pa.array([value * 1000 for value in values], pa.int64()).cast(pa.timestamp("us"))
        if kind is Kind.DATE:
            return pa.array(values, pa.int64()).cast(pa.timestamp("ms")).cast(pa.date32())
        return pa.array(values, LABEL_TYPES[kind])
    except (OverflowError, pa.ArrowInvalid, UnicodeError):
        raise InexactHead("Pinot answered with a label that its column cannot hold") from None


def counts_of(values: Sequence[Any]) -> pa.Array:
    """Return the counts as Arrow.

    Raises:
        InexactHead: a count is not an integer from 0 to 2^31 - 1, the range of Pinot's counts.
    """
    if not all(type(value) is int and 0 <= value < 2**31 for value in values):
        raise InexactHead("Pinot answered with something that is not a count")
    return pa.array(values, pa.int64())


def _number(answer: dict[str, Any], key: str) -> int:
    value = answer.get(key)
    if type(value) is not int or value < 0:
        raise InexactHead(f"Pinot's answer does not have {key}")
    return value
