"""Representations of a release: JSON, CSV, Arrow and Parquet, and the choice among them by the header Accept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from discreet.service.problems import NotAcceptable
from discreet.wire import document

if TYPE_CHECKING:
    from collections.abc import Mapping

Form: TypeAlias = Literal["json", "csv", "arrow", "parquet"]
"""A representation of a release."""

MEDIA_TYPES: Mapping[Form, str] = {
    "json": "application/json",
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}
"""The media type of each form, in order of preference."""

_CONTENT_TYPES: Mapping[Form, str] = {**MEDIA_TYPES, "csv": "text/csv; charset=utf-8; header=present"}


def negotiate(accept: str | None) -> Form:
    """Return the form that a header Accept prefers.

    Args:
        accept: the value of the header (RFC 9110, section 12.5.1), or None if the request has none.

    Raises:
        NotAcceptable: the header allows none of the forms.
    """
    if accept is None or accept == "*/*" or accept == MEDIA_TYPES["json"]:
        return "json"
    ranges = dict(_parse_media_range(part) for part in accept.split(",") if part.strip())
    weighed = {form: _weight(media, ranges) for form, media in MEDIA_TYPES.items()}
    best = max(weighed, key=lambda form: weighed[form])  # on a tie, the first
    if ranges and not weighed[best]:
        raise NotAcceptable(tuple(MEDIA_TYPES.values()))
    return best


def represent(stored: bytes, form: Form) -> bytes:
    """Convert the stored document of a release to *form*."""
    return stored if form == "json" else document.write_table(document.decode(stored).to_arrow(), form)


def content_headers(form: Form) -> dict[str, str]:
    """Return the content headers of a response in *form*, which depends on the header Accept."""
    return {"Content-Type": _CONTENT_TYPES[form], "Vary": "Accept"}


def _parse_media_range(part: str) -> tuple[str, float]:
    """Return a media range and its weight from 0 to 1; a malformed weight is 0."""
    media, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            return media.lower(), _parse_weight(value.strip())
    return media.lower(), 1.0


def _parse_weight(text: str) -> float:
    digits = text.replace(".", "", 1)
    return min(float(text), 1.0) if digits.isascii() and digits.isdigit() and len(text) <= 5 else 0.0


def _weight(media: str, ranges: Mapping[str, float]) -> float:
    """Return the weight of *media* in the most specific matching media range, or 0."""
    family = media.partition("/")[0]
    return next((ranges[name] for name in (media, f"{family}/*", "*/*") if name in ranges), 0.0)
