"""Delta and Iceberg tables pass the engine suite; a new snapshot is a new data version."""

from __future__ import annotations

import contextlib
import shutil
import uuid

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from discreet.engines.opening import open_engine, source_fingerprint
from discreet.errors import EngineError, EngineUnreachable, InputError
from discreet.head_request import HeadRequest
from discreet.testing.engines import EngineSuite, rows_of
from discreet.warehouse import connect

REQUEST = HeadRequest("who", ("item",), 9)


class _Delta:
    def __init__(self, folder):
        self.folder = folder

    def write(self, table):
        name = self.folder / uuid.uuid4().hex
        write_deltalake(name, table)
        return f"delta://{name}"

    def append(self, url, table):
        write_deltalake(url.removeprefix("delta://"), table, mode="append")

    def delete(self, url, who):
        DeltaTable(url.removeprefix("delta://")).delete(f"who = {who}")

    def drop(self, url):
        shutil.rmtree(url.removeprefix("delta://"))


class _Iceberg:
    def __init__(self):
        from pyiceberg.catalog import load_catalog  # it reads the environment when it is imported

        self.catalog = load_catalog("lake")
        self.catalog.create_namespace_if_not_exists("web")

    def write(self, table):
        name = f"web.t{uuid.uuid4().hex}"
        self.catalog.create_table(name, schema=table.schema).append(table)
        return f"iceberg://lake/{name}"

    def append(self, url, table):
        self.catalog.load_table(url.removeprefix("iceberg://lake/")).append(table)

    def delete(self, url, who):
        self.catalog.load_table(url.removeprefix("iceberg://lake/")).delete(f"who == {who}")

    def drop(self, url):
        self.catalog.drop_table(url.removeprefix("iceberg://lake/"))


@pytest.fixture(scope="module", params=["delta", "iceberg"])
def lake(request, tmp_path_factory):
    """Return an object that writes and changes tables of one format."""
    folder = tmp_path_factory.mktemp("lake")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("TYPE", "sql"),
            ("URI", f"sqlite:///{folder}/catalog.db"),
            ("WAREHOUSE", f"file://{folder}"),
        ):
            patch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
        yield _Delta(folder) if request.param == "delta" else _Iceberg()


class TestLakehouse(EngineSuite):
    """Run the whole suite on both formats."""

    @pytest.fixture(autouse=True)
    def _lake(self, lake):
        self.lake = lake

    @contextlib.contextmanager
    def opened(self, table):
        """See `EngineSuite.opened`."""
        with contextlib.closing(open_engine(self.lake.write(table))) as engine:
            yield engine

    @contextlib.contextmanager
    def slow(self, timeout_seconds):
        """See `EngineSuite.slow`."""
        url = self.lake.write(pa.table({"none": [0]}))
        view = "SELECT range % 9 AS who, range % 7 AS item FROM range(1000000000000)"
        with contextlib.closing(open_engine(url, view=view, timeout_seconds=timeout_seconds)) as engine:
            yield engine

    @contextlib.contextmanager
    def dead(self):
        """See `EngineSuite.dead`."""
        url = self.lake.write(pa.table({"who": [1], "item": [1]}))
        with contextlib.closing(open_engine(url)) as engine:
            self.lake.drop(url)
            yield engine


@pytest.mark.parametrize("view", [None, "SELECT * FROM source"], ids=["table", "view"])
def test_a_newer_snapshot_is_refused_until_the_table_is_opened_again(lake, view):
    """The data version is the snapshot that was read and checked; any commit ends it, whatever it holds."""
    url, versions = lake.write(pa.table({"who": [1, 2], "item": ["a", "a"]})), set()
    commits = [
        lambda: lake.append(url, pa.table({"who": [3], "item": ["a"]})),
        lambda: lake.delete(url, 1),
        lambda: lake.drop(url),
    ]
    for users, commit in zip((2, 3, 2), commits, strict=True):
        with contextlib.closing(open_engine(url, view=view)) as engine:
            assert rows_of(engine, REQUEST) == [(("a",), users)]
            versions.add(source_fingerprint(url))
            assert engine.data_version() == (None if view else source_fingerprint(url))
            commit()
            for ask in (engine.check, engine.head, lambda request: engine.pairs(request).__enter__()):
                with pytest.raises(EngineUnreachable, match=r"has changed since it was opened|cannot be read"):
                    ask(REQUEST)
            with pytest.raises(EngineUnreachable):
                engine.data_version()
    assert len(versions) == 3


def test_a_commit_during_a_query_does_not_end_it(lake, monkeypatch):
    """The rows were read when the table was opened, so the query counts exactly the snapshot of its version."""
    url = lake.write(pa.table({"who": [1, 2], "item": ["a", "a"]}))
    with contextlib.closing(open_engine(url)) as engine:
        run = engine._guarded

        def append_first(*arguments):
            lake.append(url, pa.table({"who": [3], "item": ["a"]}))
            return run(*arguments)

        monkeypatch.setattr(engine, "_guarded", append_first)
        assert engine.head(REQUEST).counts.tolist() == [2]


@pytest.mark.parametrize("spoil", ["rows", "log"])
def test_a_malformed_snapshot_is_found_by_a_refresh_and_by_no_query(tmp_path, spoil):
    """It is unavailable to estimates and queries alike, until a snapshot can be read."""
    folder = tmp_path / "reads"
    write_deltalake(folder, pa.table({"who": [1, 2], "item": ["a", "a"]}))
    columns = 'columns.item = { type = "text", group = true }'
    (tmp_path / "catalog.toml").write_text(f'[datasets.d]\nsource = "delta://{folder}"\nuser = "who"\n{columns}\n')
    question = "SELECT item, COUNT(DISTINCT who) FROM d GROUP BY item"
    with connect(tmp_path / "catalog.toml") as warehouse:
        warehouse.refresh()
        warehouse.plan(question)
        files = set(folder.glob("*.parquet"))
        write_deltalake(folder, pa.table({"who": [3], "item": ["a"]}), mode="append")
        if spoil == "rows":
            (new,) = set(folder.glob("*.parquet")) - files
            new.write_bytes(b"PAR1 and nothing else")
        else:
            (folder / "_delta_log" / "00000000000000000001.json").write_text("{")
        known = "has changed, and was not opened again yet" if spoil == "rows" else "cannot be queried now"
        with pytest.raises(EngineError, match=known):
            warehouse.key_context("d")
        warehouse.refresh()
        messages = set()
        for ask in (
            lambda: warehouse.plan(question),
            lambda: warehouse.query(question),
            lambda: warehouse.key_context("d"),
        ):
            with pytest.raises(EngineError) as error:
                ask()
            messages.add(str(error.value))
        assert len(messages) == 1
        assert "cannot be read" in warehouse.unavailable()["d"]
        shutil.rmtree(folder)
        write_deltalake(folder, pa.table({"who": [3], "item": ["a"]}))
        warehouse.refresh()
        assert warehouse.unavailable() == {}
        warehouse.query(question)


def test_equal_noise_needs_no_declared_version(lake, tmp_path):
    """The same query has the same noise until the next commit, without a declared version."""
    url = lake.write(pa.table({"who": range(1000), "item": ["a"] * 1000}))
    columns = 'columns.item = { type = "text", group = true }'
    (tmp_path / "catalog.toml").write_text(f'[datasets.d]\nsource = "{url}"\nuser = "who"\n{columns}\n')
    question = "SELECT item, COUNT(DISTINCT who) FROM d GROUP BY item"
    with connect(tmp_path / "catalog.toml") as warehouse:
        before = [warehouse.query(question, epsilon=1, key=b"k" * 32).to_csv() for _ in range(2)]
        lake.append(url, pa.table({"who": [1], "item": ["a"]}))
        with pytest.raises(EngineError):
            warehouse.query(question, epsilon=1, key=b"k" * 32)
        warehouse.refresh()
        after = warehouse.query(question, epsilon=1, key=b"k" * 32).to_csv()
    assert before[0] == before[1] != after


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("delta:///nowhere", "cannot be read as a table"),
        ("delta://host/x", "looks like delta:///data/reads"),
        ("iceberg://lake/reads", "looks like iceberg://catalog/namespace.table"),
        ("iceberg://unknown/web.reads", "cannot be read as a table"),
    ],
)
def test_a_missing_table_is_refused(source, message):
    """A missing table or malformed URL is refused in one sentence when it is opened."""
    with pytest.raises(InputError, match=message):
        open_engine(source)
