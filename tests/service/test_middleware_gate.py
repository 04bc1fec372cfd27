"""Limits of bodies, rates and concurrency, and disconnects."""

from __future__ import annotations

import json
import threading

import anyio
import pytest

from discreet.budget.rules import MAX_FAILURES
from discreet.service.middleware import MAX_CALLERS, ConcurrencyLimit, RateLimiter
from discreet.service.problems import TooManyRequests
from discreet.values import Cost
from tests.service.deployment import TOP


class Connection:
    """A request on a connection with both ends in the test.

    Args:
        service: that receives it.
        parts: of the body; the test sends the rest.
        headers: in addition to those of a query.
    """

    def __init__(self, service, parts, **headers):
        fields = {
            "host": "discreet.example",
            "authorization": f"Bearer {service.keys['ann']}",
            "content-type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/query",
            "raw_path": b"/v1/query",
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
            "server": ("discreet.example", 80),
            "client": ("client.example", 1),
            "state": {},
        }
        self.service, self.left, self.sent = service, list(parts), []
        self.read = 0
        self.closed = None
        self.disconnected = threading.Event()

    async def receive(self):
        """Return the next part of the body, then the end of the connection, once it is closed."""
        if self.left:
            self.read += 1
            part = self.left.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self.left)}
        if self.closed is None:
            self.closed = anyio.Event()
        await self.closed.wait()
        self.disconnected.set()
        return {"type": "http.disconnect"}

    async def send(self, message):
        """Record a message of the service."""
        self.sent.append(message)

    async def close(self):
        """Close the connection."""
        self.closed.set()

    async def go(self):
        """Send the request; return the status and the body."""
        await self.service.app(self.scope, self.receive, self.send)
        body = b"".join(message.get("body", b"") for message in self.sent)
        return self.sent[0]["status"], body


ASKED = json.dumps({"sql": TOP}).encode()


def test_a_body_with_too_large_a_content_length_is_not_read(service):
    """413, before a byte of it is read."""
    wire = Connection(service, [ASKED], content_length="4097")
    status, body = service.portal.call(wire.go)
    assert (status, json.loads(body)["type"]) == (413, "/problems/too-large")
    assert wire.read == 0
    assert "4,096" in json.loads(body)["detail"]


def test_a_body_is_not_read_beyond_the_limit(service):
    """Whatever length is declared, parts beyond the limit are not read."""
    wire = Connection(service, [b" " * 1000] * 100)
    status, body = service.portal.call(wire.go)
    assert (status, json.loads(body)["type"]) == (413, "/problems/too-large")
    assert wire.read == 5


def test_a_body_of_the_largest_size_is_answered(service):
    """In one part or many, with and without a declared length."""
    long = ASKED.ljust(4096)
    for parts, headers in (([long], {"content_length": "4096"}), ([long[:10], long[10:]], {}), ([long], {})):
        assert service.portal.call(Connection(service, parts, **headers).go)[0] == 200
    assert service.portal.call(Connection(service, [ASKED.ljust(4097)]).go)[0] == 413


def test_an_incomplete_request_has_no_effect(service):
    """The connection is closed in the middle of the body."""
    wire = Connection(service, [])
    wire.closed = anyio.Event()
    wire.closed.set()
    service.portal.call(wire.go)
    assert service.balance().spent == Cost()
    assert not service.events("failed")


def test_a_client_that_disconnects_stops_the_engine_and_pays(service):
    """I3: the run is forfeited, so that disconnecting is not free; a retry is paid for, and none suspends."""
    engine, started, stopped = service.warehouse.engine("reads"), threading.Event(), []
    head = engine.head

    def slow(_, progress, **__):
        started.set()
        for _ in range(600):
            try:
                progress(0.5)
            except BaseException as error:
                stopped.append(type(error).__name__)
                raise
            never.wait(0.1)
        raise AssertionError("the engine was not stopped")

    never = threading.Event()
    engine.head = slow
    forfeited = set()
    for _ in range(MAX_FAILURES):
        wire = Connection(service, [ASKED])
        started.clear()
        answer = service.portal.start_task_soon(wire.go)
        assert started.wait(60)
        service.portal.call(wire.close)
        answer.result(60)
        forfeited.add(service.balance().forfeited)
    assert stopped == ["ClientDisconnected"] * MAX_FAILURES
    assert [event["cause"] for event in service.events("forfeited")] == ["client-gone"] * MAX_FAILURES
    (forfeited,) = forfeited
    assert forfeited.rho > 0
    engine.head = head
    assert service.ask().status_code == 200
    assert service.balance().spent.rho < forfeited.rho


def test_a_client_that_disconnects_before_the_data_is_read_pays_nothing(service):
    """The connection was closed while the query was planned."""
    plan, planning, go_on = service.warehouse.key_context, threading.Event(), threading.Event()

    def slow(dataset):
        planning.set()
        assert go_on.wait(60)
        return plan(dataset)

    service.warehouse.key_context = slow
    wire = Connection(service, [ASKED])
    answer = service.portal.start_task_soon(wire.go)
    assert planning.wait(60)
    service.portal.call(wire.close)
    assert wire.disconnected.wait(60)
    service.portal.call(anyio.lowlevel.checkpoint)  # the handler of the disconnect has run by then
    go_on.set()
    answer.result(60)
    assert service.balance().spent == Cost()
    assert not service.events("released")


def test_more_than_half_of_the_slots_are_refused_to_one_account(services):
    """T24: one account gets at most half of the slots; others get the rest; a released slot is free again."""
    service = services(service="max_concurrent_queries = 4")
    engine, running, go_on = service.warehouse.engine("daily"), threading.Semaphore(0), threading.Event()
    head = engine.head

    def slow(*arguments, **named):
        running.release()
        assert go_on.wait(60)
        return head(*arguments, **named)

    engine.head = slow
    daily = TOP.replace("reads", "daily")

    def start(who, k):
        asked = {"sql": daily.replace("5", str(k))}
        return service.portal.start_task_soon(lambda: service.sending("POST", "/v1/query", who, json=asked))

    first = start("ann", 1)
    second = start("ann", 2)
    assert running.acquire(timeout=60)
    assert running.acquire(timeout=60)
    third = service.ask(daily)
    assert third.status_code == 429
    assert third.json()["type"] == "/problems/too-many-requests"
    assert third.headers["retry-after"] == "1"
    assert service.ask(who="bob").status_code == 200
    go_on.set()
    assert {first.result(60).status_code, second.result(60).status_code} == {200}
    assert service.ask(daily).status_code == 200


def test_slots_have_a_total_and_half_of_it_for_each_account():
    """In all, and half of them for each account, at least one."""
    places = ConcurrencyLimit(3)
    with places.slot("a"):
        with pytest.raises(TooManyRequests), places.slot("a"):
            pass
        with places.slot("b"), places.slot("c"), pytest.raises(TooManyRequests), places.slot("d"):
            pass
    with places.slot("a"), places.slot("b"), places.slot("c"):
        pass


def test_a_rate_limited_key_gets_retry_after(services):
    """A minute's requests at once, then one by one; other keys are not limited by it."""
    service = services(service="requests_per_minute = 3")
    answers = [service.get("/v1/datasets") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[-1].json()["type"] == "/problems/too-many-requests"
    assert answers[-1].headers["retry-after"] == "20"
    assert service.get("/v1/datasets", "bob").status_code == 200
    service.monotonic.now += 20
    assert [service.get("/v1/datasets").status_code for _ in range(2)] == [200, 429]


def test_cached_answers_count_against_the_rate_limit(services):
    """Replays from the cache have the same limit."""
    service = services(service="requests_per_minute = 3")
    assert [service.ask().status_code for _ in range(5)] == [200, 200, 200, 429, 429]


def test_rates_are_kept_for_a_bounded_number_of_keys():
    """A forgotten key had the fullest bucket."""
    now = [0.0]
    rates = RateLimiter(2, lambda: now[0])
    rates.take("busy")
    rates.take("busy")
    for number in range(2 * MAX_CALLERS):
        rates.take(f"somebody {number}")
    assert len(rates._buckets) <= MAX_CALLERS
    with pytest.raises(TooManyRequests):
        rates.take("busy")
    now[0] = 30.0
    rates.take("busy")
