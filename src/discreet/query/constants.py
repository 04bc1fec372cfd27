"""What the constants of filters mean: numbers, dates and timestamps in canonical form, patterns as ranges."""

from __future__ import annotations

import calendar
import re

from discreet.question import Comparison, Constant, Every, Kind, Predicate

_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIMESTAMP = re.compile(r"([-0-9]{10})[ T]((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?)")
_LAST = "\U0010ffff"


def read_number(digits: str) -> Constant:
    """Digits in canonical form: no leading zeros, no trailing ones behind the point; 2.0 is the whole number 2.

    Args:
        digits: with at most one point somewhere, without a sign.
    """
    whole, _, fraction = digits.partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    return Constant(Kind.DECIMAL, f"{whole}.{fraction}") if fraction else Constant(Kind.INTEGER, whole)


def read_moment(text: str) -> Constant | None:
    """The date or timestamp that *text* is, if it is one: YYYY-MM-DD, or with HH:MM:SS and up to six more digits."""
    if _is_day(text):
        return Constant(Kind.DATE, text)
    found = _TIMESTAMP.fullmatch(text)
    return Constant(Kind.TIMESTAMP, f"{found[1]} {found[2]}") if found and _is_day(found[1]) else None


def _is_day(text: str) -> bool:
    found = _DATE.fullmatch(text)
    if found is None:
        return False
    year, month, day = map(int, found.groups())
    return year > 0 and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]


def read_pattern(column: str, pattern: str) -> Predicate | None:
    """*column* LIKE *pattern*, in comparisons; None if the pattern is no text and no prefix.

    Text begins with a prefix if it lies between the prefix and the next text that does not: engines compare text by
    its UTF-8 bytes, whose order is that of code points. The comparison with '' is true for all text; it is there
    because no date is like '': a column of dates is refused, though text may be compared with it.
    """
    prefix = pattern.removesuffix("%")
    if any(character in prefix for character in "%_\\"):
        return None
    parts = [_text(column, ">=", "")]
    if prefix == pattern:
        parts.append(_text(column, "=", pattern))
    elif prefix:
        parts.append(_text(column, ">=", prefix))
        begins = prefix.rstrip(_LAST)
        if begins:
            behind = ord(begins[-1]) + 1
            parts.append(_text(column, "<", begins[:-1] + chr(0xE000 if behind == 0xD800 else behind)))
    return parts[0] if len(parts) == 1 else Every(tuple(parts))


def _text(column: str, operator: str, text: str) -> Comparison:
    return Comparison(column, operator, Constant(Kind.TEXT, text))  # type: ignore[arg-type] # one of three above
