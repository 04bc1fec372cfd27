"""The OpenAPI document matches the API."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from discreet.service import observability
from discreet.service.doors.http import openapi
from discreet.service.doors.http.query import HEADERS, QueryAPI
from discreet.wire.problems import KINDS, PROBLEM_TYPE, Problem
from discreet.wire.queries import BudgetReport, DatasetDetail, DatasetList, Estimate, HistoryPage, QueryRequest
from tests.service.deployment import TOP, declared

encode = json.dumps
PAGE = Path(__file__).resolve().parents[4] / "docs" / "service" / "index.md"


@pytest.fixture
def api(service):
    """Return the OpenAPI document, which needs no key."""
    answer = service.get("/openapi.json", None)
    assert answer.status_code == 200
    return answer.json()


def operations(api):
    """Path, method and operation of every route."""
    return [(path, method, about) for path, item in api["paths"].items() for method, about in item.items()]


def resolved(api, reference):
    """Resolve a reference."""
    found = api
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def references(part):
    """Return all references in a part of the document."""
    if isinstance(part, dict):
        yield from ([part["$ref"]] if isinstance(part.get("$ref"), str) else [])
        for inner in part.values():
            yield from references(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from references(inner)


def test_the_document_is_encoded_once(service, monkeypatch):
    """Anyone can request it, so a request costs no more than sending its bytes."""
    calls = []
    document = openapi.openapi_document
    monkeypatch.setattr(openapi, "openapi_document", lambda *given: calls.append("document") or document(*given))
    monkeypatch.setattr(openapi.json, "dumps", lambda *given, **more: calls.append("dumps") or encode(*given, **more))
    first = service.get("/openapi.json", None).content
    before = len(calls)
    assert set(calls) == {"document", "dumps"}
    assert service.get("/openapi.json", None).content == first
    assert len(calls) == before


def test_it_is_openapi_3_1_and_every_reference_resolves(api):
    """Every reference resolves; every operation has a unique id."""
    assert api["openapi"].startswith("3.1")
    for reference in references(api):
        assert resolved(api, reference)
    names = [about["operationId"] for _, _, about in operations(api)]
    assert len(set(names)) == len(names)


def test_every_route_of_analysts_is_described(api):
    """Every route has a summary, a description and the security scheme."""
    paths = {(path, method.upper()) for path, method, _ in operations(api)}
    for about in declared(QueryAPI):
        path = about.path.replace(":path}", "}")
        assert (path, about.method) in paths
        described = api["paths"][path][about.method.lower()]
        assert described["operationId"] == about.name
        assert described["summary"]
        assert described["description"]
        (scheme,) = described["security"][0]
        assert resolved(api, f"#/components/securitySchemes/{scheme}")["scheme"] == "bearer"


def test_every_path_parameter_is_described(api):
    """The described path parameters are exactly those of the path."""
    for path, _, about in operations(api):
        described = {parameter["name"] for parameter in about.get("parameters", []) if parameter["in"] == "path"}
        assert described == set(re.findall(r"{(\w+)}", path)), path


def test_every_problem_has_an_example_of_its_shape(api):
    """Each kind where it can occur; its summary has its cost."""
    seen = set()
    for _, _, about in operations(api):
        for status, response in about["responses"].items():
            for slug, example in response.get("content", {}).get(PROBLEM_TYPE, {}).get("examples", {}).items():
                seen.add(slug)
                assert Problem.model_validate(example["value"]).status == KINDS[slug].status == int(status)
                assert KINDS[slug].charged in example["summary"]
    assert seen == set(KINDS) - {"method-not-allowed"}


def test_the_example_of_a_query_can_be_sent(api):
    """The example of the request body is answered unchanged."""
    question = api["components"]["schemas"]["QueryRequest"]
    for example in question["examples"]:
        assert QueryRequest.model_validate_json(json.dumps(example)).sql == example["sql"]
    assert question["additionalProperties"] is False


def test_the_example_of_a_release_has_the_fields_of_one(service, api):
    """A real answer has no other fields."""
    answer = service.ask()
    example = api["components"]["schemas"]["ReleaseDocument"]["examples"][0]
    assert set(answer.json()) == set(example) == set(api["components"]["schemas"]["ReleaseDocument"]["required"])
    for part in ("privacy", "charged", "query"):
        assert set(answer.json()[part]) == set(example[part])
    assert list(answer.json()["items"][0]) == list(example["items"][0])


def test_every_response_has_the_described_shape(service):
    """It has exactly the fields of its model, for all values."""
    service.ask()
    answers = {
        BudgetReport: service.get("/v1/budget"),
        DatasetList: service.get("/v1/datasets"),
        DatasetDetail: service.get("/v1/datasets/reads"),
        HistoryPage: service.get("/v1/releases"),
        Estimate: service.estimate(),
    }
    for model, answer in answers.items():
        assert answer.status_code == 200
        assert model.model_validate(answer.json()).model_dump(mode="json") == answer.json()


def test_every_response_header_is_described(service, api):
    """Our own headers, and those of the rate limit."""
    described = set(api["paths"]["/v1/query"]["post"]["responses"]["200"]["headers"])
    sent = {name for name in service.ask().headers if name.startswith(("discreet-", "ratelimit"))}
    assert {name.lower() for name in described} == sent


def test_returned_statuses_are_described(service, api):
    """One request of each kind; fuzzing covers the others."""
    described = {path: set(item) for path, item in api["paths"].items()}
    assert described["/v1/query"] == {"post"}
    statuses = set(api["paths"]["/v1/query"]["post"]["responses"])
    answers = [
        service.ask(),
        service.ask("x"),
        service.ask(who=None),
        service.ask(TOP.replace("article", "hidden")),
        service.ask(headers={"Accept": "image/png"}),
        service.ask(headers={"Content-Type": "text/plain"}),
        service.ask(epsilon=9),
        service.send("POST", "/v1/query", content=b" " * 5000, headers={"Content-Type": "application/json"}),
        service.ask(TOP.replace("reads", "broken")),
    ]
    assert [answer.status_code for answer in answers] == [200, 400, 401, 404, 406, 415, 422, 413, 503]
    assert {str(answer.status_code) for answer in answers} <= statuses


def test_the_page_names_every_route_problem_field_and_header():
    """docs/service/index.md is the contract for readers."""
    page = PAGE.read_text()
    for about in declared(QueryAPI):
        assert f"`{about.method} {about.path.replace(':path}', '}')}" in page
    rows = [line.strip("| ").split(" | ") for line in page.splitlines()]
    rows = [(row[0].strip("`"), row[1], row[3]) for row in rows if len(row) == 4 and row[1].isdigit()]
    assert rows == [(slug, str(kind.status), kind.charged) for slug, kind in KINDS.items()]
    for field in QueryRequest.model_fields:
        assert f"| `{field}` |" in page
    for header in (*HEADERS, "X-Request-Id", "Idempotency-Key", "Retry-After"):
        assert f"`{header}`" in page


def test_the_queries_of_the_page_can_be_sent(service):
    """The queries of the page cost what the page shows."""
    sent = re.findall(r"--data '([^']*)'", PAGE.read_text())
    assert len(sent) == 2
    for body in sent:
        assert (
            service.send("POST", "/v1/query", content=body, headers={"Content-Type": "application/json"}).status_code
            == 200
        )
    answer = service.ask(epsilon=1, delta="1e-8")
    shown = PAGE.read_text()
    for header in ("RateLimit-Policy", "RateLimit"):
        assert f"{header}: {answer.headers[header]}" in shown
    assert f"rho={answer.json()['charged']['rho']}, delta=5e-09" in shown


def test_metrics_need_no_key_and_hold_no_names(service):
    """/metrics may be read without a key, since no name is in it."""
    service.ask()
    answer = service.get("/metrics", None)
    assert answer.status_code == 200
    assert 'discreet_requests_total{route="POST /v1/query",status="200"} 1.0' in answer.text
    assert "ann" not in answer.text


def test_metrics_are_encoded_at_most_once_a_second(service, monkeypatch):
    """Anyone can request them, and with many series an encoding takes 30 ms of the event loop."""
    calls = []
    monkeypatch.setattr(observability, "generate_latest", lambda _: calls.append(1) or b"%d" % len(calls))
    assert [service.get("/metrics", None).content for _ in range(5)] == [b"1"] * 5
    service.monotonic.now += 1.0
    assert service.get("/metrics", None).content == b"2"


def test_metrics_can_be_moved_to_another_port(services):
    """The route does not exist then."""
    service = services(service="metrics_port = 9999")
    assert service.get("/metrics", None).status_code == 404
