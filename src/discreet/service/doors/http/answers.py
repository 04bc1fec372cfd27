"""Answers over HTTP: JSON, CSV, Arrow or Parquet, as the header Accept prefers, and headers with charge and budget."""

from __future__ import annotations

import math
from collections.abc import Mapping

from discreet.budget.model import Balance, Calendar, Sliding
from discreet.service.problems import NotAcceptable
from discreet.values import Cost
from discreet.wire import document
from discreet.wire.document import Form
from discreet.wire.problems import spend_above

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
    ranges: dict[str, float] = {}
    for part in filter(str.strip, accept.split(",")):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        pairs = (parameter.partition("=") for parameter in parameters)
        weight = next((value.strip() for name, _, value in pairs if name.strip().lower() == "q"), "1")
        digits = weight.replace(".", "", 1)
        valid = digits.isascii() and digits.isdigit() and len(weight) <= 5
        ranges[media.lower()] = min(float(weight), 1.0) if valid else 0.0  # a malformed weight is 0
    weighed = {}
    for form, media in MEDIA_TYPES.items():
        matching = (media, f"{media.partition('/')[0]}/*", "*/*")  # the most specific one decides
        weighed[form] = next((ranges[name] for name in matching if name in ranges), 0.0)
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
    account = balance.account
    now_us = balance.time_us
    limit = balance.account.limit
    rest = balance.remaining
    window = None
    match account.period:
        case Sliding(days):
            window = days * 86_400
        case Calendar(unit, _):
            window = _SECONDS[unit]
    reset = None if balance.resets_at_us is None else max(math.ceil((balance.resets_at_us - now_us) / 1_000_000), 0)
    if account.units is None:
        quotas = [
            ("rho", math.floor(limit.rho * 1000), math.floor(rest.rho * 1000)),
            ("delta", math.floor(limit.delta * 10**12), math.floor(rest.delta * 10**12)),
        ]
    else:
        most = account.units.rounded_down(limit)
        remaining = account.units.rounded_down(rest)
        quotas = [("information", most.information, remaining.information), ("calls", most.calls, remaining.calls)]
    every = "" if window is None else f";w={window}"
    until = "" if reset is None else f";t={reset}"
    policies = ", ".join(f'"{name}";q={quota}{every}' for name, quota, _ in quotas)
    limits = ", ".join(f'"{name}";r={left}{until}' for name, _, left in quotas)
    return ("Discreet-Mode", account.mode), ("RateLimit-Policy", policies), ("RateLimit", limits)
