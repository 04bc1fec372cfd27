"""A Pinot cluster over HTTP: its client, and the checks of a cluster and a table that exact counts need.

Some settings of brokers and tables silently make counts inexact or truncate responses. A table's settings are read
for every request, and a broker's, which only a restart changes, once per connection; unknown versions are refused.
"""

from __future__ import annotations

import contextlib
import json
import re
import ssl
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from discreet.engines.base import PATIENCE_SECONDS, run
from discreet.engines.http_connection import HttpConnection
from discreet.errors import EngineError, EngineUnreachable, InexactHead, InputError, UnknownColumn
from discreet.head_request import Kind

OPTIONS = {
    "useMultistageEngine": "false",  # it keeps 100,000 groups, and reports all servers as answering
    "numGroupsLimit": "20000000",  # per segment; groups beyond it are left out, and a flag is set
    "minSegmentGroupTrimSize": "0",  # 0 is off
    "minServerGroupTrimSize": "0",
    "minBrokerGroupTrimSize": "0",
    "groupTrimThreshold": "0",
    "useStarTree": "false",
    "enableNullHandling": "false",
    "skipUpsert": "false",
    "skipUnavailableServers": "false",
    "ignoreMissingSegments": "false",
    "serverReturnFinalResult": "false",
    "serverReturnFinalResultKeyUnpartitioned": "false",
    "optimizeMaxInitialResultHolderCapacity": "false",
}
"""Options sent with every statement. A version ignores unknown ones; `Generation` has the checks for it."""

_SETTINGS_SECONDS = 30.0
_CANCEL_SECONDS = 2.0
_DAY_MILLISECONDS = 86_400_000
_HOST = re.compile(r"[\w.:-]+")


class PinotClient:
    """A client of one broker and a controller of its cluster, for one request at a time.

    Args:
        broker: URL of the broker.
        controller: URL of the controller.
        account: user and password, for both.
        tls: the TLS context, which validates certificates.
        seconds: time limit of a statement, or None.
    """

    def __init__(
        self,
        broker: str,
        controller: str,
        account: tuple[str, str] | None,
        tls: ssl.SSLContext,
        seconds: float | None,
    ) -> None:
        self.broker = PinotProcess(broker, account, tls)
        self.controller = PinotProcess(controller, account, tls)
        self._seconds = seconds

    def run(self, statement: str, progress: Callable[[float], None] | None = None) -> dict[str, Any]:
        """Return the broker's response to a statement, unchecked.

        Raises:
            EngineError: the broker cannot be reached, refused the account, failed, or took too long.
        """
        mark = f"discreet-{uuid.uuid4().hex}"
        milliseconds = _DAY_MILLISECONDS if self._seconds is None else max(int(self._seconds * 1000), 1)
        options = OPTIONS | {"timeoutMs": str(milliseconds), "clientQueryId": f"'{mark}'"}
        text = "".join(f"SET {name}={value}; " for name, value in options.items()) + statement
        answer = run(
            lambda: self.broker.post("/query/sql", {"sql": text}),
            lambda: self.broker.cancel(mark),
            seconds=self._seconds,
            progress=progress,
            patience=PATIENCE_SECONDS,
        )
        if not isinstance(answer, dict):
            raise EngineError(f"what answers at {self.broker.url} is not a broker of Pinot")
        return answer

    def close(self) -> None:
        """Close the sockets."""
        self.broker.close()
        self.controller.close()


class PinotProcess:
    """A broker or a controller behind a connection for one request at a time.

    Args:
        account: user and password.
        tls: the TLS context, which validates certificates.
    """

    def __init__(self, url: str, account: tuple[str, str] | None, tls: ssl.SSLContext) -> None:
        self.url = url
        self._account = account
        self._tls = tls
        parts = urlsplit(url)
        self._prefix = parts.path
        self._http = HttpConnection(parts.hostname or "", parts.port, tls if parts.scheme == "https" else None)
        self._headers = {}
        if account is not None:
            self._headers["Authorization"] = f"Basic {b64encode(':'.join(account).encode()).decode()}"
        self._constants: dict[str, tuple[int, Any]] = {}

    def get(self, path: str, seconds: float = _SETTINGS_SECONDS) -> Any:  # noqa: ANN401 - any JSON value
        """Send a GET request and return the JSON of the response; an empty mapping for 404.

        Raises:
            EngineError: the process cannot be reached, or refuses.
        """
        status, body = self._send("GET", path, seconds=seconds)
        return {} if status == HTTPStatus.NOT_FOUND else self._json(status, body)

    def constant(self, path: str) -> Any:  # noqa: ANN401 - any JSON value
        """Return JSON that is constant while the process runs; it is read once per connection.

        A restart of the process closes the connection, which the preceding request detects.
        """
        read, answer = self._constants.get(path, (0, None))
        if read == 0 or read != self._http.opened:
            answer = self.get(path)
            self._constants[path] = (self._http.opened, answer)
        return answer

    def post(self, path: str, content: Mapping[str, str]) -> Any:  # noqa: ANN401 - any JSON value
        """Send a POST request without a time limit, and return the JSON of the response."""
        body = json.dumps(content).encode()
        return self._json(*self._send("POST", path, body, {"Content-Type": "application/json"}))

    def ping(self) -> None:
        """Check the health of the process; no statement is sent.

        Raises:
            EngineUnreachable: the process cannot be reached, or is not ready.
        """
        status = None
        with contextlib.suppress(EngineError):
            status, _ = self._send("GET", "/health", seconds=_SETTINGS_SECONDS)
        if status != HTTPStatus.OK:
            raise EngineUnreachable(f"Pinot cannot be reached at {self.url}, or is not ready")

    def cancel(self, mark: str) -> None:
        """Stop waiting for the statement that contains *mark*, and cancel it at the broker if possible."""
        self._http.cut()
        with (
            contextlib.suppress(EngineError, ValueError, AttributeError, TypeError),
            contextlib.closing(PinotProcess(self.url, self._account, self._tls)) as other,
        ):
            for number, text in other.get("/queries", _CANCEL_SECONDS).items():
                if mark in text:
                    other._send("DELETE", f"/query/{int(number)}", seconds=_CANCEL_SECONDS)

    def close(self) -> None:
        """Close the socket."""
        self._http.close()

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        seconds: float | None = None,
    ) -> tuple[int, bytes]:
        try:
            response, answer = self._http.send(
                method, self._prefix + path, body, {**self._headers, **headers}, seconds=seconds
            )
        except ConnectionError:
            raise EngineError(f"Pinot cannot be reached at {self.url}") from None
        return response.status, answer

    def _json(self, status: int, body: bytes) -> Any:  # noqa: ANN401 - any JSON value
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise EngineError(f"Pinot at {self.url} does not accept the user and the password")
        if status != HTTPStatus.OK:
            raise EngineError(f"Pinot at {self.url} failed, with HTTP status {status}")
        try:
            return json.loads(body)
        except ValueError:
            raise EngineError(f"what answers at {self.url} is not Pinot") from None


def tls_of(*urls: str) -> ssl.SSLContext:
    """Return a TLS context; it loads the trusted certificates, which takes long, only if a URL uses TLS."""
    secure = any(url.startswith("https://") for url in urls)
    return ssl.create_default_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def check_url(url: str) -> str:
    """Return the URL of a controller without its trailing slash.

    Raises:
        InputError: the URL is not valid.
    """
    try:
        parts = urlsplit(url)
        named = _HOST.fullmatch(parts.hostname or "") is not None and parts.port != 0
    except ValueError:  # the port is not a number
        named = False
    if not named or parts.scheme not in {"http", "https"} or "@" in parts.netloc or parts.query or parts.fragment:
        raise InputError("the controller of Pinot is named by a URL such as http://host:9000")
    return url.rstrip("/")


_KINDS = {
    "STRING": Kind.TEXT,
    "INT": Kind.INTEGER,
    "LONG": Kind.INTEGER,
    "BOOLEAN": Kind.BOOLEAN,
    "TIMESTAMP": Kind.TIMESTAMP,
    "FLOAT": Kind.FLOAT,
    "DOUBLE": Kind.FLOAT,
}
_STORED_IN_DIMENSIONS = {
    "STRING": "null",
    "INT": str(-(2**31)),
    "LONG": str(-(2**63)),
    "TIMESTAMP": "0",
    "FLOAT": "-Infinity",
    "DOUBLE": "-Infinity",
}
"""Default stored values of NULL, by Pinot's types; a BOOLEAN has no value to spare for NULL."""

_STORED_IN_METRICS = {"STRING": "null"}
"""Default stored values of NULL in metrics; other types store 0, which is also an ordinary number."""


@dataclass(frozen=True, slots=True)
class PinotColumn:
    """A column.

    Args:
        kind: OTHER for lists and for unsupported types.
        nullable: False if the schema declares that no value is missing.
        stored: the value that Pinot stores for NULL; None if it is also an ordinary value.
    """

    kind: Kind
    type: str
    nullable: bool
    stored: str | None


def columns_of(schema: Mapping[str, Any], table: str) -> dict[str, PinotColumn]:
    """Return the columns of a schema, in its order.

    Args:
        table: name of the table, without the type.
    """
    columns = {}
    for field, stored in _fields(schema):
        name = field["name"]
        type_ = field["dataType"]
        # Pinot parses table.column as the column of the table.
        readable = field.get("singleValueField", True) is True and not name.startswith((f"{table}.", "$"))
        kind = _KINDS.get(type_, Kind.OTHER) if readable else Kind.OTHER
        value = _stored(field.get("defaultNullValue"), type_, stored)
        columns[name] = PinotColumn(kind, type_, field.get("notNull") is not True, value)
    return columns


def column_of(name: str, columns: Mapping[str, PinotColumn]) -> PinotColumn:
    """Return a column that a request uses.

    Raises:
        UnknownColumn: the table does not have the column, or no longer.
        InputError: the column holds lists, or its missing values cannot be distinguished from others.
    """
    if name not in columns:
        raise UnknownColumn(name, columns)
    column = columns[name]
    if column.kind is Kind.OTHER:
        raise InputError(f"column {name!r} is of a type that is not read from Pinot, or holds several values")
    if column.nullable and column.stored is None:
        raise InputError(
            f"the missing values of column {name!r} are stored like others; declare it notNull in the schema if it has "
            "none, or give it a defaultNullValue of its own"
        )
    return column


def _stored(declared: object, type_: str, usual: Mapping[str, str]) -> str | None:
    """Return the literal of the value that is stored for a missing one."""
    if declared is None or type_ == "BOOLEAN":
        return usual.get(type_)
    try:
        if type_ in {"INT", "LONG", "TIMESTAMP"}:
            return str(int(str(declared)))
        return repr(float(str(declared))) if type_ in {"FLOAT", "DOUBLE"} else str(declared)
    except ValueError:  # a timestamp as text, whose time zone is unknown
        return None


def _fields(schema: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, str]]]:
    for specification, stored in (
        ("dimensionFieldSpecs", _STORED_IN_DIMENSIONS),
        ("metricFieldSpecs", _STORED_IN_METRICS),
        ("dateTimeFieldSpecs", _STORED_IN_DIMENSIONS),
    ):
        for field in schema.get(specification) or ():
            yield field, stored


@dataclass(frozen=True, slots=True)
class Generation:
    """The checks for versions of Pinot whose source was reviewed and that passed the tests.

    Args:
        signs: keys of a response that must be present and false, with the meaning of any other value.
        threshold: True if the broker trims groups above a number that only its own settings can raise.
        named: True if a response names its broker.
        made: the controller's path of the segments' metadata, and the key of a segment's creation time.
    """

    signs: Mapping[str, str]
    threshold: bool
    named: bool
    made: tuple[str, str]


_LIMIT = {"numGroupsLimitReached": "Pinot left groups out, because a segment has more than it keeps"}
_LATER = _LIMIT | {
    "partialResult": "Pinot's answer is partial",
    "groupsTrimmed": "Pinot trimmed groups",
    "rlsFiltersApplied": "Pinot filtered rows by the account that queries",
}
_BY_SERVERS = ("metadata", "creationTimeMillis")
_BY_ZOOKEEPER = ("zkmetadata", "segment.creation.time")
GENERATIONS: Mapping[str, Generation] = MappingProxyType(
    {
        "0.11": Generation(MappingProxyType(_LIMIT), threshold=True, named=False, made=_BY_SERVERS),
        "1.4": Generation(MappingProxyType(_LATER), threshold=False, named=True, made=_BY_ZOOKEEPER),
        "1.5": Generation(MappingProxyType(_LATER), threshold=False, named=True, made=_BY_ZOOKEEPER),
    }
)
"""Generations by major and minor version."""

THRESHOLD_OFF = 1_000_000_000
"""A broker of 0.11 does not trim groups if its threshold is at least this."""

_CORE = ("pinot-controller", "pinot-distribution", "pinot-core", "pinot-common")
_MUST_BE_OFF = {
    "pinot.broker.use.approximate.function": "makes the broker count approximately",
    "enable.distinct.count.bitmap.override": "makes the broker count hashes of users",
}
_MUST_BE_UNSET = {
    "pinot.broker.query.rewriter.class.names": "makes the broker rewrite queries",
    "pinot.broker.result.rewriter.class.names": "makes the broker rewrite answers",
}


@dataclass(frozen=True, slots=True)
class Attested:
    """The checked settings of a table and its cluster.

    Args:
        partitioned: columns whose distinct values Pinot counts in each segment, and adds up.
        broker: name of the broker in the cluster, or None.
        limit: maximum number of rows that the broker returns, or None.
    """

    generation: Generation
    columns: Mapping[str, PinotColumn]
    partitioned: frozenset[str]
    broker: str | None
    limit: int | None
    segments: frozenset[str]


def attested(controller: PinotProcess, settings: Mapping[str, Any], table: str) -> Attested:
    """Read the settings, and refuse those under which a count may not be exact.

    Args:
        settings: the broker's response at /appconfigs.
        table: name of the table, without the type.

    Raises:
        InputError: the table does not exist.
        InexactHead: a setting makes counts inexact, or the version is not known.
        EngineError: the controller cannot be reached, or a response is not that of Pinot.
    """
    try:
        partitioned = check_table(controller, table)
        columns = columns_of(controller.get(f"/tables/{table}/schema"), table)
        segments = segments_of(controller, table)
        generation = _generation(controller.constant("/version"))  # last, because the requests above detect a restart
        name, limit = _check_broker(settings["pinotConfig"], generation)
    except InputError:  # which is a ValueError
        raise
    except (LookupError, TypeError, ValueError, AttributeError):
        raise EngineError("the controller or the broker of Pinot answered with something else than expected") from None
    return Attested(generation, columns, partitioned, name, limit, segments)


def segments_of(controller: PinotProcess, table: str) -> frozenset[str]:
    """Return the names of a table's segments.

    Raises:
        LookupError, TypeError: the controller's response has another form.
    """
    listed = controller.get(f"/segments/{table}?type=OFFLINE&excludeReplacedSegments=true")
    return frozenset(map(str, listed[0]["OFFLINE"]))


def _generation(versions: Mapping[str, str]) -> Generation:
    """Return the generation of Pinot's components, or raise `InexactHead` if they differ or it is unknown."""
    releases = {".".join(versions[name].split("-")[0].split(".")[:2]) for name in _CORE if name in versions}
    if len(releases) != 1 or not releases <= GENERATIONS.keys():
        raise InexactHead(
            "this version of Pinot is not known to count exactly; the ones that are known are " + ", ".join(GENERATIONS)
        )
    return GENERATIONS[releases.pop()]


def check_table(controller: PinotProcess, table: str) -> frozenset[str]:
    """Refuse settings that make a table's counts inexact; return its columns that are partitioned by segment.

    Raises:
        InputError: the table does not exist.
        InexactHead: a setting makes counts inexact.
        EngineError: the controller cannot be reached, or is not that of Pinot.
    """
    configs = controller.get(f"/tables/{table}")
    if not isinstance(configs, dict):
        raise EngineError(f"what answers at {controller.url} is not a controller of Pinot")
    if "REALTIME" in configs:
        raise InexactHead(f"table {table!r} takes in rows while it is counted; only offline tables stand still")
    if "OFFLINE" not in configs:
        raise InputError(f"Pinot has no offline table {table!r}")
    config = configs["OFFLINE"]
    query = config.get("query") or {}
    if query.get("useApproximateFunction"):
        raise InexactHead(f"query.useApproximateFunction of table {table!r} makes Pinot count approximately")
    if query.get("expressionOverrideMap"):
        raise InexactHead(f"query.expressionOverrideMap of table {table!r} makes Pinot rewrite queries")
    if (config.get("upsertConfig") or {}).get("mode", "NONE") != "NONE":
        raise InexactHead(f"upsertConfig of table {table!r} makes rows come and go while they are counted")
    return frozenset(
        field["name"]
        for field in config.get("fieldConfigList") or ()
        if _is_true((field.get("properties") or {}).get("isSegmentPartitioned"))
    )


def _check_broker(settings: Mapping[str, Any], generation: Generation) -> tuple[str | None, int | None]:
    """Refuse settings that make a broker's counts inexact; return its name and its maximum number of rows."""
    # Pinot ignores case, hyphens and underscores in names of settings.
    by_name = {name.lower().replace("-", "").replace("_", ""): value for name, value in settings.items()}
    for name, effect in _MUST_BE_OFF.items():
        if _is_true(by_name.get(name)):
            raise InexactHead(f"{name} {effect}; set it to false")
    for name, effect in _MUST_BE_UNSET.items():
        if by_name.get(name):
            raise InexactHead(f"{name} {effect}; leave it out")
    if generation.threshold and int(by_name.get("pinot.broker.groupby.trim.threshold", 0)) < THRESHOLD_OFF:
        raise InexactHead(
            "this version of Pinot trims groups at the broker silently; set pinot.broker.groupby.trim.threshold "
            f"to {THRESHOLD_OFF}"
        )
    limit = by_name.get("pinot.broker.query.response.limit")
    return by_name.get("pinot.broker.instance.id"), None if limit is None else int(limit)


def _is_true(value: object) -> bool:
    return str(value).strip().lower() == "true"
