"""Connections to a service, and cursors."""

from __future__ import annotations

import ipaddress
import os
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import httpx

from discreet_sql.errors import (
    Error,
    InterfaceError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    error_of,
    slug_of,
)
from discreet_sql.values import bind, reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

_OPTIONS: Mapping[str, Callable[[str], object]] = {
    "epsilon": float,
    "delta": str,  # the service parses decimals from text exactly
    "epsilon_per": str,
    "information": int,
    "relative_error": str,
    "mechanism": str,
    "noise": str,
    "head_limit": int,
    "rehearse": lambda text: bool(("0", "1").index(text)),
}
"""Parsers of the options in URLs, by the option's name in requests; the service sets defaults for missing ones."""

_ATTEMPTS = 4
_RETRIED = {"in-flight", "too-many-requests", "engine-unavailable", "store-unavailable"}
"""Problems that can be retried without another charge."""


@dataclass(frozen=True)
class Address:
    """A parsed URL.

    Args:
        url: the URL of the service, with http or https.
        key: the API key, or None.
        options: options of all queries, as fields of requests.
    """

    url: str
    key: str | None = field(repr=False)
    options: Mapping[str, object]


def parse_url(text: str) -> Address:
    """Parse discreet://name:KEY@host:port/?epsilon=1&delta=1e-8, or the http or https URL of a service.

    A discreet URL means https, and http if the host is this machine; `tls=on` and `tls=off` decide otherwise.

    Raises:
        InterfaceError: the URL is malformed. The message does not show the URL, because it may hold a key.
    """
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        host, port, pairs = "", None, []
    if not host or parts.scheme not in {"discreet", "http", "https"} or parts.fragment:
        raise InterfaceError("a URL looks like discreet://name:KEY@discreet.example.org/?epsilon=1&delta=1e-8")
    given = dict(pairs)
    tls = given.pop("tls", "off" if _is_loopback(host) else "on")
    if tls not in {"on", "off"}:
        raise InterfaceError("tls is on or off")
    scheme = parts.scheme if parts.scheme != "discreet" else "https" if tls == "on" else "http"
    place = (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
    key = None if parts.password is None else unquote(parts.password)
    return Address(f"{scheme}://{place}{parts.path.rstrip('/')}", key, query_options(given))


def query_options(given: Mapping[str, object]) -> dict[str, object]:
    """Convert options of a query to fields of requests.

    Raises:
        InterfaceError: there is no such option, or its value is malformed.
    """
    sent = {}
    for name, value in given.items():
        if name not in _OPTIONS:
            raise InterfaceError(f"there is no option {name!r}; the options are tls, {', '.join(_OPTIONS)}")
        try:
            sent[name] = _OPTIONS[name](str(value))
        except ValueError:
            kind = "0 or 1" if name == "rehearse" else "a number"
            raise InterfaceError(f"the option {name} must be {kind}") from None
    return sent


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def connect(
    url: str,
    key: str | None = None,
    *,
    timeout: float = 300.0,
    transport: httpx.BaseTransport | None = None,
    sleep: Callable[[float], None] = time.sleep,
    **options: object,
) -> Connection:
    """Return a connection to a service. Nothing is sent yet.

    Args:
        url: discreet://name:KEY@host/?epsilon=1&delta=1e-8, or the https URL of the service.
        key: an API key or a token; by default the one in the URL, or in the environment variable DISCREET_KEY.
        timeout: seconds for one attempt of a request.
        transport: a transport of httpx; by default the network, with certificates verified.
        sleep: waits the given number of seconds between attempts.
        **options: epsilon and delta, or epsilon_per and information; relative_error, mechanism, noise, head_limit.
            They replace those in the URL. With rehearse=1, statements are computed from made-up rows, free of charge,
            and their rows have a column `made_up`.

    Raises:
        InterfaceError: the URL or an option is malformed, or there is no key.
    """
    address = parse_url(url)
    key = key or address.key or os.environ.get("DISCREET_KEY")
    if not key or not key.isascii() or not key.isprintable():
        raise InterfaceError(
            "there is no valid key: put it into the URL as discreet://name:KEY@host/, pass key=, or set DISCREET_KEY"
        )
    client = httpx.Client(
        base_url=address.url,
        headers={"Authorization": f"Bearer {key}", "User-Agent": "discreet-sql", "Accept": "application/json"},
        timeout=httpx.Timeout(timeout, connect=min(timeout, 10.0)),
        transport=transport,
        # A proxy from the environment could read unencrypted requests.
        trust_env=address.url.startswith("https:"),
    )
    return Connection(client, {**address.options, **query_options(options)}, sleep)


class Connection:
    """A connection to a service. Thread-safe, and usable as a context manager that closes it."""

    def __init__(self, client: httpx.Client, options: Mapping[str, object], sleep: Callable[[float], None]) -> None:
        self._client, self._options, self._sleep = client, options, sleep

    def cursor(self) -> Cursor:
        """Return a new cursor."""
        if self._client.is_closed:
            raise ProgrammingError("the connection is closed")
        return Cursor(self)

    def commit(self) -> None:
        """Do nothing: there are no transactions."""

    def rollback(self) -> None:
        """Do nothing: charges are final."""

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def datasets(self) -> list[dict[str, Any]]:
        """Return the names and descriptions of the datasets that the account may query."""
        return list(self._send("GET", "/v1/datasets")["datasets"])

    def dataset(self, name: str) -> dict[str, Any]:
        """Return the response of GET /v1/datasets/{name}: the columns of a dataset and their permitted uses."""
        return self._send("GET", f"/v1/datasets/{quote(name, safe='')}")

    def run(self, sql: str) -> dict[str, Any]:
        """Return the response of POST /v1/sql: the columns, rows and queries of a statement.

        Every attempt has the same idempotency key, so that the statement is charged once.
        """
        return self._send("POST", "/v1/sql", {"sql": sql, **self._options})

    def _send(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        headers = {} if body is None else {"Idempotency-Key": secrets.token_hex(16)}
        for attempt in range(1, _ATTEMPTS + 1):
            last = attempt == _ATTEMPTS
            try:
                response = self._client.request(method, path, json=body, headers=headers)
            except httpx.HTTPError as error:
                if last or isinstance(error, httpx.ReadTimeout | httpx.UnsupportedProtocol):
                    raise OperationalError(f"{self._client.base_url} cannot be reached, or did not answer") from None
                self._sleep(0.2 * 2**attempt)
                continue
            except RuntimeError:
                raise ProgrammingError("the connection is closed") from None
            content = _json(response)
            if response.status_code == 200 and content is not None:
                return content
            if content is None or "type" not in content:
                reason = f"{self._client.base_url} replied with HTTP status {response.status_code}"
                raise OperationalError(f"{reason} and is not a Discreet service, or one of another version")
            if last or slug_of(content) not in _RETRIED:
                raise error_of(content)
            self._sleep(_retry_after(response, 0.2 * 2**attempt))
        raise AssertionError("the last attempt returns or raises")  # pragma: no cover


def _json(response: httpx.Response) -> dict[str, Any] | None:
    try:
        content = response.json()
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _retry_after(response: httpx.Response, otherwise: float) -> float:
    text = response.headers.get("retry-after", "")
    return min(float(text), 60.0) if text.isdecimal() else otherwise


class Cursor:
    """Executes statements and returns their rows.

    Attributes:
        description: a tuple for each column (name, type, and five times None), or None before a statement.
        rowcount: the number of rows in the result; -1 before a statement.
        arraysize: the number of rows that `fetchmany` returns by default.
        queries: the queries of datasets in the last statement: sql, dataset, status ("released", "replayed", "public"
            or "made up") and charge of each.
        no_interval: the columns of noisy numbers in the last result without the ends of their 95 % interval, LOW(...)
            and HIGH(...).
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self._reset()
        self._closed = False

    def _reset(self) -> None:
        self.description: list[tuple[str, str, None, None, None, None, None]] | None = None
        self.rowcount = -1
        self.queries: list[dict[str, Any]] = []
        self.no_interval: list[str] = []
        self._rows: Iterator[tuple[Any, ...]] | None = None

    def execute(self, operation: str, parameters: Sequence[object] = ()) -> Cursor:
        """Send a statement and return this cursor.

        Args:
            operation: one SELECT.
            parameters: a value for each question mark.

        Raises:
            ProgrammingError: the statement or a parameter is not allowed; nothing was charged.
            OperationalError: the budget is short, the key is not valid, or the service cannot answer now.
        """
        if self._closed:
            raise ProgrammingError("the cursor is closed")
        self._reset()
        answer = self.connection.run(bind(operation, parameters or ()))
        try:
            columns = [(column["name"], column["type"]) for column in answer["columns"]]
            readers = [reader(kind) for _, kind in columns]
            rows = [tuple(read(cell) for read, cell in zip(readers, row)) for row in answer["rows"]]  # noqa: B905
            self.queries = list(answer.get("queries", []))
            self.no_interval = [column["name"] for column in answer["columns"] if column.get("interval") == "none"]
        except (KeyError, TypeError, ValueError, ArithmeticError):
            raise Error("the service replied with an answer that cannot be read; update discreet-sql") from None
        self.description = [(name, kind, None, None, None, None, None) for name, kind in columns]
        self.rowcount = len(rows)
        self._rows = iter(rows)
        return self

    def executemany(self, operation: str, seq_of_parameters: Sequence[Sequence[object]]) -> None:  # noqa: ARG002
        """Raise `NotSupportedError`: every statement returns rows."""
        raise NotSupportedError("executemany is for statements without rows, and there are none")

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, or None after the last."""
        return next(self._left(), None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """Return the next *size* rows, or fewer at the end."""
        left, most = self._left(), self.arraysize if size is None else size
        return [row for _, row in zip(range(most), left)]  # noqa: B905 - stops at the shorter one

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all remaining rows."""
        return list(self._left())

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._left()

    def _left(self) -> Iterator[tuple[Any, ...]]:
        if self._rows is None or self._closed:
            raise ProgrammingError("no statement was executed, or the cursor is closed")
        return self._rows

    def close(self) -> None:
        """Close the cursor."""
        self._closed = True

    def setinputsizes(self, sizes: Sequence[object]) -> None:
        """Do nothing: sizes are not needed."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing: sizes are not needed."""
