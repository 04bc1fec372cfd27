"""Free requests that are written to take long: none takes a second of the service's own process, or fails in it."""

from __future__ import annotations

import ast
import base64
import contextlib
import gc
import importlib
import inspect
import pkgutil
import re
import time
from functools import partial
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

import discreet
from discreet.service.doors.pages.site import LOGIN_COOKIE
from discreet.service.settings import ServiceSettings
from discreet.values import Cost
from tests.service.browser import Browser
from tests.service.deployment import shared_pool, slug
from tests.service.issuer import OIDC, TestIssuer
from tests.service.trino_client import error, last, post

pytestmark = pytest.mark.usefixtures("only_own_garbage")

MAX_CPU_SECONDS = 1.0
RATIO = "HIGH((COUNT(DISTINCT reader) - {0}.5 * COUNT(*)) / (COUNT(*) + {0}.25 * SUM(minutes)))"
TEXTS = {
    "open comments": "SELECT 1 " + "/* " * 6_500,
    "open comments, long": "SELECT 1 " + "/* " * 19_000,
    "comments": "SELECT 1 " + "/**/ " * 12_000,
    "a number of Trino's that is none": f"SELECT DOUBLE '{'1' * 19_000}x'",
    "a long number of Trino's that is none": f"SELECT DOUBLE '{'1' * 60_000}x'",
    "a long number": f"SELECT COUNT(DISTINCT reader) FROM reads WHERE minutes = {'1' * 19_000}",
    "an exponent": "SELECT LOW(COUNT(DISTINCT reader) * 1e999999999) FROM reads",
    "a place in the select list": f"SELECT article, COUNT(*) FROM reads GROUP BY 000000001{'0' * 9_000}",
    "a place in ORDER BY": f"SELECT article, COUNT(*) FROM reads GROUP BY 1 ORDER BY {'0' * 9_000}2 DESC LIMIT 3",
    "intervals": f"SELECT {', '.join(RATIO.format(n) for n in range(150))} FROM reads",
    "parentheses": f"SELECT {'(' * 9_000}1{')' * 9_000}",
    "ROW": f"SELECT {'ROW(' * 49}1{')' * 49}",
    "NOT": f"SELECT COUNT(DISTINCT reader) FROM reads WHERE {'NOT ' * 4_500} article = 'a'",
    "CASE": f"SELECT {'CASE WHEN 1 THEN ' * 800}1{' END' * 800} FROM reads",
    "AND": f"SELECT COUNT(DISTINCT reader) FROM reads WHERE {' AND '.join(['minutes = 1'] * 1_200)}",
    "IN": f"SELECT COUNT(DISTINCT reader) FROM reads WHERE minutes IN ({','.join(['1'] * 9_900)})",
    "dates": f"SELECT COUNT(DISTINCT reader) FROM reads WHERE day IN ({','.join(['today()'] * 2_400)})",
    "columns": f"SELECT {', '.join(['article'] * 2_000)}, COUNT(DISTINCT reader) FROM reads GROUP BY 1",
    "quotes": f"SELECT {chr(39) * 19_000}",
    "names of WITH": f"WITH {', '.join(f'a{n} AS (SELECT 1)' for n in range(900))} SELECT 1",
    "an open name": 'SELECT "' + "a." * 9_000,
    "spaces": f"EXPLAIN{' ' * 60_000}(",
    "spaces of SHOW": f"SHOW TABLES FROM a{' ' * 19_000}.",
    "EXECUTE": f"EXECUTE IMMEDIATE '{chr(39) * 2 * 9_000}' USING {'(,' * 500}",
}


FORM = "application/x-www-form-urlencoded"
MAX_BODY_BYTES = ServiceSettings.model_fields["max_body_bytes"].default
MAX_BODY = f"max_body_bytes = {MAX_BODY_BYTES}"
"""The setting of a service, in place of the small one of other tests."""


@pytest.fixture
def only_own_garbage():
    """Exclude what other tests left alive from garbage collection: visiting it would count as CPU time of this one.

    `pytest_sessionfinish` collects it at exit.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def measured(services):
    """Return a service with an issuer of tokens, and a function that sends a request and checks what it took."""
    with contextlib.closing(TestIssuer()) as issuer:
        service = services(service=MAX_BODY, rest=OIDC.format(url=issuer.url))

        def check(name, work):
            before = service.engines.queried, service.balance().spent
            began = time.process_time()
            reply = work()
            took = time.process_time() - began
            assert took < MAX_CPU_SECONDS, f"{name} takes {took:.2f} s of the service's CPU"
            assert reply.status_code < 500, f"{name} is {reply.status_code}: {reply.text[:300]}"
            assert service.engines.queried == before[0] or service.balance().spent != before[1], f"{name} is free"
            return reply

        yield service, check


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", ["/v1/query", "/v1/estimate", "/v1/sql", "/v1/sql/estimate"])
def test_no_statement_freezes_the_service(measured, path):
    """Statements are read in another process; filters of one query are read in linear time."""
    service, check = measured
    for name, text in TEXTS.items():
        body = {"sql": text, **({"intervals": True, "rehearse": True} if "sql" in path else {})}
        check(f"{name} on {path}", lambda body=body: service.send("POST", path, json=body))


@pytest.mark.timeout(300)
def test_no_statement_of_a_trino_client_freezes_the_service(measured):
    """Neither when it is read, nor when its pages are asked for."""
    service, check = measured
    for name, text in TEXTS.items():
        for sql in (text, f"EXPLAIN {text}"):
            reply = check(f"{name} of Trino", lambda sql=sql: _sent(service, sql))
            assert reply.status_code != 413, f"{name} was not read"


def _sent(service, sql):
    reply = post(service, sql)
    if reply.status_code == 200:
        last(service, reply)
    return reply


@pytest.mark.timeout(300)
def test_no_page_freezes_the_service(measured):
    """The form estimates what it shows."""
    service, check = measured
    browser = Browser(service)
    assert browser.log_in(service.keys["ann"]).status_code == 303
    browser.get("/ask")
    for name, text in TEXTS.items():
        reply = check(f"{name} on a page", lambda text=text: browser.post("/ask", sql=text))
        assert reply.status_code != 413 or len(urlencode({"sql": text})) > 60_000, f"{name} was not read"
        check(f"{name} in an address", lambda text=text: browser.get("/ask", params={"sql": text[:9_000]}))


def test_a_statement_that_is_too_slow_to_read_is_no_missing_name(service, monkeypatch):
    """Every door says so, and that something in the request is not allowed; it is not taken for a name."""
    split = shared_pool().split

    def slow(*arguments, **options):
        """Read it with no time left: the real limit takes four seconds for each door."""
        with monkeypatch.context() as patch:
            patch.setattr("discreet.service.answering.pool.MAX_SECONDS", 0.0)
            return split(*arguments, **options)

    monkeypatch.setattr(shared_pool(), "split", slow)
    sql = "SELECT COUNT(DISTINCT reader) + 1 AS n FROM reads"
    sentence = "the statement takes more than 4 seconds to read"
    shown = sentence.capitalize()
    for path in ("/v1/sql", "/v1/sql/estimate"):
        refused = service.send("POST", path, json={"sql": sql})
        assert (refused.status_code, slug(refused), refused.json()["detail"]) == (422, "out-of-range", sentence)
    found = error(service, sql)
    assert (found["errorName"], found["message"]) == ("GENERIC_USER_ERROR", sentence)
    browser = Browser(service)
    browser.log_in(service.keys["ann"])
    assert shown in browser.get("/ask", params={"sql": sql}).text
    browser.get("/ask")
    answered = browser.post("/ask", sql=sql)
    assert (answered.status_code, shown in answered.text) == (422, True)
    assert service.balance().spent == Cost()


DIGITS = "1" * 5_000
BODIES = [
    {"delta": "1/" * 20_000 + "1"},
    {"delta": "1." + "1" * 60_000},
    {"delta": "1e-999999999"},
    {"epsilon": 10**4_000},
    {"relative_error": "1e999999999"},
]


@pytest.mark.parametrize(
    ("method", "path", "request_"),
    [
        ("GET", f"/v1/statement/executing/x/{DIGITS}", {}),
        ("DELETE", f"/v1/statement/executing/x/{DIGITS}", {}),
        ("GET", f"/v1/releases?limit={DIGITS}", {}),
        ("GET", f"/v1/datasets/reads/sample?rows={DIGITS}", {}),
        (
            "POST",
            "/v1/sql",
            {"content": b"{}", "headers": {"Content-Length": DIGITS, "Content-Type": "application/json"}},
        ),
        ("POST", "/v1/sql", {"content": b'{"sql": "SELECT 1", "epsilon": ' + DIGITS.encode() + b"}"}),
        ("POST", "/v1/query", {"content": b"[" * 60_000}),
        *[
            ("POST", "/v1/query", {"json": {"sql": "SELECT COUNT(DISTINCT reader) FROM reads", **body}})
            for body in BODIES
        ],
        *[
            ("POST", "/v1/sql", {"json": {"sql": "SELECT COUNT(DISTINCT reader) FROM reads", **body}})
            for body in BODIES
        ],
        *[
            ("POST", "/v1/statement", {"content": b"SELECT 1", "headers": {"X-Trino-Session": f"{name}={text}"}})
            for name in ("epsilon", "delta", "head_limit", "query_max_run_time")
            for text in (DIGITS, "1e999999999", "1%2F" * 9_000)
        ],
    ],
)
def test_no_number_freezes_the_service(measured, method, path, request_):
    """Python converts numbers in quadratic time, and raises beyond 4,300 digits; fractions grow with the exponent.

    With a key and without.
    """
    service, check = measured
    headers = {"Content-Type": "application/json", **request_.get("headers", {})}
    for who in ("ann", None):
        check(
            f"{path[:60]} by {who}", lambda who=who: service.send(method, path, who, **request_ | {"headers": headers})
        )


HEADS = [
    *(b"[" * 12_000, b'{"a":' * 2_400, b'{"alg":' + b"1" * 12_000 + b"}", b'["alg"]', b'{"alg": ["RS256"]}'),
    *(b'{"alg": "RS256", "kid": ' + kid + b"}" for kid in (b'"' + b"a" * 12_000 + b'"', b'"of no key"', b"1")),
    *(b'{"alg": "none"}', b'{"alg": "PBES2-HS512+A256KW", "p2c": 2000000000}', b'{"alg": "RS256", "kid": "rsa"}'),
]
TOKENS = [
    *("." * 16_000, "a." * 8_000, "=" * 16_000, "a" * 16_001 + "..", "%2e" * 5_000),
    *(f"{base64.urlsafe_b64encode(head).decode()}.{'e30' * 40}.{'A' * 200}" for head in HEADS),
]
"""Tokens of no issuer, as long as those that are read."""

HEADERS = [
    *(("Authorization", f"Bearer {token}") for token in TOKENS),
    *(("Cookie", text) for text in ('a="' + "\\" * 60_000 + '"', "a=b;" * 15_000, 'a="' + "\\101" * 15_000 + '"')),
    *(("Accept", text) for text in ("a/b," * 15_000, "text/csv;" + "q=1;" * 15_000)),
    *(("Authorization", f"{kind} {text * 15_000}") for kind in ("Basic", "Bearer") for text in ("QUFB", ".e30", "= ")),
    *(("X-Trino-Session", text) for text in ("a=b," * 15_000, "epsilon=1," * 6_000, "a.b.c=" + "%41" * 20_000)),
    *(("X-Trino-Prepared-Statement", text) for text in ("a=SELECT+1," * 5_000, "a=" + "%2F%2A" * 10_000)),
    ("X-Trino-Extra-Credential", "a=b," * 15_000),
    ("traceparent", "00-" + "0" * 60_000),
    ("Idempotency-Key", "a" * 60_000),
    ("Referer", "http://" + "a." * 30_000),
    ("Host", "a:" + "1" * 60_000),
]


@pytest.mark.parametrize(("method", "path"), [("GET", "/ask"), ("POST", "/v1/statement"), ("POST", "/v1/sql")])
def test_no_header_freezes_the_service(measured, method, path):
    """With a key and without: a header is 64 KiB long at most, behind the proxy of examples/deploy."""
    service, check = measured
    for name, text in HEADERS:
        headers = {"Content-Type": "application/json", name: text}
        for who in (None,) if name == "Authorization" else ("ann", None):
            send = partial(service.send, method, path, who, content=b'{"sql": "SELECT 1"}', headers=headers)
            check(f"{name}: {text[:20]} of {who} on {path}", send)


def test_no_login_at_an_issuer_freezes_the_service(measured):
    """Where it begins, and what comes back from the issuer or from somewhere else."""
    service, check = measured
    for token in TOKENS:
        for name in ("state", "code", "iss", "cookie"):
            browser = Browser(service)
            away = check(f"{token[:20]} to return to", partial(browser.get, "/login/issuer", params={"next": token}))
            back = {"state": parse_qs(urlsplit(away.headers["location"]).query)["state"], "code": "a", name: token}
            cookie = {"headers": {"Cookie": f"{LOGIN_COOKIE}={token}"}} if name == "cookie" else {}
            check(f"{token[:20]} as {name}", partial(browser.get, "/login/callback", params=back, **cookie))


FORMS = [
    *(f"{field}=country%3DIN&" * (60_000 // len(f"{field}=country%3DIN&")) for field in ("pick", "preset", "item")),
    "filter=day&low=2026-01-01&high=2026-01-02&" * 1_400,
    "where=" + "article+%3D+%27a%27+OR+" * 800 + "true",
    "&".join(f"a{n}=1" for n in range(7_000)),
    "&" * 60_000,
    "sql=" + "%" * 60_000,
]


def test_no_form_freezes_the_service(measured):
    """As an address, and as a form that is sent; with a session and without."""
    service, check = measured
    browser = Browser(service)
    assert browser.log_in(service.keys["ann"]).status_code == 303
    stranger = Browser(service)
    for form in FORMS:
        typed = f"from=a&dataset=reads&measure=users&{form}"
        check(f"{form[:20]} in an address", partial(browser.get, f"/ask?{typed}"))
        check(f"{form[:20]} of a stranger", partial(stranger.get, f"/login?{typed}"))
        for one, path in ((browser, "/ask"), (stranger, "/login")):
            send = partial(one.request, "POST", path, content=typed, headers={"Content-Type": FORM})
            check(f"{form[:20]} as a form of {path}", send)


# -------------------------------------------------------------------------------------------------------- patterns


METHODS = {"match", "fullmatch", "search", "sub", "findall", "finditer", "split"}
FOREIGN = ("discreet.query", "discreet.service", "discreet.values", "discreet.wire")
"""The packages that read text of analysts; the others read text of the data owner."""


def patterns():  # noqa: C901 - one case for each way to use a pattern
    """Yield each regular expression with its place and each way in which it is used."""
    for found in pkgutil.walk_packages(discreet.__path__, "discreet."):
        if not found.name.startswith(FOREIGN) or found.name.startswith("discreet.service.doors.mcp"):
            continue
        module = importlib.import_module(found.name)
        tree = ast.parse(inspect.getsource(module))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
        for call in calls:
            match call.func:
                case ast.Attribute(value=ast.Name(id="re"), attr=method) if method in METHODS:
                    flags = re.VERBOSE | re.IGNORECASE if "re.VERBOSE" in ast.unparse(call) else re.IGNORECASE
                    text = call.args[0]
                case ast.Attribute(value=ast.Name(id=name), attr=method) if method in METHODS:
                    if isinstance(getattr(module, name, None), re.Pattern):
                        yield f"{found.name}:{call.lineno}", getattr(module, name), method
                    continue
                case ast.Name(id="_matches"):
                    text, method, flags = call.args[0], "fullmatch", re.IGNORECASE | re.DOTALL
                case _:
                    continue
            if isinstance(text, ast.Constant | ast.JoinedStr):
                pattern = eval(compile(ast.Expression(text), "pattern", "eval"), vars(module))  # noqa: S307
                yield f"{found.name}:{call.lineno}", re.compile(pattern, flags), method
        for name, values in vars(module).items():
            if isinstance(values, tuple) and all(isinstance(value, re.Pattern) for value in values):
                for number, value in enumerate(values):
                    yield f"{found.name}:{name}[{number}]", value, "fullmatch"


PIECES = (
    "/* ", "/**/", "--", "'", '"', "''", '""', "'a' ", '"a" ', "a", "1", "1.", ".1", "1e", "-", " ", "\n", "(", ")",
    "a.", " . a", "a ", "LIKE '", "LIKE ", "EXPLAIN ", "EXECUTE ", ",", "=", "%", "a,b\t", "a:", "(1,", "e-0",
    "CREATE TABLE a ", "INSERT INTO a ",
)  # fmt: skip
PREFIXES = (
    "", "'", '"', "/*", "EXPLAIN ", "EXPLAIN (", "LIKE '", "a", "1", "-", "decimal(", "timestamp(",
    "PREPARE a FROM ", "EXECUTE IMMEDIATE '", "EXECUTE a USING ", "SET SESSION a", "SET SESSION a = '", "USE a",
    "DESCRIBE a", "SHOW TABLES FROM a",
)  # fmt: skip


def _seconds(pattern, method, text):
    """Return the CPU seconds of a use of a pattern."""
    text = text.encode() if isinstance(pattern.pattern, bytes) else text
    began = time.process_time()
    found = getattr(pattern, method)(*((text[:0], text) if method == "sub" else (text,)))
    if method == "finditer":
        list(found)
    return time.process_time() - began


@pytest.mark.timeout(300)
def test_every_pattern_takes_linear_time():
    """As it is used, on a repeated piece: a quadratic one takes half a second for 20,000 characters, 2 for 40,000."""
    assert len(list(patterns())) > 40
    slow = []
    for place, pattern, method in patterns():
        for prefix in PREFIXES:
            for piece in PIECES:
                text, twice = (prefix + piece * (length // len(piece)) + "\0" for length in (20_000, 40_000))
                seconds = _seconds(pattern, method, text)
                if 0.15 < seconds < 1:  # or the machine is busy: the least of several tells
                    least = [min(_seconds(pattern, method, tried) for _ in range(3)) for tried in (text, twice)]
                    seconds = least[0] if least[1] > 3 * least[0] else 0
                if seconds > 0.15:
                    slow.append((place, method, prefix, piece, seconds))
                    break
    assert not slow
