"""Every problem: its status, shape and cost; none reveals protected data."""

from __future__ import annotations

import contextlib
import json
import threading
from fractions import Fraction

import pyarrow.parquet
import pytest

from discreet.budget.model import Account, Units
from discreet.errors import EngineError, EngineTimeout, EngineUnreachable, InexactHead, InputError, UnfitData
from discreet.service.app import open_service
from discreet.service.problems import problem_of
from discreet.service.settings import Store
from discreet.values import Cost
from discreet.wire.problems import KINDS, Problem, problem

from .deployment import ACT, TOP

WORDS = "row 4711 of /srv/data says hush"
"""The message of an engine's error, which must not be sent."""


def refused(answer, slug):
    """Return the problem of a response, after checks of its kind *slug* and its shape."""
    body = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert body["type"] == f"/problems/{slug}", body
    assert (answer.status_code, body["status"], body["title"]) == (
        KINDS[slug].status,
        body["status"],
        KINDS[slug].title,
    )
    assert body["request_id"] == answer.headers["x-request-id"]
    assert Problem.model_validate(body).to_bytes() == answer.content, "nothing but the fields of a problem"
    assert body["detail"]
    assert "\n" not in body["detail"]
    return body


def fails_with(service, error):
    """Make counting in reads raise *error* from now on."""

    def head(*_, **__):
        raise error

    service.warehouse.engine("reads").head = head


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "the body must be JSON"),
        (b"{", "the body must be JSON"),
        (b"[]", "the body must be an object"),
        (b"{}", "a query needs either sql or query"),
        (b'{"sql": "x", "query": {}}', "either sql or query, not both"),
        (b'{"sql": 1}', "'sql' must be text"),
        (b'{"sql": ""}', "'sql' must not be empty"),
        (b'{"sql": "x", "epsilon": "1"}', "'epsilon' must be a number"),
        (b'{"sql": "x", "epsilon": NaN}', "'epsilon' must be a finite number"),
        (b'{"sql": "x", "delta": []}', "'delta' must be a finite number or text"),
        (b'{"sql": "x", "delta": Infinity}', "'delta' must be a finite number or text"),
        (b'{"sql": "x", "counts": 1}', "'counts' must be true or false"),
        (b'{"sql": "x", "information": 1.5}', "'information' must be a whole number"),
        (b'{"sql": "x", "information": 0}', "'information' must be at least 1"),
        (b'{"sql": "x", "mechanism": "magic"}', "'mechanism' must be"),
        (b'{"sql": "x", "hush": "4711"}', "there is no field 'hush'"),
        (b'{"sql": "x", "epsilon": 1, "epsilon_per": 1}', "not both"),
        (b'{"query": {"dataset": "reads"}}', "the query needs the key 'items'"),
        (b'{"query": []}', "the query must be an object"),
    ],
)
@pytest.mark.parametrize("route", ["/v1/query", "/v1/estimate"])
def test_an_invalid_query_is_malformed(service, route, body, sentence):
    """The sentence names the field, and never its value."""
    answer = service.send("POST", route, content=body, headers={"Content-Type": "application/json"})
    problem_ = refused(answer, "malformed")
    assert sentence in problem_["detail"]
    assert "4711" not in answer.text


@pytest.mark.parametrize(
    ("sql", "position"),
    [
        ("SELECT article, COUNT(DISTINCT reader) FROM reads, daily GROUP BY article", 39),
        ("SELECT article, COUNT(DISTINCT reader) FROM reads WHERE f(1) GROUP BY article", 56),
        ("DROP TABLE reads", 0),
    ],
)
def test_a_statement_outside_the_grammar_is_refused_with_its_position(service, sql, position):
    """The position is counted from 0 in the statement."""
    assert refused(service.ask(sql), "malformed")["position"] == position


@pytest.mark.parametrize(
    ("question", "options", "sentence"),
    [
        (TOP.replace("5", "51"), {}, "at most 50 items, not 51"),
        (TOP.replace("5", "101").replace("reads", "daily"), {}, "k must be at most 100, not 101"),
        (TOP, {"epsilon": 8.5}, "epsilon must be at most 8, not 8.5"),
        (TOP, {"epsilon": 0}, "epsilon must be a number of at least 1e-06"),
        (TOP, {"delta": 1}, "delta must be at most 1e-06, not 1"),
        (TOP, {"delta": "1e400"}, "delta must be at most 1e-06, not a number of hundreds of digits"),
        (TOP, {"delta": "much"}, "delta must be a finite number"),
        (TOP, {"head_limit": 20_001}, "the head limit must be at most 20,000, not 20,001"),
        (TOP, {"relative_error": 2}, "the relative error must be"),
        (TOP, {"epsilon_per": 0}, "epsilon per unit must be from 1e-6 to 100"),
        (TOP.replace("DISTINCT reader", "DISTINCT article"), {}, "users are counted, as COUNT(DISTINCT reader)"),
    ],
)
def test_a_value_beyond_a_limit_is_out_of_range(service, question, options, sentence):
    """The sentence has the allowed range; nothing is charged."""
    assert sentence in refused(service.ask(question, **options), "out-of-range")["detail"]
    assert service.balance().spent == Cost()


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/nothing"), ("GET", "/no"), ("POST", "/v1/datasets/x/y")])
def test_unknown_paths_are_not_found(service, method, path):
    """Unknown paths are problems like others, and are logged without a route."""
    refused(service.send(method, path), "not-found")
    assert service.events("requested")[-1]["route"] == "other"
    assert path not in service.log.getvalue() or path == "/"


def test_allow_names_every_method_of_a_path(service):
    """The header Allow has the methods of all operations with this path."""
    answer = service.send("OPTIONS", "/v1/admin/accounts/sales")
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "PATCH"}


def test_a_path_of_one_method_is_not_taken_for_the_name_of_an_account(service):
    """Names of accounts may have slashes, but this path is a charge of the account."""
    answer = service.send("PATCH", "/v1/admin/accounts/sales/charge", "officer")
    refused(answer, "method-not-allowed")
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_checks_accept_head_requests(service, path):
    """Load balancers send HEAD requests to health checks."""
    service.maintenance.once()
    assert service.send("HEAD", path, None).status_code == 200


@pytest.mark.parametrize(
    "text",
    [
        '{"sql": "x", "sql": "y"}',
        '{"query": {"dataset": "a", "dataset": "b", "items": [], "measure": {"kind": "rows"}}}',
    ],
)
def test_a_field_that_is_given_twice_is_refused(service, text):
    """RFC 8259, section 4: another parser could have read the other value."""
    answer = service.send("POST", "/v1/query", content=text, headers={"Content-Type": "application/json"})
    refused(answer, "malformed")
    assert "twice" in answer.json()["detail"]


def test_denied_and_answered_requests_are_logged_with_the_client_s_address(service):
    """Addresses show attempts to guess keys, and abuse of keys."""
    service.get("/v1/budget", "dsc_0123456789abcdef_" + "0" * 64)
    assert service.events("denied")[-1]["client"] == "192.0.2.7"
    assert service.events("requested")[-1]["client"] == "192.0.2.7"


def test_another_method_is_not_allowed(service):
    """The header Allow has the allowed one."""
    answer = service.get("/v1/query")
    refused(answer, "method-not-allowed")
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("key", [None, "", "nonsense", "dsc_0123456789abcdef_" + "0" * 64])
def test_an_unknown_key_is_unauthorized(service, key):
    """The response is the same for every cause and every key."""
    for path in ("/v1/budget", "/v1/datasets", "/v1/releases", "/v1/datasets/reads", "/v1/releases/00"):
        answer = service.get(path, key)
        problem_ = refused(answer, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "Authorization" in problem_["detail"]
    assert refused(service.ask(who=key), "unauthorized")["detail"] == problem_["detail"]
    assert service.events("denied")


def test_another_role_is_forbidden(service):
    """Queries by officers and administrators are forbidden."""
    officer = service.make_key(None, ("officer", "admin"))
    assert "analyst" in refused(service.ask(who=officer), "forbidden")["detail"]
    refused(service.get("/v1/budget", officer), "forbidden")


def test_an_insufficient_budget_is_refused_with_what_would_fit(service):
    """The largest epsilon of two digits fits, and a tenth more does not."""
    service.open_account("poor", 0.5)
    service.grant("poor", "reads")
    poor = service.make_key("poor")
    service.no_engine()
    answer = service.ask(who=poor, epsilon=3)
    reply = refused(answer, "budget-short")
    assert reply["account"] == "poor"
    assert reply["needed"]["rho"] > reply["left"]["rho"]
    assert "resets_at" not in reply, "nothing was spent"
    epsilon = reply["fits"]["epsilon"]
    assert service.estimate(who=poor, epsilon=epsilon).json()["fits"]
    assert not service.estimate(who=poor, epsilon=epsilon * 1.1).json()["fits"]
    assert service.balance("poor").spent == Cost()
    assert [event["kind"] for event in service.events("refused")] == ["budget-short"]


def test_a_shared_budget_that_is_short_is_named(service):
    """The response has the account on the path that is short, and what fits all of them."""
    service.open_account("little", 0.3)
    service.open_account("rich@little", 9.0, "little")
    service.grant("little", "reads")
    rich = service.make_key("rich@little")
    reply = refused(service.ask(who=rich, epsilon=2), "budget-short")
    assert reply["account"] == "little"
    assert service.estimate(who=rich, epsilon=reply["fits"]["epsilon"]).json()["fits"]


def test_a_refusal_in_units_has_the_k_or_information_that_would_fit(service):
    """Of 30 units: the largest k, and without k the most units of one answer."""
    service.manager.store.create(Account.of_units("units", Units(Fraction(15, 100), Fraction(1, 10**10), 30, 5)), ACT)
    service.grant("units", "reads")
    units = service.make_key("units")
    reply = refused(service.ask(TOP.replace("5", "50"), units, epsilon_per="0.15"), "budget-short")
    k = reply["fits"]["k"]
    assert service.estimate(TOP.replace("5", str(k)), units, epsilon_per="0.15").json()["fits"]
    assert not service.estimate(TOP.replace("5", str(k + 1)), units, epsilon_per="0.15").json()["fits"]
    many = TOP.replace(" LIMIT 5", "")
    reply = refused(service.ask(many, units, epsilon_per="0.15", information=100), "budget-short")
    information = reply["fits"]["information"]
    assert service.estimate(many, units, epsilon_per="0.15", information=information).json()["fits"]


def test_nothing_fits_an_empty_budget(service):
    """The problem of an exhausted budget offers no alternative."""
    service.open_account("poor", 1.0)
    service.manager.store.charge("poor", service.balance("poor").remaining, ACT)
    service.grant("poor", "reads")
    assert "fits" not in refused(service.ask(who=service.make_key("poor")), "budget-short")


def test_data_that_cannot_be_reached_costs_nothing(service):
    """A missing file, or an engine that does not connect, may be available for a retry."""
    answer = service.ask(TOP.replace("reads", "broken"))
    refused(answer, "engine-unavailable")
    assert int(answer.headers["retry-after"]) > 0
    assert str(service.folder) not in answer.text

    def check(_):
        raise EngineUnreachable(WORDS)

    service.warehouse.engine("reads").check = check
    assert "4711" not in service.ask().text
    refused(service.ask(), "engine-unavailable")
    assert service.balance().spent == Cost()


def test_an_engine_that_stays_busy_costs_nothing(service, monkeypatch):
    """503 with Retry-After, before the data is queried (I3)."""
    queue = service.warehouse.queue("reads")
    monkeypatch.setattr(queue, "_seconds", 0.01)
    with contextlib.ExitStack() as others:
        for _ in range(4):
            others.enter_context(queue.slot())
        answer = service.ask()
        refused(answer, "engine-unavailable")
        assert (answer.headers["retry-after"], "too many queries" in answer.json()["detail"]) == ("5", True)
        assert service.balance().spent == Cost()
    assert service.ask().status_code == 200


@pytest.mark.parametrize(
    ("error", "slug", "cause"),
    [
        (EngineError(WORDS), "engine-failed", "engine"),
        (InexactHead(WORDS), "engine-failed", "engine"),
        (UnfitData(WORDS), "engine-failed", "engine"),
        (EngineTimeout(WORDS), "engine-timeout", "timeout"),
        (ValueError(WORDS), "internal", "internal"),
        (MemoryError(), "internal", "internal"),
    ],
)
def test_a_failed_run_is_charged_and_its_problem_holds_no_data(service, error, slug, cause):
    """I3, T16: the message is the same for every error; the worst case stays charged, and pays for a retry."""
    engine = service.warehouse.engine("reads")
    head = engine.head
    fails_with(service, error)
    answer = service.ask()
    refused(answer, slug)
    worst = service.balance().spent
    assert service.balance().forfeited == worst
    assert worst.rho > 0
    assert "hush" not in answer.text + service.log.getvalue()
    assert [event["cause"] for event in service.events("forfeited")] == [cause]
    engine.head = head
    assert service.ask().status_code == 200
    assert service.balance().spent.rho < worst.rho, "paid once, and what it cost"


def test_a_query_that_an_engine_cannot_answer_is_refused_with_the_reason(service):
    """The message is ours; a retry would not help."""
    fails_with(service, InputError("this engine counts no such thing"))
    reply = refused(service.ask(), "out-of-range")
    assert "counts no such thing" in reply["detail"]
    assert "charged" in reply["detail"]


def test_five_failures_suspend_the_account(service):
    """T27: until a day has passed; other accounts on the same budget are not affected."""
    engine = service.warehouse.engine("reads")
    head = engine.head
    fails_with(service, EngineError(WORDS))
    for epsilon in range(1, 6):
        refused(service.ask(epsilon=epsilon / 10), "engine-failed")
    engine.head = head
    reply = refused(service.ask(epsilon=0.9), "suspended")
    assert (reply["account"], reply["until"][:10]) == ("ann@sales", "2026-11-21")
    assert service.get("/v1/budget").json()["suspended_until"] == reply["until"]
    assert service.events("refused")[-1]["kind"] == "suspended"
    assert service.ask(who="bob").status_code == 200


def test_data_that_changed_without_a_new_version_is_not_released(service):
    """T13: neither fresh nor equal noise is released; earlier answers are replayed."""
    first = service.ask()
    table = pyarrow.parquet.read_table(service.folder / "reads.parquet")
    pyarrow.parquet.write_table(table.slice(1), service.folder / "reads.parquet")
    service.maintenance.refresh_sources()
    refused(service.ask(epsilon=0.9), "data-changed")
    assert [event["cause"] for event in service.events("forfeited")] == ["data-changed"]
    assert service.ask().content == first.content


@pytest.fixture
def gate(service):
    """Return a gate in the engine: signals the start of a count, and blocks it until released."""
    engine, begun, go_on = service.warehouse.engine("reads"), threading.Event(), threading.Event()
    head = engine.head

    def slow(*arguments, **named):
        begun.set()
        assert go_on.wait(60)
        return head(*arguments, **named)

    engine.head = slow
    return begun, go_on


class SharedStore:
    """A store that its service does not close, as if other processes used it."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def recover(self):
        return 0

    def close(self):
        pass


def test_the_same_request_in_another_process_is_in_flight(service, gate, monkeypatch):
    """I4: the second waits without reading data, and gets the answer of the first, or Retry-After after a while."""
    begun, go_on = gate
    key = {"Idempotency-Key": "k"}
    first = service.portal.start_task_soon(lambda: service.sending("POST", "/v1/query", json={"sql": TOP}, headers=key))
    monkeypatch.setattr("discreet.service.doors.http.query.JOIN_SECONDS", 0)
    assert begun.wait(60)
    monkeypatch.setattr("discreet.service.app.open_store", lambda *_: SharedStore(service.store))
    shared = service.settings.model_copy(update={"store": Store(url="postgresql://discreet@db/budgets")})
    with open_service(shared, {}, service.log, service.runtime) as other:
        service.app = other.app
        again = service.ask(headers=key)
    service.app = service.opened.app
    refused(again, "in-flight")
    assert again.headers["retry-after"] == "1"
    go_on.set()
    assert first.result(60).status_code == 200
    assert service.ask(headers=key).content == first.result().content


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}], ids=["no key", "key"])
def test_the_same_request_at_once_waits_for_the_first_and_is_free(service, gate, headers):
    """I4: a client that lost its connection pays once, also without an idempotency key."""
    begun, go_on = gate

    def send():
        return service.portal.start_task_soon(
            lambda: service.sending("POST", "/v1/query", json={"sql": TOP}, headers=headers)
        )

    first = send()
    assert begun.wait(60)
    second = send()
    assert not second.done()
    go_on.set()
    assert first.result(60).content == second.result(60).content
    assert second.result().headers["discreet-replayed"] == "?1"
    assert service.balance().spent.rho == service.balance("sales").spent.rho


def test_an_unavailable_store_releases_nothing(service):
    """I2: no answer without a budget; the message is ours."""
    service.store.close()
    service.clock.pass_(seconds=2)
    answer = service.ask()
    refused(answer, "store-unavailable")
    assert int(answer.headers["retry-after"]) > 0


def test_a_clock_that_runs_ahead_releases_nothing(service):
    """I6: no period begins until an officer confirms the time."""
    service.ask()
    service.clock.pass_(days=40)
    refused(service.ask(epsilon=0.7), "clock")


def test_a_bug_is_logged_by_its_place_and_not_its_message(service):
    """T16, T17: the message of an exception may hold data."""

    def broken(*_):
        raise RuntimeError(WORDS)

    service.manager.store.history = broken
    answer = service.get("/v1/releases")
    refused(answer, "internal")
    (failed,) = service.events("failed")
    assert (failed["where"], failed["error"]) == ("GET /v1/releases", "RuntimeError")
    assert any(frame.startswith("service/doors/http/query.py") for frame in failed["frames"])
    assert "hush" not in answer.text + service.log.getvalue()


def test_every_kind_has_a_status_a_title_and_a_price():
    """Titles are unique, because they identify the kind."""
    assert len({kind.title for kind in KINDS.values()}) == len(KINDS)
    for slug, kind in KINDS.items():
        assert 400 <= kind.status <= 504
        assert kind.charged
        assert json.loads(problem(slug, "Why.", "id").to_bytes())["type"] == f"/problems/{slug}"


def test_an_unforeseen_exception_reveals_no_message():
    """No message of any exception is shown."""
    for error in (RuntimeError(WORDS), KeyError(WORDS), AssertionError(WORDS), OSError(WORDS)):
        assert problem_of(error).slug == "internal"
        assert "hush" not in problem_of(error).detail
