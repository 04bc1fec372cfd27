"""The client's calls: requests and results."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

import discreet
from discreet.client import Client, ServiceError
from discreet.client.client import body_of
from discreet.errors import InputError
from discreet.values import Cost
from discreet.wire.document import encode, question_of

from .conftest import KEY
from .scripted_server import ScriptedServer, problem, reply

SQL = "SELECT a, COUNT(DISTINCT u) FROM t GROUP BY a LIMIT 2"
SELECT = {"dataset": "t", "items": ["a"], "measure": {"kind": "users", "column": "u"}, "where": None, "k": 2}


@pytest.fixture(scope="module")
def document():
    """Return an answer as a service stores it."""
    pa = pytest.importorskip("pyarrow")
    table = discreet.scan(pa.table({"u": range(900), "a": ["x"] * 500 + ["y"] * 400}), user="u")
    release = table.top("a", k=2, epsilon=8.0)
    return encode(release, id="ab" * 32, dataset="t", question=question_of(release.query, "t"), data_version=None)


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        (SQL, {"sql": SQL}),
        (SELECT, {"query": SELECT}),
        (discreet.Select("t", ("a",), discreet.Measure("users", "u"), None, 2), {"query": SELECT}),
    ],
)
def test_a_query_comes_in_three_forms(question, asked):
    """SQL, JSON and Python, as in the library."""
    assert json.loads(body_of(question, {})) == asked


def test_options_are_sent_exactly():
    """Fractions are text, so that no JSON parser rounds them; None is omitted."""
    body = body_of(SQL, {"epsilon_per": Fraction(3, 20), "information": 9, "noise": None, "counts": False})
    assert json.loads(body) == {"sql": SQL, "epsilon_per": "3/20", "information": 9, "counts": False}
    assert json.loads(body_of(SQL, {"epsilon": 0.5, "delta": "1e-8"})) == {"sql": SQL, "epsilon": 0.5, "delta": "1e-8"}


@pytest.mark.parametrize(
    ("question", "options", "sentence"),
    [
        (7, {}, "a query is a SELECT as text"),
        ("", {}, "'sql' must not be empty"),
        (SQL, {"epsilon": "much"}, "'epsilon' must be a number"),
        (SQL, {"epsilon": float("nan")}, "'epsilon' must be a finite number"),
        (SQL, {"epsilon": 1.0, "epsilon_per": 0.1}, "not both"),
        (SQL, {"epsilno": 1.0}, "there is no field 'epsilno'"),
        (SQL, {"k": 3}, "there is no field 'k'"),
        (SQL, {"delta": object()}, "a query can hold text"),
        ({"a": {1, 2}}, {}, "a query can hold text"),
    ],
)
def test_an_invalid_query_is_refused_before_it_is_sent(make_client, question, options, sentence):
    """The messages are those of the service, which parses queries in the same way."""
    client, server, _ = make_client([b""])
    with pytest.raises(InputError) as caught:
        client.query(question, **options)
    assert sentence in str(caught.value)
    assert server.sent == []


def test_an_answer_has_its_cost_of_this_time(make_client, document):
    """The release is the library's own class, with its time; cost and balance are in headers."""
    headers = {"Discreet_Release": "ab" * 32, "Discreet_Charged": "rho=0.125, delta=2.5e-09"}
    client, _, _ = make_client([reply(200, document, Discreet_Replayed="?0", Discreet_Mode="observe", **headers)])
    answer = client.answer(SQL)
    assert isinstance(answer.release, discreet.Release)
    assert (answer.id, answer.replayed, answer.mode) == ("ab" * 32, False, "observe")
    assert answer.charged == Cost(Fraction(1, 8), Fraction(25, 10**10))
    assert answer.release.seconds > 0
    assert sorted(answer.release.labels["a"].to_pylist()) == ["x", "y"]


def test_an_answer_without_headers_is_accepted(make_client, document):
    """A proxy may have removed them."""
    client, _, _ = make_client([reply(200, document)])
    answer = client.answer(SQL)
    assert (answer.id, answer.charged, answer.replayed, answer.mode) == ("", Cost(), False, "enforce")


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"id":1,"columns":[],"items":[],"query":{}}', b"\xff"])
def test_a_document_that_is_no_release_is_an_error(make_client, body):
    """A document that is not a complete release is an error."""
    client, _, _ = make_client([reply(200, body)])
    with pytest.raises(ServiceError, match="is not a Discreet service, or one of another version"):
        client.query(SQL)


def entry(number):
    """Return an entry of the history."""
    cost = {"rho": 0.1, "delta": 0.0}
    return {
        "id": f"{number:064x}",
        "dataset": "t",
        "question": {},
        "data_version": None,
        "mechanism": "pcr",
        "charged": cost,
        "time": "2026-11-20T00:00:00+00:00",
    }


def page(numbers, more):
    """Return a page of the history."""
    return reply(body=json.dumps({"releases": [entry(n) for n in numbers], "next": more}).encode())


def test_history_is_read_page_by_page(make_client):
    """From the newest on, as many as requested, with no unnecessary request."""
    client, server, _ = make_client([page(range(250, 150, -1), 151), page(range(150, 100, -1), 101)])
    found = client.history(150)
    assert [int(one.id, 16) for one in found] == list(range(250, 100, -1))
    assert [sent.line.split()[1] for sent in server.sent] == [
        "/v1/releases?limit=100",
        "/v1/releases?limit=50&before=151",
    ]


def test_history_may_have_fewer_entries_than_requested(make_client):
    """Fewer than requested; also if a service announces another page that is empty."""
    client, server, _ = make_client([page(range(5), None)])
    assert len(client.history()) == 5
    assert len(server.sent) == 1
    client, server, _ = make_client([page([], 7), problem(403, "forbidden")])
    assert client.history() == []
    with pytest.raises(InputError, match="at least 1"):
        client.history(0)


@pytest.mark.parametrize("name", ["a/b", "../budget", "a?b=c#d", "ä b", "%2e%2e"])
def test_a_name_is_one_segment_of_the_path(make_client, name):
    """With any characters in the name, no other path is requested."""
    client, server, _ = make_client([b""], retries=0)
    with pytest.raises(ServiceError):
        client.dataset(name)
    path = server.sent[0].line.split()[1]
    assert path.startswith("/v1/datasets/")
    assert path.count("/") == 3
    assert not set(path) & set("?#")


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_names_that_would_change_the_path_are_refused(make_client, name):
    """Servers and proxies resolve dots as directories."""
    client, server, _ = make_client([b""])
    with pytest.raises(InputError, match="a dataset needs a name"):
        client.dataset(name)
    with pytest.raises(InputError, match="an answer needs a name"):
        client.release(name)
    assert server.sent == []


def test_the_repr_of_a_client_is_its_url():
    """T9: the key is not in it."""
    server = ScriptedServer([b""])
    with Client(server.url + "/", KEY) as client:
        assert repr(client) == f"Client({server.url!r})"
    server.close()
