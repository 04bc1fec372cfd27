"""After the first refresh only a refresh opens and checks sources, and what failed is unavailable to all alike."""

from __future__ import annotations

import datetime
import gc
import weakref

import pyarrow as pa
import pyarrow.parquet
import pytest

from discreet.catalog.engine_pool import EnginePool
from discreet.catalog.loader import load_catalog
from discreet.engines import opening
from discreet.engines.duckdb import DuckDBEngine
from discreet.errors import EngineError, EngineUnreachable, InputError
from discreet.head_request import HeadRequest, Kind
from tests.catalog.fakes import FakeEngine

REQUEST = HeadRequest("u", ("a",), 5)
COLUMNS = 'user = "u"\ncolumns.a = { type = "text", group = true, domain = ["x", "y"] }\n'
FILES = f'[datasets.d]\nsource = "*.parquet"\n{COLUMNS}'
VIEW = f'[datasets.d]\nsource = "*.parquet"\nview = "SELECT * FROM source"\n{COLUMNS}'
DECLARED = f'{FILES}data_version = "1"\n'
CSV = f'[datasets.d]\nsource = "t.csv"\n{COLUMNS}'
SERVER = f'[engines.w]\nurl = "postgresql://reader@db.internal/web"\n[datasets.d]\nengine = "w"\ntable = "t"\n{COLUMNS}'
LISTED = SERVER.replace('["x", "y"]', '{ query = "SELECT a" }')


class Clock:
    """A time that only a test advances."""

    def __init__(self):
        self.now = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)

    def __call__(self):
        return self.now

    def pass_(self, seconds):
        """Advance it."""
        self.now += datetime.timedelta(seconds=seconds)


@pytest.fixture
def clock():
    """Return a clock that stands still."""
    return Clock()


@pytest.fixture
def pool(tmp_path, clock):
    """Return a function that opens the pool of a catalog in the folder of the test."""
    made = []

    def make(catalog):
        (tmp_path / "catalog.toml").write_text(catalog)
        made.append(EnginePool(load_catalog(tmp_path / "catalog.toml"), clock, {}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def _write(folder, name="1", **columns):
    pyarrow.parquet.write_table(pa.table({"u": ["a", "b"], "a": ["x", "x"]} | columns), folder / f"{name}.parquet")


def _out_of_range(folder):
    _write(folder, "2", at=pa.array([0, 2**63 // 1000 + 1], pa.timestamp("ms")))


def _other_columns(folder):
    _write(folder, "2", u=[1, 2])


def _no_user(folder):
    pyarrow.parquet.write_table(pa.table({"a": ["x"]}), folder / "1.parquet")


def _garbage(folder):
    (folder / "1.parquet").write_bytes(b"PAR1 and nothing else")


def _gone(folder):
    (folder / "1.parquet").unlink()


def _errors(pool):
    """Return the messages of everything that an analyst's request needs; none may be answered."""
    found = []
    for ask in (
        lambda: pool.engine("d"),
        lambda: pool.version("d"),
        lambda: pool.reader("d", None),
        lambda: pool.has_pairs("d"),
        lambda: pool.domain("d", ("a",)),
    ):
        with pytest.raises(EngineError) as error:
            ask()
        found.append((type(error.value), str(error.value)))
    return found


@pytest.mark.parametrize("catalog", [FILES, VIEW, DECLARED], ids=["table", "view", "declared"])
@pytest.mark.parametrize(
    "spoil", [_out_of_range, _other_columns, _no_user, _garbage, _gone], ids=lambda spoil: spoil.__name__[1:]
)
def test_a_version_that_fails_its_checks_is_unavailable_to_all_alike(tmp_path, pool, catalog, spoil):
    """No request opens it, all get one error, and the owner sees the reason until a version passes."""
    _write(tmp_path)
    datasets = pool(catalog)
    datasets.refresh()
    assert datasets.unavailable() == {}
    assert datasets.reader("d", None).head(REQUEST).counts.tolist() == [2]
    spoil(tmp_path)
    for ask in (lambda: datasets.version("d"), lambda: datasets.reader("d", None)):
        with pytest.raises(EngineUnreachable, match="the data of 'd' has changed, and was not opened again yet"):
            ask()
    datasets.refresh()
    assert len(set(_errors(datasets))) == 1
    assert str(tmp_path) not in _errors(datasets)[0][1]
    assert list(datasets.unavailable()) == ["d"]
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    _write(tmp_path)
    assert len(set(_errors(datasets))) == 1, "no request opens the version that would pass"
    datasets.refresh()
    assert datasets.unavailable() == {}
    assert datasets.reader("d", None).head(REQUEST).counts.tolist() == [2]


def test_queries_switch_to_an_appended_file_after_it_was_checked(tmp_path, pool):
    """No restart: the fingerprint is the version, and a query planned on the older one is refused before it starts."""
    _write(tmp_path)
    datasets = pool(FILES)
    datasets.refresh()
    first, engine = datasets.version("d"), datasets.engine("d")
    datasets.refresh()
    assert (datasets.version("d"), datasets.engine("d")) == (first, engine), "nothing changed"
    _write(tmp_path, "2", u=["c", "d"])
    datasets.refresh()
    second = datasets.version("d")
    assert second != first
    assert datasets.reader("d", second).head(REQUEST).counts.tolist() == [4]
    with pytest.raises(EngineUnreachable, match="changed its version; send the query again"):
        datasets.reader("d", first)


def test_a_query_in_progress_keeps_its_engine_which_closes_itself(tmp_path, pool, monkeypatch):
    """The rows of a CSV file are in memory, so the query counts the rows of its version although queries switched."""
    (tmp_path / "t.csv").write_text("u,a\n1,x\n")
    datasets, guarded = pool(CSV), DuckDBEngine._guarded
    datasets.refresh()
    reader, opened = datasets.reader("d", datasets.version("d")), weakref.ref(datasets.engine("d"))

    def switch_first(*arguments):
        (tmp_path / "t.csv").write_text("u,a\n1,x\n2,x\n")
        datasets.refresh()
        return guarded(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(DuckDBEngine, "_guarded", switch_first)
        assert reader.head(REQUEST).counts.tolist() == [1]
    assert datasets.reader("d", datasets.version("d")).head(REQUEST).counts.tolist() == [2]
    del reader
    gc.collect()
    assert opened() is None


def test_all_queries_are_refused_while_a_version_is_checked(tmp_path, pool, monkeypatch):
    """A request during the check neither waits for it nor gets another error than after a failure."""
    _write(tmp_path)
    datasets = pool(FILES)
    datasets.refresh()
    _write(tmp_path, "2")
    open_, during = datasets._open, []
    monkeypatch.setattr(datasets, "_open", lambda name: (during.extend(_errors(datasets)), open_(name))[1])
    datasets.refresh()
    assert len(set(during)) == 1
    assert datasets.unavailable() == {}


def test_a_file_that_failed_is_checked_again_once_it_changed(tmp_path, pool, clock, monkeypatch):
    """A large malformed file is not read every ten seconds."""
    (tmp_path / "t.csv").write_text('u,a\n1,"x\n')
    datasets, tried, engine = pool(CSV), [], opening.open_engine

    def slow(*where, **how):
        tried.append(clock.now)
        clock.pass_(60)
        return engine(*where, **how)

    monkeypatch.setattr(opening, "open_engine", slow)
    datasets.refresh()
    assert "malformed at line 2" in datasets.unavailable()["d"]
    datasets.refresh()
    clock.pass_(599)
    datasets.refresh()
    assert len(tried) == 1
    clock.pass_(1)
    datasets.refresh()
    assert len(tried) == 2
    (tmp_path / "t.csv").write_text("u,a\n1,x\n")
    datasets.refresh()
    assert (len(tried), datasets.unavailable()) == (3, {})


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (EngineUnreachable("no server answers at db.internal"), "no server answers at db.internal"),
        (InputError("there is no table 't'"), "there is no table 't'"),
        (OSError(111, "Connection refused"), "[Errno 111] Connection refused"),
        (KeyError("a row"), "it cannot be opened (KeyError)"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_server_that_failed_at_the_start_is_tried_again_at_each_refresh(pool, monkeypatch, failure, reason):
    """No request connects to it; the owner sees messages of ours only."""
    tried = []

    def refused(*_, **__):
        tried.append(1)
        raise failure

    monkeypatch.setattr(opening, "open_engine", refused)
    datasets = pool(SERVER)
    for count in (1, 2):
        datasets.refresh()
        assert (len(set(_errors(datasets))), len(tried)) == (1, count)
        assert datasets.unavailable() == {"d": reason}
    monkeypatch.setattr(opening, "open_engine", lambda *_, **__: FakeEngine({"u": Kind.TEXT, "a": Kind.TEXT}))
    datasets.refresh()
    assert datasets.unavailable() == {}
    assert datasets.engine("d") is not None


def test_labels_of_a_query_are_read_again_by_a_refresh_only(pool, clock, monkeypatch):
    """Every ten minutes; labels that cannot be used make the dataset unavailable until they can."""
    answers = {"SELECT a": pa.table({"a": ["x"]})}
    engine = FakeEngine({"u": Kind.TEXT, "a": Kind.TEXT}, answers)
    monkeypatch.setattr(opening, "open_engine", lambda *_, **__: engine)
    datasets = pool(LISTED)
    datasets.refresh()
    answers["SELECT a"] = pa.table({"a": ["x", "y"]})
    for seconds, count in ((599, 1), (1, 2)):
        clock.pass_(seconds)
        assert len(datasets.domain("d", ("a",))) == 1
        datasets.refresh()
        assert len(datasets.domain("d", ("a",))) == count
    answers["SELECT a"] = pa.table({"a": ["x", None]})
    clock.pass_(600)
    datasets.refresh()
    assert len(set(_errors(datasets))) == 1
    assert "missing label" in datasets.unavailable()["d"]
    answers["SELECT a"] = pa.table({"a": ["x"]})
    datasets.refresh()
    assert len(datasets.domain("d", ("a",))) == 1
    assert not engine.closed, "the same engine, which stayed open"


def test_one_dataset_that_fails_leaves_the_others_open(tmp_path, pool):
    """A refresh never raises."""
    _write(tmp_path)
    datasets = pool(FILES + CSV.replace("datasets.d", "datasets.e"))
    datasets.refresh()
    assert list(datasets.unavailable()) == ["e"]
    assert datasets.reader("d", None).head(REQUEST).counts.tolist() == [2]


def test_no_query_opens_a_dataset_before_the_first_refresh_has(tmp_path, pool, monkeypatch):
    """A request that arrives during the first refresh is refused like all others."""
    _write(tmp_path)
    datasets, during = pool(FILES), []
    monkeypatch.setattr(datasets, "_refresh", lambda _: during.extend(_errors(datasets)))
    datasets.refresh()
    assert len(set(during)) == 1
