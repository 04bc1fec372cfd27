"""Constants as places on a line, and back: what a filter can tell apart in a column of some kind.

| kind      | value on the line                                 |
| --------- | ------------------------------------------------- |
| TEXT      | the text; its characters order it as UTF-8 does   |
| INTEGER   | the number                                        |
| DECIMAL   | the number times 10^38, which is whole            |
| FLOAT     | the nearest double, which is what engines compare |
| BOOLEAN   | 0 or 1                                            |
| DATE      | the day, 1 is 0001-01-01                          |
| TIMESTAMP | microseconds since midnight of day 0              |

A cut lies between values: (v, 0) just below v, (v, 1) just above it. Whole numbers, days and truth values have nothing
between one and the next, so all their cuts are (v, 0), and x > 5 is x >= 6. All others are taken to have values between
any two, though text and doubles have gaps: that may tell apart what is the same, but never takes for the same what
differs.
"""

from __future__ import annotations

from bisect import bisect_right
from decimal import Decimal
from itertools import accumulate
from typing import Any, TypeAlias

from discreet.errors import WhereError
from discreet.query.predicates import LONGEST_NUMBER, number_of
from discreet.question import Constant, Kind

Cut: TypeAlias = "tuple[Any, int]"
Segment: TypeAlias = "tuple[Cut | None, Cut | None]"
"""What lies between two cuts; None where the line goes on."""

_UNIT = 10**LONGEST_NUMBER

STEPS = {Kind.INTEGER, Kind.DATE, Kind.BOOLEAN}
"""What has nothing between a value and the next."""

ENDS: dict[Kind, Segment] = {Kind.TEXT: (("", 0), None), Kind.BOOLEAN: ((0, 0), (2, 0))}
"""Where a line ends, if it does: no text is below ''."""

WRITABLE = {Kind.INTEGER: (1 - _UNIT, _UNIT - 1), Kind.DATE: (1, 3_652_059)}
"""The smallest and the largest value that a constant can have."""

_MONTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_BEFORE = {leap: tuple(accumulate((_MONTHS[0], _MONTHS[1] + leap, *_MONTHS[2:]), initial=0)) for leap in (False, True)}
"""Days of a year before each month."""


def reading(column: Kind, constant: Kind | None) -> Kind:
    """What a column is read as for a constant of a kind, or None for IS NULL.

    A column without types is read as what it is compared with. Every way of reading it is a column of its own: how they
    hang together is not looked into.
    """
    if column is not Kind.UNTYPED:
        return column
    if constant is None:
        return Kind.TEXT
    return Kind.FLOAT if constant in {Kind.INTEGER, Kind.DECIMAL} else constant


def cuts_around(kind: Kind, constant: Constant) -> tuple[Cut, Cut]:
    """The cuts below and above a constant in a column of *kind*; they are one where no value equals it."""
    text = constant.text
    match kind:
        case Kind.INTEGER:
            floor, rest = divmod(_scaled(text), _UNIT) if "." in text else (int(text), 0)
            return (floor + (rest > 0), 0), (floor + 1, 0)
        case Kind.BOOLEAN:
            truth = int(text == "true")
            return (truth, 0), (truth + 1, 0)
        case Kind.DATE:
            days = _days(text)
            return (days, 0), (days + 1, 0)
        case Kind.TIMESTAMP:
            value: Any = _microseconds(text)
        case Kind.DECIMAL:
            value = _scaled(text)
        case Kind.FLOAT:
            value = float(text)
        case _:
            value = text
    return (value, 0), (value, 1)


def values_between(kind: Kind, low: Cut | None, high: Cut | None, most: int) -> list[Any] | None:
    """The values between two cuts, or None if there are more than *most*."""
    if low is None or high is None:
        return None
    if kind in STEPS:
        return list(range(low[0], high[0])) if high[0] - low[0] <= most else None
    return [low[0]] if low[0] == high[0] else None


def constant_of(kind: Kind, value: Any) -> Constant:  # noqa: ANN401 - see the table above
    """The constant in canonical form that has a value in a column of *kind*."""
    match kind:
        case Kind.TEXT:
            return Constant(kind, value)
        case Kind.BOOLEAN:
            return Constant(kind, "true" if value else "false")
        case Kind.DATE:
            return Constant(kind, _day(value))
        case Kind.TIMESTAMP:
            return Constant(kind, _moment(value))
        case Kind.INTEGER:
            digits = str(abs(value))
        case Kind.DECIMAL:
            whole, fraction = divmod(abs(value), _UNIT)
            digits = f"{whole}.{fraction:0{LONGEST_NUMBER}d}"
        case _:  # the fewest digits that are read as this double; if it is whole, all of them
            digits = str(abs(int(value))) if value.is_integer() else f"{Decimal(repr(abs(value))):f}"
    return number_of(digits, negative=value < 0)


def _scaled(text: str) -> int:
    whole, _, fraction = text.partition(".")
    if len(fraction) > LONGEST_NUMBER:
        raise WhereError(f"numbers may have {LONGEST_NUMBER} characters at most")
    return int(whole + fraction.ljust(LONGEST_NUMBER, "0"))


def _days(text: str) -> int:
    year, month = int(text[:4]), int(text[5:7])
    return _until(year) + _BEFORE[_leaps(year)][month - 1] + int(text[8:10])


def _until(year: int) -> int:
    """Days before a year."""
    before = year - 1
    return before * 365 + before // 4 - before // 100 + before // 400


def _leaps(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _day(days: int) -> str:
    year = (days - 1) * 400 // 146_097 + 1  # 400 years have as many days: it is a year off at most
    year += (_until(year + 1) < days) - (_until(year) >= days)
    left, before = days - _until(year), _BEFORE[_leaps(year)]
    month = bisect_right(before, left - 1)
    return f"{year:04d}-{month:02d}-{left - before[month - 1]:02d}"


def _microseconds(text: str) -> int:
    if len(text) == len("YYYY-MM-DD"):
        return _days(text) * 86_400_000_000
    seconds = (_days(text) * 24 + int(text[11:13])) * 3600 + int(text[14:16]) * 60 + int(text[17:19])
    return seconds * 1_000_000 + int(text[20:].ljust(6, "0"))


def _moment(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    days, second = divmod(seconds, 86_400)
    time = f"{_day(days)} {second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    return f"{time}.{fraction:06d}".rstrip("0") if fraction else time
