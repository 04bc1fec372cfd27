"""Rewrite SELECTs of Trino clients in the SQL of the service: names, literals and a few functions.

A client spells a statement for Trino: `discreet.main.reads`, `date_trunc('DAY', CAST(day AS TIMESTAMP))`, `DOUBLE '3'`,
names such as `at` that DuckDB's parser, which reads the statements of the service, takes for words of SQL. Every
rewriting keeps the meaning, and the place of each character in the original is kept for the positions of errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

CATALOG, SCHEMA = "discreet", "main"
"""The catalog of all datasets, and the schema of those without one in their name."""

VERSION = "477-discreet"
"""The version of Trino that clients see: they parse the number, and choose the syntax that it knows."""

_QUOTED = re.compile(
    r"""(?P<text>'(?:[^']|'')*')|(?P<name>"(?:[^"]|"")*")|(?P<comment>--[^\n]*|/\*.*?\*/)""", re.DOTALL
)

# Words that DuckDB reserves, Trino does not, and the SQL of the service does not use.
_RESERVED = (
    "analyse|analyze|anti|array|asof|asymmetric|at|authorization|binary|check|collation|column|columns|concurrently|"
    "constraint|default|deferrable|do|foreign|freeze|generated|glob|initially|isnull|lambda|map|notnull|pivot|"
    "pivot_longer|pivot_wider|placing|positional|primary|references|returning|semi|show|similar|struct|summarize|"
    "symmetric|tuple|unique|unpack|unpivot|variadic|verbose"
)
_IDENTIFIER = r'(?:"[^"]+"|[^\W\d]\w*)'


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace("IDENTIFIER", _IDENTIFIER), re.IGNORECASE)


_RESERVED_NAME = _words(rf'(?<![\w".])({_RESERVED})(?![\w"])(?!\s*\()(?!\s+TIME\s+ZONE\b)')
_CATALOG = _words(rf'(?<![\w".])(?:"{CATALOG}"|{CATALOG})\s*\.\s*(?=IDENTIFIER\s*\.)')
_SCHEMA = _words(rf'(?<![\w".])(?:"{SCHEMA}"|{SCHEMA})\s*\.\s*(?=IDENTIFIER\s*\.)')
_SYSTEM = _words(r'(?<![\w".])"?system"?\s*\.\s*"?(jdbc|metadata|runtime)"?\s*\.\s*"?(\w+)"?')
_TABLE = _words(r'\b(FROM|JOIN)\s+(IDENTIFIER)(?![\w"])(?!\s*[.(])')
_TYPED = _words(r"\b(?:DOUBLE|REAL|DECIMAL|NUMERIC|BIGINT|INTEGER|SMALLINT|TINYINT)\s+'(\s*)'")
_TEXT = _words(r"\b(?:VARCHAR|CHAR)\s+(?=')")
_EXPONENT = _words(r"(?<![\w.])((?:\d+\.?\d*|\.\d+)E[-+]?\d{1,3})(?!\w)")
_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?")
_ISO = _words(r"\bfrom_iso8601_(timestamp|date)\s*\(\s*'(\s*)'\s*\)")
_PERIOD = _words(
    r"\bdate_trunc\s*\(\s*('\s*')\s*,\s*CAST\s*\(\s*(IDENTIFIER(?:\s*\.\s*IDENTIFIER)?)\s+AS\s+"
    r"(?:TIMESTAMP(?:\s*\(\s*\d+\s*\))?|DATE)\s*\)\s*\)"
)
_PRECISION = _words(r"\bTIMESTAMP\s*\(\s*\d+\s*\)")
_ALWAYS = _words(r"\bWHERE\s+(?:1\s*=\s*1|TRUE)\s+AND\b")
_ALWAYS_ONLY = _words(
    r"\bWHERE\s+(?:1\s*=\s*1|TRUE)(?=\s*(?:$|\)|(?:GROUP|HAVING|ORDER|LIMIT|OFFSET|FETCH|UNION|INTERSECT|EXCEPT)\b))"
)
_NOW = _words(r'(?<![\w".])(?:now\s*\(\s*\)|(current_timestamp|localtimestamp|current_date)(?!\w|\s*\())')
_CONSTANT = _words(r'(?<![\w".])(?:(version)\s*\(\s*\)|(current_user|current_catalog|current_schema)(?![\w"]|\s*\())')
_DISTINCT = _words(r"\bapprox_distinct\s*\(")
_PERCENTILE = _words(r"\bapprox_percentile\s*\(")
_FORMAT = _words(r"\bdate_format\s*(\((?:[^()]|\([^()]*\))*,\s*)('\s*')\s*\)")

# Specifiers of date_format that strftime spells otherwise; the rest are the same.
_SPECIFIERS = {"%i": "%M", "%s": "%S", "%M": "%B", "%W": "%A", "%c": "%-m", "%e": "%-d", "%k": "%-H", "%h": "%I"}
_SPECIFIERS |= {"%l": "%-I", "%T": "%H:%M:%S", "%r": "%I:%M:%S %p", "%v": "%V", "%x": "%G"}


@dataclass(frozen=True, slots=True)
class Session:
    """The session of a client, as far as a SELECT depends on it.

    Args:
        schema: the schema of tables that are named without one.
        user: the account.
        now: the time at which the statement began.
    """

    schema: str
    user: str
    now: datetime


class Rewriting:
    """A statement that is rewritten step by step.

    Attributes:
        text: the statement now.
        warnings: sentences about functions whose results differ from Trino's.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.warnings: list[str] = []
        self._places = list(range(len(text) + 1))  # of each character, in the original

    def place(self, position: int) -> int:
        """Return the position in the original of a position in the text."""
        return self._places[min(position, len(self._places) - 1)]

    def replace(self, pattern: re.Pattern[str], change: Callable[[re.Match[str], list[str]], str]) -> bool:
        """Replace every match outside of literals by what *change* returns; return True if there is one.

        Args:
            pattern: sees spaces for what is inside of literals, and for comments.
            change: its arguments are the match, and the text of its groups, from group 0.
        """
        pieces, places, end = list[str](), list[int](), 0
        for match in pattern.finditer(masked(self.text)):
            start = match.start()
            new = change(match, [self.text[slice(*match.span(group))] for group in range(pattern.groups + 1)])
            pieces += [self.text[end:start], new]
            places += self._places[end:start] + [self._places[start]] * len(new)
            end = match.end()
        self.text = "".join([*pieces, self.text[end:]])
        self._places = places + self._places[end:]
        return end > 0


def masked(text: str) -> str:
    """Return *text* with spaces for the content of literals and for comments, and `_` for signs in quoted names."""

    def mask(match: re.Match[str]) -> str:
        if match["comment"]:
            return " " * len(match[0])
        if match["text"]:
            return "'" + " " * (len(match[0]) - 2) + "'"
        return '"' + re.sub(r"\W", "_", match[0][1:-1]) + '"'

    return _QUOTED.sub(mask, text)


def without_comments(text: str) -> str:
    """Return *text* with spaces instead of comments, and without semicolons at its end."""
    blank = _QUOTED.sub(lambda match: " " * len(match[0]) if match["comment"] else match[0], text)
    return blank.rstrip().rstrip(";").rstrip()


def rewrite(text: str, session: Session, datasets: Collection[str]) -> Rewriting:
    """Return a SELECT of a Trino client, rewritten for the service.

    Args:
        text: without comments.
        datasets: the names of the datasets of the account, in lower case.
    """
    made = Rewriting(text)
    made.replace(_CATALOG, lambda _, __: "")
    made.replace(_SYSTEM, lambda match, _: f"information_schema.{match[1].lower()}_{match[2].lower()}")
    made.replace(_SCHEMA, lambda _, __: "")
    made.replace(_TABLE, lambda _, group: _in_schema(group, session.schema, datasets))
    made.replace(_ISO, lambda _, group: _iso(group[1], group[2]))
    made.replace(_PERIOD, lambda _, group: f"date_trunc({group[1]}, {group[2]})")
    made.replace(_PRECISION, lambda _, __: "TIMESTAMP")
    made.replace(_TYPED, lambda _, group: group[1].strip() if _NUMBER.fullmatch(group[1].strip()) else group[0])
    made.replace(_TEXT, lambda _, __: "")
    made.replace(_EXPONENT, lambda _, group: f"{Decimal(group[1]):f}" if len(group[1]) < 40 else group[0])
    made.replace(_ALWAYS, lambda _, __: "WHERE")
    made.replace(_ALWAYS_ONLY, lambda _, __: "")
    made.replace(_RESERVED_NAME, lambda match, _: f'"{match[1]}"')
    made.replace(_NOW, lambda match, _: _now(match[1], session.now))
    made.replace(_CONSTANT, lambda match, _: _literal(_constant((match[1] or match[2]).lower(), session)))
    made.replace(_FORMAT, lambda _, group: f"strftime{group[1]}{_specifiers(group[2])})")
    made.replace(_PERCENTILE, lambda _, __: "approx_quantile(")
    if made.replace(_DISTINCT, lambda _, __: "count(DISTINCT "):
        made.warnings.append("approx_distinct was answered as COUNT(DISTINCT ...), with noise instead of a sketch")
    return made


def _in_schema(group: list[str], schema: str, datasets: Collection[str]) -> str:
    """Return FROM or JOIN with a table, in the schema of the session if it has the table."""
    table = group[2].strip('"').lower()
    known = schema == "information_schema" or f"{schema}.{table}" in datasets
    return f'{group[1]} "{schema}".{group[2]}' if schema != SCHEMA and known else group[0]


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _iso(kind: str, text: str) -> str:
    """Return the literal of an ISO 8601 date or time, which has no zone: timestamps of datasets are in UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return f"{kind.upper()} {_literal(text)}"  # refused with the message for such a literal
    if found.tzinfo is not None:
        found = found.astimezone(UTC).replace(tzinfo=None)
    return f"{kind.upper()} {_literal(str(found.date() if kind.lower() == 'date' else found))}"


def _now(word: str | None, now: datetime) -> str:
    utc = now.astimezone(UTC)
    return (
        f"DATE '{utc:%Y-%m-%d}'" if (word or "").lower() == "current_date" else f"TIMESTAMP '{utc:%Y-%m-%d %H:%M:%S}'"
    )


def _constant(word: str, session: Session) -> str:
    known = {"version": VERSION, "current_user": session.user, "current_catalog": CATALOG}
    return known.get(word, session.schema)


def _specifiers(literal: str) -> str:
    return re.sub("%.", lambda match: _SPECIFIERS.get(match[0], match[0]), literal)
