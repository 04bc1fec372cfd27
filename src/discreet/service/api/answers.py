"""Answers over HTTP: JSON, CSV, Arrow or Parquet, as the header Accept prefers, and headers with charge and budget."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias

from discreet.budget.model import Calendar, Sliding
from discreet.service.problems import NotAcceptable
from discreet.wire import document
from discreet.wire.problems import spend_above

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.budget.model import Balance
    from discreet.budget.model import Period as AccountPeriod
    from discreet.values import Cost

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


_SECONDS = {"day": 86_400, "week": 604_800, "month": 2_678_400}


def charged_header(cost: Cost) -> str:
    """Return the value of the header Discreet-Charged."""
    spend = spend_above(cost)
    return f"rho={spend.rho!r}, delta={spend.delta!r}"


def budget_headers(balance: Balance) -> tuple[tuple[str, str], ...]:
    """Return the headers with the balance of an account: its mode, and its budget as a rate limit.

    RateLimit-Policy and RateLimit follow draft-ietf-httpapi-ratelimit-headers-11. Their quotas are whole numbers: units
    of an account that has units, otherwise thousandths of rho and 1e-12 of delta; limits and remaining budgets are
    rounded down.
    """
    account, now_us = balance.account, balance.time_us
    window = _window_seconds(account.period)
    reset = None if balance.resets_at_us is None else max(math.ceil((balance.resets_at_us - now_us) / 1_000_000), 0)
    quotas = _quotas(balance)
    policy = ", ".join(f'"{name}";q={most}{_parameter("w", window)}' for name, most, _ in quotas)
    limit = ", ".join(f'"{name}";r={rest}{_parameter("t", reset)}' for name, _, rest in quotas)
    return ("Discreet-Mode", account.mode), ("RateLimit-Policy", policy), ("RateLimit", limit)


def _parameter(name: str, seconds: int | None) -> str:
    return "" if seconds is None else f";{name}={seconds}"


def _quotas(balance: Balance) -> list[tuple[str, int, int]]:
    """Return the name, the limit and the remaining quota of each resource."""
    limit, rest, units = balance.account.limit, balance.remaining, balance.account.units
    if units is None:
        return [
            ("rho", math.floor(limit.rho * 1000), math.floor(rest.rho * 1000)),
            ("delta", math.floor(limit.delta * 10**12), math.floor(rest.delta * 10**12)),
        ]
    most, remaining = units.rounded_down(limit), units.rounded_down(rest)
    return [("information", most[0], remaining[0]), ("calls", most[1], remaining[1])]


def _window_seconds(period: AccountPeriod) -> int | None:
    match period:
        case Sliding(days):
            return days * 86_400
        case Calendar(unit, _):
            return _SECONDS[unit]
    return None
