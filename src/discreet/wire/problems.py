"""The service's error responses: problem details, RFC 9457."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from discreet.budget.errors import AccountSuspended, ClockError, DataChanged, KeyReused, StoreUnavailable
from discreet.errors import (
    BudgetExceeded,
    DiscreetError,
    EngineError,
    EngineTimeout,
    EngineUnreachable,
    InputError,
    ProblemKind,
    UnknownColumn,
    WhereError,
)
from discreet.wire.queries import Spend

PROBLEM_TYPE = "application/problem+json"
"""Media type of problem details."""

Slug: TypeAlias = str
"""The name of a kind of problem, a key of `KINDS`."""

KINDS: Mapping[Slug, ProblemKind] = MappingProxyType(
    {
        kind.slug: kind
        for kind in (
            WhereError.problem,
            ProblemKind("unauthorized", 401, "The key is missing or invalid"),
            BudgetExceeded.problem,
            AccountSuspended.problem,
            ProblemKind("forbidden", 403, "The key lacks the role for this"),
            UnknownColumn.problem,
            ProblemKind(
                "method-not-allowed",
                405,
                "The method is not allowed here",
                detail="see the header Allow for the methods that are allowed here",
            ),
            ProblemKind("not-acceptable", 406, "The result is not available in that form"),
            ProblemKind(
                "in-flight",
                409,
                "The same request is being answered",
                "nothing more than by the first request",
                retry_after=1,
            ),
            KeyReused.problem,
            ProblemKind("too-large", 413, "The request is too large"),
            ProblemKind("unsupported-media-type", 415, "The request is not JSON"),
            InputError.problem,
            ProblemKind("too-many-requests", 429, "Too many requests", retry_after=1),
            DiscreetError.problem,
            EngineUnreachable.problem,
            EngineError.problem,
            EngineTimeout.problem,
            StoreUnavailable.problem,
            DataChanged.problem,
            ClockError.problem,
        )
    }
)
"""All kinds of problems that the service replies with, by name: those of the library's errors, and those of HTTP."""


class Fitting(BaseModel):
    """The largest value of one parameter that would still fit the budget."""

    model_config = ConfigDict(frozen=True)

    epsilon: float | None = Field(default=None, description="The largest epsilon that still fits, all else equal.")
    k: int | None = Field(default=None, description="The largest k that still fits, all else equal.")
    information: int | None = Field(
        default=None, description="The largest number of units of information that still fits, all else equal."
    )


class Together(BaseModel):
    """A query with `each` in place of a drill-down: the answers for every label of a column, for one price."""

    model_config = ConfigDict(frozen=True)

    column: str = Field(description="The column of the filter whose labels would be the segments.")
    needed: Spend = Field(description="The worst-case cost of the query for all of its labels.")

    @property
    def hint(self) -> str:
        """The query and its cost, as the end of a sentence about another query."""
        cost = f"rho = {self.needed.rho:.3g}, delta = {self.needed.delta:.3g}"
        return f"; one query with each {self.column!r} would answer it for all labels and cost {cost} at most"


class Problem(BaseModel):
    """A problem (RFC 9457)."""

    model_config = ConfigDict(frozen=True)

    type: str = Field(description='"/problems/" and the name of the kind.')
    title: str = Field(description="The kind in words.")
    status: int = Field(description="HTTP status.")
    detail: str = Field(description="One sentence: what was wrong, what is allowed.")
    request_id: str = Field(description="Id of the request, as in the log of the service.")
    position: int | None = Field(
        default=None, description="The offset at which the statement or the filter could not be parsed, counted from 0."
    )
    account: str | None = Field(default=None, description="The account that falls short or is suspended.")
    needed: Spend | None = Field(default=None, description="The worst-case cost of the release to that account.")
    left: Spend | None = Field(default=None, description="The balance of that account.")
    resets_at: str | None = Field(
        default=None, description="The time at which some of it is available again; absent if never."
    )
    fits: Fitting | None = Field(
        default=None, description="The largest value of a parameter that would still fit; absent if none would."
    )
    each: Together | None = Field(
        default=None, description="One query for every label of a column of the filter; absent if there is none."
    )
    until: str | None = Field(
        default=None, description="The time at which the suspension ends by itself; null if it does not."
    )

    @property
    def slug(self) -> str:
        """The name of the kind."""
        return self.type.removeprefix("/problems/")

    def to_bytes(self) -> bytes:
        """Return the problem as JSON, without fields that are None."""
        return self.model_dump_json(exclude_none=True).encode()


def problem(slug: Slug, detail: str, request_id: str, **more: object) -> Problem:
    """Return a problem of a kind.

    Args:
        detail: one sentence.
        **more: other fields of `Problem`.
    """
    kind = KINDS[slug]
    return Problem.model_validate(
        {
            "type": f"/problems/{slug}",
            "title": kind.title,
            "status": kind.status,
            "detail": detail,
            "request_id": request_id,
            **more,
        }
    )
