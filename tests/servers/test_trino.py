"""Trino passes the engine suite, and its own types are counted exactly."""

from __future__ import annotations

import contextlib
import datetime
import functools
import uuid
from decimal import Decimal
from fractions import Fraction
from operator import eq, ge, gt, le, lt, ne

import numpy as np
import pyarrow as pa
import pytest

from discreet.engines.trino import TrinoClient, TrinoEngine
from discreet.errors import EngineError, InexactHead
from discreet.head_request import Comparison, Constant, Derived, HeadRequest, IsNull, Kind, Membership, Not, SumBounds
from discreet.testing.engines import EngineSuite, reference_head, rows_of
from tests.engines.test_duckdb_pairs import REQUEST as PAIRS
from tests.engines.test_duckdb_pairs import check_exact_costs, check_first_scales
from tests.servers import trino as trino_server
from tests.servers.proxies import Proxy
from tests.servers.table import loaded as load_table

_COUNTER = iter(range(10**9))


@pytest.fixture(scope="module")
def url(server):
    """Return the URL of the running Trino server, without a table."""
    return server("trino")


@pytest.fixture(scope="module")
def loaded(url):
    """Return a context manager that loads a table, yields its name and drops it."""
    return functools.partial(load_table, trino_server, url)


@pytest.fixture
def engine(url):
    """Return a function that opens an engine on a SELECT statement, as a view or stored as a table."""
    with contextlib.ExitStack() as stack:

        def make(select, *, as_table=False):
            table = f"made_{next(_COUNTER)}" if as_table else None
            if table is not None:
                trino_server.execute(url, f"CREATE TABLE {table} AS {select}")
                stack.callback(trino_server.execute, url, f"DROP TABLE {table}")
            opened = TrinoEngine(url, table=table, view=None if as_table else select)
            return stack.enter_context(contextlib.closing(opened))

        yield make


def test_bins_of_decimals_with_38_places_need_no_floor(server):
    """Trino 476 fails at floor of any such decimal but 0, so that one value would decide whether it answers."""
    values = ["0", f"0.{'9' * 38}", f"-0.{'9' * 38}", f"0.{'0' * 37}1"]
    rows = ", ".join(f"({who}, CAST('{value}' AS DECIMAL(38, 38)))" for who, value in enumerate(values))
    view = f"SELECT who, x FROM (VALUES {rows}, (9, NULL)) AS t(who, x)"
    with contextlib.closing(TrinoEngine(server("trino"), view=view)) as engine:
        request = HeadRequest("who", ("start",), 9, derived=(Derived("start", "x", 1),))
        assert rows_of(engine, request) == [((0,), 3), ((-1,), 1)]


@pytest.mark.parametrize("scratch", ["scratch.nowhere", "nowhere.default", "system.runtime"])
def test_a_scratch_schema_that_cannot_be_written_is_named_before_rows_are_read(url, scratch):
    """It is missing, or its catalog is read-only; an empty table shows that."""
    view = "SELECT 1 AS who, 1 AS item"
    named = ".".join(f'"{part}"' for part in scratch.split("."))
    with (
        contextlib.closing(TrinoEngine(f"{url}?scratch={scratch}", view=view)) as engine,
        pytest.raises(EngineError, match=f"make and drop tables in {named}"),
    ):
        engine.check_pairs()
    with contextlib.closing(TrinoEngine(f"{url}?scratch=scratch.default", view=view)) as engine:
        engine.check_pairs()
    assert trino_server.execute(url, "SHOW TABLES FROM scratch.default") == []


class TestTrino(EngineSuite):
    """Run the whole suite on in-memory tables."""

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, url, loaded):
        cls.url = url
        cls.loaded = staticmethod(loaded)

    @contextlib.contextmanager
    def opened(self, table):
        """See `EngineSuite.opened`."""
        scratch = f"{self.url}?scratch=scratch.default"
        with self.loaded(table) as name, contextlib.closing(TrinoEngine(scratch, table=name)) as engine:
            yield engine
        assert trino_server.execute(self.url, "SHOW TABLES FROM scratch.default") == []

    @contextlib.contextmanager
    def slow(self, timeout_seconds):
        """See `EngineSuite.slow`."""
        numbers = "UNNEST(sequence(1, 10000))"
        view = f"SELECT a % 9 AS who, b * c % 9 AS item FROM {numbers} AS a(a), {numbers} AS b(b), {numbers} AS c(c)"
        with contextlib.closing(TrinoEngine(self.url, view=view, timeout_seconds=timeout_seconds)) as engine:
            yield engine

    @contextlib.contextmanager
    def dead(self):
        """See `EngineSuite.dead`."""
        proxy = Proxy(self.url)
        with contextlib.closing(TrinoEngine(proxy.url, view="SELECT 1 AS who, 1 AS item")) as engine:
            engine.columns()
            proxy.close()
            yield engine


@pytest.fixture
def pairs(url, loaded):
    """Return a context manager that opens the pairs of an Arrow table."""

    @contextlib.contextmanager
    def opened(table):
        with (
            loaded(table) as name,
            contextlib.closing(TrinoEngine(f"{url}?scratch=scratch.default", table=name)) as engine,
            engine.pairs(PAIRS) as written,
        ):
            yield written

    return opened


def test_first_scales_are_counted_with_one_and_with_many_scales(pairs):
    """Costs by place and by scale have numpy's integers, for candidates that are written first and later."""
    check_first_scales(pairs)


def test_costs_are_added_exactly(pairs):
    """A user's costs may add up to more than 2^53."""
    check_exact_costs(pairs)


@pytest.mark.parametrize(("rows", "items", "counted"), [(2**21, 10**6, False), (2**21 + 1, 3, True)])
def test_rows_are_counted_by_user_only_where_an_array_could_be_too_long(url, rows, items, counted, monkeypatch):
    """All rows of the largest table whose rows are not counted may be of one user, who has as many items as one may."""
    sent = []
    run = TrinoClient.run
    monkeypatch.setattr(TrinoClient, "run", lambda *arguments: sent.append(arguments[1]) or run(*arguments))
    numbers = "UNNEST(sequence(0, 1024)) AS a(a), UNNEST(sequence(0, 2047)) AS b(b)"
    view = f"SELECT 1 AS user, (2048 * a + b) % {items} AS item FROM {numbers} WHERE 2048 * a + b < {rows}"
    engine = TrinoEngine(f"{url}?scratch=scratch.default", view=view)
    with contextlib.closing(engine), engine.pairs(PAIRS) as written:
        assert written.users_by_size(np.array([items - 1, items])).tolist() == [0, 1]
    assert any("GROUP BY u) AS s WHERE NOT" in statement for statement in sent) == counted


KINDS = {
    "CAST('a' AS varchar)": Kind.TEXT,
    "CAST('a' AS varchar(3))": Kind.TEXT,
    "CAST('a' AS char(3))": Kind.OTHER,
    "uuid()": Kind.TEXT,
    "CAST(1 AS tinyint)": Kind.INTEGER,
    "CAST(1 AS smallint)": Kind.INTEGER,
    "CAST(1 AS integer)": Kind.INTEGER,
    "CAST(1 AS bigint)": Kind.INTEGER,
    "CAST(1 AS decimal(38, 38))": Kind.DECIMAL,
    "CAST(1 AS real)": Kind.FLOAT,
    "CAST(1 AS double)": Kind.FLOAT,
    "true": Kind.BOOLEAN,
    "DATE '2024-01-01'": Kind.DATE,
    "CAST(now() AS timestamp(0))": Kind.TIMESTAMP,
    "CAST(now() AS timestamp(6))": Kind.TIMESTAMP,
    "CAST(now() AS timestamp(7))": Kind.OTHER,
    "CAST(now() AS timestamp(3) with time zone)": Kind.TIMESTAMP,
    "CAST(now() AS timestamp(12) with time zone)": Kind.OTHER,
    "CAST('10:00' AS time(3))": Kind.OTHER,
    "CAST(TIME '10:00 +00:00' AS time(3) with time zone)": Kind.OTHER,
    "ARRAY[1]": Kind.OTHER,
    "CAST(ROW(1) AS ROW(a integer))": Kind.OTHER,
    "MAP()": Kind.OTHER,
    "to_utf8('a')": Kind.OTHER,
    "json_parse('1')": Kind.OTHER,
    "IPADDRESS '::1'": Kind.OTHER,
    "INTERVAL '1' DAY": Kind.OTHER,
    "NULL": Kind.OTHER,
}


def test_every_type_has_its_kind(engine):
    """Padded text, timestamps finer than microseconds and nested types are OTHER: neither users nor items."""
    columns = [f"{value} AS c{n}" for n, value in enumerate(KINDS)]
    assert list(engine(f"SELECT {', '.join(columns)}").columns().values()) == list(KINDS.values())


def test_labels_have_the_types_of_duckdb(engine):
    """Integers become int64, UUIDs text, timestamps microseconds in UTC within the years 1 to 9999."""
    known = uuid.UUID(int=2**127 + 1)
    opened = engine(
        f"""SELECT 1 AS who, CAST(-7 AS tinyint) AS n, UUID '{known}' AS id, CAST(0.5 AS decimal(38, 37)) AS d,
            TIMESTAMP '2024-02-29 23:00:00.12 America/New_York' AS zoned, TIMESTAMP '1969-12-31 23:59:59' AS at,
            TIMESTAMP '9999-12-31 23:59:59.999999' AS late, DATE '0001-01-01' AS early""",
        as_table=True,
    )
    items = ("n", "id", "d", "zoned", "at", "late", "early")
    labels = opened.head(HeadRequest("who", items, 5)).labels
    assert [opened.scale(name) for name in ("n", "d", "at")] == [0, 37, 0]
    micros = pa.timestamp("us")
    assert labels.schema.types == [
        *(pa.int64(), pa.string(), pa.decimal128(38, 37)),
        *(micros, micros, micros, pa.date32()),
    ]
    assert labels.select(["n", "id", "d", "zoned", "at"]).to_pylist() == [
        {
            "n": -7,
            "id": str(known),
            "d": Decimal("0.5"),
            "zoned": datetime.datetime(2024, 3, 1, 4, 0, 0, 120_000),
            "at": datetime.datetime(1969, 12, 31, 23, 59, 59),
        }
    ]
    assert labels["late"].cast(pa.int64()).to_pylist() == [253_402_300_799_999_999]
    assert labels["early"].cast(pa.int32()).to_pylist() == [-719_162]


def test_nan_is_missing_in_filters(engine):
    """In filters on real and double NaN is NULL, and infinity is a number."""
    rows = "VALUES (1, nan()), (2, NULL), (3, 0.5e0), (4, infinity())"
    opened = engine(
        f"SELECT n AS who, n AS item, x, CAST(x AS real) AS r FROM ({rows}) AS t(n, x)",
        as_table=True,
    )
    half = Constant(Kind.DECIMAL, "0.5")
    for column in ("x", "r"):
        for where, kept in [
            (IsNull(column), [1, 2]),
            (Not(IsNull(column)), [3, 4]),
            (Comparison(column, "<>", half), [4]),
            (Not(Comparison(column, "=", half)), [4]),
            (Comparison(column, ">=", half), [3, 4]),
            (Not(Membership(column, (half,))), [4]),
        ]:
            head = rows_of(opened, HeadRequest("who", ("item",), 9, where))
            assert [label for (label,), _ in head] == kept, where


EXTREMES = {
    "tinyint": (-128, 127),
    "bigint": (-(2**63), 2**63 - 1),
    "decimal(18, 3)": (Decimal("-999999999999999.999"), Decimal("999999999999999.999")),
    "decimal(38, 0)": (Decimal(10**38 - 1), Decimal(1 - 10**38)),
    "double": (-1.5, 1e300),
}
CONSTANTS = ["0", "1.5", f"0.{'0' * 34}1", f"-0.{'0' * 34}1", "9" * 38, f"-{'9' * 37}"]


@pytest.mark.parametrize(("operator", "holds"), [("=", eq), ("<>", ne), ("<", lt), ("<=", le), (">", gt), (">=", ge)])
def test_no_constant_makes_some_rows_fail(engine, operator, holds):
    """No constant causes an error that depends on the rows, which would leak data; comparisons are exact."""
    columns = ", ".join(f"c{n}" for n in range(len(EXTREMES)))
    rows = [", ".join(f"CAST('{pair[n]}' AS {type_})" for type_, pair in EXTREMES.items()) for n in (0, 1)]
    view = f"SELECT * FROM (VALUES (1, 'a', {rows[0]}), (2, 'b', {rows[1]})) AS t(who, item, {columns})"
    opened = engine(view, as_table=True)
    for n, pair in enumerate(EXTREMES.values()):
        for text in CONSTANTS:
            kind = Kind.DECIMAL if "." in text else Kind.INTEGER
            number = float(text) if isinstance(pair[0], float) else Fraction(text)
            head = rows_of(
                opened, HeadRequest("who", ("item",), 9, Comparison(f"c{n}", operator, Constant(kind, text)))
            )
            kept = [label for label, value in zip("ab", pair, strict=True) if holds(Fraction(value), number)]
            assert [label for (label,), _ in head] == kept, (pair, text)


def test_a_domain_of_every_kind_is_counted(loaded, url):
    """Listed items are exact for quotes, control characters, booleans, dates, microseconds and decimals."""
    columns = {
        "word": (["it's", "\0\u2028\\n", "😀"], pa.string()),
        "price": ([Decimal("-0.01"), Decimal("0.00"), Decimal("7.00")], pa.decimal128(9, 2)),
        "tiny": ([Decimal(n).scaleb(-12) for n in (1, 2, 3)], pa.decimal128(20, 12)),
        "open": ([True, False, True], pa.bool_()),
        "day": ([datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None], pa.date32()),
        "at": ([datetime.datetime(1, 1, 1), datetime.datetime(2024, 2, 29, 1, 2, 3, 4), None], pa.timestamp("us")),
    }
    table = pa.table({"who": [1, 2, 3]} | {name: pa.array(*given) for name, given in columns.items()})
    with loaded(table) as name, contextlib.closing(TrinoEngine(url, table=name)) as engine:
        for item in columns:
            domain = table.select([item]).drop_null().group_by([item]).aggregate([]).slice(1)
            request = HeadRequest("who", (item,), len(domain), domain=domain)
            assert rows_of(engine, request) == reference_head(table, request), item


def test_sums_of_the_largest_values_do_not_overflow(loaded, url):
    """A user's sum of a thousand extreme int64 values is clipped without overflow."""
    most = 2**63 - 1
    table = pa.table({"who": [1] * 1000 + [2] * 1000, "item": ["a"] * 2000, "x": [most] * 1000 + [-most] * 1000})
    summed = SumBounds(Fraction(-5), Fraction(2**62), column="x")
    with loaded(table) as name, contextlib.closing(TrinoEngine(url, table=name)) as engine:
        assert rows_of(engine, HeadRequest("who", ("item",), 5, summed=summed)) == [(("a",), 2, 2**62 - 5)]


@pytest.mark.parametrize(
    "view",
    [
        "SELECT n AS who, 'a' AS item FROM (VALUES 1, 2) AS t(n) -- the end",
        "WITH listed AS (SELECT 1 AS who, 'a' AS item), shown AS (SELECT 2, 'a') TABLE listed UNION ALL TABLE shown",
        "SELECT who, item FROM listed",
        "SELECT who, item FROM shown",
    ],
)
def test_names_in_a_view_do_not_clash_with_the_statement(url, view, request):
    """Names in a view do not clash with those of the statement around it, and a view may end in a comment."""
    for name in ("listed", "shown"):
        trino_server.execute(url, f"CREATE TABLE {name} AS SELECT * FROM (VALUES (1, 'a'), (2, 'a')) AS t(who, item)")
        request.addfinalizer(lambda name=name: trino_server.execute(url, f"DROP TABLE {name}"))
    with contextlib.closing(TrinoEngine(url, view=view)) as opened:
        domain = pa.table({"item": ["z", "a"]})
        assert rows_of(opened, HeadRequest("who", ("item",), 2)) == [(("a",), 2)]
        assert rows_of(opened, HeadRequest("who", ("item",), 2, domain=domain)) == [(("a",), 2), (("z",), 0)]


def test_columns_with_one_name_are_refused(engine):
    """Column names that differ in case only are ambiguous."""
    with pytest.raises(ValueError, match="names that differ in case only"):
        engine("SELECT 1 AS who, 2 AS item, 3 AS ITEM").columns()


def test_fetch_returns_all_pages(engine):
    """A result of `fetch` has all rows of many pages as Arrow; unsupported types are refused by name."""
    opened = engine("SELECT 1 AS who")
    rows = "FROM UNNEST(sequence(1, 10000)) AS a(n), UNNEST(sequence(1, 5)) AS b(m)"
    fetched = opened.fetch(f"SELECT n, CAST(n AS varchar) AS word, nan() AS x {rows}")
    assert fetched.schema.names == ["n", "word", "x"]
    assert sorted(fetched["n"].to_pylist()) == sorted([*range(1, 10_001)] * 5)
    assert set(fetched["word"].to_pylist()) == {str(n) for n in range(1, 10_001)}
    assert opened.fetch("SELECT max(n) AS version FROM (VALUES 1, 2) AS t(n) WHERE n > 2").to_pylist() == [
        {"version": None}
    ]
    assert opened.fetch("SELECT current_timezone() AS zone")["zone"].to_pylist() == ["UTC"]
    with pytest.raises(EngineError, match=r"column 'x' is of Trino's type array\(integer\)"):
        opened.fetch("SELECT ARRAY[1] AS x")


def test_inexact_connectors_are_detected_behind_views(engine, monkeypatch, url, request):
    """With the memory connector marked inexact, its tables are refused directly, in a view and in a Trino view."""
    select = "SELECT 1 AS who, 'a' AS item"
    opened = engine(select, as_table=True)
    inner = opened.name.split()[-1]
    trino_server.execute(url, f"CREATE VIEW hiding SECURITY INVOKER AS SELECT * FROM {inner}")
    request.addfinalizer(lambda: trino_server.execute(url, "DROP VIEW hiding"))
    monkeypatch.setattr("discreet.engines.trino._TRIMMING", {"memory"})
    for hidden in (opened, engine(f"SELECT * FROM {inner}"), engine("SELECT * FROM hiding UNION ALL SELECT 2, 'b'")):
        with pytest.raises(InexactHead, match="catalog 'memory' counts in memory"):
            hidden.head(HeadRequest("who", ("item",), 5))
    assert rows_of(engine(select), HeadRequest("who", ("item",), 5)) == [(("a",), 1)]
