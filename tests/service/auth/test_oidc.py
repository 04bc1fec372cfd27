"""Tokens of an OpenID issuer that runs on a local port."""

from __future__ import annotations

import base64
import hmac
import json

import httpx
import pytest
from joserfc.jwk import RSAKey

from discreet.service.auth.access import Authenticator, RecordCache
from discreet.service.auth.identity import Identity
from discreet.service.auth.oidc import Issuer, is_as_safe
from discreet.service.observability import IssuerFetched
from discreet.service.problems import IssuerUnavailable, KeyRefused
from discreet.service.settings import Oidc
from tests.service.deployment import Clock
from tests.service.issuer import KEYS, TestIssuer
from tests.service.memory_records import MemoryRecords


class Events:
    """A log that records events."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def event(self, event) -> None:
        """Keep the event."""
        self.events.append(event)


@pytest.fixture
def clock():
    """Return a clock at noon."""
    return Clock()


@pytest.fixture
def server():
    """Return the server of the issuer."""
    issuer = TestIssuer()
    yield issuer
    issuer.close()


@pytest.fixture
def log():
    """Return the logged events."""
    return Events()


@pytest.fixture
def connect(clock, log):
    """Return a client of the issuer at a URL."""
    with httpx.Client() as client:
        yield lambda url, **settings: Issuer(Oidc(issuer=url, audience="discreet", **settings), client, clock, log)


@pytest.fixture
def issuer(connect, server):
    """Return the service's client of the issuer."""
    return connect(server.url)


@pytest.mark.parametrize("alg", ["RS256", "ES256", "EdDSA"])
def test_a_valid_token_identifies_the_sender(issuer, server, clock, alg):
    """Signatures by any kind of key that the issuer publishes are accepted."""
    assert issuer.authenticate(server.token(clock, alg=alg)) == Identity("oidc:ann", "ann", frozenset({"analyst"}))


def test_the_newer_name_of_a_signature_algorithm_is_accepted(issuer, server, clock):
    """RFC 9864 calls EdDSA with that curve Ed25519."""
    assert issuer.authenticate(server.token(clock, key=KEYS["EdDSA"], alg="Ed25519")).account == "ann"


STRANGER = RSAKey.generate_key(2048, {"kid": "rsa"})


def text_of(part: bytes) -> str:
    """Return the base64url text of a token's part."""
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def with_public_key_as_secret(clock, server) -> str:
    """Return a token with HS256 and the public key as its secret, which the library refuses to sign."""
    head = text_of(json.dumps({"alg": "HS256", "kid": "rsa"}).encode())
    claimed = f"{head}.{server.token(clock).split('.')[1]}"
    return f"{claimed}.{text_of(hmac.digest(KEYS['RS256'].as_pem(private=False), claimed.encode(), 'sha256'))}"


def unsigned(clock, server) -> str:
    """Return a token with alg none."""
    head = text_of(json.dumps({"alg": "none", "kid": "rsa"}).encode())
    return f"{head}.{server.token(clock).split('.')[1]}."


@pytest.mark.parametrize(
    "forge",
    [
        lambda clock, server: server.token(clock, exp=int(clock().timestamp()) - 31),
        lambda clock, server: server.token(clock, exp=None),
        lambda clock, server: server.token(clock, exp="tomorrow"),
        lambda clock, server: server.token(clock, nbf=int(clock().timestamp()) + 31),
        lambda clock, server: server.token(clock, aud="another"),
        lambda clock, server: server.token(clock, aud=["another", "discreet2"]),
        lambda clock, server: server.token(clock, aud=None),
        lambda clock, server: server.token(clock, iss="https://login.example.org"),
        lambda clock, server: server.token(clock, iss=server.url + "/"),
        lambda clock, server: server.token(clock, iss=None),
        lambda clock, server: server.token(clock, sub=None),
        lambda clock, server: server.token(clock, sub=""),
        lambda clock, server: server.token(clock, sub=5),
        lambda clock, server: server.token(clock, key=STRANGER),
        lambda clock, server: server.token(clock, alg="RS384", key=KEYS["RS256"]),
        with_public_key_as_secret,
        lambda clock, server: server.token(clock, header={"kid": "ec"}),
        lambda clock, server: server.token(clock, header={"crit": ["x"], "x": 1}),
        unsigned,
        lambda clock, server: server.token(clock)[:-4] + "AAAA",
        lambda clock, server: server.token(clock).replace(".", "", 1),
        lambda *_: "x" * 20_000,
        lambda *_: "..",
        lambda *_: "ä.ö.ü",
    ],
    ids=[
        "expired", "without an end", "ends as text", "not yet", "other audience", "other audiences", "no audience",
        "other issuer", "nearly the issuer", "no issuer", "no subject", "empty subject", "subject a number",
        "other key of that name", "other algorithm", "HS256 with the public key", "key of another kind",
        "critical header", "unsigned", "bad signature", "two parts", "too long", "empty parts", "no base64",
    ],
)  # fmt: skip
def test_an_invalid_token_is_refused(issuer, server, clock, forge):
    """The response is the same for every defect, and nothing is cached."""
    token = forge(clock, server)
    for _ in range(2):
        with pytest.raises(KeyRefused) as caught:
            issuer.authenticate(token)
        assert (str(caught.value), caught.value.reason) == (str(KeyRefused("missing")), "token")
        assert issuer.cached(token) is None


def test_clocks_may_differ_by_half_a_minute(issuer, server, clock):
    """Tokens are accepted within a clock difference of half a minute."""
    now = int(clock().timestamp())
    assert issuer.authenticate(server.token(clock, exp=now - 29, nbf=now + 30)).account == "ann"


def test_keys_are_fetched_once_an_hour(issuer, server, clock):
    """Keys are cached for an hour, and not fetched for each token."""
    for n in range(20):
        issuer.authenticate(server.token(clock, sub=f"analyst{n}"))
    assert len(server.asked) == 2
    clock.pass_(hours=1, seconds=1)
    issuer.authenticate(server.token(clock))
    assert len(server.asked) == 4


def test_a_new_key_of_the_issuer_is_fetched(issuer, server, clock):
    """A token with an unknown key id makes the client fetch the keys again."""
    issuer.authenticate(server.token(clock))
    fresh = RSAKey.generate_key(2048, {"kid": "rsa-2"})
    server.keys = [fresh]
    clock.pass_(seconds=31)
    assert issuer.authenticate(server.token(clock, key=fresh)).account == "ann"


def test_a_removed_key_of_the_issuer_verifies_no_token(issuer, server, clock):
    """Neither new tokens nor those that were valid before are accepted."""
    before = server.token(clock, exp=int(clock().timestamp()) + 100_000)
    issuer.authenticate(before)
    server.keys = [KEYS["ES256"]]
    clock.pass_(hours=1, seconds=1)
    assert issuer.cached(before) is None
    issuer.authenticate(server.token(clock, alg="ES256"))
    for token in (server.token(clock, exp=int(clock().timestamp()) + 9), before):
        with pytest.raises(KeyRefused):
            issuer.authenticate(token)


def test_unknown_keys_are_fetched_at_most_twice_a_minute(issuer, server, clock):
    """Such tokens need no valid signature to cause a fetch."""
    stranger = RSAKey.generate_key(2048, {"kid": "nobody"})
    for _ in range(10):
        with pytest.raises(KeyRefused):
            issuer.authenticate(server.token(clock, key=stranger))
        clock.pass_(seconds=3)
    assert len(server.asked) == 2


def test_while_the_issuer_is_unavailable_tokens_are_503(connect, server, clock, log):
    """503 and not 401: a valid token must not be reported as invalid."""
    issuer = connect("http://127.0.0.1:9/realms/work")
    with pytest.raises(IssuerUnavailable) as caught:
        issuer.authenticate(server.token(clock))
    assert "127.0.0.1" not in str(caught.value)
    assert log.events == [IssuerFetched("discovery", "failed")]
    with pytest.raises(IssuerUnavailable):
        issuer.authenticate(server.token(clock))
    assert len(log.events) == 1, "an issuer that hangs is not waited for by every request"


def test_known_tokens_are_valid_while_the_issuer_is_unavailable(issuer, server, clock, log):
    """Until the keys are an hour old; then they are fetched again when the issuer is back."""
    known = server.token(clock, exp=int(clock().timestamp()) + 10_000)
    issuer.authenticate(known)
    assert log.events == [IssuerFetched("discovery", "ok"), IssuerFetched("keys", "ok")]
    server.status = 500
    clock.pass_(minutes=59)
    assert issuer.authenticate(known).account == "ann"
    assert issuer.cached(known).account == "ann"
    clock.pass_(minutes=2)
    assert issuer.cached(known) is None
    with pytest.raises(IssuerUnavailable):
        issuer.authenticate(known)
    server.status = 200
    clock.pass_(seconds=6)
    assert issuer.authenticate(known).account == "ann"


@pytest.mark.parametrize(
    ("extra", "body"),
    [
        ({"issuer": "https://login.example.org"}, None),
        ({"jwks_uri": None}, None),
        ({"jwks_uri": "file:///etc/passwd"}, None),
        ({"jwks_uri": "http://[::1/keys"}, None),
        ({}, b"not json"),
        ({}, b"[]"),
        ({}, b" " * 1_000_001),
        ({}, b"[" * 100_000),
    ],
)
def test_an_issuer_with_invalid_responses_is_unavailable(issuer, server, clock, extra, body):
    """Another issuer's name or URLs, too much data, or invalid JSON."""
    server.extra, server.body = extra, body
    with pytest.raises(IssuerUnavailable):
        issuer.authenticate(server.token(clock))


def test_keys_of_an_issuer_over_https_are_never_fetched_over_http():
    """An attacker on the network could publish keys."""
    assert is_as_safe("https://keys.example.org/jwks", "https://login.example.org")
    assert not is_as_safe("http://keys.example.org/jwks", "https://login.example.org")


def test_a_token_is_cached_until_it_expires(issuer, server, clock):
    """The cache answers in the event loop; no longer than the token's expiry, which may be any number."""
    assert issuer.authenticate(server.token(clock, exp=10**400)).account == "ann"
    token = server.token(clock, exp=int(clock().timestamp()) + 100)
    assert issuer.cached(token) is None
    issuer.authenticate(token)
    assert issuer.cached(token).account == "ann"
    clock.pass_(seconds=100)
    assert issuer.cached(token) is None


def test_the_account_is_the_value_of_the_configured_claim(connect, server, clock):
    """A non-empty text; tokens without it cannot query."""
    issuer = connect(server.url, account_claim="https://example.org/account")
    good = server.token(clock, **{"https://example.org/account": "ann@sales"})
    assert issuer.authenticate(good) == Identity("oidc:ann", "ann@sales", frozenset({"analyst"}))
    for account in (None, "", 5, ["ann@sales"]):
        token = server.token(clock, **{"https://example.org/account": account})
        assert issuer.authenticate(token).account is None


@pytest.mark.parametrize(
    ("claimed", "roles"),
    [
        (["budget-office"], {"officer"}),
        (["budget-office", "people", "admin"], {"officer", "analyst"}),
        ("people budget-office", {"officer", "analyst"}),
        (["admin", "officer"], set()),
        ([5, None, {}], set()),
        (None, set()),
        ({"people": 1}, set()),
    ],
)
def test_roles_are_mapped_from_the_claim_by_the_settings(connect, server, clock, claimed, roles):
    """Values that the settings do not map are ignored, even names of our own roles."""
    issuer = connect(
        server.url,
        roles_claim="realm_access.roles",
        roles={"budget-office": "officer", "people": "analyst"},
    )
    assert issuer.authenticate(server.token(clock, realm_access={"roles": claimed})).roles == roles


@pytest.mark.parametrize(
    ("sub", "actor"),
    [
        ("ann@example.org", "oidc:ann@example.org"),
        ("auth0|5 f\n", "oidc:auth0%7C5%20f%0A"),
        ("x" * 195, "oidc:" + "x" * 195),
    ],
)
def test_the_actor_of_the_ledger_is_the_subject_in_quotes(issuer, server, clock, sub, actor):
    """The quoted subject has no white space, as the ledger requires."""
    assert issuer.authenticate(server.token(clock, sub=sub)).actor == actor


def test_a_subject_too_long_for_the_ledger_is_named_by_its_digest(issuer, server, clock):
    """OpenID allows 255 characters, and other subjects could share the first 195."""
    actors = {issuer.authenticate(server.token(clock, sub="x" * 200 + end)).actor for end in "ab"}
    assert len(actors) == 2
    assert all(len(actor) <= 200 for actor in actors)


def test_a_keyring_accepts_keys_and_tokens(issuer, server, clock):
    """Anything unlike an API key is parsed as a token."""
    ring = Authenticator(RecordCache(MemoryRecords(), clock), clock, issuer)
    header = f"Bearer {server.token(clock)}"
    assert ring.cached(header) is None
    assert ring.authenticate(header).actor == "oidc:ann"
    assert ring.cached(header).actor == "oidc:ann"
