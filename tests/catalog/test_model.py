"""The values of a catalog's settings."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction

import pytest
from pydantic import ValidationError

from discreet.catalog.fields import OwnerQuery
from discreet.catalog.loader import load_catalog
from discreet.catalog.model import Clip, LabelFile, Schedule
from discreet.errors import InputError
from discreet.head_request import Kind, SumBounds

FULL = """
[engines.warehouse]
url = "postgresql://reader@db:5432/warehouse"
password_env = "WAREHOUSE_PASSWORD"
timeout_seconds = 90

[datasets.engagements]
description = "Who read which article."
engine = "warehouse"
table = "public.engagements"
user = "member_id"
groups_per_user = 50
rows_per_group = 5
missing_labels = "keep"
data_version = { schedule = "weekly", at = "04:00", zone = "Europe/Berlin", day = "monday" }
retention_days = 30
max_head_limit = 10_000
max_k = 1_000

[datasets.engagements.columns]
article = { type = "text", group = true, filter = true, domain = ["a", "b"] }
minutes = { type = "integer", sum = { low = -5, high = 60 } }
price = { type = "decimal", group = true, sum = { low = 0, high = 0.25 }, domain = [1, 0.5] }
mobile = { type = "boolean", group = true, domain = [true, false] }
day = { type = "date", filter = true, group = true, domain = [2026-11-20] }
at = { type = "timestamp", filter = true, group = true, domain = [2026-11-20T12:00:00] }
score = { type = "float", filter = true }
"country of residence" = { type = "text", group = true, domain = { query = "SELECT code FROM countries" } }
campaign = { type = "text", group = true, domain = { file = "campaigns.csv" } }
"""
SMALL = 'datasets.d = { source = "t.csv", user = "u", columns.a = { type = "text", group = true } }\n'


@pytest.fixture
def load(tmp_path):
    """Return a function that loads a catalog with a given text."""

    def load(text):
        (tmp_path / "catalog.toml").write_text(text, "utf-8")
        return load_catalog(tmp_path / "catalog.toml")

    return load


def test_every_setting_is_read(load, tmp_path):
    """Every setting has the value that is written."""
    catalog = load(FULL)
    engine, dataset = catalog.engines["warehouse"], catalog.datasets["engagements"]
    assert engine.url == "postgresql://reader@db:5432/warehouse"
    assert (engine.password_env, engine.timeout_seconds, engine.connections) == ("WAREHOUSE_PASSWORD", 90, 4)
    assert (dataset.description, dataset.engine) == ("Who read which article.", "warehouse")
    assert (dataset.table, dataset.view, dataset.source) == ("public.engagements", None, None)
    assert (dataset.user, dataset.groups_per_user, dataset.rows_per_group) == ("member_id", 50, 5)
    assert (dataset.missing_labels, dataset.retention_days) == ("keep", 30)
    assert (dataset.max_head_limit, dataset.max_k) == (10_000, 1_000)
    assert dataset.data_version == Schedule(schedule="weekly", at="04:00", zone="Europe/Berlin", day="monday")
    columns = dataset.columns
    assert columns["minutes"].sum == Clip(low=-5, high=60)
    assert [columns[name].domain for name in ("article", "mobile", "minutes")] == [("a", "b"), (True, False), None]
    assert columns["price"].domain == (1, Decimal("0.5"))
    assert columns["day"].domain == (datetime.date(2026, 11, 20),)
    assert columns["at"].domain == (datetime.datetime(2026, 11, 20, 12),)
    assert columns["country of residence"].domain == OwnerQuery(query="SELECT code FROM countries")
    assert columns["campaign"].domain == LabelFile(file=str(tmp_path / "campaigns.csv"))


def test_missing_settings_allow_nothing(load):
    """By default there is no grouping, filter, sum, COUNT(*) or bound, and missing labels are left out."""
    dataset = load(SMALL.replace("group", "filter")).datasets["d"]
    column = dataset.columns["a"]
    assert (column.group, column.filter, column.sum, column.domain) == (False, True, None, None)
    assert (dataset.rows_per_group, dataset.groups_per_user, dataset.missing_labels) == (None, None, "drop")
    assert (dataset.data_version, dataset.retention_days) == (None, None)
    assert (dataset.max_head_limit, dataset.max_k, dataset.description) == (None, None, None)
    assert load('engines.w.url = "trino://db"\n' + SMALL).engines["w"].timeout_seconds == 60


def test_columns_are_listed_by_their_permissions(load):
    """Columns have the order of the file and the kinds of engines."""
    dataset = load(FULL).datasets["engagements"]
    declared = ("article", "price", "mobile", "day", "at", "country of residence", "campaign")
    assert tuple(name for name in dataset.groupable if name in dataset.declared) == declared
    assert tuple(name for name in dataset.filterable if name in dataset.declared) == ("article", "day", "at", "score")
    assert dataset.summable == ("minutes", "price")
    kinds = [dataset.columns[name].kind for name in ("article", "minutes", "price", "mobile", "day", "at", "score")]
    assert kinds == [Kind.TEXT, Kind.INTEGER, Kind.DECIMAL, Kind.BOOLEAN, Kind.DATE, Kind.TIMESTAMP, Kind.FLOAT]


def test_dates_and_times_imply_their_periods(load):
    """Only of columns of GROUP BY; a week is in two months, and declared columns and names come first."""
    columns = """
at = { type = "timestamp", group = true, filter = true, groups_per_user = 3 }
day = { type = "date", of = "AT", each = "day", group = true, domain = { first = 2026-01-30, last = 2026-02-03 } }
seen = { type = "timestamp", filter = true }
paid = { type = "date", group = true, domain = { file = "days.csv" } }
PAID_week = { type = "text", group = true }
week = { type = "date", of = "left", each = "week", group = true }
"""
    dataset = load(FULL.partition("article =")[0] + columns).datasets["engagements"]
    implied = {name: dataset.columns[name] for name in dataset.columns if name not in dataset.declared}
    assert {name: (column.type, column.of, column.each) for name, column in implied.items()} == {
        "day_week": ("date", "AT", "week"),
        "day_month": ("date", "AT", "month"),
        "day_quarter": ("date", "AT", "quarter"),
        "day_year": ("date", "AT", "year"),
        "at_hour": ("timestamp", "at", "hour"),
        "at_week": ("date", "at", "week"),
        "at_month": ("date", "at", "month"),
        "at_quarter": ("date", "at", "quarter"),
        "at_year": ("date", "at", "year"),
        "paid_month": ("date", "paid", "month"),
        "paid_quarter": ("date", "paid", "quarter"),
        "paid_year": ("date", "paid", "year"),
    }
    assert implied["day_month"].domain == (datetime.date(2026, 1, 1), datetime.date(2026, 2, 1))
    assert implied["day_quarter"].domain == implied["day_year"].domain == (datetime.date(2026, 1, 1),)
    assert implied["day_week"].domain == (datetime.date(2026, 1, 26), datetime.date(2026, 2, 2))
    assert [implied[name].domain for name in ("at_hour", "at_week", "paid_month")] == [None] * 3
    assert (implied["at_hour"].groups_per_user, implied["at_hour"].filter, implied["day_week"].filter) == (
        3,
        True,
        False,
    )
    assert [dataset.period("at", each) for each in ("hour", "day", "week")] == ["at_hour", "day", "day_week"]
    assert dataset.period("seen", "day") is None
    assert dataset.period("week", "month") is None


@pytest.mark.parametrize(
    ("dataset", "column", "groups"),
    [
        ("", "", (None, None, None, None)),
        ("groups_per_user = 5", "", (5, 5, 5, 5)),
        ("", ", groups_per_user = 1", (None, 1, None, 3)),
        ("groups_per_user = 2", ", groups_per_user = 1", (2, 1, 2, 2)),
        ("groups_per_user = 2147483648", ", groups_per_user = 2147483648", (2**31, 2**31, 2**31, 2**31)),
    ],
)
def test_groups_of_a_user_are_bounded_by_the_dataset_and_by_all_of_the_columns(load, dataset, column, groups):
    """A user with one age and at most three countries is in at most three groups of both columns."""
    text = f"""[datasets.d]
source = "t"
user = "u"
columns.age = {{ type = "integer", group = true{column} }}
columns.country = {{ type = "text", group = true, groups_per_user = 3 }}
columns.article = {{ type = "text", group = true }}
{dataset}"""
    if not dataset and not column:
        text = text.replace(", groups_per_user = 3", "")
    found = load(text).datasets["d"]
    assert tuple(map(found.groups_of, [(), ("age",), ("age", "article"), ("age", "country")])) == groups


def test_a_sum_has_the_bounds_as_they_are_written(load):
    """A bound of 0.25 is exactly a quarter, and whole bounds are valid for every scale."""
    dataset = load(FULL).datasets["engagements"]
    assert dataset.summed("minutes") == SumBounds(Fraction(-5), Fraction(60), 0, column="minutes")
    assert dataset.summed("price", 2) == SumBounds(Fraction(0), Fraction(1, 4), 2, column="price")
    tenth = load(FULL.replace("0.25", "0.1")).datasets["engagements"]
    assert tenth.summed("price", 1).high == Fraction(1, 10)


def test_the_bounds_of_a_sum_may_have_18_digits(load):
    """Bounds have at most 18 digits before the point and 18 after it."""
    text = FULL.replace("low = 0, high = 0.25", "low = -1e-18, high = 999999999999999999.999999999999999999")
    summed = load(text).datasets["engagements"].summed("price", 18)
    assert (summed.low, summed.high) == (Fraction(-1, 10**18), Fraction(10**36 - 1, 10**18))


def test_a_sum_whose_bounds_the_column_cannot_hold_is_refused(load):
    """A bound between two values of the column would be rounded by the engine."""
    with pytest.raises(
        InputError,
        match="the bounds for sums of column 'price' have more digits after the decimal point than the column: 1",
    ):
        load(FULL).datasets["engagements"].summed("price", 1)


@pytest.mark.parametrize("column", ["article", "score", "member_id", "nothing"])
def test_a_column_without_bounds_may_not_be_summed(load, column):
    """Columns without bounds and unknown columns are refused."""
    with pytest.raises(InputError, match=f"column '{column}' may not be summed"):
        load(FULL).datasets["engagements"].summed(column)


def test_dataset_names_are_case_insensitive(load):
    """Datasets are found in any case, and have the name of the catalog."""
    catalog = load(SMALL.replace("datasets.d", 'datasets."Sales.Reads"'))
    assert catalog.find("sales.READS") == ("Sales.Reads", catalog.datasets["Sales.Reads"])


def test_an_unknown_dataset_is_refused(load):
    """The message suggests the most similar name, and does not list all of them."""
    catalog = load(SMALL.replace("datasets.d", "datasets.engagements"))
    with pytest.raises(InputError, match=r"^there is no dataset 'engagement'; did you mean 'engagements'\?$"):
        catalog.find("engagement")
    with pytest.raises(InputError, match=r"^there is no dataset 'payroll'$"):
        catalog.find("payroll")


def test_a_catalog_is_immutable(load):
    """No setting and no table of a catalog can be set, added or removed."""
    catalog = load(FULL)
    dataset = catalog.datasets["engagements"]
    for part, setting in ((catalog, "datasets"), (dataset, "user"), (dataset.columns["article"], "group")):
        with pytest.raises(ValidationError):
            setattr(part, setting, None)
    for tables in (catalog.datasets, catalog.engines, load(SMALL).engines, dataset.columns):
        with pytest.raises(TypeError):
            tables["x"] = None
    assert catalog == load(FULL)


@pytest.mark.parametrize(
    ("written", "placed"),
    [
        ("reads.parquet", "{folder}/reads.parquet"),
        ("../reads/*.parquet", "{folder}/../reads/*.parquet"),
        ("/data/reads.parquet", "/data/reads.parquet"),
        ("duckdb:///reads.db?table=t", "duckdb:///{folder}/reads.db?table=t"),
        ("duckdb:///a%20b.db", "duckdb:///{folder}/a%20b.db"),
        ("duckdb:////data/reads.db", "duckdb:////data/reads.db"),
        ("s3://bucket/reads.parquet", "s3://bucket/reads.parquet"),
    ],
)
def test_paths_are_relative_to_the_folder_of_the_catalog(load, tmp_path, written, placed):
    """The working directory does not matter, and URLs and absolute paths are unchanged."""
    expected = placed.format(folder=tmp_path)
    assert load(SMALL.replace("t.csv", written)).datasets["d"].source == expected


def test_a_catalog_keeps_its_folder(load, tmp_path, monkeypatch):
    """A later change of the working directory does not change the paths of a catalog."""
    load(SMALL)
    monkeypatch.chdir(tmp_path)
    assert load_catalog("catalog.toml").datasets["d"].source == str(tmp_path / "t.csv")


def test_brackets_in_the_folder_of_the_catalog_are_no_pattern(tmp_path):
    """Only the path that the owner wrote is a pattern."""
    folder = tmp_path / "a[1]"
    folder.mkdir()
    (folder / "catalog.toml").write_text(SMALL.replace("t.csv", "*.parquet"))
    assert load_catalog(folder / "catalog.toml").datasets["d"].source == f"{tmp_path}/a[[]1]/*.parquet"
    (folder / "catalog.toml").write_text(SMALL)
    assert load_catalog(folder / "catalog.toml").datasets["d"].source == f"{tmp_path}/a[1]/t.csv"


def test_engine_urls_are_relative_to_the_folder_of_the_catalog(load, tmp_path):
    """The path in the URL of a DuckDB file begins at the folder of the catalog."""
    assert load('engines.w.url = "duckdb:///w.db"\n' + SMALL).engines["w"].url == f"duckdb:///{tmp_path}/w.db"


def test_the_model_is_light():
    """Planning from a catalog loads no engine and no columns."""
    script = "import sys, discreet.catalog.model, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"duckdb", "pyarrow", "numpy", "click", "discreet.engines"} & set(json.loads(done.stdout)) == set()
