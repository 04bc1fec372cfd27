"""Parse constants and LIKE patterns of filters, and check filters against a table's columns."""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping

from discreet.errors import UnknownColumn, WhereError
from discreet.head_request import And, Comparison, Constant, IsNull, Kind, Membership, Not, Operator, Or, Predicate
from discreet.values import check_text, is_unicode

MAX_TEXT_LENGTH = 10_000
"""The largest number of characters in a constant."""

MAX_DIGITS = 38
"""The largest number of characters in a number; with more decimal digits, engines use floating point."""

_NUMBER = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIMESTAMP = re.compile(r"([-0-9]{10})[ T]((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?)")
MOMENTS = (
    "dates are written '2025-01-31' and timestamps '2025-01-31 12:00:00', with months 01 to 12 and the days they have"
)

_LAST = "\U0010ffff"
_COMPARABLE = {
    Kind.TEXT: {Kind.TEXT},
    Kind.INTEGER: {Kind.INTEGER, Kind.DECIMAL},
    Kind.DECIMAL: {Kind.INTEGER, Kind.DECIMAL},
    Kind.FLOAT: {Kind.INTEGER, Kind.DECIMAL},
    Kind.BOOLEAN: {Kind.BOOLEAN},
    Kind.DATE: {Kind.DATE},
    Kind.TIMESTAMP: {Kind.TIMESTAMP, Kind.DATE},
    Kind.UNTYPED: {Kind.TEXT, Kind.INTEGER, Kind.DECIMAL, Kind.BOOLEAN, Kind.DATE, Kind.TIMESTAMP},
}


def parse_constant(kind: Kind, text: str) -> Constant:
    """Parse *text* as a constant of *kind*.

    Args:
        kind: TEXT, INTEGER, DECIMAL, BOOLEAN, DATE or TIMESTAMP.
        text: the canonical text of a `Constant`, or one as in filters: "007", "TRUE", "2025-01-31T12:00:00".

    Raises:
        WhereError: the text is no constant of this kind.
    """
    match kind:
        case Kind.TEXT:
            constant: Constant | None = read_text(text)
        case Kind.BOOLEAN:
            constant = Constant(kind, text.lower()) if text.lower() in {"true", "false"} else None
        case Kind.DATE | Kind.TIMESTAMP:
            constant = read_timestamp(text)
        case _:
            constant = read_number(text)
    if constant is None or constant.kind is not kind:
        raise WhereError(f"expected {kind.value}")
    return constant


def read_text(text: str) -> Constant:
    """Return *text* as a constant.

    Raises:
        WhereError: the text is too long, or holds a character that engines do not accept.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise WhereError(f"text may have {MAX_TEXT_LENGTH:,} characters at most")
    if "\0" in text or not is_unicode(text):
        raise WhereError("text may hold neither NUL nor half a character (a lone surrogate)")
    return Constant(Kind.TEXT, text)


def read_number(text: str) -> Constant | None:
    """Parse a number to its canonical form: no superfluous zeros, 2.0 is the integer 2; None if *text* is no number.

    Raises:
        WhereError: the number has more than 38 characters.
    """
    if not _NUMBER.fullmatch(text):
        return None
    digits = text.removeprefix("-")
    if len(digits) > MAX_DIGITS:
        raise WhereError(f"numbers may have {MAX_DIGITS} characters at most")
    return number_of(digits, negative=digits != text)


def number_of(digits: str, *, negative: bool) -> Constant:
    """Return a numeric constant; *digits* have no sign and at most one decimal point."""
    whole, _, fraction = digits.partition(".")
    whole = whole.lstrip("0") or "0"
    fraction = fraction.rstrip("0")
    sign = "-" if negative and (whole, fraction) != ("0", "") else ""
    if fraction:
        return Constant(Kind.DECIMAL, f"{sign}{whole}.{fraction}")
    return Constant(Kind.INTEGER, f"{sign}{whole}")


def read_timestamp(text: str) -> Constant | None:
    """Parse a date YYYY-MM-DD or a timestamp YYYY-MM-DD HH:MM:SS[.ffffff]; None if *text* is neither."""
    if _is_date(text):
        return Constant(Kind.DATE, text)
    parts = _TIMESTAMP.fullmatch(text)
    return Constant(Kind.TIMESTAMP, f"{parts[1]} {parts[2]}") if parts and _is_date(parts[1]) else None


def _is_date(text: str) -> bool:
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    year, month, day = map(int, match.groups())
    return year > 0 and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]


def read_pattern(column: str, pattern: str) -> Predicate | None:
    r"""Return *column* LIKE *pattern* as comparisons; None for patterns other than plain text or a prefix and one %.

    Text begins with a prefix if it is at least the prefix and below the next text without it: engines compare UTF-8
    bytes, whose order is that of the code points. The comparison with '' is true for all text; it makes `bind_where`
    refuse the pattern for columns of dates, which may be compared with text but not matched by LIKE.
    """
    prefix = pattern.removesuffix("%")
    if any(character in prefix for character in "%_\\"):
        return None
    parts = [_compare_text(column, ">=", "")]
    if prefix == pattern:
        parts.append(_compare_text(column, "=", pattern))
    elif prefix:
        parts.append(_compare_text(column, ">=", prefix))
        begins = prefix.rstrip(_LAST)
        if begins:
            following = ord(begins[-1]) + 1
            parts.append(_compare_text(column, "<", begins[:-1] + chr(0xE000 if following == 0xD800 else following)))
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _compare_text(column: str, operator: Operator, text: str) -> Comparison:
    return Comparison(column, operator, Constant(Kind.TEXT, text))


def bind_where(predicate: Predicate, columns: Mapping[str, Kind]) -> Predicate:
    """Return a filter with the table's spelling of its columns, checked against their types.

    Names are matched exactly, or else without regard to case. Text compared with a date or timestamp column is read as
    a date or timestamp.

    Raises:
        UnknownColumn: the table has no such column.
        WhereError: a column cannot be compared with a constant of this type.
    """
    match predicate:
        case And(parts):
            return And(tuple(bind_where(part, columns) for part in parts))
        case Or(parts):
            return Or(tuple(bind_where(part, columns) for part in parts))
        case Not(inner):
            return Not(bind_where(inner, columns))
        case IsNull(column):
            return IsNull(find_column(column, columns))
        case Comparison(column, operator, constant):
            own = find_column(column, columns)
            if Kind.BOOLEAN in {columns[own], constant.kind} and operator not in {"=", "<>"}:
                raise WhereError(f"column {own!r} holds true or false, which have no order")
            return Comparison(own, operator, _bind_constant(constant, own, columns[own]))
        case Membership(column, constants):
            own = find_column(column, columns)
            return Membership(own, tuple(_bind_constant(constant, own, columns[own]) for constant in constants))


def check_untyped(predicate: Predicate, columns: Mapping[str, Kind]) -> None:
    """Refuse to compare the order of columns without a type with text that is neither a date nor a timestamp.

    It is mostly a mistake: as text, 20 comes after 100. LIKE is of text in any case.

    Args:
        predicate: a filter as it was parsed, bound to *columns*; its canonical form no longer shows what was LIKE.

    Raises:
        WhereError: the filter has such a comparison.
    """
    match predicate:
        case And((Comparison(column, ">=", Constant(Kind.TEXT, "")), *others)):  # see `read_pattern`
            check_untyped(And(tuple(others)), {**columns, column: Kind.TEXT})
        case And(parts) | Or(parts):
            for part in parts:
                check_untyped(part, columns)
        case Not(inner):
            check_untyped(inner, columns)
        case Comparison(column, operator, Constant(Kind.TEXT, text)) if columns[column] is Kind.UNTYPED:
            if operator not in {"=", "<>"} and text and read_timestamp(text) is None:
                raise WhereError(
                    f"column {column!r} is of a file without types, so {operator} takes a number without quotes, or a "
                    "date such as '2025-01-31'; cast the column to text for the order of text"
                )


def columns_of(predicate: Predicate) -> set[str]:
    """Return the names of the columns in a filter."""
    match predicate:
        case And(parts) | Or(parts):
            return set().union(*map(columns_of, parts))
        case Not(inner):
            return columns_of(inner)
    return {predicate.column}


def find_column(name: str, columns: Mapping[str, Kind], role: str = "column") -> str:
    """Return the table's spelling of the column *name*.

    Raises:
        UnknownColumn: there is no such column, or several that differ in case only.
    """
    if check_text(name, f"the name of a {role}") in columns:
        return name
    alike = [column for column in columns if column.casefold() == name.casefold()]
    if len(alike) != 1:
        raise UnknownColumn(name, columns, role)
    return alike[0]


def _bind_constant(constant: Constant, column: str, kind: Kind) -> Constant:
    if constant.kind is Kind.TEXT and kind in {Kind.DATE, Kind.TIMESTAMP}:
        moment = read_timestamp(constant.text)
        if moment is None and constant.text:  # no text is part of LIKE, see `read_pattern`
            raise WhereError(
                f"column {column!r} holds {kind.value}, and is compared with a text that is not one: {MOMENTS}"
            )
        constant = moment or constant
    if constant.kind not in _COMPARABLE.get(kind, set()):
        raise WhereError(f"column {column!r} holds {kind.value} and cannot be compared with {constant.kind.value}")
    return constant
