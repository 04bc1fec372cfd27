"""The engines of a catalog, opened once, and what is read from them before any question."""

from __future__ import annotations

import datetime
import threading
from dataclasses import replace
from fractions import Fraction

import pyarrow as pa
import pytest

from discreet.catalog.engine_pool import EnginePool, VersionedReader
from discreet.catalog.loader import load_catalog
from discreet.engines import opening
from discreet.errors import (
    EngineError,
    EngineTimeout,
    EngineUnreachable,
    InexactHead,
    InputError,
    UnfitData,
)
from discreet.head_request import HeadRequest, Kind, PrivatelyBounded
from tests.catalog.fakes import FakeEngine, catalog_of

COLUMNS = {"u": Kind.TEXT, "a": Kind.TEXT, "b": Kind.TEXT}
LISTED = 'columns.a = { type = "text", group = true, domain = { query = "SELECT a" } }\n'
REQUEST = HeadRequest("u", ("a",), 1)


class Engine(FakeEngine):
    """Records requests, and fails at heads if set to."""

    def __init__(self, error=None, version="1", columns=COLUMNS):
        super().__init__(columns, {"SELECT a": pa.table({"a": ["x", "y"]})}, version)
        self.error, self.asked = error, []

    def scale(self, column):
        """Two digits."""
        self.asked.append(column)
        return 2

    def fetch(self, statement):
        """As before, and notes it."""
        self.asked.append(statement)
        return super().fetch(statement)

    def head(self, request, *, seed=b"", progress=None):
        """What it was asked, in place of a head."""
        if self.error is not None:
            raise self.error
        return request, seed, progress


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Opens a catalog with such settings, whose engine is the one given; counts how often."""

    def open_(settings, engine):
        def opening_of(*_, **__):
            made.append(engine)
            if isinstance(engine, Exception):
                raise engine
            return engine

        made = []
        monkeypatch.setattr(opening, "open_engine", opening_of)
        clock = lambda: datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)  # noqa: E731 - an argument
        return EnginePool(catalog_of(tmp_path, settings), clock, {}), made

    return open_


@pytest.mark.parametrize(
    ("url", "pairs"),
    [
        ("pinot://broker:8099", False),
        ("trino://me@db/hive/web", False),
        ("trino://me@db/hive/web?scratch=memory.default", True),
        ("clickhouse://me@db/web", False),
        ("clickhouse://me@db/web?temporary=true", True),
        ("postgresql://reader@db/warehouse", True),
    ],
)
def test_an_engine_that_cannot_be_opened_has_pair_queries_by_its_url(tmp_path, url, pairs):
    """So that a plan names the mechanism that will answer."""
    (tmp_path / "catalog.toml").write_text(
        f'[engines.w]\nurl = "{url}"\npassword_env = "SECRET"\n'
        '[datasets.d]\nengine = "w"\ntable = "reads"\nuser = "u"\ncolumns.a = { type = "text", group = true }\n'
    )
    pool = EnginePool(load_catalog(tmp_path / "catalog.toml"), datetime.datetime.now, {})
    assert pool.has_pairs("d") is pairs


def test_concurrent_requests_open_an_engine_once(opened):
    """Twenty threads, one connection, and all get it."""
    engine = Engine()
    datasets, made = opened("", engine)
    got, start = [], threading.Barrier(20)

    def ask():
        start.wait()
        got.append(datasets.engine("d"))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [engine] * 20
    assert made == [engine]
    datasets.close()
    assert engine.closed


def test_an_engine_that_could_not_be_opened_is_tried_again(opened, monkeypatch):
    """A server that was down is asked again at the next question."""
    datasets, made = opened("", EngineUnreachable("no server answers at db.internal"))
    for _ in range(2):
        with pytest.raises(EngineError):
            datasets.engine("d")
    assert len(made) == 2
    engine = Engine()
    monkeypatch.setattr(opening, "open_engine", lambda *_, **__: engine)
    assert datasets.engine("d") is engine


@pytest.mark.parametrize(
    "failing",
    [
        InputError("there is no file '/srv/secret/t.parquet'"),
        EngineUnreachable("no server answers at db.internal"),
        OSError(2, "No such file", "/srv/secret/t.parquet"),
        Engine(columns={"u": Kind.TEXT, "hidden": Kind.TEXT}),
        Engine(columns=None),
    ],
)
def test_errors_for_the_owner_hold_no_names(opened, failing):
    """No file, no host and no column leaves; the cause is there for the owner (T: nothing of the server leaks)."""
    datasets, _ = opened("", failing)
    with pytest.raises(EngineError) as caught:
        datasets.engine("d")
    assert str(caught.value) == "the dataset 'd' cannot be queried now: its owner should run discreet catalog check"
    assert caught.value.__cause__ is not None
    assert not isinstance(failing, Engine) or failing.closed


@pytest.mark.parametrize("ask", ["version", "domain"])
def test_failed_statements_of_the_owner_are_reported_without_names(opened, ask):
    """A version that is none, a domain whose statement fails."""
    datasets, _ = opened(LISTED.replace("SELECT a", "SELECT x") + 'data_version = { query = "SELECT a" }', Engine())
    with pytest.raises(EngineError, match="its owner should run"):
        datasets.version("d") if ask == "version" else datasets.domain("d", ("a",))


def test_a_listed_domain_is_read_once_for_each_version(opened):
    """Kept while the version is the same, read anew when it is not, and only the newest is kept."""
    engine = Engine()
    datasets, _ = opened(LISTED, engine)
    first = datasets.domain("d", ("a",))
    assert first.column("a").to_pylist() == ["x", "y"]
    assert datasets.domain("d", ("a",)) is first
    assert engine.asked == ["SELECT a"]
    for version in ("2", "1"):
        engine._version = version
        assert datasets.domain("d", ("a",)) is not first
    assert engine.asked == ["SELECT a"] * 3


def test_a_listed_domain_is_read_each_time_if_the_version_is_unknown(opened):
    """It may have changed."""
    engine = Engine(version=None)
    datasets, _ = opened(LISTED, engine)
    datasets.domain("d", ("a",))
    datasets.domain("d", ("a",))
    assert engine.asked == ["SELECT a"] * 2


def test_a_domain_that_the_catalog_writes_out_is_made_once(opened):
    """It does not depend on the data, so no version is asked for."""
    settings = 'columns.a = { type = "text", group = true, domain = ["x", "y"] }\ndata_version = { query = "SELECT a" }'
    engine = Engine()
    datasets, _ = opened(settings, engine)
    assert datasets.domain("d", ("a",)) is datasets.domain("d", ("a",))
    assert engine.asked == []
    assert datasets.domain("d", ()) is None


def test_scales_are_read_once(opened):
    """An engine that counts answers one question at a time: planning must not wait for it."""
    engine = Engine()
    datasets, _ = opened("", engine)
    assert [datasets.scale("d", "a"), datasets.scale("d", "a")] == [2, 2]
    assert engine.asked == ["a"]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (EngineError("DuckDB failed at /srv/t.parquet"), "the engine of the dataset 'd' failed"),
        (EngineTimeout("db.internal is late"), "the engine of the dataset 'd' did not answer in time"),
        (InexactHead("db.internal lies"), "the engine of the dataset 'd' answered, but its answer is not proven exact"),
        (EngineUnreachable("db.internal is down"), "cannot be reached now; nothing was queried"),
        (UnfitData("/srv/t.parquet holds it"), "holds a value that is not what its owner declared it to be"),
    ],
)
def test_an_engine_that_fails_names_the_dataset_only(error, sentence):
    """The kind of the error stays; the engine's own sentence is the cause."""
    engine = VersionedReader(Engine(error), "d", lambda: True)
    with pytest.raises(type(error)) as caught:
        engine.head(REQUEST)
    assert type(caught.value) is type(error)
    assert str(caught.value).endswith(sentence)
    assert "'d'" in str(caught.value)
    assert caught.value.__cause__ is error


def test_a_query_that_an_engine_cannot_answer_keeps_its_sentence():
    """It speaks of the question."""
    error = InputError("Pinot cannot keep missing labels")
    with pytest.raises(InputError) as caught:
        VersionedReader(Engine(error), "d", lambda: True).head(REQUEST)
    assert caught.value is error


def test_an_engine_that_does_not_know_private_bounds_is_not_read_for_one():
    """Another package's may return the sums alone; the check precedes the start, so nothing is charged (I3)."""
    engine = VersionedReader(Engine(), "d", lambda: True)
    with pytest.raises(InputError, match="choose the bound of 'b' privately; declare its sum without private_bound"):
        engine.check(replace(REQUEST, summed=PrivatelyBounded("b", Fraction(0), Fraction(8))))


def test_a_version_that_cannot_be_read_after_counting_is_no_unreachable_engine(opened):
    """The rows were read by then, so it must not look like an engine that was asked nothing (I3)."""
    engine = Engine()
    datasets, _ = opened('data_version = { query = "SELECT gone" }', engine)
    engine.fetch = lambda _: (_ for _ in ()).throw(EngineUnreachable("db.internal is down"))
    steady = VersionedReader(engine, "d", lambda: datasets.version("d") == "1")
    with pytest.raises(EngineError) as caught:
        steady.head(REQUEST)
    assert not isinstance(caught.value, EngineUnreachable)


def test_a_head_of_an_unchanged_version_is_the_engines():
    """With all arguments."""
    reader = VersionedReader(Engine(), "d", lambda: True)
    assert reader.head(REQUEST, seed=b"s", progress=print) == (REQUEST, b"s", print)
