"""The Trino client protocol: nothing is charged twice, whatever a client sends again, and whichever process answers."""

from __future__ import annotations

import base64
import json
import re
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from urllib.parse import urlsplit

import pytest

from discreet.budget.errors import AccountSuspended
from discreet.budget.model import Refusal
from discreet.errors import EngineError
from discreet.query.query import ROWS_NOTE
from discreet.service.answering.trino.errors import trino_error
from discreet.service.doors import trino as protocol
from discreet.service.problems import UnaffordableQuery, problem_of
from discreet.values import Cost
from discreet.wire.problems import Fitting, Together
from discreet.wire.queries import Spend
from tests.service.deployment import KNOWN, FakeMonotonic, shared_pool
from tests.service.test_problems_of_errors import ERRORS
from tests.service.trino_client import Blocked, answered, error, last, page, post, rows, run

LOOSE = "SELECT article, COUNT(DISTINCT reader) AS readers FROM loose GROUP BY article ORDER BY readers DESC LIMIT 3"
"""A query of data without a version: only its idempotency key makes it the same query again."""


@pytest.fixture
def fast(monkeypatch):
    """Make pages wait for a moment only."""
    monkeypatch.setattr(protocol, "MAX_WAIT_SECONDS", 0.05)


def with_settings(deployment, **settings):
    """Change settings of the section service."""
    service = deployment.settings.service.model_copy(update=settings)
    deployment.settings = deployment.settings.model_copy(update={"service": service})


# ------------------------------------------------------------------------------------------- charged once


def test_a_post_reads_no_data_and_is_never_charged(service):
    """I4: clients send it again when they get no response; only the page that they follow is answered."""
    service.no_engine()
    replies = [post(service, LOOSE) for _ in range(5)]
    assert {reply.json()["stats"]["state"] for reply in replies} == {"QUEUED"}
    assert len({reply.json()["nextUri"] for reply in replies}) == 5
    assert service.balance().spent == Cost()


def test_a_page_of_data_without_a_version_is_charged_once(service):
    """I4: the idempotency key is in its address."""
    first = post(service, LOOSE)
    answers = [last(service, first)["data"] for _ in range(3)]
    assert answers[0] == answers[1] == answers[2] != []
    assert service.engines.queried == 1
    spent = service.balance().spent
    assert spent != Cost()
    assert rows(service, LOOSE) != answers[0]
    assert service.balance().spent == Cost(2 * spent.rho, 2 * spent.delta)


@pytest.mark.usefixtures("fast")
def test_pages_requested_at_once_are_charged_once(deployment):
    """I4: a client that gives up waiting asks again while the query runs."""
    with deployment.open() as service, ThreadPoolExecutor(4) as pool:
        first, blocked = post(service, LOOSE), Blocked(service)
        replies = [pool.submit(page, service, first) for _ in range(4)]
        states = [reply.result(60).json()["stats"]["state"] for reply in replies]
        blocked.go_on.set()
        assert set(states) <= {"QUEUED", "RUNNING"}
        assert last(service, first)["data"]
        assert service.engines.queried == 1


def test_any_process_answers_a_page_and_charges_it_once(service):
    """Nothing of a statement is kept in memory: its address holds everything."""
    first = post(service, LOOSE, session={"epsilon": 0.5})
    service.reopen()
    second = last(service, first)["data"]
    spent = service.balance().spent
    service.reopen()
    service.no_engine()
    assert last(service, first)["data"] == second
    assert service.balance().spent == spent


def test_a_page_whose_process_died_is_paid_by_what_it_forfeited(service):
    """I3: the run that failed stays charged, and pays for the same page."""

    def fail(*_):
        raise EngineError("lost")

    first = post(service, LOOSE)
    service.engines.head = fail
    assert last(service, first)["error"]["errorType"] == "EXTERNAL"
    forfeited = service.balance().forfeited
    assert forfeited != Cost()
    service.engines.head = None
    assert last(service, first)["data"]
    assert service.balance().forfeited == Cost()
    assert service.balance().spent.within(forfeited)


def test_the_pages_after_the_first_are_free(service, monkeypatch):
    """A later page is the same request in any process: a replay, without the engine."""
    monkeypatch.setattr(protocol, "MAX_PAGE_ROWS", 1)
    replies = [answered(service, post(service, LOOSE))]
    spent = service.balance().spent
    service.reopen()
    service.no_engine()
    while "nextUri" in replies[-1].json():
        again = [answered(service, replies[-1]) for _ in range(2)]
        assert again[0].json()["data"] == again[1].json()["data"]
        replies.append(again[0])
    assert [len(reply.json()["data"]) for reply in replies] == [1, 1, 1]
    assert len({reply.json()["data"][0][0] for reply in replies}) == 3
    assert service.balance().spent == spent


def test_the_pages_of_an_answer_are_computed_once(service, monkeypatch):
    """They wait for the client until it has asked for the last one, also for one that it asks for twice."""
    monkeypatch.setattr(protocol, "MAX_PAGE_ROWS", 1)
    computed = []
    compute = shared_pool().compute

    def counted(*arguments, **named):
        computed.append(named["form"])
        return compute(*arguments, **named)

    monkeypatch.setattr(shared_pool(), "compute", counted)
    first = answered(service, post(service, KNOWN))
    second = [answered(service, first) for _ in range(2)]
    third = answered(service, second[0])
    assert [len(reply.json()["data"]) for reply in (first, *second, third)] == [1, 1, 1, 1]
    assert "nextUri" not in third.json()
    assert computed == ["trino"]


# ------------------------------------------------------------------------------------- long queries, cancel


@pytest.mark.usefixtures("fast")
def test_a_query_of_minutes_is_answered_with_its_progress_until_it_is_done(deployment):
    """The client asks the same address again after 60 s and more; elapsed time and progress are in the stats."""
    monotonic = FakeMonotonic()
    with deployment.open(monotonic=monotonic, pause=monotonic.pause) as service:
        first, blocked = post(service, LOOSE), Blocked(service)
        running = page(service, first)
        assert blocked.begun.wait(60)
        while running.json()["stats"]["progressPercentage"] != 50:
            running = page(service, running)
        for minutes in range(1, 4):
            monotonic.now += 60
            deployment.clock.pass_(minutes=1)
            running = page(service, running)
            assert running.json()["stats"]["state"] == "RUNNING"
            assert running.json()["stats"]["elapsedTimeMillis"] == 60_000 * minutes
            assert running.json()["nextUri"] == first.json()["nextUri"]
            assert "data" not in running.json()
        blocked.go_on.set()
        assert last(service, running)["data"]
        assert service.engines.queried == 1


@pytest.mark.usefixtures("fast")
def test_delete_cancels_a_query(deployment):
    """Ctrl-C in a client: the engine stops; what it had read is paid for, and pays for the same query."""
    with deployment.open() as service:
        first, blocked = post(service, LOOSE), Blocked(service)
        running = page(service, first)
        assert blocked.begun.wait(60)
        assert page(service, running, method="DELETE").status_code == 204
        polls = 0
        while "nextUri" in running.json() and polls < 1_000:
            running, polls = page(service, running), polls + 1
        assert running.json()["error"]["errorName"] == "USER_CANCELED"
        assert service.events("forfeited")[0]["cause"] == "client-gone"


@pytest.mark.usefixtures("fast")
def test_a_query_without_a_free_slot_is_held(deployment):
    """429 and 409 are not sent: clients would not ask again."""
    with_settings(deployment, max_concurrent_queries=1)
    with deployment.open() as service:
        blocked = Blocked(service)
        first = page(service, post(service, LOOSE))
        assert blocked.begun.wait(60)
        second = page(service, post(service, KNOWN))
        assert second.status_code == 200
        assert second.json()["stats"]["state"] == "QUEUED"
        blocked.go_on.set()
        assert last(service, first)["data"]
        assert last(service, second)["data"]


def test_a_caller_above_its_rate_is_held_and_then_sent_away_with_503(services, monkeypatch):
    """Clients send a request again after 503, and not after 429."""
    service = services(service="requests_per_minute = 2")
    assert [post(service, "SELECT 1").status_code for _ in range(4)] == [200, 200, 503, 503]
    monkeypatch.setattr(protocol, "MAX_HELD_SECONDS", 60.0)
    assert post(service, "SELECT 1").status_code == 200


# ------------------------------------------------------------------------------------------ who may ask


def test_a_wrong_key_gets_401_with_a_challenge(service):
    """Clients show the sentence, and ask for a password."""
    for header in (None, "Bearer nothing", "Basic !", f"Basic {base64.b64encode(b'ann:wrong').decode()}"):
        headers = {} if header is None else {"Authorization": header}
        reply = service.send("POST", "/v1/statement", None, content=b"SELECT 1", headers=headers)
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"] == 'Basic realm="Discreet"'
        assert "password" in reply.text


def test_the_password_is_the_key(service):
    """The user's name is not read: the key names the account."""
    basic = base64.b64encode(f"anyone:{service.keys['ann']}".encode()).decode()
    reply = service.send(
        "POST", "/v1/statement", None, content=KNOWN.encode(), headers={"Authorization": f"Basic {basic}"}
    )
    assert "nextUri" in reply.json()
    assert last(service, reply)["data"]


def test_a_key_as_user_name_or_as_extra_credential_from_afar_is_refused(service):
    """A user's name is shown and logged; an extra credential is sent without TLS."""
    key = service.keys["ann"]
    for name, text in (("X-Trino-User", key), ("X-Trino-Extra-Credential", f"key={key}")):
        reply = service.send("POST", "/v1/statement", None, content=b"SELECT 1", headers={name: text})
        assert reply.status_code == 401


def test_the_page_of_another_account_does_not_exist(service):
    """An address is of the account that sent the statement."""
    first = post(service, KNOWN)
    assert page(service, first, "bob").status_code == 404
    assert page(service, first, None).status_code == 401
    assert service.balance("bob@sales").spent == Cost()


def test_an_address_that_the_service_did_not_write_does_not_exist(service):
    """Addresses are authenticated: no bit of one can be changed."""
    path = urlsplit(post(service, KNOWN).json()["nextUri"]).path
    *start, sealed, number = path.split("/")
    changed = [sealed[:40] + ("A" if sealed[40] != "A" else "B") + sealed[41:], "", "A", "é", "A" * 200, sealed[:-4]]
    for other in changed:
        reply = service.get("/".join([*start, other, number]))
        assert reply.status_code in {404, 307}, other
    assert service.balance().spent == Cost()


def test_an_address_shows_neither_the_statement_nor_a_key(service):
    """It is encrypted: proxies log addresses."""
    sealed = urlsplit(post(service, KNOWN).json()["nextUri"]).path.split("/")[-2]
    assert b"SELECT" not in base64.urlsafe_b64decode(sealed)
    assert service.keys["ann"] not in sealed


def test_a_statement_that_fits_no_address_is_refused(service, monkeypatch):
    """Proxies limit addresses."""
    monkeypatch.setattr(protocol, "MAX_ADDRESS_LENGTH", 200)
    assert error(service, KNOWN)["errorName"] == "QUERY_TEXT_TOO_LARGE"


# ------------------------------------------------------------------------------------------ answers, errors


def test_a_short_budget_says_what_is_needed_left_and_would_fit(services):
    """The refusal is an error of Trino, and charges nothing."""
    service = services()
    for n in range(50):
        found = run(service, f"SELECT COUNT(DISTINCT reader) FROM reads WHERE article = 'a{n}'", session={"epsilon": 3})
        if "error" in found:
            break
    spent = service.balance().spent
    assert found["error"]["errorName"] == "PRIVACY_BUDGET_EXCEEDED"
    assert found["error"]["errorType"] == "INSUFFICIENT_RESOURCES"
    assert "needed rho=" in found["error"]["message"]
    assert "left rho=" in found["error"]["message"]
    assert "epsilon = " in found["error"]["message"]
    assert service.balance().spent == spent


def test_a_short_budget_of_a_drill_down_names_the_query_for_all_labels():
    """The sentence has the numbers, and no reference to the fields that problem responses have."""
    refusal = Refusal("sales", Cost(rho=Fraction(1, 2)), Cost(rho=Fraction(1, 4)), None)
    each = Together(column="country", needed=Spend(rho=0.25, delta=0))
    message = str(trino_error(UnaffordableQuery(refusal, Fitting(k=3), each)))
    assert "see needed" not in message
    assert "needed rho=0.5, delta=0; left rho=0.25, delta=0; k = 3 would fit; one query with each 'country'" in message


@pytest.mark.parametrize(
    "error_", [*ERRORS.values(), AccountSuspended("ann", None)], ids=lambda error_: str(error_)[:40]
)
def test_every_error_of_the_service_is_one_of_trino(error_):
    """It has a number, a name, and the sentence of the problem response."""
    found = trino_error(error_).to_json("SELECT 1")
    assert found["errorType"] in {"USER_ERROR", "INTERNAL_ERROR", "INSUFFICIENT_RESOURCES", "EXTERNAL"}
    assert problem_of(error_).detail.partition("; see needed")[0] in found["message"]


def test_an_error_has_the_place_in_the_text_that_was_sent(service):
    """Line and column, from 1; also behind names that were rewritten."""
    sql = (
        "-- a comment\nSELECT country, count(DISTINCT reader)\n  FROM discreet.main.reads WHERE 1 = 1 AND country ~ 'x'"
    )
    found = error(service, sql)
    assert found["errorName"] == "SYNTAX_ERROR"
    assert found["errorLocation"] == {"lineNumber": 3, "columnNumber": 52}


def test_a_count_of_rows_is_a_warning_before_the_charge(service):
    """It is not the number of all rows, whatever is computed from it; a median of rows is no such number."""
    warnings = run(service, "SELECT SUM(n) FROM (SELECT country, COUNT(*) AS n FROM reads GROUP BY country)")[
        "warnings"
    ]
    assert [warning["warningCode"]["name"] for warning in warnings] == ["ROWS_LEFT_OUT", "PRIVACY_CHARGE"]
    assert warnings[0]["message"] == ROWS_NOTE
    assert len(run(service, KNOWN)["warnings"]) == 1


def test_charge_and_balance_are_a_warning(service):
    """A replay is charged nothing, and says so."""
    first, second = run(service, KNOWN)["warnings"], run(service, KNOWN)["warnings"]
    assert first[0]["warningCode"]["name"] == second[0]["warningCode"]["name"] == "PRIVACY_CHARGE"
    assert "charged 0 % of" not in first[0]["message"]
    assert max(map(len, re.findall(r"[0-9]+", first[0]["message"].replace(".", "")))) <= 8, "no 17 digits"
    start = re.escape("charged 0 % of the budget of ann@sales (rho=0, delta=0); ")
    assert re.fullmatch(start + r"[^;]+ % is left \(rho=[0-9.]+, delta=\S+\)", second[0]["message"])


def test_the_next_address_has_the_declared_host_and_the_scheme_of_the_request(service):
    """A header X-Forwarded-Host is not read; X-Forwarded-Proto is read by the server, from declared proxies only."""
    forwarded = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https"}

    def send(host, method="POST", path="/v1/statement"):
        return service.send(method, path, content=b"SELECT 1", headers={"Host": host, **forwarded})

    for host in ("discreet.example:8443", "DISCREET.example:1", "localhost:8080", "127.0.0.1", "[::1]:1"):
        reply = send(host)
        assert reply.json()["nextUri"].startswith(f"http://{host}/v1/statement/executing/")
        path = urlsplit(reply.json()["nextUri"]).path
    for host in ("evil.example", "discreet.example.evil", "evil@discreet.example:x", "[", "user@evil"):
        for refused in (send(host), send(host, "GET", path)):
            assert (refused.status_code, "service.hosts" in refused.text) == (400, True), host


DIRECT = {"Host": "127.0.0.1:8080"}


def _post_with_extra(service, client="127.0.0.1", **headers):
    extra = {**DIRECT, "X-Trino-Extra-Credential": f"key={service.keys['ann']}", **headers}
    return service.send("POST", "/v1/statement", None, content=KNOWN.encode(), headers=extra, client=client)


PROXIED = [
    ("192.0.2.7", {}),
    ("127.0.0.1", {"Host": "discreet.example"}),
    *(("127.0.0.1", {name: "127.0.0.1"}) for name in ("Forwarded", "Via", "X-Forwarded-For", "X-Real-IP")),
    ("127.0.0.1", {"X-Forwarded-Proto": "https"}),
    ("127.0.0.1", {"X-Forwarded-Host": "localhost"}),
    *(("127.0.0.1", {f"X-Forwarded-{name}": "x"}) for name in ("Port", "Server", "Ssl")),
]


def test_an_extra_credential_and_an_address_that_holds_it_are_taken_from_a_direct_connection_only(service, monkeypatch):
    """A proxy logs addresses, and forwards those of others from this machine."""
    monkeypatch.setattr(protocol, "MAX_WAIT_SECONDS", 60.0)
    first = _post_with_extra(service)
    path = urlsplit(first.json()["nextUri"]).path
    for client, headers in PROXIED:
        assert _post_with_extra(service, client, **headers).status_code == 401, headers
        assert service.send("GET", path, None, headers={**DIRECT, **headers}, client=client).status_code == 401, headers
        assert service.send("DELETE", path, None, headers={**DIRECT, **headers}, client=client).status_code == 401
    assert service.balance().spent == Cost()
    assert service.send("GET", path, headers=DIRECT).status_code == 200, "with the key itself"
    assert service.send("GET", path, None, headers=DIRECT, client="127.0.0.1").json()["data"]


def test_an_extra_credential_is_never_taken_where_a_proxy_is_declared(services):
    """Even from a request without the headers of proxies: one that adds none looks like that."""
    assert _post_with_extra(services(service='trusted_proxies = ["127.0.0.1"]')).status_code == 401


def test_an_answer_is_published_on_the_grid(deployment):
    """Its time is a multiple of release_grid_ms, also that of an error; a poll without rows says nothing."""
    now, paused = [100.0], []

    async def pause(seconds):
        paused.append(seconds)

    with_settings(deployment, release_grid_ms=500)
    with deployment.open(monotonic=lambda: now[0], pause=pause) as service:

        def slow(count, _):
            now[0] += 0.7
            return count()

        service.engines.head = slow
        assert last(service, post(service, LOOSE))["data"]
    assert paused == [pytest.approx(0.3)]


def test_no_line_of_the_log_holds_a_statement_or_an_address(service):
    """Addresses in the log would be capabilities."""
    first = post(service, "SELECT COUNT(DISTINCT reader) FROM reads WHERE article = 'a secret'")
    last(service, first)
    error(service, "SELECT * FROM reads")
    log = json.dumps(service.events())
    assert "a secret" not in log
    assert first.json()["nextUri"].split("/")[-2] not in log
    assert "GET /v1/statement/executing/{sealed}/{page}" in log


def test_the_protocol_can_be_switched_off(services):
    """service.trino = false."""
    assert services(service="trino = false").send("POST", "/v1/statement", content=b"SELECT 1").status_code == 404


def test_a_client_learns_the_version_before_it_connects(service):
    """GET /v1/info needs no key."""
    assert service.get("/v1/info", None).json()["nodeVersion"]["version"].split("-")[0].isdigit()
