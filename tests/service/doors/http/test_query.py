"""POST /v1/query: answers, their cost, and what they do not reveal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import threading

import pyarrow as pa
import pyarrow.csv
import pytest

from discreet.budget.model import Account
from discreet.budget.rules import DAY_US, microseconds
from discreet.catalog.model import Catalog
from discreet.values import Cost, float_above
from discreet.wire.document import decode
from tests.budget.suite import set_mode
from tests.service.deployment import ACT, DELTA, TOP
from tests.service.trino_client import rows

SUMS = "SELECT article, SUM(minutes) FROM reads GROUP BY article LIMIT 3"


def labels_of(answer):
    """Return the articles of an answer."""
    return [item["article"] for item in answer.json()["items"]]


def test_an_answer_is_the_stored_document_with_its_cost(service):
    """I2: the bytes are those of the store; headers have the charge and the balance after it."""
    answer = service.ask()
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert labels_of(answer) == ["article 3", "article 2", "article 1"]
    id_ = answer.headers["discreet-release"]
    assert service.store.release(bytes.fromhex(id_)).result == answer.content
    spent = service.balance().spent
    assert answer.headers["discreet-charged"] == f"rho={float_above(spent.rho)}, delta=5e-09"
    assert answer.json()["charged"]["rho"] == float_above(spent.rho)
    assert (answer.headers["discreet-replayed"], answer.headers["discreet-mode"]) == ("?0", "enforce")
    assert answer.headers["ratelimit-policy"] == '"rho";q=1478;w=2592000, "delta";q=500000;w=2592000'
    assert answer.headers["ratelimit"].startswith('"rho";r=1466;t=')
    assert answer.headers["cache-control"] == "no-store"


def test_the_same_query_again_is_the_same_bytes_and_free(service):
    """I7: another spelling is the same query."""
    first, spent = service.ask(), service.balance().spent
    service.no_engine()
    query = {"dataset": "READS", "items": ["Article"], "measure": {"kind": "users", "column": "reader"}, "k": 5}
    for again in (
        service.ask(),
        service.ask(TOP.lower()),
        service.ask(query),
        service.ask(TOP, epsilon=1, delta="1e-8"),
    ):
        assert again.content == first.content
        assert again.headers["discreet-replayed"] == "?1"
        assert again.headers["discreet-charged"] == "rho=0.0, delta=0.0"
    assert service.balance().spent == spent


def test_another_analyst_gets_the_same_bytes_and_pays(service):
    """I7: another account pays in full, the shared one nothing; the bytes do not depend on order or form."""
    where = "SELECT article, COUNT(DISTINCT reader) FROM reads WHERE country IN ({}) GROUP BY article LIMIT 5"
    first, shared = service.ask(where.format("'US', 'IN'")), service.balance("sales").spent
    service.no_engine()
    other = service.ask(where.format("'IN', 'US', 'IN'"), "bob")
    assert other.content == first.content
    assert other.headers["discreet-replayed"] == "?1"
    assert other.headers["discreet-charged"] == first.headers["discreet-charged"]
    assert service.balance("bob@sales").spent == service.balance("ann@sales").spent
    assert service.balance("sales").spent == shared


def test_csv_and_arrow_hold_the_values_of_the_document(service):
    """They are derived from the stored bytes, also from the cache."""
    release = decode(service.ask().content)
    for _ in range(2):
        csv = service.ask(headers={"Accept": "text/csv"})
        assert csv.headers["content-type"].startswith("text/csv")
        assert csv.text == release.to_csv()
        arrow = service.ask(headers={"Accept": "application/vnd.apache.arrow.stream"})
        assert pa.ipc.open_stream(arrow.content).read_all() == release.to_arrow()
    assert pa.csv.read_csv(io.BytesIO(csv.content)).num_rows == 3


@pytest.mark.parametrize(
    ("question", "options", "columns"),
    [
        (SUMS, {"epsilon": 4}, ["rank", "article", "sum", "std_error", "low", "high"]),
        (SUMS.replace("SUM", "AVG"), {"epsilon": 4}, ["rank", "article", "average", "std_error", "low", "count"]),
        ("SELECT COUNT(*) FROM reads", {}, ["total", "count", "std_error", "low", "high"]),
        (TOP.replace(" LIMIT 5", ""), {"epsilon": 4}, ["article", "count", "std_error", "low", "high"]),
        (TOP, {"counts": False}, ["rank", "article"]),
        (
            "SELECT country, COUNT(DISTINCT reader) FROM reads GROUP BY 1 LIMIT 2",
            {"mechanism": "gumbel"},
            ["rank", "country", "count"],
        ),
        (TOP.replace("article", "day"), {"noise": "laplace"}, ["rank", "day", "count"]),
        (TOP, {"epsilon_per": "0.3"}, ["rank", "article", "count"]),
        (TOP.replace(" LIMIT 5", ""), {"epsilon_per": 0.5, "information": 40}, ["article", "count"]),
    ],
)
def test_all_kinds_of_queries_are_answered(service, question, options, columns):
    """Sums, averages, totals, releases without k, labels only, known domains, units."""
    answer = service.ask(question, **options)
    assert answer.status_code == 200, answer.text
    shown = [column["name"] for column in answer.json()["columns"]]
    assert set(columns) <= set(shown)
    assert decode(answer.content).to_arrow().column_names == shown


def test_no_answer_holds_durations_or_paths(service):
    """Values of the machine, or of the data without noise, are not in the bytes."""
    answer = service.ask(TOP.replace("reads", "loose"))
    assert answer.status_code == 200
    assert "seconds" not in answer.text
    assert str(service.folder) not in answer.text


def test_data_without_a_version_is_queried_and_charged_again(service):
    """The data may have changed, so it is not the same query."""
    loose = TOP.replace("reads", "loose")
    first, second = service.ask(loose), service.ask(loose)
    assert first.json()["data_version"] is None
    assert not first.json()["privacy"]["computational"]
    assert first.headers["discreet-release"] != second.headers["discreet-release"]
    assert second.headers["discreet-replayed"] == "?0"
    assert service.balance().spent.rho > 1.9 * service.balance("sales").spent.rho / 2


def test_data_without_a_version_is_charged_once_for_one_idempotency_key(service):
    """I4: the retry of a lost reply is the same request, so it gets the same answer."""
    loose = TOP.replace("reads", "loose")
    first = service.ask(loose, headers={"Idempotency-Key": "k"})
    spent = service.balance().spent
    again = service.ask(loose, headers={"Idempotency-Key": "k"})
    assert (again.content, again.headers["discreet-replayed"]) == (first.content, "?1")
    assert service.balance().spent == spent
    assert service.ask(loose, "bob", headers={"Idempotency-Key": "k"}).content != first.content


def test_one_idempotency_key_is_one_query(service):
    """I4: another body is refused, even if it has a stored answer."""
    other = TOP.replace("LIMIT 5", "LIMIT 4")
    assert service.ask(headers={"Idempotency-Key": "k"}).status_code == 200
    assert service.ask(other).status_code == 200
    again = service.ask(other, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["type"]) == (409, "/problems/key-reused")
    assert service.ask(headers={"Idempotency-Key": "k"}).headers["discreet-replayed"] == "?1"
    assert service.ask(other, "bob", headers={"Idempotency-Key": "k"}).status_code == 200


def test_an_idempotency_key_of_removed_lines_does_not_name_the_answer_of_another_query(service):
    """Of data without a version; the store forgets keys with their lines, but never answers."""
    loose = TOP.replace("reads", "loose")
    other = loose.replace("LIMIT 5", "LIMIT 4")
    first = service.ask(loose, headers={"Idempotency-Key": "k"})
    service.clock.pass_(days=40)
    service.act("POST", "/v1/admin/clock")
    assert service.manager.prune(microseconds(service.clock()) - 2 * DAY_US, ACT, list)
    again = service.ask(other, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.headers["discreet-replayed"]) == (200, "?0")
    assert again.headers["discreet-release"] != first.headers["discreet-release"]


@pytest.mark.parametrize("key", ["", "a b", "x" * 201, "\u00a0"])
def test_an_invalid_idempotency_key_is_refused(service, key):
    """One to two hundred printable characters, no white space."""
    answer = service.ask(headers={"Idempotency-Key": key.encode("latin-1")})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/out-of-range")
    assert service.balance().spent == Cost()


HIDDEN_AND_MISSING = [
    "SELECT {}, COUNT(DISTINCT reader) FROM reads GROUP BY {} LIMIT 5",
    "SELECT article, COUNT(DISTINCT reader) FROM reads WHERE {} = 'h' GROUP BY article LIMIT 5",
    "SELECT article, SUM({}) FROM reads GROUP BY article LIMIT 5",
    "SELECT article, COUNT(DISTINCT reader) FROM {} GROUP BY article LIMIT 5",
]


@pytest.mark.parametrize("statement", HIDDEN_AND_MISSING)
@pytest.mark.parametrize("route", ["/v1/query", "/v1/estimate"])
def test_a_dataset_that_is_not_granted_looks_like_a_missing_one(service, services, statement, route):
    """The same bytes, except for the request id, from services with and without it."""
    name = "secret" if "FROM {}" in statement else "hidden"
    text = (service.folder / "catalog.toml").read_text()
    line = next(line for line in text.splitlines() if line.startswith("columns.hidden"))
    without = text.split("[datasets.secret]", maxsplit=1)[0].replace(line, "")
    other = services(catalog=without)
    answers = []
    for opened in (service, other):
        answer = opened.send("POST", route, json={"sql": statement.replace("{}", name)})
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")
        answers.append(answer.text.replace(answer.json()["request_id"], "..."))
    assert answers[0] == answers[1]
    assert name in answers[0], "it says what was asked for"
    if name == "hidden":
        assert "hidden'?" not in answers[0], "and suggests nothing hidden"


def test_a_revoked_grant_ends_replays_at_once(service):
    """A column or dataset whose grant was revoked is gone at once, though the answer is cached."""
    assert service.ask().status_code == 200
    assert service.ask().headers["discreet-replayed"] == "?1"
    service.revoke("sales", "reads")
    service.clock.pass_(seconds=2)
    assert service.ask().status_code == 404
    service.grant("sales", "reads", ["article"])
    service.clock.pass_(seconds=2)
    assert service.ask().headers["discreet-replayed"] == "?1"


def test_a_new_version_is_a_new_query(service):
    """After a schedule's next version, the old answer is not replayed."""
    daily = TOP.replace("reads", "daily")
    first = service.ask(daily)
    assert first.json()["data_version"] == "2026-11-20T04:00+00:00"
    service.clock.pass_(hours=15, minutes=59)
    assert service.ask(daily).headers["discreet-replayed"] == "?1"
    service.clock.pass_(minutes=1)
    second = service.ask(daily)
    assert second.json()["data_version"] == "2026-11-21T04:00+00:00"
    assert second.headers["discreet-replayed"] == "?0"
    assert second.json()["items"] != first.json()["items"]


def test_observed_accounts_are_charged_and_labelled(service):
    """Nothing is refused, and the header states that nothing is guaranteed."""
    service.manager.store.create(Account.of_epsilon("watched", 0.1, DELTA), ACT)
    set_mode(service.manager.store, "watched", "observe", ACT)
    service.grant("watched", "reads")
    answer = service.ask(who=service.make_key("watched"), epsilon=3)
    assert (answer.status_code, answer.headers["discreet-mode"]) == (200, "observe")
    assert '"rho";r=0' in answer.headers["ratelimit"]


def test_accounts_with_units_are_reported_in_units(service):
    """RateLimit counts the units of LinkedIn's accounts: information and calls."""
    service.manager.store.create(Account.of_units("units"), ACT)
    service.grant("units", "reads")
    answer = service.ask(who=service.make_key("units"), epsilon_per="0.15", counts=True)
    assert answer.headers["ratelimit-policy"] == '"information";q=3000;w=2678400, "calls";q=30;w=2678400'
    spent = 3 + 1 + 3 + 1  # peels of three items and of the one that ended it, three counts, the cut-off
    assert answer.headers["ratelimit"].startswith(f'"information";r={3000 - spent};t=')
    assert '"calls";r=29;t=' in answer.headers["ratelimit"]


def test_all_logged_values_are_public(service):
    """T17: no label, no count, no key, no statement is in the log."""
    answer = service.ask(SUMS, epsilon=4)
    service.ask("SELECT nonsense")
    service.ask(TOP.replace("article", "hidden"))
    logged = service.log.getvalue()
    for item in answer.json()["items"]:
        assert str(item["sum"]) not in logged
    for word in ("article 3", "nonsense", "SELECT", "hidden", service.keys["ann"], "18000", "noise.key"):
        assert word not in logged
    assert [event["source"] for event in service.events("released")] == ["engine"]
    assert [event["status"] for event in service.events("requested")] == [200, 400, 404]


class Spans:
    """Records the spans that are opened, in order."""

    def __init__(self):
        self.seen = []

    def span(self, step, request_id, account=None, parent=None):  # noqa: ARG002
        """Open a span."""
        self.seen.append((step, account, parent))
        return contextlib.nullcontext()


def test_every_step_of_a_query_has_a_span(service):
    """They are in the trace of the request; a replay has fewer."""
    spans = Spans()
    service.reopen(spans)
    service.ask(headers={"traceparent": "00-trace-span-01"})
    steps = ["request", "plan", "reserve", "queue", "engine", "reserve", "engine", "noise", "encode", "settle"]
    assert [step for step, _, _ in spans.seen] == steps
    assert spans.seen[0] == ("request", None, "00-trace-span-01")
    assert {account for _, account, _ in spans.seen[1:]} == {"ann@sales"}
    spans.seen.clear()
    service.ask(TOP + " ")
    assert [step for step, _, _ in spans.seen] == ["request", "plan", "reserve"]


def test_a_query_comes_back_in_a_form_that_can_be_sent_again(service):
    """The document's query can be sent as it is, and is the same query."""
    sql = "SELECT country, COUNT(DISTINCT reader) FROM reads WHERE article <> 'x' AND day > '2020-01-01' GROUP BY 1"
    first = service.ask(sql, epsilon=2)
    assert first.status_code == 200, first.text
    again = service.ask(first.json()["question"], epsilon=2)
    assert again.content == first.content
    assert json.loads(first.content)["dataset"] == "reads"


def test_new_requests_cross_few_of_our_files(services):
    """The number of files of a request's path is a measure of complexity: it may only fall."""
    files = set()

    def called(frame, event, _):
        if event == "call" and f"{os.sep}src{os.sep}discreet{os.sep}" in frame.f_code.co_filename:
            files.add(frame.f_code.co_filename)

    ranked = "SELECT article, COUNT(DISTINCT reader) AS n FROM reads GROUP BY article ORDER BY n DESC LIMIT "
    crossed = {}
    threading.setprofile(called)  # for the threads that the service starts
    try:
        service = services()
        requests = {
            "query": lambda k: service.ask(TOP.replace("LIMIT 5", f"LIMIT {k}")).json()["items"],
            "statement": lambda k: service.send("POST", "/v1/sql", json={"sql": f"{ranked}{k}"}).json()["rows"],
            "Trino": lambda k: rows(service, f"{ranked}{k}"),
        }
        for k, (name, send) in enumerate(requests.items(), 1):
            assert send(5), "what is made once is made"
            files.clear()
            assert len(send(k)) == k
            crossed[name] = len(files)
    finally:
        threading.setprofile(None)
    most = {"query": 36, "statement": 43, "Trino": 46}
    assert all(30 < count <= most[name] for name, count in crossed.items()), crossed


def test_the_dataset_of_a_query_is_found_once(service, monkeypatch):
    """Where the query enters; a statement finds one for each of its queries, and a repeated request none."""
    found, find = [], Catalog.find

    def counted(catalog, name):
        found.append(name)
        return find(catalog, name)

    monkeypatch.setattr(Catalog, "find", counted)
    assert service.ask().status_code == 200
    assert found == ["reads"]
    assert service.ask().status_code == 200
    assert found == ["reads"]
    statement = "SELECT COUNT(*) AS n, COUNT(DISTINCT reader) AS r FROM READS"
    assert service.send("POST", "/v1/sql", json={"sql": statement, "epsilon": 4}).status_code == 200
    assert found == ["reads", "READS", "READS"]
