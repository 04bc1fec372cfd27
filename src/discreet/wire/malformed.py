"""What is wrong with a request that has not the shape of one, in words of ours."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from discreet.errors import InputError

Shape = TypeVar("Shape", bound=BaseModel)


class Malformed(InputError):
    """A request that has not the shape of one.

    Attributes:
        position: 0-based offset in the statement or the filter where reading stopped, or None.
    """

    def __init__(self, message: str, position: int | None = None) -> None:
        self.position = position
        super().__init__(message)


def mistake(sentence: str) -> PydanticCustomError:
    """What a validator raises; *sentence* says what is wrong and what is allowed."""
    return PydanticCustomError("mistake", "{sentence}", {"sentence": sentence})


_SENTENCES = {
    "json_invalid": "the body must be JSON",
    "extra_forbidden": "there is no field {place}",
    "string_type": "{place} must be text",
    "string_too_short": "{place} must not be empty",
    "float_type": "{place} must be a number",
    "int_type": "{place} must be a whole number",
    "int_from_float": "{place} must be a whole number",
    "bool_type": "{place} must be true or false",
    "dict_type": "{place} must be an object",
    "model_type": "{place} must be an object",
    "model_attributes_type": "{place} must be an object",
    "list_type": "{place} must be a list",
    "literal_error": "{place} must be {expected}",
    "finite_number": "{place} must be a finite number",
    "missing": "{place} is missing",
    "greater_than_equal": "{place} must be at least {ge}",
    "less_than_equal": "{place} must be at most {le}",
    "mistake": "{sentence}",
}
"""By pydantic's names of errors."""


def what_is_wrong(error: ValidationError) -> str:
    """The first thing that is wrong, in one sentence without anything that was sent but names of fields."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("constrained-", "function-")))
    if not place:
        place = "the body"
    elif first["loc"][-1] in {"float", "str"}:  # a union of both
        return f"'{place.rpartition('.')[0]}' must be a finite number or text"
    sentence = _SENTENCES.get(first["type"], "{place} is not what this field takes")
    shown = place if place == "the body" else repr(place[:100])
    return sentence.format(**{**first.get("ctx", {}), "place": shown})


def read_body(kind: type[Shape], body: bytes) -> Shape:
    """What a body holds.

    Raises:
        Malformed: it holds none of that kind; the message says what is wrong, never what was sent.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        sentence = what_is_wrong(error)
    raise Malformed(sentence)  # not from pydantic's error, whose words are for programmers
