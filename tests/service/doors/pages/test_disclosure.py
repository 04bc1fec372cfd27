"""The pages of disclosures and release sheets."""

from __future__ import annotations

import base64
import hashlib
import re

from tests.service.browser import Browser
from tests.service.deployment import KNOWN
from tests.service.officer.test_disclosure import STATED


def test_the_page_of_an_account_links_its_disclosure_in_all_forms(services):
    """One page that loads no other file, JSON, and YAML where the settings have what it needs."""
    service = services(rest=STATED)
    service.ask(KNOWN, mechanism="laplace", epsilon=1)
    officer = Browser(service)
    officer.log_in(service.keys["officer"])
    for page in ("/officer/accounts/sales", "/officer/catalog"):
        links = re.findall(r'href="(/officer/disclosure[^"]*)"', officer.get(page).text)
        assert len(links) % 3 == 0
        assert links
        for link in links[:3]:
            assert officer.get(link.replace("&amp;", "&")).status_code == 200, link
    assert "/officer/disclosure" not in officer.get("/officer/accounts/ann@sales").text
    shown = officer.get("/officer/disclosure?account=sales")
    assert "Reading figures" in shown.text
    assert "src=" not in shown.text
    assert "href=" not in shown.text
    style = re.search(r"<style>(.*?)</style>", shown.text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in shown.headers["content-security-policy"]
    assert officer.get("/officer/disclosure?account=sales&as=json").json()["subject"] == "sales"
    assert officer.get("/officer/disclosure?account=sales&as=pdf").status_code == 404


def test_without_the_settings_there_is_no_entry_and_no_link_to_it(officer):
    """A refusal says what is missing."""
    assert "as=yaml" not in officer.get("/officer/accounts/sales").text
    refused = officer.get("/officer/disclosure?account=sales&as=yaml")
    assert refused.status_code == 422
    assert "section disclosure" in refused.text


def test_an_answer_has_a_sheet(service, ann):
    """For the account that paid for it, and for no other."""
    reply = service.ask(KNOWN, mechanism="laplace", epsilon=1)
    page = f"/answers/{reply.headers['discreet-release']}"
    assert f'href="{page}/sheet"' in ann.get(page).text
    sheet = ann.get(f"{page}/sheet").text
    assert "This answer alone, of data version 2026-11" in sheet
    assert "known-laplace" in sheet
    assert ann.get(f"{page}/sheet?as=json").json()["question"] == (
        "SELECT country, COUNT(DISTINCT reader)\nFROM reads\nGROUP BY country"
    )
    bob = Browser(service)
    bob.log_in(service.keys["bob"])
    assert bob.get(f"{page}/sheet").status_code == 404
