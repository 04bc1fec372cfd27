"""Saved tables: what they are made of, who reads them, and that reading is free."""

from __future__ import annotations

import json
import os
import re
import threading
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction

import pyarrow as pa
import pytest

from discreet.accounting.convert import limit_for
from discreet.budget.errors import StoreUnavailable
from discreet.budget.ledger import canonical
from discreet.budget.model import Account
from tests.service.deployment import ACT, DELTA, table_of
from tests.service.trino_client import error, rows, run

BY_DAY = "SELECT article, day, COUNT(DISTINCT reader) AS n FROM reads WHERE day {} GROUP BY article, day"
COUNTS = "SELECT country, COUNT(DISTINCT reader) AS n FROM reads GROUP BY country"


def sent(service, sql, who="ann", key=None, **price):
    """POST /v1/sql."""
    return service.send("POST", "/v1/sql", who, key=key, json={"sql": sql, **price})


def answered(service, sql, who="ann", **price):
    """Return the rows of a statement, which must succeed."""
    reply = sent(service, sql, who, **price)
    assert reply.status_code == 200, reply.text
    return reply.json()["rows"]


def refused(service, sql, who="ann", status=422, **price):
    """Return the sentence of a statement, which must be refused, and charge nothing."""
    before = service.balance().spent
    reply = sent(service, sql, who, **price)
    assert reply.status_code == status, reply.text
    assert service.balance().spent == before
    return reply.json()["detail"]


def test_a_saved_table_is_charged_once_and_read_free_without_the_engine(service):
    """Filters, windows, joins with itself and intervals are all computed from the releases that it names."""
    (made,) = answered(service, f"CREATE TABLE saved.by_country AS {COUNTS}", epsilon=4)
    assert made == [3]
    spent = service.balance().spent
    asked = answered(service, f"{COUNTS} ORDER BY 1", epsilon=4)
    service.no_engine()
    assert answered(service, "SELECT * FROM saved.by_country ORDER BY country") == asked
    share = "SELECT country, n * 1.0 / SUM(n) OVER () AS share FROM saved.BY_COUNTRY WHERE country IN ('IN', 'US')"
    assert sum(part for _, part in answered(service, share)) == pytest.approx(1)
    ((n, low, high),) = answered(service, "SELECT n, LOW(n), HIGH(n) FROM saved.by_country WHERE country = 'IN'")
    assert low <= n <= high
    refused(service, "SELECT LOW(a.n - b.n) FROM saved.by_country a, saved.by_country b", status=400)  # one answer
    pairs = "SELECT a.country, a.n - b.n FROM saved.by_country a JOIN saved.by_country b USING (country)"
    assert all(difference == 0 for _, difference in answered(service, pairs))
    assert service.balance().spent == spent
    assert service.manager.verify()


def test_inserts_add_parts_whose_rows_are_read_together(service):
    """Each part is an answer; an INSERT of other columns is refused before it is charged."""
    for start, day in (("CREATE TABLE saved.daily AS", "05"), ("INSERT INTO saved.daily", "06")):
        answered(service, f"{start} " + BY_DAY.format(f"= DATE '2024-10-{day}'"), epsilon=2)
    spent = service.balance().spent
    found = answered(service, "SELECT day, SUM(n) AS n FROM saved.daily GROUP BY day ORDER BY day")
    assert [day for day, _ in found] == ["2024-10-05", "2024-10-06"]
    ends = answered(service, "SELECT n, LOW(n), HIGH(n) FROM saved.daily")
    assert all(low <= n <= high for n, low, high in ends)
    assert service.balance().spent == spent
    assert "other columns" in refused(service, f"INSERT INTO saved.daily {COUNTS}")
    assert "no saved table" in refused(service, f"INSERT INTO saved.other {COUNTS}")
    assert "in their order" in refused(service, f"INSERT INTO saved.daily (day, article, n) {BY_DAY.format('IS NULL')}")


def test_one_extreme_user_decides_no_part_of_a_table(services):
    """A table of days is answered with and without a user of all articles, many more and the ends of every type."""
    table = table_of(readers=True)
    days = sorted(set(table["day"].to_pylist()))
    articles = [
        "",
        "NaN",
        "own \0",
        "own" * 2**17,
        *(f"own {n}" for n in range(2_000)),
        *set(table["article"].to_pylist()),
    ]
    rows_ = [(2**63 - 1, article, "XX", 2**63 - 1, day, None) for day in days for article in articles]
    columns = [
        pa.array(column, type_) for column, type_ in zip(zip(*rows_, strict=True), table.schema.types, strict=True)
    ]
    extreme = pa.table(columns, table.schema)
    for name, users in (("with", pa.concat_tables([table, extreme])), ("without", table)):
        service = services(name, table=users)
        for day in days:
            start = "CREATE TABLE saved.daily AS" if day == days[0] else "INSERT INTO saved.daily"
            answered(service, f"{start} " + BY_DAY.format(f"= DATE '{day}'"), epsilon=1)
        found = answered(service, "SELECT DISTINCT article FROM saved.daily")
        assert sorted(found) == [["article 1"], ["article 2"], ["article 3"]]


def test_the_same_request_adds_a_part_once(service):
    """A client that sends it again with its key, as after a lost response, gets the same table, free of charge."""
    select = BY_DAY.format("= DATE '2024-10-05'")
    create, insert = f"CREATE TABLE saved.x AS {select}", f"INSERT INTO saved.x {select}"
    for sql, key in ((create, "a"), (create, "a"), (insert, "b"), (insert, "b")):
        assert sent(service, sql, key=key, epsilon=2).status_code == 200
    ((kinds, rows_),) = answered(service, "SELECT COUNT(DISTINCT article), COUNT(*) FROM saved.x")
    assert rows_ == 2 * kinds
    assert "already" in refused(service, create, epsilon=2)


def test_a_view_is_a_question_and_a_table_of_it_is_an_answer(service):
    """A view is charged like its text; a table that is made of it keeps its rows when the view changes."""
    answered(service, f"CREATE VIEW saved.now AS {COUNTS}", epsilon=4)
    assert not service.balance().spent.rho
    answered(service, "CREATE TABLE saved.then AS SELECT * FROM saved.now WHERE country <> 'XX'", epsilon=4)
    spent = service.balance().spent
    assert spent.rho
    first = answered(service, "SELECT * FROM saved.then ORDER BY 1")
    assert first == answered(service, "SELECT * FROM saved.now WHERE country <> 'XX' ORDER BY 1", epsilon=4)
    answered(service, "CREATE OR REPLACE VIEW saved.now AS SELECT 1 AS one")
    answered(service, "CREATE TABLE saved.later AS SELECT n FROM saved.then")
    answered(service, "DROP TABLE saved.then")
    assert sorted(answered(service, "SELECT n FROM saved.later")) == sorted([n] for _, n in first)
    assert service.balance().spent == spent
    assert "no saved table 'then'" in refused(service, "SELECT * FROM saved.then", status=400)


def test_labels_of_a_saved_table_list_the_items_of_a_query(service):
    """The list is computed first, free of charge, and is part of the text: a table keeps it, and EXPLAIN shows it."""
    top = "SELECT article FROM reads GROUP BY article ORDER BY COUNT(DISTINCT reader) DESC LIMIT 3"
    answered(service, f"CREATE TABLE saved.top AS {top}", epsilon=8)
    articles = sorted(article for (article,) in answered(service, "SELECT article FROM saved.top"))
    assert len(articles) == 3
    drill = "SELECT article, country, COUNT(DISTINCT reader) AS n FROM reads WHERE article IN ({}) GROUP BY 1, 2"
    by_list = drill.format("SELECT article FROM saved.top ORDER BY 1 DESC -- all\n")
    before = service.balance().spent
    written = drill.format(", ".join(f"'{article}'" for article in articles))
    explained, expected = (sent(service, f"EXPLAIN {sql}", epsilon=4).json()["rows"] for sql in (by_list, written))
    assert explained == expected
    assert explained[0][-1] == "9 listed labels"
    estimates = [
        service.send("POST", "/v1/sql/estimate", "ann", json={"sql": sql, "epsilon": 4}).json()
        for sql in (by_list, written)
    ]
    assert estimates[0] == estimates[1]
    assert service.balance().spent == before
    answered(service, f"CREATE TABLE saved.by_country AS {by_list}", epsilon=4)
    after = service.balance().spent
    assert after.rho > before.rho
    cells = answered(service, "SELECT article, country FROM saved.by_country ORDER BY 1, 2")
    assert cells == [[article, country] for article in articles for country in ("IN", "US", "XX")]
    assert answered(service, f"{written} ORDER BY 1, 2", epsilon=4) == answered(
        service, "SELECT * FROM saved.by_country ORDER BY 1, 2"
    )
    answered(service, "DROP TABLE saved.top")
    service.no_engine()
    assert len(answered(service, "SELECT n FROM saved.by_country")) == 9
    assert service.balance().spent == after
    assert service.manager.verify()


def test_sets_of_groups_are_one_table_with_the_price_of_their_queries(service):
    """Totals and cells are as released, each with its interval; the same totals alone are free afterwards."""
    select = (
        "SELECT country, article, COUNT(*) AS n, LOW(COUNT(*)) AS low, HIGH(COUNT(*)) AS high, "
        "GROUPING(country, article) AS g FROM reads GROUP BY ROLLUP(country, article)"
    )
    estimate = service.send("POST", "/v1/sql/estimate", "ann", json={"sql": select, "epsilon": 4}).json()
    assert [query["sql"].partition(" FROM ")[0].count(",") for query in estimate["queries"]] == [0, 1, 2]
    alone = "SELECT {0}COUNT(*) AS n FROM reads{1}"
    levels = [("", ""), ("country, ", " GROUP BY country"), ("country, article, ", " GROUP BY country, article")]
    costs = [
        service.send("POST", "/v1/sql/estimate", "ann", json={"sql": alone.format(*level), "epsilon": 4}).json()
        for level in levels
    ]
    assert estimate["worst_cost"]["rho"] == pytest.approx(sum(cost["worst_cost"]["rho"] for cost in costs))
    answered(service, f"CREATE TABLE saved.levels AS {select}", epsilon=4)
    spent = service.balance().spent
    service.no_engine()
    found = answered(service, "SELECT * FROM saved.levels")
    assert all(low <= n <= high for _, _, n, low, high, _ in found)
    assert sorted((country, n) for country, _, n, *_, g in found if g == 1) == sorted(
        map(tuple, answered(service, alone.format(*levels[1]), epsilon=4))
    )
    ((total, coverage),) = answered(
        service,
        "SELECT MAX(n) FILTER (WHERE g = 3), 1.0 * SUM(n) FILTER (WHERE g = 0) / MAX(n) FILTER (WHERE g = 3) "
        "FROM saved.levels",
    )
    assert [[total]] == answered(service, alone.format(*levels[0]), epsilon=4)
    assert 0.5 < coverage < 1.1
    ends = answered(service, "SELECT n, LOW(n), HIGH(n), country, g FROM saved.levels")
    assert sorted(row[:3] for row in ends) == sorted(row[2:5] for row in found)
    again = answered(service, "SELECT g, SUM(n) AS n FROM saved.levels GROUP BY ROLLUP(g) ORDER BY g NULLS LAST")
    assert again[-1] == [None, sum(n for _, n in again[:-1])]
    select = "SELECT country, sum(n), grouping(country) FROM saved.levels GROUP BY ROLLUP (country)"
    assert sorted(grouping for *_, grouping in rows(service, select)) == [0, 0, 0, 0, 1]
    assert service.balance().spent == spent


def test_a_list_in_a_filter_is_of_answers_that_are_paid_for(service):
    """Nothing is charged, and no list is computed from what another account paid for."""
    answered(service, f"CREATE TABLE saved.top AS {COUNTS}", epsilon=4)
    drill = "SELECT day, COUNT(DISTINCT reader) AS n FROM reads WHERE country {} GROUP BY day"
    for list_, why in (
        ("IN (SELECT country FROM reads GROUP BY country)", "save its statement first"),
        ("IN (SELECT table_name FROM information_schema.tables)", "save its statement first"),
        ("IN (SELECT country, n FROM saved.top)", "one column"),
        ("IN (SELECT n * 0.5 FROM saved.top)", "holds labels"),
        ("IN (SELECT country FROM saved.top WHERE n < -1000)", "empty"),
        ("NOT IN (SELECT NULLIF(country, 'XX') FROM saved.top)", "missing label"),
        ("= ANY (SELECT country FROM saved.top)", "IN .SELECT"),
        ("= (SELECT country FROM saved.top LIMIT 1)", "compared with|subquer"),
        (f"IN ({'SELECT 1 UNION ' * 3}SELECT i::INTEGER FROM unnest([1]) t(i))", "not allowed"),
    ):
        assert re.search(why, refused(service, drill.format(list_), status=400)), list_
    shared = drill.format('IN (SELECT country FROM saved."ann@sales.top")')
    assert "paid for" in refused(service, shared, "bob", status=400)
    action = {"published": True, "reason": "for all"}
    assert service.send("PUT", "/v1/admin/tables/ann@sales/top", "officer", json=action).status_code == 204
    explained = sent(service, f"EXPLAIN {shared}", "bob").json()["rows"]
    assert "'XX'" in explained[0][0]
    assert "paid for" in refused(service, f"CREATE TABLE saved.t AS {shared}", "bob", status=400)
    view = f"CREATE VIEW saved.v AS {drill.format('IN (SELECT country FROM saved.top)')}"
    assert "write its values" in refused(service, view)
    others = "SELECT COUNT(DISTINCT reader) AS n FROM reads WHERE country NOT IN (SELECT country FROM saved.top)"
    assert service.send("POST", "/v1/sql", "ann", json={"sql": others, "rehearse": True}).status_code == 200
    assert len(answered(service, others, epsilon=1)) == 1


def test_names_are_changed_and_checked(service):
    """Trino's rules for quotes and case; 63 characters; the schema is saved."""
    answered(service, f'CREATE TABLE "saved"."Select" AS {COUNTS}')
    answered(service, 'ALTER TABLE saved."select" RENAME TO saved.b')
    answered(service, "COMMENT ON TABLE saved.b IS 'it''s'")
    answered(service, f"CREATE TABLE IF NOT EXISTS saved.b AS {BY_DAY.format('IS NULL')}")
    answered(service, "DROP TABLE IF EXISTS saved.nothing")
    schema = "SELECT table_name, {} FROM information_schema.{} WHERE table_schema = 'saved' ORDER BY 2"
    assert answered(service, schema.format("table_type, table_comment", "tables")) == [["b", "BASE TABLE", "it's"]]
    columns = answered(service, schema.format("ordinal_position, column_name, data_type", "columns"))
    assert columns == [["b", 1, "country", "VARCHAR"], ["b", 2, "n", "BIGINT"]]
    listed = service.send("GET", "/v1/tables").json()["tables"]
    assert [(one["name"], one["kind"], one["comment"]) for one in listed] == [("b", "table", "it's")]
    for sql, status in (
        (f"CREATE TABLE saved.b AS {COUNTS}", 422),
        (f"CREATE VIEW saved.b AS {COUNTS}", 422),
        (f"CREATE TABLE main.c AS {COUNTS}", 422),
        (f'CREATE TABLE saved."a b" AS {COUNTS}', 422),
        (f"CREATE TABLE saved.{'c' * 64} AS {COUNTS}", 422),
        ("CREATE TABLE saved.c (n integer)", 400),
        ("CREATE TABLE saved.c AS SELECT country, country FROM saved.b", 422),
        ("CREATE TABLE saved.c AS EXPLAIN SELECT 1", 400),
        ("DROP VIEW saved.b", 422),
        ("DROP TABLE saved.c", 404),
        ("INSERT INTO saved.b VALUES ('x', 1) x", 400),
    ):
        refused(service, sql, status=status)
    elsewhere = {"sql": f"CREATE TABLE main.c AS {COUNTS}"}
    estimate = service.send("POST", "/v1/sql/estimate", "ann", json=elsewhere)
    assert (estimate.status_code, "schema saved" in estimate.json()["detail"]) == (422, True)


def test_a_table_that_was_saved_before_a_part_of_its_record_existed_can_be_changed(service):
    """What the text of a record lacks has its default, so that another text can stand for the same table."""
    answered(service, f"CREATE TABLE saved.old AS {COUNTS}", epsilon=1)
    record = json.loads(service.manager.store.record("saved-table", "ann@sales\told"))
    assert record.pop("comment") == ""
    service.manager.store.put_record("saved-table", "ann@sales\told", canonical(record), ACT)
    answered(service, "ALTER TABLE saved.old RENAME TO saved.new")
    assert len(answered(service, "SELECT * FROM saved.new")) == 3


def test_others_pay_once_or_read_what_an_officer_published(service):
    """An account that was granted the columns names the owner; the price is its worst case, shown first."""
    answered(service, f"CREATE TABLE saved.top AS {COUNTS}", epsilon=4)
    answered(service, f"CREATE VIEW saved.view AS {COUNTS}", epsilon=4)
    named = 'SELECT SUM(n) FROM saved."ann@sales.top"'
    assert "no saved table" in refused(service, "SELECT n FROM saved.top", "bob", 400)
    assert "no saved table" in refused(service, 'SELECT n FROM saved."ann@sales.view"', "bob", 400)
    price = service.send("POST", "/v1/sql/estimate", "bob", json={"sql": named}).json()["worst_cost"]
    assert price["rho"] > 0
    answered(service, named, "bob")
    paid = service.balance("bob@sales").spent
    assert 0 < float(paid.rho) <= price["rho"]
    assert answered(service, named, "bob") == answered(service, "SELECT SUM(n) FROM saved.top")
    assert service.balance("bob@sales").spent == paid
    assert service.manager.verify()


def test_who_pays_for_a_table_of_another_account_and_who_cannot_is_written_down(service):
    """In the log, what it cost; in the ledger, which columns a refused account asked for, without the constants."""
    select = COUNTS.replace("GROUP", "WHERE country = 'IN' GROUP")
    for name, epsilon in (("top", 4), ("other", 3)):
        answered(service, f"CREATE TABLE saved.{name} AS {select}", epsilon=epsilon)
    computed = service.events("released")[0]
    answered(service, 'SELECT n FROM saved."ann@sales.top"', "bob")
    paid = service.events("released")[-1]
    assert paid.pop("request_id") != computed.pop("request_id")
    computed.pop("reservation")
    assert paid == computed | {"account": "bob@sales", "source": "store"}
    service.manager.store.charge("bob@sales", replace(service.balance("bob@sales").remaining, delta=0), ACT)
    reply = sent(service, 'SELECT n FROM saved."ann@sales.other"', "bob")
    assert (reply.status_code, reply.json()["type"]) == (403, "/problems/budget-short")
    (line,) = [line.body for line in service.store.lines(0, 0) if "\trefuse\t" in line.body]
    measure = {"column": "reader", "kind": "users"}
    question = {"dataset": "reads", "items": ["country"], "k": None, "measure": measure, "where": ["country"]}
    assert f'"question":{canonical(question)}' in line


def test_a_published_table_is_free_for_the_accounts_below_the_parent_of_its_owner(service):
    """The ledger says who decided; without it the price is asked again."""
    answered(service, f"CREATE TABLE saved.top AS {COUNTS}", epsilon=4)
    path = "/v1/admin/tables/ann@sales/top"
    reply = service.send("PUT", path, "officer", json={"reason": "for all", "published": True})
    assert reply.status_code == 204, reply.text
    named = 'SELECT n FROM saved."ann@sales.top"'
    assert len(answered(service, named, "bob")) == 3
    assert not service.balance("bob@sales").spent.rho
    assert "CREATE VIEW" in refused(service, f"CREATE TABLE saved.mine AS {named}", "bob")
    (shown,) = service.send("GET", "/v1/tables", "bob").json()["tables"]
    assert (shown["name"], shown["published"]) == ("ann@sales.top", True)
    service.send("PUT", path, "officer", json={"reason": "no more", "published": False})
    assert service.send("POST", "/v1/sql/estimate", "bob", json={"sql": named}).json()["worst_cost"]["rho"] > 0


def test_a_table_is_gone_for_an_account_whose_grant_was_withdrawn(service):
    """It comes back with the grant."""
    answered(service, f"CREATE TABLE saved.top AS {COUNTS}", epsilon=4)
    service.manager.store.put_record("grant", "sales\treads", '{"columns":["article"]}', ACT)
    service.clock.pass_(seconds=2)
    refused(service, "SELECT n FROM saved.top", status=404)
    service.manager.store.put_record("grant", "sales\treads", '{"columns":null}', ACT)
    service.clock.pass_(seconds=2)
    assert len(answered(service, "SELECT n FROM saved.top")) == 3


def test_one_of_two_creators_wins(service):
    """The other is refused, as the table is there; simultaneous inserts are all kept."""
    replies = []

    def create(sql):
        replies.append(sent(service, sql, epsilon=1))

    for statement in (f"CREATE TABLE saved.x AS {COUNTS}", f"INSERT INTO saved.x {COUNTS}"):
        threads = [threading.Thread(target=create, args=(statement,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(reply.status_code for reply in replies[:3]) == [200, 422, 422]
    assert [reply.status_code for reply in replies[3:]] == [200] * 3
    assert answered(service, "SELECT COUNT(*) FROM saved.x") == [[12]]


def test_the_trino_protocol_makes_and_shows_saved_tables(service):
    """The statements that dbt sends; SHOW, DESCRIBE and the tables of JDBC know them."""
    made = run(service, f'create table "discreet"."saved"."x__dbt_tmp" as (\n {COUNTS}\n);', session={"epsilon": 4})
    assert (made["updateType"], made["updateCount"], made["data"]) == ("CREATE TABLE", 3, [[3]])
    run(service, "alter table discreet.saved.x__dbt_tmp rename to discreet.saved.x")
    run(
        service,
        "create or replace view discreet.saved.v security definer as select * from x where n > 5",
        schema="saved",
    )
    assert rows(service, "SHOW TABLES FROM saved") == [["v"], ["x"]]
    assert [row[:2] for row in rows(service, "DESCRIBE saved.x")] == [["country", "varchar"], ["n", "bigint"]]
    assert rows(service, "SHOW COLUMNS FROM saved.X LIKE 'c%'")[0][0] == "country"
    assert rows(service, "SHOW COLUMNS FROM saved.x LIKE 'z%'") == []
    columns = "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = 'saved' ORDER BY 1"
    assert rows(service, f"{columns} LIMIT 2") == [["country", "varchar"], ["country", "varchar"]]
    sums = rows(service, "SELECT SUM(n), LOW(SUM(n)), HIGH(SUM(n)) FROM saved.x WHERE country <> 'XX'")
    assert sums[0][1] < sums[0][0] < sums[0][2]
    for sql in ("DESCRIBE saved.missing", "SHOW COLUMNS FROM discreet.saved.missing", "DESC missing"):
        missing = error(service, sql, schema="saved")
        assert missing["errorName"] == "TABLE_NOT_FOUND"
        assert "no saved table 'missing'" in missing["message"]
    listed = "SELECT table_name, table_type FROM system.jdbc.tables WHERE table_schem = 'saved' ORDER BY 1"
    kinds = rows(service, listed)
    assert kinds == [["v", "VIEW"], ["x", "TABLE"]]
    assert len(rows(service, "SELECT country, n FROM v", schema="saved")) == 2
    assert error(service, "create table saved.x as select 1 as one")["errorName"] == "GENERIC_USER_ERROR"
    assert error(service, "drop table saved.y")["errorName"] == "TABLE_NOT_FOUND"


def test_what_was_charged_before_a_failure_is_free_when_the_statement_is_sent_again(service, monkeypatch):
    """The store fails between the charge and the save: nothing is saved, and the second time nothing is charged."""
    create = f"CREATE TABLE saved.x AS {COUNTS}"
    put = type(service.manager.store).change_record

    def fail(*_, **__):
        raise StoreUnavailable("as if the process was killed")

    monkeypatch.setattr(type(service.manager.store), "change_record", fail)
    assert sent(service, create, epsilon=4).status_code == 503
    spent = service.balance().spent
    assert spent.rho
    monkeypatch.setattr(type(service.manager.store), "change_record", put)
    assert "no saved table" in refused(service, "SELECT * FROM saved.x", status=400)
    service.no_engine()
    assert answered(service, create, epsilon=4) == [[3]]
    assert service.balance().spent == spent


def test_prune_and_backup_keep_what_a_table_names(deployment, tmp_path):
    """Lines of the ledger are removed; the releases stay, in a copy of the store too."""
    with deployment.open() as service:
        answered(service, f"CREATE TABLE saved.x AS {COUNTS}", epsilon=4)
        first = answered(service, "SELECT * FROM saved.x ORDER BY 1")
        service.clock.pass_(days=40)
        before_us = deployment.now_us() - 2 * 86_400_000_000
        assert service.manager.prune(before_us, ACT, list) > 5
        assert answered(service, "SELECT * FROM saved.x ORDER BY 1") == first
    copy = deployment.copy_to(tmp_path / "copy")
    copy.clock = deployment.clock
    with copy.open() as service:
        service.no_engine()
        assert answered(service, "SELECT * FROM saved.x ORDER BY 1") == first
        assert service.manager.verify()


def test_an_insert_a_day_for_a_month_is_charged_once_a_day(services):
    """The recipe of docs/service/saved-tables.md: a dashboard over the table is filtered free of charge."""
    rows_ = [(reader, day) for day in range(30) for reader in range(1_000)]
    days = pa.array([20_000 + day for _, day in rows_], pa.int32()).view(pa.date32())
    readers = pa.array([reader for reader, _ in rows_], pa.int64())
    text = pa.array(["IN"] * len(rows_), pa.string())
    columns = {"reader": readers, "article": text, "country": text, "minutes": readers, "day": days, "hidden": text}
    service = services(table=pa.table(columns), accounts=[Account.of_epsilon("ann@sales", 60.0, DELTA)])
    select = (
        "SELECT day, country, COUNT(DISTINCT reader) AS n FROM reads WHERE day = current_date GROUP BY day, country"
    )
    charges = []
    service.clock.now = datetime(2024, 10, 4, 6, tzinfo=UTC)
    for day in range(30):
        before = service.balance().spent.rho
        statement = f"INSERT INTO saved.daily {select}" if day else f"CREATE TABLE saved.daily AS {select}"
        answered(service, statement, epsilon=2)
        charges.append(service.balance().spent.rho - before)
        service.clock.pass_(days=1)
    assert min(charges) > 0
    assert max(charges) <= limit_for(2, Fraction(1, 10**8)).rho
    spent = service.balance().spent
    service.no_engine()
    shown = answered(service, "SELECT day, SUM(n) FROM saved.daily GROUP BY day ORDER BY day")
    assert len(shown) == 30
    for filtered in range(200 if os.environ.get("DISCREET_EXAMPLES") else 20):
        where = f"WHERE day >= DATE '2024-10-{filtered % 28 + 4:02}' AND n > {filtered}"
        answered(service, f"SELECT country, SUM(n) AS n, COUNT(*) FROM saved.daily {where} GROUP BY country")
    assert service.balance().spent == spent


def test_a_view_of_a_table_that_was_dropped_says_which_is_gone(service):
    """The view stays, and answers again when there is a table of that name."""
    answered(service, f"CREATE TABLE saved.base AS {COUNTS}", epsilon=4)
    answered(service, "CREATE VIEW saved.large AS SELECT country FROM saved.base WHERE n > 5")
    answered(service, "DROP TABLE saved.base")
    assert "no saved table 'base'" in refused(service, "SELECT * FROM saved.large", status=400)
    answered(service, f"CREATE TABLE saved.base AS {COUNTS}", epsilon=4)
    assert answered(service, "SELECT * FROM saved.large")
