"""Rewrite SELECTs of Trino clients in the SQL of the service, with SQLGlot.

A client spells a statement for Trino: `discreet.main.reads`, `date_trunc('DAY', CAST(day AS TIMESTAMP))`, `DOUBLE '3'`,
names such as `at` that DuckDB's parser, which reads the statements of the service, takes for words of SQL. SQLGlot
parses Trino's SQL and writes DuckDB's, which keeps the meaning; what DuckDB cannot express is refused. Its parser takes
exponential time for some texts, so statements are rewritten in a worker process of `discreet.service.answering.pool`.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar, cast

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.dialects.trino import Trino
from sqlglot.errors import ErrorLevel, ParseError, TokenError, UnsupportedError
from sqlglot.generators.duckdb import DuckDBGenerator
from sqlglot.parsers.trino import TrinoParser

from discreet.query.query import SAVED
from discreet.service.answering.trino.errors import TrinoError

CATALOG = "discreet"
SCHEMA = "main"
"""The catalog of all datasets, and the schema of those without one in their name."""

VERSION = "477-discreet"
"""The version of Trino that clients see: they parse the number, and choose the syntax that it knows."""

_ONE = "exactly one SELECT is allowed"
# Words of SQLGlot's dialect that Trino does not reserve.
_NAMES = {"ANTI", "ASOF", "GLOB", "ISNULL", "NOTNULL", "RETURNING", "SEMI"}
# Functions of the service that are others in Trino, or that Trino lacks, stay as they are written.
_FUNCTIONS = {"CONTAINS", "DATEDIFF", "STRING_AGG"}


class _Trino(Trino):
    """Trino's dialect, with QUALIFY, and without words that would not be names."""

    class Tokenizer(Trino.Tokenizer):
        NESTED_COMMENTS = False
        COMMANDS: ClassVar = set()  # tokens after which SQLGlot reads the rest as one text
        KEYWORDS: ClassVar = {
            **{word: kind for word, kind in Trino.Tokenizer.KEYWORDS.items() if word not in _NAMES},
            "QUALIFY": TokenType.QUALIFY,
        }

    class Parser(TrinoParser):
        FUNCTIONS: ClassVar = {name: read for name, read in TrinoParser.FUNCTIONS.items() if name not in _FUNCTIONS}
        FUNCTION_PARSERS: ClassVar = {
            name: read for name, read in TrinoParser.FUNCTION_PARSERS.items() if name not in _FUNCTIONS
        }


class _DuckDB(DuckDB):
    """DuckDB's dialect, with the names of types that statements may cast to."""

    class Generator(DuckDBGenerator):
        TYPE_MAPPING: ClassVar = {
            **DuckDBGenerator.TYPE_MAPPING,
            exp.DataType.Type.VARCHAR: "VARCHAR",
            exp.DataType.Type.TIMESTAMPTZ: "TIMESTAMP WITH TIME ZONE",
        }


@dataclass(frozen=True, slots=True)
class TrinoSession:
    """The session of a client, as far as a SELECT depends on it.

    Args:
        schema: the schema of tables that are named without one.
        user: the account.
        now: the time at which the statement began.
    """

    schema: str
    user: str
    now: datetime


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A SELECT in the SQL of the service.

    Args:
        sql: its text.
        metadata: True if it reads tables of metadata.
        warnings: sentences about functions whose results differ from Trino's.
        places: the starts of its tokens, and of the same tokens in the original; sorted.
    """

    sql: str
    metadata: bool = False
    warnings: tuple[str, ...] = ()
    places: tuple[tuple[int, int], ...] = ()

    def place(self, position: int) -> int | None:
        """Return the position in the original of a token that starts at *position*, or None if it is not known."""
        return dict(self.places).get(position)


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a text, without comments and without semicolons at its end.

    Raises:
        TrinoError: a quote or a comment is not closed.
    """
    try:
        tokens = _Trino().tokenize(text)
    except TokenError as error:
        missing = re.search(r"Missing (\S{1,2}) from (\d{1,6}):(\d{1,6})", str(error))
        sentence = "a text, a name or a comment is not closed"
        raise TrinoError("SYNTAX_ERROR", f"{sentence}: {missing[1]} is missing" if missing else sentence) from None
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    return tokens


def without_comments(text: str) -> str:
    """Return *text* with spaces instead of comments and of semicolons at its end; errors as in `tokenize`."""
    blank = [" "] * len(text)
    for token in tokenize(text):
        blank[token.start : token.end + 1] = text[token.start : token.end + 1]
    return "".join(blank)


def rewrite(text: str, session: TrinoSession, datasets: Collection[str], *, dated: bool = True) -> Rewriting:
    """Return a SELECT of a Trino client in the SQL of the service.

    Args:
        datasets: the names of the datasets of the account, in lower case.
        dated: False to leave current_date as it is, for a view.

    Raises:
        TrinoError: the text is not one SELECT, or DuckDB cannot express it.
    """
    tokens = tokenize(text)
    try:
        statements = _Trino().parser().parse(tokens, text)
    except ParseError as error:
        raise _syntax_error(error, tokens) from None
    except RecursionError:
        raise TrinoError("SYNTAX_ERROR", "the statement is nested too deep") from None
    if len(statements) != 1 or statements[0] is None:
        raise TrinoError("SYNTAX_ERROR", _ONE)
    tree = statements[0]
    if any(options.args.get("percent") or options.args.get("with_ties") for options in tree.find_all(exp.LimitOptions)):
        raise TrinoError("NOT_SUPPORTED", "FETCH FIRST takes a number of rows: WITH TIES and PERCENT are not supported")
    sketches = list(tree.find_all(exp.ApproxDistinct))
    for sketch in sketches:
        sketch.replace(exp.Count(this=exp.Distinct(expressions=[sketch.this])))
    try:
        tree = cast("exp.Expr", tree.transform(_Adaption(session, datasets, tree, dated=dated).adapt, copy=False))
        sql = _DuckDB().generate(tree, copy=False, identify=True, comments=False, unsupported_level=ErrorLevel.RAISE)
    except UnsupportedError as error:
        raise TrinoError("NOT_SUPPORTED", f"the statement is not supported: {str(error)[:300]}") from None
    except RecursionError:
        raise TrinoError("SYNTAX_ERROR", "the statement is nested too deep") from None
    tables = tree.find_all(exp.Table)
    metadata = any(table.db.lower() == "information_schema" for table in tables)
    warning = "approx_distinct was answered as COUNT(DISTINCT ...), with noise instead of a sketch"
    return Rewriting(sql, metadata, (warning,) if sketches else (), _places(_DuckDB().tokenize(sql), tokens))


def _syntax_error(error: ParseError, tokens: list[Token]) -> TrinoError:
    first = error.errors[0] if error.errors else {}
    token = next((at for at in tokens if (at.line, at.col) == (first.get("line"), first.get("col"))), None)
    if token is None:
        return TrinoError("SYNTAX_ERROR", "the statement cannot be parsed")
    hint = "put a name that is a word of SQL in double quotes"
    return TrinoError("SYNTAX_ERROR", f'syntax error at or near "{token.text[:100]}"; {hint}', token.start)


def _places(written: list[Token], original: list[Token]) -> tuple[tuple[int, int], ...]:
    """Return the starts of the tokens that occur as often in both texts, in the first and in the second."""
    counts = Counter(token.text.casefold() for token in written)
    counts.subtract(token.text.casefold() for token in original)
    by_text: list[dict[str, list[int]]] = [{}, {}]
    for starts, tokens in zip(by_text, (written, original), strict=True):
        for token in tokens:
            text = token.text.casefold()
            if not counts[text] and (text == "*" or text[:1].isalnum()):  # parentheses may be as many by chance
                starts.setdefault(text, []).append(token.start)
    first, second = by_text
    return tuple(sorted(pair for text, starts in first.items() for pair in zip(starts, second[text], strict=True)))


_TYPES = exp.DataType.Type
_WHOLE = {_TYPES.BIGINT, _TYPES.INT, _TYPES.SMALLINT, _TYPES.TINYINT}
_NUMBERS = _WHOLE | {_TYPES.DOUBLE, _TYPES.FLOAT, _TYPES.DECIMAL}
_TIMES = {_TYPES.TIMESTAMP, _TYPES.TIMESTAMPTZ, _TYPES.TIME}
_NUMBER = re.compile(r"\s*(-?)((?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,3})?)\s*", re.ASCII)


class _Adaption:
    """What the names, literals and functions of a statement are in the SQL of the service."""

    def __init__(self, session: TrinoSession, datasets: Collection[str], tree: exp.Expr, *, dated: bool) -> None:
        self._dated = dated
        self._session = session
        self._datasets = datasets
        self._ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}

    def adapt(self, node: exp.Expr) -> exp.Expr | None:  # noqa: C901, PLR0911, PLR0912 - a case for each kind of node
        """Return what a node becomes; its children follow."""
        match node:
            case exp.Table():
                self._adapt_table(node)
            case exp.Column():
                if not node.table and isinstance(node.this, exp.Identifier) and not node.this.quoted:
                    return self._value(node.name.lower()) or node
                if node.args.get("catalog") is not None and node.catalog.lower() == CATALOG:
                    node.set("catalog", None)
                if node.args.get("catalog") is None and node.db.lower() == SCHEMA:
                    node.set("db", None)
            case exp.DataType() if node.this in _TIMES:
                node.set("expressions", [])
            case exp.DateTrunc() | exp.TimestampTrunc():
                inner = node.this
                is_cast = isinstance(inner, exp.Cast) and isinstance(inner.this, exp.Column)
                if is_cast and inner.to.this in {_TYPES.TIMESTAMP, _TYPES.DATE}:
                    node.set("this", inner.this)
            case exp.Cast() if type(node) is exp.Cast and node.this.is_string and not node.to.expressions:
                return _literal(node.this.this, node.to.this) or node
            case exp.Literal() if not node.is_string:
                return _literal(node.this, _TYPES.DOUBLE) or node
            case exp.Where():
                return _without_true(node)
            case exp.FromISO8601Timestamp() if node.this.is_string:
                return _iso(node.this.this, "TIMESTAMP")
            case exp.Anonymous() if node.name.lower() == "from_iso8601_date" and node.expressions[0].is_string:
                return _iso(node.expressions[0].this, "DATE")
            case exp.Func():
                name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
                return self._value(name.lower()) or node
        return node

    def _adapt_table(self, table: exp.Table) -> None:
        catalog = table.catalog.lower()
        schema = table.db.lower()
        name = table.name.lower()
        if catalog == "system" and schema in {"jdbc", "metadata", "runtime"}:
            table.set("catalog", None)
            table.set("db", exp.to_identifier("information_schema"))
            table.set("this", exp.to_identifier(f"{schema}_{name}"))
        elif catalog == CATALOG:
            table.set("catalog", None)
        elif not schema and name not in self._ctes and isinstance(table.this, exp.Identifier):
            schema = self._session.schema
            exists = schema in {"information_schema", SAVED} or f"{schema}.{name}" in self._datasets
            if schema != SCHEMA and exists:
                table.set("db", exp.to_identifier(schema))

    def _value(self, name: str) -> exp.Expr | None:
        """Return the value of a function of the session; None for other names."""
        now = self._session.now.astimezone(UTC)
        if not self._dated and name.startswith(("current_date", "current_timestamp", "now", "localtimestamp")):
            return None
        if name == "current_date":
            return exp.cast(exp.Literal.string(f"{now:%Y-%m-%d}"), "DATE")
        if name in {"now", "current_timestamp", "localtimestamp"}:
            return exp.cast(exp.Literal.string(f"{now:%Y-%m-%d %H:%M:%S}"), "TIMESTAMP")
        session = self._session
        texts = {"current_user": session.user, "current_catalog": CATALOG, "current_schema": session.schema}
        texts |= dict.fromkeys(("version", "current_version"), VERSION)
        return exp.Literal.string(texts[name]) if name in texts else None


def _literal(text: str, type_: Any) -> exp.Expr | None:  # noqa: ANN401 - a type of SQLGlot
    """Return the literal of a text of a type, as DOUBLE '3': digits for a number; None for all others."""
    if type_ in {_TYPES.VARCHAR, _TYPES.CHAR}:
        return exp.Literal.string(text)
    number = _NUMBER.fullmatch(text) if type_ in _NUMBERS else None
    if number is None or (type_ in _WHOLE and not number[2].isdecimal()):
        return None
    digits = exp.Literal.number(f"{Decimal(number[2]):f}" if "e" in number[2].lower() else number[2])
    return exp.Neg(this=digits) if number[1] else digits


def _iso(text: str, kind: str) -> exp.Expr:
    """Return the literal of an ISO 8601 date or time, which has no zone: timestamps of datasets are in UTC."""
    with contextlib.suppress(ValueError):  # which is refused with the message for such a literal
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
        text = str(moment.date() if kind == "DATE" else moment)
    return exp.cast(exp.Literal.string(text), kind)


def _without_true(where: exp.Where) -> exp.Where | None:
    """Return a WHERE without conditions such as 1 = 1, which clients begin it with; None if nothing is left."""
    true = (exp.true(), exp.EQ(this=exp.Literal.number(1), expression=exp.Literal.number(1)))
    parts = list(where.this.flatten()) if isinstance(where.this, exp.And) else [where.this]
    rest = [part for part in parts if part not in true]
    if len(rest) < len(parts) and rest:
        where.set("this", exp.and_(*rest, copy=False))
    return where if rest else None
