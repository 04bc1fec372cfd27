"""PostgreSQL passes the engine suite, and its own types, collations and tables are counted exactly or refused."""

from __future__ import annotations

import contextlib
import datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from psycopg import sql

from discreet.catalog.checks import check
from discreet.catalog.loader import load_catalog
from discreet.engines import postgres
from discreet.engines.duckdb import DuckDBEngine
from discreet.engines.opening import open_engine
from discreet.engines.postgres import PostgresEngine
from discreet.errors import InexactHead, InputError
from discreet.head_request import Comparison, Constant, HeadRequest, IsNull, Kind, Membership, Not
from discreet.testing.engines import (
    OPERATORS,
    EngineSuite,
    check_pair_queries,
    reference_head,
    reference_pairs,
    rows_of,
)
from discreet.values import MAX_BASKET
from tests.servers.proxies import Proxy

pytest_plugins = ["tests.servers.postgres_tables"]

_REQUEST = HeadRequest("who", ("item",), 10)


class TestPostgres(EngineSuite):
    """Run the whole suite with a read-only account on a database with an English collation."""

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, postgres_url, loaded):
        cls.url, cls.loaded = postgres_url, staticmethod(loaded)

    @contextlib.contextmanager
    def opened(self, table):
        """See `EngineSuite.opened`."""
        with contextlib.closing(PostgresEngine(self.url, table=self.loaded(table))) as engine:
            yield engine

    @contextlib.contextmanager
    def slow(self, timeout_seconds):
        """See `EngineSuite.slow`."""
        view = "SELECT 1 AS who, 1 AS item FROM pg_sleep(600)"
        with contextlib.closing(PostgresEngine(self.url, view=view, timeout_seconds=timeout_seconds)) as engine:
            yield engine

    @contextlib.contextmanager
    def dead(self):
        """See `EngineSuite.dead`."""
        proxy = Proxy(self.url)
        with contextlib.closing(PostgresEngine(proxy.url, view="SELECT 1 AS who, 1 AS item")) as engine:
            engine.columns()
            proxy.close()
            yield engine


def test_heads_have_the_values_and_types_of_duckdb(loaded, reader):
    """With bounds per user, labels of every kind give the same Arrow table as DuckDB."""
    table = pa.table(
        {
            "who": pa.array([n % 700 for n in range(20_000)]),
            "word": pa.array([f"w{n * n % 97}é" for n in range(20_000)]),
            "size": pa.array([n * n % 89 - 44 for n in range(20_000)]),
            "price": pa.array([Decimal(n % 13 - 6).scaleb(-2) for n in range(20_000)], pa.decimal128(9, 2)),
            "day": pa.array([datetime.date(1969, 12, 25 + n % 7) for n in range(20_000)]),
            "at": pa.array([datetime.datetime(1969, 12, 31, 23, 59, 59, n % 5) for n in range(20_000)]),
            "open": pa.array([n % 3 == 0 for n in range(20_000)]),
        }
    )
    name = loaded(table)
    with contextlib.closing(DuckDBEngine(table)) as duckdb:
        for items in (("word", "open"), ("price", "day"), ("size", "at"), ()):
            request = HeadRequest("who", items, 500, rows_per_group=3, groups_per_user=2)
            ours, theirs = (each.head(request, seed=b"s" * 32) for each in (reader(name), duckdb))
            assert ours.labels.equals(theirs.labels)
            assert ours.counts.tolist() == theirs.counts.tolist()


@pytest.mark.parametrize("most", [MAX_BASKET, 4])
@pytest.mark.parametrize("hashed", ["", " % 3", " * 0", "old"])
@pytest.mark.parametrize("temporary", ["true", "false"])
def test_pairs_are_the_same_without_temporary_tables_and_hashes(loaded, reader, monkeypatch, temporary, hashed, most):
    """Without temporary tables (no privilege, or a standby), and where labels have equal hashes, integers are equal."""
    monkeypatch.setattr("discreet.engines.pairs.MAX_BASKET", most)
    monkeypatch.setattr(postgres, "_TEMPORARY", f"SELECT {temporary}")
    monkeypatch.setattr(postgres, "_ROWS_AT_ONCE", 2)
    if hashed == "old":
        monkeypatch.setattr(postgres, "_HASH_VERSION", 10**9)
    else:
        monkeypatch.setattr(postgres, "_HASH", postgres._HASH + hashed)
    table = pa.table(
        {
            "who": [n % 70 for n in range(999)],
            "item": [None if n % 9 else f"{n % 23}" for n in range(999)],
            "price": pa.array([Decimal(n % 13 - 6).scaleb(-2) for n in range(999)], pa.decimal128(9, 2)),
            "day": [None if n % 5 == 0 else datetime.date(1969, 12, 25 + n % 7) for n in range(999)],
        }
    )
    where = Comparison("who", "<", Constant(Kind.INTEGER, "50"))
    opened = reader(loaded(table))
    for items in (("item",), ("price", "day")):
        request = HeadRequest("who", items, 1, where, keep_missing=True)
        with opened.pairs(request) as pairs:
            check_pair_queries(pairs, reference_pairs(table, request, largest_basket=most))
            assert {len(batch) for batch in pairs.weighted_sums(1.0)} <= {1, 2}
    assert (
        opened.fetch("SELECT CAST(relname AS text) AS name FROM pg_class WHERE relname LIKE 'discreet%'").to_pylist()
        == []
    )


def test_catalog_check_notes_rights(postgres_url, owner, loaded, tmp_path, monkeypatch):
    """A check notes superusers, accounts that may write any table, and those without temporary tables."""
    name = loaded(pa.table({"who": [1], "item": ["a"]}))
    owner.execute("DROP ROLE IF EXISTS writer")
    owner.execute("CREATE ROLE writer LOGIN PASSWORD 'writer'")
    owner.execute(f"GRANT SELECT, DELETE ON {name} TO writer")

    def notes(account):
        monkeypatch.setenv("PGPASSWORD", account)
        url = postgres_url.replace("reader:reader", account)
        text = f'[datasets.d]\nsource = "{url}?table={name}"\nuser = "who"\nrows_per_group = 1\ndata_version = "1"\n'
        text += 'columns.item = { type = "text", group = true }\n'
        path = tmp_path / "catalog.toml"
        path.write_text(text)
        return check(load_catalog(path), environment={})[0].note

    try:
        assert notes("reader") is None
        assert "may write tables" in notes("writer")
        assert "superuser" in notes("owner")
        monkeypatch.setattr(postgres, "_TEMPORARY", "SELECT false")
        assert "may not make temporary tables" in notes("reader")
    finally:
        owner.execute("DROP OWNED BY writer")
        owner.execute("DROP ROLE writer")


@pytest.mark.parametrize("type_", ["smallint", "integer", "bigint"])
def test_whole_numbers_of_every_width_meet_constants_of_any_size(column, type_):
    """A constant that the column's type cannot hold is compared exactly and is no error."""
    opened = column(type_, 7, 9, 7)
    for text, operator, rows in ((str(10**37), "<", 2), (f"-{10**37}", ">=", 2), ("8.5", ">", 1), ("70000", "=", 0)):
        constant = Constant(Kind.DECIMAL if "." in text else Kind.INTEGER, text)
        where = Comparison("item", operator, constant)
        assert len(rows_of(opened, HeadRequest("who", ("item",), 10, where))) == rows


@pytest.mark.parametrize(
    ("type_", "values", "kind", "labels"),
    [
        ("varchar(3)", ["'b'", "'B '", "'a'"], Kind.TEXT, ["B ", "a", "b"]),
        ("mood", ["'z'", "'a'", "'z'"], Kind.TEXT, ["z", "a"]),
        ("uuid", [f"'{'F' * 32}'"], Kind.TEXT, ["ffffffff-ffff-ffff-ffff-ffffffffffff"]),
        ("citext", ["'a'", "'A'"], Kind.TEXT, ["A", "a"]),
        ("word", ["'a'", "'A'"], Kind.TEXT, ["A", "a"]),
        ("cents", ["1.5", "1.50", "7"], Kind.DECIMAL, [Decimal("1.50"), Decimal("7.00")]),
        ("numeric(3, -2)", ["12345", "12300"], Kind.DECIMAL, [Decimal(12300)]),
        ("numeric(2, 5)", ["0.00012"], Kind.DECIMAL, [Decimal("0.00012")]),
        ("numeric(38, 0)", ["9" * 38], Kind.DECIMAL, [Decimal("9" * 38)]),
        (
            "timestamptz",
            ["'2024-05-06 01:00:00+02'"],
            Kind.TIMESTAMP,
            [datetime.datetime(2024, 5, 5, 23, tzinfo=datetime.UTC)],
        ),
    ],
)
def test_types_become_labels_that_are_exact(column, type_, values, kind, labels):
    """Labels are exact: text is unchanged and ordered by bytes, decimals keep all digits, timestamps are in UTC."""
    opened = column(type_, *values)
    assert opened.columns()["item"] is kind
    assert [label for (label,), _ in rows_of(opened, _REQUEST)] == labels
    listed = pa.table({"item": [str(label) for label in labels]}) if kind is Kind.TEXT else pa.table({"item": labels})
    bounded = HeadRequest("who", ("item",), len(labels), groups_per_user=1, domain=listed)
    assert [label for (label,), _ in rows_of(opened, bounded)] == labels


@pytest.mark.parametrize(
    "type_",
    [
        "char(3)",
        '"char"',
        "name",
        "numeric",
        "numeric(39, 0)",
        "bytea",
        "json",
        "int[]",
        "int4range",
        "time",
        "interval",
    ],
)
def test_types_without_exact_labels_have_the_kind_other(column, type_):
    """Padded, unbounded, nested types and decimals beyond 38 digits are OTHER: filters can only test for NULL."""
    opened = column(type_, "NULL", "NULL")
    assert opened.columns()["item"] is Kind.OTHER
    assert rows_of(opened, HeadRequest("who", ("who",), 10, IsNull("item"))) == [((1,), 1), ((2,), 1)]


@pytest.mark.parametrize(
    ("type_", "odd", "plain"),
    [
        ("date", ["infinity", "-infinity", "0044-03-15 BC", "12024-01-01"], "2024-02-29"),
        ("timestamp", ["infinity", "-infinity", "0044-03-15 BC", "12024-01-01"], "2024-02-29"),
        ("timestamptz", ["infinity", "-infinity", "0001-01-01 00:00:00+01", "294276-12-31"], "2024-02-29"),
        ("numeric(4, 1)", ["NaN"], "7"),
    ],
)
def test_values_that_no_label_can_represent_are_missing(column, type_, odd, plain):
    """Values that no label can represent are missing; an error would reveal that there is one."""
    opened = column(type_, f"'{plain}'", *(f"'{value}'" for value in odd))
    assert len(rows_of(opened, _REQUEST)) == 1
    kept = rows_of(opened, HeadRequest("who", ("item",), 10, keep_missing=True, groups_per_user=1))
    assert [count for _, count in kept] == ([len(odd), 1] if len(odd) > 1 else [1, 1])
    if not type_.startswith("timestamp"):  # which are no users
        assert rows_of(opened, HeadRequest("item", ("who",), 10)) == [((1,), 1)]
    with pytest.raises(InputError, match="domain"):
        opened.head(HeadRequest("who", ("item",), 1, domain=pa.table({"item": [odd[0]]})))


def test_filters_compare_infinite_timestamps(column):
    """In filters, infinity is after any date, and NaN is missing."""
    opened = column("date", "'infinity'", "'-infinity'", "'0044-03-15 BC'", "'12024-01-01'", "NULL")
    after = Comparison("item", ">", Constant(Kind.DATE, "2024-01-01"))
    assert rows_of(opened, HeadRequest("who", ("who",), 10, after)) == [((1,), 1), ((4,), 1)]
    assert rows_of(opened, HeadRequest("who", ("who",), 10, IsNull("item"))) == [((5,), 1)]
    for type_ in ("numeric(4, 1)", "real", "double precision"):
        numbers = column(type_, "'NaN'", "0.5", "NULL")
        positive = Comparison("item", ">", Constant(Kind.INTEGER, "0"))
        for where, rows in ((positive, [2]), (Not(positive), []), (IsNull("item"), [1, 3])):
            assert rows_of(numbers, HeadRequest("who", ("who",), 10, where)) == [((row,), 1) for row in rows]


@pytest.mark.parametrize("sign", OPERATORS)
def test_constants_with_nul_are_compared_in_byte_order(column, sign):
    """A constant with NUL, which no PostgreSQL text can hold, is compared in byte order."""
    words = ["", "a", "a\x01", "aa", "b"]
    opened = column("text", *(f"E'{word}'" for word in words))
    table = pa.table({"who": range(1, 6), "item": words})
    for text in ("a\0", "a\0b", "\0"):
        constant = Constant(Kind.TEXT, text)
        for where in (Comparison("item", sign, constant), Membership("item", (constant,))):
            request = HeadRequest("who", ("item",), 10, where)
            assert rows_of(opened, request) == reference_head(table, request)
    with pytest.raises(InputError, match="NUL"):
        opened.head(HeadRequest("who", ("item",), 1, domain=pa.table({"item": ["a\0"]})))


def test_collations_merge_no_labels_and_order_none(make_table, reader):
    """Under a case-insensitive collation 'a' and 'A' are separate labels in byte order."""
    name = make_table(
        "CREATE TABLE T (who int, item text COLLATE blind)",
        "INSERT INTO T VALUES (1, 'b'), (2, 'a'), (3, 'A'), (4, 'B')",
    )
    opened = reader(name)
    assert rows_of(opened, _REQUEST) == [((label,), 1) for label in "ABab"]
    where = Comparison("item", "=", Constant(Kind.TEXT, "a"))
    assert rows_of(opened, HeadRequest("who", ("item",), 10, where)) == [(("a",), 1)]
    listed = HeadRequest("who", ("item",), 2, domain=pa.table({"item": ["a", "A"]}))
    assert rows_of(opened, listed) == [(("A",), 1), (("a",), 1)]
    with pytest.raises(InputError, match="same user"):
        opened.head(HeadRequest("item", ("who",), 10))
    lowered = reader(view=f'SELECT lower(item) COLLATE "C" AS u, 1 AS item FROM {name}')
    assert rows_of(lowered, HeadRequest("u", ("item",), 1)) == [((1,), 2)]
    with pytest.raises(InputError, match="same user"):
        reader(view=f"SELECT item || '' AS u, who FROM {name}").head(HeadRequest("u", ("who",), 10))


def test_a_head_in_collation_order_is_refused(column, monkeypatch):
    """The test can fail: without COLLATE "C" the server sorts 'a' before 'B', and the head is refused."""
    opened = column("text", "'a'", "'B'")
    assert rows_of(opened, _REQUEST) == [(("B",), 1), (("a",), 1)]
    monkeypatch.setattr(postgres, "_BYTES", "")
    with pytest.raises(InexactHead, match="order"):
        opened.head(_REQUEST)


def test_case_insensitive_user_ids_are_refused(column):
    """Case-insensitive user ids are refused: one user of the table would be protected as two."""
    opened = column("citext", "'Ann'", "'ann'")
    with pytest.raises(InputError, match="same user"):
        opened.head(HeadRequest("item", ("who",), 10))


@pytest.mark.parametrize(
    ("statements", "labels"),
    [
        (["CREATE VIEW T AS SELECT 1 AS who, 'a' AS item"], "a"),
        (["CREATE MATERIALIZED VIEW T AS SELECT 1 AS who, 'a' AS item"], "a"),
        (
            [
                "CREATE TABLE T (who int, item text) PARTITION BY LIST (item)",
                "CREATE TABLE T_a PARTITION OF T FOR VALUES IN ('a')",
                "CREATE TABLE T_b PARTITION OF T DEFAULT",
                "INSERT INTO T VALUES (1, 'a'), (2, 'b')",
            ],
            "ab",
        ),
        (
            [
                "CREATE TABLE T (who int, item text)",
                "CREATE TABLE T_more (said text) INHERITS (T)",
                "INSERT INTO T VALUES (1, 'a')",
                "INSERT INTO T_more VALUES (2, 'b')",
            ],
            "ab",
        ),
    ],
)
def test_views_partitions_and_inherited_tables_are_counted_whole(make_table, reader, statements, labels):
    """Views, materialized views, partitions and inherited tables are counted whole."""
    assert rows_of(reader(make_table(*statements)), _REQUEST) == [((label,), 1) for label in labels]


def test_a_view_takes_the_place_of_a_table(make_table, reader):
    """A view may use any names, such as `listed` and `r`, and end in a comment."""
    name = make_table("CREATE TABLE T (who int, item text)", "INSERT INTO T VALUES (1, 'a'), (1, 'b'), (2, 'b')")
    view = f"WITH listed AS (SELECT * FROM {name}), r AS (TABLE listed) SELECT who, item FROM r -- the end"
    opened = reader(view=view)
    assert list(opened.columns().items()) == [("who", Kind.INTEGER), ("item", Kind.TEXT)]
    assert rows_of(opened, HeadRequest("who", ("item",), 2, domain=pa.table({"item": ["b", "z"]}))) == [
        (("b",), 2),
        (("z",), 0),
    ]
    assert opened.name.endswith(", a view")


@pytest.mark.parametrize("name", ['it"em', "it'em", "%s", "$1", "a.b", "Größe", "SELECT"])
def test_tables_may_have_any_name(owner, make_table, reader, name):
    """A table name is taken literally, with or without a schema."""
    schema = make_table("CREATE SCHEMA T", "GRANT USAGE ON SCHEMA T TO reader")
    for namespace, item in (("public", 1), (schema, 2)):
        table = sql.Identifier(namespace, name)
        owner.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
        owner.execute(sql.SQL("CREATE TABLE {} AS SELECT 1 AS who, {} AS item").format(table, item))
        owner.execute(sql.SQL("GRANT SELECT ON {} TO reader").format(table))
    assert rows_of(reader(name), _REQUEST) == rows_of(reader(f"public.{name}"), _REQUEST) == [((1,), 1)]
    assert rows_of(reader(f"{schema}.{name}"), _REQUEST) == [((2,), 1)]


def test_the_table_argument_overrides_the_url(make_table, postgres_url):
    """The `table` argument overrides the URL's, and open_engine selects the PostgreSQL engine."""
    first, second = (make_table("CREATE TABLE T (who int, item int)") for _ in range(2))
    for given, expected in ((None, first), (second, second)):
        with contextlib.closing(open_engine(f"{postgres_url}?table={first}", table=given)) as opened:
            assert isinstance(opened, PostgresEngine)
            assert opened.name.endswith(f"/library, table public.{expected}")
            assert (opened.data_version(), opened.scale("item")) == (None, 0)


def test_fetch_returns_exact_types(reader):
    """Results of `fetch` have exact types, even if empty."""
    statement = """
        SELECT 'a'::citext AS label, 7::smallint AS n, 1.50::numeric(9, 2) AS price, 0.5::real AS share,
               'z'::mood AS mood, now() > '2020-01-01' AS late
        UNION ALL SELECT NULL, NULL, 'NaN'::numeric(9, 2), NULL, NULL, NULL ORDER BY label -- in order"""
    found = reader(view="SELECT 1").fetch(statement)
    types = [pa.string(), pa.int64(), pa.decimal128(9, 2), pa.float64(), pa.string(), pa.bool_()]
    assert found.schema.types == types
    assert found.to_pylist() == [
        {"label": "a", "n": 7, "price": Decimal("1.50"), "share": 0.5, "mood": "z", "late": True},
        dict.fromkeys(found.column_names),
    ]
    assert reader(view="SELECT 1").fetch("SELECT 1 AS a WHERE false").schema == pa.schema([("a", pa.int64())])


def test_queries_run_in_a_read_only_transaction(reader):
    """Queries run in a read-only snapshot transaction, with row security as an error and the time zone UTC."""
    pinned = {
        "transaction_read_only": "on",
        "transaction_isolation": "repeatable read",
        "row_security": "off",
        "TimeZone": "UTC",
        "jit": "off",
        "cursor_tuple_fraction": "1",
        "statement_timeout": "61500ms",
    }
    selected = ", ".join(f"current_setting('{name}') AS \"{name}\"" for name in pinned)
    assert reader(view="SELECT 1", timeout_seconds=61.5).fetch(f"SELECT {selected}").to_pylist() == [pinned]
