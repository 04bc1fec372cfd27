"""Read queries in any of their forms.

The types of the parts of JSON, as `Select.to_dict` writes it, are also its JSON schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, Union, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import ErrorDetails, PydanticCustomError
from typing_extensions import TypeAliasType, TypedDict

from discreet.errors import InputError, WhereError
from discreet.head_request import And, Comparison, Constant, IsNull, Kind, Membership, Not, Operator, Or, Predicate
from discreet.query.predicates import parse_constant
from discreet.query.query import Measure, MeasureKind, Select, check_name
from discreet.query.sql import parse_select, parse_where

MAX_DEPTH = 120
"""The largest nesting depth of filters; filters read from text have a lower limit."""

MAX_NUMBER = 10_000
"""The largest number of filters and constants in a nested filter; filters read from text have fewer."""


def _check_name(name: object) -> object:
    try:
        return check_name(name, "name")
    except InputError as error:
        raise PydanticCustomError("key", str(error).partition("'name' ")[2]) from None


def _constant(named: dict[str, str]) -> Constant:
    ((name, text),) = named.items()
    try:
        return parse_constant(Kind[name.upper()], text)
    except WhereError:
        raise PydanticCustomError("constant", Kind[name.upper()].value, {"kind": name}) from None


def _check_true(missing: object) -> object:
    if missing is not True:  # 1 equals True
        raise PydanticCustomError("key", "must be true; put it in a filter with the key not for the opposite")
    return missing


def _check_or(parts: list[Predicate]) -> list[Predicate]:
    if len(parts) == 1:  # an empty OR is the canonical form of filters that match no row
        raise PydanticCustomError("too_short", "", {"min_length": 2})
    return parts


_Name = Annotated[str, BeforeValidator(_check_name), Field(min_length=1)]
_ConstantKind = Literal["text", "integer", "decimal", "boolean", "date", "timestamp"]
# Numbers are text, so that no JSON parser rounds them.
_Constant = Annotated[dict[_ConstantKind, str], Field(min_length=1, max_length=1), AfterValidator(_constant)]
_SHAPES: dict[Any, dict[str, Any]] = {
    Comparison: {"column": _Name, "operator": Operator, "constant": _Constant},
    Membership: {"column": _Name, "in": Annotated[list[_Constant], Field(min_length=1)]},
    IsNull: {"column": _Name, "missing": Annotated[Literal[True], BeforeValidator(_check_true)]},
    Not: {"not": "Condition"},
    And: {"and": Annotated[list["Condition"], Field(min_length=2)]},
    Or: {"or": Annotated[list["Condition"], AfterValidator(_check_or)]},
}
_TAGS = {frozenset(keys): f"~{kind.__name__}" for kind, keys in _SHAPES.items()}
_CONFIG = ConfigDict(extra="forbid", strict=True)


def _tag(part: object) -> str | None:
    """Return the tag of the form of a filter, by its keys."""
    if isinstance(part, str):
        return "~text"
    return _TAGS.get(frozenset(part)) if isinstance(part, dict) else None


def _form(kind: Any) -> Any:  # noqa: ANN401 - a type of filters, and its JSON as a type
    """Return the JSON of one type of filters, which is read as a value of that type."""
    new_type: Any = TypedDict  # mypy reads only literal calls of it
    shape = new_type(kind.__name__, _SHAPES[kind])
    shape.__pydantic_config__ = _CONFIG

    def read(part: dict[str, Any]) -> Predicate:
        values = [tuple(value) if isinstance(value, list) else value for value in part.values() if value is not True]
        predicate: Predicate = kind(*values)
        return predicate

    return Annotated[shape, AfterValidator(read), Tag(f"~{kind.__name__}")]


_FORMS = [_form(kind) for kind in _SHAPES]
Condition: Any = TypeAliasType("Condition", Annotated[Union[tuple(_FORMS)], Discriminator(_tag)])  # noqa: UP007
_Text = Annotated[str, AfterValidator(parse_where), Tag("~text")]


class Aggregate(TypedDict):
    """The measure of each item."""

    kind: MeasureKind
    column: NotRequired[_Name | None]


class QueryObject(TypedDict):
    """A query of one dataset."""

    dataset: _Name
    items: Annotated[list[_Name], Field(json_schema_extra={"uniqueItems": True})]
    each: NotRequired[Annotated[list[_Name], Field(json_schema_extra={"uniqueItems": True})]]
    measure: Annotated[Aggregate, AfterValidator(lambda measure: Measure(measure["kind"], measure.get("column")))]
    where: NotRequired[Annotated[Union[_Text, *_FORMS], Discriminator(_tag)] | None]  # type: ignore[valid-type]
    k: NotRequired[Annotated[int, Field(ge=1)] | None]


QueryObject.__pydantic_config__ = Aggregate.__pydantic_config__ = _CONFIG  # type: ignore[attr-defined]
_READER: TypeAdapter[Any] = TypeAdapter(QueryObject)

_TOO_DEEP = f"'where' is nested too deep: {MAX_DEPTH} filters within each other are allowed"
_ONE_KEY = f"{{place}} must have one key: {', '.join(get_args(_ConstantKind))}"
_SENTENCES = {
    "missing": "{parent} needs the key {name!r}",
    "extra_forbidden": "{parent} has no key {name!r}; the keys are {keys}",
    "key": "{place} {message}",
    "constant": "'{path}.{kind}' must hold {message} as a filter has them",
    "dict_type": "{place} must be an object",
    "list_type": "{place} must be a list",
    "string_type": "{place} must be text",
    "string_unicode": "{place} must be text",
    "int_type": "{place} must be a whole number of at least 1",
    "int_from_float": "{place} must be a whole number of at least 1",
    "greater_than_equal": "{place} must be a whole number of at least 1",
    "literal_error": "{place} must be {expected}",
    "recursion_loop": _TOO_DEEP,
    "recursion_depth_exceeded": _TOO_DEEP,
}
"""Messages by pydantic's error type."""


def read_query(query: object, today: str | None = None) -> Select:
    """Read a query in any of its forms: a SELECT as text, its JSON form as a dictionary, or a `Select`.

    Args:
        today: the date that current_date is in SQL, YYYY-MM-DD, in UTC; None to refuse it.

    Raises:
        SQLError, WhereError: the text is outside the grammar, with the position.
        InputError: it is none of the forms, or as `from_dict`.
    """
    match query:
        case str():
            return parse_select(query, today)
        case Select():
            return query
        case dict():
            return from_dict(query)
    raise InputError("a query is a SELECT as text, its JSON form as a dictionary, or a discreet.Select")


def from_dict(mapping: Mapping[str, Any]) -> Select:
    """Parse a query from a JSON object.

    Args:
        mapping: "dataset", "items" (a list, empty for a total), "measure" ({"kind": ..., "column": ...}), optionally
            "each" (a list), "where" and "k". A filter is text for `parse_where`, or nested:
            {"column": name, "operator": one of = <> < <= > >=, "constant": constant},
            {"column": name, "in": [constant, ...]}, {"column": name, "missing": true},
            {"not": filter}, {"and": [filter, filter, ...]} or {"or": [filter, filter, ...]}, or {"or": []} for no row.
            A constant is {"text": "IN"} with the key integer, decimal, boolean, date or timestamp; the value is always
            text, so that no JSON parser rounds it.

    Raises:
        InputError: a key is unknown or missing, or its value is not allowed; the message names the key.
        WhereError: a filter that is text is outside the grammar.
    """
    try:
        fields = _READER.validate_python(mapping)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        cause = first.get("ctx", {}).get("error")
        raise cause if isinstance(cause, InputError) else InputError(_sentence(first)) from None
    where = fields.get("where")
    segments = tuple(fields.get("each", ()))
    select = Select(fields["dataset"], tuple(fields["items"]), fields["measure"], where, fields.get("k"), segments)
    parts: list[Any] = [] if select.where is None else [select.where]
    size = 0
    depth = 0
    while parts:  # a level of nested filters at a time
        if depth == MAX_DEPTH:
            raise InputError(_TOO_DEEP)
        depth += 1
        size += sum(1 + len(getattr(part, "constants", [None] * isinstance(part, Comparison))) for part in parts)
        if size > MAX_NUMBER:
            raise InputError(f"'where' is too large: {MAX_NUMBER:,} filters and constants are allowed")
        nested = (getattr(part, "predicates", [part.predicate] if isinstance(part, Not) else []) for part in parts)
        parts = [part for some in nested for part in some]
    return select


def _sentence(error: ErrorDetails) -> str:
    """Return an error of pydantic as a sentence that names the key, such as 'where.or[1].not'."""
    keys = [part for part in error["loc"] if not str(part).startswith("~")]
    type_ = error["type"]
    names = [f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys]
    if type_ in {"too_short", "too_long", "literal_error"} and {"constant", "in"} & set(keys) and names[-1] != ".in":
        sentence = _ONE_KEY
        names = names[:-2] if names[-1] == ".[key]" else names
    elif type_ == "too_short":
        sentence = "{place} must be a list of at least {min_length}"
    elif type_.startswith("union_tag") and isinstance(error["input"], dict):
        sentence = "{place} must have the keys of one of these: "
        sentence += ", ".join(" and ".join(sorted(keys)) for keys in _SHAPES.values())
    else:
        sentence = _SENTENCES.get(type_, "{place} must be an object")
    path = "".join(names)[1:]
    parent = "".join(names[:-1])[1:]
    return sentence.format(
        path=path,
        place=repr(path) if path else "the query",
        parent=repr(parent) if parent else "the query",
        keys=", ".join(sorted((Aggregate if parent else QueryObject).__annotations__)),
        name=str(keys[-1])[:100] if keys else "",
        message=error["msg"],
        **{name: str(value).replace("'", "").lower() for name, value in error.get("ctx", {}).items()},
    )
