"""PostgreSQL, from version 13 on: tables, partitioned tables, views."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import pyarrow as pa

from discreet.engines.head import exact_head
from discreet.engines.listed import typed_domain
from discreet.engines.pairs import NoPairs
from discreet.engines.postgres_session import ZONED, Session, arrow_type, columns_of, table_of
from discreet.engines.sql import Column, quoted
from discreet.engines.statement import HeadStatement, check_sum
from discreet.engines.url import parse_url
from discreet.errors import EngineError, InexactHead, InputError
from discreet.question import HeadRequest, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, ClassVar

    from discreet.engines.postgres_session import Cursor
    from discreet.question import Constant
    from discreet.values import ExactHead

_OPTIONS = {"table", "sslmode", "sslrootcert"}
_TABLES_SHOWN = 30
_FIND = """
SELECT CAST(n.nspname AS text), CAST(c.relname AS text), row_security_active(c.oid), EXISTS (
    WITH RECURSIVE tree(part) AS (
        SELECT c.oid UNION SELECT i.inhrelid FROM pg_inherits AS i JOIN tree ON i.inhparent = part)
    SELECT FROM tree JOIN pg_class AS p ON p.oid = part WHERE p.relkind = 'f')
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND (concat(n.nspname, '.', c.relname) = $1 OR (c.relname = $1 AND pg_table_is_visible(c.oid)))
ORDER BY 1, 2
"""
_LIST = f"""
SELECT concat(n.nspname, '.', c.relname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm') AND NOT c.relispartition
    AND n.nspname NOT IN ('pg_catalog', 'information_schema')
    AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
ORDER BY 1 LIMIT {_TABLES_SHOWN + 1}
"""
_BYTES = ' COLLATE "C"'
_LABEL_TYPES = {Kind.TEXT: "text", Kind.INTEGER: "bigint", Kind.TIMESTAMP: "timestamp"}
_DAYS = "DATE '0001-01-01' AND DATE '9999-12-31'"
_MOMENTS = "TIMESTAMP '0001-01-01 00:00:00' AND TIMESTAMP '9999-12-31 23:59:59.999999'"


class PostgresEngine(NoPairs):
    """A table that PostgreSQL keeps; see `discreet.engines.base.Engine`.

    Args:
        source_url: postgresql://reader@host:5432/database?table=schema.name, with sslmode and sslrootcert if need be.
        table: which table, as it is written, its schema before it if need be; or the URL names it.
        view: or a SELECT of the data owner's, which stands in its place.
        password: of the account, if neither the URL nor ~/.pgpass nor PGPASSWORD has it.
        timeout_seconds: how long a count may take, here and on the server, or None.

    Raises:
        InputError: the URL cannot be meant, there is no such table, or neither a table nor a view was named, or both.
        EngineError: the server cannot be reached.
        InexactHead: row security hides rows of the table from the account, or its rows are somewhere else.
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
        url.check_options(_OPTIONS)
        table = url.options.get("table") if table is None else table
        if table is not None and view is not None:
            raise InputError("name a table or a view, not both")
        self._session = Session(url, url.password if password is None else password, timeout_seconds)
        self._close = weakref.finalize(self, self._session.close)
        self._columns: Mapping[str, Column] | None = None
        self._exact_users: set[str] = set()
        self._lock = threading.Lock()  # a connection answers one question at a time
        if view is None:
            schema, table = self._session.ask(lambda cursor: _found(cursor, table, str(url)))
            self._relation, self._name = f"{quoted(schema)}.{quoted(table)}", f"{url}, table {schema}.{table}"
        else:
            self._relation, self._name = f"({view}\n) AS shown", f"{url}, a view"

    @property
    def name(self) -> str:
        """See `Engine.name`: the URL and the table."""
        return self._name

    def columns(self) -> Mapping[str, Kind]:
        """See `Engine.columns`."""
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
        """None: PostgreSQL has no public name for the state of a table."""
        return None

    def check(self, request: HeadRequest) -> None:
        with self._lock:
            self._session.ask(lambda cursor: cursor.execute("SELECT 1").fetchall())
            self._statement(request, bytes(32)).write()

    def _statement(self, request: HeadRequest, seed: bytes) -> Statement:
        columns = self._described()
        self._check_user(request.user, columns[request.user])
        return Statement(request, self._relation, columns, seed)

    def head(
        self, request: HeadRequest, *, seed: bytes = b"", progress: Callable[[float], None] | None = None
    ) -> ExactHead:
        """See `Engine.head`."""
        with self._lock:
            statement, columns = self._statement(request, seed), self._described()
            fields = [(f"i{n}", arrow_type(columns[item])) for n, item in enumerate(request.items)]
            counts = ["n"] if request.summed is None else ["n", "t"]
            schema = pa.schema([*fields, *((name, pa.int64()) for name in counts)])
            sql, bound = statement.write(), statement.bound
            table = self._session.ask(lambda cursor: table_of(cursor, sql, bound, schema), progress)
            return exact_head(table, request)

    def fetch(self, statement: str) -> pa.Table:
        """See `Engine.fetch`. A SELECT or VALUES, without a semicolon."""
        with self._lock:
            return self._session.ask(lambda cursor: _fetched(cursor, f"({statement}\n) AS shown"))

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _described(self) -> Mapping[str, Column]:
        if self._columns is None:
            fields = self._session.ask(lambda cursor: columns_of(cursor, self._relation))
            if len(dict(fields)) < len(fields):
                raise InputError(f"{self._name} has two columns of one name; give each a name of its own")
            self._columns = dict(fields)
        return self._columns

    def _check_user(self, user: str, column: Column) -> None:
        """Refuse users whose texts the table takes for equal though they differ: one of them would count as several.

        Raises:
            InputError: the column ignores case or the like.
        """
        if column.kind is not Kind.TEXT or user in self._exact_users:
            return
        exact = column.type in {"uuid", "enum"}
        if column.type == "text":
            rules = f"to_regcollation(pg_collation_for((SELECT {quoted(user)} FROM {self._relation} LIMIT 0)))"
            sql = f"SELECT collisdeterministic FROM pg_collation WHERE oid = {rules}"
            exact = self._session.ask(lambda cursor: cursor.execute(sql).fetchall()) != [(False,)]
        if not exact:
            raise InputError(
                f"column {user!r} takes texts that differ for the same user; show each user as one text in a view, "
                'such as lower(CAST(name AS text)) COLLATE "C" AS name'
            )
        self._exact_users.add(user)


def _found(cursor: Cursor, table: str | None, where: str) -> tuple[str, str]:
    """The schema and name of a table.

    Raises:
        InputError: there is none of that name, or several.
        InexactHead: not all of its rows can be counted.
    """
    found = [] if table is None else cursor.execute(_FIND, [table.replace("\0", "\ufffd")]).fetchall()
    if len(found) != 1:
        names = [name for (name,) in cursor.execute(_LIST).fetchall()]
        shown = ", ".join(map(repr, names[:_TABLES_SHOWN])) or "none"
        others = " and others" if len(names) > _TABLES_SHOWN else ""
        wanted = "name a table" if table is None else f"there is {'no' if not found else 'more than one'} {table!r}"
        raise InputError(f"{wanted}; the tables of {where} that may be read are {shown}{others}")
    schema, name, hidden, foreign = found[0]
    if hidden:
        raise InexactHead(
            f"row security may hide rows of table {schema}.{name} from this account; "
            "let it read a view of the owner's, or give it BYPASSRLS"
        )
    if foreign:
        raise InexactHead(f"rows of table {schema}.{name} are in another system, which may not send all; copy them")
    return schema, name


def _fetched(cursor: Cursor, relation: str) -> pa.Table:
    """All that stands behind FROM.

    Raises:
        EngineError: a column has a type that is not read, or two have one name.
    """
    fields = columns_of(cursor, relation)
    columns = dict(fields)
    unread = [name for name, column in fields if column.kind is Kind.OTHER]
    if unread or len(columns) < len(fields):
        raise EngineError("the statement selects a column of a type that is not read, or two of one name; use CAST, AS")
    words = Statement(HeadRequest("", (), 1), relation, columns)
    selected = ", ".join(f"{words.label(name)} AS {quoted(name)}" for name in columns)
    schema = pa.schema([(name, arrow_type(column)) for name, column in fields])
    return table_of(cursor, f"SELECT {selected} FROM {relation}", [], schema)


class Statement(HeadStatement):
    """What PostgreSQL says in words of its own.

    Text is compared and sorted by its bytes: by the rules of a language, texts that differ may be equal.
    """

    text: ClassVar[str] = "text"
    double: ClassVar[str] = "double precision"

    def __init__(self, request: HeadRequest, relation: str, columns: Mapping[str, Column], seed: bytes = b"") -> None:
        super().__init__(request, relation, columns, seed)
        self._listed = [] if request.domain is None else _texts(request, columns)

    @property
    def bound(self) -> list[Any]:
        """What $1, $2, ... stand for: the listed labels, column by column, and the constants."""
        return [*self._listed, *self.parameters]

    def constant(self, text: str, type_: str | None) -> str:
        """A constant of a type, None for text; bound."""
        self.parameters.append(text)
        return f"CAST(${len(self.bound)} AS {type_ or self.text})"

    def label(self, column: str) -> str:
        """Labels that Arrow and Python can hold; what is beyond them, infinity and NaN, is missing."""
        name = self.quoted(column)
        match self.columns[column].kind:
            case Kind.TEXT:
                return f"CAST({name} AS text){_BYTES}"
            case Kind.DATE:
                return f"CASE WHEN {name} BETWEEN {_DAYS} THEN {name} END"
            case Kind.TIMESTAMP:
                moment = self.compared(column, None)
                return f"CASE WHEN {moment} BETWEEN {_MOMENTS} THEN {moment} END"
            case Kind.DECIMAL:
                return self.compared(column, None)
        return super().label(column)

    def present(self, column: str) -> str:
        """Whether a row has a label or user."""
        return f"{self.label(column)} IS NOT NULL"

    def compared(self, column: str, kind: Kind | None) -> str:
        """Text by its bytes, moments in UTC; NaN is missing, also among decimals."""
        name = self.quoted(column)
        match self.columns[column]:
            case Column(kind=Kind.TEXT):
                return self.label(column)
            case Column(type=type_) if type_ == ZONED:
                return f"({name} AT TIME ZONE 'UTC')"
            case Column(kind=Kind.DECIMAL):
                return f"nullif({name}, CAST('NaN' AS numeric))"
        return super().compared(column, kind)

    def listed(self) -> str:
        """The listed items, from arrays of text."""
        casts = []
        for name, item in zip(self._names, self.request.items, strict=True):
            column = self.columns[item]
            type_ = _LABEL_TYPES.get(column.kind, column.type)
            casts.append(f"CAST({name} AS {type_}){_BYTES if column.kind is Kind.TEXT else ''} AS {name}")
        arrays = ", ".join(f"CAST(${n + 1} AS text[])" for n in range(len(casts)))
        return f"(SELECT {', '.join(casts)} FROM unnest({arrays}) AS d({self._items})) AS listed"

    def as_text(self, name: str, column: str) -> str:
        """Moments with all their microseconds, as everywhere; days in that form whatever the account prefers."""
        match self.columns[column].kind:
            case Kind.TIMESTAMP:
                return f"to_char({name}, 'YYYY-MM-DD HH24:MI:SS.US')"
            case Kind.DATE:
                return f"to_char({name}, 'YYYY-MM-DD')"
        return super().as_text(name, column)

    def digest(self, text: str) -> str:
        """MD5, sorted by its bytes."""
        return f"md5({text}){_BYTES}"

    def _summand(self, column: str, scale: int) -> str:
        """In a type without bounds."""
        return f"CAST({self.compared(column, None)} AS numeric) * {10**scale}"

    def _fitted(self, column: str, operator: str, constant: Constant) -> tuple[str, str | None]:
        """No text of PostgreSQL holds NUL: every text is as far from one with it as from what stands before that."""
        before, nul, _ = constant.text.partition("\0")
        if not nul:
            return super()._fitted(column, operator, constant)
        if operator in {"=", "<>"}:
            return ("<>" if operator == "=" else "="), None  # of the column with itself: never, and always
        return ("<=" if operator in {"<", "<="} else ">"), self.constant(before, None)


def _texts(request: HeadRequest, columns: Mapping[str, Column]) -> list[list[str]]:
    """The listed labels as text, column by column.

    Raises:
        InputError: a label is not a value that its column can hold, or an item is listed twice.
    """
    types = {item: arrow_type(columns[item]) for item in request.items}
    texts = []
    for column in typed_domain(request.domain, types).columns:
        moments = pa.types.is_timestamp(column.type)
        texts.append((column.cast(pa.timestamp("us")) if moments else column).cast(pa.string()).to_pylist())
    if any("\0" in text for column in texts for text in column):
        raise InputError("the domain lists a label that PostgreSQL cannot hold: text with the character NUL")
    return texts
