"""Pinot's counts are exact: merging two servers, filters with missing values, labels and listed items."""

from __future__ import annotations

import contextlib
import datetime
import random
from typing import get_args

import httpx
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.engines.pinot import PinotEngine
from discreet.errors import InexactHead, InputError
from discreet.head_request import Derived, HeadRequest, Kind, Period
from discreet.query.predicates import bind_where
from discreet.query.sql import parse_where
from discreet.testing.engines import ALIKE, EDGES, predicates, reference_head, rows_of, start_of
from tests.servers import pinot

MOMENTS = [
    datetime.datetime(1960, 1, 1, 1, 2, 3, 4000),
    datetime.datetime(2024, 10, 27, 0, 30),  # 02:30 in Berlin, the servers' time zone
    datetime.datetime(2024, 10, 27, 1, 30),  # 02:30 again, after the end of daylight saving time
]
WORDS = [
    "",
    "B",
    "a",
    "a ",
    "b'",
    '"',
    "é",
    "e\u0301",
    "ﬀ",
    "😀",
    "\ue000",
    "%",
    "NULL",
    "null",
    "\\",
    "-- x",
    "o;'",
    "?",
]
SIZES = [-(2**63), -7, 0, 1, 7, 2**53 + 1, 2**63 - 1]
SHARES = [-0.5, -0.0, 0.0, 0.1, 7.0, 1e300]
KINDS = {"who": Kind.TEXT, "word": Kind.TEXT, "size": Kind.INTEGER, "at": Kind.TIMESTAMP, "share": Kind.FLOAT}

DERIVED = [
    *(Derived("start", "at", period) for period in ("hour", "day", "week", "month")),
    Derived("start", "size", 7),
    Derived("start", "share", 4),
]


def some_rows():
    """Return 200 rows of few values, so that any query meets duplicates, ties and missing values."""
    draw = random.Random(7)
    pools = {"who": ["ann", "bob", "cy", "d'e"], "word": WORDS, "size": SIZES, "at": MOMENTS, "share": SHARES}
    types = {"at": pa.timestamp("us"), "size": pa.int64(), "share": pa.float64()}
    columns = {
        name: pa.array([draw.choice([None, *values]) for _ in range(200)], types.get(name, pa.string()))
        for name, values in pools.items()
    }
    return pa.table(columns)


ROWS = some_rows()


def url_of(urls, table):
    """Return the URL of a table."""
    return f"pinot://{urls['broker'].removeprefix('http://')}?table={table}&controller={urls['controller']}"


@contextlib.contextmanager
def opened(urls, table, **parts):
    """Open an engine, and close it when the context ends."""
    engine = PinotEngine(url_of(urls, table), **parts)
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture(scope="module")
def urls(server):
    """Return the URLs of a cluster with a table of `some_rows`."""
    urls = server("pinot")
    pinot.load(urls, ROWS, "some_rows")
    return urls


@pytest.fixture(scope="module")
def engine(urls):
    """Return an engine on that table."""
    with opened(urls, "some_rows") as engine:
        yield engine


@pytest.fixture(scope="module")
def split(server):
    """Return a cluster with 20,000 items on each of two servers; the largest in total, X, is large on neither."""
    urls = server("pinot")
    segments = []
    for side in (1, 2):
        rows = [{"user": 10 * side + n, "item": "X"} for n in range(2)]
        rows += [{"user": 10 * side + n, "item": f"{side}/{i}"} for i in range(6_000) for n in range(3)]
        rows += [{"user": 10 * side, "item": f"{side}/{i}"} for i in range(6_000, 19_999)]
        segments.append(rows)
    fields = [{"name": "user", "dataType": "LONG"}, {"name": "item", "dataType": "STRING"}]
    pinot.create(urls, {"schemaName": "split", "dimensionFieldSpecs": fields})
    for rows in segments:
        pinot.append(urls, "split", rows)
    return urls


def test_a_plain_query_of_two_servers_loses_the_largest_item(split):
    """A plain Pinot query omits the item with the most users, while its response reports no problem."""
    sql = (
        "SELECT item, COUNT(DISTINCT user) FROM split_OFFLINE GROUP BY item "
        "ORDER BY COUNT(DISTINCT user) DESC, item LIMIT 3"
    )
    answer = httpx.post(f"{split['broker']}/query/sql", json={"sql": sql}, timeout=60).json()
    assert answer["resultTable"]["rows"] == [["1/0", 3], ["1/1", 3], ["1/10", 3]]
    assert (answer["exceptions"], answer["numGroupsLimitReached"]) == ([], False)
    assert answer["numServersQueried"] == answer["numServersResponded"] == 2


def test_the_engine_finds_the_largest_item(split):
    """With all trimming off the engine finds the item, with the users of both servers."""
    with opened(split, "split") as engine:
        head = rows_of(engine, HeadRequest("user", ("item",), 2))
    assert head == [(("X",), 4), (("1/0",), 3), (("1/1",), 3)]


def test_the_engine_returns_every_item(split):
    """The head has all 39,999 items, more than any of Pinot's default limits."""
    with opened(split, "split") as engine:
        head = engine.head(HeadRequest("user", ("item",), 50_000))
    assert (len(head.counts), int(head.counts.sum())) == (39_999, 4 + 2 * (3 * 6_000 + 13_999))


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(data=st.data())
def test_random_filters_have_the_reference_head(engine, data):
    """Random filters over missing values give the reference head; comparisons that Pinot gets wrong are refused."""
    items = data.draw(st.lists(st.sampled_from(["word", "size", "at"]), min_size=1, max_size=2, unique=True))
    derived = data.draw(st.lists(st.sampled_from(DERIVED), max_size=1).map(tuple))
    items += [made.name for made in derived]
    limit = data.draw(st.sampled_from([1, 5, 1000]))
    where = data.draw(st.none() | predicates(KINDS | {made.name: made.kind for made in derived}))
    request = HeadRequest("who", tuple(items), limit, where, derived=derived)
    try:
        head = rows_of(engine, request)
    except InputError as error:
        assert "UTF-16" in str(error)  # noqa: PT017 - a refusal is as good as a head
    else:
        assert head == reference_head(ROWS, request)


@pytest.mark.parametrize("item", ["word", "size", "at"])
def test_labels_of_every_kind_come_back_in_ascending_order(engine, item):
    """Text is ordered by UTF-8 bytes, and timestamps in the repeated hour of a time change stay distinct."""
    for limit in (1, 4, 9, 1000):
        request = HeadRequest("who", (item,), limit)
        assert rows_of(engine, request) == reference_head(ROWS, request)


def test_labels_have_the_types_of_other_engines(engine):
    """Text is string, integers are int64, timestamps are in microseconds."""
    labels = engine.head(HeadRequest("who", ("word", "size", "at"), 5)).labels
    assert [field.type for field in labels.schema] == [pa.string(), pa.int64(), pa.timestamp("us")]


def test_a_request_without_items_counts_all_users(engine):
    """Without items the head is the count of all users, or 0 if no row passes the filter."""
    for text, count in (("size > -10", 4), ("size = 5", 0), ("size = 1 AND size = 7", 0)):
        where = bind_where(parse_where(text), KINDS)
        assert engine.head(HeadRequest("who", (), 1, where)).counts.tolist() == [count], text


def test_filters_that_no_row_can_pass_have_empty_heads(engine):
    """An unsatisfiable filter gives an empty head, whether the engine, the broker or a server detects it."""
    for text in ("size > 1 AND size < 1", "size = 1 AND size = 7", "word = 'nowhere'", "size > 100000000000000000000"):
        where = bind_where(parse_where(text), KINDS)
        assert rows_of(engine, HeadRequest("who", ("word",), 5, where)) == []


@pytest.mark.parametrize(
    "domain",
    [
        pa.table({"word": [*WORDS, "nowhere"]}),
        pa.table({"size": pa.array([7, 8, 2**63 - 1, -(2**63)])}),
        pa.table({"at": pa.array([*MOMENTS, datetime.datetime(2024, 1, 1, 0, 0, 0, 1)], pa.timestamp("us"))}),
        pa.table({"word": ["a", "a", "nowhere"], "size": [0, 7, 0]}),
        pa.table({"word": [f"w{n}" for n in range(20_000)]}),
        pa.table({"word": ["a"] * 1_000, "size": pa.array(range(1_000))}),
    ],
)
def test_a_listed_domain_gets_all_its_counts_and_no_others(engine, domain):
    """Every listed item has its count, which is 0 without rows, up to the size that Pinot accepts."""
    for limit in (2, len(domain)):
        request = HeadRequest("who", tuple(domain.column_names), limit, domain=domain)
        assert rows_of(engine, request) == reference_head(ROWS, request)


@pytest.mark.parametrize("made", DERIVED)
def test_listed_periods_and_bins_get_all_their_counts(engine, made):
    """Listed periods and bins have their counts, and 0 where there are no rows."""
    starts = {start_of(value, made.each) for value in ROWS.column(made.column).to_pylist()} - {None}
    empty = 700 if made.kind is Kind.INTEGER else start_of(datetime.datetime(2030, 5, 6, 7), made.each)
    domain = pa.table({"start": pa.array([*sorted(starts), empty])})
    request = HeadRequest("who", ("start",), len(domain), domain=domain, derived=(made,))
    assert rows_of(engine, request) == reference_head(ROWS, request)


def test_timestamps_outside_the_calendar_are_in_no_period(server):
    """Timestamps outside the calendar do not reach the period functions: no row decides whether there is an answer."""
    urls = server("pinot")
    fields = [{"name": "who", "dataType": "STRING"}, {"name": "at", "dataType": "TIMESTAMP"}]
    pinot.create(urls, {"schemaName": "extreme", "dimensionFieldSpecs": fields})
    ends = [-62_135_596_800_001, -62_135_596_800_000, 253_402_300_799_999, 253_402_300_800_000]
    pinot.append(urls, "extreme", [{"who": "x", "at": at} for at in (1 - 2**63, *ends, 2**63 - 1)])
    first, last = datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23)
    with opened(urls, "extreme") as engine:
        for period in ("hour", "day", "week", "month"):
            found = rows_of(engine, HeadRequest("who", ("start",), 9, derived=(Derived("start", "at", period),)))
            assert found == [((start_of(first, period),), 1), ((start_of(last, period),), 1)]


def test_very_long_labels_stay_apart(server):
    """Labels of 100 kB that differ only in their last character stay distinct."""
    urls = server("pinot")
    labels = ["x" * 100_000 + end for end in "bac"]
    table = pa.table({"who": ["1", "1", "1", "2"], "word": [*labels, labels[2]]})
    pinot.load(urls, table, "long_labels", segments=2)
    with opened(urls, "long_labels") as engine:
        assert rows_of(engine, HeadRequest("who", ("word",), 9)) == reference_head(
            table, HeadRequest("who", ("word",), 9)
        )


def test_a_table_without_segments_has_an_empty_head(server):
    """A table without segments gives an empty head, not an error."""
    urls = server("pinot")
    pinot.load(urls, ROWS.slice(0, 0), "empty_rows")
    with opened(urls, "empty_rows") as engine:
        assert rows_of(engine, HeadRequest("who", ("word",), 5)) == []
        assert engine.head(HeadRequest("who", (), 1)).counts.tolist() == [0]


def test_the_version_of_the_data_changes_with_every_segment_and_with_nothing_else(server):
    """The data version changes when a segment is added, and not by a query."""
    urls = server("pinot")
    pinot.load(urls, ROWS.slice(0, 10), "versions", segments=1)
    with opened(urls, "versions") as engine:
        first = engine.data_version()
        engine.head(HeadRequest("who", ("word",), 5))
        assert engine.data_version() == first
        pinot.append(urls, "versions", [{"who": "x", "word": "y"}])
        assert engine.data_version() != first


def test_columns_come_in_order_with_their_kinds(engine):
    """Columns, which filters and labels are checked against, come in the table's order with their kinds."""
    assert list(engine.columns().items()) == list(KINDS.items())


def test_check_finds_the_broker_without_a_statement(engine):
    """The broker is found by `check` before a request, without running a statement."""
    engine.check(HeadRequest("who", (), 5))


def test_fetch_returns_a_whole_result_or_none(engine):
    """A result of `fetch` is whole; a statement that Pinot may have truncated is refused."""
    assert engine.fetch("SELECT 1").num_rows == 1  # answered by the broker alone
    assert engine.fetch("SELECT COUNT(*) FROM some_rows_OFFLINE").to_pydict() == {"count(*)": [200]}
    words = engine.fetch("SELECT DISTINCT word FROM some_rows_OFFLINE LIMIT 100")
    assert sorted(words.column("word").to_pylist()) == sorted([*WORDS, "(missing)"])
    for statement in ("SELECT word FROM some_rows_OFFLINE", "SELECT word FROM some_rows_OFFLINE LIMIT 7"):
        with pytest.raises(InexactHead, match="LIMIT"):
            engine.fetch(statement)


def test_constants_that_pinot_would_read_as_others_are_refused(urls):
    """A constant with two adjacent quotes is refused, because Pinot reads it with one."""
    pinot.load(urls, pa.table({"who": ["a", "b"], "word": ["x''y", "x'y"]}), "quotes", segments=1)
    sql = """SELECT word FROM quotes_OFFLINE WHERE word = 'x''''y' LIMIT 5"""
    answer = httpx.post(f"{urls['broker']}/query/sql", json={"sql": sql}, timeout=60).json()
    assert answer["resultTable"]["rows"] == [["x'y"]]
    with opened(urls, "quotes") as quotes, pytest.raises(InputError, match="two single quotes"):
        rows_of(quotes, HeadRequest("who", ("word",), 5, bind_where(parse_where("word = 'x''''y'"), KINDS)))


def test_users_and_items_that_are_alike_stay_apart(server):
    """Values of every type that differ in one byte or digit are as many users, and as many items."""
    urls = server("pinot")
    numbers = [n for n in ALIKE["integer"][1] if n != 1 - 2**63]  # which the table stores for a missing one
    values = {"text": ALIKE["text"][1], "integer": numbers}
    rows = max(map(len, values.values()))
    alike = {
        name: pa.array([found[n % len(found)] for n in range(rows)], ALIKE[name][0]) for name, found in values.items()
    }
    table = pa.table({"row": range(rows), "item": ["x"] * rows, **alike})
    pinot.load(urls, table, "alike")
    with opened(urls, "alike") as engine:
        for name, found in values.items():
            assert rows_of(engine, HeadRequest(name, ("item",), 9)) == [(("x",), len(found))]
            request = HeadRequest("row", (name,), rows)
            assert rows_of(engine, request) == reference_head(table, request)


def test_times_beside_the_edges_of_periods_are_in_their_periods(server):
    """A second, a millisecond before and after each edge."""
    apart = [datetime.timedelta(0, *size) for size in ((1,), (0, 1000))]
    times = {edge + sign * size for edge in EDGES for size in apart for sign in (-1, 0, 1)}
    times = sorted(times - {datetime.datetime(1970, 1, 1)})  # which Pinot stores for a missing one
    table = pa.table({"row": range(len(times)), "at": pa.array(times, pa.timestamp("us"))})
    urls = server("pinot")
    pinot.load(urls, table, "edges")
    with opened(urls, "edges") as engine:
        derived = tuple(Derived(f"the {each}", "at", each) for each in get_args(Period))
        for made in derived:
            request = HeadRequest("row", (made.name,), 1000, derived=derived)
            assert rows_of(engine, request) == reference_head(table, request)


@pytest.mark.parametrize(("user", "message"), [("at", "timestamps"), ("share", "floating-point")])
def test_users_of_types_that_may_be_cut_are_refused(engine, user, message):
    """The type alone decides, before a row is read."""
    for ask in (engine.check, engine.head):
        with pytest.raises(InputError, match=message):
            ask(HeadRequest(user, ("word",), 9))
