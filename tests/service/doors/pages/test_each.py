"""The page's "for each": the builder, the answer as small charts of one axis, and the hint at a refused drill-down."""

from __future__ import annotations

import re

import pytest

from discreet.service.doors.pages import charts
from tests.service.browser import Browser
from tests.service.deployment import CATALOG, Deployment

LISTED = 'domain = ["IN", "US", "XX"]'
TYPED = {"from": "builder", "dataset": "reads", "measure": "users", "item": ["article"], "k": "2", "epsilon": "1"}


@pytest.fixture
def ann(tmp_path):
    """Return the browser of an analyst of readers who have one country each."""
    catalog = CATALOG.replace(LISTED, f"{LISTED}, groups_per_user = 1")
    with Deployment(tmp_path / "service", catalog=catalog).open() as service:
        browser = Browser(service)
        browser.log_in(service.keys["ann"])
        yield browser


def test_the_builder_offers_the_columns_that_can_be_in_each(ann):
    """Listed labels, one for each user; the SQL is what a query with QUALIFY is, and is read back into the field."""
    shown = ann.get("/ask", params=TYPED | {"each": "country"}).text
    assert re.findall(r'<option value="(\w*)"', re.search(r'<select id="each".*?</select>', shown)[0]) == [
        "",
        "country",
    ]
    sql = re.search(r'<textarea id="sql".*?>(.*?)</textarea>', shown, re.DOTALL)[1]
    assert "QUALIFY row_number() OVER (PARTITION BY country ORDER BY COUNT(DISTINCT reader) DESC) &lt;= 2" in sql
    again = ann.get("/ask", params={"sql": sql.replace("&lt;", "<"), "epsilon": "1"}).text
    assert '<option value="country" selected>' in re.search(r'<select id="each".*?</select>', again)[0]
    both = ann.get("/ask", params=TYPED | {"each": "country", "item": ["article", "country"]}).text
    assert sql in both
    without = ann.get("/ask", params=TYPED | {"each": "country", "item": []}).text
    assert "Choose the items of each label" in without


def test_a_dataset_without_such_columns_has_no_field(ann):
    """There is nothing to choose."""
    assert 'id="each"' not in ann.get("/ask", params={"dataset": "daily", "from": "builder"}).text


def test_an_answer_has_a_chart_for_each_label(ann):
    """Each has the items of its label, all on one axis, and a sentence says that a user counts once."""
    ann.get("/ask")
    sql = (
        "SELECT country, article, COUNT(DISTINCT reader) FROM reads GROUP BY country, article "
        "QUALIFY row_number() OVER (PARTITION BY country ORDER BY COUNT(DISTINCT reader) DESC) <= 2"
    )
    link = ann.post("/ask", sql=sql, epsilon="4").headers["location"]
    shown = ann.get(link).text
    assert "Users by article, top 2, for each country" in shown
    assert re.findall(r'<section aria-label="(IN|US|XX)">', shown) == ["IN", "US"]
    assert "counts in one of them, chosen at random" in shown
    assert "Not all of country have the 2 items" in shown
    assert ann.get(f"{link.partition('?')[0]}.csv").text.startswith('"rank","country","article","count"')
    assert "for each country" in ann.get("/answers").text


def test_charts_of_segments_share_an_axis():
    """A bar of half the users is half as long in another chart."""
    release = {
        "columns": [{"name": name} for name in ("rank", "country", "article", "count", "std_error", "low", "high")],
        "query": {"k": 1},
        "question": {"items": ["article"], "each": ["country"]},
        "items": [
            {"country": country, "article": "a", "count": n, "std_error": 1, "low": n, "high": n}
            for country, n in (("US", 100), ("IN", 50))
        ],
    }
    found = charts.multiples(charts.items_of(release), 1)
    assert [(name, [(item.label, item.bar[1]) for item in items]) for name, items in found] == [
        ("US", [("a", 100)]),
        ("IN", [("a", 50)]),
    ]


def test_a_refused_drill_down_names_one_query_for_each_country(ann):
    """It stands beside the price that was refused."""
    sql = "SELECT article, COUNT(DISTINCT reader) FROM reads WHERE country = 'IN' GROUP BY article LIMIT 2"
    for number in range(40):
        ann.get("/ask")
        refused = ann.post("/ask", sql=sql, epsilon=f"{8 - number / 1000}")
        if refused.status_code != 303:
            break
    assert "One query for each country would answer it for all of its labels" in refused.text
