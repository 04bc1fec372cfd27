"""Read queries from JSON, as `Select.to_dict` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from discreet.errors import InputError, WhereError
from discreet.head_request import And, Comparison, IsNull, Kind, Membership, Not, Operator, Or, Predicate
from discreet.query.predicates import parse_constant
from discreet.query.query import Measure, Select, check_name
from discreet.query.sql import parse_where

if TYPE_CHECKING:
    from discreet.head_request import Constant

DEEPEST = 120
"""The largest nesting depth of filters; filters read from text have a lower limit."""

LARGEST = 10_000
"""The largest number of filters and constants in a nested filter; filters read from text have fewer."""

_KINDS = {
    kind.name.lower(): kind for kind in (Kind.TEXT, Kind.INTEGER, Kind.DECIMAL, Kind.BOOLEAN, Kind.DATE, Kind.TIMESTAMP)
}
_SHAPES = (
    {"column", "operator", "constant"},
    {"column", "in"},
    {"column", "missing"},
    {"not"},
    {"and"},
    {"or"},
)


def from_dict(mapping: Mapping[str, Any]) -> Select:
    """Parse a query from a JSON object.

    Args:
        mapping: "dataset", "items" (a list, empty for a total), "measure" ({"kind": ..., "column": ...}), optionally
            "where" and "k". A filter is text for `parse_where`, or nested:
            {"column": name, "operator": one of = <> < <= > >=, "constant": constant},
            {"column": name, "in": [constant, ...]}, {"column": name, "missing": true},
            {"not": filter}, {"and": [filter, filter, ...]} or {"or": [filter, filter, ...]}, or {"or": []} for no row.
            A constant is {"text": "IN"} with the key integer, decimal, boolean, date or timestamp; the value is always
            text, so that no JSON parser rounds it.

    Raises:
        InputError: a key is unknown or missing, or its value is not allowed; the message names the key.
        WhereError: a filter that is text is outside the grammar.
    """
    parts = _object(mapping, "", {"dataset", "items", "measure"}, {"where", "k"})
    measure = _object(parts["measure"], "measure", {"kind"}, {"column"})
    if not isinstance(parts["items"], list):
        raise InputError("'items' must be a list of columns")
    where = parts.get("where")
    if isinstance(where, str):
        where = parse_where(where)
    elif where is not None:
        where = _NestedReader().read(where, "where")
    return Select(
        parts["dataset"],
        tuple(parts["items"]),
        Measure(measure["kind"], measure.get("column")),
        where,
        parts.get("k"),
    )


class _NestedReader:
    """Reads nested filters; *key* is the path of a part within the query, for error messages."""

    def __init__(self) -> None:
        self._read = 0
        self._depth = 0

    def read(self, part: Any, key: str) -> Predicate:  # noqa: ANN401 - any JSON value
        self._count()
        self._depth += 1
        if self._depth > DEEPEST:
            raise InputError(f"'where' is nested too deep: {DEEPEST} filters within each other are allowed")
        predicate = self._predicate(part, key)
        self._depth -= 1
        return predicate

    def _predicate(self, part: Any, key: str) -> Predicate:  # noqa: ANN401 - any JSON value
        given = set(_object(part, key, set(), set().union(*_SHAPES)))
        if given not in _SHAPES:
            shapes = ", ".join(" and ".join(sorted(shape)) for shape in _SHAPES)
            raise InputError(f"{key!r} must have the keys of one of these: {shapes}")
        if "not" in given:
            return Not(self.read(part["not"], f"{key}.not"))
        if "and" in given:
            return And(self._parts(part["and"], f"{key}.and"))
        if "or" in given:
            # an empty OR is the canonical form of filters that match no row
            return Or(() if part["or"] == [] else self._parts(part["or"], f"{key}.or"))
        column = check_name(part["column"], f"{key}.column")
        if "in" in given:
            constants = _list(part["in"], f"{key}.in", 1)
            return Membership(column, tuple(self._constant(c, f"{key}.in[{n}]") for n, c in enumerate(constants)))
        if "missing" in given:
            if part["missing"] is not True:
                raise InputError(f"'{key}.missing' must be true; put it in a filter with the key not for the opposite")
            return IsNull(column)
        if part["operator"] not in get_args(Operator):
            raise InputError(f"'{key}.operator' must be one of {' '.join(get_args(Operator))}")
        return Comparison(column, part["operator"], self._constant(part["constant"], f"{key}.constant"))

    def _parts(self, parts: Any, key: str) -> tuple[Predicate, ...]:  # noqa: ANN401 - any JSON value
        return tuple(self.read(part, f"{key}[{place}]") for place, part in enumerate(_list(parts, key, 2)))

    def _constant(self, part: Any, key: str) -> Constant:  # noqa: ANN401 - any JSON value
        self._count()
        named = _object(part, key, set(), set(_KINDS))
        if len(named) != 1:
            raise InputError(f"{key!r} must have one key: {', '.join(_KINDS)}")
        ((kind, text),) = named.items()
        if not isinstance(text, str):
            raise InputError(f"'{key}.{kind}' must be text")
        try:
            return parse_constant(_KINDS[kind], text)
        except WhereError:
            raise InputError(f"'{key}.{kind}' must hold {_KINDS[kind].value} as a filter has them") from None

    def _count(self) -> None:
        self._read += 1
        if self._read > LARGEST:
            raise InputError(f"'where' is too large: {LARGEST:,} filters and constants are allowed")


def _object(part: Any, key: str, needed: set[str], allowed: set[str]) -> Mapping[str, Any]:  # noqa: ANN401 - any JSON value
    """Return *part*; raise unless it is an object with all *needed* keys, and no others except *allowed* ones."""
    place = repr(key) if key else "the query"
    if not isinstance(part, Mapping):
        raise InputError(f"{place} must be an object")
    for name in part:
        if name not in needed | allowed:
            raise InputError(f"{place} has no key {name!r}; the keys are {', '.join(sorted(needed | allowed))}")
    for name in sorted(needed - set(part)):
        raise InputError(f"{place} needs the key {name!r}")
    return part


def _list(part: Any, key: str, least: int) -> list[Any]:  # noqa: ANN401 - any JSON value
    if not isinstance(part, list) or len(part) < least:
        raise InputError(f"{key!r} must be a list of at least {least}")
    return part
