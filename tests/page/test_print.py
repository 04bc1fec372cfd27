"""Pages that are made to be printed: the dashboard of named answers, disclosures and release sheets."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.page.test_narrow import HIDDEN, QUESTIONS

A4_PIXELS = 794
TITLES = {
    "bars": "Titles",
    "line": "Readers by day",
    "dates": "Days by country",
    "total": "All readers",
    "each": "Each",
}


@pytest.fixture(scope="module")
def named(served):
    """Ask queries that are drawn in different ways, and return their ids by the names that they shall get."""
    headers = {"Authorization": f"Bearer {served.keys['analyst']}"}
    ids = {}
    for kind, title in TITLES.items():
        body = {"sql": QUESTIONS[kind], "epsilon": 0.7}
        answer = httpx.post(f"{served.url}/v1/query", headers=headers, json=body, timeout=120)
        ids[title] = answer.raise_for_status().json()["id"]
    return ids


def printed(page):
    """Return the number of pages of A4 of what is printed, after a look at what is hidden or cut off there."""
    page.set_viewport_size({"width": A4_PIXELS, "height": 1123})
    page.emulate_media(media="print")
    assert page.evaluate(HIDDEN) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= A4_PIXELS
    return len(re.findall(rb"/Type /Page\b", page.pdf(format="A4")))


def test_named_answers_are_a_dashboard_that_is_printed(visit, named):
    """Small multiples beside each other, without navigation and buttons on paper, and no chart on two pages."""
    ann = visit("analyst", "/answers")
    page = ann.page
    for title, id_ in named.items():
        page.goto(f"{ann.url}/answers/{id_}")
        page.click("text=Name it")
        page.fill("input[name=title]", title)
        page.click("text=Save")
        page.wait_for_selector(f"h1:has-text('{title}')")
    page.click("nav >> text=Answers")
    page.click("text=on one page")
    cards = page.locator(".dashboard .card")
    assert page.locator(".dashboard h2").all_inner_texts() == sorted(TITLES.values())
    tops = {round(cards.nth(n).bounding_box()["y"]) for n in range(cards.count())}
    assert len(tops) < cards.count()
    ann.check("dashboard", whole=True)
    assert 1 < printed(page) <= 3
    for hidden in ("nav", "text=Log out", "text=Print", "input[type=search]"):
        assert not page.locator(hidden).first.is_visible(), hidden
    assert page.locator(".dashboard h2").first.is_visible()
    assert {cards.nth(n).evaluate("card => getComputedStyle(card).breakInside") for n in range(cards.count())} == {
        "avoid"
    }
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 320, "height": 844})
    assert page.evaluate(HIDDEN) == []
    ann.check()
    page.fill("input[type=search]", "day")
    page.click("text=Show")
    assert page.locator(".dashboard h2").all_inner_texts() == ["Days by country", "Readers by day"]


def test_the_button_of_the_dashboard_prints(visit):
    """The page's own script opens the dialog of the browser."""
    page = visit("analyst", "/dashboard").page
    page.evaluate("() => { window.print = () => { document.title = 'printing'; }; }")
    page.click("text=Print")
    assert page.title() == "printing"


def test_a_disclosure_and_a_release_sheet_are_printed_on_a_few_pages(visit, named):
    """Every number is on paper, no row of a table is on two pages, and the ink is dark in dark mode too."""
    officer = visit("officer", "/officer/catalog", color_scheme="dark")
    officer.page.goto(officer.url + officer.page.get_attribute("a[href*='/officer/disclosure']", "href"))
    ann = visit("analyst", color_scheme="dark")
    ann.page.goto(f"{ann.url}/answers/{named['Titles']}/sheet")
    for visitor, most in ((officer, 6), (ann, 2)):
        page = visitor.page
        visitor.check()
        assert 1 <= printed(page) <= most
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(29, 35, 48)"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        breaks = "rows => [...new Set(rows.map(row => getComputedStyle(row).breakInside))]"
        assert page.locator("tr, li").evaluate_all(breaks) == ["avoid"]
