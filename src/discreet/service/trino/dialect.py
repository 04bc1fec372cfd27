"""Rewrite SELECTs of Trino clients in the SQL of the service: names, literals and a few functions.

A client spells a statement for Trino: `discreet.main.reads`, `date_trunc('DAY', CAST(day AS TIMESTAMP))`, `DOUBLE '3'`,
names such as `at` that DuckDB's parser, which reads the statements of the service, takes for words of SQL. Every
rewriting keeps the meaning, and the place of each character in the original is kept for the positions of errors.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from discreet.engines.sql import text_literal

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

    def replace(self, pattern: re.Pattern[str], change: Callable[[list[str]], str]) -> bool:
        """Replace every match outside of literals by the text that *change* returns; return True if there is one.

        Args:
            pattern: sees spaces for the content of literals, and for comments.
            change: its argument is the text of the groups, from group 0; empty for a group that did not match.
        """
        pieces, places, end = list[str](), list[int](), 0
        for match in pattern.finditer(masked(self.text)):
            start = match.start()
            new = change([self.text[slice(*match.span(group))] for group in range(pattern.groups + 1)])
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


def _in_schema(group: list[str], session: Session, datasets: Collection[str]) -> str:
    """Return FROM or JOIN with a table, in the schema of the session if it has the table."""
    schema, table = session.schema, group[2].strip('"').lower()
    known = schema == "information_schema" or f"{schema}.{table}" in datasets
    return f'{group[1]} "{schema}".{group[2]}' if schema != SCHEMA and known else group[0]


def _iso(group: list[str], *_: object) -> str:
    """Return the literal of an ISO 8601 date or time, which has no zone: timestamps of datasets are in UTC."""
    kind, text = group[1].upper(), group[2]
    with contextlib.suppress(ValueError):  # which is refused with the message for such a literal
        found = datetime.fromisoformat(text)
        found = found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
        text = str(found.date() if kind == "DATE" else found)
    return f"{kind} {text_literal(text)}"


def _now(group: list[str], session: Session, *_: object) -> str:
    utc = session.now.astimezone(UTC)
    is_date = group[1].lower() == "current_date"
    return f"DATE '{utc:%Y-%m-%d}'" if is_date else f"TIMESTAMP '{utc:%Y-%m-%d %H:%M:%S}'"


# The specifiers of `date_format` that are others in `strftime`.
_SPECIFIERS = {"%i": "%M", "%s": "%S", "%M": "%B", "%W": "%A", "%c": "%-m", "%e": "%-d", "%k": "%-H", "%h": "%I"}
_SPECIFIERS |= {"%l": "%-I", "%T": "%H:%M:%S", "%r": "%I:%M:%S %p", "%v": "%V", "%x": "%G"}
_NUMBER = re.compile(r"\s*(-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?)\s*")


# Patterns, in which IDENTIFIER and START stand for an identifier and for the place before one, and their replacements.
_RULES: tuple[tuple[str, Callable[[list[str], Session, Collection[str]], str]], ...] = (
    (rf'START(?:"{CATALOG}"|{CATALOG})\s*\.\s*(?=IDENTIFIER\s*\.)', lambda *_: ""),
    (
        r'START"?system"?\s*\.\s*"?(jdbc|metadata|runtime)"?\s*\.\s*"?(\w+)"?',
        lambda group, *_: f"information_schema.{group[1].lower()}_{group[2].lower()}",
    ),
    (rf'START(?:"{SCHEMA}"|{SCHEMA})\s*\.\s*(?=IDENTIFIER\s*\.)', lambda *_: ""),
    (r'\b(FROM|JOIN)\s+(IDENTIFIER)(?![\w"])(?!\s*[.(])', _in_schema),
    (r"\bTIMESTAMP\s*\(\s*\d+\s*\)", lambda *_: "TIMESTAMP"),
    (r"\bfrom_iso8601_(timestamp|date)\s*\(\s*'(\s*)'\s*\)", _iso),
    (
        r"\bdate_trunc\s*\(\s*('\s*')\s*,\s*CAST\s*\(\s*(IDENTIFIER(?:\s*\.\s*IDENTIFIER)?)\s+AS\s+(?:TIMESTAMP|DATE)\s*\)\s*\)",
        lambda group, *_: f"date_trunc({group[1]}, {group[2]})",
    ),
    (
        r"\b(?:DOUBLE|REAL|DECIMAL|NUMERIC|BIGINT|INTEGER|SMALLINT|TINYINT)\s+'(\s*)'",
        lambda group, *_: group[1].strip() if _NUMBER.fullmatch(group[1]) else group[0],
    ),
    (r"\b(?:VARCHAR|CHAR)\s+(?=')", lambda *_: ""),
    (
        r"(?<![\w.])((?:\d+\.?\d*|\.\d+)E[-+]?\d{1,3})(?!\w)",
        lambda group, *_: f"{Decimal(group[1]):f}" if len(group[1]) < 40 else group[0],
    ),
    (r"\bWHERE\s+(?:1\s*=\s*1|TRUE)\s+AND\b", lambda *_: "WHERE"),
    (
        r"\bWHERE\s+(?:1\s*=\s*1|TRUE)(?=\s*(?:$|\)|(?:GROUP|HAVING|ORDER|LIMIT|OFFSET|FETCH|UNION|INTERSECT|EXCEPT)\b))",
        lambda *_: "",
    ),
    (rf'START({_RESERVED})(?![\w"])(?!\s*\()(?!\s+TIME\s+ZONE\b)', lambda group, *_: f'"{group[1]}"'),
    (r"START(?:now\s*\(\s*\)|(current_timestamp|localtimestamp|current_date)(?!\w|\s*\())", _now),
    (
        r'START(?:(version)\s*\(\s*\)|(current_user|current_catalog|current_schema)(?![\w"]|\s*\())',
        lambda group, session, _: text_literal(
            {"version": VERSION, "current_user": session.user, "current_catalog": CATALOG}.get(
                (group[1] or group[2]).lower(), session.schema
            )
        ),
    ),
    (
        r"\bdate_format\s*(\((?:[^()]|\([^()]*\))*,\s*)('\s*')\s*\)",
        lambda group, *_: (
            f"strftime{group[1]}{re.sub('%.', lambda match: _SPECIFIERS.get(match[0], match[0]), group[2])})"
        ),
    ),
    (r"\bapprox_percentile\s*\(", lambda *_: "approx_quantile("),
)
_SPELLED = {"IDENTIFIER": r'(?:"[^"]+"|[^\W\d]\w*)', "START": r'(?<![\w".])'}
_COMPILED = [
    (re.compile(re.sub("IDENTIFIER|START", lambda match: _SPELLED[match[0]], pattern), re.IGNORECASE), change)
    for pattern, change in _RULES
]
_DISTINCT = re.compile(r"\bapprox_distinct\s*\(", re.IGNORECASE)


def rewrite(text: str, session: Session, datasets: Collection[str]) -> Rewriting:
    """Return a SELECT of a Trino client, rewritten for the service.

    Args:
        text: without comments.
        datasets: the names of the datasets of the account, in lower case.
    """
    made = Rewriting(text)
    for pattern, change in _COMPILED:
        made.replace(pattern, lambda group, change=change: change(group, session, datasets))  # type: ignore[misc]
    if made.replace(_DISTINCT, lambda _: "count(DISTINCT "):
        made.warnings.append("approx_distinct was answered as COUNT(DISTINCT ...), with noise instead of a sketch")
    return made
