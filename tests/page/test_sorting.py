"""Tables of the pages are sorted by any of their columns, numbers by their size."""

from __future__ import annotations

import httpx
import pytest

SQL = "SELECT title, COUNT(DISTINCT reader) FROM wide GROUP BY title LIMIT {}"


@pytest.fixture
def asked(served):
    """Ask three queries of different costs, the dearest in the middle."""
    headers = {"Authorization": f"Bearer {served.keys['analyst']}"}
    for k, epsilon in ((2, 0.2), (3, 0.8), (4, 0.05)):
        body = {"sql": SQL.format(k), "epsilon": epsilon}
        httpx.post(f"{served.url}/v1/query", headers=headers, json=body, timeout=60).raise_for_status()


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
    assert [text.split("top ")[1][0] for text in cells(page, 0)] == ["2", "3", "4"]


def test_keys_are_sorted_by_role_and_expiry(visit):
    """The column of buttons is not sorted."""
    page = visit("admin", "/officer/keys").page
    page.click("thead >> text=Roles")
    assert cells(page, 2) == ["officer", "analyst", "admin"]
    page.click("thead >> text=Expires")
    assert cells(page, 4) == sorted(cells(page, 4), reverse=True)
    assert page.locator("thead th.unsorted button").count() == 0
