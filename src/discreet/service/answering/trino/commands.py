"""Read the statements that Trino clients send: changes of the session, questions about metadata, and SELECTs."""

from __future__ import annotations

import re
import uuid
from collections.abc import (
    Callable,
    Mapping,
)
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError
from sqlglot import TokenType

from discreet.catalog.model import Catalog
from discreet.engines.sql import text_literal
from discreet.head_request import Kind
from discreet.query.parse_tree import MAX_LENGTH
from discreet.query.query import SAVED
from discreet.query.saved import TableChange, read_change
from discreet.service.answering.trino.dialect import (
    CATALOG,
    Rewriting,
    TrinoSession,
    rewrite,
    tokenize,
    without_comments,
)
from discreet.service.answering.trino.errors import TrinoError
from discreet.service.answering.trino.tables import MAX_RUN_TIME, PROPERTIES
from discreet.wire.queries import StatementRequest, message_of

Form: TypeAlias = Literal["rows", "plan", "io", "valid", "columns"]
"""What a SELECT returns: its rows; its price, or that in JSON ("io"); whether it is valid; or its columns."""

MAX_NESTED = 3
"""How often EXECUTE may name a statement that is itself EXECUTE."""


@dataclass(frozen=True, slots=True)
class SessionChange:
    """A change of the session, which the client keeps and sends with its next statements.

    Args:
        kind: the words of the statement, such as SET SESSION.
        headers: what the client shall keep, by header.
    """

    kind: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """A SELECT, of metadata or of datasets.

    Args:
        rewriting: its SQL for the service.
        typed: True if the client typed the statement, so that positions of errors are meant for its text.
        change: what the statement makes of a saved table, with the SELECT in *rewriting*; None for a SELECT alone.
        described: the saved table whose columns it lists, in lower case; None for all else.
    """

    rewriting: Rewriting
    form: Form = "rows"
    typed: bool = True
    change: TableChange | None = None
    described: str | None = None


@dataclass(frozen=True, slots=True)
class ConstantRows:
    """An answer that is known at once: its columns with their types, and its rows."""

    columns: tuple[tuple[str, str], ...]
    rows: list[list[Any]]


Command: TypeAlias = SessionChange | Question | ConstantRows

COMMAND: TypeAdapter[Command] = TypeAdapter(Command)
"""Writes and reads commands as JSON, in which they leave the process that reads statements."""

_NAME = r'("(?:[^"]|"")+"|[^\W\d]\w*)'
_PATH = rf"{_NAME}(?:\s*\.\s*{_NAME})?(?:\s*\.\s*{_NAME})?"
_LIKE = re.compile(r"\bLIKE\s+('(?:[^']|'')*')(?:\s+ESCAPE\s+('(?:[^']|'')*'))?", re.IGNORECASE)
_SELECT = re.compile(r"\s*(?:SELECT|WITH|VALUES|TABLE|\()", re.IGNORECASE)
_EXPLAIN = re.compile(r"(\s*EXPLAIN)(\s*\([^()]*\))?\s(\s*ANALYZE\b)?", re.IGNORECASE)
_COMPARISONS = {
    TokenType.EQ,
    TokenType.NEQ,
    TokenType.LT,
    TokenType.LTE,
    TokenType.GT,
    TokenType.GTE,
    TokenType.NOT,
    TokenType.IN,
    TokenType.BETWEEN,
    TokenType.LIKE,
}

# The table that each SHOW reads and the columns that it shows; its LIKE applies to the first.
_SHOW: Mapping[str, tuple[str, str]] = {
    "CATALOGS": ("jdbc_catalogs", "table_cat Catalog"),
    "SCHEMAS": ("schemata", "schema_name Schema"),
    "TABLES": ("tables", "table_name Table"),
    "COLUMNS": ("columns", "column_name Column, data_type Type, '' Extra, comment Comment"),
    "SESSION": ("session_properties", 'name Name, value Value, "default" Default, type Type, description Description'),
    "FUNCTIONS": (
        "functions",
        """function Function, return_type Return Type, argument_types Argument Types, function_type Function Type,
        deterministic Deterministic, description Description""",
    ),
    "ROLES": ("enabled_roles", "role_name Role"),
}


def read(  # noqa: C901, PLR0911, PLR0912 - a case for each kind of statement
    text: str,
    session: TrinoSession,
    prepared: Mapping[str, str],
    catalog: Catalog,
    *,
    typed: bool = True,
    nested: int = 0,
) -> Command:
    """Read a statement.

    Args:
        prepared: the prepared statements of the session, by name.
        catalog: the datasets of the account.

    Raises:
        TrinoError: the statement is not supported, or names a table, prepared statement or property that does not
            exist.
    """
    if nested > MAX_NESTED:
        raise TrinoError("NOT_SUPPORTED", f"EXECUTE may be nested {MAX_NESTED} deep at most")
    text = without_comments(text)  # the places of all else stay
    explained = _EXPLAIN.match(text)
    if _SELECT.match(text) or explained:
        return _question(text, session, catalog, typed=typed, explained=explained)
    text = text.strip()

    def again(inner: str, values: list[str]) -> Command:
        return read(bind(inner, values), session, prepared, catalog, typed=False, nested=nested + 1)

    if match := _matches(rf"PREPARE\s+{_NAME}\s+FROM\s+(.*)", text):
        return SessionChange(
            "PREPARE", {"Added-Prepare": f"{quote(_plain(match[1]), safe='')}={quote(match[2], safe='')}"}
        )
    if match := _matches(r"EXECUTE\s+IMMEDIATE\s+('(?:[^']|'')*')(?:\s+USING\s+(.*))?", text):
        return again(match[1][1:-1].replace("''", "'"), _arguments(match[2] or ""))
    if match := _matches(rf"EXECUTE\s+{_NAME}(?:\s+USING\s+(.*))?", text):
        return again(_prepared(match[1], prepared), _arguments(match[2] or ""))
    if match := _matches(rf"DEALLOCATE\s+PREPARE\s+{_NAME}", text):
        return SessionChange("DEALLOCATE", {"Deallocated-Prepare": quote(_plain(match[1]), safe="")})
    if match := _matches(rf"DESCRIBE\s+INPUT\s+{_NAME}", text):
        count = len(_parameters(_prepared(match[1], prepared)))
        return ConstantRows((("Position", "bigint"), ("Type", "varchar")), [[n, "unknown"] for n in range(count)])
    if match := _matches(rf"DESCRIBE\s+OUTPUT\s+{_NAME}", text):
        inner = _prepared(match[1], prepared)
        command = again(inner, _examples(inner, catalog))
        return (
            replace(command, form="columns")
            if isinstance(command, Question)
            else ConstantRows((("Column Name", "varchar"),), [])
        )
    if match := _matches(rf"USE\s+{_PATH}", text):
        *catalogs, schema = _names(match)
        return SessionChange(
            "USE", {"Set-Catalog": catalogs[0] if catalogs else CATALOG, "Set-Schema": quote(schema, safe="")}
        )
    if match := _matches(rf"SET\s+SESSION\s+{_PATH}\s*=\s*(.*)", text):
        name = _names(match)[-1]
        value = match[4]
        if quoted := _matches(r"(?:[^\W\d]\w*\s+)?'((?:[^']|'')*)'", value):  # perhaps with its type, as DOUBLE '3'
            value = quoted[1].replace("''", "'")
        options({name: value})
        return SessionChange("SET SESSION", {"Set-Session": f"{name}={quote(value, safe='')}"})
    if match := _matches(rf"RESET\s+SESSION\s+{_PATH}", text):
        return SessionChange("RESET SESSION", {"Clear-Session": _names(match)[-1]})
    if _matches(r"START\s+TRANSACTION\b.*", text):
        return SessionChange("START TRANSACTION", {"Started-Transaction-Id": str(uuid.uuid4())})
    if match := _matches(r"(COMMIT|ROLLBACK)(?:\s+WORK)?", text):
        return SessionChange(match[1].upper(), {"Clear-Transaction-Id": "true"})
    if match := _matches(r"SET\s+(ROLE|PATH|TIME\s+ZONE|SESSION\s+AUTHORIZATION)\b.*", text):
        return SessionChange("SET " + " ".join(match[1].upper().split()))
    changed = _change(text, session, catalog, typed=typed)
    if changed is not None:
        return changed
    shown = _shown(text, session, catalog)
    if shown is None:
        word = text.split(maxsplit=1)[0].upper() if text else ""
        raise TrinoError(
            "NOT_SUPPORTED" if word.isalpha() else "SYNTAX_ERROR",
            f"{word} is not supported: this catalog answers SELECT and EXPLAIN, saves tables in the schema saved, and "
            "knows SHOW, DESCRIBE, USE and SET SESSION"
            if word
            else "the statement is empty; send a SELECT",
        )
    return shown


def _question(
    text: str, session: TrinoSession, catalog: Catalog, *, typed: bool, explained: re.Match[str] | None
) -> Question:
    """Return a SELECT, or the form of EXPLAIN that its options ask for."""
    form: Form = "rows"
    if explained is not None:
        options = (explained[2] or "").upper()
        form = "valid" if "VALIDATE" in options else "io" if re.search(r"\bIO\b", options) else "plan"
        if explained[3]:
            raise TrinoError(
                "NOT_SUPPORTED", "EXPLAIN ANALYZE is not supported: EXPLAIN shows the price, free of charge"
            )
        text = " " * explained.end() + text[explained.end() :]
    try:
        rewriting = rewrite(text, session, {name.lower() for name in catalog.datasets})
    except TrinoError as error:
        raise error if typed else TrinoError(error.name, str(error)) from None
    if explained is not None:
        shift = len("EXPLAIN ")
        places = tuple((start + shift, original) for start, original in rewriting.places)
        rewriting = replace(rewriting, sql=f"EXPLAIN {rewriting.sql}", places=places)
    return Question(rewriting, form, typed)


def _change(text: str, session: TrinoSession, catalog: Catalog, *, typed: bool) -> Question | None:
    """Return a statement that makes or changes a saved table; None for others."""
    change = read_change(text)
    if change is None:
        return None
    rewriting = Rewriting("")
    if change.start:
        select = " " * change.start + change.sql.rstrip("; \n")
        select = re.sub(r"\bWITH\s+(NO\s+)?DATA\s*$", "", select, flags=re.IGNORECASE)
        dated = change.action != "create view"
        rewriting = rewrite(select, session, {name.lower() for name in catalog.datasets}, dated=dated)
        change = replace(change, sql=rewriting.sql)
    return Question(rewriting, typed=typed, change=replace(change, path=change.path or (session.schema,)))


def _shown(text: str, session: TrinoSession, catalog: Catalog) -> Question | None:
    """Return the SELECT that a SHOW or DESCRIBE stands for; None for other statements."""
    if _matches(r"SHOW\s+(?:CREATE|STATS)\b.*", text):
        raise TrinoError(
            "NOT_SUPPORTED", "tables have no definition and no statistics that could be shown; use DESCRIBE"
        )
    saved = None
    described = _matches(rf"(?:DESCRIBE|DESC|SHOW\s+COLUMNS\s+(?:FROM|IN))\s+{_PATH}(\s+LIKE\s.*)?", text)
    if described:
        *place, table = _names(described)
        schema = place[-1] if place else session.schema
        datasets = {name.lower() if "." in name else f"main.{name.lower()}" for name in catalog.datasets}
        if schema not in {"information_schema", SAVED} and f"{schema}.{table}".lower() not in datasets:
            raise TrinoError(
                "TABLE_NOT_FOUND", f"there is no table {table!r} in the schema {schema!r}, or it was not granted"
            )
        saved = table.lower() if schema == SAVED else None
        where = f"lower(table_schema) = {text_literal(schema.lower())}"
        where += f" AND lower(table_name) = {text_literal(table.lower())}"
        kind = "COLUMNS"
        order = "ordinal_position"
    else:
        match = _matches(
            rf"SHOW\s+(CATALOGS|SCHEMAS|TABLES|SESSION|FUNCTIONS|(?:CURRENT\s+)?ROLES|ROLE\s+GRANTS|GRANTS)\b"
            rf"(?:\s+(?:FROM|IN|ON)\s+{_PATH})?(?:\s+LIKE\s.*)?",
            text,
        )
        if not match:
            return None
        kind = match[1].upper()
        where = "true"
        order = "1"
        kind = kind if kind in _SHOW else "ROLES"
        if kind == "TABLES":
            schema = _plain(match[4] or match[3] or match[2] or session.schema)
            where = f"lower(table_schema) = {text_literal(schema.lower())}"
    table, shown = _SHOW[kind]
    columns = [column.split(maxsplit=1) for column in shown.split(",")]
    if like := _LIKE.search(text):
        where += f" AND {columns[0][0]} LIKE {like[1]}" + (f" ESCAPE {like[2]}" if like[2] else "")
    selected = ", ".join(f'{name} AS "{title}"' for name, title in columns)
    select = f"SELECT {selected} FROM information_schema.{table} WHERE {where} ORDER BY {order}"  # noqa: S608 - literals are quoted
    return Question(rewrite(select, replace(session, schema="main"), ()), typed=False, described=saved)


def _matches(pattern: str, text: str) -> re.Match[str] | None:
    return re.fullmatch(pattern, text, re.IGNORECASE | re.DOTALL)


def _plain(name: str) -> str:
    """Return a name without its quotes; in lower case if it has none."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


def _names(match: re.Match[str]) -> list[str]:
    return [_plain(match[group]) for group in (1, 2, 3) if match[group]]


def _prepared(name: str, prepared: Mapping[str, str]) -> str:
    text = prepared.get(_plain(name))
    if text is None:
        raise TrinoError("NOT_FOUND", f"there is no prepared statement {_plain(name)!r} in this session")
    return text


def options(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a statement in session properties, as fields of `StatementRequest`.

    Raises:
        TrinoError: there is no such property, or its value is not allowed.
    """
    values: dict[str, Any] = {}
    max_seconds(properties)
    for name, text in properties.items():
        if name not in PROPERTIES:
            sentence = f"there is no session property {name!r}; there are {', '.join(PROPERTIES)}"
            raise TrinoError("INVALID_SESSION_PROPERTY", sentence)
        type_, _ = PROPERTIES[name]
        try:
            values[name] = _READERS[type_](text)
        except (KeyError, ValueError):
            raise TrinoError("INVALID_SESSION_PROPERTY", f"the session property {name} is a {type_}") from None
    values.pop(MAX_RUN_TIME, None)
    try:
        StatementRequest.model_validate({"sql": "SELECT 1", **values})
    except ValidationError as error:
        raise TrinoError("INVALID_SESSION_PROPERTY", message_of(error)) from None
    return values


_READERS: Mapping[str, Callable[[str], Any]] = {
    "double": float,
    "bigint": int,
    "boolean": lambda text: {"false": False, "true": True}[text.lower()],
    "varchar": str,
}


def max_seconds(properties: Mapping[str, str]) -> float:
    """Return the longest time that a statement may take, in seconds; raise `TrinoError` if it is not a duration."""
    duration = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s|m|h|d)", properties.get(MAX_RUN_TIME, "365d"))
    if duration is None:
        sentence = f"the session property {MAX_RUN_TIME} is a duration such as 30s or 5m"
        raise TrinoError("INVALID_SESSION_PROPERTY", sentence)
    return float(duration[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}[duration[2]]


def bind(text: str, values: list[str]) -> str:
    """Return a prepared statement with its parameters replaced; raise `TrinoError` if their numbers differ."""
    places = _parameters(text)
    if len(places) != len(values):
        sentence = f"the statement has {len(places)} parameters, and {len(values)} values were given"
        raise TrinoError("INVALID_PARAMETER_USAGE", sentence)
    if sum(map(len, values)) + len(text) > MAX_LENGTH:
        raise TrinoError("QUERY_TEXT_TOO_LARGE", f"a statement has {MAX_LENGTH:,} characters at most, with its values")
    starts = [0, *(place + 1 for place in places)]
    pieces = [text[start:end] for start, end in zip(starts, [*places, len(text)], strict=True)]
    return "".join(piece + value for piece, value in zip(pieces, [*values, ""], strict=True))


def _parameters(text: str) -> list[int]:
    """Return the places of the parameters of a prepared statement."""
    return [token.start for token in tokenize(text) if token.token_type == TokenType.PLACEHOLDER]


def _arguments(text: str) -> list[str]:
    """Return the values behind USING."""
    if not text.strip():
        return []
    depth = 0
    cuts = [-1]
    for token in tokenize(text):
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if token.token_type == TokenType.COMMA and not depth:
            cuts.append(token.start)
    cuts.append(len(text))
    return [text[start + 1 : end].strip() for start, end in pairwise(cuts)]


def _examples(text: str, catalog: Catalog) -> list[str]:
    """Return a value for each parameter of a statement, of the type of the column that it is compared with."""
    literals = {Kind.TEXT: "''", Kind.BOOLEAN: "TRUE", Kind.DATE: "DATE '2000-01-01'"}
    literals |= {Kind.TIMESTAMP: "TIMESTAMP '2000-01-01 00:00:00'"}
    datasets = catalog.datasets.values()
    literal_of = {
        name.lower(): literals.get(uses.kind) for dataset in datasets for name, uses in dataset.columns.items()
    }
    values = []
    column = None  # the last name that was compared with something
    tokens = tokenize(text)
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.token_type in _COMPARISONS and before is not None:
            column = before.text.lower()
        elif token.token_type == TokenType.PLACEHOLDER:
            values.append(literal_of.get(column or "") or "1")
    return values
