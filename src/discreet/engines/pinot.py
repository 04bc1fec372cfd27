"""Apache Pinot: offline tables, counted by the single-stage engine over plain HTTP.

Pinot is made to be fast, and leaves groups out where it may: each server keeps its largest 5,000 only, unless told
otherwise with every question, and does not say so. So every question switches that off, the settings that cannot be
switched off are read before it, and an answer is believed only if no sign of completeness is missing.
"""

from __future__ import annotations

import hashlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from discreet.engines.head import exact_head
from discreet.engines.listed import typed_domain
from discreet.engines.pairs import NoPairs
from discreet.engines.pinot_answer import (
    LABEL_TYPES,
    asked_nobody,
    check_complete,
    check_signs,
    counts_of,
    labels_of,
    rows_of,
    whole_table,
)
from discreet.engines.pinot_attest import attested
from discreet.engines.pinot_http import Asker, check_url
from discreet.engines.pinot_schema import column_of
from discreet.engines.pinot_statement import PinotStatement
from discreet.engines.sql import quoted
from discreet.engines.url import parse_url
from discreet.errors import DiscreetError, EngineError, InexactHead, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from discreet.engines.pinot_attest import Attested
    from discreet.question import HeadRequest, Kind
    from discreet.values import ExactHead

_LIMIT = re.compile(r"\bLIMIT\s+([0-9]+)\s*;?\s*\Z", re.IGNORECASE)
_FROM = re.compile(r"\bFROM\b", re.IGNORECASE)
_TABLE = re.compile(r"\w[\w.-]*", re.ASCII)


class PinotEngine(NoPairs):
    """An offline table of Pinot; see `discreet.engines.base.Engine`.

    Args:
        source_url: pinot://broker:8099?table=events&controller=http://host:9000, or pinots:// for a broker over TLS. It
            names one broker, not a balancer before several, because the settings of the one that answers are read.
        table: its name, without the type; or the URL names it.
        view: Pinot has none.
        password: of the URL's user, at the broker and at the controller; sent over TLS only.
        timeout_seconds: how long a count may take, here and on the servers, or None.

    Raises:
        InputError: the URL cannot be meant, or there is no such table.
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
        self._name = f"{url}, table {table}"
        self._table = table
        self._relation = f"{table}_OFFLINE"  # whatever comes in meanwhile is in another one
        self._lock = threading.Lock()  # one question at a time
        self._asker = Asker(broker, controller, account, timeout_seconds)
        try:
            self._known = self._attested()
        except BaseException:
            self._asker.close()
            raise

    @property
    def name(self) -> str:
        """See `Engine.name`: the URL and the table."""
        return self._name

    def columns(self) -> Mapping[str, Kind]:
        """See `Engine.columns`."""
        return {name: column.kind for name, column in self._known.columns.items()}

    def scale(self, column: str) -> int:  # noqa: ARG002 - no column of Pinot's has a fixed number of them
        """See `Engine.scale`."""
        return 0

    def check_sum(self, column: str) -> None:  # noqa: ARG002 - whatever its type
        """See `Engine.check_sum`."""
        raise InputError("Pinot cannot add up what each user contributes; its single-stage engine has no subqueries")

    def data_version(self) -> str | None:
        """See `Engine.data_version`: when each segment was made, which no row decides."""
        known = self._attested()
        path, key = known.generation.made
        told = self._asker.controller(f"/segments/{quote(self._relation)}/{path}")
        try:
            made = sorted(int(told[segment][key]) for segment in known.segments)
        except (LookupError, TypeError, ValueError):
            raise EngineError("the controller of Pinot does not tell when all of the segments were made") from None
        return f"{len(made)} segments, {hashlib.sha256(repr(made).encode()).hexdigest()[:32]}"

    def check(self, request: HeadRequest) -> None:
        with self._lock:
            self._asker.ask("SELECT 1")
            self._statement(request, self._known).write()

    def _statement(self, request: HeadRequest, known: Attested) -> PinotStatement:
        listed = None
        if request.domain is not None:
            types = {name: LABEL_TYPES[column_of(name, known.columns).kind] for name in request.items}
            listed = typed_domain(request.domain, types)
        return PinotStatement(request, self._relation, known.columns, listed)

    def head(
        self, request: HeadRequest, *, seed: bytes = b"", progress: Callable[[float], None] | None = None
    ) -> ExactHead:
        """See `Engine.head`. Pinot keeps no bounded number of items of each user, so that *seed* decides nothing."""
        del seed
        with self._lock:
            return self._in_known(lambda known: self._head(request, known, progress))

    def _head(self, request: HeadRequest, known: Attested, progress: Callable[[float], None] | None) -> ExactHead:
        columns = {name: column_of(name, known.columns) for name in request.items}
        statement = self._statement(request, known)
        listed = statement.listed
        rows = self._rows(statement, known, request.user, progress)
        if not request.items:
            return exact_head(pa.table({"n": counts_of([row[0] for row in rows] or [0])}), request)
        arrays = [labels_of([row[n] for row in rows], column) for n, column in enumerate(columns.values())]
        names = [f"i{n}" for n in range(len(arrays))]
        table = pa.table([*arrays, counts_of([row[-1] for row in rows])], [*names, "n"])
        return exact_head(table if listed is None else _all_listed(listed, table, request.limit), request)

    def fetch(self, statement: str) -> pa.Table:
        """See `Engine.fetch`. The statement is about this table, and ends with a LIMIT if it has several rows."""
        with self._lock:
            known = self._attested()
            answer = self._asker.ask(statement)
        check_signs(answer, known)
        if _FROM.search(statement):  # the broker alone answers what is about no table
            check_complete(answer, known)
        table = whole_table(answer)
        limit = _LIMIT.search(statement)
        if len(table) >= (int(limit[1]) if limit else 2):
            raise InexactHead("the statement may have more rows; end it with a LIMIT above the number of its rows")
        return table

    def close(self) -> None:
        """Close the connections."""
        self._asker.close()

    def _in_known(self, ask: Callable[[Attested], ExactHead]) -> ExactHead:
        """What *ask* returns under the settings as last read, which are read anew while it asks.

        If they are others by now, it asks once more, under these. Whatever it raised under others counts for nothing.
        """
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(self._attested)
            try:
                head = ask(self._known)
            except DiscreetError:
                if reading.result() == self._known:
                    raise
            else:
                if reading.result() == self._known:
                    return head
            self._known = reading.result()
            reading = pool.submit(self._attested)
            head = ask(self._known)
            if reading.result() != self._known:
                raise InexactHead("the table or its cluster is being changed; ask again")
            return head

    def _attested(self) -> Attested:
        return attested(self._asker.controller, self._asker.broker, quote(self._table))

    def _rows(
        self, statement: PinotStatement, known: Attested, user: str, progress: Callable[[float], None] | None
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
        answer = self._asker.ask(text, progress)
        check_signs(answer, known)
        if asked_nobody(answer):
            # A broker that knows of no server says the same as one that sees that no row can count.
            if known.segments:
                every = self._asker.ask(f"SELECT COUNT(*) FROM {quoted(self._relation)}", progress)
                check_signs(every, known)
                check_complete(every, known)
            return []
        check_complete(answer, known)
        return rows_of(answer, statement.names, statement.types, statement.limit)


def _all_listed(listed: pa.Table, counted: pa.Table, limit: int) -> pa.Table:
    """The head of the listed items, of which Pinot returns only those that somebody has."""
    every = listed.join(counted, listed.column_names, join_type="left outer")
    counts = every.column("n")
    if counts.null_count != len(listed) - len(counted):
        raise InexactHead("Pinot answered with an item that was not listed")
    every = every.set_column(every.column_names.index("n"), "n", counts.fill_null(0))
    order = [("n", "descending"), *((name, "ascending") for name in listed.column_names)]
    return every.sort_by(order).slice(0, limit + 1)
