"""Running counts of a service: one charge, refreshed by maintenance, read free by accounts below the payer."""

from __future__ import annotations

import html
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest

from discreet.budget.model import Account, Calendar, Forever, Sliding
from discreet.cli.query import budget_as_text
from discreet.errors import EngineError
from discreet.release.keys import DerivedKeys
from discreet.service.answering.running import MAX_TRIES, STREAM, Streams, stored_stream
from discreet.values import Cost
from discreet.wire.queries import BudgetReport
from tests.service.browser import Browser
from tests.service.deployment import ACT, CATALOG, DELTA, put_grant, put_key
from tests.service.trino_client import rows

from .test_saved_tables import answered, sent

FIRST = date(2026, 11, 1)
STREAM_TABLE = """
[datasets.visits]
source = "visits.parquet"
user = "reader"
columns.article = { type = "text", group = true, filter = true }
columns.loaded = { type = "date", filter = true }

[datasets.visits.running.by_article]
items = ["article"]
column = "loaded"
first = "2026-11-01"
periods = 28
groups_per_user = 2
epsilon = 4
delta = 1e-8
account = "board"
"""


def visits(days):
    """Return rows of so many days: on each, 400 new readers of article 1, 200 of article 2 and 3 of article 3."""
    rows = [
        (1_000 * day + reader, f"article {n}", FIRST + timedelta(day))
        for day in range(days)
        for n, readers in ((1, 400), (2, 200), (3, 3))
        for reader in range(readers)
    ]
    return pa.table(
        {
            "reader": pa.array([reader for reader, *_ in rows], pa.int64()),
            "article": pa.array([article for _, article, _ in rows], pa.string()),
            "loaded": pa.array([day for *_, day in rows], pa.date32()),
        }
    )


def load(service, days):
    """Replace the file by one with the rows of so many days, at noon of the next day."""
    pyarrow.parquet.write_table(visits(days), service.folder / "visits.parquet")
    service.clock.now = datetime(2026, 11, 1 + days, 12, tzinfo=UTC)


def board(period=None, epsilon=10.0, parent=None):
    """Return the account that pays, and ann's below it."""
    root = Account.of_epsilon("board", epsilon, DELTA, parent, period or Forever())
    return [root, Account.of_epsilon("ann@board", 1.0, DELTA, "board", Sliding(30))]


@pytest.fixture
def service(services):
    """Return a service with a stream of one day, whose maintenance a test calls."""
    opened = services(catalog=CATALOG + STREAM_TABLE, accounts=board(), granted={"visits": None})
    opened.store.create(Account.of_epsilon("cyd@other", 10.0, DELTA), ACT)
    put_grant(opened.store, "cyd@other", "visits")
    for who, account in (("cyd", "cyd@other"), ("board", "board")):
        opened.keys[who] = put_key(opened.store, account, ("analyst",))
    load(opened, 1)
    return opened


def spent(service):
    """Return what the payer and ann have spent."""
    return [service.manager.get(account).balance.spent for account in ("board", "ann@board")]


def refresh(service):
    """Do what maintenance does every ten seconds."""
    service.maintenance.refresh_streams()


def record(service):
    """Return the record of the stream, or None."""
    return stored_stream(service.store, "by_article")


def streams_of(service, failures=None):
    """Return streams as another process of the service has them."""
    failed = pytest.fail if failures is None else failures.append
    secret = DerivedKeys((service.folder / "noise.key").read_bytes()).running
    return Streams(service.manager, service.warehouse, secret, service.clock, failed)


def test_a_stream_is_charged_once_and_read_free(service):
    """Maintenance answers each period when it is complete, missed ones too; accounts below the payer read them."""
    refresh(service)
    first = spent(service)
    assert first == [record(service).cost, Cost()]
    assert first[0].rho > 0
    for day in (2, 5):
        load(service, day)
        refresh(service)
        refresh(service)
    service.warehouse.engine("visits").head = None  # nothing reads from here on
    rows = answered(service, "SELECT day, article, users, LOW(users), HIGH(users) FROM saved.by_article")
    assert {day for day, *_ in rows} == {f"2026-11-0{n}" for n in range(1, 6)}
    for day, article, users, low, high in rows:
        expected = int(day[-2:]) * {"article 1": 400, "article 2": 200}[article]
        assert low <= users <= high
        assert abs(users - expected) < 25
    last = "SELECT article FROM saved.by_article WHERE day = DATE '2026-11-05' ORDER BY users DESC"
    assert answered(service, last) == [["article 1"], ["article 2"]]
    explained = service.send("POST", "/v1/sql", json={"sql": f"EXPLAIN {last}"}).json()
    names = [column["name"] for column in explained["columns"]]
    plans = [dict(zip(names, row, strict=True)) for row in explained["rows"]]
    shown = {(plan["mechanism"], plan["epsilon"], plan["rho"], plan["paid"]) for plan in plans}
    assert shown == {("running", 4.0, 0.0, "board paid epsilon 4 for all periods, until 2026-11-28")}
    assert spent(service) == first
    assert service.manager.verify()


def test_only_accounts_below_the_payer_read_a_stream(service):
    """Another root has paid nothing, so its accounts are refused, also a table that the payer made of it."""
    refresh(service)
    assert [table["name"] for table in service.get("/v1/tables").json()["tables"]] == ["by_article"]
    assert service.get("/v1/tables", "cyd").json()["tables"] == []
    assert answered(service, "CREATE TABLE saved.copy AS SELECT * FROM saved.by_article", "board") == [[2]]
    assert answered(service, "CREATE TABLE saved.second AS SELECT * FROM saved.copy", "board") == [[2]]
    for name in ("by_article", "board.by_article", "board.copy", "board.second"):
        replies = [sent(service, f'SELECT * FROM saved."{named}"', "cyd") for named in (name, "board.none")]
        assert [reply.status_code for reply in replies] == [400, 400]
        details = [reply.json()["detail"] for reply in replies]
        assert details[0].replace(name, "board.none") == details[1]
        assert service.get(f"/v1/tables/{name}", "cyd").status_code == 404
        assert sent(service, f'EXPLAIN SELECT * FROM saved."{name}"', "cyd").status_code == 400
    (release,) = record(service).releases.values()
    assert service.get(f"/v1/releases/{release}", "cyd").status_code == 404
    service.revoke("board", "visits")
    service.clock.pass_(minutes=1)
    assert sent(service, "SELECT * FROM saved.by_article").status_code in (400, 404)
    assert spent(service)[1] == service.balance("cyd@other").spent == Cost()


def test_accounts_below_the_payer_are_told_what_they_read_besides(service):
    """Their limits and guarantees do not cover running counts: the API, both pages and the command line say so."""

    def besides(who):
        return service.get("/v1/budget", who).json()["running"]

    assert besides("ann") == []
    refresh(service)
    assert besides("ann") == [{"name": "by_article", "account": "board", "epsilon": 4.0}]
    assert besides("board") == besides("cyd") == []
    detail = service.get("/v1/admin/accounts/ann@board", "officer").json()
    assert detail["running"] == besides("ann")
    assert detail["epsilon_spent"] == 0
    shown = budget_as_text(BudgetReport.model_validate(service.get("/v1/budget").json()))
    assert "besides     running counts by_article of board, epsilon 4: not covered" in shown
    sentence = "by_article of board (ε 4)"
    for who, own, others in (
        ("ann", "/budget", []),
        ("officer", "/officer/accounts/ann@board", ["board", "cyd@other"]),
    ):
        browser = Browser(service)
        assert browser.log_in(service.keys[who]).status_code == 303
        assert sentence in html.unescape(browser.get(own).text)
        for other in others:
            assert "can be read besides" not in browser.get(f"/officer/accounts/{other}").text


def test_a_stream_keeps_its_name_and_is_changed_by_nobody(service):
    """An account cannot drop it, nor make a table of its name; views over it are allowed, and free."""
    refresh(service)
    assert "running counts" in sent(service, "CREATE TABLE saved.by_article AS SELECT 1").json()["detail"]
    assert "no saved table" in sent(service, "DROP TABLE saved.by_article").json()["detail"]
    assert "CREATE VIEW" in sent(service, "CREATE TABLE saved.x AS SELECT * FROM saved.by_article").json()["detail"]
    answered(service, "CREATE VIEW saved.x AS SELECT article, users FROM saved.by_article")
    assert len(answered(service, "SELECT * FROM saved.x")) == 2
    assert spent(service)[1] == Cost()


@pytest.mark.parametrize(
    ("accounts", "message"),
    [
        (board(Sliding(30)), "board has a budget that comes back"),
        (board(Calendar("month")), "board has a budget that comes back"),
        (board(epsilon=1.0), "could cost more than account 'board' has left"),
        ([Account.of_epsilon("top", 10.0, DELTA), *board(parent="top")], "board has a parent"),
        ([Account("board", Cost(Fraction(9), DELTA / 2), DELTA, mode="observe"), board()[1]], "board only observes"),
        ([replace(board()[0], suspended=True), board()[1]], "board is suspended"),
    ],
)
def test_an_account_that_cannot_pay_begins_no_stream(services, accounts, message):
    """Its period, its parent or its limit is wrong: nothing is charged or stored, and nothing is read."""
    service = services(catalog=CATALOG + STREAM_TABLE, accounts=accounts, granted={"visits": None})
    load(service, 1)
    refresh(service)
    assert message in service.streams.problems["by_article"]
    assert spent(service) == [Cost(), Cost()]
    assert record(service) is None
    assert service.events("failed")


def test_a_stream_that_is_declared_otherwise_is_tried_at_once(services):
    """An officer who corrects the catalog does not wait for the pause after a failure."""
    service = services(catalog=CATALOG + STREAM_TABLE, accounts=board(Sliding(30)), granted={"visits": None})
    service.store.create(Account.of_epsilon("council", 10.0, DELTA, None, Forever()), ACT)
    load(service, 1)
    refresh(service)
    assert "board has a budget that comes back" in service.streams.problems["by_article"]
    corrected = CATALOG + STREAM_TABLE.replace('account = "board"', 'account = "council"')
    (service.folder / "catalog.toml").write_text(corrected)
    assert service.act("POST", "/v1/admin/catalog").status_code == 204
    service.maintenance.refresh_sources()
    refresh(service)
    assert service.streams.problems == {}
    assert record(service).account == "council"


def test_the_price_of_a_stream_is_part_of_what_its_account_spent(service):
    """Beside the accounts that spent most, though no query was charged for it."""
    refresh(service)
    (board,) = service.get("/v1/admin/activity", "officer").json()["spent"]
    assert (board["account"], board["queries"], board["question"]) == ("board", 1, None)
    assert board["charged"]["rho"] == pytest.approx(float(record(service).cost.rho))
    browser = Browser(service)
    assert browser.log_in(service.keys["officer"]).status_code == 303
    assert "Running counts, or charges by hand" in browser.get("/officer").text


def test_the_page_of_an_account_says_when_its_stream_begins(services):
    """Of one whose first period is not complete, and of an account that is opened late, until it can pay."""
    service = services(catalog=CATALOG + STREAM_TABLE, accounts=[], granted={"visits": None})
    said = "Begins at 2026-11-02 01:00 UTC, when its first period is complete, or as soon as this account can pay"
    load(service, 4)
    refresh(service)
    service.store.create(board(epsilon=1.0)[0], ACT)
    browser = Browser(service)
    assert browser.log_in(service.keys["officer"]).status_code == 303
    page = browser.get("/officer/accounts/board").text
    assert said in page
    assert "not begun" in page
    (listed,) = service.get("/v1/admin/running", "officer").json()["streams"]
    assert (listed["begins"], listed["until"]) == ("2026-11-02 01:00", None)
    assert service.act("PATCH", "/v1/admin/accounts/board", limit={"epsilon": 12, "delta": "1e-6"}).status_code == 200
    service.clock.now += timedelta(minutes=16)
    refresh(service)
    assert list(record(service).releases) == [f"DATE '2026-11-0{day}'" for day in range(1, 5)]
    page = browser.get("/officer/accounts/board").text
    assert "Begins at" not in page
    assert service.get("/v1/admin/running", "officer").json()["streams"][0]["begins"] is None


def test_a_stream_without_a_start_says_so(services):
    """Its problem is listed, and not when it begins."""
    wrong = STREAM_TABLE.replace('"2026-11-01"', '"soon"')
    service = services(catalog=CATALOG + wrong, accounts=board(), granted={"visits": None})
    load(service, 1)
    refresh(service)
    (listed,) = service.get("/v1/admin/running", "officer").json()["streams"]
    assert listed["begins"] is None
    assert "the first period is a date" in listed["problem"]


def test_columns_that_no_query_may_name_begin_no_stream(services):
    """The table of a stream is read like every other, by the grants of its columns."""
    catalog = CATALOG + STREAM_TABLE.replace("group = true, filter = true", "filter = true")
    service = services(catalog=catalog, accounts=board(), granted={"visits": None})
    load(service, 1)
    refresh(service)
    assert "article" in service.streams.problems["by_article"]
    assert record(service) is None
    assert spent(service) == [Cost(), Cost()]


@pytest.mark.parametrize("change", [{"period": {"kind": "sliding", "days": 30}}, {"mode": "observe"}])
def test_the_payer_keeps_its_period(service, change):
    """A budget that comes back would give back the price of counts that stay published, by whatever it is altered."""
    refresh(service)
    before = service.store.account("board")
    limit = {"epsilon": 12, "delta": "1e-6"}
    reply = service.act("PATCH", "/v1/admin/accounts/board", limit=limit, **change)
    assert reply.status_code == 422
    assert "paid for running counts by_article" in reply.json()["detail"]
    rows = [{"account": "new", "limit": limit}, {"account": "board", "limit": limit, **change}]
    for dry_run in (True, False):
        reply = service.act("POST", "/v1/admin/import", people=rows, dry_run=dry_run)
        assert reply.status_code == 422
        assert "row 2: account board paid for running counts by_article" in reply.json()["detail"]
    assert service.store.account("board") == before
    assert [account.id for account in service.store.accounts()].count("new") == 0


def test_what_else_changes_the_payer_leaves_its_period(service):
    """Its limit may change, and accounts below it in all; its suspension ends as it was."""
    refresh(service)
    before = service.store.account("board")
    path = "/v1/admin/accounts/board"
    assert service.act("PATCH", path, limit={"epsilon": 12, "delta": "1e-6"}, period={"kind": "forever"}).is_success
    rows = [{"account": "board", "limit": {"epsilon": 11, "delta": "1e-6"}, "mode": "enforce"}]
    rows += [{"account": "ann@board", "period": {"kind": "calendar", "unit": "month"}, "mode": "observe"}]
    assert service.act("POST", "/v1/admin/import", people=rows).is_success
    parent = [{"account": "board", "parent": "cyd@other"}]
    assert "a parent never changes" in service.act("POST", "/v1/admin/import", people=parent).json()["detail"]
    for action in ("suspend", "lift"):
        assert service.act("POST", f"{path}/{action}").is_success
        after = service.store.account("board")
        assert (after.period, after.mode, after.parent) == (before.period, before.mode, before.parent)


@pytest.mark.parametrize("change", ["suspended", "split"])
def test_a_payer_that_changed_publishes_nothing_more(service, change):
    """Suspended or split over data centres, it answers no further period; what was answered is still read."""
    refresh(service)
    if change == "suspended":
        assert service.act("POST", "/v1/admin/accounts/board/suspend").is_success
    else:
        assert service.store.shares.announce("dublin", "board", 2) is not None
    load(service, 2)
    refresh(service)
    message = {"suspended": "board is suspended", "split": "board is split over data centres"}[change]
    assert message in service.streams.problems["by_article"]
    assert len(record(service).releases) == 1
    assert len(answered(service, "SELECT * FROM saved.by_article")) == 2


def test_an_account_that_changes_while_a_stream_begins_pays_nothing(service, monkeypatch):
    """It is checked again in the transaction that charges it."""
    account = service.store.account("board")
    service.store.alter(replace(account, period=Sliding(30)), ACT)
    found = service.store.account
    monkeypatch.setattr(service.store, "account", lambda name: account if name == "board" else found(name))
    refresh(service)
    monkeypatch.undo()
    assert "a budget that comes back" in service.streams.problems["by_article"]
    assert spent(service) == [Cost(), Cost()]
    assert record(service) is None


def test_rows_that_changed_end_the_answers_until_an_officer_allows_it(service):
    """The same noise on other rows reveals them: nothing is published, until erased users are announced."""
    refresh(service)
    before = spent(service)
    load(service, 2)
    rows = visits(2)
    pyarrow.parquet.write_table(rows.filter(pc.not_equal(rows["reader"], 5)), service.folder / "visits.parquet")
    refresh(service)
    assert "were added, changed or deleted" in service.streams.problems["by_article"]
    assert len(record(service).releases) == 1
    (listed,) = service.get("/v1/admin/running", "officer").json()["streams"]
    assert (listed["account"], listed["periods"], listed["until"]) == ("board", 1, "2026-11-28")
    assert "were added" in listed["problem"]
    browser = Browser(service)
    assert browser.log_in(service.keys["officer"]).status_code == 303
    page = browser.get("/officer/accounts/board").text
    assert all(text in page for text in ("by_article", "2026-11-28", "were added, changed or deleted"))
    assert service.act("POST", "/v1/admin/running/none/erased").status_code == 404
    assert service.act("POST", "/v1/admin/running/by_article/erased").status_code == 204
    refresh(service)
    assert len(record(service).releases) == 2
    assert not record(service).erased
    assert spent(service) == before
    assert service.streams.problems == {}


def test_a_period_is_tried_three_times_and_then_missed(service):
    """A failure waits a quarter of an hour; the next period is answered, and the missed one never."""
    refresh(service)
    load(service, 2)
    service.maintenance.refresh_sources()
    engine = service.warehouse.engine("visits")
    asked = []

    def fail(*_, **__):
        asked.append(None)
        raise EngineError("it is down")

    head, engine.head = engine.head, fail
    for _ in range(5):
        refresh(service)
        refresh(service)
        service.clock.pass_(minutes=15)
    assert len(asked) == 3
    engine.head = head
    load(service, 3)
    refresh(service)
    assert list(record(service).releases) == ["DATE '2026-11-01'", "DATE '2026-11-03'"]


def test_a_day_waits_for_the_data_of_its_schedule(services):
    """Rows of a day that are loaded by four in the morning are not missed at one."""
    catalog = CATALOG + STREAM_TABLE.replace(
        'user = "reader"', 'user = "reader"\ndata_version = { schedule = "daily", at = "04:00", zone = "UTC" }'
    )
    service = services(catalog=catalog, accounts=board(), granted={"visits": None})
    load(service, 1)
    service.clock.now = datetime(2026, 11, 2, 3, 59, tzinfo=UTC)
    refresh(service)
    assert record(service) is None
    service.clock.pass_(minutes=1)
    refresh(service)
    assert len(record(service).releases) == 1


def test_two_processes_answer_a_period_once_and_in_order(service, monkeypatch):
    """The record is replaced only as it was read: an older process publishes nothing after a newer one."""
    refresh(service)
    load(service, 3)
    service.maintenance.refresh_sources()
    failures = []
    late = streams_of(service, failures)
    stale = record(service)
    streams_of(service).refresh()
    answers = record(service)
    assert len(answers.releases) == 3
    monkeypatch.setattr("discreet.service.answering.running.stored_stream", lambda *_: stale)
    late.refresh()  # day 2 is there; day 3 too
    assert record(service) == answers
    load(service, 4)
    service.maintenance.refresh_sources()
    late._tries["by_article", 2] = late._tries["by_article", 3] = MAX_TRIES
    late._paused.clear()
    late.refresh()  # day 4 from the list of day 1
    assert "at the same time" in str(failures[-1])
    assert record(service) == answers
    monkeypatch.undo()
    streams_of(service).refresh()
    assert len(record(service).releases) == 4


def test_another_declaration_of_a_stream_is_refused(service):
    """Nothing of it changes while it goes on; the answers stay readable."""
    refresh(service)
    before = spent(service)
    text = (service.folder / "catalog.toml").read_text()
    (service.folder / "catalog.toml").write_text(text.replace("periods = 28", "periods = 60"))
    service.opened.catalog.request()
    load(service, 2)
    refresh(service)
    assert "declared with periods = 28, not 60" in service.streams.problems["by_article"]
    assert len(answered(service, "SELECT * FROM saved.by_article")) == 2
    assert spent(service) == before


def test_the_page_of_a_stream_has_a_line_for_each_item_with_its_band(service, monkeypatch):
    """And says what it cost until when; of many items the table has the last period, and a file has all rows."""
    for day in (1, 2, 3):
        load(service, day)
        refresh(service)
    browser = Browser(service)
    assert browser.log_in(service.keys["ann"]).status_code == 303
    assert "by_article" in browser.get("/tables").text
    page = browser.get("/tables/by_article").text
    assert page.count('class="band ') == page.count('class="line ') == 2
    said = "counted from 2026-11-01 on, by period: the last answered one is 2026-11-03"
    for text in ("article 1", "article 2", "running counts", said, "2026-11-28"):
        assert text in page
    assert "Drop" not in page
    assert "Items are missing until they have enough users to be named." in page
    assert "2026-11-02" in page
    monkeypatch.setattr("discreet.service.doors.pages.charts.MAX_PIVOTED", 1)
    page = browser.get("/tables/by_article").text
    assert "2026-11-03 · article 1" in page
    assert "Of 2026-11-03, largest first. The files have all periods and items." in page
    assert "2026-11-02 ·" not in page
    assert len(browser.get("/tables/by_article?as=csv").text.splitlines()) == 7
    about = service.get("/v1/tables/by_article").json()
    smallest = about["running"]["smallest"]
    assert 20 < smallest < 200  # an article of 200 users was named, one of 9 was not
    assert about["running"] == {
        "epsilon": 4.0,
        "first": "2026-11-01",
        "answered": "2026-11-03",
        "until": "2026-11-28",
        "groups_per_user": 2,
        "kept_share": None,
        "smallest": smallest,
    }
    assert "A user counts for 2 items at most, the first ones; counts are not corrected for others." in page
    assert f"An item appears from about {smallest} users on." in page
    assert about["paid"]["rho"] == pytest.approx(float(record(service).cost.rho))


def test_tools_find_a_stream_over_the_trino_protocol(service):
    """It is listed and described as a table of the schema saved, by its payer's accounts only."""
    refresh(service)
    assert rows(service, "SHOW TABLES FROM saved") == [["by_article"]]
    described = [row[:2] for row in rows(service, "DESCRIBE saved.by_article")]
    assert described == [["day", "date"], ["article", "varchar"], ["users", "bigint"]]
    latest = "SELECT article FROM by_article WHERE day = (SELECT max(day) FROM by_article) ORDER BY users DESC"
    assert rows(service, latest, schema="saved") == [["article 1"], ["article 2"]]
    assert rows(service, "SHOW TABLES FROM saved", "cyd") == []


def test_a_stream_whose_counts_are_corrected_goes_on_from_its_record(services):
    """Without groups_per_user, the list and the noisy numbers that the next answer needs are in the record."""
    table = STREAM_TABLE.replace("groups_per_user = 2\n", "").replace("epsilon = 4", "epsilon = 8")
    service = services(catalog=CATALOG + table, accounts=board(epsilon=30.0), granted={"visits": None})
    for day in (1, 2, 3):
        load(service, day)
        refresh(service)
        service.reopen()
    found = answered(service, "SELECT day, article, users FROM saved.by_article")
    assert {day for day, *_ in found} == {"2026-11-01", "2026-11-02", "2026-11-03"}
    for day, article, users in found:
        assert abs(users - int(day[-2:]) * {"article 1": 400, "article 2": 200}[article]) < 100
    assert spent(service)[0] == record(service).cost
    about = service.get("/v1/tables/by_article").json()["running"]
    assert (about["groups_per_user"], about["kept_share"]) == (10, 1.0)
    assert 20 < about["smallest"] < 200
    browser = Browser(service)
    assert browser.log_in(service.keys["ann"]).status_code == 303
    kept = "A user counts for 10 items at most: 100 % of the pairs of a user and a named item are kept, and counts are"
    assert kept in browser.get("/tables/by_article").text
    copies = "SELECT * FROM saved.by_article"
    assert "not sold" in sent(service, f"CREATE TABLE saved.x AS {copies}").json()["detail"]


def test_a_stream_that_outgrows_its_record_says_so(service, monkeypatch):
    """Nothing of the period is published, and what was answered stays."""
    refresh(service)
    before = record(service)
    monkeypatch.setattr("discreet.service.answering.running.MAX_RECORD_LENGTH", len(STREAM.dump_json(before)))
    load(service, 2)
    refresh(service)
    assert "has outgrown its record of" in service.streams.problems["by_article"]
    assert record(service) == before
    assert len(answered(service, "SELECT * FROM saved.by_article")) == 2
