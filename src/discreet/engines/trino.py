"""Trino: tables of all its catalogs, over HTTP."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import requests
import trino.auth
import trino.dbapi
import trino.exceptions
from numpy.typing import NDArray

from discreet.engines.base import (
    LABEL_TYPES,
    PATIENCE_SECONDS,
    SqlEngine,
    check_names,
    listing,
    refused_as,
    run,
    typed_domain,
)
from discreet.engines.pairs import HashedPairs, histogram, int64_column, scattered
from discreet.engines.sql import Columns, EngineColumn, HeadStatement, decimal_type, integer_type, quoted, text_literal
from discreet.engines.url import Url, parse_url
from discreet.errors import DiscreetError, EngineError, EngineTimeout, EngineUnreachable, InexactHead, InputError
from discreet.head_request import HeadRequest, Kind

Ints: TypeAlias = "NDArray[np.int64]"
_Answer: TypeAlias = "tuple[list[list[Any]], list[tuple[str, str]]]"

_ROWS_AT_ONCE = 2**16
_Result = TypeVar("_Result")

_CATALOGS = "SELECT catalog_name, connector_name FROM system.metadata.catalogs"
_TRIMMING = {"pinot"}
"""Connectors to systems that silently leave groups out of counts."""

MAX_LENGTH = 1_000_000
"""Maximum number of characters in a statement: the default of Trino's query.max-length."""

_CHOSEN_AT_ONCE = 20_000
"""Maximum number of items in a statement: number, place, scale and cost of an item take 45 characters at most."""

_BITS = {"tinyint": 8, "smallint": 16, "integer": 32, "bigint": 64}
_KINDS = {
    **dict.fromkeys(_BITS, Kind.INTEGER),
    "decimal": Kind.DECIMAL,
    "varchar": Kind.TEXT,
    "uuid": Kind.TEXT,
    "boolean": Kind.BOOLEAN,
    "date": Kind.DATE,
    "timestamp": Kind.TIMESTAMP,
    "real": Kind.FLOAT,
    "double": Kind.FLOAT,
}
_TYPE = re.compile(r"(\w+)(?:\((\d+)(?:, ?(\d+))?\))?( with time zone)?")
_FINEST = 6  # digits of fractional seconds that microseconds hold

_MISSING = {"TABLE_NOT_FOUND", "SCHEMA_NOT_FOUND", "CATALOG_NOT_FOUND", "MISSING_CATALOG_NAME"}
_TRANSPORT_ERRORS = (trino.exceptions.Error, trino.exceptions.HttpError, requests.RequestException)
_CHECK_SECONDS = 10.0


class TrinoEngine(SqlEngine["TrinoClient", "TrinoStatement"]):
    """An engine for a table in Trino.

    Args:
        source_url: trino://user@host:8080/catalog/schema?table=name; with https=true over TLS, and with
            scratch=catalog.schema for pair queries, which make tables there and drop them.
        table: name of the table in the schema, taken literally, if the URL does not name it.
        view: a SELECT of the data owner, used instead of a table.
        password: password of the user; sent only over TLS.
        timeout_seconds: time limit of a query, here and on the server, or None.

    Raises:
        InputError: the URL is not valid, or neither a table nor a view was named, or both.
        EngineError: no table was named, and Trino cannot be reached to list its tables.
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
        url = _parse(source_url).with_password(password)
        table = url.table(table, view)
        url.check_tls("Trino")
        self._where = url
        self._view = view
        self._schema = ".".join(map(quoted, url.path.split("/")))
        scratch = url.options.get("scratch")
        self._scratch = None if scratch is None else ".".join(map(quoted, scratch.split(".")))
        self._seconds = timeout_seconds
        if view is None and table is None:
            raise InputError(f"name a table; the tables of {url} are {self._tables()}")
        self._relation = "shown" if table is None else f"{self._schema}.{quoted(table)}"
        super().__init__(f"{url}, a view" if table is None else f"{url}, table {table}")

    def fetch(self, statement: str) -> pa.Table:
        with self._connection() as client:
            return client.run(statement)

    def _connect(self) -> TrinoClient:
        return TrinoClient(self._where, self._seconds)

    def _ping(self, connection: TrinoClient) -> None:
        connection.ping()

    def _describe(self, connection: TrinoClient) -> Mapping[str, EngineColumn]:
        """Return the columns. Trino's names are lower case and match in any case."""
        every = f"{_with(self._view)}SELECT * FROM {self._relation}"
        try:
            shown = connection.run_types(f"{every} LIMIT 0")
        except TrinoNotFoundError:
            if self._view is not None:
                raise InputError(f"the view names a table that {self._where} does not have") from None
            raise InputError(f"there is no such table; the tables of {self._where} are {self._tables()}") from None
        self._check_connectors(connection, every)
        check_names([name for name, _ in shown], self._name)
        return _AnyCase((name.lower(), column_of(type_)) for name, type_ in shown)

    def _statement(
        self, connection: TrinoClient, request: HeadRequest, columns: Mapping[str, EngineColumn], seed: bytes
    ) -> TrinoStatement:
        del connection
        return TrinoStatement(request, self._relation, columns, seed, self._view)

    def _run(
        self, connection: TrinoClient, statement: TrinoStatement, progress: Callable[[float], None] | None
    ) -> pa.Table:
        return connection.run(statement.write(), progress)

    @property
    def has_pairs(self) -> bool:
        return self._scratch is not None

    def check_pairs(self) -> None:
        if self._scratch is None:
            return
        table = f"{self._scratch}.discreet_{uuid.uuid4().hex}_check"
        refused = (
            f"Trino does not let the account make and drop tables in {self._scratch}, which the URL names as scratch: "
            "create the schema, in a catalog that is writable, or leave scratch out of the URL"
        )
        with self._connection() as client, refused_as(refused):
            client.run(f"CREATE TABLE {table} (n bigint)")
            client.run(f"DROP TABLE {table}")

    @contextlib.contextmanager
    def _open_pairs(
        self, connection: TrinoClient, statement: TrinoStatement, progress: Callable[[float], None] | None
    ) -> Iterator[TrinoPairs]:
        if self._scratch is None:
            raise InputError(
                "Trino has no temporary tables: for pair queries, the URL needs scratch=catalog.schema, where the "
                "account can make tables"
            )
        pairs = TrinoPairs(statement, f"{self._scratch}.discreet_{uuid.uuid4().hex}_", connection, progress)
        seconds = _CHECK_SECONDS
        try:
            pairs.create()
            yield pairs
        except EngineTimeout:
            seconds = 1 - PATIENCE_SECONDS  # so that a stalled network delays the error by a second in all
            raise
        finally:
            pairs.drop(seconds)

    def _check_connectors(self, client: TrinoClient, every: str) -> None:
        """Refuse tables behind connectors that may count inexactly, including tables behind views.

        Raises:
            InexactHead: there is such a connector, or the user may not list the connectors.
        """
        plan = client.run(f"EXPLAIN (TYPE IO, FORMAT JSON) {every}").column(0)[0].as_py()
        try:
            rows = client.run(_CATALOGS).to_pylist()
        except ForbiddenError:
            rows = []
        connectors = {row["catalog_name"]: row["connector_name"] for row in rows}
        for table in json.loads(plan)["inputTableColumnInfos"]:
            catalog = table["table"]["catalog"]
            connector = connectors.get(catalog)
            if connector is None:
                raise InexactHead(
                    f"Trino does not show {self._where.user} the connector of catalog {catalog!r}; "
                    "system.metadata.catalogs must be readable"
                )
            if connector in _TRIMMING:
                raise InexactHead(
                    f"catalog {catalog!r} counts in {connector}, which leaves items out; query it directly"
                )

    def _tables(self) -> str:
        try:
            with contextlib.closing(self._connect()) as client:
                client.ping()
                names = client.run(f"SHOW TABLES FROM {self._schema}").column(0).to_pylist()
        except (TrinoNotFoundError, ForbiddenError):
            raise InputError(f"{self._where} is not a catalog with a schema that {self._where.user} may see") from None
        return listing(names)


def _parse(source_url: str) -> Url:
    url = parse_url(source_url)
    url.check_options({"table", "https", "scratch"})
    complete = url.host and url.user and re.fullmatch("[^/]+/[^/]+", url.path)
    scratch = re.fullmatch(r"[^.]+\.[^.]+", url.options.get("scratch", "catalog.schema"))
    if not complete or not scratch or url.options.get("https", "true") not in {"true", "false"}:
        raise InputError(
            "a Trino URL looks like trino://user@host:8080/catalog/schema?table=name&https=true&scratch=catalog.schema"
        )
    return url


def _with(view: str | None, *others: str) -> str:
    """Return a WITH clause that names the view `shown`; as the first, it cannot refer to the other relations."""
    parts = others if view is None else (f"shown AS ({view}\n)", *others)
    return f"WITH {', '.join(parts)} " if parts else ""


class _AnyCase(Columns):
    """Columns by name, case-insensitive."""

    def __missing__(self, name: str) -> EngineColumn:
        return super().__missing__(name) if name == name.lower() else self[name.lower()]


_MOST_PLACES = 38
_HASH_BYTES = 8


class TrinoStatement(HeadStatement):
    """The statement for a head in Trino's SQL, where text has no collations and is compared by bytes.

    Args:
        seed: selects the random items that are kept of each user.
        view: a SELECT of the data owner, named `shown` in the statement, or None.
    """

    types: ClassVar[Mapping[Kind, str]] = {**HeadStatement.types, Kind.TIMESTAMP: "TIMESTAMP(6)"}

    def __init__(
        self, request: HeadRequest, relation: str, columns: Mapping[str, EngineColumn], seed: bytes, view: str | None
    ) -> None:
        super().__init__(request, relation, columns, seed)
        self._view = view

    def write(self) -> str:
        """Return the statement, preceded by the view and the listed items."""
        return self.with_view(super().write())

    def constant(self, text: str, type_: str | None) -> str:
        literal = text_literal(text)  # only the quote needs an escape
        return literal if type_ is None else f"CAST({literal} AS {type_})"

    def floor(self, column: str) -> str:
        number = self.columns[column].number
        if number is None or number.scale < _MOST_PLACES:
            return super().floor(column)
        value = self.compared(column, Kind.INTEGER)  # between -1 and 1: floor of Trino 476 fails unless it is 0
        return f"CASE WHEN {value} < 0 THEN -1 WHEN {value} >= 0 THEN 0 END"

    def moment(self, column: str) -> str:
        described = self.columns[column]
        if described.kind is Kind.DATE:
            return self.value(column)
        zone = " AT TIME ZONE 'UTC'" if _has_zone(described.type) else ""
        return f"CAST({self.value(column)}{zone} AS TIMESTAMP(6))"

    def label(self, column: str) -> str:
        is_uuid = self.columns[column].type == "uuid"
        return f"CAST({self.value(column)} AS VARCHAR)" if is_uuid else super().label(column)

    def compared(self, column: str, kind: Kind | None) -> str:
        described = self.columns[column]
        if described.kind is Kind.FLOAT:  # nullif would keep NaN, which equals nothing
            name = self.value(column)
            return f"CASE WHEN is_nan({name}) THEN NULL ELSE {name} END"
        return self.label(column) if described.type == "uuid" else super().compared(column, kind)

    def size(self, text: str) -> str:
        return f"length(to_utf8({text}))"

    def digest(self, text: str) -> str:
        return f"lower(to_hex(md5(to_utf8({text}))))"

    def same(self, left: str, right: str) -> str:
        # As IS NOT DISTINCT FROM, which Trino cannot join on by hashes: it would compare every pair with every item.
        texts = (f"coalesce(CAST({label} AS VARCHAR), '')" for label in (left, right))
        return f"{' = '.join(texts)} AND ({left} IS NULL) = ({right} IS NULL)"

    def with_view(self, select: str) -> str:
        """Return a SELECT that uses `rows`, preceded by the view and the listed items.

        Raises:
            InputError: it is longer than `MAX_LENGTH`.
        """
        listed = [] if self.request.listed is None else [f"listed AS ({self._listed_items()})"]
        statement = _with(self._view, *listed) + select
        if len(statement) > MAX_LENGTH:
            raise InputError(f"Trino takes {MAX_LENGTH:,} characters at most; list fewer items or shorter constants")
        return statement

    def _listed_items(self) -> str:
        """Return the listed items as one JSON literal per column, which Trino plans much faster than one per label."""
        types = {item: label_type(self.columns[item]) for item in self.request.listed.column_names}
        listed = typed_domain(self.request.listed, types)
        arrays = []
        labels = []
        for n, (item, column) in enumerate(zip(types, listed.columns, strict=True)):
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


class TrinoPairs(HashedPairs):
    """Pairs in tables of a scratch schema.

    Chosen items are looked up in a map that every worker has, in the arrays of the users: no query joins or regroups
    pairs. The first such query writes the places of the chosen items of each user among them; items that are chosen
    later lie among the first, and their costs are an array by place. It is data and no constant of the statement, for
    which Trino would compile the statement of each release anew.

    Args:
        prefix: unique prefix of the tables' names.
    """

    def __init__(
        self,
        words: TrinoStatement,
        prefix: str,
        client: TrinoClient,
        progress: Callable[[float], None] | None,
    ) -> None:
        super().__init__(words, prefix)
        self._statement = words
        self._prefix = prefix
        self._client = client
        self._progress = progress
        self._tables: list[str] = []
        self._written = np.zeros(0, dtype=np.int64)  # the items whose places the candidates hold
        self._candidates = ""

    def create(self) -> None:
        """Write the relations, one after the other."""
        for name, select in self._statements():
            rows = self._create(name, self._statement.with_view(select) if name == self._rows else select)
            if name == self._rows:
                # array_agg(DISTINCT h), map_agg and histogram take more time than to count the rows of users, too.
                self._elements = rows

    def drop(self, seconds: float) -> None:
        """Drop the tables, and wait at most *seconds* for that; a program that ends waits for the rest.

        The owner of the schema must drop the tables that Trino fails to drop.
        """

        def drop_all() -> None:
            for name in self._tables:
                try:
                    self._client.run(f"DROP TABLE IF EXISTS {name}")
                except EngineTimeout:
                    return  # the others would only wait as long
                except DiscreetError:
                    continue

        drops = threading.Thread(target=drop_all)
        drops.start()
        drops.join(seconds)

    def _hash(self) -> str:
        missing = f"X'{'00' * _HASH_BYTES}'"
        hashes = [f"coalesce(xxhash64(to_utf8(CAST({name} AS VARCHAR))), {missing})" for name in self._words.names]
        joined = f"xxhash64({' || '.join(hashes)})" if len(hashes) > 1 else hashes[0]
        return f"from_big_endian_64({joined})"

    def _distinct(self, name: str) -> str:
        # Trino computes aggregates in one step if one of them has an order, here one of no row; to make partial arrays
        # first, of five rows a user, takes a quarter longer.
        in_one_step = f"array_agg({name} ORDER BY {name}) FILTER (WHERE {name} IS NULL) IS NULL"
        return f"IF({in_one_step}, array_distinct(array_agg({name})))"

    def _size(self, array: str) -> str:
        return f"cardinality({array})"

    def _named_pairs(self, columns: str) -> str:
        return f"(SELECT {columns}, hs FROM {self._users}) AS p CROSS JOIN UNNEST(hs) AS t(h)"

    def users_by_scale(self, items: Ints, last_scale: Ints, costs: Ints, bounds: Ints) -> Ints:
        if not len(items):
            return np.zeros(len(bounds), dtype=np.int64)
        last = int(last_scale.max())  # after it, items cost nothing
        limits = bounds[: min(last + 1, len(bounds) - 1)]
        place = "cardinality(filter(bs, b -> b < c))"
        arrays = {"bs": limits}
        if int(last_scale.min()) < last:
            arrays |= {"ns": np.arange(len(limits)), "ks": self._by_place(items, last_scale)}
            cost = f"IF(k = 0, c, {_total('IF(ks[x] >= k, cs[x], 0)')})"
            first = f"(n, k) -> IF(n = k AND {cost} > bs[k + 1], n + 1, n)"
            place = f"reduce(ns, CAST(0 AS BIGINT), {first}, n -> n)"
        places = f"SELECT {place} AS a FROM {self._priced(items, costs, arrays)}"
        return histogram(self._select(f"SELECT a, count(*) AS b FROM ({places}) AS h GROUP BY a"), len(bounds))

    def clipped_sums(self, items: Ints, costs: Ints, bound: int) -> Ints:
        if not len(items):
            return np.zeros(0, dtype=np.int64)
        weight = self._weight(f"sqrt({self._as_double('bs[1]')} / {self._as_double('c')})")
        priced = self._priced(items, costs, {"bs": np.array([bound])})
        weights = f"SELECT filter(ps, x -> cs[x] > 0) AS ps, {weight} AS w FROM {priced}"
        unnested = f"({weights}) AS v CROSS JOIN UNNEST(ps) AS t(p)"
        table = self._select(f"SELECT p AS a, CAST(sum(w) AS BIGINT) AS b FROM {unnested} GROUP BY p")
        places = np.searchsorted(items, self._written[int64_column(table, "a") - 1])
        return scattered(places, int64_column(table, "b"), len(items))

    def _priced(self, items: Ints, costs: Ints, arrays: Mapping[str, Ints]) -> str:
        """Return the users of *items*, for use in FROM: places ps, costs cs by place, cost c, and *arrays*."""
        row = self._arrays({"cs": self._by_place(items, costs), **arrays})
        cost = f"SELECT p.ps, y.*, {_total('cs[x]')} AS c FROM {self._candidates} AS p CROSS JOIN {row} AS y"
        return f"(SELECT * FROM ({cost}) AS z WHERE c > 0) AS q"

    def _by_place(self, items: Ints, values: Ints) -> Ints:
        """Return *values* of *items* at their places, and 0 at those of others; write candidates that hold *items*."""
        if not self._candidates or not np.isin(items, self._written).all():
            chosen = self._chosen({"item": items, "p": np.arange(1, len(items) + 1)})
            named = f"SELECT map_agg(h, p) AS m FROM {self._numbered} JOIN {chosen} USING (item)"
            places = "filter(transform(hs, h -> element_at(m, h)), p -> p IS NOT NULL)"
            baskets = f"SELECT {places} AS ps FROM {self._users} CROSS JOIN ({named}) AS x"
            self._candidates = f"{self._prefix}candidates{len(self._tables)}"
            self._create(self._candidates, f"SELECT ps FROM ({baskets}) AS b WHERE cardinality(ps) > 0")
            self._written = items
        return scattered(np.searchsorted(self._written, items), values, len(self._written))

    def _create(self, name: str, select: str) -> int:
        """Write a table, and return its number of rows."""
        self._tables.append(name)
        return int(self._client.run(f"CREATE TABLE {name} AS {select}", self._progress).column(0)[0].as_py())

    def _select(self, statement: str, *, labels: bool = False) -> pa.Table:
        del labels  # the columns have the types of the labels already
        return self._client.run(statement, self._progress)

    def _batches(self, statement: str) -> Iterator[pa.Table]:
        return self._client.batches(f"{statement} ORDER BY a", self._progress)

    def _chosen(self, columns: Mapping[str, Ints]) -> str:
        names = ", ".join(columns)
        return f"(SELECT t.* FROM {self._arrays(columns)} AS y CROSS JOIN UNNEST({names}) AS t({names})) AS chosen"

    def _arrays(self, columns: Mapping[str, Ints]) -> str:
        """Return a relation of one row, without a name, for use in FROM: an array of each of *columns*."""
        most = max(map(len, columns.values()))
        selects = (_listed(columns, start) for start in range(0, max(most, 1), _CHOSEN_AT_ONCE))
        first = next(selects)
        if most <= _CHOSEN_AT_ONCE:  # each statement costs Trino a twentieth of a second
            return f"({first})"
        table = f"{self._prefix}chosen{len(self._tables)}"
        self._create(table, first)
        for select in selects:
            self._client.run(f"INSERT INTO {table} {select}", self._progress)
        joined = ", ".join(f"flatten(array_agg({name} ORDER BY start)) AS {name}" for name in columns)
        return f"(SELECT {joined} FROM {table})"


def _listed(columns: Mapping[str, Ints], start: int) -> str:
    """Return a SELECT of one row: the arrays of `_CHOSEN_AT_ONCE` numbers of *columns* from *start* on, and that."""
    names = ", ".join(columns)
    parts = ([values[start : start + _CHOSEN_AT_ONCE].tolist()] for values in columns.values())
    arrays = ", ".join(f"CAST(json_parse('{json.dumps(part)}') AS ARRAY(ARRAY(BIGINT)))" for part in parts)
    return f"SELECT {names}, {start} AS start FROM UNNEST({arrays}) AS t({names})"


def _total(value: str) -> str:
    """Return the SQL for the sum of *value*, SQL of a place x, over the places ps; it is below 2^63."""
    return f"reduce(ps, CAST(0 AS BIGINT), (s, x) -> s + {value}, s -> s)"


class TrinoNotFoundError(InputError):
    """A table, schema or catalog that Trino does not have, or does not show to its user."""


class ForbiddenError(EngineError):
    """Trino's user lacks a privilege that the statement needs."""


class TrinoClient:
    """A connection to Trino. Constants are literals in the statements; nothing is prepared on the server.

    Args:
        url: URL of the coordinator, with https=true for TLS; the path is the default catalog and schema.
        seconds: time limit of a statement, here and on the server, or None.
    """

    def __init__(self, url: Url, seconds: float | None) -> None:
        self._url = url
        self._seconds = seconds
        catalog, schema = url.path.split("/")
        scheme = "https" if url.options.get("https") == "true" else "http"
        host = f"[{url.host}]" if ":" in url.host else url.host
        self._info = f"{scheme}://{host}:{url.port or (443 if scheme == 'https' else 8080)}/v1/info"
        self._http = requests.Session()
        # To compress sums takes the server as long as to add them up.
        self._http.headers["Accept-Encoding"] = "identity"
        self._connection = trino.dbapi.connect(  # type: ignore[no-untyped-call]
            host=url.host,
            port=url.port,
            user=url.user,
            http_scheme=scheme,
            http_session=self._http,
            auth=None if url.password is None else trino.auth.BasicAuthentication(url.user or "", url.password),
            catalog=catalog,
            schema=schema,
            source="discreet",
            timezone="UTC",
            session_properties=None if seconds is None else {"query_max_run_time": f"{seconds:.3f}s"},
            legacy_primitive_types=True,  # Python's dates end with the year 9999
        )

    def run(self, statement: str, progress: Callable[[float], None] | None = None) -> pa.Table:
        """Return all rows of *statement*.

        Raises:
            NotFoundError: the statement names a table that does not exist.
            ForbiddenError: the user may not read a table that it names.
            InputError: the statement is longer than this Trino allows.
            EngineError: Trino cannot be reached, refused the statement, failed, or took too long; or a column has an
                unsupported type.
        """
        return arrow_table(*self._answer(statement, progress))

    def batches(self, statement: str, progress: Callable[[float], None] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of *statement* in batches, as Trino's pages arrive; raises as `run` does.

        The time limit is that of each batch here, and of the whole statement on the server.
        """
        query = _Query(self._connection)
        try:
            self._within_limit(query, lambda: query.begin(statement), progress)
            while rows := self._within_limit(query, lambda: query.fetch(_ROWS_AT_ONCE), progress):
                yield arrow_table(rows, query.columns())
        finally:
            query.end()

    def run_types(self, statement: str) -> list[tuple[str, str]]:
        """Return the column names of *statement* and their types in Trino.

        Raises:
            NotFoundError: the statement names a table that does not exist.
            EngineError: for the same reasons as in `run`.
        """
        return self._answer(statement, None)[1]

    def ping(self) -> None:
        """Check that the coordinator has started; no statement is sent.

        Raises:
            EngineUnreachable: the coordinator does not respond, or has not started.
        """
        try:
            answer = self._http.get(self._info, timeout=_CHECK_SECONDS)
            ready = answer.status_code == requests.codes.ok and answer.json()["starting"] is False
        except requests.exceptions.SSLError:
            raise EngineUnreachable(f"{self._url} has no certificate that is trusted here") from None
        except (requests.exceptions.JSONDecodeError, LookupError, TypeError):
            raise EngineUnreachable(f"what answers at {self._url} is not Trino") from None
        except requests.RequestException:
            raise EngineUnreachable(f"Trino cannot be reached at {self._url}") from None
        if not ready:
            raise EngineUnreachable(f"Trino cannot be reached at {self._url}, or is still starting")

    def close(self) -> None:
        """Close the sockets."""
        self._connection.close()

    def _answer(self, statement: str, progress: Callable[[float], None] | None) -> _Answer:
        query = _Query(self._connection)
        return self._within_limit(query, lambda: query.answer(statement), progress)

    def _within_limit(
        self, query: _Query, step: Callable[[], _Result], progress: Callable[[float], None] | None
    ) -> _Result:
        return run(
            lambda: self._work(step),
            query.cancel,
            seconds=self._seconds,
            progress=progress,
            share=query.share,
            patience=PATIENCE_SECONDS,
        )

    def _work(self, step: Callable[[], _Result]) -> _Result:
        try:
            return step()
        except trino.exceptions.TrinoQueryError as error:
            raise self._refused(error.error_name or "") from None
        except _TRANSPORT_ERRORS as error:
            raise EngineError(self._unreached(error)) from None
        except (ValueError, TypeError, LookupError, AttributeError):
            raise EngineError(f"what answers at {self._url} is not Trino") from None

    def _refused(self, name: str) -> DiscreetError:
        """Return the error for Trino's error name; names come from a fixed list, so they hold no data."""
        if name in _MISSING:
            return TrinoNotFoundError(f"{self._url} has no such table")
        if name == "PERMISSION_DENIED":
            return ForbiddenError(f"Trino does not let {self._url.user} read {self._url}")
        if name == "EXCEEDED_TIME_LIMIT" and self._seconds is not None:
            return EngineTimeout(f"the engine did not answer within {self._seconds:g} seconds")
        if name == "QUERY_TEXT_TOO_LARGE":
            return InputError("this Trino takes no statement of that length; list fewer items or shorter constants")
        return EngineError(f"Trino could not count in {self._url} ({name or 'an unknown error'})")

    def _unreached(self, error: BaseException) -> str:
        status = re.match(r"error (\d+)", str(error))
        if status and status[1] in {"401", "403"}:
            return f"Trino at {self._url} does not accept the user and the password"
        if isinstance(error.__context__, requests.exceptions.SSLError):
            return f"{self._url} has no certificate that is trusted here"
        if status and status[1] in {"404", "405"}:
            return f"Trino at {self._url} does not know the query any more, or is not Trino"
        return f"Trino cannot be reached at {self._url}"


class _Stopped(Exception):
    """This process cancelled the query."""


class _Query:
    """A running statement, which another thread may cancel."""

    def __init__(self, connection: trino.dbapi.Connection) -> None:
        self._stopped = threading.Event()
        self._share = 0.0
        self._cursor = connection.cursor(stats_callback=self._watch)

    def answer(self, statement: str) -> _Answer:
        """Run the statement; return its rows, and the names and types of its columns."""
        try:
            self.begin(statement)
            rows = self._cursor.fetchall()
        finally:
            self.end()
        return rows, self.columns()

    def begin(self, statement: str) -> None:
        """Run the statement, without its rows."""
        self._cursor.execute(statement)

    def fetch(self, size: int) -> list[list[Any]]:
        """Return the next rows, *size* at most, and none at the end."""
        rows: list[list[Any]] = self._cursor.fetchmany(size)
        return rows

    def columns(self) -> list[tuple[str, str]]:
        """Return the names and types of the columns."""
        return [(column.name, column.type_code) for column in self._cursor.description or ()]

    def cancel(self) -> None:
        """Cancel the query on the server, once it has an id."""
        self._stopped.set()
        self.end()

    def share(self) -> float:
        """Return the completed share."""
        return self._share

    def _watch(self, stats: dict[str, Any]) -> None:
        self._share = (stats.get("progressPercentage") or 0) / 100
        if self._stopped.is_set():
            raise _Stopped

    def end(self) -> None:
        """Cancel the query on the server, unless it has ended."""
        with contextlib.suppress(*_TRANSPORT_ERRORS):
            self._cursor.cancel()


def column_of(type_: str) -> EngineColumn:
    """Return a column of Trino's type *type_*."""
    name, first, second, _ = _parts(type_)
    kind = _KINDS.get(name, Kind.OTHER)
    if kind is Kind.TIMESTAMP and first > _FINEST:
        kind = Kind.OTHER
    if kind is Kind.INTEGER:
        return EngineColumn(kind, type_, integer_type(type_, _BITS[name]))
    if kind is Kind.DECIMAL:
        return EngineColumn(kind, type_, decimal_type(type_, first, second))
    return EngineColumn(kind, type_)


def _has_zone(type_: str) -> bool:
    """Return True for timestamps with a time zone."""
    return _parts(type_)[3]


def arrow_table(rows: Sequence[Sequence[Any]], columns: Sequence[tuple[str, str]]) -> pa.Table:
    """Return Trino's *rows* as Arrow.

    Args:
        rows: rows of Trino's client with legacy_primitive_types: dates, timestamps and decimals are text.

    Raises:
        EngineError: a column has an unsupported type, or a value does not have its column's type.
    """
    arrays = []
    for place, (name, type_) in enumerate(columns):
        column = column_of(type_)
        if column.kind is Kind.OTHER or _has_zone(type_):
            raise EngineError(f"column {name!r} is of Trino's type {type_}; cast it to one that is read")
        values = [row[place] for row in rows]
        try:
            if column.kind is Kind.FLOAT:  # the client returns NaN and Infinity as text
                arrays.append(pa.array([None if value is None else float(value) for value in values], pa.float64()))
            elif column.kind in {Kind.DECIMAL, Kind.DATE, Kind.TIMESTAMP}:
                arrays.append(pa.array(values, pa.string()).cast(label_type(column)))
            else:
                arrays.append(pa.array(values, label_type(column)))
        except (pa.ArrowException, ValueError, TypeError):
            raise EngineError(f"Trino sent a value in column {name!r} that is not of its type {type_}") from None
    return pa.table(arrays, [name for name, _ in columns])


def label_type(column: EngineColumn) -> pa.DataType:
    """Return the Arrow type of a column's labels."""
    if column.kind is not Kind.DECIMAL:
        return LABEL_TYPES[column.kind]
    _, digits, scale, _ = _parts(column.type)
    return pa.decimal128(digits, scale)


def _parts(type_: str) -> tuple[str, int, int, bool]:
    """Return a type's name ("" if nested), its numeric parameters (0 if it has none), and True with a time zone."""
    match = _TYPE.fullmatch(type_)
    if match is None:
        return "", 0, 0, False
    return match[1], int(match[2] or 0), int(match[3] or 0), match[4] is not None
