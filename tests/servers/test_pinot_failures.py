"""On a real cluster everything that makes Pinot's counts inexact is refused: settings, missing servers, timeouts."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import httpx
import pytest

from discreet.engines.pinot import PinotEngine, check_complete, check_signs
from discreet.engines.pinot import rows_of as answered_rows
from discreet.errors import EngineError, InexactHead, InputError
from discreet.head_request import HeadRequest
from discreet.testing.engines import rows_of
from tests.servers import pinot
from tests.servers.test_pinot import opened, url_of

REQUEST = HeadRequest("user", ("item",), 2)
HEAD = [(("X",), 4), (("1/0",), 3), (("1/1",), 3)]
COUNT = 'SELECT "item", COUNT(DISTINCT "user") FROM "few_OFFLINE" GROUP BY "item" ORDER BY COUNT(DISTINCT "user") DESC'
ROWS = 2 * (2 + 3 * 200)
SCHEMA = [{"name": "user", "dataType": "LONG"}, {"name": "item", "dataType": "STRING"}]


def side_of(side):
    """Return one server's rows: 200 items of three users each, and X, which has two users on each server."""
    rows = [{"user": 10 * side + n, "item": "X"} for n in range(2)]
    return rows + [{"user": 10 * side + n, "item": f"{side}/{i}"} for i in range(200) for n in range(3)]


@pytest.fixture(scope="module")
def urls(server):
    """Return the URLs of a cluster whose table `few` is split evenly over both servers."""
    urls = server("pinot")
    pinot.create(urls, {"schemaName": "few", "dimensionFieldSpecs": SCHEMA})
    for side in (1, 2):
        pinot.append(urls, "few", side_of(side))
    return urls


@pytest.fixture(scope="module")
def settle(urls):
    """Return a function that restarts a role with extra settings, unless it already has them."""
    folder, had = Path(urls["folder"]), {}

    def settle(role, **settings):
        wanted = {name.replace("__", "."): value for name, value in settings.items()}
        if had.get(role, {}) != wanted:
            pinot.stop_role(folder, role)
            had[role] = wanted
            pinot.start_role(folder, role, wanted)
        pinot.wait_for(urls, "few", ROWS)

    yield settle
    for role in had:
        settle(role)


def response_to(urls, sql):
    """Return the broker's response, even if it is an error."""
    return httpx.post(f"{urls['broker']}/query/sql", json={"sql": sql}, timeout=60).json()


def looks_clean(answer):
    """Return True if nothing in a response indicates a problem."""
    return (answer["exceptions"], answer["numGroupsLimitReached"], answer["numServersResponded"]) == ([], False, 2)


def test_a_broker_with_a_response_limit_is_refused(urls, settle):
    """A response limit in the broker truncates rows without an indication, so larger heads are refused."""
    settle("broker", pinot__broker__query__response__limit=5, pinot__broker__enable__query__limit__override="true")
    answer = response_to(urls, f"{COUNT} LIMIT 50")
    assert (len(answer["resultTable"]["rows"]), looks_clean(answer)) == (5, True)
    with opened(urls, "few") as engine:
        assert rows_of(engine, REQUEST) == HEAD
        with pytest.raises(InexactHead, match=r"pinot\.broker\.query\.response\.limit"):
            engine.head(HeadRequest("user", ("item",), 5))


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("enable.distinct.count.bitmap.override", "distinctcountbitmap(user)"),
        ("pinot.broker.use.approximate.function", "distinctcountsmarthll(user)"),
    ],
)
def test_a_broker_that_rewrites_the_count_is_refused(urls, settle, setting, name):
    """A broker that rewrites the count is detected by its settings or by the name of the result column."""
    settle("broker", **{setting.replace(".", "__"): "true"})
    with pytest.raises(InexactHead, match=setting.replace(".", r"\.")):
        PinotEngine(url_of(urls, "few"))
    answer = response_to(urls, f"{COUNT} LIMIT 3")
    assert (answer["resultTable"]["dataSchema"]["columnNames"][1], looks_clean(answer)) == (name, True)
    with pytest.raises(InexactHead, match="rewrite"):
        answered_rows(answer, ["item", "distinctcount(user)"], ["STRING", "INT"], 3)


def test_a_broker_that_trims_groups_is_refused(urls, settle):
    """Above the group trim threshold the broker drops X, the largest item, while its response looks complete."""
    settle("broker", pinot__broker__groupby__trim__threshold=20)
    answer = response_to(urls, f"SET minServerGroupTrimSize=0; {COUNT} LIMIT 3")
    assert "X" not in dict(answer["resultTable"]["rows"])
    assert looks_clean(answer)
    with pytest.raises(InexactHead, match=r"pinot\.broker\.groupby\.trim\.threshold"):
        PinotEngine(url_of(urls, "few"))


def test_groups_dropped_by_a_server_are_refused(urls, settle):
    """Above num.groups.limit a segment drops new groups, which Pinot reports."""
    settle("broker")
    settle(
        "server1",
        pinot__server__query__executor__num__groups__limit=150,
        pinot__server__query__executor__max__init__group__holder__capacity=100,
    )
    with opened(urls, "few") as engine, pytest.raises(InexactHead, match="numGroupsLimitReached"):
        engine.head(REQUEST)


def test_a_stopped_server_is_detected(urls, settle):
    """With a server down half of the rows are missing, but every server that was queried has responded."""
    settle("broker")
    settle("server1")
    folder = Path(urls["folder"])
    with opened(urls, "few") as engine:
        pinot.stop_role(folder, "server2")
        try:
            pinot.wait_for(urls, "few", ROWS // 2)
            answer = response_to(urls, f"{COUNT} LIMIT 3")
            assert (answer["exceptions"], answer["numServersQueried"], answer["numServersResponded"]) == ([], 1, 1)
            with pytest.raises(InexactHead, match="all segments"):
                engine.head(REQUEST)
        finally:
            pinot.start_role(folder, "server2")
        pinot.wait_for(urls, "few", ROWS)
        assert rows_of(engine, REQUEST) == HEAD


@contextlib.contextmanager
def frozen(urls, role):
    """Suspend a role's processes in the context, so that it does not respond."""
    group = int((Path(urls["folder"]) / f"{role}.pid").read_text())
    os.killpg(group, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(group, signal.SIGCONT)


def test_a_server_that_does_not_respond_is_an_error(urls, settle):
    """A response after Pinot's own timeout is an error, not an empty result."""
    settle("broker")
    with opened(urls, "few") as engine, frozen(urls, "server2"):
        answer = response_to(urls, f"SET timeoutMs=1000; {COUNT} LIMIT 3")
        with pytest.raises(EngineError):
            check_signs(answer, engine._known)
        with pytest.raises(InexactHead, match="servers"):
            check_complete(answer, engine._known)


def test_a_timeout_leaves_the_engine_usable(urls, settle):
    """A timeout raises EngineError, and the engine can be used again."""
    settle("broker")
    with opened(urls, "few", timeout_seconds=5) as engine:
        # The client's time limit ends the query, or the broker's a moment before, which reports 427.
        with frozen(urls, "server2"), pytest.raises(EngineError, match=r"within|427"):
            engine.head(REQUEST)
        pinot.wait_for(urls, "few", ROWS)
        assert rows_of(engine, REQUEST) == HEAD


def test_an_exception_from_progress_cancels_the_query(urls, settle):
    """An exception from the progress callback propagates, cancels the query, and leaves the engine usable."""
    settle("broker")

    class Enough(Exception):
        pass

    seen = []

    def watch(_):
        running = httpx.get(f"{urls['broker']}/queries").json()
        if running:
            seen.extend(running.values())
            raise Enough

    with opened(urls, "few") as engine:
        with frozen(urls, "server2"), pytest.raises(Enough):
            engine.head(REQUEST, progress=watch)
        assert len(seen) == 1
        pinot.wait_for(urls, "few", ROWS)
        assert rows_of(engine, REQUEST) == HEAD


def test_inexact_and_unknown_tables_are_refused(urls, settle):
    """An unknown table, and table settings that make Pinot approximate or add up segments, are refused."""
    settle("broker")
    with pytest.raises(InputError, match="no offline table"):
        PinotEngine(url_of(urls, "nowhere"))
    pinot.create(
        urls, {"schemaName": "rough", "dimensionFieldSpecs": SCHEMA}, {"query": {"useApproximateFunction": True}}
    )
    with pytest.raises(InexactHead, match="useApproximateFunction"):
        PinotEngine(url_of(urls, "rough"))
    partitioned = {"name": "user", "encodingType": "DICTIONARY", "properties": {"isSegmentPartitioned": "true"}}
    pinot.create(urls, {"schemaName": "parts", "dimensionFieldSpecs": SCHEMA}, {"fieldConfigList": [partitioned]})
    for _ in range(2):
        pinot.append(urls, "parts", [{"user": 1, "item": "a"}])
    answer = response_to(urls, 'SELECT COUNT(DISTINCT "user") FROM "parts_OFFLINE"')
    assert answer["resultTable"]["rows"] == [[2]]  # but there is one user
    with opened(urls, "parts") as engine:
        with pytest.raises(InexactHead, match="isSegmentPartitioned"):
            engine.head(REQUEST)
        assert rows_of(engine, HeadRequest("item", ("user",), 2)) == [((1,), 1)]
