"""What is read is exactly what was checked: a changed source is refused in one sentence, whatever it holds."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import replace

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

import discreet
from discreet.engines.duckdb import DuckDBEngine
from discreet.engines.opening import open_engine, source_fingerprint
from discreet.engines.sources import as_arrow, checked
from discreet.errors import EngineError, EngineUnreachable, InputError
from discreet.head_request import Comparison, Constant, HeadRequest, Kind
from discreet.testing.engines import rows_of

REQUEST = HeadRequest("user", ("item",), 10)
ROWS = {"user": ["a", "b"], "item": ["x", "x"], "at": pa.array([0, 1], pa.timestamp("us"))}
BEYOND = 2**63 // 1000 + 1
VIEW = "SELECT * FROM source"
SMALL = Comparison("size", "<", Constant(2, Kind.INTEGER))


def _parquet(path, **columns):
    pyarrow.parquet.write_table(pa.table(ROWS | columns), path)


def _milliseconds(*values):
    return pa.array(values, pa.timestamp("ms"))


def _out_of_range(folder):
    """Rewrite the file with a timestamp that DuckDB cannot read."""
    _parquet(folder / "1.parquet", at=_milliseconds(0, BEYOND))


def _coarser(folder):
    """Rewrite the file, of microseconds, in milliseconds."""
    _parquet(folder / "1.parquet", at=_milliseconds(0, 1))


def _other_ids(folder):
    """Add a file whose users are text, to one whose users are numbers."""
    _parquet(folder / "2.parquet", user=["x", "y"])


def _no_users(folder):
    """Rewrite the file without the user column."""
    pyarrow.parquet.write_table(pa.table({"item": ["x"]}), folder / "1.parquet")


def _garbage(folder):
    """Rewrite the file with bytes that are no Parquet."""
    (folder / "1.parquet").write_bytes(b"PAR1 and nothing else")


def _gone(folder):
    """Remove the file."""
    (folder / "1.parquet").unlink()


def _same_rows(folder):
    """Replace the file by one of the same size and time with the same bytes."""
    path, other = folder / "1.parquet", folder / "other"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=times)
    other.replace(path)


def _parquet_of_it(path):
    _parquet(path)
    return path


def _csv_of_it(path):
    path.with_suffix(".csv").write_text("user,item\na,x\n")
    return path.with_suffix(".csv")


def _frame_of_it(path):
    del path
    return pa.table(ROWS)


def _database_of_it(path):
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS \"user\", 'x' AS item")
    return path


def _same_state(folder):
    """Write other rows into the file, and restore its size and its time of modification."""
    path = folder / "1.parquet"
    before = path.stat()
    content = path.read_bytes()
    with path.open("r+b") as file:  # the same inode
        file.seek(len(content) // 2)
        file.write(b"?" if content[len(content) // 2 :][:1] != b"?" else b"!")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


CHANGES = [_out_of_range, _coarser, _other_ids, _no_users, _garbage, _gone, _same_rows, _same_state]


@pytest.mark.parametrize("view", [None, VIEW], ids=["table", "view"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__[1:])
def test_a_changed_parquet_file_is_refused_whatever_it_holds(tmp_path, change, view):
    """No row of the new files decides the outcome: every request gets the same error, before anything is read."""
    _parquet(tmp_path / "1.parquet", user=[1, 2])
    with contextlib.closing(DuckDBEngine(str(tmp_path / "*.parquet"), view=view)) as engine:
        assert rows_of(engine, REQUEST) == [(("x",), 2)]
        change(tmp_path)
        _check_refused(engine)


@pytest.mark.parametrize("view", [None, VIEW], ids=["table", "view"])
@pytest.mark.parametrize("content", ["user,item\na,y\n", 'user,item\n"', "user\na\n", ""], ids=repr)
def test_a_changed_csv_file_is_refused_whatever_it_holds(tmp_path, content, view):
    """Rows that were read before the change are not the data any more, and are not answered from."""
    path = tmp_path / "t.csv"
    path.write_text("user,item\na,x\n")
    with contextlib.closing(DuckDBEngine(path, view=view)) as engine:
        assert rows_of(engine, REQUEST) == [(("x",), 1)]
        path.write_text(content)
        _check_refused(engine)


@pytest.mark.parametrize("view", [None, "SELECT * FROM t"], ids=["table", "view"])
def test_a_replaced_database_is_refused(tmp_path, view):
    """DuckDB would go on to read the file that it opened, under the version of the new one."""
    for name, rows in (("t.db", 1), ("new.db", 5)):
        with duckdb.connect(str(tmp_path / name)) as connection:
            connection.execute(f"CREATE TABLE t AS SELECT range AS \"user\", 'x' AS item FROM range({rows})")
    with contextlib.closing(DuckDBEngine(tmp_path / "t.db", None if view else "t", view=view)) as engine:
        assert rows_of(engine, REQUEST) == [(("x",), 1)]
        (tmp_path / "new.db").replace(tmp_path / "t.db")
        _check_refused(engine)


def _check_refused(engine):
    found = set()
    for ask in (engine.check, engine.head, lambda request: engine.pairs(request).__enter__()):
        with pytest.raises(EngineUnreachable, match=r"has changed since it was opened; open it again$") as error:
            ask(REQUEST)
        found.add(str(error.value))
    for ask in (engine.columns, engine.data_version, lambda: engine.scale("item"), lambda: engine.fetch("SELECT 1")):
        with pytest.raises(EngineUnreachable) as error:
            ask()
        found.add(str(error.value))
    assert len(found) == 1


@pytest.mark.parametrize("view", [None, VIEW], ids=["table", "view"])
@pytest.mark.parametrize("change", [_garbage, _same_rows, _other_ids], ids=lambda change: change.__name__[1:])
def test_a_file_that_changes_during_a_query_is_refused(tmp_path, monkeypatch, change, view):
    """The read was sent, so it is charged; its result and its own error are replaced by that of the change."""
    _parquet(tmp_path / "1.parquet", user=[1, 2])
    with contextlib.closing(DuckDBEngine(str(tmp_path / "*.parquet"), view=view)) as engine:
        run = engine._guarded

        def change_first(*arguments):
            change(tmp_path)
            return run(*arguments)

        monkeypatch.setattr(engine, "_guarded", change_first)
        with pytest.raises(EngineError, match="has changed since it was opened") as error:
            engine.head(REQUEST)
        assert not isinstance(error.value, EngineUnreachable)


@pytest.mark.parametrize("view", [None, VIEW], ids=["table", "view"])
def test_a_csv_file_that_changes_during_a_query_is_answered(tmp_path, monkeypatch, view):
    """Its rows are in memory, so those that were checked are counted; the next query is refused."""
    path = _csv_of_it(tmp_path / "1")
    with contextlib.closing(DuckDBEngine(path, view=view)) as engine:
        run = engine._guarded

        def change_first(*arguments):
            path.write_text("user,item\nb,y\n")
            return run(*arguments)

        monkeypatch.setattr(engine, "_guarded", change_first)
        assert rows_of(engine, REQUEST) == [(("x",), 1)]
        _check_refused(engine)


def test_a_file_that_changes_during_the_queries_of_pairs_is_refused(tmp_path):
    """The pairs are read while the context is open, and nothing is released before it ends."""
    _parquet(tmp_path / "1.parquet")
    with (
        contextlib.closing(DuckDBEngine(tmp_path / "1.parquet")) as engine,
        pytest.raises(EngineError, match="has changed since it was opened"),
        engine.pairs(REQUEST),
    ):
        _parquet(tmp_path / "1.parquet")


@pytest.mark.parametrize("end", ["parquet", "csv"])
def test_a_file_that_changes_while_it_is_checked_is_refused(tmp_path, monkeypatch, end):
    """The fingerprint is taken before the checks and again after them."""
    path = tmp_path / f"t.{end}"
    path.write_text("user,item\na,x\n") if end == "csv" else _parquet(path)
    from discreet.engines import duckdb as module

    opened = module.open_source

    def replaced(*arguments, **options):
        found = opened(*arguments, **options)
        path.write_text("user,item\na,x\nb,x\n") if end == "csv" else _parquet(path)
        return found

    monkeypatch.setattr(module, "open_source", replaced)
    with pytest.raises(InputError, match="has changed since it was opened; open it again"):
        DuckDBEngine(path)


@pytest.mark.parametrize(
    "source", [_parquet_of_it, _csv_of_it, _frame_of_it, _database_of_it], ids=lambda source: source.__name__[1:-6]
)
@pytest.mark.parametrize("other", ["read_parquet('{}')", "'{}'", "read_text('{}')", "glob('{}')"])
def test_a_view_reads_its_source_only(tmp_path, source, other):
    """No other file is checked or compared, so its rows could decide whether a query fails."""
    _parquet(tmp_path / "other.parquet")
    other = other.format(tmp_path / "other.parquet")
    view = f'SELECT 1 AS "user", count(*) AS item FROM {other}'
    with (
        contextlib.closing(DuckDBEngine(source(tmp_path / "t"), view=view)) as engine,
        pytest.raises(
            InputError,
            match=r", a view reads a file that is not its source; views and statements may read source only$",
        ),
    ):
        engine.columns()


def test_a_statement_of_the_owner_reads_the_source_only(tmp_path):
    """Its result, labels or a version, would change although the source does not."""
    for name in ("1", "2"):
        _parquet(tmp_path / f"{name}.parquet")
    with contextlib.closing(DuckDBEngine(tmp_path / "1.parquet")) as engine:
        assert engine.fetch("SELECT count(*) AS n FROM source").to_pylist() == [{"n": 2}]
        with pytest.raises(EngineError, match="reads a file that is not its source"):
            engine.fetch(f"SELECT * FROM '{tmp_path}/2.parquet'")


def test_a_view_in_a_database_reads_no_file(tmp_path):
    """The file beside the database is not in its fingerprint; tables of the database are."""
    _parquet(tmp_path / "other.parquet")
    with duckdb.connect(str(tmp_path / "t.db")) as connection:
        connection.execute(f"CREATE VIEW v AS FROM read_parquet('{tmp_path}/other.parquet'); CREATE TABLE t AS FROM v")
        connection.execute("CREATE VIEW w AS FROM t")
    with contextlib.closing(DuckDBEngine(tmp_path / "t.db", "w")) as engine:
        assert rows_of(engine, REQUEST) == [(("x",), 2)]
    with (
        contextlib.closing(DuckDBEngine(tmp_path / "t.db", "v")) as engine,
        pytest.raises(InputError, match="reads a file that is not its source"),
    ):
        engine.columns()


def _text_of(*values):
    """Return a column of text whose bytes nothing has checked."""
    offsets, data = pa.array(values, pa.binary()).buffers()[1:]
    return pa.StringArray.from_buffers(len(values), offsets, data)


UNREADABLE = {
    "text": _text_of(b"x", b"\xff\xfe"),
    "list": pa.ListArray.from_arrays([0, 1, 2], _text_of(b"x", b"\xff\xfe")),
    "struct": pa.StructArray.from_arrays([_text_of(b"x", b"\xff\xfe")], ["text"]),
    "milliseconds": _milliseconds(0, BEYOND),
    "milliseconds with a zone": pa.array([0, BEYOND], pa.timestamp("ms", "UTC")),
}


@pytest.mark.parametrize("view", [None, VIEW], ids=["table", "view"])
@pytest.mark.parametrize("dictionary", [True, False], ids=["dictionary", "plain"])
@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_value_that_duckdb_cannot_read_refuses_the_file_when_it_is_opened(tmp_path, kind, dictionary, view):
    """Later it would make those queries fail that read it, and a filter on another column selects which."""
    for name, rows in (("1", slice(0, 1)), ("2", slice(0, 2))):
        table = pa.table(ROWS | {"at": UNREADABLE[kind], "price": pa.array([1, 2], pa.decimal128(3))})
        pyarrow.parquet.write_table(table[rows], tmp_path / f"{name}.parquet", use_dictionary=dictionary)
    with contextlib.closing(DuckDBEngine(tmp_path / "1.parquet", view=view)) as engine:
        assert rows_of(engine, REQUEST) == [(("x",), 1)]
    with pytest.raises(InputError, match=r"^column 'at' of .*2\.parquet' holds a value that cannot be read") as error:
        DuckDBEngine(str(tmp_path / "*.parquet"), view=view)
    assert "xff" not in str(error.value).lower()


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_scan_checks_values_before_the_first_query_of_some_rows(tmp_path, kind):
    """A query of all rows that fails says what the check says; one of some rows is refused whatever it selects."""
    table = pa.table({"user": ["a", "b"], "item": ["x", "x"], "size": [1, 2], "at": UNREADABLE[kind]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(InputError) as refused:
        DuckDBEngine(tmp_path / "t.parquet")
    with contextlib.closing(open_engine(tmp_path / "t.parquet", defers_check=True)) as engine:
        assert rows_of(engine, REQUEST) == [(("x",), 2)]
        with engine.pairs(REQUEST) as pairs:
            assert pairs.count_items() == 1
        text = kind == "text"
        selections = [
            lambda: engine.head(HeadRequest("at" if text else "user", ("item",) if text else ("at",), 5)),
            lambda: engine.check(replace(REQUEST, where=SMALL)),
            lambda: engine.head(replace(REQUEST, where=SMALL)),
            lambda: engine.check(replace(REQUEST, groups_per_user=1)),
            lambda: engine.check(replace(REQUEST, domain=pa.table({"item": ["x"]}))),
            lambda: engine.fetch("SELECT size FROM source"),
            engine.check_values,
        ]
        for select in selections if text else selections[1:]:
            with pytest.raises(InputError, match=re.escape(str(refused.value))):
                select()


def test_a_scan_with_a_budget_checks_values_before_anything_is_charged(tmp_path):
    """Else a query of all rows that fails would be charged, or be free and tell of a row."""
    table = pa.table({"user": _text_of(b"a", b"\xff"), "item": ["x", "x"]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    budget = discreet.Budget(epsilon=1, delta="1e-6")
    with (
        discreet.scan(tmp_path / "t.parquet", user="user") as frame,
        pytest.raises(InputError, match=r"column 'user' of .* holds a value that cannot be read"),
    ):
        frame.top("item", 1, epsilon="0.5", budget=budget)
    assert budget.spent == discreet.Budget(epsilon=1, delta="1e-6").spent
    assert budget.held == budget.spent


def test_the_version_is_the_fingerprint_of_what_was_checked(tmp_path):
    """It names every file of the glob with its inode, size and time, and is the same for the same files."""
    for n in (1, 2):
        _parquet(tmp_path / f"{n}.parquet")
    pattern = str(tmp_path / "*.parquet")
    before = source_fingerprint(pattern)
    with contextlib.closing(DuckDBEngine(pattern)) as engine:
        assert engine.data_version() == before == source_fingerprint(pattern)
    for n, line in enumerate(before.splitlines(), 1):
        state = (tmp_path / f"{n}.parquet").stat()
        assert line.startswith(f"{tmp_path / f'{n}.parquet'} {state.st_ino} {state.st_size} {state.st_mtime_ns}")
    _same_rows(tmp_path)
    assert source_fingerprint(pattern) != before
    with contextlib.closing(DuckDBEngine(pattern, view=VIEW)) as engine:
        assert engine.data_version() is None, "the rows of a view may change although its files do not"


@pytest.mark.parametrize("place", range(4))
def test_the_columns_of_every_file_are_those_of_the_first(tmp_path, place):
    """DuckDB casts those of the others, and a value that does not fit would make a query fail, or become another."""
    for n in range(5):
        _parquet(tmp_path / f"{n}.parquet", user=["1", "2"] if n == place + 1 else [1, 2])
    with pytest.raises(InputError, match=rf"the columns of '.*{place + 1}\.parquet' are not those of '.*0\.parquet'"):
        DuckDBEngine(str(tmp_path / "*.parquet"))


def test_servers_and_frames_have_no_fingerprint(tmp_path):
    """A server answers from its present state, and a frame is converted when it is opened."""
    assert source_fingerprint("postgresql://reader@127.0.0.1:9/nothing?table=t") is None
    assert source_fingerprint(pa.table(ROWS)) is None
    with pytest.raises(InputError, match="there is no file"):
        source_fingerprint(str(tmp_path / "missing.parquet"))
    with pytest.raises(InputError, match="no file matches"):
        source_fingerprint(str(tmp_path / "*.parquet"))
    with pytest.raises(InputError, match=r"no file matches 'jdbc:.*'; URLs of engines begin with their name"):
        source_fingerprint("jdbc:postgresql://127.0.0.1:9/nothing?table=t")


# ---------------------------------------------------------------------------------------------------------- frames


def _coarse(unit, zone, *values):
    users = pa.array([str(n) for n in range(len(values))])
    return pa.table({"user": users, "at": pa.array(values, pa.timestamp(unit, zone))})


FRAMES = {
    "arrow": lambda table: table,
    "polars": pl.from_arrow,
    "pandas": lambda table: table.to_pandas(coerce_temporal_nanoseconds=False),
    "pandas of arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
}


@pytest.mark.parametrize("view", [None, VIEW], ids=["table", "view"])
@pytest.mark.parametrize(
    ("kind", "unit"), [(kind, unit) for kind in FRAMES for unit in ("s", "ms") if (kind, unit) != ("polars", "s")]
)
def test_coarse_timestamps_with_a_zone_never_make_a_query_fail(kind, unit, view):
    """DuckDB fails at one that does not fit into microseconds; it is missing, as it is without a zone."""
    beyond = BEYOND if unit == "ms" else BEYOND // 1000 + 1
    table = _coarse(unit, "UTC", 0, beyond, -beyond, -(2**63) + 1, None)
    with contextlib.closing(DuckDBEngine(FRAMES[kind](table), view=view)) as engine:
        assert engine.columns()["at"] is Kind.TIMESTAMP
        assert [count for _, count in rows_of(engine, HeadRequest("user", ("at",), 5))] == [1]
        assert rows_of(engine, HeadRequest("user", ("at",), 5, keep_missing=True))[0][1] == 4


@pytest.mark.parametrize(
    ("type_", "shown"),
    [
        (pa.float16(), "halffloat"),
        (pa.decimal256(50, 2), r"decimal256\(50, 2\)"),
        (pa.list_view(pa.float16()), "list_view<item: halffloat>"),
    ],
)
def test_a_type_that_duckdb_does_not_have_is_named_with_its_column(type_, shown):
    """Whatever the column holds, and at any depth."""
    frame = pa.table({"user": [1], "item": ["x"], "size": pa.nulls(1, type_)})
    with pytest.raises(
        InputError, match=f"^column 'size' of the pyarrow Table has the type {shown}, which DuckDB"
    ) as error:
        DuckDBEngine(frame)
    assert "decimal256 to decimal128 of at most 38 digits" in str(error.value)
    assert error.value.__cause__ is None


@pytest.mark.parametrize(("unit", "factor"), [("s", 10**6), ("ms", 10**3)])
def test_a_timestamp_is_missing_only_beyond_the_microseconds_of_64_bits(unit, factor):
    """The last one on either side of the epoch is kept, in its zone."""
    last = (2**63 - 1) // factor
    at = checked(_coarse(unit, "Asia/Kolkata", last, -last, last + 1, -last - 1, -(2**63), None), "it").column("at")
    assert at.type == pa.timestamp("us", "Asia/Kolkata")
    assert at.cast(pa.int64()).to_pylist() == [last * factor, -last * factor, None, None, None, None]


def _nested(coarse, duration):
    """Return types that hold such timestamps and durations."""
    return [
        duration,
        pa.dictionary(pa.int8(), coarse, True),
        pa.map_(duration, coarse),
        pa.struct([("x", coarse)]),
        pa.list_(coarse),
        pa.large_list(coarse),
        pa.list_(coarse, 2),
        pa.uuid(),  # a type of an extension that is not pandas' is left as it is
    ]


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_coarse_units_become_microseconds_at_any_depth(unit):
    """The rest of the type, such as the size of a list, the order of categories and the zone, stays."""
    coarse = _nested(pa.timestamp(unit, "UTC"), pa.duration(unit))
    table = pa.table({f"c{n}": pa.nulls(1, type_) for n, type_ in enumerate(coarse)})
    assert checked(table, "it").schema.types == _nested(pa.timestamp("us", "UTC"), pa.duration("us"))


class _Own(pa.ExtensionType):
    """A type of another library, whose values are whole numbers to all others."""

    def __init__(self):
        super().__init__(pa.int64(), "own.number")

    def __arrow_ext_serialize__(self):
        """See `pyarrow.ExtensionType`."""
        return b""


def test_types_of_other_libraries_are_left_as_they_are():
    """Those that extend a type of Arrow, and unions."""
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1]), pa.array(["a"])])
    own = _Own()
    table = pa.table({"own": pa.ExtensionArray.from_storage(own, pa.array([1])), "union": union})
    assert checked(table, "it") == table


def test_types_that_only_pandas_understands_are_refused():
    """DuckDB would read what stores them."""
    period = pa.array(pd.period_range("2024-01", periods=1, freq="M"))
    with pytest.raises(InputError, match=r"^column 'at' of it has a type that DuckDB cannot read; cast it"):
        checked(pa.table({"at": period}), "it")


@pytest.mark.parametrize("type_", [pa.list_(pa.timestamp("ms", "UTC")), pa.struct([("x", pa.duration("s"))])])
def test_nested_values_out_of_range_are_refused_when_a_frame_is_opened(type_):
    """A view could unnest them."""
    values = [[BEYOND]] if pa.types.is_list(type_) else [{"x": BEYOND}]
    table = pa.table({"user": ["a"], "at": pa.array(values, type_)})
    for make in ("arrow", "polars", "pandas of arrow"):
        if make != "polars" or pa.types.is_list(type_):  # Polars has no durations in seconds
            with pytest.raises(InputError, match=r"column 'at' of the .* does not fit into microseconds"):
                DuckDBEngine(FRAMES[make](table), view='SELECT "user", 1 AS item FROM source')


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(["a", "\ud800"], dtype=pd.StringDtype("python")),
        pd.Series(["a", "\ud800"], dtype=object),
        pd.Series(pd.Categorical.from_codes([0, 1], pd.Index(["a", "\ud800"], dtype=object))),
        pd.Series([1, "x"], dtype=object),
        pd.Series([b"a", b"b"], dtype=object),
        pd.Series([1j, 2j]),
        pd.Series(pd.period_range("2024-01", periods=2, freq="M")),
        pd.Series([1.5, 2.5]).astype(pd.SparseDtype("float")),
    ],
    ids=["string", "object", "category", "mixed", "bytes", "complex", "period", "sparse"],
)
def test_pandas_columns_that_arrow_cannot_hold_are_refused(column):
    """Each in one sentence that names the column, when the frame is opened."""
    with pytest.raises(InputError, match="column 'item' of the "):
        DuckDBEngine(pd.DataFrame({"user": ["a", "b"], "item": column}))


def test_polars_columns_of_python_objects_are_refused():
    """They have no type of their own."""
    with pytest.raises(InputError, match="column 'item' of the "):
        DuckDBEngine(pl.DataFrame({"user": ["a"], "item": pl.Series([object()], dtype=pl.Object)}))


def test_a_frame_is_read_as_it_was_when_it_was_opened():
    """A pandas frame is mutable: what is written into one afterwards was not checked."""
    frame = pd.DataFrame({"user": [1, 2, 3], "item": ["a", "a", "b"]})
    with contextlib.closing(DuckDBEngine(frame)) as engine:
        frame.loc[:, "user"] = 1  # in place
        frame.loc[:, "item"] = "c"
        assert rows_of(engine, REQUEST) == [(("a",), 2), (("b",), 1)]


def test_missing_values_of_pandas_are_missing():
    """NaN of a number is, and a column of objects that are all None is text."""
    frame = pd.DataFrame({"x": [1.0, float("nan")], "text": pd.Series([None, None], dtype=object)})
    table, name = as_arrow(frame)
    assert name == "the pandas DataFrame"
    assert table.schema.types == [pa.float64(), pa.string()]
    assert [column.null_count for column in table.columns] == [1, 2]


class _Unread(pd.arrays.IntegerArray):
    """Is what a library's own column may be: it fails with any error, whose message holds a value."""

    def __arrow_array__(self, type=None):  # noqa: A002 - Arrow's name
        """See `pyarrow.array`."""
        raise RuntimeError("secret")


def test_any_error_of_a_library_refuses_the_column_without_its_message():
    """No error that a value causes gets out as it is."""
    frame = pd.DataFrame({"user": _Unread(pd.array([1])._data, pd.array([False])._data)})
    with pytest.raises(InputError, match=r"^column 'user' of the pandas DataFrame has no type of its own") as error:
        as_arrow(frame)
    assert "secret" not in str(error.value)


def test_a_source_is_named_by_its_library():
    """In what is said of a relation that cannot be read, too, without the underscore of the module."""
    assert as_arrow(duckdb.sql("SELECT 1 AS user"))[1] == "the duckdb DuckDBPyRelation"
    with pytest.raises(InputError, match=r"^the polars LazyFrame cannot be read as a table"):
        as_arrow(pl.LazyFrame({"user": ["x"]}).select(pl.col("user").str.to_integer()))
    with pytest.raises(
        InputError, match=r"^the duckdb DuckDBPyRelation cannot be read as a table \(\w+\); read it without Discreet"
    ):
        as_arrow(duckdb.sql("SELECT CAST('x' AS INTEGER) AS user"))


_ROWS = pa.table({"user": [1]})


@pytest.mark.parametrize(
    ("source", "instead"),
    [
        (pd.Series([1], name="user"), "scan series.to_frame()"),
        (pl.Series("user", [1]), "scan series.to_frame()"),
        (pyarrow.dataset.dataset(_ROWS), "scan dataset.scanner().to_reader()"),
        (pyarrow.dataset.dataset([pyarrow.dataset.dataset(_ROWS)]), "scan dataset.scanner().to_reader()"),
        (pyarrow.dataset.dataset(_ROWS).scanner(), "scan scanner.to_reader()"),
        ({"user": [1]}, "scan pyarrow.table(columns)"),
        ([{"user": 1}], "scan pyarrow.Table.from_pylist(rows), or files by a glob such as"),
        (["a.parquet", "b.parquet"], "or files by a glob such as 'data/*.parquet'"),
        (duckdb.connect(), "scan a relation such as connection.sql("),
        (type("Cursor", (), {"__module__": "adbc_driver_manager.dbapi"})(), "scan cursor.fetch_record_batch()"),
        (7, "of the type int; scan a path or glob of Parquet or CSV files"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_table_is_refused_with_what_to_scan_instead(source, instead):
    """One call makes it one, and the sentence names the call."""
    with pytest.raises(InputError) as error:
        as_arrow(source)
    assert instead in str(error.value)


def test_a_class_of_a_notebook_is_called_by_its_name():
    """Its module is __main__, which is no library."""

    def fail(*_):
        raise ValueError

    read = type("Rows", (), {"__module__": "__main__", "__arrow_c_stream__": fail})()
    with pytest.raises(InputError, match=r"^the Rows cannot be read as a table"):
        as_arrow(read)


def test_a_dataset_of_files_is_refused_like_one_in_memory(tmp_path):
    """The type of a dataset of files has another name than that of one in memory."""
    with pytest.raises(InputError, match=r"FileSystemDataset; scan dataset\.scanner\(\)\.to_reader\(\)$"):
        as_arrow(pyarrow.dataset.dataset(tmp_path))
