"""A bad response of any kind is refused and gives no head."""

from __future__ import annotations

import datetime
from copy import deepcopy

import pyarrow as pa
import pytest

from discreet.errors import EngineError, InexactHead, InputError
from discreet.head_request import HeadRequest
from discreet.testing.engines import rows_of

from .test_pinot_http import ANSWER, REQUEST, VERSIONS, FakeCluster

GOOD = [(("X",), 4), (("a",), 3), (("b",), 3)]


def table_of(rows, names=("item", "distinctcount(user)"), types=("STRING", "INT")):
    """Return the part of a response that holds rows."""
    schema = {"columnNames": list(names), "columnDataTypes": list(types)}
    return {"resultTable": {"dataSchema": schema, "rows": rows}, "numRowsResultSet": len(rows)}


def head_of(cluster, request=REQUEST):
    """Return the head as plain values."""
    with cluster.opened() as engine:
        return rows_of(engine, request)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_good_response_gives_the_head(version):
    """Good responses of every supported version give the head."""
    assert head_of(FakeCluster(version)) == GOOD


GONE = object()
BAD = [
    ({"exceptions": [{"errorCode": 305, "message": "secret"}]}, "codes 305"),
    ({"exceptions": [{"errorCode": 427, "message": "secret"}, {"errorCode": 200, "message": ""}]}, "codes 200, 427"),
    ({"exceptions": [{}]}, "codes -1"),
    ({"exceptions": None}, "whether there were errors"),
    ({"exceptions": GONE}, "whether there were errors"),
    ({"numGroupsLimitReached": True}, "numGroupsLimitReached"),
    ({"numGroupsLimitReached": None}, "numGroupsLimitReached"),
    ({"numGroupsLimitReached": "false"}, "numGroupsLimitReached"),
    ({"numGroupsLimitReached": 0}, "numGroupsLimitReached"),
    ({"numGroupsLimitReached": GONE}, "numGroupsLimitReached"),
    ({"numServersResponded": 1}, "servers"),
    ({"numServersQueried": 3}, "servers"),
    ({"numServersQueried": GONE}, "numServersQueried"),
    ({"numServersResponded": "2"}, "numServersResponded"),
    ({"numServersResponded": True}, "numServersResponded"),
    ({"numSegmentsQueried": 1}, "all segments"),
    ({"numSegmentsQueried": 3}, "all segments"),
    ({"numSegmentsPrunedByBroker": 0}, "all segments"),
    ({"numSegmentsPrunedByBroker": GONE}, "numSegmentsPrunedByBroker"),
    ({"numConsumingSegmentsQueried": 1}, "coming in"),
    ({"numConsumingSegmentsQueried": GONE}, "numConsumingSegmentsQueried"),
    ({"resultTable": GONE}, "without a table"),
    ({"resultTable": {"dataSchema": None, "rows": []}}, "without a table"),
    ({"resultTable": {"dataSchema": {}, "rows": None}}, "without a table"),
    (table_of([["X", 4]], ("item", "distinctcountbitmap(user)")), "rewrite"),
    (table_of([["X", 4]], ("item", "distinctcountsmarthll(user)")), "rewrite"),
    (table_of([["X", 4]], ("item", "segmentpartitioneddistinctcount(user)"), ("STRING", "LONG")), "rewrite"),
    (table_of([["X", 4]], ("item", "distinctcount(other)")), "rewrite"),
    (table_of([["X", 4]], ("other", "distinctcount(user)")), "rewrite"),
    (table_of([["X"]], ("item",), ("STRING",)), "rewrite"),
    (table_of([["X", 4]], types=("STRING", "LONG")), "other types"),
    (table_of([["X", 4]], types=("LONG", "INT")), "other types"),
    (table_of([["X", 4], ["a", 3], ["b", 3], ["c", 3]]), "number of rows"),
    ({"numRowsResultSet": 4}, "number of rows"),
    ({"numRowsResultSet": GONE}, "numRowsResultSet"),
    (table_of([["X", 4], ["a"]]), "another length"),
    (table_of([["X", 4], "a3"]), "another length"),
    (table_of([["X", 4.0]]), "count"),
    (table_of([["X", "4"]]), "count"),
    (table_of([["X", True]]), "count"),
    (table_of([["X", -1]]), "count"),
    (table_of([["X", 2**31]]), "count"),
    (table_of([[None, 4]]), "label"),
    (table_of([[7, 4]]), "label"),
    (table_of([["\ud800", 4]]), "label"),
    (table_of([["a", 3], ["X", 4]]), "order"),
    (table_of([["b", 3], ["a", 3]]), "order"),
    (table_of([["😀", 3], ["ﬀ", 3]]), "order"),
    (table_of([["X", 4], ["X", 4]]), "twice"),
    (table_of([["X", 4], ["a", 0]]), "no users"),
]
"""What is changed in a good answer, and a word of the refusal."""

BAD_LATER = [
    ({sign: value}, sign)
    for sign in ("partialResult", "groupsTrimmed", "rlsFiltersApplied")
    for value in (True, None, "false", GONE)
] + [({"brokerId": "Broker_2"}, "another broker"), ({"brokerId": GONE}, "another broker")]


@pytest.mark.parametrize(
    ("version", "change", "match"),
    [("0.11", *bad) for bad in BAD] + [(version, *bad) for version in ("1.4", "1.5") for bad in BAD_LATER],
)
def test_a_bad_response_is_refused(version, change, match):
    """The error is InexactHead without Pinot's message; a missing sign is as bad as a wrong one."""
    cluster = FakeCluster(version)
    answer = cluster.answers[0] | change
    cluster.answers = [{key: value for key, value in answer.items() if value is not GONE}]
    with pytest.raises(InexactHead, match=match) as caught:
        head_of(cluster)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("codes", [[240], [250], [400], [400, 427]])
def test_a_timeout_of_pinot_is_an_engine_error(codes):
    """A timeout says nothing about the data."""
    cluster = FakeCluster()
    cluster.answers[0]["exceptions"] = [{"errorCode": code, "message": "secret"} for code in codes]
    with pytest.raises(EngineError, match="time limit"):
        head_of(cluster)


def broker_only(rows):
    """Return a response of the broker that queried no server."""
    return (
        ANSWER | table_of(rows) | dict.fromkeys(("numServersQueried", "numServersResponded", "numSegmentsQueried"), 0)
    )


def test_a_response_of_the_broker_alone_is_an_empty_head_if_all_segments_are_online():
    """The broker saw that no row can count; a second request shows that all servers are available."""
    cluster = FakeCluster()
    cluster.answers = [broker_only([]), ANSWER | table_of([[9]], ("count(*)",), ("LONG",))]
    assert head_of(cluster) == []
    assert cluster.queries[1].endswith('SELECT COUNT(*) FROM "events_OFFLINE"')
    cluster.answers = [broker_only([]) | {"resultTable": None}, deepcopy(ANSWER)]
    with cluster.opened() as engine:
        assert engine.head(HeadRequest("user", (), 1)).counts.tolist() == [0]


def test_a_broker_without_servers_is_not_an_empty_table():
    """Without servers the broker's response looks like that for an unsatisfiable filter."""
    for second in (broker_only([]), ANSWER | {"numSegmentsQueried": 1}, ANSWER | {"numGroupsLimitReached": True}):
        cluster = FakeCluster()
        cluster.answers = [broker_only([]), second]
        with pytest.raises(InexactHead):
            head_of(cluster)


def test_a_table_without_segments_is_empty():
    """No server was queried, and none is missing."""
    cluster = FakeCluster()
    cluster.paths["/segments/events?type=OFFLINE&excludeReplacedSegments=true"] = [{"OFFLINE": []}]
    cluster.answers = [broker_only([])]
    assert head_of(cluster) == []
    assert len(cluster.queries) == 1


def test_a_filter_that_no_row_can_pass_is_not_sent():
    """A constant outside the column's range gives an empty head without a query."""
    from discreet.head_request import Comparison, Constant, Kind

    where = Comparison("size", ">", Constant(Kind.INTEGER, str(2**31)))
    cluster = FakeCluster()
    assert head_of(cluster, HeadRequest("user", ("item",), 2, where)) == []
    assert cluster.queries == []


def test_labels_keep_their_types():
    """Integers, booleans, and timestamps from milliseconds, also before 1970, are read with their types."""
    cluster = FakeCluster()
    names = ("size", "open", "cast(at,'LONG')", "distinctcount(user)")
    rows = [[7, True, 1_709_164_800_123, 3], [-7, False, -1, 2]]
    cluster.answers[0] |= table_of(rows, names, ("INT", "BOOLEAN", "LONG", "INT"))
    with cluster.opened() as engine:
        labels = engine.head(HeadRequest("user", ("size", "open", "at"), 2)).labels
    assert [field.type for field in labels.schema] == [pa.int64(), pa.bool_(), pa.timestamp("us")]
    assert labels.to_pylist() == [
        {"size": 7, "open": True, "at": datetime.datetime(2024, 2, 29, 0, 0, 0, 123_000)},
        {"size": -7, "open": False, "at": datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000)},
    ]


def test_listed_items_without_users_count_zero():
    """Listed items have their places by count, and are cut at the limit of the head."""
    cluster = FakeCluster()
    cluster.answers[0] |= table_of([["a", 3], ["X", 3]][::-1])
    domain = pa.table({"item": ["q", "a", "é", "X"]})
    assert head_of(cluster, HeadRequest("user", ("item",), 4, domain=domain)) == [
        (("X",), 3),
        (("a",), 3),
        (("q",), 0),
        (("é",), 0),
    ]
    assert len(head_of(cluster, HeadRequest("user", ("item",), 2, domain=domain))) == 3


def test_an_item_that_was_not_listed_is_refused():
    """Pinot must return listed items only."""
    cluster = FakeCluster()
    cluster.answers[0] |= table_of([["a", 3], ["x", 3]])
    with pytest.raises(InexactHead, match="not listed"):
        head_of(cluster, HeadRequest("user", ("item",), 2, domain=pa.table({"item": ["a", "b"]})))


def test_results_of_the_owners_statements_are_read_only_if_complete():
    """Results have all segments and servers, fewer rows than their LIMIT, and supported types."""
    cluster = FakeCluster()
    good = ANSWER | table_of([["a", 1.5], ["b", None]], ("item", "share"), ("STRING", "DOUBLE"))
    for answer, statement, match in (
        (good, "SELECT item, share FROM t", "LIMIT"),
        (good, "SELECT item, share FROM t LIMIT 2", "LIMIT"),
        (good | {"numSegmentsQueried": 1}, "SELECT item, share FROM t LIMIT 3", "segments"),
        (good | {"numServersResponded": 1}, "SELECT item, share FROM t LIMIT 3", "servers"),
        (good | {"numGroupsLimitReached": True}, "SELECT item, share FROM t LIMIT 3", "numGroupsLimitReached"),
        (good | table_of([["a"]], ("item",), ("MAP",)), "SELECT item FROM t LIMIT 3", "type"),
    ):
        cluster.answers = [answer]
        with cluster.opened() as engine, pytest.raises(EngineError, match=match):
            engine.fetch(statement)
    cluster.answers = [good]
    with cluster.opened() as engine:
        assert engine.fetch("SELECT item, share FROM t limit 3 ;").to_pydict() == {
            "item": ["a", "b"],
            "share": [1.5, None],
        }


@pytest.mark.parametrize(
    ("version", "path", "key"),
    [
        ("0.11", "/segments/events_OFFLINE/metadata", "creationTimeMillis"),
        ("1.4", "/segments/events_OFFLINE/zkmetadata", "segment.creation.time"),
        ("1.5", "/segments/events_OFFLINE/zkmetadata", "segment.creation.time"),
    ],
)
def test_the_data_version_is_made_of_the_segments_creation_times(version, path, key):
    """The order of segments, other fields and replaced segments do not matter."""
    cluster = FakeCluster(version)
    first = {name: {key: made} for name, made in (("s1", 1), ("s2", "2"), ("s3", 3))}
    with cluster.opened() as engine:
        versions = []
        for reply in (
            first,
            dict(reversed(first.items())) | {"s2": {key: 2, "crc": 7}, "replaced": {key: 9}},
            first | {"s3": {key: 4}},
        ):
            cluster.paths[path] = reply
            versions.append(engine.data_version())
        assert versions[0] == versions[1] != versions[2]
        for reply in ({"s1": {key: 1}, "s2": {key: 2}}, first | {"s3": {}}, first | {"s3": {key: None}}, [], (404, "")):
            cluster.paths[path] = reply
            with pytest.raises(EngineError, match="segments"):
                engine.data_version()
        cluster.paths[path] = first
        cluster.paths["/segments/events?type=OFFLINE&excludeReplacedSegments=true"] = [{"OFFLINE": ["s1", "s2"]}]
        assert engine.data_version() != versions[0]


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ({"groups_per_user": 2}, "bounded number"),
        ({"rows_per_group": 2}, "several rows"),
        ({"keep_missing": True}, "missing labels"),
        ({"items": ("tags",)}, "several values"),
        ({"items": ("shut",)}, "notNull"),
        ({"user": "share"}, "notNull"),
    ],
)
def test_unsupported_requests_are_refused(parts, match):
    """The message is one sentence, and no query is sent."""
    cluster = FakeCluster()
    with pytest.raises(InputError, match=match):
        head_of(cluster, HeadRequest(**({"user": "user", "items": ("item",), "limit": 2} | parts)))
    assert cluster.queries == []
