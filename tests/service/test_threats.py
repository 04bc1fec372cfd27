"""Threats without another test: SQL, rephrasing, keys, bodies, paths, headers, and bytes that are not HTTP.

docs/service/faults.md lists the tests of every threat.
"""

from __future__ import annotations

import json
import socket
from random import Random
from urllib.parse import urlsplit

import httpx
import pytest

from discreet.budget.model import AdminAction
from discreet.service.auth.access import KEY
from discreet.values import Cost
from tests.service.faults.processes import serving

from .deployment import KNOWN, TOP, Deployment, Transport, slug

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """Return a deployment for all tests that change nothing in it."""
    return Deployment(tmp_path_factory.mktemp("threats") / "deployment", service="max_concurrent_queries = 100")


@pytest.fixture(scope="module")
def service(deployment):
    """Return a service without a network."""
    with deployment.open() as opened:
        yield opened


@pytest.fixture
def unchanged(service):
    """Check that the store is unchanged: nothing charged, held or written, and no engine queried."""
    before = service.manager.store.heads(), service.engines.queried
    yield
    assert (service.manager.store.heads(), service.engines.queried) == before


# ---------------------------------------------------------------------------------------------------------- SQL

INJECTIONS = (
    "{top}; DROP TABLE reads",
    "{top}; SELECT 1",
    "{top} -- and no more",
    "{top} /* of those */",
    "/* all */ {top}",
    "{top} UNION SELECT reader, 1 FROM reads",
    "WITH x AS (SELECT 1) {top}",
    "SELECT * FROM reads",
    "SELECT reader FROM reads",
    "SELECT article, COUNT(DISTINCT reader) FROM (SELECT * FROM reads) GROUP BY article",
    "SELECT article, COUNT(DISTINCT reader) FROM read_csv('/etc/passwd') GROUP BY article",
    "SELECT article, COUNT(DISTINCT reader) FROM 'reads.parquet' GROUP BY article",
    "SELECT article, COUNT(DISTINCT reader) FROM reads, secret GROUP BY article",
    "SELECT article, COUNT(DISTINCT reader) FROM reads JOIN secret USING (reader) GROUP BY article",
    "SELECT article, COUNT(DISTINCT reader), COUNT(*) FROM reads GROUP BY article",
    "SELECT getenv('HOME'), COUNT(DISTINCT reader) FROM reads GROUP BY 1",
    "SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article HAVING COUNT(*) > 1",
    "SELECT article, COUNT(DISTINCT reader) FILTER (WHERE reader = 7) FROM reads GROUP BY article",
    "SELECT article, COUNT(DISTINCT reader) OVER () FROM reads GROUP BY article",
    "SELECT DISTINCT article FROM reads",
    "INSERT INTO reads VALUES (1)",
    "PRAGMA database_list",
    "COPY reads TO '/tmp/x'",
    "ATTACH 'x.db'",
    *(
        "SELECT article, COUNT(DISTINCT reader) FROM reads WHERE " + where + " GROUP BY article LIMIT 5"
        for where in (
            "article = 'x' OR 1=1",
            "article = 'x'' OR ''1''=''1",
            "article = 'x' OR reader = 7",
            "1=1",
            "article = (SELECT article FROM secret)",
            "article IN (SELECT article FROM secret)",
            "EXISTS (SELECT 1)",
            "1/(minutes - 20) > 0",
            "CAST(article AS INTEGER) = 1",
            "article = CASE WHEN country = 'IN' THEN 'x' ELSE error('y') END",
            "sleep(10) = 1",
            "random() < 0.5",
            "article LIKE '%' ESCAPE ''",
            "article = $1",
            "article = ?",
            "article = :x",
            'article = "country"',
            "article = E'\\x41'",
            "article = 'a' 'b'",
            "article = 'x' COLLATE NOCASE",
            "article = 0x41",
            "article = 'x",
        )
    ),
)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("sql", INJECTIONS)
def test_a_statement_outside_the_grammar_is_refused_with_its_position_and_queries_nothing(service, sql):
    """SQL is parsed, never forwarded: stacked statements, comments, functions, joins, subqueries, other columns."""
    sql = sql.format(top=TOP)
    reply = service.ask(sql)
    assert reply.status_code in {400, 404, 422}, reply.text
    if reply.status_code == 400:
        assert 0 <= reply.json()["position"] <= len(sql)
    assert not any(
        word in reply.text.replace(sql, "") for word in ("duckdb", "Traceback", str(service.deployment.folder))
    )


def rephrased(chance):
    """Return the same query, rephrased."""

    def either(*ways):
        return chance.choice(ways)

    def shuffled(word, parts):
        parts = chance.sample(parts, len(parts)) + chance.sample(parts, chance.randrange(2))
        return f" {word} ".join(f"({part})" if chance.random() < 0.5 or word in part else part for part in parts)

    one, two = "'article 1'", "'article 2'"
    member = either(
        "article IN ('article 1', 'article 2')",
        "article IN ('article 2', 'article 1', 'article 2')",
        "NOT article NOT IN ('article 1', 'article 2')",
        f"NOT (article <> {one} AND article <> {two})",
        f"article BETWEEN 'article 1' AND 'article 1' OR article = {two}",
        shuffled(
            "OR",
            ["article = 'article 1'", "'article 2' = article", "article >= 'article 2' AND article <= 'article 2'"],
        ),
    )
    abroad = either("country <> 'US'", "NOT country = 'US'", "country != 'US'", "country < 'US' OR country > 'US'")
    where = shuffled("AND", [member, f"NOT NOT ({abroad})" if chance.random() < 0.3 else f"({abroad})"])
    table = either("reads", "READS", '"reads"', "reads AS r", "reads r")
    column = either("article", "ARTICLE", '"article"')
    measure = either("COUNT(DISTINCT reader)", "count( distinct reader )", "COUNT(DISTINCT reader) AS n")
    selected = either(f"{column}, {measure}", f"{measure}, {column}")
    order = (
        either("", f" ORDER BY {either('2', measure.partition(' AS')[0])} DESC") if selected.endswith(measure) else ""
    )
    group = either("1", column) if selected.startswith(column) else either("2", "article")
    words = ["SELECT", selected, "FROM", table, "WHERE", where, "GROUP BY", group + order, "LIMIT 2", either("", ";")]
    return either(" ", "\n", "  \t").join(
        word.lower() if word in {"SELECT", "FROM"} and chance.random() < 0.5 else word for word in words
    )


def test_a_rephrased_query_has_the_same_release(service):
    """T11: two hundred phrasings are one release, one charge, and the same bytes; nothing averages out."""
    ways = [rephrased(Random(seed)) for seed in range(200)]  # noqa: S311 - the same every time
    first = service.ask(ways[0])
    assert first.status_code == 200, first.text
    used = service.balance().used
    for sql in ways:
        again = service.ask(sql)
        assert again.status_code == 200, (sql, again.text)
        assert again.content == first.content, sql
    assert len(set(ways)) > 150
    assert service.balance().used == used
    nested = service.send("POST", "/v1/query", json={"query": first.json()["question"]})
    assert nested.content == first.content


@pytest.mark.parametrize(
    "other",
    [
        {"sql": TOP.replace("LIMIT 5", "LIMIT 4")},
        {"sql": TOP, "epsilon": 0.99},
        {"sql": TOP, "delta": "2e-8"},
        {"sql": TOP, "counts": False},
        {"sql": TOP, "noise": "laplace"},
        {"sql": TOP, "head_limit": 777},
        {"sql": TOP.replace("GROUP", "WHERE article <> 'nothing' GROUP")},
        {"sql": TOP.replace("reads", "loose")},
    ],
    ids=str,
)
def test_another_query_has_another_noise(service, other):
    """T12: every difference changes the key and the noise of a release, and is charged."""
    first = service.ask(TOP)
    reply = service.send("POST", "/v1/query", json=other)
    assert reply.status_code == 200
    assert reply.headers["discreet-release"] != first.headers["discreet-release"]
    assert reply.headers["discreet-replayed"] == "?0"

    def counts(answer):
        return [item.get("count") for item in answer.json()["items"]]

    if other.get("counts", True):
        assert counts(reply) != counts(first)


# ---------------------------------------------------------------------------------------------------------- keys


@pytest.mark.usefixtures("unchanged")
def test_all_wrong_keys_get_the_same_response(service, deployment):
    """T1: the response is the same for unknown, revoked and malformed keys, on every route."""
    key = deployment.keys["ann"]
    id_, secret = key[4:20], key[21:]
    texts = [None, "", "x", key[:-1], key + "0", key.upper(), f"dsc_{id_}_{'0' * 64}", f"dsc_{'0' * 16}_{secret}"]
    texts += [
        secret,
        id_,
        f"{key} {key}",
        f"{key},{key}",
        "dsc_" + "0" * 5_000,
        "\u00e9" * 85,
        "eyJhbGciOiJub25lIn0.e30.",
    ]
    responses = set()
    for text in texts:
        for scheme in ("Bearer", "Basic", ""):
            headers = [] if text is None else [("Authorization", f"{scheme} {text}".strip().encode("latin-1"))]
            if scheme == "Basic":
                headers = [("Authorization", f"Basic {key}".encode())] if text is None else headers
            reply = service.send("GET", "/v1/budget", None, headers=dict(headers))
            shown = {name: value for name, value in reply.headers.items() if name != "x-request-id"}
            responses.add(
                (reply.status_code, str(shown), reply.content.replace(reply.headers["x-request-id"].encode(), b""))
            )
    assert len(responses) == 1
    assert next(iter(responses))[0] == 401


def test_a_revoked_key_looks_like_an_unknown_one(tmp_path):
    """T1: within a second of a revocation by another process."""
    deployment = Deployment(tmp_path / "deployment")
    with deployment.open() as service:
        key = deployment.keys["bob"]
        assert service.send("GET", "/v1/budget", "bob").status_code == 200
        service.manager.store.put_record(KEY, key[4:20], None, AdminAction("admin", "it was lost"))
        service.clock.pass_(seconds=1.001)
        revoked = service.send("GET", "/v1/budget", "bob")
        unknown = service.send("GET", "/v1/budget", f"dsc_{'1' * 16}_{'1' * 64}")
        assert revoked.status_code == unknown.status_code == 401
        same = [reply.content.replace(reply.headers["x-request-id"].encode(), b"") for reply in (revoked, unknown)]
        assert same[0] == same[1]


# ---------------------------------------------------------------------------------------------------------- bodies

DEEP = 1_900
BODIES = {
    "nested lists": '{"query": ' + "[" * DEEP + "]" * DEEP + "}",
    "nested objects": '{"a":' * 600 + "1" + "}" * 600,
    "nested filters": json.dumps(
        {"query": {"dataset": "reads", "items": [], "measure": {"kind": "users", "column": "reader"}}}
    ).replace('"items"', '"where": ' + '{"not": ' * 400 + '"x"' + "}" * 400 + ', "items"'),
    "nested parentheses": json.dumps({"sql": TOP.replace("GROUP", "WHERE " + "(" * 1_500 + " GROUP")}),
    "many NOTs": json.dumps({"sql": TOP.replace("GROUP", "WHERE " + "NOT " * 900 + "article = 'x' GROUP")}),
    "a long list": json.dumps({"sql": TOP.replace("GROUP", f"WHERE article IN ({','.join(['1'] * 1_500)}) GROUP")}),
    "a long number": '{"sql": "x", "epsilon": ' + "9" * 4_000 + "}",
    "a long exponent": '{"sql": "x", "delta": "1e' + "9" * 4_000 + '"}',
    "a long k": json.dumps({"sql": TOP.replace("5", "9" * 3_900)}),
    "one name twice": '{"sql": "SELECT 1", "sql": "SELECT 2"}',
    "no object": "[]",
    "nothing": "",
    "not UTF-8": b'{"sql": "\xff\xfe"}',
    "UTF-16": '{"sql": "x"}'.encode("utf-16"),
    "half a pair": '{"sql": "\\ud800"}',
    "a NUL": json.dumps({"sql": TOP.replace("article", "art\0icle")}),
    "NaN": '{"sql": "x", "epsilon": NaN}',
    "beyond floats": '{"sql": "x", "epsilon": 1e999}',
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("path", ["/v1/query", "/v1/estimate"])
@pytest.mark.parametrize("name", BODIES)
def test_an_invalid_body_is_refused_in_a_sentence(service, path, name):
    """T5: deep, long, truncated, or in another encoding; nothing of it is repeated."""
    reply = service.send("POST", path, content=BODIES[name], headers=JSON)
    assert reply.status_code in {400, 422}, reply.text
    assert slug(reply) in {"malformed", "out-of-range"}
    assert len(reply.content) < len(BODIES[name]) + 1_000


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
        {},
    ],
    ids=str,
)
def test_a_form_of_a_web_page_is_not_a_query(service, headers):
    """T21: bodies that a browser sends across sites without a preflight are refused, and so are compression bombs."""
    reply = service.send("POST", "/v1/query", content=json.dumps({"sql": TOP}), headers=headers)
    assert (reply.status_code, slug(reply)) == (415, "unsupported-media-type")


# ---------------------------------------------------------------------------------------------------------- paths

TRICKS = (
    *(
        "..",
        "%2e",
        "%2e%2e",
        "..%2f..%2fetc%2fpasswd",
        "reads%2f..%2fsecret",
        "reads/",
        "reads//",
        "/reads",
        "reads;a=b",
    ),
    *("reads%00", "%00", "reads%0d%0aX-Evil:%201", "%ff%fe", "reads%20", "%20", "reads.json", "*", "%25", "%2525"),
    *("r\u00e9ads", "\u202esdaer", "x" * 5_000, "null", "undefined", "__proto__", "0", "-1", "' OR '1'='1"),
)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("begin", ["/v1/datasets/", "/v1/releases/", "/v1/admin/accounts/", "/v1/admin/keys/"])
@pytest.mark.parametrize("name", TRICKS)
def test_a_name_in_a_path_is_only_a_name(service, begin, name):
    """No file, other route or redirect: the name is not found, or the path is invalid."""
    who = "officer" if "accounts" in begin else "admin" if "keys" in begin else "ann"
    reply = service.send("DELETE" if "keys" in begin else "GET", begin + name, who)
    assert reply.status_code in {404, 405, 422}, reply.text
    assert "x-evil" not in reply.headers
    assert name not in reply.headers.values()
    assert len(reply.content) < 8_000
    assert "reads.parquet" not in reply.text


# ---------------------------------------------------------------------------------------------------------- headers


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("Idempotency-Key", b"a\xa0", 422),
        ("Idempotency-Key", b"a b", 422),
        ("Idempotency-Key", b"x" * 201, 422),
        ("Idempotency-Key", b"a\x0bb", 422),
        ("Idempotency-Key", b"a\x85b", 422),
        ("Accept", b"text/html", 406),
        ("Accept", b"*/*;q=0", 406),
        ("Accept", b"application/json;q=" + b"9" * 4_000, 406),
        ("Accept", b",".join([b"a/b"] * 2_000), 406),
        ("Content-Type", b"application/json; charset=utf-16", 400),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_malformed_header_is_refused_and_not_echoed(service, header, value, status):
    """Header injection: no sent value is in a header of the response."""
    headers = {b"Content-Type": b"application/json", header.encode(): value}
    reply = service.send("POST", "/v1/query", content=b'{"sql": "SELECT"}', headers=headers)
    assert reply.status_code == status, reply.text
    assert value not in b"".join(sent for _, sent in reply.headers.raw)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("path", ["/v1/budget", "/budget", "/healthz", "/metrics", "/nowhere"])
def test_a_request_names_one_host_and_one_authorization(service, deployment, path):
    """RFC 9112, 3.2: without a Host, or with two, 400; proxies and services may take different ones of two headers."""
    host, keys = ("host", "a"), [("authorization", f"Bearer {deployment.keys[who]}") for who in ("ann", "bob")]
    for headers in ([host, *keys], [host, keys[0], keys[0]], [host, host, keys[0]], [keys[0]], []):
        request = httpx.Request("GET", f"http://discreet.example{path}")
        request.headers = httpx.Headers(headers)
        reply = service.portal.call(Transport(service.app).handle_async_request, request)
        problem = json.loads(b"".join(reply.stream))
        assert (reply.status_code, problem["type"]) == (400, "/problems/malformed"), headers
        assert "once" in problem["detail"]


def test_headers_about_the_client_change_nothing(service):
    """T20: forwarded hosts and addresses, other methods, ids and traces of the client, cookies."""
    plain = service.ask(TOP)
    claims = {
        "X-Forwarded-For": "10.0.0.1",
        "X-Forwarded-Proto": "https",
        "Forwarded": "for=10.0.0.1",
        "X-Request-Id": "mine",
        "X-HTTP-Method-Override": "DELETE",
        "Host": "evil.example",
        "Cookie": "key=1",
        "Origin": "https://evil.example",
        "traceparent": "00-" + "f" * 32 + "-" + "f" * 16 + "-01",
    }
    again = service.ask(TOP, headers=claims)
    assert (again.status_code, again.content) == (200, plain.content)
    assert again.headers["x-request-id"] != "mine"
    assert not any(name.startswith("access-control") for name in again.headers), "no other site may read answers"
    assert "evil" not in str(again.headers)


# ---------------------------------------------------------------------------------------------------------- on the wire


def _response_to(url, sent):
    """Return the response to raw bytes, until the connection is closed or the response is complete."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        connection.sendall(sent)
        received = b""
        while b"\r\n\r\n" not in received or (
            b"\r\n\r\n" in received and b"}" not in received and b"Invalid" not in received
        ):
            more = connection.recv(65_536)
            if not more:
                break
            received += more
    return received


def test_bytes_that_are_not_http_stop_no_request(tmp_path):
    """T5: smuggled lengths, missing bodies, a hundred incomplete requests: the next request is answered."""
    deployment = Deployment(tmp_path / "deployment")
    with serving(deployment) as service:
        begin = b"POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer "
        begin += deployment.keys["ann"].encode() + b"\r\n"
        body = json.dumps({"sql": TOP}).encode()
        chunk = b"%x\r\n%s\r\n" % (1_000, b" " * 1_000)
        chunked = begin + b"Transfer-Encoding: chunked\r\n\r\n"
        fine = _response_to(service.url, chunked + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        assert fine.startswith(b"HTTP/1.1 200")
        assert _response_to(service.url, chunked + chunk * 5).startswith(b"HTTP/1.1 413"), "waited for the end"
        both = begin + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        twice = begin + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n123456"
        for smuggled in (
            both,
            twice,
            begin + b"Content-Length: -1\r\n\r\n",
            begin + b"Folded:\r\n\tvalue\r\n\x00: x\r\n\r\n",
        ):
            assert _response_to(service.url, smuggled).startswith(b"HTTP/1.1 400")
        parts = urlsplit(service.url)
        slow = [socket.create_connection((parts.hostname, parts.port)) for _ in range(100)]
        for number, connection in enumerate(slow):
            connection.sendall(begin[: 40 + number] if number % 2 else begin + b"Content-Length: 50\r\n\r\n{")
        reply = httpx.post(
            f"{service.url}/v1/query", json={"sql": KNOWN}, headers=deployment.headers("ann"), timeout=60
        )
        assert reply.status_code == 200
        assert httpx.get(f"{service.url}/readyz").status_code == 200
        for connection in slow:
            connection.close()
    with deployment.manager() as manager:
        deployment.check(manager)
        assert len(manager.store.history("ann@sales")) == 2
        assert manager.get("ann@sales").balance.held == Cost()
