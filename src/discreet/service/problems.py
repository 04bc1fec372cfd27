"""The exceptions of the service, and the problem response to each exception.

The message of an exception is shown only if it depends on nothing but the request and the data that its caller may
see. All other exceptions get a fixed message, because messages of engines, stores and bugs may hold data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from discreet.budget.errors import (
    BudgetRefused,
    ClockError,
    DataChanged,
    KeyReused,
    LeaseLost,
    LedgerBroken,
    StoreBehind,
    StoreUnavailable,
    Suspended,
    UnknownAccount,
)
from discreet.errors import (
    DiscreetError,
    EngineBusy,
    EngineError,
    EngineTimeout,
    InputError,
    SQLError,
    UnknownColumn,
    WhereError,
)
from discreet.wire.problems import Fitting, Malformed, iso_time, spend_above, spend_below

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.budget.model import Refusal
    from discreet.service.observability.logging import DenialReason
    from discreet.wire.problems import Slug


class Unauthorized(DiscreetError):
    """A request has no valid key or token. Its message never says why: that would reveal which keys exist.

    Attributes:
        reason: the reason for the log.
        key_id: the id of a key that expired, otherwise None.
    """

    def __init__(self, reason: DenialReason, key_id: str | None = None) -> None:
        self.reason, self.key_id = reason, key_id
        super().__init__("this needs a valid key: send the header Authorization: Bearer KEY")


class Forbidden(DiscreetError):
    """The caller does not have the role that an operation needs."""

    def __init__(self, role: str) -> None:
        self.role = role
        super().__init__(f"this needs the role {role!r}, which this key does not have")


class IssuerUnavailable(DiscreetError):
    """The issuer of tokens cannot be reached, so tokens cannot be checked."""

    def __init__(self) -> None:
        super().__init__("the issuer of tokens cannot be reached, so tokens cannot be checked now; try again later")


class NotFound(DiscreetError):
    """Something does not exist, or the caller may not see it; the message does not say which.

    Args:
        sentence: the message; it depends only on data that the caller may see.
    """

    def __init__(self, sentence: str = "there is nothing of that name, or it was not granted") -> None:
        super().__init__(sentence)


class TooLarge(DiscreetError):
    """The body of a request is longer than allowed."""

    def __init__(self, most: int) -> None:
        super().__init__(f"a request has at most {most:,} bytes")


class UnsupportedMediaType(DiscreetError):
    """The media type of a request body is not supported.

    Args:
        allowed: the supported media type.
    """

    def __init__(self, allowed: str) -> None:
        super().__init__(f"a request has the header Content-Type: {allowed} and no Content-Encoding")


class NotAcceptable(DiscreetError):
    """The header Accept allows none of the available representations."""

    def __init__(self, forms: tuple[str, ...]) -> None:
        super().__init__(f"this is available as {' or '.join(forms)}; name one in the header Accept")


class TooManyRequests(DiscreetError):
    """A caller sends requests too fast, or too many at once.

    Attributes:
        seconds: the time until the next request is accepted.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__("too many requests; wait as long as the header Retry-After says, and send it again")


class RequestInFlight(DiscreetError):
    """An identical request of the account is in progress."""

    def __init__(self) -> None:
        super().__init__("the same request is under way; send it again for its answer, which is free then")


class BudgetShort(DiscreetError):
    """A budget cannot pay the worst case of a query.

    Attributes:
        fits: the largest epsilon, k or information that would fit, or None.
    """

    def __init__(self, refusal: Refusal, fits: Fitting | None) -> None:
        self.refusal, self.fits = refusal, fits
        super().__init__(f"the answer could cost more than account {refusal.account!r} has left")


class RunFailed(DiscreetError):
    """A query failed after the data was queried; its cause is chained. The forfeited cost pays for a retry."""

    def __init__(self, reservation: str) -> None:
        self.reservation = reservation
        super().__init__("the data was queried, and the query failed; the same query again is already paid for")


class StatementsUnavailable(DiscreetError):
    """No process can be started to compute a statement in."""

    def __init__(self, sentence: str = "no process can be started to compute the statement; try again later") -> None:
        super().__init__(sentence)


class ClientDisconnected(DiscreetError):
    """The client disconnected before the response was complete; the run is stopped."""

    def __init__(self) -> None:
        super().__init__("the connection was closed before the answer was sent")


@dataclass(frozen=True, slots=True)
class ProblemAnswer:
    """The parts of a problem response.

    Args:
        detail: one sentence for users.
        more: additional fields of the problem.
    """

    slug: Slug
    detail: str
    more: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


_ENGINE_FAILED = ProblemAnswer(
    "engine-failed",
    "the data was queried, and the query failed; its worst case stays charged, and pays for the same query again",
)
_STORE_UNAVAILABLE = ProblemAnswer(
    "store-unavailable",
    "the budget store cannot be reached, so no query is answered; send the same request again, and it is charged once",
    headers={"Retry-After": "2"},
)
_INTERNAL = ProblemAnswer("internal", "the service has a bug; its log has the details")

_FIXED: Mapping[type[Exception], ProblemAnswer] = {
    EngineTimeout: ProblemAnswer(
        "engine-timeout",
        "the data was queried, and the query timed out; its worst case stays charged, and pays for the same query "
        "again",
    ),
    EngineError: _ENGINE_FAILED,
    LeaseLost: _ENGINE_FAILED,
    ClientDisconnected: _ENGINE_FAILED,
    DataChanged: ProblemAnswer(
        "data-changed",
        "the data changed although its version did not, so nothing is answered until its owner gives it a new version",
    ),
    StoreUnavailable: _STORE_UNAVAILABLE,
    StoreBehind: _STORE_UNAVAILABLE,
    LedgerBroken: _STORE_UNAVAILABLE,
    ClockError: ProblemAnswer(
        "clock", "the clock of the budget store ran ahead; no query is answered until an officer confirms the time"
    ),
    IssuerUnavailable: ProblemAnswer(
        "store-unavailable",
        "the token cannot be checked, because its issuer cannot be reached; try again later",
        headers={"Retry-After": "5"},
    ),
}
"""Problems with a fixed message, by exception type; the first match is used."""

_BEFORE_START: Mapping[type[Exception], ProblemAnswer] = {
    EngineBusy: ProblemAnswer(
        "engine-unavailable",
        "too many queries wait for this data; nothing was charged, send the same request again",
        headers={"Retry-After": "5"},
    ),
} | {
    kind: ProblemAnswer(
        "engine-unavailable",
        "the data cannot be reached now; nothing was charged, send the query again",
        headers={"Retry-After": "5"},
    )
    for kind in (EngineError, LeaseLost, ClientDisconnected)
}

_SHOWN: Mapping[type[Exception], Slug] = {
    Malformed: "malformed",
    SQLError: "malformed",
    WhereError: "malformed",
    UnknownColumn: "not-found",
    UnknownAccount: "not-found",
    NotFound: "not-found",
    KeyReused: "key-reused",
    Forbidden: "forbidden",
    TooLarge: "too-large",
    UnsupportedMediaType: "unsupported-media-type",
    NotAcceptable: "not-acceptable",
    InputError: "out-of-range",
}
"""Kinds of problems by type of exception whose message may be shown; the first match is used."""


def problem_of(error: Exception) -> ProblemAnswer:
    """Return the problem response to *error*."""
    match error:
        case HTTPException():
            found = _routing_problem(error)
        case Unauthorized():
            found = ProblemAnswer("unauthorized", str(error), headers={"WWW-Authenticate": "Bearer"})
        case TooManyRequests():
            found = ProblemAnswer(
                "too-many-requests", str(error), headers={"Retry-After": str(math.ceil(error.seconds))}
            )
        case RequestInFlight():
            found = ProblemAnswer("in-flight", str(error), headers={"Retry-After": "1"})
        case StatementsUnavailable():
            found = ProblemAnswer("engine-unavailable", str(error), headers={"Retry-After": "5"})
        case BudgetShort():
            found = _budget_problem(error.refusal, error.fits)
        case BudgetRefused():
            found = _budget_problem(error.refusal, None)
        case Suspended():
            found = ProblemAnswer(
                "suspended", str(error), {"account": error.account, "until": iso_time(error.until_us)}
            )
        case RunFailed():
            found = _run_problem(error.__cause__)
        case _:
            known = _lookup(_SHOWN, error) or _lookup(_BEFORE_START, error) or _lookup(_FIXED, error)
            found = known or _INTERNAL
    return found


def _lookup(
    table: Mapping[type[Exception], Slug] | Mapping[type[Exception], ProblemAnswer], error: Exception
) -> ProblemAnswer | None:
    for kind, found in table.items():
        if isinstance(error, kind):
            if isinstance(found, ProblemAnswer):
                return found
            position = getattr(error, "position", None)
            return ProblemAnswer(found, str(error), {} if position is None else {"position": position})
    return None


def _run_problem(cause: BaseException | None) -> ProblemAnswer:
    """Return the problem of a run that failed after the data was queried."""
    if isinstance(cause, InputError) and isinstance(cause, Exception):
        return ProblemAnswer("out-of-range", f"{cause}; the data was queried, so the worst case stays charged")
    found = _lookup(_FIXED, cause) if isinstance(cause, Exception) else None
    return found or _INTERNAL


def _budget_problem(refusal: Refusal, fits: Fitting | None) -> ProblemAnswer:
    more: dict[str, Any] = {
        "account": refusal.account,
        "needed": spend_above(refusal.needed),
        "left": spend_below(refusal.remaining),
        "resets_at": None if refusal.resets_at_us is None else iso_time(refusal.resets_at_us),
        "fits": fits,
    }
    detail = f"the answer could cost more than account {refusal.account!r} has left; see needed, left and fits"
    return ProblemAnswer("budget-short", detail, more)


def _routing_problem(error: HTTPException) -> ProblemAnswer:
    """Return the problem of a request that the router refused."""
    headers = dict(error.headers or {})
    if error.status_code == 405:
        return ProblemAnswer(
            "method-not-allowed", "see the header Allow for the methods that are allowed here", headers=headers
        )
    if error.status_code == 404:
        return ProblemAnswer("not-found", str(NotFound()))
    return ProblemAnswer("malformed", "the request cannot be read", headers=headers)
