"""Field types shared by several tables of TOML settings, and the errors that validators raise."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

Setting = TypeVar("Setting")

INVALID = "invalid"
"""The type of an error about the setting itself."""

INVALID_PARENT = "invalid parent"
"""The type of an error about the table that holds a setting: of exclusive settings, it has several or none."""

NUMBER_DIGITS = 18
"""The largest number of digits before the decimal point of a number, and after it."""

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SECRET = re.compile(r"(ssl)?pass(word|wd)|pwd|secret|(access_?)?token", re.IGNORECASE)
_MAX_NAME_LENGTH = 100


@dataclass(frozen=True, slots=True)
class LoadContext:
    """The context of validation: inputs of validators besides the catalog itself.

    Args:
        resolve_path: resolves a path or URL relative to the catalog file.
        check_zone: returns an error message for an invalid time zone name, or None.
        engines: the names of the declared engines.
    """

    resolve_path: Callable[[str], str]
    check_zone: Callable[[str], str | None]
    engines: frozenset[str]


class SettingsTable(BaseModel):
    """Base of all tables of settings: frozen, without unknown keys, without type conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


def invalid(sentence: str) -> PydanticCustomError:
    """Return the error for a validator to raise; *sentence* continues the key of the setting: "must not be empty"."""
    return PydanticCustomError(INVALID, sentence)


def invalid_parent(sentence: str) -> PydanticCustomError:
    """Return the error for a validator to raise; *sentence* continues the key of the table that holds the setting."""
    return PydanticCustomError(INVALID_PARENT, sentence)


def secret_in(url: str) -> bool:
    """Return True if a URL holds a password before its host or in its query string, or cannot be parsed."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return True  # an engine's driver may parse it in another way, and find a password
    return parts.password is not None or any(_SECRET.fullmatch(name) for name, _ in options)


def refuse(wrong: Callable[[Setting], bool], sentence: str) -> AfterValidator:
    """Return a validator that refuses a setting if *wrong* returns True for it; *sentence* is as for `invalid`."""

    def check(setting: Setting) -> Setting:
        if wrong(setting):
            raise invalid(sentence)
        return setting

    return AfterValidator(check)


def _resolve_path(text: str, info: ValidationInfo) -> str:
    return info.context.resolve_path(text) if info.context else text


def _exact(value: Any) -> Fraction:  # noqa: ANN401 - any TOML value
    number = Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value  # True is an int
    if not isinstance(number, Decimal) or not number.is_finite():
        raise invalid("must be a number")
    # Checked before the conversion: Fraction("1e999999999") would write out all its digits.
    places = number.as_tuple().exponent
    if number.adjusted() >= NUMBER_DIGITS or not isinstance(places, int) or places < -NUMBER_DIGITS:
        raise invalid(
            f"must be a number of at most {NUMBER_DIGITS} digits before the decimal point and {NUMBER_DIGITS} after it"
        )
    return Fraction(number)


Text = Annotated[
    str,
    refuse(lambda text: not text.strip(), "must not be empty"),
    refuse(lambda text: "\0" in text, "must not hold a NUL character"),
]
Name = Annotated[
    str,
    refuse(
        lambda name: not _NAME.fullmatch(name) or len(name) > _MAX_NAME_LENGTH,
        f"is not a name: names have up to {_MAX_NAME_LENGTH} letters a to z, digits, underscores and dots, "
        "and begin with a letter",
    ),
]
Variable = Annotated[
    str,
    refuse(
        lambda name: not _VARIABLE.fullmatch(name),
        "must be the name of an environment variable, such as WAREHOUSE_PASSWORD, not the password",
    ),
]
Statement = Annotated[
    Text, refuse(lambda sql: sql.rstrip().endswith(";"), "must be one SELECT, without a semicolon at its end")
]
Url = Annotated[
    Text,
    refuse(
        lambda url: "://" not in url or secret_in(url),
        "must be a URL without a password, such as postgresql://reader@db:5432/warehouse; "
        "password_env names the environment variable that holds it",
    ),
    AfterValidator(_resolve_path),
]
Place = Annotated[Text, refuse(secret_in, "must be a path, or a URL without a password"), AfterValidator(_resolve_path)]
Number = Annotated[Fraction, BeforeValidator(_exact), WithJsonSchema({"type": "number"})]


class OwnerQuery(SettingsTable):
    """A query that the data owner wrote for the dataset's engine."""

    query: Statement = Field(description="One SELECT. It must not depend on the rows that are protected.")


def forms(allowed: str) -> Discriminator:
    """Return a discriminator for a setting with several forms: text, a list, or a table identified by one of its keys.

    Its tags are ~text, ~list, ~schedule, ~query, ~file and ~first; `validation_errors` removes them from the key of an
    error.

    Args:
        allowed: the message for a setting in none of the forms.
    """

    def tag(value: object) -> str | None:
        if isinstance(value, str | list):
            return "~text" if isinstance(value, str) else "~list"
        keys = value if isinstance(value, dict) else ()
        return next((f"~{key}" for key in ("schedule", "query", "file", "first") if key in keys), None)

    return Discriminator(tag, custom_error_type=INVALID, custom_error_message=allowed)


def frozen(settings: Mapping[str, Setting]) -> Mapping[str, Setting]:
    """Return a read-only view of *settings*.

    Raises:
        PydanticCustomError: two keys of *settings* differ in case only.
    """
    names: dict[str, str] = {}
    for name in settings:
        first = names.setdefault(name.casefold(), name)
        if first != name:
            raise invalid(f"must not hold both {first!r} and {name!r}, which differ in case only")
    return MappingProxyType(dict(settings))
