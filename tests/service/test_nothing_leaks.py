"""T16, T17: outputs of the service other than answers reveal no protected data.

One run with every kind of failure, over a table whose counts, users and labels are recognisable in any output; then
all of its outputs are searched.
"""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from discreet.errors import EngineError
from discreet.service.auth.access import GRANT, grant_name
from discreet.service.observability import OpenTelemetryTracer
from discreet.service.stores import utc_now
from tests.client.running_service import running

from . import deployment
from .canaries import (
    CATALOG,
    COUNTS,
    NOISE,
    RARE,
    TYPED,
    USER,
    find_leaks,
    make_table,
    private_patterns,
    secret_patterns,
)

TOP = "SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article LIMIT 5"
BROKEN = TOP.replace("reads", "broken WHERE age > 3")
STRANGER = "dsc_00000000000ca11b_" + "ca11ba11" * 8
ASKED = {"epsilon": 0.01, "delta": "1e-9"}
ACT = {"reason": "because"}


class Run:
    """A service, and all of its outputs.

    Attributes:
        answers: bodies that may hold labels and noisy counts.
        other_bodies: all other bodies: problems, budgets, responses to officers.
        headers: of all replies.
        statuses: of all replies.
        keys: all that exist, or that were tried.
    """

    def __init__(self, started, keys):
        self.started, self.keys = started, {**keys, "stranger": STRANGER}
        self.answers, self.other_bodies, self.headers, self.statuses = [], [], [], []
        self._http = httpx.Client(base_url=started.url, timeout=60)

    def ask(self, method, path, who=None, **sent):
        """Send a request, and sort the response."""
        headers = {**({} if who is None else {"Authorization": f"Bearer {self.keys[who]}"}), **sent.pop("headers", {})}
        reply = self._http.request(method, path, headers=headers, **sent)
        self.statuses.append(reply.status_code)
        self.headers += [name + b": " + value for name, value in reply.headers.raw]
        is_answer = reply.status_code == 200 and path.startswith(("/v1/query", "/v1/releases"))
        is_answer |= path == "/mcp" and b'"charged":{' in reply.content
        (self.answers if is_answer else self.other_bodies).append(reply.content)
        return reply

    def query(self, sql, who="ann", **sent):
        """Send a query."""
        headers = sent.pop("headers", {})
        return self.ask("POST", "/v1/query", who, json={"sql": sql, **ASKED, **sent}, headers=headers)

    def close(self):
        """Close the service."""
        self._http.close()


def answers(run):
    """Send queries that are answered: in every form, repeated, and from the cache."""
    for accept in ("application/json", "text/csv", "application/vnd.apache.arrow.stream"):
        assert run.query(TOP, headers={"Accept": accept}).status_code == 200
    for _ in range(3):  # from the store at first, then from the cache
        assert run.query(TOP).headers["Discreet-Replayed"] == "?1"
    assert run.query(TOP, "bob").status_code == 200
    assert run.query(TOP.replace(" LIMIT 5", ""), epsilon=1.0).status_code == 200
    assert run.query("SELECT COUNT(DISTINCT reader) FROM reads").status_code == 200
    assert run.query(
        f"SELECT article, SUM(minutes) FROM reads WHERE article <> '{TYPED}' GROUP BY article LIMIT 2"
    ).is_success
    assert run.ask("POST", "/v1/estimate", "ann", json={"sql": TOP, **ASKED}).is_success
    releases = run.ask("GET", "/v1/releases", "ann").json()["releases"]
    assert run.ask("GET", f"/v1/releases/{releases[0]['id']}", "ann").is_success
    for path in ("/v1/budget", "/v1/datasets", "/v1/datasets/reads"):
        assert run.ask("GET", path, "ann").is_success


def refusals(run):
    """Send queries that are refused: for their content, their sender, or the budget."""
    statements = [
        f"SELECT article, COUNT(DISTINCT reader) FROM reads WHERE article = '{TYPED}' OR",
        f"SELECT article FROM reads WHERE article = '{TYPED}'; DROP TABLE reads",
        TOP.replace("article", "artikle"),
        TOP.replace("reads", "secret"),
        TOP.replace("reads", "nothing"),
        TOP.replace("LIMIT 5", "LIMIT 5000000"),
    ]
    assert [run.query(statement).status_code for statement in statements] == [400, 400, 404, 404, 404, 422]
    for who in (None, "stranger", "officer"):
        assert run.query(TOP, who).status_code in (401, 403)
    assert run.ask("GET", "/v1/budget", headers={"Authorization": f"Basic {TYPED}"}).status_code == 401
    assert run.query(TOP, epsilon=9.9, headers={"Accept": "image/png"}).status_code == 406
    assert run.ask("POST", "/v1/query", "ann", content=b"{" + TYPED.encode()).status_code in (400, 415)
    assert run.ask("POST", "/v1/query", "ann", json={"sql": TOP, TYPED: 1}).status_code == 400
    assert run.ask("POST", "/v1/query", "ann", json={"sql": TOP + " " * 100_000}).status_code == 413
    assert run.ask("GET", f"/v1/datasets/{TYPED}", "ann").status_code == 404
    assert run.ask("GET", f"/v1/{TYPED}", "ann").status_code == 404
    assert run.ask("GET", f"/v1/budget?{TYPED}=1", "ann").status_code == 422
    assert run.ask("GET", f"/v1/releases/{'ab' * 32}", "bob").status_code == 404
    assert run.query(TOP, headers={"Idempotency-Key": "one"}).is_success
    assert run.query(TOP, headers={"Idempotency-Key": "one"}, epsilon=0.02).status_code == 409
    assert run.query(TOP, "bob", delta="1e-6").status_code == 403


def failures(run):
    """Run queries that fail after the data was read, by engines and bugs with data in their messages."""
    assert run.query(BROKEN).status_code == 503
    words = f"{COUNTS} of {USER}17 at {RARE}, noise {NOISE!r}"
    failing = [EngineError(words), RuntimeError(words), KeyError(words), MemoryError(words)]
    for number, error in enumerate(failing):
        run.started.gate.failing = error
        assert run.query(TOP, epsilon=0.03 + number / 100).status_code in (500, 503)
    run.started.gate.failing = None
    assert run.query(TOP, epsilon=0.2).status_code == 403  # suspended by now
    with socket.create_connection(run.started.url[7:].split(":")) as gone:
        run.started.gate.open.clear()
        while run.started.gate.arrived.acquire(blocking=False):
            pass
        body = json.dumps({"sql": TOP, "epsilon": 0.3}).encode()
        head = (
            f"POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        )
        gone.sendall(f"{head}Authorization: Bearer {run.keys['bob']}\r\n\r\n".encode() + body)
        assert run.started.gate.arrived.acquire(timeout=60)
    while run.started.gate.left.acquire(blocking=False):
        pass
    assert run.started.gate.left.acquire(timeout=60)
    run.started.gate.open.set()


def agents(run):
    """Call the tools: answers, refusals, failures with data in their messages, and arguments that do not exist."""

    def call(tool, who="ann", **arguments):
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        accepted = {"Accept": "application/json, text/event-stream"}
        reply = run.ask("POST", "/mcp", who, json=body, headers=accepted)
        return reply.json().get("result", {}).get("structuredContent", {})

    assert call("query", sql=TOP, epsilon=0.01)["rows"]
    assert call("query", "bob", sql=TOP, epsilon=9.0)["wrong"]
    for tool in ("rehearse", "price", "query"):
        for sql in (f"SELECT '{TYPED}' FROM reads", TOP.replace("reads", "secret"), TOP.replace("article", TYPED)):
            assert call(tool, sql=sql)["wrong"]
        assert call(tool, **{"sql": TOP, TYPED: 1}) == {}
    assert call("describe_dataset", name=TYPED)["wrong"]
    assert call("query", "stranger", sql=TOP) == {}
    run.started.gate.failing = RuntimeError(f"{COUNTS} of {USER}17 at {RARE}, noise {NOISE!r}")
    ranked = TOP.replace("LIMIT", "ORDER BY COUNT(DISTINCT reader) DESC LIMIT")
    assert call("query", "bob", sql=ranked, epsilon=0.07)["wrong"]
    run.started.gate.failing = None


def administration(run):
    """Call the routes of officers and administrators; the new key is shown once, and is not searched for."""
    made = run.ask("POST", "/v1/admin/keys", "admin", json={"account": "bob@sales", "roles": ["analyst"], **ACT})
    assert made.status_code == 201
    run.other_bodies.remove(made.content)
    run.keys["made"] = made.json()["key"]
    assert run.ask("GET", "/v1/admin/keys", "admin").is_success
    lift = run.ask("POST", "/v1/admin/accounts/ann@sales/lift", "officer", json=ACT)
    assert lift.is_success
    for path in (
        "accounts",
        "accounts/ann@sales",
        "grants",
        "settings",
        "ledger?limit=1000",
        "activity?kind=all&limit=1000",
    ):
        assert run.ask("GET", f"/v1/admin/{path}", "officer").is_success
    for chain in range(1, 20):
        run.ask("GET", f"/v1/admin/ledger?chain={chain}&limit=1000", "officer")
    assert run.ask("POST", "/v1/admin/ledger/verify", "officer", json=ACT).json()["sound"] is True
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
        run.ask("GET", path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return one complete run, with its outputs by the place where they were found."""
    folder, exporter = tmp_path_factory.mktemp("service"), InMemorySpanExporter()
    make_table(folder)
    settings = {"rest": "[mcp]", "catalog": CATALOG, "granted": None, "noise": NOISE, "now": utc_now()}
    keys = deployment.Deployment(folder, **settings).keys
    tracer = OpenTelemetryTracer(SimpleSpanProcessor(exporter))
    with running(folder, tracer) as started:
        started.opened.manager.store.put_record(GRANT, grant_name("sales", "secret"), None, deployment.ACT)
        done = Run(started, keys)
        try:
            for part in (answers, refusals, agents, failures, administration):
                part(done)
        finally:
            done.close()
        done.metrics = started.opened.metrics.text()
        done.ledger = "\n".join(map(repr, started.opened.manager.store.lines())).encode()
        done.files = {path.name: path.read_bytes() for path in folder.glob("budget.db*")}
    tracer.close()
    done.spans = exporter.get_finished_spans()
    return done


def test_the_run_covers_every_status_and_event(run):
    """All kinds of responses, events and spans occurred."""
    assert {200, 201, 400, 401, 403, 404, 406, 409, 413, 415, 422, 500, 503} <= set(run.statuses)
    events = {json.loads(line)["event"] for line in run.started.stream.getvalue().splitlines()}
    assert events >= {"requested", "released", "refused", "forfeited", "denied", "admin_changed", "failed"}
    causes = {event["cause"] for event in run.started.events("forfeited")}
    assert causes == {"engine", "internal", "client-gone"}
    assert {event["source"] for event in run.started.events("released")} == {"engine", "store"}
    assert any("release" in event for event in run.started.events("requested"))  # from the cache
    assert {span.name for span in run.spans} >= {"request", "plan", "reserve", "engine", "noise", "settle"}
    assert len(run.answers) >= 9
    assert b"tides-magdalena" in b"".join(run.answers)


def test_logs_metrics_spans_headers_and_ledger_hold_no_protected_value(run):
    """No count, user, label, secret, nor any text of an analyst."""
    spans = "\n".join(span.to_json() for span in run.spans).encode()
    places = {
        "the log": run.started.stream.getvalue().encode(),
        "the metrics": run.metrics,
        "the spans": spans,
        "the headers": b"\n".join(run.headers),
        "the ledger": run.ledger,
    }
    assert all(places.values())
    assert find_leaks(places, private_patterns(run.keys.values())) == []


def test_problems_and_other_responses_hold_no_protected_value(run):
    """Problems may repeat text of the analyst's request only."""
    assert find_leaks({"a body": b"\n".join(run.other_bodies)}, secret_patterns(run.keys.values())) == []


def test_answers_hold_no_user_and_no_secret(run):
    """Their counts are noisy; an item of a single user is in none of them."""
    wanted = {name: what for name, what in secret_patterns(run.keys.values()).items() if "count" not in name}
    assert find_leaks({"an answer": b"\n".join(run.answers)}, wanted) == []


def test_the_files_of_the_store_hold_answers_but_no_counts_and_no_secrets(run):
    """The store has released answers, and hashes of keys."""
    assert set(run.files) >= {"budget.db"}
    assert b"tides-magdalena" in b"".join(run.files.values())
    assert find_leaks(run.files, secret_patterns(run.keys.values())) == []


def test_arguments_environment_and_output_of_the_process_hold_no_secret(tmp_path):
    """T9: not in its arguments, which every user of the machine can read, nor its environment, nor its output."""
    make_table(tmp_path)
    keys = deployment.Deployment(tmp_path, catalog=CATALOG, granted=None, noise=NOISE, now=utc_now()).keys
    command = [sys.executable, "-m", "discreet", "serve", str(tmp_path / "discreet.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        announced = process.stderr.readline()
        url = announced.decode().split()[-1]
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {keys['ann']}"}, timeout=60) as http:
            for sql, status in ((TOP, 200), (BROKEN, 503), (TYPED, 400)):
                assert http.post("/v1/query", json={"sql": sql, **ASKED}).status_code == status
        shown = {name: Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("cmdline", "environ")}
        process.terminate()
        out, rest = process.communicate(timeout=60)
    assert b'"event": "released"' in out
    assert shown["cmdline"]
    assert process.returncode == 0
    assert (
        find_leaks({**shown, "stdout": out, "stderr": announced + rest}, private_patterns([*keys.values(), STRANGER]))
        == []
    )


@pytest.mark.parametrize(
    "leak",
    [
        b"1031717",
        b'"n": 1031717.0,',
        b"1,031,717",
        b"1_093_519 readers",
        b"1.093519e+06",
        (1_031_717).to_bytes(8, "little"),
        b"count=2125236",
        b"uq7z-17",
        RARE.encode(),
        NOISE,
        NOISE.hex().encode(),
        repr(NOISE).encode(),
        base64.b64encode(NOISE),
        STRANGER.encode(),
        STRANGER[21:].encode(),
    ],
)
def test_the_search_finds_every_form_of_a_protected_value(leak):
    """Each form of a protected value is found, surrounded by permitted text."""
    text = b'{"time": "2026-11-20T04:05:06.789+00:00", "rho": 0.0165, "x": ' + leak + b', "status": 200}\n'
    assert find_leaks({"here": text}, secret_patterns([STRANGER])) != []


@pytest.mark.parametrize(
    "text", [b"10317170", b"0.1031717", b"tides-magdalena", TYPED.encode(), b"dsc_00000000000ca11b_"]
)
def test_the_search_finds_nothing_in_permitted_text(text):
    """Other numbers, ids of keys, and labels and constants where these are permitted, are not found."""
    assert find_leaks({"here": text}, secret_patterns([STRANGER])) == []


@pytest.mark.parametrize("text", [b"tides-magdalena", TYPED.encode()])
def test_the_search_finds_labels_and_constants_where_they_are_not_permitted(text):
    """Labels and constants are found where these are not permitted."""
    assert find_leaks({"here": text}, private_patterns([STRANGER])) != []
