"""Translation of pydantic's errors: one sentence for each mistake in a catalog, with its place in the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from discreet.catalog.fields import INVALID, INVALID_PARENT, OwnerQuery
from discreet.catalog.model import Catalog, Clip, Column, Dataset, EngineSettings, LabelFile, LabelRange, Schedule
from discreet.catalog.toml import write_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from discreet.catalog.fields import Table

    Placed: TypeAlias = Callable[[tuple[int | str, ...]], tuple[type[Table], list[str]]]

_SENTENCES = {
    "string_type": "must be text in quotes",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "model_type": "must be a table of settings",
    "dict_type": "must be a table of settings",
    "tuple_type": "must be a list",
    "too_short": "must hold at least one table",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be at least {ge:,}",
    "less_than_equal": "must be at most {le:,}",
    "string_pattern_mismatch": 'must be a time such as "04:00", or the minute of an hourly schedule such as ":15"',
}
"""Our sentence for each type of pydantic's errors, whose own are written for programmers."""

_FORMS: Mapping[str, type[Table]] = {
    "~text": Dataset,
    "~list": Column,
    "~schedule": Schedule,
    "~query": OwnerQuery,
    "~file": LabelFile,
    "~first": LabelRange,
}
"""The models of settings that can be written in several forms, by the tags of `forms`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        place: of what was checked, as a TOML key: "datasets.engagements.columns.article"; empty for the file.
        mistake: what is wrong, or None if nothing is.
    """

    place: str
    mistake: str | None = None

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.mistake) if part)


def placed_in_catalog(location: tuple[int | str, ...]) -> tuple[type[Table], list[str]]:
    """Return the model of the table that a setting is in, and the setting's keys in the file.

    Args:
        location: pydantic's, which marks keys and holds the tags of `forms`.
    """
    place = [str(part) for part in location]
    table: type[Table] = Catalog
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
        case ["datasets", _, _]:
            table = Dataset
    return table, place


def validation_errors(error: ValidationError, placed: Placed = placed_in_catalog) -> list[Finding]:
    """Return a finding for each mistake, in the order of the tables.

    Args:
        placed: maps pydantic's location to the model and keys of a setting, as `placed_in_catalog`.
    """
    # Without input: a password in the wrong setting must not be shown.
    return [_finding(one, placed) for one in error.errors(include_url=False, include_input=False)]


def _finding(error: ErrorDetails, placed: Placed) -> Finding:
    table, place = placed(error["loc"])
    type_, context = error["type"], error.get("ctx", {})
    if type_ in {"missing", "extra_forbidden"}:
        setting = place.pop()
        sentence = _missing(setting, table) if type_ == "missing" else _unknown(setting, table)
    elif type_ in {INVALID, INVALID_PARENT}:
        place = place[:-1] if type_ == INVALID_PARENT else place
        sentence = error["msg"]
    else:
        sentence = _SENTENCES.get(type_, "is not what this setting takes").format(**context)
    return Finding(write_key(*place), sentence)


def _missing(setting: str, table: type[Table]) -> str:
    meaning = str(table.model_fields[setting].description).partition(".")[0]
    return f"{setting!r} is missing: {meaning[0].lower()}{meaning[1:]}"


def _unknown(setting: str, table: type[Table]) -> str:
    return f"{setting!r} is not a setting; the settings are {', '.join(table.model_fields)}"
