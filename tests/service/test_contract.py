"""The service conforms to its OpenAPI description: valid and invalid requests generated from it.

No request gets a 5xx, an undescribed status or header, or an answer of another shape, and the ledger verifies
afterwards. `DISCREET_EXAMPLES=1000 pytest tests/service/test_contract.py` sends more requests.
"""

from __future__ import annotations

import json
import os

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    missing_required_header,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from discreet.service.doors.http.query import QueryAPI
from discreet.service.officer.admin import AdminAPI
from discreet.values import Cost
from tests.budget.suite import set_limit
from tests.service.faults.strategies import QUESTIONS

from .deployment import ACT, DELTA, KNOWN, Deployment, declared

EXAMPLES = int(os.environ.get("DISCREET_EXAMPLES", "5"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    missing_required_header,
]
OPERATIONS = [
    *((about.method, about.path.replace(":path}", "}")) for about in (*declared(QueryAPI), *declared(AdminAPI))),
    *(("GET", path) for path in ("/healthz", "/readyz")),
]
THERE = {"name": "reads", "dataset": "reads", "account": "ann@sales"}
"""Path parameters of existing objects."""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Return a service with an answer, its description, and its responses so far."""
    deployment = Deployment(tmp_path_factory.mktemp("contract") / "deployment", service="max_body_bytes = 1000000")
    with deployment.open() as opened:
        opened.maintenance.once()
        for account in ("sales", "ann@sales"):
            set_limit(opened.manager.store, account, Cost(10**6, DELTA / 2), DELTA, ACT)
        given_ = opened.ask()
        saved = opened.send("PUT", f"/v1/tables/{THERE['name']}", json={"sql": KNOWN})
        assert saved.status_code == 200, saved.text
        opened.there = {**THERE, "id": given_.headers["discreet-release"], "key": deployment.keys["bob"][4:20]}
        opened.schema = schemathesis.openapi.from_dict(opened.send("GET", "/openapi.json", None).json())
        yield opened


def test_every_route_is_described_and_tried(service):
    """Every operation is tested here, and every described one exists."""
    described = {(found.ok().method.upper(), found.ok().path) for found in service.schema.get_all_operations()}
    assert described == set(OPERATIONS)


def role_of(path):
    """Return the role whose key may call a route."""
    if path.startswith("/v1/admin"):
        return "admin" if "/keys" in path else "officer"
    return "ann"


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        (method, path, mode)
        for method, path in OPERATIONS
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        if path.startswith("/v1") or mode is GenerationMode.POSITIVE  # no request for health is invalid
    ],
)
def test_every_response_to_generated_requests_is_described(service, method, path, mode):
    """Schemathesis sends the requests with a valid key; half of the path parameters exist."""
    service.opened.maintenance.once()
    for account in ("sales", "ann@sales"):
        service.manager.store.lift(account, ACT)  # generated requests suspend them, too
    operation = service.schema[path][method]
    existing = {name: value for name, value in service.there.items() if f"{{{name}}}" in path}
    strategy = operation.as_strategy(generation_mode=mode)
    if existing and mode is GenerationMode.POSITIVE:
        strategy |= operation.as_strategy(generation_mode=mode, path_parameters=existing)

    statuses = set()

    @given(strategy)
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def run(case):
        case.headers["Authorization"] = f"Bearer {service.deployment.keys[role_of(path)]}"
        sent = case.as_transport_kwargs(base_url="http://discreet.example")
        reply = service.portal.call(_send, service, sent)
        statuses.add(reply.status_code)
        case.validate_response(reply, checks=CHECKS)

    run()
    assert not {401, 403} & statuses  # the key was accepted
    if method == "GET" and mode is GenerationMode.POSITIVE:
        assert 200 in statuses


async def _send(service, sent):
    transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
    body = sent.get("data")
    async with httpx.AsyncClient(transport=transport) as client:
        request = client.build_request(
            sent["method"],
            sent["url"],
            params=sent.get("params"),
            headers=sent.get("headers"),
            cookies=sent.get("cookies"),
            json=sent.get("json"),
            content=body,
        )
        return await client.send(request)


@pytest.mark.parametrize("path", ["/v1/query", "/v1/estimate"])
def test_malformed_queries_are_answered_or_refused_as_described(service, path):
    """Nearly valid queries: refusals are problems of the service, and answers are as described."""
    operation = service.schema[path]["POST"]
    headers, statuses = {"Content-Type": "application/json"}, set()

    @given(QUESTIONS)
    @settings(max_examples=EXAMPLES * 10, derandomize=True, database=None, deadline=None)
    def run(question):
        reply = service.send("POST", path, content=json.dumps(question), headers=headers)
        statuses.add(reply.status_code)
        operation.Case(body=question).validate_response(reply, checks=CHECKS)

    run()
    assert statuses == {200, 400, 422}
