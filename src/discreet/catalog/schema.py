"""The JSON schema of catalog files, for editors that complete and check TOML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic.json_schema import GenerateJsonSchema

from discreet.catalog.model import Catalog

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import core_schema

    from discreet.catalog.settings import Table


class _Schema(GenerateJsonSchema):
    """Without null, which TOML does not have, and without titles that only repeat the names of settings."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - an interface of pydantic's
        return False

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if schema.get("default", ...) is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)


def catalog_schema() -> dict[str, Any]:
    """The schema as a plain dictionary: JSON Schema 2020-12."""
    return schema_of(Catalog)


def schema_of(table: type[Table]) -> dict[str, Any]:
    """The schema of files whose settings are those of *table*."""
    return {"$schema": _Schema.schema_dialect, **table.model_json_schema(schema_generator=_Schema)}
