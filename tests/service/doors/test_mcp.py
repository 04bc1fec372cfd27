"""The tools for agents over HTTP: with the SDK's own client, and as raw requests to several workers."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
import tomllib
from fractions import Fraction
from pathlib import Path

import anyio
import httpx
import pytest

from discreet.budget.model import Account, Sliding
from discreet.cli.mcp import mcp
from discreet.errors import InputError
from discreet.service.answering.pool import StatementPool
from discreet.service.settings import Mcp
from discreet.service.stores import utc_now
from discreet.values import Cost
from tests.client.running_service import running
from tests.mcp.agent import TOTAL, Person, over_http
from tests.service.deployment import TOP, Deployment, Service, slug
from tests.service.test_hostile_requests import HEADERS, MAX_BODY, MAX_BODY_BYTES, MAX_CPU_SECONDS, TEXTS

AGENTS = Path(__file__).resolve().parents[3] / "docs" / "agents.md"
MCP = "[mcp]\nmax_unasked_share = 0.3"
QUERY = {"name": "query", "arguments": {"sql": TOTAL, "epsilon": 6.0}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a deployment with agents, which tests copy."""
    return Deployment(tmp_path_factory.mktemp("agents") / "deployment", service=MAX_BODY, rest=MCP, now=utc_now())


@pytest.fixture
def started(made, tmp_path):
    """Return a service with agents behind a real server, and the keys of its accounts."""
    with running(made.copy_to(tmp_path / "service").folder) as service:
        service.keys = made.keys
        yield service


def posted(service, key, method, params, *, version="2026-07-28", headers=None):
    """POST a JSON-RPC request, as a client of that version of the protocol does."""
    sent = {"Accept": "application/json, text/event-stream"}
    if version is not None:
        meta = {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
        }
        params = {**params, "_meta": meta}
        sent |= {"MCP-Protocol-Version": version, "Mcp-Method": method}
        sent |= {"Mcp-Name": params["name"]} if "name" in params else {}
    if key is not None:
        sent["Authorization"] = f"Bearer {key}"
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return httpx.post(f"{service.url}/mcp", headers=sent | (headers or {}), json=body, timeout=240)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_loop_over_http_ends_at_the_budget(started, mode):
    """I1: the limit holds for a client of the newest version of the protocol, and for one with a handshake."""
    person = Person()

    async def main():
        async with over_http(started.url, started.keys["ann"], person, mode) as agent:
            return await agent.until_stopped(epsilon=3.0)

    results = anyio.run(main)
    assert len(results) > 2
    assert [result["stop"] for result in results[:-1]] == [None] * (len(results) - 1)
    # Without sessions, a client with a handshake cannot be asked: it is refused where the other one asks.
    assert results[-1]["stop"] == {"auto": "budget", "legacy": "person"}[mode]
    assert bool(person.asked) == (mode == "auto")
    balance = started.opened.manager.get("ann@sales").balance
    assert balance.spent.within(balance.account.limit)
    assert balance.spent.rho > 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("tool", ["rehearse", "price", "query"])
def test_no_statement_of_an_agent_freezes_the_service(started, tool):
    """The statements of `test_hostile_requests`: none takes a second of the CPU of this process, which serves them."""
    key = started.keys["ann"]
    for name, text in TEXTS.items():
        began = time.process_time()
        reply = posted(started, key, "tools/call", {"name": tool, "arguments": {"sql": text, "epsilon": 0.5}})
        took = time.process_time() - began
        assert took < MAX_CPU_SECONDS, f"{name} takes {took:.2f} s of the service's CPU"
        assert reply.status_code < 413, f"{name} is {reply.status_code}: {reply.text[:300]}"


MCP_HEADERS = [
    ("MCP-Protocol-Version", "2026-07-28," * 5_000),
    ("Mcp-Method", "tools/" * 10_000),
    ("Mcp-Name", "=?base64?" + "QUFB" * 15_000 + "?="),
    ("Mcp-Name", b"\xff" * 60_000),
    ("Mcp-Session-Id", "a" * 60_000),
    ("Last-Event-ID", "1" * 60_000),
    ("Origin", "http://" + "a." * 30_000),
    ("Content-Type", "application/json;" + "a=b;" * 15_000),
]


def test_no_header_of_an_agent_freezes_the_service(started):
    """The headers of `test_hostile_requests`, and those of the protocol, with a key and without."""
    for name, text in HEADERS + MCP_HEADERS:
        for key in (None,) if name == "Authorization" else (started.keys["ann"], None):
            began = time.process_time()
            reply = posted(started, key, "tools/call", {"name": "price", "arguments": {}}, headers={name: text.strip()})
            took = time.process_time() - began
            assert took < MAX_CPU_SECONDS, f"{name}: {text[:20]} takes {took:.2f} s of the service's CPU"
            assert reply.status_code < 500, f"{name}: {text[:20]} is {reply.status_code}: {reply.text[:300]}"


@pytest.mark.parametrize("tool", ["price", "query"])
def test_a_statement_that_is_too_slow_to_read_is_no_missing_name(started, monkeypatch, tool):
    """The agent gets the sentence, and none of a name that does not exist."""
    split = StatementPool.split

    def slow(*arguments, **options):
        """Read it with no time left."""
        with monkeypatch.context() as patch:
            patch.setattr("discreet.service.answering.pool.MAX_SECONDS", 0.0)
            return split(*arguments, **options)

    monkeypatch.setattr(StatementPool, "split", slow)
    arguments = {"sql": f"SELECT 1 + ({TOTAL}) AS n", "epsilon": 0.5}
    reply = posted(started, started.keys["ann"], "tools/call", {"name": tool, "arguments": arguments})
    assert "takes more than 4 seconds to read" in reply.text
    assert "not-found" not in reply.text


def test_two_clients_that_send_the_same_call_are_charged_once(started):
    """A host that lost a connection sends it again, over another one."""
    answers = []

    async def once():
        async with over_http(started.url, started.keys["ann"]) as agent:
            answers.append(await agent.query(TOTAL.replace("reads", "loose"), epsilon=0.5))

    async def main():
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(once)

    anyio.run(main)
    assert [answer["rows"] for answer in answers] == [answers[0]["rows"]] * 3
    assert sum(answer["charged"]["rho"] > 0 for answer in answers) == 1


def test_the_consent_of_a_person_is_valid_at_every_worker_for_her_account_only(made, tmp_path):
    """Workers share a secret and nothing else; what the client holds meanwhile belongs to the key that was sent."""
    with (
        running(made.copy_to(tmp_path / "one").folder) as one,
        running(made.copy_to(tmp_path / "other").folder) as other,
    ):
        asked = posted(one, made.keys["ann"], "tools/call", QUERY).json()["result"]
        assert asked["resultType"] == "input_required"
        (name,) = asked["inputRequests"]
        agreed = {"inputResponses": {name: {"action": "accept", "content": {"spend": True}}}}
        agreed |= {"requestState": asked["requestState"]}
        assert TOTAL not in asked["requestState"]
        stolen = posted(other, made.keys["bob"], "tools/call", {**QUERY, **agreed}).json()
        assert stolen["error"]["message"] == "Invalid or expired requestState"
        changed = {"name": "query", "arguments": {**QUERY["arguments"], "epsilon": 7.0}}
        assert "error" in posted(other, made.keys["ann"], "tools/call", {**changed, **agreed}).json()
        for worker in (one, other):
            assert worker.opened.manager.get("ann@sales").balance.spent == Cost()
        answer = posted(other, made.keys["ann"], "tools/call", {**QUERY, **agreed}).json()["result"]
        assert answer["structuredContent"]["charged"]["share"] > 0.3


@pytest.mark.parametrize(
    ("who", "status", "problem"),
    [(None, 401, "unauthorized"), ("stranger", 401, "unauthorized"), ("officer", 403, "forbidden")],
)
@pytest.mark.parametrize("method", ["initialize", "tools/list", "tools/call"])
def test_every_request_needs_the_key_of_an_analyst(started, who, status, problem, method):
    """Also one that reads no data; the reply is that of the API."""
    for version in ("2026-07-28", None):
        reply = posted(started, started.keys.get(who, who), method, QUERY, version=version)
        assert (reply.status_code, slug(reply)) == (status, problem)


def test_there_are_no_streams_and_no_sessions(started):
    """Only POST is served, so nothing is kept open; a body has the limit of the API."""
    headers = {"Authorization": f"Bearer {started.keys['ann']}"}
    for method in ("GET", "DELETE", "PUT"):
        reply = httpx.request(method, f"{started.url}/mcp", headers=headers)
        assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    reply = posted(started, started.keys["ann"], "tools/list", {})
    assert reply.status_code == 200
    assert "mcp-session-id" not in reply.headers
    large = {"name": "query", "arguments": {"sql": TOTAL + " " * MAX_BODY_BYTES}}
    assert posted(started, started.keys["ann"], "tools/call", large).status_code == 413


def test_a_client_that_leaves_is_no_failure_of_the_service(started):
    """It is logged like one that leaves another door; nothing was read or charged."""
    host, port = started.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        head = f"Host: {host}\r\nAuthorization: Bearer {started.keys['ann']}\r\nContent-Length: 900"
        client.sendall(f"POST /mcp HTTP/1.1\r\n{head}\r\nContent-Type: application/json\r\n\r\n{{".encode())
    while not started.events("requested"):
        time.sleep(0.01)
    (event,) = started.events("requested")
    assert (event["route"], event["status"], event["problem"]) == ("POST /mcp", 503, "engine-unavailable")
    assert started.events("library_logged") == started.events("failed") == []


def test_requests_of_tools_are_limited_and_logged_like_those_of_the_api(started):
    """An officer sees in the log who asked; the statement is not in it."""
    posted(started, started.keys["ann"], "tools/call", {"name": "query", "arguments": {"sql": TOTAL}})
    routes = [event["route"] for event in started.events("requested")]
    assert routes == ["POST /v1/sql/within", "POST /mcp"]
    assert {event["account"] for event in started.events("requested")} == {"ann@sales"}
    assert "SELECT" not in started.stream.getvalue()


def test_the_examples_of_the_page_are_valid():
    """Files of hosts are JSON and TOML; each starts the command with options that it has, or names the address."""
    found = re.findall(r"^```(json|toml)\n(.*?)^```", AGENTS.read_text(), re.MULTILINE | re.DOTALL)
    files = [json.loads(text) if kind == "json" else tomllib.loads(text) for kind, text in found]
    assert files.pop(2) == {"mcp": {"max_unasked_share": Mcp().max_unasked_share}}
    options = {option for parameter in mcp.params for option in parameter.opts}
    for file in files:
        (servers,) = (file[name] for name in ("mcpServers", "mcp_servers", "servers") if name in file)
        (server,) = servers.values()
        if "command" in server:
            assert (server["command"], server["args"][0]) == ("discreet", "mcp")
            assert {argument for argument in server["args"] if argument.startswith("-")} <= options
        else:
            assert server["url"].endswith("/mcp")
            assert {"headers", "bearer_token_env_var"} & server.keys()


def test_the_documented_budget_pays_for_as_many_queries_as_the_page_says(services):
    """Epsilon 1 for four queries of epsilon 0.5."""
    assert "Epsilon 1 pays for four queries of epsilon 0.5." in AGENTS.read_text()
    service = services(accounts=[Account.of_epsilon("agent@example", 1.0, Fraction(2, 10**8), period=Sliding(30))])
    asked = [TOP.replace("GROUP", f"WHERE article <> '{number}' GROUP").replace("5", "2") for number in range(5)]
    statuses = [service.ask(sql, "agent", epsilon=0.5, delta="1e-9").status_code for sql in asked]
    assert statuses == [200] * 4 + [403]


def test_without_the_setting_there_is_no_door(service):
    """The address does not exist."""
    assert service.send("POST", "/mcp", json={}).status_code == 404


def test_a_missing_sdk_is_reported_with_the_command_that_installs_it(made, tmp_path, monkeypatch):
    """The extra service alone does not install it."""
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    with pytest.raises(InputError, match=r"pip install '.\[mcp\]'"), Service(made.copy_to(tmp_path / "service")):
        pass
