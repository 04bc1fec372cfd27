"""Fixtures of the page's tests: a service, a browser, and checks of every page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import httpx
import pytest
from playwright.sync_api import sync_playwright

from tests.debian import chromium
from tests.service.issuer import TestIssuer

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "requirements/node_modules/axe-core/axe.min.js"
PICTURES = ROOT / "docs/images"


@pytest.fixture(scope="session")
def browser():
    """Chromium, without a window."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield opened
        opened.close()


SLOW = """
[datasets.slow]
source = "slow.db"
table = "v"
user = "reader"
data_version = "1"
retention_days = 30

[datasets.slow.columns]
country = { type = "text", group = true, domain = ["BR", "DE"] }
"""
"""A dataset whose view takes minutes to count."""

LARGE = """
[datasets.wide]
source = "slow.db"
table = "wide"
user = "reader"
data_version = "1"
retention_days = 30

[datasets.wide.columns]
title = { type = "text", group = true, filter = true }
day = { type = "date", group = true, domain = { first = 2026-01-01, last = 2026-01-30 } }
read_at = { type = "timestamp", group = true }
cents = { type = "integer", sum = { low = 0, high = 100000, private_bound = true } }

[datasets.wide.columns.country]
type = "text"
group = true
filter = true
domain = ["Brazil", "Germany", "India", "Kenya", "United Kingdom"]
groups_per_user = 1
"""
"""A dataset with large counts and long labels."""

OIDC = """
[oidc]
issuer = "{url}"
audience = "discreet"
account_claim = "account"
client_id = "page"
"""


class Served:
    """A service as `discreet init` and `discreet serve` make it, with its URL and its first keys.

    Beside the sample dataset it has a slow one, and a client at an OpenID issuer.
    """

    def __init__(self, folder: Path, issuer: TestIssuer) -> None:
        command = [sys.executable, "-m", "discreet"]
        output = subprocess.run([*command, "init", str(folder)], check=True, capture_output=True, text=True).stdout
        self.keys = dict(re.findall(r"^  (admin|officer|analyst)\s+(dsc_\w+)", output, re.MULTILINE))
        with duckdb.connect(str(folder / "slow.db")) as database:
            database.execute(
                "CREATE VIEW v AS SELECT (a.n * b.m) % 97 AS reader, 'BR' AS country "
                "FROM range(1000000) AS a(n), range(100000) AS b(m)"
            )
            database.execute(
                "CREATE TABLE wide AS SELECT n AS reader, 'A long heading of the article ' || t AS title, "
                "['Brazil', 'Germany', 'India', 'Kenya', 'United Kingdom'][1 + n % 5] AS country, "
                "DATE '2026-01-01' + (n % 30)::INTEGER AS day, day + INTERVAL (n % 86400) SECOND AS read_at, "
                "90000 AS cents "
                "FROM range(400000) AS a(n), range(12) AS b(t) WHERE n % 13 >= t"
            )
        for name, more in (("catalog.toml", SLOW + LARGE), ("discreet.toml", OIDC.format(url=issuer.url))):
            (folder / name).write_text((folder / name).read_text() + more)
        arguments = ["serve", str(folder / "discreet.toml"), "--port", "0"]
        self._log = (folder / "log").open("w")
        self._process = subprocess.Popen([*command, *arguments], stdout=self._log, stderr=subprocess.PIPE, text=True)
        line = next(line for line in self._process.stderr if "http://" in line)
        self.url = re.search(r"http://\S+", line)[0]
        grant = {"columns": None, "reason": "made after the first grants"}
        headers = {"Authorization": f"Bearer {self.keys['officer']}"}
        for name in ("slow", "wide"):
            httpx.put(f"{self.url}/v1/admin/grants/example/{name}", headers=headers, json=grant).raise_for_status()

    def cpu_seconds(self) -> float:
        """Return its CPU seconds, which exclude other programs on the machine."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """Stop the service."""
        self._process.terminate()
        self._process.wait(30)
        self._process.stderr.close()
        self._log.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return a service for the tests of a file."""
    issuer = TestIssuer("localhost")  # another site than 127.0.0.1
    issuer.claims = {"account": "ann@example"}
    running = Served(tmp_path_factory.mktemp("service"), issuer)
    yield running
    running.stop()
    issuer.close()


class Visitor:
    """A page of the browser, whose console must stay empty and which axe checks."""

    def __init__(self, served, browser, **options) -> None:
        context = browser.new_context(**{"viewport": {"width": 1180, "height": 860}, **options})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page, self.url, self.errors = context.new_page(), served.url, []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _note(self, message) -> None:
        refused = message.text.startswith("Failed to load resource: the server responded with a status of 4")
        if message.type in {"error", "warning"} and not refused:  # a refusal is an answer
            self.errors.append(message.text)

    def log_in(self, key, path="/"):
        """Log in with the keyboard."""
        self.page.goto(self.url + path)
        self.page.wait_for_selector("#token")
        self.page.keyboard.type(key)  # the field has the focus
        self.page.keyboard.press("Enter")
        self.page.wait_for_selector("nav")
        return self.page

    def check(self, picture=None, *, whole=False):
        """Check the page with axe, and draw it for the documentation."""
        if "axe" not in self.page.evaluate("Object.keys(window)"):
            self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []
        assert self.errors == []
        if picture:
            self.page.evaluate("document.activeElement.blur()")
            self.page.screenshot(path=PICTURES / f"page-{picture}.png", full_page=whole)

    def close(self) -> None:
        """Close the page."""
        self.page.context.close()


@pytest.fixture
def visit(served, browser):
    """Open pages that share no cookies, and close them at the end."""
    opened = []

    def make(role, path="/", **options):
        visitor = Visitor(served, browser, **options)
        opened.append(visitor)
        if role is not None:
            visitor.log_in(served.keys[role], path)
        return visitor

    yield make
    for visitor in opened:
        assert visitor.errors == []
        visitor.close()
