"""The DB-API driver against a scripted service."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal

import httpx
import pytest

import discreet_sql
from discreet_sql.connection import parse_url
from discreet_sql.values import bind

URL = "discreet://ann:dsc_k%2Fey@discreet.example.org/?epsilon=1&delta=1e-8"
ANSWER = {
    "columns": [
        {"name": "day", "type": "DATE"},
        {"name": "minutes", "type": "DECIMAL(38,2)"},
        {"name": "readers", "type": "HUGEINT", "interval": "none"},
        {"name": "article", "type": "VARCHAR"},
    ],
    "rows": [["2026-01-31", "12.50", 7, "bees"], [None, None, "8", None]],
    "queries": [{"sql": "SELECT ...", "dataset": "reads", "status": "released", "charged": {"rho": 0.1, "delta": 0}}],
}


def problem(slug, status=422, **more):
    """Return a reply with that problem."""
    return httpx.Response(status, json={"type": f"/problems/{slug}", "detail": "it is not allowed", **more})


@pytest.fixture
def connect():
    """Return a function that connects to a service with these replies, in order; its `sent` are the requests."""

    def make(*replies, url=URL, **options):
        sent, left = [], list(replies)

        def reply(request):
            sent.append(request)
            found = left.pop(0)
            if isinstance(found, Exception):
                raise found
            return found if isinstance(found, httpx.Response) else httpx.Response(200, json=found)

        pauses = []
        connection = discreet_sql.connect(url, transport=httpx.MockTransport(reply), sleep=pauses.append, **options)
        connection.sent, connection.pauses = sent, pauses
        return connection

    return make


def test_an_answer_has_python_values_and_what_it_cost(connect):
    """PEP 249: rows are tuples, description has seven entries a column; dates and decimals are exact."""
    with connect(ANSWER) as connection:
        cursor = connection.cursor().execute("SELECT ...")
        assert cursor.description == [
            (column["name"], column["type"], None, None, None, None, None) for column in ANSWER["columns"]
        ]
        assert cursor.rowcount == 2
        assert cursor.fetchone() == (datetime.date(2026, 1, 31), Decimal("12.50"), 7, "bees")
        assert cursor.fetchmany(5) == [(None, None, 8, None)]
        assert (cursor.fetchone(), cursor.fetchall()) == (None, [])
        assert cursor.queries[0]["charged"] == {"rho": 0.1, "delta": 0}
        assert cursor.no_interval == ["readers"], "an older service says nothing of the others"
        kinds = [kind for _, kind, *_ in cursor.description]
        groups = [discreet_sql.DATETIME, discreet_sql.NUMBER, discreet_sql.NUMBER, discreet_sql.STRING]
        assert kinds == groups
        assert kinds[0] != discreet_sql.NUMBER


@pytest.mark.parametrize(("given", "sent"), [("1", True), ("0", False)])
def test_a_rehearsal_is_an_option_of_the_url(connect, given, sent):
    """A dashboard can be built on made-up rows, and then be connected to the data by its URL alone."""
    with connect(ANSWER, url=f"{URL}&rehearse={given}") as connection:
        connection.cursor().execute("SELECT ...")
        assert json.loads(connection.sent[0].content)["rehearse"] is sent
    with pytest.raises(discreet_sql.InterfaceError, match="must be 0 or 1"):
        connect(url=f"{URL}&rehearse=yes")


def test_options_of_the_url_and_of_connect_go_with_each_statement(connect):
    """The person who connects chooses the privacy parameters of the queries."""
    connection = connect(ANSWER, noise="laplace", epsilon=0.5)
    connection.cursor().execute("SELECT 1")
    (request,) = connection.sent
    assert request.headers["authorization"] == "Bearer dsc_k/ey"
    assert (request.method, str(request.url)) == ("POST", "https://discreet.example.org/v1/sql")
    assert json.loads(request.content) == {"sql": "SELECT 1", "epsilon": 0.5, "delta": "1e-8", "noise": "laplace"}


def test_a_retried_statement_has_the_same_idempotency_key(connect):
    """I5: a lost reply charges nothing twice; another statement has another key."""
    busy = problem("in-flight", 409)
    busy.headers["retry-after"] = "3"
    connection = connect(httpx.ConnectError("refused"), busy, ANSWER, ANSWER)
    connection.cursor().execute("SELECT 1")
    connection.cursor().execute("SELECT 1")
    keys = [request.headers["idempotency-key"] for request in connection.sent]
    assert len(set(keys[:3])) == 1
    assert keys[3] != keys[0]
    assert connection.pauses == [0.4, 3.0]


@pytest.mark.parametrize(
    ("slug", "status", "kind"),
    [
        ("malformed", 400, discreet_sql.ProgrammingError),
        ("not-found", 404, discreet_sql.ProgrammingError),
        ("out-of-range", 422, discreet_sql.ProgrammingError),
        ("unauthorized", 401, discreet_sql.OperationalError),
        ("budget-short", 403, discreet_sql.OperationalError),
        ("engine-failed", 503, discreet_sql.OperationalError),
        ("internal", 500, discreet_sql.InternalError),
    ],
)
def test_a_problem_is_an_exception_of_pep_249(connect, slug, status, kind):
    """The message is that of the service; a refused request is not retried."""
    connection = connect(problem(slug, status, fits={"epsilon": 1.3}))
    with pytest.raises(kind, match=r"it is not allowed; epsilon 1.3 would fit") as caught:
        connection.cursor().execute("SELECT 1")
    assert caught.value.problem["type"] == f"/problems/{slug}"
    assert len(connection.sent) == 1


@pytest.mark.parametrize("reply", [httpx.Response(200, text="<html>"), httpx.Response(404, json={}), {"columns": [{}]}])
def test_a_reply_of_another_server_is_an_error(connect, reply):
    """A page of a proxy is never an answer."""
    with pytest.raises(discreet_sql.Error, match=r"not a Discreet service|cannot be read"):
        connect(reply).cursor().execute("SELECT 1")


def test_a_service_that_cannot_be_reached_is_an_operational_error_without_the_key(connect):
    """PEP 249: an OperationalError whose message shows no key."""
    with pytest.raises(discreet_sql.OperationalError, match=r"discreet\.example\.org.* cannot be reached") as caught:
        connect(*[httpx.ConnectError("dsc_k/ey")] * 4).cursor().execute("SELECT 1")
    assert "dsc_k" not in str(caught.value)


def test_parameters_become_literals_outside_of_text_names_and_comments():
    """A value of a parameter can never end its literal."""
    values = ["it's", True, None, 3, 1e-8, Decimal("2.50"), datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3)]
    assert bind("""SELECT '?''?', "?" -- ?\n, ?, ?, ?, ?, ?, ?, ?, ? /* ? */""", values) == (
        """SELECT '?''?', "?" -- ?\n, 'it''s', TRUE, NULL, 3, 0.00000001, 2.50, DATE '2026-01-02', """
        """TIMESTAMP '2026-01-02 03:00:00' /* ? */"""
    )


@pytest.mark.parametrize(
    "parameters",
    [(), (1, 2), {"a": 1}, "a", (b"a",), (float("nan"),), (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),)],
)
def test_parameters_that_do_not_fit_are_refused_before_anything_is_sent(connect, parameters):
    """Parameters of wrong number or type are refused and cost nothing."""
    connection = connect()
    with pytest.raises(discreet_sql.ProgrammingError, match="parameter"):
        connection.cursor().execute("SELECT ?", parameters)
    assert connection.sent == []


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("discreet://a:k@localhost:8080/", "http://localhost:8080"),
        ("discreet://a:k@[::1]:8080", "http://[::1]:8080"),
        ("discreet://a:k@localhost/?tls=on", "https://localhost"),
        ("discreet://a:k@10.0.0.5/?tls=off", "http://10.0.0.5"),
        ("discreet://a:k@example.org/private/", "https://example.org/private"),
        ("https://example.org:8443", "https://example.org:8443"),
    ],
)
def test_a_key_is_sent_unencrypted_only_to_this_machine_or_where_tls_is_off(url, address):
    """TLS is the default except on the loopback address."""
    assert parse_url(url).url == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "somewhere.example.org",
        "ftp://a:k@h",
        "discreet://",
        "discreet://a:k@h/?tls=maybe",
        "discreet://a:k@h/?epsilom=1",
        "discreet://a:k@h/?epsilon=x",
        "discreet://a:k@h:port",
        "discreet://a:k@h/#x",
        "discreet://a@h",
        "discreet://a:%0A@h",
    ],
)
def test_a_malformed_url_is_refused_without_showing_it(url, monkeypatch):
    """A URL holds a key: no message repeats it."""
    monkeypatch.delenv("DISCREET_KEY", raising=False)
    with pytest.raises(discreet_sql.InterfaceError) as caught:
        discreet_sql.connect(url)
    assert "a:k@" not in str(caught.value)


def test_closed_and_unexecuted_cursors_raise_a_programming_error(connect):
    """PEP 249: an error, never an old row."""
    connection = connect(ANSWER)
    cursor = connection.cursor()
    with pytest.raises(discreet_sql.ProgrammingError):
        cursor.fetchall()
    cursor.execute("SELECT 1")
    cursor.close()
    for use in (cursor.fetchone, lambda: cursor.execute("SELECT 1")):
        with pytest.raises(discreet_sql.ProgrammingError):
            use()
    open_cursor = connection.cursor()
    connection.close()
    for use in (connection.cursor, lambda: open_cursor.execute("SELECT 1")):
        with pytest.raises(discreet_sql.ProgrammingError, match="closed"):
            use()
    with pytest.raises(discreet_sql.NotSupportedError):
        open_cursor.executemany("SELECT ?", [(1,)])
