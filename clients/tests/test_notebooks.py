"""The notebooks of examples/, executed as people execute them."""

from __future__ import annotations

import json

from playwright.sync_api import sync_playwright

from clients.environments import ROOT, run


def _execute(name, target, **variables):
    run("notebook", ROOT / "clients/execute.py", ROOT / "examples" / name, target, **variables)
    return json.loads(target.read_text())["cells"]


def _draw(notebook, picture):
    """Draw an executed notebook as a page, from its second query on."""
    run("notebook", "-m", "nbconvert", "--to", "html", notebook)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 900, "height": 640})
        page.route("https://**", lambda route: route.abort())  # nbconvert's formulas are not needed
        page.goto(notebook.with_suffix(".html").as_uri(), wait_until="domcontentloaded")
        page.evaluate("document.querySelectorAll('.jp-Cell')[4].scrollIntoView()")
        page.screenshot(path=picture)
        browser.close()


def _texts(cells):
    """Return what the cells show but pictures, whose bytes are those of matplotlib's version."""
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return [
        output.get("text") or {kind: text for kind, text in output["data"].items() if kind != "image/png"}
        for output in outputs
    ]


def test_the_worked_notebook_shows_what_it_shows_in_the_repository(tmp_path):
    """Its noise is keyed and its data seeded, so that every number in it can be had again."""
    committed = json.loads((ROOT / "examples/release.ipynb").read_text())["cells"]
    executed = _execute("release.ipynb", tmp_path / "release.ipynb")
    assert _texts(executed) == _texts(committed)
    assert "<svg" in "".join(map(str, _texts(executed)))


def test_sql_magics_answer_whole_statements_and_pay_once(service, tmp_path):
    """JupySQL with the dialect: a statement around a query that was paid for is free."""
    _execute("sql.ipynb", tmp_path / "sql.ipynb", DISCREET_URL=service.address(epsilon=0.5, delta="1e-9"))
    replies = [reply for _, reply in service.take()]
    assert all("rows" in reply for reply in replies)
    _draw(tmp_path / "sql.ipynb", ROOT / "docs/images/connect-jupysql.png")
    statuses = [query["status"] for reply in replies for query in reply["queries"]]
    assert statuses == ["released", "replayed", "released"]
