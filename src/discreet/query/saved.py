"""Saved tables: names for statements and the releases that answered them, and the statements that make them.

A saved table holds no rows: its rows are computed from releases, which never change. In a statement it stands for its
text, whose queries are answered by those releases, so that nothing is queried or charged.

    CREATE TABLE saved.readers AS SELECT country, COUNT(DISTINCT reader) AS n FROM reads GROUP BY country
    SELECT SUM(n) FROM saved.readers        SELECT SUM(n) FROM (SELECT country, ... GROUP BY country) AS readers
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn, TypeAlias

from pydantic import TypeAdapter

from discreet.errors import InputError, SQLError
from discreet.head_request import MAX_TABLE_PARTS
from discreet.query.parse_tree import check_size

MAX_NESTED = 8
"""How often a saved table may be made from saved tables that are made from others."""

MAX_NAME_LENGTH = 63

MAX_READ = 200
"""The largest number of saved tables that a statement reads, with those that its views read."""


@dataclass(frozen=True, slots=True)
class SavedPart:
    """A statement, and the releases that answered its queries.

    Args:
        sql: a SELECT.
        today: the date that current_date was, YYYY-MM-DD.
        answers: the ids of the releases, by the SQL of their query; of a view empty.
        uses: the saved tables that it reads, by name, as they were.
        key: of the request that added it, so that the same request adds it once; empty if it had none.
    """

    sql: str
    today: str
    answers: Mapping[str, str] = field(default_factory=dict)
    uses: Mapping[str, SavedTable] = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True, slots=True)
class SavedTable:
    """A saved table, whose rows are those of all its parts, or a view, which has one part and no answers.

    Args:
        columns: the names of its columns, and their SQL types.
        comment: what its owner says about it.
    """

    parts: tuple[SavedPart, ...]
    columns: tuple[tuple[str, str], ...] = ()
    view: bool = False
    comment: str = ""

    @property
    def releases(self) -> frozenset[str]:
        """The ids of all releases that its rows are computed from."""
        own = [set(part.answers.values()) for part in self.parts]
        nested = [table.releases for part in self.parts for table in part.uses.values()]
        return frozenset[str]().union(*own, *nested)


TABLE: TypeAdapter[SavedTable] = TypeAdapter(SavedTable)
"""Writes saved tables as JSON, and reads them."""

Action: TypeAlias = Literal["create table", "create view", "insert", "drop table", "drop view", "rename", "comment"]


@dataclass(frozen=True, slots=True)
class TableChange:
    """A statement that makes or changes a saved table.

    Args:
        path: the names before the table's, in lower case, such as ("discreet", "saved"), or none.
        name: of the table.
        sql: the SELECT of a new table or of an insert; a new name, or a comment.
        start: where the SELECT stands in the statement.
        replace: True for OR REPLACE.
        lenient: True for IF EXISTS and IF NOT EXISTS: if the condition fails, nothing happens.
        columns: those that an INSERT names; empty for all.
        releases: the ids of the releases that answer the queries of the SELECT, in their order; None to run them.
    """

    action: Action
    path: tuple[str, ...]
    name: str
    sql: str = ""
    start: int = 0
    replace: bool = False
    lenient: bool = False
    columns: tuple[str, ...] = ()
    comment: str = ""
    releases: tuple[str, ...] | None = None


_NAME = r'(?:"(?:[^"]|"")+"|[^\W\d]\w*)'
_PATH = rf"(?P<path>{_NAME}(?:\s*\.\s*{_NAME}){{0,2}})"
_TEXT = r"'(?:[^']|'')*'"
_COMMENT = rf"(?:\s+COMMENT\s+(?P<comment>{_TEXT}))?"
_CREATE = r"CREATE\s+(?P<replace>OR\s+REPLACE\s+)?"
_KIND = r"(?:TABLE|(?P<view>VIEW))"
_IF_EXISTS = r"(?P<lenient>IF\s+EXISTS\s+)?"
_FORMS = tuple(
    re.compile(rf"\s*{form}[\s;]*", re.IGNORECASE | re.DOTALL)
    for form in (
        rf"{_CREATE}TABLE\s+(?P<lenient>IF\s+NOT\s+EXISTS\s+)?{_PATH}{_COMMENT}\s+AS\b(?P<sql>.*)",
        rf"{_CREATE}(?P<view>VIEW)\s+{_PATH}{_COMMENT}(?:\s+SECURITY\s+(?:DEFINER|INVOKER))?\s+AS\b(?P<sql>.*)",
        rf"INSERT\s+INTO\s+{_PATH}\s*(?P<columns>\(\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\))?(?P<sql>[\s(].*)",
        rf"DROP\s+{_KIND}\s+{_IF_EXISTS}{_PATH}",
        rf"ALTER\s+{_KIND}\s+{_IF_EXISTS}{_PATH}\s+RENAME\s+TO\s+(?P<sql>{_NAME}(?:\s*\.\s*{_NAME}){{0,2}})",
        rf"COMMENT\s+ON\s+{_KIND}\s+{_PATH}\s+IS\s+(?P<sql>{_TEXT}|NULL)",
    )
)
_FIRST = re.compile(r"\s*(CREATE|INSERT|DROP|ALTER|COMMENT)\b", re.IGNORECASE)
_HINTS = {
    "CREATE": "CREATE [OR REPLACE] TABLE saved.name AS SELECT ..., or CREATE VIEW",
    "INSERT": "INSERT INTO saved.name SELECT ...",
    "DROP": "DROP TABLE [IF EXISTS] saved.name, or DROP VIEW",
    "ALTER": "ALTER TABLE saved.name RENAME TO saved.other",
    "COMMENT": "COMMENT ON TABLE saved.name IS '...'",
}
_NAMES = re.compile(_NAME)
_SAVED = re.compile(rf'(?<![\w"])(?:saved|"saved")\s*\.\s*({_NAME})', re.IGNORECASE)


def read_change(text: str) -> TableChange | None:
    """Read a statement that makes or changes a saved table; None for one that begins with another word.

    Args:
        text: without comments.

    Raises:
        SQLError: it is too long, or none of the forms that are allowed.
    """
    first = _FIRST.match(text)
    if first is None:
        return None
    check_size(text)
    word = first[1].upper()
    match = next(filter(None, (form.fullmatch(text) for form in _FORMS)), None)
    if match is None:
        raise SQLError(f"this form of {word} is not supported; {_HINTS[word]} is")
    fields = match.groupdict()
    kind = "view" if fields.get("view") else "table"
    action = f"{word.lower()} {kind}"
    actions: Mapping[str, Action] = {"ALTER": "rename", "COMMENT": "comment", "INSERT": "insert"}
    *path, name = _plain_names(fields["path"])
    sql = fields.get("sql") or ""
    if word == "ALTER":
        *to, sql = _plain_names(sql)
        if to and to != path:
            raise SQLError("a saved table is renamed within its schema")
    elif word == "COMMENT":
        sql = "" if sql.upper() == "NULL" else _unquoted(sql, "'")
    return TableChange(
        actions.get(word, action),  # type: ignore[arg-type]  # words of the forms
        tuple(part.lower() for part in path),
        name,
        sql,
        match.start("sql") if word in {"CREATE", "INSERT"} else 0,
        replace=bool(fields.get("replace")),
        lenient=bool(fields.get("lenient")),
        columns=tuple(_plain_names(fields.get("columns") or "")),
        comment=_unquoted(fields.get("comment") or "''", "'"),
    )


def _unquoted(text: str, quote: str) -> str:
    return text[1:-1].replace(quote * 2, quote)


def _plain_names(text: str) -> list[str]:
    """Return the names in a path or a list, without their quotes."""
    names = _NAMES.findall(text)
    return [_unquoted(name, '"') if name.startswith('"') else name for name in names]


def tables_in(
    text: str, read: Callable[[str], SavedTable | None], reads_left: list[int] | None = None
) -> dict[str, SavedTable]:
    """Return all saved tables that a statement may name, by name in lower case; some names may stand in its texts.

    Args:
        read: returns a saved table, or None; a view without what it reads.
        reads_left: how many more may be read.

    Raises:
        InputError: it reads more than `MAX_READ`, as a view that reads itself does.
    """
    reads_left = [MAX_READ] if reads_left is None else reads_left
    tables = {}
    for name in names_in(text):
        table = read(name)
        if table is None:
            continue
        reads_left[0] -= 1
        if reads_left[0] < 0:
            raise InputError(f"a statement reads at most {MAX_READ} saved tables, with those that views read")
        if table.view:
            (part,) = table.parts
            table = replace(table, parts=(replace(part, uses=tables_in(part.sql, read, reads_left)),))
        tables[name.lower()] = table
    return tables


def names_in(text: str) -> list[str]:
    """Return the names that follow saved. in a statement, in order; some may stand in its texts."""
    return sorted({_plain_names(name)[0] for name in _SAVED.findall(text)})


def unanswered(table: SavedTable) -> SavedTable:
    """Return the first part of a saved table as a view, and so those that it reads: for rehearsals."""
    part = table.parts[0]
    uses = {name: unanswered(used) for name, used in part.uses.items()}
    return replace(table, parts=(replace(part, uses=uses),), view=True)


def changed(before: SavedTable | None, change: TableChange, new: SavedTable) -> SavedTable:
    """Return what a CREATE or an INSERT makes of a saved table; the same as *before* if its request was repeated.

    Args:
        new: has the part that is added.

    Raises:
        InputError: the table exists, or it does not, or its columns differ.
    """
    (part,) = new.parts
    if before is not None and part.key and any(part_before.key == part.key for part_before in before.parts):
        return before
    name = f"saved.{change.name}"
    if change.action == "insert":
        if before is None or before.view:
            raise InputError(f"{name} is no saved table; CREATE TABLE {name} AS SELECT ... makes it")
        names = [name.casefold() for name, _ in before.columns]
        if change.columns and [name.casefold() for name in change.columns] != names:
            raise InputError(f"INSERT names all columns of {name}, in their order, or none: {', '.join(names)}")
        types = [type_ for _, type_ in before.columns]
        if types != [type_ for _, type_ in new.columns]:
            columns = ", ".join(f"{column} {type_}" for column, type_ in before.columns)
            raise InputError(f"the SELECT has other columns than {name}, which are {columns}")
        if len(before.parts) == MAX_TABLE_PARTS:
            raise InputError(f"a saved table has at most {MAX_TABLE_PARTS} parts; save what is new in another table")
        return replace(before, parts=(*before.parts, part))
    if before is not None and before.view != new.view:
        raise InputError(f"{name} is a {'view' if before.view else 'table'}; DROP it first")
    if before is not None and not change.replace:
        raise InputError(f"there is {name} already; CREATE OR REPLACE it, or DROP it first")
    return new


def check_table_name(name: str) -> str:
    """Return the name of a new saved table in lower case, or raise `InputError`."""
    if not re.fullmatch(r"[^\W\d]\w*", name) or len(name) > MAX_NAME_LENGTH:
        raise InputError(
            f"the name of a saved table has letters, digits and _, no digit first, and {MAX_NAME_LENGTH} characters at "
            f"most, not {name[:MAX_NAME_LENGTH]!r}"
        )
    return name.lower()


def unknown_table(name: str) -> NoReturn:
    """Raise `SQLError` for a saved table that does not exist, or that the account may not read."""
    raise SQLError(f"there is no saved table {name[:300]!r}; SHOW TABLES FROM saved lists them")
