"""Spark passes the engine suite, and its own types are counted exactly."""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from discreet.engines import spark, spark_session
from discreet.engines.duckdb import DuckDBEngine
from discreet.engines.opening import open_engine
from discreet.engines.spark import SparkEngine
from discreet.errors import InputError
from discreet.head_request import Comparison, Constant, HeadRequest, IsNull, Kind, Membership, Not
from discreet.query.predicates import bind_where
from discreet.query.sql import parse_where
from discreet.testing.engines import EngineSuite, reference_pairs, rows_of
from discreet.testing.pairs import gathered
from tests.parquet_footers import make_old
from tests.servers import spark as spark_server
from tests.servers.proxies import Proxy
from tests.servers.questions import KINDS, questions
from tests.servers.table import engagements
from tests.servers.table import loaded as load_table

REQUEST = HeadRequest("who", ("item",), 10)


@pytest.fixture(scope="module")
def url(server):
    """Return the URL of the running Spark Connect server, without a table."""
    return server("spark")


@pytest.fixture(scope="module")
def loaded(url):
    """Return a context manager that loads a table, yields its name and drops it."""
    return functools.partial(load_table, spark_server, url)


@pytest.fixture
def made(url, request):
    """Return a function that creates a table from a SELECT statement and returns its name."""
    name = f"made_{request.node.name.partition('[')[0]}"

    def make(select, definition=""):
        spark_server.execute(url, f"CREATE TABLE {name} {definition} USING parquet {select and f'AS {select}'}")
        return name

    yield make
    spark_server.execute(url, f"DROP TABLE IF EXISTS {name}")


@pytest.fixture
def head(url):
    """Return a function that returns a table's head as plain values, with the columns who and item by default."""

    def count(table=None, *items, source=url, view=None, **parts):
        with contextlib.closing(SparkEngine(source, table=table, view=view)) as engine:
            return rows_of(engine, HeadRequest("who", items or ("item",), 1000, **parts), b"seed")

    return count


@pytest.mark.parametrize(
    ("values", "is_old", "filters"),
    [
        ([math.nan] * 3000 + [0.0], False, ["v > 1", "v IS NULL", "v <> 7"]),
        ([math.nan, 1.0] * 1024 + [None] * 40 + [0.0], False, ["v > 1", "v IS NULL", "v <> 7"]),
        (["ab", "bz"] * 1500 + ["aé"], True, ["v = 'ab'", "v IN ('ab', 'z')", "v < 'bz'"]),
        (["b", "c"] * 1500 + ["é"], True, ["v = 'b'", "v IN ('b', 'z')", "v < 'c'"]),
    ],
    ids=["only NaN", "NaN early", "in order", "reversed"],
)
def test_statistics_of_ordinary_files_decide_no_count(url, tmp_path, values, is_old, filters):
    """Files that deceive DuckDB's optimizers (docs/findings.md) do not deceive Spark: one row moves a count by one."""
    counts = []
    for rows in (len(values) - 1, len(values)):
        path = tmp_path / str(rows) / "t.parquet"
        path.parent.mkdir()
        table = pa.table({"who": range(rows), "item": ["i"] * rows, "v": values[:rows]})
        pq.write_table(table, path, row_group_size=2048)
        if is_old:
            make_old(path)
        with contextlib.closing(open_engine(f"{url}?path={path.parent}")) as engine:
            wheres = [bind_where(parse_where(text), engine.columns()) for text in filters]
            heads = [engine.head(HeadRequest("who", (), 1, where)) for where in wheres]
            counts.append([head.counts.sum() for head in heads])
    moved = [with_ - without for without, with_ in zip(*counts, strict=True)]
    assert set(moved) <= {0, 1}
    assert sum(counts[0]) > 0


class TestServer(EngineSuite):
    """Run the whole suite on a server whose settings are not those that exact heads need."""

    requests = 1

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, url, loaded):
        cls.url = url
        cls.loaded = staticmethod(loaded)

    @contextlib.contextmanager
    def opened(self, table):
        """See `EngineSuite.opened`."""
        with self.loaded(table) as name, contextlib.closing(SparkEngine(self.url, table=name)) as engine:
            yield engine

    @contextlib.contextmanager
    def slow(self, timeout_seconds):
        """See `EngineSuite.slow`."""
        # One stage and few pairs: a count that outlives its test takes time, but no memory and no disk of the server.
        view = "SELECT id % 9 AS who, id % 7 AS item FROM range(0, 20000000000, 1, 100)"
        with contextlib.closing(SparkEngine(self.url, view=view, timeout_seconds=timeout_seconds)) as engine:
            yield engine

    @contextlib.contextmanager
    def dead(self):
        """See `EngineSuite.dead`."""
        proxy = Proxy(self.url)
        with contextlib.closing(SparkEngine(proxy.url, view="SELECT 1 AS who, 1 AS item")) as engine:
            engine.columns()
            proxy.close()
            yield engine


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with a table in two Parquet files."""
    folder = tmp_path_factory.mktemp("files")
    table = engagements(20_000)
    pq.write_table(table.slice(0, 12_000), folder / "1.parquet")
    pq.write_table(table.slice(12_000), folder / "2.parquet")
    return folder


@pytest.mark.parametrize("part", [0, 1])
def test_files_are_counted_as_duckdb_counts_them(url, files, part):
    """Heads of files equal DuckDB's for all kinds of labels, filters and bounds per user, including label types."""
    columns = tuple(column for column in KINDS if column != "member_id")
    asked = [
        HeadRequest(r.user, r.items, r.limit, r.where, 2, (None, 3)[part]) for r in questions(6, columns, 5 + part)
    ]
    with (
        contextlib.closing(open_engine(f"{url}?path={files}/*.parquet")) as spark,
        contextlib.closing(DuckDBEngine(f"{files}/*.parquet")) as duckdb,
    ):
        for request in asked:
            ours, theirs = (engine.head(request, seed=b"seed") for engine in (spark, duckdb))
            assert ours.labels.equals(theirs.labels), request
            assert ours.counts.tolist() == theirs.counts.tolist(), request


def test_a_view_takes_the_place_of_a_table(url, loaded, files, head):
    """A view may end in a comment, and a view of files refers to them as `source`."""
    with loaded(pa.table({"who": [1, 2, 3], "word": ["a", "b", "b"]})) as name:
        view = f"SELECT who, upper(word) AS item FROM {name} WHERE who > 1 -- the others"
        assert head(view=view) == [(("B",), 2)]
    view = "SELECT member_id AS who, 1 AS item FROM source WHERE member_id IN (7, 8)"
    with contextlib.closing(SparkEngine(f"{url}?path={files}", view=view)) as engine:
        assert rows_of(engine, REQUEST) == [((1,), 2)]
        assert engine.name.endswith(f"files {files}, a view")
        assert engine.fetch("SELECT count(*) AS n FROM source").to_pylist() == [{"n": 20_000}]


def test_tables_may_have_the_names_that_statements_use(url, head):
    """Tables called `listed` and `source` are not shadowed by the engine's own names."""
    for name in ("listed", "source"):
        spark_server.load(url, pa.table({"who": [1], "item": [name]}), name)
        try:
            assert head(name, domain=pa.table({"item": ["listed", "source"]}))[0] == ((name,), 1)
        finally:
            spark_server.execute(url, f"DROP TABLE {name}")


def test_rows_that_are_added_are_counted(url, loaded):
    """An open engine counts rows added to a table or its view: file lists are not cached."""
    with loaded(pa.table({"who": [1], "item": ["a"]})) as name:
        engines = [SparkEngine(url, table=name), SparkEngine(url, view=f"SELECT * FROM {name}")]
        assert [rows_of(engine, REQUEST) for engine in engines] == [[(("a",), 1)]] * 2
        spark_server.execute(url, f"INSERT INTO {name} VALUES (2, 'a'), (3, 'b')")
        assert [rows_of(engine, REQUEST) for engine in engines] == [[(("a",), 2), (("b",), 1)]] * 2
        assert engines[0].data_version() is None


def test_concurrent_queries_have_a_session_each(url, loaded):
    """Concurrent queries each have their own session."""
    with loaded(pa.table({"who": [*range(9)] * 9, "item": [n // 9 for n in range(81)]})) as name:
        engine = SparkEngine(url, table=name)
        requests = [
            HeadRequest("who", ("item",), 10, Comparison("item", "<", Constant(Kind.INTEGER, str(n)))) for n in range(6)
        ]
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda request: rows_of(engine, request), requests))
        assert found == [[((item,), 9) for item in range(n)] for n in range(6)]


def test_column_names_with_variables_are_refused(url, loaded):
    """A column name with ${...} is refused, because Spark silently reads it as empty."""
    with loaded(pa.table({"who": [1], "${spark.app.name}": ["a"]})) as name:
        with pytest.raises(InputError, match="rename it"):
            SparkEngine(url, table=name).columns()
        filled = spark_server.execute(url, f"SELECT * FROM {name}")
        assert list(filled[0].values()) == [1, None]  # fails when Spark corrects this


def test_variables_in_text_are_not_substituted(loaded, head):
    """${...} is not substituted in constants or in the data owner's view."""
    text = "${spark.app.name}"
    with loaded(pa.table({"who": [1, 2], "item": [text, "b"]})) as name:
        assert head(name, where=Comparison("item", "=", Constant(Kind.TEXT, text))) == [((text,), 1)]
        assert head(view=f"SELECT * FROM {name} WHERE item = '{text}'") == [((text,), 1)]


def test_collated_and_padded_text_is_no_label(url, made):
    """Collated or padded text is OTHER, because it merges items and the data would decide their label."""
    columns = "who INT, plain STRING, lower STRING COLLATE UTF8_LCASE, padded CHAR(5), short VARCHAR(5), raw BINARY"
    kinds = SparkEngine(url, table=made("", f"({columns})")).columns()
    assert list(kinds.values()) == [Kind.INTEGER, Kind.TEXT, Kind.OTHER, Kind.OTHER, Kind.TEXT, Kind.OTHER]


def test_padding_is_detected_in_views(url, made):
    """A CHAR column is detected in a view, even under another name."""
    table = made("", "(who INT, padded CHAR(5))")
    view = f"SELECT who, padded AS item, trim(padded) AS trimmed FROM {table}"
    kinds = SparkEngine(url, view=view).columns()
    assert kinds == {"who": Kind.INTEGER, "item": Kind.OTHER, "trimmed": Kind.TEXT}


def test_users_that_are_not_utf8_stay_apart(url):
    """Bytes that are not UTF-8 are as many users, though they would be one label."""
    view = (
        "SELECT CAST(unhex(id) AS STRING) AS who, 'x' AS item FROM VALUES ('ff'), ('fe'), ('61ff'), ('EFBFBD') AS v(id)"
    )
    with contextlib.closing(SparkEngine(url, view=view)) as engine:
        for parts in ({}, {"groups_per_user": 1}):
            assert rows_of(engine, HeadRequest("who", ("item",), 9, **parts)) == [(("x",), 4)]
        with engine.pairs(HeadRequest("who", ("item",), 9)) as pairs:
            assert pairs.users_by_size(np.array([1, 2])).tolist() == [4, 0]


def test_text_that_is_not_utf8_becomes_text(made, head):
    """Invalid UTF-8 is replaced by U+FFFD, since such a label could not be read."""
    rows = "(1, CAST(X'ff41' AS STRING)), (2, CAST(X'fe41' AS STRING)), (3, 'b')"
    table = made(f"SELECT * FROM VALUES {rows} AS rows(who, item)")
    assert head(table) == [(("\ufffdA",), 2), (("b",), 1)]


def test_timestamps_with_a_zone_are_labels_in_utc(made, head):
    """Timestamps with a zone are labels in UTC, also in filters, bounds and lists, for any time zone of the server."""
    moments = ("2024-05-06 07:08:09.000001+02:00", "2024-05-06 05:08:09.000001Z", "0001-01-01 00:00:00Z")
    rows = ", ".join(f"({who}, TIMESTAMP_LTZ '{moment}')" for who, moment in enumerate(moments))
    table = made(f"SELECT * FROM VALUES {rows} AS rows(who, item)")
    first, second = datetime.datetime(1, 1, 1), datetime.datetime(2024, 5, 6, 5, 8, 9, 1)
    assert head(table) == [((second,), 2), ((first,), 1)]
    assert head(table, groups_per_user=1) == [((second,), 2), ((first,), 1)]
    assert head(table, domain=pa.table({"item": [second, datetime.datetime(2000, 1, 1)]})) == [
        ((second,), 2),
        ((datetime.datetime(2000, 1, 1),), 0),
    ]
    equal = Comparison("item", "=", Constant(Kind.TIMESTAMP, "2024-05-06 05:08:09.000001"))
    later = Comparison("item", ">", Constant(Kind.DATE, "2024-05-06"))
    assert head(table, where=equal) == head(table, where=later) == [((second,), 2)]


def test_dates_outside_pythons_calendar_are_missing(made, head):
    """Dates outside Python's calendar are missing as labels, while filters compare their actual value."""
    first = "(1, DATE '+10000-01-01', TIMESTAMP_LTZ '+10000-01-01 00:00:00Z')"
    others = "(2, DATE '0000-12-31', NULL), (3, NULL, NULL)"
    table = made(f"SELECT * FROM VALUES {first}, {others} AS rows(who, item, at)")
    for column, later in (("item", Kind.DATE), ("at", Kind.TIMESTAMP)):
        assert head(table, column) == []
        assert head(table, column, keep_missing=True) == [((None,), 3)]
        after = Comparison(column, ">", Constant(later, "9999-12-31"))
        assert head(table, "who", where=after) == [((1,), 1)]


def test_negative_zero_equals_zero_and_nan_is_missing(files, head, url):
    """-0.0 equals 0 in a list long enough that Spark compares bits; NaN passes no filter and is missing."""
    path = Path(files).parent / "floats.parquet"
    share = pa.array([-0.0, math.nan, 2.5], pa.float32())
    pq.write_table(pa.table({"who": [1, 2, 3], "item": [-0.0, math.nan, 2.5], "share": share}), path)
    source = f"{url}?path={path}"
    whole = tuple(Constant(Kind.INTEGER, str(n)) for n in range(15))
    for column in ("item", "share"):
        within = Membership(column, whole)
        above = Comparison(column, ">", Constant(Kind.INTEGER, "-1"))
        found = [
            head(None, "who", source=source, where=w) for w in (within, Not(within), above, Not(above), IsNull(column))
        ]
        assert found == [[((1,), 1)], [((3,), 1)], [((1,), 1), ((3,), 1)], [], [((2,), 1)]]


def test_columns_of_files_match_case_insensitively(url, files, head):
    """Columns match case-insensitively; a case-sensitive server would read the file's column as empty."""
    folder = Path(files).parent / "spelled"
    folder.mkdir()
    pq.write_table(pa.table({"WHO": [1, 2], "Item": ["a", "a"]}), folder / "1.parquet")
    spark_server.execute(url, f"CREATE TABLE spelled (who BIGINT, item STRING) USING parquet LOCATION '{folder}'")
    try:
        assert head("spelled") == [(("a",), 2)]
    finally:
        spark_server.execute(url, "DROP TABLE spelled")


def test_columns_that_differ_in_case_only_are_refused(url, files):
    """Columns that differ in case only are refused, because Spark treats them as one."""
    path = Path(files).parent / "alike.parquet"
    pq.write_table(pa.table([[1], ["a"], ["b"]], ["who", "item", "Item"]), path)
    for parts in ({"source_url": f"{url}?path={path}"}, {"source_url": url, "view": "SELECT 1 AS who, 2 AS WHO"}):
        with pytest.raises(InputError):
            SparkEngine(**parts).columns()


@pytest.mark.parametrize(
    ("type_", "labels"),
    [
        (pa.decimal128(38, 20), ["0.00000000000000000001", "0", "-1.5", "20"]),
        (pa.timestamp("us"), ["2024-02-29 00:00:00", "1960-01-01 01:02:03.000004", "0001-01-01 00:00:00.12"]),
    ],
)
def test_labels_are_written_with_all_their_digits(files, head, url, type_, labels):
    """Labels are written without exponents, so the text for the bounding digest is the same in every engine."""
    path = Path(files).parent / "written.parquet"
    items = pa.array(labels * 20).cast(type_)
    pq.write_table(pa.table({"who": [n // len(labels) for n in range(len(items))], "item": items}), path)
    with contextlib.closing(DuckDBEngine(path)) as duckdb:
        expected = rows_of(duckdb, HeadRequest("who", ("item",), 1000, groups_per_user=1), b"seed")
    assert head(source=f"{url}?path={path}", groups_per_user=1) == expected


@pytest.mark.parametrize("partitions", [1, 3])
def test_items_are_numbered_by_partitions_and_summed_by_ranges(url, loaded, monkeypatch, partitions):
    """Numbers are those of all labels in order, however many tasks sort them, and batches end anywhere."""
    coalesced = "spark.sql.adaptive.coalescePartitions.enabled"
    pinned = {**spark_session._PINNED, "spark.sql.shuffle.partitions": str(partitions), coalesced: "false"}
    monkeypatch.setattr(spark_session, "_PINNED", pinned)
    monkeypatch.setattr(spark, "_ITEMS_AT_ONCE", 50)
    rng = np.random.default_rng(5)
    words = [None if n % 50 == 7 else f"word {n}" for n in rng.zipf(1.3, 900) % 300]
    table = pa.table({"who": rng.integers(0, 90, 900), "item": words, "size": rng.integers(0, 2, 900)})
    request = HeadRequest("who", ("item", "size"), 9, keep_missing=True)
    reference = reference_pairs(table, request)
    with (
        loaded(table) as name,
        contextlib.closing(SparkEngine(url, table=name)) as engine,
        engine.pairs(request) as pairs,
    ):
        sorted_by = f"SELECT DISTINCT shiftright(place, {spark._ROW_BITS}) AS a FROM {spark.SORTED}"
        assert pairs._select(sorted_by).num_rows == partitions
        items = pairs.count_items()
        batches = list(pairs.weighted_sums(1.0))
        assert list(map(len, batches[:-1])) == [50] * (items // 50)
        assert gathered(batches).tolist() == gathered(reference.weighted_sums(1.0)).tolist()
        everything = np.arange(items)
        assert pairs.labels(everything).to_pylist() == reference.labels(everything).to_pylist()
