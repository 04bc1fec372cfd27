"""Many analysts at once on one engine."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.engines import MECHANISM, SQL, loaded, opened
from benchmarks.timing import in_turns, table
from discreet.errors import DiscreetError
from discreet.question import HeadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from discreet.warehouse import Warehouse

ANALYSTS = 16
CONNECTIONS = 4
_SHORT = SQL.replace("seniority >= 2", "seniority >= 9")
_LONG = HeadRequest("member_id", ("article", "title", "seniority"), 100_000)
_TIMES = 30


def run() -> list[str]:
    """16 analysts with distinct queries, in turns with the same heads by hand; a short query beside a long one."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for engine in ("duckdb", "postgres", "spark", "trino"):
            folder = Path(name) / engine
            with loaded(engine, folder) as url, opened(url, folder) as warehouse:
                ours, by_hand = in_turns([lambda: _ask(warehouse), lambda: _by_hand(warehouse)], 5)
                alone = _slowest(warehouse)
                with _busy(warehouse):
                    beside = _slowest(warehouse)
                rows.append(
                    [
                        engine,
                        f"{ANALYSTS / ours:.2f} /s",
                        f"{ANALYSTS / by_hand:.2f} /s",
                        f"{by_hand / ours:.2f}x",
                        f"{1e3 * alone:.0f} ms",
                        f"{1e3 * beside:.0f} ms",
                        f"{beside / alone:.1f}x",
                    ]
                )
    headings = ["engine", "16 analysts", "by hand", "ratio", f"slowest short query of {_TIMES}", "beside a long one"]
    return table([*headings, "ratio"], rows)


def _distinct(number: int) -> str:
    return SQL.replace("seniority >= 2", f"seniority >= 2 AND country <> 'x{number}'")


def _ask(warehouse: Warehouse) -> None:
    with ThreadPoolExecutor(ANALYSTS) as analysts:
        list(analysts.map(lambda n: warehouse.query(_distinct(n), mechanism=MECHANISM), range(ANALYSTS)))


def _by_hand(warehouse: Warehouse) -> None:
    heads = [
        _distinct(number).replace("LIMIT 100", "LIMIT 1001").replace("n DESC", "n DESC, article")
        for number in range(ANALYSTS)
    ]
    with ThreadPoolExecutor(CONNECTIONS) as connections:
        list(connections.map(warehouse.engine("engagements").fetch, heads))


def _slowest(warehouse: Warehouse) -> float:
    taken = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        warehouse.query(_SHORT, mechanism=MECHANISM)
        taken.append(time.perf_counter() - start)
    return max(taken)


@contextlib.contextmanager
def _busy(warehouse: Warehouse) -> Iterator[None]:
    """Count one long head after the other."""
    ended = threading.Event()

    class Ended(Exception):
        pass

    def stop(_: float) -> None:
        if ended.is_set():
            raise Ended

    def count() -> None:
        with contextlib.suppress(Ended, DiscreetError):
            while not ended.is_set():
                warehouse.engine("engagements").head(_LONG, progress=stop)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
