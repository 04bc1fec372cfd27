r"""The filter language: SQL's WHERE, as far as conditions on single columns go.

    filter     = term {OR term}          term = factor {AND factor}       factor = [NOT] condition | "(" filter ")"
    condition  = column (= | <> | != | < | <= | > | >=) constant | constant (...) column
               | column [NOT] IN "(" constant {"," constant} ")" | column [NOT] LIKE 'prefix%'
               | column [NOT] BETWEEN constant AND constant | column IS [NOT] NULL
    constant   = 'text' | [-] number | TRUE | FALSE | DATE 'Y-M-D' | TIMESTAMP 'Y-M-D H:M:S'
    number     = digits [. [digits]] | . digits
    column     = [table .] name                 name = a bare name or a "quoted name"; tables in statements only

Text never reaches an engine: it is read into a `Predicate`, checked against the table's columns, and every engine
writes its own SQL from that. Whatever the grammar does not name is refused with its position: functions, subqueries,
arithmetic, other patterns, comments, semicolons.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from discreet.errors import WhereError
from discreet.query.predicates import LONGEST_NUMBER, number_of, read_pattern, read_timestamp
from discreet.query.tokens import Reader, Token, tokenize
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
    from collections.abc import Collection

    from discreet.question import Operator, Predicate

LONGEST = 10_000
"""Characters in a filter."""

DEEPEST = 50
"""Parentheses and NOTs within each other."""

RESERVED = frozenset(
    {"AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL", "TRUE", "FALSE", "LIKE", "ILIKE", "SELECT", "CASE"}
)
"""Words that are no names unless they are quoted."""

_MIRRORED: dict[Operator, Operator] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_HINTS = {"": "only comparisons, IN, BETWEEN, LIKE, IS NULL, AND, OR, NOT and parentheses are allowed"}


def parse_where(text: str) -> Predicate:
    """Read a filter.

    Args:
        text: the part of a SELECT behind WHERE, at most 10,000 characters.

    Raises:
        WhereError: anything outside the grammar, with its position.
    """
    reader = _reader(text)
    if not text.strip():
        raise WhereError("it is empty; leave it out to count all rows")
    predicate = reader.read()
    reader.finish("AND, OR or the end")
    return predicate


def _reader(text: str) -> FilterReader:
    return FilterReader(tokenize(text, WhereError, LONGEST, "(),", _HINTS))


class FilterReader(Reader):
    """The grammar of filters, one method a rule.

    Args:
        tokens: of the whole text.
        start: the token that the filter begins with.
        reserved: words that are no names unless they are quoted.
        tables: what columns may be qualified by, with `casefold`; nothing outside of statements.
        deepest: how deep parentheses and NOTs may be nested.
    """

    error = WhereError

    def __init__(
        self,
        tokens: tuple[Token, ...],
        start: int = 0,
        reserved: Collection[str] = RESERVED,
        tables: Collection[str] = (),
        deepest: int = DEEPEST,
    ) -> None:
        super().__init__(tokens, reserved, start)
        self._tables = tables
        self._deepest = deepest
        self._depth = 0

    def read(self) -> Predicate:
        """A filter, as far as it goes."""
        parts = [self._term()]
        while self._accept("OR"):
            parts.append(self._term())
        return parts[0] if len(parts) == 1 else Some(tuple(parts))

    def read_constant(self) -> Constant:
        """A constant."""
        token = self._peek()
        if self._accept("-"):
            number = None if self._peek().kind == "minus" else self.read_constant()
            if number is None or number.kind not in {Kind.INTEGER, Kind.DECIMAL} or number.text.startswith("-"):
                raise WhereError("expected a number behind the minus", token.position)
            return number if number.text == "0" else replace(number, text=f"-{number.text}")
        if token.word == "NULL":
            raise self._refuse("nothing equals NULL: use IS NULL or IS NOT NULL")
        if token.word == "SELECT":
            raise self._refuse("subqueries are not allowed")
        constant = self._literal(token)
        if constant is None:
            raise self._refuse("expected a constant: text in single quotes, a number, TRUE, FALSE, DATE '...'")
        return constant

    def _literal(self, token: Token) -> Constant | None:
        """The constant that begins with *token*, which comes next; None if none does."""
        match token.kind, token.word:
            case "text", _:
                constant = Constant(Kind.TEXT, token.text[1:-1].replace("''", "'"))
            case "number", _ if len(token.text) > LONGEST_NUMBER:
                raise WhereError(f"numbers may have {LONGEST_NUMBER} characters at most", token.position)
            case "number", _:
                constant = number_of(token.text, negative=False)
            case "name", "TRUE" | "FALSE":
                constant = Constant(Kind.BOOLEAN, token.text.lower())
            case "name", "DATE" | "TIMESTAMP" if self._peek(1).kind == "text":
                self.next += 1
                moment = read_timestamp(self.read_constant().text)
                if moment is None or moment.kind.name != token.word:
                    raise WhereError(f"expected {token.word} 'YYYY-MM-DD...'", token.position)
                return moment
            case _:
                return None
        self.next += 1
        return constant

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
        if self._depth > self._deepest:
            nested = f"parentheses and NOT may be nested {self._deepest} deep at most"
            raise WhereError(nested, self._peek().position)
        inner = Not(self._factor()) if negated else self.read()
        if not negated:
            self._expect(")")
        self._depth -= 1
        return inner

    def _condition(self) -> Predicate:
        if self._at_constant():
            constant = self.read_constant()
            operator = self._operator()
            return Comparison(self._column(), _MIRRORED[operator], constant)
        column = self._column()
        if self._accept("IS"):
            negated = self._accept("NOT")
            self._expect("NULL")
            return Not(Missing(column)) if negated else Missing(column)
        negated = self._accept("NOT")
        condition = self._listed(column)
        if condition is not None:
            return Not(condition) if negated else condition
        if negated:
            raise self._refuse("expected LIKE, IN or BETWEEN")
        return Comparison(column, self._operator(), self.read_constant())

    def _listed(self, column: str) -> Predicate | None:
        """What may stand behind NOT: a list, a range or a pattern; None if none comes next."""
        if self._accept("IN"):
            return Membership(column, self._constants())
        if self._accept("BETWEEN"):
            low = self.read_constant()
            self._expect("AND")
            return Every((Comparison(column, ">=", low), Comparison(column, "<=", self.read_constant())))
        if self._accept("LIKE"):
            return self._pattern(column)
        return None

    def _pattern(self, column: str) -> Predicate:
        token = self._peek()
        pattern = read_pattern(column, self.read_constant().text) if token.kind == "text" else None
        if pattern is None:
            raise WhereError("LIKE takes text with one % at its end, and no other %, _ or \\", token.position)
        if self._peek().word == "ESCAPE":
            raise self._refuse("LIKE takes no ESCAPE")
        return pattern

    def _at_constant(self) -> bool:
        token = self._peek()
        if token.word in {"DATE", "TIMESTAMP"}:
            return self._peek(1).kind == "text"
        return token.kind in {"text", "number", "minus"} or token.word in {"TRUE", "FALSE", "NULL"}

    def _constants(self) -> tuple[Constant, ...]:
        self._expect("(")
        constants = [self.read_constant()]
        while self._accept(","):
            constants.append(self.read_constant())
        self._expect(")")
        return tuple(constants)

    def _column(self) -> str:
        token = self._peek()
        if token.word == "SELECT":
            raise self._refuse("subqueries are not allowed")
        name = self._name("a column")
        if self._accept("."):
            if name.casefold() not in self._tables:
                raise WhereError("columns may be qualified by the table of the statement only", token.position)
            name = self._name("a column")
        if self._peek().text == "(":
            raise WhereError("functions are not allowed", token.position)
        return name

    def _operator(self) -> Operator:
        token = self._peek()
        if token.kind != "operator":
            hint = f"{token.word} is not allowed; " if token.word in {"LIKE", "ILIKE"} else ""
            raise self._refuse(f"{hint}expected a comparison, LIKE, IN, BETWEEN or IS NULL")
        self.next += 1
        return "<>" if token.text == "!=" else token.text  # type: ignore[return-value] # the pattern allows no other
