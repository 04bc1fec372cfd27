"""Parse SQL text with DuckDB's parser, after a check of its tokens and before a check against an allow-list of nodes.

Every node of a tree must have a type and exactly the keys that `_NODES` lists, and every key that is not read must have
the value listed there. So nothing in a statement is ignored, and a DuckDB version with another tree is refused instead
of misread.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, get_args

import numpy as np

from discreet.errors import InputError, SQLError, WhereError
from discreet.head_request import MONTHS, Period
from discreet.values import is_unicode

if TYPE_CHECKING:
    import duckdb

MAX_LENGTH = 20_000
"""The largest number of characters in a statement."""

MAX_WHERE_LENGTH = 10_000
"""The largest number of characters in a filter that is not part of a statement."""

MAX_DEPTH = 50
"""The largest nesting depth of parentheses."""

MAX_TREE_DEPTH = 100
"""The largest nesting depth of NOT, AND and OR."""

TOO_LARGE = "it takes too much memory to parse"
TOO_DEEP = f"conditions may be nested {MAX_TREE_DEPTH} deep at most"

Json: TypeAlias = Any
"""An unchecked part of the tree."""

Node: TypeAlias = "dict[str, Any]"
"""A checked node of the tree."""

_TOKENS = re.compile(
    r"""
    (?P<comment>--|/\*)
  | (?P<space>[ \t\r\n\f\v]+)
  | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
  | (?P<prefix>(?<!\w)\w')                        # E'...', X'...': other rules for where the text ends
  | (?P<word>\w+)
  | (?P<sign><>|!=|<=|>=|[=<>*-])
  | (?P<arithmetic>::|[+/%|^])
  | (?P<mark>[().,;])
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_FORBIDDEN = {"comment": "comments are not allowed", "prefix": "text is put in plain single quotes", "other": None}
_WINDOW = "WINDOW is not allowed: put the window behind OVER"  # an unused WINDOW clause is missing from DuckDB's tree
GROUPING_SETS = "ROLLUP, CUBE and GROUPING SETS are not allowed in a single query; whole statements may have them"
MAX_WRITTEN_SETS = 4_096
TOO_MANY_SETS = "ROLLUP, CUBE and GROUPING SETS of a statement have at most 20 sets, each of them a query"
_CHARACTERS = (
    dict.fromkeys("'\"", "the text is not closed with a quote")
    | dict.fromkeys("?@$", "parameters are not allowed")
    | dict.fromkeys(("+", "/", "%", "|", "&", "^", "~"), "arithmetic is not allowed")
    | {"::": "casts with :: and parameters are not allowed"}
    | dict.fromkeys("[]{}", "arrays and brackets are not allowed")
    | {
        ":": "casts with :: and parameters are not allowed",
        ";": "; is not allowed in a filter",
        "#": "comments are not allowed",
        "`": 'quote names with "',
    }
)


def _check_text(text: str, error: type[SQLError | WhereError], *, arithmetic: bool) -> None:
    """Raise unless *text* is safe for DuckDB's parser.

    The parser's memory grows with the square of the nesting depth of parentheses, brackets and prefix operators, to
    gigabytes for texts of the allowed length, so the depth is limited first. Comments, parameters and other forbidden
    tokens are refused here, with their position, because some of them are missing from the tree.
    """
    check_size(text, error)
    depth = 0
    sets = _GroupingSets()
    before = ""  # the previous token
    signs = ""  # operators directly before this token
    for match in _TOKENS.finditer(text):
        kind = match.lastgroup
        word = match[0]
        if kind == "space":
            continue
        if kind == "word" and word.upper() == "WINDOW":
            raise error(_WINDOW, match.start())
        if sets.read(before, word, depth) > (MAX_WRITTEN_SETS if arithmetic else 0):
            raise error(TOO_MANY_SETS if arithmetic else GROUPING_SETS, match.start())
        before = word
        forbidden = kind in _FORBIDDEN or (kind == "arithmetic" and not arithmetic)
        if forbidden or (word == ";" and error is WhereError):
            message = _FORBIDDEN.get(kind or "") or _CHARACTERS.get(word)
            raise error(message or f"the character {word!r} is not allowed outside of quotes", match.start())
        sign = kind in {"sign", "arithmetic"}
        if sign and signs and (word not in "-*|" or len(signs) > 2 if arithmetic else word != "-" or signs[-1] in "*-"):
            hint = "; equality is one =" if word == "=" else ""
            raise error(f"{word} is not allowed here{hint}", match.start())
        signs = signs + word if sign else ""
        depth += (word == "(") - (word == ")")
        if depth > MAX_DEPTH:
            raise error(f"parentheses may be nested {MAX_DEPTH} deep at most", match.start())


class _GroupingSets:
    """Counts the sets of groups that the parser will write out: 2^n for CUBE, and the product of those of a SELECT."""

    def __init__(self) -> None:
        self._sets = 0
        self._open: list[tuple[str, int, int]] = []  # the word, the depth of its elements, and their number

    def read(self, before: str, text: str, depth: int) -> int:
        """Return at least the number of sets up to a token; 0 as long as there is no word for them.

        Args:
            before: the previous token.
            depth: of parentheses before the token.
        """
        if text == "(" and before.upper() in _SIZES:
            self._open.append((before.upper(), depth + 1, 1))
            self._sets = self._sets or 1
        elif self._open and self._open[-1][1] == depth and text in {",", ")"}:
            word, _, elements = self._open.pop()
            if text == ",":
                self._open.append((word, depth, elements + 1))
            else:
                self._sets *= _SIZES[word](elements)
        return self._sets


_SIZES: Mapping[str, Callable[[int], int]] = {
    "CUBE": lambda elements: 2 ** min(elements, 20),
    "ROLLUP": lambda elements: elements + 1,
    "SETS": lambda elements: elements,
}


def _without_new_keys(node: Node) -> Node:
    """Return a node without keys that later versions of DuckDB add, where they have the meaning of earlier trees."""
    if node.get("is_legacy_function_call") is False:  # from DuckDB 2.0.1 on
        del node["is_legacy_function_call"]
    return node


def check_size(text: str, error: type[SQLError | WhereError] = SQLError) -> None:
    """Raise *error* unless a statement or filter is Unicode text of an allowed length. Takes linear time.

    Args:
        error: `SQLError` for a statement, `WhereError` for a filter.
    """
    longest = MAX_LENGTH if error is SQLError else MAX_WHERE_LENGTH
    value: object = text
    if not isinstance(value, str):
        raise error(f"it must be text, not {value!r}")
    if len(text) > longest:
        raise error(f"it may have {longest:,} characters at most")
    if not is_unicode(text):
        raise error("it holds half a character (a lone surrogate)")
    if not text.strip():
        raise error("it is empty")
    if "\0" in text:
        raise error("the character NUL is not allowed", text.index("\0"))


def parse_statement(
    text: str,
    *,
    prefix: str = "",
    error: type[SQLError | WhereError] = SQLError,
    arithmetic: bool = False,
    today: str | None = None,
) -> Node:
    """Return the tree of one SELECT as DuckDB's `json_serialize_sql` describes it, with unchecked nodes.

    Args:
        text: at most 20,000 characters, 10,000 for a filter.
        prefix: SQL to insert before the text; positions are relative to the text.
        arithmetic: True to allow operators such as + and ||.
        today: the date that current_date is, YYYY-MM-DD, in UTC; None to leave it as it is.

    Raises:
        SQLError | WhereError: the text is not one SELECT, or holds characters outside the grammar.
    """
    import duckdb

    _check_text(text, error, arithmetic=arithmetic)
    try:
        # A cursor for each call: threads may share a connection, but not a result.
        row = _connection().cursor().execute("SELECT json_serialize_sql($1)", [prefix + text]).fetchone()
        answer = json.loads(row[0], object_hook=_without_new_keys) if row else {}
    except RecursionError:
        raise error(TOO_DEEP) from None
    except duckdb.Error as failure:
        _connection.cache_clear()  # an internal error of DuckDB makes a connection unusable
        is_full = isinstance(failure, duckdb.OutOfMemoryException)
        raise error(TOO_LARGE if is_full else "it cannot be parsed") from None
    if answer.get("error") is not False:
        if answer.get("error_type") != "parser":
            is_full = answer.get("error_type") == "out of memory"
            raise error(TOO_LARGE) if is_full else error("exactly one SELECT is allowed", 0)
        message = str(answer.get("error_message"))
        position = answer.get("position")
        if position is None:
            raise error(TOO_DEEP if message.startswith("Max expression depth") else message)
        if not prefix and int(position) == len(text) - len(text.lstrip()):
            message = "a statement begins with SELECT, or WITH ... SELECT"
        if message.startswith("syntax error") and not message.endswith('"."'):
            message += "; put a name that is a word of SQL in double quotes"
        raise error(message, character(prefix + text, int(position), len(prefix)))
    statements = answer["statements"]
    if len(statements) != 1:
        raise error("exactly one SELECT is allowed", 0)
    try:
        return dict(rewritten(statements[0], today))
    except RecursionError:
        raise error(TOO_DEEP) from None


def write_statement(tree: Node) -> str:
    """Return the SQL of a tree as returned by `parse_statement`."""
    statement = json.dumps({"error": False, "statements": [tree]})
    row = _connection().cursor().execute("SELECT json_deserialize_sql($1)", [statement]).fetchone()
    return str(row[0]) if row else ""


def write_expression(expression: Node) -> str:
    """Return the SQL of an expression of a tree, which is also the name that DuckDB gives its column."""
    tree = parse_statement("SELECT 1")
    node = {**tree["node"], "select_list": [{**expression, "alias": ""}]}
    return write_statement({**tree, "node": node}).removeprefix("SELECT ")


@lru_cache(maxsize=1)
def _connection() -> duckdb.DuckDBPyConnection:
    """Return a private in-memory database that reads no file and loads no extension."""
    import duckdb

    return duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "async_threads": 0,
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "lock_configuration": "true",
        },
    )


def character(text: str, location: int, shift: int) -> int:
    """Convert DuckDB's location, in UTF-8 bytes, to an offset in characters, minus *shift*."""
    offset = location if text.isascii() else len(text.encode()[:location].decode(errors="ignore"))
    return min(max(0, offset - shift), len(text) - shift)


_SIDES = {"left": ..., "right": ...}
_CHILDREN = {"children": ...}
_NO_ORDER = {"type": "ORDER_MODIFIER", "orders": []}

STATEMENT: Mapping[str, Any] = {"node": ..., "named_param_map": []}
ORDER: Mapping[str, Any] = {"type": ..., "null_order": "ORDER_DEFAULT", "expression": ...}
WINDOW: Mapping[str, Any] = {
    "class": "WINDOW",
    "type": "WINDOW_ROW_NUMBER",
    "alias": "",
    "function_name": "row_number",
    "schema": "",
    "catalog": "",
    "qualified_name": {"path": ["row_number"]},
    "arguments": [],
    "arg_orders": [],
    "distinct": False,
    "filter_expr": None,
    "ignore_nulls": False,
    "has_ignore_nulls": False,
    "offset_expr": None,
    "default_expr": None,
    "partitions": ...,
    "orders": ...,
    "start": "UNBOUNDED_PRECEDING",
    "end": "CURRENT_ROW_RANGE",
    "start_expr": None,
    "end_expr": None,
    "exclude_clause": "NO_OTHER",
}
ARGUMENT: Mapping[str, Any] = {"name": "", "expression": ...}
LITERAL: Mapping[str, Any] = {"kind": ..., "text": ...}
_NODES: Mapping[str, Mapping[str, Any]] = {
    "SELECT_NODE": {
        "modifiers": ...,
        "cte_map": {"map": []},
        "select_list": ...,
        "from_table": ...,
        "where_clause": ...,
        "group_expressions": ...,
        "group_sets": ...,
        "aggregate_handling": "STANDARD_HANDLING",
        "having": None,
        "sample": None,
        "qualify": ...,
    },
    "BASE_TABLE": {
        "alias": ...,
        "sample": None,
        "schema_name": ...,
        "table_name": ...,
        "column_name_alias": [],
        "catalog_name": "",
        "at_clause": None,
        "qualified_name": ...,
    },
    "ORDER_MODIFIER": {"orders": ...},
    "LIMIT_MODIFIER": {"limit": ..., "offset": None, "limit_type": "ROW_COUNT"},
    "COLUMN_REF": {"class": "COLUMN_REF", "alias": ..., "column_names": ...},
    "FUNCTION": {
        "class": "FUNCTION",
        "alias": ...,
        "function_name": ...,
        "schema": "",
        "filter": None,
        "order_bys": _NO_ORDER,
        "distinct": ...,
        "is_operator": ...,
        "export_state": False,
        "catalog": "",
        "arguments": ...,
        "qualified_name": ...,
    },
    "VALUE_CONSTANT": {"class": "CONSTANT", "alias": "", "literal": ...},
    "OPERATOR_CAST": {"class": "CAST", "alias": "", "child": ..., "try_cast": False, "type_expr": ...},
    "TYPE": {
        "class": "TYPE",
        "alias": "",
        "catalog": "",
        "schema": "",
        "type_name": ...,
        "children": [],
        "qualified_name": ...,
    },
    "CONJUNCTION_AND": {"class": "CONJUNCTION", "alias": "", **_CHILDREN},
    "CONJUNCTION_OR": {"class": "CONJUNCTION", "alias": "", **_CHILDREN},
    "OPERATOR_NOT": {"class": "OPERATOR", "alias": "", **_CHILDREN},
    "OPERATOR_IS_NULL": {"class": "OPERATOR", "alias": "", **_CHILDREN},
    "OPERATOR_IS_NOT_NULL": {"class": "OPERATOR", "alias": "", **_CHILDREN},
    "COMPARE_IN": {"class": "OPERATOR", "alias": "", **_CHILDREN},
    "COMPARE_BETWEEN": {"class": "BETWEEN", "alias": "", "input": ..., "lower": ..., "upper": ...},
    "COMPARE_EQUAL": {"class": "COMPARISON", "alias": "", **_SIDES},
    "COMPARE_NOTEQUAL": {"class": "COMPARISON", "alias": "", **_SIDES},
    "COMPARE_LESSTHAN": {"class": "COMPARISON", "alias": "", **_SIDES},
    "COMPARE_LESSTHANOREQUALTO": {"class": "COMPARISON", "alias": "", **_SIDES},
    "COMPARE_GREATERTHAN": {"class": "COMPARISON", "alias": "", **_SIDES},
    "COMPARE_GREATERTHANOREQUALTO": {"class": "COMPARISON", "alias": "", **_SIDES},
}
"""The keys of each type of node, without type and location: the required value, or ... if the value is read."""

REFUSED = {
    "STAR": "* is not allowed: rows are never shown; select columns and an aggregate",
    "SUBQUERY": "subqueries are not allowed",
    "SET_OPERATION_NODE": "set operations are not allowed",
    "JOIN": "joins are not allowed",
    "TABLE_FUNCTION": "functions are not allowed",
    "WINDOW": "window functions are not allowed",
    "CASE": "CASE is not allowed",
    "CAST": "casts are not allowed",
    "COLLATE": "COLLATE is not allowed",
    "PARAMETER": "parameters are not allowed",
    "COMPARE_DISTINCT_FROM": "IS takes NULL or NOT NULL",
    "COMPARE_NOT_DISTINCT_FROM": "IS takes NULL or NOT NULL",
    "cte_map": "WITH is not allowed",
    "having": "HAVING is not allowed",
    "sample": "samples are not allowed",
    "aggregate_handling": "GROUP BY ALL is not allowed",
    "filter": "FILTER is not allowed",
    "order_bys": "ORDER BY is not allowed in an aggregate",
    "offset": "OFFSET is not allowed",
    "limit_type": "LIMIT takes a whole number of items",
    "null_order": "NULLS FIRST and NULLS LAST are not allowed",
    "DISTINCT_MODIFIER": "DISTINCT is not allowed",
    "EMPTY": "expected FROM and a table",
    "EXPRESSION_LIST": "VALUES is not allowed",
    "catalog_name": "a table is named by one name, or by its schema and name",
    "schema": "functions are not allowed",
}
"""Messages for refused nodes, by type or class, and for refused keys."""

_ALLOWED: Mapping[type[InputError], str] = {
    SQLError: "only SELECT ... FROM ... WHERE ... GROUP BY ... QUALIFY ... ORDER BY ... LIMIT ... is allowed",
    WhereError: "only comparisons, IN, BETWEEN, LIKE, IS NULL, AND, OR, NOT and parentheses are allowed",
}
_NO_LOCATION = 2**64 - 1
PLACES = frozenset({"query_location", "query_location_length"})
"""The keys of a node that only say where it stands."""


class TreeReader:
    """Reads the nodes of one statement, checking each against the allow-list.

    Args:
        shift: number of characters before the text that the user wrote.
    """

    def __init__(self, text: str, error: type[SQLError | WhereError], shift: int = 0) -> None:
        self._text = text
        self._error = error
        self._shift = shift

    def open(self, node: Json) -> Node:
        """Return *node*; raise the reader's error unless its type and all its keys are allowed."""
        kind = node.get("type") if isinstance(node, dict) else None
        shape = _NODES.get(str(kind))
        if shape is None:
            self.refuse(REFUSED.get(str(kind)) or REFUSED.get(str((node or {}).get("class"))), node)
        return self.check(node, shape, PLACES | {"type"})

    def check(self, node: Json, shape: Mapping[str, Any], optional: frozenset[str] = frozenset()) -> Node:
        """Return *node*; raise unless it has the keys and values of *shape*, and no others except *optional* keys."""
        if not isinstance(node, dict) or not shape.keys() <= node.keys() <= shape.keys() | optional:
            self.refuse(None, node)
        for key, expected in shape.items():
            if expected is not ... and node[key] != expected:
                self.refuse(REFUSED.get(key), node[key], node)
        return node

    def refuse(self, message: str | None, *places: Json) -> NoReturn:
        """Raise the reader's error, at the first location found in *places*."""
        locations = (min(_locations(place), default=None) for place in places)
        location = next((place for place in locations if place is not None), None)
        position = None if location is None else character(self._text, location, self._shift)
        raise self._error(message or _ALLOWED[self._error], position)

    def names(self, node: Node) -> list[str]:
        """Return the parts of a qualified column name."""
        names = node["column_names"]
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            self.refuse(None, node)
        return names


def _locations(part: Json) -> list[int]:
    """Return the locations of all nodes in a part of the tree, in bytes."""
    locations: list[int] = []
    pending = [part]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            location = part.get("query_location")
            if isinstance(location, int) and location != _NO_LOCATION:
                locations.append(location)
            pending += part.values()
        elif isinstance(part, list):
            pending += part
    return locations


# ------------------------------------------------------------------------------------------------------------ rewriting
#
#     day >= current_date - INTERVAL '30' DAY          day >= DATE '2026-01-02'
#     count(DISTINCT CASE WHEN c THEN reader END)      count(DISTINCT reader) FILTER (WHERE c)
#
# What reads a tree sees constants only, so that a query is the same query all day, and another one tomorrow.

_TODAY = {"current_date", "today"}
_DAYS = {"day": 1, "week": 7}
_FIRST = np.datetime64("0001-01-01")
_LAST = np.datetime64("9999-12-31")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_INTERVAL = re.compile(r"([0-9]{1,6}) (day|week|month|quarter|year)s?", re.IGNORECASE)


def rewritten(part: Json, today: str | None) -> Json:  # noqa: PLR0911 - one for each form
    """Return a part of a parse tree in the form that is read.

    Args:
        today: the date that current_date is, YYYY-MM-DD, in UTC; None to leave it as it is, which readers refuse.
    """
    if isinstance(part, list):
        return [rewritten(element, today) for element in part]
    if not isinstance(part, dict):
        return part
    node = {key: rewritten(value, today) for key, value in part.items()}
    match node:
        case {"class": "COMPARISON", "left": left, "right": right} if today is not None:
            return node | {"left": _constant(left, today, right), "right": _constant(right, today, left)}
        case {"class": "BETWEEN", "input": column, "lower": low, "upper": high} if today is not None:
            return node | {"lower": _constant(low, today, column), "upper": _constant(high, today, column)}
        case {"type": "COMPARE_IN", "children": [column, *listed]} if today is not None:
            return node | {"children": [column, *(_constant(element, today, column) for element in listed)]}
        case {
            "type": "FUNCTION",
            "function_name": "count",
            "distinct": True,
            "filter": None,
            "arguments": [
                {
                    "expression": {
                        "type": "CASE_EXPR",
                        "case_checks": [{"when_expr": condition, "then_expr": column}],
                        "else_expr": {"literal": {"kind": "NULL_LITERAL"}},
                    }
                } as argument
            ],
        }:
            return node | {"filter": condition, "arguments": [{**argument, "expression": column}]}
    return node


def _constant(node: Json, today: str, compared: Json) -> Json:
    """Return a date relative to today as the tree of DATE '...'; any other operand as it is."""
    if not isinstance(node, dict):
        return node
    if node.get("type") == "COLUMN_REF" and (compared or {}).get("type") != "COLUMN_REF":
        return node  # a column may have this name, and is compared with a constant
    if _text(node.get("child")):
        return node  # a constant already
    date = _date(node, np.datetime64(today, "D"))
    if date is None:
        return node
    constant = _date_constant()  # parsed once, as a filter may have thousands
    literal = constant["child"]["literal"] | {"text": str(date)}
    constant = constant | {"child": constant["child"] | {"literal": literal}}
    return constant | {key: place for key, place in node.items() if key in PLACES}


@lru_cache(maxsize=1)
def _date_constant() -> Node:
    """Return the tree of a date constant, whose copies get the text of other dates."""
    constant: Node = parse_statement("SELECT DATE '2026-01-01'")["node"]["select_list"][0]
    return constant


def _date(node: Json, today: np.datetime64) -> np.datetime64 | None:  # noqa: PLR0911 - one for each form
    """Return the date that an expression is, or None if it is not one relative to today or to a constant."""
    match node:
        case {"type": "COLUMN_REF", "column_names": [str(name)]} if name.casefold() == "current_date":
            return today
        case {"type": "FUNCTION", "function_name": str(name), "arguments": []} if name.casefold() in _TODAY:
            return today
        case {"type": "OPERATOR_CAST", "child": inner, "type_expr": {"type_name": str(name)}}:
            if name.upper() == "DATE" and _DATE.fullmatch(_text(inner)):
                with contextlib.suppress(ValueError):  # of a month 13, which is refused as a constant
                    return np.datetime64(_text(inner), "D")
            return _date(inner, today) if name.upper() in {"DATE", "TIMESTAMP"} else None
        case {"type": "FUNCTION", "function_name": "+" | "-" as sign, "arguments": [first, second]}:
            date = _date(first["expression"], today)
            interval = _interval(second["expression"])
            if date is None or interval is None:
                return None
            number, unit = interval
            return _moved(date, -number if sign == "-" else number, unit)
        case {"type": "FUNCTION", "function_name": str(name), "arguments": [unit, inner]}:
            date = _date(inner["expression"], today)
            period = _text(unit["expression"]).casefold()
            if name.casefold() in {"date_trunc", "datetrunc"} and date is not None and period in get_args(Period)[1:]:
                return _start_of(date, period)
    return None


def _interval(node: Json) -> tuple[int, str] | None:
    """Return the number and the unit of an interval; a bare number is one of days."""
    match node:
        case {"type": "VALUE_CONSTANT", "literal": {"kind": "INTEGER"}}:
            return _number(_text(node), "day")
        case {"type": "OPERATOR_CAST", "child": text, "type_expr": {"type_name": "INTERVAL"}}:
            interval = _INTERVAL.fullmatch(_text(text))
            return None if interval is None else _number(interval[1], interval[2].lower())
        case {"type": "FUNCTION", "function_name": str(name), "arguments": [{"expression": inner}]}:
            unit = name.removeprefix("to_").removesuffix("s")
            while isinstance(inner, dict) and inner.get("type") != "VALUE_CONSTANT":  # casts and trunc() around it
                inner = inner.get("child") or (inner.get("arguments") or [{}])[0].get("expression")
            return _number(_text(inner), unit) if unit in {*_DAYS, *MONTHS} else None
    return None


def _text(node: Json) -> str:
    match node:
        case {"type": "VALUE_CONSTANT", "literal": {"text": str(text)}}:
            return text
    return ""


def _number(text: str, unit: str) -> tuple[int, str] | None:
    return (int(text), unit) if re.fullmatch("[0-9]{1,6}", text) else None


def _moved(date: np.datetime64, number: int, unit: str) -> np.datetime64 | None:
    """Return the date that many units later, of a shorter month its last day; None outside the years 1 to 9999."""
    if unit in _DAYS:
        moved = date + np.timedelta64(number * _DAYS[unit], "D")
    else:
        month = date.astype("M8[M]")
        later = month + np.timedelta64(number * MONTHS[unit], "M")
        last = (later + np.timedelta64(1, "M")).astype("M8[D]") - np.timedelta64(1, "D")
        moved = min(later.astype("M8[D]") + (date - month.astype("M8[D]")), last)
    return moved if _FIRST <= moved <= _LAST else None


def _start_of(date: np.datetime64, period: str) -> np.datetime64:
    if period in MONTHS:  # counted from January 1970, which begins a quarter and a year
        month = date.astype("M8[M]")
        return np.datetime64(month - np.timedelta64(int(month.astype(np.int64)) % MONTHS[period], "M"), "D")
    days = int(date.astype(np.int64)) + 3 if period == "week" else 0  # from a Monday
    return date - np.timedelta64(days % 7, "D")
