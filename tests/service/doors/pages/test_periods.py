"""Incomplete first and last periods, from the catalog, the filter and the clock."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from discreet.catalog.model import Dataset
from discreet.query.sql import parse_select
from discreet.service.doors.pages.charts import Item, line_chart, order_of
from discreet.service.doors.pages.periods import covered
from tests.service.browser import Browser
from tests.service.deployment import CATALOG

NOW = datetime(2026, 2, 10, 12, tzinfo=UTC)
WEEKS = ["2025-12-29", "2026-01-05", "2026-01-12", "2026-01-19", "2026-01-26"]


def columns(domain=None):
    """Return the columns of a dataset with a day, whose weeks and months are implied."""
    day = {"type": "date", "group": True, "filter": True, "domain": domain}
    return Dataset(source="r.parquet", user="reader", columns={"day": day}).columns


@pytest.mark.parametrize(
    ("domain", "where", "labels", "expected"),
    [
        (None, "", WEEKS, (0, 0)),
        ({"first": date(2026, 1, 1), "last": date(2026, 1, 30)}, "", WEEKS, (1, 1)),
        ({"first": date(2025, 12, 29), "last": date(2026, 2, 1)}, "", WEEKS, (0, 0)),
        ({"first": date(2026, 1, 1), "last": date(2026, 1, 30)}, "WHERE day >= '2026-01-07'", WEEKS, (2, 1)),
        (None, "WHERE day >= '2025-12-30'", WEEKS, (1, 0)),
        (None, "WHERE day > '2025-12-28' AND day <= '2026-02-01'", WEEKS, (0, 0)),
        (None, "WHERE day < '2026-02-01'", WEEKS, (0, 1)),
        (None, "WHERE day < '2026-01-18'", WEEKS, (0, 3)),
        (None, "", [*WEEKS, "2026-02-02", "2026-02-09"], (0, 1)),
        (None, "WHERE day <= '9999-12-31'", ["9999-12-20", "9999-12-27"], (0, 2)),
    ],
)
def test_a_period_is_incomplete_if_rows_can_be_from_a_part_of_it_only(domain, where, labels, expected):
    """Known labels, filters and the present end what a period can hold; a listed period may hold none of it."""
    query = parse_select(f"SELECT day_week, COUNT(DISTINCT reader) FROM reads {where} GROUP BY day_week")
    about = covered(columns(domain), "day_week", query.where, NOW)
    assert about.cuts(labels) == expected


DAILY = """
[datasets.month]
source = "month.parquet"
user = "reader"
data_version = "1"
columns.day = { type = "date", group = true, filter = true, domain = { first = 2024-10-02, last = 2024-10-30 } }
"""


@pytest.mark.parametrize(("shown", "is_hatched"), [("week", True), ("week + INTERVAL 7 DAY", False)])
def test_an_incomplete_period_of_a_statement_is_hatched(services, shown, is_hatched):
    """As that of a query, if the statement shows its periods as they are."""
    service = services(catalog=CATALOG + DAILY, granted={"month": None})
    days = [date(2024, 10, 2) + timedelta(n) for n in range(29) for _ in range(200)]
    pq.write_table(pa.table({"reader": range(len(days)), "day": days}), service.folder / "month.parquet")
    service.maintenance.refresh_sources()
    weeks = "SELECT date_trunc('week', day) AS week, COUNT(DISTINCT reader) AS n FROM month GROUP BY 1"
    ann = Browser(service)
    assert ann.log_in(service.keys["ann"]).status_code == 303
    ann.get("/ask")
    reply = ann.post("/ask", sql=f"SELECT {shown} AS w, n FROM ({weeks})", epsilon="4")
    page = ann.get(reply.headers["location"]).text
    assert page.count("<polyline") == 1
    assert ("Hatched periods are incomplete" in page) == is_hatched


def test_days_of_a_date_are_no_periods():
    """A date is whole."""
    assert covered(columns(), "day", None, NOW) is None


def test_an_incomplete_period_is_hatched():
    """From the end of the line halfway to the next period that is whole."""
    items = [Item(week, 10, 9, 11, (0, 1, 0, 1), (week,)) for week in WEEKS]
    assert line_chart(items, 0, None, (1, 1)).hatched == [(0.0, 12.5), (87.5, 12.5)]
    assert line_chart(items, 0, None, (2, 0)).hatched == [(0.0, 37.5)]
    assert line_chart(items, 0, None, (0, 5)).hatched == [(0.0, 100.0)]
    assert line_chart(items).hatched == []


def test_the_order_of_items_is_stated():
    """By value, by label, or not at all."""
    items = [Item(name, value, labels=(name,)) for name, value in (("b", 3), ("a", 2), ("c", 1))]
    assert order_of(items, "article", "users") == "Sorted by users, largest first."
    assert order_of(sorted(items, key=lambda item: item.label), "article", "users") == "Sorted by article."
    assert "the order has noise" in order_of(items, "article", "users", ranked=True)
    assert order_of([items[1], items[0], items[2]][::-1], "article", "users") is None
