"""The pages of analysts over plain HTTP: prices, answers, statements and refusals."""

from __future__ import annotations

import html
import json
import re

import pytest

from discreet.budget.stores.store import BudgetStore
from discreet.query.json import from_dict
from discreet.query.query import ROWS_NOTE
from discreet.query.sql import parse_select, to_sql
from discreet.service.doors.pages import analyst
from discreet.values import Cost
from tests.service.browser import Browser
from tests.service.deployment import ACT, CATALOG, KNOWN, Deployment, put_grant
from tests.service.doors.pages.test_site import TOP


def test_an_answer_is_shown_with_its_price_and_its_files(ann):
    """The page shows what the API releases, and nothing else."""
    ann.get("/ask")
    path = ann.post("/ask", sql=TOP, epsilon="0.5").headers["location"]
    shown = ann.get(path).text
    assert "article 3" in shown
    assert "<summary>How it was answered</summary><p>Answered by unknown-gumbel.</p>" in shown
    for form in ("csv", "parquet", "arrow", "json"):
        assert ann.get(f"{path}.{form}").status_code == 200
    assert ann.get(f"{path}.exe").status_code == 404
    assert "article 3" in ann.get(f"{path}.csv").text
    assert "Users by article, top 5" in ann.get("/answers").text
    charged = re.search(r"was charged ([\d.]+ %) of its budget \((ε|&epsilon;) ([\d.]+)", shown)
    assert 0 < float(charged[3]) < 0.5  # a race that ends early, at the delta of the account
    assert re.search(rf"{charged[1]} <small>of the budget, (ε|&epsilon;) {charged[3]}", ann.get("/answers").text)
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
    assert "of the budget, at most" in before
    assert service.balance().used.rho == 0
    link = ann.post("/ask", sql=sql, epsilon="0.5").headers["location"]
    shown = ann.get(link)
    used = service.balance().used.rho
    assert shown.status_code == 200
    assert used > 0
    assert re.findall(r'<td data-label="name">(\w+)</td>', shown.text) == ["IN", "US", "XX"]
    assert re.findall(r"(\w+) <small[^>]*>no interval<", shown.text) == ["percent"]
    assert (
        len(re.findall(r'data-label="n" data-value="\d+">[\d,]+<small class="ends">[\d,]+ to [\d,]+<', shown.text)) == 3
    )
    assert 'class="chart"' not in shown.text
    assert "<b>" not in shown.text
    query = re.search(r'href="(/answers/\w{64})"', shown.text)[1]
    assert ann.get(query).status_code == 200
    assert "Free" in ann.get("/ask", params={"sql": sql, "epsilon": "0.5"}).text
    assert ann.post("/ask", sql=sql, epsilon="0.5").headers["location"] == f"{link}&free=1"
    assert service.balance().used.rho == used


def test_a_statement_that_no_link_can_hold_is_shown_at_once(ann, monkeypatch):
    """Its answer was paid for, so it is on the page that the form returns."""
    monkeypatch.setattr(analyst, "_MAX_LINK_LENGTH", 10)
    ann.get("/ask")
    shown = ann.post("/ask", sql=f"SELECT upper(country) AS name, count, count / 2 FROM ({KNOWN})")
    assert shown.status_code == 200
    assert sorted(re.findall(r'data-label="name">(\w+)<', shown.text)) == ["IN", "US", "XX"]


def test_a_statement_has_a_link_that_its_account_alone_can_open(service, ann):
    """The link names its releases: others, who have not paid for them, see the price, and nothing else is computed."""
    sql = "SELECT upper(country) AS name, n FROM (SELECT country, COUNT(*) AS n FROM reads GROUP BY country)"
    ann.get("/ask")
    link = ann.post("/ask", sql=sql, epsilon="0.5").headers["location"]
    used = service.balance().used.rho
    assert ann.get(f"{link}&as=csv").text.startswith('"name","n"')
    assert ann.get(f"{link}&as=parquet").content[:4] == b"PAR1"
    assert service.balance().used.rho == used
    bob = Browser(service)
    bob.log_in(service.keys["bob"])
    assert bob.get(link).headers["location"].startswith("/ask?sql=SELECT+upper")
    assert bob.get(f"{link}&as=csv").status_code == 404
    assert ann.get(link.partition("&release=")[0]).status_code == 404
    assert ann.get(link.replace("COUNT", "SUM")).status_code == 400


def test_answers_of_other_accounts_are_not_found(service, ann):
    """A link to an answer shows its price to those who may ask for it, and nothing to others."""
    ann.get("/ask")
    path = ann.post("/ask", sql=TOP, epsilon="0.5").headers["location"]
    bob = Browser(service)
    bob.log_in(service.keys["bob"])
    assert bob.get(path).headers["location"].startswith("/ask?sql=")
    assert bob.get(f"{path}.csv").status_code == 404
    service.send("DELETE", "/v1/admin/grants/sales/reads", "officer", params={"reason": "a test"})
    service.clock.pass_(seconds=2)
    assert bob.get(path).status_code == 404
    assert bob.get(f"/answers/{'0' * 64}").status_code == 404


def test_a_colleague_with_the_same_grants_sees_the_price_of_a_shared_answer_first(services):
    """The link shows the query and its worst cost; asked as it is, she gets the same bytes, and is charged for them."""
    service = services(granted={"reads": ["article"]})
    put_grant(service.manager.store, "ann@sales", "reads", ["country"])
    ann, bob = Browser(service), Browser(service)
    ann.log_in(service.keys["ann"])
    bob.log_in(service.keys["bob"])
    ann.get("/ask")
    path = ann.post("/ask", sql=TOP, epsilon="0.5").headers["location"]
    link = bob.get(path).headers["location"]
    before = bob.get(link).text
    assert "Asked as it is, you get the same answer for the price below." in before
    assert "of the budget, at most" in before
    assert service.balance("bob@sales").used.rho == 0
    assert bob.get(f"{path}.json").status_code == 404
    assert bob.post("/ask", sql=TOP, epsilon="0.5").headers["location"] == path  # not free
    assert bob.get(f"{path}.json").content == ann.get(f"{path}.json").content
    assert service.balance("bob@sales").used == service.balance("ann@sales").used != Cost()
    assert "Your account has an answer to it already." in bob.get(link).text
    ann.get("/ask")
    by_country = ann.post("/ask", sql="SELECT country, COUNT(DISTINCT reader) FROM reads GROUP BY country", epsilon="1")
    assert bob.get(by_country.headers["location"]).status_code == 404
    other = service.ask(TOP, epsilon=0.3, delta="1e-10").headers["discreet-release"]
    assert "You get an answer of your own" in bob.get(bob.get(f"/answers/{other}").headers["location"]).text


def test_answers_have_names_and_are_found_by_their_words(service, ann):
    """A name is for all who use the account, and the ledger holds its digest only."""
    ann.get("/ask")
    paths = []
    for k in ("3", "4"):
        ann.get("/ask")
        paths.append(ann.post("/ask", sql=TOP.replace("5", k), epsilon="0.1").headers["location"])
    ann.get(paths[0])
    assert ann.post(paths[0], title=" What Böb <reads> ").status_code == 303
    assert "<h1>What Böb &lt;reads&gt;</h1>" in ann.get(paths[0]).text
    assert "Böb" not in "".join(str(line) for line in service.store.lines())

    def found(words):
        return re.findall(r'href="(/answers/\w{64})"', ann.get("/answers", params={"q": words}).text)

    assert found("BÖB reads") == [paths[0]]
    assert found("article top 4") == [paths[1]]
    assert sorted(found("users reads")) == sorted(paths)
    assert found("minutes") == []
    ann.get(paths[0])
    for wrong in ("x" * 121, "a\nb"):
        assert ann.post(paths[0], title=wrong).status_code == 422
    ann.post(paths[0], title="")
    assert "<h1>Users by article, top 3</h1>" in ann.get(paths[0]).text
    bob = Browser(service)
    bob.log_in(service.keys["bob"])
    bob.get("/budget")
    assert bob.post(paths[0], title="mine").status_code == 404
    service.store.verify()


def test_named_answers_are_a_dashboard(service, ann):
    """It has the numbers of the answers, in the order of their names, and no answer of another account."""
    ann.get("/ask")
    assert "No answer has a name yet" in ann.get("/dashboard").text
    by_country = "SELECT country, COUNT(DISTINCT reader) FROM reads GROUP BY country"
    paths = []
    for sql, name in ((TOP, "week b <top>"), (by_country, "Week A"), ("SELECT COUNT(DISTINCT reader) FROM reads", "")):
        ann.get("/ask")
        paths.append(ann.post("/ask", sql=sql, epsilon="0.1").headers["location"])
        ann.get(paths[-1])
        ann.post(paths[-1], title=name)
    service.store.verify()

    def headings(words):
        return re.findall(r'<h2><a href="(.*?)">(.*?)</a>', ann.get("/dashboard", params={"q": words}).text)

    assert headings("") == [(paths[1], "Week A"), (paths[0], "week b &lt;top&gt;")]
    assert headings("TOP week") == [(paths[0], "week b &lt;top&gt;")]
    assert headings("month") == []
    shown = ann.get("/dashboard").text
    for path in paths[:2]:
        values = [item["count"] for item in ann.get(f"{path}.json").json()["items"]]
        assert all(re.search(rf">{value:,}<small>", shown) for value in values)
    ann.get(paths[2])
    ann.post(paths[2], title="all readers")
    assert re.search(r'<p class="big total">[\d,]+ <span>users', ann.get("/dashboard").text)
    spent = service.balance().used
    assert len(headings("")) == 3
    assert service.balance().used == spent
    bob = Browser(service)
    bob.log_in(service.keys["bob"])
    assert "No answer has a name yet" in bob.get("/dashboard").text


def test_a_dashboard_leaves_out_what_is_damaged_or_too_much(service, ann, monkeypatch):
    """It names a damaged answer, and says how many answers it does not show."""
    monkeypatch.setattr("discreet.service.doors.pages.analyst._MAX_CHARTS", 2)
    ann.get("/ask")
    for name, k in (("c", "3"), ("a", "4"), ("b", "5")):
        path = ann.post("/ask", sql=TOP.replace("5", k), epsilon="0.1").headers["location"]
        ann.get(path)
        ann.post(path, title=name)
    shown = ann.get("/dashboard").text
    assert re.findall(r">(\w)</a></h2>", shown) == ["a", "b"]
    assert "1 more answer has a name" in shown
    id_ = re.search(r'<h2><a href="/answers/(\w+)">a<', shown)[1]
    change = [("UPDATE budget_releases SET result = ? WHERE release_key = ?", (b"{}", bytes.fromhex(id_)))]
    service.store.write(lambda transaction: transaction.db.write(change), "damage")
    shown = ann.get("/dashboard").text
    assert "1 answer cannot be shown, because the store is damaged: a" in shown
    assert re.findall(r">(\w)</a></h2>", shown) == ["b"]


def test_a_price_is_shown_before_the_query_runs(service, ann):
    """The first page has a complete query, its cost as a part of the budget and its expected error."""
    shown = ann.get("/ask?dataset=reads").text
    assert "of the budget, at most" in shown
    assert "such queries" in shown
    assert "95 % of the counts" in shown
    assert service.balance().used.rho == 0


def test_without_scripts_a_button_writes_the_sql_of_the_fields(ann):
    """Ranges without an end stay with their columns; a value of a wrong type is refused in the form."""
    ann.get("/ask")
    typed = {"from": "builder", "dataset": "reads", "item": ["day_week", ""], "pick": "country=IN", "k": ""}
    ranges = {"filter": ["article", "day"], "low": ["", "2024-10-05"], "high": ["", ""]}
    link = ann.post("/ask", **typed, **ranges).headers["location"]
    shown = html.unescape(ann.get(link).text)
    assert "WHERE country = 'IN' AND day >= '2024-10-05'\nGROUP BY day_week" in shown
    refused = ann.get("/ask", params={**typed, **ranges, "low": ["", "monday"]}).text
    assert "Day is compared with dates, such as 2026-01-31." in refused


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


def test_a_period_is_named_in_words(service, ann):
    """As week, not by the name that SQL has for it; a search finds both."""
    ann.get("/ask")
    sql = "SELECT country, day_week, COUNT(DISTINCT reader) FROM reads GROUP BY country, day_week"
    path = ann.post("/ask", sql=sql, epsilon="4").headers["location"]
    shown = ann.get(path).text
    assert "<h1>Users by country and week</h1>" in shown
    assert "day_week" not in re.sub(r"<pre.*?</pre>|<[^>]*>", "", shown, flags=re.DOTALL)
    for words in ("and week", "day_week"):
        assert "Users by country and week" in ann.get("/answers", params={"q": words}).text
    officer = Browser(service)
    officer.log_in(service.keys["officer"])
    assert "Users by country and week" in officer.get("/officer/ledger").text


def test_averages_are_shown_within_their_intervals(ann):
    """A release of averages has counts, too, which are not what is drawn."""
    ann.get("/ask")
    path = ann.post("/ask", sql="SELECT country, AVG(minutes) FROM reads GROUP BY country", epsilon="4")
    shown = ann.get(path.headers["location"]).text
    averages = [float(value) for value in re.findall(r'<td class="number" data-value="([^"]*)">', shown)]
    assert len(averages) == 3
    assert max(averages) < 60
    lows = [float(value) for value in re.findall(r'<td class="number wide" data-value="([^"]*)">', shown)]
    assert all(low <= average for low, average in zip(lows, averages, strict=True))


def test_the_builder_offers_averages_by_a_private_bound(tmp_path):
    """As `discreet init` declares one; the answer says which bound was chosen."""
    catalog = CATALOG.replace("high = 60 }", "high = 600, private_bound = true }")
    with Deployment(tmp_path / "service", catalog=catalog).open() as service:
        browser = Browser(service)
        browser.log_in(service.keys["ann"])
        assert '<option value="average:minutes">' in browser.get("/ask", params={"dataset": "reads"}).text
        path = browser.post("/ask", sql="SELECT country, AVG(minutes) FROM reads GROUP BY country", epsilon="4")
        assert "was chosen privately" in browser.get(path.headers["location"]).text


def test_an_observed_account_over_its_limit_is_told_one_thing(service, ann):
    """Nothing is refused, so no page says how many queries fit, or which share of nothing a query takes."""
    change = {"mode": "observe", "limit": {"epsilon": 0.1, "delta": "1e-7"}}
    service.act("PATCH", "/v1/admin/accounts/ann@sales", **change)
    assert service.ask(epsilon=1).status_code == 200
    budget = ann.get("/budget").text
    assert "Limit used up" in budget
    assert "Enough for about" not in budget
    assert "left: &epsilon;" not in budget
    before = ann.get("/ask", params={"sql": TOP, "epsilon": "0.5"}).text
    assert "Over the limit" in before
    assert "This account refuses nothing; the accounts above it have enough for" in before
    assert "of the budget" not in before
    assert "Enough for about" not in before
    officer = Browser(service)
    officer.log_in(service.keys["officer"])
    account = officer.get("/officer/accounts/ann@sales").text
    assert "Limit used up" in account
    assert "no query is answered" not in account
    assert "its queries are answered all the same" in account


def test_a_bound_that_only_some_data_reach_is_not_shown_as_likely(service, ann):
    """Errors are a range, the likeliest branch first; so are the smallest counts."""
    sql = "SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article"
    expected = service.estimate(sql, epsilon=1).json()["expected"]
    assert expected["min_std_error"] is not None
    assert expected["max_std_error"] is None
    shown = ann.get("/ask", params={"sql": sql, "epsilon": "1"}).text
    first = expected["likely"][0]
    near = f"{1.96 * first['min_std_error']:.3g} users, or up to {196 * first['max_relative_error']:.2g} % of the count"
    assert f"95 % of the counts will probably be off by at most {near}; if another method answers, by " in shown
    assert "better" not in shown
    fewest, most = first["smallest_count"], first["max_smallest_count"]
    assert f"Items probably need about {fewest:,} to {most:,} users to be shown; with another" in shown


def test_a_query_by_day_shows_the_price_of_daily_queries_beside_its_own(service, ann):
    """28 queries that cost as much together; other queries, and those that would be too cheap, do not have it."""
    sql = "SELECT article, day, COUNT(DISTINCT reader) FROM reads GROUP BY article, day"
    both = service.estimate(sql, epsilon=4).json()
    daily = both["daily"]
    assert daily["releases"] == 28
    one = service.estimate(sql, epsilon=daily["epsilon"], delta=daily["delta"]).json()
    assert one["worst_cost"]["rho"] == pytest.approx(both["worst_cost"]["rho"] / 28, rel=1e-6)
    assert daily["expected"] == one["expected"]
    sentence = "Asked every day for four weeks instead, each of the 28 queries has epsilon "
    assert sentence in ann.get("/ask", params={"sql": sql, "epsilon": "4"}).text
    weekly = sql.replace("article, day", "article, day_week")
    assert service.estimate(weekly, epsilon=4).json()["daily"] is None
    assert service.estimate(sql, epsilon=0.001, delta="1e-9").json()["daily"] is None
    assert service.ask(sql, epsilon=0.5).status_code == 200
    assert service.estimate(sql, epsilon=0.5).json()["daily"] is None


def test_the_choice_of_a_plan_is_no_warning(ann):
    """The answer says which plan auto chose in the style of a hint; notes are warnings."""
    ann.get("/ask")
    path = ann.post("/ask", sql="SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article", epsilon="2")
    shown = ann.get(path.headers["location"]).text
    assert "which chose" in shown
    assert re.search(
        r'<p class="hint">[^<]*counted[^<]*</p>(.|\n)*<summary>How it was answered</summary><p>Answered by auto, which',
        shown,
    )
    assert 'class="note"' not in shown


def test_an_answer_says_why_its_intervals_are_wide(ann):
    """Of the same counts at a small epsilon, not at a large one."""
    ann.get("/ask")
    sql = "SELECT country, COUNT(DISTINCT reader) FROM reads GROUP BY country"
    shown = {
        epsilon: ann.get(ann.post("/ask", sql=sql, epsilon=epsilon).headers["location"]).text
        for epsilon in ("0.02", "8")
    }
    reason = "Intervals are wide where the noise is large for so few users."
    assert (reason in shown["0.02"], reason in shown["8"]) == (True, False)


COUNTS = "SELECT country, COUNT(DISTINCT reader) AS n FROM reads GROUP BY country"


def test_answers_are_saved_as_tables_free_of_charge(service, ann):
    """The answers on the page are saved, of a query and of a statement, also when the data cannot be asked again."""
    ann.get("/ask")
    answer = ann.post("/ask", sql=TOP, epsilon="0.5").headers["location"]
    ann.get("/ask")
    statement = ann.post("/ask", sql=f"SELECT upper(country) AS c, n * 2 AS n FROM ({COUNTS})", epsilon="1").headers
    spent = service.balance().spent
    shown = ann.get(answer).text
    assert "Save as table" in shown
    assert ann.post("/tables", name="Top").headers["location"] == "/tables/top"
    ann.get(statement["location"])
    assert ann.post("/tables", name="halves").headers["location"] == "/tables/halves"
    service.no_engine()
    assert service.send("POST", "/v1/sql", json={"sql": "SELECT * FROM saved.top"}).json()["rows"]
    table = ann.get("/tables/top").text
    assert "article 3" in table
    assert "too few users" in table
    assert "sums of these rows" not in ann.get("/tables/halves").text  # its labels are listed
    assert ann.get("/tables/halves?as=csv").text.startswith('"c","n"')
    assert re.findall(r'href="/tables/(\w+)"', ann.get("/tables").text) == ["halves", "top"]
    ann.get(statement["location"])
    assert ann.post("/tables", name="top").status_code == 422
    assert service.balance().spent == spent
    assert service.manager.verify()


def test_totals_are_offered_where_an_answer_that_is_saved_lacks_items(service, ann):
    """Sums of its rows would be too small; its own rows are free in the statement with totals."""
    ann.get("/ask")
    sql = "SELECT article, day, COUNT(DISTINCT reader) FROM reads WHERE country = 'IN' GROUP BY article, day"
    shown = ann.get(ann.post("/ask", sql=sql, epsilon="4").headers["location"]).text
    assert "sums of these rows are too small" in shown
    link = html.unescape(re.search(r'<a href="([^"]*)">Ask for totals', shown)[1])
    form = ann.get(link).text
    totals = html.unescape(re.search(r"<textarea[^>]*>(.*?)</textarea>", form, re.DOTALL)[1])
    assert totals.split("\n")[0] == "SELECT article, day, COUNT(DISTINCT reader) AS n"
    assert totals.endswith("GROUP BY ROLLUP (article, day)")
    estimate = service.send("POST", "/v1/sql/estimate", "ann", json={"sql": totals, "epsilon": 4}).json()
    assert [query["estimate"]["paid"] for query in estimate["queries"]] == [False, False, True]
    for complete in (sql.replace("article, day", "country"), f"{sql} ORDER BY 3 DESC LIMIT 3"):
        ann.get("/ask")
        other = ann.post("/ask", sql=complete, epsilon="4").headers["location"]
        assert "Ask for totals" not in ann.get(other).text


def test_only_answers_to_its_queries_are_saved_with_a_statement(service):
    """The ids in the form are those of the account's own answers to these queries."""
    other = service.ask(TOP, epsilon=1).headers["discreet-release"]
    own = service.ask("SELECT country, COUNT(DISTINCT reader) FROM reads GROUP BY country", epsilon=1)
    id_ = own.headers["discreet-release"]
    new = {"sql": COUNTS, "replace": False}
    for releases, status in (([other], 422), (["0" * 64], 404), ([], 404), (["x"], 404)):
        reply = service.send("PUT", "/v1/tables/t", json={**new, "releases": releases})
        assert reply.status_code == status, reply.text
    assert service.send("PUT", "/v1/tables/t", "bob", json={**new, "releases": [id_]}).status_code == 404
    assert service.send("PUT", "/v1/tables/t", json={**new, "releases": [id_]}).json()["releases"] == [id_]


def test_the_page_of_a_table_changes_it(ann):
    """Rename, comment and drop; a statement that is typed leads to the page of its table."""
    ann.get("/ask")
    assert ann.post("/ask", sql=f"CREATE TABLE saved.a AS {COUNTS}", epsilon="1").headers["location"] == "/tables/a"
    ann.get("/tables/a")
    assert ann.post("/tables/a", act="rename", value="b").headers["location"] == "/tables/b"
    ann.get("/tables/b")
    ann.post("/tables/b", act="comment", value="it's <new>")
    assert "it&#39;s &lt;new&gt;" in ann.get("/tables/b").text
    assert ann.post("/tables/b", act="eat").status_code == 404
    assert ann.post("/tables/b", act="drop").headers["location"] == "/tables"
    assert "None yet" in ann.get("/tables").text
    assert ann.get("/tables/b").status_code == 404


def test_a_table_of_a_colleague_is_shown_with_its_price_first(service, ann):
    """Her page is another's price; once paid it is shown, without the forms that change it."""
    service.send("POST", "/v1/sql", json={"sql": f"CREATE TABLE saved.a AS {COUNTS}", "epsilon": 4})
    service.send("POST", "/v1/sql", json={"sql": f"CREATE VIEW saved.v AS {COUNTS}"})
    assert "A view is a question" in ann.get("/tables/v").text
    bob = Browser(service)
    bob.log_in(service.keys["bob"])
    link = bob.get("/tables/ann@sales.a").headers["location"]
    assert "of the budget, at most" in bob.get(link).text
    assert service.balance("bob@sales").spent == Cost()
    bob.post("/ask", sql='SELECT * FROM saved."ann@sales.a"')
    shown = bob.get("/tables/ann@sales.a").text
    assert re.search(r">\s*IN\s*<", shown)
    assert "Rename" not in shown
    assert bob.get("/tables/a").status_code == 404


def test_counts_of_rows_say_on_their_pages_what_they_are_not(ann):
    """With the price, above the answer, and above a statement computed from it, which is titled by its SQL."""
    rows = "SELECT country, COUNT(*) AS n FROM reads GROUP BY country"
    assert ROWS_NOTE in ann.get("/ask", params={"sql": rows}).text
    assert ROWS_NOTE[1:] in ann.get(ann.post("/ask", sql=rows, epsilon="1").headers["location"]).text
    shown = ann.get(ann.post("/ask", sql=f"SELECT n FROM ({rows})", epsilon="1").headers["location"]).text
    assert ROWS_NOTE[1:] in shown
    assert "<h1>SELECT n FROM (SELECT country, COUNT(*) AS n FROM reads GRO…</h1>" in shown
    assert ROWS_NOTE[1:] not in ann.get("/ask", params={"sql": COUNTS}).text


def test_statements_are_in_the_list_of_answers_and_have_names(service, ann, monkeypatch):
    """The last ones are listed once each, found by their words, named, and shown on the dashboard."""
    sql = f"SELECT country, n * 2 AS doubled FROM ({COUNTS})"
    for text in (sql, sql, sql.replace("* 2", "/ 2")):
        service.clock.pass_(seconds=1)
        ann.get("/ask")
        link = ann.post("/ask", sql=text, epsilon="1").headers["location"].removesuffix("&free=1")

    def listed(words=""):
        return re.findall(r'href="(/statements\?[^"]*)"', ann.get("/answers", params={"q": words}).text)

    assert html.unescape(listed()[0]) == link
    assert len(listed()) == 2
    id_ = re.search(r'action="/answers/(\w{64})"', ann.get(link).text)[1]
    assert ann.post(f"/answers/{id_}", title="The <half>").headers["location"] == link
    assert "<h1>The &lt;half&gt;</h1>" in ann.get(link).text
    assert len(listed("half")) == 1
    assert len(listed("doubled country")) == 2
    assert "No answer has all" in ann.get("/answers", params={"q": "minutes"}).text
    shown = ann.get("/dashboard").text
    assert "The &lt;half&gt;</a></h2>" in shown
    assert re.search(r">\s*IN\s*<", shown)
    bob = Browser(service)
    bob.log_in(service.keys["bob"])
    bob.get("/budget")
    assert bob.post(f"/answers/{id_}", title="x").status_code == 404
    monkeypatch.setattr(analyst, "_MAX_STATEMENTS", 2)
    for number in range(4):
        ann.get("/ask")
        ann.post("/ask", sql=sql.replace("* 2", f"* {number}"), epsilon="1")
    assert len(listed()) == 3
    assert len(listed("half")) == 1


def test_names_and_statements_of_two_at_once_are_both_kept(service, ann, monkeypatch):
    """Another writer of the account changes each list after the page has read what it shows."""
    ann.get("/ask")
    path = ann.post("/ask", sql=TOP, epsilon="1").headers["location"].partition("?")[0]
    other = {"sql": "SELECT 1", "epsilon": "", "release": [], "time": "2024-10-04T00:00:00Z"}
    change = BudgetStore.change_record

    def after_another(store, kind, name, made, action, *rest, **options):
        with monkeypatch.context() as patch:
            patch.setattr(BudgetStore, "change_record", change)
            entry = {"names": "another name", "statements": other}[kind]

            def added(text):
                return json.dumps({**json.loads(text or "{}"), "f" * 64: entry})

            change(store, kind, name, added, ACT)
        return change(store, kind, name, made, action, *rest, **options)

    monkeypatch.setattr(BudgetStore, "change_record", after_another)
    assert ann.post(path, title="a name").status_code == 303
    sql = "SELECT upper(country), COUNT(DISTINCT reader) AS n FROM reads GROUP BY country"
    assert ann.post("/ask", sql=sql, epsilon="1").status_code == 303
    assert set(json.loads(service.store.record("names", "ann@sales")).values()) == {"a name", "another name"}
    assert {kept["sql"] for kept in json.loads(service.store.record("statements", "ann@sales")).values()} == {
        sql,
        "SELECT 1",
    }


def _users_by(items, *articles):
    listed = ", ".join(f"'article {number}'" for number in articles)
    where = f"WHERE article IN ({listed}) " if articles else ""
    return f"SELECT {items}, COUNT(DISTINCT reader) FROM reads {where}GROUP BY {items}"


@pytest.mark.parametrize(
    ("sql", "bites"),
    [
        (_users_by("article"), True),
        (_users_by("article", 1, 2, 3, 4), True),
        (_users_by("article", 1, 2, 3), False),
        (_users_by("country"), False),
        (_users_by("article, country", 1), False),
        (_users_by("article, country", 1, 2), True),
    ],
)
def test_a_bound_on_groups_is_a_warning_only_where_there_are_more(services, sql, bites):
    """The catalog or the filter lists the labels; where a user cannot be in more groups, the details name the bound."""
    service = services(catalog=CATALOG.replace("rows_per_group = 3", "rows_per_group = 3\ngroups_per_user = 3"))
    ann = Browser(service)
    ann.log_in(service.keys["ann"])
    ann.get("/ask")
    shown = ann.get(ann.post("/ask", sql=sql, epsilon="2").headers["location"]).text
    assert shown.count("At most 3 items of each user are counted") == 1
    assert ('<p class="note">At most 3 items of each user are counted' in shown) is bites


def test_the_filter_of_an_old_answer_need_not_fit_the_catalog(service):
    """Its column may be gone, or of another type: then it lists no labels, and the page is shown."""
    for where in ("gone = 'x'", "day = 'x'"):
        query = parse_select(f"SELECT article, COUNT(DISTINCT reader) FROM reads WHERE {where} GROUP BY article")
        assert analyst._can_bite(query, {"groups_per_user": 3}, service.warehouse.catalog)
