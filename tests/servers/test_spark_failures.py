"""Failures of a Spark Connect server give one clear sentence, and abandoned queries end on the server."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from discreet.engines.spark import SparkEngine
from discreet.engines.spark_session import connect_url, unwarned
from discreet.engines.url import parse_url
from discreet.errors import EngineError, EngineUnreachable, InexactHead, InputError
from discreet.head_request import HeadRequest
from discreet.testing.engines import rows_of
from tests.servers import process
from tests.servers import spark as spark_server
from tests.servers.proxies import Proxy
from tests.servers.table import loaded

REQUEST = HeadRequest("who", ("item",), 10)
SLOW = "SELECT id % 9 AS who, id % 7 AS item FROM range(0, 20000000000, 1, 100)"
"""A view whose count takes minutes, in tasks that react to cancellation within seconds."""


@pytest.fixture(scope="module")
def url(server):
    """Return the URL of the running Spark Connect server, without a table."""
    return server("spark")


@pytest.fixture
def table(url):
    """Return the name of a new table with one user and one item."""
    with loaded(spark_server, url, pa.table({"who": [1], "item": ["secret"]})) as name:
        yield name


def until_idle(url):
    """Wait until the server is idle, a minute at most."""
    end = time.monotonic() + 60
    while spark_server.running(url) != (0, 0):
        assert time.monotonic() < end
        time.sleep(0.2)


def one_sentence(error, *parts):
    """Check that the message is one sentence with the given parts and nothing of the server's message."""
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 300
    assert "secret" not in message
    for part in parts:
        assert part in message
    assert error.value.__suppress_context__ or error.value.__context__ is None


def test_a_timeout_ends_the_query_on_the_server(url):
    """A timeout cancels the query on the server, and the message states the limit."""
    until_idle(url)
    engine = SparkEngine(url, view=SLOW, timeout_seconds=15)
    seen = []
    with pytest.raises(EngineError) as error:
        engine.head(REQUEST, progress=lambda _: seen.append(spark_server.running(url)[0]))
    one_sentence(error, "within 15 seconds")
    assert max(seen) > 0  # it was running
    until_idle(url)


@pytest.mark.parametrize("at_once", [False, True])
def test_an_exception_from_progress_cancels_the_query_on_the_server(url, at_once):
    """An exception from the progress callback cancels the query, even before it runs; the engine remains usable."""
    until_idle(url)

    def stop(share):
        assert 0 <= share <= 1
        if at_once or spark_server.running(url)[0]:
            raise KeyboardInterrupt

    engine = SparkEngine(url, view=SLOW)
    with pytest.raises(KeyboardInterrupt):
        engine.head(REQUEST, progress=stop)
    until_idle(url)
    assert engine.fetch("SELECT 1 AS one").to_pylist() == [{"one": 1}]


def test_a_lost_connection_is_an_error_and_reopened(url, table):
    """A connection lost during a count is an error, the count ends on the server, and the next query reconnects."""
    proxy = Proxy(url)
    engine = SparkEngine(proxy.url, view=SLOW)
    other = SparkEngine(proxy.url, table=table)
    assert rows_of(other, REQUEST) == [(("secret",), 1)]

    def cut(_):
        if spark_server.running(url)[0]:
            proxy.cut()

    with pytest.raises(EngineError) as error:
        engine.head(REQUEST, progress=cut)
    one_sentence(error, "answers at")
    assert rows_of(other, REQUEST) == [(("secret",), 1)]
    until_idle(url)
    proxy.close()


def test_a_server_that_is_back_is_queried_again(url, table):
    """An unreachable server is reported at once, and the next query tries again."""
    port = process.free_port()
    engine = SparkEngine(url.replace(f":{parse_url(url).port}", f":{port}"), table=table)
    with pytest.raises(EngineUnreachable) as error:
        engine.columns()
    one_sentence(error, f"no Spark answers at sc://localhost:{port}")
    proxy = Proxy(url, port)
    assert rows_of(engine, REQUEST) == [(("secret",), 1)]
    proxy.close()
    with pytest.raises(EngineError):
        engine.head(REQUEST)


@pytest.mark.parametrize("password", [None, "wrong"])
def test_a_wrong_or_missing_token_is_refused(url, table, password):
    """A wrong or missing token is refused, and no message or name contains it."""
    bare = f"sc://reader@localhost:{parse_url(url).port}"
    with pytest.raises(EngineError) as error:
        SparkEngine(bare, table=table, password=password).columns()
    one_sentence(error, "password", bare)
    token = parse_url(url).password
    engine = SparkEngine(bare, table=table, password=token)
    assert rows_of(engine, REQUEST) == [(("secret",), 1)]
    assert engine.name == f"{bare}, table {table}"
    assert token not in SparkEngine(url, table=table).name


@pytest.mark.parametrize(
    ("parts", "part"),
    [
        ({"table": "nowhere"}, "no such table or file"),
        ({"table": "nowhere.reads"}, "no such table or file"),
        ({"table": "a.b.c.d"}, "no such table or file"),
        ({"table": "two words"}, "cannot read it as a table"),
        ({"view": "SELECT * FROM nowhere"}, "no such table or file"),
        ({"view": "SELECT nothing FROM range(3)"}, "cannot read it"),
        ({"view": "SELECT FROM WHERE"}, "cannot read it"),
    ],
)
def test_missing_tables_are_refused(url, parts, part):
    """Missing tables, invalid names and views that are not a valid SELECT are refused."""
    with pytest.raises(InputError) as error:
        SparkEngine(url, **parts).columns()
    one_sentence(error, part, *(parts.values() if "table" in parts else ()))


def test_missing_and_invalid_files_are_refused(url, tmp_path):
    """Missing files and files that are not Parquet are refused by name."""
    (tmp_path / "text.parquet").write_text("who,item\n1,a\n")
    for name, part in (("*.orc", "no such table or file"), ("text.parquet", "cannot read it"), ("", "cannot read it")):
        with pytest.raises(InputError) as error:
            SparkEngine(f"{url}?path={tmp_path / name}").columns()
        one_sentence(error, part, str(tmp_path))


def test_a_table_must_be_named(url, table):
    """The message lists the tables that exist."""
    with pytest.raises(InputError) as error:
        SparkEngine(url)
    assert repr(table) in str(error.value)


@pytest.mark.parametrize(
    "source",
    [
        "sc://:1/x?table=t",
        "sc://?table=t",
        "sc://host/;token=x?table=t",
        "sc://host?tabel=t",
        "sc://host?table=t&ssl=maybe",
        "spark://local:7077?table=t",
        "spark://somebody@host:7077?table=t",
        "spark://local?table=t&ssl=true",
    ],
)
def test_invalid_urls_are_refused(source):
    """Unknown options and malformed URLs are refused, not ignored."""
    with pytest.raises(InputError):
        SparkEngine(source)


def test_special_characters_of_urls_are_escaped():
    """Characters that are special in Spark's own URLs are escaped."""
    with unwarned():
        from pyspark.sql.connect.client import DefaultChannelBuilder

    channel = DefaultChannelBuilder(connect_url(parse_url("sc://a%20b@[::1]?ssl=true").with_password("p;x=1&/ü")))
    assert (channel.endpoint, channel.userId, channel.token) == ("[::1]:15002", "a b", "p;x=1&/ü")
    assert channel.use_ssl
    plain = DefaultChannelBuilder(connect_url(parse_url("sc://host:7")))
    assert (plain.endpoint, plain.token, plain.secure) == ("host:7", None, False)


def test_a_table_excludes_files_and_a_view():
    """A table excludes files and a view, and only a server takes a password."""
    for source, parts in (
        ("sc://host?path=/x", {"table": "t"}),
        ("sc://host?table=t", {"view": "SELECT 1"}),
        ("spark://local?table=t", {"password": "x"}),
        ("spark://:x@local?table=t", {}),
    ):
        with pytest.raises(InputError):
            SparkEngine(source, **parts)


@pytest.mark.parametrize("statement", ["DROP TABLE {}", "INSERT INTO {} VALUES (2, 'b')", "TRUNCATE TABLE {}"])
def test_a_view_changes_nothing(url, table, statement):
    """A view must be a SELECT."""
    with pytest.raises(InputError):
        SparkEngine(url, view=statement.format(table)).columns()
    assert spark_server.execute(url, f"SELECT * FROM {table}") == [{"who": 1, "item": "secret"}]


def test_sparks_error_text_is_neither_shown_nor_logged(url, table, capfd, caplog):
    """Spark's error text, which holds data, reaches neither the message nor the terminal nor a log."""
    engine = SparkEngine(url, view=f"SELECT who, CAST(item AS INT) AS item FROM {table}")
    with pytest.raises(EngineError) as error:
        engine.head(REQUEST)
    one_sentence(error, "CAST_INVALID_INPUT")
    assert not isinstance(error.value, InputError)
    with pytest.raises(EngineError) as error:
        engine.fetch(f"SELECT CAST(item AS INT) FROM {table}")
    one_sentence(error)
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""


def test_an_invalid_fetch_statement_is_an_engine_error(url, table):
    """An invalid statement passed to fetch is an EngineError, even if a table is missing."""
    for statement in ("SELECT nothing FROM range(3)", "SELECT * FROM nowhere", "SELEC"):
        with pytest.raises(EngineError) as error:
            SparkEngine(url, table=table).fetch(statement)
        one_sentence(error)


def test_files_that_cannot_be_read_are_errors(url, table):
    """A corrupt file in a table or a view is an error, though the server's own settings skip it."""
    folder = folder_of(url, table)
    engines = [SparkEngine(url, table=table), SparkEngine(url, view=f"SELECT * FROM {table}")]
    assert [rows_of(engine, REQUEST) for engine in engines] == [[(("secret",), 1)]] * 2
    (folder / "9.parquet").write_bytes(b"PAR1 and nothing else")
    assert len(spark_server.execute(url, f"SELECT * FROM {table}")) == 1
    for engine in engines:
        with pytest.raises(EngineError) as error:
            engine.head(REQUEST)
        one_sentence(error, "FAILED_READ_FILE")


def test_files_beside_the_partitions_are_errors(url, tmp_path):
    """Files outside the partition folders, which the server would skip, are an error."""
    for folder in ("part=1", "stray"):
        (tmp_path / folder).mkdir()
        pq.write_table(pa.table({"who": [1], "item": [folder]}), tmp_path / folder / "1.parquet")
    assert len(spark_server.execute(url, f"SELECT * FROM parquet.`{tmp_path}`")) == 1
    for engine in (
        SparkEngine(f"{url}?path={tmp_path}"),
        SparkEngine(url, view=f"SELECT * FROM parquet.`{tmp_path}`"),
    ):
        with pytest.raises(EngineError) as error:
            engine.columns()
        one_sentence(error, str(url.rpartition("@")[2]))


def test_a_table_whose_options_skip_files_is_refused(url, table):
    """Table options that skip files override the session's settings, so the table is refused."""
    options = "OPTIONS (ignoreCorruptFiles 'true')"
    spark_server.execute(url, f"CREATE TABLE careless USING parquet {options} LOCATION '{folder_of(url, table)}'")
    try:
        with pytest.raises(InexactHead) as error:
            SparkEngine(url, table="careless").columns()
        one_sentence(error, "ignoreCorruptFiles")
    finally:
        spark_server.execute(url, "DROP TABLE careless")


def folder_of(url, table):
    """Return the folder of a table's files."""
    rows = spark_server.execute(url, f"DESCRIBE EXTENDED {table}")
    return Path(next(row["data_type"] for row in rows if row["col_name"] == "Location").removeprefix("file:"))
