"""SQL: statements and filters, read from DuckDB's parse tree into a `Select` or a `Predicate`, and written again.

    statement  = SELECT selected {"," selected} FROM table [WHERE filter] [GROUP BY group {"," group}]
                 [each | [ORDER BY largest DESC] [LIMIT number]] [";"]
    each       = QUALIFY row_number() OVER (PARTITION BY column {"," column} [ORDER BY largest DESC]) "<=" number
    selected   = column | aggregate [[AS] name]                      exactly one aggregate; all columns are grouped by
    aggregate  = (COUNT "(" DISTINCT column ")" | COUNT "(" "*" ")" | SUM "(" column ")" | AVG "(" column ")")
                 [FILTER "(" WHERE filter ")"]
    table      = [name "."] name [[AS] name]                         group   = column | number in the select list
    column     = [table "."] name                                    largest = the aggregate: its name, itself or number
                                                        (of SUM and AVG: COUNT "(" DISTINCT user ")", only with a LIMIT)
    filter     = conditions of one column and constants, joined by AND, OR, NOT and parentheses: docs/where.md

The text itself never reaches an engine: engines write their own SQL from these values.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Mapping

from discreet.engines.sql import quoted, text_literal
from discreet.errors import InputError, SQLError, WhereError
from discreet.head_request import And, Comparison, Constant, IsNull, Kind, Membership, Not, Operator, Or, Predicate
from discreet.query.parse_tree import (
    ARGUMENT,
    LITERAL,
    MAX_TREE_DEPTH,
    ORDER,
    PLACES,
    REFUSED,
    STATEMENT,
    TOO_DEEP,
    WINDOW,
    Json,
    Node,
    TreeReader,
    parse_statement,
)
from discreet.query.predicates import read_number, read_pattern, read_text, read_timestamp
from discreet.query.query import SAVED, Measure, MeasureKind, Select

MAX_LIMIT_DIGITS = 18
"""The largest number of digits in a LIMIT or in a position of the select list."""

_FILTER_PREFIX = "SELECT * FROM t WHERE "
_AGGREGATES = "COUNT(DISTINCT column), COUNT(*), SUM(column) and AVG(column)"
_NUMBERS = "numbers are digits with at most one point"
_CONSTANTS = "text in single quotes, a number, TRUE, FALSE, DATE '2025-01-31' or TIMESTAMP '2025-01-31 12:00:00'"
_OPERATORS: Mapping[str, Operator] = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_PLACED = {"COMPARE_LESSTHANOREQUALTO", "COMPARE_EQUAL", "COMPARE_GREATERTHANOREQUALTO"}
_QUALIFY = (
    "QUALIFY takes row_number() OVER (PARTITION BY columns ORDER BY the aggregate DESC) <= number, or = 1, or >= 1 for "
    "as many as the budget allows"
)
_MIRRORED: Mapping[Operator, Operator] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def parse_where(text: str, today: str | None = None) -> Predicate:
    """Parse a filter.

    Args:
        text: the condition of a WHERE clause, at most 10,000 characters.
        today: the date that current_date is, YYYY-MM-DD, in UTC; None to refuse it.

    Raises:
        WhereError: the text is outside the grammar of filters, with the position.
    """
    tree = parse_statement(text, prefix=_FILTER_PREFIX, error=WhereError, today=today)
    reader = _FilterReader(_FILTER_PREFIX + text, WhereError, len(_FILTER_PREFIX))
    select = reader.open(reader.check(tree, STATEMENT)["node"])
    for key in ("modifiers", "group_expressions", "qualify"):
        if select[key]:
            reader.refuse("expected AND, OR or the end", select[key])
    return reader.predicate(select["where_clause"])


class _FilterReader(TreeReader):
    """Reads filters from parse trees.

    Args:
        shift: number of characters before the text that the user wrote.
        tables: the casefolded table names that may qualify columns; empty for filters outside of statements.
    """

    def __init__(
        self, text: str, error: type[SQLError | WhereError], shift: int = 0, tables: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(text, error, shift)
        self._tables = tables

    def predicate(self, node: Json, depth: int = 0) -> Predicate:
        """Return the filter that *node* describes."""
        if depth > MAX_TREE_DEPTH:
            self.refuse(TOO_DEEP, node)
        match node:
            case {"type": "CONJUNCTION_AND" | "CONJUNCTION_OR" as kind}:
                parts = tuple(self.predicate(child, depth + 1) for child in self.open(node)["children"])
                return And(parts) if kind == "CONJUNCTION_AND" else Or(parts)
            case {"type": "OPERATOR_NOT"}:
                return Not(*(self.predicate(child, depth + 1) for child in self.open(node)["children"]))
            case {"type": "OPERATOR_IS_NULL" | "OPERATOR_IS_NOT_NULL" as kind}:
                missing = IsNull(*map(self.column, self.open(node)["children"]))
                return missing if kind == "OPERATOR_IS_NULL" else Not(missing)
            case {"type": "FUNCTION", "function_name": "~~" | "!~~" as name, "is_operator": True}:
                pattern = self._like(self.open(node))
                return pattern if name == "~~" else Not(pattern)
        return self._comparison(node)

    def _comparison(self, node: Json) -> Predicate:
        """Return a condition that compares a column with constants."""
        kind = node.get("type") if isinstance(node, dict) else None
        if kind in {"COLUMN_REF", "VALUE_CONSTANT", "OPERATOR_CAST"}:
            example = f", such as {self.column(node)} = true" if kind == "COLUMN_REF" else ""
            self.refuse(f"expected a comparison, IN, BETWEEN, LIKE or IS NULL{example}", node)
        if kind == "FUNCTION":
            self.refuse(_expression(node), node)
        node = self.open(node)
        if kind == "COMPARE_IN":
            column, *constants = node["children"]
            return Membership(self.column(column), tuple(map(self._constant, constants)))
        if kind == "COMPARE_BETWEEN":
            column = self.column(node["input"])
            low = self._constant(node["lower"])
            high = self._constant(node["upper"])
            return And((Comparison(column, ">=", low), Comparison(column, "<=", high)))
        if kind not in _OPERATORS:
            self.refuse("expected a condition", node)
        left = node["left"]
        right = node["right"]
        operator = _OPERATORS[str(kind)]
        if _is_constant(left) and not _is_constant(right):
            left, right, operator = right, left, _MIRRORED[operator]
        return Comparison(self.column(left), operator, self._constant(right))

    def column(self, node: Json) -> str:
        """Return the name of a column without its table's name; raise unless *node* is a column."""
        if isinstance(node, dict) and node.get("type") != "COLUMN_REF":
            self.refuse(REFUSED.get(str(node.get("class"))) or _expression(node) or "expected a column", node)
        node = self.open(node)
        if node["alias"]:
            self.refuse("only the aggregate may have another name", node)
        *qualifier, name = self.names(node)
        if qualifier and (len(qualifier) > 1 or qualifier[0].casefold() not in self._tables):
            self.refuse("columns may be qualified by the table of the statement only", node)
        return str(name)

    def _constant(self, node: Json) -> Constant:
        kind = node.get("type") if isinstance(node, dict) else None
        if kind == "OPERATOR_CAST":
            return self._cast(node)
        if kind != "VALUE_CONSTANT":
            reason = REFUSED.get(str((node or {}).get("class"))) or _expression(node)
            self.refuse(f"{reason}; expected a constant" if reason else f"expected a constant: {_CONSTANTS}", node)
        literal = self.check(self.open(node)["literal"], LITERAL)
        text = str(literal["text"])
        if literal["kind"] == "NULL_LITERAL":
            self.refuse("nothing equals NULL: use IS NULL or IS NOT NULL", node)
        try:
            constant = _LITERALS[literal["kind"]](text) if literal["kind"] in _LITERALS else None
        except WhereError as error:
            self.refuse(error.reason, node)
        if constant is None:
            self.refuse(
                _NUMBERS if literal["kind"] in {"INTEGER", "NUMERIC"} else f"expected a constant: {_CONSTANTS}", node
            )
        return constant

    def _cast(self, node: Json) -> Constant:
        """Return the constant of a cast of text: DATE '...' is a cast of text in the tree."""
        if node.get("try_cast") is not False or (node.get("child") or {}).get("type") != "VALUE_CONSTANT":
            self.refuse(REFUSED["CAST"], node)
        cast = self.open(node)
        literal = self.check(self.open(cast["child"])["literal"], LITERAL)
        type_ = self.open(cast["type_expr"])
        name = str(type_["type_name"]).upper()
        text = str(literal["text"])
        if type_["qualified_name"] != {"path": [type_["type_name"]]}:
            self.refuse(REFUSED["CAST"], node)
        if name in {"DATE", "TIMESTAMP"}:
            constant = read_timestamp(text) if literal["kind"] == "STRING" else None
            if constant is None or constant.kind.name != name:
                spelling = "YYYY-MM-DD" if name == "DATE" else "YYYY-MM-DD HH:MM:SS"
                self.refuse(f"expected {name} '{spelling}', with a month and a day that exist", node)
            return constant
        kind = literal["kind"]
        value = None
        if name == "VARCHAR" and kind == "STRING":
            value = read_text(text)
        elif name in {"INTEGER", "BIGINT"} and kind in {"INTEGER", "STRING"}:
            value = read_number(text)
        if value is None or value.kind is Kind.DECIMAL:
            self.refuse(
                "casts are not allowed, except of a constant to its own type: DATE, TIMESTAMP, VARCHAR, BIGINT", node
            )
        return value

    def _like(self, node: Node) -> Predicate:
        """Return the filter column LIKE 'prefix%', which is a function call in the tree."""
        if node["distinct"] or node["alias"]:
            self.refuse(None, node)
        column, pattern = self.arguments(node, 2)
        constant = self._constant(pattern)
        read = read_pattern(self.column(column), constant.text) if constant.kind is Kind.TEXT else None
        if read is None:
            self.refuse("LIKE takes text with one % at its end, and no other %, _ or \\", pattern)
        return read

    def arguments(self, node: Node, count: int) -> list[Json]:
        """Return the arguments of a function; raise unless there are *count*."""
        arguments = node["arguments"]
        if node["qualified_name"] != {"path": [node["function_name"]]} or len(arguments) != count:
            self.refuse("functions are not allowed", node)
        return [self.check(argument, ARGUMENT)["expression"] for argument in arguments]


_LITERALS: Mapping[str, Callable[[str], Constant | None]] = {
    "STRING": read_text,
    "INTEGER": read_number,
    "NUMERIC": read_number,
    "BOOLEAN": lambda text: Constant(Kind.BOOLEAN, text) if text in {"true", "false"} else None,
}
_FUNCTIONS = {
    "~~*": "ILIKE is not allowed; LIKE is",
    "!~~*": "ILIKE is not allowed; LIKE is",
    "like_escape": "LIKE takes no ESCAPE",
    "not_like_escape": "LIKE takes no ESCAPE",
    "contains": "IN takes a list of constants in parentheses",
    "-": "arithmetic is not allowed; write the result out",
    "*": "arithmetic is not allowed; write the result out",
}
"""Reasons for refusing expressions that are function calls in DuckDB's tree, by function name."""

_NOW = {"CURRENT_TIME", "CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP", "NOW"}
_NO_NOW = (
    "the current time is not a constant: compare with current_date, which changes once a day, so that the same query "
    "is answered again free of charge"
)
_RELATIVE = (
    "today is current_date, current_date - INTERVAL '30' DAY (or WEEK, MONTH, QUARTER, YEAR), or date_trunc('month', "
    "current_date)"
)
_PARTS = (
    "extract() is not allowed in filters and GROUP BY of a dataset: a view of the data owner can have the part as a "
    "column; a period is date_trunc('month', column)"
)


def _is_constant(node: Json) -> bool:
    return isinstance(node, dict) and node.get("type") in {"VALUE_CONSTANT", "OPERATOR_CAST"}


def _expression(node: Json) -> str | None:  # noqa: PLR0911 - one for each form
    """Return the reason for refusing an expression, or None for the general message."""
    match node:
        case {"type": "COLUMN_REF", "column_names": [str(name)]} | {"type": "FUNCTION", "function_name": str(name)} if (
            name.upper() in _NOW
        ):
            return _NO_NOW
        case {"type": "COLUMN_REF", "column_names": [str(name)]} if name.upper() == "CURRENT_DATE":
            return _RELATIVE
        case {"type": "FUNCTION", "function_name": "-" | "+", "arguments": [{"expression": first}, _]} if _expression(
            first
        ) in {_NO_NOW, _RELATIVE}:
            return _expression(first)
        case {"type": "FUNCTION", "function_name": "date_part" | "datepart"}:
            return _PARTS
        case {"type": "COLUMN_REF"}:
            return "a column is compared with constants only, and text is put in single quotes"
        case {"type": "FUNCTION", "function_name": str(name)}:
            return _FUNCTIONS.get(name, "functions are not allowed")
    return None


@functools.lru_cache(maxsize=4)  # a page reads the same statement several times, and a long one takes 0.2 seconds
def parse_select(text: str, today: str | None = None) -> Select:
    """Parse a SELECT.

    Args:
        text: one SELECT, at most 20,000 characters.
        today: the date that current_date is, YYYY-MM-DD, in UTC; None to refuse it.

    Returns:
        the query, with its items in the order of the select list; k is None without LIMIT.

    Raises:
        SQLError: the text is outside the grammar, with the position.
        WhereError: the filter is outside the grammar, with the position in the statement.
    """
    return SelectReader(text).read(parse_statement(text, today=today))


def is_select(text: str) -> bool:
    """Return True if *text* is one query of a dataset; a service handles any other text as a whole statement."""
    try:
        select = parse_select(text, "2025-01-31")  # any date
    except InputError:
        return False
    return not select.dataset.casefold().startswith(f"{SAVED}.")


def _filter_of(node: Json) -> Json:
    """Return the condition of FILTER of an aggregate, or None."""
    return node.get("filter") if isinstance(node, dict) and node.get("type") == "FUNCTION" else None


def _without_filter(node: Json) -> Json:
    return node if _filter_of(node) is None else {**node, "filter": None}


class SelectReader(_FilterReader):
    """Reads a SELECT from its parse tree."""

    def __init__(self, text: str) -> None:
        super().__init__(text, SQLError)
        self._filter: Predicate | None = None  # that of the aggregate

    def read(self, tree: Node) -> Select:
        """Return the query of a statement."""
        select = self.open(self.check(tree, STATEMENT)["node"])
        table = self.table(select["from_table"])
        conditions = [select["where_clause"], *(_filter_of(node) for node in select["select_list"])]
        selected = [self.open(_without_filter(node)) for node in select["select_list"]]
        columns = {place: node for place, node in enumerate(selected, 1) if node["type"] == "COLUMN_REF"}
        aggregate, measure = self._aggregate(selected)
        items = {place: self.column(node) for place, node in columns.items()}
        reader = _FilterReader(self._text, WhereError, 0, self._tables)
        filters = [reader.predicate(condition) for condition in conditions if condition is not None]
        where = None if not filters else filters[0] if len(filters) == 1 else And(tuple(filters))
        self._filter = None if len(filters) < 1 or conditions[1:] == [None] * len(selected) else filters[-1]
        self._check_names(columns, items, aggregate)
        self._check_groups(columns, items, select)
        k: int | None = None
        ranked_by: str | None = None
        parts: tuple[str, ...] = ()
        if select["qualify"] is not None:
            k, parts = self._each(select["qualify"], aggregate, measure, tuple(items.values()))
        for modifier in select["modifiers"]:
            if parts:
                hint = "leave ORDER BY and LIMIT out beside QUALIFY: its items come in the order of their ranks"
                self.refuse(hint, modifier)
            opened = self.open(modifier)
            if opened["type"] == "ORDER_MODIFIER":
                if measure.kind in {"sum", "average"} and len(select["modifiers"]) > 1:
                    ranked_by = self._ranked_by(opened["orders"])
                if ranked_by is None:
                    self._check_order(opened["orders"], aggregate, measure, selected.index(aggregate) + 1)
            else:
                k = self._limit(opened["limit"])
            if not items:
                clause = "ORDER BY" if opened["type"] == "ORDER_MODIFIER" else "LIMIT"
                self.refuse(f"a total is one number: leave {clause} out", opened)
        others = tuple(item for item in items.values() if item not in parts)
        return Select(table, others, measure, where, k, parts, ranked_by)

    def _each(
        self, qualify: Json, aggregate: Node, measure: Measure, items: tuple[str, ...]
    ) -> tuple[int | None, tuple[str, ...]]:
        """Return k and the columns of the segments: the k largest items of each label, or all with >= 1."""
        match qualify:
            case {"type": str(kind), "left": {"type": "WINDOW_ROW_NUMBER"}, "right": number} if kind in _PLACED:
                k = self._whole(number)
            case _:
                self.refuse(_QUALIFY, qualify)
        if not k or (k > 1 and kind != "COMPARE_LESSTHANOREQUALTO"):
            self.refuse(_QUALIFY, number, qualify)
        window = self.check(self.open(qualify)["left"], WINDOW, PLACES)
        segments = []
        for node in window["partitions"]:
            name = self.column(node)
            matches = [item for item in items if item == name] or [i for i in items if i.casefold() == name.casefold()]
            if len(matches) != 1 or matches[0] in segments:
                self.refuse("PARTITION BY takes columns of the select list, each once", node)
            segments.append(matches[0])
        if not segments or len(segments) == len(items):
            self.refuse("PARTITION BY takes some of the columns, and the others are the items", window)
        if kind == "COMPARE_GREATERTHANOREQUALTO":
            k = None
        # A number in the ORDER BY of a window is a constant, not a place in the select list, so no place fits.
        if window["orders"] or (k is not None and measure.kind in {"users", "rows"}):
            self._check_order(window["orders"], aggregate, measure, -1)
        return k, tuple(segments)

    def table(self, node: Json) -> str:
        """Return the table's name, and store the names that may qualify columns."""
        table = self.open(node)
        schema = table["schema_name"]
        name = table["table_name"]
        path = [part for part in (schema, name) if part]
        if table["qualified_name"] != {"path": path}:
            self.refuse("expected the name of a table", table)
        self._tables = frozenset(tag.casefold() for tag in (name, table["alias"]) if tag)
        return ".".join(path)

    def _aggregate(self, selected: list[Node]) -> tuple[Node, Measure]:
        for node in selected:
            if node["type"] not in {"COLUMN_REF", "FUNCTION"}:
                self.refuse("expected a column or an aggregate", node)
        aggregates = [node for node in selected if node["type"] == "FUNCTION"]
        measures = [self._measure(node) for node in aggregates]
        if not aggregates:
            self.refuse(f"an aggregate must be selected: {_AGGREGATES}", selected)
        if len(aggregates) > 1:
            self.refuse("only one aggregate is allowed", aggregates[1])
        return aggregates[0], measures[0]

    def _measure(self, node: Node) -> Measure:
        """Read the aggregate of a query, or refuse the function."""
        function = node["function_name"]
        distinct = node["distinct"]
        if node["is_operator"]:
            self.refuse(_expression(node), node)
        match function, distinct:
            case "count_star", False:
                self.arguments(node, 0)
                return Measure("rows")
            case "count", True:
                kind: MeasureKind = "users"
            case "sum", False:
                kind = "sum"
            case "avg", False:
                kind = "average"
            case "count", False:
                hint = "COUNT(column) is not allowed: COUNT(DISTINCT column) counts users, COUNT(*) counts rows"
                self.refuse(hint, node)
            case "sum" | "avg", True:
                self.refuse("DISTINCT is not allowed in SUM and AVG", node)
            case _:
                self.refuse(f"functions are not allowed; the aggregates are {_AGGREGATES}", node)
        if len(node["arguments"]) != 1:
            self.refuse("an aggregate takes one column", node)
        (argument,) = self.arguments(node, 1)
        return Measure(kind, self.column(argument))

    def _limit(self, node: Json) -> int:
        k = self._whole(node)
        if not k:
            self.refuse("LIMIT takes a whole number of items, at least 1", node)
        return k

    def _whole(self, node: Json) -> int | None:
        """Return the value of *node*, or None if it is no integer."""
        if not isinstance(node, dict) or node.get("type") != "VALUE_CONSTANT":
            return None
        literal = self.check(self.open(node)["literal"], LITERAL)
        text = str(literal["text"])
        return int(text) if literal["kind"] == "INTEGER" and text.isdigit() and len(text) <= MAX_LIMIT_DIGITS else None

    def _check_names(self, columns: Mapping[int, Node], items: Mapping[int, str], aggregate: Node) -> None:
        names: set[str] = set()
        for place, item in items.items():
            if item in names:
                self.refuse(f"column {item!r} is selected twice", columns[place])
            if aggregate["alias"] and item.casefold() == str(aggregate["alias"]).casefold():
                self.refuse(f"column {item!r} and the aggregate have one name", aggregate)
            names.add(item)

    def _check_groups(self, columns: Mapping[int, Node], items: Mapping[int, str], select: Node) -> None:
        """Raise unless GROUP BY lists exactly the selected columns, by position or by name."""
        groups = select["group_expressions"]
        if select["group_sets"] != ([list(range(len(groups)))] if groups else []):
            self.refuse("ROLLUP, CUBE and GROUPING SETS are not allowed", groups, select)
        ungrouped = dict(items)
        for group in groups:
            place = self._whole(group)
            if place is None:
                name = self.column(group)
                places = [place for place, item in items.items() if item == name]
                places = places or [place for place, item in items.items() if item.casefold() == name.casefold()]
                place = places[0] if len(places) == 1 else None
            if place is None or place not in items:
                self.refuse("only columns of the select list may be grouped by", group)
            if ungrouped.pop(place, None) is None:
                self.refuse("a column is grouped by twice", group)
        for place, item in ungrouped.items():
            self.refuse(f"column {item!r} is selected, but not in GROUP BY", columns[place])

    def _ranked_by(self, orders: Json) -> str | None:
        """Return the column if the only order is COUNT(DISTINCT column) DESC, otherwise None."""
        match orders:
            case [{"type": "DESCENDING", "expression": {"function_name": "count", "distinct": True, "filter": None}}]:
                expression = self.check(orders[0], ORDER)["expression"]
                return self._measure(self.open(expression)).column
        return None

    def _check_order(self, orders: Json, aggregate: Node, measure: Measure, place: int) -> None:
        """Raise unless the only ORDER BY is the aggregate, its alias or its position, descending."""
        if not isinstance(orders, list) or len(orders) != 1:
            self.refuse("only the aggregate may be ordered by, with DESC", orders[1:])
        order = self.check(orders[0], ORDER)
        expression = order["expression"]
        if order["type"] != "DESCENDING":
            self.refuse("expected ORDER BY ... DESC: the largest come first", expression)
        if measure.kind in {"sum", "average"}:
            hint = "" if place < 0 else ", or write ORDER BY COUNT(DISTINCT user) DESC LIMIT k"
            why = "sums and averages are of the items with the most users, in that order"
            self.refuse(f"leave ORDER BY out{hint}: {why}", expression)
        match expression:
            case {"type": "COLUMN_REF", "alias": ""}:
                name = ".".join(self.names(self.open(expression)))
                fits = name.casefold() == str(aggregate["alias"]).casefold()
            case {"type": "FUNCTION", "alias": ""}:
                ordered = self._measure(self.open(_without_filter(expression)))
                same_column = (ordered.column or "").casefold() == (measure.column or "").casefold()
                condition = _filter_of(expression)
                reader = _FilterReader(self._text, WhereError, 0, self._tables)
                same_rows = self._filter == (None if condition is None else reader.predicate(condition))
                fits = ordered.kind == measure.kind and same_column and same_rows
            case _:
                fits = self._whole(expression) == place
        if not fits:
            self.refuse("only the aggregate may be ordered by: its name, itself, or its number", expression)


def to_sql(select: Select, where: str | None = None) -> str:
    """Return a query as a SELECT, with a clause on each line.

    Args:
        where: a filter as text, which is not checked, in place of the query's; None for the query's.
    """
    items, segments = ([_quoted(column) for column in columns] for columns in (select.items, select.each))
    aggregate = _WRITTEN[select.measure.kind].format(_quoted(select.measure.column or ""))
    if where is None and select.where is not None:
        where = condition(select.where)
    lines = [f"SELECT {', '.join([*segments, *items, aggregate])}", f"FROM {_quoted(select.dataset)}"]
    lines += [f"WHERE {where}"] if where else []
    lines += [f"GROUP BY {', '.join([*segments, *items])}"] if items else []
    order = [f"ORDER BY {aggregate} DESC"] if select.measure.kind in {"users", "rows"} else []
    if segments:
        window = " ".join([f"PARTITION BY {', '.join(segments)}", *order])
        lines.append(f"QUALIFY row_number() OVER ({window}) {'>= 1' if select.k is None else f'<= {select.k}'}")
    elif select.k is not None:
        lines += [*order, f"LIMIT {select.k}"]
    return "\n".join(lines)


_WRITTEN: Mapping[MeasureKind, str] = {
    "users": "COUNT(DISTINCT {})",
    "rows": "COUNT(*)",
    "sum": "SUM({})",
    "average": "AVG({})",
}
_SIMPLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def condition(predicate: Predicate, *, nested: bool = False) -> str:
    """Return a filter as the SQL condition of a WHERE clause.

    Args:
        nested: True to put AND, OR and NOT in parentheses.
    """
    match predicate:
        case Comparison(column, operator, constant):
            return f"{_quoted(column)} {operator} {_literal(constant)}"
        case Membership(column, constants):
            return f"{_quoted(column)} IN ({', '.join(map(_literal, constants))})"
        case IsNull(column):
            return f"{_quoted(column)} IS NULL"
        case Not(IsNull(column)):
            return f"{_quoted(column)} IS NOT NULL"
        case Not(inner):
            joined = f"NOT {condition(inner, nested=True)}"
        case And(parts):
            joined = " AND ".join(condition(part, nested=True) for part in parts)
        case Or(parts):
            joined = " OR ".join(condition(part, nested=True) for part in parts) or "FALSE"
    return f"({joined})" if nested else joined


@functools.lru_cache(1_000)
def _quoted(name: str) -> str:
    """Return a name as a SQL identifier, quoted unless the parser accepts it without quotes."""
    if _SIMPLE.fullmatch(name):
        with contextlib.suppress(InputError):
            parse_where(f"{name} = 1")
            return name
    return quoted(name)


def _literal(constant: Constant) -> str:
    if constant.kind in {Kind.INTEGER, Kind.DECIMAL}:
        return constant.text
    if constant.kind is Kind.BOOLEAN:
        return constant.text.upper()
    # A column without a type compares differently with text and with a date.
    type_ = "" if constant.kind is Kind.TEXT else f"{constant.kind.name} "
    return type_ + text_literal(constant.text)
