"""Comparing catalogs with real files and tables."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from functools import partial

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from discreet.catalog.checks import check
from discreet.catalog.engine_pool import open_dataset, schema_error
from discreet.catalog.loader import load_catalog
from discreet.engines import opening
from discreet.errors import EngineError, InexactHead, InputError
from discreet.head_request import Kind
from discreet.release.declaration import check_in
from tests.catalog.cases import read_cases
from tests.catalog.fakes import FakeEngine, catalog_of

ROWS = pa.table(
    {
        "u": ["u1", "u2"],
        "score": [0.5, 1.5],
        "nested": [[1], [2]],
        "a": ["secret", "secret"],
        "year": [2024, 2025],
        "price": pa.array([Decimal("1.50"), Decimal("2.25")], pa.decimal128(9, 2)),
        "mobile": [True, False],
        "day": [datetime.date(2026, 11, 20)] * 2,
        "at": [datetime.datetime(2026, 11, 20, 12)] * 2,
    }
)
GOOD = """
columns.a = { type = "text", group = true, domain = { query = "SELECT DISTINCT a FROM source" } }
columns.year = { type = "integer", group = true, sum = { low = 0, high = 1 }, domain = { file = "years.csv" } }
columns.price = { type = "decimal", sum = { low = 0, high = 1 }, group = true, domain = [1, 2] }
columns.mobile = { type = "boolean", group = true, domain = [true] }
columns.day = { type = "date", group = true, domain = [2026-11-20] }
columns.at = { type = "timestamp", group = true, domain = [2026-11-20T12:00:00] }
columns.score = { type = "float", filter = true }
data_version = { query = "SELECT max(year) FROM source" }
running.s = { items = ["a"], column = "day", first = "2026-12-01", periods = 7, epsilon = 1, answers = "a.parquet" }
"""


@pytest.fixture(autouse=True)
def files(tmp_path):
    """Create the same rows as Parquet, as CSV and as a table of a DuckDB file, and a file of years."""
    pq.write_table(ROWS, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("u,a,year\nu1,secret,2024\nu2,secret,2025\n")
    (tmp_path / "years.csv").write_text("year\n2024\n2025\n")
    with duckdb.connect(str(tmp_path / "t.db")) as connection:
        connection.execute(f"CREATE TABLE reads AS SELECT * FROM '{tmp_path}/t.parquet'")
        connection.execute("CREATE TABLE others AS SELECT 1 AS x")


@pytest.fixture
def found(tmp_path):
    """Return a function that checks a catalog with more settings and returns a line for each finding."""

    def run(settings, **environment):
        catalog = catalog_of(tmp_path, settings)
        findings = check(catalog, environment=environment, check_stream=partial(check_in, catalog))
        return [str(finding) for finding in findings]

    return run


def test_a_catalog_that_fits_has_no_mistake(found, tmp_path):
    """The check has a line for a dataset, its user column, its columns in order, its version query and its streams."""
    places = ["a", "year", "price", "mobile", "day", "at", "score"]
    expected = ["datasets.d", "datasets.d.user", *(f"datasets.d.columns.{name}" for name in places)]
    assert found(GOOD) == [*expected, "datasets.d.data_version", "datasets.d.running.s"]
    assert all(finding.mistake is None for finding in check(catalog_of(tmp_path, GOOD), environment={}))


@pytest.mark.parametrize(("settings", "messages"), read_cases("misfits.txt"), ids=str)
def test_a_mismatch_of_catalog_and_table_is_reported(found, tmp_path, settings, messages):
    """A mismatch is one line with its place in the catalog, and shows no data."""
    lines = found(settings)
    wrong = [line for line in lines if ": " in line]
    assert len(wrong) == 1
    assert messages[0].replace("FOLDER", str(tmp_path)) in wrong[0]
    assert "secret" not in "".join(lines)


@pytest.mark.parametrize(
    ("user", "messages"),
    [
        ("score", "floating-point numbers, and engines disagree on which of those are equal; cast it to"),
        ("nested", "a type that cannot name a user or an item; cast it to text"),
        ("at", "timestamps, which sources and engines cut to different precisions, so that two users could become one"),
    ],
)
def test_a_user_column_must_distinguish_users(tmp_path, user, messages):
    """A user column of a type that merges users is refused; other types are accepted."""
    (tmp_path / "catalog.toml").write_text(
        f'[datasets.d]\nsource = "t.parquet"\nuser = "{user}"\ncolumns.a = {{ type = "text", group = true }}'
    )
    mistakes = [found.mistake for found in check(load_catalog(tmp_path / "catalog.toml"), environment={})]
    assert mistakes[::2] == [None, None]
    assert re.match(f"user column '{user}' (holds|has) {messages}", mistakes[1])


def test_the_columns_alone_can_be_compared(tmp_path):
    """The first mismatch is returned, the user column's before others; None if all fit, with any additional columns."""
    dataset = catalog_of(tmp_path, 'columns.year = { type = "integer", filter = true }').datasets["d"]
    assert schema_error(dataset, {"year": Kind.INTEGER, "u": Kind.TEXT, "other": Kind.OTHER}) is None
    assert schema_error(dataset, {"year": Kind.DATE, "v": Kind.TEXT}) == (
        "there is no user column 'u'; the columns are 'year', 'v'"
    )
    assert schema_error(dataset, {"year": Kind.DATE, "u": Kind.TEXT}) == (
        "column 'year' is declared integer, but the table holds date"
    )


@pytest.mark.parametrize("type_", ["text", "integer", "decimal", "boolean", "date", "timestamp", "float"])
def test_columns_of_csv_files_are_text(found, type_):
    """CSV columns are text whatever they look like, because the owner decides how text becomes a number or a date."""
    messages = f": column 'year' is declared {type_}, but CSV files hold text; cast it in a view, or write Parquet"
    lines = found(f'source = "t.csv"\ncolumns.year = {{ type = "{type_}", filter = true }}')
    assert lines[-1] == f"datasets.d.columns.year{'' if type_ == 'text' else messages}"


def test_a_view_of_a_csv_file_has_types(found):
    """A view that casts the columns of a CSV file, as the message suggests, passes the check."""
    view = "SELECT u, CAST(year AS INTEGER) AS year FROM source"
    settings = f'source = "t.csv"\nview = "{view}"\ncolumns.year = {{ type = "integer", group = true }}'
    assert found(settings) == ["datasets.d", "datasets.d.user", "datasets.d.columns.year"]


def test_all_mistakes_are_found_at_once(found):
    """A mistake does not hide later ones."""
    settings = """
columns.x = { type = "text", group = true }
columns.a = { type = "date", group = true }
columns.year = { type = "integer", group = true, domain = { query = "SELECT" } }
data_version = { query = "SELECT 1 WHERE false" }
"""
    assert sum(": " in line for line in found(settings)) == 4


def test_only_the_named_datasets_are_checked(tmp_path):
    """Named datasets are checked once, in any case; others need not exist, and an unknown name is refused."""
    column = 'columns.a = { type = "text", group = true }'
    (tmp_path / "catalog.toml").write_text(
        f'[datasets.d]\nsource = "t.parquet"\nuser = "u"\n{column}\n[datasets.e]\nsource = "no"\nuser = "u"\n{column}'
    )
    catalog = load_catalog(tmp_path / "catalog.toml")
    assert {f.place.split(".")[1] for f in check(catalog, environment={})} == {"d", "e"}
    assert len(check(catalog, ["D", "d"], environment={})) == 3
    with pytest.raises(InputError, match="there is no dataset 'f'"):
        check(catalog, ["f"], environment={})


@pytest.mark.parametrize(
    "error",
    [EngineError("the engine cannot be reached"), InexactHead("its settings make counts inexact"), InputError("no")],
)
def test_an_engine_that_cannot_be_opened_is_a_finding(found, monkeypatch, error):
    """An unreachable, inexact or missing engine is reported with its own message."""

    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(opening, "open_engine", refuse)
    assert found("") == [f"datasets.d: {error}"]


def test_a_private_bound_needs_an_engine_that_supports_it(found, monkeypatch):
    """The owner gets this error at the check, not the first analyst at a query."""
    monkeypatch.setattr(opening, "open_engine", lambda *_, **__: FakeEngine({"u": Kind.TEXT, "a": Kind.INTEGER}))
    settings = 'columns.a = { type = "integer", sum = { low = 0, high = 8, private_bound = true } }'
    refused = "this engine cannot choose the bound of 'a' privately; declare its sum without private_bound"
    assert f"datasets.d.columns.a: {refused}" in found(settings)


@pytest.mark.parametrize("columns", [None, {"u": Kind.TEXT}])
def test_engines_are_closed(found, monkeypatch, columns):
    """Every engine is closed after the check, even one that fails."""
    engine = FakeEngine(columns)
    monkeypatch.setattr(opening, "open_engine", lambda *_, **__: engine)
    assert any(": " in line for line in found(""))
    assert engine.closed


@pytest.mark.parametrize("version", [None, "of the engine", "declared"])
def test_a_check_notes_data_without_a_version(tmp_path, monkeypatch, version):
    """Repeated queries of it are not free, which its owner learns before analysts do."""
    engine = FakeEngine({"u": Kind.TEXT, "a": Kind.TEXT}, version="7" if version == "of the engine" else None)
    monkeypatch.setattr(opening, "open_engine", lambda *_, **__: engine)
    catalog = catalog_of(tmp_path, 'data_version = "1"' if version == "declared" else "")
    note = check(catalog, environment={})[0].note
    assert ("the same query is charged every time" in note) == (version is None)


ENGINE = """
engines.w = { url = "postgresql://reader@db/warehouse", password_env = "SECRET", timeout_seconds = 7 }
datasets.d = { engine = "w", view = "SELECT 1", user = "u", columns.a = { type = "text", group = true } }
datasets.e = { source = "/t.db", table = "t", user = "u", columns.a = { type = "text", group = true } }
"""


@pytest.fixture
def opened_with(tmp_path, monkeypatch):
    """Return a catalog, and the list of arguments that engines are opened with."""
    (tmp_path / "catalog.toml").write_text(ENGINE)
    asked = []
    monkeypatch.setattr(opening, "open_engine", lambda *where, **how: asked.append((where, how)) or FakeEngine())
    return load_catalog(tmp_path / "catalog.toml"), asked


def test_an_engine_is_opened_as_it_is_declared(opened_with):
    """An engine gets its declared options and the password from the environment; files have no password."""
    catalog, asked = opened_with
    open_dataset(catalog, "d", {"SECRET": "hunter2"})
    open_dataset(catalog, "e", {})
    messages = {"table": None, "view": "SELECT 1", "password": "hunter2", "timeout_seconds": 7}
    assert asked == [
        (("postgresql://reader@db/warehouse",), messages),
        (("/t.db",), {"table": "t", "view": None}),
    ]


@pytest.mark.parametrize("environment", [{}, {"SECRET": ""}])
def test_a_missing_password_is_reported_before_the_engine_is_used(opened_with, environment):
    """The message names the environment variable of the password."""
    catalog, asked = opened_with
    findings = check(catalog, ["d"], environment=environment)
    messages = "datasets.d: the environment variable 'SECRET', which should hold the password, is not set"
    assert [str(finding) for finding in findings] == [messages]
    assert asked == []
