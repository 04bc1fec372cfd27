"""Helpers for the nodes of a parsed statement: what an expression holds, keys that compare expressions, constants."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from discreet.query.parse_tree import PLACES, Json, Node, parse_statement
from discreet.query.sql import MAX_LIMIT_DIGITS


def children(part: Json) -> Iterable[Json]:
    """Return the parts of a list or an object of a tree; nothing for other values."""
    return part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()


def has_star(part: Json) -> bool:
    """Return True if an expression has a * or COLUMNS outside of its subqueries."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind == "STAR" or (kind != "SUBQUERY" and any(map(has_star, children(part))))


def has_window(part: Json) -> bool:
    """Return True if an expression has a window function."""
    is_window = isinstance(part, dict) and part.get("class") == "WINDOW"
    return is_window or any(map(has_window, children(part)))


def names_in(part: Json) -> set[str]:
    """Return the casefolded names of the columns in an expression."""
    if isinstance(part, dict) and part.get("type") == "COLUMN_REF":
        return {part["column_names"][-1].casefold()}
    return set[str]().union(*map(names_in, children(part)))


def expression_key(node: Node) -> str:
    """Return a key that is the same for equal expressions, whatever their alias, case and place in the text."""
    return json.dumps(_without_places({**node, "alias": ""}))


def _without_places(part: Any) -> Any:  # noqa: ANN401 - a part of the tree
    if isinstance(part, list):
        return [_without_places(child) for child in part]
    if not isinstance(part, dict):
        return part.casefold() if isinstance(part, str) else part
    return {key: _without_places(value) for key, value in part.items() if key not in PLACES}


def column_place(constant: Node) -> int:
    """Return the place in the select list that a constant names, counted from 1; 0 if it is no number of a place."""
    text = str(constant["literal"]["text"])
    return int(text) if text.isdecimal() and len(text) <= MAX_LIMIT_DIGITS else 0


def parse_expression(sql: str) -> Node:
    """Return the tree of an expression that this package has written."""
    expression: Node = parse_statement(f"SELECT {sql}", arithmetic=True)["node"]["select_list"][0]
    return expression


def column_reference(name: str, replaced: Node) -> Node:
    """Return a column with the alias and the place in the text of the node that it replaces."""
    kept = {key: value for key, value in replaced.items() if key == "alias" or key in PLACES}
    return {"class": "COLUMN_REF", "type": "COLUMN_REF", "column_names": [name]} | kept


def parse_table(sql: str) -> Node:
    """Return the tree of what follows FROM that this package has written."""
    table: Node = parse_statement(f"SELECT 1 FROM {sql}", arithmetic=True)["node"]["from_table"]  # noqa: S608
    return table


def selected_name(selected: Node) -> str:
    """Return the name of a column of a select list: its alias, or that of the column that it is; "" for neither."""
    return str(selected["alias"] or (selected["column_names"][-1] if selected["type"] == "COLUMN_REF" else ""))
