"""The web page over plain HTTP: sessions, forms, headers, escapes. `tests/page` drives it in a browser."""

from __future__ import annotations

import html
import re
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from discreet.budget.errors import StoreUnavailable
from discreet.query.json import from_dict
from discreet.query.sql import parse_select, to_sql
from discreet.service.pages import analyst, charts, text
from discreet.service.pages.analyst import AnalystPages
from discreet.service.pages.officer import OfficerPages
from discreet.service.pages.site import IDLE_SECONDS, LIFETIME_SECONDS, Site

from .deployment import ACT, declared

TOP = "SELECT article, COUNT(DISTINCT reader)\nFROM reads\nGROUP BY article\nLIMIT 5"


class Browser:
    """Keeps cookies and the fields of the last form, as a browser does."""

    def __init__(self, service, url="https://discreet.example"):
        self._service, self._url, self.cookies, self.hidden = service, url, httpx.Cookies(), {}

    def request(self, method, path, **parts):
        """Send a request, and keep the fields of forms."""

        async def sending():
            transport = httpx.ASGITransport(self._service.app)
            async with httpx.AsyncClient(transport=transport, base_url=self._url, cookies=self.cookies) as client:
                answer = await client.request(method, path, **parts)
                self.cookies = client.cookies
                return answer

        answer = self._service.portal.call(sending)
        found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', answer.text)
        self.hidden = {name: html.unescape(value) for name, value in found} or self.hidden
        return answer

    def get(self, path, **parts):
        """Open a page."""
        return self.request("GET", path, **parts)

    def post(self, path, headers=None, **fields):
        """Send the form of the last page."""
        return self.request("POST", path, data={**self.hidden, **fields}, headers=headers)

    def log_in(self, key, to="/"):
        """Log in."""
        self.get(f"/login?next={to}")
        return self.post("/login", token=key)


@pytest.fixture
def ann(service):
    """Return the browser of an analyst."""
    browser = Browser(service)
    assert browser.log_in(service.keys["ann"]).status_code == 303
    return browser


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
    """After any of these the next page is the login."""
    ann.get("/ask")
    for _ in range(LIFETIME_SECONDS // (IDLE_SECONDS - 10)):
        service.clock.pass_(seconds=IDLE_SECONDS - 10)
        assert ann.get("/ask").status_code == 200
    service.clock.pass_(seconds=IDLE_SECONDS - 10)
    assert ann.get("/ask").status_code == 303
    ann.log_in(service.keys["ann"])
    service.clock.pass_(seconds=IDLE_SECONDS + 1)
    assert ann.get("/ask").status_code == 303
    ann.log_in(service.keys["ann"])
    ann.get("/ask")
    ann.post("/logout")
    assert ann.get("/ask").status_code == 303
    ann.log_in(service.keys["ann"])
    service.store.put_record("key", service.keys["ann"][4:20], None, ACT)
    service.clock.pass_(seconds=2)
    assert ann.get("/ask").status_code == 303


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
            assert browser.get("/ask").headers["location"] == "/login?next=%2Fask"
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
    for name in ("analyst", "officer"):
        source = Path(analyst.__file__).with_name(f"{name}.py").read_text()
        assert not re.search(r"query_params|path_params|\.form\b|request\.(body|form|cookies)", source)


def test_a_form_whose_session_is_over_returns_to_its_page(service, ann):
    """No input is lost: the page of the form has it in its URL."""
    ann.get("/ask")
    service.clock.pass_(seconds=IDLE_SECONDS + 1)
    shown = {"HX-Request": "true", "HX-Current-URL": f"https://discreet.example/ask?sql={'SELECT'}"}
    answer = ann.post("/ask", sql=TOP, headers=shown)
    assert (answer.status_code, answer.headers["hx-redirect"]) == (204, "/login?next=%2Fask%3Fsql%3DSELECT")


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


def test_an_answer_is_shown_with_its_price_and_its_files(ann):
    """The page shows what the API releases, and nothing else."""
    ann.get("/ask")
    path = ann.post("/ask", sql=TOP, epsilon="0.5").headers["location"]
    shown = ann.get(path).text
    assert "article 3" in shown
    assert '<p class="hint">Answered by unknown-gumbel.</p>' in shown
    for form in ("csv", "parquet", "arrow", "json"):
        assert ann.get(f"{path}.{form}").status_code == 200
    assert ann.get(f"{path}.exe").status_code == 404
    assert "article 3" in ann.get(f"{path}.csv").text
    assert "Users by article, top 5" in ann.get("/answers").text
    assert "From this answer alone, an attacker" in shown
    assert "From all answers" not in shown
    assert '<a href="/budget">' in re.search(r"From this answer alone.*?</ul>", shown, re.DOTALL)[0]
    assert "From all answers together, an attacker" in ann.get("/budget").text
    again = ann.get("/ask", params={"sql": TOP, "epsilon": "0.5"}).text
    assert "Free" in again


def test_an_observed_account_over_its_limit_is_told_one_thing(service, ann):
    """Nothing is refused, so no page says how many queries fit, or which share of nothing a query takes."""
    change = {"mode": "observe", "limit": {"epsilon": 0.1, "delta": "1e-7"}}
    service.act("PATCH", "/v1/admin/accounts/ann@sales", **change)
    assert service.ask(epsilon=1).status_code == 200
    budget = ann.get("/budget").text
    assert "Limit used up" in budget
    assert "Enough for about" not in budget
    before = ann.get("/ask", params={"sql": TOP, "epsilon": "0.5"}).text
    assert "Over the limit" in before
    assert "This account refuses nothing; the accounts above it have enough for" in before
    assert "of what is left" not in before
    assert "Enough for about" not in before
    officer = Browser(service)
    officer.log_in(service.keys["officer"])
    assert "Limit used up" in officer.get("/officer/accounts/ann@sales").text


def test_the_plan_is_described_in_plain_words_and_then_for_experts():
    """An answer can be read without the name of a mechanism."""
    for chosen in ("unknown-gumbel", "head", "two-round"):
        release = {"mechanism": "auto", "chosen": chosen, "why": "because", "question": {"k": 10}}
        words = text.chosen_for_you(release)
        assert "counted" in words
        assert chosen not in words
        assert text.mechanism_of(release) == f"Answered by auto, which chose {chosen}: because."
        assert "noise" not in words, "whether the noise is little depends on the counts"
    assert text.chosen_for_you(release | {"chosen": None}) is None


def test_a_bound_that_only_some_data_reach_is_not_shown_as_likely(service, ann):
    """The least error and threshold of auto are those of its best branch."""
    sql = "SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article"
    expected = service.estimate(sql, epsilon=1).json()["expected"]
    assert expected["min_std_error"] is not None
    assert expected["max_std_error"] is None
    shown = ann.get("/ask", params={"sql": sql, "epsilon": "1"}).text
    near = text.number(1.96 * expected["min_std_error"])
    assert f"for 95 % of the counts it can be as small as ± {near} users, and it is usually larger." in shown
    assert f"more than about {expected['smallest_count']:,} users can be shown; often more are needed." in shown
    assert "at best" not in shown
    assert "probably" not in shown


def test_the_choice_of_a_plan_is_no_warning(ann):
    """The answer says which plan auto chose in the style of a hint; notes are warnings."""
    ann.get("/ask")
    path = ann.post("/ask", sql="SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article", epsilon="2")
    shown = ann.get(path.headers["location"]).text
    assert "which chose" in shown
    assert re.search(r'<p class="hint">[^<]*counted[^<]*<small>Answered by auto, which chose', shown)
    assert 'class="note"' not in shown


def test_a_whole_statement_is_priced_answered_and_free_the_second_time(service, ann):
    """A text that is no single query is a statement: its price is that of its queries, and the rest is free."""
    inner = "SELECT country, COUNT(DISTINCT reader) AS n FROM reads GROUP BY country"
    sql = (
        f"SELECT upper(country) AS name, n, n * 100.0 / SUM(n) OVER () AS percent FROM ({inner}) -- <b>\nORDER BY name"
    )
    before = ann.get("/ask", params={"sql": sql, "epsilon": "0.5"}).text
    assert "It asks 1 query of the data; what is computed around it is free." in before
    assert "of what is left, at most" in before
    assert service.balance().used.rho == 0
    link = ann.post("/ask", sql=sql, epsilon="0.5").headers["location"]
    shown = ann.get(link)
    used = service.balance().used.rho
    assert shown.status_code == 200
    assert used > 0
    assert re.findall(r"<td>(\w+)</td>", shown.text) == ["IN", "US", "XX"]
    assert 'class="chart"' not in shown.text
    assert "<b>" not in shown.text
    query = re.search(r'"(/answers/\w{64})"', shown.text)[1]
    assert ann.get(query).status_code == 200
    assert "Free" in ann.get("/ask", params={"sql": sql, "epsilon": "0.5"}).text
    assert ann.post("/ask", sql=sql, epsilon="0.5").headers["location"] == f"{link}&free=1"
    assert service.balance().used.rho == used


def test_a_statement_has_a_link_that_its_account_alone_can_open(service, ann):
    """The link names its releases: no other account has paid for them, and nothing else is computed."""
    sql = "SELECT upper(country) AS name, n FROM (SELECT country, COUNT(*) AS n FROM reads GROUP BY country)"
    ann.get("/ask")
    link = ann.post("/ask", sql=sql, epsilon="0.5").headers["location"]
    used = service.balance().used.rho
    assert ann.get(f"{link}&as=csv").text.startswith('"name","n"')
    assert ann.get(f"{link}&as=parquet").content[:4] == b"PAR1"
    assert service.balance().used.rho == used
    bob = Browser(service)
    bob.log_in(service.keys["bob"])
    assert bob.get(link).status_code == 404
    assert ann.get(link.partition("&release=")[0]).status_code == 404
    assert ann.get(link.replace("COUNT", "SUM")).status_code == 400


def test_the_only_count_of_a_statement_has_bars_if_its_interval_is_selected(ann):
    """Numbers without an interval are a table, because a bar without its error would be misleading."""
    count = "COUNT(DISTINCT reader)"
    ends = f"LOW({count}), HIGH({count})"
    for columns, bars in ((count, 0), (f"{count}, {ends}", 3), (f"{count}, {count} / 2 AS half, {ends}", 0)):
        ann.get("/ask")
        sql = f"SELECT country, {columns} FROM reads GROUP BY country ORDER BY country"
        link = ann.post("/ask", sql=sql, epsilon="0.5").headers["location"]
        assert ann.get(link).text.count('<rect class="bar"') == bars


def test_days_are_a_line_with_points_at_their_time(ann):
    """A day that was not released is a gap, so that the line has no false slope."""
    days = [("2025-12-31", 10), ("2026-01-01", 20), ("2026-01-10", 30)]
    line = charts.line_of([charts.Item(day, n, n - 5, n + 5) for day, n in days])
    assert line.points == [(0, 75), (10, 50), (100, 25)]
    assert line.across == [(0, "31 Dec", "2025"), (100, "10 Jan", "2026")]
    count = "COUNT(DISTINCT reader)"
    sql = f"SELECT day, {count}, LOW({count}), HIGH({count}) FROM reads GROUP BY day ORDER BY day"
    ann.get("/ask")
    shown = ann.get(ann.post("/ask", sql=sql, epsilon="4").headers["location"]).text
    assert shown.count("<polyline") == 1
    assert shown.count("<circle") == 3


def test_answers_of_other_accounts_are_not_found(service, ann):
    """A link to an answer grants no access."""
    ann.get("/ask")
    path = ann.post("/ask", sql=TOP, epsilon="0.5").headers["location"]
    bob = Browser(service)
    bob.log_in(service.keys["bob"])
    assert bob.get(path).status_code == 404


def test_a_price_is_shown_before_the_query_runs(service, ann):
    """The first page has a complete query, its cost as a part of the budget and its expected error."""
    shown = ann.get("/ask?dataset=reads").text
    assert "of what is left, at most" in shown
    assert "such queries" in shown
    assert "95 % of the counts" in shown
    assert service.balance().used.rho == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sql": "SELECT hidden FROM reads"}, "problem"),
        ({"sql": "SELECT art"}, 'aria-invalid="true"'),
        ({"sql": TOP, "epsilon": "many"}, "Epsilon must be a number"),
        ({"sql": TOP, "epsilon": "99"}, "Epsilon must be at most"),
        ({"sql": TOP.replace("reads", "secret")}, "secret"),
    ],
)
def test_a_refused_query_shows_the_reason_and_stays_in_the_form(service, ann, fields, words):
    """The form shows problems of the API, and keeps its input."""
    ann.get("/ask")
    answer = ann.post("/ask", **fields)
    assert answer.status_code in {400, 404, 422}
    assert words in answer.text
    assert html.escape(fields["sql"].split("\n")[0]) in answer.text
    assert service.balance().used.rho == 0


def test_a_query_that_does_not_fit_shows_the_largest_that_fits(ann):
    """After a refusal the page offers the largest epsilon that fits."""
    spent = 0
    ann.get("/ask")
    while ann.post("/ask", sql=TOP.replace("5", str(5 + spent)), epsilon="4").status_code == 303:
        spent += 1
        ann.get("/ask")
    answer = ann.post("/ask", sql=TOP.replace("5", "40"), epsilon="4")
    assert answer.status_code == 403
    assert "which still fits" in answer.text


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


@pytest.mark.parametrize(
    "sql",
    [
        TOP,
        "SELECT COUNT(*) FROM reads",
        "SELECT article, country, AVG(minutes) FROM reads GROUP BY article, country LIMIT 7",
        "SELECT COUNT(*) FROM t WHERE (a = 'it''s' OR b IS NULL) AND NOT (c IN (1, 2.5) AND d IS NOT NULL)",
        'SELECT "order", COUNT(DISTINCT "the user") FROM "my data" WHERE "a ""b" >= \'2026-01-01\' GROUP BY "order"',
        'SELECT "left", COUNT(DISTINCT "current_date") FROM "from" GROUP BY "left"',
        "SELECT COUNT(*) FROM t WHERE a IN (DATE '2026-01-01', TIMESTAMP '2026-01-01 10:00:00', '2026-01-02', 5, TRUE)",
        "SELECT SUM(minutes) FROM reads WHERE day < '2026-01-02' AND moment > '2026-01-02 03:04:05' AND ok = TRUE",
    ],
)
def test_a_query_written_as_sql_is_read_as_the_same_query(sql):
    """The copied text is the query that was answered."""
    query = parse_select(sql)
    assert parse_select(to_sql(query)) == query
    assert from_dict(query.to_dict()) == query
