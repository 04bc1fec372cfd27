"""The settings of the service: read completely or not at all."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest

from discreet.errors import InputError
from discreet.query.pricing import PRESETS
from discreet.service import settings as model
from discreet.service.settings import SettingsError, Store, load_settings, settings_schema
from discreet.service.stores import store_url
from mkdocs_tables import on_page_markdown
from tests.catalog.cases import read_cases

DOCS = Path(__file__).resolve().parents[2] / "docs" / "service"
PAGE = DOCS / "running.md"
CASES = read_cases(str(Path(__file__).with_name("broken.txt")), {"@noise": 'noise.key_file = "noise.key"'})
WORDS_OF_PYDANTIC = re.compile(r"pydantic|validation|Input|Field|Extra|should|valid |instance", re.ASCII)
TABLES = {
    table for table in vars(model).values() if isinstance(table, type) and issubclass(table, model.SettingsTable)
} - {model.SettingsTable}
SETTINGS = sorted({setting for table in TABLES for setting in table.model_fields})


@pytest.fixture
def load(tmp_path):
    """Load settings from text."""

    def load(text: str):
        (tmp_path / "discreet.toml").write_text(text, "utf-8")
        return load_settings(tmp_path / "discreet.toml")

    return load


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[expected[0][:60] for _, expected in CASES])
def test_broken_settings_are_refused_with_these_sentences(load, text, expected):
    """All mistakes at once, each with its place; no secret and no message of a library."""
    with pytest.raises(SettingsError) as caught:
        load(text)
    error = caught.value
    assert [str(mistake) for mistake in error.mistakes] == expected
    assert str(error).splitlines()[1:] == [f"  {sentence}" for sentence in expected]
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__
    assert "hunter2" not in str(error)
    assert "battery" not in str(error)
    assert not WORDS_OF_PYDANTIC.search(str(error))


def test_there_are_broken_settings():
    """The test above depends on them."""
    assert len(CASES) > 30
    assert all(expected for _, expected in CASES)


def test_settings_that_cannot_be_read_are_reported(load):
    """No traceback, for any defect of the file."""
    with pytest.raises(SettingsError, match="there is no such file"):
        load_settings("/nowhere/discreet.toml")
    with pytest.raises(SettingsError, match="it is not TOML"):
        load("noise = {")


def test_only_the_noise_key_is_required(load, tmp_path):
    """Everything else has a safe default: this machine only, SQLite beside the file, epsilon 1."""
    settings = load('noise.key_file = "noise.key"')
    assert settings.noise.key_file == tmp_path / "noise.key"
    assert settings.service.catalog == tmp_path / "catalog.toml"
    assert settings.store.file == tmp_path / "budget.db"
    assert (settings.service.host, settings.service.workers) == ("127.0.0.1", 1)
    assert (settings.defaults.epsilon, settings.defaults.delta) == (1.0, Fraction(1, 10**8))
    assert settings.defaults.epsilon_per is None
    assert settings.checkpoints is None


def test_paths_begin_at_the_folder_of_the_file(load, tmp_path):
    """In any working directory; absolute paths are kept, brackets are no pattern."""
    settings = load(
        'noise.key_file = "/run/secrets/noise[1]"\nservice.catalog = "../c.toml"\nstore.url = "sqlite:data/b.db"\n'
        'checkpoints = { file = "w[0].log", signing_key_file = "w.key" }'
    )
    assert settings.noise.key_file == Path("/run/secrets/noise[1]")
    assert settings.service.catalog == tmp_path / "../c.toml"
    assert settings.store.file == tmp_path / "data/b.db"
    assert settings.checkpoints.file == tmp_path / "w[0].log"


def test_a_preset_is_its_parameters(load):
    """LinkedIn's, section 6.2: .15 and 1e-10, exactly."""
    defaults = load('noise.key_file = "k"\ndefaults.preset = "linkedin"').defaults
    assert (defaults.epsilon_per, defaults.delta_per) == (Fraction(15, 100), Fraction(1, 10**10))
    assert defaults.per == PRESETS["linkedin"]
    assert (defaults.epsilon, defaults.delta) == (None, None)


def test_settings_are_immutable(load):
    """All threads share the settings."""
    settings = load(
        'noise.key_file = "k"\noidc = { issuer = "https://i", audience = "a", roles_claim = "g", roles.r = "admin" }'
    )
    with pytest.raises(ValueError, match="frozen"):
        settings.service.port = 1
    with pytest.raises(TypeError):
        settings.oidc.roles["x"] = "admin"


def test_a_postgresql_store_has_no_file_and_gets_its_password_from_the_environment(load):
    """T9: it is in no file; characters with a meaning in URLs are quoted."""
    store = load(
        'noise.key_file = "k"\nservice.workers = 4\n'
        'store = { url = "postgresql://me@db:5432/budgets?sslmode=require", password_env = "PW" }'
    ).store
    assert store.file is None
    assert store_url(store, {"PW": "p@ss/w:rd"}) == "postgresql://me:p%40ss%2Fw%3Ard@db:5432/budgets?sslmode=require"
    with pytest.raises(InputError, match="'PW'"):
        store_url(store, {})
    assert store_url(Store(url="postgresql://me@db/b"), {}) == "postgresql://me@db/b"
    with pytest.raises(InputError, match="must name the user"):
        store_url(store.model_copy(update={"url": "postgresql://db/b"}), {"PW": "x"})


def test_the_schema_of_the_documentation_is_current():
    """It is what the command prints. If not: discreet serve --schema > docs/service/discreet.schema.json."""
    assert (DOCS / "discreet.schema.json").read_text("utf-8") == json.dumps(settings_schema(), indent=2) + "\n"


def test_the_schema_describes_every_setting():
    """An editor shows the description of each; TOML has no null, and unknown settings are errors."""
    schema = settings_schema()
    tables = [schema, *schema["$defs"].values()]
    assert len(tables) == len(TABLES)
    for table in tables:
        assert table["additionalProperties"] is False
        assert table["description"]
        assert all(setting["description"] for setting in table["properties"].values())
    assert "null" not in json.dumps(schema)
    assert sorted({setting for table in tables for setting in table["properties"]}) == SETTINGS


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_is_explained(setting):
    """In a row of a table of the page about running the service."""
    assert re.search(rf"^\| [^|]*`{setting}`", on_page_markdown(PAGE.read_text("utf-8")), re.MULTILINE)


def test_the_examples_of_the_page_can_be_used(load):
    """Each is a valid settings file, and together they have every setting."""
    examples = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for text in examples:
        load(text)
    assert [setting for setting in SETTINGS if not re.search(rf"\b{setting}\b", "\n".join(examples))] == []
