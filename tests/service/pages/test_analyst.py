"""The pages of analysts over plain HTTP: prices, answers, statements and refusals."""

from __future__ import annotations

import html
import re

import pytest

from discreet.query.json import from_dict
from discreet.query.sql import parse_select, to_sql
from discreet.service.pages import text
from tests.service.pages.conftest import Browser
from tests.service.pages.test_site import TOP


def test_an_answer_is_shown_with_its_price_and_its_files(ann):
    """The page shows what the API releases, and nothing else."""
    ann.get("/ask")
    path = ann.post("/ask", sql=TOP, epsilon="0.5").headers["location"]
    shown = ann.get(path).text
    assert "article 3" in shown
    assert '<p class="hint">Answered by unknown-gumbel.</p>' in shown
    for form in ("csv", "parquet", "arrow", "json"):
        assert ann.get(f"{path}.{form}").status_code == 200
    assert ann.get(f"{path}.exe").status_code == 404
    assert "article 3" in ann.get(f"{path}.csv").text
    assert "Users by article, top 5" in ann.get("/answers").text
    assert "From this answer alone, an attacker" in shown
    assert "From all answers" not in shown
    assert '<a href="/budget">' in re.search(r"From this answer alone.*?</ul>", shown, re.DOTALL)[0]
    assert "From all answers together, an attacker" in ann.get("/budget").text
    again = ann.get("/ask", params={"sql": TOP, "epsilon": "0.5"}).text
    assert "Free" in again


def test_a_whole_statement_is_priced_answered_and_free_the_second_time(service, ann):
    """A text that is no single query is a statement: its price is that of its queries, and the rest is free."""
    inner = "SELECT country, COUNT(DISTINCT reader) AS n FROM reads GROUP BY country"
    sql = (
        f"SELECT upper(country) AS name, n, n * 100.0 / SUM(n) OVER () AS percent FROM ({inner}) -- <b>\nORDER BY name"
    )
    before = ann.get("/ask", params={"sql": sql, "epsilon": "0.5"}).text
    assert "It asks 1 query of the data; what is computed around it is free." in before
    assert "of what is left, at most" in before
    assert service.balance().used.rho == 0
    link = ann.post("/ask", sql=sql, epsilon="0.5").headers["location"]
    shown = ann.get(link)
    used = service.balance().used.rho
    assert shown.status_code == 200
    assert used > 0
    assert re.findall(r"<td>(\w+)</td>", shown.text) == ["IN", "US", "XX"]
    assert re.findall(r"(\w+) <small[^>]*>no interval<", shown.text) == ["n", "percent"]
    assert 'class="chart"' not in shown.text
    assert "<b>" not in shown.text
    query = re.search(r'"(/answers/\w{64})"', shown.text)[1]
    assert ann.get(query).status_code == 200
    assert "Free" in ann.get("/ask", params={"sql": sql, "epsilon": "0.5"}).text
    assert ann.post("/ask", sql=sql, epsilon="0.5").headers["location"] == f"{link}&free=1"
    assert service.balance().used.rho == used


def test_a_statement_has_a_link_that_its_account_alone_can_open(service, ann):
    """The link names its releases: no other account has paid for them, and nothing else is computed."""
    sql = "SELECT upper(country) AS name, n FROM (SELECT country, COUNT(*) AS n FROM reads GROUP BY country)"
    ann.get("/ask")
    link = ann.post("/ask", sql=sql, epsilon="0.5").headers["location"]
    used = service.balance().used.rho
    assert ann.get(f"{link}&as=csv").text.startswith('"name","n"')
    assert ann.get(f"{link}&as=parquet").content[:4] == b"PAR1"
    assert service.balance().used.rho == used
    bob = Browser(service)
    bob.log_in(service.keys["bob"])
    assert bob.get(link).status_code == 404
    assert ann.get(link.partition("&release=")[0]).status_code == 404
    assert ann.get(link.replace("COUNT", "SUM")).status_code == 400


def test_answers_of_other_accounts_are_not_found(service, ann):
    """A link to an answer grants no access."""
    ann.get("/ask")
    path = ann.post("/ask", sql=TOP, epsilon="0.5").headers["location"]
    bob = Browser(service)
    bob.log_in(service.keys["bob"])
    assert bob.get(path).status_code == 404


def test_a_price_is_shown_before_the_query_runs(service, ann):
    """The first page has a complete query, its cost as a part of the budget and its expected error."""
    shown = ann.get("/ask?dataset=reads").text
    assert "of what is left, at most" in shown
    assert "such queries" in shown
    assert "95 % of the counts" in shown
    assert service.balance().used.rho == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sql": "SELECT hidden FROM reads"}, "problem"),
        ({"sql": "SELECT art"}, 'aria-invalid="true"'),
        ({"sql": TOP, "epsilon": "many"}, "Epsilon must be a number"),
        ({"sql": TOP, "epsilon": "99"}, "Epsilon must be at most"),
        ({"sql": TOP.replace("reads", "secret")}, "secret"),
    ],
)
def test_a_refused_query_shows_the_reason_and_stays_in_the_form(service, ann, fields, words):
    """The form shows problems of the API, and keeps its input."""
    ann.get("/ask")
    answer = ann.post("/ask", **fields)
    assert answer.status_code in {400, 404, 422}
    assert words in answer.text
    assert html.escape(fields["sql"].split("\n")[0]) in answer.text
    assert service.balance().used.rho == 0


def test_a_query_that_does_not_fit_shows_the_largest_that_fits(ann):
    """After a refusal the page offers the largest epsilon that fits."""
    spent = 0
    ann.get("/ask")
    while ann.post("/ask", sql=TOP.replace("5", str(5 + spent)), epsilon="4").status_code == 303:
        spent += 1
        ann.get("/ask")
    answer = ann.post("/ask", sql=TOP.replace("5", "40"), epsilon="4")
    assert answer.status_code == 403
    assert "which still fits" in answer.text


@pytest.mark.parametrize(
    "sql",
    [
        TOP,
        "SELECT COUNT(*) FROM reads",
        "SELECT article, country, AVG(minutes) FROM reads GROUP BY article, country LIMIT 7",
        "SELECT COUNT(*) FROM t WHERE (a = 'it''s' OR b IS NULL) AND NOT (c IN (1, 2.5) AND d IS NOT NULL)",
        'SELECT "order", COUNT(DISTINCT "the user") FROM "my data" WHERE "a ""b" >= \'2026-01-01\' GROUP BY "order"',
        'SELECT "left", COUNT(DISTINCT "current_date") FROM "from" GROUP BY "left"',
        "SELECT COUNT(*) FROM t WHERE a IN (DATE '2026-01-01', TIMESTAMP '2026-01-01 10:00:00', '2026-01-02', 5, TRUE)",
        "SELECT SUM(minutes) FROM reads WHERE day < '2026-01-02' AND moment > '2026-01-02 03:04:05' AND ok = TRUE",
    ],
)
def test_a_query_written_as_sql_is_read_as_the_same_query(sql):
    """The copied text is the query that was answered."""
    query = parse_select(sql)
    assert parse_select(to_sql(query)) == query
    assert from_dict(query.to_dict()) == query


def test_an_observed_account_over_its_limit_is_told_one_thing(service, ann):
    """Nothing is refused, so no page says how many queries fit, or which share of nothing a query takes."""
    change = {"mode": "observe", "limit": {"epsilon": 0.1, "delta": "1e-7"}}
    service.act("PATCH", "/v1/admin/accounts/ann@sales", **change)
    assert service.ask(epsilon=1).status_code == 200
    budget = ann.get("/budget").text
    assert "Limit used up" in budget
    assert "Enough for about" not in budget
    before = ann.get("/ask", params={"sql": TOP, "epsilon": "0.5"}).text
    assert "Over the limit" in before
    assert "This account refuses nothing; the accounts above it have enough for" in before
    assert "of what is left" not in before
    assert "Enough for about" not in before
    officer = Browser(service)
    officer.log_in(service.keys["officer"])
    assert "Limit used up" in officer.get("/officer/accounts/ann@sales").text


def test_a_bound_that_only_some_data_reach_is_not_shown_as_likely(service, ann):
    """The least error and threshold of auto are those of its best branch."""
    sql = "SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article"
    expected = service.estimate(sql, epsilon=1).json()["expected"]
    assert expected["min_std_error"] is not None
    assert expected["max_std_error"] is None
    shown = ann.get("/ask", params={"sql": sql, "epsilon": "1"}).text
    near = text.number(1.96 * expected["min_std_error"])
    assert f"for 95 % of the counts it can be as small as ± {near} users, and it is usually larger." in shown
    assert f"more than about {expected['smallest_count']:,} users can be shown; often more are needed." in shown
    assert "at best" not in shown
    assert "probably" not in shown


def test_the_choice_of_a_plan_is_no_warning(ann):
    """The answer says which plan auto chose in the style of a hint; notes are warnings."""
    ann.get("/ask")
    path = ann.post("/ask", sql="SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article", epsilon="2")
    shown = ann.get(path.headers["location"]).text
    assert "which chose" in shown
    assert re.search(r'<p class="hint">[^<]*counted[^<]*<small>Answered by auto, which chose', shown)
    assert 'class="note"' not in shown
