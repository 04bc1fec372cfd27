"""Retries: the same request, as often as is safe, until a deadline."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
import threading

import pytest

from discreet import __version__
from discreet.client import Client, ServiceError
from discreet.client.errors import Busy
from discreet.client.retries import RetryRuntime
from discreet.errors import EngineError, InputError, how_to_install

from .conftest import KEY
from .scripted_server import DROP, FakeRuntime, problem, reply

BUDGET = (
    b'{"account":"ann","mode":"enforce","period":{"kind":"forever","days":null,"unit":null,"zone":null},'
    b'"limit":{"rho":1,"delta":1e-8},"used":{"rho":0,"delta":0},"held":{"rho":0,"delta":0},'
    b'"forfeited":{"rho":0,"delta":0},"left":{"rho":1,"delta":1e-8},"epsilon_limit":1,"epsilon_spent":0,"epsilon_left":1,'
    b'"conversion_delta":1e-9,"units":null,"resets_at":null,"suspended_until":null,"guarantee":null,"parents":[]}'
)
GOOD = reply(body=BUDGET)
CUT = reply(body=BUDGET)[:-100]
SQL = "SELECT a, COUNT(DISTINCT u) FROM t GROUP BY a LIMIT 3"


@pytest.mark.parametrize(
    "failure", [DROP, CUT, GOOD[:20], reply(502, b"", "text/html"), problem(503, "store-unavailable")]
)
def test_transport_failures_are_retried(make_client, failure):
    """A dropped reply, one cut in its body or its headers, a proxy's error, an unavailable store."""
    client, server, fake = make_client([failure, failure, GOOD])
    assert client.budget().account == "ann"
    assert len(server.sent) == 3
    assert fake.slept == [0.1875, 0.375]


def test_a_retry_has_the_same_key_and_body(make_client):
    """I4: it is answered once and charged once."""
    client, server, _ = make_client([DROP, CUT, problem(409, "in-flight"), problem(403, "forbidden")])
    with pytest.raises(InputError):
        client.query(SQL, epsilon=0.5, delta="1e-8")
    assert len(server.sent) == 4
    assert len({(sent.headers["idempotency-key"], sent.body, sent.line) for sent in server.sent}) == 1
    assert server.sent[0].line == "POST /v1/query HTTP/1.1"


def test_every_query_has_a_key_of_its_own(make_client):
    """Two calls with the same query are two queries."""
    client, server, _ = make_client([problem(403, "forbidden")])
    for _ in range(2):
        with pytest.raises(InputError):
            client.query(SQL)
    assert len({sent.headers["idempotency-key"] for sent in server.sent}) == 2


@pytest.mark.parametrize(
    "refusal",
    [
        problem(403, "budget-short"),
        problem(403, "suspended"),
        problem(401, "unauthorized"),
        problem(422, "out-of-range"),
        problem(500, "internal"),
        problem(503, "engine-failed", retry_after=1),
        problem(504, "engine-timeout", retry_after=1),
        problem(503, "data-changed"),
        problem(503, "clock"),
        reply(302, b"", location="http://127.0.0.1:9/"),
        reply(500, b"", "text/html"),
    ],
)
def test_refused_and_paid_queries_are_not_retried(make_client, refusal):
    """A refusal is final, and a failed run is a forfeit; a redirect would send the key elsewhere."""
    client, server, fake = make_client([refusal, GOOD])
    with pytest.raises((InputError, ServiceError, EngineError, Exception)):
        client.budget()
    assert len(server.sent) == 1
    assert fake.slept == []


def test_failures_are_retried_so_many_times(make_client):
    """Then the last error is raised, without the message of the HTTP library."""
    client, server, _ = make_client([DROP], retries=2)
    with pytest.raises(ServiceError, match=r"^the connection to http://127.0.0.1:\d+ broke before a reply came$"):
        client.budget()
    assert len(server.sent) == 3


def test_a_running_query_is_awaited_until_the_deadline(make_client):
    """A running query is awaited until the deadline; the remaining time is shown."""
    client, server, fake = make_client([problem(409, "in-flight", retry_after=10)], timeout=35, retries=0)
    with pytest.raises(Busy) as caught:
        client.query(SQL)
    assert caught.value.retry_after == 10
    assert len(server.sent) == 4
    assert sum(fake.slept) < 35
    assert all(slept >= 10 for slept in fake.slept)


def test_a_retry_after_beyond_the_deadline_is_not_waited_for(make_client):
    """The error is raised at once, without a useless sleep."""
    client, _, fake = make_client([problem(429, "too-many-requests", retry_after=3600)], timeout=60)
    with pytest.raises(Busy):
        client.budget()
    assert fake.slept == []


def test_the_deadline_counts_all_attempts(make_client):
    """Slow failures are retried less often."""
    client, server, fake = make_client([DROP], timeout=10, retries=100)
    with pytest.raises(ServiceError):
        client.budget()
    assert 3 < len(server.sent) < 10
    assert fake.now < 1010


def test_a_slow_response_is_abandoned_at_the_deadline():
    """Each part arrives in time, the whole does not: the deadline is for the whole response."""
    fake, arrived = FakeRuntime(), threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            arrived.set()
            for place in range(0, len(GOOD), 10):
                connection.sendall(GOOD[place : place + 10])

    def clock():
        """Advance the time as soon as the request has arrived."""
        return 1000.0 + (100.0 if arrived.is_set() else 0.0)

    thread = threading.Thread(target=serve)
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with (
        Client(url, KEY, timeout=60, runtime=RetryRuntime(clock, fake.sleep, fake.random, fake.ids)) as client,
        pytest.raises(ServiceError, match=r"no reply came from .* within 60 seconds"),
    ):
        client.budget()
    thread.join()
    listening.close()


def test_an_unreachable_service_is_reported(make_client):
    """The error is raised after the usual number of attempts."""
    _, server, fake = make_client([GOOD])
    server.close()
    runtime = RetryRuntime(fake.clock, fake.sleep, fake.random, fake.ids)
    with Client(server.url, KEY, runtime=runtime) as client, pytest.raises(ServiceError) as caught:
        client.budget()
    assert str(caught.value) == f"{server.url} cannot be reached"
    assert caught.value.status is None
    assert len(fake.slept) == 3


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (reply(200, b"<html>", "text/html"), "is not a Discreet service, or one of another version"),
        (reply(200, b'{"account": 1}'), "is not a Discreet service, or one of another version"),
        (reply(200, b"\xff\xfe"), "is not a Discreet service, or one of another version"),
        (reply(404, b"<html>", "text/html"), "replied with HTTP status 404 and is not a Discreet service"),
        (reply(204, b""), "replied with HTTP status 204"),
    ],
)
def test_another_server_is_reported(make_client, answer, sentence):
    """Such as a captive portal; none of its text is shown."""
    client, _, _ = make_client([answer])
    with pytest.raises(ServiceError) as caught:
        client.budget()
    assert sentence in str(caught.value)
    assert "html" not in str(caught.value)


def test_every_request_has_the_key_the_client_and_the_accepted_types(make_client):
    """The key, the client and the accepted types."""
    client, server, _ = make_client([GOOD])
    client.budget()
    (sent,) = server.sent
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert sent.headers["user-agent"] == f"discreet/{__version__} python/{python}"
    assert sent.headers["accept"] == "application/json"


def test_a_service_below_a_path_is_queried_there(make_client):
    """The service may be behind a proxy that serves other paths."""
    _, server, _ = make_client([GOOD])
    with Client(server.url + "/counts/", KEY) as below:
        below.budget()
    assert server.sent[-1].line == "GET /counts/v1/budget HTTP/1.1"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Return a self-signed certificate for localhost."""
    folder = tmp_path_factory.mktemp("certificate")
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]),
    )
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder


@pytest.fixture
def secure(certificate):
    """Run a server with that certificate; return its URL and the requests it received."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    listening, requests = socket.create_server(("127.0.0.1", 0)), []

    def serve():
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as wrapped:
            requests.append(wrapped.recv(65536))
            wrapped.sendall(GOOD)

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"https://localhost:{listening.getsockname()[1]}", requests
    thread.join(10)
    listening.close()


def test_an_untrusted_certificate_is_refused_and_the_key_not_sent(secure):
    """T20: verification cannot be turned off; there is no retry."""
    (url, requests), fake = secure, FakeRuntime()
    runtime = RetryRuntime(fake.clock, fake.sleep, fake.random, fake.ids)
    with Client(url, KEY, runtime=runtime) as client, pytest.raises(ServiceError) as caught:
        client.budget()
    assert str(caught.value) == f"the certificate of {url} is not trusted on this machine"
    assert requests in ([], [b""])
    assert fake.slept == []


def test_a_self_signed_certificate_can_be_trusted(secure, certificate, monkeypatch):
    """SSL_CERT_FILE, which other programs use too, adds a trusted certificate."""
    url, requests = secure
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    with Client(url, KEY) as client:
        assert client.budget().account == "ann"
    assert len(requests) == 1


def test_proxies_of_the_environment_are_not_used_for_plain_http(make_client, monkeypatch):
    """Plain http is for this machine; a proxy of the environment would read the key."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    client, server, _ = make_client([GOOD])
    client.budget()
    assert len(server.sent) == 1


def test_without_httpx_the_error_names_what_to_install():
    """Httpx is optional, and the message names the extra that installs it."""
    script = (
        "import sys\nsys.modules['httpx'] = None\nimport discreet.client\n"
        "try: discreet.client.Client('https://x', 'k')\nexcept ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"the client needs httpx; {how_to_install('client')}\n"
