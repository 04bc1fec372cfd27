"""The whole query path compared with the engine's time for the same head."""

from __future__ import annotations

import contextlib
import http.client
import importlib
import itertools
import json
import os
import sys
import tempfile
import time
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from benchmarks.concurrency import ANALYSTS, CONNECTIONS, beside_long, throughput
from benchmarks.processes import made_table
from benchmarks.service import started
from benchmarks.serving import add_analyst, configure
from benchmarks.timing import in_turns, table
from discreet.catalog.loader import load_catalog
from discreet.engines.http_connection import HttpConnection
from discreet.engines.opening import open_engine
from discreet.engines.pinot_cluster import OPTIONS
from discreet.engines.url import parse_url
from discreet.errors import InvariantViolated
from discreet.head_request import HeadRequest
from discreet.mechanisms.auto import Auto
from discreet.mechanisms.base import Request
from discreet.noise import SystemBits
from discreet.release.keys import RecordedPairs
from discreet.warehouse import Warehouse
from tests.servers.table import ROWS, engagements
from tests.servers.urls import url_of, without_password

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from discreet.engines.base import Reader


SQL = (
    "SELECT article, COUNT(DISTINCT member_id) AS n FROM engagements "
    "WHERE country IN ('IN', 'US') AND seniority >= 2 GROUP BY article ORDER BY n DESC LIMIT 100"
)
MECHANISM = "gumbel"
"""A mechanism that reads the head alone, unlike the default."""

_COLUMNS = """
user = "member_id"
columns.article = { type = "text", group = true }
columns.country = { type = "text", filter = true }
columns.seniority = { type = "integer", filter = true }
"""


ENGINES = ("duckdb", "postgres", "spark", "trino", "pinot", "clickhouse")
_ROUNDS = 15


def run() -> list[str]:
    """Top 100 (dbar 1,000) of the shared table in SQL, with noise, and the head alone, written by hand."""
    whole, concurrent, short = [_preparation()], [], []
    with tempfile.TemporaryDirectory() as name:
        for engine in ENGINES:
            folder = Path(name) / engine
            with loaded(engine, folder) as url, opened(url, folder) as warehouse:
                with _served(folder) as connect:
                    whole.append([engine, *_whole_path(url, warehouse, connect)])
                    print(*whole[-1], file=sys.stderr, flush=True)
                    concurrent.append([engine, *_concurrent(url, warehouse, connect)])
                    print(*concurrent[-1], file=sys.stderr, flush=True)
                if engine != "clickhouse":  # the test server runs one statement at a time
                    short.append([engine, *_short(warehouse)])
                    print(*short[-1], file=sys.stderr, flush=True)
    headings = ["engine", "our whole path", "the same over HTTP", "its head alone"]
    analysts, hand = f"{ANALYSTS} analysts", f"by hand, {CONNECTIONS} at once"
    return [
        *table([*headings, "share of 1.10x + 3 ms", "over HTTP"], whole),
        "",
        *table(["engine", analysts, f"{analysts} over HTTP", hand, "ratio", "over HTTP"], concurrent),
        "",
        *table(["engine", "99th percentile of a short query", "beside a long one", "ratio"], short),
    ]


def _whole_path(url: str, warehouse: Warehouse, connect: Callable[[], Callable[[str], None]]) -> list[str]:
    runs = [lambda: warehouse.query(SQL, mechanism=MECHANISM), partial(connect(), SQL), _by_hand(url, warehouse, SQL)]
    ours, over_http, alone = in_turns(runs, _ROUNDS)
    allowed = 1.10 * alone + 0.003
    times = [f"{1e3 * seconds:.1f} ms" for seconds in (ours, over_http, alone)]
    return [*times, *(f"{seconds / allowed:.2f}" for seconds in (ours, over_http))]


def _concurrent(url: str, warehouse: Warehouse, connect: Callable[[], Callable[[str], None]]) -> list[str]:
    distinct = [SQL.replace("seniority >= 2", f"seniority >= 2 AND country <> 'x{n}'") for n in range(ANALYSTS)]
    ours, over_http, by_hand = throughput(
        [partial(warehouse.query, sql, mechanism=MECHANISM) for sql in distinct],
        [partial(connect(), sql) for sql in distinct],
        [_by_hand(url, warehouse, sql) for sql in distinct],
    )
    rates = [f"{rate:.2f} /s" for rate in (ours, over_http, by_hand)]
    return [*rates, f"{ours / by_hand:.2f}", f"{over_http / by_hand:.2f}"]


def _short(warehouse: Warehouse) -> list[str]:
    query = partial(warehouse.query, SQL.replace("seniority >= 2", "seniority >= 9"), mechanism=MECHANISM)
    alone, beside = beside_long(warehouse, query)
    return [f"{1e3 * alone:.0f} ms", f"{1e3 * beside:.0f} ms", f"{beside / alone:.1f}"]


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[Callable[[], Callable[[str], None]]]:
    """Run a service with the catalog of *folder*, and yield a function that opens a connection for another analyst.

    It returns a function that sends a query, each at another price, so that no answer is replayed.
    """
    keys = [configure(folder, (folder / "catalog.toml").read_text(), "engagements")]
    keys += [add_analyst(folder, f"analyst{n}@org") for n in range(ANALYSTS)]
    prices = itertools.count(1)
    with started(str(folder)) as (port, _), contextlib.ExitStack() as opened:

        def connect() -> Callable[[str], None]:
            # http.client takes 0.4 ms of CPU for a request, httpx 1.3 ms, which are no part of the service.
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            opened.callback(connection.close)
            headers = {"Authorization": f"Bearer {keys.pop()}", "Content-Type": "application/json"}

            def query(sql: str) -> None:
                body = {"sql": sql, "epsilon": 1 + next(prices) / 1e6, "mechanism": MECHANISM}
                connection.request("POST", "/v1/query", json.dumps(body), headers)
                response = connection.getresponse()
                response.read()
                if response.status != http.HTTPStatus.OK:
                    raise RuntimeError(f"the service answered with {response.status}")

            return query

        yield connect


def _by_hand(url: str, warehouse: Warehouse, sql: str) -> Callable[[], object]:
    """Return a call for the same head, written by hand; on Pinot with the options that make the result equal.

    Pinot stores missing values as if they were values.
    """
    pinot = url.startswith("pinot:")
    there = "member_id <> -9223372036854775807 AND article <> '(missing)'" if pinot else "article IS NOT NULL"
    head = sql.replace("LIMIT 100", "LIMIT 1001").replace("n DESC", "n DESC, article")
    head = head.replace("WHERE ", f"WHERE {there} AND ")
    if not pinot:
        reader = warehouse.engine("engagements")
        return lambda: reader.fetch(head)
    place = parse_url(url)
    options = "".join(f"SET {name}={value}; " for name, value in OPTIONS.items())
    connection = HttpConnection(place.host, place.port, None)
    body, headers = json.dumps({"sql": options + head}).encode(), {"Content-Type": "application/json"}
    return lambda: json.loads(connection.send("POST", "/query/sql", body, headers)[1])["resultTable"]


def _preparation() -> list[str]:
    """Time everything before the engine: parse, canonicalise, plan."""
    with (
        tempfile.TemporaryDirectory() as name,
        loaded("duckdb", Path(name)) as url,
        opened(url, Path(name)) as warehouse,
    ):
        (seconds,) = in_turns([lambda: warehouse.plan(SQL, mechanism=MECHANISM)], 201)
    return ["parse, canonicalise, plan", f"{1e3 * seconds:.2f} ms", "", "", f"of 2 ms: {seconds / 0.002:.2f}", ""]


@contextlib.contextmanager
def opened(url: str, folder: Path) -> Iterator[Warehouse]:
    """Open a warehouse with one dataset at *url*."""
    path = folder / "catalog.toml"
    shown, password = without_password(url)
    needed = "" if password is None else 'password_env = "PASSWORD"\n'
    path.write_text(
        f'[engines.here]\nurl = "{shown}"\ntimeout_seconds = 600\n{needed}'
        f'[datasets.engagements]\nengine = "here"\ntable = "engagements"{_COLUMNS}'
    )
    os.environ["PASSWORD"] = password or ""  # also read by the service
    with Warehouse(load_catalog(path)) as warehouse:
        yield warehouse


@contextlib.contextmanager
def loaded(engine: str, folder: Path, held: pa.Table | None = None) -> Iterator[str]:
    """Load *held*, or the shared table without dates, which Pinot lacks, into an engine and return its URL."""
    folder.mkdir(parents=True, exist_ok=True)
    held = engagements(ROWS, dates=False) if held is None else held
    if engine == "duckdb":
        with duckdb.connect(str(folder / "shared.db")) as connection:
            connection.execute("CREATE OR REPLACE TABLE engagements AS FROM held")
        yield f"duckdb:///{folder / 'shared.db'}"
        return
    server = importlib.import_module(f"tests.servers.{engine}")
    started = server.start(folder)
    try:
        server.load(started, held, "engagements")
        yield url_of(started)
    finally:
        server.stop(folder)


def growth() -> list[str]:
    """How time grows with the rows: heads of 10,001 items by DuckDB and Spark, a top 100 and a release by DuckDB."""
    rows, answers = [], []
    for k in (100, None):
        mechanism = Auto.at_epsilon(Fraction(1), Fraction(1, 10**8), Request(k, 10_000, relative_error=Fraction(1, 10)))
        if mechanism is None:
            raise InvariantViolated("epsilon 1 is enough for a release")
        answers.append(mechanism)
    request = HeadRequest("user_id", ("item",), 10_000)
    for size in (1_000_000, 10_000_000, 100_000_000):
        path = made_table(size)
        cells = [f"{size:,}"]
        for source in (str(path), f"spark://local?path={path}"):
            engine = open_engine(source)
            if size < 100_000_000:
                engine.head(request)
            cells.append(_seconds(lambda engine=engine: engine.head(request)))
            engine.close()
        with contextlib.closing(open_engine(str(path))) as engine:
            cells += [_seconds(partial(_release, mechanism, engine, request)) for mechanism in answers]
        rows.append(cells)
    return table(["rows", "DuckDB", "Spark, local", "DuckDB, top 100", "DuckDB, release"], rows)


def _release(mechanism: Auto, engine: Reader, request: HeadRequest) -> None:
    with RecordedPairs(engine, request) as pairs:
        mechanism.release(pairs, SystemBits())


def _seconds(work: Callable[[], object]) -> str:
    start = time.perf_counter()
    work()
    return f"{time.perf_counter() - start:.1f} s"
