"""The exceptions of the service, and the problem response to each exception.

The message of an exception is shown only if it depends on nothing but the request and the data that its caller may
see. All other exceptions get a fixed message, because messages of engines, stores and bugs may hold data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from starlette.exceptions import HTTPException

from discreet.budget.errors import AccountSuspended, BudgetRefused, LeaseLost, StoreUnavailable
from discreet.budget.model import Refusal
from discreet.errors import (
    DiscreetError,
    EngineBusy,
    EngineError,
    EngineUnreachable,
    InputError,
    NotFound,
    ProblemKind,
    SQLError,
    WhereError,
)
from discreet.wire.problems import KINDS, Fitting, Slug, Together
from discreet.wire.queries import Malformed, iso_time, spend_above, spend_below

DenialReason: TypeAlias = Literal["missing", "malformed", "unknown", "expired", "token"]
"""The reason why a request is unauthorized: for the log, never for the client."""

MAX_CAUSES = 10
"""The maximum of exceptions of a chain that are logged."""

_SOURCE = Path(__file__).resolve().parent.parent


class KeyRefused(DiscreetError):
    """A request has no valid key or token. Its message never says why: that would reveal which keys exist.

    Attributes:
        reason: the reason for the log.
        key_id: the id of a key that expired, otherwise None.
    """

    problem = KINDS["unauthorized"]

    def __init__(self, reason: DenialReason, key_id: str | None = None) -> None:
        self.reason = reason
        self.key_id = key_id
        super().__init__("this needs a valid key: send the header Authorization: Bearer KEY")


class RoleRefused(DiscreetError):
    """The caller does not have the role that an operation needs."""

    problem = KINDS["forbidden"]

    def __init__(self, role: str) -> None:
        self.role = role
        super().__init__(f"this needs the role {role!r}, which this key does not have")


class IssuerUnavailable(DiscreetError):
    """The issuer of tokens cannot be reached, so tokens cannot be checked."""

    problem = replace(
        StoreUnavailable.problem,
        detail="the token cannot be checked, because its issuer cannot be reached; try again later",
        retry_after=5,
    )

    def __init__(self) -> None:
        super().__init__("the issuer of tokens cannot be reached, so tokens cannot be checked now; try again later")


class TooLarge(DiscreetError):
    """The body of a request is longer than allowed."""

    problem = KINDS["too-large"]

    def __init__(self, most: int) -> None:
        super().__init__(f"a request has at most {most:,} bytes")


class UnsupportedMediaType(DiscreetError):
    """The media type of a request body is not supported.

    Args:
        allowed: the supported media type.
    """

    problem = KINDS["unsupported-media-type"]

    def __init__(self, allowed: str) -> None:
        super().__init__(f"a request has the header Content-Type: {allowed} and no Content-Encoding")


class NotAcceptable(DiscreetError):
    """The header Accept allows none of the available representations."""

    problem = KINDS["not-acceptable"]

    def __init__(self, forms: tuple[str, ...]) -> None:
        super().__init__(f"this is available as {' or '.join(forms)}; name one in the header Accept")


class TooManyRequests(DiscreetError):
    """A caller sends requests too fast, or too many at once.

    Attributes:
        seconds: the time until the next request is accepted.
    """

    problem = KINDS["too-many-requests"]

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__("too many requests; wait as long as the header Retry-After says, and send it again")


class RequestInFlight(DiscreetError):
    """An identical request of the account is in progress."""

    problem = KINDS["in-flight"]

    def __init__(self) -> None:
        super().__init__("the same request is under way; send it again for its answer, which is free then")


class UnaffordableQuery(BudgetRefused):
    """A budget cannot pay the worst case of a query.

    Attributes:
        fits: the largest epsilon, k or information that would fit, or None.
        each: one query in place of a drill-down by a column, or None.
    """

    def __init__(self, refusal: Refusal, fits: Fitting | None, each: Together | None = None) -> None:
        self.fits = fits
        self.each = each
        super().__init__(refusal)


class RunFailed(DiscreetError):
    """A query failed after the data was queried; its cause is chained. The forfeited cost pays for a retry."""

    def __init__(self, reservation: str) -> None:
        self.reservation = reservation
        super().__init__("the data was queried, and the query failed; the same query again is already paid for")


class StatementsUnavailable(DiscreetError):
    """No process can be started to compute a statement in."""

    problem = replace(EngineUnreachable.problem, detail=None)  # the message says what stays charged

    def __init__(self, sentence: str = "no process can be started to compute the statement; try again later") -> None:
        super().__init__(sentence)


class StatementFailed(DiscreetError):
    """An unexpected exception ended the process of a statement: a bug.

    Attributes:
        error: the names of the types of the exception and its causes.
        frames: stack frames in the code of the service, as `describe_exception` returns them.
    """

    problem = replace(DiscreetError.problem, detail=None)  # the message says what stays charged

    def __init__(
        self,
        sentence: str = "the process of the statement met a bug of the service, whose log has the details",
        error: str = "",
        frames: tuple[str, ...] = (),
    ) -> None:
        self.error = error
        self.frames = frames
        super().__init__(sentence)


def describe_exception(error: BaseException) -> tuple[str, tuple[str, ...]]:
    """Return the type names of *error* and its causes, and the stack frames in the service's own code."""
    names: list[str] = []
    frames: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(names) < MAX_CAUSES:  # causes may form a cycle
        names.append(type(cause).__name__)
        if isinstance(cause, StatementFailed):
            names += [cause.error] if cause.error else []
            frames += cause.frames
        trace = cause.__traceback__
        while trace is not None:
            path = Path(trace.tb_frame.f_code.co_filename)
            if path.is_relative_to(_SOURCE):  # other paths may hold names of users and customers
                frames.append(f"{path.relative_to(_SOURCE).as_posix()}:{trace.tb_lineno}")
            trace = trace.tb_next
        cause = cause.__cause__
    return " from ".join(names), tuple(frames)


class ClientDisconnected(DiscreetError):
    """The client disconnected before the response was complete; the run is stopped."""

    problem = EngineError.problem

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


def problem_of(error: Exception) -> ProblemAnswer:
    """Return the problem response to *error*."""
    if isinstance(error, HTTPException):  # from the router; its own text is not sent
        if error.status_code == 404:
            return problem_of(NotFound())
        kind = KINDS["method-not-allowed"] if error.status_code == 405 else Malformed.problem
        return ProblemAnswer(kind.slug, kind.detail or "the request cannot be read", headers=dict(error.headers or {}))
    kind = _kind_of(error)
    detail = str(error)
    more: dict[str, Any] = {}
    headers = {} if kind.retry_after is None else {"Retry-After": str(kind.retry_after)}
    match error:
        case RunFailed(__cause__=InputError() as cause):
            detail = f"{cause}; the data was queried, so the worst case stays charged"
        case WhereError() | SQLError() | Malformed() if error.position is not None:
            more = {"position": error.position}
        case KeyRefused():
            headers = {"WWW-Authenticate": "Bearer"}
        case TooManyRequests():
            headers = {"Retry-After": str(math.ceil(error.seconds))}  # the header has whole seconds
        case AccountSuspended():
            more = {"account": error.account, "until": None if error.until_us is None else iso_time(error.until_us)}
        case BudgetRefused():
            refusal = error.refusal
            resets_at_us = error.refusal.resets_at_us
            detail = f"{error}; see needed, left and fits"
            together = error.each if isinstance(error, UnaffordableQuery) else None
            detail += "" if together is None else together.hint
            more = {
                "account": refusal.account,
                "needed": spend_above(refusal.needed),
                "left": spend_below(refusal.remaining),
                "resets_at": None if resets_at_us is None else iso_time(resets_at_us),
                "fits": error.fits if isinstance(error, UnaffordableQuery) else None,
                "each": together,
            }
    return ProblemAnswer(kind.slug, kind.detail or detail, more, headers)


def _kind_of(error: Exception) -> ProblemKind:
    """Return the kind of problem of *error*: its own, unless what is charged depends on when it was raised."""
    kind = error.problem if isinstance(error, DiscreetError) else DiscreetError.problem
    match error:
        case RunFailed(__cause__=InputError()):
            kind = InputError.problem
        case RunFailed(__cause__=EngineUnreachable() | EngineBusy()):
            kind = EngineError.problem  # their own problems are not charged
        case RunFailed(__cause__=DiscreetError(problem=own)) if own.detail is not None:
            kind = own  # a fixed sentence: once data was queried, the message of an error may depend on it
        case EngineError() | LeaseLost() | ClientDisconnected() if not isinstance(error, EngineBusy):
            kind = EngineUnreachable.problem  # no run had begun, so nothing is charged
    return kind
