"""The service's error responses (problem details, RFC 9457), and the errors of malformed requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

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
from discreet.values import Cost, float_above, float_below

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

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


class Spend(BaseModel):
    """An amount of privacy, spent or left, in delta-approximate rho-zCDP.

    Costs are rounded up, balances are rounded down.
    """

    model_config = ConfigDict(frozen=True)

    rho: float = Field(ge=0, description="rho of zCDP.")
    delta: float = Field(ge=0, description="Probability mass that the zCDP bound does not cover.")

    def __str__(self) -> str:
        return f"rho={self.rho:.3g}, delta={self.delta:.3g}"

    def share_of(self, budget: Spend) -> float:
        """Return the fraction of *budget* that this takes, the larger of rho and delta: from 0 to 1.

        A part that costs nothing takes 0, and one that costs something takes 1 of an empty budget.
        """
        parts = (self.rho, budget.rho), (self.delta, budget.delta)
        return max(0.0 if not cost else min(cost / left, 1.0) if left else 1.0 for cost, left in parts)

    def left_of(self, limit: Spend) -> float:
        """Return the fraction of *limit* that this balance is, the smaller of rho and delta: from 0 to 1."""
        parts = (self.rho, limit.rho), (self.delta, limit.delta)
        return min((min(left / whole, 1.0) for left, whole in parts if whole), default=1.0)


def percent(share: float) -> str:
    """Format a fraction of 1 as a percentage."""
    shown = 100 * share
    if 0 < shown < 0.1 or 99.5 <= shown < 100:
        return "< 0.1 %" if shown < 1 else f"{shown:.1f} %" if shown < 99.9 else "> 99.9 %"
    return f"{shown:,.0f} %" if shown >= 10 or not shown else f"{shown:.1f} %"


def iso_time(time_us: int) -> str:
    """Return microseconds since 1970 as ISO 8601 in UTC."""
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat()


def spend_above(cost: Cost) -> Spend:
    """Return *cost* as floats, rounded up."""
    return Spend(rho=float_above(cost.rho), delta=float_above(cost.delta))


def spend_below(cost: Cost) -> Spend:
    """Return *cost* as floats, rounded down."""
    return Spend(rho=float_below(cost.rho), delta=float_below(cost.delta))


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


Shape = TypeVar("Shape", bound=BaseModel)


class Malformed(InputError):
    """A request that cannot be parsed.

    Attributes:
        position: 0-based offset of the error in the statement or the filter, or None.
    """

    problem = WhereError.problem

    def __init__(self, message: str, position: int | None = None) -> None:
        self.position = position
        super().__init__(message)


def request_error(sentence: str) -> PydanticCustomError:
    """Return the error for a validator to raise, with *sentence* as its message."""
    return PydanticCustomError("mistake", "{sentence}", {"sentence": sentence})


_SENTENCES = {
    "json_invalid": "the body must be JSON",
    "extra_forbidden": "there is no field {place}",
    "string_type": "{place} must be text",
    "string_unicode": "{place} must be text of Unicode characters",
    "string_too_short": "{place} must not be empty",
    "string_too_long": "{place} must have at most {max_length} characters",
    "float_type": "{place} must be a number",
    "int_type": "{place} must be a whole number",
    "int_from_float": "{place} must be a whole number",
    "bool_type": "{place} must be true or false",
    "dict_type": "{place} must be an object",
    "model_type": "{place} must be an object",
    "model_attributes_type": "{place} must be an object",
    "list_type": "{place} must be a list",
    "literal_error": "{place} must be {expected}",
    "finite_number": "{place} must be a finite number",
    "missing": "{place} is missing",
    "greater_than": "{place} must be above {gt:g}",
    "greater_than_equal": "{place} must be at least {ge}",
    "less_than_equal": "{place} must be at most {le}",
    "mistake": "{sentence}",
    "value_error": "{error}",
}
"""Messages by pydantic's error type."""


def message_of(error: ValidationError) -> str:
    """Return the first error as one sentence, which shows names of fields but no values that were sent."""
    first = error.errors(include_url=False, include_input=False)[0]
    # pydantic adds the names of validators and of the types of a union to the location.
    place = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("constrained-", "function-")))
    if not place:
        place = "the body"
    elif first["loc"][-1] in {"float", "str"}:  # a field that takes either
        return f"'{place.rpartition('.')[0]}' must be a finite number or text"
    sentence = _SENTENCES.get(first["type"], "{place} is not what this field takes")
    shown = place if place == "the body" else repr(place[:100])
    return sentence.format(**{**first.get("ctx", {}), "place": shown})


def read_body(kind: type[Shape], body: bytes) -> Shape:
    """Parse a JSON body as a model.

    Raises:
        Malformed: the body is not a valid *kind*; the message shows no values that were sent.
    """
    try:
        value = kind.model_validate_json(body)
    except ValidationError as error:
        sentence = message_of(error)
        first = error.errors(include_url=False, include_input=False)[0]
        position = getattr(first.get("ctx", {}).get("error"), "position", None)  # of an error in a filter
    else:
        # JSON parsers do not agree which of two fields of the same name to keep (RFC 8259, section 4), so another one,
        # such as a proxy's, could have read another request.
        json.loads(body, object_pairs_hook=_refuse_duplicates, parse_int=str, parse_float=str)
        return value
    raise Malformed(sentence, position)  # outside the except block: pydantic's error may hold values that were sent


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> None:
    """Refuse an object with a repeated field."""
    if len({name for name, _ in pairs}) < len(pairs):
        raise Malformed("an object in the body has a field twice")
