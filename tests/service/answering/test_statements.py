"""POST /v1/sql: whole statements, their cost, and free refusals."""

from __future__ import annotations

import contextlib
import io
import json

import duckdb
import pyarrow as pa
import pytest

from discreet.service.problems import StatementFailed, StatementsUnavailable
from discreet.values import Cost
from discreet.wire.queries import StatementAnswer
from tests.service.deployment import CATALOG, TOP, shared_pool
from tests.service.trino_client import page, post

SHARES = (
    "WITH q AS (SELECT article, COUNT(DISTINCT reader) AS n FROM reads GROUP BY article) "
    "SELECT article, n, n * 100.0 / SUM(n) OVER () AS share FROM q ORDER BY article"
)


def sent(service, sql, who="ann", headers=None, **price):
    """POST /v1/sql."""
    return service.send("POST", "/v1/sql", who, json={"sql": sql, **price}, headers=headers)


def test_a_statement_is_computed_from_the_answers_of_its_queries(service):
    """The same query of /v1/query is then a replay: splitting a statement does not change its queries."""
    answer = sent(service, SHARES)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert [column["name"] for column in found["columns"]] == ["article", "n", "share"]
    assert [column["type"] for column in found["columns"]][:2] == ["VARCHAR", "BIGINT"]
    (query,) = found["queries"]
    assert (query["dataset"], query["status"]) == ("reads", "released")
    assert query["charged"]["rho"] > 0
    alone = service.ask(query["sql"])
    assert alone.headers["discreet-replayed"] == "?1"
    counts = {item["article"]: item["count"] for item in alone.json()["items"]}
    assert {article: n for article, n, _ in found["rows"]} == counts
    assert sum(share for *_, share in found["rows"]) == pytest.approx(100)


def test_the_same_statement_again_is_free(service):
    """I7: all queries are replays, and the rest of a statement is free."""
    first, spent = sent(service, SHARES), service.balance().spent
    service.no_engine()
    again = sent(service, SHARES)
    assert again.json()["rows"] == first.json()["rows"]
    assert [query["status"] for query in again.json()["queries"]] == ["replayed"]
    other = sent(
        service, "SELECT MAX(n) FROM (SELECT article, COUNT(DISTINCT reader) AS n FROM reads GROUP BY article)"
    )
    assert other.json()["rows"] == [[max(n for _, n, _ in first.json()["rows"])]]
    assert service.balance().spent == spent


def test_intervals_are_columns_that_cost_nothing(service):
    """They are those of LOW and HIGH, in rehearsals too."""
    asked = "SELECT article, COUNT(DISTINCT reader) AS n FROM reads GROUP BY article ORDER BY article"
    ends = "LOW(COUNT(DISTINCT reader)) AS n_low, HIGH(COUNT(DISTINCT reader)) AS n_high"
    written = sent(service, asked.replace(" FROM", f", {ends} FROM")).json()
    spent = service.balance().spent
    added = sent(service, asked, intervals=True).json()
    assert [column["name"] for column in added["columns"]] == ["article", "n", "n_low", "n_high"]
    assert added["rows"] == written["rows"]
    assert all(low <= n <= high for _, n, low, high in added["rows"])
    rehearsed = sent(service, asked, intervals=True, rehearse=True).json()
    assert [column["name"] for column in rehearsed["columns"]] == ["article", "n", "n_low", "n_high", "made_up"]
    assert service.balance().spent == spent


def test_an_estimate_with_the_key_of_an_answer_is_free(service):
    """Over data without a version only the same request with the same key is, and the estimate says so."""
    asked = {"sql": "SELECT COUNT(DISTINCT reader) FROM loose", "epsilon": 0.5}

    def paid(key, **more):
        reply = service.send("POST", "/v1/sql/estimate", key=key, json={**asked, **more}).json()
        (query,) = reply["queries"]
        assert query["estimate"]["data_version"] is None
        assert (reply["worst_cost"]["rho"] == 0) == query["estimate"]["paid"]
        return query["estimate"]["paid"]

    assert not paid("once")
    assert service.send("POST", "/v1/sql", key="once", json=asked).status_code == 200
    assert paid("once")
    assert [paid(None), paid("other"), paid("once", epsilon=0.25)] == [False, False, False]


def test_a_limit_is_k_only_behind_an_order_by_the_aggregate(service):
    """A tool's row limit truncates the result; it never changes the query."""
    cut = sent(service, "SELECT article, COUNT(DISTINCT reader) AS n FROM reads GROUP BY article LIMIT 1").json()
    assert "LIMIT" not in cut["queries"][0]["sql"]
    assert len(cut["rows"]) == 1
    top = sent(service, TOP.replace(" LIMIT", " ORDER BY COUNT(DISTINCT reader) DESC LIMIT")).json()
    assert top["queries"][0]["sql"].endswith("LIMIT 5")
    assert service.ask().headers["discreet-replayed"] == "?1"
    wide = sent(
        service, "SELECT article, COUNT(DISTINCT reader) n FROM reads GROUP BY article ORDER BY n DESC LIMIT 999"
    )
    assert "LIMIT" not in wide.json()["queries"][0]["sql"]  # above max_k


def test_a_limit_of_all_labels_or_more_is_no_k(service):
    """Another row limit of a chart over a known domain is a replay."""
    counts = "SELECT country, COUNT(DISTINCT reader) AS n FROM reads GROUP BY country"
    first = sent(service, f"{counts} ORDER BY n DESC", epsilon=4).json()
    for limit in (3, 40, 5000):
        again = sent(service, f"{counts} ORDER BY n DESC LIMIT {limit}", epsilon=4).json()
        assert (again["queries"][0]["status"], again["rows"]) == ("replayed", first["rows"])
    assert sent(service, f"{counts} ORDER BY n DESC LIMIT 2", epsilon=4).json()["queries"][0]["sql"].endswith("LIMIT 2")


def test_labels_of_known_domains_and_the_schema_are_free(service):
    """Public labels and the schema contain no data."""
    found = sent(service, "SELECT DISTINCT country FROM reads ORDER BY country DESC LIMIT 2").json()
    assert found["rows"] == [["XX"], ["US"]]
    assert [query["status"] for query in found["queries"]] == ["public"]
    columns = sent(
        service,
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'reads' "
        "ORDER BY ordinal_position",
    )
    assert columns.json()["rows"] == [
        ["reader", "VARCHAR"],
        ["article", "VARCHAR"],
        ["country", "VARCHAR"],
        ["minutes", "BIGINT"],
        ["day", "DATE"],
        ["day_week", "DATE"],
        ["day_month", "DATE"],
        ["day_quarter", "DATE"],
        ["day_year", "DATE"],
    ]
    tables = sent(service, "SELECT table_name FROM information_schema.tables ORDER BY 1").json()["rows"]
    assert tables == [["broken"], ["daily"], ["loose"], ["reads"]]
    assert sent(service, "SELECT 1").json()["rows"] == [[1]]
    assert service.balance().spent == Cost()


def test_a_chart_over_time_is_a_query_of_the_catalogs_periods(service):
    """As Superset writes it: date_trunc is a column, declared or implied, and its row limit no k."""
    chart = (
        "SELECT DATE_TRUNC('day', day) AS __timestamp, COUNT(DISTINCT reader) AS \"COUNT(DISTINCT reader)\" "
        "FROM main.reads WHERE DATE_TRUNC('day', day) >= CAST('2024-10-01' AS DATE) GROUP BY DATE_TRUNC('day', day) "
        'ORDER BY "COUNT(DISTINCT reader)" DESC LIMIT 10000 -- row limit'
    )
    found = sent(service, chart, epsilon=4).json()
    assert [column["type"] for column in found["columns"]] == ["DATE", "BIGINT"]
    (query,) = found["queries"]
    assert (query["dataset"], query["sql"].count("LIMIT")) == ("reads", 0)
    assert [day for day, _ in found["rows"]] == ["2024-10-07", "2024-10-06", "2024-10-05"]
    months = sent(service, chart.replace("'day'", "'month'"), epsilon=4).json()
    assert [day for day, _ in months["rows"]] == ["2024-10-01"]
    refused = sent(service, chart.replace("'day'", "'hour'"))
    assert refused.status_code == 400
    assert "no column with the hour of 'day'" in refused.json()["detail"]


def test_date_trunc_is_the_column_that_the_catalog_derives(services):
    """Weeks of days: in the select list, in GROUP BY and in WHERE."""
    week = 'columns.week = { type = "date", of = "day", each = "week", group = true, filter = true }'
    service = services(catalog=CATALOG.replace("columns.hidden =", f"{week}\ncolumns.hidden =", 1), granted=None)
    sql = (
        "SELECT date_trunc('week', day) AS w, COUNT(DISTINCT reader) AS n FROM reads "
        "WHERE date_trunc('week', day) >= DATE '2024-09-30' GROUP BY w ORDER BY w"
    )
    found = sent(service, sql, epsilon=8).json()
    assert [day for day, _ in found["rows"]] == ["2024-09-30", "2024-10-07"]
    assert [n for _, n in found["rows"]] == pytest.approx([600, 900], abs=60)
    assert "week" in found["queries"][0]["sql"]
    assert "date_trunc" not in found["queries"][0]["sql"]


@pytest.mark.parametrize(
    ("granted", "columns"),
    [
        ("day", ["day", "day_week", "day_month", "day_quarter", "day_year"]),
        ("article", ["article"]),
        ("day_week", ["day_week"]),
    ],
)
def test_the_periods_of_a_granted_column_are_granted_with_it(services, granted, columns):
    """A grant of some columns covers their periods, and no period of another one."""
    service = services(granted={"reads": [granted]})
    assert [each["name"] for each in service.get("/v1/datasets/reads").json()["columns"]] == columns
    sql = "SELECT day_week, COUNT(DISTINCT reader) AS n FROM reads GROUP BY day_week"
    found = sent(service, sql, epsilon=8)
    assert found.status_code == (200 if "day_week" in columns else 404), found.text


def test_a_quantile_is_a_replay_of_the_histogram_of_its_column(services):
    """It has the price of the histogram; a mechanism that leaves labels out is refused."""
    domain = "group = true, domain = { first = 0, last = 59 }"
    minutes = f'columns.tens = {{ type = "integer", of = "minutes", each = 10, {domain} }}'
    service = services(catalog=CATALOG.replace("columns.hidden =", f"{minutes}\ncolumns.hidden =", 1), granted=None)
    histogram = sent(service, "SELECT tens, COUNT(*) AS n FROM reads GROUP BY tens", epsilon=4).json()
    assert len(histogram["rows"]) == 6
    quantile = "SELECT MEDIAN(tens) AS m, LOW(MEDIAN(tens)) AS low, HIGH(MEDIAN(tens)) AS high FROM reads"
    answer = sent(service, quantile, epsilon=4)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert [query["status"] for query in found["queries"]] == ["replayed"]
    ((median, low, high),) = found["rows"]
    assert low <= median <= high
    minutes = sent(service, "SELECT MEDIAN(minutes) AS m FROM reads")
    assert minutes.status_code == 400
    assert "quantiles are not declared for 'minutes'" in minutes.json()["detail"]
    refused = sent(service, quantile, epsilon=4, mechanism="pcr")
    assert (refused.status_code, "the counts of all labels" in refused.json()["detail"]) == (422, True)


REFUSED = {
    "SELECT * FROM reads": (400, "rows are never shown"),
    "SELECT article FROM reads LIMIT 5": (400, "rows are never shown"),
    "SELECT DISTINCT article FROM reads": (422, "not listed in the catalog"),
    "SELECT article, COUNT(*) FROM secret GROUP BY article": (404, "no dataset 'secret'"),
    "SELECT hidden, COUNT(*) FROM reads GROUP BY hidden": (404, "hidden"),
    "SELECT COUNT(*) FROM reads JOIN daily USING (reader)": (400, "never joined"),
    "SELECT country, COUNT(*) n FROM reads GROUP BY country HAVING foo(n) > 1": (400, "function 'foo' is not allowed"),
    "SELECT q.x FROM (SELECT COUNT(*) AS n FROM reads) q": (400, "does not have a column"),
    "SELECT (SELECT COUNT(*) FROM reads) + (SELECT COUNT(*) FROM reads WHERE minutes > 3)": (404, "in: SELECT count"),
    "SELECT (SELECT COUNT(*) FROM reads) || (SELECT COUNT(*) FROM nothing)": (404, "no dataset 'nothing'"),
}


@pytest.mark.parametrize("sql", REFUSED)
def test_a_refusal_is_a_sentence_and_free(service, sql):
    """All checks are made before the first query of a statement is answered."""
    status, words = REFUSED[sql]
    answer = sent(service, sql)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["detail"]
    assert service.balance().spent == Cost()


def test_queries_that_do_not_fit_together_are_all_refused(service):
    """Each query of the statement would fit alone, and none is charged."""
    each = "SELECT country, COUNT(DISTINCT reader) AS n FROM reads WHERE article = 'article {}' GROUP BY country"
    many = " UNION ALL ".join(each.format(n) for n in range(10))
    assert sent(service, each.format(1), epsilon=4).status_code == 200
    spent = service.balance().spent
    answer = sent(service, many, epsilon=4)
    assert (answer.status_code, answer.json()["type"]) == (403, "/problems/budget-short")
    estimate = service.send("POST", "/v1/sql/estimate", json={"sql": many, "epsilon": 4}).json()
    assert (len(estimate["queries"]), estimate["fits"]) == (10, False)
    assert service.balance().spent == spent


def test_explain_and_estimate_plan_and_charge_nothing(service):
    """Neither EXPLAIN nor an estimate reads data."""
    service.no_engine()
    found = sent(service, f"EXPLAIN {SHARES}").json()
    assert found["rows"][0][:2] == ["SELECT article, count(DISTINCT reader) FROM reads GROUP BY article", "reads"]
    assert found["queries"] == []
    estimate = service.send("POST", "/v1/sql/estimate", json={"sql": SHARES}).json()
    likely = estimate["queries"][0]["estimate"]["expected"]["likely"][0]
    explained = dict(zip([column["name"] for column in found["columns"]], found["rows"][0], strict=True))
    assert explained["min_std_error"] == likely["min_std_error"]
    assert explained["max_relative_error"] == likely["max_relative_error"]
    assert explained["std_error"] is None
    assert (explained["mechanism"], explained["likely_mechanism"]) == ("auto", likely["name"])
    assert explained["error_basis"] is None
    averages = sent(service, "EXPLAIN SELECT country, AVG(minutes) FROM reads GROUP BY country").json()
    assert averages["rows"][0][-1].startswith("an average of n rows, divided by n; ")
    prices = {}
    for name in ("SUM", "AVG"):
        priced = sent(service, f"EXPLAIN SELECT country, {name}(minutes) FROM reads GROUP BY country").json()
        prices[name] = dict(zip([column["name"] for column in priced["columns"]], priced["rows"][0], strict=True))
    assert 1.3 * prices["SUM"]["std_error"] < prices["AVG"]["std_error"] < 2.1 * prices["SUM"]["std_error"]
    assert explained["smallest_count"] == likely["smallest_count"] < explained["max_smallest_count"]
    assert estimate["fits"]
    assert estimate["worst_cost"] == estimate["queries"][0]["estimate"]["worst_cost"]
    assert service.balance().spent == Cost()


def test_an_idempotency_key_gets_the_same_rows_of_data_without_a_version(service):
    """Such answers cannot be replayed otherwise; another statement under the key is refused."""
    sql = "SELECT COUNT(*) FROM (SELECT article, COUNT(DISTINCT reader) n FROM loose GROUP BY article)"
    exact = sql.replace("COUNT(*)", "SUM(n)", 1)
    first = sent(service, exact, headers={"Idempotency-Key": "one"})
    spent = service.balance().spent
    again = sent(service, exact, headers={"Idempotency-Key": "one"})
    assert again.json()["rows"] == first.json()["rows"]
    assert service.balance().spent == spent
    assert sent(service, sql, headers={"Idempotency-Key": "one"}).status_code == 409


def test_a_statement_that_was_paid_for_is_repeated_under_its_key_when_the_budget_is_spent(service):
    """I7: a retry is a replay also of data without a version, where only the key identifies the answers."""
    both = " UNION ALL ".join(["SELECT COUNT(DISTINCT reader) FROM loose", "SELECT COUNT(*) FROM reads"])
    first = sent(service, both, headers={"Idempotency-Key": "one"}, epsilon=4)
    while sent(service, "SELECT COUNT(DISTINCT reader) FROM loose", epsilon=4).status_code == 200:
        pass
    assert sent(service, both, epsilon=4).status_code == 403
    again = sent(service, both, headers={"Idempotency-Key": "one"}, epsilon=4)
    assert again.json()["rows"] == first.json()["rows"]
    assert {query["status"] for query in again.json()["queries"]} == {"replayed"}


def test_queries_with_limits_above_k_most_are_one_query(service):
    """They are charged once, also for data without a version, which has no replays."""
    each = "SELECT article, COUNT(DISTINCT reader) AS n FROM loose GROUP BY article"
    both = f"SELECT a.n - b.n FROM ({each}) a JOIN ({each} ORDER BY n DESC LIMIT 101) b USING (article)"
    found = sent(service, both).json()
    assert {row[0] for row in found["rows"]} == {0}
    assert len(found["queries"]) == 1


def test_several_aggregates_are_a_query_each(service):
    """All are estimated and charged; each is a replay of the same query alone."""
    sql = "SELECT country, COUNT(DISTINCT reader) AS a, COUNT(*) AS b FROM reads GROUP BY country ORDER BY country"
    estimate = service.send("POST", "/v1/sql/estimate", json={"sql": sql, "epsilon": 4}).json()
    worst = [query["estimate"]["worst_cost"]["rho"] for query in estimate["queries"]]
    assert (len(worst), estimate["worst_cost"]["rho"]) == (2, pytest.approx(sum(worst)))
    found = sent(service, sql, epsilon=4).json()
    assert all(query["charged"]["rho"] > 0 for query in found["queries"])
    assert {row[0] for row in found["rows"]} == {"IN", "US", "XX"}
    for place, query in enumerate(found["queries"], start=1):
        alone = sent(service, query["sql"], epsilon=4).json()
        assert [each["status"] for each in alone["queries"]] == ["replayed"]
        assert {row[0]: row[1] for row in alone["rows"]} == {row[0]: row[place] for row in found["rows"]}


def test_columns_of_one_name_get_a_number(service):
    """In every form, because tools may look columns up by name."""
    found = sent(
        service, "SELECT COUNT(DISTINCT reader), COUNT(*), country FROM reads GROUP BY country, country"
    ).json()
    assert [column["name"] for column in found["columns"]] == ["count", "count_1", "country"]


def test_rows_come_as_arrow_and_csv_too(service):
    """The header Accept selects the format of the rows."""
    rows = sent(service, SHARES).json()["rows"]
    arrow = sent(service, SHARES, headers={"Accept": "application/vnd.apache.arrow.stream"})
    assert [list(row.values()) for row in pa.ipc.open_stream(io.BytesIO(arrow.content)).read_all().to_pylist()] == rows
    csv = sent(service, SHARES, headers={"Accept": "text/csv"}).text.splitlines()
    assert csv[0] == '"article","n","share","no_interval"'
    assert csv[1].endswith(',"n, share"')
    assert len(csv) == len(rows) + 1


@pytest.mark.parametrize("door", ["application/json", "text/csv", "application/vnd.apache.arrow.stream", "trino"])
def test_rows_are_read_once_and_written_once(service, monkeypatch, door):
    """The stored release is parsed, a worker writes the rows in the form of the door, and those bytes are sent."""
    assert sent(service, SHARES).status_code == 200
    compute, loads, dumps, written, converted = shared_pool().compute, json.loads, json.dumps, [], []

    def computing(*arguments, **named):
        rows = compute(*arguments, **named)
        written.append(rows.content)
        return rows

    def converting(name, convert):
        def counted(value, *arguments, **named):
            result = convert(value, *arguments, **named)
            if "article 1" in str(value):
                converted.append(name)
            return result

        return counted

    monkeypatch.setattr(shared_pool(), "compute", computing)
    monkeypatch.setattr(json, "loads", converting("parsed", loads))
    monkeypatch.setattr(json, "dumps", converting("written", dumps))
    monkeypatch.setattr(
        StatementAnswer, "model_validate_json", converting("parsed", StatementAnswer.model_validate_json)
    )
    if door == "trino":
        reply = page(service, post(service, SHARES))
        while b'"data"' not in reply.content:
            reply = page(service, reply)
        monkeypatch.undo()
        columns, rows = written[0].split(b"\n")
        assert columns in reply.content
        assert rows in reply.content
        assert len(json.loads(rows)) == 3
    else:
        content = sent(service, SHARES, headers={"Accept": door}).content
        monkeypatch.undo()
        assert written == [content]
    assert converted == ["parsed"], "the release; what the worker wrote is one more conversion"


MARKED = (
    "SELECT article, COUNT(DISTINCT reader) AS n, LOW(COUNT(DISTINCT reader)) AS l, HIGH(COUNT(DISTINCT reader)) AS h, "
    "COUNT(DISTINCT reader) / 2 AS half FROM reads GROUP BY article ORDER BY n DESC"
)


def test_numbers_without_an_interval_are_marked_in_every_format(service):
    """In JSON by column, in CSV by a last column, in Arrow and Parquet in the metadata; also of a rehearsal."""
    found = sent(service, MARKED).json()
    assert [column["interval"] for column in found["columns"]] == [None, ["l", "h"], None, None, "none"]
    rows = sent(service, MARKED, headers={"Accept": "text/csv"}).text.splitlines()
    assert rows[0] == '"article","n","l","h","half","no_interval"'
    assert all(row.endswith(',"half"') for row in rows[1:])
    arrow = sent(service, MARKED, headers={"Accept": "application/vnd.apache.arrow.stream"})
    about = pa.ipc.open_stream(io.BytesIO(arrow.content)).schema.metadata
    assert json.loads(about[b"discreet.no_interval"]) == ["half"]
    made = sent(service, MARKED, rehearse=True, epsilon=1).json()["columns"]
    assert [column["interval"] for column in made] == [None, ["l", "h"], None, None, "none", None]
    explained = sent(service, f"EXPLAIN {MARKED}").json()["columns"]
    assert {column["interval"] for column in explained} == {None}, "plans have no noise"


def test_a_sample_is_made_up_from_the_catalog_alone(service):
    """It is free and uses no engine; the columns are those that were granted."""
    service.no_engine()
    found = service.get("/v1/datasets/reads/sample?rows=300").json()
    assert [column["name"] for column in found["columns"]] == [
        *["reader", "article", "country", "minutes", "day"],
        *["day_week", "day_month", "day_quarter", "day_year"],
    ]
    assert [column["type"] for column in found["columns"]] == [*["VARCHAR"] * 3, "BIGINT", *["DATE"] * 5]
    assert {row[2] for row in found["rows"]} == {"IN", "US", "XX"}
    assert max(row[3] for row in found["rows"]) < 60
    assert (len(found["rows"]), found["queries"]) == (300, [])
    assert service.get("/v1/datasets/secret/sample").status_code == 404
    assert service.balance().spent == Cost()


def test_a_rehearsed_statement_is_computed_from_made_up_rows(service):
    """It is free, uses no engine, and every row is marked; refusals are the same."""
    service.no_engine()
    for sql in (SHARES, "SELECT SUM(minutes) AS s FROM reads", TOP.replace("reads", "loose")):
        found = sent(service, sql, rehearse=True, epsilon=1)
        assert found.json()["columns"][-1] == {"name": "made_up", "type": "BOOLEAN", "interval": None}, found.text
        assert found.json()["rows"]
        assert {row[-1] for row in found.json()["rows"]} == {True}
        assert [query["status"] for query in found.json()["queries"]] == ["made up"]
        assert found.headers["discreet-charged"] == "rho=0.0, delta=0.0"
        assert sent(service, sql, rehearse=True, epsilon=1).json() == found.json()
    by_country = "SELECT country, COUNT(DISTINCT reader) AS n FROM reads GROUP BY country"
    csv = sent(service, by_country, headers={"Accept": "text/csv"}, rehearse=True).text.splitlines()
    assert (csv[0], {line.rpartition(",")[2] for line in csv[1:]}) == (
        '"country","n","no_interval","made_up"',
        {"true"},
    )
    for sql, (status, words) in REFUSED.items():
        refused = sent(service, sql, rehearse=True)
        assert (refused.status_code, words in refused.json()["detail"]) == (status, True), sql
    assert sent(service, SHARES, rehearse=True, epsilon=99).status_code == 422
    assert service.balance().spent == Cost()


def test_an_estimate_and_the_budget_have_the_number_of_queries_left(service):
    """As many as all worst cases allow, for every account on the path."""
    estimate = service.estimate().json()
    left, worst = estimate["accounts"][0]["left"], estimate["worst_cost"]
    fits = {part: left[part] / worst[part] for part in ("rho", "delta")}
    assert estimate["queries_left"] == min(fits.values()) // 1
    assert estimate["runs_out"] == min(fits, key=fits.get)
    small = service.estimate(epsilon=0.05, delta="1e-8").json()
    assert small["runs_out"] == "delta"
    assert small["queries_left"] < service.estimate(epsilon=0.05).json()["queries_left"]
    before = service.get("/v1/budget").json()["queries_left"]
    assert service.ask().status_code == service.ask(epsilon=4).status_code == 200
    assert service.estimate().json()["queries_left"] is None  # paid for
    assert service.get("/v1/budget").json()["queries_left"] < before


def test_rows_that_cannot_be_computed_leave_their_answers_paid(service):
    """The failure depends on released answers only; another statement about them is free."""
    inner = "SELECT article, COUNT(DISTINCT reader) AS n FROM reads GROUP BY article"
    failed = sent(service, f"SELECT CAST(article AS INTEGER) FROM ({inner})")
    assert failed.status_code == 422
    assert failed.json()["detail"].endswith("its queries were answered, so they stay charged")
    spent = service.balance().spent
    assert spent.rho > 0
    assert sent(service, inner).json()["queries"][0]["status"] == "replayed"
    assert service.balance().spent == spent


DIGITS = "(VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9))"
ENDLESS = f"SELECT SUM(t0.d * t11.d) FROM {', '.join(f'{DIGITS} t{n}(d)' for n in range(12))}"
DOUBLED = (
    "WITH c0 AS (SELECT COUNT(*) AS x FROM reads), "
    + ", ".join(f"c{n} AS (SELECT * FROM c{n - 1} a, c{n - 1} b)" for n in range(1, 20))
    + " SELECT * FROM c19"
)


def test_a_statement_that_is_too_large_is_refused_before_its_queries(service):
    """By an estimate, by an answer and by a rehearsal alike; nothing is charged."""
    for path, more in (("/v1/sql/estimate", {}), ("/v1/sql", {}), ("/v1/sql", {"rehearse": True})):
        refused = service.send("POST", path, json={"sql": DOUBLED, **more})
        assert (refused.status_code, "200 columns at most" in refused.json()["detail"]) == (400, True)
    assert service.balance().spent == Cost()


def test_a_statement_without_queries_charges_none(service):
    """Its refusal does not mention any."""
    refused = sent(service, "SELECT CAST('a' || x AS INTEGER) FROM (VALUES ('b')) AS t(x)")
    assert (refused.status_code, "charged" in refused.json()["detail"]) == (422, False)


def test_a_statement_that_is_killed_leaves_its_answers_paid(service, monkeypatch):
    """One sentence, the answers of its queries are kept, and the next statement works."""
    monkeypatch.setattr("discreet.service.answering.pool.MAX_SECONDS", 2.0)
    within = f"SELECT n, ({ENDLESS}) FROM (SELECT COUNT(DISTINCT reader) AS n FROM reads)"
    killed = sent(service, within)
    monkeypatch.undo()
    assert killed.status_code == 422, killed.text
    assert killed.json()["detail"].endswith("its queries were answered, so they stay charged")
    spent = service.balance().spent
    again = sent(service, "SELECT COUNT(DISTINCT reader) + 1 FROM reads").json()
    assert [query["status"] for query in again["queries"]] == ["replayed"]
    assert service.balance().spent == spent


def test_a_bug_in_a_worker_is_one_of_the_service_and_is_logged(service, monkeypatch):
    """A status of 500 says that nothing in the statement was wrong; the answers of its queries are kept."""

    def failing(*_, **__):
        raise StatementFailed(error="KeyError", frames=("service/answering/worker.py:7",))

    monkeypatch.setattr(shared_pool(), "compute", failing)
    failed = sent(service, "SELECT COUNT(DISTINCT reader) + 1 FROM reads")
    assert (failed.status_code, failed.json()["type"].rpartition("/")[2]) == (500, "internal")
    assert failed.json()["detail"] == (
        "the process of the statement met a bug of the service, whose log has the details; its queries were "
        "answered, so they stay charged"
    )
    (event,) = service.events("failed")
    assert event["error"] == "StatementFailed from StatementFailed from KeyError"
    assert "service/answering/worker.py:7" in event["frames"]
    spent = service.balance().spent
    monkeypatch.undo()
    again = sent(service, "SELECT COUNT(DISTINCT reader) + 1 FROM reads").json()
    assert [query["status"] for query in again["queries"]] == ["replayed"]
    assert service.balance().spent == spent


def test_statements_open_no_database_in_the_service(service, monkeypatch):
    """Checked, computed, rehearsed and encoded elsewhere; only labels that the catalog lists get their types here."""
    connect, called = duckdb.connect, []
    sent(service, SHARES)  # opens the engine and the parser

    def counted(*arguments, **named):
        called.append(arguments)
        return connect(*arguments, **named)

    monkeypatch.setattr(duckdb, "connect", counted)
    monkeypatch.setattr("discreet.release.postprocess.open_database", None)
    for form in ("application/json", "text/csv", "application/vnd.apache.arrow.stream"):
        assert sent(service, SHARES, headers={"Accept": form}).status_code == 200
    assert service.send("POST", "/v1/sql/estimate", json={"sql": SHARES}).status_code == 200
    assert not called
    assert sent(service, SHARES, rehearse=True).status_code == 200


def test_without_processes_a_statement_is_a_problem_and_free(service, monkeypatch):
    """The check is made before anything is paid, and needs one."""

    @contextlib.contextmanager
    def without():
        raise StatementsUnavailable
        yield

    monkeypatch.setattr(shared_pool(), "_worker", without)
    refused = sent(service, SHARES)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert refused.json()["detail"] == "no process can be started to compute the statement; try again later"
    assert service.balance().spent == Cost()
