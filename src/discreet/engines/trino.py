"""Trino: the tables of all its catalogs, over HTTP."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING, ClassVar

from discreet.engines.head import exact_head
from discreet.engines.listed import typed_domain
from discreet.engines.pairs import NoPairs
from discreet.engines.sql import quoted, text_literal
from discreet.engines.statement import HeadStatement, check_sum
from discreet.engines.trino_client import Asker, Forbidden, NotThere, check_length, column_of, has_zone, label_type
from discreet.engines.url import parse_url
from discreet.errors import InexactHead, InputError
from discreet.question import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from discreet.engines.sql import Column
    from discreet.engines.url import Url
    from discreet.question import HeadRequest
    from discreet.values import ExactHead

_CATALOGS = "SELECT catalog_name, connector_name FROM system.metadata.catalogs"
_TRIMMING = {"pinot"}
"""Connectors that let another system count which leaves groups out without a word."""

_TABLES_SHOWN = 30


class TrinoEngine(NoPairs):
    """A table that Trino reads; see `discreet.engines.base.Engine`.

    Args:
        source_url: trino://user@host:8080/catalog/schema?table=name; with https=true over TLS.
        table: which table of the schema, taken literally; or the URL names it.
        view: or a SELECT of the data owner's, which stands in its place.
        password: of the user; sent over TLS only.
        timeout_seconds: how long a count may take, here and on the server, or None.

    Raises:
        InputError: the URL cannot be meant, or there is neither a table nor a view, or both.
        EngineError: tables were to be listed, and Trino cannot be reached.
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
        url = _read(source_url)
        table = table or url.options.get("table") or None
        password = url.password if password is None else password
        if password is not None and url.options.get("https") != "true":
            raise InputError("a password is sent to Trino over TLS only; add https=true to the URL")
        self._where = url
        self._view = view
        self._schema = ".".join(map(quoted, url.path.split("/")))
        self._asker = Asker(url, password, timeout_seconds)
        self._columns: Mapping[str, Column] | None = None
        self._lock = threading.Lock()  # a connection answers one question at a time
        if view is not None and table is not None:
            raise InputError("name a table or a view, not both")
        if view is None and table is None:
            raise InputError(f"name a table; the tables of {url} are {self._tables()}")
        self._relation = "shown" if table is None else f"{self._schema}.{quoted(table)}"
        self._name = f"{url}, a view" if table is None else f"{url}, table {table}"

    @property
    def name(self) -> str:
        """See `Engine.name`: the URL and the table."""
        return self._name

    def columns(self) -> Mapping[str, Kind]:
        """See `Engine.columns`. Trino's names have no case: they come back in lower case."""
        with self._lock:
            return {name: column.kind for name, column in self._described().items()}

    def scale(self, column: str) -> int:
        """See `Engine.scale`."""
        with self._lock:
            number = self._described()[column].number
        return 0 if number is None else number.scale

    def check_sum(self, column: str) -> None:
        """See `Engine.check_sum`."""
        with self._lock:
            check_sum(column, self._described()[column])

    def data_version(self) -> str | None:
        """None: Trino has no name for the state of what its catalogs show."""
        return None

    def check(self, request: HeadRequest) -> None:
        with self._lock:
            self._asker.ask("SELECT 1")
            statement = Statement(request, self._relation, self._described(), bytes(32), self._view)
            check_length(statement.write())

    def head(
        self, request: HeadRequest, *, seed: bytes = b"", progress: Callable[[float], None] | None = None
    ) -> ExactHead:
        """See `Engine.head`."""
        with self._lock:
            statement = Statement(request, self._relation, self._described(), seed, self._view)
            return exact_head(self._asker.ask(statement.write(), progress), request)

    def fetch(self, statement: str) -> pa.Table:
        """See `Engine.fetch`."""
        with self._lock:
            return self._asker.ask(statement)

    def close(self) -> None:
        """Close the connection."""
        self._asker.close()

    def _described(self) -> Mapping[str, Column]:
        if self._columns is None:
            every = f"{_with(self._view)}SELECT * FROM {self._relation}"
            try:
                shown = self._asker.ask_types(f"{every} LIMIT 0")
            except NotThere:
                raise InputError(self._not_there()) from None
            self._check_connectors(every)
            columns = _AnyCase((name.lower(), column_of(type_)) for name, type_ in shown)
            if len(columns) < len(shown):
                raise InputError(f"{self._name} has columns whose names differ in case only, or not at all")
            self._columns = columns
        return self._columns

    def _check_connectors(self, every: str) -> None:
        """Refuse tables behind connectors that may count inexactly, also where views hide them.

        Raises:
            InexactHead: there is one, or Trino does not tell the user what there is.
        """
        plan = self._asker.ask(f"EXPLAIN (TYPE IO, FORMAT JSON) {every}").column(0)[0].as_py()
        try:
            rows = self._asker.ask(_CATALOGS).to_pylist()
        except Forbidden:
            rows = []
        connectors = {row["catalog_name"]: row["connector_name"] for row in rows}
        for table in json.loads(plan)["inputTableColumnInfos"]:
            catalog = table["table"]["catalog"]
            connector = connectors.get(catalog)
            if connector is None:
                raise InexactHead(
                    f"Trino does not tell {self._where.user} what catalog {catalog!r} is connected to; "
                    "system.metadata.catalogs must be readable"
                )
            if connector in _TRIMMING:
                raise InexactHead(f"catalog {catalog!r} counts in {connector}, which leaves items out; open it itself")

    def _not_there(self) -> str:
        if self._view is not None:
            return f"the view names a table that {self._where} does not have"
        return f"there is no such table; the tables of {self._where} are {self._tables()}"

    def _tables(self) -> str:
        try:
            names = self._asker.ask(f"SHOW TABLES FROM {self._schema}").column(0).to_pylist()
        except (NotThere, Forbidden):
            raise InputError(f"{self._where} is no catalog with a schema that {self._where.user} may see") from None
        shown = ", ".join(map(repr, names[:_TABLES_SHOWN])) or "none"
        return f"{shown} and others" if len(names) > _TABLES_SHOWN else shown


def _read(source_url: str) -> Url:
    url = parse_url(source_url)
    url.check_options({"table", "https"})
    complete = url.host and url.user and re.fullmatch("[^/]+/[^/]+", url.path)
    if not complete or url.options.get("https", "true") not in {"true", "false"}:
        raise InputError("a Trino URL looks like trino://user@host:8080/catalog/schema?table=name&https=true")
    return url


def _with(view: str | None, *others: str) -> str:
    """The view under the name of shown; as the first, it cannot see what comes after it."""
    parts = others if view is None else (f"shown AS ({view}\n)", *others)
    return f"WITH {', '.join(parts)} " if parts else ""


class _AnyCase(dict[str, "Column"]):
    """Columns by name, whose case Trino does not see."""

    def __missing__(self, name: str) -> Column:
        if name == name.lower():
            raise KeyError(name)
        return self[name.lower()]


class Statement(HeadStatement):
    """What Trino says in words of its own. Its text has no collations: it is compared by bytes."""

    types: ClassVar[Mapping[Kind, str]] = {**HeadStatement.types, Kind.TIMESTAMP: "TIMESTAMP(6)"}

    def __init__(
        self, request: HeadRequest, relation: str, columns: Mapping[str, Column], seed: bytes, view: str | None
    ) -> None:
        super().__init__(request, relation, columns, seed)
        self._view = view

    def write(self) -> str:
        """The statement, with the view and the listed items before it."""
        listed = [] if self.request.domain is None else [f"listed AS ({self._items_listed()})"]
        return _with(self._view, *listed) + super().write()

    def constant(self, text: str, type_: str | None) -> str:
        """As a literal, in which only the quote means anything else than itself."""
        literal = text_literal(text)
        return literal if type_ is None else f"CAST({literal} AS {type_})"

    def label(self, column: str) -> str:
        """Moments by their microseconds, in UTC."""
        name = self.quoted(column)
        described = self.columns[column]
        if described.kind is Kind.TIMESTAMP:
            moment = f"{name} AT TIME ZONE 'UTC'" if has_zone(described.type) else name
            return f"CAST({moment} AS TIMESTAMP(6))"
        return f"CAST({name} AS VARCHAR)" if described.type == "uuid" else super().label(column)

    def compared(self, column: str, kind: Kind | None) -> str:
        """NaN equals nothing here, so that nullif would keep it."""
        described = self.columns[column]
        if described.kind is Kind.FLOAT:
            name = self.quoted(column)
            return f"CASE WHEN is_nan({name}) THEN NULL ELSE {name} END"
        if described.type == "uuid" or has_zone(described.type):
            return self.label(column)
        return super().compared(column, kind)

    def size(self, text: str) -> str:
        """Bytes of a text."""
        return f"CAST(length(to_utf8({text})) AS VARCHAR)"

    def digest(self, text: str) -> str:
        """MD5 of a text."""
        return f"lower(to_hex(md5(to_utf8({text}))))"

    def _items_listed(self) -> str:
        """The listed items: each column a literal of JSON, which takes far less planning than many rows of literals."""
        types = {item: label_type(self.columns[item]) for item in self.request.items}
        listed = typed_domain(self.request.domain, types)
        arrays, labels = [], []
        for n, (item, column) in enumerate(zip(self.request.items, listed.columns, strict=True)):
            literal = text_literal(json.dumps(list(map(str, column.to_pylist())), ensure_ascii=False))
            arrays.append(f"CAST(json_parse({literal}) AS ARRAY(VARCHAR))")
            labels.append(f"CAST(v{n} AS {self._label_type(item)}) AS i{n}")
        values = ", ".join(f"v{n}" for n in range(len(labels)))
        return f"SELECT {', '.join(labels)} FROM UNNEST({', '.join(arrays)}) AS v({values})"

    def _label_type(self, column: str) -> str:
        described = self.columns[column]
        if described.kind is Kind.DECIMAL:
            return described.type
        return {Kind.INTEGER: "BIGINT", Kind.TEXT: "VARCHAR", **self.types}[described.kind]
