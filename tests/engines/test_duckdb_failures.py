"""What DuckDB cannot read or count is refused in one clear sentence, and leaves nothing behind."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
import pytest

from discreet.engines import base
from discreet.engines.base import run
from discreet.engines.duckdb import DuckDBEngine, _configure
from discreet.errors import EngineError, EngineTimeout, EngineUnreachable, InputError, UnfitData
from discreet.head_request import HeadRequest

REQUEST = HeadRequest("user", ("item",), 10)
SLOW = """
import os, signal, sys, threading
from discreet.engines.duckdb import DuckDBEngine
from discreet.head_request import And, Comparison, Constant, HeadRequest, Kind

engine = DuckDBEngine(sys.argv[1])
shares = []

def progress(share):
    shares.append(share)
    if len(shares) == 2:
        os.kill(os.getpid(), signal.SIGINT) if sys.argv[2] == "signal" else raises()

def raises():
    raise KeyboardInterrupt

try:
    engine.head(HeadRequest("user", ("item",), 10), progress=progress)
except KeyboardInterrupt:
    print("stopped", threading.active_count(), all(0 <= share <= 1 for share in shares))
where = And(tuple(Comparison(column, "=", Constant(Kind.INTEGER, "0")) for column in "abcd"))
print(engine.head(HeadRequest("user", ("item",), 10, where)).counts)
engine.close()
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Return an empty folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with files that cannot be read, each for another reason."""
    folder = tmp_path_factory.mktemp("unreadable") / "files"
    (folder / "folder.parquet").mkdir(parents=True)
    table = pa.table({"user": [1], "item": ["a"]})
    pyarrow.parquet.write_table(table, folder / "good.parquet")
    whole = (folder / "good.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[:-9])
    (folder / "encrypted.parquet").write_bytes(b"PARE" + whole[4:-4] + b"PARE")
    (folder / "text.parquet").write_text("user,item\n1,a\n")
    (folder / "empty.parquet").touch()
    (folder / "empty.csv").touch()
    (folder / "not.csv.gz").write_text("user,item\n1,a\n")
    (folder / "bad.db").write_bytes(b"01234567DUCK" + bytes(5000))
    for name, tables in (("none.db", []), ("two.db", ["b'", 'a"'])):
        with duckdb.connect(str(folder / name)) as connection:
            for each in tables:
                connection.register("given", table)
                connection.execute(f'CREATE TABLE "{each.replace(chr(34), chr(34) * 2)}" AS SELECT * FROM given')
    return folder


def _one_sentence(error, *parts):
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 300
    for part in parts:
        assert part in message
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__ or error.value.__context__ is None


@pytest.mark.parametrize(
    ("name", "table", "part"),
    [
        ("missing.parquet", None, "no file"),
        ("*.orc", None, "no file matches"),
        ("folder.parquet", None, "folder"),
        ("fold*.parquet", None, "folder.parquet"),
        ("empty.parquet", None, "is empty"),
        ("empty.csv", None, "is empty"),
        ("text.parquet", None, "Parquet"),
        ("cut.parquet", None, "cannot be read"),
        ("encrypted.parquet", None, "cannot be read"),
        ("not.csv.gz", None, "cannot be read"),
        ("bad.db", None, "DuckDB"),
        ("missing.db", "t", "no file"),
        ("good.parquet", "t", "DuckDB"),
        ("none.db", None, "none"),
        ("two.db", None, "name one"),
        ("two.db", "c", "no table 'c'"),
    ],
)
def test_files_that_cannot_be_read_are_refused(files, temporary, name, table, part):
    """The message names the file and the problem, and no temporary file is left."""
    with pytest.raises(InputError) as error:
        DuckDBEngine(files / name, table).columns()
    _one_sentence(error, part, "fold" if name.startswith("fold") else name)
    del error
    gc.collect()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    ["duckdb:", "duckdb:file.db", "duckdb://host/x.db", "duckdb:///x.db?tabel=a", "duckdb:///", "duckdb:///x#y.db"],
)
def test_invalid_urls_are_refused(url):
    """A host, an unknown option, a fragment: nothing is silently left out."""
    with pytest.raises(InputError, match="duckdb:///") as error:
        DuckDBEngine(url)
    _one_sentence(error)


@pytest.mark.parametrize(
    "source",
    [
        None,
        3,
        b"t.parquet",
        {"user": [1]},
        [("user", 1)],
        pa.array([1]),
        pa.schema([("user", pa.int64())]),
        pd.Series([1]),
        pl.Series([1]),
        pa.chunked_array([[1]]),
    ],
    ids=lambda source: type(source).__name__,
)
def test_other_objects_are_refused(source):
    """What is no table is refused, a single column of a frame too."""
    with pytest.raises(InputError, match=r"source|as a table") as error:
        DuckDBEngine(source)
    _one_sentence(error)


class _FailingStream:
    def __arrow_c_stream__(self, requested_schema=None):
        raise ValueError("secret")


@pytest.mark.parametrize(
    "source",
    [
        _FailingStream(),
        duckdb.connect().sql("SELECT CAST('secret' AS INTEGER) AS user FROM range(2) AS t(n) WHERE n > 0"),
        pl.LazyFrame({"user": ["secret"]}).select(pl.col("user").str.to_integer()),
    ],
    ids=lambda source: type(source).__name__,
)
def test_streams_that_fail_are_refused_without_their_message(source):
    """The error of another library may hold a value."""
    with pytest.raises(InputError, match="cannot be read as a table") as error:
        DuckDBEngine(source)
    _one_sentence(error)


@pytest.mark.parametrize("end", ["parquet", "csv", "db"])
def test_files_without_permission_are_refused(end):
    """The message says that the file may not be read, and names it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / f"t.{end}").write_bytes(b"PAR1" * 100)
        (folder / f"t.{end}").chmod(0)
        DuckDBEngine(pa.table({"user": [1]})).close()  # imports what it needs while it may
        me = os.geteuid()
        if me == 0:
            os.seteuid(65_534)
        try:
            with pytest.raises(InputError) as error:
                DuckDBEngine(folder / f"t.{end}").columns()
        finally:
            os.seteuid(me)
        _one_sentence(error, f"t.{end}")


def test_a_file_removed_after_it_was_opened_is_an_engine_error(files, temporary, tmp_path):
    """The message names the file and nothing else."""
    shutil.copy(files / "good.parquet", tmp_path)
    engine = DuckDBEngine(tmp_path / "good.parquet")
    assert list(engine.columns()) == ["user", "item"]
    (tmp_path / "good.parquet").unlink()
    with pytest.raises(EngineError) as error:
        engine.head(REQUEST)
    _one_sentence(error, "good.parquet")
    engine.close()
    assert list(temporary.iterdir()) == []


def test_a_removed_file_behind_a_view_is_found_before_data_is_queried(files, tmp_path):
    """Each connection reads the columns first, so that nothing is charged."""
    shutil.copy(files / "good.parquet", tmp_path)
    engine = DuckDBEngine(tmp_path / "good.parquet", view="SELECT * FROM source")
    (tmp_path / "good.parquet").unlink()
    with pytest.raises(EngineUnreachable) as error:
        engine.check(REQUEST)
    _one_sentence(error, "good.parquet")
    engine.close()


def test_messages_hold_no_data(tmp_path, engine):
    """DuckDB's messages quote the failing row; ours and their causes do not."""
    with duckdb.connect(str(tmp_path / "t.db")) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS \"user\", 'secret label' AS item")
        connection.execute("CREATE VIEW fails AS SELECT \"user\", error('failed at ' || item)::VARCHAR AS item FROM t")
        connection.execute('CREATE VIEW casts AS SELECT "user", CAST(item AS INTEGER) AS item FROM t')
    for table, kind in (("fails", EngineError), ("casts", UnfitData)):
        with pytest.raises(kind) as error:
            engine(tmp_path / "t.db", table).head(REQUEST)
        _one_sentence(error, "t.db")
        assert "secret" not in str(error.value)
        assert "secret" not in repr(error.value)


def test_a_value_of_another_kind_in_a_csv_file_is_missing_to_a_filter(tmp_path, head):
    """Text that is no number is neither equal nor unequal to a number, and is no error."""
    (tmp_path / "t.csv").write_text("user,item,x\n" + "1,5,5\n" * 30_000 + "2,secret,secret\n")
    assert head(tmp_path / "t.csv") == [(("5",), 1), (("secret",), 1)]
    for column in ("item", "x"):
        assert head(tmp_path / "t.csv", where=f"{column} = 5") == [(("5",), 1)]
        assert head(tmp_path / "t.csv", where=f"NOT {column} = 5") == []
        assert head(tmp_path / "t.csv", where=f"{column} <> '5'") == [(("secret",), 1)]
        assert head(tmp_path / "t.csv", where=f"{column} IS NULL") == []


@pytest.mark.parametrize("how", ["signal", "callback"])
def test_an_interrupt_stops_the_count_and_leaves_nothing(tmp_path, how):
    """Ctrl-C ends an endless count, leaves no thread and no file, and the engine remains usable."""
    (tmp_path / "temporary").mkdir()
    with duckdb.connect(str(tmp_path / "t.db")) as connection:
        connection.execute("CREATE TABLE r AS SELECT range AS n FROM range(3000)")
        connection.execute(
            """CREATE VIEW slow AS SELECT r.n AS a, s.n AS b, t.n AS c, u.n AS d, a % 10 AS "user", b % 10 AS item
               FROM r, r AS s, r AS t, r AS u"""
        )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SLOW, f"duckdb:///{tmp_path / 't.db'}?table=slow", how],
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == ["stopped 1 True", "[1]"]
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_bound_of_memory_holds_for_every_query_and_changes_no_count(tmp_path, engine):
    """Beyond it DuckDB writes to disk, also the rows of a CSV file, which are in memory."""
    rows = 400_000
    people = np.arange(rows)
    table = pa.table({"user": people, "item": pa.array(people % 40_000).cast(pa.string())})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    pyarrow.csv.write_csv(table, tmp_path / "t.csv")
    for name in ("t.parquet", "t.csv"):
        opened = engine(tmp_path / name)
        opened.limit_memory(128)
        with ThreadPoolExecutor(4) as threads:
            heads = list(threads.map(lambda _: opened.head(HeadRequest("user", ("item",), 10)), range(4)))  # noqa: B023
        assert all(head.counts.tolist() == [rows // 40_000] * 11 for head in heads)
        assert opened.fetch("SELECT current_setting('memory_limit') AS m").to_pylist() == [{"m": "128.0 MiB"}]


def test_a_bound_of_memory_below_the_rows_in_memory_is_refused(engine, monkeypatch):
    """With a sentence, and without DuckDB's, which is about blocks."""
    opened = engine(pa.table({"user": [1], "item": ["a"]}))

    class Full:
        def execute(self, statement):
            raise duckdb.OutOfMemoryException(statement)

    monkeypatch.setattr(opened, "_database", Full())
    with pytest.raises(InputError, match="take more than the 64 MiB that are allowed"):
        opened.limit_memory(64)


class _Halfway:
    """A connection whose query has read half of its data, and which has no progress bar, as in a plain notebook."""

    def execute(self, statement):
        if "progress" in statement:
            raise duckdb.InvalidInputException("no ipywidgets")

    def interrupt(self):
        raise AssertionError("nothing is interrupted")

    def query_progress(self):
        return 50.0


def test_progress_is_a_share_and_needs_no_progress_bar(engine):
    """DuckDB has it in percent, and none where its bar cannot be shown."""
    opened = engine(pa.table({"user": [1], "item": ["a"]}))
    _configure(_Halfway())
    seen = threading.Event()
    shares = []

    def progress(share):
        shares.append(share)
        if share > 0:
            seen.set()

    assert opened._guarded(_Halfway(), lambda: seen.wait(60), progress)
    assert 0.5 in shares
    assert set(shares) <= {0.0, 0.5, 1.0}


def test_queries_write_to_the_folder_that_is_deleted_and_share_the_threads(temporary, engine):
    """Those of one query that does not fit into memory, and those of a long one beside a short one."""
    opened = engine(pa.table({"user": [1], "item": ["a"]}))
    settings = (
        "SELECT current_setting('temp_directory') AS folder, current_setting('scheduler_process_partial') AS fair"
    )
    (found,) = opened.fetch(settings).to_pylist()
    assert found["folder"].startswith(str(temporary))
    assert found["fair"] is True


def test_closing_deletes_spilled_files(temporary, engine):
    """An open engine has one temporary folder, and a closed one has none."""
    opened = engine(pa.table({"user": [1], "item": ["a"]}))
    opened.head(REQUEST)
    assert len(list(temporary.iterdir())) <= 1
    opened.close()
    assert list(temporary.iterdir()) == []


EXTREMES = [
    (pa.int8(), [-128, 127]),
    (pa.int64(), [-(2**63), 2**63 - 1]),
    (pa.uint64(), [0, 2**64 - 1]),
    (pa.decimal128(18, 3), [Decimal("-999999999999999.999"), Decimal("999999999999999.999")]),
    (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(1 - 10**38)]),
]


@pytest.mark.parametrize(("type_", "values"), EXTREMES, ids=[str(type_) for type_, _ in EXTREMES])
def test_no_constant_makes_some_rows_fail(head, type_, values):
    """Comparisons never fail: an error caused by one user's value would reveal it at no cost."""
    table = pa.table({"user": [1, 2, 3], "item": ["a", "b", "c"], "x": pa.array([*values, None], type_)})
    holds = {"=": eq, "<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
    constants = ["0", "1.5", f"0.{'0' * 34}1", f"-0.{'0' * 34}1", "9" * 38, f"-{'9' * 37}"]
    for constant, (sign, compare) in itertools.product(constants, holds.items()):
        found = [
            label for label, value in zip("ab", values, strict=True) if compare(Fraction(value), Fraction(constant))
        ]
        assert [label for (label,), _ in head(table, where=f"x {sign} {constant}")] == found, (sign, constant)


@pytest.mark.parametrize("extra", ["9999,a,01/13/2024", "# comment,,", '9999,"a",NaN', "abc,a,1.5"])
@pytest.mark.parametrize("place", [0, 700])
def test_a_row_of_a_csv_file_does_not_change_how_others_are_read(tmp_path, head, extra, place):
    """Separators, comments, types and date formats are not guessed from rows."""
    rows = [f"{user},item{user % 2} #note,0{1 + user % 3}/02/2024" for user in range(1500)]
    heads = []
    for lines in (rows, [*rows[:place], extra, *rows[place:]]):
        (tmp_path / "t.csv").write_text("\n".join(["user,item,day", *lines, ""]))
        heads.append([head(tmp_path / "t.csv", where=where) for where in (None, "day = '01/02/2024'", "user < 100")])
    for before, after in zip(*heads, strict=True):
        assert set(before) <= set(after)
        assert len(after) <= len(before) + 1


def test_columns_of_python_objects_have_no_type_and_are_refused(engine):
    """The type of a pandas object column follows from its values, which one user could change."""
    with pytest.raises(InputError, match="has no type of its own"):
        engine(pd.DataFrame({"user": ["a", "b"], "item": pd.Series([1, "x"], dtype=object)}))


def test_a_view_has_no_version(tmp_path, engine):
    """The rows of a view may change while its file stays the same."""
    with duckdb.connect(str(tmp_path / "t.db")) as connection:
        connection.execute('CREATE VIEW v AS SELECT 1 AS "user", 2 AS item')
    assert engine(tmp_path / "t.db", "v").data_version() is None


def test_frames_are_checked_when_they_are_opened(engine):
    """Invalid UTF-8 would make only the queries fail that read it."""
    broken = pa.StringArray.from_buffers(1, pa.array([0, 3], pa.int32()).buffers()[1], pa.py_buffer(b"\xed\xa0\x80"))
    with pytest.raises(InputError, match="not valid"):
        engine(pa.table({"user": broken}))
    with pytest.raises(InputError, match="no type of its own"):
        engine(pd.DataFrame({"user": pd.Series(["\ud800"], dtype=object)}))


class _DoneAtOnce(Future):
    """A future that is done just after a poll found that it was not."""

    polls = 0

    def result(self, timeout=None):
        """Time out for the first time, when it is done."""
        del timeout
        self.polls += 1
        result = super().result()
        if self.polls == 1:
            raise TimeoutError
        return result


def test_a_query_that_ends_between_two_polls_is_answered(monkeypatch):
    """A query whose data was read is not forfeited because of the moment at which it ended."""
    monkeypatch.setattr(base, "Future", _DoneAtOnce)
    assert run(lambda: "an answer", lambda: None) == "an answer"


def test_work_and_a_cancellation_that_never_end_are_left_alone():
    """If a network stalls, neither the statement nor its cancellation ends, and the time limit holds all the same."""
    never = threading.Event()
    with pytest.raises(EngineTimeout, match=r"did not answer within 0\.1 seconds"):
        run(never.wait, never.wait, seconds=0.1, patience=0.1)
    never.set()


def test_no_thread_outlives_its_work(monkeypatch):
    """A thread that holds a connection when the process ends makes the extension module report leaks."""

    class Slow(Future):
        def set_result(self, result):
            super().set_result(result)
            threading.Event().wait(0.1)

    monkeypatch.setattr(base, "Future", Slow)
    before = set(threading.enumerate())
    assert run(lambda: 1, print) == 1
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("stopped", [False, True])
def test_a_process_ends_with_nothing_on_standard_error(tmp_path, stopped):
    """After queries of a file that were answered, or stopped while they ran, no thread of ours is left."""
    pa.parquet.write_table(pa.table({"u": range(1000), "item": ["a"] * 1000}), tmp_path / "reads.parquet")
    program = f"""
import threading, discreet
from discreet.engines import base
base._POLL_SECONDS = 0
def progress(share):
    if {stopped}:
        raise RuntimeError
with discreet.scan("reads.parquet", user="u") as table:
    for query in (table.top, table.release):
        try:
            query("item", epsilon=5, progress=progress)
        except RuntimeError:
            print("stopped")
print(threading.active_count())
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["stopped"] * 2 * stopped + ["1"]
