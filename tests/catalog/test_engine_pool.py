"""The engines of a catalog are opened once, and their metadata is cached."""

from __future__ import annotations

import contextlib
import datetime
import threading
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import pyarrow as pa
import pytest

from discreet.catalog.engine_pool import EnginePool, VersionedReader, open_dataset
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
from discreet.head_request import HeadRequest, Kind, SumBounds
from tests.catalog.fakes import FakeEngine, catalog_of

COLUMNS = {"u": Kind.TEXT, "a": Kind.TEXT, "b": Kind.TEXT, "price": Kind.DECIMAL}
LISTED = 'columns.a = { type = "text", group = true, domain = { query = "SELECT a" } }\n'
SUMMED = 'columns.price = { type = "decimal", sum = { low = 0, high = 8 } }\n'
REQUEST = HeadRequest("u", ("a",), 1)


class Engine(FakeEngine):
    """Records requests, and raises an error for heads if there is one."""

    def __init__(self, error=None, version="1", columns=COLUMNS):
        super().__init__(columns, {"SELECT a": pa.table({"a": ["x", "y"]})}, version)
        self.error, self.requests = error, []

    def scale(self, column):
        """Two digits."""
        self.requests.append(column)
        return 2

    def fetch(self, statement):
        """As before, and notes it."""
        self.requests.append(statement)
        return super().fetch(statement)

    def head(self, request, *, seed=b"", progress=None):
        """Return the request in place of a head."""
        if self.error is not None:
            raise self.error
        return request, seed, progress


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Return a function that opens a catalog with a given engine, and counts how often it is opened."""

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
        ("clickhouse://me@db/web?sent_to=http://proxy", False),
        ("postgresql://reader@db/warehouse", True),
    ],
)
def test_an_unopened_engine_has_pair_queries_by_its_url(tmp_path, url, pairs):
    """A plan names the mechanism that will answer even if the engine cannot be opened."""
    (tmp_path / "catalog.toml").write_text(
        f'[engines.w]\nurl = "{url}"\npassword_env = "SECRET"\n'
        '[datasets.d]\nengine = "w"\ntable = "reads"\nuser = "u"\ncolumns.a = { type = "text", group = true }\n'
    )
    pool = EnginePool(load_catalog(tmp_path / "catalog.toml"), datetime.datetime.now, {})
    assert pool.has_pairs("d") is pairs


@pytest.mark.parametrize(("source", "pairs"), [("gone.parquet", True), ("pinot://broker:8099", False)])
def test_an_unopened_source_has_pair_queries_by_its_url(tmp_path, source, pairs):
    """As one of an engine; files have them."""
    pool = EnginePool(catalog_of(tmp_path, f'source = "{source}"\ntable = "t"'), datetime.datetime.now, {})
    assert pool.has_pairs("d") is pairs


def test_an_engine_is_opened_with_the_settings_of_its_table_and_its_own(tmp_path, monkeypatch):
    """Its password is that of the environment."""
    made = {}
    monkeypatch.setattr(opening, "open_engine", lambda url, **settings: made.update(settings, url=url))
    settings = {"table": "t", "view": None}
    (tmp_path / "catalog.toml").write_text(
        '[engines.w]\nurl = "trino://me@db/hive/web"\npassword_env = "SECRET"\ntimeout_seconds = 7\n'
        '[datasets.d]\nengine = "w"\ntable = "t"\nuser = "u"\ncolumns.a = { type = "text", group = true }\n'
    )
    open_dataset(load_catalog(tmp_path / "catalog.toml"), "d", {"SECRET": "hush"})
    assert made == settings | {"url": "trino://me@db/hive/web", "password": "hush", "timeout_seconds": 7}
    made.clear()
    open_dataset(catalog_of(tmp_path, 'source = "duckdb:///x.db"\ntable = "t"'), "d", {})
    assert made == settings | {"url": made["url"]}


def test_concurrent_requests_open_an_engine_once(opened):
    """Twenty threads get one engine."""
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
    """An engine that could not be opened is opened again for the next query."""
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
    """Errors name no file, host or column; the cause is kept for the log."""
    datasets, _ = opened("", failing)
    with pytest.raises(EngineError) as caught:
        datasets.engine("d")
    assert str(caught.value) == "the dataset 'd' cannot be queried now: its owner should run discreet catalog check"
    assert caught.value.__cause__ is not None
    assert not isinstance(failing, Engine) or failing.closed


@pytest.mark.parametrize("ask", ["version", "domain"])
def test_failed_statements_of_the_owner_are_reported_without_names(opened, ask):
    """An invalid version or a failed statement of a domain is reported without names."""
    datasets, _ = opened(LISTED.replace("SELECT a", "SELECT x") + 'data_version = { query = "SELECT a" }', Engine())
    with pytest.raises(EngineError, match="its owner should run"):
        datasets.version("d") if ask == "version" else datasets.domain("d", ("a",))


def test_a_listed_domain_is_read_when_its_dataset_is_opened(opened):
    """No query reads it, so no label that the owner's query returns decides whether a query is planned."""
    engine = Engine()
    datasets, _ = opened(LISTED, engine)
    first = datasets.domain("d", ("a",))
    assert first.column("a").to_pylist() == ["x", "y"]
    assert datasets.domain("d", ("a",)) is first
    assert engine.requests == ["SELECT a"]


def test_no_dataset_is_opened_to_learn_that_items_have_no_known_domain(opened):
    """A plan without items, or with an item whose labels the catalog does not list, reads nothing."""
    datasets, made = opened(LISTED + 'columns.b = { type = "text", group = true }', Engine())
    assert datasets.domain("d", ()) is None
    assert datasets.domain("d", ("a", "b")) is None
    assert made == []


def test_a_domain_written_in_the_catalog_is_built_once(opened):
    """A domain in the catalog does not depend on the data, so no version is read."""
    settings = 'columns.a = { type = "text", group = true, domain = ["x", "y"] }\ndata_version = { query = "SELECT a" }'
    engine = Engine()
    datasets, _ = opened(settings, engine)
    assert datasets.domain("d", ("a",)) is datasets.domain("d", ("a",))
    assert engine.requests == []
    assert datasets.domain("d", ()) is None


def test_scales_are_read_when_a_dataset_is_opened(opened):
    """Planning must not wait for an engine that answers one query at a time."""
    engine = Engine()
    datasets, _ = opened(SUMMED, engine)
    assert [datasets.scale("d", "price"), datasets.scale("d", "price")] == [2, 2]
    assert engine.requests == ["price"]


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
    """The error keeps its kind, and the engine's message is only its cause."""
    engine = VersionedReader(Engine(error), "d", lambda: True)
    with pytest.raises(type(error)) as caught:
        engine.head(REQUEST)
    assert type(caught.value) is type(error)
    assert str(caught.value).endswith(sentence)
    assert "'d'" in str(caught.value)
    assert caught.value.__cause__ is error


def test_the_message_for_an_unsupported_query_is_kept():
    """A message about the query itself is not replaced."""
    error = InputError("Pinot cannot keep missing labels")
    with pytest.raises(InputError) as caught:
        VersionedReader(Engine(error), "d", lambda: True).head(REQUEST)
    assert caught.value is error


def test_an_engine_without_private_bounds_is_refused_before_the_start():
    """I3: the check precedes the start, so that nothing is charged for an engine that cannot read several bounds."""
    engine = VersionedReader(Engine(), "d", lambda: True)
    with pytest.raises(InputError, match="choose the bound of 'b' privately; declare its sum without private_bound"):
        engine.check(replace(REQUEST, summed=SumBounds(Fraction(0), Fraction(8), private=True, column="b")))


def test_a_request_is_checked_by_its_engine():
    """With its bounds, if the engine can read several of them."""
    engine = Engine()
    engine.has_scaled_sums = True
    engine.check = engine.requests.append
    request = replace(REQUEST, summed=SumBounds(Fraction(0), Fraction(8), private=True, column="b"))
    VersionedReader(engine, "d", lambda: True).check(request)
    assert engine.requests == [request]


def test_a_version_that_fails_after_the_head_is_not_an_unreachable_engine(opened):
    """I3: the rows were read, so the error must not look like one that costs nothing."""
    engine = Engine()
    datasets, _ = opened('data_version = { query = "SELECT gone" }', engine)
    engine.fetch = lambda _: (_ for _ in ()).throw(EngineUnreachable("db.internal is down"))
    steady = VersionedReader(engine, "d", lambda: datasets.version("d") == "1")
    with pytest.raises(EngineError) as caught:
        steady.head(REQUEST)
    assert not isinstance(caught.value, EngineUnreachable)


def _read_pairs(reader):
    with reader.pairs(REQUEST) as pairs:
        return pairs.count_items()


@pytest.mark.parametrize("read", [lambda reader: reader.head(REQUEST), _read_pairs], ids=["head", "pairs"])
def test_data_that_changes_while_it_is_read_is_not_released(read):
    """T13: equal noise on other data would show the difference, whether a head or pairs were read."""
    engine = Engine()
    engine.pairs = lambda *_, **__: contextlib.nullcontext(SimpleNamespace(count_items=lambda: 7))
    assert read(VersionedReader(engine, "d", lambda: True)) in (7, (REQUEST, b"", None))
    with pytest.raises(EngineError, match="the data of 'd' changed its version while the query ran; run it again"):
        read(VersionedReader(engine, "d", lambda: False))


def test_a_head_is_read_with_all_arguments():
    """The engine gets all arguments, and its head is returned if the version is unchanged."""
    reader = VersionedReader(Engine(), "d", lambda: True)
    assert reader.head(REQUEST, seed=b"s", progress=print) == (REQUEST, b"s", print)
