"""Superset with its own support of Trino and no plug-in: results, statements sent, and charges."""

from __future__ import annotations

import json

import httpx
import pytest
from playwright.sync_api import sync_playwright

from tests.clients.environments import ROOT, python_of
from tests.clients.superset_server import ADMIN
from tests.debian import chromium
from tests.servers.process import free_port, start, stop

USERS = {"expressionType": "SQL", "sqlExpression": "COUNT(DISTINCT reader)", "label": "users"}
JANUARY = "2026-01-01 : 2026-02-01"
GERMANY = {"col": "country", "op": "==", "val": "DE"}


class Superset:
    """A running Superset with a database and a dataset of the service."""

    def __init__(self, url, service):
        self.url, self.service = url, service
        self.http = httpx.Client(base_url=url, timeout=120, follow_redirects=True)
        login = {"username": ADMIN, "password": ADMIN, "provider": "db", "refresh": False}
        token = self.http.post("/api/v1/security/login", json=login).json()["access_token"]
        self.http.headers["Authorization"] = f"Bearer {token}"

    def post(self, path, body):
        """Return the JSON of a reply, which must be a success."""
        reply = self.http.post(path, json=body)
        assert reply.status_code in {200, 201}, reply.text
        return reply.json()

    def ask(self, dataset, **query):
        """Return the reply to the query of a chart."""
        asked = {"row_limit": 10_000, "filters": [], "columns": [], "metrics": [USERS], **query}
        body = {
            "datasource": {"id": dataset, "type": "table"},
            "queries": [asked],
            "result_format": "json",
            "result_type": "full",
            "force": True,  # bypasses Superset's own cache
        }
        return self.http.post("/api/v1/chart/data", json=body)

    def chart(self, dataset, **query):
        """Return the rows of a chart."""
        reply = self.ask(dataset, **query)
        assert reply.status_code == 200, reply.text
        (result,) = reply.json()["result"]
        return result["data"]

    def charged(self):
        """Return how many queries were answered since the last call by the engine, and from the store."""
        return self.service.charged()


@pytest.fixture(scope="module")
def superset(service, tmp_path_factory):
    """Start Superset in its own environment."""
    folder, port = tmp_path_factory.mktemp("superset"), free_port()
    url = f"http://127.0.0.1:{port}"

    def ready():
        try:
            return httpx.get(f"{url}/health").status_code == 200
        except httpx.HTTPError:
            return False

    start(
        folder,
        "superset",
        [python_of("superset"), ROOT / "tests/clients/superset_server.py", folder, str(port)],
        ready,
        seconds=400,
    )
    try:
        yield Superset(url, service)
    finally:
        stop(folder, "superset")


@pytest.fixture(scope="module")
def database(superset, service):
    """Create the connection as the dialog does, tested first, and return its id."""
    made = connection(service, "Discreet", epsilon=0.5, delta="1e-9")
    superset.post("/api/v1/database/test_connection/", {**made, "database_name": "reads"})
    return superset.post("/api/v1/database/", {**made, "expose_in_sqllab": True})["id"]


def connection(service, name, **properties):
    """Return the fields of the dialog: the URL with the key as its password, and engine parameters."""
    extra = {"engine_params": {"connect_args": service.arguments(**properties)}}
    return {"database_name": name, "sqlalchemy_uri": service.address, "extra": json.dumps(extra)}


@pytest.fixture(scope="module")
def dataset(superset, database):
    """Return the id of the dataset reads."""
    return superset.post("/api/v1/dataset/", {"database": database, "schema": "main", "table_name": "reads"})["id"]


def test_the_connection_is_trino_and_hides_the_key(superset, database, service):
    """The key is the password of the URL, which Superset encrypts and does not show."""
    shown = superset.http.get(f"/api/v1/database/{database}/connection").json()["result"]
    assert shown["backend"] == "trino"
    assert service.key not in json.dumps(shown)
    tables = superset.http.get(f"/api/v1/database/{database}/tables/", params={"q": "(schema_name:main)"}).json()
    assert [table["value"] for table in tables["result"]] == ["reads"]


def test_a_new_dataset_has_the_columns(superset, dataset):
    """Superset adds the metric COUNT(*), which is refused where rows cannot be counted; charts use one of users."""
    shown = superset.http.get(f"/api/v1/dataset/{dataset}").json()["result"]
    assert {"at", "day", "week"} <= {column["column_name"] for column in shown["columns"] if column["is_dttm"]}
    refused = superset.ask(dataset, columns=["country"], metrics=["count"])
    assert "count users, as COUNT(DISTINCT reader)" in refused.text
    assert superset.charged() == (0, 0)


def test_sql_lab_answers_a_statement_and_refuses_rows(superset, database):
    """A row limit of SQL Lab without ORDER BY only truncates the result: it is no k."""
    superset.charged()
    body = {"database_id": database, "schema": "main", "runAsync": False, "queryLimit": 3}
    sql = "SELECT article, COUNT(DISTINCT reader) AS readers FROM reads GROUP BY article"
    found = superset.post("/api/v1/sqllab/execute/", {**body, "sql": sql})
    assert len(found["data"]) == 3
    assert found["data"][0]["article"] == "article-001"
    assert superset.charged() == (1, 0)
    superset.post("/api/v1/sqllab/execute/", {**body, "sql": sql, "queryLimit": 7})
    assert superset.charged() == (0, 1)
    refused = superset.http.post("/api/v1/sqllab/execute/", json={**body, "sql": "SELECT * FROM reads"})
    assert refused.status_code >= 400
    assert "rows are never shown" in refused.text
    assert superset.charged() == (0, 0)


def test_the_cost_estimate_is_the_price(superset, database):
    """Superset's estimate is EXPLAIN (TYPE IO): it is free."""
    sql = "SELECT week, COUNT(DISTINCT reader) AS readers FROM reads GROUP BY week"
    features = superset.http.get(f"/api/v1/database/{database}").json()["result"]
    assert "id" in features
    asked = {"database_id": database, "schema": "main", "sql": f"EXPLAIN (TYPE IO, FORMAT JSON) {sql}"}
    found = superset.post("/api/v1/sqllab/execute/", {**asked, "runAsync": False})
    assert "rho=" in str(found["data"])
    assert superset.charged() == (0, 0)


DAYS_OF_JANUARY = {
    "columns": [
        {"timeGrain": "P1D", "columnType": "BASE_AXIS", "sqlExpression": "day", "label": "day"}
        | {"expressionType": "SQL"}
    ],
    "granularity": "day",
    "time_range": JANUARY,
    "extras": {"time_grain_sqla": "P1D"},
    "orderby": [[USERS, False]],
}
CHARTS = {
    "table": {"columns": ["article"], "orderby": [[USERS, False]], "row_limit": 10},
    "bar": {"columns": ["country"], "orderby": [[USERS, False]]},
    "time series": DAYS_OF_JANUARY,
    "big number": {"columns": []},
}


def test_a_dashboard_is_charged_once(superset, dataset):
    """The second refresh of four charts and their filter sends no new query, so it is free."""
    superset.charged()
    first = {name: superset.chart(dataset, **query) for name, query in CHARTS.items()}
    assert superset.charged() == (len(CHARTS), 0)
    second = {name: superset.chart(dataset, **query) for name, query in CHARTS.items()}
    assert superset.charged() == (0, len(CHARTS))
    assert first == second
    assert first["table"][0]["article"] == "article-001"
    assert {row["country"] for row in first["bar"]} == {"BR", "DE", "IN", "KE", "US"}
    assert len(first["time series"]) == 31
    assert 5_000 < first["big number"][0]["users"] < 7_000


def test_the_totals_of_a_table_are_a_query_of_their_own(superset, dataset):
    """The frontend queries the table without its columns; users of several articles count once in the total."""
    table = {"columns": ["article"], "orderby": [[USERS, False]], "row_limit": 10, "filters": [GERMANY]}
    totals = {"columns": [], "row_limit": 0, "filters": [GERMANY]}
    superset.charged()
    shown, (total,) = superset.chart(dataset, **table), superset.chart(dataset, **totals)
    assert superset.charged() == (2, 0)
    assert total["users"] == pytest.approx(1200, abs=100)
    assert sum(row["users"] for row in shown) > 0
    superset.chart(dataset, **table), superset.chart(dataset, **totals)
    assert superset.charged() == (0, 2)


def test_a_dashboard_can_be_built_on_made_up_rows(superset, service):
    """The same connection with the property rehearse charges nothing, and SQL Lab marks the rows as made up."""
    made = connection(service, "Discreet, made up", epsilon=0.5, delta="1e-9", rehearse="true")
    made["expose_in_sqllab"] = True
    database = superset.post("/api/v1/database/", made)["id"]
    rehearsed = {"database": database, "schema": "main", "table_name": "reads"}
    dataset = superset.post("/api/v1/dataset/", rehearsed)["id"]
    superset.charged()
    for query in CHARTS.values():
        assert superset.chart(dataset, **query)
    sql = "SELECT country, COUNT(DISTINCT reader) AS readers FROM reads GROUP BY country"
    body = {"database_id": database, "schema": "main", "runAsync": False, "sql": sql}
    assert all(row["made_up"] for row in superset.post("/api/v1/sqllab/execute/", body)["data"])
    assert superset.charged() == (0, 0)


def test_a_dashboard_over_a_saved_table_is_filtered_free_of_charge(superset, database, service):
    """Two charts with sums and their intervals, and twenty filters of each: the table was charged once."""
    select = "SELECT day, country, COUNT(DISTINCT reader) AS readers FROM reads GROUP BY day, country"
    body = {"sql": f"CREATE TABLE saved.daily AS {select}", "epsilon": 0.5}
    made = httpx.post(f"{service.url}/v1/sql", headers={"Authorization": f"Bearer {service.key}"}, json=body)
    assert made.status_code == 200, made.text
    assert superset.charged() == (1, 0)
    dataset = superset.post("/api/v1/dataset/", {"database": database, "schema": "saved", "table_name": "daily"})["id"]
    metrics = [
        {"expressionType": "SQL", "sqlExpression": sql, "label": label}
        for label, sql in {"n": "SUM(readers)", "low": "LOW(SUM(readers))", "high": "HIGH(SUM(readers))"}.items()
    ]
    before = None
    for day in range(1, 21):
        filtered = {"metrics": metrics, "granularity": "day", "time_range": f"2026-01-{day:02} : 2026-02-01"}
        shown = superset.chart(dataset, columns=["country"], orderby=[[metrics[0], False]], **filtered)
        assert {row["country"] for row in shown} == {"BR", "DE", "IN", "KE", "US"}
        assert all(row["low"] < row["n"] < row["high"] for row in shown)
        (total,) = superset.chart(dataset, **filtered)
        assert total["n"] == sum(row["n"] for row in shown) != before
        before = total["n"]
    assert superset.charged() == (0, 0)


def test_values_of_a_filter_are_free(superset, dataset):
    """Labels that the catalog lists are public."""
    superset.charged()
    found = superset.http.get(f"/api/v1/datasource/table/{dataset}/column/country/values/").json()["result"]
    assert sorted(found) == ["BR", "DE", "IN", "KE", "US"]
    unlisted = superset.http.get(f"/api/v1/datasource/table/{dataset}/column/article/values/")
    assert unlisted.json().get("result", []) == []
    rows = superset.chart(dataset, columns=["country"], metrics=[], orderby=[["country", True]])
    assert [row["country"] for row in rows] == ["BR", "DE", "IN", "KE", "US"]
    assert superset.charged() == (0, 0)


def _form(viz_type, **form):
    return {
        "viz_type": viz_type,
        "metrics": [USERS],
        "metric": USERS,
        "y_axis_format": ",d",
        "adhoc_filters": [],
        "row_limit": 1_000,
        **form,
    }


DAYS = {"x_axis": "day", "time_grain_sqla": "P1D", "granularity_sqla": "day", "time_range": JANUARY}
DRAWN = {
    "Readers": _form("big_number_total"),
    "Readers by country": _form("echarts_timeseries_bar", x_axis="country", groupby=[]),
    "Articles": _form("table", groupby=["article"], row_limit=10, query_mode="aggregate", server_page_length=10),
    "Readers each day": _form("echarts_timeseries_line", groupby=[], truncateYAxis=False, **DAYS),
}
"""The charts of the dashboard in the documentation: titles, and what Superset's editor saves."""


def _dashboard(superset, dataset):
    """Return the id of a dashboard with two rows of two charts."""
    dashboard = superset.post("/api/v1/dashboard/", {"dashboard_title": "Reads", "published": True})["id"]
    position = {
        "DASHBOARD_VERSION_KEY": "v2",
        "ROOT_ID": {"type": "ROOT", "id": "ROOT_ID", "children": ["GRID_ID"]},
        "GRID_ID": {"type": "GRID", "id": "GRID_ID", "children": ["ROW-0", "ROW-1"], "parents": ["ROOT_ID"]},
    }
    for number, (title, form) in enumerate(DRAWN.items()):
        params = json.dumps({**form, "datasource": f"{dataset}__table"})
        made = {"slice_name": title, "viz_type": form["viz_type"], "params": params, "dashboards": [dashboard]}
        chart = superset.post("/api/v1/chart/", {**made, "datasource_id": dataset, "datasource_type": "table"})["id"]
        row, name = f"ROW-{number // 2}", f"CHART-{number}"
        parents = ["ROOT_ID", "GRID_ID"]
        background = {"background": "BACKGROUND_TRANSPARENT"}
        position.setdefault(row, {"type": "ROW", "id": row, "children": [], "parents": parents, "meta": background})
        position[row]["children"].append(name)
        meta = {"chartId": chart, "sliceName": title, "width": 4 if number % 2 == 0 else 8, "height": 36}
        position[name] = {"type": "CHART", "id": name, "children": [], "parents": [*parents, row], "meta": meta}
    layout = {"position_json": json.dumps(position)}
    assert superset.http.put(f"/api/v1/dashboard/{dashboard}", json=layout).status_code == 200
    return dashboard


def test_a_browser_draws_a_dashboard_and_a_reload_is_free(superset, dataset):
    """Other requests of the frontend cost nothing; the picture is that of the documentation."""
    dashboard = _dashboard(superset, dataset)
    superset.charged()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 690})
        page.set_default_timeout(120_000)
        page.goto(f"{superset.url}/login/")
        page.fill("input#username", ADMIN)
        page.fill("input#password", ADMIN)
        page.keyboard.press("Enter")
        page.wait_for_url("**/welcome/")
        page.goto(f"{superset.url}/superset/dashboard/{dashboard}/?standalone=1")
        _await_charts(page)
        first = superset.charged()
        page.reload()
        _await_charts(page)
        assert superset.charged() == (0, len(DRAWN))
        page.screenshot(path=ROOT / "docs/images/connect-superset.png")
        browser.close()
    assert sum(first) == len(DRAWN)


def _await_charts(page):
    """Wait until all charts are drawn."""
    page.wait_for_function(
        f"document.querySelectorAll('.slice_container:not(.loading)').length == {len(DRAWN)}"
        " && document.querySelectorAll('.loading').length == 0"
    )
    page.wait_for_timeout(1_500)  # the animation of the charts
