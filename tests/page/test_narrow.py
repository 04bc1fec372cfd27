"""Every number of every page is painted on narrow screens: not cut off, not covered, not outside of the screen."""

from __future__ import annotations

from urllib.parse import urlencode

import httpx
import pytest

HIDDEN = """
() => {
    const wrong = [], boxes = [];
    const walker = document.createTreeWalker(document.querySelector("main") ?? document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const parent = node.parentElement, text = node.textContent.trim();
        if (!text || !parent.checkVisibility() || parent.closest("textarea, select, pre[aria-hidden], title")) continue;
        const hidden = parent.closest("g");  // checkVisibility() is true of parts of a drawing that are not rendered
        if (hidden && getComputedStyle(hidden).display === "none") continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        parent.scrollIntoView({ block: "center" });
        for (let around = parent; around; around = around.parentElement) around.scrollLeft = 0;
        const table = parent.closest(".scroll");  // it may scroll by itself: what is in it lies over nothing outside
        const scrolled = scrollY + (table?.scrollTop ?? 0);
        const lines = new Set([...range.getClientRects()].map((at) => Math.round(at.top)));
        if (lines.size > 1 && /^[\\w.,%]{2,10}$/.test(text)) wrong.push(`${text} is broken into ${lines.size} lines`);
        if (parent.matches("button, .button")) {
            const box = parent.getBoundingClientRect(), inside = range.getBoundingClientRect();
            if (inside.top < box.top - 1 || inside.bottom > box.bottom + 1) wrong.push(`${text} overflows`);
        }
        const label = getComputedStyle(parent, "::before");  // of a cell; it is in no node whose place can be asked for
        if (label.content !== "none" && label.whiteSpace === "nowrap")
            wrong.push(`${parent.dataset.label} does not wrap, and may lie over ${text}`);
        for (const at of range.getClientRects()) {
            const y = scrolled + at.top;
            for (const [other, left, right, top, bottom, of] of boxes) {
                if (of !== table) continue;
                if (at.left < right - 1 && at.right > left + 1 && y < bottom - 3 && y + at.height > top + 3)
                    wrong.push(`${text} lies over ${other}`);
            }
            if (/\\d/.test(text)) boxes.push([text, at.left, at.right, y, y + at.height, table]);
            else continue;
            if (at.left < -1 || at.right > innerWidth + 1) wrong.push(`${text} is outside`);
            for (let around = parent; around; around = around.parentElement) {
                const box = around.getBoundingClientRect();
                if (getComputedStyle(around).overflowX !== "visible" && around.clientWidth
                        && (at.left < box.left - 1 || at.right > box.right + 1))
                    wrong.push(`${text} is cut off by ${around.tagName}.${around.className}`);
            }
            for (const x of [at.left + 1, at.right - 1]) {
                const top = document.elementFromPoint(x, at.top + at.height / 2);
                if (top && !top.contains(node) && !parent.contains(top))
                    wrong.push(`${text} is covered by ${top.tagName}.${top.className}`);
            }
        }
    }
    return [...new Set(wrong)];
}
"""
OPENED = "document.querySelectorAll('main details').forEach(details => { details.open = true })"
USERS = "COUNT(DISTINCT reader)"
QUESTIONS = {
    "bars": f"SELECT title, {USERS} FROM wide GROUP BY title LIMIT 10",
    "sums": "SELECT title, SUM(cents) FROM wide GROUP BY title LIMIT 10",
    "line": f"SELECT read_at_day, {USERS} FROM wide GROUP BY read_at_day",
    "crossed": f"SELECT country, title, {USERS} FROM wide GROUP BY country, title",
    "dates": f"SELECT day, country, {USERS} FROM wide GROUP BY day, country",
    "total": f"SELECT {USERS} FROM wide",
    "each": f"SELECT country, title, {USERS} AS n FROM wide GROUP BY country, title "
    "QUALIFY row_number() OVER (PARTITION BY country ORDER BY n DESC) <= 3",
}
STATEMENT = (
    "SELECT upper(title) AS heading, n, n * 1000 AS thousands, n / 7 AS seventh "
    f"FROM (SELECT title, {USERS} AS n FROM wide GROUP BY title LIMIT 10)"
)


@pytest.fixture(scope="module")
def answers(served):
    """Return the paths of answers with large counts, by how they are drawn."""
    with httpx.Client(
        base_url=served.url, headers={"Authorization": f"Bearer {served.keys['analyst']}"}, timeout=120
    ) as client:
        found = {}
        for name, sql in QUESTIONS.items():
            answer = client.post("/v1/query", json={"sql": sql, "epsilon": 0.7})
            assert answer.status_code == 200, (name, answer.text)
            found[name] = f"/answers/{answer.json()['id']}"
        rows = client.post("/v1/sql", json={"sql": STATEMENT, "epsilon": 0.7}).json()
        released = [query["id"] for query in rows["queries"]]
        saved = {"sql": STATEMENT, "releases": released, "comment": "Headings of 400,000 readers"}
        client.put("/v1/tables/headings_of_articles_in_thousands", json=saved).raise_for_status()
    found["statement"] = f"/statements?{urlencode({'sql': STATEMENT, 'release': released}, doseq=True)}"
    found["table"] = "/tables/headings_of_articles_in_thousands"
    return found


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_every_number_of_an_answer_is_painted(visit, answers, width):
    """Bars, lines, totals, crossings, tables of each label and of statements, with six digits and long labels."""
    ann = visit("analyst", viewport={"width": width, "height": 800})
    for name, path in answers.items():
        ann.page.goto(ann.url + path)
        assert ann.page.locator("details.note").count() == (name == "sums"), name  # the bound is chosen privately
        ann.page.evaluate(OPENED)
        assert ann.page.evaluate(HIDDEN) == [], name
        assert ann.page.evaluate("document.documentElement.scrollWidth") <= width, name
        longest = ann.page.evaluate(
            "Math.max(0, ...[...document.querySelectorAll('.scroll')].map(table => table.clientHeight))"
        )
        assert name != "dates" or width > 390 or longest <= 640, name  # 30 days of 5 countries, in 80 % of the screen
        ann.check()
    for path in ("/ask", "/answers", "/tables", "/budget", "/dashboard"):
        ann.page.goto(ann.url + path)
        ann.page.evaluate(OPENED)
        assert ann.page.evaluate(HIDDEN) == [], path
        assert ann.page.evaluate("document.documentElement.scrollWidth") <= width, path
    ann.page.goto(f"{ann.url}/answers")
    assert ann.page.get_by_text("Users by day of read_at", exact=True).count() == 1  # not read_at_day


@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_every_number_of_the_officers_pages_is_painted(visit, width):
    """The catalog with its labels, accounts, the ledger, the simulator and keys."""
    for role, paths in (
        ("officer", ("", "/catalog", "/ledger", "/simulator", "/accounts/ann@example")),
        ("admin", ("/keys",)),
    ):
        visitor = visit(role, viewport={"width": width, "height": 800})
        for path in paths:
            visitor.page.goto(f"{visitor.url}/officer{path}")
            visitor.page.evaluate(OPENED)
            assert visitor.page.evaluate(HIDDEN) == [], path
            assert visitor.page.evaluate("document.documentElement.scrollWidth") <= width, path


BROKEN = """[...document.querySelectorAll("th, td")].filter(cell => !cell.children.length).flatMap(cell => {
    const text = cell.firstChild, range = document.createRange();
    return [...(text?.data ?? "").matchAll(/[^\\s-]+/g)].filter(word => {
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        return word[0].length < 10 && range.getClientRects().length > 1;
    }).map(word => word[0]);
})"""
"""Short words in cells of tables that are broken in two."""


@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize("width", [320, 390])
def test_a_disclosure_breaks_no_short_word(visit, width):
    """Names of datasets, users and mechanisms stand in one piece beside sentences."""
    page = visit("officer", viewport={"width": width, "height": 800}).page
    page.goto(page.url.partition("/officer")[0] + "/officer/disclosure?account=data")
    assert page.locator("td").count() > 10
    assert page.evaluate(BROKEN) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
