"""The web page over plain HTTP: sessions, forms, headers, escapes. `tests/page` drives it in a browser."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from discreet.budget.errors import StoreUnavailable
from discreet.budget.rules import microseconds
from discreet.service.auth.access import KeyRecord
from discreet.service.doors.pages import analyst
from discreet.service.doors.pages.analyst import AnalystPages
from discreet.service.doors.pages.site import ENDED, IDLE_SECONDS, LIFETIME_SECONDS, Site
from discreet.service.officer import pages
from discreet.service.officer.pages import OfficerPages
from tests.service.browser import Browser
from tests.service.deployment import ACT, declared

TOP = "SELECT article, COUNT(DISTINCT reader)\nFROM reads\nGROUP BY article\nLIMIT 5"


def test_a_login_leads_back_and_its_cookie_is_kept_from_scripts_and_other_sites(service):
    """The key is in no page and no URL, and the cookie reveals nothing."""
    browser = Browser(service)
    assert browser.get("/ask?sql=SELECT+1").headers["location"] == "/login?next=%2Fask%3Fsql%3DSELECT%2B1"
    answer = browser.log_in(service.keys["ann"], "/ask?sql=SELECT%2B1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ask?sql=SELECT+1")
    cookie = answer.headers["set-cookie"]
    assert all(part in cookie for part in ("HttpOnly", "Secure", "SameSite=strict", "Path=/"))
    assert service.keys["ann"] not in cookie


@pytest.mark.parametrize("path", ["//elsewhere.example", "https://elsewhere.example", "/\\elsewhere.example", "x"])
def test_a_login_leads_to_no_other_site(service, path):
    """The return address is part of a link that an attacker can write."""
    assert Browser(service).log_in(service.keys["ann"], path).headers["location"] == "/"


def test_a_hint_ends_with_one_mark(ann):
    """Details without an end get a full stop, and questions keep their mark."""
    sql = TOP.replace("article", "artcle")
    shown = html.unescape(ann.get("/ask", params={"sql": sql}).text)
    assert "did you mean 'article'?</p>" in shown


def test_a_wrong_key_is_refused_beside_its_field(service):
    """Every problem is shown beside its cause."""
    answer = Browser(service).log_in("dsc_0000000000000000_" + "0" * 64)
    assert answer.status_code == 401
    assert "not a valid key" in answer.text


def test_keys_are_not_accepted_over_plain_http(service):
    """A key that crossed a network unencrypted is no secret any more; the loopback address is no network."""
    assert Browser(service, "http://discreet.example").log_in(service.keys["ann"]).status_code == 401
    assert Browser(service, "http://127.0.0.1:8080").log_in(service.keys["ann"]).status_code == 303


def test_a_form_of_another_site_does_nothing(service, ann):
    """A form without the token of the page is refused (CSRF)."""
    ann.get("/ask")
    for csrf in ("", "0" * 32):
        assert ann.post("/ask", sql=TOP, epsilon="1", csrf=csrf).status_code == 422
    assert service.balance().used.rho == 0
    ann.post("/logout", csrf="0" * 32)
    assert ann.get("/ask").status_code == 200


def test_a_session_ends_with_its_logout_its_idle_time_its_lifetime_and_its_key(service, ann):
    """After any of these the next page is the login, which says why the session ended, and nothing to others."""

    def ended():
        answer = ann.get("/ask")
        assert answer.status_code == 303
        shown = ann.get(answer.headers["location"]).text
        return re.findall(r"You were logged out[^<]*", shown), ann.get("/login").text.count("logged out")

    ann.get("/ask")
    for _ in range(LIFETIME_SECONDS // (IDLE_SECONDS - 10)):
        service.clock.pass_(seconds=IDLE_SECONDS - 10)
        assert ann.get("/ask").status_code == 200
    service.clock.pass_(seconds=IDLE_SECONDS - 10)
    assert ended() == ([f"Y{ENDED['lifetime'][1:]}."], 0)
    ann.log_in(service.keys["ann"])
    service.clock.pass_(seconds=IDLE_SECONDS + 1)
    assert ended() == ([f"Y{ENDED['idle'][1:]}."], 0)
    ann.log_in(service.keys["ann"])
    ann.get("/ask")
    ann.post("/logout")
    assert ended() == ([], 0)
    ann.log_in(service.keys["ann"])
    name = service.keys["ann"][4:20]
    record = KeyRecord.of_text(service.store.record("key", name))
    until = replace(record, expires_us=microseconds(service.clock()) + 1_000_000)
    service.store.put_record("key", name, until.text, ACT)
    service.clock.pass_(seconds=2)
    assert ended() == ([f"Y{ENDED['expired'][1:]}."], 0)
    service.store.put_record("key", name, record.text, ACT)
    service.clock.pass_(seconds=2)
    ann.log_in(service.keys["ann"])
    service.store.put_record("key", name, None, ACT)
    service.clock.pass_(seconds=2)
    assert ended() == ([f"Y{ENDED['revoked'][1:]}."], 0)
    ann.cookies.set("discreet_session", "made up")
    assert ended() == ([], 0)


def test_a_copied_cookie_is_refused_after_the_logout(service, ann):
    """The store remembers the logout, so a restart, another process and a login at the same time change nothing."""
    copied, elsewhere = Browser(service), Browser(service)
    copied.cookies = httpx.Cookies(ann.cookies)
    elsewhere.log_in(service.keys["ann"])
    assert copied.get("/ask").status_code == 200
    bob = Browser(service)
    bob.log_in(service.keys["bob"])
    ann.get("/ask")
    assert ann.post("/logout").status_code == 303
    ended = httpx.Cookies(copied.cookies)
    for _ in range(2):
        for browser in (copied, elsewhere):
            browser.cookies = httpx.Cookies(ended)
            assert browser.get("/ask").headers["location"] == "/login?next=%2Fask&ended=logout"
            assert browser.post("/ask", sql=TOP, epsilon="1").headers["location"].startswith("/login")
        assert ann.log_in(service.keys["ann"]).status_code == 303
        assert ann.get("/ask").status_code == bob.get("/ask").status_code == 200
        service.reopen()
    service.store.put_record("logout", f"key:{service.keys['ann'][4:20]}", "7", ACT)  # by another process
    service.clock.pass_(seconds=1.001)
    assert ann.get("/ask").status_code == 303
    assert bob.get("/ask").status_code == 200


def test_a_logout_without_a_session_writes_nothing(service, ann):
    """Only a session can be ended, and once, so that the ledger grows with logins only."""
    ann.get("/ask")
    ended = httpx.Cookies(ann.cookies)
    ann.post("/logout")
    before = service.store.heads()
    ann.post("/logout")
    ann.cookies = ended
    ann.post("/logout")
    Browser(service).post("/logout")
    assert service.store.heads() == before


def test_a_logout_that_cannot_be_stored_is_reported(service, ann, monkeypatch):
    """503, and the session goes on: the page must not say that it ended."""
    ann.get("/ask")

    def fail(*_):
        raise StoreUnavailable("no disk")

    monkeypatch.setattr(service.manager.store, "put_record", fail)
    assert ann.post("/logout").status_code == 503
    assert ann.get("/ask").status_code == 200


PAGES = {(about.method, about.path): about for kind in (Site, AnalystPages, OfficerPages) for about in declared(kind)}
HOSTILE = (
    "9" * 5_000,
    "-1",
    "1e999",
    "nan",
    "abc",
    "\0",
    "\u0663",
    "1_0",
    "2.5",
    "'\"<&>",
    "\xed\xa0\x80",
    ["1", "1"],
    [],
)


@pytest.mark.parametrize(("method", "path"), sorted(PAGES))
def test_no_value_of_a_parameter_breaks_a_page(services, method, path):
    """Hostile values of every declared parameter of every page, two, and none: a page or a sentence, never 500."""
    service, about = services(service="max_body_bytes = 65536"), PAGES[method, path]
    key = service.keys[about.role if about.role in {"officer", "admin"} else "ann"]
    browser = Browser(service)
    browser.log_in(key)
    usual = {"sql": TOP, "epsilon": "0.5", "account": "ann@sales", "dataset": "reads", "item": "article", "reason": "r"}
    for parameter in about.parameters:
        for value in HOSTILE:
            if path in {"/login", "/logout"}:
                browser.get("/login")
            where, fields = path.replace("{id}", "0" * 64).replace("{account:path}", "ann@sales"), {**usual}
            if parameter.location == "path":
                where = re.sub("{.*}", quote(str(value), safe=""), path)
            else:
                fields |= {parameter.name: value} | ({"from": "builder"} if parameter.name == "k" else {})
            fields["csrf"] = browser.hidden["csrf"]
            answer = browser.request(method, where, **{"params" if method == "GET" else "data": fields})
            assert answer.status_code < 500, (parameter.name, value)
    assert '"failed"' not in service.log.getvalue()


def test_pages_read_declared_parameters_only():
    """All values pass the reader that the API has, which the request itself would bypass."""
    for module in (analyst, pages):
        source = Path(module.__file__).read_text()
        assert not re.search(r"query_params|path_params|\.form\b|request\.(body|form|cookies)", source)


def test_a_form_whose_session_is_over_returns_to_its_page(service, ann):
    """No input is lost: the page of the form has it in its URL."""
    ann.get("/ask")
    service.clock.pass_(seconds=IDLE_SECONDS + 1)
    answer = ann.post("/ask", sql=TOP, headers={"Referer": "https://discreet.example/ask?sql=SELECT"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fask%3Fsql%3DSELECT&ended=idle")


def test_a_form_sent_twice_is_charged_once(service, ann):
    """Two clicks or tabs get one charge and one answer (I4), also for data without a version."""
    for dataset in ("reads", "loose"):
        ann.get("/ask")
        sql = TOP.replace("reads", dataset)
        first = ann.post("/ask", sql=sql, epsilon="0.5")
        used = service.balance().used.rho
        assert first.status_code == 303
        assert ann.post("/ask", sql=sql, epsilon="0.5").headers["location"].startswith(first.headers["location"])
        assert service.balance().used.rho == used
        assert ("is free from now on" in ann.get(first.headers["location"]).text) == (dataset == "reads")


def test_typed_text_is_never_markup(ann):
    """Labels, statements and filters are escaped wherever they are shown."""
    evil = "<script>alert(1)</script>"
    shown = ann.get("/ask", params={"sql": f"SELECT '{evil}'", "epsilon": evil}).text
    built = ann.get("/ask", params={"from": "builder", "dataset": "reads", "item": evil, "where": evil}).text
    sql = f"SELECT article, COUNT(DISTINCT reader) FROM reads WHERE article <> '{evil}' GROUP BY article"
    ann.get("/ask")
    path = ann.post("/ask", sql=sql, epsilon="0.5").headers["location"]
    for text_ in (shown, built, ann.get(path).text, ann.get("/answers").text):
        assert evil not in text_
        assert html.escape(evil) in text_


def test_every_page_forbids_scripts_frames_and_caches(ann):
    """The content security policy allows our own files and nothing inline."""
    for path in ("/login", "/ask", "/answers", "/budget", "/answers/0"):
        headers = ann.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"


def test_a_link_on_another_site_opens_the_page(service):
    """A strict cookie is not sent after a click elsewhere; the page then reloads itself from its own link."""
    other = Browser(service)
    answer = other.get("/answers", headers={"Sec-Fetch-Site": "cross-site"})
    assert 'http-equiv="refresh"' in answer.text
    assert other.get("/answers", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 303


def test_an_address_that_does_not_exist_is_a_page_in_a_browser(service):
    """Other clients get problem details."""
    accepted = {"Accept": "text/html,application/xhtml+xml"}
    page = Browser(service).get("/nope", headers=accepted)
    assert page.status_code == 404
    assert page.headers["content-type"].startswith("text/html")
    assert "Back to the first page" in page.text
    assert Browser(service).get("/nope").headers["content-type"] == "application/problem+json"
