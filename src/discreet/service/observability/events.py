"""What the log, the metrics and the traces of the service may contain, and nothing else.

An event is one of the frozen dataclasses here. Their fields are an allow-list: names that officers gave, numbers that
are public or differentially private, codes of ours. There is no field for a message, a statement, a label, a row, a
true count, a key or an engine's own words, so that none of these can be logged by mistake.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

if TYPE_CHECKING:
    from types import TracebackType

Cause: TypeAlias = Literal["engine", "timeout", "client-gone", "data-changed", "lease-lost", "internal"]
"""Why a run was forfeited."""

CAUSES_MOST = 10
"""How many exceptions of a chain are named."""

_SOURCE = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class Requested:
    """A request was answered, with or without success.

    Args:
        request_id: of the request, made by the service.
        route: the method and the path template, such as "GET /v1/datasets/{name}"; "other" if there is none.
        status: of HTTP.
        milliseconds: how long it took, rounded up by `on_grid`: what is finer depends on data.
        actor: who sent it, or None if that is unknown.
        account: of the actor, or None.
        problem: the kind of problem that was answered, or None.
        release: the id of an answer from the cache; others are in `Released`.
        mechanism: of such an answer.
        client: the address that it came from, as far as trusted proxies tell.
    """

    request_id: str
    route: str
    status: int
    milliseconds: int
    actor: str | None = None
    account: str | None = None
    problem: str | None = None
    release: str | None = None
    mechanism: str | None = None
    client: str | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """An answer was computed, or found in the store.

    Args:
        rho: what the account was charged this time.
        delta: likewise.
        source: "engine" if it was computed now; "store" or "memory" if it was there already.
        reservation: that paid for it, or None.
    """

    request_id: str
    account: str
    dataset: str
    mechanism: str
    release: str
    rho: float
    delta: float
    source: Literal["engine", "store", "memory"]
    reservation: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A query was refused before the data was queried.

    Args:
        short: the account on the path that fell short, or is suspended.
        rho: that it would have needed; 0 for a suspension.
        delta: likewise.
    """

    request_id: str
    account: str
    kind: Literal["budget-short", "suspended"]
    short: str
    rho: float = 0.0
    delta: float = 0.0


@dataclass(frozen=True, slots=True)
class Forfeited:
    """A run failed after the data was queried; its worst case stays charged."""

    request_id: str
    account: str
    dataset: str
    cause: Cause
    reservation: str | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """A request had no valid key or token.

    Args:
        key_id: of a known key, such as one that expired; never what an unknown client sent.
        client: as in `Requested`.
    """

    request_id: str
    reason: Literal["missing", "malformed", "unknown", "expired", "token"]
    key_id: str | None = None
    client: str | None = None


@dataclass(frozen=True, slots=True)
class AdminChanged:
    """An officer or admin changed something; the ledger holds what, and why.

    Args:
        subject: the name of the account, or the id of the key.
    """

    request_id: str
    actor: str
    route: str
    subject: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A bug, or an unforeseen failure. The text of the exception may hold data, so it is left out.

    Args:
        where: the route, or a part of the service: "maintenance".
        error: the names of the types of the exception and its causes: "RunFailed from KeyError".
        frames: places in the service's own code, the outermost first: "service/queries.py:120".
        request_id: of the request, if it was one.
    """

    where: str
    error: str
    frames: tuple[str, ...]
    request_id: str | None = None

    @classmethod
    def of(cls, error: BaseException, where: str, request_id: str | None = None) -> Self:
        """Return the event of *error*."""
        return cls(where, *describe_exception(error), request_id)


@dataclass(frozen=True, slots=True)
class LibraryLogged:
    """A library logged something. Its text may hold data, so only the place is recorded.

    Args:
        source: the name of the logger, or "warnings".
        place: file and line, such as "server.py:84".
        error: as in `Failed`, or None.
        frames: as in `Failed`.
    """

    source: str
    level: Literal["debug", "info", "warning", "error", "critical"]
    place: str
    error: str | None = None
    frames: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeasesExpired:
    """Maintenance ended so many reservations whose lease was over."""

    ended: int


@dataclass(frozen=True, slots=True)
class ShareMoved:
    """A share of a budget was sent to another data centre, or received from it.

    Args:
        transfer: its name.
        peer: the other data centre, as in the settings.
    """

    transfer: str
    peer: str
    account: str
    step: Literal["sent", "received", "refused", "unreachable"]


@dataclass(frozen=True, slots=True)
class IssuerFetched:
    """The settings or the keys of the OpenID issuer were fetched."""

    what: Literal["discovery", "keys"]
    outcome: Literal["ok", "failed"]


@dataclass(frozen=True, slots=True)
class Started:
    """The service is ready."""

    version: str
    host: str
    port: int
    store: Literal["sqlite", "postgresql"]
    datasets: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The service stopped."""

    reason: Literal["asked", "failed"] = "asked"


Event: TypeAlias = (
    Requested
    | Released
    | Refused
    | Forfeited
    | Denied
    | AdminChanged
    | Failed
    | LibraryLogged
    | LeasesExpired
    | ShareMoved
    | IssuerFetched
    | Started
    | Stopped
)
"""All that can be logged."""


def on_grid(seconds: float, grid_ms: int) -> int:
    """Return a duration in whole milliseconds, rounded up to a multiple of *grid_ms*; of 1 ms if that is 0."""
    step = max(grid_ms, 1)
    return math.ceil(max(seconds, 0.0) * 1000 / step) * step


def describe_exception(error: BaseException) -> tuple[str, tuple[str, ...]]:
    """Return the names of the types of *error* and its causes, and the lines of our own code that they passed."""
    names: list[str] = []
    frames: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(names) < CAUSES_MOST:
        names.append(type(cause).__name__)
        frames += _frames(cause.__traceback__)
        cause = cause.__cause__
    return " from ".join(names), tuple(frames)


def _frames(trace: TracebackType | None) -> list[str]:
    frames = []
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path.is_relative_to(_SOURCE):
            frames.append(f"{path.relative_to(_SOURCE).as_posix()}:{trace.tb_lineno}")
        trace = trace.tb_next
    return frames
