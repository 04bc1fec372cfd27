"""Errors of the client, and their construction from the service's problems (RFC 9457).

    DiscreetError
    ├── InputError
    │   ├── Unauthorized       the key is wrong, expired or revoked
    │   ├── Forbidden          the key lacks the role
    │   ├── Suspended          by an officer, or too many runs failed; wait, or contact an officer
    │   ├── NotFound           the name does not exist, or is hidden from this key
    │   └── Busy               too many requests, or the same one is still being answered
    ├── BudgetExceeded
    │   └── BudgetShort        with the account, its balance, the cost, and the limits that would fit
    ├── EngineError            the engine behind the service failed
    └── ServiceError           the service cannot be reached, or failed

A statement outside the grammar raises `SQLError` or `WhereError` with the position, any other invalid query
`InputError`. The messages are those of the service.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from pydantic import ValidationError

from discreet.errors import (
    BudgetExceeded,
    DiscreetError,
    EngineError,
    EngineTimeout,
    EngineUnreachable,
    InputError,
    NotFound,
    SQLError,
    WhereError,
)
from discreet.values import Cost, exact
from discreet.wire.problems import KINDS, PROBLEM_TYPE, Problem
from discreet.wire.queries import Spend


class Unauthorized(InputError):
    """The key is wrong, it expired, or it was revoked."""

    problem = KINDS["unauthorized"]


class Forbidden(InputError):
    """The key is valid, but another role is needed."""

    problem = KINDS["forbidden"]


class Suspended(InputError):
    """An officer suspended the account or one above it, or too many of its runs failed.

    Attributes:
        until: when the suspension ends by itself, or None if an officer has to lift it.
    """

    problem = KINDS["suspended"]

    def __init__(self, message: str, until: datetime | None) -> None:
        self.until = until
        super().__init__(message)


class Busy(InputError):
    """Too many requests, or the same one is still being answered, for longer than the client waits.

    Attributes:
        retry_after: seconds after which to retry, or None if the service does not say.
    """

    problem = KINDS["too-many-requests"]  # and "in-flight"

    def __init__(self, message: str, retry_after: float | None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class BudgetShort(BudgetExceeded):
    """The answer could cost more than an account has left. Nothing was read, nothing was charged.

    Attributes:
        account: the account with too little left: the key's account, or a parent.
        needed: the worst cost of the answer.
        resets_at: when the next charge expires, or None if none will.
        fits: the largest values of "k", "epsilon" or "information" that would still fit; empty if none would.
        each: one query with this column in `each` would answer the query for all of its labels; None if none would.
    """

    def __init__(
        self,
        message: str,
        *,
        account: str,
        needed: Cost,
        left: Cost,
        resets_at: datetime | None,
        fits: Mapping[str, float],
        each: str | None = None,
    ) -> None:
        self.account = account
        self.needed = needed
        self.left = left
        self.resets_at = resets_at
        self.fits = dict(fits)
        self.each = each
        super().__init__(message)


class ServiceError(DiscreetError):
    """The service cannot be reached or failed, or the server at the URL is not a Discreet service.

    Attributes:
        status: the HTTP status, or None if there was no reply.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


_PLAIN: Mapping[str, type[DiscreetError]] = {
    each.problem.slug: each
    for each in (Unauthorized, Forbidden, NotFound, EngineUnreachable, EngineError, EngineTimeout)
} | {"data-changed": EngineError}
"""Errors that hold a message only, by the problem's slug."""


def read_problem(headers: Mapping[str, str], body: bytes) -> Problem | None:
    """Parse the problem in a reply; None if the reply holds none."""
    if headers.get("content-type", "").partition(";")[0].strip() != PROBLEM_TYPE:
        return None
    try:
        return Problem.model_validate_json(body)
    except ValidationError:
        return None


def error_of(problem: Problem, retry_after: float | None) -> DiscreetError:
    """Return the error to raise for a problem.

    Args:
        retry_after: seconds to wait, from the header Retry-After, or None.
    """
    detail = problem.detail
    error: DiscreetError
    match problem.slug:
        case "malformed":
            error = InputError(detail)
            for kind in (SQLError, WhereError):  # their messages begin in their own way
                opening = str(kind("", problem.position))
                if detail.startswith(opening):
                    error = kind(detail.removeprefix(opening), problem.position)
        case "budget-short":
            error = _budget_short(problem)
        case "suspended":
            error = Suspended(detail, _moment(problem.until))
        case "too-many-requests" | "in-flight":
            error = Busy(detail, retry_after)
        case slug if slug in _PLAIN:
            error = _PLAIN[slug](detail)
        case _:  # also the kinds of a newer service
            error = InputError(detail) if 400 <= problem.status < 500 else ServiceError(detail, problem.status)
    error.add_note(f"in the log of the service: request {problem.request_id}")
    return error


def _budget_short(problem: Problem) -> DiscreetError:
    if problem.account is None or problem.needed is None or problem.left is None:
        return BudgetExceeded(problem.detail)
    fits = {} if problem.fits is None else problem.fits.model_dump(exclude_none=True)
    needed = cost_of(problem.needed)
    left = cost_of(problem.left)
    resets_at = _moment(problem.resets_at)
    parts = {"rho": (needed.rho, left.rho), "delta": (needed.delta, left.delta)}
    short = {name: part for name, part in parts.items() if part[0] > part[1]} or parts
    costs = " and ".join(f"{name} = {float(cost):.3g}" for name, (cost, _) in short.items())
    rests = " and ".join(f"{float(rest):.3g}" for _, rest in short.values())
    message = f"the answer could cost {costs}, but account {problem.account!r} has only {rests} left"
    if fits:
        message += f"; {' or '.join(f'{name} = {most:.4g}' for name, most in fits.items())} would still fit"
    segment_column = None if problem.each is None else problem.each.column
    message += "" if problem.each is None else problem.each.hint
    if resets_at is not None:
        message += f"; some comes back at {resets_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return BudgetShort(
        message, account=problem.account, needed=needed, left=left, resets_at=resets_at, fits=fits, each=segment_column
    )


def cost_of(spend: Spend) -> Cost:
    """Convert a `Spend` to a `Cost`, exactly."""
    return Cost(exact(spend.rho, "rho"), exact(spend.delta, "delta"))


def _moment(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None
