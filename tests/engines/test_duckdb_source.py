"""All kinds of sources give the same head."""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from discreet.engines.duckdb import DuckDBEngine
from discreet.engines.duckdb_source import Source, open_source, original_names
from discreet.errors import InputError
from discreet.head_request import HeadRequest, Kind
from discreet.testing.engines import rows_of

TABLE = pa.table({"user": ["u1", "u2", "u3", "u1", None], "item": ["007", "007", "7", "é'", "7"], "n": [1, 2, 3, 4, 5]})
HEAD = [(("007",), 2), (("7",), 1), (("é'",), 1)]
FILTERED = [(("007",), 1), (("7",), 1), (("é'",), 1)]


def _as_parquet(folder):
    pyarrow.parquet.write_table(TABLE, folder / "t.parquet")
    return folder / "t.parquet"


def _as_glob(folder):
    for n in range(5):
        pyarrow.parquet.write_table(TABLE.slice(n, 1), folder / f"t{n}.parquet")
    return str(folder / "t*.parquet")


def _as_recursive_glob(folder):
    (folder / "a" / "b").mkdir(parents=True)
    pyarrow.parquet.write_table(TABLE.slice(0, 2), folder / "a" / "x.parquet")
    pyarrow.parquet.write_table(TABLE.slice(2), folder / "a" / "b" / "y.parquet")
    return str(folder / "**" / "*.parquet")


def _as_csv(folder, name="t.csv"):
    pyarrow.csv.write_csv(TABLE, folder / name)
    return folder / name


def _as_csv_glob(folder):
    for n in range(5):
        pyarrow.csv.write_csv(TABLE.slice(n, 1), folder / f"t{n}.csv")
    return str(folder / "*.csv")


def _as_csv_in_braces(folder):
    return _as_csv(folder, "t{types}.csv")


def _as_tsv(folder):
    (folder / "t.tsv").write_bytes(_as_csv(folder).read_bytes().replace(b",", b"\t"))
    return folder / "t.tsv"


def _as_gz(folder):
    (folder / "t.csv.gz").write_bytes(gzip.compress(_as_csv(folder).read_bytes()))
    return folder / "t.csv.gz"


def _as_database(folder):
    with duckdb.connect(str(folder / "t.db")) as connection:
        connection.register("given", TABLE)
        connection.execute("CREATE TABLE t AS SELECT * FROM given")
    return folder / "t.db"


def _as_url(folder):
    return f"duckdb:///{_as_database(folder)}?table=t"


def _as_pandas(_):
    return TABLE.to_pandas()


def _as_arrow_pandas(_):
    return TABLE.to_pandas(types_mapper=pd.ArrowDtype)


def _as_polars(_):
    return pl.from_arrow(TABLE)


def _as_lazy_polars(_):
    return pl.from_arrow(TABLE).lazy()


def _as_arrow(_):
    return TABLE


def _as_reader(_):
    return TABLE.to_reader(max_chunksize=1)


def _as_relation(folder):
    return duckdb.connect().from_parquet(str(_as_parquet(folder)))


SOURCES = [
    _as_parquet,
    _as_glob,
    _as_recursive_glob,
    _as_csv,
    _as_csv_glob,
    _as_csv_in_braces,
    _as_tsv,
    _as_gz,
    _as_database,
    _as_url,
    _as_arrow,
    _as_reader,
    _as_relation,
    _as_lazy_polars,
    _as_pandas,
    _as_arrow_pandas,
    _as_polars,
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__[4:])
def test_every_source_gives_the_same_head(tmp_path, head, source):
    """Files, globs, databases and frames give one head: NULLs are left out, 007 is not 7, and filters work."""
    given = source(tmp_path)
    assert head(given) == HEAD
    assert head(given, where="n >= 2") == FILTERED
    assert head(given, domain=pa.table({"item": ["7", "8"]}), limit=2) == [(("7",), 1), (("8",), 0)]


class _Stream:
    """An object of no known library that can be read as an Arrow stream, once."""

    def __init__(self, table):
        self._batches = table.to_reader()
        self.reads = 0

    def __arrow_c_stream__(self, requested_schema=None):
        """See the Arrow PyCapsule interface."""
        self.reads += 1
        return self._batches.__arrow_c_stream__(requested_schema)


def test_a_stream_is_read_once(engine):
    """A stream is read whole when it is opened, and all queries count the same rows."""
    stream = _Stream(TABLE)
    counted = engine(stream)
    for _ in range(2):
        assert rows_of(counted, HeadRequest("user", ("item",), 10)) == HEAD
    assert stream.reads == 1


def test_labels_of_a_csv_file_are_text_but_filters_see_their_type(tmp_path, head):
    """Items that look like numbers are compared as numbers and released as they are written."""
    (tmp_path / "t.csv").write_text("user,item,day\n1,7,2024-01-01\n2,10,2024-01-02\n03,9,\n")
    path = tmp_path / "t.csv"
    assert head(path, where="item < 10") == [(("7",), 1), (("9",), 1)]
    assert head(path, "day", where="day > '2024-01-01'") == [(("2024-01-02",), 1)]
    assert head(path) == [(("10",), 1), (("7",), 1), (("9",), 1)]


def test_csv_labels_are_the_text_between_the_separators(tmp_path, head):
    """Quotes, separators and spaces are kept, and no text becomes a boolean or a number."""
    text = 'user,item\n1,"a,b"\n2,"q""uote"\n4, a\n5,true\n6,NaN\n7,1e3\n8,1000.0\n9,\n'
    (tmp_path / "t.csv").write_text(text)
    labels = [" a", "1000.0", "1e3", "NaN", "a,b", 'q"uote', "true"]
    assert head(tmp_path / "t.csv") == [((label,), 1) for label in labels]


def test_csv_columns_may_be_named_with_quotes(tmp_path, head):
    """Column names are escaped in SQL literals."""
    (tmp_path / "t.csv").write_text('user,"it\'e""m}"\n1,007\n')
    assert head(tmp_path / "t.csv", "it'e\"m}") == [(("007",), 1)]


def test_a_table_of_a_schema_is_named_with_its_schema(tmp_path, head):
    """Tables of the main schema have their name alone, and views are tables too."""
    with duckdb.connect(str(tmp_path / "t.db")) as connection:
        connection.execute('CREATE SCHEMA "s\'x"; CREATE TABLE "s\'x"."t""1" AS SELECT 1 AS "user", 2 AS item')
        connection.execute('CREATE VIEW v AS SELECT 1 AS "user", 3 AS item')
    assert head(tmp_path / "t.db", table="s'x.t\"1") == [((2,), 1)]
    assert head(tmp_path / "t.db", table="v") == [((3,), 1)]


def test_a_url_may_be_relative_and_quoted(tmp_path, head, monkeypatch):
    """A URL with three slashes is relative, and percent signs are decoded."""
    monkeypatch.chdir(tmp_path)
    _as_database(tmp_path).rename(tmp_path / "a b.db")
    assert head("duckdb:///a%20b.db") == HEAD


def test_a_url_without_a_table_is_of_the_given_one(tmp_path, head):
    """Of a file with several tables, one must be named, in the URL or beside it."""
    with duckdb.connect(str(_as_database(tmp_path))) as connection:
        connection.execute('CREATE TABLE other AS SELECT 1 AS "user", 2 AS item')
    assert head(f"duckdb:///{tmp_path / 't.db'}", table="t") == HEAD


@pytest.mark.parametrize("source", [_as_database, _as_url])
def test_a_view_reads_the_tables_of_a_database(tmp_path, source):
    """It names them as the file does, and messages name the file."""
    given = source(tmp_path)
    with contextlib.closing(DuckDBEngine(given, view="SELECT * FROM t")) as engine:
        assert rows_of(engine, HeadRequest("user", ("item",), 10)) == HEAD
    with duckdb.connect() as connection:
        opened = open_source(connection, given, None, "SELECT * FROM t")
    assert opened.name == opened.identity == f"{tmp_path / 't.db'}, a view"


def test_files_have_one_identity_however_their_paths_are_written(tmp_path, monkeypatch):
    """Keyed noise depends on it: in the working directory it is relative, so that a project can move."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    for path in (Path("a.csv"), tmp_path / "project" / "a.csv", Path("../project/a.csv")):
        assert Source("", "it", files=(path,)).identity == "a.csv"
    assert Source("", "it", files=(Path("../a.csv"),)).identity == str(tmp_path / "a.csv")


def test_names_of_parquet_columns_are_those_of_the_first_level(tmp_path):
    """Two of them that differ in case only, which DuckDB renames, refuse a file; what they hold inside does not."""
    deep = pa.list_(pa.struct([("item", pa.list_(pa.int64())), ("ITEM", pa.map_(pa.string(), pa.int64()))]))
    pyarrow.parquet.write_table(
        TABLE.add_column(0, "deep", pa.nulls(5, deep)).add_column(2, "Deeper", pa.nulls(5, deep)),
        tmp_path / "t.parquet",
    )
    with duckdb.connect() as connection:
        source = open_source(connection, tmp_path / "t.parquet", None)
        assert original_names(connection, source) == ["deep", "user", "Deeper", "item", "n"]


@pytest.mark.parametrize(
    ("header", "difference"),
    [
        ("user;item;n", "has ';' and not ',' as in the first file"),
        ("item,user,n", "has the same columns in another order than the first file"),
        ("user,x,y", "does not have the columns of the first file: it lacks 'item', 'n' and has also 'x', 'y'"),
        ("user,n", "does not have the columns of the first file: it lacks 'item'"),
        ("user,item,n,x", "does not have the columns of the first file: it has also 'x'"),
    ],
)
def test_a_header_that_differs_is_refused_with_the_difference(tmp_path, header, difference):
    """In one sentence, so that the owner sees which export was another one."""
    for name, line in (("1.csv", "user,item,n"), ("2.csv", header)):
        (tmp_path / name).write_text(f"{line}\n")
    with pytest.raises(InputError) as error:
        DuckDBEngine(str(tmp_path / "*.csv"))
    assert str(error.value) == f"the first line of {str(tmp_path / '2.csv')!r} {difference}"


@pytest.mark.parametrize("content", [b"", b"\n1,2\n", b" \n", b"user,it\0em\n", b"user,item,User\n"])
def test_a_file_whose_first_line_names_no_columns_is_refused(tmp_path, content):
    """Nothing, white space, a zero byte, or a name twice; also in a compressed file, which is never of size 0."""
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(content))
    with pytest.raises(InputError, match="its first line must name its columns"):
        DuckDBEngine(tmp_path / "t.csv.gz")


def test_messages_name_a_source_by_its_path(tmp_path):
    """CSV files, too, whose rows are in memory."""
    for path in (_as_csv(tmp_path), _as_parquet(tmp_path)):
        with duckdb.connect() as connection:
            assert open_source(connection, path, None).name == str(path)


def test_a_database_is_opened_for_reading_only(tmp_path, head):
    """A database file is unchanged, and no file is created beside it."""
    path = _as_database(tmp_path)
    before = path.read_bytes()
    assert head(path, groups_per_user=1, domain=pa.table({"item": ["7"]}), limit=1) == [(("7",), 1)]
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("writes", [pyarrow.parquet.write_table, pyarrow.csv.write_csv], ids=["parquet", "csv"])
def test_brackets_in_a_files_name_are_no_pattern(tmp_path, head, writes):
    """The file a[1] is read although the pattern a[1] matches a1, also if a glob found it."""
    end = "parquet" if writes is pyarrow.parquet.write_table else "csv"
    writes(pa.table({"user": ["1"], "item": ["plain"]}), tmp_path / f"a1.{end}")
    writes(pa.table({"user": ["2"], "item": ["bracket"]}), tmp_path / f"a[1].{end}")
    assert head(str(tmp_path / f"*.{end}")) == [(("bracket",), 1), (("plain",), 1)]
    assert head(Path(tmp_path / f"a[1].{end}")) == [(("bracket",), 1)]


def test_categories_are_their_values(head):
    """Categories of pandas and Polars are read by value, for any order of their codes."""
    pandas = pd.DataFrame({"user": [1, 2, 3], "item": pd.Categorical(["z", "a", "z"], ["z", "a"])})
    polars = pl.DataFrame({"user": [1, 2, 3], "item": ["z", "a", "z"]}, schema_overrides={"item": pl.Enum(["z", "a"])})
    assert head(pandas) == head(polars) == [(("z",), 2), (("a",), 1)]


def test_objects_that_look_like_variables_are_not_read(tmp_path, head):
    """A table named like a Python variable of ours is a table of the file, not the variable."""
    frame = pa.table({"user": [9], "item": ["wrong"]})
    assert frame.num_rows == 1
    with duckdb.connect(str(tmp_path / "t.db")) as connection:
        connection.execute("CREATE TABLE frame AS SELECT 1 AS \"user\", 'right' AS item")
    assert head(tmp_path / "t.db", table="frame") == [(("right",), 1)]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("user, item\nu1, a\n", ["user", "item"]),
        (",user,item\n0,u1,a\n", ["user", "item"]),
        ("\ufeffuser,item\nu1,a\n", ["user", "item"]),
        ("user;item\r\nu1;a\r\n", ["user", "item"]),
        ('"us""er","it,em"\nu1,a\n', ['us"er', "it,em"]),
    ],
    ids=["spaces", "index", "mark", "semicolons", "quotes"],
)
def test_common_forms_of_csv_headers_are_read(tmp_path, engine, text, columns):
    """Headers may have spaces after commas, pandas' nameless index and a byte order mark."""
    (tmp_path / "t.csv").write_text(text, "utf-8", newline="")
    assert [name for name in engine(tmp_path / "t.csv").columns() if name in columns] == columns


@pytest.fixture
def folders(tmp_path):
    """Return a function that writes a file of one user into a folder for each name, and returns their pattern."""

    def write(*names, **columns):
        for n, name in enumerate(names):
            (tmp_path / name).mkdir()
            table = pa.table({"user": [f"u{n}"], "item": ["a"]} | {column: [column] for column in columns})
            pyarrow.parquet.write_table(table, tmp_path / name / "t.parquet")
        return str(tmp_path / "*" / "*.parquet")

    return write


@pytest.mark.parametrize("last", ["2024", "2024-01-01", "x", "%20", "__HIVE_DEFAULT_PARTITION__"])
def test_columns_of_folders_are_text(folders, engine, head, last):
    """A folder year=2024 makes a column of text, as in Hive; a name of one user's does not decide its type."""
    files = folders("year=2023", f"year={last}")
    assert engine(files).columns()["year"] is Kind.TEXT
    assert head(files) == [(("a",), 2)]
    assert head(files, where="year = '2023'") == [(("a",), 1)]


def test_columns_of_folders_are_cast_as_declared(folders):
    """As for other text, every value is compared when the source is opened."""
    with contextlib.closing(DuckDBEngine(folders("year=2023", "year=2024"), cast={"year": "integer"})) as opened:
        assert opened.columns()["year"] is Kind.INTEGER


def test_a_column_of_a_file_is_not_replaced_by_its_folder(folders, engine):
    """DuckDB would read the name of the folder instead."""
    with pytest.raises(InputError, match="has a column 'Year', and so has its folder"):
        engine(folders("Year=2023", "Year=2024", year=1))


def test_a_folder_without_a_value_makes_no_column(folders, head):
    """It may be called like a column of the file."""
    assert head(folders("user", "item")) == [(("a",), 2)]


def test_csv_files_of_one_glob_have_one_header(tmp_path, engine):
    """CSV columns are read by position, so another order in another file would mix users with items."""
    (tmp_path / "1.csv").write_text("user,item\nu1,a\n")
    (tmp_path / "2.csv").write_text("item,user\na,u2\n")
    with pytest.raises(InputError, match="has the same columns in another order"):
        engine(str(tmp_path / "*.csv"))
