"""The second reading of a statement: SQLGlot's tree, in which every node and every argument must be one we know.

The first reading (`discreet.query.sql`) gives the meaning. This one gives nothing but its consent: what two parsers
that share no code both take for the plain SELECT that we allow is not likely to be anything else. It comes second
because SQLGlot takes time exponential in the nesting of some constructs, which the first reading refuses.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.parser import Parser
from sqlglot.tokens import Tokenizer

from discreet.errors import SQLError

if TYPE_CHECKING:
    from collections.abc import Mapping

_AGGREGATE = "Count Sum Avg"
_FILTER = "And Or Not Paren EQ NEQ GT GTE LT LTE In Between Is Like"
_COMPARED = "Column Literal Neg Boolean Cast"
_PLAIN = ""
_BOTH_SIDES = {"this": _COMPARED, "expression": _COMPARED}
_JOINED = {"this": _FILTER, "expression": _FILTER}

TREE: Mapping[str, Mapping[str, str]] = {
    "Select": {
        "expressions": f"Column Alias {_AGGREGATE}",
        "from_": "From",
        "where": "Where",
        "group": "Group",
        "order": "Order",
        "limit": "Limit",
    },
    "Alias": {"this": _AGGREGATE, "alias": "Identifier"},
    "Count": {"this": "Distinct Star", "big_int": _PLAIN},
    "Distinct": {"expressions": "Column"},
    "Star": {},
    "Sum": {"this": "Column"},
    "Avg": {"this": "Column"},
    "From": {"this": "Table"},
    "Table": {"this": "Identifier", "db": "Identifier", "alias": "TableAlias"},
    "TableAlias": {"this": "Identifier"},
    "Group": {"expressions": "Column Literal"},
    "Order": {"expressions": "Ordered"},
    "Ordered": {"this": f"Column Literal {_AGGREGATE}", "desc": _PLAIN},
    "Limit": {"expression": "Literal"},
    "Column": {"this": "Identifier", "table": "Identifier"},
    "Identifier": {"this": _PLAIN, "quoted": _PLAIN},
    "Where": {"this": _FILTER},
    "And": _JOINED,
    "Or": _JOINED,
    "Not": {"this": _FILTER},
    "Paren": {"this": _FILTER},
    "EQ": _BOTH_SIDES,
    "NEQ": _BOTH_SIDES,
    "GT": _BOTH_SIDES,
    "GTE": _BOTH_SIDES,
    "LT": _BOTH_SIDES,
    "LTE": _BOTH_SIDES,
    "In": {"this": "Column", "expressions": _COMPARED},
    "Between": {"this": "Column", "low": _COMPARED, "high": _COMPARED},
    "Is": {"this": "Column", "expression": "Null"},
    "Like": {"this": "Column", "expression": "Literal", "negate": _PLAIN},
    "Null": {},
    "Boolean": {"this": _PLAIN},
    "Neg": {"this": "Literal"},
    "Literal": {"this": _PLAIN, "is_string": _PLAIN},
    "Cast": {"this": "Literal", "to": "DataType"},  # DATE '2025-01-31'
    "DataType": {"this": "DATE TIMESTAMP"},
}
"""For each type of node its arguments, and for each of them the types of the nodes that may stand there."""


def check_tree(text: str) -> None:
    """Refuse what SQLGlot cannot read, or reads as anything but a plain SELECT.

    Args:
        text: a statement that the first reading accepts.

    Raises:
        SQLError: with the position, where SQLGlot tells it.
    """
    try:
        tokens = Tokenizer().tokenize(text)
    except SqlglotError:
        raise _refusal(None) from None
    try:
        statements = Parser().parse(tokens, text)
    except RecursionError:
        raise SQLError("its parentheses are nested too deep") from None
    except SqlglotError as error:
        places = [(found["line"], found["col"]) for found in getattr(error, "errors", [])]
        raise _refusal(next((token.start for token in tokens if (token.line, token.col) in places), None)) from None
    check_nodes(statements[0] if len(statements) == 1 else None)


def check_nodes(tree: exp.Expr | None) -> None:
    """Refuse a tree with anything in it that `TREE` does not name.

    Raises:
        SQLError: with the position of the first name, constant or function in the part that is refused.
    """
    pending: list[tuple[Any, str]] = [(tree, "Select")]
    while pending:
        node, allowed = pending.pop()
        if not isinstance(node, exp.Expr):
            if allowed != _PLAIN and getattr(node, "name", None) not in _words(allowed):
                raise _refusal(None)
            continue
        name = type(node).__name__
        arguments = TREE.get(name) if name in _words(allowed) and type(node) is getattr(exp, name) else None
        if arguments is None or node.comments:
            raise _refusal(_start(node))
        for key, value in node.args.items():
            parts = value if isinstance(value, list) else [value]
            given = [part for part in parts if part is not None and part is not False]
            if given and key not in arguments:
                raise _refusal(_start(node))
            pending += [(part, arguments[key]) for part in given]


@lru_cache
def _words(allowed: str) -> frozenset[str]:
    return frozenset(allowed.split())


def _start(node: exp.Expr) -> int | None:
    starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
    return min(starts, default=None)


def _refusal(position: int | None) -> SQLError:
    return SQLError("a word of SQL is used as a name; put names in double quotes", position)
