"""Statements that Trino clients send: what they mean here, what they cost, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from discreet.service.answering.trino.dialect import TrinoSession, rewrite
from discreet.service.answering.trino.errors import TrinoError
from discreet.values import Cost
from tests.service.deployment import KNOWN
from tests.service.trino_client import error, last, post, rows, run

SESSION = TrinoSession("main", "ann@sales", datetime(2026, 11, 20, 12, 30, tzinfo=UTC))
NOW = "CAST('2026-11-20 12:30:00' AS TIMESTAMP)"
TOP = "SELECT article, COUNT(DISTINCT reader) AS n FROM reads GROUP BY article ORDER BY n DESC LIMIT 2"


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ("SELECT 1 FROM discreet.main.reads", 'SELECT 1 FROM "main"."reads"'),
        ('SELECT 1 FROM "discreet"."main"."reads"', 'SELECT 1 FROM "main"."reads"'),
        ("SELECT main.reads.day FROM reads", 'SELECT "reads"."day" FROM "reads"'),
        ("SELECT 1 FROM system.jdbc.tables", 'SELECT 1 FROM "information_schema"."jdbc_tables"'),
        ("SELECT 1 WHERE at >= 1 AND reads.at < 2", 'SELECT 1 WHERE "at" >= 1 AND "reads"."at" < 2'),
        ("SELECT anti, glob FROM asof returning", 'SELECT "anti", "glob" FROM "asof" AS "returning"'),
        ("SELECT date_trunc('DAY', CAST(day AS TIMESTAMP))", "SELECT DATE_TRUNC('DAY', \"day\")"),
        (
            "SELECT date_trunc('DAY', CAST(reads.\"at\" AS timestamp(3)))",
            'SELECT DATE_TRUNC(\'DAY\', "reads"."at")',
        ),
        (
            "SELECT x = DOUBLE '3.5' AND y = BIGINT '-7' AND z = VARCHAR 'a'",
            'SELECT "x" = 3.5 AND "y" = -7 AND "z" = \'a\'',
        ),
        ("SELECT BIGINT '3.7'", "SELECT CAST('3.7' AS BIGINT)"),
        ("SELECT CAST(x AS VARCHAR), CAST(x AS INTEGER)", 'SELECT CAST("x" AS VARCHAR), CAST("x" AS INT)'),
        ("SELECT 3.0E0 + 15e-1", "SELECT 3.0 + 1.5"),
        ("SELECT 1 FROM reads WHERE 1 = 1 AND x = now()", f'SELECT 1 FROM "reads" WHERE "x" = {NOW}'),
        ("SELECT 1 FROM reads WHERE 1 = 1 GROUP BY x", 'SELECT 1 FROM "reads" GROUP BY "x"'),
        ("SELECT 1 FROM reads WHERE 1 = 1 OR x = 1", 'SELECT 1 FROM "reads" WHERE 1 = 1 OR "x" = 1'),
        (
            "SELECT from_iso8601_timestamp('2026-01-01T02:00:00+02:00')",
            "SELECT CAST('2026-01-01 00:00:00' AS TIMESTAMP)",
        ),
        ("SELECT now() - current_date", f"SELECT {NOW} - CAST('2026-11-20' AS DATE)"),
        ("SELECT current_user || version()", "SELECT 'ann@sales' || '477-discreet'"),
        ("SELECT date_format(at, '%Y %i')", "SELECT STRFTIME(\"at\", '%Y %M')"),
        ("SELECT approx_percentile(day, 0.5)", 'SELECT APPROX_QUANTILE("day", 0.5)'),
        ("SELECT a FROM t OFFSET 1 FETCH FIRST 3 ROWS ONLY", 'SELECT "a" FROM "t" LIMIT 3 OFFSET 1'),
        ("SELECT 'FROM main.x WHERE 1 = 1', \"now()\"", "SELECT 'FROM main.x WHERE 1 = 1', \"now()\""),
    ],
)
def test_names_literals_and_functions_are_rewritten(sent, meant):
    """Never inside of literals and of quoted names."""
    assert rewrite(sent, SESSION, ()).sql == meant


@pytest.mark.parametrize(
    ("sent", "position"),
    [
        ("SELECT a..b FROM t", 9),
        ("SELECT 1; SELECT 2", None),
        ("SELECT 'a", None),
        ("SELECT 1 /* a", None),
        ("SELECT a FROM t FETCH FIRST 3 ROWS WITH TIES", None),
        (f"SELECT {'(' * 5_000}", None),
    ],
)
def test_what_cannot_be_rewritten_is_a_sentence(sent, position):
    """With the position of the error if it has one; nothing is left out."""
    with pytest.raises(TrinoError) as caught:
        rewrite(sent, SESSION, ())
    assert caught.value.position == position


def test_a_table_is_looked_for_in_the_schema_of_the_session():
    """Other names are left alone, such as those of WITH."""
    session = TrinoSession("web", "ann", SESSION.now)
    sent = "WITH x AS (SELECT 1) SELECT 1 FROM reads, other, x"
    meant = 'WITH "x" AS (SELECT 1) SELECT 1 FROM "web"."reads", "other", "x"'
    assert rewrite(sent, session, {"web.reads", "web.x"}).sql == meant


def test_words_keep_their_place():
    """The positions of errors are those of the text that was sent."""
    text = "SELECT approx_distinct(x) /* FROM */ FROM discreet.main.reads WHERE 1 = 1 AND now() > y"
    made = rewrite(text, SESSION, ())
    for written, sent in (("SELECT", "SELECT"), ("FROM", "FROM discreet"), ('"reads"', "reads"), ('"y"', "y")):
        assert made.place(made.sql.index(written)) == text.index(sent)
    assert made.place(made.sql.index("CAST")) is None


def test_metadata_shows_what_is_granted_and_nothing_else(service):
    """The dataset secret and the column hidden are granted to no account."""
    assert rows(service, "SHOW CATALOGS") == [["discreet"]]
    assert ["main"] in rows(service, "SHOW SCHEMAS FROM discreet")
    assert rows(service, "SHOW TABLES") == [["broken"], ["daily"], ["loose"], ["reads"]]
    assert rows(service, "show tables from main like 'r%'") == [["reads"]]
    shown = rows(service, "DESCRIBE discreet.main.reads")
    assert [row[0] for row in shown][:5] == ["reader", "article", "country", "minutes", "day"]
    assert [row[1] for row in shown[3:5]] == ["bigint", "date"]
    columns = rows(service, "SELECT column_name FROM system.jdbc.columns")
    assert ["hidden"] not in columns
    assert rows(service, "SELECT * FROM system.metadata.materialized_views") == []
    assert rows(service, "SELECT comment FROM system.metadata.table_comments WHERE table_name = 'reads'") == [
        ["Who read what."]
    ]
    assert service.balance().spent == Cost()


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("DESCRIBE secret", "TABLE_NOT_FOUND"),
        ("SELECT COUNT(DISTINCT reader) FROM secret", "TABLE_NOT_FOUND"),
        ('SELECT * FROM "reads$partitions"', "SYNTAX_ERROR"),
        ("SELECT * FROM reads", "SYNTAX_ERROR"),
        ("INSERT INTO reads VALUES (1)", "GENERIC_USER_ERROR"),
        ("CREATE TABLE x AS SELECT 1", "GENERIC_USER_ERROR"),
        ("CREATE TABLE saved.x (n bigint)", "SYNTAX_ERROR"),
        ("DELETE FROM saved.x", "NOT_SUPPORTED"),
        ("SHOW CREATE TABLE reads", "NOT_SUPPORTED"),
        ("EXPLAIN ANALYZE SELECT 1", "NOT_SUPPORTED"),
        ("", "SYNTAX_ERROR"),
        ("SELECT 1; SELECT 2", "SYNTAX_ERROR"),
        ("SET SESSION nothing = 1", "INVALID_SESSION_PROPERTY"),
        ("SET SESSION epsilon = 'much'", "INVALID_SESSION_PROPERTY"),
        ("SET SESSION query_max_run_time = 'long'", "INVALID_SESSION_PROPERTY"),
        ("EXECUTE nothing", "NOT_FOUND"),
        ("EXECUTE IMMEDIATE 'SELECT ?' USING 1, 2", "INVALID_PARAMETER_USAGE"),
        ("SELECT count(*) FROM information_schema.nothing", "SYNTAX_ERROR"),
        ("SELECT * FROM information_schema.tables, (SELECT COUNT(DISTINCT reader) FROM reads) x", "NOT_SUPPORTED"),
        ("SELECT nothing FROM information_schema.tables", "GENERIC_USER_ERROR"),
    ],
)
def test_what_is_refused_has_a_name_and_a_sentence_and_costs_nothing(service, sql, name):
    """Unknown and not granted are the same."""
    service.no_engine()
    found = error(service, sql)
    assert (found["errorName"], found["errorType"]) == (name, "USER_ERROR")
    assert found["message"]
    assert service.balance().spent == Cost()


def test_the_client_keeps_the_session(service):
    """SET SESSION, USE, PREPARE and transactions are answered with headers."""
    kept = {
        "SET SESSION epsilon = 0.5": ("X-Trino-Set-Session", "epsilon=0.5"),
        "SET SESSION discreet.delta = '1e-9'": ("X-Trino-Set-Session", "delta=1e-9"),
        "RESET SESSION epsilon": ("X-Trino-Clear-Session", "epsilon"),
        "USE discreet.web": ("X-Trino-Set-Schema", "web"),
        "PREPARE p FROM SELECT ?": ("X-Trino-Added-Prepare", "p=SELECT%20%3F"),
        "DEALLOCATE PREPARE p": ("X-Trino-Deallocated-Prepare", "p"),
        "COMMIT": ("X-Trino-Clear-Transaction-Id", "true"),
    }
    for sql, (header, text) in kept.items():
        reply = post(service, sql)
        assert reply.headers[header] == text, sql
        assert reply.json()["columns"], "trino-jdbc refuses a statement without columns"
    assert "X-Trino-Started-Transaction-Id" in post(service, "START TRANSACTION").headers


def test_session_properties_are_the_options_of_queries(service):
    """EXPLAIN shows their price, free of charge; a rehearsal is marked."""
    dear, cheap = (rows(service, f"EXPLAIN {KNOWN}", session={"epsilon": epsilon})[0] for epsilon in (1, 0.1))
    assert cheap[4] < dear[4]
    made_up = run(service, KNOWN, session={"rehearse": "true"})
    assert made_up["columns"][-1]["name"] == "made_up"
    assert ["epsilon", "0.5", "", "double"] in [
        row[:4] for row in rows(service, "SHOW SESSION", session={"epsilon": 0.5})
    ]
    assert rows(service, f"EXPLAIN (TYPE VALIDATE) {KNOWN}") == [[True]]
    assert "rho=" in rows(service, f"EXPLAIN (TYPE IO, FORMAT JSON) {KNOWN}")[0][0]
    assert service.balance().spent == Cost()


def test_intervals_are_columns_if_the_session_asks_for_them(service):
    """SET SESSION intervals = true adds the ends of each column that LOW and HIGH take."""
    sql = "SELECT country, 2 * COUNT(DISTINCT reader) AS n FROM discreet.main.reads GROUP BY country"
    found = run(service, sql, session={"intervals": "true"})
    assert [column["name"] for column in found["columns"]] == ["country", "n", "n_low", "n_high"]
    assert all(0 <= low < max(n, 1) < high for _, n, low, high in found["data"]), "ends are not below 0, as counts"


def test_the_budget_is_a_table(service):
    """The account and its parents, free of charge."""
    shown = "SELECT account, share_left, rho_left / rho_limit, delta_left / delta_limit FROM information_schema.budget"
    assert [row[:2] for row in rows(service, shown)] == [["ann@sales", 1], ["sales", 1]]
    rows(service, TOP)
    for _, share, *parts in rows(service, shown):
        assert 0 < share < 1
        assert share == pytest.approx(min(parts))


def test_prepared_statements_are_bound_and_described(service):
    """DESCRIBE OUTPUT is a rehearsal: it is free."""
    sql = "SELECT COUNT(DISTINCT reader) AS n FROM reads WHERE country = ? AND day >= ?"
    prepared = "p=" + sql.replace(" ", "+").replace("=", "%3D").replace(",", "%2C").replace("?", "%3F")
    sent = {"prepared_statement": prepared}
    assert rows(service, "DESCRIBE INPUT p", **sent) == [[0, "unknown"], [1, "unknown"]]
    assert rows(service, "DESCRIBE OUTPUT p", **sent)[0][:5] == ["n", "", "", "", "bigint"]
    assert service.balance().spent == Cost()
    bound = rows(service, "EXECUTE p USING 'IN', DATE '2026-01-01'", **sent)
    quoted = sql.replace("?", "'IN'", 1).replace("?", "DATE '2026-01-01'").replace("'", "''")
    spent = service.balance().spent
    assert rows(service, f"EXECUTE IMMEDIATE '{quoted}'") == bound
    assert service.balance().spent == spent


def test_the_same_query_over_json_and_over_trino_is_charged_once(service):
    """The protocol is another way to the same releases."""
    reply = service.send("POST", "/v1/sql", json={"sql": TOP})
    spent = service.balance().spent
    assert last(service, post(service, f"/* comment */ {TOP} -- end"))["data"] == reply.json()["rows"]
    assert service.balance().spent == spent
    for day in ("current_date - interval '7' day", "date_trunc('month', current_date)"):
        assert rows(service, f"SELECT COUNT(DISTINCT reader) AS n FROM reads WHERE day >= {day}")


def test_a_statement_without_its_time_is_cancelled(service):
    """query_max_run_time, which JDBC sets for setQueryTimeout."""
    assert error(service, KNOWN, session={"query_max_run_time": "0s"})["errorName"] == "USER_CANCELED"
    assert rows(service, KNOWN, session={"query_max_run_time": "5m"})
