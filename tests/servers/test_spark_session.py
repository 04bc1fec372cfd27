"""Spark in this process: with a notebook's existing session, without one, and as the driver of a cluster."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from discreet.engines.duckdb import DuckDBEngine
from discreet.engines.spark import SparkEngine
from discreet.errors import EngineError
from discreet.head_request import Constant, HeadRequest, Kind, Membership
from discreet.testing.engines import check_pair_queries, reference_pairs, rows_of
from tests.servers import process
from tests.servers import spark as spark_server
from tests.servers.questions import KINDS, questions
from tests.servers.table import TRAPS, engagements

REQUEST = HeadRequest("who", ("item",), 10)
SLOW = "SELECT id % 9 AS who, id % 7 AS item FROM range(0, 20000000000, 1, 100)"
ALONE = """
import gc, os, signal, sys, threading
from py4j import clientserver
from discreet.engines.spark import SparkEngine
from discreet.errors import EngineError
from discreet.head_request import HeadRequest
from discreet.testing.engines import check_pair_queries, reference_pairs, rows_of

engine = SparkEngine(sys.argv[1])
try:
    print(rows_of(engine, HeadRequest("who", ("item",), 10)))
    if sys.argv[2:]:
        from pyspark import SparkContext
        SparkContext._active_spark_context.stop()
        print(rows_of(engine, HeadRequest("who", ("item",), 10)))
        gc.collect()
        gc.disable()  # py4j logs that it cannot delete the objects of a process that was killed
        SparkContext._gateway._gateway_client.finalizer_deque.appendleft(clientserver.SHUTDOWN_FINALIZER_WORKER)
        [thread.join() for thread in threading.enumerate() if isinstance(thread, clientserver.FinalizerWorker)]
        os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
        SparkContext._gateway.proc.wait()
        print(rows_of(engine, HeadRequest("who", ("item",), 10)))
except EngineError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def notebook():
    """Return a notebook's own Spark session, with its own settings."""
    with spark_server.local_session() as session:
        yield session


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with a Parquet file of two users and one item, and one of the shared table."""
    folder = tmp_path_factory.mktemp("files")
    pq.write_table(pa.table({"who": [1, 2], "item": ["a", "a"]}), folder / "small.parquet")
    pq.write_table(engagements(20_000), folder / "large.parquet")
    return folder


@pytest.fixture
def alone(files):
    """Return a function that prints the head of a small file in a separate process and returns its output."""

    def run(source, *arguments, **variables):
        command = [sys.executable, "-c", ALONE, f"{source}?path={files}/small.parquet", *arguments]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=files, env={**os.environ, **variables}
        )
        return done.stdout, done.stderr

    return run


def until_idle(session):
    """Wait until Spark is idle, a minute at most."""
    tracker = session.sparkContext.statusTracker()
    end = time.monotonic() + 60
    while tracker.getActiveJobsIds() or tracker.getActiveStageIds():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_pairs_are_kept_for_a_session_only(notebook, files):
    """Pair queries equal the reference, and the persisted data is released afterwards."""
    path = f"{files}/small.parquet"
    with SparkEngine(f"spark://local?path={path}").pairs(REQUEST) as pairs:
        check_pair_queries(pairs, reference_pairs(pq.read_table(path), REQUEST))
    assert notebook.sparkContext._jsc.getPersistentRDDs().isEmpty()


@pytest.mark.usefixtures("notebook")
def test_heads_are_those_of_duckdb(files):
    """Heads equal DuckDB's for labels and filters of all kinds, bounds, and a listed domain with all traps."""
    columns = tuple(column for column in KINDS if column != "member_id")
    traps = pa.table({"article": TRAPS})
    constants = tuple(Constant(Kind.TEXT, trap) for trap in TRAPS)
    asked = [
        *questions(6, columns, 9),
        HeadRequest("member_id", ("article", "at", "price"), 50, rows_per_group=2, groups_per_user=2),
        HeadRequest("member_id", ("article",), len(TRAPS), domain=traps),
        HeadRequest("member_id", ("article",), 50, Membership("article", constants)),
    ]
    path = f"{files}/large.parquet"
    spark = SparkEngine(f"spark://local?path={path}")
    with contextlib.closing(DuckDBEngine(path)) as duckdb:
        for request in asked:
            ours, theirs = (engine.head(request, seed=b"seed") for engine in (spark, duckdb))
            assert ours.labels.equals(theirs.labels), request
            assert ours.counts.tolist() == theirs.counts.tolist(), request


def test_a_notebooks_session_is_unchanged(notebook, files):
    """A notebook's settings, views and active session are unchanged, and its global views can be counted."""
    notebook.createDataFrame(pa.table({"who": [1], "item": ["mine"]})).createOrReplaceTempView("source")
    notebook.createDataFrame(pa.table({"who": [1], "item": ["shared"]})).createOrReplaceGlobalTempView("shared")
    before = {name: notebook.conf.get(name) for name in spark_server.CONFLICTING_SETTINGS}
    handler = signal.getsignal(signal.SIGINT)
    assert rows_of(SparkEngine(f"spark://local?path={files}/small.parquet"), REQUEST) == [(("a",), 2)]
    assert rows_of(SparkEngine("spark://local", table="global_temp.shared"), REQUEST) == [(("shared",), 1)]
    assert (
        {name: notebook.conf.get(name) for name in spark_server.CONFLICTING_SETTINGS}
        == before
        == spark_server.CONFLICTING_SETTINGS
    )
    assert notebook.table("source").toArrow().column("item").to_pylist() == ["mine"]
    assert [table.name for table in notebook.catalog.listTables()] == ["source"]
    assert signal.getsignal(signal.SIGINT) is handler
    assert type(notebook).getActiveSession().table("source").count() == 1


def test_ctrl_c_ends_the_count(notebook):
    """Ctrl-C cancels the count, and the engine remains usable."""
    until_idle(notebook)
    engine = SparkEngine("spark://local", view=SLOW)
    tracker = notebook.sparkContext.statusTracker()

    def press(share):
        assert 0 <= share <= 1
        if tracker.getActiveStageIds():
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        engine.head(REQUEST, progress=press)
    until_idle(notebook)
    assert engine.fetch("SELECT 1 AS one").to_pylist() == [{"one": 1}]


def test_a_timeout_ends_the_jobs(notebook):
    """A timeout ends the count's jobs."""
    until_idle(notebook)
    engine = SparkEngine("spark://local", view=SLOW, timeout_seconds=4)
    shares = []
    with pytest.raises(EngineError, match="within 4 seconds"):
        engine.head(REQUEST, progress=shares.append)
    assert shares
    until_idle(notebook)


@pytest.mark.usefixtures("notebook")
def test_progress_is_reported_by_tasks():
    """Progress is reported by completed tasks, with shares between 0 and 1 while they run."""
    shares = []
    view = "SELECT id AS who, id % 7 AS item FROM range(0, 20000000, 1, 100)"
    SparkEngine("spark://local", view=view).head(REQUEST, progress=shares.append)
    assert len({share for share in shares if 0 < share < 1}) > 1


@pytest.mark.usefixtures("notebook")
def test_a_second_cluster_in_one_process_is_refused():
    """A second cluster in one process is refused; otherwise the query would silently go to the first."""
    with pytest.raises(EngineError, match="only one"):
        SparkEngine("spark://elsewhere:7077", table="t").columns()


def test_spark_starts_silently_and_again_after_it_ended(files, alone):
    """Spark starts silently, again after its Java process was killed, and leaves no files in the working directory."""
    stdout, stderr = alone("spark://local", "kill")
    assert stdout == "[(('a',), 2)]\n" * 3
    assert stderr == ""
    assert sorted(path.name for path in files.iterdir()) == ["large.parquet", "small.parquet"]


def test_settings_that_cannot_be_changed_are_refused(alone, tmp_path):
    """A fixed setting that makes Hive tables skip corrupt files is refused."""
    (tmp_path / "spark-defaults.conf").write_text("spark.files.ignoreCorruptFiles true\n")
    stdout, _ = alone("spark://local", SPARK_CONF_DIR=str(tmp_path))
    assert stdout.startswith("InexactHead ")
    assert "spark.files.ignoreCorruptFiles" in stdout


def test_missing_java_is_reported_in_one_sentence(alone, tmp_path):
    """Missing Java, in JAVA_HOME or on the path, is reported in one sentence."""
    for variables in ({"JAVA_HOME": str(tmp_path)}, {"JAVA_HOME": "", "PATH": str(tmp_path)}):
        stdout, stderr = alone("spark://local", **variables)
        assert stdout.startswith("EngineError Spark needs Java 17 or later")
        assert stderr == ""


def test_an_unreachable_master_is_reported_at_once(alone):
    """An unreachable master is reported at once, while Spark itself would retry for a minute."""
    stdout, stderr = alone(f"spark://127.0.0.1:{process.free_port()}")
    assert stdout.startswith("EngineUnreachable no Spark answers at spark://127.0.0.1")
    assert stderr == ""


def test_a_cluster_counts_for_a_driver_in_this_process(alone, tmp_path):
    """A cluster with one worker gives the same head."""
    url = spark_server.start_cluster(tmp_path)
    try:
        assert alone(url) == ("[(('a',), 2)]\n", "")
    finally:
        spark_server.stop_cluster(tmp_path)
