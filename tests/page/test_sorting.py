"""Tables of the pages are sorted by any of their columns, numbers by their size."""

from __future__ import annotations

import httpx
import pytest

UNSORTED = """
() => [...document.querySelectorAll("main table:has(thead)")].flatMap((table) => {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 2 || !table.checkVisibility()) return [];
    return [...table.tHead.rows[0].cells].flatMap((head, n) => {
        const cells = rows.map((row) => row.cells[n]), button = head.querySelector("button");
        if (cells.some((cell) => cell.querySelector("svg, form"))) return [];
        if (!cells.some((cell) => cell.checkVisibility())) return [];
        return button?.checkVisibility() && button.innerText.trim() ? [] : [`${table.className}: ${head.innerText}`];
    });
})
"""
"""Heads without a visible button whose columns have visible texts, of tables with two rows or more."""
SQL = "SELECT title, COUNT(DISTINCT reader) AS readers FROM wide GROUP BY title LIMIT {}"


@pytest.fixture
def asked(served):
    """Ask three queries of different costs, the dearest in the middle, and save two tables."""
    headers = {"Authorization": f"Bearer {served.keys['analyst']}"}
    for k, epsilon in ((2, 0.2), (3, 0.8), (4, 0.05)):
        body = {"sql": SQL.format(k), "epsilon": epsilon}
        httpx.post(f"{served.url}/v1/query", headers=headers, json=body, timeout=60).raise_for_status()
    statement = {"sql": f"SELECT title, 2 * readers AS twice FROM ({SQL.format(5)})", "epsilon": 0.1}
    rows = httpx.post(f"{served.url}/v1/sql", headers=headers, json=statement, timeout=60).raise_for_status().json()
    saved = {"sql": statement["sql"], "releases": [query["id"] for query in rows["queries"]]}
    for name in ("largest", "doubled"):
        httpx.put(f"{served.url}/v1/tables/{name}", headers=headers, json=saved).raise_for_status()


def cells(page, column):
    """Return the texts of a column of the first table, or the values behind them."""
    script = "(rows, n) => rows.map(row => row.cells[n].dataset.value ?? row.cells[n].innerText)"
    return page.locator("main table").first.locator("tbody tr").evaluate_all(script, column)


@pytest.mark.usefixtures("asked")
def test_answers_are_sorted_by_charge_and_by_time(visit):
    """Largest first, then smallest first; percentages by their numbers, times by their order."""
    page = visit("analyst", "/answers").page
    page.click("thead >> text=Charged")
    charged = [float(text.lstrip("<> ").split()[0]) for text in cells(page, 2)]
    assert charged == sorted(charged, reverse=True)
    assert len(set(charged)) > 1
    page.click("thead >> text=Charged")
    assert [float(text.lstrip("<> ").split()[0]) for text in cells(page, 2)] == sorted(charged)
    page.click("thead >> text=When")
    assert cells(page, 3) == sorted(cells(page, 3), reverse=True)
    page.click("thead >> text=Query")
    page.click("thead >> text=Query")
    assert [text.split("top ")[1][0] for text in cells(page, 0) if "top " in text] == ["2", "3", "4"]


def test_keys_are_sorted_by_role_and_expiry(visit):
    """The column of buttons is not sorted."""
    page = visit("admin", "/officer/keys").page
    page.click("thead >> text=Roles")
    assert cells(page, 2) == ["officer", "analyst", "admin"]
    page.click("thead >> text=Expires")
    assert cells(page, 4) == sorted(cells(page, 4), reverse=True)
    assert page.locator("thead button").all_inner_texts() == ["Key", "Account", "Roles", "Last used", "Expires"]


@pytest.mark.usefixtures("asked")
def test_the_tree_of_accounts_is_sorted_and_becomes_a_tree_again(visit):
    """By another column than the name, accounts are a list without indentation."""
    page = visit("officer", "/officer").page
    names = page.locator(".tree tbody th").all_inner_texts()
    indents = "rows => rows.map(row => parseFloat(getComputedStyle(row).paddingLeft))"
    tree = page.locator(".tree tbody th").evaluate_all(indents)
    assert len(set(tree)) > 1
    page.click(".tree thead >> text=Used >> nth=1")
    used = [float(text) for text in cells(page, 3)]
    assert used == sorted(used, reverse=True)
    assert len(set(used)) > 1
    assert len(set(page.locator(".tree tbody th").evaluate_all(indents))) == 1
    page.click(".tree thead >> text=Account")
    assert page.locator(".tree tbody th").all_inner_texts() == names[::-1]
    page.click(".tree thead >> text=Account")
    assert page.locator(".tree tbody th").all_inner_texts() == names
    assert page.locator(".tree tbody th").evaluate_all(indents) == tree


@pytest.mark.usefixtures("asked")
def test_entries_of_the_ledger_are_sorted_by_cost_and_time(visit):
    """Queries without a charge come last; the column of times returns to the order of the page."""
    page = visit("officer", "/officer/ledger").page
    rows = page.locator(".history:not(.ranked)")
    values = "rows => rows.map(row => row.cells[{}].dataset.value)"
    times = rows.locator("tbody tr").evaluate_all(values.format(0))
    rows.locator("thead >> text=Cost").click()
    costs = [float(value or "-inf") for value in rows.locator("tbody tr").evaluate_all(values.format(3))]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[2] > 0
    rows.locator("thead >> text=When").click()
    assert rows.locator("tbody tr").evaluate_all(values.format(0)) == sorted(times, reverse=True)


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("role", ["analyst", "officer", "admin"])
def test_every_column_of_texts_can_be_sorted_on_every_page(visit, role):
    """On all pages of the menu and those that they lead to, at three widths; not columns of drawings and forms."""
    page = visit(role).page
    links = "[...document.querySelectorAll('a[href]:not([download])')].map((link) => link.href)"
    menu = page.evaluate(links.replace("a[", "nav a["))
    paths = set(menu)
    for address in menu:
        page.goto(address)
        paths |= {link for link in page.evaluate(links) if link.startswith(page.url.partition("?")[0])}
    buttons = 0
    for address in sorted(paths):
        page.goto(address)
        for width in (320, 390, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            page.evaluate("document.querySelectorAll('main details').forEach((each) => { each.open = true })")
            assert page.evaluate(UNSORTED) == [], (address, width)
        buttons += page.locator("main thead button").count()
    assert buttons
