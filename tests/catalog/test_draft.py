"""Drafts of catalogs for a table."""

from __future__ import annotations

import tomllib

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import discreet
from discreet.catalog.checks import check
from discreet.catalog.draft import draft_catalog
from discreet.catalog.loader import CatalogError, load_catalog, write_key, write_text
from discreet.engines import opening
from discreet.errors import InputError, UnknownColumn
from discreet.head_request import Kind
from tests.catalog.fakes import FakeEngine

ROWS = pa.table(
    {"u": ["secret"], "a": ["secret"], 'b.c "\n\x7f': [1], "price": [0.5], "nested": [[1]], "mobile": [True]}
)


def allowed(text: str) -> str:
    """Return a draft with all its settings enabled and no comments."""
    return "\n".join(
        line[1:] if line.startswith("#") and not line.startswith("# ") else line for line in text.split("\n")
    )


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Return a function that saves text in the working directory and returns the path."""
    monkeypatch.chdir(tmp_path)

    def save(text):
        (tmp_path / "catalog.toml").write_text(text, "utf-8")
        return tmp_path / "catalog.toml"

    return save


def _parquet(folder):
    pq.write_table(ROWS, folder / "2026 reads.parquet")
    return "2026 reads.parquet", None


def _csv(folder):
    (folder / "reads.csv").write_text("u,a\nsecret,secret\n")
    return "reads.csv", None


def _database(folder):
    with duckdb.connect(str(folder / "w.db")) as connection:
        connection.execute("CREATE TABLE reads (u INTEGER, a DATE); CREATE TABLE others (x INTEGER)")
    return "w.db", "reads"


@pytest.mark.parametrize("source", [_parquet, _csv, _database])
def test_a_draft_allows_nothing(tmp_path, saved, source):
    """A draft has no queryable column, and no other mistake."""
    where, table = source(tmp_path)
    path = saved(draft_catalog(where, "u", table=table, environment={}))
    with pytest.raises(CatalogError) as caught:
        load_catalog(path)
    assert [mistake.mistake for mistake in caught.value.mistakes] == [
        "'columns' is missing: the permitted uses of each column; a draft has them behind #, for you to choose"
    ]


@pytest.mark.parametrize("source", [_parquet, _csv, _database])
def test_a_draft_fits_its_table_once_everything_is_allowed(tmp_path, saved, source):
    """Every setting of a draft is valid for any column names, and a draft holds no value of the table."""
    where, table = source(tmp_path)
    text = draft_catalog(where, "u", table=table, environment={})
    findings = check(load_catalog(saved(allowed(text))), environment={})
    assert [str(finding) for finding in findings if finding.mistake] == []
    assert len(findings) >= 3
    assert "secret" not in text


def test_a_draft_lists_the_permissions_of_each_column(tmp_path, saved):
    """Floating-point columns can only be filtered, other numbers summed, and lists are left out."""
    where, _ = _parquet(tmp_path)
    text = draft_catalog(where, "u", environment={})
    columns = load_catalog(saved(allowed(text))).datasets["data_2026_reads"].columns
    uses = {name: (c.type, c.group, c.filter, c.sum is not None) for name, c in columns.items()}
    assert uses == {
        "a": ("text", True, True, False),
        'b.c "\n\x7f': ("integer", True, True, True),
        "price": ("float", False, True, False),
        "mobile": ("boolean", True, True, False),
    }
    assert 'source = "2026 reads.parquet"  # relative to the folder of this file' in text
    assert '# "nested" has a type that cannot be queried; cast it in a view.' in text


def test_a_draft_offers_no_unsupported_sum(monkeypatch, saved):
    """A number with too many digits can be grouped and filtered; a comment says why it cannot be summed."""
    engine = FakeEngine({"u": Kind.TEXT, "short": Kind.DECIMAL, "long": Kind.DECIMAL})
    monkeypatch.setattr(opening, "open_engine", lambda *_, **__: engine)
    text = draft_catalog("t.parquet", "u", environment={})
    assert "# no sum: column 'long' cannot be summed: it is too long" in text
    columns = load_catalog(saved(allowed(text))).datasets["t"].columns
    assert [(name, column.sum is not None) for name, column in columns.items()] == [("short", True), ("long", False)]


def test_a_draft_for_an_engine_names_the_engine(monkeypatch, saved):
    """The draft has the URL, the variable of the password and the table, and never the password itself."""
    asked = []
    engine = FakeEngine({"u": Kind.TEXT, "a": Kind.TEXT})
    monkeypatch.setattr(opening, "open_engine", lambda *where, **how: asked.append((where, how)) or engine)
    url, variable = "postgresql://reader@db/warehouse", "SECRET"
    text = draft_catalog(url, "u", table="public.reads", password_env=variable, environment={variable: "hunter2"})
    assert asked == [((url,), {"table": "public.reads", "password": "hunter2"})]
    assert engine.closed
    assert "hunter2" not in text
    catalog = load_catalog(saved(allowed(text)))
    assert (catalog.engines["warehouse"].url, catalog.engines["warehouse"].password_env) == (url, variable)
    assert (catalog.datasets["reads"].engine, catalog.datasets["reads"].table) == ("warehouse", "public.reads")


@pytest.mark.parametrize(
    ("source", "url", "table"),
    [
        ("postgresql://reader@db/warehouse?table=web.reads", "postgresql://reader@db/warehouse", "web.reads"),
        ("pinot://b:8099?table=reads&controller=http://c:9000", "pinot://b:8099?controller=http://c:9000", "reads"),
        ("trino://me@host:8080/hive/web?https=true&table=a%20b", "trino://me@host:8080/hive/web?https=true", "a b"),
        ("spark://local?path=/data/*.parquet", None, None),
        ("delta:///data/reads", None, None),
    ],
)
def test_a_draft_takes_every_source_that_scan_takes(monkeypatch, saved, source, url, table):
    """A URL with a table becomes an engine and a table; a URL of the whole source becomes a source."""
    opened = []
    engine = FakeEngine({"u": Kind.TEXT, "a": Kind.TEXT})
    monkeypatch.setattr(opening, "open_engine", lambda given, **_: opened.append(given) or engine)
    catalog = load_catalog(saved(allowed(draft_catalog(source, "u", environment={}))))
    (dataset,) = catalog.datasets.values()
    assert opened == [source]
    assert ({name: settings.url for name, settings in catalog.engines.items()}.get("warehouse"), dataset.table) == (
        url,
        table,
    )
    assert dataset.source == (source if url is None else None)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("postgresql://reader:hunter2@db/warehouse", "without a password"),
        ("nowhere.parquet", "there is no file"),
    ],
)
def test_a_source_without_a_table_is_refused(saved, source, expected):
    """Nothing is written, and the message does not repeat the password."""
    assert saved("")
    with pytest.raises(InputError, match=expected) as caught:
        draft_catalog(source, "u", environment={})
    assert "hunter2" not in str(caught.value)


def test_an_unknown_user_column_is_refused(tmp_path, saved):
    """The message suggests the most similar column."""
    where, _ = _csv(tmp_path)
    assert saved("")
    with pytest.raises(UnknownColumn, match="there is no user column 'U'; did you mean 'u'"):
        draft_catalog(where, "U", environment={})
    pq.write_table(pa.table({"u": [1.5], "a": ["x"]}), tmp_path / "floats.parquet")
    with pytest.raises(InputError, match="user column 'u' holds floating-point numbers"):
        draft_catalog(str(tmp_path / "floats.parquet"), "u", environment={})


@pytest.mark.parametrize("text", ["a", "a b", 'a"b', "a\\b", "a\nb\t\r", "\x00\x1f\x7f\x80", "é\U0001f41d", ""])
def test_names_and_text_are_read_back_unchanged(text):
    """Names as keys and as values are escaped, each on one line."""
    written = f"{write_key('t', text)} = {write_text(text)}"
    assert "\n" not in written
    assert tomllib.loads(written) == {"t": {text: text}}


def _sales(folder):
    """Write a DuckDB file with a timestamp, a date, and amounts of three types."""
    with duckdb.connect(str(folder / "sales.db")) as database:
        database.execute(
            "CREATE TABLE sales AS SELECT i % 3000 AS u, ['DE', 'FR'][1 + i % 2] AS country, (i % 90)::DECIMAL(9, 2) "
            "AS price, (i % 90)::DOUBLE AS weight, (i % 50)::INTEGER AS age, "
            "TIMESTAMP '2026-01-01' + to_hours(i % 49) AS sold_at, DATE '2026-01-01' + (i % 30)::INTEGER AS due, "
            "i AS due_week FROM range(30000) AS t(i)"
        )
    return "sales.db"


CHARTS = (
    "SELECT date_trunc('day', sold_at) AS t, COUNT(DISTINCT u) FROM sales GROUP BY 1 ORDER BY 1",
    "SELECT date_trunc('hour', sold_at) AS t, COUNT(DISTINCT u) FROM sales WHERE sold_at >= '2026-01-02' GROUP BY 1",
    "SELECT date_trunc('week', sold_at) AS t, SUM(price) FROM sales GROUP BY 1",
    "SELECT date_trunc('month', due) AS t, SUM(price) FROM sales GROUP BY 1",
    "SELECT date_trunc('week', due) AS t, AVG(price) FROM sales GROUP BY 1",
    "SELECT country, SUM(price) AS s FROM sales GROUP BY country ORDER BY s DESC LIMIT 100",
    "SELECT country, SUM(age) FROM sales GROUP BY country",
    "SELECT country, COUNT(*) FROM sales GROUP BY country",
)
"""Statements as charts of Superset send them."""


def test_charts_work_once_a_draft_is_allowed(saved, tmp_path):
    """By day, week, month and hour of a timestamp or date, and sums by country; names that exist are not taken."""
    text = draft_catalog(_sales(tmp_path), "u", environment={})
    assert "[datasets.sales.columns.due_week_]" in text
    lines = text.splitlines()
    text = "\n".join(
        lines[: lines.index("")] + [line for line in lines if not line.startswith("#groups_per_user = 50")]
    )
    with discreet.connect(saved(allowed(text))) as warehouse:
        for chart in CHARTS:
            assert len(warehouse.sql(chart, epsilon=20).table) > 0, chart
        days = warehouse.sql(CHARTS[0]).table.column(0).to_pylist()
    assert len(days) in {365, 366}, "days without rows are in a chart, too"


NEEDED = ("type", "group =", "filter", "sum", "of", "each")


@pytest.mark.parametrize(
    "lines", [NEEDED, (*NEEDED, "groups_per_user"), (*NEEDED, "domain"), ("type", "filter", "group =")]
)
def test_a_check_notes_what_will_be_refused(saved, tmp_path, lines):
    """The note of a column names a query exactly if planning refuses it, whatever of a draft is allowed."""
    text = draft_catalog(_sales(tmp_path), "u", environment={})
    kept = [
        line[1:] if line.startswith("#[") or line.removeprefix("#").startswith(lines) else line
        for line in text.splitlines()
    ]
    if "of" not in lines:  # without the computed columns
        kept = "\n".join(kept).split("\n\n")
        kept = [block for block in kept if "#each" not in block]
        text = "\n\n".join(kept)
    else:
        text = "\n".join(kept)
    catalog = load_catalog(saved(text))
    notes = {finding.place.rpartition(".")[2]: finding.note or "" for finding in check(catalog, environment={})}
    noted = {
        "SELECT country, COUNT(*) FROM sales GROUP BY 1": "COUNT(*)" in notes["sales"],
        "SELECT country, SUM(age) FROM sales GROUP BY 1": "SUM(age)" in notes["age"]
        and (" by country" in notes["age"] or "SUM(age) and" in notes["age"]),
        "SELECT country, SUM(weight) FROM sales GROUP BY 1": "SUM(weight)" in notes["weight"],
        "SELECT date_trunc('day', sold_at), SUM(age) FROM sales GROUP BY 1": "'day'" in notes["sold_at"]
        or "sold_at_day" in notes["age"]
        or "SUM(age) and" in notes["age"],
        "SELECT MEDIAN(age) FROM sales": "MEDIAN(age)" in notes["age"],
    }
    for column in ("sold_at", "due"):
        for unit in ("hour", "day", "week", "month"):
            statement = f"SELECT date_trunc('{unit}', {column}), COUNT(DISTINCT u) FROM sales GROUP BY 1"
            if (column, unit) != ("due", "hour"):  # a date has no hours
                noted[statement] = f"'{unit}'" in notes[column]
    refused = {}
    with discreet.connect(catalog) as warehouse:
        for statement in noted:
            try:
                warehouse.sql(f"EXPLAIN {statement}")
                refused[statement] = False
            except InputError:
                refused[statement] = True
    assert noted == refused
