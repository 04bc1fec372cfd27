"""What may be told about a run of the service: to its log, its metrics and its traces, and nothing else.

An event is one of the frozen dataclasses here. Their fields are an allow-list: names that officers gave, numbers that
are public or differentially private, codes of ours. There is no field for a message, a statement, a label, a row, a
true count, a key or an engine's own words, so nobody can log one by mistake.

    Requested    a request was answered, whatever became of it
    Released     an answer left
    Refused      a budget was short, or an account is suspended
    Forfeited    a run failed after the data was asked; its worst case stays charged
    Denied       somebody could not say who they are
    AdminChanged        an officer or administrator changed something
    Failed       a bug, or a failure that nobody foresaw
    LibraryLogged    a library had something to say
    LeasesExpired       the upkeep ended dead reservations
    ShareMoved        a share of a budget went from one data centre to another
    IssuerFetched      the identity provider was asked for its keys
    Started        the service is ready
    Stopped        it stopped
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


@dataclass(frozen=True, slots=True)
class Requested:
    """A request was answered.

    Args:
        request_id: of the request, ours.
        route: the method and the template of the path, such as "GET /v1/datasets/{name}"; "other" if there is none.
        status: of HTTP.
        milliseconds: how long it took, on the grid of answers (`on_grid`): what is finer depends on data.
        actor: who asked, or None if nobody knows.
        account: which account it was for, or None.
        problem: the slug of the problem that was answered, or None.
        release: the id of an answer that came from memory; others are told of by `Released`.
        mechanism: what such an answer is of, by name.
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


@dataclass(frozen=True, slots=True)
class Released:
    """An answer left.

    Args:
        request_id: of the request.
        account: who asked.
        dataset: its name in the catalog.
        mechanism: what answered, by name.
        release: the id of the answer.
        rho: what the asking account was charged this time.
        delta: likewise.
        source: where it came from: "engine" if it was computed now, "store" or "memory" if it was there already.
        reservation: that paid for it, or None if nobody had to.
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
    """A question was refused before the data was asked.

    Args:
        request_id: of the request.
        account: who asked.
        kind: why.
        short: the account on the path that fell short, or was suspended.
        rho: what was needed of it; 0 if that does not matter.
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
    """A run failed after the data was asked, and stays paid for.

    Args:
        request_id: of the request.
        account: who asked.
        dataset: its name in the catalog.
        cause: why.
        reservation: that was forfeited, if it is known.
    """

    request_id: str
    account: str
    dataset: str
    cause: Cause
    reservation: str | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """Somebody could not say who they are.

    Args:
        request_id: of the request.
        reason: why.
        key_id: of a key that is known, such as one that expired; never what a stranger sent.
    """

    request_id: str
    reason: Literal["missing", "malformed", "unknown", "expired", "token"]
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class AdminChanged:
    """An officer or administrator changed something; the ledger says what, and why.

    Args:
        request_id: of the request.
        actor: who.
        route: as in `Requested`.
        subject: the name of what was changed: an account, the id of a key.
    """

    request_id: str
    actor: str
    route: str
    subject: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A bug, or a failure that nobody foresaw. What the exception says may hold data, so it is left out.

    Args:
        where: the route, or what else was being done: "upkeep".
        error: the name of the exception's type, and behind it those of its causes: "RunFailed from KeyError".
        frames: where it came from, in our own code only: "service/desk.py:120", the outermost first.
        request_id: of the request, if it was one.
    """

    where: str
    error: str
    frames: tuple[str, ...]
    request_id: str | None = None

    @classmethod
    def of(cls, error: BaseException, where: str, request_id: str | None = None) -> Self:
        """What may be told of *error*."""
        return cls(where, *describe_exception(error), request_id)


@dataclass(frozen=True, slots=True)
class LibraryLogged:
    """A library had something to say. Its words may hold data, so only where it said them is told.

    Args:
        source: the name of its logger, or what else it used.
        level: how bad it is.
        place: file and line, such as "server.py:84".
        error: the name of an exception's type, or None.
        frames: as in `Failed`.
    """

    source: str
    level: Literal["debug", "info", "warning", "error", "critical"]
    place: str
    error: str | None = None
    frames: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeasesExpired:
    """The upkeep ended reservations whose lease was over.

    Args:
        ended: how many.
    """

    ended: int


@dataclass(frozen=True, slots=True)
class ShareMoved:
    """A share of a budget went from one data centre to another.

    Args:
        transfer: its name.
        peer: the other data centre, as the settings call it.
        account: whose budget.
        step: what happened here.
    """

    transfer: str
    peer: str
    account: str
    step: Literal["sent", "received", "refused", "unreachable"]


@dataclass(frozen=True, slots=True)
class IssuerFetched:
    """The identity provider was asked.

    Args:
        what: for its settings or its keys.
        outcome: how it went.
    """

    what: Literal["discovery", "keys"]
    outcome: Literal["ok", "failed"]


@dataclass(frozen=True, slots=True)
class Started:
    """The service is ready.

    Args:
        version: of the software.
        host: where it listens.
        port: likewise.
        store: the kind of the budget store.
        datasets: how many there are.
    """

    version: str
    host: str
    port: int
    store: Literal["sqlite", "postgresql"]
    datasets: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The service stopped.

    Args:
        reason: why.
    """

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
"""All there is to tell."""


def on_grid(seconds: float, grid_ms: int) -> int:
    """A duration in whole milliseconds, rounded up to a multiple of *grid_ms*; to one millisecond if that is 0."""
    step = max(grid_ms, 1)
    return math.ceil(max(seconds, 0.0) * 1000 / step) * step


CAUSES_MOST = 10
"""Causes of an exception that are told, with itself."""

_SOURCE = Path(__file__).resolve().parent.parent.parent


def describe_exception(error: BaseException) -> tuple[str, tuple[str, ...]]:
    """What may be told of an exception: the names of its type and those of its causes, and lines of our own code."""
    names: list[str] = []
    frames: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(names) < CAUSES_MOST:
        names.append(type(cause).__name__)
        frames += frames_of(cause.__traceback__)
        cause = cause.__cause__
    return " from ".join(names), tuple(frames)


def frames_of(trace: TracebackType | None) -> tuple[str, ...]:
    """File and line of our own code on the way to an exception, the outermost first; no code, no values."""
    frames = []
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path.is_relative_to(_SOURCE):
            frames.append(f"{path.relative_to(_SOURCE).as_posix()}:{trace.tb_lineno}")
        trace = trace.tb_next
    return tuple(frames)
