"""Queries with `each` at the service: one charge, replays, history, files, statements, and the hint to a drill-down."""

from __future__ import annotations

import pytest

from discreet.client.errors import error_of
from discreet.values import Cost
from discreet.wire.document import decode
from discreet.wire.problems import Problem
from tests.service.deployment import CATALOG, TOP, Deployment

EACH = (
    "SELECT country, article, COUNT(DISTINCT reader) FROM reads GROUP BY country, article "
    "QUALIFY row_number() OVER (PARTITION BY country ORDER BY COUNT(DISTINCT reader) DESC) <= 2"
)
DRILL = (
    "SELECT article, COUNT(DISTINCT reader) AS n FROM reads WHERE country = 'IN' GROUP BY article "
    "ORDER BY n DESC LIMIT 2"
)


@pytest.fixture
def service(tmp_path):
    """Return a service whose readers have one country each."""
    listed = 'domain = ["IN", "US", "XX"]'
    catalog = CATALOG.replace(listed, f"{listed}, groups_per_user = 1")
    with Deployment(tmp_path / "service", catalog=catalog).open() as opened:
        yield opened


def test_one_answer_for_every_country_is_one_charge(service):
    """It is charged at most the price, that of one country, stored, and free when asked again in JSON."""
    estimate = service.estimate(EACH).json()["worst_cost"]
    assert estimate["rho"] == pytest.approx(service.estimate(DRILL).json()["worst_cost"]["rho"], rel=1e-6)
    answer = service.ask(EACH)
    assert answer.status_code == 200
    assert {item["country"] for item in answer.json()["items"]} == {"IN", "US"}
    assert answer.json()["question"]["each"] == ["country"]
    assert answer.json()["charged"]["rho"] <= estimate["rho"]
    assert service.balance().spent.rho <= Cost.at_most(estimate["rho"], estimate["delta"]).rho
    spent = service.balance().spent
    query = {
        "dataset": "reads",
        "items": ["article"],
        "each": ["country"],
        "measure": {"kind": "users", "column": "reader"},
        "k": 2,
    }
    again = service.ask(query)
    assert again.content == answer.content
    assert service.balance().spent == spent
    release = decode(answer.content)
    assert release.to_arrow()["rank"].to_pylist() == [item["rank"] for item in answer.json()["items"]]
    listed = service.get("/v1/releases").json()["releases"]
    assert [each["question"]["each"] for each in listed] == [["country"]]


def test_a_whole_statement_shares_the_answer(service):
    """A tool's statement has the same query inside, which is free once it is paid."""
    service.ask(EACH)
    spent = service.balance().spent
    answer = service.send("POST", "/v1/sql", json={"sql": f"SELECT count(*) AS n FROM ({EACH}) AS t"})
    assert answer.json()["rows"] == [[4]]
    assert answer.json()["queries"][0]["status"] == "replayed"
    assert service.balance().spent == spent


def test_a_drill_down_that_is_refused_names_one_query_for_all_countries(service):
    """Its worst cost is in the problem, in the sentence, and in the error of the client."""
    refused = next(
        answer for number in range(40) if (answer := service.ask(DRILL, epsilon=8 - number / 1000)).status_code != 200
    )
    problem = Problem.model_validate_json(refused.content)
    assert problem.slug == "budget-short"
    assert problem.each.column == "country"
    assert problem.each.needed.rho == pytest.approx(problem.needed.rho, rel=1e-6)
    assert "one query with each 'country' would answer it for all labels" in problem.detail
    error = error_of(problem, None)
    assert error.each == "country"
    assert "one query with each 'country'" in str(error)
    other = service.ask(TOP, epsilon=8)
    assert (other.status_code, "each" in other.json()) == (403, False)


def test_a_column_that_the_catalog_does_not_allow_is_refused(service):
    """Nothing is charged."""
    answer = service.ask(EACH.replace("country", "day"))
    assert answer.status_code == 422
    assert "cannot be in 'each'" in answer.json()["detail"]
    assert service.balance().spent == Cost()
