"""Logins at a local OpenID issuer, which checks the code, the client and PKCE."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from discreet.service.doors.pages.site import ISSUER_LIFETIME_SECONDS, LOGIN_SECONDS
from tests.service.browser import Browser
from tests.service.issuer import OIDC, TestIssuer


@pytest.fixture
def issuer():
    """Return an issuer that logs ann in."""
    opened = TestIssuer()
    opened.claims = {"account": "ann@sales"}
    yield opened
    opened.close()


@pytest.fixture
def service(services, issuer):
    """Return a service that is a client of the issuer."""
    opened = services(rest=OIDC.format(url=issuer.url))
    issuer.clock = opened.clock
    return opened


def log_in(service, browser=None, *, next_="/ask", change=lambda url: url):
    """Follow the redirects to the issuer and back, and return the browser and the response of the callback."""
    browser = browser or Browser(service)
    away = browser.get("/login/issuer", params={"next": next_})
    assert away.status_code == 303
    back = httpx.get(away.headers["location"]).headers["location"]
    parts = urlsplit(change(back))
    return browser, browser.get(f"{parts.path}?{parts.query}")


def test_a_login_at_the_issuer_leads_back_to_the_page(service):
    """The browser gets a session, and a page that loads the next one, so that the strict cookie is sent."""
    assert "Log in with 127.0.0.1" in Browser(service).get("/login").text
    ann, answer = log_in(service, next_="/ask?sql=SELECT")
    assert 'content="0; url=/ask?sql=SELECT"' in answer.text
    assert "ann@sales" in ann.get("/ask").text
    _, elsewhere = log_in(service, next_="//elsewhere.example")
    assert 'content="0; url=/"' in elsewhere.text


def test_the_login_cookie_is_kept_from_scripts_and_sent_to_the_login_only(service):
    """The PKCE verifier is in no URL: only its hash is."""
    away = Browser(service).get("/login/issuer")
    cookie = next(value for value in away.headers.get_list("set-cookie") if value.startswith("discreet_login="))
    assert all(part in cookie for part in ("HttpOnly", "Secure", "SameSite=lax", "Path=/login"))
    asked = parse_qs(urlsplit(away.headers["location"]).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["redirect_uri"] == ["https://discreet.example/login/callback"]
    assert "code_verifier" not in asked


def test_an_answer_for_another_login_is_refused(service):
    """Another state, a used code, another browser and a login that took too long start no session."""

    def other_state(url):
        return url.replace("state=", "state=x")

    ann, answer = log_in(service, change=other_state)
    assert (answer.status_code, ann.get("/ask").status_code) == (401, 303)
    used = []
    log_in(service, change=lambda url: used.append(url) or url)
    ann, answer = log_in(service, change=lambda url: url.replace("code=", f"code={used[0].split('code=')[1][:43]}&x="))
    assert (answer.status_code, ann.get("/ask").status_code) == (401, 303)
    other_browser = Browser(service)
    assert other_browser.get(urlsplit(used[0]).path + "?" + urlsplit(used[0]).query).status_code == 401
    late = Browser(service)
    back = urlsplit(httpx.get(late.get("/login/issuer").headers["location"]).headers["location"])
    service.clock.pass_(seconds=LOGIN_SECONDS + 1)
    assert late.get(f"{back.path}?{back.query}").status_code == 401


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "other"},
        {"nonce": None},
        {"aud": "another-client"},
        {"aud": ["page", "another-client"]},
        {"aud": "page", "azp": "another-client"},
        {"iss": "http://127.0.0.1:1/realms/work"},
        {"exp": 1},
    ],
)
def test_an_id_token_of_another_login_client_or_issuer_is_refused(service, issuer, claims):
    """OpenID Connect Core 3.1.3.7: issuer, audience, authorized party, expiry and nonce are those of this login."""
    issuer.claims |= claims
    ann, answer = log_in(service)
    assert "did not log you in" in answer.text
    assert ann.get("/ask").status_code == 303


def test_a_client_secret_is_sent_to_the_issuer_alone(services, issuer):
    """A confidential client authenticates by HTTP Basic; with another secret the issuer refuses the code."""
    settings = OIDC.format(url=issuer.url) + 'client_secret_env = "OIDC_SECRET"\n'
    for secret, status in (("a secret: ü%", 401), ("the-secret", 200)):
        issuer.secret = "the-secret"  # noqa: S105 - of a client that exists in this test only
        service = services(f"with-{status}", rest=settings, environment={"OIDC_SECRET": secret})
        issuer.clock = service.clock
        browser, answer = log_in(service)
        assert answer.status_code == status
        assert secret not in str(browser.cookies) + answer.text


def test_a_session_of_the_issuer_ends_after_an_hour(service):
    """Roles that the issuer revoked are gone at the next login."""
    ann, _ = log_in(service)
    for _ in range(2):
        assert ann.get("/ask").status_code == 200
        service.clock.pass_(seconds=ISSUER_LIFETIME_SECONDS / 2)
    assert ann.get("/ask").headers["location"] == "/login?next=%2Fask&ended=lifetime"


def test_an_unavailable_issuer_gives_503(service, issuer):
    """503: the login itself is not wrong."""
    issuer.status = 500
    assert Browser(service).get("/login/issuer").status_code == 503
