"""Errors as Trino clients know them: a number, a name and a type for each kind of problem of the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from discreet.service.problems import problem_of
from discreet.wire.problems import Slug

_USER = "USER_ERROR"
_INTERNAL = "INTERNAL_ERROR"
_RESOURCES = "INSUFFICIENT_RESOURCES"
_EXTERNAL = "EXTERNAL"

# Numbers of io.trino.spi.StandardErrorCode; those of our own are in the ranges that Trino leaves to connectors.
KINDS: Mapping[str, tuple[int, str]] = {
    "GENERIC_USER_ERROR": (0, _USER),
    "SYNTAX_ERROR": (1, _USER),
    "USER_CANCELED": (3, _USER),
    "PERMISSION_DENIED": (4, _USER),
    "NOT_FOUND": (5, _USER),
    "NOT_SUPPORTED": (13, _USER),
    "INVALID_SESSION_PROPERTY": (14, _USER),
    "QUERY_TEXT_TOO_LARGE": (35, _USER),
    "TABLE_NOT_FOUND": (46, _USER),
    "INVALID_PARAMETER_USAGE": (80, _USER),
    "GENERIC_INTERNAL_ERROR": (65_536, _INTERNAL),
    "EXCEEDED_TIME_LIMIT": (131_075, _RESOURCES),
    "PRIVACY_BUDGET_EXCEEDED": (0x0100_0000 + 1, _RESOURCES),
    "DATA_UNAVAILABLE": (0x0100_0000 + 2, _EXTERNAL),
}

_NAMES: Mapping[Slug, str] = {
    "malformed": "SYNTAX_ERROR",
    "out-of-range": "GENERIC_USER_ERROR",
    "not-found": "TABLE_NOT_FOUND",
    "budget-short": "PRIVACY_BUDGET_EXCEEDED",
    "suspended": "PERMISSION_DENIED",
    "forbidden": "PERMISSION_DENIED",
    "too-large": "QUERY_TEXT_TOO_LARGE",
    "engine-timeout": "EXCEEDED_TIME_LIMIT",
    "engine-unavailable": "DATA_UNAVAILABLE",
    "engine-failed": "DATA_UNAVAILABLE",
    "store-unavailable": "DATA_UNAVAILABLE",
    "data-changed": "DATA_UNAVAILABLE",
    "clock": "DATA_UNAVAILABLE",
}


class TrinoError(Exception):
    """A statement that is not answered.

    Args:
        name: a name of an error of Trino, or one of ours.
        message: one sentence for users.
        position: of the error in the statement, in characters from 0; None if it is not at one.
    """

    def __init__(self, name: str, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.name = name
        self.position = position

    def to_json(self, text: str) -> dict[str, Any]:
        """Return the error as the protocol has it, for the statement *text*."""
        (code, kind), message = KINDS[self.name], str(self)
        fields: dict[str, Any] = {
            "message": message,
            "errorCode": code,
            "errorName": self.name,
            "errorType": kind,
            "failureInfo": {"type": f"discreet.{self.name}", "message": message, "suppressed": [], "stack": []},
        }
        if self.position is not None:
            before = text[: self.position]
            location = {"lineNumber": before.count("\n") + 1, "columnNumber": len(before) - before.rfind("\n")}
            fields["errorLocation"] = location
            fields["failureInfo"]["errorLocation"] = location
        return fields


def trino_error(error: Exception) -> TrinoError:
    """Return the error that clients get for *error*, with the sentence of its problem response."""
    if isinstance(error, TrinoError):
        return error
    answer = problem_of(error)
    detail = answer.detail
    more = answer.more
    if answer.slug == "budget-short":
        needed = more["needed"]
        left = more["left"]
        fits = more["fits"]
        short, _, together = detail.partition("; see needed, left and fits")
        detail = f"{short}: needed {needed}; left {left}"
        if fits is not None:
            would = ", ".join(f"{name} = {value}" for name, value in fits.model_dump(exclude_none=True).items())
            detail += f"; {would} would fit"
        detail += together
        if more["resets_at"] is not None:
            detail += f"; some of it comes back at {more['resets_at']}"
    elif answer.slug == "suspended" and more["until"] is not None:
        detail += f"; until {more['until']}"
    return TrinoError(_NAMES.get(answer.slug, "GENERIC_INTERNAL_ERROR"), detail, more.get("position"))
