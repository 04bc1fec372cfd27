"""Kinds of settings that several tables of the catalog share, and how a mistake in one is told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import ValidationInfo

Setting = TypeVar("Setting")

MISTAKE = "mistake"
"""A mistake in the setting it is found at, in words of ours."""

MISTAKE_ABOVE = "mistake above"
"""A mistake in the table around the setting it is found at: two settings together, or none where one is needed."""

NUMBER_DIGITS = 18
"""Digits of a number, before its point and behind it."""

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SECRET = re.compile(r"(ssl)?pass(word|wd)|pwd|secret|(access_?)?token", re.IGNORECASE)
_NAME_LONGEST = 100


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a catalog says about the world outside of it, settled by whoever reads it.

    Args:
        place: makes a path or URL that is relative to the catalog file one that is not.
        check_zone: what is wrong with the name of a time zone, or None.
        engines: names of the declared engines.
    """

    place: Callable[[str], str]
    check_zone: Callable[[str], str | None]
    engines: frozenset[str]


class Table(BaseModel):
    """A table of the catalog file. It refuses what it does not know, converts nothing and never changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


def mistake(sentence: str) -> PydanticCustomError:
    """What a validator raises; *sentence* goes on from the place of the setting: "must not be empty"."""
    return PydanticCustomError(MISTAKE, sentence)


def mistake_above(sentence: str) -> PydanticCustomError:
    """What a validator raises; *sentence* goes on from the place of the table that the setting stands in."""
    return PydanticCustomError(MISTAKE_ABOVE, sentence)


def secret_in(url: str) -> bool:
    """True if a URL holds a password, before its host or among its options, or cannot even be read."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return True
    return parts.password is not None or any(_SECRET.fullmatch(name) for name, _ in options)


def _check_text(text: str) -> str:
    if not text.strip():
        raise mistake("must not be empty")
    if "\0" in text:
        raise mistake("must not hold a NUL character")
    return text


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name) or len(name) > _NAME_LONGEST:
        raise mistake(
            f"is not a name: names have up to {_NAME_LONGEST} letters a to z, digits, underscores and dots, "
            "and begin with a letter"
        )
    return name


def _check_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise mistake("must be the name of an environment variable, such as WAREHOUSE_PASSWORD, not the password")
    return name


def _check_statement(statement: str) -> str:
    if statement.rstrip().endswith(";"):
        raise mistake("must be one SELECT, without a semicolon at its end")
    return statement


def _check_path(text: str) -> str:
    if secret_in(text):
        raise mistake("must be a path, or a URL without a password")
    return text


def _place(text: str, info: ValidationInfo) -> str:
    return info.context.place(text) if info.context else text


def _check_url(url: str) -> str:
    if "://" not in url or secret_in(url):
        raise mistake(
            "must be a URL without a password, such as postgresql://reader@db:5432/warehouse; "
            "password_env names the environment variable that holds it"
        )
    return url


def _exact(value: Any) -> Fraction:  # noqa: ANN401 - whatever the file holds
    number = Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(number, Decimal) or not number.is_finite():
        raise mistake("must be a number")
    places = number.as_tuple().exponent
    if number.adjusted() >= NUMBER_DIGITS or not isinstance(places, int) or places < -NUMBER_DIGITS:
        raise mistake(f"must be a number of at most {NUMBER_DIGITS} digits before the point and {NUMBER_DIGITS} behind")
    return Fraction(number)


Text = Annotated[str, AfterValidator(_check_text)]
Name = Annotated[str, AfterValidator(_check_name)]
Variable = Annotated[str, AfterValidator(_check_variable)]
Statement = Annotated[Text, AfterValidator(_check_statement)]
Url = Annotated[Text, AfterValidator(_check_url), AfterValidator(_place)]
Place = Annotated[Text, AfterValidator(_check_path), AfterValidator(_place)]
Number = Annotated[Fraction, BeforeValidator(_exact), WithJsonSchema({"type": "number"})]


class OwnersQuery(Table):
    """A statement of the owner's, for the engine of the dataset."""

    query: Statement = Field(description="One SELECT. It must not depend on the rows that are protected.")


def ways(allowed: str) -> Discriminator:
    """Tells the ways to write a setting apart.

    Args:
        allowed: the sentence for a setting that is written in no such way.

    Returns:
        what gives the ways the tags ~text, ~list, and ~schedule, ~query or ~file by the setting that a table begins
        with. Tags are no part of the place of a mistake, which is why they look like no setting.
    """

    def tag(value: object) -> str | None:
        if isinstance(value, str | list):
            return "~text" if isinstance(value, str) else "~list"
        keys = value if isinstance(value, dict) else ()
        return next((f"~{key}" for key in ("schedule", "query", "file") if key in keys), None)

    return Discriminator(tag, custom_error_type=MISTAKE, custom_error_message=allowed)


def frozen(settings: Mapping[str, Setting]) -> Mapping[str, Setting]:
    """*settings* for reading only.

    Raises:
        PydanticCustomError: two names differ in case only, which engines and people would take for one.
    """
    names: dict[str, str] = {}
    for name in settings:
        first = names.setdefault(name.casefold(), name)
        if first != name:
            raise mistake(f"must not hold both {first!r} and {name!r}, which differ in case only")
    return MappingProxyType(dict(settings))
