"""Data frames of Spark, in this process and at a Spark Connect server, are counted by sessions of our own."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from discreet.engines.duckdb import DuckDBEngine
from discreet.engines.opening import open_engine
from discreet.engines.spark_frame import SparkFrameEngine
from discreet.engines.spark_session import connect_url, unwarned
from discreet.engines.url import parse_url
from discreet.errors import EngineError, InputError
from discreet.head_request import HeadRequest
from discreet.testing.engines import check_pair_queries, reference_pairs, rows_of
from tests.servers import spark as spark_server
from tests.servers.questions import KINDS, questions
from tests.servers.table import engagements

REQUEST = HeadRequest("who", ("item",), 10)
TABLE = pa.table({"who": [1, 2, 3, 3, None], "item": ["a", "a", "b", "a", "b"]})
HEAD = [(("a",), 3), (("b",), 1)]


@pytest.fixture(scope="module")
def classic():
    """Return a session in this process, with settings that conflict with those that exact heads need."""
    with spark_server.local_session() as session:
        yield session


@pytest.fixture(scope="module")
def connect(server):
    """Return a user's session at a Spark Connect server with the same settings."""
    with unwarned():
        from pyspark.sql.connect.session import SparkSession

    session = SparkSession(connect_url(parse_url(server("spark"))) + f";session_id={uuid.uuid4()}")
    yield session
    session.stop()


@pytest.fixture(params=["classic", "connect"])
def session(request):
    """Return the user's session, in this process or at a server."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def parquet(tmp_path):
    """Return a folder of two Parquet files, whose rows are those of TABLE."""
    for part in range(2):
        pq.write_table(TABLE.slice(part * 2, 2 + part), tmp_path / f"{part}.parquet")
    return tmp_path


def views(session):
    """Return the names of the global temporary views."""
    return [table.name for table in session.catalog.listTables("global_temp") if table.name.startswith("discreet_")]


def test_a_frame_is_counted_and_the_users_session_is_unchanged(session, parquet):
    """The head is exact, and the frame's session keeps its settings and gets no view of its own."""
    before = {name: session.conf.get(name) for name in spark_server.CONFLICTING_SETTINGS}
    frame = session.read.parquet(str(parquet)).withColumnRenamed("item", "Item")
    with contextlib.closing(open_engine(frame)) as engine:
        assert isinstance(engine, SparkFrameEngine)
        assert engine.name == "the Spark DataFrame"
        assert rows_of(engine, HeadRequest("who", ("Item",), 10)) == HEAD
        assert len(views(session)) == 1
        assert not [table for table in session.catalog.listTables() if table.isTemporary]
    assert views(session) == []
    assert {name: session.conf.get(name) for name in spark_server.CONFLICTING_SETTINGS} == before
    with pytest.raises(EngineError, match="finds no such table or file: the Spark DataFrame"):
        engine.head(HeadRequest("who", ("Item",), 10))


def test_pair_queries_of_a_frame_equal_the_reference(session):
    """The pairs of a frame from memory are those of its rows."""
    with contextlib.closing(open_engine(session.createDataFrame(TABLE))) as engine, engine.pairs(REQUEST) as pairs:
        check_pair_queries(pairs, reference_pairs(TABLE, REQUEST))


def test_heads_of_frames_are_those_of_duckdb(session, tmp_path):
    """Heads equal DuckDB's for labels and filters of all kinds."""
    pq.write_table(engagements(5_000), tmp_path / "large.parquet")
    columns = tuple(column for column in KINDS if column != "member_id")
    frame = session.read.parquet(str(tmp_path / "large.parquet"))
    with (
        contextlib.closing(DuckDBEngine(tmp_path / "large.parquet")) as duckdb,
        contextlib.closing(open_engine(frame)) as engine,
    ):
        for request in questions(6, columns, 5):
            assert rows_of(engine, request, b"seed") == rows_of(duckdb, request, b"seed"), request


def test_a_view_ends_with_its_engine(session):
    """An engine that nobody closed and nobody holds leaves no view."""
    engine = open_engine(session.createDataFrame(TABLE))
    assert len(views(session)) == 1
    del engine
    gc.collect()
    assert views(session) == []


def test_the_pinned_settings_apply_to_the_frames_files(session, parquet):
    """A file that cannot be read is an error, although the user's session ignores it."""
    frame = session.read.parquet(str(parquet))
    with contextlib.closing(open_engine(frame)) as engine:
        file = parquet / "1.parquet"
        content = file.read_bytes()
        file.write_bytes(content[:30] + bytes(len(content) - 40) + content[-10:])
        assert frame.count() == 2
        with pytest.raises(EngineError, match="could not answer"):
            engine.head(REQUEST)


@pytest.mark.parametrize("option", ["ignoreCorruptFiles", "IGNOREMISSINGFILES"])
def test_frames_that_leave_files_out_are_refused(session, parquet, option):
    """An option of a frame would win over the settings; it is found below other steps, and in subqueries."""
    frame = session.read.option(option, "true").parquet(str(parquet))
    name = f"lenient_{option}"
    frame.createOrReplaceTempView(name)
    whole = session.createDataFrame(TABLE)
    for lenient in (frame, frame.filter("who > 1").join(whole, "who").select("who", whole["item"])):
        with pytest.raises(InputError, match="leaves out files that cannot be read; read it again without"):
            open_engine(lenient)
    assert views(session) == []
    session.catalog.dropTempView(name)


STEPS = {
    "limit()": lambda frame: frame.limit(2),
    "offset()": lambda frame: frame.offset(1),
    "sample()": lambda frame: frame.filter("who > 0").sample(0.5).select("who", "item"),
    "dropDuplicates() or distinct()": lambda frame: frame.dropDuplicates(["item"]),
    "a window function": lambda frame: frame.selectExpr("who", "item", "count(*) OVER (PARTITION BY item) AS n"),
    "rand()": lambda frame: frame.filter("rand(1) < 0.5"),
    "monotonically_increasing_id()": lambda frame: frame.selectExpr("monotonically_increasing_id() AS who", "item"),
}


@pytest.mark.parametrize("step", STEPS)
def test_frames_in_which_users_depend_on_each_other_are_refused(session, step):
    """One user's rows would decide whether those of others are counted, and the sensitivity would not hold."""
    frame = STEPS[step](session.createDataFrame(TABLE))
    with pytest.raises(InputError, match=rf"has {step.replace('(', '.').replace(')', '.')}, so that rows") as error:
        open_engine(frame)
    assert "\n" not in str(error.value)
    assert views(session) == []


def test_limits_in_subqueries_and_statements_are_refused(session):
    """A limit decides about rows wherever it stands; the word in a label does not."""
    session.createDataFrame(TABLE).createOrReplaceTempView("held")
    for statement in (
        "SELECT * FROM held WHERE who IN (SELECT who FROM held LIMIT 1)",
        "WITH few AS (SELECT * FROM held LIMIT 2) SELECT * FROM few",
        "SELECT * FROM held TABLESAMPLE (2 ROWS)",
    ):
        with pytest.raises(InputError, match="has limit"):
            open_engine(session.sql(statement))
    named = session.sql("SELECT who, concat(item, 'Sample') AS item FROM held WHERE item <> 'GlobalLimit 1'")
    with contextlib.closing(open_engine(named)) as engine:
        assert rows_of(engine, REQUEST) == [(("aSample",), 3), (("bSample",), 1)]
    session.catalog.dropTempView("held")


def test_streams_and_arguments_of_tables_are_refused(session):
    """A stream has no end, and a frame no tables."""
    stream = session.readStream.format("rate").load()
    with pytest.raises(InputError, match="is a stream; write it to a table"):
        open_engine(stream)
    with pytest.raises(InputError, match="give no table"):
        open_engine(session.createDataFrame(TABLE), table="t")
    with pytest.raises(InputError, match=r"withColumn\(\) of a Spark DataFrame"):
        open_engine(session.createDataFrame(TABLE), cast={"who": "text"})
    with pytest.raises(InputError, match="a Spark DataFrame is a source"):
        open_engine(session.createDataFrame(TABLE).groupBy("item"))


def test_casts_of_a_frame_keep_the_users_settings(session):
    """A cast that the frame holds follows the user's settings, here without ANSI: what cannot be cast is missing."""
    frame = session.createDataFrame(pa.table({"who": ["1", "x"], "item": ["a", "a"]}))
    with contextlib.closing(open_engine(frame.selectExpr("CAST(who AS INT) AS who", "item"))) as engine:
        assert rows_of(engine, REQUEST) == [(("a",), 1)]


def test_a_view_ends_with_the_process(connect, server):
    """A process that closes nothing leaves no view at a server."""
    parts = parse_url(server("spark"))
    program = f"""
import discreet, pyarrow as pa
from pyspark.sql import SparkSession
session = SparkSession.builder.remote("sc://{parts.host}:{parts.port}/;token={parts.password}").getOrCreate()
table = discreet.scan(session.createDataFrame(pa.table({{"who": [1], "item": ["a"]}})), user="who")
print(len([t for t in session.catalog.listTables("global_temp") if t.name.startswith("discreet_")]))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert views(connect) == []
