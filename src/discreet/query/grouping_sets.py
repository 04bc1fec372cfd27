"""ROLLUP, CUBE and GROUPING SETS over a dataset, written as the UNION ALL of a SELECT for each set of columns."""

from __future__ import annotations

from collections.abc import Mapping

from discreet.query.aggregates import MEASURED
from discreet.query.nodes import column_place, expression_key, has_window, parse_expression, selected_name
from discreet.query.parse_tree import Json, Node, TreeReader, parse_statement


def split_sets(reader: TreeReader, node: Node, groups: list[Node], types: Mapping[str, str]) -> Node:
    """Return a SELECT with several sets of groups as a set operation, of a SELECT for each.

    Args:
        reader: refuses what is not allowed.
        groups: the columns of its GROUP BY.
        types: the SQL types of columns, by casefolded name; a column that is not there is refused later.
    """
    selected = node["select_list"]
    if node["qualify"] is not None or has_window(selected):
        reader.refuse("windows over several sets of groups need a subquery: SELECT ... FROM (SELECT ...) AS x", node)
    names = [group["column_names"][-1].casefold() for group in groups]
    nulls = {name: f"CAST(NULL AS {types[name]})" if name in types else "NULL" for name in names}
    selects = []
    for places in node["group_sets"]:
        inside = {names[place] for place in places}
        left_out = {name: None if name in inside else parse_expression(null) for name, null in nulls.items()}
        parts = {key: _in_set(reader, node[key], left_out) for key in ("select_list", "having")}
        for item, placed in zip(selected, parts["select_list"], strict=True):
            if not placed["alias"] and item["type"] == "COLUMN_REF" != placed["type"]:
                placed["alias"] = item["column_names"][-1]
        parts |= {"modifiers": [], "cte_map": {"map": []}, "group_expressions": [groups[place] for place in places]}
        parts |= {"group_sets": [[*range(len(places))]] if places else []}
        selects.append({**node, **parts})
    modifiers = [_over_union(reader, modifier, selected) for modifier in node["modifiers"]]
    distinct = [modifier for modifier in modifiers if modifier["type"] == "DISTINCT_MODIFIER"]
    if distinct and distinct[0]["distinct_on_targets"]:
        reader.refuse("DISTINCT ON over several sets of groups needs a subquery", node)
    union: Node = parse_statement(f"SELECT 1 UNION {'' if distinct else 'ALL'} SELECT 2")["node"]
    modifiers = [modifier for modifier in modifiers if modifier not in distinct]
    return {**union, "children": selects, "modifiers": modifiers}


def _in_set(reader: TreeReader, part: Json, left_out: Mapping[str, Node | None]) -> Json:
    """Return an expression as it is for one set: NULL for grouped columns outside of it, a number for GROUPING.

    Args:
        left_out: NULL for each grouped column, casefolded, that is outside, and None for each one inside.
    """
    match part:
        case list():
            return [_in_set(reader, child, left_out) for child in part]
        case {"type": "FUNCTION", "function_name": str(name)} if name in MEASURED:
            return part
        case {"type": "COLUMN_REF", "column_names": [*_, str(name)]} if null := left_out.get(name.casefold()):
            return null | {"alias": part["alias"]}
        case {"type": "GROUPING_FUNCTION", "children": children}:
            columns = [child.get("column_names", [""])[-1].casefold() for child in children]
            if not left_out.keys() >= set(columns):
                reader.refuse("GROUPING takes columns of GROUP BY", part)
            number = sum(bool(left_out[name]) << place for place, name in enumerate(reversed(columns)))
            return parse_expression(f"CAST({number} AS BIGINT)") | {"alias": part["alias"] or "grouping"}
        case dict():
            return {key: _in_set(reader, value, left_out) for key, value in part.items()}
    return part


def _over_union(reader: TreeReader, modifier: Node, selected: list[Node]) -> Node:
    """Return ORDER BY with places in the select list for its expressions, as a UNION needs; LIMIT as it is."""
    if modifier["type"] != "ORDER_MODIFIER":
        return modifier
    orders = []
    for order in modifier["orders"]:
        expression = order["expression"]
        key = expression_key(expression)
        places = [place for place, item in enumerate(selected, 1) if expression_key(item) == key]
        if expression["type"] == "COLUMN_REF":
            name = expression["column_names"][-1].casefold()
            places = [place for place, item in enumerate(selected, 1) if selected_name(item).casefold() == name]
        if expression["type"] == "VALUE_CONSTANT":
            places = [column_place(expression)]
        if not places:
            reader.refuse("ORDER BY over several sets of groups takes what is selected", expression)
        orders.append({**order, "expression": parse_expression(str(places[0]))})
    return {**modifier, "orders": orders}
