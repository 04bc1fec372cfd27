"""Queries of the shared table from a fixed seed, which every engine must answer identically."""

from __future__ import annotations

import random

from discreet.head_request import HeadRequest, Kind
from discreet.query.canonical import canonical
from discreet.query.predicates import bind_where
from discreet.query.sql import parse_where
from tests.servers.table import COUNTRIES, TITLES, TRAPS

KINDS = {
    "member_id": Kind.INTEGER,
    "article": Kind.TEXT,
    "country": Kind.TEXT,
    "title": Kind.TEXT,
    "seniority": Kind.INTEGER,
    "day": Kind.DATE,
    "at": Kind.TIMESTAMP,
    "paid": Kind.BOOLEAN,
    "price": Kind.DECIMAL,
}
COMMON = ("article", "country", "title", "seniority")
"""Columns that every engine supports."""

LIMITS = (1, 10, 100, 1000, 5000)


def questions(count: int, columns: tuple[str, ...] = COMMON, seed: int = 1) -> list[HeadRequest]:
    """Return *count* random requests with one or two items, a filter of up to four conditions and a limit."""
    draw = random.Random(seed)
    return [_request(draw, columns) for _ in range(count)]


def bound(text: str) -> object:
    """Return a filter in the canonical form that engines receive."""
    return canonical(bind_where(parse_where(text), KINDS), KINDS)


def _request(draw: random.Random, columns: tuple[str, ...]) -> HeadRequest:
    items = tuple(draw.sample(columns, draw.choice([1, 1, 1, 2])))
    conditions = [_condition(draw, draw.choice(columns)) for _ in range(draw.randint(0, 4))]
    where = None
    if conditions:
        text = conditions[0]
        for condition in conditions[1:]:
            text = f"({text}) {draw.choice(['AND', 'AND', 'OR'])} {condition}"
        where = bound(text)
    return HeadRequest("member_id", items, draw.choice(LIMITS), where)


def _condition(draw: random.Random, column: str) -> str:
    negated = draw.choice(["", "", "NOT "])
    if draw.random() < 0.1:
        return f'"{column}" IS {negated}NULL'
    constants = [_constant(draw, column) for _ in range(3)]
    name = f'"{column}"'  # AT is a keyword of SQL
    match draw.choice(["compare", "in", "between"] if column not in {"paid", "article"} else ["equal", "in"]):
        case "equal":
            return f"{negated}{name} {draw.choice(['=', '<>'])} {constants[0]}"
        case "compare":
            return f"{negated}{name} {draw.choice(['=', '<>', '<', '<=', '>', '>='])} {constants[0]}"
        case "in":
            return f"{name} {negated}IN ({', '.join(constants)})"
        case _:
            return f"{name} {negated}BETWEEN {constants[0]} AND {constants[1]}"


def _constant(draw: random.Random, column: str) -> str:
    match column:
        case "article":
            label = draw.choice([*TRAPS, *(f"article {n}" for n in range(30))])
            return "'" + label.replace("'", "''") + "'"
        case "country":
            return f"'{draw.choice(COUNTRIES)}'"
        case "title":
            return "'" + draw.choice(TITLES).replace("'", "''") + "'"
        case "seniority":
            return str(draw.randint(-4, 11))
        case "day":
            return f"DATE '2026-0{draw.randint(1, 3)}-{draw.randint(1, 28):02}'"
        case "at":
            return f"TIMESTAMP '2026-0{draw.randint(1, 3)}-{draw.randint(1, 28):02} 12:00:00'"
        case "paid":
            return draw.choice(["TRUE", "FALSE"])
        case _:
            return draw.choice(["0.05", "1", "2.5", "-0.01"])
