"""The notebooks of examples/, executed from top to bottom."""

from __future__ import annotations

import json

from playwright.sync_api import sync_playwright

from tests.clients.environments import ROOT, run
from tests.debian import chromium


def _execute(name, target, **variables):
    run("notebook", ROOT / "tests/clients/execute.py", ROOT / "examples" / name, target, **variables)
    return json.loads(target.read_text())["cells"]


def _draw(notebook, picture):
    """Draw an executed notebook as a page, from its second query on."""
    run("notebook", "-m", "nbconvert", "--to", "html", notebook)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 900, "height": 640})
        page.route("https://**", lambda route: route.abort())  # nbconvert's formulas are not needed
        page.goto(notebook.with_suffix(".html").as_uri(), wait_until="domcontentloaded")
        page.evaluate("document.querySelectorAll('.jp-Cell')[4].scrollIntoView()")
        page.screenshot(path=picture)
        browser.close()


def test_the_worked_notebook_runs_from_top_to_bottom():
    """The outputs in the repository are reproduced exactly: noise is keyed and data is seeded."""
    cells = _execute("release.ipynb", ROOT / "examples/release.ipynb")
    shown = str([cell.get("outputs") for cell in cells])
    assert "<svg" in shown
    assert "true counts lie in their intervals" in shown
    assert "refused: " in shown


def test_sql_magics_answer_whole_statements_and_pay_once(service, tmp_path):
    """JupySQL with Trino's dialect: a statement around a paid query is free, and so is a saved table of one."""
    service.charged()
    arguments = json.dumps(service.arguments(epsilon=0.5, delta="1e-9"))
    cells = _execute("sql.ipynb", tmp_path / "sql.ipynb", DISCREET_URL=service.address, DISCREET_ARGUMENTS=arguments)
    assert service.key not in json.dumps(cells)
    _draw(tmp_path / "sql.ipynb", ROOT / "docs/images/connect-jupysql.png")
    assert "HIGH(SUM(readers))" in str(cells[-1]["source"])
    assert cells[-1]["outputs"]
    assert service.charged() == (2, 2)
