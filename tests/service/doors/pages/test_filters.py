"""The fields of a filter: what they show of a filter, and the filter that they write."""

from __future__ import annotations

import datetime

import pytest

from discreet.errors import InputError
from discreet.head_request import Kind
from discreet.query.canonical import canonical
from discreet.query.predicates import bind_where
from discreet.query.sql import condition, parse_select, parse_where
from discreet.service.doors.pages.filters import Filter, filters_of, hints, is_fine, typed_filters, written
from discreet.wire.queries import ColumnDetail, DatasetDetail

TODAY = datetime.date(2026, 3, 10)


def column(name, type_, labels=None, **more):
    """Return a column that may be grouped and filtered."""
    more = {"group": True, "filter": True, "sum": None, **more}
    return ColumnDetail(name=name, type=type_, known_domain=labels is not None, labels=labels, **more)


DATASET = DatasetDetail(
    name="visits",
    description=None,
    user="visitor",
    rows=False,
    groups_per_user=None,
    rows_per_group=None,
    missing_labels="drop",
    max_k=None,
    max_head_limit=None,
    retention_days=None,
    data_version="1",
    columns=[
        column("country", "text", ["DE", "IN", "US", "don't"]),
        column("page", "text"),
        column("size", "integer", [1, 2, 3]),
        column("price", "decimal"),
        column("new", "boolean"),
        column("day", "date", ["2026-02-01", "2026-02-28"]),
        column("at", "timestamp"),
        column("at_day", "date", each="day", period_of="at"),
        column("at_week", "date", each="week", period_of="at"),
        column("seen", "timestamp", filter=False),
        column("month_of_visit", "date", each="month", filter=False),
        column("city", "text", [str(number) for number in range(200)]),
        column("secret", "text", filter=False),
    ],
)
KINDS = {"country": Kind.TEXT, "page": Kind.TEXT, "size": Kind.INTEGER, "price": Kind.DECIMAL, "new": Kind.BOOLEAN}
KINDS |= {"day": Kind.DATE, "at": Kind.TIMESTAMP, "city": Kind.TEXT, "at_week": Kind.DATE}


@pytest.mark.parametrize(
    ("where", "fields", "rest"),
    [
        ("COUNTRY = 'DE'", {"country": "DE"}, None),
        ("country IN ('DE', 'don''t') AND size = 2", {"country": "DE, don't", "size": "2"}, None),
        ("day BETWEEN '2026-02-03' AND DATE '2026-02-09'", {"day": "2026-02-03 to 2026-02-09"}, None),
        ("day = '2026-02-03' AND new = TRUE", {"day": "2026-02-03", "new": "true"}, None),
        ("\"at\" >= '2026-02-03' AND \"at\" < '2026-03-01'", {"at": "2026-02-03 to 2026-02-28"}, None),
        ("price >= 1.50 AND price <= 2", {"price": "1.5 to 2"}, None),
        ("page = 'home' AND city = '7'", {"page": "home", "city": "7"}, None),
        ("country = 'XX'", {}, "country = 'XX'"),
        ("country = 'DE' AND country = 'IN'", {"country": "DE"}, "country = 'IN'"),
        ("country = 'DE' OR size = 1", {}, "country = 'DE' OR size = 1"),
        ("price < 5", {}, "price < 5"),
        ("\"at\" = '2026-02-03'", {}, "\"at\" = '2026-02-03'"),
        ("\"at\" <= '2026-02-03'", {}, "\"at\" <= '2026-02-03'"),
        ("\"at\" >= '2026-02-03 10:00:00'", {}, "\"at\" >= '2026-02-03 10:00:00'"),
        ("at_week = '2026-02-02' AND page LIKE 'a%'", {}, None),
    ],
)
def test_fields_show_what_they_can_of_a_filter_and_write_it_again(where, fields, rest):
    """All else stays SQL; the filter that is written is the same, in canonical form."""
    found, left = filters_of(DATASET, parse_where(where), TODAY)
    assert {each.column: each.shown for each in found if each.shown != "any"} == fields
    assert rest is None or condition(left) == rest
    again = written(found, "" if left is None else condition(left))
    one, other = (canonical(bind_where(parse_where(text), KINDS), KINDS) for text in (where, again))
    assert one == other


def test_typed_fields_become_sql():
    """Picked labels, ranges, and a preset in place of a range; what is typed as SQL is put in parentheses."""
    empty, _ = filters_of(DATASET, None, TODAY)
    typed = typed_filters(
        empty,
        ["country=DE", "size=3", "secret=1"],
        [("page", "a'b", ""), ("day", "", "2026-02-09")],
        ["at=2026-01-01/"],
    )
    assert written(typed, "new = TRUE OR page = 'x'") == (
        "country = 'DE' AND page = 'a''b' AND size = 3 AND day <= '2026-02-09' AND \"at\" >= '2026-01-01' "
        "AND (new = TRUE OR page = 'x')"
    )
    assert written(empty, "") == ""


@pytest.mark.parametrize(
    ("one", "problem"),
    [
        (Filter("price", "number", numbers=True, low="many"), "price is compared with numbers"),
        (Filter("day", "date", low="2026-02-30"), "day is compared with dates"),
        (Filter("at", "time", high="soon"), "at is compared with dates"),
    ],
)
def test_a_value_that_is_none_is_refused(one, problem):
    """The sentence names the column."""
    with pytest.raises(InputError, match=problem):
        written([one], "")


def test_presets_end_with_the_last_listed_day_or_today():
    """A range that ends before the first listed day is left out."""
    found, _ = filters_of(DATASET, None, TODAY)
    presets = {each.column: {name: (first, last) for name, first, last in each.presets} for each in found}
    assert presets["day"]["last 7 days"] == ("2026-02-22", "2026-02-28")
    assert presets["day"]["this month"] == ("2026-02-01", "2026-02-28")
    assert "last month" not in presets["day"]
    assert presets["at"]["last 28 days"] == ("2026-02-11", "2026-03-10")
    assert presets["at"]["last month"] == ("2026-02-01", "2026-02-28")
    assert presets["at"]["this year"] == ("2026-01-01", "2026-03-10")


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ('SELECT "at", COUNT(DISTINCT visitor) FROM visits GROUP BY "at"', []),
        ("SELECT price, COUNT(DISTINCT visitor) FROM visits GROUP BY price", ["holds decimals"]),
        ("SELECT at_day, COUNT(DISTINCT visitor) FROM visits GROUP BY at_day", []),
        ("SELECT COUNT(DISTINCT visitor) FROM visits WHERE country = 'de'", ["did you mean 'DE'?"]),
        ("SELECT COUNT(DISTINCT visitor) FROM visits WHERE NOT size IN (1, 9)", ["'9' is none of the labels of size"]),
        ("SELECT COUNT(DISTINCT visitor) FROM visits WHERE country = 'DE' AND page = 'x' AND new = TRUE", []),
    ],
)
def test_hints_follow_from_the_catalog(sql, words):
    """Labels that are rare by their type, and labels that are not listed."""
    found = hints(parse_select(sql), DATASET)
    assert len(found) == len(words)
    assert all(word in hint for word, hint in zip(words, found, strict=True))


def test_times_and_decimals_are_fine_but_not_their_periods_and_listed_labels():
    """The page does not begin with a column whose labels have hardly any users."""
    fine = [column("at", "timestamp"), column("price", "decimal")]
    others = [column("day", "date"), column("at_hour", "timestamp", each="hour"), column("at", "timestamp", ["a"])]
    assert [is_fine(one) for one in (*fine, *others)] == [True, True, False, False, False]
