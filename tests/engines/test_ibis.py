"""Tables of Ibis: those in this process are read by their backend, those at a server are refused with its URL."""

from __future__ import annotations

import importlib
import re
from types import SimpleNamespace

import polars as pl
import pytest

import discreet
from discreet.engines.sources import as_arrow
from discreet.errors import InputError

ibis = pytest.importorskip("ibis", reason="a dependency of the development environment")
operations = pytest.importorskip("ibis.expr.operations")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # by Ibis itself

ROWS = {"reader": list(range(900)), "article": [f"article {n % 3}" for n in range(900)]}


@pytest.fixture
def tables():
    """Return tables with the same rows, by what holds them."""
    database = ibis.duckdb.connect()
    database.raw_sql(
        "CREATE TABLE reads AS SELECT n AS reader, 'article ' || (n % 3) AS article FROM range(900) AS a(n)"
    )
    frames = ibis.polars.connect({"reads": pl.DataFrame(ROWS)})
    yield {"duckdb": database.table("reads"), "polars": frames.table("reads"), "memory": ibis.memtable(ROWS)}
    database.disconnect()


def test_tables_and_expressions_in_this_process_are_counted(tables):
    """A filter of Ibis is computed by its backend before."""
    for name, table in tables.items():
        assert as_arrow(table)[0].num_rows == 900, name
        filtered = discreet.scan(table.filter(table.article != "article 2"), user="reader")
        counts = {item["article"]: item["count"] for item in filtered.release("article", epsilon=8.0, delta=1e-8)}
        assert set(counts) == {"article 0", "article 1"}, name
        assert all(280 < count < 320 for count in counts.values()), name


@pytest.mark.parametrize(
    ("backend", "url"), [("postgres", "postgresql://"), ("trino", "trino://"), ("pyspark", "sc://")]
)
def test_a_table_at_a_server_of_ours_is_refused_with_the_url_to_scan(backend, url):
    """The engine counts where the rows are, which a copy in this process would not; the backend needs no connection."""
    if backend == "pyspark":
        pytest.importorskip("pyspark")  # which only the servers' suite installs
    source = importlib.import_module(f"ibis.backends.{backend}").Backend()
    schema = ibis.schema({"reader": "int64", "article": "string"})
    table = operations.DatabaseTable("reads", schema, source=source).to_expr()
    with pytest.raises(InputError, match=f"is at a server: scan that, by its URL {url}"):
        discreet.scan(table, user="reader")


@pytest.mark.parametrize(
    ("backend", "url"),
    [
        ("clickhouse", "clickhouse://user@host:8443/database?table=name"),
        ("pyspark", "sc://host:15002?table=name, or scan the DataFrame of Spark"),
    ],
)
def test_a_table_at_a_server_whose_library_is_not_installed_here_is_refused_alike(backend, url):
    """By the name of the backend, which is all that is read of it."""
    table = type("Table", (), {"__module__": "ibis.expr", "get_backend": lambda _: SimpleNamespace(name=backend)})()
    with pytest.raises(InputError, match=rf"^the ibis Table is at a server: scan that, by its URL {re.escape(url)}$"):
        as_arrow(table)


def test_a_table_without_a_backend_is_refused_in_one_sentence():
    """Without what the library says, which may hold data."""
    table = ibis.table({"reader": "int64", "article": "string"}, name="reads")
    with pytest.raises(InputError, match=r"^the Ibis table cannot be read as a table \(IbisError\); read it without"):
        discreet.scan(table, user="reader")
