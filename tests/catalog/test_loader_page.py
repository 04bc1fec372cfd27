"""The page about catalogs and the schema for editors are complete."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from discreet.catalog import fields, model
from discreet.catalog.loader import load_catalog, schema_of
from discreet.catalog.model import Catalog
from mkdocs_tables import on_page_markdown

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = on_page_markdown((DOCS / "catalog.md").read_text("utf-8"))
TABLES = {
    table
    for module in (fields, model)
    for table in vars(module).values()
    if isinstance(table, type) and issubclass(table, BaseModel) and table.model_fields
    if table is not model.ImpliedColumn  # not written in catalogs
}
SETTINGS = sorted({setting for table in TABLES for setting in table.model_fields})


def examples() -> list[str]:
    """Return the catalogs that the page shows."""
    return re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_schema_of_the_documentation_is_current():
    """It is what the command prints. If not: discreet catalog schema > docs/catalog.schema.json."""
    assert (DOCS / "catalog.schema.json").read_text("utf-8") == json.dumps(schema_of(Catalog), indent=2) + "\n"


def test_the_schema_describes_every_setting():
    """An editor shows the description of each; TOML has no null, and unknown settings are errors."""
    schema = schema_of(Catalog)
    tables = [schema, *schema["$defs"].values()]
    assert len(tables) == len(TABLES)
    for table in tables:
        assert table["additionalProperties"] is False
        assert table["description"]
        assert all(setting["description"] for setting in table["properties"].values())
    assert "null" not in json.dumps(schema)
    assert sorted({setting for table in tables for setting in table["properties"]}) == SETTINGS


@pytest.mark.parametrize("text", examples(), ids=[text.splitlines()[0] for text in examples()])
def test_the_examples_of_the_page_can_be_used(tmp_path, text):
    """Each example of the page is a valid catalog."""
    (tmp_path / "catalog.toml").write_text(text, "utf-8")
    assert load_catalog(tmp_path / "catalog.toml").datasets


def test_the_example_shows_every_setting():
    """The catalogs of the page use every setting."""
    shown = "\n".join(examples())
    assert [setting for setting in SETTINGS if not re.search(rf"\b{setting}\b", shown)] == []


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_is_explained(setting):
    """Every setting has a row of a table."""
    assert re.search(rf"^\| [^|]*`{setting}`", PAGE, re.MULTILINE)
