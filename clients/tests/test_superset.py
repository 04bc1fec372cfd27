"""Superset over discreet-sql, through its REST API: what a dashboard shows, what it sends, and what is charged."""

from __future__ import annotations

import json

import httpx
import pytest
from servers.process import free_port, start, stop

from clients.environments import ROOT, python_of
from clients.superset_server import ADMIN

USERS = {"expressionType": "SQL", "sqlExpression": "COUNT(DISTINCT reader)", "label": "users"}
JANUARY = "2026-01-01 : 2026-02-01"


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

    def chart(self, dataset, **query):
        """Return the rows that a chart gets."""
        asked = {"row_limit": 10_000, "filters": [], "columns": [], "metrics": [USERS], **query}
        body = {
            "datasource": {"id": dataset, "type": "table"},
            "queries": [asked],
            "result_format": "json",
            "result_type": "full",
            "force": True,  # past Superset's own cache
        }
        (result,) = self.post("/api/v1/chart/data", body)["result"]
        return result["data"]

    def charged(self):
        """Return how many queries were answered from data since the last call, and how many were replayed."""
        queries = [query for _, reply in self.service.take() for query in reply.get("queries", [])]
        statuses = [query["status"] for query in queries]
        return statuses.count("released"), statuses.count("replayed")


@pytest.fixture(scope="module")
def superset(service, tmp_path_factory):
    """Superset, started in its own environment."""
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
        [python_of("superset"), ROOT / "clients/superset_server.py", folder, str(port)],
        ready,
        seconds=400,
    )
    try:
        yield Superset(url, service)
    finally:
        stop(folder, "superset")


@pytest.fixture(scope="module")
def database(superset, service):
    """The id of the connection, made as in the dialog: test it, then create it."""
    uri = service.address(epsilon=0.5, delta="1e-9")
    superset.post("/api/v1/database/test_connection/", {"database_name": "reads", "sqlalchemy_uri": uri})
    made = {"database_name": "Discreet", "sqlalchemy_uri": uri, "expose_in_sqllab": True}
    return superset.post("/api/v1/database/", made)["id"]


@pytest.fixture(scope="module")
def dataset(superset, database):
    """The id of the dataset reads."""
    return superset.post("/api/v1/dataset/", {"database": database, "schema": "main", "table_name": "reads"})["id"]


def test_the_connection_is_discreet_and_hides_the_key(superset, database, service):
    """Superset finds the engine by its entry point and shows the URL without the key."""
    shown = superset.http.get(f"/api/v1/database/{database}/connection").json()["result"]
    assert shown["backend"] == "discreet"
    assert service.key not in json.dumps(shown)
    tables = superset.http.get(f"/api/v1/database/{database}/tables/", params={"q": "(schema_name:main)"}).json()
    assert [table["value"] for table in tables["result"]] == ["reads"]


def test_a_new_dataset_has_the_columns_and_a_metric_of_users(superset, dataset):
    """Descriptions say what a column is for; COUNT(*) is not offered where rows cannot be counted."""
    shown = superset.http.get(f"/api/v1/dataset/{dataset}").json()["result"]
    assert {metric["expression"] for metric in shown["metrics"]} == {"COUNT(DISTINCT reader)"}
    assert {column["column_name"] for column in shown["columns"] if column["is_dttm"]} == {"at", "day", "week"}


def test_sql_lab_answers_a_statement_and_refuses_rows(superset, database, service):
    """A row limit of SQL Lab only cuts what is shown: it is no k."""
    service.take()
    body = {"database_id": database, "schema": "main", "runAsync": False, "queryLimit": 3}
    sql = "SELECT article, COUNT(DISTINCT reader) AS readers FROM reads GROUP BY article"
    found = superset.post("/api/v1/sqllab/execute/", {**body, "sql": sql})
    assert len(found["data"]) == 3
    assert found["data"][0]["article"] == "article-001"
    ((sent, _),) = service.take()
    assert "LIMIT" not in sent
    refused = superset.http.post("/api/v1/sqllab/execute/", json={**body, "sql": "SELECT * FROM reads"})
    assert refused.status_code >= 400
    assert "rows are never shown" in refused.text or "*" in refused.text
    assert superset.charged() == (0, 0)


CHARTS = {
    "table": {"columns": ["article"], "orderby": [[USERS, False]], "row_limit": 10},
    "bar": {"columns": ["country"], "orderby": [[USERS, False]]},
    "time series": {
        "columns": [
            {"timeGrain": "P1D", "columnType": "BASE_AXIS", "sqlExpression": "day", "label": "day"}
            | {"expressionType": "SQL"}
        ],
        "granularity": "day",
        "time_range": JANUARY,
        "extras": {"time_grain_sqla": "P1D"},
        "orderby": [[USERS, False]],
    },
    "big number": {"columns": []},
}


def test_a_dashboard_is_charged_once(superset, dataset, service):
    """Four charts and their filter: the second refresh asks for nothing new, so it is free."""
    service.take()
    first = {name: superset.chart(dataset, **query) for name, query in CHARTS.items()}
    assert superset.charged() == (len(CHARTS), 0)
    second = {name: superset.chart(dataset, **query) for name, query in CHARTS.items()}
    assert superset.charged() == (0, len(CHARTS))
    assert first == second
    assert first["table"][0]["article"] == "article-001"
    assert {row["country"] for row in first["bar"]} == {"BR", "DE", "IN", "KE", "US"}
    assert len(first["time series"]) == 31
    assert 5_000 < first["big number"][0]["users"] < 7_000


def test_values_of_a_filter_are_free(superset, dataset, service):
    """Labels that the catalog lists are public."""
    service.take()
    found = superset.http.get(f"/api/v1/datasource/table/{dataset}/column/country/values/").json()["result"]
    assert sorted(found) == ["BR", "DE", "IN", "KE", "US"]
    rows = superset.chart(dataset, columns=["country"], metrics=[], orderby=[["country", True]])
    assert [row["country"] for row in rows] == ["BR", "DE", "IN", "KE", "US"]
    assert superset.charged() == (0, 0)
