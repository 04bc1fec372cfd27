"""After the first refresh only a refresh opens and checks sources, and what failed is unavailable to all alike."""

from __future__ import annotations

import contextlib
import datetime
import gc
import threading
import time
import weakref

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest

from discreet.catalog.engine_pool import EnginePool
from discreet.catalog.loader import load_catalog
from discreet.engines import opening
from discreet.engines.duckdb import DuckDBEngine
from discreet.errors import EngineBusy, EngineError, EngineUnreachable, InputError
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
    open_, during, reasons = datasets._open, [], []

    def watched(name):
        during.extend(_errors(datasets))
        reasons.append(datasets.unavailable())
        return open_(name)

    monkeypatch.setattr(datasets, "_open", watched)
    datasets.refresh()
    assert len(set(during)) == 1
    assert reasons == [{"d": "its source has changed, and is being checked"}]
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
    fetch, fetched = engine.fetch, []
    monkeypatch.setattr(engine, "fetch", lambda statement: (fetched.append(clock.now), fetch(statement))[1])
    for seconds, before, count in ((599, 1, 1), (1, 1, 2), (0, 2, 2), (599, 2, 2)):
        clock.pass_(seconds)
        assert len(datasets.domain("d", ("a",))) == before
        datasets.refresh()
        assert len(datasets.domain("d", ("a",))) == count
    assert len(set(fetched)) == len(fetched) == 1
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
    datasets, during, threads = pool(FILES), [], []

    def arrive(_):
        during.extend(_errors(datasets))
        threads.append(threading.current_thread())

    monkeypatch.setattr(datasets, "_refresh", arrive)
    datasets.refresh()
    assert len(set(during)) == 1
    assert [thread.daemon for thread in threads] == [True], "a large file keeps no process from ending"


ENGINES = """[engines.a]
url = "postgresql://reader@a.internal/web"
connections = 1
timeout_seconds = 1
[engines.b]
url = "postgresql://reader@b.internal/web"
"""


def _tables(*names):
    """Return a catalog of the engines with a dataset for each name of two letters, its own and its engine's."""
    return ENGINES + "".join(f'[datasets.{own}]\nengine = "{engine}"\ntable = "t"\n{COLUMNS}' for own, engine in names)


@pytest.fixture
def servers(monkeypatch):
    """Return the fake engines that are opened, in order."""
    made = []

    def open_(*_, **__):
        made.append(FakeEngine({"u": Kind.TEXT, "a": Kind.TEXT}))
        return made[-1]

    monkeypatch.setattr(opening, "open_engine", open_)
    return made


def test_another_catalog_keeps_open_what_it_declares_alike(tmp_path, pool, servers):
    """What it declares otherwise, itself or its engine, is refused until a refresh has checked it."""
    own = _tables("ca", "da", "eb")
    datasets = pool(own)
    datasets.refresh()
    before = {name: datasets.engine(name) for name in "cde"}
    (tmp_path / "catalog.toml").write_text(
        _tables("ca", "db", "eb", "fa").replace("b.internal/web", "b.internal/other")
    )
    datasets.replace_catalog(load_catalog(tmp_path / "catalog.toml"))
    reason = "its declaration has changed, and is being checked"
    assert datasets.unavailable() == {"d": reason, "e": reason}
    assert datasets.engine("c") is before["c"]
    for name in "def":
        with pytest.raises(EngineError, match="cannot be queried now"):
            datasets.engine(name)
    datasets.refresh()
    assert datasets.unavailable() == {}
    assert len(servers) == 6
    assert datasets.engine("c") is before["c"]
    assert not {datasets.engine(name) for name in "def"} & set(before.values())


def test_a_dataset_that_another_catalog_lacks_is_gone(tmp_path, pool, servers):
    """With the reason why it was unavailable, and whether its source was replaced; a query of it is refused."""
    datasets = pool(SERVER + FILES.replace("datasets.d", "datasets.e"))
    datasets.refresh()
    assert list(datasets.unavailable()) == ["e"]
    (tmp_path / "catalog.toml").write_text(SERVER.replace("datasets.d", "datasets.f"))
    datasets.replace_catalog(load_catalog(tmp_path / "catalog.toml"))
    assert datasets.unavailable() == {}
    datasets.refresh()
    assert datasets.engine("f") is servers[-1]
    for ask in (lambda: datasets.version("d"), lambda: datasets.reader("e", None), lambda: datasets.queue("d")):
        with pytest.raises(EngineUnreachable, match=r"the dataset '[de]' was removed; nothing was queried"):
            ask()


def test_datasets_share_the_queue_of_their_engine(tmp_path, pool):
    """It has the engine's connections and time limit, also after another catalog, which keeps it or changes them."""
    own = _tables("ca", "da", "eb")
    datasets = pool(own + FILES.replace("datasets.d", "datasets.a") + CSV.replace("datasets.d", "datasets.g"))
    first = datasets.queue("c")
    assert first is datasets.queue("d")
    assert len({datasets.queue(name) for name in "cdeag"}) == 4

    def give_up(_):
        assert time.monotonic() < latest, "it waits for longer than it should"

    latest = time.monotonic() + 20
    with first.slot(), pytest.raises(EngineBusy, match="the engine was busy for 1 seconds"), first.slot(give_up):
        pass
    with contextlib.ExitStack() as slots:
        for name in "eeeegggg":
            slots.enter_context(datasets.queue(name).slot(give_up))
    (tmp_path / "catalog.toml").write_text(own.replace("timeout_seconds = 1", "timeout_seconds = 2"))
    datasets.replace_catalog(load_catalog(tmp_path / "catalog.toml"))
    assert datasets.queue("c") is datasets.queue("d") is not first
    (tmp_path / "catalog.toml").write_text(own)
    datasets.replace_catalog(load_catalog(tmp_path / "catalog.toml"))
    assert datasets.queue("c") is datasets.queue("d") is first


def test_a_source_that_is_replaced_under_its_declared_version_is_noted(tmp_path, pool):
    """Until the catalog states another version; the first source, and one whose version is its fingerprint, is not."""
    _write(tmp_path)
    own = DECLARED + FILES.replace("datasets.d", "datasets.e")
    datasets = pool(own)
    for folder in (None, tmp_path):
        if folder is not None:
            _write(folder, "2")
        datasets.refresh()
        assert datasets.replaced() == ({"d"} if folder else set())
    (tmp_path / "catalog.toml").write_text(own.replace("datasets.e", "datasets.f"))
    datasets.replace_catalog(load_catalog(tmp_path / "catalog.toml"))
    assert datasets.replaced() == {"d"}
    (tmp_path / "catalog.toml").write_text(own.replace('data_version = "1"', 'data_version = "2"'))
    datasets.replace_catalog(load_catalog(tmp_path / "catalog.toml"))
    assert datasets.replaced() == frozenset()


def test_a_file_of_an_engine_is_compared_like_one_of_a_dataset(tmp_path, pool):
    """Its URL may name a DuckDB file, or a table of a lakehouse, which have fingerprints."""

    def write(rows):
        with duckdb.connect(str(tmp_path / "new.db")) as connection:
            connection.execute(f"CREATE TABLE t AS SELECT 'u' || range AS u, 'x' AS a FROM range({rows})")
        (tmp_path / "new.db").replace(tmp_path / "t.db")

    write(2)
    datasets = pool(SERVER.replace("postgresql://reader@db.internal/web", f"duckdb:///{tmp_path}/t.db"))
    datasets.refresh()
    engine, version = datasets.engine("d"), datasets.version("d")
    assert datasets.reader("d", version).head(REQUEST).counts.tolist() == [2]
    datasets.refresh()
    assert datasets.engine("d") is engine
    write(3)
    datasets.refresh()
    assert datasets.version("d") != version
    assert datasets.reader("d", None).head(REQUEST).counts.tolist() == [3]


def test_a_declared_version_is_that_of_files_as_well(tmp_path, pool):
    """Their fingerprint is the version only of a dataset without one."""
    _write(tmp_path)
    datasets = pool(DECLARED)
    assert datasets.version("d") == "1"
    assert datasets.reader("d", "1").head(REQUEST).counts.tolist() == [2]


def test_an_engine_of_files_that_fails_names_the_dataset(tmp_path, pool, monkeypatch):
    """As one of a server."""
    _write(tmp_path)
    datasets = pool(FILES)

    def fail(*_):
        raise EngineError("at /srv/secret")

    monkeypatch.setattr(datasets.engine("d"), "_guarded", fail)
    with pytest.raises(EngineError, match=r"^the engine of the dataset 'd' failed$"):
        datasets.reader("d", datasets.version("d")).head(REQUEST)


@pytest.mark.parametrize(
    "declared",
    [
        'data_version = { schedule = "daily", at = "04:00", zone = "UTC" }\n',
        'data_version = { query = "SELECT v" }\n',
        "",
    ],
    ids=["schedule", "statement", "engine"],
)
def test_an_answer_is_refused_if_its_version_ended_while_it_was_read(pool, clock, monkeypatch, declared):
    """Whatever states the version; without one nothing is compared."""
    engine = FakeEngine({"u": Kind.TEXT, "a": Kind.TEXT}, {"SELECT v": pa.table({"v": ["1"]})}, "1")
    monkeypatch.setattr(opening, "open_engine", lambda *_, **__: engine)
    datasets = pool(SERVER + declared)
    engine.head = lambda request, **_: request
    assert datasets.reader("d", datasets.version("d")).head(REQUEST) is REQUEST

    def changes(request, **_):
        clock.pass_(86_400)
        for table in engine._answers.values():
            engine._answers["SELECT v"] = pa.table({"v": [f"{table['v'][0]}1"]})
        engine._version += "1"
        return request

    engine.head = changes
    assert datasets.reader("d", None).head(REQUEST) is REQUEST
    version = datasets.version("d")
    with pytest.raises(EngineError, match="the data of 'd' changed its version while the query ran; run it again"):
        datasets.reader("d", version).head(REQUEST)
    assert datasets.version("d") not in {version, None}


def test_a_version_that_cannot_be_read_is_an_error_that_names_the_dataset(pool, monkeypatch):
    """Before a read and after it, in the same words."""
    engine = FakeEngine({"u": Kind.TEXT, "a": Kind.TEXT})
    engine.head = lambda request, **_: request
    monkeypatch.setattr(opening, "open_engine", lambda *_, **__: engine)
    datasets = pool(SERVER + 'data_version = { query = "SELECT v" }\n')
    asked = [lambda: datasets.version("d"), lambda: datasets.reader("d", "1").head(REQUEST)]
    for ask in asked:
        with pytest.raises(EngineError, match=r"^the dataset 'd' cannot be queried now"):
            ask()
    engine._answers["SELECT v"] = pa.table({"v": ["1"]})
    for ask in asked:
        ask()

    def unreachable():
        raise EngineUnreachable("no table at s3://secret")

    engine.has_changed = unreachable
    for ask in asked:
        with pytest.raises(EngineError, match=r"^the dataset 'd' cannot be queried now"):
            ask()
