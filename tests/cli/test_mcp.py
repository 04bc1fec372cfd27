"""`discreet mcp`: the tools over standard input and output."""

from __future__ import annotations

import json
import subprocess
import sys

import anyio
import pytest
from mcp import Client, StdioServerParameters

from discreet.service.stores import utc_now
from tests.client.running_service import running
from tests.mcp.agent import Agent, Person
from tests.service.deployment import Deployment

KEY = "dsc_0123456789abcdef_" + "5ec2e7" * 10 + "abcd"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Return a service, and the keys of its accounts."""
    deployment = Deployment(tmp_path_factory.mktemp("service") / "deployment", now=utc_now())
    with running(deployment.folder) as started:
        started.keys = deployment.keys
        yield started


def with_agent(service, work, who, *arguments, person=None, mode="auto", environment=None):
    """Run a function with an agent whose host starts the command."""
    command = ["-m", "discreet", "mcp", "--url", service.url, *arguments]
    environment = {"DISCREET_KEY": service.keys[who]} if environment is None else environment
    server = StdioServerParameters(command=sys.executable, args=command, env=environment)

    async def main():
        async with Client(server, elicitation_callback=person, mode=mode) as client:
            return await work(Agent(client))

    return anyio.run(main)


def test_a_loop_over_standard_input_ends_at_the_budget(service):
    """I1: the limit holds, and the person was asked about the large shares at the end."""
    person = Person()
    results = with_agent(service, lambda agent: agent.until_stopped(epsilon=3.0), "ann", person=person)
    assert len(results) > 2
    assert [result["stop"] for result in results] == [None] * (len(results) - 1) + ["budget"]
    assert person.asked
    balance = service.opened.manager.get("ann@sales").balance
    assert balance.spent.within(balance.account.limit)


def test_the_key_can_be_in_a_file_and_a_started_again_server_charges_nothing_twice(service, tmp_path):
    """Hosts start it again with each session."""
    (tmp_path / "key").write_text(service.keys["bob"])
    (tmp_path / "key").chmod(0o600)
    arguments = "--key-file", str(tmp_path / "key"), "--max-unasked-share", "0.1"

    async def work(agent):
        return await agent.query(epsilon=0.5), await agent.query(epsilon=7.0)

    first, again = [
        with_agent(service, work, "bob", *arguments, mode=mode, environment={}) for mode in ("auto", "legacy")
    ]
    assert [first[0]["charged"]["rho"] > 0, again[0]["charged"]["rho"]] == [True, 0]
    assert first[0]["rows"] == again[0]["rows"]
    assert [first[1]["stop"], again[1]["stop"]] == ["person", "person"]


def test_nothing_but_the_protocol_is_written(service):
    """Hosts show standard error to people, and keep it: no statement, no key."""
    version = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    sent = [{"id": 1, "method": "initialize", "params": version}, {"method": "notifications/initialized"}]
    for number, arguments in enumerate(({"sql": "falstaff"}, {"falstaff": 1}), start=2):
        sent.append({"id": number, "method": "tools/call", "params": {"name": "query", "arguments": arguments}})
    asked = "".join(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in sent) + "falstaff\n"
    done = subprocess.run(
        [sys.executable, "-m", "discreet", "mcp", "--url", service.url],
        input=asked,
        env={"DISCREET_KEY": service.keys["bob"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert all(line.startswith("{") for line in done.stdout.splitlines())
    assert done.stderr == ""
    assert service.keys["bob"] not in done.stdout


def test_a_key_that_is_refused_ends_it_at_once(service, run, monkeypatch):
    """The host shows the sentence, instead of an agent whose every call fails."""
    monkeypatch.setenv("DISCREET_KEY", KEY)
    ran = run("mcp", "--url", service.url)
    assert (ran.code, ran.out) == (2, "")
    assert "this needs a valid key" in ran.err
    assert KEY not in ran.err


def test_a_missing_key_or_share_is_refused(service, run, monkeypatch):
    """Before anything is sent."""
    monkeypatch.delenv("DISCREET_KEY", raising=False)
    assert run("mcp", "--url", service.url).code == 2
    ran = run("mcp", "--url", service.url, "--max-unasked-share", "1.5")
    assert ran.code == 2
    assert "0<=x<=1" in ran.err


def test_a_missing_sdk_is_reported_with_the_command_that_installs_it(service, run, monkeypatch):
    """The library alone does not install it."""
    monkeypatch.setenv("DISCREET_KEY", KEY)
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.delitem(sys.modules, "discreet.mcp.server", raising=False)
    ran = run("mcp", "--url", service.url)
    assert ran.code == 2
    assert "pip install '.[mcp]'" in ran.err


def test_a_service_that_cannot_be_reached_is_reported_by_each_call(service):
    """It may be there a minute later, so the server starts."""

    async def work(agent):
        return await agent.call("budget"), await agent.query()

    gone = type(service)("http://127.0.0.1:9", service.opened, service.gate, service.stream)
    gone.keys = service.keys
    for result in with_agent(gone, work, "bob", "--timeout", "2"):
        assert "http://127.0.0.1:9 cannot be reached" in result["wrong"]
        assert result["stop"] is None
