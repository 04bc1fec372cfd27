"""Delta and Iceberg tables pass the engine suite; a new snapshot is a new data version."""

from __future__ import annotations

import contextlib
import shutil
import uuid

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from discreet.engines.opening import open_engine
from discreet.errors import InputError
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


def test_the_version_of_the_data_is_the_snapshot(lake):
    """The data version changes with every commit and only then, and the counted rows are those of that snapshot."""
    url = lake.write(pa.table({"who": [1, 2], "item": ["a", "a"]}))
    with contextlib.closing(open_engine(url)) as engine:
        first = engine.data_version()
        assert first == engine.data_version()
        assert rows_of(engine, REQUEST) == [(("a",), 2)]
        lake.append(url, pa.table({"who": [3], "item": ["a"]}))
        assert rows_of(engine, REQUEST) == [(("a",), 3)]
        second = engine.data_version()
        lake.delete(url, 1)
        assert rows_of(engine, REQUEST) == [(("a",), 2)]
        assert len({first, second, engine.data_version()}) == 3


def test_equal_noise_needs_no_declared_version(lake, tmp_path):
    """The same query has the same noise until the next commit, without a declared version."""
    url = lake.write(pa.table({"who": range(1000), "item": ["a"] * 1000}))
    columns = 'columns.item = { type = "text", group = true }'
    (tmp_path / "catalog.toml").write_text(f'[datasets.d]\nsource = "{url}"\nuser = "who"\n{columns}\n')
    question = "SELECT item, COUNT(DISTINCT who) FROM d GROUP BY item"
    with connect(tmp_path / "catalog.toml") as warehouse:
        before = [warehouse.query(question, epsilon=1, key=b"k" * 32).to_csv() for _ in range(2)]
        lake.append(url, pa.table({"who": [1], "item": ["a"]}))
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
