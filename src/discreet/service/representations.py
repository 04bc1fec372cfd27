"""The representations of a release, and which of them the header Accept asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from discreet.service.problems import NotAcceptable
from discreet.wire import document

if TYPE_CHECKING:
    from collections.abc import Mapping

Form: TypeAlias = Literal["json", "csv", "arrow"]
"""A representation of a release."""

MEDIA_TYPES: Mapping[Form, str] = {
    "json": "application/json",
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.stream",
}
"""Of each form, preferred first."""

_CONTENT_TYPES: Mapping[Form, str] = {**MEDIA_TYPES, "csv": "text/csv; charset=utf-8; header=present"}


def negotiate(accept: str | None) -> Form:
    """Return the form that a header prefers.

    Args:
        accept: the value of the header (RFC 9110, section 12.5.1), or None if there was none.

    Raises:
        NotAcceptable: it allows none of the forms.
    """
    if accept is None or accept == "*/*" or accept == MEDIA_TYPES["json"]:
        return "json"
    ranges = dict(_range(part) for part in accept.split(",") if part.strip())
    weighed = {form: _weight(media, ranges) for form, media in MEDIA_TYPES.items()}
    best = max(weighed, key=lambda form: weighed[form])  # the first of several
    if ranges and not weighed[best]:
        raise NotAcceptable(tuple(MEDIA_TYPES.values()))
    return best


def represent(stored: bytes, form: Form) -> bytes:
    """Return the stored document of a release in *form*."""
    match form:
        case "json":
            return stored
        case "csv":
            return document.to_csv(stored)
        case "arrow":
            return document.to_arrow(stored)


def content_type(form: Form) -> str:
    """Return the header Content-Type of *form*."""
    return _CONTENT_TYPES[form]


def _range(part: str) -> tuple[str, float]:
    """Return a media range and its weight from 0 to 1; a malformed weight is 0."""
    media, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            return media.lower(), _number(value.strip())
    return media.lower(), 1.0


def _number(text: str) -> float:
    digits = text.replace(".", "", 1)
    return min(float(text), 1.0) if digits.isascii() and digits.isdigit() and len(text) <= 5 else 0.0


def _weight(media: str, ranges: Mapping[str, float]) -> float:
    """Return the weight that the most specific of the ranges gives *media*."""
    family = media.partition("/")[0]
    return next((ranges[name] for name in (media, f"{family}/*", "*/*") if name in ranges), 0.0)
