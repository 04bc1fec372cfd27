"""Queries that PostgreSQL cannot answer exactly are refused clearly, and abandoned queries end on the server."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from discreet.engines.postgres import PostgresSession
from discreet.errors import EngineError, InexactHead, InputError
from discreet.head_request import HeadRequest
from discreet.testing.engines import rows_of
from tests.servers import process

pytest_plugins = ["tests.servers.postgres_tables"]

_REQUEST = HeadRequest("who", ("item",), 10)
_ENDLESS = """
    SELECT a AS who, b AS item FROM generate_series(1, 100000) AS a, generate_series(1, 100000) AS b WHERE a + b < 0"""
_DOCS = Path(__file__).parents[2] / "docs" / "engines" / "postgresql.md"


class Stop(Exception):
    """The exception with which tests stop a count."""


@pytest.fixture
def running(owner):
    """Return a function that counts the engine's active queries on the server."""

    def count():
        return owner.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND application_name = 'discreet'"
        ).fetchone()[0]

    return count


def test_a_timeout_ends_the_query_on_the_server(reader, running):
    """A timeout leaves no query running."""
    with pytest.raises(EngineError, match=r"did not answer within 0.3 seconds"):
        reader(view=_ENDLESS, timeout_seconds=0.3).head(_REQUEST)
    assert running() == 0


def test_the_server_enforces_the_timeout_itself(reader, running, monkeypatch):
    """The server enforces the timeout when no cancel request reaches it."""
    monkeypatch.setattr(PostgresSession, "_cancel", lambda *_: None)
    with pytest.raises(EngineError, match=r"did not answer within 0.3 seconds"):
        reader(view=_ENDLESS, timeout_seconds=0.3).head(_REQUEST)
    assert running() == 0


def test_an_abandoned_pair_query_ends_on_the_server(reader, running):
    """A timeout or a progress exception during a pair query leaves no query and no temporary table."""
    opened = reader(view=_ENDLESS, timeout_seconds=0.3)
    with pytest.raises(EngineError, match=r"did not answer within 0.3 seconds"), opened.pairs(_REQUEST):
        pass
    opened = reader(view=_ENDLESS)

    def stop(_):
        raise Stop

    with pytest.raises(Stop), opened.pairs(_REQUEST, progress=stop):
        pass
    assert running() == 0
    assert (
        opened.fetch("SELECT CAST(relname AS text) AS name FROM pg_class WHERE relname LIKE 'discreet%'").to_pylist()
        == []
    )


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
def test_an_exception_from_progress_cancels_the_query_on_the_server(reader, running, error):
    """An exception from the progress callback propagates and cancels the query; the reported share is 0."""
    shares = []

    def progress(share):
        shares.append(share)
        raise error

    opened = reader(view=_ENDLESS)
    with pytest.raises(error):
        opened.head(_REQUEST, progress=progress)
    assert running() == 0
    assert shares == [0]
    assert opened.fetch("SELECT 7 AS n").to_pylist() == [{"n": 7}]


def test_a_failed_cancel_request_closes_the_connection(owner, reader, monkeypatch):
    """If the cancel request fails, the connection is closed and the wait ends."""

    def fails(*_, **__):
        raise psycopg.OperationalError

    def progress(_):
        raise Stop

    monkeypatch.setattr(psycopg.Connection, "cancel_safe", fails)
    with pytest.raises(Stop):
        reader(view=_ENDLESS).head(_REQUEST, progress=progress)
    _end_all(owner)


def _end_all(owner):
    owner.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'discreet'")


def test_a_connection_lost_while_idle_is_reopened(owner, make_table, reader):
    """The next query reconnects without an error."""
    opened = reader(make_table("CREATE TABLE T AS SELECT 1 AS who, 2 AS item"))
    for _ in range(2):
        assert rows_of(opened, _REQUEST) == [((2,), 1)]
        _end_all(owner)


def test_a_connection_lost_during_a_query_is_an_error_and_reopened(owner, reader):
    """A query whose connection is lost raises EngineError and is not retried; the next one reconnects."""
    opened = reader(view=_ENDLESS)
    with pytest.raises(EngineError, match=r"the connection to postgresql://reader@\S+ was lost"):
        opened.head(_REQUEST, progress=lambda _: _end_all(owner))
    assert opened.fetch("SELECT 7 AS n").to_pylist() == [{"n": 7}]


def test_connections_are_kept_between_heads(make_table, reader):
    """One connection is reused, since opening it costs more than a small count."""
    opened = reader(make_table("CREATE TABLE T AS SELECT 1 AS who, 2 AS item"))
    pids = {opened.fetch("SELECT pg_backend_pid() AS pid").to_pylist()[0]["pid"] for _ in range(3)}
    opened.head(_REQUEST)
    assert pids == {opened.fetch("SELECT pg_backend_pid() AS pid").to_pylist()[0]["pid"]}


def test_the_session_is_read_only_for_every_account(owner, make_table, reader, postgres_url):
    """The session is read-only even for the owner, and for two statements in one."""
    name = make_table("CREATE SEQUENCE T")
    opened = reader(url=postgres_url.replace("reader:reader", "owner:owner"), view="SELECT 1")
    for statement in (f"SELECT nextval('{name}') AS n", f"SELECT 1) AS a; DROP SEQUENCE {name}; SELECT (1"):
        with pytest.raises(EngineError, match=r"could not answer|cannot read the view or a query"):
            opened.fetch(statement)
    opened = reader(url=postgres_url.replace("reader:reader", "owner:owner"), view=f"SELECT nextval('{name}') AS who")
    with pytest.raises(EngineError, match="could not answer"), opened.pairs(HeadRequest("who", ("who",), 1)):
        pass  # the transaction that creates temporary tables is read-only again when it reads
    assert owner.execute(f"SELECT nextval('{name}')").fetchone() == (1,)


def test_the_documented_account_can_only_read(owner, make_table, postgres_url):
    """The account created by the documentation's commands can only read."""
    block = re.search(r"```sql\n(.*?)```", _DOCS.read_text(), re.DOTALL)[1]
    name = make_table("CREATE TABLE T (who int, item int)")
    account, database = f"{name}_reader", postgres_url.rpartition("/")[2]
    for written, here in (("discreet_reader", account), ("warehouse", database), ("public.reads", name)):
        block = block.replace(written, here)
    owner.execute(block)
    url = postgres_url.replace("reader:reader", f"{account}:a-long-password")
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute(f"SELECT * FROM {name}").fetchall() == []
        connection.execute("SET default_transaction_read_only = off")
        for statement in (f"INSERT INTO {name} VALUES (1, 1)", f"DROP TABLE {name}", "CREATE TABLE mine ()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda url: url.replace(":reader@", ":wrong@"), r"refuses 'reader'.* it may not connect$"),
        (lambda url: url.replace(":reader@", "@"), r"the source has no password: .* PGPASSWORD"),
        (lambda url: url.replace("/reader:", "/nobody:"), r"refuses 'nobody'"),
        (lambda url: url.replace("/library", "/nowhere"), r"refuses 'reader'"),
        (lambda url: re.sub(r":\d+/", f":{process.free_port()}/", url), r"no PostgreSQL server that answers"),
        (lambda url: url.replace("127.0.0.1", "nowhere.invalid"), r"no PostgreSQL server that answers"),
        (lambda url: f"{url}?sslmode=require", r"refuses|no PostgreSQL server that answers"),
    ],
)
def test_a_connection_error_states_its_cause_without_secrets(reader, postgres_url, change, message):
    """A connection error states the cause and the server, and omits the password."""
    with pytest.raises(EngineError, match=message) as caught:
        reader("reads", change(postgres_url))
    assert not re.search(":(reader|wrong)@", str(caught.value))
    assert caught.value.__suppress_context__


def test_the_password_is_shown_nowhere(make_table, reader, postgres_url):
    """The engine's name omits the password; the argument takes precedence over the URL."""
    name = make_table("CREATE TABLE T (who int, item int)")
    opened = reader(name, postgres_url.replace(":reader@", ":wrong@"), password="reader")  # noqa: S106 - of a test server
    assert ":wrong" not in opened.name
    assert "//reader@" in opened.name


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "^name a table; the tables of postgresql://reader@"),
        ({"table": "nothing"}, "^there is no 'nothing'; the tables of .* are 'public"),
        ({"table": "x' OR '1' = '1\0"}, "^there is no "),
        ({"table": "reads", "view": "SELECT 1"}, "not both"),
    ],
)
def test_a_missing_table_is_refused_with_a_list_of_tables(make_table, reader, parts, message):
    """A missing or unknown table is refused with a list of the tables that exist."""
    make_table("CREATE TABLE T (who int, item int)")
    with pytest.raises(InputError, match=message):
        reader(**parts)


def test_an_ambiguous_table_name_is_refused(make_table, reader):
    """A dotted name that matches two tables is ambiguous, because schema names may contain dots."""
    name = make_table('CREATE SCHEMA "T.b"', 'CREATE TABLE "T.b".c ()', "CREATE SCHEMA T", 'CREATE TABLE T."b.c" ()')
    with pytest.raises(InputError, match="more than one"):
        reader(f"{name}.b.c")


def test_a_table_with_row_security_is_refused(make_table, reader, owner):
    """Row security, which hides rows silently, is refused; a view of the owner, who sees all rows, is counted."""
    name = make_table(
        "CREATE TABLE T AS SELECT g AS who, 1 AS item FROM generate_series(1, 3) AS g",
        "CREATE POLICY own ON T USING (who = 1)",
        "CREATE VIEW T_all AS SELECT * FROM T",
    )
    opened = reader(name)
    assert rows_of(opened, _REQUEST) == rows_of(reader(f"{name}_all"), _REQUEST) == [((1,), 3)]
    owner.execute(f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY")
    assert rows_of(reader(f"{name}_all"), _REQUEST) == [((1,), 3)]
    with pytest.raises(InexactHead, match="row security"):
        reader(name)
    for late in (opened, reader(view=f"SELECT * FROM {name}")):
        with pytest.raises(EngineError, match="row security"):
            late.head(_REQUEST)


def test_a_table_without_select_privilege_is_refused(make_table, reader):
    """A missing SELECT privilege gives an error that the engine words itself."""
    name = make_table("CREATE TABLE T (who int, item int)", "REVOKE SELECT ON T FROM reader")
    with pytest.raises(EngineError, match="a right is missing"):
        reader(name).columns()


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE FOREIGN TABLE T (who int, item int) SERVER files OPTIONS (filename '/dev/null')"],
        [
            "CREATE TABLE T (who int, item int) PARTITION BY LIST (item)",
            "CREATE FOREIGN TABLE T_far PARTITION OF T DEFAULT SERVER files OPTIONS (filename '/dev/null')",
        ],
    ],
)
def test_foreign_tables_are_refused(owner, make_table, reader, statements):
    """Foreign tables and foreign partitions are refused, since nothing proves that all their rows are returned."""
    owner.execute("CREATE EXTENSION IF NOT EXISTS file_fdw")
    owner.execute("CREATE SERVER IF NOT EXISTS files FOREIGN DATA WRAPPER file_fdw")
    with pytest.raises(InexactHead, match="another system"):
        reader(make_table(*statements))


def test_a_database_in_another_encoding_is_refused(owner, reader, postgres_url):
    """A database whose byte order is not that of UTF-8 is refused."""
    owner.execute("DROP DATABASE IF EXISTS latin")
    owner.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING LATIN1 LOCALE_PROVIDER libc LOCALE 'C'")
    with pytest.raises(InputError, match="UTF8"):
        reader("reads", postgres_url.replace("/library", "/latin"))


def test_duplicate_column_names_are_refused(reader):
    """Duplicate column names are ambiguous."""
    with pytest.raises(InputError, match="two columns with the same name"):
        reader(view="SELECT 1 AS who, 2 AS item, 3 AS item").columns()


@pytest.mark.parametrize(
    "statement",
    ["SELECT CAST('s3cret' AS int) AS n", "SELECT s3cret", "SELEC", "SELECT '{}'::json AS a", "SELECT 1 AS a, 2 AS a"],
)
def test_an_invalid_fetch_statement_fails_without_the_servers_message(reader, statement):
    """The server's message, which may hold data, is omitted; the engine remains usable."""
    opened = reader(view="SELECT 1")
    with pytest.raises(EngineError) as caught:
        opened.fetch(statement)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert opened.fetch("VALUES (7)").to_pylist() == [{"column1": 7}]
