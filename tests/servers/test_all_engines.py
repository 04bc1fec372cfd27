"""One table in six engines: the same heads to the byte, and the same noise for one key."""

from __future__ import annotations

import contextlib

import duckdb
import pyarrow as pa
import pytest

import discreet
from discreet.catalog.checks import check
from discreet.catalog.draft import draft_catalog
from discreet.catalog.loader import load_catalog
from discreet.engines.opening import open_engine
from discreet.head_request import HeadRequest
from discreet.testing.engines import check_pair_queries, reference_head, reference_pairs, rows_of
from tests.servers import clickhouse, pinot, postgres, spark, trino
from tests.servers.questions import COMMON, KINDS, questions
from tests.servers.table import engagements
from tests.servers.urls import url_of, without_password

SERVERS = {"postgres": postgres, "spark": spark, "trino": trino, "pinot": pinot, "clickhouse": clickhouse}
ROWS = {"engagements": 200_000, "large": 2_000_000}
KEY = b"k" * 32
SQL = (
    "SELECT article, COUNT(DISTINCT member_id) AS readers FROM engagements WHERE country IN ('IN', 'Ö') "
    "AND (title IN ('CEO', 'O''Neil') OR seniority >= 5) GROUP BY article ORDER BY readers DESC LIMIT 10"
)
CATALOG = """
[engines.here]
url = "{url}"
timeout_seconds = 900
{password}
[datasets.engagements]
engine = "here"
table = "engagements"
user = "member_id"
data_version = "1"
columns.article = {{ type = "text", group = true }}
columns.country = {{ type = "text", filter = true, group = true, domain = ["IN", "US", "nowhere"] }}
columns.title = {{ type = "text", filter = true }}
columns.seniority = {{ type = "integer", filter = true, group = true }}
"""


@pytest.fixture(scope="session")
def url(server, tmp_path_factory):
    """Return a function from an engine's name to its URL that loads the shared table once; Pinot's has no dates."""
    found = {}
    path = tmp_path_factory.mktemp("shared") / "shared.db"

    def of(name, table="engagements"):
        if (name, table) not in found:
            held = engagements(ROWS[table])
            if name == "duckdb":
                with duckdb.connect(str(path)) as connection:
                    connection.execute(f"CREATE TABLE {table} AS FROM held")
                started = f"duckdb:///{path}"
            else:
                started = server(name)
                SERVERS[name].load(started, held.select(["member_id", *COMMON]) if name == "pinot" else held, table)
            found[name, table] = url_of(started)
        return found[name, table]

    return of


@pytest.fixture(scope="session")
def heads(url):
    """Return a function that returns an engine's heads as bytes, cached by engine, table and number of requests."""
    known = {}

    def of(name, requests, table="engagements"):
        asked = (name, table, len(requests))
        if asked not in known:
            with contextlib.closing(open_engine(url(name, table), table=table)) as engine:
                known[asked] = [as_bytes(engine.head(request)) for request in requests]
        return known[asked]

    return of


def as_bytes(head):
    """Serialize a head in Arrow's format, with rebuilt columns, because padding bits of boolean arrays may differ."""
    table = head.labels.append_column("count", pa.array(head.counts))
    table = pa.table([pa.array(column.to_pylist(), column.type) for column in table.columns], table.column_names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "number"), [("postgres", 200), ("spark", 60), ("trino", 60), ("pinot", 200), ("clickhouse", 200)]
)
def test_engines_have_equal_heads(heads, name, number):
    """Every head equals DuckDB's, with Unicode, missing values, duplicates, ties at the limit and all filters."""
    asked = questions(number)
    assert heads(name, asked) == heads("duckdb", asked)


@pytest.mark.parametrize(("name", "number"), [("postgres", 40), ("spark", 20), ("trino", 20), ("clickhouse", 40)])
def test_dates_decimals_and_booleans_have_equal_heads(heads, name, number):
    """Dates, decimals and booleans are equal as labels and in filters; Pinot has no such types."""
    asked = questions(number, tuple(column for column in KINDS if column != "member_id"), seed=2)
    assert heads(name, asked) == heads("duckdb", asked)


@pytest.mark.parametrize("name", SERVERS)
def test_two_million_rows_have_equal_heads(heads, name):
    """Five queries on ten times the rows have equal heads: nothing is truncated or sampled."""
    asked = questions(5, seed=4)
    assert heads(name, asked, "large") == heads("duckdb", asked, "large")


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("name", ["postgres", "spark", "trino", "clickhouse"])
def test_users_with_too_many_items_are_left_out_with_their_items(server, monkeypatch, name, hashed):
    """The bound on a user's number of items is enforced in every query, for one item more and not for as many.

    Also where all labels have one hash, and where Trino takes few chosen items in a statement.
    """
    if not hashed:
        monkeypatch.setattr("discreet.engines.postgres._HASH", "CAST(0 AS bigint)")
        monkeypatch.setattr("discreet.engines.spark.SparkPairs._hash", lambda _: "CAST(0 AS BIGINT)")
        monkeypatch.setattr("discreet.engines.trino.TrinoPairs._hash", lambda _: "CAST(0 AS BIGINT)")
        monkeypatch.setattr("discreet.engines.trino._CHOSEN_AT_ONCE", 2)
    monkeypatch.setattr("discreet.engines.pairs.MAX_BASKET", 3)
    request = HeadRequest("who", ("item",), 9)
    few = [(1, "a"), (1, "b"), (1, "c"), (1, "c"), (3, "c")]
    for users in ([], [2], [2, 4]):
        rows = [*few, *((user, label) for user in users for label in "abcdefgh"[: 2 * user])]
        table = pa.table({"who": [user for user, _ in rows], "item": [item for _, item in rows]})
        loaded = f"baskets_{len(users)}_{int(hashed)}"
        SERVERS[name].load(server(name), table, loaded)
        scratch = "?scratch=scratch.default" if name == "trino" else ""
        engine = open_engine(server(name) + scratch, table=loaded)
        with contextlib.closing(engine), engine.pairs(request) as pairs:
            check_pair_queries(pairs, reference_pairs(table, request, largest_basket=3))


def test_duckdb_has_the_heads_of_plain_python(url):
    """DuckDB, the reference for the other engines, equals a count in plain Python."""
    table = engagements(ROWS["engagements"], dates=False)
    with contextlib.closing(open_engine(url("duckdb"), table="engagements")) as engine:
        for request in questions(5, seed=3):
            assert rows_of(engine, request) == reference_head(table, request)


def test_a_statement_has_one_noisy_answer_in_all_engines(url, tmp_path, monkeypatch):
    """With one catalog and key, six engines return the same labels, counts and noise.

    Pinot has no pair queries, so its default is another mechanism where the others use two rounds.
    """
    answers, by_default = {}, {}
    for name in ("duckdb", *SERVERS):
        path = tmp_path / f"{name}.toml"
        shown, password = without_password(url(name))
        monkeypatch.setenv("PASSWORD", password or "none")
        path.write_text(CATALOG.format(url=shown, password='password_env = "PASSWORD"' if password else ""))
        with discreet.connect(path) as warehouse:
            answers[name] = [
                warehouse.query(statement, epsilon=2.0, key=KEY, mechanism=mechanism).to_csv()
                for statement, mechanism in (
                    (SQL, "gumbel"),
                    (SQL.replace(" LIMIT 10", ""), "head"),
                    ("SELECT COUNT(DISTINCT member_id) FROM engagements WHERE NOT country = 'IN'", None),
                    ("SELECT country, COUNT(DISTINCT member_id) FROM engagements GROUP BY country", None),
                    (
                        "SELECT seniority, article, COUNT(DISTINCT member_id) FROM engagements GROUP BY 1, 2 LIMIT 20",
                        "gumbel",
                    ),
                )
            ]
            by_default[name] = [
                warehouse.query(statement, epsilon=2.0, key=KEY) for statement in (SQL, SQL.replace(" LIMIT 10", ""))
            ]
    two_rounds = [answers_ for answers_ in by_default.values() if answers_[0].mechanism == "auto"]
    assert len(two_rounds) >= 3
    for releases in zip(*two_rounds, strict=True):
        assert len({release.to_csv() for release in releases}) == 1
    assert all(answer == answers["duckdb"] for answer in answers.values())
    assert len(answers["duckdb"][0].splitlines()) == 11


@pytest.mark.parametrize("name", SERVERS)
def test_a_draft_of_a_catalog_fits_once_everything_is_allowed(url, tmp_path, name):
    """A catalog drafted from a `scan` URL has no mistake for the engine when all its settings are enabled."""
    shown, password = without_password(url(name))
    source, environment = f"{shown}{'&' if '?' in shown else '?'}table=engagements", {"PASSWORD": password or ""}
    variable = "PASSWORD" if password else None
    draft = draft_catalog(source, "member_id", environment=environment, password_env=variable)
    lines = (line[1:] if line.startswith("#") and not line.startswith("# ") else line for line in draft.split("\n"))
    (tmp_path / "catalog.toml").write_text("\n".join(lines))
    findings = check(load_catalog(tmp_path / "catalog.toml"), environment=environment)
    assert [str(finding) for finding in findings if finding.mistake] == []
    assert len(findings) > 3
