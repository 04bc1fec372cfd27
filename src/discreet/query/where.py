r"""The filter language: SQL's WHERE, as far as conditions on single columns go.

    filter     = term {OR term}          term = factor {AND factor}       factor = [NOT] condition | "(" filter ")"
    condition  = column (= | <> | != | < | <= | > | >=) constant | constant (...) column
               | column [NOT] IN "(" constant {"," constant} ")"
               | column [NOT] BETWEEN constant AND constant | column IS [NOT] NULL
    constant   = 'text' | [-] digits [. digits] | TRUE | FALSE | DATE 'Y-M-D' | TIMESTAMP 'Y-M-D H:M:S'
    column     = a bare name or a "quoted name"

Text never reaches an engine: it is read into a `Predicate`, checked against the table's columns, and every engine
writes its own SQL from that. Whatever the grammar does not name is refused with its position: functions, subqueries,
arithmetic, LIKE, comments, semicolons.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from discreet.errors import UnknownColumn, WhereError
from discreet.question import (
    Comparison,
    Constant,
    Every,
    Kind,
    Membership,
    Missing,
    Not,
    Some,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.question import Operator, Predicate

LONGEST = 10_000
"""Characters in a filter."""

LONGEST_NUMBER = 38
"""Characters in a number: beyond the decimal digits that engines compute with, they fall back to floating point."""

DEEPEST = 50
"""Parentheses and NOTs within each other."""

_TOKENS = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<comment>--|/\*)
  | (?P<text>'(?:[^']|'')*')
  | (?P<quoted>"(?:[^"]|"")+")
  | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?![\w.]))
  | (?P<name>[^\W\d]\w*)
  | (?P<operator><>|!=|<=|>=|=|<|>)
  | (?P<mark>[(),])
  | (?P<minus>-)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_RESERVED = {"AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL", "TRUE", "FALSE", "LIKE", "ILIKE", "SELECT", "CASE"}
_MIRRORED: dict[Operator, Operator] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIMESTAMP = re.compile(r"([-0-9]{10})[ T]((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?)")
_REFUSED = {
    "comment": "comments are not allowed",
    "other": "only comparisons, IN, BETWEEN, IS NULL, AND, OR, NOT and parentheses are allowed",
}
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


def parse_where(text: str) -> Predicate:
    """Read a filter.

    Args:
        text: the part of a SELECT behind WHERE, at most 10,000 characters.

    Raises:
        WhereError: anything outside the grammar, with its position.
    """
    if len(text) > LONGEST:
        raise WhereError(f"it may have {LONGEST:,} characters at most")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise WhereError("it holds half a character")
    if not text.strip():
        raise WhereError("it is empty; leave it out to count all rows")
    return _Parser(_tokens(text), len(text)).parse()


def bind_where(predicate: Predicate, columns: Mapping[str, Kind]) -> Predicate:
    """Check a filter against the table: every column exists and can be compared with what it is compared with.

    Names are matched exactly, or else without regard to case. Text compared with a date or timestamp column is read as
    one.

    Raises:
        UnknownColumn: a column the table does not have.
        WhereError: a type error.
    """
    match predicate:
        case Every(parts):
            return Every(tuple(bind_where(part, columns) for part in parts))
        case Some(parts):
            return Some(tuple(bind_where(part, columns) for part in parts))
        case Not(inner):
            return Not(bind_where(inner, columns))
        case Missing(column):
            return Missing(find_column(column, columns))
        case Comparison(column, operator, constant):
            found = find_column(column, columns)
            if Kind.BOOLEAN in {columns[found], constant.kind} and operator not in {"=", "<>"}:
                raise WhereError(f"column {found!r} holds true or false, which have no order")
            return Comparison(found, operator, _bound(constant, found, columns[found]))
        case Membership(column, constants):
            found = find_column(column, columns)
            return Membership(found, tuple(_bound(constant, found, columns[found]) for constant in constants))


def find_column(name: str, columns: Mapping[str, Kind], role: str = "column") -> str:
    """The table's own spelling of *name*.

    Raises:
        UnknownColumn: there is no such column, or several that differ in case only.
    """
    if name in columns:
        return name
    alike = [column for column in columns if column.casefold() == name.casefold()]
    if len(alike) != 1:
        raise UnknownColumn(name, columns, role)
    return alike[0]


def _bound(constant: Constant, column: str, kind: Kind) -> Constant:
    if constant.kind is Kind.TEXT and kind in {Kind.DATE, Kind.TIMESTAMP}:
        constant = _moment(constant.text) or constant
    if constant.kind not in _COMPARABLE.get(kind, set()):
        raise WhereError(f"column {column!r} holds {kind.value} and cannot be compared with {constant.kind.value}")
    return constant


def _moment(text: str) -> Constant | None:
    """The date or timestamp that *text* is, if it is one."""
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


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int

    @property
    def word(self) -> str:
        """The keyword this could be."""
        return self.text.upper() if self.kind == "name" else self.text


def _tokens(text: str) -> list[_Token]:
    tokens = []
    for match in _TOKENS.finditer(text):
        kind = match.lastgroup or "other"
        if kind in _REFUSED:
            hint = "the text is not closed with a quote" if match[0] in "'\"" else _REFUSED[kind]
            raise WhereError(hint, match.start())
        if kind != "space":
            tokens.append(_Token(kind, match[0], match.start()))
    return tokens


class _Parser:
    """Recursive descent, one method a rule of the grammar."""

    def __init__(self, tokens: list[_Token], end: int) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0
        self._end = _Token("end", "", end)

    def parse(self) -> Predicate:
        predicate = self._filter()
        if self._peek().kind != "end":
            raise self._refuse("expected AND, OR or the end")
        return predicate

    def _filter(self) -> Predicate:
        parts = [self._term()]
        while self._accept("OR"):
            parts.append(self._term())
        return parts[0] if len(parts) == 1 else Some(tuple(parts))

    def _term(self) -> Predicate:
        parts = [self._factor()]
        while self._accept("AND"):
            parts.append(self._factor())
        return parts[0] if len(parts) == 1 else Every(tuple(parts))

    def _factor(self) -> Predicate:
        negated = self._accept("NOT")
        if not negated and not self._accept("("):
            return self._condition()
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._refuse(f"parentheses and NOT may be nested {DEEPEST} deep at most")
        inner = Not(self._factor()) if negated else self._filter()
        if not negated:
            self._expect(")")
        self._depth -= 1
        return inner

    def _condition(self) -> Predicate:
        if self._at_constant():
            constant = self._constant()
            operator = self._operator()
            return Comparison(self._column(), _MIRRORED[operator], constant)
        column = self._column()
        if self._accept("IS"):
            negated = self._accept("NOT")
            self._expect("NULL")
            return Not(Missing(column)) if negated else Missing(column)
        negated = self._accept("NOT")
        if self._accept("IN"):
            membership = Membership(column, self._constants())
            return Not(membership) if negated else membership
        if self._accept("BETWEEN"):
            low = self._constant()
            self._expect("AND")
            between = Every((Comparison(column, ">=", low), Comparison(column, "<=", self._constant())))
            return Not(between) if negated else between
        if negated:
            raise self._refuse("expected IN or BETWEEN")
        return Comparison(column, self._operator(), self._constant())

    def _at_constant(self) -> bool:
        token, behind = self._peek(), self._tokens[self._next + 1 : self._next + 2]
        if token.word in {"DATE", "TIMESTAMP"}:
            return bool(behind) and behind[0].kind == "text"
        return token.kind in {"text", "number", "minus"} or token.word in {"TRUE", "FALSE", "NULL"}

    def _constants(self) -> tuple[Constant, ...]:
        self._expect("(")
        constants = [self._constant()]
        while self._accept(","):
            constants.append(self._constant())
        self._expect(")")
        return tuple(constants)

    def _column(self) -> str:
        token = self._peek()
        if token.kind == "quoted":
            self._next += 1
            return token.text[1:-1].replace('""', '"')
        if token.word == "SELECT":
            raise self._refuse("subqueries are not allowed")
        if token.kind != "name" or token.word in _RESERVED:
            raise self._refuse("expected a column")
        self._next += 1
        if self._peek().text == "(":
            raise WhereError("functions are not allowed", token.position)
        return token.text

    def _operator(self) -> Operator:
        token = self._peek()
        if token.kind != "operator":
            hint = "LIKE is not allowed; " if token.word in {"LIKE", "ILIKE"} else ""
            raise self._refuse(f"{hint}expected a comparison, IN, BETWEEN or IS NULL")
        self._next += 1
        return "<>" if token.text == "!=" else token.text  # type: ignore[return-value] # the pattern allows no other

    def _constant(self) -> Constant:
        token = self._peek()
        if self._accept("-"):
            number = None if self._peek().kind == "minus" else self._constant()
            if number is None or number.kind not in {Kind.INTEGER, Kind.DECIMAL} or number.text.startswith("-"):
                raise WhereError("expected a number behind the minus", token.position)
            return number if number.text == "0" else replace(number, text=f"-{number.text}")
        if token.word == "NULL":
            raise self._refuse("nothing equals NULL: use IS NULL or IS NOT NULL")
        if token.word == "SELECT":
            raise self._refuse("subqueries are not allowed")
        self._next += 1
        constant = self._literal(token)
        if constant is None:
            self._next -= 1
            raise self._refuse("expected a constant: text in single quotes, a number, TRUE, FALSE, DATE '...'")
        return constant

    def _literal(self, token: _Token) -> Constant | None:
        """The constant that begins with *token*, which was passed already; None if none does."""
        match token.kind, token.word:
            case "text", _:
                return Constant(Kind.TEXT, token.text[1:-1].replace("''", "'"))
            case "number", _:
                return _number(token)
            case "name", "TRUE" | "FALSE":
                return Constant(Kind.BOOLEAN, token.text.lower())
            case "name", "DATE" | "TIMESTAMP" if self._peek().kind == "text":
                moment = _moment(self._constant().text)
                if moment is None or moment.kind.name != token.word:
                    raise WhereError(f"expected {token.word} 'YYYY-MM-DD...'", token.position)
                return moment
        return None

    def _peek(self) -> _Token:
        return self._tokens[self._next] if self._next < len(self._tokens) else self._end

    def _accept(self, word: str) -> bool:
        accepted = self._peek().word == word and self._peek().kind in {"name", "mark", "minus"}
        self._next += accepted
        return accepted

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._refuse(f"expected {word}")

    def _refuse(self, message: str) -> WhereError:
        token = self._peek()
        return WhereError(f"{message}, not {token.text!r}" if token.text else f"{message}", token.position)


def _number(token: _Token) -> Constant:
    """Digits in canonical form: no leading zeros, no trailing ones behind the point; 2.0 is the whole number 2."""
    if len(token.text) > LONGEST_NUMBER:
        raise WhereError(f"numbers may have {LONGEST_NUMBER} characters at most", token.position)
    whole, _, fraction = token.text.partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    return Constant(Kind.DECIMAL, f"{whole}.{fraction}") if fraction else Constant(Kind.INTEGER, whole)
