"""Apache Pinot: offline tables, counted by the single-stage engine over plain HTTP.

By default each server keeps only its largest 5,000 groups, and its answer does not show it. So every statement
switches that off, the settings that cannot be switched off are read, and an answer is believed only if no sign of
completeness is missing.
"""

from __future__ import annotations

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from discreet.engines.base import PooledEngine, exact_head, typed_domain
from discreet.engines.opening import parse_url
from discreet.engines.pinot_cluster import PinotClient, attested, check_url, segments_of, tls_of
from discreet.engines.pinot_statement import PinotStatement, kind_of
from discreet.engines.sql import quoted
from discreet.errors import DiscreetError, EngineError, EngineTimeout, InexactHead, InputError
from discreet.head_request import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from discreet.engines.pinot_cluster import Attested
    from discreet.head_request import HeadRequest
    from discreet.values import ExactHead, UserItemPairs

_SETTINGS = "/appconfigs"
"""The broker's path for them; only a restart changes them."""

_LIMIT = re.compile(r"\bLIMIT\s+([0-9]+)\s*;?\s*\Z", re.IGNORECASE)
_FROM = re.compile(r"\bFROM\b", re.IGNORECASE)
_TABLE = re.compile(r"\w[\w.-]*", re.ASCII)
_TIME_OUTS = {240, 250, 400}
"""Pinot's codes of servers and brokers that ran out of time."""

_NO_RESPONSE = 427
"""Pinot's code of a server that did not respond; beside one of `_TIME_OUTS`, it was too slow."""

LABEL_TYPES = {
    Kind.TEXT: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.DATE: pa.date32(),
}
"""The Arrow types of labels, by kind."""

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
            names one broker, not a balancer before several, because the settings of the one that answers are read.
        table: its name, without the type; or the URL names it.
        view: Pinot has none.
        password: of the URL's user, at the broker and at the controller; sent over TLS only.
        timeout_seconds: how long a count may take, here and on the servers, or None.

    Raises:
        InputError: the URL is not valid, or there is no such table.
        InexactHead: the version or a setting of the cluster or the table is not known to count exactly.
        EngineError: the controller or the broker cannot be reached.
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
        self._relation = f"{table}_OFFLINE"  # new rows come into another one
        self._new_client = partial(
            PinotClient, broker, controller, account, tls_of(broker, controller), timeout_seconds
        )
        with self._connection() as client:
            self._known = self._attested(client, client.broker.constant(_SETTINGS))

    def columns(self) -> Mapping[str, Kind]:
        return {name: column.kind for name, column in self._known.columns.items()}

    def scale(self, column: str) -> int:  # noqa: ARG002 - no decimals are read from Pinot
        return 0

    def check_sum(self, column: str) -> None:  # noqa: ARG002 - of any type
        raise InputError("Pinot cannot add up what each user contributes; its single-stage engine has no subqueries")

    def data_version(self) -> str | None:
        """Return a digest of the times when the segments were made, which no row decides."""
        path, key = self._known.generation.made
        with self._connection() as client:
            answer = client.controller.get(f"/segments/{quote(self._relation)}/{path}")
            try:
                segments = segments_of(client.controller, quote(self._table))
                made = sorted(int(answer[segment][key]) for segment in segments)
            except (LookupError, TypeError, ValueError):
                self._known = self._attested(client, client.broker.constant(_SETTINGS))  # another version, perhaps
                raise EngineError("the controller of Pinot does not say when all of the segments were made") from None
        return f"{len(made)} segments, {hashlib.sha256(repr(made).encode()).hexdigest()[:32]}"

    def check(self, request: HeadRequest) -> None:
        with self._connection() as client:
            client.broker.ping()
        self._statement(request, self._known).write()

    def head(
        self, request: HeadRequest, *, seed: bytes = b"", progress: Callable[[float], None] | None = None
    ) -> ExactHead:
        del seed  # Pinot cannot bound the items of a user
        with self._connection() as client:
            for _ in range(2):
                known, settings = self._known, client.broker.constant(_SETTINGS)
                with ThreadPoolExecutor(1) as pool:
                    reading = pool.submit(self._attested, client, settings)
                    try:
                        head = self._head(client, request, known, progress)
                    except DiscreetError:
                        if self._reattested(client, settings, reading) == known:
                            raise
                    else:
                        if self._reattested(client, settings, reading) == known:
                            return head
                # Counted, or failed, under settings that have changed since they were read: it means nothing.
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
        """Return all rows of a statement about this table; it ends with a LIMIT if it has several rows."""
        with self._connection() as client:
            answer = client.run(statement)
            known = self._attested(client, client.broker.constant(_SETTINGS))
        check_signs(answer, known)
        if _FROM.search(statement):  # a statement about no table is answered by the broker alone
            check_complete(answer, known)
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
        """Return and keep what holds after a statement: *reading*, unless the broker has other settings by then."""
        held, now = reading.result(), client.broker.constant(_SETTINGS)
        self._known = held if now == settings else self._attested(client, now)
        return self._known

    def _statement(self, request: HeadRequest, known: Attested) -> PinotStatement:
        listed = None
        if request.domain is not None:
            types = {name: LABEL_TYPES[kind_of(name, request, known.columns)] for name in request.items}
            listed = typed_domain(request.domain, types)
        return PinotStatement(request, self._relation, known.columns, listed)

    def _head(
        self,
        client: PinotClient,
        request: HeadRequest,
        known: Attested,
        progress: Callable[[float], None] | None,
    ) -> ExactHead:
        statement = self._statement(request, known)
        rows = self._rows(client, statement, known, request.user, progress)
        if not request.items:
            return exact_head(pa.table({"n": counts_of([row[0] for row in rows] or [0])}), request)
        kinds = [kind_of(name, request, known.columns) for name in request.items]
        arrays = [labels_of([row[n] for row in rows], kind) for n, kind in enumerate(kinds)]
        names = [f"i{n}" for n in range(len(arrays))]
        table = pa.table([*arrays, counts_of([row[-1] for row in rows])], [*names, "n"])
        listed = statement.listed
        return exact_head(table if listed is None else _all_listed(listed, table, request.limit), request)

    def _rows(
        self,
        client: PinotClient,
        statement: PinotStatement,
        known: Attested,
        user: str,
        progress: Callable[[float], None] | None,
    ) -> list[list[Any]]:
        if user in known.partitioned:
            raise InexactHead(
                f"isSegmentPartitioned of column {user!r} makes Pinot add up the counts of segments, "
                "in which one user may be twice"
            )
        if known.limit is not None and statement.limit > known.limit:
            raise InexactHead(
                f"the broker returns {known.limit:,} rows at most; raise its pinot.broker.query.response.limit or ask "
                "for a smaller head"
            )
        text = statement.write()
        if text is None:
            return []
        answer = client.run(text, progress)
        check_signs(answer, known)
        if _answered_by_broker(answer):
            # A broker that knows of no server says the same as one that sees that no row can count.
            if known.segments:
                every = client.run(f"SELECT COUNT(*) FROM {quoted(self._relation)}", progress)
                check_signs(every, known)
                check_complete(every, known)
            return []
        check_complete(answer, known)
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
    """Refuse an answer that is not of all servers and all segments.

    Args:
        answer: of the broker, to a statement that it sent to servers.
        attested: what is known of the cluster.

    Raises:
        InexactHead: a part is missing, or may be.
    """
    queried = _number(answer, "numServersQueried")
    if not 1 <= queried == _number(answer, "numServersResponded"):
        raise InexactHead("not all of Pinot's servers answered")
    # A segment that no server has loaded yet is left out without a word.
    if _number(answer, "numSegmentsQueried") + _number(answer, "numSegmentsPrunedByBroker") != len(attested.segments):
        raise InexactHead("Pinot did not read all segments of the table; it may be loading them")


def check_signs(answer: dict[str, Any], attested: Attested) -> None:
    """Refuse an answer with a sign that something was left out.

    Args:
        attested: what is known of the cluster; its generation says which signs there are.

    Raises:
        InexactHead: a sign of something left out is there, or one of completeness is not.
        EngineTimeout: Pinot ran out of time.
    """
    exceptions = answer.get("exceptions")
    if not isinstance(exceptions, list):
        raise InexactHead("Pinot did not say whether there were errors")
    codes = sorted({int(each.get("errorCode", -1)) for each in exceptions})
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


def _answered_by_broker(answer: dict[str, Any]) -> bool:
    """Return True if the broker sent the statement to no server, because it knows that no row counts."""
    return _number(answer, "numServersQueried") == 0 and _number(answer, "numServersResponded") == 0


def rows_of(answer: dict[str, Any], names: Sequence[str], types: Sequence[str], limit: int) -> list[list[Any]]:
    """Return the rows of an answer to a statement for a head.

    Args:
        names: of the columns, which show what was counted.

    Raises:
        InexactHead: the answer is to another statement.
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
    # The type of a column without values is whatever Pinot makes of it.
    if rows and schema.get("columnDataTypes") != list(types):
        raise InexactHead("Pinot answered with columns of other types than its schema declares")
    if len(rows) > limit or _number(answer, "numRowsResultSet") != len(rows):
        raise InexactHead("Pinot answered with another number of rows than it should")
    if not all(isinstance(row, list) and len(row) == len(names) for row in rows):
        raise InexactHead("Pinot answered with a row of another length")
    return rows


def _fetched(answer: dict[str, Any]) -> pa.Table:
    """Return the rows of an answer to a statement of the data owner's.

    Raises:
        EngineError: there is no table, or a column of a type that is not read.
    """
    try:
        schema, rows = answer["resultTable"]["dataSchema"], answer["resultTable"]["rows"]
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
        InexactHead: one is not a whole number from 0 to 2^31 - 1, which is what Pinot counts up to.
    """
    if not all(type(value) is int and 0 <= value < 2**31 for value in values):
        raise InexactHead("Pinot answered with something that is not a count")
    return pa.array(values, pa.int64())


def _number(answer: dict[str, Any], key: str) -> int:
    value = answer.get(key)
    if type(value) is not int or value < 0:
        raise InexactHead(f"Pinot's answer does not have {key}")
    return value
