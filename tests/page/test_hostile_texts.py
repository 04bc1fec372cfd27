"""Script in labels, names, descriptions, reasons and typed text, on every page, in Chromium."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote, urlencode

import httpx
import pyarrow as pa
import pyarrow.parquet
import pytest

from discreet.service.doors.pages.analyst import AnalystPages
from discreet.service.doors.pages.site import Site
from discreet.service.officer.pages import OfficerPages
from tests.service.deployment import declared
from tests.service.process import ServiceProcess

EVIL = (
    "<script>window.pwned=1</script>",
    "<img/src=x/onerror=window.pwned=1>",
    "\"'><svg/onload=window.pwned=1>",
    "</textarea></title></script><script>window.pwned=1</script>",
    "{{7*7}}${window.pwned=1}',window.pwned=1,'",
    "javascript:window.pwned=1",
)
NAME = f"{EVIL[2]}@{EVIL[1]}"
"""The name of an account: names have no white space."""

CATALOG = """
[datasets.reads]
description = {all}
source = "reads.parquet"
user = "reader"
data_version = {all}
rows_per_group = 3
retention_days = 30
columns.article = {{ type = "text", group = true, filter = true }}
columns.country = {{ type = "text", group = true, filter = true, domain = {labels} }}
columns.minutes = {{ type = "integer", sum = {{ low = 0, high = 60 }} }}
"""
PAGES = {about.path for kind in (Site, AnalystPages, OfficerPages) for about in declared(kind)}
SCRIPTS = """
[...document.querySelectorAll('script')].filter(e => !e.src.startsWith(`${location.origin}/assets/`)).concat(
    [...document.querySelectorAll('img[onerror], svg[onload], a[href^="javascript:"]')]).map(e => e.outerHTML)"""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Return a service whose data, catalog, accounts, keys and ledger hold script in every text."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = [(reader, EVIL[n], EVIL[n], 20) for n in range(len(EVIL)) for reader in range(300 * (n + 1))]
    columns = dict(zip(("reader", "article", "country", "minutes"), map(list, zip(*rows, strict=True)), strict=True))
    pa.parquet.write_table(pa.table(columns), folder / "reads.parquet")
    texts = CATALOG.format(all=json.dumps(" ".join(EVIL)), labels=json.dumps(EVIL))
    (folder / "c.toml").write_text(texts)
    command = [sys.executable, "-m", "discreet", "init", str(folder), "--catalog", str(folder / "c.toml")]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    keys = dict(re.findall(r"^  (admin|officer|analyst)\s+(dsc_\w+)", output, re.MULTILINE))
    with ServiceProcess(folder, keys) as running:
        account = {"account": NAME, "parent": "example", "limit": {"epsilon": 5, "delta": "1e-7"}, "mode": "observe"}
        account |= {"period": {"kind": "sliding", "days": 30}, "reason": EVIL[0]}
        post(running, "officer", "/v1/admin/accounts", account)
        key = {"account": NAME, "roles": ["analyst", "officer", "admin"], "label": EVIL[3], "reason": EVIL[3]}
        keys["analyst"] = keys["officer"] = keys["admin"] = post(running, "admin", "/v1/admin/keys", key)["key"]
        yield running
        running.stop()


def post(service, role, path, body):
    """Send a request to the API, and return the body of the answer."""
    headers = {"Authorization": f"Bearer {service.keys[role]}"}
    answer = httpx.post(f"{service.url}{path}", headers=headers, json=body, timeout=60)
    assert answer.is_success, answer.text
    return answer.json()


@pytest.fixture
def opened(service, browser):
    """Return a function that opens a path, logged in with all roles, and returns the page after its scripts ran."""
    context = browser.new_context()
    page, wrong = context.new_page(), []
    page.on("dialog", lambda dialog: wrong.append(dialog.message) or dialog.dismiss())
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console", lambda message: wrong.append(message.text) if "Content Security Policy" in message.text else None
    )
    page.goto(service.url + "/login")
    page.fill("#token", service.keys["analyst"])
    page.keyboard.press("Enter")
    page.wait_for_selector("nav")

    def open_(path):
        page.goto(service.url + path)
        page.wait_for_load_state("networkidle")
        return page

    open_.wrong = wrong
    yield open_
    context.close()


def test_text_is_never_script_on_any_page(service, opened):
    """Labels, names, descriptions, reasons, statements, aliases, filters, links and problems are shown as text."""
    where = f"article <> '{quoted(EVIL[0])}'"
    article = f"SELECT article, COUNT(DISTINCT reader) FROM reads WHERE {where} GROUP BY article LIMIT 5"
    found = post(service, "analyst", "/v1/query", {"sql": article, "epsilon": 1})
    known = (
        "SELECT country, COUNT(DISTINCT reader), LOW(COUNT(DISTINCT reader)), HIGH(COUNT(DISTINCT reader)) FROM reads"
    )
    known += " GROUP BY country"
    statement = f"SELECT country AS {identifier(EVIL[1])}, '{quoted(EVIL[3])}' AS {identifier(EVIL[0])} FROM ({known})"
    rows = post(service, "analyst", "/v1/sql", {"sql": statement, "epsilon": 1})
    released = [query["id"] for query in rows["queries"]]
    typed = " ".join(EVIL)
    create = f"CREATE TABLE saved.shown COMMENT '{quoted(EVIL[2])}' AS {statement}"
    post(service, "analyst", "/v1/sql", {"sql": create, "epsilon": 1})
    tried = [
        ("/tables", "/tables"),
        ("/tables/{name:path}", "/tables/shown"),
        ("/tables/{name:path}", f"/tables/{quote(typed, safe='')}"),
        ("/", "/ask"),
        ("/login", f"/login?{urlencode({'next': typed})}"),
        ("/login/callback", f"/login/callback?{urlencode({'state': typed, 'code': typed})}"),
        ("/ask", "/ask"),
        ("/ask", f"/ask?{urlencode({'sql': article})}"),
        ("/ask", f"/ask?{urlencode({'sql': typed, 'epsilon': typed})}"),
        ("/ask", f"/ask?{urlencode({'sql': statement})}"),
        ("/ask", f"/ask?{urlencode({'from': 'x', 'dataset': 'reads', 'item': typed, 'where': typed, 'k': typed})}"),
        ("/answers", "/answers"),
        ("/answers", f"/answers?{urlencode({'before': typed})}"),
        ("/answers/{id}", f"/answers/{found['id']}"),
        ("/answers/{id}", f"/answers/{released[0]}?free=1"),
        ("/answers/{id}", f"/answers/{quote(typed, safe='')}"),
        ("/dashboard", "/dashboard"),
        ("/dashboard", f"/dashboard?{urlencode({'q': typed})}"),
        ("/answers/{id}/sheet", f"/answers/{found['id']}/sheet"),
        ("/answers/{id}/sheet", f"/answers/{quote(typed, safe='')}/sheet?{urlencode({'as': typed})}"),
        ("/statements", f"/statements?{urlencode({'sql': statement, 'release': released}, doseq=True)}"),
        ("/statements", f"/statements?{urlencode({'sql': typed, 'release': typed, 'epsilon': typed})}"),
        ("/budget", "/budget"),
        ("/officer", "/officer"),
        ("/officer/accounts/{account:path}", f"/officer/accounts/{quote(NAME, safe='')}"),
        ("/officer/accounts/{account:path}", f"/officer/accounts/{quote(NAME, safe='')}?{urlencode({'done': typed})}"),
        ("/officer/accounts/{account:path}", f"/officer/accounts/{quote(typed, safe='')}"),
        ("/officer/catalog", "/officer/catalog"),
        ("/officer/disclosure", f"/officer/disclosure?{urlencode({'account': 'example'})}"),
        ("/officer/disclosure", f"/officer/disclosure?{urlencode({'dataset': 'reads'})}"),
        ("/officer/disclosure", f"/officer/disclosure?{urlencode({'account': typed, 'as': typed})}"),
        ("/officer/ledger", "/officer/ledger"),
        ("/officer/simulator", f"/officer/simulator?{urlencode({'counts': typed, 'k': typed})}"),
        ("/officer/keys", "/officer/keys"),
        ("/officer/keys", f"/officer/keys?{urlencode({'after': typed})}"),
        ("/nowhere", f"/{quote(typed, safe='')}"),
    ]
    page = opened(f"/answers/{found['id']}")
    page.click("summary:has-text('name')")
    page.fill("input[name=title]", EVIL[0])
    page.click("button:text-is('Save')")
    page.wait_for_load_state("networkidle")
    assert EVIL[0] in opened("/dashboard").inner_text("main")
    for _, link in tried:
        page = opened(link)
        assert page.evaluate("window.pwned") is None, link
        assert page.evaluate(SCRIPTS) == [], link
        assert opened.wrong == [], link
    others = {"/login/issuer", "/logout", *(f"/officer/ledger.{end}" for end in ("jsonl", "json", "csv"))}
    assert {path for path, _ in tried} >= PAGES - others  # a redirect, a form without a page, and files
    shown = opened("/officer/catalog").inner_text("main") + opened(f"/answers/{found['id']}").inner_text("main")
    assert all(text in shown for text in EVIL[1:])


def test_scripts_of_the_page_write_labels_as_text(opened):
    """Sorting, highlighting and the completion of names build elements from text of the data and of the user."""
    page = opened(f"/ask?{urlencode({'sql': 'SELECT country, COUNT(DISTINCT reader) FROM reads GROUP BY country'})}")
    page.click("#go")
    page.wait_for_url("**/answers/*")
    for _ in range(2):
        page.click("thead >> text=country")
    assert set(page.locator("#answer tbody th").all_inner_texts()) == set(EVIL)
    page.click("text=Change and ask again")
    page.fill("#sql", " ".join(EVIL))
    page.wait_for_selector("#wrong-sql .problem")
    page.click("summary:has-text('SQL any')")
    page.fill("#where", EVIL[0])
    page.keyboard.press("Tab")
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.pwned") is None
    assert page.evaluate(SCRIPTS) == []
    assert opened.wrong == []


@pytest.mark.parametrize("path", ["/login", "/ask", "/officer", "/answers/none"])
def test_the_policy_stops_script_that_gets_into_a_page(opened, path):
    """Chromium enforces the policy: no inline script, handler, evaluation, style, frame, form or request elsewhere."""
    page = opened(path)
    page.evaluate(
        """() => {
        const add = (name, set) => document.body.append(Object.assign(document.createElement(name), set));
        window.blocked = [];
        document.addEventListener('securitypolicyviolation', (event) => window.blocked.push(event.effectiveDirective));
        add('script', {textContent: 'window.pwned = 1'});
        add('script', {src: 'data:text/javascript,window.pwned=1'});
        add('iframe', {srcdoc: '<script>parent.pwned = 1</script>'});
        add('img', {src: 'http://127.0.0.2:9/x'});
        document.body.insertAdjacentHTML('beforeend', '<b id="evil" onclick="window.pwned = 1">x</b>');
        document.getElementById('evil').click();
        document.body.insertAdjacentHTML('beforeend', '<form id="send" action="http://127.0.0.2:9/"></form>');
        document.getElementById('send').submit();
        fetch('http://127.0.0.2:9/x').catch(() => {});
        }"""
    )
    for _ in range(500):  # not wait_for_function, which the policy does not let evaluate
        if len(page.evaluate("window.blocked")) >= 6:
            break
        page.wait_for_timeout(10)
    assert page.evaluate("window.pwned") is None
    expected = {"script-src-elem", "script-src-attr", "img-src", "connect-src", "form-action"}
    assert set(page.evaluate("window.blocked")) >= expected
    assert opened.wrong != []


def test_another_site_cannot_frame_a_page(opened, service, tmp_path):
    """frame-ancestors: a page that is shown inside another one could collect clicks."""
    page = opened("/login")
    refused = []
    page.on("console", lambda message: refused.append(message.text))
    outer = tmp_path / "outer.html"
    Path(outer).write_text(f'<iframe src="{service.url}/ask"></iframe>')
    page.goto(f"file://{outer}")
    page.wait_for_load_state("networkidle")
    assert any("frame" in text.lower() for text in refused)
    assert page.frames[1].query_selector("nav, form") is None


def quoted(text):
    """Return text for a SQL string."""
    return text.replace("'", "''")


def identifier(text):
    """Return text as a SQL identifier."""
    return '"' + text.replace('"', '""') + '"'
