"""Reading catalog files: TOML to a `Catalog`, or every mistake in it at once; and their JSON schema."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema

from discreet.catalog.engine_pool import check_zone
from discreet.catalog.fields import LoadContext
from discreet.catalog.model import Catalog
from discreet.catalog.toml import read_toml
from discreet.catalog.validation_errors import Finding, validation_errors
from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import core_schema

    from discreet.catalog.fields import Table

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_DUCKDB = "duckdb:///"


class CatalogError(InputError):
    """A catalog file cannot be used.

    Attributes:
        mistakes: at least one, each with its place in the file.
    """

    def __init__(self, path: str | Path, mistakes: Sequence[Finding]) -> None:
        self.path = Path(path)
        self.mistakes = tuple(mistakes)
        lines = [f"the catalog {str(path)!r} cannot be used:", *map(str, self.mistakes)]
        super().__init__("\n  ".join(lines))


def load_catalog(path: str | Path) -> Catalog:
    """Read a catalog.

    Args:
        path: a TOML file. Relative paths in it start at its folder.

    Raises:
        CatalogError: there is no such file, it is not TOML, or something in it is not allowed.
    """
    try:
        document = read_toml(Path(path))
    except InputError as error:
        raise CatalogError(path, [Finding("", str(error))]) from None
    engines = document.get("engines")
    folder = Path(path).absolute().parent
    context = LoadContext(
        lambda text: place(text, folder), check_zone, frozenset(engines if isinstance(engines, dict) else ())
    )
    try:
        return Catalog.model_validate(document, context=context)
    except ValidationError as error:
        mistakes = validation_errors(error)
    raise CatalogError(path, mistakes)  # outside the except block: pydantic's error may hold what was written


def place(text: str, folder: Path) -> str:
    """Return a path, pattern or URL with relative paths, also in duckdb:/// URLs, resolved against *folder*.

    Args:
        folder: absolute.
    """
    if text.startswith(_DUCKDB):
        path, mark, options = text.removeprefix(_DUCKDB).partition("?")
        return f"{_DUCKDB}{quote(str(folder / unquote(path)))}{mark}{options}"
    if _SCHEME.match(text):
        return text
    # Brackets in the folder's own name are not a pattern.
    return str(Path(glob.escape(str(folder)), text) if glob.has_magic(text) else folder / text)


class _Schema(GenerateJsonSchema):
    """A schema without null, which TOML lacks, and without titles, which repeat the names of settings."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - pydantic's interface
        return False

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if schema.get("default", ...) is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)


def schema_of(table: type[Table]) -> dict[str, Any]:
    """Return the JSON schema (2020-12) of TOML files with the settings of *table*, for editors."""
    return {"$schema": _Schema.schema_dialect, **table.model_json_schema(schema_generator=_Schema)}
