"""Rewrite parse trees to the one form that is read: dates relative to today, and counts of a CASE.

    day >= current_date - INTERVAL '30' DAY          day >= DATE '2026-01-02'
    count(DISTINCT CASE WHEN c THEN reader END)      count(DISTINCT reader) FILTER (WHERE c)

Everything after the parser sees constants only, so that a query is the same query all day, and another one tomorrow.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, get_args

import numpy as np

from discreet.head_request import MONTHS, Period

if TYPE_CHECKING:
    from discreet.query.parse_tree import Json, Node

_TODAY = {"current_date", "today"}
_DAYS = {"day": 1, "week": 7}
_FIRST, _LAST = np.datetime64("0001-01-01"), np.datetime64("9999-12-31")
_INTERVAL = re.compile(r"([0-9]{1,6}) (day|week|month|quarter|year)s?", re.IGNORECASE)


def rewritten(part: Json, today: str | None) -> Json:  # noqa: PLR0911 - one for each form
    """Return a part of a parse tree in the form that is read.

    Args:
        today: the date that current_date is, YYYY-MM-DD, in UTC; None to leave it as it is, which readers refuse.
    """
    if isinstance(part, list):
        return [rewritten(each, today) for each in part]
    if not isinstance(part, dict):
        return part
    made = {key: rewritten(value, today) for key, value in part.items()}
    match made:
        case {"class": "COMPARISON", "left": left, "right": right} if today is not None:
            return made | {"left": _constant(left, today, right), "right": _constant(right, today, left)}
        case {"class": "BETWEEN", "input": column, "lower": low, "upper": high} if today is not None:
            return made | {"lower": _constant(low, today, column), "upper": _constant(high, today, column)}
        case {"type": "COMPARE_IN", "children": [column, *listed]} if today is not None:
            return made | {"children": [column, *(_constant(each, today, column) for each in listed)]}
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
            return made | {"filter": condition, "arguments": [{**argument, "expression": column}]}
    return made


def _constant(node: Json, today: str, compared: Json) -> Json:
    """Return a date relative to today as the tree of DATE '...'; any other operand as it is."""
    from discreet.query.parse_tree import parse_statement

    if not isinstance(node, dict):
        return node
    if node.get("type") == "COLUMN_REF" and (compared or {}).get("type") != "COLUMN_REF":
        return node  # a column may have this name, and is compared with a constant
    date = _date(node, np.datetime64(today, "D"))
    if date is None:
        return node
    constant: Node = parse_statement(f"SELECT DATE '{date}'")["node"]["select_list"][0]
    return constant | {key: node[key] for key in ("query_location", "query_location_length") if key in node}


def _date(node: Json, today: np.datetime64) -> np.datetime64 | None:  # noqa: PLR0911 - one for each form
    """Return the date that an expression is, or None if it is not one relative to today."""
    match node:
        case {"type": "COLUMN_REF", "column_names": [str(name)]} if name.casefold() == "current_date":
            return today
        case {"type": "FUNCTION", "function_name": str(name), "arguments": []} if name.casefold() in _TODAY:
            return today
        case {"type": "OPERATOR_CAST", "child": inner, "type_expr": {"type_name": str(name)}}:
            return _date(inner, today) if name.upper() in {"DATE", "TIMESTAMP"} else None
        case {"type": "FUNCTION", "function_name": "+" | "-" as sign, "arguments": [first, second]}:
            date, interval = _date(first["expression"], today), _interval(second["expression"])
            if date is None or interval is None:
                return None
            number, unit = interval
            return _moved(date, -number if sign == "-" else number, unit)
        case {"type": "FUNCTION", "function_name": str(name), "arguments": [unit, inner]}:
            date, period = _date(inner["expression"], today), _text(unit["expression"]).casefold()
            if name.casefold() in {"date_trunc", "datetrunc"} and date is not None and period in get_args(Period)[1:]:
                return _start_of(date, period)
    return None


def _interval(node: Json) -> tuple[int, str] | None:
    """Return the number and the unit of an interval; a bare number is one of days."""
    match node:
        case {"type": "VALUE_CONSTANT", "literal": {"kind": "INTEGER"}}:
            return _number(_text(node), "day")
        case {"type": "OPERATOR_CAST", "child": text, "type_expr": {"type_name": "INTERVAL"}}:
            found = _INTERVAL.fullmatch(_text(text))
            return None if found is None else _number(found[1], found[2].lower())
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
