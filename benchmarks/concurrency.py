"""Concurrent analysts on one engine, and a short query during a long one."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.timing import in_turns
from discreet.errors import DiscreetError
from discreet.head_request import HeadRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from discreet.warehouse import Warehouse

ANALYSTS = 16
CONNECTIONS = 4
_LONG = HeadRequest("member_id", ("article", "title", "seniority"), 100_000)
_ROUNDS = 7
_MIN_QUERIES, _MAX_QUERIES, _MAX_SECONDS = 10, 100, 15.0


def throughput(
    queries: Sequence[Callable[[], object]],
    over_http: Sequence[Callable[[], object]],
    heads: Sequence[Callable[[], object]],
) -> tuple[float, float, float]:
    """Return the queries per second of concurrent analysts, here and over HTTP, and the heads per second by hand."""

    def together(works: Sequence[Callable[[], object]], threads: int) -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda work: work(), works))

    loads = (queries, ANALYSTS), (over_http, ANALYSTS), (heads, CONNECTIONS)
    ours, served, by_hand = in_turns([partial(together, *load) for load in loads], _ROUNDS)
    return len(queries) / ours, len(over_http) / served, len(heads) / by_hand


def beside_long(warehouse: Warehouse, short: Callable[[], object]) -> tuple[float, float]:
    """Return the 99th percentile of a short query's time in seconds, alone and during a long query."""
    alone = _p99(short)
    with _counting(warehouse):
        return alone, _p99(short)


def _p99(query: Callable[[], object]) -> float:
    """Return the 99th percentile of a query's time in seconds, over at most a hundred queries."""
    taken: list[float] = []
    while len(taken) < _MIN_QUERIES or (len(taken) < _MAX_QUERIES and sum(taken) < _MAX_SECONDS):
        start = time.perf_counter()
        query()
        taken.append(time.perf_counter() - start)
    return statistics.quantiles(taken, n=100, method="inclusive")[98]


@contextlib.contextmanager
def _counting(warehouse: Warehouse) -> Iterator[None]:
    """Count long heads one after the other in the background, from before the context begins until it ends."""
    begun, ended = threading.Event(), threading.Event()

    class Ended(Exception):
        pass

    def stop(_: float) -> None:
        begun.set()
        if ended.is_set():
            raise Ended

    def count() -> None:
        with contextlib.suppress(Ended, DiscreetError):
            while not ended.is_set():
                warehouse.engine("engagements").head(_LONG, progress=stop)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        if not begun.wait(60):
            raise RuntimeError("the long query does not run")
        yield
        if not thread.is_alive():
            raise RuntimeError("the long query failed")
    finally:
        ended.set()
        thread.join()
