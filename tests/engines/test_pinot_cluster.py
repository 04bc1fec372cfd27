"""Settings and versions under which Pinot's counts may be inexact are refused by name."""

from __future__ import annotations

import pytest

from discreet.engines.pinot_cluster import GENERATIONS, columns_of
from discreet.errors import EngineError, InexactHead, InputError
from discreet.head_request import HeadRequest, Kind
from discreet.testing.engines import rows_of

from .test_pinot_http import REQUEST, SCHEMA, VERSIONS, FakeCluster


def opened(cluster):
    """Open the table, and return the engine or raise its error."""
    with cluster.opened():
        pass


def broker(cluster, **settings):
    """Return a cluster with other settings of the broker."""
    known = cluster.paths["/appconfigs"]["pinotConfig"]
    known.update({name.replace("__", "."): value for name, value in settings.items()})


def test_every_supported_version_is_tested():
    """A version whose signs of inexact counts are not tested must not be accepted."""
    assert VERSIONS.keys() == GENERATIONS.keys()


@pytest.mark.parametrize("version", ["0.10.0", "0.12.1", "1.0.0", "1.3.0", "1.6.0", "1.55.0", "2.0.0", "0.110.0", ""])
def test_unknown_versions_are_refused(version):
    """Older and later versions are refused, and those that look like supported ones."""
    cluster = FakeCluster()
    cluster.paths["/version"] = {"pinot-controller": version}
    with pytest.raises(InexactHead, match="version"):
        opened(cluster)


@pytest.mark.parametrize(
    "versions",
    [
        {},
        {"pinot-json": "0.11.0"},
        {"pinot-controller": "0.11.0", "pinot-core": "1.5.1"},
        {"pinot-controller": "1.5.1", "pinot-common": "1.4.0-abc"},
    ],
)
def test_differing_versions_are_refused(versions):
    """A partial upgrade and a controller without a version are refused."""
    cluster = FakeCluster()
    cluster.paths["/version"] = versions
    with pytest.raises(InexactHead, match="version"):
        opened(cluster)


@pytest.mark.parametrize(
    "versions",
    [
        {"pinot-distribution": "1.5.1-1b4d6b6"},
        {"pinot-controller": "1.4.0", "pinot-core": "1.4.0", "pinot-json": "1.3.0"},
        {"pinot-controller": "0.11.0-SNAPSHOT-1b4d6b6"},
    ],
)
def test_versions_are_read_as_pinot_writes_them(versions):
    """A version may have a commit; plugins that do not count may have other versions."""
    cluster = FakeCluster()
    cluster.paths["/version"] = versions
    opened(cluster)


@pytest.mark.parametrize(
    "name",
    [
        "pinot.broker.use.approximate.function",
        "enable.distinct.count.bitmap.override",
        "pinot.broker.query.rewriter.class.names",
        "pinot.broker.result.rewriter.class.names",
    ],
)
@pytest.mark.parametrize("spelled", [str, str.upper, lambda name: name.replace("approx", "ap-pr_ox")])
def test_brokers_that_rewrite_queries_are_refused(name, spelled):
    """Settings are recognised in every spelling that Pinot accepts."""
    for version, value in (("0.11", "true"), ("1.4", True), ("1.5", " TRUE ")):
        cluster = FakeCluster(version)
        broker(cluster, **{spelled(name): value})
        with pytest.raises(InexactHead, match=name.replace(".", r"\.")):
            opened(cluster)


def test_brokers_with_disabled_settings_are_accepted():
    """False is the default of these settings."""
    cluster = FakeCluster()
    broker(
        cluster, pinot__broker__use__approximate__function="false", enable__distinct__count__bitmap__override="false"
    )
    opened(cluster)


@pytest.mark.parametrize("threshold", [None, 20, "1000000", 999_999_999, "0", "-1"])
def test_brokers_of_0_11_that_trim_are_refused(threshold):
    """Later versions have an option that prevents trimming in every query."""
    for version, refused in (("0.11", True), ("1.4", False), ("1.5", False)):
        cluster = FakeCluster(version)
        del cluster.paths["/appconfigs"]["pinotConfig"]["pinot.broker.groupby.trim.threshold"]
        if threshold is not None:
            broker(cluster, pinot__broker__groupby__trim__threshold=threshold)
        if refused:
            with pytest.raises(InexactHead, match=r"pinot\.broker\.groupby\.trim\.threshold"):
                opened(cluster)
        else:
            opened(cluster)


@pytest.mark.parametrize("limit", [2, "2", 0, -1])
def test_brokers_with_a_row_limit_get_queries_below_it(limit):
    """A head of two items needs three rows."""
    cluster = FakeCluster()
    broker(cluster, pinot__broker__query__response__limit=limit)
    with cluster.opened() as engine, pytest.raises(InexactHead, match=r"pinot\.broker\.query\.response\.limit"):
        engine.head(REQUEST)
    assert cluster.queries == []
    broker(cluster, pinot__broker__query__response__limit=3)
    with cluster.opened() as engine:
        engine.head(REQUEST)


@pytest.mark.parametrize(
    ("config", "error", "match"),
    [
        ({}, InputError, "no offline table"),
        ((404, ""), InputError, "no offline table"),
        ({"REALTIME": {}}, InexactHead, "takes in rows"),
        ({"OFFLINE": {}, "REALTIME": {}}, InexactHead, "takes in rows"),
        ({"OFFLINE": {"query": {"useApproximateFunction": True}}}, InexactHead, "useApproximateFunction"),
        ({"OFFLINE": {"query": {"expressionOverrideMap": {"a": "b"}}}}, InexactHead, "expressionOverrideMap"),
        ({"OFFLINE": {"upsertConfig": {"mode": "FULL"}}}, InexactHead, "upsertConfig"),
        ({"OFFLINE": {"upsertConfig": {"mode": "PARTIAL"}}}, InexactHead, "upsertConfig"),
    ],
)
def test_tables_whose_settings_make_counts_inexact_are_refused(config, error, match):
    """Missing tables and tables that are updated in place are refused too."""
    cluster = FakeCluster()
    cluster.paths["/tables/events"] = config
    with pytest.raises(error, match=match):
        opened(cluster)


def test_tables_with_disabled_settings_are_accepted():
    """Empty or false is the default of these settings."""
    cluster = FakeCluster()
    query = {"useApproximateFunction": False, "expressionOverrideMap": {}, "disableGroovy": True}
    cluster.paths["/tables/events"] = {"OFFLINE": {"query": query, "upsertConfig": {"mode": "NONE"}}}
    opened(cluster)


def test_users_that_are_added_up_by_segment_are_refused():
    """Pinot would count a user of a partitioned column once for each segment; other columns may be partitioned."""
    cluster = FakeCluster()
    fields = [{"name": "user", "properties": {"isSegmentPartitioned": "TRUE"}}, {"name": "item", "properties": None}]
    cluster.paths["/tables/events"]["OFFLINE"]["fieldConfigList"] = fields
    with cluster.opened() as engine:
        with pytest.raises(InexactHead, match="isSegmentPartitioned of column 'user'"):
            engine.head(REQUEST)
        fields[0]["name"] = "size"
        assert len(rows_of(engine, REQUEST)) == 3


@pytest.mark.parametrize("path", ["/version", "/appconfigs", "/tables/events/schema", "/tables/events"])
@pytest.mark.parametrize("answer", [[], "text", None, 7, {"pinotConfig": 7}, [[{}]]])
def test_an_invalid_response_is_refused(path, answer):
    """Any invalid response raises our own error."""
    cluster = FakeCluster()
    cluster.paths[path] = answer
    with pytest.raises((EngineError, InputError)), cluster.opened() as engine:
        engine.head(REQUEST)


def test_columns_are_those_of_the_schema():
    """Lists, unsupported types and ambiguous names cannot be queried."""
    schema = {
        "dimensionFieldSpecs": [
            *SCHEMA["dimensionFieldSpecs"],
            {"name": "events.item", "dataType": "STRING"},
            {"name": "$docId", "dataType": "INT"},
            {"name": "json", "dataType": "JSON"},
            {"name": "raw", "dataType": "BYTES"},
        ],
        "metricFieldSpecs": [{"name": "price", "dataType": "BIG_DECIMAL"}, {"name": "n", "dataType": "FLOAT"}],
        "dateTimeFieldSpecs": [{"name": "at", "dataType": "TIMESTAMP"}, {"name": "ms", "dataType": "LONG"}],
    }
    kinds = {name: column.kind for name, column in columns_of(schema, "events").items()}
    assert kinds == {
        "user": Kind.INTEGER,
        "item": Kind.TEXT,
        "size": Kind.INTEGER,
        "open": Kind.BOOLEAN,
        "shut": Kind.BOOLEAN,
        "tags": Kind.OTHER,
        "events.item": Kind.OTHER,
        "$docId": Kind.OTHER,
        "json": Kind.OTHER,
        "raw": Kind.OTHER,
        "price": Kind.OTHER,
        "n": Kind.FLOAT,
        "at": Kind.TIMESTAMP,
        "ms": Kind.INTEGER,
    }


@pytest.mark.parametrize(
    ("part", "field", "stored"),
    [
        ("dimension", {"dataType": "STRING"}, "null"),
        ("dimension", {"dataType": "STRING", "defaultNullValue": ""}, ""),
        ("dimension", {"dataType": "INT"}, "-2147483648"),
        ("dimension", {"dataType": "LONG"}, "-9223372036854775808"),
        ("dimension", {"dataType": "LONG", "defaultNullValue": "-1"}, "-1"),
        ("dateTime", {"dataType": "TIMESTAMP"}, "0"),
        ("dateTime", {"dataType": "TIMESTAMP", "defaultNullValue": "2000-01-01 00:00:00.0"}, None),
        ("dimension", {"dataType": "BOOLEAN"}, None),
        ("dimension", {"dataType": "BOOLEAN", "defaultNullValue": 1}, None),
        ("metric", {"dataType": "LONG"}, None),
        ("metric", {"dataType": "LONG", "defaultNullValue": -1}, "-1"),
        ("metric", {"dataType": "DOUBLE"}, None),
        ("dimension", {"dataType": "DOUBLE"}, "-Infinity"),
        ("metric", {"dataType": "DOUBLE", "defaultNullValue": 0.5}, "0.5"),
    ],
)
def test_a_column_whose_default_null_value_is_unknown_is_refused(part, field, stored):
    """The default null value must be distinguishable; a timestamp as text has an unknown time zone."""
    column = columns_of({f"{part}FieldSpecs": [{"name": "x"} | field]}, "t")["x"]
    assert (column.stored, column.nullable) == (stored, True)
    declared = columns_of({f"{part}FieldSpecs": [{"name": "x", "notNull": True} | field]}, "t")["x"]
    assert not declared.nullable


def test_columns_declared_not_null_need_no_null_value():
    """A boolean column that is declared notNull is a label."""
    cluster = FakeCluster()
    table = cluster.answers[0]["resultTable"]
    table["dataSchema"] = {"columnNames": ["open", "distinctcount(user)"], "columnDataTypes": ["BOOLEAN", "INT"]}
    table["rows"] = [[False, 4], [True, 3]]
    cluster.answers[0]["numRowsResultSet"] = 2
    with cluster.opened() as engine:
        assert rows_of(engine, HeadRequest("user", ("open",), 2)) == [((False,), 4), ((True,), 3)]
    assert '"open" <>' not in cluster.queries[0]
