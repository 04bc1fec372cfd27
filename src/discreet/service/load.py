"""From a TOML file to `Settings`, or every mistake in it at once."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from discreet.catalog.mistakes import Finding, mistakes_in
from discreet.catalog.schema import schema_of
from discreet.catalog.toml import read_toml
from discreet.errors import InputError
from discreet.service.settings import (
    DataCentre,
    Defaults,
    Limits,
    Logs,
    Noise,
    Oidc,
    Service,
    Settings,
    Store,
    Traces,
    WitnessSettings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from discreet.catalog.settings import Table

_SECTIONS: Mapping[str, type[Table]] = {
    "service": Service,
    "store": Store,
    "noise": Noise,
    "witness": WitnessSettings,
    "defaults": Defaults,
    "limits": Limits,
    "oidc": Oidc,
    "datacentre": DataCentre,
    "logs": Logs,
    "traces": Traces,
}


class SettingsError(InputError):
    """A settings file that cannot be used.

    Attributes:
        path: the file.
        mistakes: each with its place in the file; at least one.
    """

    def __init__(self, path: str | Path, mistakes: Sequence[Finding]) -> None:
        self.path = Path(path)
        self.mistakes = tuple(mistakes)
        super().__init__("\n  ".join([f"the settings {str(path)!r} cannot be used:", *map(str, self.mistakes)]))


def load_settings(path: str | Path, overrides: Mapping[str, Any] = MappingProxyType({})) -> Settings:
    """Read what the service runs with.

    Args:
        path: a TOML file. Paths in it are read from its folder.
        overrides: settings of the section service in place of the file's.

    Raises:
        SettingsError: there is no such file, it is not TOML, or something in it is not allowed.
    """
    try:
        # Sections that are left out have paths too, which begin at the file's folder.
        document = {"service": {}, "store": {}, **read_toml(Path(path))}
    except InputError as error:
        raise SettingsError(path, [Finding("", str(error))]) from None
    if overrides and isinstance(document["service"], dict):
        document["service"] = {**document["service"], **overrides}
    try:
        return Settings.model_validate(document, context=Path(path).absolute().parent)
    except ValidationError as error:
        mistakes = mistakes_in(error, _placed)
    raise SettingsError(path, mistakes)  # not from the error of pydantic, whose words are for programmers


def settings_schema() -> dict[str, Any]:
    """The JSON schema of settings files, for editors that complete and check TOML."""
    return schema_of(Settings)


def _placed(location: tuple[int | str, ...]) -> tuple[type[Table], list[str]]:
    """The table that a setting stands in, and the setting's place in the file; see `mistakes_in`."""
    place = [str(part) for part in location if part != "[key]"]
    return _SECTIONS[place[0]] if len(place) > 1 else Settings, place
