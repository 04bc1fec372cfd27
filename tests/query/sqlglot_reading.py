"""What SQLGlot's tree of a statement asks: a reading that shares nothing with our own but the constants."""

from __future__ import annotations

from sqlglot import exp, parse_one

from discreet.query.predicates import read_number, read_pattern, read_timestamp
from discreet.query.query import Measure, Select
from discreet.question import Comparison, Constant, Every, Kind, Membership, Missing, Not, Some

_SIGNS = {exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def read_with_sqlglot(text):
    """The question that *text*, a statement we allow, asks."""
    tree = parse_one(text)
    table = tree.args["from_"].this
    where = tree.args.get("where")
    limit = tree.args.get("limit")
    columns = [item.name for item in tree.expressions if isinstance(item, exp.Column)]
    (aggregate,) = (item.unalias() for item in tree.expressions if not isinstance(item, exp.Column))
    return Select(
        ".".join(part.name for part in table.parts),
        tuple(columns),
        _measure(aggregate),
        None if where is None else _predicate(where.this),
        None if limit is None else int(limit.expression.this),
    )


def _measure(aggregate):
    match aggregate:
        case exp.Sum():
            return Measure("sum", aggregate.this.name)
        case exp.Avg():
            return Measure("average", aggregate.this.name)
        case exp.Count() if isinstance(aggregate.this, exp.Star):
            return Measure("rows")
    return Measure("users", aggregate.this.expressions[0].name)


def _predicate(node):
    match node:
        case exp.Paren():
            return _predicate(node.this)
        case exp.And() | exp.Or():
            kind = Every if isinstance(node, exp.And) else Some
            return kind(tuple(_predicate(part) for part in _chained(node, type(node))))
        case exp.Not():
            return Not(_predicate(node.this))
        case exp.Is():
            return Missing(node.this.name)
        case exp.In():
            return Membership(node.this.name, tuple(map(_constant, node.expressions)))
        case exp.Between():
            low, high = _constant(node.args["low"]), _constant(node.args["high"])
            return Every((Comparison(node.this.name, ">=", low), Comparison(node.this.name, "<=", high)))
        case exp.Like():
            pattern = read_pattern(node.this.name, node.expression.this)
            return Not(pattern) if node.args.get("negate") else pattern
    sign = _SIGNS[type(node)]
    if isinstance(node.this, exp.Column):
        return Comparison(node.this.name, sign, _constant(node.expression))
    return Comparison(node.expression.name, _MIRRORED.get(sign, sign), _constant(node.this))


def _chained(node, kind):
    """The parts of a AND b AND c, which SQLGlot nests to the left."""
    return [*_chained(node.this, kind), node.expression] if type(node) is kind else [node]


def _constant(node):
    match node:
        case exp.Boolean():
            return Constant(Kind.BOOLEAN, "true" if node.this else "false")
        case exp.Cast():
            return read_timestamp(node.this.this)
        case exp.Neg():
            number = _constant(node.this)
            return number if number.text == "0" else Constant(number.kind, f"-{number.text}")
        case exp.Literal() if node.is_string:
            return Constant(Kind.TEXT, node.this)
    return read_number(node.this)
