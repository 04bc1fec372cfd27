"""Read catalogs from TOML, reporting all mistakes at once with their locations; and generate their JSON schema."""

from __future__ import annotations

import glob
import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias
from urllib.parse import quote, unquote

from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from discreet.catalog.engine_pool import check_zone
from discreet.catalog.fields import INVALID, INVALID_PARENT, LoadContext, OwnerQuery, SettingsTable
from discreet.catalog.model import (
    Catalog,
    Clip,
    Column,
    Dataset,
    EngineSettings,
    LabelFile,
    LabelRange,
    RunningTable,
    Schedule,
)
from discreet.errors import InputError

if TYPE_CHECKING:
    Placed: TypeAlias = Callable[[tuple[int | str, ...]], tuple[type[SettingsTable], list[str]]]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_DUCKDB = "duckdb:///"


class TomlError(InputError):
    """A TOML file cannot be used.

    Attributes:
        content: what such a file holds, for the message.
        mistakes: at least one, each with its place in the file.
    """

    content: ClassVar[str]

    def __init__(self, path: str | Path, mistakes: Sequence[Finding]) -> None:
        self.path = Path(path)
        self.mistakes = tuple(mistakes)
        super().__init__("\n  ".join([f"the {self.content} {str(path)!r} cannot be used:", *map(str, mistakes)]))


class CatalogError(TomlError):
    """A catalog file cannot be used."""

    content = "catalog"


def load_catalog(path: str | Path) -> Catalog:
    """Read a catalog.

    Args:
        path: a TOML file. Relative paths in it are relative to its folder.

    Raises:
        CatalogError: there is no such file, it is not TOML, or something in it is not allowed.
    """
    return load_with_digest(path)[1]


def load_with_digest(path: str | Path) -> tuple[str, Catalog]:
    """Return the SHA-256 of a catalog file in hexadecimal digits, and the catalog; see `load_catalog`."""
    try:
        content = _read_bytes(Path(path))
        document = _parse_toml(content)
    except InputError as error:
        raise CatalogError(path, [Finding("", str(error))]) from None
    engines = document.get("engines")
    folder = Path(path).absolute().parent
    context = LoadContext(
        lambda text: resolve_path(text, folder), check_zone, frozenset(engines if isinstance(engines, dict) else ())
    )
    try:
        return hashlib.sha256(content).hexdigest(), Catalog.model_validate(document, context=context)
    except ValidationError as error:
        mistakes = validation_errors(error)
    raise CatalogError(path, mistakes)  # outside the except block: pydantic's error may hold values from the file


def resolve_path(text: str, folder: Path) -> str:
    """Return a path, pattern or URL with relative paths, also in duckdb:/// URLs, resolved against *folder*.

    Args:
        folder: absolute.
    """
    if text.startswith(_DUCKDB):
        path, mark, options = text.removeprefix(_DUCKDB).partition("?")
        return f"{_DUCKDB}{quote(str(folder / unquote(path)))}{mark}{options}"
    if _SCHEME.match(text):
        return text
    # Brackets in the folder's name are not part of a pattern.
    return str(Path(glob.escape(str(folder)), text) if glob.has_magic(text) else folder / text)


class _Schema(GenerateJsonSchema):
    """A schema generator that omits null, which TOML lacks, and titles, which repeat the names of settings."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - pydantic's interface
        return False

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if schema.get("default", ...) is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)


def schema_of(table: type[SettingsTable]) -> dict[str, Any]:
    """Return the JSON schema (2020-12) for editors of TOML files with the settings of *table*."""
    return {"$schema": _Schema.schema_dialect, **table.model_json_schema(schema_generator=_Schema)}


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def write_text(text: str) -> str:
    """Return *text* as a TOML string on one line."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML escapes what JSON does, and DEL


def write_key(*names: str) -> str:
    """Return names as a dotted TOML key: datasets.engagements."member id"."""
    return ".".join(name if _BARE.fullmatch(name) else write_text(name) for name in names)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML file, with exact decimal numbers.

    Raises:
        InputError: there is no such file, or it is not TOML; the message does not name the file.
    """
    return _parse_toml(_read_bytes(path))


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        wrong = "there is no such file"
    except OSError as error:
        wrong = f"it cannot be read: {(error.strerror or 'no access').lower()}"
    raise InputError(wrong)


def _parse_toml(content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode("utf-8"), parse_float=Decimal)  # exact: 0.1 is 1/10
    except UnicodeDecodeError:
        wrong = "it is not UTF-8 text"
    except tomllib.TOMLDecodeError as error:
        wrong = f"it is not TOML: {str(error)[:1].lower()}{str(error)[1:]}"
    except (ValueError, ArithmeticError, RecursionError):  # thousands of digits, or too deep nesting
        wrong = "it is not TOML that can be read: a number is too long, or lists are nested too deep"
    raise InputError(wrong)


_SENTENCES = {
    "string_type": "must be text in quotes",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "model_type": "must be a table of settings",
    "dict_type": "must be a table of settings",
    "tuple_type": "must be a list",
    "too_short": "must not be empty",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be at least {ge:,}",
    "less_than_equal": "must be at most {le:,}",
    "string_pattern_mismatch": 'must be a time such as "04:00", or the minute of an hourly schedule such as ":15"',
}
"""Messages by pydantic's error type; pydantic's own messages are written for programmers."""

_FORMS: Mapping[str, type[SettingsTable]] = {
    "~text": Dataset,
    "~list": Column,
    "~schedule": Schedule,
    "~query": OwnerQuery,
    "~file": LabelFile,
    "~first": LabelRange,
}
"""The model of each tag of `forms`, for settings that can be written in several forms."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        place: the TOML key of the checked setting: "datasets.engagements.columns.article"; empty for the file.
        mistake: a message that continues the key, or None if the check passed.
        note: queries that will be refused although the setting is valid, or rights of the account, or None.
    """

    place: str
    mistake: str | None = None
    note: str | None = None

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.mistake) if part)


def _placed_in_catalog(location: tuple[int | str, ...]) -> tuple[type[SettingsTable], list[str]]:
    """Return the model of the table that contains a setting, and the setting's keys in the file.

    Args:
        location: pydantic's location, in which keys are marked and the tags of `forms` occur.
    """
    place = [str(part) for part in location]
    table: type[SettingsTable] = Catalog
    match place:
        case [_, _, "[key]"] | [_, _, "columns", _, "[key]"]:
            place.pop()
        case ["engines", _, _]:
            table = EngineSettings
        case ["datasets", _, "data_version", _, *_]:
            table = _FORMS[place.pop(3)]
        case ["datasets", _, "columns", _, "domain", _, *_]:
            table = _FORMS[place.pop(5)]
        case ["datasets", _, "columns", _, "sum", _]:
            table = Clip
        case ["datasets", _, "columns", _, _]:
            table = Column
        case ["datasets", _, "running", _, _]:
            table = RunningTable
        case ["datasets", _, _]:
            table = Dataset
    return table, place


def validation_errors(error: ValidationError, placed: Placed = _placed_in_catalog) -> list[Finding]:
    """Return a finding for each mistake, in the order of the tables.

    Args:
        placed: maps pydantic's location to the model and keys of a setting, like `_placed_in_catalog`.
    """
    findings = []
    for one in error.errors(include_url=False, include_input=False):  # a password in the wrong setting is not shown
        table, place = placed(one["loc"])
        match one["type"]:
            case "missing":
                setting = place.pop()
                meaning = str(table.model_fields[setting].description).partition(".")[0]
                sentence = f"{setting!r} is missing: {meaning[0].lower()}{meaning[1:]}"
            case "extra_forbidden":
                sentence = f"{place.pop()!r} is not a setting; the settings are {', '.join(table.model_fields)}"
            case type_ if type_ in {INVALID, INVALID_PARENT}:
                place = place[:-1] if type_ == INVALID_PARENT else place
                sentence = one["msg"]
            case type_:
                sentence = _SENTENCES.get(type_, "is not what this setting takes").format(**one.get("ctx", {}))
        findings.append(Finding(write_key(*place), sentence))
    return findings
